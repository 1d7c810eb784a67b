"""The command ``which``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import Batch, ParquetLoader
from parquet_loader.cli.main import main

FILES = unique_groups([[[30, 40, 0], [50]], [[60] * 20]])
RUN = 'seq_len = 16\nlanes = 4\nseed = 3\nepochs = 2\nsource = "set"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_set(tmp_path / "set", FILES)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


@pytest.fixture
def batches(folder: Path) -> list[Batch]:
    """Of a run that skipped two steps, with a checkpoint after the last of them."""
    with ParquetLoader.from_toml(folder / "run.toml") as loader:
        found = [next(iter(loader)) for _ in range(5)]
        loader.skip(2)
        found += [next(iter(loader)) for _ in range(3)]
        (folder / "ckpt").write_bytes(loader.checkpoint())
    return found


def asked(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["which", "--run", str(folder / "run.toml"), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def tokens_of(piece: dict[str, Any]) -> list[int]:
    document = FILES[int(piece["file"][5:8])][piece["row_group"]][piece["document"]]
    return document[piece["start"] : piece["start"] + piece["tokens"]]


def test_the_pieces_of_a_step_are_what_the_batch_had(folder: Path, batches: list[Batch], capsys: Any) -> None:
    state = ("--checkpoint", str(folder / "ckpt"))
    for step, batch in [(4, batches[4]), (7, batches[5])]:
        found = asked(folder, capsys, *state, "--step", str(step))
        assert (found["step"], found["seq_len"], found["skipped"]) == (step, 16, False)
        assert [token for piece in found["pieces"] for token in tokens_of(piece)] == batch.tokens.ravel().tolist()
        assert list(found["pieces"][0]) == [
            *("row", "column", "tokens", "source", "file", "row_group", "document", "start")
        ]


def test_without_a_step_it_is_the_checkpoints_last(folder: Path, batches: list[Batch], capsys: Any) -> None:
    found = asked(folder, capsys, "--checkpoint", str(folder / "ckpt"), "--row", "1:3")
    assert found["step"] == 9
    assert [token for piece in found["pieces"] for token in tokens_of(piece)] == batches[-1].tokens[
        1:3
    ].ravel().tolist()


def test_rows_may_be_those_of_a_rank_and_columns_some_of_them(
    folder: Path, batches: list[Batch], capsys: pytest.CaptureFixture[str]
) -> None:
    rank = ("--rank", "1", "--world-size", "4", "--columns-range", "2:9")
    found = asked(folder, capsys, "--step", "3", *rank)
    assert [token for piece in found["pieces"] for token in tokens_of(piece)] == batches[3].tokens[1, 2:9].tolist()


def test_a_skipped_step_is_told_as_one(folder: Path, batches: list[Batch], capsys: pytest.CaptureFixture[str]) -> None:
    state = ("--checkpoint", str(folder / "ckpt"))
    assert asked(folder, capsys, *state, "--step", "6")["skipped"] is True
    capsys.readouterr()
    assert main(["which", "--run", str(folder / "run.toml"), *state, "--step", "6", "--row", "0"]) == 0
    shown = capsys.readouterr().out
    assert "skipped: nobody got it" in shown
    assert ".parquet" in shown


def test_a_document_is_found_where_it_came(folder: Path, batches: list[Batch], capsys: Any) -> None:
    found = asked(folder, capsys, "--checkpoint", str(folder / "ckpt"), "--document", "part-000.parquet:0:1")
    assert (found["tokens"], found["steps"]) == (40, [0, 10])
    given = {**dict(enumerate(batches[:5])), **dict(enumerate(batches[5:], 7))}
    for place in found["places"]:
        wanted = FILES[0][0][1][place["start"] : place["start"] + place["tokens"]]
        columns = slice(place["column"], place["column"] + place["tokens"])
        assert place["skipped"] or given[place["step"]].tokens[place["row"], columns].tolist() == wanted
    assert found["places"]


def test_a_document_that_does_not_come_is_a_status_of_its_own(folder: Path, capsys: Any) -> None:
    run = ("which", "--run", str(folder / "run.toml"))
    assert main([*run, "--document", "part-000.parquet:0:2"]) == 1
    assert "0 tokens: it is empty" in capsys.readouterr().out
    some = [*run, "--document", "part-000.parquet:0:1"]
    assert main([*some, "--within-epochs", "0:2"]) == 0
    shown = capsys.readouterr().out
    assert "document 1 of row group 0 of part-000.parquet, 40 tokens" in shown
    first = int(shown.splitlines()[4].split()[0])
    assert main([*some, "--within-steps", f"0:{first}"]) == 1
    assert "it does not come in step" in capsys.readouterr().out


def test_a_source_of_a_mixture_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(folder / "set")
    run = ["which", f"web={place}", f"code={place}", "--weights", '{"web": 3, "code": 1}', "--seq-len", "8"]
    assert main([*run, "--lanes", "4", "--step", "5", "--json"]) == 0
    assert {piece["source"] for piece in json.loads(capsys.readouterr().out)["pieces"]} <= {"web", "code"}
    assert main([*run, "--lanes", "4", "--document", "part-000.parquet:0:1"]) == 2
    assert "give --source-name, one of code, web" in capsys.readouterr().err
    assert main([*run, "--lanes", "4", "--document", "part-000.parquet:0:1", "--source-name", "code"]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "say which step with --step"),
        (["--step", "99"], "the run ends with step"),
        (["--step", "1", "--document", "a:0:0"], "--step is of one"),
        (["--document", "part-009.parquet:0:0"], "the set has no file 'part-009.parquet'"),
        (["--step", "1", "--row", "9"], "--rows 9: there are rows 0 to 3"),
        (["--step", "1", "--rows", "3:99"], "--rows 3:99: there are rows 0 to 3"),
        (["--step", "1", "--rank", "0"], "--rank and --world-size belong together"),
        (["--step", "1", "--world-size", "2"], "--rank and --world-size belong together"),
        (["--step", "1", "--rank", "2", "--world-size", "2"], "--rank 2: of 2 there are ranks 0 to 1"),
        (["--step", "1", "--rank", "0", "--world-size", "2", "--rows", "0"], "or --rows, not both"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(folder: Path, arguments: list[str], says: str, capsys: Any) -> None:
    assert main(["which", "--run", str(folder / "run.toml"), *arguments]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--document", "a:0"], ["--row", "3:3"], ["--row", "x"], ["--step", "-1"]])
def test_what_is_no_document_or_range_is_refused(folder: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["which", "--run", str(folder / "run.toml"), *arguments])
    assert exit_.value.code == 2


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A set of bytes, of which each document has a url."""
    said = [f"document {number} says {'so ' * number}" for number in range(20)]
    (tmp_path / "texts").mkdir()
    columns = {"tokens": [list(text.encode()) for text in said], "url": [f"https://x/{at}" for at in range(20)]}
    pq.write_table(pa.table(columns), tmp_path / "texts" / "part-000.parquet", row_group_size=7)
    return tmp_path / "texts"


def test_pieces_are_told_with_their_text_and_other_columns_of_their_documents(texts: Path, capsys: Any) -> None:
    run = ["which", str(texts), "--seq-len", "32", "--lanes", "2", "--step", "1", "--columns", "url"]
    assert main([*run, "--tokenizer", "bytes", "--json"]) == 0
    pieces = json.loads(capsys.readouterr().out)["pieces"]
    said = [f"document {number} says {'so ' * number}" for number in range(20)]
    for piece in pieces:
        number = 7 * piece["row_group"] + piece["document"]
        assert piece["columns"] == {"url": f"https://x/{number}"}
        assert piece["text"] == said[number][piece["start"] : piece["start"] + piece["tokens"]]
    assert main([*run, "--tokenizer", "bytes"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[2].split()[-2:] == ["url", "text"]
    assert f"https://x/{7 * pieces[0]['row_group'] + pieces[0]['document']}" in shown[4]


def test_a_document_is_told_with_its_text_and_other_columns(texts: Path, capsys: Any) -> None:
    run = ["which", str(texts), "--seq-len", "32", "--lanes", "2", "--document", "part-000.parquet:1:2"]
    assert main([*run, "--tokenizer", "bytes", "--columns", "url", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["columns"] == {"url": "https://x/9"}
    assert found["text"] == f"document 9 says {'so ' * 9}"


def test_text_needs_a_tokenizer_that_files_or_arguments_name(texts: Path, capsys: Any) -> None:
    assert main(["which", str(texts), "--seq-len", "32", "--lanes", "2", "--step", "1", "--text"]) == 2
    assert "which tokenizer wrote them: name it with tokenizer (--tokenizer)" in capsys.readouterr().err


def test_ranks_that_the_loader_refuses_are_refused_unless_they_are_allowed(folder: Path, capsys: Any) -> None:
    of_rank = ["--run", str(folder / "run.toml"), "--step", "0", "--rank", "1", "--world-size", "3"]
    assert main(["which", *of_rank]) == 2
    assert "allow it with uneven=True (--uneven on the command line)" in capsys.readouterr().err
    found = asked(folder, capsys, *of_rank[2:], "--uneven")
    assert {piece["row"] for piece in found["pieces"]} == {1}
    (folder / "run.toml").write_text(f"uneven = true\n{RUN}")
    assert asked(folder, capsys, *of_rank[2:]) == found


def test_rows_go_by_one_name_in_which_and_show(folder: Path, capsys: Any) -> None:
    for command in ("which", "show"):
        said = []
        for flag in ("--row", "--rows"):
            run = [command, "--run", str(folder / "run.toml"), "--step", "1", flag, "1:3", "--json"]
            assert main(run + ["--tokenizer", "ids"] * (command == "show")) == 0
            said.append(capsys.readouterr().out)
        assert said[0] == said[1]


def test_a_column_that_a_file_lacks_is_blank_there(texts: Path, capsys: Any) -> None:
    pq.write_table(pa.table({"tokens": [[1] * 50] * 10}), texts / "without.parquet")
    run = [str(texts), "--column", "tokens", "--seq-len", "1000", "--lanes", "2", "--step", "0", "--columns", "url"]
    assert main(["which", *run, "--json"]) == 0
    for piece in json.loads(capsys.readouterr().out)["pieces"]:
        assert (piece["columns"]["url"] is None) == (piece["file"] == "without.parquet")
    assert main(["which", *run]) == 0
    assert "None" not in capsys.readouterr().out
