"""What a tokenizer is, and what comes out of one.

A tokenizer turns a batch of texts into a `TokenBatch`, one flat array and the documents' lengths:

    ["ab c", "", "d"]  ->  tokens [5, 6, 9], lengths [2, 0, 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

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
class TokenBatch:
    """Documents one after the other.

    Attributes:
        tokens: every document's ids, shape ``(lengths.sum(),)``, uint16 or int32.
        lengths: tokens of each document, shape ``(documents,)``, int64.
    """

    tokens: TokenArray
    lengths: npt.NDArray[np.int64]

    def with_appended(self, token_id: int) -> TokenBatch:
        """The same documents, each followed by one more token."""
        ends = np.cumsum(self.lengths)
        return TokenBatch(tokens=np.insert(self.tokens, ends, token_id), lengths=self.lengths + 1)


class Tokenizer(Protocol):
    """Encodes batches of documents."""

    @property
    def info(self) -> TokenizerInfo:
        """What the output's metadata says about it."""
        ...

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        """The texts' tokens, in order, with nothing added and nothing cut; ``origins`` are for messages.

        Called from a thread other than the main one, or in a worker process.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        ...
