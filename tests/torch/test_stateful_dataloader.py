"""torchdata's `StatefulDataLoader` around a `TokenDataset`: saved after any batch, it goes on with the very next."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Any

import numpy as np
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader, merge_checkpoints
from parquet_loader.torch import TokenDataset

LANES, SEQ_LEN, STEPS = 12, 4, 7
TOKENS = LANES * SEQ_LEN * STEPS
RUN = {"lanes": LANES, "seq_len": SEQ_LEN, "window": 3, "seed": 5, "threads": 1}

pytestmark = [
    # Python 3.12 and later warn of every fork of a process that has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    borders = np.sort(np.random.default_rng(0).choice(np.arange(1, TOKENS), 39, replace=False))
    lengths = np.diff([0, *borders, TOKENS]).tolist()
    files = unique_groups([[lengths[:10], lengths[10:20]], [lengths[20:30], lengths[30:]]])
    return str(write_set(tmp_path_factory.mktemp("data"), files))


@pytest.fixture
def make(data: str) -> Iterator[Any]:
    """Makes loaders, each on a dataset of its own, and closes them."""
    with ExitStack() as stack:

        def loader_of(workers: int, every: int = 1, persistent: bool = False, **options: Any) -> Any:
            dataset = stack.enter_context(TokenDataset(data, **{**RUN, **options}))
            return StatefulDataLoader(
                dataset,
                batch_size=None,
                num_workers=workers,
                snapshot_every_n_steps=every,
                persistent_workers=persistent,
                multiprocessing_context="fork" if workers else None,
            )

        yield loader_of


def plain(data: str, epochs: int) -> list[list[list[int]]]:
    with ParquetLoader(data, **RUN) as loader:
        return [batch.tokens.tolist() for _ in range(epochs) for batch in loader]


def batches(data: str, workers: int, epochs: int) -> list[list[list[int]]]:
    """What comes from so many workers, batch by batch."""
    share = LANES // max(1, workers)
    return [rows[at : at + share] for rows in plain(data, epochs) for at in range(0, LANES, share)]


def rows_of(loader: Any, count: int | None = None) -> list[list[list[int]]]:
    return [
        item["input_ids"].tolist() for _, item in zip(range(10**6 if count is None else count), loader, strict=False)
    ]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize("every", [1, 3])
def test_saved_after_any_batch_it_goes_on_with_the_next(
    data: str, make: Any, workers: int, persistent: bool, every: int
) -> None:
    expected = batches(data, workers, epochs=3)
    epoch = STEPS * max(1, workers)
    # In the middle of an epoch, before its last batch, after it, and in the next.
    for taken in (0, 1, 4, epoch - 1, epoch):
        saver = make(workers, every, persistent)
        assert rows_of(saver, taken) == expected[:taken]
        state = pickle.loads(pickle.dumps(saver.state_dict()))
        saver.dataset.close()
        del saver
        resumed = make(workers, every, persistent)
        resumed.load_state_dict(state)
        rest = rows_of(resumed)
        assert rest == expected[taken:epoch]  # nothing after the last batch, as without the interruption
        assert rows_of(resumed, 2) == expected[epoch:][:2]
        resumed.dataset.close()  # or all would read ahead together


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize("every", [1, 3, 100])
def test_saved_after_an_epochs_end_it_goes_on_with_the_next_epoch(
    data: str, make: Any, workers: int, persistent: bool, every: int
) -> None:
    expected = batches(data, workers, epochs=3)
    epoch = STEPS * max(1, workers)
    saver = make(workers, every, persistent)
    assert rows_of(saver) == expected[:epoch]
    state = copy.deepcopy(saver.state_dict())
    assert rows_of(saver) == expected[epoch : 2 * epoch]  # the saver itself goes on too
    del saver
    resumed = make(workers, every, persistent)
    resumed.load_state_dict(state)
    assert rows_of(resumed) == expected[epoch : 2 * epoch]
    assert rows_of(resumed) == expected[2 * epoch :]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_put_back_into_the_loader_that_gave_it_rewinds_it(data: str, make: Any, workers: int) -> None:
    expected = batches(data, workers, epochs=1)
    loader = make(workers)
    iterator = iter(loader)
    assert rows_of(iterator, 4) == expected[:4]
    state = copy.deepcopy(loader.state_dict())
    assert rows_of(iterator) == expected[4:]
    loader.load_state_dict(state)
    assert rows_of(loader) == expected[4:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("steps", [0, 3, STEPS])
def test_saved_on_two_ranks_it_resumes_without_workers_on_three(
    data: str, make: Any, workers: int, every: int, steps: int
) -> None:
    parts = []
    for rank in range(2):
        loader = make(workers, every, rank=rank, world_size=2)
        rows_of(loader, steps * max(1, workers))
        parts.append(loader.dataset.checkpoint(loader.state_dict()))
    whole = merge_checkpoints(parts)
    found = []
    for rank in range(3):
        loader = make(0, rank=rank, world_size=3)
        loader.dataset.resume(whole)
        found.append(rows_of(loader, STEPS))
    assert [list(chain(*rows)) for rows in zip(*found, strict=True)] == plain(data, epochs=2)[steps:][: len(found[0])]
    assert len(found[0]) == (STEPS - steps or STEPS)


@pytest.mark.parametrize("every", [1, 2, 100])
def test_saved_within_a_step_its_part_repeats_the_step(data: str, make: Any, every: int) -> None:
    for batches_taken in range(7):
        loader = make(2, every)
        rows_of(loader, batches_taken)
        resumed = make(0).dataset
        resumed.resume(merge_checkpoints([loader.dataset.checkpoint(loader.state_dict())]))
        assert resumed.state_dict()["position"] == SEQ_LEN * (batches_taken // 2)
        resumed.close()


def test_the_state_of_a_batch_makes_a_part_too(data: str, make: Any) -> None:
    loader = make(2, 2, with_state=True)
    items = [item for _, item in zip(range(2 * 3), loader, strict=False)]
    assert loader.dataset.checkpoint(items[-1]["state"]) == loader.dataset.checkpoint(loader.state_dict())
