"""A faster engine for a `HuggingFaceTokenizer`, trusted only as far as it gives the same ids.

gigatoken encodes about thirty times as fast as the ``tokenizers`` package, and is a reimplementation: what it gives is
compared with the reference

    before the run    on the first documents, and on texts that spell the special tokens: where an id differs, the
                      whole run uses the reference, and a warning says so
    during the run    on one document in 1,024, chosen by its own text, so that the choice is the same in every run:
                      where an id differs now, files may hold wrong ids already, and the run ends with an error
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ...errors import ConfigError, DataError, PretokenizeWarning
from ..extras import import_extra
from ..sources.base import BadRecord, Source
from .base import EngineName, TokenBatch, Tokenizer
from .huggingface import HuggingFaceTokenizer

__all__ = ["SAMPLE_DOCUMENTS", "GigatokenTokenizer", "with_engine"]


SAMPLE_DOCUMENTS = 200
_SAMPLE_BYTES = 1 << 19
_CHECKED_SHARE = 1024
# The engine remembers every word that it has seen, some 70 bytes for each, and there is no end of new ones. To make
# another takes as long as to encode a twentieth of this.
_RENEW_CHARACTERS = 1 << 31


class GigatokenTokenizer:
    """The ids of a reference tokenizer, by the ``gigatoken`` package."""

    def __init__(self, reference: HuggingFaceTokenizer) -> None:
        self.info = reference.info
        self._reference = reference
        # Left out, a special token is no more than its text, which is how text is to be taken.
        values = json.loads(reference.settings)
        values["added_tokens"] = [each for each in values["added_tokens"] if not each["special"]]
        self._settings = json.dumps(values)
        self._engine = self._new_engine()
        self._encoded = 0  # characters, by this engine

    def __reduce__(self) -> tuple[object, ...]:
        return GigatokenTokenizer, (self._reference,)

    def _new_engine(self) -> Any:
        return import_extra("gigatoken", "gigatoken").Tokenizer.from_json(self._settings)

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        """The texts' tokens.

        Raises:
            DataError: they are not the reference's.
        """
        batch = self.encode_unchecked(texts)
        batch = self._reference.checked(batch, origins)
        checked = [at for at, text in enumerate(texts) if zlib.crc32(text.encode()) % _CHECKED_SHARE == 0]
        wrong = self.differing(batch, texts, checked)
        if wrong is not None:
            raise DataError(
                "gigatoken gives other ids than the tokenizers package for this document, so files written before may "
                "hold wrong ids. Start again with engine='tokenizers' and overwrite=True.",
                path=origins[wrong],
            )
        return batch

    def encode_unchecked(self, texts: Sequence[str]) -> TokenBatch:
        """What the engine makes of the texts."""
        if self._encoded >= _RENEW_CHARACTERS:
            self._engine, self._encoded = None, 0  # the old one goes first
            self._engine = self._new_engine()
        self._encoded += sum(map(len, texts))
        layout = self._engine.encode_batch(list(texts)).layout
        offsets = np.asarray(layout.offsets.data).astype(np.int64)
        tokens = np.asarray(layout.content.data)[offsets[0] : offsets[-1]].astype(self.info.dtype)
        return TokenBatch(tokens=tokens, lengths=np.diff(offsets))

    def differing(self, batch: TokenBatch, texts: Sequence[str], checked: Sequence[int]) -> int | None:
        """The first of the documents to be checked whose ids are not the reference's."""
        ends = np.cumsum(batch.lengths)
        for at in checked:
            expected = self._reference.encode([texts[at]], [""]).tokens
            if not np.array_equal(batch.tokens[ends[at] - batch.lengths[at] : ends[at]], expected):
                return at
        return None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self._reference.decode(ids)


def with_engine(tokenizer: Tokenizer, engine: EngineName, source: Source) -> Tokenizer:
    """The tokenizer by that engine, or as it is, with a warning, where the engine gives other ids.

    Args:
        tokenizer: the reference.
        engine: its name.
        source: whose first documents are compared.

    Raises:
        ConfigError: a tokenizer that is not one of the ``tokenizers`` package, or the engine is not installed.
    """
    if engine == "tokenizers":
        return tokenizer
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise ConfigError(f"engine={engine!r} is for a tokenizer.json, and {tokenizer.info.name!r} is none.")
    import_extra("gigatoken", "gigatoken")
    texts = [*_first_texts(source), *(f"a{token} {token}b" for token in tokenizer.control_tokens())]
    try:
        fast = GigatokenTokenizer(tokenizer)
        wrong = fast.differing(fast.encode_unchecked(texts), texts, range(len(texts)))
        problem = None if wrong is None else f"gives other ids for {texts[wrong][:60]!r}"
    except Exception as error:  # a kind of tokenizer that it does not know
        problem = f"does not take this tokenizer ({' '.join(str(error).split())})"
    if problem is None:
        return fast
    warnings.warn(f"{engine} {problem}: the tokenizers package is used instead.", PretokenizeWarning, stacklevel=2)
    return tokenizer


def _first_texts(source: Source) -> Iterable[str]:
    size = 0
    for record in islice(source.records(), SAMPLE_DOCUMENTS):
        if not isinstance(record, BadRecord):
            text = record.text.encode(errors="replace").decode()
            yield text
            size += len(text)
            if size >= _SAMPLE_BYTES:
                return
