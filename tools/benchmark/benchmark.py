"""Loaders compared on one set of tokenized Parquet: their CPU, memory, conversions and resumes, in one run.

    make bench                                               everything, in an environment of its own (.venv-bench)
    python tools/benchmark/benchmark.py --tokens 4_000_000 --rounds 3  a small run
    python tools/benchmark/benchmark.py --data FOLDER --loaders parquet_loader,memcpy

Every measurement is a fresh process that is pinned to ``--cores`` cores, after all files have been read once (a warm
page cache). Rounds are interleaved: every loader once, then every loader again; tables give medians. Which loaders
there are, and how each is used, is in `benchmark_loaders.py`; one whose packages are missing is left out and named.

    convert   once      files ──► folder                                  seconds, bytes on disk
    run       a round   open, take ``--epochs`` epochs of batches, close  wall, CPU, peak memory
    resume    a round   open with a state from the middle of an epoch     seconds to the next batch
    exact     once      A: an epoch in one go; B: its first half in one process, the rest from its state in another;
                        on a second set whose tokens are all different. Tokens lost are in A and not in B, tokens
                        repeated are in B oftener than in A; "distinct" is the share of A that repeats nothing of A

CPU is that of the process and all its descendants, from before a loader is opened until after it is closed, user and
system; imports come before. It is divided by the tokens *delivered*. So what a loader reads ahead and throws away at
the end is charged to it, which is why a run is several epochs; loaders know how many. The consumer looks at one token
of a batch. Sequences are of the same length for all; whether a library gives int32 or int64, arrays or tensors, is left
to it.

Peak memory is sampled from outside ten times a second, over all processes. Resident memory counts pages of mapped
files, which the kernel could take back at any time; "own" leaves them out.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import itertools
import json
import os
import pickle
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from benchmark_data import SetSpec, generate
from benchmark_loaders import LOADERS, Loader, Options

from parquet_loader.index import DatasetIndex
from parquet_loader.index.build import index_storage
from parquet_loader.storage import open_storage

_RUN_SECONDS = 3600  # more than any run takes: a deadlock of a peer must not end the benchmark
_SAMPLE_SECONDS = 0.1


# ── in a process of its own: one step of one loader ──────────────────────────────────────────────────────────────


def step(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the step that a job describes."""
    loader = LOADERS[job["loader"]](Options(**job["options"]))
    loader.prepare()
    gc.collect()
    gc.freeze()  # or collecting at the end, over all that was imported, would be measured too
    folder = Path(job["folder"])
    match job["step"]:
        case "convert":
            return convert(loader, [Path(file) for file in job["files"]], folder)
        case "run":
            return run(loader, folder, job["tokens"])
        case "timed":
            return timed(loader, folder, job["seconds"])
        case "resume":
            return resume(loader, folder, Path(job["state"]))
        case "take":
            return take(loader, folder, job["batches"], state=job["state"], save=job["save"], taken=job["taken"])
    raise ValueError(f"no step {job['step']!r}")


def convert(loader: Loader, files: list[Path], folder: Path) -> dict[str, Any]:
    begin, cpu = time.perf_counter(), cpu_seconds()
    loader.convert(files, folder)
    return {"wall_s": time.perf_counter() - begin, "cpu_s": cpu_seconds() - cpu}


def run(loader: Loader, folder: Path, tokens: int) -> dict[str, Any]:
    """Take at least ``tokens`` tokens."""
    begin, cpu = time.perf_counter(), cpu_seconds()
    batches = loader.open(folder, None)
    delivered = touched = 0
    for batch in batches:
        rows, length = batch.shape
        delivered += rows * length
        touched += int(batch[rows - 1][length - 1])
        if delivered >= tokens:
            break
    wall = time.perf_counter() - begin
    report = loader.report()
    del batch
    _end(loader, batches)
    cpu, total = cpu_seconds() - cpu, time.perf_counter() - begin
    return {"wall_s": wall, "total_s": total, "cpu_s": cpu, "tokens": delivered, "report": report}


def timed(loader: Loader, folder: Path, seconds: float) -> dict[str, Any]:
    """Of a loader that is at work already: take tokens for about ``seconds``, after a quarter of that.

    Where a loader works ahead by windows, both parts are whole epochs: it is then as far ahead at the end as at the
    beginning.
    """
    epoch = loader.options.tokens if loader.whole_epochs else 0
    batches = loader.open(folder, None)
    _take_for(batches, seconds / 4, epoch)
    begin, cpu = time.perf_counter(), cpu_seconds()
    tokens = _take_for(batches, seconds, epoch)
    wall, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    _end(loader, batches)
    return {"wall_s": wall, "total_s": wall, "cpu_s": cpu, "tokens": tokens}


def _take_for(batches: Iterator[Any], seconds: float, epoch: int) -> int:
    """Take batches for so long, until a multiple of ``epoch`` tokens is reached; how many it were."""
    begin, goal, delivered = time.perf_counter(), epoch, 0
    for batch in batches:
        rows, length = batch.shape
        delivered += rows * length
        int(batch[rows - 1][length - 1])
        if delivered >= goal:
            if time.perf_counter() - begin >= seconds:
                break
            goal += epoch
    return delivered


def resume(loader: Loader, folder: Path, state: Path) -> dict[str, Any]:
    """Seconds from a state in memory to the first batch."""
    saved = pickle.loads(state.read_bytes())
    begin, cpu = time.perf_counter(), cpu_seconds()
    batches = loader.open(folder, saved)
    next(batches)
    wall = time.perf_counter() - begin
    _end(loader, batches)
    return {"wall_s": wall, "cpu_s": cpu_seconds() - cpu}


def take(loader: Loader, folder: Path, count: int, *, state: str, save: str, taken: str) -> dict[str, Any]:
    """From a state (none if empty) take ``count`` batches, or what is left of the epoch; store tokens and state."""
    batches = loader.open(folder, pickle.loads(Path(state).read_bytes()) if state else None)
    tokens = []
    epoch = None
    for batch in itertools.islice(batches, count):
        epoch = loader.epoch if epoch is None else epoch
        if loader.epoch != epoch:
            break
        tokens.append(np.asarray(batch).astype(np.int32).ravel())
    if save:
        Path(save).write_bytes(pickle.dumps(loader.state()))
    np.save(taken, np.concatenate(tokens))
    _end(loader, batches)
    return {"batches": len(tokens)}


def _end(loader: Loader, batches: Iterator[Any]) -> None:
    loader.close()
    batches.close()  # type: ignore[attr-defined]  # all are generators
    gc.collect()  # worker processes end with their iterator, and are then among the children that have been waited for


def cpu_seconds() -> float:
    """Of this process and all its descendants, those that have ended too."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in used)
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


# ── in the first process: which steps, and what they come to ─────────────────────────────────────────────────────


class Bench:
    """One set and its second set, if there is one, and the loaders' copies of both, in a folder."""

    def __init__(self, work: Path, source: Path, options: argparse.Namespace, unique: SetSpec | None = None) -> None:
        self.work = work
        self.cores = sorted(os.sched_getaffinity(0))[-options.cores :]
        self.epochs = options.epochs
        common = {
            "seq_len": options.seq_len,
            "lanes": options.lanes,
            "window": options.window,
            "threads": options.threads,
            "workers": options.workers,
        }
        cache = str(work / "index")
        self.index = index_storage(open_storage(str(source)), column=options.column, cache_dir=cache)
        self.sources = {"main": source}
        self.options = {"main": _options_of(self.index, common)}
        if unique is not None:
            self.sources["unique"] = work / "unique"
            generate(self.sources["unique"], unique)
            index = index_storage(open_storage(str(self.sources["unique"])), cache_dir=cache)
            self.options["unique"] = _options_of(index, common)

    def folder(self, name: str, which: str) -> Path:
        """What a loader reads."""
        return self.work / f"{name}-{which}" if LOADERS[name].converts else self.sources[which]

    def step(self, name: str, which: str, kind: str, **job: Any) -> dict[str, Any]:
        """Run a step in a process of its own; returns what it measured, and its memory.

        Raises:
            StepError: it failed.
        """
        job |= {
            "loader": name,
            "step": kind,
            "folder": str(self.folder(name, which)),
            "options": asdict(self.options[which]) | {"epochs": self.epochs if kind == "run" else None},
            "cores": self.cores,
            "result": str(self.work / "result.json"),
        }
        Path(job["result"]).unlink(missing_ok=True)
        (self.work / "job.json").write_text(json.dumps(job))
        with (self.work / "log.txt").open("w+") as log:
            process = subprocess.Popen(
                [sys.executable, __file__, "--job", str(self.work / "job.json")],
                stdout=log,
                stderr=log,
                env=self._environment(),
            )
            memory = _watch(process)
            log.seek(0)
            lines = log.read().strip().splitlines()
        if process.returncode or not Path(job["result"]).exists():
            raise StepError(f"{kind}: {lines[-1] if lines else f'exit code {process.returncode}'}")
        result: dict[str, Any] = json.loads(Path(job["result"]).read_text())
        return result | memory

    def _environment(self) -> dict[str, str]:
        # These two make NumPy choose kernels for another machine, and are set on some.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
        caches = {key: str(self.work / "caches") for key in ("HF_HOME", "XDG_CACHE_HOME", "TMPDIR")}
        Path(caches["TMPDIR"]).mkdir(exist_ok=True)
        return environment | caches | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1"}

    def convert(self, name: str, which: str) -> dict[str, Any]:
        """Make a loader's copy of a set."""
        folder, result = self.folder(name, which), {"wall_s": 0.0, "cpu_s": 0.0}
        if LOADERS[name].converts:
            folder.mkdir(parents=True)
            files = sorted(str(file) for file in self.sources[which].rglob("*.parquet"))
            result = self.step(name, which, "convert", files=files)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        return result | {"disk_bytes": size}

    def exactness(self, name: str) -> dict[str, Any]:
        """Compare a run that was broken off and resumed to one that was not."""
        options = self.options["unique"]
        size = options.lanes * options.seq_len
        batches = options.tokens // size - 1  # a last batch may reach into the next epoch
        if batches < 2:
            raise StepError(f"take: the second set holds {options.tokens:,} tokens and not three batches of {size:,}")
        state = str(self.work / "unique.state")

        def taken(part: str, count: int, state: str = "", save: str = "") -> Any:
            path = self.work / f"{part}.npy"
            self.step(name, "unique", "take", batches=count, state=state, save=save, taken=str(path))
            return np.load(path)

        whole = taken("whole", batches)
        first = taken("first", batches // 2, save=state)
        both = np.concatenate((first, taken("rest", batches - batches // 2, state=state)))
        counts = np.bincount(whole, minlength=options.vocab) - np.bincount(both, minlength=options.vocab)
        return {
            "exact": bool(np.array_equal(whole, both)),
            "lost_tokens": int(counts[counts > 0].sum()),
            "repeated_tokens": int(-counts[counts < 0].sum()),
            "distinct": len(np.unique(whole)) / len(whole),
        }

    def measure(self, names: list[str], rounds: int) -> dict[str, dict[str, Any]]:
        """Everything, for every loader: its figures, or what went wrong."""
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            entry: dict[str, Any] = {"title": LOADERS[name].title, "error": None, "runs": [], "resumes": []}
            found[name] = entry
            try:
                entry["convert"] = self.convert(name, "main")
                if LOADERS[name].resumes:
                    self.convert(name, "unique")
                    entry["exactness"] = self.exactness(name)
                    main = self.options["main"]
                    half = max(1, main.tokens // main.lanes // main.seq_len // 2)
                    parts = {"state": "", "save": self._state(name), "taken": str(self.work / "half.npy")}
                    self.step(name, "main", "take", batches=half, **parts)
            except StepError as error:
                entry["error"] = str(error)
            say(f"{name}: {entry['error'] or 'prepared'}")
        for number in range(rounds):
            for name in names:
                entry = found[name]
                if entry["error"]:
                    continue
                try:
                    self.warm(name)
                    tokens = self.epochs * self.options["main"].tokens
                    entry["runs"].append(self.step(name, "main", "run", tokens=tokens))
                    if LOADERS[name].resumes:
                        entry["resumes"].append(self.step(name, "main", "resume", state=self._state(name)))
                except StepError as error:
                    entry["error"] = str(error)
            say(f"round {number + 1} of {rounds}")
        for entry in found.values():
            entry["figures"] = figures_of(entry)
        return found

    def _state(self, name: str) -> str:
        return str(self.work / f"{name}.state")

    def warm(self, name: str) -> None:
        """Read the files that a loader reads, so that they are in memory."""
        for file in self.folder(name, "main").rglob("*"):
            if file.is_file():
                with file.open("rb") as stream:
                    while stream.read(1 << 24):
                        pass


class StepError(Exception):
    """A step of a loader failed; the last line that it printed."""


def _options_of(index: DatasetIndex, common: Mapping[str, int]) -> Options:
    return Options(
        column=index.column, vocab=int(index.max_id.max()) + 1, tokens=int(index.tokens.sum()), **dict(common)
    )


def _watch(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """Wait for a process; the most memory that it and its descendants had."""
    peak = {"peak_bytes": 0, "peak_own_bytes": 0}
    end = time.monotonic() + _RUN_SECONDS
    root = psutil.Process(process.pid)
    while True:
        try:
            process.wait(_SAMPLE_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                process.kill()
        else:
            return peak
        resident = own = 0
        try:
            for each in [root, *root.children(recursive=True)]:
                memory = each.memory_info()
                resident += memory.rss
                own += memory.rss - memory.shared
        except psutil.Error:
            continue  # one ended meanwhile
        peak = {"peak_bytes": max(peak["peak_bytes"], resident), "peak_own_bytes": max(peak["peak_own_bytes"], own)}


def figures_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of the table, from the rounds; what was not measured is None."""
    runs, exactness = entry["runs"], entry.get("exactness", {})

    def median(values: list[float]) -> float | None:
        return statistics.median(values) if values else None

    return {
        "convert_s": entry.get("convert", {}).get("wall_s"),
        "disk_bytes": entry.get("convert", {}).get("disk_bytes"),
        "tokens_per_s": median([run["tokens"] / run["wall_s"] for run in runs]),
        "cores": median([run["cpu_s"] / run["total_s"] for run in runs]),
        "cpu_ns_per_token": median([run["cpu_s"] / run["tokens"] * 1e9 for run in runs]),
        "resume_s": median([run["wall_s"] for run in entry["resumes"]]),
        "exact": exactness.get("exact"),
        "lost_tokens": exactness.get("lost_tokens"),
        "repeated_tokens": exactness.get("repeated_tokens"),
        "distinct": exactness.get("distinct"),
        "peak_bytes": median([run["peak_bytes"] for run in runs]),
        "peak_own_bytes": median([run["peak_own_bytes"] for run in runs]),
    }


def installed(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """(those of these loaders whose modules are here, why the others are not)."""
    missing = {name: reason for name in names if (reason := LOADERS[name].missing())}
    return [name for name in names if name not in missing], missing


def versions_of(names: list[str]) -> dict[str, str]:
    versions = {}
    for package in sorted({package for name in names for package in LOADERS[name].packages}):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # one of two that are the same to us
    return versions


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help="a folder of tokenized Parquet; made, if not given")
    parser.add_argument("--column", help="its token column, if it has several")
    parser.add_argument("--tokens", type=int, default=63_500_000, help="of the set that is made")
    parser.add_argument("--groups", type=int, default=64, help="row groups of the sets that are made")
    parser.add_argument(
        "--mean-length", type=float, default=1000, help="tokens of a document of the sets that are made"
    )
    parser.add_argument("--unique-tokens", type=int, default=8_000_000, help="of the second set, for resumes")
    parser.add_argument("--loaders", default=",".join(LOADERS), help="which, separated by commas (all: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=8, help="of a run")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--lanes", type=int, default=64, help="rows of a batch")
    parser.add_argument("--window", type=int, default=16, help="row groups that parquet_loader shuffles together")
    parser.add_argument("--cores", type=int, default=1, help="that a loader may use")
    parser.add_argument("--threads", type=int, help="of parquet_loader; one a core, if not given")
    parser.add_argument(
        "--workers", type=int, help="of PyTorch's DataLoader, where a loader has one: one a core of several"
    )
    parser.add_argument("--work", type=Path, help="an empty folder for the sets and copies (a few GB); it is kept")
    parser.add_argument("--output", type=Path, default=Path("build/benchmark"), help="stem of .json, .svg and .png")
    options = parser.parse_args()
    if options.threads is None:
        options.threads = options.cores
    if options.workers is None:
        options.workers = 0 if options.cores == 1 else options.cores
    if options.job:
        job = json.loads(options.job.read_text())
        os.sched_setaffinity(0, job["cores"])
        Path(job["result"]).write_text(json.dumps(step(job)))
        return
    names = options.loaders.split(",")
    if unknown := set(names) - set(LOADERS):
        parser.error(f"no loader {', '.join(sorted(unknown))}; there are {', '.join(LOADERS)}")
    if options.work and options.work.exists() and any(options.work.iterdir()):
        parser.error(f"--work {options.work} is not empty")
    import benchmark_report

    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        shape = {"groups": options.groups, "mean_length": options.mean_length}
        source = options.data or work / "main"
        if not options.data:
            generate(source, SetSpec(tokens=options.tokens, **shape))
        bench = Bench(work, source.resolve(), options, SetSpec(tokens=options.unique_tokens, vocab=0, **shape))
        names, missing = installed(names)
        for name, reason in missing.items():
            say(f"{name} is left out: {reason}")
        result = {
            "machine": {"cpu": cpu_name(), "cpus": os.cpu_count(), "python": platform.python_version()},
            "versions": versions_of(names),
            "set": {
                "tokens": bench.options["main"].tokens,
                "documents": int(bench.index.rows.sum()),
                "row_groups": len(bench.index),
                "vocab": bench.options["main"].vocab,
                "source": str(options.data) if options.data else "made",
            },
            "options": {key: value for key, value in vars(options).items() if not isinstance(value, Path | None)},
            "missing": missing,
            "loaders": bench.measure(names, options.rounds),
        }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    print(benchmark_report.table(result))
    benchmark_report.plot_if_possible(result, options.output)


if __name__ == "__main__":
    main()
