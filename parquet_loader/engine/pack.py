"""Lane slices to rows: every row full, none padded, no token dropped or repeated.

A lane's slices, window after window, are one endless stream of tokens. Row k of a lane is its tokens
``[k * seq_len, (k + 1) * seq_len)``, whatever windows they come from:

    lane 0    │ window 0 ........ │ window 1 .... │ window 2 ........ │
    rows      │ 0    │ 1    │ 2    │ 3    │ 4    │ 5    │ ...

The slices of neighbouring lanes of one length lie one after another, so they are a rectangle of a row for each lane,
and a batch is a few pieces of rectangles put together, whatever the number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..blocks import IntArray, TokenArray
from .slices import Slices, Spans, equal_stretches

__all__ = ["Packer", "Taken", "WindowCursor", "WindowSlices", "document_starts"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowSlices:
    """A window's slices for all of the packer's lanes.

    Attributes:
        rectangles: of lanes ``[first, last)`` the position of their first tokens, and their tokens, shape
            ``(lanes, length)``; lanes rise, and one that gets nothing is in no rectangle.
        common: the positions ``[common[0], common[1])`` of every lane are in its slice.
        spans: where the slices are in the lanes' streams.
        documents: where documents begin in the matrix that `spans` describes, rising.
        held_bytes: what is to be given back to the budget once the slices are used up.
    """

    rectangles: list[tuple[int, int, int, TokenArray]]
    common: tuple[int, int]
    spans: Spans
    documents: IntArray
    held_bytes: int

    @classmethod
    def of(cls, bands: Sequence[Slices], spans: Spans, held_bytes: int) -> WindowSlices:
        """Of all of a window's bands, in the order of their lanes."""
        return cls(
            rectangles=[rectangle for band in bands for rectangle in band.rectangles],
            common=(int(spans.begins.max()), int(spans.ends.min())),
            spans=spans,
            documents=np.concatenate([band.documents for band in bands]),
            held_bytes=held_bytes,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What rows took from a window: enough to tell where documents begin, without a token of it. A batch that is kept
    keeps no window alive.

    Attributes:
        spans: of the window's slices.
        documents: where documents begin in the window's matrix, rising.
        positions: the stream positions of the rows' first columns, shape ``(rows,)``.
        columns: the columns ``[columns[0], columns[1])`` may come from the window; those do that lie in its slices.
        whole: whether all of these columns do, of every row.
    """

    spans: Spans
    documents: IntArray
    positions: IntArray
    columns: tuple[int, int]
    whole: bool

    def moved(self, tokens: int) -> Taken:
        """What rows that begin ``tokens`` later have of it."""
        first, last = self.columns
        columns = max(0, first - tokens), max(0, last - tokens)
        return Taken(self.spans, self.documents, self.positions + tokens, columns, self.whole)


class WindowCursor:
    """The window that rows are taken from; it lets go of those that were used up.

    Args:
        next_window: gives the windows one after another, from one that holds the first position asked for, or from
            one before it.
        ready: whether it would give the next one without waiting.
        release: called with the `held_bytes` of windows that were used up, after rows for which a window was taken,
            since threads begin with the next one then; before that only where rows need a window that is not made,
            maybe for lack of these bytes.
    """

    def __init__(
        self,
        next_window: Callable[[], WindowSlices],
        ready: Callable[[], bool],
        release: Callable[[int], None],
    ) -> None:
        self._next_window = next_window
        self._ready = ready
        self._release = release
        self._window: WindowSlices | None = None
        self._used_bytes = 0  # to be given back
        self._took = False  # a window, since the last rows were made

    def window(self) -> WindowSlices:
        """The window at the cursor. Whoever calls this must not hold the one before: its bytes may be given back."""
        if self._window is None:
            if self._used_bytes and not self._ready():
                self._give_back()
            self._window = self._next_window()
            self._took = True
        return self._window

    def pass_by(self, stops: IntArray) -> None:
        """Go beyond the window where it holds nothing from these positions on, shape ``(lanes,)``."""
        window = self._window
        if window is not None and (window.spans.ends <= stops).all():
            self._used_bytes += window.held_bytes
            self._window = None

    def rows_are_made(self) -> None:
        """Give back what was used up, and let threads begin with what there is room for now."""
        if self._took or self._used_bytes:
            self._give_back()
        self._took = False

    def _give_back(self) -> None:
        self._release(self._used_bytes)
        self._used_bytes = 0


class Packer:
    """Fills rows from windows of slices.

    Args:
        lanes: rows of a batch.
        dtype: of the rows.
        cursor: where the windows come from.
    """

    def __init__(self, lanes: int, dtype: np.dtype[np.integer], cursor: WindowCursor) -> None:
        self._lanes = lanes
        self._dtype = dtype
        self._cursor = cursor
        # The last columns of the rows before, which overlapping rows begin with: their window may be gone by then.
        self._tail: tuple[IntArray, TokenArray, list[Taken]] | None = None

    def rows(
        self, positions: IntArray, seq_len: int, overlap: int = 0, ends: IntArray | None = None
    ) -> tuple[TokenArray, list[Taken]]:
        """The rows at ``positions``, which never go back, and what they consist of.

        Args:
            positions: each lane's position in its stream, shape ``(lanes,)``; not to be changed afterwards.
            seq_len: tokens that the lanes advance by.
            overlap: tokens that rows hold beyond that, and the next rows begin with.
            ends: where the lanes' streams end, shape ``(lanes,)``: rows hold zeros beyond. None for no end.

        Returns:
            A fresh C-contiguous array of shape ``(lanes, seq_len + overlap)``, and what it was taken from.
        """
        length = seq_len + overlap
        stops = positions + length if ends is None else np.minimum(positions + length, ends)
        out = (np.empty if ends is None else np.zeros)((self._lanes, length), self._dtype)
        taken: list[Taken] = []
        filled = 0
        if self._tail is not None:
            tail_positions, columns, tail_taken = self._tail
            if np.array_equal(tail_positions, positions):
                filled = columns.shape[1]
                out[:, :filled] = columns
                taken += tail_taken
        cells = filled * self._lanes
        wanted = out.size if ends is None else int(np.maximum(stops - positions, filled).sum())
        while cells < wanted:
            window = self._cursor.window()
            copied = copy_rows(out, positions, filled, window)
            cells += copied
            whole = copied == self._lanes * (length - filled)
            taken.append(Taken(window.spans, window.documents, positions, (filled, length), whole))
            del window
            self._cursor.pass_by(stops)
        self._cursor.rows_are_made()
        assert cells == wanted  # no cell of a batch is ever left to chance
        if overlap:
            self._tail = (
                positions + seq_len,
                out[:, seq_len:].copy(),
                [moved for piece in taken if (moved := piece.moved(seq_len)).columns[1] > moved.columns[0]],
            )
        return out, taken


def copy_rows(out: TokenArray, positions: IntArray, filled: int, window: WindowSlices) -> int:
    """Copy to ``out``, whose row i begins at ``positions[i]``, what a window has of its columns from ``filled`` on.

    Returns:
        How many cells were filled.
    """
    position, length = int(positions[0]), int(out.shape[1])
    low, high = position + filled, position + length
    uniform = bool((positions == position).all())
    if uniform and window.common[0] <= low < high <= window.common[1]:
        # Nearly every batch is of this kind, and a window may have hundreds of rectangles: no step that need not be.
        target = out[:, filled:]
        for first, last, begin, tokens in window.rectangles:
            target[first:last] = tokens[:, low - begin : high - begin]
        return len(positions) * (high - low)
    spans = window.spans
    lows = np.maximum(positions + filled, spans.begins)
    highs = np.minimum(positions + length, spans.ends)
    cells = 0
    for first, last, begin, tokens in window.rectangles:
        # Lanes that take the same columns are one piece; today that is all of a rectangle.
        rows = slice(first, last)
        for top, bottom in equal_stretches(positions[rows], lows[rows], highs[rows]):
            lane = first + top
            position, low, high = int(positions[lane]), int(lows[lane]), int(highs[lane])
            if low < high:
                columns = tokens[top:bottom, low - begin : high - begin]
                out[lane : first + bottom, low - position : high - position] = columns
                cells += (bottom - top) * (high - low)
    return cells


def document_starts(taken: Sequence[Taken], rows: int) -> tuple[IntArray, IntArray]:
    """Where documents and fragments begin in the rows that consist of `taken`.

    Returns:
        ``(row_splits, columns)``, int64: row i has document starts at ``columns[row_splits[i]:row_splits[i + 1]]``,
        rising. Column 0 is among them only where a document really begins there.
    """
    count_parts, column_parts = [], []
    row = np.arange(rows)
    for piece in taken:
        spans, positions = piece.spans, piece.positions
        first, last = piece.columns
        # Where the rows' columns 0 would be in the matrix, in tokens, as its documents are.
        origins = row * spans.width
        origins += positions - spans.origin
        if piece.whole:  # as nearly always
            low, high = (origins + first if first else origins), origins + last
        else:
            low = np.maximum(first, spans.begins - positions)
            high = np.maximum(np.minimum(last, spans.ends - positions), low)
            low, high = origins + low, origins + high
        begins = piece.documents.searchsorted(low)
        counts = piece.documents.searchsorted(high) - begins
        ends = counts.cumsum()
        at = np.arange(ends[-1])
        at += (begins - ends + counts).repeat(counts)
        columns = piece.documents[at]
        columns -= origins.repeat(counts)
        count_parts.append(counts)
        column_parts.append(columns)
    row_splits = np.zeros(rows + 1, np.int64)
    if not taken:  # rows of nothing but padding
        return row_splits, np.empty(0, np.int64)
    if len(taken) == 1:  # as nearly always
        row_splits[1:] = ends
        return row_splits, column_parts[0]
    np.sum(count_parts, axis=0, dtype=np.int64).cumsum(out=row_splits[1:])
    all_columns = np.concatenate(column_parts)
    all_rows = np.concatenate([row.repeat(counts) for counts in count_parts])
    return row_splits, all_columns[np.lexsort((all_columns, all_rows))]
