"""Footers to an immutable `DatasetIndex`: which row groups there are, where their tokens lie, how many they hold.

No data is read. A column chunk's footer entry tells the slots of the column (``num_values``) and how many of them are
null; an empty or a null list takes one slot that counts as null:

    [[1, 2, 3], [], None, [4], [7]]      7 slots, 2 nulls:  5 tokens, 5 documents

Only where a writer left the statistics out is a chunk decoded to be counted. Each file costs one read of its tail
(two where the footer is long). The result is cached on disk; with a warm cache a dataset costs its listing, and only
files whose size or version changed are read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..container import DamagedContainerError, OtherVersionError, open_container, seal_container, write_atomically
from ..errors import ConfigError, DataError, PathNotFoundError, StorageError
from ..formats.base import CODECS, ColumnChunk, ColumnLayout, IntArray
from ..formats.parquet.decode import decode_chunk
from ..formats.parquet.footer import check_footer
from ..formats.parquet.thrift import ThriftError
from ..storage.base import FileInfo, Storage
from ..storage.opening import Source, open_storage
from ..storage.retry import RETRY_SECONDS

__all__ = ["DatasetIndex", "build_index", "default_cache_dir", "index_storage"]

_KIND = "index"
_VERSION = 1
_TAIL_BYTES = 64 << 10
_CODEC_NAMES = sorted(CODECS)
_MAX_ID = 2**63 - 1  # statistics of larger ids are cut to it: no such id is ever allowed
_SIGNATURE_BYTES = 28  # nonce and tag, after a footer that is plain while columns are encrypted
_TOLD_FILES = 10  # as many files without the column are enough to stop reading footers and say so
_SMALL_TOKENS = 1 << 15
_LARGE_BYTES = 1 << 29
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class DatasetIndex:
    """Every row group of a dataset that holds rows, in storage order: files by path, row groups in file order.

    A struct of arrays, none of which can be written to: entry ``g`` of each array of shape ``(row groups,)`` is row
    group ``g``. A row group's number here is not its number in its file.

    Attributes:
        files: the files, sorted by path.
        layouts: the different ways in which the files store the column.
        column: the token column's name.
        file_layout: shape ``(files,)``: each file's place in `layouts`.
        file: which of `files` a row group is in.
        row_group: its number in that file.
        rows: documents.
        slots: leaf slots of the column.
        tokens: tokens, without any EOS.
        max_id: the largest token id, or -1 where the footer does not tell.
        min_id: the smallest token id, or 0 where the footer does not tell.
        start: the column chunk's first byte in the file.
        length: the column chunk's bytes.
        dictionary_offset: the dictionary page's place, from `start`; -1 where there is none.
        data_offset: the first data page's place, from `start`.
        codec: the compression, a place in the sorted names of `CODECS`.
    """

    files: tuple[FileInfo, ...]
    layouts: tuple[ColumnLayout, ...]
    column: str
    file_layout: IntArray
    file: IntArray
    row_group: IntArray
    rows: IntArray
    slots: IntArray
    tokens: IntArray
    max_id: IntArray
    min_id: IntArray
    start: IntArray
    length: IntArray
    dictionary_offset: IntArray
    data_offset: IntArray
    codec: IntArray

    def __post_init__(self) -> None:
        for name in ("file_layout", *_ARRAYS):
            getattr(self, name).setflags(write=False)

    def __reduce__(self) -> tuple[object, ...]:
        return DatasetIndex.from_bytes, (self.to_bytes(),)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return (
            f"DatasetIndex({len(self.files):,} files, {len(self):,} row groups, {int(self.rows.sum()):,} documents, "
            f"{self.total_tokens:,} tokens in {self.column!r})"
        )

    @property
    def total_tokens(self) -> int:
        """Tokens of the dataset, without any EOS."""
        return int(self.tokens.sum())

    @cached_property
    def fingerprint(self) -> str:
        """What makes it this dataset: relative paths, and each row group's documents and tokens. 64 hex digits.

        Neither places nor times are in it, so that a dataset may be copied or moved between two halves of a run.
        """
        digest = hashlib.sha256()
        counts = np.stack([self.rows, self.tokens], axis=1).astype("<i8")
        borders = np.searchsorted(self.file, np.arange(len(self.files) + 1))
        for number, file in enumerate(self.files):
            path = file.path.encode()
            groups = counts[borders[number] : borders[number + 1]]
            digest.update(f"{len(path)}:{len(groups)}:".encode() + path + groups.tobytes())
        return digest.hexdigest()

    def remarks(self) -> tuple[str, ...]:
        """What costs time or memory in the way the files were written, a sentence each; empty where all is well."""
        if not len(self):
            return ()
        found = []
        median = int(np.median(self.tokens))
        if median < _SMALL_TOKENS and len(self) > 1:
            found.append(
                f"half of the {len(self):,} row groups hold {median:,} tokens or fewer: each costs a decode of its "
                "own, and a window of them mixes little; write row groups of about a million tokens, or use a larger "
                "window"
            )
        sizes = self.tokens * np.array([layout.dtype.itemsize for layout in self.layouts])[self.file_layout[self.file]]
        largest = int(sizes.argmax())
        if sizes[largest] > _LARGE_BYTES:
            found.append(
                f"row group {int(self.row_group[largest])} of {self.files[int(self.file[largest])].path} holds "
                f"{int(self.tokens[largest]):,} tokens, {int(sizes[largest]):,} bytes once decoded: row groups are "
                "decoded whole; write smaller ones, of about a million tokens, to need less memory"
            )
        return tuple(found)

    def chunk(self, group: int) -> ColumnChunk:
        """What decoding needs to know of a row group."""
        file = int(self.file[group])
        return ColumnChunk(
            path=self.files[file].path,
            row_group=int(self.row_group[group]),
            layout=self.layouts[int(self.file_layout[file])],
            start=int(self.start[group]),
            length=int(self.length[group]),
            rows=int(self.rows[group]),
            slots=int(self.slots[group]),
            tokens=int(self.tokens[group]),
            codec=_CODEC_NAMES[int(self.codec[group])],
            dictionary_offset=int(self.dictionary_offset[group]),
            data_offset=int(self.data_offset[group]),
        )

    def itemsize(self, group: int) -> int:
        """Bytes that a token of a row group takes when decoded."""
        return self.layouts[int(self.file_layout[self.file[group]])].dtype.itemsize

    def to_bytes(self) -> bytes:
        """The index as checksummed msgpack."""
        return seal_container(_KIND, _VERSION, _pack(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> DatasetIndex:
        """The inverse of `to_bytes`.

        Raises:
            ConfigError: damaged bytes, or another version's.
        """
        try:
            return _unpack(open_container(data, _KIND, _VERSION))
        except (DamagedContainerError, OtherVersionError) as error:
            raise ConfigError(f"this is no index that can be used: {error}; build it again") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a local file, atomically.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            write_atomically(Path(path), self.to_bytes())
        except OSError as error:
            raise StorageError(f"cannot write the index {os.fspath(path)}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DatasetIndex:
        """Read an index that `save` wrote.

        Raises:
            PathNotFoundError: there is no such file.
            StorageError: it cannot be read.
            ConfigError: it is damaged, or another version's.
        """
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError as error:
            raise PathNotFoundError(f"there is no index {os.fspath(path)}; make one with build_index") from error
        except OSError as error:
            raise StorageError(f"cannot read the index {os.fspath(path)}: {error.strerror}") from error
        try:
            return cls.from_bytes(data)
        except ConfigError as error:
            raise ConfigError(f"{os.fspath(path)}: {error}") from error


_ARRAYS = tuple(
    field.name for field in fields(DatasetIndex) if field.name not in {"files", "layouts", "column", "file_layout"}
)


def _pack(index: DatasetIndex) -> dict[str, Any]:
    return {
        "files": [[file.path, file.size, file.version] for file in index.files],
        "layouts": [
            [x.column, x.physical_type, x.signed, x.max_definition_level, x.nullable_element] for x in index.layouts
        ],
        "column": index.column,
        "file_layout": index.file_layout.astype("<i8").tobytes(),
        "arrays": {name: getattr(index, name).astype("<i8").tobytes() for name in _ARRAYS},
    }


def _unpack(payload: dict[str, Any]) -> DatasetIndex:
    layouts = tuple(
        ColumnLayout(
            column=column,
            physical_type=physical_type,
            signed=signed,
            max_definition_level=level,
            nullable_element=nullable,
        )
        for column, physical_type, signed, level, nullable in payload["layouts"]
    )
    return DatasetIndex(
        files=tuple(FileInfo(path=path, size=size, version=version) for path, size, version in payload["files"]),
        layouts=layouts,
        column=payload["column"],
        file_layout=np.frombuffer(payload["file_layout"], "<i8"),
        **{name: np.frombuffer(payload["arrays"][name], "<i8") for name in _ARRAYS},
    )


# ── building ─────────────────────────────────────────────────────────────────────────────────────────────────────


def build_index(
    source: Source,
    *,
    column: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    threads: int = 16,
    retry_seconds: float = RETRY_SECONDS,
    progress: Progress | None = None,
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

    Raises:
        ConfigError: no list of integers, several, or not the one asked for; names the files that differ.
        DataError: a file that is no readable Parquet.
        StorageError: a path that cannot be listed or read.
    """
    storage = open_storage(source, storage_options, retry_seconds=retry_seconds)
    return index_storage(storage, column=column, cache_dir=cache_dir, threads=threads, progress=progress)


def index_storage(
    storage: Storage,
    *,
    column: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    threads: int = 16,
    progress: Progress | None = None,
) -> DatasetIndex:
    """`build_index` over a storage that is open already."""
    files = storage.list_files()
    cache = _Cache(cache_dir, storage.identity, column)
    known = dict(cache.read())
    # Where a filesystem tells no version, a replaced file of the same size would look like the old one.
    entries = [known.get(file) if file.version else None for file in files]
    missing = [number for number, entry in enumerate(entries) if entry is None]
    done = len(files) - len(missing)
    lacking: list[tuple[FileInfo, _FileEntry]] = []
    if progress is not None:
        progress(done, len(files))
    with ThreadPoolExecutor(max_workers=max(1, min(threads, len(missing))), thread_name_prefix="parquet-index") as pool:
        try:
            read = pool.map(lambda number: _read_entry(storage, files[number], column), missing)
            for number, entry in zip(missing, read, strict=True):
                entries[number] = entry
                done += 1
                if progress is not None:
                    progress(done, len(files))
                if not entry.columns:
                    lacking.append((files[number], entry))
                    if len(lacking) == _TOLD_FILES:
                        break
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an error, do not read the others for nothing
    if lacking:
        raise _no_column(lacking, done, column)
    whole = [entry for entry in entries if entry is not None]
    assert len(whole) == len(files)
    index = _assemble(files, whole, _choose_column(files, whole, column))
    if missing or len(known) != len(files):
        cache.write(files, whole)
    return index


@dataclass(frozen=True, slots=True)
class _FileEntry:
    """One file's footer, boiled down: for each column that may be meant its layout and its row groups' numbers.

    Attributes:
        columns: a name to (layout, array of shape ``(numbers, row groups)`` in the order of `_ENTRY_ARRAYS`); empty
            where the file has no column that may be meant.
        leaves: what columns there are, where `columns` is empty.
    """

    columns: dict[str, tuple[ColumnLayout, IntArray]]
    leaves: tuple[_Leaf, ...] = ()


_ENTRY_ARRAYS = tuple(name for name in _ARRAYS if name != "file")


def _read_entry(storage: Storage, file: FileInfo, column: str | None) -> _FileEntry:
    metadata = _read_footer(storage, file)
    try:
        leaves = tuple(_leaves(metadata.schema.to_arrow_schema()))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"its schema cannot be read ({error})", path=file.path) from error
    if len(leaves) != metadata.num_columns:
        raise DataError(
            f"its schema shows {len(leaves)} columns where the file has {metadata.num_columns}; its kind is unknown",
            path=file.path,
        )
    wanted = [leaf for leaf in leaves if leaf.is_tokens and (column is None or leaf.name == column)]
    if not wanted:
        return _FileEntry({}, leaves)
    names = Counter(leaf.name for leaf in leaves)
    columns = {}
    for leaf in wanted:
        if names[leaf.name] > 1:
            raise DataError(
                "two columns have this name; rename one, or say which other column holds the tokens",
                path=file.path,
                column=leaf.name,
            )
        layout = _layout(metadata, leaf)
        numbers = [_row_group_numbers(metadata, group, leaf, file) for group in range(metadata.num_row_groups)]
        numbers = [entry for entry in numbers if entry[_ENTRY_ARRAYS.index("rows")]]
        array = np.array(numbers, np.int64).reshape(len(numbers), len(_ENTRY_ARRAYS)).T
        _check_numbers(file, leaf, array)
        _count_where_unknown(storage, file, layout, array)
        columns[leaf.name] = (layout, array)
    return _FileEntry(columns)


def _read_footer(storage: Storage, file: FileInfo) -> pq.FileMetaData:
    """The footer, with one read of the file's tail, or two where it is longer than `_TAIL_BYTES`."""
    if file.size < 12:
        raise DataError(
            f"is {file.size} bytes long, too short for a Parquet file; was its writing or copying cut off?",
            path=file.path,
        )
    tail = storage.read(file, max(0, file.size - _TAIL_BYTES), min(file.size, _TAIL_BYTES))
    if tail[-4:] == b"PARE":
        raise DataError("has an encrypted footer; encrypted files cannot be read, decrypt it first", path=file.path)
    if tail[-4:] != b"PAR1":
        raise _not_parquet(storage, file)
    length = int.from_bytes(tail[-8:-4], "little")
    if length > file.size - 12:
        raise DataError(f"claims a footer of {length:,} bytes in {file.size:,}; it is damaged", path=file.path)
    if length + 8 > len(tail):
        tail = storage.read(file, file.size - length - 8, length + 8)
    framed = b"PAR1" + tail[-(length + 8) :]
    try:
        check_footer(memoryview(framed)[4:-8])
        # The limits only guard against allocating more than the bytes can describe, which is what the length says.
        metadata = pq.ParquetFile(
            pa.BufferReader(framed), thrift_string_size_limit=len(framed), thrift_container_size_limit=len(framed)
        ).metadata
    except (pa.ArrowException, OSError, UnicodeDecodeError, ThriftError) as error:
        if "encrypted" in str(error).lower():
            raise DataError("is encrypted; decrypt it first", path=file.path) from error
        raise DataError(f"its footer cannot be read, it is damaged ({error})", path=file.path) from error
    if length - metadata.serialized_size == _SIGNATURE_BYTES:  # pyarrow ends the process when asked for its columns
        raise DataError("has encrypted columns and a signed footer; decrypt it first", path=file.path)
    return metadata


def _not_parquet(storage: Storage, file: FileInfo) -> DataError:
    head = storage.read(file, 0, min(file.size, 64))
    start = head.lstrip().lower()
    if head[:4] == b"PAR1":
        cause = "it starts as a Parquet file but has no end: its writing or copying was cut off"
    elif head[:6] == b"ARROW1":
        cause = "it is an Arrow IPC (Feather) file: write it as Parquet"
    elif start.startswith((b"<!doctype", b"<html", b"<?xml")):
        cause = "it is a web page, an error message perhaps: download the file again"
    elif start.startswith(b"version https://git-lfs"):
        cause = "it is a Git LFS pointer: fetch the real file with git lfs pull"
    else:
        cause = f"it starts with {head[:8]!r}"
    return DataError(f"is no Parquet file ({file.size:,} bytes): {cause}", path=file.path)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf column of a Parquet schema: its number, its name without list levels, its Arrow type."""

    number: int
    name: str
    type: pa.DataType
    is_tokens: bool
    nullable_element: bool
    signed: bool


def _leaves(schema: pa.Schema) -> Iterator[_Leaf]:
    """The leaf columns in the order of the Parquet file, which is depth first."""
    number = 0

    def walk(name: str, kind: pa.DataType, lists: int, nullable: bool) -> Iterator[_Leaf]:
        nonlocal number
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_struct(kind):
            for field in kind:
                yield from walk(
                    f"{name}.{field.name}" if not lists else name, field.type, lists + 9 * bool(lists), True
                )
        elif pa.types.is_map(kind):
            yield from walk(name, kind.key_type, 9, True)
            yield from walk(name, kind.item_type, 9, True)
        elif _is_list(kind):
            yield from walk(name, kind.value_type, lists + 1, kind.value_field.nullable)
        else:
            integer = pa.types.is_integer(kind)
            signed = integer and pa.types.is_signed_integer(kind)
            yield _Leaf(number, name, kind, integer and lists == 1, nullable, signed)
            number += 1

    for field in schema:
        yield from walk(field.name, field.type, 0, field.nullable)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _no_column(lacking: Sequence[tuple[FileInfo, _FileEntry]], done: int, column: str | None) -> ConfigError:
    """What is wrong with the first file without the column, which others are like it, and whether all are."""
    (file, entry), more = lacking[0], [file.path for file, _ in lacking[1:]]
    candidates = [leaf.name for leaf in entry.leaves if leaf.is_tokens]
    others = ", ".join(f"{leaf.name} ({leaf.type})" for leaf in entry.leaves[:20]) or "none"
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
        problem += f". The other {done - len(lacking):,} files looked at have it: name only those as the source"
    elif not candidates:
        problem += ". If it holds text, tokenize it with tools/pretokenize.py"
    return ConfigError(f"{file.path} {problem}")


def _layout(metadata: pq.FileMetaData, leaf: _Leaf) -> ColumnLayout:
    column = metadata.schema.column(leaf.number)
    assert column.max_repetition_level == 1
    return ColumnLayout(
        column=leaf.name,
        physical_type=column.physical_type,
        signed=leaf.signed,
        max_definition_level=column.max_definition_level,
        nullable_element=leaf.nullable_element,
    )


def _row_group_numbers(metadata: pq.FileMetaData, group: int, leaf: _Leaf, file: FileInfo) -> list[int]:
    """One row group's entry, in the order of `_ENTRY_ARRAYS`; tokens is -1 where the statistics do not tell."""
    row_group = metadata.row_group(group)
    chunk = row_group.column(leaf.number)
    start = chunk.data_page_offset
    dictionary = -1
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
        start = chunk.dictionary_page_offset
        dictionary = 0
    if chunk.physical_type != metadata.schema.column(leaf.number).physical_type:  # pyarrow ends the process on these
        raise DataError(
            f"its footer calls the chunk {chunk.physical_type}, and its schema does not; the file is damaged",
            path=file.path,
            row_group=group,
            column=leaf.name,
        )
    statistics = chunk.statistics
    nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
    bounds = statistics is not None and statistics.has_min_max
    codec = "LZ4_HADOOP" if chunk.compression == "UNKNOWN" else chunk.compression  # pyarrow has no name for it
    if codec not in CODECS:
        raise DataError(
            f"compression {codec!r} is not supported; write the file anew with zstd, snappy, lz4 or none",
            path=file.path,
            row_group=group,
            column=leaf.name,
        )
    entry = {
        "row_group": group,
        "rows": row_group.num_rows,
        "slots": chunk.num_values,
        "tokens": -1 if nulls is None else chunk.num_values - nulls,
        "max_id": min(int(statistics.max), _MAX_ID) if bounds else -1,
        "min_id": min(int(statistics.min), _MAX_ID) if bounds else 0,
        "start": start,
        "length": chunk.total_compressed_size,
        "dictionary_offset": dictionary,
        "data_offset": chunk.data_page_offset - start,
        "codec": _CODEC_NAMES.index(codec),
    }
    return [entry[name] for name in _ENTRY_ARRAYS]


def _check_numbers(file: FileInfo, leaf: _Leaf, array: IntArray) -> None:
    """Refuse numbers that no whole file has, before they are taken for the place of data or the size of a buffer."""
    of = dict(zip(_ENTRY_ARRAYS, array, strict=True))
    wrong = (of["rows"] < 0) | (of["slots"] < of["rows"]) | (of["tokens"] < -1) | (of["tokens"] > of["slots"])
    wrong |= (of["start"] < 4) | (of["start"] > file.size) | (of["length"] > file.size - of["start"])
    wrong |= (of["length"] <= of["data_offset"]) | (of["data_offset"] < 0)
    if wrong.any():
        place = int(wrong.argmax())
        numbers = ", ".join(
            f"{name} {int(of[name][place]):,}" for name in ("rows", "slots", "tokens", "start", "length")
        )
        raise DataError(
            f"its footer holds impossible numbers ({numbers}); the file is damaged",
            path=file.path,
            row_group=int(of["row_group"][place]),
            column=leaf.name,
        )


def _count_where_unknown(storage: Storage, file: FileInfo, layout: ColumnLayout, array: IntArray) -> None:
    """Decode the chunks whose footer entry does not tell how many tokens they hold."""
    counts, largest, smallest = (array[_ENTRY_ARRAYS.index(name)] for name in ("tokens", "max_id", "min_id"))
    for place in np.flatnonzero(counts < 0):
        alone = _assemble([file], [_FileEntry({layout.column: (layout, array[:, [place]])})], layout.column)
        chunk = alone.chunk(0)
        tokens = decode_chunk(storage.read(file, chunk.start, chunk.length), chunk).tokens
        counts[place] = len(tokens)
        if len(tokens):
            largest[place], smallest[place] = (min(int(bound), _MAX_ID) for bound in (tokens.max(), tokens.min()))


def _choose_column(files: Sequence[FileInfo], entries: Sequence[_FileEntry], column: str | None) -> str:
    """The one column that every file has; says which files differ where there is none."""
    common = set.intersection(*(set(entry.columns) for entry in entries))
    if column is not None:
        assert column in common
        return column
    if len(common) == 1:
        return common.pop()
    if common:
        raise ConfigError(
            f"several columns are lists of integers: {sorted(common)}; say which holds the tokens, "
            f"for instance column={min(common)!r}"
        )
    names = sorted({name for entry in entries for name in entry.columns})
    examples = []
    for name in names:
        without = [file.path for file, entry in zip(files, entries, strict=True) if name not in entry.columns]
        examples.append(f"{name!r} is not in {len(without):,} files ({', '.join(without[:3])})")
    raise ConfigError(f"no list of integers is in every file: {'; '.join(examples)}; load them apart")


def _assemble(files: Sequence[FileInfo], entries: Sequence[_FileEntry], column: str) -> DatasetIndex:
    layouts: dict[ColumnLayout, int] = {}
    chosen = [entry.columns[column] for entry in entries]
    file_layout = np.array([layouts.setdefault(layout, len(layouts)) for layout, _ in chosen], np.int64)
    numbers = np.concatenate([array for _, array in chosen], axis=1)
    file = np.repeat(np.arange(len(files), dtype=np.int64), [array.shape[1] for _, array in chosen])
    return DatasetIndex(
        files=tuple(files),
        layouts=tuple(layouts),
        column=column,
        file_layout=file_layout,
        file=file,
        **{name: np.ascontiguousarray(numbers[place]) for place, name in enumerate(_ENTRY_ARRAYS)},
    )


# ── the cache ────────────────────────────────────────────────────────────────────────────────────────────────────


def default_cache_dir() -> Path:
    """The user's cache folder for this library, by the conventions of the operating system."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "parquet_loader"


class _Cache:
    """The footers of one source on disk: a container of one index for each column that may be meant.

    Nothing depends on it: what cannot be read is built again and what cannot be written is not, both with a warning.
    """

    KIND = "index-cache"

    def __init__(self, folder: str | os.PathLike[str] | None, identity: str, column: str | None) -> None:
        key = hashlib.sha256(os.fsencode(f"{identity}\0{'' if column is None else '=' + column}")).hexdigest()[:32]
        self._path: Path | None = None
        with contextlib.suppress(RuntimeError):  # a user without a home folder
            self._path = (default_cache_dir() if folder is None else Path(folder).expanduser()) / f"{key}.index"

    def read(self) -> Iterator[tuple[FileInfo, _FileEntry]]:
        if self._path is None:
            return iter(())
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return iter(())
        except OSError as error:
            warnings.warn(f"the index cache {self._path} cannot be read ({error}); going on without it", stacklevel=4)
            return iter(())
        try:
            return iter(self._entries(open_container(data, self.KIND, _VERSION)))
        except OtherVersionError:
            return iter(())  # another release's: replaced in silence
        except (DamagedContainerError, KeyError, TypeError, ValueError, AttributeError) as error:
            warnings.warn(f"the index cache {self._path} is damaged ({error}); building it again", stacklevel=4)
            return iter(())

    def _entries(self, payload: list[dict[str, Any]]) -> list[tuple[FileInfo, _FileEntry]]:
        found: dict[FileInfo, _FileEntry] = {}
        for packed in payload:
            index = _unpack(packed)
            numbers = np.stack([getattr(index, name) for name in _ENTRY_ARRAYS])
            borders = np.searchsorted(index.file, np.arange(len(index.files) + 1))
            for place, file in enumerate(index.files):
                entry = found.setdefault(file, _FileEntry({}))
                layout = index.layouts[int(index.file_layout[place])]
                entry.columns[index.column] = (layout, numbers[:, borders[place] : borders[place + 1]])
        return list(found.items())

    def write(self, files: Sequence[FileInfo], entries: Sequence[_FileEntry]) -> None:
        names = sorted({name for entry in entries for name in entry.columns})
        payload: list[dict[str, Any]] = []
        for name in names:
            having = [(file, entry) for file, entry in zip(files, entries, strict=True) if name in entry.columns]
            payload.append(_pack(_assemble([file for file, _ in having], [entry for _, entry in having], name)))
        place = "the home folder, since this user has none" if self._path is None else self._path.parent
        try:
            if self._path is None:
                raise FileNotFoundError("no home folder")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, seal_container(self.KIND, _VERSION, payload))
        except OSError as error:
            warnings.warn(
                f"the index cache cannot be written to {place} ({error}); every start will read all footers again: "
                "give a cache_dir that can be written",
                stacklevel=4,
            )
