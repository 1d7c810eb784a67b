"""``parquet-loader index SOURCE --output FILE``: the footers of a dataset, read once for all ranks.

``python -m parquet_loader`` is the same command.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ParquetLoaderError
from ..index.build import build_index
from ..storage.secrets import Location

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="parquet-loader", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    index = commands.add_parser(
        "index",
        help="read the footers of a dataset and save them",
        description="Reads the footer of every file, or of as many as the cache does not know, and writes one file, "
        'which every rank can be given: ParquetLoader(..., index="index.msgpack").',
    )
    index.add_argument("source", nargs="+", help="a folder, a file, a glob or a URL, or several")
    index.add_argument("--output", required=True, help="the file to write; it appears once it is complete")
    index.add_argument("--column", help="the token column, where it is not the only list of integers")
    index.add_argument(
        "--storage-options",
        type=_options,
        metavar="JSON",
        help="for the filesystem of a URL; secrets are better in "
        "the environment, since other users may see a command's arguments",
    )
    index.add_argument("--threads", type=_positive, default=16, help="footers read concurrently (%(default)s)")
    index.add_argument("--cache-dir", help="where footers are cached (the user's cache folder)")
    index.add_argument(
        "--recount",
        action="store_true",
        help="count tokens from the data, whatever footers and cache say: for files whose writer counted nulls wrongly",
    )
    options = parser.parse_args(arguments)
    if "://" in options.output or Path(options.output).is_dir():
        parser.error(f"--output must be a local file, not {Location(options.output)!r}")
    begun = time.monotonic()
    with _Progress() as progress:
        try:
            found = build_index(
                options.source[0] if len(options.source) == 1 else options.source,
                column=options.column,
                storage_options=options.storage_options,
                cache_dir=options.cache_dir,
                threads=options.threads,
                progress=progress.show,
                recount=options.recount,
            )
            found.save(options.output)
        except (ParquetLoaderError, OSError) as error:
            progress.end()
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            progress.end()
            print("interrupted; nothing was written", file=sys.stderr)
            return 130
    print(
        f"{options.output}: {len(found.files):,} files, {len(found):,} row groups, {int(found.rows.sum()):,} "
        f"documents, {int(found.tokens.sum()):,} tokens in column {found.column!r}, in "
        f"{time.monotonic() - begun:.1f} s"
    )
    for remark in found.remarks():
        print(f"note: {remark}", file=sys.stderr)
    return 0


def _options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no valid JSON ({error})") from None
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError('must be a JSON object, such as {"anon": true}')
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return int(text)


class _Progress:
    """A bar on a terminal; nothing elsewhere, or without tqdm."""

    def __init__(self) -> None:
        self._update: Callable[[int, int], None] = lambda done, total: None
        self.end: Callable[[], None] = lambda: None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            bar = tqdm(unit="file", desc="footers", smoothing=0.1)

            def update(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            self._update, self.end = update, bar.close

    def show(self, done: int, total: int) -> None:
        """So many files of all are done."""
        self._update(done, total)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
