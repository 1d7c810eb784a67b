"""`TokenBlock` and `TokenPart`, what every format decodes to: Arrow views of them, and memory that is reused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "AnyArray",
    "IntArray",
    "TokenArray",
    "TokenBlock",
    "TokenPart",
    "append_eos",
    "as_arrow",
    "as_binary",
    "from_arrow",
    "narrowed",
    "permuted",
    "pooled",
]

AnyArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
TokenArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class TokenBlock:
    """Documents one after another: those of a row group, or of a piece of it, where the first one may have begun before
    and the last one may go on.

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


@dataclass(frozen=True, slots=True, eq=False)
class TokenPart:
    """A stretch of a row group's tokens. Documents go on from part to part.

    Attributes:
        begin: the first token's place among the row group's, EOS included.
        tokens: shape ``(tokens,)``, an integer dtype; not to be written to.
        starts: where documents begin, from `begin`, shape ``(documents,)``, int64, rising. Empty documents make equal
            ones, and one that is the very last may begin at the end.
    """

    begin: int
    tokens: TokenArray
    starts: IntArray

    def __len__(self) -> int:
        return len(self.tokens)

    def elements(self, low: int, high: int) -> TokenArray:
        """Its tokens ``[low, high)``."""
        return self.tokens[low:high]

    def borders(self, begin: int) -> IntArray:
        """Where its documents begin, if it begins there."""
        return self.starts + begin


def pooled(count: int, dtype: npt.DTypeLike) -> TokenArray:
    """Memory of pyarrow's pool, shape ``(count,)``, uninitialised. The pool gives a freed block to the next that asks;
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


def append_eos(block: TokenBlock, eos_id: int | float, *, complete: bool = True) -> TokenBlock:
    """A block with ``eos_id`` after every document, empty ones too; not after the last where it is not ``complete``."""
    documents = len(block.offsets) - 1
    # Scalars by way of arrays: `pa.scalar` would import pandas, as `pa.array` does.
    eos = as_binary(np.array([eos_id], block.tokens.dtype), np.array([0, 1]))[0]
    separator = as_binary(block.tokens[:0], np.array([0, 0]))[0]
    joined = pc.binary_join_element_wise(as_binary(block.tokens, block.offsets), eos, separator)
    # The count, since of nothing joined pyarrow makes a buffer that is not empty.
    tokens = np.frombuffer(joined.buffers()[2] or b"", block.tokens.dtype, len(block.tokens) + documents)
    offsets = block.offsets + np.arange(documents + 1, dtype=np.int64)
    if not complete:
        tokens = tokens[:-1]
        offsets[-1] -= 1
    return TokenBlock(tokens, offsets)


def as_binary(tokens: TokenArray, offsets: IntArray) -> pa.LargeBinaryArray:
    """Documents as byte strings, without a copy of the tokens: so that one C++ call moves whole documents."""
    scaled = offsets * tokens.itemsize
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(scaled), pa.py_buffer(tokens)]
    )


def permuted(tokens: TokenArray, offsets: IntArray, order: IntArray) -> tuple[IntArray, TokenArray]:
    """Documents in another order: where each begins then, shape ``(documents,)``, and the tokens.

    Args:
        tokens: shape ``(tokens,)``.
        offsets: of the documents, all the tokens, shape ``(documents + 1,)``.
        order: a permutation of the documents, shape ``(documents,)``.
    """
    moved = pc.take(as_binary(tokens, offsets), as_arrow(order), boundscheck=False)
    _, moved_offsets, moved_tokens = moved.buffers()
    begins = np.frombuffer(moved_offsets, np.int64)[: len(order)] // tokens.itemsize
    return begins, np.frombuffer(moved_tokens, tokens.dtype)[: len(tokens)]


def as_arrow(numbers: TokenArray) -> pa.Array:
    """An Arrow array of the same memory. Unlike ``pa.array`` it does not import pandas to see whether this is its."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def from_arrow(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The numbers of an Arrow array without nulls, in the same memory unless they are bits. Unlike its ``to_numpy`` it
    does not import pandas, which takes 40 MB.
    """
    dtype = np.dtype(dtype)
    if pa.types.is_boolean(array.type):  # bits
        bits = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        return np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)].view(dtype)
    return np.frombuffer(array.buffers()[1] or b"", dtype, len(array), array.offset * dtype.itemsize)
