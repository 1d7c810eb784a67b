"""`which`: where every token of a step comes from; and `find`: at which steps a document comes.

Both are arithmetic on the index, and on how many tokens the documents of the row groups concerned have, which are read
for it. They do not depend on how many ranks there are.

    step ──► position, and of a mixture each lane's source and its position there ──► rows of each source
         ──► stretches of documents (`fragments`) ──► Piece

    document ──► its stretches in each epoch of its source (`fragments`) ──► positions ──► steps ──► Place
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ..batch import Piece
from ..blocks import IntArray
from ..checkpoint import ONLY
from ..engine.config import EngineConfig
from ..errors import ConfigError
from ..index.index import DatasetIndex
from ..options import check_world_size, integer
from ..order.order import lane_range
from ..runs import MixtureRun, SetRun, Step
from .fragments import Occurrence, Stretches, occurrences, stretches_of
from .lengths import KnownLengths
from .sealed import check_known, grows, known_steps
from .steps import MOST_STEPS, MixtureSteps, SetSteps, is_skipped, rows_of, step_of

__all__ = ["Piece", "Place", "Places", "Trace", "Tracer", "find", "group_of", "origins_of", "which"]

_PIECE = tuple(each.name for each in fields(Piece))  # `asdict` takes ten times as long, and a step has thousands


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
        ConfigError: no such step, or none that is known of a set that still grows; no such row or column; or a world
            size that the loader would refuse.
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
            or where none was, all of the first epoch of the set or source. Of what still grows, no more than is known.
        epochs: of the set or source, to look at; None for all that steps come to.

    Raises:
        ConfigError: no such document; or steps, epochs or a document of which nothing is known, as the set still grows.
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
            world_size = integer("world_size", world_size, 1)
            check_world_size(world_size, lanes, self._run.options.uneven)
            rows = range(*lane_range(integer("rank", rank, 0, world_size - 1), world_size, lanes))
        picked = range(lanes) if rows is None else sorted({integer("a row", row, 0, lanes - 1) for row in rows})
        at = step_of(self._run, integer("step", step, 0, MOST_STEPS))
        check_known(self._run, step + 1)
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
        if source is not None and isinstance(run, MixtureRun) and source not in run.names:
            raise ConfigError(f"the mixture has no source {source!r}; it has {', '.join(map(repr, run.names))}")
        config = run.config_of(source or ONLY)
        group = group_of(config.index, file, row_group)
        known = self._lengths(source or ONLY, config)
        count = len(known.of(np.array([group]))[0]) if config.index.is_stream else int(config.index.rows[group])
        if not 0 <= document < count:
            raise ConfigError(f"row group {row_group} of {file} has the documents 0 to {count - 1:,}, not {document}")
        for name, asked in (("steps", steps), ("epochs", epochs)):
            if asked is not None and not (asked.step == 1 and 0 <= asked.start <= asked.stop):
                raise ConfigError(f"{name} must be a range without gaps, from 0 or later on, not {asked}")
        now = run.progress.rows_before(run.progress.position)
        if steps is None and epochs is None:
            steps, epochs = (range(now), None) if now else (None, range(1))
        limit = known_steps(run)
        if limit is not None and steps is not None:
            check_known(run, steps.stop)
        elif limit is not None:
            steps = range(limit)
        order = config.order
        if config.growth is not None and epochs is not None:
            if epochs.stop > 1:
                raise ConfigError(f"epoch {epochs.stop - 1} is not known yet: {grows(run)}")
            if group >= order.sealed_windows * order.window:
                raise ConfigError(
                    f"row group {row_group} of {file} is in a window that is not whole yet, and in no step that is "
                    f"known: {grows(run)}"
                )
        first, last = (0, None) if steps is None else (steps.start, steps.stop)
        lane_steps = SetSteps(run) if isinstance(run, SetRun) else MixtureSteps(run, source or ONLY)
        if epochs is None:
            assert steps is not None
            epochs = lane_steps.epochs(steps, run.options.overlap)
        epochs = lane_steps.delivered(epochs)
        if config.growth is not None and group >= order.sealed_windows * order.window:
            epochs = range(0)  # steps that are known have nothing of it
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
            tokens=int(known.of(np.array([group]))[0][document]),
            steps=(first, last),
            epochs=(epochs.start, epochs.stop),
            places=tuple(sorted(found, key=lambda place: (place.step, place.row, place.column))),
        )

    def _lengths(self, name: str, config: EngineConfig) -> KnownLengths:
        known = self._known.get(name)
        if known is None or known[0].index is not config.index:
            known = self._known[name] = config, KnownLengths(config, self._progress)
        return known[1]


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
    of_sources = list(rows_of(step, rows))
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
        skipped=is_skipped(progress, progress.position),
        lanes=options.lanes,
        names=tuple(name for name, _ in of_sources) if step.plan is not None else (),
        indexes=tuple(picked.config.index for _, picked in of_sources),
        source=np.concatenate(sources)[order] if sources else np.empty(0, np.int64),
        stretches=stretches.picked(order),
    )


def origins_of(step: Step, first: int, last: int) -> list[Piece]:
    """What the rows ``[first, last)`` of a step's global batch consist of."""
    return trace_of(step, np.arange(first, last), columns=None, known=lambda _, config: KnownLengths(config)).pieces


def _places(
    found: Occurrence, lane_steps: SetSteps | MixtureSteps, overlap: int, first: int, last: int | None
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


def group_of(index: DatasetIndex, file: str, row_group: int) -> int:
    """The number in the index of a row group of a file.

    Raises:
        ConfigError: there is none, or none with documents; says which there are.
    """
    place = index.file_number(file)
    if place is None:
        paths = [each.path for each in index.files[:10_000]]
        near = [path for path in paths if path.lower() == file.lower()] or difflib.get_close_matches(file, paths, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; the first one is {index.files[0].path!r}"
        raise ConfigError(f"the set has no file {file!r}{hint}")
    found = index.group_number(place, row_group)
    if found is None:
        own = index.row_group[index.groups_of(place)].tolist()
        shown = f"{own[0]} to {own[-1]}" if len(own) > 1 else str(own[0]) if own else "none"
        raise ConfigError(f"{file} has no row group {row_group} that holds documents; it has {shown}")
    return found
