"""The metadata of Arrow IPC: messages and footers, which are flatbuffers.

A message is framed by its length, and followed by the buffers of its columns:

    ff ff ff ff │ length │ flatbuffer, padded to 8 bytes │ body            the first four bytes are not in old files
                                    │                        ↑
                                    └── RecordBatch: rows, nodes, buffers: (offset in the body, length) each

A table of a flatbuffer begins with how far back its vtable lies, which says where each field lies, if it is there:

    vtable   │ bytes of the vtable │ bytes of the table │ place of field 0 │ of field 1, 0: not there │ ...
    table    │ back to the vtable  │ fields ...

Every position is checked before anything is read there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...blocks import IntArray

__all__ = [
    "DICTIONARY_BATCH",
    "RECORD_BATCH",
    "SCHEMA",
    "V4",
    "Batch",
    "Blocks",
    "Message",
    "MetadataError",
    "Schema",
    "read_batch",
    "read_blocks",
    "read_message",
]

# Numbers of Schema.fbs and Message.fbs.
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
V4 = 3
_BUFFER_CODECS = ("LZ4", "ZSTD")  # by their numbers; "LZ4" is what Arrow calls LZ4_FRAME
_BLOCK = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("padding", "<i4"), ("body", "<i8")])
_PAIR = np.dtype("<i8,<i8")
_INT64 = np.dtype("<i8")
_INT, _LONG, _SHORT, _OFFSET = (struct.Struct("<" + code) for code in ("i", "q", "h", "I"))


class MetadataError(ValueError):
    """The bytes are not the metadata that they should be."""


class _Table:
    """A table of a flatbuffer.

    Args:
        data: the flatbuffer.
        place: where the table begins.
    """

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place
        self._vtable = place - _number(self._data, _INT, place)
        self._size = _number(self._data, _SHORT, self._vtable)

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        """The table that a flatbuffer begins with."""
        return cls(data, _number(data, _OFFSET, 0))

    def integer(self, field: int, kind: struct.Struct) -> int:
        """A number; 0 where it is not there."""
        place = self._field(field)
        return _number(self._data, kind, place) if place else 0

    def byte(self, field: int) -> int:
        """A number of one byte; 0 where it is not there."""
        place = self._field(field)
        if place >= len(self._data):
            raise MetadataError(f"a field lies at byte {place:,} of {len(self._data):,}")
        return self._data[place] if place else 0

    def table(self, field: int) -> _Table | None:
        """A table; None where it is not there."""
        place = self._field(field)
        return _Table(self._data, place + _number(self._data, _OFFSET, place)) if place else None

    def vector(self, field: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """A vector of numbers or structs; empty where it is not there."""
        place = self._field(field)
        if not place:
            return np.empty(0, kind)
        begin = place + _number(self._data, _OFFSET, place)
        count = _number(self._data, _OFFSET, begin)
        if begin + 4 + count * kind.itemsize > len(self._data):
            raise MetadataError(f"a vector of {count:,} entries is longer than its flatbuffer")
        return np.frombuffer(self._data, kind, count, begin + 4)

    def _field(self, field: int) -> int:
        """Where a field lies; 0 where it is not there."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        place = _number(self._data, _SHORT, self._vtable + entry) & 0xFFFF
        return self._place + place if place else 0


def _number(data: memoryview, kind: struct.Struct, place: int) -> int:
    if not 0 <= place <= len(data) - kind.size:
        raise MetadataError(f"a field lies at byte {place:,} of {len(data):,}")
    number: int = kind.unpack_from(data, place)[0]
    return number


class Message(NamedTuple):
    """A message.

    Attributes:
        version: of the format, a number of Schema.fbs.
        kind: `SCHEMA`, `DICTIONARY_BATCH`, `RECORD_BATCH`, or another number of Message.fbs.
        body_bytes: of the body that follows it.
        header: what it holds.
    """

    version: int
    kind: int
    body_bytes: int
    header: _Table


def read_message(data: memoryview) -> Message:
    """The message of a flatbuffer.

    Raises:
        MetadataError: it is none.
    """
    table = _Table.root(data)
    header = table.table(2)
    if header is None:
        raise MetadataError("a message has no header")
    message = Message(table.integer(0, _SHORT), table.byte(1), table.integer(3, _LONG), header)
    if not V4 <= message.version <= V4 + 1:
        raise MetadataError(f"its metadata has version V{message.version + 1}, and only V4 and V5 are known")
    if message.body_bytes < 0:
        raise MetadataError(f"a message has a body of {message.body_bytes:,} bytes")
    return message


class Schema(NamedTuple):
    """A schema.

    Attributes:
        is_big_endian: whether numbers are.
        framed: what pyarrow reads it from: a message, or a file without record batches.
    """

    is_big_endian: bool
    framed: bytes

    @classmethod
    def of_message(cls, data: memoryview, message: Message) -> Schema:
        """That of a stream's first message, whose flatbuffer is ``data``."""
        framed = b"\xff\xff\xff\xff" + len(data).to_bytes(4, "little") + bytes(data)
        return cls(message.header.integer(0, _SHORT) != 0, framed)

    @classmethod
    def of_footer(cls, footer: memoryview) -> Schema:
        """That of a file. The message that is in its place after the magic number is not framed by all writers.

        Raises:
            MetadataError: it is no footer.
        """
        schema = _Table.root(footer).table(1)
        if schema is None:
            raise MetadataError("it has no schema")
        framed = b"ARROW1\0\0" + bytes(footer) + len(footer).to_bytes(4, "little") + b"ARROW1"
        return cls(schema.integer(0, _SHORT) != 0, framed)

    def read(self) -> pa.Schema:
        """The schema, as pyarrow has it.

        Raises:
            MetadataError: it is damaged.
        """
        framed = pa.py_buffer(self.framed)
        try:
            is_file = self.framed.startswith(b"ARROW1")
            return pa.ipc.open_file(framed).schema if is_file else pa.ipc.read_schema(framed)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
            raise MetadataError(f"its schema cannot be read ({problem})") from problem


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A record batch.

    Attributes:
        rows: how many there are.
        nodes: (rows, nulls) of each field, in the order of the schema, depth first; shape ``(fields, 2)``.
        buffers: (offset in the body, length) of each buffer; shape ``(buffers, 2)``.
        variadic: of each column of views of strings how many buffers there are of their data.
        codec: compression of the buffers, a key of `CODECS`.
    """

    rows: int
    nodes: IntArray
    buffers: IntArray
    variadic: IntArray
    codec: str


def read_batch(message: Message) -> Batch:
    """The record batch of a message.

    Raises:
        MetadataError: its numbers are impossible, or its compression is unknown.
    """
    assert message.kind == RECORD_BATCH
    header = message.header
    codec = "UNCOMPRESSED"
    compression = header.table(3)
    if compression is not None:
        number, method = compression.byte(0), compression.byte(1)
        if number >= len(_BUFFER_CODECS) or method:
            raise MetadataError(
                f"its compression (codec {number}, method {method}) is unknown; write it with lz4, zstd or none"
            )
        codec = _BUFFER_CODECS[number]
    batch = Batch(
        rows=header.integer(0, _LONG),
        nodes=header.vector(1, _PAIR).view(_INT64).reshape(-1, 2),
        buffers=header.vector(2, _PAIR).view(_INT64).reshape(-1, 2),
        variadic=header.vector(4, _INT64),
        codec=codec,
    )
    # None is negative, which read as unsigned is larger than any body; so no sum of two that are not wraps around.
    ends = batch.buffers.view(np.uint64)
    if len(ends) and (ends.max() > message.body_bytes or ends.sum(axis=1).max() > message.body_bytes):
        raise MetadataError(f"a buffer does not lie in the body of {message.body_bytes:,} bytes")
    if batch.rows < 0 or (batch.nodes < 0).any() or (batch.nodes[:, 1] > batch.nodes[:, 0]).any():
        raise MetadataError("a column has an impossible number of rows or nulls")
    return batch


class Blocks(NamedTuple):
    """Where the record batches of a file lie; each of shape ``(batches,)``.

    Attributes:
        begins: of their messages.
        metadata: bytes of each message, with what frames it.
        bodies: bytes of each body, which follows.
    """

    begins: IntArray
    metadata: IntArray
    bodies: IntArray


def read_blocks(footer: memoryview) -> tuple[Blocks, Blocks]:
    """The record batches of a footer, and its dictionaries.

    Raises:
        MetadataError: it is none.
    """
    table = _Table.root(footer)
    batches, dictionaries = (
        Blocks(*(blocks[name].astype(np.int64) for name in ("offset", "metadata", "body")))
        for blocks in (table.vector(3, _BLOCK), table.vector(2, _BLOCK))
    )
    return batches, dictionaries
