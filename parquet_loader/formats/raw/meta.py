"""``meta.json``, which tells of raw files of token ids: which there are, in which order, of which type.

It is a list of an object for each file, or an object with such a list and values that hold for all of them:

    {"dtype": "uint16", "eos_token_id": 0, "chunks": [{"file": "chunk_000000.bin", "tokens": 4}, ...]}

A count holds for a file alone: that of the object is of all of them.
"""

from __future__ import annotations

import json
import posixpath
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import DataError, StorageError
from ...storage.base import FileInfo, Storage

__all__ = ["MetaFile", "SaidEos", "read_meta", "said_eos"]

# What people call the number of ids, and the id that ends a document.
_TOKENS_KEYS = ("tokens", "num_tokens", "n_tokens", "token_count")
_OTHER_EOS_KEYS = ("eos_id", "eot_token_id", "eot_id", "eod_id", "eos_token", "eot_token")

_TOKENIZER_KEYS = ("tokenizer", "tokenizer_name", "tokenizer_name_or_path", "name", "name_or_path")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaFile:
    """What a ``meta.json`` says of a file.

    Attributes:
        file: its path from the folder of the ``meta.json``, as it stands there.
        dtype: NumPy's name of its ids' type; None where it does not say.
        tokens: how many it holds; None where it does not say.
        eos_id: what ends a document; None where it does not say.
        tokenizer: the tokenizer's name; None where it does not say.
    """

    file: str
    dtype: str | None
    tokens: int | None
    eos_id: int | None
    tokenizer: str | None


def read_meta(raw: bytes, path: str, *, may_be_other: bool = False) -> list[MetaFile]:
    """What a ``meta.json`` says, in its order; one file at least.

    Args:
        raw: its bytes.
        path: how errors name it.
        may_be_other: whether one that names no file is taken for something else under that name: nothing is said then.

    Raises:
        DataError: it is damaged, or not about files of ids.
    """
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise DataError(
            f"cannot be read ({reason}). It is damaged or cut short, or is something else under that name.", path=path
        ) from error
    common: dict[str, Any] = {}
    entries = values
    if isinstance(values, dict):
        lists = [
            key for key, value in values.items() if isinstance(value, list) and value and isinstance(value[0], dict)
        ]
        common = {key: value for key, value in values.items() if key not in lists}
        entries = values[lists[0]] if len(lists) == 1 else [values] if "file" in values else None
    if may_be_other and not _names_a_file(entries):
        return []
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(each, dict) and each.get("file") for each in entries)
    ):
        raise DataError(
            'each file should have an entry with its name, such as {"file": "chunk_000000.bin", "dtype": "uint16"}.',
            path=path,
        )
    counts = {} if entries == [values] else dict.fromkeys(_TOKENS_KEYS)
    return [_meta_file(common | counts | each, path) for each in entries]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidEos:
    """What a ``meta.json`` says to end documents.

    Attributes:
        path: of the ``meta.json``.
        eos_id: the id.
    """

    path: str
    eos_id: int


def said_eos(storage: Storage, files: Sequence[FileInfo]) -> SaidEos | None:
    """What ends the documents of raw files by the ``meta.json`` among them; None where that says nothing, or several
    things, or cannot be read.
    """
    found: list[SaidEos] = []
    for file in files:
        if posixpath.basename(file.path) == "meta.json":
            try:
                said = read_meta(storage.read(file, 0, file.size), file.path)
            except (DataError, StorageError):  # ids are read without it
                return None
            found += [SaidEos(path=file.path, eos_id=each.eos_id) for each in said if each.eos_id is not None]
    return found[0] if len({each.eos_id for each in found}) == 1 else None


def _names_a_file(entries: object) -> bool:
    return isinstance(entries, list) and any(isinstance(each, dict) and "file" in each for each in entries)


def _meta_file(values: Mapping[str, Any], path: str) -> MetaFile:
    file = _field(values, "file", str, path)
    assert file is not None
    eos_id = _field(values, "eos_token_id", int, path)
    if eos_id is None:  # under other names it may also be text
        eos_id = next((values[key] for key in _OTHER_EOS_KEYS if type(values.get(key)) is int), None)
    return MetaFile(
        file=file,
        dtype=_field(values, "dtype", str, path),
        tokens=next((found for key in _TOKENS_KEYS if (found := _field(values, key, int, path)) is not None), None),
        eos_id=eos_id,
        tokenizer=_tokenizer_name(values),
    )


def _field(values: Mapping[str, Any], key: str, kind: type[_T], path: str) -> _T | None:
    """A value of an object, or None where there is none; of no other type than the one given."""
    value = values.get(key)
    if value is not None and type(value) is not kind:
        wanted = {int: "a whole number", str: "a string"}[kind]
        raise DataError(f"{key!r} should be {wanted}, got {reprlib.repr(value)}.", path=path)
    return value


def _tokenizer_name(values: Mapping[str, Any]) -> str | None:
    """A tokenizer's name, as a string or as an object that holds it."""
    for key in _TOKENIZER_KEYS:
        value = values.get(key)
        if isinstance(value, str) and value and (key != "name" or "file" not in values):
            return value
        if isinstance(value, dict):
            return _tokenizer_name(value)
    return None
