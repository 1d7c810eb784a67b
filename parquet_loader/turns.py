"""One decoding thread at a time in Python, and others beside it in long calls that leave the interpreter alone.

The interpreter's lock is given up and taken back in every call to NumPy of some size, dozens of times for a row group.
Where several threads decode, each time may cost a sleep and a wake-up: more than a second thread brings. So they take
turns, from one long call to the next:

    thread 0   decode ..... decompress ..........  decode
    thread 1   ....... wait decode ..... decompress .......
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType

__all__ = ["Decoders", "aside"]

_here = threading.local()  # .turn: the lock that this thread has, while it is in Python


class Decoders:
    """Held by threads that decode: so many at most, of which one is in Python and the others are `aside`.

    Args:
        threads: how many.
    """

    def __init__(self, threads: int) -> None:
        self._places = threading.Semaphore(threads)
        # Without an interpreter's lock there is nothing to fight for.
        self._turn = threading.Lock() if threads > 1 and getattr(sys, "_is_gil_enabled", lambda: True)() else None

    def __enter__(self) -> None:
        self._places.acquire()
        if self._turn is not None:
            self._turn.acquire()
            _here.turn = self._turn

    def __exit__(self, *_: object) -> None:
        if self._turn is not None:
            _here.turn = None
            self._turn.release()
        self._places.release()


class aside:  # used like a function
    """Held around what may take long and needs no Python, or waits: another decoding thread has its turn meanwhile.

    On a thread that is not in `Decoders` it does nothing.
    """

    __slots__ = ("_turn",)

    def __enter__(self) -> None:
        self._turn: threading.Lock | None = getattr(_here, "turn", None)
        if self._turn is not None:
            self._turn.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn is not None:
            self._turn.acquire()
