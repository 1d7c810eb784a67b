"""Long use, shared and unusable folders, full disks and broken files, through whole loaders."""

from __future__ import annotations

import errno
import gc
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from subprocesses import finish, run, start
from unique_sets import unique_groups, write_set

from parquet_loader import DataError, ParquetLoader, ParquetLoaderError, StorageError, build_index
from parquet_loader.storage.atomic import write_atomically
from parquet_loader.testing import FaultyFiles

OPTIONS: dict[str, Any] = {"seq_len": 16, "lanes": 6, "window": 2, "threads": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[12] * 40 for _ in range(3)] for _ in range(4)]))


# ── long use ─────────────────────────────────────────────────────────────────────────────────────────────────────

# What a process of its own holds, where no other test's memory is reused: after a part of the rounds and after all.
ENDURE = """
    import gc, json, sys, threading
    import psutil
    from idle import wait_until_idle
    from parquet_loader import ParquetLoader

    folder, kind, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])

    def resources():
        gc.collect()
        process = psutil.Process()
        return {"rss": process.memory_info().rss, "threads": process.num_threads(), "descriptors": process.num_fds()}

    after = None
    if kind == "epochs":
        with ParquetLoader(folder, **options) as loader:
            for epoch in range(30):
                for batch in loader:
                    pass
                if epoch in (9, 29):
                    wait_until_idle(loader)  # a thread that reads has a file open
                    before, after = after, resources()
    else:
        for number in range(200):
            with ParquetLoader(folder, **options) as loader:
                for batch in loader:
                    pass
            if number == 66:
                before = resources()
        after = resources()
    print(json.dumps([before, after]))
"""
KEPT_BYTES = 8 << 20  # allocators give back late; the batches of the rounds in between are several times as much


@pytest.mark.parametrize("kind", ["epochs", "loaders"])
def test_neither_epochs_nor_loaders_grow_memory_threads_or_descriptors(folder: Path, kind: str) -> None:
    before, after = json.loads(run(ENDURE, folder, kind, json.dumps(OPTIONS)))
    assert after["threads"] <= before["threads"]
    assert after["descriptors"] <= before["descriptors"]
    assert after["rss"] - before["rss"] < KEPT_BYTES


# ── the cache folder ─────────────────────────────────────────────────────────────────────────────────────────────


def test_processes_that_share_a_cache_folder_while_it_is_wiped_get_the_same_batches(
    folder: Path, tmp_path: Path
) -> None:
    program = """
        import hashlib, json, sys, warnings
        from pathlib import Path
        from parquet_loader import ParquetLoader

        folder, cache, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
        for number in range(30):
            if number % 3 == 0:
                for path in cache.glob("*.index"):
                    path.unlink(missing_ok=True)
            with ParquetLoader(folder, cache_dir=cache, **options) as loader:
                print(hashlib.sha256(next(iter(loader)).tokens.tobytes()).hexdigest())
    """
    both = [start(program, folder, tmp_path / "cache", json.dumps(OPTIONS)) for _ in range(2)]
    seen = {line for process in both for line in finish(process).splitlines()}
    assert len(seen) == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".index"]


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Makes a folder one that nobody writes to, not even root: a bind mount, or, where those are forbidden, a mode."""
    mounted = []

    def make(path: Path) -> Path:
        if os.getuid():
            path.chmod(0o555)
        else:
            if os.system(f"mount --bind {path} {path} && mount -o remount,ro,bind {path}"):
                os.system(f"umount {path} 2>/dev/null")
                pytest.skip("root, and no mounts are allowed")
            mounted.append(path)
        return path

    yield make
    for path in mounted:
        os.system(f"umount {path}")


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_a_read_only_cache_folder_is_read_and_warned_of_only_where_it_should_be_written(
    folder: Path, tmp_path: Path, read_only: Callable[[Path], Path], is_warm: bool
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    if is_warm:
        build_index(folder, cache_dir=cache)
    before = sorted(cache.iterdir())
    read_only(cache)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with ParquetLoader(folder, cache_dir=cache, **OPTIONS) as loader:
            next(iter(loader))
    assert [str(warning.message)[:34] for warning in said] == (
        [] if is_warm else ["the index cache cannot be written "]
    )
    assert sorted(cache.iterdir()) == before


# ── a full disk ──────────────────────────────────────────────────────────────────────────────────────────────────

FULL_BYTES = 64 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.getuid() or os.system(f"mount -t tmpfs -o size={FULL_BYTES} none {disk} 2>/dev/null"):
        pytest.skip("no mounts are allowed")
    yield disk
    os.system(f"umount {disk}")


def fill(disk: Path) -> None:
    """Leave no byte."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_a_full_disk_costs_the_cache_a_warning_and_the_saved_index_and_checkpoint_nothing_old(
    folder: Path, small_disk: Path
) -> None:
    cache, saved, checkpoint = small_disk / "cache", small_disk / "saved.index", small_disk / "checkpoint"
    with ParquetLoader(folder, cache_dir=cache, **OPTIONS) as loader:
        expected = next(iter(loader)).tokens
        loader.index.save(saved)
        write_atomically(checkpoint, loader.checkpoint())
        before = {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()}
        assert len(before) == 3
        fill(small_disk)
        with pytest.raises(StorageError, match=r"cannot write the index .*saved\.index: No space left on device"):
            loader.index.save(saved)
        with pytest.raises(OSError, match="No space left on device"):
            write_atomically(checkpoint, loader.checkpoint())
    os.utime(folder / "part-000.parquet", ns=(1, 1))  # so that the cache must be written again
    with (
        pytest.warns(UserWarning, match="the index cache cannot be written.*No space left"),
        ParquetLoader(folder, cache_dir=cache, **OPTIONS) as loader,
    ):
        assert np.array_equal(next(iter(loader)).tokens, expected)
    (small_disk / "ballast").unlink()
    assert {path: path.read_bytes() for path in small_disk.rglob("*") if path.is_file()} == before


def test_a_file_that_may_grow_no_further_is_told_and_the_old_one_is_kept(folder: Path, tmp_path: Path) -> None:
    # The same without a file system of its own: the operating system breaks off a write in its middle.
    program = """
        import json, resource, signal, sys, warnings
        from pathlib import Path
        from parquet_loader import ParquetLoader, StorageError
        from parquet_loader.storage.atomic import write_atomically

        folder, place, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
        saved, checkpoint = place / "saved.index", place / "checkpoint"
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with ParquetLoader(folder, cache_dir=place / "cache", **options) as loader:
            loader.index.save(saved)
            write_atomically(checkpoint, loader.checkpoint())
            before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            for write in (lambda: loader.index.save(saved), lambda: write_atomically(checkpoint, loader.checkpoint())):
                try:
                    write()
                except OSError as error:
                    assert "File too large" in str(error), error
                else:
                    raise AssertionError("a write of more than is allowed succeeded")
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                ParquetLoader(folder, cache_dir=place / "other", **options)
            assert "cannot be written" in str(said[0].message), said
        assert not list((place / "other").iterdir())
        assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    """
    (tmp_path / "place").mkdir()
    run(program, folder, tmp_path / "place", json.dumps(OPTIONS))


# ── broken files ─────────────────────────────────────────────────────────────────────────────────────────────────

NAME = "part-002.parquet"
FAULTS: dict[str, tuple[Callable[[FaultyFiles, Path], None], type[ParquetLoaderError]]] = {
    "deleted": (lambda files, folder: files.delete(NAME), StorageError),
    "truncated": (lambda files, folder: files.truncate(NAME, 500), StorageError),
    "replaced": (
        lambda files, folder: files.replace(NAME, (folder / "part-001.parquet").read_bytes()),
        StorageError,
    ),
    "a flipped bit": (lambda files, folder: files.flip(NAME, 40), DataError),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_breaks_under_a_running_loader_is_named_and_once_mended_the_run_goes_on(
    tmp_path: Path, fault: str
) -> None:
    make, kind = FAULTS[fault]
    files = unique_groups([[[12] * 200 for _ in range(3)] for _ in range(4)])
    folder = write_set(tmp_path / "set", files, write_page_checksum=True)
    expected: list[np.ndarray] = []
    with ParquetLoader(folder, **OPTIONS) as loader:
        take_epochs(loader, expected)
    faulty, threads, got = FaultyFiles(folder), threading.active_count(), []
    with ParquetLoader(folder, **OPTIONS) as loader:
        got.append(next(iter(loader)).tokens)
        make(faulty, folder)
        for _ in range(2):  # the second time at once: nothing is lost in between
            with pytest.raises(kind, match=NAME):
                take_epochs(loader, got)
        assert len(got) < len(expected)
        faulty.undo()
        take_epochs(loader, got)
    gc.collect()
    assert threading.active_count() == threads
    assert np.array_equal(np.stack(got), np.stack(expected))


def take_epochs(loader: ParquetLoader, taken: list[np.ndarray]) -> None:
    """The rest of three epochs, or as much as there is before an error. The third is beyond what is read ahead."""
    while loader.epoch < 3:
        for batch in loader:
            taken.append(batch.tokens)  # noqa: PERF401  (what came before an error is wanted too)


def test_a_file_that_may_not_be_read_any_more_is_named_and_once_it_may_the_run_goes_on(tmp_path: Path) -> None:
    # Root may read everything, until it gives that up; a thread started later has it no more. The first loader imports
    # whatever is imported late, since afterwards the environment may be out of reach as well.
    program = """
        import ctypes, json, os, sys
        from pathlib import Path
        from parquet_loader import ParquetLoader, StorageError
        from parquet_loader.testing import FaultyFiles

        def obey_modes():
            libc, dac = ctypes.CDLL(None, use_errno=True), 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            header = (ctypes.c_uint32 * 2)(0x20080522, 0)
            sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable
            assert not libc.capget(header, sets)
            sets[0], sets[1] = sets[0] & ~dac, sets[1] & ~dac
            assert not libc.capset(header, sets), os.strerror(ctypes.get_errno())

        place, name, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
        files = FaultyFiles(place / "set")
        with ParquetLoader(place / "set", cache_dir=place / "cache", **options) as loader:
            expected = sum(1 for _ in loader)
        if not os.getuid():
            obey_modes()
        with ParquetLoader(place / "set", cache_dir=place / "cache", **options) as loader:
            taken = sum(1 for _ in loader)
            assert taken == len(loader) == expected
            files.forbid(name)
            try:
                while True:  # what was read ahead comes first
                    for _ in loader:
                        taken += 1
            except StorageError as error:
                assert name in str(error) and "not permitted" in str(error), error
            else:
                raise AssertionError("a file that may not be read was read")
            files.undo()
            epoch = loader.epoch
            for _ in loader:
                taken += 1
            assert loader.epoch == epoch + 1
            assert taken == loader.stats()["batches"]
    """
    write_set(tmp_path / "set", unique_groups([[[12] * 200 for _ in range(3)] for _ in range(4)]))
    run(program, tmp_path, NAME, json.dumps(OPTIONS))
