"""Which pieces of text share a row, so that none is cut: best fit, the longest first. Pure arithmetic.

Rows of at most 10 tokens, and pieces of these lengths:

    3 9 4 6 1                the longest first: 9 6 4 3 1
    9+1  6+4  3              each goes to the row that it fills best; one that fits in none begins a row

A document that is longer than a row is cut at row length first: 23 tokens are pieces of 10, 10 and 3.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

__all__ = ["Lengths", "cut", "pack"]


Lengths = npt.NDArray[np.int64]


def cut(lengths: Lengths, row_tokens: int) -> Lengths:
    """The lengths of the pieces of documents, in order: whole rows, and rests. An empty document has none.

    >>> cut(np.array([4, 23, 0, 10]), 10).tolist()
    [4, 10, 10, 3, 10]
    """
    counts = -(-lengths // row_tokens)
    pieces = np.full(int(counts.sum()), row_tokens, np.int64)
    some = counts > 0
    last = np.cumsum(counts[some]) - 1
    pieces[last] = (lengths - (counts - 1) * row_tokens)[some]
    return pieces


def pack(lengths: Lengths, row_tokens: int) -> npt.NDArray[np.int64]:
    """The row of each piece, shape ``(pieces,)``. Rows are numbered in the order of their first pieces.

    Args:
        lengths: tokens of each piece, from 1 to ``row_tokens``, shape ``(pieces,)``.
        row_tokens: the most tokens of a row.

    >>> pack(np.array([3, 9, 4, 6, 1]), 10).tolist()
    [0, 1, 2, 2, 1]
    """
    order = np.argsort(-lengths, kind="stable")
    rows = np.empty(len(lengths), np.int64)
    whole = int(np.searchsorted(-lengths[order], -row_tokens, side="right"))
    rows[order[:whole]] = np.arange(whole)
    made = whole
    # Rows by how much room they have, and these amounts in order: a row of the least room that suffices is found by
    # bisection. There are never more amounts than tokens in a row.
    with_room: dict[int, list[int]] = {}
    amounts: list[int] = []
    packed: list[int] = []
    for length in lengths[order[whole:]].tolist():
        at = bisect_left(amounts, length)
        if at == len(amounts):
            row, room = made, row_tokens - length
            made += 1
        else:
            found = amounts[at]
            row, room = with_room[found].pop(), found - length
            if not with_room[found]:
                del with_room[found], amounts[at]
        if room in with_room:
            with_room[room].append(row)
        elif room:
            with_room[room] = [row]
            insort(amounts, room)
        packed.append(row)
    rows[order[whole:]] = packed
    # From the order in which they were begun to that of their first pieces.
    _, first, numbers = np.unique(rows, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return np.asarray(rank[numbers.reshape(-1)], np.int64)
