"""A source that no coming stage of a mixture draws from may be gone."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ConfigError, ParquetLoader, StorageError

STAGES = [(0, {"a": 1, "b": 1}), (64 * 2 * 4, {"a": 1})]  # b goes after one block
RUN: dict[str, Any] = {"seq_len": 2, "lanes": 4, "weights": STAGES}


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    for place, name in enumerate("ab"):
        documents = [[1000 * place + 10 * k + i for i in range(7)] for k in range(90)]
        pq.write_table(pa.table({"tokens": documents}), tmp_path / f"{name}.parquet", row_group_size=30)
    return {name: str(tmp_path / f"{name}.parquet") for name in "ab"}


@pytest.mark.parametrize("named", [True, False], ids=["its name is left", "its name is left out too"])
def test_a_run_that_is_past_a_source_goes_on_without_its_files(sources: dict[str, str], named: bool) -> None:
    with ParquetLoader(sources, **RUN) as loader:
        batches = list(islice(loader, 70))
    Path(sources["b"]).unlink()
    if not named:
        del sources["b"]
    with ParquetLoader(sources, **RUN) as loader:
        loader.load_state_dict(batches[65].state)
        assert (next(iter(loader)).tokens == batches[66].tokens).all()
        assert loader.stats()["sources"]["b"]["tokens"] == 64 * 2 * 4 // 2


def test_a_run_that_comes_to_the_source_is_told_that_it_is_gone(sources: dict[str, str]) -> None:
    Path(sources["b"]).unlink()
    with ParquetLoader(sources, **RUN) as loader, pytest.raises(StorageError, match="source 'b'"):
        next(iter(loader))
    del sources["b"]
    with ParquetLoader(sources, **RUN) as loader, pytest.raises(ConfigError, match="'b', which is not among"):
        next(iter(loader))
