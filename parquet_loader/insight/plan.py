"""What a run will do, before it does it: steps, epochs, stages and ends; memory and reads on any number of ranks."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import ConfigError, SourceExhaustedError
from ..options import integer
from ..order.mixture import BLOCK, Lattice, Weights
from ..order.progress import MixtureProgress, Progress
from ..remarks import in_words, remarks
from ..runs import MixtureRun, SetRun
from .mixing import Cuts, ShufflePlan, cuts_of, shuffle_of
from .ranks import WorldSizePlan, dividing_world_sizes, on_ranks
from .sealed import check_known, growing_sets, grows
from .steps import advanced

__all__ = [
    "Moment",
    "Plan",
    "SourcePlan",
    "StagePlan",
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
    end, error = advanced(run, rows)
    check_known(run, end.rows_before(end.position))
    dividing = dividing_world_sizes(options.lanes)
    if world_sizes is None and part is not None:
        world_sizes = [part[1]]
    elif world_sizes is None:
        powers = [size for size in dividing if size & (size - 1) == 0]
        world_sizes = (powers if len(powers) > 2 else dividing)[:_MOST_WORLD_SIZES]
    most_plans = None if exact else _MOST_PLANS
    begin, until = moment(run, progress, progress.position), moment(run, end, end.position)
    stages: tuple[StagePlan, ...] = ()
    sources: tuple[SourcePlan, ...]
    if isinstance(run, SetRun):
        sources = (_only_source(run, end),)
    else:
        assert isinstance(end, MixtureProgress)
        stages, sources = _stages(run, end), tuple(_sources(run, end, error))
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
            on_ranks(run, end, integer("world_size", world_size, 1), most_plans, part) for world_size in world_sizes
        ),
        dividing=dividing,
        notes=(*_notes_of_stages(stages), *_notes_of_ends(sources), *_notes(run, end)),
    )


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
    rows = range(end.row)
    return bisect.bisect_left(rows, tokens, key=lambda row: end.at_row(row, lattice).consumed(name, lattice))


def _exhausted(end: MixtureProgress) -> dict[str, int]:
    """The rows before which sources had given all that they may."""
    found = {}
    for before, after in zip(end.stages, end.stages[1:], strict=False):
        if after.by == "exhausted":
            for name in {name for name, _ in before.weights} - {name for name, _ in after.weights}:
                found[name] = after.block * BLOCK
    return found


def _only_source(run: SetRun, end: Progress) -> SourcePlan:
    options, order, config = run.options, run.order, run.set.config
    total = order.total_tokens
    drawn = min(end.position * order.lanes, (options.epochs or 2**62) * total)
    repeats = None
    if drawn > total:
        row = end.rows_before(end.position) - (end.position - order.epoch_begin(1)) // options.seq_len
        repeats = moment(run, end, end.position_of(row))
    return SourcePlan(
        name=None,
        paths=tuple(config.storage.identity.split("\n")),
        tokens=total,
        drawn=drawn,
        epochs=drawn / total,
        target=1.0,
        achieved=1.0,
        repeats=repeats,
        max_epochs=options.epochs,
        exhausted=moment(run, end, end.position) if run.finish and end.position >= run.finish.stop else None,
        then="end" if options.epochs is not None else None,
        cuts=cuts_of(config, options),
        shuffle=shuffle_of(config, options),
    )


def _sources(run: MixtureRun, end: MixtureProgress, stopped: SourceExhaustedError | None) -> Iterator[SourcePlan]:
    options = run.options
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
            cuts=cuts_of(each.config, options),
            shuffle=shuffle_of(each.config, options),
        )


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
