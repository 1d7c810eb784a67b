"""One run at a time in a folder.

On a disk it is a lock of the operating system on a file, which ends with the process however that ends: a second
run is refused, and a run after a SIGKILL is not. An object store has no such lock; there the last to come
leaves its name, and the one before finds another's name when it next wants to write its journal, and ends.

A process can take the lock for one that it starts: the lock is of the open file, whose descriptor the child inherits.
A fork inherits it as well, which is not meant, and lets go of it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...errors import ConfigError, PathNotFoundError, StorageError
from ...storage.filesystems import Filesystem
from ...storage.local import local_error

try:
    import fcntl
except ImportError:  # Windows: names, as on an object store
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK_NAME", "Claim", "claimed", "has_locks", "keep_from_forks", "lock_folder", "release"]


LOCK_NAME = "lock"
_SECONDS_OF_A_WORD = 2.0  # longer than the watcher of a run that was killed takes to say so, see `watch`
_PAUSE_SECONDS = 0.05


class Claim:
    """The right to write into a folder."""

    def __init__(self, filesystem: Filesystem, path: str, name: str, token: bytes | None) -> None:
        self._filesystem = filesystem
        self._path = path
        self._name = name
        self._token = token

    def check(self) -> None:
        """Refuse to continue where another run has taken the folder over.

        Raises:
            StorageError: it has.
        """
        if self._token is None:
            return
        try:
            there = self._filesystem.read(self._path)
        except PathNotFoundError:
            there = b""
        if there != self._token:
            raise StorageError(f"another run has taken over output={self._name!r}: this one ends here.")


def has_locks(filesystem: Filesystem) -> bool:
    """Whether a folder there can be locked."""
    return filesystem.is_local and fcntl is not None


def lock_folder(folder: str, name: str) -> int:
    """Lock a local folder that exists, until the descriptor and all that were inherited of it are closed. `release` it.

    Raises:
        ConfigError: another process of this machine, or of one that shares the disk, holds it.
    """
    descriptor = _locked(f"{folder}/{LOCK_NAME}", name)
    keep_from_forks(descriptor)
    return descriptor


@contextmanager
def claimed(filesystem: Filesystem, folder: str, name: str, lock: int | None = None) -> Iterator[Claim]:
    """Hold a folder that exists, for the length of a block.

    Args:
        filesystem: where it is.
        folder: its path.
        name: its name, for messages.
        lock: what `lock_folder` gave to the process that started this one.

    Raises:
        ConfigError: another process of this machine, or of one that shares the disk, holds it.
    """
    path = f"{folder}/{LOCK_NAME}"
    if not has_locks(filesystem):
        token = secrets.token_hex(8).encode()
        filesystem.replace(path, token)
        yield Claim(filesystem, path, name, token)
        return
    descriptor = _lock_soon(folder, name) if lock is None else lock
    keep_from_forks(descriptor)
    os.set_inheritable(descriptor, False)
    try:
        yield Claim(filesystem, path, name, None)
    finally:
        release(descriptor)


# Descriptors that stand for the life of this very process.
_own: set[int] = set()


def keep_from_forks(descriptor: int) -> None:
    """Have forks of this process close a descriptor, so that it is closed when this process ends. `release` it."""
    _own.add(descriptor)


def release(descriptor: int) -> None:
    """Close a descriptor that was kept from forks; in a fork it is closed."""
    if descriptor in _own:
        _own.discard(descriptor)
        os.close(descriptor)


def _leave_to_the_parent() -> None:
    for descriptor in _own:
        with suppress(OSError):
            os.close(descriptor)
    _own.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _lock_soon(folder: str, name: str) -> int:
    """`lock_folder`; whoever holds the lock for a moment is waited for."""
    end = time.monotonic() + _SECONDS_OF_A_WORD
    while True:
        try:
            return lock_folder(folder, name)
        except ConfigError:
            if time.monotonic() > end:
                raise
        time.sleep(_PAUSE_SECONDS)


def _locked(path: str, name: str) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise local_error("create", path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A run that ended in between has removed the file, and a lock on a removed file is no lock.
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise ConfigError(
                f"output={name!r} is being written by another run. Wait for it, end it, or choose another folder."
            ) from error
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(descriptor)
            raise StorageError(f"cannot lock {path}: {error}") from error
        os.close(descriptor)
