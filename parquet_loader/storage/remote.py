"""Files on any fsspec filesystem: one request for a range, pinned to the version that was listed, tried again.

Amazon's S3, and what speaks its protocol, is asked for a range *of an ETag* (``If-Match``), so that a read is one
request and can give no other object's bytes. Other filesystems have no such question in common: there the file is
looked at after each read, and not before it, which leaves no moment in which a replacement could slip through.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from ..errors import ConfigError, LoaderClosedError, PathNotFoundError, StorageError
from .base import WILDCARD, Entry, FileInfo, Listing, changed_error, common_base, entry_of
from .retry import RETRY_SECONDS, Retries
from .secrets import Scrubber, has_password, redact

__all__ = ["FsspecStorage"]

S = TypeVar("S")
T = TypeVar("T")

_REQUESTS_AT_ONCE = 16  # while listing
_CONNECTIONS = 64  # of a client that would otherwise make requests wait for each other
_STALL_SECONDS = 15.0  # without a byte, after which a request has failed
_HUNG_SECONDS = 600.0  # after which it has failed whatever it does
_GRACE_SECONDS = 3.0  # that a request may go on once the time for trying again is over
_LOOK_SECONDS = 0.25  # between looks at whether an answer is still wanted
_S3 = ("s3", "s3a")
_left_to_parents: list[Any] = []
_WEB = ("http", "https")


class FsspecStorage:
    """Files on any fsspec filesystem. A version is whatever the filesystem tells: ETag, generation, modification time.

    Where a filesystem tells no version, as some web servers do, only the size is compared.

    Args:
        urls: what the source consists of.
        storage_options: for the filesystem.
        retry_seconds: how long a request is tried again once it has failed.
    """

    def __init__(
        self, urls: Sequence[str], storage_options: Mapping[str, Any], *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        from fsspec.core import url_to_fs

        self._urls = [redact(url) for url in urls]
        self._scrubber = Scrubber(urls, storage_options)
        self._retry_seconds = retry_seconds
        self._retries = Retries(retry_seconds)
        first = urls[0].split("::")
        self._scheme = next((link.split("://", 1)[0] for link in first if "://" in link), "")
        # A stall is to be noticed while there is time to try again.
        stall = min(_STALL_SECONDS, max(2.0, retry_seconds)) if retry_seconds else _STALL_SECONDS
        options = _with_defaults(self._scheme, storage_options, stall) if len(first) == 1 else storage_options
        opened = []
        for url, shown in zip(urls, self._urls, strict=True):
            failure: ConfigError | StorageError
            try:
                opened.append(url_to_fs(url, **options))
                continue
            except (ValueError, ImportError, TypeError) as error:
                text = f"{shown} cannot be opened through fsspec: {error}"
                failure = self._scrubber.failure(ConfigError, text, error)
            except Exception as error:  # some filesystems connect when they are made
                failure = self._scrubber.failure(StorageError, f"{shown} cannot be opened: {error}", error)
            raise failure  # out of the except block, so that an error that shows a secret is not its context
        self._fs = opened[0][0]
        if any(fs != self._fs for fs, _ in opened):
            raise ConfigError("the paths lie on different filesystems; give each its own loader, or copy them together")
        self._renew()  # an instance of its own: fsspec shares them, listings that are out of date included
        paths = [path for _, path in opened]
        for path, shown in zip(paths, self._urls, strict=True):
            if has_password(path if "://" in path else f"{self._scheme}://{path}"):
                raise ConfigError(f"the URL of {shown} holds a key or password; give it in storage_options instead")
        self._queries = {}
        if self._scheme in _WEB:  # what follows ? in a web address may be a signature: not part of the name
            self._queries = {path.partition("?")[0]: "?" + path.partition("?")[2] for path in paths if "?" in path}
            paths = [path.partition("?")[0] for path in paths]
        self._entries = self._all_at_once(self._entry, paths)
        self._base = common_base(entry.base for entry in self._entries)

    @property
    def root(self) -> str:
        return self._shown(self._base).rstrip("/")

    @property
    def identity(self) -> str:
        return "\n".join(sorted(url.rstrip("/") for url in self._urls))

    @property
    def retries(self) -> int:
        return self._retries.count

    @property
    def is_remote(self) -> bool:
        return self._scheme != "memory"

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem; a new one after a fork, since those with an event loop do not survive it."""
        if os.getpid() != self._pid:
            # If it were collected here, it would end the parent's connections: both processes share their event loop's
            # list of sockets.
            _left_to_parents.append(self._fs)
            self._retries = Retries(self._retry_seconds)  # its lock may have been held by a thread that is not here
            self._renew()
        return self._fs

    def _renew(self) -> None:
        from fsspec.asyn import AsyncFileSystem

        fs = self._fs
        self._fs = type(fs)(*fs.storage_args, **{**fs.storage_options, "skip_instance_cache": True})
        self._is_async = isinstance(self._fs, AsyncFileSystem) and fs.async_impl and not fs.asynchronous
        self._is_s3 = self._scheme in _S3 and hasattr(self._fs, "_call_s3")
        if self._is_s3:
            self._fs.retries = 1  # it is tried again here, where time is limited and retries are counted
        self._pid = os.getpid()

    # ── listing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _entry(self, path: str) -> Entry:
        path = path.rstrip("/") or self.filesystem.root_marker
        is_glob = bool(WILDCARD.search(path))
        try:
            kind = self._info(path)["type"]
        except PathNotFoundError:
            if not is_glob:
                raise
            return entry_of(path, "glob")
        # To fsspec every web address is a file, a web server's page that lists a folder too.
        if kind == "directory" or (
            not path.endswith(".parquet") and self._call(path, lambda until: self._run("isdir", path, until=until))
        ):
            return entry_of(path, "folder")
        return entry_of(path, "file")

    def list_files(self) -> list[FileInfo]:
        listing = Listing(self._base)
        wanted: dict[str, Mapping[str, Any]] = {}
        for entry, found in zip(self._entries, self._all_at_once(self._find, self._entries), strict=True):
            for path, info in found.items():
                if info["type"] != "directory" and not path.endswith("/") and listing.wants(path, entry):
                    if path in wanted:
                        raise ConfigError(
                            f"{self._shown(path)} is named twice by the list of paths; each file may come once"
                        )
                    wanted[path] = info
        # Some filesystems tell less in a listing than in a look at one file, or tell it otherwise; reads look.
        listed = None if self._is_s3 else next(iter(wanted.items()), None)
        if listed is not None and _version(self._info(listed[0])) != _version(listed[1]):
            looked_at = list(wanted)
        else:
            looked_at = [path for path, info in wanted.items() if info.get("size") is None]
        wanted.update(zip(looked_at, self._all_at_once(self._info, looked_at), strict=True))
        for path, info in wanted.items():
            listing.add(path, self._size(path, info), _version(info))
        return listing.result(self.root)

    def _find(self, entry: Entry) -> dict[str, Mapping[str, Any]]:
        if entry.kind == "file":
            return {entry.path: self._info(entry.path)}

        def ask(name: str, path: str) -> dict[str, Mapping[str, Any]]:
            return dict(self._call(path, lambda until: self._run(name, path, detail=True, until=until)))

        self.filesystem.invalidate_cache()  # a listing must show what is there now
        if entry.kind == "folder":
            found = ask("find", entry.path)
        else:
            found = ask("glob", entry.path)
            for folder in [path for path, info in found.items() if info["type"] == "directory"]:
                found.update(ask("find", folder))
        self.filesystem.invalidate_cache()  # and a later look at a file too
        return found

    def _info(self, path: str) -> Mapping[str, Any]:
        return self._call(path, lambda until: self._look(path, until))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        path = self._base + file.path
        if start + length > file.size:
            shown = self._shown(path)
            raise StorageError(f"{shown} has {file.size:,} bytes: there are no {length:,} from byte {start:,} on")
        is_pinned = self._is_s3 and file.version.startswith(_ETAG)

        def check(until: float | None) -> None:
            info = self._look(path, until, stop)
            if (self._size(path, info), _version(info)) != (file.size, file.version):
                now = f"size {info['size']:,} and {_version(info)} where there were {file.size:,} and {file.version}"
                raise changed_error(self._shown(path), now)

        def read_range(until: float | None) -> bytes:
            try:
                if is_pinned:
                    etag = file.version.removeprefix(_ETAG)
                    data = self._wait(_get_if_match(self.filesystem, path, start, length, etag), until, stop)
                else:
                    url = path + self._queries.get(path, "")
                    data = self._run("cat_file", url, start=start, end=start + length, until=until, stop=stop)
            except LoaderClosedError:
                raise
            except Exception as error:
                # What is gone, or another by now, fails in a way of its own. Only a look tells: stores have been known
                # to say 404 in passing.
                if not is_pinned or isinstance(error, FileNotFoundError) or _http_status(error) in (412, 416):
                    check(until)
                if isinstance(error, FileNotFoundError) and _is_not_there(error, self._scheme):
                    raise _NotFoundInPassingError("was not found by a read, and then was there") from error
                raise
            if not is_pinned:
                check(until)
            if len(data) != length:
                raise OSError(f"{len(data):,} bytes came where {length:,} were asked for")
            return bytes(data)

        try:
            return self._call(path, read_range, stop)
        except PathNotFoundError as error:
            raise changed_error(self._shown(path), "it is gone") from error

    def _look(self, path: str, until: float | None, stop: threading.Event | None = None) -> Mapping[str, Any]:
        """What is there now, not what was remembered."""
        url = path + self._queries.get(path, "")
        self.filesystem.invalidate_cache(url)
        info: Mapping[str, Any] = self._run("info", url, until=until, stop=stop)
        return info

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _all_at_once(self, request: Callable[[S], T], items: Sequence[S]) -> list[T]:
        if len(items) <= 1:
            return [request(item) for item in items]
        with ThreadPoolExecutor(min(len(items), _REQUESTS_AT_ONCE), thread_name_prefix="parquet-storage") as pool:
            return list(pool.map(request, items))

    def _run(
        self, name: str, *arguments: Any, until: float | None, stop: threading.Event | None = None, **named: Any
    ) -> Any:
        """Call a method of the filesystem."""
        fs = self.filesystem
        if not self._is_async:
            return getattr(fs, name)(*arguments, **named)
        return self._wait(getattr(fs, f"_{name}")(*arguments, **named), until, stop)

    def _wait(self, answer: Coroutine[Any, Any, T], until: float | None, stop: threading.Event | None) -> T:
        """Wait for an answer of the filesystem's event loop, but for no longer than it is wanted."""
        future = asyncio.run_coroutine_threadsafe(answer, self.filesystem.loop)
        last = time.monotonic() + _HUNG_SECONDS
        if until is not None:
            last = min(last, until + _GRACE_SECONDS)
        try:
            while not future.done():
                concurrent.futures.wait([future], _LOOK_SECONDS)
                if stop is not None and stop.is_set():
                    raise LoaderClosedError("closed while a read was waited for")
                if time.monotonic() > last and not future.done():
                    raise TimeoutError("no answer came in time")
            return future.result()
        finally:
            future.cancel()

    def _call(self, path: str, request: Callable[[float | None], T], stop: threading.Event | None = None) -> T:
        """Make a request, again after a passing fault; every failure leaves as one of the library's errors."""
        self.filesystem  # noqa: B018  (a forked child's is made anew, and its retries)
        renewed = False

        def with_fresh_credentials(until: float | None) -> T:
            nonlocal renewed
            try:
                return request(until)
            except Exception as error:
                if renewed or _error_code(error) not in _EXPIRED:
                    raise
            renewed = True
            self._renew()  # a new client reads credentials from where the old one had them
            return request(until)

        judge = functools.partial(self._judged, self._shown(path))
        return self._retries.call(with_fresh_credentials, judge, stop)

    def _judged(self, shown: str, error: Exception, attempt: int, seconds: float) -> tuple[StorageError, bool]:
        """The library's error for a filesystem's, and whether another attempt may mend it."""
        failure = self._scrubber.failure
        told: BaseException = error
        if isinstance(error, FileNotFoundError):
            if _is_not_there(error, self._scheme):
                return failure(PathNotFoundError, f"there is no {shown}; check the path and the region", error), False
            told = error.__cause__ or error  # fsspec calls every fault of a web server a file that is not there
        times = "once" if attempt == 1 else f"{attempt} times in {seconds:.0f} s, the last time"
        text = f"{shown} failed {times} with {type(told).__name__}: {told}"
        status = None if isinstance(error, _NotFoundInPassingError) else _http_status(error)
        name = type(error).__name__
        denied = isinstance(error, PermissionError) or status in (401, 403)
        if denied or name in _NO_CREDENTIALS:
            why = "denied" if denied else "not possible"
            text = f"access to {shown} is {why} ({error}); check the credentials"
            if self._is_s3:
                text += ": AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or key and secret in storage_options"
                text += '; for a public bucket storage_options={"anon": True}'
            return failure(StorageError, text, error), False
        may_pass = not isinstance(error, _PERMANENT) and (
            status is None or not 400 <= status < 500 or status in _PASSING
        )
        return failure(StorageError, text, error), may_pass

    def _shown(self, path: str) -> str:
        return path if "://" in path or not self._scheme else f"{self._scheme}://{path.lstrip('/')}"

    def _size(self, path: str, info: Mapping[str, Any]) -> int:
        size = info.get("size")
        if size is None:
            raise StorageError(f"{self._shown(path)} has no size; a Parquet file is read from its end")
        return int(size)


class _NotFoundInPassingError(Exception):
    """A 404 that was not true."""


async def _get_if_match(fs: Any, path: str, start: int, length: int, etag: str) -> bytes:
    """A range of an S3 object, if its ETag is this one; an error of status 412 otherwise."""
    bucket, key, version = fs.split_path(path)
    pinned = {"VersionId": version} if version else {}
    answer = await fs._call_s3(
        "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{start + length - 1}", IfMatch=etag, **pinned
    )
    async with answer["Body"] as body:
        data: bytes = await body.read()
        return data


def _with_defaults(scheme: str, options: Mapping[str, Any], stall_seconds: float) -> Mapping[str, Any]:
    """Options with what this module relies on, where the user says nothing else."""
    if scheme in _S3:
        config = {
            "retries": {"max_attempts": 0},
            "max_pool_connections": _CONNECTIONS,
            "connect_timeout": stall_seconds,
            "read_timeout": stall_seconds,
        }
        return {**options, "config_kwargs": {**config, **options.get("config_kwargs", {})}}
    if scheme in _WEB:
        import aiohttp

        patience = aiohttp.ClientTimeout(total=None, sock_connect=stall_seconds, sock_read=stall_seconds)
        return {**options, "client_kwargs": {"timeout": patience, **options.get("client_kwargs", {})}}
    return options


# Faults that another attempt does not mend.
_PERMANENT = (
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_PASSING = (408, 409, 425, 429)  # of the statuses that tell a client that it is at fault
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoAuthTokenError")


def _causes(error: BaseException) -> list[BaseException]:
    """An error and what it came from."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _http_status(error: BaseException) -> int | None:
    """The status of the answer that an error tells of, if it does: botocore's, or aiohttp's."""
    for link in _causes(error):
        response = getattr(link, "response", None)
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        status = status or getattr(link, "status", None)
        if isinstance(status, int):
            return status
    return None


def _error_code(error: BaseException) -> str:
    """S3's code of an error, or ""."""
    for link in _causes(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def _is_not_there(error: FileNotFoundError, scheme: str) -> bool:
    """Whether an error says that there is no such file; of the web, fsspec says that of any fault."""
    return scheme not in _WEB or error.__cause__ is None or _http_status(error) in (404, 410)


_ETAG = "ETag="
# What tells versions apart, the surest first.
_VERSION_KEYS = (
    *("ETag", "etag", "generation", "md5Hash", "content_md5", "CRC", "mtime", "LastModified", "last_modified"),
    *("modified", "updated", "created"),
)


def _version(info: Mapping[str, Any]) -> str:
    """``key=value`` of what tells a file's version; empty where nothing does."""
    for key in _VERSION_KEYS:
        value = info.get(key)
        if value:
            return f"{key}={value.timestamp() if isinstance(value, datetime) else value}"
    return ""
