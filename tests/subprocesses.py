"""Python programs of their own: for signals, forks, exits and memory, which a test's own process cannot stand for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAM_SECONDS = 120  # a deadlock is a failure


def start(
    program: str, *arguments: object, environment: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start a program, indented as the test that holds it; the package is that of the tests. ``before`` runs it."""
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [
            *before,
            sys.executable,
            "-W",
            "error",
            "-X",
            "faulthandler",
            "-c",
            textwrap.dedent(program),
            *map(str, arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What a program printed, once it has ended with 0 and nothing on stderr."""
    try:
        out, err = process.communicate(timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler then writes every thread's stack
        out, err = process.communicate()
        raise AssertionError(f"the program hung:\n{out}\n{err}") from None
    assert (process.returncode, err) == (0, ""), f"exit code {process.returncode}\n{out}\n{err}"
    return out


def run(
    program: str, *arguments: object, environment: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> str:
    """Start a program and wait for its clean end."""
    return finish(start(program, *arguments, environment=environment, before=before))
