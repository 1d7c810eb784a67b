"""A file's footer to what an index needs of it: the schema, as a footer of its own that pyarrow may read, and one
column's numbers in every row group.

pyarrow checks much of a footer, and takes the rest for granted: a type, repetition or codec that the format does not
have, a column chunk of another type than its column, or a histogram of levels of another length than there are levels.
On those it ends the process, and no training run should end without a word on one bad file of thousands. So pyarrow is
given no row group at all, and of the schema only what is sound.

A footer is a Thrift struct, which can only be read from its start to its end, and there may be hundreds of thousands of
column chunks in it, each a struct of fifty steps. But they are alike: between their *payloads*, which are integers and
byte strings of any length, all have the same bytes, of which there are a few *shapes* in a file.

    26 ..  1c 15 ..  19 35 ..  ..  ..  19 18 ..................  15 ..  16 ....  16 ....
       │         │         │   │   │         └ a byte string        │      └ an integer
       └─────────┴─────────┴───┴───┴ integers                       └ an integer

The first chunk of a shape is read step by step. Then all positions that may begin another one are followed at once, one
step of all of them at a time. Nothing rests on how they were found: a chunk's end is used only where the walk from the
start of the footer comes by, and every byte that is not a payload was compared.

Source: parquet.thrift of the Parquet format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ...blocks import IntArray
from . import thrift
from .thrift import ThriftError

__all__ = ["EncryptedColumnError", "Footer", "Numbers", "read_footer"]

ByteArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]
Fields = dict[int, thrift.Value]
T = TypeVar("T")

# How many there are of each in parquet.thrift.
_TYPES, _REPETITIONS = 8, 3

_INTEGERS = (thrift.I16, thrift.I32, thrift.I64)
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
# What mostly follows a row group's columns: its size, its rows, and other integers up to its end.
_PLAIN_TAIL = re.compile(
    b"\x16"
    + _VARINT
    + b"\x16("
    + _VARINT
    + b")(?:["
    + re.escape(bytes(step << 4 | kind for step in range(1, 16) for kind in _INTEGERS))
    + b"]"
    + _VARINT
    + b")*\x00",
    re.DOTALL,
)
_LONG = 8 << 10  # bytes of a footer that has chunks enough to follow them together
_VARINT_BYTES = 9  # more than any number of sense takes
_MOST_SHAPES = 32
_MOST_STEPS = 256  # of a shape; histograms may have any number
_REMEMBERED_BYTES = 1 << 20  # of a schema, or of metadata
_MOST_GROUPS = 64  # payloads of a pattern
_MOST_PATTERNS = 32  # of which structs are looked for
_COST_OF_PATTERN = 20  # what making one takes, in structs read step by step

# Where a ColumnChunk holds what is wanted.
_PATHS = {
    "type": (3, 1),
    "codec": (3, 4),
    "slots": (3, 5),
    "length": (3, 7),
    "data_offset": (3, 9),
    "dictionary_offset": (3, 11),
    "nulls": (3, 12, 3),
    "max_id": (3, 12, 5),
    "min_id": (3, 12, 6),
    "signed_max_id": (3, 12, 1),  # of old writers, who took all integers for signed ones
    "signed_min_id": (3, 12, 2),
}
_ENCRYPTED = (8,)


class EncryptedColumnError(Exception):
    """A column chunk whose numbers, or data, are encrypted."""


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """What the footer says of one column's chunks.

    Attributes:
        values: a name in `_PATHS` to an array of shape ``(row groups,)``.
        known: the same names to where the footer says it at all.
    """

    values: Mapping[str, IntArray]
    known: Mapping[str, BoolArray]


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """A ``FileMetaData`` of parquet.thrift.

    Attributes:
        created_by: who wrote the file, or "".
        types: each leaf column's type in parquet.thrift.
        rows: shape ``(row groups,)``.
    """

    created_by: str
    types: Sequence[int]
    rows: IntArray
    _data: memoryview
    _schema: memoryview
    _arrow_schema: bytes
    _starts: IntArray  # shape (row groups, leaves): where each column chunk's struct begins
    _shapes: Sequence[_Shape]
    _traced: Mapping[int, _Traced]  # what was read of some of them, by where they begin

    def schema_file(self) -> bytes:
        """A Parquet file of the same schema and no row groups."""
        fields: list[thrift.Field] = [
            (1, thrift.I32, 2),
            (2, thrift.LIST, bytes(self._schema)),
            (3, thrift.I64, 0),
            (4, thrift.LIST, thrift.struct_list()),
        ]
        if self._arrow_schema:
            fields.append((5, thrift.LIST, thrift.struct_list(self._arrow_schema)))
        footer = thrift.struct(*fields)
        return b"".join((b"PAR1", footer, len(footer).to_bytes(4, "little"), b"PAR1"))

    def data_file(self) -> str:
        """The file that the first column chunk is said to be in; "" for this one, as nearly all say."""
        if not self._starts.size:
            return ""
        traced = self._trace(int(self._starts[0, 0]))
        step = traced.shape.fields.get(1)
        if type(step) is not int or traced.shape.kinds[step] != thrift.BINARY:
            return ""
        path = thrift.Reader(self._data, traced.spans[step][0])
        return path.take(path.varint()).decode(errors="replace")

    def _trace(self, begin: int) -> _Traced:
        return self._traced.get(begin) or _traced(self._data, begin)

    def numbers(self, leaf: int, groups: IntArray) -> Numbers:
        """The numbers of a leaf column in some row groups.

        Raises:
            EncryptedColumnError: its numbers cannot be read.
        """
        starts = self._starts[groups, leaf]
        values = {name: np.zeros(len(starts), np.int64) for name in _PATHS}
        known = {name: np.zeros(len(starts), bool) for name in _PATHS}
        left = np.arange(len(starts))
        data = np.frombuffer(self._data, np.uint8)
        for shape in self._shapes:
            if not len(left):
                break
            lanes, _, positions = _follow(data, shape, starts[left], frozenset(shape.steps.values()))
            if not len(lanes):
                continue
            if shape.encrypted:
                raise EncryptedColumnError
            for name, step in shape.steps.items():
                read = _integers if shape.kinds[step] in _INTEGERS else _numbers
                values[name][left[lanes]], known[name][left[lanes]] = read(data, positions[step])
            left = np.delete(left, lanes)
        for place in left.tolist():
            traced = self._trace(int(starts[place]))
            if traced.shape.encrypted:
                raise EncryptedColumnError
            for name, step in traced.shape.steps.items():
                kind, (first, end) = traced.shape.kinds[step], traced.spans[step]
                payload = thrift.Reader(self._data, first)
                if kind in _INTEGERS and end - first <= _VARINT_BYTES:
                    values[name][place], known[name][place] = payload.integer(), True
                elif kind == thrift.BINARY and payload.varint() in (4, 8):
                    octets = self._data[payload.position : end]
                    values[name][place], known[name][place] = int.from_bytes(octets, "little", signed=True), True
        return Numbers(values, known)


def read_footer(data: memoryview) -> Footer:
    """Read a footer, without the eight bytes that end the file.

    Raises:
        ThriftError: it is not well-formed, or its schema and its row groups do not agree.
    """
    reader = thrift.Reader(data)
    chunks = _Chunks(data)
    schema = data[:0]
    types: list[int] | None = None
    file_rows: int | None = None
    arrow_schema = created_by = b""
    rows: list[int] = []
    starts: list[int] = []
    for number, kind in reader.fields():
        begin = reader.position
        if kind in (thrift.TRUE, thrift.FALSE):
            continue
        if number == 2 and kind == thrift.LIST:
            types = _schemas.read(reader, lambda: list(_leaves(_structs(reader))))
            schema = data[begin : reader.position]
        elif number == 3 and kind in _INTEGERS:
            file_rows = reader.integer()
        elif number == 4 and kind == thrift.LIST:
            rows, starts = [], []
            for _ in range(_struct_count(reader)):
                rows.append(_walk_row_group(reader, chunks, starts, types))
        elif number == 5 and kind == thrift.LIST:
            arrow_schema = _metadata.read(reader, lambda: _arrow_schema(reader))
        elif number == 6 and kind == thrift.BINARY:
            created_by = reader.take(reader.varint())
        else:
            reader.value(kind, 1)
    if types is None:
        raise ThriftError("there is no schema")
    if file_rows != sum(rows):
        raise ThriftError(f"the row groups have {sum(rows):,} rows where the file has {file_rows}")
    return Footer(
        created_by=created_by.decode(errors="replace"),
        types=types,
        rows=np.array(rows, np.int64),
        _data=data,
        _schema=schema,
        _arrow_schema=arrow_schema,
        _starts=np.array(starts, np.int64).reshape(len(rows), len(types)),
        _shapes=tuple(chunks.shapes.values()),
        _traced=chunks.traced,
    )


class _Remembered(Generic[T]):
    """What the last bytes of a kind were read as: the files of a set mostly have the same schema and metadata.

    A value of Thrift says itself where it ends, so bytes that begin with all of another value are that value.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, T] | None = None  # replaced as a whole: threads read footers at the same time

    def read(self, reader: thrift.Reader, read: Callable[[], T]) -> T:
        """``read()``, which moves the reader on, or what it was the last time."""
        begin, last = reader.position, self._last
        if last is not None and reader.data[begin : begin + len(last[0])] == last[0]:
            reader.position += len(last[0])
            return last[1]
        value = read()
        if reader.position - begin <= _REMEMBERED_BYTES:
            self._last = bytes(reader.data[begin : reader.position]), value
        return value


_schemas = _Remembered[list[int]]()
_metadata = _Remembered[bytes]()


def _at(fields: thrift.Value, path: Sequence[int]) -> thrift.Value | None:
    found: thrift.Value | None = fields
    for number in path:
        found = found.get(number) if isinstance(found, dict) else None
    return found


def _struct_count(reader: thrift.Reader) -> int:
    count, kind = reader.list_header()
    if count and kind != thrift.STRUCT:
        raise ThriftError(f"a list before byte {reader.position} is no list of structs")
    return count


def _structs(reader: thrift.Reader) -> Iterator[Fields]:
    for _ in range(_struct_count(reader)):
        yield reader.struct(1)


def _arrow_schema(reader: thrift.Reader) -> bytes:
    """The struct of the key ``ARROW:schema`` in the file's metadata, or no bytes."""
    found = b""
    for _ in range(_struct_count(reader)):
        begin = reader.position
        if reader.struct(1).get(1) == b"ARROW:schema":
            found = bytes(reader.data[begin : reader.position])
    return found


# ── row groups ───────────────────────────────────────────────────────────────────────────────────────────────────


def _walk_row_group(reader: thrift.Reader, chunks: _Chunks, starts: list[int], types: Sequence[int] | None) -> int:
    """A row group's rows; the beginnings of its column chunks are added to ``starts``."""
    rows: int | None = None
    count = 0
    for number, kind in reader.fields():
        if number == 1 and kind == thrift.LIST:
            count = _struct_count(reader)
            position = reader.position
            for _ in range(count):
                starts.append(position)
                position = chunks.end(position)
            reader.position = position
            tail = _PLAIN_TAIL.match(reader.data, position)
            if tail:
                reader.position = tail.start(1)
                rows = reader.integer()
                reader.position = tail.end()
                break
        elif number == 3 and kind in _INTEGERS:
            rows = reader.integer()
        elif kind not in (thrift.TRUE, thrift.FALSE):
            reader.value(kind, 2)
    if types is None or count != len(types):
        raise ThriftError(f"a row group has {count} columns where the schema has {len(types or ())}")
    if rows is None or not 0 <= rows < 2**63:
        raise ThriftError(f"a row group of {rows} rows")
    return rows


class _Tracer(thrift.Reader):
    """Reads a struct whose values are not the payloads, but the numbers of their steps."""

    __slots__ = ("payloads",)

    def __init__(self, data: memoryview, position: int) -> None:
        super().__init__(data, position)
        self.payloads: list[tuple[int, int, int]] = []  # (type, first byte, end)

    def value(self, kind: int, depth: int) -> thrift.Value:
        begin = self.position
        value = super().value(kind, depth)
        if kind in (thrift.LIST, thrift.SET, thrift.MAP, thrift.STRUCT):
            return value
        self.payloads.append((kind, begin, self.position))
        return len(self.payloads) - 1


@dataclass(frozen=True, slots=True)
class _Shape:
    """What structs of a shape have in common.

    Attributes:
        literals: the bytes before each payload, and those after the last one.
        kinds: each payload's type.
        fields: the fields, each with the number of its payload.
        steps: the payloads that hold what `_PATHS` names.
        encrypted: whether its numbers are, or the data.
    """

    literals: tuple[bytes, ...]
    kinds: tuple[int, ...]
    fields: Fields = field(compare=False)
    steps: Mapping[str, int] = field(compare=False)
    encrypted: bool = field(compare=False)

    @classmethod
    def of(cls, data: memoryview, begin: int, tracer: _Tracer, fields: Fields) -> _Shape:
        """That of the struct that begins there, and was read by the tracer."""
        kinds = tuple(kind for kind, _, _ in tracer.payloads)
        edges = [begin, *(edge for _, first, end in tracer.payloads for edge in (first, end)), tracer.position]
        found = {name: _at(fields, path) for name, path in _PATHS.items()}
        return cls(
            literals=tuple(bytes(data[a:b]) for a, b in zip(edges[::2], edges[1::2], strict=True)),
            kinds=kinds,
            fields=fields,
            steps={
                name: step
                for name, step in found.items()
                if type(step) is int and kinds[step] in (*_INTEGERS, thrift.BINARY)
            },
            encrypted=_at(fields, _ENCRYPTED) is not None,
        )


@dataclass(frozen=True, slots=True)
class _Traced:
    """A struct that was read step by step, or as one of a known shape.

    Attributes:
        shape: of it.
        spans: (first byte, end) of each payload.
        end: the byte after the struct.
    """

    shape: _Shape
    spans: Sequence[tuple[int, int]]
    end: int


def _traced(data: memoryview, begin: int) -> _Traced:
    """The struct that begins there, read step by step."""
    tracer = _Tracer(data, begin)
    shape = _Shape.of(data, begin, tracer, tracer.struct(3))
    return _Traced(shape, [(first, end) for _, first, end in tracer.payloads], tracer.position)


class _Patterns:
    """The shapes of structs that were read before, as patterns: the next file's are mostly of the same.

    A pattern takes as long to make as it saves in some twenty structs. So no more are made than have paid for that.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[re.Pattern[bytes], _Shape], ...] = ()  # replaced as a whole, as threads read
        self._saved = _MOST_PATTERNS * _COST_OF_PATTERN  # in structs; threads may lose some

    def trace(self, data: memoryview, begin: int, likely: int = 0) -> tuple[_Traced, int]:
        """The struct that begins there; and the place of the pattern that is likely the next one's, given the same of
        this one.
        """
        known = self._known
        for number in range(len(known)):
            place = (number + likely) % len(known)
            pattern, shape = known[place]
            match = pattern.match(data, begin)
            if match:
                self._saved = min(self._saved + 1, _MOST_PATTERNS * _COST_OF_PATTERN)
                return _Traced(shape, match.regs[1:], match.end()), place + 1
        traced = _traced(data, begin)
        if len(traced.spans) <= _MOST_GROUPS and self._saved >= _COST_OF_PATTERN:
            self._saved -= _COST_OF_PATTERN
            self._known = (*known[1 - _MOST_PATTERNS :], (_pattern(data, traced.shape, traced.spans), traced.shape))
        return traced, 0


def _pattern(data: memoryview, shape: _Shape, spans: Sequence[tuple[int, int]]) -> re.Pattern[bytes]:
    """What structs match that have the same bytes but for integers, and for what is in byte strings as long."""
    parts = [re.escape(shape.literals[0])]
    for kind, literal, (first, end) in zip(shape.kinds, shape.literals[1:], spans, strict=True):
        payload = b".{%d}" % (end - first)
        if kind in _INTEGERS:
            payload = _VARINT
        elif kind == thrift.BINARY:
            length = thrift.read_varint(data, first)[1]
            payload = re.escape(bytes(data[first:length])) + b".{%d}" % (end - length)
        parts += [b"(", payload, b")", re.escape(literal)]
    return re.compile(b"".join(parts), re.DOTALL)


_patterns = _Patterns()


class _Chunks:
    """Where the structs of column chunks end."""

    def __init__(self, data: memoryview) -> None:
        self.shapes: dict[_Shape, _Shape] = {}
        self.traced: dict[int, _Traced] = {}  # of a short footer, by where they begin
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._ends: dict[int, int] = {}
        self._candidates: dict[tuple[bytes, ...], IntArray] = {}
        self._likely = 0

    def end(self, begin: int) -> int:
        """The byte after the struct that begins at ``begin``."""
        end = self._ends.get(begin)
        if end is not None:
            return end
        if len(self._data) <= _LONG:
            self.traced[begin], self._likely = _patterns.trace(self._data, begin, self._likely)
            return self.traced[begin].end
        traced = _traced(self._data, begin)
        shape = traced.shape
        if len(shape.kinds) <= _MOST_STEPS and len(self.shapes) < _MOST_SHAPES and shape not in self.shapes:
            self.shapes[shape] = shape
            self._follow_all(shape)
        return traced.end

    def _follow_all(self, shape: _Shape) -> None:
        if not shape.kinds or shape.kinds[0] not in _INTEGERS:
            return
        first = shape.literals[:2]
        positions = self._candidates.get(first)
        if positions is None:
            pattern = re.compile(re.escape(first[0]) + _VARINT + re.escape(first[1]), re.DOTALL)
            positions = np.array([match.start() for match in pattern.finditer(self._data)], np.int64)
        lanes, ends, _ = _follow(self._bytes, shape, positions)
        self._ends.update(zip(positions[lanes].tolist(), ends.tolist(), strict=True))
        self._candidates[first] = np.delete(positions, lanes)


# ── many structs at once ─────────────────────────────────────────────────────────────────────────────────────────


def _follow(
    data: ByteArray, shape: _Shape, starts: IntArray, wanted: frozenset[int] = frozenset()
) -> tuple[IntArray, IntArray, dict[int, IntArray]]:
    """Which of the positions in ``data`` begin a struct of the shape, where those end, and where their ``wanted``
    payloads are. Reading stops at the end of the data, where the last byte is repeated: what got there is left out.
    """
    lanes = np.arange(len(starts))
    positions = starts
    found: dict[int, IntArray] = {}
    for step, literal in enumerate(shape.literals):
        for byte in literal:
            same = data.take(positions, mode="clip") == byte
            positions = positions + 1
            if not same.all():
                lanes, positions = lanes[same], positions[same]
                found = {number: kept[same] for number, kept in found.items()}
        if step == len(shape.kinds):
            break
        if step in wanted:
            found[step] = positions
        positions = _skip(data, shape.kinds[step], positions)
    inside = positions <= len(data)
    return lanes[inside], positions[inside], {number: kept[inside] for number, kept in found.items()}


def _skip(data: ByteArray, kind: int, positions: IntArray) -> IntArray:
    """The bytes after payloads of a type."""
    if kind in _INTEGERS:
        return _varint_ends(data, positions)
    if kind == thrift.BINARY:
        ends = _varint_ends(data, positions)
        return ends + np.minimum(_varints(data, positions, ends), len(data))
    return positions + {thrift.DOUBLE: 8, thrift.UUID: 16}.get(kind, 1)


def _varint_ends(data: ByteArray, positions: IntArray) -> IntArray:
    more = data.take(positions, mode="clip") > 127
    ends = positions + 1
    for _ in range(9):
        if not more.any():
            return ends
        ends += more
        more &= data.take(ends - 1, mode="clip") > 127
    ends[more] = len(data) + 1  # too long for an integer
    return ends


def _varints(data: ByteArray, positions: IntArray, ends: IntArray) -> IntArray:
    """Varints of at most `_VARINT_BYTES` bytes, which are 63 bits; longer ones are cut."""
    values = np.zeros(len(positions), np.int64)
    longest = int((ends - positions).max(initial=0))
    for place in range(min(longest, _VARINT_BYTES)):
        byte = data.take(positions + place, mode="clip").astype(np.int64)
        values |= np.where(positions + place < ends, (byte & 127) << 7 * place, 0)
    return values


def _integers(data: ByteArray, positions: IntArray) -> tuple[IntArray, BoolArray]:
    """Signed integers, and which of them are known."""
    ends = _varint_ends(data, positions)
    values = _varints(data, positions, ends)
    return (values >> 1) ^ -(values & 1), ends - positions <= _VARINT_BYTES


def _numbers(data: ByteArray, positions: IntArray) -> tuple[IntArray, BoolArray]:
    """Byte strings of 4 or 8 bytes as little-endian integers, and which of them are such."""
    values = np.zeros(len(positions), np.int64)
    lengths = data.take(positions, mode="clip")
    for length, dtype in ((4, "<i4"), (8, "<i8")):
        picked = np.flatnonzero(lengths == length)
        octets = data.take(positions[picked, None] + np.arange(1, length + 1), mode="clip")
        values[picked] = octets.view(dtype)[:, 0]
    return values, (lengths == 4) | (lengths == 8)


# ── the schema ───────────────────────────────────────────────────────────────────────────────────────────────────


def _leaves(elements: Iterator[Fields]) -> Iterator[int]:
    """The type of every leaf, depth first as they are stored."""
    root = next(elements, None)
    if root is None:
        raise ThriftError("there is no schema")
    open_groups = [_children(root)]  # of each group we are in, the children left
    for element in elements:
        while open_groups and not open_groups[-1]:
            open_groups.pop()
        if not open_groups:
            raise ThriftError("the schema has elements in no group")
        open_groups[-1] -= 1
        if 3 in element:  # where it is missing pyarrow takes it for required
            _enum(element, 3, "repetition", _REPETITIONS)
        if element.get(5):
            open_groups.append(_children(element))
        elif 1 in element:  # else a group without children
            yield _enum(element, 1, "type", _TYPES)
    if any(open_groups):
        raise ThriftError("the schema ends in the middle of a group")


def _children(element: Fields) -> int:
    value = element.get(5, 0)
    if type(value) is not int or value < 0:
        raise ThriftError(f"a group of {value!r} columns")
    return value


def _enum(fields: Fields, number: int, name: str, count: int) -> int:
    value = fields.get(number)
    if type(value) is not int or not 0 <= value < count:
        raise ThriftError(f"there is no {name} {value!r}")
    return value
