"""Tensors of a set that grows: datasets, workers and trainers follow it as a loader does."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from growing_sets import Writer, copy_finished, make_files, quick_looks
from torch.utils.data import DataLoader

from parquet_loader import Component
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


def ask_length(dataset: TokenDataset) -> None:
    with pytest.raises(TypeError):
        len(dataset)


ASKED: dict[str, Callable[[TokenDataset], object]] = {
    "its position": lambda dataset: dataset.state_dict(),
    "for its length": ask_length,
    "for its epoch": lambda dataset: dataset.epoch,
    "to go somewhere": lambda dataset: dataset.load_state_dict(dataset.state_dict()),
    "for a batch": lambda dataset: dataset.load_state_dict(next(iter(dataset))["state"]),
    "for other weights": lambda dataset: (dataset.skip(1), dataset.reweight({"growing": 1, "steady": 2})),
}


@pytest.mark.parametrize(
    ("asked", "mixed"), [*((asked, True) for asked in ASKED), *((asked, False) for asked in list(ASKED)[:-1])]
)
def test_workers_follow_whatever_was_asked_of_the_dataset_before(
    asked: str, mixed: bool, files: list[Path], tmp_path: Path
) -> None:
    writer = Writer(tmp_path / "growing", files)
    writer.show(6)
    source: Any = writer.folder
    options = OPTIONS
    if mixed:
        steady = copy_finished(files, tmp_path / "steady")
        source = {"growing": Component(writer.folder, follow=True), "steady": steady}
        options = {**OPTIONS, "follow": False, "weights": {"growing": 1, "steady": 1}}

    def rows(dataset: TokenDataset, workers: int) -> list[torch.Tensor]:
        ASKED[asked](dataset)
        context = "fork" if workers else None
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
        return [item["input_ids"] for item in itertools.islice(loader, 6 * max(1, workers))]

    with (
        TokenDataset(source, **options, with_state=True) as dataset,
        TokenDataset(source, **options, with_state=True) as other,
    ):
        assert torch.equal(torch.cat(rows(dataset, 2)), torch.cat(rows(other, 0)))


def test_a_trainer_is_given_a_number_of_steps(files: list[Path], expected: list[torch.Tensor], tmp_path: Path) -> None:
    writer = Writer(tmp_path / "growing", files)
    writer.show(3)
    thread = threading.Timer(0.2, writer.finish)
    thread.start()
    with TokenBatches(writer.folder, **OPTIONS, steps=40) as batches:
        assert len(batches) == 40
        assert all(torch.equal(item["input_ids"], want) for item, want in zip(batches, expected, strict=True))
    thread.join()
