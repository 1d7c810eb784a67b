"""What every document of a row group tells, without a Python object for any of them.

A row group's parts are put back together to whole documents, at no more than a part and a document at a time:

    parts          │ a a a b b │ b b c c c │ c d │         documents go on from part to part
    blocks         │ a a a │  b b b b │ c c c c │ d │      each of whole documents: tokens and offsets

Whether two documents are the same is asked in two steps. A *key* of 64 bits is made of a document's length and of 16 of
its tokens, spread evenly from the first to the last, so that it costs the same however long a document is. Equal
documents have equal keys. Those few whose keys are equal are then read again and compared by all of their tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..blocks import IntArray, TokenArray, TokenPart
from ..formats.base import ColumnChunk, Format

__all__ = [
    "FIELDS",
    "KeyArray",
    "Questions",
    "ScannedGroup",
    "chosen_keys",
    "digests_of",
    "document_keys",
    "scan_group",
    "whole_documents",
]

KeyArray = npt.NDArray[np.uint64]

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
_SAMPLES = 16
_AT_ONCE = 1 << 16  # tokens, which stay in a core's cache from one look to the next
_NAMED = 5  # of a row group's longest documents

_words = np.random.Philox(key=[0x6B657973, 0]).random_raw(_SAMPLES + 1) | 1
_WEIGHTS = _words.astype(np.uint64)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked of documents.

    Attributes:
        vocab_size: ids are to be in ``[0, vocab_size)``; None where only below 0 is wrong.
        eos_id: looked for at the end of documents, and within.
        every: of the keys of documents, those divisible by this are kept; 0 for none.
    """

    vocab_size: int | None = None
    eos_id: int | None = None
    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScannedGroup:
    """What was found in a row group.

    Attributes:
        numbers: in the order of `FIELDS`, int64.
        longest: (tokens, document) of the longest documents, the longest one first.
        keys: of documents with tokens, those that are kept.
    """

    numbers: IntArray
    longest: list[tuple[int, int]]
    keys: KeyArray


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


def document_keys(tokens: TokenArray, offsets: IntArray) -> KeyArray:
    """A key of each document, shape ``(documents,)``; equal documents have equal ones whatever the dtype.

    Args:
        tokens: shape ``(tokens,)``.
        offsets: shape ``(documents + 1,)``; no document may be empty.
    """
    begins, lengths = offsets[:-1], np.diff(offsets)
    keys: KeyArray = lengths.astype(np.uint64) * _WEIGHTS[_SAMPLES]
    last = lengths - 1
    for number in range(_SAMPLES):
        keys += tokens[begins + last * number // (_SAMPLES - 1)].astype(np.uint64) * _WEIGHTS[number]
    keys ^= keys >> np.uint64(32)
    keys *= _SPREAD
    keys ^= keys >> np.uint64(29)
    return keys


def chosen_keys(keys: KeyArray, every: int) -> npt.NDArray[np.bool_]:
    """Which keys are kept: the same ones wherever they come."""
    chosen: npt.NDArray[np.bool_] = keys % np.uint64(every) == 0
    return chosen


def scan_group(file_format: Format, raw: memoryview, chunk: ColumnChunk, questions: Questions) -> ScannedGroup:
    """Decode a row group and look at all of its documents.

    Raises:
        DataError: it does not decode to what the index says.
    """
    of = dict.fromkeys(FIELDS, 0)
    of["max_id"] = of["first_out_of_range"] = of["first_eos_missing"] = -1
    longest: list[tuple[int, int]] = []
    keys: list[KeyArray] = []
    for tokens, offsets in whole_documents(file_format.open(raw, chunk).parts()):
        first = of["documents"]
        lengths = np.diff(offsets)
        of["documents"] += len(lengths)
        of["empty"] += int((lengths == 0).sum())
        longest = sorted([*longest, *_longest(lengths, first)], key=lambda each: (-each[0], each[1]))[:_NAMED]
        if len(tokens):
            _look_at_ids(of, tokens, offsets, first, questions)
        if questions.eos_id is not None:
            _look_at_ends(of, tokens, offsets, first, questions.eos_id)
        if questions.every:
            filled = np.append(offsets[:-1][lengths > 0], offsets[-1])
            found = document_keys(tokens, filled)
            keys.append(found if questions.every == 1 else found[chosen_keys(found, questions.every)])
        of["tokens"] += len(tokens)
    return ScannedGroup(
        numbers=np.array([of[name] for name in FIELDS], np.int64),
        longest=longest,
        keys=np.concatenate([np.empty(0, np.uint64), *keys]),
    )


def _longest(lengths: IntArray, first: int) -> list[tuple[int, int]]:
    places = np.flatnonzero(lengths)
    if len(places) > _NAMED:
        least = np.partition(lengths, -_NAMED)[-_NAMED]
        places = np.concatenate([np.flatnonzero(lengths > least), np.flatnonzero(lengths == least)[:_NAMED]])
    return [(int(lengths[place]), first + int(place)) for place in places]


def _look_at_ids(of: dict[str, int], tokens: TokenArray, offsets: IntArray, first: int, questions: Questions) -> None:
    has_any = of["max_id"] >= of["min_id"]
    low, high = of["min_id"], of["max_id"]
    for begin in range(0, len(tokens), _AT_ONCE):
        some = tokens[begin : begin + _AT_ONCE]
        smallest, largest = int(some.min()), int(some.max())
        low, high = (min(low, smallest), max(high, largest)) if has_any else (smallest, largest)
        has_any = True
        bound = questions.vocab_size
        if smallest < 0 or (bound is not None and largest >= bound):
            wrong = np.flatnonzero((some < 0) | (some >= bound) if bound is not None else some < 0)
            of["out_of_range"] += len(wrong)
            if of["first_out_of_range"] < 0:
                place = begin + int(wrong[0])
                of["first_out_of_range"] = first + int(np.searchsorted(offsets, place, side="right")) - 1
    of["min_id"], of["max_id"] = low, high


def _look_at_ends(of: dict[str, int], tokens: TokenArray, offsets: IntArray, first: int, eos_id: int) -> None:
    lengths = np.diff(offsets)
    ends = np.zeros(len(lengths), bool)
    filled = np.flatnonzero(lengths)
    last = offsets[filled + 1] - 1
    ends[filled] = tokens[last] == eos_id
    all_of_them = sum(
        int(np.count_nonzero(tokens[begin : begin + _AT_ONCE] == eos_id)) for begin in range(0, len(tokens), _AT_ONCE)
    )
    ending = int(ends.sum())
    two = last[(lengths[filled] > 1) & ends[filled]]
    of["eos_missing"] += len(ends) - ending
    of["eos_inside"] += all_of_them - ending
    of["eos_doubled"] += int((tokens[two - 1] == eos_id).sum())
    if of["first_eos_missing"] < 0 and ending < len(ends):
        of["first_eos_missing"] = first + int(ends.argmin())


def digests_of(
    file_format: Format, raw: memoryview, chunk: ColumnChunk, wanted: KeyArray, every: int
) -> list[tuple[int, int, int, bytes]]:
    """Of the documents whose keys are among some: (key, document, tokens, 128-bit digest of the tokens).

    Args:
        file_format, raw, chunk: the row group.
        wanted: the keys, rising.
        every: see `Questions`.
    """
    found: list[tuple[int, int, int, bytes]] = []
    first = 0
    for tokens, offsets in whole_documents(file_format.open(raw, chunk).parts()):
        lengths = np.diff(offsets)
        filled = np.flatnonzero(lengths)
        if len(filled):
            keys = document_keys(tokens, np.append(offsets[filled], offsets[-1]))
            places = np.searchsorted(wanted, keys)
            places[places == len(wanted)] = 0
            hits = np.flatnonzero((wanted[places] == keys) & chosen_keys(keys, every))
            for hit in hits.tolist():
                document = int(filled[hit])
                text = tokens[offsets[document] : offsets[document + 1]].astype("<i8")
                digest = hashlib.blake2b(text.tobytes(), digest_size=16).digest()
                found.append((int(keys[hit]), first + document, len(text), digest))
        first += len(lengths)
    return found
