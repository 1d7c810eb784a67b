"""Lane slices to rows: every row full, none padded, no token dropped or repeated.

A lane's slices, window after window, are one endless stream of tokens. Row k of a lane is its tokens
``[k * seq_len, (k + 1) * seq_len)``, whatever windows they come from:

    lane 0    │ window 0 ........ │ window 1 .... │ window 2 ........ │
    rows      │ 0    │ 1    │ 2    │ 3    │ 4    │ 5    │ ...

The slices of neighbouring lanes that begin and end at the same position lie one after another in memory, so they are a
matrix: (lanes, tokens), column j the token at position ``begin + j`` of each lane's stream. A batch copies a few such
rectangles, whatever the number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .chunk import IntArray, TokenArray
from .order import Window
from .slices import LaneSlices

__all__ = ["LaneRun", "Packer", "Span", "WindowSlices", "document_starts", "lane_runs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneRun:
    """Neighbouring lanes whose slices of one window begin and end at the same position.

    Attributes:
        first: the first lane, counted from the first of the packer's lanes.
        begin: the stream position of column 0.
        matrix: the slices, shape ``(lanes, length)``, C-contiguous.
        documents: where documents begin in ``matrix.ravel()``, rising.
    """

    first: int
    begin: int
    matrix: TokenArray
    documents: IntArray

    @property
    def last(self) -> int:
        """One past the last lane."""
        return self.first + len(self.matrix)

    @property
    def end(self) -> int:
        """The stream position after the last column."""
        return self.begin + int(self.matrix.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowSlices:
    """A window's slices for all of the packer's lanes.

    Attributes:
        runs: covering every lane once, rising.
        ends: the stream position after each lane's slice, shape ``(lanes,)``.
        held_bytes: what is to be given back to the budget once the slices are used up.
    """

    runs: tuple[LaneRun, ...]
    ends: IntArray
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """A rectangle of a batch and the document starts of the run it came from, without the run's tokens: a batch that
    is kept keeps no window alive.

    Attributes:
        first: the first row.
        rows: rows.
        column: the first column.
        length: columns.
        documents: where documents begin in the run, counted in tokens, rising.
        width: columns of the run.
        run_row: the first row in the run.
        run_column: the first column in the run.
    """

    first: int
    rows: int
    column: int
    length: int
    documents: IntArray
    width: int
    run_row: int
    run_column: int


def lane_runs(parts: Sequence[LaneSlices], window: Window, lanes: int, first: int, last: int) -> tuple[LaneRun, ...]:
    """The slices of one window for lanes ``[first, last)``, which `parts` hold in order, as runs.

    Lanes that receive nothing are in no run.
    """
    begins = window.lane_begins(lanes, first, last)
    runs = []
    for part in parts:
        lengths = np.diff(part.starts)
        begin = begins[part.first_lane - first : part.first_lane - first + len(lengths)]
        changes = np.flatnonzero((lengths[1:] != lengths[:-1]) | (begin[1:] != begin[:-1])) + 1
        for low, high in zip([0, *changes.tolist()], [*changes.tolist(), len(lengths)], strict=True):
            length = int(lengths[low])
            if not length:
                continue
            start, stop = int(part.starts[low]), int(part.starts[high])
            inside = part.documents[np.searchsorted(part.documents, start) : np.searchsorted(part.documents, stop)]
            runs.append(
                LaneRun(
                    first=part.first_lane - first + low,
                    begin=int(begin[low]),
                    matrix=part.tokens[start:stop].reshape(high - low, length),
                    documents=inside - start if start else inside,
                )
            )
    return tuple(runs)


class Packer:
    """Fills rows from windows of slices.

    Args:
        lanes: rows of a batch.
        dtype: of the rows.
        next_window: gives the windows one after another, from one that holds the first position asked for, or from
            one before it.
        release: called with a window's `held_bytes` when the last of its tokens has been copied.
    """

    def __init__(
        self,
        lanes: int,
        dtype: np.dtype[np.integer],
        next_window: Callable[[], WindowSlices],
        release: Callable[[int], None],
    ) -> None:
        self._lanes = lanes
        self._dtype = dtype
        self._next_window = next_window
        self._release = release
        self._window: WindowSlices | None = None
        # The last columns of the rows before, which overlapping rows begin with: their window may be gone by then.
        self._tail: tuple[IntArray, TokenArray, list[Span]] | None = None

    def rows(self, positions: IntArray, seq_len: int, overlap: int = 0) -> tuple[TokenArray, list[Span]]:
        """The rows at ``positions``, which never go back, and the spans they consist of.

        Args:
            positions: each lane's position in its stream, shape ``(lanes,)``.
            seq_len: tokens that the lanes advance by.
            overlap: tokens that rows hold beyond that, and the next rows begin with.

        Returns:
            A fresh C-contiguous array of shape ``(lanes, seq_len + overlap)``, and its spans.
        """
        length = seq_len + overlap
        out = np.empty((self._lanes, length), self._dtype)
        spans: list[Span] = []
        filled = 0
        if self._tail is not None:
            at, columns, tail_spans = self._tail
            if np.array_equal(at, positions):
                filled = columns.shape[1]
                out[:, :filled] = columns
                spans += tail_spans
        stops = positions + length
        while True:
            if self._window is None:
                self._window = self._next_window()
            spans += copy_runs(out, positions, filled, self._window.runs)
            done = bool((self._window.ends >= stops).all())
            if (self._window.ends <= stops).all():
                held, self._window = self._window.held_bytes, None
                self._release(held)
            if done:
                break
        # No cell of a batch is ever left to chance: the tail's columns and the spans are all of it.
        filled_by_tail = filled * self._lanes
        assert filled_by_tail + sum(s.rows * s.length for s in spans if s.column >= filled) == out.size
        if overlap:
            kept = [cut for span in spans if (cut := _columns_from(span, seq_len)) is not None]
            self._tail = (positions + seq_len, out[:, seq_len:].copy(), kept)
        return out, spans


def copy_runs(out: TokenArray, positions: IntArray, filled: int, runs: Sequence[LaneRun]) -> list[Span]:
    """Copy to ``out``, whose row i begins at ``positions[i]``, what ``runs`` hold of its columns from ``filled`` on."""
    length = out.shape[1]
    spans = []
    uniform = bool((positions == positions[0]).all())
    for run in runs:
        # Lanes of a run that are at the same position are one rectangle; today that is all of them.
        steps = [(run.first, run.last)] if uniform else [(lane, lane + 1) for lane in range(run.first, run.last)]
        for first, last in steps:
            position = int(positions[first])
            low = max(position + filled, run.begin)
            high = min(position + length, run.end)
            if low >= high:
                continue
            rows = slice(first - run.first, last - run.first)
            out[first:last, low - position : high - position] = run.matrix[rows, low - run.begin : high - run.begin]
            spans.append(
                Span(
                    first=first,
                    rows=last - first,
                    column=low - position,
                    length=high - low,
                    documents=run.documents,
                    width=run.matrix.shape[1],
                    run_row=first - run.first,
                    run_column=low - run.begin,
                )
            )
    return spans


def _columns_from(span: Span, column: int) -> Span | None:
    """The part of a span at ``column`` and after it, moved to begin at column 0."""
    skipped = max(0, column - span.column)
    if skipped >= span.length:
        return None
    return replace(
        span,
        column=span.column + skipped - column,
        length=span.length - skipped,
        run_column=span.run_column + skipped,
    )


def document_starts(spans: Sequence[Span], rows: int) -> tuple[IntArray, IntArray]:
    """Where documents and fragments begin in the rows that consist of `spans`.

    Returns:
        ``(row_splits, columns)``, int64: row i has document starts at ``columns[row_splits[i]:row_splits[i + 1]]``,
        rising. Column 0 is among them only where a document really begins there.
    """
    row_parts, column_parts = [], []
    for span in spans:
        row_begin = (span.run_row + np.arange(span.rows, dtype=np.int64)) * span.width + span.run_column
        low = np.searchsorted(span.documents, row_begin)
        counts = np.searchsorted(span.documents, row_begin + span.length) - low
        row = np.repeat(np.arange(span.rows), counts)
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)
        row_parts.append(row + span.first)
        column_parts.append(span.documents[place] - row_begin[row] + span.column)
    all_rows = np.concatenate(row_parts) if row_parts else np.empty(0, np.int64)
    all_columns = np.concatenate(column_parts) if column_parts else np.empty(0, np.int64)
    order = np.lexsort((all_columns, all_rows))
    row_splits = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(all_rows, minlength=rows), out=row_splits[1:])
    return row_splits, all_columns[order]
