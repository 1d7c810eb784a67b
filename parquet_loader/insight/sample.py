"""Some row groups of a set, read for what footers do not tell: how long documents are, how they begin and end.

Documents of one row group are alike, so that intervals come from drawing the row groups anew (a cluster bootstrap).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..blocks import IntArray, TokenArray
from ..errors import DataError
from ..formats.parquet.describe import described_pages
from ..index.index import DatasetIndex
from ..storage.base import Storage
from .scan import whole_documents

__all__ = [
    "TOLD",
    "Decodes",
    "LengthSample",
    "LookedAt",
    "Quantile",
    "Sampled",
    "Shares",
    "commonest",
    "length_sample",
    "look_at_some",
    "some_documents",
]

_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_BOOTSTRAPS = 400
_DRAWN_AT_ONCE = 50
_SHOWN_DOCUMENTS = 3
_SHOWN_TOKENS = 64
_COMMON = 5  # of first and last ids
TOLD = 10  # of what is wrong, one by one


class Decodes(Protocol):
    """A tokenizer, as far as it is needed."""

    def decode(self, ids: list[int]) -> str:
        """The text of some ids."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """Of documents a share is no longer than this, in tokens; and with 95 % confidence between ``low`` and ``high``."""

    share: float
    tokens: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Documents of ``[least, most]`` tokens: their share of all documents, and of all tokens."""

    least: int
    most: int
    documents: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSample:
    """How long documents are, in tokens, as stored.

    Attributes:
        mean: of all documents: it is exact, but of a stream.
        quantiles: of those that were read.
        longest: of those that were read.
        shares: by length, in powers of two.
        exact: whether all of the set was read, so that there is no error.
    """

    mean: float
    quantiles: tuple[Quantile, ...]
    longest: int
    shares: tuple[Shares, ...]
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A document that was read.

    Attributes:
        path, row_group, document: where it is.
        tokens: how many it has.
        ids: the first ones.
        text: these decoded; None without a tokenizer.
    """

    path: str
    row_group: int
    document: int
    tokens: int
    ids: tuple[int, ...]
    text: str | None


@dataclass(frozen=True, slots=True, eq=False)
class LookedAt:
    """What was found in a row group.

    Attributes:
        group: its number in the index.
        lengths: of its documents, in tokens.
        first_ids, last_ids: of documents with tokens.
        least, most: the range of ids; ``most`` is below ``least`` where there is none.
        document: the first one with tokens.
        ids: the first of its.
        pages: of Parquet, what they are.
    """

    group: int
    lengths: IntArray
    first_ids: npt.NDArray[Any]
    last_ids: npt.NDArray[Any]
    least: int
    most: int
    document: int
    ids: TokenArray
    pages: tuple[Any, ...]


def _spread_groups(index: DatasetIndex, most: int, most_bytes: int, seed: int) -> list[int]:
    """Row groups spread evenly over the set, one drawn from each of equal stretches; all where these suffice."""
    count = min(most, len(index))
    mean = max(1, int(index.length.sum()) // len(index))
    count = min(count, max(1, most_bytes // mean)) if count else 0
    borders = np.linspace(0, len(index), count + 1).astype(np.int64)
    words = np.random.Philox(key=[seed, len(index)]).random_raw(max(1, count))
    return [
        int(low + int(word) % int(high - low))
        for low, high, word in zip(borders[:-1], borders[1:], words, strict=False)
    ]


def look_at_some(
    storage: Storage, index: DatasetIndex, eos_id: int | None, *, most: int, most_bytes: int, seed: int
) -> tuple[list[LookedAt], list[str]]:
    """What was found in some row groups, and what is wrong with those that could not be read.

    Args:
        storage, index: of the set.
        eos_id: ends the documents of a stream.
        most: row groups to read at most.
        most_bytes: of them at most; one row group is always read.
        seed: of which are read.
    """
    looked: list[LookedAt] = []
    damaged: list[str] = []
    for group in _spread_groups(index, most, most_bytes, seed):
        try:
            looked.append(_look(storage, index, group, eos_id))
        except DataError as error:
            damaged.append(str(error))
    if len(damaged) > TOLD:
        damaged[TOLD:] = [f"{len(damaged) - TOLD:,} more row groups of those read are damaged: `check` lists all"]
    return looked, damaged


def _look(storage: Storage, index: DatasetIndex, group: int, eos_id: int | None) -> LookedAt:
    chunk = index.chunk(group)
    raw, opened = index.open(storage, chunk)
    lengths: list[IntArray] = []
    firsts: list[TokenArray] = []
    lasts: list[TokenArray] = []
    least: list[int] = []
    most: list[int] = []
    shown: TokenArray = np.empty(0, np.int64)
    document = 0
    for tokens, offsets in whole_documents(opened.parts(eos_id=eos_id)):
        own = np.diff(offsets)
        filled = own > 0
        firsts.append(tokens[offsets[:-1][filled]])
        lasts.append(tokens[offsets[1:][filled] - 1])
        if len(tokens):
            least.append(int(tokens.min()))
            most.append(int(tokens.max()))
            if not len(shown):  # the first document that has tokens
                document = sum(len(each) for each in lengths) + int(filled.argmax())
                begin, end = offsets[int(filled.argmax())], offsets[int(filled.argmax()) + 1]
                shown = tokens[begin : min(end, begin + _SHOWN_TOKENS)].copy()
        lengths.append(own)
    none = np.empty(0, np.int64)
    return LookedAt(
        group=group,
        lengths=np.concatenate([none, *lengths]),
        first_ids=np.concatenate([none, *firsts]),
        last_ids=np.concatenate([none, *lasts]),
        least=min(least, default=0),
        most=max(most, default=-1),
        document=document,
        ids=shown,
        pages=described_pages(raw, chunk) if index.format == "parquet" else (),
    )


def some_documents(index: DatasetIndex, looked: list[LookedAt], tokenizer: Decodes | None) -> tuple[Sampled, ...]:
    """A few of the documents that were read, spread over the row groups."""
    filled = [each for each in looked if len(each.ids)]
    places = np.linspace(0, len(filled) - 1, min(_SHOWN_DOCUMENTS, len(filled))).astype(int).tolist()
    return tuple(
        Sampled(
            path=index.files[int(index.file[each.group])].path,
            row_group=int(index.row_group[each.group]),
            document=each.document,
            tokens=int(each.lengths[each.document]),
            ids=tuple(each.ids.tolist()),
            text=None if tokenizer is None else tokenizer.decode(each.ids.tolist()),
        )
        for each in (filled[place] for place in places)
    )


def length_sample(index: DatasetIndex, looked: list[LookedAt], seed: int) -> LengthSample:
    """How long documents are, by the row groups that were read: one or more, with documents in them."""
    lengths = np.concatenate([each.lengths for each in looked])
    exact = len(looked) == len(index)
    values, places = np.unique(lengths, return_inverse=True)
    borders = np.cumsum([len(each.lengths) for each in looked])[:-1]
    counts = np.stack([np.bincount(own, minlength=len(values)) for own in np.split(places, borders)])
    found = _quantiles(values, counts.sum(axis=0)[None])[0]
    low = high = found
    if len(looked) > 1 and not exact:
        again = np.concatenate([_quantiles(values, drawn @ counts) for drawn in _draws(len(looked), seed)])
        low, high = np.percentile(again, [2.5, 97.5], axis=0).astype(np.int64)
    elif not exact:  # of one row group nothing tells how others differ: as if its documents were drawn one by one
        shares = np.array(_QUANTILES)
        error = 1.96 * np.sqrt(shares * (1 - shares) / len(lengths))
        ordered = np.sort(lengths)
        low, high = (
            ordered[np.clip(((shares + sign * error) * len(lengths)).astype(np.int64), 0, len(lengths) - 1)]
            for sign in (-1, 1)
        )
    bits = np.frexp(lengths.astype(np.float64))[1]  # 0 of none, 1 of 1, 2 of 2 and 3, ...
    documents = np.bincount(bits)
    tokens = np.bincount(bits, weights=lengths)
    return LengthSample(
        mean=float(lengths.mean()) if index.is_stream else index.total_tokens / int(index.rows.sum()),
        quantiles=tuple(
            Quantile(share=share, tokens=int(value), low=int(least), high=int(most))
            for share, value, least, most in zip(_QUANTILES, found, low, high, strict=True)
        ),
        longest=int(lengths.max()),
        shares=tuple(
            Shares(
                least=1 << place >> 1,
                most=max(0, (1 << place) - 1),
                documents=float(documents[place] / len(lengths)),
                tokens=float(tokens[place] / max(1, lengths.sum())),
            )
            for place in np.flatnonzero(documents).tolist()
        ),
        exact=exact,
    )


def _draws(count: int, seed: int) -> Iterator[IntArray]:
    """How often each of some row groups is drawn, where as many are drawn, each of them any number of times; shape
    ``(draws, row groups)``, some hundred draws in all.
    """
    for number in range(0, _BOOTSTRAPS, _DRAWN_AT_ONCE):
        words = np.random.Philox(key=[seed, 1 + number]).random_raw(_DRAWN_AT_ONCE * count)
        drawn = (words % np.uint64(count)).astype(np.int64).reshape(-1, count)
        yield np.stack([np.bincount(row, minlength=count) for row in drawn])


def _quantiles(values: IntArray, counts: IntArray) -> IntArray:
    """Of rising values, of which there are so many in each row of ``counts``; shape ``(rows, quantiles)``."""
    sums = np.cumsum(counts, axis=1)
    return np.stack([values[(sums > share * sums[:, -1:]).argmax(axis=1)] for share in _QUANTILES], axis=1)


def commonest(ids: list[npt.NDArray[Any]]) -> tuple[tuple[int, float], ...]:
    """The commonest of some ids, with their shares."""
    everything = np.concatenate([np.empty(0, np.int64), *ids])
    values, counts = np.unique(everything, return_counts=True)
    order = np.lexsort((values, -counts))[:_COMMON]
    return tuple((int(values[place]), float(counts[place] / len(everything))) for place in order)
