"""What the index of a set has to be for what is asked of it. All of it is told before a byte of data is read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from .engine.config import EngineConfig
from .engine.planes import holds_values
from .engine.rows import RowLayout
from .errors import ConfigError, DataError
from .formats.known import format_named
from .index.index import DatasetIndex
from .storage.base import Storage

__all__ = [
    "check_arrived",
    "check_filled",
    "check_ids",
    "check_not_empty",
    "check_raw_dtype",
    "check_rows",
    "with_aligned",
]

_FILES_OF_FILLS = 8  # that are looked at, for columns that a fill would hide


def check_ids(index: DatasetIndex, bound: int) -> None:
    """Refuse ids that the footers' statistics show to be out of range, before a byte of data is read."""
    wrong = np.flatnonzero((index.max_id >= bound) | (index.min_id < 0))
    if not len(wrong):
        return
    group = int(wrong[0])
    chunk = index.chunk(group)
    number = int(index.min_id[group]) if index.min_id[group] < 0 else int(index.max_id[group])
    others = f", and {len(wrong) - 1:,} more row groups have such" if len(wrong) > 1 else ""
    raise DataError(
        f"has token id {number} by its statistics, outside [0, {bound}){others}; check vocab_size, dtype and the "
        "tokenizer that wrote the files",
        path=chunk.path,
        row_group=chunk.row_group,
        column=index.column,
    )


def check_rows(index: DatasetIndex, rows: RowLayout) -> None:
    """Refuse row groups of which the footers show that some rows are too long, or too short without a pad_id."""
    room = index.rows * rows.width
    wrong = (index.tokens > room) if rows.pad_id is not None else (index.tokens != room)
    if not wrong.any():
        return
    chunk = index.chunk(int(wrong.argmax()))
    lengths = f"rows of {rows.width:,} (seq_len {rows.seq_len:,}{' and overlap 1' if rows.overlap else ''})"
    if chunk.tokens < chunk.rows * rows.width:
        cure = "give a pad_id to have shorter rows filled up"
    else:
        cure = "give the seq_len and overlap that the rows were packed for"
    others = f"; {int(wrong.sum()) - 1:,} more row groups are like that" if wrong.sum() > 1 else ""
    raise chunk.error(
        f"holds {chunk.tokens:,} ids in {chunk.rows:,} rows, and packing='rows' takes {lengths}: {cure}, or pack by "
        f"tokens{others}"
    )


def check_raw_dtype(index: DatasetIndex, raw_dtype: np.dtype[np.integer]) -> None:
    """Refuse a type of raw ids that the set has no use for, or another than it has."""
    if index.format != "raw":
        raise ConfigError(f"raw_dtype={raw_dtype.name!r} is for raw files, and these are {index.format}: leave it out")
    stored = {layout.dtype.name for layout in index.layouts}
    if stored - {raw_dtype.name}:
        raise ConfigError(
            f"raw_dtype={raw_dtype.name!r}, and the index is of ids stored as {', '.join(sorted(stored))}"
        )


def check_filled(index: DatasetIndex, storage: Storage, names: tuple[str, ...]) -> None:
    """Refuse what would go in the place of columns that are there, by some of the files: an index tells nothing of
    columns that nobody asked for, and to read all footers again would take too long.
    """
    reader = format_named(index.format).reader(storage, index.files, None)
    places = np.unique(np.linspace(0, len(index.files) - 1, _FILES_OF_FILLS).astype(int))
    files = [index.files[place] for place in places]
    with ThreadPoolExecutor(len(files), thread_name_prefix="parquet-fills") as pool:
        entries = list(pool.map(lambda file: reader.read(file, index.column, None, names), files))
    for file, entry in zip(files, entries, strict=True):
        for name in names:
            if name in entry.columns:
                raise ConfigError(
                    f"fill has {name!r}, and {file.path} has that column, whose values would be lost: leave it out of "
                    "fill, or write the files without it"
                )


def with_aligned(index: DatasetIndex, names: tuple[str, ...]) -> DatasetIndex:
    """An index that was given, with the aligned columns that are asked for and no others."""
    there = {each.column: each for each in index.aligned}
    missing = [name for name in names if name not in there]
    if missing:
        raise ConfigError(
            f"the index has no aligned column {missing[0]!r}: build it with build_index(source, "
            f"column={index.column!r}, aligned={list(names)!r})"
        )
    return index if tuple(there) == names else replace(index, aligned=tuple(there[name] for name in names))


def check_arrived(index: DatasetIndex, first: EngineConfig) -> None:
    """Refuse files that have come to a set and are not like those that it began with, as a loader would at its start.

    Raises:
        ConfigError, DataError: names what is not.
    """
    check_ids(index, first.bound)
    if first.rows is not None:
        check_rows(index, first.rows)
    for each, plane in zip(index.aligned, first.aligned, strict=True):
        for place, layout in enumerate(each.layouts):
            if holds_values(layout) and layout.value_dtype != plane.dtype:
                file = index.files[int((each.file_layout == place).argmax())].path
                raise ConfigError(
                    f"{file} has {layout.value_dtype} in the aligned column {plane.column!r}, and the files before it "
                    f"have {plane.dtype}: write it with the same type, or make it another source of a mixture"
                )


def check_not_empty(index: DatasetIndex, *, appends_eos: bool, shown: str) -> None:
    """Refuse a set without a token, EOS that are appended included; ``shown`` is its name."""
    if index.tokens.any() or (appends_eos and index.rows.any()):
        return
    documents = int(index.rows.sum())
    why = f"all of its {documents:,} documents are" if documents else f"its {len(index.files):,} files are"
    raise ConfigError(f"{shown} holds no token: {why} empty")
