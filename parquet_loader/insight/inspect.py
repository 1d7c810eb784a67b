"""What is in a set: all that its footers tell, and a few row groups read for what they do not.

footers ──► counts, sizes, layout, ids, remarks                        exact
some row groups, spread evenly over the set ──► lengths of documents,  sampled: with an interval from drawing the
                                                first and last ids     row groups anew; see `sample`
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..blocks import IntArray
from ..errors import ConfigError, DataError, ParquetLoaderError, StorageError
from ..formats.base import CODEC_NAMES
from ..formats.known import format_named
from ..index.build import index_storage, raw_dtype_of
from ..index.index import DatasetIndex
from ..index.pinned import PinnedStorage
from ..options import IndexLike, file_format
from ..remarks import of_growth, of_streams
from ..storage.base import Storage
from ..storage.opening import Source, open_storage
from ..storage.retry import RETRY_SECONDS
from .check_state import Fault
from .readable import FOOTERS_AT_ONCE, readable_index
from .sample import (
    TOLD,
    Decodes,
    LengthSample,
    LookedAt,
    Sampled,
    commonest,
    length_sample,
    look_at_some,
    some_documents,
)

__all__ = [
    "Ids",
    "Inspection",
    "Spread",
    "inspect",
]

_MANIFEST = "_manifest.json"


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
                found, left_out = readable_index(storage, column, FOOTERS_AT_ONCE, format, dtype)
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
    looked, damaged = look_at_some(
        storage,
        found,
        eos_id if found.is_stream else None,
        most=sample_row_groups,
        most_bytes=sample_bytes,
        seed=seed,
    )
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
        lengths=length_sample(found, looked, seed) if documents and looked else None,
        first_ids=commonest([each.first_ids for each in looked]),
        last_ids=commonest([each.last_ids for each in looked]),
        sampled_row_groups=len(looked),
        sampled_documents=sum(len(each.lengths) for each in looked),
        samples=some_documents(found, looked, tokenizer),
        manifest=_manifest(source, storage_options, retry_seconds) or _written(storage, found),
        remarks=(*found.remarks(), *of_growth(storage), *of_streams(found, storage, eos_id)),
        problems=(
            *_left_out(left_out, found),
            *damaged,
            *_contradictions(found, looked),
            *_unended(found, looked, eos_id),
        ),
    )


# ── what it tells ────────────────────────────────────────────────────────────────────────────────────────────────


def _type_of(index: DatasetIndex, layout: int) -> str:
    known = index.layouts[layout]
    return f"list of {known.dtype.name}" if known.max_definition_level else "no values"


def _ids(index: DatasetIndex, looked: list[LookedAt]) -> Ids | None:
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


def _contradicted(index: DatasetIndex, looked: list[LookedAt]) -> list[LookedAt]:
    """Row groups whose ids have another range than their footers say."""
    return [
        each
        for each in looked
        if each.most >= each.least
        and index.max_id[each.group] >= 0
        and (each.least, each.most) != (index.min_id[each.group], index.max_id[each.group])
    ]


def _contradictions(index: DatasetIndex, looked: list[LookedAt]) -> Iterator[str]:
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


def _unended(index: DatasetIndex, looked: list[LookedAt], eos_id: int | None) -> Iterator[str]:
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


def _documents(index: DatasetIndex, looked: list[LookedAt], eos_id: int | None) -> int:
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
        if number == TOLD:
            yield f"more of the {files:,} files are left out: `parquet-loader check` lists all"
            return
        more = f", and {len(paths) - 1:,} more like it" if len(paths) > 1 else ""
        yield f"{paths[0]}{more}, of {files:,} files: {problem}; left out here, and the loader refuses it"


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
