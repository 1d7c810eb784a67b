"""`ParquetLoader`: wires the stages together, and turns rank and world size into a range of lanes.

storage ──► index ──► order ──► engine [prefetch ──► decode ──► slices ──► pack] ──► Batch
                                   ▲ position                                          │ state
checkpoint ◄───────────────────────┴───────────────────────────────────────────────────┘
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .batch import Batch
from .checkpoint import RunIdentity, open_checkpoint, position_of, seal_checkpoint
from .engine.config import Counters, EngineConfig
from .engine.cost import required_bytes
from .engine.engine import Engine
from .errors import CheckpointMismatchError, ConfigError, DataError, LoaderClosedError
from .formats.parquet import PARQUET
from .index.build import index_storage
from .index.index import DatasetIndex
from .index.pinned import PinnedStorage
from .interrupts import Turn
from .options import LoaderKeywords, LoaderOptions, signature_with
from .order.ending import Finish, finish_of
from .order.order import Order, lane_range
from .remarks import remarks
from .storage.opening import Source, open_storage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ParquetLoader"]

_REMOTE_REQUESTS = 16  # a request takes tens of milliseconds, whatever the network could carry meanwhile


class ParquetLoader:
    """Packed, shuffled sequences from tokenized Parquet, the same for any number of ranks, resumable exactly.

    ``for batch in loader`` gives the rest of the current epoch and then ends; the next ``for`` continues. Lanes are
    endless streams cut to rows: every row is full, and an epoch's last row may end with the next epoch's first tokens.

    Args:
        source: a folder, a file, a glob, a list of them; local or any fsspec URL. See `parquet_loader.storage`.
        seq_len: tokens of a row.
        lanes: rows of a global batch, over all ranks. Part of the order: it may not change within a run.
        window: row groups that are shuffled together. More mixes better and reads less twice, and takes memory: about
            ``window * tokens of a row group * 2 bytes / world_size`` (4 where ids go beyond 65,535), and as much again
            to load ahead.
        seed: of the shuffle, in [0, 2^64).
        shuffle: False reads row groups and documents in storage order.
        column: the token column; None where only one column is a list of integers. A struct's field: "parent.child".
        eos_id: appended to every document, empty ones too, where given.
        vocab_size: refuses token ids of this size and above, from the footers' statistics and again when decoding.
        rank, world_size: this process's place among the data-parallel ones.
        uneven: allow a world size that does not divide ``lanes``; see `Batch.weight`.
        overlap: 1 makes rows of ``seq_len + 1`` tokens that still advance by ``seq_len``, so that inputs ``row[:-1]``
            and shifted labels ``row[1:]`` cost no token.
        epochs: the run ends after this many, and further loops give nothing; None for no end. 1 is for evaluation.
        tail: how it ends then, after equally many batches on all ranks. ``"pad"`` delivers every token, and fills the
            last batch up with zeros; see `Batch.lengths`. ``"drop"`` leaves out the last tokens that fill no batch.
        skip_batches: begin after this many batches, for a run that stored only a count, not a state; divide a count of
            samples by ``lanes``. A loaded state brings its own count.
        budget_bytes: the most that this loader holds at any time: chunks in flight, decoded row groups, slices.
        threads: that decode; None for as many as leave a core to the consumer, from 1 to 4.
        requests: column chunks read concurrently; None for as many as `threads` where the files are local, and for 16
            over a network.
        retry_seconds: how long a request over a network is tried again once it has failed, before the error is raised.
        dtype: of the tokens that come out, any NumPy integer type; an id that does not fit is an error.
        storage_options: for the fsspec filesystem of a URL.
        cache_dir: where footers are cached; None for the user's cache folder.
        index: a `DatasetIndex`, or the path of a saved one: then nothing is listed and no footer is read. It serves
            copies of its files too, whose footers are compared with it when they are first read.
        strict: refuse to run where there are `remarks`.

    Raises:
        ConfigError: an argument that cannot work; says the value, the bound and what would work.
        StorageError: a path that is not there or cannot be read.
        DataError: a file that is no readable Parquet, or holds token ids that are out of range by its statistics.

    Not safe to use from several threads at the same time. After a fork the child continues on its own from the same
    position.
    """

    def __init__(self, source: Source, **options: Unpack[LoaderKeywords]) -> None:
        given = LoaderOptions(**options)
        self._closed = False
        self._engine: Engine | None = None
        self._pid = os.getpid()
        self._turn = Turn()
        self._seq_len, self._overlap = given.seq_len, given.overlap
        self._rank, self._world_size = given.rank, given.world_size
        lanes, threads, column, eos_id = given.lanes, given.threads, given.column, given.eos_id
        token_dtype = np.dtype(given.dtype)
        assert threads is not None

        storage = open_storage(source, given.storage_options, retry_seconds=given.retry_seconds)
        requests = given.requests or (_REMOTE_REQUESTS if storage.is_remote else threads)
        index = given.index
        if index is None:
            index = index_storage(storage, column=column, cache_dir=given.cache_dir, budget_bytes=given.budget_bytes)
        else:
            saved = None
            if not isinstance(index, DatasetIndex):
                saved = os.fspath(index)
                index = DatasetIndex.load(index)
            storage = PinnedStorage(storage, index, PARQUET, saved)
        if column is not None and index.column != column:
            raise ConfigError(f"the index is of column {index.column!r} and not {column!r}; build it for that column")
        _check_ids(index, given.bound)
        held_dtype = _held_dtype(index, token_dtype, given.bound, eos_id)

        group_tokens = index.tokens + index.rows if eos_id is not None else index.tokens
        if not group_tokens.sum():
            shown = storage.identity.replace("\n", ", ")
            raise ConfigError(f"{shown} holds no token: all of its {int(index.rows.sum()):,} documents are empty")
        order = Order(
            group_tokens=group_tokens, lanes=lanes, window=given.window, seed=given.seed, shuffle=given.shuffle
        )
        first, last = lane_range(given.rank, given.world_size, lanes)
        self._order = order
        self._run = RunIdentity(
            fingerprint=index.fingerprint,
            files=len(index.files),
            row_groups=len(index),
            tokens=order.total,
            column=index.column,
            seed=given.seed,
            lanes=lanes,
            window=given.window,
            eos_id=eos_id,
            shuffle=given.shuffle,
        )
        self._config = EngineConfig(
            index=index,
            format=PARQUET,
            storage=storage,
            order=order,
            first=first,
            last=last,
            dtype=token_dtype,
            held_dtype=held_dtype,
            bound=min(given.bound, int(np.iinfo(held_dtype).max) + 1),
            eos_id=eos_id,
            threads=threads,
            requests=requests,
            budget_bytes=given.budget_bytes,
            epochs=given.epochs,
        )
        self._tail = given.tail
        self._finish: Finish | None = None
        if given.epochs is not None:
            self._finish = finish_of(
                order, first, last, epochs=given.epochs, tail=given.tail, seq_len=given.seq_len, overlap=given.overlap
            )
        _check_budget(self._config)
        self._weight = (last - first) * given.world_size / lanes
        self._position = given.skip_batches * given.seq_len
        self._restored = 0  # how often a position was put in from outside: a running loop notices
        self._counters = Counters()
        self._batches = 0
        self._padding = 0  # columns of rows that were no tokens
        self._peak_bytes = 0
        if given.strict and (found := self.remarks()):
            raise ConfigError(f"{'; '.join(found)} (strict=True: without it this run works)")

    __signature__ = signature_with(inspect.signature(__init__))

    # ── iterating ────────────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position to the end of its epoch; none are skipped or repeated by breaking off.

        Restoring a state while the loop runs moves the loop along with the loader.
        """
        self._check_open()
        epoch, restored = self.epoch, self._restored
        while True:
            if restored != self._restored:
                epoch, restored = self.epoch, self._restored
            if self.epoch != epoch or self._finished:
                return
            yield self._next()

    def _next(self) -> Batch:
        self._check_open()
        if self._pid != os.getpid():  # another thread of the parent may have been in there when this process was forked
            self._pid, self._turn = os.getpid(), Turn()
        return self._turn.run(self._take)

    def _take(self) -> Batch:
        engine = self._engine
        if engine is not None and (engine.halted or engine.pid != os.getpid()):
            self._stop()  # after an error; or the parent's, whose threads are not in this process
            engine = None
        if engine is None:
            self._engine = engine = Engine(self._config, self._position, self._counters)
        positions = np.full(self._config.last - self._config.first, self._position, np.int64)
        columns = self._seq_len + self._overlap
        finish = self._finish
        lengths = finish.lengths(self._position, columns) if finish is not None else None
        ends = finish.ends if finish is not None and lengths is not None else None
        try:
            tokens, taken = engine.rows(positions, self._seq_len, self._overlap, ends)
            batch = Batch(
                tokens=tokens,
                state=self._run.state(self._position + self._seq_len),
                epoch=self.epoch,
                weight=self._weight,
                lengths=lengths,
                taken=taken,
            )
            self._position += self._seq_len
        except BaseException:
            # Also on KeyboardInterrupt: the engine may be half-way through a row, or ahead of the position. The next
            # call begins at the position, on a new engine, and waits for this one's threads: the error does not.
            engine.halt()
            raise
        self._batches += 1
        if lengths is not None:
            self._padding += int(np.maximum(self._seq_len - lengths, 0).sum())
        return batch

    def __len__(self) -> int:
        """Batches of the current epoch, from its start to its end, wherever the loader is in it."""
        if self._finish is not None:
            return self._finish.batches_of(self._order, self.epoch, self._seq_len, self._position)
        return self._order.batches_of(self.epoch, self._seq_len, self._position)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0; `epochs` where there is none."""
        epoch = self._order.epoch_of(self._position)
        if self._finish is None:
            return epoch
        # A lane may have one token more than lane 0 has, of whose epoch batches are.
        return self._finish.epochs if self._finished else min(epoch, self._finish.epochs - 1)

    @property
    def _finished(self) -> bool:
        return self._finish is not None and self._position >= self._finish.stop

    # ── position ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """The whole run's position, as fresh plain values; the same on every rank that has taken as many batches."""
        return self._run.state(self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, `Batch.state` or `state_dict` of any rank.

        The number of ranks, seq_len, overlap, threads, budget and the place of the files may be others than they were.

        Raises:
            CheckpointDamagedError: not a state.
            CheckpointMismatchError: the state of another run: names each difference with both values.
        """
        self._check_open()
        position = position_of(state, self._run)
        self._stop()
        self._position = position
        self._restored += 1

    def checkpoint(self, state: Mapping[str, Any] | None = None) -> bytes:
        """This rank's part of a checkpoint: msgpack with a checksum.

        Args:
            state: where batches are read ahead, the `Batch.state` of the one that was trained on last. None for after
                the last batch that was taken.

        Raises:
            CheckpointError: not a state, or the state of another run.
        """
        position = self._position if state is None else position_of(state, self._run)
        return seal_checkpoint(self._run.state(position), self._rank, self._world_size)

    def resume(self, checkpoint: bytes) -> None:
        """Go to the position of a checkpoint that `merge_checkpoints` made, on any number of ranks.

        One rank's part that was not merged is taken on the same rank of as many ranks only.

        Raises:
            CheckpointDamagedError: not the bytes of a complete checkpoint.
            CheckpointMismatchError: of another run, rank or version.
        """
        state, rank, world_size = open_checkpoint(checkpoint)
        if rank is not None and (rank, world_size) != (self._rank, self._world_size):
            raise CheckpointMismatchError(
                f"this is the part of rank {rank} of {world_size}, and this loader is rank {self._rank} of "
                f"{self._world_size}; merge the parts of all ranks with merge_checkpoints, then any number can resume"
            )
        self.load_state_dict(state)

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def index(self) -> DatasetIndex:
        """The index of the dataset: `save` it, and give it to other ranks."""
        return self._config.index

    def remarks(self) -> tuple[str, ...]:
        """What costs this run time, memory or randomness although it works, and what would be better, a sentence each.

        Those of `DatasetIndex.remarks`, and: a window that mixes little, ranks that read much of the set several times,
        a set that is smaller than a global batch. Empty where all is well; ``strict=True`` makes each an error.
        """
        return remarks(
            self._config,
            seq_len=self._seq_len,
            overlap=self._overlap,
            world_size=self._world_size,
            tail=self._tail,
        )

    def stats(self) -> dict[str, int]:
        """Counts since this loader was made.

        ``batches`` and ``tokens`` delivered; ``position`` and ``epoch``; ``bytes_read`` in ``reads`` of storage, and
        ``retries`` of requests that had failed;
        ``row_groups`` and ``tokens_decoded``, ``fallbacks`` of them row groups that only pyarrow's slower reader
        takes; ``held_bytes`` now and ``peak_bytes`` at most, of ``budget_bytes``.
        """
        held = 0
        if self._engine is not None:
            held = self._engine.budget.held_bytes
            self._peak_bytes = max(self._peak_bytes, self._engine.budget.peak_bytes)
        rows = self._config.last - self._config.first
        return {
            "batches": self._batches,
            "tokens": self._batches * rows * self._seq_len - self._padding,
            "position": self._position,
            "epoch": self.epoch,
            "bytes_read": self._counters.bytes_read,
            "reads": self._counters.reads,
            "retries": self._config.storage.retries,
            "row_groups": self._counters.row_groups,
            "tokens_decoded": self._counters.tokens_decoded,
            "fallbacks": self._counters.fallbacks,
            "held_bytes": held,
            "peak_bytes": self._peak_bytes,
            "budget_bytes": self._config.budget_bytes,
        }

    def close(self) -> None:
        """End every thread and let go of all memory. Closing twice is fine; the position can still be asked for."""
        self._closed = True
        self._stop()

    def __enter__(self) -> ParquetLoader:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """All except the threads: a copy continues on its own from the same position."""
        return self.__dict__ | {"_engine": None, "_counters": Counters()}

    def __repr__(self) -> str:
        return (
            f"ParquetLoader({self._config.storage.root!r}, seq_len={self._seq_len}, lanes={self._run.lanes}, "
            f"rank {self._rank} of {self._world_size}, {self._run.tokens:,} tokens in {self._run.column!r}, "
            f"epoch {self.epoch}, position {self._position:,})"
        )

    def _stop(self) -> None:
        engine = self._engine
        if engine is not None:
            self._peak_bytes = max(self._peak_bytes, engine.budget.peak_bytes)
            engine.close()
            self._engine = None  # not before: an interrupt may have broken off the wait for its threads

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosedError("this loader is closed; make a new one and give it the state of the old")


# ── what the dataset must be ──────────────────────────────────────────────────────────────────────────────────────


def _held_dtype(
    index: DatasetIndex, dtype: np.dtype[np.integer], bound: int, eos_id: int | None
) -> np.dtype[np.integer]:
    """Two bytes a token where vocab_size or the footers' statistics promise that they do; decoding checks it."""
    narrow = np.dtype(np.uint16)
    room = np.iinfo(narrow).max + 1
    known = (index.max_id >= 0) | (index.tokens == 0)
    fits = bound <= room or bool((known & (index.max_id < room)).all())
    return narrow if fits and dtype.itemsize > narrow.itemsize and (eos_id or 0) < room else dtype


def _check_ids(index: DatasetIndex, bound: int) -> None:
    """Refuse ids that the footers' statistics show to be out of range, before a byte of data is read."""
    wrong = np.flatnonzero((index.max_id >= bound) | (index.min_id < 0))
    if not len(wrong):
        return
    group = int(wrong[0])
    chunk = index.chunk(group)
    number = int(index.min_id[group]) if index.min_id[group] < 0 else int(index.max_id[group])
    others = f", and {len(wrong) - 1:,} more row groups have such" if len(wrong) > 1 else ""
    raise DataError(
        f"has token id {number} by its statistics, outside [0, {bound}){others}; check vocab_size, dtype and the "
        "tokenizer that wrote the files",
        path=chunk.path,
        row_group=chunk.row_group,
        column=index.column,
    )


def _check_budget(config: EngineConfig) -> None:
    window = config.order.window
    needed = required_bytes(config, window)
    if needed <= config.budget_bytes:
        return
    low, high = 0, min(window, len(config.index))  # the largest window that fits is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if required_bytes(config, middle) <= config.budget_bytes:
            low = middle
        else:
            high = middle
    fits = (
        f"or, in a new run, window={low}, which fits"
        if low
        else "not even window=1 fits: use fewer threads or lanes, or write the files with smaller row groups "
        f"(the largest holds {int(config.index.tokens.max()):,} tokens)"
    )
    raise ConfigError(
        f"budget_bytes {config.budget_bytes:,} is too small for a window of {window} row groups on this rank; "
        f"give at least {needed:,}, {fits}"
    )
