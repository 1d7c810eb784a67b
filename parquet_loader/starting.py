"""A command that is interrupted while Python still imports: one line, where a traceback would come.

``python -m parquet_loader...`` imports this package before a line of the command runs, and that takes up to a second.
Nothing has been touched by then, so the process ends on the spot.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from types import FrameType

__all__ = ["end_if_interrupted", "is_command", "take_over"]


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def is_command() -> bool:
    """Whether this package is being imported for ``python -m`` to run a module of it."""
    # While it looks for the module, Python has no more than this in sys.argv.
    named = any(flag == "-m" and name.split(".")[0] == __package__ for flag, name in pairwise(sys.orig_argv))
    return sys.argv[:1] == ["-m"] and named


def end_if_interrupted() -> None:
    """Until `take_over`, a signal ends the process, with one line."""
    for number in _SIGNALS:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _end)


def take_over() -> None:
    """From here on the command copes with signals itself."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted; nothing was written\n")
    os._exit(128 + number)
