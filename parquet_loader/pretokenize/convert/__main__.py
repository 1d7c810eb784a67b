"""``python -m parquet_loader.pretokenize.convert``."""

import sys

from ...starting import take_over
from .command import main

if __name__ == "__main__":
    take_over()
    sys.exit(main())
