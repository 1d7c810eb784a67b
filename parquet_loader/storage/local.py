"""Files on disk."""

from __future__ import annotations

import fnmatch
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePath

from ..errors import PathNotFoundError, StorageError
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
    is_hidden,
    refuse_table,
    tells_of_growth,
)
from .growing import GROWTH_NAMES, MANIFEST_NAME

__all__ = ["LocalStorage", "files_below", "local_error", "status_of"]

# What has become a pipe must not hang, and Windows must not translate line ends.
_READ_ONLY = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class LocalStorage:
    """Files on disk; a version is the modification time in nanoseconds.

    Args:
        paths: what the source consists of.
        kind: of the files that are meant, see `kinds`; None for that which is there.
        growing, may_come: see `open_storage`.

    Attributes:
        still_grows: whether the last listing was of a set that is still being written.
        writer_failed: why its writer failed, if it says so, and such sets are taken as they are.
    """

    def __init__(
        self, paths: Sequence[str], kind: str | None = None, *, growing: bool = False, may_come: bool = False
    ) -> None:
        self._kind = kind
        self._takes_growing = growing
        self.still_grows = False
        self.writer_failed: str | None = None
        self._entries = [_local_entry(path, may_come=may_come) for path in paths]
        self._base = common_base(entry.base for entry in self._entries)

    @property
    def root(self) -> str:
        return self._base.rstrip("/") or "/"

    @property
    def identity(self) -> str:
        return "\n".join(sorted(entry.path for entry in self._entries))

    def list_files(self) -> list[FileInfo]:
        return self._data_files(None)

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
        return self._with_beside(self.find(lambda inside: is_data(inside) or inside in names)), self._base

    def list_readable(self) -> tuple[list[FileInfo], dict[str, StorageError]]:
        """As `list_files`, and by their paths those that are there and cannot be looked at, such as broken links."""
        lost: dict[str, StorageError] = {}
        files = self._data_files(lost)
        return files, {path[len(self._base) :]: error for path, error in lost.items()}

    def _data_files(self, lost: dict[str, StorageError] | None) -> list[FileInfo]:
        listing = self._with_beside(self.find(is_data, lost))
        self.still_grows = bool(listing.growing())
        self.writer_failed = listing.failure(_whole) if self._takes_growing else None
        return listing.data_files(self._base, self.root, self._kind, follow=self._takes_growing, read=_whole)

    @staticmethod
    def _with_beside(listing: Listing) -> Listing:
        """A listing, and what lies beside the files that are named and tells of them."""
        beside = [(path, status) for path in listing.beside() if (status := status_of(path)) is not None]
        listing.found.append([_found(path, status, is_beside=True) for path, status in beside])
        return listing

    def find(self, wants: Callable[[str], bool], lost: dict[str, StorageError] | None = None) -> Listing:
        """All files that are wanted, of whatever kind; ``lost`` is given those that cannot be looked at."""
        listing = Listing(wants)
        for entry in self._entries:
            found = []
            for path, is_named in _local_files(entry):
                try:
                    status = status_of(path) if listing.wants(path, entry) else None
                except StorageError as error:
                    if lost is None:
                        raise
                    lost[path] = error
                    continue
                if status is not None:
                    found.append(_found(path, status, is_named=is_named))
            listing.found.append(sorted(found, key=lambda each: each.path))
        return listing

    @property
    def retries(self) -> int:
        return 0  # what a disk cannot read, it cannot read a second time

    @property
    def is_remote(self) -> bool:
        return False

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        path = self._base + file.path
        try:
            descriptor = os.open(path, _READ_ONLY)
        except FileNotFoundError as error:
            raise changed_error(path, "it is gone") from error
        except OSError as error:
            raise local_error("open", path, error) from error
        try:
            data = _read_range(descriptor, start, length)
            status = os.fstat(descriptor)
        except OSError as error:
            raise local_error("read", path, error) from error
        finally:
            os.close(descriptor)
        if (status.st_size, str(status.st_mtime_ns)) != (file.size, file.version):
            raise changed_error(
                path,
                f"size {status.st_size:,} and modification time {status.st_mtime_ns} ns "
                f"where there were {file.size:,} and {file.version}",
                (status.st_size, str(status.st_mtime_ns)),
                same_size=status.st_size == file.size,
            )
        if len(data) != length:
            raise StorageError(f"{path} has {file.size:,} bytes: there are no {length:,} from byte {start:,} on")
        return data


def _found(path: str, status: os.stat_result, *, is_named: bool = False, is_beside: bool = False) -> Found:
    return Found(path, status.st_size, str(status.st_mtime_ns), is_named, status.st_mtime, is_beside)


def _whole(path: str) -> bytes:
    return Path(path).read_bytes()


def _read_range(descriptor: int, start: int, length: int) -> bytes:
    """The bytes of a range that are there."""
    pieces = []
    os.lseek(descriptor, start, os.SEEK_SET)  # each read has a descriptor of its own, and Windows has no pread
    while length:
        piece = os.read(descriptor, min(length, 1 << 30))  # Linux gives no 2 GiB at once
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def local_error(action: str, path: str, error: OSError) -> StorageError:
    """The error for what could not be done to a path, and where that is not permitted, to whom, and by what."""
    if not isinstance(error, PermissionError) or not hasattr(os, "geteuid"):
        return StorageError(f"cannot {action} {path or '/'}: {error.strerror or error}")
    as_effective = os.access in os.supports_effective_ids
    folders = [str(each) for at in (path, os.path.realpath(path)) for each in reversed(PurePath(at).parents)]
    closed = next((each for each in folders if not os.access(each, os.X_OK, effective_ids=as_effective)), path)
    what = "enter the folder" if closed != path else action
    return StorageError(
        f"cannot {action} {path}: not permitted: user {_user()} may not {what} {closed}; have its owner allow it"
    )


def _user() -> str:
    try:
        import pwd

        return f"{pwd.getpwuid(os.geteuid()).pw_name} ({os.geteuid()})"
    except (ImportError, KeyError):
        return str(os.geteuid())


def _local_entry(path: str, *, may_come: bool) -> Entry:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        if WILDCARD.search(path):
            return entry_of(path, "glob")
        _refuse_broken_link(path, error)
        if os.path.isfile(path + ".idx"):
            return entry_of(path + ".idx", "file")
        if may_come:
            return entry_of(path, "folder")
        raise PathNotFoundError(f"there is no {path}; check the path, or the mount it is on") from error
    except OSError as error:
        raise local_error("look at", path, error) from error
    return entry_of(path, "folder" if stat.S_ISDIR(status.st_mode) else "file")


def _refuse_broken_link(path: str, error: OSError) -> None:
    if os.path.islink(path):
        raise PathNotFoundError(
            f"{path} is a link to {os.readlink(path)}, which is not there; fetch it, or remove the link"
        ) from error


def status_of(path: str) -> os.stat_result | None:
    """What a data file is; None where it is gone, or a pipe or a device."""
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        _refuse_broken_link(path, error)
        return None  # removed while it was being listed
    except OSError as error:
        raise local_error("look at", path, error) from error
    return status if stat.S_ISREG(status.st_mode) else None


def _local_files(entry: Entry) -> Iterator[tuple[str, bool]]:
    """The files that an entry leads to, wanted or not, each once, and whether it is named itself."""
    if entry.kind == "file":
        yield entry.path, True
    elif entry.kind == "folder":
        yield from ((path, False) for path in files_below(entry.path))
    else:
        found, named = _globbed(entry)
        beside = (folder + name for folder in folders_of(entry, named) for name in GROWTH_NAMES)
        found.update((path, False) for path in beside if path not in found and os.path.exists(path))
        if any(path.endswith(f"/{MANIFEST_NAME}") for path in found):  # it may have come since, and files before it
            found = _globbed(entry)[0] | found
        yield from found.items()


def _globbed(entry: Entry) -> tuple[dict[str, bool], list[str]]:
    """The files that a glob leads to, each with whether it is data that it names itself; and all that it names."""
    parts = entry.path[len(entry.base) :].split("/")
    while parts and parts[-1] == "**":
        parts.pop()
    found: dict[str, bool] = {}
    named = []
    for match in _matches(entry.base.rstrip("/"), parts):
        is_folder = os.path.isdir(match or "/")
        if not is_folder:
            named.append(match)
        for path in files_below(match) if is_folder else (match,):
            found.setdefault(path, not is_folder and not tells_of_growth(path))
    return found, named


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
        raise PathNotFoundError(f"there is no {folder}; check the path, or the mount it is on") from error
    except OSError as error:
        raise local_error("list", folder, error) from error
    for entry in found:
        refuse_table(f"{folder}/{entry.name}")
    return found, above | {identity}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except PermissionError as error:
        raise local_error("look at", entry.path, error) from error
    except OSError:
        return False  # a link that leads nowhere


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise local_error("look at", path, error) from error
    return True


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
        if _is_there(path):
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
