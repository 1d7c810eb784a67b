"""The order: pure arithmetic on (tokens of each row group, seed, lanes, window, shuffle). No I/O, no state.

In epoch ``e`` the row groups are permuted; `window` consecutive ones of the permuted list form a window. A window's
tokens, in that order, are one stretch, which is cut into one contiguous slice for each lane. With C tokens in all
epochs and windows before it, and C' after it, lane ``i`` of B gets ``(C' + i) // B - (C + i) // B`` of them:

    B = 3, three windows of 4, 5 and 3 tokens                lane 0   lane 1   lane 2    received in all
    C = 0, C' = 4      |a b c d|       lengths 1, 1, 2       a        b        c d       1  1  2
    C = 4, C' = 9      |e f g h i|     lengths 2, 2, 1       e f      g h      i         3  3  3
    C = 9, C' = 12     |j k l|         lengths 1, 1, 1       j        k        l         4  4  4

The lengths add up to C' - C, and lane ``i`` has received exactly ``(C + i) // B`` tokens at any window's end, so that
no two lanes ever differ by more than one (Hermite's identity: the sum over i of floor(x + i/B) is floor(Bx)). Within
its slice a lane's documents are permuted. Lanes advance together, so the position of a whole run is one number: tokens
consumed per lane.

A lane's slices, in a row, are its *text*. A long document fills a lane for step after step, so the steps within a
window come in a permuted order, the same for all lanes: block j of positions ``[jQ, (j+1)Q)``, with Q tokens of a row,
delivers the text that lies at block ``pi(j)``, for all j of which every lane has the whole block and a token after it
in the window. What lies before the first and after the last such block stays where it is:

    text        ··│ 4 │ 5 │ 6 │ 7 │···        │ is a border of blocks, · what is no whole block of the window
    delivered   ··│ 6 │ 4 │ 7 │ 5 │···

Randomness is the raw 64-bit output of NumPy's Philox, which NumPy keeps stable, unlike the methods of `Generator`; a
permutation is the stable argsort of raw words (Philox: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").

Of a set that is packed by rows, the same is done with its rows in place of tokens: each is one *element* that no lane
border cuts, and one step of a lane. Rows are permuted within slices, so steps need no permutation of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np

from ..blocks import IntArray

__all__ = ["Order", "StepBlocks", "Window", "lane_range", "permutation", "random_words", "slice_starts"]

PositionsT = TypeVar("PositionsT", int, IntArray)

# The last word of Philox's counter tells the uses of one (seed, epoch) apart.
_ROW_GROUPS = 0
_DOCUMENTS = 1
_STEPS = 2


def permutation(count: int, *, seed: int, epoch: int, domain: int, lane: int = 0, window: int = 0) -> IntArray:
    """A random permutation of ``range(count)``, shape ``(count,)``, int64."""
    return stable_argsort(random_words(count, key=[seed, epoch], counter=[0, lane, window, domain]), [0, count])


_bits = threading.local()


def random_words(count: int, *, key: list[int], counter: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """``Philox(key=key, counter=counter).random_raw(count)``.

    Of a generator that each thread keeps and puts in that state: a new one asks the operating system for randomness,
    which it then does not use, and that takes longer than a slice's permutation.
    """
    if not hasattr(_bits, "philox"):
        _bits.philox = np.random.Philox(0)
    _bits.philox.state = {
        "bit_generator": "Philox",
        "state": {"counter": np.array(counter, np.uint64), "key": np.array(key, np.uint64)},
        "buffer": np.zeros(4, np.uint64),
        "buffer_pos": 4,  # nothing is left of the buffer
        "has_uint32": 0,
        "uinteger": 0,
    }
    words: np.ndarray[tuple[int, ...], np.dtype[np.uint64]] = _bits.philox.random_raw(count)
    return words


def stable_argsort(words: np.ndarray[tuple[int, ...], np.dtype[np.uint64]], borders: Sequence[int]) -> IntArray:
    """The stable argsorts of stretches of 64-bit words, as places among all of them, shape ``(n,)`` int64.

    A sort of numbers is several times faster than one of places. So the lowest bits of each word, as many as a place
    takes, make room for the place: no two numbers are equal then, and they sort like the words unless those differ in
    no other bits, as hardly any random ones do.

    Args:
        words: shape ``(n,)``.
        borders: where stretches begin, and the last one ends: from 0 to n.
    """
    place_bits = np.uint64(len(words).bit_length())
    places = np.arange(len(words), dtype=np.uint64)
    packed = words >> place_bits
    packed <<= place_bits
    packed |= places
    for low, high in pairwise(borders):
        packed[low:high].sort()
    np.bitwise_and(packed, np.uint64((1 << int(place_bits)) - 1), out=places)
    packed >>= place_bits
    order = places.view(np.int64)
    if (packed[1:] == packed[:-1]).any():
        for low, high in pairwise(borders):
            order[low:high] = low + np.argsort(words[low:high], kind="stable")
    return order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepBlocks:
    """Which text a window's permuted steps deliver.

    Attributes:
        length: Q, the tokens of a block.
        first: the number of the first permuted block; block j holds the positions ``[j * length, (j + 1) * length)``.
        texts: the number of the block whose text each delivers, shape ``(blocks,)``.
    """

    length: int
    first: int
    texts: IntArray

    def text_of(self, position: int) -> int:
        """Where the text of a position lies."""
        block, within = divmod(position, self.length)
        place = block - self.first
        return int(self.texts[place]) * self.length + within if 0 <= place < len(self.texts) else position

    def pieces(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """The positions ``[low, high)`` as stretches of text: (first position, where its text lies, tokens) of each."""
        begin, end = self.first * self.length, (self.first + len(self.texts)) * self.length
        inside = low < end and high > begin
        cuts = range(-(-max(low + 1, begin) // self.length) * self.length, min(high, end + 1), self.length)
        found: list[tuple[int, int, int]] = []
        for start, stop in pairwise([low, *cuts, high] if inside else [low, high]):
            text = self.text_of(start)
            if found and found[-1][1] + found[-1][2] == text:
                found[-1] = (*found[-1][:2], stop - found[-1][0])
            else:
                found.append((start, text, stop - start))
        return found

    def inverse(self) -> StepBlocks:
        """The same from text to positions: which position delivers a text."""
        return StepBlocks(length=self.length, first=self.first, texts=self.first + np.argsort(self.texts))


def slice_starts(before: int, after: int, lanes: int, first: int, last: int) -> IntArray:
    """Where the slices of lanes ``first`` to ``last`` begin in a window that takes a run from C to C' tokens.

    Shape ``(last - first + 1,)``, int64: lane ``first + k`` gets the window's tokens ``[starts[k], starts[k + 1])``.
    In closed form, with n = q B + r, the sum of (n + j) // B over j < i is i q + max(0, i - (B - r)).
    """
    lane = np.arange(first, last + 1, dtype=np.int64)

    def received_by_lanes_below(total: int) -> IntArray:
        each, over = divmod(total, lanes)
        return lane * each + np.maximum(0, lane - (lanes - over))

    return received_by_lanes_below(after) - received_by_lanes_below(before)


def lane_range(rank: int, world_size: int, lanes: int) -> tuple[int, int]:
    """The lanes ``[first, last)`` of a rank."""
    return rank * lanes // world_size, (rank + 1) * lanes // world_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """One window of one epoch.

    Attributes:
        epoch: the epoch of the run.
        number: the window's number within the epoch.
        groups: its row groups in order, shape ``(groups,)``, numbers in the index.
        offsets: shape ``(groups + 1,)``: ``groups[k]`` holds the window's tokens ``[offsets[k], offsets[k + 1])``.
        before: tokens of everything before it in the run (C); ``before + offsets[-1]`` is C'.
    """

    epoch: int
    number: int
    groups: IntArray
    offsets: IntArray
    before: int

    @property
    def tokens(self) -> int:
        """Tokens of the window."""
        return int(self.offsets[-1])

    def slice_starts(self, lanes: int, first: int, last: int) -> IntArray:
        """`slice_starts` of this window."""
        return slice_starts(self.before, self.before + self.tokens, lanes, first, last)

    def lane_begins(self, lanes: int, first: int, last: int) -> IntArray:
        """What lanes ``first`` to ``last - 1`` have received before this window, shape ``(last - first,)``."""
        return (self.before + np.arange(first, last, dtype=np.int64)) // lanes

    def lane_ends(self, lanes: int, first: int, last: int) -> IntArray:
        """The same before the window after it."""
        return (self.before + self.tokens + np.arange(first, last, dtype=np.int64)) // lanes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """The order of a run.

    Attributes:
        group_tokens: shape ``(row groups,)``, int64: tokens of each row group, EOS included.
        lanes: B, the global batch in sequences.
        window: row groups of a window.
        seed: in [0, 2^64).
        shuffle: False leaves row groups and documents in storage order.
        stored_first: whether epoch 0 has row groups in storage order, so that what a set begins with is enough to tell
            what a run begins with.
        row_tokens: of a set packed by rows, the tokens that a row advances a run by: all that is called a token in
            here and in a `Window` is a row then. 0 where tokens are tokens.
        unit: the tokens of an element: `row_tokens`, or 1. Positions of a run are in tokens, and multiples of it.
        total: T, the elements of one epoch.
        ends: where row groups end in storage order, shape ``(row groups,)``; only with `stored_first`.
    """

    group_tokens: IntArray
    lanes: int
    window: int
    seed: int
    shuffle: bool
    row_tokens: int = 0
    stored_first: bool = False
    unit: int = field(init=False)
    total: int = field(init=False)
    ends: IntArray = field(init=False)

    def __post_init__(self) -> None:
        # Once: it is asked for several times a batch, and the sum over a million row groups takes 0.3 ms.
        object.__setattr__(self, "total", int(self.group_tokens.sum()))
        object.__setattr__(self, "unit", self.row_tokens or 1)
        object.__setattr__(self, "ends", np.cumsum(self.group_tokens if self.stored_first else self.group_tokens[:0]))

    @property
    def total_tokens(self) -> int:
        """The tokens that one epoch advances a run by, over all lanes; padding of rows among them."""
        return self.total * self.unit

    @property
    def element(self) -> str:
        """What is dealt out, in words."""
        return "row" if self.row_tokens else "token"

    def stops(self, positions: PositionsT, rows: int, *, seq_len: int, overlap: int) -> PositionsT:
        """The element that some rows from these positions on end before."""
        if self.row_tokens:
            return positions // self.unit + rows
        return positions + (rows * seq_len + overlap)

    def epoch_of(self, position: int) -> int:
        """The epoch that a batch at this position (tokens consumed per lane) belongs to: its lane 0's first token's."""
        return ((position // self.unit + 1) * self.lanes - 1) // self.total

    def epoch_begin(self, epoch: int) -> int:
        """The position at which an epoch begins: lane 0's first token of it."""
        return epoch * self.total // self.lanes * self.unit

    def batches_of(self, epoch: int, seq_len: int, position: int) -> int:
        """Batches of an epoch in a run whose batches lie at ``position`` plus multiples of ``seq_len``."""
        begin, end = self.epoch_begin(epoch), self.epoch_begin(epoch + 1)
        return (end - position + seq_len - 1) // seq_len - (begin - position + seq_len - 1) // seq_len

    def group_order(self, epoch: int) -> IntArray:
        """The row groups in the epoch's order, shape ``(row groups,)``."""
        count = len(self.group_tokens)
        if not self.shuffle or (self.stored_first and not epoch):
            return np.arange(count, dtype=np.int64)
        return permutation(count, seed=self.seed, epoch=epoch, domain=_ROW_GROUPS)

    def document_order(self, borders: Sequence[int], *, epoch: int, window: int, lane: int) -> IntArray:
        """The order of the documents of slices of neighbouring lanes, as places among all of them, shape ``(n,)``.

        Args:
            borders: of a list of the slices' documents, where each slice's begin, and the last one's end: from 0 to n.
            epoch, window: of the window.
            lane: the first one.
        """
        if not self.shuffle:
            return np.arange(borders[-1], dtype=np.int64)
        words = np.empty(borders[-1], np.uint64)
        key = [self.seed, epoch]
        for number, (low, high) in enumerate(pairwise(borders), lane):
            words[low:high] = random_words(high - low, key=key, counter=[0, number, window, _DOCUMENTS])
        return stable_argsort(words, borders)

    def step_blocks(self, window: Window, length: int) -> StepBlocks:
        """The permuted steps of a window, in rows of ``length`` tokens; of a set packed by rows, none."""
        if self.row_tokens:
            return StepBlocks(length=1, first=0, texts=np.empty(0, np.int64))
        # The lane that comes last into the window, and the first that leaves it.
        first = -(-((window.before + self.lanes - 1) // self.lanes) // length)
        last = ((window.before + window.tokens) // self.lanes - 1) // length
        texts = np.arange(first, max(first, last), dtype=np.int64)
        if self.shuffle and len(texts) > 1:
            texts = texts[
                permutation(len(texts), seed=self.seed, epoch=window.epoch, domain=_STEPS, window=window.number)
            ]
        return StepBlocks(length=length, first=first, texts=texts)

    def earliest(self, positions: IntArray, lanes: IntArray) -> tuple[int, int]:
        """(Position, lane) of that of some lanes, each at its position, which needs the earliest window."""
        # Lane i is in the one in which C + i reaches its next element times B.
        behind = int((positions * self.lanes - lanes).argmin())
        return int(positions[behind]), int(lanes[behind])

    def windows(self, position: int, lane: int) -> Iterator[Window]:
        """The run's windows without end, from the first that holds ``lane``'s token (element) number ``position``."""
        # Lane i has received (C + i) // B tokens at C: its token p comes in the window where C + i reaches (p + 1) B.
        needed = (position + 1) * self.lanes - lane
        epoch, within = divmod(needed - 1, self.total)
        order, ends = self._ordered(epoch)
        yield from self._windows(epoch, int(np.searchsorted(ends, within, side="right")) // self.window, order, ends)

    def windows_from(self, epoch: int, number: int) -> Iterator[Window]:
        """The run's windows without end, from one on."""
        yield from self._windows(epoch, number, *self._ordered(epoch))

    def _ordered(self, epoch: int) -> tuple[IntArray, IntArray]:
        """The row groups in the epoch's order, and where they end in it."""
        order = self.group_order(epoch)
        return order, np.cumsum(self.group_tokens[order])

    def _windows(self, epoch: int, first: int, order: IntArray, ends: IntArray) -> Iterator[Window]:
        while True:
            for number in range(first, -(-len(order) // self.window)):
                yield self._window(epoch, number, order, ends)
            epoch, first = epoch + 1, 0
            order, ends = self._ordered(epoch)

    # ── what a set begins with, in storage order ─────────────────────────────────────────────────────────────────

    @property
    def sealed_windows(self) -> int:
        """The windows that are whole already, whatever is added to the set."""
        return len(self.group_tokens) // self.window

    @property
    def sealed_total(self) -> int:
        """Their elements."""
        return int(self.ends[self.sealed_windows * self.window - 1]) if self.sealed_windows else 0

    def sealed_window(self, number: int) -> Window:
        """One of them, in epoch 0."""
        return self._window(0, number, np.arange(len(self.group_tokens), dtype=np.int64), self.ends)

    def needed_for(self, position: int) -> int:
        """The elements that the set must begin with for every lane to have come to a position."""
        return position // self.unit * self.lanes

    def is_beyond(self, position: int, groups: int) -> bool:
        """Whether every lane has had an element at a position that is in none of the first row groups."""
        return self.needed_for(position) - self.lanes >= int(self.ends[groups - 1])

    def begun_groups(self, position: int) -> int:
        """The row groups of the windows that every lane has had an element of at a position, or has passed by."""
        last = self.needed_for(position) - self.lanes  # what the lane that is first in a window had last
        if last < 0:
            return 0
        number = int(np.searchsorted(self.ends, last, side="right")) // self.window
        return min(len(self.group_tokens), (number + 1) * self.window)

    def window_of(self, group: int, epoch: int) -> Window:
        """The window that a row group, by its number in the index, is in in an epoch."""
        order = self.group_order(epoch)
        place = int((order == group).argmax())
        return self._window(epoch, place // self.window, order, np.cumsum(self.group_tokens[order]))

    def _window(self, epoch: int, number: int, order: IntArray, ends: IntArray) -> Window:
        """A window of an epoch with this order of row groups, which end there in it."""
        groups = order[number * self.window : (number + 1) * self.window]
        before = int(ends[number * self.window - 1]) if number else 0
        offsets = np.zeros(len(groups) + 1, np.int64)
        np.cumsum(self.group_tokens[groups], out=offsets[1:])
        return Window(epoch=epoch, number=number, groups=groups, offsets=offsets, before=epoch * self.total + before)
