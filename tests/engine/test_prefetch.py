"""Order, budget, errors and ends of the prefetcher, on tasks that are plain functions."""

from __future__ import annotations

import functools
import gc
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator

import pytest
from idle import wait_until_idle

from parquet_loader.engine.prefetch import Budget, Prefetcher, Task
from parquet_loader.errors import LoaderClosedError


class Thing:
    """What can be referred to weakly."""


def prefetcher(
    runs: Iterable[Callable[[], object]], *, cost: int = 1, limit: int = 100, threads: int = 2, ahead: int = 1000
) -> Prefetcher:
    source = Prefetcher((Task(run, cost) for run in runs), Budget(limit), threads=threads, ahead_bytes=ahead)
    source.start()
    while len(source._shared.threads) < threads:
        pass
    return source


def give(value: object) -> Callable[[], object]:
    return lambda: value


def fail(error: BaseException) -> Callable[[], object]:
    def run() -> None:
        raise error

    return run


def take(source: Prefetcher) -> object:
    (result,) = source.take()
    return result


def take_all(source: Prefetcher) -> list:
    taken = []
    while True:
        try:
            taken.append(take(source))
        except StopIteration:
            return taken


def threads_of(source: Prefetcher) -> list[threading.Thread]:
    return list(source._shared.threads)


# ── order ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_results_come_in_the_order_of_the_tasks_though_later_ones_finish_first() -> None:
    second_done = threading.Event()

    def first() -> int:
        second_done.wait()
        return 1

    def second() -> int:
        second_done.set()
        return 2

    source = prefetcher([first, second], threads=2)
    assert take_all(source) == [1, 2]
    source.close()


def test_a_plan_without_tasks_ends_at_once() -> None:
    source = prefetcher([])
    assert take_all(source) == []
    source.close()


def test_a_plan_that_has_ended_stays_ended() -> None:
    source = prefetcher([give(1)])
    assert take_all(source) == [1]
    assert take_all(source) == []
    source.close()


@pytest.mark.parametrize("threads", range(1, 9))
def test_any_number_of_threads_gives_all_results_in_order_within_the_budget(threads: int) -> None:
    rng = random.Random(threads)
    costs = [rng.randint(0, 40) for _ in range(400)]
    budget = Budget(100)
    over = []

    def run(number: int) -> int:
        # Half of the bytes are given back by the task and half by the consumer, as fetched bytes and slices are.
        sum(range(rng.randint(0, 2000)))
        if budget.held_bytes > budget.limit_bytes:
            over.append(budget.held_bytes)
        budget.release(costs[number] // 2)
        return number

    tasks = (Task(functools.partial(run, number), cost) for number, cost in enumerate(costs))
    source = Prefetcher(tasks, budget, threads=threads, ahead_bytes=1000)
    for number, cost in enumerate(costs):
        assert take(source) == number
        budget.release(cost - cost // 2)
    with pytest.raises(StopIteration):
        take(source)
    assert not over
    assert budget.held_bytes == 0
    assert 40 < budget.peak_bytes <= budget.limit_bytes
    source.close()


# ── together ─────────────────────────────────────────────────────────────────────────────────────────────────────


def grouped(*groups: Iterable[Callable[[], object]], threads: int = 2, ahead: int = 100) -> Prefetcher:
    tasks = [Task(run, 1, more=place < len(runs) - 1) for runs in map(list, groups) for place, run in enumerate(runs)]
    return Prefetcher(iter(tasks), Budget(100), threads=threads, ahead_bytes=ahead)


@pytest.mark.parametrize("threads", [1, 3])
def test_results_that_belong_together_come_together(threads: int) -> None:
    source = grouped([give(1), give(2), give(3)], [give(4)], [give(5), give(6)], threads=threads)
    assert [source.take(), source.take(), source.take()] == [[1, 2, 3], [4], [5, 6]]
    with pytest.raises(StopIteration):
        source.take()
    source.close()


def test_it_is_ready_when_all_that_belongs_together_is_done() -> None:
    last = threading.Event()
    source = grouped([give(1), last.wait], [give(2)], threads=3)
    assert not source.ready()
    source.start()
    while 2 not in source._shared.done:  # a later one is
        pass
    assert not source.ready()
    last.set()
    while not source.ready():
        pass
    assert source.take() == [1, True]
    assert source.take() == [2]
    assert not source.ready()
    source.close()


def test_an_error_among_results_that_belong_together_comes_once_and_the_rest_after_it() -> None:
    source = grouped([give(1), fail(KeyError("broken")), give(3), give(4)], [give(5)])
    with pytest.raises(KeyError, match="broken"):
        source.take()
    assert [source.take(), source.take()] == [[3, 4], [5]]
    source.close()


def test_results_that_can_never_be_all_there_are_an_error_and_no_hang() -> None:
    tasks = [Task(give(1), 6, more=True), Task(give(2), 6)]
    source = Prefetcher(iter(tasks), Budget(10), threads=2, ahead_bytes=1000)
    with pytest.raises(AssertionError, match="can never run"):
        source.take()
    source.close()


# ── how far ahead ────────────────────────────────────────────────────────────────────────────────────────────────


def groups_of_three(*, cost: int = 1, ahead: int = 0) -> tuple[Prefetcher, list[int]]:
    """Endless tasks, three a group, and those that were run."""
    started: list[int] = []
    tasks = (Task(functools.partial(started.append, number), cost, more=number % 3 < 2) for number in itertools.count())
    source = Prefetcher(tasks, Budget(1000), threads=2, ahead_bytes=ahead)
    source.start()
    return source, started


def test_one_group_is_run_before_any_is_asked_for() -> None:
    source, started = groups_of_three()
    wait_until_idle(source)
    source.close()
    assert sorted(started) == [0, 1, 2]


def test_the_group_in_use_and_the_next_one_are_run_and_no_more() -> None:
    source, started = groups_of_three()
    for taken in range(1, 5):
        source.take()
        source._shared.budget.release(3)  # which is when threads look again
        wait_until_idle(source)
        assert sorted(started) == [*range(3 * taken + 3)]
    source.close()


def test_a_group_that_is_waited_for_is_in_use_and_the_next_one_is_run_meanwhile() -> None:
    begun = threading.Event()
    source = grouped([begun.wait], [begun.set], [give(3)], ahead=0)
    assert take_all(source) == [True, None, 3]  # if nothing was run meanwhile, this would hang
    source.close()


def test_tiny_groups_are_run_ahead_up_to_some_bytes() -> None:
    source, started = groups_of_three(cost=2, ahead=40)
    wait_until_idle(source)
    assert sorted(started) == [*range(20)]
    source.take()
    source._shared.budget.release(6)
    wait_until_idle(source)
    source.close()
    assert sorted(started) == [*range(23)]


def test_threads_that_cannot_be_started_are_an_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    source = Prefetcher(iter([Task(give(1), 1)]), Budget(1), threads=2, ahead_bytes=3)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        take(source)
    source.close()


def test_no_task_is_run_before_the_start() -> None:
    started: list[int] = []
    source = Prefetcher(iter([Task(lambda: started.append(1), 1)]), Budget(1), threads=2, ahead_bytes=3)
    assert threads_of(source) == []
    source.close()
    source.start()
    assert threads_of(source) == []
    assert started == []


def test_a_task_that_does_not_fit_waits_until_bytes_are_given_back() -> None:
    budget = Budget(10)
    released = threading.Event()
    source = Prefetcher(
        iter([Task(give("first"), 6), Task(lambda: released.is_set(), 6)]), budget, threads=2, ahead_bytes=1000
    )
    assert take(source) == "first"
    released.set()
    budget.release(6)
    assert take(source) is True
    assert budget.peak_bytes == 6
    source.close()


def test_a_thread_that_has_to_wait_rests_first() -> None:
    rested = threading.Event()
    budget = Budget(10)
    tasks = iter([Task(give(1), 6), Task(give(2), 6)])
    source = Prefetcher(tasks, budget, threads=1, ahead_bytes=1000, rest=rested.set)
    assert take(source) == 1
    rested.wait()
    budget.release(6)
    assert take(source) == 2
    source.close()


@pytest.mark.parametrize("held", [0, 5])
def test_a_task_that_can_never_run_is_an_error_and_no_hang(held: int) -> None:
    source = Prefetcher(iter([Task(give(1), held), Task(give(2), 11 - held)]), Budget(10), threads=2, ahead_bytes=1000)
    assert take(source) == 1
    with pytest.raises(AssertionError, match=f"a task of {11 - held} bytes can never run within a budget of 10"):
        take(source)
    source.close()


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_an_error_comes_once_where_its_result_would_have_come(threads: int) -> None:
    source = prefetcher([give(1), give(2), fail(KeyError("broken")), give(4)], threads=threads)
    assert [take(source), take(source)] == [1, 2]
    with pytest.raises(KeyError, match="broken"):
        take(source)
    assert take_all(source) == [4]
    source.close()


def test_even_a_system_exit_in_a_task_comes_out_of_take() -> None:
    source = prefetcher([fail(SystemExit(3)), give(2)])
    with pytest.raises(SystemExit):
        take(source)
    assert take(source) == 2
    source.close()


def test_an_error_of_the_plan_comes_after_the_results_of_the_tasks_before_it() -> None:
    def plan() -> Iterator[Task[int]]:
        yield Task(lambda: 1, 1)
        yield Task(lambda: 2, 1)
        raise KeyError("no plan")

    source = Prefetcher(plan(), Budget(10), threads=3, ahead_bytes=1000)
    assert [take(source), take(source)] == [1, 2]
    with pytest.raises(KeyError, match="no plan"):
        take(source)
    with pytest.raises(StopIteration):
        take(source)
    source.close()


def test_an_error_that_is_kept_does_not_keep_what_the_task_held() -> None:
    seen = []

    def run() -> None:
        thing = Thing()
        seen.append(weakref.ref(thing))
        raise KeyError("broken")

    source = prefetcher([run])
    with pytest.raises(KeyError) as caught:
        take(source)
    source.close()
    assert caught.value.__traceback__ is not None
    assert seen[0]() is None


def test_an_error_is_in_no_reference_cycle() -> None:
    class BrokenError(Exception):
        pass

    def run() -> None:
        raise BrokenError

    source = prefetcher([run])
    gc.disable()
    try:
        try:
            take(source)
        except BrokenError as error:
            seen = weakref.ref(error)
        assert seen() is None
    finally:
        gc.enable()
        source.close()


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def waiting_for_budget() -> Prefetcher:
    source = prefetcher([give(1), give(2), give(3)], cost=60)
    take(source)
    return source


def waiting_for_the_consumer() -> Prefetcher:
    return prefetcher([give(1), give(2), give(3)], ahead=0)


def running() -> Prefetcher:
    def endless() -> Iterator[Callable[[], object]]:
        while True:
            yield lambda: sum(range(1000))

    source = prefetcher(endless(), cost=0, threads=4)
    take(source)
    return source


def out_of_tasks() -> Prefetcher:
    return prefetcher([])


MOMENTS = [waiting_for_budget, waiting_for_the_consumer, running, out_of_tasks]


@pytest.mark.parametrize("moment", MOMENTS)
def test_close_ends_every_thread(moment: Callable[[], Prefetcher]) -> None:
    source = moment()
    threads = threads_of(source)
    source.close()
    assert threads
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("moment", MOMENTS)
def test_dropping_a_prefetcher_ends_every_thread(moment: Callable[[], Prefetcher]) -> None:
    source = moment()
    threads = threads_of(source)
    del source
    assert not any(thread.is_alive() for thread in threads)


def test_a_prefetcher_in_a_reference_cycle_ends_with_garbage_collection() -> None:
    source = running()
    threads = threads_of(source)
    cycle: list[object] = [source]
    cycle.append(cycle)
    del source, cycle
    gc.collect()
    assert not any(thread.is_alive() for thread in threads)


def test_a_prefetcher_that_is_dropped_on_one_of_its_own_threads_ends() -> None:
    holder: list[Prefetcher] = []
    held = threading.Event()

    def drop() -> None:
        held.wait()
        holder.clear()

    holder.append(prefetcher([drop, *[give(1)] * 10]))
    threads = threads_of(holder[0])
    held.set()
    for thread in threads:
        thread.join()


def test_close_waits_for_the_task_that_runs() -> None:
    started, finish, finished = threading.Event(), threading.Event(), []

    def run() -> None:
        started.set()
        finish.wait()
        finished.append(True)

    source = prefetcher([run])
    started.wait()
    threading.Timer(0.05, finish.set).start()
    source.close()
    assert finished


def test_halt_does_not_wait_for_the_task_that_runs() -> None:
    finish = threading.Event()
    source = prefetcher([finish.wait])
    source.halt()  # if it waited, this would hang
    finish.set()
    source.close()


def test_closing_wakes_a_consumer_that_waits_on_another_thread() -> None:
    finish, caught = threading.Event(), []
    source = prefetcher([finish.wait])

    def consume() -> None:
        try:
            take(source)
        except LoaderClosedError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    while not source._shared.bell.awaited:
        pass
    source.halt()
    consumer.join()
    finish.set()
    source.close()
    assert len(caught) == 1


def test_take_after_close_is_an_error() -> None:
    source = prefetcher([give(1), give(2)])
    source.close()
    with pytest.raises(LoaderClosedError):
        take(source)


def test_closing_twice_is_fine() -> None:
    source = prefetcher([give(1)])
    source.close()
    source.close()


def test_close_drops_results_that_nobody_took() -> None:
    seen = []
    made = threading.Event()

    def run() -> Thing:
        thing = Thing()
        seen.append(weakref.ref(thing))
        made.set()
        return thing

    source = prefetcher([run])
    made.wait()
    source.close()
    assert seen[0]() is None


def test_a_thread_keeps_no_result_that_was_taken() -> None:
    source = prefetcher([Thing, lambda: None])
    seen = weakref.ref(take(source))
    take(source)
    source.close()
    assert seen() is None
