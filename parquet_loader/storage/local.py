"""Files on disk."""

from __future__ import annotations

import fnmatch
import os
import stat
import threading
from collections.abc import Iterator, Sequence

from ..errors import PathNotFoundError, StorageError
from .base import (
    WILDCARD,
    Entry,
    FileInfo,
    Listing,
    changed_error,
    common_base,
    entry_of,
    is_hidden,
    refuse_table,
)

__all__ = ["LocalStorage", "files_below", "status_of"]


class LocalStorage:
    """Files on disk, read with ``pread``; a version is the modification time in nanoseconds."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._entries = [_local_entry(path) for path in paths]
        self._base = common_base(entry.base for entry in self._entries)

    @property
    def root(self) -> str:
        return self._base.rstrip("/") or "/"

    @property
    def identity(self) -> str:
        return "\n".join(sorted(entry.path for entry in self._entries))

    def list_files(self) -> list[FileInfo]:
        listing = Listing(self._base)
        for entry in self._entries:
            for path in _local_files(entry):
                if listing.wants(path, entry):
                    status = status_of(path)
                    if status is not None:
                        listing.add(path, status.st_size, str(status.st_mtime_ns))
        return listing.result(self.root)

    @property
    def retries(self) -> int:
        return 0  # what a disk cannot read, it cannot read a second time

    @property
    def is_remote(self) -> bool:
        return False

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        path = self._base + file.path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # what has become a pipe must not hang
        except FileNotFoundError as error:
            raise changed_error(path, "it is gone") from error
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
            raise changed_error(
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


def _local_entry(path: str) -> Entry:
    if os.path.isdir(path):
        return entry_of(path, "folder")
    if os.path.exists(path):
        return entry_of(path, "file")
    if WILDCARD.search(path):
        return entry_of(path, "glob")
    raise PathNotFoundError(f"there is no {path}; check the path, or the mount it lies on")


def status_of(path: str) -> os.stat_result | None:
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


def _local_files(entry: Entry) -> Iterator[str]:
    """The files that an entry leads to, data or not, each once."""
    if entry.kind == "file":
        yield entry.path
    elif entry.kind == "folder":
        yield from files_below(entry.path)
    else:
        parts = entry.path[len(entry.base) :].split("/")
        while parts and parts[-1] == "**":
            parts.pop()
        seen = set()
        for match in _matches(entry.base.rstrip("/"), parts):
            for path in files_below(match) if os.path.isdir(match or "/") else (match,):
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
            found = list(entries)
    except FileNotFoundError as error:
        raise PathNotFoundError(f"there is no {folder}; check the path, or the mount it lies on") from error
    except OSError as error:
        raise StorageError(f"cannot list {folder}: {error.strerror}") from error
    for entry in found:
        refuse_table(f"{folder}/{entry.name}")
    return found, above | {identity}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads nowhere


def files_below(folder: str, above: _FolderIds = frozenset()) -> Iterator[str]:
    """Every file below a folder, less what is in folders whose name starts with ``_`` or ``.``."""
    folder = folder.rstrip("/")
    entries, above = _scan(folder, above)
    for entry in entries:
        if not _is_folder(entry):
            yield f"{folder}/{entry.name}"
        elif not is_hidden(entry.name):
            yield from files_below(f"{folder}/{entry.name}", above)


def _matches(folder: str, parts: Sequence[str], above: _FolderIds = frozenset()) -> Iterator[str]:
    """The paths below a folder that match a glob's parts; the standard library's glob hides what it cannot list."""
    if not parts:
        yield folder
    elif not WILDCARD.search(parts[0]):
        path = f"{folder}/{parts[0]}"
        if os.path.exists(path):
            yield from _matches(path, parts[1:])
    elif parts[0] == "**":
        entries, inside = _scan(folder, above)
        if inside is not above:
            yield from _matches(folder, parts[1:])
        for entry in entries:
            if _is_folder(entry) and not is_hidden(entry.name):
                yield from _matches(f"{folder}/{entry.name}", parts, inside)
    else:
        for entry in _scan(folder, frozenset())[0]:
            if fnmatch.fnmatchcase(entry.name, parts[0]) and (len(parts) == 1 or _is_folder(entry)):
                yield from _matches(f"{folder}/{entry.name}", parts[1:])
