"""The messages of an Arrow IPC file or stream.

A file begins with a magic number, ends with a footer that tells where its record batches lie, and is a stream between
the two. A stream is walked from message to message:

    file     ARROW1 │ schema │ batch │ batch │ ... │ footer, its length │ ARROW1
    stream            schema │ batch │ dictionary │ batch │ ... │ end (or just its end)

What is read is a message and some of what follows it. Where record batches are small they come with their neighbours;
where they are large, what lies between is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...errors import DataError
from ...storage.base import FileInfo, Storage
from ..parts import what_it_is
from .metadata import (
    DICTIONARY_BATCH,
    RECORD_BATCH,
    SCHEMA,
    Blocks,
    Message,
    MetadataError,
    Schema,
    read_blocks,
    read_message,
)

__all__ = ["ArrowFile", "Framed", "read_messages"]

_MAGIC, _OLD_MAGIC, _CONTINUED = b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"
_AHEAD_BYTES = 64 << 10  # read with a message: its offsets may be among them
_FAR_AHEAD_BYTES = 4 << 20  # the same where record batches are small
# From one message to the next, so that record batches count as small: a request over a network takes longer than its
# megabyte, and one of a disk does not.
_SMALL_BYTES, _SMALL_REMOTE_BYTES = 128 << 10, 1 << 20
_TAIL_BYTES = 64 << 10
_MOST_PADDING = 128  # before a footer: the mark of a stream's end, and what aligns it
_CUT = "its writing or copying was cut off"


class ArrowFile:
    """A file, and what was read of it last.

    Attributes:
        size: its bytes.
        is_ended: False once all of a stream is read that has no mark of its end.
    """

    def __init__(self, storage: Storage, file: FileInfo) -> None:
        self._storage = storage
        self._file = file
        self._start = 0
        self._data = memoryview(b"")
        self.size = file.size
        self.is_ended = True
        self._small_bytes = _SMALL_REMOTE_BYTES if storage.is_remote else _SMALL_BYTES

    def ahead_of(self, stride: int) -> int:
        """How far to read ahead, where from one message to the next it is so far."""
        return _FAR_AHEAD_BYTES if 0 <= stride <= self._small_bytes else _AHEAD_BYTES

    def ahead(self, start: int, length: int, ahead: int) -> memoryview:
        """Bytes, read with as many behind them as are likely needed next.

        Raises:
            DataError: the file ends before.
        """
        if start + length > self.size:
            raise self.error(f"ends in a message, at byte {self.size:,}: {_CUT}")
        if not self._has(start, length):
            wanted = min(max(length, ahead), self.size - start)
            self._data, self._start = memoryview(self._storage.read(self._file, start, wanted)), start
        return self._data[start - self._start :][:length]

    def part(self, start: int, length: int) -> memoryview:
        """Bytes of which the neighbours are not needed."""
        if not length or self._has(start, length):
            return self._data[start - self._start :][:length]
        return memoryview(self._storage.read(self._file, start, length))

    def _has(self, start: int, length: int) -> bool:
        return self._start <= start and start + length <= self._start + len(self._data)

    def error(self, problem: str, row_group: int | None = None, column: str | None = None) -> DataError:
        """What is wrong with it."""
        return DataError(problem, path=self._file.path, row_group=row_group, column=column)


class Framed(NamedTuple):
    """A message in a file.

    Attributes:
        begin: its first byte.
        body: the first byte of its body.
        data: the flatbuffer.
        message: what that says.
    """

    begin: int
    body: int
    data: memoryview
    message: Message

    @property
    def end(self) -> int:
        """The byte after its body."""
        return self.body + self.message.body_bytes


def read_messages(file: ArrowFile) -> tuple[Schema, Iterator[Framed]]:
    """The schema of a file, and its record batches.

    Raises:
        DataError: it is no such file, or is damaged.
    """
    head = bytes(file.ahead(0, min(file.size, 8), _AHEAD_BYTES))
    if head.startswith(_MAGIC):
        footer = _footer(file)
        try:
            schema = Schema.of_footer(footer)
            batches, dictionaries = read_blocks(footer)
            _check_end(file, file.size - 10 - len(footer), [batches, dictionaries])
            return schema, _of_file(file, batches)
        except MetadataError as problem:
            raise file.error(f"its footer cannot be read ({problem}); it is damaged") from problem
    if not _may_be_stream(head, file.size):
        raise _not_arrow(file)
    try:
        first = _framed_at(file, 0, _AHEAD_BYTES)
        if first is not None and first.message.kind == SCHEMA:
            return Schema.of_message(first.data, first.message), _of_stream(file, first.end)
    except MetadataError as problem:
        raise _not_arrow(file, f"its first message cannot be read ({problem})") from problem
    raise _not_arrow(file, "its first message is no schema")


def _may_be_stream(head: bytes, size: int) -> bool:
    length = int.from_bytes(head[:4], "little", signed=True)  # in old files a message begins with it
    return len(head) == 8 and (head[:4] == _CONTINUED or 0 < length <= size - 4)


def _not_arrow(file: ArrowFile, problem: str | None = None) -> DataError:
    head = bytes(file.part(0, min(file.size, 64)))
    if head.startswith(_OLD_MAGIC):
        cause = (
            "it is a Feather file of version 1, which has no lists: write it anew with "
            "pyarrow.feather.write_feather(pyarrow.feather.read_table(...), ...)"
        )
    elif head.startswith(b"PAR1"):
        cause = (
            "it is a Parquet file: rename it to .parquet, or name the file and give format='parquet' (--format parquet)"
        )
    else:
        cause = what_it_is(head) or problem or (f"it starts with {head[:8]!r}" if head else "it is empty")
    return file.error(f"is no Arrow IPC file ({file.size:,} bytes): {cause}")


def _framed_at(file: ArrowFile, begin: int, ahead: int) -> Framed | None:
    """The message at a place; None where it is the mark of a stream's end.

    Raises:
        MetadataError: it is damaged.
        DataError: the file ends in it.
    """
    frame = 4
    prefix = bytes(file.ahead(begin, frame, max(ahead, 8)))
    if prefix == _CONTINUED:
        frame = 8
        prefix = bytes(file.ahead(begin, frame, ahead)[4:])
    length = int.from_bytes(prefix, "little", signed=True)
    if not length:
        return None
    if length < 0:
        raise MetadataError(f"it has {length:,} bytes")
    data = file.ahead(begin, frame + length, ahead)[frame:]
    return Framed(begin, begin + frame + length, data, read_message(data))


def _of_stream(file: ArrowFile, begin: int) -> Iterator[Framed]:
    """The record batches of a stream, whose first message after the schema is at ``begin``."""
    ahead, number = _AHEAD_BYTES, 0
    while begin < file.size:
        try:
            framed = _framed_at(file, begin, ahead)
        except MetadataError as problem:
            raise file.error(f"its message at byte {begin:,} is damaged ({problem})", number) from problem
        if framed is None:
            end = begin + (8 if bytes(file.part(begin, 4)) == _CONTINUED else 4)
            if end < file.size:
                raise file.error(
                    f"its stream ends at byte {end:,}, and {file.size - end:,} bytes follow: it is damaged, or several "
                    "streams were joined; write them to files of their own"
                )
            return
        if framed.end > file.size:
            raise file.error(
                f"has {file.size:,} bytes, and its message at byte {begin:,} goes on to byte {framed.end:,}: {_CUT}",
                number,
            )
        if framed.message.kind == RECORD_BATCH:
            yield framed
            number += 1
        elif framed.message.kind != DICTIONARY_BATCH:
            raise file.error(
                f"its message at byte {begin:,} is no record batch: it is damaged, or several streams were joined; "
                "write them to files of their own"
            )
        ahead = file.ahead_of(framed.end - begin)
        begin = framed.end
    file.is_ended = False


def _check_end(file: ArrowFile, footer: int, blocks: Sequence[Blocks]) -> None:
    """Refuse a footer between which and all that it tells of there is something else.

    Args:
        file: the file.
        footer: where its footer begins.
        blocks: what that tells of.
    """
    ends = [int(end) for each in blocks for end in each.begins + each.metadata + each.bodies]
    if not ends:
        try:  # some writers do not frame the schema's message in a file, of whose end nothing tells then
            first = _framed_at(file, len(_MAGIC) + 2, _AHEAD_BYTES)
        except MetadataError:
            return
        if first is None or first.message.kind != SCHEMA:
            return
        ends = [first.end]
    if footer - max(ends) > _MOST_PADDING:
        raise file.error(
            f"has {footer - max(ends):,} bytes between what its footer tells of and the footer itself: the footer is "
            "damaged, or several files were joined; write them to files of their own"
        )


def _of_file(file: ArrowFile, blocks: Blocks) -> Iterator[Framed]:
    """The record batches of a file, by its footer."""
    size = file.size
    gaps = np.diff(blocks.begins, append=size).tolist()
    for number, (begin, metadata, body) in enumerate(zip(*(each.tolist() for each in blocks), strict=True)):
        inside = 8 <= begin <= size and 8 <= metadata <= size and 0 <= body <= size - begin - metadata
        try:
            framed = _framed_at(file, begin, file.ahead_of(gaps[number])) if inside else None
        except MetadataError as problem:
            raise file.error(f"its message at byte {begin:,} is damaged ({problem})", number) from problem
        if (
            framed is None
            or framed.message.kind != RECORD_BATCH
            or (framed.body, framed.end) != (begin + metadata, begin + metadata + body)
        ):
            raise file.error(
                f"its footer tells of a record batch of {metadata:,} and {body:,} bytes at byte {begin:,}, where there "
                "is none: the file is damaged",
                number,
            )
        yield framed


def _footer(file: ArrowFile) -> memoryview:
    begin = max(0, file.size - _TAIL_BYTES)
    tail = file.part(begin, file.size - begin)
    if file.size < 18 or bytes(tail[-6:]) != _MAGIC:
        raise file.error(f"starts as an Arrow IPC file but has no end ({file.size:,} bytes): {_CUT}")
    length = int.from_bytes(tail[-10:-6], "little", signed=True)
    if not 0 < length <= file.size - 18:
        raise file.error(f"claims a footer of {length:,} bytes in {file.size:,}; it is damaged")
    return tail[-10 - length : -10] if length + 10 <= len(tail) else file.part(file.size - 10 - length, length)
