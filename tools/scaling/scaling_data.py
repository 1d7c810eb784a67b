"""Seeded sets for `scaling.py`: log-normal documents, ids by Zipf's law over 50,257, as in FineWeb-Edu."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.index import DatasetIndex, build_index
from parquet_loader.index.index import ARRAYS
from parquet_loader.pretokenize.write.writer import LAYOUT, token_schema
from parquet_loader.storage import FileInfo

VOCABULARY = 50_257
COLUMN = "tokens.list.element"
ENCODINGS: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "plain": {"use_dictionary": False},
    "BYTE_STREAM_SPLIT": {"use_dictionary": False, "column_encoding": {COLUMN: "BYTE_STREAM_SPLIT"}},
    "DELTA_BINARY_PACKED": {"use_dictionary": False, "column_encoding": {COLUMN: "DELTA_BINARY_PACKED"}},
}
CODECS = ("none", "snappy", "lz4", "zstd")
PRETOKENIZE = "as tools/pretokenize.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSpec:
    """A set of one file.

    Attributes:
        tokens: about how many.
        group_tokens: about how many a row group.
        mean_length: tokens of a document, on average.
        encoding: a key of `ENCODINGS`, or `PRETOKENIZE`.
        codec: compression.
    """

    tokens: int
    group_tokens: int = 1_000_000
    mean_length: float = 1000
    encoding: str = "dictionary"
    codec: str = "snappy"


def generate(folder: Path, spec: SetSpec) -> int:
    """Write a set; returns its tokens.

    Ids are ``vocabulary ** u`` for uniform u: half of all tokens are of the 224 most frequent ids, which are the
    lowest, as with byte-pair encodings.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    if spec.encoding == PRETOKENIZE:
        schema, arguments = token_schema(np.uint16), LAYOUT.writer_options(np.uint16)
    else:
        schema = pa.schema([("tokens", pa.list_(pa.int32()))])
        arguments = ENCODINGS[spec.encoding] | {"compression": spec.codec}
    kind = schema.field("tokens").type
    total = 0
    with pq.ParquetWriter(folder / "part.parquet", schema, **arguments) as writer:
        for _ in range(max(1, round(spec.tokens / spec.group_tokens))):
            count = max(1, round(spec.group_tokens / spec.mean_length))
            lengths = np.maximum(1, rng.lognormal(np.log(spec.mean_length) - 0.5, 1.0, count)).astype(np.int64)
            if count < 100:  # a few long documents would miss the size by far
                lengths = np.maximum(1, lengths * spec.group_tokens // lengths.sum())
            offsets = np.concatenate(([0], lengths.cumsum()))
            ids = (VOCABULARY ** rng.random(int(offsets[-1])) - 1).astype(kind.value_type.to_pandas_dtype())
            lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids), type=kind)
            writer.write_table(pa.Table.from_arrays([lists], schema=schema), row_group_size=count)
            total += len(ids)
    return total


_LINKS = 1000


def link_farm(folder: Path) -> None:
    """Make ``s000/s001/part.parquet`` and a million other paths lead to the one file of a set."""
    for number in range(_LINKS):
        (folder / f"s{number:03}").symlink_to(".")


def large_index(folder: Path, row_groups: int, files: int) -> DatasetIndex:
    """An index of many row groups, each of them the first one of the set in ``folder``, see `link_farm`."""
    small = build_index([folder / "part.parquet"], cache_dir=folder)
    info = small.files[0]
    paths = ["part.parquet"] if files == 1 else list(_paths(files))
    each = row_groups // files
    arrays: dict[str, Any] = {name: np.repeat(getattr(small, name)[:1], each * files) for name in ARRAYS}
    arrays["places"] = np.empty((0, each * files), np.int64)
    arrays["file"] = np.repeat(np.arange(files), each)
    arrays["row_group"] = np.tile(np.arange(each), files)
    infos = tuple(FileInfo(path=path, size=info.size, version=info.version) for path in paths)
    return replace(small, files=infos, file_layout=np.zeros(files, np.int64), **arrays)


def _paths(files: int) -> Iterator[str]:
    for number in range(files):
        yield f"s{number // _LINKS:03}/s{number % _LINKS:03}/part.parquet"


def many_files(folder: Path, files: int, set_folder: Path) -> None:
    """Copies of a set's file, as hard links."""
    folder.mkdir(parents=True)
    for number in range(files):
        os.link(set_folder / "part.parquet", folder / f"part-{number:06}.parquet")
