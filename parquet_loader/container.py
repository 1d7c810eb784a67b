"""Versioned, checksummed msgpack: the outside of every file and checkpoint this library writes.

    msgpack array of 5:  "parquet_loader" │ kind │ version │ SHA-256 of all others │ payload (msgpack)

Any msgpack reader opens it; a flipped bit, a cut and a file of another kind or version are told apart when it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

import msgpack

__all__ = ["DamagedContainerError", "OtherVersionError", "open_container", "seal_container", "write_atomically"]

_MAGIC = "parquet_loader"


class DamagedContainerError(ValueError):
    """Bytes that are no whole container of the kind that was asked for."""


class OtherVersionError(ValueError):
    """A whole container of a version that this release does not read."""


def _digest(kind: str, version: int, body: bytes) -> bytes:
    return hashlib.sha256(f"{_MAGIC}\0{kind}\0{version}\0".encode() + body).digest()


def seal_container(kind: str, version: int, payload: Any) -> bytes:
    """``payload`` (plain values, msgpack's own types) as the bytes of a container."""
    body = msgpack.packb(payload)
    return bytes(msgpack.packb([_MAGIC, kind, version, _digest(kind, version, body), body]))


def open_container(data: bytes, kind: str, version: int) -> Any:
    """The payload of a container.

    Raises:
        DamagedContainerError: not a whole container of this kind; the message says what is wrong.
        OtherVersionError: one of another version.
    """
    try:
        fields = msgpack.unpackb(data, max_bin_len=len(data))
    except Exception as error:  # msgpack raises ValueError, its own types and, on deep nesting, more
        raise DamagedContainerError(f"{len(data):,} bytes that are not whole msgpack") from error
    if not (isinstance(fields, list) and len(fields) == 5 and fields[0] == _MAGIC):
        raise DamagedContainerError(f"{len(data):,} bytes that this library did not write")
    _, found_kind, found_version, digest, body = fields
    if found_kind != kind:
        raise DamagedContainerError(f"holds {found_kind!r} where {kind!r} is wanted")
    if not (isinstance(found_version, int) and isinstance(body, bytes)):
        raise DamagedContainerError(f"{len(data):,} bytes that this library did not write")
    if _digest(kind, found_version, body) != digest:
        raise DamagedContainerError("the checksum does not fit: some of its bytes were changed")
    if found_version != version:
        raise OtherVersionError(f"has format version {found_version}, and this release reads version {version}")
    return msgpack.unpackb(body, strict_map_key=False, max_bin_len=len(body))


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
