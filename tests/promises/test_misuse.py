"""What a loader does where it is used in ways that it is not meant for: it works, or says so, and never guesses."""

from __future__ import annotations

import contextlib
import copy
import http.server
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import (
    CheckpointDamagedError,
    ConfigError,
    LoaderInUseError,
    ParquetLoader,
    StorageError,
    build_index,
)

OPTIONS = dict(seq_len=20, lanes=4, window=2, seed=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[30] * 20] * 4] * 3))


def take(loader: ParquetLoader, count: int) -> list[list[list[int]]]:
    return [next(iter(loader)).tokens.tolist() for _ in range(count)]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("before", [0, 3])
def test_a_copy_goes_on_by_itself_from_the_same_position(folder: Path, duplicate, before: int) -> None:
    with ParquetLoader(folder, **OPTIONS) as reference:
        expected = take(reference, 40)
    with ParquetLoader(folder, **OPTIONS) as loader:
        assert take(loader, before) == expected[:before]
        with duplicate(loader) as other:
            assert take(other, 20) == expected[before : before + 20]
            assert take(loader, 20) == expected[before : before + 20]


def test_a_second_thread_is_told_so_instead_of_waiting_for_ever(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        next(iter(loader))

        def interfere() -> None:
            thread.start()
            thread.join()

        def take_too() -> None:
            try:
                next(iter(loader))
            except LoaderInUseError as error:
                told.append(str(error))

        told: list[str] = []
        thread = threading.Thread(target=take_too)
        loader._turn.run(interfere)  # in the middle of taking a batch
        assert told == ["another thread is taking a batch of this loader; give each thread its own loader"]
        next(iter(loader))


def test_threads_that_share_a_loader_get_each_batch_once_or_an_error(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as reference:
        expected = [batch.tokens.tolist() for batch in reference]
    taken: list[list[list[int]]] = []

    def consume() -> None:
        while loader.epoch == 0:
            with contextlib.suppress(LoaderInUseError):
                taken.extend(batch.tokens.tolist() for batch in loader if batch.epoch == 0)

    with ParquetLoader(folder, **OPTIONS) as loader:
        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(taken) == sorted(expected)


def test_a_file_that_has_become_a_pipe_does_not_hang(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        for file in folder.iterdir():
            file.unlink()
            os.mkfifo(file)
        with pytest.raises(StorageError):
            next(iter(loader))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("shuffle", "no"), ("shuffle", None), ("shuffle", 1), ("uneven", "x"), ("column", 3), ("column", ["tokens"])),
        *(
            ("storage_options", 3),
            ("cache_dir", 3),
            ("index", 3),
            ("index", b"x"),
            ("seq_len", 2**31),
            ("lanes", 2**40),
        ),
    ],
)
def test_an_argument_of_a_wrong_kind_is_named_with_its_value(folder: Path, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} must be .*not "):
        ParquetLoader(folder, **{**OPTIONS, name: value})


def test_numpys_booleans_are_booleans(folder: Path) -> None:
    with ParquetLoader(folder, shuffle=np.True_, uneven=np.False_, **OPTIONS) as loader:
        assert '"shuffle":true' in loader.state_dict()["sources"]


@pytest.mark.parametrize("position", [2**60, 2**62, 2**70])
def test_a_position_beyond_all_numbers_is_refused(folder: Path, position: int) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader, pytest.raises(CheckpointDamagedError, match="position"):
        loader.load_state_dict({**loader.state_dict(), "position": position})


@pytest.fixture
def web(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """A web server over the set, and the statuses that it answers its next requests with."""
    statuses: list[int] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))

        def send_head(self):
            if statuses:
                self.send_error(statuses.pop(0))
                return None
            return super().send_head()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/part-000.parquet", statuses
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_web_servers_outage_is_no_missing_file(web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parquet_loader.storage.retry.Retries.FIRST_PAUSE_SECONDS", 0.001)
    url, statuses = web
    assert build_index(url).total_tokens == 4 * 20 * 30
    statuses += [503] * 100_000
    with pytest.raises(StorageError, match=r"failed \d+ times in \d s, .*503") as caught:
        build_index(url, retry_seconds=3)
    assert not isinstance(caught.value, FileNotFoundError)


def test_a_web_servers_fault_that_passes_is_not_noticed(web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parquet_loader.storage.retry.Retries.FIRST_PAUSE_SECONDS", 0.001)
    url, statuses = web
    statuses += [503, 500]
    assert build_index(url).total_tokens == 4 * 20 * 30


def test_a_file_that_a_web_server_does_not_have_is_missing(web) -> None:
    url, _ = web
    with pytest.raises(FileNotFoundError, match="there is no http"):
        build_index(url.replace("part-000", "part-999"))
