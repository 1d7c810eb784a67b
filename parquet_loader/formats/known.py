"""The formats there are, and which of them a set is of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ConfigError
from ..storage.base import FileInfo, Storage
from ..storage.kinds import KINDS, kind_of, kinds_of
from .arrow import ARROW
from .base import EntryReader, Format
from .parquet import PARQUET
from .raw import RAW

__all__ = ["format_named", "format_of", "reader_of"]

_FORMATS: dict[str, Format] = {each.name: each for each in (PARQUET, ARROW, RAW)}
# How files begin, for those whose names say nothing.
_MAGIC = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"\x93NUMPY": "raw",
    b"PK\x03\x04": "raw",
}


def format_named(name: str) -> Format:
    """The format of a name.

    Raises:
        ConfigError: there is none of this name here.
    """
    if name not in _FORMATS:
        raise ConfigError(f"there is no format {name!r}; there are {', '.join(map(repr, KINDS))}")
    return _FORMATS[name]


def format_of(
    storage: Storage, files: Sequence[FileInfo], name: str | None = None, *, has_raw_dtype: bool = False
) -> Format:
    """The format of a set.

    Args:
        storage: where it lies.
        files: what its listing gave.
        name: of the format, where it was given.
        has_raw_dtype: whether it was said which type raw ids have.

    Raises:
        ConfigError: it has files of several.
        StorageError: a file cannot be read.
    """
    if name is not None:
        return format_named(name)
    kinds = {kind: file.path for file in files if (kind := kind_of(file.path)) is not None}
    if len(kinds) > 1:
        examples = ", ".join(f"{path} ({kind})" for kind, path in sorted(kinds.items()))
        raise ConfigError(f"a set is of one format, and this one has files of several: {examples}; name those of one")
    for kind in kinds:
        return format_named(kind)
    if beside := sorted({kind for file in files for kind in kinds_of(file.path)}):  # named, and its data is not there
        return format_named(beside[0])
    first = next((file for file in files if file.size), None)
    head = storage.read(first, 0, min(first.size, 8)) if first is not None else b""
    # What begins as none of them may be anything where its type is given. Else it is taken for Parquet, which says what
    # is the matter.
    otherwise = "raw" if has_raw_dtype else "parquet"
    return format_named(next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), otherwise))


def reader_of(
    storage: Storage, files: Sequence[FileInfo], name: str | None, raw_dtype: np.dtype[np.integer] | None
) -> tuple[Format, EntryReader]:
    """The format of a set, see `format_of`, and what reads the index entries of its files."""
    found = format_of(storage, files, name, has_raw_dtype=raw_dtype is not None)
    return found, found.reader(storage, files, raw_dtype)
