"""Footers to an immutable `DatasetIndex`: which row groups there are, where their tokens lie, how many they hold.

No data is read. A column chunk's footer entry tells the slots of the column (``num_values``) and how many of them are
null; an empty or a null list takes one slot that counts as null:

    [[1, 2, 3], [], None, [4], [7]]      7 slots, 2 nulls:  5 tokens, 5 documents

Only where a writer left the statistics out, or is known to have counted wrongly, a chunk's levels are counted. Each
file costs one read of its tail (two where the footer is long). The result is cached on disk; with a warm cache a
dataset costs its listing, and only files whose size or version changed are read again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..blocks import IntArray
from ..container import DamagedContainerError, OtherVersionError, open_container, seal_container
from ..errors import ConfigError, PathNotFoundError, StorageError
from ..formats.base import ENTRY_ARRAYS, MAX_SLOTS, ColumnChunk, ColumnLayout, FileEntry, OpenChunk
from ..formats.known import format_named
from ..notebooks import html_table
from ..storage.atomic import write_atomically
from ..storage.base import FileInfo, Storage
from ..storage.kinds import KINDS

__all__ = ["ARRAYS", "INDEX_VERSION", "DatasetIndex", "assemble", "pack_index", "unpack_index", "with_aligned"]

_KIND = "index"
INDEX_VERSION = 1
ARRAYS = ("file", *ENTRY_ARRAYS)
_SHARED = ("file", "row_group", "rows", "tokens")  # what an aligned column has as the tokens have it
_SMALL_TOKENS = 1 << 15
_LARGE_BYTES = 1 << 29
_SPLIT = re.compile(r"(?:^|[-_./])(train|test|validation|valid|val|dev|eval)(?:[-_./]|\Z)", re.IGNORECASE)


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
        root: where the files lay over a network, which is the same place for everybody; "" where they did not, None
            where that is not known.
        format: the name of the files' format, see `formats.known`.
        places: shape ``(numbers, row groups)``: the format's own numbers, see `ColumnChunk.places`.
        aligned: of columns whose values go with the tokens, as many in each document: indexes of the same row groups.
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
    root: str | None = None
    format: str = "parquet"
    places: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int64))
    aligned: tuple[DatasetIndex, ...] = ()

    def __post_init__(self) -> None:
        if not self.places.size:
            object.__setattr__(self, "places", np.empty((0, len(self.file)), np.int64))
        for name in ("file_layout", "places", *ARRAYS):
            getattr(self, name).setflags(write=False)

    def __reduce__(self) -> tuple[object, ...]:
        return DatasetIndex.from_bytes, (self.to_bytes(),)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return (
            f"DatasetIndex({len(self.files):,} files, {len(self):,} row groups, "
            + ("" if self.documents is None else f"{self.documents:,} documents, ")
            + f"{self.total_tokens:,} tokens in {self.column!r})"
        )

    def _repr_html_(self) -> str:
        tokens, documents = self.total_tokens, self.documents
        held = int(self.length.sum())
        rows: list[tuple[str, object]] = [
            ("column", self.column),
            ("files", len(self.files)),
            ("row groups", len(self)),
            ("documents", "not known before they are read" if documents is None else documents),
            ("tokens", tokens),
        ]
        if tokens:
            median, largest = int(np.median(self.tokens)), int(self.tokens.max())
            if documents is not None:
                rows.append(("tokens of a document", f"{tokens / max(1, documents):,.1f} in the mean"))
            rows += [
                ("tokens of a row group", f"{median:,} in the median, {largest:,} at most"),
                ("bytes a token", f"{held / tokens:.2f}, compressed"),
            ]
        return html_table("DatasetIndex", rows, notes=self.remarks())

    @property
    def planes(self) -> tuple[DatasetIndex, ...]:
        """That of the tokens, and those of what goes with them."""
        return self, *self.aligned

    @property
    def is_stream(self) -> bool:
        """Whether `rows` estimates how many documents there are; see `ColumnLayout.is_stream`."""
        return any(layout.is_stream for layout in self.layouts)

    @property
    def documents(self) -> int | None:
        """How many documents there are; None of a stream, where only reading all of it tells."""
        return None if self.is_stream else int(self.rows.sum())

    @property
    def numbers(self) -> IntArray:
        """All numbers of the row groups, as `FileEntry` has them: shape ``(numbers, row groups)``."""
        return np.concatenate([np.stack([getattr(self, name) for name in ENTRY_ARRAYS]), self.places])

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
        """What is likely not meant, or costs time or memory in the way the files were written, a sentence each; empty
        where all is well.
        """
        if not len(self):
            return ()
        found = []
        splits = Counter(match[1].lower() for file in self.files if (match := _SPLIT.search(file.path)))
        if len(splits) > 1:
            counts = ", ".join(f"{count:,} of {name}" for name, count in sorted(splits.items()))
            found.append(
                f"the files are of several splits ({counts}) and are read as one set; name one split's as the source, "
                "for instance by a glob"
            )
        median = int(np.median(self.tokens))
        if median < _SMALL_TOKENS and len(self) > 1:
            found.append(
                f"half of the {len(self):,} row groups hold {median:,} tokens or fewer: what each costs beside its "
                "tokens is several times their decoding; write row groups of about a million tokens"
            )
        sizes = self.tokens * np.array([layout.dtype.itemsize for layout in self.layouts])[self.file_layout[self.file]]
        largest = int(sizes.argmax())
        if sizes[largest] > _LARGE_BYTES:
            found.append(
                f"row group {int(self.row_group[largest])} of {self.files[int(self.file[largest])].path} holds "
                f"{int(self.tokens[largest]):,} tokens in {int(self.length[largest]):,} bytes: whoever needs some of "
                "them reads and holds all these bytes, and one thread decodes them; write smaller row groups, of about "
                "a million tokens, to start faster and need less memory"
            )
        return tuple(found)

    def takes_eos(self, eos_id: int | None) -> bool:
        """Whether an id that ends documents is put in after each of them; in a stream it is there already."""
        return eos_id is not None and not self.is_stream

    def check_eos(self, eos_id: int | None) -> None:
        """Refuse an id that cannot end the documents of a stream.

        Raises:
            ConfigError: its ids are of a type that has no such id.
        """
        if self.is_stream and eos_id is not None:
            dtype = self.layouts[0].dtype
            if eos_id > np.iinfo(dtype).max:
                raise ConfigError(
                    f"eos_id={eos_id} ends no document of {self.files[0].path}, whose ids are {dtype}, at most "
                    f"{np.iinfo(dtype).max:,}: give the id that does"
                )

    def file_number(self, path: str) -> int | None:
        """The place of a file in `files`, by its path; None where it is not there."""
        return self._file_numbers.get(path)

    def file_of(self, path: str) -> FileInfo:
        """A file, by its path."""
        return self.files[self._file_numbers[path]]

    @cached_property
    def _file_numbers(self) -> dict[str, int]:
        return {file.path: number for number, file in enumerate(self.files)}

    def groups_of(self, file: int) -> slice:
        """The row groups of a file, by its place in `files`."""
        return slice(*np.searchsorted(self.file, [file, file + 1]).tolist())

    def group_number(self, file: int, row_group: int) -> int | None:
        """The number here of a row group of a file; None where it is not there, or holds no row."""
        own = self.groups_of(file)
        place = own.start + int(np.searchsorted(self.row_group[own], row_group))
        return place if place < own.stop and self.row_group[place] == row_group else None

    def chunk(self, group: int) -> ColumnChunk:
        """What decoding needs to know of a row group."""
        return self.chunks(np.array([group]))[0]

    def chunks(self, groups: IntArray) -> list[ColumnChunk]:
        """What decoding needs to know of row groups."""
        files = self.file[groups]
        arrays = [*(getattr(self, name)[groups] for name in ENTRY_ARRAYS), *self.places[:, groups]]
        numbers = zip(*(array.tolist() for array in arrays), strict=True)
        return [
            ColumnChunk.of(self.files[file].path, self.layouts[layout], row)
            for file, layout, row in zip(files.tolist(), self.file_layout[files].tolist(), numbers, strict=True)
        ]

    def beside(self, chunk: ColumnChunk) -> tuple[tuple[FileInfo, int, int], ...]:
        """The byte ranges that decoding a row group needs beside its chunk: (file, start, length) of each.

        Raises:
            DataError: there are none such, by an index from outside.
        """
        found = []
        for path, start, length in format_named(self.format).beside(chunk):
            number = self.file_number(path)
            if number is None or not 0 <= start <= start + length <= self.files[number].size:
                raise chunk.error(f"its index names {length:,} bytes from {start:,} on of {path}, which has none there")
            found.append((self.files[number], start, length))
        return tuple(found)

    def open(self, storage: Storage, chunk: ColumnChunk) -> tuple[bytes, OpenChunk]:
        """Read a row group, and look at it.

        Returns:
            The chunk's bytes, and what decodes them.

        Raises:
            StorageError: it cannot be read.
            DataError: it is not what the index says.
        """
        raw = storage.read(self.file_of(chunk.path), chunk.start, chunk.length)
        beside = [storage.read(*place) for place in self.beside(chunk)]
        return raw, format_named(self.format).open(raw, chunk, beside)

    def itemsizes(self, groups: IntArray) -> IntArray:
        """Bytes that a token of each of some row groups takes when decoded."""
        sizes = np.array([layout.dtype.itemsize for layout in self.layouts])
        return sizes[self.file_layout[self.file[groups]]]

    def to_bytes(self) -> bytes:
        """The index as checksummed msgpack."""
        return seal_container(_KIND, INDEX_VERSION, pack_index(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> DatasetIndex:
        """The inverse of `to_bytes`.

        Raises:
            ConfigError: damaged bytes, another version's, or numbers that no dataset has.
        """
        try:
            return unpack_index(open_container(data, _KIND, INDEX_VERSION))
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
            ConfigError: it is damaged, another version's, or holds numbers that no dataset has.
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


def pack_index(index: DatasetIndex) -> dict[str, Any]:
    """The index as plain values."""
    packed: dict[str, Any] = {
        "files": [[file.path, file.size, file.version] for file in index.files],
        "layouts": [
            [x.column, x.physical_type, x.signed, x.max_definition_level, x.nullable_element] for x in index.layouts
        ],
        "column": index.column,
        "root": index.root,
        "file_layout": index.file_layout.astype("<i8").tobytes(),
        "arrays": {name: getattr(index, name).astype("<i8").tobytes() for name in ARRAYS},
    }
    if index.format != "parquet":  # an index of Parquet is what it was before there were others
        packed["format"] = index.format
        packed["kinds"] = [layout.kind for layout in index.layouts]
        packed["places"] = [place.astype("<i8").tobytes() for place in index.places]
    if any(layout.values for layout in index.layouts):
        packed["values"] = [layout.values for layout in index.layouts]
    if index.aligned:
        packed["aligned"] = [pack_index(each) | {"files": []} for each in index.aligned]
    return packed


def unpack_index(payload: Any) -> DatasetIndex:
    """The inverse of `pack_index`. Nothing in the payload is trusted: a checksum does not tell who wrote it.

    Raises:
        DamagedContainerError: it is no index, or one that no dataset has; says what is wrong.
    """
    try:
        format_name = payload.get("format", "parquet")
        file = np.frombuffer(payload["arrays"]["file"], "<i8")
        places = [np.frombuffer(place, "<i8") for place in payload.get("places", [])]
        index = DatasetIndex(
            files=tuple(FileInfo(path=path, size=size, version=version) for path, size, version in payload["files"]),
            layouts=tuple(
                ColumnLayout(
                    column=column,
                    physical_type=physical_type,
                    signed=signed,
                    max_definition_level=level,
                    nullable_element=nullable,
                    kind=kind,
                    values=values,
                )
                for (column, physical_type, signed, level, nullable), kind, values in zip(
                    payload["layouts"],
                    payload.get("kinds") or [""] * len(payload["layouts"]),
                    payload.get("values") or [""] * len(payload["layouts"]),
                    strict=True,
                )
            ),
            column=payload["column"],
            root=payload.get("root"),  # indexes that were saved before there was one have none
            file_layout=np.frombuffer(payload["file_layout"], "<i8"),
            format=format_name,
            places=np.stack(places) if places else np.empty((0, len(file)), np.int64),
            aligned=tuple(
                unpack_index({**each, "files": payload["files"], "aligned": ()}) for each in payload.get("aligned", ())
            ),
            **{name: np.frombuffer(payload["arrays"][name], "<i8") for name in ARRAYS},
        )
        problem = _problem(index)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedContainerError(f"its fields are not those of an index ({error!r})") from error
    if problem is not None:
        raise DamagedContainerError(problem)
    return index


def _problem(index: DatasetIndex) -> str | None:
    """What is wrong with an index from outside; None where a dataset may have it."""
    for file in index.files:
        if not isinstance(file.path, str) or not isinstance(file.version, str) or type(file.size) is not int:
            return "a file's path, size and version are not text, an integer and text"
        # Paths are put after the root as they are: only these would lead out of it, or nowhere.
        if not file.path or "\0" in file.path or ".." in file.path.replace(os.sep, "/").split("/"):
            return f"{file.path!r} is no path below a dataset's root"
        if not 0 <= file.size < 1 << 62:
            return f"{file.path!r} has {file.size:,} bytes"
    if index.format not in KINDS:
        return f"it is of a format {index.format!r}, which there is not"
    if index.format != "raw" and any(one.path >= other.path for one, other in pairwise(index.files)):
        return "its files are not sorted by path, or are there twice"
    if len({file.path for file in index.files}) < len(index.files):
        return "its files are there twice"
    if not isinstance(index.column, str) or not isinstance(index.root, (str, type(None))):
        return f"its column {index.column!r} or its root {index.root!r} is no text"
    if any(layout.column != index.column for layout in index.layouts):
        return f"its layouts are not of its column {index.column!r}"
    groups = len(index.file)
    if len(index.file_layout) != len(index.files) or any(len(getattr(index, name)) != groups for name in ARRAYS):
        return "its arrays are not of one length"
    for name, places, count in (
        ("layouts", index.file_layout, len(index.layouts)),
        ("files", index.file, len(index.files)),
    ):
        if len(places) and not 0 <= places.min() <= places.max() < count:
            return f"it names one of its {name} by a number outside [0, {count})"
    step = np.diff(index.file)
    if (step < 0).any() or ((step == 0) & (np.diff(index.row_group) <= 0)).any():
        return "its row groups are not in storage order"
    sizes = np.array([file.size for file in index.files], np.int64)[index.file]
    if index.places.shape[1] != groups:
        return "its arrays are not of one length"
    wrong = format_named(index.format).impossible(index.numbers, sizes)
    if wrong is not None:
        place, numbers = wrong
        where = index.files[int(index.file[place])].path
        return f"row group {int(index.row_group[place])} of {where} has impossible numbers ({numbers})"
    holds_none = np.array([not layout.max_definition_level for layout in index.layouts], np.bool_)
    if index.tokens[holds_none[index.file_layout][index.file]].any():
        return "it counts tokens in a file that holds none"
    for each in index.aligned:
        if each.format != index.format or not all(np.array_equal(getattr(each, a), getattr(index, a)) for a in _SHARED):
            return f"its aligned column {each.column!r} is of other row groups, or has not as many values as tokens"
    if (index.tokens < 0).any() or index.slots.sum(dtype=np.float64) > MAX_SLOTS:
        return "it does not count its tokens, or counts more of them than there can be"
    return None


def with_aligned(index: DatasetIndex, aligned: Sequence[DatasetIndex]) -> DatasetIndex:
    """The index with those of columns that go with its tokens.

    Raises:
        DataError: a row group has another number of values than of tokens.
    """
    for each in aligned:
        wrong = np.flatnonzero(each.tokens != index.tokens)
        if len(wrong):
            group = int(wrong[0])
            others = f"; {len(wrong) - 1:,} more row groups are like that" if len(wrong) > 1 else ""
            raise each.chunk(group).error(
                f"holds {int(each.tokens[group]):,} values, and {int(index.tokens[group]):,} tokens in "
                f"{index.column!r}: what is aligned has a value for each token of each row, and a null is none{others}"
            )
    return replace(index, aligned=tuple(aligned))


def assemble(
    files: Sequence[FileInfo],
    entries: Sequence[FileEntry],
    column: str,
    root: str | None = None,
    format: str = "parquet",
) -> DatasetIndex:
    """The index of one column of files, from their entries.

    Raises:
        ConfigError: raw files hold ids of several types: most likely one is not what it is taken for.
    """
    layouts: dict[ColumnLayout, int] = {}
    chosen = [entry.columns[column] for entry in entries]
    types = {layout.dtype: file.path for file, (layout, _) in zip(files, chosen, strict=True)}
    if format == "raw" and len(types) > 1:
        told = ", ".join(f"{path} of {dtype}" for dtype, path in types.items())
        raise ConfigError(
            f"raw files of a set hold ids of one type, and there are {told}: load them as a mixture's sources"
        )
    file_layout = np.array([layouts.setdefault(layout, len(layouts)) for layout, _ in chosen], np.int64)
    # What a file without row groups has of their numbers is none of any height.
    numbers = np.concatenate([array for _, array in chosen if array.shape[1]] or [chosen[0][1]], axis=1)
    file = np.repeat(np.arange(len(files), dtype=np.int64), [array.shape[1] for _, array in chosen])
    return DatasetIndex(
        files=tuple(files),
        layouts=tuple(layouts),
        column=column,
        root=root,
        format=format,
        places=np.ascontiguousarray(numbers[len(ENTRY_ARRAYS) :]),
        file_layout=file_layout,
        file=file,
        aligned=(),
        **{name: np.ascontiguousarray(numbers[place]) for place, name in enumerate(ENTRY_ARRAYS)},
    )
