"""Every error the library raises on purpose.

    ParquetLoaderError
    ├── ConfigError (ValueError)              an argument that cannot work: says the value, the bound, the cure
    ├── StorageError (OSError)                a path that cannot be listed or read
    │   ├── PathNotFoundError (FileNotFoundError)
    │   ├── FileChangedError                  not the file that was indexed
    │   └── GrowthTimeoutError                a set that is followed, and did not grow for too long
    ├── DataError                             readable, but not what it should be: names file, row group, column
    ├── CheckpointError (ValueError)
    │   ├── CheckpointDamagedError            the bytes are not a complete checkpoint
    │   └── CheckpointMismatchError           a valid checkpoint, of another run, step or version
    ├── SourceExhaustedError                  a mixture needs more of a source than max_epochs allows
    ├── WriterFailedError (RuntimeError)      the writer of a growing set ended before the set was complete: says why
    ├── HelperError (RuntimeError)            a decoding process could not be started, or was ended from outside
    ├── LoaderClosedError (RuntimeError)      use after close()
    └── LoaderInUseError (RuntimeError)       use by two threads at the same time

Errors of pyarrow, fsspec and the operating system are translated once, where they enter, and kept as ``__cause__``.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

__all__ = [
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "ConfigError",
    "DataError",
    "FileChangedError",
    "GrowthTimeoutError",
    "HelperError",
    "LoaderClosedError",
    "LoaderInUseError",
    "ParquetLoaderError",
    "PathNotFoundError",
    "PretokenizeWarning",
    "SourceExhaustedError",
    "StorageError",
    "WriterFailedError",
]


class ParquetLoaderError(Exception):
    """Root of the library's errors."""


class ConfigError(ParquetLoaderError, ValueError):
    """An argument that cannot work."""


class SourceExhaustedError(ParquetLoaderError):
    """A source of a mixture whose ``max_epochs`` are used up.

    Attributes:
        sources: the names of such sources.
    """

    sources: tuple[str, ...] = ()


class StorageError(ParquetLoaderError, OSError):
    """A path that cannot be listed or read."""


class PathNotFoundError(StorageError, FileNotFoundError):
    """A path at which there is nothing."""


class FileChangedError(StorageError):
    """A file whose size or version is no longer the one that was indexed.

    Attributes:
        now: its size and version; None where it is gone.
    """

    now: tuple[int | None, str] | None = None


class GrowthTimeoutError(StorageError):
    """A set that is followed, and neither grew for too long nor is complete."""


class DataError(ParquetLoaderError):
    """A file that can be read but does not hold what it should.

    Attributes:
        path: the file, relative to the dataset's root.
        row_group: the row group's number within the file, or None for the whole file.
        column: the column's name, or None where no one column is meant.
    """

    def __init__(self, problem: str, *, path: str, row_group: int | None = None, column: str | None = None) -> None:
        self.path = path
        self.row_group = row_group
        self.column = column
        self.problem = problem
        where = path
        if row_group is not None:
            where += f", row group {row_group}"
        if column is not None:
            where += f", column {column!r}"
        super().__init__(f"{where}: {problem}")

    def __reduce__(self) -> tuple[object, ...]:
        return _data_error, (self.problem, self.path, self.row_group, self.column)


def _data_error(problem: str, path: str, row_group: int | None, column: str | None) -> DataError:
    return DataError(problem, path=path, row_group=row_group, column=column)


class CheckpointError(ParquetLoaderError, ValueError):
    """A checkpoint that cannot be used."""


class CheckpointDamagedError(CheckpointError):
    """Bytes that are not a complete checkpoint."""


class CheckpointMismatchError(CheckpointError):
    """A valid checkpoint that belongs to another run, step, rank or version."""


def of_source(error: ParquetLoaderError, name: str) -> ParquetLoaderError:
    """An error that also names the source of a mixture that it is of."""
    told = f"source {name!r}: {error}"
    if isinstance(error, (ConfigError, DataError)):  # the texts of others are made of what they hold
        error = copy.copy(error)
    error.args = (told,)
    return error


def of_file_below(error: ParquetLoaderError, root: str, paths: Collection[str], more: str = "") -> ParquetLoaderError:
    """An error that begins with one of some paths, which are relative to a folder, with the whole path and what more is
    to be said, a sentence; others as they are.
    """
    told = str(error)
    if not isinstance(error, (ConfigError, DataError)) or not told.startswith(tuple(paths)):
        return error
    error = copy.copy(error)
    if more:
        told += f" {more}" if told.endswith(("?", ".")) else f". {more}"
    error.args = (f"{root.rstrip('/')}/{told}",)
    return error


class WriterFailedError(ParquetLoaderError, RuntimeError):
    """The writer of a growing set has ended, and the set is not complete."""


class HelperError(ParquetLoaderError, RuntimeError):
    """A decoding process (``processes=``) that could not be started, or was ended from outside."""


class LoaderClosedError(ParquetLoaderError, RuntimeError):
    """A loader that was used after ``close()``."""


class LoaderInUseError(ParquetLoaderError, RuntimeError):
    """A loader that two threads asked for a batch at the same time."""


class PretokenizeWarning(UserWarning):
    """Something that works, and may not be what was meant."""
