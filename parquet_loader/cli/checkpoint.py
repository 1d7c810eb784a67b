"""``parquet-loader checkpoint FILE``: what it holds, and of which run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ..errors import CheckpointError, StorageError
from ..insight.describe import CheckpointDescription, describe, weights_words, why_words
from .arguments import HelpFormatter, saved_in
from .output import complain, print_json, say, table

__all__ = ["add", "run"]


def add(commands: Any) -> None:
    """Have the command's parser take this one."""
    parser = commands.add_parser(
        "checkpoint",
        help="what a checkpoint holds, in words",
        description="Says where a run was when it was saved, how it came there, and of which sets it is. A\n"
        "checkpoint is what loader.checkpoint() or merge_checkpoints() gave; a state as JSON will do,\n"
        "too. No data is read.",
        epilog="example:\n  parquet-loader checkpoint step-1000/loader.bin",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("file", nargs="+", help="a checkpoint, of one rank or merged, or a state as JSON")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    found: list[tuple[str, CheckpointDescription]] = []
    errors: list[str] = []
    for path in given.file:
        try:
            found.append((path, describe(saved_in(path))))
        except (CheckpointError, StorageError) as error:
            errors.append(str(error))
    if given.json:
        print_json({"checkpoints": [{"file": path, "checkpoint": one} for path, one in found], "errors": errors})
    elif found:
        say("\n\n".join("\n".join(_words(path, one)) for path, one in found))
    for told in errors:
        complain(told)
    return 2 if errors else 0


def _words(path: str, told: CheckpointDescription) -> Iterator[str]:
    yield f"{path}: {_kind(told)}, after step {told.step:,}"
    yield ""
    yield table(_facts(told))
    if told.stages:
        yield ""
        yield table(
            (
                (
                    stage.step,
                    stage.token,
                    weights_words(stage.weights),
                    why_words(stage.by),
                    "" if stage.begun else "still to come",
                )
                for stage in told.stages
            ),
            ("from step", "token", "weights", "", ""),
        )
    if told.skips:
        yield ""
        yield table(
            ([skip.step, skip.token, skip.batches, skip.tokens] for skip in told.skips),
            ("skipped at step", "token", "batches", "tokens"),
        )
    for source in told.sources:
        yield ""
        yield f"the source {source.name!r}" if source.name else "the set"
        epochs = "" if source.epochs is None else f", {source.epochs:.3f} epochs"
        rows = [("  consumed", f"{source.consumed:,} tokens{epochs}")]
        rows += [
            (f"  {name.replace('_', ' ')}", f"{value:,}" if type(value) is int and name != "eos_id" else str(value))
            for name, value in source.identity.items()
        ]
        yield table(rows)


def _kind(told: CheckpointDescription) -> str:
    if told.world_size is None:
        return "a state"
    if told.rank is None:
        return f"a merged checkpoint of {told.world_size:,} ranks"
    return f"the checkpoint of rank {told.rank} of {told.world_size:,}"


def _facts(told: CheckpointDescription) -> Iterator[tuple[str, str]]:
    yield (
        "steps",
        f"{told.step:,}"
        + (f", of which {sum(skip.batches for skip in told.skips):,} were skipped" if told.skips else ""),
    )
    yield "tokens", f"{told.token:,}"
    if told.epoch is not None:
        yield "epoch of the next batch", f"{told.epoch:,}"
    yield "position", f"{told.position:,} tokens a lane"
    lengths = [
        f"{change.seq_len:,}" + (f" from step {change.step:,}" if change.step else "") for change in told.lengths
    ]
    yield "tokens of a row", ", ".join(lengths)
    yield "rows of a batch (lanes)", f"{told.lanes:,}"
    yield "seed", str(told.seed)
    yield "version of the state", str(told.version)
