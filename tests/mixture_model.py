"""Mixtures, written down a second time: row by row, with all that closed forms spare the package carried along."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from reference import lane_texts, places_in_text
from unique_sets import RowGroup

from parquet_loader.errors import SourceExhaustedError
from parquet_loader.order.mixture import BLOCK, Weights, block_quotas
from parquet_loader.order.progress import MixturePlan, Stage


class Model:
    """Which source each lane's next row is of, what lanes have had, and the stages as they came.

    Attributes:
        plan: may be changed at any time for another future.
        seq_len: of the next rows.
        had: of each source what each lane has had.
        begins: the position of each row.
        reached: of each source, (C from which on windows had not been entered, tokens of a row from there on).
    """

    def __init__(self, plan: MixturePlan, seq_len: int, names: Sequence[str]) -> None:
        self.plan, self.seq_len = plan, seq_len
        self.row = self.position = 0
        self.had = {name: np.zeros(plan.lattice.lanes, np.int64) for name in names}
        self.stages: list[Stage] = []
        self.wanted: Weights | None = None  # the weights in force, if nothing had been exhausted
        self.reweighted: Weights | None = None
        self.seen = -1  # the token of the last block's begin
        self.begins: list[int] = []
        self.reached = {name: [(Fraction(0), seq_len)] for name in names}

    def resize(self, seq_len: int) -> None:
        """Rows of another length from here on."""
        self.seq_len, lanes = seq_len, self.plan.lattice.lanes
        for name, had in self.had.items():
            # A window is entered where any lane is beyond its (C + i) // lanes.
            reached = max(0, int((had * lanes - np.arange(lanes)).max()))
            kept = [change for change in self.reached[name] if change[0] < Fraction(reached, lanes)]
            self.reached[name] = [*kept, (Fraction(reached, lanes), seq_len)]

    def step(self) -> list[str]:
        """The sources of the lanes' next rows; the model is after them then."""
        lanes, block = self.plan.lattice.lanes, self.row // BLOCK
        if self.row % BLOCK == 0:
            token = self.position * lanes
            due = [weights for begin, weights in self.plan.schedule if self.seen < begin <= token]
            self.seen = token
            if due:
                former = [stage.by for stage in self.stages if stage.by != "exhausted"]
                if due[-1] != self.wanted or former[-1:] == ["reweight"]:
                    self.stages.append(Stage(block, due[-1]))
                self.wanted = due[-1]
            elif self.reweighted is not None:
                self.stages.append(Stage(block, self.reweighted, "reweight"))
                self.wanted = self.reweighted
            self.reweighted = None
            while short := [name for name, quota in self.quotas if self._lacks(name, quota)]:
                left = tuple(each for each in self.stages[-1].weights if each[0] not in short)
                if not left or not self.plan.redistribute:
                    raise SourceExhaustedError
                self.stages.append(Stage(block, left, "exhausted"))
            names = [name for name, _ in self.quotas]
            table = self.plan.lattice.table(block, [quota for _, quota in self.quotas], 0, lanes)
            self._names = [[names[place] for place in row] for row in table.sources.tolist()]
        found = self._names[self.row % BLOCK]
        for lane, name in enumerate(found):
            self.had[name][lane] += self.seq_len
        self.begins.append(self.position)
        self.row += 1
        self.position += self.seq_len
        return found

    @property
    def quotas(self) -> list[tuple[str, int]]:
        """Of the next row's block."""
        stage = self.stages[-1]
        quotas = block_quotas([weight for _, weight in stage.weights], self.row // BLOCK - stage.block)
        return [(name, quota) for (name, _), quota in zip(stage.weights, quotas, strict=True) if quota]

    def _lacks(self, name: str, quota: int) -> bool:
        most = int(self.had[name].max()) + quota * self.seq_len + self.plan.overlap
        return most > self.plan.limits.get(name, most)


class Texts:
    """What the lanes of a mixture get, of sets whose row groups are known.

    Args:
        groups: of each source.
        order: seed, lanes and window.
        eos_id: as the loader's.
    """

    def __init__(self, groups: Mapping[str, Sequence[RowGroup]], order: Mapping[str, int], eos_id: int | None) -> None:
        self._groups, self._order, self._eos_id = groups, order, eos_id
        self._places: dict[tuple[str, int, tuple[object, ...]], list[int]] = {}
        self.text = functools.cache(self._text)

    def _text(self, name: str, epochs: int) -> tuple[list[list[int]], list[tuple[int, int, int, int]]]:
        windows: list[tuple[int, int, int, int]] = []
        texts = lane_texts(
            self._groups[name], shuffle=True, epochs=epochs, eos_id=self._eos_id, windows=windows, **self._order
        )
        return texts, windows

    def row(self, model: Model, name: str, lane: int, overlap: int) -> list[int]:
        """The lane's last row of the model, which was of this source."""
        end = int(model.had[name][lane])
        epochs, changes = 4, tuple(model.reached[name])
        while self.text(name, epochs)[1][-1][3] // self._order["lanes"] <= end:
            epochs *= 4
        texts, windows = self.text(name, epochs)
        key = name, epochs, changes
        if key not in self._places:
            lanes, seed = self._order["lanes"], self._order["seed"]
            self._places[key] = places_in_text(windows, lanes=lanes, seed=seed, shuffle=True, lengths=changes)
        places = self._places[key][end - model.seq_len : end]
        extra = [places[-1] + 1] if overlap else []
        return [texts[lane][place] for place in places + extra]
