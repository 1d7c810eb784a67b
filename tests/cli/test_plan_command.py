"""``parquet-loader plan``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import CheckpointMismatchError, ParquetLoader, merge_checkpoints
from parquet_loader.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[30, 40, 7] * 5] * 6] * 2))


@pytest.fixture
def checkpoint(folder: Path, tmp_path: Path) -> Path:
    with ParquetLoader(folder, seq_len=8, lanes=4, window=3) as loader:
        for _ in zip(range(9), loader, strict=False):
            pass
        (tmp_path / "checkpoint").write_bytes(merge_checkpoints([loader.checkpoint()]))
    return tmp_path / "checkpoint"


def plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = main(["plan", *map(str, arguments)])
    return status, capsys.readouterr().out


def test_a_plan_is_shown_as_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = plan(capsys, folder, "--seq-len", 8, "--lanes", 4, "--tokens", "2e3")
    assert status == 0
    assert out.startswith("step 0 to 63, token 0 to 2,016: 63 steps of 32 tokens\n")
    assert "world sizes that divide 4 lanes: 1, 2, 4" in out
    assert "ranks  rows  memory MB  budget MB  read MB  requests  times  by a rank MB  at first MB  tokens  runs" in out


def test_a_plan_is_json_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = plan(capsys, folder, "--seq-len", 8, "--lanes", 4, "--steps", 50, "--world-sizes", "1,2", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["resume"] is None
    assert found["plan"]["steps"] == 50
    assert [each["world_size"] for each in found["plan"]["world_sizes"]] == [1, 2]


def test_a_mixture_is_planned_from_a_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(
        'seq_len = 8\nlanes = 4\nweights = {a = 3, b = 1}\n[source]\na = "set"\nb = {source = "set", max_epochs = 1}\n'
    )
    status, out = plan(capsys, "--run", tmp_path / "run.toml", "--tokens", "1e6")
    assert status == 0
    assert "it goes no further: 'b' would be repeated more than max_epochs allows" in out
    assert "a 75.00% (75.00%), b 25.00% (25.00%)" in out


def test_a_world_size_that_was_asked_for_and_is_refused_is_something_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = plan(capsys, folder, "--seq-len", 8, "--lanes", 4, "--world-sizes", "2,3")
    assert status == 1
    assert "3 ranks are refused: world_size 3 does not divide lanes 4" in out


def test_a_run_that_goes_on_says_where(folder: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = plan(capsys, folder, "--checkpoint", checkpoint, "--seq-len", 16, "--world-sizes", 2)
    assert status == 0
    assert out.startswith("goes on at step 9, token 288: 0 tokens repeated, 0 skipped\n  rows have 16 tokens and had 8")
    assert "step 9 to " in out


def test_what_the_checkpoint_tells_need_not_be_given(
    folder: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = plan(capsys, folder, "--checkpoint", checkpoint, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["resume"] == {
        "refused": None,
        "begin": {"step": 9, "token": 288},
        "repeated": 0,
        "skipped": 0,
        "changes": [],
        "not_kept": {"overlap": 0, "epochs": None},
    }
    assert (found["plan"]["lanes"], found["plan"]["sources"][0]["shuffle"]["window"]) == (4, 3)


def test_a_refused_resume_is_something_wrong(
    folder: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = plan(capsys, folder, "--checkpoint", checkpoint, "--lanes", 8)
    assert status == 1
    assert out.startswith(
        "refused: the checkpoint is of another run: lanes is 4 in the checkpoint and 8 in this loader"
    )
    status, out = plan(capsys, folder, "--checkpoint", checkpoint, "--lanes", 8, "--json")
    assert status == 1
    assert json.loads(out)["plan"] is None


def test_a_part_of_one_rank_is_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ParquetLoader(folder, seq_len=8, lanes=4, rank=1, world_size=2) as loader:
        (tmp_path / "part").write_bytes(loader.checkpoint())
    status, out = plan(capsys, folder, "--checkpoint", tmp_path / "part", "--world-sizes", 2)
    assert status == 0
    assert "this is the part of rank 1 of 2: only that rank of as many takes it" in out
    status, out = plan(capsys, folder, "--checkpoint", tmp_path / "part", "--json")
    assert status == 0
    assert [each["world_size"] for each in json.loads(out)["plan"]["world_sizes"]] == [2]


def test_a_part_of_one_rank_is_refused_for_other_ranks_in_the_words_of_the_loader(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ParquetLoader(folder, seq_len=8, lanes=4, rank=0, world_size=2) as loader:
        (tmp_path / "part").write_bytes(loader.checkpoint())
    other = ParquetLoader(folder, seq_len=8, lanes=4, rank=0, world_size=4)
    with other as loader, pytest.raises(CheckpointMismatchError) as caught:
        loader.resume((tmp_path / "part").read_bytes())
    status, out = plan(capsys, folder, "--checkpoint", tmp_path / "part", "--world-sizes", 4, "--json")
    assert (status, json.loads(out)["resume"]["refused"]) == (1, str(caught.value))
    status, out = plan(capsys, folder, "--checkpoint", tmp_path / "part", "--world-sizes", "2,4", "--json")
    found = json.loads(out)
    assert (status, found["resume"]["refused"]) == (1, None)
    assert [each["refused"] for each in found["plan"]["world_sizes"]] == [None, str(caught.value)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--epochs", 3), "overlap 0, epochs 3, tail pad"),
        (("--epochs", 3, "--tail", "drop"), "overlap 0, epochs 3, tail drop"),
        (("--overlap", 1), "overlap 1, epochs without end"),
    ],
)
def test_what_a_checkpoint_does_not_keep_is_told(
    folder: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], says: str
) -> None:
    _, out = plan(capsys, folder, "--checkpoint", checkpoint, *arguments)
    assert "nothing that a checkpoint keeps is otherwise from there on" in out
    assert f"does not keep these, which hold as they are given now, whatever they were: {says}\n" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing", "--seq-len", 8, "--lanes", 4), "there is no"),
        (("{folder}", "--seq-len", 8, "--lanes", 4, "--tokens", 5, "--steps", 5), "tokens=5 or steps=5, not both"),
        (("{folder}", "--checkpoint", "nothing"), "cannot read nothing"),
    ],
)
def test_what_cannot_be_done_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], says: str
) -> None:
    assert main(["plan", *(str(folder) if each == "{folder}" else str(each) for each in arguments)]) == 2
    assert says in capsys.readouterr().err
