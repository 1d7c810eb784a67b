"""Files of tokenized documents as each writer makes them, and by hand where no writer makes them any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.formats.parquet import thrift

Documents = Sequence[Sequence[int] | None]


def write_pyarrow(path: Path, documents: Documents, *, rows: int = 1 << 20, kind: Any = None, **options: Any) -> None:
    array = pa.array(documents, pa.list_(pa.int32()) if kind is None else kind)
    pq.write_table(pa.table({"tokens": array}), path, row_group_size=rows, **options)


def write_polars(path: Path, documents: Documents, *, rows: int = 1 << 20) -> None:
    import polars as pl

    pl.DataFrame({"tokens": pl.Series(documents, dtype=pl.List(pl.Int32))}).write_parquet(path, row_group_size=rows)


def write_duckdb(path: Path, documents: Documents, *, rows: int = 1 << 20) -> None:
    import duckdb

    # DuckDB cuts row groups at multiples of its vector size, 2,048 rows.
    with duckdb.connect() as connection:
        connection.register("documents", pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}))
        connection.execute(f"COPY (SELECT * FROM documents) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE {rows})")


def write_datasets(path: Path, documents: Documents, *, rows: int = 1 << 20) -> None:
    import datasets

    features = datasets.Features({"tokens": datasets.List(datasets.Value("int32"))})
    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))})
    datasets.Dataset(table.cast(features.arrow_schema), info=datasets.DatasetInfo(features=features)).to_parquet(
        path, batch_size=rows
    )


WRITERS = {"pyarrow": write_pyarrow, "polars": write_polars, "duckdb": write_duckdb, "datasets": write_datasets}


def read_pyarrow(path: Path, row_group: int, column: str = "tokens") -> list[list[int]]:
    """A row group's documents as pyarrow reads them, null ones as empty."""
    table = pq.ParquetFile(path).read_row_group(row_group)
    names = column.split(".")
    array = table.column(names[0]).combine_chunks()
    for name in names[1:]:
        array = array.field(name)
    return [document or [] for document in array.to_pylist()]


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────────────────────

REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
PLAIN, RLE_DICTIONARY = 0, 8


def schema_leaf(name: str, repetition: int, physical_type: int = 1) -> bytes:
    return thrift.struct(
        (1, thrift.I32, physical_type), (3, thrift.I32, repetition), (4, thrift.BINARY, thrift.binary(name.encode()))
    )


def schema_group(name: str, repetition: int, children: int = 1, *, is_list: bool = False) -> bytes:
    return thrift.struct(
        (3, thrift.I32, repetition),
        (4, thrift.BINARY, thrift.binary(name.encode())),
        (5, thrift.I32, children),
        *([(6, thrift.I32, 3)] if is_list else []),
    )


def rle(levels: Sequence[int]) -> bytes:
    """Levels as runs of equal ones, with the length that a version 1 data page puts before them."""
    runs = b""
    start = 0
    for end in range(1, len(levels) + 1):
        if end == len(levels) or levels[end] != levels[start]:
            runs += thrift.varint((end - start) << 1) + bytes([levels[start]])
            start = end
    return len(runs).to_bytes(4, "little") + runs


def data_page(body: bytes, slots: int, *, compressed: bytes | None = None, encoding: int = PLAIN) -> bytes:
    """A version 1 data page."""
    head = thrift.struct((1, thrift.I32, slots), (2, thrift.I32, encoding), (3, thrift.I32, 3), (4, thrift.I32, 3))
    stored = body if compressed is None else compressed
    header = thrift.struct(
        (1, thrift.I32, 0), (2, thrift.I32, len(body)), (3, thrift.I32, len(stored)), (5, thrift.STRUCT, head)
    )
    return header + stored


def file_by_hand(
    elements: Sequence[bytes],
    path: Sequence[str],
    pages: bytes,
    *,
    slots: int,
    rows: int,
    codec: int = 0,
    physical_type: int = 1,
    start: int = 4,
    length: int | None = None,
) -> bytes:
    """A file of one row group and one column, without statistics."""
    length = len(pages) if length is None else length
    column = thrift.struct(
        (1, thrift.I32, physical_type),
        (2, thrift.LIST, thrift.sequence(thrift.I32, [thrift.integer(0)])),
        (3, thrift.LIST, thrift.sequence(thrift.BINARY, [thrift.binary(name.encode()) for name in path])),
        (4, thrift.I32, codec),
        (5, thrift.I64, slots),
        (6, thrift.I64, length),
        (7, thrift.I64, length),
        (9, thrift.I64, start),
    )
    chunk = thrift.struct((2, thrift.I64, start), (3, thrift.STRUCT, column))
    group = thrift.struct((1, thrift.LIST, thrift.struct_list(chunk)), (2, thrift.I64, length), (3, thrift.I64, rows))
    footer = thrift.struct(
        (1, thrift.I32, 1),
        (2, thrift.LIST, thrift.struct_list(schema_group("schema", REQUIRED, 1), *elements)),
        (3, thrift.I64, rows),
        (4, thrift.LIST, thrift.struct_list(group)),
    )
    return b"PAR1" + pages + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def repetition_levels(documents: Sequence[Sequence[int]]) -> list[int]:
    return [int(place > 0) for document in documents for place in range(max(1, len(document)))]


def list_by_hand(
    documents: Sequence[Sequence[int]],
    elements: Sequence[bytes],
    path: Sequence[str],
    *,
    empty: int,
    present: int,
    codec: int = 0,
    compress: Any = None,
) -> bytes:
    """A file of documents in a schema of any shape, given the definition levels of an empty list and of an element."""
    definitions = [level for document in documents for level in [present] * len(document) or [empty]]
    values = np.array([token for document in documents for token in document], "<i4").tobytes()
    body = rle(repetition_levels(documents)) + rle(definitions) + values
    page = data_page(body, len(definitions), compressed=None if compress is None else compress(body))
    return file_by_hand(elements, path, page, slots=len(definitions), rows=len(documents), codec=codec)
