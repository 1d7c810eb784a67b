"""The reads and tasks of a window; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..blocks import IntArray
from ..formats.base import ChunkSize
from ..index.index import DatasetIndex
from ..order.order import Window
from .config import EngineConfig
from .cost import TASK_BYTES, GroupCost, group_costs, task_bytes, text_cost
from .slices import Band, Spans, plan_bands, slice_spans

__all__ = ["Read", "TaskPlan", "WindowPlan", "plan_window"]

# Chunks of one task that lie closer than this in a file are one read, as long as that reads no more for nothing than
# another TASK_BYTES.
_GAP_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Read:
    """One read: a byte range of a file, and the chunks that lie in it: whose plane they are, and the ordinals in the
    window of their row groups.
    """

    file: int
    start: int
    length: int
    chunks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Row groups that are read and decoded in one go.

    Attributes:
        ordinals: the row groups' ordinals in the window.
        reads: the reads that bring their chunks.
        cost_bytes: what must fit for the task to be admitted.
        gap_bytes: what is read beside the chunks.
    """

    ordinals: tuple[int, ...]
    reads: tuple[Read, ...]
    cost_bytes: int
    gap_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowPlan:
    """What is to be done for one window.

    Attributes:
        window: the window.
        starts: where the lanes' slices begin in it, shape ``(lanes + 1,)``.
        spans: where they lie in the lanes' streams.
        bands: how lanes are cut together.
        texts: what the bands that lie in several row groups hold until they are cut, of each plane.
        costs: of each row group that is needed, by its ordinal in the window.
        tasks: all of `costs`, each once.
    """

    window: Window
    starts: IntArray
    spans: Spans
    bands: tuple[Band, ...]
    texts: Mapping[Band, tuple[int, ...]]
    costs: Mapping[int, GroupCost]
    tasks: tuple[TaskPlan, ...]


def plan_window(config: EngineConfig, window: Window, spare_bytes: int = 0) -> WindowPlan:
    """Which row groups of a window the lanes need, in which tasks, at which cost.

    Args:
        config: what they are read and decoded for.
        window: the window.
        spare_bytes: what the budget has beyond the least; see `cost.task_bytes`.
    """
    index, groups = config.index, window.groups
    starts = window.slice_starts(config.order.lanes, config.first, config.last)
    bands = plan_bands(starts, window.offsets, config.first, config.element_tokens)
    rows, offsets = index.rows[groups], window.offsets.tolist()
    rows_of = rows.tolist()
    longest, text = [0] * len(groups), [0] * len(groups)  # of bands in a row group, and of those that go on from it
    pieces = [0] * len(groups)  # of any bands
    texts: dict[Band, tuple[int, ...]] = {}
    for band in bands:
        taken = {
            ordinal: tokens
            for ordinal in band.groups
            if (tokens := min(band.end, offsets[ordinal + 1]) - max(band.begin, offsets[ordinal]))
        }
        first = next(iter(taken))
        for ordinal, tokens in taken.items():
            pieces[ordinal] = max(pieces[ordinal], tokens)
        if len(taken) == 1:
            longest[first] = max(longest[first], taken[first])
        else:
            documents = sum(min(rows_of[ordinal], tokens) + 1 for ordinal, tokens in taken.items())
            documents += band.last_lane - band.first_lane + 1
            texts[band] = tuple(
                text_cost(plane, tokens=band.end - band.begin, documents=documents) for plane in config.planes
            )
            text[first] += sum(texts[band])
    clipped = np.clip(window.offsets, starts[0], starts[-1])
    inside = clipped[1:] - clipped[:-1]
    each = group_costs(
        config,
        [_size_of(each, groups) for each in index.planes],
        codecs=[each.codec[groups] for each in index.planes],
        inside=inside,
        longest=np.array(longest),
        pieces=np.array(pieces),
        text=np.array(text),
        cuts=np.diff(np.searchsorted(starts, window.offsets)),
    )
    costs = {ordinal: each[ordinal] for ordinal in inside.nonzero()[0].tolist()}
    together: list[list[int]] = []
    most = task_bytes(config, spare_bytes, sum(cost.total for cost in costs.values()))
    size = most
    for ordinal, cost in costs.items():
        if size + cost.total > most:
            together.append([])
            size = 0
        together[-1].append(ordinal)
        size += cost.total
    return WindowPlan(
        window=window,
        starts=starts,
        spans=slice_spans(window, starts, config.order.lanes, config.first, config.last),
        bands=tuple(bands),
        texts=texts,
        costs=costs,
        tasks=tuple(_plan_task(index, window, costs, ordinals) for ordinals in together),
    )


def _size_of(index: DatasetIndex, groups: IntArray) -> ChunkSize:
    tokens, rows = index.tokens[groups], index.rows[groups]
    return ChunkSize(
        chunk_bytes=index.length[groups],
        slots=tokens + rows,
        tokens=tokens,
        rows=rows,
        itemsize=index.itemsizes(groups),
    )


def _plan_task(index: DatasetIndex, window: Window, costs: Mapping[int, GroupCost], ordinals: list[int]) -> TaskPlan:
    groups = window.groups[ordinals]
    places: list[tuple[int, int, int, tuple[int, int]]] = []
    for plane, each in enumerate(index.planes):
        where = (each.file[groups].tolist(), each.start[groups].tolist(), each.length[groups].tolist())
        places += zip(*where, ((plane, ordinal) for ordinal in ordinals), strict=True)
    reads: list[Read] = []
    gaps = begin = end = 0
    at = -1
    inside: list[tuple[int, int]] = []
    for file, start, length, chunk in sorted(places):
        gap = start - end
        if file == at and 0 <= gap <= _GAP_BYTES and gaps + gap <= TASK_BYTES:
            gaps += gap
        else:
            if inside:
                reads.append(Read(at, begin, end - begin, tuple(inside)))
            at, begin, inside = file, start, []
        inside.append(chunk)
        end = start + length
    reads.append(Read(at, begin, end - begin, tuple(inside)))
    return TaskPlan(tuple(ordinals), tuple(reads), sum(costs[ordinal].total for ordinal in ordinals) + gaps, gaps)
