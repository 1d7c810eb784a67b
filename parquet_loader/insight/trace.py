"""`which`: where every token of a step comes from; and `find`: at which steps a document comes.

Both are arithmetic on the index, and on how many tokens the documents of the row groups concerned have, which are read
for it. They do not depend on how many ranks there are.

    step ──► position, and of a mixture each lane's source and its position there ──► rows of each source
         ──► stretches of documents (`fragments`) ──► Piece

    document ──► its stretches in each epoch of its source (`fragments`) ──► positions ──► steps ──► Place
"""

from __future__ import annotations

import bisect
import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from ..batch import Piece
from ..blocks import IntArray
from ..checkpoint import ONLY
from ..engine.config import EngineConfig
from ..engine.mixer import Block
from ..errors import ConfigError, SourceExhaustedError
from ..index.index import DatasetIndex
from ..options import LoaderOptions, integer
from ..order.ending import Finish, finish_of
from ..order.mixture import BLOCK
from ..order.order import Order, lane_range
from ..order.progress import MixtureProgress, Progress, traced
from ..runs import MixtureRun, SetRun, Step
from .fragments import Occurrence, SourceRows, Stretches, occurrences, stretches_of
from .lengths import KnownLengths

__all__ = ["Piece", "Place", "Places", "Trace", "Tracer", "find", "origins_of", "which"]

_MOST_STEPS = 2**50  # so far ahead a source is looked for
_PIECE = tuple(each.name for each in fields(Piece))  # `asdict` takes ten times as long, and a step has thousands
_MOST_TABLES = 64  # of blocks, each of 1,024 bytes a lane


# ── what comes out ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Where the tokens of a step come from.

    Attributes:
        step: the batch's number in the run.
        position: tokens consumed per lane before it.
        seq_len, overlap: its rows hold the tokens ``[position, position + seq_len)`` of their lanes and ``overlap``
            more that follow.
        skipped: whether nobody got it.
        lanes: rows of the global batch.
        names: of a mixture's sources, in order; none for one set.
        indexes: of the sources, or the one set.
        source: of each piece its place in `names`, shape ``(pieces,)``.
        stretches: the pieces, by row and column.
    """

    step: int
    position: int
    seq_len: int
    overlap: int
    skipped: bool
    lanes: int
    names: tuple[str, ...]
    indexes: tuple[DatasetIndex, ...]
    source: IntArray
    stretches: Stretches

    def __len__(self) -> int:
        return len(self.stretches)

    @property
    def pieces(self) -> list[Piece]:
        """The pieces, by row and column. Columns that are no tokens, at the end of a run, are in none."""
        found = self.stretches
        files, numbers = np.empty_like(found.group), np.empty_like(found.group)
        for place, index in enumerate(self.indexes):
            here = self.source == place
            groups = found.group[here]
            files[here], numbers[here] = index.file[groups], index.row_group[groups]
        arrays = found.row, found.column, found.tokens, self.source, files, numbers, found.document, found.start
        return [
            Piece(
                row=row,
                column=column,
                tokens=tokens,
                source=self.names[source] if self.names else None,
                file=self.indexes[source].files[file].path,
                row_group=row_group,
                document=document,
                start=start,
            )
            for row, column, tokens, source, file, row_group, document, start in zip(
                *(array.tolist() for array in arrays), strict=True
            )
        ]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "step": self.step,
            "position": self.position,
            "token": self.position * self.lanes,
            "seq_len": self.seq_len,
            "overlap": self.overlap,
            "lanes": self.lanes,
            "skipped": self.skipped,
            "pieces": [{name: getattr(piece, name) for name in _PIECE} for piece in self.pieces],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stretch of a document comes.

    Attributes:
        step: the batch's number in the run.
        row: of the global batch, which is the lane.
        column: its first column there.
        tokens: how many.
        start: its first token in the document.
        epoch: of the set, or of the source, that it is of.
        skipped: whether nobody got it, since the step was skipped.
    """

    step: int
    row: int
    column: int
    tokens: int
    start: int
    epoch: int
    skipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a document comes.

    Attributes:
        source, file, row_group, document: which document; see `Piece`.
        tokens: of it, EOS included.
        steps: the steps ``[steps[0], steps[1])`` that were looked at; the second is None for all that there will be.
        epochs: of the set or source, those that were looked at, in the same way.
        places: by step, row and column. With ``overlap`` a row's last token is the first one of the lane's next row,
            if that follows in the text: it is in both.
    """

    source: str | None
    file: str
    row_group: int
    document: int
    tokens: int
    steps: tuple[int, int | None]
    epochs: tuple[int, int]
    places: tuple[Place, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "places": [asdict(place) for place in self.places]}


# ── the two questions ────────────────────────────────────────────────────────────────────────────────────────────


def which(
    run: SetRun | MixtureRun,
    step: int,
    *,
    rows: Sequence[int] | None = None,
    columns: tuple[int, int] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> Trace:
    """Where the tokens of a step come from.

    Args:
        run: of a loader, or opened without one. Steps before where it is are those of its history, later ones those
            that it is going to have.
        step: the number of the batch in the run, from 0; skipped ones count.
        rows: of the global batch, which are the lanes; None for all of them.
        columns: only the columns ``[columns[0], columns[1])``; None for all of them.
        rank, world_size: the rows of this rank, in place of ``rows``.

    Raises:
        ConfigError: no such step, row or column.
        SourceExhaustedError: a source of the mixture ends before the step.
        StorageError, DataError: a row group cannot be read, or is not what the index says.
    """
    return Tracer(run).which(step, rows=rows, columns=columns, rank=rank, world_size=world_size)


def find(
    run: SetRun | MixtureRun,
    file: str,
    row_group: int,
    document: int,
    *,
    source: str | None = None,
    steps: range | None = None,
    epochs: range | None = None,
) -> Places:
    """At which steps, in which rows and columns a document comes.

    Args:
        run: as for `which`.
        file: relative to the set's root.
        row_group: its number in the file.
        document: its number in the row group.
        source: of a mixture.
        steps: to look at, without gaps. None for all of ``epochs`` where they are given; else for all that were run,
            or where none was, all of the first epoch of the set or source.
        epochs: of the set or source, to look at; None for all that steps come to.

    Raises:
        ConfigError: no such document.
        StorageError, DataError: a row group cannot be read, or is not what the index says.
    """
    return Tracer(run).find(file, row_group, document, source=source, steps=steps, epochs=epochs)


class Tracer:
    """Answers of one run. It remembers how long documents are: steps that follow each other are of few row groups.

    Args:
        run: see `which`. Where it is by the time of a question counts.
        progress: called with how many row groups have been read and how many there are to read, of those that a part
            of the answer needs.
    """

    def __init__(self, run: SetRun | MixtureRun, progress: Callable[[int, int], None] | None = None) -> None:
        self._run = run
        self._progress = progress
        self._known: dict[str, tuple[EngineConfig, KnownLengths]] = {}

    def which(
        self,
        step: int,
        *,
        rows: Sequence[int] | None = None,
        columns: tuple[int, int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Trace:
        """See `which`."""
        lanes = self._run.options.lanes
        if rank is not None or world_size is not None:
            if rows is not None or rank is None or world_size is None:
                raise ConfigError("give rank and world_size together, and no rows beside them")
            world_size = integer("world_size", world_size, 1, lanes)
            rows = range(*lane_range(integer("rank", rank, 0, world_size - 1), world_size, lanes))
        picked = range(lanes) if rows is None else sorted({integer("a row", row, 0, lanes - 1) for row in rows})
        at = step_of(self._run, integer("step", step, 0, _MOST_STEPS))
        return trace_of(at, np.array(picked, np.int64), columns=columns, known=self._lengths)

    def find(
        self,
        file: str,
        row_group: int,
        document: int,
        *,
        source: str | None = None,
        steps: range | None = None,
        epochs: range | None = None,
    ) -> Places:
        """See `find`."""
        run = self._run
        if source is None and isinstance(run, MixtureRun):
            raise ConfigError(f"the run is a mixture: say which of its sources, {', '.join(map(repr, run.names))}")
        config = run.config_of(source or ONLY)
        group = _group_of(config.index, file, row_group)
        count = int(config.index.rows[group])
        if not 0 <= document < count:
            raise ConfigError(f"row group {row_group} of {file} has the documents 0 to {count - 1:,}, not {document}")
        known = self._lengths(source or ONLY, config)
        for name, asked in (("steps", steps), ("epochs", epochs)):
            if asked is not None and not (asked.step == 1 and 0 <= asked.start <= asked.stop):
                raise ConfigError(f"{name} must be a range without gaps, from 0 or later on, not {asked}")
        now = run.progress.rows_before(run.progress.position)
        if steps is None and epochs is None:
            steps, epochs = (range(now), None) if now else (None, range(1))
        first, last = (0, None) if steps is None else (steps.start, steps.stop)
        lane_steps = _SetSteps(run) if isinstance(run, SetRun) else _MixtureSteps(run, source or ONLY)
        if epochs is None:
            assert steps is not None
            epochs = lane_steps.epochs(steps, run.options.overlap)
        found = [
            place
            for epoch in epochs
            for each in occurrences(config, lane_steps.lengths, group, document, epoch=epoch, known=known)
            for place in _places(each, lane_steps, run.options.overlap, first, last)
        ]
        return Places(
            source=source,
            file=file,
            row_group=row_group,
            document=document,
            tokens=int(known.of(np.array([group]))[document]),
            steps=(first, last),
            epochs=(epochs.start, epochs.stop),
            places=tuple(sorted(found, key=lambda place: (place.step, place.row, place.column))),
        )

    def _lengths(self, name: str, config: EngineConfig) -> KnownLengths:
        known = self._known.get(name)
        if known is None or known[0].index is not config.index:
            known = self._known[name] = config, KnownLengths(config, self._progress)
        return known[1]


# ── from a step to its rows ──────────────────────────────────────────────────────────────────────────────────────


def step_of(run: SetRun | MixtureRun, number: int) -> Step:
    """A step of a run: one of its history, or one that it is going to have.

    Raises:
        ConfigError: the run ends before it.
        SourceExhaustedError: so does a source of the mixture.
    """
    progress, position = run.progress, run.progress.position_of(number)
    if isinstance(run, SetRun):
        if run.finish is not None and position >= max(run.finish.stop, progress.position):
            last = replace(progress, position=run.finish.stop).rows_before(run.finish.stop - 1)
            raise ConfigError(
                f"the run ends with step {last:,} (epochs={run.finish.epochs}): there is no step {number:,}"
            )
        lengths = tuple(change for change in progress.lengths if change[0] <= position)
        return Step(Progress(position=position, lengths=lengths, skips=progress.skips), run.configs, None, run.options)
    at = progress_at(run, number)
    return Step(at, {name: run.config_of(name) for name, _ in at.quotas}, run.plan, run.options)


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
        at = traced(run.plan.lattice, progress.lengths, progress.stages, progress.position_of(row))
        return replace(at, skips=progress.skips)
    at = progress.advanced(row - progress.row, run.plan)
    return at.entered(run.plan) if entered else at


def trace_of(
    step: Step, rows: IntArray, *, columns: tuple[int, int] | None, known: Callable[[str, EngineConfig], KnownLengths]
) -> Trace:
    """Where the tokens of some rows of a step come from.

    Args:
        step: which.
        rows: of the global batch, rising, shape ``(rows,)``.
        columns: see `which`.
        known: the lengths of a source's documents.
    """
    progress, options = step.progress, step.options
    width = progress.seq_len + options.overlap
    if columns is None:
        columns = (0, width)
    if not 0 <= columns[0] < columns[1] <= width:
        raise ConfigError(f"columns must be a part of this step's 0:{width}, not {columns[0]}:{columns[1]}")
    parts, sources = [], []
    of_sources = list(_rows_of(step, rows))
    for place, (name, picked) in enumerate(of_sources):
        found = stretches_of(picked, seq_len=progress.seq_len, columns=columns, known=known(name, picked.config))
        parts.append(found)
        sources.append(np.full(len(found), place))
    stretches = Stretches.of(parts)
    order = np.lexsort((stretches.column, stretches.row))
    return Trace(
        step=progress.rows_before(progress.position),
        position=progress.position,
        seq_len=progress.seq_len,
        overlap=options.overlap,
        skipped=_skipped(progress, progress.position),
        lanes=options.lanes,
        names=tuple(name for name, _ in of_sources) if step.plan is not None else (),
        indexes=tuple(picked.config.index for _, picked in of_sources),
        source=np.concatenate(sources)[order] if sources else np.empty(0, np.int64),
        stretches=stretches.picked(order),
    )


def _rows_of(step: Step, rows: IntArray) -> Iterator[tuple[str, SourceRows]]:
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
    progress = progress.entered(plan)
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


def _skipped(progress: Progress, position: int) -> bool:
    return any(low <= position < high for low, high in progress.skips)


def origins_of(step: Step, first: int, last: int) -> list[Piece]:
    """What the rows ``[first, last)`` of a step's global batch consist of."""
    return trace_of(step, np.arange(first, last), columns=None, known=lambda _, config: KnownLengths(config)).pieces


# ── from a document to its steps ─────────────────────────────────────────────────────────────────────────────────


class _Row(NamedTuple):
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


class _SetSteps:
    """The steps of a run of one set."""

    def __init__(self, run: SetRun) -> None:
        self._progress = run.progress
        self._finish = run.finish
        self._order = run.order
        self.lengths = run.progress.reached(run.order.lanes)

    def row_of(self, lane: int, position: int) -> _Row | None:
        """The row that a position of a lane comes in; None where the run has ended."""
        step = self._progress.rows_before(position)
        begin = self._progress.position_of(step)
        if self._finish is not None and begin >= max(self._finish.stop, self._progress.position):
            return None
        return _Row(step, begin, self._progress.length_at(begin), _skipped(self._progress, begin))

    def epochs(self, steps: range, overlap: int) -> range:
        """The epochs that steps come to."""
        begin, end = self._progress.position_of(steps.start), self._progress.position_of(steps.stop)
        found = _epochs(self._order, begin, end, overlap)
        return found if self._finish is None else range(found.start, min(found.stop, self._finish.epochs))


class _MixtureSteps:
    """The steps of a mixture that are of one source."""

    def __init__(self, run: MixtureRun, name: str) -> None:
        self._run = run
        self._name = name
        self._lanes = run.options.lanes
        self._order = run.config_of(name).order
        self._starts: dict[int, IntArray | None] = {}
        self._tables: dict[int, tuple[IntArray, IntArray] | None] = {}
        self.lengths = run.progress.length_of(name)

    def row_of(self, lane: int, position: int) -> _Row | None:
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
        found = _Row(row, int(table[1][rows[place], lane]), progress.length_at(at), _skipped(progress, at))
        return found if position < found.begin + found.seq_len else None

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
        return block > _MOST_STEPS or self._name not in self._run.needed(progress)


def _epochs(order: Order, begin: int, end: int, overlap: int) -> range:
    """The epochs that the positions ``[begin, end)`` of the lanes are of, and those of the tokens that follow them."""
    if begin >= end:
        return range(0)
    # Lane i's token p comes in the window where C + i reaches (p + 1) B.
    return range(begin * order.lanes // order.total, ((end + overlap) * order.lanes - 1) // order.total + 1)


def _places(
    found: Occurrence, lane_steps: _SetSteps | _MixtureSteps, overlap: int, first: int, last: int | None
) -> Iterator[Place]:
    """The rows of the steps ``[first, last)`` in which an occurrence comes."""
    position, text, end = found.position, found.text, found.position + found.tokens
    while position < end:
        row = lane_steps.row_of(found.lane, position)
        if row is None or (last is not None and row.step >= last):
            return
        tokens = min(end, row.begin + row.seq_len) - position
        # After a row's last token, what follows in the text.
        beyond = overlap if position + tokens == row.begin + row.seq_len else 0
        low, high = max(text, found.first), min(text + tokens + beyond, found.last)
        if low < high and row.step >= first:
            yield Place(
                step=row.step,
                row=found.lane,
                column=position - row.begin + low - text,
                tokens=high - low,
                start=found.start + low - found.first,
                epoch=found.epoch,
                skipped=row.skipped,
            )
        position, text = position + tokens, text + tokens


def _group_of(index: DatasetIndex, file: str, row_group: int) -> int:
    """The number in the index of a row group of a file."""
    place = bisect.bisect_left(index.files, file, key=lambda each: each.path)
    if place == len(index.files) or index.files[place].path != file:
        near = difflib.get_close_matches(file, [each.path for each in index.files[:10_000]], 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; the first one is {index.files[0].path!r}"
        raise ConfigError(f"the set has no file {file!r}{hint}")
    low, high = (int(np.searchsorted(index.file, each)) for each in (place, place + 1))
    found = low + int(np.searchsorted(index.row_group[low:high], row_group))
    if found == high or int(index.row_group[found]) != row_group:
        last = f" to {int(index.row_group[high - 1])}" if high - low > 1 else ""
        shown = f"{int(index.row_group[low])}{last}" if high > low else "none"
        raise ConfigError(f"{file} has no row group {row_group} that holds documents; it has {shown}")
    return found
