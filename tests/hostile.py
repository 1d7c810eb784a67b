"""A process that opens what may be meant to harm, and uses it: what it does is told, also that it crashed or hung."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parquet_loader import DatasetIndex, ParquetLoader, build_index, merge_checkpoints

ANSWER_SECONDS = 60  # a hang is a failure
OPTIONS: dict[str, Any] = {"seq_len": 4, "lanes": 4, "window": 3, "budget_bytes": 64 << 20, "threads": 1}
MIXED = [(0, {"code": 1, "web": 2}), (2000, {"web": 1})]
_opened: list[str] = []


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str) and not arguments[0].endswith((".py", ".pyc")):
        _opened.append(os.path.abspath(arguments[0]))


def _read(loader: ParquetLoader) -> None:
    for batch, _ in zip(loader, range(4), strict=False):
        batch.documents(OPTIONS["seq_len"])


def use_index(data: bytes, folder: Path) -> None:
    """A saved index, all that can be asked of it, and a loader on it."""
    (folder / "saved").write_bytes(data)
    index = pickle.loads(pickle.dumps(DatasetIndex.load(folder / "saved")))
    assert index.to_bytes() and index.fingerprint and repr(index)
    index.remarks()
    with ParquetLoader(folder / "set", index=index, **OPTIONS) as loader:
        _read(loader)


def use_cache(data: bytes, folder: Path) -> None:
    """A cache of footers; `folder` has one file in ``cache``, which it replaces."""
    (path,) = (folder / "cache").iterdir()
    path.write_bytes(data)
    index = build_index(folder / "set", cache_dir=folder / "cache")
    with ParquetLoader(folder / "set", index=index, **OPTIONS) as loader:
        _read(loader)


def use_checkpoint(data: bytes, folder: Path) -> None:
    """A checkpoint, as rank 0 of 2 resumes it."""
    with ParquetLoader(folder / "set", rank=0, world_size=2, cache_dir=folder / "own", **OPTIONS) as loader:
        loader.resume(data)
        _read(loader)


def use_parts(data: bytes, folder: Path) -> None:
    """A part, merged with that of rank 1, as either of the two."""
    part = (folder / "part-1").read_bytes()
    for parts in ([data, part], [part, data]):
        merge_checkpoints(parts)


def use_mixture(data: bytes, folder: Path) -> None:
    """A checkpoint of a mixture, as rank 0 of 2 resumes it; and all that tells what it holds."""
    sources = {name: str(folder / "set" / name) for name in ("code", "web")}
    options = {**OPTIONS, "weights": MIXED, "rank": 0, "world_size": 2}
    with ParquetLoader(sources, cache_dir=folder / "own", **options) as loader:
        loader.resume(data)
        _read(loader)
        state = loader.state_dict()
        assert loader.history and loader.stats() and repr(loader)
        loader.state_at(0, state)
        loader.checkpoint(state)


USES: dict[str, Callable[[bytes, Path], None]] = {
    "index": use_index,
    "cache": use_cache,
    "checkpoint": use_checkpoint,
    "mixture": use_mixture,
    "parts": use_parts,
}


def _serve(connection: Any, folder: Path) -> None:
    sys.addaudithook(_note_opened)
    while True:
        use, data = connection.recv()
        _opened.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                USES[use](data, folder)
                kinds, text = [], ""
            except Exception as error:
                kinds, text = [kind.__name__ for kind in type(error).__mro__], str(error)
        outside = [path for path in _opened if path.endswith(".parquet") and not path.startswith(f"{folder}/set/")]
        connection.send((kinds, text, [str(warning.message) for warning in caught], outside))


class Reader:
    """The process; a new one where the last has crashed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: Any = None

    def use(self, use: str, data: bytes) -> tuple[list[str], str, list[str]]:
        """(Names of the error's class and of those above it, its text, warnings); the first two empty if it works."""
        if self._process is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._folder), daemon=True)
            self._process.start()
            theirs.close()
        self._connection.send((use, data))
        try:
            assert self._connection.poll(ANSWER_SECONDS), f"{use} hung"
            kinds, text, warned, outside = self._connection.recv()
        except (EOFError, AssertionError):
            self.close()
            raise
        assert not outside, f"{use} read {outside}"
        assert "\n" not in text, text
        return kinds, text, warned

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None
