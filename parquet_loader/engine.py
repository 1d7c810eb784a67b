"""The engine: a range of lanes of a run, from storage to rows. It knows nothing of ranks.

For each window it plans which row groups the lanes' stretch touches, and makes tasks of them for the prefetcher:

    task   read ──► decode ──► cut every part that is now whole ──► release the row groups no part needs any more
    held   chunk    + block    + slices                             - chunk - block

When all tasks of a window have come out, its slices go to the packer, which gives their bytes back once the rows have
been copied from them. So what is held is fetched bytes, decoded blocks and shuffled slices, and each is counted.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from .chunk import IntArray, TokenArray, TokenBlock
from .decode import append_eos, cast_tokens, decode_chunk, decode_cost
from .index import DatasetIndex
from .order import Order, Window
from .pack import Packer, Span, WindowSlices, lane_runs
from .prefetch import Budget, Prefetcher, Task
from .slices import PART_TOKENS, LaneSlices, Part, cut_part, plan_parts
from .storage import Storage

__all__ = ["Engine", "EngineConfig", "required_bytes"]

# Row groups that follow each other and hold less than this together are one task: tiny ones do not cost a task each.
_TASK_BYTES = 1 << 20
# Chunks of one task that lie closer than this in a file are one read, as long as that reads no more for nothing than
# another _TASK_BYTES.
_GAP_BYTES = 64 << 10
_BORDER_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineConfig:
    """What an engine runs on.

    Attributes:
        index, storage, order: the dataset and its order.
        first, last: the lanes ``[first, last)``.
        dtype: of the rows.
        bound: one past the largest token id allowed.
        eos_id: appended to every document where it is not None.
        threads: tasks run at once.
        budget_bytes: the most that is ever held.
    """

    index: DatasetIndex
    storage: Storage
    order: Order
    first: int
    last: int
    dtype: np.dtype[np.integer]
    bound: int
    eos_id: int | None
    threads: int
    budget_bytes: int


@dataclass(slots=True)
class Counters:
    """What an engine has done; added to under `lock`, read at any time."""

    bytes_read: int = 0
    reads: int = 0
    row_groups: int = 0
    tokens_decoded: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, bytes_read: int = 0, reads: int = 0, row_groups: int = 0, tokens_decoded: int = 0) -> None:
        """Count, from any thread."""
        with self.lock:
            self.bytes_read += bytes_read
            self.reads += reads
            self.row_groups += row_groups
            self.tokens_decoded += tokens_decoded


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Bytes that a row group holds on its way.

    Attributes:
        fetch: its chunk, and what decoding needs beside chunk and block; released once decoded.
        block: the decoded block, and what cutting it needs; released when the last part that lies in it is cut.
        slices: its share of the slices; released when the window has been used up.
    """

    fetch: int
    block: int
    slices: int

    @property
    def total(self) -> int:
        """What must fit for the row group's task to be admitted."""
        return self.fetch + self.block + self.slices


def group_cost(config: EngineConfig, group: int, inside: int, joined: int) -> GroupCost:
    """The cost of a row group.

    Args:
        config: what it is decoded for.
        group: its number in the index.
        inside: tokens of it that the lanes take.
        joined: those of them that are in parts which lie in several row groups.
    """
    index, itemsize = config.index, config.dtype.itemsize
    rows, tokens, chunk = int(index.rows[group]), int(index.tokens[group]), int(index.length[group])
    native = index.itemsize(group)
    peak, kept = decode_cost(chunk_bytes=chunk, tokens=tokens, rows=rows, itemsize=native)
    block = int(config.order.group_tokens[group]) * itemsize + (rows + 1) * _BORDER_BYTES
    if config.eos_id is not None:  # a block without EOS, the joined one, and the offsets that pyarrow joins by
        peak = max(peak, chunk + kept + tokens * itemsize + block + (rows + 1) * 2 * _BORDER_BYTES)
    elif native != itemsize:
        peak = max(peak, chunk + kept + block)
    documents = min(rows, inside) + config.last - config.first + 1
    # Cutting makes borders, words, a permutation and offsets, each of one number a document.
    cutting = joined * itemsize + documents * 5 * _BORDER_BYTES
    return GroupCost(
        fetch=max(peak - block, chunk),
        block=block + cutting,
        slices=inside * itemsize + documents * _BORDER_BYTES,
    )


def required_bytes(config: EngineConfig, window: int) -> int:
    """A budget within which any window of so many row groups can be loaded, whichever row groups it consists of.

    While the consumer waits for a window, what is held is slices of that window, the blocks of the one part that lies
    across the border to the next task, and that task.
    """
    index, order, lanes = config.index, config.order, config.last - config.first
    tokens, itemsize = order.group_tokens, config.dtype.itemsize
    window = min(window, len(tokens))
    window_tokens = int(np.partition(tokens, -window)[-window:].sum())
    window_rows = int(np.partition(index.rows, -window)[-window:].sum())
    share = min(window_tokens, window_tokens * lanes // order.lanes + lanes)
    slices = share * itemsize + (min(window_rows, share) + window * (lanes + 1)) * _BORDER_BYTES
    part = min(window_tokens, max(PART_TOKENS, window_tokens // order.lanes + 1))
    lies_in = min(window_tokens, part + 2 * int(tokens.max()))
    documents = min(window_rows, lies_in) + window * (lanes + 1)
    across = (lies_in + part) * itemsize + documents * 6 * _BORDER_BYTES
    task = max(group_cost(config, group, int(tokens[group]), int(tokens[group])).total for group in _costliest(config))
    return slices + across + max(task, 2 * _TASK_BYTES)


def _costliest(config: EngineConfig) -> set[int]:
    """Row groups among which the costliest is, or one as good as it: a million need not be looked at one by one."""
    index = config.index
    measures = (index.length, index.rows, index.tokens, config.order.group_tokens)
    return {int(place) for measure in measures for place in np.argsort(measure)[-8:]}


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
        parts: how lanes are cut together.
        costs: of each row group that is needed, by its place in the window.
        tasks: all of `costs`, each once.
    """

    window: Window
    starts: IntArray
    parts: tuple[Part, ...]
    costs: Mapping[int, GroupCost]
    tasks: tuple[TaskPlan, ...]


def plan_window(config: EngineConfig, window: Window) -> WindowPlan:
    """Which row groups of a window the lanes need, in which tasks, at which cost."""
    starts = window.slice_starts(config.order.lanes, config.first, config.last)
    parts = plan_parts(starts, window.offsets, config.first)
    inside = dict.fromkeys(range(len(window.groups)), 0)
    joined = dict(inside)
    for part in parts:
        for place in part.groups:
            tokens = min(part.end, int(window.offsets[place + 1])) - max(part.begin, int(window.offsets[place]))
            inside[place] += tokens
            joined[place] += tokens if len(part.groups) > 1 else 0
    costs = {
        place: group_cost(config, int(window.groups[place]), tokens, joined[place])
        for place, tokens in inside.items()
        if tokens
    }
    together: list[list[int]] = []
    size = _TASK_BYTES
    for place, cost in costs.items():
        if size + cost.total > _TASK_BYTES:
            together.append([])
            size = 0
        together[-1].append(place)
        size += cost.total
    return WindowPlan(
        window=window,
        starts=starts,
        parts=tuple(parts),
        costs=costs,
        tasks=tuple(_plan_task(config.index, window, costs, places) for places in together),
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
            if 0 <= gap <= _GAP_BYTES and gaps + gap <= _TASK_BYTES:
                gaps += gap
                reads[-1] = Read(file, last.start, start + length - last.start, (*last.places, place))
                continue
        reads.append(Read(file, start, length, (place,)))
    return TaskPlan(tuple(places), tuple(reads), sum(costs[place].total for place in places) + gaps, gaps)


class _WindowJob:
    """One window on its way: its tasks run on any threads, and share the blocks of parts that lie in several."""

    def __init__(self, config: EngineConfig, plan: WindowPlan, budget: Budget, counters: Counters) -> None:
        self.plan = plan
        self._config = config
        self._budget = budget
        self._counters = counters
        self._lock = threading.Lock()
        self._blocks: dict[int, TokenBlock] = {}
        self._needs = {part: {place for place in part.groups if place in plan.costs} for part in plan.parts}
        self._parts_of: dict[int, list[Part]] = {place: [] for place in plan.costs}
        for part, places in self._needs.items():
            for place in places:
                self._parts_of[place].append(part)

    @property
    def slices_bytes(self) -> int:
        """What stays held until the window is used up."""
        return sum(cost.slices for cost in self.plan.costs.values())

    def run(self, task: TaskPlan) -> list[LaneSlices]:
        """Read and decode row groups, and cut every part that is whole with them."""
        for read in task.reads:
            self._decode(read)
        self._budget.release(task.gap_bytes + sum(self.plan.costs[place].fetch for place in task.places))
        return [self._cut(part) for part in self._whole_with(task.places)]

    def _decode(self, read: Read) -> None:
        config = self._config
        data = memoryview(config.storage.read(config.index.files[read.file], read.start, read.length))
        self._counters.add(bytes_read=read.length, reads=1)
        for place in read.places:
            chunk = config.index.chunk(int(self.plan.window.groups[place]))
            begin = chunk.start - read.start
            block = decode_chunk(data[begin : begin + chunk.length], chunk)
            self._counters.add(row_groups=1, tokens_decoded=len(block.tokens))
            block = cast_tokens(block, config.dtype, config.bound, chunk)
            if config.eos_id is not None:
                block = append_eos(block, config.eos_id)
            with self._lock:
                self._blocks[place] = block

    def _whole_with(self, places: tuple[int, ...]) -> list[Part]:
        """Parts that need one of these row groups and no other that is not there. Each part is told once."""
        ready = []
        with self._lock:
            for part in dict.fromkeys(part for place in places for part in self._parts_of[place]):
                if part in self._needs and all(place in self._blocks for place in self._needs[part]):
                    del self._needs[part]
                    ready.append(part)
        return ready

    def _cut(self, part: Part) -> LaneSlices:
        plan, first = self.plan, self._config.first
        with self._lock:
            blocks = {place: self._blocks[place] for place in part.groups if place in self._blocks}
        starts = plan.starts[part.first_lane - first : part.last_lane - first + 1]
        slices = cut_part(part, starts, plan.window, self._config.order, blocks)
        blocks.clear()
        released = 0
        with self._lock:
            for place in part.groups:
                parts = self._parts_of.get(place)
                if parts is not None:
                    parts.remove(part)
                    if not parts:
                        del self._blocks[place]
                        released += plan.costs[place].block
        self._budget.release(released)
        return slices


class Engine:
    """The rows of a range of lanes, from a position on.

    Threads start with the first `rows`. After an error an engine is of no more use: close it and make another.

    Args:
        config: what it runs on.
        position: tokens each lane has consumed.
        counters: where what it does is counted.
    """

    def __init__(self, config: EngineConfig, position: int, counters: Counters) -> None:
        self.pid = os.getpid()
        self._config = config
        self._position = position
        self._counters = counters
        self.budget = Budget(config.budget_bytes)
        # Windows whose tasks have been given to the prefetcher and whose slices have not been taken from it.
        self._jobs: deque[_WindowJob] = deque()
        self._prefetcher: Prefetcher[list[LaneSlices]] | None = None
        self._packer = Packer(config.last - config.first, config.dtype, self._next_window, self.budget.release)

    def rows(self, positions: IntArray, seq_len: int, overlap: int) -> tuple[TokenArray, list[Span]]:
        """See `Packer.rows`."""
        if self._prefetcher is None:
            config = self._config
            self._prefetcher = Prefetcher(
                _tasks(config, self._position, self.budget, self._counters, self._jobs),
                self.budget,
                threads=config.threads,
                # Two windows ahead is more than a consumer can use up while the next is made; where windows are tiny,
                # enough that no thread idles.
                ahead=2 * config.order.window + 4 * config.threads,
            )
        return self._packer.rows(positions, seq_len, overlap)

    def _next_window(self) -> WindowSlices:
        assert self._prefetcher is not None
        parts: list[LaneSlices] = []
        remaining = None
        while remaining != 0:
            # The first result of a window comes out after its job was put in line.
            parts += self._prefetcher.take()
            remaining = len(self._jobs[0].plan.tasks) - 1 if remaining is None else remaining - 1
        job = self._jobs.popleft()
        config, window = self._config, job.plan.window
        parts.sort(key=lambda part: part.first_lane)
        lanes = config.order.lanes
        return WindowSlices(
            runs=lane_runs(parts, window, lanes, config.first, config.last),
            ends=window.lane_begins(lanes, config.first, config.last) + np.diff(job.plan.starts),
            held_bytes=job.slices_bytes,
        )

    def close(self) -> None:
        """End every thread and let go of everything held."""
        if self._prefetcher is not None:
            self._prefetcher.close()


def _tasks(
    config: EngineConfig, position: int, budget: Budget, counters: Counters, jobs: deque[_WindowJob]
) -> Iterator[Task[list[LaneSlices]]]:
    """The tasks of the windows from a position on, without end. A function, so that it keeps no engine alive."""
    # Of these lanes the last is the first to need a window.
    for window in config.order.windows(position, config.last - 1):
        plan = plan_window(config, window)
        if not plan.tasks:
            continue  # the window has no token for these lanes
        job = _WindowJob(config, plan, budget, counters)
        jobs.append(job)
        for task in plan.tasks:
            yield Task(functools.partial(job.run, task), task.cost_bytes)
