"""Arrow IPC files that tests write, and what is read from them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader import DatasetIndex, build_index
from parquet_loader.formats.arrow import ARROW
from parquet_loader.formats.base import ColumnChunk
from parquet_loader.storage import open_storage

Documents = Sequence[Sequence[int] | None]
FORMS = ("file", "stream")


def ipc(
    batches: pa.Table | Iterable[pa.RecordBatch], *, form: str = "stream", codec: str | None = None, rows: int = 1 << 20
) -> bytes:
    """The bytes of a file or a stream.

    Args:
        batches: record batches of one schema, or a table that is cut into such of ``rows`` rows.
        form: of `FORMS`.
        codec: ``"lz4"`` or ``"zstd"``.
    """
    batches = batches.to_batches(max_chunksize=rows) if isinstance(batches, pa.Table) else list(batches)
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with new(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def table_of(documents: Documents, kind: pa.DataType | None = None) -> pa.Table:
    """A table of one column ``tokens``."""
    return pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()) if kind is None else kind)})


def write_arrow(path: Path, documents: Documents, kind: pa.DataType | None = None, **options: Any) -> Path:
    """A file of one column ``tokens``; see `ipc`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(ipc(table_of(documents, kind), **options))
    return path


def chunks_of(source: Path, column: str | None = None) -> tuple[DatasetIndex, list[bytes], list[ColumnChunk]]:
    """The index of files, and the bytes and the entry of each of their record batches."""
    index = build_index(source, column=column)
    storage = open_storage(source)
    chunks = index.chunks(np.arange(len(index)))
    return index, [storage.read(index.file_of(chunk.path), chunk.start, chunk.length) for chunk in chunks], chunks


def documents_of(raw: bytes, chunk: ColumnChunk, **options: Any) -> list[list[int]]:
    """A record batch's documents, put together from its parts."""
    tokens: list[int] = []
    starts: list[int] = []
    for part in ARROW.open(raw, chunk).parts(**options):
        assert part.begin == len(tokens)
        starts += (part.starts + part.begin).tolist()
        tokens += part.tokens.tolist()
    return [tokens[begin:end] for begin, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]


def documents_in(source: Path, column: str | None = None) -> list[list[int]]:
    """All documents of files, as they are stored."""
    _, raws, chunks = chunks_of(source, column)
    return [document for raw, chunk in zip(raws, chunks, strict=True) for document in documents_of(raw, chunk)]
