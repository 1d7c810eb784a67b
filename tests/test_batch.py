"""A batch's tokens in other libraries: without a copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import Batch, ParquetLoader


def batch_of(folder: Path, **options: object) -> Batch:
    source = write_set(folder, unique_groups([[[30] * 20] * 4]))
    with ParquetLoader(source, seq_len=50, lanes=4, **options) as loader:
        return next(iter(loader))


def address(array: pa.FixedSizeListArray) -> int:
    return array.values.buffers()[1].address + array.values.offset * array.type.value_type.bit_width // 8


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16", "uint32"])
@pytest.mark.parametrize("convert", [Batch.to_arrow, pa.array])
def test_arrow_shares_the_memory_of_a_batch(tmp_path: Path, dtype: str, convert) -> None:
    batch = batch_of(tmp_path, dtype=dtype, overlap=1)
    array = convert(batch)
    assert array.type == pa.list_(pa.from_numpy_dtype(dtype), 51)
    assert array.null_count == array.values.null_count == 0
    assert address(array) == batch.tokens.ctypes.data
    assert array.to_pylist() == batch.tokens.tolist()


def test_arrow_keeps_the_memory_of_a_batch_that_nobody_else_holds(tmp_path: Path) -> None:
    batch = batch_of(tmp_path)
    expected, array = batch.tokens.tolist(), pa.array(batch)
    del batch
    np.full(200, 7, np.int32)  # where it would be, had it been let go
    assert array.to_pylist() == expected


def test_another_type_may_be_asked_for(tmp_path: Path) -> None:
    batch = batch_of(tmp_path)
    array = pa.array(batch, pa.list_(pa.int64(), 50))
    assert array.type == pa.list_(pa.int64(), 50)
    assert array.to_pylist() == batch.tokens.tolist()


def test_polars_takes_a_batch(tmp_path: Path) -> None:
    batch = batch_of(tmp_path)
    series = pl.Series("tokens", batch)
    assert series.dtype == pl.Array(pl.Int32, 50)
    assert series.to_list() == batch.tokens.tolist()


def test_dlpack_shares_the_memory_of_a_batch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    batch = batch_of(tmp_path)
    assert np.from_dlpack(batch.tokens).ctypes.data == batch.tokens.ctypes.data
    assert torch.from_dlpack(batch.tokens).data_ptr() == batch.tokens.ctypes.data
