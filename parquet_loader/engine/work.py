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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..blocks import IntArray, TokenArray, TokenPart
from ..formats.base import ColumnChunk, Format
from ..index.index import DatasetIndex
from ..order.order import Order, Window
from ..storage.base import FileInfo, Storage
from .config import EngineConfig
from .plan import TaskPlan, WindowPlan
from .slices import Band, Slices, Spans, cut_band

__all__ = ["FileRead", "Hold", "Results", "SourceWork", "TaskWork", "WindowWork", "read_chunks", "run_task"]

# Holds so many bytes more than a row group's task was admitted with; see `Reserve.hold`.
Hold = Callable[[int, ColumnChunk], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceWork:
    """What all tasks of a source have in common; see `EngineConfig`. The order knows of no row groups."""

    storage: Storage
    format: Format
    order: Order
    held_dtype: np.dtype[np.integer]
    bound: int
    eos_id: int | None
    appends_eos: bool

    @classmethod
    def of(cls, config: EngineConfig) -> SourceWork:
        """That of a source."""
        return cls(
            storage=config.storage,
            format=config.format,
            order=replace(config.order, group_tokens=config.order.group_tokens[:0]),
            held_dtype=config.held_dtype,
            bound=config.bound,
            eos_id=config.eos_id,
            appends_eos=config.appends_eos,
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

    def cut(self, order: Order, band: Band, tokens: TokenArray, documents: IntArray) -> Slices:
        """See `cut_band`."""
        return cut_band(
            band,
            tokens,
            documents,
            starts=self.starts[band.first_lane - self.first_lane : band.last_lane - self.first_lane + 1],
            window=self.window,
            order=order,
            spans=self.spans,
            first_lane=self.first_lane,
        )

    def whole(self, tokens: TokenArray) -> Slices:
        """All lanes' slices, without their documents, where their tokens lie one after another, shape ``(tokens,)``."""
        begins, cuts = self.spans.begins.tolist(), (self.starts - self.starts[0]).tolist()
        rectangles = [
            (low, high, begins[low], tokens[cuts[low] : cuts[high]].reshape(high - low, -1))
            for low, high in self.spans.stretches(0, len(begins))
            if cuts[low] < cuts[high]
        ]
        return Slices(first=0, rectangles=rectangles, documents=np.empty(0, np.int64))


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
    """One read: a byte range of a file, and which of the task's row groups lie in it."""

    file: FileInfo
    start: int
    length: int
    groups: tuple[int, ...]


class TaskWork(NamedTuple):
    """A task.

    Attributes:
        reads: which bring all row groups' chunks.
        chunks: of each row group, in the order of the window.
        origins: where each begins in the window.
        decode_bytes: what is held for decoding each.
        besides: the reads of what decoding each needs beside its chunk; empty where that is nothing for any.
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
        chunks = tuple(index.chunks(groups[list(task.ordinals)]))
        return cls(
            reads=tuple(
                FileRead(
                    index.files[read.file],
                    read.start,
                    read.length,
                    tuple(numbers[ordinal] for ordinal in read.ordinals),
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
    """What becomes of what a task decodes. Bands are called by their numbers in `WindowWork.bands`."""

    def join(self, number: int, at: int, tokens: TokenArray, documents: IntArray) -> tuple[TokenArray, IntArray] | None:
        """Keep a piece of a band, and give all of it once it is complete.

        Args:
            number: of the band.
            at: where the piece begins in it.
            tokens: of the piece.
            documents: where documents begin in the band, of those that begin in the piece.
        """
        ...

    def keep(self, number: int, slices: Slices) -> None:
        """Keep a band's slices."""
        ...


def run_task(
    source: SourceWork,
    window: WindowWork,
    task: TaskWork,
    results: Results,
    *,
    decoders: contextlib.AbstractContextManager[object],
    hold: Hold,
    stop: threading.Event | None = None,
    fetched: Callable[[], object] = lambda: None,
) -> tuple[int, int]:
    """Read and decode row groups, and cut every band that they complete.

    Args:
        source, window, task: what is to be done.
        results: what becomes of it.
        decoders: held while decoding and cutting.
        hold: memory for row groups that hold more while they are decoded than was thought.
        stop: set when nothing is wanted any more.
        fetched: called when storage has given all of its bytes.

    Returns:
        (tokens that were decoded, row groups that fell back).
    """
    raws, besides = read_chunks(source.storage, task, stop)
    fetched()
    with decoders:
        return _Run(source, window, task, results, hold).decode(raws, besides)


def read_chunks(
    storage: Storage, task: TaskWork, stop: threading.Event | None
) -> tuple[list[memoryview], list[list[bytes]]]:
    """The row groups' bytes, and of each those beside its chunk; no list of those where there are none."""
    raws = [memoryview(b"")] * len(task.chunks)
    for read in task.reads:
        data = memoryview(storage.read(read.file, read.start, read.length, stop))
        for number in read.groups:
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

    def decode(self, raws: Sequence[memoryview], besides: Sequence[Sequence[bytes]]) -> tuple[int, int]:
        """Decode row groups and cut from them; see `run_task`."""
        source, task, starts = self.source, self.task, self.window.starts
        if len(raws) > 1:
            part = source.format.decode_together(
                raws,
                task.chunks,
                dtype=source.held_dtype,
                bound=source.bound,
                eos_id=source.eos_id,
                besides=besides,
            )
            if part is not None:
                # What lies between a task's row groups in the window has no tokens.
                self._cut_from(part, task.origins[0])
                return self._tokens(part), 0
        tokens = fallbacks = 0
        each = zip(raws, besides or [()] * len(raws), task.chunks, task.origins, task.decode_bytes, strict=True)
        for raw, beside, chunk, origin, decode_bytes in each:
            opened = source.format.open(raw, chunk, beside)
            cost = opened.cost_bytes(dtype=source.held_dtype, eos=source.appends_eos)
            parts = opened.parts(
                dtype=source.held_dtype,
                bound=source.bound,
                eos_id=source.eos_id,
                first=int(starts[0]) - origin,
                last=int(starts[-1]) - origin,
            )
            with self.hold(cost - decode_bytes, chunk):
                for part in parts:
                    tokens += self._tokens(part)
                    self._cut_from(part, origin + part.begin)
                    del part  # not to be held while the next one is decoded
            fallbacks += bool(opened.fallback)
            del opened, parts
        return tokens, fallbacks

    def _tokens(self, part: TokenPart) -> int:
        """How many there are, without EOS."""
        return len(part.tokens) - (len(part.starts) if self.source.appends_eos else 0)

    def _cut_from(self, part: TokenPart, begin: int) -> None:
        """Cut the bands that a part, which begins there in the window, completes."""
        end = begin + len(part.tokens)
        starts = part.starts
        if (starts[1:] == starts[:-1]).any():  # empty documents, of which there may be more than tokens
            starts = starts[np.append(starts[1:] != starts[:-1], True)]
        bands, order = self.window.bands, self.source.order
        # Bands follow each other: those that end behind the part's beginning and begin before its end.
        first_band = bisect.bisect_right(bands, begin, key=lambda band: band.end)
        for number in range(first_band, bisect.bisect_left(bands, end, key=lambda band: band.begin)):
            band = bands[number]
            low, high = max(band.begin, begin), min(band.end, end)
            tokens = part.tokens[low - begin : high - begin]
            # A document that begins at the very end of the part is empty so far, and of whatever comes next.
            first, last = starts.searchsorted((band.begin - begin, band.end - begin)).tolist()
            documents = starts[first:last] + (begin - band.begin)
            if high - low == band.end - band.begin:
                self.results.keep(number, self.window.cut(order, band, tokens, documents))
            else:
                self._join(number, low - band.begin, tokens, documents)

    def _join(self, number: int, at: int, tokens: TokenArray, documents: IntArray) -> None:
        """Put a piece of a band to the others, and cut the band where it was the last one."""
        joined = self.results.join(number, at, tokens, documents)
        if joined is not None:
            slices = self.window.cut(self.source.order, self.window.bands[number], *joined)
            del joined  # its memory may count as free from here on
            self.results.keep(number, slices)
