"""A ``tokenizer.json`` changed so that every text is taken literally: pure functions on its JSON values.

The text of a control token, which is a special token or the one that ends a document, must stay text within a document:
a web page that spells ``<|endoftext|>`` must not end it. It can become an id in two ways:

    as an added token      found in the text before the model sees it. As a special token it is passed over, which the
                           ``tokenizers`` package calls ``encode_special_tokens``
    as a model's piece     of Unigram and WordPiece, of BPE by merges or by ``ignore_merges``. The piece gets a name
                           that no text spells, and the merges that make it go

A piece of one symbol stays, since all text is made of symbols, and so does a word of a WordLevel model, which could
write it in no other way. Whoever encodes must look for control ids in what comes out.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LiteralForm", "eos_problem", "literal_form", "randomness"]


# The bytes of UTF-8 as the printable characters that byte-level tokenizers write for them.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_CHARACTERS = {*map(chr, _PRINTABLE), *(chr(0x100 + at) for at in range(256 - len(_PRINTABLE)))}
_BYTE_PIECES = {f"<0x{byte:02X}>" for byte in range(256)}
_DROPPED = "\U0010ffffdropped"
_RANDOM = ("dropout", "alpha", "nbest_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralForm:
    """What encodes text literally.

    Attributes:
        settings: the ``tokenizer.json`` to encode with.
        control_ids: those that must not come out of a text.
        unknown_id: stands for what the vocabulary lacks; None where it lacks nothing, or has no such id.
        counting_model: of a model that drops what it lacks, the same one with the vocabulary's size as the id of each
            symbol that is dropped; else None.
    """

    settings: Mapping[str, Any]
    control_ids: frozenset[int]
    unknown_id: int | None
    counting_model: Mapping[str, Any] | None


def literal_form(serialised: str, eos_id: int | None, vocab_size: int) -> LiteralForm:
    """What encodes literally for a ``tokenizer.json``.

    Args:
        serialised: its text, as the installed ``tokenizers`` package writes it.
        eos_id: the token that ends a document.
        vocab_size: largest id + 1.
    """
    values = json.loads(serialised)
    model = values["model"]
    for key in _RANDOM:
        if key in model:
            model[key] = None
    lacks_nothing = _lacks_nothing(values)
    unknown_id = None if lacks_nothing else _unknown_id(model)
    special_ids = {token["id"] for token in values["added_tokens"] if token["special"]}
    # An unknown word's id is the model's honest answer, though it is "special".
    control_ids = frozenset({*special_ids, *(() if eos_id is None else (eos_id,))} - {unknown_id})
    _silence(values, control_ids)
    counting_model = None
    if model["type"] == "BPE" and model["unk_token"] is None and not lacks_nothing:
        vocabulary = {**model["vocab"], _DROPPED: vocab_size}
        counting_model = {**model, "unk_token": _DROPPED, "fuse_unk": False, "vocab": vocabulary}
    return LiteralForm(
        settings=values,
        control_ids=control_ids,
        unknown_id=unknown_id,
        counting_model=counting_model,
    )


def eos_problem(values: Mapping[str, Any], eos: str, eos_id: int) -> str | None:
    """Why a token of a ``tokenizer.json`` cannot end documents, or None."""
    model = values["model"]
    if not _lacks_nothing(values) and eos_id == _unknown_id(model):
        return "is the unknown token, which stands for text that the vocabulary lacks"
    if model["type"] != "WordLevel" and _vocabulary(model).get(eos) == eos_id and _is_symbol(eos, model):
        return "is one symbol of ordinary text"
    return None


def randomness(values: Mapping[str, Any]) -> str | None:
    """What in a ``tokenizer.json`` makes other ids of the same text each time, such as ``"dropout 0.1"``, or None."""
    model = values["model"]
    return ", ".join(f"{key} {model[key]}" for key in _RANDOM if model.get(key)) or None


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = model["vocab"]
    return vocabulary if isinstance(vocabulary, dict) else {piece: at for at, (piece, _) in enumerate(vocabulary)}


def _unknown_id(model: Mapping[str, Any]) -> int | None:
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else int(model["unk_id"])
    return None if model["unk_token"] is None else model["vocab"].get(model["unk_token"])


def _lacks_nothing(values: Mapping[str, Any]) -> bool:
    """Whether it is sure that any text can be written with the vocabulary: as bytes."""
    model = values["model"]
    if model["type"] not in ("BPE", "Unigram"):
        return False
    pieces = _vocabulary(model).keys()
    if model.get("byte_fallback"):
        return pieces >= _BYTE_PIECES
    last: Any = values["pre_tokenizer"]
    while last is not None and last["type"] == "Sequence":
        last = last["pretokenizers"][-1] if last["pretokenizers"] else None
    affixed = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    return last is not None and last["type"] == "ByteLevel" and not affixed and pieces >= _BYTE_CHARACTERS


def _is_symbol(piece: str, model: Mapping[str, Any]) -> bool:
    if model.get("byte_fallback") and piece in _BYTE_PIECES:
        return True
    bare = piece.removeprefix(model.get("continuing_subword_prefix") or "")
    return len(bare.removesuffix(model.get("end_of_word_suffix") or "")) <= 1


def _silence(values: dict[str, Any], control_ids: Container[int]) -> None:
    """Give the pieces of control tokens names that no text spells, and make all of them special."""
    model = values["model"]
    vocabulary = {} if model["type"] == "WordLevel" else _vocabulary(model)
    silent = {
        piece: f"\U0010ffff{token_id}"
        for piece, token_id in vocabulary.items()
        if token_id in control_ids and not _is_symbol(piece, model)
    }
    if silent and model["type"] == "Unigram":
        model["vocab"] = [[silent.get(piece, piece), score] for piece, score in model["vocab"]]
    elif silent:
        model["vocab"] = {silent.get(piece, piece): token_id for piece, token_id in vocabulary.items()}
    if silent and model["type"] == "BPE":
        prefix = len(model["continuing_subword_prefix"] or "")
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [pair for pair in pairs if not silent.keys() & {*pair, pair[0] + pair[1][prefix:]}]
    if model.get("unk_token") in silent:
        model["unk_token"] = None  # of a model that lacks nothing
    for token in values["added_tokens"]:
        if token["id"] in control_ids:
            name = silent.get(token["content"], token["content"])
            token.update(content=name, special=True, normalized=False)
