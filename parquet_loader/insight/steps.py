"""Steps of a run, of its history and of its future: which rows of which source they have; and in which of them a lane
comes to a position of a source.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..blocks import IntArray
from ..checkpoint import ONLY
from ..engine.config import EngineConfig
from ..engine.mixer import Block
from ..errors import ConfigError, SourceExhaustedError
from ..options import LoaderOptions
from ..order.ending import Finish, finish_of
from ..order.mixture import BLOCK
from ..order.order import Order
from ..order.progress import MixtureProgress, Progress
from ..runs import MixtureRun, SetRun, Step
from .fragments import SourceRows

__all__ = ["MOST_STEPS", "MixtureSteps", "Row", "SetSteps", "advanced", "is_skipped", "rows_of", "step_of"]

MOST_STEPS = 2**50  # so far ahead a source is looked for
_MOST_TABLES = 64  # of blocks, each of 1,024 bytes a lane


def step_of(run: SetRun | MixtureRun, number: int) -> Step:
    """A step of a run: one of its history, or one that it is going to have.

    Raises:
        ConfigError: the run ends before it.
        SourceExhaustedError: so does a source of the mixture.
    """
    progress, position = run.progress, run.progress.position_of(number)
    if isinstance(run, SetRun):
        if _is_beyond(run.finish, progress, position):
            assert run.finish is not None
            last = progress.rows_before(run.finish.stop - 1)
            ends = f"the run ends with step {last:,}" if run.finish.stop else "the run ends before its first step"
            raise ConfigError(f"{ends} (epochs={run.finish.epochs}): there is no step {number:,}")
        lengths = tuple(change for change in progress.lengths if change[0] <= position)
        return Step(Progress(position=position, lengths=lengths, skips=progress.skips), run.configs, None, run.options)
    at = progress_at(run, number)
    return Step(at, {name: run.config_of(name) for name, _ in at.quotas}, run.plan, run.options)


def advanced(run: SetRun | MixtureRun, rows: int) -> tuple[Progress, SourceExhaustedError | None]:
    """The place after so many rows, or the last one before an error."""
    try:
        return run.advanced(rows), None
    except SourceExhaustedError as found:
        error = found

    def is_too_far(row: int) -> bool:
        try:
            run.advanced(row)
        except SourceExhaustedError:
            return True
        return False

    return run.advanced(bisect.bisect_left(range(1, rows), True, key=is_too_far)), error


def progress_at(run: MixtureRun, row: int, *, entered: bool = True) -> MixtureProgress:
    """The progress of a mixture at a row, with the length of rows that it has there.

    Args:
        run: its history says what was, its plan what will be.
        row: earlier or later than where the run is.
        entered: with the stage of the row's block known.

    Raises:
        SourceExhaustedError: the run never comes there, or with ``entered`` not beyond.
    """
    progress = run.progress
    if row < progress.row:
        return replace(progress.at_row(row, run.plan.lattice), skips=progress.skips)
    at = progress.advanced(row - progress.row, run.plan)
    return at.entered(run.plan) if entered else at


def rows_of(step: Step, rows: IntArray) -> Iterator[tuple[str, SourceRows]]:
    """Rows of a step, source by source."""
    progress, plan, options = step.progress, step.plan, step.options
    width = progress.seq_len + options.overlap
    if plan is None:
        (config,) = step.configs.values()
        positions = np.full(len(rows), progress.position)
        stops = positions + width
        if options.epochs is not None:
            stops = np.maximum(positions, np.minimum(stops, _finish_of(config, options).ends[rows]))
        yield ONLY, SourceRows(config, progress.reached(options.lanes), rows, positions, stops)
        return
    assert isinstance(progress, MixtureProgress)
    if not len(rows):
        return
    first, last = int(rows[0]), int(rows[-1]) + 1
    block, row = Block(progress, plan, first, last), progress.row % BLOCK
    lanes = rows - first
    for place, part in enumerate(block.parts):
        mine = lanes[block.table.sources[row][lanes] == place]
        if len(mine):
            positions = part.positions(block.table.ordinals[row])[mine]
            lengths = progress.length_of(part.name)
            yield part.name, SourceRows(step.configs[part.name], lengths, mine + first, positions, positions + width)


def _finish_of(config: EngineConfig, options: LoaderOptions) -> Finish:
    """The end of a run of some epochs, for all lanes."""
    assert options.epochs is not None
    return finish_of(
        config.order,
        0,
        options.lanes,
        epochs=options.epochs,
        tail=options.tail,
        seq_len=options.seq_len,
        overlap=options.overlap,
    )


def is_skipped(progress: Progress, position: int) -> bool:
    """Whether the row at a position was skipped."""
    return any(low <= position < high for low, high in progress.skips)


def _is_beyond(finish: Finish | None, progress: Progress, position: int) -> bool:
    """Whether a run has no row at a position: it ends before, and has not had one there when it had more epochs."""
    if finish is None or position < finish.stop:
        return False
    return position >= progress.position or is_skipped(progress, position)


class Row(NamedTuple):
    """A row of a lane.

    Attributes:
        step: its number in the run.
        begin: where it begins in the lane's stream of the source.
        seq_len: its tokens.
        skipped: whether nobody got it.
    """

    step: int
    begin: int
    seq_len: int
    skipped: bool


class SetSteps:
    """The steps of a run of one set."""

    def __init__(self, run: SetRun) -> None:
        self._progress = run.progress
        self._finish = run.finish
        self._order = run.order
        self.lengths = run.progress.reached(run.order.lanes)

    def row_of(self, lane: int, position: int) -> Row | None:
        """The row that a position of a lane comes in; None where the run has ended."""
        step = self._progress.rows_before(position)
        begin = self._progress.position_of(step)
        if _is_beyond(self._finish, self._progress, begin):
            return None
        return Row(step, begin, self._progress.length_at(begin), is_skipped(self._progress, begin))

    def epochs(self, steps: range, overlap: int) -> range:
        """The epochs that steps come to."""
        begin, end = self._progress.position_of(steps.start), self._progress.position_of(steps.stop)
        return self.delivered(_epochs(self._order, begin, end, overlap))

    def delivered(self, epochs: range) -> range:
        """Those of some epochs that the run has."""
        most = epochs.stop if self._finish is None else self._finish.epochs
        return range(min(epochs.start, most), min(epochs.stop, most))


class MixtureSteps:
    """The steps of a mixture that are of one source."""

    def __init__(self, run: MixtureRun, name: str) -> None:
        self._run = run
        self._name = name
        self._lanes = run.options.lanes
        self._order = run.config_of(name).order
        self._starts: dict[int, IntArray | None] = {}
        self._tables: dict[int, tuple[IntArray, IntArray] | None] = {}
        self.lengths = run.progress.length_of(name)

    def row_of(self, lane: int, position: int) -> Row | None:
        """The row that a position of a lane's stream of the source comes in; None where it never does."""
        low, high = 0, self._run.progress.block + 1
        while self._begins_before(high, lane, position):
            if self._is_over(high):
                return None
            low, high = high, 2 * high
        while high - low > 1:  # block `low` begins before the position or with it, `high` after it or never
            middle = (low + high) // 2
            low, high = (middle, high) if self._begins_before(middle, lane, position) else (low, middle)
        table = self._table(low)
        if table is None:
            return None
        rows = table[0][:, lane].nonzero()[0]
        place = int(table[1][rows, lane].searchsorted(position, side="right")) - 1
        row = low * BLOCK + int(rows[place])
        at, progress = self._run.progress.position_of(row), self._run.progress
        found = Row(row, int(table[1][rows[place], lane]), progress.length_at(at), is_skipped(progress, at))
        return found if position < found.begin + found.seq_len else None

    def delivered(self, epochs: range) -> range:
        """Those of some epochs that the run has: a source that ends has no row where it would be in a later one."""
        return epochs

    def epochs(self, steps: range, overlap: int) -> range:
        """The epochs of the source that steps come to."""
        first, last = self._had(steps.start), self._had(steps.stop)
        low, high = steps.start, steps.stop
        while last is None and high - low > 1:  # the last one that there is
            middle = (low + high) // 2
            low, high = (middle, high) if self._had(middle) is not None else (low, middle)
        if last is None:
            last = self._had(low)
        if first is None or last is None:
            return range(0)
        return _epochs(self._order, int(first.min()), int(last.max()), overlap)

    def _begins_before(self, block: int, lane: int, position: int) -> bool:
        """Whether a lane comes to a position of the source in a block or later."""
        if block not in self._starts:
            self._starts[block] = self._had(block * BLOCK)
        had = self._starts[block]
        return had is not None and bool(had[lane] <= position)

    def _table(self, block: int) -> tuple[IntArray, IntArray] | None:
        """Of a block's rows whether they are of the source, and where they begin in the lanes' streams of it, or the
        next ones would: each of shape ``(BLOCK, lanes)``. None where the run does not come to the block.
        """
        if block not in self._tables:
            while len(self._tables) >= _MOST_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[block] = self._tabulated(block)
        return self._tables[block]

    def _tabulated(self, block: int) -> tuple[IntArray, IntArray] | None:
        begins = self._had(block * BLOCK)
        try:
            progress = progress_at(self._run, block * BLOCK)
        except SourceExhaustedError:
            return None
        assert begins is not None
        names = [name for name, _ in progress.quotas]
        table = self._run.plan.lattice.table(block, [quota for _, quota in progress.quotas], 0, self._lanes)
        mine = (table.sources == (names.index(self._name) if self._name in names else -1)).astype(np.int64)
        positions = [self._run.progress.position_of(block * BLOCK + row) for row in range(BLOCK)]
        seq_lens = np.array([self._run.progress.length_at(position) for position in positions])
        tokens = mine * seq_lens[:, None]
        return mine, begins + tokens.cumsum(axis=0) - tokens

    def _had(self, row: int) -> IntArray | None:
        """What the lanes have had of the source before a row of the run, shape ``(lanes,)``; None where it never comes
        there.
        """
        try:
            progress = progress_at(self._run, row, entered=False)
        except SourceExhaustedError:
            return None
        had = progress.had(self._name, self._run.plan.lattice, 0, self._lanes)
        return np.broadcast_to(np.asarray(had, np.int64), self._lanes)

    def _is_over(self, block: int) -> bool:
        """Whether the source is not drawn from any more, from a block on to which the run comes."""
        progress = progress_at(self._run, block * BLOCK, entered=False)
        return block > MOST_STEPS or self._name not in self._run.needed(progress)


def _epochs(order: Order, begin: int, end: int, overlap: int) -> range:
    """The epochs that the positions ``[begin, end)`` of the lanes are of, and those of the tokens that follow them."""
    if begin >= end:
        return range(0)
    begin, end = begin // order.unit, -(-end // order.unit)
    if order.row_tokens:
        overlap = 0  # which is the row's own
    # Lane i's token p comes in the window where C + i reaches (p + 1) B.
    return range(begin * order.lanes // order.total, ((end + overlap) * order.lanes - 1) // order.total + 1)
