"""What release 0.1.0 wrote still reads: checkpoints, states, indexes and caches, in `earlier/`.

`earlier/batch-7.json` is the batch of a run of that release at which all the states stand.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgpack
import numpy as np
import pytest

from parquet_loader import DatasetIndex, ParquetLoader, build_index, merge_checkpoints
from parquet_loader.index.cache import IndexCache
from parquet_loader.torch import TokenDataset
from parquet_loader.trainers import TokenBatches

EARLIER = Path(__file__).parent / "earlier"
OPTIONS = {"seq_len": 16, "lanes": 4, "window": 3, "seed": 7}
FOLLOWING = json.loads((EARLIER / "batch-7.json").read_text())


@pytest.fixture
def loader() -> Iterator[ParquetLoader]:
    with ParquetLoader(EARLIER / "set", **OPTIONS) as loader:
        yield loader


def parts() -> list[bytes]:
    return [(EARLIER / f"part-{rank}.checkpoint").read_bytes() for rank in range(2)]


def test_a_merged_checkpoint_resumes(loader: ParquetLoader) -> None:
    loader.resume((EARLIER / "merged.checkpoint").read_bytes())
    assert next(iter(loader)).tokens.tolist() == FOLLOWING


def test_parts_merge_to_the_same_bytes_as_then() -> None:
    assert merge_checkpoints(parts()) == (EARLIER / "merged.checkpoint").read_bytes()


def test_an_unmerged_part_resumes_on_its_rank() -> None:
    with ParquetLoader(EARLIER / "set", rank=1, world_size=2, **OPTIONS) as loader:
        loader.resume(parts()[1])
        assert next(iter(loader)).tokens.tolist() == FOLLOWING[2:]


def test_a_state_resumes(loader: ParquetLoader) -> None:
    loader.load_state_dict(msgpack.unpackb((EARLIER / "state.msgpack").read_bytes()))
    assert next(iter(loader)).tokens.tolist() == FOLLOWING


def test_a_state_of_a_token_dataset_resumes() -> None:
    with TokenDataset(EARLIER / "set", **OPTIONS) as dataset:
        dataset.load_state_dict(json.loads((EARLIER / "token-dataset.json").read_text()))
        assert next(iter(dataset))["input_ids"].tolist() == FOLLOWING


def test_a_state_of_token_batches_resumes() -> None:
    with TokenBatches(EARLIER / "set", steps=20, **OPTIONS) as batches:
        batches.load_state_dict(json.loads((EARLIER / "token-batches.json").read_text()))
        assert next(iter(batches))["input_ids"].tolist() == FOLLOWING


def test_a_saved_index_is_the_one_that_would_be_built_now() -> None:
    then, now = DatasetIndex.load(EARLIER / "set.index"), build_index(EARLIER / "set")
    assert then.fingerprint == now.fingerprint
    assert all(then.chunk(group) == now.chunk(group) for group in range(len(now)))


def test_a_cache_reads_without_a_word(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path, "the set", None)
    shutil.copy(EARLIER / "cache.msgpack", cache._path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entries = dict(cache.read())
    now = build_index(EARLIER / "set")
    assert [file.path for file in entries] == [file.path for file in now.files]
    assert sum(entry.columns["tokens"][1].shape[1] for entry in entries.values()) == len(now)
    assert np.concatenate([entry.columns["tokens"][1] for entry in entries.values()], axis=1).shape == (11, len(now))
