"""What a run needs of a set beyond sound bytes: aligned columns that are as long as its documents, rows that fit.

tokens of a row group ──► lengths ──┬──► are its rows those of the run?
aligned column ─► values ─► lengths ┴──► has each document as many values as tokens?
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..blocks import IntArray
from ..engine.rows import RowLayout
from ..errors import ConfigError, ParquetLoaderError
from ..formats.base import ColumnChunk, FileEntry
from ..formats.known import format_named
from ..index.index import DatasetIndex
from ..storage.base import FileInfo, Storage
from .check_state import Fault
from .readable import fault_of, read_entries

__all__ = ["Needs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run needs of a set.

    Attributes:
        aligned: columns that go with the tokens.
        rows: what its rows are, where they are packed already.
    """

    aligned: tuple[str, ...] = ()
    rows: RowLayout | None = None

    def check(self, index: DatasetIndex) -> None:
        """Refuse what no set of a format has.

        Raises:
            ConfigError: says what to leave out.
        """
        if self.aligned and index.format == "raw":
            raise ConfigError(f"raw ids have no columns beside them: leave out aligned={list(self.aligned)!r}")
        if index.column in self.aligned:
            raise ConfigError(
                f"the column {index.column!r} holds the tokens, and is not aligned with them: leave it out"
            )
        if self.rows is not None and index.is_stream:
            raise ConfigError("packing='rows' needs rows that are told apart, and this set is a stream of ids")

    def faults(self, storage: Storage, index: DatasetIndex, threads: int) -> list[Fault]:
        """All that a run would not find. Reads the aligned columns, and the tokens once more for their lengths."""
        if not self.aligned and self.rows is None:
            return []
        looker = _Looker(storage, index, self)
        with ThreadPoolExecutor(threads, thread_name_prefix="parquet-check") as pool:
            return [fault for found in pool.map(looker.look, range(len(index.files))) for fault in found]


class _Looker:
    """Looks at files, of which several may be looked at at once."""

    def __init__(self, storage: Storage, index: DatasetIndex, needs: Needs) -> None:
        self._storage, self._index, self._needs = storage, index, needs
        self._format = format_named(index.format)
        self._reader = self._format.reader(storage, index.files, None) if needs.aligned else None

    def look(self, number: int) -> list[Fault]:
        """What is wrong with one file of the index."""
        return list(self._faults(number))

    def _faults(self, number: int) -> Iterator[Fault]:
        index, rows, file = self._index, self._needs.rows, self._index.files[number]
        columns: dict[str, dict[int, ColumnChunk]] = {}
        if self._reader is not None:
            (entry,) = read_entries(self._reader, [file], 1, column=index.column, aligned=self._needs.aligned)
            if isinstance(entry, ParquetLoaderError):
                yield fault_of(entry, "aligned", file.path)
                return
            columns = {name: _chunks(file, entry, name) for name in self._needs.aligned if name in entry.columns}
            for name in self._needs.aligned:
                if name not in columns:
                    is_there = any(leaf.name == name for leaf in entry.leaves)
                    what = f"its column {name!r} is no list of numbers" if is_there else f"there is no column {name!r}"
                    yield Fault(kind="aligned", path=file.path, row_group=None, problem=what)
        for chunk in index.chunks(np.flatnonzero(index.file == number)):
            try:
                tokens = self._lengths(file, chunk)
            except ParquetLoaderError:
                continue  # which is told of already
            wrong = None if rows is None else rows.wrong_length(tokens)
            if rows is not None and wrong is not None:
                problem = rows.problem(wrong, int(tokens[wrong]))
                yield Fault(kind="rows", path=file.path, row_group=chunk.row_group, problem=problem)
            for name, chunks in columns.items():
                unlike = self._compared(file, chunks[chunk.row_group], tokens)
                if unlike is not None:
                    text = f"column {name!r}: {unlike}"
                    yield Fault(kind="aligned", path=file.path, row_group=chunk.row_group, problem=text)

    def _compared(self, file: FileInfo, chunk: ColumnChunk, tokens: IntArray) -> str | None:
        """What is wrong with a row group's values of an aligned column."""
        try:
            values = self._lengths(file, chunk, decode=True)
        except ParquetLoaderError as error:
            return fault_of(error, "aligned", file.path).problem
        if len(tokens) != len(values) or np.array_equal(tokens, values):
            return None
        row, others = int((tokens != values).argmax()), int((tokens != values).sum()) - 1
        more = f"; {others:,} more rows of the row group are like that" if others else ""
        return f"row {row:,} has {values[row]:,} values, and {tokens[row]:,} tokens{more}"

    def _lengths(self, file: FileInfo, chunk: ColumnChunk, *, decode: bool = False) -> IntArray:
        """How long the documents of a row group are in a column, of which every value is decoded if asked for."""
        if not chunk.tokens:
            return np.zeros(chunk.rows, np.int64)
        by_path = {each.path: each for each in self._index.files}
        raw = self._storage.read(file, chunk.start, chunk.length)
        beside = [self._storage.read(by_path[path], start, size) for path, start, size in self._format.beside(chunk)]
        if decode:
            for _ in self._format.open(raw, chunk, beside).parts():
                pass
        return self._format.document_lengths([raw], [chunk], None, [beside])[0]


def _chunks(file: FileInfo, entry: FileEntry, name: str) -> dict[int, ColumnChunk]:
    """A column's chunks, by the numbers of their row groups."""
    layout, numbers = entry.columns[name]
    found = [ColumnChunk.of(file.path, layout, each) for each in numbers.T.tolist()]
    return {chunk.row_group: chunk for chunk in found}
