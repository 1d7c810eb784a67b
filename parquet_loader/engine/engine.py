"""The engine: a range of lanes of a run, from storage to rows. It knows nothing of ranks.

For each window it plans which row groups the lanes' stretch touches, and makes tasks of them for the prefetcher:

    task   read ──► decode ──► cut every complete band ──► release row groups that no band needs any more
    held   chunk    + block    + slices                    - chunk - block

When all tasks of a window have come out, its slices go to the packer, which gives their bytes back once the rows have
been copied from them. So what is held is fetched bytes, decoded blocks and shuffled slices, and each is counted.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from ..blocks import IntArray, TokenArray, TokenBlock, append_eos
from ..errors import LoaderClosedError
from .config import Counters, EngineConfig
from .cost import kept_by_threads
from .pack import Packer, Taken, WindowCursor, WindowSlices
from .plan import Read, TaskPlan, WindowPlan, plan_window
from .prefetch import Budget, Prefetcher, Task
from .slices import Band, Slices, cut_band

__all__ = ["Engine"]
# Beside the window in use and the next one, further ones are read ahead as long as all that is ahead costs no more than
# this, about two megabytes of files: otherwise threads idle and requests wait for each other where windows are tiny.
# No more than so many for each thread, either: a tiny set would be read for a thousand epochs.
_AHEAD_BYTES = 16 << 20
_AHEAD_WINDOWS = 4


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
    """One window on its way: its tasks run on any threads, and share the blocks of bands that lie in several."""

    def __init__(self, config: EngineConfig, plan: WindowPlan, shared: _Shared) -> None:
        self.plan = plan
        self._config = config
        self._shared = shared
        self._budget = shared.budget
        self._lock = threading.Lock()
        self._blocks: dict[int, TokenBlock] = {}
        self._bands_of: dict[int, list[Band]] = {ordinal: [] for ordinal in plan.costs}
        self._missing: dict[Band, int] = {}  # row groups that a band needs and that are not decoded
        for band in plan.bands:
            ordinals = [ordinal for ordinal in band.groups if ordinal in plan.costs]
            self._missing[band] = len(ordinals)
            for ordinal in ordinals:
                self._bands_of[ordinal].append(band)
        self._uncut = {ordinal: len(bands) for ordinal, bands in self._bands_of.items()}

    @property
    def slices_bytes(self) -> int:
        """What stays held until the window is used up."""
        return sum(cost.slices for cost in self.plan.costs.values())

    def run(self, task: TaskPlan) -> tuple[_WindowJob, list[Slices]]:
        """Read and decode row groups, and cut every band that they complete."""
        for read in task.reads:
            file = self._config.index.files[read.file]
            data = self._config.storage.read(file, read.start, read.length, self._shared.stop)
            with self._shared.decoders:
                self._decode(read, memoryview(data))
            del data
        self._budget.release(task.gap_bytes + sum(self.plan.costs[ordinal].fetch for ordinal in task.ordinals))
        completed = self._completed_by(task.ordinals)
        with self._shared.decoders:
            return self, [self._cut(band) for band in completed]

    def _decode(self, read: Read, data: memoryview) -> None:
        config, counters = self._config, self._shared.counters
        tokens = 0
        fallbacks: list[str] = []
        for ordinal in read.ordinals:
            chunk = config.index.chunk(int(self.plan.window.groups[ordinal]))
            begin = chunk.start - read.start
            block = config.format.decode(
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
                self._blocks[ordinal] = block
        with self._budget.lock:
            counters.reads += 1
            counters.bytes_read += read.length
            counters.row_groups += len(read.ordinals)
            counters.tokens_decoded += tokens
            counters.fallbacks += len(fallbacks)

    def _completed_by(self, ordinals: tuple[int, ...]) -> list[Band]:
        """Bands that lacked only these row groups. Each band is returned once."""
        completed = []
        with self._lock:
            for band in (band for ordinal in ordinals for band in self._bands_of[ordinal]):
                self._missing[band] -= 1
                if not self._missing[band]:
                    completed.append(band)
        return completed

    def _cut(self, band: Band) -> Slices:
        plan, first = self.plan, self._config.first
        with self._lock:
            blocks = {ordinal: self._blocks[ordinal] for ordinal in band.groups if ordinal in self._blocks}
        starts = plan.starts[band.first_lane - first : band.last_lane - first + 1]
        slices = cut_band(band, starts, plan.window, self._config.order, blocks, spans=plan.spans, first_lane=first)
        ordinals = list(blocks)
        blocks.clear()
        released = 0
        with self._lock:
            for ordinal in ordinals:
                self._uncut[ordinal] -= 1
                if not self._uncut[ordinal]:
                    del self._blocks[ordinal]
                    released += plan.costs[ordinal].block
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
            ahead_bytes=_AHEAD_BYTES,
            ahead_groups=_AHEAD_WINDOWS * max(config.threads, config.requests),
            # Allocators keep freed memory for the thread that freed it: megabytes a thread, beyond any budget.
            rest=pa.default_memory_pool().release_unused,
        )

    def next(self) -> WindowSlices:
        """The next window's slices."""
        results = self._prefetcher.take()
        job = results[0][0]
        bands = sorted((band for _, bands in results for band in bands), key=lambda band: band.first)
        return WindowSlices.of(bands, job.plan.spans, job.slices_bytes)

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
        self.budget.acquire(kept_by_threads(config))  # no thread is there yet that would need a lock
        # Nothing in here refers to the engine, so that it goes, threads and all, as soon as nobody holds it.
        spare = config.requests > config.threads
        decoders = threading.Semaphore(config.threads) if spare else contextlib.nullcontext()
        self._windows = _WindowStream(config, position, _Shared(self.budget, counters, decoders, threading.Event()))
        cursor = WindowCursor(self._windows.next, self._windows.ready, self.budget.release)
        self._packer: Packer | None = Packer(config.last - config.first, config.dtype, cursor)

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
