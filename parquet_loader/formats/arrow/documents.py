"""Where documents lie among a column's values: offsets, sizes and null bits of a record batch.

    [5 6] null [7]
    list         offsets 0 2 4 5                 validity 1 0 1   values 5 6 · · 7   begins 0 · 4   lengths 2 0 1
    list_view    offsets 3 0 0   sizes 2 0 1     validity 1 0 1   values 7 · · 5 6   begins 3 · 0   lengths 2 0 1

A null list is an empty document, whatever lies beneath it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...blocks import IntArray
from .buffers import Bytes, DamagedBufferError
from .columns import list_size

__all__ = ["OFFSET_BYTES", "DocumentReader", "bits"]

OFFSET_BYTES = {"list": 4, "large_list": 8, "list_view": 4, "large_list_view": 8}  # fixed_size_list has none


def bits(data: memoryview, begin: int, end: int) -> npt.NDArray[np.bool_]:
    """Bits from ``begin`` to ``end`` of a bitmap, shape ``(end - begin,)``."""
    unpacked = np.unpackbits(np.frombuffer(data, np.uint8), count=end, bitorder="little")
    return unpacked[begin:].view(np.bool_)


class DocumentReader:
    """Reads where documents lie, some rows after others.

    Args:
        kind: of the list, see `ColumnLayout.kind`.
        elements: how many values there are.
        presence: bitmaps; a document whose bit is not set in all of them is empty.
        offsets: of the lists; None for lists of a fixed size.
        sizes: of list views.

    Attributes:
        end: no document that was read goes on behind this place among the values.
    """

    def __init__(
        self, kind: str, elements: int, presence: Sequence[Bytes], offsets: Bytes | None, sizes: Bytes | None
    ) -> None:
        self._size = list_size(kind)
        self._width = OFFSET_BYTES.get(kind, 0)
        self._elements = elements
        self._presence = presence
        self._offsets, self._sizes = offsets, sizes
        self._row = 0
        self.end = 0
        self._edge: IntArray = np.empty(0, np.int64)  # the offset where the rows so far end

    @property
    def in_one_piece(self) -> bool:
        """Whether no value lies between documents, whatever the numbers are."""
        return not self._presence and self._sizes is None

    def read(self, rows: int) -> tuple[IntArray, IntArray]:
        """Where the next documents begin among the values, and how long they are; each of shape ``(rows,)``. Where an
        empty one begins means nothing.

        Args:
            rows: how many; one at least, and a multiple of 8, but for the last ones.

        Raises:
            DamagedBufferError: they do not lie among the values, or the buffers are damaged.
        """
        first = self._row
        self._row += rows
        if self._sizes is not None:
            begins, lengths = self._numbers(self._offsets, first, rows), self._numbers(self._sizes, first, rows)
        elif self._offsets is not None:
            offsets = self._list_offsets(first, rows)
            begins, lengths = offsets[:-1], np.diff(offsets)
        else:
            if self._row * self._size > self._elements:
                raise DamagedBufferError(f"has {self._elements:,} values for lists of {self._size:,}")
            begins = np.arange(first, self._row, dtype=np.int64) * self._size
            lengths = np.full(rows, self._size, np.int64)
        if self._sizes is None:
            self.end = int(begins[-1] + lengths[-1])
        for bitmap in self._presence:
            present = bits(bitmap.take(first // 8, (self._row + 7) // 8), 0, rows)
            lengths = np.where(present, lengths, 0)
        if self._sizes is not None:
            self._check(begins, lengths, first)
            self.end = max(self.end, int(np.where(lengths > 0, begins + lengths, 0).max()))
        return begins, lengths

    def _numbers(self, source: Bytes | None, first: int, count: int) -> IntArray:
        assert source is not None
        data = source.take(first * self._width, (first + count) * self._width)
        return np.frombuffer(data, f"<i{self._width}").astype(np.int64)

    def _list_offsets(self, first: int, rows: int) -> IntArray:
        if first:
            offsets = np.concatenate((self._edge, self._numbers(self._offsets, first + 1, rows)))
        else:
            offsets = self._numbers(self._offsets, 0, rows + 1)
        falls = offsets[1:] < offsets[:-1]
        if offsets[0] < 0 or offsets[-1] > self._elements or falls.any():
            row = first + (int(falls.argmax()) if falls.any() else 0 if offsets[0] < 0 else rows - 1)
            raise DamagedBufferError(
                f"has offsets that fall, or lead out of its {self._elements:,} values, at row {row}"
            )
        self._edge = offsets[-1:].copy()
        return offsets

    def _check(self, begins: IntArray, lengths: IntArray, first: int) -> None:
        """Refuse views that do not lie among the values."""
        wrong = (lengths < 0) | (lengths > self._elements)
        wrong |= (lengths > 0) & ((begins < 0) | (begins > self._elements - np.clip(lengths, 0, self._elements)))
        if wrong.any():
            raise DamagedBufferError(
                f"has a list that leads out of its {self._elements:,} values, at row {first + int(wrong.argmax())}"
            )
