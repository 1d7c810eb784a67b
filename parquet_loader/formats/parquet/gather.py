"""Values of the pages of several column chunks, gathered from all their dictionaries at once.

In small row groups what takes the time are the calls, not the values. Dictionaries that follow each other are one table
as long as indices of 16 bits reach all of it, and the values of their pages are one `take` from it:

    chunk          0         1            2
    entries        a b c     d e          f g h
    indices        0 2 1     1 0 0        2 0            of each page, into its chunk's entries
    + base         0 2 1     4 3 3        7 5            into the table a b c d e f g h

Plain pages are copied to where their tokens belong. Where a page is of any other kind, pyarrow decodes all of them, as
those of one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from ...blocks import TokenArray, as_arrow, from_arrow, narrowed, pooled
from ..base import ColumnChunk
from ..parts import Wanted
from .hosted import HostedFile
from .pages import DICTIONARY, PLAIN, NotSupported, Page
from .values import plain_values, unpack_indices, unpack_literals

__all__ = ["ChunkValues", "gathered_tokens", "hosted_tokens"]

IndexArray = npt.NDArray[np.uint16]
_TABLE_ENTRIES = 1 << 16
_BATCH_TOKENS = 1 << 17
_RUN_GROUPS = 63  # groups of 8 indices in a literal run of nearly all writers: the most with a header of one byte
_SMALL_BYTES = 64 << 10  # of a page that is not worth steps of Python of its own


@dataclass(frozen=True, slots=True)
class ChunkValues:
    """The values of a column chunk, still encoded.

    Attributes:
        chunk: the chunk.
        entries: of its dictionary, as they are stored; None where it has none.
        pages: its pages, with how many values each has, and their bytes.
    """

    chunk: ColumnChunk
    entries: TokenArray | None
    pages: Sequence[tuple[Page, int, memoryview]]


def gathered_tokens(chunks: Iterable[ChunkValues], count: int, wanted: Wanted) -> TokenArray:
    """The values of all chunks, one after another: ``count`` of them, which is what their pages have.

    Raises:
        NotSupported: a page is of a kind that is not gathered here, or has an index that its dictionary has not.
        OutOfRange: a value or an entry is not as wanted.
        DataError: a page has too few bytes.
    """
    tokens = pooled(count, wanted.dtype)
    batch = _Batch(0)
    end = 0
    for values in chunks:
        if end - batch.origin > _BATCH_TOKENS:
            batch.fill(tokens, wanted)
            batch = _Batch(end)
        if values.entries is not None:
            batch.add_entries(values.entries)
        for page, length, encoded in values.pages:
            begin, end = end, end + length
            if not length:
                continue
            if page.encoding == PLAIN:
                plain = plain_values(page, length, encoded, values.chunk)
                wanted.check(plain)
                np.copyto(tokens[begin:end], plain, casting="unsafe")
            elif page.encoding in DICTIONARY and values.entries is not None:
                batch.add_page(encoded, begin, end)
            else:
                raise NotSupported(f"page {page.number} has encoding {page.encoding}")
    batch.fill(tokens, wanted)
    tokens.flags.writeable = False
    return tokens


def hosted_tokens(chunks: list[ChunkValues], count: int, wanted: Wanted) -> TokenArray:
    """The same of pages of any encoding, decoded by pyarrow. What has been copied is taken out of the list.

    Raises:
        NotSupported: the pages take more memory than those of such a number of values do.
        OutOfRange, DataError: see `gathered_tokens`.
    """
    chunk = chunks[0].chunk
    dtype = chunk.layout.dtype
    sizes = [len(encoded) for values in chunks for _, _, encoded in values.pages]
    entries = sum(0 if values.entries is None else values.entries.nbytes for values in chunks)
    if sum(sizes) + entries > count * dtype.itemsize + 64 * len(sizes):
        raise NotSupported("pages larger than their values")
    pages = len(sizes) + len(chunks)
    file = HostedFile(chunk.layout, values_bytes=sum(sizes) + entries, pages=pages, row_groups=len(chunks))
    chunks.reverse()
    while chunks:
        values = chunks.pop()
        file.begin(values.entries)
        for page, length, encoded in values.pages:
            if length:
                file.add(page, length, encoded, values.chunk)
        del values, page, encoded  # not to be held beside what is made of it
    arrays = file.read(chunk).chunks
    del file
    tokens = pooled(count, wanted.dtype)
    end = 0
    arrays.reverse()
    while arrays:
        found = from_arrow(arrays.pop(), dtype)
        wanted.check(found)
        begin, end = end, end + len(found)
        np.copyto(tokens[begin:end], found, casting="unsafe")
        del found
    if end != count:
        raise NotSupported("another number of values")
    tokens.flags.writeable = False
    return tokens


class _Table:
    """Dictionaries of chunks that follow each other, and where the values are whose indices are into them."""

    def __init__(self) -> None:
        self.entries: list[TokenArray] = []
        self.size = 0
        self.stretches: list[tuple[int, int]] = []

    def gather(self, indices: IndexArray, tokens: TokenArray, wanted: Wanted) -> None:
        """Fill in the tokens, by their indices into all entries."""
        if not self.entries:
            return
        entries = self.entries[0] if len(self.entries) == 1 else np.concatenate(self.entries)
        wanted.check(entries)
        if tokens.itemsize < entries.itemsize:
            entries = narrowed(entries, tokens.dtype)
        for begin, end in self.stretches:
            taken = pc.take(as_arrow(entries), as_arrow(indices[begin:end]), boundscheck=False)
            np.copyto(
                tokens[begin:end], np.frombuffer(taken.buffers()[1], entries.dtype, end - begin), casting="unsafe"
            )


class _Batch:
    """Pages of indices of chunks that follow each other, and their tables. What is made of them at once stays in the
    processor's cache.

    Args:
        origin: the first of their values among all. Places in here count from it.
    """

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self._tables: list[_Table] = [_Table()]
        self._encoded: list[memoryview] = []
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._base = 0
        self._bases: list[int] = []  # what is added to a page's indices,
        self._bounds: list[int] = []  # which are less than this before

    def add_entries(self, entries: TokenArray) -> None:
        """The dictionary of the pages that are added next."""
        table = self._tables[-1]
        if table.size + len(entries) > _TABLE_ENTRIES:
            table = _Table()
            self._tables.append(table)
        self._base = table.size
        table.entries.append(entries)
        table.size += len(entries)

    def add_page(self, encoded: memoryview, begin: int, end: int) -> None:
        """A page whose values are ``[begin, end)`` of all."""
        table = self._tables[-1]
        begin, end = begin - self.origin, end - self.origin
        self._encoded.append(encoded)
        self._begins.append(begin)
        self._ends.append(end)
        self._bases.append(self._base)
        self._bounds.append(len(table.entries[-1]))
        if table.stretches and table.stretches[-1][1] == begin:
            begin, _ = table.stretches.pop()
        table.stretches.append((begin, end))

    def fill(self, tokens: TokenArray, wanted: Wanted) -> None:
        """Gather the values of all pages."""
        if not self._encoded:
            return
        indices = self._unpacked()
        # Between pages may be plain ones: what is there is not looked at.
        edges = np.stack([self._begins, self._ends], axis=1).reshape(-1)
        if (np.maximum.reduceat(indices, edges[:-1])[::2] >= self._bounds).any():
            raise NotSupported("an index that the dictionary has not")
        for begin, end, base in zip(self._begins, self._ends, self._bases, strict=True):
            if base:
                indices[begin:end] += np.uint16(base)
        for table in self._tables:
            table.gather(indices, tokens[self.origin :], wanted)

    def _unpacked(self) -> IndexArray:
        """The pages' indices, at the places of their values.

        Raises:
            NotSupported: a page is of another kind than `unpack_indices` takes.
        """
        indices = pooled(self._ends[-1], np.uint16).view(np.uint16)
        alike: dict[int, list[int]] = {}
        for number, encoded in enumerate(self._encoded):
            alike.setdefault(encoded[0] if 0 < len(encoded) < _SMALL_BYTES else 0, []).append(number)
        for width, numbers in alike.items():
            left = self._unpack_alike(width, numbers, indices) if width >= 8 and len(numbers) > 1 else numbers
            for number in left:
                if not unpack_indices(self._encoded[number], indices[self._begins[number] : self._ends[number]]):
                    raise NotSupported("indices of another kind")
        return indices

    def _unpack_alike(self, width: int, numbers: Sequence[int], indices: IndexArray) -> list[int]:
        """Unpack pages whose indices have one width of 8 to 16 bits, where all of their runs are literal and, but for
        the last, of `_RUN_GROUPS`, as those of nearly all writers are. Returns the pages that are not so.

        The groups of all runs are copied next to each other, without the headers between them:

            page   w h gggg h gggg h gg     w h gggg h g           w is the width, h a header
            run        0      1      2          3      4
            copy       gggg   gggg   gg·h       gggg   g···        what is behind a page's last group has no meaning
        """
        if width > 16:
            return [*numbers]
        size = width * _RUN_GROUPS
        encoded = [self._encoded[number] for number in numbers]
        data = np.frombuffer(b"".join([*encoded, bytes(1 + size)]), np.uint8)
        ends = np.cumsum([len(page) for page in encoded])
        counts = [self._ends[number] - self._begins[number] for number in numbers]
        groups = np.array(counts) + 7 >> 3
        runs = -(-groups // _RUN_GROUPS)
        after = runs.cumsum()
        first = after - runs  # each page's first run, and behind its last one
        last_groups = groups - (runs - 1) * _RUN_GROUPS
        begins = np.append(0, ends[:-1]) + 1
        heads = (begins - first * (1 + size)).repeat(runs) + np.arange(after[-1]) * (1 + size)
        headers = np.full(len(heads), 2 * _RUN_GROUPS + 1)
        headers[after - 1] = 2 * last_groups + 1
        alike = np.logical_and.reduceat(data.take(heads, mode="clip") == headers, first)
        alike &= begins + (runs - 1) * (1 + size) + 1 + last_groups * width <= ends
        at = np.minimum(heads + 1, len(data) - size)  # for the pages that are not so
        copied = np.ndarray((len(data) - size + 1, size), np.uint8, data, 0, (1, 1))[at]
        unpacked = np.empty((1, len(at) * _RUN_GROUPS, 8), np.uint16)
        unpack_literals(copied.reshape(-1), 0, 0, width, unpacked)
        found = unpacked.reshape(-1)
        left = []
        for number, run, count, same in zip(numbers, first.tolist(), counts, alike.tolist(), strict=True):
            if same:
                place = run * 8 * _RUN_GROUPS
                indices[self._begins[number] : self._ends[number]] = found[place : place + count]
            else:
                left.append(number)
        return left
