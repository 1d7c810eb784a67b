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

So: *plan* reads the headers, and *open* verifies, decompresses and cuts each body in three. `levels` lists the slots
with repetition 0, the beginnings, and those with a definition below the highest, the holes. In `values`, those of all
pages then are either plain, and joined as they are, or indices, and gathered from the dictionary, or go to
pyarrow as the pages of a flat, required column, which knows every other encoding.

    beginnings 0 3 4 5,  holes 3 4  ->  offsets 0 3 3 3 4,  tokens 5 6 7 8

Nothing read here is trusted. Sizes and counts are checked against the chunk's before anything of that size is
allocated, and damage is a `DataError`. What is not damaged but unknown is `NotSupported`, raised only after all headers
were found sound: pyarrow's own reader may then be asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...blocks import IntArray
from ...errors import DataError
from ...turns import aside
from ..base import ColumnChunk, Numbers, larger, smaller
from . import thrift

try:
    from isal.isal_zlib import crc32  # ten times as fast
except ImportError:
    from zlib import crc32


__all__ = [
    "DATA_PAGE_V2",
    "DICTIONARY",
    "ENCODING_NAMES",
    "PLAIN",
    "SLOW_CODECS",
    "Body",
    "NotSupported",
    "Page",
    "crc32",
    "open_page",
    "plan_pages",
    "read_page",
    "stored_body",
    "unpack_body",
    "unpacked_bound",
    "usual_pages",
]

# parquet.thrift: page types, encodings.
DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 2, 3, 5, 8, 9
DICTIONARY = (PLAIN_DICTIONARY, RLE_DICTIONARY)
ENCODING_NAMES = {
    PLAIN: "plain",
    PLAIN_DICTIONARY: "dictionary",
    RLE_DICTIONARY: "dictionary",
    DELTA_BINARY_PACKED: "delta",
    BYTE_STREAM_SPLIT: "byte stream split",
}
ENCODINGS = tuple(ENCODING_NAMES)

_ROUNDS = 16  # pages of a chunk: those of small row groups are few
_MANY = 16  # chunks from which on headers are read faster all at once
_HEADER_BYTES = 256  # that are looked at: a header is no longer, or not worth it

# Names as pyarrow's codecs have them; "LZ4" is what the format calls LZ4_RAW. LZO and Hadoop's LZ4 are not here.
CODECS = {"UNCOMPRESSED": "", "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}

# They take longer than it takes to wake another thread up: worth more threads than one.
SLOW_CODECS = frozenset({"GZIP", "BROTLI", "ZSTD"})


class NotSupported(Exception):
    """Pages that are sound as far as they are understood, and not understood far enough. Says what is unknown."""


class Page(NamedTuple):
    """What a page's header says. A tuple, since there are thousands of them where row groups are small.

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


class Body(NamedTuple):
    """A data page's body, decompressed and cut in three."""

    repetition: memoryview
    definition: memoryview
    values: memoryview


# ------------------------------------------------------------------------------------------------------------ plan


def unpacked_bound(*, chunk_bytes: Numbers, slots: Numbers, itemsize: Numbers) -> Numbers:
    """The bytes that a chunk's pages may decompress to, all together; more is taken for damage.

    A slot takes an item or an index of at most 4 bytes, and well under 2 bytes of levels: what they leave is enough
    for the dictionary of a vocabulary. In a small row group the dictionary, made for all of them perhaps, may be
    larger than the column; writers keep dictionaries to 1 MiB, and no codec makes one 4 times smaller.
    """
    return (larger(itemsize, 4) + 2) * slots + smaller(4 * chunk_bytes, 2 << 20)


def plan_pages(
    raw: memoryview, chunk: ColumnChunk, known: Mapping[int, Page] | None = None
) -> tuple[Page | None, list[Page]]:
    """The dictionary page, if there is one, and the data pages that hold slots, from their headers alone.

    All headers are checked before anything that is merely unknown raises `NotSupported`.

    Args:
        raw: the chunk's bytes.
        chunk: its entry in the index.
        known: pages that `usual_pages` has found, by the positions of their headers.
    """
    unknown = ""
    if chunk.codec not in CODECS:
        unknown = f"compression {chunk.codec}"
    elif chunk.layout.max_definition_level > 255:
        unknown = f"definition levels up to {chunk.layout.max_definition_level}"
    position = _first_page(chunk)
    allowed = int(unpacked_bound(chunk_bytes=chunk.length, slots=chunk.slots, itemsize=chunk.layout.dtype.itemsize))
    booleans = chunk.layout.physical_type == "BOOLEAN"  # the only values that are run-length encoded
    dictionary: Page | None = None
    pages: list[Page] = []
    slots = number = 0
    while slots < chunk.slots:
        page = known.get(position) if known else None
        if page is None:
            page = read_page(raw, position, number, chunk)
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
        if page.unknown and not unknown and not (booleans and page.unknown == f"encoding {RLE}"):
            unknown = f"page {number} has {page.unknown}"
        position = page.end
        number += 1
    if unknown:
        raise NotSupported(unknown)
    return dictionary, pages


def read_page(raw: memoryview, position: int, number: int, chunk: ColumnChunk) -> Page:
    """The page whose header begins at a position.

    Raises:
        DataError: its header is damaged.
    """
    try:
        header, start = thrift.read_struct(raw, position)
        return _page(header, number, start, compressed=chunk.codec != "UNCOMPRESSED")
    except thrift.ThriftError as error:
        raise chunk.error(
            f"page {number} has a damaged header at byte {position} of the column chunk ({error})"
        ) from error


def _first_page(chunk: ColumnChunk) -> int:
    has_dictionary = 0 <= chunk.dictionary_offset < chunk.data_offset
    return chunk.dictionary_offset if has_dictionary else chunk.data_offset


def usual_pages(raws: Sequence[memoryview], chunks: Sequence[ColumnChunk]) -> list[dict[int, Page]]:
    """The first pages of column chunks by the positions of their headers, as far as these are such as most writers
    make, and are read faster for many chunks at once. `plan_pages` checks them, and reads what is missing.

    All first pages' are read, then those of the pages behind them, as long as many chunks have more slots.
    """
    found: list[dict[int, Page]] = [{} for _ in chunks]
    slots = [0] * len(chunks)
    places = {number: _first_page(chunk) for number, chunk in enumerate(chunks)}
    compressed = chunks[0].codec != "UNCOMPRESSED"
    for number in range(_ROUNDS):
        if len(places) < _MANY:
            break
        heads = {at: raws[at][place : place + _HEADER_BYTES] for at, place in places.items()}
        after = {}
        for at, page in _alike_pages(heads, places, number, compressed).items():
            found[at][places[at]] = page
            slots[at] += page.slots if page.kind != DICTIONARY_PAGE else 0
            if slots[at] < chunks[at].slots and page.end < len(raws[at]):
                after[at] = page.end
        places = after
    return found


def _alike_pages(
    heads: Mapping[int, memoryview], places: Mapping[int, int], number: int, compressed: bool
) -> dict[int, Page]:
    """The pages whose headers these bytes begin with, and which lie there in their chunks; without those of which there
    are few alike.
    """
    found: dict[int, Page] = {}
    left = list(heads)
    while len(left) >= _MANY:
        data = np.frombuffer(b"".join([heads[at] for at in left]), np.uint8)
        ends = np.cumsum([len(heads[at]) for at in left])
        begins = np.append(0, ends[:-1])
        try:
            read = thrift.read_alike(data, begins, ends)
        except thrift.ThriftError:
            return found
        starts = np.array([places[at] for at in left]) + read.ends - begins
        pages = _usual_pages(read, number, starts, compressed)
        found |= {at: page for at, page in zip(left, pages, strict=True) if page is not None}
        left = [at for at, same in zip(left, read.alike.tolist(), strict=True) if not same]
        if len(pages) - len(left) < _MANY:
            break
    return found


def _usual_pages(read: thrift.Alike, number: int, starts: IntArray, compressed: bool) -> list[Page | None]:
    """Pages by headers that are alike; None where `_page` may find something unknown or wrong."""
    fields, none = read.fields, np.full(len(starts), -1)

    def column(of: thrift.Columns, field: int) -> IntArray:
        value = of.get(field)
        return value if isinstance(value, np.ndarray) else none

    kind, page = _kind_of(fields)
    stored, slots = column(fields, 3), column(page, 1)
    repetition = definition = 0 * none
    encoding, packed = column(page, 2), compressed
    usual = read.alike & (kind >= 0) & (column(fields, 1) == kind) & (not isinstance(fields.get(4), bool))
    if kind == DATA_PAGE:
        usual &= (column(page, 3) == RLE) & (column(page, 4) == RLE)
    elif kind == DATA_PAGE_V2:
        encoding, definition, repetition = (column(page, field) for field in (4, 5, 6))
        packed = compressed and page.get(7) is not False
    unpacked = column(fields, 2) if packed else stored
    for each in (stored, unpacked, slots, repetition, definition):
        usual &= (each >= 0) & (each < 1 << 31)
    usual &= repetition + definition <= stored
    usual &= np.isin(encoding, ENCODINGS if kind != DICTIONARY_PAGE else (PLAIN, PLAIN_DICTIONARY))
    has_checksum = isinstance(fields.get(4), np.ndarray)
    checksums = (column(fields, 4) & 0xFFFFFFFF).tolist() if has_checksum else repeat(None)
    ends, level_bytes = (starts + stored).tolist(), zip(repetition.tolist(), definition.tolist(), strict=True)
    # The fields of a page, in their order.
    pages = zip(
        repeat(number),
        repeat(kind),
        slots.tolist(),
        encoding.tolist(),
        starts.tolist(),
        ends,
        repeat(packed),
        unpacked.tolist(),
        checksums,
        level_bytes,
        repeat(""),
        strict=False,
    )
    return [Page(*page) if sound else None for sound, page in zip(usual.tolist(), pages, strict=False)]


def _kind_of(fields: thrift.Columns) -> tuple[int, thrift.Columns]:
    """The type of page that a header's fields are of, and the fields of that; (-1, {}) where it is another one."""
    for field, kind in ((5, DATA_PAGE), (7, DICTIONARY_PAGE), (8, DATA_PAGE_V2)):
        page = fields.get(field)
        if isinstance(page, dict):
            return kind, page
    return -1, {}


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


def open_page(raw: memoryview, page: Page, chunk: ColumnChunk, *, values: bool = True) -> Body:
    """A data page's levels and values; these are nothing where they are not wanted."""
    stored = stored_body(raw, page, chunk)
    if page.kind == DATA_PAGE_V2:
        first, second = page.level_bytes
        levels = first + second
        encoded = stored[levels:] if values else stored[:0]
        if page.packed and values:
            encoded = unpack_body(encoded, page.unpacked_bytes - levels, page, chunk)
        return Body(repetition=stored[:first], definition=stored[first:levels], values=encoded)
    body = unpack_body(stored, page.unpacked_bytes, page, chunk) if page.packed else stored
    repetition, body = _length_prefixed(body, page, chunk)
    definition, body = _length_prefixed(body, page, chunk)
    return Body(repetition=repetition, definition=definition, values=body)


def stored_body(raw: memoryview, page: Page, chunk: ColumnChunk) -> memoryview:
    """A page's body as it is stored, its checksum verified where the writer gave one."""
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


def unpack_body(packed: memoryview, size: int, page: Page, chunk: ColumnChunk) -> memoryview:
    """``packed`` decompressed to exactly ``size`` bytes."""
    if size <= 0:
        if size < 0:
            raise page.error("has levels longer than the page", chunk)
        return packed[:0]
    codec = CODECS[chunk.codec]
    try:
        with aside() if chunk.codec in SLOW_CODECS else contextlib.nullcontext():
            if codec in ("gzip", "brotli"):
                with pa.CompressedInputStream(pa.BufferReader(packed), codec) as stream:
                    unpacked = stream.read_buffer(size + 1)
            else:
                unpacked = pa.Codec(codec).decompress(packed, size)
    except MemoryError:  # pyarrow has an ArrowException for it
        raise
    except (pa.ArrowException, OSError) as error:
        raise page.error(f"cannot be decompressed, it is damaged ({error})", chunk) from error
    body = memoryview(unpacked).cast("B")
    # Codec.decompress does not tell how many bytes it wrote: where they are too few, the rest is whatever the memory
    # held before. zstd itself refuses that. Snappy begins with the length. LZ4 has none, but ends with literals,
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
