"""Files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from .filesystems import Filesystem, is_local

__all__ = ["replace_file", "sync_folder", "write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that, at any moment and after any crash, ``path`` is the old whole file or the new one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the user's umask
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def replace_file(filesystem: Filesystem, path: str, content: bytes) -> None:
    """Write a file so that whoever looks, now or after a power cut, sees the old content or the new, and no mixture."""
    if not is_local(filesystem):
        filesystem.pipe_file(path, content)  # an object appears whole or not at all
        return
    temporary = f"{path}.new"
    with open(temporary, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    sync_folder(filesystem, os.path.dirname(path))


def sync_folder(filesystem: Filesystem, path: str) -> None:
    """Make the names in a local folder survive a power cut; elsewhere there is nothing to do."""
    if not is_local(filesystem) or os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
