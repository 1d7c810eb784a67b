"""Column chunks of Parquet files that tests write, and what pyarrow reads from them."""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.blocks import TokenBlock
from parquet_loader.formats.base import ColumnChunk, ColumnLayout

Chunk = tuple[bytes, ColumnChunk]


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
