"""Memory for row groups that hold more while they are decoded than could be known before they were read.

An index does not tell how large pages are, nor whether they are of a kind that only pyarrow's own reader takes, which
needs several times the memory. To count the worst for every row group would forbid most of what works. So tasks are
admitted for what is usual, and a part of the budget is kept aside:

    budget   │ what tasks are admitted to                        │ reserve │
                                                     a row group that needs more waits for it with what it has


Whoever holds some of it waits for nobody, so it comes back; a row group that needs more than there is never gets it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import ConfigError
from ..formats.base import ColumnChunk, CountingBudget
from ..turns import aside
from .prefetch import Budget

__all__ = ["Reserve"]


class Reserve:
    """A part of a loader's budget to which no task is admitted.

    Args:
        reserve_bytes: how much it is.
        budget: the rest, with which what is held of it is counted.
    """

    def __init__(self, reserve_bytes: int, budget: Budget) -> None:
        self._bytes = reserve_bytes
        self._budget = budget
        self._left = CountingBudget(reserve_bytes)

    @contextlib.contextmanager
    def hold(self, more_bytes: int, chunk: ColumnChunk) -> Iterator[None]:
        """Hold so many bytes more than a row group's task was admitted with, waiting for others that do.

        Raises:
            ConfigError: there are never so many.
        """
        if more_bytes <= 0:
            yield
            return
        if more_bytes > self._bytes:
            # It is half of what the budget has beyond the least, see `cost.reserve_bytes`.
            enough = self._budget.limit_bytes - self._bytes + 2 * more_bytes
            raise ConfigError(
                f"row group {chunk.row_group} of {chunk.path} has larger pages than most, or such that only pyarrow's "
                f"own reader takes: decoding it takes {more_bytes:,} bytes more than row groups of its size do, and "
                f"budget_bytes {self._budget.limit_bytes + self._bytes:,} leaves {self._bytes:,} for that; give at "
                f"least {enough:,}, or write the file with pages of about a megabyte"
            )
        with contextlib.ExitStack() as held:
            with aside():  # those that hold some decode, and give it back only then
                held.enter_context(self._left.hold(more_bytes))
            with self._budget.lock:
                self._budget.acquire(more_bytes)
            try:
                yield
            finally:
                self._budget.release(more_bytes)
