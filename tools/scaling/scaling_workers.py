"""What `scaling.py` runs in fresh child processes, so that no measurement starts with what another one left.

python tools/scaling/scaling_workers.py NAME '{"argument": value}'    prints what was measured as JSON
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow.compute  # noqa: F401  # which the first take would do, and be counted for
import pyarrow.parquet as pq

from parquet_loader import Batch, ParquetLoader
from parquet_loader.blocks import TokenPart
from parquet_loader.formats.base import ENTRY_ARRAYS, ColumnChunk, FileEntry
from parquet_loader.formats.parquet.decode import OpenChunk
from parquet_loader.index import DatasetIndex, build_index
from parquet_loader.index.build import index_storage
from parquet_loader.index.cache import IndexCache
from parquet_loader.order.order import Order
from parquet_loader.storage import open_storage

Figures = dict[str, Any]


def memory_bytes(key: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def scheduled_seconds() -> tuple[float, float]:
    """(seconds this thread ran, seconds it could have run and had no core), since it began."""
    try:
        ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except FileNotFoundError:  # a kernel built without it
        return time.thread_time(), 0.0
    return int(ran) / 1e9, int(waited) / 1e9


def cpu_seconds() -> float:
    """Of this process and of those that it has started, also those that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in used)
    for child in psutil.Process().children():
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def endless(loader: ParquetLoader) -> Iterator[Batch]:
    """Batches, epoch after epoch."""
    while True:
        yield from loader


# ── tokens a second and CPU per token ────────────────────────────────────────────────────────────────────────────


def epochs(*, folder: str, take: int, warm: int = 0, **options: Any) -> Figures:
    """The loader, whose consumer only takes batches, for ``take`` tokens after the first ``warm``."""
    with ParquetLoader(folder, cache_dir=folder, **options) as loader:
        batches = endless(loader)
        while warm > 0:
            warm -= next(batches).tokens.size
        cpu, wall, before = cpu_seconds(), time.perf_counter(), loader.stats()
        while take > 0:
            take -= next(batches).tokens.size
        wall = time.perf_counter() - wall
        delivered = loader.stats()["tokens"] - before["tokens"]
        loader.close()
        cpu = cpu_seconds() - cpu
        decoded = loader.stats()["tokens_decoded"] - before["tokens_decoded"]
    # It reads ahead: count what was decoded, not only what was handed out.
    return {"cpu_ns": cpu * 1e9 / decoded, "tokens_per_s": delivered / wall}


def read_row_groups(*, folder: str) -> Figures:
    """``read_row_group`` of every row group, on one thread."""
    file = pq.ParquetFile(Path(folder) / "part.parquet")
    cpu, tokens = time.process_time(), 0
    for group in range(file.num_row_groups):
        column = file.read_row_group(group, use_threads=False).column(0)
        tokens += sum(len(chunk.flatten()) for chunk in column.chunks)
    return {"cpu_ns": (time.process_time() - cpu) * 1e9 / tokens}


def decoded(raw: bytes | memoryview, chunk: ColumnChunk) -> list[TokenPart]:
    """A row group's parts, their ids of two bytes, as the loader has them."""
    return list(OpenChunk(raw, chunk).parts(dtype=np.dtype(np.uint16), bound=1 << 16))


def decode(*, folder: str) -> Figures:
    """Decode every row group from memory, to ids of two bytes, as the loader does it."""
    index = build_index(folder, cache_dir=folder)
    data = memoryview((Path(folder) / "part.parquet").read_bytes())
    cpu = time.process_time()
    for group in range(len(index)):
        chunk = index.chunk(group)
        raw = data[chunk.start : chunk.start + chunk.length]
        decoded(raw, chunk)
    cpu = time.process_time() - cpu
    return {"cpu_ns": cpu * 1e9 / index.total_tokens, "bytes": int(index.length.sum()) / index.total_tokens}


def decoding(*, folder: str, take: int, threads: int) -> Figures:
    """Decode on so many threads, from memory, for ``take`` tokens."""
    index = build_index(folder, cache_dir=folder)
    chunks = [index.chunk(group) for group in range(len(index))]
    data = (Path(folder) / "part.parquet").read_bytes()
    raw = [data[chunk.start : chunk.start + chunk.length] for chunk in chunks]  # no view that threads would share

    def one(number: int) -> int:
        group = number % len(index)
        return sum(map(len, decoded(raw[group], chunks[group])))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, range(len(index))))
        cpu, wall = time.process_time(), time.perf_counter()
        tokens = sum(pool.map(one, range(take * len(index) // index.total_tokens)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_ns": cpu * 1e9 / tokens, "tokens_per_s": tokens / wall}


# ── the index ────────────────────────────────────────────────────────────────────────────────────────────────────


def build(*, folder: str, cache: str) -> Figures:
    """An index from footers, and again from the cache."""
    begin = time.perf_counter()
    index = build_index(folder, cache_dir=cache)
    middle = time.perf_counter()
    build_index(folder, cache_dir=cache)
    end = time.perf_counter()
    return {"build_s": middle - begin, "again_s": end - middle, "row_groups": len(index), "files": len(index.files)}


def save(*, folder: str, row_groups: int, files: int, path: str) -> Figures:
    """Save a large index."""
    from scaling_data import large_index

    index = large_index(Path(folder), row_groups, files)
    begin = time.perf_counter()
    index.save(path)
    return {"save_s": time.perf_counter() - begin, "bytes": Path(path).stat().st_size}


def fill_cache(*, folder: str, cache: str, row_groups: int) -> Figures:
    """Leave in the cache what reading the footers of all files of ``folder`` would, had they so many row groups."""
    storage = open_storage(folder)
    files = storage.list_files()
    small = build_index([Path(folder) / files[0].path], cache_dir=cache)
    numbers = np.stack([getattr(small, name)[:1] for name in ENTRY_ARRAYS])
    numbers = np.repeat(numbers, row_groups // len(files), 1)
    numbers[ENTRY_ARRAYS.index("row_group")] = np.arange(numbers.shape[1])
    entry = FileEntry({small.column: (small.layouts[0], numbers)})
    IndexCache(cache, storage.identity, None).write(files, [entry] * len(files))
    return {}


def cached(*, folder: str, cache: str) -> Figures:
    """An index from the cache alone."""
    before, begin = memory_bytes("VmRSS"), time.perf_counter()
    index = index_storage(open_storage(folder), cache_dir=cache)
    seconds = time.perf_counter() - begin
    memory = {"rss_bytes": memory_bytes("VmRSS") - before, "peak_bytes": memory_bytes("VmHWM") - before}
    return {"load_s": seconds, "row_groups": len(index), **memory}


def steps(*, folder: str, path: str, count: int, **options: Any) -> Figures:
    """A saved index, from a fresh process to a steady state."""
    before, begin = memory_bytes("VmRSS"), time.perf_counter()
    index = DatasetIndex.load(path)
    figures = {"load_s": time.perf_counter() - begin}
    figures |= {"rss_bytes": memory_bytes("VmRSS") - before, "peak_bytes": memory_bytes("VmHWM") - before}
    begin = time.perf_counter()
    _ = index.fingerprint
    figures["fingerprint_s"] = time.perf_counter() - begin
    begin = time.perf_counter()
    with ParquetLoader(folder, index=index, **options) as loader:
        figures["construct_s"] = time.perf_counter() - begin
        order = Order(group_tokens=index.tokens, lanes=options["lanes"], window=options["window"], seed=0, shuffle=True)
        begin = time.perf_counter()
        next(order.windows(0, options["lanes"] - 1))
        figures["plan_s"] = time.perf_counter() - begin
        begin = time.perf_counter()
        batches = endless(loader)
        next(batches)
        figures["first_s"] = time.perf_counter() - begin
        for _ in range(count // 4):
            next(batches)
        cpu, own, decoded = time.process_time(), time.thread_time(), loader.stats()["tokens_decoded"]
        for _ in range(count):
            tokens = next(batches).tokens.size
        cpu, own = time.process_time() - cpu, time.thread_time() - own
        decoded = loader.stats()["tokens_decoded"] - decoded
    # The consumer's own part of a step, and the threads' part by what they decoded meanwhile.
    figures["step_us"] = (own / count + (cpu - own) / max(decoded, 1) * tokens) * 1e6
    figures["consumer_us"] = own / count * 1e6
    return figures


# ── politeness ───────────────────────────────────────────────────────────────────────────────────────────────────


WAKING = 10  # batches


class _Busy:
    """A loop of pure Python on this thread, and what became of its time."""

    def __init__(self) -> None:
        self.state = 1

    def run(self, seconds: float, rate: float = 0.0, batches: Iterator[Batch] | None = None) -> Figures:
        """Iterations a second, without the time in which batches are taken, ``rate`` tokens a second of them."""
        iterations = tokens = 0
        taking = taking_ran = taking_waited = 0.0
        ran, waited = scheduled_seconds()
        begin = time.perf_counter()
        while (now := time.perf_counter() - begin) < seconds:
            if batches is not None and now * rate >= tokens:
                took_ran, took_waited = scheduled_seconds()
                took = time.perf_counter()
                tokens += next(batches).tokens.size
                taking += time.perf_counter() - took
                after_ran, after_waited = scheduled_seconds()
                taking_ran += after_ran - took_ran
                taking_waited += after_waited - took_waited
            state = self.state
            for _ in range(2000):
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            self.state = state
            iterations += 2000
        wall = time.perf_counter() - begin - taking
        after_ran, after_waited = scheduled_seconds()
        ran, waited = after_ran - ran - taking_ran, after_waited - waited - taking_waited
        return {
            "iterations_per_s": iterations / wall,
            "gil_share": max(0.0, wall - ran - waited) / wall,  # neither running nor without a core: without the GIL
            "core_share": waited / wall,
            "taking_share": taking / (wall + taking),
            "tokens_per_s": tokens / (wall + taking),
        }


def politeness(*, folder: str, rates: list[float], seconds: float, **options: Any) -> Figures:
    """A busy loop without a loader, beside an idle one, and beside one of which batches are taken at several rates."""
    busy = _Busy()
    found: Figures = {"absent": busy.run(seconds)}
    with ParquetLoader(folder, cache_dir=folder, **options) as loader:
        batches = endless(loader)
        next(batches)
        time.sleep(min(seconds, 2.0))  # until all that fits is loaded
        found["idle"] = busy.run(seconds)
        for rate in rates:
            found[f"{rate:.0f}"] = busy.run(seconds, rate, batches)
    return found


def stalls(*, folder: str, seconds: float, period: float, take: int, lanes: int, window: int, **work: Any) -> Figures:
    """Batches taken every ``period`` seconds, at a tenth of what the loader could deliver: how long each takes.

    How fast it could is found by taking ``take`` tokens first. The first two windows are not timed.
    """
    fastest = epochs(folder=folder, take=take, seq_len=1024, lanes=lanes, window=window, **work)
    seq_len = max(1, int(fastest["tokens_per_s"] / 10 * period / lanes))
    count = max(2, int(seconds / period))
    index = build_index(folder, cache_dir=folder)
    order = Order(group_tokens=index.tokens, lanes=lanes, window=window, seed=0, shuffle=True)
    ends: list[int] = []  # the batches that windows end in
    windows = order.windows(0, 0)
    while len(ends) < 3 or ends[-1] < ends[1] + WAKING + count:
        each = next(windows)
        ends.append((each.before + each.tokens) // lanes // seq_len)
    warm = ends[1] + 1 + WAKING
    with ParquetLoader(
        folder, index=index, seq_len=seq_len, lanes=lanes, window=window, cache_dir=folder, **work
    ) as loader:
        batches = endless(loader)
        for _ in range(warm - WAKING):
            next(batches)
        time.sleep(min(seconds, 1.0))  # until all that fits is loaded
        # A virtual machine's core that has slept a second takes 15 ms for what is a copy of 0.1 ms otherwise.
        _paced(lambda: next(batches), WAKING, period)
        took = _paced(lambda: next(batches), count, period)
    border = np.zeros(warm + count, bool)
    border[[end for end in ends if end < len(border)]] = True
    stored = np.ones((lanes, seq_len), np.uint16)
    _paced(lambda: stored.astype(np.int32), WAKING, period)
    copied = _paced(lambda: stored.astype(np.int32), count, period)
    return {
        "tokens_per_s": seq_len * lanes / period,
        "all": took.tolist(),
        "border": took[border[warm:]].tolist(),
        "copy": copied.tolist(),
    }


def _paced(work: Callable[[], object], count: int, period: float) -> npt.NDArray[np.float64]:
    """Seconds that ``work`` takes each time, and without those for which this thread had no core: shape (count, 2)."""
    times = np.empty((count, 2))
    start = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, start + number * period - time.perf_counter()))
        waited, begin = scheduled_seconds()[1], time.perf_counter()
        work()
        took = time.perf_counter() - begin
        times[number] = took, max(0.0, took - (scheduled_seconds()[1] - waited))
    return times


# ── resuming ─────────────────────────────────────────────────────────────────────────────────────────────────────


def resume(*, folder: str, index: str, position: int, **options: Any) -> Figures:
    """From a state in mid-epoch to its first batch."""
    with ParquetLoader(folder, index=index, **options) as loader:
        state = loader.state_dict() | {"position": position}
        begin, cpu = time.perf_counter(), cpu_seconds()
        loader.load_state_dict(state)
        next(iter(loader))
        return {"seconds": time.perf_counter() - begin, "cpu_s": cpu_seconds() - cpu}


def decode_window(*, folder: str, index: str, window: int, threads: int, keep: bool) -> Figures:
    """Read and decode so many row groups, and nothing else: the limit of a resume, which keeps what it decodes."""
    loaded = DatasetIndex.load(index)
    storage = open_storage(folder)
    kept: list[Any] = []

    def one(group: int) -> None:
        chunk = loaded.chunk(group)
        raw = storage.read(loaded.files[0], chunk.start, chunk.length)
        tokens = decoded(raw, chunk)
        if keep:
            kept.append(tokens)

    with ThreadPoolExecutor(threads) as pool:
        begin, cpu = time.perf_counter(), time.process_time()
        list(pool.map(one, range(min(window, len(loaded)))))
        return {"seconds": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu}


WORKERS: dict[str, Callable[..., Figures]] = {
    worker.__name__: worker
    for worker in (
        epochs,
        read_row_groups,
        decode,
        decoding,
        build,
        save,
        fill_cache,
        cached,
        steps,
        politeness,
        stalls,
        resume,
        decode_window,
    )
}


if __name__ == "__main__":
    print(json.dumps(WORKERS[sys.argv[1]](**json.loads(sys.argv[2]))))
