"""The commands take runs that are packed by rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unique_sets import write_set

from parquet_loader import ParquetLoader
from parquet_loader.cli.main import main

ROWS = [[[1, 2, 3, 4], [5, 6], [7, 8, 9, 10]], [[11, 12, 13], [14, 15, 16, 17]]]


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    write_set(tmp_path / "set", [ROWS])
    return [str(tmp_path / "set"), "--seq-len", "4", "--lanes", "2", "--packing", "rows", "--pad-id", "0"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_which_and_show_give_rows_and_plan_their_steps(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pieces = answer(capsys, "which", *given, "--step", "0")["pieces"]
    assert [(piece["row"], piece["column"], piece["start"]) for piece in pieces] == [(0, 0, 0), (1, 0, 0)]
    padding = [row["padding"] for step in "01" for row in answer(capsys, "show", *given, "--step", step)["rows"]]
    assert set(padding) <= {0, 1, 2}
    assert answer(capsys, "plan", *given, "--epochs", "1")["plan"]["steps"] == 3


def test_padding_of_a_short_row_is_told_from_that_at_the_end(given: list[str], capsys: pytest.CaptureFixture) -> None:
    for step in "012":  # of 5 rows, 2 of which are short, in batches of 2
        assert main(["show", *given, "--epochs", "1", "--step", step, "--no-shuffle", "--tokenizer", "ids"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("columns of padding: the stored row is shorter") == 2
    assert shown.count("  4 columns of padding: the run ends") == 1


def test_a_run_in_a_toml_file_says_how_it_is_packed(given: list[str], tmp_path: Path, capsys) -> None:
    run = tmp_path / "run.toml"
    run.write_text(
        'seq_len = 4\nlanes = 2\nweights = {a = 1}\n\n[source.a]\nsource = "set"\npacking = "rows"\npad_id = 9\n'
    )
    with ParquetLoader.from_toml(run) as loader:
        batch = next(iter(loader))
    assert {len(row) for row in batch.tokens.tolist()} == {4}
    run.write_text('source = "set"\nseq_len = 4\nlanes = 2\npacking = "rows"\npad_id = 9\nepochs = 1\n')
    with ParquetLoader.from_toml(run) as loader:
        assert len(list(loader)) == 3
    assert main(["check", "--order", "--run", str(run)]) == 0
    assert "each stored row whole and once" in capsys.readouterr().out


def test_a_checkpoint_brings_the_packing_of_its_run(given: list[str], tmp_path: Path, capsys) -> None:
    with ParquetLoader(given[0], seq_len=4, lanes=2, packing="rows", pad_id=0) as loader:
        next(iter(loader))
        (tmp_path / "saved").write_bytes(loader.checkpoint())
    saved = ["--checkpoint", str(tmp_path / "saved")]
    assert answer(capsys, "which", given[0], *saved, "--pad-id", "0", "--step", "1")["seq_len"] == 4
    assert main(["checkpoint", saved[1]]) == 0
    assert "packing" in capsys.readouterr().out
