"""What an engine is going to hold: its own planning and admission, without a byte being read."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

from ..order.order import Window
from .config import EngineConfig
from .cost import beyond_bytes, kept_by_threads
from .engine import AHEAD_BYTES, AHEAD_WINDOWS, segments_bytes
from .plan import TaskPlan, WindowPlan, plan_window
from .prefetch import Budget, Task, rehearse

__all__ = ["expected_peak_bytes"]


def expected_peak_bytes(
    sources: Sequence[EngineConfig],
    demand: Iterable[tuple[int, Window]],
    *,
    least_bytes: int,
    reserved_bytes: int = 0,
) -> int:
    """The most bytes that an engine holds where whoever takes rows is slower than it is, as training is.

    Threads that are slower hold less: a window is used up before the one after the next is begun. What single row
    groups hold beyond what was thought is not in it; see `Reserve`.

    Args:
        sources, least_bytes, reserved_bytes: the engine's.
        demand: windows, as for the engine; finitely many.
    """
    beyond = beyond_bytes(sources, least_bytes)
    workers = max(max(source.threads, source.requests) for source in sources)
    budget = Budget(least_bytes + beyond)
    budget.acquire(kept_by_threads(sources) + reserved_bytes)
    if sources[0].processes:
        budget.acquire(segments_bytes(sources, beyond))
    rehearse(
        _tasks(sources, demand, beyond, budget),
        budget,
        threads=workers,
        ahead_bytes=AHEAD_BYTES,
        ahead_groups=AHEAD_WINDOWS * workers,
    )
    return budget.peak_bytes


def _tasks(
    sources: Sequence[EngineConfig], demand: Iterable[tuple[int, Window]], spare_bytes: int, budget: Budget
) -> Iterator[Task[int]]:
    for place, window in demand:
        plan = plan_window(sources[place], window, spare_bytes)
        for task in plan.tasks:
            more = task is not plan.tasks[-1]
            yield Task(functools.partial(_run, plan, task, budget), task.cost_bytes, more=more, stream=place)


def _run(plan: WindowPlan, task: TaskPlan, budget: Budget) -> int:
    """Release what a task does; returns what its slices hold."""
    costs = [plan.costs[ordinal] for ordinal in task.ordinals]
    # Bands that end in it: their text has been cut by then, if the tasks before it are done.
    texts = (sum(held) for band, held in plan.texts.items() if _last_group(plan, band.end) in task.ordinals)
    budget.release(task.gap_bytes + sum(cost.fetch for cost in costs) + sum(texts))
    return sum(cost.slices for cost in costs)


def _last_group(plan: WindowPlan, end: int) -> int:
    """The row group that holds the token before ``end``, an ordinal in the window."""
    return int(plan.window.offsets.searchsorted(end, side="left")) - 1
