"""``parquet-loader show``."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader
from parquet_loader.cli import main
from parquet_loader.pretokenize import PretokenizeOptions, pretokenize

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e┗ no border\n┏ columns 0 to 9: [fake] x\x7f"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents that mean no good, each with an address."""
    records = [{"text": f"document {number} {HOSTILE}", "url": f"u{number}\x1b[1m\n"} for number in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    pretokenize(
        PretokenizeOptions(
            inputs=(str(tmp_path / "in.jsonl"),),
            output=str(tmp_path / "set"),
            tokenizer="bytes",
            append_eos=True,
            keep_columns=("url",),
            row_group_tokens=500,
        )
    )
    return tmp_path / "set"


RUN = ["--seq-len", "100", "--lanes", "4"]


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["show", *map(str, arguments)]) == 0
    return str(capsys.readouterr().out)


def test_documents_of_a_row_are_shown_as_text_with_their_borders(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, folder, *RUN, "--step", 3, "--rows", 1, "--columns", "url").splitlines()
    assert lines[0] == "step 3: 1 of 4 rows of 100 tokens"
    assert lines[3] == "row 1"
    heads = [line for line in lines if line.startswith(("┏ columns", "┇ columns"))]
    assert heads[0].startswith(("┏ columns 0 to ", "┇ columns 0 to "))
    assert all("part-00000.parquet, row group " in head for head in heads)
    assert any(line.startswith("┠ url: u") for line in lines)
    assert any(line.endswith("<eos>") for line in lines)
    assert {line[0] for line in lines[4:]} <= set("┏┠┃┗┇")


def test_what_documents_hold_does_nothing_to_a_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ((), ("--json",), ("--full",)):
        text = shown(capsys, folder, *RUN, "--rows", "0:4", "--columns", "url", *form)
        assert "owned" in text
        assert all(sign.isprintable() or sign == "\n" for sign in text), form
        assert not any(line.startswith("┏") and "[fake]" in line for line in text.splitlines()), form


def in_terminal(arguments: list[str], **environment: str) -> str:
    """What a command writes where its standard output is a terminal."""
    parent, child = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "parquet_loader", *arguments], stdout=child, env=os.environ | environment
    )
    os.close(child)
    found = b""
    while True:
        try:
            data = os.read(parent, 1 << 16)
        except OSError:  # as Linux says that nobody writes any more
            break
        if not data:
            break
        found += data
    os.close(parent)
    assert done.wait() == 0
    return found.decode()


def test_there_are_colours_on_a_terminal_unless_it_says_no(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["show", str(folder), *RUN]
    assert "\x1b[1mstep 0: 2 of 4 rows" in in_terminal(arguments, TERM="xterm", NO_COLOR="")
    assert "\x1b" not in in_terminal(arguments, TERM="xterm", NO_COLOR="1")
    assert "\x1b" not in shown(capsys, *arguments[1:])
    assert "\x1b[1mstep 0" in shown(capsys, *arguments[1:], "--color", "always")


def test_json_holds_ids_text_and_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(shown(capsys, folder, *RUN, "--step", 5, "--columns", "url", "--json"))
    with ParquetLoader(folder, seq_len=100, lanes=4) as loader:
        batch = [batch for _, batch in zip(range(6), loader, strict=False)][-1]
    rows = [[each for piece in row["pieces"] for each in piece["ids"]] for row in found["rows"]]
    assert rows == batch.tokens[:2].tolist()
    piece = found["rows"][0]["pieces"][0]
    assert piece["columns"]["url"].startswith("u")
    assert bytes(each for each in piece["ids"] if each < 256).decode(errors="replace") in piece["text"]


def test_of_a_checkpoint_the_next_step_is_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ParquetLoader(folder, seq_len=100, lanes=4) as loader:
        for _, batch in zip(range(3), loader, strict=False):  # noqa: B007
            pass
        (tmp_path / "ckpt").write_bytes(loader.checkpoint())
    found = json.loads(shown(capsys, folder, "--checkpoint", tmp_path / "ckpt", "--json"))
    assert found["step"] == 3
    earlier = json.loads(shown(capsys, folder, "--checkpoint", tmp_path / "ckpt", "--step", 2, "--json"))
    rows = [[each for piece in row["pieces"] for each in piece["ids"]] for row in earlier["rows"]]
    assert rows == batch.tokens[:2].tolist()


def test_a_run_may_come_from_a_file_and_columns_from_beside(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(f'seq_len = 50\nlanes = 2\n[source]\na = "{folder}"\n[weights]\na = 1\n')
    (tmp_path / "beside").mkdir()
    rows = pq.read_metadata(folder / "part-00000.parquet").num_rows
    pq.write_table(pa.table({"page": [f"page {row}" for row in range(rows)]}), tmp_path / "beside/part-00000.parquet")
    arguments = ["--run", tmp_path / "run.toml", "--columns", "page", "--columns-from"]
    text = shown(capsys, *arguments, f"a={tmp_path / 'beside'}")
    assert "[a] part-00000.parquet" in text
    assert "┠ page: page " in text
    assert main(["show", *map(str, arguments), str(tmp_path / "beside")]) == 2
    assert "--columns-from NAME=FOLDER must name a source: a" in capsys.readouterr().err


def test_without_a_tokenizer_ids_are_shown_and_why(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = write_set(tmp_path / "bare", unique_groups([[[30, 40], [50]]]))
    assert main(["show", str(other), "--seq-len", "8", "--lanes", "1", "--no-shuffle"]) == 0
    said = capsys.readouterr()
    assert "┃ 0 1 2 3 4 5 6 7" in said.out
    assert "ids are shown, and no text: the files do not say which tokenizer" in said.err
    assert "┃ 100 111 99" in shown(capsys, folder, *RUN, "--rows", "0:4", "--tokenizer", "ids")


def test_long_documents_are_cut_unless_all_is_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "characters more (--full)" in shown(capsys, folder, *RUN, "--characters", 5)
    assert "characters more (--full)" not in shown(capsys, folder, *RUN, "--characters", 5, "--full")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rows", "4"], "--rows 4: there are rows 0 to 3"),
        (["--rows", "2:1"], "there are rows 0 to 3"),
        (["--rows", "x"], "there are rows 0 to 3"),
        (["--columns", "urll"], "no column 'urll'"),
        (["--tokenizer", "./none.json"], "there is no such file"),
        (["--epochs", "1", "--step", "9999"], "there is no step 9,999"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_line(
    folder: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(folder), *RUN, *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
