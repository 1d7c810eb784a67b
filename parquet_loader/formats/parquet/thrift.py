"""Just enough of Thrift's compact protocol to write a Parquet footer and to read a page header.

A struct is a run of fields, each one byte of (difference of field ids << 4 | type) and a value, ended by a zero byte:

    struct((1, I32, 2), (3, I64, 300))   ->   15 04  26 d8 04  00
                                              │  │   │  │      └ end
                                              │  │   │  └ zigzag varint 600
                                              │  │   └ field 1 + 2, type 6 (i64)
                                              │  └ zigzag varint 4
                                              └ field 0 + 1, type 5 (i32)

and `read_struct` turns it back into ``{1: 2, 3: 300}``. It reads any well-formed struct, whatever its fields, and
trusts no byte: nothing is read past the end, nested deeper than `MAX_DEPTH` or allocated for a length that the data
does not have, so that the work is bounded by the bytes given.

Source: the Thrift compact protocol specification, and parquet.thrift for the fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, Union

import numpy as np
import numpy.typing as npt

__all__ = [
    "BINARY",
    "I32",
    "I64",
    "LIST",
    "MAX_DEPTH",
    "STRUCT",
    "Alike",
    "Columns",
    "Field",
    "Reader",
    "ThriftError",
    "Value",
    "binary",
    "integer",
    "read_alike",
    "read_struct",
    "read_varint",
    "sequence",
    "struct",
    "struct_list",
    "varint",
]

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
MAX_DEPTH = 16

Field: TypeAlias = tuple[int, int, "int | bytes"]
Columns: TypeAlias = dict[int, "bool | npt.NDArray[np.int64] | Columns"]
Value: TypeAlias = Union[bool, int, bytes, list["Value"], dict[int, "Value"]]  # noqa: UP007 (a name in quotes)


def varint(value: int) -> bytes:
    """``value`` >= 0 as a base-128 varint, least significant group first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(value: int) -> bytes:
    """A signed integer: zigzag, so that small magnitudes are short, then varint."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def binary(value: bytes) -> bytes:
    """A length-prefixed byte string."""
    return varint(len(value)) + value


def sequence(item_type: int, items: Sequence[bytes]) -> bytes:
    """A list of items that are encoded already."""
    head = min(len(items), 15) << 4 | item_type
    return bytes([head]) + (varint(len(items)) if len(items) >= 15 else b"") + b"".join(items)


def struct_list(*items: bytes) -> bytes:
    """A list of structs."""
    return sequence(STRUCT, items)


def struct(*fields: Field) -> bytes:
    """A struct of (field id, type, value): integers are encoded here, everything else is encoded already.

    Field ids must rise, by at most 15 a step.
    """
    out = bytearray()
    last = 0
    for field, kind, value in fields:
        assert 0 < field - last <= 15
        out.append((field - last) << 4 | kind)
        out += integer(value) if isinstance(value, int) else value
        last = field
    out.append(0)
    return bytes(out)


class ThriftError(ValueError):
    """Bytes that are no struct of the compact protocol."""


def read_struct(data: memoryview, position: int) -> tuple[dict[int, Value], int]:
    """The struct at ``position`` as {field id: value}, and the position after it.

    Doubles and UUIDs stay bytes, sets are lists, and a map is a list of its keys and values in turn.

    Raises:
        ThriftError: it is cut short, nested too deeply, or malformed.
    """
    reader = Reader(data, position)
    return reader.struct(0), reader.position


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """The varint at ``position`` and the position after it. Raises `ThriftError` where it is cut short."""
    value = shift = 0
    try:
        while (byte := data[position]) > 127:
            value |= (byte & 127) << shift
            shift += 7
            position += 1
            if shift == 70:
                raise ThriftError(f"an integer of more than 10 bytes before byte {position}")
    except IndexError:
        raise ThriftError(f"cut short at byte {position}") from None
    return value | byte << shift, position + 1


class Reader:
    """Reads values one after another, from `position` on; `ThriftError` where one is malformed or cut short."""

    __slots__ = ("data", "position")

    def __init__(self, data: memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position

    def byte(self) -> int:
        """The next byte."""
        try:
            byte = self.data[self.position]
        except IndexError:
            raise ThriftError(f"cut short at byte {self.position}") from None
        self.position += 1
        return byte

    def take(self, length: int) -> bytes:
        """The next ``length`` bytes."""
        if length > len(self.data) - self.position:
            raise ThriftError(f"a value of {length} bytes at byte {self.position} is cut short")
        self.position += length
        return bytes(self.data[self.position - length : self.position])

    def varint(self) -> int:
        """An unsigned integer, such as the length of a byte string."""
        value, self.position = read_varint(self.data, self.position)
        return value

    def integer(self) -> int:
        """A signed integer."""
        value, self.position = read_varint(self.data, self.position)
        return (value >> 1) ^ -(value & 1)

    def length(self, per_item: int) -> int:
        """An item count that the bytes left can hold, at ``per_item`` bytes or more each."""
        count = self.varint()
        if count * per_item > len(self.data) - self.position:
            raise ThriftError(f"{count} items at byte {self.position} are more than the bytes left")
        return count

    def struct(self, depth: int) -> dict[int, Value]:
        """A struct as {field id: value}, ``depth`` structs and lists deep."""
        if depth > MAX_DEPTH:
            raise ThriftError(f"structures nested more than {MAX_DEPTH} deep at byte {self.position}")
        fields: dict[int, Value] = {}
        for field, kind in self.fields():
            # A boolean field has its value in the type; as a list's item it is a byte.
            fields[field] = kind == TRUE if kind in (TRUE, FALSE) else self.value(kind, depth + 1)
        return fields

    def fields(self) -> Iterator[tuple[int, int]]:
        """(Field id, type) of a struct's every field. Its value is next, to be read before the next field is asked for,
        except for booleans, which have it in their type."""
        field = 0
        while head := self.byte():
            field = field + (head >> 4) if head >> 4 else self.integer()
            yield field, head & 15

    def list_header(self) -> tuple[int, int]:
        """(Items, their type) of a list; the items are next."""
        head = self.byte()
        return head >> 4 if head >> 4 < 15 else self.length(1), head & 15

    def value(self, kind: int, depth: int) -> Value:
        """A value of a type, which is not a boolean field's."""
        if kind in (I16, I32, I64):
            return self.integer()
        if kind == STRUCT:
            return self.struct(depth)
        if kind == BINARY:
            return self.take(self.varint())
        if kind in (TRUE, FALSE, I8):
            return self.byte()
        if kind == DOUBLE:
            return self.take(8)
        if kind == UUID:
            return self.take(16)
        if depth > MAX_DEPTH:
            raise ThriftError(f"structures nested more than {MAX_DEPTH} deep at byte {self.position}")
        if kind in (LIST, SET):
            count, item = self.list_header()
            return [self.value(item, depth + 1) for _ in range(count)]
        if kind == MAP:
            count = self.length(2)
            kinds = self.byte() if count else 0
            return [self.value(k, depth + 1) for _ in range(count) for k in (kinds >> 4, kinds & 15)]
        raise ThriftError(f"unknown type {kind} before byte {self.position}")


def read_alike(data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Alike:
    """The structs at ``begins`` that have the fields of the first one, read all at once.

    What one writer makes is alike: the bytes that say what comes next are equal, and the integers between them differ.

        15 00  15 f4 03  15 9c 02 ...      fields {1: [0, 0], 2: [250, 83], ...}
        15 00  15 a6 01  15 d8 01 ...
        15 04  25 80 10 ...                another field: not alike

    Args:
        data: bytes.
        begins: where structs begin, shape ``(structs,)``, at least one.
        ends: where each ends at the latest, shape ``(structs,)``.

    Raises:
        ThriftError: the first one is malformed, or of such values as are read by `read_struct` alone.
    """
    reader = _Alike(data, begins, int(ends[0]))
    fields = reader.struct(0)
    return Alike(fields, reader.position, reader.alike & (reader.position <= ends))


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """What `read_alike` gives.

    Attributes:
        fields: as of `read_struct`, without byte strings, and with an array of shape ``(structs,)`` for an integer.
        ends: the positions after the structs, shape ``(structs,)``.
        alike: which of the structs these are the fields of, shape ``(structs,)``. The others' numbers mean nothing.
    """

    fields: Columns
    ends: npt.NDArray[np.int64]
    alike: npt.NDArray[np.bool_]


class _Alike:
    """Reads structs that have the fields of the first one, at many positions at once. Reads anything of the others."""

    _MAX_VARINT = 5  # bytes: of 32 bits, and of counts

    def __init__(self, data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], end: int) -> None:
        self._data = data
        self._end = end  # of the first one
        self.position = begins
        self.alike = np.ones(len(begins), np.bool_)

    def struct(self, depth: int) -> Columns:
        if depth > MAX_DEPTH:
            raise ThriftError(f"structures nested more than {MAX_DEPTH} deep")
        fields: Columns = {}
        field = 0
        while head := self._byte():
            if not head >> 4:
                raise ThriftError("a field that is far from the one before it")
            field += head >> 4
            kind = head & 15
            if kind in (TRUE, FALSE):
                fields[field] = kind == TRUE
            elif kind in (I16, I32, I64):
                value = self._varint()
                fields[field] = (value >> 1) ^ -(value & 1)
            elif kind == STRUCT:
                fields[field] = self.struct(depth + 1)
            elif kind == BINARY:
                length = self._varint()  # which moves the position
                self.position = self.position + length
            else:
                raise ThriftError(f"type {kind}")
        return fields

    def _next(self) -> npt.NDArray[np.uint8]:
        found = self._data.take(self.position, mode="clip")  # whoever is beyond the end is told by the position
        self.position = self.position + 1
        return found

    def _byte(self) -> int:
        """The first struct's next byte."""
        if self.position[0] >= self._end:
            raise ThriftError("cut short")
        found = self._next()
        byte = int(found[0])
        self.alike &= found == byte
        return byte

    def _varint(self) -> npt.NDArray[np.int64]:
        byte = self._next()
        value = (byte & 127).astype(np.int64)
        more = (byte > 127).nonzero()[0]
        for place in range(1, self._MAX_VARINT):
            if not len(more):
                return value
            byte = self._data.take(self.position[more], mode="clip")
            self.position[more] += 1
            value[more] |= (byte & 127).astype(np.int64) << 7 * place
            more = more[byte > 127]
        self.alike[more] = False
        return value
