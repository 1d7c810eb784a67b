"""The same rows whatever the number of ranks, threads and bytes; and a run may change all of them as it goes."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import lane_texts, places_in_text
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import DatasetIndex, ParquetLoader, build_index, merge_checkpoints
from parquet_loader.engine.cost import required_bytes
from parquet_loader.engine.plan import plan_window

LANES = 8
ORDER = dict(lanes=LANES, window=4, seed=7)


@pytest.fixture(scope="module")
def groups():
    return unique_groups(random_files(np.random.default_rng(1), files=4, groups=5))


@pytest.fixture(scope="module")
def folder(groups, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("set"), groups)


@pytest.fixture(scope="module")
def index(folder: Path) -> DatasetIndex:
    return build_index(folder)


def ranks_of(folder: Path, world_size: int, **options) -> list[ParquetLoader]:
    return [
        ParquetLoader(folder, rank=rank, world_size=world_size, uneven=True, **{**ORDER, **options})
        for rank in range(world_size)
    ]


def close(loaders: list[ParquetLoader]) -> None:
    for loader in loaders:
        loader.close()


def global_batch(loaders: list[ParquetLoader]) -> np.ndarray:
    return np.concatenate([next(iter(loader)).tokens for loader in loaders])


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[np.ndarray]:
    with ParquetLoader(folder, seq_len=24, **ORDER) as loader:
        return [next(iter(loader)).tokens for _ in range(40)]  # past two ends of epochs


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("threads", [1, 3])
def test_all_ranks_together_give_the_same_rows(folder, index, expected, world_size: int, threads: int) -> None:
    loaders = ranks_of(folder, world_size, index=index, seq_len=24, threads=threads)
    for rows in expected:
        assert np.array_equal(global_batch(loaders), rows)
    close(loaders)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("factor", [1, 1.5, 100])
def test_any_budget_that_fits_gives_the_same_rows(folder, expected, world_size: int, factor: float) -> None:
    for rank in range(world_size):
        options = dict(seq_len=24, rank=rank, world_size=world_size, uneven=True, **ORDER)
        with ParquetLoader(folder, **options) as probe:
            least = required_bytes(probe._config, ORDER["window"])
        with ParquetLoader(folder, budget_bytes=int(least * factor), **options) as loader:
            first, last = rank * LANES // world_size, (rank + 1) * LANES // world_size
            for rows in expected:
                assert np.array_equal(next(iter(loader)).tokens, rows[first:last])
            assert loader.stats()["peak_bytes"] <= loader.stats()["budget_bytes"]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_weights_make_the_mean_over_ranks_the_mean_over_rows(folder, world_size: int) -> None:
    loaders = ranks_of(folder, world_size, seq_len=24)
    batches = [next(iter(loader)) for loader in loaders]
    losses = [batch.tokens.mean() for batch in batches]
    whole = np.concatenate([batch.tokens for batch in batches]).mean()
    assert np.mean([batch.weight * loss for batch, loss in zip(batches, losses, strict=True)]) == pytest.approx(whole)
    assert (world_size in {3, 5}) == any(batch.weight != 1 for batch in batches)
    close(loaders)


@settings(max_examples=25)
@given(data=st.data())
def test_a_run_that_changes_world_size_and_seq_len_is_the_one_of_the_reference(folder, index, groups, data) -> None:
    begins: list[set[int]] = [set() for _ in range(LANES)]
    windows: list[tuple[int, int, int, int]] = []
    all_groups = [group for file in groups for group in file]
    texts = lane_texts(all_groups, epochs=8, shuffle=True, begins=begins, windows=windows, **ORDER)
    rows, lengths, starts = [], [], []
    position, whole = 0, None
    for _ in range(data.draw(st.integers(2, 6))):
        world_size = data.draw(st.sampled_from([1, 2, 3, 4, 8]))
        seq_len = data.draw(st.integers(1, 60))
        overlap = data.draw(st.integers(0, 1))
        loaders = ranks_of(folder, world_size, index=index, seq_len=seq_len, overlap=overlap)
        lengths.append((position, seq_len))
        with contextlib.ExitStack() as stack:  # hypothesis gives up some examples half-way
            for loader in loaders:
                stack.enter_context(loader)
                if whole is not None:
                    loader.resume(whole)
            for _ in range(data.draw(st.integers(0, 6))):
                batches = [next(iter(loader)) for loader in loaders]
                rows.append((position, seq_len, overlap, np.concatenate([batch.tokens for batch in batches])))
                found = [batch.document_starts() for batch in batches]
                starts.append([c[s[i] : s[i + 1]].tolist() for s, c in found for i in range(len(s) - 1)])
                position += seq_len
            parts = [loader.checkpoint() for loader in loaders]
        whole = merge_checkpoints(parts[::-1])
    places = places_in_text(windows, lanes=LANES, seed=ORDER["seed"], shuffle=True, lengths=lengths)
    for (position, seq_len, overlap, tokens), columns in zip(rows, starts, strict=True):
        here = places[position : position + seq_len]
        here += [here[-1] + 1] * overlap
        assert tokens.tolist() == [[text[place] for place in here] for text in texts]
        # Where pieces of other steps are joined, another document's, or another part of one, begins.
        joined = {column for column in range(1, len(here)) if here[column] != here[column - 1] + 1}
        for lane in range(LANES):
            begun = {column for column, place in enumerate(here) if place in begins[lane]}
            assert columns[lane] == sorted(begun | joined)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_a_row_group_is_read_again_only_where_ranks_share_it(folder, world_size: int) -> None:
    # R - 1 borders between ranks in a window of W row groups: 1 + (R - 1) / W reads of each at the most.
    loaders = ranks_of(folder, world_size, seq_len=24)
    read = windows = 0
    for window in itertools.takewhile(lambda window: window.epoch < 5, loaders[0]._order.windows(0, LANES - 1)):
        windows += 1
        read += sum(len(plan_window(loader._config, window).costs) for loader in loaders)
    close(loaders)
    assert 5 * len(loaders[0].index) <= read <= 5 * len(loaders[0].index) + windows * (world_size - 1)


def test_a_dataset_may_move_between_two_halves_of_a_run(folder, expected, tmp_path: Path) -> None:
    with ParquetLoader(folder, seq_len=24, **ORDER) as loader:
        for _ in range(10):
            state = next(iter(loader)).state
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved, copy_function=shutil.copyfile)
    with ParquetLoader(moved, seq_len=24, **ORDER) as loader:
        loader.load_state_dict(state)
        assert np.array_equal(next(iter(loader)).tokens, expected[10])


def test_a_saved_index_gives_the_same_rows_without_listing_or_footers(folder, expected, tmp_path: Path) -> None:
    with ParquetLoader(folder, seq_len=24, **ORDER) as loader:
        loader.index.save(tmp_path / "set.index")
    with ParquetLoader(folder, seq_len=24, index=tmp_path / "set.index", **ORDER) as loader:
        assert np.array_equal(next(iter(loader)).tokens, expected[0])
