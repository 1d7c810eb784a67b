"""A `DatasetIndex` from a listing and footers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from ..advice import tokenization
from ..errors import ConfigError, DataError
from ..formats.base import ENTRY_ARRAYS, Counting, CountingBudget, FileEntry
from ..formats.known import format_named, format_of
from ..storage.base import FileInfo, Storage
from ..storage.opening import Source, open_storage
from ..storage.retry import RETRY_SECONDS
from .cache import IndexCache
from .index import DatasetIndex, assemble, with_aligned

__all__ = [
    "NoAlignedColumnError",
    "NoTokenYetError",
    "build_index",
    "choose_column",
    "index_storage",
    "integer_dtype",
    "rank_of_name",
    "raw_dtype_of",
]

_TOLD_FILES = 10  # as many files without the column are enough to stop reading footers and say so
Progress = Callable[[int, int], None]


_COUNTING_BYTES = 1 << 30


class NoAlignedColumnError(ConfigError):
    """Files have no such aligned column."""


class NoTokenYetError(ConfigError):
    """No file holds a token, and nothing else tells which column is meant; files that are still to come may."""


def build_index(
    source: Source,
    *,
    column: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    threads: int = 16,
    retry_seconds: float = RETRY_SECONDS,
    progress: Progress | None = None,
    recount: bool = False,
    budget_bytes: int = _COUNTING_BYTES,
    format: str | None = None,
    raw_dtype: object = None,
    aligned: Collection[str] = (),
) -> DatasetIndex:
    """Read the footers of a dataset, or of as much of it as the cache does not know.

    Args:
        source: a folder, a file, a glob or a URL, or a list of them.
        column: the token column; None where only one column can be meant. A struct's field is ``parent.child``.
        storage_options: for the fsspec filesystem of a URL.
        cache_dir: where the cache lies; None for the user's cache folder.
        threads: footers fetched at once.
        retry_seconds: how long a request over the network is tried again once it has failed.
        progress: called with (files done, files in all), from this thread.
        recount: count the tokens of all files from their data, whatever their footers and the cache say: for files
            whose writer counted nulls wrongly. Reads the whole column.
        budget_bytes: of memory for counting the tokens of files whose footers do not tell.
        format: ``"parquet"``, ``"arrow"`` or ``"raw"``; None for what the files' names tell.
        raw_dtype: NumPy's name of the type of ids in raw files that do not tell it themselves.
        aligned: names of the columns whose values go with the tokens, for the loaders that have them; see
            `ParquetLoader`.

    Raises:
        ConfigError: no list of integers, several, or not the one asked for; names the files that differ.
        DataError: a file that is not what its name says.
        StorageError: a path that cannot be listed or read.
    """
    if format is not None:
        format_named(format)
    storage = open_storage(source, storage_options, retry_seconds=retry_seconds, kind=format)
    return index_storage(
        storage,
        column=column,
        cache_dir=cache_dir,
        threads=threads,
        progress=progress,
        recount=recount,
        budget_bytes=budget_bytes,
        format=format,
        raw_dtype=raw_dtype_of(raw_dtype),
        aligned=tuple(aligned),
    )


def raw_dtype_of(value: object) -> np.dtype[np.integer] | None:
    """The type of raw ids that somebody asks for.

    Raises:
        ConfigError: no such type.
    """
    return None if value is None else integer_dtype("raw_dtype", value, "'uint16' or 'uint32'")


def integer_dtype(name: str, value: object, examples: str) -> np.dtype[np.integer]:
    """The integer type that an argument of this name asks for.

    Raises:
        ConfigError: no such type, or not of this machine's byte order.
    """
    try:
        found = np.dtype(value)  # type: ignore[call-overload]
    except TypeError:
        found = None
    if found is None or not np.issubdtype(found, np.integer) or not found.isnative:
        raise ConfigError(f"{name} must be a NumPy integer type such as {examples}, not {value!r}")
    return found  # type: ignore[no-any-return]


def index_storage(
    storage: Storage,
    *,
    column: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    threads: int = 16,
    progress: Progress | None = None,
    recount: bool = False,
    budget_bytes: int = _COUNTING_BYTES,
    format: str | None = None,
    raw_dtype: np.dtype[np.integer] | None = None,
    aligned: Sequence[str] = (),
    listed: list[FileInfo] | None = None,
    growing: bool = False,
) -> DatasetIndex:
    """`build_index` over a storage that is open already, and of files that it has listed.

    Args:
        growing: whether they may still be written: then one that may go on is refused.
    """
    listed = storage.list_files() if listed is None else listed
    file_format = format_of(storage, listed, format, has_raw_dtype=raw_dtype is not None)
    if aligned and file_format.name == "raw":
        raise ConfigError(
            f"{storage.root} holds raw ids, and no columns beside them that could be aligned={list(aligned)!r}; "
            "aligned columns are for Parquet and Arrow files"
        )
    if column in aligned:
        raise ConfigError(f"the column {column!r} holds the tokens, and is not aligned with them: leave it out")
    reader = file_format.reader(storage, listed, raw_dtype)
    files = reader.files
    if not files:
        raise ConfigError(f"{storage.root} is an empty set: what lies there names no data file")
    cache = IndexCache(
        cache_dir, storage.identity, column, format=file_format.name, raw_dtype=raw_dtype, aligned=aligned
    )
    known = {} if recount else _that_may_be_used(dict(cache.read()), files)
    counting = Counting(CountingBudget(budget_bytes), recount)
    # Where a filesystem tells no version, a replaced file of the same size would look like the old one.
    entries = [
        known.get(file) if file.version and all(each in known for each in reader.together(file)) else None
        for file in files
    ]
    missing = [number for number, entry in enumerate(entries) if entry is None]
    done = len(files) - len(missing)
    lacking: list[tuple[FileInfo, FileEntry]] = []
    if progress is not None:
        progress(done, len(files))
    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(missing))), thread_name_prefix="parquet-index") as pool:
        try:
            read = pool.map(lambda number: reader.read(files[number], column, counting, aligned), missing)
            for number, entry in zip(missing, read, strict=True):
                entries[number] = entry
                done += 1
                if progress is not None:
                    progress(done, len(files))
                if not entry.columns.keys() - set(aligned):
                    lacking.append((files[number], entry))
                    if len(lacking) == _TOLD_FILES:
                        break
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an error, do not read the others for nothing
    if lacking:
        raise _no_column(lacking, done, column, storage, growing)
    whole = [entry for entry in entries if entry is not None]
    assert len(whole) == len(files)
    going_on = [file.path for file, entry in zip(files, whole, strict=True) if not entry.is_ended]
    if growing and going_on:
        raise DataError(
            "is a stream without the mark of its end: its writer has not closed it yet, or its writing or copying was "
            "cut off, and what came after it would change what was read. Close its writer, or write it anew",
            path=going_on[0],
        )
    _check_aligned(files, whole, aligned)
    untyped = [(file, entry) for file, entry in zip(files, whole, strict=True) if entry.leaves]
    common = _common_columns(whole) - set(aligned)
    if untyped and (len(untyped) == len(files) or not common):
        error = _no_column(untyped[:_TOLD_FILES], done, column, storage, growing)
        raise NoTokenYetError(str(error)) if common else error
    root = storage.root if storage.is_remote else ""
    tokens = choose_column(files, whole, column, aligned)
    index, *others = (assemble(files, whole, name, root, file_format.name) for name in (tokens, *aligned))
    index = with_aligned(index, others)
    if missing or len(known) != len(files):
        cache.write(files, whole)
    return index


def _that_may_be_used(known: dict[FileInfo, FileEntry], files: Sequence[FileInfo]) -> dict[FileInfo, FileEntry]:
    """What is known of files, or nothing where one is gone that has no row groups: it may have told of the others."""
    there = {file.path for file in files}
    gone = (entry for file, entry in known.items() if file.path not in there)
    return {} if any(not numbers.size for entry in gone for _, numbers in entry.columns.values()) else known


def _check_aligned(files: Sequence[FileInfo], entries: Sequence[FileEntry], aligned: Sequence[str]) -> None:
    """Refuse files without the aligned columns."""
    for name in aligned:
        without = [(file, entry) for file, entry in zip(files, entries, strict=True) if name not in entry.columns]
        if without:
            file, entry = without[0]
            is_there = any(leaf.name == name for leaf in entry.leaves)
            others = ", ".join(leaf.name for leaf in entry.leaves if leaf.is_values) or "none"
            more = f", as {len(without) - 1:,} more files" if len(without) > 1 else ""
            raise NoAlignedColumnError(
                f"{file.path} has {'a' if is_there else 'no'} column {name!r}{more}"
                f"{', which is no list of numbers' if is_there else ''}; its lists of numbers: {others}. aligned="
                f"{list(aligned)!r} asks for it: name another column, or, for a source of a mixture that has none, "
                f"say what goes there, Component(..., fill={{{name!r}: 0}}), or 'tokens' for the tokens themselves"
            )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _no_column(
    lacking: Sequence[tuple[FileInfo, FileEntry]], done: int, column: str | None, storage: Storage, growing: bool
) -> ConfigError:
    """What is wrong with the first file without the column, which others are like it, and whether all are."""
    (file, entry), more = lacking[0], [file.path for file, _ in lacking[1:]]
    candidates = [leaf.name for leaf in entry.leaves if leaf.is_tokens]
    others = ", ".join(f"{leaf.name} ({leaf.shown})" for leaf in entry.leaves[:20]) or "none"
    if column is None:
        problem = f"has no column that is a list of integers; its columns are {others}"
    elif any(leaf.name == column for leaf in entry.leaves):
        problem = f"has a column {column!r}, but that is no list of integers; lists of integers: {candidates}"
    elif candidates:
        problem = f"has no column {column!r}; lists of integers: {candidates}"
    else:
        problem = f"has no column {column!r} and no list of integers either; its columns are {others}"
    if more:
        problem += f". It is the same with {len(more)} more: {', '.join(more)}"
    if done > len(lacking):
        only = ", by a glob" if growing else " as the source"
        problem += f". The other {done - len(lacking):,} files looked at have it: name only those{only}"
    elif not candidates and (texts := [leaf.name for leaf in entry.leaves if _is_text(leaf.type)]):
        where = storage.root if done > 1 else f"{storage.root}/{file.path}"
        problem += f". If it holds text, {tokenization(where, 'text' if 'text' in texts else texts[0])}"
    return ConfigError(f"{file.path} {problem}")


# Names that tokens go by, first those that mean nothing else; and those that other lists of integers beside them have.
_TOKEN_NAMES = ("input_ids", "tokens", "token_ids", "ids")


_OTHER_NAMES = re.compile(
    r"mask|label|token_type|position|segment|length|offset|index|span|special|word_ids|doc_id|document_id",
    re.IGNORECASE,
)


def rank_of_name(name: str) -> tuple[int, str]:
    """Sorts first what is likely the name of the token column."""
    last = name.rsplit(".", 1)[-1].lower()
    if last in _TOKEN_NAMES:
        return _TOKEN_NAMES.index(last), name
    return len(_TOKEN_NAMES) + (1 if _OTHER_NAMES.search(last) else 0), name


def _kind_of_name(name: str) -> str:
    """What a list of integers of that name is: "tokens", "other" than tokens, or ""."""
    last = name.rsplit(".", 1)[-1].lower()
    return "tokens" if last in _TOKEN_NAMES else "other" if _OTHER_NAMES.search(last) else ""


def _common_columns(entries: Sequence[FileEntry]) -> set[str]:
    return set.intersection(*(set(entry.columns) for entry in entries))


def choose_column(
    files: Sequence[FileInfo], entries: Sequence[FileEntry], column: str | None, aligned: Sequence[str] = ()
) -> str:
    """The one column that every file has, or of several the one that by their names can be meant; says which files
    differ where there is none.
    """
    common = _common_columns(entries) - set(aligned)
    if column is not None:
        assert column in common
        return column
    place = ENTRY_ARRAYS.index("tokens")
    holding = {name for name in common if any(entry.columns[name][1][place].any() for entry in entries)}
    candidates = sorted(holding or common, key=rank_of_name)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        named = [_kind_of_name(name) for name in candidates]
        if named[0] == "tokens" and set(named[1:]) == {"other"}:
            return candidates[0]
        told = f"several columns are lists of integers: {candidates}; say which holds the tokens, "
        raise (ConfigError if holding else NoTokenYetError)(f"{told}for instance column={candidates[0]!r}")
    names = sorted({name for entry in entries for name in entry.columns} - set(aligned))
    examples = []
    for name in names:
        without = [file.path for file, entry in zip(files, entries, strict=True) if name not in entry.columns]
        examples.append(f"{name!r} is not in {len(without):,} files ({', '.join(without[:3])})")
    raise ConfigError(f"no list of integers is in every file: {'; '.join(examples)}; load them apart")
