"""One column's pages as a Parquet file of their own, in memory, so that pyarrow reads them without the real footer.

    "PAR1" │ the pages │ a footer made here │ the footer's length │ "PAR1"

The file has one column, named as the caller likes: pages depend on the schema's levels and physical type alone. It may
have several row groups, whose pages follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import thrift

__all__ = [
    "FLAT_LEAF",
    "FLAT_SCHEMA",
    "FOOTER_BYTES",
    "MAGIC",
    "OPTIONAL",
    "PAGE_HEADER_BYTES",
    "PHYSICAL_TYPES",
    "REPEATED",
    "REQUIRED",
    "ROW_GROUP_BYTES",
    "file_footer",
    "page_header",
    "row_group",
    "schema_group",
    "schema_leaf",
]

MAGIC = b"PAR1"
PHYSICAL_TYPES = {"INT32": 1, "INT64": 2, "BOOLEAN": 0, "FIXED_LEN_BYTE_ARRAY": 7}
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2


def row_group(
    *,
    leaf: Sequence[bytes],
    physical_type: str,
    codec: int,
    rows: int,
    slots: int,
    pages_bytes: int,
    data_offset: int,
    dictionary_offset: int,
    first_page: int = len(MAGIC),
) -> bytes:
    """A row group's entry in the footer.

    Args:
        leaf: the column's path in the schema.
        physical_type: a key of `PHYSICAL_TYPES`.
        codec: the compression's number in parquet.thrift.
        rows: rows of the row group.
        slots: the column's ``num_values``.
        pages_bytes: bytes of all pages, headers included.
        data_offset: the first data page's place, from the first page.
        dictionary_offset: the dictionary page's place, from the first page; -1 where there is none.
        first_page: the first page's place in the file.
    """
    column: list[thrift.Field] = [
        (1, thrift.I32, PHYSICAL_TYPES[physical_type]),
        (2, thrift.LIST, thrift.sequence(thrift.I32, [thrift.integer(0)])),
        (3, thrift.LIST, thrift.sequence(thrift.BINARY, [thrift.binary(name) for name in leaf])),
        (4, thrift.I32, codec),
        (5, thrift.I64, slots),
        (6, thrift.I64, pages_bytes),
        (7, thrift.I64, pages_bytes),
        (9, thrift.I64, first_page + data_offset),
    ]
    if dictionary_offset >= 0:
        column.append((11, thrift.I64, first_page + dictionary_offset))
    column_chunk = thrift.struct((2, thrift.I64, first_page), (3, thrift.STRUCT, thrift.struct(*column)))
    return thrift.struct(
        (1, thrift.LIST, thrift.struct_list(column_chunk)),
        (2, thrift.I64, pages_bytes),
        (3, thrift.I64, rows),
    )


def file_footer(*, schema: bytes, rows: int, row_groups: Sequence[bytes], arrow_schema: bytes = b"") -> bytes:
    """Everything that comes after the pages.

    Args:
        schema: the encoded list of schema elements, the root first.
        rows: rows of the file.
        row_groups: what `row_group` gives of each.
        arrow_schema: what ``ARROW:schema`` says, in base 64; empty for no such entry.
    """
    fields: list[thrift.Field] = [
        (1, thrift.I32, 2),
        (2, thrift.LIST, schema),
        (3, thrift.I64, rows),
        (4, thrift.LIST, thrift.struct_list(*row_groups)),
    ]
    if arrow_schema:
        key_value = thrift.struct(
            (1, thrift.BINARY, thrift.binary(b"ARROW:schema")), (2, thrift.BINARY, thrift.binary(arrow_schema))
        )
        fields.append((5, thrift.LIST, thrift.struct_list(key_value)))
    footer = thrift.struct(*fields)
    return footer + len(footer).to_bytes(4, "little") + MAGIC


def schema_group(name: bytes, *, repetition: int | None = None, converted: int | None = None) -> bytes:
    """A schema element with one child; the root has no repetition."""
    fields: list[thrift.Field] = [(4, thrift.BINARY, thrift.binary(name)), (5, thrift.I32, 1)]
    if repetition is not None:
        fields.insert(0, (3, thrift.I32, repetition))
    if converted is not None:
        fields.append((6, thrift.I32, converted))
    return thrift.struct(*fields)


def schema_leaf(name: bytes, physical_type: str, repetition: int) -> bytes:
    """A schema element that holds values, of two bytes where any number may be meant."""
    fields: list[thrift.Field] = [
        (1, thrift.I32, PHYSICAL_TYPES[physical_type]),
        (3, thrift.I32, repetition),
        (4, thrift.BINARY, thrift.binary(name)),
    ]
    if physical_type == "FIXED_LEN_BYTE_ARRAY":
        fields.insert(1, (2, thrift.I32, 2))
    return thrift.struct(*fields)


FLAT_SCHEMA = {
    physical_type: thrift.struct_list(schema_group(b"schema"), schema_leaf(b"v", physical_type, REQUIRED))
    for physical_type in PHYSICAL_TYPES
}


FLAT_LEAF = (b"v",)

PAGE_HEADER_BYTES = 40  # at most, of `page_header`
FOOTER_BYTES = 256  # at most, of `file_footer` with `FLAT_SCHEMA`, without row groups
ROW_GROUP_BYTES = 128  # at most, of `row_group` with `FLAT_LEAF`


def page_header(kind: int, values: int, encoding: int, body_bytes: int) -> bytes:
    """The header of an uncompressed page: a dictionary (2) or a data page of version 1 (0)."""
    fields: list[thrift.Field] = [(1, thrift.I32, values), (2, thrift.I32, encoding)]
    if kind == 0:
        fields += [(3, thrift.I32, 3), (4, thrift.I32, 3)]  # the levels' encodings, of which there are none
    return thrift.struct(
        (1, thrift.I32, kind),
        (2, thrift.I32, body_bytes),
        (3, thrift.I32, body_bytes),
        (7 if kind else 5, thrift.STRUCT, thrift.struct(*fields)),
    )
