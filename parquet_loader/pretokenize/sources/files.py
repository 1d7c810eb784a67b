"""Records out of files: text, JSON lines, Parquet and CSV become one stream of records, in a fixed order.

`find_files` makes the list of files beforehand, so that whatever wants to share the files out works on a plain tuple;
`FileSource` reads them.

    inputs   ["notes.txt", "crawl/"]                      what the user wrote
    files    notes.txt  crawl/a.jsonl  crawl/b.parquet    find_files: the inputs' order, a folder's files by path
    records  notes.txt:1  notes.txt:2  crawl/a.jsonl:1    FileSource.records: streamed, one at a time
    cursors  (0, 12, 1)   (0, 30, 2)   (1, 44, 1)         file, byte offset after the record, lines before that
                                                          in Parquet: file, row after the record, rows of the file
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import ConfigError, DataError, StorageError
from .base import DEFAULT_MAX_RECORD_BYTES, BadRecord, Cursor, Record, Source, too_long
from .columns import as_text, cast, column_path, lookup, stored_type, text_types
from .compression import BUFFER_BYTES, opened
from .find import InputFile

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

__all__ = ["FileSource", "TextUnit", "types_in_files"]

TextUnit = Literal["line", "file", "paragraph"]

_PARQUET_BATCH_ROWS = 64  # documents decoded at a time; fewer where they are megabytes
_PARQUET_BATCH_BYTES = 16 << 20
_MAX_NESTING = 256  # of JSON; far below where a reader, or Python at whatever depth its stack is, would give up
_JSON_SIGNS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
_SHOWN_CHARACTERS = 60
_COMPRESSED_SHARE = 4  # text shrinks to about a quarter; only estimates of the time that is left depend on it


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(Source):
    """The records of files, read one after the other and streamed.

    Attributes:
        files: what to read, in order.
        text_column: the field of a JSON line, or the column of a Parquet or CSV file, that holds the text;
            ``"parent.child"`` within an object or a struct.
        text_unit: what one record of a ``.txt`` is: a line, the whole file, or a paragraph, up to an empty line.
        skipped: names of files that were passed over when these were found, for the summary.
        max_record_bytes: the most bytes that are held for one record, a line or a row of several; a longer one is bad.
            A value of a Parquet file is not looked at here, since Parquet's pages are read whole in any case.
        keep: the columns that records carry, and their Arrow types; see `types_in_files`.
    """

    files: tuple[InputFile, ...]
    text_column: str = "text"
    text_unit: TextUnit = "line"
    skipped: tuple[str, ...] = ()
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES
    keep: Mapping[str, Any] = field(default_factory=dict)

    def records(self, cursor: Cursor | None = None) -> Iterator[Record | BadRecord]:
        """Every record of every file, in order.

        Raises:
            DataError: the cursor is in none of these files.
        """
        if cursor is not None and (len(cursor) != 3 or cursor[0] >= len(self.files)):
            raise DataError(
                f"no position in the input is {cursor}; start again with overwrite=True.", path="the journal"
            )
        first, position, lines = cursor or (0, 0, 0)
        for at in range(first, len(self.files)):
            yield from self._records_of(at, position, lines)
            position, lines = 0, 0

    def fingerprint(self) -> dict[str, object]:
        """The files, with sizes and versions, and how they are read."""
        files = [{"name": each.name, "size_bytes": each.size_bytes, "version": each.version} for each in self.files]
        kinds = sorted({each.kind for each in self.files})
        return {"kinds": kinds, "text_column": self.text_column, "text_unit": self.text_unit, "files": files}

    def kept_types(self) -> Mapping[str, Any]:
        """See `Source`."""
        return self.keep

    def shard(self, rank: int, world_size: int) -> FileSource:
        """One rank's share: consecutive whole files, in order, of about as many bytes as every other rank's.

        Sizes 4 1 1 2 on two ranks: the middles of the files, 2 4.5 5.5 7, halve into 4 | 1 1 2.
        """
        total = max(1, sum(each.size_bytes for each in self.files))
        chosen, before = [], 0
        for file in self.files:
            if (2 * before + file.size_bytes) * world_size // (2 * total) == rank:
                chosen.append(file)
            before += file.size_bytes
        return replace(self, files=tuple(chosen))

    def fraction(self, cursor: Cursor) -> float | None:
        """By the files' sizes; within a compressed file it is a guess."""
        at, position, rows = cursor
        file = self.files[at]
        size = file.size_bytes * (_COMPRESSED_SHARE if file.compression else 1)
        within = position / max(1, rows if file.kind == "parquet" else size)
        before = sum(each.size_bytes for each in self.files[:at])
        return (before + min(1.0, within) * file.size_bytes) / max(1, sum(each.size_bytes for each in self.files))

    def _records_of(self, at: int, position: int, lines: int) -> Iterator[Record | BadRecord]:
        file = self.files[at]
        start = _Start(file, at, position, lines, self.max_record_bytes)
        if file.kind == "parquet":
            return _parquet_records(file, at, self.text_column, position, self.keep)
        if file.kind == "json":
            return _json_records(start, self.text_column, tuple(self.keep))
        if file.kind == "csv":
            return _csv_records(start, self.text_column, tuple(self.keep))
        if self.text_unit == "line":
            return _line_records(start)
        if self.text_unit == "paragraph":
            return _paragraph_records(start)
        return iter(()) if position else _whole_file_record(start)


def types_in_files(files: Sequence[InputFile], names: Sequence[str]) -> dict[str, Any]:
    """The types of columns to keep: of Parquet files that of the first one that has the column, else text.

    Raises:
        ConfigError: no file has one of them, as far as can be told without reading documents.
    """
    if not names or any(file.kind != "parquet" for file in files):
        return text_types(names)
    found: dict[str, Any] = {}
    untyped: set[str] = set()
    for file in files:
        with file.filesystem.open(file.path, "rb") as stream:
            try:
                schema = pq.read_schema(stream)
            except (pa.ArrowException, OSError):
                continue  # whoever reads its documents is told
        for name in names:
            _, fields = column_path(schema, name)
            if len(fields) == 1 and pa.types.is_null(fields[0].type):
                untyped.add(name)
            elif len(fields) == 1:
                found.setdefault(name, stored_type(fields[0].type))
        if len(found) == len(names):
            break
    for name in names:
        if name not in found and name not in untyped:
            raise ConfigError(
                f"keep_columns: none of the {len(files):,} files has a column {name!r}; {file.name} has "
                f"{', '.join(repr(each.name) for each in schema)}."
            )
    return {name: found.get(name, pa.string()) for name in names}


@dataclass(frozen=True, slots=True)
class _Start:
    """Where in which file to begin, after so many lines, and the most bytes of a record."""

    file: InputFile
    at: int
    offset: int
    number: int
    most: int

    def opened(self) -> AbstractContextManager[IO[bytes]]:
        file = self.file
        return opened(file.filesystem, file.path, file.name, file.compression, self.offset)


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    origin: str
    cursor: Cursor


def _raw_lines(stream: IO[bytes], most: int) -> Iterator[bytes]:
    """Lines with their ends, of which one of more than so many bytes is cut one byte behind them."""
    return iter(partial(stream.readline, most + 1), b"")


def _pass_over_line(stream: IO[bytes], raw: bytes) -> int:
    """Read to the end of a line that was cut, without keeping it; returns the whole line's bytes."""
    size = len(raw)
    while not raw.endswith(b"\n") and (raw := stream.readline(BUFFER_BYTES)):
        size += len(raw)
    return size


def _lines(start: _Start) -> Iterator[_Line | BadRecord]:
    """Each line without its end. Only ``\\n`` and ``\\r\\n`` end a line: a document may hold any other sign."""
    offset, number, most = start.offset, start.number, start.most
    with start.opened() as stream:
        for raw in _raw_lines(stream, most):
            size = len(raw) if len(raw) <= most else _pass_over_line(stream, raw)
            begin, offset, number = offset, offset + size, number + 1
            origin, cursor = f"{start.file.name}:{number}", (start.at, offset, number)
            if size > most:
                yield BadRecord(error=too_long("the line", size, most, origin), cursor=cursor)
            else:
                yield _line(raw, begin, origin, cursor)


def _line(raw: bytes, begin: int, origin: str, cursor: Cursor) -> _Line | BadRecord:
    try:
        # A byte order mark is no part of the text; it can only stand at the very beginning.
        text = raw.decode("utf-8" if begin else "utf-8-sig")
    except UnicodeDecodeError as error:
        return BadRecord(error=_invalid_utf8(error, origin), cursor=cursor)
    if text.endswith("\n"):
        text = text[:-2] if text.endswith("\r\n") else text[:-1]
    return _Line(text, origin, cursor)


def _line_records(start: _Start) -> Iterator[Record | BadRecord]:
    for line in _lines(start):
        if isinstance(line, BadRecord):
            yield line
        elif line.text:
            yield Record(text=line.text, origin=line.origin, cursor=line.cursor)


def _paragraph_records(start: _Start) -> Iterator[Record | BadRecord]:
    """Lines up to an empty one, or one of white space alone; a paragraph with a bad line is bad as a whole."""
    lines: list[_Line] = []
    bad: DataError | None = None
    origin, begin = "", start.offset  # of the paragraph's first line
    cursor: Cursor = (start.at, start.offset, start.number)
    for line in _lines(start):
        before, cursor = cursor, line.cursor
        if isinstance(line, _Line) and not line.text.strip():
            yield from _paragraph(lines, bad, cursor)
            lines, bad, origin = [], None, ""
            continue
        if not origin:
            origin, begin = f"{start.file.name}:{cursor[2]}", before[1]
        size = cursor[1] - begin
        if isinstance(line, BadRecord):
            bad = bad or line.error
        elif bad is None and size > start.most:
            bad = too_long("the paragraph", size, start.most, origin, at_least=True)
        elif bad is None:
            lines.append(line)
        if bad is not None:
            lines = []
    yield from _paragraph(lines, bad, cursor)


def _paragraph(lines: Sequence[_Line], bad: DataError | None, cursor: Cursor) -> Iterator[Record | BadRecord]:
    if bad is not None:
        yield BadRecord(error=bad, cursor=cursor)
    elif lines:
        yield Record(text="\n".join(line.text for line in lines), origin=lines[0].origin, cursor=cursor)


def _whole_file_record(start: _Start) -> Iterator[Record | BadRecord]:
    name, most = start.file.name, start.most
    with start.opened() as stream:
        raw = stream.read(most + 1)
        size, lines = len(raw), raw.count(b"\n")
        while size > most and (more := stream.read(BUFFER_BYTES)):
            size, lines = size + len(more), lines + more.count(b"\n")
    cursor = (start.at, max(1, size), lines)
    if size > most:
        yield BadRecord(error=too_long("the file", size, most, name), cursor=cursor)
        return
    try:
        yield Record(text=raw.decode("utf-8-sig"), origin=name, cursor=cursor)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        yield BadRecord(error=_invalid_utf8(error, f"{name}:{line}"), cursor=cursor)


def _json_records(start: _Start, column: str, keep: Sequence[str]) -> Iterator[Record | BadRecord]:
    name, at, offset, number, most = start.file.name, start.at, start.offset, start.number, start.most
    with start.opened() as stream:
        for raw in _raw_lines(stream, most):
            size = len(raw) if len(raw) <= most else _pass_over_line(stream, raw)
            begin, offset, number = offset, offset + size, number + 1
            origin, cursor = f"{name}:{number}", (at, offset, number)
            if size > most:
                yield BadRecord(error=too_long("the line", size, most, origin), cursor=cursor)
                continue
            at_once = _json_at_once(raw, column, keep)
            if at_once is not None:
                text, values = at_once
                columns = tuple(map(as_text, values, repeat(origin), keep)) if keep else ()
                yield Record(text=text, origin=origin, cursor=cursor, columns=columns)
                continue
            line = _line(raw, begin, origin, cursor)
            if isinstance(line, BadRecord):
                yield line
            elif line.text.strip():
                try:
                    value = _json_object(line, column)
                    text = _json_text(value, line, column)
                    columns = tuple(as_text(lookup(value, name), origin, name) for name in keep)
                except DataError as error:
                    yield BadRecord(error=error, cursor=cursor)
                else:
                    yield Record(text=text, origin=origin, cursor=cursor, columns=columns)


def _json_at_once(raw: bytes, column: str, keep: Sequence[str]) -> tuple[str, list[Any]] | None:
    """The text and other fields of nearly every line, several times as fast; None for the others."""
    if orjson is None:
        return None
    try:
        value = orjson.loads(raw)
    except ValueError:  # it does not take NaN, infinity, half of a surrogate pair or a byte order mark
        return None
    text = value.get(column) if type(value) is dict else None
    if type(text) is not str or _is_deep(raw, value):
        return None
    values = [lookup(value, name) for name in keep]
    return (text, values) if all(map(_is_alike, values)) else None


def _is_alike(value: object) -> bool:
    """Whether both readers of JSON give this value: to orjson an integer of more than 64 bits is a float."""
    return not isinstance(value, (dict, list)) and (type(value) is not float or abs(value) < 1 << 63)


def _is_deep(line: bytes | str, value: object) -> bool:
    """Whether a line's arrays and objects lie too deep in each other; nearly always counting brackets tells."""
    brackets = line.count(b"[") + line.count(b"{") if isinstance(line, bytes) else line.count("[") + line.count("{")
    level: list[Any] = [value]
    depth = 0
    while brackets > _MAX_NESTING >= depth and level:
        inner = (child for each in level for child in (each.values() if isinstance(each, dict) else each))
        level = [child for child in inner if isinstance(child, (dict, list))]
        depth += 1
    return depth > _MAX_NESTING


def _is_deep_unread(line: str) -> bool:
    """The same of a line that could not be read."""
    depth, in_text = 0, False
    for match in _JSON_SIGNS.finditer(line):
        sign = match[0]
        if sign == '"':
            in_text = not in_text
        elif not in_text and sign in "[]{}":
            depth += 1 if sign in "[{" else -1
            if depth > _MAX_NESTING:
                return True
    return False


def _json_value(line: str) -> object:
    try:
        value: object = json.loads(line, parse_int=_integer)
        is_deep = isinstance(value, (dict, list)) and _is_deep(line, value)
    except RecursionError:
        if not (is_deep := _is_deep_unread(line)):
            raise  # it is the caller's stack that is deep, and the line is as good as any
    if is_deep:
        raise ValueError(f"nested more than {_MAX_NESTING} deep")
    return value


def _json_object(line: _Line, column: str) -> dict[str, Any]:
    try:
        value = _json_value(line.text)
    except ValueError as error:
        raise DataError(
            f"invalid JSON ({error}) in {_shorten(line.text)}. Each line must be one complete JSON object: "
            f"correct or remove the line.",
            path=line.origin,
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"a JSON {_json_type(value)}, {_shorten(line.text)}, where each line must be an object such as "
            f'{{"{column}": "..."}}. Write one object a line.',
            path=line.origin,
        )
    return value


def _json_text(value: dict[str, Any], line: _Line, column: str) -> str:
    text: object = value
    for name in [column] if column in value else column.split("."):
        if not isinstance(text, dict) or name not in text:
            raise DataError(
                f"no such field; the line has {', '.join(map(repr, value)) or 'none'}. "
                f"Name the field with text_column, or remove the line.",
                path=line.origin,
                column=column,
            )
        text = text[name]
    if not isinstance(text, str):
        raise DataError(
            f"a string was expected, got {_json_type(text)} {_shorten(json.dumps(text))}. "
            f"Correct or remove the line, or name another field with text_column.",
            path=line.origin,
            column=column,
        )
    return text


def _csv_records(start: _Start, column: str, keep: Sequence[str]) -> Iterator[Record | BadRecord]:
    """Rows below a header. A field may hold line ends, so a row can be several lines; it is named by its first.

    A row that is not valid CSV is as many bad records as it has lines: where a quote is left open, the lines up to the
    next quote are rows that are lost with it.

    Raises:
        DataError: a row of more than so many bytes. Where it ends, and whether a quote is still open, is not known.
    """
    csv.field_size_limit(sys.maxsize)  # the module's default, 128 KiB, is less than many documents
    file = start.file
    header = _csv_header(start, column, keep)
    fields, wanted = len(header), header.index(column)
    kept = [(name, header.index(name) if name in header else None) for name in keep]
    with start.opened() as stream:
        lines = _CsvLines(stream, start)
        reader = csv.reader(lines, strict=True)
        if not start.offset:
            next(reader, None)
        while True:
            first = lines.begin_row()
            origin = f"{file.name}:{first}"
            problem = ""
            try:
                row = next(reader, None)
                if row is None:
                    return
                if row and len(row) != fields:
                    problem = f"the row has {len(row)} fields, and the header {fields}. Correct or remove the row."
            except csv.Error as error:
                problem = f"not valid CSV ({error}). Correct or remove the row, which ends on line {lines.number}."
            cursor = (start.at, lines.offset, lines.number)
            if problem:
                yield BadRecord(error=DataError(problem, path=origin), cursor=cursor)
                for line in range(first + 1, lines.number + 1):
                    within = f"lost with the row that begins on line {first}, which is not valid CSV."
                    yield BadRecord(error=DataError(within, path=f"{file.name}:{line}"), cursor=cursor)
            elif row:  # an empty line is no row
                try:
                    text = _csv_text(row[wanted], origin, column)
                    columns = tuple(
                        None if place is None else _csv_text(row[place], origin, name) for name, place in kept
                    )
                except DataError as error:
                    yield BadRecord(error=error, cursor=cursor)
                else:
                    yield Record(text=text, origin=origin, cursor=cursor, columns=columns)


class _CsvLines:
    """Lines for `csv.reader`, which asks for as many as a row has; counts what it took."""

    def __init__(self, stream: IO[bytes], start: _Start) -> None:
        self._raw = _raw_lines(stream, start.most)
        self._name = start.file.name
        self._most = start.most
        self.offset = start.offset
        self.number = start.number
        self.begin_row()

    def begin_row(self) -> int:
        """The number of the line on which the next row begins."""
        self._row_offset, self._row_number = self.offset, self.number + 1
        return self._row_number

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        raw = next(self._raw)
        size = self.offset + len(raw) - self._row_offset
        if size > self._most:
            problem = "the row (perhaps a quote is left open)"
            raise too_long(problem, size, self._most, f"{self._name}:{self._row_number}", at_least=True)
        # Bytes that are no UTF-8 pass as half surrogates, so that only the row that holds them is bad.
        text = raw.decode("utf-8-sig" if not self.offset else "utf-8", errors="surrogateescape")
        self.offset += len(raw)
        self.number += 1
        return text


def _csv_header(start: _Start, column: str, keep: Sequence[str]) -> list[str]:
    """The names of the columns, among them once the text's, and none of those to keep twice."""
    file, beginning = start.file, replace(start, offset=0, number=0)
    with beginning.opened() as stream:
        lines = _CsvLines(stream, beginning)
        try:
            header = next(csv.reader(lines), [])
        except csv.Error as error:
            raise DataError(f"not valid CSV ({error}). Correct the header.", path=f"{file.name}:1") from error
    for name in (column, *keep):
        if header.count(name) > 1 or (name == column and name not in header):
            raise DataError(
                f"{'more than one column of that name' if name in header else 'no such column'}; the header has "
                f"{_shorten(', '.join(map(repr, header)) or 'nothing')}. Name a column with "
                f"{'text_column' if name == column else 'keep_columns'}.",
                path=f"{file.name}:1",
                column=name,
            )
    return header


def _csv_text(text: str, origin: str, column: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            text.encode(errors="surrogateescape").decode()
        except UnicodeDecodeError as error:
            raise _invalid_utf8(error, origin, column) from error
    return text


def _parquet_records(
    file: InputFile, at: int, column: str, row: int, keep: Mapping[str, Any]
) -> Iterator[Record | BadRecord]:
    with file.filesystem.open(file.path, "rb") as stream:
        try:
            # A buffered stream and no pre-buffering: memory stays at a page or so even if the file is one huge group.
            parquet = pq.ParquetFile(
                stream, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
            )
            path = _text_path(parquet.schema_arrow, file.name, column)
            kept = [_kept_path(parquet.schema_arrow, file.name, name) for name in keep]
            wanted = [path, *filter(None, kept)]
            rows = parquet.metadata.num_rows
            groups, skip = _groups_from(parquet.metadata, row)
            for batch in parquet.iter_batches(
                batch_size=_batch_rows(parquet.metadata, wanted),
                row_groups=groups,
                columns=[".".join(each) for each in wanted],
                use_threads=False,
            ):
                values = _values_at(batch, path)
                skipped = min(skip, len(values))
                skip -= skipped
                columns = [
                    pa.nulls(len(batch), kind)
                    if there is None
                    else cast(_values_at(batch, there), kind, file.name, name)
                    for (name, kind), there in zip(keep.items(), kept, strict=True)
                ]
                others = zip(*(each[skipped:] for each in columns), strict=True) if keep else repeat(())
                for value, other in zip(values[skipped:], others, strict=False):
                    origin, cursor = f"{file.name}: row {row}", (at, row + 1, rows)
                    try:
                        text = value.as_py()
                    except UnicodeDecodeError as error:
                        yield BadRecord(error=_invalid_utf8(error, origin, column), cursor=cursor)
                    else:
                        if text is None:
                            problem = (
                                f"row {row} is null (rows count from 0). Remove such rows, or make them empty strings."
                            )
                            yield BadRecord(error=DataError(problem, path=file.name, column=column), cursor=cursor)
                        else:
                            yield Record(text=text, origin=origin, cursor=cursor, columns=other)
                    row += 1
            if row < rows:
                raise DataError(f"it ends after {row:,} rows, and its footer says {rows:,}: damaged.", path=file.name)
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"not readable as Parquet after {row} rows: {error}. "
                f"The file is damaged, or is something else under that name.",
                path=file.name,
            ) from error


def _values_at(batch: Any, path: Sequence[str]) -> Any:
    # By name: a struct's field of the same dotted name would come along.
    values = batch.column(batch.schema.get_field_index(path[0]))
    return pc.struct_field(values, list(path[1:])) if len(path) > 1 else values


def _batch_rows(metadata: Any, paths: Sequence[Sequence[str]]) -> int:
    """Rows that are decoded at a time, so that long documents do not add up."""
    names = tuple(".".join(path) for path in paths)
    within = tuple(f"{name}." for name in names)
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    row_bytes = max(
        (
            sum(
                column.total_uncompressed_size
                for column in map(group.column, range(group.num_columns))
                if column.path_in_schema in names or column.path_in_schema.startswith(within)
            )
            // max(1, group.num_rows)
            for group in groups
        ),
        default=0,
    )
    return max(1, min(_PARQUET_BATCH_ROWS, _PARQUET_BATCH_BYTES // max(1, row_bytes)))


def _groups_from(metadata: Any, row: int) -> tuple[list[int], int]:
    """The row groups that hold the row and all after it, and how many rows of the first come before it."""
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if row < rows:
            return list(range(group, metadata.num_row_groups)), row
        row -= rows
    return [], 0


def _text_path(schema: Any, name: str, column: str) -> list[str]:
    """The names from the column down to the strings, more than one within structs."""
    path, fields = column_path(schema, column)
    if len(fields) != 1:
        raise DataError(
            f"{'no such column' if not fields else 'more than one column of that name'}; "
            f"the file has {', '.join(repr(field.name) for field in schema) or 'none'}. Name one with text_column.",
            path=name,
            column=column,
        )
    kind = fields[0].type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(
            f"a column of strings was expected, got {fields[0].type}. "
            f"Name another column with text_column, or convert it.",
            path=name,
            column=column,
        )
    return path


def _kept_path(schema: Any, name: str, column: str) -> list[str] | None:
    """The names from a column to keep down to its values; None where the file has none."""
    path, fields = column_path(schema, column)
    if len(fields) > 1:
        raise DataError("more than one column of that name. Omit it from keep_columns.", path=name, column=column)
    return path if fields else None


def _invalid_utf8(error: UnicodeDecodeError, origin: str, column: str | None = None) -> DataError:
    wrong = bytes(error.object[error.start : error.end])
    return DataError(
        f"invalid UTF-8: {wrong!r} at byte {error.start} ({error.reason}). Convert the text to UTF-8, or remove it.",
        path=origin,
        column=column,
    )


def _integer(digits: str) -> float:
    return int(digits) if len(digits) < 100 else float(digits)  # Python refuses ints of thousands of digits


def _json_type(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
