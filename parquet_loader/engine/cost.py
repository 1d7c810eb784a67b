"""What row groups hold on their way, and the least budget; pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .config import EngineConfig
from .slices import BAND_TOKENS

__all__ = ["TASK_BYTES", "GroupCost", "group_cost", "kept_by_threads", "required_bytes"]

# Row groups that follow each other and hold less than this together are one task: tiny ones do not cost a task each.
TASK_BYTES = 1 << 20
_BORDER_BYTES = 8
_OBJECTS_BYTES = 1 << 10  # the Python objects around the arrays of a block or a band
_GROUP_BYTES = 4 << 10  # more than what does not depend on a row group's size in `GroupCost.block`


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Bytes that a row group holds on its way.

    Attributes:
        fetch: its chunk, and what decoding needs beside chunk and block; released once decoded.
        block: the decoded block, and what cutting it needs; released when the last band that lies in it is cut.
        slices: its share of the slices; released when the window has been used up.
    """

    fetch: int
    block: int
    slices: int

    @property
    def total(self) -> int:
        """What must fit for the row group's task to be admitted."""
        return self.fetch + self.block + self.slices


def group_cost(
    config: EngineConfig,
    *,
    chunk_bytes: int,
    rows: int,
    tokens: int,
    stored_itemsize: int,
    inside: int,
    joined: int,
    cuts: int,
) -> GroupCost:
    """The cost of a row group; it never falls where a number rises.

    Args:
        config: what it is decoded for.
        chunk_bytes, rows, tokens: of the row group, tokens without EOS.
        stored_itemsize: bytes that a token takes as it is stored.
        inside: tokens of it that the lanes take.
        joined: those of them that are in bands which lie in several row groups.
        cuts: lane borders that fall in it.
    """
    itemsize, offsets = config.held_dtype.itemsize, (rows + 1) * _BORDER_BYTES
    peak, block = config.format.decode_cost(chunk_bytes=chunk_bytes, tokens=tokens, rows=rows, itemsize=stored_itemsize)
    if stored_itemsize != itemsize:
        cast = tokens * itemsize + offsets + _OBJECTS_BYTES
        peak = max(peak, chunk_bytes + block + cast)
        block = cast
    if config.eos_id is not None:  # a block without EOS, the joined one, and the offsets that pyarrow joins by
        joined_block = (tokens + rows) * itemsize + offsets + _OBJECTS_BYTES
        peak = max(peak, chunk_bytes + block + joined_block + 2 * offsets)
        block = joined_block
    documents = min(rows, inside) + 1 + cuts
    # Cutting makes borders, words, a permutation and offsets, several of them at the same time.
    cutting = joined * itemsize + documents * 6 * _BORDER_BYTES + _OBJECTS_BYTES
    return GroupCost(
        fetch=max(peak - block, chunk_bytes),
        block=block + cutting,
        # Where documents begin is there twice while the bands' are put together.
        slices=inside * itemsize + (documents + cuts) * 2 * _BORDER_BYTES,
    )


def required_bytes(config: EngineConfig, window: int) -> int:
    """A budget within which any window of that many row groups can be loaded, whichever row groups it consists of.

    While the consumer waits for a task, what is held is the window's slices so far, the blocks of the one band that
    lies across the border to that task, and the task:

        row groups   │ slices │ slices │ slices + block ┊ slices + block + fetch
                                             └──── one band ────┘
    """
    index, order, lanes = config.index, config.order, config.last - config.first
    window = min(window, len(index))
    ascending, most_rows, most_tokens = (np.sort(x) for x in (order.group_tokens, index.rows, index.tokens))
    window_tokens, window_rows = int(ascending[-window:].sum()), int(most_rows[-window:].sum())
    share = min(window_tokens, window_tokens * lanes // order.lanes + lanes)
    documents = min(window_rows, share) + window + 2 * lanes + 2
    slices = share * config.held_dtype.itemsize + documents * 2 * _BORDER_BYTES
    band = min(share, max(BAND_TOKENS, window_tokens // order.lanes + 1))

    def held(chunk_bytes: int, rows: int, tokens: int) -> GroupCost:
        inside = min(tokens + rows, share)
        return group_cost(
            config,
            chunk_bytes=chunk_bytes,
            rows=rows,
            tokens=tokens,
            stored_itemsize=max(layout.dtype.itemsize for layout in index.layouts),
            inside=inside,
            joined=min(inside, 2 * band),
            cuts=lanes + 1,
        )

    # The band holds an end of one row group and the whole of as many others as fit into it.
    groups = min(window - 1, 1 + int(np.searchsorted(np.cumsum(ascending), band, side="right")))
    across = 0
    if groups:
        tokens = min(int(most_tokens[-1]) + band, int(most_tokens[-groups:].sum()))
        across = held(0, int(most_rows[-groups:].sum()), tokens).block + groups * _GROUP_BYTES
    task = held(int(index.length.max()), int(most_rows[-1]), int(most_tokens[-1]))
    return kept_by_threads(config) + slices + across + max(task.fetch + task.block, 2 * TASK_BYTES)


def kept_by_threads(config: EngineConfig) -> int:
    """What decoding threads keep from task to task."""
    return config.threads * config.format.kept_bytes(int(config.index.slots.max()))
