"""What is in a set, what a run will do, and what a step of it saw: all from the index, without training.

Functions that return values; the command ``parquet-loader`` shows them.
"""

from typing import TYPE_CHECKING, Any

from .opening import open_run
from .plan import plan
from .records import columns_of, describe_pieces
from .show import show

if TYPE_CHECKING:
    from .text import open_tokenizer, open_tokenizer_of

__all__ = ["columns_of", "describe_pieces", "open_run", "open_tokenizer", "open_tokenizer_of", "plan", "show"]


def __getattr__(name: str) -> Any:
    if name in ("open_tokenizer", "open_tokenizer_of"):  # which bring pretokenize
        from . import text

        return getattr(text, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
