"""Versioned, checksummed msgpack: the outside of every file and checkpoint this library writes.

    msgpack array of 5:  "parquet_loader" │ kind │ version │ SHA-256 of all others │ payload (msgpack)

Any msgpack reader opens it; a flipped bit, a cut and a file of another kind or version are told apart when it is read.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack

__all__ = ["DamagedContainerError", "OtherVersionError", "container_kind", "open_container", "seal_container"]

_MAGIC = "parquet_loader"
_HEAD_BYTES = 1 << 10  # more than all fields before the payload take


class DamagedContainerError(ValueError):
    """Bytes that are no whole container of the kind that was asked for."""


class OtherVersionError(ValueError):
    """A whole container of a version that this release does not read."""


def _digest(kind: str, version: int, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(f"{_MAGIC}\0{kind}\0{version}\0".encode())
    digest.update(body)
    return digest.digest()


def seal_container(kind: str, version: int, payload: Any) -> bytes:
    """``payload`` (plain values, msgpack's own types) as the bytes of a container."""
    body = msgpack.packb(payload)
    return bytes(msgpack.packb([_MAGIC, kind, version, _digest(kind, version, body), body]))


def open_container(data: bytes, kind: str, version: int) -> Any:
    """The payload of a container.

    Raises:
        DamagedContainerError: not a whole container of this kind; the message says what is wrong. The payload of one
            that is whole is as the writer made it: whoever uses it checks what is in it.
        OtherVersionError: one of another version.
    """
    try:
        magic, found_kind, found_version, digest, body = _fields(data)
    except Exception as error:  # msgpack raises ValueError, its own types and, on deep nesting, more
        raise DamagedContainerError(f"{len(data):,} bytes that are not whole msgpack") from error
    if magic != _MAGIC or type(found_version) is not int or not isinstance(found_kind, str):
        raise DamagedContainerError(f"{len(data):,} bytes that this library did not write")
    if found_kind != kind:
        raise DamagedContainerError(f"holds {found_kind!r} where {kind!r} is wanted")
    if _digest(kind, found_version, body) != digest:
        raise DamagedContainerError("the checksum does not fit: some of its bytes were changed")
    if found_version != version:
        raise OtherVersionError(f"has format version {found_version}, and this release reads version {version}")
    try:
        return msgpack.unpackb(body, strict_map_key=False, max_bin_len=len(body))
    except Exception as error:
        raise DamagedContainerError(
            f"the checksum fits, but not to what this library writes ({type(error).__name__})"
        ) from error


def container_kind(data: bytes) -> str | None:
    """Of what kind the container is that begins with these bytes, a thousand of them or more; None where it is none."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[:_HEAD_BYTES])
    try:
        fields = unpacker.read_array_header()
        magic, kind = unpacker.unpack(), unpacker.unpack()
    except Exception:  # msgpack raises ValueError, and its own types
        return None
    return kind if fields == 5 and magic == _MAGIC and isinstance(kind, str) else None


def _fields(data: bytes) -> tuple[Any, Any, Any, Any, memoryview]:
    """The fields of a container. The payload, which may take most of the memory there is, is not copied."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[:_HEAD_BYTES])
    if unpacker.read_array_header() != 5:
        raise ValueError("not five fields")
    magic, kind, version, digest = (unpacker.unpack() for _ in range(4))
    at = unpacker.tell()
    length_bytes = {0xC4: 1, 0xC5: 2, 0xC6: 4}[data[at]]
    begin = at + 1 + length_bytes
    body = memoryview(data)[begin:]
    if len(body) != int.from_bytes(data[at + 1 : begin], "big"):
        raise ValueError("cut short, or longer than it says")
    return magic, kind, version, digest, body
