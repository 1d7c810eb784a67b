from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.order.order import Order, lane_range, permutation, slice_starts, stable_argsort

COUNTS = st.integers(0, 10**15)


def order_of(tokens: list[int], *, lanes: int, window: int, seed: int = 0, shuffle: bool = True) -> Order:
    return Order(group_tokens=np.array(tokens, np.int64), lanes=lanes, window=window, seed=seed, shuffle=shuffle)


@given(before=COUNTS, size=COUNTS, lanes=st.integers(1, 300))
def test_slices_cover_the_window_and_follow_the_formula(before: int, size: int, lanes: int) -> None:
    after = before + size
    starts = slice_starts(before, after, lanes, 0, lanes)
    assert starts[0] == 0
    assert starts[-1] == size
    assert np.diff(starts).tolist() == [(after + i) // lanes - (before + i) // lanes for i in range(lanes)]


@given(before=COUNTS, size=COUNTS, lanes=st.integers(1, 60), data=st.data())
def test_a_range_of_lanes_sees_the_same_slices_as_all_lanes(before: int, size: int, lanes: int, data) -> None:
    first = data.draw(st.integers(0, lanes))
    last = data.draw(st.integers(first, lanes))
    whole = slice_starts(before, before + size, lanes, 0, lanes)
    assert slice_starts(before, before + size, lanes, first, last).tolist() == whole[first : last + 1].tolist()


@given(sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=50), lanes=st.integers(1, 40))
def test_no_two_lanes_ever_differ_by_more_than_one_token(sizes: list[int], lanes: int) -> None:
    received = np.zeros(lanes, np.int64)
    total = 0
    for size in sizes:
        received += np.diff(slice_starts(total, total + size, lanes, 0, lanes))
        total += size
        assert received.max() - received.min() <= 1
        assert received.tolist() == [(total + i) // lanes for i in range(lanes)]


@given(lanes=st.integers(1, 200), ranks=st.integers(1, 50))
def test_ranks_share_the_lanes_without_gap_or_overlap(lanes: int, ranks: int) -> None:
    ranges = [lane_range(rank, ranks, lanes) for rank in range(ranks)]
    assert [lane for first, last in ranges for lane in range(first, last)] == list(range(lanes))
    assert max(last - first for first, last in ranges) - min(last - first for first, last in ranges) <= 1


WORDS = st.integers(0, 2**64 - 1)


@given(
    stretches=st.lists(st.lists(WORDS, max_size=50) | st.lists(WORDS | st.integers(0, 5), max_size=50), max_size=4),
)
def test_the_fast_argsort_is_stable_where_words_are_equal(stretches: list[list[int]]) -> None:
    borders = [0, *itertools.accumulate(map(len, stretches))]
    found = stable_argsort(np.array(list(itertools.chain.from_iterable(stretches)), np.uint64), borders)
    for words, (low, high) in zip(stretches, itertools.pairwise(borders), strict=True):
        expected = np.argsort(np.array(words, np.uint64), kind="stable") + low
        assert found[low:high].tolist() == expected.tolist()


@pytest.mark.parametrize("differing", [0, 1, 6, 7, 8, 63])
def test_the_fast_argsort_tells_words_apart_by_any_bit(differing: int) -> None:
    words = np.full(100, 2**64 - 1, np.uint64)
    words[::3] ^= np.uint64(1 << differing)
    assert stable_argsort(words, [0, 100]).tolist() == np.argsort(words, kind="stable").tolist()


def test_the_documents_of_neighbouring_lanes_are_in_the_order_that_each_has_alone() -> None:
    order = order_of([100], lanes=9, window=1, seed=5)
    together = order.document_order([0, 7, 7, 20], epoch=2, window=3, lane=4)
    for lane, (low, high) in enumerate([(0, 7), (7, 7), (7, 20)], 4):
        alone = order.document_order([0, high - low], epoch=2, window=3, lane=lane)
        assert (together[low:high] - low).tolist() == alone.tolist()


def test_permutations_are_the_ones_this_format_promises() -> None:
    # These values pin the order of every run that was ever started. They may change only together with the version
    # of the checkpoint format, and never because NumPy, the platform or this code did.
    assert permutation(8, seed=0, epoch=0, domain=0).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert permutation(8, seed=2**64 - 1, epoch=3, domain=1, lane=5, window=7).tolist() == [0, 5, 4, 3, 1, 2, 6, 7]


def test_every_use_of_randomness_has_a_stream_of_its_own() -> None:
    uses = itertools.product([0, 1], [0, 1], [0, 1], [0, 1], [0, 1])
    seen = {
        tuple(permutation(20, seed=seed, epoch=epoch, domain=domain, lane=lane, window=window).tolist())
        for seed, epoch, domain, lane, window in uses
    }
    assert len(seen) == 32


TOKENS = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)


@given(tokens=TOKENS, lanes=st.integers(1, 9), window=st.integers(1, 14), seed=st.integers(0, 2**64 - 1))
def test_an_epoch_holds_every_row_group_once(tokens: list[int], lanes: int, window: int, seed: int) -> None:
    order = order_of(tokens, lanes=lanes, window=window, seed=seed)
    windows = list(itertools.takewhile(lambda w: w.epoch < 3, order.windows(0, lanes - 1)))
    for epoch in range(3):
        mine = [w for w in windows if w.epoch == epoch]
        groups = [group for w in mine for group in w.groups.tolist()]
        # Windows of no tokens before the first that has some may be left out, as nothing is due from them.
        missing = set(range(len(tokens))) - set(groups)
        assert sum(tokens[group] for group in missing) == 0
        assert len(groups) == len(set(groups))
        for w in mine:
            assert w.offsets.tolist() == [0, *np.cumsum([tokens[g] for g in w.groups]).tolist()]


@given(tokens=TOKENS, lanes=st.integers(1, 9), window=st.integers(1, 5), data=st.data())
def test_windows_from_a_position_begin_with_the_one_that_holds_it(tokens, lanes: int, window: int, data) -> None:
    order = order_of(tokens, lanes=lanes, window=window)
    position = data.draw(st.integers(0, 3 * order.total // lanes + 3))
    lane = data.draw(st.integers(0, lanes - 1))
    first = next(order.windows(position, lane))
    begin = (first.before + lane) // lanes
    end = (first.before + first.tokens + lane) // lanes
    assert begin <= position < end
    from_start = order.windows(0, lane)
    walked = next(w for w in from_start if (w.before + w.tokens + lane) // lanes > position)
    assert (walked.epoch, walked.number, walked.before) == (first.epoch, first.number, first.before)
    assert walked.groups.tolist() == first.groups.tolist()


@given(total=st.integers(1, 500), lanes=st.integers(1, 60), position=st.integers(0, 2000))
def test_a_batch_belongs_to_the_epoch_of_lane_zeros_first_token(total: int, lanes: int, position: int) -> None:
    order = order_of([total], lanes=lanes, window=1)
    epoch = order.epoch_of(position)
    assert order.epoch_begin(epoch) <= position < order.epoch_begin(epoch + 1) or (
        # Epochs shorter than a token of each lane begin at one position: it belongs to the last of them.
        order.epoch_begin(epoch) == position
    )
    assert order.epoch_begin(epoch + 1) > position


@given(total=st.integers(1, 500), lanes=st.integers(1, 20), seq_len=st.integers(1, 40), offset=st.integers(0, 100))
def test_the_batches_of_an_epoch_are_counted_right(total: int, lanes: int, seq_len: int, offset: int) -> None:
    order = order_of([total], lanes=lanes, window=1)
    positions = range(offset % seq_len, 4 * total + seq_len, seq_len)
    for epoch in range(3):
        counted = sum(order.epoch_of(position) == epoch for position in positions)
        assert order.batches_of(epoch, seq_len, offset) == counted


def test_without_shuffle_everything_is_in_storage_order() -> None:
    order = order_of([3, 4, 5], lanes=2, window=2, shuffle=False)
    assert order.group_order(5).tolist() == [0, 1, 2]
    assert order.document_order([0, 4], epoch=1, window=0, lane=0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("epoch", [0, 1, 2**40])
def test_epochs_far_away_are_reached_at_once(epoch: int) -> None:
    order = order_of([7] * 10, lanes=3, window=4)
    position = order.epoch_begin(epoch) + 1
    assert next(order.windows(position, 2)).epoch == epoch
