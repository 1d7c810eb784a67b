"""``parquet-loader report``: what is in the sets, what a run will do, and what it has done, as one page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..checkpoint import read_state
from ..insight import open_run, write_report
from ..storage.secrets import Location
from .arguments import HelpFormatter, add_run, positive, run_of, state_of, world_sizes
from .output import print_json, say
from .text import tokenizer_of

__all__ = ["add", "run"]


def add(commands: Any) -> None:
    """Have the command's parser take this one."""
    parser = commands.add_parser(
        "report",
        help="one page of HTML with all of it, for people",
        description="Writes one page of HTML that loads nothing: what is in the sets, the mixture over the run, "
        "windows and lanes, memory and reads by world size, samples, and what checkpoints tell. Needs the extra "
        "'report'.",
        epilog="example:\n  parquet-loader report -o report.html --run run.toml --tokens 300e9 --world-sizes 8,16,64",
        formatter_class=HelpFormatter,
    )
    add_run(parser)
    parser.add_argument("-o", "--output", required=True, help="the file to write; it appears once it is complete")
    parser.add_argument("--tokens", type=positive, help="how long the run is to be")
    parser.add_argument(
        "--world-sizes", type=world_sizes, default=[], metavar="N,N", help="numbers of ranks to compare"
    )
    parser.add_argument(
        "--checkpoint", nargs="+", action="extend", default=[], metavar="FILE", help="checkpoints or states of the run"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="decodes samples: as for the command show; ids for no text (the one that the files name)",
    )
    parser.add_argument("--title", help="of the page")
    parser.add_argument("--json", action="store_true", help="tell what was written as JSON")
    parser.set_defaults(run=run, refuse=parser.error)


def _names(paths: list[str]) -> list[str]:
    """What the files are called, without the folders that all of them are in."""
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths]) if paths else ""
    return [os.path.relpath(os.path.abspath(path), folder) for path in paths]


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    if "://" in given.output or Path(given.output).is_dir():
        given.refuse(f"--output must be a local file, not {Location(given.output)!r}")
    states = {path: state_of(path) for path in given.checkpoint}
    last = max(states.values(), key=lambda state: read_state(state).position, default=None)
    source, options = run_of(given, last)
    opened = open_run(source, options)
    tokenizer, _ = tokenizer_of(given.tokenizer, opened)  # where there is none the page says it
    write_report(
        given.output,
        opened,
        tokens=given.tokens,
        world_sizes=given.world_sizes,
        checkpoints=dict(zip(_names(list(states)), states.values(), strict=True)),
        tokenizer=tokenizer,
        title=given.title,
    )
    written = os.path.getsize(given.output)
    if given.json:
        print_json({"output": given.output, "bytes": written})
    else:
        say(f"{given.output}: {written:,} bytes")
    return 0
