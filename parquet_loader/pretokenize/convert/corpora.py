"""Corpora that are tokenized already, in the formats that people have them in, as documents of ids.

    format       what lies there                                              a document is
    chunks       chunk_000000.bin ..., raw ids; meta.json, if there is one    what ends with the end-of-document id
    megatron     NAME.bin, raw ids; NAME.idx, sequence lengths                the sequences of one entry of the index
    datatrove    NAME.ds, raw ids; NAME.ds.index, uint64 ends                 what the index says
    dolma        NAME.npy, raw ids without a header; NAME.csv.gz, spans       a span
    hf           a folder of datasets' save_to_disk                           a row
    arrow        .arrow or .feather files, streams or files                   a row
    parquet      .parquet files                                               a row

Raw ids are mapped, not read, and are given on in pieces of some megabytes.
"""

from __future__ import annotations

import csv
import gzip
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import ConfigError, DataError, PathNotFoundError
from ..tokenizers.base import TokenArray, TokenBatch

Format = Literal["chunks", "megatron", "datatrove", "dolma", "hf", "arrow", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)

_PIECE_TOKENS = 4 << 20
_PARQUET_BATCH_ROWS = 1024
_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
# The index's codes for integer types; 6 and 7 are floating point.
_MEGATRON_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_COLUMNS = ("input_ids", "tokens", "token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedOptions:
    """How a tokenized corpus is read.

    Attributes:
        column: of Arrow and Parquet files; None for one of the usual names.
        dtype: of raw ids, where nothing beside them says; None for what is usual in the format.
        eos_id: ends a document in raw chunks, where meta.json does not say.
    """

    column: str | None = None
    dtype: str | None = None
    eos_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A tokenized corpus, ready to be read.

    Attributes:
        format: what it is.
        bits: of its ids as they lie there, 16 or 32: what an unknown vocabulary must be assumed to need.
        eos_id: ends every document, where that is known.
        documents: gives them, in order; can be called again.
    """

    format: Format
    bits: int
    eos_id: int | None
    documents: Callable[[], Iterator[TokenBatch]]


def detect(path: Path) -> Format:
    """The format of what lies at a path.

    Raises:
        ConfigError: none that is known, or more than one.
    """
    if not path.exists():
        raise PathNotFoundError(f"there is nothing at {str(path)!r}.")
    names = [path.name] if path.is_file() else sorted(each.name for each in path.rglob("*") if each.is_file())
    found: dict[Format, bool] = {
        "hf": "state.json" in names or "dataset_dict.json" in names,
        "megatron": any(name.endswith(".idx") for name in names),
        "datatrove": any(name.endswith(".ds") for name in names),
        "dolma": any(name.endswith(".npy") for name in names),
        "chunks": any(name.startswith("chunk_") and name.endswith(".bin") for name in names),
        "parquet": any(name.endswith(".parquet") for name in names),
        "arrow": any(name.endswith((".arrow", ".feather")) for name in names),
    }
    if found["hf"]:
        return "hf"
    formats: list[Format] = [name for name, there in found.items() if there]
    if len(formats) != 1:
        there = f"files of several formats: {', '.join(formats)}" if formats else "no tokenized files"
        raise ConfigError(f"{str(path)!r} holds {there}. Say which with --format; known are {', '.join(FORMATS)}.")
    return formats[0]


def open_corpus(path: Path, format: Format | None = None, options: TokenizedOptions | None = None) -> Corpus:
    """A tokenized corpus in a folder or a file.

    Args:
        path: a folder, or one file (of a pair, either).
        format: None to find out.
        options: what the files do not say themselves.

    Raises:
        ConfigError: a format that is not known, or options that are missing.
        DataError: files that do not hold what they should.
    """
    format = format or detect(path)
    return _OPENERS[format](path, options or TokenizedOptions())


def _files(path: Path, suffix: str, format: str) -> list[Path]:
    """Files of that ending, sorted; one that is named with another ending of its pair counts."""
    if path.is_file() or not path.exists():
        stem = path.name
        for ending in (".ds.index", ".ds.metadata", ".csv.gz", ".bin", ".idx", ".npy", ".ds"):
            stem = stem.removesuffix(ending)
        candidates = [path] if path.name.endswith(suffix) else [path.with_name(stem + suffix)]
        found = [each for each in candidates if each.is_file()]
    else:
        found = sorted(each for each in path.rglob(f"*{suffix}") if each.is_file())
    if not found:
        raise ConfigError(f"{str(path)!r} holds no *{suffix}, which {format} has.")
    return found


def _mapped(path: Path, dtype: npt.DTypeLike) -> TokenArray:
    size, item = path.stat().st_size, np.dtype(dtype).itemsize
    if size % item:
        raise DataError(
            f"{size:,} bytes are no whole number of ids of {item} bytes: cut short, or of another dtype.",
            path=str(path),
        )
    return np.memmap(path, dtype, mode="r") if size else np.zeros(0, dtype)


def _dtype_bits(dtype: npt.DTypeLike) -> int:
    return 16 if np.dtype(dtype).itemsize <= 2 else 32


def _given_dtype(name: str, where: str) -> np.dtype[Any]:
    if name not in ("uint16", "uint32", "int32", "int64"):
        raise ConfigError(f"{where}: dtype must be uint16, uint32, int32 or int64, got {name!r}.")
    dtype: np.dtype[Any] = np.dtype(name).newbyteorder("<")
    return dtype


def _pieces(tokens: TokenArray, ends: npt.NDArray[np.int64]) -> Iterator[TokenBatch]:
    """Documents that lie one after the other from 0 on, in pieces of whole documents."""
    document, start = 0, 0
    while document < len(ends):
        stop = max(document + 1, int(np.searchsorted(ends, start + _PIECE_TOKENS, side="right")))
        lengths = np.diff(ends[document:stop], prepend=start)
        yield TokenBatch(tokens=np.array(tokens[start : ends[stop - 1]]), lengths=lengths)
        document, start = stop, int(ends[stop - 1])


def _check_ends(ends: npt.NDArray[np.int64], tokens: int, path: Path) -> None:
    if len(ends) and (np.any(np.diff(ends, prepend=0) < 0) or int(ends[-1]) != tokens):
        raise DataError(
            f"its documents end at {int(ends[-1]):,}, and the ids beside it are {tokens:,}. The two do not belong "
            f"together, one is cut short, or the dtype is another.",
            path=str(path),
        )


# --- raw chunks


def _open_chunks(path: Path, options: TokenizedOptions) -> Corpus:
    folder = path if path.is_dir() else path.parent
    meta_path = folder / "meta.json"
    meta = _chunk_meta(meta_path) if path.is_dir() and meta_path.is_file() else []
    if not meta:
        if options.dtype is None:
            raise ConfigError(f"{str(path)!r} has no meta.json: say --dtype uint16 or uint32.")
        meta = [{"file": str(each.relative_to(folder))} for each in _files(path, ".bin", "chunks")]
    eos_ids = {each["eos_token_id"] for each in meta if each.get("eos_token_id") is not None} or {options.eos_id}
    if len(eos_ids) != 1 or None in eos_ids:
        raise ConfigError(
            f"{str(path)!r}: the end-of-document id is {'not known' if None in eos_ids else f'not one but {eos_ids}'}. "
            f"Say --eos-id N."
        )
    eos_id = int(eos_ids.pop())
    chunks: list[tuple[Path, np.dtype[Any]]] = []
    for each in meta:
        file = folder / str(each["file"])
        dtype = _given_dtype(str(each.get("dtype") or options.dtype), str(meta_path))
        if not file.is_file():
            raise PathNotFoundError(f"{meta_path} names {each['file']!r}, which is not there.")
        wanted = each.get("tokens")
        if isinstance(wanted, int) and wanted * dtype.itemsize != file.stat().st_size:
            raise DataError(
                f"{file.stat().st_size:,} bytes, where meta.json says {wanted:,} ids of {dtype}.", path=str(file)
            )
        chunks.append((file, dtype))
    bits = max(_dtype_bits(dtype) for _, dtype in chunks)

    def documents() -> Iterator[TokenBatch]:
        # The chunks are one stream, cut anywhere: a document that no id ends goes on in the next chunk.
        rest: TokenArray = np.zeros(0, chunks[0][1])
        for file, dtype in chunks:
            mapped = _mapped(file, dtype)
            for start in range(0, len(mapped), _PIECE_TOKENS):
                piece = np.concatenate([rest, mapped[start : start + _PIECE_TOKENS]])
                ends = np.flatnonzero(piece == eos_id) + 1
                if len(ends):
                    yield TokenBatch(tokens=piece[: ends[-1]], lengths=np.diff(ends, prepend=0))
                    piece = piece[ends[-1] :]
                rest = piece
        if len(rest):
            yield TokenBatch(tokens=rest, lengths=np.array([len(rest)], np.int64))

    return Corpus(format="chunks", bits=bits, eos_id=eos_id, documents=documents)


def _chunk_meta(path: Path) -> list[dict[str, Any]]:
    """An entry a chunk: meta.json is a list of them, or an object with such a list and values for all."""
    try:
        values = json.loads(path.read_bytes())
    except ValueError as exc:
        raise DataError(f"not valid JSON ({exc}).", path=str(path)) from exc
    common: dict[str, Any] = {}
    entries = values
    if isinstance(values, dict):
        lists = [
            key for key, value in values.items() if isinstance(value, list) and value and isinstance(value[0], dict)
        ]
        common = {key: value for key, value in values.items() if key not in lists}
        entries = values[lists[0]] if len(lists) == 1 else [values] if "file" in values else None
    if not isinstance(entries, list) or not all(isinstance(each, dict) and "file" in each for each in entries):
        raise DataError('each chunk should have an entry with its "file".', path=str(path))
    return [common | each for each in entries]


# --- Megatron


def _open_megatron(path: Path, options: TokenizedOptions) -> Corpus:
    pairs = [(each, each.with_suffix(".bin")) for each in _files(path, ".idx", "megatron")]
    bits = 16
    for index, data in pairs:
        if not data.is_file():
            raise PathNotFoundError(f"{data} is not there, and {index.name} is about it.")
        bits = max(bits, _dtype_bits(_megatron_index(index)[0]))

    def documents() -> Iterator[TokenBatch]:
        for index, data in pairs:
            dtype, ends = _megatron_index(index)
            tokens = _mapped(data, dtype)
            _check_ends(ends, len(tokens), index)
            yield from _pieces(tokens, ends)

    return Corpus(format="megatron", bits=bits, eos_id=options.eos_id, documents=documents)


def _megatron_index(path: Path) -> tuple[np.dtype[Any], npt.NDArray[np.int64]]:
    """The dtype and the documents' ends. Sequences lie in order without gaps, which is how Megatron writes them."""
    raw = path.read_bytes()
    head = struct.Struct("<9sQBQQ")
    if len(raw) < head.size or not raw.startswith(_MEGATRON_MAGIC):
        raise DataError("not an index of Megatron's (its first bytes are others).", path=str(path))
    _, version, code, sequences, entries = head.unpack_from(raw)
    if version != 1 or code not in _MEGATRON_DTYPES:
        raise DataError(f"version {version} and type code {code} are not known integers of version 1.", path=str(path))
    if len(raw) < head.size + 12 * sequences + 8 * entries:
        raise DataError("the index is cut short.", path=str(path))
    lengths = np.frombuffer(raw, "<i4", sequences, head.size).astype(np.int64)
    pointers = np.frombuffer(raw, "<i8", sequences, head.size + 4 * sequences)
    first = np.frombuffer(raw, "<i8", entries, head.size + 12 * sequences)
    dtype = np.dtype(_MEGATRON_DTYPES[code])
    sequence_ends = np.cumsum(lengths)
    if not np.array_equal(pointers, (sequence_ends - lengths) * dtype.itemsize):
        raise DataError(
            "its sequences do not lie one after the other. Rewrite it with Megatron's tools.", path=str(path)
        )
    bounds = np.concatenate([[0], sequence_ends])
    return dtype, bounds[first[1:]] if entries else sequence_ends


# --- datatrove


def _open_datatrove(path: Path, options: TokenizedOptions) -> Corpus:
    files = _files(path, ".ds", "datatrove")
    dtypes = [_datatrove_dtype(each, options) for each in files]

    def documents() -> Iterator[TokenBatch]:
        for file, dtype in zip(files, dtypes, strict=True):
            index = file.with_name(file.name + ".index")
            ends = np.fromfile(index, "<u8").astype(np.int64)
            tokens = _mapped(file, dtype)
            _check_ends(ends, len(tokens), index)
            yield from _pieces(tokens, ends)

    return Corpus(format="datatrove", bits=max(map(_dtype_bits, dtypes)), eos_id=options.eos_id, documents=documents)


def _datatrove_dtype(file: Path, options: TokenizedOptions) -> np.dtype[Any]:
    """By the index, whose last entry is the number of ids."""
    index = file.with_name(file.name + ".index")
    if not index.is_file():
        raise PathNotFoundError(f"{index} is not there. Without it {file.name} does not tell documents apart.")
    if options.dtype is not None:
        return _given_dtype(options.dtype, "--dtype")
    ends = np.fromfile(index, "<u8")
    tokens = int(ends[-1]) if len(ends) else 0
    size = file.stat().st_size
    for dtype in ("<u2", "<u4"):
        if tokens * np.dtype(dtype).itemsize == size:
            return np.dtype(dtype)
    raise DataError(f"{size:,} bytes for {tokens:,} ids, as its index says, are neither 2 nor 4 each.", path=str(file))


# --- dolma


def _open_dolma(path: Path, options: TokenizedOptions) -> Corpus:
    files = _files(path, ".npy", "dolma")
    dtype = _given_dtype(options.dtype or "uint16", "--dtype")

    def documents() -> Iterator[TokenBatch]:
        for file in files:
            spans = file.with_name(file.name.removesuffix(".npy") + ".csv.gz")
            if not spans.is_file():
                raise PathNotFoundError(f"{spans} is not there. Without it {file.name} does not tell documents apart.")
            with file.open("rb") as stream:
                if stream.read(6) == b"\x93NUMPY":
                    raise DataError("a NumPy file with a header, where dolma writes raw ids.", path=str(file))
            tokens = _mapped(file, dtype)
            ends = _dolma_ends(spans)
            _check_ends(ends, len(tokens), spans)
            yield from _pieces(tokens, ends)

    return Corpus(format="dolma", bits=_dtype_bits(dtype), eos_id=options.eos_id, documents=documents)


def _dolma_ends(path: Path) -> npt.NDArray[np.int64]:
    """The ends of the spans ``start,end,id,source,line``, which must follow each other."""
    ends = []
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        before = 0
        for number, row in enumerate(csv.reader(stream), 1):
            try:
                start, end = int(row[0]), int(row[1])
            except (ValueError, IndexError) as exc:
                raise DataError("a row should begin with start and end.", path=f"{path}:{number}") from exc
            if start != before:
                raise DataError(
                    f"the span begins at {start:,}, and the one before ends at {before:,}.", path=f"{path}:{number}"
                )
            before = end
            ends.append(end)
    return np.array(ends, np.int64)


# --- Arrow and Parquet


def _open_hf(path: Path, options: TokenizedOptions) -> Corpus:
    state = path / "state.json"
    if not state.is_file():
        raise ConfigError(
            f"{str(path)!r} is not one split of save_to_disk: it has no state.json. Name a split's folder."
        )
    names = [each["filename"] for each in json.loads(state.read_bytes())["_data_files"]]
    return _arrow_corpus("hf", [path / name for name in names], options)


def _open_arrow(path: Path, options: TokenizedOptions) -> Corpus:
    found = [path] if path.is_file() else sorted({*path.rglob("*.arrow"), *path.rglob("*.feather")})
    return _arrow_corpus("arrow", found, options)


def _arrow_corpus(format: Format, files: Sequence[Path], options: TokenizedOptions) -> Corpus:
    def tables(file: Path) -> Iterator[Any]:
        source = pa.memory_map(str(file))
        try:
            yield from pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(source)
            yield from (reader.get_batch(at) for at in range(reader.num_record_batches))

    return _columns_corpus(format, files, tables, options)


def _open_parquet(path: Path, options: TokenizedOptions) -> Corpus:
    found = [path] if path.is_file() else sorted(path.rglob("*.parquet"))

    def tables(file: Path) -> Iterator[Any]:
        yield from pq.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=_PARQUET_BATCH_ROWS)

    return _columns_corpus("parquet", found, tables, options)


def _columns_corpus(
    format: Format, files: Sequence[Path], tables: Callable[[Path], Iterator[Any]], options: TokenizedOptions
) -> Corpus:
    if not files:
        raise ConfigError(f"there is no file of the format {format} to read.")
    first = next(tables(files[0]), None)
    kind = pa.uint16() if first is None else first.column(_column(first.schema, options, files[0])).type.value_type

    def documents() -> Iterator[TokenBatch]:
        for file in files:
            try:
                for table in tables(file):
                    yield _lists(table.column(_column(table.schema, options, file)), file)
            except (pa.ArrowException, OSError) as exc:
                raise DataError(f"cannot be read: {exc}.", path=str(file)) from exc

    bits = 16 if kind in (pa.uint8(), pa.int8(), pa.uint16(), pa.int16()) else 32
    return Corpus(format=format, bits=bits, eos_id=options.eos_id, documents=documents)


def _column(schema: Any, options: TokenizedOptions, file: Path) -> str:
    names = [field.name for field in schema if _is_ids(field.type)]
    if options.column is not None:
        if options.column not in names:
            raise DataError(
                f"no such column of lists of integers; there are {names}.", path=str(file), column=options.column
            )
        return options.column
    usual = [name for name in _COLUMNS if name in names] or names
    if not usual or (len(usual) > 1 and usual == names):
        raise DataError(f"cannot tell which column holds the ids, of {names}. Name it with --column.", path=str(file))
    return usual[0]


def _is_ids(kind: Any) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_integer(kind.value_type))


def _lists(column: Any, file: Path) -> TokenBatch:
    if column.null_count or column.flatten().null_count:
        raise DataError("it holds nulls, which are no documents and no ids. Remove them.", path=str(file))
    lengths = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False), np.int64)
    return TokenBatch(tokens=cast("TokenArray", column.flatten().to_numpy()), lengths=lengths)


_OPENERS: dict[Format, Callable[[Path, TokenizedOptions], Corpus]] = {
    "chunks": _open_chunks,
    "megatron": _open_megatron,
    "datatrove": _open_datatrove,
    "dolma": _open_dolma,
    "hf": _open_hf,
    "arrow": _open_arrow,
    "parquet": _open_parquet,
}
