"""The command line over `pretokenize`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, get_args

from ..errors import ConfigError, ParquetLoaderError
from .options import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_FILE_TOKENS,
    DEFAULT_ROW_GROUP_TOKENS,
    PretokenizeOptions,
    PretokenizeWarning,
    Step,
)
from .run.pipeline import Summary, pretokenize
from .run.progress import reporting
from .run.ranks import StepDone, pretokenize_rank, ranks_from_environment
from .run.ray import pretokenize_on_ray
from .select.dedup import HASH_NAMES
from .sources.files import TextUnit
from .sources.registry import PRESETS, source_names
from .tokenizers.base import EngineName
from .tokenizers.huggingface import load_tokenizer
from .write.verify import verify_set

_EXIT_ERROR = 2
_EXIT_SIGNAL = 128  # plus the signal's number, as shells have it


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="pretokenize",
        description="Tokenize text into Parquet files that parquet_loader reads.",
        epilog="A run that was killed goes on with the same command.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,  # a script's abbreviation must not change its meaning with a later option
    )
    reading = parser.add_argument_group("what to read").add_argument
    reading(
        "--input",
        dest="inputs",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="files, folders or globs, local or URLs: .txt, .jsonl, .ndjson, .json, .csv (also .gz, .zst), .parquet",
    )
    names = ", ".join(source_names())
    reading("--source", default="files", metavar="NAME", help=f"{names}, or package.module:factory")
    reading("--preset", choices=tuple(PRESETS), help="a well-known data set of the Hugging Face Hub")
    reading("--dataset", metavar="NAME", help="a data set of the Hugging Face Hub, for --source hf")
    reading("--config", metavar="NAME", help="its configuration")
    reading("--split", default="train", metavar="NAME", help="its split")
    reading("--revision", metavar="NAME", help="a branch, tag or commit of it")
    reading("--text-column", default="text", metavar="NAME", help="field or column that holds the text")
    reading("--text-unit", choices=get_args(TextUnit), default="line", help="what is one document in a .txt")
    reading("--max-docs", type=int, metavar="N", help="stop after so many documents")
    reading(
        "--on-bad-record", choices=("raise", "skip"), default="raise", help="invalid JSON, no field, wrong type, ..."
    )
    reading("--empty", choices=("keep", "skip"), default="keep", help="what becomes of a text without a character")
    dedup = parser.add_argument_group("duplicates").add_argument
    dedup("--dedup", action="store_true", help="leave out texts that were there before, white space aside")
    dedup("--hash", choices=HASH_NAMES, default="sha256", help="what tells them")
    dedup("--seen-hashes", metavar="PATH", help="a file of the hashes of texts of other runs")
    dedup("--write-seen-hashes", action="store_true", help="add this run's to that file")
    writing = parser.add_argument_group("what to write").add_argument
    writing("--output", required=True, metavar="FOLDER", help="folder to write, local or a URL")
    writing("--tokenizer", required=True, metavar="PATH|NAME", help="tokenizer.json, a folder with one, or a Hub name")
    writing("--append-eos", action="store_true", help="end every document with the end-of-document token")
    writing("--eos-token", metavar="TOKEN", help="the end-of-document token, where it cannot be found by itself")
    writing("--row-group-tokens", type=int, default=DEFAULT_ROW_GROUP_TOKENS, metavar="N", help="tokens of a row group")
    writing("--file-tokens", type=int, default=DEFAULT_FILE_TOKENS, metavar="N", help="tokens of a file")
    writing("--overwrite", action="store_true", help="replace the files of a former run")
    running = parser.add_argument_group("how to run").add_argument
    running("--engine", choices=get_args(EngineName), default="tokenizers", help="what encodes for a tokenizer.json")
    running("--workers", type=int, default=0, metavar="N", help="processes that encode; 0: the threads of this one")
    running("--batch-bytes", type=int, default=DEFAULT_BATCH_BYTES, metavar="N", help="bytes of text encoded at a time")
    running(
        "--rank", type=int, metavar="N", help="which of several machines this is; torchrun, SLURM and Kubernetes tell"
    )
    running("--world-size", type=int, metavar="N", help="how many machines there are")
    running("--ray", nargs="?", const="local", metavar="ADDRESS", help="run the ranks as tasks of a Ray cluster")
    running("--step", choices=get_args(Step), default="encode", help="with several machines: what to do")
    running("--storage-options", default="{}", metavar="JSON", help="options of the fsspec filesystem, for URLs")
    running("--verify", action="store_true", help="read the set again at the end and show some documents")
    return parser


def parse_options(argv: Sequence[str] | None = None) -> PretokenizeOptions:
    """The options that arguments stand for; leaves the program on arguments that argparse refuses.

    Raises:
        ConfigError: a value that cannot work.
    """
    return _options(vars(build_parser().parse_args(argv)))


def _options(arguments: dict[str, Any]) -> PretokenizeOptions:
    values = {key: value for key, value in arguments.items() if key not in {"verify", "ray"}}
    values["inputs"] = tuple(values["inputs"])
    if arguments["ray"] is not None:
        if values["rank"] is not None or values["step"] != "encode":
            raise ConfigError("--ray does every rank and every step: leave --rank and --step out.")
        values["rank"], values["world_size"] = 0, 1  # each task has its own
    elif (values["rank"] is None) != (values["world_size"] is None):
        raise ConfigError("--rank and --world-size go together: give both, or neither.")
    elif values["rank"] is None:
        values["rank"], values["world_size"] = ranks_from_environment(os.environ) or (0, 1)
    try:
        values["storage_options"] = json.loads(values["storage_options"])
    except ValueError as exc:
        raise ConfigError(f"--storage-options is not valid JSON: {exc}.") from exc
    if not isinstance(values["storage_options"], dict):
        raise ConfigError('--storage-options must be a JSON object, such as {"anon": true}.')
    return PretokenizeOptions(**values)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 0; 2 for an error, told in one line; 130 after Ctrl-C, 143 after SIGTERM.
    """
    values = vars(build_parser().parse_args(argv))
    try:
        with _sigterm_as_interrupt(), _warnings_as_lines():
            options = _options(values)
            with reporting() as progress:
                if values["ray"] is not None:
                    shards = values["world_size"]
                    summary: Summary | StepDone = pretokenize_on_ray(options, address=values["ray"], shards=shards)
                elif options.world_size > 1:
                    summary = pretokenize_rank(options, progress=progress)
                else:
                    summary = pretokenize(options, progress=progress)
            print(summary.describe())
            if values["verify"] and isinstance(summary, Summary):
                tokenizer = load_tokenizer(options.tokenizer, eos_token=options.eos_token)
                print(verify_set(options.output, tokenizer, storage_options=options.storage_options).describe())
    except ParquetLoaderError as exc:
        print(f"pretokenize: error: {exc}", file=sys.stderr)
        return _EXIT_ERROR
    except KeyboardInterrupt as exc:
        number = exc.args[0] if exc.args else signal.SIGINT
        print("pretokenize: interrupted; the same command goes on from the last finished file", file=sys.stderr)
        return _EXIT_SIGNAL + int(number)
    return 0


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """What is meant for the user is one line, and any other warning what it always is."""
    with warnings.catch_warnings():
        former = warnings.showwarning
        warnings.simplefilter("always", PretokenizeWarning)

        def show(message: Warning | str, category: type[Warning], *details: Any, **more: Any) -> None:
            if issubclass(category, PretokenizeWarning):
                print(f"pretokenize: warning: {message}", file=sys.stderr)
            else:
                former(message, category, *details, **more)

        warnings.showwarning = show
        yield


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Schedulers end a job with SIGTERM; what Ctrl-C cleans up is then cleaned up as well."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
