"""`TokenDataset`: a `ParquetLoader` as a PyTorch dataset.

>>> from torch.utils.data import DataLoader  # doctest: +SKIP
>>> dataset = TokenDataset("data", seq_len=2048, lanes=512, overlap=1)  # doctest: +SKIP
>>> for batch in DataLoader(dataset, batch_size=None): ...  # doctest: +SKIP

Processes share out the lanes, so that nothing is read twice. Worker w of n on rank r of R is rank r*n + w of R*n:

    lanes 0-7         rank 0 of 2                       rank 1 of 2
    num_workers 0     0 1 2 3                           4 5 6 7
    num_workers 2     worker 0: 0 1   worker 1: 2 3     worker 0: 4 5   worker 1: 6 7

The loader reads and decodes on threads of its own, ahead of the training loop: ``num_workers=0`` is the usual choice,
and the only one where the dataset itself always knows how far training has come. One worker is for a training loop that
keeps its process busy in Python: then rows, boundaries and tensors are made in the other process.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ..batch import Batch
from ..blocks import AnyArray
from ..checkpoint import plain
from ..documents import IGNORE_INDEX, mask_first_labels, mask_padding
from ..engine.rows import BOUNDARIES
from ..errors import ConfigError, LoaderClosedError
from ..loader import ParquetLoader
from ..options import LoaderOptions, aligned_columns, boolean, check_type, signature_with
from ..sets import Component
from ..storage.opening import Source
from ..storage.secrets import redact
from .devices import prefetch_to_device
from .distributed import data_parallel_place, shared_index
from .torchdata import run_state
from .workers import Lease, shared, taken_error

__all__ = ["TokenDataset", "data_parallel_place", "prefetch_to_device", "shared_index"]

_BOUNDARIES = ("position_ids", "document_ids", "cu_seqlens")
# What accelerate, or transformers, puts around a DataLoader or its dataset; both call `set_epoch` at the beginning.
_RESHARDING = ("DataLoaderDispatcher", "IterableDatasetShard")


class TokenDataset(IterableDataset[dict[str, Any]]):
    """Batches of a `ParquetLoader` as dicts of tensors, for ``DataLoader(dataset, batch_size=None)``.

    With another ``batch_size``, or none given, PyTorch would stack these batches; that is an error.

    A batch, where this rank has ``rows = lanes // world_size`` lanes:

    ================ ================================================================================================
    ``input_ids``    `dtype`, shape ``(rows, seq_len)``, contiguous
    ``labels``       the same shape and type. With ``overlap=1`` the next token of every input, for a loss that
                     compares position with position; with ``overlap=0`` a copy of ``input_ids``, for models that shift
                     them themselves, as Hugging Face's do. -100 in padding: of ``packing="rows"``, and what ``epochs``
                     may end with. With ``labels="name"`` they are the values of that column, shifted alike; with
                     ``loss_mask="name"`` the tokens, and -100 where that column is 0
    ``tokens``       with ``tokens=True``, instead of both: `dtype`, shape ``(rows, seq_len + overlap)``, contiguous
    ``position_ids`` if among `boundaries`: `dtype`, shape ``(rows, seq_len)``, of the inputs: 0 where a document or a
                     row begins, and rising by one
    ``document_ids`` if among `boundaries`: `dtype`, shape ``(rows, seq_len)``: equal for tokens of one document in one
                     row, counted from 0 over the batch
    ``cu_seqlens``   if among `boundaries`: int32, shape ``(documents + 1,)``: where they begin in the flattened
                     inputs, and their end, as FlashAttention takes them for variable lengths; and with it
    ``max_seqlen``   an int, the tokens of the longest
    ``state``        with ``with_state=True``: the position after this batch, for `load_state_dict`
    ``weight``       with ``uneven=True``: a float, see `Batch.weight`
    ``sources``      with ``with_sources=True``: int64, shape ``(rows,)``: of each row its place in `sources`, the names
    each name of     shape ``(rows, seq_len + overlap)``, of the type that it is stored in, or a signed one that holds
    ``aligned``      it: ``[:, :seq_len]`` goes with ``input_ids``, ``[:, overlap:]`` with ``labels``. Without the
                     columns that ``labels`` or ``loss_mask`` name
    ================ ================================================================================================

    Boundaries come from the documents in the files and not from EOS ids; see `parquet_loader.documents`.

    One iteration gives the rest of the current epoch, the next iteration gives the next epoch; of a mixture, which has
    no epochs, an iteration does not end. Every iteration is an iterator of its own, but all move this one dataset.

    **DataLoader workers** each read their own lanes: a step of the run comes as n batches of ``rows / n`` rows, from
    worker 0 to worker n - 1. The position is theirs then, until their epoch has ended: iterate again and as many
    workers, the same ones or new ones, continue with the next. Ask for it before and an error is raised, since this
    process could only tell the old one: use ``with_state=True`` for checkpoints. The state of worker n - 1 is the one
    after the step, the others hold the one before it: whoever stops within a step repeats it up to there, and loses
    nothing.

    Their batches must come in turn: ``in_order=False`` is refused for several workers, since no batch's state would be
    that of all before it.

    Who breaks off an iteration must give the last batch's ``state`` to `load_state_dict`, here or of a new dataset,
    before iterating again: what workers have read ahead is dropped by PyTorch, and they cannot know how much of it that
    was. Otherwise an error is raised; except in one case that nobody can notice, a loop that is broken off in the last
    ``num_workers * prefetch_factor`` batches of an epoch, when all workers have come to its end.

    Args:
        source: as for `ParquetLoader`, a dict of sources too, and so is every argument that is not here. A relative
            path is one in the folder that is current now, also for workers and after a change of folders.
        seq_len, lanes, overlap: as for `ParquetLoader`.
        rank, world_size: both or neither. Where they are not given they are those of the default process group of
            torch.distributed, or 0 and 1 if there is none, when the first iteration begins or `checkpoint` is first
            called; make the process group before that. A pickled copy has those of the process that pickled it.
        labels: False leaves ``labels`` out. The name of a column makes them of it, and adds it to ``aligned``; what is
            -100 there stays so.
        loss_mask: the name of a column that says of which tokens a loss is taken: labels of the others are -100. Adds
            it to ``aligned``.
        tokens: True gives rows as they are, and neither ``input_ids`` nor ``labels``.
        dtype: of all tensors but ``cu_seqlens``: ``"int64"``, which losses want, or ``"int32"``, which is half as much
            to transfer.
        boundaries: any of ``"position_ids"``, ``"document_ids"`` and ``"cu_seqlens"``.
        mask_first_labels: True makes the label of each document's first token -100, so that no loss is taken of
            predicting it from the document before.
        with_state: put the ``state`` into every batch.
        with_sources: put the ``sources`` into every batch of a mixture.
        options: the other arguments of `ParquetLoader`, checked here. The loader is made when it is first needed.

    Raises:
        ConfigError: rank without world_size, or the other way round; a value that cannot work, whatever the dataset.
        TypeError: an argument that `ParquetLoader` does not have.
    """

    def __init__(
        self,
        source: Source | Mapping[str, Source | Component],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        labels: bool | str = True,
        loss_mask: str | None = None,
        tokens: bool = False,
        dtype: str | torch.dtype = "int64",
        boundaries: Collection[str] = (),
        mask_first_labels: bool = False,
        with_state: bool = False,
        with_sources: bool = False,
        **options: Any,
    ) -> None:
        if (rank is None) != (world_size is None):
            raise ConfigError(f"give both rank and world_size or neither, not rank={rank} and world_size={world_size}")
        self._place: tuple[int, int] | None = None
        if rank is not None and world_size is not None:
            options |= {"rank": rank, "world_size": world_size}
        self._source = _in_this_folder(source)
        self._labels, self._loss_mask, self._tokens = _label_columns(labels, loss_mask, tokens)
        own = {name: None for name in (self._labels, self._loss_mask) if isinstance(name, str)}
        if own:
            options["aligned"] = own | aligned_columns(options.get("aligned", ()))
        self._options = LoaderOptions(**options)
        if rank is not None:
            self._place = self._options.rank, self._options.world_size
        paths = {
            name: _in_this_folder(path) for name in ("index", "cache_dir") if (path := options.get(name)) is not None
        }
        self._options = replace(self._options, **paths)
        self._dtype = _tensor_dtype(dtype)
        self._boundaries = _checked_boundaries(boundaries)
        self._mask_first_labels = boolean("mask_first_labels", mask_first_labels)
        if mask_first_labels and (tokens or not labels):
            raise ConfigError("mask_first_labels=True needs labels, and labels=False or tokens=True leaves them out")
        self._with_state = boolean("with_state", with_state)
        self._with_sources = boolean("with_sources", with_sources)
        if with_sources and not self.sources:
            raise ConfigError("with_sources=True is for a mixture: give a dict of sources, {'name': path, ...}")
        self._check_names(own)
        self._state: dict[str, Any] | None = None  # where a loader that is yet to be made begins
        self._loader: ParquetLoader | None = None
        self._loader_place: tuple[int, int] | None = None
        self._closed = False
        self._lease = Lease()

    __signature__ = signature_with(inspect.signature(__init__))

    # ── iterating ────────────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> TokenIterator:
        """The batches from the current position to the end of its epoch."""
        return TokenIterator(self)

    def _begin(self) -> ParquetLoader:
        """The loader, at the position where an iteration of this process begins."""
        worker = get_worker_info()
        if worker is None:
            self._check_not_taken()
            self._place = self._place or _process_place()
            loader = self._open()
            self._put(loader)
            return loader
        _check_in_order()
        loader = self._open()
        position = self._lease.take(worker.id, worker.num_workers)
        if position is not None:
            loader.load_state_dict(loader.state_at(position, self._lease.kept()))
        return loader

    def _moved(self, position: int) -> None:
        if get_worker_info() is None:
            self._lease.moved(position)

    def _ended(self) -> None:
        worker = get_worker_info()
        if worker is not None:
            self._lease.give_back(worker.id, self._open().state_dict()["position"])

    def _check_names(self, own: Collection[str]) -> None:
        """Refuse aligned columns by whose names something else comes."""
        made = {"tokens"} if self._tokens else {"input_ids"}
        made |= {"labels"} if self._labels and not self._tokens else set()
        made |= self._boundaries | ({"max_seqlen"} if "cu_seqlens" in self._boundaries else set())
        made |= {"state"} if self._with_state else set()
        made |= {"sources"} if self._with_sources else set()
        made |= {"weight"} if self._options.uneven else set()
        names = set(self._options.aligned)
        if isinstance(self._source, Mapping):
            parts = [part for part in self._source.values() if isinstance(part, Component)]
            names |= {name for part in parts for name in (*(part.aligned or ()), *(part.fill or ()))}
        # Those that boundaries of packed rows come from give way to what is made of them.
        clash = sorted((names - set(own) - set(BOUNDARIES)) & made) + sorted(
            (names & set(BOUNDARIES) & made) if not self._packed() else ()
        )
        if clash == ["labels"]:
            raise ConfigError(
                "the aligned column 'labels' would come under the name of the labels that are made of the tokens: give "
                "labels='labels' to have it as labels, or labels=False to have it as it is"
            )
        if clash:
            raise ConfigError(
                f"the aligned column {clash[0]!r} would come under a name that something else has; leave it out, or "
                "write it by another name"
            )

    def _packed(self) -> bool:
        """Whether a source is packed by rows."""
        parts = self._source.values() if isinstance(self._source, Mapping) else ()
        ways = {part.packing for part in parts if isinstance(part, Component)}
        return self._options.packing == "rows" or "rows" in ways

    def _item(self, batch: Batch, state: dict[str, Any]) -> dict[str, Any]:
        rows, overlap, seq_len = batch.tokens, self._options.overlap, self._options.seq_len
        item = _Item()
        if self._tokens:
            item["tokens"] = self._tensor(rows)
        else:
            item["input_ids"] = self._tensor(rows[:, :seq_len])
        if self._labels and not self._tokens:
            # Never the inputs themselves: people write -100 into labels, and so do we.
            if isinstance(self._labels, str):
                labels = _labels_of(batch.aligned[self._labels][:, overlap:], self._dtype, self._labels)
            else:
                labels = np.array(rows[:, overlap:], self._dtype, order="C")
            if self._loss_mask is not None:
                np.putmask(labels, batch.aligned[self._loss_mask][:, overlap:] == 0, IGNORE_INDEX)
            if self._mask_first_labels:
                mask_first_labels(labels, *batch.document_starts(), shift=overlap)
            if batch.lengths is not None:
                mask_padding(labels, batch.lengths, shift=overlap)
            item["labels"] = torch.from_numpy(labels)
        if self._boundaries:
            documents = batch.documents(seq_len)
            if "position_ids" in self._boundaries:
                item["position_ids"] = torch.from_numpy(documents.position_ids(self._dtype))
            if "document_ids" in self._boundaries:
                item["document_ids"] = torch.from_numpy(documents.document_ids(self._dtype))
            if "cu_seqlens" in self._boundaries:
                item["cu_seqlens"] = torch.from_numpy(documents.cu_seqlens)
                item["max_seqlen"] = documents.max_seqlen
        for name, values in batch.aligned.items():
            if name not in (self._labels, self._loss_mask) and name not in item:
                item[name] = torch.from_numpy(_signed(values, name))
        if self._with_state:
            item["state"] = state
        if self._with_sources:
            assert batch.sources is not None
            item["sources"] = torch.from_numpy(batch.sources.astype(np.int64))
        if self._options.uneven:
            item["weight"] = batch.weight
        if get_worker_info() is not None:
            item.update({name: shared(value) for name, value in item.items() if torch.is_tensor(value)})
        return item

    def _tensor(self, rows: np.ndarray[Any, np.dtype[np.integer]]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows, self._dtype))  # a batch's rows are ours, and used once

    def __len__(self) -> int:
        """Batches of the current epoch on this rank; n workers bring n times as many, each with fewer rows.

        PyTorch warns of that where it was asked for the length of a DataLoader with several workers.

        Raises:
            TypeError: of a mixture, which has no epochs, or of a set that is still being written.
        """
        return len(self._open())

    def __bool__(self) -> bool:
        return True  # whatever its length, and where it has none

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0; see `ParquetLoader.epoch`."""
        self._check_not_taken()
        return self._open().epoch

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of a mixture's sources, sorted, which ``sources`` of a batch are places in; empty for one set."""
        return tuple(sorted(self._source)) if isinstance(self._source, Mapping) else ()

    @property
    def history(self) -> dict[str, list[dict[str, Any]]]:
        """What was done so far that states keep; see `ParquetLoader.history`."""
        self._check_not_taken()
        return self._open().history

    def stats(self) -> dict[str, Any]:
        """Counts of this process, see `ParquetLoader.stats`.

        Raises:
            CheckpointError: DataLoader workers have taken the position over, and count for themselves.
        """
        self._check_not_taken()
        return self._open().stats()

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: an iteration continues with the next epoch on its own.

        Trainers call it, some of them with 0 after a resume; it never moves the position.

        Raises:
            ConfigError: accelerate calls it for a DataLoader that it has wrapped on several processes, to send rank 0's
                batches to all of them or to share out this rank's again. Either loses data.
        """
        wrapper = type(_caller("set_epoch")).__name__
        if wrapper in _RESHARDING and _process_place()[1] > 1:
            raise ConfigError(
                f"accelerate's {wrapper} would lose most of the data: lanes are shared out over ranks already. Give "
                "parquet_loader.trainers.TokenBatches to prepare instead of a DataLoader, or prepare no loader at all"
            )

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

        DataLoader workers go there when the next iteration begins.

        Raises:
            CheckpointError: not a state, or one of another run.
        """
        loader = self._open()
        loader.load_state_dict(state)
        self._put(loader)

    def skip(self, batches: int) -> None:
        """Go on after some global batches that nobody gets; see `ParquetLoader.skip`.

        They are counted from where the dataset is. Where batches are read ahead, by workers or on their way to a
        device, first give the state of the last one that was trained on to `load_state_dict`, and then iterate again.

        Raises:
            CheckpointError: DataLoader workers have taken the position over; see the class.
            ConfigError: no count.
        """
        self._check_not_taken()
        loader = self._open()
        loader.skip(batches)
        self._put(loader)

    def reweight(self, weights: Mapping[str, float]) -> None:
        """Draw a mixture by other weights from the next block on; see `ParquetLoader.reweight`, and `skip`.

        Raises:
            CheckpointError: DataLoader workers have taken the position over; see the class.
            ConfigError: not a mixture, no weights, or a source that is not there.
        """
        self._check_not_taken()
        loader = self._open()
        loader.reweight(weights)
        self._keep_index(loader)
        self._put(loader)

    def checkpoint(self, state: Mapping[str, Any] | None = None) -> bytes:
        """This rank's part of a checkpoint; see `ParquetLoader.checkpoint`.

        Args:
            state: that of the last batch that was trained on, where batches come from workers or were read ahead. Or
                that of torchdata's ``StatefulDataLoader`` around this dataset, whatever its number of workers. None
                for the dataset's own position.

        Raises:
            CheckpointError: DataLoader workers have taken the position over; see the class. Or not a state of this run.
        """
        if state is None:
            self._check_not_taken()
        if get_worker_info() is None:
            self._place = self._place or _process_place()
        loader = self._open()
        if state is not None:
            state, position = run_state(state, self._options.seq_len)
            if position is not None:
                state = loader.state_at(position, state)
        return loader.checkpoint(state)

    def resume(self, checkpoint: bytes) -> None:
        """Go to the position of a checkpoint that `merge_checkpoints` made; see `ParquetLoader.resume`.

        Raises:
            CheckpointError: as for `load_state_dict`.
        """
        loader = self._open()
        loader.resume(checkpoint)
        self._put(loader)

    def _put(self, loader: ParquetLoader) -> None:
        """Take the position back from workers, if they have it, since it was set here."""
        if get_worker_info() is None:
            self._lease.keep(loader.state_dict())
        else:
            self._lease.place()

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
        _check_in_order()
        state = self.__dict__ | {"_loader": None, "_loader_place": None}
        if self._loader is not None:
            state["_state"] = self._loader.state_dict()
        if state["_place"] is None and _in_process_group():
            state["_place"] = _process_place()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        place = "of the process group" if self._place is None else f"{self._place[0]} of {self._place[1]}"
        run = f"seq_len={self._options.seq_len}, lanes={self._options.lanes}"
        return f"TokenDataset({_shown(self._source)!r}, {run}, rank {place})"

    def _open(self) -> ParquetLoader:
        """The loader for this process's place; made where there is none, or, as in a fork, one for another place."""
        place = self._place or _process_place()
        worker = get_worker_info()
        if worker is not None:
            place = _worker_place(place, worker.id, worker.num_workers, self._options)
        if self._loader is None or self._loader_place != place:
            if self._closed:
                raise LoaderClosedError("this dataset is closed; make a new one and give it the state of the old")
            former = self._loader
            if former is not None:
                self._state = former.state_dict()
            loader = ParquetLoader(self._source, **self._options.keywords(rank=place[0], world_size=place[1]))
            if self._state is not None:
                loader.load_state_dict(self._state)
            self._loader, self._loader_place = loader, place
            self._keep_index(loader)
        return self._loader

    def _keep_index(self, loader: ParquetLoader) -> None:
        """For loaders of other processes: an index is read once, except of a set that is followed."""
        follow = self._options.follow
        if not isinstance(self._source, Mapping):
            if not follow:
                self._options = replace(self._options, index=loader.index)
            return
        sources = dict(self._source)
        for name, index in loader.indexes.items():
            given = sources[name]
            part = given if isinstance(given, Component) else Component(given)
            if not (follow if part.follow is None else part.follow):
                sources[name] = replace(part, index=index)
        self._source = sources

    def _check_not_taken(self) -> None:
        """Go to where workers have ended, if they have taken the position over."""
        if get_worker_info() is not None or not self._lease.taken:
            return
        position = self._lease.common_end()
        if position is None:
            raise taken_error("DataLoader workers have taken over the position of this dataset")
        loader = self._open()
        if loader.state_dict()["position"] != position:
            loader.load_state_dict(loader.state_at(position))


class TokenIterator(Iterator[dict[str, Any]]):
    """One iteration of a `TokenDataset`: the rest of an epoch, or a mixture without end.

    Its state is the epoch; the position is the dataset's. Who saves both, as torchdata's ``StatefulDataLoader`` does,
    resumes into what was left of the epoch, which after its last batch is nothing; and then into the next one, whole.
    """

    def __init__(self, dataset: TokenDataset) -> None:
        self._dataset = dataset
        self._batches: Iterator[Batch] | None = None
        self._before: dict[str, Any] = {}
        self._last = True
        self._epoch: int | None = None  # once it has begun
        self._ended = False

    def __next__(self) -> dict[str, Any]:
        """The next batch."""
        if self._ended:
            raise StopIteration
        if self._batches is None:
            self._ended = True  # if this fails: workers ask again after an error
            self._start()
            self._ended = False
        assert self._batches is not None
        batch = next(self._batches, None)
        if batch is None:
            self._end()
            raise StopIteration
        before, self._before = self._before, batch.state
        self._dataset._moved(batch.state["position"])
        return self._dataset._item(batch, dict(batch.state) if self._last else before)

    def state_dict(self) -> dict[str, Any]:
        """The epoch it gives the rest of, or None before its first batch."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give the rest of the epoch of such a state; to be called after the dataset was given its own."""
        epoch = plain(state["epoch"])
        if self._dataset.sources:
            return  # without epochs there is none that could have ended
        if epoch is not None and epoch != self._dataset.epoch:
            self._start()
            self._epoch = epoch
            self._end()

    def _start(self) -> None:
        worker = get_worker_info()
        self._last = worker is None or worker.id == worker.num_workers - 1
        loader = self._dataset._begin()
        self._epoch = loader.epoch
        self._before = loader.state_dict()
        self._batches = iter(loader)

    def _end(self) -> None:
        self._ended = True
        self._dataset._ended()


class _Item(dict[str, Any]):
    """A batch on its way to `default_collate`, which would stack it with others, and is refused by this type.

    Every copy is a plain dict: so is what comes from a worker, and from a ``DataLoader`` with ``batch_size=None``.
    """

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def _refuse_collation(items: list[_Item], *, collate_fn_map: object = None) -> Any:
    raise ConfigError(
        "a TokenDataset gives whole batches, and this DataLoader would stack them into batches of batches; write "
        "DataLoader(dataset, batch_size=None) and set the rows of a batch by lanes"
    )


default_collate_fn_map[_Item] = _refuse_collation


def _caller(method: str) -> object:
    """The object whose method of this name is the innermost of those that are running, or None.

    For what PyTorch and accelerate tell a dataset in no other way. No other frame is looked at.
    """
    frame = inspect.currentframe()
    frame = frame and frame.f_back and frame.f_back.f_back  # not this one, nor the one that asks
    while frame is not None and frame.f_code.co_name != method:
        frame = frame.f_back
    return frame and frame.f_locals.get("self")


def _check_in_order() -> None:
    """Refuse to be read by workers whose batches come as they are ready: no position is known then.

    PyTorch tells workers nothing of it. A forked one still has the DataLoader that forks it among its callers, and for
    any other one the dataset is pickled under it.
    """
    loader = _caller("_get_iterator")
    if isinstance(loader, DataLoader) and not getattr(loader, "in_order", True) and loader.num_workers > 1:
        raise ConfigError(
            f"in_order=False with {loader.num_workers} DataLoader workers: their batches would not come in turn, and a "
            "run that resumes from a batch's state would lose rows; leave in_order=False out"
        )


def _label_columns(labels: bool | str, loss_mask: str | None, tokens: bool) -> tuple[bool | str, str | None, bool]:
    """What labels are made of, checked: the column of labels, or whether there are any; the mask's; and ``tokens``."""
    check_type("loss_mask", loss_mask, str, type(None))
    checked = labels if isinstance(labels, str) else boolean("labels", labels)
    tokens = boolean("tokens", tokens)
    for name, column in (("labels", labels), ("loss_mask", loss_mask)):
        if isinstance(column, str) and tokens:
            raise ConfigError(
                f"{name}={column!r} makes labels, which tokens=True leaves out: give aligned={[column]!r}"
            )
    if loss_mask is not None and not labels:
        raise ConfigError(f"loss_mask={loss_mask!r} needs labels, which labels=False leaves out")
    return checked, loss_mask, tokens


def _labels_of(values: AnyArray, dtype: np.dtype[np.integer], column: str) -> AnyArray:
    """Labels from a column, which are ours."""
    if values.dtype.kind not in "iu":
        raise ConfigError(f"labels={column!r} is a column of {values.dtype}; labels are integers")
    if not np.can_cast(values.dtype, dtype) and values.size:
        low, high = int(values.min()), int(values.max())
        bounds = np.iinfo(dtype)
        if low < bounds.min or high > bounds.max:
            raise ConfigError(f"labels={column!r} holds {high if high > bounds.max else low}, which {dtype} does not")
    return np.array(values, dtype, order="C")


def _signed(values: AnyArray, column: str) -> AnyArray:
    """The values in a type that PyTorch computes with."""
    if values.dtype.kind != "u" or values.dtype.itemsize == 1:
        return values
    if values.dtype.itemsize < 8:
        return values.astype(f"int{16 * values.dtype.itemsize}")
    if values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise ConfigError(f"the aligned column {column!r} holds {int(values.max())}, which no tensor of integers does")
    return values.view(np.int64)


def _tensor_dtype(dtype: str | torch.dtype) -> np.dtype[np.integer]:
    name = str(dtype).removeprefix("torch.")
    if name not in ("int32", "int64"):
        raise ConfigError(f"dtype must be 'int32' or 'int64', not {dtype!r}")
    return np.dtype(name)


def _checked_boundaries(boundaries: Collection[str]) -> frozenset[str]:
    known = not isinstance(boundaries, str) and isinstance(boundaries, Collection)
    if not known or not all(each in _BOUNDARIES for each in boundaries):
        raise ConfigError(f"boundaries must be a list of some of {', '.join(_BOUNDARIES)}, not {boundaries!r}")
    return frozenset(boundaries)


def _shown(source: Any) -> Any:
    """The source without secrets."""
    if isinstance(source, Mapping):
        return {name: _shown(source[name]) for name in sorted(source)}
    if isinstance(source, Component):
        return _shown(source.source)
    return [redact(str(each)) for each in source] if isinstance(source, list) else redact(str(source))


def _in_this_folder(source: Any) -> Any:
    """The source with absolute paths for relative ones; URLs, and what is no path, as they are."""
    if isinstance(source, Mapping):
        return {name: _in_this_folder(each) for name, each in source.items()}
    if isinstance(source, Component):
        return replace(source, source=_in_this_folder(source.source), index=_in_this_folder(source.index))
    if isinstance(source, (str, os.PathLike)):
        path = os.fsdecode(source)
        scheme = next((each for each in ("file://", "local://") if path.startswith(each)), "")
        if "://" in path and not scheme:
            return source
        return scheme + os.path.join(os.getcwd(), os.path.expanduser(path.removeprefix(scheme)))
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        return [_in_this_folder(each) if isinstance(each, (str, os.PathLike)) else each for each in source]
    return source


def _in_process_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _process_place() -> tuple[int, int]:
    """(rank, world size) of the process group, if there is one."""
    if not _in_process_group():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _worker_place(place: tuple[int, int], worker: int, workers: int, options: LoaderOptions) -> tuple[int, int]:
    """(rank, world size) of a DataLoader worker among all workers of all ranks."""
    rank, world_size = place
    lanes = options.lanes
    if lanes % (world_size * workers) and not options.uneven:
        raise ConfigError(
            f"{workers} DataLoader workers on each of {world_size} ranks cannot share {lanes} lanes evenly; "
            f"use a num_workers that divides {lanes // world_size}, or 0: the loader has threads of its own"
        )
    return rank * workers + worker, world_size * workers
