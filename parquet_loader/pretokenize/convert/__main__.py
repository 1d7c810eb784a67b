"""``python -m parquet_loader.pretokenize.convert``."""

import sys

from .command import main

sys.exit(main())
