"""What batches were waited for, and how far ahead a loader is."""

from __future__ import annotations

import copy
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader
from parquet_loader.engine import prefetch, task
from parquet_loader.engine.prefetch import Budget, Clock, Prefetcher, Task
from parquet_loader.storage.local import LocalStorage

CAUSES = ("storage", "decoding", "budget")


class HandClock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def hand_clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(prefetch, "now", clock)
    return clock


Waits = dict[tuple[int, str], float]


def prefetcher(tasks: Iterator[Task[int]], waits: Waits, *, limit: int = 100, threads: int = 1) -> Prefetcher[int]:
    def waited(stream: int, cause: str, seconds: float) -> None:
        waits[stream, cause] = waits.get((stream, cause), 0) + seconds

    return Prefetcher(tasks, Budget(limit), threads=threads, ahead_bytes=0, waited=waited)


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def nonzero(waits: Waits) -> Waits:
    return {key: seconds for key, seconds in waits.items() if seconds}


def test_a_wait_is_split_where_the_task_goes_on_from_storage_to_decoding(hand_clock: HandClock) -> None:
    waits: Waits = {}

    def run(clock: Clock) -> int:
        until(lambda: source._shared.bell.awaited)
        hand_clock.seconds += 5
        clock.has_fetched()
        hand_clock.seconds += 3
        return 1

    clock = Clock()
    source = prefetcher(iter([Task(functools.partial(run, clock), 1, stream=2, clock=clock)]), waits)
    assert source.take(2) == [1]
    assert nonzero(waits) == {(2, "storage"): 5, (2, "decoding"): 3}
    source.close()


def test_what_was_done_before_it_was_asked_for_is_not_waited_for(hand_clock: HandClock) -> None:
    waits: Waits = {}

    def run() -> int:
        hand_clock.seconds += 5
        return 1

    source = prefetcher(iter([Task(run, 1)]), waits)
    source.start()
    until(source.ready)
    assert source.take() == [1]
    assert not nonzero(waits)
    source.close()


def test_a_task_that_there_was_no_room_for_is_waited_for_by_the_budget(hand_clock: HandClock) -> None:
    waits: Waits = {}
    clocks = [Clock(), Clock()]

    def first() -> int:
        clocks[0].has_fetched()
        return 1

    def second() -> int:
        until(lambda: source._shared.bell.awaited)
        hand_clock.seconds += 7  # of which it would have been done 4 earlier
        clocks[1].has_fetched()
        return 2

    tasks = [Task(first, 100, clock=clocks[0]), Task(second, 100, clock=clocks[1])]
    source = prefetcher(iter(tasks), waits)
    assert source.take() == [1]
    until(lambda: source._shared.short is not None)
    hand_clock.seconds += 4
    source._shared.budget.release(100)
    assert source.take() == [2]
    assert nonzero(waits) == {(0, "budget"): 4, (0, "storage"): 3}
    source.close()


def test_a_wait_that_is_broken_off_is_counted_and_ends(hand_clock: HandClock) -> None:
    waits: Waits = {}
    going, closed = threading.Event(), threading.Event()

    def run() -> int:
        going.set()
        closed.wait()
        return 1

    def close() -> None:
        going.wait()
        until(lambda: source._shared.bell.awaited)
        hand_clock.seconds += 2
        source.halt()
        hand_clock.seconds += 5
        closed.set()

    source = prefetcher(iter([Task(run, 1, clock=Clock())]), waits)
    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(prefetch.LoaderClosedError):
        source.take()
    closer.join()
    source.close()
    assert nonzero(waits) == {(0, "storage"): 2}


# ── loaders ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[100] * 40] * 12]))


OPTIONS: dict[str, Any] = dict(seq_len=20, lanes=4, window=4, epochs=1, threads=1)


def waited(loader: ParquetLoader) -> dict[str, float]:
    stats = loader.stats()
    found = {cause: stats[f"wait_{cause}_seconds"] for cause in CAUSES}
    assert stats["wait_seconds"] == pytest.approx(sum(found.values()))
    return found


def settle(loader: ParquetLoader) -> None:
    """Wait until the loader has read ahead as far as it may, or to its end."""
    shared = loader._engine._prefetcher._shared
    until(lambda: not shared.running and bool(shared.ended or shared.condition._waiters))


def takes_seconds(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, clock: HandClock, loader: ParquetLoader, root: str = ""
) -> None:
    """Have the clock go on where something is done, and nowhere else; for the first time once a batch is waited for."""
    function = getattr(owner, name)

    def noted(self: Any, *arguments: Any, **more: Any) -> Any:
        if not root or self.root == root:
            if not clock.seconds:
                until(lambda: loader._engine is not None and loader._engine._prefetcher._shared.bell.awaited)
            clock.seconds += 5
        return function(self, *arguments, **more)

    monkeypatch.setattr(owner, name, noted)


def test_a_new_loader_has_waited_for_nothing(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        assert waited(loader) == dict.fromkeys(CAUSES, 0)
        assert (loader.stats()["ahead_batches"], loader.stats()["ahead_tokens"]) == (0, 0)


def test_slow_storage_is_waited_for_as_storage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hand_clock: HandClock
) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        takes_seconds(monkeypatch, LocalStorage, "read", hand_clock, loader)
        assert len(list(loader)) == 600
        found = waited(loader)
    assert found["storage"] >= 5
    assert found["decoding"] == found["budget"] == 0


def test_slow_decoding_is_waited_for_as_decoding(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hand_clock: HandClock
) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        takes_seconds(monkeypatch, task._Run, "decode", hand_clock, loader)
        assert len(list(loader)) == 600
        found = waited(loader)
    assert found["decoding"] >= 5
    assert found["storage"] == found["budget"] == 0


@pytest.mark.parametrize("budget", ["least", "ample"])
def test_too_little_room_to_read_ahead_is_waited_for_as_the_budget(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hand_clock: HandClock, budget: str
) -> None:
    # Each row group is a task of its own, and what is held at a time is less than two windows of them.
    monkeypatch.setattr("parquet_loader.engine.plan.TASK_BYTES", 0)
    monkeypatch.setattr("parquet_loader.engine.cost.TASK_BYTES", 0)
    monkeypatch.setattr("parquet_loader.engine.cost._MOST_TASK_BYTES", 0)
    decode, options = task._Run.decode, dict(OPTIONS)
    if budget == "least":
        options["budget_bytes"] = least_budget(folder)
    trained = threading.Event()

    def slowly(self: Any, *arguments: Any) -> Any:
        if trained.is_set():
            until(lambda: loader._engine._prefetcher._shared.bell.awaited)
            hand_clock.seconds += 1
        return decode(self, *arguments)

    monkeypatch.setattr(task._Run, "decode", slowly)
    with ParquetLoader(folder, **options) as loader:
        batches = iter(loader)
        next(batches)
        settle(loader)
        trained.set()
        hand_clock.seconds += 100  # of training, while there is no room for more of the next window
        assert sum(1 for _ in batches) == 599
        found = waited(loader)
    assert found["storage"] == 0
    assert found["budget"] >= 1 if budget == "least" else found == dict.fromkeys(CAUSES, 0)


def least_budget(folder: Path) -> int:
    from parquet_loader.insight import open_run, plan
    from parquet_loader.options import LoaderOptions

    options = LoaderOptions(**OPTIONS)
    return plan(open_run(folder, options), world_sizes=[1]).world_sizes[0].least_bytes


def test_waits_of_helpers_are_told_apart_too(folder: Path, tmp_path: Path) -> None:
    with ParquetLoader(folder, **OPTIONS, processes=1) as loader:
        for _ in loader:
            pass
        found = waited(loader)
    assert found["decoding"] > 0
    assert found["storage"] > 0


def test_waits_of_a_mixture_are_told_by_source(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hand_clock: HandClock
) -> None:
    other = write_set(tmp_path / "other", unique_groups([[[100] * 40] * 12]))
    options = {**OPTIONS, "epochs": None, "weights": {"slow": 1, "fast": 1}}
    with ParquetLoader({"slow": folder, "fast": other}, **options) as loader:
        takes_seconds(monkeypatch, LocalStorage, "read", hand_clock, loader, root=str(folder))
        assert sum(1 for _ in zip(range(300), loader, strict=False)) == 300
        stats = loader.stats()
    sources = stats["sources"]
    assert stats["wait_seconds"] >= 5
    assert stats["wait_seconds"] == pytest.approx(sum(of["wait_seconds"] for of in sources.values()))
    assert sources["slow"]["wait_seconds"] >= 5


def test_a_copy_begins_with_no_waits_and_a_new_engine_goes_on_counting(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        next(iter(loader))
        before = loader.stats()["wait_seconds"]
        assert before > 0
        with copy.deepcopy(loader) as copied:
            assert copied.stats()["wait_seconds"] == 0
        loader.load_state_dict(loader.state_dict())
        assert loader.stats()["wait_seconds"] == before
        next(iter(loader))
        assert loader.stats()["wait_seconds"] > before


def test_what_is_ahead_can_be_taken_without_waiting(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        batches = iter(loader)
        next(batches)
        settle(loader)
        stats = loader.stats()
        assert stats["ahead_tokens"] == 48_000 - 80  # so small a set is read ahead as a whole
        assert stats["ahead_batches"] == 599
        for _ in range(stats["ahead_batches"]):
            next(batches)
        after = loader.stats()
    assert after["wait_seconds"] == stats["wait_seconds"]
    assert (after["ahead_batches"], after["ahead_tokens"]) == (0, 0)


def test_what_is_ahead_of_a_mixture_lasts_as_long_as_its_scarcest_source(folder: Path, tmp_path: Path) -> None:
    other = write_set(tmp_path / "other", unique_groups([[[100] * 40]]))
    options = {**OPTIONS, "epochs": None, "weights": {"a": 3, "b": 1}}
    with ParquetLoader({"a": folder, "b": other}, **options) as loader:
        batches = iter(loader)
        for _ in range(64):
            next(batches)
        settle(loader)
        stats = loader.stats()
        ahead = {name: of["ahead_tokens"] for name, of in stats["sources"].items()}
        assert stats["ahead_tokens"] == sum(ahead.values())
        assert stats["ahead_batches"] == min(ahead["a"] * 4 // 3, ahead["b"] * 4) // 80 > 0
        for _ in range(stats["ahead_batches"] // 64 * 64):
            next(batches)
        assert loader.stats()["wait_seconds"] == stats["wait_seconds"]


def test_a_closed_loader_still_tells(folder: Path) -> None:
    loader = ParquetLoader(folder, **OPTIONS)
    next(iter(loader))
    loader.close()
    assert loader.stats()["wait_seconds"] > 0
    assert loader.stats()["ahead_batches"] == 0
