"""What a run of one set and a run of a mixture have in common: where they are, their engine, and their states."""

from __future__ import annotations

import copy
import functools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ..blocks import AnyArray, IntArray, TokenArray
from ..checkpoint import ONLY, RunState, history_text, sources_text, state_of
from ..engine.config import Counters, EngineConfig
from ..engine.engine import Engine
from ..engine.mixer import Picked
from ..engine.pack import Origins
from ..engine.rows import WholeRows
from ..errors import CheckpointMismatchError, ConfigError
from ..options import LoaderOptions
from ..order.progress import MixturePlan, Progress
from ..sets import OpenSet

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Rows", "Run", "Step", "another_run", "check_border"]

T = TypeVar("T")


class Step(NamedTuple):
    """A step of a run, and what it is taken from: enough to tell which documents its rows consist of.

    Attributes:
        progress: before it.
        configs: of all that its rows may be of, by name, for whatever lanes.
        plan: of a mixture.
        options: of the loader.
    """

    progress: Progress
    configs: Mapping[str, EngineConfig]
    plan: MixturePlan | None
    options: LoaderOptions


class Rows(NamedTuple):
    """One row of every lane of this rank.

    Attributes:
        origins: where documents begin in them.
        step: the fields of a `Step` but its options: there is a batch of this several thousand times a second.
        tokens, lengths, sources, aligned: see `Batch`.
    """

    tokens: TokenArray
    origins: Origins | WholeRows | Picked
    step: tuple[Progress, Mapping[str, EngineConfig], MixturePlan | None]
    aligned: dict[str, AnyArray]
    lengths: IntArray | None = None
    sources: np.ndarray[tuple[int], np.dtype[np.int32]] | None = None


class Run:
    """What both kinds have in common.

    Args:
        options: of the loader.
        counters: where what engines do is counted.

    Attributes:
        progress: where the run is.
        engine: that makes its rows; None until they are asked for.
        peak_bytes: the most that the engines before it held.
    """

    progress: Progress

    def __init__(self, options: LoaderOptions, counters: Counters) -> None:
        self.options = options
        self.counters = counters
        self.engine: Engine | None = None
        self.peak_bytes = 0
        self._closed = False
        self._texts: tuple[tuple[object, ...], str, str] | None = None

    @property
    def sets(self) -> dict[str, OpenSet]:
        """The sets that are open, by name; `ONLY` is the name of a set alone."""
        raise NotImplementedError

    @property
    def configs(self) -> dict[str, EngineConfig]:
        """What engines run on now, by name."""
        raise NotImplementedError

    def check_budget(self, configs: Mapping[str, EngineConfig] | None = None, *, given: bool = True) -> None:
        """Refuse a budget that is too small from here on, and say what fits.

        Args:
            configs: what engines would run on; None for `configs`.
            given: whether the window was asked for, or is a state's.

        Raises:
            ConfigError: it is.
        """
        raise NotImplementedError

    def config_of(self, name: str) -> EngineConfig:
        """What an engine needs of a source, which is opened if it was not.

        Raises:
            ConfigError: there is no such source.
            StorageError, DataError: as `ParquetLoader`.
        """
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        raise NotImplementedError

    @property
    def over(self) -> bool:
        """Whether there are no more rows."""
        return False

    @property
    def is_settled(self) -> bool:
        """Whether `epoch` and `over` can be told of the next batch without waiting for anything."""
        return True

    def settle(self) -> None:
        """Wait until `epoch` and `over` can be told of the next batch.

        Raises:
            WriterFailedError, GrowthTimeoutError, StorageError: as `Follower.until`.
        """
        self._guarded(self._settle)

    def _settle(self) -> None:
        """See `settle`."""

    def take(self) -> Rows:
        """The next rows; the run is after them then. After an error the next call begins at the same rows."""
        return self._guarded(self._take)

    def _guarded(self, work: Callable[[], T]) -> T:
        """``work()``; after an error nothing is left of the engine, nor of what its threads have met with."""
        if self.engine is not None and (self.engine.halted or self.engine.pid != os.getpid()):
            self.stop()  # after an error; or the parent's, whose threads are not in this process
        try:
            return work()
        except BaseException:
            # Also on KeyboardInterrupt: the engine may be half-way through a row, or ahead of the position. The next
            # call begins at the position, on a new engine, and waits for this one's threads: the error does not.
            if self.engine is not None:
                self.engine.halt()
            raise

    def _take(self) -> Rows:
        raise NotImplementedError

    def stop(self, *, closed: bool = False) -> None:
        """End the engine, if there is one; with ``closed``, for good."""
        self._closed = self._closed or closed
        engine = self.engine
        if engine is not None:
            self.peak_bytes = max(self.peak_bytes, engine.budget.peak_bytes)
            engine.close()
            self.engine = None  # not before: an interrupt may have broken off the wait for its threads

    def advanced(self, batches: int) -> Progress:
        """The progress after some batches more."""
        return self.progress.advanced(batches)

    def skip(self, batches: int) -> None:
        """Go on after some batches that nobody gets."""
        skipped = self.progress.skipped(batches)
        self.stop()
        self.progress = skipped

    def identities(self, progress: Any) -> Mapping[str, Mapping[str, Any]]:
        """What states at a place keep of each set."""
        raise NotImplementedError

    def state(self, progress: Progress | None = None) -> dict[str, Any]:
        """The state here, or at another place."""
        here = progress or self.progress
        # Every batch has a state, and its texts hardly ever change.
        key = here.lengths, here.skips, getattr(here, "stages", None), self._begun(here), self._begins(here)
        if self._texts is None or not all(map(operator.is_, self._texts[0], key)):
            self._texts = key, history_text(here), sources_text(self.identities(here))
        _, history, sources = self._texts
        return state_of(
            here.position, seed=self.options.seed, lanes=self.options.lanes, history=history, sources=sources
        )

    def _begun(self, progress: Any) -> bool:
        """Whether all stages that there are have begun."""
        return True

    def _begins(self, progress: Any) -> object:
        """What identities depend on beside the history; the same object as long as that is the same."""
        return None

    def _await(self, config: EngineConfig, elements: int, name: str = ONLY) -> None:
        """Wait until a set is known to begin with so many elements, or to be complete."""
        growth = config.growth
        if growth is None or elements <= config.order.total:
            return
        growth.until(
            lambda: growth.known[1] or elements <= config.now.order.total,
            closed=lambda: self._closed,
            waited=functools.partial(self._count_growth, name),
        )

    def _count_growth(self, name: str, seconds: float) -> None:
        waits = self.counters.waits
        waits[name, "growth"] = waits.get((name, "growth"), 0.0) + seconds

    def read(self, state: RunState) -> Progress:
        """The progress that a state tells of, with rows of this run's length from there on.

        Raises:
            CheckpointDamagedError: a state that no run has.
            CheckpointMismatchError: the state of another run: names each difference with both values.
        """
        raise NotImplementedError

    def at(self, position: int, state: RunState | None = None) -> Progress:
        """The progress at another position, of this run or of the one a state tells of, earlier or later."""
        raise NotImplementedError

    def saved(self) -> tuple[Any, ...]:
        """What a state may change of it, for `restore`."""
        raise NotImplementedError

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Be as it was when that was saved. What its engine runs on must not have changed since."""
        raise NotImplementedError

    def history(self) -> dict[str, list[dict[str, Any]]]:
        """See `ParquetLoader.history`."""
        progress, lanes = self.progress, self.options.lanes

        def at(position: int) -> dict[str, Any]:
            return {"step": progress.rows_before(position), "token": position * lanes}

        return {
            "seq_len": [{**at(begin), "seq_len": seq_len} for begin, seq_len in progress.lengths],
            "skips": [
                {**at(begin), "batches": progress.rows_before(end) - progress.rows_before(begin)}
                for begin, end in progress.skips
            ],
            "stages": [],
        }

    def ahead_tokens(self) -> dict[str, int]:
        """Tokens that wait to be taken, of all lanes of this rank together, by source."""
        raise NotImplementedError

    def batches_of(self, ahead_tokens: Mapping[str, int]) -> int:
        """Batches that tokens which wait to be taken last for."""
        return sum(ahead_tokens.values()) // (self.options.lanes_of_rank * self.options.seq_len)

    def copied(self, counters: Counters) -> Self:
        """The same run without its engine."""
        copied = copy.copy(self)
        copied.engine, copied.counters, copied.peak_bytes = None, counters, 0
        copied._closed = False
        return copied

    def _differences(self, state: RunState) -> list[str]:
        return [
            f"{name} is {found} in the checkpoint and {own} in this loader"
            for name, found, own in (
                ("seed", state.seed, self.options.seed),
                ("lanes", state.lanes, self.options.lanes),
            )
            if found != own
        ]


def another_run(differences: Sequence[str], what: str = "the checkpoint is of another run") -> CheckpointMismatchError:
    """A state's difference from a loader, as an error."""
    text = f"{what}: {'; '.join(differences)}. A run's order depends on all of these: "
    return CheckpointMismatchError(f"{text}make the loader as it was, or start a new run")


def check_border(progress: Progress, position: int) -> None:
    """Refuse a position at which no batch begins."""
    row = progress.rows_before(position)
    begin, following = progress.position_of(row), progress.position_of(row + 1)
    if begin != position:
        raise ConfigError(f"no batch begins at position {position:,}; one does at {begin:,} and at {following:,}")
