"""Labels made of aligned columns, and what else goes with the tokens, as tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from aligned_sets import value_of, write_aligned
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from parquet_loader import Component, ConfigError, ParquetLoader
from parquet_loader.torch import TokenDataset
from parquet_loader.trainers import TokenBatches

pytestmark = [
    # Python 3.12 and later warn of every fork of a process that has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
]
RUN: dict[str, Any] = {"seq_len": 8, "lanes": 4, "window": 2, "column": "input_ids"}
COLUMNS = {"labels": "int64", "loss_mask": "bool", "weights": "float32", "wide": "uint32", "position_ids": "uint16"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("data")
    write_aligned(folder, [[rng.integers(1, 30, 25).tolist() for _ in range(2)] for _ in range(2)], COLUMNS)
    return folder


def rows_of(data: Path, **options: Any) -> Iterator[np.ndarray[Any, Any]]:
    with ParquetLoader(data, **RUN, **options) as loader:
        for batch in loader:
            yield batch.tokens


@pytest.mark.parametrize("overlap", [0, 1])
def test_labels_of_a_column_are_shifted_as_those_of_tokens(data: Path, overlap: int) -> None:
    with TokenDataset(data, labels="labels", overlap=overlap, epochs=1, **RUN) as dataset:
        items = list(dataset)
    plain = TokenDataset(data, overlap=overlap, epochs=1, **RUN)
    for item, other, rows in zip(items, plain, rows_of(data, overlap=overlap, epochs=1), strict=True):
        assert sorted(item) == ["input_ids", "labels"]
        assert item["labels"].dtype == torch.int64
        assert torch.equal(item["input_ids"], other["input_ids"])
        expected = value_of(rows[:, overlap:], "int64")
        expected[other["labels"].numpy() == -100] = -100  # padding
        np.testing.assert_array_equal(item["labels"].numpy(), expected)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("column", ["loss_mask", "weights", "wide"])
def test_a_mask_leaves_the_labels_of_tokens_where_it_is_not_zero(data: Path, overlap: int, column: str) -> None:
    dataset = TokenDataset(data, loss_mask=column, overlap=overlap, epochs=1, **RUN)
    plain = TokenDataset(data, overlap=overlap, epochs=1, **RUN)
    masked = 0
    for item, other in zip(dataset, plain, strict=True):
        labels = other["labels"].numpy()
        where = value_of(labels, COLUMNS[column]) == 0
        masked += where.sum()
        np.testing.assert_array_equal(item["labels"].numpy(), np.where(where, -100, labels))
        assert sorted(item) == ["input_ids", "labels"]
    assert masked > (column == "loss_mask")


def test_a_row_by_hand(tmp_path: Path) -> None:
    """Two documents, the first of whose tokens are a prompt; EOS between them, with a label of its own."""
    tokens = pa.array([[1, 2, 3, 4], [5, 6, 7]], pa.list_(pa.int32()))
    labels = pa.array([[-100, -100, 3, 4], [-100, 6, 7]], pa.list_(pa.int64()))
    mask = pa.array([[0, 0, 1, 1], [0, 1, 1]], pa.list_(pa.int8()))
    pq.write_table(pa.table({"input_ids": tokens, "labels": labels, "loss_mask": mask}), tmp_path / "a.parquet")
    run: dict[str, Any] = {"seq_len": 8, "lanes": 1, "shuffle": False, "overlap": 1, "eos_id": 0, "column": "input_ids"}
    item = next(iter(TokenDataset(tmp_path, labels="labels", aligned={"labels": 0}, **run)))
    assert item["input_ids"].tolist() == [[1, 2, 3, 4, 0, 5, 6, 7]]
    assert item["labels"].tolist() == [[-100, 3, 4, 0, -100, 6, 7, 0]]
    item = next(iter(TokenDataset(tmp_path, loss_mask="loss_mask", aligned={"loss_mask": 0}, **run)))
    assert item["labels"].tolist() == [[-100, 3, 4, -100, -100, 6, 7, -100]]
    item = next(iter(TokenDataset(tmp_path, labels="labels", aligned={"labels": 0}, mask_first_labels=True, **run)))
    assert item["labels"].tolist() == [[-100, 3, 4, 0, -100, 6, 7, 0]]


def test_other_columns_are_tensors_of_their_names(data: Path) -> None:
    names = ["loss_mask", "weights", "wide", "position_ids"]
    dataset = TokenDataset(data, labels="labels", aligned=names, overlap=1, **RUN)
    item, rows = next(iter(dataset)), next(rows_of(data, overlap=1))
    assert sorted(item) == sorted([*names, "input_ids", "labels"])
    types = {"loss_mask": torch.bool, "weights": torch.float32, "wide": torch.int64, "position_ids": torch.int32}
    for name in names:
        assert item[name].dtype == types[name]
        np.testing.assert_array_equal(item[name].numpy(), value_of(rows, COLUMNS[name]))


def test_rows_as_they_are_bring_columns_along(data: Path) -> None:
    item = next(iter(TokenDataset(data, tokens=True, aligned=["labels"], overlap=1, **RUN)))
    assert sorted(item) == ["labels", "tokens"]
    np.testing.assert_array_equal(item["labels"].numpy(), value_of(item["tokens"].numpy(), "int64"))


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_and_resumed_loaders_bring_the_same(data: Path, workers: int) -> None:
    options = {**RUN, "labels": "labels", "aligned": ["weights"], "epochs": 1, "tail": "drop", "overlap": 1}
    loader = StatefulDataLoader(TokenDataset(data, **options), batch_size=None, num_workers=workers)
    iterator = iter(loader)
    head = [next(iterator) for _ in range(2 * workers)]
    state = loader.state_dict()
    resumed = StatefulDataLoader(TokenDataset(data, **options), batch_size=None, num_workers=workers)
    resumed.load_state_dict(state)
    items = [*head, *resumed]
    for item, rows in zip(zip(*[iter(items)] * workers, strict=True), rows_of(data, overlap=1, epochs=1), strict=False):
        for name, expected in (("labels", value_of(rows[:, 1:], "int64")), ("weights", value_of(rows, "float32"))):
            np.testing.assert_array_equal(torch.cat([each[name] for each in item]).numpy(), expected)


def test_trainers_get_labels_of_columns_of_a_mixture(data: Path, tmp_path: Path) -> None:
    write_aligned(tmp_path / "web", [[[20] * 30]], {}, first=100_000)
    sources = {"sft": data, "web": Component(tmp_path / "web", fill={"labels": "tokens"})}
    run = {**RUN, "weights": {"sft": 0.5, "web": 0.5}, "cache_dir": tmp_path, "overlap": 1}
    batches = TokenBatches(sources, steps=20, labels="labels", with_sources=True, **run)
    with ParquetLoader(sources, aligned=["labels"], **run) as loader:
        for item, batch in zip(batches, itertools.islice(loader, 20), strict=True):
            rows = batch.tokens[:, 1:]
            is_web = item["sources"].numpy()[:, None] == 1
            np.testing.assert_array_equal(item["labels"].numpy(), np.where(is_web, rows, value_of(rows, "int64")))


@pytest.mark.parametrize(
    ("options", "problem", "cure"),
    [
        ({"aligned": ["labels"]}, "would come under the name of the labels", {"labels": "labels"}),
        ({"aligned": ["labels"]}, "or labels=False to have it as it is", {"labels": False}),
        ({"labels": "labels", "tokens": True}, "which tokens=True leaves out", {"labels": True, "aligned": ["labels"]}),
        ({"loss_mask": "loss_mask", "labels": False}, "needs labels", {"labels": True}),
        (
            {"aligned": ["position_ids"], "boundaries": ["position_ids"]},
            "'position_ids' would come under a name that something else has; leave it out",
            {"aligned": []},
        ),
        ({"labels": "labels", "eos_id": 9}, "such as aligned={'labels': -100}", {"aligned": {"labels": -100}}),
        ({"labels": "weights"}, "is a column of float32; labels are integers", {"labels": "labels"}),
        ({"labels": "nothing"}, "has no column 'nothing'", {"labels": "labels"}),
    ],
)
def test_what_cannot_be_is_refused_and_the_cure_works(
    data: Path, options: dict[str, Any], problem: str, cure: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught, TokenDataset(data, **RUN, **options) as dataset:
        next(iter(dataset))
    assert problem in str(caught.value)
    with TokenDataset(data, **RUN, **{**options, **cure}) as dataset:
        next(iter(dataset))


def test_labels_that_the_tensors_type_does_not_hold_are_refused(tmp_path: Path) -> None:
    wide = pa.table({"input_ids": [[1, 2, 3]], "labels": [[1, 2, 2**40]]})
    pq.write_table(wide, tmp_path / "a.parquet")
    run = {**RUN, "lanes": 1, "seq_len": 3, "labels": "labels"}
    with pytest.raises(ConfigError, match=f"holds {2**40}, which int32 does not"):
        next(iter(TokenDataset(tmp_path, dtype="int32", **run)))
    assert int(next(iter(DataLoader(TokenDataset(tmp_path, **run), batch_size=None)))["labels"].max()) == 2**40


def test_sources_with_fills_serve_runs_that_have_no_such_column(data: Path, tmp_path: Path) -> None:
    write_aligned(tmp_path / "web", [[[20, 20]]], {}, first=1000)
    sources = {"sft": data, "web": Component(tmp_path / "web", fill={"labels": "tokens"})}
    for labels in ("labels", True, False):
        with TokenDataset(sources, weights={"sft": 0.5, "web": 0.5}, labels=labels, **RUN) as dataset:
            assert ("labels" in next(iter(dataset))) == bool(labels)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"labels": ["labels"]}, "labels must be True, False or the name of a column"),
        ({"labels": None}, "labels must be True, False or the name of a column"),
        ({"loss_mask": True}, "loss_mask must be None or the name of a column"),
        ({"fill": {"labels": 0}}, r"Component\(..., fill=...\)"),
    ],
)
def test_what_names_no_column_is_refused_with_what_may_be_given(data: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TokenDataset(data, **given, **RUN)
