"""What the lanes' texts consist of, window by window, and which rows deliver them. No token is needed for it, only how
many each document has.

    row of a lane      positions [p, p + seq_len + overlap)
    StepBlocks         ──► stretches of the lane's text
    Window             ──► stretches of the lane's slices of windows
    Order, lengths     ──► documents and fragments: `Fragments`, in the order of the slice

and the other way for a document: from its fragments to the text, to positions.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..blocks import IntArray
from ..engine.config import EngineConfig
from ..engine.pack import equal_rows
from ..order.order import Order, StepBlocks, Window
from ..order.progress import Changes
from .lengths import KnownLengths

__all__ = ["Fragments", "Occurrence", "SourceRows", "Stretches", "occurrences", "stretches_of"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretches:
    """Stretches of documents in rows; arrays of shape ``(stretches,)``, int64.

    Attributes:
        row: which row, by its lane.
        column: its first column.
        tokens: how many.
        group: the row group's number in the index.
        document: the document's number in the row group.
        start: its first token in the document.
    """

    row: IntArray
    column: IntArray
    tokens: IntArray
    group: IntArray
    document: IntArray
    start: IntArray

    def __len__(self) -> int:
        return len(self.row)

    def picked(self, places: IntArray) -> Stretches:
        """Some of them, in this order."""
        return Stretches(**{name: getattr(self, name)[places] for name in _NAMES})

    @classmethod
    def of(cls, parts: list[Stretches]) -> Stretches:
        """One after another."""
        none: list[IntArray] = [np.empty(0, np.int64)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts] or none) for name in _NAMES})


_NAMES = tuple(each.name for each in fields(Stretches))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fragments:
    """The documents and fragments that the slices of some lanes in a window consist of, in the order of the slices.

    Attributes:
        lanes: the lanes, rising, shape ``(lanes,)``.
        begins: where their slices begin in their texts, shape ``(lanes,)``.
        bases: where their slices begin if all of these are put one after another, shape ``(lanes + 1,)``.
        at: where each fragment begins so, rising, shape ``(fragments + 1,)``.
        group: the row group it is of, shape ``(fragments,)``; as all below.
        document: its document's number in the row group.
        start: its first token in the document.
    """

    lanes: IntArray
    begins: IntArray
    bases: IntArray
    at: IntArray
    group: IntArray
    document: IntArray
    start: IntArray

    @classmethod
    def of(cls, order: Order, window: Window, lanes: IntArray, known: KnownLengths | _Rows) -> Fragments:
        """Those of some lanes of a window.

        Args:
            order: the run's.
            window: the window.
            lanes: rising, at least one.
            known: how long documents are.
        """
        first = int(lanes[0])
        starts = window.slice_starts(order.lanes, first, int(lanes[-1]) + 1)
        lows, highs = starts[lanes - first], starts[lanes - first + 1]
        groups, begins = _documents(window, lows, highs, known)
        # Documents rise, and those of a lane are all there, so that they are neighbours.
        some = highs > lows
        firsts = np.where(some, begins.begin.searchsorted(lows, side="right") - 1, 0)
        counts = np.where(some, begins.begin.searchsorted(highs) - firsts, 0)
        splits = _before(counts)
        places = np.arange(splits[-1]) + (firsts - splits[:-1]).repeat(counts)
        lane = np.arange(len(lanes)).repeat(counts)
        if order.shuffle:
            permuted = _document_order(order, window, lanes, splits)
            places, lane = places[permuted], lane[permuted]
        low = np.maximum(begins.begin[places], lows[lane])
        high = np.minimum(begins.end[places], highs[lane])
        return cls(
            lanes=lanes,
            begins=(window.before + lanes) // order.lanes,
            bases=_before(highs - lows),
            at=_before(high - low),
            group=groups[begins.group[places]],
            document=begins.number[places],
            start=low - begins.begin[places],
        )

    def cut(self, place: IntArray, low: IntArray, tokens: IntArray, row: IntArray, column: IntArray) -> Stretches:
        """What stretches of the slices consist of.

        Args:
            place: of each stretch its lane, a place in `lanes`; shape ``(stretches,)``, as all below.
            low: where it begins in the lane's text.
            tokens: how many.
            row, column: where it comes.
        """
        begin = self.bases[place] + low - self.begins[place]
        firsts = self.at.searchsorted(begin, side="right") - 1
        counts = self.at.searchsorted(begin + tokens) - firsts
        splits = _before(counts)
        fragment = np.arange(splits[-1]) + (firsts - splits[:-1]).repeat(counts)
        first, last = begin.repeat(counts), (begin + tokens).repeat(counts)
        lows = np.maximum(self.at[fragment], first)
        return Stretches(
            row=row.repeat(counts),
            column=column.repeat(counts) + lows - first,
            tokens=np.minimum(self.at[fragment + 1], last) - lows,
            group=self.group[fragment],
            document=self.document[fragment],
            start=self.start[fragment] + lows - self.at[fragment],
        )


class _Documents(NamedTuple):
    """Documents that hold tokens, in the order of storage within a window; arrays of shape ``(documents,)``.

    Attributes:
        begin, end: their tokens in the window.
        group: their row groups, places among those needed.
        number: in the row group.
    """

    begin: IntArray
    end: IntArray
    group: IntArray
    number: IntArray


def _documents(
    window: Window, lows: IntArray, highs: IntArray, known: KnownLengths | _Rows
) -> tuple[IntArray, _Documents]:
    """The row groups of a window that hold its tokens ``[low, high)`` of any stretch, and their documents."""
    some = highs > lows
    borders = np.zeros(len(window.offsets), np.int64)
    np.add.at(borders, window.offsets.searchsorted(lows[some], side="right") - 1, 1)
    np.add.at(borders, window.offsets.searchsorted(highs[some]), -1)
    needed = ((borders.cumsum()[:-1] > 0) & (np.diff(window.offsets) > 0)).nonzero()[0]
    groups = window.groups[needed]
    of_each = known.of(groups)
    counts = np.array([len(each) for each in of_each], np.int64)
    lengths = np.concatenate([np.empty(0, np.int64), *of_each])
    splits, sums = _before(counts), _before(lengths)
    begin = sums[:-1] + (window.offsets[needed] - sums[splits[:-1]]).repeat(counts)
    number = np.arange(len(lengths)) - splits[:-1].repeat(counts)
    held = lengths > 0
    group = np.arange(len(groups)).repeat(counts)
    return groups, _Documents(begin[held], (begin + lengths)[held], group[held], number[held])


def _document_order(order: Order, window: Window, lanes: IntArray, splits: IntArray) -> IntArray:
    """The order of fragments within the lanes, whose fragments lie between these splits."""
    permuted = []
    cuts = [0, *(np.flatnonzero(np.diff(lanes) > 1) + 1).tolist(), len(lanes)]
    for low, high in pairwise(cuts):  # lanes that are neighbours
        borders = (splits[low : high + 1] - splits[low]).tolist()
        lane = int(lanes[low])
        found = order.document_order(borders, epoch=window.epoch, window=window.number, lane=lane)
        permuted.append(found + splits[low])
    return np.concatenate(permuted)


def _before(counts: IntArray) -> IntArray:
    """The sums of the counts before each, and of all of them: shape ``(counts + 1,)``."""
    sums = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=sums[1:])
    return sums


class SourceRows(NamedTuple):
    """Rows of one source.

    Attributes:
        config: of the source.
        lengths: from which C on its windows are permuted in rows of how many tokens.
        lanes: of each row, shape ``(rows,)``, rising.
        positions: of its first column, shape ``(rows,)``.
        stops: the position after its last one, shape ``(rows,)``.
    """

    config: EngineConfig
    lengths: Changes
    lanes: IntArray
    positions: IntArray
    stops: IntArray


def _blocks_of(order: Order, lengths: Changes, window: Window) -> StepBlocks:
    place = bisect.bisect_right(lengths, window.before, key=lambda change: change[0]) - 1
    return order.step_blocks(window, lengths[place][1])


def stretches_of(rows: SourceRows, *, seq_len: int, columns: tuple[int, int], known: KnownLengths | _Rows) -> Stretches:
    """What some columns of rows consist of.

    Args:
        rows: which.
        seq_len: tokens that they advance by; those beyond follow in the text.
        columns: the columns ``[columns[0], columns[1])``.
        known: how long documents are.
    """
    order = rows.config.order
    if rows.config.rows is not None:
        assert isinstance(known, KnownLengths)
        return _whole_rows(rows, columns, known)
    parts = []
    for window in _windows_of(rows, order):
        found = list(_in_window(rows, window, seq_len, columns))
        if not found:
            continue
        row, column, low, tokens = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        lanes, place = np.unique(rows.lanes[row], return_inverse=True)
        fragments = Fragments.of(order, window, lanes, known)
        parts.append(fragments.cut(place, low, tokens, rows.lanes[row], column))
    return Stretches.of(parts)


class _Rows:
    """How many elements the documents of a set have that is packed by rows, as `KnownLengths`: each is one."""

    def __init__(self, config: EngineConfig) -> None:
        self._rows = config.index.rows

    def of(self, groups: IntArray) -> list[IntArray]:
        """See `KnownLengths`."""
        return [np.ones(rows, np.int64) for rows in self._rows[groups].tolist()]


def _whole_rows(rows: SourceRows, columns: tuple[int, int], known: KnownLengths) -> Stretches:
    """`stretches_of` rows that are packed already: each is a document."""
    config, unit = rows.config, rows.config.order.unit
    assert config.rows is not None
    there = rows.stops > rows.positions
    begins = rows.positions // unit
    elements = SourceRows(replace(config, rows=None), ((0, 1),), rows.lanes[there], begins[there], begins[there] + 1)
    found = stretches_of(elements, seq_len=1, columns=(0, 1), known=_Rows(config))
    lengths = np.full(len(found), config.rows.width)
    if config.rows.pad_id is not None:
        groups, place = np.unique(found.group, return_inverse=True)
        lengths = np.concatenate([*known.of(groups), lengths[:0]])[
            _before(config.index.rows[groups])[place] + found.document
        ]
    ends = np.minimum(lengths, columns[1])
    column = np.full(len(found), columns[0])
    found = replace(found, column=column, tokens=ends - column, start=column)
    return found.picked((found.tokens > 0).nonzero()[0])


def _windows_of(rows: SourceRows, order: Order) -> Iterator[Window]:
    """The windows that rows lie in, from the first to the last."""
    if not (rows.stops > rows.positions).any():
        return
    for window in order.windows(*order.earliest(rows.positions, rows.lanes)):
        if ((window.before + rows.lanes) // order.lanes >= rows.stops).all():
            return
        yield window


def _in_window(
    rows: SourceRows, window: Window, seq_len: int, columns: tuple[int, int]
) -> Iterator[tuple[IntArray, IntArray, IntArray, IntArray]]:
    """Which stretches of the rows' columns come from where in the texts, of one window's slices: (place among the rows,
    first column, where the text lies, tokens) of each.
    """
    order = rows.config.order
    blocks = _blocks_of(order, rows.lengths, window)
    begins = (window.before + rows.lanes) // order.lanes
    ends = (window.before + window.tokens + rows.lanes) // order.lanes
    for equal in equal_rows(rows.positions, rows.stops):
        places = np.arange(len(rows.lanes)) if equal.lanes is None else equal.lanes
        for column, text, tokens, _ in equal.pieces(blocks, 0, seq_len):
            first, last = max(column, columns[0]), min(column + tokens, columns[1])
            low = np.maximum(text - column + first, begins[places])
            high = np.minimum(text - column + last, ends[places])
            here = (low < high).nonzero()[0]
            if len(here):
                low = low[here]
                yield places[here], low - (text - column), low, high[here] - low


class Occurrence(NamedTuple):
    """A stretch of positions that deliver a stretch of a document.

    Attributes:
        epoch: of the set.
        lane: the lane.
        position: the first one.
        tokens: how many there are.
        text: where they lie in the lane's text.
        first, last: the part ``[first, last)`` of that text, and of the token after it, that is the document's.
        start: which token of the document is at ``first``.
    """

    epoch: int
    lane: int
    position: int
    tokens: int
    text: int
    first: int
    last: int
    start: int


def occurrences(
    config: EngineConfig, lengths: Changes, group: int, document: int, *, epoch: int, known: KnownLengths
) -> Iterator[Occurrence]:
    """Where a document comes in an epoch, by position in each lane. With it the token before each fragment: where that
    is the last of a row that has another token beyond, this one is the fragment's first.

    Args:
        config: of the set.
        lengths: see `SourceRows`.
        group, document: the row group's number in the index, and the document's in it.
        epoch: of the set.
        known: how long documents are.
    """
    order = config.order
    window = order.window_of(group, epoch)
    (its,) = known.of(np.array([group]))
    if config.rows is not None:
        if its[document]:
            yield _of_row(config, window, group, document, int(its[document]))
        return
    begin = int(window.offsets[(window.groups == group).argmax()]) + int(its[:document].sum())
    end = begin + int(its[document])
    if begin == end:
        return
    starts = window.slice_starts(order.lanes, 0, order.lanes)
    lanes = np.arange(starts.searchsorted(begin, side="right") - 1, starts.searchsorted(end))
    fragments = Fragments.of(order, window, lanes, known)
    positions = _blocks_of(order, lengths, window).inverse()
    for place in np.flatnonzero((fragments.group == group) & (fragments.document == document)).tolist():
        at, start = int(fragments.at[place]), int(fragments.start[place])
        lane = int(fragments.bases.searchsorted(at, side="right")) - 1
        begins = int(fragments.begins[lane])
        first = begins + at - int(fragments.bases[lane])
        last = first + int(fragments.at[place + 1]) - at
        # Where the fragment is the slice's first one, the token before it is the last of another window, and in place.
        pieces = positions.pieces(max(first - 1, begins), last)
        if first == begins and first:
            pieces = [(first - 1, first - 1, 1), *pieces]
        for text, position, tokens in pieces:
            yield Occurrence(epoch, int(lanes[lane]), position, tokens, text, first, last, start)


def _of_row(config: EngineConfig, window: Window, group: int, row: int, tokens: int) -> Occurrence:
    """Where a row of so many tokens comes, of a set that is packed by rows."""
    order = config.order
    element = int(window.offsets[(window.groups == group).argmax()]) + row
    starts = window.slice_starts(order.lanes, 0, order.lanes)
    lane = int(starts.searchsorted(element, side="right")) - 1
    fragments = Fragments.of(order, window, np.array([lane]), _Rows(config))
    place = int(((fragments.group == group) & (fragments.document == row)).argmax())
    position = (int(fragments.begins[0]) + int(fragments.at[place])) * order.unit
    return Occurrence(window.epoch, lane, position, order.unit, position, position, position + tokens, 0)
