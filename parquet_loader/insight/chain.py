"""Whether checkpoints are of one run, and what was done to it between them: from their states alone.

A state's history begins with the run, so that an earlier checkpoint's is how every later one's begins:

    step 100    rows of 2,048                                      ┐ the same up to step 100
    step 300    rows of 2,048, batches 150 to 160 skipped          ┘ ┐ not the same up to step 300:
    step 400    rows of 2,048, batches 310 to 311 skipped            ┘ the run was forked before step 150
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ..checkpoint import ONLY, RunState, integer_of, read_state
from ..errors import CheckpointError
from ..order.mixture import BLOCK, shown_weights
from ..order.progress import Stage
from .describe import CheckpointDescription, Saved, describe, progress_of, saved_of, weights_words, why_words

__all__ = ["ChainEvent", "ChainLink", "ChainReport", "check_chain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A step at which the run was saved.

    Attributes:
        names: of the checkpoints: one, or those of its ranks.
        step: batches before it.
        token: tokens before it.
        ranks: whose parts they are; None for a merged one, or a state.
        world_size: of the run there; None where only states are known.
        missing: ranks of which there is no part.
    """

    names: tuple[str, ...]
    step: int
    token: int
    ranks: tuple[int, ...] | None
    world_size: int | None
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEvent:
    """Something that was done to the run.

    Attributes:
        step, token: where.
        kind: ``"seq_len"``, ``"skip"``, ``"stage"``, ``"world_size"`` or ``"sources"``.
        text: what, in words.
    """

    step: int
    token: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    """What a chain of checkpoints tells.

    Attributes:
        links: the steps, rising.
        events: what was done to the run, rising by step.
        problems: why they are not those of one run, in order and complete; empty where they are.
        notes: of what an earlier one was about to do, and a later one did not.
    """

    links: tuple[ChainLink, ...]
    events: tuple[ChainEvent, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether they are of one run."""
        return not self.problems


class _Step(NamedTuple):
    link: ChainLink
    state: RunState
    told: CheckpointDescription


def check_chain(checkpoints: Mapping[str, bytes | Saved | Mapping[str, Any]]) -> ChainReport:
    """Look at checkpoints of one run, in any order.

    Args:
        checkpoints: by name: bytes of checkpoints, merged ones and parts of ranks, or states. Parts of one step count
            as one.
    """
    problems: list[str] = []
    same: dict[tuple[Any, ...], list[tuple[str, Saved]]] = {}
    for name, given in checkpoints.items():
        try:
            saved = saved_of(given)
            progress_of(read_state(saved.state))
        except CheckpointError as error:
            problems.append(f"{name}: {error}")
            continue
        # Parts of one step on one number of ranks; what is whole stands alone.
        alone = name if saved.rank is None else saved.world_size
        same.setdefault((*sorted((key, str(value)) for key, value in saved.state.items()), alone), []).append(
            (name, saved)
        )
    steps = sorted((_step(parts) for parts in same.values()), key=lambda each: (each.link.step, each.link.names))
    whole = {repr(step.state) for step in steps if step.link.ranks is None}
    for step in steps:
        if step.link.missing and repr(step.state) not in whole:
            some = ", ".join(f"rank {rank}" for rank in step.link.missing[:10])
            more = len(step.link.missing) - 10
            problems.append(
                f"step {step.link.step:,}: of {step.link.world_size} ranks' parts some are missing: {some}"
                + (f" and {more} more" if more > 0 else "")
            )
    for before, after in pairwise(steps):
        problems += _differences(before, after)
    return ChainReport(
        links=tuple(step.link for step in steps),
        events=tuple(sorted(_events(steps), key=lambda each: each.step)),
        problems=tuple(problems),
        notes=tuple(_not_done(steps)),
    )


def _step(parts: list[tuple[str, Saved]]) -> _Step:
    _, first = parts[0]
    told = describe(first)
    ranks = None if first.rank is None else tuple(sorted({saved.rank or 0 for _, saved in parts}))
    there = set(ranks or ())
    missing = () if ranks is None else tuple(rank for rank in range(first.world_size or 0) if rank not in there)
    link = ChainLink(
        names=tuple(name for name, _ in parts),
        step=told.step,
        token=told.token,
        ranks=ranks,
        world_size=first.world_size,
        missing=missing,
    )
    return _Step(link, read_state(first.state), told)


_READ_SO_FAR = ("fingerprint", "files", "row_groups", "tokens", "rows", "whole")


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The fields by which what a later state keeps of a set is not what an earlier one keeps of it. Of a set that is
    followed a later one may keep more.
    """
    differing = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    if any(each.get("first_epoch") != "stored" for each in (before, after)):
        return differing
    earlier, later = (integer_of(each.get("row_groups")) or 0 for each in (before, after))
    if earlier < later and not before.get("whole"):
        return [name for name in differing if name not in _READ_SO_FAR]
    return [name for name in differing if earlier != later or name != "whole"]


def _differences(before: _Step, after: _Step) -> list[str]:
    """Why the later one is not what the earlier one became."""
    one, other = before.link.names[0], after.link.names[0]
    found = [
        f"{name} is {low} in {one} and {high} in {other}: they are of different runs"
        for name, low, high in (
            ("seed", before.state.seed, after.state.seed),
            ("lanes", before.state.lanes, after.state.lanes),
        )
        if low != high
    ]
    later = after.state.sources
    for name, identity in before.state.sources.items():
        if name == ONLY and after.state.is_mixture:  # a run of one set that became a mixture
            if before.state.position and not any(_differing(identity, each) == [] for each in later.values()):
                found.append(f"{one} is of one set, which is none of the sources of {other}")
        elif name in later:
            of = f"of {name!r} " if name else ""
            found += [
                f"{field} {of}is {identity.get(field)!r} in {one} and {later[name].get(field)!r} in {other}: "
                "they are of different runs"
                for field in _differing(identity, later[name])
            ]
        elif before.state.position:
            whose = f"the source {name!r}" if name else "one set"
            found.append(f"{one} is of {whose}, of which {other} knows nothing: they are of different runs")
    if found:
        return found
    early, late = (_history(step.state, before) for step in (before, after))
    parted = sorted(set(early) ^ set(late))
    if parted:
        position, text = parted[0]
        whose = one if (position, text) in early else other
        step = progress_of(before.state).rows_before(min(position, before.state.position))
        return [
            f"the run was forked at or before step {step:,}: {one} (step {before.link.step:,}) and {other} (step "
            f"{after.link.step:,}) have different pasts: {text}, only in {whose}"
        ]
    return []


def _not_done(steps: list[_Step]) -> Iterator[str]:
    """Stages that were to begin after a checkpoint, and that a later one, which has come there, does not have.

    Both may be of one run, which delivered the same up to the earlier one, and did not go on from it.
    """
    found: dict[tuple[Stage, str], str] = {}  # several checkpoints may tell of one: the last of them
    for place, before in enumerate(steps):
        for stage, begin in zip(before.state.stages, before.told.stages, strict=True):
            if begin.begun:
                continue
            after = next((step for step in steps[place + 1 :] if step.told.step > stage.block * BLOCK), None)
            if after is None or stage in after.state.stages or _differences(before, after):
                continue
            one, other = before.link.names[0], after.link.names[0]
            instead = next((_stage_words(each) for each in after.state.stages if each.block == stage.block), None)
            why = (
                "the run was resumed from before it was asked for"
                if instead is None
                else f"{instead} came in its place, or the run was resumed from before it was asked for"
            )
            found[stage, other] = (
                f"{one} (step {before.link.step:,}) has {_stage_words(stage)}, from step {begin.step:,} on, which was "
                f"not done in {other} (step {after.link.step:,}): {why}"
            )
    yield from found.values()


def _history(state: RunState, until: _Step) -> list[tuple[int, str]]:
    """What had been done to a run before another one's position, as (position, words)."""
    position = until.state.position
    if not position:
        return []
    progress = progress_of(state)
    rows = progress.rows_before(position)
    stages = state.stages
    if not state.is_mixture and until.state.is_mixture:
        stages = ()
    elif state.is_mixture and not until.state.is_mixture:
        stages = tuple(stage for stage in stages if stage.block)  # the first one draws from the one set alone
    return [
        *((begin, f"rows of {seq_len:,} tokens") for begin, seq_len in state.lengths if begin < position),
        *(
            (begin, f"{progress.rows_before(end) - progress.rows_before(begin):,} batches skipped")
            for begin, end in state.skips
            if begin < position
        ),
        *(
            (progress.position_of(stage.block * BLOCK), _stage_words(stage))
            for stage in stages
            if stage.block < -(-rows // BLOCK)
        ),
    ]


def _stage_words(stage: Stage) -> str:
    return f"weights {weights_words(shown_weights(stage.weights))}, {why_words(stage.by)}"


def _events(steps: list[_Step]) -> Iterator[ChainEvent]:
    """What was done to the run, each part of it told by the first checkpoint after it."""
    since = 0
    before: _Step | None = None
    for step in steps:
        told, lanes = step.told, step.state.lanes
        for change in told.lengths:
            if since <= change.token // lanes < step.state.position:
                yield ChainEvent(
                    step=change.step, token=change.token, kind="seq_len", text=f"rows of {change.seq_len:,} tokens"
                )
        for skip in told.skips:
            if since <= skip.token // lanes < step.state.position:
                text = f"{skip.batches:,} batches skipped, {skip.tokens:,} tokens"
                yield ChainEvent(step=skip.step, token=skip.token, kind="skip", text=text)
        for stage, began in zip(step.state.stages, told.stages, strict=True):
            if since <= began.token // lanes < step.state.position:
                yield ChainEvent(step=began.step, token=began.token, kind="stage", text=_stage_words(stage))
        if before is not None:
            sizes = before.link.world_size, step.link.world_size
            if None not in sizes and sizes[0] != sizes[1]:
                yield ChainEvent(
                    step=before.told.step,
                    token=before.told.token,
                    kind="world_size",
                    text=f"{sizes[0]} ranks until here or later, {sizes[1]} by step {told.step:,}",
                )
            known = before.state.sources
            new = sorted(
                name
                for name, identity in step.state.sources.items()
                if name not in known and (ONLY not in known or _differing(known[ONLY], identity))
            )
            if new and before.state.position:
                yield ChainEvent(
                    step=before.told.step,
                    token=before.told.token,
                    kind="sources",
                    text=f"drawn from for the first time before step {told.step:,}: "
                    f"{', '.join(name or 'the one set that the run is of' for name in new)}",
                )
        since, before = max(since, step.state.position), step
