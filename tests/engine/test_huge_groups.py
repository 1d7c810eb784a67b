"""Row groups of many parts: the same batches, within the least budget; and what helps where the budget is too small."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import ConfigError, ParquetLoader
from parquet_loader.engine import cost, fits, plan, slices
from parquet_loader.formats.parquet import decode


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and bands of a few documents: row groups of thousands of tokens are huge then."""
    shrink(monkeypatch)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "PART_SLOTS", 200)
    for module, name, value in (
        (cost, "TASK_BYTES", 1 << 10),
        (plan, "TASK_BYTES", 1 << 10),
        (plan, "_GAP_BYTES", 64),
        (cost, "_OBJECTS_BYTES", 8),
        (decode, "_OBJECTS_BYTES", 8),
        (slices, "BAND_TOKENS", 64),
        (slices, "MOST_BAND_TOKENS", 150),
    ):
        monkeypatch.setattr(module, name, value)


def rows_of(folder: Path, batches: int, **options: object) -> list[np.ndarray]:
    found = []
    with ParquetLoader(folder, **options) as loader:
        while len(found) < batches:
            found += [batch.tokens for batch in loader]
    return found[:batches]


def least_budget(folder: Path, **options: object) -> int:
    with pytest.raises(ConfigError, match="budget_bytes 1 is too small") as caught:
        ParquetLoader(folder, budget_bytes=1, **options)
    return number(r"at least ([\d,]+)", caught)


def number(pattern: str, caught: pytest.ExceptionInfo[ConfigError]) -> int:
    found = re.search(pattern, str(caught.value))
    assert found, str(caught.value)
    return int(found[1].replace(",", ""))


@settings(max_examples=30)
@given(data=st.data())
def test_batches_are_the_same_in_however_many_parts_and_bands(tmp_path_factory, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    length = data.draw(st.sampled_from([3, 40, 100]))
    files = unique_groups(random_files(rng, files=2, groups=2, documents=80, length=length))
    files[0].append([[0, 1, 2]])
    folder = write_set(tmp_path_factory.mktemp("set"), files, data_page_size=1, write_batch_size=5)
    lanes = data.draw(st.integers(1, 20))
    world_size = data.draw(st.integers(1, min(lanes, 4)))
    options = dict(
        seq_len=data.draw(st.integers(1, 50)),
        lanes=lanes,
        window=data.draw(st.integers(1, 6)),
        rank=data.draw(st.integers(0, world_size - 1)),
        world_size=world_size,
        uneven=True,
        shuffle=data.draw(st.booleans()),
        eos_id=data.draw(st.sampled_from([None, 0])),
        threads=data.draw(st.integers(1, 3)),
    )
    expected = rows_of(folder, 30, **options)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        options["budget_bytes"] = least = least_budget(folder, **options)
        with ParquetLoader(folder, **options) as loader:
            found = []
            while len(found) < 30:
                found += [batch.tokens for batch in loader]
            assert loader.stats()["fallbacks"] == 0
            assert loader.stats()["peak_bytes"] <= least
    for mine, theirs in zip(found, expected, strict=False):
        assert np.array_equal(mine, theirs)


# ── pages that are larger than thought ───────────────────────────────────────────────────────────────────────────


def write_group(folder: Path, *, documents: int = 100, **options: object) -> Path:
    """One row group of documents of 50 tokens."""
    folder.mkdir()
    ids = np.arange(documents * 50, dtype=np.int32)
    table = pa.table({"tokens": pa.ListArray.from_arrays(np.arange(0, documents * 50 + 1, 50, dtype=np.int32), ids)})
    pq.write_table(table, folder / "a.parquet", use_dictionary=False, compression="none", **options)
    return folder


OPTIONS = dict(seq_len=10, lanes=8, threads=1, window=1)
# Whose pages are all kept until the part is decoded.
DELTA = dict(column_encoding={"tokens.list.element": "DELTA_BINARY_PACKED"})


@pytest.mark.usefixtures("small_parts")
def test_pages_larger_than_thought_are_decoded_where_the_budget_has_room(tmp_path: Path) -> None:
    folder = write_group(tmp_path / "one page", **DELTA)
    with ParquetLoader(folder, budget_bytes=1 << 20, **OPTIONS) as loader:
        assert sum(batch.tokens.size for batch in loader) == 5_040
        assert least_budget(folder, **OPTIONS) < loader.stats()["peak_bytes"] < 1 << 20


@pytest.mark.usefixtures("small_parts")
def test_where_it_has_none_the_error_says_which_budget_would_do(tmp_path: Path) -> None:
    folder = write_group(tmp_path / "one page", **DELTA)
    budget = least_budget(folder, **OPTIONS)
    with (
        pytest.raises(ConfigError, match=r"row group 0 of a\.parquet has larger pages than most") as caught,
        ParquetLoader(folder, budget_bytes=budget, **OPTIONS) as loader,
    ):
        next(iter(loader))
    enough = number(r"give at least ([\d,]+)", caught)
    with ParquetLoader(folder, budget_bytes=enough, **OPTIONS) as loader:
        assert sum(batch.tokens.size for batch in loader) == 5_040
        assert loader.stats()["peak_bytes"] <= enough


@pytest.mark.usefixtures("small_parts")
def test_the_same_file_with_smaller_pages_needs_no_more(tmp_path: Path) -> None:
    folder = write_group(tmp_path / "many pages", data_page_size=1, write_batch_size=2, **DELTA)
    budget = least_budget(folder, **OPTIONS)
    assert consumed(folder, budget_bytes=budget, **OPTIONS) == 5_040
    with pytest.raises(ConfigError, match="has larger pages than most"):
        consumed(write_group(tmp_path / "one page", **DELTA), budget_bytes=budget, **OPTIONS)


# ── what is said to fit does ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def set_of_four(tmp_path: Path) -> Path:
    """Four row groups of 20,000 tokens."""
    return write_set(tmp_path / "set", unique_groups([[[50] * 400] * 4]), compression="none")


def consumed(folder: Path, **options: object) -> int:
    with ParquetLoader(folder, **options) as loader:
        return sum(batch.tokens.size for batch in loader)


@pytest.mark.usefixtures("small_parts")
def test_the_budget_that_is_said_to_do_does(set_of_four: Path) -> None:
    options = dict(seq_len=16, lanes=8, window=3)
    with pytest.raises(ConfigError, match="is too small") as caught:
        consumed(set_of_four, budget_bytes=1000, **options)
    enough = number(r"give at least ([\d,]+)", caught)
    assert consumed(set_of_four, budget_bytes=2 * enough, **options) >= 80_000
    with ParquetLoader(set_of_four, budget_bytes=enough, **options):
        pass
    with_window_1 = number(r"or ([\d,]+) in a new run with window=1", caught)
    with ParquetLoader(set_of_four, budget_bytes=with_window_1, **options | {"window": 1}):
        pass
    with pytest.raises(ConfigError, match="is too small"):
        consumed(set_of_four, budget_bytes=with_window_1 - 1, **options | {"window": 1})


def test_fewer_threads_are_said_where_they_help(set_of_four: Path) -> None:
    options = dict(seq_len=16, lanes=8, window=2)
    budget = least_budget(set_of_four, threads=3, **options)
    with pytest.raises(ConfigError, match="or threads=3, which fits"):
        consumed(set_of_four, budget_bytes=budget, threads=60, **options)
    assert consumed(set_of_four, budget_bytes=budget, threads=3, **options) >= 80_000
    with pytest.raises(ConfigError) as caught:
        consumed(set_of_four, budget_bytes=1000, threads=60, **options)
    assert "threads" not in str(caught.value)


@pytest.mark.usefixtures("small_parts")
def test_more_ranks_are_said_where_they_help(tmp_path: Path) -> None:
    folder = write_group(tmp_path / "set", documents=400, data_page_size=1, write_batch_size=2)
    options = dict(seq_len=16, lanes=12, window=1, threads=1)
    budget = least_budget(folder, rank=1, world_size=4, **options)
    with pytest.raises(ConfigError, match="or use 4 ranks") as caught:
        consumed(folder, budget_bytes=budget, **options)
    assert "window" not in str(caught.value).split("give at least")[1]
    for rank in range(4):
        with ParquetLoader(folder, budget_bytes=budget, rank=rank, world_size=4, **options):
            pass
    with pytest.raises(ConfigError, match="is too small"):
        consumed(folder, budget_bytes=budget, rank=0, world_size=3, **options)


def test_smaller_row_groups_are_said_where_they_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    monkeypatch.setattr(fits, "GOOD_TOKENS", 500)
    monkeypatch.setattr(fits, "_DICTIONARY_BYTES", 500)
    options = dict(seq_len=16, lanes=2, threads=1)
    small = write_group(tmp_path / "small", documents=400, row_group_size=10)
    budget = least_budget(small, window=4, **options)
    huge = write_group(tmp_path / "huge", documents=400)
    with pytest.raises(ConfigError, match=r"row groups of about .* tokens .*, of which window=\d+ fits") as caught:
        consumed(huge, budget_bytes=budget, window=4, **options)
    fitting = number(r"of which window=(\d+) fits", caught)
    assert consumed(small, budget_bytes=budget, window=fitting, **options) >= 20_000
