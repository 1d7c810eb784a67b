"""The reads and tasks of a window; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..blocks import IntArray
from ..index.index import DatasetIndex
from ..order.order import Window
from .config import EngineConfig
from .cost import TASK_BYTES, GroupCost, group_cost
from .slices import Part, Places, plan_parts, slice_places

__all__ = ["Read", "TaskPlan", "WindowPlan", "plan_window"]

# Chunks of one task that lie closer than this in a file are one read, as long as that reads no more for nothing than
# another TASK_BYTES.
_GAP_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Read:
    """One read: a byte range of a file, and the places in the window of the row groups whose chunks lie in it."""

    file: int
    start: int
    length: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Row groups that are read and decoded in one go.

    Attributes:
        places: the row groups' places in the window.
        reads: the reads that bring their chunks.
        cost_bytes: what must fit for the task to be admitted.
        gap_bytes: what is read beside the chunks.
    """

    places: tuple[int, ...]
    reads: tuple[Read, ...]
    cost_bytes: int
    gap_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowPlan:
    """What is to be done for one window.

    Attributes:
        window: the window.
        starts: where the lanes' slices begin in it, shape ``(lanes + 1,)``.
        places: where they lie in the lanes' streams.
        parts: how lanes are cut together.
        costs: of each row group that is needed, by its place in the window.
        tasks: all of `costs`, each once.
    """

    window: Window
    starts: IntArray
    places: Places
    parts: tuple[Part, ...]
    costs: Mapping[int, GroupCost]
    tasks: tuple[TaskPlan, ...]


def plan_window(config: EngineConfig, window: Window) -> WindowPlan:
    """Which row groups of a window the lanes need, in which tasks, at which cost."""
    index, offsets = config.index, window.offsets
    starts = window.slice_starts(config.order.lanes, config.first, config.last)
    parts = plan_parts(starts, offsets, config.first)
    inside = np.diff(np.clip(offsets, starts[0], starts[-1])).tolist()
    cuts = np.diff(np.searchsorted(starts, offsets)).tolist()
    joined = [0] * len(inside)
    for part in parts:
        if len(part.groups) > 1:
            for place in part.groups:
                joined[place] += min(part.end, int(offsets[place + 1])) - max(part.begin, int(offsets[place]))
    costs = {
        place: group_cost(
            config,
            chunk_bytes=int(index.length[group]),
            rows=int(index.rows[group]),
            tokens=int(index.tokens[group]),
            stored_itemsize=index.itemsize(group),
            inside=inside[place],
            joined=joined[place],
            cuts=cuts[place],
        )
        for place, group in enumerate(window.groups.tolist())
        if inside[place]
    }
    together: list[list[int]] = []
    size = TASK_BYTES
    for place, cost in costs.items():
        if size + cost.total > TASK_BYTES:
            together.append([])
            size = 0
        together[-1].append(place)
        size += cost.total
    return WindowPlan(
        window=window,
        starts=starts,
        places=slice_places(window, starts, config.order.lanes, config.first, config.last),
        parts=tuple(parts),
        costs=costs,
        tasks=tuple(_plan_task(index, window, costs, places) for places in together),
    )


def _plan_task(index: DatasetIndex, window: Window, costs: Mapping[int, GroupCost], places: list[int]) -> TaskPlan:
    def where(place: int) -> tuple[int, int, int]:
        group = window.groups[place]
        return int(index.file[group]), int(index.start[group]), int(index.length[group])

    reads: list[Read] = []
    gaps = 0
    for place in sorted(places, key=where):
        file, start, length = where(place)
        if reads and reads[-1].file == file:
            last = reads[-1]
            gap = start - last.start - last.length
            if 0 <= gap <= _GAP_BYTES and gaps + gap <= TASK_BYTES:
                gaps += gap
                reads[-1] = Read(file, last.start, start + length - last.start, (*last.places, place))
                continue
        reads.append(Read(file, start, length, (place,)))
    return TaskPlan(tuple(places), tuple(reads), sum(costs[place].total for place in places) + gaps, gaps)
