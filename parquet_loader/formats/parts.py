"""What all formats say and do alike when they decode: parts of row groups, and what is wrong in a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..blocks import TokenArray, TokenBlock, TokenPart, append_eos
from ..errors import DataError
from .base import ColumnChunk

__all__ = ["OutOfRange", "Wanted", "nothing_beside", "null_element", "out_of_range", "part_of", "what_it_is"]


class OutOfRange(Exception):
    """An id may be out of range. Whether it is one of a document's, and where, only the stored values can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What tokens, or values of an aligned column, are wanted as; see `OpenChunk.parts`.

    Attributes:
        dtype: of the tokens.
        bound: one past the largest value allowed, at most one past the largest of `dtype`; None where nothing is
            checked: what is stored fits.
        low: the smallest value allowed.
    """

    dtype: np.dtype[Any]
    bound: int | None
    low: int = 0

    def first_outside(self, stored: TokenArray) -> int | None:
        """The place of the first value that is not in ``[low, bound)``; None where all are, or are no integers."""
        if self.bound is None or stored.dtype.kind not in "iu" or not len(stored):
            return None
        limits = np.iinfo(stored.dtype)
        if self.low:
            if self.low <= limits.min and limits.max < self.bound:
                return None
            if self.low <= int(stored.min()) and int(stored.max()) < self.bound:
                return None
            return int(((stored < self.low) | (stored >= self.bound)).argmax())
        # A negative one, read as unsigned, is larger than all others, so that one pass finds both kinds of wrong.
        unsigned = stored.view(f"u{stored.itemsize}")
        least = min(self.bound, int(limits.max) + 1)  # that is refused
        return int((unsigned >= least).argmax()) if int(unsigned.max()) >= least else None

    def check(self, stored: TokenArray) -> None:
        """Raise `OutOfRange` where stored values do not all fit."""
        if self.first_outside(stored) is not None:
            raise OutOfRange


def part_of(begin: int, block: TokenBlock, eos_id: int | float | None, *, goes_on: bool, complete: bool) -> TokenPart:
    """The part of a block whose first document goes on from before, or whose last one is not complete, perhaps. The EOS
    of a document that goes on is in the part with the next document's beginning.
    """
    if eos_id is not None:
        block = append_eos(block, eos_id, complete=complete)
    return TokenPart(begin, block.tokens, block.offsets[int(goes_on) : -1])


def nothing_beside(chunk: ColumnChunk) -> tuple[tuple[str, int, int], ...]:
    """See `Format.beside`, of formats whose chunks are all that decoding needs."""
    return ()


def null_element(chunk: ColumnChunk, row: int, position: int) -> DataError:
    """The error for a null inside a document."""
    return chunk.error(
        f"row {row} has a null inside its document, at position {position}; "
        "nulls stand for nothing here: remove it, or write the id or value that was meant"
    )


def out_of_range(chunk: ColumnChunk, row: int, token: int, bound: int) -> DataError:
    """The error for an id that is not in ``[0, bound)``."""
    return chunk.error(
        f"row {row} has token id {token}, outside [0, {bound}); "
        "check vocab_size, dtype, the tokenizer, and whether the file's statistics are true"
    )


def what_it_is(head: bytes) -> str | None:
    """What a file is that is no data at all, and what to do, by how it begins; None where that does not tell."""
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, an error message perhaps: download the file again"
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer: fetch the real file with git lfs pull"
    return None
