"""`TokenDataset`: a `ParquetLoader` as a PyTorch dataset. The only module that imports torch.

>>> from torch.utils.data import DataLoader  # doctest: +SKIP
>>> dataset = TokenDataset("data", seq_len=2048, lanes=512, overlap=1)  # doctest: +SKIP
>>> for batch in DataLoader(dataset, batch_size=None): ...  # doctest: +SKIP

Processes share out the lanes, so that nothing is read twice. Worker w of n on rank r of R is rank r*n + w of R*n:

    lanes 0-7         rank 0 of 2                       rank 1 of 2
    num_workers 0     0 1 2 3                           4 5 6 7
    num_workers 2     worker 0: 0 1   worker 1: 2 3     worker 0: 4 5   worker 1: 6 7

The loader reads and decodes on threads of its own, ahead of the training loop: ``num_workers=0`` is the usual choice,
and the only one where the dataset itself knows how far training has come.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from .batch import Batch
from .errors import CheckpointError, ConfigError, LoaderClosedError
from .loader import ParquetLoader
from .storage import Source

__all__ = ["TokenDataset"]

_MAX_WORKERS = 4096  # a page of flags


class TokenDataset(IterableDataset[dict[str, Any]]):
    """Batches of a `ParquetLoader` as dicts of tensors, for ``DataLoader(dataset, batch_size=None)``.

    A batch, where this rank has ``rows = lanes // world_size`` lanes:

    ============== ==================================================================================================
    ``input_ids``  int64, shape ``(rows, seq_len)``, contiguous
    ``labels``     the same shape and type. With ``overlap=1`` the next token of every input, for a loss that compares
                   position with position; with ``overlap=0`` a copy of ``input_ids``, for models that shift them
                   themselves, as Hugging Face's do
    ``state``      with ``with_state=True``: the position after this batch, for `load_state_dict`
    ``weight``     with ``uneven=True``: a float, see `Batch.weight`
    ============== ==================================================================================================

    One iteration gives the rest of the current epoch, the next one goes on with the next. Every iteration is an
    iterator of its own, but all move this one dataset.

    **DataLoader workers** each read their own lanes: a step of the run comes as n batches of ``rows / n`` rows, from
    worker 0 to worker n - 1. The position is theirs then. Asking this process's dataset for it, or handing it to
    another set of workers, raises an error, for it could only give the old one. So use ``persistent_workers=True``,
    which lets workers go on to the next epoch, and ``with_state=True`` for checkpoints, which a new dataset can load.
    The state of worker n - 1 is the one after the step, the others hold the one before it: whoever stops within a step
    repeats it up to there, and loses nothing. But do not break off an iteration and begin another: PyTorch drops what
    the workers have read ahead. Go on with a new dataset and the last ``state`` instead.

    Args:
        source: as for `ParquetLoader`, and so is every argument that is not here.
        seq_len, lanes, overlap: as for `ParquetLoader`.
        rank, world_size: both or neither. Where they are not given they are those of the default process group of
            torch.distributed, or 0 and 1 if there is none, when the first iteration begins or `checkpoint` is first
            called; make the process group before that. A pickled copy has those of the process that pickled it.
        labels: False leaves ``labels`` out.
        with_state: put the ``state`` into every batch.
        options: the other arguments of `ParquetLoader`. The loader is made when it is first needed, and looks at their
            values then.

    Raises:
        ConfigError: rank without world_size, or the other way round.
        TypeError: an argument that `ParquetLoader` does not have.
    """

    def __init__(
        self,
        source: Source,
        *,
        seq_len: int,
        lanes: int,
        overlap: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        labels: bool = True,
        with_state: bool = False,
        **options: Any,
    ) -> None:
        self._arguments = {"source": source, "seq_len": seq_len, "lanes": lanes, "overlap": overlap, **options}
        inspect.signature(ParquetLoader).bind(**self._arguments)
        if (rank is None) != (world_size is None):
            raise ConfigError(f"give both rank and world_size or neither, not rank={rank} and world_size={world_size}")
        self._place = None if rank is None or world_size is None else (rank, world_size)
        self._labels = labels
        self._with_state = with_state
        self._state: dict[str, Any] | None = None  # where a loader that is yet to be made begins
        self._loader: ParquetLoader | None = None
        self._loader_place: tuple[int, int] | None = None
        self._closed = False
        self._taken = _shared_flags()  # by worker: whether it has taken the position over
        self._took = False  # whether this very process did

    # ── iterating ────────────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The batches from the current position to the end of its epoch."""
        worker = get_worker_info()
        if worker is None:
            self._check_not_taken()
            self._place = self._place or _process_place()
        elif not self._took:
            if self._taken[worker.id]:
                raise _taken_error()
            self._taken[worker.id] = self._took = True
        last = worker is None or worker.id == worker.num_workers - 1
        loader = self._open()
        before = loader.state_dict()
        for batch in loader:
            yield self._item(batch, batch.state if last else before)
            before = batch.state

    def _item(self, batch: Batch, state: dict[str, Any]) -> dict[str, Any]:
        tokens, overlap = batch.tokens, self._arguments["overlap"]
        inputs = torch.from_numpy(np.array(tokens[:, :-1] if overlap else tokens, np.int64, order="C"))
        item: dict[str, Any] = {"input_ids": inputs}
        if self._labels:
            # Never the inputs themselves: people write -100 into labels.
            item["labels"] = torch.from_numpy(np.array(tokens[:, 1:] if overlap else tokens, np.int64, order="C"))
        if self._with_state:
            item["state"] = state
        if self._arguments.get("uneven"):
            item["weight"] = batch.weight
        return item

    def __len__(self) -> int:
        """Batches of the current epoch on this rank; n workers bring n times as many, each with fewer rows.

        PyTorch warns of that where it was asked for the length of a DataLoader with several workers.
        """
        return len(self._open())

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        self._check_not_taken()
        return self._open().epoch

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: an iteration goes on with the next epoch by itself.

        Trainers call it, some of them with 0 after a resume; it never moves the position.
        """

    # ── position ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """The whole run's position, fresh plain values; the same on every rank that has taken as many batches.

        Raises:
            CheckpointError: DataLoader workers have taken the position over; see the class.
        """
        self._check_not_taken()
        return self._open().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, of any rank of any world size; before an iteration or in the middle of one.

        Raises:
            CheckpointError: not a state, or one of another run; or DataLoader workers have taken the position over.
        """
        self._check_not_taken()
        self._open().load_state_dict(state)

    def checkpoint(self) -> bytes:
        """This rank's part of a checkpoint; see `ParquetLoader.checkpoint`.

        Raises:
            CheckpointError: DataLoader workers have taken the position over; see the class.
        """
        self._check_not_taken()
        if get_worker_info() is None:
            self._place = self._place or _process_place()
        return self._open().checkpoint()

    def resume(self, checkpoint: bytes) -> None:
        """Go to the position of a checkpoint that `merge_checkpoints` made; see `ParquetLoader.resume`.

        Raises:
            CheckpointError: as for `load_state_dict`.
        """
        self._check_not_taken()
        self._open().resume(checkpoint)

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """End every thread of this process and let go of all memory. Closing twice is fine."""
        self._closed = True
        if self._loader is not None:
            self._loader.close()

    def __enter__(self) -> TokenDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """All but the loader. Whoever unpickles it makes one of its own, at the same position and on the same index."""
        state = self.__dict__ | {"_loader": None, "_loader_place": None, "_took": False}
        if self._loader is not None:
            state["_state"] = self._loader.state_dict()
        if state["_place"] is None and _in_process_group():
            state["_place"] = _process_place()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A worker's flags came as shared memory, its parent's; any other copy is a dataset by itself, with its own."""
        self.__dict__.update(state)
        if not self._taken.is_shared():  # type: ignore[no-untyped-call]
            self._taken = _shared_flags()

    def _open(self) -> ParquetLoader:
        """The loader for this process's place; made where there is none, or, as in a fork, one for another place."""
        place = self._place or _process_place()
        worker = get_worker_info()
        if worker is not None:
            place = _worker_place(place, worker.id, worker.num_workers, self._arguments)
        if self._loader is None or self._loader_place != place:
            if self._closed:
                raise LoaderClosedError("this dataset is closed; make a new one and give it the state of the old")
            former = self._loader
            if former is not None:
                self._state = former.state_dict()
            loader = ParquetLoader(**self._arguments, rank=place[0], world_size=place[1])
            if self._state is not None:
                loader.load_state_dict(self._state)
            self._loader, self._loader_place = loader, place
            self._arguments["index"] = loader.index  # for loaders of other processes: one index, read once
        return self._loader

    def _check_not_taken(self) -> None:
        if get_worker_info() is None and self._taken.any():
            raise _taken_error()


def _taken_error() -> CheckpointError:
    return CheckpointError(
        "DataLoader workers have taken over the position of this dataset, and only they know it now; use "
        "persistent_workers=True to iterate over it again, and with_state=True to get the position with each batch, "
        "which a new TokenDataset can load"
    )


def _shared_flags() -> torch.Tensor:
    flags = torch.zeros(_MAX_WORKERS, dtype=torch.bool)
    return flags.share_memory_()  # type: ignore[no-untyped-call, no-any-return]  # untyped in torch


def _in_process_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _process_place() -> tuple[int, int]:
    """(rank, world size) of the process group, if there is one."""
    if not _in_process_group():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _worker_place(place: tuple[int, int], worker: int, workers: int, arguments: Mapping[str, Any]) -> tuple[int, int]:
    """(rank, world size) of a DataLoader worker among all workers of all ranks."""
    rank, world_size = place
    lanes = arguments["lanes"]
    if lanes % (world_size * workers) and not arguments.get("uneven"):
        raise ConfigError(
            f"{workers} DataLoader workers on each of {world_size} ranks cannot share {lanes} lanes evenly; "
            f"use a num_workers that divides {lanes // world_size}, or 0: the loader has threads of its own"
        )
    return rank * workers + worker, world_size * workers
