"""What row groups hold on their way, and the least budget; pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..blocks import IntArray
from ..formats.base import CODEC_NAMES, ChunkSize
from .config import EngineConfig
from .planes import Plane
from .slices import band_limits

__all__ = [
    "TASK_BYTES",
    "GroupCost",
    "beyond_bytes",
    "documents_bytes",
    "group_costs",
    "kept_by_threads",
    "required_bytes",
    "required_together",
    "reserve_bytes",
    "task_bytes",
    "text_cost",
]

NumbersT = TypeVar("NumbersT", int, IntArray)

# Row groups that follow each other and hold less than this together are one task: small ones do not cost a task each.
# Any budget has room for it; where there is more, tasks are larger.
TASK_BYTES = 4 << 20
# The most: about a million tokens, of which Python's part of a task does not count.
_MOST_TASK_BYTES = 32 << 20
_BORDER_BYTES = 8
_OBJECTS_BYTES = 1 << 10  # the Python objects around the arrays of a part or a band


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Bytes that a row group holds on its way.

    Attributes:
        fetch: its chunk, and what decoding and cutting need beside it; released when that is done.
        decode: what of that is for decoding.
        text: of bands that begin in it and go on in others, until they are cut.
        slices: its share of the slices; released when the window has been used up.
    """

    fetch: int
    decode: int
    text: int
    slices: int

    @property
    def total(self) -> int:
        """What must fit for the row group's task to be admitted."""
        return self.fetch + self.text + self.slices


def group_costs(
    config: EngineConfig,
    sizes: Sequence[ChunkSize],
    *,
    codecs: Sequence[IntArray],
    inside: IntArray,
    longest: IntArray,
    pieces: IntArray,
    text: IntArray,
    cuts: IntArray,
) -> list[GroupCost]:
    """The costs of row groups; none falls where a number rises, among row groups of one part and among others.

    Args:
        config: what they are decoded for.
        sizes: of their chunks, of each plane.
        codecs: their compressions, as the index has them, of each plane.
        inside: tokens of each that the lanes take.
        longest: those of the largest band that lies in it alone.
        pieces: the most of them that a band takes.
        text: `text_cost` of the bands that begin in it and go on in others.
        cuts: lane borders that fall in it.
    """
    size = sizes[0]
    documents = np.minimum(size.rows, inside) + 1 + cuts
    # What was put together, or in another process what was shuffled, beside the place that it goes to.
    beside = np.greater(size.slots, config.format.one_part_slots()) | (config.processes > 0)
    chunks, decode, cutting = np.zeros((3, len(inside)), np.int64)
    for plane, each, codec in zip(config.planes, sizes, codecs, strict=True):  # one after another
        chunks += each.chunk_bytes
        decode = np.maximum(decode, _decode_costs(config, plane, each, codec))
        cutting = np.maximum(cutting, text_cost(plane, tokens=np.where(beside, longest, 0), documents=documents))
    fetch = chunks + decode + cutting
    if config.rows is not None:  # they are made of a band's tokens; and one may lie in two parts
        each_bytes = max(plane.element_dtype.itemsize for plane in config.planes)
        fetch += pieces * config.rows.making_bytes(each_bytes) + 2 * each_bytes
    # Where documents begin is there twice while the bands' are put together.
    slices = inside * config.held_itemsize + (documents + cuts) * 2 * _BORDER_BYTES
    if config.aligned:
        fetch += size.rows * 4 * _BORDER_BYTES  # where documents begin by two planes, which are compared
        slices += documents * 3 * _BORDER_BYTES  # how bands are cut; see `work.Cuts`
    return [
        GroupCost(*numbers) for numbers in zip(*(each.tolist() for each in (fetch, decode, text, slices)), strict=True)
    ]


def _decode_costs(config: EngineConfig, plane: Plane, size: ChunkSize, codec: IntArray) -> IntArray:
    """What decoding chunks of one plane holds, of compressions as the index has them."""
    decode = np.zeros(len(codec), np.int64)
    for each in np.unique(codec).tolist():
        cost = config.format.decode_cost(size, codec=CODEC_NAMES[each], dtype=plane.held_dtype, eos=plane.appends_eos)
        decode = np.where(codec == each, cost, decode)
    return decode


def text_cost(plane: Plane, *, tokens: NumbersT, documents: NumbersT) -> NumbersT:
    """What the text of a band holds until it has been cut, of one plane. Cutting makes borders, words, a permutation
    and offsets, several of them at the same time.
    """
    return tokens * plane.element_dtype.itemsize + documents * 7 * _BORDER_BYTES + _OBJECTS_BYTES


def documents_bytes(documents: int) -> int:
    """What documents hold that are more than was thought, from being cut until the window is used up."""
    return documents * 9 * _BORDER_BYTES  # see `text_cost` and `group_costs`


def task_bytes(config: EngineConfig, spare_bytes: int, window_bytes: int) -> int:
    """What row groups that are one task hold at most, unless they are one alone.

    Tasks of all threads together take no more than half of what the budget can spare, and a window is enough of them
    for each thread to have one.

    Args:
        config: what they are decoded for.
        spare_bytes: what the budget has beyond the least.
        window_bytes: what the window's row groups hold, all together.
    """
    workers = max(config.threads, config.requests)
    most = min(TASK_BYTES + spare_bytes // (2 * workers), _MOST_TASK_BYTES)
    return max(TASK_BYTES, min(most, window_bytes // workers))


def required_bytes(config: EngineConfig, window: int) -> int:
    """A budget within which any window of that many row groups can be loaded, whichever row groups it consists of, if
    they are as row groups nearly always are; see `reserve_bytes`.
    """
    needed = _needed(config, window)
    return kept_by_threads([config]) + needed.slices + needed.working


def required_together(configs: Sequence[EngineConfig], reserved_bytes: int, stretches: Sequence[int]) -> int:
    """A budget within which the windows of several sources can be loaded as rows need them.

    Each source has the window that it is in, and there is room for one more, of the largest. Where lanes stand apart,
    the one that is behind and the one that is ahead are in different windows, for several sources at the same time.

    Args:
        configs: of the sources.
        reserved_bytes: what else is held all the time.
        stretches: of each source the tokens from the lane that is behind to the end of the row of the one that is
            ahead; 0 where lanes stand together.
    """
    needs = [_needed(config, config.order.window) for config in configs]
    windows = [needed.slices for needed in needs]
    more = max(windows) if len(windows) > 1 else 0
    more += sum(_apart(config, tokens) for config, tokens in zip(configs, stretches, strict=True) if tokens)
    working = max(needed.working for needed in needs)
    return reserved_bytes + kept_by_threads(configs) + sum(windows) + more + working


def _apart(config: EngineConfig, tokens: int) -> int:
    """What the slices of all windows that a stretch of so many tokens of each lane lies in hold, beside one window's.

    The stretch begins in one and ends in another; there may be whole ones between them, and the short one in which an
    epoch ends.
    """
    order, groups = config.order, len(config.index)
    window = min(order.window, groups)
    stretch = tokens * order.lanes
    epochs = stretch // order.total + 1
    least = int(np.sort(order.group_tokens)[:window].sum())
    whole = epochs * (groups // window)
    if least:
        whole = min(whole, stretch // least)
    short = _needed(config, groups % window).slices if groups % window else 0
    return (whole + 1) * _needed(config, window).slices + epochs * short


@dataclass(frozen=True, slots=True)
class _Needed:
    """What a window needs: `slices` until it has been used up, and `working` while it is loaded."""

    slices: int
    working: int


def _needed(config: EngineConfig, window: int) -> _Needed:
    """What any window of that many row groups needs on a rank.

    While the consumer waits for a task, what is held is the window's slices so far, the text of the one band that lies
    across the border to that task, and the task:

        row groups   │ slices │ slices │ slices ┊ slices + fetch + text of a band across its end
                                          └─ text ─┘
    """
    index, order, lanes = config.index, config.order, config.last - config.first
    window = min(window, len(index))
    ascending, most_rows = np.sort(order.group_tokens), np.sort(index.rows)
    window_tokens, window_rows = int(ascending[-window:].sum()), int(most_rows[-window:].sum())
    share = min(window_tokens, window_tokens * lanes // order.lanes + lanes)
    documents = min(window_rows, share) + window + 2 * lanes + 2
    slices = share * config.held_itemsize + documents * (5 if config.aligned else 2) * _BORDER_BYTES
    lane = window_tokens // order.lanes + 1
    least_band, most_band = band_limits(config.element_tokens)
    across = 0
    if window > 1:
        # The band holds ends of two row groups, and between them as many others as fit into it.
        band = min(share, max(least_band, lane))
        groups = min(window, 2 + int(np.searchsorted(np.cumsum(ascending), band, side="right")))
        rows = min(int(most_rows[-groups:].sum()), band)
        across = sum(text_cost(plane, tokens=band, documents=rows + groups + lanes + 1) for plane in config.planes)
    fetch = 0
    # Every compression of the tokens with every one of what goes with them.
    codecs = np.array(list(itertools.product(*(np.unique(each.codec) for each in index.planes))))
    of_each = np.ones(len(codecs), np.int64)
    for sizes in _largest(config):
        size = sizes[0]
        inside = min(size.tokens + size.rows if config.rows is None else size.rows, share)
        longest = min(inside, max(most_band, lane))
        costs = group_costs(
            config,
            sizes,
            codecs=list(codecs.T),
            inside=inside * of_each,
            longest=longest * of_each,
            pieces=longest * of_each,
            text=0 * of_each,
            cuts=(lanes + 1) * of_each,
        )
        fetch = max(fetch, *(cost.fetch for cost in costs))
    return _Needed(slices=slices, working=across + max(fetch + across, 2 * TASK_BYTES))


def reserve_bytes(configs: Sequence[EngineConfig], least_bytes: int) -> int:
    """What of the budget is kept for row groups that turn out to hold more while they are decoded than their cost says:
    as much as any may, but no more than half of what the budget has beyond the least.

    Args:
        configs: of all sources that share the budget.
        least_bytes: the least budget.
    """
    most = 0
    for config in configs:
        for plane, size in zip(config.planes, _largest(config)[-1], strict=True):
            if size.slots > config.format.one_part_slots():
                cost = config.format.most_decode_cost(size, dtype=plane.held_dtype, eos=plane.appends_eos)
                most = max(most, int(cost))
    if not most:
        return 0
    return min(most, max(0, configs[0].budget_bytes - least_bytes) // 2)


def beyond_bytes(configs: Sequence[EngineConfig], least_bytes: int) -> int:
    """What the budget has beyond the least, and beyond what is kept aside: tasks may be larger by it, and segments."""
    return configs[0].budget_bytes - reserve_bytes(configs, least_bytes) - least_bytes


def _largest(config: EngineConfig) -> list[list[ChunkSize]]:
    """The largest of each number among the row groups of one part, and among the others, where there are any; of each
    plane.
    """
    index = config.index
    slots = index.tokens + index.rows
    in_one = slots <= config.format.one_part_slots()
    return [
        [
            ChunkSize(
                chunk_bytes=int(each.length[picked].max()),
                slots=int(slots[picked].max()),
                tokens=int(index.tokens[picked].max()),
                rows=int(index.rows[picked].max()),
                itemsize=max(layout.dtype.itemsize for layout in each.layouts),
            )
            for each in index.planes
        ]
        for picked in (in_one, ~in_one)
        if picked.any()
    ]


def kept_by_threads(configs: Sequence[EngineConfig]) -> int:
    """What decoding threads keep from task to task, where they serve several sources; and whoever takes rows, of sets
    that are packed by rows.
    """
    rows = sum((each.last - each.first) * each.held_itemsize for each in configs if each.rows is not None)
    return rows + max(config.threads for config in configs) * max(
        config.format.kept_bytes(int(config.index.slots.max())) for config in configs
    )
