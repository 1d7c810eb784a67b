"""Rows that are packed already: a stored row goes whole through windows, slices and batches, as one element.

    tokens of a row group     a a a a b b b c c c c d │ d d d         a part ends within d
    elements, padded to 4     │aaaa│bbb·│cccc│        │dddd│          a row that lies in several parts comes by itself

So the arithmetic of the order, the bands and the memory is that of tokens, of which there are fewer and larger ones.
Where rows may be shorter than `RowLayout.width`, an element holds its length behind its ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from ..blocks import AnyArray, IntArray, TokenArray, TokenPart, as_binary
from ..formats.base import ColumnChunk

__all__ = [
    "MOST_ROW_TOKENS",
    "Elements",
    "RowLayout",
    "RowLengthError",
    "RowPart",
    "RowParts",
    "WholeRows",
    "parts_together",
]

# Columns that tell where documents are in rows, if they are aligned with them: numbers that differ from document to
# document, or each token's place in its document.
BOUNDARIES = ("document_ids", "position_ids")

MOST_ROW_TOKENS = 1 << 27  # NumPy's types take less than 2 GiB, and values 8 bytes

Elements = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """What the rows of a set are.

    Attributes:
        seq_len, overlap: they hold ``seq_len + overlap`` ids.
        pad_id: what shorter ones are filled up with; None where there are none.
        ids: the dtype of the ids, which is narrow where they fit, or of what is aligned with them.
        dtype: of an element: the field ``ids`` of shape ``(width,)``, and ``length`` where there is a `pad_id`.
    """

    seq_len: int
    overlap: int
    pad_id: int | None
    ids: np.dtype[Any]
    dtype: np.dtype[np.void] = field(init=False)

    def __post_init__(self) -> None:
        length = [] if self.pad_id is None else [("length", np.int32)]
        object.__setattr__(self, "dtype", np.dtype([("ids", self.ids, (self.width,)), *length]))

    @property
    def width(self) -> int:
        """Ids of a row."""
        return self.seq_len + self.overlap

    def making_bytes(self, itemsize: int) -> int:
        """What making an element of so many bytes holds: it, and what it is padded with. Rows of one length are used
        where they lie.
        """
        return 0 if self.pad_id is None else 2 * itemsize + 3 * 8

    def tokens_of(self, chunk: ColumnChunk, first: int, last: int) -> tuple[int, int]:
        """Among which tokens of a row group its rows ``[first, last)`` lie."""
        first, last = max(0, first), min(last, chunk.rows)
        # Where there is no room for a shorter row, each lies in its place.
        whole = chunk.tokens == chunk.rows * self.width
        return first * self.width if whole else 0, last * self.width

    def wrong_length(self, lengths: IntArray) -> int | None:
        """The first of these lengths that no row has."""
        wrong = lengths > self.width if self.pad_id is not None else lengths != self.width
        return int(wrong.argmax()) if wrong.any() else None

    @property
    def described(self) -> str:
        """How many ids a row has, in words."""
        most = "at most " if self.pad_id is not None else ""
        return f"{most}{self.width:,} ids (seq_len {self.seq_len:,}{' and overlap 1' if self.overlap else ''})"

    def problem(self, row: int, length: int) -> str:
        """What is to be said of a row of a length that no row has."""
        most = f"{self.width:,} (seq_len {self.seq_len:,}{' and overlap 1' if self.overlap else ''})"
        if self.pad_id is None and length < self.width:
            cure = "; give a pad_id to have shorter rows filled up"
        else:
            cure = "; give the seq_len and overlap that the rows were packed for, or pack by tokens"
        return f"row {row:,} of the row group holds {length:,} ids, and rows have {most}{cure}"

    def elements(self, tokens: TokenArray, offsets: IntArray) -> Elements:
        """Rows as elements, shape ``(rows,)``; not to be written to.

        Args:
            tokens: theirs, of the dtype `ids`.
            offsets: where each begins in them, and the last one ends, shape ``(rows + 1,)``.
        """
        if self.pad_id is None:
            return tokens[offsets[0] : offsets[-1]].view(self.dtype)
        count, lengths = len(offsets) - 1, np.diff(offsets)
        missing = np.zeros(count + 1, np.int64)
        np.cumsum(self.width - lengths, out=missing[1:])
        padding = np.full(missing[-1], self.pad_id, self.ids)
        joined = pc.binary_join_element_wise(
            as_binary(tokens, offsets),
            as_binary(padding, missing),
            as_binary(lengths.astype(np.int32), np.arange(count + 1)),
            as_binary(tokens[:0], np.zeros(2, np.int64))[0],
        )
        return np.frombuffer(joined.buffers()[2] or b"", self.dtype, count)

    def unpacked(self, elements: Elements, out: TokenArray, *, ended: npt.NDArray[np.bool_] | None) -> IntArray | None:
        """Write elements to the rows of a batch.

        Args:
            elements: shape ``(rows,)``.
            out: shape ``(rows, width)``.
            ended: which rows are none any more, and nothing but padding, shape ``(rows,)``; None where all are.

        Returns:
            How many ids of each are no padding, shape ``(rows,)``; None where all are.
        """
        out[...] = elements["ids"]
        lengths = None if self.pad_id is None else elements["length"].astype(np.int64)
        if ended is not None and ended.any():
            out[ended] = self.pad_id or 0
            lengths = np.full(len(out), self.width) if lengths is None else lengths
            lengths[ended] = 0
        return None if lengths is None or (lengths == self.width).all() else lengths


class RowLengthError(Exception):
    """A row is of a length that no row has: its row group, and what is to be said of it."""

    def __init__(self, chunk: ColumnChunk, problem: str) -> None:
        super().__init__(problem)
        self.chunk = chunk
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowPart:
    """Whole rows of a row group, or of several together: a `TokenPart` of elements, each of which is a document.

    Attributes:
        layout: of the rows.
        begin: the first one's place.
        tokens, offsets: see `RowLayout.elements`.
    """

    layout: RowLayout
    begin: int
    tokens: TokenArray
    offsets: IntArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def starts(self) -> IntArray:
        """See `TokenPart`."""
        return np.arange(len(self))

    def elements(self, low: int, high: int) -> Elements:
        """Its rows ``[low, high)``."""
        return self.layout.elements(self.tokens, self.offsets[low : high + 1])

    def borders(self, begin: int) -> IntArray:
        """Which rows they are, if the first of them is that one, and how long: a number of each, rising."""
        return np.arange(begin, begin + len(self)) * (self.layout.width + 1) + np.diff(self.offsets)


class RowParts:
    """Decoded parts of a row group to whole rows. What is kept from part to part is no more than a row.

    Args:
        layout: of the rows.
        chunk: the row group.
    """

    def __init__(self, layout: RowLayout, chunk: ColumnChunk) -> None:
        self._layout = layout
        self._chunk = chunk
        self._begun = 0  # rows that have begun
        self._open: TokenArray | None = None  # what there is of the last of them
        self._reached = 0  # tokens

    def of(self, part: TokenPart) -> Iterator[RowPart]:
        """The rows that a part completes."""
        starts, tokens, chunk = part.starts, part.tokens, self._chunk
        if part.begin > self._reached:  # parts before it were left out, where each row lies in its place
            self._begun, self._open = -(-part.begin // self._layout.width), None
        self._reached = part.begin + len(tokens)
        if self._open is not None:
            head = int(starts[0]) if len(starts) else len(tokens)
            self._open = np.concatenate((self._open, tokens[:head]))
            if len(starts):
                yield self._checked(self._begun - 1, self._open, np.array([0, len(self._open)]))
                self._open = None
            else:
                self._refuse_longer()
        if not len(starts):
            return
        offsets, begin = starts, self._begun
        self._begun += len(starts)
        if self._begun == chunk.rows and self._reached == chunk.tokens:
            offsets = np.append(starts, len(tokens))
        else:
            self._open = tokens[starts[-1] :].copy()
            self._refuse_longer()
        if len(offsets) > 1:
            yield self._checked(begin, tokens, offsets)

    def rest(self) -> Iterator[RowPart]:
        """The last row, where it was not known that it was complete."""
        if self._open is not None and (len(self._open) == self._layout.width or self._reached == self._chunk.tokens):
            yield self._checked(self._begun - 1, self._open, np.array([0, len(self._open)]))

    def _refuse_longer(self) -> None:
        assert self._open is not None
        if len(self._open) > self._layout.width:
            problem = self._layout.problem(self._begun - 1, len(self._open))
            raise RowLengthError(self._chunk, problem.replace(" ids,", " ids or more,", 1))

    def _checked(self, begin: int, tokens: TokenArray, offsets: IntArray) -> RowPart:
        lengths = np.diff(offsets)
        wrong = self._layout.wrong_length(lengths)
        if wrong is not None:
            raise RowLengthError(self._chunk, self._layout.problem(begin + wrong, int(lengths[wrong])))
        return RowPart(layout=self._layout, begin=begin, tokens=tokens, offsets=offsets)


def parts_together(layout: RowLayout, part: TokenPart, chunks: Sequence[ColumnChunk]) -> RowPart:
    """The rows of several row groups that were decoded as one part."""
    offsets = np.append(part.starts, len(part.tokens))
    lengths = np.diff(offsets)
    wrong = layout.wrong_length(lengths)
    if wrong is not None:
        row, length = wrong, int(lengths[wrong])
        for chunk in chunks:
            if row < chunk.rows:
                raise RowLengthError(chunk, layout.problem(row, length))
            row -= chunk.rows
    return RowPart(layout=layout, begin=0, tokens=part.tokens, offsets=offsets)


class WholeRows:
    """What rows consist of that were packed already: each is a document, of which it holds the beginning; or those that
    an aligned column tells of.

    Args:
        rows: how many there are.
        lengths: see `RowLayout.unpacked`.
        column: that of `BOUNDARIES` which goes with them, if there is one.
    """

    def __init__(self, rows: int, lengths: IntArray | None, column: str | None) -> None:
        self._rows = rows
        self._lengths = lengths
        self._column = column

    def starts(self, aligned: Mapping[str, AnyArray]) -> tuple[IntArray, IntArray]:
        """See `pack.document_starts`.

        Args:
            aligned: of these rows.
        """
        if self._column is None:
            begins = np.ones((self._rows, 1), np.bool_)
        else:
            ids = aligned[self._column].astype(np.int64)
            begins = np.empty(ids.shape, np.bool_)
            if self._column == "document_ids":
                begins[:, 0] = True
                np.not_equal(ids[:, 1:], ids[:, :-1], out=begins[:, 1:])
            else:
                begins[:, 0] = ids[:, 0] == 0
                np.not_equal(ids[:, 1:], ids[:, :-1] + 1, out=begins[:, 1:])
        if self._lengths is not None:
            begins &= np.arange(begins.shape[1]) < self._lengths[:, None]
        row_splits = np.zeros(self._rows + 1, np.int64)
        begins.sum(axis=1).cumsum(out=row_splits[1:])
        return row_splits, begins.nonzero()[1]
