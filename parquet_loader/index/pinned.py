"""The files of an index that was made earlier, or elsewhere, as they are here.

A saved index names the version that each file had when it was indexed. A copy of the dataset has other ones: another
modification time on each machine's disk, another ETag in another bucket. So a file of the right size and another
version is looked at when it is first read, and taken where its footer says what the index says:

    read 1   index's version ──► read                              pinned to the index's version
             another, same size ──► its footer, compared ──► read  pinned to the version that is here
             another size, or another footer                       an error that says how to refresh the index
    read 2+  the version it is pinned to, or an error

A place over a network is the same for everybody: where the index was made from it, its versions are kept to.
"""

from __future__ import annotations

import shlex
import threading
from dataclasses import replace

import numpy as np

from ..errors import ConfigError, DataError, FileChangedError, PathNotFoundError
from ..formats.base import ENTRY_ARRAYS, FileEntry, Format
from ..storage.base import FileInfo, Storage
from .index import DatasetIndex

__all__ = ["PinnedStorage", "StoppableStorage"]

# Decoding counts the tokens, and an index has them counted where a footer does not tell, or tells wrongly.
_COMPARED = [place for place, name in enumerate(ENTRY_ARRAYS) if name != "tokens"]
_BOUNDS = [ENTRY_ARRAYS.index("max_id"), ENTRY_ARRAYS.index("min_id")]


class _View:
    """A storage as it is."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def root(self) -> str:
        return self._storage.root

    @property
    def identity(self) -> str:
        return self._storage.identity

    @property
    def retries(self) -> int:
        return self._storage.retries

    @property
    def is_remote(self) -> bool:
        return self._storage.is_remote

    def list_files(self) -> list[FileInfo]:
        return self._storage.list_files()

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        return self._storage.read(file, start, length, stop)


class StoppableStorage(_View):
    """One whose every read ends when an event is set."""

    def __init__(self, storage: Storage, stop: threading.Event | None) -> None:
        super().__init__(storage)
        self._stop = stop

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        """See `Storage.read`."""
        return self._storage.read(file, start, length, stop or self._stop)


class _Lenient(StoppableStorage):
    """One in which a file may have another version: what lies beside a file and tells of it is another one, too, in a
    copy of the set.
    """

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        stop = stop or self._stop
        try:
            return self._storage.read(file, start, length, stop)
        except FileChangedError as error:
            if error.now is None or error.now[0] != file.size:
                raise
            here = FileInfo(path=file.path, size=file.size, version=error.now[1])
        return self._storage.read(here, start, length, stop)


class PinnedStorage(_View):
    """One that reads the files of an index, see above.

    Args:
        storage: where the files lie.
        index: of them, or of what they are a copy of.
        file_format: reads their footers.
        saved: where the index was saved; None where that is not known.
    """

    def __init__(self, storage: Storage, index: DatasetIndex, file_format: Format, saved: str | None = None) -> None:
        super().__init__(storage)
        self._index = index
        self._format = file_format
        self._saved = saved
        self._is_its_place = storage.is_remote and index.root in (None, storage.root)
        self._pinned: dict[str, FileInfo] = {}  # setting an entry is atomic, and of two threads' the first one stays

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        """See `Storage.read`; ``file`` is one of the index."""
        pinned = self._pinned.get(file.path)
        if pinned is not None:
            return self._storage.read(pinned, start, length, stop)
        try:
            data, here = self._storage.read(file, start, length, stop), file
        except FileChangedError as error:
            here = self._here(file, error, stop)
            data = self._storage.read(here, start, length, stop)
        if self._pinned.setdefault(file.path, here) != here:  # it changed while another thread looked at it
            return self.read(file, start, length, stop)
        return data

    def _here(self, file: FileInfo, error: FileChangedError, stop: threading.Event | None) -> FileInfo:
        """A file as it is here, if it is what the index says."""
        advice = f"to use the files as they are, refresh the saved index: {self._command()}"
        if error.now is None or error.now[0] != file.size:
            raise FileChangedError(f"{error}; {advice}") from error
        if self._is_its_place:
            raise FileChangedError(f"{error}; {advice}") from error
        here = FileInfo(path=file.path, size=file.size, version=error.now[1])
        if not self._is_same(here, stop):
            told = "its footer is another one" if self._index.format == "parquet" else "it holds something else"
            raise FileChangedError(f"{error}; {told} than the index has; {advice}") from error
        return here

    def _is_same(self, here: FileInfo, stop: threading.Event | None) -> bool:
        index = self._index
        storage = _Lenient(self._storage, stop)
        files = [here if file.path == here.path else self._pinned.get(file.path, file) for file in index.files]
        # The index says which files there are: what tells of them may tell of others, too.
        files = [replace(file, is_beside=True) for file in files]
        try:
            reader = self._format.reader(storage, files, self._raw_dtype())
            entry = reader.read(here, index.column, None, [each.column for each in index.aligned])
        except (ConfigError, DataError, FileChangedError, PathNotFoundError):
            return False
        return all(_says_the_same(each, here, entry) for each in index.planes)

    def _raw_dtype(self) -> np.dtype[np.integer] | None:
        """What ids were stored as, where the index is of such files as do not tell."""
        layouts = self._index.layouts
        return layouts[0].dtype if self._index.format == "raw" and layouts else None

    def _command(self) -> str:
        source = shlex.join(self._storage.identity.split("\n"))
        output = "FILE" if self._saved is None else shlex.quote(self._saved)
        column = shlex.quote(self._index.column)
        if self._index.aligned:
            column += f" --aligned {shlex.quote(','.join(each.column for each in self._index.aligned))}"
        return f"parquet-loader index {source} --column {column} --output {output}"


def _says_the_same(index: DatasetIndex, file: FileInfo, entry: FileEntry) -> bool:
    """Whether a file is what an index says of it, by its entry."""
    if index.column not in entry.columns:
        return False
    layout, numbers = entry.columns[index.column]
    number = index.file_number(file.path)
    assert number is not None
    indexed = index.numbers[:, index.groups_of(number)]
    if layout != index.layouts[int(index.file_layout[number])] or indexed.shape != numbers.shape:
        return False
    # Counting finds bounds, too, where the footer has none.
    untold = numbers[_BOUNDS[0]] < numbers[_BOUNDS[1]]
    numbers[np.ix_(_BOUNDS, untold)] = indexed[np.ix_(_BOUNDS, untold)]
    compared = [*_COMPARED, *range(len(ENTRY_ARRAYS), len(numbers))]
    return np.array_equal(indexed[compared], numbers[compared])
