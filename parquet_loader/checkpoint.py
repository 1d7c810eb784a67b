"""Checkpoints: the position of a run, how it came there, what it is a position in, and which rank of how many wrote it.

All lanes have consumed the same number of tokens at every step, so the position is one integer. Beside it stand a short
history, and what the order depends on; a position in another order would be another place in the data, so every
difference is refused.

    state        {"version": 2, "position": 81920, "seed": 0, "lanes": 512,
                  "history": '{"lengths":[[0,2048]],"skips":[],"stages":[[0,{"code":3,"web":7},"schedule"]]}',
                  "sources": '{"code":{"fingerprint":"9f...","column":"tokens",...},"web":{...}}'}
    checkpoint   a container (see container.py) of {"state": state, "rank": 3, "world_size": 8}
    merged       the same with rank None: no rank's part any more, but the whole run's
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from typing import Any

from .container import DamagedContainerError, OtherVersionError, open_container, seal_container
from .errors import CheckpointDamagedError, CheckpointMismatchError
from .order.mixture import Weights
from .order.progress import Changes, MixtureProgress, Progress, Stage

__all__ = [
    "ONLY",
    "STATE_VERSION",
    "RunState",
    "SetIdentity",
    "check_part",
    "history_text",
    "integer_of",
    "merge_checkpoints",
    "open_checkpoint",
    "plain",
    "read_state",
    "seal_checkpoint",
    "sources_text",
    "state_of",
]

STATE_VERSION = 2
_KIND = "checkpoint"
_VERSION = 2
_MOST_RANKS = 2**31 - 1
_MOST_SOURCES = 10_000
_MOST_CHANGES = 2_000  # of the length of rows
ONLY = ""  # the name of the one set of a run that is no mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class SetIdentity:
    """Everything about a set that its order depends on, beside seed and lanes. A resume may change none of it.

    Attributes:
        fingerprint: of the files' relative paths and counts.
        files, row_groups, tokens: of the set; tokens include any EOS. The fingerprint implies them: they are here to
            tell people what changed.
        column, eos_id, shuffle: as given to the loader.
        window: row groups of a window.
        packing: ``"tokens"`` or ``"rows"``.
        rows, seq_len, overlap: of a set packed by rows, which has them in place of `tokens`: so releases that know of
            no such sets refuse its states.
        first_epoch: ``"stored"`` where epoch 0 has row groups in storage order; the fingerprint and the counts are then
            those of the row groups that were read, with which the set begins.
        whole: with that, whether a position tells that they are all of the set.
    """

    fingerprint: str
    files: int
    row_groups: int
    tokens: int
    column: str
    window: int
    eos_id: int | None
    shuffle: bool
    packing: str = "tokens"
    rows: int = 0
    seq_len: int = 0
    overlap: int = 0
    first_epoch: str = "permuted"
    whole: bool = False

    def values(self) -> dict[str, Any]:
        """What a state keeps of it, plain values."""
        beside: tuple[str, ...] = ("tokens",)
        if self.packing == "tokens":
            beside = ("packing", "rows", "seq_len", "overlap")
        beside += ("first_epoch", "whole") if self.first_epoch == "permuted" else ()
        return {name: value for name, value in asdict(self).items() if name not in beside}

    def differences(self, found: Mapping[str, Any], name: str = ONLY) -> list[str]:
        """What a state says otherwise of this set, a clause each."""
        of = f"{name!r}: " if name else ""
        values = self.values()
        packing = {"packing": found.get("packing", "tokens")}
        if not _same(packing["packing"], self.packing):  # the rest counts other things then
            found, values = packing, {"packing": self.packing}
        first_epoch = {"first_epoch": found.get("first_epoch", "permuted")}
        if not _same(first_epoch["first_epoch"], self.first_epoch):  # what follow=True makes it
            return [
                f"{of}first_epoch is {_shortened(first_epoch['first_epoch'])} in the checkpoint and "
                f"{self.first_epoch!r} in this loader, which follow=True makes 'stored'"
            ]
        return [
            f"{of}{field} is {_shortened(found.get(field, 'missing'))} in the checkpoint and {value!r} in this loader"
            for field, value in values.items()
            if field not in found or not _same(found[field], value)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a state says, all of it checked for being possible.

    Attributes:
        position: tokens consumed per lane.
        lengths: from which position on rows had how many tokens.
        skips: what was skipped, from which position to which.
        stages: of a mixture, as they were run.
        seed, lanes: of the run.
        sources: what it says of each set, by name; of a run of one set that of `ONLY`.
    """

    position: int
    lengths: Changes
    skips: tuple[tuple[int, int], ...]
    stages: tuple[Stage, ...]
    seed: int
    lanes: int
    sources: Mapping[str, Mapping[str, Any]]

    @property
    def is_mixture(self) -> bool:
        """Whether it is of a mixture."""
        return ONLY not in self.sources


def state_of(position: int, *, seed: int, lanes: int, history: str, sources: str) -> dict[str, Any]:
    """The state of a run: plain values, a fresh dict.

    All of them are numbers and text, in a run of whatever sources and history: checkpointing libraries load into the
    state that a fresh loader has, and turn lists and dicts into something of their own.

    Args:
        position: tokens consumed per lane.
        seed, lanes: of the run.
        history: see `history_text`.
        sources: see `sources_text`.
    """
    return {
        "version": STATE_VERSION,
        "position": position,
        "seed": seed,
        "lanes": lanes,
        "history": history,
        "sources": sources,
    }


def history_text(progress: Progress) -> str:
    """How a run came where it is, as JSON."""
    stages = progress.stages if isinstance(progress, MixtureProgress) else ()
    shown = [[stage.block, dict(stage.weights), stage.by] for stage in stages]
    history = {"lengths": progress.lengths, "skips": progress.skips, "stages": shown}
    return json.dumps(history, separators=(",", ":"))


def sources_text(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """What a state keeps of each set, as JSON."""
    return json.dumps(sources, separators=(",", ":"))


def read_state(state: Mapping[str, Any]) -> RunState:
    """What a state says.

    Raises:
        CheckpointDamagedError: not a state.
        CheckpointMismatchError: a state of another version.
    """
    if not isinstance(state, Mapping) or "version" not in state or "position" not in state:
        hint = "; give a checkpoint's bytes to resume" if isinstance(state, bytes) else ""
        raise CheckpointDamagedError(f"this is no loader state: {_shortened(state)}{hint}")
    state = {name: plain(value) for name, value in state.items()}
    if not _same(state["version"], STATE_VERSION):
        raise CheckpointMismatchError(
            f"the state has version {_shortened(state['version'])} and this release reads version {STATE_VERSION}; "
            "the order of steps is another one in each version: resume it with the release that wrote it"
        )
    numbers = {name: integer_of(state.get(name)) for name in ("position", "seed", "lanes")}
    seed, lanes, position = numbers["seed"], numbers["lanes"], numbers["position"]
    if seed is None or not 0 <= seed < 2**64 or lanes is None or not 1 <= lanes < 2**31:
        raise CheckpointDamagedError(
            f"the state's seed is {_shortened(state.get('seed', 'missing'))} and its lanes are "
            f"{_shortened(state.get('lanes', 'missing'))}; no run has these"
        )
    if position is None or not 0 <= position < 2**62 // lanes:
        raise CheckpointDamagedError(
            f"the state's position is {_shortened(state['position'])}; it should be a count of tokens"
        )
    history, sources = (_json(state, name) for name in ("history", "sources"))
    try:
        lengths = tuple((_count(begin), _count(seq_len, 1)) for begin, seq_len in history["lengths"])
        skips = tuple((_count(begin), _count(end)) for begin, end in history["skips"])
        stages = tuple(Stage(_count(block), _weights(weights), str(by)) for block, weights, by in history["stages"])
        begins = [begin for begin, _ in lengths]
        blocks = [stage.block for stage in stages]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointDamagedError(f"the state's history is not that of a run: {_shortened(error)}") from error
    if begins[:1] != [0] or any(low >= high for low, high in pairwise(begins)) or begins[-1] > position:
        raise CheckpointDamagedError(f"no run has had rows of other lengths from {_shortened(begins)} on")
    if len(lengths) > _MOST_CHANGES:
        raise CheckpointDamagedError(f"the length of rows has changed more than {_MOST_CHANGES:,} times in this state")
    # Stages of one block are those from which, one after another, sources had to be left out.
    rising = all(low.block < high.block or _left_out(low, high) for low, high in pairwise(stages))
    if not rising or blocks[:1] not in ([], [0]):
        raise CheckpointDamagedError(f"no run has had stages from blocks {_shortened(blocks)} on")
    if any(len(stage.weights) > _MOST_SOURCES for stage in stages):
        raise CheckpointDamagedError(f"a stage of the state has more than {_MOST_SOURCES:,} sources")
    places = [place for skip in skips for place in skip]
    if any(low > high for low, high in pairwise([*places, position])):
        raise CheckpointDamagedError(f"no run has skipped from and to {_shortened(places)}")
    if not all(isinstance(each, dict) for each in sources.values()):
        raise CheckpointDamagedError(f"the state's sources are no sets: {_shortened(state['sources'])}")
    return RunState(
        position=position, lengths=lengths, skips=skips, stages=stages, seed=seed, lanes=lanes, sources=sources
    )


def _left_out(before: Stage, after: Stage) -> bool:
    kept = {name for name, _ in after.weights}
    return before.block == after.block and after.by == "exhausted" and kept < {name for name, _ in before.weights}


def _json(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    text = state.get(name, "missing")
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CheckpointDamagedError(f"the state's {name} is {_shortened(text)}; it should be JSON")
    return value


def _count(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 2**62:
        raise ValueError(f"{value!r} is no count")
    return value


def _weights(weights: Any) -> Weights:
    found = tuple(sorted((str(name), _count(weight, 1)) for name, weight in weights.items()))
    if not found:
        raise ValueError("a stage has no weights")
    return found


def plain(value: Any) -> Any:
    """The value; Python's own, where a trainer's checkpoint gave a scalar of NumPy, PyTorch or JAX back for it."""
    return value.item() if getattr(value, "shape", None) == () else value


def integer_of(value: object) -> int | None:
    """The integer that a state holds, also as such a scalar; None for all else, True and whole floats among it."""
    value = plain(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _same(found: object, value: object) -> bool:
    """Whether what a state holds is this value. Arrays and the like are never compared: they answer with arrays."""
    plain = found is None or isinstance(found, (str, int, float))
    return plain and isinstance(found, bool) == isinstance(value, bool) and found == value


def _shortened(value: object) -> str:
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list nested as deeply
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 80 else text[:77] + "..."


def seal_checkpoint(state: Mapping[str, Any], rank: int | None, world_size: int) -> bytes:
    """A checkpoint: one rank's part, or the whole where ``rank`` is None."""
    return seal_container(_KIND, _VERSION, {"state": dict(state), "rank": rank, "world_size": world_size})


def open_checkpoint(data: bytes) -> tuple[dict[str, Any], int | None, int]:
    """(state, rank or None for a merged one, world size).

    Nothing in it is trusted: a checksum does not tell who wrote it. `read_state` looks at what the state says.

    Raises:
        CheckpointDamagedError: not the bytes of a whole checkpoint, or numbers that no run has.
        CheckpointMismatchError: of another format version.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        hint = "; give a state to load_state_dict" if isinstance(data, Mapping) else ""
        raise CheckpointDamagedError(
            f"a checkpoint is bytes, and this is {type(data).__name__}: {_shortened(data)}{hint}"
        )
    try:
        payload = open_container(bytes(data), _KIND, _VERSION)
    except OtherVersionError as error:
        raise CheckpointMismatchError(f"the checkpoint {error}; use the release that wrote it") from error
    except DamagedContainerError as error:
        raise CheckpointDamagedError(f"this is no whole checkpoint: {error}; use the one before it") from error
    if not isinstance(payload, dict) or not {"state", "rank", "world_size"} <= payload.keys():
        raise CheckpointDamagedError("this is no checkpoint: it lacks a state, a rank or a world size")
    state, rank, world_size = payload["state"], payload["rank"], payload["world_size"]
    plain = isinstance(state, dict) and all(
        isinstance(name, str) and name.isidentifier() and (value is None or isinstance(value, (str, int)))
        for name, value in state.items()
    )
    if not plain:
        raise CheckpointDamagedError(f"this is no checkpoint: its state is {_shortened(state)}")
    # A rank has a lane or more.
    lanes = state.get("lanes")
    most = lanes if type(lanes) is int else _MOST_RANKS
    if type(world_size) is not int or not 1 <= world_size <= most:
        raise CheckpointDamagedError(
            f"this is no checkpoint: it is of {_shortened(world_size)} ranks, of a run of {_shortened(lanes)} lanes"
        )
    if rank is not None and (type(rank) is not int or not 0 <= rank < world_size):
        raise CheckpointDamagedError(f"this is no checkpoint: it is of rank {_shortened(rank)} of {world_size}")
    return state, rank, world_size


def check_part(rank: int | None, world_size: int | None, own_rank: int, own_world_size: int) -> None:
    """Refuse one rank's part on any other rank, or on another number of them.

    Args:
        rank, world_size: that wrote it; rank None for a merged checkpoint or a state, which any rank takes.
        own_rank, own_world_size: of the loader that is to go on from it.

    Raises:
        CheckpointMismatchError: it is the part of another.
    """
    if rank is not None and (rank, world_size) != (own_rank, own_world_size):
        raise CheckpointMismatchError(
            f"this is the part of rank {rank} of {world_size}, and this loader is rank {own_rank} of "
            f"{own_world_size}; merge the parts of all ranks with merge_checkpoints, then any number can resume"
        )


def merge_checkpoints(parts: Iterable[bytes]) -> bytes:
    """Merge the parts of all ranks into the checkpoint of the whole run, which any number of ranks can resume.

    Args:
        parts: what `ParquetLoader.checkpoint` gave on every rank, in any order.

    Returns:
        The merged checkpoint, the same bytes whatever the order of the parts.

    Raises:
        CheckpointDamagedError: a part that is not whole; says which.
        CheckpointMismatchError: a rank is missing or there twice, or parts are of different steps, runs, world sizes
            or versions; says which.
    """
    if isinstance(parts, (bytes, bytearray, memoryview)) or not isinstance(parts, Iterable):
        raise CheckpointDamagedError(
            f"parts must be a list of checkpoints, one of every rank, not {type(parts).__name__}"
        )
    opened = []
    for number, part in enumerate(parts):
        try:
            opened.append((number, *open_checkpoint(part)))
        except (CheckpointDamagedError, CheckpointMismatchError) as error:
            raise type(error)(f"part number {number}: {error}") from error
    if not opened:
        raise CheckpointMismatchError("there are no parts to merge; give the checkpoint of every rank")
    _, first_state, _, world_size = opened[0]
    by_rank: dict[int, int] = {}
    for number, state, rank, size in opened:
        if rank is None:
            raise CheckpointMismatchError(f"part number {number} is merged already; merge the ranks' own parts")
        if size != world_size:
            raise CheckpointMismatchError(
                f"part number {number} is of a run on {size} ranks and part number 0 of a run on {world_size}"
            )
        if rank in by_rank:
            raise CheckpointMismatchError(f"rank {rank} is there twice: parts number {by_rank[rank]} and {number}")
        by_rank[rank] = number
        different = [
            f"{name} {_shortened(first_state.get(name, 'missing'))} and {_shortened(state.get(name, 'missing'))}"
            for name in [*first_state, *(name for name in state if name not in first_state)]
            if first_state.get(name, "missing") != state.get(name, "missing")
        ]
        if different:
            what = "steps" if different[0].startswith("position") and len(different) == 1 else "runs"
            raise CheckpointMismatchError(
                f"rank {opened[0][2]} and rank {rank} are at different {what}: {'; '.join(different)}; "
                "take the checkpoints that all ranks wrote at one step"
            )
    missing = world_size - len(by_rank)  # each rank that is there is below it, and there once
    if missing:
        first = islice((rank for rank in range(world_size) if rank not in by_rank), 10)
        raise CheckpointMismatchError(
            f"{len(by_rank)} of {world_size} parts are there; missing: "
            + ", ".join(f"rank {rank}" for rank in first)
            + (f" and {missing - 10} more" if missing > 10 else "")
        )
    return seal_checkpoint(first_state, None, world_size)
