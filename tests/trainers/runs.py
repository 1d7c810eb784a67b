"""Starts recipes in processes of their own, and looks at what was trained on."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import warnings
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from tiny import Records
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader

LANES, SEQ_LEN, STEPS = 4, 4, 5
WEIGHTS = {"web": 0.6, "code": 0.4}
TOKENS = LANES * SEQ_LEN * STEPS + 7  # no whole number of batches: epochs of five and of six
RUN: dict[str, Any] = {"lanes": LANES, "seq_len": SEQ_LEN, "window": 2, "seed": 5, "threads": 1}
PROCESS_SECONDS = 240  # a deadlock is a failure

Batches = list[list[list[int]]]
Data = str | dict[str, str]


def write_data(folder: Path, first: int = 0) -> str:
    """A set in which every token id is there once, from ``first`` on."""
    borders = np.sort(np.random.default_rng(0).choice(np.arange(1, TOKENS), 19, replace=False))
    lengths = np.diff([0, *borders, TOKENS]).tolist()
    files = unique_groups([[lengths[:5], lengths[5:10]], [lengths[10:15], lengths[15:]]])
    return str(write_set(folder, [[[[first + id for id in ids] for ids in group] for group in file] for file in files]))


def write_mixture(folder: Path) -> dict[str, str]:
    """Two sources in which every token id is there once, for `WEIGHTS`."""
    return {"web": write_data(folder / "web"), "code": write_data(folder / "code", first=TOKENS)}


def plain(data: Data, steps: int, **options: Any) -> Batches:
    """What the loader itself gives for so many steps: the run that nobody interrupts."""
    with ParquetLoader(data, **{**RUN, **options}) as loader:
        batches = chain.from_iterable(repeat(loader))  # epoch after epoch
        return [batch.tokens[:, :SEQ_LEN].tolist() for batch in islice(batches, steps)]


def together(ranks: list[Batches]) -> Batches:
    """All ranks' rows of each step, one rank after another."""
    return [list(chain(*rows)) for rows in zip(*ranks, strict=False)]


_OFFLINE = {
    "CUDA_VISIBLE_DEVICES": "",
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def torchrun(program: str, *arguments: str, ranks: int, killed: bool = False) -> None:
    """Run a program of this folder to its end by torchrun; without a GPU, and without a network.

    torchrun is forked from the server that has imported PyTorch; the ranks are what it starts.
    """
    here = Path(__file__).parent
    paths = [str(here.parents[1]), str(here.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**_OFFLINE, "PYTHONPATH": os.pathsep.join(paths)}
    command = ["--standalone", "--nproc-per-node", str(ranks), str(here / program), *arguments]
    process = multiprocessing.get_context("forkserver").Process(target=_torchrun, args=(command, environment))
    process.start()
    process.join(PROCESS_SECONDS)
    code = process.exitcode
    process.kill()
    assert code == (1 if killed else 0)


def _torchrun(command: list[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.argv = ["torchrun", *command]
    warnings.simplefilter("ignore")
    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)


def fork_ranks(program: str, *arguments: str, ranks: int | None, killed: bool = False) -> None:
    """The same in processes that are forked from a server which has imported the trainers, in torchrun's environment.

    Args:
        ranks: None for one process without such an environment.
    """
    context = multiprocessing.get_context("forkserver")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in range(ranks or 1):
        environment = dict(_OFFLINE)
        if ranks:
            own, size = str(rank), str(ranks)
            environment |= {"RANK": own, "LOCAL_RANK": own, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none"}
        process = context.Process(target=_run, args=(str(Path(__file__).parent / program), arguments, environment))
        process.start()
        processes.append(process)
    for process in processes:
        process.join(PROCESS_SECONDS)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [-signal.SIGKILL if killed else 0] * len(processes)


def _run(path: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.argv = [path, *arguments]
    warnings.simplefilter("ignore")
    runpy.run_path(path, run_name="__main__")


class Runs:
    """One training run of a recipe, in as many stretches as are asked for."""

    def __init__(self, recipe: str, data: Data, folder: Path, **options: Any) -> None:
        self._recipe, self._data, self._folder = recipe, data, folder
        self._options = {**RUN, **options}
        self._stretches = 0
        for name in ("records", "checkpoints"):
            (folder / name).mkdir()

    @property
    def checkpoints(self) -> Path:
        return self._folder / "checkpoints"

    def stretch(self, steps: int, ranks: int | None = None, *, kill_at: int | None = None, **options: Any) -> Batches:
        """Train up to so many steps of the whole run, or until a kill, and tell what was trained on in this stretch.

        Args:
            steps: of the whole run.
            ranks: processes as torchrun starts them; None for a plain one.
            kill_at: the batch of this stretch at which every process kills itself.
            options: of the recipe.
        """
        self._stretches += 1
        what = {
            "recipe": self._recipe,
            "data": self._data,
            "folder": str(self.checkpoints),
            "records": str(self._folder / "records"),
            "tag": self._stretches,
            "steps": steps,
            "vocabulary": 2 * TOKENS,
            "kill_at": kill_at,
            "options": {**self._options, **options},
        }
        if ranks and self._recipe == "ddp":  # the others are given what torchrun would give them
            torchrun("program.py", json.dumps(what), ranks=ranks, killed=kill_at is not None)
        else:
            fork_ranks("program.py", json.dumps(what), ranks=ranks, killed=kill_at is not None)
        return together(
            [Records(self._folder / "records" / f"{self._stretches}-{rank}").batches() for rank in range(ranks or 1)]
        )
