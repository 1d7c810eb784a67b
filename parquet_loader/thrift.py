"""Just enough of Thrift's compact protocol to write a Parquet footer.

A struct is a run of fields, each one byte of (difference of field ids << 4 | type) and a value, ended by a zero byte:

    struct((1, I32, 2), (3, I64, 300))   ->   15 04  26 d8 04  00
                                              │  │   │  │      └ end
                                              │  │   │  └ zigzag varint 600
                                              │  │   └ field 1 + 2, type 6 (i64)
                                              │  └ zigzag varint 4
                                              └ field 0 + 1, type 5 (i32)

Source: the Thrift compact protocol specification, and parquet.thrift for the fields.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BINARY", "I32", "I64", "LIST", "STRUCT", "binary", "integer", "struct", "struct_list"]

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


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


def struct(*fields: tuple[int, int, int | bytes]) -> bytes:
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
