"""Budgets that are too small, and what would fit them, from the index alone; pure. `required_bytes` then allows it."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ..errors import ConfigError
from ..index.index import DatasetIndex
from ..order.progress import MixturePlan, MixtureProgress
from .config import EngineConfig
from .cost import required_bytes
from .mixer import mixture_bytes

__all__ = [
    "GOOD_TOKENS",
    "check_budget",
    "check_mixture_budget",
    "fitting_ranks",
    "fitting_threads",
    "fitting_window",
    "fitting_window_of_good_groups",
]

GOOD_TOKENS = 1_000_000  # of a row group
_DICTIONARY_BYTES = 1 << 20  # the most that writers give a row group's dictionary


def check_budget(config: EngineConfig, *, given: bool) -> None:
    """Refuse a budget that is too small for a window, and say what fits.

    Args:
        config: what the window is loaded for.
        given: whether the window was asked for, and not chosen.

    Raises:
        ConfigError: it is.
    """
    window = min(config.order.window, len(config.index))
    needed = required_bytes(config, window)
    if needed <= config.budget_bytes:
        return
    cures = [f"give at least {needed:,}"]
    if threads := fitting_threads(config):
        cures.append(f"or {'processes' if config.processes else 'threads'}={threads}, which fits")
    if fitting := fitting_window(config):
        cures.append(f"or, in a new run, window={fitting}, which fits")
        if not given:
            cures.append("or, to resume a run with a smaller one, its window")
    if len(cures) == 1:
        if (less := required_bytes(config, 1)) < needed:
            cures.append(f"or {less:,} in a new run with window=1")
        if ranks := fitting_ranks(config):
            cures.append(f"or use {ranks} ranks")
        if fitting := fitting_window_of_good_groups(config):
            cures.append(
                f"or write the files with row groups of about {GOOD_TOKENS:,} tokens (the largest holds "
                f"{int(config.index.tokens.max()):,}), of which window={fitting} fits"
            )
    raise ConfigError(
        f"budget_bytes {config.budget_bytes:,} is too small for a window of {window} row groups on this rank; "
        f"{', '.join(cures)}"
    )


def check_mixture_budget(configs: Mapping[str, EngineConfig], progress: MixtureProgress, plan: MixturePlan) -> None:
    """Refuse a budget into which not one window of each source fits, and one more of the largest.

    Args:
        configs: of the sources, by name.
        progress, plan: of the run.

    Raises:
        ConfigError: it is too small.
    """
    budget = next(iter(configs.values())).budget_bytes

    def needed(windows: Mapping[str, int]) -> int:
        orders = {name: replace(config.order, window=windows[name]) for name, config in configs.items()}
        sources = {name: replace(config, order=orders[name]) for name, config in configs.items()}
        return mixture_bytes(sources, progress, plan)

    windows = {name: min(config.order.window, len(config.index)) for name, config in configs.items()}
    least = needed(windows)
    if least <= budget:
        return
    largest = max(configs, key=lambda name: required_bytes(configs[name], windows[name]))
    smaller = {name: -(-window // 2) for name, window in windows.items()}
    while needed(smaller) > budget and max(smaller.values()) > 1:
        smaller = {name: -(-window // 2) for name, window in smaller.items()}
    cure = ""
    if needed(smaller) <= budget:
        shown = ", ".join(f"{name!r}: {window}" for name, window in smaller.items())
        cure = f"; or, in a new run, give Components a window, of which these fit: {shown}"
    raise ConfigError(
        f"budget_bytes {budget:,} is too small for a window of each of {len(configs)} sources on this rank, and one "
        f"more of the largest, which is {largest!r} with {windows[largest]} row groups; give at least {least:,}{cure}"
    )


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

    def split(each: DatasetIndex) -> DatasetIndex:
        return replace(
            each,
            rows=share(each.rows),
            slots=share(each.slots),
            tokens=share(each.tokens),
            length=share(each.length) + np.where(shares < 1, np.minimum(each.length, _DICTIONARY_BYTES), 0),
            aligned=tuple(map(split, each.aligned)),
        )

    return fitting_window(
        replace(config, index=split(index), order=replace(config.order, group_tokens=share(config.order.group_tokens)))
    )


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``most`` that fits, where all below it do; 0 for none."""
    return bisect.bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))
