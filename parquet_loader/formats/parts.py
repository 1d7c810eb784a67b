"""What all formats say and do alike when they decode: parts of row groups, and what is wrong in a document."""

from __future__ import annotations

from ..blocks import TokenBlock, TokenPart, append_eos
from ..errors import DataError
from .base import ColumnChunk

__all__ = ["null_element", "out_of_range", "part_of", "what_it_is"]


def part_of(begin: int, block: TokenBlock, eos_id: int | float | None, *, goes_on: bool, complete: bool) -> TokenPart:
    """The part of a block whose first document goes on from before, or whose last one is not complete, perhaps. The EOS
    of a document that goes on is in the part with the next document's beginning.
    """
    if eos_id is not None:
        block = append_eos(block, eos_id, complete=complete)
    return TokenPart(begin, block.tokens, block.offsets[int(goes_on) : -1])


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
