"""What a tokenizer is, and what comes out of one.

A tokenizer turns a batch of texts into a `TokenBatch`, one flat array and the documents' lengths:

    ["ab c", "", "d"]  ->  tokens [5, 6, 9], lengths [2, 0, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import DataError

__all__ = [
    "NOTHING_LOST",
    "EngineName",
    "Lost",
    "TokenArray",
    "TokenBatch",
    "Tokenizer",
    "TokenizerInfo",
    "decoded",
    "refuse_control_ids",
    "unknown_id",
]


EngineName = Literal["tokenizers", "gigatoken"]
TokenArray = npt.NDArray[Any]  # uint16 or int32


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInfo:
    """What is to be remembered about a tokenizer.

    Attributes:
        name: the file, folder or Hub name as it was given.
        sha256: of its serialised form, in hexadecimal.
        vocab_size: largest token id + 1, added tokens included.
        eos_token: the token that ends a document, or None where none is known.
        eos_id: its id.
    """

    name: str
    sha256: str
    vocab_size: int
    eos_token: str | None
    eos_id: int | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of uint16 and int32 that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Text that a vocabulary could not hold.

    Attributes:
        dropped_symbols: characters, or bytes where the tokenizer works on bytes, that left no token.
        unknown_tokens: tokens that stand for something unknown.
    """

    dropped_symbols: int = 0
    unknown_tokens: int = 0

    def __add__(self, other: Lost) -> Lost:
        return Lost(
            dropped_symbols=self.dropped_symbols + other.dropped_symbols,
            unknown_tokens=self.unknown_tokens + other.unknown_tokens,
        )

    def describe(self) -> str:
        """Sentences for people, each after a space; nothing where nothing was lost."""
        text = ""
        if self.dropped_symbols:
            text += (
                f" The tokenizer dropped {self.dropped_symbols:,} characters (or bytes) of text that its vocabulary "
                f"lacks."
            )
        if self.unknown_tokens:
            text += f" {self.unknown_tokens:,} tokens are the unknown token, for text that the vocabulary lacks."
        return text


NOTHING_LOST = Lost()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Documents one after the other.

    Attributes:
        tokens: every document's ids, shape ``(lengths.sum(),)``, uint16 or int32.
        lengths: tokens of each document, shape ``(documents,)``, int64.
        lost: what was lost of the documents that lost something, by their index in the batch.
        aligned: other values that every token has, by the name of their column; of the same shape as ``tokens``.
    """

    tokens: TokenArray
    lengths: npt.NDArray[np.int64]
    lost: Mapping[int, Lost] = field(default_factory=dict)
    aligned: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def between(self, first: int, last: int, before: int) -> TokenBatch:
        """The documents from ``first`` to before ``last``, without what was lost; arrays are views.

        Args:
            first: the index of the first of them.
            last: that of the first that is not among them.
            before: tokens of the documents before ``first``.
        """
        lengths = self.lengths[first:last]
        tokens = slice(before, before + int(lengths.sum()))
        aligned = {name: values[tokens] for name, values in self.aligned.items()}
        return TokenBatch(tokens=self.tokens[tokens], lengths=lengths, aligned=aligned)

    def copied(self) -> TokenBatch:
        """The same documents in arrays of their own, so that those they were a part of need not live on."""
        aligned = {name: values.copy() for name, values in self.aligned.items()}
        return replace(self, tokens=self.tokens.copy(), lengths=self.lengths.copy(), aligned=aligned)

    @staticmethod
    def joined(batches: Sequence[TokenBatch]) -> TokenBatch:
        """The documents of several batches, at least one, without what was lost."""
        if len(batches) == 1:
            return batches[0]
        return TokenBatch(
            tokens=np.concatenate([batch.tokens for batch in batches]),
            lengths=np.concatenate([batch.lengths for batch in batches]),
            aligned={name: np.concatenate([batch.aligned[name] for batch in batches]) for name in batches[0].aligned},
        )

    def with_appended(self, token_id: int, aligned: Mapping[str, Any] | None = None) -> TokenBatch:
        """The same documents, each followed by one more token, with its values of the aligned columns."""
        ends = np.cumsum(self.lengths)
        return replace(
            self,
            tokens=np.insert(self.tokens, ends, token_id),
            lengths=self.lengths + 1,
            aligned={name: np.insert(values, ends, (aligned or {})[name]) for name, values in self.aligned.items()},
        )

    def documents_of(self, tokens: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """The indices of the documents that the tokens of these indices are in."""
        return np.searchsorted(np.cumsum(self.lengths), tokens, side="right")

    def count(self, tokens: npt.NDArray[np.intp]) -> dict[int, int]:
        """How many of the tokens of these indices are in each document that has one."""
        documents, counts = np.unique(self.documents_of(tokens), return_counts=True)
        return dict(zip(documents.tolist(), counts.tolist(), strict=True))

    def with_unknown(self, tokens: npt.NDArray[np.intp]) -> TokenBatch:
        """The same documents, with the tokens of these indices counted as unknown."""
        if not len(tokens):
            return self
        lost = dict(self.lost)
        for document, number in self.count(tokens).items():
            lost[document] = lost.get(document, NOTHING_LOST) + Lost(unknown_tokens=number)
        return replace(self, lost=lost)


class Tokenizer(Protocol):
    """Encodes batches of documents."""

    @property
    def info(self) -> TokenizerInfo:
        """What the output's metadata says about it."""
        ...

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        """The texts' tokens, in order, with nothing added and nothing cut; ``origins`` are for messages.

        The id that ends documents must not come out of a text.

        Called from a thread other than the main one, or in a worker process.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included.

        For people to look at, so nothing is an error: half a character is U+FFFD, and an id that stands for nothing is
        ``<id 123456>``.
        """
        ...


def unknown_id(token_id: int) -> str:
    """What shows an id that stands for nothing."""
    return f"<id {token_id}>"


def decoded(ids: Sequence[int], name_of: Callable[[int], str | None], decode: Callable[[list[int]], str]) -> str:
    """The text of ids, of which some are shown by a name.

    >>> names = {7: "<s>", 9: "<id 9>"}
    >>> decoded([7, 1, 2, 9, 3], names.get, lambda ids: "".join(" abc"[each] for each in ids))
    '<s>ab<id 9>c'

    Args:
        ids: any integers.
        name_of: what to show for an id that cannot be decoded with its neighbours; None for all others.
        decode: the text of those.
    """
    texts: list[str] = []
    together: list[int] = []
    for each in map(int, ids):
        name = name_of(each)
        if name is None:
            together.append(each)
            continue
        if together:
            texts.append(decode(together))
            together = []
        texts.append(name)
    return "".join(texts) + (decode(together) if together else "")


def refuse_control_ids(
    batch: TokenBatch, controls: npt.NDArray[np.intp], origins: Sequence[str], id_to_token: Callable[[int], str | None]
) -> None:
    """Refuse control ids that came out of a text.

    Args:
        batch: what came out.
        controls: indices of the tokens with such ids.
        origins: of the documents, for the message.
        id_to_token: the text of an id.

    Raises:
        DataError: there are some; names the document.
    """
    if len(controls):
        document = int(batch.documents_of(controls[:1])[0])
        token_id = int(batch.tokens[controls[0]])
        raise DataError(
            f"the text spells the special token {id_to_token(token_id)!r}, and this tokenizer makes its control id "
            f"{token_id} of it. Change the text, use a tokenizer that keeps it text, or, if it is the one that ends "
            f"documents, name another with eos_token.",
            path=origins[document],
        )
