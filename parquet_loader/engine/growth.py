"""Sets that may still grow, as an engine sees them: which windows are whole, and what is to be reckoned with.

    row groups    │ a b c │ d e f │ g h ┊ ...         windows of 3
    windows         0       1       not yet: nobody knows whether it is g h i, or the set ends with h

What the order makes of a window follows from the row groups up to its end alone, so whoever comes to it earlier or
later, while the set grows or afterwards, has the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..blocks import IntArray
from ..index.index import DatasetIndex
from ..order.order import Window
from .config import EngineConfig
from .cost import required_bytes

__all__ = ["OutgrownError", "Sealed", "check_outgrown", "expected", "windows_from"]


class OutgrownError(AssertionError):
    """A set has grown beyond what its engine was made for: it takes another engine."""


def windows_from(config: EngineConfig, position: int, lane: int) -> Iterator[Window | None]:
    """The windows of a set from the one on that holds a lane's element number ``position``; None, again and again, as
    long as the next one is not whole.
    """
    if config.growth is None:
        yield from config.order.windows(position, lane)
        return
    number: int | None = None  # of the next window, in epoch 0
    while (now := config.now).growth is not None:
        order = now.order
        if number is None:
            needed = (position + 1) * order.lanes - lane - 1
            place = int(np.searchsorted(order.ends, needed, side="right")) // order.window
            number = place if place < order.sealed_windows else None
        if number is None or number >= order.sealed_windows:
            yield None
        else:
            yield order.sealed_window(number)
            number += 1
    if number is None:
        yield from now.order.windows(position, lane)
    else:
        yield from now.order.windows_from(0, number)


class Sealed:
    """How much of a set that may still grow lies in whole windows.

    Attributes:
        growth: of the set.
        has_all: whether the set is complete.
    """

    def __init__(self, config: EngineConfig) -> None:
        assert config.growth is not None
        self.growth = config.growth
        self.has_all = False
        self._config = config
        self._known: object = None
        self._elements = 0

    def has(self, elements: int) -> bool:
        """Whether so many elements, with which the set begins, are in them."""
        if self.growth.known is not self._known:  # asked for every row, and what is known changes every minute
            self._known = self.growth.known
            now = self._config.now
            self._elements, self.has_all = now.order.sealed_total, now.growth is None
        return self.has_all or elements <= self._elements

    def needed(self, positions: IntArray | int, seq_len: int, overlap: int, ends: IntArray | None) -> int:
        """The elements that rows of all lanes need; see `Packer.rows`."""
        config, order = self._config, self._config.order
        lanes = np.arange(config.first, config.last)
        stops = order.stops(np.broadcast_to(positions, len(lanes)), 1, seq_len=seq_len, overlap=overlap)
        if ends is not None:
            stops = np.minimum(stops, ends // order.unit)
        # Lane i comes to its element p - 1 where C + i reaches p B.
        return int((stops * order.lanes - lanes).max())


def expected(config: EngineConfig) -> EngineConfig:
    """What an engine of a set that may still grow reckons with: a whole window, of row groups a quarter larger than the
    largest so far.
    """
    if config.growth is None:
        return config
    codecs = [np.unique(each.codec) for each in (config.index, *config.index.aligned)]
    count = 1 + max(config.order.window, *(len(each) for each in codecs))

    def larger(numbers: IntArray) -> IntArray:
        most = int(numbers.max())
        return np.array([most, *[most + most // 4 + 1] * (count - 1)], np.int64)

    def grown(each: DatasetIndex) -> DatasetIndex:
        return replace(
            each,
            rows=larger(each.rows),
            slots=larger(each.slots),
            tokens=larger(each.tokens),
            length=larger(each.length),
            codec=np.resize(np.unique(each.codec), count),
            aligned=tuple(map(grown, each.aligned)),
        )

    return config.with_index(grown(config.index))


def check_outgrown(reckoned: EngineConfig, now: EngineConfig) -> None:
    """Refuse to go on with an engine that has too little for a set as it is now.

    Args:
        reckoned: what the engine was made for; see `expected`.
        now: the set.

    Raises:
        OutgrownError: it has.
    """
    window = now.order.window
    if required_bytes(now, window) > required_bytes(reckoned, window):
        raise OutgrownError("the set has larger row groups than when the engine was made")
