"""Sets that are packed by rows: each stored row comes whole, exactly once an epoch, in the order of the reference.

ROWS_RUNS=200 in the environment makes more random runs that are killed and resumed than usual.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from arrow_files import write_arrow
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_rows import PAD, RandomRun, all_groups, row_files, rows_of
from raw_sets import write_megatron, write_shards
from reference import row_lanes
from unique_sets import unique_groups, write_set

from parquet_loader import (
    CheckpointMismatchError,
    Component,
    ConfigError,
    DataError,
    ParquetLoader,
    build_index,
)
from parquet_loader.engine import cost, plan, slices
from parquet_loader.engine.cost import required_bytes
from parquet_loader.engine.mixer import mixture_bytes
from parquet_loader.formats.parquet import decode

RUNS = int(os.environ.get("ROWS_RUNS", "12"))
ORDER = dict(lanes=6, window=3, seed=7)


def whole_run(folder: Path, ranks: int, **options) -> list[list[list[int]]]:
    """The global batches of a run that ends, without their padding, from as many ranks."""
    steps: list[list[list[int]]] = []
    for rank in range(ranks):
        with ParquetLoader(folder, rank=rank, world_size=ranks, uneven=True, **options) as loader:
            mine = []
            while loader.epoch < options["epochs"]:
                mine += [rows_of(batch) for batch in loader]
        steps = [before + rows for before, rows in zip(steps, mine, strict=True)] if rank else mine
    return steps


CONFIG = {
    "seed": st.integers(0, 2**31),
    "lanes": st.integers(1, 9),
    "window": st.integers(1, 6),
    "width": st.integers(1, 20),
    "shorter": st.booleans(),
    "overlap": st.integers(0, 1),
    "shuffle": st.sampled_from([True, True, False]),
    "threads": st.integers(1, 3),
}


@settings(max_examples=40)
@given(**CONFIG)
def test_each_row_comes_whole_and_once_an_epoch_in_the_order_of_the_reference(
    seed, lanes, window, width, shorter, overlap, shuffle, threads
) -> None:
    rng = np.random.default_rng(seed)
    groups = unique_groups(row_files(rng, width + overlap, shorter=shorter))
    order = dict(lanes=lanes, window=window, seed=seed, shuffle=shuffle)
    expected = row_lanes(all_groups(groups), epochs=2, **order)
    ranks = int(rng.integers(1, lanes + 1))
    with TemporaryDirectory() as folder:
        write_set(Path(folder), groups)
        options = dict(seq_len=width, overlap=overlap, packing="rows", epochs=2, threads=threads, **order)
        steps = whole_run(Path(folder), ranks, pad_id=PAD if shorter else None, **options)
    assert len(steps) == max(map(len, expected))
    for lane, rows in enumerate(expected):
        assert [step[lane] for step in steps] == [*rows, *([[]] * (len(steps) - len(rows)))]
    came = Counter(tuple(row) for step in steps for row in step if row)
    assert came == {tuple(row): 2 for group in all_groups(groups) for row in group if row}


@pytest.mark.parametrize(("world_size", "processes"), [(1, 0), (2, 0), (3, 0), (6, 0), (2, 1)])
def test_tail_drop_leaves_out_the_rows_that_fill_no_batch(tmp_path: Path, world_size: int, processes: int) -> None:
    groups = unique_groups(row_files(np.random.default_rng(3), 8, shorter=True))
    write_set(tmp_path, groups)
    stored = all_groups(groups)
    rows = sum(map(len, stored))
    options = dict(seq_len=8, packing="rows", pad_id=PAD, epochs=1, tail="drop", processes=processes)
    steps = whole_run(tmp_path, world_size, **options, **ORDER)
    assert len(steps) == rows // 6
    expected = row_lanes(stored, epochs=1, shuffle=True, **ORDER)
    assert [[step[lane] for step in steps] for lane in range(6)] == [lane[: rows // 6] for lane in expected]


def test_an_epoch_has_as_many_batches_as_len_says_and_its_number_goes_on_with_lane_0(tmp_path: Path) -> None:
    groups = unique_groups(row_files(np.random.default_rng(4), 8, shorter=False))
    write_set(tmp_path, groups)
    rows = sum(map(len, all_groups(groups)))
    with ParquetLoader(tmp_path, seq_len=8, packing="rows", **ORDER) as loader:
        for epoch in range(3):
            assert loader.epoch == epoch
            count = len(loader)
            assert count == (epoch + 1) * rows // 6 - epoch * rows // 6
            assert [batch.epoch for batch in loader] == [epoch] * count


def test_documents_of_packed_rows_are_the_rows_and_their_padding(tmp_path: Path) -> None:
    write_set(tmp_path, [[[[1, 2, 3, 4], [5, 6], [], [7, 8, 9, 10]]]])
    options = dict(seq_len=4, lanes=4, packing="rows", pad_id=0, shuffle=False)
    with ParquetLoader(tmp_path, **options) as loader:
        batch = next(iter(loader))
        assert batch.tokens.tolist() == [[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0], [7, 8, 9, 10]]
        assert batch.lengths.tolist() == [4, 2, 0, 4]
        splits, columns = batch.document_starts()
        assert (splits.tolist(), columns.tolist()) == ([0, 1, 2, 2, 3], [0, 0, 0])
        assert batch.documents().position_ids().tolist() == [[0, 1, 2, 3], [0, 1, 0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]
        assert batch.documents().cu_seqlens.tolist() == [0, 4, 6, 8, 12, 16]
        assert loader.stats()["tokens"] == 10


@pytest.mark.parametrize("shorter", [False, True])
@pytest.mark.parametrize("writer", [{}, {"use_dictionary": False}, {"compression": "zstd", "data_page_size": 64}])
def test_rows_that_lie_in_several_decoded_parts_come_whole(tmp_path: Path, monkeypatch, shorter: bool, writer) -> None:
    monkeypatch.setattr(decode, "PART_SLOTS", 200)
    groups = unique_groups(row_files(np.random.default_rng(5), 30, shorter=shorter, rows=120))
    write_set(tmp_path, groups, write_batch_size=7, **{"data_page_size": 100, **writer})
    expected = row_lanes(all_groups(groups), epochs=1, shuffle=True, **ORDER)
    for ranks in (1, 3):
        options = dict(seq_len=30, packing="rows", pad_id=PAD if shorter else None, epochs=1)
        steps = whole_run(tmp_path, ranks, **options, **ORDER)
        for lane, rows in enumerate(expected):
            assert [step[lane] for step in steps][: len(rows)] == rows


# ── the order ────────────────────────────────────────────────────────────────────────────────────────────────────

# May change only together with the version of the checkpoint format; see test_golden.py.
GOLDEN = {
    "full": "2137e98f2e1036287532e9aec6ac8f809ad6eb1c740921c7326b0e55d0549498",
    "padded": "101245e486f6fe0c8ddc6d4435fdafa3be4fad43f178bc9a649b0d3031daae8c",
    "storage order": "30275da1d8a6680e38002f2538852c78e5df0cf3afc437b2ca4ab8e8f6bf5252",
    "with overlap": "66bf06d1007eb383a00126aed2933b9893419e2db14ebe1f48bec2ae61a90b16",
}
CASES = {
    "full": dict(seq_len=16, lanes=8, window=2, seed=0),
    "padded": dict(seq_len=20, lanes=5, window=3, seed=2**64 - 1, pad_id=7),
    "storage order": dict(seq_len=16, lanes=3, window=4, shuffle=False),
    "with overlap": dict(seq_len=15, overlap=1, lanes=7, window=1, seed=12345),
}


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_packed_rows_is_the_one_it_was(tmp_path: Path, case: str) -> None:
    lengths = [[[16] * (1 + (7 * group + 5 * file) % 13) for group in range(5)] for file in range(4)]
    if case == "padded":
        lengths = [
            [[(3 * row + group) % 21 for row in range(len(rows))] for group, rows in enumerate(f)] for f in lengths
        ]
    write_set(tmp_path, unique_groups(lengths))
    digest = hashlib.sha256()
    with ParquetLoader(tmp_path, packing="rows", **CASES[case]) as loader:
        while loader.epoch < 4:
            for batch in loader:
                digest.update(batch.epoch.to_bytes(4, "little") + batch.tokens.astype("<i4").tobytes())
    assert digest.hexdigest() == GOLDEN[case]


# ── mixtures and resumes ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_run_that_is_killed_and_resumed_on_other_ranks_is_the_one_that_was_not(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng([seed, 20])
    run = RandomRun(rng, tmp_path)
    stretches = [int(rng.integers(0, 40)) for _ in range(4)]
    whole, _ = run.global_batches(1, sum(stretches), None)
    state, killed = None, []
    for steps in stretches:
        ranks = int(rng.integers(1, run.lanes + 1))
        batches, state = run.global_batches(ranks, steps, state)
        killed += batches
    for (expected,), found in zip(whole, killed, strict=True):
        assert np.concatenate([batch.tokens for batch in found]).tolist() == expected.tokens.tolist()
        assert [row for batch in found for row in rows_of(batch)] == rows_of(expected)
        assert all(batch.state == expected.state and batch.epoch == expected.epoch for batch in found)
        if expected.sources is not None:
            assert np.concatenate([batch.sources for batch in found]).tolist() == expected.sources.tolist()
    # Each lane gets the rows of each packed source as the source alone would give them.
    names = sorted(run.sources)
    for name in run.packed:
        order = {key: run.options[key] for key in ("lanes", "window", "seed")}
        count = sum(map(len, run.stored[name]))
        lanes = row_lanes(run.stored[name], epochs=2 + len(whole) * run.lanes // count, shuffle=True, **order)
        for lane, rows in enumerate(lanes):
            mine = [
                rows_of(batch)[lane]
                for (batch,) in whole
                if batch.sources is None or names[batch.sources[lane]] == name
            ]
            assert mine == rows[: len(mine)]


def test_a_mixture_of_both_packings_holds_its_weights_and_ends_where_a_source_has_given_its_rows(tmp_path) -> None:
    groups = unique_groups(row_files(np.random.default_rng(6), 9, shorter=True))
    write_set(tmp_path / "chat", groups)
    write_set(tmp_path / "web", unique_groups([[[100] * 30]]))
    rows = sum(map(len, all_groups(groups)))
    sources = {
        "chat": Component(tmp_path / "chat", packing="rows", pad_id=PAD, max_epochs=40),
        "web": tmp_path / "web",
    }
    weights = {"chat": 1, "web": 1}
    with ParquetLoader(sources, seq_len=8, overlap=1, lanes=4, weights=weights, exhausted="redistribute") as loader:
        steps, came = 0, Counter()
        while not loader.history["stages"] or loader.history["stages"][-1]["by"] != "exhausted":
            batch = next(iter(loader))
            came.update(tuple(row) for row, source in zip(rows_of(batch), batch.sources, strict=True) if not source)
            steps += 1
        stats = loader.stats()["sources"]
    # Whole blocks, of which half the rows are of each source, and no more of them than there are rows.
    assert sum(came.values()) == steps // 64 * 32 * 4 == stats["chat"]["tokens"] // 8
    assert 40 * rows // 4 - 32 < steps // 64 * 32 <= 40 * rows // 4
    assert stats["chat"]["epochs"] == pytest.approx(sum(came.values()) / rows)


def test_a_run_of_packed_rows_goes_on_as_a_source_of_a_mixture(tmp_path: Path) -> None:
    groups = unique_groups(row_files(np.random.default_rng(7), 8, shorter=False))
    write_set(tmp_path / "chat", groups)
    write_set(tmp_path / "web", unique_groups([[[100] * 30]]))
    expected = row_lanes(all_groups(groups), epochs=40, shuffle=True, **ORDER)
    with ParquetLoader(tmp_path / "chat", seq_len=8, packing="rows", **ORDER) as alone:
        for _ in range(64):
            state = next(iter(alone)).state
    sources = {"chat": Component(tmp_path / "chat", packing="rows"), "web": tmp_path / "web"}
    weights = [(0, {"chat": 1}), (64 * 8 * 6, {"chat": 1, "web": 3})]
    with ParquetLoader(sources, seq_len=8, weights=weights, **ORDER) as loader:
        loader.load_state_dict(state)
        batches = [next(iter(loader)) for _ in range(64)]
    for lane in range(6):
        mine = [batch.tokens[lane].tolist() for batch in batches if batch.sources[lane] == 0]
        assert mine == expected[lane][64 : 64 + len(mine)]
        assert len(mine) == 16


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("seed", "processes"), [(0, 0), (1, 0), (2, 0), (3, 0), (0, 2)])
def test_the_least_budget_is_enough_and_is_kept_to(tmp_path: Path, monkeypatch, seed: int, processes: int) -> None:
    if not processes:  # other processes have their own constants
        for module, name, value in (
            (cost, "TASK_BYTES", 1 << 10),
            (plan, "TASK_BYTES", 1 << 10),
            (slices, "BAND_TOKENS", 64),
            (slices, "MOST_BAND_TOKENS", 150),
            (decode, "PART_SLOTS", 200),
        ):
            monkeypatch.setattr(module, name, value)
    rng = np.random.default_rng(seed)
    # Hardly any tokens to a row, which takes all its width in memory.
    lengths = [[rng.integers(0, 3, 400).tolist() for _ in range(3)] + [[64] * 5] for _ in range(3)]
    groups = unique_groups(lengths)
    write_set(tmp_path, groups, write_batch_size=11, data_page_size=100)
    options = dict(seq_len=64, packing="rows", pad_id=PAD, processes=processes, **ORDER)
    with ParquetLoader(tmp_path, **options) as probe:
        least = required_bytes(probe._config, 3)
    assert least > 3 * 400 * 64 * 2  # a window's slices, padded
    expected = row_lanes(all_groups(groups), epochs=2, shuffle=True, **ORDER)
    with ParquetLoader(tmp_path, budget_bytes=least, **options) as loader:
        for step, batch in zip(range(600), loader, strict=False):
            assert rows_of(batch) == [lane[step] for lane in expected]
        assert loader.stats()["peak_bytes"] <= least
    with pytest.raises(ConfigError, match="is too small"):
        ParquetLoader(tmp_path, **{**options, "budget_bytes": least - 1})


def test_a_mixture_of_both_packings_fits_its_least_budget(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    write_set(
        tmp_path / "rows", unique_groups([[rng.integers(0, 3, 900).tolist() for _ in range(3)] for _ in range(2)])
    )
    write_set(
        tmp_path / "tokens", unique_groups([[rng.integers(0, 200, 90).tolist() for _ in range(3)] for _ in range(2)])
    )
    sources = {"rows": Component(tmp_path / "rows", packing="rows", pad_id=PAD), "tokens": tmp_path / "tokens"}
    options = dict(seq_len=64, overlap=1, weights={"rows": 3, "tokens": 1}, **ORDER)
    with ParquetLoader(sources, **options) as probe:
        run = probe._run
        least = mixture_bytes(run.configs, run.progress, run.plan)
        expected = [next(iter(probe)) for _ in range(300)]
    assert least > 2 * 3 * 900 * 65 * 4  # two windows of rows, padded
    with ParquetLoader(sources, budget_bytes=least, **options) as loader:
        for batch in expected:
            assert rows_of(next(iter(loader))) == rows_of(batch)
        assert loader.stats()["peak_bytes"] <= least


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_row_groups_whose_footers_tell_of_shorter_rows_need_a_pad_id(tmp_path: Path) -> None:
    write_set(tmp_path, [[[[1, 2], [3, 4]], [[5, 6], [7]]]])
    with pytest.raises(DataError, match=r"part-000.parquet, row group 1, .*holds 3 ids in 2 rows.*give a pad_id"):
        ParquetLoader(tmp_path, seq_len=2, lanes=1, packing="rows")
    with ParquetLoader(tmp_path, seq_len=2, lanes=1, packing="rows", pad_id=0) as loader:
        assert len(loader) == 4


def test_row_groups_whose_footers_tell_of_longer_rows_need_another_seq_len(tmp_path: Path) -> None:
    write_set(tmp_path, [[[[1, 2, 3], [3, 4, 5]]]])
    message = (
        r"row group 0, .*holds 6 ids in 2 rows, and packing='rows' takes rows of 2 \(seq_len 2\): give the seq_len"
    )
    for pad_id in (None, 0):
        with pytest.raises(DataError, match=message):
            ParquetLoader(tmp_path, seq_len=2, lanes=1, packing="rows", pad_id=pad_id)
    with ParquetLoader(tmp_path, seq_len=2, overlap=1, lanes=2, packing="rows", shuffle=False) as loader:
        assert next(iter(loader)).tokens.tolist() == [[1, 2, 3], [3, 4, 5]]


@pytest.mark.parametrize("part_slots", [200, 1 << 20])
@pytest.mark.parametrize("groups", [1, 5])
@pytest.mark.parametrize(("pad_id", "wrong"), [(None, [9, 11]), (0, [11, 0]), (None, [0, 20]), (0, [400])])
def test_a_row_of_another_length_is_named_where_only_its_data_tells(
    tmp_path: Path, monkeypatch, part_slots: int, groups: int, pad_id: int | None, wrong: list[int]
) -> None:
    monkeypatch.setattr(decode, "PART_SLOTS", part_slots)
    lengths = [[10] * 60 for _ in range(groups)]
    lengths[-1][40 : 40 + len(wrong)] = wrong
    lengths[-1] += [0] * 60 if pad_id is not None else []
    write_set(tmp_path, unique_groups([lengths]), write_batch_size=3, data_page_size=40)
    row = next(place for place, length in enumerate(lengths[-1]) if length > 10 or (length < 10 and pad_id is None))
    where = rf"part-000.parquet, row group {groups - 1}, .*row {row} of the row group"
    options = dict(seq_len=10, lanes=1, packing="rows", pad_id=pad_id, shuffle=False)
    with ParquetLoader(tmp_path, **options) as loader, pytest.raises(DataError, match=where):
        list(loader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(packing="row"), "packing must be 'tokens' or 'rows', not 'row'"),
        (dict(packing="rows", eos_id=3), "eos_id=3 would be appended to documents, and packing='rows' leaves rows"),
        (dict(pad_id=3), "pad_id=3 fills up rows that are packed already; give packing='rows' too"),
        (dict(packing="rows", pad_id=-1), r"pad_id must be an integer in \[0"),
        (
            dict(packing="rows", pad_id=50, vocab_size=50),
            r"pad_id must be an integer in \[0, 49\], not 50: it comes in rows as an id",
        ),
        (dict(packing="rows", pad_id="x"), "pad_id must be an integer"),
        (dict(packing="rows", pad_id=0, seq_len=2**27), "takes rows of fewer than 134,217,728 ids, not 134,217,728"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, options, message: str) -> None:
    write_set(tmp_path, [[[[1, 2], [3, 4]]]])
    with pytest.raises(ConfigError, match=message):
        ParquetLoader(tmp_path, **{"seq_len": 2, "lanes": 1, **options})


def test_components_say_themselves_how_they_are_packed(tmp_path: Path) -> None:
    write_set(tmp_path, [[[[1, 2], [3, 4]]]])
    options = dict(seq_len=2, lanes=1, weights={"a": 1})
    for component, message in (
        (dict(packing="whole"), "packing must be"),
        (dict(pad_id=-1), "pad_id must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            Component(tmp_path, **component)
    for component, more, message in (
        (dict(pad_id=3), {}, "source 'a': pad_id=3 fills up"),
        (dict(packing="rows", eos_id=3), {}, "source 'a': eos_id=3 would be"),
        (dict(packing="rows", pad_id=30), dict(vocab_size=30), "source 'a': pad_id must be"),
        ({}, dict(packing="rows", eos_id=3), "source 'a': eos_id=3 would be"),
    ):
        with pytest.raises(ConfigError, match=message):
            ParquetLoader({"a": Component(tmp_path, **component)}, **options, **more)
    with ParquetLoader({"a": Component(tmp_path, packing="rows")}, eos_id=9, pad_id=0, **options) as loader:
        assert next(iter(loader)).tokens.tolist() in ([[1, 2]], [[3, 4]])


def test_a_set_of_nothing_but_empty_rows_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, [[[[], []]]])
    with pytest.raises(ConfigError, match="holds no token"):
        ParquetLoader(tmp_path, seq_len=2, lanes=1, packing="rows", pad_id=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(seq_len=5), "seq_len is 4 in the checkpoint and 5 in this loader"),
        (dict(overlap=1), "overlap is 0 in the checkpoint and 1 in this loader"),
        (dict(packing="tokens", pad_id=None), "packing is 'rows' in the checkpoint and 'tokens' in this loader"),
    ],
)
def test_a_resume_that_changes_the_rows_is_refused(tmp_path: Path, changed, message: str) -> None:
    write_set(tmp_path, unique_groups([[[4, 3, 4, 4, 2, 4]] * 3]))
    options = dict(seq_len=4, lanes=2, packing="rows", pad_id=0)
    with ParquetLoader(tmp_path, **options) as loader:
        state = next(iter(loader)).state
    with (
        ParquetLoader(tmp_path, **{**options, **changed}) as other,
        pytest.raises(CheckpointMismatchError, match=message),
    ):
        other.load_state_dict(state)
    with ParquetLoader(tmp_path, **{**options, "pad_id": 9}) as other:  # what nobody looks at may be another id
        other.load_state_dict(state)


def test_a_run_by_tokens_is_not_resumed_by_rows(tmp_path: Path) -> None:
    write_set(tmp_path, unique_groups([[[4] * 6] * 3]))
    with ParquetLoader(tmp_path, seq_len=4, lanes=2) as loader:
        state = next(iter(loader)).state
    message = "packing is 'tokens' in the checkpoint and 'rows' in this loader"
    with (
        ParquetLoader(tmp_path, seq_len=4, lanes=2, packing="rows") as other,
        pytest.raises(CheckpointMismatchError, match=message),
    ):
        other.load_state_dict(state)


def test_a_mixture_that_has_drawn_from_packed_rows_keeps_its_seq_len(tmp_path: Path) -> None:
    write_set(tmp_path / "a", unique_groups([[[4] * 30] * 3]))
    write_set(tmp_path / "b", unique_groups([[[50] * 30]]))
    sources = {"a": Component(tmp_path / "a", packing="rows"), "b": tmp_path / "b"}
    options = dict(lanes=2, weights=[(0, {"a": 1, "b": 1}), (1024, {"b": 1})])
    with ParquetLoader(sources, seq_len=4, **options) as loader:
        for _ in range(128):
            batch = next(iter(loader))
    without = {"a": Component(tmp_path / "a", packing="rows", pad_id=0), "b": tmp_path / "b"}
    message = "'a': seq_len is 4 in the checkpoint and 8 in this loader"
    with ParquetLoader(without, seq_len=8, **options) as other, pytest.raises(CheckpointMismatchError, match=message):
        other.load_state_dict(batch.state)


def test_an_index_serves_both_packings(tmp_path: Path) -> None:
    write_set(tmp_path, [[[[1, 2], [3, 4]]]])
    index = build_index(tmp_path)
    with ParquetLoader(tmp_path, index=index, seq_len=2, lanes=2, packing="rows", shuffle=False) as loader:
        assert next(iter(loader)).tokens.tolist() == [[1, 2], [3, 4]]


def test_a_source_that_comes_back_by_reweight_has_the_rows_that_it_had(tmp_path: Path) -> None:
    write_set(tmp_path / "a", unique_groups([[[4] * 30] * 3]))
    write_set(tmp_path / "b", unique_groups([[[50] * 30]]))
    sources = {"a": Component(tmp_path / "a", packing="rows", pad_id=0), "b": tmp_path / "b"}
    options = dict(lanes=2, weights={"a": 1, "b": 1})
    with ParquetLoader(sources, seq_len=4, **options) as loader:
        for _ in range(64):
            next(iter(loader))
        loader.reweight({"b": 1})
        for _ in range(64):
            state = next(iter(loader)).state
    options["weights"] = [(0, {"a": 1, "b": 1}), (512, {"b": 1})]
    with ParquetLoader({"b": sources["b"]}, seq_len=8, **options) as other:
        other.load_state_dict(state)  # which is none of `a`, whose rows need not be looked at
        for _ in range(64):
            state = next(iter(other)).state
    options["weights"] = [(0, {"a": 1, "b": 1}), (512, {"b": 1})]
    with ParquetLoader(sources, seq_len=4, **options) as back:
        back.load_state_dict(state)
        back.reweight({"a": 1, "b": 1})
        for _ in range(64):
            next(iter(back))
        assert back.stats()["sources"]["a"]["tokens"] > 64 * 4


def test_a_schedule_and_reweight_deal_out_the_rows_of_packed_sources(tmp_path: Path) -> None:
    groups = unique_groups(row_files(np.random.default_rng(13), 8, shorter=True))
    write_set(tmp_path / "a", groups)
    write_set(tmp_path / "b", unique_groups([[[50] * 30]]))
    sources = {"a": Component(tmp_path / "a", packing="rows", pad_id=PAD), "b": tmp_path / "b"}
    weights = [(0, {"a": 1, "b": 3}), (64 * 8 * 6, {"a": 3, "b": 1})]
    with ParquetLoader(sources, seq_len=8, weights=weights, **ORDER) as loader:
        batches = [next(iter(loader)) for _ in range(128)]
        loader.reweight({"a": 1})
        batches += [next(iter(loader)) for _ in range(64)]
    expected = row_lanes(all_groups(groups), epochs=30, shuffle=True, **ORDER)
    for lane in range(6):
        mine = [rows_of(batch)[lane] for batch in batches if batch.sources[lane] == 0]
        assert len(mine) == 16 + 48 + 64
        assert mine == expected[lane][: len(mine)]


def test_skips_and_earlier_places_of_a_run_are_steps_of_rows(tmp_path: Path) -> None:
    write_set(tmp_path, unique_groups([[[8] * 40] * 5]))
    options = dict(seq_len=8, packing="rows", **ORDER)
    with ParquetLoader(tmp_path, **options) as loader:
        batches = [next(iter(loader)) for _ in range(50)]
    with ParquetLoader(tmp_path, **options) as loader:
        next(iter(loader))
        loader.skip(30)
        assert next(iter(loader)).tokens.tolist() == batches[31].tokens.tolist()
        assert loader.history["skips"] == [{"step": 1, "token": 48, "batches": 30}]
        loader.load_state_dict(loader.state_at(20 * 8))
        assert next(iter(loader)).tokens.tolist() == batches[20].tokens.tolist()
        with pytest.raises(ConfigError, match="no batch begins at position 13; one does at 8 and at 16"):
            loader.state_at(13)
    with ParquetLoader(tmp_path, skip_batches=45, **options) as loader:
        assert next(iter(loader)).tokens.tolist() == batches[45].tokens.tolist()


def test_a_source_that_comes_back_by_reweight_with_other_rows_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path / "a", unique_groups([[[4] * 30] * 3]))
    write_set(tmp_path / "b", unique_groups([[[50] * 30]]))
    sources = {"a": Component(tmp_path / "a", packing="rows", pad_id=0), "b": tmp_path / "b"}
    options = dict(lanes=2, weights={"b": 1})
    with ParquetLoader(sources, seq_len=4, **options) as loader:
        for weights in ({"a": 1}, {"b": 1}):
            for _ in range(64):
                state = next(iter(loader)).state
            loader.reweight(weights)
        for _ in range(64):
            state = next(iter(loader)).state
    with ParquetLoader(sources, seq_len=8, **options) as other:
        other.load_state_dict(state)
        before = next(iter(other)).state
        with pytest.raises(CheckpointMismatchError, match="'a': seq_len is 4 in the checkpoint and 8 in this loader"):
            other.reweight({"a": 1})
        assert other.state_dict() == before
        next(iter(other))


# ── formats ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shorter", [False, True])
def test_rows_are_the_same_in_every_format_that_knows_documents(tmp_path: Path, shorter: bool) -> None:
    (groups,) = unique_groups(row_files(np.random.default_rng(14), 9, shorter=shorter, files=1, rows=60))
    rows = [row for group in groups for row in group]
    write_set(tmp_path / "parquet", [[rows]])
    write_arrow(tmp_path / "file" / "a.arrow", rows, form="file")
    write_arrow(tmp_path / "stream" / "a.arrow", rows, form="stream", codec="lz4")
    (tmp_path / "megatron").mkdir()
    write_megatron(tmp_path / "megatron" / "a", [[row] for row in rows])
    expected = None
    for name in ("parquet", "file", "stream", "megatron"):
        options = dict(seq_len=8, overlap=1, packing="rows", pad_id=PAD if shorter else None, epochs=2)
        for ranks in (1, 3):
            steps = whole_run(tmp_path / name, ranks, **options, **ORDER)
            expected = expected or steps
            assert steps == expected


def test_a_stream_of_ids_has_no_rows(tmp_path: Path) -> None:
    write_shards(tmp_path / "raw", [[[1, 2, 3, 4]] * 20], eos_id=0)
    with pytest.raises(ConfigError, match="packing='rows' needs rows that are told apart, and this set is a stream"):
        ParquetLoader(tmp_path / "raw", seq_len=10, lanes=1, packing="rows")
