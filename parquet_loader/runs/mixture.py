"""A run of a mixture of sets, without end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoint import ONLY, RunState
from ..engine.config import Counters, EngineConfig
from ..engine.fits import check_mixture_budget
from ..engine.growth import OutgrownError, expected
from ..engine.mixer import Mixer
from ..engine.prefetch import StarvedError
from ..errors import (
    CheckpointDamagedError,
    CheckpointMismatchError,
    ConfigError,
    ParquetLoaderError,
    SourceExhaustedError,
    of_source,
)
from ..index.index import DatasetIndex
from ..options import LoaderOptions
from ..order.mixture import BLOCK, Lattice, Weights, shown_weights
from ..order.progress import MixturePlan, MixtureProgress, Progress, Stage, traced
from ..sets import WITHOUT_FOLLOW, Component, OpenSet, open_set
from ..storage.opening import Source
from .base import Rows, Run, another_run, check_border
from .weights import Schedule, schedule_of, weights_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MixtureRun"]


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

    def _schedule(self, weights: Any) -> Schedule:
        if isinstance(weights, str) and weights == "tokens":
            growing = [name for name in self.names if self._open(name).config.growth is not None]
            if growing:
                raise ConfigError(
                    f"weights='tokens' are in proportion to what each source holds, and nobody knows yet what "
                    f"{growing[0]!r} will hold, which is still being written: give shares"
                )
            weights = {name: self._open(name).config.order.total_tokens for name in self.names}
        schedule = schedule_of(weights)
        for name, _ in schedule[-1][1]:
            if name not in self._sources:
                self._open(name)  # says so
        return schedule

    def _plan_for(self, schedule: Schedule) -> None:
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
        return {name: self._sets[name] for name in sorted(self._sets) if isinstance(self._sets[name], OpenSet)}  # type: ignore[misc]

    def config_of(self, name: str) -> EngineConfig:
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
        """Without sources of an earlier stage that are gone: whoever takes rows there is told."""
        found = {}
        for name in self.needed(self.progress):
            if not isinstance(self._sets.get(name), ParquetLoaderError):
                found[name] = self._open(name).config
        return found

    def check_budget(self, configs: Mapping[str, EngineConfig] | None = None, *, given: bool = True) -> None:
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
            if self._stored:  # they may have grown since their budget was checked
                self.check_budget()
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
        return self._mixer.ahead_tokens(self.progress) if self._mixer is not None else {}

    def batches_of(self, ahead_tokens: Mapping[str, int]) -> int:
        """As many, about, as the source allows that has least for its share."""
        stage = self.progress.stage_of(self.progress.block)
        if stage is None:
            return 0
        whole = sum(weight for _, weight in stage.weights)
        lasts = min(ahead_tokens.get(name, 0) * whole // weight for name, weight in stage.weights)
        return lasts // (self.options.lanes_of_rank * self.options.seq_len)

    def stop(self, *, closed: bool = False) -> None:
        super().stop(closed=closed)
        self._mixer = None

    def copied(self, counters: Counters) -> Self:
        copied = super().copied(counters)
        copied._mixer = None
        return copied

    def history(self) -> dict[str, list[dict[str, Any]]]:
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
        return self.progress, dict(self._sets), dict(self._former), self.plan, self._all_tokens

    def restore(self, saved: tuple[Any, ...]) -> None:
        self.progress, self._sets, self._former, self.plan, self._all_tokens = saved
        self._note_sets()
        self._texts = None

    def advanced(self, batches: int) -> Progress:
        return self.progress.advanced(batches, self.plan)

    def skip(self, batches: int) -> None:
        skipped = self.progress.skipped(batches, self.plan)
        self.stop()
        self.progress = skipped

    def reweight(self, shares: Mapping[str, float]) -> None:
        """Draw by other weights from the next block on."""
        if not self.progress.row:
            raise ConfigError("the run has not begun: give these weights as the first stage of the schedule instead")
        weights = weights_of(shares)
        opened = set(self.sets)
        for name, _ in weights:
            opened_set, former = self._open(name), self._former.get(name)
            differences = [] if former is None else opened_set.differences(former, name)
            if differences:  # it was drawn from before this loader was made, which had no need to look at it then
                raise another_run(differences, "the run has drawn from another source")
        if set(self.sets) != opened:
            self._plan_for(self.plan.schedule)
        self.progress = self.progress.reweighted(weights, self.plan)
        self._reweighted = True
        if self._mixer is not None and not {name for name, _ in weights} <= self._mixer.names:
            self.stop()

    # ── states ───────────────────────────────────────────────────────────────────────────────────────────────────

    def identities(self, progress: MixtureProgress) -> Mapping[str, Mapping[str, Any]]:
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
        return not progress.stages or progress.stages[-1].block * BLOCK < progress.row

    def read(self, state: RunState) -> MixtureProgress:
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
            raise another_run(differences)

    def at(self, position: int, state: RunState | None = None) -> MixtureProgress:
        progress = self.progress if state is None else self.read(state)
        check_border(progress, position)
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
            raise another_run(each.differences(found, near[0]))
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
