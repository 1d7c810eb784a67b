"""Values of the pages of several column chunks, gathered from all their dictionaries at once.

In small row groups what takes the time are the calls, not the values. Dictionaries that follow each other are one table
as long as indices of 16 bits reach all of it, and the values of their pages are one `take` from it:

    chunk          0         1            2
    entries        a b c     d e          f g h
    indices        0 2 1     1 0 0        2 0            of each page, into its chunk's entries
    + base         0 2 1     4 3 3        7 5            into the table a b c d e f g h

Plain pages are copied to where their tokens belong. Pages of any other kind are for the decoder of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from ...blocks import TokenArray, as_arrow, narrowed, pooled
from ..base import ColumnChunk
from .pages import DICTIONARY, PLAIN, NotSupported, Page
from .values import Wanted, plain_bytes, unpack_indices, unpack_literals

__all__ = ["ChunkValues", "gathered_tokens"]

IndexArray = npt.NDArray[np.uint16]
_TABLE_ENTRIES = 1 << 16
_TABLE_TOKENS = 1 << 17  # what is made for them stays in the processor's cache
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
    table = _Table()
    end = 0
    for values in chunks:
        if values.entries is not None:
            if table.size + len(values.entries) > _TABLE_ENTRIES or end - table.begin > _TABLE_TOKENS:
                table.fill(tokens, wanted)
                table = _Table(end)
            table.entries.append(values.entries)
        for page, length, encoded in values.pages:
            begin, end = end, end + length
            if not length:
                continue
            if page.encoding == PLAIN:
                plain = np.frombuffer(plain_bytes(page, length, encoded, values.chunk), values.chunk.layout.dtype)
                wanted.check(plain)
                np.copyto(tokens[begin:end], plain, casting="unsafe")
            elif page.encoding in DICTIONARY and values.entries is not None:
                table.pages.append(_IndexPage(encoded, begin, end, table.size, len(values.entries)))
            else:
                raise NotSupported(f"page {page.number} has encoding {page.encoding}")
        if values.entries is not None:
            table.size += len(values.entries)
    table.fill(tokens, wanted)
    tokens.flags.writeable = False
    return tokens


@dataclass(frozen=True, slots=True)
class _IndexPage:
    """A page of indices.

    Attributes:
        encoded: its bytes.
        begin, end: where its values are among all.
        base: what is added to its indices.
        bound: how many entries they are of.
    """

    encoded: memoryview
    begin: int
    end: int
    base: int
    bound: int


class _Table:
    """Dictionaries of chunks that follow each other, and the pages whose indices are into them."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        self.entries: list[TokenArray] = []
        self.size = 0
        self.pages: list[_IndexPage] = []

    def fill(self, tokens: TokenArray, wanted: Wanted) -> None:
        """Gather the values of all pages."""
        if not self.pages:
            return
        entries = self.entries[0] if len(self.entries) == 1 else np.concatenate(self.entries)
        self.entries = []
        wanted.check(entries)
        if tokens.itemsize < entries.itemsize:
            entries = narrowed(entries, tokens.dtype)
        indices = self._unpacked()
        table = as_arrow(entries)
        origin = self.pages[0].begin
        for begin, end in self._stretches():
            taken = pc.take(table, as_arrow(indices[begin - origin : end - origin]), boundscheck=False)
            found = np.frombuffer(taken.buffers()[1], entries.dtype, end - begin)
            np.copyto(tokens[begin:end], found, casting="unsafe")

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Where values of pages of indices are, without plain ones between them."""
        begin, end = self.pages[0].begin, self.pages[0].end
        for page in self.pages[1:]:
            if page.begin != end:
                yield begin, end
                begin = page.begin
            end = page.end
        yield begin, end

    def _unpacked(self) -> IndexArray:
        """The indices into all entries, from the first page's values on.

        Raises:
            NotSupported: a page is of another kind than `unpack_indices` takes, or an index is too large.
        """
        origin = self.pages[0].begin
        indices = pooled(self.pages[-1].end - origin, np.uint16).view(np.uint16)
        alike: dict[int, list[_IndexPage]] = {}
        for page in self.pages:
            width = page.encoded[0] if 0 < len(page.encoded) < _SMALL_BYTES else 0
            alike.setdefault(width, []).append(page)
        for width, pages in alike.items():
            others = pages
            if len(pages) > 1 and 8 <= width <= 16:
                others = _unpack_alike(width, pages, indices, origin)
            for page in others:
                target = indices[page.begin - origin : page.end - origin]
                if not unpack_indices(page.encoded, target):
                    raise NotSupported("indices of another kind")
                _place(page, target, indices, origin)
        return indices


def _place(page: _IndexPage, found: IndexArray, indices: IndexArray, origin: int) -> None:
    """Put a page's indices among all, as those of the table."""
    if int(found.max()) >= page.bound:
        raise NotSupported("an index that the dictionary has not")
    np.add(found, page.base, out=indices[page.begin - origin : page.end - origin])


def _unpack_alike(width: int, pages: Sequence[_IndexPage], indices: IndexArray, origin: int) -> list[_IndexPage]:
    """Unpack pages whose indices have one width, where all of their runs are literal and, but for the last, of
    `_RUN_GROUPS`, as those of nearly all writers are. Returns the pages that are not so.
    """
    stride = 1 + width * _RUN_GROUPS
    data = np.frombuffer(b"".join([*(page.encoded for page in pages), bytes(stride)]), np.uint8)
    ends = np.cumsum([len(page.encoded) for page in pages])
    groups = np.array([page.end - page.begin + 7 >> 3 for page in pages])
    runs = -(-groups // _RUN_GROUPS)
    after = runs.cumsum()  # each page's last run
    first = after - runs
    last_groups = groups - (runs - 1) * _RUN_GROUPS
    begins = np.append(0, ends[:-1]) + 1
    places = begins.repeat(runs) + (np.arange(after[-1]) - first.repeat(runs)) * stride
    headers = np.full(len(places), 2 * _RUN_GROUPS + 1)
    headers[after - 1] = 2 * last_groups + 1
    fits = begins + (runs - 1) * stride + 1 + last_groups * width <= ends
    like = np.logical_and.reduceat(data.take(places, mode="clip") == headers, first) & fits
    places = places.clip(max=len(data) - stride)  # of pages that are not alike
    rows = np.lib.stride_tricks.sliding_window_view(data, stride)[places]
    unpacked = np.empty((len(places), _RUN_GROUPS, 8), np.uint16)
    unpack_literals(rows.reshape(-1), 1, stride, width, unpacked)
    flat = unpacked.reshape(-1)
    for page, begin, same in zip(pages, (first * 8 * _RUN_GROUPS).tolist(), like.tolist(), strict=True):
        if same:
            _place(page, flat[begin : begin + page.end - page.begin], indices, origin)
    return [page for page, same in zip(pages, like.tolist(), strict=True) if not same]
