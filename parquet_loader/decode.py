"""One row group's column chunk (bytes) to a `TokenBlock`.

A column chunk is decoded from its bytes and the few numbers of its footer entry that a `ColumnChunk` keeps; the
file's footer is not needed again. The chunk is framed as a Parquet file of its own, with one row group and one column,
and handed to pyarrow from memory:

    "PAR1" │ the chunk's pages, as they are │ a footer made here │ footer length │ "PAR1"

The made-up schema has the same definition and repetition levels as the real one, which is all that the pages depend
on: names, and whether a list is written in two levels or three, do not matter. It asks for a ``large_list``, so that
offsets are 64-bit and a row group may hold more than 2^31 tokens.

    row           definition levels        TokenBlock
    [5, 6, 7]     3 3 3                    tokens   5 6 7 8
    []            1                        offsets  0 3 3 3 4
    null          0
    [8]           3
"""

from __future__ import annotations

import base64
import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from . import thrift
from .chunk import CODECS, ColumnChunk, ColumnLayout, IntArray, TokenArray, TokenBlock
from .errors import DataError

__all__ = ["append_eos", "as_binary", "cast_tokens", "decode_chunk", "decode_cost"]

PHYSICAL_TYPES = {"INT32": 1, "INT64": 2}
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_CONVERTED_LIST = 3
_OBJECTS_BYTES = 1 << 10  # the Python and Arrow objects around the buffers of a block


def decode_cost(*, chunk_bytes: int, tokens: int, rows: int, itemsize: int) -> tuple[int, int]:
    """Upper bounds of the bytes that decoding holds: (at its peak, and afterwards in the block).

    While pyarrow decodes a list column it keeps the values, two 16-bit levels a slot and a bitmap of nulls, all with
    room for a power of two, and the dictionary or the page that it is at. The chunk is copied once to frame it.
    """
    values, offsets = tokens * itemsize, (rows + 1) * 8
    room = 1 << max(tokens + rows - 1, 0).bit_length()
    peak = 2 * chunk_bytes + room * (itemsize + 4) + room // 8 + 2 * values + offsets + 8 * _OBJECTS_BYTES
    return peak, values + tokens // 8 + offsets + _OBJECTS_BYTES


def decode_chunk(raw: bytes | memoryview, chunk: ColumnChunk) -> TokenBlock:
    """Decode one column chunk.

    Args:
        raw: the chunk's bytes, ``chunk.length`` of them.
        chunk: its footer entry.

    Raises:
        DataError: the bytes do not decode, hold a null inside a document, or hold other numbers of documents or
            tokens than the footer says.
    """
    if chunk.codec not in CODECS:
        raise chunk.error(f"compression {chunk.codec!r} is unknown; write the file anew with zstd, snappy, lz4 or none")
    if len(raw) != chunk.length:
        raise chunk.error(f"read {len(raw):,} bytes of a column chunk of {chunk.length:,}")
    framed = pa.BufferReader(b"".join((b"PAR1", raw, _footer(chunk))))
    try:
        with pq.ParquetFile(framed, pre_buffer=False, page_checksum_verification=True) as file:
            column = file.read(use_threads=False).column(0)
    except (pa.ArrowException, OSError) as error:
        raise chunk.error(f"cannot be decoded, the file is damaged or of an unknown kind ({error})") from error
    blocks = [_block_of_array(piece, chunk) for piece in column.chunks]
    block = blocks[0] if len(blocks) == 1 else _concatenate(blocks, chunk.layout.dtype)
    if len(block.offsets) - 1 != chunk.rows:
        raise chunk.error(f"holds {len(block.offsets) - 1:,} documents where its footer says {chunk.rows:,}")
    if chunk.tokens >= 0 and len(block.tokens) != chunk.tokens:
        raise chunk.error(f"holds {len(block.tokens):,} tokens where its footer says {chunk.tokens:,}")
    return block


def _block_of_array(array: pa.Array, chunk: ColumnChunk) -> TokenBlock:
    while isinstance(array, pa.StructArray):
        array = array.field(0)
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    values = array.values.slice(first, last - first)
    offsets = offsets - first if first else offsets
    if values.null_count:
        slot = int(pc.index(values.is_null(), True).as_py())
        row = int(np.searchsorted(offsets, slot, side="right")) - 1
        raise chunk.error(
            f"row {row} has a null inside its document, at position {slot - int(offsets[row])}; "
            "a null is no token: remove it or write the id that was meant"
        )
    return TokenBlock(values.to_numpy(zero_copy_only=True).view(chunk.layout.dtype), offsets)


def _concatenate(blocks: list[TokenBlock], dtype: np.dtype[np.integer]) -> TokenBlock:
    lengths = [np.diff(block.offsets) for block in blocks]
    offsets = np.zeros(1 + sum(map(len, lengths)), np.int64)
    if lengths:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    tokens = np.concatenate([block.tokens for block in blocks]) if blocks else np.empty(0, dtype)
    return TokenBlock(tokens, offsets)


def _footer(chunk: ColumnChunk) -> bytes:
    """A Parquet footer, its length and the magic bytes, for a file of "PAR1" and the chunk alone."""
    first_page = 4
    elements, path, stored_schema = _schema(chunk.layout)
    column: list[tuple[int, int, int | bytes]] = [
        (1, thrift.I32, PHYSICAL_TYPES[chunk.layout.physical_type]),
        (2, thrift.LIST, thrift.sequence(thrift.I32, [thrift.integer(0)])),
        (3, thrift.LIST, thrift.sequence(thrift.BINARY, [thrift.binary(name) for name in path])),
        (4, thrift.I32, CODECS[chunk.codec]),
        (5, thrift.I64, chunk.slots),
        (6, thrift.I64, chunk.length),
        (7, thrift.I64, chunk.length),
        (9, thrift.I64, first_page + chunk.data_offset),
    ]
    if chunk.dictionary_offset >= 0:
        column.append((11, thrift.I64, first_page + chunk.dictionary_offset))
    column_chunk = thrift.struct((2, thrift.I64, first_page), (3, thrift.STRUCT, thrift.struct(*column)))
    row_group = thrift.struct(
        (1, thrift.LIST, thrift.struct_list(column_chunk)),
        (2, thrift.I64, chunk.length),
        (3, thrift.I64, chunk.rows),
    )
    key_value = thrift.struct(
        (1, thrift.BINARY, thrift.binary(b"ARROW:schema")), (2, thrift.BINARY, thrift.binary(stored_schema))
    )
    footer = thrift.struct(
        (1, thrift.I32, 2),
        (2, thrift.LIST, elements),
        (3, thrift.I64, chunk.rows),
        (4, thrift.LIST, thrift.struct_list(row_group)),
        (5, thrift.LIST, thrift.struct_list(key_value)),
    )
    return footer + len(footer).to_bytes(4, "little") + b"PAR1"


@functools.lru_cache(maxsize=64)
def _schema(layout: ColumnLayout) -> tuple[bytes, tuple[bytes, ...], bytes]:
    """A schema with the layout's levels: (schema elements, path of the leaf, the Arrow schema that says large_list)."""
    optional_ancestors = layout.max_definition_level - int(layout.nullable_element) - 1
    wrappers = max(0, optional_ancestors - 1)
    list_repetition = _OPTIONAL if optional_ancestors else _REQUIRED
    element_repetition = _OPTIONAL if layout.nullable_element else _REQUIRED

    def group(name: bytes, repetition: int, *converted: tuple[int, int, int]) -> bytes:
        return thrift.struct(
            (3, thrift.I32, repetition), (4, thrift.BINARY, thrift.binary(name)), (5, thrift.I32, 1), *converted
        )

    leaf = thrift.struct(
        (1, thrift.I32, PHYSICAL_TYPES[layout.physical_type]),
        (3, thrift.I32, element_repetition),
        (4, thrift.BINARY, thrift.binary(b"element")),
    )
    elements = [
        thrift.struct((4, thrift.BINARY, thrift.binary(b"schema")), (5, thrift.I32, 1)),
        *(group(b"s", _OPTIONAL) for _ in range(wrappers)),
        group(b"tokens", list_repetition, (6, thrift.I32, _CONVERTED_LIST)),
        group(b"list", _REPEATED),
        leaf,
    ]
    element = pa.field("element", getattr(pa, layout.physical_type.lower())(), layout.nullable_element)
    field = pa.field("tokens", pa.large_list(element), bool(optional_ancestors))
    for _ in range(wrappers):
        field = pa.field("s", pa.struct([field]))
    arrow_schema = base64.b64encode(pa.schema([field]).serialize().to_pybytes())
    return thrift.struct_list(*elements), (b"s",) * wrappers + (b"tokens", b"list", b"element"), arrow_schema


def cast_tokens(block: TokenBlock, dtype: np.dtype[np.integer], bound: int, chunk: ColumnChunk) -> TokenBlock:
    """The block with its tokens in ``dtype``, every id checked to be in ``[0, bound)``.

    Args:
        bound: the vocabulary's size where it is known, at most one past the largest value of ``dtype``.

    Raises:
        DataError: an id is out of range; nothing is ever wrapped.
    """
    tokens = block.tokens
    if len(tokens):
        # A negative id read as unsigned is larger than any bound, so one pass finds both kinds of wrong.
        largest = int(tokens.view(f"u{tokens.itemsize}").max())
        if largest >= bound:
            raise _out_of_range(block, bound, chunk)
    return TokenBlock(tokens if tokens.dtype == dtype else tokens.astype(dtype), block.offsets)


def _out_of_range(block: TokenBlock, bound: int, chunk: ColumnChunk) -> DataError:
    at = int(np.flatnonzero(block.tokens.view(f"u{block.tokens.itemsize}") >= bound)[0])
    row = int(np.searchsorted(block.offsets, at, side="right")) - 1
    return chunk.error(
        f"row {row} has token id {int(block.tokens[at])}, outside [0, {bound}); "
        "check vocab_size, dtype and the tokenizer that wrote the file"
    )


def append_eos(block: TokenBlock, eos_id: int) -> TokenBlock:
    """A block with ``eos_id`` after every document, empty ones too: as many tokens more as there are documents."""
    documents = len(block.offsets) - 1
    eos = pa.scalar(np.array([eos_id], block.tokens.dtype).tobytes(), pa.large_binary())
    separator = pa.scalar(b"", pa.large_binary())
    joined = pc.binary_join_element_wise(as_binary(block.tokens, block.offsets), eos, separator)
    # The count, since of nothing joined pyarrow makes a buffer that is not empty.
    tokens = np.frombuffer(joined.buffers()[2] or b"", block.tokens.dtype, len(block.tokens) + documents)
    return TokenBlock(tokens, block.offsets + np.arange(documents + 1, dtype=np.int64))


def as_binary(tokens: TokenArray, offsets: IntArray) -> pa.LargeBinaryArray:
    """Documents as byte strings, without a copy of the tokens: what lets one C++ call move whole documents."""
    scaled = offsets * tokens.itemsize
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(scaled), pa.py_buffer(tokens)]
    )
