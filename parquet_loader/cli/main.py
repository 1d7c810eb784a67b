"""``parquet-loader``: what is in a set, what a run will do, what a step saw; and indexes.

``python -m parquet_loader`` is the same command.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ..errors import ParquetLoaderError
from . import check, checkpoint, index, inspect, report, which

__all__ = ["main"]

_COMMANDS = (index, inspect, which, check, checkpoint, report)

_STATUS = """\
exit status:
  0  done, and all is well
  1  done, and something is wrong: damage was found, a resume would be refused, a document is not there
  2  could not be done: arguments, a path that is not there, a file that cannot be read
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="parquet-loader", description=__doc__, epilog=_STATUS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    given = parser.parse_args(arguments)
    try:
        status: int = given.run(given)
        sys.stdout.flush()  # here, where a reader that has gone away is nothing bad
    except (ParquetLoaderError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python flushes at its exit
            return 141  # as if SIGPIPE had ended it
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return status
