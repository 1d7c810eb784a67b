"""Checks of what a run needs: aligned columns of the tokens' lengths, and rows that fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ConfigError
from parquet_loader.cli import main
from parquet_loader.insight import check

IDS = [[1, 2, 3], [4, 5], [6]]


def write(folder: Path, name: str, kind: str = "parquet", **columns: Any) -> Path:
    folder.mkdir(exist_ok=True)
    table = pa.table({"input_ids": pa.array(IDS, pa.list_(pa.int32())), **columns})
    if kind == "parquet":
        pq.write_table(table, folder / f"{name}.parquet")
    else:
        with pa.ipc.new_file(str(folder / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
    return folder


def told(folder: Path, **needs: Any) -> list[tuple[str, str, int | None, str]]:
    report = check(folder, column="input_ids", **needs)
    return [(each.kind, each.path.partition(".")[0], each.row_group, each.problem) for each in report.faults]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_that_are_not_as_long_as_the_tokens_are_faults_with_their_rows(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "set", "a", kind, labels=IDS)
    write(tmp_path / "set", "b", kind, labels=[[1, 2, 3], [4], [5, 6]])  # as many in all
    write(tmp_path / "set", "c", kind, labels=[[1, 2, 3], [4, 5], [6, 7]])
    write(tmp_path / "set", "d", kind, labels=[[1, 2, 3], [4, None], [6]])
    write(tmp_path / "set", "e", kind, labels=[[1, 2, 3], None, [6]])
    write(tmp_path / "set", "f", kind)
    assert told(tmp_path / "set") == []
    found = told(tmp_path / "set", aligned=["labels"])
    assert [each[:3] for each in found] == [("aligned", name, None if name == "f" else 0) for name in "bcdef"]
    problems = [each[3] for each in found]
    assert "row 1 has 1 values, and 2 tokens; 1 more rows" in problems[0]
    assert "row 2 has 2 values, and 1 tokens" in problems[1]
    assert "row 1 has a null" in problems[2]
    assert "row 1 has 0 values" in problems[3]
    assert "no column 'labels'" in problems[4]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_documents_that_are_no_rows_of_the_run_are_faults(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path / "set", "a", kind)
    assert told(folder, packing="rows", seq_len=3, pad_id=0) == []
    ((name, _, group, problem),) = told(folder, packing="rows", seq_len=2, pad_id=0)
    assert (name, group) == ("rows", 0)
    assert "row 0 of the row group holds 3 ids" in problem
    assert "row 1 of the row group holds 2 ids" in told(folder, packing="rows", seq_len=3)[0][3]
    assert told(folder, packing="rows", seq_len=2, overlap=1, pad_id=0) == []


def test_the_command_checks_what_its_options_name_and_says_what_was_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = str(write(tmp_path / "set", "a", labels=IDS, mask=[[1, 1, 1], [1], [1, 1]]))
    asked = ["check", folder, "--column", "input_ids", "--packing", "rows", "--pad-id", "0"]
    assert main([*asked, "--seq-len", "3", "--aligned", "labels"]) == 0
    shown = capsys.readouterr().out
    assert "nothing is wrong" in shown
    assert "that labels have a value for each token; that every document is a row of at most 3 ids" in shown
    assert main([*asked, "--seq-len", "3", "--aligned", "labels,mask"]) == 1
    assert "column 'mask': row 1" in capsys.readouterr().out
    assert main([*asked, "--seq-len", "2"]) == 1
    assert main(asked) == 2
    assert "--seq-len" in capsys.readouterr().err


def test_a_run_file_s_sources_are_checked_for_their_own_columns(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write(tmp_path / "chat", "a", labels=[[1, 2, 3], [4], [5, 6]])
    write(tmp_path / "web", "a")
    (tmp_path / "run.toml").write_text(
        'seq_len = 4\nlanes = 2\ncolumn = "input_ids"\naligned = ["labels"]\n[source]\nchat = "chat"\n'
        'web = { source = "web", fill = { labels = "tokens" } }\n'
    )
    assert main(["check", "--run", str(tmp_path / "run.toml")]) == 1
    shown = capsys.readouterr().out
    assert "chat: 1 fault" in shown
    assert "web: nothing is wrong" in shown


def test_raw_ids_have_no_columns_to_check(tmp_path: Path) -> None:
    (tmp_path / "ids.bin").write_bytes(b"\1\0\2\0")
    with pytest.raises(ConfigError, match="leave out aligned="):
        check(tmp_path, format="raw", raw_dtype="uint16", aligned=["labels"])
