"""Critical sections that an interrupt cannot leave locked.

Ctrl-C, and every other signal's exception, falls into the main thread wherever it is. Up to Python 3.13 none comes
between a lock's being taken by ``with`` and the block's beginning; since 3.14 one can, nobody gives the lock back, and
whoever takes it next waits for ever.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import LoaderInUseError

__all__ = ["Bell", "Turn", "under"]

_LEAVES_LOCKED = sys.version_info >= (3, 14)

T = TypeVar("T")


def under(lock: Any, work: Callable[[], T]) -> T:
    """``work()``, done while an RLock is held, which is free afterwards, whatever comes in between.

    To be called wherever the main thread takes a lock. On other threads, which no signal falls into, ``with`` will do.
    """
    if not _LEAVES_LOCKED:
        with lock:
            return work()
    depth = lock._recursion_count()
    try:
        with lock:
            return work()
    finally:
        if lock._recursion_count() > depth:
            lock.release()


class Bell:
    """What the main thread waits for, until another thread rings.

    In place of ``Condition.wait``, which is Python: a signal's exception in it can leave the lock other than it was.

    Args:
        lock: an RLock, held by whoever calls `ring` or asks for `awaited`.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._gate: threading.Lock | None = None  # taken until the bell is rung

    @property
    def awaited(self) -> bool:
        """Whether somebody waits."""
        return self._gate is not None

    def ring(self) -> None:
        """Have whoever waits look again."""
        if self._gate is not None:
            self._gate.release()
            self._gate = None

    def wait_for(self, look: Callable[[], T | None]) -> T:
        """``look()``, done under the lock, once it is not None: at first, and again whenever the bell has rung."""

        def look_or_wait() -> tuple[T | None, threading.Lock]:
            gate = threading.Lock()
            found = look()
            if found is None:
                gate.acquire()
                self._gate = gate
            return found, gate

        def wait_no_more() -> None:
            self._gate = None

        try:
            while True:
                found, gate = under(self._lock, look_or_wait)
                if found is not None:
                    return found
                gate.acquire()
        except BaseException:
            under(self._lock, wait_no_more)
            raise


class Turn:
    """Lets one thread in at a time. Others do not wait: they are told.

    The thread is noted, and no lock is held meanwhile: one that an interrupt left taken would keep everybody out, and a
    thread that is noted by mistake gets in again.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # of what follows
        self._thread: int | None = None

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()  # nobody is in a copy

    def run(self, work: Callable[[], T]) -> T:
        """``work()``, unless another thread is at it.

        Raises:
            LoaderInUseError: another thread is.
        """
        me = threading.get_ident()

        def enter() -> None:
            if self._thread not in (None, me):
                raise LoaderInUseError(
                    "another thread is taking a batch of this loader; give each thread its own loader"
                )
            self._thread = me

        try:
            under(self._lock, enter)
            return work()
        finally:
            if self._thread == me:
                self._thread = None
