"""Page checksums of the columns beside the tokens, verified without decoding a page."""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Iterator

import pyarrow.parquet as pq

from ..errors import DataError
from ..formats.base import ColumnChunk, ColumnLayout
from ..formats.parquet.pages import read_page, stored_body
from ..storage.base import FileInfo, Storage
from .rows import open_parquet

__all__ = ["damaged_pages"]

_PIECE_BYTES = 8 << 20  # read at once; a page that is larger is read alone
_HEAD_BYTES = 1 << 20  # more than a page's header takes, with its statistics


def damaged_pages(
    storage: Storage, file: FileInfo, gaps: tuple[tuple[int, int], ...], stop: threading.Event | None = None
) -> list[DataError]:
    """What is wrong with the pages of a file's other columns, if their writer gave checksums; of each column chunk the
    first page that is damaged.

    Args:
        storage, file: where they lie.
        gaps: (start, length) of what lies between the chunks of the token column.
        stop: see `Storage.read`.

    Raises:
        StorageError: it cannot be read.
    """
    found: list[DataError] = []
    try:
        with open_parquet(storage, file) as parquet:
            chunks = _chunks(parquet.metadata, file, gaps)
            while (chunk := next(chunks, None)) is not None:
                try:
                    if not _is_verified(storage, file, chunk, stop):
                        break  # writers give checksums to all pages of a file, or to none
                except DataError as error:
                    found.append(error)
    except (DataError, UnicodeError):
        pass  # columns that pyarrow does not understand are no concern of a loader's
    return found


def _chunks(metadata: pq.FileMetaData, file: FileInfo, gaps: tuple[tuple[int, int], ...]) -> Iterator[ColumnChunk]:
    """The column chunks that lie in gaps, which rise."""
    begins = [begin for begin, _ in gaps]
    for row_group in range(metadata.num_row_groups):
        group = metadata.row_group(row_group)
        for number in range(group.num_columns):
            column = group.column(number)
            first = column.dictionary_page_offset or 0  # which old writers give as 0
            start = first if 0 < first < column.data_page_offset else column.data_page_offset
            length = column.total_compressed_size
            place = bisect.bisect_right(begins, start) - 1
            if length > 0 and place >= 0 and start + length <= sum(gaps[place]):
                yield ColumnChunk(
                    path=file.path,
                    row_group=row_group,
                    layout=_layout(column.path_in_schema),
                    start=start,
                    length=length,
                    rows=group.num_rows,
                    slots=column.num_values,
                    tokens=-1,
                    codec="UNCOMPRESSED",  # no page is unpacked
                    dictionary_offset=-1,
                    data_offset=0,
                )


@functools.lru_cache(maxsize=256)
def _layout(name: str) -> ColumnLayout:
    return ColumnLayout(column=name, physical_type="INT32", signed=True, max_definition_level=0, nullable_element=False)


def _is_verified(storage: Storage, file: FileInfo, chunk: ColumnChunk, stop: threading.Event | None) -> bool:
    """Whether a chunk's pages have checksums, which they match.

    Raises:
        DataError: a page is damaged.
    """

    def read(at: int, length: int) -> memoryview:
        return memoryview(storage.read(file, chunk.start + at, min(length, chunk.length - at), stop))

    window, base, at, number = read(0, _HEAD_BYTES), 0, 0, 0  # enough to see whether there are checksums
    while at < chunk.length:
        if base + len(window) < min(at + _HEAD_BYTES, chunk.length):
            window, base = read(at, _PIECE_BYTES), at
        page = read_page(window, at - base, number, chunk)
        if page.checksum is None:
            return False
        if base + page.end > chunk.length:
            raise page.error(
                f"should end at byte {base + page.end:,}, beyond the chunk's {chunk.length:,} bytes", chunk
            )
        if page.end > len(window):
            begin = at - base
            window, base = read(at, page.end - begin), at
            page = page._replace(start=page.start - begin, end=page.end - begin)
        stored_body(window, page, chunk)
        at, number = base + page.end, number + 1
    return True
