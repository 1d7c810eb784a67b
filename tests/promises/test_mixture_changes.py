"""What may change between the parts of a mixture's run, what may not, and what people are told: advice is followed."""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import lane_streams
from unique_sets import unique_groups, write_set

from parquet_loader import (
    Batch,
    CheckpointMismatchError,
    Component,
    ConfigError,
    DataError,
    FileChangedError,
    ParquetLoader,
    PathNotFoundError,
    SourceExhaustedError,
    merge_checkpoints,
)

OPTIONS: dict[str, Any] = {"seq_len": 8, "lanes": 6, "window": 2, "seed": 3}
BLOCK_TOKENS = 64 * 8 * 6
FILES = {
    "code": [[[(3 * d + 5 * g) % 23 for d in range(12)] for g in range(5)]],
    "math": [[[(7 * d + g) % 31 for d in range(9)] for g in range(4)]],
    "web": [[[(5 * d + 11 * g) % 37 for d in range(15)] for g in range(6)]],
}
GROUPS = {name: [group for file in unique_groups(files) for group in file] for name, files in FILES.items()}
EVEN = {"code": 1, "web": 1}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    for name, files in FILES.items():
        write_set(folder / name, unique_groups(files))
    return folder


@pytest.fixture(scope="module")
def sources(sets: Path) -> dict[str, Any]:
    return {name: str(sets / name) for name in FILES}


def take(loader: ParquetLoader, count: int) -> list[Batch]:
    """So many batches, of a loader of one set also past the ends of its epochs."""
    return list(itertools.islice((batch for _ in iter(int, 1) for batch in loader), count))


def run(sources: Any, weights: Any, steps: int, state: Any = None, **options: Any) -> list[Batch]:
    """So many batches from a state on."""
    with ParquetLoader(sources, weights=weights, **{**OPTIONS, **options}) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return take(loader, steps)


def state_after(sources: Any, weights: Any, steps: int, **options: Any) -> dict[str, Any]:
    return run(sources, weights, steps, **options)[-1].state


def same(found: list[Batch], wanted: list[Batch]) -> bool:
    return len(found) == len(wanted) and all(
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.sources, b.sources) and a.state == b.state
        for a, b in zip(found, wanted, strict=True)
    )


# ── the same run ─────────────────────────────────────────────────────────────────────────────────────────────────

STAGED = [(0, {"code": 0.6, "web": 0.4}), (BLOCK_TOKENS + 1, {"code": 0.2, "math": 0.3, "web": 0.5})]


def test_from_a_checkpoint_at_every_step_the_rest_is_identical(sources) -> None:
    whole = run(sources, STAGED, 200, overlap=1)
    with ParquetLoader(sources, weights=STAGED, overlap=1, **OPTIONS) as loader:
        for step in range(0, 190):
            loader.load_state_dict(whole[step].state)
            assert same(take(loader, 3), whole[step + 1 : step + 4])


def test_a_lanes_rows_of_a_source_are_those_of_the_source_alone(sources) -> None:
    batches = run(sources, STAGED, 300)
    for place, name in enumerate(sources):
        order = {key: OPTIONS[key] for key in ("seq_len", "lanes", "window", "seed")}
        streams = lane_streams(GROUPS[name], shuffle=True, epochs=30, **order)
        for lane in range(6):
            rows = [batch.tokens[lane] for batch in batches if batch.sources[lane] == place]
            assert np.concatenate(rows).tolist() == streams[lane][: len(rows) * 8]


def test_ranks_hold_their_lanes_of_what_one_rank_holds(sources) -> None:
    whole = run(sources, STAGED, 150)
    for world_size in (2, 3, 6):
        parts = [run(sources, STAGED, 150, rank=rank, world_size=world_size) for rank in range(world_size)]
        for step, batch in enumerate(whole):
            assert np.concatenate([part[step].tokens for part in parts]).tolist() == batch.tokens.tolist()
            assert np.concatenate([part[step].sources for part in parts]).tolist() == batch.sources.tolist()
            assert all(part[step].state == batch.state for part in parts)


def test_a_merged_checkpoint_of_two_ranks_resumes_on_three(sources) -> None:
    whole = run(sources, STAGED, 120)
    parts = []
    for rank in range(2):
        with ParquetLoader(sources, weights=STAGED, rank=rank, world_size=2, **OPTIONS) as loader:
            take(loader, 70)
            parts.append(loader.checkpoint())
    for rank in range(3):
        with ParquetLoader(sources, weights=STAGED, rank=rank, world_size=3, **OPTIONS) as loader:
            loader.resume(merge_checkpoints(parts))
            for batch, wanted in zip(take(loader, 50), whole[70:], strict=True):
                assert batch.tokens.tolist() == wanted.tokens[2 * rank : 2 * rank + 2].tolist()


# These digests may change only together with the version of states: see test_golden.py.
GOLDEN = {
    "two sources": (EVEN, {}, "2a5b27549853b58dfbf236ed58876471db747491af972be6ef410647ce2791f0"),
    "stages, overlap and an end": (
        STAGED,
        {"overlap": 1, "eos_id": 50_000, "exhausted": "redistribute"},
        "95bce1e1f805890a873292ebd28f56342011d8fe068de0c43068dd8763e0ffa3",
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_the_order_is_the_one_of_state_version_2(sources, case: str) -> None:
    weights, options, wanted = GOLDEN[case]
    if "exhausted" in options:
        sources = {**sources, "code": Component(sources["code"], max_epochs=3)}
    digest = hashlib.sha256()
    for batch in run(sources, weights, 400, **options):
        digest.update(batch.sources.astype("<i4").tobytes() + batch.tokens.astype("<i4").tobytes())
    assert digest.hexdigest() == wanted


# ── weights ──────────────────────────────────────────────────────────────────────────────────────────────────────


def advised(error: Exception) -> list[tuple[int, dict[str, float]]]:
    """The weights that an error says to write."""
    found = re.search(r"weights=(\[.*\])", str(error))
    assert found is not None, error
    return [(token, shares) for token, shares in ast.literal_eval(found[1])]


def test_weights_of_the_past_that_are_others_are_refused_with_both_and_what_to_write(sources) -> None:
    state = state_after(sources, EVEN, 100)
    with pytest.raises(CheckpointMismatchError) as caught:
        run(sources, {"code": 3, "web": 1}, 1, state)
    assert "the run was drawn by [(0, {'code': 0.5, 'web': 0.5})] so far" in str(caught.value)
    assert "by weights it would have been [(0, {'code': 0.75, 'web': 0.25})]" in str(caught.value)
    weights = advised(caught.value)
    assert weights == [(0, {"code": 0.5, "web": 0.5}), (2 * BLOCK_TOKENS, {"code": 0.75, "web": 0.25})]
    batches = run(sources, weights, 28 + 64, state)
    assert same(batches[:28], run(sources, EVEN, 128)[100:])
    assert sum((batch.sources == 0).sum() for batch in batches[28:]) == 48 * 6


CHANGED_PASTS = {
    "a stage in between": [(0, EVEN), (BLOCK_TOKENS, {"web": 1}), (3 * BLOCK_TOKENS, EVEN)],
    "another first stage": {"math": 1},
    "a stage that came later": [(0, EVEN), (2 * BLOCK_TOKENS, {"web": 1})],
    "no second stage": EVEN,
    "a third stage that is over": [(0, EVEN), (BLOCK_TOKENS, {"web": 2, "math": 1}), (2 * BLOCK_TOKENS, {"math": 1})],
}


@pytest.mark.parametrize("weights", CHANGED_PASTS.values(), ids=CHANGED_PASTS)
@pytest.mark.parametrize("steps", [192, 200])
def test_whatever_of_the_past_differs_the_advice_works(sources, weights: Any, steps: int) -> None:
    were = [(0, EVEN), (BLOCK_TOKENS, {"web": 2, "math": 1})]
    state = state_after(sources, were, steps)
    with pytest.raises(CheckpointMismatchError, match="What was drawn cannot change") as caught:
        run(sources, weights, 1, state)
    found, wanted = run(sources, advised(caught.value), 300 - steps, state), run(sources, were, 256)[steps:]
    border = -(-steps // 64) * 64 - steps  # until the next block begins the run is the same
    assert same(found[:border], wanted[:border])


@pytest.mark.parametrize("seq_len", [5, 8, 13])
def test_the_advice_also_works_where_the_length_of_rows_changes(sources, seq_len: int) -> None:
    state = state_after(sources, EVEN, 100)
    with pytest.raises(CheckpointMismatchError) as caught:
        run(sources, {"web": 1}, 1, state, seq_len=seq_len)
    batches = run(sources, advised(caught.value), 200, state, seq_len=seq_len)
    assert set(batches[-1].sources.tolist()) == {2}


def test_the_future_is_free(sources) -> None:
    state = state_after(sources, EVEN, 100)
    wanted = run(sources, EVEN, 128)[100:]
    for future in ({"math": 1}, {"code": 1}, {"code": 5, "math": 1, "web": 2}):
        for token in (BLOCK_TOKENS + 1, 2 * BLOCK_TOKENS):
            batches = run(sources, [(0, EVEN), (token, future)], 28 + 64, state)
            assert [batch.tokens.tolist() for batch in batches[:28]] == [batch.tokens.tolist() for batch in wanted]
            drawn = np.unique([batch.sources for batch in batches[28:]]).tolist()
            assert drawn == [place for place, name in enumerate(sources) if name in future]


def test_a_reweighted_run_resumes_without_a_word_of_it_and_with_it_in_the_schedule(sources) -> None:
    with ParquetLoader(sources, weights=EVEN, **OPTIONS) as loader:
        take(loader, 30)
        loader.reweight({"math": 1, "web": 1})
        state, whole = take(loader, 100)[-1].state, take(loader, 100)
        assert [stage["by"] for stage in loader.history["stages"]] == ["schedule", "reweight"]
    assert same(run(sources, EVEN, 100, state), whole)
    assert same(run(sources, [(0, EVEN), (BLOCK_TOKENS, {"math": 1, "web": 1})], 100, state), whole)
    with pytest.raises(CheckpointMismatchError) as caught:
        run(sources, {"web": 1}, 1, state)
    run(sources, advised(caught.value), 200, state)


@pytest.mark.parametrize("steps", [310, 130], ids=["in the block before the stage", "blocks before the stage"])
@pytest.mark.parametrize("shares", [{"web": 1}, {"code": 1, "web": 1}], ids=["to its weights", "to others"])
def test_a_run_that_was_reweighted_before_a_stage_resumes(sources, steps: int, shares: dict[str, float]) -> None:
    weights = [(0, {"code": 1}), (5 * BLOCK_TOKENS, {"web": 1})]
    with ParquetLoader(sources, weights=weights, **OPTIONS) as loader:
        take(loader, steps)
        loader.reweight(shares)
        state, rest = take(loader, 260)[-1].state, take(loader, 70)
    assert same(run(sources, weights, 70, state), rest)


def test_a_run_that_has_not_begun_has_nothing_to_reweight(sources) -> None:
    with (
        ParquetLoader(sources, weights=EVEN, **OPTIONS) as loader,
        pytest.raises(ConfigError, match="as the first stage of the schedule"),
    ):
        loader.reweight({"math": 1})


@pytest.mark.parametrize("at", [100, 128])
def test_a_stage_that_begins_with_the_block_of_a_reweighting_comes_first(sources, at: int) -> None:
    stages = [(0, EVEN), (2 * BLOCK_TOKENS, {"math": 1})]
    with ParquetLoader(sources, weights=stages, **OPTIONS) as loader:
        take(loader, at)
        loader.reweight({"code": 1})
        take(loader, 128 - at)
        batches = take(loader, 10)
        assert {loader.sources[place] for batch in batches for place in batch.sources} == {"math"}
    assert same(run(sources, stages, 10, batches[4].state)[:5], batches[5:])


def test_a_stage_that_is_added_where_a_reweighting_would_begin_comes_first(sources) -> None:
    with ParquetLoader(sources, weights=EVEN, **OPTIONS) as loader:
        take(loader, 100)
        loader.reweight({"code": 1})
        state = loader.state_dict()
    with pytest.raises(CheckpointMismatchError) as caught:
        run(sources, {"math": 1}, 1, state)
    with ParquetLoader(sources, weights=advised(caught.value), **OPTIONS) as loader:
        loader.load_state_dict(state)
        take(loader, 28)
        assert {loader.sources[place] for place in take(loader, 1)[0].sources} == {"math"}


def test_a_state_of_one_set_before_its_first_step_has_no_past(sources) -> None:
    with ParquetLoader(sources["web"], **OPTIONS) as loader:
        state = loader.state_dict()
    with ParquetLoader(sources, weights=EVEN, **OPTIONS) as loader:
        expected = take(loader, 5)
    assert same(run(sources, EVEN, 5, state), expected)


@pytest.mark.parametrize("weights", [{"web": 12_345_678_901, "code": 0.123456789}, {"web": 2**62, "code": 3}])
def test_states_of_large_weights_can_be_read(sources, weights) -> None:
    with ParquetLoader(sources, weights=weights, **OPTIONS) as loader:
        state, rest = take(loader, 3)[-1].state, take(loader, 3)
    assert same(run(sources, weights, 3, state), rest)


def test_a_run_that_came_back_to_its_first_weights_is_told_all_of_them(sources) -> None:
    weights = [(0, EVEN), (3 * BLOCK_TOKENS, EVEN)]
    with ParquetLoader(sources, weights=weights, **OPTIONS) as loader:
        take(loader, 70)
        loader.reweight({"math": 1})
        state, rest = take(loader, 200)[-1].state, take(loader, 30)
    assert same(run(sources, weights, 30, state), rest)
    with pytest.raises(CheckpointMismatchError) as caught:
        run(sources, {"web": 1}, 1, state)
    assert len(advised(caught.value)) == 3
    run(sources, advised(caught.value), 100, state)


def test_a_reweight_that_the_budget_has_no_room_for_changes_nothing(sources) -> None:
    with pytest.raises(ConfigError, match="give at least") as caught:
        ParquetLoader(sources, weights={"web": 1}, **OPTIONS, threads=1, budget_bytes=1)
    budget = int(re.search(r"give at least ([\d,]+)", str(caught.value))[1].replace(",", ""))
    with ParquetLoader(sources, weights={"web": 1}, **OPTIONS, threads=1, budget_bytes=budget) as loader:
        state = take(loader, 10)[-1].state
        with pytest.raises(ConfigError, match="too small for a window of each of 3 sources"):
            loader.reweight({"code": 1, "math": 1})
        assert loader.state_dict() == state
        assert {2} == {place for batch in take(loader, 100) for place in batch.sources.tolist()}


# ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_source_that_comes_later_begins_at_its_beginning(sources, sets: Path) -> None:
    two = {name: sources[name] for name in EVEN}
    state = state_after(two, EVEN, 64)
    batches = run(sources, [(0, EVEN), (BLOCK_TOKENS, {"math": 1})], 20, state)
    with ParquetLoader(sets / "math", **OPTIONS) as alone:
        found = take(alone, 20)
    assert [batch.tokens.tolist() for batch in batches] == [batch.tokens.tolist() for batch in found]


def test_a_source_that_is_left_out_and_comes_back_goes_on_where_it_was(sources, tmp_path: Path) -> None:
    weights = [(0, EVEN), (BLOCK_TOKENS, {"math": 1}), (2 * BLOCK_TOKENS, {"code": 1})]
    whole = run(sources, weights, 192)
    without = {name: sources[name] for name in ("math", "web")}
    state = run(without, weights[:2], 32, whole[79].state)[-1].state
    assert state == whole[111].state
    assert same(run(sources, weights, 80, state), whole[112:])


@pytest.mark.parametrize("steps", [64, 70])
@pytest.mark.parametrize("how", ["the files are gone", "left out of the sources"])
def test_a_source_of_a_stage_that_is_over_may_be_gone(sources, tmp_path: Path, how: str, steps: int) -> None:
    shutil.copytree(sources["code"], tmp_path / "code")
    weights = [(0, EVEN), (BLOCK_TOKENS, {"web": 1})]
    here = {**sources, "code": str(tmp_path / "code")}
    whole = run(here, weights, 100)
    shutil.rmtree(tmp_path / "code")
    if how == "left out of the sources":
        del here["code"]
    found = run(here, weights, 100 - steps, whole[steps - 1].state)
    assert [batch.tokens.tolist() for batch in found] == [batch.tokens.tolist() for batch in whole[steps:]]
    assert [batch.state for batch in found] == [batch.state for batch in whole[steps:]]
    with pytest.raises((PathNotFoundError, ConfigError), match="'code'"):
        run(here, weights, 1, whole[20].state)


def test_a_source_that_is_gone_and_still_drawn_from_is_told_when_the_loader_is_made(sources, tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError, match=r"^source 'code': there is no "):
        ParquetLoader({**sources, "code": str(tmp_path / "code")}, weights=EVEN, **OPTIONS)
    with pytest.raises(ConfigError, match="weights draw from 'cod', which is not among the sources 'code', 'math', "):
        ParquetLoader(sources, weights={"cod": 1}, **OPTIONS)


DIFFERENCES = {
    "seed": ({"seed": 4}, {}, "seed is 3 in the checkpoint and 4 in this loader"),
    "lanes": ({"lanes": 5}, {}, "lanes is 6 in the checkpoint and 5 in this loader"),
    "window": ({"window": 3}, {}, "'code': window is 2 in the checkpoint and 3 in this loader"),
    "window of one": ({}, {"window": 5}, "'code': window is 2 in the checkpoint and 5 in this loader"),
    "EOS": ({"eos_id": 7}, {}, "'web': eos_id is None in the checkpoint and 7 in this loader"),
    "EOS of one": ({}, {"eos_id": 7}, "'code': eos_id is None in the checkpoint and 7 in this loader"),
    "shuffle": ({"shuffle": False}, {}, "'web': shuffle is True in the checkpoint and False in this loader"),
}


@pytest.mark.parametrize(("options", "part", "says"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_what_may_not_change_is_named_with_both_values(sources, options: dict, part: dict, says: str) -> None:
    state = state_after(sources, EVEN, 10)
    with pytest.raises(CheckpointMismatchError, match=f"^the checkpoint is of another run: .*{says}"):
        run({**sources, "code": Component(sources["code"], **part)}, EVEN, 1, state, **options)


def test_another_set_under_a_sources_name_is_refused(sources) -> None:
    state = state_after(sources, EVEN, 10)
    with pytest.raises(
        CheckpointMismatchError, match=r"'code': fingerprint is .*; 'code': tokens is .* in this loader"
    ):
        run({**sources, "code": sources["math"]}, EVEN, 1, state)


def test_another_column_under_a_sources_name_is_refused(sources, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(Path(sources["code"]) / "part-000.parquet")
    pq.write_table(table.append_column("other", table["tokens"]), tmp_path / "part-000.parquet")
    here = {**sources, "code": Component(str(tmp_path), column="tokens")}
    state = state_after(here, EVEN, 10)
    with pytest.raises(CheckpointMismatchError, match="'code': column is 'tokens' in the checkpoint and 'other' in"):
        run({**sources, "code": Component(str(tmp_path), column="other")}, EVEN, 1, state)


def test_another_set_under_the_name_of_a_source_that_was_reweighted_in_is_refused(sources) -> None:
    with ParquetLoader(sources, weights=EVEN, **OPTIONS) as loader:
        take(loader, 10)
        loader.reweight({"math": 1})
        state = take(loader, 100)[-1].state
    with pytest.raises(CheckpointMismatchError, match="'math': fingerprint is "):
        run({**sources, "math": sources["web"]}, EVEN, 1, state)


def test_a_source_under_another_name_is_another_source(sources) -> None:
    state = state_after(sources, EVEN, 10)
    with pytest.raises(CheckpointMismatchError, match="What was drawn cannot change"):
        run({"codes": sources["code"], "web": sources["web"]}, {"codes": 1, "web": 1}, 1, state)


# ── from one set to many ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("steps", [1, 40, 64, 100])
def test_a_run_of_one_set_goes_on_in_a_mixture_that_has_it(sources, sets: Path, steps: int) -> None:
    with ParquetLoader(sets / "web", **OPTIONS) as loader:
        batches = take(loader, 200)
    state = batches[steps - 1].state
    border = -(-steps // 64) * 64
    weights = [(0, {"web": 1}), (border * 48, EVEN)]
    found = run(sources, weights, 150, state)
    rest = border - steps
    assert [b.tokens.tolist() for b in found[:rest]] == [b.tokens.tolist() for b in batches[steps:border]]
    for lane in range(6):
        rows = [batch.tokens[lane].tolist() for batch in found if batch.sources[lane] == 2]
        assert rows == [batch.tokens[lane].tolist() for batch in batches[steps : steps + len(rows)]]
    # And from there on it is a run like any other.
    assert same(run(sources, weights, 50, found[99].state), found[100:])


def test_a_run_of_one_set_that_is_put_in_a_mixture_without_its_past_is_told_what_to_write(sources, sets: Path) -> None:
    with ParquetLoader(sets / "web", **OPTIONS) as loader:
        state = take(loader, 40)[-1].state
    with pytest.raises(CheckpointMismatchError) as caught:
        run(sources, EVEN, 1, state)
    assert advised(caught.value) == [(0, {"web": 1}), (BLOCK_TOKENS, {"code": 0.5, "web": 0.5})]
    run(sources, advised(caught.value), 70, state)


def test_a_run_of_one_set_whose_rows_changed_goes_on_in_a_mixture(sources, sets: Path) -> None:
    options = {**OPTIONS, "seq_len": 5}
    with ParquetLoader(sets / "web", **OPTIONS) as loader:
        before = take(loader, 10)
    with ParquetLoader(sets / "web", **options) as loader:
        loader.load_state_dict(before[-1].state)
        batches = take(loader, 70)
    found = run(sources, {"web": 1}, 60, batches[9].state, seq_len=5)
    assert [b.tokens.tolist() for b in found] == [b.tokens.tolist() for b in batches[10:]]
    third = run(sources, {"web": 1}, 60, batches[9].state, seq_len=7)
    with ParquetLoader(sets / "web", **{**OPTIONS, "seq_len": 7}) as loader:
        loader.load_state_dict(batches[9].state)
        alone = take(loader, 60)
    assert [b.tokens.tolist() for b in third] == [b.tokens.tolist() for b in alone]


def test_the_window_of_a_run_of_one_set_is_taken_over_where_none_is_given(sources, sets: Path) -> None:
    with ParquetLoader(sets / "web", **{**OPTIONS, "window": 3}) as loader:
        batches = take(loader, 30)
    options = {name: value for name, value in OPTIONS.items() if name != "window"}
    with ParquetLoader(sources, weights={"web": 1}, **options) as loader:
        loader.load_state_dict(batches[9].state)
        assert [b.tokens.tolist() for b in take(loader, 20)] == [b.tokens.tolist() for b in batches[10:]]
    with pytest.raises(CheckpointMismatchError, match="'web': window is 3 in the checkpoint and 2 in this loader"):
        run(sources, {"web": 1}, 1, batches[9].state)


def test_a_run_of_a_set_that_is_none_of_the_sources_is_refused(sources, sets: Path) -> None:
    with ParquetLoader(sets / "web", **OPTIONS) as loader:
        state = take(loader, 3)[-1].state
    with pytest.raises(CheckpointMismatchError, match=r"none of the sources 'code', 'math' holds these files; add it"):
        run({name: sources[name] for name in ("code", "math")}, {"code": 1, "math": 1}, 1, state)


def test_a_mixtures_state_is_refused_by_a_loader_of_one_set(sources, sets: Path) -> None:
    state = state_after(sources, EVEN, 10)
    with (
        ParquetLoader(sets / "web", **OPTIONS) as loader,
        pytest.raises(CheckpointMismatchError, match="is of a mixture of 'code', 'web', and this loader has one set"),
    ):
        loader.load_state_dict(state)


# ── sources that end ─────────────────────────────────────────────────────────────────────────────────────────────


def ending(sources: dict[str, Any], epochs: int) -> dict[str, Any]:
    return {**sources, "code": Component(sources["code"], max_epochs=epochs)}


def until_exhausted(loader: ParquetLoader) -> Iterator[Batch]:
    with pytest.raises(SourceExhaustedError):
        yield from loader


def counts_of(batches: list[Batch], place: int, tokens: int) -> np.ndarray:
    """How often each token id of a source has come, as inputs of rows."""
    rows = [batch.tokens[batch.sources == place][:, :8].ravel() for batch in batches]
    return np.bincount(np.concatenate(rows), minlength=tokens)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_no_token_of_a_source_comes_more_often_than_its_epochs(sources, epochs: int, overlap: int) -> None:
    tokens = sum(len(document) for group in GROUPS["code"] for document in group)
    weights = {"code": 1, "math": 2, "web": 5}
    with ParquetLoader(
        ending(sources, epochs), weights=weights, overlap=overlap, exhausted="redistribute", **OPTIONS
    ) as loader:
        batches = take(loader, 64 * (8 * epochs + 4))
        ended = [stage for stage in loader.history["stages"] if stage["by"] == "exhausted"]
    (stage,) = ended
    assert stage["weights"] == {"math": 2, "web": 5}
    assert not any((batch.sources == 0).any() for batch in batches[stage["step"] :])
    counts = counts_of(batches, 0, tokens)
    assert counts.max() <= epochs
    # Beyond the epochs are not even the tokens that rows only overlap with.
    ids = [token for batch in batches for token in batch.tokens[batch.sources == 0].ravel().tolist()]
    assert len(ids) <= epochs * tokens + overlap * len(ids)
    # What is left over is less than what a block asks for, and a token a lane.
    assert epochs * tokens - counts.sum() < 6 * (9 * 8 + overlap + 1)


def test_an_exhausted_source_ends_the_run_before_the_block_and_each_way_out_works(sources) -> None:
    with ParquetLoader(ending(sources, 9), weights=EVEN, **OPTIONS) as loader:
        batches = list(until_exhausted(loader))
        with pytest.raises(SourceExhaustedError) as caught:
            next(iter(loader))
        assert loader.state_dict() == batches[-1].state
    assert len(batches) % 64 == 0
    token = len(batches) * 48
    assert f"'code' would be repeated more than max_epochs allows from token {token:,} of the run on" in str(
        caught.value
    )
    state = batches[-1].state
    # Raise max_epochs,
    run(ending(sources, 20), EVEN, 64, state)
    # have the stage in weights,
    stage = ast.literal_eval(re.search(r"have the stage (\[.*\}\]) in weights", str(caught.value))[1])
    staged = run(ending(sources, 9), [(0, EVEN), stage], 64, state)
    assert stage == [token, {"web": 1}]
    # or give exhausted="redistribute".
    spread = run(ending(sources, 9), EVEN, 64, state, exhausted="redistribute")
    assert [b.tokens.tolist() for b in spread] == [b.tokens.tolist() for b in staged]


def test_a_source_that_has_not_enough_for_one_block_is_told_at_the_first(sources, tmp_path: Path) -> None:
    write_set(tmp_path, unique_groups([[[5]]]))
    here = {**sources, "code": Component(str(tmp_path), max_epochs=1)}
    with pytest.raises(SourceExhaustedError, match="from token 0 of the run on") as caught:
        run(here, EVEN, 1)
    stage = ast.literal_eval(re.search(r"have the stage (\[.*\}\]) in weights", str(caught.value))[1])
    assert run(here, [stage], 1)[0].sources.tolist() == [2] * 6


def test_a_run_whose_sources_all_end_says_so(sources) -> None:
    here = {name: Component(path, max_epochs=8) for name, path in sources.items()}
    with ParquetLoader(here, weights={"code": 1, "math": 1, "web": 1}, exhausted="redistribute", **OPTIONS) as loader:
        list(until_exhausted(loader))
        with pytest.raises(SourceExhaustedError, match="all sources of the mixture have given their max_epochs"):
            next(iter(loader))
        told = loader.stats()["sources"]
    assert all(4 < told[name]["epochs"] <= 8 for name in told)


def test_epochs_of_a_source_that_was_reweighted_in_still_count_after_a_resume(sources) -> None:
    here = ending(sources, 3)
    with ParquetLoader(here, weights={"web": 1}, **OPTIONS) as loader:
        take(loader, 10)
        loader.reweight(EVEN)
        steps = len(list(until_exhausted(loader)))
    with ParquetLoader(here, weights={"web": 1}, **OPTIONS) as loader:
        take(loader, 10)
        loader.reweight(EVEN)
        state = take(loader, 60)[-1].state
    with ParquetLoader(here, weights={"web": 1}, **OPTIONS) as loader:
        loader.load_state_dict(state)
        assert len(list(until_exhausted(loader))) == steps - 60


def test_longer_rows_than_a_source_has_for_the_block_are_refused_and_those_of_before_work(sources) -> None:
    with ParquetLoader(ending(sources, 9), weights=EVEN, **OPTIONS) as loader:
        batches = list(until_exhausted(loader))
    state = batches[-30].state  # in the last block
    with pytest.raises(SourceExhaustedError, match="use the seq_len of before until the next block begins") as caught:
        run(ending(sources, 9), EVEN, 1, state, seq_len=40)
    assert "'code' has too little left" in str(caught.value)
    with ParquetLoader(ending(sources, 9), weights=EVEN, **OPTIONS) as loader:
        loader.load_state_dict(state)
        assert len(list(until_exhausted(loader))) == 29
    run(ending(sources, 999), EVEN, 40, state, seq_len=40)


def test_what_is_wrong_in_a_source_is_told_with_its_name(sources, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(sources["math"], damaged)
    with ParquetLoader({**sources, "math": str(damaged)}, weights={"math": 1, "web": 1}, **OPTIONS) as loader:
        (file,) = damaged.iterdir()
        data = bytearray(file.read_bytes())
        data[4:200] = bytes(196)
        file.write_bytes(data)
        with pytest.raises((DataError, FileChangedError), match=r"^source 'math': "):
            take(loader, 64)


@pytest.mark.parametrize("weights", [5, {0: {"web": 1}}, [(0.0, {"web": 1})], [(0, EVEN), (1e9, EVEN)], "all", []])
def test_weights_that_are_no_weights_are_refused(sources, weights: Any) -> None:
    with pytest.raises(ConfigError, match=r"weights|schedule"):
        ParquetLoader(sources, weights=weights, **OPTIONS)


def test_a_name_that_is_no_name_is_refused(sources) -> None:
    with pytest.raises(ConfigError, match="names, which are text, and where each lies, not names such as ''"):
        ParquetLoader({**sources, "": sources["web"]}, weights=EVEN, **OPTIONS)


def test_the_line_to_add_counts_the_rows_to_come_in_their_new_length(sources) -> None:
    with ParquetLoader(sources, weights=EVEN, **OPTIONS) as loader:
        state = take(loader, 70)[-1].state
    with pytest.raises(CheckpointMismatchError) as caught:
        run(sources, {"math": 1}, 1, state, seq_len=2)
    assert advised(caught.value)[-1] == (6 * (70 * 8 + 58 * 2), {"math": 1})
    rows = run(sources, advised(caught.value), 59, state, seq_len=2)
    assert 1 not in rows[57].sources and set(rows[58].sources) == {1}


def test_a_component_shows_no_secret() -> None:
    shown = repr(Component("s3://key:hidden@bucket/set", max_epochs=3, storage_options={"secret": "hidden"}))
    assert "hidden" not in shown and "max_epochs=3" in shown
