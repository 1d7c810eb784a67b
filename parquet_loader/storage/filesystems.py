"""fsspec at arm's length: a URL becomes a filesystem and a path, and its errors become ours, once, here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ..errors import ConfigError, ParquetLoaderError, PathNotFoundError, StorageError

Filesystem = Any  # fsspec ships no type information; this name says what is meant


def open_filesystem(url: str, storage_options: Mapping[str, object] | None = None) -> tuple[Filesystem, str]:
    """The filesystem of a URL or local path, and the path within it.

    Args:
        url: a local path or any URL that fsspec knows, such as ``s3://bucket/folder``.
        storage_options: handed to the filesystem of a URL; a local path has no use for them.

    Raises:
        ConfigError: a protocol that is unknown, or whose package is not installed.
    """
    options = dict(storage_options or {}) if "://" in url else {}
    try:
        filesystem, path = fsspec.url_to_fs(url, **options)
    except (ImportError, ValueError, TypeError) as exc:
        raise ConfigError(
            f"{url!r} is no path that can be opened: {exc}. Give a local path or a URL of a protocol that is installed."
        ) from exc
    return filesystem, path


def is_local(filesystem: Filesystem) -> bool:
    """Whether the filesystem is this machine's own."""
    return isinstance(filesystem, LocalFileSystem)


def display_name(filesystem: Filesystem, path: str) -> str:
    """The path as people write it: with its protocol unless it is local."""
    return path if is_local(filesystem) else str(filesystem.unstrip_protocol(path))


def relative_to(path: str, folder: str) -> str | None:
    """The path below the folder, ``""`` for the folder itself, None for a path elsewhere.

    >>> relative_to("/a/b/c", "/a"), relative_to("/a", "/a/"), relative_to("/ab", "/a")
    ('b/c', '', None)
    """
    folder = folder.rstrip("/")
    if path.rstrip("/") == folder:
        return ""
    return path[len(folder) + 1 :] if path.startswith(folder + "/") else None


@contextmanager
def storage_errors(action: str, name: str) -> Iterator[None]:
    """Turn whatever a filesystem raises into a StorageError that says what was being done to which path.

    Object stores raise through their clients types that share no base but Exception.
    """
    try:
        yield
    except (ParquetLoaderError, MemoryError):
        raise
    except FileNotFoundError as exc:
        raise PathNotFoundError(f"cannot {action} {name}: there is nothing at that path") from exc
    except Exception as exc:
        raise StorageError(f"cannot {action} {name}: {exc or type(exc).__name__}") from exc
