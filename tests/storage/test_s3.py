"""The loader on a real S3 server, and on one that fails in every way."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.loaders import JSONFileLoader
from fsspec.implementations.local import LocalFileSystem
from growing_sets import S3Writer, copy_finished, make_files, quick_looks, run_of_ranks, take, total_of
from growing_sets import digest as digest_of
from raw_sets import random_files, write_megatron, write_shards
from s3_server import S3Server, environment_for, options_for, s3_server
from slow_sources import slow_source
from subprocesses import finish, start
from unique_sets import unique_groups, write_set

from parquet_loader import (
    ConfigError,
    DatasetIndex,
    FileChangedError,
    LoaderClosedError,
    ParquetLoader,
    StorageError,
    WriterFailedError,
    build_index,
)
from parquet_loader.pretokenize import PretokenizeOptions, Progress, background, pretokenize
from parquet_loader.pretokenize.convert.corpora import open_corpus
from parquet_loader.pretokenize.tokenizers.base import TokenizerInfo
from parquet_loader.pretokenize.write.folder import OutputFolder
from parquet_loader.pretokenize.write.manifest import Encoding
from parquet_loader.pretokenize.write.writer import SetWriter
from parquet_loader.storage import open_storage
from parquet_loader.storage.growing import GROWING_NAME, Growing
from parquet_loader.storage.remote import FsspecStorage
from parquet_loader.testing import (
    FaultProxy,
    LocalPlace,
    Reset,
    Slow,
    Stall,
    Status,
    StorageContract,
    Truncate,
    every,
    randomly,
)

__all__ = ["quick_looks", "slow_source"]

FILES = unique_groups([[[7] * 60 for _ in range(4)] for _ in range(6)])


@pytest.fixture(scope="session", autouse=True)
def services_are_parsed_once() -> Iterator[None]:
    """Every client reads megabytes of JSON that describe Amazon's services: most of what a test here would cost."""
    parse = functools.cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: parse(path))
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set whose tokens are all different."""
    return write_set(tmp_path_factory.mktemp("unique") / "set", FILES)


@pytest.fixture(scope="session")
def url(server: S3Server, local: Path) -> str:
    return server.upload(local, "set")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parquet_loader.storage.retry.Retries.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("parquet_loader.storage.retry.Retries.LONGEST_PAUSE_SECONDS", 0.5)


def loader_of(source: object, endpoint: str | None = None, **options: Any) -> ParquetLoader:
    options = {"seq_len": 16, "lanes": 6, "window": 5, "threads": 2, **options}
    if endpoint is not None:
        options["storage_options"] = {**options_for(endpoint), **options.get("storage_options", {})}
    return ParquetLoader(source, **options)


def digest(loader: ParquetLoader, epochs: int) -> str:
    """Of all batches of some epochs."""
    total = hashlib.sha256()
    with loader:
        while loader.epoch < epochs:
            for batch in loader:
                total.update(batch.tokens.tobytes())
    return total.hexdigest()


# ── the contract ─────────────────────────────────────────────────────────────────────────────────────────────────


class TestLocal(StorageContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> LocalPlace:
        (tmp_path / "set").mkdir()
        return LocalPlace(tmp_path / "set")


@dataclass
class RemotePlace:
    url: str
    storage_options: dict[str, Any]

    def __post_init__(self) -> None:
        self._fs, self._path = fsspec.url_to_fs(self.url, **self.storage_options)

    def put(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(f"{self._path}/{path}", data)

    def remove(self, path: str) -> None:
        self._fs.rm_file(f"{self._path}/{path}")


class TestMemory(StorageContract):
    @pytest.fixture
    def place(self) -> RemotePlace:
        return RemotePlace(f"memory://{uuid.uuid4().hex}/set", {})


class TestS3(StorageContract):
    @pytest.fixture
    def place(self, server: S3Server) -> RemotePlace:
        return RemotePlace(f"s3://bucket1/{uuid.uuid4().hex}", server.storage_options)


# ── the data path ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_set_on_s3_gives_the_same_batches_as_on_disk(server: S3Server, url: str, local: Path) -> None:
    assert digest(loader_of(url, server.endpoint), 3) == digest(loader_of(local), 3)


def test_the_usual_variables_are_enough(
    server: S3Server, url: str, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment_for(server.endpoint).items():
        monkeypatch.setenv(name, value)
    assert digest(loader_of(url), 1) == digest(loader_of(local), 1)


@pytest.fixture(scope="session")
def large(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Row groups of more than a megabyte, of which none are read together: 12 in 3 files."""
    folder = tmp_path_factory.mktemp("large") / "set"
    write_set(folder, unique_groups([[[3000] * 100] * 4] * 3), use_dictionary=False, compression="none")
    return server.upload(folder, "large")


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_row_group_is_one_request_and_a_file_one_more(server: S3Server, large: str, world_size: int) -> None:
    window, row_groups, files = 3, 12, 3
    with FaultProxy(server.endpoint) as proxy:
        index = build_index(large, storage_options=options_for(proxy.url))
        assert len([request for request in proxy.requests if request.range is not None]) == files
        assert sum(request.method == "GET" and "list-type" in request.path for request in proxy.requests) <= 2
        proxy.requests.clear()
        build_index(large, storage_options=options_for(proxy.url))
        assert not [request for request in proxy.requests if request.range is not None]  # the listing was enough
        proxy.requests.clear()
        decoded = 0
        for rank in range(world_size):
            # Long sequences, so that the time goes into row groups and not into batches.
            options: dict[str, Any] = {"rank": rank, "world_size": world_size, "window": window, "seq_len": 4096}
            loader = loader_of(large, proxy.url, index=index, **options)
            with loader:
                while loader.epoch < 2:
                    for _ in loader:
                        pass
                decoded += loader.stats()["row_groups"]
        reads = [request for request in proxy.requests if request.range is not None]
        assert all(request.headers.get("if-match") for request in reads)
        chunks = {(path, int(start), int(start + length) - 1) for path, start, length in chunks_of(index)}
        assert {(request.path.rsplit("/", 1)[1], *request.range) for request in reads if request.range} == chunks
        # Each is read once by each rank that needs it; what is read when the loader is closed is not decoded any more.
        assert decoded <= len(reads) <= decoded + world_size * 16
        windows = 2 * row_groups // window
        ahead = world_size * (2 * window + 4 * 16)
        assert decoded <= 2 * row_groups + windows * (world_size - 1) + ahead


def chunks_of(index: DatasetIndex) -> Iterator[tuple[str, int, int]]:
    for group in range(len(index)):
        yield index.files[int(index.file[group])].path, index.start[group], index.length[group]


def test_reads_are_made_at_once_and_ahead_of_need(server: S3Server, url: str) -> None:
    with FaultProxy(server.endpoint, lambda request: Slow(30_000) if request.range else None) as proxy:
        loader = loader_of(url, proxy.url, threads=1)
        with loader:
            begun = time.monotonic()
            next(iter(loader))
            together = time.monotonic() - begun
        slowest = sum(request.sent_bytes for request in proxy.requests if request.range) / 30_000
    assert together < slowest / 2  # a dozen at once


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────

FAULTS = {
    "500": Status(500),
    "502": Status(502, "BadGateway"),
    "503": Status(503, "SlowDown"),
    "504": Status(504, "GatewayTimeout"),
    "429": Status(429, "TooManyRequests"),
    "reset": Reset(),
    "reset in the body": Reset(after_bytes=300),
    "truncated": Truncate(after_bytes=300),
    "empty": Truncate(after_bytes=0),
    "stall": Stall(2.0),
    "stall in the body": Stall(2.0, after_bytes=300),
    "slow": Slow(20_000),
    "404 in passing": Status(404, "NoSuchKey"),
}
IMPATIENT = {"config_kwargs": {"read_timeout": 0.5, "connect_timeout": 2}}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_passing_fault_changes_nothing(server: S3Server, url: str, local: Path, fault: str) -> None:
    def choose(request: Any) -> Any:
        return FAULTS[fault] if request.range is not None and request.number % 5 == 2 else None

    with FaultProxy(server.endpoint, choose) as proxy:
        patience = {} if fault == "slow" else IMPATIENT  # what is only slow is waited for
        loader = loader_of(url, proxy.url, storage_options=patience)
        assert digest(loader, 2) == digest(loader_of(local), 2)
        assert any(request.fault for request in proxy.requests)
    retries = loader.stats()["retries"]
    assert retries == 0 if fault == "slow" else retries > 0


def test_all_faults_together_while_listing_and_reading_change_nothing(
    server: S3Server, url: str, local: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [fault for name, fault in FAULTS.items() if "404" not in name]  # a 404 to a listing is believed
    with FaultProxy(server.endpoint, randomly(0.05, *faults, seed=1)) as proxy:
        loader = loader_of(url, proxy.url, storage_options=IMPATIENT)
        assert digest(loader, 3) == digest(loader_of(local), 3)
        faulted = sum(request.fault is not None for request in proxy.requests)
    assert faulted > 2
    assert len([record for record in caplog.records if record.name == "parquet_loader"]) == 1


def test_helpers_ask_again_too_and_that_is_counted_and_logged_here(
    server: S3Server, url: str, local: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultProxy(server.endpoint) as proxy:
        loader = loader_of(url, proxy.url, processes=1)
        proxy.choose = every(3, Status(503, "SlowDown"))
        assert digest(loader, 1) == digest(loader_of(local), 1)
        faulted = sum(request.fault is not None for request in proxy.requests)
    assert 0 < loader.stats()["retries"] <= faulted  # those of tasks that were dropped are not known
    assert [record.name for record in caplog.records if "trying again" in record.getMessage()] == ["parquet_loader"]


def test_a_total_outage_is_waited_for(server: S3Server, url: str, local: Path) -> None:
    with FaultProxy(server.endpoint) as proxy:
        loader = loader_of(url, proxy.url)
        proxy.is_down = True  # all that is known by now are the footers
        threading.Timer(2, setattr, (proxy, "is_down", False)).start()
        with loader:
            batches = [batch.tokens for batch in loader]
        assert loader.stats()["retries"] > 0
    with loader_of(local) as on_disk:
        assert np.array_equal(np.stack(batches), np.stack([batch.tokens for batch in on_disk]))


@pytest.mark.parametrize("fault", [None, Stall(60), Status(503)], ids=["down", "stalled", "503"])
def test_an_outage_past_the_limit_is_one_clear_error_in_time(server: S3Server, url: str, fault: Any) -> None:
    with FaultProxy(server.endpoint) as proxy:
        loader = loader_of(url, proxy.url, retry_seconds=8)  # also how long a busy machine may take to answer
        with loader:
            next(iter(loader))
            proxy.is_down, proxy.choose = fault is None, lambda _: fault
            begun = time.monotonic()
            with pytest.raises(StorageError, match=r"s3://bucket1/set/part-00\d\.parquet failed"):
                while True:  # what was read ahead comes first
                    next(iter(loader), None)
            assert time.monotonic() - begun < 8 + 10
            proxy.is_down, proxy.choose = False, lambda _: None
            next(iter(loader))  # and when the store is back, it goes on


def test_closing_does_not_wait_for_a_store_that_hangs(server: S3Server, url: str) -> None:
    with FaultProxy(server.endpoint, lambda request: Stall(60) if request.range else None) as proxy:
        index = build_index(url, storage_options=server.storage_options)
        loader = loader_of(url, proxy.url, index=index)
        closer = threading.Timer(1, loader.close)
        closer.start()
        begun = time.monotonic()
        with pytest.raises(LoaderClosedError):
            next(iter(loader))
        closer.join()
        assert time.monotonic() - begun < 30  # and not 60
        assert any(request.range for request in proxy.requests)


@pytest.mark.usefixtures("quick_looks")
def test_closing_does_not_wait_for_a_listing_that_hangs(server: S3Server, tmp_path: Path) -> None:
    prefix = f"bucket1/growing-{uuid.uuid4().hex}"
    S3Writer(server.filesystem, prefix, make_files(tmp_path / "files", 0, 2), tmp_path).show(2)
    hangs = threading.Event()
    with FaultProxy(server.endpoint, lambda request: Stall(60) if hangs.is_set() else None) as proxy:
        options = {"seq_len": 16, "lanes": 4, "window": 1, "follow": True}
        loader = ParquetLoader(f"s3://{prefix}", **options, storage_options=options_for(proxy.url))
        batches = iter(loader)
        next(batches)
        closer = threading.Timer(1, loader.close)
        closer.start()
        begun = time.monotonic()
        hangs.set()
        with pytest.raises(LoaderClosedError):
            for _ in batches:
                pass
        closer.join()
        assert time.monotonic() - begun < 30  # and not 60


def test_wrong_credentials_fail_at_once_and_say_so(server: S3Server, url: str) -> None:
    for options in ({"secret": "wrong-hush-hush"}, {"key": "AKIAWRONG"}):
        begun = time.monotonic()
        with pytest.raises(
            StorageError, match=r"access to s3://bucket1/set is denied.*check the credentials"
        ) as caught:
            loader_of(url, server.endpoint, storage_options=options)
        assert time.monotonic() - begun < 60  # and not 300
        assert "hush" not in str(caught.value)


def test_a_denied_read_fails_at_once(server: S3Server, url: str) -> None:
    with FaultProxy(server.endpoint) as proxy, loader_of(url, proxy.url) as loader:
        proxy.choose = lambda request: Status(403, "AccessDenied") if request.range else None
        with pytest.raises(StorageError, match=r"access to s3://bucket1/set/.*denied"):
            next(iter(loader))
        assert loader.stats()["retries"] == 0


def test_expired_credentials_are_refreshed_and_tried_once_more(server: S3Server, url: str) -> None:
    with FaultProxy(server.endpoint) as proxy:
        storage = open_storage(url, options_for(proxy.url))
        assert isinstance(storage, FsspecStorage)
        file, client = storage.list_files()[0], storage.filesystem
        expired = iter([True])
        proxy.choose = lambda request: Status(403, "ExpiredToken") if next(expired, False) else None
        assert storage.read(file, 0, 4) == b"PAR1"
        assert storage.filesystem is not client
        proxy.choose = lambda request: Status(403, "ExpiredToken")
        with pytest.raises(StorageError, match="check the credentials"):
            storage.read(file, 0, 4)


def test_what_a_client_asked_wrongly_is_not_asked_again(server: S3Server, url: str) -> None:
    with FaultProxy(server.endpoint) as proxy, loader_of(url, proxy.url) as loader:
        proxy.choose = lambda request: Status(400, "InvalidArgument") if request.range else None
        with pytest.raises(StorageError, match="failed once"):
            next(iter(loader))


# ── pinning ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_object_that_is_replaced_after_the_index_is_named_and_never_read(server: S3Server, local: Path) -> None:
    url = server.upload(local, "replaced")
    with loader_of(url, server.endpoint, budget_bytes=9 << 20) as loader:
        replacement = (local / "part-001.parquet").read_bytes()
        assert len(replacement) == len((local / "part-000.parquet").read_bytes())
        server.filesystem.pipe_file("bucket1/replaced/part-000.parquet", replacement)
        with pytest.raises(FileChangedError, match=r"s3://bucket1/replaced/part-000\.parquet is not the file"):
            while loader.epoch < 2:
                for _ in loader:
                    pass


def test_an_index_made_on_a_disk_serves_the_objects_that_were_copied_from_there(server: S3Server, local: Path) -> None:
    url = server.upload(local, "copied")
    with loader_of(local) as there, loader_of(url, server.endpoint, index=build_index(local)) as loader:
        assert digest(loader, 1) == digest(there, 1)


def test_an_object_that_was_replaced_in_the_place_of_a_saved_index_is_never_read(server: S3Server, local: Path) -> None:
    url = server.upload(local, "kept")
    index = build_index(url, storage_options=server.storage_options)
    data = bytearray((local / "part-000.parquet").read_bytes())
    data[len(data) // 2] ^= 1  # a byte of a page: the footer is as it was
    server.filesystem.pipe_file("bucket1/kept/part-000.parquet", bytes(data))
    with loader_of(url, server.endpoint, index=DatasetIndex.from_bytes(index.to_bytes())) as loader:
        with pytest.raises(FileChangedError, match=r"kept/part-000\.parquet is not the .* refresh the saved index: "):
            digest(loader, 1)
        assert loader.stats()["reads"] < len(index)


def test_an_object_that_is_removed_after_the_index_is_named(server: S3Server, local: Path) -> None:
    url = server.upload(local, "removed")
    with loader_of(url, server.endpoint) as loader:
        server.filesystem.rm_file("bucket1/removed/part-002.parquet")
        with pytest.raises(FileChangedError, match=r"removed/part-002\.parquet.*it is gone"):
            while loader.epoch < 2:
                for _ in loader:
                    pass


# ── secrets, forks, several at once ──────────────────────────────────────────────────────────────────────────────


def test_no_secret_is_in_an_error_a_log_a_repr_a_cache_or_a_checkpoint(
    server: S3Server, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "parquet_loader")
    with (
        FaultProxy(server.endpoint, every(3, Status(503, "SlowDown"))) as proxy,
        loader_of(url, proxy.url, cache_dir=tmp_path, retry_seconds=5) as loader,
    ):
        next(iter(loader))
        seen = repr(loader) + caplog.text + repr(loader.checkpoint()) + str(loader.stats())
        proxy.choose = lambda _: Status(403, "SignatureDoesNotMatch")
        with pytest.raises(StorageError) as caught:
            while True:
                next(iter(loader))
    seen += repr(caught.value) + str(caught.value.__cause__)
    seen += "".join(path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file())
    assert "hush" not in seen
    assert "minioadmin" not in seen


def test_no_secret_is_in_an_error_of_a_helper(server: S3Server, url: str) -> None:
    with FaultProxy(server.endpoint) as proxy, loader_of(url, proxy.url, processes=1) as loader:
        proxy.choose = lambda _: Status(403, "SignatureDoesNotMatch")
        with pytest.raises(StorageError, match=r"access to s3://bucket1/set/.*denied") as caught:
            next(iter(loader))
    told = "".join(traceback.format_exception(caught.value))
    assert "minioadmin" not in told
    assert "hush" not in told


def test_a_forked_and_a_spawned_process_read_too(server: S3Server, url: str, local: Path) -> None:
    program = """
        import json, multiprocessing, sys
        from parquet_loader import ParquetLoader

        def first(loader):
            with loader:
                return next(iter(loader)).tokens.tolist()

        def child(loader, pipe):
            pipe.send(first(loader))

        if __name__ == "__main__":
            options = json.loads(sys.argv[2])
            loader = ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=5, storage_options=options)
            next(iter(loader))
            loader.load_state_dict({**loader.state_dict(), "position": 0})
            context = multiprocessing.get_context("fork")
            ours, theirs = context.Pipe()
            process = context.Process(target=child, args=(loader, theirs))
            process.start()
            print(json.dumps(ours.recv()))
            process.join()
            print(json.dumps(first(loader)))
    """
    out = finish(start(program, url, json.dumps(server.storage_options), environment={"PYTHONWARNINGS": "ignore"}))
    forked, own = (json.loads(line) for line in out.splitlines())
    with loader_of(local) as on_disk:
        assert forked == own == next(iter(on_disk)).tokens.tolist()


def test_two_loaders_of_one_process_share_nothing(server: S3Server, url: str, local: Path) -> None:
    with loader_of(url, server.endpoint) as first, loader_of(url, server.endpoint, seed=1) as second:
        pairs = list(zip(first, second, strict=False))
    with loader_of(local) as alone:
        assert np.array_equal(
            np.stack([one.tokens for one, _ in pairs]), np.stack([b.tokens for b in alone])[: len(pairs)]
        )


# ── what pretokenize writes there ────────────────────────────────────────────────────────────────────────────────


def objects_of(fs: Any, prefix: str) -> dict[str, bytes]:
    """What lies right below a prefix, by name."""
    fs.invalidate_cache()
    found = [each["name"] for each in fs.ls(prefix, detail=True) if each["type"] == "file"]
    return {path.rsplit("/", 1)[1]: fs.cat_file(path) for path in sorted(found)}


def test_a_set_grows_there_file_by_file_and_is_resumed(server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{number} " * 20 + "\n" for number in range(1500)))
    fs = server.filesystem

    def options(folder: str) -> PretokenizeOptions:
        return PretokenizeOptions(
            inputs=(str(tmp_path / "in.txt"),),
            output=f"s3://bucket1/{folder}",
            tokenizer="bytes",
            publish="as-finished",
            row_group_tokens=10_000,
            file_tokens=30_000,
            batch_bytes=5000,
            storage_options=server.storage_options,
        )

    def there(folder: str) -> dict[str, bytes]:
        return objects_of(fs, f"bucket1/{folder}")

    killed = f"killed-{uuid.uuid4().hex}"
    seen: dict[str, bytes] = {}

    def stop(done: Progress) -> None:
        if done.tokens > 70_000:
            seen.update(there(killed))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pretokenize(options(killed), progress=stop)
    files = {name: content for name, content in seen.items() if name.endswith(".parquet")}
    assert list(files) == [f"part-000000{number}.parquet" for number in range(3)]
    growing = Growing.from_json(there(killed)[GROWING_NAME], GROWING_NAME)
    assert (growing.state, growing.files, growing.reason) == ("failed", 3, "ZeroDivisionError")
    with background(options(killed), log=tmp_path / "log") as writer:
        assert writer.wait(60)
    assert background(options(killed), starts=False).done
    pretokenize(options("quiet"))
    assert there(killed) == there("quiet")
    assert {name: there(killed)[name] for name in files} == files


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reader_there_learns_of_a_writer_that_is_killed(
    workers: int, server: S3Server, tmp_path: Path, slow_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a command, and by what `background` starts."""
    monkeypatch.syspath_prepend(slow_source)
    prefix = f"bucket1/killed-{uuid.uuid4().hex}"
    url, fs = f"s3://{prefix}", server.filesystem
    sizes = {"row_group_tokens": 2000, "file_tokens": 10_000, "batch_bytes": 1000}
    options = PretokenizeOptions(
        source="slow:Slow",
        inputs=("0.1", "9999"),
        output=url,
        tokenizer="bytes",
        publish="as-finished",
        workers=workers,
        storage_options=server.storage_options,
        **sizes,
    )

    def marker() -> Growing:
        return Growing.from_json(fs.cat_file(f"{prefix}/{GROWING_NAME}"), GROWING_NAME)

    with ExitStack() as stack:
        if workers:
            program = "import sys; from parquet_loader.pretokenize import main; sys.exit(main())"
            arguments = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
            arguments += ["--source=slow:Slow", "--input", *options.inputs, "--output", url, "--tokenizer=bytes"]
            arguments += ["--publish=as-finished", f"--workers={workers}"]
            environment = {**environment_for(server.endpoint), "PYTHONPATH": os.pathsep.join(sys.path)}
            stack.enter_context(start(program, *arguments, environment=environment))
        else:
            stack.enter_context(background(options, log=tmp_path / "log"))
        while not fs.exists(f"{prefix}/part-0000000.parquet"):
            fs.invalidate_cache()
            time.sleep(0.05)
        follow: dict[str, Any] = {"seq_len": 16, "lanes": 4, "window": 1, "follow": True}
        with ParquetLoader(url, **follow, storage_options=server.storage_options) as loader:
            next(iter(loader))
            os.kill(marker().writer.pid, signal.SIGKILL)
            with pytest.raises(WriterFailedError, match=r"the writer of .* has failed: it was killed"):
                list(loader)
        assert marker().state == "failed"
    pretokenize(replace(options, inputs=("0", "9999"), workers=0))
    pretokenize(replace(options, inputs=("0", "9999"), workers=0, output=str(tmp_path / "quiet"), storage_options={}))
    assert objects_of(fs, prefix) == {path.name: path.read_bytes() for path in (tmp_path / "quiet").iterdir()}


def test_an_outage_while_a_set_grows_there_is_waited_for(
    server: S3Server, tmp_path: Path, slow_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(slow_source)
    prefix = f"bucket1/outage-{uuid.uuid4().hex}"
    with FaultProxy(server.endpoint) as proxy:
        options = PretokenizeOptions(
            source="slow:Slow",
            inputs=("0.01", "9999"),
            output=f"s3://{prefix}",
            tokenizer="bytes",
            row_group_tokens=2000,
            file_tokens=20_000,
            storage_options=options_for(proxy.url),
        )
        with background(options, log=tmp_path / "log") as writer:
            proxy.is_down = True
            line = writer.describe({"tokens": 0, "wait_growth_seconds": 0.0})
            assert line.endswith("; what is written cannot be read just now")
            assert not writer.poll()
            time.sleep(4)  # longer than the client waits of its own accord
            proxy.is_down = False
            assert writer.wait(60)
            assert writer.describe({"tokens": 0, "wait_growth_seconds": 0.0}).endswith("; all is written")
    quiet = tmp_path / "quiet"
    at_once = replace(options, inputs=("0", "9999"), publish="as-finished", output=str(quiet), storage_options={})
    pretokenize(at_once)
    assert objects_of(server.filesystem, prefix) == {path.name: path.read_bytes() for path in quiet.iterdir()}


def test_an_interrupt_in_an_outage_does_not_wait_for_its_end(
    server: S3Server, tmp_path: Path, slow_source: Path
) -> None:
    program = "from parquet_loader.pretokenize.cli import command; command()"
    prefix = f"bucket1/interrupted-{uuid.uuid4().hex}"
    arguments = ["--source=slow:Slow", "--input", "0.1", "9999", "--output", f"s3://{prefix}", "--tokenizer=bytes"]
    arguments += ["--publish=as-finished", "--row-group-tokens=2000", "--file-tokens=10_000", "--batch-bytes=1000"]
    with FaultProxy(server.endpoint) as proxy:
        environment = environment_for(proxy.url) | {"PYTHONPATH": os.pathsep.join([*sys.path, str(slow_source)])}
        with start(program, *arguments, environment=environment) as process:
            fs = server.filesystem
            while not fs.exists(f"{prefix}/part-0000000.parquet"):
                fs.invalidate_cache()
                time.sleep(0.05)
            proxy.is_down = True
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=40)
        assert process.returncode == 130
        assert said.splitlines()[-1].startswith("pretokenize: interrupted; rerun the same command to resume")


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("seed", range(max(1, int(os.environ.get("FOLLOW_RUNS", "4")) // 4)))
def test_a_set_is_followed_there(seed: int, server: S3Server, tmp_path: Path) -> None:
    files = make_files(tmp_path / "files", seed, 5)
    options: dict[str, Any] = {"seq_len": 16, "lanes": 4, "window": 3, "seed": seed}
    count = int(total_of(files) / 64 * 1.4)
    with ParquetLoader(copy_finished(files, tmp_path / "finished"), **options, follow=True) as loader:
        expected = digest_of(take([loader], count))
    prefix = f"bucket1/growing-{uuid.uuid4().hex}"
    writer = S3Writer(server.filesystem, prefix, files, tmp_path / "unused")
    thread = threading.Thread(target=writer.run, args=(seed, threading.Event(), 0.1))

    def opened(**more: Any) -> ParquetLoader:
        return ParquetLoader(f"s3://{prefix}", **options, **more, storage_options=server.storage_options)

    thread.start()
    lives = ((1, count // 3, True), (2, count // 3, True), (1, count - 2 * (count // 3), True))
    assert digest_of(run_of_ranks(opened, iter(lives))) == expected
    thread.join()
    assert digest_of(run_of_ranks(opened, iter([(2, count, True)]))) == expected


@pytest.mark.parametrize(
    ("pattern", "listings"), [("*.parquet", 1), ("*", 1), ("part-*.parquet", 2), ("**/*.parquet", 1)]
)
def test_a_growing_set_that_a_glob_names_is_refused_there_too_for_next_to_nothing(
    pattern: str, listings: int, server: S3Server, tmp_path: Path
) -> None:
    prefix = f"bucket1/growing-{uuid.uuid4().hex}"
    writer = S3Writer(server.filesystem, prefix, make_files(tmp_path / "files", 0, 3), tmp_path / "unused")
    writer.show(2)
    with FaultProxy(server.endpoint) as proxy:
        options = options_for(proxy.url)
        with pytest.raises(ConfigError, match=r"growing-.* is still being written"):
            build_index(f"s3://{prefix}/{pattern}", storage_options=options)
        writer.finish()
        storage = open_storage(f"s3://{prefix}/{pattern}", options)
        proxy.requests.clear()
        assert len(storage.list_files()) == 3
        # With the listing that a glob takes anyway; beginnings of names are asked for apart.
        assert len(proxy.requests) == listings


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("below", ["", "/*.parquet"])
def test_the_first_object_is_waited_for(below: str, server: S3Server, tmp_path: Path) -> None:
    files = make_files(tmp_path / "files", 0, 3)
    options: dict[str, Any] = {"seq_len": 16, "lanes": 4, "window": 3, "follow": True}
    with ParquetLoader(copy_finished(files, tmp_path / "finished"), **options) as loader:
        expected = digest_of(take([loader], 20))
    prefix = f"bucket1/growing-{uuid.uuid4().hex}"
    thread = threading.Timer(0.3, lambda: S3Writer(server.filesystem, prefix, files, tmp_path / "unused").finish())
    thread.start()
    with ParquetLoader(f"s3://{prefix}{below}", **options, storage_options=server.storage_options) as loader:
        assert digest_of(take([loader], 20)) == expected
    thread.join()


@pytest.mark.parametrize("name", ["run*x", "q?x", "run[1]", "a b"])
@pytest.mark.parametrize("kind", ["s3", "memory", "local", "local::chain"])
def test_a_sign_of_a_glob_in_an_output_is_part_of_its_name(
    server: S3Server, tmp_path: Path, kind: str, name: str
) -> None:
    place = uuid.uuid4().hex
    folder = {"s3": f"s3://bucket1/{place}", "memory": f"memory://{place}"}.get(kind, str(tmp_path / kind))
    options = server.storage_options if kind == "s3" else None
    schema = pa.list_(pa.uint16())
    pq.write_table(pa.table({"tokens": pa.array([[1, 2], [3]], schema)}), tmp_path / "in.parquet")
    corpus = open_corpus(tmp_path / "in.parquet")
    info = TokenizerInfo(name="x", sha256="", vocab_size=9, eos_token=None, eos_id=None)
    encoding = Encoding(column="tokens", dtype=info.dtype.name, tokenizer=info, eos_appended=False)
    for _ in range(2):  # the second replaces the first
        output = OutputFolder(f"{folder}/{name}/out", options)
        with output.claimed(), SetWriter(output, encoding, row_group_tokens=10, file_tokens=10) as writer:
            for _, batch in corpus.documents():
                writer.add(batch)
            writer.finish()
    found = [file.path for file in open_storage(folder, options).list_files()]
    assert found == [f"{name}/out/part-00000.parquet"]
    fs, path = fsspec.url_to_fs(folder, **(options or {})) if "::" not in folder else (LocalFileSystem(), folder)
    fs.invalidate_cache()
    left = {each.split("/out/")[-1] for each in fs.find(path)}
    assert left == {"part-00000.parquet", "_manifest.json"}
    assert build_index(f"{folder}/{name}/out", storage_options=options, cache_dir=tmp_path / "cache").total_tokens == 3


@pytest.mark.parametrize("kind", ["shards", "megatron"])
def test_raw_files_and_what_lies_beside_them_are_read_as_from_a_disk(
    server: S3Server, tmp_path: Path, kind: str
) -> None:
    files = random_files(np.random.default_rng(8))
    if kind == "shards":
        write_shards(tmp_path / kind, files, eos_id=0)
    else:
        (tmp_path / kind).mkdir()
        for number, documents in enumerate(files):
            write_megatron(tmp_path / kind / f"{number}", [[each[:1], each[1:]] for each in documents])
    options: dict[str, Any] = {"seq_len": 8, "lanes": 4, "seed": 5, "eos_id": 0}
    with (
        ParquetLoader(tmp_path / kind, **options) as here,
        ParquetLoader(server.upload(tmp_path / kind, kind), storage_options=server.storage_options, **options) as there,
    ):
        for one, other in zip(here, there, strict=True):
            assert np.array_equal(one.tokens, other.tokens)
