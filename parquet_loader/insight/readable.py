"""The index of what can be read of a set, and what is wrong with the other files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ..errors import DataError, FileChangedError, ParquetLoaderError, StorageError
from ..formats.base import Counting, CountingBudget, FileEntry
from ..formats.parquet import PARQUET
from ..index.build import choose_column
from ..index.index import DatasetIndex, assemble
from ..storage.base import FileInfo, Storage
from .check_state import Fault

__all__ = ["fault_of", "readable_index"]

_COUNTING_BYTES = 1 << 30


def readable_index(storage: Storage, column: str | None, threads: int) -> tuple[DatasetIndex, list[Fault]]:
    """The index of what can be read, from the footers as they are now, and what cannot.

    Raises:
        ConfigError: several columns may be meant, or none is in all files that have a list of integers.
        StorageError: no file can be read.
    """
    files = storage.list_files()
    counting = Counting(CountingBudget(_COUNTING_BYTES), False)

    def entry(file: FileInfo) -> FileEntry | ParquetLoaderError:
        try:
            return PARQUET.read_entry(storage, file, column, counting)
        except (DataError, StorageError) as error:
            return error

    with ThreadPoolExecutor(threads, thread_name_prefix="parquet-check") as pool:
        read = list(pool.map(entry, files))
    faults, good = [], []
    for file, each in zip(files, read, strict=True):
        if isinstance(each, ParquetLoaderError):
            faults.append(fault_of(each, "unreadable", file.path))
        elif not each.columns or (column is not None and column not in each.columns):
            names = ", ".join(f"{leaf.name} ({leaf.type})" for leaf in each.leaves) or "none"
            problem = f"has no list of integers{'' if column is None else f' {column!r}'}; its columns are {names}"
            faults.append(Fault(kind="unreadable", path=file.path, row_group=None, problem=problem))
        else:
            good.append((file, each))
    if not good:
        told = "; ".join(f"{fault.path}: {fault.problem}" for fault in faults[:3])
        raise StorageError(f"no file of {storage.root} can be read: {told}")
    kept, entries = [file for file, _ in good], [each for _, each in good]
    root = storage.root if storage.is_remote else ""
    return assemble(kept, entries, choose_column(kept, entries, column), root), faults


def fault_of(error: ParquetLoaderError, kind: str, path: str, row_group: int | None = None) -> Fault:
    """An error of a file or row group as a fault."""
    if isinstance(error, FileChangedError):
        return Fault(kind="changed", path=path, row_group=None, problem=str(error))
    if isinstance(error, DataError):
        row_group = error.row_group if error.row_group is not None else row_group
        return Fault(kind=kind, path=path, row_group=row_group, problem=error.problem)
    return Fault(kind="unreadable", path=path, row_group=row_group, problem=str(error))
