"""A window's row groups to the shuffled slices of a range of lanes.

The window's tokens are one stretch; row groups and lanes cut it at different places:

    row groups     │      0       │      1       │  2  │      3       │
    lanes          │   0   │   1   │   2   │   3   │   4   │   5   │
    parts          │   A   │   B   │   C   │   D       ...

A *part* is a run of lanes that is cut in one go, as soon as the row groups that it lies in are decoded: as many lanes
as one row group holds whole, or else the lane across its end with what it takes of the neighbours. Row groups are
released when the last part that lies in them is cut.

In a part, document borders and lane borders are merged, so that a document which a lane border falls in becomes two
fragments; one permutation, a lane's documents after another's, then moves all of them by one `take` on a binary view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .chunk import IntArray, TokenArray, TokenBlock
from .decode import as_binary
from .order import Order, Window
from .pages import as_arrow

__all__ = ["LaneSlices", "Part", "cut_part", "plan_parts"]

# Where row groups or slices are tiny, lanes are cut together until a part is worth its Python: a quarter megabyte.
PART_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Lanes that are cut together.

    Attributes:
        first_lane, last_lane: the lanes ``[first_lane, last_lane)``, numbers in the run.
        first_group, last_group: the row groups ``[first_group, last_group)`` they lie in, places in the window.
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
        """The row groups' places in the window; some of them may be empty."""
        return range(self.first_group, self.last_group)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneSlices:
    """Shuffled slices of the neighbouring lanes of one part.

    Attributes:
        first_lane: the first lane's number in the run.
        tokens: the slices, one lane after another, shape ``(tokens,)``.
        starts: shape ``(lanes + 1,)``: lane ``first_lane + k`` has ``tokens[starts[k]:starts[k + 1]]``.
        documents: where the documents and fragments begin in `tokens`, rising, shape ``(documents,)``.
    """

    first_lane: int
    tokens: TokenArray
    starts: IntArray
    documents: IntArray

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.tokens.nbytes + self.starts.nbytes + self.documents.nbytes


def plan_parts(starts: IntArray, offsets: IntArray, first_lane: int) -> list[Part]:
    """Cut lanes into parts.

    Args:
        starts: where the lanes' slices begin in the window, and where the last ends, shape ``(lanes + 1,)``.
        offsets: where its row groups begin, and where the last ends, shape ``(groups + 1,)``.
        first_lane: the number of the lane that begins at ``starts[0]``.
    """
    parts = []
    lanes = len(starts) - 1
    lane = 0
    while lane < lanes:
        begin = int(starts[lane])
        group = int(np.searchsorted(offsets, begin, side="right")) - 1
        if group >= len(offsets) - 1:
            break  # only empty slices are left
        reach = max(int(offsets[group + 1]), begin + PART_TOKENS)
        last = max(int(np.searchsorted(starts, reach, side="right")) - 1, lane + 1)
        end = int(starts[last])
        if end > begin:
            last_group = int(np.searchsorted(offsets, end, side="left"))
            parts.append(
                Part(
                    first_lane=first_lane + lane,
                    last_lane=first_lane + last,
                    first_group=group,
                    last_group=last_group,
                    begin=begin,
                    end=end,
                )
            )
        lane = last
    return parts


def cut_part(
    part: Part, starts: IntArray, window: Window, order: Order, blocks: Mapping[int, TokenBlock]
) -> LaneSlices:
    """The shuffled slices of a part's lanes.

    Args:
        part: which lanes.
        starts: where the part's lanes begin in the window, and where the last ends, shape ``(lanes + 1,)``.
        window: the window.
        order: the run's order.
        blocks: the decoded row groups by their place in the window; all that the part lies in but for empty ones.
    """
    tokens, borders = _join(part, window, blocks)
    cuts = starts - part.begin
    borders = _with_cuts(borders, cuts)
    lane_documents = np.searchsorted(borders, cuts)
    if not order.shuffle:
        copied = tokens[borders[0] : borders[-1]].copy()  # a view would keep whole row groups alive
        return LaneSlices(first_lane=part.first_lane, tokens=copied, starts=cuts, documents=borders[:-1])
    permutation = np.empty(len(borders) - 1, np.int64)
    for place, (first, last) in enumerate(zip(lane_documents[:-1].tolist(), lane_documents[1:].tolist(), strict=True)):
        permutation[first:last] = first + order.document_order(
            last - first, epoch=window.epoch, window=window.number, lane=part.first_lane + place
        )
    moved = as_binary(tokens, borders).take(as_arrow(permutation))
    _, moved_offsets, moved_tokens = moved.buffers()
    documents = np.frombuffer(moved_offsets, np.int64)[: len(permutation)] // tokens.itemsize
    shuffled = np.frombuffer(moved_tokens, tokens.dtype)[: part.end - part.begin]
    return LaneSlices(first_lane=part.first_lane, tokens=shuffled, starts=cuts, documents=documents)


def _join(part: Part, window: Window, blocks: Mapping[int, TokenBlock]) -> tuple[TokenArray, IntArray]:
    """(the part's tokens, where its documents and its ends lie in them, rising without equals)."""
    pieces, borders = [], []
    for group in part.groups:
        if group not in blocks:
            continue
        block, origin = blocks[group], int(window.offsets[group])
        low, high = max(part.begin - origin, 0), min(part.end - origin, len(block.tokens))
        pieces.append(block.tokens[low:high])
        inside = block.offsets[
            np.searchsorted(block.offsets, low, side="right") : np.searchsorted(block.offsets, high, side="left")
        ]
        borders.append(np.array([low + origin - part.begin]))
        borders.append(inside + (origin - part.begin))
    borders.append(np.array([part.end - part.begin]))
    joined = np.concatenate(borders)
    distinct = joined[1:] != joined[:-1]
    if not distinct.all():  # empty documents, and empty row groups
        joined = joined[np.concatenate(([True], distinct))]
    return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)), joined


def _with_cuts(borders: IntArray, cuts: IntArray) -> IntArray:
    """``borders`` with the lane borders ``cuts`` put in where they are not there yet; both rising, one range."""
    places = np.searchsorted(borders, cuts)
    new = borders[places] != cuts
    new[1:] &= cuts[1:] != cuts[:-1]  # an empty slice begins where it ends
    return np.insert(borders, places[new], cuts[new])
