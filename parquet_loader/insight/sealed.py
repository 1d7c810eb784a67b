"""How far ahead anything is known of a run whose set, or one of whose sources, may still grow.

row groups    │ a b c │ d e f │ g h ┊ ...         windows of 3
steps         0 1 2 3 4 5 6 ▲
                            └─ what follows lies in a window that is not whole, and may be of any size
"""

from __future__ import annotations

import bisect
from dataclasses import replace

import numpy as np

from ..errors import ConfigError, SourceExhaustedError
from ..order.mixture import BLOCK
from ..runs import MixtureRun, SetRun
from ..sets import OpenSet
from .steps import MOST_STEPS, progress_at

__all__ = ["check_known", "growing_sets", "grows", "known_steps"]


def growing_sets(run: SetRun | MixtureRun) -> dict[str, OpenSet]:
    """The sets of a run that may still grow, by name."""
    return {name: each for name, each in run.sets.items() if each.config.growth is not None}


def known_steps(run: SetRun | MixtureRun) -> int | None:
    """The steps, from the run's first on, that stay as they are whatever is added to its sets; None for all."""
    if not growing_sets(run):
        return None
    bound = 1
    while _is_known(run, bound - 1):
        bound *= 2
        if bound > MOST_STEPS:  # the mixture does not draw from what grows any more
            return None
    return bisect.bisect_left(range(bound), True, key=lambda number: not _is_known(run, number))


def check_known(run: SetRun | MixtureRun, steps: int) -> None:
    """Refuse more steps than are known.

    Raises:
        ConfigError: so many are not known yet.
    """
    if not steps or not growing_sets(run) or _is_known(run, steps - 1):
        return
    known = known_steps(run)
    assert known is not None
    raise ConfigError(
        f"step {steps - 1:,} is not known yet: {grows(run)}, and {_told(known)}; ask again when more is there"
    )


def grows(run: SetRun | MixtureRun) -> str:
    """What of a run may still grow, and how much of it is there."""
    found = growing_sets(run)
    if isinstance(run, SetRun):
        what, verb = "the set", "grows"
    else:
        what, verb = ", ".join(map(repr, found)), "grows" if len(found) == 1 else "grow"
        what = f"{'source' if len(found) == 1 else 'the sources'} {what}"
    files = sum(len(each.config.index.files) for each in found.values())
    return f"{what} still {verb}, of which {files:,} {'file is' if files == 1 else 'files are'} there"


def _told(known: int) -> str:
    if not known:
        return "no step lies in whole windows so far"
    return f"{known:,} {'step is' if known == 1 else 'steps are'} known so far (from step 0 on)"


def _is_known(run: SetRun | MixtureRun, number: int) -> bool:
    """Whether a step and all before it lie in windows that are whole, in every set that may still grow."""
    lanes, overlap = run.options.lanes, run.options.overlap
    if isinstance(run, SetRun):
        position = run.progress.position_of(number)
        stops = run.order.stops(position, 1, seq_len=run.progress.length_at(position), overlap=overlap)
        return stops * lanes <= run.order.sealed_total
    try:
        after = progress_at(run, number + 1, entered=False)
        begun = progress_at(run, number // BLOCK * BLOCK)
    except SourceExhaustedError:
        return False
    for name, opened in growing_sets(run).items():
        order = opened.config.order
        had = np.broadcast_to(np.asarray(after.had(name, run.plan.lattice, 0, lanes), np.int64), lanes)
        some = had.nonzero()[0]
        reach = order.stops(had[some], 0, seq_len=0, overlap=overlap)
        # Lane i comes to its element p - 1 where C + i reaches p B.
        if len(some) and int((reach * order.lanes - some).max()) > order.sealed_total:
            return False
        # Nobody knows whether a source that ends has enough for a block of which not all is there.
        limits = {} if opened.max_epochs is None else {name: opened.limit}
        if not begun.lasts(name, 1, replace(run.plan, limits=limits)):
            return False
    return True
