"""How many tokens a column chunk holds, where its footer does not tell or is not to be trusted.

The definition levels tell: a slot of the highest level is a token. They are looked at page by page, and values are not
decoded, so that a chunk of any number of tokens takes little more memory than its own bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...blocks import TokenArray
from ..base import ChunkSize, ColumnChunk
from . import pages, thrift
from .decode import OpenChunk, most_decode_cost
from .values import read_dictionary

__all__ = ["Counted", "count_tokens", "counting_cost"]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a column chunk holds.

    Attributes:
        tokens: how many.
        max_id: no token is larger; -1 where that is not known without decoding.
        min_id: no token is smaller; 0 where that is not known.
    """

    tokens: int
    max_id: int
    min_id: int


def counting_cost(chunk: ColumnChunk, *, whole: bool) -> int:
    """An upper bound of the bytes that `count_tokens` holds, the chunk's own included."""
    itemsize = chunk.layout.dtype.itemsize
    if whole:
        return chunk.length + int(most_decode_cost(ChunkSize.of_chunk(chunk), dtype=chunk.layout.dtype, eos=False))
    return chunk.length + int(pages.unpacked_bound(chunk_bytes=chunk.length, slots=chunk.slots, itemsize=itemsize))


def count_tokens(raw: bytes | memoryview, chunk: ColumnChunk, *, whole: bool) -> Counted:
    """Count a chunk's tokens.

    Args:
        raw: the chunk's bytes.
        chunk: its footer entry, of which `ColumnChunk.tokens` is -1.
        whole: decode all of it.

    Raises:
        DataError: it is damaged.
        pages.NotSupported: it has to be decoded as a whole.
    """
    if whole:
        tokens, high, low = 0, *_NO_BOUNDS
        for part in OpenChunk(raw, chunk).parts():
            tokens += len(part.tokens)
            highest, lowest = _bounds(part.tokens)
            high, low = max(high, highest), min(low, lowest)
        return Counted(tokens, *((high, low) if tokens else _UNKNOWN))
    view = memoryview(raw).cast("B")
    dictionary, data_pages = pages.plan_pages(view, chunk)
    present_slots = 0
    bounds: list[tuple[int, int] | None] = []
    if any(page.encoding in pages.DICTIONARY for page in data_pages):
        none = np.empty(0, chunk.layout.dtype)
        bounds.append(_bounds(none if dictionary is None else read_dictionary(view, dictionary, chunk)))
    for page in data_pages:
        body = pages.open_page(view, page, chunk)
        present = _present(body.definition, page.slots, chunk)
        present_slots += present
        if page.encoding == pages.PLAIN:
            whole_values = len(body.values) // chunk.layout.dtype.itemsize
            bounds.append(_bounds(np.frombuffer(body.values, chunk.layout.dtype, min(present, whole_values))))
        elif page.encoding not in pages.DICTIONARY:
            bounds.append(None)  # what these hold only decoding tells
    known = [bound for bound in bounds if bound is not None]
    if not present_slots or len(known) < len(bounds):
        return Counted(present_slots, *_UNKNOWN)
    return Counted(present_slots, max(high for high, _ in known), min(low for _, low in known))


_UNKNOWN = (-1, 0)
_NO_BOUNDS = (-1, 2**64)  # of no values, beside others


def _bounds(values: TokenArray) -> tuple[int, int]:
    return (int(values.max()), int(values.min())) if len(values) else _NO_BOUNDS


def _present(levels: memoryview, slots: int, chunk: ColumnChunk) -> int:
    """How many of a page's definition levels are the highest; see `pages` for how they are written."""
    usual = chunk.layout.max_definition_level
    width = usual.bit_length()
    present = place = seen = 0
    try:
        while seen < slots:
            header, place = thrift.read_varint(levels, place)
            if header & 1:
                count = min(8 * (header >> 1), slots - seen)
                packed = np.frombuffer(levels[place:][: (count * width + 7) // 8], np.uint8)
                bits = np.unpackbits(packed, bitorder="little", count=count * width).reshape(count, width)
                present += int((np.packbits(bits, axis=1, bitorder="little")[:, 0] == usual).sum())
                place += (header >> 1) * width
            else:
                count = min(header >> 1, slots - seen)
                present += count * (levels[place] == usual)
                place += 1
            seen += count
    except (thrift.ThriftError, IndexError) as error:
        raise chunk.error(f"has damaged levels: a page has fewer than its {slots:,} slots") from error
    return present
