"""What checkpoints hold, and whether several are of one run."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import CheckpointDamagedError, CheckpointMismatchError, ParquetLoader, merge_checkpoints
from parquet_loader.insight import check_chain, describe, open_saved

RUN: dict[str, Any] = {"seq_len": 8, "lanes": 4, "window": 1}
MIX = {"a": 0.7, "b": 0.3}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sets")
    lengths = {"a": [[30] * 20, [20] * 30], "b": [[10] * 40]}
    return {name: str(write_set(folder / name, unique_groups([each]))) for name, each in lengths.items()}


def saved(
    source: Any, *steps: int | Callable[[ParquetLoader], object], begin: Any = None, **options: Any
) -> list[bytes]:
    """A run's checkpoints: of its begin, and after each number of batches or deed."""
    found = []
    with ParquetLoader(source, **{**RUN, **options}) as loader:
        if begin is not None:
            loader.load_state_dict(open_saved(begin).state)
        for step in steps:
            if callable(step):
                step(loader)
                continue
            for _ in range(step):
                next(iter(loader))
            found.append(loader.checkpoint())
    return found


def test_the_checkpoint_of_a_set_says_where_the_run_is(sets: dict[str, str]) -> None:
    (data,) = saved(sets["a"], 60, eos_id=2000)
    told = describe(data)
    assert (told.step, told.token, told.position, told.seq_len, told.lanes, told.seed) == (60, 1920, 480, 8, 4, 0)
    assert (told.rank, told.world_size) == (0, 1)
    (source,) = told.sources
    assert (source.name, source.consumed, source.epochs) == (None, 1920, 1920 / 1250)
    assert source.identity["eos_id"] == 2000
    assert source.identity["row_groups"] == 2


@pytest.mark.parametrize("batches", [0, 1, 36, 37, 38, 75])
def test_the_epoch_is_that_of_the_loader(sets: dict[str, str], batches: int) -> None:
    with ParquetLoader(sets["a"], **RUN) as loader:
        state = loader.state_at(8 * batches)
        loader.load_state_dict(state)
        assert describe(state).epoch == loader.epoch


def test_a_mixtures_sources_have_what_the_loader_says(sets: dict[str, str]) -> None:
    with ParquetLoader(sets, weights=MIX, **RUN) as loader:
        loader.skip(70)
        loader.reweight({"a": 0.2, "b": 0.8})
        loader.skip(100)
        told, stats = describe(loader.state_dict()), loader.stats()
        assert {source.name: (source.consumed, source.epochs) for source in told.sources} == {
            name: (each["tokens"], each["epochs"]) for name, each in stats["sources"].items()
        }
        assert [(skip.step, skip.batches, skip.tokens) for skip in told.skips] == [(0, 70, 2240), (70, 100, 3200)]
        assert [(stage.step, stage.by, stage.weights) for stage in told.stages] == [
            (0, "schedule", MIX),
            (128, "reweight", {"a": 0.2, "b": 0.8}),
        ]


def test_a_merged_checkpoint_and_a_ranks_part_are_told_apart(sets: dict[str, str]) -> None:
    parts = [saved(sets["a"], 3, rank=rank, world_size=2)[0] for rank in range(2)]
    assert [(describe(each).rank, describe(each).world_size) for each in [*parts, merge_checkpoints(parts)]] == [
        (0, 2),
        (1, 2),
        (None, 2),
    ]


def test_a_state_is_taken_as_json_and_msgpack_also_within_a_trainers_dict(sets: dict[str, str]) -> None:
    state = dict(open_saved(saved(sets["a"], 3)[0]).state)
    for data in (json.dumps(state).encode(), json.dumps({"step": 3, "data": {"loader": state}}).encode(),
                 msgpack.packb({"loader": state})):  # fmt: skip
        told = describe(data)
        assert (told.step, told.rank, told.world_size) == (3, None, None)


def test_a_dict_without_a_state_or_with_two_is_refused(sets: dict[str, str]) -> None:
    state = dict(open_saved(saved(sets["a"], 3)[0]).state)
    for value, says in (({"model": 1}, "no loader state"), ({"a": state, "b": state}, "2 loader states")):
        with pytest.raises(CheckpointDamagedError, match=says):
            describe(json.dumps(value).encode())


def test_damaged_and_earlier_checkpoints_are_refused_as_the_loader_does(sets: dict[str, str]) -> None:
    (data,) = saved(sets["a"], 3)
    with pytest.raises(CheckpointDamagedError, match="no whole checkpoint"):
        describe(data[:-1])
    with pytest.raises(CheckpointMismatchError, match="version 1"):
        describe({**open_saved(data).state, "version": 1})


def test_the_cure_for_a_file_of_torch_gives_the_state(sets: dict[str, str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = dict(open_saved(saved(sets["a"], 3)[0]).state)
    buffer = io.BytesIO()
    torch.save({"model": torch.zeros(3), "loader": state}, buffer)
    (tmp_path / "FILE").write_bytes(buffer.getvalue())
    with pytest.raises(CheckpointDamagedError, match=r"torch\.save") as error:
        describe(buffer.getvalue())
    (program,) = re.findall(r'python -c "(.*)" > state.json', str(error.value))
    code = program.replace("'NAME'", "'loader'")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    assert describe(done.stdout).step == 3


# ── chains ───────────────────────────────────────────────────────────────────────────────────────────────────────


def named(checkpoints: list[bytes]) -> dict[str, bytes]:
    return {f"ckpt-{number}": data for number, data in enumerate(checkpoints)}


def test_a_chain_in_any_order_tells_what_was_done_and_when(sets: dict[str, str]) -> None:
    first = saved(sets, 70, lambda loader: loader.skip(3), 4, weights=MIX)
    then = saved(sets, lambda loader: loader.reweight({"a": 1, "b": 1}), 100, weights=MIX, seq_len=16, begin=first[1])
    report = check_chain(dict(reversed(named([*first, *then]).items())))
    assert report.ok
    assert [link.step for link in report.links] == [70, 77, 177]
    assert [(event.step, event.kind) for event in report.events] == [
        (0, "seq_len"),
        (0, "stage"),
        (70, "skip"),
        (77, "seq_len"),
        (128, "stage"),
    ]
    assert report.events[-1].text == "weights a 0.5, b 0.5, by reweight()"


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (None, "the run was resumed from before it was asked for"),
        ({"a": 0.25, "b": 0.75}, "weights a 0.25, b 0.75, by reweight() came in its place"),
    ],
)
def test_a_reweight_that_a_later_checkpoint_never_had_is_noted(
    sets: dict[str, str], after: dict[str, float] | None, says: str
) -> None:
    def other(loader: ParquetLoader) -> None:
        if after is not None:
            loader.reweight(after)

    first = saved(sets, 20, weights=MIX)
    asked = saved(sets, lambda loader: loader.reweight({"a": 0.5, "b": 0.5}), 10, 10, weights=MIX, begin=first[0])
    later = saved(sets, other, 80, weights=MIX, begin=first[0])
    report = check_chain(named([*first, *asked, *later]))
    assert report.ok
    (note,) = report.notes
    assert note.startswith("ckpt-2 (step 40) has weights a 0.5, b 0.5, by reweight(), from step 64 on, which was not ")
    assert f"not done in ckpt-3 (step 100): {says}" in note


def test_a_reweight_that_was_done_or_is_still_to_come_is_not_noted(sets: dict[str, str]) -> None:
    def asked(loader: ParquetLoader) -> None:
        loader.reweight({"a": 0.5, "b": 0.5})

    assert check_chain(named(saved(sets, 5, asked, 35, 24, 40, weights=MIX))).notes == ()


def test_a_fork_is_named(sets: dict[str, str]) -> None:
    (first,) = saved(sets["a"], 10)
    skipped = saved(sets["a"], lambda loader: loader.skip(2), 10, begin=first)
    other = saved(sets["a"], 15, lambda loader: loader.skip(1), 10, begin=first)
    report = check_chain(named([first, *skipped, *other]))
    assert any(
        "forked at or before step 10: ckpt-1 (step 22) and ckpt-2 (step 25) have different pasts: 2 batches skipped, "
        "only in ckpt-1" in problem
        for problem in report.problems
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 1}, "seed is 0 in ckpt-0 and 1 in ckpt-1"),
        ({"lanes": 8}, "lanes is 4 in ckpt-0 and 8 in ckpt-1"),
        ({"window": 2}, "window is 1 in ckpt-0 and 2 in ckpt-1"),
        ({"eos_id": 7}, "eos_id is None in ckpt-0 and 7 in ckpt-1"),
    ],
)
def test_checkpoints_of_different_runs_are_told(sets: dict[str, str], changes: dict[str, Any], says: str) -> None:
    report = check_chain(named([*saved(sets["a"], 5), *saved(sets["a"], 9, **changes)]))
    assert any(says in problem for problem in report.problems)


def test_the_parts_of_a_step_are_one_and_missing_ranks_are_named(sets: dict[str, str]) -> None:
    parts = [saved(sets["a"], 5, rank=rank, world_size=4)[0] for rank in range(4)]
    whole = check_chain(named(parts))
    assert whole.ok
    assert [(link.ranks, link.names) for link in whole.links] == [((0, 1, 2, 3), tuple(named(parts)))]
    (problem,) = check_chain(named([parts[1], parts[3]])).problems
    assert problem.endswith("of 4 ranks' parts some are missing: rank 0, rank 2")
    assert check_chain({**named([parts[1]]), "merged": merge_checkpoints(parts)}).ok


def test_another_number_of_ranks_is_an_event(sets: dict[str, str]) -> None:
    two = merge_checkpoints([saved(sets["a"], 5, rank=rank, world_size=2)[0] for rank in range(2)])
    report = check_chain(named([two, *saved(sets["a"], 5, begin=two)]))
    assert report.ok
    assert [event.text for event in report.events][1:] == ["2 ranks until here or later, 1 by step 10"]


def test_a_set_that_became_a_mixture_is_one_run(sets: dict[str, str]) -> None:
    first = saved(sets["a"], 64)
    weights = [(0, {"a": 1}), (64 * 32, MIX)]
    second = saved(sets, 40, weights=weights, begin=first[0])
    report = check_chain(named([*first, *second]))
    assert report.ok, report.problems
    assert [event.kind for event in report.events] == ["seq_len", "stage", "sources"]
    assert report.events[-1].text == "drawn from for the first time before step 104: b"


def test_a_run_of_one_set_after_a_mixture_is_told_in_words(sets: dict[str, str]) -> None:
    report = check_chain(named([*saved(sets, 5, weights=MIX), *saved(sets["a"], 70)]))
    assert not report.ok
    assert report.events[-1].text == "drawn from for the first time before step 70: the one set that the run is of"


def test_what_cannot_be_read_is_a_problem_among_others(sets: dict[str, str]) -> None:
    (good,) = saved(sets["a"], 5)
    report = check_chain({"good": good, "bad": good[:-3]})
    assert [link.names for link in report.links] == [("good",)]
    assert report.problems[0].startswith("bad: this is no whole checkpoint")
