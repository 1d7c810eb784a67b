"""The tables of docs/mixtures.md: what they say of rows whose sources are known."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from unique_sets import write_set

from parquet_loader import ParquetLoader

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "mixtures"))
import mixture_tables


def test_the_greedy_rule_takes_the_source_that_lacks_most() -> None:
    assert mixture_tables.greedy([2, 1], 6).tolist() == [0, 1, 0, 0, 1, 0]


def test_the_lattice_of_the_tables_is_what_a_loader_draws(tmp_path: Path) -> None:
    sources = {name: str(write_set(tmp_path / name, [[[[1, 2, 3]]]])) for name in ("a", "b", "c")}
    weights = {"a": 1, "b": 0.5, "c": 0.25}
    with ParquetLoader(sources, weights=weights, seq_len=4, lanes=6, seed=5) as loader:
        found = [batch.sources.tolist() for batch, _ in zip(loader, range(130), strict=False)]
    assert mixture_tables.by_lattice([4, 2, 1], 6, 130, 5).tolist() == found


def test_what_is_measured_is_the_most_rows_that_anything_is_off() -> None:
    # Two steps of 8 lanes; source 0 should have half of all, and has all of the first step and nothing of the second.
    drawn = np.array([[0] * 8, [1] * 8])
    assert mixture_tables.measures(drawn, [0.5, 0.5]) == {
        "a batch": 4,
        "a batch on one of 8 ranks": 0.5,
        "a lane so far": 0.5,
        "the run so far": 4,
    }


def test_a_long_run_of_the_lattice_is_a_few_rows_a_lane_off_at_its_end() -> None:
    found = mixture_tables.at_the_end(mixture_tables.zipf(10), 512, 10**6, 0)
    assert found["lattice"] < 4 * 512 < found["random"]


def test_there_is_a_table_for_each_measure(capsys: pytest.CaptureFixture[str]) -> None:
    shown = mixture_tables.tables([3], [8, 64], 64, 0)
    assert shown.count("| lanes | sources | lattice | random |") == 6
    assert "| 64 | 3 | " in shown
