"""Lane slices to rows: every row full, none padded, no token dropped or repeated.

A lane's slices, window after window, are one endless text. Row k of a lane delivers the positions
``[k * seq_len, (k + 1) * seq_len)``, whatever windows they come from; within a window the text of a position lies where
`StepBlocks` says:

    windows   │ window 0 ............. │ window 1 ............
    rows      │ 0   │ 1   │ 2   │ 3   │ 4   │ 5   │ ...
    text of   │ 0   │ 2   │ 1   │ 3   │ 4   │ 6   │ ...          3 joins the windows

The slices of neighbouring lanes of one length lie one after another, so they are a rectangle of a row for each lane,
and a batch is a few pieces of rectangles put together, whatever the number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..blocks import AnyArray, IntArray, TokenArray
from ..order.order import StepBlocks
from .slices import Slices, Spans

__all__ = ["EqualRows", "Origins", "Packer", "Taken", "WindowCursor", "WindowSlices", "document_starts", "equal_rows"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowSlices:
    """A window's slices for all of the packer's lanes.

    Attributes:
        rectangles: of each plane, of lanes ``[first, last)`` the text position of their first tokens, and their tokens,
            shape ``(lanes, length)``; lanes rise, and one that gets nothing is in no rectangle.
        common: the text ``[common[0], common[1])`` of every lane is in its slice.
        end: where the last of the slices ends.
        spans: where the slices are in the lanes' texts.
        documents: where documents begin in the matrix that `spans` describes, rising.
        blocks: which text the positions of the window deliver.
        held_bytes: what is to be given back to the budget once the slices are used up.
    """

    rectangles: list[list[tuple[int, int, int, TokenArray]]]
    common: tuple[int, int]
    end: int
    spans: Spans
    documents: IntArray
    blocks: StepBlocks
    held_bytes: int

    @classmethod
    def of(
        cls, bands: Sequence[Slices], planes: int, spans: Spans, blocks: StepBlocks, held_bytes: int
    ) -> WindowSlices:
        """Of all of a window's bands, in the order of their lanes, of so many planes."""
        rectangles: list[list[tuple[int, int, int, TokenArray]]] = [[] for _ in range(planes)]
        for band in bands:
            rectangles[band.plane] += band.rectangles
        return cls(
            rectangles=rectangles,
            common=(int(spans.begins.max()), int(spans.ends.min())),
            end=int(spans.ends.max()),
            spans=spans,
            documents=np.concatenate([band.documents for band in bands]),
            blocks=blocks,
            held_bytes=held_bytes,
        )


# Of these there are some in every batch, and a NamedTuple is made in a third of the time of a frozen dataclass.
class Taken(NamedTuple):
    """What rows took from a window: enough to tell where documents begin, without a token of it. A batch that is kept
    keeps no window alive.

    Attributes:
        spans: of the window's slices.
        documents: where documents begin in the window's matrix, rising.
        lanes: the rows it is of, which are as many lanes; None for all of them.
        origin: the text position that their columns 0 would have.
        columns: the columns ``[columns[0], columns[1])`` may come from the window; those do that lie in its slices.
        whole: whether all of these columns do, of every row.
        joined: whether another stretch of text begins at ``columns[0]`` than the one in the column before.
    """

    spans: Spans
    documents: IntArray
    lanes: IntArray | None
    origin: int
    columns: tuple[int, int]
    whole: bool
    joined: bool

    def moved(self, tokens: int) -> Taken:
        """What rows that begin ``tokens`` later have of it."""
        first, last = self.columns
        columns = max(0, first - tokens), max(0, last - tokens)
        origin = self.origin + tokens
        return Taken(self.spans, self.documents, self.lanes, origin, columns, self.whole, joined=False)


class Origins:
    """What a packer's rows consist of.

    Args:
        taken: their pieces.
        rows: how many rows there are.
    """

    def __init__(self, taken: Sequence[Taken], rows: int) -> None:
        self._taken = taken
        self._rows = rows

    def starts(self, aligned: Mapping[str, AnyArray]) -> tuple[IntArray, IntArray]:
        """See `document_starts`; whatever goes with the rows."""
        return self._starts

    @cached_property
    def _starts(self) -> tuple[IntArray, IntArray]:
        return document_starts(self._taken, self._rows)


class WindowCursor:
    """The windows that rows are taken from; it lets go of those that were used up.

    Nearly always that is one. Lanes that have come to stand apart may be in two, or in more where windows are tiny.

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
        self._windows: list[WindowSlices] = []
        self._used_bytes = 0  # to be given back
        self._took = False  # a window, since the last rows were made

    def window(self, place: int) -> WindowSlices:
        """The window at a place, the first that is not used up being at 0. Whoever calls this must not hold one that
        was: its bytes may be given back.
        """
        if place == len(self._windows):
            if self._used_bytes and not self._ready():
                self._give_back()
            self._windows.append(self._next_window())
            self._took = True
        return self._windows[place]

    @property
    def spans(self) -> list[Spans]:
        """Those of the windows that are here and not used up."""
        return [window.spans for window in self._windows]

    def pass_by(self, stops: IntArray | int) -> bool:
        """Let go of the first window where it holds nothing from these positions on, one or of shape ``(lanes,)``.

        Returns:
            Whether it did.
        """
        window = self._windows[0]
        if isinstance(stops, int):
            if stops < window.end:
                return False
        elif not (window.spans.ends <= stops).all():
            return False
        self._used_bytes += self._windows.pop(0).held_bytes
        return True

    def rows_are_made(self) -> None:
        """Give back what was used up, and let threads begin with what there is room for now."""
        if self._took or self._used_bytes:
            self._give_back()
        self._took = False

    def _give_back(self) -> None:
        self._release(self._used_bytes)
        self._used_bytes = 0


class EqualRows(NamedTuple):
    """Rows that begin and end at the same positions.

    Attributes:
        lanes: which they are, rising; None for all.
        position: of their first columns.
        stop: the position after their last.
    """

    lanes: IntArray | None
    position: int
    stop: int

    def pieces(self, blocks: StepBlocks, filled: int, seq_len: int) -> list[tuple[int, int, int, bool]]:
        """What of the rows' columns from ``filled`` on comes from where, if it comes from the window of ``blocks``:
        (first column, where its text lies, tokens, whether the text is another than that of the column before).

        The tokens beyond ``seq_len`` are those that follow in the text.
        """
        low, high = self.position + filled, min(self.position + seq_len, self.stop)
        if not filled and low // blocks.length == (high - 1) // blocks.length:  # as nearly always
            return [(0, blocks.text_of(low), self.stop - low, False)]
        beyond = self.stop - high
        pieces = blocks.pieces(low, high) if low < high else [(high, blocks.text_of(high - 1) + 1, 0)]
        last = len(pieces) - 1
        return [
            (
                start - self.position,
                text,
                tokens + beyond if number == last else tokens,
                start > self.position and text != blocks.text_of(start - 1) + 1,
            )
            for number, (start, text, tokens) in enumerate(pieces)
        ]

    def goes_on(self, blocks: StepBlocks, seq_len: int) -> bool:
        """Whether the next rows begin with the text that follows these rows' first ``seq_len`` columns."""
        following = self.position + seq_len
        return blocks.text_of(following) == blocks.text_of(following - 1) + 1


class Packer:
    """Fills rows from windows of slices.

    Args:
        lanes: rows of a batch.
        dtypes: of the rows, of each plane.
        cursor: where the windows come from.
    """

    def __init__(self, lanes: int, dtypes: Sequence[np.dtype[Any]], cursor: WindowCursor) -> None:
        self._lanes = lanes
        self._dtypes = dtypes
        self._cursor = cursor
        # The last columns of the rows before, where overlapping rows begin with them: their window may be gone by then.
        self._tail: tuple[IntArray | int, list[TokenArray], list[Taken]] | None = None

    @property
    def spans(self) -> list[Spans]:
        """See `WindowCursor`."""
        return self._cursor.spans

    def rows(
        self,
        positions: IntArray | int,
        seq_len: int,
        overlap: int,
        ends: IntArray | None = None,
        out: Sequence[TokenArray] | None = None,
    ) -> tuple[Sequence[TokenArray], list[Taken]]:
        """The rows at some positions, which never go back, and what they consist of.

        Args:
            positions: each lane's position, shape ``(lanes,)``, not to be changed afterwards; or that of all of them.
            seq_len: tokens that the lanes advance by.
            overlap: tokens that rows hold beyond that, which follow them in the text.
            ends: where the lanes end, shape ``(lanes,)``: rows hold zeros beyond. None for no end.
            out: where to put them, of each plane shape ``(lanes, seq_len + overlap)``; None for fresh C-contiguous
                arrays.

        Returns:
            These arrays, and what they were taken from.
        """
        length = seq_len + overlap
        if out is None:
            out = [np.empty((self._lanes, length), dtype) for dtype in self._dtypes]
        wanted = self._lanes * length
        stops: IntArray | int
        if ends is None and isinstance(positions, int):  # as nearly always
            stops = positions + length
            groups = [EqualRows(None, positions, stops)]
        else:
            positions = np.broadcast_to(np.asarray(positions), self._lanes)
            stops = positions + length
            if ends is not None:
                for each in out:
                    each[:] = 0
                stops = np.minimum(stops, ends)
            groups = equal_rows(positions, stops)
        taken: list[Taken] = []
        filled = 0
        if self._tail is not None:
            tail_positions, columns, tail_taken = self._tail
            if np.all(tail_positions == positions):
                filled = columns[0].shape[1]
                for each, kept in zip(out, columns, strict=True):
                    each[:, :filled] = kept
                taken += tail_taken
        if ends is not None:
            wanted = int(np.maximum(stops - positions, filled).sum())
        cells = filled * self._lanes
        place = 0
        # Lanes that stand apart take no part in this: their windows are kept a row longer.
        going_on = len(groups) == 1 and groups[0].lanes is None
        while cells < wanted:
            window = self._cursor.window(place)
            for group in groups:
                for column, text, tokens, joined in group.pieces(window.blocks, filled, seq_len):
                    copied = _copy_planes(out, window, group.lanes, column=column, text=text, tokens=tokens)
                    cells += copied
                    if copied:
                        rows = self._lanes if group.lanes is None else len(group.lanes)
                        spread = Taken(
                            window.spans,
                            window.documents,
                            group.lanes,
                            text - column,
                            (column, column + tokens),
                            copied == rows * tokens,
                            joined,
                        )
                        taken.append(spread)
                going_on = going_on and (not overlap or group.goes_on(window.blocks, seq_len))
            del window
            # What the next rows begin with is not used up, unless it is kept.
            used = stops if going_on or not overlap else np.minimum(stops, positions + seq_len)
            if place or not self._cursor.pass_by(used):
                place += 1
        self._cursor.rows_are_made()
        assert cells == wanted  # no cell of a batch is ever left to chance
        self._tail = None
        if overlap and going_on:
            self._tail = (
                positions + seq_len,
                [each[:, seq_len:].copy() for each in out],
                [moved for piece in taken if (moved := piece.moved(seq_len)).columns[1] > moved.columns[0]],
            )
        return out, taken


def equal_rows(positions: IntArray, stops: IntArray) -> list[EqualRows]:
    """Rows by where they begin and end; empty ones are left out."""
    if (positions == positions[0]).all() and (stops == stops[0]).all():
        return [EqualRows(None, int(positions[0]), int(stops[0]))]
    pairs, inverse = np.unique(np.stack([positions, stops]), axis=1, return_inverse=True)
    found = enumerate(zip(*pairs.tolist(), strict=True))
    return [EqualRows((inverse == place).nonzero()[0], low, high) for place, (low, high) in found if low < high]


# Not in `Packer.rows`, where a name for a plane's rectangles would keep a window that was used up.
def _copy_planes(
    out: Sequence[TokenArray], window: WindowSlices, lanes: IntArray | None, *, column: int, text: int, tokens: int
) -> int:
    """See `_copy`: of all planes, which have the same shapes."""
    copied = 0
    for each, rectangles in zip(out, window.rectangles, strict=True):
        copied = _copy(each, rectangles, window.common, lanes, column=column, text=text, tokens=tokens)
    return copied


def _copy(
    out: TokenArray,
    rectangles: Sequence[tuple[int, int, int, TokenArray]],
    common: tuple[int, int],
    lanes: IntArray | None,
    *,
    column: int,
    text: int,
    tokens: int,
) -> int:
    """Copy the text ``[text, text + tokens)`` of some lanes, as far as a window has it, to their rows' columns from
    ``column`` on; of one plane.

    Returns:
        How many cells were filled.
    """
    end = text + tokens
    if lanes is None and common[0] <= text and end <= common[1]:
        # Nearly every batch is of this kind, and a window may have hundreds of rectangles: no step that need not be.
        pieces = [slices[:, text - begin : end - begin] for _, _, begin, slices in rectangles]
        np.concatenate(pieces, out=out[:, column : column + tokens], casting="unsafe")
        return len(out) * tokens
    cells = 0
    for first, last, begin, slices in rectangles:
        low, high = max(text, begin), min(end, begin + slices.shape[1])
        if low >= high:
            continue
        here = slices[:, low - begin : high - begin]
        columns = slice(column + low - text, column + high - text)
        if lanes is None:
            out[first:last, columns] = here
            cells += here.size
        else:
            mine = lanes[slice(*lanes.searchsorted((first, last)))]
            if len(mine):
                out[mine, columns] = here[mine - first]
                cells += len(mine) * (high - low)
    return cells


def document_starts(taken: Sequence[Taken], rows: int) -> tuple[IntArray, IntArray]:
    """Where documents and fragments begin in the rows that consist of `taken`.

    Returns:
        ``(row_splits, columns)``, int64: row i has document starts at ``columns[row_splits[i]:row_splits[i + 1]]``,
        rising. Column 0 is among them only where a document really begins there.
    """
    row_parts, column_parts = [], []
    counts = np.zeros(rows, np.int64)
    for piece in taken:
        spans = piece.spans
        first, last = piece.columns
        row = np.arange(rows) if piece.lanes is None else piece.lanes
        # Where the rows' columns 0 would be in the matrix, in tokens, as its documents are.
        origins = row * spans.width
        origins += piece.origin - spans.origin
        if piece.whole:  # as nearly always
            low, high = (origins + first if first else origins), origins + last
        else:
            low = np.maximum(first, spans.begins[row] - piece.origin)
            high = np.maximum(np.minimum(last, spans.ends[row] - piece.origin), low)
            low, high = origins + low, origins + high
        begins = piece.documents.searchsorted(low)
        found = piece.documents.searchsorted(high) - begins
        ends = found.cumsum()
        at = np.arange(ends[-1])
        at += (begins - ends + found).repeat(found)
        columns = piece.documents[at]
        columns -= origins.repeat(found)
        if len(taken) == 1 and piece.lanes is None and not piece.joined:  # as nearly always
            row_splits = np.zeros(rows + 1, np.int64)
            row_splits[1:] = ends
            return row_splits, columns
        counts[row] += found
        row_parts.append(row.repeat(found))
        column_parts.append(columns)
        if piece.joined:
            begun = np.zeros(rows, np.bool_)
            begun[row_parts[-1][columns == first]] = True
            torn = row[~begun[row]]
            counts[torn] += 1
            row_parts.append(torn)
            column_parts.append(np.full(len(torn), first))
    row_splits = np.zeros(rows + 1, np.int64)
    if not row_parts:  # rows of nothing but padding
        return row_splits, np.empty(0, np.int64)
    counts.cumsum(out=row_splits[1:])
    all_columns = np.concatenate(column_parts)
    return row_splits, all_columns[np.lexsort((all_columns, np.concatenate(row_parts)))]
