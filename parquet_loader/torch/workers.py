"""Who has a dataset's position: its own process, or DataLoader workers, which take it over and may hand it on.

    dataset's process      at 0 ─┐                                 ┌─ iterates from 60 on
    worker process 0             └─ takes it ── 10 ── 20 ── ends ──┤  at 60
    a later worker process 0                               at 60   └─ or takes it from there

Between taking and ending nobody but the worker knows the position: it reads ahead of the training loop, and PyTorch
drops what it has read when a loop is broken off.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from ..errors import CheckpointError

__all__ = ["Handover", "taken_error"]

_MAX_WORKERS = 1024
_HANDOVER_SECONDS = 30.0  # for workers that have still to notice the end of their epoch


class Handover:
    """Memory that a dataset's process shares with its DataLoader workers: who has the position, and where it is.

    Workers take it over when they begin, and note where they are when their epoch has ended: from there others may go
    on, in other processes. In between nobody else knows it.
    """

    def __init__(self) -> None:
        self._cells = torch.zeros(2 + 2 * _MAX_WORKERS, dtype=torch.int64)
        self._cells.share_memory_()  # type: ignore[no-untyped-call]  # untyped in torch
        self._attach()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A worker's came as shared memory, its parent's; any other copy is of a dataset by itself."""
        self._cells = state["_cells"]
        if self._cells.is_shared():  # type: ignore[no-untyped-call]
            self._attach()
        else:
            self.__init__()  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        return {"_cells": self._cells}

    def _attach(self) -> None:
        cells = self._cells.numpy()
        self._head = cells[:2]  # the parent's position, and of how many workers the set that took it over is
        self._owners = cells[2 : 2 + _MAX_WORKERS]  # by worker: its process; 0 for nobody
        self._ends = cells[2 + _MAX_WORKERS :]  # by worker: one more than the position it ended at; 0 until then

    # Of the parent:

    @property
    def taken(self) -> bool:
        """Whether workers have taken the position over."""
        return bool(self._head[1])

    def common_end(self) -> int | None:
        """Where all workers have ended, or None."""
        ends = self._ends[: self._head[1]]
        return int(ends[0]) - 1 if ends[0] and (ends == ends[0]).all() else None

    def free(self) -> None:
        """Take the position back."""
        if self._head[1]:
            self._owners[:], self._ends[:], self._head[1] = 0, 0, 0

    def parent_at(self, position: int) -> None:
        """Note where the dataset's own process is, for workers that last."""
        self._head[0] = position

    # Of worker processes:

    def owner(self, worker: int) -> int:
        """The process that has taken the position of a worker over; 0 for none."""
        return int(self._owners[worker])

    def position(self, worker: int, workers: int, again: bool) -> int | None:
        """Where a worker process begins that does not own the position; None for where it is.

        Args:
            worker, workers: which of how many.
            again: whether the process has owned it before, so that it does not know of the parent.
        """
        if self._head[1] not in (0, workers):
            raise taken_error(f"{self._head[1]} DataLoader workers have taken over the position, and not {workers}")
        owner = self.owner(worker)
        if not owner:
            return int(self._head[0]) if again else None
        # Workers come to the end of an epoch ahead of the training loop, but maybe a moment after the next set begins.
        give_up = time.monotonic() + _HANDOVER_SECONDS
        while not self._ends[worker]:  # PyTorch leaves no way to be woken
            if not _is_running(owner) or time.monotonic() > give_up:
                raise taken_error("other DataLoader workers have taken over the position of this dataset")
            time.sleep(0.005)
        return int(self._ends[worker]) - 1

    def take(self, worker: int, workers: int) -> None:
        """Take the position over, as one of so many."""
        self._owners[worker], self._ends[worker], self._head[1] = os.getpid(), 0, workers

    def end(self, worker: int, position: int) -> None:
        """Note that the epoch has ended, and where; others may go on from there."""
        if self.owner(worker) == os.getpid():
            self._ends[worker] = position + 1


def _is_running(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is one
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def taken_error(what: str) -> CheckpointError:
    """Somebody asks for the position, or wants to go on from it, who does not know it."""
    return CheckpointError(
        f"{what}; give the state of the last batch to load_state_dict before iterating again: with_state=True puts it "
        "into each batch. At the end of an epoch, as many workers go on by themselves, also those of "
        "persistent_workers=True"
    )
