"""However a loader ends, nothing of it is left, and the position stays right."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from subprocesses import finish, run, start
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import LoaderClosedError, ParquetLoader

OPTIONS = dict(seq_len=16, lanes=6, window=3, threads=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = unique_groups(random_files(np.random.default_rng(2), files=4, groups=5))
    return write_set(tmp_path_factory.mktemp("set"), files)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row groups that take a while to decode."""
    return write_set(tmp_path_factory.mktemp("set"), [[[list(range(1000))] * 400] * 12])


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[np.ndarray]:
    with ParquetLoader(folder, **OPTIONS) as loader:
        return [batch.tokens for _ in range(3) for batch in loader]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("parquet-loader")]


# ── within a process ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_loader_starts_no_thread_before_the_first_batch(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        batches = iter(loader)
        assert not loader_threads()
        next(batches)
        assert len(loader_threads()) == 2


def test_close_ends_every_thread(folder: Path) -> None:
    loader = ParquetLoader(folder, **OPTIONS)
    next(iter(loader))
    loader.close()
    assert not loader_threads()


def test_leaving_a_with_block_ends_every_thread(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        next(iter(loader))
    assert not loader_threads()


def test_an_error_of_the_consumer_in_a_with_block_ends_every_thread(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), ParquetLoader(folder, **OPTIONS) as loader:
        for _ in loader:
            1 / 0
    assert not loader_threads()


def test_a_loader_that_nobody_holds_ends_at_once_and_without_garbage_collection(folder: Path) -> None:
    gc.disable()
    try:
        loader = ParquetLoader(folder, **OPTIONS)
        next(iter(loader))
        del loader
        assert not loader_threads()
    finally:
        gc.enable()


def test_a_half_consumed_iterator_that_is_dropped_takes_its_loader_along(folder: Path) -> None:
    batches = iter(ParquetLoader(folder, **OPTIONS))
    next(batches)
    assert loader_threads()
    del batches
    assert not loader_threads()


def test_a_loader_in_a_reference_cycle_ends_with_garbage_collection(folder: Path) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.myself = self
            self.loader = ParquetLoader(folder, **OPTIONS)
            self.batches = iter(self.loader)
            next(self.batches)

    Trainer()
    gc.collect()
    assert not loader_threads()


@pytest.mark.parametrize("take", [0, 1])
def test_closing_twice_is_fine(folder: Path, take: int) -> None:
    loader = ParquetLoader(folder, **OPTIONS)
    for _ in range(take):
        next(iter(loader))
    loader.close()
    loader.close()


def test_a_closed_loader_refuses_work_and_still_tells_its_position(folder: Path) -> None:
    loader = ParquetLoader(folder, **OPTIONS)
    batches = iter(loader)
    state = next(batches).state
    loader.close()
    for use in (
        lambda: next(batches),
        lambda: next(iter(loader)),
        lambda: loader.load_state_dict(state),
        lambda: loader.resume(loader.checkpoint()),
        loader.__enter__,
    ):
        with pytest.raises(LoaderClosedError, match="this loader is closed; make a new one"):
            use()
    assert loader.state_dict() == state
    assert loader.stats()["held_bytes"] == 0


def test_breaking_off_and_iterating_again_goes_on_with_the_next_batch(folder: Path, expected: list) -> None:
    taken = []
    with ParquetLoader(folder, **OPTIONS) as loader:
        while len(taken) < len(expected):
            for batch in loader:
                taken.append(batch.tokens)
                if len(taken) % 3 == 0:
                    break
    assert all(map(np.array_equal, taken, expected))


def test_closing_on_another_thread_ends_a_consumer_that_waits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ParquetLoader(folder, **OPTIONS)
    reading, read_on, caught = threading.Event(), threading.Event(), []
    real_read = loader._config.storage.read

    def slow_read(*arguments: object) -> bytes:
        reading.set()
        read_on.wait()
        return real_read(*arguments)

    monkeypatch.setattr(loader._config.storage, "read", slow_read)

    def consume() -> None:
        try:
            next(iter(loader))
        except LoaderClosedError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    reading.wait()
    closer = threading.Thread(target=loader.close)
    closer.start()
    consumer.join()  # ended by the close, which itself still waits for the read
    assert len(caught) == 1
    read_on.set()
    closer.join()


# ── interpreter exit ─────────────────────────────────────────────────────────────────────────────────────────────

ENDINGS = {
    "half-way through an epoch": "next(batches)",
    "with a loader in a cycle": "next(batches); cycle = [loader, batches]; cycle.append(cycle); del loader, batches",
    "in the middle of the first reads": """
import threading
consumer = threading.Thread(target=lambda: next(batches), daemon=True)
consumer.start()
while loader._engine is None or loader._engine.budget.held_bytes == 0:
    pass
""",
    "while threads wait for budget": """
next(batches)
held = 0
while loader.stats()["held_bytes"] + 9_000_000 < loader.stats()["budget_bytes"]:
    time.sleep(0.001)
""",
    "by sys.exit in the loop": "\nfor batch in batches:\n    sys.exit()",
    "after close": "next(batches); loader.close()",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interpreter_exits_cleanly(large: Path, ending: str) -> None:
    program = (
        "import sys, time\nfrom parquet_loader import ParquetLoader\n"
        "loader = ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=12, threads=4, budget_bytes=28_000_000)\n"
        "batches = iter(loader)\n"
    )
    run(program + ENDINGS[ending], large)


# ── interrupts ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_interrupt_while_waiting_for_a_read_that_hangs_comes_at_once_and_loses_nothing(
    folder: Path, expected: list
) -> None:
    program = """
        import sys, threading
        import numpy as np
        from parquet_loader import ParquetLoader
        from parquet_loader.storage.local import LocalStorage

        reading_on, first = threading.Event(), iter([True])
        real_read = LocalStorage.read

        def read(self, file, start, length, stop=None):
            if file.path.startswith("part-002") and not reading_on.is_set():
                if next(first, False):
                    print("hangs", flush=True)
                reading_on.wait()
            return real_read(self, file, start, length)

        loader = ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, threads=2)
        LocalStorage.read = read
        taken = []
        while len(taken) < 50:
            try:
                for batch in loader:
                    taken.append(batch.tokens)
            except KeyboardInterrupt:
                assert not reading_on.is_set()
                print("interrupted", flush=True)
                reading_on.set()
        loader.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("parquet-loader")]
        np.save(sys.argv[2], np.stack(taken[:50]))
    """
    result = folder / "taken.npy"
    process = start(program, folder, result)
    assert process.stdout is not None
    assert process.stdout.readline() == "hangs\n"
    process.send_signal(signal.SIGINT)
    assert "interrupted\n" in finish(process)
    assert np.array_equal(np.load(result), np.stack(expected[:50]))
    result.unlink()


def test_an_interrupt_between_batches_ends_cleanly(folder: Path) -> None:
    program = """
        import sys, threading, time
        from parquet_loader import ParquetLoader

        try:
            with ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, threads=2) as loader:
                for batch in loader:
                    print("trains", flush=True)
                    time.sleep(1000)
        except KeyboardInterrupt:
            assert loader.state_dict() == batch.state
            assert threading.active_count() == 1
            print("interrupted")
    """
    process = start(program, folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "trains\n"
    process.send_signal(signal.SIGINT)
    assert finish(process) == "interrupted\n"


def test_an_interrupt_that_is_not_caught_ends_the_process_as_python_does(folder: Path) -> None:
    program = """
        import sys, time
        from parquet_loader import ParquetLoader

        for batch in ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, threads=2):
            print("trains", flush=True)
            time.sleep(1000)
    """
    process = start(program, folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "trains\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert err.splitlines()[0] == "Traceback (most recent call last):"
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    assert err.count("Traceback") == 1


def test_interrupts_at_any_moment_lose_repeat_and_damage_nothing(folder: Path, expected: list) -> None:
    program = """
        import random, signal, sys, threading
        import numpy as np
        from parquet_loader import ParquetLoader

        armed = False

        def interrupt(*_):
            global armed
            if armed:
                armed = False
                raise KeyboardInterrupt

        rng = random.Random(0)
        signal.signal(signal.SIGALRM, interrupt)
        taken, interrupts, seconds = [], 0, 4e-3
        with ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, threads=2) as loader:
            state = loader.state_dict()
            while len(taken) < int(sys.argv[3]):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, seconds))
                try:
                    armed = True
                    batch = next(iter(loader))
                    armed = False
                except KeyboardInterrupt:
                    interrupts += 1
                    seconds *= 1.5  # on a busy machine, too, a batch comes through in the end
                    # An interrupt on the very way out loses the batch for the caller, who goes back as a trainer would.
                    loader.load_state_dict(state)
                    continue
                taken.append(batch.tokens)
                state, seconds = batch.state, 4e-3
                if rng.random() < 0.2:
                    loader.load_state_dict(state)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join()
        np.save(sys.argv[2], np.stack(taken))
        print(interrupts)
    """
    result = folder / "taken.npy"
    interrupts = int(run(program, folder, result, len(expected)))
    assert interrupts > 10
    assert np.array_equal(np.load(result), np.stack(expected))
    result.unlink()


@pytest.fixture(scope="module", autouse=True)
def older_objects_are_left_alone() -> Iterator[None]:
    """Those of other tests and their packages are millions, and a collection looks at each."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def garbage_is_collected() -> Iterator[None]:
    """What one test leaves to garbage collection is not found by the next."""
    yield
    gc.collect()
