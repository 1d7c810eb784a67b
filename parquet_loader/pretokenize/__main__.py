"""``python -m parquet_loader.pretokenize``."""

import sys

from parquet_loader.pretokenize.cli import main

sys.exit(main())
