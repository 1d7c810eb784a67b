"""``parquet-loader checkpoint``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader
from parquet_loader.cli import main


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    sets = {name: str(write_set(tmp_path / name, unique_groups([[[20] * 9] * 4]))) for name in ("a", "b")}
    with ParquetLoader(sets, weights={"a": 0.75, "b": 0.25}, seq_len=8, lanes=4, rank=1, world_size=2) as loader:
        loader.skip(70)
        (tmp_path / "ckpt").write_bytes(loader.checkpoint())
        assert loader.stats()["sources"]["a"]["tokens"] == 1680
    return tmp_path / "ckpt"


def test_a_checkpoint_is_told_in_words(checkpoint: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["checkpoint", str(checkpoint)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{checkpoint}: the checkpoint of rank 1 of 2, after step 70")
    assert "70, of which 70 were skipped" in shown
    assert "a 0.75, b 0.25" in shown
    assert "1,680 tokens, 2.333 epochs" in shown


def test_a_checkpoint_is_json_for_programs(checkpoint: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["checkpoint", "--json", str(checkpoint)]) == 0
    (only,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (only["checkpoint"]["step"], only["checkpoint"]["world_size"]) == (70, 2)


def test_what_is_no_checkpoint_is_status_two_and_the_others_are_told(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "bad").write_bytes(checkpoint.read_bytes()[:-1])
    assert main(["checkpoint", str(tmp_path / "bad"), str(tmp_path / "absent"), str(checkpoint)]) == 2
    shown = capsys.readouterr()
    assert "after step 70" in shown.out
    assert f"error: {tmp_path}/bad: this is no whole checkpoint" in shown.err
    assert f"error: cannot read {tmp_path}/absent" in shown.err
