"""Who has a dataset's position: its own process, or DataLoader workers, which lease it and may hand it on.

    dataset's process      at 0 ─┐                                   ┌─ iterates from 60 on
    worker process 0             └─ leases it ── 10 ── 20 ── ends ──┤  at 60
    a later worker process 0                                at 60   └─ or leases it from there

Between leasing and ending nobody but the worker knows the position: it reads ahead of the training loop, and PyTorch
drops what it has read when a loop is broken off.

Workers that last were started before the dataset was put elsewhere, perhaps to a run that was reweighted, so a position
alone would not tell them which rows come there: beside it lies the state that the dataset was last put to.
"""

from __future__ import annotations

import json
import mmap
import os
import time
import zlib
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch

from ..errors import CheckpointError, ConfigError

__all__ = ["Lease", "shared", "taken_error"]

_MAX_WORKERS = 1024
_STATE_BYTES = 1 << 20  # compressed: a mixture of thousands of sources, or thousands of stages
_CELLS = 3 + 2 * _MAX_WORKERS + _STATE_BYTES // 8
_HANDOVER_SECONDS = 30.0  # for workers that have still to notice the end of their epoch
_UNMOVED = -1  # where the dataset was made, forked or pickled: a worker's copy of it is there too


class Lease:
    """A dataset's position, which its process shares with DataLoader workers: who has it, and where it is.

    Workers take it when they begin, and give it back when their epoch has ended: from there others may continue, in
    other processes. In between nobody else knows where it is.
    """

    def __init__(self) -> None:
        # Forked workers share it, and it needs no room in /dev/shm, which may be full or read-only.
        self._share(np.frombuffer(mmap.mmap(-1, 8 * _CELLS), np.int64))
        self._tensor: torch.Tensor | None = None  # the same memory for workers that are not forked; made for the first
        self._head[0] = _UNMOVED

    def _share(self, cells: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._cells = cells
        # Where the dataset's process is, how many workers have taken the position, and the bytes of the state.
        self._head, cells = cells[:3], cells[3:]
        self._holders, cells = cells[:_MAX_WORKERS], cells[_MAX_WORKERS:]  # by worker: its process; 0 for none
        self._ends, cells = cells[:_MAX_WORKERS], cells[_MAX_WORKERS:]  # one more than where its epoch ended; or 0
        self._state = cells.view(np.uint8)
        self._placed = False  # whether this process, a worker, continues from where it was put

    def __getstate__(self) -> dict[str, Any]:
        """The memory itself for a worker process that is being started; any other copy has a lease of its own."""
        if get_spawning_popen() is None:
            return {}
        if self._tensor is None:
            tensor = shared(torch.from_numpy(self._cells.copy()))
            self._share(tensor.numpy())
            self._tensor = tensor
        return {"tensor": self._tensor}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state:
            self._tensor = state["tensor"]
            self._share(self._tensor.numpy())
        else:
            self.__init__()  # type: ignore[misc]

    # Of the dataset's process:

    @property
    def taken(self) -> bool:
        """Whether workers have taken the position."""
        return bool(self._head[1])

    def common_end(self) -> int | None:
        """Where all workers have ended, or None."""
        ends = self._ends[: self._head[1]]
        return int(ends[0]) - 1 if ends[0] and (ends == ends[0]).all() else None

    def keep(self, state: Mapping[str, Any]) -> None:
        """Have the position, that of this state, taken back from workers if they have it."""
        if self._head[1]:
            self._holders[:], self._ends[:], self._head[1] = 0, 0, 0
        packed = zlib.compress(json.dumps(dict(state)).encode(), 1)
        self._state[: len(packed)] = np.frombuffer(packed, np.uint8)[: len(self._state)]
        self._head[0], self._head[2] = state["position"], len(packed)

    def moved(self, position: int) -> None:
        """Note where the dataset's process is, for workers that last."""
        self._head[0] = position

    # Of worker processes:

    def kept(self) -> dict[str, Any] | None:
        """The state that the dataset's process was put to last; None for the one that this process began with.

        Raises:
            CheckpointError: it is too large to be told.
        """
        size = int(self._head[2])
        if size > len(self._state):
            raise CheckpointError(
                f"the state of this run takes {size:,} bytes, and DataLoader workers are told of {_STATE_BYTES:,} at "
                "most; use num_workers=0: the loader has threads of its own"
            )
        return json.loads(zlib.decompress(self._state[:size].tobytes())) if size else None

    def place(self) -> None:
        """This process was put somewhere: the next `take` continues from there."""
        self._placed = True

    def take(self, worker: int, workers: int) -> int | None:
        """Take the position, as one of ``workers`` workers.

        Returns:
            Where to begin; None for where this process is.

        Raises:
            CheckpointError: nobody knows where that would be.
        """
        held, ended = self._holders[worker] == os.getpid(), self._ends[worker] > 0
        if self._placed:
            position = None
        elif held and not ended:
            raise taken_error("an iteration was broken off, and what workers had read ahead of it is lost")
        else:
            position = None if held else self._handed_over(worker, workers)
        self._holders[worker], self._ends[worker], self._head[1] = os.getpid(), 0, workers
        self._placed = False
        return position

    def _handed_over(self, worker: int, workers: int) -> int | None:
        if self._head[1] not in (0, workers):
            raise taken_error(f"{self._head[1]} DataLoader workers have taken over the position, and not {workers}")
        holder = int(self._holders[worker])
        if not holder:
            return None if self._head[0] == _UNMOVED else int(self._head[0])
        # Workers come to the end of an epoch ahead of the training loop, but maybe a moment after the next set begins.
        give_up = time.monotonic() + _HANDOVER_SECONDS
        while not self._ends[worker]:  # PyTorch leaves no way to be woken
            if not _is_running(holder) or time.monotonic() > give_up:
                raise taken_error("other DataLoader workers have taken over the position of this dataset")
            time.sleep(0.005)
        return int(self._ends[worker]) - 1

    def give_back(self, worker: int, position: int) -> None:
        """The epoch has ended there; others may continue."""
        if self._holders[worker] == os.getpid():
            self._ends[worker] = position + 1


def shared(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, moved to memory that processes share.

    PyTorch would do it, but on a thread whose errors are printed and leave the training loop waiting for ever.

    Raises:
        ConfigError: there is no room for it.
    """
    try:
        return tensor.share_memory_()  # type: ignore[no-any-return, no-untyped-call, unused-ignore]  # untyped in torch
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"no shared memory for {tensor.nbytes:,} bytes, through which DataLoader workers pass batches ({error}); "
            "give /dev/shm more room (docker run --shm-size), or use num_workers=0: the loader has threads of its own"
        ) from error


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
    """Somebody asks for the position, or wants to continue from it, who does not know it."""
    return CheckpointError(
        f"{what}; give the state of the last batch to load_state_dict before iterating again: with_state=True puts it "
        "into each batch. At the end of an epoch, as many workers continue on their own, also those of "
        "persistent_workers=True"
    )
