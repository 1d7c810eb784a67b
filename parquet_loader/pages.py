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
pages then are either plain, which is a view or one copy, or go to pyarrow as the pages of a flat, required column.

    beginnings 0 3 4 5,  holes 3 4  ->  offsets 0 3 3 3 4,  tokens 5 6 7 8

**Levels** are written as runs, each a varint header and a payload. An even header 2n is n times the level in the next
byte; an odd one 2g+1 is g groups of 8 levels, packed from the low bit up. The repetition levels, of one bit each, of
1000 slots with documents that begin at 0, 3 and 500 are

    03 f6        d8 07 01     03 fe        d8 07 01
    slots 0-7    492 ones     500-507      492 ones

Only runs that may hold something unusual are expanded, so the cost goes with documents, not with tokens. Where a run
begins is known only from the one before it. To follow that chain without a step of Python for each run, every byte is
taken for a header, all at once, which gives a table of jumps; applied to itself it gives jumps of 2, 4, 8, 16 runs.
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

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from . import framing, thrift
from .chunk import ColumnChunk, IntArray, TokenArray, TokenBlock
from .errors import DataError

__all__ = ["NotSupported", "decode_pages", "null_element", "unpacked_bound"]

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


class NotSupported(Exception):
    """Pages that are sound as far as they are understood, and not understood far enough. Says what is unknown."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of one data page: ``count`` of them, encoded."""

    page: Page
    count: int
    encoded: memoryview


def decode_pages(raw: memoryview, chunk: ColumnChunk) -> TokenBlock:
    """Decode one column chunk. The block's tokens are a view of ``raw`` where that needs no copy.

    Raises:
        DataError: the bytes are damaged, or hold a null inside a document.
        NotSupported: an encoding or structure that pyarrow's own reader may know.
    """
    dictionary, pages = plan_pages(raw, chunk)
    bodies = [open_page(raw, page, chunk) for page in pages]
    first_slots = np.cumsum([0] + [page.slots for page in pages])
    beginnings, holes = _documents(bodies, first_slots, chunk)

    edges = np.append(beginnings, chunk.slots)
    offsets = edges - np.searchsorted(holes, edges) if len(holes) else edges
    counts = np.diff(first_slots - np.searchsorted(holes, first_slots)).tolist()
    values = [
        Values(page=page, count=count, encoded=body.values)
        for page, body, count in zip(pages, bodies, counts, strict=True)
        if count
    ]
    del bodies
    if all(part.page.encoding == PLAIN for part in values):
        tokens = _plain_tokens(values, chunk)
    else:
        tokens = _hosted_tokens(raw, dictionary, values, chunk)
    return TokenBlock(tokens, offsets)


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
    for a dictionary of a vocabulary, except in small row groups, where a dictionary made for all of them may be larger
    than the column. Compression makes that one 8 times smaller at most.
    """
    return max((max(itemsize, 4) + 2) * slots, 8 * chunk_bytes)


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
    if page.checksum is not None and zlib.crc32(stored) != page.checksum:
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


def _documents(bodies: list[Body], first_slots: IntArray, chunk: ColumnChunk) -> tuple[IntArray, IntArray]:
    """The slots that begin a document, and those that hold no value, which are documents too."""
    layout = chunk.layout
    beginnings, _ = unusual_levels([body.repetition for body in bodies], first_slots, 1, chunk)
    if chunk.slots and not (len(beginnings) and beginnings[0] == 0):
        raise chunk.error("the column chunk begins inside a document: its repetition levels are damaged")
    holes, levels = unusual_levels(
        [body.definition for body in bodies], first_slots, layout.max_definition_level, chunk
    )
    if not len(holes):
        return beginnings, holes
    rows = np.searchsorted(beginnings, holes, side="right") - 1
    positions = holes - beginnings[rows]
    if layout.nullable_element:
        nulls = np.flatnonzero(levels == layout.max_definition_level - 1)
        if len(nulls):
            raise null_element(chunk, int(rows[nulls[0]]), int(positions[nulls[0]]))
    # An empty or null list is a document of its one slot.
    lengths = np.append(beginnings, chunk.slots)[rows + 1] - beginnings[rows]
    wrong = np.flatnonzero((positions != 0) | (lengths != 1))
    if len(wrong):
        raise chunk.error(f"row {int(rows[wrong[0]])} is an empty list with elements: its levels are damaged")
    return beginnings, holes


def unusual_levels(
    sections: list[memoryview], first_slots: IntArray, usual: int, chunk: ColumnChunk
) -> tuple[IntArray, ByteArray]:
    """The slots of a chunk whose level is not ``usual``, the highest there is, in order; and their levels.

    Args:
        sections: each page's levels.
        first_slots: shape ``(pages + 1,)``: page ``p`` has the slots ``first_slots[p]`` to ``first_slots[p + 1]``.
    """
    width = usual.bit_length()
    counts = np.diff(first_slots)
    # A page of nothing but usual levels is one run with any sensible writer: no need to look closer.
    pages = [
        page
        for page, (section, count) in enumerate(zip(sections, counts.tolist(), strict=True))
        if section != thrift.varint(count << 1) + bytes([usual])
    ]
    if not pages:
        return np.empty(0, np.int64), np.empty(0, np.uint8)
    sizes = np.array([len(sections[page]) for page in pages])
    counts, first_slots = counts[pages], first_slots[pages]
    if not sizes.all():
        raise _damaged_levels(chunk, "a page has none")
    ends = np.cumsum(sizes)
    begins = ends - sizes
    # All pages at once. What is read beyond a header at the very end is zeros, and is found out by its end.
    data = np.frombuffer(b"".join([*(sections[page] for page in pages), bytes(MAX_VARINT + 1)]), np.uint8)
    heads, end = _run_heads(data, int(ends[-1]), width)
    headers, header_bytes = _varints(data, heads)

    page_of = np.searchsorted(ends, heads, side="right")
    if end != ends[-1] or not np.isin(begins, heads).all():
        raise _damaged_levels(chunk, "a run goes beyond its page")
    first_run = np.searchsorted(heads, begins)
    literal = (headers & 1).astype(bool)
    lengths = np.where(literal, headers >> 1 << 3, headers >> 1)
    before = np.cumsum(lengths) - lengths
    before -= before[first_run][page_of]
    if (np.maximum.reduceat(before + lengths, first_run) < counts).any():
        raise _damaged_levels(chunk, "a page has fewer levels than slots")
    # The last group of 8 may reach beyond the page's slots.
    lengths = np.clip(counts[page_of] - before, 0, lengths)
    slots = first_slots[page_of] + before
    payloads = heads + header_bytes

    levels = data[payloads]
    picked = ~literal & (levels != usual) & (lengths > 0)
    from_runs = _ranges(slots[picked], lengths[picked])
    run_levels = np.repeat(levels[picked], lengths[picked])
    from_groups, group_levels = _unpack_groups(
        data,
        payloads=payloads[literal],
        slots=slots[literal],
        lengths=lengths[literal],
        width=width,
        usual=usual,
    )
    found, found_levels = from_groups, group_levels
    if len(from_runs):
        found = np.concatenate([from_runs, from_groups])
        order = np.argsort(found, kind="stable")
        found, found_levels = found[order], np.concatenate([run_levels, group_levels])[order]
    if len(found) and int(found_levels.max()) > usual:
        raise _damaged_levels(chunk, f"level {int(found_levels.max())} where {usual} is the highest")
    return found, found_levels


def _damaged_levels(chunk: ColumnChunk, problem: str) -> DataError:
    return chunk.error(f"has damaged levels: {problem}")


def _unpack_groups(
    data: ByteArray, *, payloads: IntArray, slots: IntArray, lengths: IntArray, width: int, usual: int
) -> tuple[IntArray, ByteArray]:
    """Slots and levels of what is unusual in literal runs: groups of 8 levels of ``width`` bits."""
    groups = (lengths + 7) >> 3
    run = np.repeat(np.arange(len(groups)), groups)
    nth = _ranges(np.zeros_like(groups), groups)
    at = payloads[run] + nth * width
    if width == 1:
        levels = np.unpackbits(data[at], bitorder="little")
    else:
        bits = np.unpackbits(data[at[:, None] + np.arange(width)], axis=1, bitorder="little")
        levels = np.packbits(bits.reshape(-1, width), axis=1, bitorder="little")[:, 0]
    places = np.flatnonzero(levels != usual)
    group = places >> 3
    place_in_run = (nth[group] << 3) + (places & 7)
    run = run[group]
    real = place_in_run < lengths[run]
    return (slots[run] + place_in_run)[real], levels[places][real]


def _ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """The numbers ``start, start + 1, ...``, ``length`` of them, of every pair, in a row."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    numbers: IntArray = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return numbers


def _run_heads(data: ByteArray, size: int, width: int) -> tuple[IntArray, int]:
    """The places of all runs' headers in ``data[:size]``, and where the last run ends: beyond ``size`` if damaged."""
    position = 0
    pieces = []
    while position < size:
        window = min(WINDOW, size - position)
        jumps = _jumps(data[position : position + window + MAX_VARINT], window, width)
        tables = [np.minimum(jumps, window)]
        for _ in range(DOUBLINGS):
            tables.append(tables[-1].take(tables[-1]))
        far = tables.pop().data
        place = 0
        heads = []
        while place < window:
            heads.append(place)
            place = far[place]
        piece = np.array(heads)
        for table in reversed(tables):
            piece = np.stack([piece, table[piece]], axis=1).ravel()
        # Jumps from the last runs lead to the window's end, all of them.
        piece = piece[: np.searchsorted(piece, window)]
        pieces.append(position + piece)
        position += int(jumps[piece[-1]])
    return np.concatenate(pieces) if len(pieces) != 1 else pieces[0], position


def _jumps(data: ByteArray, window: int, width: int) -> IntArray:
    """For every byte, were it a run's header, the place of the next one: shape ``(window + 1,)``, the last unused."""
    head = data[:window]
    goes_on = data > 127
    header_bytes = np.ones(window, np.uint8)
    more = goes_on[:window]
    for place in range(1, MAX_VARINT):
        header_bytes += more
        more = more & goes_on[place : place + window]
    literal = head & 1
    groups = (head & 127) >> 1
    jumps = np.arange(window + 1)
    # In 16 bits, where -1 for no groups wraps around and back.
    jumps[:-1] += header_bytes + 1 + literal * (groups.astype(np.uint16) * width - 1)
    long = np.flatnonzero(literal.view(bool) & goes_on[:window])
    headers, _ = _varints(data, long)
    jumps[long] = long + header_bytes[long] + (headers >> 1) * width
    return jumps


def _varints(data: ByteArray, places: IntArray) -> tuple[IntArray, IntArray]:
    """The varints at ``places``, and how many bytes they take: `MAX_VARINT` at most, the rest is cut off."""
    values = np.zeros(len(places), np.int64)
    sizes = np.ones(len(places), np.int64)
    more = np.ones(len(places), bool)
    for place in range(MAX_VARINT):
        byte = data[places + place]
        values |= ((byte & 127) * more).astype(np.int64) << 7 * place
        more &= byte > 127
        if place == MAX_VARINT - 1 or not more.any():
            break
        sizes += more
    return values, sizes


# ---------------------------------------------------------------------------------------------------------- values


def _plain_tokens(values: list[Values], chunk: ColumnChunk) -> TokenArray:
    """Plain values: a view of the one page that has them, or the pages in one new array."""
    dtype = chunk.layout.dtype
    parts = [np.frombuffer(_exactly(part, dtype.itemsize, chunk), np.uint8) for part in values]
    # Headers and levels leave most bodies at odd addresses, where NumPy is slow for ever after: a copy is cheaper.
    if len(parts) == 1 and parts[0].view(dtype).flags.aligned:
        return parts[0].view(dtype)
    tokens = np.concatenate(parts).view(dtype) if parts else np.empty(0, dtype)
    tokens.flags.writeable = False
    return tokens


def _exactly(part: Values, itemsize: int, chunk: ColumnChunk) -> memoryview:
    """The bytes of plain values. Any that come after them are padding."""
    size = part.count * itemsize
    if len(part.encoded) < size:
        raise part.page.error(
            f"has {len(part.encoded):,} bytes of values where {part.count:,} values take {size:,}", chunk
        )
    return part.encoded[:size]


def _hosted_tokens(raw: memoryview, dictionary: Page | None, values: list[Values], chunk: ColumnChunk) -> TokenArray:
    """Values of any encoding, decoded by pyarrow as those of a flat, required column. Uses up the list."""
    tokens = sum(part.count for part in values)
    hosted = pa.BufferReader(_flat_file(raw, dictionary, values, tokens, chunk))
    values.clear()  # so that the pages' memory is free before the tokens take theirs
    try:
        with pq.ParquetFile(hosted, pre_buffer=False) as file:
            column = file.read(use_threads=False).column(0)
    except (pa.ArrowException, OSError) as error:
        raise chunk.error(f"has values that cannot be decoded, the file is damaged ({error})") from error
    if len(column) != tokens:
        raise chunk.error(f"has {len(column):,} values where its levels say {tokens:,}: the file is damaged")
    decoded = column.chunk(0) if column.num_chunks == 1 else column
    tokens_as_stored: TokenArray = decoded.to_numpy()
    return tokens_as_stored.view(chunk.layout.dtype)


def _flat_file(
    raw: memoryview, dictionary: Page | None, values: list[Values], tokens: int, chunk: ColumnChunk
) -> bytes:
    parts: list[bytes | memoryview] = [framing.MAGIC]
    physical_type = chunk.layout.physical_type
    if dictionary is not None:
        stored = _stored(raw, dictionary, chunk)
        entries = _unpack(stored, dictionary.unpacked_bytes, dictionary, chunk) if dictionary.packed else stored
        entries = _exactly(
            Values(page=dictionary, count=dictionary.slots, encoded=entries), chunk.layout.dtype.itemsize, chunk
        )
        parts += [framing.page_header(DICTIONARY_PAGE, dictionary.slots, PLAIN, len(entries)), entries]
    data_offset = sum(map(len, parts)) - len(framing.MAGIC)
    for part in values:
        if part.page.encoding in DICTIONARY and dictionary is None:
            raise part.page.error("has indices, but the column chunk has no dictionary", chunk)
        if part.page.encoding == DELTA_BINARY_PACKED:
            _check_delta(part, chunk)
        parts += [framing.page_header(DATA_PAGE, part.count, part.page.encoding, len(part.encoded)), part.encoded]
    footer = framing.file_footer(
        schema=framing.FLAT_SCHEMA[physical_type],
        leaf=[b"v"],
        physical_type=physical_type,
        codec=0,
        rows=tokens,
        slots=tokens,
        pages_bytes=sum(map(len, parts)) - len(framing.MAGIC),
        data_offset=data_offset,
        dictionary_offset=-1 if dictionary is None else 0,
    )
    return b"".join([*parts, footer])


def _check_delta(part: Values, chunk: ColumnChunk) -> None:
    """Refuse blocks of more miniblocks than the page can hold: pyarrow allocates a byte for each, unseen."""
    try:
        _, position = thrift.read_varint(part.encoded, 0)
        miniblocks, _ = thrift.read_varint(part.encoded, position)
    except thrift.ThriftError as error:
        raise part.page.error(f"has damaged values ({error})", chunk) from error
    if miniblocks > max(len(part.encoded), 1024):
        raise part.page.error(f"has blocks of {miniblocks:,} miniblocks in {len(part.encoded):,} bytes", chunk)
