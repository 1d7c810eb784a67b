"""Where a run is and how it came there, against a model that goes row by row and carries everything."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixture_model import Model

from parquet_loader.errors import SourceExhaustedError
from parquet_loader.order.mixture import BLOCK, Lattice, Weights, integer_weights
from parquet_loader.order.progress import MixturePlan, MixtureProgress, Progress, Stage, changed, traced

NAMES = "abcde"
SHARES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([1, 2, 3, 7, 100, 100_000]), min_size=1)


@st.composite
def plans(draw: st.DrawFn, *, ends: bool = True) -> MixturePlan:
    lanes = draw(st.integers(1, 9))
    tokens = draw(st.lists(st.integers(1, 20_000), max_size=3, unique=True))
    return MixturePlan(
        lattice=Lattice(seed=draw(st.integers(0, 2**64 - 1)), lanes=lanes),
        schedule=tuple((token, integer_weights(draw(SHARES))) for token in [0, *sorted(tokens)]),
        limits=draw(st.dictionaries(st.sampled_from(NAMES[:3]), st.integers(0, 3000))) if ends else {},
        redistribute=draw(st.booleans()),
        overlap=draw(st.integers(0, 1)),
    )


EVENTS = st.lists(
    st.tuples(st.just("run"), st.integers(1, 300))
    | st.tuples(st.just("skip"), st.integers(1, 200))
    | st.tuples(st.just("resize"), st.integers(1, 7))
    | st.tuples(st.just("reweight"), SHARES),
    min_size=1,
    max_size=8,
)


def one_length_at_a_place(events: list[Any]) -> bool:
    """Whether rows lie between any two changes of length, as between any two resumes that change it."""
    kinds = [kind for kind, _ in events if kind != "reweight"]
    return all({"resize"} != {low, high} for low, high in itertools.pairwise(kinds))


def play(plan: MixturePlan, seq_len: int, events: list[Any], *, by_one: bool = False) -> tuple[MixtureProgress, Model]:
    """A run of these events, and the model's; both up to where a source is exhausted."""
    progress, model = MixtureProgress(position=0, lengths=((0, seq_len),)), Model(plan, seq_len, NAMES)
    for kind, value in events:
        if kind == "resize":
            progress = progress.resized(value, plan.lattice)
            model.seq_len = value
        elif kind == "reweight":
            progress = progress.reweighted(integer_weights(value), plan)
            model.reweighted = integer_weights(value)
        else:
            done = 0
            try:
                for _ in range(value):
                    model.step()
                    done += 1
            except SourceExhaustedError:
                with pytest.raises(SourceExhaustedError):
                    progress.advanced(value, plan)
                return progress.advanced(done, plan), model
            if by_one:
                for _ in range(value):
                    progress = progress.advanced(1, plan)
            else:
                progress = progress.skipped(value, plan) if kind == "skip" else progress.advanced(value, plan)
    return progress, model


RUNS = dict(plan=plans(), seq_len=st.integers(1, 7), events=EVENTS.filter(one_length_at_a_place))


@given(**RUNS)
def test_a_run_has_had_what_the_lattice_counts(plan, seq_len, events) -> None:
    progress, model = play(plan, seq_len, events)
    assert (progress.row, progress.position) == (model.row, model.position)
    for name in NAMES:
        had = progress.had(name, plan.lattice, 0, plan.lattice.lanes)
        assert (had == model.had[name]).all()
        first = plan.lattice.lanes // 2
        assert (progress.had(name, plan.lattice, first, plan.lattice.lanes) == model.had[name][first:]).all()


@given(**RUNS)
def test_stages_are_those_that_a_run_came_to(plan, seq_len, events) -> None:
    progress, model = play(plan, seq_len, events)
    begun = -(-progress.row // BLOCK)
    come_to = [stage for stage in model.stages if stage.block < begun]
    assert [stage for stage in progress.stages if stage.block < begun] == come_to
    assert progress.drawn() == tuple(sorted({name for stage in come_to for name, _ in stage.weights}))


@given(**RUNS)
def test_many_rows_lead_where_as_many_single_ones_do(plan, seq_len, events) -> None:
    progress, _ = play(plan, seq_len, events)
    by_one, _ = play(plan, seq_len, events, by_one=True)
    assert replace(progress, skips=()) == by_one


@given(**RUNS)
def test_a_run_is_traced_from_its_lengths_and_stages(plan, seq_len, events) -> None:
    progress, _ = play(plan, seq_len, events)
    found = traced(plan.lattice, progress.lengths, progress.stages, progress.position)
    assert found == replace(progress, skips=())


@given(data=st.data(), **RUNS)
def test_every_earlier_step_is_traced(data, plan, seq_len, events) -> None:
    progress, model = play(plan, seq_len, events)
    if not model.row:
        return
    row = data.draw(st.integers(0, model.row - 1))
    before = traced(plan.lattice, progress.lengths, progress.stages, model.begins[row])
    assert before.row == row
    again = Model(plan, seq_len, NAMES)
    pending = list(events)
    while again.row < row:  # the same events, up to that row
        kind, value = pending.pop(0)
        if kind == "resize":
            again.seq_len = value
        elif kind == "reweight":
            again.reweighted = integer_weights(value)
        else:
            for _ in range(min(value, row - again.row)):
                again.step()
    for name in NAMES:
        assert (before.had(name, plan.lattice, 0, plan.lattice.lanes) == again.had[name]).all()


@given(**RUNS)
def test_rows_and_positions_are_told_from_each_other(plan, seq_len, events) -> None:
    progress, model = play(plan, seq_len, events)
    rows = range(model.row)
    assert [progress.position_of(row) for row in rows] == model.begins
    assert [progress.rows_before(position) for position in model.begins] == list(rows)
    assert progress.rows_before(progress.position) == model.row
    assert progress.position_of(model.row + 5) == model.position + 5 * progress.seq_len


@given(**RUNS)
def test_what_was_skipped_is_kept_and_nothing_else_differs(plan, seq_len, events) -> None:
    progress, model = play(plan, seq_len, events)
    taken, _ = play(plan, seq_len, [("run", value) if kind == "skip" else (kind, value) for kind, value in events])
    assert replace(progress, skips=()) == taken
    skipped = sum(progress.rows_before(end) - progress.rows_before(begin) for begin, end in progress.skips)
    full = sum(value for kind, value in events if kind == "skip")
    assert skipped <= full
    if model.row == sum(value for kind, value in events if kind in ("run", "skip")):
        assert skipped == full


@given(plan=plans(ends=False), seq_len=st.integers(1, 7), events=EVENTS)
def test_all_lanes_stand_alike_at_the_end_of_a_block_without_changes_in_it(plan, seq_len, events) -> None:
    progress, _ = play(plan, seq_len, events)
    progress = progress.advanced(-progress.row % BLOCK, plan)
    inside = any(Progress.rows_before(progress, begin) % BLOCK for begin, _ in progress.lengths)
    for name in NAMES:
        had = np.broadcast_to(progress.had(name, plan.lattice, 0, plan.lattice.lanes), plan.lattice.lanes)
        # A change of length within a block leaves lanes apart by the rows of which they had more before it.
        assert inside or had.min() == had.max()
        longest = max(length for _, length in progress.lengths)
        assert had.max() - had.min() <= 4 * longest * len(progress.pieces)


# ── sources that end ─────────────────────────────────────────────────────────────────────────────────────────────


def exhausting(shares: dict[str, float], limits: dict[str, int], *, redistribute: bool) -> MixturePlan:
    return MixturePlan(
        lattice=Lattice(seed=1, lanes=3),
        schedule=((0, integer_weights(shares)),),
        limits=limits,
        redistribute=redistribute,
    )


def test_an_exhausted_source_is_told_before_the_block_that_would_need_more() -> None:
    plan = exhausting({"a": 1, "b": 3}, {"a": 16 * 10 * 5 + 7}, redistribute=False)
    progress = MixtureProgress(position=0, lengths=((0, 5),)).advanced(10 * BLOCK, plan)
    with pytest.raises(SourceExhaustedError, match=r"^'a' would be repeated more .* from token 9,600 of the run on"):
        progress.entered(plan)
    with pytest.raises(SourceExhaustedError, match="from token 9,600 of"):
        MixtureProgress(position=0, lengths=((0, 5),)).advanced(10**9, plan)


def test_rows_of_a_source_that_has_ended_go_to_the_others_by_weight() -> None:
    plan = exhausting({"a": 2, "b": 3, "c": 1}, {"b": 32 * 7}, redistribute=True)
    progress = MixtureProgress(position=0, lengths=((0, 1),)).advanced(100 * BLOCK, plan)
    assert progress.stages == (
        Stage(0, (("a", 2), ("b", 3), ("c", 1))),
        Stage(7, (("a", 2), ("c", 1)), "exhausted"),
    )
    assert progress.had("b", plan.lattice, 0, 3) == 32 * 7
    rest = 93 * BLOCK
    since = progress.had("a", plan.lattice, 0, 3) - MixtureProgress(position=0, lengths=((0, 1),)).advanced(
        7 * BLOCK, plan
    ).had("a", plan.lattice, 0, 3)
    assert abs(since - Fraction(2 * rest, 3)) < 1


def test_sources_end_one_after_another_until_none_is_left() -> None:
    plan = exhausting({"a": 1, "b": 1, "c": 2}, {"a": 100, "b": 1000, "c": 10_000}, redistribute=True)
    progress = MixtureProgress(position=0, lengths=((0, 1),))
    with pytest.raises(SourceExhaustedError, match="all sources of the mixture have given their max_epochs at token"):
        progress.advanced(10**6, plan)
    low, high = 0, 10**6
    while high - low > 1:
        middle = (low + high) // 2
        try:
            progress.advanced(middle, plan)
            low = middle
        except SourceExhaustedError:
            high = middle
    last = progress.advanced(low, plan)
    assert [stage.by for stage in last.stages] == ["schedule", "exhausted", "exhausted"]
    assert low % BLOCK == 0
    # Each gave all but less than what a block would have asked for.
    for name, limit in plan.limits.items():
        assert limit - BLOCK < last.had(name, plan.lattice, 0, 3) <= limit


def test_rows_longer_than_what_is_left_of_a_block_are_refused_and_those_of_before_work() -> None:
    plan = exhausting({"a": 1, "b": 1}, {"a": 32 * 4 * 3}, redistribute=False)
    progress = MixtureProgress(position=0, lengths=((0, 4),)).advanced(2 * BLOCK + 10, plan)
    with pytest.raises(
        SourceExhaustedError, match=r"'a' has too little left .* in rows of 5 tokens; use the seq_len of"
    ):
        progress.resized(5, plan.lattice).check_rest(plan)
    progress.check_rest(plan)
    ended = progress.advanced(BLOCK - 10, plan)
    ended.resized(5, plan.lattice).check_rest(plan)
    assert ended.had("a", plan.lattice, 0, 3) == plan.limits["a"]
    progress.resized(3, plan.lattice).check_rest(plan)


# ── far away ─────────────────────────────────────────────────────────────────────────────────────────────────────


def calls_of(work) -> int:
    """How many Python functions are called."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture
def far() -> tuple[MixturePlan, MixtureProgress]:
    plan = MixturePlan(
        lattice=Lattice(seed=0, lanes=512),
        schedule=tuple((k * 10**9, integer_weights({"a": 1, "b": 1 + k, "c": 0.001})) for k in range(5)),
        limits={"c": 10**12},
    )
    progress = MixtureProgress(position=0, lengths=((0, 4096),)).advanced(1000, plan).resized(8192, plan.lattice)
    return plan, progress


def test_what_a_step_costs_does_not_grow_with_the_run(far) -> None:
    plan, progress = far
    near = progress.advanced(10**6 - 1000, plan)
    away = progress.advanced(10**7 - 1000, plan)
    assert away.row == 10**7
    for rows in (1, BLOCK):
        few, many = (
            calls_of(lambda rows=rows: near.advanced(rows, plan)),
            calls_of(lambda rows=rows: away.advanced(rows, plan)),
        )
        assert abs(many - few) <= 4  # stages are found by halves, which takes one look more or less


def test_what_going_far_costs_does_not_grow_with_the_way(far) -> None:
    plan, progress = far
    short, long = calls_of(lambda: progress.advanced(10**5, plan)), calls_of(lambda: progress.advanced(10**10, plan))
    assert long < 4 * short  # what is left is a search by halves


def test_tracing_a_run_costs_as_much_as_it_has_stages(far) -> None:
    plan, progress = far

    def calls(to: MixtureProgress) -> int:
        return calls_of(lambda: traced(plan.lattice, to.lengths, to.stages, to.position))

    some, more = progress.advanced(10**6, plan), progress.advanced(10**10, plan)
    assert len(some.stages) == len(more.stages) == 5
    assert abs(calls(more) - calls(some)) <= 4  # stages are found by halves


def test_a_run_is_exact_a_billion_rows_away(far) -> None:
    plan, progress = far
    away = progress.advanced(10**9 - 1000, plan)
    assert away.row == 10**9
    total = 0
    for name in "abc":
        total += np.broadcast_to(away.had(name, plan.lattice, 0, 512), 512).astype(object).sum()
    assert total == away.position * 512
    assert away == traced(plan.lattice, away.lengths, away.stages, away.position)


# ── runs of one set, and histories that no run has ───────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50)), min_size=1, max_size=6))
def test_positions_of_one_set_follow_its_lengths(parts: list[tuple[int, int]]) -> None:
    progress = Progress(position=0, lengths=((0, parts[0][0]),))
    begins, position = [], 0
    for seq_len, rows in parts:
        progress = progress.resized(seq_len).advanced(rows)
        begins += range(position, position + rows * seq_len, seq_len)
        position += rows * seq_len
    assert progress.position == position
    assert [progress.position_of(row) for row in range(len(begins))] == begins
    assert [progress.rows_before(begin) for begin in begins] == list(range(len(begins)))
    lengths = [length for _, length in progress.lengths]
    assert all(low != high for low, high in itertools.pairwise(lengths))


def test_a_length_that_was_changed_twice_at_one_place_was_changed_once() -> None:
    assert changed(changed(((0, 4),), 8, 2), 8, 3) == ((0, 4), (8, 3))
    assert changed(changed(((0, 4),), 8, 2), 8, 4) == ((0, 4),)


@pytest.mark.parametrize(
    ("lengths", "stages", "position"),
    [
        ((), [Stage(0, (("a", 1),))], 0),
        (((1, 4),), [Stage(0, (("a", 1),))], 8),
        (((0, 4),), [], 4),
        (((0, 4),), [Stage(1, (("a", 1),))], 4),
        (((0, 4),), [Stage(0, (("a", 1),))], 6),
        (((0, 4), (6, 2)), [Stage(0, (("a", 1),))], 8),
        (((0, 4), (8, 3)), [Stage(0, (("a", 1),))], 12),
    ],
    ids=["no length", "a late length", "no stage", "a late stage", "half a row", "half a row before", "and after"],
)
def test_what_no_run_has_done_is_not_traced(lengths, stages, position) -> None:
    with pytest.raises(ValueError, match=r"a history begins at 0|do not lead"):
        traced(Lattice(seed=0, lanes=3), lengths, stages, position)


@given(plan=plans(ends=False), seq_len=st.integers(1, 7), rows=st.integers(0, 500))
def test_a_stage_begins_with_the_first_block_at_or_after_its_token(plan, seq_len, rows) -> None:
    progress = MixtureProgress(position=0, lengths=((0, seq_len),))
    block_tokens = BLOCK * seq_len * plan.lattice.lanes
    wanted: dict[int, Weights] = {math.ceil(token / block_tokens): weights for token, weights in plan.schedule}
    assert [(block, weights) for block, _, weights in plan.scheduled(progress)] == sorted(wanted.items())
    for block, weights in wanted.items():
        entered = progress.advanced(block * BLOCK, plan).entered(plan)
        stage = entered.stage_of(block)
        assert stage is not None
        assert stage.weights == weights
