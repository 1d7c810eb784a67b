"""Columns of documents that are kept beside their tokens: where they are in a record, of which type, and as Arrow.

A set's columns have one type each, known before anything is read of the documents, so that every rank and every resumed
run writes the same. Parquet has types, and that of the first file that has the column holds for all; JSON and CSV have
none to rely on, and there a column is text:

    {"id": 7, "meta": {"lang": "en"}, "ok": null}     keep id, meta, meta.lang, ok     "7", '{"lang":"en"}', "en", null
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...errors import ConfigError, DataError

__all__ = [
    "as_text",
    "cast",
    "column_path",
    "columns_table",
    "kept_schema",
    "lookup",
    "stored_type",
    "text_types",
]

Types = Mapping[str, Any]  # pa.DataType by the column's name


def text_types(names: Sequence[str]) -> dict[str, Any]:
    """Columns of text."""
    return dict.fromkeys(names, pa.string())


def stored_type(kind: Any) -> Any:
    """The type that values of a type are written as: without a dictionary, which Parquet has by itself, and the same
    for all of Arrow's ways to hold text or bytes.
    """
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def kept_schema(types: Types, names: Sequence[str]) -> Any:
    """The Arrow fields of the columns to keep.

    Raises:
        ConfigError: the source does not give one of them, or it may be taken for tokens.
    """
    for name in names:
        if name not in types:
            raise ConfigError(f"keep_columns: this source gives no column {name!r}, but {', '.join(types) or 'none'}.")
        if _holds_integer_lists(types[name]):
            raise ConfigError(
                f"keep_columns: {name!r} is {types[name]}, and whoever reads the set would not know which list of "
                f"integers is the tokens. Omit it."
            )
    return pa.schema([pa.field(name, types[name]) for name in names])


def _holds_integer_lists(kind: Any, in_list: bool = False) -> bool:
    if pa.types.is_integer(kind):
        return in_list
    is_list = not pa.types.is_struct(kind) and kind.num_fields > 0
    inner = [kind.field(at).type for at in range(kind.num_fields)] if not pa.types.is_dictionary(kind) else []
    return any(_holds_integer_lists(each, in_list or is_list) for each in inner)


def column_path(schema: Any, column: str) -> tuple[list[str], list[Any]]:
    """The names that lead to a column, more than one within structs, and the fields there: one, if all is well."""
    fields = [field for field in schema if field.name == column]
    path = [column]
    if not fields and "." in column:
        path = column.split(".")
        fields = [field for field in schema if field.name == path[0]]
        for each in path[1:]:
            inside = fields[0].type if len(fields) == 1 else pa.null()
            fields = [field for field in inside if field.name == each] if pa.types.is_struct(inside) else []
    return path, fields


def cast(values: Any, kind: Any, file: str, column: str) -> Any:
    """The values of a column of a file, as the set's type of it.

    Raises:
        DataError: they are not to be had as that.
    """
    try:
        return values if values.type == kind else values.cast(kind)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"it is {values.type} here, and {kind} in the set ({error}). Convert the files to one type, or omit the "
            f"column from keep_columns.",
            path=file,
            column=column,
        ) from error


def lookup(record: Mapping[str, Any], name: str) -> Any:
    """The value of a field, ``parent.child`` within an object; None where there is none."""
    value: Any = record
    for each in [name] if name in record else name.split("."):
        if not isinstance(value, dict) or each not in value:
            return None
        value = value[each]
    return value


def as_text(value: Any, origin: str, column: str) -> str | None:
    """A value as text: a string is itself, what is null stays so, and all else is as JSON writes it.

    Raises:
        DataError: it holds half of a surrogate pair.
    """
    if value is None:
        return None
    text = (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"character {error.start} is {error.object[error.start]!r}, half of a surrogate pair, which is no "
                f"character. Correct or remove the record, or omit the column from keep_columns.",
                path=origin,
                column=column,
            ) from error
    return text


def columns_table(rows: Sequence[tuple[Sequence[Any], str]], schema: Any) -> Any:
    """Rows of kept columns as an Arrow table.

    Args:
        rows: of each document the values, which may be Arrow's, and its origin.
        schema: see `kept_schema`.

    Raises:
        DataError: a value is not of its column's type.
    """
    columns = []
    for at, field in enumerate(schema):
        values = [row[at] if row else None for row, _ in rows]
        try:
            columns.append(_array(values, field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for value, (_, origin) in zip(values, rows, strict=True):
                try:
                    _array([value], field.type)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    problem = f"the value is not {field.type} ({error}). Omit the column from keep_columns."
                    raise DataError(problem, path=origin, column=field.name) from error
            raise
    return pa.Table.from_arrays(columns, schema=schema)


def _array(values: list[Any], kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except TypeError:  # pyarrow does not take every Scalar, a null map for one
        return pa.array([each.as_py() if isinstance(each, pa.Scalar) else each for each in values], kind)
