"""Mixtures: which source each row of each lane is of. Pure arithmetic, no I/O, no state.

Rows are dealt out in *blocks* of 64 rows a lane. A block has an integer quota for each source, from the nested floors

    left, rest = n, sum(weights)
    for each source, the heaviest first:  g = left - left * (rest - w) // rest;  left -= g;  rest -= w

of which the g's add up to n, and none falls as n rises: block m of a stage gets G(64 (m + 1)) - G(64 m) rows of each
source. Nothing is carried from block to block, and the shares of a whole stage are exact but for a few rows a lane:
with S sources less than one row too many, and less than 1 + 1/2 + ... + 1/(S - 1) too few. The heaviest come first,
since every source that has come rounds what is left for those after it: behind 99 tiny ones, a large one would begin
with 99 rows too few.

Within a block, row t of lane i has the slot

    slot = (i * a * K + (t * p mod K) * B + phase) mod (K * B)        K rows of a block, B lanes

and is of source s where B * Q[s] <= slot < B * Q[s + 1], with Q the sums of the quotas before it. Slots of one lane are
B apart, and slots of one row K apart, so that both are spread evenly over the sources; the multipliers a and p spread
them in time and over the lanes too, and a word of Philox for each block moves the whole pattern. With B = 4 lanes,
blocks of K = 8 rows, a = 1, p = 3, phase 0, and the quotas 5 of source x and 3 of y, slots below 20 are of x:

    row t              0  1  2  3  4  5  6  7
    t * p mod K        0  3  6  1  4  7  2  5
    lane 0, slots      0 12 24  4 16 28  8 20      x x y x x y x y        5 of x, 3 of y, in every lane
    lane 1, slots      8 20  0 12 24  4 16 28      x y x x y x x y
    lane 2, slots     16 28  8 20  0 12 24  4      x y x y x x y x
    lane 3, slots     24  4 16 28  8 20  0 12      y x x y x y x x
                                                   3 2 3 2 3 2 3 2        of x, in every row: 2.5 is the share

After each block every lane has had exactly the quotas, so that all lanes stand at the same place of every source: one
integer for each source is the position of all of them, as it is for one set.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, isfinite, sqrt

import numpy as np

from ..blocks import IntArray
from .order import random_words

__all__ = [
    "APART",
    "BLOCK",
    "BlockTable",
    "Lattice",
    "Weights",
    "block_quotas",
    "integer_weights",
    "multiplier",
    "rows_given",
    "shown_weights",
    "temperature_weights",
]

BLOCK = 64
APART = 4  # rows of a source that one lane has had more than another within a block, at most
_PARTS = 10**9  # of a weight that is no integer
_PHASE = 3  # the domain of the words that move a block's slots; see `order.order`

# Names and positive integers without a common divisor, by name.
Weights = tuple[tuple[str, int], ...]


def integer_weights(weights: Mapping[str, float]) -> Weights:
    """Weights as integers without a common divisor, by name, those of 0 left out.

    A float is taken as the nearest fraction of 10^9, one that is positive as 1 / 10^9 at least. ``{"a": 7, "b": 3}``
    is the same as ``{"a": 0.7, "b": 0.3}``.

    Raises:
        ValueError: a weight that is negative or no number, or none that is positive; says which.
    """
    parts = {}
    for name, weight in weights.items():
        number = isinstance(weight, (int, float, np.integer, np.floating)) and not isinstance(weight, (bool, np.bool_))
        if not number or not isfinite(weight) or weight < 0:
            raise ValueError(f"the weight of {name!r} must be a number, 0 or more, not {weight!r}")
        if weight > 0:
            parts[name] = int(weight) * _PARTS if weight == int(weight) else max(1, round(float(weight) * _PARTS))
    if not parts:
        raise ValueError(f"no weight is positive: {dict(weights)!r}")
    divisor = gcd(*parts.values())
    return tuple((name, parts[name] // divisor) for name in sorted(parts))


def shown_weights(weights: Weights) -> dict[str, float]:
    """Weights as people write them; `integer_weights` makes the same of them again: shares, or integers where shares
    would have to be rounded.
    """
    total = sum(weight for _, weight in weights)
    if all(weight * _PARTS % total == 0 for _, weight in weights):
        shares = {name: weight * _PARTS // total / _PARTS for name, weight in weights}
        return {name: 1 if share == 1 else share for name, share in shares.items()}
    return dict(weights)


def temperature_weights(tokens: Mapping[str, int], alpha: float) -> dict[str, float]:
    """Weights in proportion to ``tokens ** alpha``, which add up to 1.

    1 draws every source in proportion to what it holds, 0 all of them alike; between them, small sources come more
    often than their size says. (Conneau & Lample 2019, "Cross-lingual language model pretraining", for languages.)

    Args:
        tokens: of each source.
        alpha: the exponent, 1 / T where a temperature T is spoken of.
    """
    powers = {name: float(count) ** alpha for name, count in tokens.items()}
    total = sum(powers.values())
    return {name: power / total for name, power in powers.items()}


def rows_given(rows: int, weights: Sequence[int]) -> tuple[int, ...]:
    """How many of a stage's first rows of a lane are of each source (G): they add up to ``rows``, and none falls as
    ``rows`` rises.
    """
    given = [0] * len(weights)
    left, rest = rows, sum(weights)
    for place in sorted(range(len(weights)), key=lambda place: -weights[place]):  # of equals the first by name
        after = left * (rest - weights[place]) // rest
        given[place] = left - after
        left = after
        rest -= weights[place]
    return tuple(given)


def block_quotas(weights: Sequence[int], block: int) -> tuple[int, ...]:
    """The rows of each source in a block of a stage, `BLOCK` in all; blocks are counted from the stage's first."""
    before, after = rows_given(BLOCK * block, weights), rows_given(BLOCK * (block + 1), weights)
    return tuple(high - low for low, high in zip(before, after, strict=True))


@functools.lru_cache(maxsize=64)
def multiplier(count: int) -> int:
    """The number whose multiples are spread most evenly modulo ``count``: coprime to it, and of all of those the one
    whose continued fraction a / count has the smallest largest quotient; among equals the nearest to the golden ratio.
    """
    if count <= 2:
        return 1
    golden = (sqrt(5) - 1) / 2
    coprime = (a for a in range(1, count) if gcd(a, count) == 1)
    return min(coprime, key=lambda a: (_largest_quotient(a, count), abs(a / count - golden)))


def _largest_quotient(numerator: int, denominator: int) -> int:
    quotients = []
    while denominator:
        quotients.append(numerator // denominator)
        numerator, denominator = denominator, numerator % denominator
    return max(quotients[1:])


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """A block's rows of some lanes.

    Attributes:
        sources: shape ``(BLOCK, lanes)``, int64: each row's source, its place in the quotas.
        ordinals: shape ``(BLOCK, lanes)``, int64: how many rows of that source the lane has had in the block before.
    """

    sources: IntArray
    ordinals: IntArray

    def counts(self, source: int, first: int, last: int) -> IntArray:
        """How many of the block's rows ``[first, last)`` are of a source, shape ``(lanes,)``."""
        counts: IntArray = (self.sources[first:last] == source).sum(axis=0, dtype=np.int64)
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """Which rows are of which source, for a run's seed and lanes."""

    seed: int
    lanes: int

    def table(self, block: int, quotas: Sequence[int], first: int, last: int) -> BlockTable:
        """A block's rows of the lanes ``[first, last)``.

        Args:
            block: its number in the run.
            quotas: of each source, `BLOCK` in all.
            first, last: the lanes.
        """
        slots_of_a_block = BLOCK * self.lanes
        phase = int(random_words(1, key=[self.seed, block], counter=[0, 0, 0, _PHASE])[0]) % slots_of_a_block
        lane = np.arange(first, last, dtype=np.int64) * (multiplier(self.lanes) * BLOCK)
        row = np.arange(BLOCK, dtype=np.int64) * multiplier(BLOCK) % BLOCK * self.lanes
        slots = (lane[None, :] + row[:, None] + phase) % slots_of_a_block
        sums = np.cumsum(np.asarray(quotas, np.int64))
        sources = np.searchsorted(self.lanes * sums, slots, side="right").astype(np.int64, copy=False)
        # A lane has exactly its quotas, so its rows sorted by source lie in as many equal stretches in every lane.
        order = np.argsort(sources, axis=0, kind="stable")
        place = np.arange(BLOCK, dtype=np.int64)
        begins = np.repeat(sums - quotas, quotas)
        ordinals = np.empty_like(sources)
        np.put_along_axis(ordinals, order, (place - begins)[:, None], axis=0)
        return BlockTable(sources, ordinals)
