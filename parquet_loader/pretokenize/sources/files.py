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
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import DataError, PathNotFoundError, StorageError
from ...storage.base import WILDCARD, Found, is_hidden
from ...storage.filesystems import Filesystem, open_filesystem, open_together
from ...storage.local import LocalStorage
from ...storage.opening import local_path
from ...storage.remote import FsspecStorage
from ...storage.secrets import Location
from .base import BadRecord, Cursor, Record, Source
from .compression import BUFFER_BYTES, opened
from .find import InputFile

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]
TextUnit = Literal["line", "file", "paragraph"]

_PARQUET_BATCH_ROWS = 64  # documents decoded at a time; small, because a document can be megabytes
_SHOWN_CHARACTERS = 60
_COMPRESSED_SHARE = 4  # text shrinks to about a quarter; only estimates of the time that is left depend on it


def _listed(
    inputs: Sequence[Location], storage_options: Mapping[str, object]
) -> Iterator[tuple[Filesystem, list[Found]]]:
    """For each input, in order, the filesystem and the files that it stands for, as the loader finds them."""
    # Those of one host or bucket share a client, and are looked at at once.
    groups: dict[str, list[Location]] = {}
    for url in inputs:
        groups.setdefault(_place_of(url), []).append(url)
    listed: dict[str, tuple[Filesystem, Iterator[list[Found]]]] = {}
    for place, urls in groups.items():
        paths = [path for url in urls if (path := local_path(url)) is not None]
        storage = LocalStorage(paths) if paths else FsspecStorage(urls, storage_options)
        filesystem = open_filesystem(paths[0])[0] if paths else open_together(urls, storage_options)[0]
        listed[place] = filesystem, iter(storage.find(lambda inside: not is_hidden(inside)).found)
    for url in inputs:
        filesystem, each = listed[_place_of(url)]
        files = next(each)
        if not files and WILDCARD.search(url):
            raise PathNotFoundError(f"no file matches {url!r}. Quote a glob so that it reaches the program whole.")
        yield filesystem, files


def _place_of(url: Location) -> str:
    if local_path(url) is not None:
        return ""
    return url if len(url.links) > 1 else "/".join(url.given.split("/", 3)[:3])


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(Source):
    """The records of files, read one after the other and streamed.

    Attributes:
        files: what to read, in order.
        text_column: the field of a JSON line, or the column of a Parquet or CSV file, that holds the text;
            ``"parent.child"`` within an object or a struct.
        text_unit: what one record of a ``.txt`` is: a line, the whole file, or a paragraph, up to an empty line.
        skipped: names of files that were passed over when these were found, for the summary.
    """

    files: tuple[InputFile, ...]
    text_column: str = "text"
    text_unit: TextUnit = "line"
    skipped: tuple[str, ...] = ()

    def records(self, cursor: Cursor | None = None) -> Iterator[Record | BadRecord]:
        """Every record of every file, in order."""
        first, position, lines = cursor or (0, 0, 0)
        for at in range(first, len(self.files)):
            yield from self._records_of(at, position, lines)
            position, lines = 0, 0

    def fingerprint(self) -> dict[str, object]:
        """The files, with sizes and versions, and how they are read."""
        files = [{"name": each.name, "size_bytes": each.size_bytes, "version": each.version} for each in self.files]
        kinds = sorted({each.kind for each in self.files})
        return {"kinds": kinds, "text_column": self.text_column, "text_unit": self.text_unit, "files": files}

    def shard(self, rank: int, world_size: int) -> FileSource:
        """The whole files of one rank: a run of them, in order, of about as many bytes as every other rank's.

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
        if file.kind == "parquet":
            return _parquet_records(file, at, self.text_column, position)
        if file.kind == "json":
            return _json_records(file, at, self.text_column, position, lines)
        if file.kind == "csv":
            return _csv_records(file, at, self.text_column, position, lines)
        if self.text_unit == "line":
            return _line_records(file, at, position, lines)
        if self.text_unit == "paragraph":
            return _paragraph_records(file, at, position, lines)
        return iter(()) if position else _whole_file_record(file, at)


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    origin: str
    cursor: Cursor


def _lines(file: InputFile, at: int, offset: int, number: int) -> Iterator[_Line | BadRecord]:
    """Each line without its end. Only ``\\n`` and ``\\r\\n`` end a line: a document may hold any other sign."""
    with opened(file.filesystem, file.path, file.name, file.compression, offset) as stream:
        for raw in stream:
            begin, offset, number = offset, offset + len(raw), number + 1
            yield _line(raw, begin, f"{file.name}:{number}", (at, offset, number))


def _line(raw: bytes, begin: int, origin: str, cursor: Cursor) -> _Line | BadRecord:
    try:
        # A byte order mark is no part of the text; it can only stand at the very beginning.
        text = raw.decode("utf-8" if begin else "utf-8-sig")
    except UnicodeDecodeError as exc:
        return BadRecord(error=_invalid_utf8(exc, origin), cursor=cursor)
    if text.endswith("\n"):
        text = text[:-2] if text.endswith("\r\n") else text[:-1]
    return _Line(text, origin, cursor)


def _line_records(file: InputFile, at: int, offset: int, number: int) -> Iterator[Record | BadRecord]:
    for line in _lines(file, at, offset, number):
        if isinstance(line, BadRecord):
            yield line
        elif line.text:
            yield Record(text=line.text, origin=line.origin, cursor=line.cursor)


def _paragraph_records(file: InputFile, at: int, offset: int, number: int) -> Iterator[Record | BadRecord]:
    """Lines up to an empty one, or one of white space alone; a paragraph with a bad line is bad as a whole."""
    lines: list[_Line] = []
    bad: BadRecord | None = None
    cursor: Cursor = (at, offset, number)
    for line in _lines(file, at, offset, number):
        cursor = line.cursor
        if isinstance(line, BadRecord):
            bad = bad or line
        elif line.text.strip():
            lines.append(line)
        else:
            yield from _paragraph(lines, bad, cursor)
            lines, bad = [], None
    yield from _paragraph(lines, bad, cursor)


def _paragraph(lines: Sequence[_Line], bad: BadRecord | None, cursor: Cursor) -> Iterator[Record | BadRecord]:
    if bad is not None:
        yield BadRecord(error=bad.error, cursor=cursor)
    elif lines:
        yield Record(text="\n".join(line.text for line in lines), origin=lines[0].origin, cursor=cursor)


def _whole_file_record(file: InputFile, at: int) -> Iterator[Record | BadRecord]:
    with opened(file.filesystem, file.path, file.name, file.compression) as stream:
        raw = stream.read()
    cursor = (at, max(1, len(raw)), raw.count(b"\n"))
    try:
        yield Record(text=raw.decode("utf-8-sig"), origin=file.name, cursor=cursor)
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        yield BadRecord(error=_invalid_utf8(exc, f"{file.name}:{line}"), cursor=cursor)


def _json_records(file: InputFile, at: int, column: str, offset: int, number: int) -> Iterator[Record | BadRecord]:
    with opened(file.filesystem, file.path, file.name, file.compression, offset) as stream:
        for raw in stream:
            begin, offset, number = offset, offset + len(raw), number + 1
            origin, cursor = f"{file.name}:{number}", (at, offset, number)
            text = _json_text_at_once(raw, column)
            if text is not None:
                yield Record(text=text, origin=origin, cursor=cursor)
                continue
            line = _line(raw, begin, origin, cursor)
            if isinstance(line, BadRecord):
                yield line
            elif line.text.strip():
                try:
                    yield Record(text=_json_text(line, column), origin=origin, cursor=cursor)
                except DataError as exc:
                    yield BadRecord(error=exc, cursor=cursor)


def _json_text_at_once(raw: bytes, column: str) -> str | None:
    """What `_json_text` gives for nearly every line, several times as fast; None for the others."""
    if orjson is None:
        return None
    try:
        value = orjson.loads(raw)
    except ValueError:  # it does not take NaN, infinity, half of a surrogate pair or a byte order mark
        return None
    text = value.get(column) if type(value) is dict else None
    return text if type(text) is str else None


def _json_text(line: _Line, column: str) -> str:
    try:
        value = json.loads(line.text, parse_int=_integer)
    except (ValueError, RecursionError) as exc:
        raise DataError(
            f"invalid JSON ({exc}) in {_shorten(line.text)}. Each line must be one whole JSON object: "
            f"correct or remove the line.",
            path=line.origin,
        ) from exc
    if not isinstance(value, dict):
        raise DataError(
            f"a JSON {_json_type(value)}, {_shorten(line.text)}, where each line must be an object such as "
            f'{{"{column}": "..."}}. Write one object a line.',
            path=line.origin,
        )
    text: object = value
    for name in [column] if column in value else column.split("."):
        if not isinstance(text, dict) or name not in text:
            raise DataError(
                f"no such field; the line has {', '.join(map(repr, value)) or 'none'}. "
                f"Name the field with --text-column, or remove the line.",
                path=line.origin,
                column=column,
            )
        text = text[name]
    if not isinstance(text, str):
        raise DataError(
            f"a string was expected, got {_json_type(text)} {_shorten(json.dumps(text))}. "
            f"Correct or remove the line, or name another field with --text-column.",
            path=line.origin,
            column=column,
        )
    return text


def _csv_records(file: InputFile, at: int, column: str, offset: int, number: int) -> Iterator[Record | BadRecord]:
    """Rows below a header. A field may hold line ends, so a row can be several lines; it is named by its first."""
    csv.field_size_limit(sys.maxsize)  # the module's default, 128 KiB, is less than many documents
    wanted = _csv_header(file, column)
    with opened(file.filesystem, file.path, file.name, file.compression, offset) as stream:
        lines = _CsvLines(iter(stream), offset, number)
        reader = csv.reader(lines, strict=True)
        if not offset:
            next(reader, None)
        while True:
            origin = f"{file.name}:{lines.number + 1}"
            try:
                row = next(reader, None)
                if row is None:
                    return
                text = _csv_text(row, wanted, origin, column) if row else None
            except csv.Error as exc:
                problem = f"not valid CSV ({exc}). Correct or remove the row."
                yield BadRecord(error=DataError(problem, path=origin), cursor=(at, lines.offset, lines.number))
            except DataError as exc:
                yield BadRecord(error=exc, cursor=(at, lines.offset, lines.number))
            else:
                if text is not None:  # an empty line is no row
                    yield Record(text=text, origin=origin, cursor=(at, lines.offset, lines.number))


class _CsvLines:
    """Lines for `csv.reader`, which asks for as many as a row has; counts what it took."""

    def __init__(self, raw: Iterator[bytes], offset: int, number: int) -> None:
        self._raw = raw
        self.offset = offset
        self.number = number

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        raw = next(self._raw)
        # Bytes that are no UTF-8 pass as half surrogates, so that only the row that holds them is bad.
        text = raw.decode("utf-8-sig" if not self.offset else "utf-8", errors="surrogateescape")
        self.offset += len(raw)
        self.number += 1
        return text


def _csv_header(file: InputFile, column: str) -> int:
    with opened(file.filesystem, file.path, file.name, file.compression) as stream:
        header = next(csv.reader(_CsvLines(iter(stream), 0, 0)), [])
    if header.count(column) != 1:
        raise DataError(
            f"{'more than one column of that name' if column in header else 'no such column'}; the header has "
            f"{_shorten(', '.join(map(repr, header)) or 'nothing')}. Name a column with --text-column.",
            path=f"{file.name}:1",
            column=column,
        )
    return header.index(column)


def _csv_text(row: Sequence[str], wanted: int, origin: str, column: str) -> str:
    if wanted >= len(row):
        raise DataError(
            f"the row has {len(row)} fields, and the column is number {wanted + 1}. Correct or remove the row.",
            path=origin,
            column=column,
        )
    try:
        row[wanted].encode()
    except UnicodeEncodeError:
        try:
            row[wanted].encode(errors="surrogateescape").decode()
        except UnicodeDecodeError as exc:
            raise _invalid_utf8(exc, origin, column) from exc
    return row[wanted]


def _parquet_records(file: InputFile, at: int, column: str, row: int) -> Iterator[Record | BadRecord]:
    with file.filesystem.open(file.path, "rb") as stream:
        try:
            # A buffered stream and no pre-buffering: memory stays at a page or so even if the file is one huge group.
            parquet = pq.ParquetFile(
                stream, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
            )
            path = _text_path(parquet.schema_arrow, file.name, column)
            rows = parquet.metadata.num_rows
            groups, skip = _groups_from(parquet.metadata, row)
            for batch in parquet.iter_batches(
                batch_size=_PARQUET_BATCH_ROWS, row_groups=groups, columns=[column], use_threads=False
            ):
                # By name: a struct's field of the same dotted name would come along.
                values = batch.column(batch.schema.get_field_index(path[0]))
                if len(path) > 1:
                    values = pc.struct_field(values, path[1:])
                skipped = min(skip, len(values))
                skip -= skipped
                for value in values[skipped:]:
                    origin, cursor = f"{file.name}: row {row}", (at, row + 1, rows)
                    try:
                        text = value.as_py()
                    except UnicodeDecodeError as exc:
                        yield BadRecord(error=_invalid_utf8(exc, origin, column), cursor=cursor)
                    else:
                        if text is None:
                            problem = (
                                f"row {row} is null (rows count from 0). Remove such rows, or make them empty strings."
                            )
                            yield BadRecord(error=DataError(problem, path=file.name, column=column), cursor=cursor)
                        else:
                            yield Record(text=text, origin=origin, cursor=cursor)
                    row += 1
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as exc:
            raise DataError(
                f"not readable as Parquet after {row} rows: {exc}. "
                f"The file is damaged, or is something else under that name.",
                path=file.name,
            ) from exc


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
    fields = [field for field in schema if field.name == column]
    path = [column]
    if not fields and "." in column:
        path = column.split(".")
        fields = [field for field in schema if field.name == path[0]]
        for each in path[1:]:
            inside = fields[0].type if len(fields) == 1 else pa.null()
            fields = [field for field in inside if field.name == each] if pa.types.is_struct(inside) else []
    if len(fields) != 1:
        raise DataError(
            f"{'no such column' if not fields else 'more than one column of that name'}; "
            f"the file has {', '.join(repr(field.name) for field in schema) or 'none'}. Name one with --text-column.",
            path=name,
            column=column,
        )
    kind = fields[0].type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(
            f"a column of strings was expected, got {fields[0].type}. "
            f"Name another column with --text-column, or convert it.",
            path=name,
            column=column,
        )
    return path


def _invalid_utf8(exc: UnicodeDecodeError, origin: str, column: str | None = None) -> DataError:
    wrong = bytes(exc.object[exc.start : exc.end])
    return DataError(
        f"invalid UTF-8: {wrong!r} at byte {exc.start} ({exc.reason}). Convert the text to UTF-8, or remove it.",
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
