"""The engine: a range of lanes of a run, from storage to rows of each of its sources. It knows nothing of ranks.

For each window it plans which row groups the lanes' stretch touches, and makes tasks of them for the prefetcher:

    task   read ──► decode a part ──► cut every band that it completes ──► the next part ... ──► release the chunk
    held   chunk    + part            + slices, text of bands                 - part             - chunk

A task is done by the thread that has it (`task.run_task`), or by a helper of it, a process (`processes`); what it is
admitted with and gives back is the same. When all tasks of a window have come out, its slices go to the packer, which
gives their bytes back once the rows have been copied from them. So what is held is fetched bytes, decoded parts and
shuffled slices, and each is counted.
"""

from __future__ import annotations

import bisect
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..blocks import IntArray, TokenArray
from ..checkpoint import ONLY
from ..errors import ConfigError, DataError, LoaderClosedError, of_file_below
from ..formats.base import STREAM_DOCUMENT_TOKENS, ColumnChunk
from ..index.follow import Follower
from ..order.order import Order, StepBlocks, Window
from ..turns import Decoders
from .config import CAUSES, Counters, EngineConfig
from .cost import beyond_bytes, documents_bytes, kept_by_threads, reserve_bytes
from .growth import Sealed, check_outgrown
from .pack import Origins, Packer, WindowCursor, WindowSlices
from .plan import TaskPlan, WindowPlan, plan_window
from .prefetch import Budget, Clock, Pause, Prefetcher, Task
from .processes import Helpers
from .reserve import Reserve
from .rows import BOUNDARIES, WholeRows
from .segments import Segment, SegmentPool
from .slices import BandText, Slices
from .task import run_task
from .wire import Answer, BandWork, Piece
from .work import Cuts, SourceWork, TaskWork, WindowWork, planes_bytes, planes_of

__all__ = ["AHEAD_BYTES", "AHEAD_WINDOWS", "Drawn", "Engine", "Lengths", "segments_bytes"]

# From which C on windows are permuted in rows of how many tokens.
Lengths = Sequence[tuple[int, int]]

# Beside the window in use and the next one, further ones are read ahead as long as all that is ahead costs no more than
# this, about two megabytes of files: otherwise threads idle and requests wait for each other where windows are tiny.
# No more than so many for each thread, either: a tiny set would be read for a thousand epochs.
AHEAD_BYTES = 16 << 20
AHEAD_WINDOWS = 4


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all of an engine's threads share.

    Attributes:
        budget: of bytes.
        counters: changed under the budget's lock.
        decoders: held while decoding and cutting: more threads wait for storage than there are cores to decode on.
        stop: set when nothing is wanted any more.
        reserve: for row groups that hold more while they are decoded than was thought.
        helpers: that do tasks in place of the threads, if there are any.
    """

    budget: Budget
    counters: Counters
    decoders: Decoders
    stop: threading.Event
    reserve: Reserve
    helpers: Helpers | None = None


class _WindowJob:
    """One window on its way: its tasks run on any threads, and put together the text of bands that lie in several."""

    def __init__(self, place: int, config: EngineConfig, plan: WindowPlan, shared: _Shared) -> None:
        self.plan = plan
        self.config = config
        self.shared = shared
        self.work = WindowWork.of(place, config, plan)
        self._source = SourceWork.of(config)
        self._more_bytes = 0  # that documents hold which are more than was thought

    @property
    def slices_bytes(self) -> int:
        """What stays held until the window is used up."""
        return self._more_bytes + sum(cost.slices for cost in self.plan.costs.values())

    def keep(self, documents: int, tokens: int, chunk: ColumnChunk) -> None:
        """See `work.Keep`. It waits for nobody: what would have to be given back may be waiting for this.

        Raises:
            ConfigError: there is no room for them beside all that is held.
        """
        budget, more_bytes = self.shared.budget, documents_bytes(documents)
        with budget.lock:
            if budget.fits(more_bytes):
                budget.acquire(more_bytes)
                self._more_bytes += more_bytes
                return
        # If all of this window and of the next one is like that.
        enough = self.config.budget_bytes + 2 * documents_bytes(self.work.tokens * documents // tokens)
        raise ConfigError(
            f"documents of row group {chunk.row_group} of {chunk.path} are of fewer than {STREAM_DOCUMENT_TOKENS} "
            f"tokens in the mean, and budget_bytes {self.config.budget_bytes:,} has no room for where so many begin; "
            f"give at least {enough:,}, or, in a new run, a smaller window"
        )

    def run(self, task: TaskPlan, clock: Clock) -> tuple[_WindowJob, list[Slices]]:
        """Read and decode row groups, and cut every band that they complete."""
        self.begin(task)
        work = TaskWork.of(self.config.index, self.plan, task)
        slices, tokens, fallbacks = self.do(work, clock)
        self.shared.budget.release(task.gap_bytes + sum(self.plan.costs[ordinal].fetch for ordinal in task.ordinals))
        counters = self.shared.counters
        with self.shared.budget.lock:
            counters.reads += len(work.reads) + sum(map(len, work.besides))
            counters.bytes_read += work.read_bytes
            counters.row_groups += len(task.ordinals)
            counters.tokens_decoded += tokens
            counters.fallbacks += fallbacks
        return self, slices

    def do(self, work: TaskWork, clock: Clock) -> tuple[list[Slices], int, int]:
        """Do a task: the slices that it completes, tokens that were decoded, row groups that fell back."""
        raise NotImplementedError

    def begin(self, task: TaskPlan) -> None:
        """A task runs: it has been admitted, and what it holds is counted."""

    def window_slices(self, slices: list[Slices], blocks: StepBlocks) -> WindowSlices:
        """What all tasks together have cut."""
        slices.sort(key=lambda band: band.first)
        return WindowSlices.of(slices, len(self.config.planes), self.plan.spans, blocks, self.slices_bytes)

    def release_text(self, plane: int, number: int) -> None:
        """A band's text of one plane is not held any more."""
        band = self.work.bands[number]
        if band in self.plan.texts:
            self.shared.budget.release(self.plan.texts[band][plane])


class _ThreadJob(_WindowJob):
    """One whose tasks are done by the threads that have them."""

    def __init__(self, place: int, config: EngineConfig, plan: WindowPlan, shared: _Shared) -> None:
        super().__init__(place, config, plan, shared)
        self.cuts = Cuts(len(config.planes))
        self._lock = threading.Lock()
        self._texts: dict[tuple[int, int], BandText] = {}

    def do(self, work: TaskWork, clock: Clock) -> tuple[list[Slices], int, int]:
        """See `_WindowJob`."""
        results = _Results(self)
        tokens, fallbacks = run_task(
            self._source,
            self.work,
            work,
            results,
            decoders=self.shared.decoders,
            hold=self.shared.reserve.hold,
            keep=self.keep,
            stop=self.shared.stop,
            fetched=clock.has_fetched,
        )
        return results.slices, tokens, fallbacks

    def join(
        self, plane: int, number: int, at: int, tokens: TokenArray, documents: IntArray
    ) -> tuple[TokenArray, IntArray] | None:
        """See `work.Results`."""
        with self._lock:
            text = self._texts.get((plane, number))
            if text is None:
                text = BandText(self.work.bands[number], self._source.planes[plane].element_dtype)
                self._texts[plane, number] = text
        text.tokens[at : at + len(tokens)] = tokens
        with self._lock:
            text.documents.append(documents)
            text.missing -= len(tokens)
            if text.missing:
                return None
            del self._texts[plane, number]
        return text.tokens, np.concatenate(text.documents)


class _Results:
    """What a task of a thread makes; see `work.Results`."""

    def __init__(self, job: _ThreadJob) -> None:
        self.slices: list[Slices] = []
        self.cuts = job.cuts
        self.join = job.join
        self._job = job

    def keep(self, number: int, slices: Slices) -> None:
        """See `work.Results`."""
        self.slices.append(slices)
        self._job.release_text(slices.plane, number)


class _HelpersJob(_WindowJob):
    """One whose tasks are done by helpers, in a segment."""

    def __init__(self, place: int, config: EngineConfig, plan: WindowPlan, shared: _Shared, helpers: Helpers) -> None:
        super().__init__(place, config, plan, shared)
        self._place = place
        self._helpers = helpers
        self._lock = threading.Lock()
        self._segment: Segment | None = None
        self._memory: npt.NDArray[np.uint8] | None = None
        self._counted_bytes = 0
        self._freed_bytes = config.processes * max((task.cost_bytes for task in plan.tasks), default=0)
        starts = plan.starts
        self._tokens = np.diff(np.clip(plan.window.offsets, starts[0], starts[-1])).tolist()  # of each row group
        # Of bands that lie in several tasks, what is there of each plane: how many tokens, and where documents begin.
        self._pieces: dict[tuple[int, int], list[Piece]] = {}

    def begin(self, task: TaskPlan) -> None:
        """See `_WindowJob`. Not when it is admitted: by then whoever asks for tasks may find its window used up."""
        admitted = sum(self._tokens[ordinal] for ordinal in task.ordinals) * self.config.held_itemsize
        with self._lock:
            self._counted_bytes += admitted
            if self._segment is not None:
                self._helpers.segments.count(self._segment, admitted)

    def _in_memory(self) -> Segment:
        """The window's segment."""
        with self._lock:
            if self._segment is None:
                size = planes_bytes(self.work.tokens, [plane.element_dtype for plane in self._source.planes])
                self._segment, self._memory = self._helpers.segments.take(size, self._counted_bytes)
            return self._segment

    def do(self, work: TaskWork, clock: Clock) -> tuple[list[Slices], int, int]:
        """See `_WindowJob`."""
        begun = time.monotonic()
        answer = self._ask(work)
        clock.fetched = begun + answer.read_seconds
        slices = self._slices(answer)
        for piece in answer.pieces:
            plane, number, *_ = piece
            band = self.work.bands[number]
            with self._lock:
                pieces = self._pieces.setdefault((plane, number), [])
                pieces.append(piece)
                if sum(piece.tokens for piece in pieces) < band.end - band.begin:
                    continue
                del self._pieces[plane, number]
            documents = np.concatenate([piece.documents for piece in pieces])
            slices += self._slices(self._ask(BandWork(plane, number, documents)))
        return slices, answer.tokens, answer.fallbacks

    def _ask(self, work: TaskWork | BandWork) -> Answer:
        connection = self._helpers.connection()
        budget = self.shared.budget
        # What is freed counts as free from the answer on; where there is no room to spare for it, it has to be.
        rest = budget.limit_bytes - budget.held_bytes < self._freed_bytes
        answer = connection.do(
            work, self.work, self._in_memory(), hold=self.shared.reserve.hold, keep=self.keep, rest=rest
        )
        with budget.lock:
            told = connection.helper.retries
            self.shared.counters.retries += max(0, answer.retries[self._place] - told[self._place])
            told[self._place] = max(told[self._place], answer.retries[self._place])
        return answer

    def _slices(self, answer: Answer) -> list[Slices]:
        """The bands that were cut. Their tokens are where those of all of the window are."""
        slices, begin = [], 0
        for plane, number, count in answer.cut:
            self.release_text(plane, number)
            first = self.work.bands[number].first_lane - self.work.first_lane
            slices.append(
                Slices(first=first, plane=plane, rectangles=[], documents=answer.documents[begin : begin + count])
            )
            begin += count
        return slices

    def window_slices(self, slices: list[Slices], blocks: StepBlocks) -> WindowSlices:
        """See `_WindowJob`."""
        # From here on whoever has the slices keeps the segment, and nobody else: not this job.
        memory, self._memory = self._memory, None
        assert memory is not None
        planes = planes_of(memory, self.work.tokens, [plane.element_dtype for plane in self._source.planes])
        return super().window_slices([*slices, *map(self.work.whole, range(len(planes)), planes)], blocks)


class Drawn(NamedTuple):
    """Rows of one source.

    Attributes:
        planes: the tokens, and what goes with them, each of shape ``(lanes, seq_len + overlap)``.
        origins: where documents begin in them.
        lengths: how many columns of each are tokens, shape ``(lanes,)``, of a set packed by rows; None where all are.
    """

    planes: Sequence[TokenArray]
    origins: Origins | WholeRows
    lengths: IntArray | None = None


class Engine:
    """The rows of a range of lanes, of one source or of several.

    Threads start with the first `rows`. An error or an interrupt of `rows` halts it: close it and make another.

    Args:
        sources: what it runs on; of sets that may still grow what is to be reckoned with, see `growth.expected`. The
            budget is the first one's, threads and requests the most that one has; they serve all of them together.
        demand: the windows in the order in which rows will need them, each with its source's place in `sources`;
            a source's own windows in their order. None in place of a window that is not whole yet, see `growth`.
        lengths: of each source the tokens of a row, by window: (from which C on, tokens), rising; see `Order`.
        dtype: of rows.
        counters: where what it does is counted.
        least_bytes: the least budget with which this can work; of what there is beyond, a part is kept aside.
        reserved_bytes: of the budget, for whoever asks for rows.
        names: of the sources, by which `counters` tell waits apart.

    Attributes:
        pid: the process that its threads are in.
        halted: whether it is of no more use.
    """

    def __init__(
        self,
        sources: Sequence[EngineConfig],
        demand: Iterator[tuple[int, Window | None]],
        *,
        lengths: Sequence[Lengths],
        dtype: np.dtype[np.integer],
        counters: Counters,
        least_bytes: int,
        reserved_bytes: int = 0,
        names: Sequence[str] = (ONLY,),
    ) -> None:
        self.pid = os.getpid()
        self.halted = False
        general = sources[0]
        reserve, beyond = reserve_bytes(sources, least_bytes), beyond_bytes(sources, least_bytes)
        self.budget = Budget(general.budget_bytes - reserve)
        # No thread is there yet that would need a lock.
        self.budget.acquire(kept_by_threads(sources) + reserved_bytes)
        # Nothing in here refers to the engine, so that it goes, threads and all, as soon as nobody holds it.
        requests = max(source.requests for source in sources)
        threads = max(source.threads for source in sources)
        workers = max(threads, requests)
        helpers = self._helpers = None
        give_back = self.budget.release
        if general.processes:
            segments = SegmentPool(segments_bytes(sources, beyond))
            self.budget.acquire(segments.spare_bytes)
            helpers = Helpers(general.processes, workers, list(map(SourceWork.of, sources)), segments)
            give_back = functools.partial(_give_back, self.budget, segments)
            self._helpers = helpers
        self._shared = _Shared(
            self.budget,
            counters,
            Decoders(threads),
            threading.Event(),
            Reserve(reserve, self.budget),
            helpers,
        )
        self._prefetcher = Prefetcher(
            _tasks(sources, demand, self._shared, beyond),
            self.budget,
            threads=workers,
            ahead_bytes=AHEAD_BYTES,
            ahead_groups=AHEAD_WINDOWS * workers,
            # Allocators keep freed memory for the thread that freed it: megabytes a thread, beyond any budget.
            rest=pa.default_memory_pool().release_unused,
            waited=functools.partial(_count_wait, counters, names),
        )
        for name in names:  # before anybody waits: whoever tells of them is not to find a dict that grows
            for cause in CAUSES:
                counters.waits.setdefault((name, cause), 0.0)
        self._dtypes = [[dtype, *(plane.dtype for plane in source.aligned)] for source in sources]
        self._planes = [source.planes for source in sources]
        self._roots = [source.storage.root for source in sources]
        self._units = [source.order.unit for source in sources]
        self._sealed = [None if source.growth is None else Sealed(source) for source in sources]
        self._count_growth = [
            functools.partial(_count_wait, counters, names, place, "growth") for place in range(len(names))
        ]
        # What packers put together of rows, before their ids are a batch's.
        self._elements: list[list[TokenArray] | None] = [
            None
            if source.rows is None
            else [np.empty((source.last - source.first, 1), plane.element_dtype) for plane in source.planes]
            for source in sources
        ]
        self._packers: list[Packer] | None = [
            Packer(
                source.last - source.first,
                self._dtypes[place] if source.rows is None else [plane.element_dtype for plane in source.planes],
                WindowCursor(
                    _windows_of(self._prefetcher, place, source.order, each),
                    functools.partial(self._prefetcher.ready, place),
                    give_back,
                ),
            )
            for place, (source, each) in enumerate(zip(sources, lengths, strict=True))
        ]
        if helpers is not None:
            # Before the threads are waited for, some of which wait for helpers: the last finalizer is the first to run.
            weakref.finalize(self, helpers.end)

    def rows(
        self,
        source: int,
        positions: IntArray | int,
        seq_len: int,
        overlap: int,
        *,
        ends: IntArray | None = None,
        out: Sequence[TokenArray] | None = None,
    ) -> Drawn:
        """A source's rows; see `Packer.rows`."""
        if self._packers is None:
            raise LoaderClosedError("closed while a batch was waited for")
        sealed = self._sealed[source]
        if sealed is not None:
            self._await(source, sealed, sealed.needed(positions, seq_len, overlap, ends))
        packer, elements = self._packers[source], self._elements[source]
        try:
            if elements is None:
                planes, taken = packer.rows(positions, seq_len, overlap, ends, out)
                return Drawn(planes, Origins(taken, len(planes[0])))
            packer.rows(positions // seq_len, 1, 0, None if ends is None else ends // seq_len, elements)
        except DataError as error:  # maybe hours after the source was named
            raise of_file_below(error, self._roots[source], [error.path]) from error
        rows = len(elements[0])
        if out is None:
            out = [np.empty((rows, seq_len + overlap), dtype) for dtype in self._dtypes[source]]
        ended = None if ends is None else ends <= positions
        lengths = None
        for number, (plane, packed, each) in enumerate(zip(self._planes[source], elements, out, strict=True)):
            assert plane.rows is not None
            found = plane.rows.unpacked(packed[:, 0], each, ended=ended)
            lengths = lengths if number else found
        names = [plane.column for plane in self._planes[source][1:]]
        column = next((name for name in BOUNDARIES if name in names), None)
        return Drawn(out, WholeRows(rows, lengths, column), lengths)

    def _await(self, source: int, sealed: Sealed, elements: int) -> None:
        """Wait until so many elements of a source lie in whole windows."""
        if sealed.has(elements):
            if sealed.has_all:
                self._sealed[source] = None
            return
        sealed.growth.until(
            functools.partial(sealed.has, elements),
            closed=lambda: self._packers is None,
            waited=self._count_growth[source],
            stop=self._shared.stop,
        )
        self.budget.release(0)  # whoever pauses for want of what has come is to know

    def ahead_tokens(self, source: int, positions: IntArray | int) -> int:
        """Tokens of a source that wait here to be taken, of all lanes together.

        Args:
            source: its place.
            positions: where the lanes stand in it, shape ``(lanes,)``, or one number.
        """
        if self._packers is None or self.pid != os.getpid():
            return 0
        spans = [*self._packers[source].spans, *(job.plan.spans for job, _ in self._prefetcher.ahead(source))]
        unit = self._units[source]
        positions = positions // unit
        return unit * sum(int(np.maximum(0, each.ends - np.maximum(each.begins, positions)).sum()) for each in spans)

    def halt(self) -> None:
        """Let go of everything held, also where an error's traceback keeps the engine, and tell the threads to end."""
        self.halted = True
        self._packers = None
        self._shared.stop.set()
        self._prefetcher.halt()
        if self._helpers is not None:
            self._helpers.end(wait=False)

    def close(self) -> None:
        """Halt, and wait until every thread and helper has ended."""
        self.halt()
        self._prefetcher.close()
        if self._helpers is not None:
            self._helpers.end()


def _count_wait(counters: Counters, names: Sequence[str], stream: int, cause: str, seconds: float) -> None:
    counters.waits[names[stream], cause] += seconds


def _windows_of(
    prefetcher: Prefetcher[tuple[_WindowJob, list[Slices]]], place: int, order: Order, lengths: Lengths
) -> Callable[[], WindowSlices]:
    """What gives a source's next window, when its last task has come out of the prefetcher. Keeps no engine alive."""

    def next_window() -> WindowSlices:
        results = prefetcher.take(place)
        job = results[0][0]
        window = job.plan.window
        length = lengths[bisect.bisect_right(lengths, window.before, key=lambda change: change[0]) - 1][1]
        return job.window_slices([band for _, bands in results for band in bands], order.step_blocks(window, length))

    return next_window


def _tasks(
    sources: Sequence[EngineConfig], demand: Iterator[tuple[int, Window | None]], shared: _Shared, spare_bytes: int = 0
) -> Iterator[Task[tuple[_WindowJob, list[Slices]]] | Pause]:
    """The tasks of windows. A function, so that it keeps no engine alive."""
    configs = list(sources)
    for place, window in demand:
        growth = sources[place].growth
        if growth is not None:
            known = growth.known
            if window is None:
                if not growth.look(shared.stop):
                    yield Pause(growth.seconds, functools.partial(_has_news, growth, known))
                continue
            if known[0] is not configs[place].index:
                configs[place] = sources[place].now
                check_outgrown(sources[place], configs[place])
        assert window is not None
        config = configs[place]
        plan = plan_window(config, window, spare_bytes)
        # Where the window has no token for these lanes, there are no tasks.
        job: _WindowJob
        if shared.helpers is None:
            job = _ThreadJob(place, config, plan, shared)
        else:
            job = _HelpersJob(place, config, plan, shared, shared.helpers)
        for task in plan.tasks:
            more = task is not plan.tasks[-1]
            clock = Clock()
            yield Task(functools.partial(job.run, task, clock), task.cost_bytes, more=more, stream=place, clock=clock)


def _has_news(growth: Follower, known: object) -> bool:
    return growth.known is not known


def _give_back(budget: Budget, segments: SegmentPool, held_bytes: int) -> None:
    """Release what windows have held that were used up."""
    segments.collect()
    budget.release(held_bytes)


def segments_bytes(sources: Sequence[EngineConfig], beyond_bytes: int) -> int:
    """What segments may hold beyond what is counted: two windows', where there is room for them beside the next one.
    One is free as soon as the next one is waited for, whose segment is full of what was in it before.

    It is never more than half of what there is: the other half is what tasks may take beyond the least.

    Args:
        sources: the engine's.
        beyond_bytes: what the budget has beyond the least.
    """
    largest = max(_window_bytes(source) for source in sources)
    return max(0, min(2 * largest, beyond_bytes - 2 * largest))


def _window_bytes(config: EngineConfig) -> int:
    """The most bytes of tokens that a window holds."""
    tokens = int(np.sort(config.order.group_tokens)[-config.order.window :].sum())
    own = tokens * (config.last - config.first) // config.order.lanes + config.last
    return planes_bytes(own, [plane.element_dtype for plane in config.planes])
