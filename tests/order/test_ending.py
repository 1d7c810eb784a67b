"""A run of a few epochs: every token once, equally many batches on all ranks, and the padding known."""

from __future__ import annotations

import threading
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from unique_sets import random_files, token_count, unique_groups, write_set

from parquet_loader import ConfigError, ParquetLoader
from parquet_loader.torch import TokenDataset


def small_set(folder: Path, seed: int) -> tuple[str, int]:
    """A set and its tokens."""
    files = unique_groups(random_files(np.random.default_rng(seed)))
    return str(write_set(folder, files)), token_count(files)


def steps_of(folder: str, world_size: int, **options: Any) -> list[list[list[int]]]:
    """The real tokens of every row, ranks one after another, step by step; ranks must have equally many."""
    ranks = []
    for rank in range(world_size):
        with ParquetLoader(folder, rank=rank, world_size=world_size, uneven=True, threads=1, **options) as loader:
            steps = []
            while loader.epoch < options["epochs"]:
                expected = len(loader)
                batches = list(loader)
                assert len(batches) == expected
                for batch in batches:
                    lengths = [batch.tokens.shape[1]] * len(batch.tokens) if batch.lengths is None else batch.lengths
                    steps.append([row[:length] for row, length in zip(batch.tokens.tolist(), lengths, strict=True)])
                    assert all(not any(row[n:]) for row, n in zip(batch.tokens.tolist(), lengths, strict=True))
            assert not list(loader)
            ranks.append(steps)
    return [list(chain(*rows)) for rows in zip(*ranks, strict=True)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("epochs", [1, 2])
def test_every_token_comes_once_an_epoch_and_all_ranks_take_as_many_steps(
    tmp_path: Path, seed: int, epochs: int
) -> None:
    rng = np.random.default_rng(seed)
    folder, tokens = small_set(tmp_path / "set", seed)
    lanes, seq_len = int(rng.integers(1, 9)), int(rng.integers(1, 50))
    options: dict[str, Any] = {"lanes": lanes, "seq_len": seq_len, "window": 2, "seed": seed, "epochs": epochs}
    alone = steps_of(folder, 1, **options)
    assert sorted(token for rows in alone for row in rows for token in row) == sorted([*range(tokens)] * epochs)
    for world_size in {min(2, lanes), min(3, lanes), lanes}:
        assert steps_of(folder, world_size, **options) == alone
    dropped = steps_of(folder, lanes, tail="drop", **options)
    assert all(len(row) == seq_len for rows in dropped for row in rows)
    assert dropped == alone[: len(dropped)]
    assert len(alone) - len(dropped) <= 1 + (epochs * tokens % lanes > 0)


@pytest.mark.parametrize("tokens", [1, 5, 13])
@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("seq_len", [1, 2, 3])
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_the_last_rows_overlap_too_however_short(
    tmp_path: Path, tokens: int, lanes: int, seq_len: int, tail: str
) -> None:
    pq.write_table(pa.table({"tokens": [list(range(1, tokens + 1))]}), tmp_path / "a.parquet")
    options: dict[str, Any] = {"lanes": lanes, "seq_len": seq_len, "epochs": 2, "overlap": 1, "tail": tail}
    shuffled = steps_of(str(tmp_path), 1, **options)
    assert steps_of(str(tmp_path), lanes, **options) == shuffled
    alone = steps_of(str(tmp_path), 1, shuffle=False, **options)
    assert steps_of(str(tmp_path), lanes, shuffle=False, **options) == alone
    assert [list(map(len, rows)) for rows in shuffled] == [list(map(len, rows)) for rows in alone]
    for lane, rows in enumerate(zip(*alone, strict=True)):
        length = (2 * tokens + lane) // lanes
        stream = [token for row in rows for token in row[:seq_len]]
        assert len(stream) == (length if tail == "pad" else len(rows) * seq_len)
        for number, row in enumerate(rows[:-1]):
            assert row[seq_len:] == stream[(number + 1) * seq_len : (number + 1) * seq_len + 1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("overlap", [0, 1])
def test_the_padding_has_no_labels_and_is_a_document_by_itself(tmp_path: Path, seed: int, overlap: int) -> None:
    rng = np.random.default_rng(seed)
    folder, tokens = small_set(tmp_path / "set", seed)
    options: dict[str, Any] = {
        "lanes": int(rng.integers(1, 6)),
        "seq_len": int(rng.integers(1, 50)),
        "overlap": overlap,
    }
    labelled = []
    with (
        TokenDataset(folder, epochs=1, boundaries=["document_ids", "position_ids"], **options) as dataset,
        ParquetLoader(folder, epochs=1, **options) as loader,
    ):
        for item, batch in zip(dataset, loader, strict=True):
            labelled += item["labels"][item["labels"] != -100].tolist()
            lengths = batch.lengths if batch.lengths is not None else [options["seq_len"] + overlap] * len(batch.tokens)
            for row, length in enumerate(lengths):
                ids, positions = item["document_ids"][row], item["position_ids"][row]
                assert not set(ids[:length].tolist()) & set(ids[length:].tolist())
                assert positions[length:].tolist() == list(range(len(ids) - min(length, len(ids))))
        assert not list(dataset)
        assert loader.stats()["tokens"] == tokens
    assert len(labelled) == len(set(labelled)) == tokens - overlap * min(tokens, options["lanes"])
    if not overlap:
        assert sorted(labelled) == list(range(tokens))


def test_a_rank_whose_lanes_have_nothing_left_gets_padding(tmp_path: Path) -> None:
    folder = str(write_set(tmp_path / "set", unique_groups([[[5, 4]]])))
    for rank in range(2):  # 9 tokens on 2 lanes, in rows of 2: the last lane has one more
        options: dict[str, Any] = {"lanes": 2, "seq_len": 2, "epochs": 1, "shuffle": False}
        with ParquetLoader(folder, **options, rank=rank, world_size=2) as loader:
            last = list(loader)[-1]
            assert loader.stats()["batches"] == 3
        assert last.lengths is not None
        assert last.lengths.tolist() == [rank]
        assert last.tokens.tolist() == [[8, 0] if rank else [0, 0]]
        assert last.documents().position_ids().tolist() == [[0, 0] if rank else [0, 1]]


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_a_run_that_is_resumed_ends_where_it_would_have(tmp_path: Path, tail: str) -> None:
    folder, _ = small_set(tmp_path / "set", 1)
    options: dict[str, Any] = {"lanes": 4, "seq_len": 9, "seed": 1, "epochs": 1, "tail": tail}
    with ParquetLoader(folder, **options) as loader:
        batches = list(loader)
        for number, batch in enumerate(batches):
            with ParquetLoader(folder, **options) as other:
                other.load_state_dict(batch.state)
                assert [b.tokens.tolist() for b in other] == [b.tokens.tolist() for b in batches[number + 1 :]]
                assert other.epoch == 1


def test_a_pass_reads_no_row_group_of_the_next_epoch(tmp_path: Path) -> None:
    folder, tokens = small_set(tmp_path / "set", 2)
    with ParquetLoader(folder, lanes=3, seq_len=10, epochs=1, window=2) as loader:
        list(loader)
        for thread in threading.enumerate():  # they have nothing to do any more
            if thread.name.startswith("parquet-loader"):
                thread.join(10)
                assert not thread.is_alive()
        assert loader.stats()["tokens_decoded"] == tokens


@pytest.mark.parametrize("skipped", [0, 1, 5])
def test_batches_can_be_skipped_by_their_number(tmp_path: Path, skipped: int) -> None:
    folder, _ = small_set(tmp_path / "set", 3)
    options: dict[str, Any] = {"lanes": 3, "seq_len": 10, "seed": 2}
    with ParquetLoader(folder, **options) as loader, ParquetLoader(folder, skip_batches=skipped, **options) as other:
        expected = [batch.tokens.tolist() for batch in loader][skipped:]
        assert [batch.tokens.tolist() for batch in other] == expected
        other.load_state_dict(ParquetLoader(folder, **options).state_dict())
        assert other.state_dict()["position"] == 0  # a state counts by itself


def test_a_padded_batch_goes_to_a_model_that_trains(tmp_path: Path) -> None:
    folder, _ = small_set(tmp_path / "set", 4)
    with TokenDataset(folder, lanes=4, seq_len=64, overlap=1, epochs=1) as dataset:
        last = list(dataset)[-1]
    logits = torch.randn(4, 64, 10_000, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), last["labels"].flatten())
    loss.backward()
    assert logits.grad is not None
    assert not logits.grad[last["labels"] == -100].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer"),
        ({"tail": "repeat"}, "tail must be 'pad' or 'drop'"),
        ({"skip_batches": -1}, "skip_batches must be an integer"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParquetLoader(tmp_path, lanes=2, seq_len=4, **options)
