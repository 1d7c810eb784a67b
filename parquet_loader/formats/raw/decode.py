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

from ...blocks import IntArray, TokenArray, TokenBlock, TokenPart, append_eos, narrowed
from ...errors import DataError
from ..base import ChunkSize, ColumnChunk, Numbers, chosen, smaller
from .entries import GROUP_TOKENS, MOST_SEQUENCES, idx_of

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
_OBJECTS_BYTES = 4 << 10  # the Python objects around the arrays of a part


# ── what it holds ────────────────────────────────────────────────────────────────────────────────────────────────


def decode_cost(size: ChunkSize, *, codec: str, dtype: np.dtype[np.integer], eos: bool) -> Numbers:
    """See `Format.decode_cost`. Where a stream has more documents than its entry says, `OpenChunk.cost_bytes` tells."""
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
    lengths, sequences, entries = chunk.places
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
        """See `formats.base.OpenChunk.cost_bytes`."""
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
        """See `formats.base.OpenChunk.parts`."""
        tokens, offsets = self._tokens, self._offsets
        dtype = dtype or tokens.dtype
        each = int(eos_id is not None and offsets is not None)
        for start, end in _parts(len(tokens)):
            begin, count, documents = start, end - start, np.empty(0, np.int64)
            if offsets is not None:
                documents = _begun(offsets, start, end)
                begun = int(offsets[:-1].searchsorted(start)) if start else 0
                # The EOS of a document that goes on is in the part with the next document's beginning.
                begin += each * (begun - bool(start))
                count += each * (len(documents) - (end < len(tokens)) + bool(start))
            if (count and begin + count <= first) or (last is not None and begin >= last):
                continue
            piece = tokens[start:end]
            _check(piece, bound, self.chunk, start)
            if offsets is None:
                documents = _after(piece, eos_id, begins=not start, ends=end == len(tokens))
            piece = _held(piece, dtype)
            if each:
                borders = np.concatenate([[0] if start else [], documents - start, [end - start]]).astype(np.int64)
                block = append_eos(TokenBlock(piece, borders), eos_id or 0, complete=end == len(tokens))
                yield TokenPart(begin, block.tokens, block.offsets[int(start > 0) : -1])
                del block
            else:
                yield TokenPart(begin, piece, documents if offsets is None else documents - start)
            del piece, documents  # not to be held while the next one is made

    def lengths(self, eos_id: int | None) -> IntArray:
        """How many tokens each document has, shape ``(documents,)``; the EOS of a stream included."""
        if self._offsets is not None:
            return np.diff(self._offsets)
        starts = [
            low + _after(self._tokens[low:high], eos_id, begins=not low, ends=high == len(self._tokens))
            for low, high in _parts(len(self._tokens))
        ]
        return np.diff(np.concatenate([*starts, [len(self._tokens)]]))

    def unverified(self) -> Iterator[memoryview]:
        """See `formats.base.OpenChunk.unverified`."""
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
    if sum(chunk.tokens for chunk in chunks) > GROUP_TOKENS or len({chunk.layout for chunk in chunks}) > 1:
        return None
    is_stream = chunks[0].layout.is_stream
    try:
        tokens = np.concatenate([_stored(raw, chunk) for raw, chunk in zip(raws, chunks, strict=True)])
        _check(tokens, bound, chunks[0], 0)
        borders = np.cumsum([0, *(chunk.tokens for chunk in chunks)])
        if is_stream:
            found = _after(tokens, eos_id, begins=True, ends=True)
            return TokenPart(0, _held(tokens, dtype), np.union1d(found, borders[:-1]))
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
    _, sequences, entries = chunk.places
    lengths = np.frombuffer(beside[0], "<i4")
    ends = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(dtype=np.int64, out=ends[1:])
    sound = len(lengths) == sequences and not (lengths < 0).any()
    if entries >= 0:
        numbers = np.frombuffer(beside[1], "<i8")
        numbers = numbers - numbers[:1]
        sound = sound and not (numbers[1:] < numbers[:-1]).any() and numbers[-1:].tolist() == [sequences]
        ends = ends[numbers] if sound else ends
    if not sound or len(ends) != chunk.rows + 1 or ends[-1] != chunk.tokens:
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


def _after(tokens: TokenArray, eos_id: int | float | None, *, begins: bool, ends: bool) -> IntArray:
    """Where a stream's documents begin: after each EOS, but not where there is nothing more.

    Args:
        tokens: a part of it, shape ``(tokens,)``.
        eos_id: ends them; None where nothing does.
        begins, ends: whether the row group begins, or ends, with the part.
    """
    found = np.empty(0, np.int64)
    if eos_id is not None and eos_id <= np.iinfo(tokens.dtype).max:
        found = (tokens == eos_id).nonzero()[0]
        found += 1
        if ends and len(found) and found[-1] == len(tokens):
            found = found[:-1]
    return np.concatenate(([0], found)) if begins else found


def _held(tokens: TokenArray, dtype: np.dtype[np.integer]) -> TokenArray:
    """Ids that fit, in another type; as they lie where they are as wide."""
    return tokens.view(dtype) if tokens.itemsize == dtype.itemsize else narrowed(tokens, dtype)


def _check(tokens: TokenArray, bound: int | None, chunk: ColumnChunk, begin: int) -> None:
    """Refuse ids outside ``[0, bound)``. Negative ones are the largest of the type without a sign."""
    unsigned = tokens.view(f"u{tokens.itemsize}")
    if bound is None or bound > np.iinfo(unsigned.dtype).max or not len(tokens) or unsigned.max() < bound:
        return
    at = int((unsigned >= bound).argmax())
    raise chunk.error(
        f"token {begin + at:,} has token id {int(tokens[at])}, outside [0, {bound}); check vocab_size, dtype, "
        "raw_dtype and the tokenizer"
    )
