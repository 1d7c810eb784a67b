"""Where text comes from: files of several kinds become one stream of records, in a fixed order.

A source is anything whose ``records()`` yields the same `Record`\\ s in the same order each time it is called.
`FileSource` is the one for files; the list of files is made beforehand by `find_files`, so that whatever wants to share
the files out, skip some or start later works on a plain tuple.

    inputs   ["notes.txt", "crawl/"]                      what the user wrote
    files    notes.txt  crawl/a.jsonl  crawl/b.parquet    find_files: the inputs' order, a folder's files by path
    records  notes.txt:1  notes.txt:2  crawl/a.jsonl:1    FileSource.records: streamed, one at a time
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Literal, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.utils import get_protocol

from parquet_loader.errors import ConfigError, DataError, PathNotFoundError
from parquet_loader.pretokenize.extras import import_extra
from parquet_loader.pretokenize.filesystems import (
    Filesystem,
    display_name,
    is_hidden,
    open_filesystem,
    relative_to,
    storage_errors,
)

Kind = Literal["text", "json", "parquet"]
TextUnit = Literal["line", "file"]

_KINDS: Mapping[str, Kind] = {
    ".txt": "text",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
}
_COMPRESSIONS = (".gz", ".zst")
KNOWN_EXTENSIONS = ".txt, .jsonl, .ndjson or .json (each also .gz or .zst) and .parquet"

_BUFFER_BYTES = 1 << 20
_PARQUET_BATCH_ROWS = 64  # documents decoded at a time; small, because a document can be megabytes
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One document's text.

    Attributes:
        text: the document.
        origin: where it was read, for messages: ``file:line``, ``file: row n``, or the file alone.
    """

    text: str
    origin: str


class Source(Protocol):
    """Yields records, the same ones in the same order every time, without holding more than a few of them."""

    def records(self) -> Iterator[Record]:
        """Every record, in order. Raises DataError or StorageError at the record that cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file to read.

    Attributes:
        filesystem: the fsspec filesystem it lies on.
        path: its path there.
        name: the path with its protocol, for messages.
        kind: what is in it.
        compression: ``".gz"``, ``".zst"`` or ``""``.
    """

    filesystem: Filesystem
    path: str
    name: str
    kind: Kind
    compression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileList:
    """The files that inputs stand for.

    Attributes:
        files: those to read, in order, each once.
        skipped: names of files in the given folders whose extension is not a known one.
    """

    files: tuple[InputFile, ...]
    skipped: tuple[str, ...]


def classify(path: str) -> tuple[Kind, str] | None:
    """The kind and compression that a file's name stands for, or None for an unknown extension.

    >>> classify("a/b.jsonl.zst"), classify("B.TXT"), classify("c.parquet"), classify("c.parquet.gz"), classify("d.md")
    (('json', '.zst'), ('text', ''), ('parquet', ''), None, None)
    """
    name = path.rsplit("/", 1)[-1].lower()
    compression = next((ending for ending in _COMPRESSIONS if name.endswith(ending)), "")
    name = name.removesuffix(compression)
    dot = name.rfind(".")
    kind = _KINDS.get(name[dot:]) if dot >= 0 else None
    if kind is None or (kind == "parquet" and compression):
        return None
    return kind, compression


def find_files(inputs: Sequence[str], storage_options: Mapping[str, object] | None = None) -> FileList:
    """Every file that the inputs stand for: the inputs' order, sorted by path within a folder or glob, each file once.

    Args:
        inputs: files, folders (read at any depth, without names that start with ``_`` or ``.``), globs; local or URLs.
        storage_options: handed to fsspec for inputs that are URLs.

    Raises:
        PathNotFoundError: an input at which there is nothing.
        ConfigError: an extension that is not known, or inputs that hold no file to read.
    """
    found: dict[tuple[str, str], InputFile] = {}
    skipped: dict[str, None] = {}
    for url in inputs:
        filesystem, path = open_filesystem(url, storage_options)
        with storage_errors("list", url):
            paths, in_folder = _expand(filesystem, path, url)
        for each in paths:
            name = display_name(filesystem, each)
            classified = classify(each)
            if classified is not None:
                kind, compression = classified
                file = InputFile(filesystem=filesystem, path=each, name=name, kind=kind, compression=compression)
                found.setdefault((get_protocol(url), each), file)
            elif in_folder:
                skipped[name] = None
            else:
                raise ConfigError(
                    f"{name}: unknown extension. Known are {KNOWN_EXTENSIONS}: "
                    f"rename or convert the file, or leave it out."
                )
    if not found:
        also = f" ({len(skipped)} files there have other extensions)" if skipped else ""
        raise ConfigError(f"no file to read in {', '.join(inputs)}{also}: looked for {KNOWN_EXTENSIONS}.")
    return FileList(files=tuple(found.values()), skipped=tuple(skipped))


def _expand(filesystem: Filesystem, path: str, url: str) -> tuple[list[str], bool]:
    """The paths that one input stands for, and whether they came out of a folder rather than were named."""
    if filesystem.isfile(path):  # first, since a file's name may hold a glob's signs
        return [path], False
    if filesystem.isdir(path):
        return _visible(filesystem.find(path), path), True
    magic = next((at for at, character in enumerate(path) if character in "*?["), None)
    if magic is not None:
        root = path[:magic].rpartition("/")[0]
        matches = _visible([each for each in filesystem.glob(path) if filesystem.isfile(each)], root)
        if matches:
            return matches, False
        raise PathNotFoundError(f"no file matches {url!r}. Quote a glob so that it reaches the program whole.")
    raise PathNotFoundError(f"there is no file or folder {url!r}. Check the path; a folder needs no trailing sign.")


def _visible(paths: Sequence[str], root: str) -> list[str]:
    return sorted(path for path in paths if not is_hidden(relative_to(path, root) or path))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """The records of files, read one after the other and streamed.

    Attributes:
        files: what to read, in order.
        text_column: the field of a JSON line, or the column of a Parquet file, that holds the text.
        text_unit: whether a line of a ``.txt`` is a record, or the whole file.
    """

    files: tuple[InputFile, ...]
    text_column: str = "text"
    text_unit: TextUnit = "line"

    def records(self) -> Iterator[Record]:
        """Every record of every file, in order."""
        for file in self.files:
            if file.kind == "parquet":
                yield from _parquet_records(file, self.text_column)
            elif file.kind == "json":
                yield from _json_records(file, self.text_column)
            elif self.text_unit == "line":
                yield from _line_records(file)
            else:
                yield _whole_file_record(file)


def _line_records(file: InputFile) -> Iterator[Record]:
    for origin, text in _lines(file):
        if text:
            yield Record(text=text, origin=origin)


def _whole_file_record(file: InputFile) -> Record:
    with _opened(file) as stream:
        raw = stream.read()
    try:
        return Record(text=raw.decode("utf-8-sig"), origin=file.name)
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise _invalid_utf8(exc, f"{file.name}:{line}") from exc


def _json_records(file: InputFile, column: str) -> Iterator[Record]:
    for origin, line in _lines(file):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise DataError(
                f"invalid JSON ({exc}) in {_shorten(line)}. Each line must be one whole JSON object: "
                f"correct or remove the line.",
                path=origin,
            ) from exc
        if not isinstance(value, dict):
            raise DataError(
                f"a JSON {_json_type(value)}, {_shorten(line)}, where each line must be an object such as "
                f'{{"{column}": "..."}}. Write one object a line.',
                path=origin,
            )
        if column not in value:
            raise DataError(
                f"no such field; the line has {', '.join(map(repr, value)) or 'none'}. "
                f"Name the field with --text-column, or remove the line.",
                path=origin,
                column=column,
            )
        text = value[column]
        if not isinstance(text, str):
            raise DataError(
                f"a string was expected, got {_json_type(text)} {_shorten(json.dumps(text))}. "
                f"Correct or remove the line, or name another field with --text-column.",
                path=origin,
                column=column,
            )
        yield Record(text=text, origin=origin)


def _parquet_records(file: InputFile, column: str) -> Iterator[Record]:
    row = 0
    with storage_errors("read", file.name), file.filesystem.open(file.path, "rb") as stream:
        try:
            # A buffered stream and no pre-buffering: memory stays at a page or so even if the file is one huge group.
            parquet = pq.ParquetFile(
                stream, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
            )
            _check_text_column(parquet.schema_arrow, file.name, column)
            for batch in parquet.iter_batches(batch_size=_PARQUET_BATCH_ROWS, columns=[column], use_threads=False):
                for value in batch.column(0):
                    try:
                        text = value.as_py()
                    except UnicodeDecodeError as exc:
                        raise _invalid_utf8(exc, f"{file.name}: row {row}", column) from exc
                    if text is None:
                        raise DataError(
                            f"row {row} is null (rows count from 0). Remove such rows, or make them empty strings.",
                            path=file.name,
                            column=column,
                        )
                    yield Record(text=text, origin=f"{file.name}: row {row}")
                    row += 1
        except (pa.ArrowException, OSError) as exc:
            if isinstance(exc, OSError) and exc.errno is not None:
                raise  # the storage's, not the file's
            raise DataError(
                f"not readable as Parquet after {row} rows: {exc}. "
                f"The file is damaged, or is something else under that name.",
                path=file.name,
            ) from exc


def _check_text_column(schema: Any, name: str, column: str) -> None:
    fields = [field for field in schema if field.name == column]
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


def _lines(file: InputFile) -> Iterator[tuple[str, str]]:
    """Each line with its origin. Only ``\\n`` and ``\\r\\n`` end a line: a document may hold any other sign."""
    with _opened(file) as stream:
        for number, raw in enumerate(stream, 1):
            origin = f"{file.name}:{number}"
            try:
                # A byte order mark is no part of the text; it can only stand at the very beginning.
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as exc:
                raise _invalid_utf8(exc, origin) from exc
            if text.endswith("\n"):
                text = text[:-2] if text.endswith("\r\n") else text[:-1]
            yield origin, text


@contextmanager
def _opened(file: InputFile) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed."""
    with storage_errors("read", file.name), file.filesystem.open(file.path, "rb") as raw:
        buffered = io.BufferedReader(raw, _BUFFER_BYTES)
        try:
            if file.compression == ".gz":
                yield cast("IO[bytes]", io.BufferedReader(gzip.GzipFile(fileobj=buffered), _BUFFER_BYTES))
            elif file.compression == ".zst":
                yield io.BufferedReader(_ZstdStream(buffered), _BUFFER_BYTES)
            else:
                yield buffered
        except (gzip.BadGzipFile, zlib.error, EOFError, _ZstdDamaged) as exc:
            raise DataError(
                f"not a whole {file.compression} file ({exc}). It is damaged, cut short, or something else under "
                f"that name: fetch it again, or leave it out.",
                path=file.name,
            ) from exc


class _ZstdDamaged(Exception):
    """Bytes that are not whole zstd frames."""


class _ZstdStream(io.RawIOBase):
    """Reads zstd frames one after the other.

    zstandard's own ``stream_reader`` takes a file that was cut short for one that ends there, which would lose text
    silently; a decompression object knows whether its frame ended.
    """

    def __init__(self, compressed: IO[bytes]) -> None:
        self._compressed = compressed
        self._zstandard = import_extra("zstandard")
        self._frame = self._new_frame()
        self._inside_frame = False
        self._ready = memoryview(b"")

    def _new_frame(self) -> Any:
        # Big corpora are often written with --long windows, which the default limit refuses.
        return self._zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = self._new_frame()
                self._inside_frame = False
            data = data or self._compressed.read(1 << 16)
            if not data:
                if self._inside_frame:
                    raise _ZstdDamaged("it ends within a frame")
                return 0
            self._inside_frame = True
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._zstandard.ZstdError as exc:
                raise _ZstdDamaged(str(exc)) from exc
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


def _invalid_utf8(exc: UnicodeDecodeError, origin: str, column: str | None = None) -> DataError:
    wrong = bytes(exc.object[exc.start : exc.end])
    return DataError(
        f"invalid UTF-8: {wrong!r} at byte {exc.start} ({exc.reason}). Convert the text to UTF-8, or remove it.",
        path=origin,
        column=column,
    )


def _json_type(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
