"""What a task is to do, as values: the same for a thread of the loader and for a process that decodes for it.

`SourceWork` is what all tasks of a source have in common, `WindowWork` those of a window, `TaskWork` is the rest. None
of them refers to an index, so that they are small when they are sent. `task.run_task` does them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..blocks import IntArray, TokenArray
from ..formats.base import ColumnChunk, Format
from ..index.index import DatasetIndex
from ..order.order import Order, Window
from ..storage.base import FileInfo, Storage
from .config import EngineConfig
from .plan import TaskPlan, WindowPlan
from .planes import Plane
from .slices import Band, Cut, Slices, Spans, cut_band, plan_cut

__all__ = [
    "Cuts",
    "FileRead",
    "Hold",
    "Keep",
    "Results",
    "SourceWork",
    "TaskWork",
    "WindowWork",
    "planes_bytes",
    "planes_of",
    "read_chunks",
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

    def cut(
        self, plane: int, number: int, tokens: TokenArray, documents: IntArray, *, order: Order, cuts: Cuts
    ) -> Slices:
        """The slices of a band, see `cut_band`, by its tokens, or another plane's values, and where documents begin."""
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
