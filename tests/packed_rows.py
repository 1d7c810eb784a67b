"""Random sets that are packed by rows already, and runs of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import Batch, Component, ParquetLoader, merge_checkpoints

PAD = 1_000_000


def row_files(rng: np.random.Generator, width: int, *, shorter: bool, files: int = 3, groups: int = 4, rows: int = 25):
    """Lengths of rows: full ones, and where they may be shorter some of any length, empty ones among them."""
    found = []
    for _ in range(files):
        counts = rng.integers(0, rows, rng.integers(1, groups + 1))
        found.append([np.where(rng.random(n) < 0.6 * shorter, rng.integers(0, width + 1, n), width) for n in counts])
    if not any(group.any() for file in found for group in file):
        found[0][0] = np.array([width, width])
    return [[group.tolist() for group in file] for file in found]


def all_groups(files):
    return [group for file in files for group in file]


def rows_of(batch: Batch) -> list[list[int]]:
    """The rows of a batch without their padding, which must be nothing else."""
    lengths = batch.lengths if batch.lengths is not None else np.full(len(batch.tokens), batch.tokens.shape[1])
    assert batch.lengths is None or (lengths < batch.tokens.shape[1]).any()
    for row, length in zip(batch.tokens, lengths, strict=True):
        assert set(row[length:].tolist()) <= {PAD, 0}
    return [row[:length].tolist() for row, length in zip(batch.tokens, lengths, strict=True)]


class RandomRun:
    """A set or a mixture with one, of which the rest may be packed by tokens or by rows; all ids are unique."""

    def __init__(self, rng: np.random.Generator, folder: Path) -> None:
        self.lanes, self.seq_len = int(rng.integers(1, 8)), int(rng.integers(1, 16))
        self.options = dict(
            lanes=self.lanes,
            seq_len=self.seq_len,
            overlap=int(rng.integers(0, 2)),
            seed=int(rng.integers(1000)),
            window=int(rng.integers(1, 5)),
            pad_id=PAD,
            cache_dir=folder,
        )
        width = self.seq_len + self.options["overlap"]
        names = "abc"[: int(rng.integers(1, 4))]
        self.files, self.stored, self.packed, self.sources = {}, {}, set(), {}
        for number, name in enumerate(names):
            packed = number == 0 or rng.random() < 0.4
            lengths = (
                row_files(rng, width, shorter=bool(rng.random() < 0.7)) if packed else random_files(rng, length=20)
            )
            groups = [
                [[[token + 30_000 * number for token in row] for row in group] for group in file]
                for file in unique_groups([*lengths, [[3]]] if not packed else lengths)
            ]
            write_set(folder / name, groups)
            self.files[name], self.stored[name] = groups, all_groups(groups)
            self.packed |= {name} if packed else set()
            self.sources[name] = Component(folder / name, packing="rows" if packed else "tokens")
        if len(names) == 1:
            self.source = folder / "a"
            self.options["packing"] = "rows"
        else:
            self.source = self.sources
            self.options["weights"] = {name: int(rng.integers(1, 9)) for name in names}

    def global_batches(self, ranks: int, steps: int, state: bytes | None) -> tuple[list[list[Batch]], bytes]:
        """So many steps on so many ranks from a checkpoint on, and the next one."""
        with ExitStack() as stack:
            loaders = [
                stack.enter_context(
                    ParquetLoader(self.source, rank=rank, world_size=ranks, uneven=True, **self.options)
                )
                for rank in range(ranks)
            ]
            for loader in loaders:
                if state is not None:
                    loader.resume(state)
            found = [[next(iter(loader)) for loader in loaders] for _ in range(steps)]
            return found, merge_checkpoints([loader.checkpoint() for loader in loaders])
