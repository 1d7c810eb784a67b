"""The proof that an order delivers each token once, and that it fails where one does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unique_sets import unique_groups, write_set

from parquet_loader import Component, ConfigError, ParquetLoader
from parquet_loader.insight import check_order, open_run, order_check
from parquet_loader.insight.order_check import mixture_problems, order_problems, rank_problems
from parquet_loader.options import LoaderOptions
from parquet_loader.order import progress as progress_module
from parquet_loader.order.mixture import BLOCK, BlockTable, Lattice, block_quotas
from parquet_loader.order.order import Order, StepBlocks, Window
from parquet_loader.order.progress import MixturePlan, MixtureProgress
from parquet_loader.runs import SetRun


def order_of(kind: type[Order] = Order, *, tokens: list[int] | None = None, lanes: int = 4, window: int = 3) -> Order:
    counts = np.array(tokens or [100, 37, 0, 64, 91, 5, 200], np.int64)
    return kind(group_tokens=counts, lanes=lanes, window=window, seed=1, shuffle=True)


@given(
    tokens=st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(any),
    lanes=st.integers(1, 7),
    window=st.integers(1, 10),
    seq_len=st.integers(1, 12),
)
def test_every_order_is_proved(tokens: list[int], lanes: int, window: int, seq_len: int) -> None:
    _, problems, _ = order_problems(order_of(tokens=tokens, lanes=lanes, window=window), seq_len, 3)
    assert problems == []


class _Twice(Order):
    """An order that gives a row group twice, and another never."""

    def group_order(self, epoch: int) -> Any:
        order = super().group_order(epoch).copy()
        order[0] = order[1]
        return order


class _StepsTwice(Order):
    """One that gives a block of text twice."""

    def step_blocks(self, window: Window, length: int) -> StepBlocks:
        steps = super().step_blocks(window, length)
        texts = steps.texts.copy()
        texts[:1] = texts[-1:]
        return dataclasses.replace(steps, texts=texts)


class _StepsTooFar(Order):
    """One that permutes a step which not every lane has whole."""

    def step_blocks(self, window: Window, length: int) -> StepBlocks:
        steps = super().step_blocks(window, length)
        last = steps.first + len(steps.texts)
        return dataclasses.replace(steps, texts=np.append(steps.texts, [last, last + 1]))


class _Gap(Order):
    """One whose second window begins too late."""

    def windows(self, position: int, lane: int) -> Iterator[Window]:
        for window in super().windows(position, lane):
            yield dataclasses.replace(window, before=window.before + (window.number == 1))


class _DocumentsTwice(Order):
    """One that gives a document twice."""

    def document_order(self, borders: Any, **where: int) -> Any:
        order = super().document_order(borders, **where).copy()
        order[0] = order[1]
        return order


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (_Twice, "times, not once"),
        (_StepsTwice, "do not deliver each"),
        (_StepsTooFar, "not every lane has whole"),
        (_Gap, "the windows before it end"),
        (_DocumentsTwice, "documents of a slice"),
    ],
)
def test_an_order_that_is_wrong_is_found(kind: type[Order], says: str) -> None:
    _, problems, _ = order_problems(order_of(kind), 4, 1)
    assert any(says in problem for problem in problems), problems


def _moved(starts: Any) -> Any:
    starts = starts.copy()
    starts[1] += 1
    return starts


def _short(starts: Any) -> Any:
    return np.minimum(starts, starts[-1] - 1)


@pytest.mark.parametrize(
    ("change", "says"), [(_moved, "does not begin where the one before it ended"), (_short, "slices of 4 lanes")]
)
def test_slices_that_overlap_or_end_early_are_found(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], says: str
) -> None:
    right = Window.slice_starts
    monkeypatch.setattr(Window, "slice_starts", lambda *arguments: change(right(*arguments)))
    _, problems, _ = order_problems(order_of(), 4, 1)
    assert any(says in problem for problem in problems), problems


def test_ranks_without_a_lane_are_found() -> None:
    assert rank_problems(12, [1, 2, 5, 12]) == []
    assert rank_problems(12, [13]) == ["of 13 ranks some have no lane: use at most 12"]


def _mixture(lattice: Lattice) -> list[str]:
    plan = MixturePlan(lattice=lattice, schedule=((0, (("a", 7), ("b", 3))), (20_000, (("a", 1), ("b", 1)))))
    return mixture_problems(plan, MixtureProgress(position=0, lengths=((0, 8),)), 1000)[1]


def test_a_mixture_is_proved() -> None:
    assert _mixture(Lattice(seed=0, lanes=5)) == []


class _Shares(Lattice):
    def table(self, block: int, quotas: Any, first: int, last: int) -> BlockTable:
        table = super().table(block, quotas, first, last)
        table.sources[np.argmax(table.sources[:, 0]), 0] = 0
        return table


class _Rows(Lattice):
    def table(self, block: int, quotas: Any, first: int, last: int) -> BlockTable:
        table = super().table(block, quotas, first, last)
        return BlockTable(table.sources, table.ordinals[::-1])


@pytest.mark.parametrize(("kind", "says"), [(_Shares, "not every lane has"), (_Rows, "one after another")])
def test_a_lattice_that_is_wrong_is_found(kind: type[Lattice], says: str) -> None:
    assert any(says in problem for problem in _mixture(kind(seed=0, lanes=5)))


def _equal(weights: Any, block: int) -> tuple[int, ...]:
    """Quotas that know nothing of weights."""
    return (BLOCK - BLOCK // len(weights) * (len(weights) - 1), *[BLOCK // len(weights)] * (len(weights) - 1))


def _rounded(weights: Any, block: int) -> tuple[int, ...]:
    """Quotas that are the same in every block."""
    return block_quotas(weights, 0)


@pytest.mark.parametrize("quotas", [_equal, _rounded])
@pytest.mark.parametrize("counted", [True, False])
def test_quotas_that_are_not_what_the_weights_ask_for_are_found(
    monkeypatch: pytest.MonkeyPatch, quotas: Callable[[Any, int], tuple[int, ...]], counted: bool
) -> None:
    monkeypatch.setattr(progress_module, "block_quotas", quotas)
    if counted:  # also by what whole blocks are counted to give

        def given(rows: int, weights: Any) -> tuple[int, ...]:
            blocks = [[0] * len(weights), *(quotas(weights, block) for block in range(rows // BLOCK))]
            return tuple(np.sum(blocks, axis=0).tolist())

        monkeypatch.setattr(progress_module, "rows_given", given)
    says = "its weight asks for" if counted else "tokens a lane of"
    assert any(says in problem for problem in _mixture(Lattice(seed=0, lanes=5)))


def test_blocks_that_are_not_whole_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "block_quotas", lambda weights, block: (40, 20))
    assert any("its quotas are 60 rows" in problem for problem in _mixture(Lattice(seed=0, lanes=5)))


def test_a_source_that_has_a_weight_and_is_not_drawn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MixtureProgress.entered

    def without_b(progress: MixtureProgress, plan: MixturePlan) -> MixtureProgress:
        entered = right(progress, plan)
        stages = tuple(dataclasses.replace(stage, weights=stage.weights[:1]) for stage in entered.stages)
        return dataclasses.replace(entered, stages=stages)

    monkeypatch.setattr(MixtureProgress, "entered", without_b)
    assert any("'b' has the weight 3 and is not drawn" in problem for problem in _mixture(Lattice(seed=0, lanes=5)))


def test_a_stage_that_never_begins_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MixtureProgress.entered
    first = lambda plan: dataclasses.replace(plan, schedule=plan.schedule[:1])  # noqa: E731
    monkeypatch.setattr(MixtureProgress, "entered", lambda progress, plan: right(progress, first(plan)))
    monkeypatch.setattr(MixturePlan, "scheduled", lambda plan, progress: [(0, 0, plan.schedule[0][1])])
    assert any("its weight asks for" in problem for problem in _mixture(Lattice(seed=0, lanes=5)))


@given(
    weights=st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 1000), min_size=1),
    more=st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 1000), min_size=1),
    rows=st.integers(1, 100_000),
)
def test_every_mixture_is_proved(weights: dict[str, int], more: dict[str, int], rows: int) -> None:
    schedule = ((0, tuple(sorted(weights.items()))), (1000, tuple(sorted(more.items()))))
    plan = MixturePlan(lattice=Lattice(seed=0, lanes=2), schedule=schedule)
    begin = MixtureProgress(position=0, lengths=((0, 8),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_check, "_MOST_BLOCKS", 20)
        assert mixture_problems(plan, begin, rows)[1] == []


def test_a_mixture_says_what_it_skips_and_which_source_it_has_not_drawn(tmp_path: Path) -> None:
    sets = {name: str(write_set(tmp_path / name, unique_groups([[[20] * 9] * 4]))) for name in ("a", "b")}
    options = LoaderOptions(seq_len=8, lanes=4, window=2, weights={"a": 1, "b": 0.001}, skip_batches=70)
    report = check_order(open_run(sets, options), tokens=10**4)
    assert report.ok
    assert report.proved[1].endswith("Not a row in all 320: 'b'")
    assert report.proved[-1] == "the run: it begins at step 70, and the 2,240 tokens before that are not delivered"


def test_a_run_is_proved_in_words(tmp_path: Path) -> None:
    sets = {name: str(write_set(tmp_path / name, unique_groups([[[20] * 9] * 4]))) for name in ("a", "b")}
    options = LoaderOptions(seq_len=8, lanes=4, window=2, weights={"a": 0.7, "b": 0.3})
    report = check_order(open_run(sets, options), tokens=10_000)
    assert report.ok
    assert [line.split(":")[0] for line in report.proved] == ["ranks", "mixture", "a", "b"]
    assert "on 1, 2, 4 ranks" in report.proved[0]
    assert report.proved[1].startswith("mixture: 5 of 5 blocks of 64 rows a lane were looked at")
    assert report.proved[2].startswith("a: 10 of 10 epochs were looked at, 20 windows, 720 tokens an epoch")


def run_of_a_set(tmp_path: Path, **options: Any) -> SetRun:
    """Of 720 tokens an epoch, unless it is of a mixture."""
    folder = write_set(tmp_path / "set", unique_groups([[[20] * 9] * 4]))
    run = open_run(folder, LoaderOptions(**{"seq_len": 7, "lanes": 4, "overlap": 0, **options}))
    assert isinstance(run, SetRun)
    return run


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"tail": "pad"},
            "52 steps deliver 1,440 of the 1,440 tokens of epochs=2, each once; then 16 places of padding",
        ),
        ({"tail": "pad", "seq_len": 8}, "45 steps deliver 1,440 of the 1,440 tokens of epochs=2, each once"),
        (
            {"tail": "drop"},
            "51 steps deliver 1,428 of the 1,440 tokens of epochs=2, each once; tail='drop' leaves the last 12 out, "
            "which do not fill a batch",
        ),
        (
            {"tail": "drop", "seq_len": 1000},
            "0 steps: none of the 1,440 tokens of epochs=2 is delivered; tail='drop' leaves the last 1,440 out, which "
            "do not fill a batch",
        ),
        (
            {"tail": "drop", "skip_batches": 50},
            "1 step delivers 28 of the 1,440 tokens of epochs=2, each once; it begins at step 50, and the 1,400 tokens "
            "before that are not delivered; tail='drop' leaves the last 12 out, which do not fill a batch",
        ),
        (
            {"tail": "pad", "skip_batches": 1000},
            "0 steps: none of the 1,440 tokens of epochs=2 is delivered; it begins at step 1,000, and the 1,440 tokens "
            "before that are not delivered",
        ),
        (
            {"epochs": None, "skip_batches": 3},
            "it has no end, and its rows of 7 tokens follow each other; it begins at step 3, and the 84 tokens before "
            "that are not delivered",
        ),
    ],
)
def test_what_a_run_delivers_and_what_it_leaves_out_is_said(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    assert check_order(run_of_a_set(tmp_path, **{"epochs": 2, **options})).proved[-1] == f"the run: {says}"


def test_what_a_run_skipped_and_a_reweight_are_said(tmp_path: Path) -> None:
    sets = {name: str(write_set(tmp_path / name, unique_groups([[[20] * 9] * 4]))) for name in ("a", "b")}
    options: dict[str, Any] = dict(seq_len=8, lanes=4, overlap=0, weights={"a": 1, "b": 1})
    with ParquetLoader(sets, **options) as loader:
        next(iter(loader))
        loader.reweight({"a": 0.2, "b": 0.8})
        loader.skip(2)
        state = loader.state_dict()
    report = check_order(open_run(sets, LoaderOptions(**options), state))
    assert report.proved[1].endswith("those that the run was made with, and none of reweight()")
    assert report.proved[-1] == (
        "the run: it begins at step 3, and the 96 tokens before that are not delivered; 64 of them had been skipped"
    )


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("lanes", [4, 7])
@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize("batches", [0, 1, 13])
def test_what_a_run_delivers_is_what_the_loader_gives(
    tmp_path: Path, lanes: int, overlap: int, tail: Any, batches: int
) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[20] * 9] * 4]))
    options: dict[str, Any] = dict(seq_len=13, lanes=lanes, epochs=1, tail=tail, overlap=overlap, skip_batches=batches)
    run = open_run(folder, LoaderOptions(**options))
    with ParquetLoader(folder, **options) as loader:
        seen, steps, padding = set(), 0, 0
        for batch in loader:
            lengths = batch.lengths if batch.lengths is not None else [13 + overlap] * lanes
            for row, length in zip(batch.tokens, lengths, strict=True):
                seen.update(row[: min(length, 13)].tolist())  # what overlaps aside
                padding += 13 + overlap - int(length)
            steps += 1
    deliver = "step delivers" if steps == 1 else "steps deliver"
    says = f"{steps} {deliver} {len(seen)} of" if steps else "0 steps: none of"
    line = check_order(run).proved[-1]
    assert line.startswith(f"the run: {says} the 720 tokens of epochs=1")
    assert ("padding" in line) == bool(padding)
    if padding:
        assert line.endswith(f"; then {padding} places of padding")


@pytest.mark.parametrize(
    ("tail", "moved", "says"),
    [
        ("pad", -7, "12 of 1,440 tokens are in none of the run's 51 batches"),
        ("pad", 7, "the last of the run's 53 batches is padding alone"),
        ("drop", -7, "the run ends after 50 batches, and one more would be full"),
        ("drop", 7, "the last of the run's 52 batches is not full"),
    ],
)
def test_an_end_that_is_too_early_or_too_late_is_found(tmp_path: Path, tail: Any, moved: int, says: str) -> None:
    run = run_of_a_set(tmp_path, epochs=2, tail=tail)
    assert run.finish is not None
    run.finish = dataclasses.replace(run.finish, stop=run.finish.stop + moved)
    assert any(says in problem for problem in check_order(run).problems)


def test_lanes_that_end_elsewhere_than_the_order_leads_them_are_found(tmp_path: Path) -> None:
    run = run_of_a_set(tmp_path, epochs=2, tail="pad")
    assert run.finish is not None
    run.finish = dataclasses.replace(run.finish, ends=run.finish.ends + np.array([1, -1, 0, 0]))
    assert any("not where its lanes have had all" in problem for problem in check_order(run).problems)


def test_how_much_of_what_was_asked_for_was_looked_at_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_check, "_MOST_WINDOWS", 20)
    (_, line, _) = check_order(run_of_a_set(tmp_path, window=4), tokens=10**12).proved
    assert line.startswith("20 of 1,388,888,889 epochs were looked at, 20 windows")
    (_, line, end) = check_order(run_of_a_set(tmp_path, window=4, epochs=3), tokens=10**4).proved
    assert line.startswith("3 of 3 epochs were looked at, 3 windows")
    assert end.endswith("it ends after epochs=3, before the 10,000 tokens that are planned")
    (_, line, _) = check_order(run_of_a_set(tmp_path, window=4)).proved
    assert line.startswith("the first 2 epochs of a run without end were looked at")


def test_a_lane_in_the_middle_whose_pieces_are_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    order = order_of(tokens=[61, 38, 63], lanes=7, window=1)
    right = StepBlocks.pieces
    stretches = []  # of lanes, by window
    for window, _ in zip(order.windows(0, 6), range(3), strict=False):
        begins = window.lane_begins(7, 0, 7)
        stretches.append(list(zip(begins, begins + np.diff(window.slice_starts(7, 0, 7)), strict=True)))
    middle = next(lane for lanes in stretches for lane in lanes[1:-1] if lane not in (lanes[0], lanes[-1]))
    assert order_problems(order, 2, 1)[1] == []

    def wrong(steps: StepBlocks, low: int, high: int) -> list[tuple[int, int, int]]:
        return right(steps, low, high)[: -1 if (low, high) == middle else None]

    monkeypatch.setattr(StepBlocks, "pieces", wrong)
    assert any("the steps of lane" in problem for problem in order_problems(order, 2, 1)[1])


def test_a_mixture_that_ends_before_the_tokens_that_are_planned_is_said_to(tmp_path: Path) -> None:
    sets = {name: write_set(tmp_path / name, unique_groups([[[20] * 9] * 4])) for name in ("a", "b")}
    options = LoaderOptions(seq_len=8, lanes=4, window=2, weights={"a": 0.7, "b": 0.3})
    run = open_run({"a": Component(sets["a"], max_epochs=6), "b": sets["b"]}, options)
    report = check_order(run, tokens=100_000)
    assert report.ok
    assert "mixture: 3 of 49 blocks of 64 rows a lane were looked at" in report.proved[1]
    assert "The run ends before those planned: 'a' would be repeated more than max_epochs allows" in report.proved[1]


def test_a_mixture_whose_sources_end_one_after_another_is_proved(tmp_path: Path) -> None:
    sets = {name: write_set(tmp_path / name, unique_groups([[[20] * 9] * 4])) for name in ("a", "b", "c")}
    weights = [(0, {"a": 0.7, "b": 0.3}), (9000, {"a": 0.2, "b": 0.5, "c": 0.3})]
    options = LoaderOptions(seq_len=8, lanes=4, window=2, weights=weights, exhausted="redistribute")
    limited = {name: Component(sets[name], max_epochs=epochs) for name, epochs in (("a", 10), ("b", 30))}
    report = check_order(open_run({**limited, "c": sets["c"]}, options), tokens=100_000)
    assert report.ok, report.problems
    assert report.proved[1].startswith("mixture: 49 of 49 blocks")


def test_a_world_size_that_the_loader_refuses_is_a_problem_unless_it_is_allowed(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[30, 40, 7]]]))
    options: dict[str, Any] = dict(seq_len=8, lanes=4)
    with pytest.raises(ConfigError) as caught:
        LoaderOptions(**options, world_size=3)
    refused = check_order(open_run(folder, LoaderOptions(**options)), world_sizes=[2, 3])
    assert refused.problems == (str(caught.value),)
    allowed = check_order(open_run(folder, LoaderOptions(**options, uneven=True)), world_sizes=[2, 3])
    assert allowed.ok
    assert allowed.proved[0].startswith("ranks: on 2, 3 ranks")
    too_many = check_order(open_run(folder, LoaderOptions(**options, uneven=True)), world_sizes=[5])
    assert too_many.problems[0].startswith("world_size 5 is more than lanes 4")
