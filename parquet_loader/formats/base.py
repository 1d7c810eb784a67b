"""The seam between file formats and everything above them, and the values that cross it.

A `Format` reads what a file holds into a `FileEntry`, tells what a row group costs to decode, and decodes it:

    files ──► Format.reader ──► EntryReader.read ──► FileEntry ──► DatasetIndex ──► ColumnChunk
                                                                                        │
    row group's bytes ─────────────────────────────────► Format.open ◄──────────────────┘ ──► OpenChunk.parts

Index, order, engine and checkpoints know nothing else of it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..blocks import IntArray, TokenPart
from ..errors import DataError
from ..storage.base import FileInfo, Storage

__all__ = [
    "CODECS",
    "CODEC_NAMES",
    "ENTRY_ARRAYS",
    "MAX_SLOTS",
    "RECOUNT",
    "STREAM_DOCUMENT_TOKENS",
    "ChunkSize",
    "ColumnChunk",
    "ColumnLayout",
    "Counting",
    "CountingBudget",
    "EntryReader",
    "FileEntry",
    "Format",
    "Leaf",
    "Numbers",
    "OpenChunk",
    "chosen",
    "impossible_numbers",
    "larger",
    "smaller",
]

# Names as pyarrow gives them, numbers as parquet.thrift does ("LZ4" is what the format calls LZ4_RAW).
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "LZO": 3, "BROTLI": 4, "LZ4_HADOOP": 5, "ZSTD": 6, "LZ4": 7}
CODEC_NAMES = tuple(sorted(CODECS))  # an entry holds a codec as its place in this

# Of a stream's documents nobody knows how many there are: `DatasetIndex.rows` takes them to have so many tokens.
STREAM_DOCUMENT_TOKENS = 64

MAX_SLOTS = 1 << 52  # of a whole set: sums of counts, and the bytes that they take, stay far below 2^63
_MAX_LEVEL = 100  # pyarrow opens no schema that is nested deeper

# A number, or one for each of several row groups.
Numbers: TypeAlias = "int | IntArray"

# The numbers of a row group in a `FileEntry`, in this order; `DatasetIndex` documents each.
ENTRY_ARRAYS = (
    "row_group",
    "rows",
    "slots",
    "tokens",
    "max_id",
    "min_id",
    "start",
    "length",
    "dictionary_offset",
    "data_offset",
    "codec",
)


_STORED = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_DTYPES: dict[tuple[str, bool], np.dtype[np.integer]] = {
    ("INT32", True): np.dtype(np.int32),
    ("INT32", False): np.dtype(np.uint32),
    ("INT64", True): np.dtype(np.int64),
    ("INT64", False): np.dtype(np.uint64),
    ("BOOLEAN", True): np.dtype(np.uint8),
    ("FIXED_LEN_BYTE_ARRAY", True): np.dtype(np.uint16),
}
# Of aligned columns, whose values are decoded as if they were integers of the same size.
_VALUES = (*_STORED, "bool", "float16", "float32", "float64")

# What to do where a footer counts wrongly.
RECOUNT = (
    "some writers count empty and null lists wrongly: give the loader index=build_index(source, recount=True), or the "
    "file that `python -m parquet_loader index --recount` writes; they count anew"
)


# How a format other than Parquet tells documents apart; see `ColumnLayout.kind`.
_KINDS = re.compile(r"list|large_list|list_view|large_list_view|fixed_size_list\[[0-9]{1,9}\]|stream|documents")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLayout:
    """How a file stores its token column: the same for all of the file's row groups.

    Attributes:
        column: the column's name; a struct's field is ``parent.child``.
        physical_type: Parquet's ``"INT32"`` or ``"INT64"``; of other formats NumPy's name of the stored values' type.
            Of an aligned column of Parquet also ``"BOOLEAN"`` and ``"FIXED_LEN_BYTE_ARRAY"``; floating-point numbers of
            4 or 8 bytes are decoded as the integers that these are.
        signed: False where the integers are unsigned (a uint32 above 2^31 is stored as a negative INT32).
        max_definition_level: the level of a present element; one more than the level of the list being non-empty
            where an element may be null. 0 for a column that holds no value in the file, of whatever type: all of its
            documents are empty.
        nullable_element: whether an element may be null.
        kind: how a format other than Parquet tells documents apart: an Arrow type, such as ``"large_list"`` or
            ``"fixed_size_list[128]"``; ``"stream"`` where an id among the tokens ends them; ``"documents"`` where an
            index does. "" for Parquet.
        values: NumPy's name of the type of an aligned column's values, where it is another than `physical_type` tells.

    Raises:
        ValueError: no column is stored like that.
    """

    column: str
    physical_type: str
    signed: bool
    max_definition_level: int
    nullable_element: bool
    kind: str = ""
    values: str = ""

    def __post_init__(self) -> None:
        kinds = (type(self.column), type(self.signed), type(self.max_definition_level), type(self.nullable_element))
        known: tuple[str, ...] = ("INT32", "INT64") if self.kind == "" else _STORED
        if self.values in ("bool", "float16") and not self.kind:
            known = ("BOOLEAN",) if self.values == "bool" else ("FIXED_LEN_BYTE_ARRAY",)
        if (
            kinds != (str, bool, int, bool)
            or not isinstance(self.kind, str)
            or (self.kind and not _KINDS.fullmatch(self.kind))
            or self.physical_type not in known
            or (self.values and self.values not in _VALUES)
            or (not self.signed and self.physical_type in ("BOOLEAN", "FIXED_LEN_BYTE_ARRAY"))
            or not (2 if self.nullable_element and not self.kind else 0) <= self.max_definition_level <= _MAX_LEVEL
        ):
            raise ValueError(
                f"no column is stored as {self.physical_type!r} with definition levels up to "
                f"{self.max_definition_level!r}, signed={self.signed!r}, nullable_element={self.nullable_element!r}, "
                f"kind={self.kind!r}, values={self.values!r}"
            )

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """The dtype of decoded tokens."""
        return np.dtype(self.physical_type) if self.kind else _DTYPES[self.physical_type, self.signed]

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The type of an aligned column's values."""
        return np.dtype(self.values) if self.values else self.dtype

    @property
    def is_stream(self) -> bool:
        """Whether documents are told apart by an id that ends them, among the tokens: how many there are is then not
        known without reading them all, and `DatasetIndex.rows` estimates it.
        """
        return self.kind == "stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """What decoding needs to know of one row group's token column, from the footer.

    Attributes:
        path: the file, relative to the dataset's root.
        row_group: the row group's number in the file.
        layout: how the file stores the column.
        start: the first byte of the chunk in the file.
        length: the chunk's bytes.
        rows: documents.
        slots: leaf slots (``num_values``): tokens, and one for each empty or null list.
        tokens: tokens, or -1 where the footer does not tell.
        codec: compression, a key of `CODECS`.
        dictionary_offset: the dictionary page's place, from `start`; -1 where there is none.
        data_offset: the first data page's place, from `start`.
        places: the format's own numbers, such as where the chunk's buffers lie; none of Parquet's.
    """

    path: str
    row_group: int
    layout: ColumnLayout
    start: int
    length: int
    rows: int
    slots: int
    tokens: int
    codec: str
    dictionary_offset: int
    data_offset: int
    places: tuple[int, ...] = ()

    @classmethod
    def of(cls, path: str, layout: ColumnLayout, numbers: Sequence[int]) -> ColumnChunk:
        """The chunk of a row group, from its numbers in the order of `ENTRY_ARRAYS`, and its places."""
        row_group, rows, slots, tokens, _, _, start, length, dictionary_offset, data_offset, codec, *places = numbers
        return cls(
            path=path,
            row_group=row_group,
            layout=layout,
            start=start,
            length=length,
            rows=rows,
            slots=slots,
            tokens=tokens,
            codec=CODEC_NAMES[codec],
            dictionary_offset=dictionary_offset,
            data_offset=data_offset,
            places=tuple(places),
        )

    def error(self, problem: str) -> DataError:
        """A `DataError` that names this chunk."""
        return DataError(problem, path=self.path, row_group=self.row_group, column=self.layout.column)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSize:
    """What the cost of decoding a column chunk depends on, or a bound of each for several chunks. It may be those of
    many chunks, in arrays of one shape; so are their costs then.

    Attributes:
        chunk_bytes: the chunk's length.
        slots, tokens, rows: of it.
        itemsize: bytes that a token takes as it is stored.
    """

    chunk_bytes: Numbers
    slots: Numbers
    tokens: Numbers
    rows: Numbers
    itemsize: Numbers

    @classmethod
    def of_chunk(cls, chunk: ColumnChunk) -> ChunkSize:
        """A chunk's."""
        return cls(
            chunk_bytes=chunk.length,
            slots=min(chunk.slots, chunk.tokens + chunk.rows) if chunk.tokens >= 0 else chunk.slots,
            tokens=chunk.tokens if chunk.tokens >= 0 else chunk.slots,
            rows=chunk.rows,
            itemsize=chunk.layout.dtype.itemsize,
        )


def larger(one: int | npt.NDArray[Any], other: int | npt.NDArray[Any]) -> Numbers:
    """The larger one, of each."""
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other)
    return np.asarray(np.maximum(one, other), np.int64)


def smaller(one: int | npt.NDArray[Any], other: int | npt.NDArray[Any]) -> Numbers:
    """The smaller one, of each."""
    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    return np.asarray(np.minimum(one, other), np.int64)


def chosen(condition: bool | npt.NDArray[np.bool_], one: Numbers, other: Numbers) -> Numbers:
    """``one`` where the condition holds, else ``other``."""
    if isinstance(condition, bool):
        return one if condition else other
    return np.where(condition, one, other)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file's footer, boiled down: for each column that may be meant its layout and its row groups' numbers.

    Attributes:
        columns: a name to (layout, array of shape ``(numbers, row groups)`` in the order of `ENTRY_ARRAYS`, and after
            them the format's own, see `ColumnChunk.places`); columns of any type that hold no value are among them,
            since another file may have tokens there.
        leaves: what columns there are, where none is a list of integers, or an aligned column is missing.
        is_ended: whether nothing can come after it: False of a stream that just stops, as one does that is still being
            written.
    """

    columns: dict[str, tuple[ColumnLayout, IntArray]]
    leaves: tuple[Leaf, ...] = ()
    is_ended: bool = True


def impossible_numbers(numbers: IntArray, sizes: IntArray | int, *, first_byte: int = 4) -> tuple[int, str] | None:
    """The first row group with numbers that no whole file has, and those; None where there is none.

    Asked before numbers from outside are taken for the place of data or the size of a buffer.

    Args:
        numbers: shape ``(numbers, row groups)``, in the order of `ENTRY_ARRAYS`; tokens may be -1 for not known.
        sizes: bytes of the row groups' files, shape ``(row groups,)``, or of their one file.
        first_byte: no data lies before it; a Parquet file begins with four others.
    """
    of = dict(zip(ENTRY_ARRAYS, numbers[: len(ENTRY_ARRAYS)], strict=True))
    wrong = (of["row_group"] < 0) | (of["rows"] < 1) | (of["slots"] < of["rows"]) | (of["slots"] > MAX_SLOTS)
    wrong |= (of["tokens"] < -1) | (of["tokens"] > of["slots"])
    wrong |= (of["start"] < first_byte) | (of["start"] > sizes) | (of["length"] > sizes - of["start"])
    wrong |= (of["data_offset"] < 0) | (of["length"] <= of["data_offset"])
    wrong |= (of["dictionary_offset"] < -1) | (of["dictionary_offset"] > of["data_offset"])
    wrong |= (of["codec"] < 0) | (of["codec"] >= len(CODEC_NAMES))
    if not wrong.any():
        return None
    place = int(wrong.argmax())
    shown = ("rows", "slots", "tokens", "start", "length", "dictionary_offset", "data_offset", "codec")
    return place, ", ".join(f"{name} {int(of[name][place]):,}" for name in shown)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf column of a Parquet schema: its number, its name without list levels, its Arrow type; whether it is a list
    of integers, or of what an aligned column may hold; in how many lists of that type it lies.
    """

    number: int
    name: str
    type: pa.DataType
    is_tokens: bool
    nullable_element: bool
    signed: bool
    is_values: bool = False
    lists: int = 0

    @property
    def shown(self) -> str:
        """Its type with those lists."""
        return f"{'list<' * self.lists}{self.type}{'>' * self.lists}"


class CountingBudget:
    """Bytes that threads hold together: one that wants more than are left waits, and more than there are, is alone."""

    def __init__(self, budget_bytes: int) -> None:
        self._all = self._left = budget_bytes
        self._given_back = threading.Condition()

    @contextmanager
    def hold(self, cost_bytes: int) -> Iterator[None]:
        """Hold so many bytes."""
        cost_bytes = min(cost_bytes, self._all)
        with self._given_back:
            self._given_back.wait_for(lambda: cost_bytes <= self._left)
            self._left -= cost_bytes
        try:
            yield
        finally:
            with self._given_back:
                self._left += cost_bytes
                self._given_back.notify_all()


@dataclass(frozen=True, slots=True)
class Counting:
    """How tokens are counted: within which memory, and whether all of them anew."""

    budget: CountingBudget
    anew: bool


class EntryReader(Protocol):
    """Reads the files of one set, without their tokens. Safe to use from several threads at once.

    Attributes:
        files: what belongs into an index, each once, in the order of storage: data files, and those that decoding needs
            beside them, which have no row groups of their own.
    """

    files: Sequence[FileInfo]

    def together(self, file: FileInfo) -> Sequence[FileInfo]:
        """Other files of `files` that this one's entry depends on."""
        ...

    def read(
        self, file: FileInfo, column: str | None, counting: Counting | None, aligned: Sequence[str] = ()
    ) -> FileEntry:
        """Read a file's row groups.

        Args:
            file: one of `files`, or a copy of one under the same path, pinned to its size and version.
            column: the token column; None for every column that may be meant.
            counting: what counting may take, where the file does not tell how many tokens it holds; None leaves them
                -1 there.
            aligned: further columns, lists of integers, booleans or floating-point numbers; with `ColumnLayout.values`.

        Raises:
            DataError: the file is not of this format, or damaged.
            StorageError: it cannot be read.
        """
        ...


class Format(Protocol):
    """What a file format gives. All of it may be called from several threads at once.

    Attributes:
        name: what `DatasetIndex.format` calls it.
    """

    name: str

    def reader(
        self, storage: Storage, files: Sequence[FileInfo], raw_dtype: np.dtype[np.integer] | None
    ) -> EntryReader:
        """What reads a set's files.

        Args:
            storage: where they lie.
            files: what a listing gave: files of this format, and what lies beside them to tell of them.
            raw_dtype: of the stored ids, where no file tells; None where it was not given.

        Raises:
            ConfigError: files that are not one set, or do not tell what is needed; says what to give.
            DataError, StorageError: what tells of them is damaged, or cannot be read.
        """
        ...

    def impossible(self, numbers: IntArray, sizes: IntArray | int) -> tuple[int, str] | None:
        """See `impossible_numbers`; of numbers with the format's own after them."""
        ...

    def beside(self, chunk: ColumnChunk) -> tuple[tuple[str, int, int], ...]:
        """The byte ranges that decoding a chunk needs besides: (path of a file of the index, start, length) of each."""
        ...

    def decode_cost(self, size: ChunkSize, *, codec: str, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
        """Bytes that decoding a chunk of at most this size holds at its peak, the largest part included and the chunk
        itself not, if it is as chunks of this codec nearly always are. `OpenChunk.cost_bytes` tells whether it is.

        Args:
            size: numbers, none of which makes the cost fall where it rises, as long as there are not more slots than
                `one_part_slots`, or always more.
            codec: its compression.
            dtype: of the tokens.
            eos: whether EOS are put in.
        """
        ...

    def one_part_slots(self) -> int:
        """A chunk of no more slots is one part."""
        ...

    def most_decode_cost(self, size: ChunkSize, *, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
        """The same whatever the chunk is like."""
        ...

    def slow_to_unpack(self, codec: str) -> bool:
        """Whether most of decoding chunks of this compression is done outside Python."""
        ...

    def kept_bytes(self, most_slots: int) -> int:
        """The most that a decoding thread keeps between chunks, where no chunk has more slots than these."""
        ...

    def open(self, raw: bytes | memoryview, chunk: ColumnChunk, beside: Sequence[bytes | memoryview] = ()) -> OpenChunk:
        """Look at a row group's bytes, before any of them is decoded.

        Args:
            raw: the chunk's bytes, ``chunk.length`` of them.
            chunk: its entry in the index.
            beside: the bytes of the ranges that `beside` tells.

        Raises:
            DataError: they are not what the index says.
        """
        ...

    def decode_together(
        self,
        raws: Sequence[bytes | memoryview],
        chunks: Sequence[ColumnChunk],
        *,
        dtype: np.dtype[np.integer],
        bound: int | None,
        eos_id: int | float | None,
        besides: Sequence[Sequence[bytes | memoryview]] = (),
        low: int = 0,
    ) -> TokenPart | None:
        """Several row groups as one part, where that is faster: their tokens one after another, as `OpenChunk.parts`
        gives them. None where they are to be opened one by one, as they are wherever something is wrong. Holds no more
        than their `decode_cost`, added up.

        Args:
            raws, chunks: see `open`, of each; one at least.
            dtype, bound, eos_id, low: see `OpenChunk.parts`.
            besides: see `open`, of each; empty where there is nothing beside any.
        """
        ...

    def document_lengths(
        self,
        raws: Sequence[bytes | memoryview],
        chunks: Sequence[ColumnChunk],
        eos_id: int | None = None,
        besides: Sequence[Sequence[bytes | memoryview]] = (),
    ) -> list[IntArray]:
        """How many tokens each document of several row groups has, without EOS that is put in. Ids are not looked at,
        and where it can be helped not decoded. Holds no more than decoding them does.

        Args:
            raws, chunks, besides: see `open`, of each; one at least.
            eos_id: ends the documents of a stream, see `ColumnLayout.is_stream`.

        Returns:
            Of each row group, shape ``(documents,)``: as many tokens as its entry says, and as many documents, but of
            a stream.

        Raises:
            DataError: the bytes are not what the index says.
        """
        ...


class OpenChunk(Protocol):
    """A column chunk that is going to be decoded. Its bytes may be let go of once all parts are used up.

    Attributes:
        fallback: why a slower way has to be taken; "" where it need not.
    """

    fallback: str

    def cost_bytes(self, *, dtype: np.dtype[np.integer], eos: bool) -> int:
        """The most that `parts` holds beside the chunk, with the part that was given last."""
        ...

    def parts(
        self,
        *,
        dtype: np.dtype[Any] | None = None,
        bound: int | None = None,
        eos_id: int | float | None = None,
        first: int = 0,
        last: int | None = None,
        low: int = 0,
    ) -> Iterator[TokenPart]:
        """The row group's tokens, part after part. Parts keep nothing of the chunk, unless they are views of its bytes.

        Args:
            dtype: of the tokens; None for the stored one. Of an aligned column one that holds all of its values.
            bound: refuse ids outside ``[0, bound)``; given with ``dtype``, at most one past its largest value. None for
                any, where the stored type says that they fit.
            eos_id: put after every document, where it is not None; of a stream it is what ends them, and is there.
            first, last: only the tokens ``[first, last)`` are needed, EOS included: other parts are left out. They are
                counted, and ids in them not looked at.
            low: of an aligned column, refuse values outside ``[low, bound)``.

        Raises:
            DataError: the bytes do not decode to what the index says, or hold an id out of range. What was wrong with
                the counts is known only at the end.
        """
        ...

    def unverified(self) -> Iterator[memoryview]:
        """The bytes without a checksum that `parts` verifies, in order: all of them where the file has none."""
        ...
