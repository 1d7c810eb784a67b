"""Tokenizers by name, and the one over the ``tokenizers`` package, `HuggingFaceTokenizer`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, DataError
from ..extras import import_extra
from .base import TokenArray, TokenBatch, Tokenizer, TokenizerInfo
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

# The names that end a document in the tokenizers people pretrain with. Names that end a chat's turn are not among them.
COMMON_EOS_TOKENS = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|eos|>",
    "<|end▁of▁sentence|>",
    "[EOS]",
)

_NEVER_CHOSEN_SCORE = -1e9


class HuggingFaceTokenizer:
    """A tokenizer of the ``tokenizers`` package, set to take every text literally and whole.

    - The text of a special token within a document stays text: a web page that spells ``<|endoftext|>`` must not end
      the document. That is ``encode_special_tokens``, but a Unigram model holds its special tokens as ordinary pieces
      and would choose them again, so those pieces lose their score. Where a control id comes out all the same, it is
      an error.
    - The truncation and padding that a ``tokenizer.json`` may carry are switched off.

    Attributes:
        info: what the output's metadata says about it.
        serialised: the ``tokenizer.json``.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, info: TokenizerInfo) -> None:
        self.info = info
        self.serialised = tokenizer.to_str()  # once: that of a large vocabulary takes a tenth of a second
        literal, control_ids = _taking_text_literally(tokenizer, self.serialised)
        self._tokenizer = literal
        self._is_control = np.zeros(info.vocab_size, dtype=np.bool_)
        self._is_control[control_ids] = True

    def __reduce__(self) -> tuple[object, ...]:
        # Made anew in the worker: that it takes text literally is no part of a tokenizer's serialised form.
        return _from_serialised, (self.serialised, self.info)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        """The texts' tokens. The GIL is released while the texts are encoded, on the package's own threads."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        # `ids` makes Python ints, there is no other way out of the package; one pass over them is all they get.
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        tokens = np.fromiter(ids, self.info.dtype, int(lengths.sum()))
        self.check_no_control_ids(tokens, lengths, origins)
        return TokenBatch(tokens=tokens, lengths=lengths)

    def special_tokens(self) -> list[str]:
        """The texts of the special tokens."""
        added = self._tokenizer.get_added_tokens_decoder()
        return [token.content for _, token in sorted(added.items()) if token.special]

    def check_no_control_ids(self, tokens: TokenArray, lengths: npt.NDArray[np.int64], origins: Sequence[str]) -> None:
        """Refuse control ids that came out of a text."""
        controls = np.flatnonzero(self._is_control[tokens])
        if len(controls):
            first = int(controls[0])
            document = int(np.searchsorted(np.cumsum(lengths), first, side="right"))
            token_id = int(tokens[first])
            raise DataError(
                f"the text spells the special token {self._tokenizer.id_to_token(token_id)!r}, and this tokenizer's "
                f"model makes its control id {token_id} of it. Change the text, or use a tokenizer that keeps it text.",
                path=origins[document],
            )


def _from_serialised(serialised: str, info: TokenizerInfo) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(import_extra("tokenizers").Tokenizer.from_str(serialised), info)


def load_tokenizer(where: str, *, eos_token: str | None = None, need_eos: bool = False) -> Tokenizer:
    """A tokenizer by name.

    Args:
        where: a ``tokenizer.json``, a folder that holds one, or a Hub name such as ``"openai-community/gpt2"``;
            ``"tiktoken:NAME"``; a SentencePiece ``.model``; ``"bytes"``, whose ids are the bytes of UTF-8.
        eos_token: the token that ends a document; None looks into ``tokenizer_config.json`` and for the common names.
        need_eos: whether not to find one is an error.

    Raises:
        ConfigError: no such tokenizer, not a tokenizer, or no (single) end-of-document token.
    """
    if where == "bytes":
        return ByteTokenizer(eos_token)
    if where.startswith("tiktoken:"):
        return load_tiktoken(where, eos_token)
    if where.endswith(".model"):
        return load_sentencepiece(where, eos_token, need_eos)
    module = import_extra("tokenizers")
    path = Path(where).expanduser()
    if where and path.is_dir():
        tokenizer, config = _from_file(module, path / "tokenizer.json"), _read_config(path / "tokenizer_config.json")
    elif path.is_file():
        tokenizer, config = _from_file(module, path), _read_config(path.parent / "tokenizer_config.json")
    elif _is_hub_name(where):
        tokenizer, config = _from_hub(module, where)
    else:
        raise ConfigError(
            f"--tokenizer: there is no file or folder {where!r}. Give a tokenizer.json, a local folder that holds one, "
            f"a name on the Hugging Face Hub such as 'openai-community/gpt2', tiktoken:NAME, a SentencePiece .model, "
            f"or bytes."
        )
    eos = _find_eos(tokenizer, config, eos_token, where, need_eos)
    info = TokenizerInfo(
        name=where,
        sha256=hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        eos_token=eos,
        eos_id=None if eos is None else tokenizer.token_to_id(eos),
    )
    return HuggingFaceTokenizer(tokenizer, info)


def _is_hub_name(where: str) -> bool:
    looks_like_path = where.startswith((".", "/", "~")) or where.endswith((".json", "/")) or "://" in where
    return bool(where) and not looks_like_path and "\\" not in where and where.count("/") <= 1


def _from_file(module: Any, path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ConfigError(f"--tokenizer: the folder {str(path.parent)!r} holds no tokenizer.json.")
    try:
        tokenizer: tokenizers.Tokenizer = module.Tokenizer.from_file(str(path))
    except Exception as exc:  # the package raises the bare class
        raise ConfigError(
            f"--tokenizer: {str(path)!r} is no tokenizer that the tokenizers package reads ({exc}). "
            f"Give the tokenizer.json itself, or the folder that holds it."
        ) from exc
    return tokenizer


def _from_hub(module: Any, name: str) -> tuple[tokenizers.Tokenizer, dict[str, object]]:
    try:
        tokenizer: tokenizers.Tokenizer = module.Tokenizer.from_pretrained(name)
    except Exception as exc:  # offline, no such name and no permission are all different types
        reason = " ".join(str(exc).split())
        raise ConfigError(
            f"--tokenizer: {name!r} is no file or folder here, and could not be fetched from the Hugging Face Hub "
            f"({reason}). Without a network, give a tokenizer.json or a folder that holds one."
        ) from exc
    try:
        config = _read_config(Path(import_extra("huggingface_hub").hf_hub_download(name, "tokenizer_config.json")))
    except (ConfigError, OSError):
        config = {}  # the file is optional; without it the common names are looked for
    return tokenizer, config


def _read_config(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as exc:
        raise ConfigError(f"--tokenizer: {str(path)!r} is not valid JSON ({exc}). Correct or remove it.") from exc
    return config if isinstance(config, dict) else {}


def _find_eos(
    tokenizer: tokenizers.Tokenizer, config: dict[str, object], asked: str | None, where: str, need: bool
) -> str | None:
    if asked is not None:
        if tokenizer.token_to_id(asked) is None:
            raise ConfigError(
                f"--eos-token {asked!r} is no token of {where!r}. Its special tokens: {_specials(tokenizer)}."
            )
        return asked
    configured = config.get("eos_token")
    if isinstance(configured, dict):  # transformers writes either the text or an AddedToken's fields
        configured = configured.get("content")
    if isinstance(configured, str) and tokenizer.token_to_id(configured) is not None:
        return configured
    common = [token for token in COMMON_EOS_TOKENS if tokenizer.token_to_id(token) is not None]
    if len(common) == 1:
        return common[0]
    if need:
        problem = f"it has several that could ({', '.join(common)})" if common else "it has none of the usual names"
        raise ConfigError(
            f"--append-eos: cannot tell which token of {where!r} ends a document: {problem}, and no "
            f"tokenizer_config.json beside it says. Name it with --eos-token. "
            f"Its special tokens: {_specials(tokenizer)}."
        )
    return None


def _specials(tokenizer: tokenizers.Tokenizer) -> str:
    added = tokenizer.get_added_tokens_decoder()
    names = [token.content for _, token in sorted(added.items()) if token.special]
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "") if names else "none"


def _taking_text_literally(tokenizer: tokenizers.Tokenizer, serialised: str) -> tuple[tokenizers.Tokenizer, list[int]]:
    """A copy that takes every text literally and whole, and the ids that must then not come out of a text."""
    values = json.loads(serialised)
    model = values["model"]
    special_ids = {token["id"] for token in values["added_tokens"] if token["special"]}
    unknown = model.get("unk_id")
    if unknown is None and model.get("unk_token") is not None:
        unknown = tokenizer.token_to_id(model["unk_token"])
    control_ids = special_ids - {unknown}  # an unknown word's id is the model's honest answer, though it is "special"
    if model.get("type") == "Unigram":
        for token_id in control_ids:
            if token_id < len(model["vocab"]):
                model["vocab"][token_id][1] = _NEVER_CHOSEN_SCORE
        copy: tokenizers.Tokenizer = type(tokenizer).from_str(json.dumps(values))
    else:
        copy = type(tokenizer).from_str(serialised)
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy, sorted(control_ids)
