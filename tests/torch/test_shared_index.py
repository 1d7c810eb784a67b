"""The index that one rank builds and all get. Real processes, gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import on_ranks
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoaderError, PathNotFoundError, build_index
from parquet_loader.index import index
from parquet_loader.torch import TokenDataset, shared_index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[3, 4], [5]], [[6] * 20]]))


def build(rank: int, _: Path, source: str) -> Any:
    if rank:  # only the first rank may look at the files

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a rank that is not the first has read the footers itself")

        index.index_storage = refuse
    try:
        found = shared_index(source, cache_dir=Path(source).parent / "cache")
    except ParquetLoaderError as error:
        return type(error).__name__, str(error)
    with TokenDataset(source, seq_len=4, lanes=6, index=found) as dataset:
        return found.fingerprint, sum(item["input_ids"].shape[0] for item in dataset)


def test_the_first_rank_builds_and_the_others_receive(folder: Path, tmp_path: Path) -> None:
    answers = on_ranks(tmp_path, 3, build, str(folder))
    assert {fingerprint for fingerprint, _ in answers} == {build_index(folder).fingerprint}
    assert len({rows for _, rows in answers}) == 1


def test_what_the_first_rank_meets_is_raised_on_all(tmp_path: Path) -> None:
    answers = on_ranks(tmp_path, 2, build, str(tmp_path / "absent"))
    assert len(set(answers)) == 1
    assert answers[0][0] == "PathNotFoundError"


def test_without_a_process_group_it_is_build_index(folder: Path) -> None:
    assert shared_index(folder).fingerprint == build_index(folder).fingerprint
    with pytest.raises(PathNotFoundError):
        shared_index(folder / "absent")
