"""What is in a set, what a run will do, and what a step of it saw: all from the index, without training.

Functions that return values; the command ``parquet-loader`` shows them.
"""

from typing import TYPE_CHECKING, Any

from .candidates import candidates
from .chain import ChainReport, check_chain
from .changes import Resumption, resumption
from .check import CheckReport, check
from .describe import CheckpointDescription, describe, open_saved
from .inspect import Inspection, inspect
from .opening import open_run
from .order_check import OrderReport, check_order
from .plan import Plan, plan
from .records import Description, columns_of, describe_pieces
from .report import report, write_report
from .show import Shown, show
from .trace import Piece, Place, Places, Trace, Tracer, find, which

if TYPE_CHECKING:
    from .text import open_tokenizer, open_tokenizer_of

__all__ = [
    "ChainReport",
    "CheckReport",
    "CheckpointDescription",
    "Description",
    "Inspection",
    "OrderReport",
    "Piece",
    "Place",
    "Places",
    "Plan",
    "Resumption",
    "Shown",
    "Trace",
    "Tracer",
    "candidates",
    "check",
    "check_chain",
    "check_order",
    "columns_of",
    "describe",
    "describe_pieces",
    "find",
    "inspect",
    "open_run",
    "open_saved",
    "open_tokenizer",
    "open_tokenizer_of",
    "plan",
    "report",
    "resumption",
    "show",
    "which",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in ("open_tokenizer", "open_tokenizer_of"):  # which bring pretokenize
        from . import text

        return getattr(text, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
