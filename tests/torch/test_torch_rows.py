"""Packed rows as tensors: padding has no label, boundaries are the rows', and workers and resumes lose nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from packed_rows import all_groups, row_files
from torch.utils.data import DataLoader
from unique_sets import unique_groups, write_set

from parquet_loader import Component
from parquet_loader.torch import TokenDataset
from parquet_loader.trainers import TokenBatches

# Python 3.12 and later warn of every fork of a process that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
ROWS = [[1, 2, 3, 4, 5], [6, 7, 8], [], [9, 10, 11, 12, 13]]


@pytest.mark.parametrize("overlap", [0, 1])
def test_labels_of_padding_and_of_first_tokens_are_left_out(tmp_path: Path, overlap: int) -> None:
    write_set(tmp_path, [[ROWS]])
    options = dict(seq_len=5 - overlap, overlap=overlap, lanes=4, shuffle=False, packing="rows", pad_id=0)
    with TokenDataset(
        tmp_path, mask_first_labels=True, boundaries=["position_ids", "cu_seqlens"], **options
    ) as dataset:
        item = next(iter(dataset))
    x, seq_len = -100, 5 - overlap
    padded = torch.tensor([[*row, *[0] * (5 - len(row))] for row in ROWS])
    assert item["input_ids"].tolist() == padded[:, :seq_len].tolist()
    labels = [[x, 2, 3, 4, 5], [x, 7, 8, x, x], [x] * 5, [x, 10, 11, 12, 13]]
    assert item["labels"].tolist() == [row[overlap:] for row in labels]
    positions = [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert item["position_ids"].tolist() == [row[:seq_len] for row in positions]
    assert item["cu_seqlens"].tolist() == [0, seq_len, seq_len + 3, 2 * seq_len, 3 * seq_len, 4 * seq_len]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_comes_once_from_workers_and_over_a_resume(tmp_path: Path, workers: int) -> None:
    groups = unique_groups(row_files(np.random.default_rng(11), 8, shorter=True))
    write_set(tmp_path, groups)
    options = dict(seq_len=8, lanes=4, packing="rows", pad_id=0, epochs=1, with_state=True)
    came, state, ended = [], None, False
    while not ended:
        with TokenDataset(tmp_path, **options) as dataset:
            if state is not None:
                dataset.load_state_dict(state)
            loader = DataLoader(
                dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
            )
            ended = True
            for number, item in enumerate(loader, 1):
                state = item["state"]
                came += [
                    row[label != -100].tolist() for row, label in zip(item["input_ids"], item["labels"], strict=True)
                ]
                if number % 10 == 0:  # whole steps of as many workers
                    ended = False
                    break
    stored = [row for group in all_groups(groups) for row in group if row]
    assert sorted(filter(None, came)) == sorted(stored)


def test_a_mixture_of_both_packings_trains_in_equal_steps(tmp_path: Path) -> None:
    write_set(tmp_path / "chat", unique_groups(row_files(np.random.default_rng(12), 9, shorter=True)))
    write_set(tmp_path / "web", unique_groups([[[50] * 30]]))
    sources = {"chat": Component(tmp_path / "chat", packing="rows", pad_id=0), "web": tmp_path / "web"}
    options = dict(seq_len=8, overlap=1, lanes=4, weights={"chat": 0.1, "web": 0.9}, with_sources=True)
    with TokenBatches(sources, steps=100, **options) as whole:
        expected = list(whole)
    with TokenBatches(sources, steps=100, **options) as first:
        for _, _ in zip(range(37), first, strict=False):
            state = first.state_dict()
    with TokenBatches(sources, steps=100, **options) as second:
        second.load_state_dict(state)
        rest = list(second)
    assert len(rest) == 63
    for item, other in zip(expected[37:], rest, strict=True):
        assert all(torch.equal(item[name], other[name]) for name in ("input_ids", "labels", "sources"))
    chat = torch.stack([item["sources"] == 0 for item in expected])
    assert 0.05 < chat.float().mean() < 0.15
    padded = torch.stack([(item["labels"] == -100).any(dim=1) for item in expected])
    assert padded.any()
    assert not padded[~chat].any()


@pytest.mark.parametrize("overlap", [0, 1])
def test_labels_and_boundaries_of_columns_go_with_packed_rows(tmp_path: Path, overlap: int) -> None:
    columns = {
        "input_ids": ROWS,
        "labels": [[-100, -100, 3, 4, 5], [-100, 7, 8], [], [9, 10, 11, 12, 13]],
        "document_ids": [[0, 0, 1, 1, 1], [0, 0, 0], [], [0, 0, 0, 1, 1]],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    options = dict(seq_len=5 - overlap, overlap=overlap, lanes=4, shuffle=False, packing="rows", pad_id=0)
    boundaries = ["position_ids", "document_ids"]
    with TokenDataset(
        tmp_path, labels="labels", column="input_ids", aligned=["document_ids"], boundaries=boundaries, **options
    ) as dataset:
        item = next(iter(dataset))
    x, seq_len = -100, 5 - overlap
    labels = [[x, x, 3, 4, 5], [x, 7, 8, x, x], [x] * 5, [9, 10, 11, 12, 13]]
    assert item["labels"].tolist() == [row[overlap:] for row in labels]
    positions = [[0, 1, 0, 1, 2], [0, 1, 2, 0, 1], [0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
    assert item["position_ids"].tolist() == [row[:seq_len] for row in positions]
    ids = item["document_ids"]  # of the whole batch, and not those that are stored
    assert sorted(ids.unique().tolist()) == list(range(int(ids.max()) + 1))
    assert [len(row.unique()) for row in ids] == [2, 2, 1, 2]
    assert item.keys() == {"input_ids", "labels", "position_ids", "document_ids"}
