"""Helpers decode what threads decode, to the same batches; and none of them outlives its loader, whatever ends that."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from subprocesses import finish, run, start
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import Batch, ConfigError, DataError, HelperError, ParquetLoader, build_index
from parquet_loader.engine import prefetch, processes, segments
from parquet_loader.engine.segments import SegmentPool
from parquet_loader.options import LoaderOptions
from parquet_loader.storage.local import LocalStorage

OPTIONS = dict(seq_len=16, lanes=6, window=3)
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = unique_groups(random_files(np.random.default_rng(2), files=4, groups=5))
    return write_set(tmp_path_factory.mktemp("set"), files)


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row groups that are decoded in parts."""
    folder = tmp_path_factory.mktemp("huge")
    write_huge(folder / "a.parquet", 2_000_000, row_group_size=14_000)
    return folder


def write_huge(path: Path, tokens: int, **options: object) -> None:
    offsets = np.minimum(np.arange(0, tokens + 100, 100), tokens).astype(np.int32)
    table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, np.arange(tokens, dtype=np.int32))})
    pq.write_table(table, path, compression="none", **options)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert not children()
    assert len(os.listdir("/proc/self/fd")) <= before


def children() -> list[int]:
    """This process's helpers."""
    return [pid for pid in children_of(os.getpid()) if is_helper(pid)]


def children_of(pid: int) -> set[int]:
    """The processes that a process's threads have started; such as have ended may be among them."""
    found: list[str] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += (thread / "children").read_text().split()
    return set(map(int, found))


def is_helper(pid: int) -> bool:
    try:
        return b"parquet_loader.engine.helper" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def helpers_of(loader: ParquetLoader) -> list[int]:
    return [helper.process.pid for helper in loader._engine._helpers._helpers]


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while left := [pid for pid in pids if is_helper(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.01)


def take(loader: ParquetLoader, count: int) -> list[np.ndarray]:
    taken: list[np.ndarray] = []
    while len(taken) < count:
        for batch in loader:
            taken.append(batch.tokens)
            if len(taken) == count:
                break
    return taken


def epochs(loader: ParquetLoader) -> Iterator[Batch]:
    return (batch for _ in range(2) for batch in loader)


def first(source: object, count: int, **options: object) -> list[np.ndarray]:
    with ParquetLoader(source, **options) as loader:
        return take(loader, count)


def assert_same(mine: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


# ── the same as with threads ─────────────────────────────────────────────────────────────────────────────────────

RUNS = {
    "one helper": dict(processes=1),
    "two helpers": dict(processes=2),
    "more reads than helpers": dict(processes=2, requests=5),
    "fewer reads than helpers": dict(processes=2, requests=1),
    "eos": dict(processes=1, eos_id=7),
    "overlap": dict(processes=1, overlap=1),
    "in storage order": dict(processes=1, shuffle=False),
    "one of three ranks": dict(processes=1, rank=1, world_size=3),
    "more lanes than tokens in some windows": dict(processes=1, lanes=300, seq_len=3),
    "rows of eight bytes": dict(processes=1, dtype="int64"),
    "one row group a window": dict(processes=1, window=1),
    "an end": dict(processes=1, epochs=2),
}


@pytest.mark.parametrize("name", RUNS)
def test_batches_are_those_of_threads(folder: Path, name: str) -> None:
    options = OPTIONS | RUNS[name]
    with ParquetLoader(folder, **options) as mine, ParquetLoader(folder, **options | {"processes": 0}) as theirs:
        for one, other in zip(epochs(mine), epochs(theirs), strict=True):
            assert one.tokens.dtype == other.tokens.dtype
            assert np.array_equal(one.tokens, other.tokens)
            assert_same(list(one.document_starts()), list(other.document_starts()))
            assert one.state == other.state


@pytest.mark.parametrize(
    "options", [dict(lanes=3), dict(lanes=40, eos_id=5, world_size=2), dict(lanes=2, dtype="int64")]
)
def test_huge_row_groups_come_in_parts_and_their_bands_together(huge: Path, options: dict) -> None:
    options = dict(seq_len=4096, window=1, **options)
    count = 300
    assert_same(first(huge, count, processes=2, **options), first(huge, count, threads=1, **options))


def test_tiny_row_groups_are_decoded_together(tmp_path: Path) -> None:
    folder = write_set(tmp_path, unique_groups([[[50] * 20] * 100]))
    options = dict(seq_len=32, lanes=8)
    with ParquetLoader(folder, processes=2, **options) as loader:
        mine = take(loader, 400)
        assert loader.stats()["reads"] < loader.stats()["row_groups"] / 10
    assert_same(mine, first(folder, 400, threads=1, **options))


def test_a_mixture_shares_the_helpers(folder: Path, huge: Path) -> None:
    options = dict(seq_len=16, lanes=6, weights={"a": 0.3, "b": 0.7})
    with ParquetLoader({"a": folder, "b": huge}, processes=2, **options) as loader:
        mine = take(loader, 300)
        assert len(children()) == 2
    assert_same(mine, first({"a": folder, "b": huge}, 300, threads=2, **options))


def test_a_run_goes_on_with_helpers_where_threads_left_it_and_rows_may_change(folder: Path) -> None:
    with ParquetLoader(folder, threads=2, **OPTIONS) as loader:
        take(loader, 7)
        state = loader.state_dict()
    found = []
    for options in (dict(processes=2, world_size=2, rank=0), dict(threads=2, world_size=2, rank=0)):
        with ParquetLoader(folder, **OPTIONS | {"seq_len": 24} | options) as loader:
            loader.load_state_dict(state)
            found.append(take(loader, 30))
    assert_same(*found)


def test_counts_are_those_of_threads(folder: Path) -> None:
    counts = []
    for options in (dict(processes=2), dict(threads=2)):
        with ParquetLoader(folder, epochs=2, eos_id=3, **OPTIONS, **options) as loader:
            for _ in range(2):
                for _batch in loader:
                    pass
            stats = loader.stats()
            counts.append([stats[name] for name in ("reads", "bytes_read", "row_groups", "tokens_decoded", "retries")])
    assert counts[0] == counts[1]


def test_no_helper_is_started_before_the_first_batch(folder: Path) -> None:
    with ParquetLoader(folder, processes=2, **OPTIONS) as loader:
        batches = iter(loader)
        assert not children()
        next(batches)
        assert len(children()) == 2


def test_a_batch_outlives_its_window_and_its_loader(folder: Path) -> None:
    with ParquetLoader(folder, processes=1, **OPTIONS) as loader:
        batches = [batch for _ in range(2) for batch in loader]
    expected = first(folder, len(batches), **OPTIONS)
    assert_same([batch.tokens for batch in batches], expected)
    assert all(len(batch.document_starts()[0]) for batch in batches)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


def least_budget(source: object, **options: object) -> int:
    with pytest.raises(ConfigError, match="too small") as caught:
        ParquetLoader(source, budget_bytes=1, **options)
    return int(str(caught.value).split("at least ")[1].split(" ")[0].strip(",;").replace(",", ""))


@pytest.mark.parametrize("of", ["folder", "huge", "both"])
def test_the_least_budget_suffices_and_is_never_exceeded(folder: Path, huge: Path, of: str) -> None:
    source = {"folder": folder, "huge": huge, "both": {"a": folder, "b": huge}}[of]
    options: dict = dict(seq_len=64, lanes=6, window=2, processes=2)
    if of == "both":
        options |= dict(weights={"a": 1, "b": 1}, window=1)
    least = least_budget(source, **options)
    with ParquetLoader(source, budget_bytes=least, **options) as loader:
        mine = take(loader, 120)
        assert loader.stats()["peak_bytes"] <= least
    assert_same(mine, first(source, 120, threads=1, **options | {"processes": 0}))


def test_segments_are_used_again_where_there_is_room(huge: Path) -> None:
    with ParquetLoader(huge, processes=1, seq_len=4096, lanes=4, window=1) as loader:
        take(loader, 1000)
        pool = loader._engine._helpers.segments
        assert loader.stats()["row_groups"] > 6
        assert pool._made <= 4


def resident(pool: SegmentPool) -> int:
    """Bytes of the pool's segments that have pages."""
    held = [*pool._free, *(segment for _, segment in pool._lent)]
    return sum(os.fstat(segment.file).st_blocks * 512 for segment in held)


def test_a_pool_keeps_no_more_than_it_may() -> None:
    size = 100 << 12
    pool = SegmentPool(60 << 12)
    for _ in range(3):
        first_one, memory = pool.take(size, size)
        other, more = pool.take(size, size)
        for segment in (first_one, other):
            os.pwrite(segment.file, b"x" * size, 0)
        assert resident(pool) == 2 * size
        del memory
        pool.collect()
        assert resident(pool) == size + (60 << 12)
        del more
        pool.collect()
        assert resident(pool) == 60 << 12
    assert pool._made == 2


def test_a_segment_that_is_used_again_counts_what_its_window_does_not_yet() -> None:
    pool = SegmentPool(100 << 12)
    segment, memory = pool.take(100 << 12, 100 << 12)
    os.pwrite(segment.file, b"x" * (100 << 12), 0)
    del memory
    again, memory = pool.take(80 << 12, 0)
    assert again is segment
    os.pwrite(again.file, b"x" * (80 << 12), 0)
    other, more = pool.take(50 << 12, 50 << 12)
    os.pwrite(other.file, b"x" * (50 << 12), 0)
    pool.count(segment, 70 << 12)  # 10 pages of it are not counted yet
    del more
    pool.collect()
    assert resident(pool) == (80 + 50) << 12
    del memory
    pool.collect()
    assert resident(pool) == (50 + 50) << 12


def test_a_segment_that_is_too_small_makes_room_for_a_larger_one() -> None:
    pool = SegmentPool(100 << 12)
    small, memory = pool.take(50 << 12, 50 << 12)
    os.pwrite(small.file, b"x" * (50 << 12), 0)
    helpers_own = mmap.mmap(small.file, 50 << 12)
    del memory
    large, _kept = pool.take(2_000 << 12, 0)
    assert pool.numbers == {large.number}
    assert resident(pool) == 0 == os.fstat(small.file).st_blocks
    helpers_own.close()


def test_without_files_in_memory_segments_are_files_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with ParquetLoader(folder, processes=1, **OPTIONS) as loader:
        mine = take(loader, 40)
        held = loader._engine._helpers.segments._lent
        paths = [os.readlink(f"/proc/self/fd/{segment.file}") for _, segment in held]
    assert paths
    assert all(path.endswith("(deleted)") and "memfd" not in path for path in paths)
    assert_same(mine, first(folder, 40, **OPTIONS))


def test_where_the_system_forbids_files_in_memory_there_is_one_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_: str) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", forbidden, raising=False)
    file = segments.new_file()
    os.write(file, b"x")
    assert os.fstat(file).st_nlink == 0
    os.close(file)


# Pages of a kind that are all kept until the part is decoded, in a row group that is one page.
LARGE_PAGES = dict(
    row_group_size=1 << 30,
    data_page_size=1 << 30,
    use_dictionary=False,
    column_encoding={"tokens.list.element": "DELTA_BINARY_PACKED"},
)


def test_pages_larger_than_thought_are_decoded_where_the_budget_has_room_and_refused_elsewhere(tmp_path: Path) -> None:
    write_huge(tmp_path / "a.parquet", 3_000_000, **LARGE_PAGES)
    options: dict = dict(seq_len=1000, lanes=8, window=1)
    with ParquetLoader(tmp_path, processes=1, **options) as loader:
        mine = take(loader, 10)
    assert_same(mine, first(tmp_path, 10, threads=1, **options))
    texts = []
    for how in (dict(processes=1), dict(threads=1)):
        least = least_budget(tmp_path, **options, **how)
        with (
            pytest.raises(ConfigError, match="larger pages than most") as caught,
            ParquetLoader(tmp_path, budget_bytes=least, **options, **how) as loader,
        ):
            next(iter(loader))
        texts.append(str(caught.value).split("budget_bytes")[0])
    assert texts[0] == texts[1]


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_error_of_a_file_is_that_of_threads(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"tokens": [[1, 2, 3]] * 500}), path, compression="none", use_dictionary=False, row_group_size=250
    )
    data = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data[chunk.data_page_offset : chunk.data_page_offset + 20] = b"\xff" * 20
    path.write_bytes(data)
    found = []
    for how in (dict(processes=1), dict(threads=1)):
        with pytest.raises(DataError) as caught, ParquetLoader(tmp_path, seq_len=8, lanes=2, **how) as loader:
            next(iter(loader))
        found.append((str(caught.value), caught.value.path, caught.value.row_group, caught.value.column))
    assert found[0] == found[1]
    assert found[0][1:3] == ("a.parquet", 1)


def test_an_error_comes_once_and_the_next_call_goes_on_there(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "set"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
        os.utime(copy / file.name, ns=(1, 1))
    with ParquetLoader(copy, processes=2, **OPTIONS) as loader:
        taken = take(loader, 5)
        for file in copy.iterdir():
            file.rename(file.with_suffix(".away"))
        with pytest.raises(OSError, match="it is gone") as caught:
            while True:
                taken += take(loader, 1)
        assert isinstance(caught.value.__cause__, FileNotFoundError)
        for file in copy.iterdir():
            file.rename(file.with_suffix(".parquet"))
        taken += take(loader, 30)
    assert_same(taken, first(folder, len(taken), **OPTIONS))


def test_windows_may_be_used_up_before_the_next_task_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit, count = prefetch._admit, SegmentPool.count
    free: list[segments.Segment] = []

    def late(shared: Any) -> Any:
        time.sleep(0.01)
        return admit(shared)

    def looked_at(pool: SegmentPool, segment: segments.Segment, more_bytes: int) -> None:
        free.extend(each for each in pool._free if each is segment)
        count(pool, segment, more_bytes)

    monkeypatch.setattr(prefetch, "_admit", late)
    monkeypatch.setattr(SegmentPool, "count", looked_at)
    options = {**OPTIONS, "window": 1, "requests": 1}
    expected = first(folder, 150, **options)
    with ParquetLoader(folder, processes=1, **options) as loader:
        assert_same(take(loader, 150), expected)
    assert not free  # nothing is counted for a window whose memory is another's


def test_files_in_this_processs_memory_are_refused() -> None:
    fsspec.filesystem("memory").pipe_file("/processes/a.parquet", b"")
    with pytest.raises(ConfigError, match="in this process's memory; use threads"):
        ParquetLoader("memory://processes", processes=2, **OPTIONS)


def test_an_index_serves_copies_of_its_files_to_helpers_too(folder: Path, tmp_path: Path) -> None:
    index = build_index(folder)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
        os.utime(tmp_path / file.name, ns=(1, 1))
    assert_same(first(tmp_path, 30, index=index, processes=1, **OPTIONS), first(folder, 30, **OPTIONS))


@pytest.mark.parametrize("wrong", [-1, 65, True, "2"])
def test_processes_are_a_small_number(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"processes must be an integer in \[0, 64\]"):
        LoaderOptions(seq_len=8, lanes=2, processes=wrong)


def test_none_are_no_processes() -> None:
    assert LoaderOptions(seq_len=8, lanes=2, processes=None).processes == 0


def test_a_storage_that_cannot_be_pickled_is_refused(folder: Path) -> None:
    class Locked(LocalStorage):
        def __init__(self, path: str) -> None:
            super().__init__([path])
            self.lock = threading.Lock()

    with pytest.raises(ConfigError, match=r"a .*Locked cannot be pickled .*; use threads"):
        ParquetLoader(Locked(str(folder)), processes=2, **OPTIONS)


def test_a_storage_of_the_main_module_is_refused_and_one_of_another_is_not(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from parquet_loader.storage.local import LocalStorage\nclass Mine(LocalStorage): pass\n"
    )
    program = """
        import sys
        from parquet_loader import Batch, ConfigError, ParquetLoader
        sys.path.append(sys.argv[2])
        from mine import Mine
        class Local(Mine): pass
        try:
            ParquetLoader(Local([sys.argv[1]]), seq_len=16, lanes=6, processes=1)
        except ConfigError as error:
            print(error)
        with ParquetLoader(Mine([sys.argv[1]]), seq_len=16, lanes=6, processes=1) as loader:
            next(iter(loader))
    """
    assert "class Local is; put that into a module of its own" in run(program, folder, tmp_path)


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_helper_that_is_killed_is_an_error_and_the_next_call_goes_on(folder: Path) -> None:
    expected = first(folder, 200, **OPTIONS)
    with ParquetLoader(folder, processes=2, **OPTIONS) as loader:
        taken = take(loader, 5)
        os.kill(helpers_of(loader)[0], signal.SIGKILL)
        with pytest.raises(HelperError, match=r"decoding process \d+ was ended by SIGKILL, as the system does when"):
            while len(taken) < 200:
                taken += take(loader, 1)
        assert_same(taken + take(loader, 200 - len(taken)), expected)


def test_a_helper_that_has_ended_is_noticed_where_a_fork_keeps_its_end_of_the_socket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LOOK_SECONDS", 1)
    kept: list[int] = []
    real_pair = socket.socketpair

    def pair() -> tuple[socket.socket, socket.socket]:
        mine, other = real_pair()
        kept.append(os.dup(other.fileno()))
        return mine, other

    monkeypatch.setattr(socket, "socketpair", pair)
    with ParquetLoader(folder, processes=1, **OPTIONS) as loader:
        take(loader, 1)
        os.kill(helpers_of(loader)[0], signal.SIGKILL)
        with pytest.raises(HelperError, match="SIGKILL"):
            take(loader, 300)
    for descriptor in kept:
        os.close(descriptor)


def test_a_helper_that_understands_nothing_ends_with_its_reason_on_stderr(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after an upgrade of the package beneath a loader that runs."""
    monkeypatch.setattr(processes, "Request", lambda *_: "of another version")
    with (
        ParquetLoader(folder, processes=1, **OPTIONS) as loader,
        pytest.raises(HelperError, match="exit status 1; what it wrote to stderr says why"),
    ):
        next(iter(loader))
    assert "Traceback" in capfd.readouterr().err


def test_a_helper_that_cannot_start_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/python")
    with (
        ParquetLoader(folder, processes=2, **OPTIONS) as loader,
        pytest.raises(HelperError, match=r"cannot start a decoding process: .*/no/python.*; use threads"),
    ):
        next(iter(loader))


def test_close_ends_helpers_that_are_busy(huge: Path) -> None:
    loader = ParquetLoader(huge, processes=2, seq_len=4096, lanes=3, window=1)
    next(iter(loader))
    assert len(children()) == 2
    loader.close()
    assert not children()


def test_close_on_another_thread_ends_helpers_that_start(folder: Path) -> None:
    loader = ParquetLoader(folder, processes=2, **OPTIONS)
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            next(iter(loader))
        except BaseException as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    while not children():
        time.sleep(0.001)
    loader.close()
    consumer.join()
    assert [type(error).__name__ for error in caught] == ["LoaderClosedError"]
    assert not children()


def test_a_loader_that_nobody_holds_takes_its_helpers_along(folder: Path) -> None:
    gc.disable()
    try:
        batches = iter(ParquetLoader(folder, processes=1, **OPTIONS))
        next(batches)
        assert children()
        del batches
        assert not children()
    finally:
        gc.enable()


PROGRAM = """
    import os, signal, sys, threading, time
    from parquet_loader import ParquetLoader

    loader = ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, processes=2)
    batches = iter(loader)
    next(batches)
    print(*[helper.process.pid for helper in loader._engine._helpers._helpers], flush=True)
"""


def test_an_interpreter_that_exits_takes_its_helpers_along(folder: Path) -> None:
    pids = list(map(int, run(PROGRAM, folder).split()))
    assert not any(map(is_helper, pids))


def test_an_interpreter_that_is_killed_takes_its_helpers_along_even_where_a_fork_of_it_lives(folder: Path) -> None:
    program = (
        PROGRAM
        + """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    child = os.fork()
    if not child:
        time.sleep(1000)
        os._exit(0)
    print(child, flush=True)
    time.sleep(1000)
    """
    )
    process = start(program, folder)
    assert process.stdout is not None
    pids = list(map(int, process.stdout.readline().split()))
    child = int(process.stdout.readline())
    try:
        assert all(map(is_helper, pids))
        process.kill()
        wait_until_gone(pids)
        os.kill(child, 0)  # it is there
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_an_interrupt_of_the_whole_group_is_the_loaders_alone(folder: Path) -> None:
    program = (
        "import os; os.setpgid(0, 0)\n"
        + """
import sys, time
from parquet_loader import ParquetLoader

loader = ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, processes=2)
taken, batches = 0, len(loader)
try:
    for batch in loader:
        taken += 1
        if taken == 3:
            print("trains", flush=True)
            time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted")
assert all(helper.process.poll() is None for helper in loader._engine._helpers._helpers)
for batch in loader:
    taken += 1
assert taken == batches
"""
    )
    process = start(program, folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "trains\n"
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process) == "interrupted\n"


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "0<&- 1>&- 2>&-"])
def test_standard_streams_may_be_closed(folder: Path, tmp_path: Path, closed: str) -> None:
    program = (
        "import sys\nfrom parquet_loader import ParquetLoader\n"
        "with ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, processes=2) as loader:\n"
        "    length = len(loader)\n"
        "    count = sum(1 for _ in loader)\n"
        "open(sys.argv[2], 'w').write(str(count == length))\n"
    )
    arguments = [sys.executable, "-c", program, str(folder), str(tmp_path / "found")]
    subprocess.run(["bash", "-c", f'"$@" {closed}', "bash", *arguments], check=True, timeout=60)
    assert (tmp_path / "found").read_text() == "True"


def test_helpers_run_the_package_that_the_loader_runs(folder: Path, tmp_path: Path) -> None:
    """Which was found in a place that is relative to a folder that is not the current one any more."""
    copy = tmp_path / "rel" / "parquet_loader"
    shutil.copytree(Path(processes.__file__).parents[1], copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "engine/helper.py"):
        with (copy / name).open("a") as file:
            file.write("\nimport sys\nsys.stderr.write('of the copy\\n')\n")
    program = (
        "import os, sys\nos.chdir(sys.argv[2])\nsys.path.insert(0, 'rel')\n"
        "import parquet_loader\nos.chdir('/')\nsys.path.remove('rel')\n"
        "with parquet_loader.ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, processes=1) as loader:\n"
        "    next(iter(loader))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("of the copy") == 3  # the package twice, and what only a helper imports


def test_without_descriptors_the_error_says_so(folder: Path) -> None:
    program = """
import resource, sys
from parquet_loader import HelperError, ParquetLoader

with ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, processes=2) as loader:
    for more in range(4, 24, 3):
        used = len(__import__("os").listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, 4096))
        try:
            next(iter(loader))
        except HelperError as error:
            assert "descriptors" in str(error) or "cannot start a decoding process" in str(error), error
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
    next(iter(loader))
"""
    run(program, folder)


def test_an_interrupt_while_helpers_start_leaves_no_trace_of_them(folder: Path) -> None:
    program = (
        "import os; os.setpgid(0, 0)\n"
        + """
import sys
from parquet_loader import ParquetLoader

loader = ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, processes=2)
print("starts", flush=True)
try:
    next(iter(loader))
except KeyboardInterrupt:
    print("interrupted")
next(iter(loader))
"""
    )
    process = start(program, folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "starts\n"
    while not children_of(process.pid):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert finish(process) == "interrupted\n"


def test_a_fork_goes_on_with_helpers_of_its_own(folder: Path) -> None:
    program = (
        PROGRAM
        + """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    mine = next(batches).tokens
    child = os.fork()
    following = next(batches).tokens.tolist()
    print(following, flush=True)
    if not child:
        loader.close()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert all(helper.process.poll() is None for helper in loader._engine._helpers._helpers)
    """
    )
    lines = run(program, folder).splitlines()
    assert len(lines) == 3
    assert lines[1] == lines[2]
