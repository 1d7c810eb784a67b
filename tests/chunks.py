"""Column chunks of Parquet files that tests write, and what pyarrow reads from them."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.blocks import TokenBlock
from parquet_loader.formats.base import ColumnChunk, ColumnLayout
from parquet_loader.formats.parquet import thrift
from parquet_loader.formats.parquet.decode import OpenChunk

Chunk = tuple[bytes, ColumnChunk]
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]


def held_by(work: Callable[[], object]) -> int:
    """The most that Python and Arrow's pool hold while something is done: two peaks that need not be at one time, so
    that what is held together is at most their sum.
    """
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        made = work()
        python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(default)
    assert made is not None
    del made  # before the pool that its memory is of
    return python + int(pool.max_memory())


def leaf_type(field: pa.Field) -> pa.Field:
    """The field of a list's elements, inside structs perhaps."""
    while pa.types.is_struct(field.type):
        field = field.type.field(0)
    return field.type.value_field


def chunks_of(file: bytes, column: int = 0) -> list[Chunk]:
    """Every row group's chunk of a file's leaf column."""
    parquet = pq.ParquetFile(pa.BufferReader(file))
    metadata, schema = parquet.metadata, parquet.schema.column(column)
    element = leaf_type(parquet.schema_arrow.field(column))
    layout = ColumnLayout(
        column="tokens",
        physical_type=schema.physical_type,
        signed=not pa.types.is_unsigned_integer(element.type),
        max_definition_level=schema.max_definition_level,
        nullable_element=element.nullable,
    )
    found = []
    for number in range(metadata.num_row_groups):
        entry = metadata.row_group(number).column(column)
        has_dictionary = entry.has_dictionary_page and 0 < (entry.dictionary_page_offset or 0) < entry.data_page_offset
        start = entry.dictionary_page_offset if has_dictionary else entry.data_page_offset
        chunk = ColumnChunk(
            path="a.parquet",
            row_group=number,
            layout=layout,
            start=start,
            length=entry.total_compressed_size,
            rows=metadata.row_group(number).num_rows,
            slots=entry.num_values,
            tokens=-1,
            codec=entry.compression,
            dictionary_offset=0 if has_dictionary else -1,
            data_offset=entry.data_page_offset - start,
        )
        found.append((file[start : start + chunk.length], chunk))
    return found


def decode_chunk(
    raw: bytes | memoryview,
    chunk: ColumnChunk,
    *,
    dtype: np.dtype[np.integer] | None = None,
    bound: int | None = None,
    on_fallback: Callable[[str], None] | None = None,
) -> TokenBlock:
    """All parts of a column chunk, put together; `on_fallback` is told why only pyarrow's own reader takes it."""
    opened = OpenChunk(raw, chunk)
    if opened.fallback and on_fallback is not None:
        on_fallback(opened.fallback)
    parts = list(opened.parts(dtype=dtype, bound=bound))
    if len(parts) == 1:
        tokens, starts = parts[0].tokens, parts[0].starts
    else:
        tokens = np.concatenate([np.empty(0, dtype or chunk.layout.dtype), *(part.tokens for part in parts)])
        starts = np.concatenate([np.empty(0, np.int64), *(part.starts + part.begin for part in parts)])
    return TokenBlock(tokens, np.append(starts, len(tokens)))


def write(table: pa.Table, **options: Any) -> bytes:
    """A Parquet file by pyarrow."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def documents_of(column: pa.ChunkedArray) -> list[list[int]]:
    """Documents as lists: a null list is an empty one; structs are looked into."""
    values = column.to_pylist()
    while any(isinstance(value, dict) for value in values):
        values = [None if value is None else next(iter(value.values())) for value in values]
    return [value or [] for value in values]


def expected_blocks(file: bytes) -> list[list[list[int]]]:
    """The documents of every row group, as pyarrow reads them."""
    parquet = pq.ParquetFile(pa.BufferReader(file))
    return [documents_of(parquet.read_row_group(group).column(0)) for group in range(parquet.num_row_groups)]


def assert_block(block: TokenBlock, documents: list[list[int]]) -> None:
    """The block holds exactly these documents."""
    lengths = np.array([len(document) for document in documents], np.int64)
    assert block.offsets.dtype == np.int64
    np.testing.assert_array_equal(block.offsets, np.concatenate([[0], np.cumsum(lengths)]))
    expected = np.array(list(itertools.chain.from_iterable(documents)), block.tokens.dtype)
    np.testing.assert_array_equal(block.tokens, expected)


def random_documents(seed: int, rows: int, longest: int, dtype: pa.DataType, vocabulary: int) -> list[list[int] | None]:
    """Documents of which some are empty or None, with runs of equal tokens."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype.to_pandas_dtype())
    ids = rng.integers(info.min, info.max, vocabulary, endpoint=True, dtype=info.dtype)
    shares = rng.dirichlet([1, 1, 4])  # of null, empty and other documents
    documents: list[list[int] | None] = []
    for kind in rng.choice(3, rows, p=shares):
        length = int(rng.integers(1, longest, endpoint=True))
        tokens = ids[rng.integers(0, vocabulary, length)].repeat(int(rng.integers(1, 20)))[:length]
        documents.append([None, [], tokens.tolist()][kind])
    return documents


def table_of(
    documents: list[list[int] | None], element: pa.Field, *, nullable: bool = True, parents: int = 0
) -> pa.Table:
    """A table of one column: a list, within so many structs."""
    kind: pa.DataType = pa.list_(element)
    values: list[Any] = documents if nullable else [document or [] for document in documents]
    for _ in range(parents):
        kind = pa.struct([pa.field("inner", kind, nullable)])
        values = [{"inner": value} for value in values]
    field = pa.field("tokens", kind, nullable)
    return pa.table([pa.array(values, kind)], schema=pa.schema([field]))


def v1_page(repetition: bytes, definition: bytes, values: bytes, slots: int, **changes: Any) -> bytes:
    """A plain, uncompressed data page; ``changes`` are header fields by name."""
    body = b"".join(len(part).to_bytes(4, "little") + part for part in (repetition, definition)) + values
    number = {"kind": 0, "unpacked": len(body), "stored": len(body), "encoding": 0, "levels": 3, "slots": slots}
    number |= changes
    fields = [number["slots"], number["encoding"], number["levels"], number["levels"]]
    header = thrift.struct(*((place + 1, thrift.I32, value) for place, value in enumerate(fields)))
    return (
        thrift.struct(
            (1, thrift.I32, number["kind"]),
            (2, thrift.I32, number["unpacked"]),
            (3, thrift.I32, number["stored"]),
            (5, thrift.STRUCT, header),
        )
        + body
    )


def crafted(*parts: bytes, rows: int, slots: int, codec: str = "UNCOMPRESSED", physical_type: str = "INT32") -> Chunk:
    """A chunk of required lists of required elements."""
    layout = ColumnLayout(
        column="tokens", physical_type=physical_type, signed=True, max_definition_level=1, nullable_element=False
    )
    raw = b"".join(parts)
    return raw, ColumnChunk(
        path="a.parquet",
        row_group=0,
        layout=layout,
        start=4,
        length=len(raw),
        rows=rows,
        slots=slots,
        tokens=-1,
        codec=codec,
        dictionary_offset=-1,
        data_offset=0,
    )


FOUR = np.arange(4, dtype=np.int32).tobytes()
FOUR_LEVELS = (b"\x03\x0a", b"\x08\x01")  # repetition 0 1 0 1, definition 1 1 1 1
