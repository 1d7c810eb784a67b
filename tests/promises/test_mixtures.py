"""Mixtures deliver each source in its own order, exactly once, whatever happens to the run.

Hundreds of random mixtures are killed, resumed on other numbers of ranks and changed as they go, and compared token by
token with a second, plain reading of the order: `mixture_model` and `reference`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixture_model import Model, Texts
from unique_sets import RowGroup, random_files, token_count, unique_groups, write_set

from parquet_loader import (
    Component,
    ConfigError,
    ParquetLoader,
    build_index,
)
from parquet_loader.index.index import DatasetIndex
from parquet_loader.order.mixture import BLOCK, Lattice, integer_weights
from parquet_loader.order.progress import MixturePlan

SHARES = [0.00001, 0.01, 0.3, 1.0, 2.0]
EOS = 60_000

RUNS = int(os.environ.get("MIXTURE_RUNS", "60"))


@dataclass(frozen=True)
class Stored:
    """A set on disk, whose tokens are all unique."""

    path: Path
    groups: list[RowGroup]
    index: DatasetIndex


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    """Sets of 20 to 600 tokens in up to four row groups."""
    folder, rng = tmp_path_factory.mktemp("sets"), np.random.default_rng(5)
    found = {}
    for number in range(30):
        files = unique_groups(random_files(rng, files=1 + number % 2, groups=3, documents=20, length=30))
        if not token_count(files):
            files = unique_groups([[[20]]])
        path = write_set(folder / f"s{number:02}", files)
        groups = [group for file in files for group in file]
        found[path.name] = Stored(path, groups, build_index(path, cache_dir=folder / "cache"))
    return found


class Mixture:
    """A random mixture: its sources, options and schedule; a run of it, and the model's."""

    def __init__(self, seed: int, stored: dict[str, Stored]) -> None:
        self.rng = rng = random.Random(seed)
        self.stored = stored
        self.names = sorted(rng.sample(sorted(stored), rng.choice([1, 2, 2, 3, 3, 4, 5, 8, 30])))
        self.lanes, self.window = rng.randint(1, 6), rng.randint(1, 3)
        self.seed, self.eos_id = rng.randrange(2**64), rng.choice([None, None, EOS])
        self.overlap, self.seq_len = rng.randint(0, 1), rng.randint(1, 12)
        self.gone: set[str] = set()
        self.epochs = {name: rng.randint(1, 9) for name in self.names[1:] if rng.random() < 0.2}
        self.schedule = [(0, self.shares())]
        for _ in range(rng.choice([0, 0, 1, 2])):
            token = self.schedule[-1][0] + rng.randrange(1, 150 * self.lanes * self.seq_len)
            self.schedule.append((token, self.shares()))
        order = {"lanes": self.lanes, "window": self.window, "seed": self.seed}
        groups = {name: stored[name].groups for name in self.names}
        self.texts = Texts(groups, order, self.eos_id)
        self.model = Model(self.plan(), self.seq_len, self.names)

    def shares(self) -> dict[str, float]:
        rng = self.rng
        shares = {name: rng.choice(SHARES) for name in rng.sample(self.names, rng.randint(1, len(self.names)))}
        if self.epochs:  # a source that does not end keeps the run alive
            shares.setdefault(self.names[0], 1.0)
        return shares

    def plan(self) -> MixturePlan:
        return MixturePlan(
            lattice=Lattice(seed=self.seed, lanes=self.lanes),
            schedule=tuple((token, integer_weights(shares)) for token, shares in self.schedule),
            limits={name: epochs * self.tokens(name) // self.lanes for name, epochs in self.epochs.items()},
            redistribute=True,
            overlap=self.overlap,
        )

    def tokens(self, name: str) -> int:
        groups = self.stored[name].groups
        return sum(len(document) + (self.eos_id is not None) for group in groups for document in group)

    @functools.cached_property
    def sources(self) -> dict[str, Component]:
        return {
            name: Component(
                str(self.stored[name].path), index=self.stored[name].index, max_epochs=self.epochs.get(name)
            )
            for name in self.names
        }

    def loader(self, rank: int, world_size: int, state: dict[str, Any] | None, *, tight: bool = False) -> ParquetLoader:
        """One rank at a state; with a tight budget, the least that refusals ask for."""
        sources = {name: source for name, source in self.sources.items() if name not in self.gone}
        budget = 1 if tight else 1 << 30
        while True:
            try:
                loader = ParquetLoader(
                    sources,
                    weights=self.schedule,
                    seq_len=self.model.seq_len,
                    lanes=self.lanes,
                    window=self.window,
                    seed=self.seed,
                    eos_id=self.eos_id,
                    overlap=self.overlap,
                    exhausted="redistribute",
                    threads=1,
                    uneven=True,
                    rank=rank,
                    world_size=world_size,
                    budget_bytes=budget,
                )
                if state is not None:
                    loader.load_state_dict(state)
            except ConfigError as error:
                assert asked_for(error) > budget
                budget = asked_for(error)
            else:
                return loader

    def expect(self, names: list[str]) -> list[list[int]]:
        return [self.texts.row(self.model, name, lane, self.overlap) for lane, name in enumerate(names)]

    def another_future(self) -> None:
        """What was drawn from stays; from a block to come on others are; sources that are over are left out."""
        kept = [stage for stage in self.schedule if stage[0] <= self.model.seen] or self.schedule[:1]
        token = max(self.model.seen, kept[-1][0]) + self.rng.randrange(1, 200 * self.lanes * self.seq_len)
        self.schedule = [*kept, (token, self.shares())]
        self.model.plan = self.plan()
        drawn = [name for stage in self.model.stages[-1:] for name, _ in stage.weights]
        coming = [name for begin, shares in self.schedule if begin > self.model.seen for name in shares]
        now = {*drawn, *coming, *(name for name, _ in self.model.reweighted or ())}
        over = {name for name in self.names if name not in now and name not in self.schedule[-1][1]}
        self.gone = over if self.rng.random() < 0.5 else set()


def asked_for(error: ConfigError) -> int:
    """The budget that an error asks for."""
    found = re.search(r"is too small .*give at least ([\d,]+)", str(error))
    assert found is not None, error
    return int(found[1].replace(",", ""))


def segments(rng: random.Random, steps: int, events: int) -> Iterator[int]:
    cuts = [0, *sorted(rng.randrange(steps + 1) for _ in range(events)), steps]
    yield from (high - low for low, high in itertools.pairwise(cuts))


def run_killed(mixture: Mixture, steps: int) -> None:
    """Run it, with a kill now and then, and compare every batch with the model's."""
    rng, model = mixture.rng, mixture.model
    state: dict[str, Any] | None = None
    for number, length in enumerate(segments(rng, steps, rng.randint(1, 3))):
        world_size = rng.randint(1, mixture.lanes)
        ranks = sorted(rng.sample(range(world_size), min(world_size, 2)))
        # A source that ends must last to the end of the block, which longer rows might not let it.
        if number and rng.random() < 0.3 and (not mixture.epochs or model.row % BLOCK == 0):
            model.resize(rng.randint(1, 12))
        if number and not mixture.epochs and rng.random() < 0.4:
            mixture.another_future()
        reweighted = model.row > 0 and rng.random() < 0.25
        loaders = [
            mixture.loader(rank, world_size, state, tight=not reweighted and rng.random() < 0.3) for rank in ranks
        ]
        with contextlib.ExitStack() as stack:
            for loader in loaders:
                stack.enter_context(loader)
            if number and rng.random() < 0.25:
                skipped = rng.randrange(100)
                for loader in loaders:
                    loader.skip(skipped)
                for _ in range(skipped):
                    model.step()
            if reweighted:
                shares = mixture.shares()
                if not mixture.gone & shares.keys():
                    model.reweighted = integer_weights(shares)
                    for loader in loaders:
                        loader.reweight(shares)
            streams = [iter(loader) for loader in loaders]
            for _ in range(length):
                batches = [next(stream) for stream in streams]
                names = model.step()
                expected = mixture.expect(names)
                for rank, batch, loader in zip(ranks, batches, loaders, strict=True):
                    first, last = rank * mixture.lanes // world_size, (rank + 1) * mixture.lanes // world_size
                    assert [loader.sources[place] for place in batch.sources] == names[first:last]
                    assert batch.tokens.tolist() == expected[first:last]
                    assert batch.state == batches[0].state
                state = batches[0].state
            if not length:
                state = loaders[0].state_dict()
            for stream in streams[: rng.randint(0, 1)]:  # one rank is ahead when the run is killed
                next(stream)
            for loader in loaders:
                assert loader.stats()["peak_bytes"] <= loader.stats()["budget_bytes"]


@pytest.mark.parametrize("seeds", [range(first, first + 30) for first in range(0, RUNS, 30)], ids=str)
def test_random_mixtures_that_are_killed_and_changed_deliver_what_the_order_says(stored, seeds: range) -> None:
    for seed in seeds:
        mixture = Mixture(seed, stored)
        try:
            run_killed(mixture, mixture.rng.choice([20, 50, 50, 110]))
        except BaseException as error:
            error.add_note(f"mixture {seed}") if hasattr(error, "add_note") else None
            raise
