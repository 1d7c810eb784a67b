"""Files on any fsspec filesystem: one request for a range, pinned to the version that was listed, tried again.

Amazon's S3, and what speaks its protocol, is asked for a range *of an ETag* (``If-Match``), so that a read is one
request and can give no other object's bytes. Other filesystems have no such question in common: there the file is
looked at after each read, and not before it, which leaves no moment in which a replacement could slip through.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import difflib
import functools
import inspect
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from ..errors import ConfigError, LoaderClosedError, PathNotFoundError, StorageError
from .base import (
    WILDCARD,
    Entry,
    FileInfo,
    Found,
    Listing,
    changed_error,
    common_base,
    entry_of,
    folders_of,
    is_data,
    tells_of_growth,
)
from .faults import http_status, is_expired, is_not_there, is_unreachable, lacks_credentials, may_pass
from .retry import RETRY_SECONDS, Retries
from .secrets import WEB, Location, Scrubber
from .web import WebClient

__all__ = ["FsspecStorage", "connect"]

S = TypeVar("S")
T = TypeVar("T")

_REQUESTS_AT_ONCE = 16  # while listing
_CONNECTIONS = 64  # of a client that would otherwise make requests wait for each other
_STALL_SECONDS = 15.0  # without a byte, after which a request has failed
_HUNG_SECONDS = 600.0  # after which it has failed whatever it does
_GRACE_SECONDS = 3.0  # that a request may still take once the time for retries is over
_LOOK_SECONDS = 0.25  # between looks at whether an answer is still wanted
_UNANSWERED_SECONDS = 5.0  # that a place is tried which has never answered
_S3 = ("s3", "s3a")
_left_to_parents: list[Any] = []


class FsspecStorage:
    """Files on any fsspec filesystem. A version is whatever the filesystem tells: ETag, generation, modification time.

    Where a filesystem tells no version, as some web servers do, only the size is compared.

    Args:
        urls: what the source consists of.
        storage_options: for the filesystem.
        retry_seconds: how long a request is tried again once it has failed.
        kind: of the files that are meant, see `kinds`; None for that which is there.
        growing, may_come: see `open_storage`.

    Attributes:
        is_in_memory: whether the files are in this process's memory, where no other one sees them.
        still_grows: whether the last listing was of a set that is still being written.
        writer_failed: why its writer failed, if it says so, and such sets are taken as they are.
    """

    def __init__(
        self,
        urls: Sequence[str],
        storage_options: Mapping[str, Any],
        *,
        retry_seconds: float = RETRY_SECONDS,
        kind: str | None = None,
        growing: bool = False,
        may_come: bool = False,
    ) -> None:
        self._kind = kind
        self._takes_growing = growing
        self._may_come = may_come
        self.still_grows = False
        self.writer_failed: str | None = None
        locations = [Location(url) for url in urls]
        self._urls = [str(location) for location in locations]
        self.scrubber = Scrubber(urls, storage_options)
        self._retry_seconds = retry_seconds
        self._retries = Retries(retry_seconds)
        self._has_answered = False
        self._scheme = next((link.scheme for link in locations[0].links if link.scheme), "")
        self.is_in_memory = any(link.scheme == "memory" for location in locations for link in location.links)
        # A stall is to be noticed while there is time to try again.
        stall = min(_STALL_SECONDS, max(2.0, retry_seconds)) if retry_seconds else _STALL_SECONDS
        if len(locations[0].links) == 1:
            storage_options = _with_defaults(self._scheme, storage_options, stall)
        self._fs, paths = connect(locations, storage_options, self.scrubber)
        self._renew()  # an instance of its own: fsspec shares them, listings that are out of date included
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
        self._is_web = self._is_async and self._scheme in WEB and hasattr(self._fs, "set_session")
        self._pid = os.getpid()

    # ── listing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _entry(self, path: str) -> Entry:
        path = path.rstrip("/") or self.filesystem.root_marker
        is_glob = bool(WILDCARD.search(path))
        try:
            kind = self._info(path)["type"]
        except PathNotFoundError:
            if is_glob:
                return entry_of(path, "glob")
            if self._info_if_there(path + ".idx") is not None:
                return entry_of(path + ".idx", "file")
            if self._may_come:
                return entry_of(path, "folder")
            raise
        # To fsspec every web address is a file, a web server's page that lists a folder too.
        if kind == "directory" or (
            not path.endswith(".parquet") and self._call(path, lambda until: self._run("isdir", path, until=until))
        ):
            return entry_of(path, "folder")
        return entry_of(path, "file")

    def list_files(self) -> list[FileInfo]:
        listing = self._with_beside(self.find(is_data))
        self.still_grows = bool(listing.growing())
        self.writer_failed = listing.failure(self._read_whole) if self._takes_growing else None
        return listing.data_files(self._base, self.root, self._kind, follow=self._takes_growing, read=self._read_whole)

    def _with_beside(self, listing: Listing) -> Listing:
        """A listing, and what lies beside the files that are named and tells of them."""
        beside = self._those_there(listing.beside())
        listing.found.append(
            [Found(path, info.get("size"), _version(info), False, _modified(info), True) for path, info in beside]
        )
        return listing

    def _read_whole(self, path: str) -> bytes:
        info = self._info(path)
        size = int(info.get("size") or 0)
        return self.read(FileInfo(path=path[len(self._base) :], size=size, version=_version(info)), 0, size)

    @property
    def can_grow(self) -> bool:
        """Whether it is one folder or glob, to which files may be added, and not a file, or several."""
        return [entry.kind for entry in self._entries] in (["folder"], ["glob"])

    def find_beside(self, names: Collection[str], stop: threading.Event | None = None) -> tuple[Listing, str]:
        """The data files, and those of such names that lie right in the root; and what their paths begin with.

        Args:
            names: of files that are wanted too.
            stop: as for `read`.
        """
        listing = self.find(lambda inside: is_data(inside) or inside in names, stop, times=True)
        return self._with_beside(listing), self._base

    def find(
        self, wants: Callable[[str], bool], stop: threading.Event | None = None, *, times: bool = False
    ) -> Listing:
        """All files that are wanted, of whatever kind; with ``times`` also when they were written. ``stop`` is as for
        `read`.
        """
        listing = Listing(wants)
        wanted: dict[str, Mapping[str, Any]] = {}
        found_by_entry = self._all_at_once(functools.partial(self._find, stop=stop), self._entries)
        for entry, (found, _) in zip(self._entries, found_by_entry, strict=True):
            files = ((path, info) for path, info in found.items() if info["type"] != "directory" and path[-1] != "/")
            wanted.update((path, info) for path, info in files if listing.wants(path, entry))
        # Some filesystems tell less in a listing than in a look at one file, or tell it otherwise; reads look.
        listed = None if self._is_s3 else next(iter(wanted.items()), None)
        if listed is not None and _version(self._info(listed[0])) != _version(listed[1]):
            looked_at = list(wanted)
        else:
            looked_at = [path for path, info in wanted.items() if info.get("size") is None]
        wanted.update(zip(looked_at, self._all_at_once(self._info, looked_at), strict=True))
        for found, named in found_by_entry:
            listing.found.append(
                [
                    Found(
                        path,
                        wanted[path].get("size"),
                        _version(wanted[path]),
                        path in named,
                        _modified(wanted[path]) if times else None,
                    )
                    for path in sorted(wanted.keys() & found.keys())
                ]
            )
        return listing

    def _find(self, entry: Entry, stop: threading.Event | None) -> tuple[dict[str, Mapping[str, Any]], set[str]]:
        """What an entry leads to, and which of that it names itself."""
        if entry.kind == "file":
            return {entry.path: self._info(entry.path)}, {entry.path}

        def ask(name: str, path: str) -> dict[str, Mapping[str, Any]]:
            return dict(
                self._call(path, lambda until: self._run(name, path, detail=True, until=until, stop=stop), stop)
            )

        self.filesystem.invalidate_cache()  # a listing must show what is there now
        if entry.kind == "folder":
            found, named = ask("find", entry.path), set()
        else:
            pattern = entry.path
            while pattern.endswith("/**"):  # all that is below what is before it
                pattern = pattern[:-3]
            found = ask("glob", pattern)
            files = {path for path, info in found.items() if info["type"] != "directory"}
            named = {path for path in files if not tells_of_growth(path)}
            for folder in sorted(found.keys() - files):
                found.update(ask("find", folder))
            for folder in folders_of(entry, files):
                found.update({info["name"]: info for info in self._beside(folder, stop)})
        self.filesystem.invalidate_cache()  # and a later look at a file too
        return found, named

    def _beside(self, folder: str, stop: threading.Event | None) -> list[Mapping[str, Any]]:
        """What lies in a folder and tells whether a set still grows: most filesystems know it from a glob just now."""
        path = folder.rstrip("/")
        try:
            infos = self._call(path, lambda until: self._run("ls", path, detail=True, until=until, stop=stop), stop)
        except PathNotFoundError:
            return []
        return [info for info in infos if tells_of_growth(info["name"])]

    def _info(self, path: str) -> Mapping[str, Any]:
        return self._call(path, lambda until: self._look(path, until))

    def _info_if_there(self, path: str) -> Mapping[str, Any] | None:
        """None where there is nothing, or nothing that may be looked at: stores deny what is not there, too."""

        def look(until: float | None) -> Mapping[str, Any] | None:
            try:
                return self._look(path, until)
            except Exception as error:
                is_denied = isinstance(error, PermissionError) or http_status(error) in (401, 403)
                is_gone = isinstance(error, FileNotFoundError) and is_not_there(error, self._scheme)
                if (is_denied and not is_expired(error)) or is_gone:
                    return None
                raise

        return self._call(path, look)

    def _those_there(self, paths: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
        """Those of some files that are there. Folders of globs are listed, rather than each asked for."""
        if all(entry.kind == "glob" for entry in self._entries):
            folders = sorted({path.rpartition("/")[0] for path in paths})
            names = self._all_at_once(self._names_in, folders)
            there = set().union(*names)
            paths = [path for path in paths if path in there]
        infos = self._all_at_once(self._info_if_there, paths)
        return [(path, info) for path, info in zip(paths, infos, strict=True) if info is not None]

    def _names_in(self, folder: str) -> list[str]:
        return self._call(folder, lambda until: list(self._run("ls", folder, detail=False, until=until)))

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        path = self._base + file.path
        if start + length > file.size:
            shown = self._shown(path)
            raise StorageError(f"{shown} has {file.size:,} bytes: there are no {length:,} from byte {start:,} on")
        is_pinned = self._is_s3 and file.version.startswith(_ETAG)

        def check(until: float | None) -> None:
            info = self._look(path, until, stop)
            if (info.get("size"), _version(info)) != (file.size, file.version):
                now = f"size {info.get('size')} and {_version(info)} where there were {file.size:,} and {file.version}"
                is_as_large = info.get("size") == file.size
                raise changed_error(self._shown(path), now, (info.get("size"), _version(info)), same_size=is_as_large)

        def read_range(until: float | None) -> bytes:
            try:
                if is_pinned:
                    etag = file.version.removeprefix(_ETAG)
                    data = self._wait(_get_if_match(self.filesystem, path, start, length, etag), until, stop)
                elif self._is_web:
                    data = self._wait(_get_range(self.filesystem, path, start, length, file.size), until, stop)
                else:
                    data = self._run("cat_file", path, start=start, end=start + length, until=until, stop=stop)
            except LoaderClosedError:
                raise
            except Exception as error:
                # What is gone, or another by now, fails in a way of its own. Only a look tells: stores have been known
                # to say 404 in passing.
                if not is_pinned or isinstance(error, FileNotFoundError) or http_status(error) in (412, 416):
                    check(until)
                if isinstance(error, FileNotFoundError) and is_not_there(error, self._scheme):
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
        self.filesystem.invalidate_cache(path)
        info: Mapping[str, Any] = self._run("info", path, until=until, stop=stop)
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
                answer = request(until)
                self._has_answered = True
                return answer  # noqa: TRY300
            except Exception as error:
                if renewed or not is_expired(error):
                    raise
            renewed = True
            self._renew()  # a new client reads credentials from where the old one had them
            return request(until)

        judge = functools.partial(self._judged, self._shown(path))
        return self._retries.call(with_fresh_credentials, judge, stop)

    def _judged(self, shown: str, error: Exception, attempt: int, seconds: float) -> tuple[StorageError, bool]:
        """The library's error for a filesystem's, and whether another attempt may mend it."""
        failure = self.scrubber.failure
        told: BaseException = error
        if isinstance(error, FileNotFoundError):
            if is_not_there(error, self._scheme):
                return failure(PathNotFoundError, f"there is no {shown}; check the path and the region", error), False
            told = error.__cause__ or error  # fsspec calls every fault of a web server a file that is not there
        times = "once" if attempt == 1 else f"{attempt} times in {seconds:.0f} s, the last time"
        text = f"{shown} failed {times} with {type(told).__name__}: {told}"
        status = None if isinstance(error, _NotFoundInPassingError) else http_status(error)
        denied = isinstance(error, PermissionError) or status in (401, 403)
        if denied or lacks_credentials(error):
            why = "denied" if denied else "not possible"
            text = f"access to {shown} is {why} ({error}); check the credentials"
            if self._is_s3:
                text += ": AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or key and secret in storage_options"
                text += '; for a public bucket storage_options={"anon": True}'
            return failure(StorageError, text, error), False
        passing = may_pass(told, status)
        if not is_unreachable(error):
            self._has_answered = True
        elif not self._has_answered and seconds >= _UNANSWERED_SECONDS:
            text += "; nothing has answered there yet: check the address"
            passing = False
        return failure(StorageError, text, error), passing

    def _shown(self, path: str) -> str:
        return path if "://" in path or not self._scheme else f"{self._scheme}://{path.lstrip('/')}"


class _NotFoundInPassingError(Exception):
    """A 404 that was not true."""


async def _get_if_match(fs: Any, path: str, start: int, length: int, etag: str) -> bytes:
    """A range of an S3 object, if its ETag is this one; an error of status 412 otherwise."""
    bucket, key, version = fs.split_path(path)
    pinned = {"VersionId": version} if version else {}
    options = {**getattr(fs, "req_kw", {}), **pinned}  # such as who pays
    answer = await fs._call_s3(
        "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{start + length - 1}", IfMatch=etag, **options
    )
    async with answer["Body"] as body:
        data: bytes = await body.read()
        return data


async def _get_range(fs: Any, url: str, start: int, length: int, size: int) -> bytes:
    """A range of a web address. A server that knows no ranges is not listened to: it sends the whole file each time."""
    if not length:
        return b""
    session = await fs.set_session()
    headers = {**fs.kwargs.get("headers", {}), "Range": f"bytes={start}-{start + length - 1}"}
    async with session.get(fs.encode_url(url), **{**fs.kwargs, "headers": headers}) as answer:
        fs._raise_not_found_for_status(answer, url)
        if answer.status != 206 and length != size:
            raise StorageError(
                f"{url} cannot be read in parts: its server knows no Range requests and would send all {size:,} bytes "
                "for each; copy the files to a disk or an object store, or use another server"
            )
        data: bytes = await answer.read()
        return data


def connect(locations: Sequence[Location], options: Mapping[str, Any], scrubber: Scrubber) -> tuple[Any, list[str]]:
    """The fsspec filesystem on which all of these lie, and their paths there; none of what it knows is secret.

    Raises:
        ConfigError: no such filesystem, an option that it does not know, several filesystems, or a secret in a URL
            that it cannot be opened with.
        StorageError: the filesystem cannot be made.
    """
    from fsspec.core import url_to_fs

    client = WebClient(locations)
    opened = []
    for location in locations:
        links = location.links
        for link in links:
            if not link.is_openable:
                raise ConfigError(f"the URL of {location} holds a key or password; give it in storage_options instead")
            if link.query and link.scheme not in WEB:
                raise ConfigError(
                    f"the URL of {location} has a query, which {link.scheme}:// does not know: give credentials in "
                    "storage_options, and a signed address as https://; write [?] or [#] for such a sign in a name"
                )
        failure: ConfigError | StorageError
        try:
            given = client.add_to(options, links)
            opened.append(url_to_fs("::".join(link.opens for link in links), **given))
            _check_options(type(opened[-1][0]), given)
            continue
        except ConfigError:
            raise
        except TypeError as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            text = f"{location} cannot be opened through fsspec: {error}"
            if unknown and unknown[1] in options:
                text = f"storage_options: {links[0].scheme}:// knows no {unknown[1]!r}"
            failure = scrubber.failure(ConfigError, text, error)
        except (ValueError, ImportError) as error:
            failure = scrubber.failure(ConfigError, f"{location} cannot be opened through fsspec: {error}", error)
        except Exception as error:  # some filesystems connect when they are made
            failure = scrubber.failure(StorageError, f"{location} cannot be opened: {error}", error)
        raise failure  # out of the except block, so that an error that shows a secret is not its context
    if any(fs != opened[0][0] for fs, _ in opened):
        raise ConfigError("the paths are on different filesystems; give each its own loader, or copy them together")
    return opened[0][0], [path for _, path in opened]


# What people know from boto3, pyarrow and Polars.
_S3_NAMES = {
    "access_key": "key",
    "access_key_id": "key",
    "aws_access_key_id": "key",
    "secret_key": "secret",
    "secret_access_key": "secret",
    "aws_secret_access_key": "secret",
    "session_token": "token",
    "aws_session_token": "token",
    "region": 'client_kwargs={"region_name": ...}',
    "region_name": 'client_kwargs={"region_name": ...}',
    "aws_region": 'client_kwargs={"region_name": ...}',
    "anonymous": "anon",
    "skip_signature": "anon",
}


def _check_options(kind: type, options: Mapping[str, Any]) -> None:
    """Refuse what s3fs does not know: it would say so at the first request, and call it a fault of that."""
    if not {"s3", "s3a"} & set(getattr(kind, "protocol", ())):
        return
    known = {
        name
        for base in kind.__mro__
        for name, value in inspect.signature(base.__init__).parameters.items()  # type: ignore[misc]
        if value.kind in (value.POSITIONAL_OR_KEYWORD, value.KEYWORD_ONLY)
    } - {"self"}
    known |= {"skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths", "profile"}
    for name in sorted(options.keys() - known):
        nearest = _S3_NAMES.get(name) or next(iter(difflib.get_close_matches(name.lower(), known, 1)), None)
        hint = f"did you mean {nearest}?" if nearest else f"it knows {', '.join(sorted(known))}"
        raise ConfigError(f"storage_options: s3fs has no option {name!r}; {hint}")


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
    if scheme in WEB:
        import aiohttp

        patience = aiohttp.ClientTimeout(total=None, sock_connect=stall_seconds, sock_read=stall_seconds)
        return {**options, "client_kwargs": {"timeout": patience, **options.get("client_kwargs", {})}}
    return options


_ETAG = "ETag="
# What tells versions apart, the surest first.
_VERSION_KEYS = (
    *("ETag", "etag", "generation", "md5Hash", "content_md5", "CRC", "mtime", "LastModified", "last_modified"),
    *("modified", "updated", "created"),
)


_TIME_KEYS = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")


def _version(info: Mapping[str, Any]) -> str:
    """``key=value`` of what tells a file's version; empty where nothing does."""
    for key in _VERSION_KEYS:
        value = info.get(key)
        if value:
            return f"{key}={value.timestamp() if isinstance(value, datetime) else value}"
    return ""


def _modified(info: Mapping[str, Any]) -> float | None:
    """When a file was written, in seconds since 1970, where that is told."""
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None
