"""Small tokenized sets whose tokens are all unique, so that what is lost, doubled or moved shows at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Document = list[int]
RowGroup = list[Document]

SCHEMA = pa.schema([pa.field("tokens", pa.list_(pa.int32()))])


def unique_groups(files: Iterable[Iterable[Sequence[int]]]) -> list[list[RowGroup]]:
    """Row groups of documents of these lengths, file by file, with token ids 0, 1, 2, ... in storage order."""
    following = 0
    result = []
    for file in files:
        groups = []
        for lengths in file:
            group = []
            for length in lengths:
                group.append(list(range(following, following + length)))
                following += length
            groups.append(group)
        result.append(groups)
    return result


def write_set(folder: Path, files: Sequence[Sequence[RowGroup]], **options: object) -> Path:
    """Write `files` as part-000.parquet, ... with exactly these row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, groups in enumerate(files):
        with pq.ParquetWriter(folder / f"part-{number:03d}.parquet", SCHEMA, **options) as writer:
            for group in groups:
                writer.write_table(pa.table({"tokens": pa.array(group, pa.list_(pa.int32()))}, schema=SCHEMA))
    return folder


def token_count(files: Sequence[Sequence[RowGroup]]) -> int:
    """Tokens of a set."""
    return sum(len(document) for groups in files for group in groups for document in group)


def random_files(rng: np.random.Generator, *, files: int = 3, groups: int = 4, documents: int = 30, length: int = 40):
    """Document lengths of a random set: uneven files and row groups, empty documents, now and then an empty group."""
    return [
        [rng.integers(0, length, rng.integers(0, documents)).tolist() for _ in range(rng.integers(1, groups + 1))]
        for _ in range(files)
    ]


def damaged_ids(folder: Path) -> Path:
    """Two row groups, in the second of which an id of document 1 is another than its footer allows: 1000 for 5."""
    write_set(folder, [[[[1, 2, 3]], [[4], [9, 5], [8]]]], use_dictionary=False, compression="none")
    path = folder / "part-000.parquet"
    data = path.read_bytes()
    before, after = (np.array([4, 9, last, 8], "<i4").tobytes() for last in (5, 1000))
    assert data.count(before) == 1
    path.write_bytes(data.replace(before, after))
    return folder
