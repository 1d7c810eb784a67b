"""What a check does at once, as values: the same on a thread and in another process.

A unit is neighbouring row groups of a file, or the bytes of a file that are in none. What cannot be read, or is
damaged, is told with the rest and ends nothing.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import DataError, ParquetLoaderError, StorageError
from ..formats.base import ColumnChunk
from ..formats.parquet import PARQUET
from ..formats.parquet.pages import crc32
from ..storage.base import FileInfo, Storage
from .scan import Questions, ScannedGroup, scan_group

__all__ = ["Looked", "Unit", "look"]

_PIECE_BYTES = 8 << 20  # of what lies between row groups


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """What is looked at at once.

    Attributes:
        number: of the file in the index.
        file: the file.
        groups: of the index; none where it is the rest of the file.
        chunks: of the row groups.
        gaps: of the rest of a file, (start, length) of what lies between its row groups' chunks.
        questions: what is asked of documents.
    """

    number: int
    file: FileInfo
    groups: tuple[int, ...] = ()
    chunks: tuple[ColumnChunk, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    questions: Questions

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(chunk.length for chunk in self.chunks) + sum(length for _, length in self.gaps)


class Looked(NamedTuple):
    """What was found in a row group, or in the rest of a file.

    Attributes:
        scanned: None where it could not be decoded, and of the rest of a file.
        checksum: of the bytes that have none of their own, -1 where they could not be read.
        error: what is wrong.
    """

    scanned: ScannedGroup | None
    checksum: int
    error: ParquetLoaderError | None


def look(storage: Storage, unit: Unit, stop: threading.Event | None = None) -> list[Looked]:
    """What was found in each of a unit's row groups, or in the rest of its file."""
    if not unit.groups:
        return [_look_at_rest(storage, unit, stop)]
    return [
        _look_at_group(chunk, raw, unit.questions)
        for chunk, raw in zip(unit.chunks, _raws(storage, unit, stop), strict=True)
    ]


def _raws(storage: Storage, unit: Unit, stop: threading.Event | None) -> list[memoryview | StorageError]:
    """The bytes of row groups, of those without a gap by one read; or why there are none."""
    begin, end = unit.chunks[0].start, unit.chunks[-1].start + unit.chunks[-1].length
    if end - begin == unit.size:
        try:
            data = memoryview(storage.read(unit.file, begin, end - begin, stop))
            return [data[chunk.start - begin :][: chunk.length] for chunk in unit.chunks]
        except StorageError:
            pass  # of which row group is found one by one
    found: list[memoryview | StorageError] = []
    for chunk in unit.chunks:
        try:
            found.append(memoryview(storage.read(unit.file, chunk.start, chunk.length, stop)))
        except StorageError as error:
            found.append(error)
    return found


def _look_at_group(chunk: ColumnChunk, raw: memoryview | StorageError, questions: Questions) -> Looked:
    if isinstance(raw, StorageError):
        return Looked(None, -1, raw)
    checksum = -1
    try:
        opened = PARQUET.open(raw, chunk)
        checksum = functools.reduce(lambda value, data: crc32(data, value), opened.unverified(), 0)
        return Looked(scan_group(opened, chunk, questions), checksum, None)
    except DataError as error:
        return Looked(None, checksum, error)


def _look_at_rest(storage: Storage, unit: Unit, stop: threading.Event | None) -> Looked:
    checksum = 0
    error: ParquetLoaderError | None = None
    try:
        for start, length in unit.gaps:
            for begin in range(start, start + length, _PIECE_BYTES):
                piece = storage.read(unit.file, begin, min(_PIECE_BYTES, start + length - begin), stop)
                checksum = crc32(piece, checksum)
                if not begin and piece[:4] != b"PAR1":
                    problem = "does not begin as a Parquet file does: its first bytes are damaged"
                    error = DataError(problem, path=unit.file.path)
    except StorageError as problem:
        return Looked(None, -1, problem)
    return Looked(None, checksum, error)
