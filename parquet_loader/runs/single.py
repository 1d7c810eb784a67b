"""A run of one set, in epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..checkpoint import ONLY, RunState
from ..engine.config import Counters, EngineConfig
from ..engine.cost import required_bytes
from ..engine.engine import Engine
from ..engine.fits import check_budget
from ..engine.growth import OutgrownError, expected, windows_from
from ..errors import CheckpointMismatchError, ConfigError
from ..options import LoaderOptions
from ..order.ending import finish_of
from ..order.order import Window
from ..order.progress import Progress
from ..sets import OpenSet, open_set
from ..storage.opening import Source
from .base import Rows, Run, another_run, check_border

__all__ = ["SetRun", "windows_of"]


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
        return self.is_complete

    def _settle(self) -> None:
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
        return {ONLY: self.set}

    @property
    def configs(self) -> dict[str, EngineConfig]:
        return self._configs

    def config_of(self, name: str) -> EngineConfig:
        if name not in self._configs:
            raise ConfigError(f"the run is of one set: there is no source {name!r}")
        return self._configs[name]

    def check_budget(self, configs: Mapping[str, EngineConfig] | None = None, *, given: bool = True) -> None:
        check_budget((configs or self.configs)[ONLY], given=given)

    @property
    def epoch(self) -> int:
        """0 as long as more may come."""
        epoch = self.order.epoch_of(self.progress.position) if self.is_complete else 0
        if self.finish is None:
            return epoch
        # A lane may have one token more than lane 0 has, of whose epoch batches are.
        return self.finish.epochs if self.over else min(epoch, self.finish.epochs - 1)

    @property
    def over(self) -> bool:
        return self.finish is not None and self.progress.position >= self.finish.stop

    def saved(self) -> tuple[Any, ...]:
        return self.progress, self.set

    def restore(self, saved: tuple[Any, ...]) -> None:
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
        self._settle()
        try:
            return self._rows()
        except OutgrownError:  # its threads have seen larger row groups than it was made for
            self.stop()
            self._grow()
            return self._rows()

    def _rows(self) -> Rows:
        config, position = self.set.config, self.progress.position
        if self.engine is None:
            reckoned = expected(config)
            least_bytes = required_bytes(reckoned, self.order.window)
            if self.order.stored_first:  # it may have grown since its budget was checked
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
        return {ONLY: self.engine.ahead_tokens(0, self.progress.position)} if self.engine is not None else {}

    def identities(self, progress: Progress) -> Mapping[str, Mapping[str, Any]]:
        return {ONLY: self.set.identity_at(progress.position).values()}

    def _begins(self, progress: Progress) -> object:
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
            raise another_run(differences)
        if opened is not self.set:
            self.use(opened)
        return Progress(position=state.position, lengths=state.lengths, skips=state.skips).resized(self.options.seq_len)

    def at(self, position: int, state: RunState | None = None) -> Progress:
        progress = self.progress if state is None else self.read(state)
        check_border(progress, position)
        return progress.moved_to(position)


def windows_of(config: EngineConfig, position: int) -> Iterator[tuple[int, Window | None]]:
    """The windows that a run of one set needs from a position on, as an `Engine` is given them."""
    # Of these lanes the last is the first to need a window.
    for window in windows_from(config, position // config.order.unit, config.last - 1):
        if window is not None and config.epochs is not None and window.epoch >= config.epochs:
            return
        yield 0, window
