"""What every document of a row group tells, with next to no Python object for any of them.

A row group's parts are put back together to whole documents, at no more than a part and a document at a time:

    parts          │ a a a b b │ b b c c c │ c d │         documents go on from part to part
    blocks         │ a a a │  b b b b │ c c c c │ d │      each of whole documents: tokens and offsets

Documents are compared by 128-bit hashes of their tokens: two that differ have equal ones with a chance of 2^-128. Those
of up to 16 tokens, of which there may be as many as there are tokens, are hashed all at once by NumPy; longer ones one
by one by XXH3 where it is installed, and by BLAKE2 where not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..blocks import IntArray, TokenArray, TokenPart
from ..errors import DataError
from ..formats.base import ColumnChunk, OpenChunk

__all__ = [
    "DOCUMENT",
    "FIELDS",
    "NAMED",
    "Copies",
    "Questions",
    "ScannedGroup",
    "copies",
    "documents_outside",
    "hash_documents",
    "scan_group",
    "scan_together",
    "whole_documents",
]

# Of each row group, int64.
FIELDS = (
    "documents",
    "tokens",
    "empty",
    "min_id",  # 0 where there is no token
    "max_id",  # -1 where there is no token
    "out_of_range",
    "first_out_of_range",  # the document of the first one; -1 for none
    "eos_missing",
    "first_eos_missing",
    "eos_inside",
    "eos_doubled",
)
# Of each document that has tokens: its hash, its number in the row group, how many it has.
DOCUMENT = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u4"), ("tokens", "<u4")])
_SHORT = 16
_AT_ONCE = 1 << 17  # tokens, which stay in a core's cache from one look to the next
NAMED = 10  # of the longest documents

_WORDS = np.random.Philox(key=[0x6B657973, 0]).random_raw(2 * (_SHORT + 1)).reshape(_SHORT + 1, 2) | np.uint64(1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)

try:
    from xxhash import xxh3_128_digest

    HASH = "xxh3"
except ImportError:
    HASH = "blake2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked of documents.

    Attributes:
        vocab_size: ids are to be in ``[0, vocab_size)``; None where only below 0 is wrong.
        eos_id: looked for at the end of documents, and within.
        every: of the hashes of documents, those divisible by this are kept; 0 for none.
        dtype: of tokens, where all of a row group fit: what hashes are made of.
        hash: of longer documents, by name.
    """

    vocab_size: int | None = None
    eos_id: int | None = None
    every: int = 1
    dtype: str = "int64"
    hash: str = field(default=HASH)

    def eos_of(self, chunks: Sequence[ColumnChunk]) -> int | None:
        """What ends the documents of row groups, where they are of a stream; None where they are as they are stored."""
        return self.eos_id if chunks[0].layout.is_stream else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScannedGroup:
    """What was found in a row group.

    Attributes:
        numbers: in the order of `FIELDS`, int64.
        longest: (tokens, document) of the longest documents, the longest one first.
        documents: those with tokens that are kept, of the dtype `DOCUMENT`.
    """

    numbers: IntArray
    longest: list[tuple[int, int]]
    documents: npt.NDArray[Any]


def whole_documents(parts: Iterable[TokenPart]) -> Iterator[tuple[TokenArray, IntArray]]:
    """The documents of a row group, in blocks of whole ones: tokens, and offsets of shape ``(documents + 1,)``."""
    begun: list[TokenArray] = []  # the last document, which may go on
    for part, is_last in _with_last(parts):
        starts = part.starts
        if begun:
            begun.append(part.tokens[: starts[0]] if len(starts) else part.tokens)
            if len(starts) or is_last:
                tokens = np.concatenate(begun)
                yield tokens, np.array([0, len(tokens)])
                begun = []
        if is_last and len(starts):
            yield part.tokens[starts[0] :], np.append(starts, len(part.tokens)) - starts[0]
        elif len(starts):
            if len(starts) > 1:
                yield part.tokens[starts[0] : starts[-1]], starts - starts[0]
            begun = [part.tokens[starts[-1] :]]


def _with_last(parts: Iterable[TokenPart]) -> Iterator[tuple[TokenPart, bool]]:
    before: TokenPart | None = None
    for part in parts:
        if before is not None:
            yield before, False
        before = part
    if before is not None:
        yield before, True


def documents_outside(parts: Iterable[TokenPart], low: int, high: int) -> list[int]:
    """The documents of a row group that have an id outside of ``[low, high]``, by their numbers."""
    found: list[int] = []
    begin = 0
    for tokens, offsets in whole_documents(parts):
        wrong = np.flatnonzero((tokens < low) | (tokens > high))
        found += (np.unique(np.searchsorted(offsets, wrong, side="right") - 1) + begin).tolist()
        begin += len(offsets) - 1
    return found


def hash_documents(tokens: TokenArray, offsets: IntArray, dtype: npt.DTypeLike) -> npt.NDArray[np.uint64]:
    """128-bit hashes of documents, shape ``(documents, 2)``; equal documents have equal ones.

    Args:
        tokens: shape ``(tokens,)``.
        offsets: shape ``(documents + 1,)``; no document may be empty.
        dtype: in which tokens are hashed; documents of which one does not fit are hashed as int64.
    """
    lengths = np.diff(offsets)
    found = np.empty((len(lengths), 2), np.uint64)
    is_long = lengths > _SHORT
    short = np.flatnonzero(~is_long)
    if len(short):
        found[short] = _hash_short(tokens, offsets[short], lengths[short])
    places = np.flatnonzero(is_long)
    if len(places):
        narrow = tokens.astype(dtype, copy=False)
        digest, view = _digest(), narrow.data
        bounds = zip(offsets[places].tolist(), offsets[places + 1].tolist(), strict=True)
        if narrow is tokens:
            digests = b"".join([digest(view[begin:end]) for begin, end in bounds])
        else:  # a row group of which not all ids fit, perhaps
            wide = tokens.astype(np.int64).data
            fits = np.logical_and.reduceat(narrow == tokens, offsets[:-1])[places].tolist()
            each = zip(fits, bounds, strict=True)
            digests = b"".join([digest((view if fit else wide)[begin:end]) for fit, (begin, end) in each])
        found[places] = np.frombuffer(digests, "<u8").reshape(-1, 2)
    return found


def _digest() -> Callable[[memoryview], bytes]:
    if HASH == "xxh3":
        return xxh3_128_digest
    return lambda data: hashlib.blake2b(data, digest_size=16).digest()


def _hash_short(tokens: TokenArray, begins: IntArray, lengths: IntArray) -> npt.NDArray[np.uint64]:
    """Of documents of 1 to 16 tokens: sums of all tokens times random odd words, one for each place."""
    sums = [lengths.astype(np.uint64) * _WORDS[_SHORT, half] for half in range(2)]
    order = np.argsort(-lengths, kind="stable")  # those that have a place at all come first
    begins, counts = begins[order], np.bincount(lengths, minlength=_SHORT + 2)
    having = len(lengths)
    sums = [each[order] for each in sums]
    for place in range(_SHORT):
        having -= int(counts[place])
        if not having:
            break
        words = tokens[begins[:having] + place].astype(np.uint64)
        for half in range(2):
            sums[half][:having] += words * _WORDS[place, half]
    found = np.empty((len(lengths), 2), np.uint64)
    for half in range(2):
        mixed = (sums[half] ^ (sums[half] >> np.uint64(32))) * _SPREAD
        found[order, half] = mixed ^ (mixed >> np.uint64(29))
    return found


def scan_group(opened: OpenChunk, chunk: ColumnChunk, questions: Questions) -> ScannedGroup:
    """Decode a row group and look at all of its documents.

    Raises:
        DataError: it does not decode to what the index says.
    """
    dtype, eos_id = np.dtype(questions.dtype), questions.eos_of([chunk])
    if dtype.itemsize <= chunk.layout.dtype.itemsize:
        try:
            return _scan(opened.parts(dtype=dtype, bound=int(np.iinfo(dtype).max) + 1, eos_id=eos_id), questions)
        except DataError:  # damage, or ids that do not fit, which are looked at as they are
            pass
    return _scan(opened.parts(eos_id=eos_id), questions)


def _scan(parts: Iterable[TokenPart], questions: Questions) -> ScannedGroup:
    numbers = _nothing(1)[0]
    longest: list[tuple[int, int]] = []
    kept: list[npt.NDArray[Any]] = [np.empty(0, DOCUMENT)]
    for tokens, offsets in whole_documents(parts):
        first = int(numbers[0])
        (found,) = _scan_block(tokens, offsets, np.array([0, len(offsets) - 1]), questions)
        found.documents["document"] += first
        kept.append(found.documents)
        longest = _longest_of([*longest, *((count, first + document) for count, document in found.longest)])
        numbers = _joined(numbers, found.numbers)
    return ScannedGroup(numbers=numbers, longest=longest, documents=np.concatenate(kept))


def scan_together(part: TokenPart, chunks: Sequence[ColumnChunk], questions: Questions) -> list[ScannedGroup]:
    """Look at all documents of row groups that were decoded together; see `Format.decode_together`."""
    offsets = np.append(part.starts, len(part.tokens))
    borders = np.cumsum([0, *(chunk.rows for chunk in chunks)])
    if chunks[0].layout.is_stream:
        borders = offsets.searchsorted(np.cumsum([0, *(chunk.tokens for chunk in chunks)]))
    return _scan_block(part.tokens, offsets, borders, questions)


def _nothing(groups: int) -> IntArray:
    numbers = np.zeros((groups, len(FIELDS)), np.int64)
    numbers[:, [FIELDS.index(name) for name in ("max_id", "first_out_of_range", "first_eos_missing")]] = -1
    return numbers


def _joined(one: IntArray, other: IntArray) -> IntArray:
    """The numbers of a row group's documents, and of those behind them."""
    before, after = (dict(zip(FIELDS, each.tolist(), strict=True)) for each in (one, other))
    joined = {name: before[name] + after[name] for name in FIELDS}
    for name in ("first_out_of_range", "first_eos_missing"):
        joined[name] = before[name] if before[name] >= 0 else after[name] + before["documents"] * (after[name] >= 0)
    filled = [each for each in (before, after) if each["tokens"]]
    joined["min_id"] = min((each["min_id"] for each in filled), default=0)
    joined["max_id"] = max((each["max_id"] for each in filled), default=-1)
    return np.array([joined[name] for name in FIELDS], np.int64)


def _longest_of(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(found, key=lambda each: (-each[0], each[1]))[:NAMED]


def _scan_block(tokens: TokenArray, offsets: IntArray, borders: IntArray, questions: Questions) -> list[ScannedGroup]:
    """Look at documents of row groups, one after another. Of several row groups, the longest documents of all are told.

    Args:
        tokens: shape ``(tokens,)``.
        offsets: of the documents, shape ``(documents + 1,)``.
        borders: which documents are of which row group, shape ``(row groups + 1,)``; none has no document.
        questions: what is asked.
    """
    lengths = np.diff(offsets)
    numbers = _nothing(len(borders) - 1)
    of = {name: numbers[:, place] for place, name in enumerate(FIELDS)}
    begins, token_borders = borders[:-1], offsets[borders]
    of["documents"][:] = np.diff(borders)
    of["tokens"][:] = np.diff(token_borders)
    of["empty"][:] = _counts(np.flatnonzero(lengths == 0), borders)
    if len(tokens):
        _look_at_ids(of, tokens, offsets, borders, questions.vocab_size)
    if questions.eos_id is not None:
        _look_at_ends(of, tokens, offsets, borders, questions.eos_id)
    kept = np.empty(0, DOCUMENT)
    if questions.every and len(tokens):
        kept = _kept(tokens, offsets, questions)
    kept_borders = np.searchsorted(kept["document"], borders)
    kept["document"] -= np.repeat(begins, np.diff(kept_borders)).astype(np.uint32)
    longest: list[list[tuple[int, int]]] = [[] for _ in begins]
    for place in _longest(lengths):
        group = int(np.searchsorted(borders, place, side="right")) - 1
        longest[group].append((int(lengths[place]), place - int(begins[group])))
    return [
        ScannedGroup(numbers=each, longest=_longest_of(long), documents=kept[low:high])
        for each, long, (low, high) in zip(numbers, longest, pairwise(kept_borders.tolist()), strict=True)
    ]


def _pieces(tokens: TokenArray) -> list[TokenArray]:
    return [tokens[begin : begin + _AT_ONCE] for begin in range(0, len(tokens), _AT_ONCE)]


def _counts(places: IntArray, borders: IntArray) -> IntArray:
    """How many of rising places lie between borders, shape ``(borders - 1,)``."""
    return np.diff(np.searchsorted(places, borders))


def _firsts(places: IntArray, borders: IntArray) -> IntArray:
    """The first of rising places that lie between borders, from there; -1 for none."""
    first = np.searchsorted(places, borders[:-1])
    found = np.append(places, borders[-1])[first]
    return np.where(found < borders[1:], found - borders[:-1], -1)


def _longest(lengths: IntArray) -> list[int]:
    """Places of the longest documents, and of some that are as long as the last one of them."""
    places = np.flatnonzero(lengths)
    if len(places) > NAMED:
        least = np.partition(lengths, -NAMED)[-NAMED]
        places = np.concatenate([np.flatnonzero(lengths > least), np.flatnonzero(lengths == least)[:NAMED]])
    longest: list[int] = places.tolist()
    return longest


def _look_at_ids(
    of: dict[str, IntArray], tokens: TokenArray, offsets: IntArray, borders: IntArray, bound: int | None
) -> None:
    filled = np.flatnonzero(of["tokens"])
    begins = offsets[borders[filled]]
    if len(filled) == 1:
        extremes = [(each.min(), each.max()) for each in _pieces(tokens)]
        of["min_id"][filled] = min(least for least, _ in extremes)
        of["max_id"][filled] = max(most for _, most in extremes)
    else:
        of["min_id"][filled] = np.minimum.reduceat(tokens, begins)
        of["max_id"][filled] = np.maximum.reduceat(tokens, begins)
    if of["min_id"].min() >= 0 and (bound is None or of["max_id"].max() < bound):
        return
    wrong = np.flatnonzero((tokens < 0) | (tokens >= bound) if bound is not None else tokens < 0)
    of["out_of_range"][:] = _counts(wrong, offsets[borders])
    of["first_out_of_range"][:] = _firsts(np.searchsorted(offsets, wrong, side="right") - 1, borders)


def _look_at_ends(
    of: dict[str, IntArray], tokens: TokenArray, offsets: IntArray, borders: IntArray, eos_id: int
) -> None:
    lengths = np.diff(offsets)
    filled = np.flatnonzero(lengths)
    last = offsets[filled + 1] - 1
    ends = np.zeros(len(lengths), bool)
    ends[filled] = tokens[last] == eos_id
    ending, missing = np.flatnonzero(ends), np.flatnonzero(~ends)
    long = ending[lengths[ending] > 1]
    twice = long[tokens[offsets[long + 1] - 2] == eos_id]
    of["eos_missing"][:] = _counts(missing, borders)
    of["first_eos_missing"][:] = _firsts(missing, borders)
    if len(borders) == 2:
        everywhere: int | IntArray = sum(int(np.count_nonzero(each == eos_id)) for each in _pieces(tokens))
    else:
        everywhere = _counts(np.flatnonzero(tokens == eos_id), offsets[borders])
    of["eos_inside"][:] = everywhere - _counts(ending, borders)
    of["eos_doubled"][:] = _counts(twice, borders)


def _kept(tokens: TokenArray, offsets: IntArray, questions: Questions) -> npt.NDArray[Any]:
    filled = np.flatnonzero(np.diff(offsets))
    borders = np.append(offsets[filled], offsets[-1])
    found = np.empty(len(filled), DOCUMENT)
    found["high"], found["low"] = hash_documents(tokens, borders, questions.dtype).T
    found["document"] = filled
    found["tokens"] = np.diff(borders)
    return found if questions.every == 1 else found[found["high"] % np.uint64(questions.every) == 0]


class Copies(NamedTuple):
    """Documents that are the same as an earlier one.

    Attributes:
        documents, tokens: how many there are, without the first of each content.
        examples: places of a first one and its first copy, of the contents whose copies take most tokens.
    """

    documents: int
    tokens: int
    examples: list[tuple[int, int]]


def copies(kept: npt.NDArray[Any], most_examples: int) -> Copies:
    """Which of all documents are the same.

    Args:
        kept: of the dtype `DOCUMENT`, in storage order.
        most_examples: how many to give.
    """
    if not len(kept):
        return Copies(0, 0, [])
    places = np.argsort(kept["high"], kind="stable")
    high = kept["high"][places]
    same = high[1:] == high[:-1]
    in_question = np.append(same, False) | np.append(False, same)  # few others than the same documents
    places = places[in_question]
    high, low = high[in_question], kept["low"][places]
    order = np.lexsort((places, low, high))
    places, high, low = places[order], high[order], low[order]
    tokens = kept["tokens"][places].astype(np.int64)
    is_first = np.ones(len(places), bool)
    is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    begins = np.flatnonzero(is_first)
    taken = np.add.reduceat(np.where(is_first, 0, tokens), begins) if len(begins) else begins
    largest = begins[np.lexsort((places[begins], -taken))][:most_examples]
    return Copies(
        documents=int((~is_first).sum()),
        tokens=int(tokens[~is_first].sum()),
        examples=[
            (int(places[begin]), int(places[begin + 1]))
            for begin in largest.tolist()
            if begin + 1 < len(places) and not is_first[begin + 1]
        ],
    )
