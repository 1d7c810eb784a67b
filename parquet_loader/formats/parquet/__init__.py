"""Parquet: footers to index entries, column chunks to `TokenBlock`s.

footer bytes ──► footer ──► entries ──► FileEntry
chunk bytes ──► pages ──► levels ──► offsets ─┐
                      └─► values ──► tokens ──┴► TokenBlock        (rehost frames what pyarrow is to decode)
"""

from __future__ import annotations

from ..base import Format
from .decode import decode_chunk, decode_cost
from .entries import read_entry
from .values import kept_bytes

__all__ = ["PARQUET"]


class _Parquet:
    read_entry = staticmethod(read_entry)
    decode_cost = staticmethod(decode_cost)
    kept_bytes = staticmethod(kept_bytes)
    decode = staticmethod(decode_chunk)


PARQUET: Format = _Parquet()
