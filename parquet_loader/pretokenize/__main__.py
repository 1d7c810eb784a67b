"""``python -m parquet_loader.pretokenize``."""

import sys

from .cli import main

sys.exit(main())
