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

from parquet_loader import Component, ConfigError
from parquet_loader.insight import check_order, open_run
from parquet_loader.insight.order_check import mixture_problems, order_problems, rank_problems
from parquet_loader.options import LoaderOptions
from parquet_loader.order.mixture import BlockTable, Lattice
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
    _, problems = order_problems(order_of(tokens=tokens, lanes=lanes, window=window), seq_len, 3)
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
    _, problems = order_problems(order_of(kind), 4, 1)
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
    _, problems = order_problems(order_of(), 4, 1)
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


def test_a_run_is_proved_in_words(tmp_path: Path) -> None:
    sets = {name: str(write_set(tmp_path / name, unique_groups([[[20] * 9] * 4]))) for name in ("a", "b")}
    options = LoaderOptions(seq_len=8, lanes=4, window=2, weights={"a": 0.7, "b": 0.3})
    report = check_order(open_run(sets, options), tokens=10_000)
    assert report.ok
    assert [line.split(":")[0] for line in report.proved] == ["ranks", "mixture", "a", "b"]
    assert "on 1, 2, 4 ranks" in report.proved[0]
    assert "10 epochs of 720 tokens" in report.proved[2]


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        ("pad", "the run's 52 batches hold all 1,440 tokens"),
        ("drop", "tail='drop' leaves 12 of 1,440 tokens out, less than a batch's"),
    ],
)
def test_the_end_of_a_run_is_proved(tmp_path: Path, tail: Any, says: str) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[20] * 9] * 4]))
    run = open_run(folder, LoaderOptions(seq_len=7, lanes=4, epochs=2, tail=tail))
    assert check_order(run).proved[-1] == f"the end: {says}"
    if tail == "pad":
        assert isinstance(run, SetRun)
        assert run.finish is not None
        run.finish = dataclasses.replace(run.finish, stop=run.finish.stop - 7)
        assert "are in none of the run's" in check_order(run).problems[0]


def test_a_mixture_that_ends_before_the_tokens_that_are_planned_is_said_to(tmp_path: Path) -> None:
    sets = {name: write_set(tmp_path / name, unique_groups([[[20] * 9] * 4])) for name in ("a", "b")}
    options = LoaderOptions(seq_len=8, lanes=4, window=2, weights={"a": 0.7, "b": 0.3})
    run = open_run({"a": Component(sets["a"], max_epochs=6), "b": sets["b"]}, options)
    report = check_order(run, tokens=100_000)
    assert report.ok
    assert "of 49 blocks of 64 rows a lane, 3 were looked at" in report.proved[1]
    assert "The run ends before those planned: 'a' would be repeated more than max_epochs allows" in report.proved[1]


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
