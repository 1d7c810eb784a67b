"""What is in a set, what a run will do, and what a step of it saw: all from the index, without training.

Functions that return values; the command ``parquet-loader`` shows them.
"""

from .opening import open_run
from .plan import plan

__all__ = ["open_run", "plan"]
