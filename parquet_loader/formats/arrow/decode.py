"""Record batches (bytes) to `TokenPart`s.

The chunk of a record batch is the stretch of its body from the column's first buffer to its last one. Places tell where
each of them lies in it:

    body    │ other columns │ validity │ offsets │ values │ other columns │
                            └────────── chunk ───────────┘

Values that are not compressed are tokens where they lie: parts are views of them, narrowed to the dtype that is wanted
while they are in the processor's cache. Compressed ones are unpacked at once in small record batches, and as parts come
in large ones. Where documents do not lie one after another, as views of lists need not, they are gathered, some
thousand tokens at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...blocks import IntArray, TokenArray, TokenBlock, TokenPart, pooled
from ...errors import DataError
from ..base import ChunkSize, ColumnChunk, ColumnLayout, Numbers, chosen, larger, smaller
from ..parts import Wanted, null_element, out_of_range, part_of
from .buffers import STREAM_BYTES, Bytes, DamagedBufferError, Lying, opened, window_bytes
from .documents import OFFSET_BYTES, DocumentReader, bits

__all__ = [
    "BUFFERS",
    "PLACES",
    "OpenChunk",
    "decode_cost",
    "decode_together",
    "document_lengths",
    "most_decode_cost",
    "one_part_slots",
    "values_bytes",
]

# The buffers of a chunk: bitmaps of the list and of structs that it lies in, as far as they have nulls, and the list's.
PRESENCE = ("presence_0", "presence_1", "presence_2", "presence_3")
BUFFERS = (*PRESENCE, "offsets", "sizes", "element_presence", "values")
# A chunk's places: how many values there are, and of each buffer (offset from the chunk's start, length); 0 for none.
PLACES = ("elements", *(f"{name}_{what}" for name in BUFFERS for what in ("offset", "length")))

PART_TOKENS = 1 << 20  # tokens of a part, but for the last one, which may have half as many more
# Record batches of no more slots are decoded together. Where the stored type is wanted that is a copy, and still saves
# more than it costs: bands that lie in several of them need not be put together.
TOGETHER_SLOTS = 1 << 19
_BLOCK_TOKENS = 1 << 16  # that are checked and narrowed at once: they stay in the processor's cache
_GATHER_TOKENS = 1 << 14  # that are gathered at once
_OBJECTS_BYTES = 1 << 12  # the Python and Arrow objects around the arrays of a record batch
_USUAL_WINDOW = 8 << 20


def values_bytes(layout: ColumnLayout, elements: int) -> int:
    """The bytes that so many values of a column take; booleans are bits."""
    return (elements + 7) // 8 if layout.values == "bool" else elements * layout.dtype.itemsize


# ── what it holds ────────────────────────────────────────────────────────────────────────────────────────────────


def one_part_slots() -> int:
    """See `Format.one_part_slots`."""
    return PART_TOKENS + PART_TOKENS // 2


def decode_cost(size: ChunkSize, *, codec: str, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """See `Format.decode_cost`."""
    if codec == "UNCOMPRESSED":
        values = _gather_cost(size)
    else:
        values = chosen(size.slots <= one_part_slots(), _unpacked_cost(size), _streamed_cost(size, _USUAL_WINDOW))
    return _documents_cost(size) + values + _part_cost(size, dtype, eos)


def most_decode_cost(size: ChunkSize, *, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """See `Format.most_decode_cost`."""
    many = larger(_unpacked_cost(size), _streamed_cost(size, 1 << 27))
    values = chosen(size.slots <= one_part_slots(), _unpacked_cost(size), many)
    return _documents_cost(size) + values + _part_cost(size, dtype, eos)


def _documents_cost(size: ChunkSize) -> Numbers:
    """Where documents begin and how long they are, some of it twice."""
    return 64 * (size.rows + 1) + _OBJECTS_BYTES


def _part_cost(size: ChunkSize, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """The largest part, and before EOS were put in; the numbers by which they are."""
    tokens = smaller(size.tokens, one_part_slots()) * dtype.itemsize
    return 2 * tokens + size.rows * (dtype.itemsize + 24) + _OBJECTS_BYTES if eos else tokens


def _most_elements(tokens: Numbers) -> Numbers:
    """As many values may be unpacked at once for so many tokens."""
    return tokens + tokens // 4 + 4096


def _unpacked_cost(size: ChunkSize) -> Numbers:
    """All values, unpacked, bits for nulls among them, and what gathering takes."""
    elements = _most_elements(size.tokens)
    return elements * size.itemsize + elements // 8 + _gather_cost(size)


def _streamed_cost(size: ChunkSize, window: int) -> Numbers:
    """A part's values as they are unpacked, and what unpacking them takes."""
    return smaller(size.tokens, one_part_slots()) * size.itemsize + STREAM_BYTES + window


def _gather_cost(size: ChunkSize) -> Numbers:
    return smaller(size.tokens, _GATHER_TOKENS) * (32 + size.itemsize)


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────────


class OpenChunk:
    """A record batch's column, of which it is known where documents lie; see `formats.base.OpenChunk`.

    Args:
        raw: the chunk's bytes, ``chunk.length`` of them.
        chunk: its entry in the index.
        beside: nothing.

    Raises:
        DataError: the buffers are damaged, or are not what the index says.
    """

    def __init__(self, raw: bytes | memoryview, chunk: ColumnChunk, beside: Sequence[bytes | memoryview] = ()) -> None:
        if len(raw) != chunk.length:
            raise chunk.error(f"read {len(raw):,} bytes of a record batch's column of {chunk.length:,}")
        self.chunk = chunk
        self.fallback = ""
        self._raw = memoryview(raw).cast("B")
        self._dtype: np.dtype[Any] = chunk.layout.value_dtype
        self._begins: IntArray | None = None  # of documents among the values, where they are not one after another
        self._first = 0  # of the values that are documents', where they are
        self._place = dict(zip(PLACES, chunk.places, strict=True))
        if not chunk.layout.max_definition_level:
            self.offsets: IntArray = np.zeros(chunk.rows + 1, np.int64)
            return
        try:
            self.offsets = self._documents()
        except DamagedBufferError as problem:
            raise chunk.error(f"{problem}: the file is damaged") from problem
        if int(self.offsets[-1]) != chunk.tokens:
            raise chunk.error(f"holds {int(self.offsets[-1]):,} tokens where the index says {chunk.tokens:,}")

    def _documents(self) -> IntArray:
        """Where documents begin among the tokens, shape ``(rows + 1,)``."""
        rows, kind = self.chunk.rows, self.chunk.layout.kind
        width = OFFSET_BYTES.get(kind, 0)
        is_view = kind in ("list_view", "large_list_view")
        reader = DocumentReader(
            kind,
            self._place["elements"],
            [self._buffer(name, (rows + 7) // 8) for name in PRESENCE if self._place[f"{name}_length"]],
            self._buffer("offsets", (rows + (not is_view)) * width) if width else None,
            self._buffer("sizes", rows * width) if is_view else None,
        )
        begins, lengths = reader.read(rows)
        offsets = np.zeros(rows + 1, np.int64)
        if reader.in_one_piece:
            np.cumsum(lengths, out=offsets[1:])
            self._first = int(begins[0]) if offsets[-1] else 0
            return offsets
        if lengths.sum(dtype=np.float64) > 2 * self.chunk.tokens + 1:
            raise DamagedBufferError("has more tokens in its lists than the index says")
        np.cumsum(lengths, out=offsets[1:])
        full = lengths > 0
        if not full.all():
            begins, lengths = begins[full], lengths[full]
        if (begins[1:] == begins[:-1] + lengths[:-1]).all():
            self._first = int(begins[0]) if len(begins) else 0
        else:
            self._begins = np.zeros(rows, np.int64)
            self._begins[full] = begins
        return offsets

    def _buffer(self, name: str, size: int, *, at_once: bool = True) -> Bytes:
        return opened(self._stored(name), self.chunk.codec, size, at_once=at_once)

    def _stored(self, name: str) -> memoryview:
        begin, length = self._place[f"{name}_offset"], self._place[f"{name}_length"]
        return self._raw[begin : begin + length]

    @property
    def _is_unpacked_at_once(self) -> bool:
        """Whether values are, if they are compressed."""
        is_small = self.chunk.slots <= one_part_slots() or self._dtype.kind == "b"
        return is_small or self._begins is not None or self._has_element_nulls

    @property
    def _has_element_nulls(self) -> bool:
        return self._place["element_presence_length"] > 0

    def cost_bytes(self, *, dtype: np.dtype[np.integer], eos: bool) -> int:
        size = ChunkSize.of_chunk(self.chunk)
        usual = decode_cost(size, codec=self.chunk.codec, dtype=dtype, eos=eos)
        if not self.chunk.layout.max_definition_level or self.chunk.codec == "UNCOMPRESSED":
            return int(usual)
        if self._is_unpacked_at_once:
            values = _unpacked_cost(size)
        else:
            values = _streamed_cost(size, window_bytes(self._stored("values"), self.chunk.codec))
        return int(_documents_cost(size) + values + _part_cost(size, dtype, eos))

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
        assert bound is None or dtype is not None
        wanted = Wanted(dtype=self._dtype if dtype is None else dtype, bound=bound, low=low)
        each = eos_id is not None
        tokens = int(self.offsets[-1])
        values = None
        for begin, end in _in_parts(tokens):
            complete = end == tokens
            row = int(self.offsets.searchsorted(begin)) if begin else 0
            stop = self.chunk.rows if complete else int(self.offsets.searchsorted(end))
            # The EOS of the document before is in the part where the next one begins.
            before = max(row - 1, 0)
            at, length = begin + each * before, end - begin + each * (stop - before - (not complete))
            if length and (at + length <= first or (last is not None and at >= last)):
                continue
            if values is None:
                values = self._values()
            offsets = np.concatenate(([begin] * (begin > 0), self.offsets[row:stop], [end])) - begin
            block = TokenBlock(self._tokens(values, begin, end, wanted), offsets.astype(np.int64, copy=False))
            yield part_of(at, block, eos_id, goes_on=begin > 0, complete=complete)
            del block  # not to be held while the next one is decoded

    def lengths(self) -> IntArray:
        """How many tokens each document has, shape ``(documents,)``."""
        return np.diff(self.offsets)

    def unverified(self) -> Iterator[memoryview]:
        """All bytes: Arrow has no checksums."""
        yield self._raw

    def all_tokens(self, target: TokenArray, wanted: Wanted) -> None:
        """All tokens, into an array of their number."""
        self._move(self._values(), 0, len(target), target, wanted)

    def _values(self) -> _Values:
        """The values, and the bits that tell which are null.

        Raises:
            DataError: there are more than documents account for, or fewer than there should be.
        """
        chunk, elements = self.chunk, self._place["elements"]
        if not chunk.tokens:
            return _Values(Lying(memoryview(b"")), None)
        at_once = self._is_unpacked_at_once
        if chunk.codec != "UNCOMPRESSED" and at_once and elements > _most_elements(chunk.tokens):
            raise chunk.error(
                f"has {elements:,} values, compressed, and {chunk.tokens:,} tokens: to unpack all of them takes more "
                "memory than its tokens account for; write the file anew, without compression or without the values "
                "that are in no document"
            )
        try:
            values = self._buffer("values", values_bytes(chunk.layout, elements), at_once=at_once)
            nulls = self._buffer("element_presence", (elements + 7) // 8) if self._has_element_nulls else None
        except DamagedBufferError as problem:
            raise chunk.error(f"{problem}: the file is damaged") from problem
        return _Values(values, nulls)

    def _tokens(self, values: _Values, begin: int, end: int, wanted: Wanted) -> TokenArray:
        """The tokens from ``begin`` to ``end``."""
        if self._begins is None and wanted.dtype == self._dtype:  # where they lie
            tokens = self._contiguous(values, begin, end)
            self._check(tokens, begin, wanted)
        else:
            tokens = pooled(end - begin, wanted.dtype)
            self._move(values, begin, end, tokens, wanted)
        tokens.flags.writeable = False
        return tokens

    def _move(self, values: _Values, begin: int, end: int, target: TokenArray, wanted: Wanted) -> None:
        """The tokens from ``begin`` to ``end``, into an array of their number."""
        lying = self._contiguous(values, begin, end) if self._begins is None else None
        step = _GATHER_TOKENS if lying is None else _BLOCK_TOKENS
        for low in range(begin, end, step):
            high = min(low + step, end)
            stored = self._gathered(values, low, high) if lying is None else lying[low - begin : high - begin]
            self._check(stored, low, wanted)
            np.copyto(target[low - begin : high - begin], stored, casting="unsafe")

    def _stored_values(self, values: _Values, begin: int, end: int) -> TokenArray:
        """Values from ``begin`` to ``end``, wherever documents are, as they are stored; booleans are made of bits."""
        if self._dtype.kind == "b":
            some = bits(self._take(values.stored, begin // 8, (end + 7) // 8), begin % 8, begin % 8 + end - begin)
            return some.view(self._dtype)
        size = self._dtype.itemsize
        return np.frombuffer(self._take(values.stored, begin * size, end * size), self._dtype)

    def _contiguous(self, values: _Values, begin: int, end: int) -> TokenArray:
        """Tokens whose documents lie one after another."""
        low, high = self._first + begin, self._first + end
        stored = self._stored_values(values, low, high)
        if values.presence is not None:
            for at in range(low, high, _BLOCK_TOKENS):
                stop = min(at + _BLOCK_TOKENS, high)
                present = bits(self._take(values.presence, at // 8, (stop + 7) // 8), at % 8, at % 8 + stop - at)
                if not present.all():
                    self._refuse_null(at + int(present.argmin()) - self._first)
        return stored

    def _gathered(self, values: _Values, begin: int, end: int) -> TokenArray:
        """Tokens whose documents lie anywhere."""
        assert self._begins is not None
        first = int(self.offsets.searchsorted(begin, side="right")) - 1
        last = int(self.offsets.searchsorted(end))
        borders = np.clip(self.offsets[first : last + 1], begin, end)
        shift = self._begins[first:last] - self.offsets[first:last]
        places = shift.repeat(np.diff(borders))
        places += np.arange(begin, end)
        elements = self._place["elements"]
        if values.presence is not None:
            present = _bits_at(self._take(values.presence, 0, (elements + 7) // 8), places)
            if not present.all():
                self._refuse_null(begin + int(present.argmin()))
        if self._dtype.kind == "b":
            some = _bits_at(self._take(values.stored, 0, (elements + 7) // 8), places)
            return some.view(self._dtype)
        found: TokenArray = self._stored_values(values, 0, elements)[places]
        return found

    def _take(self, source: Bytes, begin: int, end: int) -> memoryview:
        try:
            return source.take(begin, end)
        except DamagedBufferError as problem:
            raise self.chunk.error(f"{problem}: the file is damaged") from problem

    def _row_of(self, token: int) -> int:
        return int(self.offsets.searchsorted(token, side="right")) - 1

    def _refuse_null(self, token: int) -> None:
        row = self._row_of(token)
        raise null_element(self.chunk, row, token - int(self.offsets[row]))

    def _check(self, stored: TokenArray, begin: int, wanted: Wanted) -> None:
        """Refuse tokens that are not as wanted, the first of which is the ``begin``-th of all."""
        wrong = wanted.first_outside(stored)
        if wrong is None:
            return
        row, value = self._row_of(begin + wrong), int(stored[wrong])
        assert wanted.bound is not None
        if wanted.low:
            raise self.chunk.error(f"row {row} has the value {value}, outside [{wanted.low}, {wanted.bound})")
        raise out_of_range(self.chunk, row, value, wanted.bound)


def _bits_at(data: memoryview, places: IntArray) -> npt.NDArray[np.bool_]:
    """Bits of a bitmap, anywhere in it."""
    bitmap = np.frombuffer(data, np.uint8)
    found: npt.NDArray[np.uint8] = bitmap[places >> 3] >> (places & 7).astype(np.uint8) & 1
    return found.view(np.bool_)


class _Values:
    """A chunk's values.

    Attributes:
        stored: their bytes.
        presence: the bitmap of those that are not null; None where all are.
    """

    __slots__ = ("presence", "stored")

    def __init__(self, stored: Bytes, presence: Bytes | None) -> None:
        self.stored = stored
        self.presence = presence


def _in_parts(tokens: int) -> Iterator[tuple[int, int]]:
    """Where parts begin and end; see `PART_TOKENS`."""
    begin = 0
    while tokens - begin > one_part_slots():
        yield begin, begin + PART_TOKENS
        begin += PART_TOKENS
    yield begin, tokens


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
    if any(chunk.slots > TOGETHER_SLOTS for chunk in chunks):
        return None
    wanted = Wanted(dtype=dtype, bound=bound, low=low)
    try:
        tokens = pooled(sum(chunk.tokens for chunk in chunks), dtype)
        offsets: list[IntArray] = [np.zeros(1, np.int64)]
        at = 0
        for raw, chunk in zip(raws, chunks, strict=True):
            opened_chunk = OpenChunk(raw, chunk)
            opened_chunk.all_tokens(tokens[at : at + chunk.tokens], wanted)
            offsets.append(opened_chunk.offsets[1:] + at)
            at += chunk.tokens
    except DataError:  # opened one by one, the one that is wrong says so in its turn
        return None
    tokens.flags.writeable = False
    return part_of(0, TokenBlock(tokens, np.concatenate(offsets)), eos_id, goes_on=False, complete=True)


def document_lengths(
    raws: Sequence[bytes | memoryview],
    chunks: Sequence[ColumnChunk],
    eos_id: int | None = None,
    besides: Sequence[Sequence[bytes | memoryview]] = (),
) -> list[IntArray]:
    """See `Format.document_lengths`."""
    return [OpenChunk(raw, chunk).lengths() for raw, chunk in zip(raws, chunks, strict=True)]
