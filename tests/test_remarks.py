"""What a loader remarks on before it runs, whether its advice helps, and that ``strict`` refuses to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ConfigError, ParquetLoader
from parquet_loader.engine.plan import plan_window
from parquet_loader.remarks import read_amplification


def write(path: Path, group_tokens: list[int]) -> Path:
    """A file of row groups of so many tokens, in documents of a hundred."""
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for tokens in group_tokens:
            offsets = np.arange(0, tokens + 1, 100, dtype=np.int32)
            documents = pa.ListArray.from_arrays(offsets, np.arange(tokens, dtype=np.int32) % 50_000)
            writer.write_table(pa.table({"tokens": documents}, schema=schema))
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row groups of a size that nothing is to be said of, and a window of few of them mixes little."""
    return write(tmp_path_factory.mktemp("small") / "a.parquet", [40_000] * 16)


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One huge row group among tiny ones."""
    return write(tmp_path_factory.mktemp("lopsided") / "a.parquet", [1_000_000, *[500] * 15])


def remarks_of(source: Path, **options: Any) -> tuple[str, ...]:
    with ParquetLoader(source, **{"seq_len": 100, "lanes": 8, **options}) as loader:
        found = loader.remarks()
    if found:
        with pytest.raises(ConfigError, match=r"strict=True") as caught:
            ParquetLoader(source, strict=True, **{"seq_len": 100, "lanes": 8, **options})
        assert all(remark in str(caught.value) for remark in found)
        assert "\n" not in str(caught.value)
    else:
        ParquetLoader(source, strict=True, **{"seq_len": 100, "lanes": 8, **options}).close()
    return found


def advised(remark: str, name: str) -> int:
    return int(re.search(rf"\b{name}=(\d+)", remark)[1])


def test_a_window_of_all_row_groups_or_more_is_fine(small: Path) -> None:
    assert remarks_of(small, window=16) == ()
    assert remarks_of(small, window=64) == ()


def test_a_window_of_few_tokens_is_remarked_on_and_the_one_advised_is_not(small: Path) -> None:
    (remark,) = remarks_of(small, window=8)
    assert remark.startswith("a window of 8 row groups holds 320,000 tokens, 40,000 a lane: it mixes few documents")
    assert remarks_of(small, window=advised(remark, "window")) == ()


def test_a_window_that_is_advised_comes_with_the_budget_it_needs(small: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ParquetLoader(small, seq_len=100, lanes=8, window=2, budget_bytes=1)
    least = int(re.search(r"at least ([\d,]+)", str(caught.value))[1].replace(",", ""))
    (remark,) = remarks_of(small, window=2, budget_bytes=least)
    better = {name: advised(remark, name) for name in ("window", "budget_bytes")}
    assert better["budget_bytes"] > least
    assert remarks_of(small, **better) == ()


def test_row_groups_of_ten_thousand_tokens_are_remarked_on_as_files_and_as_a_window(tmp_path: Path) -> None:
    found = remarks_of(write(tmp_path / "a.parquet", [10_000] * 70), window=64)
    assert [remark[:9] for remark in found] == ["half of t", "a window "]


def test_a_set_smaller_than_a_batch_is_remarked_on_and_both_cures_help(small: Path) -> None:
    (remark,) = remarks_of(small, seq_len=1000, lanes=1000)
    assert remark.startswith("an epoch holds 640,000 tokens, fewer than the 1,000,000 of a global batch of 1,000 rows")
    assert remarks_of(small, seq_len=advised(remark, "seq_len"), lanes=1000) == ()
    assert remarks_of(small, seq_len=1000, lanes=advised(remark, "lanes")) == ()


def test_a_set_of_just_a_batch_is_fine(small: Path) -> None:
    assert remarks_of(small, seq_len=1000, lanes=640) == ()


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_run_that_would_give_no_batch_is_remarked_on_and_the_cure_gives_one(small: Path, overlap: int) -> None:
    options = {"lanes": 8, "epochs": 1, "tail": "drop", "overlap": overlap}
    (remark,) = remarks_of(small, seq_len=80_001 - overlap, **options)
    assert "so with tail='drop' no batch comes at all" in remark
    with ParquetLoader(small, seq_len=80_001 - overlap, **options) as loader:
        assert list(loader) == []
    with ParquetLoader(small, seq_len=advised(remark, "seq_len"), **options) as loader:
        assert loader.remarks() == ()
        assert len(list(loader)) == 1


def test_an_evaluation_that_is_mostly_padding_is_remarked_on(small: Path) -> None:
    (remark,) = remarks_of(small, seq_len=1000, lanes=1000, epochs=1)
    assert remark.startswith("a run of epochs=1 holds 640,000 tokens")
    assert "its only batch is filled up with padding" in remark
    assert remarks_of(small, seq_len=1000, lanes=1000, epochs=2) == ()


def test_ranks_that_read_much_of_the_set_several_times_are_remarked_on(small: Path) -> None:
    (remark,) = [found for found in remarks_of(small, window=2, world_size=8) if "ranks together" in found]
    assert remark.startswith("8 ranks together read 4.5 times the bytes of the set")
    assert not [
        found
        for found in remarks_of(small, window=advised(remark, "window"), world_size=8)
        if "ranks together" in found
    ]


def test_a_huge_row_group_among_tiny_ones_that_all_ranks_read_is_remarked_on(lopsided: Path) -> None:
    (remark,) = [found for found in remarks_of(lopsided, world_size=8) if "ranks together" in found]
    assert "write smaller row groups of equal size (the largest holds 99% of the set's tokens)" in remark


# ── what ranks read together ─────────────────────────────────────────────────────────────────────────────────────


def read_by_all_ranks(source: Path, ranks: int, window: int) -> tuple[float, float, float]:
    """(times the bytes of the set that all ranks read in an epoch, the bound of that, what is estimated)."""
    loaders = [
        ParquetLoader(source, seq_len=100, lanes=8, window=window, rank=r, world_size=ranks) for r in range(ranks)
    ]
    order, lengths = loaders[0]._order, loaders[0].index.length
    windows = order.windows(0, 7)
    read, most = 0, 0
    for _ in range(-(-len(lengths) // window)):
        found = next(windows)
        read += sum(
            int(lengths[found.groups[p]]) for loader in loaders for p in plan_window(loader._config, found).costs
        )
        most += int(lengths[found.groups].sum() + (ranks - 1) * lengths[found.groups].max())
    for loader in loaders:
        loader.close()
    return read / lengths.sum(), most / lengths.sum(), read_amplification(order, lengths, ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("window", [2, 4, 16])
def test_of_equal_row_groups_ranks_read_one_window_and_a_row_group_for_each_further_rank(
    small: Path, ranks: int, window: int
) -> None:
    read, most, estimate = read_by_all_ranks(small, ranks, window)
    assert read <= most <= 1.01 * (1 + (ranks - 1) / window)
    assert estimate == pytest.approx(1 + (ranks - 1) / window)


def test_a_huge_row_group_is_read_by_every_rank(lopsided: Path) -> None:
    read, most, estimate = read_by_all_ranks(lopsided, 8, 16)
    assert 1 + 7 / 16 < 7.5 < read <= most <= 8
    assert estimate == pytest.approx(read, rel=0.05)


def test_a_resume_in_mid_window_reads_its_whole_share_wherever_in_the_window_it_is(small: Path) -> None:
    options: dict[str, Any] = {"seq_len": 100, "lanes": 8, "window": 16, "epochs": 1, "shuffle": False}
    with ParquetLoader(small, **options) as loader:
        state = [batch.state for batch in loader][-2]  # of one more batch
    with ParquetLoader(small, **options) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 1
        assert loader.stats()["row_groups"] == 16


@pytest.mark.parametrize(("length", "said"), [(64, False), (62, False), (32, True)])
def test_padding_that_is_much_of_packed_rows_is_remarked_on(tmp_path: Path, length: int, said: bool) -> None:
    rows = pa.array([[1] * length] * 4_000, pa.list_(pa.int32()))
    pq.write_table(pa.table({"tokens": rows}), tmp_path / "a.parquet", row_group_size=1_000)
    with ParquetLoader(tmp_path, seq_len=64, lanes=2, packing="rows", pad_id=0) as loader:
        told = [each for each in loader.remarks() if "is padding" in each]
    assert bool(told) == said
    if said:
        assert told[0].startswith("50% of its rows is padding")
        assert "--pack best-fit --seq-len 64" in told[0]
