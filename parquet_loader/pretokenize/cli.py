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
from typing import Any, NoReturn, get_args

from ..errors import ConfigError, ParquetLoaderError, PretokenizeWarning
from .names import as_arguments
from .options import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_FILE_TOKENS,
    DEFAULT_PACK_BUFFER_TOKENS,
    DEFAULT_ROW_GROUP_TOKENS,
    Pack,
    PackTail,
    PretokenizeOptions,
    Publish,
    Step,
)
from .run.pipeline import Summary, pretokenize
from .run.progress import reporting
from .run.ranks import Place, StepDone, place_from_environment, pretokenize_rank
from .run.ray import pretokenize_on_ray
from .select.dedup import HASH_NAMES
from .sources.base import DEFAULT_MAX_RECORD_BYTES
from .sources.files import TextUnit
from .sources.registry import PRESETS, source_names
from .tokenizers.base import EngineName
from .tokenizers.huggingface import load_tokenizer
from .tokenizers.workers import ENDING
from .write.verify import verify_set

__all__ = ["build_parser", "command", "main", "parse_options", "signals_as_interrupts", "warnings_as_lines"]


_EXIT_ERROR = 2
_EXIT_SIGNAL = 128  # plus the signal's number, as shells have it
_SECONDS_TO_END = 10.0  # that a command may take to clean up after a signal, where a storage is away
_INTERRUPTED = "pretokenize: interrupted; rerun the same command to resume from the last finished file"


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="pretokenize",
        description="Tokenize text into Parquet files that parquet_loader reads.",
        epilog="Rerun the same command to resume a run that was killed.",
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
    reading(
        "--keep-columns",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="other fields or columns of the documents, to be written beside their tokens",
    )
    reading("--max-docs", type=int, metavar="N", help="stop after N documents")
    reading(
        "--on-bad-record", choices=("raise", "skip"), default="raise", help="invalid JSON, no field, wrong type, ..."
    )
    reading(
        "--max-record-bytes",
        type=int,
        default=DEFAULT_MAX_RECORD_BYTES,
        metavar="N",
        help="the most bytes of a line or document; a longer one is a bad record",
    )
    reading("--empty", choices=("keep", "skip"), default="keep", help="what to do with an empty text")
    dedup = parser.add_argument_group("duplicates").add_argument
    dedup("--dedup", action="store_true", help="skip texts that are the same as an earlier one, apart from white space")
    dedup("--hash", choices=HASH_NAMES, default="sha256", help="the hash that detects duplicates")
    dedup("--seen-hashes", metavar="PATH", help="a file of the hashes of texts of other runs")
    dedup("--write-seen-hashes", action="store_true", help="add this run's hashes to that file")
    writing = parser.add_argument_group("what to write").add_argument
    writing("--output", required=True, metavar="FOLDER", help="folder to write, local or a URL")
    writing("--tokenizer", required=True, metavar="PATH|NAME", help="tokenizer.json, a folder with one, or a Hub name")
    writing("--append-eos", action="store_true", help="end every document with the end-of-document token")
    writing("--eos-token", metavar="TOKEN", help="the end-of-document token, if it cannot be found automatically")
    writing(
        "--pack",
        choices=get_args(Pack),
        help="write training rows in place of documents, of which none is cut that fits in a row",
    )
    writing(
        "--seq-len",
        type=int,
        metavar="N",
        help="with --pack: the most ids of a row, which is seq_len of training + overlap, such as 2049",
    )
    writing(
        "--pack-tail",
        choices=get_args(PackTail),
        default="carry",
        help="with --pack: whether the documents of rows that are far from full wait for the next buffer",
    )
    writing(
        "--pack-buffer-tokens",
        type=int,
        default=DEFAULT_PACK_BUFFER_TOKENS,
        metavar="N",
        help="with --pack: tokens of the documents that are packed at a time",
    )
    writing("--row-group-tokens", type=int, default=DEFAULT_ROW_GROUP_TOKENS, metavar="N", help="tokens of a row group")
    writing("--file-tokens", type=int, default=DEFAULT_FILE_TOKENS, metavar="N", help="tokens of a file")
    writing(
        "--publish",
        choices=get_args(Publish),
        default="at-end",
        help="whether files are shown once the set is complete, or each once it is finished",
    )
    writing("--overwrite", action="store_true", help="replace the files of an earlier run")
    running = parser.add_argument_group("how to run").add_argument
    running("--engine", choices=get_args(EngineName), default="tokenizers", help="what encodes for a tokenizer.json")
    running("--workers", type=int, default=0, metavar="N", help="processes that encode; 0: the threads of this one")
    running("--batch-bytes", type=int, default=DEFAULT_BATCH_BYTES, metavar="N", help="bytes of text encoded at a time")
    running(
        "--rank",
        type=int,
        metavar="N",
        help="which of several machines this is; known under torchrun, SLURM and Kubernetes",
    )
    running("--world-size", type=int, metavar="N", help="how many machines there are")
    running("--ray", nargs="?", const="local", metavar="ADDRESS", help="run the ranks as tasks of a Ray cluster")
    running("--step", choices=get_args(Step), default="encode", help="with several machines: what to do")
    running("--storage-options", default="{}", metavar="JSON", help="options of the fsspec filesystem, for URLs")
    running("--verify", action="store_true", help="read the set again at the end and show some documents")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def parse_options(argv: Sequence[str] | None = None) -> PretokenizeOptions:
    """The options that arguments stand for; leaves the program on arguments that argparse refuses.

    Raises:
        ConfigError: a value that cannot work.
    """
    return _options(_given(argv))[0]


_NOT_GIVEN = object()
_COMMAND_ALONE = ("verify", "ray")  # what is not of `PretokenizeOptions`


def _given(argv: Sequence[str] | None) -> dict[str, Any]:
    """What was given by hand, and nothing else; defaults are those of `PretokenizeOptions`."""
    parser = build_parser()
    names = [action.dest for action in parser._actions if action.dest != "help"]
    unset: dict[str, Any] = dict.fromkeys(names, _NOT_GIVEN) | {"inputs": []}
    values = vars(parser.parse_args(argv, argparse.Namespace(**unset)))
    return {name: value for name, value in values.items() if value is not _NOT_GIVEN and value != []}


def _options(given: dict[str, Any]) -> tuple[PretokenizeOptions, Place | None]:
    """The options, and where in the environment this rank's place was found, if it was needed."""
    values = {name: value for name, value in given.items() if name not in _COMMAND_ALONE}
    place: Place | None = None
    if "ray" in given:
        if {"rank", "step"} & set(given):
            raise ConfigError("--ray does every rank and every step: omit --rank and --step.")
        values["world_size"] = 1  # each task has its own
    elif ("rank" in given) != ("world_size" in given):
        raise ConfigError("--rank and --world-size go together: give both, or neither.")
    elif "rank" not in given and (place := place_from_environment(os.environ)) is not None:
        values |= {"rank": place.rank, "world_size": place.world_size}
    if "inputs" in given:
        values["inputs"] = tuple(given["inputs"])
    if "storage_options" in given:
        values["storage_options"] = _json_object(given["storage_options"])
    options = PretokenizeOptions(**values)
    options.refuse_unused(given)
    if "verify" in given and options.world_size > 1 and options.step != "finish":
        raise ConfigError("--verify reads the complete set: give it with --step finish.")
    return options, place


def _json_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--storage-options is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError('--storage-options must be a JSON object, such as {"anon": true}.')
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 0; 2 for an error, told in one line; 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """
    return _run(argv, None)


def _run(argv: Sequence[str] | None, seconds_to_end: float | None) -> int:
    try:
        with signals_as_interrupts(seconds_to_end), warnings_as_lines("pretokenize"):
            given = _given(argv)
            options, place = _options(given)
            with reporting() as progress:
                if "ray" in given:
                    size = given.get("world_size")
                    summary: Summary | StepDone = pretokenize_on_ray(options, address=given["ray"], world_size=size)
                elif options.world_size > 1:
                    summary = pretokenize_rank(options, progress=progress)
                else:
                    summary = pretokenize(options, progress=progress)
            print(as_arguments(summary.describe()) + (f" {place.origin}" if place is not None else ""))
            if "verify" in given and isinstance(summary, Summary):
                tokenizer = load_tokenizer(options.tokenizer, eos_token=options.eos_token)
                print(verify_set(options.output, tokenizer, storage_options=options.storage_options).describe())
    except ParquetLoaderError as error:
        print(f"pretokenize: error: {as_arguments(str(error))}", file=sys.stderr)
        return _EXIT_ERROR
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        print(_INTERRUPTED, file=sys.stderr)
        return _EXIT_SIGNAL + int(number)
    return 0


def command() -> NoReturn:
    """Run the command as a process of its own, and end that process."""
    status = _run(None, _SECONDS_TO_END)
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # all is said and done
    if status:
        # A thread may still be within a read or an encode that takes minutes, and there is nothing to wait for.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


@contextmanager
def warnings_as_lines(program: str) -> Iterator[None]:
    """What is meant for the user is one line, once, and any other warning what it always is."""
    said: set[str] = set()
    with warnings.catch_warnings():
        former = warnings.showwarning
        warnings.simplefilter("always", PretokenizeWarning)

        def show(message: Warning | str, category: type[Warning], *details: Any, **more: Any) -> None:
            if issubclass(category, PretokenizeWarning):
                line = as_arguments(str(message))
                if line not in said:
                    print(f"{program}: warning: {line}", file=sys.stderr)
                said.add(line)
            else:
                former(message, category, *details, **more)

        warnings.showwarning = show
        yield


@contextmanager
def signals_as_interrupts(seconds_to_end: float | None = None) -> Iterator[None]:
    """Schedulers end a job with SIGTERM, a closed terminal with SIGHUP; what Ctrl-C cleans up is then cleaned up too.
    What is ignored, as by nohup, stays so.

    Args:
        seconds_to_end: after a signal, until this process is ended whatever it is at; None for never.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if seconds_to_end is not None and hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, lambda *_: _end_now(number))
            signal.setitimer(signal.ITIMER_REAL, seconds_to_end)
        raise KeyboardInterrupt(number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    numbers = [each for each in ENDING if signal.getsignal(each) is not signal.SIG_IGN]
    former = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in former:
            signal.signal(number, handler)


def _end_now(number: int) -> None:
    try:
        os.write(2, f"{_INTERRUPTED}\n".encode())
    finally:
        os._exit(_EXIT_SIGNAL + number)
