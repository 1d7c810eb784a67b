"""Arrow IPC, as files and as streams: record batches to index entries, their columns to `TokenPart`s.

messages ──► metadata ──► entries ──► FileEntry          (columns says which buffers of a batch are a column's)
chunk bytes ──► buffers ──► documents ──► offsets ─┐
                       └──► values ──► tokens ─────┴► TokenPart
"""

from __future__ import annotations

from ..base import Format
from ..parts import nothing_beside
from .buffers import SLOW_CODECS
from .decode import OpenChunk, decode_cost, decode_together, document_lengths, most_decode_cost, one_part_slots
from .entries import impossible
from .folders import Reader

__all__ = ["ARROW"]


def _nothing_kept(most_slots: int) -> int:
    return 0


class _Arrow:
    name = "arrow"
    reader = staticmethod(Reader)
    impossible = staticmethod(impossible)
    beside = staticmethod(nothing_beside)
    decode_cost = staticmethod(decode_cost)
    one_part_slots = staticmethod(one_part_slots)
    most_decode_cost = staticmethod(most_decode_cost)
    kept_bytes = staticmethod(_nothing_kept)
    slow_to_unpack = staticmethod(SLOW_CODECS.__contains__)
    open = staticmethod(OpenChunk)
    decode_together = staticmethod(decode_together)
    document_lengths = staticmethod(document_lengths)


ARROW: Format = _Arrow()
