"""Refuses the damaged footers that pyarrow ends the process on, instead of raising.

pyarrow checks much of a footer, and takes the rest for granted: a type, repetition or codec that the format does not
have, a column chunk of another type than its column, or a histogram of levels of another length than there are levels.
On those it aborts, and no training run should end without a word on one bad file of thousands.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import DataError
from ...storage.base import FileInfo, Storage
from .thrift import ThriftError, Value, read_struct

__all__ = ["check_footer", "read_footer"]

Fields = dict[int, Value]

# How many there are of each in parquet.thrift.
_TYPES, _REPETITIONS, _CODECS = 8, 3, 8
_OPTIONAL, _REPEATED = 1, 2


def check_footer(footer: memoryview) -> None:
    """Look at a ``FileMetaData`` of parquet.thrift.

    Raises:
        ThriftError: it is not well-formed, or pyarrow would end the process on it.
    """
    fields, _ = read_struct(footer, 0, i32_only=True)
    leaves = list(_leaves(_structs(fields, 2)))
    for row_group in _structs(fields, 4):
        columns = _structs(row_group, 1)
        if len(columns) != len(leaves):
            raise ThriftError(f"a row group has {len(columns)} columns where the schema has {len(leaves)}")
        for column, (kind, definition, repetition) in zip(columns, leaves, strict=True):
            meta = column.get(3)
            if not isinstance(meta, dict):
                continue  # an encrypted column's, which is refused later
            if _enum(meta, 1, "type", _TYPES) != kind:
                raise ThriftError(f"a column of type {kind} has a chunk of type {meta.get(1)!r}")
            _enum(meta, 4, "codec", _CODECS)
            sizes = meta.get(16)
            if isinstance(sizes, dict):
                _check_histogram(sizes, 2, repetition)
                _check_histogram(sizes, 3, definition)


def _leaves(schema: list[Fields]) -> Iterator[tuple[int, int, int]]:
    """(type, highest definition level, highest repetition level) of every leaf, depth first as they are stored."""
    if not schema:
        raise ThriftError("there is no schema")
    open_groups = [[_children(schema[0]), 0, 0]]  # of each group we are in: children left, and its levels
    for element in schema[1:]:
        while open_groups and not open_groups[-1][0]:
            open_groups.pop()
        if not open_groups:
            raise ThriftError("the schema has elements in no group")
        group = open_groups[-1]
        group[0] -= 1
        repetition = _enum(element, 3, "repetition", _REPETITIONS)
        definition_level = group[1] + (repetition in (_OPTIONAL, _REPEATED))
        repetition_level = group[2] + (repetition == _REPEATED)
        if element.get(5):
            open_groups.append([_children(element), definition_level, repetition_level])
        else:
            yield _enum(element, 1, "type", _TYPES), definition_level, repetition_level
    if any(left for left, _, _ in open_groups):
        raise ThriftError("the schema ends in the middle of a group")


def _children(element: Fields) -> int:
    value = element.get(5, 0)
    if type(value) is not int or value < 0:
        raise ThriftError(f"a group of {value!r} columns")
    return value


def _check_histogram(sizes: Fields, field: int, highest_level: int) -> None:
    counts = sizes.get(field, [])
    if not isinstance(counts, list) or len(counts) not in (0, highest_level + 1):
        raise ThriftError(f"a histogram is not of {highest_level + 1} levels")


def _structs(fields: Fields, field: int) -> list[Fields]:
    values = fields.get(field, [])
    if not isinstance(values, list):
        raise ThriftError(f"field {field} is no list of structs")
    structs = [value for value in values if isinstance(value, dict)]
    if len(structs) != len(values):
        raise ThriftError(f"field {field} is no list of structs")
    return structs


def _enum(fields: Fields, field: int, name: str, count: int) -> int:
    value = fields.get(field)
    if type(value) is not int or not 0 <= value < count:
        raise ThriftError(f"there is no {name} {value!r}")
    return value


_TAIL_BYTES = 64 << 10
_SIGNATURE_BYTES = 28  # nonce and tag, after a footer that is plain while columns are encrypted


def read_footer(storage: Storage, file: FileInfo) -> pq.FileMetaData:
    """The footer, with one read of the file's tail, or two where it is longer than `_TAIL_BYTES`."""
    if file.size < 12:
        raise DataError(
            f"is {file.size} bytes long, too short for a Parquet file; was its writing or copying cut off?",
            path=file.path,
        )
    tail = storage.read(file, max(0, file.size - _TAIL_BYTES), min(file.size, _TAIL_BYTES))
    if tail[-4:] == b"PARE":
        raise DataError("has an encrypted footer; encrypted files cannot be read, decrypt it first", path=file.path)
    if tail[-4:] != b"PAR1":
        raise _not_parquet(storage, file)
    length = int.from_bytes(tail[-8:-4], "little")
    if length > file.size - 12:
        raise DataError(f"claims a footer of {length:,} bytes in {file.size:,}; it is damaged", path=file.path)
    if length + 8 > len(tail):
        tail = storage.read(file, file.size - length - 8, length + 8)
    framed = b"PAR1" + tail[-(length + 8) :]
    try:
        check_footer(memoryview(framed)[4:-8])
        # The limits only guard against allocating more than the bytes can describe, which is what the length says.
        metadata = pq.ParquetFile(
            pa.BufferReader(framed), thrift_string_size_limit=len(framed), thrift_container_size_limit=len(framed)
        ).metadata
    except (pa.ArrowException, OSError, UnicodeDecodeError, ThriftError) as error:
        if "encrypted" in str(error).lower():
            raise DataError("is encrypted; decrypt it first", path=file.path) from error
        raise DataError(f"its footer cannot be read, it is damaged ({error})", path=file.path) from error
    if length - metadata.serialized_size == _SIGNATURE_BYTES:  # pyarrow ends the process when asked for its columns
        raise DataError("has encrypted columns and a signed footer; decrypt it first", path=file.path)
    return metadata


def _not_parquet(storage: Storage, file: FileInfo) -> DataError:
    head = storage.read(file, 0, min(file.size, 64))
    start = head.lstrip().lower()
    if head[:4] == b"PAR1":
        cause = "it starts as a Parquet file but has no end: its writing or copying was cut off"
    elif head[:6] == b"ARROW1":
        cause = "it is an Arrow IPC (Feather) file: write it as Parquet"
    elif start.startswith((b"<!doctype", b"<html", b"<?xml")):
        cause = "it is a web page, an error message perhaps: download the file again"
    elif start.startswith(b"version https://git-lfs"):
        cause = "it is a Git LFS pointer: fetch the real file with git lfs pull"
    else:
        cause = f"it starts with {head[:8]!r}"
    return DataError(f"is no Parquet file ({file.size:,} bytes): {cause}", path=file.path)
