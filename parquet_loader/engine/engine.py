"""The engine: a range of lanes of a run, from storage to rows. It knows nothing of ranks.

For each window it plans which row groups the lanes' stretch touches, and makes tasks of them for the prefetcher:

    task   read ──► decode ──► cut every part that is now whole ──► release the row groups no part needs any more
    held   chunk    + block    + slices                             - chunk - block

When all tasks of a window have come out, its slices go to the packer, which gives their bytes back once the rows have
been copied from them. So what is held is fetched bytes, decoded blocks and shuffled slices, and each is counted.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import LoaderClosedError
from ..formats.base import IntArray, TokenArray, TokenBlock
from ..formats.parquet.decode import append_eos, decode_chunk, decode_cost
from ..formats.parquet.pages import kept_bytes
from ..index.index import DatasetIndex
from ..order.order import Order, Window
from ..storage.base import Storage
from .pack import Packer, Taken, WindowSlices
from .prefetch import Budget, Prefetcher, Task
from .slices import PART_TOKENS, Part, Places, Slices, cut_part, plan_parts, slice_places

__all__ = ["Engine", "EngineConfig", "required_bytes"]

# Row groups that follow each other and hold less than this together are one task: tiny ones do not cost a task each.
_TASK_BYTES = 1 << 20
# Chunks of one task that lie closer than this in a file are one read, as long as that reads no more for nothing than
# another _TASK_BYTES.
_GAP_BYTES = 64 << 10
_BORDER_BYTES = 8
_OBJECTS_BYTES = 1 << 10  # the Python objects around the arrays of a block or a part
_GROUP_BYTES = 4 << 10  # more than what does not depend on a row group's size in `GroupCost.block`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineConfig:
    """What an engine runs on.

    Attributes:
        index, storage, order: the dataset and its order.
        first, last: the lanes ``[first, last)``.
        dtype: of the rows.
        held_dtype: of blocks and slices: narrower where all ids fit, which halves memory and its traffic.
        bound: one past the largest token id allowed; fits `held_dtype`.
        eos_id: appended to every document where it is not None.
        threads: row groups decoded at once.
        requests: row groups read at once.
        budget_bytes: the most that is ever held.
        epochs: no more than these are read; None for no end.
    """

    index: DatasetIndex
    storage: Storage
    order: Order
    first: int
    last: int
    dtype: np.dtype[np.integer]
    held_dtype: np.dtype[np.integer]
    bound: int
    eos_id: int | None
    threads: int
    requests: int
    budget_bytes: int
    epochs: int | None = None


@dataclass(slots=True)
class Counters:
    """What engines have done. Added to under their budget's lock: a lock of its own might be held by a thread that a
    forked child does not have.
    """

    bytes_read: int = 0
    reads: int = 0
    row_groups: int = 0
    tokens_decoded: int = 0
    fallbacks: int = 0


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


def group_cost(
    config: EngineConfig,
    *,
    chunk_bytes: int,
    rows: int,
    tokens: int,
    stored_itemsize: int,
    inside: int,
    joined: int,
    cuts: int,
) -> GroupCost:
    """The cost of a row group; it never falls where a number rises.

    Args:
        config: what it is decoded for.
        chunk_bytes, rows, tokens: of the row group, tokens without EOS.
        stored_itemsize: bytes that a token takes as it is stored.
        inside: tokens of it that the lanes take.
        joined: those of them that are in parts which lie in several row groups.
        cuts: lane borders that fall in it.
    """
    itemsize, offsets = config.held_dtype.itemsize, (rows + 1) * _BORDER_BYTES
    peak, block = decode_cost(chunk_bytes=chunk_bytes, tokens=tokens, rows=rows, itemsize=stored_itemsize)
    if stored_itemsize != itemsize:
        cast = tokens * itemsize + offsets + _OBJECTS_BYTES
        peak = max(peak, chunk_bytes + block + cast)
        block = cast
    if config.eos_id is not None:  # a block without EOS, the joined one, and the offsets that pyarrow joins by
        joined_block = (tokens + rows) * itemsize + offsets + _OBJECTS_BYTES
        peak = max(peak, chunk_bytes + block + joined_block + 2 * offsets)
        block = joined_block
    documents = min(rows, inside) + 1 + cuts
    # Cutting makes borders, words, a permutation and offsets, some of each at once.
    cutting = joined * itemsize + documents * 6 * _BORDER_BYTES + _OBJECTS_BYTES
    return GroupCost(
        fetch=max(peak - block, chunk_bytes),
        block=block + cutting,
        # Where documents begin is there twice while the parts' are put together.
        slices=inside * itemsize + (documents + cuts) * 2 * _BORDER_BYTES,
    )


def required_bytes(config: EngineConfig, window: int) -> int:
    """A budget within which any window of so many row groups can be loaded, whichever row groups it consists of.

    While the consumer waits for a task, what is held is the window's slices so far, the blocks of the one part that
    lies across the border to that task, and the task:

        row groups   │ slices │ slices │ slices + block ┊ slices + block + fetch
                                             └──── one part ────┘
    """
    index, order, lanes = config.index, config.order, config.last - config.first
    window = min(window, len(index))
    ascending, most_rows, most_tokens = (np.sort(x) for x in (order.group_tokens, index.rows, index.tokens))
    window_tokens, window_rows = int(ascending[-window:].sum()), int(most_rows[-window:].sum())
    share = min(window_tokens, window_tokens * lanes // order.lanes + lanes)
    documents = min(window_rows, share) + window + 2 * lanes + 2
    slices = share * config.held_dtype.itemsize + documents * 2 * _BORDER_BYTES
    part = min(share, max(PART_TOKENS, window_tokens // order.lanes + 1))

    def held(chunk_bytes: int, rows: int, tokens: int) -> GroupCost:
        inside = min(tokens + rows, share)
        return group_cost(
            config,
            chunk_bytes=chunk_bytes,
            rows=rows,
            tokens=tokens,
            stored_itemsize=max(layout.dtype.itemsize for layout in index.layouts),
            inside=inside,
            joined=min(inside, 2 * part),
            cuts=lanes + 1,
        )

    # The part holds an end of one row group and the whole of as many others as fit into it.
    groups = min(window - 1, 1 + int(np.searchsorted(np.cumsum(ascending), part, side="right")))
    across = 0
    if groups:
        tokens = min(int(most_tokens[-1]) + part, int(most_tokens[-groups:].sum()))
        across = held(0, int(most_rows[-groups:].sum()), tokens).block + groups * _GROUP_BYTES
    task = held(int(index.length.max()), int(most_rows[-1]), int(most_tokens[-1]))
    return _kept_by_threads(config) + slices + across + max(task.fetch + task.block, 2 * _TASK_BYTES)


def _kept_by_threads(config: EngineConfig) -> int:
    """What decoding threads keep from task to task."""
    return config.threads * kept_bytes(int(config.index.slots.max()))


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
            if 0 <= gap <= _GAP_BYTES and gaps + gap <= _TASK_BYTES:
                gaps += gap
                reads[-1] = Read(file, last.start, start + length - last.start, (*last.places, place))
                continue
        reads.append(Read(file, start, length, (place,)))
    return TaskPlan(tuple(places), tuple(reads), sum(costs[place].total for place in places) + gaps, gaps)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all of an engine's threads share.

    Attributes:
        budget: of bytes.
        counters: changed under the budget's lock.
        decoders: held while decoding and cutting: more threads wait for storage than there are cores to decode on.
        stop: set when nothing is wanted any more.
    """

    budget: Budget
    counters: Counters
    decoders: contextlib.AbstractContextManager[object]
    stop: threading.Event


class _WindowJob:
    """One window on its way: its tasks run on any threads, and share the blocks of parts that lie in several."""

    def __init__(self, config: EngineConfig, plan: WindowPlan, shared: _Shared) -> None:
        self.plan = plan
        self._config = config
        self._shared = shared
        self._budget = shared.budget
        self._lock = threading.Lock()
        self._blocks: dict[int, TokenBlock] = {}
        self._parts_of: dict[int, list[Part]] = {place: [] for place in plan.costs}
        self._missing: dict[Part, int] = {}  # row groups that a part needs and that are not decoded
        for part in plan.parts:
            places = [place for place in part.groups if place in plan.costs]
            self._missing[part] = len(places)
            for place in places:
                self._parts_of[place].append(part)
        self._uncut = {place: len(parts) for place, parts in self._parts_of.items()}

    @property
    def slices_bytes(self) -> int:
        """What stays held until the window is used up."""
        return sum(cost.slices for cost in self.plan.costs.values())

    def run(self, task: TaskPlan) -> tuple[_WindowJob, list[Slices]]:
        """Read and decode row groups, and cut every part that is whole with them."""
        for read in task.reads:
            file = self._config.index.files[read.file]
            data = self._config.storage.read(file, read.start, read.length, self._shared.stop)
            with self._shared.decoders:
                self._decode(read, memoryview(data))
            del data
        self._budget.release(task.gap_bytes + sum(self.plan.costs[place].fetch for place in task.places))
        whole = self._whole_with(task.places)
        with self._shared.decoders:
            return self, [self._cut(part) for part in whole]

    def _decode(self, read: Read, data: memoryview) -> None:
        config, counters = self._config, self._shared.counters
        tokens = 0
        fallbacks: list[str] = []
        for place in read.places:
            chunk = config.index.chunk(int(self.plan.window.groups[place]))
            begin = chunk.start - read.start
            block = decode_chunk(
                data[begin : begin + chunk.length],
                chunk,
                dtype=config.held_dtype,
                bound=config.bound,
                on_fallback=fallbacks.append,
            )
            tokens += len(block.tokens)
            if config.eos_id is not None:
                block = append_eos(block, config.eos_id)
            with self._lock:
                self._blocks[place] = block
        with self._budget.lock:
            counters.reads += 1
            counters.bytes_read += read.length
            counters.row_groups += len(read.places)
            counters.tokens_decoded += tokens
            counters.fallbacks += len(fallbacks)

    def _whole_with(self, places: tuple[int, ...]) -> list[Part]:
        """Parts that have missed nothing but these row groups. Each part is told once."""
        whole = []
        with self._lock:
            for part in (part for place in places for part in self._parts_of[place]):
                self._missing[part] -= 1
                if not self._missing[part]:
                    whole.append(part)
        return whole

    def _cut(self, part: Part) -> Slices:
        plan, first = self.plan, self._config.first
        with self._lock:
            blocks = {place: self._blocks[place] for place in part.groups if place in self._blocks}
        starts = plan.starts[part.first_lane - first : part.last_lane - first + 1]
        slices = cut_part(part, starts, plan.window, self._config.order, blocks, places=plan.places, first_lane=first)
        places = list(blocks)
        blocks.clear()
        released = 0
        with self._lock:
            for place in places:
                self._uncut[place] -= 1
                if not self._uncut[place]:
                    del self._blocks[place]
                    released += plan.costs[place].block
        self._budget.release(released)
        return slices


class _WindowStream:
    """The windows from a position on, each when its last task has come out of the prefetcher."""

    def __init__(self, config: EngineConfig, position: int, shared: _Shared) -> None:
        self._config = config
        self._shared = shared
        self._prefetcher = Prefetcher(
            _tasks(config, position, shared),
            shared.budget,
            threads=max(config.threads, config.requests),
            # Two windows ahead is more than a consumer can use up while the next is made; where windows are tiny,
            # enough that no thread idles.
            ahead=2 * config.order.window + 4 * max(config.threads, config.requests),
            # Allocators keep freed memory for the thread that freed it: megabytes a thread, beyond any budget.
            rest=pa.default_memory_pool().release_unused,
        )

    def next(self) -> WindowSlices:
        """The next window's slices."""
        results = self._prefetcher.take()
        job = results[0][0]
        parts = sorted((part for _, parts in results for part in parts), key=lambda part: part.first)
        return WindowSlices.of(parts, job.plan.places, job.slices_bytes)

    def ready(self) -> bool:
        """Whether `next` would not have to wait."""
        return self._prefetcher.ready()

    def halt(self) -> None:
        self._shared.stop.set()
        self._prefetcher.halt()

    def close(self) -> None:
        self._prefetcher.close()


class Engine:
    """The rows of a range of lanes, from a position on.

    Threads start with the first `rows`. An error or an interrupt of `rows` halts it: close it and make another.

    Args:
        config: what it runs on.
        position: tokens each lane has consumed.
        counters: where what it does is counted.

    Attributes:
        pid: the process that its threads are in.
        halted: whether it is of no more use.
    """

    def __init__(self, config: EngineConfig, position: int, counters: Counters) -> None:
        self.pid = os.getpid()
        self.halted = False
        self.budget = Budget(config.budget_bytes)
        self.budget.acquire(_kept_by_threads(config))  # no thread is there yet that would need a lock
        # Nothing in here refers to the engine, so that it goes, threads and all, as soon as nobody holds it.
        spare = config.requests > config.threads
        decoders = threading.Semaphore(config.threads) if spare else contextlib.nullcontext()
        self._windows = _WindowStream(config, position, _Shared(self.budget, counters, decoders, threading.Event()))
        self._packer: Packer | None = Packer(
            config.last - config.first, config.dtype, self._windows.next, self._windows.ready, self.budget.release
        )

    def rows(
        self, positions: IntArray, seq_len: int, overlap: int, ends: IntArray | None = None
    ) -> tuple[TokenArray, list[Taken]]:
        """See `Packer.rows`."""
        if self._packer is None:
            raise LoaderClosedError("closed while a batch was waited for")
        return self._packer.rows(positions, seq_len, overlap, ends)

    def halt(self) -> None:
        """Let go of everything held, also where an error's traceback keeps the engine, and tell the threads to end."""
        self.halted = True
        self._packer = None
        self._windows.halt()

    def close(self) -> None:
        """Halt, and wait until every thread has ended."""
        self.halt()
        self._windows.close()


def _tasks(config: EngineConfig, position: int, shared: _Shared) -> Iterator[Task[tuple[_WindowJob, list[Slices]]]]:
    """The tasks of the windows from a position on. A function, so that it keeps no engine alive."""
    # Of these lanes the last is the first to need a window.
    for window in config.order.windows(position, config.last - 1):
        if config.epochs is not None and window.epoch >= config.epochs:
            return
        plan = plan_window(config, window)
        # Where the window has no token for these lanes, there are no tasks.
        job = _WindowJob(config, plan, shared)
        for task in plan.tasks:
            yield Task(functools.partial(job.run, task), task.cost_bytes, more=task is not plan.tasks[-1])
