"""A column chunk's pages to a `TokenBlock`, without pyarrow's slow part.

pyarrow spends most of its time on the levels of a list column, not on its values. A chunk is a chain of pages, each a
Thrift header and a body; a data page's body is, once decompressed,

    repetition levels │ definition levels │ values

The levels say where documents begin and which slots hold no value, and the values are those of a flat column:

    row         repetition   definition   value         (an optional list of optional elements: 3 is a present one,
    [5, 6, 7]   0 1 1        3 3 3        5 6 7          2 a null one, 1 an empty list, 0 a null list)
    []          0            1
    null        0            0
    [8]         0            3            8

So: *plan* reads the headers; *open* verifies, decompresses and cuts each body in three; *unusual levels* lists the
slots with repetition 0, the beginnings, and those with a definition below the highest, the holes; the *values* of all
pages then are either plain, and joined as they are, or indices, and gathered from the dictionary, or go to
pyarrow as the pages of a flat, required column, which knows every other encoding.

    beginnings 0 3 4 5,  holes 3 4  ->  offsets 0 3 3 3 4,  tokens 5 6 7 8

**Levels** are written as runs, each a varint header and a payload. An even header 2n is n times the level in the next
byte; an odd one 2g+1 is g groups of 8 levels, packed from the low bit up. The repetition levels, of one bit each, of
1000 slots with documents that begin at 0, 3 and 500 are

    03 f6        d8 07 01     03 fe        d8 07 01
    slots 0-7    492 ones     500-507      492 ones

Only runs that may hold something unusual are expanded, so the cost goes with documents, not with tokens. Where a run
begins is known only from the one before it. To follow that chain without a step of Python for each run, every byte is
taken for a header, all at once, which gives a table of jumps; applied to itself it gives jumps of 2, 4, 8 and 16 runs.
Python follows the longest, and the shorter ones fill in what was left out:

    byte       0  1  2  3  4  5  6  7  8  9  (10 is the end)
    header     *     *        *     *
    one run    2     5        7     10           bytes in between have jumps too, of no meaning
    two runs   5              10

Nothing read here is trusted. Sizes and counts are checked against the chunk's before anything of that size is
allocated, and damage is a `DataError`. What is not damaged but unknown is `NotSupported`, raised only after all headers
were found sound: pyarrow's own reader may then be asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import DataError
from ..base import ColumnChunk, IntArray, TokenArray, TokenBlock, narrowed, pooled
from . import rehost, thrift

try:
    from isal.isal_zlib import crc32  # ten times as fast
except ImportError:
    from zlib import crc32

__all__ = [
    "NotSupported",
    "OutOfRange",
    "Wanted",
    "as_arrow",
    "decode_pages",
    "kept_bytes",
    "null_element",
    "unpacked_bound",
]

ByteArray = npt.NDArray[np.uint8]

# parquet.thrift: page types, encodings.
DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 2, 3, 5, 8, 9
DICTIONARY = (PLAIN_DICTIONARY, RLE_DICTIONARY)
ENCODINGS = (PLAIN, *DICTIONARY, DELTA_BINARY_PACKED, BYTE_STREAM_SPLIT)

# Names as pyarrow's codecs have them; "LZ4" is what the format calls LZ4_RAW. LZO and Hadoop's LZ4 are not here.
CODECS = {"UNCOMPRESSED": "", "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}

WINDOW = 1 << 14  # bytes of levels looked at together: the tables of jumps stay in the processor's cache
DOUBLINGS = 4  # the longest jump is 2 ** DOUBLINGS runs
MAX_VARINT = 5  # bytes of a run's header
SCRATCH_BYTES = 4 << 20  # the most that a decoder keeps between chunks
MAX_INDEX_RUNS = 256  # runs of indices, or of equal runs, that are worth a step of Python each

_NO_SLOTS: IntArray = np.empty(0, np.int64)
_NO_LEVELS: ByteArray = np.empty(0, np.uint8)


class NotSupported(Exception):
    """Pages that are sound as far as they are understood, and not understood far enough. Says what is unknown."""


class OutOfRange(Exception):
    """An id may be out of range. Whether it is one of a document's, and where, only the whole chunk can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What tokens are wanted as.

    Attributes:
        dtype: of the tokens.
        bound: one past the largest id allowed, at most one past the largest value of `dtype`; None where the tokens
            are wanted as they are stored, `dtype` being the stored one, and nothing is checked.
    """

    dtype: np.dtype[np.integer]
    bound: int | None

    def check(self, values: TokenArray) -> None:
        """Raise `OutOfRange` where stored values do not all fit."""
        # A negative id read as unsigned is larger than any bound, so one pass finds both kinds of wrong.
        if self.bound is not None and len(values) and int(values.view(f"u{values.itemsize}").max()) >= self.bound:
            raise OutOfRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page's header says.

    Attributes:
        number: the page's place in the chunk, for messages.
        kind: its type in parquet.thrift.
        slots: leaf slots of a data page, entries of a dictionary page.
        encoding: of the values.
        start: the body's first byte, from the chunk's start.
        end: the byte after the body.
        packed: whether the body, or in a v2 page what follows its levels, is compressed.
        unpacked_bytes: the body once decompressed.
        checksum: CRC-32 of the body as it is stored; None where the writer gave none.
        level_bytes: of a v2 page: its repetition and its definition levels, which are stored uncompressed.
        unknown: what about the page this module has no knowledge of, or "".
    """

    number: int
    kind: int
    slots: int
    encoding: int
    start: int
    end: int
    packed: bool
    unpacked_bytes: int
    checksum: int | None
    level_bytes: tuple[int, int]
    unknown: str

    def error(self, problem: str, chunk: ColumnChunk) -> DataError:
        """A `DataError` that names the page."""
        return chunk.error(f"page {self.number}, at byte {self.start} of the column chunk, {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A data page's body, decompressed and cut in three."""

    repetition: memoryview
    definition: memoryview
    values: memoryview


def decode_pages(raw: memoryview, chunk: ColumnChunk, wanted: Wanted) -> TokenBlock:
    """Decode one column chunk. The block keeps nothing of ``raw``.

    Raises:
        DataError: the bytes are damaged, or hold a null inside a document.
        NotSupported: an encoding or structure that pyarrow's own reader may know.
        OutOfRange: an id is not as wanted, or an entry of the dictionary, used or not.
    """
    dictionary, pages = plan_pages(raw, chunk)
    slots = [0, *itertools.accumulate(page.slots for page in pages)]
    values: PlainValues | EncodedValues
    if all(page.encoding == PLAIN for page in pages):
        values = PlainValues(chunk, wanted)
    else:
        values = EncodedValues(raw, dictionary, pages, chunk, wanted)
    repetition: list[bytes] = []
    holes: list[tuple[IntArray, ByteArray]] = []
    # A page's values are moved on while they are in the processor's cache, and its memory serves the next page.
    for number, page in enumerate(pages):
        body = open_page(raw, page, chunk)
        repetition.append(bytes(body.repetition))
        holes.append(
            unusual_levels([body.definition], slots[number : number + 2], chunk.layout.max_definition_level, chunk)
        )
        values.append(page, page.slots - len(holes[-1][0]), body.values)
        del body
    return TokenBlock(values.tokens(), _offsets(repetition, holes, slots, chunk))


def null_element(chunk: ColumnChunk, row: int, position: int) -> DataError:
    """The error for a null inside a document."""
    return chunk.error(
        f"row {row} has a null inside its document, at position {position}; "
        "a null is no token: remove it or write the id that was meant"
    )


# ------------------------------------------------------------------------------------------------------------ plan


def unpacked_bound(*, chunk_bytes: int, slots: int, itemsize: int) -> int:
    """The bytes that a chunk's pages may decompress to, all together; more is taken for damage.

    A slot takes an item or an index of at most 4 bytes, and well under 2 bytes of levels: what they leave is enough
    for the dictionary of a vocabulary. In a small row group the dictionary, made for all of them perhaps, may be
    larger than the column; writers keep dictionaries to 1 MiB, and no codec makes one 4 times smaller.
    """
    return (max(itemsize, 4) + 2) * slots + min(4 * chunk_bytes, 2 << 20)


def plan_pages(raw: memoryview, chunk: ColumnChunk) -> tuple[Page | None, list[Page]]:
    """The dictionary page, if there is one, and the data pages that hold slots, from their headers alone.

    All headers are checked before anything that is merely unknown raises `NotSupported`.
    """
    unknown = ""
    if chunk.codec not in CODECS:
        unknown = f"compression {chunk.codec}"
    elif chunk.layout.max_definition_level > 255:
        unknown = f"definition levels up to {chunk.layout.max_definition_level}"
    has_dictionary = 0 <= chunk.dictionary_offset < chunk.data_offset
    position = chunk.dictionary_offset if has_dictionary else chunk.data_offset
    allowed = unpacked_bound(chunk_bytes=chunk.length, slots=chunk.slots, itemsize=chunk.layout.dtype.itemsize)
    dictionary: Page | None = None
    pages: list[Page] = []
    slots = number = 0
    while slots < chunk.slots:
        try:
            header, start = thrift.read_struct(raw, position)
            page = _page(header, number, start, compressed=chunk.codec != "UNCOMPRESSED")
        except thrift.ThriftError as error:
            raise chunk.error(
                f"page {number} has a damaged header at byte {position} of the column chunk ({error})"
            ) from error
        if page.end > len(raw):
            raise page.error(f"should end at byte {page.end:,}, beyond the column chunk's {len(raw):,} bytes", chunk)
        allowed -= page.unpacked_bytes
        if allowed < 0:
            raise page.error(
                f"says that it unpacks to {page.unpacked_bytes:,} bytes, more than {chunk.slots:,} tokens need: it is "
                "damaged, or the column has a dictionary of millions of ids and is better written without one",
                chunk,
            )
        if page.kind == DICTIONARY_PAGE:
            if dictionary is not None or pages:
                raise page.error("is a dictionary, but not the first page", chunk)
            dictionary = page
        elif page.kind in (DATA_PAGE, DATA_PAGE_V2) and page.slots:
            slots += page.slots
            pages.append(page)
            if slots > chunk.slots:
                raise page.error(f"brings the slots to {slots:,} where the footer says {chunk.slots:,}", chunk)
        if page.unknown and not unknown:
            unknown = f"page {number} has {page.unknown}"
        position = page.end
        number += 1
    if unknown:
        raise NotSupported(unknown)
    return dictionary, pages


def _page(header: dict[int, thrift.Value], number: int, start: int, *, compressed: bool) -> Page:
    """A page by its ``PageHeader`` of parquet.thrift. Raises `thrift.ThriftError` where that lacks something."""
    kind = _number(header, 1)
    stored_bytes = _number(header, 3)
    checksum = header.get(4)
    packed = compressed
    slots = encoding = 0
    level_bytes = (0, 0)
    unknown = ""
    if kind == DATA_PAGE:
        fields = _struct(header, 5)
        slots, encoding = _number(fields, 1), _number(fields, 2)
        if (_number(fields, 3), _number(fields, 4)) != (RLE, RLE):
            unknown = "levels in an old encoding"
    elif kind == DICTIONARY_PAGE:
        fields = _struct(header, 7)
        slots, encoding = _number(fields, 1), _number(fields, 2)
        if encoding not in (PLAIN, PLAIN_DICTIONARY):
            unknown = f"a dictionary of encoding {encoding}"
    elif kind == DATA_PAGE_V2:
        fields = _struct(header, 8)
        slots, encoding = _number(fields, 1), _number(fields, 4)
        level_bytes = (_number(fields, 6), _number(fields, 5))
        if sum(level_bytes) > stored_bytes:
            raise thrift.ThriftError(f"{level_bytes} bytes of levels in a page of {stored_bytes}")
        packed = compressed and fields.get(7) is not False
    elif kind != INDEX_PAGE:
        unknown = f"the type {kind}"
    if encoding not in ENCODINGS:
        unknown = f"encoding {encoding}"
    return Page(
        number=number,
        kind=kind,
        slots=slots,
        encoding=encoding,
        start=start,
        end=start + stored_bytes,
        packed=packed,
        unpacked_bytes=_number(header, 2) if packed else stored_bytes,
        checksum=checksum & 0xFFFFFFFF if isinstance(checksum, int) else None,
        level_bytes=level_bytes,
        unknown=unknown,
    )


def _number(fields: dict[int, thrift.Value], field: int) -> int:
    value = fields.get(field)
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise thrift.ThriftError(f"field {field} is {value!r}" if field in fields else f"field {field} is missing")
    return value


def _struct(fields: dict[int, thrift.Value], field: int) -> dict[int, thrift.Value]:
    value = fields.get(field)
    if not isinstance(value, dict):
        raise thrift.ThriftError(f"field {field} is missing")
    return value


# ------------------------------------------------------------------------------------------------------------ open


def open_page(raw: memoryview, page: Page, chunk: ColumnChunk) -> Body:
    """A data page's levels and values."""
    stored = _stored(raw, page, chunk)
    if page.kind == DATA_PAGE_V2:
        first, second = page.level_bytes
        levels = first + second
        values = stored[levels:]
        if page.packed:
            values = _unpack(values, page.unpacked_bytes - levels, page, chunk)
        return Body(repetition=stored[:first], definition=stored[first:levels], values=values)
    body = _unpack(stored, page.unpacked_bytes, page, chunk) if page.packed else stored
    repetition, body = _length_prefixed(body, page, chunk)
    definition, body = _length_prefixed(body, page, chunk)
    return Body(repetition=repetition, definition=definition, values=body)


def _stored(raw: memoryview, page: Page, chunk: ColumnChunk) -> memoryview:
    stored = raw[page.start : page.end]
    if page.checksum is not None and crc32(stored) != page.checksum:
        raise page.error("does not match its checksum: the bytes changed since they were written", chunk)
    return stored


def _length_prefixed(body: memoryview, page: Page, chunk: ColumnChunk) -> tuple[memoryview, memoryview]:
    """(Levels, the rest) of a v1 page's body."""
    length = int.from_bytes(body[:4], "little")
    if length + 4 > len(body):
        raise page.error(f"says that {length:,} bytes of levels follow where {max(0, len(body) - 4):,} are left", chunk)
    return body[4 : 4 + length], body[4 + length :]


def _unpack(packed: memoryview, size: int, page: Page, chunk: ColumnChunk) -> memoryview:
    """``packed`` decompressed to exactly ``size`` bytes."""
    if size <= 0:
        if size < 0:
            raise page.error("has levels longer than the page", chunk)
        return packed[:0]
    codec = CODECS[chunk.codec]
    try:
        if codec in ("gzip", "brotli"):
            with pa.CompressedInputStream(pa.BufferReader(packed), codec) as stream:
                unpacked = stream.read_buffer(size + 1)
        else:
            unpacked = pa.Codec(codec).decompress(packed, size)
    except (pa.ArrowException, OSError) as error:
        raise page.error(f"cannot be decompressed, it is damaged ({error})", chunk) from error
    body = memoryview(unpacked).cast("B")
    # Codec.decompress does not tell how many bytes it wrote: where they are too few, the rest is whatever the memory
    # held before. zstd refuses that by itself. Snappy begins with the length. LZ4 has none, but ends with literals,
    # five of them or all: they are the last bytes on both sides. The other two are read as streams, which end.
    if codec == "snappy":
        whole = thrift.read_varint(packed, 0)[0] == size
    elif codec == "lz4_raw":
        tail = min(size, 5)
        whole = packed[-tail:] == body[-tail:]
    else:
        whole = len(body) == size
    if not whole:
        raise page.error(f"does not unpack to the {size:,} bytes that its header says: it is damaged", chunk)
    return body


# ---------------------------------------------------------------------------------------------------------- levels


def _offsets(
    repetition: list[bytes], holes_of_pages: list[tuple[IntArray, ByteArray]], slots: list[int], chunk: ColumnChunk
) -> IntArray:
    """Where documents begin among the tokens, by their first slots and the slots without a token."""
    beginnings, _ = unusual_levels(repetition, slots, 1, chunk)
    if chunk.slots and not (len(beginnings) and beginnings[0] == 0):
        raise _damaged_levels(chunk, "the first slot is inside a document")
    edges = np.append(beginnings, chunk.slots)
    holes = np.concatenate([_NO_SLOTS, *(slots for slots, _ in holes_of_pages)])
    if not len(holes):
        return edges
    rows = np.searchsorted(beginnings, holes, side="right") - 1
    positions = holes - edges[rows]
    if chunk.layout.nullable_element:
        levels = np.concatenate([levels for _, levels in holes_of_pages])
        nulls = np.flatnonzero(levels == chunk.layout.max_definition_level - 1)
        if len(nulls):
            raise null_element(chunk, int(rows[nulls[0]]), int(positions[nulls[0]]))
    # What is left are empty and null lists, each a document of its one slot.
    wrong = np.flatnonzero(edges[rows + 1] - edges[rows] != 1)
    if len(wrong):
        raise _damaged_levels(chunk, f"row {int(rows[wrong[0]])} is an empty list that has elements")
    return edges - np.searchsorted(holes, edges)


def unusual_levels(
    sections: Sequence[bytes | memoryview], slots: Sequence[int], usual: int, chunk: ColumnChunk
) -> tuple[IntArray, ByteArray]:
    """The slots of a chunk whose level is not ``usual``, the highest there is, in order; and their levels.

    Args:
        sections: levels, a section for each page.
        slots: each page's first slot, and at the end the last page's end.
    """
    counts = [end - first for first, end in itertools.pairwise(slots)]
    # Nothing but usual levels is one run a page with any sensible writer: no need to look closer.
    if all(
        section == thrift.varint(count << 1) + bytes([usual]) for section, count in zip(sections, counts, strict=True)
    ):
        return _NO_SLOTS, _NO_LEVELS
    width = usual.bit_length()
    *begins, size = itertools.accumulate(map(len, sections), initial=0)
    # All pages at once. What is read beyond a header at the very end is zeros, and is found out by its end.
    data = np.frombuffer(b"".join([*sections, bytes(MAX_VARINT + 1)]), np.uint8)
    if not all(map(len, sections)):
        raise _damaged_levels(chunk, "a page has none")
    runs = _chained(data, size, width, _likely_heads(data, size, begins, width, usual))
    if runs is None:
        runs = _chained(data, size, width, _run_heads(data, size, width))
    first_runs = _NO_SLOTS if runs is None else runs.heads.searchsorted(begins)
    if runs is None or runs.heads.take(first_runs, mode="clip").tolist() != begins:
        raise _damaged_levels(chunk, "a run goes beyond its page")
    heads, headers, payloads = runs.heads, runs.headers, runs.payloads
    is_literal = headers & 1
    lengths = headers >> 1 << 3 * is_literal
    ends = lengths.cumsum()
    before = 0
    for count, end_run in zip(counts, [*first_runs[1:].tolist(), len(heads)], strict=True):
        run = end_run - 1
        surplus = int(ends[run]) - before - count
        before += count + surplus
        if surplus < 0:
            raise _damaged_levels(chunk, "a page has fewer than slots")
        # The last group of 8 is padded. A whole run too many is the beginning of the values: no checksum covers the
        # header of a page, which says where they begin.
        if surplus:
            while not lengths[run]:
                run -= 1
            if surplus >= lengths[run]:
                raise _damaged_levels(chunk, "a page has more than slots")
            lengths[run] -= surplus
    places = lengths.cumsum() - lengths
    places += slots[0]

    levels = data[payloads]
    # By places, not by mask: a mask with no pattern to it is slow.
    picked = is_literal.nonzero()[0]
    found, found_levels = _unpack_groups(
        data, payloads=payloads[picked], slots=places[picked], lengths=lengths[picked], width=width, usual=usual
    )
    picked = ((is_literal == 0) & (levels != usual)).nonzero()[0]
    if len(picked):
        lengths = lengths[picked]
        found = np.concatenate([found, places[picked].repeat(lengths) + _counted(lengths)])
        order = found.argsort(kind="stable")
        found = found[order]
        found_levels = np.concatenate([found_levels, levels[picked].repeat(lengths)])[order]
    if len(found_levels) and int(found_levels.max()) > usual:
        raise _damaged_levels(chunk, f"level {int(found_levels.max())} where {usual} is the highest")
    return found, found_levels


def _damaged_levels(chunk: ColumnChunk, problem: str) -> DataError:
    return chunk.error(f"has damaged levels: {problem}")


def _unpack_groups(
    data: ByteArray, *, payloads: IntArray, slots: IntArray, lengths: IntArray, width: int, usual: int
) -> tuple[IntArray, ByteArray]:
    """Slots and levels of what is unusual in literal runs: groups of 8 levels of ``width`` bits."""
    groups = (lengths + 7) >> 3
    if len(groups) and int(groups.max()) > 1:
        nth = _counted(groups)
        payloads = payloads.repeat(groups) + nth * width
        nth <<= 3
        slots = slots.repeat(groups) + nth
        lengths = lengths.repeat(groups) - nth
    if width == 1:
        levels = np.unpackbits(data[payloads], bitorder="little")
    else:
        bits = np.unpackbits(data[payloads[:, None] + np.arange(width)], axis=1, bitorder="little")
        levels = np.packbits(bits.reshape(-1, width), axis=1, bitorder="little")[:, 0]
    places = np.flatnonzero(levels != usual)
    group = places >> 3
    place = places & 7
    real = place < lengths[group]
    return (slots[group] + place)[real], levels[places][real]


def _counted(lengths: IntArray) -> IntArray:
    """0, 1, ..., length - 1 for every length, in a row."""
    ends = lengths.cumsum()
    numbers: IntArray = np.arange(int(ends[-1]) if len(ends) else 0)
    numbers -= (ends - lengths).repeat(lengths)
    return numbers


@dataclass(frozen=True, slots=True)
class _Runs:
    """The places of runs' headers, the headers, and the places of what follows them; all of shape ``(runs,)``."""

    heads: IntArray
    headers: IntArray
    payloads: IntArray


def _chained(data: ByteArray, size: int, width: int, heads: IntArray) -> _Runs | None:
    """The runs at ``heads``, if each ends where the next begins, from 0 to ``size``; else they are not the runs."""
    headers, payloads = _varints(data, heads)
    payloads += heads
    is_literal = headers & 1
    ends = payloads + is_literal * ((headers >> 1) * width - 1) + 1
    if heads[0] or ends[-1] != size or not (ends[:-1] == heads[1:]).all():
        return None
    return _Runs(heads, headers, payloads)


def _likely_heads(data: ByteArray, size: int, begins: Sequence[int], width: int, usual: int) -> IntArray:
    """Where runs begin if writers alternate between runs of the usual level and literals, as they nearly always do.

    A guess, to be verified: whatever byte of the usual level stands before one that may be a literal's header is taken
    for the end of a run.
    """
    is_head = np.zeros(size + 256 * width, bool)
    literal = data[1:size] & 1
    literal &= data[: size - 1] == usual
    literal &= data[1:size] > 1
    is_head[1:size] = literal
    is_head[begins] = True
    heads = is_head[:size].nonzero()[0]
    first = data[heads]
    after = heads + first.astype(np.int64) // 2 * width
    after += 1
    is_head[after[first & 1 == 1]] = True
    return is_head[:size].nonzero()[0]


def _run_heads(data: ByteArray, size: int, width: int) -> IntArray:
    """The places of all runs' headers in ``data[:size]``, whatever the runs are."""
    position = 0
    pieces = [_NO_SLOTS]
    while position < size:
        window = min(WINDOW, size - position)
        jumps = _jumps(data[position : position + window + MAX_VARINT], window, width)
        tables = [np.minimum(jumps, window)]
        for _ in range(DOUBLINGS):
            tables.append(tables[-1].take(tables[-1]))
        far = tables.pop().data
        place = 0
        steps = []
        while place < window:
            steps.append(place)
            place = far[place]
        heads = np.array(steps)
        is_head = np.zeros(window + 1, bool)
        is_head[heads] = True
        for table in reversed(tables):
            heads = np.concatenate([heads, table[heads]])
            is_head[heads] = True
        heads = is_head[:window].nonzero()[0]
        pieces.append(heads + position)
        position += int(jumps[heads[-1]])
    return np.concatenate(pieces)


def _jumps(data: ByteArray, window: int, width: int) -> IntArray:
    """For every byte, were it a run's header, the place of the next one: shape ``(window + 1,)``, the last unused."""
    head = data[:window]
    goes_on = data > 127
    header_and_level = np.full(window, 2, np.uint8)
    more = goes_on[:window]
    for place in range(1, MAX_VARINT):
        header_and_level += more
        more = more & goes_on[place : place + window]
    literal = head & 1
    groups = ((head & 127) >> 1).astype(np.uint16)
    groups *= width
    groups -= 1  # in 16 bits: what wraps around here does so again in the sum
    groups *= literal
    groups += header_and_level
    jumps = np.arange(window + 1)
    jumps[:-1] += groups
    long = (head & 0x81 == 0x81).nonzero()[0]
    if len(long):
        headers, sizes = _varints(data, long)
        jumps[long] = long + sizes + (headers >> 1) * width
    return jumps


def _varints(data: ByteArray, places: IntArray) -> tuple[IntArray, IntArray]:
    """The varints at ``places``, and how many bytes they take: `MAX_VARINT` at most, the rest is cut off."""
    byte = data[places]
    values = (byte & 127).astype(np.int64)
    sizes = np.ones(len(places), np.int64)
    more = (byte > 127).nonzero()[0]
    for place in range(1, MAX_VARINT):
        if not len(more):
            break
        byte = data[places[more] + place]
        values[more] |= (byte & 127).astype(np.int64) << 7 * place
        sizes[more] += 1
        more = more[byte > 127]
    return values, sizes


# ---------------------------------------------------------------------------------------------------------- values


class _Joined:
    """Bytes put one after another into memory that was taken beforehand."""

    def __init__(self, capacity: int) -> None:
        self.memory: ByteArray = pooled(capacity, np.uint8).view(np.uint8)
        self.size = 0

    def append(self, part: bytes | memoryview) -> None:
        end = self.size + len(part)
        assert end <= len(self.memory)
        self.memory[self.size : end] = np.frombuffer(part, np.uint8)
        self.size = end

    def joined(self) -> ByteArray:
        self.memory.flags.writeable = False
        return self.memory[: self.size]


class PlainValues:
    """Plain values: the tokens as they are, joined.

    One page could be a view, but of memory that its neighbours share and that is counted as free after decoding.
    """

    def __init__(self, chunk: ColumnChunk, wanted: Wanted) -> None:
        self.chunk = chunk
        self.wanted = wanted
        capacity = min(chunk.slots, chunk.tokens) if chunk.tokens >= 0 else chunk.slots
        self.memory: TokenArray = pooled(capacity, wanted.dtype)
        self.count = 0

    def append(self, page: Page, count: int, encoded: memoryview) -> None:
        """Take a page's ``count`` values."""
        values = np.frombuffer(_plain_bytes(page, count, encoded, self.chunk), self.chunk.layout.dtype)
        if self.count + count > len(self.memory):
            raise page.error(f"brings the tokens to more than the {len(self.memory):,} of the footer", self.chunk)
        target = self.memory[self.count : self.count + count]
        self.count += count
        self.wanted.check(values)
        np.copyto(target, values, casting="unsafe")

    def tokens(self) -> TokenArray:
        """All values."""
        tokens = self.memory[: self.count]
        tokens.flags.writeable = False
        return tokens


class _Scratch:
    """Memory for indices, kept from chunk to chunk: fresh pages would cost more than what is done there.

    There is as much of it as there were ever decoders at work at once.
    """

    def __init__(self) -> None:
        self._free: list[npt.NDArray[np.uint16]] = []  # append and pop are atomic

    def take(self, count: int) -> npt.NDArray[np.uint16]:
        """Memory for so many indices or more."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(0, np.uint16)
        return memory if len(memory) >= count else np.empty(count, np.uint16)

    def give(self, memory: npt.NDArray[np.uint16]) -> None:
        """Keep memory for the next one, unless it is too large."""
        if memory.nbytes <= SCRATCH_BYTES:
            self._free.append(memory)


_scratch = _Scratch()


def kept_bytes(most_slots: int) -> int:
    """The most that a decoder keeps between chunks, where no chunk has more slots than these."""
    return min(2 * most_slots, SCRATCH_BYTES)


class EncodedValues:
    """Values of any other encoding.

    Indices of 8 to 16 bits are gathered from the dictionary. Split bytes are put together here where ids of two bytes
    are wanted: the other bytes of each are zeros. All else is decoded by pyarrow, as the pages of a flat, required
    column of a file in memory. Which way it is is told by each page.
    """

    def __init__(
        self, raw: memoryview, dictionary: Page | None, pages: list[Page], chunk: ColumnChunk, wanted: Wanted
    ) -> None:
        self.chunk = chunk
        self.wanted = wanted
        self.entries: TokenArray | None = None
        self.wanted_entries: TokenArray | None = None
        self.data_offset = 0
        self.parts: list[tuple[str, int]] = []  # (how its values are to be had, how many they are) of each page
        self.bodies_bytes = sum(page.unpacked_bytes for page in pages)
        self.pages = len(pages)
        self.indices = _scratch.take(chunk.slots)
        self.split: TokenArray = self.indices[:0]
        self.file = _Joined(0)
        if dictionary is not None:
            stored = _stored(raw, dictionary, chunk)
            entries = _unpack(stored, dictionary.unpacked_bytes, dictionary, chunk) if dictionary.packed else stored
            entries = _plain_bytes(dictionary, dictionary.slots, entries, chunk)
            self.entries = np.frombuffer(entries, chunk.layout.dtype)
            wanted.check(self.entries)
            self.wanted_entries = self.entries.astype(wanted.dtype, copy=False)

    def append(self, page: Page, count: int, encoded: memoryview) -> None:
        """Take a page's ``count`` values."""
        if not count:
            return
        way = "hosted"
        if page.encoding in DICTIONARY:
            if self.entries is None:
                raise page.error("has indices, but the column chunk has no dictionary", self.chunk)
            first = self._count("gathered")
            indices = self.indices[first : first + count]
            if unpack_indices(encoded, indices):
                way = "gathered"
                if int(indices.max()) >= len(self.entries):
                    raise page.error(
                        f"has index {int(indices.max())} into a dictionary of {len(self.entries):,}", self.chunk
                    )
        elif page.encoding == BYTE_STREAM_SPLIT and self.wanted.dtype == np.uint16:
            way = "split"
            first = self._count("split")
            if not len(self.split):
                self.split = pooled(self.chunk.slots, self.wanted.dtype)
            self._join_bytes(page, encoded, self.split[first : first + count])
        elif page.encoding == DELTA_BINARY_PACKED:
            _check_delta(page, encoded, self.chunk)
        if way == "hosted":
            self._host(page, count, encoded)
        self.parts.append((way, count))

    def tokens(self) -> TokenArray:
        """All values."""
        sources = {"gathered": self._gathered, "split": self._joined_bytes, "hosted": self._hosted}
        ways = dict.fromkeys(way for way, _ in self.parts)
        values = {way: sources[way]() for way in ways}
        if len(values) == 1:
            return next(iter(values.values()))
        places = dict.fromkeys(ways, 0)
        pieces: list[TokenArray] = [np.empty(0, self.wanted.dtype)]
        for way, count in self.parts:
            pieces.append(values[way][places[way] : places[way] + count])
            places[way] += count
        return np.concatenate(pieces)

    def _join_bytes(self, page: Page, encoded: memoryview, target: TokenArray) -> None:
        """Two-byte values from a page of split ones, whose other bytes must be zeros."""
        itemsize = self.chunk.layout.dtype.itemsize
        plain = _plain_bytes(page, len(target), encoded, self.chunk)
        streams = np.frombuffer(plain, np.uint8).reshape(itemsize, len(target))
        if int(streams[2:].max()):
            raise OutOfRange
        np.multiply(streams[1], np.uint16(256), out=target, dtype=np.uint16)
        np.add(target, streams[0], out=target)
        self.wanted.check(target)

    def _joined_bytes(self) -> TokenArray:
        tokens = self.split[: self._count("split")]
        tokens.flags.writeable = False
        return tokens

    def _host(self, page: Page, count: int, encoded: memoryview) -> None:
        if not self.file.size:
            entries_bytes = 0 if self.entries is None else self.entries.nbytes
            headers_bytes = (self.pages + 1) * rehost.PAGE_HEADER_BYTES
            self.file = _Joined(self.bodies_bytes + entries_bytes + headers_bytes + rehost.FOOTER_BYTES)
            self.file.append(rehost.MAGIC)
            if self.entries is not None:
                size = self.entries.nbytes
                self.file.append(rehost.page_header(DICTIONARY_PAGE, len(self.entries), PLAIN, size))
                self.file.append(self.entries.data.cast("B"))
            self.data_offset = self.file.size - len(rehost.MAGIC)
        self.file.append(rehost.page_header(DATA_PAGE, count, page.encoding, len(encoded)))
        self.file.append(encoded)

    def _count(self, way: str) -> int:
        return sum(count for known, count in self.parts if known == way)

    def _gathered(self) -> TokenArray:
        assert self.wanted_entries is not None
        count = self._count("gathered")
        taken = pc.take(as_arrow(self.wanted_entries), as_arrow(self.indices[:count]), boundscheck=False)
        _scratch.give(self.indices)
        return np.frombuffer(taken.buffers()[1], self.wanted.dtype, count)

    def _hosted(self) -> TokenArray:
        dtype = self.chunk.layout.dtype
        count = self._count("hosted")
        self.file.append(
            rehost.file_footer(
                schema=rehost.FLAT_SCHEMA[self.chunk.layout.physical_type],
                leaf=rehost.FLAT_LEAF,
                physical_type=self.chunk.layout.physical_type,
                codec=0,
                rows=count,
                slots=count,
                pages_bytes=self.file.size - len(rehost.MAGIC),
                data_offset=self.data_offset,
                dictionary_offset=-1 if self.entries is None else 0,
            )
        )
        try:
            with pq.ParquetFile(pa.BufferReader(self.file.joined()), pre_buffer=False) as file:
                column = file.read(use_threads=False).column(0)
        except (pa.ArrowException, OSError) as error:
            raise self.chunk.error(f"has values that cannot be decoded, the file is damaged ({error})") from error
        if len(column) != count:
            raise self.chunk.error(f"has {len(column):,} values where its levels say {count:,}: the file is damaged")
        tokens: TokenArray = (column.chunk(0) if column.num_chunks == 1 else column).to_numpy().view(dtype)
        self.wanted.check(tokens)
        return narrowed(tokens, self.wanted.dtype)


def as_arrow(numbers: TokenArray) -> pa.Array:
    """An Arrow array of the same memory. Unlike ``pa.array`` it does not import pandas to see whether this is its."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def unpack_indices(encoded: memoryview, indices: npt.NDArray[np.uint16]) -> bool:
    """Fill ``indices`` from a page's runs of 8 to 16 bits an index; False where they are of another kind.

    All but the smallest dictionaries make such pages. Tokens hardly repeat, so nearly all indices are in literal runs,
    which writers make of one length, mostly 504: the likes that follow each other are unpacked together. A page of many
    other runs is of another kind; so is a damaged one, which pyarrow is to judge.
    """
    width = encoded[0] if len(encoded) else 0
    if not 8 <= width <= 16:
        return False
    data = np.frombuffer(encoded, np.uint8)
    place, filled = 1, 0  # bytes of the page, indices
    for _ in range(MAX_INDEX_RUNS):
        try:
            header, payload = thrift.read_varint(encoded, place)
        except thrift.ThriftError:
            return False
        left = len(indices) - filled
        if header < 2:
            return False
        if header & 1:
            groups = header >> 1
            stride = payload - place + width * groups
            # Only headers of one byte are looked for, at the places where they would be.
            like = data[place::stride] == (header if header < 128 else -1)
            runs = min(len(like) if like.all() else max(1, int(like.argmin())), left // (8 * groups))
            if not runs:  # the last one, of which a part is padding
                groups = -(-left // 8)
                if payload + width * groups > len(data):
                    return False
                last = np.empty(8 * groups, np.uint16)
                _unpack_literals(data, payload, stride, width, last.reshape(1, groups, 8))
                indices[filled:] = last[:left]
                return True
            end = place + runs * stride
            if end > len(data):
                return False
            target = indices[filled : filled + 8 * runs * groups]
            _unpack_literals(data, payload, stride, width, target.reshape(runs, groups, 8))
            place, filled = end, filled + len(target)
        else:
            count, end = min(header >> 1, left), payload + (width + 7) // 8
            if end > len(data):
                return False
            indices[filled : filled + count] = int.from_bytes(encoded[payload:end], "little")
            place, filled = end, filled + count
        if filled == len(indices):
            return True
    return False


def _unpack_literals(data: ByteArray, place: int, stride: int, width: int, target: npt.NDArray[np.uint16]) -> None:
    """Unpack groups of 8 indices of ``width`` bits each, 8 to 16, into ``target``, shape ``(runs, groups, 8)``.

    A group is ``width`` bytes: its first eight hold its first four indices, its last eight the others. Four indices are
    spread out by two shifts, as many at once as there are groups:

        dddccc bbbaaa        of 3 bits in 6, instead of 16
        ···dddccc···bbbaaa   the upper two are moved up
        ···ddd···ccc···bbb···aaa

    Args:
        data: the page's values.
        place: of the first run's first group.
        stride: bytes from one run to the next.
    """
    runs, groups, _ = target.shape
    if width == 16:
        packed = np.ndarray((runs, 16 * groups), np.uint8, data, place, (stride, 1))
        target.reshape(runs, -1).view(np.uint8)[:] = packed
        return
    spread = target.reshape(runs, -1).view("<u8").reshape(runs, groups, 2)
    spare = 16 - width
    pair = (1 << 2 * width) - 1
    one = ((1 << width) - 1) * 0x1_0000_0001
    for half, (first, surplus) in enumerate(((0, 0), (width - 8, 64 - 4 * width))):
        four = np.ndarray((runs, groups), "<u8", data, place + first, (stride, width)) >> np.uint64(surplus)
        upper = four << np.uint64(2 * spare)
        upper &= np.uint64(pair << 32)
        four &= np.uint64(pair)
        four |= upper
        np.left_shift(four, np.uint64(spare), out=upper)
        upper &= np.uint64(one << 16)
        four &= np.uint64(one)
        np.bitwise_or(four, upper, out=spread[:, :, half])


def _plain_bytes(page: Page, count: int, encoded: memoryview, chunk: ColumnChunk) -> memoryview:
    """The bytes of plain values. Any that come after them are padding."""
    size = count * chunk.layout.dtype.itemsize
    if len(encoded) < size:
        raise page.error(f"has {len(encoded):,} bytes of values where {count:,} values take {size:,}", chunk)
    return encoded[:size]


def _check_delta(page: Page, encoded: memoryview, chunk: ColumnChunk) -> None:
    """Refuse blocks of more miniblocks than the page can hold: pyarrow allocates a byte for each, unseen."""
    try:
        _, position = thrift.read_varint(encoded, 0)
        miniblocks, _ = thrift.read_varint(encoded, position)
    except thrift.ThriftError as error:
        raise page.error(f"has damaged values ({error})", chunk) from error
    if miniblocks > max(len(encoded), 1024):
        raise page.error(f"has blocks of {miniblocks:,} miniblocks in {len(encoded):,} bytes", chunk)
