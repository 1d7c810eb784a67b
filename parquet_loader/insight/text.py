"""Tokens as text: the tokenizer by name, or the one that a set's files name.

`open_tokenizer` takes the names that ``pretokenize`` takes. What it gives decodes any ids: see `Tokenizer.decode`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..errors import ConfigError, DataError
from ..index.index import DatasetIndex
from ..pretokenize.tokenizers.base import Tokenizer
from ..pretokenize.tokenizers.huggingface import load_tokenizer
from ..pretokenize.write.manifest import Encoding
from ..pretokenize.write.writer import METADATA_KEY
from ..storage.base import Storage
from .rows import open_parquet

__all__ = ["encoding_of", "open_tokenizer", "open_tokenizer_of"]

open_tokenizer = load_tokenizer


def encoding_of(storage: Storage, index: DatasetIndex) -> Encoding | None:
    """What ``pretokenize`` has written into the files about how text became tokens; None where others wrote them.

    One footer is read.
    """
    if not index.files or index.format != "parquet":  # pretokenize writes Parquet
        return None
    with open_parquet(storage, index.files[0]) as parquet:
        written = (parquet.metadata.metadata or {}).get(METADATA_KEY.encode())
    if written is None:
        return None
    try:
        return Encoding.from_dict(json.loads(written))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"its metadata {METADATA_KEY!r} is damaged ({error!r})", path=index.files[0].path) from error


def open_tokenizer_of(sets: Mapping[str, tuple[Storage, DatasetIndex]]) -> Tokenizer:
    """The tokenizer that the files of sets name.

    Args:
        sets: by the name of the source, or "" where there is only one.

    Raises:
        ConfigError: they name none, or different ones; it is not to be found here, or is another than wrote the files.
    """
    found = {name: encoding_of(storage, index) for name, (storage, index) in sets.items()}
    named = {name: each.tokenizer for name, each in found.items() if each is not None and each.tokenizer.sha256}
    for name in found:
        if name not in named:
            of = f" of source {name!r}" if name else ""
            raise ConfigError(
                f"the files{of} do not say which tokenizer wrote them: name it with tokenizer (--tokenizer)"
            )
    first, info = next(iter(named.items()))
    for name, other in named.items():
        if other.sha256 != info.sha256:
            raise ConfigError(
                f"source {first!r} was written with the tokenizer {info.name!r} and {name!r} with {other.name!r}, "
                "another one: no run can mix them, and no one tokenizer shows both"
            )
    try:
        tokenizer = load_tokenizer(info.name)
    except ConfigError as error:
        raise ConfigError(
            f"the files were written with the tokenizer {info.name!r}, which cannot be opened here: {error} Or name "
            "where it lies with tokenizer (--tokenizer)"
        ) from error
    # With another choice of the end-of-document token, a tokenizer.json may have got one more token.
    if info.sha256 not in (tokenizer.info.sha256, _with_eos(info.name, info.eos_token)):
        raise ConfigError(
            f"the files were written with a tokenizer {info.name!r}, and what lies there now is another one: name the "
            "right one with tokenizer (--tokenizer)"
        )
    return tokenizer


def _with_eos(name: str, eos_token: str | None) -> str | None:
    try:
        return load_tokenizer(name, eos_token=eos_token).info.sha256
    except ConfigError:
        return None
