"""``python -m parquet_loader.pretokenize.convert``."""

import sys

from ...starting import take_over
from .command import main

take_over()
sys.exit(main())
