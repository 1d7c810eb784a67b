"""Tables and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from unique_sets import unique_groups, write_set

from parquet_loader.cli import main
from parquet_loader.cli.output import plain, print_json, table


def test_numbers_stand_to_the_right_and_text_to_the_left() -> None:
    shown = table([["web", 1_234_567, 0.25], ["code", 5, None]], ["source", "tokens", "share"])
    assert shown.splitlines() == [
        "source     tokens  share",
        "──────  ─────────  ─────",
        "web     1,234,567   0.25",
        "code            5",
    ]


def test_a_table_of_nothing_is_empty() -> None:
    assert table([]) == ""
    assert table([], ["a", "b"]).splitlines() == ["a  b", "─  ─"]


def test_a_terminal_obeys_nothing_that_files_hold(capsys: pytest.CaptureFixture) -> None:
    assert table([["a\x1b[31m\nb", 1]]) == "a\\x1b[31m\\nb  1"
    print_json({"name": "\x9b31m\u202e\udc80"})
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert json.loads(shown) == {"name": "\x9b31m\u202e\udc80"}


def test_what_a_locale_cannot_write_is_written_by_its_code(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "wéb", unique_groups([[[3, 4]]]))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "parquet_loader", "inspect", str(folder)]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert b"w\\xe9b" in done.stdout


@dataclass
class Found:
    numbers: np.ndarray
    path: Path
    more: dict[str, tuple[int, ...]]


def test_values_become_plain_json(capsys: pytest.CaptureFixture) -> None:
    print_json(Found(np.arange(2), Path("/x"), {"a": (1, 2)}))
    assert json.loads(capsys.readouterr().out) == {"numbers": [0, 1], "path": "/x", "more": {"a": [1, 2]}}
    assert plain(np.float64(0.5)) == 0.5


def test_the_help_names_commands_and_exit_statuses(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "exit status" in text
    assert "index" in text


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import sys; from parquet_loader.cli import main, index\n"
        "index.run = lambda given: print('x' * 1_000_000) or 0\n"
        "from parquet_loader.cli.main import main\n"
        "sys.exit(main(['index', 'x', '--output', 'y']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 141
