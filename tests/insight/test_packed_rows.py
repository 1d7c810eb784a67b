"""What is told of runs that are packed by rows is what they do.

ROWS_RUNS=200 in the environment makes more random runs than usual.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from packed_rows import PAD, RandomRun, row_files, rows_of
from unique_sets import unique_groups, write_set

from parquet_loader import Component, ParquetLoader, SourceExhaustedError
from parquet_loader.insight import check_order, describe, open_run, plan, show
from parquet_loader.insight.trace import Tracer
from parquet_loader.options import LoaderOptions
from parquet_loader.order.order import Order

RUNS = int(os.environ.get("ROWS_RUNS", "6"))
ORDER = dict(lanes=6, window=3, seed=7)


@pytest.mark.parametrize("seed", range(RUNS))
def test_which_find_and_origins_agree_with_brute_force(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng([seed, 21])
    run = RandomRun(rng, tmp_path)
    if "weights" not in run.options:
        run.options |= {"epochs": int(rng.integers(1, 4)), "tail": str(rng.choice(["pad", "drop"]))}
    names = sorted(run.sources)
    with ParquetLoader(run.source, **run.options) as loader:
        batches = []
        while len(batches) < 70 and not (run.options.get("epochs") and loader.epoch == run.options["epochs"]):
            batches.append(next(iter(loader)))
    tracer = Tracer(open_run(run.source, LoaderOptions(**run.options)))
    came: dict[tuple[str, int, int], Counter] = defaultdict(Counter)
    for step, batch in enumerate(batches):
        pieces = tracer.which(step).pieces
        if step % 8 == seed % 8:
            assert batch.origins() == pieces
        covered = np.zeros(batch.tokens.shape, np.int64)
        for piece in pieces:
            name = piece.source or "a"
            assert batch.sources is None or names[batch.sources[piece.row]] == name
            document = run.files[name][int(piece.file[5:8])][piece.row_group][piece.document]
            assert piece.start == piece.column if name in run.packed else True
            wanted = document[piece.start : piece.start + piece.tokens]
            assert batch.tokens[piece.row, piece.column : piece.column + piece.tokens].tolist() == wanted
            covered[piece.row, piece.column : piece.column + piece.tokens] += 1
            if name in run.packed:
                assert (piece.column, piece.tokens) == (0, len(document))
                came[name, int(piece.file[5:8]), piece.row_group, piece.document][step, piece.row] += 1
        assert covered.sum(axis=1).tolist() == [len(row) for row in rows_of(batch)]
        assert covered.max() <= 1  # a batch may be of empty rows alone
    for name in run.packed:
        places = [
            (f, g, d)
            for f, file in enumerate(run.files[name])
            for g, group in enumerate(file)
            for d in range(len(group))
        ]
        for file, group, row in [places[int(place)] for place in rng.integers(0, len(places), 6)]:
            found = tracer.find(
                f"part-{file:03d}.parquet",
                group,
                row,
                source=name if "weights" in run.options else None,
                steps=range(len(batches)),
            )
            assert found.tokens == len(run.files[name][file][group][row])
            assert Counter((place.step, place.row) for place in found.places) == came[name, file, group, row]
            assert all((place.column, place.start, place.tokens) == (0, 0, found.tokens) for place in found.places)


def test_some_columns_of_a_step_are_those_of_its_rows(tmp_path: Path) -> None:
    write_set(tmp_path, [[[[1, 2, 3, 4], [5, 6], [], [7, 8, 9, 10]]]])
    options = LoaderOptions(seq_len=4, lanes=4, packing="rows", pad_id=0, shuffle=False)
    found = Tracer(open_run(tmp_path, options)).which(0, columns=(1, 3)).pieces
    assert [(p.row, p.column, p.tokens, p.document, p.start) for p in found] == [
        (0, 1, 2, 0, 1),
        (1, 1, 1, 1, 1),
        (3, 1, 2, 3, 1),
    ]
    shown = show(open_run(tmp_path, options), 0)
    assert [row.padding for row in shown.rows] == [0, 2, 4, 0]
    assert [piece.tokens.tolist() for row in shown.rows for piece in row.pieces] == [
        [1, 2, 3, 4],
        [5, 6],
        [7, 8, 9, 10],
    ]


def test_full_rows_are_traced_without_a_byte_of_data(tmp_path: Path, monkeypatch) -> None:
    write_set(tmp_path, unique_groups([[[4] * 9] * 3]))
    run = open_run(tmp_path, LoaderOptions(seq_len=4, lanes=4, packing="rows"))
    monkeypatch.setattr(type(run.set.config.storage), "read", None)
    assert len(Tracer(run).which(3).pieces) == 4


@pytest.fixture
def both(tmp_path: Path) -> tuple[dict, dict]:
    """A mixture of a set that is packed by rows and one that is packed by tokens, and its options."""
    write_set(tmp_path / "a", unique_groups(row_files(np.random.default_rng(8), 9, shorter=True, groups=6, rows=60)))
    write_set(tmp_path / "b", unique_groups([[[30] * 20] * 8]))
    sources = {"a": Component(tmp_path / "a", packing="rows", pad_id=PAD), "b": tmp_path / "b"}
    return sources, dict(seq_len=8, overlap=1, weights={"a": 2, "b": 1}, budget_bytes=100 << 20, **ORDER)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_read_the_bytes_and_requests_that_are_planned(both, mixed: bool, ranks: int) -> None:
    sources, options = both
    if mixed:
        sources = {**sources, "a": Component(sources["a"].source, packing="rows", pad_id=PAD, max_epochs=4)}
    else:
        sources = sources["a"].source
        options = {**options, "packing": "rows", "pad_id": PAD, "weights": None, "epochs": 1}
    run = open_run(sources, LoaderOptions(**options))
    planned = plan(run, steps=10**6 if mixed else None, world_sizes=[ranks], exact=True)
    read = np.zeros(2, np.int64)
    for rank in range(ranks):
        with ParquetLoader(sources, rank=rank, world_size=ranks, **options) as loader:
            steps = 0
            with contextlib.suppress(SourceExhaustedError):
                for _ in loader:
                    steps += 1
            assert steps == planned.steps
            stats = loader.stats()
            read += [stats["bytes_read"], stats["reads"]]
    (found,) = planned.world_sizes
    assert [found.bytes_read, found.reads] == read.tolist()
    source = planned.sources[0]
    packed = run.sets["a"] if mixed else run.set
    rows = int(packed.config.index.rows.sum())
    assert (source.tokens, source.cuts.cut_by_lanes) == (rows * 8, 0.0)
    assert (source.cuts.rows, source.cuts.documents_in_a_row, source.shuffle.shown_before) == (rows, 1.0, 0.0)
    if mixed:
        assert [each.drawn for each in planned.sources] == [
            each["tokens"] for _, each in sorted(loader.stats()["sources"].items())
        ]
    else:
        assert source.epochs == 1.0


def test_the_order_is_proved_to_deliver_each_row_once(both) -> None:
    sources, options = both
    report = check_order(open_run(sources, LoaderOptions(**options)))
    assert report.ok, report.problems
    assert "each stored row whole and once" in " ".join(report.proved)
    for tail in ("pad", "drop"):
        alone = {**options, "packing": "rows", "pad_id": PAD, "weights": None, "epochs": 2, "tail": tail}
        run = open_run(sources["a"].source, LoaderOptions(**alone))
        report = check_order(run)
        assert report.ok, report.problems
        tokens = 2 * int(run.set.config.index.rows.sum()) * 8
        assert f"of the {tokens:,} tokens of epochs=2" in " ".join(report.proved)


def test_a_row_that_would_come_twice_is_found(both, monkeypatch) -> None:
    sources, options = both
    run = open_run(sources["a"].source, LoaderOptions(**{**options, "packing": "rows", "pad_id": PAD, "weights": None}))
    original = Order.document_order
    monkeypatch.setattr(Order, "document_order", lambda *given, **named: original(*given, **named) // 2)
    assert not check_order(run).ok


def test_a_state_is_described_in_epochs_of_rows(both) -> None:
    sources, options = both
    groups = int(open_run(sources, LoaderOptions(**options)).sets["a"].config.index.rows.sum())
    alone = {**options, "packing": "rows", "pad_id": PAD, "weights": None}
    with ParquetLoader(sources["a"].source, **alone) as loader:
        while loader.epoch < 2:
            next(iter(loader))
            told = describe(loader.checkpoint())
            assert told.epoch == loader.epoch
            assert told.sources[0].epochs == pytest.approx(told.step * 6 / groups)
        assert told.sources[0].identity["packing"] == "rows"
        assert told.sources[0].identity["rows"] == groups
