"""Budgets that suffice: the arithmetic over random sets and windows, and real runs within the least that is allowed."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from idle import wait_until_idle
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import ConfigError, DataError, DatasetIndex, ParquetLoader
from parquet_loader.blocks import TokenBlock
from parquet_loader.engine import cost, engine, plan, slices
from parquet_loader.engine.config import EngineConfig
from parquet_loader.engine.cost import required_bytes
from parquet_loader.engine.plan import WindowPlan, plan_window
from parquet_loader.engine.planes import Plane
from parquet_loader.formats.base import ColumnChunk, ColumnLayout
from parquet_loader.formats.parquet import PARQUET, decode
from parquet_loader.order.order import Order
from parquet_loader.storage import FileInfo, open_storage


def index_of(rows: list[int], tokens: list[int], chunk_bytes: list[int], physical_type: str = "INT32") -> DatasetIndex:
    """An index of row groups of these sizes, as if one file held them one after another."""
    count = len(rows)
    layout = ColumnLayout(
        column="tokens", physical_type=physical_type, signed=True, max_definition_level=3, nullable_element=True
    )
    zeros = np.zeros(count, np.int64)
    length = np.array(chunk_bytes, np.int64)
    return DatasetIndex(
        files=(FileInfo(path="a.parquet", size=4 + sum(chunk_bytes), version="1"),),
        layouts=(layout,),
        column="tokens",
        file_layout=np.zeros(1, np.int64),
        file=zeros,
        row_group=np.arange(count),
        rows=np.array(rows, np.int64),
        slots=np.array(tokens, np.int64),
        tokens=np.array(tokens, np.int64),
        max_id=zeros,
        min_id=zeros,
        start=4 + np.cumsum(length) - length,
        length=length,
        dictionary_offset=zeros - 1,
        data_offset=zeros,
        codec=zeros,
    )


def config_of(
    index: DatasetIndex,
    *,
    lanes: int,
    window: int,
    ranks: tuple[int, int] = (0, 1),
    eos_id: int | None = None,
    dtype: str = "int32",
    seed: int = 0,
    aligned: tuple[str, ...] = (),
) -> EngineConfig:
    rank, world_size = ranks
    order = Order(
        group_tokens=index.tokens + index.rows if eos_id is not None else index.tokens,
        lanes=lanes,
        window=window,
        seed=seed,
        shuffle=True,
    )
    return EngineConfig(
        index=index,
        format=PARQUET,
        storage=open_storage(Path(__file__).parent),
        order=order,
        first=rank * lanes // world_size,
        last=(rank + 1) * lanes // world_size,
        dtype=np.dtype(dtype),
        held_dtype=np.dtype(dtype),
        bound=min(1 << 31, int(np.iinfo(dtype).max) + 1),
        eos_id=eos_id,
        threads=1,
        requests=1,
        budget_bytes=1,
        aligned=tuple(
            Plane(column=each, dtype=np.dtype(each), held_dtype=np.dtype(each), bound=None, eos=0, appends_eos=True)
            for each in aligned
        ),
    )


def needed_bytes(plan: WindowPlan) -> int:
    """The most that is held while a consumer that has nothing left waits for one of the window's tasks."""
    most = slices_so_far = 0
    decoded: set[int] = set()
    for task in plan.tasks:
        texts = sum(
            sum(text)
            for band, text in plan.texts.items()
            if any(ordinal in decoded for ordinal in band.groups)
            and not all(ordinal in decoded for ordinal in band.groups if ordinal in plan.costs)
        )
        most = max(most, slices_so_far + texts + task.cost_bytes)
        slices_so_far += sum(plan.costs[ordinal].slices for ordinal in task.ordinals)
        decoded |= set(task.ordinals)
    return most


sizes = st.one_of(st.integers(0, 50), st.integers(0, 5_000), st.integers(0, 3_000_000))


@settings(max_examples=300)
@given(data=st.data())
def test_required_bytes_suffice_for_every_window_of_any_set(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    tokens = data.draw(st.lists(sizes, min_size=count, max_size=count))
    tokens[0] += 1
    rows = data.draw(st.lists(sizes.map(lambda size: size // 3 + 1), min_size=count, max_size=count))
    chunk_bytes = data.draw(st.lists(sizes, min_size=count, max_size=count))
    index = index_of(rows, tokens, chunk_bytes, data.draw(st.sampled_from(["INT32", "INT64"])))
    aligned = data.draw(st.lists(st.sampled_from(["int8", "float64"]), max_size=2))
    physical = st.sampled_from(["INT32", "INT64"])
    planes = [index_of(rows, tokens, data.draw(st.permutations(chunk_bytes)), data.draw(physical)) for _ in aligned]
    index = replace(index, aligned=tuple(planes))
    lanes = data.draw(st.one_of(st.integers(1, 8), st.integers(1, 3000)))
    world_size = data.draw(st.integers(1, min(lanes, 9)))
    config = config_of(
        index,
        lanes=lanes,
        window=data.draw(st.integers(1, 14)),
        ranks=(data.draw(st.integers(0, world_size - 1)), world_size),
        eos_id=data.draw(st.sampled_from([None, 0])),
        dtype=data.draw(st.sampled_from(["int32", "uint16", "int64"])),
        seed=data.draw(st.integers(0, 99)),
        aligned=tuple(aligned),
    )
    enough = required_bytes(config, config.order.window)
    windows = config.order.windows(data.draw(st.integers(0, 5 * config.order.total // lanes)), config.first)
    for _ in range(2 * count):
        plan = plan_window(config, next(windows))
        assert needed_bytes(plan) <= enough


@settings(max_examples=100)
@given(data=st.data())
def test_each_task_list_has_every_row_group_with_tokens_of_the_lanes_once(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(sizes, min_size=1, max_size=20))
    tokens[0] += 1
    lanes = data.draw(st.integers(1, 20))
    first = data.draw(st.integers(0, lanes - 1))
    config = config_of(index_of([5] * len(tokens), tokens, tokens), lanes=lanes, window=7, ranks=(first, lanes))
    plan = plan_window(config, next(config.order.windows(0, first)))
    ordinals = [ordinal for task in plan.tasks for ordinal in task.ordinals]
    begin, end = plan.starts[0], plan.starts[-1]
    offsets = plan.window.offsets
    touched = [
        ordinal for ordinal in range(len(offsets) - 1) if max(begin, offsets[ordinal]) < min(end, offsets[ordinal + 1])
    ]
    assert ordinals == touched
    assert sorted(ordinal for task in plan.tasks for read in task.reads for _, ordinal in read.chunks) == touched


@pytest.mark.parametrize("group_tokens", [1_500_000, 10_000_000])
@pytest.mark.parametrize(("lanes", "world_size"), [(64, 1), (512, 1), (512, 8), (512, 64), (4096, 256)])
@pytest.mark.parametrize("window", [4, 16, 64])
def test_required_bytes_are_no_more_than_half_again_what_is_needed(
    group_tokens: int, lanes: int, world_size: int, window: int
) -> None:
    rng = np.random.default_rng(0)
    tokens = (group_tokens * rng.uniform(0.95, 1.05, 200)).astype(int).tolist()
    index = index_of([number // 1000 for number in tokens], tokens, [2 * number for number in tokens])
    config = config_of(index, lanes=lanes, window=window, ranks=(world_size // 3, world_size))
    windows = config.order.windows(0, config.first)
    needed = max(needed_bytes(plan_window(config, next(windows))) for _ in range(200 // window))
    assert needed <= required_bytes(config, window) <= 1.5 * needed


def test_required_bytes_grow_with_the_window() -> None:
    tokens = [1000, 2_000_000, 5, 300_000, 300_000, 1, 0, 70_000]
    config = config_of(index_of([10] * 8, tokens, tokens), lanes=4, window=8)
    required = [required_bytes(config, window) for window in range(1, 10)]
    assert required == sorted(required)
    assert required[7] == required[8]


def test_row_groups_that_are_tiny_and_lie_together_are_read_together() -> None:
    config = config_of(index_of([2] * 50, [20] * 50, [100] * 50), lanes=4, window=50)
    plan = plan_window(config, next(config.order.windows(0, 0)))
    assert len(plan.tasks) == 1
    assert [(read.start, read.length) for read in plan.tasks[0].reads] == [(4, 5000)]


# ── real runs ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tasks and bands are worth at the least, scaled down as small sets are: budgets are then tight."""
    monkeypatch.setattr(cost, "TASK_BYTES", 1 << 10)
    monkeypatch.setattr(plan, "TASK_BYTES", 1 << 10)
    monkeypatch.setattr(plan, "_GAP_BYTES", 64)
    monkeypatch.setattr(cost, "_OBJECTS_BYTES", 8)
    monkeypatch.setattr(decode, "_OBJECTS_BYTES", 8)
    monkeypatch.setattr(slices, "BAND_TOKENS", 64)


def refusal(folder: Path, **options: object) -> tuple[int, int | None]:
    """(the budget that a refused loader asks for, the window that it says would fit)."""
    with pytest.raises(ConfigError, match="budget_bytes 100 is too small") as caught:
        ParquetLoader(folder, budget_bytes=100, **options)
    text = str(caught.value)
    window = re.search(r"window=(\d+), which fits", text)
    return int(re.search(r"at least ([\d,]+)", text)[1].replace(",", "")), int(window[1]) if window else None


@pytest.mark.usefixtures("small_constants")
@settings(max_examples=40)
@given(data=st.data())
def test_the_least_budget_never_hangs_and_is_never_passed(tmp_path_factory, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    length = data.draw(st.sampled_from([3, 40, 400]))
    files = unique_groups(random_files(rng, files=2, groups=8, documents=20, length=length))
    files[0].append([[0, 1, 2]])
    folder = write_set(tmp_path_factory.mktemp("set"), files)
    lanes = data.draw(st.integers(1, 20))
    world_size = data.draw(st.integers(1, min(lanes, 4)))
    options = dict(
        seq_len=data.draw(st.integers(1, 50)),
        lanes=lanes,
        window=data.draw(st.integers(1, 18)),
        rank=data.draw(st.integers(0, world_size - 1)),
        world_size=world_size,
        uneven=True,
        overlap=data.draw(st.integers(0, 1)),
        eos_id=data.draw(st.sampled_from([None, 0])),
        threads=data.draw(st.integers(1, 8)),
        dtype=data.draw(st.sampled_from(["uint16", "int32", "int64"])),
    )
    least, _ = refusal(folder, **options)
    with ParquetLoader(folder, budget_bytes=least, **options) as loader:
        for _ in range(3):
            for number, _ in enumerate(loader):
                assert loader.stats()["held_bytes"] <= least
                if number == 200:
                    break
        assert 0 < loader.stats()["peak_bytes"] <= least
    with pytest.raises(ConfigError, match="too small"):
        ParquetLoader(folder, budget_bytes=least - 1, **options)


@pytest.mark.usefixtures("small_constants")
@pytest.mark.parametrize("window", [1, 2, 5, 11])
def test_the_window_that_is_said_to_fit_does(tmp_path: Path, window: int) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[50] * 30] * 12]))
    options = dict(seq_len=16, lanes=6)
    budget, _ = refusal(folder, window=window, **options)
    with pytest.raises(ConfigError, match=rf"at least [\d,]+, (or threads.*)?or, in a new run, window={window}, which"):
        ParquetLoader(folder, budget_bytes=budget, window=12, **options)
    with ParquetLoader(folder, budget_bytes=budget, window=window, **options) as loader:
        assert sum(1 for _ in loader) == 50 * 30 * 12 // 6 // 16 + 1


def test_where_nothing_but_a_budget_helps_nothing_else_is_advised(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[50] * 30]]))
    with pytest.raises(ConfigError, match=r"give at least [\d,]+$"):
        ParquetLoader(folder, seq_len=16, lanes=2, budget_bytes=100)


def test_a_run_at_the_least_budget_uses_most_of_it(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[1000] * 300] * 12]), compression="none")
    options = dict(seq_len=500, lanes=20, window=6, threads=2)
    least, _ = refusal(folder, **options)
    with ParquetLoader(folder, budget_bytes=least, **options) as loader:
        for _ in loader:
            pass
        assert least / 1.5 <= loader.stats()["peak_bytes"] <= least


@pytest.mark.parametrize("eos_id", [None, 0])
def test_small_row_groups_are_decoded_together_to_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eos_id: int | None
) -> None:
    rng = np.random.default_rng(0)
    folder = write_set(tmp_path, unique_groups(random_files(rng, files=3, groups=30, documents=20, length=40)))
    options = dict(seq_len=10, lanes=6, window=20, eos_id=eos_id, epochs=1, threads=2)
    found = []
    decode_framed = decode.decode_with_pyarrow

    def noted(raws: list[memoryview], chunks: list[ColumnChunk]) -> TokenBlock:
        found.append(len(chunks))
        return decode_framed(raws, chunks)

    monkeypatch.setattr(decode, "decode_with_pyarrow", noted)
    with ParquetLoader(folder, **options) as loader:
        together = [batch.tokens for batch in loader]
        stats = loader.stats()
    assert max(found) > 5
    assert sum(found) == stats["row_groups"]
    monkeypatch.setattr(decode, "TOGETHER_SLOTS", 0)
    found.clear()
    with ParquetLoader(folder, **options) as loader:
        np.testing.assert_array_equal(together, [batch.tokens for batch in loader])
        assert loader.stats()["tokens_decoded"] == stats["tokens_decoded"]
    assert not found


def test_what_is_wrong_with_one_of_many_small_row_groups_names_it(tmp_path: Path) -> None:
    documents = [[number] * 30 for number in range(50)]
    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=5, write_page_checksum=True)
    with ParquetLoader(tmp_path, seq_len=10, lanes=2, window=10) as loader:
        chunk = loader.index.chunk(7)
        times = path.stat().st_mtime_ns
        damaged = bytearray(path.read_bytes())
        damaged[chunk.start + chunk.length - 1] ^= 1
        path.write_bytes(damaged)
        os.utime(path, ns=(times, times))
        with pytest.raises(DataError, match="does not match its checksum") as caught:
            list(loader)
    assert caught.value.row_group == 7


# ── how far ahead ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_set_of_one_row_group_is_read_for_the_epoch_in_use_and_the_next(tmp_path: Path) -> None:
    ids = np.arange(2_000_000, dtype=np.int32) % 50_000
    documents = pa.ListArray.from_arrays(np.arange(0, 2_000_001, 1000, dtype=np.int32), ids)
    pq.write_table(pa.table({"tokens": documents}), tmp_path / "a.parquet")
    with ParquetLoader(tmp_path, seq_len=100, lanes=4, threads=2) as loader:
        next(iter(loader))
        wait_until_idle(loader)
        assert loader.stats()["row_groups"] == 2
        assert loader.stats()["bytes_read"] == 2 * loader.index.length[0]


@pytest.mark.parametrize(("window", "world_size"), [(1, 1), (5, 1), (64, 64), (8, 2)])
def test_the_window_in_use_and_the_next_are_read_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, world_size: int
) -> None:
    monkeypatch.setattr(engine, "AHEAD_BYTES", 0)
    folder = write_set(tmp_path, unique_groups([[[50] * 30] * 64]))
    options = dict(seq_len=10, lanes=64, window=window, rank=world_size // 2, world_size=world_size)
    with ParquetLoader(folder, **options) as loader:
        windows = loader._order.windows(0, loader._config.first)
        plans = [plan_window(loader._config, next(windows)) for _ in range(2)]
        next(iter(loader))
        wait_until_idle(loader)
        assert loader.stats()["row_groups"] == sum(len(plan.costs) for plan in plans)
        bytes_read = sum(read.length for plan in plans for task in plan.tasks for read in task.reads)
        assert loader.stats()["bytes_read"] == bytes_read


def test_a_tiny_set_is_read_ahead_for_a_few_epochs_and_no_more(tmp_path: Path) -> None:
    folder = write_set(tmp_path, unique_groups([[[50] * 10]]))
    with ParquetLoader(folder, seq_len=10, lanes=4, threads=2) as loader:
        next(iter(loader))
        wait_until_idle(loader)
        assert loader.stats()["row_groups"] <= 1 + 4 * 2


def test_tiny_windows_are_read_ahead_within_a_few_megabytes(tmp_path: Path) -> None:
    folder = write_set(tmp_path, unique_groups([[[50] * 30] * 64]))
    with ParquetLoader(folder, seq_len=10, lanes=4, window=1, threads=2, requests=16) as loader:
        next(iter(loader))
        wait_until_idle(loader)
        stats = loader.stats()
        assert stats["row_groups"] > 2 + 16  # so that as many requests over a network are made at once
        assert stats["bytes_read"] < engine.AHEAD_BYTES
