"""Small row groups are one task as long as memory allows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import DataError, ParquetLoader
from parquet_loader.engine.config import EngineConfig
from parquet_loader.engine.cost import TASK_BYTES, required_bytes
from parquet_loader.engine.plan import WindowPlan, plan_window

OPTIONS = dict(seq_len=64, lanes=8, window=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 row groups of 3,000 tokens, in three files."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("set")
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    offsets = pa.array(np.arange(0, 3_001, 100), pa.int32())
    for file in "abc":
        with pq.ParquetWriter(folder / f"{file}.parquet", schema) as writer:
            for _ in range(100):
                ids = pa.array(rng.integers(0, 30_000, 3_000), pa.int32())
                writer.write_table(pa.table([pa.ListArray.from_arrays(offsets, ids)], schema=schema))
    return folder


@pytest.fixture
def config(folder: Path) -> EngineConfig:
    with ParquetLoader(folder, **OPTIONS, threads=1) as loader:
        return loader._config


def plan_of(config: EngineConfig, spare_bytes: int) -> WindowPlan:
    return plan_window(config, next(config.order.windows(0, config.first)), spare_bytes)


def test_where_memory_is_scarce_tasks_are_no_larger_than_any_budget_allows(config: EngineConfig) -> None:
    tasks = plan_of(config, 0).tasks
    assert len(tasks) > 5
    assert max(task.cost_bytes - task.gap_bytes for task in tasks) <= TASK_BYTES


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("spare", [0, 1, 10 << 20, 50 << 20, 2 << 30])
def test_tasks_of_all_threads_take_half_of_what_is_spare_at_most(
    config: EngineConfig, spare: int, threads: int
) -> None:
    config = replace(config, threads=threads, requests=threads)
    plan = plan_of(config, spare)
    largest = max(task.cost_bytes - task.gap_bytes for task in plan.tasks)
    assert largest <= TASK_BYTES + spare // (2 * threads)
    assert len(plan.tasks) >= threads
    assert [ordinal for task in plan.tasks for ordinal in task.ordinals] == list(plan.costs)
    assert len(plan.tasks) <= len(plan_of(config, 0).tasks)


def test_with_the_default_budget_a_window_is_a_few_tasks(config: EngineConfig) -> None:
    assert len(plan_of(config, config.budget_bytes).tasks) <= 3


def test_with_the_least_budget_the_same_batches_come(folder: Path, config: EngineConfig) -> None:
    least = required_bytes(replace(config, threads=2, requests=2), config.order.window)
    for budget in (least, least + (1 << 20), 2 * least):
        with (
            ParquetLoader(folder, **OPTIONS, threads=2, budget_bytes=budget) as scarce,
            ParquetLoader(folder, **OPTIONS, threads=2) as plenty,
        ):
            for one, other, _ in zip(scarce, plenty, range(400), strict=False):
                np.testing.assert_array_equal(one.tokens, other.tokens)
            assert scarce.stats()["peak_bytes"] <= budget


def test_a_damaged_row_group_among_many_of_a_task_is_named(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        data = bytearray(file.read_bytes())
        if file.name == "b.parquet":
            chunk = pq.ParquetFile(file).metadata.row_group(41).column(0)
            data[chunk.data_page_offset : chunk.data_page_offset + 30] = b"\xff" * 30
        (tmp_path / file.name).write_bytes(data)
    with (
        ParquetLoader(tmp_path, **OPTIONS, threads=1) as loader,
        pytest.raises(DataError, match=r"b\.parquet.*row group 41|row group 41.*b\.parquet"),
    ):
        for _ in loader:
            pass
