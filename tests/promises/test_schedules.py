"""Runs that are saved, killed and resumed at random, by trainers that read ahead: each token exactly once.

Every schedule is one epoch of a small set of unique tokens. It goes on in stretches, each with a world size, numbers of
DataLoader workers, a seq_len and a way of saving of its own; what was read beyond the last step trained on is lost with
the killed processes, and must come again.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from unique_sets import random_files, token_count, unique_groups, write_set

from parquet_loader import merge_checkpoints
from parquet_loader.torch import TokenDataset, prefetch_to_device

SCHEDULES = 200
FORKING = 0.15  # of stretches: processes take long to start

pytestmark = [
    # Python 3.12 and later warn of every fork of a process that has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
]


def trained(item: dict[str, Any]) -> list[int]:
    """The tokens that a step on this batch trains on; padding has no labels."""
    return item["labels"][item["labels"] != -100].tolist()


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_each_token_is_trained_on_exactly_once(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    files = unique_groups(random_files(rng, files=2, groups=3, documents=25, length=60))
    if not token_count(files):
        files = unique_groups([[[20]]])
    folder = str(write_set(tmp_path / "set", files))
    lanes = int(rng.integers(1, 9))
    run: dict[str, Any] = {"lanes": lanes, "window": int(rng.integers(1, 5)), "seed": seed, "epochs": 1, "threads": 1}
    tokens: list[int] = []
    saved: bytes | dict[str, Any] | None = None
    over = False
    while not over:
        world_size = int(rng.integers(1, lanes + 1))
        workers = int(rng.integers(1, lanes // world_size + 1)) if rng.random() < FORKING else 0
        workers = min(workers, 2)
        seq_len, steps = int(rng.integers(1, 60)), int(rng.integers(0, 7))
        ahead = int(rng.integers(0, 3))  # steps that the trainer reads and has no time to train on
        ways = rng.choice(["batch", "parts", "state", "device"])
        parts, states, ends = [], [], set()
        for rank in range(world_size):
            with TokenDataset(
                folder, **run, seq_len=seq_len, rank=rank, world_size=world_size, uneven=True, with_state=True
            ) as dataset:
                if isinstance(saved, bytes):
                    dataset.resume(saved)
                elif saved is not None:
                    dataset.load_state_dict(saved)
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
                read = list(islice(items, (steps + ahead) * max(1, workers)))
                del items
                done = read[: steps * max(1, workers)]
                tokens += [token for item in done for token in trained(item)]
                last = done[-1]["state"] if done else before
                if ways == "state" and not workers:
                    assert dataset.state_dict() == last
                states.append(last)
                parts.append(dataset.checkpoint(last))
                ends.add(len(done) < steps * max(1, workers))
        assert len(ends) == 1  # all ranks take equally many steps
        assert all(state == states[0] for state in states)
        saved = merge_checkpoints(parts) if ways == "parts" else states[int(rng.integers(world_size))]
        over = ends.pop()
    assert sorted(tokens) == list(range(token_count(files)))
