"""What would become of a run that goes on from a checkpoint otherwise than it was: before a GPU is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checkpoint import ONLY, RunState, check_part, read_state
from ..errors import CheckpointMismatchError, ConfigError, SourceExhaustedError
from ..order.mixture import BLOCK, shown_weights
from ..order.progress import MixtureProgress
from ..runs import MixtureRun, SetRun
from .describe import Saved, saved_of
from .plan import Moment, moment

__all__ = ["Resumption", "resumption"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What a run does with a state.

    Attributes:
        refused: what the loader would say in place of going on; None where it goes on.
        begin: where it goes on; None where it does not.
        repeated, skipped: tokens that would come twice, and that would never come, against a run that was not broken
            off. Both are 0 in every run that goes on.
        changes: what is otherwise from there on, a sentence each; empty where nothing is of all that a state keeps.
        not_kept: what a state does not keep, by name: it holds from there on as it is given now, whatever it was.
    """

    refused: str | None
    begin: Moment | None
    repeated: int
    skipped: int
    changes: tuple[str, ...]
    not_kept: Mapping[str, Any]


def resumption(
    run: SetRun | MixtureRun, saved: bytes | Saved | Mapping[str, Any], *, world_sizes: Sequence[int] = ()
) -> Resumption:
    """What a run, as it is configured now, does with a state of it as it was.

    Args:
        run: from `open_run`, without a state. Where it goes on, it is at the state's place afterwards; else as before.
        saved: a checkpoint, or what `state_dict` gave, or `Batch.state`.
        world_sizes: numbers of ranks that are to go on. One rank's part that was not merged is refused where it is of
            none of these.

    Raises:
        CheckpointDamagedError: no checkpoint and no state.
        ConfigError, StorageError, DataError: of a source that only the state draws from.
    """
    saved = saved_of(saved)
    told, before = read_state(saved.state), run.saved()
    defaults = {name: config.order.window for name, config in run.configs.items()}
    try:
        if world_sizes and saved.world_size not in world_sizes:
            check_part(saved.rank, saved.world_size, 0, world_sizes[0])
        run.progress = run.read(told)
    except (CheckpointMismatchError, SourceExhaustedError) as error:
        run.restore(before)
        return Resumption(refused=str(error), begin=None, repeated=0, skipped=0, changes=(), not_kept={})
    except ConfigError:
        run.restore(before)
        raise
    return Resumption(
        refused=None,
        begin=moment(run, run.progress, run.progress.position),
        repeated=0,
        skipped=0,
        changes=tuple(_changes(run, told, defaults)),
        not_kept=_not_kept(run),
    )


def _not_kept(run: SetRun | MixtureRun) -> dict[str, Any]:
    """What the run does from now on by its options alone."""
    options = run.options
    if isinstance(run, SetRun):
        free = "overlap" if run.set.config.rows is None else "pad_id"
        return {free: getattr(options, free), "epochs": options.epochs} | (
            {} if options.epochs is None else {"tail": options.tail}
        )
    limits = {name: each.max_epochs for name, each in run.sets.items()}
    return {"overlap": options.overlap, "max_epochs": limits} | (
        {"exhausted": options.exhausted} if any(limits.values()) else {}
    )


def _changes(run: SetRun | MixtureRun, state: RunState, windows: Mapping[str, int]) -> Iterator[str]:
    options, progress = run.options, run.progress
    former = state.lengths[-1][1]
    if former != options.seq_len:
        yield (
            f"rows have {options.seq_len:,} tokens and had {former:,}, so that a step is "
            f"{options.seq_len * options.lanes:,} tokens and was {former * options.lanes:,}; the text of each lane "
            "goes on where it was"
        )
    if options.skip_batches:
        yield f"skip_batches={options.skip_batches} does not count: the state says how far the run is"
    for name, config in run.configs.items():
        if name in windows and windows[name] != config.order.window:
            of = f"source {name!r}: " if name else ""
            yield f"{of}the window is that of the state, {config.order.window:,} row groups, not {windows[name]:,}"
    if isinstance(run, MixtureRun) and isinstance(progress, MixtureProgress):
        yield from _changes_of_mixture(run, progress, state)


def _changes_of_mixture(run: MixtureRun, progress: MixtureProgress, state: RunState) -> Iterator[str]:
    known = set(state.sources)
    if not state.is_mixture:
        known = set(progress.drawn())
        for name in known:
            yield f"the only set of the run so far, {state.sources[ONLY].get('files')} files, is source {name!r} now"
    for when, weights in _coming(run, progress) if state.position else ():
        yield f"from step {when.step:,}, token {when.token:,} on it draws {shown_weights(weights)}"
    needed = set(run.configs)
    drawn_last = {name for name, _ in progress.stages[-1].weights} if progress.stages else set()
    for name in sorted(needed - known):
        if known:
            yield f"source {name!r} is new, and begins at its beginning"
    for name in sorted((needed & known) - drawn_last):
        yield f"source {name!r} is drawn again, from where it was left"
    for name in sorted(known - needed):
        yield f"source {name!r} is not drawn any more; states keep its place, and its files are not needed"


def _coming(run: MixtureRun, progress: MixtureProgress) -> list[tuple[Moment, tuple[tuple[str, int], ...]]]:
    """Stages that begin from here on, each with where it does."""
    begun = -(-progress.row // BLOCK)
    stages = {stage.block: stage.weights for stage in progress.stages if stage.block >= begun}
    stages |= {block: weights for block, _, weights in run.plan.scheduled(progress) if block >= begun}
    last = next((stage.weights for stage in reversed(progress.stages) if stage.block < begun), None)
    found = []
    for block, weights in sorted(stages.items()):
        if weights != last:
            found.append((moment(run, progress, progress.position_of(block * BLOCK)), weights))
        last = weights
    return found
