"""Corpora that are tokenized already, in the formats that people have them in, as documents of ids.

    format       what lies there                                              a document is
    chunks       chunk_000000.bin ..., raw ids; meta.json, if there is one    what ends with the end-of-document id
    megatron     NAME.bin, raw ids; NAME.idx, sequence lengths                the sequences of one entry of the index
    datatrove    NAME.ds, raw ids; NAME.ds.index, uint64 ends                 what the index says
    dolma        NAME.npy, raw ids without a header; NAME.csv.gz, spans       a span
    hf           a folder of datasets' save_to_disk                           a row
    arrow        .arrow or .feather files, streams or files                   a row
    parquet      .parquet files                                               a row
    jsonl        .jsonl or .ndjson files, also .gz                            a line

Folders are read at any depth, without names that start with ``_`` or ``.``. Raw ids are mapped, not read, and are given
on in pieces of some megabytes. All ids of a corpus become tokens of some document, so the documents and tokens that
were written are a cursor, from which a corpus is read on without reading what comes before.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
import reprlib
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from ...errors import ConfigError, DataError, ParquetLoaderError, PathNotFoundError, PretokenizeWarning, StorageError
from ...formats.raw.megatron import HEAD_BYTES, MegatronHead, document_ends, read_head
from ...formats.raw.meta import MetaFile, read_meta
from ...storage.base import is_hidden
from ...storage.local import files_below, status_of
from ..sources.base import Cursor
from ..tokenizers.base import TokenArray, TokenBatch
from ..write.writer import MAX_ROW_GROUP_TOKENS

__all__ = ["FORMATS", "Corpus", "Documents", "Format", "TokenizedOptions", "detect", "open_corpus"]


Format = Literal["chunks", "megatron", "datatrove", "dolma", "hf", "arrow", "parquet", "jsonl"]
FORMATS: tuple[str, ...] = get_args(Format)

_PIECE_TOKENS = 4 << 20
_PARQUET_BATCH_ROWS = 1024
_WITH_COLUMNS = ("hf", "arrow", "parquet", "jsonl")
_JSON_BYTES = 8 << 20
_JSON_ENDINGS = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_COLUMNS = ("input_ids", "tokens", "token_ids")


Documents = Iterator[tuple[Path, TokenBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedOptions:
    """How a tokenized corpus is read.

    Attributes:
        column: of Arrow and Parquet files; None for one of the usual names.
        dtype: of raw ids; None for what the files beside them say, or what is usual in the format.
        eos_id: ends a document; None for what meta.json says.
        aligned: columns that have a value for every id, where files have columns.
    """

    column: str | None = None
    dtype: str | None = None
    eos_id: int | None = None
    aligned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A tokenized corpus, ready to be read.

    Attributes:
        format: what it is.
        bits: of its ids as they lie there, 16 or 32: what an unknown vocabulary must be assumed to need.
        eos_id: ends every document, where that is known.
        files: all that its documents depend on, those of ids and those beside them.
        read: gives the documents after so many documents, which hold so many tokens; see `documents`.
        eos_appended: whether every document is sure to end with ``eos_id``.
        tokenizer: the tokenizer's name, where the files tell it.
        aligned: the dtypes of the aligned columns.
    """

    format: Format
    bits: int
    eos_id: int | None
    files: tuple[Path, ...]
    read: Callable[[int, int], Documents]
    eos_appended: bool = False
    tokenizer: str | None = None
    aligned: Mapping[str, np.dtype[Any]] = field(default_factory=dict)

    def documents(self, cursor: Cursor = (0, 0)) -> Documents:
        """The documents, in order, with the file that the last of a batch lies in.

        Args:
            cursor: how many documents come before the first, and how many tokens they hold.

        Raises:
            DataError: a file that does not hold what it should.
            StorageError: a file that cannot be read.
        """
        return self.read(*cursor)


def detect(path: Path) -> Format:
    """The format of what lies at a path.

    Raises:
        ConfigError: none that is known, or more than one.
    """
    with _reading(path):
        if not path.exists():
            raise PathNotFoundError(f"there is nothing at {str(path)!r}.")
    names = [each.name for each in _files_of(path)]
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
    if not formats and any(name.endswith(_JSON_ENDINGS) for name in names):
        return "jsonl"  # beside other files it may be a log
    if len(formats) != 1:
        there = f"files of several formats: {', '.join(formats)}" if formats else "no tokenized files"
        raise ConfigError(f"{str(path)!r} holds {there}. Name one with format; known are {', '.join(FORMATS)}.")
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
        StorageError: files that are not there, or cannot be read.
    """
    format = format or detect(path)
    options = options or TokenizedOptions()
    for name, value, takers in (
        ("column", options.column, _WITH_COLUMNS),
        ("aligned", options.aligned or None, _WITH_COLUMNS),
        ("dtype", options.dtype, ("chunks", "datatrove", "dolma")),
    ):
        if value is not None and format not in takers:
            raise ConfigError(f"{name}={value!r} is for {', '.join(takers)}, and {str(path)!r} is {format}: omit it.")
    return _OPENERS[format](path, options)


def _files_of(path: Path) -> list[Path]:
    """The file itself, or what a folder holds, sorted."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    return sorted(each for each in map(Path, files_below(str(path))) if not is_hidden(each.name))


def _files(path: Path, format: str, *suffixes: str) -> list[Path]:
    """Files of those endings, sorted; one that is named with another ending of its pair counts."""
    named = [each for each in _files_of(path) if each.name.endswith(suffixes)]
    found = [each for each in named if status_of(str(each)) is not None]
    if not path.is_dir() and not found:
        stem = path.name
        for ending in (".ds.index", ".ds.metadata", ".csv.gz", ".bin", ".idx", ".npy", ".ds"):
            stem = stem.removesuffix(ending)
        found = [each for suffix in suffixes if (each := path.with_name(stem + suffix)).is_file()]
        if format in ("arrow", "parquet", "jsonl") and path.is_file():
            found = [path]  # a file of one's own naming, whose content tells
    if not found:
        raise ConfigError(f"{str(path)!r} holds no *{' or *'.join(suffixes)}, which {format} has.")
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever a damaged or unreadable file makes its reader raise into one error that names the file."""
    try:
        yield
    except ParquetLoaderError:
        raise
    except FileNotFoundError as error:
        raise PathNotFoundError(f"{path} is not there.") from error
    except (
        OSError,
        pa.ArrowException,
        ValueError,
        OverflowError,
        EOFError,
        RecursionError,
        zlib.error,
        csv.Error,
    ) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"cannot read {path}: {error.strerror}.") from error
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise DataError(
            f"cannot be read ({reason}). It is damaged or cut short, or is something else under that name.",
            path=str(path),
        ) from error


_T = TypeVar("_T")


def _field(values: Mapping[str, Any], key: str, kind: type[_T], path: Path) -> _T | None:
    """A value of a JSON object, or None where there is none; of no other type than the one given."""
    value = values.get(key)
    if value is not None and type(value) is not kind:
        wanted = {int: "a whole number", str: "a string", list: "a list"}[kind]
        raise DataError(f"{key!r} should be {wanted}, got {reprlib.repr(value)}.", path=str(path))
    return value


def _mapped(path: Path, dtype: npt.DTypeLike) -> TokenArray:
    with _reading(path):
        size, item = path.stat().st_size, np.dtype(dtype).itemsize
        if size % item:
            raise DataError(
                f"{size:,} bytes are not a whole number of {item}-byte integers: cut short, or of another dtype.",
                path=str(path),
            )
        return np.memmap(path, dtype, mode="r") if size else np.zeros(0, dtype)


def _dtype_bits(dtype: npt.DTypeLike) -> int:
    return 16 if np.dtype(dtype).itemsize <= 2 else 32


def _given_dtype(name: str, where: str) -> np.dtype[Any]:
    if name not in ("uint16", "uint32", "int32", "int64"):
        raise ConfigError(f"{where} must be uint16, uint32, int32 or int64, got {name!r}.")
    dtype: np.dtype[Any] = np.dtype(name).newbyteorder("<")
    return dtype


# --- raw ids with an index beside them


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indexed:
    """Raw ids and their index.

    Attributes:
        data: the file of ids.
        index: the file that says where documents end.
        dtype: of the ids.
        ends: reads the index; where each document ends, counted in ids, shape ``(documents,)``.
    """

    data: Path
    index: Path
    dtype: np.dtype[Any]
    ends: Callable[[], npt.NDArray[np.int64]]


def _indexed_corpus(
    format: Format, files: Sequence[_Indexed], options: TokenizedOptions, tokenizer: str | None = None
) -> Corpus:
    for each in files:
        if not each.data.is_file():
            raise PathNotFoundError(f"{each.data} is not there, and {each.index.name} is about it.")
        if not each.index.is_file():
            raise PathNotFoundError(
                f"{each.index} is not there. Without it {each.data.name} does not tell documents apart."
            )

    def read(documents: int, tokens: int) -> Documents:
        for each in files:
            ids = _mapped(each.data, each.dtype)
            with _reading(each.index):
                ends = each.ends()
            last = int(ends[-1]) if len(ends) else 0
            if last != len(ids) or np.any(ends[1:] < ends[:-1]) or (len(ends) and ends[0] < 0):
                raise DataError(
                    f"its documents end at {last:,}, one after the other, and the ids beside it are {len(ids):,}. The "
                    f"two do not belong together, one is damaged or cut short, or the dtype is another."
                    if last != len(ids)
                    else "its documents do not follow each other: it is damaged.",
                    path=str(each.index),
                )
            skipped = min(documents, len(ends))
            documents -= skipped
            yield from ((each.data, batch) for batch in _pieces(ids, ends, skipped))

    return Corpus(
        format=format,
        bits=max(_dtype_bits(each.dtype) for each in files),
        eos_id=options.eos_id,
        files=tuple(path for each in files for path in (each.data, each.index)),
        read=read,
        tokenizer=tokenizer,
    )


def _pieces(ids: TokenArray, ends: npt.NDArray[np.int64], document: int) -> Iterator[TokenBatch]:
    """Documents that lie one after the other, from one on, in pieces of whole documents."""
    start = int(ends[document - 1]) if document else 0
    while document < len(ends):
        stop = max(document + 1, int(np.searchsorted(ends, start + _PIECE_TOKENS, side="right")))
        lengths = np.diff(ends[document:stop], prepend=start)
        yield TokenBatch(tokens=np.asarray(ids[start : ends[stop - 1]]), lengths=lengths)
        document, start = stop, int(ends[stop - 1])


# --- raw chunks


def _open_chunks(path: Path, options: TokenizedOptions) -> Corpus:
    folder = path if path.is_dir() else path.parent
    meta_path = folder / "meta.json"
    meta = _chunk_meta(meta_path) if path.is_dir() and meta_path.is_file() else []
    files = [meta_path] if meta else []
    if not meta:
        found = _files(path, "chunks", ".bin")
        if options.dtype is None:
            raise ConfigError(f"{str(path)!r} has no meta.json: give dtype='uint16' or dtype='uint32'.")
        _refuse_gaps(found)
        nothing = MetaFile(file="", dtype=None, tokens=None, eos_id=None, tokenizer=None)
        meta = [replace(nothing, file=str(each.relative_to(folder))) for each in found]
    eos_ids = {each.eos_id for each in meta} - {None}
    eos_id = options.eos_id if options.eos_id is not None else next(iter(eos_ids), None)
    if eos_id is None or (len(eos_ids) > 1 and options.eos_id is None):
        known = "not known" if eos_id is None else f"not one but {', '.join(map(str, eos_ids))}"
        raise ConfigError(f"{files[0] if files else path}: the end-of-document id is {known}. Give eos_id=N.")
    chunks: list[tuple[Path, np.dtype[Any]]] = []
    last: int | None = eos_id
    for each in meta:
        name, count = each.file, each.tokens
        file = folder / name
        named = options.dtype or each.dtype
        if named is None:
            raise ConfigError(f"{meta_path} does not say the dtype of {name!r}: give dtype='uint16' or dtype='uint32'.")
        dtype = _given_dtype(named, "dtype" if options.dtype else f"{meta_path}: the dtype")
        with _reading(meta_path):
            if not file.is_file():
                raise PathNotFoundError(f"{meta_path} names {name!r}, which is not there.")
        ids = _mapped(file, dtype)
        if count is not None and count != len(ids):
            raise DataError(f"{len(ids):,} ids of {dtype}, where meta.json says {count:,}.", path=str(file))
        chunks.append((file, dtype))
        last = int(ids[-1]) if len(ids) else last

    def read(documents: int, tokens: int) -> Documents:
        # The chunks are one stream, cut anywhere: a document that no id ends goes on in the next chunk.
        rest: list[TokenArray] = []
        waiting = 0
        for file, dtype in chunks:
            ids = _mapped(file, dtype)
            first, tokens = min(tokens, len(ids)), max(0, tokens - len(ids))
            for start in range(first, len(ids), _PIECE_TOKENS):
                piece = np.asarray(ids[start : start + _PIECE_TOKENS])
                ends = np.flatnonzero(piece == eos_id) + 1
                if len(ends):
                    joined = np.concatenate([*rest, piece[: ends[-1]]])
                    yield file, TokenBatch(tokens=joined, lengths=np.diff(ends, prepend=-waiting))
                    rest, waiting, piece = [], 0, piece[ends[-1] :]
                rest.append(piece)
                waiting += len(piece)
                if waiting > MAX_ROW_GROUP_TOKENS:
                    raise DataError(
                        f"the end-of-document id {eos_id} is not among {waiting:,} ids that follow each other, and a "
                        f"document holds at most {MAX_ROW_GROUP_TOKENS:,}. Give the right eos_id.",
                        path=str(path),
                    )
        if waiting:
            yield file, TokenBatch(tokens=np.concatenate(rest), lengths=np.array([waiting], np.int64))

    tokenizers = {each.tokenizer for each in meta} - {None}
    return Corpus(
        format="chunks",
        bits=max(_dtype_bits(dtype) for _, dtype in chunks),
        eos_id=eos_id,
        files=(*files, *(file for file, _ in chunks)),
        read=read,
        eos_appended=last == eos_id,
        tokenizer=tokenizers.pop() if len(tokenizers) == 1 else None,
    )


def _refuse_gaps(files: Sequence[Path]) -> None:
    """Documents go on from one chunk to the next, so that one that is missing would join two that are not one."""
    numbers = [int(match[1]) for each in files if (match := re.fullmatch(r"chunk_(\d+)\.bin", each.name))]
    for before, after in itertools.pairwise(sorted(numbers)):
        if after > before + 1:
            raise ConfigError(
                f"{str(files[0].parent)!r} holds chunks {before} and {after}, and none between them: fetch those that "
                "are missing, or convert each stretch by itself."
            )


def _chunk_meta(path: Path) -> list[MetaFile]:
    with _reading(path):
        raw = path.read_bytes()
    return read_meta(raw, str(path))


# --- Megatron


def _open_megatron(path: Path, options: TokenizedOptions) -> Corpus:
    files = [
        _Indexed(
            data=index.with_suffix(".bin"),
            index=index,
            dtype=_megatron_head(index).dtype,
            ends=partial(_megatron_ends, index),
        )
        for index in _files(path, "megatron", ".idx")
    ]
    return _indexed_corpus("megatron", files, options)


def _megatron_head(path: Path) -> MegatronHead:
    with _reading(path), path.open("rb") as stream:
        return read_head(stream.read(HEAD_BYTES), path.stat().st_size, str(path))


def _megatron_ends(path: Path) -> npt.NDArray[np.int64]:
    """Sequences must lie in order without gaps, which is how Megatron writes them."""
    head = _megatron_head(path)
    with path.open("rb") as stream:

        def read(start: int, length: int) -> bytes:
            stream.seek(start)
            return stream.read(length)

        ends = [tokens for _, tokens in document_ends(read, head, str(path))]
    return np.concatenate([np.empty(0, np.int64), *ends])


# --- datatrove


def _open_datatrove(path: Path, options: TokenizedOptions) -> Corpus:
    files = []
    for data in _files(path, "datatrove", ".ds"):
        index = data.with_name(data.name + ".index")
        files.append(
            _Indexed(
                data=data,
                index=index,
                dtype=_datatrove_dtype(data, index, options),
                ends=partial(_datatrove_ends, index),
            )
        )
    names = {_datatrove_tokenizer(each.data) for each in files}
    return _indexed_corpus("datatrove", files, options, names.pop() if len(names) == 1 else None)


def _datatrove_ends(path: Path) -> npt.NDArray[np.int64]:
    return np.asarray(_mapped(path, "<u8").astype(np.int64))


def _datatrove_dtype(data: Path, index: Path, options: TokenizedOptions) -> np.dtype[Any]:
    """By the index, whose last entry is the number of ids."""
    if options.dtype is not None:
        return _given_dtype(options.dtype, "dtype")
    if not index.is_file():
        return np.dtype("<u2")  # said later, as of every format
    ends = _mapped(index, "<u8")
    tokens, size = int(ends[-1]) if len(ends) else 0, data.stat().st_size
    for dtype in ("<u2", "<u4"):
        if tokens * np.dtype(dtype).itemsize == size:
            return np.dtype(dtype)
    raise DataError(f"{size:,} bytes for {tokens:,} ids, as its index says, are neither 2 nor 4 each.", path=str(data))


def _datatrove_tokenizer(data: Path) -> str | None:
    """By ``NAME.ds.metadata``, whose first line is the tokenizer's name and the bytes of an id."""
    metadata = data.with_name(data.name + ".metadata")
    if not metadata.is_file():
        return None
    with _reading(metadata):
        name = metadata.read_text(encoding="utf-8").partition("\n")[0].partition("|")[0]
    return None if name in ("", "Unknown Tokenizer") else name


# --- dolma


def _open_dolma(path: Path, options: TokenizedOptions) -> Corpus:
    dtype = _given_dtype(options.dtype or "uint16", "dtype")
    files = []
    for data in _files(path, "dolma", ".npy"):
        with _reading(data), data.open("rb") as stream:
            if stream.read(6) == b"\x93NUMPY":
                raise DataError("a NumPy file with a header, where dolma writes raw ids.", path=str(data))
        spans = data.with_name(data.name.removesuffix(".npy") + ".csv.gz")
        files.append(_Indexed(data=data, index=spans, dtype=dtype, ends=partial(_dolma_ends, spans)))
    return _indexed_corpus("dolma", files, options)


def _dolma_ends(path: Path) -> npt.NDArray[np.int64]:
    """The ends of the spans ``start,end,id,source,line``, which must follow each other."""
    ends = []
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        before = 0
        for number, row in enumerate(csv.reader(stream), 1):
            try:
                start, end = int(row[0]), int(row[1])
            except (ValueError, IndexError) as error:
                raise DataError("a row should begin with start and end.", path=f"{path}:{number}") from error
            if start != before:
                raise DataError(
                    f"the span begins at {start:,}, and the one before ends at {before:,}.", path=f"{path}:{number}"
                )
            before = end
            ends.append(end)
    return np.array(ends, np.int64)


# --- Arrow and Parquet

# Rows of a file that can be read, or passed over, together: how many they are, and what reads columns of them.
_Block = tuple[int, Callable[[Sequence[str]], Iterator[Any]]]


def _open_hf(path: Path, options: TokenizedOptions) -> Corpus:
    state = path / "state.json"
    if not state.is_file():
        raise ConfigError(
            f"{str(path)!r} is not one split of save_to_disk: it has no state.json. Name a split's folder."
        )
    with _reading(state):
        values = json.loads(state.read_bytes())
    entries = _field(values, "_data_files", list, state) if isinstance(values, dict) else None
    names = [_field(each, "filename", str, state) if isinstance(each, dict) else None for each in entries or ()]
    if not names or not all(names):
        raise DataError(
            'it should list the files of the set, as "_data_files" with a "filename" each.', path=str(state)
        )
    files = [path / name for name in names if name]
    for file in files:
        with _reading(file):
            if not file.is_file():
                raise PathNotFoundError(f"{state} names {file.name!r}, which is not there.")
    return _columns_corpus("hf", files, _arrow_blocks, options, state)


def _open_arrow(path: Path, options: TokenizedOptions) -> Corpus:
    return _columns_corpus("arrow", _files(path, "arrow", ".arrow", ".feather"), _arrow_blocks, options)


def _open_parquet(path: Path, options: TokenizedOptions) -> Corpus:
    return _columns_corpus("parquet", _files(path, "parquet", ".parquet"), _parquet_blocks, options)


def _open_jsonl(path: Path, options: TokenizedOptions) -> Corpus:
    return _columns_corpus("jsonl", _files(path, "jsonl", *_JSON_ENDINGS), _json_blocks, options)


def _json_blocks(file: Path) -> tuple[Any, Iterator[_Block]]:
    batches = _json_batches(file)
    first = next(batches, pa.record_batch({}))
    names = first.schema.names

    def with_all(batch: Any) -> Any:
        """The columns that the first lines have; what none of some lines has is null."""
        lacking = [name for name in names if name not in batch.schema.names]
        for name in lacking:
            batch = batch.append_column(name, pa.nulls(batch.num_rows))
        return batch

    return first.schema, (
        (batch.num_rows, lambda _, batch=batch: iter([with_all(batch)])) for batch in itertools.chain([first], batches)
    )


def _json_batches(file: Path) -> Iterator[Any]:
    """The lines, some megabytes at a time, each time of the types that their values have."""
    with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as stream:
        while block := stream.read(_JSON_BYTES):
            block += stream.readline()
            reading = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
            yield from pj.read_json(io.BytesIO(block), reading).combine_chunks().to_batches()


def _to_its_end(reader: Any, source: Any, file: Path) -> Iterator[Any]:
    """The batches of a stream. Without the marker that writers put at its end, it may have been cut between two."""
    yield from reader
    if source.read_at(8, max(0, source.size() - 8)) != b"\xff" * 4 + bytes(4):
        warnings.warn(
            f"{file} has no end-of-stream marker, which writers put there: it may have been cut off. Compare its "
            "number of documents with the original's.",
            PretokenizeWarning,
            stacklevel=2,
        )


def _arrow_blocks(file: Path) -> tuple[Any, Iterator[_Block]]:
    source = pa.memory_map(str(file))
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else _to_its_end(reader, source, file)
    return reader.schema, ((batch.num_rows, lambda names, batch=batch: iter([batch])) for batch in batches)


def _parquet_blocks(file: Path) -> tuple[Any, Iterator[_Block]]:
    reader = pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True)

    def read(group: int, names: Sequence[str]) -> Iterator[Any]:
        yield from reader.iter_batches(batch_size=_PARQUET_BATCH_ROWS, row_groups=[group], columns=list(names))

    groups = range(reader.num_row_groups)
    return reader.schema_arrow, (
        (reader.metadata.row_group(group).num_rows, lambda names, group=group: read(group, names)) for group in groups
    )


def _columns_corpus(
    format: Format,
    files: Sequence[Path],
    blocks_of: Callable[[Path], tuple[Any, Iterator[_Block]]],
    options: TokenizedOptions,
    *beside: Path,
) -> Corpus:
    with _reading(files[0]):
        schema = blocks_of(files[0])[0]
        kind = schema.field(_column(schema, options, files[0])).type
    aligned = {name: _aligned_dtype(name, files, blocks_of) for name in options.aligned}

    def read(documents: int, tokens: int) -> Documents:
        for file in files:
            with _reading(file):
                schema, blocks = blocks_of(file)
                name = _column(schema, options, file)
                for each in aligned:
                    _aligned_type(schema, each, file)
                row = 0
                for rows, batches in blocks:
                    if documents >= rows:
                        documents -= rows
                        row += rows
                        continue
                    for batch in batches([name, *aligned]):
                        skipped = min(documents, len(batch))
                        documents -= skipped
                        part = batch.slice(skipped)
                        lists = _lists(part.column(name), file, name)
                        yield file, _with_aligned(lists, part, aligned, file, row + skipped)
                        row += len(batch)

    narrow = _is_empty(kind) or kind.value_type.bit_width <= 16
    return Corpus(
        format=format,
        bits=16 if narrow else 32,
        eos_id=options.eos_id,
        files=(*beside, *files),
        read=read,
        aligned=aligned,
    )


def _aligned_dtype(
    name: str, files: Sequence[Path], blocks_of: Callable[[Path], tuple[Any, Iterator[_Block]]]
) -> np.dtype[Any]:
    """The dtype of an aligned column: that of the first file whose writer could know it."""
    for file in files:
        with _reading(file):
            schema = blocks_of(file)[0]
            kind = _aligned_type(schema, name, file)
            if _is_empty(kind):
                continue
            dtype: np.dtype[Any] = np.dtype(kind.value_type.to_pandas_dtype())
            return dtype
    return np.dtype(np.int32)


def _aligned_type(schema: Any, name: str, file: Path) -> Any:
    """The Arrow type of a file's aligned column."""
    if schema.names.count(name) != 1:
        others = [field.name for field in schema if _is_list(field.type)]
        raise DataError(
            f"no such column, or more than one; columns of lists are {others}.", path=str(file), column=name
        )
    kind = schema.field(name).type
    if _is_empty(kind):
        return kind
    value = kind.value_type if _is_list(kind) else None
    if value is None or not (pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_boolean(value)):
        raise DataError(
            f"it is {kind}, and an aligned column is of lists of integers, floats or booleans.",
            path=str(file),
            column=name,
        )
    return kind


def _with_aligned(
    lists: TokenBatch, rows: Any, aligned: Mapping[str, np.dtype[Any]], file: Path, first: int
) -> TokenBatch:
    """Documents with their values of the aligned columns.

    Args:
        lists: the documents.
        rows: the Arrow batch that they are of.
        aligned: the columns, and their dtypes.
        file: where it lies.
        first: the number in it of the first of the rows.

    Raises:
        DataError: a list with more or fewer values than the row has ids, a null among them, or one that the dtype does
            not hold.
    """
    columns = {}
    for name, dtype in aligned.items():
        column = rows.column(name)
        values, lengths = _aligned_values(column, dtype, file, name, first)
        wrong = np.flatnonzero(lengths != lists.lengths)
        if len(wrong):
            at = int(wrong[0])
            has = f"has {lengths[at]:,} values" if column[at].is_valid else "is missing, or null"
            raise DataError(
                f"the list {has}, and the row {lists.lengths[at]:,} ids. An aligned column has a value for every id.",
                path=f"{file}: row {first + at}",
                column=name,
            )
        columns[name] = values
    return replace(lists, aligned=columns)


def _aligned_values(
    column: Any, dtype: np.dtype[Any], file: Path, name: str, first: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """All values of an aligned column, and how many each row has, the first of which has that number in the file."""
    column.validate(full=True)
    if pa.types.is_null(column.type):
        return np.zeros(0, dtype), np.zeros(len(column), np.int64)
    lengths = np.asarray(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    values, kind = column.flatten(), pa.from_numpy_dtype(dtype)
    if values.null_count:
        at = int(pc.index(values.is_null(), True).as_py())
        row = first + int(np.searchsorted(lengths.cumsum(), at, side="right"))
        raise DataError("the list holds nulls among the values. Replace them.", path=f"{file}: row {row}", column=name)
    try:
        cast_values = values.cast(kind)
    except pa.ArrowException as error:
        raise DataError(
            f"it is {values.type} here, and {kind} before ({error}). Convert the files to one type.",
            path=str(file),
            column=name,
        ) from error
    return cast_values.to_numpy(zero_copy_only=False), lengths


def _column(schema: Any, options: TokenizedOptions, file: Path) -> str:
    # Where every row of a file is empty, its writer could not know the ids' type.
    fields = [field for field in schema if field.name not in options.aligned]
    known = [field.name for field in fields if _is_ids(field.type)]
    names = known + [field.name for field in fields if _is_empty(field.type)]
    if options.column is not None:
        if options.column not in names or schema.names.count(options.column) != 1:
            raise DataError(
                f"no such column of lists of integers, or more than one; there are {known}.",
                path=str(file),
                column=options.column,
            )
        return options.column
    likely = [name for name in _COLUMNS if name in names] or known or names
    usual = bool(likely) and likely[0] in _COLUMNS
    if (len(likely) != 1 and not usual) or schema.names.count(likely[0]) != 1:
        raise DataError(
            f"cannot tell which column holds the ids, of {names}. Name it with column=NAME.", path=str(file)
        )
    return likely[0]


def _is_list(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
        or types.is_fixed_size_list(kind)
    )


def _is_ids(kind: Any) -> bool:
    return _is_list(kind) and bool(pa.types.is_integer(kind.value_type))


def _is_empty(kind: Any) -> bool:
    """Whether a column of that type cannot hold an id."""
    return bool(pa.types.is_null(kind) or (_is_list(kind) and pa.types.is_null(kind.value_type)))


def _lists(column: Any, file: Path, name: str) -> TokenBatch:
    """A null list is an empty document, as the loader has it; a null id is none."""
    column.validate(full=True)  # the reader trusts a file's offsets
    if pa.types.is_null(column.type):
        return TokenBatch(tokens=np.zeros(0, np.uint16), lengths=np.zeros(len(column), np.int64))
    ids = column.flatten()
    if ids.null_count:
        raise DataError("it holds nulls among the ids. Remove them.", path=str(file), column=name)
    lengths = np.asarray(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    tokens = np.zeros(0, np.uint16) if pa.types.is_null(ids.type) else cast("TokenArray", ids.to_numpy())
    return TokenBatch(tokens=tokens, lengths=lengths)


_OPENERS: dict[Format, Callable[[Path, TokenizedOptions], Corpus]] = {
    "chunks": _open_chunks,
    "megatron": _open_megatron,
    "datatrove": _open_datatrove,
    "dolma": _open_dolma,
    "hf": _open_hf,
    "arrow": _open_arrow,
    "parquet": _open_parquet,
    "jsonl": _open_jsonl,
}
