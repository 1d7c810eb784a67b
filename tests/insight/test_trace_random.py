"""`which` and `find` agree with brute force on random runs: tokens, all unique, are looked up in what a loader gave.

A run is of one set or a mixture, in stretches: each resumes the one before with rows of another length, may be
reweighted, and skips. TRACE_RUNS=300 in the environment makes more of them than usual.
"""

from __future__ import annotations

import copy
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unique_sets import RowGroup, random_files, token_count, unique_groups, write_set

from parquet_loader import Batch, Component, ParquetLoader, SourceExhaustedError
from parquet_loader.insight import open_run
from parquet_loader.insight.trace import Piece, Place, Tracer
from parquet_loader.options import LoaderOptions

RUNS = int(os.environ.get("TRACE_RUNS", "20"))
DOCUMENTS = 10  # of each run that are found

Key = tuple[str | None, str, int, int]  # source, file, row group, document
Cell = tuple[int, int, int, int]  # step, row, column, place in the document


@dataclass(kw_only=True)
class Source:
    """A set as it was written.

    Attributes:
        name: in the mixture.
        documents: by file, row group and number, EOS included.
    """

    name: str | None
    path: Path
    eos_id: int | None
    documents: dict[tuple[str, int, int], list[int]] = field(default_factory=dict)

    @classmethod
    def random(
        cls, rng: np.random.Generator, path: Path, name: str | None, first_id: int, eos_id: int | None
    ) -> Source:
        """One of a few row groups, with empty documents and row groups; its ids begin at `first_id`."""
        lengths = random_files(rng, files=int(rng.integers(2, 4)), documents=int(rng.integers(3, 25)), length=30)
        lengths[0][0] = [*lengths[0][0], 9, 0, 14]
        groups = [[shifted(group, first_id) for group in file] for file in unique_groups(lengths)]
        options: dict[str, Any] = [{}, {"use_dictionary": False}, {"compression": "zstd"}][int(rng.integers(3))]
        source = cls(name=name, path=write_set(path, groups, **options), eos_id=eos_id)
        for number, file in enumerate(groups):
            for row_group, documents in enumerate(file):
                for document, tokens in enumerate(documents):
                    key = f"part-{number:03d}.parquet", row_group, document
                    source.documents[key] = [*tokens, *([] if eos_id is None else [eos_id])]
        assert token_count(groups)
        return source


def shifted(group: RowGroup, first_id: int) -> RowGroup:
    return [[token + first_id for token in document] for document in group]


@dataclass(kw_only=True)
class Given:
    """What a loader gave at a step: of each row so many columns are tokens, of a source."""

    batch: Batch
    lengths: list[int]
    sources: list[str | None]
    skipped: bool


class RandomRun:
    """A run that was run.

    Attributes:
        sources: by name.
        source, options: of the last loader.
        state: where the run is.
        given: what was given or skipped by step, before it and after it.
    """

    def __init__(self, rng: np.random.Generator, folder: Path) -> None:
        mixed = bool(rng.random() < 0.55)
        names: list[str | None] = [*"abc"[: int(rng.integers(2, 4))]] if mixed else [None]
        eos_id = 99_999 if rng.random() < 0.5 else None
        self.sources = {
            name: Source.random(rng, folder / (name or "set"), name, first_id=place * 20_000, eos_id=eos_id)
            for place, name in enumerate(names)
        }
        self.lanes, overlap = int(rng.integers(1, 8)), int(rng.random() < 0.5)
        self.options: dict[str, Any] = {
            "lanes": self.lanes,
            "overlap": overlap,
            "seed": int(rng.integers(100)),
            "shuffle": bool(rng.random() < 0.85),
            "window": int(rng.integers(1, 5)),
            "eos_id": eos_id,
            "seq_len": int(rng.integers(1, 40)),
        }
        self.source: Any = (
            self.sources[None].path if not mixed else {name: each.path for name, each in self.sources.items()}
        )
        if mixed:
            if rng.random() < 0.4:
                self.source["a"] = Component(self.source["a"], max_epochs=int(rng.integers(2, 12)))
                self.options["exhausted"] = "redistribute"
            self.options["weights"] = self._weights(rng)
            if rng.random() < 0.5:
                later = int(rng.integers(1, 300)) * self.lanes * self.options["seq_len"]
                self.options["weights"] = [(0, self.options["weights"]), (later, self._weights(rng))]
        elif rng.random() < 0.6:
            self.options |= {"epochs": int(rng.integers(1, 5)), "tail": str(rng.choice(["pad", "drop"]))}
        self.given: list[Given] = []
        self.state: dict[str, Any] | None = None
        if mixed and rng.random() < 0.2:
            self._go_alone(rng)
        for stretch in range(int(rng.integers(1, 5))):
            self._go(rng, first=not stretch and self.state is None)
        with self._loader() as loader:  # what is to come
            self._take(loader, int(rng.integers(1, 70 if mixed else 20)))

    def _weights(self, rng: np.random.Generator) -> dict[str, int]:
        weights = {name: int(rng.integers(0, 5)) for name in self.sources if name}
        return {**weights, "a": weights["a"] + 1}

    def _loader(self, **changes: Any) -> ParquetLoader:
        loader = ParquetLoader(self.source, **{**self.options, **changes})
        if self.state is not None:
            try:
                loader.load_state_dict(self.state)
            except SourceExhaustedError:  # rows of another length would use up what this block's source has left
                assert changes
                return self._loader()
        self.options |= changes
        return loader

    def _go_alone(self, rng: np.random.Generator) -> None:
        """Begin with one set, which goes on as a source."""
        alone = {name: value for name, value in self.options.items() if name not in ("weights", "exhausted")}
        with ParquetLoader(self.sources["a"].path, **alone) as loader:
            self._take(loader, int(rng.integers(1, 90)))
            self.state = loader.state_dict()
        self.given = [replace(given, sources=["a"] * self.lanes) for given in self.given]
        now = self.state["position"] * self.lanes
        self.source["a"] = self.sources["a"].path  # without an end, which may have been passed
        self.options["weights"] = [(0, {"a": 1}), (now, self._weights(rng))]

    def _go(self, rng: np.random.Generator, *, first: bool) -> None:
        mixed = "weights" in self.options
        changes = {"seq_len": int(rng.integers(1, 40))} if not first and rng.random() < 0.7 else {}
        with self._loader(**changes) as loader:
            if mixed and loader.state_dict()["position"] and rng.random() < 0.4:
                loader.reweight(self._weights(rng))
            for _ in range(int(rng.integers(1, 3))):
                self._take(loader, int(rng.integers(0, 90 if mixed else 12)))
                if rng.random() < 0.4:
                    count = int(rng.integers(1, 70 if mixed else 6))
                    before = len(self.given)
                    with copy.copy(loader) as ahead:  # gets what is skipped
                        self._take(ahead, count, skipped=True)
                    loader.skip(len(self.given) - before)
            self.state = loader.state_dict()

    def _take(self, loader: ParquetLoader, count: int, *, skipped: bool = False) -> None:
        for batch in batches(loader, count):
            rows = len(batch.tokens)
            lengths = [batch.tokens.shape[1]] * rows if batch.lengths is None else batch.lengths.tolist()
            names = [None] * rows if batch.sources is None else [loader.sources[place] for place in batch.sources]
            self.given.append(Given(batch=batch, lengths=lengths, sources=names, skipped=skipped))

    def tracer(self, state: dict[str, Any] | None) -> Tracer:
        return Tracer(open_run(self.source, LoaderOptions(**self.options), state))

    def check(self, step: int, pieces: list[Piece]) -> None:
        """The pieces of a step are where its tokens come from: all of them, and none twice."""
        given = self.given[step]
        covered = Counter[tuple[int, int]]()
        for piece in pieces:
            source = self.sources[piece.source]
            document = source.documents[piece.file, piece.row_group, piece.document]
            wanted = document[piece.start : piece.start + piece.tokens]
            assert given.batch.tokens[piece.row, piece.column : piece.column + piece.tokens].tolist() == wanted, piece
            assert given.sources[piece.row] == piece.source
            covered.update((piece.row, piece.column + place) for place in range(piece.tokens))
        assert covered == Counter((row, column) for row, length in enumerate(given.lengths) for column in range(length))


def batches(loader: ParquetLoader, count: int) -> Iterator[Batch]:
    """So many batches, of whatever epochs; fewer at the run's end."""
    while count > 0:
        taken = 0
        try:
            for batch in islice(loader, count):
                taken += 1
                yield batch
        except SourceExhaustedError:
            return
        if not taken:
            return
        count -= taken


@pytest.mark.parametrize("seed", range(RUNS))
def test_which_and_find_agree_with_brute_force(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    run = RandomRun(rng, tmp_path)
    tracer = run.tracer(run.state)
    given: dict[Key, Counter[Cell]] = defaultdict(Counter)
    for step, each in enumerate(run.given):
        found = tracer.which(step)
        assert (found.step, found.skipped) == (step, each.skipped)
        run.check(step, found.pieces)
        if step % 16 == seed % 16:
            alone = each.batch.sources is None  # then it is of a source by now, perhaps
            assert each.batch.origins() == [replace(piece, source=None) if alone else piece for piece in found.pieces]
        for piece in found.pieces:
            key = piece.source, piece.file, piece.row_group, piece.document
            given[key].update(cells(step, piece.row, piece))
    # The other way round.
    keys = [(name, *key) for name, source in run.sources.items() for key in source.documents]
    for name, file, row_group, document in rng.permutation(np.array(keys, object))[:DOCUMENTS]:
        key = name, file, row_group, document
        found = tracer.find(file, row_group, document, source=name, steps=range(len(run.given)))
        assert found.tokens == len(run.sources[name].documents[key[1:]])
        assert sum((Counter(cells(place.step, place.row, place)) for place in found.places), Counter()) == given[key]
        assert all(place.skipped == run.given[place.step].skipped for place in found.places)


def cells(step: int, row: int, stretch: Piece | Place) -> Iterator[Cell]:
    """Each token of a stretch: its step, row and column, and which of the document it is."""
    return ((step, row, stretch.column + at, stretch.start + at) for at in range(stretch.tokens))
