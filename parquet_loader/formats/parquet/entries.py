"""A footer to index entries: the columns that may hold tokens, and their row groups' numbers."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...advice import conversion_of
from ...blocks import IntArray
from ...errors import DataError
from ...storage.base import FileInfo, Storage
from ..base import (
    CODEC_NAMES,
    CODECS,
    ENTRY_ARRAYS,
    ColumnChunk,
    ColumnLayout,
    Counting,
    CountingBudget,
    FileEntry,
    Leaf,
    impossible_numbers,
)
from ..parts import what_it_is
from .counting import Counted, count_tokens, counting_cost
from .footer import EncryptedColumnError, Footer, Numbers, read_footer
from .pages import NotSupported
from .thrift import ThriftError

__all__ = ["MAX_ID", "read_entry"]

_TAIL_BYTES = 64 << 10
_CODEC_PLACES = np.array([CODEC_NAMES.index(name) for name in sorted(CODECS, key=CODECS.__getitem__)])


_INT32 = 1  # in parquet.thrift


MAX_ID = 2**63 - 1  # statistics of larger ids are cut to it: no such id is ever allowed
_LONG_FOOTERS = threading.BoundedSemaphore(2)  # to hold at once those that are longer than `_TAIL_BYTES`
BoolArray = npt.NDArray[np.bool_]
# Who wrote files whose null counts leave out empty and null lists, or are no counts of nulls at all: Arrow C++ before
# PARQUET-2067, arrow2 and Polars before it named its version, arrow-rs before 5 (where all is null), and parquet-mr
# before PARQUET-251.
_WRONG_NULL_COUNTS = re.compile(
    r"parquet-cpp version |parquet-cpp-arrow version [0-6]\.|Arrow2 - |Polars$|parquet-rs version [0-4]\."
    r"|parquet-mr version (0|1\.[0-7])\."
)


# Of a column that holds no value. No list of integers has this level: there is no need to look at the chunk.
_EMPTY_LAYOUT = functools.partial(
    ColumnLayout, physical_type="INT32", signed=True, max_definition_level=0, nullable_element=False
)
# Of aligned columns: what is decoded as integers of the same size, and what others than integers stand for.
_DECODED_AS = {"FLOAT": "INT32", "DOUBLE": "INT64"}
_VALUE_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
_VALUES = {"FLOAT": "float32", "DOUBLE": "float64", "BOOLEAN": "bool", "FIXED_LEN_BYTE_ARRAY": "float16"}


def read_entry(
    storage: Storage,
    file: FileInfo,
    column: str | None,
    counting: Counting | None,
    aligned: Sequence[str] = (),
) -> FileEntry:
    """See `Format.read_entry`; one read of the file's tail, or two where its footer is long."""
    length, tail = _read_tail(storage, file)
    long = length > len(tail)
    with _LONG_FOOTERS if long else contextlib.nullcontext():
        if long:
            tail = storage.read(file, file.size - length, length)
        entry = _entry_of_footer(
            memoryview(tail)[len(tail) - length : -8],
            file,
            column,
            counting is not None and counting.anew,
            aligned,
        )
    del tail
    if counting is not None:
        for layout, array in entry.columns.values():
            _count_where_unknown(storage, file, layout, array, counting.budget)
    return entry


def _read_tail(storage: Storage, file: FileInfo) -> tuple[int, bytes]:
    """The length of a file's footer, with the eight bytes after it, and as much of it as one read gave."""
    if file.size < 12 and not conversion_of([file.path], file.path):
        raise DataError(
            f"is {file.size} bytes long, too short for a Parquet file; was its writing or copying cut off?",
            path=file.path,
        )
    tail = storage.read(file, max(0, file.size - _TAIL_BYTES), min(file.size, _TAIL_BYTES))
    if tail[-4:] == b"PARE":
        raise DataError("has an encrypted footer; encrypted files cannot be read, decrypt it first", path=file.path)
    if tail[-4:] != b"PAR1":
        raise _not_parquet(storage, file)
    length = int.from_bytes(tail[-8:-4], "little")
    if length > file.size - 12:
        raise DataError(f"claims a footer of {length:,} bytes in {file.size:,}; it is damaged", path=file.path)
    return length + 8, tail


def _entry_of_footer(
    data: memoryview, file: FileInfo, column: str | None, anew: bool, aligned: Sequence[str]
) -> FileEntry:
    try:
        footer = read_footer(data)
    except ThriftError as error:
        raise DataError(f"its footer cannot be read ({error})", path=file.path) from error
    data_file = footer.data_file()
    if data_file and data_file.rsplit("/", 1)[-1] != file.path.rsplit("/", 1)[-1]:
        raise DataError(
            f"is a summary of other files' footers, as _metadata is, and holds no data: its rows are in {data_file} "
            "and others; give the folder of those files, or a glob that leaves the summary out",
            path=file.path,
        )
    try:
        leaves, layouts = _schema_of(footer.schema_file())
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"its schema cannot be read ({error})", path=file.path) from error
    if len(leaves) != len(footer.types):
        raise DataError(
            f"its schema shows {len(leaves)} columns where the file has {len(footer.types)}; its kind is unknown",
            path=file.path,
        )
    named = [leaf for leaf in leaves if column is None or leaf.name == column or leaf.name in aligned]
    names = Counter(leaf.name for leaf in leaves)
    columns = {}
    for leaf in named:
        if not (leaf.is_values if leaf.name in aligned else leaf.is_tokens):
            continue
        if names[leaf.name] > 1:
            raise DataError(
                "two columns have this name; rename one, or say which other column holds the tokens",
                path=file.path,
                column=leaf.name,
            )
        array = _row_group_numbers(footer, leaf, file)
        if anew or _WRONG_NULL_COUNTS.match(footer.created_by):
            array[ENTRY_ARRAYS.index("tokens")] = -1
        _check_numbers(file, leaf, array)
        layout = layouts[leaf.number]
        if leaf.name in aligned:
            layout = _with_values(layout, leaf)
            if not leaf.is_tokens:
                array[ENTRY_ARRAYS.index("max_id")], array[ENTRY_ARRAYS.index("min_id")] = -1, 0
        columns[leaf.name] = (layout, array)
    has_tokens = bool(columns.keys() - set(aligned))
    for leaf in named:
        if leaf.name not in columns and names[leaf.name] == 1:
            looked_at = (
                pa.types.is_null(leaf.type)
                or column is not None
                or leaf.name in aligned
                or not has_tokens
                or not footer.rows.any()
            )
            empty = _empty_documents(footer, leaf, file) if looked_at else None
            if empty is not None:
                columns[leaf.name] = (_EMPTY_LAYOUT(column=leaf.name), empty)
    return FileEntry(columns, () if has_tokens and columns.keys() >= set(aligned) else leaves)


def _with_values(layout: ColumnLayout, leaf: Leaf) -> ColumnLayout:
    """The layout of a column whose values count as what they are, and not as ids."""
    values = _VALUE_NAMES.get(str(leaf.type), str(leaf.type))
    return layout if values == layout.dtype.name else replace(layout, values=values)


def _empty_documents(footer: Footer, leaf: Leaf, file: FileInfo) -> IntArray | None:
    """The row groups of a column of another type that holds no value, each row an empty document; None if it may.

    Writers that do not know what a list holds, since all are null or empty, give it any type they like.
    """
    try:
        array = _row_group_numbers(footer, leaf, file)
        _check_numbers(file, leaf, array)
    except DataError:  # it is nobody's column
        return None
    of = dict(zip(ENTRY_ARRAYS, array, strict=True))
    if not pa.types.is_null(leaf.type) and of["tokens"].any():  # the values that are not null; -1 where not known
        return None
    if (of["slots"] != of["rows"]).any():
        return None  # nulls inside documents
    of["tokens"][:], of["max_id"][:], of["min_id"][:] = 0, -1, 0
    return array


def _not_parquet(storage: Storage, file: FileInfo) -> DataError:
    head = storage.read(file, 0, min(file.size, 64))
    where = f"{storage.root}/{file.path}"
    if head[:4] == b"PAR1":
        cause = "it starts as a Parquet file but has no end: its writing or copying was cut off"
    elif head[:6] == b"ARROW1" or head[:4] == b"\xff\xff\xff\xff":
        cause = (
            "it is an Arrow IPC (Feather) file: rename it to .arrow, or name the file and give format='arrow' "
            "(--format arrow)"
        )
    else:
        cause = what_it_is(head) or conversion_of([file.path], where) or f"it starts with {head[:8]!r}"
    return DataError(f"is no Parquet file ({file.size:,} bytes): {cause}", path=file.path)


@functools.lru_cache(maxsize=8)  # the files of a set mostly have the same
def _schema_of(framed: bytes) -> tuple[tuple[Leaf, ...], dict[int, ColumnLayout]]:
    """The leaf columns of a file's schema, and the layouts of those that are lists of numbers, by their numbers."""
    # The limits only guard against allocating more than the bytes can describe, which is what the length says.
    schema = pq.ParquetFile(
        pa.BufferReader(framed), thrift_string_size_limit=len(framed), thrift_container_size_limit=len(framed)
    ).schema
    leaves = tuple(_leaves(schema.to_arrow_schema()))
    lists = [leaf for leaf in leaves if leaf.is_values and leaf.number < len(schema)]
    return leaves, {leaf.number: _layout(schema, leaf) for leaf in lists}


_APART = 1000  # more lists than there are around anything: what lies in a list of structs, or in a map, is no list


def _leaves(schema: pa.Schema) -> Iterator[Leaf]:
    """The leaf columns in the order of the Parquet file, which is depth first."""
    number = 0

    def walk(name: str, kind: pa.DataType, lists: int, nullable: bool) -> Iterator[Leaf]:
        nonlocal number
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_struct(kind):
            for field in kind:
                yield from walk(
                    f"{name}.{field.name}" if not lists else name, field.type, lists + _APART * bool(lists), True
                )
        elif pa.types.is_map(kind):
            yield from walk(name, kind.key_type, _APART, True)
            yield from walk(name, kind.item_type, _APART, True)
        elif _is_list(kind):
            yield from walk(name, kind.value_type, lists + 1, kind.value_field.nullable)
        else:
            integer = pa.types.is_integer(kind)
            signed = not integer or pa.types.is_signed_integer(kind)
            is_values = lists == 1 and (integer or pa.types.is_boolean(kind) or pa.types.is_floating(kind))
            yield Leaf(number, name, kind, integer and lists == 1, nullable, signed, is_values, lists % _APART)
            number += 1

    for field in schema:
        yield from walk(field.name, field.type, 0, field.nullable)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _layout(schema: pq.ParquetSchema, leaf: Leaf) -> ColumnLayout:
    column = schema.column(leaf.number)
    assert column.max_repetition_level == 1
    return ColumnLayout(
        column=leaf.name,
        physical_type=_DECODED_AS.get(column.physical_type, column.physical_type),
        values=_VALUES.get(column.physical_type, ""),
        signed=leaf.signed,
        max_definition_level=column.max_definition_level,
        nullable_element=leaf.nullable_element,
    )


def _row_group_numbers(footer: Footer, leaf: Leaf, file: FileInfo) -> IntArray:
    """The row groups that hold rows, in the order of `ENTRY_ARRAYS`; tokens is -1 where statistics do not tell.

    Of shape ``(numbers, row groups)``.
    """
    groups = np.flatnonzero(footer.rows)
    try:
        numbers = footer.numbers(leaf.number, groups)
    except EncryptedColumnError:
        raise DataError("is encrypted; decrypt it first", path=file.path, column=leaf.name) from None
    values, known = numbers.values, numbers.known

    def refuse(wrong: BoolArray, problem: Callable[[int], str]) -> None:
        if wrong.any():
            at = int(wrong.argmax())
            raise DataError(problem(at), path=file.path, row_group=int(groups[at]), column=leaf.name)

    kind = footer.types[leaf.number]
    refuse(
        ~known["type"] | (values["type"] != kind),
        lambda at: f"its footer gives the chunk type {values['type'][at]}, and its schema {kind}; the file is damaged",
    )
    refuse(
        ~known["codec"] | (values["codec"] < 0) | (values["codec"] >= len(CODECS)),
        lambda at: f"there is no compression {values['codec'][at]}; the file is damaged",
    )
    refuse(
        ~(known["slots"] & known["length"] & known["data_offset"]),
        lambda at: "its footer does not say where the chunk lies; the file is damaged",
    )
    dictionary = values["dictionary_offset"]
    has_dictionary = known["dictionary_offset"] & (dictionary > 0) & (dictionary < values["data_offset"])
    start = np.where(has_dictionary, dictionary, values["data_offset"])
    largest, smallest = _bounds(numbers, leaf, kind)
    entry = {
        "row_group": groups,
        "rows": footer.rows[groups],
        "slots": values["slots"],
        "tokens": np.where(known["nulls"], values["slots"] - values["nulls"], -1),
        "max_id": largest,
        "min_id": smallest,
        "start": start,
        "length": values["length"],
        "dictionary_offset": np.where(has_dictionary, 0, -1),
        "data_offset": values["data_offset"] - start,
        "codec": _CODEC_PLACES[values["codec"]],
    }
    return np.stack([entry[name] for name in ENTRY_ARRAYS])


def _bounds(numbers: Numbers, leaf: Leaf, kind: int) -> tuple[IntArray, IntArray]:
    """(Largest id or -1, smallest id or 0) of each row group, as far as its statistics tell them."""
    known = numbers.known["max_id"] & numbers.known["min_id"]
    old = ~known & numbers.known["signed_max_id"] & numbers.known["signed_min_id"] & leaf.signed

    def bound(name: str, unknown: int) -> IntArray:
        values = np.where(old, numbers.values[f"signed_{name}"], numbers.values[name])
        if not leaf.signed:
            values = values & (2**32 - 1) if kind == _INT32 else np.where(values < 0, MAX_ID, values)
        return np.where(known | old, values, unknown)

    return bound("max_id", -1), bound("min_id", 0)


def _check_numbers(file: FileInfo, leaf: Leaf, array: IntArray) -> None:
    """Refuse numbers that no whole file has."""
    wrong = impossible_numbers(array, file.size)
    if wrong is not None:
        place, numbers = wrong
        raise DataError(
            f"its footer holds impossible numbers ({numbers}); the file is damaged",
            path=file.path,
            row_group=int(array[ENTRY_ARRAYS.index("row_group"), place]),
            column=leaf.name,
        )


def _count_where_unknown(
    storage: Storage, file: FileInfo, layout: ColumnLayout, array: IntArray, budget: CountingBudget
) -> None:
    """Count the tokens of chunks of which the footer does not tell how many they hold."""
    counts, largest, smallest = (array[ENTRY_ARRAYS.index(name)] for name in ("tokens", "max_id", "min_id"))

    def count(chunk: ColumnChunk, whole: bool) -> Counted:
        with budget.hold(counting_cost(chunk, whole=whole)):
            return count_tokens(storage.read(file, chunk.start, chunk.length), chunk, whole=whole)

    for place in np.flatnonzero(counts < 0):
        chunk = ColumnChunk.of(file.path, layout, array[:, place].tolist())
        try:
            counted = count(chunk, whole=False)
        except NotSupported:
            counted = count(chunk, whole=True)
        counts[place] = counted.tokens
        if largest[place] < smallest[place] and layout.value_dtype.kind in "iu":
            largest[place], smallest[place] = min(counted.max_id, MAX_ID), min(counted.min_id, MAX_ID)
