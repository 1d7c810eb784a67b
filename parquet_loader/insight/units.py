"""What a check does at once, as values: the same on a thread and in another process.

A unit is neighbouring row groups of a file, or the bytes of a file that are in none. What cannot be read, or is
damaged, is told with the rest and ends nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..blocks import IntArray
from ..errors import DataError, ParquetLoaderError, StorageError
from ..formats.base import ColumnChunk, Format
from ..formats.known import format_named
from ..formats.parquet.pages import crc32
from ..index.index import DatasetIndex
from ..storage.base import FileInfo, Storage
from .beside import damaged_pages
from .scan import Questions, ScannedGroup, scan_group, scan_together

__all__ = ["Looked", "Unit", "look", "units_of"]

_UNIT_BYTES = 8 << 20  # of neighbouring row groups, at least
_SMALL_SLOTS = 1 << 16
_RUN_SLOTS = 1 << 20
_PIECE_BYTES = 8 << 20  # of what lies between row groups


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """What is looked at at once.

    Attributes:
        number: of the file in the index.
        file: the file.
        format: decodes it.
        groups: of the index; none where it is the rest of the file.
        chunks: of the row groups.
        besides: of each row group the further byte ranges that decoding needs, (file, start, length).
        gaps: of the rest of a file, (start, length) of what lies between its row groups' chunks.
        questions: what is asked of documents.
    """

    number: int
    file: FileInfo
    format: Format
    groups: tuple[int, ...] = ()
    chunks: tuple[ColumnChunk, ...] = ()
    besides: tuple[tuple[tuple[FileInfo, int, int], ...], ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    questions: Questions

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(chunk.length for chunk in self.chunks) + sum(length for _, length in self.gaps)


def units_of(
    index: DatasetIndex, questions: Questions, done: npt.NDArray[np.bool_], rest: IntArray | None
) -> Iterator[Unit]:
    """What is left to be looked at, file by file.

    Args:
        index: of the set.
        questions: what is asked of documents.
        done: row groups that have been looked at, shape ``(row groups,)``.
        rest: of each file -1 where its other bytes have not been; None where they are not to be.
    """
    for number in range(len(index.files)):
        own = index.groups_of(number)
        left = [group for group in range(own.start, own.stop) if not done[group]]
        for groups in _neighbours(index, left):
            chunks = tuple(index.chunks(np.array(groups, np.int64)))
            yield Unit(
                number=number,
                file=index.files[number],
                format=format_named(index.format),
                groups=tuple(groups),
                chunks=chunks,
                besides=tuple(index.beside(chunk) for chunk in chunks),
                questions=questions,
            )
        if rest is not None and rest[number] == -1:
            yield Unit(
                number=number,
                file=index.files[number],
                format=format_named(index.format),
                gaps=tuple(_gaps(index, number)),
                questions=questions,
            )


def _neighbours(index: DatasetIndex, left: Sequence[int]) -> Iterator[list[int]]:
    """Row groups of a file, those together that follow each other, up to some megabytes."""
    groups: list[int] = []
    size = 0
    for group in left:
        if groups and (size >= _UNIT_BYTES or group != groups[-1] + 1):
            yield groups
            groups, size = [], 0
        groups.append(group)
        size += int(index.length[group])
    if groups:
        yield groups


def _gaps(index: DatasetIndex, number: int) -> Iterator[tuple[int, int]]:
    """(Start, length) of what lies between a file's row groups: its head, other columns, its footer."""
    own = index.groups_of(number)
    order = np.argsort(index.start[own], kind="stable")
    starts, lengths = index.start[own][order].tolist(), index.length[own][order].tolist()
    at = 0
    for start, length in [*zip(starts, lengths, strict=True), (index.files[number].size, 0)]:
        if start > at:
            yield at, start - at
        at = max(at, start + length)


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
    found: list[Looked] = []
    raws = _raws(storage, unit, stop)
    for begin, end in _runs(unit.chunks):
        run, chunks = raws[begin:end], unit.chunks[begin:end]
        alone = any(unit.besides)  # what is needed beside a chunk is read with it
        found += (None if alone else _together(run, chunks, unit)) or [
            _look_at_group(chunk, raw, unit, [functools.partial(storage.read, *place, stop) for place in beside])
            for chunk, raw, beside in zip(chunks, run, unit.besides[begin:end], strict=True)
        ]
    return found


def _is_small(chunk: ColumnChunk) -> bool:
    """Whether a row group is decoded with others, and has a checksum of all of its bytes: reading page headers takes
    longer than that.
    """
    return chunk.slots <= _SMALL_SLOTS


def _runs(chunks: Sequence[ColumnChunk]) -> Iterator[tuple[int, int]]:
    """Row groups that may be decoded together, or one that is not small."""
    begin = slots = 0
    for number, chunk in enumerate(chunks):
        if number > begin and not (_is_small(chunk) and _is_small(chunks[begin]) and slots + chunk.slots <= _RUN_SLOTS):
            yield begin, number
            begin, slots = number, 0
        slots += chunk.slots
    yield begin, len(chunks)


def _together(
    raws: Sequence[memoryview | StorageError], chunks: Sequence[ColumnChunk], unit: Unit
) -> list[Looked] | None:
    """What was found in row groups that are decoded together; None where they have to be looked at one by one."""
    sound = [raw for raw in raws if not isinstance(raw, StorageError)]
    if len(raws) == 1 or len(sound) < len(raws):
        return None
    dtype = np.dtype(unit.questions.dtype)
    bound = int(np.iinfo(dtype).max) + 1
    part = unit.format.decode_together(sound, chunks, dtype=dtype, bound=bound, eos_id=unit.questions.eos_of(chunks))
    if part is None:
        return None
    scanned = scan_together(part, chunks, unit.questions)
    return [Looked(each, crc32(raw), None) for each, raw in zip(scanned, sound, strict=True)]


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


def _look_at_group(
    chunk: ColumnChunk, raw: memoryview | StorageError, unit: Unit, beside: Sequence[Callable[[], bytes]]
) -> Looked:
    if isinstance(raw, StorageError):
        return Looked(None, -1, raw)
    checksum = -1
    try:
        opened = unit.format.open(raw, chunk, [read() for read in beside])
        bare = (raw,) if _is_small(chunk) else opened.unverified()
        checksum = functools.reduce(lambda value, data: crc32(data, value), bare, 0)
        return Looked(scan_group(opened, chunk, unit.questions), checksum, None)
    except (DataError, StorageError) as error:
        return Looked(None, checksum, error)


def _look_at_rest(storage: Storage, unit: Unit, stop: threading.Event | None) -> Looked:
    checksum = 0
    error: ParquetLoaderError | None = None
    is_parquet = unit.format.name == "parquet"
    try:
        for start, length in unit.gaps:
            for begin in range(start, start + length, _PIECE_BYTES):
                piece = storage.read(unit.file, begin, min(_PIECE_BYTES, start + length - begin), stop)
                checksum = crc32(piece, checksum)
                if is_parquet and not begin and piece[:4] != b"PAR1":
                    problem = "does not begin as a Parquet file does: its first bytes are damaged"
                    error = DataError(problem, path=unit.file.path)
        if is_parquet and error is None:
            error = _first_of(damaged_pages(storage, unit.file, unit.gaps, stop))
    except StorageError as problem:
        return Looked(None, -1, problem)
    return Looked(None, checksum, error)


def _first_of(damaged: list[DataError]) -> DataError | None:
    """One error for all of them, which says that it is not of the tokens."""
    if not damaged:
        return None
    first, others = damaged[0], len(damaged) - 1
    more = f"; {others:,} more column chunks beside the tokens have damaged pages" if others else ""
    problem = f"column {first.column!r}: {first.problem}{more}"
    return DataError(problem, path=first.path, row_group=first.row_group, column=first.column)
