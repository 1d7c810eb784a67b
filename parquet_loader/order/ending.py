"""Where a run of a few epochs ends: `epochs` and `tail` of a loader.

After e epochs of T tokens lane i of B has received ``(e T + i) // B`` tokens, so lanes differ by one at most. All ranks
take the same steps; the last one may not be full:

    B = 3, e T = 19, rows of 4       tail="pad"              tail="drop"
    lane 0   6 tokens                x x x x │ x x · ·       x x x x
    lane 1   6                       x x x x │ x x · ·       x x x x
    lane 2   7                       x x x x │ x x x ·       x x x x
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..blocks import IntArray
from .order import Order

__all__ = ["TAILS", "Finish", "finish_of"]

TAILS = ("pad", "drop")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finish:
    """The end of a run.

    Attributes:
        epochs: the number of epochs of the run.
        stop: no batch begins at this position or beyond.
        ends: the tokens that each of this rank's lanes receives in all, shape ``(lanes,)``.
    """

    epochs: int
    stop: int
    ends: IntArray

    def lengths(self, position: int, columns: int) -> IntArray | None:
        """How many columns of the rows at a position are tokens, shape ``(lanes,)``; None where all are."""
        if position + columns <= self.ends[0]:  # the shortest
            return None
        lengths = np.clip(self.ends - position, 0, columns)
        return None if (lengths == columns).all() else lengths

    def batches_of(self, order: Order, epoch: int, seq_len: int, position: int) -> int:
        """`Order.batches_of` of a run that ends here; its last epoch's where that is over."""
        epoch = min(epoch, self.epochs - 1)
        begin, end = order.epoch_begin(epoch), min(order.epoch_begin(epoch + 1), self.stop)
        if epoch == self.epochs - 1:
            end = self.stop
        return max(0, (end - position + seq_len - 1) // seq_len - (begin - position + seq_len - 1) // seq_len)


def finish_of(order: Order, first: int, last: int, *, epochs: int, tail: str, seq_len: int, overlap: int) -> Finish:
    """The end of a run for the lanes ``[first, last)``; its `stop` is the same for all."""
    total, lanes, unit = epochs * order.total, order.lanes, order.unit
    if order.row_tokens:
        seq_len, overlap = 1, 0  # of elements
    if tail == "pad":
        stop = (total + lanes - 1) // lanes  # the longest lane's end
    else:
        stop = max(0, total // lanes - seq_len - overlap + 1)
    ends = (total + np.arange(first, last, dtype=np.int64)) // lanes
    return Finish(epochs=epochs, stop=stop * unit, ends=ends * unit)
