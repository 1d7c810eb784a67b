"""Files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["sync_folder", "write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that, at any moment and after any crash, ``path`` is a complete file, the old or the new one."""
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
    with contextlib.suppress(OSError):  # the file is there; a folder that may not be opened must do without
        sync_folder(path.parent)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a local folder survive a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
