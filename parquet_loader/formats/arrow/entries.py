"""The record batches of a file to index entries: where a column's buffers lie, and how many tokens they hold.

Offsets tell that, and bitmaps where there are nulls; they are read with the messages, values are not.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ...blocks import IntArray
from ...storage.base import FileInfo, Storage
from ..base import CODEC_NAMES, ENTRY_ARRAYS, MAX_SLOTS, ColumnLayout, Counting, FileEntry, impossible_numbers
from .buffers import Bytes, DamagedBufferError, opened
from .columns import Column, Node, columns_of, layout_of
from .decode import BUFFERS, PLACES, PRESENCE, values_bytes
from .documents import OFFSET_BYTES, DocumentReader
from .messages import ArrowFile, Framed, read_messages
from .metadata import V4, Batch, MetadataError, Schema, read_batch

__all__ = ["impossible", "read_entry"]

_ROWS = 1 << 18  # whose offsets are looked at together

_EMPTY_LAYOUT = functools.partial(
    ColumnLayout, physical_type="int32", signed=True, max_definition_level=0, nullable_element=False, kind="list"
)


def read_entry(
    storage: Storage, file: FileInfo, column: str | None, counting: Counting | None, aligned: Sequence[str] = ()
) -> FileEntry:
    """See `EntryReader.read`."""
    arrow_file = ArrowFile(storage, file)
    schema, batches = read_messages(arrow_file)
    if schema.is_big_endian:
        raise arrow_file.error("is written with big-endian numbers, which are not read; write it on another machine")
    try:
        columns = _columns_of(schema)
    except (MetadataError, UnicodeDecodeError) as problem:
        raise arrow_file.error(str(problem)) from problem
    return _Entry(arrow_file, columns, column, counting, aligned).read(batches)


@functools.lru_cache(maxsize=8)  # the files of a set mostly have the same
def _columns_of(schema: Schema) -> tuple[Column, ...]:
    return columns_of(schema.read())


class _Entry:
    """A file's entry, as its record batches come.

    Args:
        file: the file.
        columns: of its schema.
        column: the name of the one that is meant; None for all that may be.
        counting, aligned: see `EntryReader.read`.
    """

    def __init__(
        self,
        file: ArrowFile,
        columns: tuple[Column, ...],
        column: str | None,
        counting: Counting | None,
        aligned: Sequence[str],
    ) -> None:
        self._file = file
        self._columns = columns
        self._counting = counting
        self._aligned = set(aligned)
        self._has_unions = any("union<" in str(each.leaf.type) for each in columns)
        named = [each for each in columns if column in (None, each.leaf.name) or each.leaf.name in self._aligned]
        names = Counter(each.leaf.name for each in named)
        self._lists = [
            each for each in named if (each.leaf.is_values if each.leaf.name in self._aligned else each.leaf.is_tokens)
        ]
        for each in self._lists:
            if names[each.leaf.name] > 1:
                raise file.error(
                    "two columns have this name; rename one, or say which other column holds the tokens",
                    column=each.leaf.name,
                )
        self._has_tokens = any(each.leaf.name not in self._aligned for each in self._lists)
        encoded = next((each for each in named if each.is_encoded), None)
        if encoded is not None and not self._has_tokens:
            raise file.error(
                "is encoded by a dictionary, which tokens are not read from; write it as a plain list of integers",
                column=encoded.leaf.name,
            )
        others = [each for each in named if each not in self._lists and names[each.leaf.name] == 1]
        # Columns that may hold no value; see `FileEntry.columns`.
        self._others = [each for each in others if column is not None or not self._has_tokens or self._may_be(each)]
        self._without_rows = [each for each in others if each not in self._others]

    def _may_be(self, column: Column) -> bool:
        """Whether a column of another type is likely meant."""
        return bool(pa.types.is_null(column.leaf.type)) or column.leaf.name in self._aligned

    def read(self, batches: Iterator[Framed]) -> FileEntry:
        """The entry of all record batches."""
        found: dict[str, list[list[int]]] = {each.leaf.name: [] for each in (*self._lists, *self._others)}
        for number, framed in enumerate(batches):
            if framed.message.version == V4 and self._has_unions:
                raise self._file.error("has unions as an Arrow before 1.0 wrote them, which are not read", number)
            try:
                batch = read_batch(framed.message)
                empty = [each for each in self._others if not batch.rows or _is_empty(batch, each)]
                if not batch.rows:
                    self._check_none(batch)
            except MetadataError as problem:
                raise self._file.error(f"its message at byte {framed.begin:,}: {problem}", number) from problem
            if not batch.rows:
                continue
            self._without_rows, self._others = [], empty
            for each in self._lists:
                found[each.leaf.name].append(self._numbers(number, framed, batch, each))
            for each in self._others:
                found[each.leaf.name].append(_without_values(number, framed, batch))
        columns: dict[str, tuple[ColumnLayout, IntArray]] = {}
        for each in self._lists:
            columns[each.leaf.name] = layout_of(each), self._array(found[each.leaf.name], each)
        for each in (*self._others, *self._without_rows):
            name = each.leaf.name
            columns[name] = _EMPTY_LAYOUT(column=name), self._array(found.get(name, []), each)
        is_whole = self._has_tokens and columns.keys() >= self._aligned
        leaves = () if is_whole else tuple(each.leaf for each in self._columns)
        return FileEntry(columns, leaves, self._file.is_ended)

    def _check_none(self, batch: Batch) -> None:
        """Refuse a record batch that says it has no rows, where its columns have some."""
        for each in self._lists:
            rows, _ = _node(batch, each.own)
            if rows:
                raise MetadataError(f"column {each.leaf.name!r} has {rows:,} rows in a record batch of none")

    def _array(self, numbers: list[list[int]], column: Column) -> IntArray:
        array = np.array(numbers, np.int64).reshape(len(numbers), len(ENTRY_ARRAYS) + len(PLACES)).T
        wrong = impossible(array, self._file.size)
        if wrong is not None:
            place, told = wrong
            raise self._file.error(f"has impossible numbers ({told})", int(array[0, place]), column.leaf.name)
        return np.ascontiguousarray(array)

    def _numbers(self, number: int, framed: Framed, batch: Batch, column: Column) -> list[int]:
        """A record batch's numbers, in the order of `ENTRY_ARRAYS` and `PLACES`."""
        try:
            buffers = _Buffers(batch, column)
            slots, tokens, elements = self._counted(framed.body, buffers)
            places = buffers.needed(tokens, elements)
        except (DamagedBufferError, MetadataError) as problem:
            raise self._file.error(str(problem), number, column.leaf.name) from problem
        start = min((offset for offset, length in places.values() if length), default=0)
        end = max((offset + length for offset, length in places.values() if length), default=0)
        if not end:  # not even offsets
            return _without_values(number, framed, batch)
        placed = [number for name in BUFFERS for number in _from(start, places.get(name, (0, 0)))]
        own = _entry(
            row_group=number,
            rows=batch.rows,
            slots=slots,
            tokens=tokens,
            start=framed.body + start,
            length=end - start,
            codec=CODEC_NAMES.index(batch.codec),
        )
        return [*own, elements, *placed]

    def _counted(self, body: int, buffers: _Buffers) -> tuple[int, int, int]:
        """(slots, tokens, values that documents may lie among) of a record batch."""
        rows, codec, kind = buffers.rows, buffers.codec, buffers.kind
        held = sum(length for _, length in (*buffers.presence, buffers.offsets, buffers.sizes))
        with contextlib.ExitStack() as stack:
            if self._counting is not None:
                stack.enter_context(self._counting.budget.hold(held + 64 * min(rows, _ROWS)))
            width = OFFSET_BYTES.get(kind, 0)
            is_list = kind in ("list", "large_list")
            read = functools.partial(self._read, body, codec)
            reader = DocumentReader(
                kind,
                buffers.elements,
                [read(place, (rows + 7) // 8) for place in buffers.presence],
                read(buffers.offsets, (rows + is_list) * width) if width else None,
                read(buffers.sizes, rows * width) if width and not is_list else None,
            )
            tokens = empty = 0
            for row in range(0, rows, _ROWS):
                _, lengths = reader.read(min(_ROWS, rows - row))
                if lengths.sum(dtype=np.float64) > MAX_SLOTS:
                    raise DamagedBufferError("has more tokens than there can be")
                tokens += int(lengths.sum())
                empty += int((lengths == 0).sum())
            return tokens + empty, tokens, reader.end if codec == "UNCOMPRESSED" else buffers.elements

    def _read(self, body: int, codec: str, place: tuple[int, int], size: int) -> Bytes:
        return opened(self._file.part(body + place[0], place[1]), codec, size, at_once=False)


class _Buffers:
    """The buffers of a column in a record batch: (offset in the body, length) of each.

    Attributes:
        rows, elements: lists, and values.
        presence: bitmaps of structs that it lies in and of itself, as far as they have nulls.
        offsets, sizes: of the lists; (0, 0) for none.
        element_presence: the bitmap of values; (0, 0) where none is null.
        values: of the values.
    """

    def __init__(self, batch: Batch, column: Column) -> None:
        self._batch = batch
        self.rows, self.codec, self.kind = batch.rows, batch.codec, column.kind
        self.presence = [place for each in (*column.parents, column.own) if (place := self._bitmap(each))[1]]
        if len(self.presence) > len(PRESENCE):
            raise MetadataError(f"lies in more than {len(PRESENCE) - 1} structs that are null in some rows")
        own, is_view = column.own, column.kind in ("list_view", "large_list_view")
        has_offsets = column.kind in OFFSET_BYTES
        self.offsets = self._buffer(own, 1) if has_offsets else (0, 0)
        self.sizes = self._buffer(own, 2) if is_view else (0, 0)
        values = own._replace(number=own.number + 1, buffer=own.buffer + 1 + has_offsets + is_view)
        self.elements, _ = _node(batch, values)
        self.element_presence = self._bitmap(values, self.elements)
        self.values = self._buffer(values, 1)
        self._layout = layout_of(column)

    def needed(self, tokens: int, elements: int) -> dict[str, tuple[int, int]]:
        """What decoding needs: a name of `BUFFERS` to a place."""
        found = dict(zip(PRESENCE, self.presence, strict=False))
        found["offsets"], found["sizes"] = self.offsets, self.sizes
        if tokens:
            offset, length = self.values
            if self.codec == "UNCOMPRESSED":
                needed = values_bytes(self._layout, elements)
                if length < needed:
                    raise MetadataError(f"has {length:,} bytes of values where {needed:,} are needed")
                length = needed
            found["values"] = offset, length
            found["element_presence"] = self.element_presence
        return found

    def _bitmap(self, node: Node, rows: int | None = None) -> tuple[int, int]:
        length, nulls = _node(self._batch, node)
        if length != (self.rows if rows is None else rows):
            raise MetadataError(f"has {length:,} rows in a record batch of {self.rows:,}")
        if not nulls:
            return 0, 0
        place = self._buffer(node, 0)
        if not place[1]:
            raise MetadataError(f"has {nulls:,} nulls, and nothing tells which")
        return place

    def _buffer(self, node: Node, number: int) -> tuple[int, int]:
        if node.views > len(self._batch.variadic):
            raise MetadataError("does not tell how many buffers its columns have")
        place = node.buffer + number + int(self._batch.variadic[: node.views].sum())
        if not 0 <= place < len(self._batch.buffers):
            raise MetadataError("has fewer buffers than its schema has columns")
        offset, length = self._batch.buffers[place].tolist()
        return offset, length


def _node(batch: Batch, node: Node) -> tuple[int, int]:
    """(rows, nulls) of a field."""
    if node.number >= len(batch.nodes):
        raise MetadataError("has fewer nodes than its schema has columns")
    rows, nulls = batch.nodes[node.number].tolist()
    return rows, nulls


def _is_empty(batch: Batch, column: Column) -> bool:
    """Whether a column of another type holds no value."""
    if column.kind:
        return _node(batch, column.own._replace(number=column.own.number + 1))[0] == 0
    rows, nulls = _node(batch, column.own)
    return bool(pa.types.is_null(column.leaf.type)) or rows == nulls


def _entry(**of: int) -> list[int]:
    """The numbers of a record batch in the order of `ENTRY_ARRAYS`."""
    of |= {"max_id": -1, "min_id": 0, "dictionary_offset": -1, "data_offset": 0}
    return [of[name] for name in ENTRY_ARRAYS]


def _without_values(number: int, framed: Framed, batch: Batch) -> list[int]:
    """The numbers of documents that are all empty. There is nothing to be read for them but the message."""
    own = _entry(
        row_group=number,
        rows=batch.rows,
        slots=batch.rows,
        tokens=0,
        start=framed.begin,
        length=framed.body - framed.begin,
        codec=CODEC_NAMES.index("UNCOMPRESSED"),
    )
    return [*own, *[0] * len(PLACES)]


def _from(start: int, place: tuple[int, int]) -> tuple[int, int]:
    return (place[0] - start, place[1]) if place[1] else (0, 0)


def impossible(numbers: IntArray, sizes: IntArray | int) -> tuple[int, str] | None:
    """See `Format.impossible`."""
    if len(numbers) != len(ENTRY_ARRAYS) + len(PLACES):
        return (0, "of another format") if numbers.shape[1] else None
    wrong = impossible_numbers(numbers, sizes, first_byte=0)
    if wrong is not None:
        return wrong
    of = dict(zip(PLACES, numbers[len(ENTRY_ARRAYS) :], strict=True))
    length = numbers[ENTRY_ARRAYS.index("length")]
    outside = (of["elements"] < 0) | (of["elements"] > MAX_SLOTS)
    for name in BUFFERS:
        offset, size = of[f"{name}_offset"], of[f"{name}_length"]
        outside |= (offset < 0) | (size < 0) | (offset > length) | (size > length - offset)
    if not outside.any():
        return None
    place = int(outside.argmax())
    return place, ", ".join(f"{name} {int(of[name][place]):,}" for name in PLACES if of[name][place])
