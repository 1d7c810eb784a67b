"""The values that the stages hand to each other: where a row group's tokens lie, and what they are once decoded.

index  ──  ColumnChunk  ──►  decode  ──  TokenBlock  ──►  pack
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..blocks import IntArray
from ..errors import DataError
from ..index.index import ARRAYS

__all__ = ["CODECS", "RECOUNT", "ColumnChunk", "ColumnLayout"]

# Names as pyarrow gives them, numbers as parquet.thrift does ("LZ4" is what the format calls LZ4_RAW).
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "LZO": 3, "BROTLI": 4, "LZ4_HADOOP": 5, "ZSTD": 6, "LZ4": 7}


# What to do where a footer counts wrongly.
RECOUNT = (
    "some writers count empty and null lists wrongly: give the loader index=build_index(source, recount=True), or the "
    "file that `python -m parquet_loader index --recount` writes; they count anew"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """How a file stores its token column: the same for all of the file's row groups.

    Attributes:
        column: the column's name; a struct's field is ``parent.child``.
        physical_type: ``"INT32"`` or ``"INT64"``.
        signed: False where the integers are unsigned (a uint32 above 2^31 is stored as a negative INT32).
        max_definition_level: the level of a present element; one more than the level of the list being non-empty
            where an element may be null. 0 for a column that holds no value in the file, of whatever type: all of its
            documents are empty.
        nullable_element: whether an element may be null.
    """

    column: str
    physical_type: str
    signed: bool
    max_definition_level: int
    nullable_element: bool

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """The dtype of decoded tokens."""
        name = self.physical_type.lower()
        return np.dtype(name if self.signed else "u" + name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """What decoding needs to know of one row group's token column, from the footer.

    Attributes:
        path: the file, relative to the dataset's root.
        row_group: the row group's number in the file.
        layout: how the file stores the column.
        start: the first byte of the chunk in the file.
        length: the chunk's bytes.
        rows: documents.
        slots: leaf slots (``num_values``): tokens, and one for each empty or null list.
        tokens: tokens, or -1 where the footer does not tell.
        codec: compression, a key of `CODECS`.
        dictionary_offset: the dictionary page's place, from `start`; -1 where there is none.
        data_offset: the first data page's place, from `start`.
    """

    path: str
    row_group: int
    layout: ColumnLayout
    start: int
    length: int
    rows: int
    slots: int
    tokens: int
    codec: str
    dictionary_offset: int
    data_offset: int

    def error(self, problem: str) -> DataError:
        """A `DataError` that names this chunk."""
        return DataError(problem, path=self.path, row_group=self.row_group, column=self.layout.column)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file's footer, boiled down: for each column that may be meant its layout and its row groups' numbers.

    Attributes:
        columns: a name to (layout, array of shape ``(numbers, row groups)`` in the order of `ENTRY_ARRAYS`); columns
            of any type that hold no value are among them, since another file may have tokens there.
        leaves: what columns there are, where none is a list of integers.
    """

    columns: dict[str, tuple[ColumnLayout, IntArray]]
    leaves: tuple[Leaf, ...] = ()


ENTRY_ARRAYS = tuple(name for name in ARRAYS if name != "file")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf column of a Parquet schema: its number, its name without list levels, its Arrow type."""

    number: int
    name: str
    type: pa.DataType
    is_tokens: bool
    nullable_element: bool
    signed: bool
