"""How documents are grouped into row groups and files."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.pretokenize.write.row_groups import growing_file_tokens, is_full, plan_row_groups, starts_new_file

LENGTHS = st.lists(st.one_of(st.integers(0, 30), st.integers(0, 300)), max_size=60)
TARGETS = st.integers(1, 60)


def groups_of(lengths: list[int], target: int, batch_documents: int) -> list[list[int]]:
    """What a writer makes of documents that arrive in batches."""
    groups: list[list[int]] = []
    waiting: list[int] = []
    for start in range(0, len(lengths), batch_documents):
        waiting += lengths[start : start + batch_documents]
        for documents in plan_row_groups(np.array(waiting, dtype=np.int64), target):
            groups.append(waiting[:documents])
            waiting = waiting[documents:]
    return [*groups, waiting] if waiting else groups


@pytest.mark.parametrize(
    ("lengths", "target", "expected"),
    [
        ([3, 4, 4, 2, 6, 3, 25, 1], 10, [[3, 4, 4], [2, 6, 3], [25, 1]]),  # the module's own example
        ([10, 10, 10], 10, [[10], [10], [10]]),
        ([10, 10, 4], 10, [[10], [10, 4]]),  # 4 is a crumb
        ([10, 10, 5], 10, [[10], [10], [5]]),  # 5 is half a target
        ([7, 7, 7, 7], 10, [[7], [7], [7], [7]]),
        ([100], 10, [[100]]),
        ([2], 10, [[2]]),
        ([0, 0], 10, [[0, 0]]),
        ([100, 100, 100], 10, [[100], [100], [100]]),
        ([], 10, []),
    ],
)
def test_documents_are_cut_where_the_sum_is_nearest_to_the_target(
    lengths: list[int], target: int, expected: list[list[int]]
) -> None:
    assert groups_of(lengths, target, len(lengths) or 1) == expected


@given(LENGTHS, TARGETS)
def test_every_document_is_in_exactly_one_group_and_in_order(lengths: list[int], target: int) -> None:
    assert list(chain.from_iterable(groups_of(lengths, target, 7))) == lengths


@given(LENGTHS, TARGETS, st.integers(1, 60))
def test_the_batches_in_which_documents_arrive_make_no_difference(
    lengths: list[int], target: int, batch_documents: int
) -> None:
    assert groups_of(lengths, target, batch_documents) == groups_of(lengths, target, len(lengths) or 1)


@given(LENGTHS, TARGETS)
def test_no_group_is_a_crumb_unless_it_is_the_only_one(lengths: list[int], target: int) -> None:
    groups = groups_of(lengths, target, 7)
    assert len(groups) <= 1 or all(2 * sum(group) >= target for group in groups)


@given(LENGTHS, TARGETS)
def test_no_group_is_much_longer_than_the_target_or_its_longest_document(lengths: list[int], target: int) -> None:
    groups = groups_of(lengths, target, 7)
    for group in groups[:-1]:
        assert 2 * sum(group) <= max(3 * target, target + 2 * max(group))
    for group in groups[-1:]:  # a crumb at the end may have joined it
        assert 2 * sum(group) <= max(4 * target, 2 * target + 2 * max(group))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200))
def test_a_file_of_whole_groups_is_within_half_a_group_of_its_target(groups: list[int], target: int) -> None:
    files: list[list[int]] = [[]]
    for group in groups:
        if starts_new_file(sum(files[-1]), group, target):
            files.append([])
        files[-1].append(group)
    assert list(chain.from_iterable(files)) == groups
    for at, file in enumerate(files):
        assert len(file) == 1 or 2 * (sum(file) - target) <= max(file)
        if at + 1 < len(files):
            following = files[at + 1][0]
            assert 2 * (target - sum(file)) <= following


@given(LENGTHS, TARGETS, st.integers(1, 5))
def test_a_file_that_is_closed_when_it_is_full_ends_where_it_would_have_when_the_next_group_came(
    lengths: list[int], target: int, groups_in_file: int
) -> None:
    early: list[list[int]] = []
    late: list[list[int]] = []
    full = True
    for group in map(sum, groups_of(lengths, target, 7)):
        if full or starts_new_file(sum(early[-1]), group, target * groups_in_file):
            early.append([])
        early[-1].append(group)
        full = is_full(sum(early[-1]), target * groups_in_file, target)
        if not late or starts_new_file(sum(late[-1]), group, target * groups_in_file):
            late.append([])
        late[-1].append(group)
    assert early == late


def test_the_files_of_a_growing_set_double_up_to_their_target() -> None:
    assert [growing_file_tokens(number, 1, 100) for number in range(9)] == [1, 2, 4, 8, 16, 32, 64, 100, 100]
    assert [growing_file_tokens(number, 30, 100) for number in (0, 1, 2, 10**6)] == [30, 60, 100, 100]
