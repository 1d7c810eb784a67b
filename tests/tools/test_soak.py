"""A few kills of what `make soak` does at length: many ranks killed at any moment, and no row lost or changed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from s3_server import s3_server

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "soak"))
import growing_soak
import soak

TOKENS, GROWING_TOKENS = 60_000, 20_000
RUNS = int(os.environ.get("FOLLOW_RUNS", "4"))


def test_kills_at_any_moment_change_no_row(tmp_path: Path) -> None:
    result = soak.soak_local(tmp_path, kills=4, seed=1, tokens=TOKENS)
    assert result.kills >= 4
    assert result.runs >= 1
    assert result.records >= result.rows


def test_kills_at_any_moment_change_no_row_on_s3(tmp_path: Path) -> None:
    with s3_server(tmp_path / "server") as server:
        result = soak.soak_s3(tmp_path / "soak", server, kills=2, seed=2, tokens=TOKENS)
    assert result.kills >= 2
    assert result.runs >= 1


def test_kills_of_readers_and_writer_change_no_row_of_sets_that_grow(tmp_path: Path) -> None:
    result = growing_soak.follow(tmp_path, runs=RUNS // 2, seed=4, tokens=GROWING_TOKENS)
    assert result.runs == RUNS // 2
    assert result.records >= result.rows


def test_kills_of_readers_and_writer_change_no_row_of_sets_that_grow_on_s3(tmp_path: Path) -> None:
    with s3_server(tmp_path / "server") as server:
        result = growing_soak.follow(tmp_path / "soak", runs=RUNS // 4, seed=2, tokens=GROWING_TOKENS, server=server)
    assert result.runs == RUNS // 4


def test_a_row_that_is_another_or_missing_is_told(tmp_path: Path) -> None:
    expected = {(0, 0): b"00000000", (0, 1): b"11111111"}
    (tmp_path / "round-0001-0.log").write_bytes(soak._RECORD.pack(0, 0, b"00000000") + b"torn")
    assert soak.read_records(tmp_path, expected) == ({(0, 0): b"00000000"}, 1)
    (tmp_path / "round-0002-0.log").write_bytes(soak._RECORD.pack(0, 1, b"22222222"))
    with pytest.raises(soak.SoakError, match="lane 1 is another row"):
        soak.read_records(tmp_path, expected)
