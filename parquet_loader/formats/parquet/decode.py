"""Column chunks of row groups (bytes) to `TokenPart`s.

A column chunk is decoded from its bytes and the few numbers of its footer entry that a `ColumnChunk` keeps; the
file's footer is not needed again. `pages` does it where it can: about a million slots at a time, so that beside the
chunk there is never more than a few pages, what they decode to, and what is made of that.

    pages          │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │          a page that is larger than a part is one
    parts          │     0     │     1     │   2   │      decoded when asked for, or only counted

What `pages` cannot is framed as a Parquet file of its own and handed to pyarrow whole. The made-up schema has the same
definition and repetition levels as the real one, which is all that the pages depend on: names, and whether a list is
written in two levels or three, do not matter. It asks for a ``large_list``, so that offsets are 64-bit and a row group
may hold more than 2^31 tokens.

In small row groups it is Python that takes the time, the same for each. So levels and values of several of them are
those of all their pages at once (`decode_together`), and what `pages` cannot is framed as one file of many row groups.

    row           definition levels        TokenBlock
    [5, 6, 7]     3 3 3                    tokens   5 6 7 8
    []            1                        offsets  0 3 3 3 4
    null          0
    [8]           3
"""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...blocks import IntArray, TokenArray, TokenBlock, TokenPart, from_arrow, narrowed
from ...errors import DataError
from ...turns import aside
from ..base import CODECS, RECOUNT, ChunkSize, ColumnChunk, ColumnLayout, Numbers, chosen, larger, smaller
from ..parts import OutOfRange, Wanted, null_element, out_of_range, part_of
from . import pages as pages_
from . import rehost, thrift
from .gather import ChunkValues, gathered_tokens, hosted_tokens
from .levels import NO_DOCUMENT, ByteArray, LastDocument, document_offsets, unusual_levels
from .pages import PLAIN, NotSupported, Page, open_page, plan_pages, stored_body, unpacked_bound, usual_pages
from .values import EncodedValues, PlainValues, read_dictionary

__all__ = [
    "OpenChunk",
    "cast_tokens",
    "decode_cost",
    "decode_together",
    "decode_with_pyarrow",
    "document_lengths",
    "most_decode_cost",
    "one_part_slots",
]

# Slots of a part at most, unless it is one page, or the last one, which may have half as many more. Large enough that
# Python's part of the work does not count; the indices of one fit into what threads keep (`values.SCRATCH_BYTES`).
PART_SLOTS = 1 << 20
# Row groups of no more slots are decoded together.
TOGETHER_SLOTS = 1 << 19
# Row groups of no more slots are read together by pyarrow, where their pages are of other kinds. One by one, each takes
# Python as much time as pyarrow's own reader needs more for twice as many. A power of two, see `_pyarrow_cost`.
FRAMED_SLOTS = 1 << 15
_CONVERTED_LIST = 3
_OBJECTS_BYTES = 1 << 10  # the Python and Arrow objects around the buffers of a block
_ELEMENTS = {"INT32": pa.int32(), "INT64": pa.int64(), "BOOLEAN": pa.bool_(), "FIXED_LEN_BYTE_ARRAY": pa.binary(2)}


# ── what it holds ────────────────────────────────────────────────────────────────────────────────────────────────


def decode_cost(size: ChunkSize, *, codec: str, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """See `Format.decode_cost`.

    A chunk of one part may turn out to be one for pyarrow's own reader, and is counted as such. Of a larger one the
    pages are taken to be no larger than half a part, as those of writers that know a page size are.
    """
    most = most_decode_cost(size, dtype=dtype, eos=eos)
    if codec not in pages_.CODECS:
        return most
    in_parts = _parts_cost(_sized(size, one_part_slots()), dtype, eos)
    return chosen(size.slots <= one_part_slots(), most, in_parts)


def one_part_slots() -> int:
    """See `Format.one_part_slots`."""
    return PART_SLOTS + PART_SLOTS // 2


def most_decode_cost(size: ChunkSize, *, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """See `Format.most_decode_cost`."""
    return larger(_parts_cost(size, dtype, eos), _pyarrow_cost(size, dtype, eos))


def _sized(size: ChunkSize, slots: int) -> ChunkSize:
    """The most that there is in so many slots."""
    unpacked = unpacked_bound(chunk_bytes=size.chunk_bytes, slots=slots, itemsize=size.itemsize)
    return ChunkSize(
        chunk_bytes=chosen(size.slots <= slots, size.chunk_bytes, smaller(size.chunk_bytes, unpacked)),
        slots=smaller(size.slots, slots),
        tokens=smaller(size.tokens, slots),
        rows=smaller(size.rows, slots),
        itemsize=size.itemsize,
    )


def _parts_cost(size: ChunkSize, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """What `OpenChunk.parts` holds beside the chunk, where no part is larger than this one.

    That is the part's pages without their levels, or as many bytes of a dictionary; and beside them either a page that
    was just decompressed, or what lists the documents (numbers for each run, and the table of a window's jumps), or the
    tokens.
    """
    unpacked = unpacked_bound(chunk_bytes=size.chunk_bytes, slots=size.slots, itemsize=size.itemsize)
    pages = unpacked + (larger(size.itemsize, 4) + 2) * size.slots
    return larger(pages + _listed_cost(size), _finished_cost(size, dtype, eos)) + 8 * _OBJECTS_BYTES


def _plain_cost(size: ChunkSize, page_bytes: int, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """The same, where all pages are plain and no larger than this: one of them at a time, and the tokens."""
    pages = page_bytes + size.slots * dtype.itemsize
    return larger(pages + _listed_cost(size), _finished_cost(size, dtype, eos)) + 8 * _OBJECTS_BYTES


def _listed_cost(size: ChunkSize) -> Numbers:
    return 64 * size.rows + smaller(256 * size.rows, 2 << 20)


def _pyarrow_cost(size: ChunkSize, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """What pyarrow's own reader holds beside the chunk: a copy of it, the values, two 16-bit levels a slot and a bitmap
    of nulls, all with room for a power of two, and the dictionary or the page that it is at. Row groups that it reads
    together take no more than their sum.
    """
    _, bits = np.frexp(np.subtract(size.slots, 1, dtype=np.float64))  # bits of the number
    room = chosen(size.slots <= FRAMED_SLOTS, 2 * size.slots, np.left_shift(1, bits, dtype=np.int64))
    read = size.chunk_bytes + room * (size.itemsize + 4) + room // 8 + 2 * size.tokens * size.itemsize
    return larger(read + (size.rows + 1) * 8, _finished_cost(size, dtype, eos)) + 8 * _OBJECTS_BYTES


def _finished_cost(size: ChunkSize, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """What decoded tokens hold while they are cast, and while EOS is put between them."""
    offsets = (size.rows + 1) * 8
    stored = size.tokens * size.itemsize + size.tokens // 8 + offsets + _OBJECTS_BYTES
    cast = size.tokens * dtype.itemsize + offsets + _OBJECTS_BYTES
    is_stored = size.itemsize == dtype.itemsize
    most = chosen(is_stored, stored, stored + cast)
    if eos:  # tokens without EOS, those with, and the offsets that pyarrow joins by
        held = chosen(is_stored, stored, cast)
        most = larger(most, held + (size.tokens + size.rows) * dtype.itemsize + 3 * offsets + _OBJECTS_BYTES)
    return most


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────────


class OpenChunk:
    """A column chunk whose page headers have been read; see `formats.base.OpenChunk`.

    Args:
        raw: the chunk's bytes, ``chunk.length`` of them; parts keep none.
        chunk: its footer entry.

    Raises:
        DataError: headers are damaged, or there are other bytes than the footer says.
    """

    def __init__(self, raw: bytes | memoryview, chunk: ColumnChunk, beside: Sequence[bytes | memoryview] = ()) -> None:
        if chunk.codec not in CODECS:
            raise chunk.error(
                f"compression {chunk.codec!r} is unknown; rewrite the file with zstd, snappy, lz4 or none"
            )
        if len(raw) != chunk.length:
            raise chunk.error(f"read {len(raw):,} bytes of a column chunk of {chunk.length:,}")
        self.chunk = chunk
        self.fallback = ""
        self._raw = memoryview(raw).cast("B")
        self._dictionary: Page | None = None
        self._entries: TokenArray | None = None
        self._parts: list[list[Page]] = []
        if chunk.layout.max_definition_level:
            try:
                self._dictionary, pages = plan_pages(self._raw, chunk)
                self._parts = _in_parts(pages)
            except NotSupported as reason:
                self.fallback = str(reason)

    def cost_bytes(self, *, dtype: np.dtype[np.integer], eos: bool) -> int:
        return int(self._cost(ChunkSize.of_chunk(self.chunk), dtype, eos))

    def _cost(self, size: ChunkSize, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
        if self.fallback:
            return _pyarrow_cost(size, dtype, eos)
        size = _sized(size, max((sum(page.slots for page in part) for part in self._parts), default=0))
        pages = [page for part in self._parts for page in part]
        if all(page.encoding == PLAIN for page in pages):
            return _plain_cost(size, max((page.unpacked_bytes for page in pages), default=0), dtype, eos)
        return _parts_cost(size, dtype, eos)

    def parts(
        self,
        *,
        dtype: np.dtype[Any] | None = None,
        bound: int | None = None,
        eos_id: int | float | None = None,
        first: int = 0,
        last: int | None = None,
        low: int = 0,
    ) -> Iterator[TokenPart]:
        chunk = self.chunk
        assert bound is None or dtype is not None
        wanted = _wanted(chunk.layout, dtype, bound, low)
        each = eos_id is not None
        begin = tokens = slots = 0
        before = NO_DOCUMENT
        if self.fallback or not chunk.layout.max_definition_level:
            yield part_of(0, _as_values(self._whole(wanted), chunk, dtype), eos_id, goes_on=False, complete=True)
            return
        for number, pages in enumerate(self._parts):
            end = slots + sum(page.slots for page in pages)
            # No slot stands for more than a token and the EOS before it.
            reach = begin + (end - slots) * (1 + each) + each
            asked = reach > first and (last is None or begin < last)
            block, after = self._decode(pages, slots, before, tokens, wanted if asked else None)
            count = int(block.offsets[-1])
            tokens += count
            complete = number == len(self._parts) - 1
            if complete:
                self._check_counts(after.row + 1, tokens)
            if asked:
                values = _as_values(block, chunk, dtype)
                yield part_of(begin, values, eos_id, goes_on=before.row >= 0, complete=complete)
                del values
            begin += count + each * (after.row - before.row - (before.row < 0) + complete)
            del block  # not to be held while the next one is decoded
            before, slots = after, end
        if not self._parts:
            self._check_counts(0, 0)

    def lengths(self) -> IntArray:
        """How many tokens each document has, shape ``(documents,)``. Where pages are looked at, values are not decoded.

        Raises:
            DataError: see `parts`.
        """
        if self.fallback or not self.chunk.layout.max_definition_level:
            return np.diff(self._whole(Wanted(dtype=self.chunk.layout.dtype, bound=None)).offsets)
        starts: list[IntArray] = []
        slots = tokens = 0
        before = NO_DOCUMENT
        for pages in self._parts:
            block, after = self._decode(pages, slots, before, tokens, None)
            starts.append(block.offsets[int(before.row >= 0) : -1] + tokens)
            slots += sum(page.slots for page in pages)
            tokens, before = tokens + int(block.offsets[-1]), after
        self._check_counts(before.row + 1 if self._parts else 0, tokens)
        return np.diff(np.concatenate([*starts, [tokens]]))

    def unverified(self) -> Iterator[memoryview]:
        begin = 0
        for page in (page for part in self._parts for page in part):
            if page.checksum is not None:
                yield self._raw[begin : page.start]
                begin = page.end
        yield self._raw[begin:]

    def _decode(
        self, pages: list[Page], slot: int, before: LastDocument, tokens: int, wanted: Wanted | None
    ) -> tuple[TokenBlock, LastDocument]:
        """The documents of pages, the first one perhaps going on from `before`; and the last one of them.

        Args:
            pages: the pages, which follow each other.
            slot: their first slot.
            before: the document before them.
            tokens: how many there are before them.
            wanted: None where nothing but the offsets is.
        """
        try:
            return self._decode_as(pages, slot, before, tokens, wanted)
        except OutOfRange:
            assert wanted is not None
            stored = Wanted(dtype=self.chunk.layout.dtype, bound=None)
            block, after = self._decode_as(pages, slot, before, tokens, stored)
            return cast_tokens(block, wanted, self.chunk, max(before.row, 0)), after

    def _decode_as(
        self, pages: list[Page], slot: int, before: LastDocument, tokens: int, wanted: Wanted | None
    ) -> tuple[TokenBlock, LastDocument]:
        """See `_decode`.

        Raises:
            OutOfRange: an id is not as wanted, or an entry of the dictionary, used or not.
        """
        chunk, raw = self.chunk, self._raw
        slots = list(itertools.accumulate((page.slots for page in pages), initial=slot))
        values: PlainValues | EncodedValues | None = None
        if wanted is not None and all(page.encoding == PLAIN for page in pages):
            values = PlainValues(pages, chunk, wanted, tokens)
        elif wanted is not None:
            values = EncodedValues(self._dictionary_entries(), pages, chunk, wanted)
        repetition: list[bytes] = []
        holes: list[tuple[IntArray, ByteArray]] = []
        # A page's values are moved on while they are in the processor's cache, and its memory serves the next page.
        for number, page in enumerate(pages):
            body = open_page(raw, page, chunk, values=values is not None)
            repetition.append(bytes(body.repetition))
            holes.append(
                unusual_levels([body.definition], slots[number : number + 2], chunk.layout.max_definition_level, chunk)
            )
            if values is not None:
                values.append(page, page.slots - len(holes[-1][0]), body.values)
            del body
        found = np.empty(0, chunk.layout.dtype) if values is None else values.tokens()
        offsets, after = document_offsets(repetition, holes, slots, chunk, before)
        return TokenBlock(found, offsets), after

    def _dictionary_entries(self) -> TokenArray | None:
        if self._entries is None and self._dictionary is not None:
            self._entries = read_dictionary(self._raw, self._dictionary, self.chunk)
        return self._entries

    def _whole(self, wanted: Wanted) -> TokenBlock:
        """The chunk, where pages are not looked at."""
        chunk = self.chunk
        if self.fallback:
            block = cast_tokens(decode_with_pyarrow([self._raw], [chunk]), wanted, chunk)
        else:
            block = TokenBlock(np.empty(0, wanted.dtype), np.zeros(chunk.rows + 1, np.int64))
        self._check_counts(len(block.offsets) - 1, len(block.tokens))
        return block

    def _check_counts(self, rows: int, tokens: int) -> None:
        chunk = self.chunk
        if rows != chunk.rows:
            raise chunk.error(f"holds {rows:,} documents where its footer says {chunk.rows:,}")
        if chunk.tokens >= 0 and tokens != chunk.tokens:
            raise chunk.error(f"holds {tokens:,} tokens where its footer says {chunk.tokens:,}; {RECOUNT}")


def _in_parts(pages: list[Page]) -> list[list[Page]]:
    """Pages in parts; see `PART_SLOTS`."""
    left = sum(page.slots for page in pages)
    if left <= one_part_slots():
        return [pages] if pages else []
    parts: list[list[Page]] = [[]]
    slots = 0
    for page in pages:
        if slots and slots + page.slots > PART_SLOTS and left >= PART_SLOTS // 2:
            parts.append([])
            slots = 0
        parts[-1].append(page)
        slots += page.slots
        left -= page.slots
    return parts


def _wanted(layout: ColumnLayout, dtype: np.dtype[Any] | None, bound: int | None, low: int) -> Wanted:
    """What stored values are wanted as, before they are what they stand for; see `_as_values`."""
    stored = layout.dtype
    if dtype is None or layout.value_dtype.kind not in "iu":
        return Wanted(dtype=stored, bound=None)
    if bound is not None and low <= np.iinfo(stored).min and np.iinfo(stored).max < bound:
        bound = None
    return Wanted(dtype=dtype, bound=bound, low=low)


def _as_values(block: TokenBlock, chunk: ColumnChunk, dtype: np.dtype[Any] | None) -> TokenBlock:
    """A block whose tokens are floating-point numbers or booleans where they stand for such."""
    values = chunk.layout.value_dtype
    if values.kind in "iu" or not chunk.layout.max_definition_level:
        return block
    return TokenBlock(narrowed(block.tokens.view(values), dtype or values), block.offsets)


def decode_together(
    raws: Sequence[bytes | memoryview],
    chunks: Sequence[ColumnChunk],
    *,
    dtype: np.dtype[Any],
    bound: int | None,
    eos_id: int | float | None,
    besides: Sequence[Sequence[bytes | memoryview]] = (),
    low: int = 0,
) -> TokenPart | None:
    """See `Format.decode_together`."""
    layouts = {chunk.layout for chunk in chunks}
    if len(layouts) > 1 and any(layout.value_dtype.kind not in "iu" for layout in layouts):
        return None
    wanted = [_wanted(layout, dtype, bound, low) for layout in layouts]
    block = _together(raws, chunks, max(wanted, key=lambda each: each.bound is not None))
    if block is None:
        return None
    return part_of(0, _as_values(block, chunks[0], dtype), eos_id, goes_on=False, complete=True)


def document_lengths(
    raws: Sequence[bytes | memoryview],
    chunks: Sequence[ColumnChunk],
    eos_id: int | None = None,
    besides: Sequence[Sequence[bytes | memoryview]] = (),
) -> list[IntArray]:
    """See `Format.document_lengths`."""
    block = _together(raws, chunks, None) if len(chunks) > 1 else None
    if block is not None:
        return np.split(np.diff(block.offsets), np.cumsum([chunk.rows for chunk in chunks[:-1]]))
    return [OpenChunk(raw, chunk).lengths() for raw, chunk in zip(raws, chunks, strict=True)]


def _together(
    raws: Sequence[bytes | memoryview], chunks: Sequence[ColumnChunk], wanted: Wanted | None
) -> TokenBlock | None:
    """The documents of column chunks, one chunk after another; None where they are to be looked at one by one.

    Args:
        raws, chunks: see `Format.decode_together`.
        wanted: None where nothing but the offsets is; see `_decode_pages`.
    """
    if not all(
        chunk.layout.max_definition_level
        and chunk.slots <= min(TOGETHER_SLOTS, chunk.tokens + chunk.rows)
        and len(raw) == chunk.length
        for raw, chunk in zip(raws, chunks, strict=True)
    ):
        return None
    try:
        return _in_order([memoryview(raw).cast("B") for raw in raws], chunks, wanted)
    except (DataError, NotSupported, OutOfRange):  # of which row group, and in which words, is found one by one
        return None


@dataclass(frozen=True, slots=True)
class _Planned:
    """A column chunk whose page headers have been read."""

    raw: memoryview
    chunk: ColumnChunk
    dictionary: Page | None
    pages: list[Page]


def _in_order(raws: Sequence[memoryview], chunks: Sequence[ColumnChunk], wanted: Wanted | None) -> TokenBlock:
    """The documents of small column chunks, one chunk after another: those that are stored alike are decoded together.

    Raises:
        DataError, NotSupported, OutOfRange: they have to be looked at one by one.
    """
    alike: dict[tuple[ColumnLayout, str], list[int]] = {}
    for place, chunk in enumerate(chunks):
        alike.setdefault((chunk.layout, chunk.codec), []).append(place)
    dtype = chunks[0].layout.dtype if wanted is None else wanted.dtype
    blocks: list[TokenBlock] = [TokenBlock(np.empty(0, dtype), np.zeros(1, np.int64))] * len(chunks)
    for places in alike.values():
        views, group = [raws[place] for place in places], [chunks[place] for place in places]
        planned = [
            _Planned(view, chunk, *plan_pages(view, chunk, known))
            for view, chunk, known in zip(views, group, usual_pages(views, group), strict=True)
        ]
        block = _decode_planned(planned, wanted)
        if not _counts_match(block.offsets, group):
            raise NotSupported("other numbers than the index has")
        if len(alike) == 1:
            return block
        row = 0
        for place, chunk in zip(places, group, strict=True):
            offsets = block.offsets[row : row + chunk.rows + 1]
            blocks[place] = TokenBlock(block.tokens[offsets[0] : offsets[-1]], offsets - offsets[0])
            row += chunk.rows
    return _concatenate(blocks, dtype)


def _decode_planned(planned: Sequence[_Planned], wanted: Wanted | None) -> TokenBlock:
    """The documents of small column chunks of one layout, one chunk after another.

    Raises:
        DataError, NotSupported, OutOfRange: they have to be looked at one by one.
    """
    chunks = [each.chunk for each in planned]
    with contextlib.suppress(NotSupported):
        return _decode_pages(planned, wanted)
    if max(chunk.slots for chunk in chunks) > FRAMED_SLOTS:
        raise NotSupported("pages of other encodings")
    for each in planned:
        for page in each.pages if each.dictionary is None else (each.dictionary, *each.pages):
            stored_body(each.raw, page, each.chunk)  # pyarrow takes some damaged checksums for none
    block = decode_with_pyarrow([each.raw for each in planned], chunks)
    return block if wanted is None else cast_tokens(block, wanted, chunks[0])


def _decode_pages(planned: Sequence[_Planned], wanted: Wanted | None) -> TokenBlock:
    """The same by their pages. Levels and values are those of all pages at once: what takes a step of Python for each
    page is little. Where nothing is wanted but the offsets, there are no tokens.

    Raises:
        NotSupported: the pages are larger than the values need.
        DataError, OutOfRange: see `_decode_planned`.
    """
    chunk = planned[0].chunk
    slots = list(itertools.accumulate((page.slots for each in planned for page in each.pages), initial=0))
    asked = wanted is not None
    bodies = [open_page(each.raw, page, each.chunk, values=asked) for each in planned for page in each.pages]
    usual = chunk.layout.max_definition_level
    holes = unusual_levels([body.definition for body in bodies], slots, usual, chunk)
    offsets, _ = document_offsets([bytes(body.repetition) for body in bodies], [holes], slots, chunk)
    if wanted is None:
        return TokenBlock(np.empty(0, chunk.layout.dtype), offsets)
    counts = np.diff(np.array(slots) - holes[0].searchsorted(slots)).tolist()
    rest = zip(counts, bodies, strict=True)
    values = [
        ChunkValues(
            each.chunk,
            None if each.dictionary is None else read_dictionary(each.raw, each.dictionary, each.chunk),
            [(page, count, body.values) for page, (count, body) in zip(each.pages, rest, strict=False)],
        )
        for each in planned
    ]
    del bodies, rest  # the values have what is needed of them, until it is copied
    tokens: TokenArray | None = None
    with contextlib.suppress(NotSupported):
        tokens = gathered_tokens(values, sum(counts), wanted)
    if tokens is None:  # outside of a handler, which would keep what was made so far
        tokens = hosted_tokens(values, sum(counts), wanted)
    return TokenBlock(tokens, offsets)


def _counts_match(offsets: IntArray, chunks: Sequence[ColumnChunk]) -> bool:
    """Whether documents of several chunks are as many in each as its entry says, if the slots of its pages are."""
    borders = np.cumsum([0, *(chunk.rows for chunk in chunks)])
    if len(offsets) - 1 != borders[-1]:
        return False
    # A document has a slot at the least, so equal slots of as many rows mean that each border is where it was written.
    slots = np.cumsum([0, *(chunk.slots for chunk in chunks)])
    tokens = np.cumsum([0, *(chunk.tokens for chunk in chunks)])
    found = np.concatenate(([0], np.cumsum(np.maximum(np.diff(offsets), 1))))
    return np.array_equal(found[borders], slots) and np.array_equal(offsets[borders], tokens)


def decode_with_pyarrow(raws: Sequence[bytes | memoryview], chunks: Sequence[ColumnChunk]) -> TokenBlock:
    """The documents of column chunks of one layout, one chunk after another, by pyarrow's own reader, levels and all.

    Raises:
        DataError: they do not decode; names the first one.
    """
    chunk = chunks[0]
    framed = pa.BufferReader(b"".join((rehost.MAGIC, *raws, _footer(chunks))))
    try:
        with aside(), pq.ParquetFile(framed, pre_buffer=False, page_checksum_verification=True) as file:
            column = file.read(use_threads=False).column(0)
    except MemoryError:  # pyarrow has an ArrowException for it
        raise
    except (pa.ArrowException, OSError) as error:
        raise chunk.error(f"cannot be decoded, the file is damaged or of an unknown kind ({error})") from error
    blocks = [_block_of_array(piece, chunk) for piece in column.chunks]
    return blocks[0] if len(blocks) == 1 else _concatenate(blocks, chunk.layout.dtype)


def _block_of_array(array: pa.Array, chunk: ColumnChunk) -> TokenBlock:
    while isinstance(array, pa.StructArray):
        array = array.field(0)
    offsets = from_arrow(array.offsets, np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    values = array.values.slice(first, last - first)
    offsets = offsets - first if first else offsets
    if values.null_count:
        slot = int(pc.index(values.is_null(), True).as_py())
        row = int(np.searchsorted(offsets, slot, side="right")) - 1
        raise null_element(chunk, row, slot - int(offsets[row]))
    return TokenBlock(from_arrow(values, chunk.layout.dtype), offsets)


def _concatenate(blocks: list[TokenBlock], dtype: np.dtype[np.integer]) -> TokenBlock:
    lengths = [np.diff(block.offsets) for block in blocks]
    offsets = np.zeros(1 + sum(map(len, lengths)), np.int64)
    if lengths:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    tokens = np.concatenate([block.tokens for block in blocks]) if blocks else np.empty(0, dtype)
    return TokenBlock(tokens, offsets)


def _footer(chunks: Sequence[ColumnChunk]) -> bytes:
    """What comes after the chunks in a file of "PAR1" and them alone."""
    elements, leaf, arrow_schema = _schema(chunks[0].layout)
    begins = itertools.accumulate((chunk.length for chunk in chunks), initial=len(rehost.MAGIC))
    row_groups = [
        rehost.row_group(
            leaf=leaf,
            physical_type=chunk.layout.physical_type,
            codec=CODECS[chunk.codec],
            rows=chunk.rows,
            slots=chunk.slots,
            pages_bytes=chunk.length,
            data_offset=chunk.data_offset,
            dictionary_offset=chunk.dictionary_offset,
            first_page=begin,
        )
        for begin, chunk in zip(begins, chunks, strict=False)  # the last one begins the footer
    ]
    rows = sum(chunk.rows for chunk in chunks)
    return rehost.file_footer(schema=elements, rows=rows, row_groups=row_groups, arrow_schema=arrow_schema)


@functools.lru_cache(maxsize=64)
def _schema(layout: ColumnLayout) -> tuple[bytes, tuple[bytes, ...], bytes]:
    """A schema with the layout's levels: (schema elements, path of the leaf, the Arrow schema that says large_list)."""
    optional_ancestors = layout.max_definition_level - int(layout.nullable_element) - 1
    wrappers = max(0, optional_ancestors - 1)
    elements = [
        rehost.schema_group(b"schema"),
        *(rehost.schema_group(b"s", repetition=rehost.OPTIONAL) for _ in range(wrappers)),
        rehost.schema_group(
            b"tokens",
            repetition=rehost.OPTIONAL if optional_ancestors else rehost.REQUIRED,
            converted=_CONVERTED_LIST,
        ),
        rehost.schema_group(b"list", repetition=rehost.REPEATED),
        rehost.schema_leaf(
            b"element", layout.physical_type, rehost.OPTIONAL if layout.nullable_element else rehost.REQUIRED
        ),
    ]
    element = pa.field("element", _ELEMENTS[layout.physical_type], layout.nullable_element)
    field = pa.field("tokens", pa.large_list(element), bool(optional_ancestors))
    for _ in range(wrappers):
        field = pa.field("s", pa.struct([field]))
    arrow_schema = base64.b64encode(pa.schema([field]).serialize().to_pybytes())
    return thrift.struct_list(*elements), (b"s",) * wrappers + (b"tokens", b"list", b"element"), arrow_schema


def cast_tokens(block: TokenBlock, wanted: Wanted, chunk: ColumnChunk, first_row: int = 0) -> TokenBlock:
    """The block with its tokens as they are wanted, every one checked.

    Args:
        first_row: the number of the block's first document in the row group.

    Raises:
        DataError: an id is out of range; nothing is ever wrapped.
    """
    tokens, low, bound = block.tokens, wanted.low, wanted.bound
    at = wanted.first_outside(tokens)
    if at is None:
        return TokenBlock(narrowed(tokens, wanted.dtype), block.offsets)
    assert bound is not None
    row = first_row + int(np.searchsorted(block.offsets, at, side="right")) - 1
    if low or chunk.layout.values:
        raise chunk.error(
            f"row {row} has the value {int(tokens[at])}, outside [{low}, {bound}), which its type and the file's "
            "statistics promise; the file is damaged, or was written wrongly"
        )
    raise out_of_range(chunk, row, int(tokens[at]), bound)
