"""What a run will do, before it does it: steps, epochs, stages and ends; memory and reads on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import isqrt

import numpy as np

from ..checkpoint import ONLY, check_part
from ..engine.config import EngineConfig
from ..engine.cost import beyond_bytes, required_bytes
from ..engine.mixer import demand, mixture_bytes, sheets_bytes
from ..engine.rehearsal import expected_peak_bytes
from ..errors import CheckpointMismatchError, ConfigError, SourceExhaustedError
from ..options import LoaderOptions, check_world_size, integer
from ..order.mixture import BLOCK, Lattice, Weights
from ..order.order import Window, lane_range
from ..order.progress import MixtureProgress, Progress
from ..remarks import in_words, remarks
from ..runs import MixtureRun, SetRun, windows_of
from .reads import RankReads, reads_of_ranks, stretches
from .sealed import check_known, growing_sets, grows

__all__ = [
    "Cuts",
    "Moment",
    "Plan",
    "ShufflePlan",
    "SourcePlan",
    "StagePlan",
    "WorldSizePlan",
    "dividing_world_sizes",
    "moment",
    "plan",
]

_MOST_PLANS = 800  # windows that are planned for one world size, all ranks together: about a second
_MOST_WORLD_SIZES = 8  # that are told of where none are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point of a run.

    Attributes:
        step: batches before it, since the run began.
        token: tokens before it, of all lanes, since the run began.
    """

    step: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How documents of a source are cut, in an epoch.

    Attributes:
        documents: of the set; the index tells.
        mean_tokens: of a document.
        lane_borders: places at which lanes' borders cut windows; exact in the mean of epochs.
        cut_by_lanes: documents that one of them falls in, about.
        rows: of this source.
        in_several_rows: the share of documents that lie in more than one row, if all of a row group are of its mean
            length. Where some are far longer than others, it is less.
        documents_in_a_row: with pieces of documents counted as such, about.
    """

    documents: int
    mean_tokens: float
    lane_borders: int
    cut_by_lanes: float
    rows: float
    in_several_rows: float
    documents_in_a_row: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShufflePlan:
    """How well a source is shuffled; docs/order.md tells what these numbers were measured to mean.

    Attributes:
        window: row groups that are shuffled together, as the run has it: there may be fewer.
        row_groups: that there are.
        window_tokens: that a window holds, in the mean.
        share: of the set that a window is; 1 mixes as well as chance, or better.
        rows_of_window: of a lane. A document's rows all come within them.
        draws: about as many independent draws a batch is, of a set that is sorted: places of the set that its rows
            come from. Where documents are stored in random order it does not matter.
        shown_before: the share of the tokens whose document was in its lane's row just before, if all documents were
            of mean length; long ones make it more. None where that is not known, as of a stream.
    """

    window: int
    row_groups: int
    window_tokens: int
    share: float
    rows_of_window: float
    draws: int
    shown_before: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """What a source gives.

    Attributes:
        name: None where the run has one set.
        paths: where it lies, without secrets.
        tokens: of one epoch of it.
        drawn: tokens that the run has had of it by the end.
        epochs: how many epochs that is.
        target: the share of the run's tokens that its weights ask for; 1 where the run has one set.
        achieved: the share that it gets.
        repeats: when its second epoch begins; None where it does not.
        max_epochs: after which it may not be repeated; None for no such limit.
        exhausted: when it has given these; None where it has not by the end.
        then: what happens then: ``"error"``, or ``"redistribute"``.
        cuts, shuffle: see there.
    """

    name: str | None
    paths: tuple[str, ...]
    tokens: int
    drawn: int
    epochs: float
    target: float
    achieved: float
    repeats: Moment | None
    max_epochs: int | None
    exhausted: Moment | None
    then: str | None
    cuts: Cuts | None
    shuffle: ShufflePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A stage of a mixture, from its first step on.

    Attributes:
        begin, end: where it is.
        by: ``"schedule"``, ``"reweight"``, or ``"exhausted"`` where a source had no more to give.
        scheduled: the token that it was scheduled for; stages begin with the next block of 64 steps. None where it was
            not scheduled.
        target: shares, by its weights.
        achieved: shares of its tokens.
    """

    begin: Moment
    end: Moment
    by: str
    scheduled: int | None
    target: dict[str, float]
    achieved: dict[str, float]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will do.

    Attributes:
        seq_len, lanes, seed, shuffle: of the run.
        step_tokens: of a global batch.
        begin: where the run is.
        end: after the last planned step.
        steps, tokens: between them.
        over: why it ends before what was asked for; None where it does not.
        sources: each of them.
        stages: of a mixture, from the run's beginning on.
        world_sizes: the run on other numbers of ranks.
        dividing: the world sizes that divide the lanes.
        notes: what else is worth knowing.
    """

    seq_len: int
    lanes: int
    seed: int
    shuffle: bool
    step_tokens: int
    begin: Moment
    end: Moment
    steps: int
    tokens: int
    over: str | None
    sources: tuple[SourcePlan, ...]
    stages: tuple[StagePlan, ...]
    world_sizes: tuple[WorldSizePlan, ...]
    dividing: tuple[int, ...]
    notes: tuple[str, ...]


def plan(
    run: SetRun | MixtureRun,
    *,
    tokens: int | None = None,
    steps: int | None = None,
    world_sizes: Sequence[int] | None = None,
    exact: bool = False,
    part: tuple[int, int] | None = None,
) -> Plan:
    """What a run will do from where it is, from the index alone.

    Args:
        run: from `open_run`.
        tokens: to which it goes, counted from its beginning.
        steps: to which it goes, in place of tokens. None of both for the rest of the epoch, or of its `epochs`; a
            mixture's epoch is as many tokens as its sources hold.
        world_sizes: numbers of ranks; None for some that divide the lanes, or of a part for those that it is of.
        exact: count what is read for every window, however long it takes; else a long run is scaled from some.
        part: (rank, world size) whose checkpoint the run goes on from, where it was not merged: other numbers of ranks
            are refused then, as the loader does.

    Raises:
        ConfigError: tokens and steps at once, or numbers that are none; or of a set that still grows more than is known
            of it, or neither.
    """
    if tokens is not None and steps is not None:
        raise ConfigError(f"give tokens={tokens} or steps={steps}, not both")
    options, progress = run.options, run.progress
    rows, over = _rows_to_go(run, tokens, steps)
    end, error = _advanced(run, rows)
    check_known(run, end.rows_before(end.position))
    dividing = dividing_world_sizes(options.lanes)
    if world_sizes is None and part is not None:
        world_sizes = [part[1]]
    elif world_sizes is None:
        powers = [size for size in dividing if size & (size - 1) == 0]
        world_sizes = (powers if len(powers) > 2 else dividing)[:_MOST_WORLD_SIZES]
    most_plans = None if exact else _MOST_PLANS
    begin, until = moment(run, progress, progress.position), moment(run, end, end.position)
    stages = _stages(run, end) if isinstance(end, MixtureProgress) and isinstance(run, MixtureRun) else ()
    sources = tuple(_sources(run, end, error))
    return Plan(
        seq_len=options.seq_len,
        lanes=options.lanes,
        seed=options.seed,
        shuffle=options.shuffle,
        step_tokens=options.lanes * options.seq_len,
        begin=begin,
        end=until,
        steps=until.step - begin.step,
        tokens=until.token - begin.token,
        over=over if error is None else str(error),
        sources=sources,
        stages=stages,
        world_sizes=tuple(
            _on_ranks(run, end, integer("world_size", world_size, 1), most_plans, part) for world_size in world_sizes
        ),
        dividing=dividing,
        notes=(*_notes_of_stages(stages), *_notes_of_ends(sources), *_notes(run, end)),
    )


def dividing_world_sizes(lanes: int) -> tuple[int, ...]:
    """The numbers of ranks that get equally many lanes each."""
    small = [size for size in range(1, isqrt(lanes) + 1) if lanes % size == 0]
    return tuple(sorted({*small, *(lanes // size for size in small)}))


# ── how far ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _rows_to_go(run: SetRun | MixtureRun, tokens: int | None, steps: int | None) -> tuple[int, str | None]:
    """Rows of a lane from here on, and why they are fewer than was asked for."""
    options, progress = run.options, run.progress
    over = None
    if tokens is not None:
        wanted = -(-integer("tokens", tokens, 0, 2**62) // options.lanes)
        rows = -(-max(0, wanted - progress.position) // options.seq_len)
    elif steps is not None:
        rows = max(0, integer("steps", steps, 0, 2**62) - progress.rows_before(progress.position))
    elif growing_sets(run):
        raise ConfigError(f"nobody knows where the epoch ends, as {grows(run)}: give tokens or steps")
    elif isinstance(run, MixtureRun):
        whole = sum(each.config.order.total_tokens for each in run.sets.values())
        wanted = (run.epoch + 1) * whole // options.lanes
        rows = -(-max(0, wanted - progress.position) // options.seq_len)
    elif run.finish is not None:
        rows = 2**62
    else:
        following = run.order.epoch_begin(run.epoch + 1)
        rows = -(-max(0, following - progress.position) // options.seq_len)
    if isinstance(run, SetRun) and run.finish is not None:
        left = -(-max(0, run.finish.stop - progress.position) // options.seq_len)
        if rows > left and (tokens is not None or steps is not None):
            over = f"the run ends after epochs={options.epochs}"
        rows = min(rows, left)
    return rows, over


def _advanced(run: SetRun | MixtureRun, rows: int) -> tuple[Progress, SourceExhaustedError | None]:
    """The place after so many rows, or the last one before an error."""
    try:
        return run.advanced(rows), None
    except SourceExhaustedError as found:
        error = found
    low, high = 0, rows  # that many may be taken, that many may not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            run.advanced(middle)
            low = middle
        except SourceExhaustedError:
            high = middle
    return run.advanced(low), error


def moment(run: SetRun | MixtureRun, progress: Progress, position: int) -> Moment:
    """A position that a place's history leads to."""
    return Moment(step=progress.rows_before(position), token=position * run.options.lanes)


# ── mixtures ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _shares(weights: Weights) -> dict[str, float]:
    whole = sum(weight for _, weight in weights)
    return {name: weight / whole for name, weight in weights}


def _stages(run: MixtureRun, end: MixtureProgress) -> tuple[StagePlan, ...]:
    lattice = run.plan.lattice
    begun = {stage.block: stage for stage in end.stages if stage.block * BLOCK < end.row}  # the last of each block
    scheduled = {block: token for block, token, _ in run.plan.scheduled(end)}
    borders = [block * BLOCK for block in begun] + [end.row]
    places = [end.at_row(row, lattice) for row in borders]
    found = []
    for number, (block, stage) in enumerate(begun.items()):
        before, after = places[number], places[number + 1]
        target = _shares(stage.weights)
        drawn = {name: after.consumed(name, lattice) - before.consumed(name, lattice) for name in target}
        whole = sum(drawn.values())
        found.append(
            StagePlan(
                begin=moment(run, end, before.position),
                end=moment(run, end, after.position),
                by=stage.by,
                scheduled=scheduled.get(block) if stage.by == "schedule" else None,
                target=target,
                achieved={name: tokens / whole for name, tokens in drawn.items()},
            )
        )
    return tuple(found)


def _targets(run: MixtureRun, end: MixtureProgress) -> dict[str, float]:
    """The shares of the whole run that weights ask for, whatever was exhausted."""
    stages = [stage for stage in end.stages if stage.by != "exhausted" and stage.block * BLOCK < end.row]
    places = [min(stage.block * BLOCK, end.row) for stage in stages] + [end.row]
    found: dict[str, float] = {}
    for stage, low, high in zip(stages, places, places[1:], strict=False):
        tokens = end.position_of(high) - end.position_of(low)
        for name, share in _shares(stage.weights).items():
            found[name] = found.get(name, 0) + share * tokens / max(1, end.position)
    return found


def _first_row(end: MixtureProgress, lattice: Lattice, name: str, tokens: int) -> int | None:
    """The first row before which the lanes have had so many tokens of a source; None where that does not come."""
    if end.consumed(name, lattice) < tokens:
        return None
    low, high = -1, end.row  # after that many rows they have not, after that many they have
    while high - low > 1:
        middle = (low + high) // 2
        if end.at_row(middle, lattice).consumed(name, lattice) < tokens:
            low = middle
        else:
            high = middle
    return high


def _exhausted(end: MixtureProgress) -> dict[str, int]:
    """The rows before which sources had given all that they may."""
    found = {}
    for before, after in zip(end.stages, end.stages[1:], strict=False):
        if after.by == "exhausted":
            for name in {name for name, _ in before.weights} - {name for name, _ in after.weights}:
                found[name] = after.block * BLOCK
    return found


def _sources(run: SetRun | MixtureRun, end: Progress, stopped: SourceExhaustedError | None) -> Iterator[SourcePlan]:
    options = run.options
    if isinstance(run, SetRun):
        order = run.order
        total = order.total_tokens
        drawn = min(end.position * order.lanes, (options.epochs or 2**62) * total)
        repeats = None
        if drawn > total:
            row = end.rows_before(end.position) - (end.position - order.epoch_begin(1)) // options.seq_len
            repeats = moment(run, end, end.position_of(row))
        yield SourcePlan(
            name=None,
            paths=tuple(run.set.config.storage.identity.split("\n")),
            tokens=total,
            drawn=drawn,
            epochs=drawn / total,
            target=1.0,
            achieved=1.0,
            repeats=repeats,
            max_epochs=options.epochs,
            exhausted=moment(run, end, end.position) if run.finish and end.position >= run.finish.stop else None,
            then="end" if options.epochs is not None else None,
            cuts=_cuts(run.set.config, options),
            shuffle=_shuffle(run.set.config, options),
        )
        return
    assert isinstance(end, MixtureProgress)
    targets, exhausted = _targets(run, end), _exhausted(end)
    exhausted.update(dict.fromkeys(stopped.sources if stopped is not None else (), end.rows_before(end.position)))
    for name, each in run.sets.items():
        drawn, total = end.consumed(name, run.plan.lattice), each.config.order.total_tokens
        again, spent = _first_row(end, run.plan.lattice, name, total), exhausted.get(name)
        yield SourcePlan(
            name=name,
            paths=tuple(each.config.storage.identity.split("\n")),
            tokens=total,
            drawn=drawn,
            epochs=drawn / total,
            target=targets.get(name, 0.0),
            achieved=drawn / max(1, end.position * options.lanes),
            repeats=None if again is None else moment(run, end, end.position_of(again)),
            max_epochs=each.max_epochs,
            exhausted=None if spent is None else moment(run, end, end.position_of(spent)),
            then=None if each.max_epochs is None else "redistribute" if run.plan.redistribute else "error",
            cuts=_cuts(each.config, options),
            shuffle=_shuffle(each.config, options),
        )


# ── the order ────────────────────────────────────────────────────────────────────────────────────────────────────


def _cuts(config: EngineConfig, options: LoaderOptions) -> Cuts | None:
    order, index = config.order, config.index
    documents = index.documents
    if documents is None:
        return None
    windows = -(-len(index) // order.window)
    borders = windows * (order.lanes - 1)
    if order.row_tokens:
        return Cuts(
            documents=documents,
            mean_tokens=int(index.tokens.sum()) / documents,
            lane_borders=borders,
            cut_by_lanes=0.0,
            rows=float(documents),
            in_several_rows=0.0,
            documents_in_a_row=1.0,
        )
    # A border lies at the begin of a document as often as documents begin among tokens.
    filled = np.minimum(index.rows, order.group_tokens)
    inside = 1 - float(filled.sum()) / order.total
    rows = order.total / options.seq_len
    lengths = order.group_tokens / np.maximum(1, filled)
    several = np.minimum(1, np.maximum(0, lengths - 1) / options.seq_len)
    return Cuts(
        documents=documents,
        mean_tokens=order.total / max(1, documents),
        lane_borders=borders,
        cut_by_lanes=min(borders * inside, float(documents)),
        rows=rows,
        in_several_rows=float((several * filled).sum() / max(1, filled.sum())),
        documents_in_a_row=(documents + (borders + rows) * inside) / rows,
    )


def _shuffle(config: EngineConfig, options: LoaderOptions) -> ShufflePlan:
    order, groups = config.order, len(config.index)
    window = min(order.window, groups)
    window_tokens = order.total_tokens * window // groups
    rows = window_tokens / order.lanes / options.seq_len
    draws = min(order.lanes, window)
    before = None
    if order.row_tokens:
        before = 0.0
    elif config.index.documents is not None:
        rows_of_document = order.total / max(1, config.index.documents) / options.seq_len
        before = min(1.0, rows_of_document / max(1.0, rows))
        if not order.shuffle:  # what a row begins with goes on from the row before
            before = 1 - 1 / rows_of_document / 2 if rows_of_document > 1 else rows_of_document / 2
    return ShufflePlan(
        window=order.window,
        row_groups=groups,
        window_tokens=window_tokens,
        share=window / groups,
        rows_of_window=rows,
        draws=draws,
        shown_before=before,
    )


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _on_ranks(
    run: SetRun | MixtureRun, end: Progress, world_size: int, most_plans: int | None, part: tuple[int, int] | None
) -> WorldSizePlan:
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
    following, _ = _advanced(run, 1)
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


def _notes_of_stages(stages: Sequence[StagePlan]) -> Iterator[str]:
    if any(stage.scheduled for stage in stages):
        yield (
            f"a stage begins with the next block of {BLOCK} steps, at or after the token that it is scheduled for: "
            "shares are exact in whole blocks"
        )


def _notes_of_ends(sources: Sequence[SourcePlan]) -> Iterator[str]:
    for source in sources:
        left = 0 if source.max_epochs is None else source.max_epochs * source.tokens - source.drawn
        if source.exhausted is not None and source.name is not None and left > 0:
            yield (
                f"source {source.name!r} counts as used up at step {source.exhausted.step:,}, after "
                f"{source.epochs:.2f} of {source.max_epochs} epochs: the {left:,} tokens that are left are fewer than "
                f"the next block of {BLOCK} steps needs"
            )


def _notes(run: SetRun | MixtureRun, end: Progress) -> Iterator[str]:
    if isinstance(run, MixtureRun) and isinstance(end, MixtureProgress):
        for block, token, _ in run.plan.scheduled(end):
            if block * BLOCK >= end.row:
                yield f"the stage that is scheduled for token {token:,} begins after the end of this plan"
    for name, remark in remarks(run.configs, run.options, 1):
        yield in_words(name, remark)
