"""`prefetch_to_device`: one batch ahead, each with its own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from unique_sets import unique_groups, write_set

from parquet_loader.torch import TokenDataset, prefetch_to_device

RUN: dict[str, Any] = {"lanes": 2, "seq_len": 5, "overlap": 1, "with_state": True, "boundaries": ["cu_seqlens"]}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_set(tmp_path / "set", unique_groups([[[7, 9, 30, 4], [12, 3, 25]]])))


@pytest.mark.parametrize("device", DEVICES)
def test_batches_come_as_they_were_and_on_the_device(data: str, device: str) -> None:
    with TokenDataset(data, **RUN) as dataset, TokenDataset(data, **RUN) as other:
        for item, moved in zip(other, prefetch_to_device(dataset, device), strict=True):
            assert list(item) == list(moved)
            for name, value in item.items():
                if torch.is_tensor(value):
                    assert moved[name].device.type == device
                    assert torch.equal(moved[name].cpu(), value)
                else:
                    assert moved[name] == value


@pytest.mark.parametrize("device", DEVICES)
def test_the_state_of_the_last_batch_goes_on_with_the_next_though_one_more_was_read(data: str, device: str) -> None:
    with TokenDataset(data, **RUN) as dataset:
        expected = [item["input_ids"].tolist() for item in dataset]
    for stop in range(1, len(expected)):
        with TokenDataset(data, **RUN) as dataset:
            items = [item for _, item in zip(range(stop), prefetch_to_device(dataset, device), strict=False)]
            assert dataset.state_dict()["position"] > items[-1]["state"]["position"]
            dataset.load_state_dict(items[-1]["state"])
            rest = [item["input_ids"].tolist() for item in prefetch_to_device(dataset, device)]
        assert [item["input_ids"].tolist() for item in items] + rest == expected


def test_a_data_loader_is_read_ahead_too(data: str) -> None:
    with TokenDataset(data, **RUN) as dataset, TokenDataset(data, **RUN) as other:
        found = [item["labels"].tolist() for item in prefetch_to_device(DataLoader(dataset, batch_size=None), "cpu")]
        assert found == [item["labels"].tolist() for item in other]
