"""Memory and reads of a run on some number of ranks, by the engine's own reckoning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import isqrt

from ..checkpoint import ONLY, check_part
from ..engine.config import EngineConfig
from ..engine.cost import beyond_bytes, required_bytes
from ..engine.mixer import demand, mixture_bytes, sheets_bytes
from ..engine.rehearsal import expected_peak_bytes
from ..errors import CheckpointMismatchError, ConfigError
from ..options import check_world_size
from ..order.order import Window, lane_range
from ..order.progress import Progress
from ..runs import MixtureRun, SetRun, windows_of
from .reads import RankReads, reads_of_ranks, stretches
from .steps import advanced

__all__ = ["WorldSizePlan", "dividing_world_sizes", "on_ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSizePlan:
    """The run on so many ranks, from where it is to the plan's end.

    Attributes:
        world_size: ranks.
        divides: whether it divides the lanes.
        rows_least, rows_most: of a batch of a rank.
        refused: what the loader would say in place of running; None where it runs.
        least_bytes: the least budget, of the rank that needs most.
        peak_bytes: what a rank will hold at most, counted as its budget is, where training is slower than loading and
            as many requests run at once as may; None where the budget is too small.
        bytes_read: from storage, by all ranks together.
        reads: in as many requests.
        rank_bytes, rank_reads: the most of one rank.
        amplification: how many times the bytes that the same windows have are read.
        exact: whether that is counted for each window; else for some, and scaled.
        first_batch: what rank 0 reads before its first batch.
    """

    world_size: int
    divides: bool
    rows_least: int
    rows_most: int
    refused: str | None
    least_bytes: int
    peak_bytes: int | None
    bytes_read: int
    reads: int
    rank_bytes: int
    rank_reads: int
    amplification: float
    exact: bool
    first_batch: RankReads


def dividing_world_sizes(lanes: int) -> tuple[int, ...]:
    """The numbers of ranks that get equally many lanes each."""
    small = [size for size in range(1, isqrt(lanes) + 1) if lanes % size == 0]
    return tuple(sorted({*small, *(lanes // size for size in small)}))


def on_ranks(
    run: SetRun | MixtureRun, end: Progress, world_size: int, most_plans: int | None, part: tuple[int, int] | None
) -> WorldSizePlan:
    """A run on so many ranks.

    Args:
        run, end: it, and the place it goes to.
        world_size: ranks.
        most_plans: windows to plan at most, all ranks together; None for all that there are.
        part: (rank, world size) whose checkpoint the run goes on from, if it was not merged.
    """
    options, lanes = run.options, run.options.lanes
    refused = None
    try:
        check_world_size(world_size, lanes, options.uneven)
        if part is not None and part[1] != world_size:
            check_part(*part, 0, world_size)
    except (ConfigError, CheckpointMismatchError) as error:
        refused = str(error)
    ranks = min(world_size, lanes)
    places = [lane_range(rank, ranks, lanes) for rank in range(ranks)]
    configs = [_configs(run, first, last) for first, last in places]
    least = {last - first: 0 for first, last in places}
    for (first, last), of_rank in zip(places, configs, strict=True):
        if not least[last - first]:
            least[last - first] = _least_bytes(run, of_rank)
    spare = [
        beyond_bytes(list(each.values()), least[last - first]) if each else 0
        for (first, last), each in zip(places, configs, strict=True)
    ]
    needed = [stretches(run, end, first, last) for first, last in places]
    found, once, exact = reads_of_ranks(configs[0], needed, spare, most_plans=most_plans)
    largest = max(range(ranks), key=lambda rank: places[rank][1] - places[rank][0])
    least_bytes = max(least.values())
    peak = None
    try:
        run.check_budget(configs[largest], given=options.window is not None or run.progress.position > 0)
        # Those in the middle of windows lie in more row groups than the first.
        most = {largest, ranks // 2, max(range(ranks), key=lambda rank: found[rank].bytes)}
        peak = max(_peak_bytes(run, configs[rank], least_bytes) for rank in most) if configs[largest] else None
    except ConfigError as error:
        refused = refused or str(error)
    following, _ = advanced(run, 1)
    first_needed = [stretches(run, run.progress if run.over else following, *places[0])]
    first_batch, _, _ = reads_of_ranks(configs[0], first_needed, spare[:1])
    total = sum(each.bytes for each in found)
    return WorldSizePlan(
        world_size=world_size,
        divides=lanes % world_size == 0,
        rows_least=min(last - first for first, last in places) if world_size <= lanes else 0,
        rows_most=max(last - first for first, last in places),
        refused=refused,
        least_bytes=least_bytes,
        peak_bytes=peak,
        bytes_read=total,
        reads=sum(each.reads for each in found),
        rank_bytes=max(each.bytes for each in found),
        rank_reads=max(each.reads for each in found),
        amplification=total / max(1, once),
        exact=exact,
        first_batch=first_batch[0],
    )


def _configs(run: SetRun | MixtureRun, first: int, last: int) -> dict[str, EngineConfig]:
    # Of what is there, where more may come.
    return {name: replace(config, first=first, last=last, growth=None) for name, config in run.configs.items()}


def _least_bytes(run: SetRun | MixtureRun, configs: Mapping[str, EngineConfig]) -> int:
    if isinstance(run, SetRun):
        return required_bytes(configs[ONLY], configs[ONLY].order.window)
    return mixture_bytes(configs, run.progress, run.plan) if configs else 0


def _peak_bytes(run: SetRun | MixtureRun, configs: Mapping[str, EngineConfig], least_bytes: int) -> int:
    sources = list(configs.values())
    workers = max(max(source.threads, source.requests) for source in sources)
    windows: Iterator[tuple[int, Window | None]]
    reserved = 0
    if isinstance(run, SetRun):
        windows = windows_of(configs[ONLY], run.progress.position)
    else:
        windows = demand(configs, run.progress, run.plan)
        reserved = sheets_bytes(configs, run.options.seq_len + run.options.overlap)
    whole = ((place, window) for place, window in windows if window is not None)
    some = islice(whole, 4 * (len(sources) + workers) + 8)
    return expected_peak_bytes(sources, some, least_bytes=least_bytes, reserved_bytes=reserved)
