"""How many tokens each document of some row groups has, which the levels of their pages tell.

The engine's own planning says which bytes are read: one lane takes the row groups as if they were a window, so that
small ones which follow each other are one read and one task.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from ..blocks import IntArray
from ..engine.config import EngineConfig
from ..engine.plan import TaskPlan, WindowPlan, plan_window
from ..engine.work import TaskWork, read_chunks
from ..order.order import Window

__all__ = ["KnownLengths", "document_lengths"]

# What `KnownLengths` keeps, 8 bytes for each document.
_MOST_KNOWN = 1 << 22


def document_lengths(
    config: EngineConfig, groups: IntArray, progress: Callable[[int, int], None] | None = None
) -> list[IntArray]:
    """The tokens of every document of some row groups, EOS included where one is appended; empty documents too.

    Args:
        config: of the set.
        groups: their numbers in the index, shape ``(groups,)``, each once. Those that follow each other in storage are
            best given in that order.
        progress: called with how many of them have been read, and how many there are.

    Returns:
        Of each row group, shape ``(documents,)``, int64: as many as the index says, but of a stream, where it guesses.

    Raises:
        StorageError, DataError: a row group cannot be read, or is not what the index says.
    """
    config = config.of_tokens()
    # Row groups without tokens are not read: their documents are empty.
    found: list[IntArray] = [np.zeros(rows, np.int64) for rows in config.index.rows[groups].tolist()]
    plan = _plan_of(config, groups)

    def run(task: TaskPlan) -> int:
        work = TaskWork.of(config.index, plan, task)
        raws, besides = read_chunks(config.storage, work, None)
        lengths = config.format.document_lengths(raws, work.chunks, config.eos_id, besides)
        for ordinal, each in zip(task.ordinals, lengths, strict=True):
            found[ordinal] = each
        return len(task.ordinals)

    done, needed = 0, sum(len(task.ordinals) for task in plan.tasks)
    with ThreadPoolExecutor(max(config.threads, config.requests)) as pool:
        try:
            for count in pool.map(run, plan.tasks):
                done += count
                if progress is not None:
                    progress(done, needed)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [each + 1 for each in found] if config.appends_eos else found


def _plan_of(config: EngineConfig, groups: IntArray) -> WindowPlan:
    """What is to be read and decoded. Row groups without tokens are in no task."""
    order = replace(config.order, lanes=1, row_tokens=0)
    alone = replace(config, order=order, first=0, last=1, eos_id=None, rows=None)
    offsets = np.zeros(len(groups) + 1, np.int64)
    config.index.tokens[groups].cumsum(out=offsets[1:])
    return plan_window(alone, Window(epoch=0, number=0, groups=groups, offsets=offsets, before=0))


class KnownLengths:
    """`document_lengths` of a set, some of which are remembered: steps that follow each other are of few row groups.

    Args:
        config: of the set.
        progress: see `document_lengths`.
    """

    def __init__(self, config: EngineConfig, progress: Callable[[int, int], None] | None = None) -> None:
        self._config = config
        self._progress = progress
        self._known: dict[int, IntArray] = {}
        self._documents = 0

    def of(self, groups: IntArray) -> list[IntArray]:
        """See `document_lengths`; in any order."""
        wanted, known = groups.tolist(), self._known
        new = np.array(sorted(set(wanted).difference(known)), np.int64)
        if len(new):
            lengths = document_lengths(self._config, new, self._progress)
            known.update(zip(new.tolist(), lengths, strict=True))
            self._documents += sum(map(len, lengths))
        for number in wanted:
            known[number] = known.pop(number)  # what was asked for last is kept longest
        found = [known[number] for number in wanted]
        while self._documents > _MOST_KNOWN:
            self._documents -= len(known.pop(next(iter(known))))
        return found
