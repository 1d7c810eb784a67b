"""What is in a set, what a run will do, and what a step of it saw: all from the index, without training.

Functions that return values; the command ``parquet-loader`` shows them.
"""

from .opening import open_run
from .trace import Piece, Place, Places, Trace, Tracer, find, which

__all__ = ["Piece", "Place", "Places", "Trace", "Tracer", "find", "open_run", "which"]
