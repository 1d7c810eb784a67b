"""How the loader's speed and memory change with documents, row groups, lanes, ranks, threads, layouts and index size.

    python tools/scaling/scaling.py [NAME ...]     measure: print tables, write build/scaling/NAME.json and .svg
    python tools/scaling/scaling.py --write-docs   put what is in build/scaling into docs/performance.md

CPU time is that of all threads of a fresh child process for each figure. What is compared takes turns, round after
round, and figures are medians of the rounds. What is derived from them, a ratio or a speed-up, is that of the medians.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scaling_data import CODECS, ENCODINGS, PRETOKENIZE, SetSpec, generate, link_farm, many_files
from scaling_report import Cell, Result, draw, middle, panel, table, write_docs

from parquet_loader.engine.config import EngineConfig
from parquet_loader.engine.plan import plan_window
from parquet_loader.formats.parquet import PARQUET
from parquet_loader.index import build_index
from parquet_loader.order.order import Order, lane_range
from parquet_loader.storage import open_storage

ROOT = Path(__file__).parents[2]
# Who decodes.
WORKERS: dict[str, dict[str, int]] = {
    "1 thread": {"threads": 1},
    "2 threads": {"threads": 2},
    "1 process": {"processes": 1},
    "2 processes": {"processes": 2},
}
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        tokens: of a set.
        rounds: that medians are taken of.
        seconds: that a busy loop or a paced consumer runs.
        row_groups: of the indexes.
        steps: that are timed with each index.
    """

    tokens: int
    rounds: int
    seconds: float
    row_groups: tuple[int, ...]
    steps: int


def child(worker: str, **arguments: Any) -> dict[str, Any]:
    """What a function of `scaling_workers` returns in a fresh process."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("scaling_workers.py")), worker, json.dumps(arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def interleaved(rounds: int, ways: Mapping[K, Callable[[], dict[str, Any]]]) -> dict[K, list[dict[str, Any]]]:
    """Run all ways in turn, as often as there are rounds."""
    runs: dict[K, list[dict[str, Any]]] = {key: [] for key in ways}
    for _ in range(rounds):
        for key, way in ways.items():
            runs[key].append(way())
    return runs


def result(
    title: str, tables: list[tuple[list[str], list[list[Cell]]]], panels: list[dict[str, Any]], *notes: str
) -> Result:
    """A sub-measurement's outcome, as it is stored."""
    return {
        "title": title,
        "tables": [{"columns": columns, "rows": rows} for columns, rows in tables],
        "panels": panels,
        "notes": list(notes),
    }


def loader_of(
    folder: Path, take: int, *, lanes: int = 64, window: int = 16, seq_len: int = 2048, **options: int
) -> Callable[[], dict[str, Any]]:
    """A way for `interleaved`: the loader, taking so many tokens; with one thread, if nothing else is said."""
    options = {"lanes": lanes, "window": window, "seq_len": seq_len} | (options or {"threads": 1})
    return functools.partial(child, "epochs", folder=str(folder), take=take, **options)


def pyarrow_of(folder: Path) -> Callable[[], dict[str, Any]]:
    """A way for `interleaved`: pyarrow's reader."""
    return functools.partial(child, "read_row_groups", folder=str(folder))


def group_tokens(sizes: Sizes) -> int:
    """Row groups of a million tokens, or fewer where the set would have less than 64."""
    return min(1_000_000, sizes.tokens // 64)


# ── sub-measurements ─────────────────────────────────────────────────────────────────────────────────────────────


def threads(sizes: Sizes, root: Path) -> Result:
    length, take = group_tokens(sizes), 2 * sizes.tokens
    window = {"window": 16, "warm": 16 * length}  # helpers start and the first window is decoded before it is measured
    ways: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {}
    for codec in ("snappy", "zstd", "gzip", "none"):
        folder = root / codec
        generate(folder, SetSpec(tokens=sizes.tokens, group_tokens=length, codec=codec))
        for name, options in WORKERS.items():
            ways[f"the loader, {codec}", name] = loader_of(folder, take, **options, **window)
    folder = root / "snappy"
    ways["the loader, snappy", "2 ranks"] = functools.partial(_two_ranks, folder, take, window)
    for count in (1, 2):
        alone = functools.partial(child, "decoding", folder=str(folder), take=take, threads=count)
        ways["decoding alone, snappy", f"{count} thread{'s' * (count > 1)}"] = alone
    runs = interleaved(sizes.rounds, ways)
    found = {key: {figure: middle(each, figure) for figure in ("tokens_per_s", "cpu_ns")} for key, each in runs.items()}
    rows: list[list[Cell]] = []
    series: dict[str, list[tuple[str, float]]] = {}
    for title in dict.fromkeys(title for title, _ in found):
        one = found[title, "1 thread"]
        for name in [name for known, name in found if known == title]:
            speed, cpu = found[title, name]["tokens_per_s"], found[title, name]["cpu_ns"]
            rows.append([f"{title}, {name}", speed / 1e6, speed / one["tokens_per_s"], cpu, cpu / one["cpu_ns"]])
            series.setdefault(title, []).append((name, speed / 1e6))
    return result(
        "Tokens a second with threads and processes",
        [(["", "M tokens/s", "speed-up", "CPU ns/token", "CPU ratio"], rows)],
        [panel("M tokens/s", "", "", series)],
        f"The interpreter's lock is {'on' if _has_lock() else 'off'}. Dictionaries with a codec; ratios are to one "
        "thread. The consumer takes batches as fast as they come, on the main thread, and itself needs part of a core. "
        "Ranks are 0 and 1 of 2, with one thread each. CPU is that of all processes.",
    )


def _two_ranks(folder: Path, take: int, window: Mapping[str, int]) -> dict[str, Any]:
    ranks = (loader_of(folder, take // 2, rank=rank, world_size=2, threads=1, **window) for rank in range(2))
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda way: way(), ranks)
    return {
        "tokens_per_s": one["tokens_per_s"] + other["tokens_per_s"],
        "cpu_ns": (one["cpu_ns"] + other["cpu_ns"]) / 2,
    }


def documents(sizes: Sizes, root: Path) -> Result:
    means = [50, 200, 1000, 10_000]
    ways: dict[tuple[int, str], Callable[[], dict[str, Any]]] = {}
    for mean in means:
        folder = root / str(mean)
        generate(folder, SetSpec(tokens=sizes.tokens, group_tokens=group_tokens(sizes), mean_length=mean))
        ways[mean, "loader"] = loader_of(folder, 2 * sizes.tokens)
        ways[mean, "pyarrow"] = pyarrow_of(folder)
    runs = interleaved(sizes.rounds, ways)
    return _beside_pyarrow("mean document length", means, runs, "documents of different lengths")


def row_groups(sizes: Sizes, root: Path) -> Result:
    scale = min(1.0, sizes.tokens / 64_000_000)
    lengths = [
        max(500 << place, int(size * scale)) for place, size in enumerate((10_000, 100_000, 1_000_000, 4_000_000))
    ]
    ways: dict[tuple[int, str], Callable[[], dict[str, Any]]] = {}
    for length in lengths:
        folder = root / str(length)
        mean = min(1000, length / 10)
        generate(folder, SetSpec(tokens=sizes.tokens, group_tokens=length, mean_length=mean))
        ways[length, "loader"] = loader_of(folder, 2 * sizes.tokens)
        ways[length, "large"] = loader_of(folder, 2 * sizes.tokens, window=max(1, sizes.tokens // 4 // length))
        ways[length, "pyarrow"] = pyarrow_of(folder)
    runs = interleaved(sizes.rounds, ways)
    found = _beside_pyarrow("tokens of a row group", lengths, runs, "row groups of different sizes")
    columns, rows = found["tables"][0]["columns"], found["tables"][0]["rows"]
    columns[1] = "loader, 16 a window"
    columns.insert(2, f"loader, {sizes.tokens // 4:,} tokens a window")
    for row, length in zip(rows, lengths, strict=True):
        row.insert(2, middle(runs[length, "large"], "cpu_ns"))
    return found


def _beside_pyarrow(
    heading: str, values: list[int], runs: Mapping[tuple[int, str], list[dict[str, Any]]], title: str
) -> Result:
    rows: list[list[Cell]] = []
    for value in values:
        ours, theirs = (middle(runs[value, key], "cpu_ns") for key in ("loader", "pyarrow"))
        rows.append([f"{value:,}", ours, theirs, ours / theirs])
    series = {
        name: [(value, middle(runs[value, key], "cpu_ns")) for value in values]
        for name, key in (("loader, batches", "loader"), ("pyarrow, read_row_group", "pyarrow"))
    }
    return result(
        f"CPU ns per token for {title}",
        [([heading, "loader", "read_row_group", "ratio"], rows)],
        [panel("CPU ns per token", heading, "", series, log="x")],
        "CPU ns per token: the loader up to batches beside pyarrow's decoding alone, each on one thread.",
    )


def lanes(sizes: Sizes, root: Path) -> Result:
    folder = root / "set"
    generate(folder, SetSpec(tokens=sizes.tokens, group_tokens=group_tokens(sizes)))
    lane_counts, windows = [8, 64, 512, 4096], [4, 16, 64]
    seq_len = max(1, min(512, sizes.tokens // (8 * max(lane_counts))))
    runs = interleaved(
        sizes.rounds,
        {
            (lane_count, window): loader_of(folder, 2 * sizes.tokens, lanes=lane_count, window=window, seq_len=seq_len)
            for lane_count in lane_counts
            for window in windows
        },
    )
    found = {key: middle(each, "cpu_ns") for key, each in runs.items()}
    few = interleaved(sizes.rounds, {count: loader_of(folder, 2 * sizes.tokens, lanes=count) for count in (8, 64)})
    long_rows: list[list[Cell]] = [
        [str(count), middle(each, "cpu_ns"), middle(each, "cpu_ns") / middle(few[64], "cpu_ns")]
        for count, each in few.items()
    ]
    return result(
        "CPU ns per token for lanes and windows",
        [
            (
                ["lanes", *(f"window {window}" for window in windows)],
                [[f"{count:,}", *(found[count, window] for window in windows)] for count in lane_counts],
            ),
            (["lanes, rows of 2,048 tokens", "window 16", "to 64 lanes"], long_rows),
        ],
        [
            panel(
                "CPU ns per token",
                "lanes",
                "",
                {f"window {window}": [(count, found[count, window]) for count in lane_counts] for window in windows},
                log="x",
            )
        ],
        f"CPU ns per token, above for rows of {seq_len} tokens: the fewer the lanes, the smaller the batches.",
    )


def index(sizes: Sizes, root: Path) -> Result:
    folder = root / "set"
    generate(folder, SetSpec(tokens=1 << 16, group_tokens=1 << 16, mean_length=500))
    link_farm(folder)
    smallest, largest = min(sizes.row_groups), max(sizes.row_groups)
    # 100 row groups a file; and as the worst case, each in a file of its own.
    shapes = [(groups, max(1, groups // 100)) for groups in sizes.row_groups] + [(largest, largest)]
    saved = {}
    for groups, files in shapes:
        path = root / f"{groups}-{files}.index"
        saved[groups, files] = child("save", folder=str(folder), row_groups=groups, files=files, path=str(path))
    options = {"lanes": 64, "window": 64, "threads": 1, "seq_len": 1024}
    runs = interleaved(
        sizes.rounds,
        {
            (groups, files): functools.partial(
                child,
                "steps",
                folder=str(folder),
                path=str(root / f"{groups}-{files}.index"),
                count=sizes.steps,
                **options,
            )
            for groups, files in shapes
        },
    )
    columns = [
        "row groups",
        "files",
        "saved MB",
        "save s",
        "load s",
        "memory MB",
        "at most MB",
        "fingerprint s",
        "loader ms",
        "first plan ms",
        "consumer µs/step",
        "all threads µs/step",
    ]
    rows: list[list[Cell]] = []
    for shape in shapes:
        each = runs[shape]
        rows.append(
            [
                f"{shape[0]:,}",
                f"{shape[1]:,}",
                saved[shape]["bytes"] / 1e6,
                saved[shape]["save_s"],
                *(middle(each, "load_s"), middle(each, "rss_bytes") / 1e6, middle(each, "peak_bytes") / 1e6),
                *(middle(each, "fingerprint_s"), middle(each, "construct_s") * 1e3, middle(each, "plan_s") * 1e3),
                *(middle(each, "consumer_us"), middle(each, "step_us")),
            ]
        )
    footers, cached = _footers(sizes, root, smallest, largest)
    step = panel(
        "CPU µs a step, all threads",
        "row groups",
        "",
        {"step": [(shape[0], middle(runs[shape], "step_us")) for shape in shapes[:-1]]},
        log="x",
    )
    load = panel(
        "loading a saved index, s",
        "row groups",
        "",
        {"100 row groups a file": [(shape[0], middle(runs[shape], "load_s")) for shape in shapes[:-1]]},
        log="xy",
    )
    return result(
        "What the number of row groups costs",
        [(columns, rows), footers, cached],
        [load, step],
        f"A step is a batch of {options['lanes']} x {options['seq_len']} tokens, from row groups of 65,536; every "
        "entry of the index leads to the same real row group. Memory is the growth of the process; *at most*, while "
        "loading.",
    )


def _footers(
    sizes: Sizes, root: Path, smallest: int, largest: int
) -> tuple[tuple[list[str], list[list[Cell]]], tuple[list[str], list[list[Cell]]]]:
    """Real footers: many files of one row group, and one file of many; and the cache of many row groups."""
    generate(root / "one", SetSpec(tokens=smallest * 100, group_tokens=100, mean_length=10))
    many_files(root / "many", smallest, root / "set")
    rows: list[list[Cell]] = []
    for name in ("many", "one"):
        runs = [
            child("build", folder=str(root / name), cache=str(root / f"cache-{name}-{number}"))
            for number in range(sizes.rounds)
        ]
        shape = [f"{runs[0]['files']:,}", f"{runs[0]['row_groups']:,}"]
        rows.append([*shape, middle(runs, "build_s"), middle(runs, "again_s")])
    files = max(1, largest // 100)
    many_files(root / "cached", files, root / "set")
    child("fill_cache", folder=str(root / "cached"), cache=str(root / "cache"), row_groups=largest)
    runs = [child("cached", folder=str(root / "cached"), cache=str(root / "cache")) for _ in range(sizes.rounds)]
    memory = [middle(runs, "rss_bytes") / 1e6, middle(runs, "peak_bytes") / 1e6]
    cached: list[list[Cell]] = [[f"{files:,}", f"{runs[0]['row_groups']:,}", middle(runs, "load_s"), *memory]]
    return (
        (["files", "row groups", "from footers s", "again from the cache s"], rows),
        (["files", "row groups", "listing and cache s", "memory MB", "at most MB"], cached),
    )


def world_size(sizes: Sizes, root: Path) -> Result:
    folder = root / "set"
    count = max(64, min(1024, sizes.tokens // 4096))
    generate(folder, SetSpec(tokens=count * 1024, group_tokens=1024, mean_length=100))
    storage = open_storage(folder)
    small = build_index(folder, cache_dir=root)
    ranks, windows, lane_count = [1, 2, 4, 8, 16, 64], [4, 16, 64], 512
    every = int(small.length.sum())
    read: dict[tuple[int, int], float] = {}
    for window in windows:
        order = Order(group_tokens=small.tokens, lanes=lane_count, window=window, seed=0, shuffle=True)
        epoch = [each for each, _ in zip(order.windows(0, 0), range(-(-len(small) // window)), strict=False)]
        for size in ranks:
            total = 0
            for rank in range(size):
                first, last = lane_range(rank, size, lane_count)
                config = EngineConfig(
                    index=small,
                    format=PARQUET,
                    storage=storage,
                    order=order,
                    first=first,
                    last=last,
                    dtype=np.dtype(np.int32),
                    held_dtype=np.dtype(np.uint16),
                    bound=1 << 16,
                    eos_id=None,
                    threads=1,
                    requests=1,
                    budget_bytes=1 << 40,
                )
                plans = [plan_window(config, each) for each in epoch]
                total += sum(int(small.length[each.window.groups[place]]) for each in plans for place in each.costs)
            read[size, window] = total / every
    rows: list[list[Cell]] = [
        [
            str(size),
            *(cell for window in windows for cell in (f"{read[size, window]:.3f}", f"{1 + (size - 1) / window:.3f}")),
        ]
        for size in ranks
    ]
    columns = ["ranks", *(heading for window in windows for heading in (f"window {window}", "bound"))]
    series = {f"window {window}": [(size, read[size, window]) for size in ranks] for window in windows}
    return result(
        "Bytes read by all ranks over the bytes of the set",
        [(columns, rows)],
        [panel("bytes read / bytes of the set", "ranks", "", series, log="x")],
        f"Bytes that all ranks' plans read in one epoch, over the bytes of the set ({len(small):,} row groups of "
        "nearly equal size); the bound, 1 + (ranks - 1) / window, is one of row groups.",
    )


def layouts(sizes: Sizes, root: Path) -> Result:
    kinds = [(encoding, codec) for encoding in ENCODINGS for codec in CODECS] + [(PRETOKENIZE, "")]
    ways: dict[tuple[str, str, str], Callable[[], dict[str, Any]]] = {}
    for encoding, codec in kinds:
        folder = root / f"{encoding}-{codec}".replace("/", "-")
        spec = SetSpec(
            tokens=sizes.tokens // 4, group_tokens=group_tokens(sizes), encoding=encoding, codec=codec or "lz4"
        )
        generate(folder, spec)
        ways[encoding, codec, "loader"] = loader_of(folder, sizes.tokens)
        ways[encoding, codec, "decode"] = functools.partial(child, "decode", folder=str(folder))
    runs = interleaved(sizes.rounds, ways)
    rows: list[list[Cell]] = [
        [
            encoding,
            codec,
            middle(runs[encoding, codec, "decode"], "bytes"),
            middle(runs[encoding, codec, "decode"], "cpu_ns"),
            middle(runs[encoding, codec, "loader"], "cpu_ns"),
        ]
        for encoding, codec in kinds
    ]
    bars = [(" ".join(filter(None, (str(row[0]), str(row[1])))), row) for row in rows]
    return result(
        "Layouts of the token column",
        [(["encoding", "codec", "bytes/token", "decode ns/token", "loader ns/token"], rows)],
        [
            panel("loader, CPU ns per token", "", "", {"loader": [(name, float(str(row[4]))) for name, row in bars]}),
            panel("bytes per token", "", "", {"bytes": [(name, float(str(row[2]))) for name, row in bars]}),
        ],
        f"int32, except the last, which is {PRETOKENIZE.removeprefix('as ')}'s uint16 with byte-stream split and lz4.",
    )


def politeness(sizes: Sizes, root: Path) -> Result:
    folder = root / "set"
    generate(folder, SetSpec(tokens=sizes.tokens, group_tokens=group_tokens(sizes)))
    rates = [1e6, 10e6]
    options = {"lanes": 64, "window": 4}
    kinds = [(workers, seq_len) for seq_len in (256, 2048) for workers in WORKERS if workers.startswith("2")]
    runs = interleaved(
        sizes.rounds,
        {
            kind: functools.partial(
                child,
                "politeness",
                folder=str(folder),
                rates=rates,
                seconds=sizes.seconds,
                seq_len=kind[1],
                **options,
                **WORKERS[kind[0]],
            )
            for kind in kinds
        },
    )
    names = {"absent": "no loader", "idle": "idle", "1000000": "1 M tokens/s", "10000000": "10 M tokens/s"}
    rows: list[list[Cell]] = []
    measured = ("iterations_per_s", "gil_share", "core_share", "taking_share")
    for (workers, seq_len), each in runs.items():
        middles = {key: {figure: middle((run[key] for run in each), figure) for figure in measured} for key in names}
        alone = middles["absent"]
        for key, name in names.items():
            found = middles[key]
            slowed = 1 - found["iterations_per_s"] / alone["iterations_per_s"]
            given = 1 - _given_a_core(found) / _given_a_core(alone)
            shares = [f"{found[share]:.2%}" for share in measured[1:]]
            title = name if key == "absent" else f"{name}, {workers}, rows of {seq_len:,}"
            rows.append([title, found["iterations_per_s"] / 1e6, f"{slowed:.0%}", f"{given:.0%}", *shares])
    stall_rows: list[list[Cell]] = []
    curve = {}
    for workers, count in WORKERS.items():
        paced = [
            child(
                "stalls",
                folder=str(folder),
                seconds=2 * sizes.seconds,
                period=0.01,
                take=2 * sizes.tokens,
                **options,
                **count,
            )
            for _ in range(sizes.rounds)
        ]
        rate = middle(paced, "tokens_per_s") / 1e6
        took = {key: np.array([time for run in paced for time in run[key]]) * 1e3 for key in ("all", "border", "copy")}
        titles = {
            "all": f"every batch, {workers}, {rate:.1f} M tokens/s",
            "border": f"at a window's end, {workers}",
            "copy": "the same copy without a loader",
        }
        for key, title in titles.items():
            if len(took[key]):
                wall, ran = took[key][:, 0], took[key][:, 1]
                figures = (float(np.percentile(wall, p)) for p in (50, 99, 99.9, 100))
                stall_rows.append([title, len(wall), *figures, float(ran.max())])
                percents = (0, 50, 90, 99, 99.5, 99.9)
                curve[title] = [(float(np.percentile(wall, p)), 100.0 - p) for p in percents]
    headings = ["loader", "M iterations/s", "slowed", "given a core", "waits for the GIL", "waits for a core", "taking"]
    lost = [(row[0], float(str(row[3]).rstrip("%"))) for row in rows if row[0] != "no loader"]
    return result(
        "What a loader costs its consumer",
        [
            (headings, rows),
            (["ms to take", "batches", "median", "99%", "99.9%", "most", "most, less waiting for a core"], stall_rows),
        ],
        [
            panel("a busy loop is slowed, given a core, %", "", "", {"loader": lost}),
            panel("batches that take longer, %", "ms", "", curve, log="xy"),
        ],
        "A loop of pure Python on the main thread that takes batches at that rate, compared with the same loop without "
        "a loader in the same process. *Given a core* leaves out the time in which the loop had no core, whether other "
        "processes or the loader's own threads had it. Below, a consumer that takes a batch every 10 ms, a tenth of "
        "what the loader could deliver, after the first two windows.",
    )


def _given_a_core(run: Mapping[str, float]) -> float:
    """Iterations a second of the time in which this thread was not waiting for a core, whoever had it."""
    return run["iterations_per_s"] / max(1e-9, 1 - run["core_share"])


def resume(sizes: Sizes, root: Path) -> Result:
    folder = root / "set"
    length = group_tokens(sizes)
    window = 64
    generate(folder, SetSpec(tokens=2 * window * length, group_tokens=length))
    built = build_index(folder, cache_dir=root)
    path = root / "saved.index"
    built.save(path)
    lane_count = 64
    position = built.total_tokens // 4 // lane_count  # half-way through the first window
    ways: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {}
    for workers, count in WORKERS.items():
        options = {"lanes": lane_count, "window": window, "seq_len": 2048} | count
        ways["resume", workers] = functools.partial(
            child, "resume", folder=str(folder), index=str(path), position=position, **options
        )
    for workers in ("1 thread", "2 threads"):
        ways["decode", workers] = functools.partial(
            child, "decode_window", folder=str(folder), index=str(path), window=window, keep=True, **WORKERS[workers]
        )
    runs = interleaved(sizes.rounds, ways)
    rows: list[list[Cell]] = []
    for workers in WORKERS:
        ours, limit = runs["resume", workers], runs["decode", "1 thread" if workers[0] == "1" else "2 threads"]
        figures = [middle(each, key) for key in ("seconds", "cpu_s") for each in (ours, limit)]
        rows.append([workers, *figures[:2], figures[0] / figures[1], *figures[2:]])
    columns = ["", "to the first batch s", "decoding alone s", "ratio", "CPU s", "decoding alone CPU s"]
    series = {
        name: [(workers, middle(each, "seconds")) for (of, workers), each in runs.items() if of == key]
        for key, name in (("resume", "to the first batch"), ("decode", "reading and decoding alone, on threads"))
    }
    return result(
        "From a checkpoint in mid-epoch to the first batch",
        [(columns, rows)],
        [panel("s", "", "", series)],
        f"One rank, a window of {window} row groups of {length:,} tokens: all of them are needed for the first batch. "
        "Processes are started meanwhile. Decoding alone keeps the tokens, and is on as many threads.",
    )


MEASUREMENTS: dict[str, Callable[[Sizes, Path], Result]] = {
    measurement.__name__.replace("_", "-"): measurement
    for measurement in (threads, documents, row_groups, lanes, index, world_size, layouts, politeness, resume)
}


def _has_lock() -> bool:
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def machine() -> str:
    """The machine and its load, in one line."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    import pyarrow

    return (
        f"{cpu}, {cores} cores, load {os.getloadavg()[0]:.1f} at the start, Python {platform.python_version()}, "
        f"pyarrow {pyarrow.__version__}, NumPy {np.__version__}"
    )


def measure(name: str, sizes: Sizes, output: Path, arguments: str = "") -> Result:
    """Make one sub-measurement, print its table, write ``output/NAME.json``, and draw it where matplotlib is there.

    On a Python without the interpreter's lock it is another one, with a name of its own.
    """
    on = machine()
    with tempfile.TemporaryDirectory() as root:
        found = MEASUREMENTS[name](sizes, Path(root))
    program = "python" if _has_lock() else f"python{platform.python_version()[:4]}t"
    command = " ".join(filter(None, [program, "tools/scaling/scaling.py", name, arguments]))
    name = name if _has_lock() else f"{name}-without-lock"
    found = {"name": name, "command": command, "machine": on} | found
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{name}.json").write_text(json.dumps(found, indent=1))
    print(table(found), end="\n\n", flush=True)
    try:
        draw(found, output / f"{name}.svg")
    except ImportError:
        print("no picture: matplotlib is not installed", file=sys.stderr)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; all where none is given"
    )
    parser.add_argument("--tokens", type=int, default=64_000_000, help="tokens of a set")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="that a busy loop runs")
    parser.add_argument("--row-groups", type=int, nargs="+", default=[1_000, 100_000, 1_000_000], help="of the indexes")
    parser.add_argument("--steps", type=int, default=500, help="that are timed with each index")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "scaling")
    parser.add_argument("--write-docs", action="store_true", help="put all results into docs/performance.md")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    sizes = Sizes(
        tokens=options.tokens,
        rounds=options.rounds,
        seconds=options.seconds,
        row_groups=tuple(options.row_groups),
        steps=options.steps,
    )
    given = [
        f"--{key.replace('_', '-')} {value:_}" if isinstance(value, int) else f"--{key} {value:g}"
        for key in ("tokens", "rounds", "seconds", "steps")
        if (value := getattr(options, key)) != parser.get_default(key)
    ]
    names = options.names or ([] if options.write_docs else list(MEASUREMENTS))
    for name in names:
        measure(name, sizes, options.output, " ".join(given))
    if options.write_docs:
        written = write_docs(options.output, ROOT / "docs" / "performance.md", ROOT / "docs" / "images")
        print(f"docs/performance.md: {', '.join(written) or 'nothing new'}")


if __name__ == "__main__":
    main()
