"""Sets that grow while they are read: files made beforehand, and shown one after another."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ParquetLoader, merge_checkpoints
from parquet_loader.index.follow import Follower

Show = Callable[[str, bytes], None]


def make_files(folder: Path, seed: int, count: int = 8, *, rows: int = 20, column: str = "tokens") -> list[Path]:
    """Files of a few row groups of documents whose tokens are all different."""
    random_numbers = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    made, token = [], 0
    for number in range(count):
        documents = []
        for length in random_numbers.integers(0, 60, int(random_numbers.integers(1, 5)) * rows).tolist():
            documents.append(list(range(token, token + length)))
            token += length
        path = folder / f"part-{number:05}.parquet"
        pq.write_table(pa.table({column: pa.array(documents, pa.list_(pa.int32()))}), path, row_group_size=rows)
        made.append(path)
    return made


def total_of(files: Iterable[Path]) -> int:
    return sum(len(document) for path in files for document in pq.read_table(path)["tokens"].to_pylist())


def marker(state: str = "growing", reason: str | None = None) -> bytes:
    values = {
        "format": "parquet_loader.growing",
        "version": 1,
        "state": state,
        "writer": {"program": "test", "host": "here", "pid": 1},
        "since": "then",
        "updated": str(time.monotonic_ns()),
        "files": 0,
        "documents": 0,
        "tokens": 0,
        "row_group_tokens": 600,
        "reason": reason,
    }
    return json.dumps(values).encode()


class Writer:
    """Shows files in a folder, each at once.

    Args:
        folder: a local one, which is made.
        files: in order.
    """

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        self.folder = folder
        self.left = list(files)
        self.begin()

    def begin(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.beat()

    def put(self, name: str, content: bytes) -> None:
        path = self.folder / f".{name}.tmp"
        path.write_bytes(content)
        path.replace(self.folder / name)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def beat(self, state: str = "growing", reason: str | None = None) -> None:
        self.put("_growing.json", marker(state, reason))

    def show(self, count: int = 1) -> None:
        for path in self.left[:count]:
            self.put(path.name, path.read_bytes())
            self.beat()
        del self.left[:count]

    def finish(self) -> None:
        self.show(len(self.left))
        self.put("_manifest.json", b"{}")
        self.remove("_growing.json")

    def run(self, seed: int, stop: threading.Event, pause: float) -> None:
        """Show all files with random pauses; fast, slow, stalled, killed in the middle of a file and started again."""
        chance = random.Random(seed)
        while self.left and not stop.is_set():
            manner = chance.choice(("fast", "slow", "stalled", "killed"))
            if manner == "killed":
                (self.folder / f".{self.left[0].name}.tmp").write_bytes(self.left[0].read_bytes()[:50])
                stop.wait(chance.uniform(0, 2 * pause))
                self.begin()
            stop.wait({"fast": 0, "slow": pause, "stalled": 4 * pause, "killed": 0}[manner] * chance.random())
            self.show(chance.randint(1, 2))
        self.finish()


class S3Writer(Writer):
    """The same in a bucket."""

    def __init__(self, filesystem: Any, prefix: str, files: Sequence[Path], folder: Path) -> None:
        self.filesystem = filesystem
        self.prefix = prefix
        super().__init__(folder, files)

    def put(self, name: str, content: bytes) -> None:
        self.filesystem.pipe_file(f"{self.prefix}/{name}", content)

    def remove(self, name: str) -> None:
        self.filesystem.rm_file(f"{self.prefix}/{name}")


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "LOCAL_SECONDS", 0.01)
    monkeypatch.setattr(Follower, "REMOTE_SECONDS", 0.05)


def take(loaders: Sequence[ParquetLoader], count: int) -> list[np.ndarray]:
    """Global batches of all ranks together, over epochs' ends."""
    found: list[np.ndarray] = []
    iterators = [iter(loader) for loader in loaders]
    while len(found) < count:
        parts = []
        for place, loader in enumerate(loaders):
            batch = next(iterators[place], None)
            if batch is None:
                iterators[place] = iter(loader)
                batch = next(iterators[place], None)
            if batch is None:
                assert not parts, "ranks end together"
                return found
            parts.append(batch.tokens)
        found.append(np.concatenate(parts))
    return found


def digest(batches: Iterable[np.ndarray]) -> str:
    whole = hashlib.sha256()
    for batch in batches:
        whole.update(batch.tobytes())
    return whole.hexdigest()


def run_of_ranks(open_loader: Callable[..., ParquetLoader], lives: Iterator[tuple[int, int, bool]]) -> list[np.ndarray]:
    """Batches of a run that ends and is resumed: (ranks, batches, whether it follows) of each of its lives."""
    found: list[np.ndarray] = []
    checkpoint = None
    for ranks, count, follow in lives:
        with ExitStack() as stack:
            loaders = [
                stack.enter_context(open_loader(rank=rank, world_size=ranks, follow=follow)) for rank in range(ranks)
            ]
            if checkpoint is not None:
                for loader in loaders:
                    loader.resume(checkpoint)
            found += take(loaders, count)
            checkpoint = merge_checkpoints([loader.checkpoint() for loader in loaders])
    return found


def copy_finished(files: Sequence[Path], folder: Path) -> Path:
    folder.mkdir()
    for path in files:
        shutil.copy(path, folder)
    (folder / "_manifest.json").write_text("{}")
    return folder
