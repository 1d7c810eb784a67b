"""Which source each row is of: shares, lanes, batches and ranks, by random and by every case."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.order.mixture import (
    BLOCK,
    Lattice,
    block_quotas,
    integer_weights,
    multiplier,
    rows_given,
    shown_weights,
    temperature_weights,
)

# From 1 in 100,000 to equal ones.
WEIGHTS = st.lists(st.integers(1, 10**5) | st.sampled_from([1, 10**5]), min_size=1, max_size=100)
ROWS = st.integers(0, 1000) | st.integers(0, 10**9)
SEEDS = st.integers(0, 2**64 - 1)
LANES = st.integers(1, 70) | st.sampled_from([96, 100, 128, 192, 256, 512, 1000, 1024])


def harmonic(count: int) -> float:
    return sum(1 / number for number in range(1, count + 1))


# ── shares ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(rows=ROWS, weights=WEIGHTS)
def test_the_rows_of_all_sources_add_up(rows: int, weights: list[int]) -> None:
    assert sum(rows_given(rows, weights)) == rows


@given(rows=ROWS, more=st.integers(1, 1000), weights=WEIGHTS)
def test_no_source_has_fewer_rows_later(rows: int, more: int, weights: list[int]) -> None:
    before, after = rows_given(rows, weights), rows_given(rows + more, weights)
    assert all(low <= high for low, high in zip(before, after, strict=True))


@given(rows=ROWS, weights=WEIGHTS)
def test_shares_are_exact_but_for_a_few_rows_for_ever(rows: int, weights: list[int]) -> None:
    total, short = sum(weights), harmonic(len(weights) - 1)
    for given_, weight in zip(rows_given(rows, weights), weights, strict=True):
        off = given_ - Fraction(rows * weight, total)
        assert -short <= off < 1


@pytest.mark.parametrize(
    "weights",
    [
        [7, 3],
        [1, 10**5],
        [1] * 99 + [10**5],
        [10**5] + [1] * 99,
        [1] * 100,
        [max(1, 10**5 // rank) for rank in range(1, 101)],
        [10**5 // 2**k + 1 for k in range(17)],
    ],
    ids=["two", "a rare one", "99 rare ones", "99 rare ones behind", "equal", "Zipf", "halves"],
)
def test_no_source_is_ever_four_rows_off(weights: list[int]) -> None:
    total = sum(weights)
    some = [*range(0, 10**4, BLOCK), *range(BLOCK * 10**6, BLOCK * (10**6 + 50), BLOCK), 10**9 - 1, 10**9]
    for rows in some:
        assert all(
            abs(given_ - Fraction(rows * weight, total)) < 4
            for given_, weight in zip(rows_given(rows, weights), weights, strict=True)
        )


def test_a_large_source_is_not_pushed_aside_by_many_tiny_ones() -> None:
    assert block_quotas([1] * 99 + [10**5], 0)[-1] == BLOCK
    # Each tiny source comes about once in 100,099 rows, and not all of them at the same time.
    rare = [sum(block_quotas([1] * 99 + [10**5], block)[:-1]) for block in range(1565)]
    assert sum(rare) in (98, 99, 100)
    assert max(rare) == 1


@given(weights=WEIGHTS, block=st.integers(0, 10**7))
def test_a_blocks_quotas_are_its_rows_and_none_is_negative(weights: list[int], block: int) -> None:
    quotas = block_quotas(weights, block)
    assert sum(quotas) == BLOCK
    assert min(quotas) >= 0


@given(weights=WEIGHTS.filter(lambda weights: len(weights) < 40))
def test_every_source_gets_a_row_however_small_its_weight(weights: list[int]) -> None:
    enough = math.ceil((1 + harmonic(len(weights))) * sum(weights) / min(weights))
    assert min(rows_given(enough, weights)) >= 1


@given(weights=WEIGHTS, block=st.integers(0, 10**6), factor=st.integers(2, 10**6))
def test_only_the_ratios_of_weights_count(weights: list[int], block: int, factor: int) -> None:
    assert block_quotas(weights, block) == block_quotas([weight * factor for weight in weights], block)


# ── the lattice ──────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Lattice, int, tuple[int, ...]]:
    block = draw(st.integers(0, 10**9))
    return Lattice(seed=draw(SEEDS), lanes=draw(LANES)), block, block_quotas(draw(WEIGHTS), block)


@given(blocks())
def test_every_lane_has_exactly_the_quotas_after_each_block(block) -> None:
    lattice, number, quotas = block
    sources = lattice.table(number, quotas, 0, lattice.lanes).sources
    for source, quota in enumerate(quotas):
        assert ((sources == source).sum(axis=0) == quota).all()


@given(blocks())
def test_every_batch_is_within_one_row_of_the_blocks_share_of_each_source(block) -> None:
    lattice, number, quotas = block
    sources = lattice.table(number, quotas, 0, lattice.lanes).sources
    for source, quota in enumerate(quotas):
        rows = (sources == source).sum(axis=1)
        assert (np.abs(rows * BLOCK - lattice.lanes * quota) < BLOCK).all()


@given(blocks())
def test_ordinals_count_a_lanes_rows_of_each_source(block) -> None:
    lattice, number, quotas = block
    table = lattice.table(number, quotas, 0, lattice.lanes)
    for source in range(len(quotas)):
        own = table.sources == source
        assert (table.ordinals[own] == (own.cumsum(axis=0) - 1)[own]).all()


@given(block=blocks(), data=st.data())
def test_a_rank_sees_what_all_lanes_have(block, data) -> None:
    lattice, number, quotas = block
    first = data.draw(st.integers(0, lattice.lanes - 1))
    last = data.draw(st.integers(first + 1, lattice.lanes))
    whole, part = (lattice.table(number, quotas, *lanes) for lanes in ((0, lattice.lanes), (first, last)))
    assert (part.sources == whole.sources[:, first:last]).all()
    assert (part.ordinals == whole.ordinals[:, first:last]).all()
    source, rows = (
        data.draw(st.integers(0, len(quotas) - 1)),
        sorted(data.draw(st.tuples(*[st.integers(0, BLOCK)] * 2))),
    )
    assert part.counts(source, *rows).tolist() == [
        whole.sources[rows[0] : rows[1], lane].tolist().count(source) for lane in range(first, last)
    ]


@given(blocks())
def test_lanes_are_at_most_four_rows_apart(block) -> None:
    lattice, number, quotas = block
    sources = lattice.table(number, quotas, 0, lattice.lanes).sources
    for source in range(len(quotas)):
        had = (sources == source).cumsum(axis=0)
        assert (had.max(axis=1) - had.min(axis=1) <= 4).all()


def test_lanes_are_at_most_four_rows_apart_at_whatever_place_a_lane_and_a_source_stand() -> None:
    # A lane has the rows of a source for which t * p falls into a stretch of as many places as its quota: with any
    # number of lanes and any phase, one of these.
    places = np.arange(BLOCK) * multiplier(BLOCK) % BLOCK
    apart = []
    for quota in range(1, BLOCK + 1):
        had = np.array([((places - begin) % BLOCK < quota).cumsum() for begin in range(BLOCK)])
        apart.append(int((had.max(axis=0) - had.min(axis=0)).max()))
    assert max(apart) == 4


def most_off_on_a_rank(lanes: int, world_size: int) -> float:
    """How far from its part a rank's rows of a source are at a step at worst, over all quotas, phases and ranks.

    At a step a source has the lanes for which ``i * a`` falls into an arc of about quota / 64 of all, anywhere; another
    rank's lanes are as another arc is to those of the first.
    """
    own = lanes // world_size
    there = np.zeros(lanes, np.int64)
    there[np.arange(own) * multiplier(lanes) % lanes] = 1
    sums = np.concatenate([[0], np.cumsum(np.tile(there, 2))])
    worst = 0.0
    for quota in range(1, BLOCK):
        for arc in {lanes * quota // BLOCK, -(-lanes * quota // BLOCK)}:
            rows = sums[arc : arc + lanes] - sums[:lanes]
            worst = max(worst, float(np.abs(rows - own * quota / BLOCK).max()))
    return worst


def test_each_rank_has_its_part_of_each_source_at_each_step_within_three_rows() -> None:
    for lanes in range(1, 129):
        for world_size in (ranks for ranks in range(1, lanes + 1) if lanes % ranks == 0):
            assert most_off_on_a_rank(lanes, world_size) < 3, (lanes, world_size)


@pytest.mark.parametrize("lanes", [192, 224, 256, 384, 512, 768, 960, 1000, 1024, 2048, 4096])
def test_each_rank_of_many_has_its_part_of_each_source_at_each_step_within_four_rows(lanes: int) -> None:
    for world_size in (ranks for ranks in range(1, lanes + 1) if lanes % ranks == 0):
        assert most_off_on_a_rank(lanes, world_size) < 4


@given(block=blocks(), data=st.data())
def test_no_rank_is_further_off_than_that(block, data) -> None:
    lattice, number, quotas = block
    world_size = data.draw(st.sampled_from([n for n in range(1, lattice.lanes + 1) if lattice.lanes % n == 0]))
    worst, own = most_off_on_a_rank(lattice.lanes, world_size), lattice.lanes // world_size
    sources = lattice.table(number, quotas, 0, lattice.lanes).sources.reshape(BLOCK, world_size, own)
    for source, quota in enumerate(quotas):
        assert (np.abs((sources == source).sum(axis=2) - own * quota / BLOCK) <= worst).all()


def test_blocks_do_not_repeat() -> None:
    lattice = Lattice(seed=0, lanes=61)
    tables = {lattice.table(block, [45, 19], 0, 61).sources.tobytes() for block in range(200)}
    assert len(tables) > 180  # of 64 * 61 that there are


# ── multipliers ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 1), (3, 2), (64, 45), (512, 323), (1000, 703)])
def test_the_multipliers_are_the_ones_this_format_promises(count: int, expected: int) -> None:
    assert multiplier(count) == expected


@given(count=st.integers(1, 5000))
def test_a_multiplier_is_coprime_so_that_its_multiples_come_to_every_place(count: int) -> None:
    assert gcd(multiplier(count), count) == 1


# ── golden values: they may change only together with the version of states ──────────────────────────────────────

GOLDEN_TABLES = {
    (0, 8, 0, (45, 19)): "19ea637a1ef7e5453501059cb8c6c0ff",
    (0, 512, 7, (32, 20, 11, 1)): "d4cf71f29a9caa9246f22a8afd8662c6",
    (2**64 - 1, 1, 10**9, (1, 63)): "ec3d5670393c01458b4325e32c1b3072",
    (12345, 1000, 3, (0, 13, 50, 0, 1)): "5193f4ab37f85345d1a6bd2b57218aa7",
    (7, 61, 2**40, tuple([1] * 64)): "08997950f3770bc77611463cfdf2725c",
}


@pytest.mark.parametrize(("case", "digest"), GOLDEN_TABLES.items(), ids=str)
def test_the_lattice_is_the_one_this_format_promises(case, digest: str) -> None:
    seed, lanes, block, quotas = case
    table = Lattice(seed=seed, lanes=lanes).table(block, quotas, 0, lanes)
    found = hashlib.sha256(table.sources.astype("<i8").tobytes() + table.ordinals.astype("<i8").tobytes())
    assert found.hexdigest()[:32] == digest


GOLDEN_QUOTAS = {
    (7, 3): "837a0e3c1bd7452a06a915520a3b8b08",
    (1, 99_999): "feb1e3533b4ded8e6c391df9ddf3b8bf",
    (5, 5, 5): "38a81ccc6434af11857084df50da5a62",
    tuple(10**6 // rank for rank in range(1, 31)): "8338e81579fc12e7497e99eab766f5f0",
}


@pytest.mark.parametrize(("weights", "digest"), GOLDEN_QUOTAS.items(), ids=range(len(GOLDEN_QUOTAS)))
def test_the_quotas_are_the_ones_this_format_promises(weights: tuple[int, ...], digest: str) -> None:
    quotas = [block_quotas(weights, block) for block in [*range(2000), 10**9]]
    assert hashlib.sha256(np.array(quotas, "<i8").tobytes()).hexdigest()[:32] == digest


# ── weights ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"a": 0.7, "b": 0.3}, (("a", 7), ("b", 3))),
        ({"b": 3, "a": 7}, (("a", 7), ("b", 3))),
        ({"a": 70.0, "b": 30}, (("a", 7), ("b", 3))),
        ({"a": np.float32(0.5), "b": np.int64(1)}, (("a", 1), ("b", 2))),
        ({"a": 0.1, "b": 0.2}, (("a", 1), ("b", 2))),
        ({"a": 1 / 3, "b": 2 / 3}, (("a", 333333333), ("b", 666666667))),
        ({"a": 1e-300, "b": 1}, (("a", 1), ("b", 10**9))),
        ({"a": 0, "b": 0.0, "c": 5}, (("c", 1),)),
        ({"a": 10**30, "b": 10**29}, (("a", 10), ("b", 1))),
        ({"a": 1e300, "b": 1e300}, (("a", 1), ("b", 1))),
    ],
    ids=str,
)
def test_weights_become_the_smallest_integers(weights, expected) -> None:
    assert integer_weights(weights) == expected


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "web 2", "ä", '"']), st.integers(0, 10**12) | st.floats(0, 1e12), min_size=1
    )
)
def test_weights_that_are_shown_are_read_as_the_same(weights) -> None:
    if not any(weights.values()):
        weights["a"] = 1
    found = integer_weights(weights)
    assert integer_weights(shown_weights(found)) == found
    assert [name for name, _ in found] == sorted(name for name, weight in weights.items() if weight)
    assert gcd(*(weight for _, weight in found)) == 1


def test_weights_are_shown_as_shares_where_these_are_exact() -> None:
    assert shown_weights((("a", 7), ("b", 3))) == {"a": 0.7, "b": 0.3}
    assert shown_weights((("a", 1),)) == {"a": 1}
    assert shown_weights((("a", 1), ("b", 2))) == {"a": 1, "b": 2}


@pytest.mark.parametrize("weight", [-1, -0.5, math.nan, math.inf, -math.inf, "1", None, True, np.True_, 1j, [1]])
def test_what_is_no_weight_is_told_with_its_source(weight) -> None:
    with pytest.raises(ValueError, match=r"^the weight of 'code' must be a number, 0 or more, not "):
        integer_weights({"web": 1, "code": weight})


@pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": 0.0, "b": 0}])
def test_weights_of_which_none_is_positive_are_refused(weights) -> None:
    with pytest.raises(ValueError, match="no weight is positive"):
        integer_weights(weights)


def test_a_temperature_moves_weights_between_sizes_and_equal_ones() -> None:
    tokens = {"en": 900, "fi": 100}
    assert temperature_weights(tokens, 1) == {"en": 0.9, "fi": 0.1}
    assert temperature_weights(tokens, 0) == {"en": 0.5, "fi": 0.5}
    assert temperature_weights(tokens, 0.5) == pytest.approx({"en": 0.75, "fi": 0.25})


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_in_which_sources_are_written_changes_nothing(names) -> None:
    shares = dict(zip("abcd", (0.4, 0.3, 0.2, 0.1), strict=True))
    assert integer_weights({name: shares[name] for name in names}) == integer_weights(shares)
