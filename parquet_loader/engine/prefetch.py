"""Runs tasks ahead on threads, hands their results out in order, and keeps what is held within a byte budget.

A task is a value: what to run and how many bytes it will hold. Tasks are admitted strictly in order, each as soon as
its bytes fit beside all that is held already; several then run concurrently. Bytes that are no longer used are given
back to the `Budget`, which lets the next task in:

    tasks    0  1  2  3  4  5  6 ...          budget 100, held 90
             └──┴──┘  └──┘  └─ costs 20: waits until 10 more are given back
             taken    running

Tasks whose results are handed out together are a group. Beside the group in use, which is the one that was handed out
last or the one that is waited for, the next group is run ahead, and further ones only where groups are tiny.

Nothing polls: threads wait on one condition. A task's error is handed out where its result would have been.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import LoaderClosedError
from ..interrupts import Bell, under

__all__ = ["Budget", "Prefetcher", "Task"]

T = TypeVar("T")

# A thread in the middle of a network read cannot be interrupted; garbage collection and interpreter exit wait for all
# threads no longer than this.
_EXIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Task(Generic[T]):
    """A piece of work.

    Attributes:
        run: does it.
        cost_bytes: what it and its result hold, until they are released to the budget.
        more: whether its result is handed out only together with the next task's, of the same group.
    """

    run: Callable[[], T]
    cost_bytes: int
    more: bool = False


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
        tasks: the tasks in order; advanced from the threads, by one at a time.
        budget: shared with whoever releases what the tasks hold.
        threads: tasks that may run concurrently.
        ahead_bytes: groups beyond the next one are run ahead as long as all that is not taken yet costs no more,
        ahead_groups: and as long as there are no more of them.
        rest: called by a thread that has to wait before it can run a task.
    """

    def __init__(
        self,
        tasks: Iterator[Task[T]],
        budget: Budget,
        *,
        threads: int,
        ahead_bytes: int,
        ahead_groups: int = 64,
        rest: Callable[[], object] = lambda: None,
    ) -> None:
        self._shared = shared = _Shared(tasks, budget, ahead_bytes, ahead_groups, rest)
        # The threads know `shared` alone, so that an owner nobody holds any more is collected, and takes them along.
        self._finalizer = weakref.finalize(self, _end, shared, _EXIT_SECONDS)
        self._threads = threads

    def start(self) -> None:
        """Have the threads started, unless they have been."""
        if not self._shared.threads:
            # Thread.start is Python, in which a signal's exception leaves locks taken: not on the main thread.
            _thread.start_new_thread(_launch, (self._shared, self._threads))

    def take(self) -> list[T]:
        """The next task's result, and with it those that belong to it, waiting for them as long as it takes.

        Tasks that may be admitted now begin with the next `Budget.release`, or when `take` has to wait: a thread that
        is woken gets this one's core as often as not, so the time is for whoever takes to choose.

        Raises:
            StopIteration: there are no more tasks.
            LoaderClosedError: closed, before or while this waits.
            Exception: what one of the tasks raised, once; the task after it is next.
        """
        self.start()
        found = self._shared.bell.wait_for(self._shared.hand_out)
        error = found[-1].error
        if error is not None:
            try:
                raise error
            finally:
                del error, found  # this frame is in its traceback: a cycle
        return [outcome.result for outcome in found]  # type: ignore[misc]  # without an error there are results

    def ready(self) -> bool:
        """Whether `take` would not have to wait."""
        return under(self._shared.lock, self._shared.ready)

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


class _Shared(Generic[T]):
    """What the threads and the consumer share; every field is guarded by `lock`, except `tasks` and `turn`."""

    def __init__(
        self,
        tasks: Iterator[Task[T]],
        budget: Budget,
        ahead_bytes: int,
        ahead_groups: int,
        rest: Callable[[], object],
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
        self.next_out = 0
        self.reached = 0  # all tasks before this one are done
        self.whole = False  # the tasks from `next_out` to `reached` are handed out together
        self.running = 0
        self.groups = 0  # whose tasks are all admitted, and not all handed out
        self.waiting_bytes = 0  # cost of the tasks from `next_out` to `next_in`
        self.ended: int | None = None  # the number of tasks there were
        self.stopped = False  # the threads end
        self.closed = False  # and a consumer is told; at interpreter exit it is left waiting, a daemon as it must be

    def ready(self) -> bool:
        """Whether the consumer need not wait; to be called under the lock."""
        while not self.whole and self.reached in self.done:
            self.whole = self.done[self.reached].last
            self.reached += 1
        return self.whole

    def hand_out(self) -> list[_Outcome[T]] | None:
        """What is next for the consumer, None where that is to be waited for; to be called under the lock."""
        if self.ready():
            outcomes = [self.done.pop(number) for number in range(self.next_out, self.reached)]
            self.next_out = self.reached
            self.whole = False
            self.groups -= not outcomes[-1].more
            self.waiting_bytes -= sum(outcome.cost_bytes for outcome in outcomes)
            return outcomes
        if self.closed:
            raise LoaderClosedError("closed while a batch was waited for")
        if self.ended is not None and self.reached >= self.ended:
            raise StopIteration
        self.condition.notify_all()
        return None

    def wake(self) -> None:
        """Wake whoever waits, the consumer too where there is news for it; to be called under the lock."""
        self.condition.notify_all()
        if self.ready() or self.stopped or self.ended == self.reached:
            self.bell.ring()

    def wanted(self, task: Task[T]) -> bool:
        """Whether a task is not too far ahead; to be called under the lock."""
        in_use_and_next = 1 + self.bell.awaited
        if self.groups < in_use_and_next:
            return True
        return self.groups < self.ahead_groups and self.waiting_bytes + task.cost_bytes <= self.ahead_bytes

    def admit(self, task: Task[T]) -> None:
        """Count a task that is going to run; to be called under the lock."""
        self.budget.acquire(task.cost_bytes)
        self.next_in += 1
        self.running += 1
        self.groups += not task.more
        self.waiting_bytes += task.cost_bytes

    def end(self, error: BaseException | None = None) -> None:
        """There is no task after those that were admitted, but maybe an error; to be called under the lock."""
        if error is not None:
            self.done[self.next_in] = _Outcome(None, error, 0, more=True)
            self.next_in += 1
        self.ended = self.next_in
        self.wake()

    @property
    def starved(self) -> bool:
        """Whether nothing can ever move again: the consumer waits for a task that no release will let in."""
        return self.bell.awaited and self.running == 0 and self.reached == self.next_in


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
        if not shared.turn.acquire(blocking=False):
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
            shared.running -= 1
            if not shared.stopped:
                shared.done[number] = _Outcome(result, error, task.cost_bytes, task.more)
            shared.wake()
        # A thread that waits for its next task must not keep the last one's bytes alive.
        del admitted, task, result, error


def _admit(shared: _Shared[T]) -> tuple[int, Task[T]] | None:
    """The next task and its number, once its bytes fit; None when there is none or the owner is gone."""
    if shared.stopped or shared.ended is not None:
        return None
    try:
        task = next(shared.tasks)
    except BaseException as error:  # the plan itself failed: the consumer is told where the task would have come
        with shared.lock:
            shared.end(None if isinstance(error, StopIteration) else error)
        return None
    rested = False
    while True:
        with shared.lock:
            while True:
                if shared.stopped:
                    return None
                if shared.wanted(task) and shared.budget.fits(task.cost_bytes):
                    shared.admit(task)
                    return shared.next_in - 1, task
                if shared.starved:
                    problem = (
                        f"a task of {task.cost_bytes:,} bytes can never run within a budget of "
                        f"{shared.budget.limit_bytes:,} of which {shared.budget.held_bytes:,} are held"
                    )
                    shared.end(AssertionError(problem))
                    return None
                if not rested:
                    break
                shared.condition.wait()
        shared.rest()
        rested = True


def _halt(shared: _Shared[T], *, closed: bool = False) -> None:
    if os.getpid() != shared.pid:
        return  # a forked child has none of the threads, and its copy of the lock may be held for ever

    def stop() -> None:
        shared.stopped = True
        shared.closed |= closed
        shared.done.clear()
        shared.whole = False
        shared.wake()

    under(shared.lock, stop)


def _end(shared: _Shared[T], patience_seconds: float | None) -> None:
    _halt(shared)
    if os.getpid() != shared.pid or threading.current_thread() in shared.threads:
        return  # garbage collection can run on any thread, on ours as well
    deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
    for thread in shared.threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
