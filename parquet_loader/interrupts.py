"""Critical sections that an interrupt cannot leave locked.

Ctrl-C, and every other signal's exception, falls into the main thread wherever it is. Up to Python 3.13 none comes
between a lock's being taken by ``with`` and the block's beginning; since 3.14 one can, nobody gives the lock back, and
whoever takes it next waits for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["under"]

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
