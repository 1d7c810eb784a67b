"""The bytes of raw files to `TokenPart`s: they are tokens already.

    bytes       5 6 7 0 8 0 9                     as they lie, if they are of the type that is held
    stream      EOS 0 ends a document             starts  0 4 6
    documents   lengths 3 1 3, by the index       starts  0 3 4     and EOS are put in, as between rows of Parquet

Ids are compared with the bound where their type allows others, and with the EOS of a stream: nothing else is done for
each token. A row group is one part, unless a document is longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ...blocks import IntArray, TokenArray, TokenBlock, TokenPart, append_eos, narrowed
from ...errors import DataError
from ..base import ChunkSize, ColumnChunk, Numbers, chosen, smaller
from ..parts import Wanted
from .entries import GROUP_TOKENS, MOST_SEQUENCES, checksum_of, idx_of

__all__ = [
    "OpenChunk",
    "beside",
    "decode_cost",
    "decode_together",
    "document_lengths",
    "kept_bytes",
    "most_decode_cost",
    "one_part_slots",
]

_MOST_PART = GROUP_TOKENS + GROUP_TOKENS // 2
# A part of a stream has no more documents than this, unless it has no more tokens: where they begin takes little
# memory, however short they are.
_MOST_DOCUMENTS = 1 << 16
# Row groups of no more tokens are put together, for which their costs have room: see `most_decode_cost`.
_TOGETHER_TOKENS = 1 << 16
_OBJECTS_BYTES = 4 << 10  # the Python objects around the arrays of a part


# ── what it holds ────────────────────────────────────────────────────────────────────────────────────────────────


def decode_cost(size: ChunkSize, *, codec: str, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """See `Format.decode_cost`."""
    return most_decode_cost(size, dtype=dtype, eos=eos)


def one_part_slots() -> int:
    """See `Format.one_part_slots`."""
    return _MOST_PART


def most_decode_cost(size: ChunkSize, *, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """See `Format.most_decode_cost`.

    A part's tokens are the chunk's own bytes, unless they are of another type than is held, or EOS are put between
    them. Which of them are EOS takes a byte each. Megatron's lengths are read, and documents' places made of them.
    """
    part = smaller(size.tokens, _MOST_PART)
    cast = part * dtype.itemsize
    cast = chosen(size.itemsize == dtype.itemsize, cast - cast, cast)
    listed = 48 * (size.rows + 1) + 20 * smaller(size.tokens + size.rows, MOST_SEQUENCES)
    joined = (part + size.rows) * dtype.itemsize + 24 * (size.rows + 1)
    return chosen(eos, cast + joined + listed + _OBJECTS_BYTES, cast + part + listed + _OBJECTS_BYTES)


def kept_bytes(most_slots: int) -> int:
    """See `Format.kept_bytes`: nothing."""
    return 0


def beside(chunk: ColumnChunk) -> tuple[tuple[str, int, int], ...]:
    """See `Format.beside`: of Megatron's the lengths of sequences, and where documents are several of them, which."""
    lengths, sequences, entries, _ = chunk.places
    if chunk.layout.is_stream:
        return ()
    found = ((idx_of(chunk.path), lengths, 4 * sequences),)
    return found if entries < 0 else (*found, (idx_of(chunk.path), entries, 8 * (chunk.rows + 1)))


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────────


class OpenChunk:
    """See `formats.base.OpenChunk`. Parts are views of the chunk's bytes where they can be."""

    fallback = ""

    def __init__(self, raw: bytes | memoryview, chunk: ColumnChunk, beside: Sequence[bytes | memoryview] = ()) -> None:
        self.chunk = chunk
        self._raw = memoryview(raw).cast("B")
        self._tokens = _stored(raw, chunk)
        # Where documents begin, and where the last one ends; of a stream that is found when they are asked for.
        self._offsets = None if chunk.layout.is_stream else _offsets(chunk, beside)

    def cost_bytes(self, *, dtype: np.dtype[np.integer], eos: bool) -> int:
        return int(most_decode_cost(ChunkSize.of_chunk(self.chunk), dtype=dtype, eos=eos))

    def parts(
        self,
        *,
        dtype: np.dtype[np.integer] | None = None,
        bound: int | None = None,
        eos_id: int | float | None = None,
        first: int = 0,
        last: int | None = None,
        low: int = 0,
    ) -> Iterator[TokenPart]:
        wanted = Wanted(dtype=dtype or self._tokens.dtype, bound=bound)
        if self._offsets is None:
            return self._stream(wanted, eos_id, first, last)
        return self._documents(self._offsets, wanted, eos_id, first, last)

    def _stream(self, wanted: Wanted, eos_id: int | float | None, first: int, last: int | None) -> Iterator[TokenPart]:
        tokens = self._tokens
        for low, high in _parts(len(tokens)):
            if high <= first or (last is not None and low >= last):
                continue
            _check(tokens[low:high], wanted, self.chunk, low)
            is_eos = _is_eos(tokens[low:high], eos_id)
            step = high - low
            if is_eos is not None and np.count_nonzero(is_eos) > _MOST_DOCUMENTS:
                step = _MOST_DOCUMENTS
            for begin in range(low, high, step):
                end = min(begin + step, high)
                starts = _after(
                    None if is_eos is None else is_eos[begin - low : end - low], begin == 0, end == len(tokens)
                )
                yield TokenPart(begin, _held(tokens[begin:end], wanted.dtype), starts)
                del starts  # not to be held while the next one is made

    def _documents(
        self, offsets: IntArray, wanted: Wanted, eos_id: int | float | None, first: int, last: int | None
    ) -> Iterator[TokenPart]:
        tokens, each = self._tokens, int(eos_id is not None)
        for low, high in _parts(len(tokens)):
            documents = _begun(offsets, low, high)
            begun = int(offsets[:-1].searchsorted(low)) if low else 0
            # The EOS of a document that goes on is in the part with the next document's beginning.
            begin = low + each * (begun - bool(low))
            count = high - low + each * (len(documents) - (high < len(tokens)) + bool(low))
            if (count and begin + count <= first) or (last is not None and begin >= last):
                continue
            _check(tokens[low:high], wanted, self.chunk, low)
            piece = _held(tokens[low:high], wanted.dtype)
            if eos_id is None:
                yield TokenPart(begin, piece, documents - low)
            else:
                borders = np.concatenate([[0] if low else [], documents - low, [high - low]]).astype(np.int64)
                block = append_eos(TokenBlock(piece, borders), eos_id, complete=high == len(tokens))
                yield TokenPart(begin, block.tokens, block.offsets[int(low > 0) : -1])
                del block
            del piece, documents  # not to be held while the next one is made

    def lengths(self, eos_id: int | None) -> IntArray:
        """How many tokens each document has, shape ``(documents,)``; the EOS of a stream included."""
        if self._offsets is not None:
            return np.diff(self._offsets)
        tokens = self._tokens
        starts = [
            low + _after(_is_eos(tokens[low:high], eos_id), not low, high == len(tokens))
            for low, high in _parts(len(tokens))
        ]
        return np.diff(np.concatenate([*starts, [len(tokens)]]))

    def unverified(self) -> Iterator[memoryview]:
        yield self._raw


def decode_together(
    raws: Sequence[bytes | memoryview],
    chunks: Sequence[ColumnChunk],
    *,
    dtype: np.dtype[np.integer],
    bound: int | None,
    eos_id: int | float | None,
    besides: Sequence[Sequence[bytes | memoryview]] = (),
    low: int = 0,
) -> TokenPart | None:
    """See `Format.decode_together`. What is large enough to be a task is used where it lies."""
    tokens_of = [chunk.tokens for chunk in chunks]
    if max(tokens_of) > _TOGETHER_TOKENS or sum(tokens_of) > GROUP_TOKENS or len({each.layout for each in chunks}) > 1:
        return None
    is_stream = chunks[0].layout.is_stream
    try:
        tokens = np.concatenate([_stored(raw, chunk) for raw, chunk in zip(raws, chunks, strict=True)])
        _check(tokens, Wanted(dtype=dtype, bound=bound), chunks[0], 0)
        borders = np.cumsum([0, *(chunk.tokens for chunk in chunks)])
        if is_stream:
            is_eos = _is_eos(tokens, eos_id)
            if is_eos is not None and np.count_nonzero(is_eos) > _MOST_DOCUMENTS:
                return None
            return TokenPart(0, _held(tokens, dtype), np.union1d(_after(is_eos, True, True), borders[:-1]))
        offsets = np.concatenate(
            [
                _offsets(chunk, beside)[:-1] + border
                for chunk, beside, border in zip(chunks, besides, borders, strict=False)
            ]
            + [borders[-1:]]
        )
    except DataError:  # of which row group, and in which words, is found one by one
        return None
    block = TokenBlock(_held(tokens, dtype), offsets)
    if eos_id is not None:
        block = append_eos(block, eos_id)
    return TokenPart(0, block.tokens, block.offsets[:-1])


def document_lengths(
    raws: Sequence[bytes | memoryview],
    chunks: Sequence[ColumnChunk],
    eos_id: int | None = None,
    besides: Sequence[Sequence[bytes | memoryview]] = (),
) -> list[IntArray]:
    """See `Format.document_lengths`."""
    each = zip(raws, chunks, besides or [()] * len(chunks), strict=True)
    return [OpenChunk(raw, chunk, beside).lengths(eos_id) for raw, chunk, beside in each]


def _stored(raw: bytes | memoryview, chunk: ColumnChunk) -> TokenArray:
    """A chunk's ids as they lie."""
    dtype = chunk.layout.dtype
    if len(raw) != chunk.length or chunk.length != chunk.tokens * dtype.itemsize:
        raise chunk.error(f"read {len(raw):,} bytes of {chunk.length:,}, which should hold {chunk.tokens:,} ids")
    return np.frombuffer(raw, dtype)


def _offsets(chunk: ColumnChunk, beside: Sequence[bytes | memoryview]) -> IntArray:
    """Where documents begin by Megatron's index, and where the last one ends, shape ``(documents + 1,)``."""
    _, sequences, entries, checksum = chunk.places
    lengths = np.frombuffer(beside[0], "<i4")
    ends = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(dtype=np.int64, out=ends[1:])
    sound = len(lengths) == sequences and not (lengths < 0).any()
    if entries >= 0:
        numbers = np.frombuffer(beside[1], "<i8")
        numbers = numbers - numbers[:1]
        sound = sound and not (numbers[1:] < numbers[:-1]).any() and numbers[-1:].tolist() == [sequences]
        ends = ends[numbers] if sound else ends
    sound = sound and len(ends) == chunk.rows + 1 and ends[-1] == chunk.tokens and checksum_of(ends[1:]) == checksum
    if not sound:
        raise chunk.error(f"{idx_of(chunk.path)} tells of other documents than when it was indexed: it is damaged")
    return ends


def _parts(tokens: int) -> Iterator[tuple[int, int]]:
    low = 0
    while low < tokens or not low:
        high = tokens if tokens - low <= _MOST_PART else low + GROUP_TOKENS
        yield low, high
        if high == tokens:
            return
        low = high


def _begun(offsets: IntArray, low: int, high: int) -> IntArray:
    """The documents' beginnings in a part; the last part has those at the very end, too."""
    begins = offsets[:-1]
    first = int(begins.searchsorted(low)) if low else 0
    last = len(begins) if high == offsets[-1] else int(begins.searchsorted(high))
    return begins[first:last]


def _is_eos(tokens: TokenArray, eos_id: int | float | None) -> npt.NDArray[np.bool_] | None:
    """Which tokens are EOS, shape ``(tokens,)``; None where none can be."""
    return None if eos_id is None or eos_id > np.iinfo(tokens.dtype).max else tokens == eos_id


def _after(is_eos: npt.NDArray[np.bool_] | None, begins: bool, ends: bool) -> IntArray:
    """Where a stream's documents begin: after each EOS, but not where there is nothing more.

    Args:
        is_eos: which tokens of a part are EOS, shape ``(tokens,)``; None where none is.
        begins, ends: whether the row group begins, or ends, with the part.
    """
    found = np.empty(0, np.int64)
    if is_eos is not None:
        found = is_eos.nonzero()[0]
        found += 1
        if ends and len(found) and found[-1] == len(is_eos):
            found = found[:-1]
    return np.concatenate(([0], found)) if begins else found


def _held(tokens: TokenArray, dtype: np.dtype[np.integer]) -> TokenArray:
    """Ids that fit, in another type; as they lie where they are as wide."""
    return tokens.view(dtype) if tokens.itemsize == dtype.itemsize else narrowed(tokens, dtype)


def _check(tokens: TokenArray, wanted: Wanted, chunk: ColumnChunk, begin: int) -> None:
    """Refuse ids that are not as wanted."""
    at = wanted.first_outside(tokens)
    if at is not None:
        raise chunk.error(
            f"token {begin + at:,} has token id {int(tokens[at])}, outside [0, {wanted.bound}); check vocab_size, "
            "dtype, raw_dtype and the tokenizer"
        )
