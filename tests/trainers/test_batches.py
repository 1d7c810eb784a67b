"""`TokenBatches` without a trainer: one iteration is the rest of the run, and the state is that of the last batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import pytest
import torch
from runs import LANES, RUN, WEIGHTS, Batches, Data, plain, together

from parquet_loader import CheckpointError, CheckpointMismatchError, ConfigError, ParquetLoader
from parquet_loader.trainers import TokenBatches

STEPS = 13  # two epochs and a bit

pytestmark = [
    # Python 3.12 and later warn of every fork of a process that has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
]

Make = Callable[..., TokenBatches]


@pytest.fixture
def make(data: str) -> Iterator[Make]:
    """Makes batches and closes them."""
    with ExitStack() as stack:

        def batches_of(steps: int = STEPS, source: Data = data, **options: Any) -> TokenBatches:
            if options.get("num_workers"):
                options["worker_options"] = {"multiprocessing_context": "fork"}
            return stack.enter_context(TokenBatches(source, steps=steps, **{**RUN, **options}))

        yield batches_of


def rows_of(items: Any) -> Batches:
    return [item["input_ids"].tolist() for item in items]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("workers", [0, 1])
def test_one_iteration_is_the_whole_run(data: str, make: Make, workers: int, device: str | None) -> None:
    batches = make(num_workers=workers, device=device)
    assert len(batches) == STEPS
    items = list(batches)
    assert set(items[0]) == {"input_ids", "labels"}  # what a model takes
    assert type(items[0]) is dict
    assert rows_of(items) == plain(data, STEPS)
    assert rows_of(batches) == []


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("taken", [0, 1, 5, 11, STEPS])
def test_its_state_is_that_of_the_last_batch_it_gave(
    data: str, make: Make, workers: int, device: str | None, taken: int
) -> None:
    batches = make(num_workers=workers, device=device)
    assert rows_of(islice(batches, taken)) == plain(data, taken)
    state = batches.state_dict()
    assert state["steps"] == taken
    resumed = make()
    resumed.load_state_dict(state)
    assert rows_of(resumed) == plain(data, STEPS)[taken:]
    assert rows_of(batches) == plain(data, STEPS)[taken:]  # and it goes on by itself after the break


# As it was when the position was a state by itself, and then one beside the steps.
OLD_STATE = {"version": 1, "position": 28, "fingerprint": "ba2ce3bd3b2c", "seed": 5, "lanes": 4, "window": 2}


@pytest.mark.parametrize("old", [{"position": OLD_STATE, "steps": 7}, {**OLD_STATE, "steps": 7}])
def test_a_state_of_an_earlier_order_is_refused_by_its_version(make: Make, old: dict[str, Any]) -> None:
    with pytest.raises(CheckpointMismatchError, match="the state has version 1 and this release reads version 2"):
        make().load_state_dict(old)


@pytest.mark.parametrize(
    "scalar", [lambda value: np.asarray(value)[()], np.asarray, torch.tensor], ids=["numpy", "array", "torch"]
)
def test_a_state_may_come_back_as_scalars_of_other_libraries(data: str, make: Make, scalar: Any) -> None:
    batches = make()
    list(islice(batches, 6))
    state = batches.state_dict()
    resumed = make()
    resumed.load_state_dict({name: scalar(each) if isinstance(each, int) else each for name, each in state.items()})
    assert json.dumps(resumed.state_dict()) == json.dumps(state)  # plain again
    assert rows_of(resumed) == plain(data, STEPS)[6:]


def test_two_workers_give_a_step_as_two_batches_and_resume_into_none(data: str, make: Make) -> None:
    batches = make(num_workers=2)
    assert len(batches) == 2 * STEPS
    found = rows_of(islice(batches, 2 * 7))
    assert [found[at] + found[at + 1] for at in range(0, len(found), 2)] == plain(data, 7)
    resumed = make()
    resumed.load_state_dict(batches.state_dict())
    assert rows_of(resumed) == plain(data, STEPS)[7:]


def test_a_state_is_of_no_rank(data: str, make: Make) -> None:
    ranks = [make(rank=rank, world_size=2) for rank in range(2)]
    for batches in ranks:
        list(islice(batches, 6))
    assert ranks[0].state_dict() == ranks[1].state_dict()
    others = [make(rank=rank, world_size=4) for rank in range(4)]
    for batches in others:
        batches.load_state_dict(ranks[1].state_dict())
    assert together([rows_of(batches) for batches in others]) == plain(data, STEPS)[6:]


def test_a_longer_run_goes_on_where_a_shorter_one_ended(data: str, make: Make) -> None:
    short, long = make(steps=4), make(steps=9)
    assert rows_of(short) == plain(data, 4)
    long.load_state_dict(short.state_dict())
    assert rows_of(long) == plain(data, 9)[4:]


def test_a_run_goes_on_with_another_seq_len(data: str, make: Make) -> None:
    batches = make(seq_len=6)
    list(islice(batches, 2))
    state = batches.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    with ParquetLoader(data, **RUN) as loader:
        loader.load_state_dict(state)
        assert rows_of(islice(resumed, 2)) == [batch.tokens.tolist() for batch in islice(loader, 2)]


def test_a_run_of_so_many_epochs_ends_with_them(data: str, make: Make) -> None:
    assert len(rows_of(make(steps=100, epochs=2))) == 11


# ── mixtures and changes ─────────────────────────────────────────────────────────────────────────────────────────

MIXED = 80  # steps, and a block is 64

WAYS: dict[str, dict[str, Any]] = {
    "in this process": {},
    "sent ahead": {"device": "cpu"},
    "a worker": {"num_workers": 1},
    "two workers, sent ahead": {"num_workers": 2, "device": "cpu"},
}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """How batches come, which are read ahead in all ways but one."""
    return request.param


def steps_of(items: Any, way: dict[str, Any]) -> Batches:
    """The rows of each step; with workers it comes as a batch of each."""
    found, workers = rows_of(items), way.get("num_workers", 1)
    return [list(chain(*found[at : at + workers])) for at in range(0, len(found), workers)]


def changed(data: Data, taken: int, change: Callable[[Any], None], steps: int, **options: Any) -> Batches:
    """What the loader itself gives where it is changed after so many batches."""
    with ParquetLoader(data, **RUN, **options) as loader:
        batches = chain.from_iterable(repeat(loader))
        begin = list(islice(batches, taken))
        change(loader)
        return [batch.tokens.tolist() for batch in (*begin, *islice(batches, steps - taken))]


@pytest.mark.parametrize("taken", [0, 66, MIXED])
def test_one_iteration_of_a_mixture_is_the_whole_run(
    mixture: dict[str, str], make: Make, way: dict[str, Any], taken: int
) -> None:
    expected, share = plain(mixture, MIXED, weights=WEIGHTS), way.get("num_workers", 1)
    batches = make(MIXED, mixture, weights=WEIGHTS, with_sources=True, **way)
    items = list(islice(batches, taken * share))
    assert steps_of(items, way) == expected[:taken]
    assert batches.sources == ("code", "web")
    assert all(item["sources"].shape == (LANES // share,) for item in items)
    state = batches.state_dict()
    assert state["steps"] == taken
    resumed = make(MIXED, mixture, weights=WEIGHTS)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert rows_of(resumed) == expected[taken:]
    assert steps_of(batches, way) == expected[taken:]


@pytest.mark.parametrize("taken", [0, 3, 7])
def test_skipping_in_a_loop_skips_what_was_read_ahead_too(
    data: str, make: Make, way: dict[str, Any], taken: int
) -> None:
    expected = changed(data, taken, lambda loader: loader.skip(4), STEPS)
    batches, share = make(**way), way.get("num_workers", 1)
    items = iter(batches)
    found = list(islice(items, taken * share))
    batches.skip(4)
    assert batches.state_dict()["steps"] == taken  # training has not seen them
    resumed = make()
    resumed.load_state_dict(batches.state_dict())
    found += items
    assert steps_of(found, way) == expected  # as many steps as without
    assert rows_of(resumed) == expected[taken:]
    assert [each["batches"] for each in batches.history["skips"]] == [4]


def test_a_mixture_can_be_reweighted_in_a_loop(mixture: dict[str, str], make: Make, way: dict[str, Any]) -> None:
    weights = {"web": 0.1, "code": 0.9}
    expected = changed(mixture, 10, lambda loader: loader.reweight(weights), MIXED, weights=WEIGHTS)
    batches, share = make(MIXED, mixture, weights=WEIGHTS, **way), way.get("num_workers", 1)
    items = iter(batches)
    found = list(islice(items, 10 * share))
    batches.reweight(weights)
    state = batches.state_dict()
    found += islice(items, 60 * share)
    assert [stage["by"] for stage in batches.history["stages"]] == ["schedule", "reweight"]
    found += items
    assert steps_of(found, way) == expected != plain(mixture, MIXED, weights=WEIGHTS)
    resumed = make(MIXED, mixture, weights=WEIGHTS)  # and needs no word of it
    resumed.load_state_dict(state)
    assert rows_of(resumed) == expected[10:]


def test_within_a_step_of_workers_nothing_is_changed(make: Make) -> None:
    batches = make(num_workers=2)
    next(iter(batches))
    with pytest.raises(ConfigError, match="a step of 2 workers is not over"):
        batches.skip(1)


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_set_epoch_moves_nothing(make: Make) -> None:
    batches = make()
    list(islice(batches, 6))
    state = batches.state_dict()
    batches.set_epoch(0)
    assert batches.state_dict() == state


def test_it_draws_no_random_numbers_of_training(make: Make) -> None:
    for workers in (0, 1):
        torch.manual_seed(1)
        list(islice(make(num_workers=workers), 2))
        drawn = torch.rand(1)
        torch.manual_seed(1)
        assert torch.equal(drawn, torch.rand(1))


def test_wrong_uses_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="steps must be"):
        make(steps=0)
    with pytest.raises(CheckpointError, match="not a state of TokenBatches"):
        make().load_state_dict({"position": {}})
    with pytest.raises(CheckpointMismatchError, match="seed"):
        make().load_state_dict(make(seed=6).state_dict())
    with pytest.raises(TypeError, match="not as a dataset"):
        make()[0]
    with pytest.raises(AttributeError, match="nothing_like_it"):
        make().nothing_like_it


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": "a"}, "steps must be an integer at least 1, not 'a'"),
        ({"steps": 2.5}, "steps must be an integer"),
        ({"steps": True}, "steps must be an integer"),
        ({"steps": 0}, "steps must be an integer"),
        ({"num_workers": "x"}, "num_workers must be an integer at least 0"),
        ({"num_workers": 1, "worker_options": 5}, "worker_options must be Mapping or None"),
        ({"worker_options": {"prefetch_factor": 4}}, "worker_options .* are for num_workers of 1 or more"),
        ({"with_state": True}, "with_state is always on"),
        ({"boundaries": None}, "boundaries must be a list"),
        ({"boundaries": [["position_ids"]]}, "boundaries must be a list"),
        ({"labels": 1}, "labels must be True, False or the name of a column"),
    ],
)
def test_arguments_that_cannot_work_are_named(data: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TokenBatches(data, **({"steps": 3, **RUN} | changes))


@pytest.mark.parametrize("steps", ["x", None, -4, True, 1.0, np.True_, np.int64(-4)])
def test_steps_that_are_none_are_no_state(data: str, steps: Any) -> None:
    with TokenBatches(data, steps=3, **RUN) as batches:
        state = batches.state_dict() | {"steps": steps}
        with pytest.raises(CheckpointError, match="its steps are"):
            batches.load_state_dict(state)
