"""`ParquetLoader`: wires the stages together, and turns rank and world size into a range of lanes.

storage ──► index ──► order ──► engine [prefetch ──► decode ──► slices ──► pack] ──► Batch
                                   ▲ position                                          │ state
checkpoint ◄───────────────────────┴───────────────────────────────────────────────────┘
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .batch import Batch, Piece
from .checkpoint import check_part, open_checkpoint, read_state, seal_checkpoint
from .engine.config import CAUSES, Counters, EngineConfig
from .engine.engine import Engine
from .errors import ConfigError, LoaderClosedError
from .index.index import DatasetIndex
from .interrupts import Turn
from .notebooks import html_table
from .options import LoaderKeywords, LoaderOptions, integer, options_of, signature_with
from .order.order import Order, lane_range
from .remarks import in_words, remarks
from .runfile import of_file, read_run
from .runs import MixtureRun, Step, run_of
from .sets import Component
from .storage.opening import Source

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ParquetLoader"]


class ParquetLoader:
    """Packed, shuffled sequences from tokenized Parquet, the same for any number of ranks, resumable exactly.

    ``for batch in loader`` gives the rest of the current epoch and then ends; the next ``for`` continues. Lanes are
    endless streams cut to rows: every row is full, and an epoch's last row may end with the next epoch's first tokens.

    Of a dict of sources it makes a mixture, whose rows are each of one source, in shares that hold exactly. A mixture
    has no epochs: ``for`` does not end, and `len` is an error.

    Args:
        source: a folder, a file, a glob, a list of them; local or any fsspec URL. See `parquet_loader.storage`. Or a
            dict of several by name, each of them such a source, or a `Component` where there is more to say.
        seq_len: tokens of a row.
        lanes: rows of a global batch, over all ranks. Part of the order: it may not change within a run.
        weights: of a mixture: shares of the tokens by source, such as ``{"web": 0.7, "code": 0.3}``; a schedule
            ``[(0, {...}), (token, {...})]`` of shares from a token of the run on, whose past must be what was run; or
            ``"tokens"``, in proportion to what each source holds.
        exhausted: what happens when a source has given its ``max_epochs``: ``"raise"`` an error before the block that
            would need more, or ``"redistribute"`` its rows to the others, by their weights, from that block on.
        window: row groups that are shuffled together; None for as many as hold about 64 million tokens, 16 million of
            each source of a mixture, or for those of the state that is loaded. More mixes better and reads less twice,
            and takes memory: about ``window * tokens of a row group * 2 bytes / world_size`` (4 where ids go beyond
            65,535), and as much again to load ahead.
        seed: of the shuffle, in [0, 2^64).
        shuffle: False reads row groups and documents in storage order.
        column: the token column; None where only one column is a list of integers, or one is named as tokens are
            (``input_ids``, ``tokens``) and the others as what lies beside them (``labels``, ``attention_mask``). A
            struct's field: "parent.child".
        eos_id: appended to every document, empty ones too, where given: leave it out where files hold it already. In
            raw files, but for Megatron's, it is the id among theirs that ends documents, and none is appended.
        packing: ``"rows"`` where each document of the set is a training row, packed or padded before: it comes whole,
            ``seq_len + overlap`` ids of it, and once an epoch, in a row of its own. ``"tokens"`` packs documents one
            after another, and cuts them at the rows' ends. Part of the order; with it, so is ``seq_len``.
        pad_id: fills up shorter rows of ``packing="rows"``, see `Batch.lengths`; None where there are none: then a
            shorter one is an error.
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
        budget_bytes: the most that this loader holds at any time: chunks in flight, decoded row groups, slices. A
            mixture's sources share it.
        threads: that decode; None for 1, and for as many as leave a core to the consumer, up to 4, where files are
            compressed by zstd, gzip or brotli: other files are decoded too fast for several to help.
        processes: that decode in place of threads, the same batches: worth it where the main thread is busy in Python,
            which threads hold up, or where more than one core is needed to decode. Each is a Python interpreter, some
            40 MB beside the budget, and starts with the first batch in about half a second. 0 for threads.
        requests: column chunks read concurrently; None for as many as decode where the files are local, and for 16
            over a network.
        retry_seconds: how long a request over a network is tried again once it has failed, before the error is raised.
        dtype: of the tokens that come out, any NumPy integer type; an id that does not fit is an error.
        storage_options: for the fsspec filesystem of a URL.
        cache_dir: where footers are cached; None for the user's cache folder.
        index: a `DatasetIndex`, or the path of a saved one: then nothing is listed and no footer is read. It serves
            copies of its files too, whose footers are compared with it when they are first read.
        format: of the files: ``"parquet"``, ``"arrow"`` (IPC files and streams, as Hugging Face's `datasets` and others
            write) or ``"raw"`` (``.bin`` and ``.npy`` of ids, Megatron's ``.bin`` with ``.idx``); None for what their
            names tell. See docs/formats.md.
        raw_dtype: the type of ids in raw files that do not tell it themselves, such as ``"uint16"``.
        aligned: names of other list columns that have as many values as tokens in every row, such as ``["labels"]`` or
            ``["loss_mask"]``: they go wherever the tokens go, see `Batch.aligned`. Integers, booleans and floats.
            With ``eos_id`` a mapping of each name to its value at EOS: ``{"labels": -100}``. No part of what
            makes a run the same: a state may be loaded with others, or without.
        follow: read a set while it is still being written, by `pretokenize` with ``publish="as-finished"`` or by
            whoever only ever adds whole files in the order of their paths: batches wait until what they need is there,
            and the loader for the first file. The source is one folder or glob.
            Epoch 0 then takes row groups as they are stored, and ``window=None`` is about 4 million tokens. A state of
            such a run may be loaded without it once the set is complete. See docs/growing.md.
        wait_seconds: how long a set that is followed is waited for without its growing, or its first file, before that
            is an error: a number of seconds, or ``"10m"``; with ``complete_after``, of files that are there, at least
            until that.
        complete_after: with ``follow``, after how long without growth a set of another writer counts as complete, as
            ``wait_seconds`` is given. None for never: then a manifest or a file ``_COMPLETE`` says so.
        strict: refuse to run where there are `remarks`.

    Raises:
        ConfigError: an argument that cannot work; says the value, the bound and what would work.
        StorageError: a path that is not there or cannot be read.
        DataError: a file that is not what its name says, or holds token ids that are out of range by its statistics.
        WriterFailedError: of a set that is followed the writer has failed, and more is needed than is there.
        GrowthTimeoutError: it has not grown for ``wait_seconds``.

    Not safe to use from several threads at the same time. After a fork the child continues on its own from the same
    position.
    """

    def __init__(self, source: Source | Mapping[str, Source | Component], **options: Unpack[LoaderKeywords]) -> None:
        self._options = given = options_of(options)
        self._closed = False
        self._pid = os.getpid()
        self._turn = Turn()
        self._counters = Counters()
        self._run = run_of(source, given, self._counters)
        self._run.check_budget(given=given.window is not None)
        self._restored = 0  # how often a position was put in from outside: a running loop notices
        self._batches = 0
        self._padding = 0  # columns of rows that were no tokens
        if given.strict and (found := self.remarks()):
            raise ConfigError(f"{'; '.join(found)} (strict=True: without it this run works)")

    __signature__ = signature_with(inspect.signature(__init__))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], **changes: Any) -> ParquetLoader:
        """The loader of a run that is written down in a TOML file, whose keys are the names of these arguments.

        Paths of local files are relative to the folder of the TOML file.

        Args:
            path: of the file; ``source = "tokens"``, or a table ``[source]`` of names for a mixture.
            changes: arguments that are not in the file, such as rank and world_size, or that count more than those.

        Raises:
            ConfigError: as the loader itself; or no TOML, or a name that is no argument.
            StorageError: the file cannot be read.
        """
        source, options = read_run(path)
        try:
            return cls(changes.pop("source", source), **{**options, **changes})
        except ConfigError as error:
            raise of_file(error, path, changes) from error

    # ── iterating ────────────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position to the end of its epoch, of a mixture without end; none are skipped or
        repeated by breaking off.

        Restoring a state while the loop runs moves the loop along with the loader.
        """
        self._check_open()
        epoch, restored = self.epoch, self._restored
        while True:
            if restored != self._restored:
                epoch, restored = self.epoch, self._restored
            if not self._run.is_settled:
                self._turn.run(self._run.settle)
            if self._run.over or (self.epoch != epoch and not self.sources):
                return
            yield self._next()

    def _next(self) -> Batch:
        self._check_open()
        if self._pid != os.getpid():  # another thread of the parent may have been in there when this process was forked
            self._pid, self._turn = os.getpid(), Turn()
        return self._turn.run(self._take)

    def _take(self) -> Batch:
        epoch = self.epoch
        rows = self._run.take()
        self._batches += 1
        if rows.lengths is not None:
            self._padding += int(np.maximum(self._options.seq_len - rows.lengths, 0).sum())
        return Batch(
            tokens=rows.tokens,
            state=self._run.state(),
            epoch=epoch,
            weight=len(rows.tokens) * self._options.world_size / self._options.lanes,
            lengths=rows.lengths,
            sources=rows.sources,
            aligned=rows.aligned,
            _starts=rows.origins,
            _origins=_Origins(_origins_of, rows.step, self._options),
        )

    def __len__(self) -> int:
        """Batches of the current epoch, from its start to its end, wherever the loader is in it.

        Raises:
            TypeError: of a mixture, which has no epochs, or of a set that is still being written.
        """
        if isinstance(self._run, MixtureRun):
            raise TypeError(
                "a mixture has no epochs and no length: count steps, or give TokenBatches the number of them"
            )
        return self._run.batches_of_epoch()

    def __bool__(self) -> bool:
        return True  # whatever its length, and where it has none

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0; `epochs` where there is none. In a mixture, how often as many tokens as
        all its sources hold have been drawn.
        """
        return self._run.epoch

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of a mixture's sources, sorted, which `Batch.sources` are places in; empty for one set."""
        return self._run.names if isinstance(self._run, MixtureRun) else ()

    # ── position ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """The whole run's position, as fresh plain values; the same on every rank that has taken as many batches."""
        return self._run.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, `Batch.state` or `state_dict` of any rank.

        The number of ranks, seq_len, overlap, threads, budget and the place of the files may be others than they were.
        So may what a mixture draws from here on; see the schedule of ``weights``. A mixture also takes the state of a
        run of one set that is among its sources.

        Raises:
            CheckpointDamagedError: not a state.
            CheckpointMismatchError: the state of another run: names each difference with both values.
        """
        self._check_open()
        with self._as_before_on_error():
            progress = self._run.read(read_state(state))
            self._run.stop()
            self._run.progress = progress
            self._run.check_budget()
        self._restored += 1

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        """What is read in it changes nothing: states may bring a window, or open sources."""
        before = self._run.saved()
        try:
            yield
        finally:
            self._run.restore(before)

    @contextlib.contextmanager
    def _as_before_on_error(self) -> Iterator[None]:
        """Where what is done in it fails, the run is where it was and what it was."""
        before = self._run.saved()
        try:
            yield
        except BaseException:
            self._run.stop()
            self._run.restore(before)
            raise

    def state_at(self, position: int, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The state of this run at another position: as its history says, or as it is going to be.

        Args:
            position: tokens consumed per lane, that of a batch of this run.
            state: of this run; its history counts then, and not that of where the loader is.

        Raises:
            ConfigError: no batch of this run begins there.
        """
        position = integer("position", position, 0, 2**62 // self._options.lanes - 1)
        with self._as_before():
            return self._run.state(self._run.at(position, None if state is None else read_state(state)))

    def skip(self, batches: int) -> None:
        """Go on after some global batches that nobody gets: past what made the loss explode, for instance.

        Every rank must skip as many, after the same batch. The state records it; see `history`.

        Raises:
            ConfigError: no count.
            SourceExhaustedError: a source of the mixture would end before that.
        """
        self._check_open()
        self._run.skip(integer("batches", batches, 0, 2**62 // (self._options.lanes * self._options.seq_len) - 1))
        self._restored += 1

    def reweight(self, weights: Mapping[str, float]) -> None:
        """Draw a mixture by other weights from the next block on, until the schedule's next stage begins. Where that
        begins with the same block, it does so, and these weights never come.

        Every rank must do so after the same batch. The state records it, so that a resume needs no word of it: that
        of `state_dict` from now on, and of the batches that follow; the last batch's own is of before.

        Args:
            weights: shares by source; those left out get none.

        Raises:
            ConfigError: not a mixture, a run that has not begun, no weights, or a source that is not there.
            StorageError, DataError: of a source that is opened now.
        """
        self._check_open()
        if not isinstance(self._run, MixtureRun):
            raise ConfigError("this loader has one set; give a dict of sources to mix them by weights")
        with self._as_before_on_error():
            self._run.reweight(weights)
            self._run.check_budget()

    @property
    def history(self) -> dict[str, list[dict[str, Any]]]:
        """What was done so far that states keep, in steps and tokens of the run.

        ``"seq_len"``: from which step on rows had how many tokens; ``"skips"``: what was skipped; ``"stages"`` of a
        mixture: from which step on its weights were which, and whether by the ``schedule``, by ``reweight`` or because
        sources were ``exhausted``.
        """
        return self._run.history()

    def checkpoint(self, state: Mapping[str, Any] | None = None) -> bytes:
        """This rank's part of a checkpoint: msgpack with a checksum.

        Args:
            state: where batches are read ahead, the `Batch.state` of the one that was trained on last. None for after
                the last batch that was taken.

        Raises:
            CheckpointError: not a state, or the state of another run.
        """
        if state is not None:
            with self._as_before():
                state = self._run.state(self._run.read(read_state(state)))
        return seal_checkpoint(state or self._run.state(), self._options.rank, self._options.world_size)

    def resume(self, checkpoint: bytes) -> None:
        """Go to the position of a checkpoint that `merge_checkpoints` made, on any number of ranks.

        One rank's part that was not merged is taken on the same rank of as many ranks only.

        Raises:
            CheckpointDamagedError: not the bytes of a complete checkpoint.
            CheckpointMismatchError: of another run, rank or version.
        """
        state, rank, world_size = open_checkpoint(checkpoint)
        check_part(rank, world_size, self._options.rank, self._options.world_size)
        self.load_state_dict(state)

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _config(self) -> EngineConfig:
        return next(iter(self._run.configs.values()))

    @property
    def _order(self) -> Order:
        return self._config.order

    @property
    def _engine(self) -> Engine | None:
        return self._run.engine

    @property
    def index(self) -> DatasetIndex:
        """The index of the dataset: `save` it, and give it to other ranks.

        Raises:
            ConfigError: of a mixture, which has several `indexes`.
        """
        if isinstance(self._run, MixtureRun):
            raise ConfigError("a mixture has an index for each source; see indexes")
        return self._config.index

    @property
    def indexes(self) -> dict[str, DatasetIndex]:
        """The indexes of a mixture's sources that have a weight, for the ``index`` of each `Component`."""
        return self._run.indexes if isinstance(self._run, MixtureRun) else {}

    def remarks(self) -> tuple[str, ...]:
        """What costs this run time, memory or randomness although it works, and what would be better, a sentence each.

        Those of `DatasetIndex.remarks`, and: a window that mixes little, ranks that read much of the set several times,
        packed rows of which much is padding, a set that is smaller than a global batch. Empty where all is well;
        ``strict=True`` makes each an error.
        """
        found = remarks(self._run.configs, self._options, self._options.world_size)
        return tuple(in_words(name, remark) for name, remark in found)

    def stats(self) -> dict[str, Any]:
        """Counts since this loader was made.

        ``batches`` and ``tokens`` delivered; ``position`` and ``epoch``; ``bytes_read`` in ``reads`` of storage, and
        ``retries`` of requests that had failed;
        ``row_groups`` and ``tokens_decoded``, ``fallbacks`` of them row groups that only pyarrow's slower reader
        takes; ``held_bytes`` now and ``peak_bytes`` at most, of ``budget_bytes``.

        Whether the loader holds training up: ``wait_seconds`` that batches were waited for, of which
        ``wait_storage_seconds`` for requests, ``wait_decoding_seconds`` for decoding and shuffling, and
        ``wait_budget_seconds`` since there was no room to begin earlier, ``wait_growth_seconds`` for files of a set
        that is still being written; and how far ahead it is, ``ahead_batches`` and
        ``ahead_tokens`` of this rank that are decoded and can be taken at once. See docs/monitoring.md.

        Of a mixture also ``sources``: by name the ``tokens`` that the whole run has drawn, over all lanes, and how many
        ``epochs`` of the source that is; ``wait_seconds`` and ``ahead_tokens`` of each.
        """
        held, peak = 0, self._run.peak_bytes
        if self._run.engine is not None:
            held = self._run.engine.budget.held_bytes
            peak = max(peak, self._run.engine.budget.peak_bytes)
        rows, ahead = self._options.lanes_of_rank, self._run.ahead_tokens()
        found: dict[str, Any] = {
            "batches": self._batches,
            "tokens": self._batches * rows * self._options.seq_len - self._padding,
            "position": self._run.progress.position,
            "epoch": self.epoch,
            "bytes_read": self._counters.bytes_read,
            "reads": self._counters.reads,
            "retries": sum(config.storage.retries for config in self._run.configs.values()) + self._counters.retries,
            "row_groups": self._counters.row_groups,
            "tokens_decoded": self._counters.tokens_decoded,
            "fallbacks": self._counters.fallbacks,
            "held_bytes": held,
            "peak_bytes": peak,
            "budget_bytes": self._options.budget_bytes,
            "wait_seconds": self._counters.waited(),
            **{f"wait_{cause}_seconds": self._counters.waited(cause=cause) for cause in CAUSES},
            "ahead_batches": self._run.batches_of(ahead),
            "ahead_tokens": sum(ahead.values()),
        }
        if isinstance(self._run, MixtureRun):
            found["sources"] = self._run.stats(ahead)
        return found

    def close(self) -> None:
        """End every thread and process and let go of all memory. Closing twice is fine; the position can still be asked
        for.
        """
        self._closed = True
        self._run.stop(closed=True)

    def __enter__(self) -> ParquetLoader:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """All except the threads: a copy continues on its own from the same position."""
        counters = Counters()
        return self.__dict__ | {"_counters": counters, "_run": self._run.copied(counters)}

    def __repr__(self) -> str:
        given = self._options
        if isinstance(self._run, MixtureRun):
            what = f"mixture of {', '.join(map(repr, self._run.names))}"
            holds = f"{sum(each.config.order.total_tokens for each in self._run.sets.values()):,} tokens"
        else:
            what = repr(self._config.storage.root)
            holds = f"{self._order.total_tokens:,} tokens in {self._config.index.column!r}"
        return (
            f"ParquetLoader({what}, seq_len={given.seq_len}, lanes={given.lanes}, rank {given.rank} of "
            f"{given.world_size}, {holds}, epoch {self.epoch}, position {self._run.progress.position:,})"
        )

    def _repr_html_(self) -> str:
        given, run = self._options, self._run
        drawn = run.stats() if isinstance(run, MixtureRun) else {}
        rows = []
        for name, opened in run.sets.items():
            order, index = opened.config.order, opened.config.index
            of = (f"{drawn[name]['tokens']:,}", f"{drawn[name]['epochs']:.3f}") if name in drawn else ()
            rows.append((name or index.column, order.total_tokens, len(index), order.window, *of))
        headers = ["source" if drawn else "column", "tokens", "row groups", "window"]
        if drawn:
            headers += ["drawn", "epochs"]
        what = f"{len(run.sets):,} sources" if drawn else self._config.storage.root
        table = html_table(f"ParquetLoader of {what}", rows, headers=headers)
        place = f"rank {given.rank} of {given.world_size:,}, {given.lanes_of_rank:,} of {given.lanes:,} rows of a batch"
        where = f"epoch {self.epoch}, position {run.progress.position:,}{', closed' if self._closed else ''}"
        return f"{table}<p>{given.seq_len:,} tokens a row; {place}; {where}</p>"

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosedError("this loader is closed; make a new one and give it the state of the old")


def _origins_of(step: tuple[Any, Any, Any], options: LoaderOptions) -> list[Piece]:
    from .insight.trace import origins_of

    rows = lane_range(options.rank, options.world_size, options.lanes)
    return origins_of(Step(*step, options), *rows)


class _Origins(functools.partial[list[Piece]]):
    """What `Batch.origins` calls, made for each batch. One that is pickled does not take the index along."""

    def __deepcopy__(self, _: object) -> _Origins:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        (progress, *_), options = self.args
        return _NoOrigins, (progress.rows_before(progress.position), options.rank, options.world_size)


@dataclass(frozen=True, slots=True)
class _NoOrigins:
    """The same of a batch that was pickled."""

    step: int
    rank: int
    world_size: int

    def __call__(self) -> list[Piece]:
        raise ConfigError(
            "this batch was pickled, and its origins need the index and the files, which it does not bring along: "
            "where the loader can be made, use parquet_loader.insight.which(open_run(source, options, batch.state), "
            f"{self.step}, rank={self.rank}, world_size={self.world_size})"
        )
