"""Processes of one process group, forked from a server that has imported PyTorch once, for all of them."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

# Imported once, by the server; none of them starts a thread.
PRELOADED = [
    "pytest",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "parquet_loader.trainers",
    "parquet_loader.pretokenize.cli",
]
multiprocessing.set_forkserver_preload(PRELOADED)


def on_ranks(folder: Path, count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work(rank, folder, *arguments)` returns in each of so many processes of one process group on gloo."""
    torch.multiprocessing.start_processes(
        _run, (count, folder, work, arguments), nprocs=count, start_method="forkserver"
    )
    return [pickle.loads((folder / f"{count}-{rank}").read_bytes()) for rank in range(count)]


def _run(rank: int, count: int, folder: Path, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store-{work.__name__}-{count}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
    try:
        (folder / f"{count}-{rank}").write_bytes(pickle.dumps(work(rank, folder, *arguments)))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
