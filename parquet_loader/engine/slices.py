"""A window's row groups to the shuffled slices of a range of lanes.

The window's tokens are one stretch; row groups and lanes cut it differently:

    row groups     │      0       │      1       │  2  │      3       │
    lanes          │   0   │   1   │   2   │   3   │   4   │   5   │
    bands          │   A   │   B   │   C   │   D       ...

A *band* is a run of lanes that is cut in one go, as soon as all its tokens are decoded: as many lanes as one row group
holds completely, up to some megabytes, or else the lane across its end with what it takes of the neighbours. A band
that lies in one decoded part is cut from there; the text of others is put together (`BandText`), so that parts need not
be kept.

In a band, document borders and lane borders are merged, so that a document which a lane border falls in becomes two
fragments; one permutation, a lane's documents after another's, then moves all of them by one `take` on a binary view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..blocks import IntArray, TokenArray, permuted, pooled
from ..order.order import Order, Window

__all__ = [
    "Band",
    "BandText",
    "Cut",
    "Slices",
    "Spans",
    "band_limits",
    "cut_band",
    "plan_bands",
    "plan_cut",
    "slice_spans",
]

# Where row groups or slices are tiny, lanes are cut together until a band is worth its Python: a quarter megabyte.
BAND_TOKENS = 1 << 16
# Where row groups are huge, lanes are cut together as long as a band is no larger than this, or one lane.
MOST_BAND_TOKENS = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Lanes that are cut together.

    Attributes:
        first_lane, last_lane: the lanes ``[first_lane, last_lane)``, numbers in the run.
        first_group, last_group: the row groups ``[first_group, last_group)`` they lie in, ordinals in the window.
        begin, end: the tokens ``[begin, end)`` of the window.
    """

    first_lane: int
    last_lane: int
    first_group: int
    last_group: int
    begin: int
    end: int

    @property
    def groups(self) -> range:
        """The row groups' ordinals in the window; some of them may be empty."""
        return range(self.first_group, self.last_group)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Where the slices of one window lie in the lanes' streams.

    Lanes have received numbers of tokens that differ by one at most, before the window and after it, so the slices of
    all lanes are nearly a matrix, of a row for each lane:

        column         0   1   2   ...                  width
        lane 0         ·   x   x   x   x   x   x   x   x
        lane 1         ·   x   x   x   x   x   x   x   x
        lane 2         x   x   x   x   x   x   x   x   ·

    Attributes:
        origin: the stream position of column 0.
        width: columns.
        begins: the stream position that each lane's slice begins at, shape ``(lanes,)``.
        ends: the stream position after each lane's slice, shape ``(lanes,)``.
        changes: the lanes, counted from the first, whose slices begin or end elsewhere than those of the lane before:
            few, whatever the number of lanes.
    """

    origin: int
    width: int
    begins: IntArray
    ends: IntArray
    changes: list[int]

    def stretches(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The lanes ``[first, last)``, counted from the first, in stretches ``[low, high)`` of equal slices."""
        return pairwise([first, *(lane for lane in self.changes if first < lane < last), last])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slices:
    """Shuffled slices of the neighbouring lanes of one band.

    Attributes:
        first: the first lane, counted from the window's first one.
        plane: whose they are; 0 for the tokens.
        rectangles: lanes whose slices are of one length and begin at one position, together: of such lanes
            ``[first, last)`` the position, and the tokens, shape ``(lanes, length)``.
        documents: where the documents and fragments begin in the window's matrix, lane times width plus column, rising;
            with the tokens only.
    """

    first: int
    plane: int = 0
    rectangles: list[tuple[int, int, int, TokenArray]]
    documents: IntArray

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.documents.nbytes + sum(tokens.nbytes for *_, tokens in self.rectangles)


def slice_spans(window: Window, starts: IntArray, lanes: int, first: int, last: int) -> Spans:
    """The spans of the slices of lanes ``[first, last)``, which begin at ``starts`` in the window."""
    begins = window.lane_begins(lanes, first, last)
    ends = begins + np.diff(starts)
    origin = int(begins.min())
    changes = (begins[1:] != begins[:-1]) | (ends[1:] != ends[:-1])
    return Spans(
        origin=origin,
        width=int(ends.max()) - origin,
        begins=begins,
        ends=ends,
        changes=(changes.nonzero()[0] + 1).tolist(),
    )


def band_limits(element_tokens: int) -> tuple[int, int]:
    """How many elements a band has at least, and at most unless it is one lane; see `EngineConfig.element_tokens`."""
    return max(1, BAND_TOKENS // element_tokens), max(1, MOST_BAND_TOKENS // element_tokens)


def plan_bands(starts: IntArray, offsets: IntArray, first_lane: int, element_tokens: int = 1) -> list[Band]:
    """Cut lanes into bands.

    Args:
        starts: where the lanes' slices begin in the window, and where the last ends, shape ``(lanes + 1,)``.
        offsets: where its row groups begin, and where the last ends, shape ``(groups + 1,)``.
        first_lane: the number of the lane that begins at ``starts[0]``.
        element_tokens: of what is counted.
    """
    bands = []
    least, most = band_limits(element_tokens)
    lanes = len(starts) - 1
    lane = 0
    while lane < lanes:
        begin = int(starts[lane])
        group = int(np.searchsorted(offsets, begin, side="right")) - 1
        if group >= len(offsets) - 1:
            break  # only empty slices are left
        reach = max(min(int(offsets[group + 1]), begin + most), begin + least)
        last = max(int(np.searchsorted(starts, reach, side="right")) - 1, lane + 1)
        end = int(starts[last])
        if end > begin:
            last_group = int(np.searchsorted(offsets, end, side="left"))
            bands.append(
                Band(
                    first_lane=first_lane + lane,
                    last_lane=first_lane + last,
                    first_group=group,
                    last_group=last_group,
                    begin=begin,
                    end=end,
                )
            )
        lane = last
    return bands


class BandText:
    """A band's tokens and where its documents begin, put together from parts that come in any order.

    Attributes:
        tokens: shape ``(tokens of the band,)``.
        documents: where documents begin, counted from the band's first token; in no order.
        missing: how many tokens are not there yet.
    """

    def __init__(self, band: Band, dtype: np.dtype[np.integer]) -> None:
        self.tokens: TokenArray = pooled(band.end - band.begin, dtype)
        self.documents: list[IntArray] = []
        self.missing = len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """How a band is cut, whatever plane's.

    Attributes:
        documents: where documents begin in the band, in any order and maybe several times.
        cuts: where its lanes begin, and where the last ends, shape ``(lanes + 1,)``.
        borders: where documents begin and lanes are cut, rising without equals.
        lane_documents: of `borders`, where the lanes' begin, shape ``(lanes + 1,)``.
        permutation: of the documents between them; None where they stay where they are.
    """

    documents: IntArray
    cuts: IntArray
    borders: IntArray
    lane_documents: IntArray
    permutation: IntArray | None


def plan_cut(band: Band, documents: IntArray, *, starts: IntArray, window: Window, order: Order) -> Cut:
    """How a band is cut.

    Args:
        band: which lanes.
        documents: where documents begin in it, in any order and maybe several times; where lanes do, they need not.
        starts: where the band's lanes begin in the window, and where the last ends, shape ``(lanes + 1,)``.
        window: the window.
        order: the run's order.
    """
    cuts = starts - band.begin
    borders = _borders(cuts, documents)
    lane_documents = borders.searchsorted(cuts)
    permutation = None
    if order.shuffle:
        permutation = order.document_order(
            lane_documents.tolist(), epoch=window.epoch, window=window.number, lane=band.first_lane
        )
    return Cut(documents, cuts, borders, lane_documents, permutation)


def cut_band(band: Band, cut: Cut, tokens: TokenArray, *, spans: Spans, first_lane: int, plane: int = 0) -> Slices:
    """The shuffled slices of a band's lanes.

    Args:
        band: which lanes.
        cut: how it is cut.
        tokens: the band's, or another plane's values, shape ``(band.end - band.begin,)``.
        spans: of the window's slices.
        first_lane: the number of their first lane.
        plane: whose they are.
    """
    cuts, lane_documents = cut.cuts, cut.lane_documents
    if cut.permutation is not None:
        begins_at, tokens = permuted(tokens, cut.borders, cut.permutation)
    else:
        begins_at = cut.borders[:-1]
        tokens = tokens.copy()  # a view would keep all of a part alive
    first, last = band.first_lane - first_lane, band.last_lane - first_lane
    rectangles = []
    for low, high in spans.stretches(first, last):
        begin = int(spans.begins[low])
        length = int(spans.ends[low]) - begin
        if length:
            together = tokens[int(cuts[low - first]) : int(cuts[high - first])].reshape(high - low, length)
            rectangles.append((low, high, begin, together))
    if plane:  # its documents are where those of the tokens are
        return Slices(first=first, plane=plane, rectangles=rectangles, documents=begins_at[:0].copy())
    # Where the matrix has the token that is the band's first, if it were each lane's.
    origins = np.arange(first, last) * spans.width
    origins += spans.begins[first:last] - cuts[:-1]
    origins -= spans.origin
    documents = origins.repeat(lane_documents[1:] - lane_documents[:-1])
    documents += begins_at
    return Slices(first=first, rectangles=rectangles, documents=documents)


def _borders(cuts: IntArray, documents: IntArray) -> IntArray:
    """Where a band's documents begin and its lanes are cut, rising without equals."""
    borders = np.concatenate((documents, cuts))
    borders.sort(kind="stable")  # of rising stretches it merges them
    repeated = (borders[1:] == borders[:-1]).nonzero()[0]
    # Empty documents, empty slices, and documents that begin where a lane is cut.
    return np.delete(borders, repeated) if len(repeated) else borders
