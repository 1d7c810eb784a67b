"""Units of a check on threads, or on processes of its own.

Processes are fresh interpreters, which share nothing with this one but the files. An interrupt is for this one alone,
also while they start; and they end when it does, however that may be.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.connection import wait as wait_for

from ..errors import HelperError
from ..storage.base import Storage
from .units import Looked, Unit, look

__all__ = ["looked_at"]


def looked_at(
    storage: Storage, units: Iterable[Unit], workers: int, *, processes: bool
) -> Iterator[tuple[Unit, list[Looked]]]:
    """Each unit with what was found in it, as it is done; few are under way at once.

    Raises:
        HelperError: a process was ended from outside.
    """
    stop = threading.Event()
    pool: Executor
    work: Callable[[Unit], list[Looked]]
    if processes:
        pool = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(storage,)
        )
        with _uninterrupted():  # which the processes inherit
            for _ in range(workers):
                pool.submit(_nothing)
        work = _look
    else:
        pool = ThreadPoolExecutor(workers, thread_name_prefix="parquet-check")
        work = functools.partial(look, storage, stop=stop)
    left = iter(units)
    under_way: dict[Future[list[Looked]], Unit] = {}
    try:
        while True:
            for unit in islice(left, 2 * workers - len(under_way)):
                under_way[pool.submit(work, unit)] = unit
            if not under_way:
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                yield under_way.pop(future), future.result()
    except BrokenProcessPool as error:
        raise HelperError(
            "a process that was checking has ended: it was killed, perhaps for want of memory, or could not start; use "
            "fewer threads, or processes=False"
        ) from error
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # others may set no handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ── in the processes ─────────────────────────────────────────────────────────────────────────────────────────────

_storage: Storage | None = None


def _begin(storage: Storage) -> None:
    global _storage  # noqa: PLW0603  # there is no other place for what a process has
    _storage = storage
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """End when the process ends that this one is of, which may not be able to say so."""
    wait_for([sentinel])
    os._exit(1)


def _nothing() -> None:
    pass


def _look(unit: Unit) -> list[Looked]:
    assert _storage is not None
    return look(_storage, unit)
