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

import functools
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..blocks import AnyArray, IntArray, TokenArray
from ..errors import ConfigError, DataError, SourceExhaustedError, StorageError, WriterFailedError, of_source
from ..order.mixture import APART, BLOCK, BlockTable
from ..order.order import Window
from ..order.progress import MixturePlan, MixtureProgress
from .config import Counters, EngineConfig
from .cost import required_together
from .engine import Engine
from .growth import windows_from
from .pack import Origins
from .planes import common_dtype, holds
from .rows import WholeRows

__all__ = ["Block", "Mixed", "Mixer", "Picked", "aligned_dtypes", "demand", "mixture_bytes", "sheets_bytes"]

_SHEETS = APART + 1


def mixture_bytes(sources: Mapping[str, EngineConfig], progress: MixtureProgress, plan: MixturePlan) -> int:
    """The least budget of a mixture from a place of a run on."""
    configs, columns = list(sources.values()), progress.seq_len + plan.overlap
    apart = [progress.apart(name, plan.lattice) for name in sources]
    stretches = [tokens + columns if tokens else 0 for tokens in apart]
    return required_together(configs, sheets_bytes(sources, columns), stretches)


def _sheet_dtype(sources: Sequence[EngineConfig]) -> np.dtype[np.integer]:
    """The narrowest that holds the tokens of all sources."""
    return max((source.held_dtype for source in sources), key=lambda dtype: dtype.itemsize)


def aligned_dtypes(sources: Mapping[str, EngineConfig]) -> dict[str, np.dtype[Any]]:
    """What batches have beside the tokens: each name, sorted, and the type that holds the values of all sources.

    Raises:
        ConfigError: there is none, or what a source has in their place is no such value.
    """
    stored: dict[str, list[np.dtype[Any]]] = {}
    for source in sources.values():
        for plane in source.aligned:
            stored.setdefault(plane.column, []).append(plane.dtype)
        for name, fill in source.fills.items():
            stored.setdefault(name, []).extend([source.dtype] * (fill == "tokens"))
    numbers = [(of, *each) for of, source in sources.items() for each in source.fills.items() if each[1] != "tokens"]
    # What no source that is drawn any more has stored, is of the type that its numbers are.
    alone = {name: [np.array(fill).dtype for _, other, fill in numbers if other == name] for name in stored}
    for name, dtypes in alone.items():
        if not stored[name]:
            stored[name] = dtypes
            try:
                common_dtype(name, dtypes)
            except ConfigError as error:
                told = ", ".join(f"{fill!r} for source {of!r}" for of, other, fill in numbers if other == name)
                raise ConfigError(f"no type holds all that fill has for {name!r}: {told}") from error
    found = {name: common_dtype(name, stored[name]) for name in sorted(stored)}
    for of, name, fill in numbers:
        if not holds(found[name], float(fill) if isinstance(fill, str) else fill):
            raise ConfigError(
                f"source {of!r}: fill={{{name!r}: {fill!r}}} is no value of the aligned column {name!r}, which is "
                f"{found[name]}"
            )
    return found


def sheets_bytes(sources: Mapping[str, EngineConfig], columns: int) -> int:
    """The most that sheets hold, and what is picked from them, in rows of so many columns."""
    configs = list(sources.values())
    rows = (_SHEETS * len(configs) + 1) * (configs[0].last - configs[0].first)
    aligned = sum(dtype.itemsize for dtype in aligned_dtypes(sources).values())
    return rows * columns * (_sheet_dtype(configs).itemsize + aligned)


class Picked:
    """What the rows of a batch consist of, which were picked from sheets.

    Args:
        sheets: of each of the batch's rows a number that stands for its sheet, shape ``(rows,)``.
        origins: what the sheets consist of, by these numbers.
    """

    def __init__(self, sheets: IntArray, origins: Mapping[int, Origins | WholeRows]) -> None:
        self._sheets = sheets
        self._origins = origins

    def starts(self, aligned: Mapping[str, AnyArray]) -> tuple[IntArray, IntArray]:
        """See `document_starts`.

        Args:
            aligned: what goes with the batch's rows.
        """
        counts = np.zeros(len(self._sheets), np.int64)
        found = []
        for sheet, origins in self._origins.items():
            lanes = (self._sheets == sheet).nonzero()[0]
            row_splits, columns = origins.starts(aligned)
            counts[lanes] = row_splits[lanes + 1] - row_splits[lanes]
            found.append((row_splits, columns, lanes))
        splits = np.zeros(len(counts) + 1, np.int64)
        counts.cumsum(out=splits[1:])
        out = np.empty(splits[-1], np.int64)
        for row_splits, columns, lanes in found:
            here = counts[lanes]
            within = np.arange(here.sum()) - (here.cumsum() - here).repeat(here)
            out[splits[lanes].repeat(here) + within] = columns[row_splits[lanes].repeat(here) + within]
        return splits, out


class _Sheets:
    """Sheets, in memory that is taken once: what no sheet is in yet has no pages.

    Args:
        count: as many as there may be at a time.
        rows, columns: the shape of a sheet.
        dtype: of its tokens.
        out: of the batches.
        aligned: of what goes with the tokens, of both.
    """

    def __init__(
        self,
        count: int,
        rows: int,
        columns: int,
        *,
        dtype: np.dtype[np.integer],
        out: np.dtype[np.integer],
        aligned: Sequence[np.dtype[Any]],
    ) -> None:
        self.memory: list[TokenArray] = [np.empty((count, rows, columns), each) for each in (dtype, *aligned)]
        self._rows = [memory.reshape(count * rows, columns) for memory in self.memory]
        self._lanes = np.arange(rows)
        self._dtype = out
        self._picked: TokenArray = np.empty((rows, columns), dtype) if dtype != out else self.memory[0][0]
        self._free = list(range(count - 1, -1, -1))

    def take(self) -> int:
        """A sheet that is free."""
        return self._free.pop()

    def give(self, sheet: int) -> None:
        """A sheet that is free again; it is the next one taken, while its memory is in the processor's cache."""
        self._free.append(sheet)

    def pick(self, sheets: IntArray) -> list[TokenArray]:
        """Fresh arrays of lane i's row of ``sheets[i]``, for all lanes: the tokens, and what goes with them."""
        places = sheets * len(self._lanes) + self._lanes
        tokens, *aligned = self._rows
        out = np.empty(self._picked.shape, self._dtype)
        if out.dtype == tokens.dtype:
            tokens.take(places, axis=0, out=out, mode="clip")
        else:
            tokens.take(places, axis=0, out=self._picked, mode="clip")
            np.copyto(out, self._picked, casting="unsafe")
        return [out, *(rows.take(places, axis=0, mode="clip") for rows in aligned)]


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

    def positions(self, ordinal: int | IntArray) -> IntArray:
        """Where the lanes' rows with an ordinal in the block begin; of lanes that have had it, where the next does.

        Args:
            ordinal: of all lanes, or of each, shape ``(lanes,)``.
        """
        ahead: IntArray = np.maximum(0, ordinal - self.before)
        return self.begins + ahead * self.seq_len

    def ends(self, ordinal: int) -> IntArray | None:
        """Where the lanes end in that row, those that have had it before it begins; None where none has."""
        had = ordinal < self.before
        if not had.any():
            return None
        positions = self.positions(ordinal)
        return np.where(had, positions, np.iinfo(np.int64).max)


class Block:
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


class Mixed(NamedTuple):
    """Rows of a mixture; see `Batch`, and for the origins `Picked`."""

    tokens: TokenArray
    origins: Picked
    lengths: IntArray | None
    sources: np.ndarray[tuple[int], np.dtype[np.int32]]
    aligned: dict[str, AnyArray]


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
        self.names = frozenset(sources)
        self._places = {name: place for place, name in enumerate(sources)}
        self._names = {name: place for place, name in enumerate(names)}
        self._plan = plan
        configs = list(sources.values())
        self._first, self._last = configs[0].first, configs[0].last
        columns = progress.seq_len + plan.overlap
        dtype, aligned = _sheet_dtype(configs), aligned_dtypes(sources)
        self._sources = sources
        self._aligned = {name: place for place, name in enumerate(aligned, 1)}
        self._sheets = _Sheets(
            _SHEETS * len(configs),
            self._last - self._first,
            columns,
            dtype=dtype,
            out=configs[0].dtype,
            aligned=list(aligned.values()),
        )
        self.engine = Engine(
            configs,
            demand(sources, progress, plan),
            lengths=[progress.length_of(name) for name in sources],
            dtype=dtype,
            counters=counters,
            least_bytes=mixture_bytes(sources, progress, plan),
            reserved_bytes=sheets_bytes(sources, columns),
            names=list(sources),
        )
        self._block: Block | None = None
        # By source and ordinal in the block: the sheet, or -1; what it consists of; and its last row.
        self._made: IntArray = np.empty(0, np.int64)
        self._origins: dict[int, Origins | WholeRows] = {}
        self._lengths: dict[int, IntArray] = {}  # of sheets with rows that are not full
        self._last_rows: IntArray = np.empty(0, np.int64)
        self._following: list[int] = []  # of each source the sheet that is made next
        self._block_names: np.ndarray[tuple[int], np.dtype[np.int32]] = np.empty(
            0, np.int32
        )  # of its sources, by place

    def rows(self, progress: MixtureProgress) -> Mixed:
        """The rows at a place of the run, whose block is entered."""
        block = self._block
        if block is None or block.number != progress.block:
            assert not self._origins
            self._block = block = Block(progress, self._plan, self._first, self._last)
            self._following = list(block.firsts)
            self._block_names = np.array([self._names[name] for name, _ in block.quotas], np.int32)
            self._last_rows = block.sheet_rows(last=True)
            self._made = np.full(len(self._last_rows), -1, np.int64)
        row = progress.row % BLOCK
        codes = block.codes[row]
        needed = np.unique(codes)
        for code in needed[self._made[needed] < 0].tolist():
            self._make(block, code)
        tokens, *aligned = self._sheets.pick(self._made[codes])
        picked = Picked(codes, {code: self._origins[code] for code in needed.tolist()})
        lengths = self._picked_lengths(codes, tokens.shape[1]) if self._lengths else None
        for code in needed[self._last_rows[needed] == row].tolist():
            del self._origins[code]
            self._lengths.pop(code, None)
            self._sheets.give(int(self._made[code]))
        by_name = dict(zip(self._aligned, aligned, strict=True))
        return Mixed(tokens, picked, lengths, self._block_names[codes // BLOCK], by_name)

    def _picked_lengths(self, codes: IntArray, columns: int) -> IntArray | None:
        """How many columns of each row are tokens; None where all are."""
        lengths = np.full(len(codes), columns)
        for code, of_sheet in self._lengths.items():
            mine = codes == code
            lengths[mine] = of_sheet[mine]
        return None if (lengths == columns).all() else lengths

    def ahead_tokens(self, progress: MixtureProgress) -> dict[str, int]:
        """Tokens of each source that wait to be taken at a place of the run, of all lanes together."""
        lattice = self._plan.lattice
        return {
            name: self.engine.ahead_tokens(place, progress.had(name, lattice, self._first, self._last))
            for name, place in self._places.items()
        }

    def _make(self, block: Block, wanted: int) -> None:
        """Make a source's sheets up to one."""
        place, last = divmod(wanted, BLOCK)
        part = block.parts[place]
        while self._following[place] <= last:
            ordinal = self._following[place]
            code, sheet = place * BLOCK + ordinal, self._sheets.take()
            memory = [each[sheet] for each in self._sheets.memory]
            source = self._sources[part.name]
            try:
                drawn = self.engine.rows(
                    self._places[part.name],
                    part.positions(ordinal),
                    part.seq_len,
                    self._plan.overlap,
                    ends=part.ends(ordinal),
                    out=[memory[0], *(memory[self._aligned[plane.column]] for plane in source.aligned)],
                )
            except (DataError, StorageError, WriterFailedError) as error:
                raise of_source(error, part.name) from error
            for name, fill in source.fills.items():
                values = memory[self._aligned[name]]
                values[:] = memory[0] if isinstance(fill, str) else fill
                if drawn.lengths is not None:  # there is nothing beside padding
                    values[np.arange(values.shape[1]) >= drawn.lengths[:, None]] = 0
            self._following[place] += 1
            if self._last_rows[code] < 0:  # nobody needs it any more
                self._sheets.give(sheet)
            else:
                self._made[code] = sheet
                self._origins[code] = drawn.origins
                if drawn.lengths is not None:
                    self._lengths[code] = drawn.lengths


# At which row of a block a sheet or a later one is used first, where the lanes end in it, and which have rows for it.
_Needed = tuple[int, IntArray, np.ndarray[tuple[int], np.dtype[np.bool_]]]


class _Windows:
    """A source's windows, one after another, from where the lanes stand."""

    def __init__(self, config: EngineConfig, positions: IntArray) -> None:
        self._config = config
        lanes = np.arange(config.first, config.last)
        self._windows = windows_from(config, *config.order.earliest(positions // config.order.unit, lanes))
        self.window = next(self._windows)
        self.begins = self._begins(None)

    def _begins(self, after: Window | None) -> IntArray:
        """Where the window begins in the lanes, also where it is not whole yet; if it is the first, it is needed."""
        config = self._config
        if self.window is not None:
            return self.window.lane_begins(config.order.lanes, config.first, config.last)
        if after is None:
            return np.full(config.last - config.first, -1)
        return after.lane_ends(config.order.lanes, config.first, config.last)

    def load(self) -> None:
        """Look again for a window that was not whole."""
        self.window = next(self._windows)

    def go_on(self) -> None:
        """To the next window."""
        before, self.window = self.window, next(self._windows)
        self.begins = self._begins(before)


def demand(
    sources: Mapping[str, EngineConfig], progress: MixtureProgress, plan: MixturePlan
) -> Iterator[tuple[int, Window | None]]:
    """The windows in the order in which `Mixer.rows` comes to need them, with the places of their sources; None for one
    that is not whole yet, until it is.
    """
    places = {name: place for place, name in enumerate(sources)}
    orders = {name: config.order for name, config in sources.items()}
    windows: dict[str, _Windows] = {}
    first, last = next(iter(sources.values())).first, next(iter(sources.values())).last
    while True:
        try:
            progress = progress.entered(plan)
        except SourceExhaustedError:
            return  # whoever comes there is told
        needs: list[Iterator[tuple[int, int, _Windows]]] = []
        block: Block | None = None
        for place, (name, quota) in enumerate(progress.quotas):
            if name in windows:  # most blocks need no further window, and no closer look
                had = int(np.max(progress.begins(name, plan.lattice, first, last)))
                stop = orders[name].stops(had, quota, seq_len=progress.seq_len, overlap=plan.overlap)
                if stop <= windows[name].begins.min():
                    continue
            if block is None:
                block = Block(progress, plan, first, last)
                first_rows = block.sheet_rows(last=False)
            part, ordinal = block.parts[place], block.firsts[place]
            if name not in windows:
                windows[name] = _Windows(sources[name], part.positions(ordinal))
            used = first_rows[place * BLOCK : (place + 1) * BLOCK]
            stops = functools.partial(orders[name].stops, rows=1, seq_len=part.seq_len, overlap=plan.overlap)
            needs.append(_needs(place, windows[name], _sheets(part, range(ordinal, quota), used, stops)))
        # One after another: the content of a window may have to be waited for, and tells which one is next.
        for _, place, coming in heapq.merge(*needs, key=lambda need: need[:2]):
            while coming.window is None:
                yield places[progress.quotas[place][0]], None
                coming.load()
            yield places[progress.quotas[place][0]], coming.window
        progress = progress.advanced(BLOCK - progress.row % BLOCK)


def _sheets(part: _Part, ordinals: range, used: IntArray, stops: Callable[[IntArray], IntArray]) -> Iterator[_Needed]:
    """What sheets of a source in a block need; `used` is at which row of the block each of them is used first."""
    for ordinal in ordinals:
        yield int(used[ordinal:].min()), stops(part.positions(ordinal)), ordinal >= part.before


def _needs(place: int, coming: _Windows, sheets: Iterator[_Needed]) -> Iterator[tuple[int, int, _Windows]]:
    """The windows that a source needs in a block: in which row of it first, rising, and the source's place.

    Args:
        place: of the source in the block.
        coming: the source's windows.
        sheets: that are made of it in the block, see `_sheets`.
    """
    for used, stops, wanted in sheets:
        while ((stops > coming.begins) & wanted).any():
            yield used, place, coming
            coming.go_on()
