"""What a checkpoint holds, and of which run: from its bytes alone, without a set.

bytes ──► saved state, rank, world size ──► its history, traced ──► steps, tokens, epochs of every source
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from ..checkpoint import ONLY, STATE_VERSION, RunState, integer_of, open_checkpoint, read_state
from ..container import container_kind
from ..errors import CheckpointDamagedError
from ..order.mixture import BLOCK, Lattice, shown_weights
from ..order.progress import MixtureProgress, Progress, traced

__all__ = [
    "CheckpointDescription",
    "LengthChange",
    "Saved",
    "Skip",
    "SourceDescription",
    "StageBegin",
    "describe",
    "open_saved",
    "progress_of",
    "saved_of",
    "weights_words",
    "why_words",
]

_NESTED = 4  # dicts in dicts of a trainer's file
_TORCH = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


_BEGINNINGS = (
    (b"PAR1", "a Parquet file"),
    (b"\x1f\x8b", "compressed by gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"\x93NUMPY", "an array of NumPy"),
    (b"{", "JSON that is cut off or not valid"),
)
_TOML = re.compile(r"^\s*[\w.-]+\s*=\s*\S", re.MULTILINE)


class Saved(NamedTuple):
    """A state as it was saved.

    Attributes:
        state: the state.
        rank: who wrote it; None for a merged checkpoint, and for a state alone.
        world_size: of the run that wrote it; None for a state alone.
    """

    state: Mapping[str, Any]
    rank: int | None
    world_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthChange:
    """From a step and a token of the run on, rows had this length."""

    step: int
    token: int
    seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """At a step and a token of the run, so many batches were skipped, and tokens in them."""

    step: int
    token: int
    batches: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBegin:
    """From a step and a token of the run on, sources had these weights.

    Attributes:
        by: ``"schedule"``, ``"reweight"``, or ``"exhausted"`` where a source had no more to give.
        begun: whether the run has come to it.
    """

    step: int
    token: int
    weights: Mapping[str, float]
    by: str
    begun: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDescription:
    """A set of the run.

    Attributes:
        name: in a mixture; None of the only one.
        consumed: tokens that the run has had of it, skipped ones among them.
        epochs: how often that is the whole set; None where the state does not say how large it is.
        identity: what the state keeps of it: fingerprint, files, row groups, tokens, column, window, EOS, shuffle.
    """

    name: str | None
    consumed: int
    epochs: float | None
    identity: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDescription:
    """What a checkpoint holds.

    Attributes:
        version: of its state.
        rank: that wrote it; None for a merged one, and for a state alone.
        world_size: of the run that wrote it; None for a state alone.
        seed, lanes: of the run.
        position: tokens consumed per lane.
        step: batches so far, skipped ones among them.
        token: tokens so far, of all lanes.
        epoch: of the next batch; None of a mixture.
        seq_len: tokens of a row.
        lengths, skips, stages: how it came there.
        sources: of what.
    """

    version: int
    rank: int | None
    world_size: int | None
    seed: int
    lanes: int
    position: int
    step: int
    token: int
    epoch: int | None
    seq_len: int
    lengths: tuple[LengthChange, ...]
    skips: tuple[Skip, ...]
    stages: tuple[StageBegin, ...]
    sources: tuple[SourceDescription, ...]


def open_saved(data: bytes) -> Saved:
    """A checkpoint, or a state as JSON or msgpack, perhaps within a dict of a trainer's.

    Raises:
        CheckpointDamagedError: none of these; says how to come by one.
        CheckpointMismatchError: of another version.
    """
    value = _plain_values(data)
    if isinstance(value, Mapping):
        found = list(_states(value, _NESTED))
        if len(found) == 1:
            return Saved(found[0], None, None)
        several = f"{len(found)} loader states" if found else "no loader state"
        raise CheckpointDamagedError(f"holds {several}; give what loader.state_dict() gave, alone")
    if is_pickled(data):
        raise CheckpointDamagedError(
            "is a file of torch.save or pickle, which may run any code when it is read; take the loader's state out of "
            "it: python -c \"import json, torch; print(json.dumps(torch.load('FILE', weights_only=True)['NAME']))\" > "
            "state.json, with the NAME under which it was saved"
        )
    other = _other_kind(data)
    if other is not None:
        raise CheckpointDamagedError(f"is no checkpoint: it {other}; give what loader.checkpoint() gave")
    return Saved(*open_checkpoint(data))


def is_pickled(data: bytes) -> bool:
    """Whether a file that begins so is one of torch.save or pickle."""
    return data[:4].startswith(_TORCH)


def _other_kind(data: bytes) -> str | None:
    """What a file is that has never been a checkpoint; None where it may have been one, or nothing is known of it."""
    kind = container_kind(data)
    if kind is not None:
        return None if kind == "checkpoint" else f"is a file of this library, of kind {kind!r}"
    for begin, what in _BEGINNINGS:
        if data.startswith(begin):
            return f"is {what}"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if _TOML.search(text):
        return "looks like TOML (a run's file is given with --run)"
    if text.startswith("["):
        return "is a list, and no dict"
    return "is text" if text and all(each.isprintable() or each.isspace() for each in text) else None


def saved_of(given: bytes | Saved | Mapping[str, Any]) -> Saved:
    """What was saved, given as the bytes of a file, or as a state.

    Raises:
        CheckpointDamagedError, CheckpointMismatchError: see `open_saved`.
    """
    if isinstance(given, Saved):
        return given
    return Saved(given, None, None) if isinstance(given, Mapping) else open_saved(bytes(given))


def _plain_values(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):  # among them that it is no text
        pass
    try:
        return msgpack.unpackb(data)
    except Exception:  # msgpack raises ValueError, its own types and, on deep nesting, more
        return None


def _states(value: Mapping[str, Any], depth: int) -> Any:
    if {"version", "position", "seed", "lanes"} <= value.keys():
        yield value
    elif depth:
        for each in value.values():
            if isinstance(each, Mapping):
                yield from _states(each, depth - 1)


def progress_of(state: RunState) -> Progress:
    """How far a run is by its state, every source of a mixture included.

    Raises:
        CheckpointDamagedError: no run has come there like that.
    """
    if not state.is_mixture:
        return Progress(position=state.position, lengths=state.lengths, skips=state.skips)
    try:
        return traced(Lattice(seed=state.seed, lanes=state.lanes), state.lengths, state.stages, state.position)
    except ValueError as error:
        raise CheckpointDamagedError(f"the state's history is not that of a run ({error})") from error


def describe(saved: bytes | Saved | Mapping[str, Any]) -> CheckpointDescription:
    """What a checkpoint, or a state, holds.

    Args:
        saved: the bytes of a checkpoint or of a file with a state, or a state.

    Raises:
        CheckpointDamagedError: it is neither.
        CheckpointMismatchError: it is of another version.
    """
    saved = saved_of(saved)
    state = read_state(saved.state)
    progress, lanes = progress_of(state), state.lanes
    rows = progress.rows_before(state.position)
    begun = -(-rows // BLOCK)
    return CheckpointDescription(
        version=STATE_VERSION,
        rank=saved.rank,
        world_size=saved.world_size,
        seed=state.seed,
        lanes=lanes,
        position=state.position,
        step=rows,
        token=state.position * lanes,
        epoch=None if state.is_mixture else _epoch(state),
        seq_len=state.lengths[-1][1],
        lengths=tuple(
            LengthChange(step=progress.rows_before(begin), token=begin * lanes, seq_len=seq_len)
            for begin, seq_len in state.lengths
        ),
        skips=tuple(
            Skip(
                step=progress.rows_before(begin),
                token=begin * lanes,
                batches=progress.rows_before(end) - progress.rows_before(begin),
                tokens=(end - begin) * lanes,
            )
            for begin, end in state.skips
        ),
        stages=tuple(
            StageBegin(
                step=stage.block * BLOCK,
                token=progress.position_of(stage.block * BLOCK) * lanes,
                weights=shown_weights(stage.weights),
                by=stage.by,
                begun=stage.block < begun,
            )
            for stage in state.stages
        ),
        sources=tuple(_source(state, progress, name) for name in _names(state, progress)),
    )


def why_words(by: str) -> str:
    """Why a stage began."""
    return {"schedule": "by the schedule", "reweight": "by reweight()", "exhausted": "as a source was exhausted"}.get(
        by, by
    )


def weights_words(weights: Mapping[str, float]) -> str:
    """Shares by source."""
    return ", ".join(f"{name} {share:.3g}" for name, share in weights.items())


def _names(state: RunState, progress: Progress) -> list[str]:
    drawn = progress.drawn() if isinstance(progress, MixtureProgress) else ()
    return sorted({*state.sources, *drawn})


def _tokens_of(identity: Mapping[str, Any]) -> int | None:
    tokens = identity.get("tokens")
    if identity.get("first_epoch") == "stored" and not identity.get("whole"):
        return None  # only what was read so far
    if identity.get("packing") == "rows":
        tokens = integer_of(identity.get("rows")) or 0
        tokens *= _unit(identity)
    return tokens if type(tokens) is int and tokens > 0 else None


def _unit(identity: Mapping[str, Any]) -> int:
    """The tokens of what is dealt out; see `Order.unit`."""
    return max(1, integer_of(identity.get("seq_len")) or 1) if identity.get("packing") == "rows" else 1


def _epoch(state: RunState) -> int | None:
    total, unit = _tokens_of(state.sources[ONLY]), _unit(state.sources[ONLY])
    if total is None:
        return None
    return ((state.position // unit + 1) * state.lanes - 1) // (total // unit)  # as `Order.epoch_of`


def _source(state: RunState, progress: Progress, name: str) -> SourceDescription:
    consumed = state.position * state.lanes
    if isinstance(progress, MixtureProgress):
        consumed = progress.consumed(name, Lattice(seed=state.seed, lanes=state.lanes))
    identity = state.sources.get(name, {})
    total = _tokens_of(identity)
    return SourceDescription(
        name=name or None,
        consumed=consumed,
        epochs=None if total is None else consumed / total,
        identity=dict(identity),
    )
