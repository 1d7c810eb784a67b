"""``parquet-loader index SOURCE --output FILE``: the footers of a dataset, read once for all ranks."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from ..index.build import build_index
from ..storage.secrets import Location
from .arguments import HelpFormatter, add_format, aligned, json_object, positive
from .output import Progress, print_json, say

__all__ = ["add", "run"]


def add(commands: Any) -> None:
    """Have the command's parser take this one."""
    parser = commands.add_parser(
        "index",
        help="read the footers of a dataset and save them",
        description="Reads the footer of every file, or of as many as the cache does not know, and writes one file, "
        'which every rank can be given: ParquetLoader(..., index="index.msgpack").',
        epilog="example:\n  parquet-loader index s3://bucket/fineweb-edu --output index.msgpack",
        usage="%(prog)s SOURCE ... --output FILE [OPTION ...]",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("source", nargs="+", help="a folder, a file, a glob or a URL, or several")
    parser.add_argument("--output", required=True, help="the file to write; it appears once it is complete")
    parser.add_argument("--column", help="the token column, where it is not the only list of integers")
    parser.add_argument("--aligned", type=aligned, default={}, help="columns that go with the tokens: labels,mask")
    add_format(parser)
    parser.add_argument(
        "--storage-options",
        type=json_object,
        metavar="JSON",
        help="for the filesystem of a URL; secrets are better in the environment, since other users may see a "
        "command's arguments",
    )
    parser.add_argument("--threads", type=positive, default=16, help="footers read concurrently (%(default)s)")
    parser.add_argument("--cache-dir", help="where footers are cached (the user's cache folder)")
    parser.add_argument(
        "--recount",
        action="store_true",
        help="count tokens from the data, whatever footers and cache say: for files whose writer counted nulls wrongly",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.set_defaults(run=run, refuse=parser.error)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    if "://" in given.output or Path(given.output).is_dir():
        given.refuse(f"--output must be a local file, not {Location(given.output)!r}")
    begun = time.monotonic()
    with Progress("footers", "file") as progress:
        try:
            found = build_index(
                given.source[0] if len(given.source) == 1 else given.source,
                column=given.column,
                storage_options=given.storage_options,
                cache_dir=given.cache_dir,
                threads=given.threads,
                progress=progress.show,
                recount=given.recount,
                format=given.format,
                raw_dtype=given.raw_dtype,
                aligned=tuple(given.aligned),
            )
            found.save(given.output)
        except KeyboardInterrupt:
            progress.end()
            print("interrupted; nothing was written", file=sys.stderr)
            return 130
    seconds = time.monotonic() - begun
    counts = {
        "files": len(found.files),
        "row_groups": len(found),
        "documents": found.documents,
        "tokens": int(found.tokens.sum()),
    }
    if given.json:
        print_json(
            {
                "output": given.output,
                "column": found.column,
                **counts,
                "fingerprint": found.fingerprint,
                "seconds": seconds,
                "remarks": found.remarks(),
            }
        )
        return 0
    told = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in counts.items() if value is not None)
    say(f"{given.output}: {told} in column {found.column!r}, in {seconds:.1f} s")
    for remark in found.remarks():
        print(f"note: {remark}", file=sys.stderr)
    return 0
