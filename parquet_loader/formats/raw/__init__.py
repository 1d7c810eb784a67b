"""Raw files of token ids: shards with a ``meta.json``, nanoGPT's and llm.c's ``.bin``, ``.npy``, Megatron's pairs.

meta.json ──► meta      ─┐
NAME.idx  ──► megatron  ─┼─► entries ──► FileEntry
heads of .bin, .npy ──► heads ─┘
bytes ──► decode ──► TokenPart
"""

from __future__ import annotations

from ..base import Format
from .decode import (
    OpenChunk,
    beside,
    decode_cost,
    decode_together,
    document_lengths,
    kept_bytes,
    most_decode_cost,
    one_part_slots,
)
from .entries import RawReader, impossible
from .meta import said_eos

__all__ = ["RAW", "said_eos"]


class _Raw:
    name = "raw"
    reader = staticmethod(RawReader)
    impossible = staticmethod(impossible)
    beside = staticmethod(beside)
    decode_cost = staticmethod(decode_cost)
    one_part_slots = staticmethod(one_part_slots)
    most_decode_cost = staticmethod(most_decode_cost)
    kept_bytes = staticmethod(kept_bytes)
    slow_to_unpack = staticmethod(lambda codec: False)
    open = staticmethod(OpenChunk)
    decode_together = staticmethod(decode_together)
    document_lengths = staticmethod(document_lengths)


RAW: Format = _Raw()
