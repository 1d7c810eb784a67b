"""What a plan says, and what runs then do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from idle import wait_until_idle
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import Component, ConfigError, ParquetLoader, SourceExhaustedError
from parquet_loader.engine.prefetch import Prefetcher
from parquet_loader.insight import open_run, plan
from parquet_loader.insight.ranks import dividing_world_sizes
from parquet_loader.options import LoaderOptions
from parquet_loader.storage.base import FileInfo
from parquet_loader.storage.local import LocalStorage


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small sets of uneven row groups; of the last one neighbours are far enough apart to be several reads."""
    folder = tmp_path_factory.mktemp("sets")
    made = {}
    for number, name in enumerate("abc"):
        files = random_files(np.random.default_rng(number), files=3 + number, groups=6)
        made[name] = write_set(folder / name, unique_groups(files))
    return made


def random_options(rng: np.random.Generator, **more: Any) -> dict[str, Any]:
    return {
        "seq_len": int(rng.integers(1, 40)),
        "lanes": int(rng.integers(1, 13)),
        "window": int(rng.integers(1, 9)),
        "overlap": int(rng.integers(0, 2)),
        "eos_id": [None, 0][rng.integers(0, 2)],
        "seed": int(rng.integers(0, 100)),
        "threads": int(rng.integers(1, 3)),
        "uneven": True,
        **more,
    }


def random_mixture(rng: np.random.Generator, sets: dict[str, Path], **more: Any) -> tuple[dict[str, Any], dict]:
    """Sources, all or some of which may end, and options with a schedule."""
    names = list(sets)[: int(rng.integers(2, 4))]
    sources = {name: Component(sets[name], max_epochs=[None, 1, 2][rng.integers(0, 3)]) for name in names}
    sources["a"] = Component(sets["a"], max_epochs=int(rng.integers(1, 3)))
    stages, token = [], 0
    for _ in range(rng.integers(1, 4)):
        stages.append((token, {name: int(rng.integers(1, 9)) for name in names}))
        token += int(rng.integers(1, 6000))
    lengths = {"seq_len": int(rng.integers(4, 12)), "lanes": int(rng.integers(1, 5))}  # a block is 64 rows a lane
    return sources, random_options(rng, weights=stages, **lengths, **more)


def run_of(source: Any, options: dict[str, Any], state: dict[str, Any] | None = None) -> Any:
    return open_run(source, LoaderOptions(**options), state)


def take(loader: ParquetLoader, steps: int) -> str | None:
    """Take so many batches, or those that are left of an epoch; gives the error that comes before."""
    try:
        for _ in zip(range(steps), loader, strict=False):
            pass
    except SourceExhaustedError as error:
        return str(error)
    return None


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(12))
def test_a_run_of_one_set_takes_the_steps_that_its_plan_has(sets: dict[str, Path], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tail = ["pad", "drop"][seed % 2]
    options = random_options(rng, epochs=int(rng.integers(1, 4)), tail=tail)
    planned = plan(run_of(sets["b"], options), world_sizes=[])
    with ParquetLoader(sets["b"], **options) as loader:
        for _ in range(options["epochs"]):
            for _ in loader:
                pass
        assert loader.stats()["batches"] == planned.steps == planned.end.step
        state = loader.state_dict()
    over = plan(run_of(sets["b"], options, state), world_sizes=[1])
    assert (over.steps, over.world_sizes[0].first_batch.bytes) == (0, 0)
    asked = plan(run_of(sets["b"], options), steps=planned.steps + 1, world_sizes=[])
    assert asked.steps == planned.steps
    assert asked.over == f"the run ends after epochs={options['epochs']}"


def test_tokens_are_counted_from_the_beginning_of_the_run(sets: dict[str, Path]) -> None:
    options = dict(seq_len=10, lanes=4, window=4)
    with ParquetLoader(sets["a"], **options) as loader:
        for batch, _ in zip(loader, range(7), strict=False):
            state = batch.state
    planned = plan(run_of(sets["a"], options, state), tokens=1001, world_sizes=[])
    assert (planned.begin.step, planned.steps, planned.end.token) == (7, 19, 1040)
    assert plan(run_of(sets["a"], options, state), steps=20, world_sizes=[]).steps == 13
    assert plan(run_of(sets["a"], options, state), tokens=100, world_sizes=[]).steps == 0


def test_an_epoch_is_planned_where_nothing_is_asked_for(sets: dict[str, Path]) -> None:
    options = dict(seq_len=10, lanes=4, window=4)
    with ParquetLoader(sets["a"], **options) as loader:
        batches = sum(1 for _ in loader)
        planned = plan(run_of(sets["a"], options), world_sizes=[])
        assert planned.steps == batches == len(loader)
    (source,) = planned.sources
    assert source.epochs >= 1
    assert source.repeats is None or source.repeats == planned.end


@pytest.mark.parametrize("seed", range(14))
def test_a_mixture_comes_to_its_stages_and_its_end_at_the_steps_that_are_planned(
    sets: dict[str, Path], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    exhausted = ["raise", "redistribute"][seed % 2]
    sources, options = random_mixture(rng, sets, exhausted=exhausted)
    begin = int(rng.integers(0, 100))
    with ParquetLoader(sources, **options) as loader:
        take(loader, begin)
        planned = plan(run_of(sources, options, loader.state_dict()), steps=1500, world_sizes=[])
        error = take(loader, 1500 - planned.begin.step)
        stats = loader.stats()
        assert stats["batches"] == planned.end.step
        assert planned.over == error
        assert {source.name: source.drawn for source in planned.sources} == {
            name: told["tokens"] for name, told in stats["sources"].items()
        }
        assert [source.epochs for source in planned.sources] == [told["epochs"] for told in stats["sources"].values()]
        told = {stage["step"]: stage["by"] for stage in loader.history["stages"] if stage["step"] < planned.end.step}
        assert {stage.begin.step: stage.by for stage in planned.stages} == told
        ended = {source.name: source.exhausted for source in planned.sources if source.exhausted}
    if error is not None:
        assert planned.end in ended.values()
    for name, moment in ended.items():
        left = [stage for stage in planned.stages if stage.begin.step >= moment.step]
        assert all(name not in stage.target for stage in left)


@pytest.mark.parametrize("seed", range(6))
def test_a_source_repeats_when_it_is_said_to(sets: dict[str, Path], seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixture, options = random_mixture(rng, sets)
    sources = {name: each.source for name, each in mixture.items()}
    run = run_of(sources, options)
    planned = plan(run, tokens=12 * sum(each.config.order.total for each in run.sets.values()), world_sizes=[])
    repeating = [source for source in planned.sources if source.repeats is not None]
    assert repeating
    for source in repeating:
        before = plan(run, steps=source.repeats.step - 1, world_sizes=[])
        after = plan(run, steps=source.repeats.step, world_sizes=[])
        epochs = [next(each.epochs for each in found.sources if each.name == source.name) for found in (before, after)]
        assert epochs[0] < 1 <= epochs[1]


def test_what_cannot_be_planned_is_said(sets: dict[str, Path]) -> None:
    run = run_of(sets["a"], dict(seq_len=10, lanes=4))
    with pytest.raises(ConfigError, match="tokens=5 or steps=6, not both"):
        plan(run, tokens=5, steps=6)
    with pytest.raises(ConfigError, match="world_size must be an integer at least 1, not 0"):
        plan(run, world_sizes=[0])


def test_a_stage_that_never_comes_is_told_of(sets: dict[str, Path]) -> None:
    weights = [(0, {"a": 1}), (10**9, {"b": 1})]
    run = run_of({"a": sets["a"], "b": sets["b"]}, dict(seq_len=10, lanes=4, weights=weights))
    planned = plan(run, tokens=10_000, world_sizes=[])
    assert any("scheduled for token 1,000,000,000 begins after the end" in note for note in planned.notes)


# ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each request that reaches the storage, how many bytes it asks for."""
    found: list[int] = []
    read = LocalStorage.read

    def noted(self: LocalStorage, file: FileInfo, start: int, length: int, *more: Any) -> Any:
        found.append(length)
        return read(self, file, start, length, *more)

    monkeypatch.setattr(LocalStorage, "read", noted)
    return found


def state_after(source: Any, options: dict[str, Any], steps: int) -> dict[str, Any] | None:
    with ParquetLoader(source, **options) as loader:
        batch = None
        try:
            for _, batch in zip(range(steps), loader, strict=False):  # noqa: B007
                pass
        except SourceExhaustedError:
            pass
        return None if batch is None else batch.state


def check_reads(
    requests: list[int], source: Any, options: dict[str, Any], state: dict[str, Any] | None, world_size: int
) -> None:
    """That the ranks' storages are asked for what is planned, in runs to their end."""
    planned = plan(run_of(source, options, state), steps=10**6, world_sizes=[world_size], exact=True)
    (on_ranks,) = planned.world_sizes
    counted = []
    for rank in range(world_size):
        with ParquetLoader(source, rank=rank, world_size=world_size, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            requests.clear()  # those for footers
            for _ in range(options.get("epochs") or 1):
                take(loader, 10**6)
            stats = loader.stats()
        counted.append((sum(requests), len(requests)))
        assert counted[-1] == (stats["bytes_read"], stats["reads"])
    assert (on_ranks.bytes_read, on_ranks.reads) == tuple(map(sum, zip(*counted, strict=True)))
    assert (on_ranks.rank_bytes, on_ranks.rank_reads) == tuple(map(max, zip(*counted, strict=True)))
    assert on_ranks.exact


@pytest.mark.parametrize("seed", range(10))
def test_the_ranks_of_one_set_read_the_bytes_and_requests_that_are_planned(
    requests: list[int], sets: dict[str, Path], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    options = random_options(rng, epochs=int(rng.integers(1, 3)))
    source = sets["abc"[seed % 3]]
    state = state_after(source, options, int(rng.integers(0, 12))) if seed % 2 else None
    if state is not None and seed % 4 == 1:
        options["seq_len"] = int(rng.integers(1, 40))
    check_reads(requests, source, options, state, int(rng.integers(1, options["lanes"] + 1)))


@pytest.mark.parametrize("seed", range(10))
def test_the_ranks_of_a_mixture_read_the_bytes_and_requests_that_are_planned(
    requests: list[int], sets: dict[str, Path], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sources, options = random_mixture(rng, sets)
    state = state_after(sources, options, int(rng.integers(0, 100))) if seed % 2 else None
    if state is not None and seed % 4 == 1:
        options["seq_len"] = max(1, options["seq_len"] - 1)
    check_reads(requests, sources, options, state, int(rng.integers(1, options["lanes"] + 1)))


@pytest.mark.parametrize("kind", ["a set", "a mixture", "a mixture of many lanes"])
@pytest.mark.parametrize("seed", [*range(5), 1042])  # the last leaves a source out in a block's last rows
def test_some_steps_need_the_windows_that_are_planned_and_no_more(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, seed: int, kind: str
) -> None:
    rng = np.random.default_rng(seed)
    source: Any = sets["c"]
    options = random_options(rng)
    if kind != "a set":
        source, options = random_mixture(rng, sets, exhausted="redistribute")
        source = {name: each.source for name, each in source.items()}
    if kind == "a mixture of many lanes":  # which stand rows apart within a block, so that few of them need a window
        options |= {"lanes": int(rng.integers(16, 25)), "seq_len": int(rng.integers(4, 12)), "window": 1}
    begin, steps = (int(rng.integers(0, high)) for high in (100, 150))
    world_size = int(rng.integers(1, min(6, options["lanes"] + 1)))
    state = state_after(source, options, begin)
    if seed % 2:
        options["seq_len"] = int(rng.integers(1, 40))
    planned = plan(run_of(source, options, state), steps=begin + steps, world_sizes=[world_size], exact=True)
    taken: list[Any] = []
    take = Prefetcher.take

    def noted(self: Prefetcher, stream: int = 0) -> Any:
        results = take(self, stream)
        taken.append(results[0][0].plan)
        return results

    monkeypatch.setattr(Prefetcher, "take", noted)
    for rank in range(world_size):
        with ParquetLoader(source, rank=rank, world_size=world_size, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = endless(loader)
            for _ in range(planned.steps):
                next(batches)
    reads = [read for window in taken for task in window.tasks for read in task.reads]
    (on_ranks,) = planned.world_sizes
    assert (on_ranks.bytes_read, on_ranks.reads) == (sum(read.length for read in reads), len(reads))


@pytest.mark.parametrize("source", ["a set", "a mixture"])
def test_no_steps_need_nothing(sets: dict[str, Path], source: str) -> None:
    mixture = {"a": sets["a"], "b": sets["b"]}
    options = dict(seq_len=4, lanes=8, **({"weights": {"a": 2, "b": 1}} if source == "a mixture" else {}))
    of: Any = mixture if source == "a mixture" else sets["a"]
    planned = plan(run_of(of, options, state_after(of, options, 10)), steps=10, world_sizes=[1, 3, 8])
    assert planned.steps == 0
    assert [each.bytes_read for each in planned.world_sizes] == [0, 0, 0]
    assert all(each.first_batch.bytes for each in planned.world_sizes)


def endless(loader: ParquetLoader) -> Iterator[Any]:
    while True:
        yield from loader


def test_the_first_batch_needs_what_the_first_windows_hold(sets: dict[str, Path]) -> None:
    options = dict(seq_len=4, lanes=4, window=3, epochs=1, threads=1)
    state = state_after(sets["c"], options, 9)
    run = run_of(sets["c"], options, state)
    first = plan(run, world_sizes=[1]).world_sizes[0].first_batch
    one_step = plan(run, steps=10, world_sizes=[1]).world_sizes[0]
    assert (first.bytes, first.reads) == (one_step.bytes_read, one_step.reads)
    assert first.tokens > 16


def test_a_long_run_is_scaled_from_some_windows(sets: dict[str, Path]) -> None:
    run = run_of(sets["c"], dict(seq_len=8, lanes=4, window=1))
    scaled = plan(run, tokens=200_000, world_sizes=[4]).world_sizes[0]
    exact = plan(run, tokens=200_000, world_sizes=[4], exact=True).world_sizes[0]
    assert exact.exact
    assert not scaled.exact
    assert scaled.bytes_read == pytest.approx(exact.bytes_read, rel=0.1)
    assert scaled.reads == pytest.approx(exact.reads, rel=0.1)
    assert scaled.amplification == pytest.approx(exact.amplification, rel=0.1)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


def write_tokens(path: Path, tokens: int, group_tokens: int, document_tokens: int = 300) -> None:
    rng = np.random.default_rng(tokens)
    schema = pa.schema([pa.field("tokens", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, schema, use_dictionary=False, compression="lz4") as writer:
        for first in range(0, tokens, group_tokens):
            count = min(group_tokens, tokens - first)
            borders = np.cumsum(rng.geometric(1 / document_tokens, 10 + 2 * count // document_tokens))
            offsets = np.array([0, *borders[borders < count], count], np.int32)
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 50_000, count), pa.int32()))
            writer.write_table(pa.table([lists], schema=schema))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("large")
    shapes = {"even": (4_000_000, 100_000), "huge": (4_000_000, 2_000_000), "tiny": (1_500_000, 5_000)}
    for name, (tokens, group_tokens) in shapes.items():
        (folder / name).mkdir()
        write_tokens(folder / name / "a.parquet", tokens, group_tokens)
    return {name: folder / name for name in shapes}


MEMORY = {
    "even": ("even", dict(lanes=32, window=8)),
    "one rank of four": ("even", dict(lanes=32, window=16, world_size=4, rank=2)),
    "a small budget": ("even", dict(lanes=32, window=8, budget_bytes=16 << 20)),
    "the least budget": ("even", dict(lanes=32, window=8, budget_bytes=10_500_000)),
    "the least budget of a mixture": (
        "mixture",
        dict(lanes=32, window=8, weights={"even": 0.6, "huge": 0.3, "tiny": 0.1}, budget_bytes=None),
    ),
    "two requests and threads": ("even", dict(lanes=32, window=8, threads=2, requests=2)),
    "one huge row group a window": ("huge", dict(lanes=32, window=1)),
    "tiny row groups": ("tiny", dict(lanes=32, window=100)),
    "tiny windows": ("tiny", dict(lanes=8, window=2)),
    "processes": ("even", dict(lanes=32, window=8, processes=1)),
    "a mixture": ("mixture", dict(lanes=32, window=8, weights={"even": 0.6, "huge": 0.3, "tiny": 0.1})),
}


@pytest.mark.parametrize("case", MEMORY)
def test_a_rank_holds_at_most_what_is_planned_within_a_quarter(large: dict[str, Path], case: str) -> None:
    name, options = MEMORY[case]
    source: Any = large.get(name)
    if source is None:
        source = {
            "even": large["even"],
            "huge": Component(large["huge"], window=1),
            "tiny": Component(large["tiny"], window=100),
        }
    options = {"seq_len": 512, "threads": 1, **options}  # of several, a busy machine may run fewer at once
    whole = {key: value for key, value in options.items() if key != "rank"}
    if "budget_bytes" in whole and whole["budget_bytes"] is None:
        del whole["budget_bytes"]
        options["budget_bytes"] = whole["budget_bytes"] = (
            plan(run_of(source, whole), world_sizes=[1]).world_sizes[0].least_bytes
        )
    planned = plan(run_of(source, whole), world_sizes=[options.get("world_size", 1)]).world_sizes[0]
    with ParquetLoader(source, **options) as loader:
        for _ in loader:
            wait_until_idle(loader)  # training is slower than loading
            if loader.stats()["position"] * options["lanes"] > 3_000_000:
                break
        peak = loader.stats()["peak_bytes"]
    assert planned.peak_bytes == pytest.approx(peak, rel=0.25)


def test_a_budget_that_is_too_small_has_no_peak_but_what_would_do(large: dict[str, Path]) -> None:
    options = dict(seq_len=512, lanes=32, window=8, budget_bytes=1 << 20)
    with pytest.raises(ConfigError, match="too small") as caught:
        ParquetLoader(large["even"], **options)
    planned = plan(run_of(large["even"], options), world_sizes=[1]).world_sizes[0]
    assert planned.peak_bytes is None
    assert f"{planned.least_bytes:,}" in str(caught.value)
    assert planned.refused == str(caught.value)


# ── ranks, documents, shuffling ──────────────────────────────────────────────────────────────────────────────────


def test_world_sizes_that_divide_are_listed_and_others_refused_as_the_loader_refuses_them(
    sets: dict[str, Path],
) -> None:
    options = dict(seq_len=8, lanes=12)
    planned = plan(run_of(sets["a"], options), world_sizes=[1, 5, 13])
    assert planned.dividing == (1, 2, 3, 4, 6, 12)
    one, five, many = planned.world_sizes
    assert (one.divides, one.refused, one.rows_least, one.rows_most) == (True, None, 12, 12)
    assert (five.divides, five.rows_least, five.rows_most) == (False, 2, 3)
    for found in (five, many):
        with pytest.raises(ConfigError) as caught:
            ParquetLoader(sets["a"], world_size=found.world_size, **options)
        assert found.refused == str(caught.value)
    assert dividing_world_sizes(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    some = plan(run_of(sets["a"], dict(seq_len=8, lanes=9))).world_sizes
    assert [each.world_size for each in some] == [1, 3, 9]
    allowed = plan(run_of(sets["a"], {**options, "uneven": True}), world_sizes=[5]).world_sizes[0]
    assert allowed.refused is None


def test_documents_are_cut_about_as_often_as_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = [[rng.geometric(1 / 50, 40).tolist() for _ in range(20)] for _ in range(4)]
    folder = write_set(tmp_path / "set", unique_groups(lengths))
    run = run_of(folder, dict(seq_len=64, lanes=8, window=4))
    (source,) = plan(run, world_sizes=[]).sources
    cut = borders = 0
    for window in run.order.windows(0, 0):
        if window.epoch:
            break
        of_groups = [lengths[group // 20][group % 20] for group in window.groups.tolist()]
        begins = np.cumsum([0, *(length for group in of_groups for length in group)])
        inner = window.slice_starts(8, 0, 8)[1:-1]
        borders += len(inner)
        cut += len(np.unique(np.searchsorted(begins, inner, side="right")[~np.isin(inner, begins)]))
    assert source.cuts.documents == 3200
    assert source.cuts.lane_borders == borders
    assert source.cuts.cut_by_lanes == pytest.approx(cut, rel=0.1)
    with ParquetLoader(folder, seq_len=64, lanes=8, window=4) as loader:
        rows = pieces = 0
        for batch in loader:
            splits, columns = batch.document_starts()
            begun = (columns == 0).sum()  # the others begin within a document
            rows, pieces = rows + len(batch.tokens), pieces + splits[-1] + len(batch.tokens) - begun
    assert source.cuts.documents_in_a_row == pytest.approx(pieces / rows, rel=0.1)


def test_the_shuffle_is_told_in_the_measures_of_the_documentation(tmp_path: Path) -> None:
    # docs/order.md: 64 row groups of a million tokens, 64 lanes, window=16, seq_len=2048; here a thousandth of it.
    folder = write_set(tmp_path / "set", unique_groups([[[10] * 100] * 64]))
    (source,) = plan(run_of(folder, dict(seq_len=2, lanes=64, window=16)), world_sizes=[]).sources
    shuffle = source.shuffle
    assert (shuffle.row_groups, shuffle.window, shuffle.window_tokens, shuffle.share, shuffle.draws) == (
        64,
        16,
        16_000,
        0.25,
        16,
    )
    assert shuffle.rows_of_window == 125
    assert shuffle.shown_before == pytest.approx(5 / 125)


def test_a_plan_is_plain_json(sets: dict[str, Path]) -> None:
    sources, options = random_mixture(np.random.default_rng(1), sets)
    planned = plan(run_of(sources, options), steps=50)
    assert json.loads(json.dumps(asdict(planned)))["end"]["step"] == planned.end.step
