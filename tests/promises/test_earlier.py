"""What release 0.1.0 wrote, in `earlier/`: indexes and caches still read, and its order is refused by name."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgpack
import numpy as np
import pytest

from parquet_loader import CheckpointMismatchError, DatasetIndex, ParquetLoader, build_index, merge_checkpoints
from parquet_loader.index.cache import IndexCache
from parquet_loader.torch import TokenDataset
from parquet_loader.trainers import TokenBatches

EARLIER = Path(__file__).parent / "earlier"
OPTIONS = {"seq_len": 16, "lanes": 4, "window": 3, "seed": 7}


@pytest.fixture
def loader() -> Iterator[ParquetLoader]:
    with ParquetLoader(EARLIER / "set", **OPTIONS) as loader:
        yield loader


def parts() -> list[bytes]:
    return [(EARLIER / f"part-{rank}.checkpoint").read_bytes() for rank in range(2)]


STEPS = "the order of steps is another one in each version: resume it with the release that wrote it"


def test_checkpoints_are_refused_by_their_version(loader: ParquetLoader) -> None:
    for data in [(EARLIER / "merged.checkpoint").read_bytes(), *parts()]:
        with pytest.raises(CheckpointMismatchError, match="has format version 1, and this release reads version 2"):
            loader.resume(data)
    with pytest.raises(CheckpointMismatchError, match="part number 0: the checkpoint has format version 1"):
        merge_checkpoints(parts())


def test_a_state_is_refused_by_its_version(loader: ParquetLoader) -> None:
    with pytest.raises(CheckpointMismatchError, match=f"version 1 and this release reads version 2; {STEPS}"):
        loader.load_state_dict(msgpack.unpackb((EARLIER / "state.msgpack").read_bytes()))


def test_states_of_datasets_and_batches_are_refused_by_their_version() -> None:
    with TokenDataset(EARLIER / "set", **OPTIONS) as dataset, pytest.raises(CheckpointMismatchError, match=STEPS):
        dataset.load_state_dict(json.loads((EARLIER / "token-dataset.json").read_text()))
    with (
        TokenBatches(EARLIER / "set", steps=20, **OPTIONS) as batches,
        pytest.raises(CheckpointMismatchError, match=STEPS),
    ):
        batches.load_state_dict(json.loads((EARLIER / "token-batches.json").read_text()))


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
