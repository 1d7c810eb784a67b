"""``parquet-loader inspect``."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unique_sets import damaged_ids, unique_groups, write_set

from parquet_loader.cli import main
from parquet_loader.pretokenize import PretokenizeOptions, pretokenize
from parquet_loader.storage.growing import Growing, Writer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", [[[[1, 2, 9], [4, 5, 9]], [[6, 9]]]])


def test_a_section_tells_what_is_in_a_set(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{folder}: column 'tokens'")
    assert "documents             3\n" in shown
    assert "documents end with 9 already (100.0% of 3 documents read): leave eos_id out, or they get two" in shown
    assert "mean 2.7, longest 3; all were read" in shown


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ([[7, 1], [7, 2]], "documents begin with 7 (100.0% of 2 documents read), which parts them"),
        ([[1, 2], [3, 4]], "give eos_id, so that they are parted"),
    ],
)
def test_whether_an_eos_is_needed_is_said(
    tmp_path: Path, documents: list[list[int]], says: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["inspect", str(write_set(tmp_path / "set", [[documents]]))]) == 0
    assert says in capsys.readouterr().out


def test_more_than_three_sets_are_a_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sets = [f"{name}={write_set(tmp_path / name, unique_groups([[[5] * 4]]))}" for name in "abcd"]
    assert main(["inspect", *sets]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["set", "files", "row"]
    assert [line.split()[0] for line in lines[2:]] == list("abcd")


def test_files_are_one_set(folder: Path, capsys: pytest.CaptureFixture) -> None:
    write_set(folder, [[], [[[1]]]])
    write_set(folder, [[[[1, 2, 9]]]])
    assert main(["inspect", "--json", *sorted(map(str, folder.iterdir()))]) == 0
    (only,) = json.loads(capsys.readouterr().out)["sets"]
    assert only["inspection"]["files"] == 2


def test_the_sets_of_a_run_are_looked_at(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    other = tmp_path / "other"
    other.mkdir()
    lists = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"x": lists, "y": lists}), other / "a.parquet")
    run = tmp_path / "run.toml"
    run.write_text(f'[source]\na = "{folder}"\nb = {{ source = "{other}", column = "y" }}\n')
    assert main(["inspect", "--json", "--run", str(run)]) == 0
    found = json.loads(capsys.readouterr().out)["sets"]
    assert [(each["name"], each["inspection"]["column"]) for each in found] == [("a", "tokens"), ("b", "y")]


def test_an_error_of_one_set_does_not_hide_the_others(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["inspect", str(folder / "absent"), str(folder)]) == 2
    shown = capsys.readouterr()
    assert "column 'tokens'" in shown.out
    assert shown.err.startswith(f"error: {folder}/absent: there is no ")


def test_columns_are_shown_where_one_has_to_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lists = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"input_ids": lists, "others": lists}), tmp_path / "a.parquet")
    assert main(["inspect", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "input_ids  list of int32  1 of 1    may hold tokens" in shown.out
    assert "Choose one with --column, for instance --column input_ids" in shown.out
    assert main(["inspect", str(tmp_path), "--column", "input_ids"]) == 0


def test_text_is_told_with_the_command_that_tokenizes_it(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    assert main(["inspect", str(tmp_path)]) == 2
    assert (
        "It holds text and no tokens: tokenize it with `python -m parquet_loader.pretokenize" in capsys.readouterr().out
    )


def test_documents_are_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "in.txt").write_text("Some words\x1b[31m.\n")
    pretokenize(PretokenizeOptions(inputs=(str(tmp_path / "in.txt"),), output=str(tmp_path / "set"), tokenizer="bytes"))
    for arguments in (["--text"], ["--tokenizer", "bytes"]):
        assert main(["inspect", str(tmp_path / "set"), *arguments]) == 0
        shown = capsys.readouterr().out
        assert "    Some words\\x1b[31m." in shown
        assert "tokenizer     bytes" in shown
        assert "give eos_id=256, which the set says is its tokenizer's" in shown
        assert f"made of       1 files (text), column 'text': {tmp_path}/in.txt" in shown
        assert "\x1b" not in shown


def test_a_tokenizer_that_no_file_names_is_said(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["inspect", "--text", str(folder)]) == 2
    shown = capsys.readouterr()
    assert "do not say which tokenizer wrote them" in shown.err
    assert "which column?" not in shown.out


def test_nothing_given_is_said(capsys: pytest.CaptureFixture) -> None:
    assert main(["inspect"]) == 2
    assert "no set is given" in capsys.readouterr().err


def test_ids_that_contradict_the_footers_are_status_one(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["inspect", str(damaged_ids(tmp_path / "set"))]) == 1
    shown = capsys.readouterr().out
    assert "1 to 9 in all row groups, by their footers, and 1 to 1,000 in what was read" in shown
    assert "wrong: of 2 row groups read 1 with other ids than their footers say" in shown


def test_an_odd_file_does_not_hide_the_others(folder: Path, capsys: pytest.CaptureFixture) -> None:
    pq.write_table(pa.table({"text": ["a"]}), folder / "a.parquet")
    assert main(["inspect", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "documents             3\n" in shown
    assert "wrong: a.parquet, of 2 files: has no list of integers; its columns are text (string)" in shown
    assert "tokenize it" not in shown


def test_candidate_columns_are_counted_by_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lists = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"x": lists, "y": lists}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": lists, "y": lists, "z": lists}), tmp_path / "b.parquet")
    assert main(["inspect", str(tmp_path)]) == 2
    shown = capsys.readouterr().out
    assert "x       list of int32  2 of 2    may hold tokens               6" in shown
    assert "z       list of int32  1 of 2    may hold tokens               3" in shown


def test_where_nothing_can_be_told_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().out == ""


def test_inspecting_a_set_that_grows_takes_what_is_there_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    (folder / "_growing.json").write_text("{}")
    assert main(["inspect", str(folder)]) == 0
    assert f"{folder} is still being written: this is of the files that are there" in capsys.readouterr().out


def test_inspecting_says_of_a_set_whose_writer_has_failed_that_it_has_and_why(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    writer = Writer(program="p", host="h", pid=1)
    failed = Growing(state="failed", writer=writer, since="a", updated="b", reason="the disk is full")
    (folder / "_growing.json").write_text(failed.to_json())
    assert main(["inspect", str(folder)]) == 0
    assert f"{folder} is not complete, as its writer has failed: the disk is full; " in capsys.readouterr().out
