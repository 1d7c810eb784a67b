"""Which token of a ``tokenizer.json`` ends a document, by the files beside it, as ``transformers`` reads them.

    tokenizer_config.json      "eos_token", and "added_tokens_decoder": tokens with their ids, not all of which need
                               be in the tokenizer.json
    special_tokens_map.json    "eos_token", before the other; read only where there is no "added_tokens_decoder"
    added_tokens.json          tokens with their ids; read only then

A token that is in none of the vocabularies is added with the next free id, those with ids first. Where a file names the
end-of-document token, no other is ever taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ..extras import import_extra

if TYPE_CHECKING:
    import tokenizers

__all__ = ["COMMON_EOS_TOKENS", "Declared", "find_eos", "read_declared"]


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
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the files beside a ``tokenizer.json`` say about its tokens.

    Attributes:
        eos: the token that ends a document, or None where they do not say.
        ids: of the tokens that they give ids.
        tokens: the fields of every token, in the order in which ``transformers`` adds those that are missing.
    """

    eos: str | None
    ids: Mapping[str, int]
    tokens: tuple[Mapping[str, Any], ...]


def read_declared(read: Callable[[str], dict[str, Any]]) -> Declared:
    """What the files say.

    Args:
        read: the JSON object in the file of that name, empty where there is no such file.

    Raises:
        ConfigError: a file that is not what it should be.
    """
    config, added = read("tokenizer_config.json"), {}
    if "added_tokens_decoder" not in config:
        config, added = config | read("special_tokens_map.json"), read("added_tokens.json")
    try:
        if "added_tokens_decoder" in config:
            numbered = {int(token_id): _fields(token) for token_id, token in config["added_tokens_decoder"].items()}
        else:
            numbered = {int(token_id): _fields(text) for text, token_id in added.items()}
        named = {key: _fields(config[key]) | {"special": True} for key in _NAMED if config.get(key) is not None}
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"a token in the files beside the tokenizer.json is neither a string nor an object with its 'content' "
            f"({error!r}). Correct tokenizer_config.json, or name the end-of-document token with eos_token."
        ) from error
    return Declared(
        eos=named["eos_token"]["content"] if "eos_token" in named else None,
        ids={token["content"]: token_id for token_id, token in numbered.items()},
        tokens=(*(numbered[token_id] for token_id in sorted(numbered)), *named.values()),
    )


def _fields(token: object) -> dict[str, Any]:
    """Either the text or an AddedToken's fields."""
    fields: dict[str, Any] = {"content": token} if isinstance(token, str) else dict(token)  # type: ignore[call-overload]
    if not isinstance(fields["content"], str):
        raise TypeError(f"a token {token!r}")
    return {key: fields[key] for key in ("content", *_FLAGS) if key in fields}


def find_eos(
    tokenizer: tokenizers.Tokenizer, declare: Callable[[], Declared], asked: str | None, where: str, need: bool
) -> str | None:
    """The token that ends a document; adds what only the files beside the tokenizer hold, where it is one of those.

    Args:
        tokenizer: may be given more tokens.
        declare: what the files say.
        asked: the token that the user named.
        where: the tokenizer's name, for messages.
        need: whether not to find one is an error.

    Raises:
        ConfigError: it is not to be found, and needed or asked for.
    """
    try:
        return _asked(tokenizer, declare, asked, where) if asked is not None else _found(tokenizer, declare, where)
    except ConfigError:
        if need or asked is not None:
            raise
        return None


def _asked(tokenizer: tokenizers.Tokenizer, declare: Callable[[], Declared], asked: str, where: str) -> str:
    if tokenizer.token_to_id(asked) is None:
        declared = declare()
        if all(token["content"] != asked for token in declared.tokens):
            raise ConfigError(
                f"eos_token={asked!r} is no token of {where!r}. Its special tokens: {_specials(tokenizer)}."
            )
        _add_missing(tokenizer, declared, asked, where)
    return asked


def _found(tokenizer: tokenizers.Tokenizer, declare: Callable[[], Declared], where: str) -> str:
    declared = declare()
    if declared.eos is not None:
        if tokenizer.token_to_id(declared.eos) is None:
            _add_missing(tokenizer, declared, declared.eos, where)
        return declared.eos
    common = [token for token in COMMON_EOS_TOKENS if tokenizer.token_to_id(token) is not None]
    if len(common) != 1:
        problem = f"it has several that could ({', '.join(common)})" if common else "it has none of the usual names"
        raise ConfigError(
            f"append_eos=True: cannot tell which token of {where!r} ends a document: {problem}, and no "
            f"tokenizer_config.json beside it says so. Name it with eos_token. "
            f"Its special tokens: {_specials(tokenizer)}."
        )
    return common[0]


def _add_missing(tokenizer: tokenizers.Tokenizer, declared: Declared, eos: str, where: str) -> None:
    added_token = import_extra("tokenizers").AddedToken
    for fields in declared.tokens:
        if tokenizer.token_to_id(fields["content"]) is None:
            tokenizer.add_tokens([added_token(**fields)])
    added, wanted = tokenizer.token_to_id(eos), declared.ids.get(eos)
    if wanted is not None and added != wanted:
        raise ConfigError(
            f"tokenizer={where!r}: the end-of-document token {eos!r} is not in its tokenizer.json, where the next "
            f"free id is {added}, and the files beside it give it the id {wanted}. Save the tokenizer again with "
            f"transformers, which writes all tokens into the tokenizer.json, or name another token with eos_token."
        )


def _specials(tokenizer: tokenizers.Tokenizer) -> str:
    added = tokenizer.get_added_tokens_decoder()
    names = [token.content for _, token in sorted(added.items()) if token.special]
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "") if names else "none"
