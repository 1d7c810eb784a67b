"""A mixture runs through on exactly the budget that its refusal asks for, and never holds more."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import Component, ConfigError, ParquetLoader

# (row groups, tokens of each, tokens of a document): windows, sheets and tasks each come to be most of a budget.
SETS = {
    "large": (6, 400_000, 700),
    "long": (4, 150_000, 150_000),
    "middle": (10, 40_000, 90),
    **{f"tiny{number:02}": (1 + number % 3, 300 * number + 200, 1 + 3 * number) for number in range(12)},
}
TINY = {name: 1 for name in SETS if name.startswith("tiny")}
OPTIONS: dict[str, Any] = {"lanes": 16, "window": 3, "threads": 1}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Component]:
    folder, rng = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    for name, (groups, tokens, document) in SETS.items():
        (folder / name).mkdir()
        with pq.ParquetWriter(
            folder / name / "part.parquet", pa.schema([("tokens", pa.list_(pa.int32()))]), use_dictionary=False
        ) as writer:
            for _ in range(groups):
                offsets = pa.array([*range(0, tokens, document), tokens], pa.int32())
                ids = pa.array(rng.integers(0, 50_000, tokens), pa.int32())
                writer.write_table(pa.table([pa.ListArray.from_arrays(offsets, ids)], names=["tokens"]))
    return {name: Component(str(folder / name)) for name in SETS}


def asked_for(sources: dict[str, Component], state: Any = None, **options: Any) -> int:
    """The budget that refusals ask for, of a new run or at a state."""
    budget = 1
    while True:
        try:
            with ParquetLoader(sources, **{**OPTIONS, **options, "budget_bytes": budget}) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                return budget
        except ConfigError as error:
            found = re.search(r"is too small .*give at least ([\d,]+)", str(error))
            assert found is not None, error
            assert int(found[1].replace(",", "")) > budget
            budget = int(found[1].replace(",", ""))


def run_tight(sources: dict[str, Component], steps: int, state: Any = None, **options: Any) -> dict[str, Any]:
    """So many batches on that budget; returns the state after them."""
    budget = asked_for(sources, state, **options)
    with ParquetLoader(sources, **{**OPTIONS, **options, "budget_bytes": budget}) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for _ in itertools.islice(loader, steps):
            assert loader.stats()["held_bytes"] <= budget
        assert loader.stats()["peak_bytes"] <= budget
        return loader.state_dict()


SHAPES = {
    "one large and one small": {"weights": {"large": 1, "middle": 1}},
    "a large one that is rare": {"weights": {"large": 1, "middle": 50}},
    "many tiny ones": {"weights": TINY, "seq_len": 128},
    "many tiny ones and a large one": {"weights": {**TINY, "large": 400}},
    "two of the same kind": {"weights": {"large": 1, "long": 1}, "overlap": 1},
    "documents as long as row groups": {"weights": {"long": 3, "middle": 1}, "eos_id": 7},
    "stages": {"weights": [(0, {"large": 1}), (10**6, {"long": 500, **TINY}), (3 * 10**6, {"middle": 1, "large": 1})]},
    "long rows": {"weights": {"large": 1, "middle": 1}, "seq_len": 30_000},
    "short rows": {"weights": {"large": 1, "middle": 1, **TINY}, "seq_len": 64},
    "threads": {"weights": {"large": 1, "long": 1, "middle": 1}, "threads": 3},
    "windows of one row group": {"weights": {"large": 1, "long": 1, "middle": 1}, "window": 1},
    "windows of whole sets": {"weights": {"large": 1, "long": 1, "middle": 1}, "window": 100},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (2, 4)])
def test_a_mixture_runs_on_what_its_refusal_asks_for(sources, shape: str, rank: int, world_size: int) -> None:
    options = {"seq_len": 2048, "rank": rank, "world_size": world_size, **SHAPES[shape]}
    run_tight(sources, 12 if options["seq_len"] > 10_000 else 150, **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_byte_less_is_refused_and_nothing_is_read(sources, shape: str) -> None:
    options = {**OPTIONS, "seq_len": 2048, **SHAPES[shape]}
    budget = asked_for(sources, **options)
    with pytest.raises(ConfigError, match=rf"budget_bytes {budget - 1:,} is too small .*give at least {budget:,}(;|$)"):
        ParquetLoader(sources, **{**options, "budget_bytes": budget - 1})


@pytest.mark.parametrize("lengths", [(512, 3000, 64), (64, 8192), (4096, 100), (777, 778, 779)])
@pytest.mark.parametrize(
    "weights", [{"large": 1, "middle": 1}, {"middle": 300, "long": 100, **TINY}], ids=["two", "many"]
)
def test_lanes_that_stand_apart_run_on_it_too(sources, weights: Any, lengths: tuple[int, ...]) -> None:
    state = None
    for seq_len in itertools.chain(lengths, lengths):
        # Less than a block each time, so that the lanes stay apart by rows of several lengths.
        state = run_tight(sources, 37, state, weights=weights, seq_len=seq_len)
    run_tight(sources, 100, state, weights=weights, seq_len=lengths[0], rank=1, world_size=2)


def test_a_run_that_is_reweighted_goes_on_within_its_budget(sources) -> None:
    weights = [(0, {"large": 300, "middle": 300, **TINY}), (10**12, {"long": 1})]
    options = {**OPTIONS, "weights": weights, "seq_len": 2048}
    budget = asked_for(sources, **options)
    with ParquetLoader(sources, **{**options, "budget_bytes": budget}) as loader:
        for shares in (
            {"middle": 1},
            {"large": 1},
            {"large": 900, **TINY},
            {"large": 1, "middle": 9},
            {"long": 1, "middle": 1},
        ):
            for _ in itertools.islice(loader, 40):
                pass
            loader.reweight(shares)
        for _ in itertools.islice(loader, 100):
            pass
        assert loader.stats()["peak_bytes"] <= budget


def test_a_source_without_a_weight_costs_nothing(sources) -> None:
    alone = asked_for({"middle": sources["middle"]}, weights={"middle": 1}, seq_len=512)
    assert asked_for(sources, weights={"middle": 1, "large": 0}, seq_len=512) == alone
    with ParquetLoader(sources, weights={"middle": 1, "large": 0}, seq_len=512, **OPTIONS) as loader:
        assert set(loader.indexes) == {"middle"}
