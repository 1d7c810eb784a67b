"""A schema to its columns: which may hold tokens, and which nodes and buffers of a record batch are theirs.

Nodes and buffers come depth first. Of a column ``meta: struct<a: string, ids: list<int32>>``

    node      meta          meta.a                     meta.ids             its values
    buffers   validity      validity, offsets, data    validity, offsets    validity, values
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from ..base import ColumnLayout, Leaf

__all__ = ["Column", "columns_of", "layout_of", "list_size"]


_MOST_LIST_SIZE = 10**9 - 1  # as much as `ColumnLayout.kind` may say


class Node(NamedTuple):
    """Where a field is in a record batch.

    Attributes:
        number: of its node.
        buffer: its first buffer, as long as there are no views of strings before it.
        views: how many columns of such views come before it, each with more buffers in a batch.
    """

    number: int
    buffer: int
    views: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A leaf column of a schema: a list of something that is no list or struct, or that something itself.

    Attributes:
        leaf: its name and type, and whether it is a list of integers.
        kind: of the list, see `ColumnLayout.kind`; "" where it is none.
        parents: of each struct that it lies in.
        own: its own.
        is_encoded: whether it is a list of integers, and encoded by a dictionary.
    """

    leaf: Leaf
    kind: str
    parents: tuple[Node, ...]
    own: Node
    is_encoded: bool


@functools.lru_cache(maxsize=64)
def list_size(kind: str) -> int:
    """How many values each list has, by a layout's kind; 0 where that differs.

    >>> list_size("fixed_size_list[512]"), list_size("list")
    (512, 0)
    """
    match = re.fullmatch(r"fixed_size_list\[(\d+)\]", kind)
    return int(match[1]) if match else 0


# Values of aligned columns that are no integers, by their Arrow types: NumPy's names, and those of integers as large.
_NO_INTEGERS = {
    "bool": ("bool", "uint8"),
    "halffloat": ("float16", "int16"),
    "float": ("float32", "int32"),
    "double": ("float64", "int64"),
}


def layout_of(column: Column) -> ColumnLayout:
    """How a file stores its tokens, or the values of an aligned column."""
    kind = str(column.leaf.type)  # of integers it is NumPy's name
    values, physical_type = _NO_INTEGERS.get(kind, ("", kind))
    return ColumnLayout(
        column=column.leaf.name,
        physical_type=physical_type,
        signed=column.leaf.signed,
        max_definition_level=1 + column.leaf.nullable_element,
        nullable_element=column.leaf.nullable_element,
        kind=column.kind,
        values=values,
    )


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The leaf columns of a schema."""
    return tuple(_Walk().fields(schema))


class _Walk:
    """A walk over a schema: how many nodes, buffers and columns of views there have been."""

    def __init__(self) -> None:
        self._node = self._buffer = self._views = 0

    def fields(self, schema: pa.Schema) -> Iterator[Column]:
        for field in schema:
            yield from self._field(field.name, field.type, ())

    def _field(self, name: str, kind: pa.DataType, parents: tuple[Node, ...]) -> Iterator[Column]:
        kind = _storage(kind)
        if pa.types.is_struct(kind):
            parents = (*parents, Node(self._node, self._buffer, self._views))
            self._take(1, 1)
            for field in kind:
                yield from self._field(f"{name}.{field.name}", field.type, parents)
            return
        own = Node(self._node, self._buffer, self._views)
        self._skip(kind)
        encoded = pa.types.is_dictionary(kind)
        plain = _storage(kind.value_type) if encoded else kind
        form, nullable = _form(plain), False
        if form:
            nullable = plain.value_field.nullable
            plain = _storage(plain.value_type)
            if pa.types.is_dictionary(plain):
                encoded, plain = True, plain.value_type
        integer = pa.types.is_integer(plain)
        is_values = bool(form) and not encoded and (integer or str(plain) in _NO_INTEGERS)
        leaf = Leaf(
            number=own.number,
            name=name,
            type=plain if is_values else kind,
            is_tokens=is_values and integer,
            nullable_element=nullable,
            signed=not integer or pa.types.is_signed_integer(plain),
            is_values=is_values,
            lists=int(is_values),
        )
        is_encoded = integer and bool(form) and encoded
        yield Column(leaf=leaf, kind=form, parents=parents, own=own, is_encoded=is_encoded)

    def _take(self, nodes: int, buffers: int) -> None:
        self._node += nodes
        self._buffer += buffers

    def _skip(self, kind: pa.DataType) -> None:
        """Count a type's nodes and buffers, and those of the types in it."""
        types, kind = pa.types, _storage(kind)
        if types.is_dictionary(kind):  # its values are in other batches
            kind = kind.index_type
        self._take(1, _own_buffers(kind))
        self._views += types.is_string_view(kind) or types.is_binary_view(kind)
        if types.is_map(kind):
            self._take(1, 1)  # the struct of keys and items
            self._skip(kind.key_type)
            self._skip(kind.item_type)
        elif _form(kind) or types.is_fixed_size_list(kind):
            self._skip(kind.value_type)
        elif types.is_run_end_encoded(kind):
            self._skip(kind.run_end_type)
            self._skip(kind.value_type)
        elif types.is_struct(kind) or types.is_union(kind):
            for number in range(kind.num_fields):
                self._skip(kind.field(number).type)


def _own_buffers(kind: pa.DataType) -> int:
    types = pa.types
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        return 0
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        return 1
    if types.is_union(kind):
        return 2 if kind.mode == "dense" else 1
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return 3
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return 3
    return 2  # lists, maps, views of strings, and whatever has values of a fixed size


def _storage(kind: pa.DataType) -> pa.DataType:
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind


def _form(kind: pa.DataType) -> str:
    """What kind of list a type is; "" where it is none."""
    types = pa.types
    if types.is_list(kind):
        return "list"
    if types.is_large_list(kind):
        return "large_list"
    if types.is_list_view(kind):
        return "list_view"
    if types.is_large_list_view(kind):
        return "large_list_view"
    is_sized = types.is_fixed_size_list(kind) and 0 <= kind.list_size <= _MOST_LIST_SIZE
    return f"fixed_size_list[{kind.list_size}]" if is_sized else ""
