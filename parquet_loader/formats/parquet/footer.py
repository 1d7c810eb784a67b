"""Refuses the damaged footers that pyarrow ends the process on, instead of raising.

pyarrow checks much of a footer, and takes the rest for granted: a type, repetition or codec that the format does not
have, a column chunk of another type than its column, or a histogram of levels of another length than there are levels.
On those it aborts, and no training run should end without a word on one bad file of thousands.
"""

from __future__ import annotations

from collections.abc import Iterator

from .thrift import ThriftError, Value, read_struct

__all__ = ["check_footer"]

Fields = dict[int, Value]

# How many there are of each in parquet.thrift.
_TYPES, _REPETITIONS, _CODECS = 8, 3, 8
_OPTIONAL, _REPEATED = 1, 2


def check_footer(footer: memoryview) -> None:
    """Look at a ``FileMetaData`` of parquet.thrift.

    Raises:
        ThriftError: it is not well-formed, or pyarrow would end the process on it.
    """
    fields, _ = read_struct(footer, 0, i32_only=True)
    leaves = list(_leaves(_structs(fields, 2)))
    for row_group in _structs(fields, 4):
        columns = _structs(row_group, 1)
        if len(columns) != len(leaves):
            raise ThriftError(f"a row group has {len(columns)} columns where the schema has {len(leaves)}")
        for column, (kind, definition, repetition) in zip(columns, leaves, strict=True):
            meta = column.get(3)
            if not isinstance(meta, dict):
                continue  # an encrypted column's, which is refused later
            if _enum(meta, 1, "type", _TYPES) != kind:
                raise ThriftError(f"a column of type {kind} has a chunk of type {meta.get(1)!r}")
            _enum(meta, 4, "codec", _CODECS)
            sizes = meta.get(16)
            if isinstance(sizes, dict):
                _check_histogram(sizes, 2, repetition)
                _check_histogram(sizes, 3, definition)


def _leaves(schema: list[Fields]) -> Iterator[tuple[int, int, int]]:
    """(type, highest definition level, highest repetition level) of every leaf, depth first as they are stored."""
    if not schema:
        raise ThriftError("there is no schema")
    open_groups = [[_children(schema[0]), 0, 0]]  # of each group we are in: children left, and its levels
    for element in schema[1:]:
        while open_groups and not open_groups[-1][0]:
            open_groups.pop()
        if not open_groups:
            raise ThriftError("the schema has elements in no group")
        group = open_groups[-1]
        group[0] -= 1
        repetition = _enum(element, 3, "repetition", _REPETITIONS)
        definition_level = group[1] + (repetition in (_OPTIONAL, _REPEATED))
        repetition_level = group[2] + (repetition == _REPEATED)
        if element.get(5):
            open_groups.append([_children(element), definition_level, repetition_level])
        else:
            yield _enum(element, 1, "type", _TYPES), definition_level, repetition_level
    if any(left for left, _, _ in open_groups):
        raise ThriftError("the schema ends in the middle of a group")


def _children(element: Fields) -> int:
    value = element.get(5, 0)
    if type(value) is not int or value < 0:
        raise ThriftError(f"a group of {value!r} columns")
    return value


def _check_histogram(sizes: Fields, field: int, highest_level: int) -> None:
    counts = sizes.get(field, [])
    if not isinstance(counts, list) or len(counts) not in (0, highest_level + 1):
        raise ThriftError(f"a histogram is not of {highest_level + 1} levels")


def _structs(fields: Fields, field: int) -> list[Fields]:
    values = fields.get(field, [])
    if not isinstance(values, list):
        raise ThriftError(f"field {field} is no list of structs")
    structs = [value for value in values if isinstance(value, dict)]
    if len(structs) != len(values):
        raise ThriftError(f"field {field} is no list of structs")
    return structs


def _enum(fields: Fields, field: int, name: str, count: int) -> int:
    value = fields.get(field)
    if type(value) is not int or not 0 <= value < count:
        raise ThriftError(f"there is no {name} {value!r}")
    return value
