"""Where the files lie: list them, and read a byte range of one, nothing else.

A source is a folder, a file, a glob, or a list of them, local or on any fsspec filesystem. Its *root* is the deepest
folder that all of it lies under; a file is known by its path relative to that root, so that a dataset may move.

    source                             root            files
    /data/set                          /data/set       a.parquet, en/b.parquet
    /data/set/a.parquet                /data/set       a.parquet
    s3://bucket/set/lang=*/            bucket/set      lang=en/b.parquet, ...
    [/data/x, /data/y/b.parquet]       /data           x/a.parquet, y/b.parquet

Folders and globs give ``*.parquet`` at any depth, passing over every file and folder whose name starts with ``_`` or
``.`` (temporaries, ``_SUCCESS``, checksums). A file named outright is taken as it is.

Every read names the size and version (modification time, ETag) that the file had when it was listed, and fails where
they are others now: tokens of a replaced file are never read in silence.
"""

from __future__ import annotations

import glob
import os
import posixpath
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from .errors import ConfigError, FileChangedError, PathNotFoundError, StorageError

__all__ = ["FileInfo", "Source", "Storage", "open_storage"]

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
T = TypeVar("T")


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
        ConfigError: an empty list, or entries on different filesystems.
        PathNotFoundError: an entry that is no glob does not exist.
    """
    entries = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not entries:
        raise ConfigError("the list of paths is empty; name at least one folder, file or glob")
    for entry in entries:
        if not isinstance(entry, (str, os.PathLike)) or not os.fspath(entry):
            raise ConfigError(f"{entry!r} is no path; give a folder, a file, a glob or a URL")
    urls = [os.fspath(entry) for entry in entries]
    local = [_local_path(url) for url in urls]
    if all(path is not None for path in local):
        if storage_options:
            raise ConfigError(f"storage_options {sorted(storage_options)} do not apply to local paths; leave them out")
        return LocalStorage([path for path in local if path is not None])
    return FsspecStorage(urls, storage_options or {})


def _local_path(url: str) -> str | None:
    """The absolute local path of a plain path or file URL; None for any other URL."""
    if url.startswith(("file://", "local://")):
        url = url.split("://", 1)[1]
    elif "://" in url or "::" in url:
        return None
    absolute = str(Path(url).expanduser().absolute())
    return absolute + "/" if url.endswith("/") else absolute


_MAGIC = re.compile(r"[*?[]")


def _glob_base(pattern: str) -> str:
    """The deepest folder of a glob that holds no wildcard: ``/data/set/part-*`` is in ``/data/set``."""
    return posixpath.dirname(pattern[: _MAGIC.search(pattern).start()])  # type: ignore[union-attr]


def _is_data(relative: str) -> bool:
    parts = relative.split("/")
    return parts[-1].endswith(".parquet") and not any(part.startswith(("_", ".")) for part in parts)


class _Listing:
    """Collects a source's files under its root; says clearly when there is nothing, or a file is named twice."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: dict[str, FileInfo] = {}
        self._passed_over: list[str] = []

    def add(self, path: str, base: str, size: int, version: str, *, named: bool = False) -> None:
        """Take a file that was found under ``base``, or named outright."""
        if not named and not _is_data(posixpath.relpath(path, base)):
            self._passed_over.append(posixpath.basename(path))
            return
        relative = posixpath.relpath(path, self._root)
        if relative in self._files:
            raise ConfigError(f"{path} is named twice by the list of paths; each file may come once")
        self._files[relative] = FileInfo(path=relative, size=size, version=version)

    def result(self) -> list[FileInfo]:
        if not self._files:
            seen = ", ".join(sorted(self._passed_over)[:5])
            raise PathNotFoundError(
                f"{self._root} holds no Parquet file: looked for *.parquet at any depth, passing over names that start "
                f"with _ or .; " + (f"found only {len(self._passed_over)} others ({seen})" if seen else "found nothing")
            )
        return [self._files[path] for path in sorted(self._files)]


def _changed(path: str, now: str) -> FileChangedError:
    return FileChangedError(
        f"{path} is not the file that was indexed: {now}; put the old file back, or start a new run on the new data"
    )


class LocalStorage:
    """Files on disk, read with ``pread``; a version is the modification time in nanoseconds."""

    def __init__(self, paths: list[str]) -> None:
        self._entries = [_local_entry(path) for path in paths]
        self._root = posixpath.commonpath([base for _, base in self._entries])

    @property
    def root(self) -> str:
        return self._root

    @property
    def identity(self) -> str:
        return "\n".join(sorted(path for path, _ in self._entries))

    def list_files(self) -> list[FileInfo]:
        listing = _Listing(self._root)
        for path, base in self._entries:
            named = path != base and not _MAGIC.search(path)
            for file in _local_files(path, named=named):
                try:
                    status = os.stat(file)
                except FileNotFoundError:
                    continue  # a dangling link, or removed while being listed
                except OSError as error:
                    raise StorageError(f"cannot look at {file}: {error.strerror}") from error
                listing.add(file, base, status.st_size, str(status.st_mtime_ns), named=named)
        return listing.result()

    def read(self, file: FileInfo, start: int, length: int) -> bytes:
        path = f"{self._root}/{file.path}"
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise _changed(path, "it is gone") from error
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            if (status.st_size, str(status.st_mtime_ns)) != (file.size, file.version):
                raise _changed(
                    path,
                    f"size {status.st_size:,} and modification time {status.st_mtime_ns} ns "
                    f"where there were {file.size:,} and {file.version}",
                )
            pieces = []
            while length:
                piece = os.pread(descriptor, min(length, 1 << 30), start)
                if not piece:
                    raise _changed(path, f"it ends {length:,} bytes early")
                pieces.append(piece)
                start += len(piece)
                length -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)


def _local_entry(path: str) -> tuple[str, str]:
    """(the path without a final slash, its base folder)."""
    stripped = path.rstrip("/") or "/"
    if os.path.isdir(stripped):
        return stripped, stripped
    if os.path.exists(stripped):
        return stripped, posixpath.dirname(stripped)
    if _MAGIC.search(stripped):
        return stripped, _glob_base(stripped) or "/"
    raise PathNotFoundError(f"there is no {path}; check the path, or the mount it lies on")


def _local_files(path: str, *, named: bool) -> Iterator[str]:
    if named:
        yield path
        return
    if os.path.isdir(path):
        yield from _walk(path)
        return
    for match in glob.iglob(path, recursive=True):
        yield from _walk(match) if os.path.isdir(match) else (match,)


def _walk(folder: str) -> Iterator[str]:
    """Every file below a folder, through links to folders too, each real folder once along any one path."""

    def fail(error: OSError) -> None:
        raise StorageError(f"cannot list {error.filename}: {error.strerror}") from error

    seen = {os.path.realpath(folder)}
    for parent, folders, files in os.walk(folder, onerror=fail, followlinks=True):
        inside = []
        for name in folders:
            child = f"{parent}/{name}"
            if name.startswith(("_", ".")):
                continue
            if os.path.islink(child):
                real = os.path.realpath(child)
                if real in seen:
                    continue
                seen.add(real)
            inside.append(name)
        folders[:] = inside
        yield from (f"{parent}/{name}" for name in files)


class FsspecStorage:
    """Files on any fsspec filesystem. A version is whatever the filesystem tells: ETag, generation, modification time.

    Before each read the file is looked at again, since fsspec has no conditional read.
    """

    ATTEMPTS = 5
    FIRST_PAUSE_SECONDS = 0.2

    def __init__(self, urls: list[str], storage_options: Mapping[str, Any]) -> None:
        from fsspec.core import url_to_fs

        try:
            opened = [url_to_fs(url, **storage_options) for url in urls]
        except (ValueError, ImportError, TypeError) as error:
            raise ConfigError(f"{redact(urls[0])} cannot be opened through fsspec: {error}") from error
        if len({type(fs) for fs, _ in opened}) > 1:
            raise ConfigError("the paths lie on different filesystems; give each its own loader, or copy them together")
        self._fs = opened[0][0]
        self._pid = os.getpid()
        scheme = urls[0].split("://", 1)[0] if "://" in urls[0] else ""
        self._scheme = scheme.rsplit("::", 1)[-1]
        self._entries = [self._entry(path) for _, path in opened]
        bases = [base for _, base, _ in self._entries]
        self._root = bases[0] if len(bases) == 1 else posixpath.commonpath(bases)

    @property
    def root(self) -> str:
        return f"{self._scheme}://{self._root.lstrip('/')}"

    @property
    def identity(self) -> str:
        return "\n".join(sorted(f"{self._scheme}://{path}" for path, _, _ in self._entries))

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem; a new one after a fork, since those with an event loop do not survive it."""
        if os.getpid() != self._pid:
            fs = self._fs
            self._fs = type(fs)(*fs.storage_args, **{**fs.storage_options, "skip_instance_cache": True})
            self._pid = os.getpid()
        return self._fs

    def _entry(self, path: str) -> tuple[str, str, str]:
        """(path, base folder, "glob", "folder" or "file")."""
        stripped = path.rstrip("/")
        if _MAGIC.search(stripped):
            return stripped, _glob_base(stripped), "glob"
        self._fs.invalidate_cache()
        if self._call(stripped, lambda: self._fs.isdir(stripped)):
            return stripped, stripped, "folder"
        if self._call(stripped, lambda: self._fs.exists(stripped)):
            return stripped, posixpath.dirname(stripped), "file"
        raise PathNotFoundError(f"there is no {self._scheme}://{stripped.lstrip('/')}; check bucket, path and region")

    def list_files(self) -> list[FileInfo]:
        fs = self.filesystem
        fs.invalidate_cache()  # a listing must show what is there now
        listing = _Listing(self._root)
        for path, base, kind in self._entries:
            if kind == "file":
                found = {path: self._call(path, lambda path=path: fs.info(path))}  # type: ignore[misc]
            elif kind == "folder":
                found = self._call(path, lambda path=path: fs.find(path, detail=True))  # type: ignore[misc]
            else:
                found = self._call(path, lambda path=path: fs.glob(path, detail=True))  # type: ignore[misc]
                folders = [name for name, info in found.items() if info["type"] == "directory"]
                for folder in folders:
                    found.update(self._call(folder, lambda folder=folder: fs.find(folder, detail=True)))  # type: ignore[misc]
            for name, info in found.items():
                if info["type"] != "directory":
                    listing.add(name, base, _size(info), _version(info), named=kind == "file")
        fs.invalidate_cache()
        return listing.result()

    def read(self, file: FileInfo, start: int, length: int) -> bytes:
        fs = self.filesystem
        path = posixpath.join(self._root, file.path)

        def read_range() -> bytes:
            info = fs.info(path)
            if (_size(info), _version(info)) != (file.size, file.version):
                now = f"size {_size(info):,} and {_version(info)} where there were {file.size:,} and {file.version}"
                raise _changed(f"{self.root}/{file.path}", now)
            data: bytes = fs.cat_file(path, start=start, end=start + length)
            if len(data) != length:
                raise OSError(f"{len(data):,} bytes came where {length:,} were asked for")
            return data

        try:
            return self._call(path, read_range)
        except PathNotFoundError as error:
            raise _changed(f"{self.root}/{file.path}", "it is gone") from error

    def _call(self, path: str, request: Callable[[], T]) -> T:
        """Make a request, again after a passing fault; every failure leaves as one of the library's errors."""
        shown = f"{self._scheme}://{path.lstrip('/')}"
        for attempt in range(1, self.ATTEMPTS + 1):
            try:
                return request()
            except StorageError:
                raise
            except FileNotFoundError as error:
                raise PathNotFoundError(f"there is no {shown}") from error
            except PermissionError as error:
                raise StorageError(f"access to {shown} is denied ({error}); check the credentials") from error
            except (OSError, TimeoutError) as error:
                if attempt == self.ATTEMPTS:
                    raise StorageError(f"{shown} failed {attempt} times, the last time with: {error}") from error
                time.sleep(self.FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1))
            except Exception as error:  # each filesystem has its own kinds; here is where they end
                raise StorageError(f"{shown} failed: {type(error).__name__}: {error}") from error
        raise AssertionError("unreachable")


def _size(info: Mapping[str, Any]) -> int:
    size = info.get("size")
    if size is None:
        raise StorageError(f"{info.get('name')} has no size; a Parquet file is read from its end")
    return int(size)


_VERSION_KEYS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified")
_WEAK_VERSION_KEYS = ("modified", "updated", "created")


def _version(info: Mapping[str, Any]) -> str:
    for key in (*_VERSION_KEYS, *_WEAK_VERSION_KEYS):
        if info.get(key):
            return f"{key}={info[key]}"
    return ""


def redact(url: str) -> str:
    """A URL without the part that may hold a password or token: ``s3://key:secret@bucket?token=x`` to ``s3://bucket``."""
    return re.sub(r"\?.*$", "", re.sub(r"//[^/@]*@", "//", url))
