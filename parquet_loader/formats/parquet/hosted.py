"""Values that pyarrow is to decode: pages without their levels, as those of a flat, required column of a file.

    "PAR1" │ dictionary │ pages │ dictionary │ pages │ ... a footer made here          a row group for each column chunk

It knows every encoding, and follows thousands of runs in a page faster than Python could.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from ...blocks import TokenArray, pooled
from ...turns import aside
from ..base import ColumnChunk, ColumnLayout
from . import rehost, thrift
from .levels import ByteArray
from .pages import DATA_PAGE, DELTA_BINARY_PACKED, DICTIONARY_PAGE, PLAIN, Page

__all__ = ["HostedFile"]


class HostedFile:
    """A file that is made page by page.

    Args:
        layout: of the column.
        values_bytes: of all pages, at most, and of all dictionaries.
        pages: how many there are at most, dictionaries too.
        row_groups: how many column chunks they are of.
    """

    def __init__(self, layout: ColumnLayout, *, values_bytes: int, pages: int, row_groups: int) -> None:
        self._layout = layout
        capacity = values_bytes + pages * rehost.PAGE_HEADER_BYTES + rehost.FOOTER_BYTES
        capacity += row_groups * rehost.ROW_GROUP_BYTES
        self._memory: ByteArray = pooled(capacity, "uint8").view("uint8")
        self._size = 0
        self._count = 0  # of values
        self._row_groups: list[bytes] = []
        # Of the row group that is being made: where it begins, its data, its values so far, if it has a dictionary.
        self._begin = self._data = self._values = 0
        self._has_dictionary = False
        self._append(rehost.MAGIC)

    def begin(self, entries: TokenArray | None) -> None:
        """A column chunk, and its dictionary, if it has one. Its pages follow."""
        self._end()
        self._begin = self._size
        self._has_dictionary = entries is not None
        if entries is not None:
            self._append(rehost.page_header(DICTIONARY_PAGE, len(entries), PLAIN, entries.nbytes))
            self._append(entries.data.cast("B"))
        self._data = self._size
        self._values = 0

    def add(self, page: Page, count: int, encoded: memoryview, chunk: ColumnChunk) -> None:
        """A page of it, which has ``count`` values.

        Raises:
            DataError: pyarrow would take more memory for it than it can need.
        """
        if page.encoding == DELTA_BINARY_PACKED:
            _check_delta(page, encoded, chunk)
        self._append(rehost.page_header(DATA_PAGE, count, page.encoding, len(encoded)))
        self._append(encoded)
        self._values += count

    def read(self, chunk: ColumnChunk) -> pa.ChunkedArray:
        """All values, as they are stored; there is nothing more to be added.

        Args:
            chunk: that errors name.

        Raises:
            DataError: they cannot be decoded, or are not as many as was said.
        """
        with self._errors(chunk), aside(), self._file() as file:
            column = file.read(use_threads=False).column(0)
        self._check(len(column), chunk)
        return column

    def pieces(self, chunk: ColumnChunk, values: int) -> Iterator[pa.Array]:
        """The same, so many values at a time: whoever narrows them needs no memory for all as they are stored."""
        count = 0
        with self._errors(chunk), self._file() as file:
            batches = file.iter_batches(batch_size=values, use_threads=False)
            while True:
                with aside():
                    batch = next(batches, None)
                if batch is None:
                    break
                count += len(batch)
                yield batch.column(0)
                del batch
        self._check(count, chunk)

    def _file(self) -> pq.ParquetFile:
        self._end()
        schema = rehost.FLAT_SCHEMA[self._layout.physical_type]
        self._append(rehost.file_footer(schema=schema, rows=self._count, row_groups=self._row_groups))
        self._memory.flags.writeable = False
        return pq.ParquetFile(pa.BufferReader(self._memory[: self._size]), pre_buffer=False)

    @contextlib.contextmanager
    def _errors(self, chunk: ColumnChunk) -> Iterator[None]:
        try:
            yield
        except MemoryError:  # pyarrow has an ArrowException for it
            raise
        except (pa.ArrowException, OSError) as error:
            raise chunk.error(f"has values that cannot be decoded, the file is damaged ({error})") from error

    def _check(self, count: int, chunk: ColumnChunk) -> None:
        if count != self._count:
            raise chunk.error(f"has {count:,} values where its levels say {self._count:,}: the file is damaged")

    def _end(self) -> None:
        """The row group is complete, if there is one."""
        if not self._values:
            self._size = self._begin or self._size  # a dictionary without a value
            return
        self._row_groups.append(
            rehost.row_group(
                leaf=rehost.FLAT_LEAF,
                physical_type=self._layout.physical_type,
                codec=0,
                rows=self._values,
                slots=self._values,
                pages_bytes=self._size - self._begin,
                data_offset=self._data - self._begin,
                dictionary_offset=0 if self._has_dictionary else -1,
                first_page=self._begin,
            )
        )
        self._count += self._values
        self._values = 0
        self._begin = self._size

    def _append(self, part: bytes | memoryview) -> None:
        end = self._size + len(part)
        assert end <= len(self._memory)
        self._memory[self._size : end] = memoryview(part)
        self._size = end


def _check_delta(page: Page, encoded: memoryview, chunk: ColumnChunk) -> None:
    """Refuse blocks of more miniblocks than the page can hold: pyarrow allocates a byte for each, unseen."""
    try:
        _, position = thrift.read_varint(encoded, 0)
        miniblocks, _ = thrift.read_varint(encoded, position)
    except thrift.ThriftError as error:
        raise page.error(f"has damaged values ({error})", chunk) from error
    if miniblocks > max(len(encoded), 1024):
        raise page.error(f"has blocks of {miniblocks:,} miniblocks in {len(encoded):,} bytes", chunk)
