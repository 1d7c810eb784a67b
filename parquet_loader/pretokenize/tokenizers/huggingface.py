"""Tokenizers by name, and the one over the ``tokenizers`` package, `HuggingFaceTokenizer`."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConfigError, DataError, PretokenizeWarning
from ...storage.secrets import Location
from ..extras import import_extra
from .base import Lost, TokenArray, TokenBatch, Tokenizer, TokenizerInfo, decoded, refuse_control_ids, unknown_id
from .eos import COMMON_EOS_TOKENS, find_eos, read_declared
from .literal import eos_problem, literal_form, randomness
from .plain import ByteTokenizer, load_sentencepiece, load_tiktoken

if TYPE_CHECKING:
    import tokenizers

__all__ = [
    "COMMON_EOS_TOKENS",
    "HuggingFaceTokenizer",
    "TokenArray",
    "TokenBatch",
    "Tokenizer",
    "TokenizerInfo",
    "load_tokenizer",
]

_CONTROL, _UNKNOWN = 1, 2


class HuggingFaceTokenizer:
    """A tokenizer of the ``tokenizers`` package, set to take every text literally and whole.

    - The text of a special token, or of the one that ends a document, stays text: see `literal`. Where its id comes out
      all the same, it is an error.
    - Dropout is switched off, and so are the truncation and padding that a ``tokenizer.json`` may carry.
    - A model that drops symbols in silence encodes as one that marks them, which gives the same ids where it marks
      none. Only documents in which it does are encoded a second time, as the model would.

    Attributes:
        info: what the output's metadata says about it.
        serialised: the ``tokenizer.json``.
        settings: the one to encode with.
    """

    def __init__(self, serialised: str, info: TokenizerInfo) -> None:
        self.info = info
        self.serialised = serialised
        form = literal_form(serialised, info.eos_id, info.vocab_size)
        self.settings = json.dumps(form.settings)
        self._plain = self._marking = _from_str(self.settings)
        if form.counting_model is not None:
            self._marking = _from_str(self.settings)
            # By itself: one more piece in the file would move the ids of the added tokens.
            alone = {**form.settings, "model": form.counting_model, "added_tokens": []}
            self._marking.model = _from_str(json.dumps(alone)).model
        self._control_ids = sorted(form.control_ids)
        self._kinds = np.zeros(info.vocab_size, dtype=np.uint8)
        self._kinds[self._control_ids] = _CONTROL
        if form.unknown_id is not None:
            self._kinds[form.unknown_id] = _UNKNOWN

    def __reduce__(self) -> tuple[object, ...]:
        # Made anew in the worker: that it takes text literally is no part of a tokenizer's serialised form.
        return HuggingFaceTokenizer, (self.serialised, self.info)

    @cached_property
    def _original(self) -> tokenizers.Tokenizer:
        return _from_str(self.serialised)  # only made to decode

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return decoded(ids, self._name_of, partial(self._original.decode, skip_special_tokens=False))

    def _name_of(self, token_id: int) -> str | None:
        there = 0 <= token_id < self.info.vocab_size and self._original.id_to_token(token_id) is not None
        return None if there else unknown_id(token_id)

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        """The texts' tokens. The GIL is released while the texts are encoded, on the package's own threads.

        Raises:
            DataError: a control id came out of a text, or the model has no ids for it.
        """
        batch = self._encode_by(self._marking, texts, origins)
        if self._marking is not self._plain:
            dropped = np.flatnonzero(batch.tokens == self.info.vocab_size)
            if len(dropped):
                batch = self._encoded_again(batch, batch.count(dropped), texts, origins)
            batch = replace(batch, tokens=batch.tokens.astype(self.info.dtype))
        return self.checked(batch, origins)

    def control_tokens(self) -> list[str]:
        """The texts of the special tokens and of the one that ends a document."""
        return [str(self._original.id_to_token(token_id)) for token_id in self._control_ids]

    def checked(self, batch: TokenBatch, origins: Sequence[str]) -> TokenBatch:
        """A batch that has no control ids, with its unknown tokens counted.

        Raises:
            DataError: a control id came out of a text.
        """
        kinds = self._kinds[batch.tokens]
        if not kinds.any():
            return batch
        refuse_control_ids(batch, np.flatnonzero(kinds == _CONTROL), origins, self._original.id_to_token)
        return batch.with_unknown(np.flatnonzero(kinds == _UNKNOWN))

    def _encode_by(self, tokenizer: tokenizers.Tokenizer, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        try:
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the package raises the bare class, and does not say for which text
            if len(texts) == 1:
                raise DataError(f"the tokenizer has no ids for this text ({error}).", path=origins[0]) from error
            for text, origin in zip(texts, origins, strict=True):
                self._encode_by(tokenizer, [text], [origin])
            raise
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        # `ids` makes Python ints, there is no other way out of the package; one pass over them is all they get.
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        dtype = self.info.dtype if tokenizer is self._plain else np.dtype(np.int32)
        return TokenBatch(tokens=np.fromiter(ids, dtype, int(lengths.sum())), lengths=lengths)

    def _encoded_again(
        self, batch: TokenBatch, dropped: Mapping[int, int], texts: Sequence[str], origins: Sequence[str]
    ) -> TokenBatch:
        """The batch, with the documents in which symbols are marked as the model itself encodes them."""
        documents = [*dropped]
        again = self._encode_by(self._plain, [texts[at] for at in documents], [origins[at] for at in documents])
        pieces = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
        for at, piece in zip(documents, np.split(again.tokens, np.cumsum(again.lengths)[:-1]), strict=True):
            pieces[at] = piece
        lengths = batch.lengths.copy()
        lengths[documents] = again.lengths
        lost = {at: Lost(dropped_symbols=number) for at, number in dropped.items()}
        return TokenBatch(tokens=np.concatenate(pieces), lengths=lengths, lost=lost)


def _from_str(serialised: str) -> tokenizers.Tokenizer:
    tokenizer: tokenizers.Tokenizer = import_extra("tokenizers").Tokenizer.from_str(serialised)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_tokenizer(where: str, *, eos_token: str | None = None, need_eos: bool = False) -> Tokenizer:
    """A tokenizer by name.

    Args:
        where: a ``tokenizer.json``, a folder that holds one, or a Hub name such as ``"openai-community/gpt2"``;
            ``"tiktoken:NAME"``; a SentencePiece ``.model``; ``"bytes"``, whose ids are the bytes of UTF-8.
        eos_token: the token that ends a document; None looks into the files beside a ``tokenizer.json``, as
            ``transformers`` does, and for the common names.
        need_eos: whether not to find one is an error.

    Raises:
        ConfigError: no such tokenizer, not a tokenizer, or no (single) end-of-document token.
    """
    if "://" in where:
        raise ConfigError(f"tokenizer={Location(where)!r}: a URL is not read. Give a local copy of the file.")
    if where == "bytes":
        return ByteTokenizer(eos_token)
    if where.startswith("tiktoken:"):
        return load_tiktoken(where, eos_token)
    if where.endswith(".model"):
        return load_sentencepiece(where, eos_token, need_eos)
    module = import_extra("tokenizers")
    path = Path(where).expanduser()
    if where and path.is_dir():
        tokenizer, read = _from_file(module, path / "tokenizer.json"), partial(_read_config, path)
    elif path.is_file():
        tokenizer, read = _from_file(module, path), partial(_read_config, path.parent)
    elif _is_hub_name(where):
        tokenizer, read = _from_hub(module, where), partial(_fetch_config, where)
    else:
        raise ConfigError(
            f"tokenizer={where!r}: there is no such file or folder. Give a tokenizer.json, a local folder that holds "
            f"one, a name on the Hugging Face Hub such as 'openai-community/gpt2', tiktoken:NAME, a SentencePiece "
            f".model, or bytes."
        )
    eos = find_eos(tokenizer, lambda: read_declared(read), eos_token, where, need_eos)
    serialised = tokenizer.to_str()
    values = json.loads(serialised)
    eos_id = None if eos is None else tokenizer.token_to_id(eos)
    problem = None if eos is None or eos_id is None else eos_problem(values, eos, eos_id)
    if problem is not None:
        if need_eos or eos_token is not None:
            raise ConfigError(
                f"eos_token={eos!r} of {where!r} {problem}, so it cannot end documents. Name another token with "
                f"eos_token."
            )
        eos = eos_id = None
    random = randomness(values)
    if random is not None:
        warnings.warn(
            f"the tokenizer {where!r} is set to give other ids for the same text each time ({random}). That is "
            f"switched off: the same text gives the same ids.",
            PretokenizeWarning,
            stacklevel=2,
        )
    info = TokenizerInfo(
        name=where,
        sha256=hashlib.sha256(serialised.encode()).hexdigest(),
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        eos_token=eos,
        eos_id=eos_id,
    )
    return HuggingFaceTokenizer(serialised, info)


def _is_hub_name(where: str) -> bool:
    looks_like_path = where.startswith((".", "/", "~")) or where.endswith((".json", "/")) or "://" in where
    return bool(where) and not looks_like_path and "\\" not in where and where.count("/") <= 1


def _from_file(module: Any, path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ConfigError(f"tokenizer={str(path.parent)!r}: the folder holds no tokenizer.json.")
    try:
        tokenizer: tokenizers.Tokenizer = module.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises the bare class
        raise ConfigError(
            f"tokenizer={str(path)!r} is no tokenizer that the tokenizers package reads ({error}). "
            f"Give the tokenizer.json itself, or the folder that holds it."
        ) from error
    return tokenizer


def _from_hub(module: Any, name: str) -> tokenizers.Tokenizer:
    try:
        tokenizer: tokenizers.Tokenizer = module.Tokenizer.from_pretrained(name)
    except Exception as error:  # offline, no such name and no permission are all different types
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"tokenizer={name!r} is no file or folder here, and could not be fetched from the Hugging Face Hub "
            f"({reason}). Without a network, give a tokenizer.json or a folder that holds one."
        ) from error
    return tokenizer


def _fetch_config(name: str, file: str) -> dict[str, Any]:
    """The JSON object in an optional file of a Hub repository.

    Raises:
        ConfigError: whether there is such a file cannot be told, or it is not JSON.
    """
    hub = import_extra("huggingface_hub")
    try:
        path = Path(hub.hf_hub_download(name, file))
    except Exception as error:  # no network, no permission, no such file
        absent = isinstance(error, hub.errors.EntryNotFoundError)
        unreached = isinstance(error, hub.errors.LocalEntryNotFoundError)
        if (absent and not unreached) or hub.try_to_load_from_cache(name, file) is hub._CACHED_NO_EXIST:
            return {}
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"tokenizer={name!r}: {file}, which may name the end-of-document token, could not be fetched from the "
            f"Hugging Face Hub ({reason}). Name the token with eos_token, or try again with a network."
        ) from error
    return _read_config(path.parent, file)


def _read_config(folder: Path, file: str) -> dict[str, Any]:
    path = folder / file
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not valid JSON ({error}). Correct or remove it.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{str(path)!r} is not a JSON object. Correct or remove it.")
    return values
