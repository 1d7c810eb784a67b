"""Tensors of a set that grows: datasets, workers and trainers follow it as a loader does."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from growing_sets import Writer, copy_finished, make_files, quick_looks
from torch.utils.data import DataLoader

from parquet_loader.torch import TokenDataset
from parquet_loader.trainers import TokenBatches

__all__ = ["quick_looks"]

pytestmark = [
    pytest.mark.usefixtures("quick_looks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
OPTIONS: dict[str, Any] = {"seq_len": 16, "lanes": 8, "window": 3, "seed": 7, "follow": True}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return make_files(tmp_path / "files", 0)


@pytest.fixture
def expected(files: list[Path], tmp_path: Path) -> list[torch.Tensor]:
    with TokenDataset(copy_finished(files, tmp_path / "finished"), **OPTIONS) as dataset:
        return [item["input_ids"] for item in itertools.islice(dataset, 40)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_follows_with_workers_and_without(
    workers: int, files: list[Path], expected: list[torch.Tensor], tmp_path: Path
) -> None:
    writer = Writer(tmp_path / "growing", files)
    writer.show(3)
    thread = threading.Timer(0.5, writer.finish)
    thread.start()
    with TokenDataset(writer.folder, **OPTIONS) as dataset:
        with pytest.raises(TypeError, match="still being written"):
            len(dataset)
        loader = DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
        )
        each = max(1, workers)  # that brings rows of its lanes
        parts = [item["input_ids"] for item in itertools.islice(loader, 40 * each)]
    thread.join()
    found = [torch.cat(parts[begin : begin + each]) for begin in range(0, len(parts), each)]
    assert all(map(torch.equal, found, expected))


def test_a_trainer_is_given_a_number_of_steps(files: list[Path], expected: list[torch.Tensor], tmp_path: Path) -> None:
    writer = Writer(tmp_path / "growing", files)
    writer.show(3)
    thread = threading.Timer(0.2, writer.finish)
    thread.start()
    with TokenBatches(writer.folder, **OPTIONS, steps=40) as batches:
        assert len(batches) == 40
        assert all(torch.equal(item["input_ids"], want) for item, want in zip(batches, expected, strict=True))
    thread.join()
