"""What a task does, as values: the same on a thread of the loader and in a process that decodes for it.

A task reads its row groups, decodes them part after part, and cuts every band that a part completes:

    read ──► decode a part ──► cut every band that it completes ──► the next part ...

`SourceWork` is what all tasks of a source have in common, `WindowWork` those of a window, `TaskWork` is the rest. None
of them refers to an index, so that they are small when they are sent. Where slices go, and where the text of bands that
lie in several parts is put together, is for `Results` to say.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..blocks import IntArray, TokenArray, TokenPart
from ..errors import DataError
from ..formats.base import STREAM_DOCUMENT_TOKENS, ColumnChunk, Format
from ..index.index import DatasetIndex
from ..order.order import Order, Window
from ..storage.base import FileInfo, Storage
from .config import EngineConfig
from .plan import TaskPlan, WindowPlan
from .planes import Plane
from .rows import RowLengthError, RowPart, RowParts, parts_together
from .slices import Band, Cut, Slices, Spans, cut_band, plan_cut

__all__ = [
    "Cuts",
    "FileRead",
    "Hold",
    "Keep",
    "Results",
    "SourceWork",
    "TaskWork",
    "Text",
    "WindowWork",
    "planes_bytes",
    "planes_of",
    "read_chunks",
    "run_task",
]

# Holds what some documents need that are more than was thought, among so many tokens of a row group, until the window
# is used up.
Keep = Callable[[int, int, ColumnChunk], None]

_PLANE_BYTES = 64  # planes begin at multiples of it
# Holds so many bytes more than a row group's task was admitted with; see `Reserve.hold`.
Hold = Callable[[int, ColumnChunk], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceWork:
    """What all tasks of a source have in common; see `EngineConfig`. The order knows of no row groups."""

    storage: Storage
    format: Format
    order: Order
    planes: tuple[Plane, ...]
    is_stream: bool

    @classmethod
    def of(cls, config: EngineConfig) -> SourceWork:
        """That of a source."""
        return cls(
            storage=config.storage,
            format=config.format,
            order=replace(config.order, group_tokens=config.order.group_tokens[:0]),
            planes=config.planes,
            is_stream=config.index.is_stream,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowWork:
    """What all tasks of a window have in common.

    Attributes:
        source: its source's place among the engine's.
        window: which it is; without its row groups.
        starts, spans, bands: see `WindowPlan`.
        first_lane: the number of the first lane.
    """

    source: int
    window: Window
    starts: IntArray
    spans: Spans
    bands: tuple[Band, ...]
    first_lane: int

    @classmethod
    def of(cls, source: int, config: EngineConfig, plan: WindowPlan) -> WindowWork:
        """That of a source's window."""
        window = plan.window
        return cls(
            source=source,
            window=replace(window, groups=window.groups[:0], offsets=window.offsets[:1]),
            starts=plan.starts,
            spans=plan.spans,
            bands=plan.bands,
            first_lane=config.first,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A dataclass with slots takes longer to pickle than its numbers do.
        numbers = [[getattr(band, name) for name in _BAND] for band in self.bands]
        return _window_work, (
            (self.source, self.window.epoch, self.window.number, self.window.before, self.first_lane),
            self.starts,
            {name: getattr(self.spans, name) for name in _SPANS},
            np.array(numbers, np.int64),
        )

    @property
    def tokens(self) -> int:
        """Tokens of all lanes."""
        return int(self.starts[-1] - self.starts[0])

    def place(self, band: Band) -> slice:
        """Where the tokens of a band lie among those of all lanes, before and after they are shuffled."""
        first = int(self.starts[0])
        return slice(band.begin - first, band.end - first)

    def cut(self, order: Order, text: Text, documents: IntArray, cuts: Cuts) -> Slices:
        """The slices of a band, see `cut_band`, with these documents."""
        plane, number, tokens = text
        band = self.bands[number]
        cut = cuts.known(plane, number, documents)
        if cut is None:
            starts = self.starts[band.first_lane - self.first_lane : band.last_lane - self.first_lane + 1]
            cut = plan_cut(band, documents, starts=starts, window=self.window, order=order)
            cuts.keep(plane, number, cut)
        return cut_band(band, cut, tokens, spans=self.spans, first_lane=self.first_lane, plane=plane)

    def whole(self, plane: int, tokens: TokenArray) -> Slices:
        """All lanes' slices, without their documents, where their tokens lie one after another, shape ``(tokens,)``."""
        begins, cuts = self.spans.begins.tolist(), (self.starts - self.starts[0]).tolist()
        rectangles = [
            (low, high, begins[low], tokens[cuts[low] : cuts[high]].reshape(high - low, -1))
            for low, high in self.spans.stretches(0, len(begins))
            if cuts[low] < cuts[high]
        ]
        return Slices(first=0, plane=plane, rectangles=rectangles, documents=np.empty(0, np.int64))


class Text(NamedTuple):
    """A band's tokens, or another plane's values; bands are called by their numbers in `WindowWork.bands`."""

    plane: int
    number: int
    tokens: TokenArray


class Cuts:
    """How bands of a window are cut, kept until all planes of them are: documents are permuted once for all planes.

    Threads may be at it at the same time: what is not found is found out again.

    Args:
        planes: how many there are.
    """

    def __init__(self, planes: int) -> None:
        self._last = planes - 1
        self._kept: dict[int, Cut] = {}  # setting and taking an entry is atomic

    def known(self, plane: int, number: int, documents: IntArray) -> Cut | None:
        """How a band with these documents was cut, if that is kept."""
        if not plane:
            return None
        found = self._kept.pop(number, None) if plane == self._last else self._kept.get(number)
        return found if found is not None and np.array_equal(found.documents, documents) else None

    def keep(self, plane: int, number: int, cut: Cut) -> None:
        """Keep it for the planes that follow."""
        if plane < self._last:
            self._kept[number] = cut


def planes_bytes(tokens: int, dtypes: Sequence[np.dtype[Any]]) -> int:
    """What as many values of each plane take in one piece of memory."""
    return sum(-(-tokens * dtype.itemsize // _PLANE_BYTES) * _PLANE_BYTES for dtype in dtypes)


def planes_of(memory: npt.NDArray[np.uint8], tokens: int, dtypes: Sequence[np.dtype[Any]]) -> list[TokenArray]:
    """As many values of each plane in one piece of memory, one plane after another."""
    found: list[TokenArray] = []
    begin = 0
    for dtype in dtypes:
        found.append(memory[begin : begin + tokens * dtype.itemsize].view(dtype))
        begin += planes_bytes(tokens, [dtype])
    return found


_BAND = tuple(each.name for each in fields(Band))
_SPANS = tuple(each.name for each in fields(Spans))


def _window_work(numbers: tuple[int, ...], starts: IntArray, spans: dict[str, Any], bands: IntArray) -> WindowWork:
    source, epoch, number, before, first_lane = numbers
    none = np.empty(0, np.int64)
    return WindowWork(
        source=source,
        window=Window(epoch=epoch, number=number, groups=none, offsets=none, before=before),
        starts=starts,
        spans=Spans(**spans),
        bands=tuple(Band(**dict(zip(_BAND, each, strict=True))) for each in bands.tolist()),
        first_lane=first_lane,
    )


class FileRead(NamedTuple):
    """One read: a byte range of a file, and which of the task's chunks lie in it."""

    file: FileInfo
    start: int
    length: int
    chunks: tuple[int, ...]


class TaskWork(NamedTuple):
    """A task.

    Attributes:
        reads: which bring all row groups' chunks.
        chunks: of each row group, in the order of the window: those of the tokens, then as many of each other plane.
        origins: where each begins in the window.
        decode_bytes: what is held for decoding each.
        besides: the reads of what decoding each chunk needs beside it; empty where that is nothing for any.
    """

    reads: tuple[FileRead, ...]
    chunks: tuple[ColumnChunk, ...]
    origins: tuple[int, ...]
    decode_bytes: tuple[int, ...]
    besides: tuple[tuple[FileRead, ...], ...] = ()

    @classmethod
    def of(cls, index: DatasetIndex, plan: WindowPlan, task: TaskPlan) -> TaskWork:
        """That of a task of a window."""
        groups, offsets = plan.window.groups, plan.window.offsets
        numbers = {ordinal: number for number, ordinal in enumerate(task.ordinals)}
        inside = groups[list(task.ordinals)]
        chunks = tuple(chunk for each in index.planes for chunk in each.chunks(inside))
        return cls(
            reads=tuple(
                FileRead(
                    index.files[read.file],
                    read.start,
                    read.length,
                    tuple(plane * len(numbers) + numbers[ordinal] for plane, ordinal in read.chunks),
                )
                for read in task.reads
            ),
            chunks=chunks,
            origins=tuple(int(offsets[ordinal]) for ordinal in task.ordinals),
            decode_bytes=tuple(plan.costs[ordinal].decode for ordinal in task.ordinals),
            besides=_besides(index, chunks),
        )

    @property
    def read_bytes(self) -> int:
        """What is read for it."""
        return sum(read.length for reads in (self.reads, *self.besides) for read in reads)


def _besides(index: DatasetIndex, chunks: Sequence[ColumnChunk]) -> tuple[tuple[FileRead, ...], ...]:
    found = tuple(tuple(FileRead(*place, ()) for place in index.beside(chunk)) for chunk in chunks)
    return found if any(found) else ()


class Results(Protocol):
    """What becomes of what a task decodes. Bands are called by their numbers in `WindowWork.bands`, planes by theirs.

    Attributes:
        cuts: of the window.
    """

    cuts: Cuts

    def join(
        self, plane: int, number: int, at: int, tokens: TokenArray, documents: IntArray
    ) -> tuple[TokenArray, IntArray] | None:
        """Keep a piece of a band, and give all of it once it is complete.

        Args:
            plane: whose it is.
            number: of the band.
            at: where the piece begins in it.
            tokens: of the piece.
            documents: where documents begin in the band, of those that begin in the piece.
        """
        ...

    def keep(self, number: int, slices: Slices) -> None:
        """Keep a band's slices, of one plane."""
        ...


def run_task(
    source: SourceWork,
    window: WindowWork,
    task: TaskWork,
    results: Results,
    *,
    decoders: contextlib.AbstractContextManager[object],
    hold: Hold,
    keep: Keep,
    stop: threading.Event | None = None,
    fetched: Callable[[], object] = lambda: None,
) -> tuple[int, int]:
    """Read and decode row groups, and cut every band that they complete.

    Args:
        source, window, task: what is to be done.
        results: what becomes of it.
        decoders: held while decoding and cutting.
        hold: memory for row groups that hold more while they are decoded than was thought.
        keep: memory for documents of a stream that are more than was thought.
        stop: set when nothing is wanted any more.
        fetched: called when storage has given all of its bytes.

    Returns:
        (tokens that were decoded, row groups that fell back).
    """
    raws, besides = read_chunks(source.storage, task, stop)
    fetched()
    with decoders:
        return _Run(source, window, task, results, hold, keep).decode(raws, besides)


def read_chunks(
    storage: Storage, task: TaskWork, stop: threading.Event | None
) -> tuple[list[memoryview], list[list[bytes]]]:
    """The chunks' bytes, and of each those beside it; no list of those where there are none."""
    raws = [memoryview(b"")] * len(task.chunks)
    for read in task.reads:
        data = memoryview(storage.read(read.file, read.start, read.length, stop))
        for number in read.chunks:
            begin = task.chunks[number].start - read.start
            raws[number] = data[begin : begin + task.chunks[number].length]
    besides = [[storage.read(read.file, read.start, read.length, stop) for read in reads] for reads in task.besides]
    return raws, besides


@dataclass(frozen=True, slots=True)
class _Run:
    """A task that runs."""

    source: SourceWork
    window: WindowWork
    task: TaskWork
    results: Results
    hold: Hold
    keep: Keep

    def decode(self, raws: Sequence[memoryview], besides: Sequence[Sequence[bytes]]) -> tuple[int, int]:
        """Decode row groups and cut from them, one plane after another; see `run_task`."""
        groups, planes = len(self.task.origins), len(self.source.planes)
        borders: list[list[IntArray]] = [[] for _ in range(planes)]  # where documents begin in the window, of each part
        decoded = 0, 0
        for plane in range(planes):
            own = slice(plane * groups, (plane + 1) * groups)
            try:
                found = self._decode(plane, raws[own], besides[own], borders[plane])
            except RowLengthError as error:
                if plane:
                    raise self._unlike(plane, raws, groups) from None
                raise error.chunk.error(error.problem) from None
            if not plane:
                decoded = found
            elif not self._alike(borders[0], borders[plane]):
                raise self._unlike(plane, raws, groups)
            else:
                borders[plane] = []
        return decoded

    def _decode(
        self,
        plane: int,
        raws: Sequence[memoryview],
        besides: Sequence[Sequence[bytes]],
        borders: list[IntArray],
    ) -> tuple[int, int]:
        """Decode one plane of the row groups and cut from it; see `run_task`."""
        chunks = self.task.chunks[plane * len(raws) : (plane + 1) * len(raws)]
        source, task, starts = self.source, self.task, self.window.starts
        wanted = source.planes[plane]
        as_wanted: dict[str, Any] = {"dtype": wanted.held_dtype, "bound": wanted.bound, "eos_id": wanted.eos}
        if plane:
            as_wanted["low"] = wanted.low
        if len(raws) > 1:
            part = source.format.decode_together(raws, chunks, **as_wanted, besides=besides)
            if part is not None:
                self._count(part, chunks[0])
                # What lies between a task's row groups in the window has no tokens.
                whole = part if wanted.rows is None else parts_together(wanted.rows, part, chunks)
                self._cut_from(plane, whole, task.origins[0], borders)
                return self._tokens(part), 0
        tokens = fallbacks = 0
        each = zip(raws, besides or [()] * len(raws), chunks, task.origins, task.decode_bytes, strict=True)
        for raw, beside, chunk, origin, decode_bytes in each:
            opened = source.format.open(raw, chunk, beside)
            cost = opened.cost_bytes(dtype=wanted.held_dtype, eos=wanted.appends_eos)
            first, last = int(starts[0]) - origin, int(starts[-1]) - origin
            rows: RowParts | None = None
            if wanted.rows is not None:
                rows = RowParts(wanted.rows, chunk)
                first, last = wanted.rows.tokens_of(chunk, first, last)
            parts = opened.parts(**as_wanted, first=first, last=last)
            with self.hold(cost - decode_bytes, chunk):
                for part in parts:
                    tokens += self._tokens(part)
                    self._count(part, chunk)
                    if rows is None:
                        self._cut_from(plane, part, origin + part.begin, borders)
                    else:
                        self._cut_rows(plane, rows.of(part), origin, borders)
                    del part  # not to be held while the next one is decoded
                if rows is not None:
                    self._cut_rows(plane, rows.rest(), origin, borders)
            fallbacks += bool(opened.fallback)
            del opened, parts
        return tokens, fallbacks

    def _alike(self, tokens: Sequence[IntArray], values: Sequence[IntArray]) -> bool:
        """Whether documents begin at the same places, of those that the lanes have, by two planes. Those at either end
        may be empty, and in a part that was left out.
        """
        low, high = self.window.starts[0], self.window.starts[-1]
        rows = self.source.planes[0].rows
        if rows is not None:  # rows and their lengths
            low, high = low * (rows.width + 1) - 1, high * (rows.width + 1)
        one, other = (np.concatenate([np.empty(0, np.int64), *each]) for each in (tokens, values))
        return np.array_equal(one[(one > low) & (one < high)], other[(other > low) & (other < high)])

    def _unlike(self, plane: int, raws: Sequence[memoryview], groups: int) -> DataError:
        """What is wrong where they do not: the first row that differs."""
        lengths_of = self.source.format.document_lengths
        own = slice(plane * groups, (plane + 1) * groups)
        chunks = self.task.chunks[own]
        both = lengths_of(raws[:groups], self.task.chunks[:groups]), lengths_of(raws[own], chunks)
        chunk, tokens, values = next(
            each for each in zip(chunks, *both, strict=True) if not np.array_equal(each[1], each[2])
        )
        row = int((tokens != values).argmax())
        return chunk.error(
            f"row {row} has {values[row]:,} values, and {tokens[row]:,} tokens in "
            f"{self.source.planes[0].column!r}: what is aligned has a value for each token"
        )

    def _tokens(self, part: TokenPart) -> int:
        """How many there are, without EOS."""
        return len(part.tokens) - (len(part.starts) if self.source.planes[0].appends_eos else 0)

    def _count(self, part: TokenPart, chunk: ColumnChunk) -> None:
        """Hold memory for a part's documents, where they are more than was thought."""
        more = len(part.starts) - 1 - len(part.tokens) // STREAM_DOCUMENT_TOKENS
        if more > 0 and self.source.is_stream:
            self.keep(more, len(part.tokens), chunk)

    def _cut_rows(self, plane: int, parts: Iterator[RowPart], origin: int, borders: list[IntArray]) -> None:
        for part in parts:
            self._cut_from(plane, part, origin + part.begin, borders)

    def _cut_from(self, plane: int, part: TokenPart | RowPart, begin: int, borders: list[IntArray]) -> None:
        """Cut the bands that a part, which begins there in the window, completes."""
        end = begin + len(part)
        rows = self.source.planes[plane].rows
        if isinstance(part, TokenPart):
            starts = part.starts
            if len(self.source.planes) > 1:
                borders.append(starts + begin)
            if (starts[1:] == starts[:-1]).any():  # empty documents, of which there may be more than tokens
                starts = starts[np.append(starts[1:] != starts[:-1], True)]
        elif len(self.source.planes) > 1:
            assert rows is not None
            borders.append(np.arange(begin, end) * (rows.width + 1) + np.diff(part.offsets))
        bands = self.window.bands
        # Bands follow each other: those that end behind the part's beginning and begin before its end.
        first_band = bisect.bisect_right(bands, begin, key=lambda band: band.end)
        for number in range(first_band, bisect.bisect_left(bands, end, key=lambda band: band.begin)):
            band = bands[number]
            low, high = max(band.begin, begin), min(band.end, end)
            if isinstance(part, TokenPart):
                tokens = part.tokens[low - begin : high - begin]
                # A document that begins at the very end of the part is empty so far, and of whatever comes next.
                first, last = starts.searchsorted((band.begin - begin, band.end - begin)).tolist()
                documents = starts[first:last] + (begin - band.begin)
            else:
                assert rows is not None
                tokens = rows.elements(part.tokens, part.offsets[low - begin : high - begin + 1])
                documents = np.arange(low, high) - band.begin
            if high - low == band.end - band.begin:
                self.results.keep(number, self._cut(Text(plane, number, tokens), documents))
            else:
                self._join(plane, number, low - band.begin, tokens, documents)

    def _join(self, plane: int, number: int, at: int, tokens: TokenArray, documents: IntArray) -> None:
        """Put a piece of a band to the others, and cut the band where it was the last one."""
        joined = self.results.join(plane, number, at, tokens, documents)
        if joined is not None:
            tokens, documents = joined
            slices = self._cut(Text(plane, number, tokens), documents)
            del joined, tokens  # its memory may count as free from here on
            self.results.keep(number, slices)

    def _cut(self, text: Text, documents: IntArray) -> Slices:
        return self.window.cut(self.source.order, text, documents, self.results.cuts)
