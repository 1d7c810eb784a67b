"""The sets that loaders are compared on, and the two ways in which conversions read them.

generate ──► part-00000.parquet ...  (pyarrow's defaults: list<int32>, dictionary, snappy)
                  │
                  ├── documents     (tokens, lengths) of one row group after the other
                  └── packed_rows   the same tokens end to end, cut to (n, seq_len)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Tokens = npt.NDArray[np.int32]

_FILES = 8
_SPREAD = 1.0  # standard deviation of the logarithm of a document's length; FineWeb-Edu's is about that


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSpec:
    """A seeded set.

    Attributes:
        tokens: about how many.
        groups: row groups.
        mean_length: tokens of a document, on average; lengths are log-normal.
        vocab: token ids are below it. 0 makes every token of the set unlike every other: their ids are 0, 1, 2, ...
    """

    tokens: int
    groups: int = 64
    mean_length: float = 1000
    vocab: int = 50_257


def generate(folder: Path, spec: SetSpec) -> None:
    """Write a set of `_FILES` files (fewer if there are fewer row groups).

    Ids follow Zipf's law with exponent 1: ``vocab ** u`` for uniform u, so that half of all tokens are of the 224 most
    frequent ids of 50,257. Low ids are the frequent ones, as they are with byte-pair encodings.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    total = 0
    for number, groups in enumerate(np.array_split(np.arange(spec.groups), min(_FILES, spec.groups))):
        with pq.ParquetWriter(folder / f"part-{number:05}.parquet", schema) as writer:
            for _ in groups:
                count = max(1, round(spec.tokens / spec.groups / spec.mean_length))
                lengths = rng.lognormal(np.log(spec.mean_length) - _SPREAD**2 / 2, _SPREAD, count)
                offsets = np.concatenate(([0], np.maximum(1, lengths).astype(np.int64).cumsum()))
                size = int(offsets[-1])
                if spec.vocab:
                    ids = (spec.vocab ** rng.random(size) - 1).astype(np.int32)
                else:
                    ids = np.arange(total, total + size, dtype=np.int32)
                array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids))
                writer.write_table(pa.table({"tokens": array}, schema=schema), row_group_size=count)
                total += size


def documents(files: Sequence[Path], column: str) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
    """(tokens end to end, shape ``(lengths.sum(),)``; lengths of the documents) of each row group, in storage order."""
    for path in files:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            for chunk in file.read_row_group(group, columns=[column]).column(0).chunks:
                lengths = chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
                yield chunk.flatten().to_numpy(zero_copy_only=False), lengths


def packed_rows(files: Sequence[Path], column: str, seq_len: int) -> Iterator[Tokens]:
    """Rows of ``seq_len`` tokens, shape ``(n, seq_len)`` with any n; the last tokens fill no row and are dropped."""
    rest = np.empty(0, np.int32)
    for tokens, _ in documents(files, column):
        rest = np.concatenate((rest, tokens.astype(np.int32, copy=False)))
        whole = len(rest) // seq_len
        yield rest[: whole * seq_len].reshape(whole, seq_len)
        rest = rest[whole * seq_len :]
