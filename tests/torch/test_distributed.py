"""Process groups: `torch.distributed.checkpoint`, and device meshes. Real processes, gloo."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed.checkpoint
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from unique_sets import unique_groups, write_set

from parquet_loader import ConfigError, ParquetLoader
from parquet_loader.torch import TokenDataset, data_parallel_place

LANES, SEQ_LEN, STEPS = 8, 4, 9
TOKENS = LANES * SEQ_LEN * STEPS
RUN = {"lanes": LANES, "seq_len": SEQ_LEN, "window": 3, "seed": 5, "threads": 1}
TAKEN = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    borders = np.sort(np.random.default_rng(0).choice(np.arange(1, TOKENS), 39, replace=False))
    lengths = np.diff([0, *borders, TOKENS]).tolist()
    files = unique_groups([[lengths[:10], lengths[10:20]], [lengths[20:30], lengths[30:]]])
    return str(write_set(tmp_path_factory.mktemp("data"), files))


def plain(data: str) -> list[list[list[int]]]:
    with ParquetLoader(data, **RUN) as loader:
        return [batch.tokens.tolist() for batch in loader]


def rows_of(dataset: TokenDataset) -> list[list[list[int]]]:
    return [item["input_ids"].tolist() for item in dataset]


def together(found: list[list[list[list[int]]]]) -> list[list[list[int]]]:
    """All ranks' rows of each step, one rank after another."""
    return [list(chain(*rows)) for rows in zip(*found, strict=True)]


def save(rank: int, folder: Path, data: str) -> Any:
    with TokenDataset(data, **RUN) as dataset:
        for _ in zip(range(TAKEN), dataset, strict=False):
            pass
        torch.distributed.checkpoint.save({"data": dataset}, checkpoint_id=folder / "checkpoint")
        return dataset.state_dict()


def load(rank: int, folder: Path, data: str) -> Any:
    with TokenDataset(data, **RUN) as dataset:
        torch.distributed.checkpoint.load({"data": dataset}, checkpoint_id=folder / "checkpoint")
        return rows_of(dataset)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_distributed_checkpoints_resume_on_any_number_of_ranks(data: str, tmp_path: Path) -> None:
    states = on_ranks(tmp_path, 4, save, data)
    assert all(state == states[0] for state in states)  # of no rank, so that rank 0's does for all
    for count in (2, 8):
        assert together(on_ranks(tmp_path, count, load, data)) == plain(data)[TAKEN:]


def on_a_mesh(rank: int, folder: Path, data: str) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    places = [data_parallel_place(mesh, *names) for names in ((), ("dp",), ("tp",), ("dp", "tp"))]
    with pytest.raises(ConfigError, match="no dimension 'cp'; it has dp, tp"):
        data_parallel_place(mesh, "cp")
    with TokenDataset(data, **RUN, rank=places[1][0], world_size=places[1][1]) as dataset:
        return places, rows_of(dataset)


def test_processes_of_a_mesh_that_differ_in_other_dimensions_get_the_same_rows(data: str, tmp_path: Path) -> None:
    places, rows = zip(*on_ranks(tmp_path, 4, on_a_mesh, data), strict=True)
    for rank in range(4):
        assert places[rank] == [(0, 1), (rank // 2, 2), (rank % 2, 2), (rank, 4)]
    assert rows[0] == rows[1]
    assert rows[2] == rows[3]
    assert together([rows[0], rows[2]]) == plain(data)
