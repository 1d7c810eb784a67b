"""The values that the stages hand to each other: where a row group's tokens lie, and what they are once decoded.

index  ──  ColumnChunk  ──►  decode  ──  TokenBlock  ──►  pack
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import DataError

__all__ = ["CODECS", "ColumnChunk", "ColumnLayout", "IntArray", "TokenArray", "TokenBlock", "narrowed", "pooled"]

IntArray = npt.NDArray[np.int64]
TokenArray = npt.NDArray[np.integer]

# Names as pyarrow gives them, numbers as parquet.thrift does ("LZ4" is what the format calls LZ4_RAW).
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "LZO": 3, "BROTLI": 4, "LZ4_HADOOP": 5, "ZSTD": 6, "LZ4": 7}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """How a file stores its token column: the same for all of the file's row groups.

    Attributes:
        column: the column's name; a struct's field is ``parent.child``.
        physical_type: ``"INT32"`` or ``"INT64"``.
        signed: False where the integers are unsigned (a uint32 above 2^31 is stored as a negative INT32).
        max_definition_level: the level of a present element; one more than the level of the list being non-empty
            where an element may be null.
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


@dataclass(frozen=True, slots=True, eq=False)
class TokenBlock:
    """The documents of a row group, one after another.

    Attributes:
        tokens: shape ``(tokens,)``, an integer dtype; not to be written to.
        offsets: shape ``(documents + 1,)``, int64: document ``d`` is ``tokens[offsets[d]:offsets[d + 1]]``;
            ``offsets[0]`` is 0 and ``offsets[-1]`` is ``len(tokens)``.
    """

    tokens: TokenArray
    offsets: IntArray

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.tokens.nbytes + self.offsets.nbytes


def pooled(count: int, dtype: npt.DTypeLike) -> TokenArray:
    """Memory of pyarrow's pool, shape ``(count,)``, of any content. The pool gives a freed block to the next that asks;
    from the system it would be fresh pages every time, which take longer to get than to fill.
    """
    dtype = np.dtype(dtype)
    return np.frombuffer(pa.allocate_buffer(count * dtype.itemsize), dtype)


def narrowed(tokens: TokenArray, dtype: np.dtype[np.integer]) -> TokenArray:
    """The tokens in another dtype, in `pooled` memory; all of them must fit. As they are, if it is theirs."""
    if tokens.dtype == dtype:
        return tokens
    target = pooled(len(tokens), dtype)
    np.copyto(target, tokens, casting="unsafe")
    return target
