"""Sets whose tokens are all unique, with columns beside them whose values follow from the token: so that one comparison
shows whatever has been lost, doubled or moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import Batch

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
TYPES = {name: getattr(pa, name)() for name in (*_INTEGERS, "float16", "float32", "float64")} | {"bool": pa.bool_()}
Lengths = Sequence[Sequence[Sequence[int]]]


def value_of(tokens: Any, dtype: str) -> Any:
    """What a column of a type has beside tokens: another number for most, negative ones among them."""
    mixed = np.asarray(tokens).astype(np.int64) * 31
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return mixed % 3 == 0
    if kind.kind == "f":
        return ((mixed % 997) / 8 - 20).astype(kind)
    bounds = np.iinfo(kind)
    return (mixed % min(int(bounds.max), 5000) + max(int(bounds.min), -100)).astype(kind)


def write_aligned(
    folder: Path,
    files: Lengths,
    columns: Mapping[str, str] | Mapping[str, Callable[[Any], Any]],
    *,
    first: int = 0,
    options: Sequence[Mapping[str, Any]] = ({},),
) -> int:
    """Write files of row groups of documents of these lengths.

    Args:
        columns: beside the tokens: each name, and its type, or what gives its values.
        first: the first token, from which on they rise by one.
        options: of the writer, for one file after another.

    Returns:
        The token after the last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, groups in enumerate(files):
        writer = None
        for lengths in groups:
            ends = np.cumsum([0, *lengths])
            tokens = np.arange(first, first + int(ends[-1]))
            first += len(tokens)
            table = {"input_ids": lists(ends, pa.array(tokens.astype(np.int32)))}
            for name, how in columns.items():
                values = pa.array(value_of(tokens, how), TYPES[how]) if isinstance(how, str) else pa.array(how(tokens))
                table[name] = lists(ends, values)
            found = pa.table(table)
            if writer is None:
                path = folder / f"part-{number:03d}.parquet"
                writer = pq.ParquetWriter(path, found.schema, **options[number % len(options)])
            writer.write_table(found)
        if writer is not None:
            writer.close()
    return first


def lists(ends: Sequence[int], values: pa.Array) -> pa.Array:
    """A column of lists that end there."""
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


def check_values(batch: Batch, columns: Mapping[str, str], eos: Mapping[int, Mapping[str, Any]] | None = None) -> None:
    """Every value of a batch is the one of its token, or the one at EOS, and 0 in padding."""
    tokens = batch.tokens
    assert set(batch.aligned) == set(columns)
    for name, dtype in columns.items():
        found = batch.aligned[name]
        assert found.dtype == dtype
        assert found.shape == tokens.shape
        assert found.flags.c_contiguous
        assert found.flags.writeable
        expected = value_of(tokens, dtype)
        for token, values in (eos or {}).items():
            expected[tokens == token] = values[name]
        if batch.lengths is not None:
            expected[np.arange(tokens.shape[1]) >= batch.lengths[:, None]] = 0
        np.testing.assert_array_equal(found, expected)
