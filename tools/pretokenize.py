#!/usr/bin/env python3
"""Text to tokenized Parquet. ``python tools/pretokenize.py --help`` says how; docs/pretokenize.md says more."""

import sys

from parquet_loader.pretokenize import main

if __name__ == "__main__":
    sys.exit(main())
