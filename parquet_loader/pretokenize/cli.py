"""The command line over `pretokenize`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from parquet_loader.errors import ConfigError, ParquetLoaderError
from parquet_loader.pretokenize.extras import import_extra
from parquet_loader.pretokenize.pipeline import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_FILE_TOKENS,
    DEFAULT_ROW_GROUP_TOKENS,
    PretokenizeOptions,
    Progress,
    pretokenize,
)

_EXIT_ERROR = 2
_EXIT_SIGNAL = 128  # plus the signal's number, as shells have it


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="pretokenize",
        description="Tokenize text into Parquet files that parquet_loader reads.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,  # a script's abbreviation must not change its meaning with a later option
    )
    add = parser.add_argument
    add(
        "--input",
        dest="inputs",
        nargs="+",
        action="extend",
        required=True,
        metavar="PATH",
        help="files, folders or globs, local or URLs: .txt, .jsonl, .ndjson, .json (also .gz, .zst), .parquet",
    )
    add("--output", required=True, metavar="FOLDER", help="folder to write, local or a URL")
    add("--tokenizer", required=True, metavar="PATH|NAME", help="tokenizer.json, a folder with one, or a Hub name")
    add("--text-column", default="text", metavar="NAME", help="JSON field or Parquet column that holds the text")
    add("--text-unit", choices=("line", "file"), default="line", help="what is one document in a .txt")
    add("--append-eos", action="store_true", help="end every document with the end-of-document token")
    add("--eos-token", metavar="TOKEN", help="the end-of-document token, where it cannot be found by itself")
    add("--row-group-tokens", type=int, default=DEFAULT_ROW_GROUP_TOKENS, metavar="N", help="tokens of a row group")
    add("--file-tokens", type=int, default=DEFAULT_FILE_TOKENS, metavar="N", help="tokens of a file")
    add("--max-docs", type=int, metavar="N", help="stop after so many documents")
    add("--overwrite", action="store_true", help="replace the files of a former run")
    add("--batch-bytes", type=int, default=DEFAULT_BATCH_BYTES, metavar="N", help="bytes of text encoded at a time")
    add("--storage-options", default="{}", metavar="JSON", help="options of the fsspec filesystem, for URLs")
    return parser


def parse_options(argv: Sequence[str] | None = None) -> PretokenizeOptions:
    """The options that arguments stand for; leaves the program on arguments that argparse refuses.

    Raises:
        ConfigError: a value that cannot work.
    """
    values = vars(build_parser().parse_args(argv))
    values["inputs"] = tuple(values["inputs"])
    try:
        values["storage_options"] = json.loads(values["storage_options"])
    except ValueError as exc:
        raise ConfigError(f"--storage-options is not valid JSON ({exc}): {values['storage_options']!r}.") from exc
    if not isinstance(values["storage_options"], dict):
        raise ConfigError(f"--storage-options must be a JSON object, got {values['storage_options']!r}.")
    return PretokenizeOptions(**values)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 0; 2 for an error, told in one line; 130 after Ctrl-C, 143 after SIGTERM.
    """
    try:
        with _sigterm_as_interrupt(), _progress_bar() as progress:
            summary = pretokenize(parse_options(argv), progress=progress)
    except ParquetLoaderError as exc:
        print(f"pretokenize: error: {exc}", file=sys.stderr)
        return _EXIT_ERROR
    except KeyboardInterrupt as exc:
        number = exc.args[0] if exc.args else signal.SIGINT
        print("pretokenize: interrupted", file=sys.stderr)
        return _EXIT_SIGNAL + int(number)
    print(summary.describe())
    return 0


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


@contextmanager
def _progress_bar() -> Iterator[Callable[[Progress], None] | None]:
    """A bar on a terminal, None elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    # A pseudo-terminal of no known size would get a bar without a single sign.
    size = {} if os.get_terminal_size(sys.stderr.fileno()).columns else {"ncols": 100, "nrows": 24}
    with import_extra("tqdm").tqdm(desc="pretokenize", unit="B", unit_scale=True, **size) as bar:

        def show(done: Progress) -> None:
            bar.set_postfix_str(f"{done.documents:,} docs, {done.tokens:,} tokens", refresh=False)
            bar.update(done.text_bytes - bar.n)

        yield show
