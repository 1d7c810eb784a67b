"""Runs that are saved, killed and resumed at random, by trainers that read ahead: each token exactly once.

Every schedule is one epoch of a small set of unique tokens, or a stretch of a mixture that is changed on the way. It
goes on in stretches, each with a world size, numbers of DataLoader workers, a seq_len and a way of saving of its own;
what was read beyond the last step trained on is lost with the killed processes, and must come again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from unique_sets import random_files, token_count, unique_groups, write_set

from parquet_loader import ParquetLoader, merge_checkpoints
from parquet_loader.torch import TokenDataset, prefetch_to_device

SCHEDULES = int(os.environ.get("SCHEDULE_RUNS", "60"))
MIXED_SCHEDULES = SCHEDULES // 5
FORKING = 0.15  # of stretches: processes take long to start

pytestmark = [
    # Python 3.12 and later warn of every fork of a process that has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
]


Saved = bytes | dict[str, Any] | None
Change = Callable[[Any], None]  # of a dataset, or of a loader


def trained(item: dict[str, Any]) -> list[int]:
    """The tokens that a step on this batch trains on; padding has no labels."""
    return item["labels"][item["labels"] != -100].tolist()


class Stretch:
    """What the ranks of one stretch trained on, and what is left of it.

    Attributes:
        items: what was trained on, by rank; a step comes as a batch of each worker.
        saved: a checkpoint, or the state of some rank.
        states: after the last step, by rank.
        steps, seq_len: of this stretch, and tokens of a row in it.
        over: whether the run ended before all steps were done.
    """

    def __init__(self, rng: np.random.Generator, source: Any, saved: Saved, change: Change, **run: Any) -> None:
        lanes = run["lanes"]
        world_size = int(rng.integers(1, lanes + 1))
        workers = int(rng.integers(1, lanes // world_size + 1)) if rng.random() < FORKING else 0
        workers = min(workers, 2)
        self.seq_len, self.steps = int(rng.integers(1, 60)), int(rng.integers(0, 7))
        if run.get("weights"):
            self.steps *= 9  # blocks are 64
        ahead = int(rng.integers(0, 3))  # steps that the trainer reads and has no time to train on
        ways = rng.choice(["batch", "parts", "state", "device"])
        batches = self.steps * max(1, workers)
        self.items: list[list[dict[str, Any]]] = []
        self.states: list[dict[str, Any]] = []
        parts = []
        for rank in range(world_size):
            place = {"rank": rank, "world_size": world_size, "uneven": True}
            with TokenDataset(source, **run, **place, seq_len=self.seq_len, with_state=True) as dataset:
                if isinstance(saved, bytes):
                    dataset.resume(saved)
                elif saved is not None:
                    dataset.load_state_dict(saved)
                change(dataset)
                before = dataset.state_dict()
                items: Any = dataset
                if workers:
                    items = DataLoader(
                        dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork", prefetch_factor=1
                    )
                elif ways == "device":
                    items = prefetch_to_device(dataset, "cpu")
                elif ways == "state":
                    ahead = 0  # such a trainer asks the dataset itself
                read = list(islice(items, batches + ahead * max(1, workers)))
                del items
                done = read[:batches]
                last = done[-1]["state"] if done else before
                if ways == "state" and not workers:
                    assert dataset.state_dict() == last
                self.items.append(done)
                self.states.append(last)
                parts.append(dataset.checkpoint(last))
        assert len({len(done) for done in self.items}) == 1  # all ranks take equally many steps
        assert all(state == self.states[0] for state in self.states)
        self.over = len(self.items[0]) < batches
        self.saved: Saved = merge_checkpoints(parts) if ways == "parts" else self.states[int(rng.integers(world_size))]
        self._workers = max(1, workers)

    def rows(self) -> list[list[list[int]]]:
        """The rows of all ranks, step by step."""
        steps = range(0, len(self.items[0]), self._workers)
        return [
            [row for done in self.items for item in done[at : at + self._workers] for row in item["labels"].tolist()]
            for at in steps
        ]


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_each_token_is_trained_on_exactly_once(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    files = unique_groups(random_files(rng, files=2, groups=3, documents=25, length=60))
    if not token_count(files):
        files = unique_groups([[[20]]])
    folder = str(write_set(tmp_path / "set", files))
    run = {"lanes": int(rng.integers(1, 9)), "window": int(rng.integers(1, 5)), "seed": seed, "epochs": 1, "threads": 1}
    tokens: list[int] = []
    saved: Saved = None
    over = False
    while not over:
        stretch = Stretch(rng, folder, saved, lambda _: None, **run)
        tokens += [token for done in stretch.items for item in done for token in trained(item)]
        saved, over = stretch.saved, stretch.over
    assert sorted(tokens) == list(range(token_count(files)))


@pytest.mark.parametrize("seed", range(MIXED_SCHEDULES))
def test_a_mixture_is_trained_on_as_the_loader_alone_gives_it(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c"][: int(rng.integers(1, 4))]
    sources = {}
    for name in names:
        files = unique_groups([*random_files(rng, files=1, groups=3, documents=25, length=60), [[20]]])
        sources[name] = str(write_set(tmp_path / name, files))

    def shares() -> dict[str, float]:
        return {name: float(rng.integers(1, 10)) for name in rng.permutation(names)[: int(rng.integers(1, 4))].tolist()}

    lanes = int(rng.integers(1, 9))
    run: dict[str, Any] = {"lanes": lanes, "window": int(rng.integers(1, 5)), "seed": seed, "threads": 1}
    run |= {"weights": [(0, shares()), (int(rng.integers(1, lanes * 3_000)), shares())]}
    saved: Saved = None
    state: dict[str, Any] | None = None
    for _ in range(6):
        skipped, others = int(rng.integers(1, 90)), shares()
        change: Change = rng.choice(
            [  # type: ignore[call-overload]
                *[lambda _: None] * 3,
                lambda run, n=skipped: run.skip(n),
                *[lambda run, w=others: run.reweight(w)] * bool(state and state["position"]),
            ]
        )
        stretch = Stretch(rng, sources, saved, change, **run)
        with ParquetLoader(sources, **run, seq_len=stretch.seq_len) as loader:
            if state is not None:
                loader.load_state_dict(state)
            change(loader)
            expected = [batch.tokens.tolist() for batch in islice(loader, stretch.steps)]
            state = loader.state_dict()
        assert stretch.rows() == expected
        assert stretch.states[0] == state
        saved = stretch.saved
