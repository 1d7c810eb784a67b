"""For tests of storage: faults made to order, and the contract that every storage keeps.

`FaultProxy` stands between a client and a real server, on loopback, and makes requests go wrong in ways of your choice:

    with FaultProxy("http://127.0.0.1:9000", every(20, Status(503))) as proxy:
        loader = ParquetLoader("s3://bucket/set", storage_options={"endpoint_url": proxy.url}, ...)
        ...
        assert len(proxy.requests) ...

`FaultyFiles` does as much to files on disk, and `StorageContract` is a test class to subclass for your own storage.
"""

from __future__ import annotations

import http.client
import http.server
import itertools
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from .errors import FileChangedError, PathNotFoundError, StorageError
from .storage.base import Storage
from .storage.opening import open_storage

__all__ = [
    "Fault",
    "FaultProxy",
    "FaultyFiles",
    "Place",
    "Request",
    "Reset",
    "Slow",
    "Stall",
    "Status",
    "StorageContract",
    "Truncate",
    "every",
    "randomly",
]

_PIECE_BYTES = 1 << 16


# ── faults on the way ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Request:
    """A request that went through a proxy.

    Attributes:
        number: from 0, in the order of arrival.
        method, path: of the request; the path with its query.
        range: the ``Range`` header's bytes ``(first, last)``, None without one.
        headers: of the request, names in lower case.
        fault: what was done to it.
        sent_bytes: of the answer's body, that were passed on.
        status: of the answer; 0 where there was none.
    """

    number: int
    method: str
    path: str
    range: tuple[int, int] | None
    headers: dict[str, str]
    fault: Fault | None = None
    sent_bytes: int = 0
    status: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """Answer with a status, and S3's XML of an error, in place of the server.

    Attributes:
        status: such as 503.
        code: S3's name for it.
        headers: of the answer.
    """

    status: int
    code: str = "InternalError"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection once so many bytes of the body have been passed on, or before the answer if None."""

    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """Say nothing for so long, after so many bytes of the body, or before the answer if None; then reset."""

    seconds: float
    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """Pass the body on at so many bytes a second."""

    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Truncate:
    """End the connection, as if all were well, once so many bytes of the body have been passed on."""

    after_bytes: int


Fault = Status | Reset | Stall | Slow | Truncate
Chooser = Callable[[Request], "Fault | None"]


def every(count: int, *faults: Fault, method: str = "GET") -> Chooser:
    """One of ``faults`` in turn for every ``count``-th request of a method."""
    numbers, turn = itertools.count(1), itertools.cycle(faults)
    lock = threading.Lock()

    def choose(request: Request) -> Fault | None:
        if request.method != method:
            return None
        with lock:
            return None if next(numbers) % count else next(turn)

    return choose


def randomly(share: float, *faults: Fault, seed: int = 0) -> Chooser:
    """One of ``faults`` by chance, for so large a share of all requests."""
    chance = random.Random(seed)
    lock = threading.Lock()

    def choose(request: Request) -> Fault | None:
        with lock:
            return chance.choice(faults) if chance.random() < share else None

    return choose


class FaultProxy:
    """An HTTP proxy of one server, on a free port of loopback; it starts with the ``with`` block, and ends with it.

    Args:
        upstream: the server's address, ``http://host:port``.
        choose: what to do to a request; None for nothing. It may be called by several threads at once, and `choose`
            may be set to another while the proxy runs.

    Attributes:
        url: the proxy's address.
        requests: that have come, in order.
        is_down: while it is True, every connection is refused or reset: a total outage.
    """

    def __init__(self, upstream: str, choose: Chooser = lambda _: None) -> None:
        address = urlsplit(upstream)
        assert address.hostname is not None
        self._upstream = (address.hostname, address.port or 80)
        self.choose = choose
        self.requests: list[Request] = []
        self.is_down = False
        self._numbers = itertools.count()
        proxy = self

        class Handler(_ProxyHandler):
            pass

        Handler.proxy = proxy
        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def arrived(self, method: str, path: str, headers: dict[str, str]) -> Request:
        """Note a request."""
        span = None
        if headers.get("range", "").startswith("bytes="):
            first, _, last = headers["range"][6:].partition("-")
            span = (int(first), int(last)) if first and last else None
        request = Request(next(self._numbers), method, path, span, headers)
        request.fault = self.choose(request)
        self.requests.append(request)
        return request

    def connect(self) -> http.client.HTTPConnection:
        """A connection to the server."""
        return http.client.HTTPConnection(*self._upstream, timeout=60)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are no news."""


class _ProxyHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultProxy

    def setup(self) -> None:
        super().setup()
        self._upstream = self.proxy.connect()

    def finish(self) -> None:
        self._upstream.close()
        super().finish()

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        self._relay()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.proxy.is_down:
            self._reset()
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = self.proxy.arrived(self.command, self.path, headers)
        fault = request.fault
        match fault:
            case Status():
                self._answer(request, fault)
            case Reset(after_bytes=None):
                self._reset()
            case Stall(after_bytes=None):
                self._wait(fault.seconds)
                self._reset()
            case _:
                self._forward(request, body, fault)

    def _answer(self, request: Request, fault: Status) -> None:
        text = f"<Error><Code>{fault.code}</Code><Message>made to order</Message></Error>".encode()
        request.status = fault.status
        self.send_response(fault.status)
        for name, value in fault.headers:
            self.send_header(name, value)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _forward(self, request: Request, body: bytes, fault: Fault | None) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        for last in (False, True):
            try:
                self._upstream.request(self.command, self.path, body=body or None, headers=headers)
                answer = self._upstream.getresponse()
                break
            except (OSError, http.client.HTTPException):  # the server has ended an idle connection
                self._upstream.close()
                if last:
                    self._reset()
                    return
        request.status = answer.status
        self.send_response_only(answer.status, answer.reason)
        length = answer.getheader("Content-Length")
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        if length is None and self.command != "HEAD":
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self._pass_on(request, answer, fault)

    def _pass_on(self, request: Request, answer: http.client.HTTPResponse, fault: Fault | None) -> None:
        limit = getattr(fault, "after_bytes", None)
        while piece := answer.read(_PIECE_BYTES):
            if limit is not None and request.sent_bytes + len(piece) > limit:
                piece = piece[: limit - request.sent_bytes]
            if isinstance(fault, Slow):
                self._wait(len(piece) / fault.bytes_per_second)
            self.wfile.write(piece)
            request.sent_bytes += len(piece)
            if limit is not None and request.sent_bytes >= limit:
                self._upstream.close()  # what is left of the answer is not for the next request
                self._end(fault)
                return

    def _end(self, fault: Fault | None) -> None:
        if isinstance(fault, Truncate):
            self.close_connection = True
            return
        if isinstance(fault, Stall):
            self._wait(fault.seconds)
        self._reset()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _reset(self) -> None:
        """End the connection with RST, which clients see as `ConnectionResetError`."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


# ── faults of disks ──────────────────────────────────────────────────────────────────────────────────────────────


class FaultyFiles:
    """What may happen to the files of a local set. Every fault can be undone.

    Args:
        folder: the set's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._saved: dict[Path, tuple[bytes, os.stat_result]] = {}

    def delete(self, name: str) -> None:
        """The file is gone."""
        self._save(name).unlink()

    def truncate(self, name: str, size: int) -> None:
        """Only the first ``size`` bytes are left, as after a copy that broke off."""
        path = self._save(name)
        path.write_bytes(self._saved[path][0][:size])

    def replace(self, name: str, data: bytes) -> None:
        """Another file of this name."""
        self._save(name).write_bytes(data)

    def flip(self, name: str, at: int, bit: int = 0) -> None:
        """One bit is another, and nothing else tells of it: size and modification time are the old ones."""
        path = self._save(name)
        data, status = self._saved[path]
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        _put(path, changed, status)

    def forbid(self, name: str) -> None:
        """The file may not be read."""
        self._save(name).chmod(0)

    def undo(self) -> None:
        """Put everything back, modification times too."""
        for path, (data, status) in self._saved.items():
            _put(path, data, status)
        self._saved.clear()

    def _save(self, name: str) -> Path:
        path = self._folder / name
        if path not in self._saved:
            self._saved[path] = (path.read_bytes(), path.stat())
        return path


def _put(path: Path, data: bytes | bytearray, status: os.stat_result) -> None:
    """A file with the times and mode of old, all at once: a loader that reads meanwhile never sees it half done."""
    beside = path.with_name(f".{path.name}.put")
    beside.write_bytes(data)
    beside.chmod(status.st_mode & 0o777)
    os.utime(beside, ns=(status.st_atime_ns, status.st_mtime_ns))
    beside.replace(path)


# ── the contract ─────────────────────────────────────────────────────────────────────────────────────────────────


class Place(Protocol):
    """A folder on the storage that is tested, empty at first."""

    url: str
    storage_options: dict[str, Any]

    def put(self, path: str, data: bytes) -> None:
        """Write a file, over one that is there, in folders that need not be there."""

    def remove(self, path: str) -> None:
        """Remove a file."""


@dataclass
class LocalPlace:
    """A `Place` on disk."""

    folder: Path
    storage_options: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The folder."""
        return str(self.folder)

    def put(self, path: str, data: bytes) -> None:
        """See `Place`."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(data)

    def remove(self, path: str) -> None:
        """See `Place`."""
        (self.folder / path).unlink()


class StorageContract:
    """What the loader relies on, as tests for pytest. Subclass it, and give a fixture ``place`` that is a `Place`:

        class TestMyStorage(StorageContract):
            @pytest.fixture
            def place(self): ...

    or a method of that name, to run `check_all` without pytest.
    """

    # ruff: noqa: D102  (the names say it)

    def open(self, place: Place, *below: str) -> Storage:
        """The storage of the place, or of paths below it. Override it for a class of your own."""
        source: str | Sequence[str] = [f"{place.url}/{path}" for path in below] if below else place.url
        return open_storage(source, place.storage_options or None)

    def test_files_are_listed_at_any_depth_sorted_by_path_with_their_sizes(self, place: Place) -> None:
        for path in ("b.parquet", "a/z.parquet", "a/b/c.parquet", "a b/ü%20+&=#.parquet"):
            place.put(path, path.encode())
        files = self.open(place).list_files()
        expected = ["a b/ü%20+&=#.parquet", "a/b/c.parquet", "a/z.parquet", "b.parquet"]
        assert [(file.path, file.size) for file in files] == [(path, len(path.encode())) for path in expected]

    def test_what_is_no_data_is_passed_over(self, place: Place) -> None:
        for path in ("a.parquet", "_SUCCESS", "_temporary/b.parquet", ".c.parquet", "d.txt", "e/.hidden/f.parquet"):
            place.put(path, b"x")
        assert [file.path for file in self.open(place).list_files()] == ["a.parquet"]

    def test_a_listing_shows_what_is_there_now(self, place: Place) -> None:
        place.put("a.parquet", b"a")
        storage = self.open(place)
        assert len(storage.list_files()) == 1
        place.put("b.parquet", b"b")
        assert len(storage.list_files()) == 2
        place.remove("a.parquet")
        assert [file.path for file in storage.list_files()] == ["b.parquet"]

    def test_nothing_is_a_clear_error(self, place: Place) -> None:
        place.put("other.txt", b"x")
        with _raises(PathNotFoundError, "no Parquet"):
            self.open(place).list_files()
        with _raises(PathNotFoundError, ""):
            self.open(place, "absent.parquet").list_files()

    def test_any_range_is_read_exactly(self, place: Place) -> None:
        data = bytes(range(256)) * 40
        place.put("a.parquet", data)
        storage = self.open(place)
        (file,) = storage.list_files()
        for start, length in ((0, 1), (0, len(data)), (255, 2), (len(data) - 1, 1), (1000, 5000)):
            assert storage.read(file, start, length) == data[start : start + length]

    def test_a_range_beyond_the_end_is_an_error(self, place: Place) -> None:
        place.put("a.parquet", b"0123456789")
        storage = self.open(place)
        (file,) = storage.list_files()
        for start, length in ((8, 4), (10, 1), (100, 1)):
            with _raises(StorageError, ""):
                storage.read(file, start, length)

    def test_many_threads_may_read_at_once(self, place: Place) -> None:
        data = os.urandom(100_000)
        place.put("a.parquet", data)
        storage = self.open(place)
        (file,) = storage.list_files()
        with ThreadPoolExecutor(16) as pool:
            pieces = list(pool.map(lambda start: storage.read(file, start, 1000), range(0, len(data), 1000)))
        assert b"".join(pieces) == data

    def test_a_replaced_file_is_never_read(self, place: Place) -> None:
        for other in (b"9876543210", b"98765432109", b"9"):
            place.put("a.parquet", b"0123456789")
            storage = self.open(place)
            (file,) = storage.list_files()
            assert storage.read(file, 0, 10) == b"0123456789"
            time.sleep(0.02)  # file systems' clocks tick in milliseconds
            place.put("a.parquet", other)
            with _raises(FileChangedError, "a.parquet"):
                storage.read(file, 0, 10)

    def test_a_removed_file_is_an_error_that_names_it(self, place: Place) -> None:
        place.put("a.parquet", b"0123456789")
        storage = self.open(place)
        (file,) = storage.list_files()
        place.remove("a.parquet")
        with _raises(FileChangedError, "a.parquet"):
            storage.read(file, 0, 10)

    def test_a_forked_child_reads_too(self, place: Place) -> None:
        place.put("a.parquet", b"0123456789")
        storage = self.open(place)
        (file,) = storage.list_files()
        assert storage.read(file, 0, 10) == b"0123456789"
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writing, storage.read(file, 2, 5))
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        assert answer == b"23456"

    def test_a_list_of_files_is_read_in_any_order_and_known_by_path(self, place: Place) -> None:
        for path in ("x/a.parquet", "x/b.parquet", "y/c.parquet"):
            place.put(path, path.encode())
        storage = self.open(place, "y/c.parquet", "x/a.parquet")
        files = storage.list_files()
        assert [file.path for file in files] == ["x/a.parquet", "y/c.parquet"]
        assert [storage.read(file, 0, file.size).decode() for file in files] == ["x/a.parquet", "y/c.parquet"]

    def test_identity_is_the_same_for_ever_and_shows_no_secret(self, place: Place) -> None:
        place.put("a.parquet", b"0")
        first, second = self.open(place), self.open(place)
        assert first.identity == second.identity
        for secret in _strings(place.storage_options):
            assert secret not in first.identity + first.root + repr(first)


def _strings(options: Any) -> list[str]:
    if isinstance(options, dict):
        return [text for name, value in options.items() if "url" not in name for text in _strings(value)]
    return [options] if isinstance(options, str) else []


class _raises:
    def __init__(self, kind: type[Exception], says: str) -> None:
        self._kind = kind
        self._says = says

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        assert isinstance(error, self._kind), f"{self._kind.__name__} was to be raised, not {error!r}"
        assert self._says in str(error), f"{str(error)!r} does not name {self._says!r}"
        return True
