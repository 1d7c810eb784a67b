"""Runs tasks ahead on threads, hands their results out in order, and keeps what is held within a byte budget.

A task is a value: what to run and how many bytes it will hold. Tasks are admitted strictly in order, each as soon as
its bytes fit beside all that is held already; several then run concurrently. Bytes that are no longer used are given
back to the `Budget`, which lets the next task in:

    tasks    0  1  2  3  4  5  6 ...          budget 100, held 90
             └──┴──┘  └──┘  └─ costs 20: waits until 10 more are given back
             taken    running

Tasks whose results are handed out together are a group. Groups are of one stream, or of several, such as those of a
mixture's sources; each stream's groups are handed out in order, as they are asked for. Beside a stream's group in use,
which is the one that was handed out last or the one that is waited for, its next group is run ahead, and further ones
only where groups are tiny. Tasks are in the order in which their groups will be asked for: where it turns out otherwise
and the budget is full of what nobody asks for yet, `StarvedError` says so.

Nothing polls: threads wait on one condition. A task's error is handed out where its result would have been.
"""

from __future__ import annotations

import _thread
import functools
import math
import os
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import LoaderClosedError
from ..interrupts import Bell, under

__all__ = ["Budget", "Clock", "Pause", "Prefetcher", "StarvedError", "Task", "rehearse"]

T = TypeVar("T")
# Of a stream, for a cause, how many seconds.
Waited = Callable[[int, str, float], None]

# A thread in the middle of a network read cannot be interrupted; garbage collection and interpreter exit wait for all
# threads no longer than this.
_EXIT_SECONDS = 10.0

# A thread that waits longer than this rests: what it would give back meanwhile it is about to need again.
_REST_SECONDS = 0.01


now = time.monotonic  # of waits


class StarvedError(AssertionError):
    """What is waited for can never come: its task is not let in, and nothing will be given back."""


class Clock:
    """What a task spent its time on, for whoever waits for it.

    Attributes:
        fetched: when storage had given all that it needs. Set by whoever runs it, without a lock.
        held_seconds: how long it was not let in for lack of room, and nobody has been told yet: so much earlier it
            would have been done.
    """

    __slots__ = ("fetched", "held_seconds")

    def __init__(self) -> None:
        self.fetched = math.inf
        self.held_seconds = 0.0

    def has_fetched(self) -> None:
        """From here on it decodes."""
        self.fetched = now()

    def causes(self, since: float, until: float) -> dict[str, float]:
        """The seconds between two times, which were waited, by cause."""
        fetched = min(until, max(since, self.fetched))
        seconds = {"storage": fetched - since, "decoding": until - fetched}
        budget = 0.0
        for cause, spent in seconds.items():
            taken = min(spent, self.held_seconds)
            self.held_seconds -= taken
            seconds[cause] -= taken
            budget += taken
        return {**seconds, "budget": budget}


@dataclass(frozen=True, slots=True)
class Task(Generic[T]):
    """A piece of work.

    Attributes:
        run: does it.
        cost_bytes: what it and its result hold, until they are released to the budget.
        more: whether its result is handed out only together with the next task's, of the same group.
        stream: which stream its group is of.
        clock: that `run` tells when storage has given what it needs; without one all of it counts as decoding.
    """

    run: Callable[[], T]
    cost_bytes: int
    more: bool = False
    stream: int = 0
    clock: Clock | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """In the place of a task: the next one is not known yet, and is to be asked for again.

    Attributes:
        seconds: when.
        over: whether there is reason to ask earlier; looked at whenever the budget's condition is notified.
    """

    seconds: float
    over: Callable[[], bool]


class Budget:
    """Counts the bytes that are held, from all threads.

    Attributes:
        limit_bytes: never exceeded.
        held_bytes: held now.
        peak_bytes: the most that was ever held.
        lock: to be held wherever the above change.
        condition: of `lock`, notified whenever something changes.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.peak_bytes = 0
        # Taken by `under`, or by `with lock` on our own threads, never by `with condition`, whose __enter__ is Python:
        # a signal's exception could leave it with the lock taken for ever. Reentrant, since garbage collection may end
        # a prefetcher anywhere.
        self.lock = threading.RLock()
        self.condition = threading.Condition(self.lock)

    def fits(self, cost_bytes: int) -> bool:
        """Whether that many more bytes stay within the limit; to be called under the lock."""
        return self.held_bytes + cost_bytes <= self.limit_bytes

    def acquire(self, cost_bytes: int) -> None:
        """Count bytes that `fits` has allowed; to be called under the lock."""
        self.held_bytes += cost_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def release(self, cost_bytes: int) -> None:
        """Give bytes back."""

        def give() -> None:
            self.held_bytes -= cost_bytes
            assert self.held_bytes >= 0
            self.condition.notify_all()

        under(self.lock, give)


class Prefetcher(Generic[T]):
    """Results of an endless or finite sequence of tasks, in order.

    Threads start with the first `take` and end with `close`, with garbage collection, and at interpreter exit.

    Args:
        tasks: the tasks in order; advanced from the threads, by one at a time. A `Pause` among them holds up all that
            come after it.
        budget: shared with whoever releases what the tasks hold.
        threads: tasks that may run concurrently.
        ahead_bytes: groups beyond the next one are run ahead as long as all that is not taken yet costs no more,
        ahead_groups: and as long as there are no more of them.
        rest: called by a thread that has to wait before it can run a task.
        waited: called under the budget's lock with a stream, a cause and the seconds that `take` has waited for it.
    """

    def __init__(
        self,
        tasks: Iterator[Task[T] | Pause],
        budget: Budget,
        *,
        threads: int,
        ahead_bytes: int,
        ahead_groups: int = 64,
        rest: Callable[[], object] = lambda: None,
        waited: Waited = lambda stream, cause, seconds: None,
    ) -> None:
        self._shared = shared = _Shared(tasks, budget, ahead_bytes, ahead_groups, rest=rest, waited=waited)
        # The threads know `shared` alone, so that an owner nobody holds any more is collected, and takes them along.
        self._finalizer = weakref.finalize(self, _end, shared, _EXIT_SECONDS)
        self._threads = threads

    def start(self) -> None:
        """Have the threads started, unless they have been."""
        if not self._shared.threads:
            # Thread.start is Python, in which a signal's exception leaves locks taken: not on the main thread.
            _thread.start_new_thread(_launch, (self._shared, self._threads))

    def take(self, stream: int = 0) -> list[T]:
        """The results of a stream's next group, waiting for them as long as it takes.

        Tasks that may be admitted now begin with the next `Budget.release`, or when `take` has to wait: a thread that
        is woken gets this one's core as often as not, so the time is for whoever takes to choose.

        Raises:
            StopIteration: the stream has no more tasks.
            StarvedError: it has, but they can never run.
            LoaderClosedError: closed, before or while this waits.
            Exception: what one of the tasks raised, once; the task after it is next.
        """
        self.start()
        found = self._shared.bell.wait_for(functools.partial(self._shared.hand_out, stream))
        error = found[-1].error
        if error is not None:
            try:
                raise error
            finally:
                del error, found  # this frame is in its traceback: a cycle
        return [outcome.result for outcome in found]  # type: ignore[misc]  # without an error there are results

    def ready(self, stream: int = 0) -> bool:
        """Whether `take` would not have to wait."""
        return under(self._shared.lock, functools.partial(self._shared.ready, stream))

    def ahead(self, stream: int = 0) -> list[T]:
        """The first result of each of a stream's groups that `take` would give, one after another, without waiting."""
        return under(self._shared.lock, functools.partial(self._shared.ahead, stream))

    def halt(self) -> None:
        """Tell every thread to end and drop every result, without waiting: a read that hangs does not hold this up."""
        if self._finalizer.alive:
            _halt(self._shared, closed=True)

    def close(self) -> None:
        """End every thread and drop every result. Waits for tasks that are running."""
        if self._finalizer.alive:
            _halt(self._shared, closed=True)
            _end(self._shared, None)
            self._finalizer.detach()


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    """What came of a task."""

    result: T | None
    error: BaseException | None
    cost_bytes: int
    more: bool

    @property
    def last(self) -> bool:
        """Whether it is handed out without waiting for the next one."""
        return self.error is not None or not self.more


@dataclass(slots=True)
class _Group:
    """Admitted tasks that are handed out together: consecutive ones, of one stream.

    Attributes:
        stream: whose it is; None for an error that is everybody's.
        first: the first task that is not handed out.
        reached: all tasks before this one are done.
        complete: whether the tasks from `first` to `reached` are handed out together.
        admitted: whether all of its tasks are admitted.
    """

    stream: int | None
    first: int
    reached: int
    complete: bool = False
    admitted: bool = False


class _Shared(Generic[T]):
    """What the threads and the consumer share; every field is guarded by `lock`, except `tasks` and `turn`."""

    def __init__(
        self,
        tasks: Iterator[Task[T] | Pause],
        budget: Budget,
        ahead_bytes: int,
        ahead_groups: int,
        *,
        rest: Callable[[], object] = lambda: None,
        waited: Waited = lambda stream, cause, seconds: None,
    ) -> None:
        self.tasks = tasks
        self.turn = threading.Lock()  # whoever holds it advances `tasks` and admits the task that comes out
        self.budget = budget
        self.lock = budget.lock
        self.condition = budget.condition
        self.bell = Bell(budget.lock)  # what the consumer waits for
        self.ahead_bytes = ahead_bytes
        self.ahead_groups = ahead_groups
        self.rest = rest
        self.threads: list[threading.Thread] = []
        self.pid = os.getpid()
        self.done: dict[int, _Outcome[T]] = {}
        self.next_in = 0
        self.groups: list[_Group] = []  # in order; those that are not handed out
        self.awaited: int | None = None  # the stream that the consumer asked for last
        self.running = 0
        self.waiting_bytes = 0  # cost of the tasks that are admitted and not handed out
        self.waited = waited
        self.since: float | None = None  # from when on what the consumer waits for has not been counted
        self.clocks: dict[int, Clock] = {}  # of the tasks that run
        self.short: float | None = None  # since when the next task is not let in for lack of room
        self.ended = False  # there are no more tasks
        self.stopped = False  # the threads end
        self.closed = False  # and a consumer is told; at interpreter exit it is left waiting, a daemon as it must be

    def group_of(self, stream: int) -> _Group | None:
        """A stream's next group, as far as it is admitted; to be called under the lock, as all that follow are."""
        return next((group for group in self.groups if group.stream in (stream, None)), None)

    def ready(self, stream: int) -> bool:
        """Whether the consumer need not wait for a stream's next group."""
        group = self.group_of(stream)
        if group is None:
            return False
        while not group.complete and group.reached in self.done:
            group.complete = self.done[group.reached].last
            group.reached += 1
        return group.complete

    def ahead(self, stream: int) -> list[T]:
        """See `Prefetcher.ahead`."""
        found: list[T] = []
        for group in self.groups:
            if group.stream not in (stream, None):
                continue
            number = group.first
            while number in self.done and not self.done[number].last:
                number += 1
            first = self.done.get(group.first)
            if first is None or number not in self.done or self.done[number].error is not None:
                break
            found.append(first.result)  # type: ignore[arg-type]  # without an error there is one
        return found

    def hand_out(self, stream: int) -> list[_Outcome[T]] | None:
        """What is next for the consumer, None where that is to be waited for."""
        self.awaited = stream
        self.count_wait()
        self.since = None
        if self.ready(stream):
            group = self.group_of(stream)
            assert group is not None
            outcomes = [self.done.pop(number) for number in range(group.first, group.reached)]
            self.waiting_bytes -= sum(outcome.cost_bytes for outcome in outcomes)
            if outcomes[-1].more:  # an error in the middle of it
                group.first, group.complete = group.reached, False
            else:
                self.groups.remove(group)
            return outcomes
        if self.closed:
            raise LoaderClosedError("closed while a batch was waited for")
        if self.ended and self.group_of(stream) is None:
            raise StopIteration
        self.since = now()
        self.condition.notify_all()
        return None

    def count_wait(self) -> None:
        """Count what the consumer has waited since that was done last; before what it waits for changes."""
        if self.since is None or self.awaited is None:
            return
        since, until = self.since, now()
        self.since = until
        group = self.group_of(self.awaited)
        number = self.next_in if group is None else group.reached
        while number in self.done:
            number += 1
        clock = self.clocks.get(number)
        if clock is None and self.short is None and self.clocks:
            clock = self.clocks[min(self.clocks)]  # it has no thread yet, since others are before it
        if clock is not None:
            seconds = clock.causes(since, until)
        elif self.short is not None:
            seconds = {"budget": until - since}
            self.short = min(until, self.short + until - since)
        else:
            seconds = {"decoding": until - since}
        for cause, spent in seconds.items():
            self.waited(self.awaited, cause, spent)

    def wake(self) -> None:
        """Wake whoever waits, the consumer too where there is news for it."""
        self.condition.notify_all()
        if self.bell.awaited and self.awaited is not None:
            nothing_comes = self.ended and self.group_of(self.awaited) is None
            if self.stopped or nothing_comes or self.ready(self.awaited):
                self.bell.ring()

    def wanted(self, task: Task[T]) -> bool:
        """Whether a task is not too far ahead."""
        in_use_and_next = 1 + (self.bell.awaited and self.awaited == task.stream)
        ahead = sum(group.admitted for group in self.groups if group.stream == task.stream)
        if ahead < in_use_and_next:
            return True
        return len(self.groups) < self.ahead_groups and self.waiting_bytes + task.cost_bytes <= self.ahead_bytes

    def admit(self, task: Task[T]) -> None:
        """Count a task that is going to run."""
        self.count_wait()
        self.clocks[self.next_in] = clock = task.clock or Clock()
        if task.clock is None:
            clock.has_fetched()
        if self.short is not None:
            clock.held_seconds, self.short = now() - self.short, None
        self.budget.acquire(task.cost_bytes)
        if not self.groups or self.groups[-1].admitted:
            self.groups.append(_Group(task.stream, self.next_in, self.next_in))
        self.groups[-1].admitted = not task.more
        self.next_in += 1
        self.running += 1
        self.waiting_bytes += task.cost_bytes

    def end(self, error: BaseException | None = None) -> None:
        """There is no task after those that were admitted, but maybe an error."""
        self.ended = True
        if error is not None:
            begun = self.groups[-1] if self.groups and not self.groups[-1].admitted else None
            if begun is not None:
                self._fail(begun, error)
            if begun is None or begun.stream != self.awaited:
                self.groups.append(_Group(None, self.next_in, self.next_in))
                self._fail(self.groups[-1], error)
        self.wake()

    def _fail(self, group: _Group, error: BaseException) -> None:
        """Have a group end with an error in place of its next task."""
        self.done[self.next_in] = _Outcome(None, error, 0, more=False)
        self.next_in += 1
        group.admitted = True

    @property
    def starved(self) -> bool:
        """Whether nothing can ever move again: the consumer waits for a task that no release will let in."""
        return self.bell.awaited and self.awaited is not None and not self.running and not self.ready(self.awaited)


def _launch(shared: _Shared[T], count: int) -> None:
    with shared.lock:  # all at once, so that whoever ends them finds all or none
        if shared.stopped or shared.threads:
            return
        try:
            for number in range(count):
                thread = threading.Thread(target=_work, args=(shared,), name=f"parquet-loader-{number}", daemon=True)
                thread.start()
                shared.threads.append(thread)
        except BaseException as error:
            if not shared.threads:  # a few are as good, if slower
                shared.end(error)


def _work(shared: _Shared[T]) -> None:
    while True:
        if not shared.turn.acquire(timeout=_REST_SECONDS):
            shared.rest()
            shared.turn.acquire()
        try:
            admitted = _admit(shared)
        finally:
            shared.turn.release()
        if admitted is None:
            return
        number, task = admitted
        result, error = None, None
        try:
            result = task.run()
        except BaseException as raised:
            error = raised
            # Whoever keeps the error would keep through its traceback whatever the task held.
            traceback.clear_frames(raised.__traceback__)
        with shared.lock:
            shared.count_wait()
            shared.running -= 1
            del shared.clocks[number]
            if not shared.stopped:
                shared.done[number] = _Outcome(result, error, task.cost_bytes, task.more)
            shared.wake()
        # A thread that waits for its next task must not keep the last one's bytes alive.
        del admitted, task, result, error


def _admit(shared: _Shared[T]) -> tuple[int, Task[T]] | None:
    """The next task and its number, once its bytes fit; None when there is none or the owner is gone."""
    if shared.stopped or shared.ended:
        return None
    try:
        while isinstance(task := next(shared.tasks), Pause):
            _pause(shared, task)
            if shared.stopped:
                return None
    except BaseException as error:  # the plan itself failed: the consumer is told where the task would have come
        with shared.lock:
            shared.end(None if isinstance(error, StopIteration) else error)
        return None
    rests_at: float | None = time.monotonic() + _REST_SECONDS
    while True:
        with shared.lock:
            while True:
                if shared.stopped:
                    return None
                if shared.wanted(task):
                    if shared.budget.fits(task.cost_bytes):
                        shared.admit(task)
                        return shared.next_in - 1, task
                    if shared.short is None:
                        shared.count_wait()
                        shared.short = now()
                if shared.starved:
                    problem = (
                        f"a task of {task.cost_bytes:,} bytes can never run within a budget of "
                        f"{shared.budget.limit_bytes:,} of which {shared.budget.held_bytes:,} are held"
                    )
                    shared.end(StarvedError(problem))
                    return None
                left = None if rests_at is None else rests_at - time.monotonic()
                if left is not None and left <= 0:
                    break
                shared.condition.wait(left)
        shared.rest()
        rests_at = None


def _pause(shared: _Shared[T], pause: Pause) -> None:
    shared.rest()
    until = time.monotonic() + pause.seconds
    with shared.lock:
        while not shared.stopped and not pause.over() and (left := until - time.monotonic()) > 0:
            shared.condition.wait(left)


def _halt(shared: _Shared[T], *, closed: bool = False) -> None:
    if os.getpid() != shared.pid:
        return  # a forked child has none of the threads, and its copy of the lock may be held for ever

    def stop() -> None:
        shared.count_wait()
        shared.since = None
        shared.stopped = True
        shared.closed |= closed
        shared.done.clear()
        shared.groups.clear()
        shared.wake()

    under(shared.lock, stop)


def _end(shared: _Shared[T], patience_seconds: float | None) -> None:
    _halt(shared)
    if os.getpid() != shared.pid or threading.current_thread() in shared.threads:
        return  # garbage collection can run on any thread, on ours as well
    deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
    for thread in shared.threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


def rehearse(tasks: Iterator[Task[int]], budget: Budget, *, threads: int, ahead_bytes: int, ahead_groups: int) -> None:
    """Go through tasks on this thread, in the order in which a `Prefetcher` would whose consumer is always the slower
    one: all that may run has run before the next group is taken. What `budget` has held then is what it would hold.

    Args:
        tasks: whose results are the bytes that are held until the next group of their stream is taken. They do no
            more than to release what theirs would.
        budget, threads, ahead_bytes, ahead_groups: as for a `Prefetcher`.
    """
    shared = _Shared(tasks, budget, ahead_bytes, ahead_groups)
    shared.bell = bell = _RehearsedBell(budget.lock)
    running: deque[tuple[int, Task[int]]] = deque()
    in_use: dict[int, int] = {}
    coming = next(tasks, None)
    while coming is not None or shared.groups:
        stream = shared.groups[0].stream if shared.groups else coming.stream if coming is not None else None
        assert stream is not None
        # However slow, for a stream's first group it waits.
        shared.awaited, bell.is_awaited = stream, stream not in in_use
        if coming is not None and len(running) < threads and shared.wanted(coming) and budget.fits(coming.cost_bytes):
            shared.admit(coming)
            running.append((shared.next_in - 1, coming))
            coming = next(tasks, None)
        elif running:
            number, task = running.popleft()
            shared.done[number] = _Outcome(task.run(), None, task.cost_bytes, task.more)
            shared.running -= 1
            del shared.clocks[number]
        else:
            with shared.lock:
                outcomes = shared.hand_out(stream)
            if outcomes is None and not in_use.get(stream):
                return  # the budget is too small
            budget.release(in_use.get(stream, 0))
            in_use[stream] = sum(outcome.result or 0 for outcome in outcomes or [])


class _RehearsedBell(Bell):
    """One of which is said whether it is waited for."""

    is_awaited = False

    @property
    def awaited(self) -> bool:
        """See `Bell`."""
        return self.is_awaited
