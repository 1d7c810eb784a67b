"""The engine: a range of lanes of a run, from storage to rows of each of its sources. It knows nothing of ranks.

For each window it plans which row groups the lanes' stretch touches, and makes tasks of them for the prefetcher:

    task   read ──► decode a part ──► cut every band that it completes ──► the next part ... ──► release the chunk
    held   chunk    + part            + slices, text of bands                 - part             - chunk

When all tasks of a window have come out, its slices go to the packer, which gives their bytes back once the rows have
been copied from them. So what is held is fetched bytes, decoded parts and shuffled slices, and each is counted.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..blocks import IntArray, TokenArray, TokenPart
from ..errors import LoaderClosedError
from ..order.order import Order, Window
from .config import Counters, EngineConfig
from .cost import kept_by_threads, reserve_bytes
from .pack import Packer, Taken, WindowCursor, WindowSlices
from .plan import TaskPlan, WindowPlan, plan_window
from .prefetch import Budget, Prefetcher, Task
from .reserve import Reserve
from .slices import Band, BandText, Slices, cut_band

__all__ = ["Engine", "Lengths"]

# From which C on windows are permuted in rows of how many tokens.
Lengths = Sequence[tuple[int, int]]

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
        reserve: for row groups that hold more while they are decoded than was thought.
    """

    budget: Budget
    counters: Counters
    decoders: contextlib.AbstractContextManager[object]
    stop: threading.Event
    reserve: Reserve


class _WindowJob:
    """One window on its way: its tasks run on any threads, and put together the text of bands that lie in several."""

    def __init__(self, config: EngineConfig, plan: WindowPlan, shared: _Shared) -> None:
        self.plan = plan
        self._config = config
        self._shared = shared
        self._budget = shared.budget
        self._lock = threading.Lock()
        self._texts: dict[Band, BandText] = {}
        self._band_begins = [band.begin for band in plan.bands]
        self._band_ends = [band.end for band in plan.bands]

    @property
    def slices_bytes(self) -> int:
        """What stays held until the window is used up."""
        return sum(cost.slices for cost in self.plan.costs.values())

    def run(self, task: TaskPlan) -> tuple[_WindowJob, list[Slices]]:
        """Read and decode row groups, and cut every band that they complete."""
        slices: list[Slices] = []
        raws = self._read(task)
        with self._shared.decoders:
            tokens, fallbacks = self._decode(task, raws, slices)
        del raws
        self._budget.release(task.gap_bytes + sum(self.plan.costs[ordinal].fetch for ordinal in task.ordinals))
        counters = self._shared.counters
        with self._budget.lock:
            counters.reads += len(task.reads)
            counters.bytes_read += sum(read.length for read in task.reads)
            counters.row_groups += len(task.ordinals)
            counters.tokens_decoded += tokens
            counters.fallbacks += fallbacks
        return self, slices

    def _read(self, task: TaskPlan) -> dict[int, memoryview]:
        """The row groups' bytes, by ordinal."""
        index, groups = self._config.index, self.plan.window.groups
        raws = {}
        for read in task.reads:
            file = index.files[read.file]
            data = memoryview(self._config.storage.read(file, read.start, read.length, self._shared.stop))
            for ordinal in read.ordinals:
                begin = int(index.start[groups[ordinal]]) - read.start
                raws[ordinal] = data[begin : begin + int(index.length[groups[ordinal]])]
        return raws

    def _decode(self, task: TaskPlan, raws: Mapping[int, memoryview], slices: list[Slices]) -> tuple[int, int]:
        """Decode row groups and cut from them; returns (tokens that were decoded, row groups that fell back)."""
        config, plan = self._config, self.plan
        chunks = config.index.chunks(plan.window.groups[list(task.ordinals)])
        if len(chunks) > 1:
            part = config.format.decode_together(
                [raws[ordinal] for ordinal in task.ordinals],
                chunks,
                dtype=config.held_dtype,
                bound=config.bound,
                eos_id=config.eos_id,
            )
            if part is not None:
                # What lies between a task's row groups in the window has no tokens.
                self._cut_from(part, int(plan.window.offsets[task.ordinals[0]]), slices)
                return self._tokens(part), 0
        tokens = fallbacks = 0
        for ordinal, chunk in zip(task.ordinals, chunks, strict=True):
            origin = int(plan.window.offsets[ordinal])
            opened = config.format.open(raws[ordinal], chunk)
            cost = opened.cost_bytes(dtype=config.held_dtype, eos=config.eos_id is not None)
            parts = opened.parts(
                dtype=config.held_dtype,
                bound=config.bound,
                eos_id=config.eos_id,
                first=int(plan.starts[0]) - origin,
                last=int(plan.starts[-1]) - origin,
            )
            with self._shared.reserve.hold(cost - plan.costs[ordinal].decode, chunk):
                for part in parts:
                    tokens += self._tokens(part)
                    self._cut_from(part, origin + part.begin, slices)
                    del part  # not to be held while the next one is decoded
            fallbacks += bool(opened.fallback)
            del opened, parts
        return tokens, fallbacks

    def _tokens(self, part: TokenPart) -> int:
        """How many there are, without EOS."""
        return len(part.tokens) - (len(part.starts) if self._config.eos_id is not None else 0)

    def _cut_from(self, part: TokenPart, begin: int, slices: list[Slices]) -> None:
        """Cut the bands that a part, which begins there in the window, completes."""
        end = begin + len(part.tokens)
        starts = part.starts
        if (starts[1:] == starts[:-1]).any():  # empty documents, of which there may be more than tokens
            starts = starts[np.append(starts[1:] != starts[:-1], True)]
        bands = self.plan.bands
        # Bands follow each other: those that end behind the part's beginning and begin before its end.
        first_band = bisect.bisect_right(self._band_ends, begin)
        for number in range(first_band, bisect.bisect_left(self._band_begins, end)):
            band = bands[number]
            low, high = max(band.begin, begin), min(band.end, end)
            tokens = part.tokens[low - begin : high - begin]
            # A document that begins at the very end of the part is empty so far, and of whatever comes next.
            first, last = starts.searchsorted((band.begin - begin, band.end - begin)).tolist()
            documents = starts[first:last] + (begin - band.begin)
            if high - low == band.end - band.begin:
                slices.append(self._cut(band, tokens, documents))
            else:
                with self._lock:
                    text = self._texts.get(band)
                    if text is None:
                        text = self._texts[band] = BandText(band, self._config.held_dtype)
                text.tokens[low - band.begin : high - band.begin] = tokens
                with self._lock:
                    text.documents.append(documents)
                    text.missing -= high - low
                    if text.missing:
                        continue
                    del self._texts[band]
                slices.append(self._cut(band, text.tokens, np.concatenate(text.documents)))
                del text
            if band in self.plan.texts:
                self._budget.release(self.plan.texts[band])

    def _cut(self, band: Band, tokens: TokenArray, documents: IntArray) -> Slices:
        plan, first = self.plan, self._config.first
        return cut_band(
            band,
            tokens,
            documents,
            starts=plan.starts[band.first_lane - first : band.last_lane - first + 1],
            window=plan.window,
            order=self._config.order,
            spans=plan.spans,
            first_lane=first,
        )


class Engine:
    """The rows of a range of lanes, of one source or of several.

    Threads start with the first `rows`. An error or an interrupt of `rows` halts it: close it and make another.

    Args:
        sources: what it runs on. Budget and threads are the first one's, requests the most that one has;
            they serve all of them together.
        demand: the windows in the order in which rows will need them, each with its source's place in `sources`;
            a source's own windows in their order.
        lengths: of each source the tokens of a row, by window: (from which C on, tokens), rising; see `Order`.
        dtype: of rows.
        counters: where what it does is counted.
        least_bytes: the least budget with which this can work; of what there is beyond, a part is kept aside.
        reserved_bytes: of the budget, for whoever asks for rows.

    Attributes:
        pid: the process that its threads are in.
        halted: whether it is of no more use.
    """

    def __init__(
        self,
        sources: Sequence[EngineConfig],
        demand: Iterator[tuple[int, Window]],
        *,
        lengths: Sequence[Lengths],
        dtype: np.dtype[np.integer],
        counters: Counters,
        least_bytes: int,
        reserved_bytes: int = 0,
    ) -> None:
        self.pid = os.getpid()
        self.halted = False
        general = sources[0]
        reserve = reserve_bytes(sources, least_bytes)
        self.budget = Budget(general.budget_bytes - reserve)
        # No thread is there yet that would need a lock.
        self.budget.acquire(max(map(kept_by_threads, sources)) + reserved_bytes)
        # Nothing in here refers to the engine, so that it goes, threads and all, as soon as nobody holds it.
        requests = max(source.requests for source in sources)
        spare = requests > general.threads
        decoders = threading.Semaphore(general.threads) if spare else contextlib.nullcontext()
        self._shared = _Shared(self.budget, counters, decoders, threading.Event(), Reserve(reserve, self.budget))
        workers = max(general.threads, requests)
        self._prefetcher = Prefetcher(
            _tasks(sources, demand, self._shared, general.budget_bytes - least_bytes),
            self.budget,
            threads=workers,
            ahead_bytes=_AHEAD_BYTES,
            ahead_groups=_AHEAD_WINDOWS * workers,
            # Allocators keep freed memory for the thread that freed it: megabytes a thread, beyond any budget.
            rest=pa.default_memory_pool().release_unused,
        )
        self._packers: list[Packer] | None = [
            Packer(
                source.last - source.first,
                dtype,
                WindowCursor(
                    _windows_of(self._prefetcher, place, source.order, each),
                    functools.partial(self._prefetcher.ready, place),
                    self.budget.release,
                ),
            )
            for place, (source, each) in enumerate(zip(sources, lengths, strict=True))
        ]

    def rows(
        self,
        source: int,
        positions: IntArray | int,
        seq_len: int,
        overlap: int,
        *,
        ends: IntArray | None = None,
        out: TokenArray | None = None,
    ) -> tuple[TokenArray, list[Taken]]:
        """A source's rows; see `Packer.rows`."""
        if self._packers is None:
            raise LoaderClosedError("closed while a batch was waited for")
        return self._packers[source].rows(positions, seq_len, overlap, ends, out)

    def halt(self) -> None:
        """Let go of everything held, also where an error's traceback keeps the engine, and tell the threads to end."""
        self.halted = True
        self._packers = None
        self._shared.stop.set()
        self._prefetcher.halt()

    def close(self) -> None:
        """Halt, and wait until every thread has ended."""
        self.halt()
        self._prefetcher.close()


def _windows_of(
    prefetcher: Prefetcher[tuple[_WindowJob, list[Slices]]], place: int, order: Order, lengths: Lengths
) -> Callable[[], WindowSlices]:
    """What gives a source's next window, when its last task has come out of the prefetcher. Keeps no engine alive."""

    def next_window() -> WindowSlices:
        results = prefetcher.take(place)
        job = results[0][0]
        bands = sorted((band for _, bands in results for band in bands), key=lambda band: band.first)
        window = job.plan.window
        length = lengths[bisect.bisect_right(lengths, window.before, key=lambda change: change[0]) - 1][1]
        return WindowSlices.of(bands, job.plan.spans, order.step_blocks(window, length), job.slices_bytes)

    return next_window


def _tasks(
    sources: Sequence[EngineConfig], demand: Iterator[tuple[int, Window]], shared: _Shared, spare_bytes: int = 0
) -> Iterator[Task[tuple[_WindowJob, list[Slices]]]]:
    """The tasks of windows. A function, so that it keeps no engine alive."""
    for place, window in demand:
        plan = plan_window(sources[place], window, spare_bytes)
        # Where the window has no token for these lanes, there are no tasks.
        job = _WindowJob(sources[place], plan, shared)
        for task in plan.tasks:
            more = task is not plan.tasks[-1]
            yield Task(functools.partial(job.run, task), task.cost_bytes, more=more, stream=place)
