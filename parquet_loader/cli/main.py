"""``parquet-loader``, which is also ``python -m parquet_loader``: one subcommand for each module here."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import ConfigError, ParquetLoaderError
from ..printable import printable
from ..runfile import of_file
from . import check, checkpoint, index, inspect, plan, report, show, which
from .arguments import HelpFormatter
from .output import OutputError, complain, flush, print_json

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


class _Refused(Exception):
    """Arguments that cannot be taken: the usage in short, and why."""


class _Parser(argparse.ArgumentParser):
    """One that refuses in two lines, of the subcommand that was asked for."""

    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().strip()
        if self.usage is None and "\n" in usage:  # all options, which only --help is to show
            usage = f"usage: {self.prog} [OPTION ...]"
        raise _Refused(f"{usage} (--help tells all)", message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0], self._option_string_actions, 1)
            self.error(f"unknown: {' '.join(unknown)}" + (f"; did you mean {near[0]}?" if near else ""))
        return found, unknown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process
    if sys.stdout is None:
        complain("standard output is closed, and there is nowhere to say anything: give it a file or /dev/null")
        return 2
    parser = _Parser(
        prog="parquet-loader",
        description=_DESCRIPTION,
        epilog=_STATUS,
        formatter_class=HelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever it cannot write, in the locale C
    try:
        status = _answer(parser, sys.argv[1:] if arguments is None else arguments)
        flush()
    except BrokenPipeError:
        _forget_output()
        return 141  # as if SIGPIPE had ended it
    except OutputError as error:
        _forget_output()
        complain(error)
        return 2
    return status


def _answer(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _Notes().show
            given = parser.parse_args(arguments)
            return _run(given)
    except _Refused as refused:
        usage, problem = refused.args
        print(usage, file=sys.stderr)
        _refuse(problem, as_json=as_json)
        flush()
        raise SystemExit(2) from None
    except BrokenPipeError:
        raise
    except (ParquetLoaderError, OSError) as error:
        _refuse(error, as_json=as_json)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(given: argparse.Namespace) -> int:
    try:
        status: int = given.run(given)
    except ConfigError as error:
        if getattr(given, "run_file", None) is None:
            raise
        beside = [name for name, value in vars(given).items() if value is not None]
        raise of_file(error, given.run_file, beside) from error
    return status


def _refuse(problem: object, *, as_json: bool) -> None:
    if as_json:
        print_json({"error": str(problem)})
    complain(problem)


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python flushes at its exit


class _Notes:
    """Warnings of the library, a line each, and none of them twice."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def show(self, message: Warning | str, *_: object, **__: object) -> None:
        """As `warnings.showwarning`."""
        text = str(message)
        if text not in self._told:
            self._told.add(text)
            print(f"note: {printable(text)}", file=sys.stderr)
