"""What would fit a budget that is too small, from the index alone; pure. Each is what `required_bytes` then allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .config import EngineConfig
from .cost import required_bytes

__all__ = ["GOOD_TOKENS", "fitting_ranks", "fitting_threads", "fitting_window", "fitting_window_of_good_groups"]

GOOD_TOKENS = 1_000_000  # of a row group
_DICTIONARY_BYTES = 1 << 20  # the most that writers give a row group's dictionary


def fitting_window(config: EngineConfig) -> int:
    """The largest window, no larger than the run's, that fits; 0 where not even one row group does."""
    most = min(config.order.window, len(config.index))
    return _largest(most, lambda window: required_bytes(config, window) <= config.budget_bytes)


def fitting_threads(config: EngineConfig) -> int:
    """The largest number of threads, no larger than the loader's, with which the window fits; 0 where there is none."""
    window = config.order.window
    return _largest(
        config.threads,
        lambda threads: required_bytes(replace(config, threads=threads), window) <= config.budget_bytes,
    )


def fitting_ranks(config: EngineConfig) -> int:
    """The smallest world size, larger than this, that divides the lanes and with which the window fits; 0 where there
    is none.
    """
    lanes = config.order.lanes
    for ranks in range(lanes // (config.last - config.first) + 1, lanes + 1):
        if lanes % ranks == 0:
            one = replace(config, first=0, last=lanes // ranks)
            if required_bytes(one, config.order.window) <= config.budget_bytes:
                return ranks
    return 0


def fitting_window_of_good_groups(config: EngineConfig) -> int:
    """The largest window, no larger than the run's, that would fit if the set's row groups had no more than
    `GOOD_TOKENS`; 0 where that would not help.
    """
    index = config.index
    shares = np.minimum(1, GOOD_TOKENS / np.maximum(index.tokens, 1))
    if (shares == 1).all():
        return 0

    def share(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.ceil(numbers * shares).astype(np.int64)

    split = replace(
        index,
        rows=share(index.rows),
        slots=share(index.slots),
        tokens=share(index.tokens),
        length=share(index.length) + np.where(shares < 1, np.minimum(index.length, _DICTIONARY_BYTES), 0),
    )
    return fitting_window(
        replace(config, index=split, order=replace(config.order, group_tokens=share(config.order.group_tokens)))
    )


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``most`` that fits, where all below it do; 0 for none."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
