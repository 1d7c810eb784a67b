"""Parquet: footers to index entries, column chunks to `TokenPart`s.

footer bytes ──► footer ──► entries ──► FileEntry
chunk bytes ──► pages ──► levels ──► offsets ─┐
                      └─► values ──► tokens ──┴► TokenPart         (rehost frames what pyarrow is to decode,
                                                                    gather is for values of many small chunks)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...storage.base import FileInfo, Storage
from ..base import Counting, FileEntry, Format, impossible_numbers
from ..parts import nothing_beside
from .decode import OpenChunk, decode_cost, decode_together, document_lengths, most_decode_cost, one_part_slots
from .entries import read_entry
from .pages import SLOW_CODECS
from .values import kept_bytes

__all__ = ["PARQUET"]


class _Reader:
    """See `formats.base.EntryReader`: a file's footer tells all there is to know of it."""

    def __init__(self, storage: Storage, files: Sequence[FileInfo], raw_dtype: np.dtype[np.integer] | None) -> None:
        self._storage = storage
        self.files = files

    def together(self, file: FileInfo) -> Sequence[FileInfo]:
        return ()

    def read(
        self, file: FileInfo, column: str | None, counting: Counting | None, aligned: Sequence[str] = ()
    ) -> FileEntry:
        return read_entry(self._storage, file, column, counting, aligned)


class _Parquet:
    name = "parquet"
    reader = staticmethod(_Reader)
    impossible = staticmethod(impossible_numbers)
    beside = staticmethod(nothing_beside)
    decode_cost = staticmethod(decode_cost)
    one_part_slots = staticmethod(one_part_slots)
    most_decode_cost = staticmethod(most_decode_cost)
    kept_bytes = staticmethod(kept_bytes)
    slow_to_unpack = staticmethod(SLOW_CODECS.__contains__)
    open = staticmethod(OpenChunk)
    decode_together = staticmethod(decode_together)
    document_lengths = staticmethod(document_lengths)


PARQUET: Format = _Parquet()
