"""Which columns a set's files have, and which of them may hold tokens: for whoever has yet to choose one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..advice import tokenization
from ..errors import ParquetLoaderError
from ..formats.base import ENTRY_ARRAYS, FileEntry
from ..formats.known import reader_of
from ..index.build import raw_dtype_of
from ..options import file_format
from ..storage.opening import Source, open_storage
from ..storage.retry import RETRY_SECONDS
from .readable import FOOTERS_AT_ONCE, read_entries

__all__ = ["Candidate", "candidates", "pretokenize_advice"]

_FILES = 256


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
    known, reader = reader_of(storage, storage.list_files(), format, raw_dtype_of(raw_dtype))
    files = reader.files
    some = [files[place] for place in np.unique(np.linspace(0, len(files) - 1, _FILES).astype(int)).tolist()]
    read = read_entries(reader, some, FOOTERS_AT_ONCE, counts=False)
    entries = [each for each in read if isinstance(each, FileEntry)]
    if not entries:
        raise next(each for each in read if isinstance(each, ParquetLoaderError))
    found: dict[tuple[bool, str, str], list[int | None]] = {}
    place = ENTRY_ARRAYS.index("tokens")
    # Read as aligned, columns come with the types of their values, and not only those that they are stored as.
    names = tuple({name for each in entries for name in each.columns})
    again = read
    if known.name == "parquet":
        again = read_entries(reader, some, FOOTERS_AT_ONCE, counts=False, aligned=names)
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
