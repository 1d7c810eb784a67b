"""Parquet: footers to index entries, column chunks to `TokenPart`s.

footer bytes ──► footer ──► entries ──► FileEntry
chunk bytes ──► pages ──► levels ──► offsets ─┐
                      └─► values ──► tokens ──┴► TokenPart         (rehost frames what pyarrow is to decode,
                                                                    gather is for values of many small chunks)
"""

from __future__ import annotations

from ..base import Format
from .decode import OpenChunk, decode_cost, decode_together, document_lengths, most_decode_cost, one_part_slots
from .entries import read_entry
from .pages import SLOW_CODECS
from .values import kept_bytes

__all__ = ["PARQUET"]


class _Parquet:
    read_entry = staticmethod(read_entry)
    decode_cost = staticmethod(decode_cost)
    one_part_slots = staticmethod(one_part_slots)
    most_decode_cost = staticmethod(most_decode_cost)
    kept_bytes = staticmethod(kept_bytes)
    slow_to_unpack = staticmethod(SLOW_CODECS.__contains__)
    open = staticmethod(OpenChunk)
    decode_together = staticmethod(decode_together)
    document_lengths = staticmethod(document_lengths)


PARQUET: Format = _Parquet()
