"""What becomes of a run that goes on from a state otherwise than it was, and what loaders then do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import (
    CheckpointDamagedError,
    CheckpointMismatchError,
    Component,
    ParquetLoader,
    ParquetLoaderError,
    SourceExhaustedError,
)
from parquet_loader.insight import Resumption, open_run, plan, resumption
from parquet_loader.options import LoaderOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTIONS: dict[str, Any] = dict(seq_len=8, lanes=4, window=3)
WEIGHTS = {"a": 3, "b": 1}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sets")
    return {
        name: write_set(folder / name, unique_groups([[[30 + number, 20, 7] * 6] * 5] * 2))
        for number, name in enumerate("abc")
    }


def state_of(source: Any, steps: int = 70, **options: Any) -> dict[str, Any]:
    with ParquetLoader(source, **{**OPTIONS, **options}) as loader:
        for batch, _ in zip(loader, range(steps), strict=False):
            state = batch.state
    return state


def foreseen(source: Any, state: dict[str, Any], **options: Any) -> Resumption:
    run = open_run(source, LoaderOptions(**{**OPTIONS, **options}))
    return resumption(run, state)


def refusal(source: Any, state: dict[str, Any], **options: Any) -> str:
    """What a loader says that is asked to go on."""
    with pytest.raises(ParquetLoaderError) as caught, ParquetLoader(source, **{**OPTIONS, **options}) as loader:
        loader.load_state_dict(state)
    assert isinstance(caught.value, (CheckpointMismatchError, SourceExhaustedError))
    return str(caught.value)


def test_a_run_that_is_as_it_was_goes_on_where_it_was(sets: dict[str, Path]) -> None:
    found = foreseen(sets["a"], state_of(sets["a"], 13))
    assert (found.refused, found.changes, found.repeated, found.skipped) == (None, (), 0, 0)
    assert found.begin is not None
    assert (found.begin.step, found.begin.token) == (13, 13 * 32)


@pytest.mark.parametrize(
    "changed",
    [
        lambda sets: (sets["b"], {}),
        lambda sets: (sets["a"], {"lanes": 8}),
        lambda sets: (sets["a"], {"window": 4}),
        lambda sets: (sets["a"], {"seed": 1}),
        lambda sets: (sets["a"], {"eos_id": 0}),
        lambda sets: (sets["a"], {"shuffle": False}),
        lambda sets: ({"b": sets["b"]}, {"weights": {"b": 1}}),
    ],
)
def test_another_run_is_refused_in_the_words_of_the_loader(
    sets: dict[str, Path], changed: Callable[[dict[str, Path]], tuple[Any, dict[str, Any]]]
) -> None:
    state = state_of(sets["a"])
    source, options = changed(sets)
    found = foreseen(source, state, **options)
    assert found.refused == refusal(source, state, **options)
    assert found.begin is None


def test_another_past_of_a_schedule_is_refused_with_the_line_that_helps(sets: dict[str, Path]) -> None:
    sources = {"a": sets["a"], "b": sets["b"]}
    state = state_of(sources, weights=WEIGHTS)
    other: Any = {"a": 1, "b": 1}
    refused = foreseen(sources, state, weights=other).refused
    assert refused == refusal(sources, state, weights=other)
    in_toml, _, line = refused.partition("add what is new as a stage, in TOML ")[2].partition(", else weights=")
    weights = json.loads(line)
    assert eval(line) == weights == tomllib.loads(in_toml)["weights"]
    found = foreseen(sources, state, weights=weights)
    assert found.refused is None
    assert found.changes == ("from step 128, token 4,096 on it draws {'a': 0.5, 'b': 0.5}",)


def test_a_refused_run_is_left_as_it_was(sets: dict[str, Path]) -> None:
    run = open_run(sets["a"], LoaderOptions(**OPTIONS))
    before = plan(run, world_sizes=[])
    assert resumption(run, state_of(sets["b"])).refused
    assert plan(run, world_sizes=[]) == before


def test_other_rows_and_a_window_of_the_state_are_told(sets: dict[str, Path]) -> None:
    state = state_of(sets["a"], 13)
    found = foreseen(sets["a"], state, seq_len=16, window=None, skip_batches=3)
    assert found.refused is None
    assert len(found.changes) == 3
    rows, skipped, window = found.changes
    assert rows.startswith("rows have 16 tokens and had 8, so that a step is 64 tokens and was 32")
    assert skipped.startswith("skip_batches=3 does not count")
    assert window.startswith("the window is that of the state, 3 row groups")


def test_sources_that_come_and_go_are_told(sets: dict[str, Path]) -> None:
    sources = {"a": sets["a"], "b": sets["b"]}
    state = state_of(sources, weights=WEIGHTS)
    weights = [(0, WEIGHTS), (4096, {"a": 1, "c": 1})]
    found = foreseen({**sources, "c": sets["c"]}, state, weights=weights)
    assert found.changes == (
        "from step 128, token 4,096 on it draws {'a': 0.5, 'c': 0.5}",
        "source 'c' is new, and begins at its beginning",
    )
    later = state_of({**sources, "c": sets["c"]}, 200, weights=weights)
    found = foreseen({"a": sets["a"], "c": sets["c"], "b": sets["b"]}, later, weights=weights)
    assert found.changes == ("source 'b' is not drawn any more; states keep its place, and its files are not needed",)
    again = [*weights, (8192, {"b": 1})]
    found = foreseen({**sources, "c": sets["c"]}, later, weights=again)
    assert "source 'b' is drawn again, from where it was left" in found.changes


def test_a_run_of_one_set_becomes_a_mixture(sets: dict[str, Path]) -> None:
    sources = {"a": sets["a"], "b": sets["b"]}
    state = state_of(sets["a"])
    found = foreseen(sources, state, weights=[(0, {"a": 1}), (4096, {"a": 1, "b": 1})])
    assert found.changes == (
        "the only set of the run so far, 2 files, is source 'a' now",
        "from step 128, token 4,096 on it draws {'a': 0.5, 'b': 0.5}",
        "source 'b' is new, and begins at its beginning",
    )


def test_rows_that_a_source_has_too_little_left_for_are_refused(sets: dict[str, Path]) -> None:
    sources = {"a": Component(sets["a"], max_epochs=1), "b": sets["b"]}
    state = state_of(sources, 60, weights=WEIGHTS)
    found = foreseen(sources, state, weights=WEIGHTS, seq_len=400)
    assert found.refused == refusal(sources, state, weights=WEIGHTS, seq_len=400)


def test_limits_of_sources_are_told_as_they_are_now(sets: dict[str, Path]) -> None:
    sources = {"a": Component(sets["a"], max_epochs=9), "b": sets["b"]}
    state = state_of(sources, weights=WEIGHTS)
    changed = {**sources, "a": Component(sets["a"], max_epochs=8)}
    found = foreseen(changed, state, weights=WEIGHTS, exhausted="redistribute", overlap=1)
    assert (found.refused, found.changes) == (None, ())
    assert found.not_kept == {"overlap": 1, "max_epochs": {"a": 8, "b": None}, "exhausted": "redistribute"}


def test_an_eos_of_a_component_may_not_change(sets: dict[str, Path]) -> None:
    state = state_of({"a": sets["a"]}, weights={"a": 1})
    found = foreseen({"a": Component(sets["a"], eos_id=0)}, state, weights={"a": 1})
    assert found.refused is not None
    assert "'a': eos_id is None in the checkpoint and 0 in this loader" in found.refused


def test_what_is_no_state_is_an_error(sets: dict[str, Path]) -> None:
    with pytest.raises(CheckpointDamagedError):
        foreseen(sets["a"], {"version": 2})


@pytest.mark.parametrize("steps", [1, 64, 70, 100])
def test_what_goes_on_is_what_the_loader_then_does(sets: dict[str, Path], steps: int) -> None:
    sources = {"a": sets["a"], "b": sets["b"]}
    options: dict[str, Any] = {"weights": [(0, WEIGHTS), (4096, {"b": 1})], "seq_len": 12}
    state = state_of(sources, steps, weights=WEIGHTS)
    run = open_run(sources, LoaderOptions(**{**OPTIONS, **options}))
    found = resumption(run, state)
    planned = plan(run, steps=steps + 150, world_sizes=[])
    with ParquetLoader(sources, **{**OPTIONS, **options}) as loader:
        loader.load_state_dict(state)
        assert found.begin is not None
        assert loader.stats()["position"] * 4 == found.begin.token
        for _ in zip(range(150), loader, strict=False):
            pass
        begun = [(stage["step"], stage["token"]) for stage in loader.history["stages"]]
        drawn = {name: of["tokens"] for name, of in loader.stats()["sources"].items()}
    assert [(stage.begin.step, stage.begin.token) for stage in planned.stages] == begun
    told = next(change for change in found.changes if change.startswith("from step"))
    assert told.startswith(f"from step {begun[1][0]:,}, token {begun[1][1]:,} on it draws {{'b': 1}}")
    assert {source.name: source.drawn for source in planned.sources} == drawn
    assert planned.end.step == steps + 150
