"""Repetition and definition levels to document offsets.

Levels are written as runs, each a varint header and a payload. An even header 2n is n times the level in the next
byte; an odd one 2g+1 is g groups of 8 levels, packed from the low bit up. The repetition levels, of one bit each, of
1000 slots with documents that begin at 0, 3 and 500 are

    03 f6        d8 07 01     03 fe        d8 07 01
    slots 0-7    492 ones     500-507      492 ones

Only runs that may hold something unusual are expanded, so the cost goes with documents, not with tokens. Where a run
begins is known only from the one before it. Writers alternate between the two kinds, so where a literal begins, and the
run behind it ends, is guessed and then verified (`_likely_heads`). Other chains are followed without a step of Python
for each run: every byte is taken for a header, all at once, which gives a table of jumps; applied to itself it gives
jumps of 2, 4, 8 and 16 runs. Python follows the longest, and the shorter ones fill in what was left out:

    byte       0  1  2  3  4  5  6  7  8  9  (10 is the end)
    header     *     *        *     *
    one run    2     5        7     10           bytes in between have jumps too, of no meaning
    two runs   5              10
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...blocks import IntArray
from ...errors import DataError
from ..base import ColumnChunk
from ..parts import null_element
from . import thrift

__all__ = ["NO_DOCUMENT", "ByteArray", "LastDocument", "document_offsets", "unusual_levels"]

ByteArray = npt.NDArray[np.uint8]
WINDOW = 1 << 14  # bytes of levels looked at together: the tables of jumps stay in the processor's cache
DOUBLINGS = 4  # the longest jump is 2 ** DOUBLINGS runs
MAX_VARINT = 5  # bytes of a run's header
_NO_SLOTS: IntArray = np.empty(0, np.int64)
_NO_LEVELS: ByteArray = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class LastDocument:
    """The last document that begins before some page, where it may go on.

    Attributes:
        row: its number in the row group; -1 where there is none.
        slot: its first slot.
        empty: whether that is the place of an empty or null list.
    """

    row: int
    slot: int
    empty: bool


NO_DOCUMENT = LastDocument(-1, 0, False)


def document_offsets(
    repetition: list[bytes],
    holes_of_pages: list[tuple[IntArray, ByteArray]],
    slots: list[int],
    chunk: ColumnChunk,
    before: LastDocument = NO_DOCUMENT,
) -> tuple[IntArray, LastDocument]:
    """Where documents begin among the tokens of pages, by their first slots and the slots without a token.

    Args:
        repetition: the pages' repetition levels.
        holes_of_pages: their slots without a token, and the levels of those.
        slots: their first slots in the chunk, and the end.
        before: the document before them.

    Returns:
        The offsets of documents, shape ``(documents + 1,)``, from the pages' first token; and their last document. The
        first one is ``before``, going on: by nothing perhaps.
    """
    first, end = slots[0], slots[-1]
    goes_on = before.row >= 0
    beginnings, _ = unusual_levels(repetition, slots, 1, chunk)
    if end > first and not goes_on and not (len(beginnings) and beginnings[0] == 0):
        raise _damaged_levels(chunk, "the first slot is inside a document")
    edges = np.append(beginnings, end)
    if goes_on:
        edges = np.concatenate(([before.slot], edges))
    holes = np.concatenate([_NO_SLOTS, *(slots for slots, _ in holes_of_pages)])
    _check_holes(holes, holes_of_pages, edges, chunk, before)
    last = LastDocument(
        row=before.row + len(beginnings),
        slot=int(beginnings[-1]) if len(beginnings) else before.slot,
        empty=bool(len(beginnings) and len(holes) and beginnings[-1] == holes[-1]),
    )
    if goes_on:
        edges[0] = first
    if len(holes):
        edges -= np.searchsorted(holes, edges)
    if first:
        edges -= first
    return edges, last


def _check_holes(
    holes: IntArray,
    holes_of_pages: list[tuple[IntArray, ByteArray]],
    edges: IntArray,
    chunk: ColumnChunk,
    before: LastDocument,
) -> None:
    """Refuse holes that are not documents of one slot each; ``edges`` are the documents' first slots, and the end."""
    if not len(holes) and not before.empty:
        return
    rows = np.searchsorted(edges[:-1], holes, side="right") - 1
    first_row = max(before.row, 0)
    if chunk.layout.nullable_element:
        levels = np.concatenate([_NO_LEVELS, *(levels for _, levels in holes_of_pages)])
        nulls = np.flatnonzero(levels == chunk.layout.max_definition_level - 1)
        if len(nulls):
            row = int(rows[nulls[0]])
            raise null_element(chunk, first_row + row, int(holes[nulls[0]] - edges[row]))
    # What is left are empty and null lists, each a document of its one slot.
    if before.empty:
        rows = np.append(0, rows)
    wrong = np.flatnonzero(edges[rows + 1] - edges[rows] != 1)
    if len(wrong):
        raise _damaged_levels(chunk, f"row {first_row + int(rows[wrong[0]])} is an empty list that has elements")


def unusual_levels(
    sections: Sequence[bytes | memoryview], slots: Sequence[int], usual: int, chunk: ColumnChunk
) -> tuple[IntArray, ByteArray]:
    """The slots of a chunk whose level is not ``usual``, the highest there is, in order; and their levels.

    Args:
        sections: levels, a section for each page.
        slots: each page's first slot, and at the end the last page's end.
    """
    counts = [end - first for first, end in itertools.pairwise(slots)]
    # Nothing but usual levels is one run a page with any sensible writer: no need to look closer.
    if all(
        section == thrift.varint(count << 1) + bytes([usual]) for section, count in zip(sections, counts, strict=True)
    ):
        return _NO_SLOTS, _NO_LEVELS
    found, levels = Stretches.parse(sections, usual, chunk).unusual(usual, counts, chunk)
    if len(levels) and int(levels.max()) > usual:
        raise _damaged_levels(chunk, f"level {int(levels.max())} where {usual} is the highest")
    return found + slots[0] if slots[0] else found, levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """A chunk's levels, page after page, in stretches: groups of 8 levels, and then one level repeated.

    As writers alternate between the two kinds of runs, a stretch is two of them; either may be missing.

    Attributes:
        data: the levels as they are stored, and zeros behind them.
        width: bits of a level.
        payloads: where in `data` a stretch's groups begin, shape ``(stretches,)``.
        groups: how many they are, shape ``(stretches,)``.
        repeats: how often the level comes that is repeated, shape ``(stretches,)``.
        levels: which it is, shape ``(stretches,)``.
        ends: after each page's last stretch, shape ``(pages,)``.
    """

    data: ByteArray
    width: int
    payloads: IntArray
    groups: IntArray
    repeats: IntArray
    levels: ByteArray
    ends: list[int]

    @classmethod
    def parse(cls, sections: Sequence[bytes | memoryview], usual: int, chunk: ColumnChunk) -> Stretches:
        """The stretches of all pages."""
        width = usual.bit_length()
        *begins, size = itertools.accumulate(map(len, sections), initial=0)
        # All pages at once. What is read beyond a header at the very end is zeros, and is found out by its end.
        data = np.frombuffer(b"".join([*sections, bytes(MAX_VARINT + 1)]), np.uint8)
        if not all(map(len, sections)):
            raise _damaged_levels(chunk, "a page has none")
        heads = _likely_heads(data, size, begins, usual)
        found = _alternating(data, size, width, heads, usual)
        if found is None:
            heads = _run_heads(data, size, width)
            found = _chained(data, size, width, heads)
        firsts = heads.searchsorted(begins)
        if found is None or heads.take(firsts, mode="clip").tolist() != begins:
            raise _damaged_levels(chunk, "a run goes beyond its page")
        payloads, groups, repeats, levels = found
        ends = [*firsts[1:].tolist(), len(heads)]
        return cls(data=data, width=width, payloads=payloads, groups=groups, repeats=repeats, levels=levels, ends=ends)

    def unusual(self, usual: int, counts: Sequence[int], chunk: ColumnChunk) -> tuple[IntArray, ByteArray]:
        """Where levels other than ``usual`` are, counted from the first, and what they are, where pages have so many
        levels.
        """
        lengths = self.groups << 3
        lengths += self.repeats
        stops = lengths.cumsum()
        padding = self._padding(stops, counts, chunk)
        slots = np.subtract(stops, lengths, out=lengths)
        found, levels = self._in_groups(slots, usual)
        picked = (self.levels != usual).nonzero()[0]
        if len(picked):
            repeats = self.repeats[picked]
            begins = slots[picked] + (self.groups[picked] << 3)
            found = np.concatenate([found, begins.repeat(repeats) + _counted(repeats)])
            order = found.argsort(kind="stable")
            found = found[order]
            levels = np.concatenate([levels, self.levels[picked].repeat(repeats)])[order]
        return _without(found, levels, padding) if padding else (found, levels)

    def _in_groups(self, slots: IntArray, usual: int) -> tuple[IntArray, ByteArray]:
        """Where levels other than ``usual`` are in groups, those of stretches that begin at ``slots``; and what they
        are.
        """
        data, width = self.data, self.width
        payloads, groups = self.payloads, self.groups
        # By positions, not by mask: a mask with no pattern to it is slow.
        if not groups.all():
            some = groups.nonzero()[0]
            payloads, slots, groups = payloads[some], slots[some], groups[some]
        # Most stretches have one group. What is beyond the first comes behind all of those, and is sorted in.
        longer = (groups > 1).nonzero()[0]
        if len(longer):
            more = groups[longer] - 1
            nth = _counted(more) + 1
            payloads = np.concatenate((payloads, payloads[longer].repeat(more) + nth * width))
            nth <<= 3
            slots = np.concatenate((slots, slots[longer].repeat(more) + nth))
        if width == 1:
            levels = np.unpackbits(data[payloads], bitorder="little")
        else:
            bits = np.unpackbits(data[payloads[:, None] + np.arange(width)], axis=1, bitorder="little")
            levels = np.packbits(bits.reshape(-1, width), axis=1, bitorder="little")[:, 0]
        positions = (levels != usual).nonzero()[0]
        found = slots[positions >> 3]
        found += positions & 7
        if width == 1:
            if len(longer):
                found.sort(kind="stable")  # of two rising stretches it merges them
            return found, np.zeros(len(found), np.uint8)
        order = found.argsort(kind="stable")
        return found[order], levels[positions[order]]

    def _padding(self, stops: IntArray, counts: Sequence[int], chunk: ColumnChunk) -> list[tuple[int, int]]:
        """What pads the pages' last runs, counted from the first level: ``(begin, end)`` of each that is padded.

        Args:
            stops: the levels up to each stretch's end.
            counts: how many levels a page has.
        """
        padding = []
        before = 0
        for count, end in zip(counts, self.ends, strict=True):
            stop = int(stops[end - 1])
            surplus = stop - before - count
            before = stop
            if surplus < 0:
                raise _damaged_levels(chunk, "a page has fewer than slots")
            # A whole run too many is the beginning of the values: no checksum covers the header of a page, which says
            # where they begin.
            if surplus:
                last = end - 1
                while not self.repeats[last] and not self.groups[last]:
                    last -= 1
                if surplus >= (self.repeats[last] or self.groups[last] << 3):
                    raise _damaged_levels(chunk, "a page has more than slots")
                if self.repeats[last]:
                    self.repeats[last] -= surplus  # not to be listed: damage may make billions of it
                padding.append((stop - surplus, stop))
        return padding


def _without(found: IntArray, levels: ByteArray, padding: list[tuple[int, int]]) -> tuple[IntArray, ByteArray]:
    """What was found, without what is padding, and counted as if there were none."""
    kept, kept_levels = [], []
    place = shift = 0
    for (begin, end), (low, high) in zip(padding, found.searchsorted(padding).tolist(), strict=True):
        kept.append(found[place:low] - shift if shift else found[place:low])
        kept_levels.append(levels[place:low])
        place = high
        shift += end - begin
    kept.append(found[place:] - shift)
    kept_levels.append(levels[place:])
    return np.concatenate(kept), np.concatenate(kept_levels)


def _damaged_levels(chunk: ColumnChunk, problem: str) -> DataError:
    return chunk.error(f"has damaged levels: {problem}")


def _counted(lengths: IntArray) -> IntArray:
    """0, 1, ..., length - 1 for every length, in a row."""
    ends = lengths.cumsum()
    numbers: IntArray = np.arange(int(ends[-1]) if len(ends) else 0)
    numbers -= (ends - lengths).repeat(lengths)
    return numbers


# Of stretches where their groups begin, how many those are, how often a level is repeated, and which.
_Found = tuple[IntArray, IntArray, IntArray, ByteArray]


def _chained(data: ByteArray, size: int, width: int, heads: IntArray) -> _Found | None:
    """A stretch for each of the runs at ``heads``, if each run ends where the next begins, from 0 to ``size``; else
    they are not the runs.
    """
    headers, sizes = _varints(data, heads)
    payloads = heads + sizes
    is_literal = headers & 1
    headers >>= 1
    groups = headers * is_literal
    ends = payloads + groups * width + (1 - is_literal)
    if heads[0] or ends[-1] != size or not (ends[:-1] == heads[1:]).all():
        return None
    return payloads, groups, headers - groups, data[payloads]


def _likely_heads(data: ByteArray, size: int, begins: Sequence[int], usual: int) -> IntArray:
    """Where stretches begin if writers alternate between literals and runs of the usual level, as they nearly always
    do.

    A guess, to be verified: whatever byte of the usual level stands before one that may be a literal's header is taken
    for the end of a run.
    """
    is_head = np.zeros(size, bool)
    literal = is_head[1:]
    np.equal(data[1:size] & 0x81, 1, out=literal)
    literal &= data[1:size] > 1
    literal &= data[: size - 1] == usual
    is_head[begins] = True
    return is_head.nonzero()[0]


def _alternating(data: ByteArray, size: int, width: int, heads: IntArray, usual: int) -> _Found | None:
    """The stretches at ``heads``, if each consists of a literal, a repeated level, or both, and ends where the next
    begins, from 0 to ``size``; else that is not where stretches begin.
    """
    first = data[heads]
    literal = first & 1
    groups = ((first >> 1) * literal).astype(np.int64)
    payloads = heads + literal
    repeated = payloads + groups * width if width > 1 else payloads + groups
    ends = np.append(heads[1:], size)
    if heads[0] or (repeated > ends).any() or (first & 0x81 == 0x81).any():
        return None
    headers, sizes = _varints(data, repeated)
    sizes += 1
    left = np.subtract(ends, repeated, out=repeated)  # of the repeated level: nothing, or its header and itself
    ends -= 1
    levels = data[ends]
    missing = (left == 0).nonzero()[0]
    sizes[missing] = headers[missing] = 0
    levels[missing] = usual
    if (sizes != left).any() or (headers & 1).any():
        return None
    headers >>= 1
    return payloads, groups, headers, levels


def _run_heads(data: ByteArray, size: int, width: int) -> IntArray:
    """The positions of all runs' headers in ``data[:size]``, whatever the runs are."""
    position = 0
    pieces = [_NO_SLOTS]
    while position < size:
        window = min(WINDOW, size - position)
        jumps = _jumps(data[position : position + window + MAX_VARINT], window, width)
        tables = [np.minimum(jumps, window)]
        for _ in range(DOUBLINGS):
            tables.append(tables[-1].take(tables[-1]))
        far = tables.pop().data
        place = 0
        steps = []
        while place < window:
            steps.append(place)
            place = far[place]
        heads = np.array(steps)
        is_head = np.zeros(window + 1, bool)
        is_head[heads] = True
        for table in reversed(tables):
            heads = np.concatenate([heads, table[heads]])
            is_head[heads] = True
        heads = is_head[:window].nonzero()[0]
        pieces.append(heads + position)
        position += int(jumps[heads[-1]])
    return np.concatenate(pieces)


def _jumps(data: ByteArray, window: int, width: int) -> IntArray:
    """For every byte, were it a run's header, the place of the next one: shape ``(window + 1,)``, the last unused."""
    head = data[:window]
    goes_on = data > 127
    header_and_level = np.full(window, 2, np.uint8)
    more = goes_on[:window]
    for place in range(1, MAX_VARINT):
        header_and_level += more
        more = more & goes_on[place : place + window]
    literal = head & 1
    groups = ((head & 127) >> 1).astype(np.uint16)
    groups *= width
    groups -= 1  # in 16 bits: what wraps around here does so again in the sum
    groups *= literal
    groups += header_and_level
    jumps = np.arange(window + 1)
    jumps[:-1] += groups
    long = (head & 0x81 == 0x81).nonzero()[0]
    if len(long):
        headers, sizes = _varints(data, long)
        jumps[long] = long + sizes + (headers >> 1) * width
    return jumps


def _varints(data: ByteArray, positions: IntArray) -> tuple[IntArray, ByteArray]:
    """The varints at ``positions``, and how many bytes they take: `MAX_VARINT` at most, the rest is cut off."""
    byte = data[positions]
    values = (byte & 127).astype(np.int64)
    sizes = np.ones(len(positions), np.uint8)
    more = (byte > 127).nonzero()[0]
    for place in range(1, MAX_VARINT):
        if not len(more):
            break
        byte = data[positions[more] + place]
        values[more] |= (byte & 127).astype(np.int64) << 7 * place
        sizes[more] += 1
        more = more[byte > 127]
    return values, sizes
