"""The two kinds of runs a loader may have: of one set, in epochs, and of a mixture of sets, without end.

Each knows where it is (`progress`), makes an engine there when rows are asked for, and reads and writes its states.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .blocks import AnyArray, IntArray, TokenArray
from .checkpoint import ONLY, RunState, history_text, sources_text, state_of
from .engine.config import Counters, EngineConfig
from .engine.cost import required_bytes
from .engine.engine import Engine
from .engine.fits import check_budget, check_mixture_budget
from .engine.growth import OutgrownError, expected, windows_from
from .engine.mixer import Mixer, Picked
from .engine.pack import Origins
from .engine.prefetch import StarvedError
from .engine.rows import WholeRows
from .errors import (
    CheckpointDamagedError,
    CheckpointMismatchError,
    ConfigError,
    ParquetLoaderError,
    SourceExhaustedError,
    of_source,
)
from .index.index import DatasetIndex
from .options import LoaderOptions, aligned_columns
from .order.ending import finish_of
from .order.mixture import BLOCK, Lattice, Weights, integer_weights, shown_weights
from .order.order import Window
from .order.progress import MixturePlan, MixtureProgress, Progress, Stage, traced
from .sets import WITHOUT_FOLLOW, Component, OpenSet, open_set
from .storage.opening import Source

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MixtureRun", "Rows", "Run", "SetRun", "Step", "run_of", "windows_of"]

_ANOTHER_RUN = ". A run's order depends on all of these: make the loader as it was, or start a new run"


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

    def take(self) -> Rows:
        """The next rows; the run is after them then. After an error the next call begins at the same rows."""
        if self.engine is not None and (self.engine.halted or self.engine.pid != os.getpid()):
            self.stop()  # after an error; or the parent's, whose threads are not in this process
        try:
            return self._take()
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


class SetRun(Run):
    """A run of one set.

    Args:
        source: where it lies.
        options, counters: as for `Run`.
    """

    def __init__(self, source: Source, options: LoaderOptions, counters: Counters) -> None:
        super().__init__(options, counters)
        self.progress = Progress(position=0, lengths=((0, options.seq_len),))
        self.use(open_set(source, options, mixed=False))

    def use(self, opened: OpenSet) -> None:
        """Run on a set."""
        self.order = opened.config.order
        self._configs = {ONLY: opened.config}
        self._texts = None
        self._begun_groups = (-1, False)
        self.finish = None
        if self.options.epochs is not None and opened.config.growth is None:
            self.finish = finish_of(
                self.order,
                opened.config.first,
                opened.config.last,
                epochs=self.options.epochs,
                tail=self.options.tail,
                seq_len=self.options.seq_len,
                overlap=self.options.overlap,
            )
        self.set = opened  # last: an interrupt in between leaves it to be done again

    @property
    def is_complete(self) -> bool:
        """Whether the set is, as far as that has been noticed."""
        return self.set.config.growth is None

    @property
    def is_settled(self) -> bool:
        """See `Run`."""
        return self.is_complete

    def settle(self) -> None:
        """See `Run`."""
        if self.is_complete:
            return
        order, position = self.order, self.progress.position
        reach = position // order.unit + 1
        if self.options.epochs is not None:  # whether the row is full, or is there at all, is to be known too
            reach = order.stops(position, 1, seq_len=self.options.seq_len, overlap=self.options.overlap)
        self._await(self.set.config, reach * order.lanes)
        self._grow()

    def _grow(self) -> None:
        """Take notice of what is known of the set by now."""
        grown = self.set.grown()
        if grown is not self.set:
            self.use(grown)

    @property
    def sets(self) -> dict[str, OpenSet]:
        """See `Run`."""
        return {ONLY: self.set}

    @property
    def configs(self) -> dict[str, EngineConfig]:
        """See `Run`."""
        return self._configs

    def config_of(self, name: str) -> EngineConfig:
        """See `Run`."""
        if name not in self._configs:
            raise ConfigError(f"the run is of one set: there is no source {name!r}")
        return self._configs[name]

    def check_budget(self, configs: Mapping[str, EngineConfig] | None = None, *, given: bool = True) -> None:
        """See `Run`."""
        check_budget((configs or self.configs)[ONLY], given=given)

    @property
    def epoch(self) -> int:
        """See `Run`. 0 as long as more may come."""
        epoch = self.order.epoch_of(self.progress.position) if self.is_complete else 0
        if self.finish is None:
            return epoch
        # A lane may have one token more than lane 0 has, of whose epoch batches are.
        return self.finish.epochs if self.over else min(epoch, self.finish.epochs - 1)

    @property
    def over(self) -> bool:
        """See `Run`."""
        return self.finish is not None and self.progress.position >= self.finish.stop

    def saved(self) -> tuple[Any, ...]:
        """See `Run`."""
        return self.progress, self.set

    def restore(self, saved: tuple[Any, ...]) -> None:
        """See `Run`."""
        self.progress, opened = saved
        if opened is not self.set:
            self.use(opened)

    def batches_of_epoch(self) -> int:
        """Batches of the current epoch, from its start to its end.

        Raises:
            TypeError: nobody knows yet.
        """
        self._grow()
        if not self.is_complete:
            raise TypeError(
                "the set is still being written, and nobody knows how many batches an epoch will have: count steps, "
                "for instance with itertools.islice(loader, n), or give TokenBatches the number of them"
            )
        position, seq_len = self.progress.position, self.options.seq_len
        if self.finish is not None:
            return self.finish.batches_of(self.order, self.epoch, seq_len, position)
        return self.order.batches_of(self.epoch, seq_len, position)

    def _take(self) -> Rows:
        self.settle()
        try:
            return self._rows()
        except OutgrownError:  # its threads have seen larger row groups than it was made for
            self.stop()
            self._grow()
            self.check_budget()
            return self._rows()

    def _rows(self) -> Rows:
        config, position = self.set.config, self.progress.position
        if self.engine is None:
            reckoned = expected(config)
            least_bytes = required_bytes(reckoned, self.order.window)
            if reckoned is not config:
                self.check_budget()
                least_bytes = min(least_bytes, config.budget_bytes)
            self.engine = Engine(
                [reckoned],
                windows_of(config, position),
                lengths=[self.progress.reached(self.order.lanes)],
                dtype=config.dtype,
                counters=self.counters,
                least_bytes=least_bytes,
            )
        seq_len, overlap = self.options.seq_len, self.options.overlap
        columns = seq_len + overlap if config.rows is None else seq_len
        lengths = self.finish.lengths(position, columns) if self.finish is not None else None
        ends = self.finish.ends if self.finish is not None and lengths is not None else None
        drawn = self.engine.rows(0, position, seq_len, overlap, ends=ends)
        self._grow()
        tokens, *values = drawn.planes
        aligned = {plane.column: each for plane, each in zip(config.aligned, values, strict=True)} if values else {}
        step = self.progress, self._configs, None
        self.progress = self.progress.advanced(1)
        if config.rows is not None:
            lengths = drawn.lengths
        return Rows(tokens, drawn.origins, step, aligned, lengths=lengths)

    def ahead_tokens(self) -> dict[str, int]:
        """See `Run`."""
        return {ONLY: self.engine.ahead_tokens(0, self.progress.position)} if self.engine is not None else {}

    def identities(self, progress: Progress) -> Mapping[str, Mapping[str, Any]]:
        """See `Run`."""
        return {ONLY: self.set.identity_at(progress.position).values()}

    def _begins(self, progress: Progress) -> object:
        """See `Run`."""
        if not self.order.stored_first:
            return None
        if not self.is_complete:  # what was skipped may not be there yet
            self._await(self.set.config, self.order.needed_for(progress.position) - self.order.lanes + 1)
            self._grow()
        position = progress.position
        groups = self.order.begun_groups(position)
        begins = (groups, groups > 0 and self.order.is_beyond(position, groups))
        if begins != self._begun_groups:
            self._begun_groups = begins
        return self._begun_groups

    def read(self, state: RunState) -> Progress:
        """See `Run`."""
        if state.is_mixture:
            raise CheckpointMismatchError(
                f"the checkpoint is of a mixture of {', '.join(map(repr, state.sources))}, and this loader has one "
                "set; give it the same dict of sources, and weights"
            )
        found = state.sources[ONLY]
        come_to = self.set.come_to(found, lambda: self._closed)
        opened = come_to.as_in(found)
        differences = [*opened.differences(found), *self._differences(state)]
        if differences:
            raise CheckpointMismatchError("the checkpoint is of another run: " + "; ".join(differences) + _ANOTHER_RUN)
        if opened is not self.set:
            self.use(opened)
        return Progress(position=state.position, lengths=state.lengths, skips=state.skips).resized(self.options.seq_len)

    def at(self, position: int, state: RunState | None = None) -> Progress:
        """See `Run`."""
        progress = self.progress if state is None else self.read(state)
        _check_border(progress, position)
        return progress.moved_to(position)


def _check_border(progress: Progress, position: int) -> None:
    """Refuse a position at which no batch begins."""
    row = progress.rows_before(position)
    begin, following = progress.position_of(row), progress.position_of(row + 1)
    if begin != position:
        raise ConfigError(f"no batch begins at position {position:,}; one does at {begin:,} and at {following:,}")


def windows_of(config: EngineConfig, position: int) -> Iterator[tuple[int, Window | None]]:
    """The windows that a run of one set needs from a position on, as an `Engine` is given them."""
    # Of these lanes the last is the first to need a window.
    for window in windows_from(config, position // config.order.unit, config.last - 1):
        if window is not None and config.epochs is not None and window.epoch >= config.epochs:
            return
        yield 0, window


class MixtureRun(Run):
    """A run of a mixture.

    Args:
        sources: where each source lies, by name.
        options, counters: as for `Run`.

    Attributes:
        names: of the sources, sorted.
        plan: what is to be done.
    """

    progress: MixtureProgress

    def __init__(self, sources: Mapping[str, Source | Component], options: LoaderOptions, counters: Counters) -> None:
        super().__init__(options, counters)
        if not sources or not all(isinstance(name, str) and name for name in sources):
            wrong = [name for name in sources if not isinstance(name, str) or not name]
            problem = f"names such as {wrong[0]!r}" if wrong else "none"
            raise ConfigError(f"sources must be a dict of names, which are text, and where each lies, not {problem}")
        for name, given in (("index", options.index), ("epochs", options.epochs)):
            if given is not None:
                hint = "max_epochs of a Component" if name == "epochs" else "index of a Component"
                raise ConfigError(f"{name}={given!r} is for one set; a mixture has {hint} for each source")
        own = [each.follow if isinstance(each, Component) else None for each in sources.values()]
        follows = any(options.follow if each is None else each for each in own)
        if options.complete_after is not None and not follows:
            raise ConfigError(WITHOUT_FOLLOW.format(options.complete_after))
        self._sources = dict(sources)
        self.names = tuple(sorted(sources))
        self._sets: dict[str, OpenSet | ParquetLoaderError] = {}
        self._stored: dict[str, OpenSet] = {}
        self._former: dict[str, Mapping[str, Any]] = {}  # what a state has told of sources
        self._mixer: Mixer | None = None
        self._configs: dict[str, EngineConfig] = {}  # that it was made with
        self._reweighted = False  # since the engine was made, whose threads know nothing of it
        self._last_begins: list[tuple[str, int, bool]] = []  # what the last state told of sources' beginnings
        schedule = self._schedule(options.weights)
        last = {name for name, _ in schedule[-1][1]}
        for name in sorted({name for _, weights in schedule for name, _ in weights}):
            try:
                self._open(name)
            except ParquetLoaderError as error:
                # A source of an earlier stage may be gone by now: only who comes to that stage needs it.
                if name in last:
                    raise
                self._sets[name] = error
        self._plan_for(schedule)
        self.progress = MixtureProgress(position=0, lengths=((0, options.seq_len),))

    # ── what is configured ───────────────────────────────────────────────────────────────────────────────────────

    def _open(self, name: str) -> OpenSet:
        opened = self._sets.get(name)
        if not isinstance(opened, OpenSet):
            if name not in self._sources:
                raise ConfigError(
                    f"weights draw from {name!r}, which is not among the sources {', '.join(map(repr, self.names))}"
                )
            try:
                opened = open_set(self._sources[name], self.options, mixed=True)
            except ParquetLoaderError as error:
                raise of_source(error, name) from error
            if name in self._former:
                opened = opened.as_in(self._former[name])
            self._sets[name] = opened
            self._note_sets()
        return opened

    def _schedule(self, weights: Any) -> tuple[tuple[int, Weights], ...]:
        if weights is None:
            raise ConfigError(
                "a mixture needs weights: shares such as {'web': 0.7, 'code': 0.3}, a schedule [(0, {...}), (token, "
                "{...})], or 'tokens' for as much as each source holds"
            )
        if isinstance(weights, str):
            if weights != "tokens":
                raise ConfigError(f"weights must be shares, a schedule or 'tokens', not {weights!r}")
            growing = [name for name in self.names if self._open(name).config.growth is not None]
            if growing:
                raise ConfigError(
                    f"weights='tokens' are in proportion to what each source holds, and nobody knows yet what "
                    f"{growing[0]!r} will hold, which is still being written: give shares"
                )
            return ((0, self._weights({name: self._open(name).config.order.total_tokens for name in self.names})),)
        if not isinstance(weights, (Mapping, Sequence)):
            raise ConfigError(f"weights must be shares, a schedule or 'tokens', not {weights!r}")
        if isinstance(weights, Mapping) and weights and all(isinstance(key, int) for key in weights):
            raise ConfigError("a schedule is a list of (token, shares), not a dict of tokens")
        stages = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
        if not stages or not all(isinstance(stage, Sequence) and len(stage) == 2 for stage in stages):
            raise ConfigError(f"a schedule is a list of (token, shares), not {weights!r}")
        tokens = [token for token, _ in stages]
        whole = all(isinstance(token, (int, np.integer)) and not isinstance(token, bool) for token in tokens)
        if not whole:
            raise ConfigError(f"the tokens from which on stages of weights hold must be integers, not {tokens}")
        if tokens[0] != 0 or any(low >= high for low, high in pairwise(tokens)):
            raise ConfigError(f"the stages of weights must begin at token 0 and rise, not at {tokens}")
        schedule = tuple((int(token), self._weights(shares)) for token, shares in stages)
        for name, _ in schedule[-1][1]:
            if name not in self._sources:
                self._open(name)  # says so
        return schedule

    def _weights(self, shares: object) -> Weights:
        if not isinstance(shares, Mapping):
            raise ConfigError(f"weights must be a dict of shares by source, not {shares!r}")
        try:
            return integer_weights(shares)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _plan_for(self, schedule: tuple[tuple[int, Weights], ...]) -> None:
        lanes = self.options.lanes
        self._all_tokens = max(1, sum(each.config.order.total_tokens for each in self.sets.values()))
        self.plan = MixturePlan(
            lattice=Lattice(seed=self.options.seed, lanes=lanes),
            schedule=schedule,
            limits={
                name: each.limit
                for name, each in self.sets.items()
                if each.max_epochs is not None and each.config.growth is None
            },
            redistribute=self.options.exhausted == "redistribute",
            overlap=self.options.overlap,
        )

    @property
    def sets(self) -> dict[str, OpenSet]:
        """See `Run`."""
        return {name: self._sets[name] for name in sorted(self._sets) if isinstance(self._sets[name], OpenSet)}  # type: ignore[misc]

    def config_of(self, name: str) -> EngineConfig:
        """See `Run`."""
        return self._open(name).config

    def needed(self, progress: MixtureProgress) -> list[str]:
        """The sources that are drawn from now on, by name."""
        with contextlib.suppress(SourceExhaustedError):  # whoever comes there is told
            progress = progress.entered(self.plan)
        block = progress.block
        now = progress.stage_of(block)
        coming = [now.weights] if now is not None else []
        coming += [stage.weights for stage in progress.stages if stage.block > block]
        coming += [weights for begin, _, weights in self.plan.scheduled(progress) if begin >= block]
        return sorted({name for weights in coming for name, _ in weights})

    @property
    def configs(self) -> dict[str, EngineConfig]:
        """See `Run`. Without sources of an earlier stage that are gone: whoever takes rows there is told."""
        found = {}
        for name in self.needed(self.progress):
            if not isinstance(self._sets.get(name), ParquetLoaderError):
                found[name] = self._open(name).config
        return found

    def check_budget(self, configs: Mapping[str, EngineConfig] | None = None, *, given: bool = True) -> None:
        """See `Run`."""
        configs = configs or self.configs
        if configs:  # else all that is to be drawn is gone, which whoever takes rows is told
            check_mixture_budget(configs, self.progress, self.plan)

    # ── going on ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int:
        """Passes over as many tokens as all sources hold; 0 as long as more may come to one."""
        if self._growing:
            return 0
        return self.progress.position * self.options.lanes // self._all_tokens

    def _take(self) -> Rows:
        self._settle_limits()
        entered = self.progress.entered(self.plan)
        try:
            rows = self._rows(entered)
        except StarvedError:
            if not self._reweighted:
                raise
            # The threads read ahead for the weights of before, and the budget is full of it.
            self.stop()
            rows = self._rows(entered)
        except OutgrownError:  # they have seen larger row groups than the engine was made for
            self.stop()
            self._grow()
            self.check_budget()
            rows = self._rows(entered)
        self.progress = entered.advanced(1, self.plan)
        return rows

    @property
    def _growing(self) -> dict[str, OpenSet]:
        """The sources that may still grow, as far as that has been noticed."""
        return {name: each for name, each in self._stored.items() if each.config.growth is not None}

    def _note_sets(self) -> None:
        """Note of which sources epoch 0 is as it is stored: each batch asks, and there may be hundreds of others."""
        self._stored = {name: each for name, each in self.sets.items() if each.config.order.stored_first}

    def _grow(self) -> None:
        """Take notice of what is known of the sources by now."""
        for name, each in self._growing.items():
            grown = each.grown()
            if grown is each:
                continue
            self._sets[name] = grown
            if name in self._configs:
                self._configs = {**self._configs, name: grown.config}
            if grown.config.growth is None:
                limits = self.plan.limits
                self._plan_for(self.plan.schedule)
                if self.plan.limits != limits:  # the engine's threads know nothing of them
                    self.stop()
            self._note_sets()  # last: an interrupt in between leaves it to be done again

    def _settle_limits(self) -> None:
        """Wait until it is known whether sources that may still grow, and may end, have enough for the next block."""
        if self.progress.row % BLOCK:
            return
        for name, each in self._growing.items():
            if each.max_epochs is None:
                continue
            entered = self.progress.entered(self.plan)
            while (opened := self._growing.get(name)) is not None:
                if entered.lasts(name, 1, replace(self.plan, limits={name: opened.limit})):
                    break
                self._await(opened.config, opened.config.order.total + 1, name)
                self._grow()

    def _rows(self, progress: MixtureProgress) -> Rows:
        if self.engine is None or self._mixer is None:
            # One that is not open could not be, which a stage that is over does not mind.
            self._configs = {name: self._open(name).config for name in self.needed(progress)}
            reckoned = {name: expected(config) for name, config in self._configs.items()}
            self._mixer = Mixer(reckoned, progress, self.plan, names=self.names, counters=self.counters)
            self.engine = self._mixer.engine
            self._reweighted = False
        mixed = self._mixer.rows(progress)
        self._grow()
        step = progress, self._configs, self.plan
        return Rows(
            mixed.tokens, mixed.origins, step, lengths=mixed.lengths, sources=mixed.sources, aligned=mixed.aligned
        )

    def ahead_tokens(self) -> dict[str, int]:
        """See `Run`."""
        return self._mixer.ahead_tokens(self.progress) if self._mixer is not None else {}

    def batches_of(self, ahead_tokens: Mapping[str, int]) -> int:
        """See `Run`. As many, about, as the source allows that has least for its share."""
        stage = self.progress.stage_of(self.progress.block)
        if stage is None:
            return 0
        whole = sum(weight for _, weight in stage.weights)
        lasts = min(ahead_tokens.get(name, 0) * whole // weight for name, weight in stage.weights)
        return lasts // (self.options.lanes_of_rank * self.options.seq_len)

    def stop(self, *, closed: bool = False) -> None:
        """See `Run`."""
        super().stop(closed=closed)
        self._mixer = None

    def copied(self, counters: Counters) -> Self:
        """See `Run`."""
        copied = super().copied(counters)
        copied._mixer = None
        return copied

    def history(self) -> dict[str, list[dict[str, Any]]]:
        """See `Run`."""
        progress, lanes = self.progress, self.options.lanes
        stages = [
            {
                "step": stage.block * BLOCK,
                "token": progress.position_of(stage.block * BLOCK) * lanes,
                "weights": shown_weights(stage.weights),
                "by": stage.by,
            }
            for stage in progress.stages
        ]
        return {**super().history(), "stages": stages}

    def saved(self) -> tuple[Any, ...]:
        """See `Run`."""
        return self.progress, dict(self._sets), dict(self._former), self.plan, self._all_tokens

    def restore(self, saved: tuple[Any, ...]) -> None:
        """See `Run`."""
        self.progress, self._sets, self._former, self.plan, self._all_tokens = saved
        self._note_sets()
        self._texts = None

    def advanced(self, batches: int) -> Progress:
        """See `Run`."""
        return self.progress.advanced(batches, self.plan)

    def skip(self, batches: int) -> None:
        """See `Run`."""
        skipped = self.progress.skipped(batches, self.plan)
        self.stop()
        self.progress = skipped

    def reweight(self, shares: Mapping[str, float]) -> None:
        """Draw by other weights from the next block on."""
        if not self.progress.row:
            raise ConfigError("the run has not begun: give these weights as the first stage of the schedule instead")
        weights = self._weights(shares)
        opened = set(self.sets)
        for name, _ in weights:
            opened_set, former = self._open(name), self._former.get(name)
            differences = [] if former is None else opened_set.differences(former, name)
            if differences:  # it was drawn from before this loader was made, which had no need to look at it then
                raise CheckpointMismatchError(
                    "the run has drawn from another source: " + "; ".join(differences) + _ANOTHER_RUN
                )
        if set(self.sets) != opened:
            self._plan_for(self.plan.schedule)
        self.progress = self.progress.reweighted(weights, self.plan)
        self._reweighted = True
        if self._mixer is not None and not {name for name, _ in weights} <= self._mixer.names:
            self.stop()

    # ── states ───────────────────────────────────────────────────────────────────────────────────────────────────

    def identities(self, progress: MixtureProgress) -> Mapping[str, Mapping[str, Any]]:
        """See `Run`."""
        found: dict[str, Mapping[str, Any]] = {}
        for name in progress.drawn():
            if name in self._stored:
                found[name] = self._stored[name].identity_at(self._had(name, progress)).values()
                continue
            if name not in self._former:
                self._former[name] = self._open(name).identity_at(self._had(name, progress)).values()
            found[name] = self._former[name]
        return found

    def _had(self, name: str, progress: MixtureProgress) -> int:
        """The tokens of a source that every lane has had for certain, in whole blocks."""
        return int(np.min(progress.begins(name, self.plan.lattice, 0, self.options.lanes)))

    def _begins(self, progress: MixtureProgress) -> object:
        """See `Run`."""
        if not self._stored:
            return None
        begins = []
        for name in self._stored.keys() & set(progress.drawn()):
            had, order = self._had(name, progress), self.config_of(name).order
            if name in self._growing:  # what was skipped may not be there yet
                self._await(self.config_of(name), order.needed_for(had) - order.lanes + 1, name)
                self._grow()
                order = self.config_of(name).order
            groups = order.begun_groups(had)
            begins.append((name, groups, groups > 0 and order.is_beyond(had, groups)))
        if sorted(begins) != self._last_begins:
            self._last_begins = sorted(begins)
        return self._last_begins

    def _begun(self, progress: MixtureProgress) -> bool:
        """See `Run`."""
        return not progress.stages or progress.stages[-1].block * BLOCK < progress.row

    def read(self, state: RunState) -> MixtureProgress:
        """See `Run`."""
        stages, sources = state.stages, dict(state.sources)
        if not state.is_mixture:
            name = self._name_of(sources[ONLY])
            stages = (Stage(0, ((name, 1),)),) if state.position else ()
            sources = {name: sources[ONLY]} if state.position else {}
        self._check_identities(state, self.sets, sources)
        try:
            progress = traced(self.plan.lattice, state.lengths, stages, state.position)
        except ValueError as error:
            raise CheckpointDamagedError(f"the state's history is not that of a run ({error})") from error
        untold = sorted(set(progress.drawn()) - set(sources))
        if untold:
            raise CheckpointDamagedError(f"the state says nothing of {', '.join(map(repr, untold))}, drawn from before")
        self._check_past(progress)
        # What only `reweight` had brought in is opened now.
        further = {name: self._open(name) for name in self.needed(progress) if name not in self.sets}
        self._check_identities(state, further, sources)
        self._sets.update({name: each.as_in(sources[name]) for name, each in self.sets.items() if name in sources})
        self._note_sets()
        if further:
            self._plan_for(self.plan.schedule)
        progress = progress.resized(self.options.seq_len, self.plan.lattice)
        progress.check_rest(self.plan)
        self._former = {**self._former, **sources}
        return replace(progress, skips=state.skips)

    def _check_identities(
        self, state: RunState, sets: Mapping[str, OpenSet], sources: Mapping[str, Mapping[str, Any]]
    ) -> None:
        differences = self._differences(state)
        for name, each in sets.items():
            if name in sources:
                self._sets[name] = come_to = each.come_to(sources[name], lambda: self._closed)
                self._note_sets()
                differences += come_to.differences(sources[name], name)
        if differences:
            raise CheckpointMismatchError("the checkpoint is of another run: " + "; ".join(differences) + _ANOTHER_RUN)

    def at(self, position: int, state: RunState | None = None) -> MixtureProgress:
        """See `Run`."""
        progress = self.progress if state is None else self.read(state)
        _check_border(progress, position)
        ahead = position - progress.position
        if ahead >= 0:
            return progress.advanced(ahead // progress.seq_len, self.plan)
        before = traced(self.plan.lattice, progress.lengths, progress.stages, position)
        skips = tuple(skip for skip in progress.skips if skip[1] <= position)
        return replace(before.resized(self.options.seq_len, self.plan.lattice), skips=skips)

    def _name_of(self, found: Mapping[str, Any]) -> str:
        """The source that a state of one set is of."""
        for each in self._growing.values():
            assert each.config.growth is not None
            each.config.growth.look()
        self._grow()
        for name, each in self.sets.items():
            if each.matches(found):
                return name
        fingerprint = found.get("fingerprint")
        near = [name for name, each in self.sets.items() if each.identity_for(found).fingerprint == fingerprint]
        if near:
            each = self.sets[near[0]]
            raise CheckpointMismatchError(
                "the checkpoint is of another run: " + "; ".join(each.differences(found, near[0])) + _ANOTHER_RUN
            )
        raise CheckpointMismatchError(
            "the checkpoint is of a run of one set, and none of the sources "
            f"{', '.join(map(repr, self.sets))} holds these files; add it to the sources"
        )

    def _check_past(self, progress: MixtureProgress) -> None:
        """Refuse a schedule whose past is not what was run."""
        begun = -(-progress.row // BLOCK)
        run = [stage for stage in progress.stages if stage.by != "exhausted" and stage.block < begun]
        everything = _merged([(stage.block, stage.weights) for stage in run])
        plan = {block: weights for block, _, weights in self.plan.scheduled(progress) if block < begun}
        planned = _merged(list(plan.items()))
        # A run that was reweighted comes to no stage that begins with the same block, or changes nothing any more.
        reweighted = {stage.block: stage.weights for stage in run if stage.by == "reweight"}
        both = _merged(sorted({**reweighted, **plan}.items()))
        if everything in (planned, both) or not begun:
            return
        scheduled = [(stage.block, stage.weights) for stage in run if stage.by == "schedule" or not stage.block]

        def with_tokens(stages: list[tuple[int, Weights]]) -> list[tuple[int, dict[str, float]]]:
            return [
                (progress.position_of(block * BLOCK) * self.options.lanes, shown_weights(weights))
                for block, weights in stages
            ]

        following = self.plan.schedule[-1][1]
        ahead = progress.resized(self.options.seq_len, self.plan.lattice)  # the rows up to there have the new length
        following_token = ahead.position_of(begun * BLOCK) * self.options.lanes
        cure = [*with_tokens(scheduled), (following_token, shown_weights(following))]
        # As TOML has it, and as Python and --weights on the command line have it.
        in_toml, in_json = json.dumps(cure, separators=(", ", " = ")), json.dumps(cure)
        raise CheckpointMismatchError(
            f"the run was drawn by {with_tokens(scheduled)} so far, and by weights it would have been "
            f"{with_tokens(planned)}. What was drawn cannot change: keep it, and add what is new as a stage, in TOML "
            f"weights = {in_toml}, else weights={in_json}"
        )

    # ── telling ──────────────────────────────────────────────────────────────────────────────────────────────────

    def stats(self, ahead_tokens: Mapping[str, int] | None = None) -> dict[str, dict[str, float]]:
        """Tokens that the run has had of each source, over all lanes, and how many epochs of it that is; what was
        waited for it here, and what of it waits here to be taken.
        """
        found: dict[str, dict[str, float]] = {}
        for name in sorted({*self.names, *self.progress.drawn()}):
            tokens = self.progress.consumed(name, self.plan.lattice)
            found[name] = {"tokens": tokens}
            opened = self._sets.get(name)
            if isinstance(opened, OpenSet) and opened.config.growth is None:
                found[name]["epochs"] = tokens / opened.config.order.total_tokens
            found[name]["wait_seconds"] = self.counters.waited(source=name)
            found[name]["ahead_tokens"] = (ahead_tokens or {}).get(name, 0)
        return found

    @property
    def indexes(self) -> dict[str, DatasetIndex]:
        """The indexes of the sources that are open."""
        return {name: each.config.index for name, each in self.sets.items()}


def _merged(stages: list[tuple[int, Weights]]) -> list[tuple[int, Weights]]:
    """Without stages that change nothing."""
    kept: list[tuple[int, Weights]] = []
    for block, weights in stages:
        while kept and kept[-1][0] == block:
            kept.pop()
        if not kept or kept[-1][1] != weights:
            kept.append((block, weights))
    return kept


def run_of(
    source: Source | Mapping[str, Source | Component], options: LoaderOptions, counters: Counters
) -> SetRun | MixtureRun:
    """The run of one set or of a mixture, at its begin: after the batches that it was asked to skip.

    Raises:
        ConfigError, StorageError, DataError: as `ParquetLoader`.
    """
    run: SetRun | MixtureRun
    if isinstance(source, Mapping):
        named = [each.aligned for each in source.values() if isinstance(each, Component) and each.aligned]
        aligned = dict.fromkeys(name for names in named for name in names) | aligned_columns(options.aligned)
        run = MixtureRun(source, replace(options, aligned=aligned), counters)
    else:
        for name, default in (("weights", None), ("exhausted", "raise")):
            if getattr(options, name) != default:
                raise ConfigError(
                    f"{name} is for several sources: give a dict of them, {{'name': path, ...}}, a table [source] in "
                    "TOML, or NAME=PATH of each on the command line"
                )
        run = SetRun(source, options, counters)
    run.progress = run.advanced(options.skip_batches)
    return run
