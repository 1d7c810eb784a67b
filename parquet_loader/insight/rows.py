"""The rows of a set's files, with all their columns, as pyarrow reads them a row group at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataError, StorageError
from ..index.index import DatasetIndex
from ..storage.base import FileInfo, Storage

__all__ = ["Rows", "open_parquet", "open_rows"]


class Rows(Protocol):
    """The rows of a file.

    Attributes:
        schema: of its columns.
        counts: rows of each row group, shape ``(row groups,)``.
    """

    schema: pa.Schema
    counts: Sequence[int]

    def read(self, group: int, paths: Sequence[Sequence[str]]) -> pa.Table | pa.RecordBatch:
        """Columns of a row group, each by the names that lead to it; of struct columns perhaps all. Row groups are read
        in rising order.
        """
        ...


@contextmanager
def open_rows(storage: Storage, file: FileInfo, index: DatasetIndex | None = None) -> Iterator[Rows]:
    """A file's rows.

    Args:
        storage, file: where it lies.
        index: of the set that it is of; None for a Parquet file of any other.

    Raises:
        DataError: it is not what its name says, or what is read of it is damaged.
        StorageError: it cannot be read.
    """
    if index is None or index.format == "parquet":
        with open_parquet(storage, file) as parquet:
            yield _ParquetRows(parquet)
    else:
        with _translated(file):
            yield _ArrowRows(storage, file, index)


class _ParquetRows:
    def __init__(self, parquet: pq.ParquetFile) -> None:
        self._parquet = parquet
        self.schema: pa.Schema = parquet.schema_arrow
        self.counts: Sequence[int] = [parquet.metadata.row_group(at).num_rows for at in range(parquet.num_row_groups)]

    def read(self, group: int, paths: Sequence[Sequence[str]]) -> pa.Table:
        return self._parquet.read_row_group(group, columns=[".".join(path) for path in paths], use_threads=False)


class _ArrowRows:
    """Of a stream, what comes before a record batch is read, too."""

    def __init__(self, storage: Storage, file: FileInfo, index: DatasetIndex) -> None:
        stored = _StoredFile(storage, file)
        is_file = stored.read(6) == b"ARROW1"
        stored.seek(0)
        self._reader: Any = pa.ipc.open_file(stored) if is_file else pa.ipc.open_stream(stored)
        self._is_file = is_file
        self._next = 0  # record batch of a stream
        self.schema: pa.Schema = self._reader.schema
        number = index.file_number(file.path)
        assert number is not None
        own = index.groups_of(number)
        counts = np.zeros(int(index.row_group[own].max(initial=-1)) + 1, np.int64)
        counts[index.row_group[own]] = index.rows[own]  # those that are not there have no rows
        self.counts: Sequence[int] = counts.tolist()

    def read(self, group: int, paths: Sequence[Sequence[str]]) -> pa.RecordBatch:
        if self._is_file:
            batch = self._reader.get_batch(group)
        else:
            while self._next < group:
                self._reader.read_next_batch()
                self._next += 1
            batch = self._reader.read_next_batch()
            self._next += 1
        batch.validate(full=True)  # pyarrow reads what damaged offsets point to
        return batch


@contextmanager
def open_parquet(storage: Storage, file: FileInfo) -> Iterator[pq.ParquetFile]:
    """A file of a storage, to be read a column chunk at a time; pages that have checksums are checked.

    Raises:
        DataError: it is no Parquet, or what is read of it is damaged.
        StorageError: it cannot be read.
    """
    with _translated(file):
        # Without buffering ahead, pyarrow asks for the footer and for each chunk, and for nothing else.
        yield pq.ParquetFile(_StoredFile(storage, file), pre_buffer=False, page_checksum_verification=True)


@contextmanager
def _translated(file: FileInfo) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise DataError(f"cannot be read: {error}", path=file.path) from error


class _StoredFile(io.RawIOBase):
    """A file of a storage, as pyarrow wants files: each read is one of the storage's."""

    def __init__(self, storage: Storage, file: FileInfo) -> None:
        self._storage, self._file, self._at = storage, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._file.size - self._at)
        size = left if size is None or size < 0 else min(size, left)
        data = self._storage.read(self._file, self._at, size) if size else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
