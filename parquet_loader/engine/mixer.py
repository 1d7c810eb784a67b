"""The rows of a mixture, from those of its sources.

A source gives the k-th row of a block to all lanes at once: a *sheet*, as if it were alone. Lanes need their k-th row
of it at different steps, so sheets are kept until the last lane has taken its row; a batch is put together from them:

    source x, sheet 3        x3 x3 x3 x3       taken by lanes 0 and 2 at this step, kept for lanes 1 and 3
    source y, sheet 1        y1 y1 y1 y1       taken by lane 3 at this step
    source y, sheet 0        y0 y0 y0 y0       taken by lane 1, the last, and let go of
    batch                    x3 y0 x3 y1

At a block's end all sheets have been used up. A source is never asked for anything but its rows in order: that is why a
lane's rows of a source are those that the source alone would give it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..blocks import IntArray, TokenArray
from ..errors import SourceExhaustedError
from ..order.mixture import BLOCK, BlockTable
from ..order.order import Window
from ..order.progress import MixturePlan, MixtureProgress
from .config import Counters, EngineConfig
from .cost import required_together
from .engine import Engine
from .pack import Origins

__all__ = ["Mixer", "Picked", "mixture_bytes"]

# Lanes are four rows of a source apart at most.
_SHEETS = 5


def mixture_bytes(sources: Sequence[EngineConfig], progress: MixtureProgress, plan: MixturePlan) -> int:
    """The least budget of a mixture from a place of a run on."""
    reserved = sum(_sheets_bytes(source, progress.seq_len + plan.overlap) for source in sources)
    return required_together(sources, reserved, apart=bool(progress.pieces))


def _sheets_bytes(source: EngineConfig, columns: int) -> int:
    """The most that the sheets of a source hold, in rows of so many columns."""
    return _SHEETS * (source.last - source.first) * columns * source.held_dtype.itemsize


class Picked:
    """What the rows of a batch consist of, which were picked from those of sources.

    Args:
        picks: (a sheet's origins, which of its rows, which rows of the batch they became) of each.
        rows: how many rows there are.
    """

    def __init__(self, picks: Sequence[tuple[Origins, IntArray]], rows: int) -> None:
        self._picks = picks
        self._rows = rows

    @property
    def starts(self) -> tuple[IntArray, IntArray]:
        """See `document_starts`."""
        counts = np.zeros(self._rows, np.int64)
        found = []
        for origins, lanes in self._picks:
            row_splits, columns = origins.starts
            counts[lanes] = row_splits[lanes + 1] - row_splits[lanes]
            found.append((row_splits, columns, lanes))
        splits = np.zeros(self._rows + 1, np.int64)
        counts.cumsum(out=splits[1:])
        out = np.empty(splits[-1], np.int64)
        for row_splits, columns, lanes in found:
            here = counts[lanes]
            within = np.arange(here.sum()) - (here.cumsum() - here).repeat(here)
            out[splits[lanes].repeat(here) + within] = columns[row_splits[lanes].repeat(here) + within]
        return splits, out


@dataclass(frozen=True, slots=True, eq=False)
class _Sheet:
    """A source's row of every lane."""

    tokens: TokenArray
    origins: Origins


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """A source in a block.

    Attributes:
        name: of the source.
        begins: what the lanes had had of it before the block's row `cut`, shape ``(lanes,)``.
        before: the rows of the block that they had had of it before that, shape ``(lanes,)``.
        seq_len: tokens of a row.
    """

    name: str
    begins: IntArray
    before: IntArray
    seq_len: int

    def positions(self, ordinal: int) -> IntArray:
        """Where the lanes' rows with an ordinal in the block begin; of lanes that have had it, where the next does."""
        ahead: IntArray = np.maximum(0, ordinal - self.before)
        return self.begins + ahead * self.seq_len

    def ends(self, ordinal: int) -> IntArray | None:
        """Where the lanes end in that row, those that have had it before it begins; None where none has."""
        had = ordinal < self.before
        if not had.any():
            return None
        positions = self.positions(ordinal)
        return np.where(had, positions, np.iinfo(np.int64).max)


class _Block:
    """A block of a mixture, for a rank's lanes: which rows are of which source, and which sheets they are from."""

    def __init__(self, progress: MixtureProgress, plan: MixturePlan, first: int, last: int) -> None:
        lattice = plan.lattice
        self.number, self.quotas = progress.block, progress.quotas
        self.begin = progress.row % BLOCK
        self.table: BlockTable = lattice.table(self.number, [quota for _, quota in self.quotas], first, last)
        lanes = last - first
        self.parts = [
            _Part(
                name=name,
                begins=np.full(lanes, progress.begins(name, lattice, first, last), np.int64),
                before=self.table.counts(place, 0, progress.cut),
                seq_len=progress.seq_len,
            )
            for place, (name, _) in enumerate(self.quotas)
        ]
        # The first sheet of each source that a row from here on is of.
        self.firsts = [int(self.table.counts(place, 0, self.begin).min()) for place in range(len(self.quotas))]
        self.codes = self.table.sources * BLOCK + self.table.ordinals

    def sheet_rows(self, *, last: bool) -> IntArray:
        """At which row of the block each sheet is used first from here on, or last: shape ``(sources * BLOCK,)``."""
        rows = np.full(len(self.quotas) * BLOCK, -1 if last else BLOCK, np.int64)
        order = range(self.begin, BLOCK) if last else range(BLOCK - 1, self.begin - 1, -1)
        for row in order:
            rows[self.codes[row]] = row
        return rows


class Mixer:
    """The rows of a mixture, from a place of a run on.

    Args:
        sources: by name, all that the plan draws from now or later.
        progress: where it begins.
        plan: of the mixture.
        names: of the loader's sources; rows are told by their places in it.
        counters: where what is done is counted.

    Attributes:
        engine: what makes the sources' rows.
        names: of the sources.
    """

    def __init__(
        self,
        sources: Mapping[str, EngineConfig],
        progress: MixtureProgress,
        plan: MixturePlan,
        *,
        names: Sequence[str],
        counters: Counters,
    ) -> None:
        overlap = plan.overlap
        self.names = frozenset(sources)
        self._places = {name: place for place, name in enumerate(sources)}
        self._names = {name: place for place, name in enumerate(names)}
        self._plan = plan
        self._overlap = overlap
        configs = list(sources.values())
        self._first, self._last, self._dtype = configs[0].first, configs[0].last, configs[0].dtype
        columns = progress.seq_len + overlap
        self.engine = Engine(
            configs,
            _demand(sources, progress, plan),
            lengths=[progress.length_of(name) for name in sources],
            dtypes=[config.held_dtype for config in configs],
            counters=counters,
            least_bytes=mixture_bytes(configs, progress, plan),
            reserved_bytes=sum(_sheets_bytes(config, columns) for config in configs),
        )
        self._block: _Block | None = None
        self._sheets: dict[int, _Sheet] = {}  # by source and ordinal in the block
        self._following: list[int] = []  # the sheet of each source that is made next
        self._last_rows: IntArray = np.empty(0, np.int64)

    def rows(self, progress: MixtureProgress) -> tuple[TokenArray, Picked, np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """The rows at a place of the run, whose block is entered: tokens, what they consist of, and their sources."""
        block = self._block
        if block is None or block.number != progress.block:
            assert not self._sheets
            self._block = block = _Block(progress, self._plan, self._first, self._last)
            self._following = list(block.firsts)
            self._last_rows = block.sheet_rows(last=True)
        row = progress.row % BLOCK
        codes = block.codes[row]
        out = np.empty((self._last - self._first, progress.seq_len + self._overlap), self._dtype)
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        borders = [0, *((ordered[1:] != ordered[:-1]).nonzero()[0] + 1).tolist(), len(codes)]
        picks = []
        for low, high in pairwise(borders):
            code, lanes = int(ordered[low]), order[low:high]
            sheet = self._sheet(block, code)
            out[lanes] = sheet.tokens.take(lanes, axis=0)
            picks.append((sheet.origins, lanes))
            if self._last_rows[code] == row:
                del self._sheets[code]
        sources: np.ndarray[tuple[int], np.dtype[np.int32]]
        sources = np.array([self._names[name] for name, _ in block.quotas], np.int32)[codes // BLOCK]
        return out, Picked(picks, len(out)), sources

    def _sheet(self, block: _Block, code: int) -> _Sheet:
        place, wanted = divmod(code, BLOCK)
        part = block.parts[place]
        while self._following[place] <= wanted:
            ordinal = self._following[place]
            tokens, taken = self.engine.rows(
                self._places[part.name], part.positions(ordinal), part.seq_len, self._overlap, part.ends(ordinal)
            )
            self._following[place] += 1
            if self._last_rows[place * BLOCK + ordinal] >= 0:  # else nobody needs it any more
                self._sheets[place * BLOCK + ordinal] = _Sheet(tokens, Origins(taken, len(tokens)))
        return self._sheets[code]


class _Windows:
    """A source's windows, one after another, from where the lanes stand."""

    def __init__(self, config: EngineConfig, positions: IntArray) -> None:
        self._config = config
        lanes = np.arange(config.first, config.last)
        # The lane that needs the earliest window: lane i is in the one in which C + i reaches its next token times B.
        behind = int((positions * config.order.lanes - lanes).argmin())
        self._windows = config.order.windows(int(positions[behind]), int(lanes[behind]))
        self.go_on()

    def go_on(self) -> None:
        """To the next window."""
        self.window: Window = next(self._windows)
        self.begins = self.window.lane_begins(self._config.order.lanes, self._config.first, self._config.last)


def _demand(
    sources: Mapping[str, EngineConfig], progress: MixtureProgress, plan: MixturePlan
) -> Iterator[tuple[int, Window]]:
    """The windows in the order in which `Mixer.rows` comes to need them, with the places of their sources."""
    places = {name: place for place, name in enumerate(sources)}
    windows: dict[str, _Windows] = {}
    first, last = next(iter(sources.values())).first, next(iter(sources.values())).last
    while True:
        try:
            progress = progress.entered(plan)
        except SourceExhaustedError:
            return  # whoever comes there is told
        needed: list[tuple[int, int, int, Window]] = []
        block: _Block | None = None
        for place, (name, quota) in enumerate(progress.quotas):
            if name in windows:  # most blocks need no further window, and no closer look
                had = np.max(progress.begins(name, plan.lattice, first, last))
                if had + quota * progress.seq_len + plan.overlap <= windows[name].begins.min():
                    continue
            if block is None:
                block = _Block(progress, plan, first, last)
                first_rows = block.sheet_rows(last=False)
            part, ordinal = block.parts[place], block.firsts[place]
            if name not in windows:
                windows[name] = _Windows(sources[name], part.positions(ordinal))
            coming = windows[name]
            while ordinal < quota:
                stops = part.positions(ordinal) + part.seq_len + plan.overlap
                if ((stops > coming.begins) & (ordinal >= part.before)).any():
                    used = first_rows[place * BLOCK + ordinal : (place + 1) * BLOCK].min()
                    heapq.heappush(needed, (int(used), place, len(needed), coming.window))
                    coming.go_on()
                else:
                    ordinal += 1
        while needed:
            _, place, _, window = heapq.heappop(needed)
            yield places[progress.quotas[place][0]], window
        progress = progress.advanced(BLOCK - progress.row % BLOCK)
