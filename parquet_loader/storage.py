"""Where the files lie: list them, and read a byte range of one, nothing else.

A source is a folder, a file, a glob, or a list of them, local or on any fsspec filesystem. Its *root* is the deepest
folder that all of it lies under; a file is known by its path relative to that root, so that a dataset may move.

    source                             root            files
    /data/set                          /data/set       a.parquet, en/b.parquet
    /data/set/a.parquet                /data/set       a.parquet
    s3://bucket/set/lang=*/            bucket/set      lang=en/b.parquet, ...
    [/data/x, /data/y/b.parquet]       /data           x/a.parquet, y/b.parquet

Folders and globs give ``*.parquet`` at any depth, passing over every file and folder whose name starts with ``_`` or
``.`` (temporaries, ``_SUCCESS``, checksums). A file named outright is taken as it is. Links are followed as though
what they point to lay in their place, except a link back to a folder that it lies in. In a glob ``*``, ``?`` and
``[...]`` match within a name, and ``**`` stands for any number of folders; a path that exists is never taken for a
glob, so that a folder may be called ``a[1]``.

Every read names the size and version (modification time, ETag) that the file had when it was listed, and fails where
they are others afterwards: tokens of a replaced file are never read in silence. Looking after the read and not before
it leaves no moment in which a replacement could slip through.
"""

from __future__ import annotations

import fnmatch
import os
import random
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from .errors import ConfigError, FileChangedError, PathNotFoundError, StorageError

__all__ = ["FileInfo", "Source", "Storage", "open_storage"]

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
S = TypeVar("S")
T = TypeVar("T")
E = TypeVar("E", ConfigError, StorageError, PathNotFoundError)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file as it was listed.

    Attributes:
        path: POSIX path relative to the storage's root.
        size: bytes.
        version: changes whenever the content does, as far as the filesystem tells: an ETag or a modification time.
    """

    path: str
    size: int
    version: str


class Storage(Protocol):
    """The files of one source. Safe to use from many threads, and after a fork."""

    @property
    def root(self) -> str:
        """The root, for people to read: it holds no secrets."""

    @property
    def identity(self) -> str:
        """What tells this source from others, the same for ever: its paths, without secrets."""

    def list_files(self) -> list[FileInfo]:
        """Every file of the source, sorted by path; never an empty list.

        Raises:
            PathNotFoundError: there is no such path, or no Parquet file in it.
            StorageError: it cannot be listed.
        """

    def read(self, file: FileInfo, start: int, length: int) -> bytes:
        """``length`` bytes from byte ``start`` of ``file``, all of them.

        Raises:
            FileChangedError: the file is gone, or its size or version is not ``file``'s.
            StorageError: it cannot be read.
        """


def open_storage(source: Source, storage_options: Mapping[str, Any] | None = None) -> Storage:
    """The storage of a source.

    Args:
        source: a path, URL or glob, or several.
        storage_options: passed on to the fsspec filesystem; not for local paths.

    Raises:
        ConfigError: an empty list, what is no path, or entries on different filesystems.
        PathNotFoundError: an entry that is no glob does not exist.
        StorageError: an entry cannot be looked at.
    """
    if isinstance(source, (str, os.PathLike)):
        entries: list[str | os.PathLike[str]] = [source]
    elif isinstance(source, Iterable) and not isinstance(source, (bytes, Mapping)):
        entries = list(source)
    else:
        raise ConfigError(f"{source!r} is no path; give a folder, a file, a glob or a URL, or a list of them")
    if not entries:
        raise ConfigError("the list of paths is empty; name at least one folder, file or glob")
    for entry in entries:
        if not isinstance(entry, (str, os.PathLike)) or not os.fspath(entry):
            raise ConfigError(f"{entry!r} is no path; give a folder, a file, a glob or a URL")
    urls = [os.fsdecode(entry) for entry in entries]
    local = [path for url in urls if (path := _local_path(url)) is not None]
    if len(local) == len(urls):
        if storage_options:
            raise ConfigError(f"storage_options {sorted(storage_options)} do not apply to local paths; leave them out")
        return LocalStorage(local)
    if local:
        raise ConfigError(f"{local[0]} is a local path and others are URLs; give each its own loader")
    return FsspecStorage(urls, storage_options or {})


def _local_path(url: str) -> str | None:
    """The absolute local path of a plain path or file URL, without a final slash; None for any other URL."""
    if url.startswith(("file://", "local://")):
        url = url.split("://", 1)[1]  # taken literally, as fsspec does: %20 is no space
    elif "://" in url or ("::" in url and not os.path.exists(url)):
        return None
    path = os.path.join(os.getcwd(), os.path.expanduser(url))
    parts = path.split("/")
    if ".." in parts:  # resolved through links, as the operating system does
        last = len(parts) - parts[::-1].index("..")
        path = "/".join([os.path.realpath("/".join(parts[:last])), *parts[last:]])
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


_WILDCARD = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a source.

    Attributes:
        path: without a final slash.
        base: the deepest folder without a wildcard, with its final slash: ``/data/`` of ``/data/part-*/x``.
    """

    path: str
    base: str
    kind: Literal["file", "folder", "glob"]


def _entry(path: str, kind: Literal["file", "folder", "glob"]) -> _Entry:
    if kind == "folder":
        return _Entry(path, path.rstrip("/") + "/" if path else "", kind)
    wildcard = _WILDCARD.search(path) if kind == "glob" else None
    return _Entry(path, path[: path.rfind("/", 0, wildcard.start() if wildcard else None) + 1], kind)


def _common_base(bases: Iterable[str]) -> str:
    """The deepest folder that all of these lie in: ``/data/`` of ``/data/x/`` and ``/data/y/z/``."""
    split = [base.split("/")[:-1] for base in bases]
    common = 0
    while all(len(parts) > common and parts[common] == split[0][common] for parts in split):
        common += 1
    return "".join(part + "/" for part in split[0][:common])


def _is_data(inside: str) -> bool:
    """Whether a path below a folder is one of its data files."""
    return inside.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in inside.split("/"))


class _Listing:
    """Collects a source's files under its root; says clearly when there is nothing, or a file is named twice."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: dict[str, FileInfo] = {}
        self._passed_over: list[str] = []

    def wants(self, path: str, entry: _Entry) -> bool:
        """Whether a path that an entry leads to is a data file of it."""
        wanted = entry.kind == "file" or (path.startswith(entry.base) and _is_data(path[len(entry.base) :]))
        if not wanted:
            self._passed_over.append(path.rsplit("/", 1)[-1])
        return wanted

    def add(self, path: str, size: int, version: str) -> None:
        relative = path[len(self._root) :]
        if relative in self._files:
            raise ConfigError(f"{path} is named twice by the list of paths; each file may come once")
        try:
            relative.encode()
        except UnicodeEncodeError:
            raise StorageError(f"the name of {os.fsencode(path)!r} is not UTF-8; rename it") from None
        self._files[relative] = FileInfo(path=relative, size=size, version=version)

    def result(self, shown: str) -> list[FileInfo]:
        if not self._files:
            seen = ", ".join(sorted(self._passed_over)[:5])
            raise PathNotFoundError(
                f"{shown} holds no Parquet file: looked for *.parquet at any depth, passing over names that start "
                f"with _ or .; " + (f"found only {len(self._passed_over)} others ({seen})" if seen else "found nothing")
            )
        return [self._files[path] for path in sorted(self._files)]


def _changed(path: str, now: str) -> FileChangedError:
    return FileChangedError(
        f"{path} is not the file that was indexed: {now}; put the old file back, or start a new run on the new data"
    )


# ── local files ──────────────────────────────────────────────────────────────────────────────────────────────────


class LocalStorage:
    """Files on disk, read with ``pread``; a version is the modification time in nanoseconds."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._entries = [_local_entry(path) for path in paths]
        self._base = _common_base(entry.base for entry in self._entries)

    @property
    def root(self) -> str:
        return self._base.rstrip("/") or "/"

    @property
    def identity(self) -> str:
        return "\n".join(sorted(entry.path for entry in self._entries))

    def list_files(self) -> list[FileInfo]:
        listing = _Listing(self._base)
        for entry in self._entries:
            for path in _local_files(entry):
                if listing.wants(path, entry):
                    status = _status(path)
                    if status is not None:
                        listing.add(path, status.st_size, str(status.st_mtime_ns))
        return listing.result(self.root)

    def read(self, file: FileInfo, start: int, length: int) -> bytes:
        path = self._base + file.path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # what has become a pipe must not hang
        except FileNotFoundError as error:
            raise _changed(path, "it is gone") from error
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        try:
            data = _read_range(descriptor, start, length)
            status = os.fstat(descriptor)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        if (status.st_size, str(status.st_mtime_ns)) != (file.size, file.version):
            raise _changed(
                path,
                f"size {status.st_size:,} and modification time {status.st_mtime_ns} ns "
                f"where there were {file.size:,} and {file.version}",
            )
        if len(data) != length:
            raise StorageError(f"{path} has {file.size:,} bytes: there are no {length:,} from byte {start:,} on")
        return data


def _read_range(descriptor: int, start: int, length: int) -> bytes:
    """The bytes of a range that are there."""
    pieces = []
    while length:
        piece = os.pread(descriptor, min(length, 1 << 30), start)  # Linux gives no 2 GiB at once
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _local_entry(path: str) -> _Entry:
    if os.path.isdir(path):
        return _entry(path, "folder")
    if os.path.exists(path):
        return _entry(path, "file")
    if _WILDCARD.search(path):
        return _entry(path, "glob")
    raise PathNotFoundError(f"there is no {path}; check the path, or the mount it lies on")


def _status(path: str) -> os.stat_result | None:
    """What a data file is; None where it is gone, or a pipe or a device."""
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        if os.path.islink(path):
            raise PathNotFoundError(
                f"{path} is a link to {os.readlink(path)}, which is not there; fetch it, or remove the link"
            ) from error
        return None  # removed while it was being listed
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {error.strerror}") from error
    return status if stat.S_ISREG(status.st_mode) else None


def _local_files(entry: _Entry) -> Iterator[str]:
    """The files that an entry leads to, data or not, each once."""
    if entry.kind == "file":
        yield entry.path
    elif entry.kind == "folder":
        yield from _files_below(entry.path)
    else:
        parts = entry.path[len(entry.base) :].split("/")
        while parts and parts[-1] == "**":
            parts.pop()
        seen = set()
        for match in _matches(entry.base.rstrip("/"), parts):
            for path in _files_below(match) if os.path.isdir(match or "/") else (match,):
                if path not in seen:
                    seen.add(path)
                    yield path


_FolderIds = frozenset[tuple[int, int]]


def _scan(folder: str, above: _FolderIds) -> tuple[list[os.DirEntry[str]], _FolderIds]:
    """A folder's entries, and the identities of it and those above it; no entries where it is one of those above."""
    try:
        status = os.stat(folder or "/")
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return [], above
        with os.scandir(folder or "/") as entries:
            return list(entries), above | {identity}
    except FileNotFoundError as error:
        raise PathNotFoundError(f"there is no {folder}; check the path, or the mount it lies on") from error
    except OSError as error:
        raise StorageError(f"cannot list {folder}: {error.strerror}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads nowhere


def _files_below(folder: str, above: _FolderIds = frozenset()) -> Iterator[str]:
    """Every file below a folder, less what is in folders whose name starts with ``_`` or ``.``."""
    folder = folder.rstrip("/")
    entries, above = _scan(folder, above)
    for entry in entries:
        if not _is_folder(entry):
            yield f"{folder}/{entry.name}"
        elif not entry.name.startswith(("_", ".")):
            yield from _files_below(f"{folder}/{entry.name}", above)


def _matches(folder: str, parts: Sequence[str], above: _FolderIds = frozenset()) -> Iterator[str]:
    """The paths below a folder that match a glob's parts; the standard library's glob hides what it cannot list."""
    if not parts:
        yield folder
    elif not _WILDCARD.search(parts[0]):
        path = f"{folder}/{parts[0]}"
        if os.path.exists(path):
            yield from _matches(path, parts[1:])
    elif parts[0] == "**":
        entries, inside = _scan(folder, above)
        if inside is not above:
            yield from _matches(folder, parts[1:])
        for entry in entries:
            if _is_folder(entry) and not entry.name.startswith(("_", ".")):
                yield from _matches(f"{folder}/{entry.name}", parts, inside)
    else:
        for entry in _scan(folder, frozenset())[0]:
            if fnmatch.fnmatchcase(entry.name, parts[0]) and (len(parts) == 1 or _is_folder(entry)):
                yield from _matches(f"{folder}/{entry.name}", parts[1:])


# ── any fsspec filesystem ────────────────────────────────────────────────────────────────────────────────────────


class FsspecStorage:
    """Files on any fsspec filesystem. A version is whatever the filesystem tells: ETag, generation, modification time.

    After each read the file is looked at again, since fsspec has no conditional read. Where a filesystem tells no
    version, as some web servers do, only the size is compared.
    """

    ATTEMPTS = 5
    FIRST_PAUSE_SECONDS = 0.2
    PATIENCE_SECONDS = 15  # no attempt starts later: some filesystems themselves try for 10 s and more
    _REQUESTS_AT_ONCE = 16

    def __init__(self, urls: Sequence[str], storage_options: Mapping[str, Any]) -> None:
        from fsspec.core import url_to_fs

        self._urls = [redact(url) for url in urls]
        self._secrets = _secrets(urls, storage_options)
        first = urls[0].split("::")
        self._scheme = next((link.split("://", 1)[0] for link in first if "://" in link), "")
        opened = []
        for url, shown in zip(urls, self._urls, strict=True):
            failure: ConfigError | StorageError
            try:
                opened.append(url_to_fs(url, **storage_options))
                continue
            except (ValueError, ImportError, TypeError) as error:
                failure = self._failure(ConfigError, f"{shown} cannot be opened through fsspec: {error}", error)
            except Exception as error:  # some filesystems connect when they are made
                failure = self._failure(StorageError, f"{shown} cannot be opened: {error}", error)
            raise failure  # out of the except block, so that an error that shows a secret is not its context
        self._fs = opened[0][0]
        if any(fs != self._fs for fs, _ in opened):
            raise ConfigError("the paths lie on different filesystems; give each its own loader, or copy them together")
        self._renew()  # an instance of its own: fsspec shares them, listings that are out of date included
        paths = [path for _, path in opened]
        for path, shown in zip(paths, self._urls, strict=True):
            if _PASSWORD.match(path if "://" in path else f"{self._scheme}://{path}"):
                raise ConfigError(f"the URL of {shown} holds a key or password; give it in storage_options instead")
        self._queries = {}
        if self._scheme in (
            "http",
            "https",
        ):  # what follows ? in a web address may be a signature: not part of the name
            self._queries = {path.partition("?")[0]: "?" + path.partition("?")[2] for path in paths if "?" in path}
            paths = [path.partition("?")[0] for path in paths]
        self._entries = self._all_at_once(self._entry, paths)
        self._base = _common_base(entry.base for entry in self._entries)

    @property
    def root(self) -> str:
        return self._shown(self._base).rstrip("/")

    @property
    def identity(self) -> str:
        return "\n".join(sorted(url.rstrip("/") for url in self._urls))

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem; a new one after a fork, since those with an event loop do not survive it."""
        if os.getpid() != self._pid:
            self._renew()
        return self._fs

    def _renew(self) -> None:
        fs = self._fs
        self._fs = type(fs)(*fs.storage_args, **{**fs.storage_options, "skip_instance_cache": True})
        self._pid = os.getpid()

    def _entry(self, path: str) -> _Entry:
        fs = self.filesystem
        path = path.rstrip("/") or fs.root_marker
        is_glob = bool(_WILDCARD.search(path))
        try:
            kind = self._call(path, lambda: fs.info(path + self._queries.get(path, ""))["type"])
        except PathNotFoundError:
            if not is_glob:
                raise
            return _entry(path, "glob")
        # To fsspec every web address is a file, a web server's page that lists a folder too.
        if kind == "directory" or (not path.endswith(".parquet") and self._call(path, lambda: fs.isdir(path))):
            return _entry(path, "folder")
        return _entry(path, "file")

    def list_files(self) -> list[FileInfo]:
        listing = _Listing(self._base)
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
        listed = next(iter(wanted.items()), None)
        if listed is not None and _version(self._info(listed[0])) != _version(listed[1]):
            looked_at = list(wanted)
        else:
            looked_at = [path for path, info in wanted.items() if info.get("size") is None]
        wanted.update(zip(looked_at, self._all_at_once(self._info, looked_at), strict=True))
        for path, info in wanted.items():
            listing.add(path, self._size(path, info), _version(info))
        return listing.result(self.root)

    def _find(self, entry: _Entry) -> dict[str, Mapping[str, Any]]:
        fs = self.filesystem
        if entry.kind == "file":
            return {entry.path: self._info(entry.path)}

        def below(folder: str) -> dict[str, Mapping[str, Any]]:
            return dict(self._call(folder, lambda: fs.find(folder, detail=True)))

        fs.invalidate_cache()  # a listing must show what is there now
        if entry.kind == "folder":
            found = below(entry.path)
        else:
            found = dict(self._call(entry.path, lambda: fs.glob(entry.path, detail=True)))
            for folder in [path for path, info in found.items() if info["type"] == "directory"]:
                found.update(below(folder))
        fs.invalidate_cache()  # and a later look at a file too
        return found

    def _info(self, path: str) -> Mapping[str, Any]:
        fs = self.filesystem
        info: Mapping[str, Any] = self._call(path, lambda: fs.info(path + self._queries.get(path, "")))
        return info

    def read(self, file: FileInfo, start: int, length: int) -> bytes:
        fs = self.filesystem
        path = self._base + file.path
        url = path + self._queries.get(path, "")

        def check() -> None:
            fs.invalidate_cache(url)  # a look is no look where it is answered from memory
            info = fs.info(url)
            if (self._size(path, info), _version(info)) != (file.size, file.version):
                now = f"size {info['size']:,} and {_version(info)} where there were {file.size:,} and {file.version}"
                raise _changed(self._shown(path), now)

        def read_range() -> bytes:
            try:
                data: bytes = fs.cat_file(url, start=start, end=start + length)
            except FileNotFoundError:
                raise
            except Exception:
                check()  # a range that is no longer there fails in a way of its own
                raise
            check()
            if len(data) != length:
                raise OSError(f"{len(data):,} bytes came where {length:,} were asked for")
            return data

        try:
            return self._call(path, read_range)
        except PathNotFoundError as error:
            raise _changed(self._shown(path), "it is gone") from error

    def _all_at_once(self, request: Callable[[S], T], items: Sequence[S]) -> list[T]:
        if len(items) <= 1:
            return [request(item) for item in items]
        with ThreadPoolExecutor(min(len(items), self._REQUESTS_AT_ONCE), thread_name_prefix="parquet-storage") as pool:
            return list(pool.map(request, items))

    def _call(self, path: str, request: Callable[[], T]) -> T:
        """Make a request, again after a passing fault; every failure leaves as one of the library's errors."""
        shown = self._shown(path)
        attempt = 1
        give_up = time.monotonic() + self.PATIENCE_SECONDS
        while True:
            try:
                return request()
            except StorageError:
                raise
            except Exception as error:  # each filesystem has its own kinds of faults
                failure, may_pass = self._translated(error, shown, attempt)
                if may_pass and attempt < self.ATTEMPTS and time.monotonic() < give_up:
                    time.sleep(self.FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1))
                    attempt += 1
                    continue
            raise failure  # out of the except block, so that an error that shows a secret is not its context

    def _translated(self, error: Exception, shown: str, attempt: int) -> tuple[StorageError, bool]:
        """The library's error for a filesystem's, and whether another attempt may mend it."""
        text = f"{shown} failed {attempt} times, the last time with {type(error).__name__}: {error}"
        if isinstance(error, FileNotFoundError):
            cause = error.__cause__
            if self._scheme not in ("http", "https") or cause is None or getattr(cause, "status", None) in (404, 410):
                text = f"there is no {shown}; check the path and the region"
                return self._failure(PathNotFoundError, text, error), False
            # fsspec calls every fault of a web server a file that is not there.
            text = f"{shown} failed {attempt} times, the last time with {type(cause).__name__}: {cause}"
        if isinstance(error, PermissionError):
            text = f"access to {shown} is denied ({error}); check the credentials"
        elif isinstance(error, _PERMANENT):
            text = f"{shown} failed: {type(error).__name__}: {error}"
        permanent = isinstance(error, (PermissionError, *_PERMANENT))
        return self._failure(StorageError, text, error), not permanent

    def _failure(self, kind: Callable[[str], E], text: str, cause: BaseException) -> E:
        """An error of a kind, its text without secrets, and its cause where that shows none either."""
        failure = kind(self._scrub(text))
        link: BaseException | None = cause
        while link is not None and self._scrub(str(link)) == str(link):
            link = link.__cause__ or link.__context__
        if link is None:
            failure.__cause__ = cause
        return failure

    def _scrub(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _shown(self, path: str) -> str:
        return path if "://" in path or not self._scheme else f"{self._scheme}://{path.lstrip('/')}"

    def _size(self, path: str, info: Mapping[str, Any]) -> int:
        size = info.get("size")
        if size is None:
            raise StorageError(f"{self._shown(path)} has no size; a Parquet file is read from its end")
        return int(size)


# Faults that another attempt does not mend.
_PERMANENT = (
    IsADirectoryError,
    NotADirectoryError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
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


# user:password@ in a URL. A password may hold slashes; a port is none.
_PASSWORD = re.compile(r"^(?!git(?:hub)?://)[\w+.-]+://[^/@:]*:(?!\d+/)[^@]*@")
_SECRET_NAMES = re.compile(r"secret|token|pass|key|sas|credential|connection|auth", re.IGNORECASE)


def redact(url: str) -> str:
    """A URL without what may hold a password or token: ``s3://key:secret@bucket`` becomes ``s3://bucket``."""

    def redact_link(link: str) -> str:
        if link.startswith(("http://", "https://")):
            return re.sub(r"//[^/@]*@", "//", link.partition("?")[0])
        return _PASSWORD.sub(lambda match: match[0].split("://")[0] + "://", link)

    return "::".join(map(redact_link, url.split("::")))


def _secrets(urls: Iterable[str], options: Mapping[str, Any]) -> list[str]:
    """Strings that no error may show, the longest first."""
    found = set()

    def collect(value: object, secret: bool) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                collect(inner, secret or bool(_SECRET_NAMES.search(str(name))))
        elif isinstance(value, (list, tuple, set)):
            for inner in value:
                collect(inner, secret)
        elif secret and isinstance(value, (str, bytes)):
            found.add(os.fsdecode(value))

    collect(options, False)
    for url in urls:
        for link in url.split("::"):
            password = _PASSWORD.match(link)
            if password:
                found.update(password[0].split("://", 1)[1].rstrip("@").split(":", 1))
            elif link.startswith(("http://", "https://")):
                found.update(re.findall(r"//([^/@]*)@", link), [link.partition("?")[2]])
    return sorted((secret for secret in found if len(secret) > 3), key=len, reverse=True)
