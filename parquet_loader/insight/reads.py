"""What ranks will read for some steps of a run: the engine's own plans of the windows that these steps need.

What a step needs of a source lies in its windows, whichever rank takes it. So the windows are found once, for all
lanes, and planned for each rank:

    windows   │  0   │  1   │  2   │  3   │ ...
    lanes         ├─────────────────┤             tokens from where the lanes stand to where they stop
    planned      yes    yes    yes    yes

Where these are too many, some are planned and the rest is taken to be like them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from ..blocks import IntArray
from ..checkpoint import ONLY
from ..engine.config import EngineConfig
from ..engine.plan import plan_window
from ..order.mixture import BLOCK
from ..order.order import Order, Window
from ..order.progress import MixturePlan, MixtureProgress, Progress
from ..runs import MixtureRun, SetRun

__all__ = ["RankReads", "Stretch", "reads_of_ranks", "stretches"]

_PLACES = 8  # in a stretch, at which windows are planned where not all are
_GROUPS = 64  # row groups whose plan takes as long as a window's own


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """A stretch of one source: of some lanes the tokens from where they stand to where they stop; the rows, of a source
    that is packed by rows.

    Attributes:
        order: of the source.
        first: the lanes begin with this one.
        starts, stops: positions in the source, shape ``(lanes,)``, in its order's elements. A stop of 0 is of a lane
            that needs nothing.
        epochs: windows of these epochs and later ones are never read; None for no end.
    """

    order: Order
    first: int
    starts: IntArray
    stops: IntArray
    epochs: int | None = None

    @property
    def tokens(self) -> int:
        """Of these lanes together."""
        return int(np.maximum(0, self.stops - self.starts).sum())

    def windows(self) -> Iterator[Window]:
        """The windows that these lanes need, in order."""
        return self.windows_from(self.starts)

    def windows_from(self, positions: IntArray) -> Iterator[Window]:
        """Those from the first on that they need where they stand at other positions, shape ``(lanes,)``."""
        lanes = np.arange(self.first, self.first + len(positions))
        for window in self.order.windows(*self.order.earliest(positions, lanes)):
            if not self._begins_in_time(window):
                return
            yield window

    def needs(self, window: Window) -> bool:
        """Whether a window is one of `windows`."""
        ends = (
            window.before + window.tokens + np.arange(self.first, self.first + len(self.starts))
        ) // self.order.lanes
        return self._begins_in_time(window) and bool((ends > self.starts).any())

    def _begins_in_time(self, window: Window) -> bool:
        if self.epochs is not None and window.epoch >= self.epochs:
            return False
        begins = window.lane_begins(self.order.lanes, self.first, self.first + len(self.starts))
        return bool((self.stops > begins).any())

    def places(self, count: int) -> list[IntArray]:
        """Positions evenly spread over the stretch, the first of them its begin."""
        ahead = np.maximum(0, self.stops - self.starts)
        return [self.starts + ahead * place // count for place in range(count)]


def stretches(
    run: SetRun | MixtureRun, end: Progress, first: int, last: int, *, begin: Progress | None = None
) -> dict[str, Stretch]:
    """What the lanes ``[first, last)`` of a rank need from one place of a run to another, of each source.

    Args:
        run: the run.
        end: the place before which the last row is taken.
        first, last: the lanes.
        begin: the place from which on rows are taken; None for where the run is.
    """
    begin = run.progress if begin is None else begin
    overlap, ahead = run.options.overlap, end.position > begin.position
    if isinstance(run, SetRun):
        order, epochs = run.order, run.options.epochs
        starts = np.full(last - first, begin.position, np.int64) // order.unit
        stop = order.stops(end.position, 0, seq_len=run.options.seq_len, overlap=overlap) if ahead else 0
        stops = np.full(last - first, stop, np.int64)
        if epochs is not None:
            stops = np.minimum(stops, (epochs * order.total + np.arange(first, last)) // order.lanes)
        return {ONLY: Stretch(order, first, starts, stops, epochs)}
    assert isinstance(begin, MixtureProgress)
    assert isinstance(end, MixtureProgress)
    if ahead:
        begin = begin.entered(run.plan)
    found = {}
    for name, each in run.sets.items():
        order = each.config.order
        starts = _sheet_positions(begin, run.plan, name, first, last, made=False)
        ends = _sheet_positions(end, run.plan, name, first, last, made=True)
        reach = order.stops(ends, 0, seq_len=end.seq_len, overlap=overlap)
        stops = np.where(ahead & (ends > starts), reach, 0)
        found[name] = Stretch(order, first, starts // order.unit, stops)
    return found


def _sheet_positions(
    progress: MixtureProgress, plan: MixturePlan, name: str, first: int, last: int, *, made: bool
) -> IntArray:
    """Where lanes stand in a source, shape ``(lanes,)``, by the sheets that they have come to.

    A sheet is made for all of them once one needs it; see `engine.mixer`.

    Args:
        progress, plan: of the run.
        name: of the source.
        first, last: the lanes.
        made: after the last sheet that was made by there; else before the first that is needed from there on.
    """
    lattice, within = plan.lattice, progress.row % BLOCK
    begins = np.zeros(last - first, np.int64) + progress.begins(name, lattice, first, last)
    names = [drawn for drawn, _ in progress.quotas] if within else []
    if name not in names:
        return begins
    source = names.index(name)
    table = lattice.table(progress.block, [quota for _, quota in progress.quotas], first, last)
    had = table.counts(source, 0, within)
    sheets = int(had.max() if made else had.min())
    positions: IntArray = begins + np.maximum(0, sheets - table.counts(source, 0, progress.cut)) * progress.seq_len
    return positions


@dataclass(frozen=True, slots=True)
class RankReads:
    """What one rank reads.

    Attributes:
        bytes: of storage.
        reads: requests in which they come, as many as `stats` counts.
        row_groups: whose column chunks they are.
        tokens: of these row groups that are the rank's.
    """

    bytes: int
    reads: int
    row_groups: int
    tokens: int


def reads_of_ranks(
    configs: Mapping[str, EngineConfig],
    needed: Sequence[Mapping[str, Stretch]],
    spare_bytes: Sequence[int],
    *,
    most_plans: int | None = None,
) -> tuple[list[RankReads], int, bool]:
    """What each rank reads for its stretches.

    Args:
        configs: of the sources.
        needed: of each rank what it needs of each source, from `stretches`.
        spare_bytes: of each rank what its budget has beyond the least; see `engine.cost.beyond_bytes`.
        most_plans: about how many windows are planned at most, all ranks together; None for all that there are.

    Returns:
        (of each rank what it reads, bytes that one rank with all lanes would read of the same windows, without what
        lies between column chunks, whether that is exact).
    """
    ranks = len(needed)
    totals = np.zeros((ranks, 4))
    once, exact = 0.0, True
    for name, config in configs.items():
        whole = _all_lanes([each[name] for each in needed])
        if not whole.tokens:
            continue
        windows, share = _some_windows(whole, config, ranks, None if most_plans is None else most_plans // len(configs))
        exact = exact and share == 1
        counted = np.zeros((ranks, 4), np.int64)
        for window in windows:
            groups = window.groups[np.diff(window.offsets) > 0]
            once += sum(int(each.length[groups].sum()) for each in config.index.planes) / share
            for rank in range(ranks):
                if needed[rank][name].needs(window):
                    mine = needed[rank][name]
                    one = replace(config, first=mine.first, last=mine.first + len(mine.starts))
                    counted[rank] += _reads_of(one, window, spare_bytes[rank])
        totals += counted / share
    found = [RankReads(*(round(each) for each in rank)) for rank in totals.tolist()]
    return found, round(once), exact


def _all_lanes(each: Sequence[Stretch]) -> Stretch:
    starts, stops = (np.concatenate([getattr(one, name) for one in each]) for name in ("starts", "stops"))
    return replace(each[0], starts=starts, stops=stops)


def _some_windows(
    whole: Stretch, config: EngineConfig, ranks: int, most_plans: int | None
) -> tuple[Iterator[Window] | list[Window], float]:
    """Windows of a stretch, and which share of its tokens they have; 1 where they are all."""
    if most_plans is None:
        return whole.windows(), 1
    order = whole.order
    groups = min(order.window, len(config.index))
    mean = order.total / -(-len(config.index) // order.window)
    most = max(2, round(most_plans / ranks / max(1, groups / _GROUPS)))
    if whole.tokens / mean <= most:
        return whole.windows(), 1
    places = min(_PLACES, most)
    found = {
        (window.epoch, window.number): window
        for positions in whole.places(places)
        for window in islice(whole.windows_from(positions), most // places)
    }
    windows = list(found.values())
    return windows, sum(window.tokens for window in windows) / max(1, whole.tokens)


def _reads_of(config: EngineConfig, window: Window, spare_bytes: int) -> tuple[int, int, int, int]:
    plan = plan_window(config, window, spare_bytes)
    reads = [read for task in plan.tasks for read in task.reads]
    tokens = int(plan.starts[-1] - plan.starts[0]) * config.order.unit
    return sum(read.length for read in reads), len(reads), len(plan.costs), tokens
