"""Tokenizers without a ``tokenizer.json``: bytes, tiktoken, SentencePiece. None makes a control id of a text."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError
from ..extras import import_extra
from .base import TokenArray, TokenBatch, TokenizerInfo, decoded, unknown_id

__all__ = ["ByteTokenizer", "SentencePieceTokenizer", "TiktokenTokenizer", "load_sentencepiece", "load_tiktoken"]


_BYTES_EOS = "<eos>"


class ByteTokenizer:
    """The bytes of UTF-8 as ids, and 256 for the end of a document: for tests and demos, and for byte models."""

    def __init__(self, eos_token: str | None = None) -> None:
        if eos_token not in (None, _BYTES_EOS):
            raise ConfigError(f"eos_token={eos_token!r} is no token of 'bytes', which has {_BYTES_EOS!r} alone.")
        name = hashlib.sha256(b"parquet_loader bytes 1").hexdigest()
        self.info = TokenizerInfo(name="bytes", sha256=name, vocab_size=257, eos_token=_BYTES_EOS, eos_id=256)

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        """The texts' bytes."""
        raw = [text.encode() for text in texts]
        tokens = np.frombuffer(b"".join(raw), np.uint8).astype(self.info.dtype)
        return TokenBatch(tokens=tokens, lengths=np.fromiter(map(len, raw), np.int64, len(raw)))

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return decoded(ids, self._name_of, lambda some: bytes(some).decode(errors="replace"))

    def _name_of(self, token_id: int) -> str | None:
        if 0 <= token_id < 256:
            return None
        return _BYTES_EOS if token_id == self.info.eos_id else unknown_id(token_id)


def load_tiktoken(where: str, eos_token: str | None) -> TiktokenTokenizer:
    """The encoding of that name, ``"tiktoken:NAME"``.

    Raises:
        ConfigError: no such encoding, or its file cannot be fetched.
    """
    module = import_extra("tiktoken", "tiktoken")
    name = where.removeprefix("tiktoken:")
    try:
        encoding = module.get_encoding(name)
    except Exception as error:  # an unknown name and a network that fails are all different types
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"tokenizer={where!r} cannot be loaded ({reason}). tiktoken fetches each encoding once, and knows "
            f"{', '.join(module.list_encoding_names())}."
        ) from error
    eos = "<|endoftext|>" if eos_token is None else eos_token
    if eos not in encoding.special_tokens_set:
        raise ConfigError(
            f"eos_token={eos!r} is no token of {where!r}. Its special tokens: "
            f"{', '.join(sorted(encoding.special_tokens_set))}."
        )
    eos_id = encoding.encode_single_token(eos)
    if encoding.decode_single_token_bytes(eos_id) != eos.encode():
        raise ConfigError(
            f"eos_token={eos!r} of {where!r} has the id {eos_id}, which also stands for text. Name another token with "
            f"eos_token."
        )
    lacking = [byte for byte in range(256) if not _has_byte(encoding, byte)]
    if lacking:
        raise ConfigError(
            f"tokenizer={where!r} has no token for {len(lacking)} of the 256 bytes, such as 0x{lacking[0]:02X}, so "
            f"it cannot encode every text. Use another tokenizer."
        )
    sha256 = hashlib.sha256()
    for token in range(encoding.n_vocab):
        try:
            sha256.update(encoding.decode_single_token_bytes(token) + b"\n")
        except KeyError:  # ids that stand for nothing
            sha256.update(b"-\n")
    info = TokenizerInfo(
        name=where,
        sha256=sha256.hexdigest(),
        vocab_size=encoding.n_vocab,
        eos_token=eos,
        eos_id=eos_id,
    )
    return TiktokenTokenizer(encoding, info)


def _has_byte(encoding: Any, byte: int) -> bool:
    try:
        encoding.encode_single_token(bytes([byte]))
    except KeyError:
        return False
    return True


class TiktokenTokenizer:
    """An encoding of the ``tiktoken`` package. The text of a special token stays text."""

    def __init__(self, encoding: Any, info: TokenizerInfo) -> None:
        self.info = info
        self._encoding = encoding

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        """The texts' tokens, on as many threads as there are cores; the package releases the GIL."""

        def one(text: str) -> TokenArray:
            return np.asarray(self._encoding.encode_to_numpy(text, disallowed_special=()), self.info.dtype)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            pieces = list(pool.map(one, texts))
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        return TokenBatch(tokens=np.concatenate([np.zeros(0, self.info.dtype), *pieces]), lengths=lengths)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return decoded(ids, self._name_of, self._encoding.decode)

    def _name_of(self, token_id: int) -> str | None:
        try:
            self._encoding.decode_single_token_bytes(token_id)
        except (KeyError, OverflowError):
            return unknown_id(token_id)
        return None


def load_sentencepiece(where: str, eos_token: str | None, need_eos: bool) -> SentencePieceTokenizer:
    """The model in a ``.model`` file.

    Raises:
        ConfigError: no such file, not a model, or no end-of-document token.
    """
    path = Path(where).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"tokenizer={where!r}: there is no such file. Give a SentencePiece model, which ends in .model."
        )
    return SentencePieceTokenizer(path.read_bytes(), where, eos_token, need_eos)


class SentencePieceTokenizer:
    """A SentencePiece model. Its control symbols never come out of a text; the normalisation is the model's own."""

    def __init__(self, model: bytes, where: str, eos_token: str | None, need_eos: bool) -> None:
        module = import_extra("sentencepiece", "sentencepiece")
        self._arguments = (model, where, eos_token, need_eos)
        if not model:  # which the package takes, with a message of its own for every call
            raise ConfigError(f"tokenizer={where!r} is empty. Give a SentencePiece model.")
        try:
            self._processor = module.SentencePieceProcessor(model_proto=model)
        except Exception as error:  # the package raises RuntimeError, and others for other contents
            raise ConfigError(f"tokenizer={where!r} is no SentencePiece model ({error}).") from error
        eos_id = self._processor.eos_id() if eos_token is None else self._processor.piece_to_id(eos_token)
        known = eos_id >= 0 and (eos_token is None or self._processor.id_to_piece(eos_id) == eos_token)
        if not known and (need_eos or eos_token is not None):
            asked = f"has no token {eos_token!r}" if eos_token is not None else "has no end-of-sentence token"
            raise ConfigError(f"tokenizer={where!r} {asked}. Name one of its control symbols with eos_token.")
        if known and not self._processor.is_control(eos_id):
            raise ConfigError(
                f"eos_token={eos_token!r} of {where!r} is no control symbol, so its id also comes out of text. Name a "
                f"control symbol with eos_token; it has: {self._control_symbols()}."
            )
        self.info = TokenizerInfo(
            name=where,
            sha256=hashlib.sha256(model).hexdigest(),
            vocab_size=self._processor.get_piece_size(),
            eos_token=self._processor.id_to_piece(eos_id) if known else None,
            eos_id=eos_id if known else None,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return SentencePieceTokenizer, self._arguments

    def _control_symbols(self) -> str:
        ids = filter(self._processor.is_control, range(self._processor.get_piece_size()))
        return ", ".join(map(self._processor.id_to_piece, islice(ids, 20))) or "none"

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        """The texts' tokens, on the package's own threads."""
        rows = self._processor.encode(list(texts), out_type=int)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        tokens = np.fromiter((each for row in rows for each in row), self.info.dtype, int(lengths.sum()))
        batch = TokenBatch(tokens=tokens, lengths=lengths)
        return batch.with_unknown(np.flatnonzero(tokens == self._processor.unk_id()))

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return decoded(ids, self._name_of, self._processor.decode)

    def _name_of(self, token_id: int) -> str | None:
        if not 0 <= token_id < self.info.vocab_size:
            return unknown_id(token_id)
        return str(self._processor.id_to_piece(token_id)) if self._processor.is_control(token_id) else None
