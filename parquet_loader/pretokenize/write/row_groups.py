"""How documents are grouped: pure arithmetic, the same whatever batches the documents arrive in.

Row groups, for a target of 10 tokens and documents of these lengths:

    3 4 4 2 6 3 25 1          cut where the sum is nearest to 10, and only once half a target (5) waits behind the cut
    3 4 4 | 2 6 3 | 25 1      the 1 at the end is too little for a group of its own and stays with its neighbour

So no group has less than half the target, unless it is the only one. A document is never cut: one that is longer than
the target makes a long group, together with at most a crumb before it and a crumb after it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["growing_file_tokens", "is_full", "plan_row_groups", "starts_new_file"]


def plan_row_groups(lengths: npt.NDArray[np.int64], target_tokens: int) -> list[int]:
    """Documents of each row group that is settled, in order; the documents that are left over must wait for more.

    At the end of the input, what is left over is the last row group.

    Args:
        lengths: tokens of each waiting document, shape ``(documents,)``.
        target_tokens: tokens that a row group should hold.
    """
    ends = np.cumsum(lengths)
    groups: list[int] = []
    start, before = 0, 0  # the first document that is left, and the tokens before it
    while start < len(ends):
        sums = ends[start:] - before
        crumbs = int(np.searchsorted(2 * sums, target_tokens))  # cuts that would leave a group below half the target
        # Past the first sum that reaches the target, cuts only get worse.
        reach = int(np.searchsorted(sums, target_tokens)) + 1
        candidates = sums[crumbs:reach]
        if not len(candidates):
            break
        cut = crumbs + int(np.argmin(np.abs(candidates - target_tokens)))
        if 2 * (sums[-1] - sums[cut]) < target_tokens:
            break
        groups.append(cut + 1)
        start, before = start + cut + 1, int(ends[start + cut])
    return groups


def starts_new_file(file_tokens: int, group_tokens: int, target_tokens: int) -> bool:
    """Whether the next row group opens a new file, because the file at hand is nearer to its target without it.

    Args:
        file_tokens: tokens already in the file.
        group_tokens: tokens of the row group that comes next.
        target_tokens: tokens that a file should hold.
    """
    without = abs(target_tokens - file_tokens)
    return file_tokens > 0 and abs(target_tokens - file_tokens - group_tokens) > without


def is_full(file_tokens: int, target_tokens: int, row_group_tokens: int) -> bool:
    """Whether whatever row group comes next opens a new file, since each has at least half of ``row_group_tokens``."""
    return starts_new_file(file_tokens, -(-row_group_tokens // 2), target_tokens)


def growing_file_tokens(number: int, row_group_tokens: int, file_tokens: int) -> int:
    """The target of a file of a set that is published as it grows: one row group, then twice as much each time.

    A reader can begin with the first row group, and no wait is longer than what was read before it; the small files are
    few, however large the set becomes.

    >>> [growing_file_tokens(number, 1, 100) for number in range(9)]
    [1, 2, 4, 8, 16, 32, 64, 100, 100]
    """
    doublings = min(number, (file_tokens // row_group_tokens).bit_length())
    return min(file_tokens, row_group_tokens << doublings)
