"""What is in a set, what a run will do, and what a step of it saw: all from the index, without training.

Functions that return values; the command ``parquet-loader`` shows them.
"""

from .chain import ChainReport, check_chain
from .check import CheckReport, check
from .describe import CheckpointDescription, describe, open_saved
from .inspect import Inspection, candidates, inspect
from .opening import open_run
from .order_check import OrderReport, check_order
from .plan import Plan, plan
from .report import report, write_report

__all__ = [
    "ChainReport",
    "CheckReport",
    "CheckpointDescription",
    "Inspection",
    "OrderReport",
    "Plan",
    "candidates",
    "check",
    "check_chain",
    "check_order",
    "describe",
    "inspect",
    "open_run",
    "open_saved",
    "plan",
    "report",
    "write_report",
]
