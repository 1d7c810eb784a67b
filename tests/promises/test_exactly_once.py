"""Every token of every epoch is delivered once, in the order that the documentation gives."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import lane_streams, lane_texts, places_in_text
from unique_sets import RowGroup, token_count, unique_groups, write_set

from parquet_loader import ParquetLoader
from parquet_loader.engine import slices as slices_module

EPOCHS = 3

# Row groups that are empty, of empty documents only, tiny, uneven, or one huge one.
GROUP = st.one_of(
    st.lists(st.integers(0, 12), max_size=25),
    st.lists(st.just(0), max_size=3),
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.integers(1, 400), min_size=1, max_size=3),
)
FILES = st.lists(st.lists(GROUP, min_size=1, max_size=6), min_size=1, max_size=4).filter(
    lambda files: any(length for groups in files for group in groups for length in group)
)
CONFIG = {
    "files": FILES,
    "lanes": st.integers(1, 12),
    "window": st.integers(1, 9),
    "seq_len": st.integers(1, 70),
    "overlap": st.integers(0, 1),
    "seed": st.integers(0, 2**64 - 1),
    "shuffle": st.sampled_from([True, True, False]),
    "eos": st.booleans(),
    "threads": st.integers(1, 3),
}


def streams_of(loader: ParquetLoader, seq_len: int, epochs: int) -> np.ndarray:
    """What each lane delivers up to the end of an epoch of the run, shape (lanes, tokens)."""
    columns = [np.empty((loader._order.lanes, 0), np.int64)]
    while loader.epoch < epochs:
        columns += [batch.tokens[:, :seq_len] for batch in loader]
    return np.concatenate(columns, axis=1)


def long_enough(seq_len: int, groups: list[list[RowGroup]], lanes: int) -> int:
    """A sequence length of at most some 60 batches an epoch: hundreds of short ones of a large set show no more."""
    return max(seq_len, token_count(groups) // (60 * lanes))


def all_groups(files: list[list[RowGroup]]) -> list[RowGroup]:
    return [group for groups in files for group in groups]


@settings(max_examples=120)
@given(**CONFIG)
def test_the_lanes_are_the_ones_of_the_reference(
    files, lanes, window, seq_len, overlap, seed, shuffle, eos, threads
) -> None:
    groups = unique_groups(files)
    seq_len = long_enough(seq_len, groups, lanes)
    eos_id = 2**31 - 1 if eos else None
    with TemporaryDirectory() as folder:
        write_set(Path(folder), groups)
        with ParquetLoader(
            folder,
            seq_len=seq_len,
            lanes=lanes,
            window=window,
            seed=seed,
            shuffle=shuffle,
            overlap=overlap,
            eos_id=eos_id,
            threads=threads,
        ) as loader:
            delivered = streams_of(loader, seq_len, EPOCHS)
    expected = lane_streams(
        all_groups(groups),
        seq_len=seq_len,
        lanes=lanes,
        window=window,
        seed=seed,
        shuffle=shuffle,
        epochs=EPOCHS + 1 + delivered.shape[1] * lanes // token_count(groups),
        eos_id=eos_id,
    )
    for lane in range(lanes):
        assert delivered[lane].tolist() == expected[lane][: delivered.shape[1]]


@settings(max_examples=70)
@given(**{name: strategy for name, strategy in CONFIG.items() if name != "eos"})
def test_after_whole_epochs_every_token_came_as_often_as_there_were_epochs(
    files, lanes, window, seq_len, overlap, seed, shuffle, threads
) -> None:
    groups = unique_groups(files)
    seq_len = long_enough(seq_len, groups, lanes)
    total = token_count(groups)
    with TemporaryDirectory() as folder:
        write_set(Path(folder), groups)
        options = dict(seq_len=seq_len, lanes=lanes, window=window, seed=seed, shuffle=shuffle, threads=threads)
        with ParquetLoader(folder, overlap=overlap, **options) as loader:
            delivered = streams_of(loader, seq_len, EPOCHS)
            # The rows not yet due: lane i has received (3 T + i) // B tokens of three epochs.
            while delivered.shape[1] < EPOCHS * total // lanes + 1:
                delivered = np.concatenate([delivered, next(iter(loader)).tokens[:, :seq_len]], axis=1)
    due = np.concatenate([delivered[lane, : (EPOCHS * total + lane) // lanes] for lane in range(lanes)])
    assert np.bincount(due, minlength=total).tolist() == [EPOCHS] * total


@given(**{name: strategy for name, strategy in CONFIG.items() if name not in {"eos", "overlap", "seq_len", "shuffle"}})
def test_documents_stay_whole_in_the_text_but_for_cuts_and_slices_are_stretches(
    files, lanes, window, seed, threads
) -> None:
    groups = unique_groups(files)
    total = token_count(groups)
    document_of = np.empty(total, np.int64)
    group_of = np.empty(total, np.int64)
    documents = 0
    for number, group in enumerate(all_groups(groups)):
        for document in group:
            document_of[document] = documents
            group_of[document] = number
            documents += 1
    with TemporaryDirectory() as folder:
        write_set(Path(folder), groups)
        with ParquetLoader(folder, seq_len=16, lanes=lanes, window=window, seed=seed, threads=threads) as loader:
            due = -(-total // lanes)  # of the lane that receives the most of the epoch
            delivered = np.concatenate([next(iter(loader)).tokens for _ in range(0, due, 16)], axis=1)
            order = loader._order
    streams = delivered.copy()  # the texts: steps back in their places
    for found in itertools.takewhile(lambda found: found.epoch == 0, order.windows(0, lanes - 1)):
        blocks = order.step_blocks(found, 16)
        for block, text in enumerate(blocks.texts.tolist(), blocks.first):
            streams[:, text * 16 : (text + 1) * 16] = delivered[:, block * 16 : (block + 1) * 16]
    before = 0
    for number, first in enumerate(range(0, len(order.group_tokens), window)):
        places = order.group_order(0)[first : first + window]
        # The index holds no row group without rows, so its numbers are those of the groups that have documents.
        present = [index for index, group in enumerate(all_groups(groups)) if group]
        stretch = [token for place in places for document in all_groups(groups)[present[place]] for token in document]
        after = before + len(stretch)
        at = 0
        for lane in range(lanes):
            begin, end = (before + lane) // lanes, (after + lane) // lanes
            mine = streams[lane, begin:end].tolist()
            # One contiguous stretch of the window ...
            assert sorted(mine) == sorted(stretch[at : at + len(mine)]), (number, lane)
            at += len(mine)
            # ... in which each document's tokens follow each other.
            for earlier, later in itertools.pairwise(mine):
                if document_of[earlier] == document_of[later]:
                    assert later == earlier + 1
            runs = 1 + sum(document_of[a] != document_of[b] for a, b in itertools.pairwise(mine))
            assert not mine or runs == len(set(document_of[mine].tolist()))
        before = after


def test_one_huge_row_group_and_many_tiny_ones_make_one_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    files = [[rng.integers(1, 2000, 200).tolist()], [rng.integers(0, 20, 10).tolist() for _ in range(300)]]
    groups = unique_groups(files)
    write_set(tmp_path, groups)
    with ParquetLoader(tmp_path, seq_len=128, lanes=6, window=16, seed=1) as loader:
        delivered = streams_of(loader, 128, 2)
    expected = lane_streams(all_groups(groups), seq_len=128, lanes=6, window=16, seed=1, shuffle=True, epochs=3)
    for lane in range(6):
        assert delivered[lane].tolist() == expected[lane][: delivered.shape[1]]


@pytest.mark.parametrize("band_tokens", [1, 7, 50, 10**9])
def test_how_lanes_are_cut_together_changes_nothing(tmp_path: Path, monkeypatch, band_tokens: int) -> None:
    rng = np.random.default_rng(4)
    groups = unique_groups([[rng.integers(0, 30, 12).tolist() for _ in range(5)] for _ in range(3)])
    write_set(tmp_path, groups)
    monkeypatch.setattr(slices_module, "BAND_TOKENS", band_tokens)
    with ParquetLoader(tmp_path, seq_len=16, lanes=7, window=4, seed=2) as loader:
        delivered = streams_of(loader, 16, 2)
    expected = lane_streams(all_groups(groups), seq_len=16, lanes=7, window=4, seed=2, shuffle=True, epochs=3)
    for lane in range(7):
        assert delivered[lane].tolist() == expected[lane][: delivered.shape[1]]


@settings(max_examples=60)
@given(seq_len=st.integers(1, 12), lanes=st.integers(1, 4), window=st.integers(1, 3), shuffle=st.booleans())
def test_overlapping_rows_end_with_the_token_that_follows_in_the_text(seq_len, lanes, window, shuffle) -> None:
    rng = np.random.default_rng(5)
    groups = unique_groups([[rng.integers(0, 30, 8).tolist() for _ in range(3)] for _ in range(2)])
    order = dict(lanes=lanes, window=window, seed=9, shuffle=shuffle)
    windows: list[tuple[int, int, int, int]] = []
    texts = lane_texts(all_groups(groups), epochs=4, windows=windows, **order)
    places = places_in_text(windows, lanes=lanes, seed=9, shuffle=shuffle, lengths=[(0, seq_len)])
    with TemporaryDirectory() as folder:
        write_set(Path(folder), groups)
        with ParquetLoader(folder, seq_len=seq_len, overlap=1, threads=1, **order) as loader:
            rows = [next(iter(loader)).tokens for _ in range(2 * token_count(groups) // (lanes * seq_len))]
    for number, row in enumerate(rows):
        here = places[number * seq_len : (number + 1) * seq_len]
        assert row.tolist() == [[text[place] for place in [*here, here[-1] + 1]] for text in texts]


def test_a_batch_is_a_whole_array_of_the_callers_own(tmp_path: Path) -> None:
    write_set(tmp_path, unique_groups([[[50] * 20]]))
    with ParquetLoader(tmp_path, seq_len=16, lanes=4, shuffle=False) as loader:
        first = next(iter(loader))
        copy = first.tokens.copy()
        assert first.tokens.flags.c_contiguous
        assert first.tokens.flags.owndata
        first.tokens[:] = -1
        loader.load_state_dict({**first.state, "position": 0})
        assert next(iter(loader)).tokens.tolist() == copy.tolist()


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint16", "uint32", "uint64"])
def test_tokens_come_in_the_dtype_that_was_asked_for(tmp_path: Path, dtype: str) -> None:
    write_set(tmp_path, unique_groups([[[50] * 20]]))
    with ParquetLoader(tmp_path, seq_len=16, lanes=4, shuffle=False, dtype=dtype) as loader:
        batch = next(iter(loader))
    assert batch.tokens.dtype == np.dtype(dtype)
    assert batch.tokens[0].tolist() == list(range(16))


@given(**CONFIG)
def test_document_starts_are_where_documents_and_fragments_begin(
    files, lanes, window, seq_len, overlap, seed, shuffle, eos, threads
) -> None:
    groups = unique_groups(files)
    seq_len = long_enough(seq_len, groups, lanes)
    order = dict(lanes=lanes, window=window, seed=seed, shuffle=shuffle, eos_id=2**31 - 1 if eos else None)
    length = 2 * token_count(groups) // lanes + 2 * seq_len + 2
    begins: list[set[int]] = [set() for _ in range(lanes)]
    windows: list[tuple[int, int, int, int]] = []
    epochs = 3 + length * lanes // token_count(groups)
    lane_texts(all_groups(groups), epochs=epochs, begins=begins, windows=windows, **order)
    places = places_in_text(windows, lanes=lanes, seed=seed, shuffle=shuffle, lengths=[(0, seq_len)])
    with TemporaryDirectory() as folder:
        write_set(Path(folder), groups)
        with ParquetLoader(folder, seq_len=seq_len, overlap=overlap, threads=threads, **order) as loader:
            for position in range(0, length - seq_len - 1, seq_len):
                splits, columns = next(iter(loader)).document_starts()
                for lane in range(lanes):
                    found = columns[splits[lane] : splits[lane + 1]].tolist()
                    here = places[position : position + seq_len]
                    here += [here[-1] + 1] * overlap
                    assert found == [column for column, place in enumerate(here) if place in begins[lane]]
