"""Tables and JSON."""

from __future__ import annotations

import json
import os
import shlex
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


def command(*arguments: str, shell: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    line = f"exec {shlex.join([sys.executable, '-m', 'parquet_loader', *arguments])} {shell}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=60, **options)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
@pytest.mark.parametrize(("shell", "says"), [(">&-", "output is closed"), (">/dev/full", "output cannot be written")])
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, shell: str, says: str, json_too: list[str]) -> None:
    folder = write_set(tmp_path / "set", [[[[1, 2]]]])
    done = command("inspect", str(folder), *json_too, shell=shell)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def test_warnings_are_notes_of_one_line(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[1, 2]]]])
    (tmp_path / "file").touch()
    done = command("inspect", str(folder), str(folder), "--cache-dir", str(tmp_path / "file" / "cache"))
    assert done.returncode == 0
    read, written = done.stderr.splitlines()  # once, though of two sets
    assert read.startswith("note: the index cache ")
    assert written.startswith("note: the index cache cannot be written to ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["plan", "absent", "--seq-len", "8", "--lanes", "2"],
        ["plan", "absent", "--lanes", "x"],
        ["which", "--bogus"],
        ["index", "absent", "--output", "x"],
        ["check", "--order", "absent"],
        ["show", "absent", "--step", "1"],
        ["report", "absent"],
    ],
)
def test_an_error_is_one_json_object_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main([*arguments, "--json"])
    except SystemExit as ended:
        status = ended.code
    shown = capsys.readouterr()
    assert status == 2
    assert shown.err.endswith(f"error: {json.loads(shown.out)['error']}\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "x", "--lanes", "none"], "argument --lanes: must be 1 or more"),
        (["plan", "x", "--eos-id", "none"], "argument --eos-id: is an id: leave it out"),
        (["plan", "x", "--seqlen", "3"], "unknown: --seqlen 3; did you mean --seq-len?"),
        (["inspect", "x", "--bogus"], "unknown: --bogus"),
        (["index", "x", "--threads", "0"], "argument --threads: must be 1 or more"),
    ],
)
def test_arguments_are_refused_in_two_lines(arguments: list[str], says: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith(f"usage: parquet-loader {arguments[0]} ")
    assert error.startswith(f"error: {says}")


def test_a_current_folder_that_is_gone_matters_to_relative_paths_alone(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[1, 2]]]])
    (tmp_path / "gone").mkdir()
    inside = f"cd {shlex.quote(str(tmp_path / 'gone'))} && rmdir ../gone && "
    python = f"{shlex.quote(sys.executable)} -m parquet_loader inspect"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def run(path: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", f"{inside}{python} {shlex.quote(path)}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment,
        )

    assert run(str(folder)).returncode == 0
    (tmp_path / "gone").mkdir()
    done = run("set")
    assert done.returncode == 2
    assert "set is relative to the current folder, which is there no more" in done.stderr
