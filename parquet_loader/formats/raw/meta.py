"""``meta.json``, which tells of raw files of token ids: which there are, in which order, of which type.

It is a list of an object for each file, or an object with such a list and values that hold for all of them:

    {"dtype": "uint16", "eos_token_id": 0, "chunks": [{"file": "chunk_000000.bin", "tokens": 4}, ...]}
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import DataError

__all__ = ["MetaFile", "read_meta"]

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
    return [_meta_file(common | each, path) for each in entries]


def _names_a_file(entries: object) -> bool:
    return isinstance(entries, list) and any(isinstance(each, dict) and "file" in each for each in entries)


def _meta_file(values: Mapping[str, Any], path: str) -> MetaFile:
    file = _field(values, "file", str, path)
    assert file is not None
    return MetaFile(
        file=file,
        dtype=_field(values, "dtype", str, path),
        tokens=_field(values, "tokens", int, path),
        eos_id=_field(values, "eos_token_id", int, path),
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
