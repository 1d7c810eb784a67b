"""Megatron's index: ``NAME.idx``, which says where the documents in the ids of ``NAME.bin`` end.

    header     "MMIDIDX", version, a code of the ids' type, how many sequences, how many entries of documents
    lengths    int32 of each sequence: its ids
    pointers   int64 of each sequence: the byte that it begins at; they lie one after the other
    entries    int64: with which sequence each document begins, and after the last one how many sequences there are

What is read of it is a block at a time, so that an index of any size takes little memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...blocks import IntArray
from ...errors import DataError

__all__ = ["HEAD_BYTES", "MegatronHead", "check_size", "document_ends", "read_head"]

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
HEAD_BYTES = _HEAD.size
# The codes of integers; 6 and 7 are floating point.
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_BLOCK = 1 << 18  # sequences or entries that are read at once

# Gives so many bytes from one on.
ReadBytes = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronHead:
    """The header of an index.

    Attributes:
        dtype: of the ids.
        sequences: how many there are.
        entries: of documents, one more than there are of them; 0 where each sequence is one.
    """

    dtype: np.dtype[np.integer]
    sequences: int
    entries: int

    @property
    def lengths_at(self) -> int:
        """The byte at which the sequences' lengths begin."""
        return HEAD_BYTES

    @property
    def pointers_at(self) -> int:
        """The byte at which the sequences' pointers begin."""
        return HEAD_BYTES + 4 * self.sequences

    @property
    def entries_at(self) -> int:
        """The byte at which the entries of documents begin."""
        return HEAD_BYTES + 12 * self.sequences

    @property
    def end(self) -> int:
        """How many bytes the index has."""
        return self.entries_at + 8 * self.entries


def read_head(raw: bytes, size: int, path: str) -> MegatronHead:
    """The header of an index.

    Args:
        raw: its first bytes, `HEAD_BYTES` or all that there are.
        size: of the file.
        path: how errors name it.

    Raises:
        DataError: it is no index of ids, or shorter than it says.
    """
    if len(raw) < HEAD_BYTES or not raw.startswith(_MAGIC):
        raise DataError("not an index of Megatron's (its first bytes are others).", path=path)
    _, version, code, sequences, entries = _HEAD.unpack(raw[:HEAD_BYTES])
    if version != 1 or code not in _DTYPES:
        raise DataError(f"version {version} and type code {code} are not known integers of version 1.", path=path)
    head = MegatronHead(dtype=np.dtype(_DTYPES[code]), sequences=sequences, entries=entries)
    if size < head.end:
        raise DataError(
            f"{size:,} bytes are too few for the {sequences:,} sequences and {entries:,} entries that it names: the "
            f"index is cut short or damaged.",
            path=path,
        )
    return head


def check_size(head: MegatronHead, size: int, path: str) -> None:
    """Refuse an index that holds more than its header says.

    Raises:
        DataError: it does.
    """
    if head.sequences and size == head.end + head.sequences:
        raise DataError(
            "it has a mode for each sequence, as sets of several modalities have, which are not read. Rewrite it with "
            "Megatron's tools as a set of text.",
            path=path,
        )
    if size != head.end:
        raise DataError(
            f"{size:,} bytes are {size - head.end:,} more than its {head.sequences:,} sequences and "
            f"{head.entries:,} entries take: it is damaged, or another program's.",
            path=path,
        )


def document_ends(read: ReadBytes, head: MegatronHead, path: str) -> Iterator[tuple[IntArray, IntArray]]:
    """Where the documents end, in blocks: counted in sequences, and in ids; shape ``(documents,)`` each.

    Args:
        read: of the index.
        head: its header.
        path: how errors name it.

    Raises:
        DataError: it is damaged. Some blocks may have come by then.
    """
    entries = _Entries(read, head, path)
    ids = 0
    for first in range(0, max(1, head.sequences), _BLOCK):
        count = min(_BLOCK, head.sequences - first)
        lengths = np.frombuffer(read(head.lengths_at + 4 * first, 4 * count), "<i4").astype(np.int64)
        pointers = np.frombuffer(read(head.pointers_at + 8 * first, 8 * count), "<i8")
        ends = np.concatenate([[0], lengths]).cumsum() + ids
        if (lengths < 0).any() or not np.array_equal(pointers, ends[:-1] * head.dtype.itemsize):
            raise DataError(
                "its sequences do not lie one after the other. Rewrite it with Megatron's tools.", path=path
            )
        for documents in entries.up_to(first + count):
            yield documents, ends[documents - first]
        ids = int(ends[-1])
    entries.check_end()


class _Entries:
    """With which sequence each document ends, read as they are asked for."""

    def __init__(self, read: ReadBytes, head: MegatronHead, path: str) -> None:
        self._read = read
        self._head = head
        self._path = path
        self._next = 0  # the first one that is not read
        self._last = 0  # the last one that was read
        self._given = 0  # sequences whose documents were given, where each is one
        self._waiting = np.empty(0, np.int64)

    def up_to(self, sequence: int) -> Iterator[IntArray]:
        """The documents that end there at the latest, in blocks."""
        head = self._head
        if not head.entries:
            yield np.arange(self._given + 1, sequence + 1)
            self._given = sequence
            return
        while len(self._waiting) or self._next < head.entries:
            if not len(self._waiting):
                self._waiting = self._block()
            count = int(self._waiting.searchsorted(sequence, side="right"))
            given, self._waiting = self._waiting[:count], self._waiting[count:]
            if len(given):
                yield given
            if len(self._waiting):
                return

    def check_end(self) -> None:
        """Refuse entries that do not end with the last sequence."""
        if self._head.entries and (len(self._waiting) or self._last != self._head.sequences):
            last = int(self._waiting[-1]) if len(self._waiting) else self._last
            raise self._damaged(f"the last one ends with {last:,}")

    def _block(self) -> IntArray:
        head, first = self._head, self._next
        count = min(_BLOCK, head.entries - first)
        found = np.frombuffer(self._read(head.entries_at + 8 * first, 8 * count), "<i8").astype(np.int64)
        if not first and found[0]:
            raise self._damaged(f"the first one begins with {int(found[0]):,}")
        falls = np.flatnonzero(np.diff(found, prepend=self._last) < 0)
        if len(falls):
            at = int(falls[0])
            before = int(found[at - 1]) if at else self._last
            raise self._damaged(f"after {before:,} comes {int(found[at]):,}")
        self._next, self._last = first + count, int(found[-1])
        return found if first else found[1:]

    def _damaged(self, how: str) -> DataError:
        return DataError(
            f"its documents should begin with sequence 0 and end with {self._head.sequences:,}, in order, and {how}. "
            "It is damaged: rewrite it with Megatron's tools.",
            path=self._path,
        )
