"""A column chunk's values to tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from ...blocks import TokenArray, as_arrow, from_arrow, narrowed, pooled
from ..base import RECOUNT, ColumnChunk
from ..parts import OutOfRange, Wanted
from . import thrift
from .hosted import HostedFile
from .levels import ByteArray
from .pages import (
    BYTE_STREAM_SPLIT,
    DICTIONARY,
    Page,
    stored_body,
    unpack_body,
)

__all__ = [
    "EncodedValues",
    "PlainValues",
    "kept_bytes",
    "plain_values",
    "read_dictionary",
    "unpack_indices",
    "unpack_literals",
]

SCRATCH_BYTES = 4 << 20  # the most that a decoder keeps between chunks
# Runs of indices, or of equal runs, that are worth a step of Python each. In text that repeats tokens, as spaces are in
# code, there are thousands in a page: it is pyarrow that follows them.
MAX_INDEX_RUNS = 16
_PIECE_VALUES = 1 << 16  # that pyarrow decodes at a time where they are narrowed
_LIKE_RUNS = 32  # that are looked at first for how many are equal; there may be a thousand


class PlainValues:
    """Plain values: the tokens as they are, joined.

    One page could be a view, but of memory that its neighbours share and that is counted as free after decoding.
    """

    def __init__(self, pages: list[Page], chunk: ColumnChunk, wanted: Wanted, tokens_before: int = 0) -> None:
        self.chunk = chunk
        self.wanted = wanted
        capacity = sum(page.slots for page in pages)
        if chunk.tokens >= 0:
            capacity = max(0, min(capacity, chunk.tokens - tokens_before))
        self.memory: TokenArray = pooled(capacity, wanted.dtype)
        self.count = 0

    def append(self, page: Page, count: int, encoded: memoryview) -> None:
        """Take a page's ``count`` values."""
        values = plain_values(page, count, encoded, self.chunk)
        if self.count + count > len(self.memory):
            raise page.error(
                f"brings the tokens to more than the {self.chunk.tokens:,} of the footer; {RECOUNT}", self.chunk
            )
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

    There is as much of it as there were ever decoders at work at the same time.
    """

    def __init__(self) -> None:
        self._free: list[npt.NDArray[np.uint16]] = []  # append and pop are atomic

    def take(self, count: int) -> npt.NDArray[np.uint16]:
        """Memory for that many indices or more."""
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


def read_dictionary(raw: memoryview, page: Page, chunk: ColumnChunk) -> TokenArray:
    """The entries of a chunk's dictionary, as they are stored."""
    stored = stored_body(raw, page, chunk)
    entries = unpack_body(stored, page.unpacked_bytes, page, chunk) if page.packed else stored
    return plain_values(page, page.slots, entries, chunk)


class EncodedValues:
    """Values of any other encoding.

    Indices of 8 to 16 bits are gathered from the dictionary. Split bytes are put together here where ids of two bytes
    are wanted: the other bytes of each are zeros. All else is decoded by pyarrow, as the pages of a flat, required
    column of a file in memory. Which way it is is told by each page.
    """

    def __init__(self, entries: TokenArray | None, pages: list[Page], chunk: ColumnChunk, wanted: Wanted) -> None:
        self.chunk = chunk
        self.wanted = wanted
        self.entries = entries
        self.wanted_entries: TokenArray | None = None
        if entries is not None:
            wanted.check(entries)
            self.wanted_entries = entries.astype(wanted.dtype, copy=False)
        self.parts: list[tuple[str, int]] = []  # (how its values are to be had, how many they are) of each page
        self.bodies_bytes = sum(page.unpacked_bytes for page in pages)
        self.pages = len(pages)
        self.slots = sum(page.slots for page in pages)
        self.indices = _scratch.take(self.slots)
        self.indices_alike = True  # no page had other runs than can be unpacked here; where one has, all do
        self.split: TokenArray = self.indices[:0]
        self.hosted: HostedFile | None = None
        self.hosted_unchecked = False  # whether there are values in it that are none of the entries

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
            self.indices_alike = self.indices_alike and unpack_indices(encoded, indices)
            if self.indices_alike:
                way = "gathered"
                if int(indices.max()) >= len(self.entries):
                    raise page.error(
                        f"has index {int(indices.max())} into a dictionary of {len(self.entries):,}", self.chunk
                    )
        elif page.encoding == BYTE_STREAM_SPLIT and self.wanted.dtype == np.uint16:
            way = "split"
            first = self._count("split")
            if not len(self.split):
                self.split = pooled(self.slots, self.wanted.dtype)
            self._join_bytes(page, encoded, self.split[first : first + count])
        if way == "hosted":
            self._host(page, count, encoded)
        self.parts.append((way, count))

    def tokens(self) -> TokenArray:
        """All values."""
        sources = {"gathered": self._gathered, "split": self._joined_bytes, "hosted": self._hosted}
        ways = dict.fromkeys(way for way, _ in self.parts)
        values = {way: sources[way]() for way in ways}
        _scratch.give(self.indices)  # nothing is left in it, nor of it in what was made
        if len(values) == 1:
            return next(iter(values.values()))
        positions = dict.fromkeys(ways, 0)
        pieces: list[TokenArray] = [np.empty(0, self.wanted.dtype)]
        for way, count in self.parts:
            pieces.append(values[way][positions[way] : positions[way] + count])
            positions[way] += count
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
        if self.hosted is None:
            entries_bytes = 0 if self.entries is None else self.entries.nbytes
            self.hosted = HostedFile(
                self.chunk.layout,
                values_bytes=self.bodies_bytes + entries_bytes,
                pages=self.pages + 1,
                row_groups=1,
            )
            self.hosted.begin(self.entries)
        self.hosted.add(page, count, encoded, self.chunk)
        self.hosted_unchecked = self.hosted_unchecked or page.encoding not in DICTIONARY

    def _count(self, way: str) -> int:
        return sum(count for known, count in self.parts if known == way)

    def _gathered(self) -> TokenArray:
        assert self.wanted_entries is not None
        count = self._count("gathered")
        taken = pc.take(as_arrow(self.wanted_entries), as_arrow(self.indices[:count]), boundscheck=False)
        return np.frombuffer(taken.buffers()[1], self.wanted.dtype, count)

    def _hosted_narrowed(self, hosted: HostedFile) -> TokenArray:
        """The same in a narrower type, piece by piece, while they are in the processor's cache."""
        target = pooled(self._count("hosted"), self.wanted.dtype)
        end = 0
        for array in hosted.pieces(self.chunk, _PIECE_VALUES):
            found = from_arrow(array, self.chunk.layout.dtype)
            if self.hosted_unchecked:
                self.wanted.check(found)
            begin, end = end, end + len(found)
            np.copyto(target[begin:end], found, casting="unsafe")
            del array, found
        target.flags.writeable = False
        return target

    def _hosted(self) -> TokenArray:
        assert self.hosted is not None
        hosted, self.hosted = self.hosted, None
        if self.wanted.dtype.itemsize < self.chunk.layout.dtype.itemsize:
            return self._hosted_narrowed(hosted)
        column = hosted.read(self.chunk)
        del hosted
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        tokens: TokenArray = from_arrow(array, self.chunk.layout.dtype)
        if self.hosted_unchecked:
            self.wanted.check(tokens)
        tokens.flags.writeable = False
        return narrowed(tokens, self.wanted.dtype)


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
            runs = min(_like_runs(data[place::stride], header), left // (8 * groups))
            if not runs:  # the last one, of which a part is padding
                groups = -(-left // 8)
                if payload + width * groups > len(data):
                    return False
                last = np.empty(8 * groups, np.uint16)
                unpack_literals(data, payload, stride, width, last.reshape(1, groups, 8))
                indices[filled:] = last[:left]
                return True
            end = place + runs * stride
            if end > len(data):
                return False
            target = indices[filled : filled + 8 * runs * groups]
            unpack_literals(data, payload, stride, width, target.reshape(runs, groups, 8))
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


def _like_runs(heads: ByteArray, header: int) -> int:
    """How many runs have one header, from the first on, by the bytes at the places where it would be. Headers of more
    than one byte are not looked for.
    """
    if header > 127:
        return 1
    for looked in (_LIKE_RUNS, len(heads)):
        like = heads[:looked] == header
        if not like.all():
            return max(1, int(like.argmin()))
    return len(heads)


def unpack_literals(data: ByteArray, place: int, stride: int, width: int, target: npt.NDArray[np.uint16]) -> None:
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
    flat = target.reshape(runs, -1)
    if width in {8, 16}:
        packed = np.ndarray((runs, width * groups), np.uint8, data, place, (stride, 1))
        np.copyto(flat if width == 8 else flat.view(np.uint8), packed)
        return
    spread = flat.view("<u8").reshape(runs, groups, 2)
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


def plain_values(page: Page, count: int, encoded: memoryview, chunk: ColumnChunk) -> TokenArray:
    """Plain values, as they are stored; of booleans, which are bits, 0 and 1."""
    plain = _plain_bytes(page, count, encoded, chunk)
    if chunk.layout.physical_type == "BOOLEAN":
        return np.unpackbits(np.frombuffer(plain, np.uint8), count=count, bitorder="little")
    return np.frombuffer(plain, chunk.layout.dtype)


def _plain_bytes(page: Page, count: int, encoded: memoryview, chunk: ColumnChunk) -> memoryview:
    """The bytes of plain values. Any that come after them are padding."""
    size = count * chunk.layout.dtype.itemsize
    if chunk.layout.physical_type == "BOOLEAN":
        size = (count + 7) // 8
    if len(encoded) < size:
        raise page.error(f"has {len(encoded):,} bytes of values where {count:,} values take {size:,}", chunk)
    return encoded[:size]
