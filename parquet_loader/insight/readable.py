"""The index of what can be read of a set, and what is wrong with the other files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..errors import DataError, FileChangedError, ParquetLoaderError, StorageError
from ..formats.base import Counting, CountingBudget, EntryReader, FileEntry
from ..formats.known import reader_of
from ..index.build import choose_column, rank_of_name
from ..index.index import DatasetIndex, assemble
from ..storage.base import FileInfo, Storage
from ..storage.local import LocalStorage
from .check_state import Fault

__all__ = ["FOOTERS_AT_ONCE", "fault_of", "read_entries", "readable_index"]

FOOTERS_AT_ONCE = 16
_COUNTING_BYTES = 1 << 30


def read_entries(
    reader: EntryReader,
    files: Sequence[FileInfo],
    threads: int,
    *,
    column: str | None = None,
    counts: bool = True,
    aligned: Sequence[str] = (),
) -> list[FileEntry | ParquetLoaderError]:
    """The entry of each file, or why it has none; see `EntryReader.read`.

    Args:
        reader, files, column, aligned: what is read.
        threads: footers read at once.
        counts: whether to count the tokens of files whose footers do not tell, which reads their data.
    """
    counting = Counting(CountingBudget(_COUNTING_BYTES), False) if counts else None

    def entry(file: FileInfo) -> FileEntry | ParquetLoaderError:
        try:
            return reader.read(file, column, counting, aligned)
        except (DataError, StorageError) as error:
            return error

    with ThreadPoolExecutor(threads, thread_name_prefix="parquet-footers") as pool:
        return list(pool.map(entry, files))


def readable_index(
    storage: Storage,
    column: str | None,
    threads: int,
    format: str | None = None,
    raw_dtype: np.dtype[np.integer] | None = None,
) -> tuple[DatasetIndex, list[Fault]]:
    """The index of what can be read, from the footers as they are now, and what cannot.

    Raises:
        ConfigError: several columns may be meant, or none is in all files that have a list of integers.
        StorageError: no file can be read.
    """
    listed, lost = storage.list_readable() if isinstance(storage, LocalStorage) else (storage.list_files(), {})
    file_format, reader = reader_of(storage, listed, format, raw_dtype)
    files = reader.files
    read = read_entries(reader, files, threads, column=column)
    faults = [fault_of(error, "unreadable", path) for path, error in lost.items()]
    column = column or _common_column([each for each in read if isinstance(each, FileEntry)])
    good = []
    for file, each in zip(files, read, strict=True):
        if isinstance(each, ParquetLoaderError):
            faults.append(fault_of(each, "unreadable", file.path))
        elif not each.columns or (column is not None and column not in each.columns):
            names = ", ".join(f"{leaf.name} ({leaf.shown})" for leaf in each.leaves) or "none"
            if each.columns:
                names = f"{', '.join(each.columns)}, lists of integers"
            problem = f"has no list of integers{'' if column is None else f' {column!r}'}; its columns are {names}"
            faults.append(Fault(kind="unreadable", path=file.path, row_group=None, problem=problem))
        else:
            good.append((file, each))
    if not good:
        told = "; ".join(f"{fault.path}: {fault.problem}" for fault in faults[:3])
        raise StorageError(f"no file of {storage.root} can be read: {told}")
    kept, entries = [file for file, _ in good], [each for _, each in good]
    root = storage.root if storage.is_remote else ""
    return assemble(kept, entries, choose_column(kept, entries, column), root, file_format.name), faults


def _common_column(entries: list[FileEntry]) -> str | None:
    """Where no list of integers is in all files that have any, the one that is in most, or has the name of tokens; None
    where several may be meant.
    """
    counts = Counter(name for each in entries for name in each.columns)
    having = sum(bool(each.columns) for each in entries)
    if not counts or max(counts.values()) == having:
        return None
    ranks = {name: (-count, rank_of_name(name)[0]) for name, count in counts.items()}
    best, *others = sorted(ranks, key=lambda name: ranks[name])
    return None if ranks[others[0]] == ranks[best] else best


def fault_of(error: ParquetLoaderError, kind: str, path: str, row_group: int | None = None) -> Fault:
    """An error of a file or row group as a fault."""
    if isinstance(error, FileChangedError):
        return Fault(kind="changed", path=path, row_group=None, problem=str(error))
    if isinstance(error, DataError):
        row_group = error.row_group if error.row_group is not None else row_group
        return Fault(kind=kind, path=path, row_group=row_group, problem=error.problem)
    return Fault(kind="unreadable", path=path, row_group=row_group, problem=str(error))
