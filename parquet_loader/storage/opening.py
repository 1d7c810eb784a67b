"""The storage of a source: local paths to `local`, every other URL to `remote`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError, PathNotFoundError
from .base import FileInfo, Storage
from .local import LocalStorage
from .remote import FsspecStorage
from .retry import RETRY_SECONDS
from .secrets import Location

__all__ = ["FileInfo", "FsspecStorage", "LocalStorage", "Source", "Storage", "is_local", "local_path", "open_storage"]

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Storage


def open_storage(
    source: Source,
    storage_options: Mapping[str, Any] | None = None,
    *,
    retry_seconds: float = RETRY_SECONDS,
    kind: str | None = None,
    growing: bool = False,
    may_come: bool = False,
) -> Storage:
    """The storage of a source.

    Args:
        source: a path, URL or glob, or several; or a `Storage` of your own, which is taken as it is.
        storage_options: passed on to the fsspec filesystem; not for local paths.
        retry_seconds: how long a request over the network is tried again once it has failed.
        kind: of the files that are meant, see `kinds`; None for that which is there. A storage of your own lists what
            it lists.
        growing: whether a set that is still being written is taken as it is now, and not refused.
        may_come: whether a path at which there is nothing is taken for a folder that is yet to come.

    Raises:
        ConfigError: an empty list, what is no path, or entries on different filesystems.
        PathNotFoundError: an entry that is no glob does not exist.
        StorageError: an entry cannot be looked at.
    """
    if isinstance(source, Storage):
        if storage_options:
            raise ConfigError(
                f"storage_options {sorted(storage_options)} do not apply to a storage of your own; omit them"
            )
        return source
    if isinstance(source, (str, os.PathLike)):
        entries: list[str | os.PathLike[str]] = [source]
    elif isinstance(source, Iterable) and not isinstance(source, (bytes, Mapping)):
        entries = list(source)
    else:  # not shown: it may hold a URL with a signature
        raise ConfigError(
            f"a {type(source).__name__} is no path; give a folder, a file, a glob, a URL, a list of them, or a Storage"
        )
    if not entries:
        raise ConfigError("the list of paths is empty; name at least one folder, file or glob")
    for entry in entries:
        if not isinstance(entry, (str, os.PathLike)):
            raise ConfigError(f"a {type(entry).__name__} is no path; give a folder, a file, a glob or a URL")
        if not os.fspath(entry):
            raise ConfigError("an empty string is no path; give a folder, a file, a glob or a URL")
    # A `Location` keeps what it was given; os.fsdecode would make it a plain, public string.
    urls = [entry if isinstance(entry, Location) else Location(os.fsdecode(entry)) for entry in entries]
    local = [path for url in urls if (path := local_path(url)) is not None]
    if len(local) == len(urls):
        if storage_options:
            raise ConfigError(f"storage_options {sorted(storage_options)} do not apply to local paths; leave them out")
        return LocalStorage(local, kind, growing=growing, may_come=may_come)
    if local:
        raise ConfigError(f"{local[0]} is a local path and others are URLs; give each its own loader")
    return FsspecStorage(
        urls, storage_options or {}, retry_seconds=retry_seconds, kind=kind, growing=growing, may_come=may_come
    )


def is_local(source: Source) -> bool:
    """Whether a source lies on a disk of this machine, all of it."""
    if isinstance(source, (str, os.PathLike)):
        return local_path(os.fsdecode(source)) is not None
    if isinstance(source, Storage) or not isinstance(source, Iterable):
        return False
    return all(isinstance(each, (str, os.PathLike)) and is_local(each) for each in source)


def local_path(url: str) -> str | None:
    """The absolute local path of a plain path or file URL, without a final slash; None for any other URL."""
    url = Location(url).given
    if url.startswith(("file://", "local://")):
        url = url.split("://", 1)[1]  # taken literally, as fsspec does: %20 is no space
    elif "://" in url:
        return None
    path = os.path.expanduser(url)
    if not os.path.isabs(path):
        try:
            path = os.path.join(os.getcwd(), path)
        except FileNotFoundError as error:
            raise PathNotFoundError(
                f"{url} is relative to the current folder, which is there no more: change to another, or give an "
                "absolute path"
            ) from error
    parts = path.split("/")
    if ".." in parts:  # resolved through links, as the operating system does
        last = len(parts) - parts[::-1].index("..")
        path = "/".join([os.path.realpath("/".join(parts[:last])), *parts[last:]])
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
