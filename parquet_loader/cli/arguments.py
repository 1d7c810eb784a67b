"""The arguments that commands share: a run, from a TOML file and options, and checkpoints of it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import textwrap
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..checkpoint import read_state
from ..errors import CheckpointDamagedError, CheckpointError, ConfigError, StorageError
from ..insight.describe import Saved, is_pickled, open_saved
from ..options import LoaderOptions, aligned_columns
from ..runfile import read_run
from ..sets import Component
from ..storage.kinds import KINDS
from ..storage.opening import Source

__all__ = [
    "HelpFormatter",
    "add_checkpoint",
    "add_format",
    "add_run",
    "aligned",
    "count",
    "json_object",
    "positive",
    "run_of",
    "saved_in",
    "state_of",
    "world_sizes",
]

_MOST_BYTES = 64 << 20  # a checkpoint has a few KB, and the state may lie in a dict of a trainer's
Sources = Source | dict[str, Source | Component]


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps a description that is one line; examples, which have several, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


def world_sizes(text: str) -> list[int]:
    """Numbers of ranks, such as 8,16,64."""
    return [positive(each) for each in text.split(",")]


def positive(text: str) -> int:
    """A count of 1 or more."""
    return count(text, 1)


def count(text: str, least: int = 0) -> int:
    """A count, also as 300e9 or 300_000_000_000."""
    try:
        value = int(Decimal(text)) if Decimal(text) == int(Decimal(text)) else -1
    except (ArithmeticError, ValueError):
        value = -1
    if value < least:
        raise argparse.ArgumentTypeError(f"must be {least} or more, such as 1000 or 300e9, not {text!r}")
    return value


def eos_id(text: str) -> int:
    """An id that ends every document."""
    if text.lower() in ("none", "null"):
        raise argparse.ArgumentTypeError("is an id: leave it out, where none ends documents")
    return count(text)


def json_object(text: str) -> dict[str, Any]:
    """A JSON object. What was given is not shown: it may hold secrets."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('must be a JSON object, such as {"anon": true}')
    return value


def _weights(text: str) -> Any:
    if text == "tokens":
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f'must be "tokens" or JSON, such as {{"web": 0.7, "code": 0.3}} ({error})'
        ) from None
    return value


def aligned(text: str) -> dict[str, float | None]:
    """What `ParquetLoader` takes for ``aligned``: names with commas between them, or JSON of values at EOS."""
    try:
        return aligned_columns(json_object(text) if text.lstrip().startswith("{") else text.split(","))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_run(parser: argparse.ArgumentParser) -> None:
    """Have a parser take a run: what `ParquetLoader` is given."""
    parser.usage = "%(prog)s [SOURCE ...] [--run TOML] [OPTION ...]"  # all of them would hide the few that matter
    run = parser.add_argument_group(
        "the run", "as ParquetLoader is given it; a TOML file has the same names, and options count more than the file"
    )
    run.add_argument(
        "source",
        nargs="*",
        help="a folder, a file, a glob or a URL; several are one set together; of a mixture NAME=PATH of each source",
    )
    run.add_argument(
        "--run", dest="run_file", metavar="TOML", help="a file with the arguments of the run; see docs/inspect.md"
    )
    # Of each option its field of `LoaderOptions`, how it is read, and a word for the help.
    for flag, kind, text in (
        ("--seq-len", positive, "tokens of a row"),
        ("--lanes", positive, "rows of a global batch, over all ranks"),
        (
            "--weights",
            _weights,
            'of a mixture: JSON, {"web": 0.7, "code": 0.3} or [[0, {...}], [TOKEN, {...}]]; tokens',
        ),
        ("--exhausted", str, "when a source has given its max_epochs: raise or redistribute (raise)"),
        ("--window", positive, "row groups that are shuffled together (those of 64 million tokens; 16 of a source)"),
        ("--seed", count, "of the shuffle (0)"),
        ("--column", str, "the token column, where it is not the only list of integers"),
        ("--aligned", aligned, 'columns that go with the tokens: labels,mask or, with an EOS, JSON {"labels": -100}'),
        ("--eos-id", eos_id, "appended to every document; of raw files the id among theirs that ends each"),
        ("--packing", str, "tokens; or rows, where each document is a training row already (tokens)"),
        ("--pad-id", count, "fills up shorter rows of --packing rows"),
        ("--vocab-size", positive, "ids of this size and above are refused"),
        ("--overlap", count, "1 where rows are of seq_len + 1 tokens (0)"),
        ("--epochs", positive, "the run ends after so many (it has no end)"),
        ("--tail", str, "how it ends then: pad or drop (pad)"),
        ("--skip-batches", count, "the run began after so many (0)"),
        ("--budget-bytes", positive, "the most that a rank's loader may hold (2 GiB)"),
        ("--complete-after", seconds, "with --follow: the set is complete when it has not grown for so long, as 6h"),
        ("--wait-seconds", seconds, "with --follow: how long the command waits for what is not there yet (0)"),
        ("--index", str, "a saved index, in place of reading footers"),
        ("--format", str, "of the files: parquet, arrow or raw, where their names do not tell"),
        ("--raw-dtype", str, "the type of ids in raw files that do not tell it, such as uint16"),
        ("--cache-dir", str, "where footers are cached (the user's cache folder)"),
        ("--storage-options", json_object, "JSON for the filesystem of a URL; secrets are better in the environment"),
    ):
        run.add_argument(flag, type=kind, help=text, metavar=flag.strip("-").upper().replace("-", "_"))
    run.add_argument(
        "--uneven", action="store_const", const=True, help="allow numbers of ranks that do not divide the lanes"
    )
    run.add_argument(
        "--follow", action="store_const", const=True, help="the run follows a set that is still being written"
    )
    run.add_argument("--no-shuffle", dest="shuffle", action="store_const", const=False, help="in storage order")


def add_format(parser: argparse.ArgumentParser) -> None:
    """Have a parser take the format of a set's files."""
    parser.add_argument("--format", choices=KINDS, help="of the files, where their names do not tell")
    parser.add_argument(
        "--raw-dtype", metavar="TYPE", help="the type of ids in raw files that do not tell it, such as uint16"
    )


def seconds(text: str) -> float | str:
    """Seconds, or text such as 6h, which `LoaderOptions` reads."""
    try:
        return float(text)
    except ValueError:
        return text


def run_of(
    given: argparse.Namespace, state: Mapping[str, Any] | None = None, *, as_a_loader: bool = False
) -> tuple[Sources, LoaderOptions]:
    """The source and options of a run, as a command opens it: it waits only as long as it is told to.

    Args:
        given: what a parser with `add_run` has read.
        state: of the run, which gives lanes, seed, and so on, where nothing else does.
        as_a_loader: have defaults count more than the state, as they do for a loader that resumes: it gives only what
            has no default, and the window, which a loader takes from it too.

    Raises:
        ConfigError: something is missing or cannot work.
    """
    source: Sources | None = None
    options: dict[str, Any] = {}
    if given.run_file:
        source, options = read_run(given.run_file)
    source = _sources(given.source) or source
    if source is None:
        raise ConfigError("no run is given: name a SOURCE, or a TOML file with --run")
    for name in LoaderOptions.__dataclass_fields__:
        value = getattr(given, name, None)
        if value is not None:
            options[name] = value
    if state is not None:
        kept = _of_state(state, mixture=isinstance(source, Mapping))
        if as_a_loader:
            kept = {name: value for name, value in kept.items() if name in ("seq_len", "lanes", "window")}
        options = {**kept, **options}
    for name in ("seq_len", "lanes"):
        if name not in options:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{name} is missing: give {flag}, or a TOML file with --run that has it")
    # The file's patience is a trainer's, for hours maybe.
    return source, dataclasses.replace(LoaderOptions(**options), wait_seconds=given.wait_seconds or 0)


def _sources(given: list[str]) -> Sources | None:
    if not given:
        return None
    names = [each.partition("=") for each in given]
    if all(mark and name.isidentifier() for name, mark, _ in names) and not any(Path(each).exists() for each in given):
        return {name: path for name, _, path in names}
    return given[0] if len(given) == 1 else given


def _of_state(state: Mapping[str, Any], *, mixture: bool) -> dict[str, Any]:
    found = read_state(state)
    options: dict[str, Any] = {"lanes": found.lanes, "seed": found.seed, "seq_len": found.lengths[-1][1]}
    if not mixture and not found.is_mixture:
        kept = next(iter(found.sources.values()))
        options |= {
            name: kept[name] for name in ("column", "window", "eos_id", "shuffle", "packing", "overlap") if name in kept
        }
    return options


def add_checkpoint(parser: argparse.ArgumentParser, text: str) -> None:
    """Have a parser take a checkpoint."""
    parser.add_argument("--checkpoint", metavar="FILE", help=text)


def saved_in(path: str) -> Saved:
    """What a file holds: a checkpoint, of one rank or merged, or a state.

    Raises:
        StorageError: it cannot be read.
        CheckpointError: it holds neither; names it.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
            size = file.seek(0, os.SEEK_END) if len(data) > _MOST_BYTES and file.seekable() else len(data)
        if len(data) > _MOST_BYTES and not is_pickled(data):
            raise CheckpointDamagedError(
                f"has {size:,} bytes, and a checkpoint no more than {_MOST_BYTES:,}: it is none"
            )
        return open_saved(data)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    except CheckpointError as error:
        raise type(error)(f"{path}: {error}") from error


def state_of(path: str) -> dict[str, Any]:
    """The state of what `saved_in` gives."""
    return dict(saved_in(path).state)
