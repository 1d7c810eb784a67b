"""``python -m parquet_loader``: the command ``parquet-loader``."""

import sys

from .cli import main
from .starting import take_over

if __name__ == "__main__":
    take_over()
    sys.exit(main())
