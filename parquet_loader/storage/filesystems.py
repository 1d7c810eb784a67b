"""fsspec at arm's length: a filesystem whose every call, and every stream, fails with one of the library's errors.

Nothing else in `pretokenize` holds a filesystem of fsspec's, so none of what those say can reach a user unread: their
errors are told here, by public names and without secrets. Paths are literal: no call takes ``*``, ``?`` or ``[`` for
a wildcard, which some of fsspec's (``mv``, ``rm``) do.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from fsspec.implementations.local import LocalFileSystem

from ..errors import ParquetLoaderError, PathNotFoundError, StorageError
from .atomic import sync_folder, write_atomically
from .local import local_error
from .opening import local_path
from .remote import connect
from .secrets import Location, Scrubber

__all__ = ["Filesystem", "Stream", "open_filesystem", "open_together", "relative_to"]


_ATTEMPTS = 10  # with pauses that double, by chance shorter, and are 20 s at most

T = TypeVar("T")


def open_filesystem(
    url: str, storage_options: Mapping[str, object] | None = None, *, patient: bool = False
) -> tuple[Filesystem, str]:
    """The filesystem of a URL or local path, and the path within it.

    Args:
        url: a local path or any URL that fsspec knows, such as ``s3://bucket/folder``.
        storage_options: handed to the filesystem of a URL; a local path has no use for them.
        patient: whether a request is tried again for about a minute, where the filesystem leaves that open: S3's. It is
            for a storage that has answered already.

    Raises:
        ConfigError: a protocol that is unknown, or whose package is not installed.
        StorageError: the filesystem cannot be made.
    """
    path = local_path(url)
    if path is not None:
        return Filesystem(LocalFileSystem(), Scrubber([], {})), path
    filesystem, paths = open_together([url], storage_options or {}, patient=patient)
    return filesystem, paths[0]


def open_together(
    urls: Sequence[str], storage_options: Mapping[str, object], *, patient: bool = False
) -> tuple[Filesystem, list[str]]:
    """The one filesystem of several URLs, and their paths in it."""
    locations = [Location(url) for url in urls]
    scrubber = Scrubber(locations, storage_options)
    if all([link.scheme for link in each.links] in (["s3"], ["s3a"]) for each in locations):
        given = cast("Mapping[str, object]", storage_options.get("config_kwargs", {}))
        # Left to itself, the client gives up on a store that is away for a few seconds.
        config = {"retries": {"mode": "standard", "max_attempts": _ATTEMPTS if patient else 1}}
        storage_options = {**storage_options, "config_kwargs": {**config, **given}}
    fs, paths = connect(locations, storage_options, scrubber)
    return Filesystem(fs, scrubber), paths


class Filesystem:
    """The calls on files and folders that are needed here, by literal paths.

    Args:
        fs: of fsspec.
        scrubber: knows the secrets it was opened with.
    """

    def __init__(self, fs: Any, scrubber: Scrubber) -> None:
        self._fs = fs
        self._scrubber = scrubber
        self.is_local = isinstance(fs, LocalFileSystem)

    def is_like(self, other: Filesystem) -> bool:
        """Whether both are of one kind."""
        return type(self._fs) is type(other._fs)

    def display(self, path: str) -> str:
        """The path as people write it: with its protocol unless it is local."""
        return path if self.is_local or "://" in path else str(self._fs.unstrip_protocol(path))

    def open(self, path: str, mode: str) -> Stream:
        """A stream, to be read (``"rb"``) or written (``"wb"``)."""
        action = "read" if mode == "rb" else "write"

        def guard(call: Callable[..., Any], *arguments: Any) -> Any:
            return self._do(action, path, call, *arguments)

        return Stream(guard(self._fs.open, path, mode), guard)

    def read(self, path: str) -> bytes:
        """A whole file, as it is now."""

        def read() -> bytes:
            self._fs.invalidate_cache()
            return bytes(self._fs.cat_file(path))

        return self._do("read", path, read)

    def replace(self, path: str, content: bytes) -> None:
        """Write a file so that a reader, now or after a power cut, sees the old content or the new, never a mixture."""
        if self.is_local:
            self._do("write", path, write_atomically, Path(path), content)
        else:
            self._do("write", path, self._fs.pipe_file, path, content)  # an object appears whole or not at all

    def exists(self, path: str) -> bool:
        """Whether there is anything at a path now."""

        def look() -> bool:
            self._fs.invalidate_cache()
            return bool(self._fs.exists(path))

        return self._do("look for", path, look)

    def is_file(self, path: str) -> bool:
        """Whether a path is a file."""
        return bool(self._do("look at", path, self._fs.isfile, path))

    def size(self, path: str) -> int | None:
        """A file's bytes; None where there is none."""
        return self._do("look at", path, self._fs.size, path) if self.exists(path) else None

    def files_below(self, folder: str) -> list[str]:
        """Every file at any depth; none where there is no such folder."""

        def find() -> list[str]:
            self._fs.invalidate_cache()
            return [str(path) for path in self._fs.find(folder)]

        return self._do("list", folder, find)

    def folders_in(self, folder: str) -> list[str]:
        """The folders that lie right in a folder."""

        def find() -> list[str]:
            return [
                str(each["name"]).rstrip("/")
                for each in self._fs.ls(folder, detail=True)
                if each["type"] == "directory"
            ]

        return self._do("list", folder, find)

    def make_folder(self, path: str) -> None:
        """Make a folder, where it is not there, and those above it."""
        self._do("create", path, lambda: self._fs.makedirs(path, exist_ok=True))

    def move(self, path: str, to: str) -> None:
        """Give a file another name; it appears there complete."""

        def copy() -> None:
            try:
                self._fs.cp_file(path, to)
            except NotImplementedError:
                self._fs.mv(path, to)
            else:
                self._fs.rm_file(path)

        self._do("create", to, *((os.replace, path, to) if self.is_local else (copy,)))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._do("remove", path, self._fs.rm_file, path)

    def remove_folder(self, path: str) -> None:
        """Remove a folder and all in it, where it is there: an object store's is gone with its last object."""

        def remove() -> None:
            self._fs.invalidate_cache()
            if not self._fs.exists(path):
                return
            if self.is_local:
                shutil.rmtree(path)
                return
            for file in self._fs.find(path):
                self._fs.rm_file(file)
            inside = self._fs.find(path, withdirs=True)
            for folder in sorted({path, *inside}, key=len, reverse=True):
                with suppress(NotImplementedError, OSError):  # an object store has no folders
                    self._fs.rmdir(folder)

        self._do("remove", path, remove)

    def sync_folder(self, path: str) -> None:
        """Make the names in a local folder survive a power cut; elsewhere there is nothing to do."""
        if self.is_local:
            self._do("write", path, sync_folder, path)

    def _do(self, action: str, path: str, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except (ParquetLoaderError, MemoryError):
            raise
        except Exception as error:  # object stores' clients share no base but this
            failure = self._failure(action, path, error)
        raise failure  # out of the except block, so that an error that shows a secret is not its context

    def _failure(self, action: str, path: str, error: Exception) -> StorageError:
        name = self.display(path)
        if isinstance(error, FileNotFoundError):
            return self._scrubber.failure(PathNotFoundError, f"cannot {action} {name}: there is nothing there", error)
        if self.is_local and isinstance(error, OSError):
            failure = local_error(action, path, error)
            failure.__cause__ = error
            return failure
        said = " ".join(str(error).split()) or type(error).__name__
        return self._scrubber.failure(StorageError, f"cannot {action} {name}: {said}", error)


class Stream(io.RawIOBase):
    """A stream of a filesystem, every call of which is guarded."""

    def __init__(self, stream: Any, guard: Callable[..., Any]) -> None:
        self._stream = stream
        self._guard = guard

    def readable(self) -> bool:
        return bool(self._stream.readable())

    def writable(self) -> bool:
        return bool(self._stream.writable())

    def seekable(self) -> bool:
        return bool(self._stream.seekable())

    def readinto(self, buffer: Any) -> int:
        return int(self._guard(self._stream.readinto, buffer))

    def write(self, data: Any) -> int:
        return int(self._guard(self._stream.write, data))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._guard(self._stream.seek, offset, whence))

    def tell(self) -> int:
        return int(self._guard(self._stream.tell))

    def flush(self) -> None:
        if not self._stream.closed:
            self._guard(self._stream.flush)

    def sync(self) -> None:
        """Make what was written to a local file survive a power cut; elsewhere there is nothing to do."""
        self.flush()
        with suppress(io.UnsupportedOperation, AttributeError):
            number = self._stream.fileno()
            self._guard(os.fsync, number)

    def close(self) -> None:
        if not self.closed:
            try:
                self._guard(self._stream.close)
            finally:
                super().close()


def relative_to(path: str, folder: str) -> str | None:
    """The path below the folder, ``""`` for the folder itself, None for a path elsewhere.

    >>> relative_to("/a/b/c", "/a"), relative_to("/a", "/a/"), relative_to("/ab", "/a")
    ('b/c', '', None)
    """
    folder = folder.rstrip("/")
    if path.rstrip("/") == folder:
        return ""
    return path[len(folder) + 1 :] if path.startswith(folder + "/") else None
