"""What is allocated, by allocators and operating system, against what is declared, budgeted and counted as held."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from subprocesses import run

from parquet_loader import ParquetLoader
from parquet_loader.engine.config import Counters
from parquet_loader.engine.engine import _Shared, _ThreadJob
from parquet_loader.engine.plan import plan_window
from parquet_loader.engine.prefetch import Budget, Clock
from parquet_loader.engine.reserve import Reserve

MIB = 1 << 20


def write_tokens(
    path: Path,
    *,
    tokens: int,
    group_tokens: int,
    document_tokens: int = 1000,
    itemsize: int = 4,
    vocabulary: int = 50_000,
    **options: object,
) -> None:
    """Random documents of about this length in row groups of this size."""
    rng = np.random.default_rng(0)
    kind = pa.int32() if itemsize == 4 else pa.int64()
    schema = pa.schema([pa.field("tokens", pa.list_(kind))])
    with pq.ParquetWriter(path, schema, **options) as writer:
        for first in range(0, tokens, group_tokens):
            count = min(group_tokens, tokens - first)
            borders = np.cumsum(rng.geometric(1 / document_tokens, 10 + 2 * count // document_tokens))
            offsets = np.array([0, *borders[borders < count], count], np.int32)
            values = pa.array(rng.integers(0, vocabulary, count), kind)
            writer.write_table(pa.table([pa.ListArray.from_arrays(pa.array(offsets), values)], schema=schema))


# ── one row group ────────────────────────────────────────────────────────────────────────────────────────────────

LAYOUTS = {
    "dictionary": {},
    "plain": dict(use_dictionary=False, compression="none"),
    "one large page": dict(use_dictionary=False, compression="zstd", data_page_size=1 << 28),
    "delta": dict(use_dictionary=False, column_encoding="DELTA_BINARY_PACKED"),
    "split": dict(use_dictionary=False, column_encoding="BYTE_STREAM_SPLIT", compression="lz4"),
    "page version 2": dict(data_page_version="2.0"),
}


def allocated_by(function: Callable[[], object]) -> tuple[int, int]:
    """The most that a call had allocated: (from Arrow's pool, from Python and NumPy)."""
    pool = pa.default_memory_pool()
    # The pool's maximum is that of the whole process: fill the pool up to it, with memory that is never touched.
    ballast = pa.allocate_buffer(pool.max_memory() - pool.bytes_allocated())
    before = pool.bytes_allocated()
    tracemalloc.start()
    try:
        function()
        return pool.max_memory() - before, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        del ballast


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize(("tokens", "document_tokens"), [(5_000, 30), (600_000, 5), ((1 << 19) + 1, 1000)])
@pytest.mark.parametrize("eos_id", [None, 0])
def test_a_row_group_never_allocates_more_than_its_declared_cost(
    tmp_path: Path, layout: str, itemsize: int, tokens: int, document_tokens: int, eos_id: int | None
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write_tokens(
        folder / "a.parquet",
        tokens=tokens,
        group_tokens=tokens,
        document_tokens=document_tokens,
        itemsize=itemsize,
        **LAYOUTS[layout],
    )
    check_first_task(folder, eos_id)


def test_documents_without_tokens_cost_nothing_that_is_not_declared(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = (rng.random(3_000_000) < 0.02) * rng.integers(1, 5, 3_000_000)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    documents = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.arange(offsets[-1], dtype=np.int32)))
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"tokens": documents}), tmp_path / "set" / "a.parquet", row_group_size=1 << 30)
    check_first_task(tmp_path / "set", None, slack=2)  # how many documents are empty is not known beforehand


def check_first_task(folder: Path, eos_id: int | None, slack: float = 1.1) -> None:
    """That a set's first task allocates no more than it declares, and its slices hold what is counted for them."""
    with ParquetLoader(folder, seq_len=10, lanes=3, eos_id=eos_id) as loader:
        config = loader._config
    plan = plan_window(config, next(config.order.windows(0, 0)))

    def load() -> None:
        budget = Budget(1 << 40)
        budget.acquire(plan.tasks[0].cost_bytes)
        shared = _Shared(budget, Counters(), contextlib.nullcontext(), threading.Event(), Reserve(0, budget))
        _, cut = _ThreadJob(0, config, plan, shared).run(plan.tasks[0], Clock())
        held.append(budget.held_bytes)
        # Where documents begin is counted twice: the parts' are put together.
        kept.append(sum(part.nbytes + part.documents.nbytes for part in cut))

    held: list[int] = []
    kept: list[int] = []
    load()  # whatever is imported or cached with the first
    declared, peak = plan.tasks[0].cost_bytes, sum(allocated_by(load))
    assert peak <= declared
    assert kept[0] <= held[0] < slack * kept[0] + 1000


# ── whole runs ───────────────────────────────────────────────────────────────────────────────────────────────────


def link_many(folder: Path, copies: int) -> Path:
    """Hard links of the one file in a folder: a large set on a small disk."""
    (first,) = folder.iterdir()
    for number in range(1, copies):
        os.link(first, folder / f"{number:03}.parquet")
    return folder


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sets of more than 1 GiB of tokens, or, of other kinds, of more than 128 MiB."""
    large = dict(group_tokens=250_000, use_dictionary=False, compression="none")
    made = {}
    for name, copies, options in (
        ("large", 20, dict(tokens=15_000_000, vocabulary=100_000, **large)),
        ("narrow", 10, dict(tokens=15_000_000, **large)),
        ("int64", 10, dict(tokens=4_000_000, group_tokens=250_000, itemsize=8)),
        ("tiny groups", 30, dict(tokens=1_200_000, group_tokens=2_000)),
    ):
        made[name] = tmp_path_factory.mktemp("set")
        write_tokens(made[name] / "000.parquet", **options)
        link_many(made[name], copies)
    return made


# Prints what a run of a loader held and allocated. It reads the window in use and the next one, waits there as a slow
# consumer would, and then takes as many tokens as the budget has bytes, at the least.
RUN = """
    import gc, json, sys, time
    import numpy as np
    import pyarrow as pa
    from parquet_loader import ParquetLoader

    def status(name):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))

    folder, warm_up, take_bytes, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    with ParquetLoader(warm_up, seq_len=100, lanes=8, window=1) as loader:
        next(iter(loader))
    gc.collect()
    before, pool = status("VmRSS"), pa.default_memory_pool()
    assert pool.max_memory() < options["budget_bytes"] // 4
    with ParquetLoader(folder, **options) as loader:
        taken, most = 0, 0
        while taken < take_bytes:
            for batch in loader:
                if not taken:
                    shared = loader._engine._prefetcher._shared
                    while shared.running or not shared.condition._waiters:
                        time.sleep(0.01)
                taken += batch.tokens.nbytes
                most = max(most, loader.stats()["held_bytes"])
                if taken >= take_bytes:
                    break
        stats = loader.stats()
    print(json.dumps({
        "rss": status("VmHWM") - before, "arrow": pool.max_memory(), "peak": stats["peak_bytes"], "held": most
    }))
"""

CASES = {
    "64 MiB": (64, "large", dict(lanes=64, window=20)),
    "256 MiB": (256, "large", dict(lanes=64, window=105)),
    "1 GiB": (1024, "large", dict(lanes=64, window=440)),
    "two-byte ids": (64, "narrow", dict(lanes=64, window=45)),
    "int64 to int32": (64, "int64", dict(lanes=64, window=40)),
    "eos": (64, "large", dict(lanes=64, window=20, eos_id=0)),
    "one lane": (64, "large", dict(lanes=1, window=18)),
    "many lanes": (64, "large", dict(lanes=4096, window=20, seq_len=64)),
    "one rank of eight": (64, "large", dict(lanes=64, window=160, rank=3, world_size=8)),
    "no shuffle": (64, "large", dict(lanes=64, window=20, shuffle=False)),
    "tiny groups": (64, "tiny groups", dict(lanes=64, window=5500)),
    "eight threads": (64, "large", dict(lanes=64, window=20, threads=8)),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("case", CASES)
def test_a_run_stays_within_its_budget(sets: dict[str, Path], tmp_path: Path, case: str) -> None:
    mib, name, options = CASES[case]
    budget = mib * MIB
    warm_up = tmp_path / "warm_up"
    warm_up.mkdir()
    write_tokens(warm_up / "a.parquet", tokens=10_000, group_tokens=2_000)
    options = {"seq_len": 2048, "threads": 4, "budget_bytes": budget, **options}
    measured = json.loads(run(RUN, sets[name], warm_up, budget, json.dumps(options)))
    assert 0.7 * budget < measured["peak"] <= budget
    assert measured["held"] <= measured["peak"]
    assert measured["arrow"] <= budget
    assert measured["rss"] <= 1.25 * budget + 64 * MIB, f"{measured['rss'] / MIB:.0f} MiB"


# ── one huge row group ───────────────────────────────────────────────────────────────────────────────────────────


def write_with_pandas(table: pa.Table, path: Path) -> None:
    """As ``DataFrame.to_parquet`` does it."""
    pq.write_table(table, path)


def write_with_duckdb(table: pa.Table, path: Path) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.register("documents", table)
        connection.execute(f"COPY (SELECT * FROM documents) TO '{path}' (FORMAT parquet)")


def write_with_polars(table: pa.Table, path: Path) -> None:
    import polars as pl

    pl.from_arrow(table).write_parquet(path)


HUGE = 24_000_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("write", [write_with_pandas, write_with_duckdb, write_with_polars])
def test_one_huge_row_group_takes_what_is_counted(
    tmp_path: Path, write: Callable[[pa.Table, Path], None], ranks: int
) -> None:
    # A smaller set would show little: what a decoder needs is some tens of megabytes, whatever the row group.
    rng = np.random.default_rng(0)
    offsets = np.unique(np.append(rng.integers(0, HUGE, HUGE // 1000), [0, HUGE])).astype(np.int32)
    ids = pa.array(rng.integers(0, 50_000, HUGE))
    (tmp_path / "set").mkdir()
    write(pa.table({"tokens": pa.ListArray.from_arrays(offsets, ids)}), tmp_path / "set" / "a.parquet")
    del ids
    assert pq.read_metadata(tmp_path / "set" / "a.parquet").num_row_groups == 1
    (tmp_path / "warm up").mkdir()
    write_tokens(tmp_path / "warm up" / "a.parquet", tokens=10_000, group_tokens=2_000)
    budget = 2 << 30
    options = dict(seq_len=2048, lanes=512, rank=ranks // 2, world_size=ranks, budget_bytes=budget)
    measured = json.loads(run(RUN, tmp_path / "set", tmp_path / "warm up", HUGE // ranks, json.dumps(options)))
    assert measured["rss"] / 1.25 - 64 * MIB < measured["peak"] < 1.6 * measured["rss"]
    assert measured["peak"] < 16 * HUGE  # many times less than the budget


# ── nothing is kept ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    write_tokens(folder / "a.parquet", tokens=40_000, group_tokens=4_000)
    return folder


def test_a_closed_loader_holds_no_tokens(small: Path) -> None:
    before = pa.total_allocated_bytes()
    loader = ParquetLoader(small, seq_len=100, lanes=8, window=4)
    batch = next(iter(loader))
    assert pa.total_allocated_bytes() > before
    loader.close()
    starts = batch.document_starts()  # a batch that is kept keeps where its documents begin, but no window
    assert pa.total_allocated_bytes() == before
    assert len(starts[0]) == 9


def test_an_error_that_is_kept_holds_no_tokens(small: Path) -> None:
    before = pa.total_allocated_bytes()
    loader = ParquetLoader(small, seq_len=100, lanes=8, window=4)
    next(iter(loader))
    times = os.stat(small / "a.parquet")
    (small / "a.parquet").write_bytes(b"0" * times.st_size)
    os.utime(small / "a.parquet", ns=(times.st_atime_ns, times.st_mtime_ns))
    kept = None
    try:
        for _ in range(10_000):  # windows that were loaded before it are delivered first
            next(iter(loader))
    except Exception as error:
        kept = error
    assert kept is not None
    loader.close()
    assert pa.total_allocated_bytes() == before


# In a process of its own: in this one, other tests' threads and caches allocate as well.
ROUNDS = """
    import gc, sys, threading, tracemalloc
    import psutil
    import pyarrow as pa
    from parquet_loader import ParquetLoader

    def rounds(count):
        for _ in range(count):
            with ParquetLoader(sys.argv[1], seq_len=100, lanes=8, window=1, threads=2) as loader:
                next(iter(loader))
        del loader
        gc.collect()

    def resources():
        return threading.active_count(), psutil.Process().num_fds(), pa.total_allocated_bytes()

    rounds(3)
    before = resources()
    tracemalloc.start()
    rounds(100)  # NumPy keeps some small blocks for later, up to a number that is reached by then
    traced = tracemalloc.get_traced_memory()[0]
    rounds(100)
    grown = tracemalloc.get_traced_memory()[0] - traced
    tracemalloc.stop()
    assert resources() == before, (resources(), before)
    assert grown < 100 * 150, grown
"""


def test_rounds_of_loaders_leak_neither_threads_nor_files_nor_memory(small: Path) -> None:
    run(ROUNDS, small)
