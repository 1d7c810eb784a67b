"""One row group's column chunk (bytes) to a `TokenBlock`.

A column chunk is decoded from its bytes and the few numbers of its footer entry that a `ColumnChunk` keeps; the
file's footer is not needed again. `pages` does it where it can. What it cannot is framed as a Parquet file of its own
and handed to pyarrow whole. The made-up schema has the same definition and repetition levels as the real one, which
is all that the pages depend on: names, and whether a list is written in two levels or three, do not matter. It asks
for a ``large_list``, so that offsets are 64-bit and a row group may hold more than 2^31 tokens.

    row           definition levels        TokenBlock
    [5, 6, 7]     3 3 3                    tokens   5 6 7 8
    []            1                        offsets  0 3 3 3 4
    null          0
    [8]           3
"""

from __future__ import annotations

import base64
import functools
import itertools
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...blocks import IntArray, TokenBlock, narrowed
from ...errors import DataError
from ..base import CODECS, RECOUNT, ColumnChunk, ColumnLayout
from . import rehost, thrift
from .levels import ByteArray, document_offsets, null_element, unusual_levels
from .pages import PLAIN, NotSupported, open_page, plan_pages, unpacked_bound
from .values import EncodedValues, OutOfRange, PlainValues, Wanted

__all__ = ["cast_tokens", "decode_chunk", "decode_cost", "decode_pages"]

_CONVERTED_LIST = 3
_OBJECTS_BYTES = 1 << 10  # the Python and Arrow objects around the buffers of a block


def decode_cost(*, chunk_bytes: int, tokens: int, rows: int, itemsize: int) -> tuple[int, int]:
    """Upper bounds of the bytes that decoding holds: (at its peak, and afterwards in the block).

    `pages` holds the chunk, its pages without their levels, and beside them either a page that was just decompressed,
    or what lists the documents (numbers for each run, and the table of a window's jumps), or the tokens. pyarrow's own
    reader holds the chunk twice and keeps the values, two 16-bit levels a slot and a bitmap of nulls, all with room for
    a power of two, and the dictionary or the page that it is at.
    """
    values, offsets, slots = tokens * itemsize, (rows + 1) * 8, tokens + rows
    unpacked = unpacked_bound(chunk_bytes=chunk_bytes, slots=slots, itemsize=itemsize)
    listed = 64 * rows + min(256 * rows, 2 << 20)
    here = chunk_bytes + unpacked + (max(itemsize, 4) + 2) * slots + listed
    room = 1 << max(slots - 1, 0).bit_length()
    fallback = 2 * chunk_bytes + room * (itemsize + 4) + room // 8 + 2 * values + offsets
    return max(here, fallback) + 8 * _OBJECTS_BYTES, values + tokens // 8 + offsets + _OBJECTS_BYTES


def decode_chunk(
    raw: bytes | memoryview,
    chunk: ColumnChunk,
    *,
    dtype: np.dtype[np.integer] | None = None,
    bound: int | None = None,
    on_fallback: Callable[[str], None] | None = None,
) -> TokenBlock:
    """Decode one column chunk.

    Args:
        raw: the chunk's bytes, ``chunk.length`` of them; the block keeps none.
        chunk: its footer entry.
        dtype: of the tokens; None for the stored one.
        bound: refuse ids outside ``[0, bound)``; given with ``dtype``, at most one past its largest value.
        on_fallback: called with the reason, on the decoding thread, where the pages are of a kind that only
            pyarrow's own reader takes: several times slower, equal in every other way.

    Raises:
        DataError: the bytes do not decode, hold a null inside a document, an id out of range, or other numbers of
            documents or tokens than the footer says.
    """
    assert (dtype is None) == (bound is None)
    if chunk.codec not in CODECS:
        raise chunk.error(f"compression {chunk.codec!r} is unknown; rewrite the file with zstd, snappy, lz4 or none")
    if len(raw) != chunk.length:
        raise chunk.error(f"read {len(raw):,} bytes of a column chunk of {chunk.length:,}")
    if not chunk.layout.max_definition_level:
        return TokenBlock(np.empty(0, dtype or chunk.layout.dtype), np.zeros(chunk.rows + 1, np.int64))
    view = memoryview(raw).cast("B")
    stored = Wanted(dtype=chunk.layout.dtype, bound=None)
    try:
        if dtype is None or bound is None:
            block = decode_pages(view, chunk, stored)
        else:
            try:
                block = decode_pages(view, chunk, Wanted(dtype=dtype, bound=bound))
            except OutOfRange:
                block = cast_tokens(decode_pages(view, chunk, stored), dtype, bound, chunk)
    except NotSupported as reason:
        if on_fallback is not None:
            on_fallback(str(reason))
        block = decode_with_pyarrow(raw, chunk)
        if dtype is not None and bound is not None:
            block = cast_tokens(block, dtype, bound, chunk)
    if len(block.offsets) - 1 != chunk.rows:
        raise chunk.error(f"holds {len(block.offsets) - 1:,} documents where its footer says {chunk.rows:,}")
    if chunk.tokens >= 0 and len(block.tokens) != chunk.tokens:
        raise chunk.error(f"holds {len(block.tokens):,} tokens where its footer says {chunk.tokens:,}; {RECOUNT}")
    return block


def decode_with_pyarrow(raw: bytes | memoryview, chunk: ColumnChunk) -> TokenBlock:
    """Decode one column chunk, levels and all, with pyarrow's own reader: what `decode_chunk` falls back to."""
    framed = pa.BufferReader(b"".join((rehost.MAGIC, raw, _footer(chunk))))
    try:
        with pq.ParquetFile(framed, pre_buffer=False, page_checksum_verification=True) as file:
            column = file.read(use_threads=False).column(0)
    except MemoryError:  # pyarrow has an ArrowException for it
        raise
    except (pa.ArrowException, OSError) as error:
        raise chunk.error(f"cannot be decoded, the file is damaged or of an unknown kind ({error})") from error
    blocks = [_block_of_array(piece, chunk) for piece in column.chunks]
    return blocks[0] if len(blocks) == 1 else _concatenate(blocks, chunk.layout.dtype)


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
        raise null_element(chunk, row, slot - int(offsets[row]))
    return TokenBlock(values.to_numpy(zero_copy_only=True).view(chunk.layout.dtype), offsets)


def _concatenate(blocks: list[TokenBlock], dtype: np.dtype[np.integer]) -> TokenBlock:
    lengths = [np.diff(block.offsets) for block in blocks]
    offsets = np.zeros(1 + sum(map(len, lengths)), np.int64)
    if lengths:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    tokens = np.concatenate([block.tokens for block in blocks]) if blocks else np.empty(0, dtype)
    return TokenBlock(tokens, offsets)


def _footer(chunk: ColumnChunk) -> bytes:
    """What comes after the chunk in a file of "PAR1" and the chunk alone."""
    elements, leaf, arrow_schema = _schema(chunk.layout)
    return rehost.file_footer(
        schema=elements,
        leaf=leaf,
        physical_type=chunk.layout.physical_type,
        codec=CODECS[chunk.codec],
        rows=chunk.rows,
        slots=chunk.slots,
        pages_bytes=chunk.length,
        data_offset=chunk.data_offset,
        dictionary_offset=chunk.dictionary_offset,
        arrow_schema=arrow_schema,
    )


@functools.lru_cache(maxsize=64)
def _schema(layout: ColumnLayout) -> tuple[bytes, tuple[bytes, ...], bytes]:
    """A schema with the layout's levels: (schema elements, path of the leaf, the Arrow schema that says large_list)."""
    optional_ancestors = layout.max_definition_level - int(layout.nullable_element) - 1
    wrappers = max(0, optional_ancestors - 1)
    elements = [
        rehost.schema_group(b"schema"),
        *(rehost.schema_group(b"s", repetition=rehost.OPTIONAL) for _ in range(wrappers)),
        rehost.schema_group(
            b"tokens",
            repetition=rehost.OPTIONAL if optional_ancestors else rehost.REQUIRED,
            converted=_CONVERTED_LIST,
        ),
        rehost.schema_group(b"list", repetition=rehost.REPEATED),
        rehost.schema_leaf(
            b"element", layout.physical_type, rehost.OPTIONAL if layout.nullable_element else rehost.REQUIRED
        ),
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
    try:
        Wanted(dtype=dtype, bound=bound).check(tokens)
    except OutOfRange:
        raise _out_of_range(block, bound, chunk) from None
    return TokenBlock(narrowed(tokens, dtype), block.offsets)


def _out_of_range(block: TokenBlock, bound: int, chunk: ColumnChunk) -> DataError:
    at = int(np.flatnonzero(block.tokens.view(f"u{block.tokens.itemsize}") >= bound)[0])
    row = int(np.searchsorted(block.offsets, at, side="right")) - 1
    return chunk.error(
        f"row {row} has token id {int(block.tokens[at])}, outside [0, {bound}); "
        "check vocab_size, dtype, the tokenizer, and whether the file's statistics are true"
    )


def decode_pages(raw: memoryview, chunk: ColumnChunk, wanted: Wanted) -> TokenBlock:
    """Decode one column chunk. The block keeps nothing of ``raw``.

    Raises:
        DataError: the bytes are damaged, or hold a null inside a document.
        NotSupported: an encoding or structure that pyarrow's own reader may know.
        OutOfRange: an id is not as wanted, or an entry of the dictionary, used or not.
    """
    dictionary, pages = plan_pages(raw, chunk)
    slots = [0, *itertools.accumulate(page.slots for page in pages)]
    values: PlainValues | EncodedValues
    if all(page.encoding == PLAIN for page in pages):
        values = PlainValues(chunk, wanted)
    else:
        values = EncodedValues(raw, dictionary, pages, chunk, wanted)
    repetition: list[bytes] = []
    holes: list[tuple[IntArray, ByteArray]] = []
    # A page's values are moved on while they are in the processor's cache, and its memory serves the next page.
    for number, page in enumerate(pages):
        body = open_page(raw, page, chunk)
        repetition.append(bytes(body.repetition))
        holes.append(
            unusual_levels([body.definition], slots[number : number + 2], chunk.layout.max_definition_level, chunk)
        )
        values.append(page, page.slots - len(holes[-1][0]), body.values)
        del body
    return TokenBlock(values.tokens(), document_offsets(repetition, holes, slots, chunk))
