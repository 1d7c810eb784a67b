"""What is in a set: all that its footers tell, and a few row groups read for what they do not.

footers ──► counts, sizes, layout, ids, remarks                        exact
some row groups, spread evenly over the set ──► lengths of documents,  sampled: with an interval from drawing the
                                                first and last ids     row groups anew, since documents of one row
                                                                       group are alike (a cluster bootstrap)
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..advice import tokenization
from ..blocks import IntArray, TokenArray
from ..errors import ConfigError, DataError, ParquetLoaderError, StorageError
from ..formats.base import CODEC_NAMES, ENTRY_ARRAYS, FileEntry
from ..formats.known import format_named, format_of
from ..formats.parquet.describe import described_pages
from ..index.build import index_storage, raw_dtype_of
from ..index.index import DatasetIndex
from ..index.pinned import PinnedStorage
from ..options import IndexLike, file_format
from ..remarks import of_growth, of_streams
from ..storage.base import Storage
from ..storage.opening import Source, open_storage
from ..storage.retry import RETRY_SECONDS
from .check_state import Fault
from .readable import read_entries, readable_index
from .scan import whole_documents

__all__ = [
    "Candidate",
    "Ids",
    "Inspection",
    "LengthSample",
    "Quantile",
    "Sampled",
    "Shares",
    "Spread",
    "candidates",
    "inspect",
]

_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_BOOTSTRAPS = 400
_DRAWN_AT_ONCE = 50
_SHOWN_DOCUMENTS = 3
_SHOWN_TOKENS = 64
_COMMON = 5  # of first and last ids
_TOLD = 10  # of what is wrong, one by one
_FOOTERS_AT_ONCE = 16
_CANDIDATE_FILES = 256
_MANIFEST = "_manifest.json"


class Decodes(Protocol):
    """A tokenizer, as far as it is needed."""

    def decode(self, ids: list[int]) -> str:
        """The text of some ids."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The smallest, the median, the largest, and the sum of some numbers."""

    least: int
    median: int
    most: int
    total: int

    @classmethod
    def of(cls, numbers: IntArray) -> Spread:
        """That of one number or more."""
        return cls(
            least=int(numbers.min()), median=int(np.median(numbers)), most=int(numbers.max()), total=int(numbers.sum())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """The range of token ids.

    Attributes:
        least, most: the smallest and the largest.
        known: ``"index"`` where that has all row groups' ranges, else ``"sample"``: others may lie outside.
        read: (smallest, largest) of those that were read; None where none was.
        contradicted: of the row groups read, how many have another range than their footers say.
    """

    least: int
    most: int
    known: str
    read: tuple[int, int] | None
    contradicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """Of documents a share is no longer than this, in tokens; and with 95 % confidence between ``low`` and ``high``."""

    share: float
    tokens: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Documents of ``[least, most]`` tokens: their share of all documents, and of all tokens."""

    least: int
    most: int
    documents: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSample:
    """How long documents are, in tokens, as stored.

    Attributes:
        mean: of all documents: it is exact, but of a stream.
        quantiles: of those that were read.
        longest: of those that were read.
        shares: by length, in powers of two.
        exact: whether all of the set was read, so that there is no error.
    """

    mean: float
    quantiles: tuple[Quantile, ...]
    longest: int
    shares: tuple[Shares, ...]
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A document that was read.

    Attributes:
        path, row_group, document: where it is.
        tokens: how many it has.
        ids: the first ones.
        text: these decoded; None without a tokenizer.
    """

    path: str
    row_group: int
    document: int
    tokens: int
    ids: tuple[int, ...]
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A column of some files.

    Attributes:
        name: as ``column`` takes it.
        type: of its elements.
        is_tokens: whether it is a list of integers, so that it may hold tokens.
        tokens: that the footers of these files count in it; None where one does not.
        files: that have it, with this type.
        of: files that were looked at.
    """

    name: str
    type: str
    is_tokens: bool
    tokens: int | None
    files: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What is in a set.

    Attributes:
        root: where it lies.
        column: the token column.
        files, row_groups, documents, tokens: of it; tokens as stored, without any EOS that a loader appends.
        is_stream: whether an id among the tokens ends documents. Then how many there are is estimated from the row
            groups that were read, and without an ``eos_id`` each of these is one.
        empty: documents without a token.
        file_bytes: of all files.
        column_bytes: of the token column in them.
        types: of the column, to how many files have it so.
        codecs: to how many row groups are compressed so.
        encodings: of the pages that were looked at, to how many have them.
        page_versions: the same.
        checksums: the share of the pages looked at that have a checksum; None where none was looked at.
        group_tokens, group_bytes: of row groups, in the token column.
        ids: their range; None where there is no token.
        lengths: of documents; None where none was read.
        first_ids, last_ids: the commonest ids that documents begin and end with: (id, share of documents with tokens).
        sampled_row_groups, sampled_documents: how many were read.
        samples: some documents.
        manifest: what the set says of itself, if `pretokenize` wrote it: by its manifest, or else by its first file.
        remarks: what is likely not meant, or costs time or memory, and what to do about it.
        problems: what is wrong with what was looked at: files that were left out, row groups that cannot be decoded,
            ids that are not those of the footers.
    """

    root: str
    column: str
    files: int
    row_groups: int
    documents: int
    tokens: int
    is_stream: bool
    empty: int
    file_bytes: int
    column_bytes: int
    types: Mapping[str, int]
    codecs: Mapping[str, int]
    encodings: Mapping[str, int]
    page_versions: Mapping[str, int]
    checksums: float | None
    group_tokens: Spread
    group_bytes: Spread
    ids: Ids | None
    lengths: LengthSample | None
    first_ids: tuple[tuple[int, float], ...]
    last_ids: tuple[tuple[int, float], ...]
    sampled_row_groups: int
    sampled_documents: int
    samples: tuple[Sampled, ...]
    manifest: Mapping[str, Any] | None
    remarks: tuple[str, ...]
    problems: tuple[str, ...]


def inspect(
    source: Source,
    *,
    column: str | None = None,
    index: IndexLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: Any = None,
    tokenizer: Decodes | Literal["files"] | None = None,
    sample_row_groups: int = 32,
    sample_bytes: int = 64 << 20,
    seed: int = 0,
    strict: bool = True,
    retry_seconds: float = RETRY_SECONDS,
    format: str | None = None,
    raw_dtype: object = None,
    eos_id: int | None = None,
) -> Inspection:
    """Look at a set: its footers, and some of its row groups.

    Args:
        source: a folder, a file, a glob or a URL, or a list of them.
        column: the token column; None where only one column can be meant.
        index: of the set, or the path of a saved one, in place of its footers.
        storage_options: for the fsspec filesystem of a URL.
        cache_dir: where footers are cached; None for the user's cache folder.
        tokenizer: decodes the documents that are shown; ``"files"`` for the one that the files name.
        sample_row_groups: how many to read at most; 0 for none.
        sample_bytes: how many bytes of them at most; one row group is always read.
        seed: of what is read; the same set and seed give the same answer.
        strict: whether a file that cannot be read, or has no such column, is an error; else it is left out, and one of
            the ``problems``.
        retry_seconds: how long a request over the network is tried again once it has failed.
        format, raw_dtype: see `build_index`.
        eos_id: ends the documents of a stream; else it is not looked at.

    Raises:
        ConfigError: no list of integers, or several: `candidates` tells which; or no tokenizer that the files name.
        DataError: a file that is no readable Parquet.
        StorageError: a path that cannot be listed or read.
    """
    dtype = raw_dtype_of(raw_dtype)
    storage = open_storage(source, storage_options, retry_seconds=retry_seconds, kind=file_format(format), growing=True)
    left_out: list[Fault] = []
    if index is None:
        try:
            found = index_storage(storage, column=column, cache_dir=cache_dir, format=format, raw_dtype=dtype)
        except ParquetLoaderError as error:
            if strict:
                raise
            try:
                found, left_out = readable_index(storage, column, _FOOTERS_AT_ONCE, format, dtype)
            except ParquetLoaderError:
                raise error from None
            if not left_out:  # it was nothing that is the matter with files
                raise
    else:
        found = index if isinstance(index, DatasetIndex) else DatasetIndex.load(index)
        storage = PinnedStorage(storage, found, format_named(found.format))
    if not len(found):
        raise ConfigError(
            f"{storage.root} has no row group with rows: there is nothing in its {len(found.files)} files"
        )
    found.check_eos(eos_id)
    if tokenizer == "files":
        from .text import open_tokenizer_of

        tokenizer = open_tokenizer_of({"": (storage, found)})
    groups = _spread_groups(found, sample_row_groups, sample_bytes, seed)
    looked, damaged = _looked_at(storage, found, groups, eos_id if found.is_stream else None)
    types = Counter(_type_of(found, int(layout)) for layout in found.file_layout)
    codecs = Counter(CODEC_NAMES[codec] for codec in found.codec.tolist())
    pages = [page for each in looked for page in each.pages]
    tokens, documents = found.total_tokens, _documents(found, looked, eos_id)
    # A list's slots are its tokens, or one that is null where it has none.
    empty = 0 if found.is_stream else int((found.slots - found.tokens).sum())
    return Inspection(
        root=storage.root,
        column=found.column,
        files=len(found.files),
        row_groups=len(found),
        documents=documents,
        tokens=tokens,
        is_stream=found.is_stream,
        empty=empty if any(layout.max_definition_level for layout in found.layouts) else documents,
        file_bytes=sum(file.size for file in found.files),
        column_bytes=int(found.length.sum()),
        types=dict(types),
        codecs=dict(codecs),
        encodings=dict(Counter(page.encoding for page in pages)),
        page_versions=dict(Counter(page.version for page in pages)),
        checksums=sum(page.has_checksum for page in pages) / len(pages) if pages else None,
        group_tokens=Spread.of(found.tokens),
        group_bytes=Spread.of(found.length),
        ids=_ids(found, looked),
        lengths=_lengths(found, looked, seed) if documents and looked else None,
        first_ids=_commonest([each.first_ids for each in looked]),
        last_ids=_commonest([each.last_ids for each in looked]),
        sampled_row_groups=len(looked),
        sampled_documents=sum(len(each.lengths) for each in looked),
        samples=tuple(_sampled(found, each, tokenizer) for each in _of_some(looked)),
        manifest=_manifest(source, storage_options, retry_seconds) or _written(storage, found),
        remarks=(*found.remarks(), *of_growth(storage), *of_streams(found, storage, eos_id)),
        problems=(
            *_left_out(left_out, found),
            *damaged,
            *_contradictions(found, looked),
            *_unended(found, looked, eos_id),
        ),
    )


def candidates(
    source: Source,
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry_seconds: float = RETRY_SECONDS,
    format: str | None = None,
    raw_dtype: object = None,
) -> tuple[Candidate, ...]:
    """The columns of a set's files, those that may hold tokens first, and those that most files have.

    The footers of 256 files are read, spread over all, and those that cannot be read are not counted.

    Raises:
        StorageError, DataError: no file can be read.
    """
    storage = open_storage(source, storage_options, retry_seconds=retry_seconds, kind=file_format(format), growing=True)
    listed = storage.list_files()
    known = format_of(storage, listed, format)
    reader = known.reader(storage, listed, raw_dtype_of(raw_dtype))
    files = reader.files
    some = [files[place] for place in np.unique(np.linspace(0, len(files) - 1, _CANDIDATE_FILES).astype(int)).tolist()]
    read = read_entries(reader, some, None, None, _FOOTERS_AT_ONCE)
    entries = [each for each in read if isinstance(each, FileEntry)]
    if not entries:
        raise next(each for each in read if isinstance(each, ParquetLoaderError))
    found: dict[tuple[bool, str, str], list[int | None]] = {}
    place = ENTRY_ARRAYS.index("tokens")
    # Read as aligned, columns come with the types of their values, and not only those that they are stored as.
    names = tuple({name for each in entries for name in each.columns})
    again = read
    if known.name == "parquet":
        again = read_entries(reader, some, None, None, _FOOTERS_AT_ONCE, aligned=names)
    typed = {id(one): other for one, other in zip(read, again, strict=True) if isinstance(other, FileEntry)}
    for each in entries:
        for name, (layout, numbers) in each.columns.items():
            kind = typed.get(id(each), each).columns.get(name, (layout,))[0].value_dtype.name
            tokens = int(numbers[place].sum()) if (numbers[place] >= 0).all() else None
            found.setdefault((True, name, f"list of {kind}"), []).append(tokens)
        for leaf in each.leaves:
            if leaf.name not in each.columns:
                found.setdefault((False, leaf.name, str(leaf.type)), []).append(None)
    told = [
        Candidate(
            name=name,
            type=kind,
            is_tokens=is_tokens,
            tokens=None if None in counts else sum(filter(None, counts)),
            files=len(counts),
            of=len(entries),
        )
        for (is_tokens, name, kind), counts in found.items()
    ]
    return tuple(sorted(told, key=lambda each: (not each.is_tokens, -each.files)))


def pretokenize_advice(source: Source, columns: tuple[Candidate, ...]) -> str | None:
    """How to tokenize a set of text; None where not all files have it in one column, or one has a list of integers."""
    kinds = ("string", "large_string", "string_view")
    texts = [each.name for each in columns if each.type in kinds and each.files == each.of]
    if not texts or any(each.is_tokens for each in columns):
        return None
    where = source if isinstance(source, str) else "FOLDER"
    return tokenization(where, "text" if "text" in texts else texts[0])


# ── what is read ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class _Looked:
    """What was found in a row group; the ids of documents with tokens alone."""

    group: int
    lengths: IntArray
    first_ids: npt.NDArray[Any]
    last_ids: npt.NDArray[Any]
    least: int
    most: int
    document: int  # one of them
    ids: TokenArray
    pages: tuple[Any, ...]


def _spread_groups(index: DatasetIndex, most: int, most_bytes: int, seed: int) -> list[int]:
    """Row groups spread evenly over the set, one drawn from each of equal stretches; all where these suffice."""
    count = min(most, len(index))
    mean = max(1, int(index.length.sum()) // len(index))
    count = min(count, max(1, most_bytes // mean)) if count else 0
    borders = np.linspace(0, len(index), count + 1).astype(np.int64)
    words = np.random.Philox(key=[seed, len(index)]).random_raw(max(1, count))
    return [
        int(low + int(word) % int(high - low))
        for low, high, word in zip(borders[:-1], borders[1:], words, strict=False)
    ]


def _looked_at(
    storage: Storage, index: DatasetIndex, groups: list[int], eos_id: int | None
) -> tuple[list[_Looked], list[str]]:
    """What was found in row groups, and of which it could not be read."""
    looked: list[_Looked] = []
    damaged: list[str] = []
    for group in groups:
        try:
            looked.append(_look(storage, index, group, eos_id))
        except DataError as error:
            damaged.append(str(error))
    if len(damaged) > _TOLD:
        damaged[_TOLD:] = [f"{len(damaged) - _TOLD:,} more row groups of those read are damaged: `check` lists all"]
    return looked, damaged


def _look(storage: Storage, index: DatasetIndex, group: int, eos_id: int | None) -> _Looked:
    chunk = index.chunk(group)
    raw, opened = index.open(storage, chunk)
    lengths: list[IntArray] = []
    firsts: list[TokenArray] = []
    lasts: list[TokenArray] = []
    least: list[int] = []
    most: list[int] = []
    shown: TokenArray = np.empty(0, np.int64)
    document = 0
    for tokens, offsets in whole_documents(opened.parts(eos_id=eos_id)):
        own = np.diff(offsets)
        filled = own > 0
        firsts.append(tokens[offsets[:-1][filled]])
        lasts.append(tokens[offsets[1:][filled] - 1])
        if len(tokens):
            least.append(int(tokens.min()))
            most.append(int(tokens.max()))
            if not len(shown):  # the first document that has tokens
                document = sum(len(each) for each in lengths) + int(filled.argmax())
                begin, end = offsets[int(filled.argmax())], offsets[int(filled.argmax()) + 1]
                shown = tokens[begin : min(end, begin + _SHOWN_TOKENS)].copy()
        lengths.append(own)
    none = np.empty(0, np.int64)
    return _Looked(
        group=group,
        lengths=np.concatenate([none, *lengths]),
        first_ids=np.concatenate([none, *firsts]),
        last_ids=np.concatenate([none, *lasts]),
        least=min(least, default=0),
        most=max(most, default=-1),
        document=document,
        ids=shown,
        pages=described_pages(raw, chunk) if index.format == "parquet" else (),
    )


def _of_some(looked: list[_Looked]) -> list[_Looked]:
    filled = [each for each in looked if len(each.ids)]
    places = np.linspace(0, len(filled) - 1, min(_SHOWN_DOCUMENTS, len(filled))).astype(int).tolist()
    return [filled[place] for place in places]


def _sampled(index: DatasetIndex, looked: _Looked, tokenizer: Decodes | None) -> Sampled:
    ids = looked.ids.tolist()
    return Sampled(
        path=index.files[int(index.file[looked.group])].path,
        row_group=int(index.row_group[looked.group]),
        document=looked.document,
        tokens=int(looked.lengths[looked.document]),
        ids=tuple(ids),
        text=None if tokenizer is None else tokenizer.decode(ids),
    )


# ── what it tells ────────────────────────────────────────────────────────────────────────────────────────────────


def _type_of(index: DatasetIndex, layout: int) -> str:
    known = index.layouts[layout]
    return f"list of {known.dtype.name}" if known.max_definition_level else "no values"


def _ids(index: DatasetIndex, looked: list[_Looked]) -> Ids | None:
    filled = index.tokens > 0
    if not filled.any():
        return None
    seen = [each for each in looked if each.most >= each.least]
    read = (min(each.least for each in seen), max(each.most for each in seen)) if seen else None
    contradicted = len(_contradicted(index, looked))
    if (index.max_id[filled] >= 0).all():
        least, most = int(index.min_id[filled].min()), int(index.max_id[filled].max())
        return Ids(least=least, most=most, known="index", read=read, contradicted=contradicted)
    if read is None:
        return None
    return Ids(least=read[0], most=read[1], known="sample", read=read, contradicted=contradicted)


def _contradicted(index: DatasetIndex, looked: list[_Looked]) -> list[_Looked]:
    """Row groups whose ids have another range than their footers say."""
    return [
        each
        for each in looked
        if each.most >= each.least
        and index.max_id[each.group] >= 0
        and (each.least, each.most) != (index.min_id[each.group], index.max_id[each.group])
    ]


def _contradictions(index: DatasetIndex, looked: list[_Looked]) -> Iterator[str]:
    found = _contradicted(index, looked)
    if found:
        first, group = found[0], found[0].group
        yield (
            f"of {len(looked):,} row groups read {len(found):,} with other ids than their footers say: the first is "
            f"{index.files[int(index.file[group])].path}, row group {int(index.row_group[group])}, with ids from "
            f"{first.least:,} to {first.most:,}, and from {int(index.min_id[group]):,} to "
            f"{int(index.max_id[group]):,} by its footer; the data is damaged, the footer is, or its writer was wrong: "
            "`parquet-loader check` tells all such row groups and documents"
        )


def _unended(index: DatasetIndex, looked: list[_Looked], eos_id: int | None) -> Iterator[str]:
    """That nothing of a stream ends with what was said to end its documents."""
    if (
        index.is_stream
        and looked
        and eos_id is not None
        and not any((each.last_ids == eos_id).any() for each in looked)
    ):
        yield (
            f"the id {eos_id} ends no document in {sum(int(each.lengths.sum()) for each in looked):,} tokens that were "
            "read, so that each row group counts as one document: give the eos_id that these files hold"
        )


def _documents(index: DatasetIndex, looked: list[_Looked], eos_id: int | None) -> int:
    """How many documents there are, or about, of a stream."""
    if index.documents is not None:
        return index.documents
    read = sum(int(each.lengths.sum()) for each in looked)
    if eos_id is None or not read:
        return len(index)
    return round(sum(len(each.lengths) for each in looked) * index.total_tokens / read)


def _left_out(faults: list[Fault], index: DatasetIndex) -> Iterator[str]:
    """Files that are not in the index, and why; those of which the same is wrong together."""
    by_problem: dict[str, list[str]] = {}
    for fault in faults:
        by_problem.setdefault(fault.problem, []).append(fault.path)
    files = len(faults) + len(index.files)
    for number, (problem, paths) in enumerate(by_problem.items()):
        if number == _TOLD:
            yield f"more of the {files:,} files are left out: `parquet-loader check` lists all"
            return
        more = f", and {len(paths) - 1:,} more like it" if len(paths) > 1 else ""
        yield f"{paths[0]}{more}, of {files:,} files: {problem}; left out here, and the loader refuses it"


def _lengths(index: DatasetIndex, looked: list[_Looked], seed: int) -> LengthSample:
    lengths = np.concatenate([each.lengths for each in looked])
    exact = len(looked) == len(index)
    values, places = np.unique(lengths, return_inverse=True)
    borders = np.cumsum([len(each.lengths) for each in looked])[:-1]
    counts = np.stack([np.bincount(own, minlength=len(values)) for own in np.split(places, borders)])
    found = _quantiles(values, counts.sum(axis=0)[None])[0]
    low = high = found
    if len(looked) > 1 and not exact:
        again = np.concatenate([_quantiles(values, drawn @ counts) for drawn in _draws(len(looked), seed)])
        low, high = np.percentile(again, [2.5, 97.5], axis=0).astype(np.int64)
    elif not exact:  # of one row group nothing tells how others differ: as if its documents were drawn one by one
        shares = np.array(_QUANTILES)
        error = 1.96 * np.sqrt(shares * (1 - shares) / len(lengths))
        ordered = np.sort(lengths)
        low, high = (
            ordered[np.clip(((shares + sign * error) * len(lengths)).astype(np.int64), 0, len(lengths) - 1)]
            for sign in (-1, 1)
        )
    bits = np.frexp(lengths.astype(np.float64))[1]  # 0 of none, 1 of 1, 2 of 2 and 3, ...
    documents = np.bincount(bits)
    tokens = np.bincount(bits, weights=lengths)
    return LengthSample(
        mean=float(lengths.mean()) if index.is_stream else index.total_tokens / int(index.rows.sum()),
        quantiles=tuple(
            Quantile(share=share, tokens=int(value), low=int(least), high=int(most))
            for share, value, least, most in zip(_QUANTILES, found, low, high, strict=True)
        ),
        longest=int(lengths.max()),
        shares=tuple(
            Shares(
                least=1 << place >> 1,
                most=max(0, (1 << place) - 1),
                documents=float(documents[place] / len(lengths)),
                tokens=float(tokens[place] / max(1, lengths.sum())),
            )
            for place in np.flatnonzero(documents).tolist()
        ),
        exact=exact,
    )


def _draws(count: int, seed: int) -> Iterator[IntArray]:
    """How often each of some row groups is drawn, where as many are drawn, each of them any number of times; shape
    ``(draws, row groups)``, some hundred draws in all.
    """
    for number in range(0, _BOOTSTRAPS, _DRAWN_AT_ONCE):
        words = np.random.Philox(key=[seed, 1 + number]).random_raw(_DRAWN_AT_ONCE * count)
        drawn = (words % np.uint64(count)).astype(np.int64).reshape(-1, count)
        yield np.stack([np.bincount(row, minlength=count) for row in drawn])


def _quantiles(values: IntArray, counts: IntArray) -> IntArray:
    """Of rising values, of which there are so many in each row of ``counts``; shape ``(rows, quantiles)``."""
    sums = np.cumsum(counts, axis=1)
    return np.stack([values[(sums > share * sums[:, -1:]).argmax(axis=1)] for share in _QUANTILES], axis=1)


def _commonest(ids: list[npt.NDArray[Any]]) -> tuple[tuple[int, float], ...]:
    everything = np.concatenate([np.empty(0, np.int64), *ids])
    values, counts = np.unique(everything, return_counts=True)
    order = np.lexsort((values, -counts))[:_COMMON]
    return tuple((int(values[place]), float(counts[place] / len(everything))) for place in order)


def _manifest(
    source: Source, storage_options: Mapping[str, Any] | None, retry_seconds: float
) -> Mapping[str, Any] | None:
    """What a set that `pretokenize` wrote says of itself, without its list of files; None where there is nothing."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    try:
        place = f"{os.fspath(source).rstrip('/')}/{_MANIFEST}"
        storage = open_storage(place, storage_options, retry_seconds=retry_seconds)
        (file,) = storage.list_files()
        found = json.loads(storage.read(file, 0, file.size))
    except (ParquetLoaderError, OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("format") != "parquet_loader.pretokenize":
        return None
    return {name: value for name, value in found.items() if name not in ("files", "bad_records")}


def _written(storage: Storage, index: DatasetIndex) -> Mapping[str, Any] | None:
    """What `pretokenize` has written into the first file of how text became tokens; None where others wrote it."""
    from .text import encoding_of

    try:
        found = encoding_of(storage, index)
    except (DataError, StorageError):
        return None
    return None if found is None else found.to_dict()
