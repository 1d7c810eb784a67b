"""``parquet-loader``, which is also ``python -m parquet_loader``: one subcommand for each module here."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from ..errors import ParquetLoaderError
from . import check, checkpoint, index, inspect, plan, report, show, which
from .arguments import HelpFormatter
from .output import complain

__all__ = ["main"]

_COMMANDS = (inspect, plan, which, show, check, checkpoint, report, index)

_DESCRIPTION = """\
What is in a tokenized set, what a run will do, and what each of its steps saw:
all from the index, without training.
"""

_STATUS = """\
Each command has a --help of its own, with an example, and --json for programs.
Runs are described in a TOML file (--run), or by the options of ParquetLoader.


exit status:
  0  done, and all is well
  1  done, and something is wrong: damage was found, a resume would be refused, a document is not there
  2  could not be done: arguments, a path that is not there, a file that cannot be read
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="parquet-loader",
        description=_DESCRIPTION,
        epilog=_STATUS,
        formatter_class=HelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    given = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever it cannot write, in the locale C
    try:
        status: int = given.run(given)
        sys.stdout.flush()  # here, where a reader that has gone away is nothing bad
    except (ParquetLoaderError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python flushes at its exit
            return 141  # as if SIGPIPE had ended it
        complain(error)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return status
