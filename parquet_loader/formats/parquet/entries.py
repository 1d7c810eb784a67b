"""A footer to index entries: the columns that may hold tokens, and their row groups' numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...blocks import IntArray
from ...errors import DataError
from ...storage.base import FileInfo, Storage
from ..base import CODEC_NAMES, CODECS, ENTRY_ARRAYS, ColumnChunk, ColumnLayout, FileEntry, Leaf
from .decode import decode_chunk
from .footer import read_footer

__all__ = ["MAX_ID", "read_entry"]

MAX_ID = 2**63 - 1  # statistics of larger ids are cut to it: no such id is ever allowed


def read_entry(storage: Storage, file: FileInfo, column: str | None) -> FileEntry:
    """See `Format.read_entry`; one read of the file's tail, or two where its footer is long."""
    metadata = read_footer(storage, file)
    try:
        leaves = tuple(_leaves(metadata.schema.to_arrow_schema()))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"its schema cannot be read ({error})", path=file.path) from error
    if len(leaves) != metadata.num_columns:
        raise DataError(
            f"its schema shows {len(leaves)} columns where the file has {metadata.num_columns}; its kind is unknown",
            path=file.path,
        )
    wanted = [leaf for leaf in leaves if leaf.is_tokens and (column is None or leaf.name == column)]
    if not wanted:
        return FileEntry({}, leaves)
    names = Counter(leaf.name for leaf in leaves)
    columns = {}
    for leaf in wanted:
        if names[leaf.name] > 1:
            raise DataError(
                "two columns have this name; rename one, or say which other column holds the tokens",
                path=file.path,
                column=leaf.name,
            )
        layout = _layout(metadata, leaf)
        numbers = [_row_group_numbers(metadata, group, leaf, file) for group in range(metadata.num_row_groups)]
        numbers = [entry for entry in numbers if entry[ENTRY_ARRAYS.index("rows")]]
        array = np.array(numbers, np.int64).reshape(len(numbers), len(ENTRY_ARRAYS)).T
        _check_numbers(file, leaf, array)
        _count_where_unknown(storage, file, layout, array)
        columns[leaf.name] = (layout, array)
    return FileEntry(columns)


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
                    f"{name}.{field.name}" if not lists else name, field.type, lists + 9 * bool(lists), True
                )
        elif pa.types.is_map(kind):
            yield from walk(name, kind.key_type, 9, True)
            yield from walk(name, kind.item_type, 9, True)
        elif _is_list(kind):
            yield from walk(name, kind.value_type, lists + 1, kind.value_field.nullable)
        else:
            integer = pa.types.is_integer(kind)
            signed = integer and pa.types.is_signed_integer(kind)
            yield Leaf(number, name, kind, integer and lists == 1, nullable, signed)
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


def _layout(metadata: pq.FileMetaData, leaf: Leaf) -> ColumnLayout:
    column = metadata.schema.column(leaf.number)
    assert column.max_repetition_level == 1
    return ColumnLayout(
        column=leaf.name,
        physical_type=column.physical_type,
        signed=leaf.signed,
        max_definition_level=column.max_definition_level,
        nullable_element=leaf.nullable_element,
    )


def _row_group_numbers(metadata: pq.FileMetaData, group: int, leaf: Leaf, file: FileInfo) -> list[int]:
    """One row group's entry, in the order of `ENTRY_ARRAYS`; tokens is -1 where the statistics do not tell."""
    row_group = metadata.row_group(group)
    chunk = row_group.column(leaf.number)
    start = chunk.data_page_offset
    dictionary = -1
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
        start = chunk.dictionary_page_offset
        dictionary = 0
    if chunk.physical_type != metadata.schema.column(leaf.number).physical_type:  # pyarrow ends the process on these
        raise DataError(
            f"its footer calls the chunk {chunk.physical_type}, and its schema does not; the file is damaged",
            path=file.path,
            row_group=group,
            column=leaf.name,
        )
    statistics = chunk.statistics
    nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
    bounds = statistics is not None and statistics.has_min_max
    codec = "LZ4_HADOOP" if chunk.compression == "UNKNOWN" else chunk.compression  # pyarrow has no name for it
    if codec not in CODECS:
        raise DataError(
            f"compression {codec!r} is not supported; write the file anew with zstd, snappy, lz4 or none",
            path=file.path,
            row_group=group,
            column=leaf.name,
        )
    entry = {
        "row_group": group,
        "rows": row_group.num_rows,
        "slots": chunk.num_values,
        "tokens": -1 if nulls is None else chunk.num_values - nulls,
        "max_id": min(int(statistics.max), MAX_ID) if bounds else -1,
        "min_id": min(int(statistics.min), MAX_ID) if bounds else 0,
        "start": start,
        "length": chunk.total_compressed_size,
        "dictionary_offset": dictionary,
        "data_offset": chunk.data_page_offset - start,
        "codec": CODEC_NAMES.index(codec),
    }
    return [entry[name] for name in ENTRY_ARRAYS]


def _check_numbers(file: FileInfo, leaf: Leaf, array: IntArray) -> None:
    """Refuse numbers that no whole file has, before they are taken for the place of data or the size of a buffer."""
    of = dict(zip(ENTRY_ARRAYS, array, strict=True))
    wrong = (of["rows"] < 0) | (of["slots"] < of["rows"]) | (of["tokens"] < -1) | (of["tokens"] > of["slots"])
    wrong |= (of["start"] < 4) | (of["start"] > file.size) | (of["length"] > file.size - of["start"])
    wrong |= (of["length"] <= of["data_offset"]) | (of["data_offset"] < 0)
    if wrong.any():
        place = int(wrong.argmax())
        numbers = ", ".join(
            f"{name} {int(of[name][place]):,}" for name in ("rows", "slots", "tokens", "start", "length")
        )
        raise DataError(
            f"its footer holds impossible numbers ({numbers}); the file is damaged",
            path=file.path,
            row_group=int(of["row_group"][place]),
            column=leaf.name,
        )


def _count_where_unknown(storage: Storage, file: FileInfo, layout: ColumnLayout, array: IntArray) -> None:
    """Decode the chunks whose footer entry does not tell how many tokens they hold."""
    counts, largest, smallest = (array[ENTRY_ARRAYS.index(name)] for name in ("tokens", "max_id", "min_id"))
    for place in np.flatnonzero(counts < 0):
        chunk = ColumnChunk.of(file.path, layout, array[:, place].tolist())
        tokens = decode_chunk(storage.read(file, chunk.start, chunk.length), chunk).tokens
        counts[place] = len(tokens)
        if len(tokens):
            largest[place], smallest[place] = (min(int(bound), MAX_ID) for bound in (tokens.max(), tokens.min()))
