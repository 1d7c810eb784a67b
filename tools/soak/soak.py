#!/usr/bin/env python3
"""Kill a run of many ranks again and again, on other numbers of ranks each time, and see that no token moved.

    quiet run     1 rank    |------------------------------------------|   digest of every (step, lane)
    killed run    5 ranks   |-----X
                  2 ranks      |-------X
                  8 ranks          |----X      ...                     |   the same digests, all of them, repeats too

Every round starts as many processes as are drawn, at most 8. Each goes on from the newest merged checkpoint, writes
down what it got, and stores its part of a checkpoint every other step; rank 0 merges the parts of a step once all are
there. Then all are killed with SIGKILL: at any moment, or as soon as one of them is seen in a phase that was drawn.
The index cache is wiped now and then, so that kills hit its making too.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import hashlib
import importlib
import itertools
import json
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from reliability_docs import table, write_docs

import parquet_loader.engine.task
import parquet_loader.index.cache
import parquet_loader.index.follow
import parquet_loader.storage.local
import parquet_loader.storage.remote
from parquet_loader import (
    Batch,
    Component,
    GrowthTimeoutError,
    ParquetLoader,
    WriterFailedError,
    merge_checkpoints,
)
from parquet_loader.storage.atomic import write_atomically

ROOT = Path(__file__).parents[2]
LANES, MOST_RANKS = 24, 8
RUN: dict[str, Any] = {
    "seq_len": 64,
    "lanes": LANES,
    "window": 5,
    "seed": 3,
    "epochs": 2,
    "eos_id": 0,
    "uneven": True,
    "threads": 2,
    "budget_bytes": 64 << 20,
}
CHECKPOINT_STEPS = 2
TRAIN_SECONDS = 0.005  # what a step takes beside its batch
WIPE_SHARE = 0.4
LOOK_SECONDS = 0.01, 0.3  # between looks at a set that grows: each rank sees it grow at other moments
GAVE_UP = 3  # how a rank ends that has waited too long for such a set

# Processes are forked from a server that has imported these once, where it was told so before its first one.
_PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["pyarrow.parquet", "parquet_loader", "parquet_loader.pretokenize.cli", "s3fs"]
AIM_SECONDS = 15.0  # a round in which a phase is never seen ends then at the latest
HANG_SECONDS = 300.0

# A process's marks: of each phase, how many of its threads are in it.
PHASES = (
    "starting",
    "listing and reading footers",
    "writing the index cache",
    "reading data",
    "decoding",
    "waiting for a batch",
    "between batches",
    "writing a checkpoint's part",
    "merging a checkpoint",
)
WAITING_FOR_FILES = "waiting for files"  # of a set that grows
_MARKED = (*PHASES, WAITING_FOR_FILES)
Digests = dict[tuple[int, int], bytes]
_RECORD = struct.Struct("<IH8s")  # step, lane, digest of the row


class SoakError(Exception):
    """A row is missing or another than in the quiet run, or a process failed that nobody killed."""


@dataclass(frozen=True)
class Job:
    """What is trained on.

    Attributes:
        source: a path or URL; of a mixture, by name, what its `Component`s are made of.
        options: of the loader.
        steps: of a run that does not end by its epochs.
        environment: variables of its processes.
    """

    source: str | dict[str, dict[str, Any]]
    options: dict[str, Any] = field(default_factory=lambda: RUN)
    steps: int = sys.maxsize
    environment: dict[str, str] = field(default_factory=dict)

    def loader(self, **more: Any) -> ParquetLoader:
        """At the beginning."""
        source = self.source
        if isinstance(source, str):
            return ParquetLoader(source, **self.options, **more)
        return ParquetLoader({name: Component(**each) for name, each in source.items()}, **self.options, **more)

    def with_options(self, **options: Any) -> Job:
        """The same with some others."""
        return replace(self, options={**self.options, **options})

    def batches(self, loader: ParquetLoader) -> Iterator[Batch]:
        """What is left of a run."""
        while loader.epoch < self.options.get("epochs", sys.maxsize):
            for batch in loader:
                yield batch
                if self.step_of(batch) + 1 >= self.steps:
                    return

    def step_of(self, batch: Batch) -> int:
        """From 0."""
        return int(batch.state["position"]) // int(self.options["seq_len"]) - 1

    def records(self, batch: Batch, first_lane: int) -> Iterator[tuple[int, int, bytes]]:
        """(step, lane, digest) of every row of a batch."""
        lengths = batch.lengths if batch.lengths is not None else np.full(len(batch.tokens), batch.tokens.shape[1])
        for place, (row, length) in enumerate(zip(batch.tokens, lengths.tolist(), strict=True)):
            digest = hashlib.blake2b(row.tobytes() + str(length).encode(), digest_size=8).digest()
            yield self.step_of(batch), first_lane + place, digest


# ── one rank ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Marks:
    """Which phases a process is in, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), len(_MARKED))

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Be in a phase for the length of a block."""
        self.count(phase, 1)
        try:
            yield
        finally:
            self.count(phase, -1)

    def count(self, phase: str, change: int) -> None:
        """So many threads more are in a phase."""
        with self._lock:
            self._bytes[_MARKED.index(phase)] += change

    def wrap(self, owner: object, name: str, phase: str) -> None:
        """Mark a phase in each call of a function of a module or class."""
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def marked(*arguments: Any, **options: Any) -> Any:
            with self(phase):
                return function(*arguments, **options)

        setattr(owner, name, marked)


def make_marks(path: Path) -> None:
    """The marks of a process that is being started."""
    path.write_bytes(bytes(phase == "starting" for phase in _MARKED))


def read_marks(path: Path) -> list[str]:
    """The phases that a process is in, or was in when it ended."""
    return [phase for phase, count in zip(_MARKED, path.read_bytes(), strict=True) if count]


def work(job: Job, place: Path, rank: int, world_size: int) -> None:
    """Train, as one rank of the round whose folder this is, within the run's.

    Raises:
        SystemExit: it has given up.
    """
    marks = Marks(place / f"marks-{rank}")
    warnings.filterwarnings("error", message="the index cache")  # no kill may damage it
    marks.wrap(parquet_loader.index.cache, "write_atomically", "writing the index cache")
    marks.wrap(parquet_loader.engine.task._Run, "decode", "decoding")
    marks.wrap(parquet_loader.index.follow.Follower, "until", WAITING_FOR_FILES)
    for storage in (parquet_loader.storage.local.LocalStorage, parquet_loader.storage.remote.FsspecStorage):
        marks.wrap(storage, "read", "reading data")
    seconds = random.Random(f"{place.name} {rank}").uniform(*LOOK_SECONDS)
    parquet_loader.index.follow.Follower.LOCAL_SECONDS = parquet_loader.index.follow.Follower.REMOTE_SECONDS = seconds
    try:
        _train(job, place, rank, world_size, marks)
    except (GrowthTimeoutError, WriterFailedError) as error:
        (place / f"gave-up-{rank}").write_text(str(error))
    else:
        return
    if left := [thread.name for thread in threading.enumerate() if thread.name.startswith("parquet-loader")]:
        raise SoakError(f"rank {rank} has given up, and threads have not: {left}")
    sys.exit(GAVE_UP)


def _train(job: Job, place: Path, rank: int, world_size: int, marks: Marks) -> None:
    folder = place.parent
    with (folder / "run" / f"{place.name}-{rank}.log").open("ab", buffering=0) as log, contextlib.ExitStack() as stack:
        with marks("listing and reading footers"):
            marks.count("starting", -1)
            loader = job.loader(rank=rank, world_size=world_size, cache_dir=folder / "cache")
            stack.enter_context(loader)
        if (folder / "merged").exists():
            loader.resume((folder / "merged").read_bytes())
        first_lane, merged = rank * LANES // world_size, -1
        batches = job.batches(loader)
        while True:
            with marks("waiting for a batch"):
                batch = next(batches, None)
            if batch is None:
                break
            with marks("between batches"):
                log.write(b"".join(_RECORD.pack(*record) for record in job.records(batch, first_lane)))
                time.sleep(TRAIN_SECONDS)
            step = job.step_of(batch)
            if (step + 1) % CHECKPOINT_STEPS:
                continue
            with marks("writing a checkpoint's part"):
                write_atomically(place / f"{step:06}-{rank}.part", loader.checkpoint(batch.state))
            if not rank:
                with marks("merging a checkpoint"):
                    merged = merge(place, folder / "merged", merged, world_size)


def merge(place: Path, target: Path, merged: int, world_size: int) -> int:
    """Merge the parts of the newest step of which all ranks' are there, if it is newer than ``merged``; that step."""
    there = Counter(int(path.name[:6]) for path in place.glob("*.part"))
    step = max((step for step, count in there.items() if count == world_size), default=-1)
    if step <= merged:
        return merged
    write_atomically(target, merge_checkpoints(path.read_bytes() for path in place.glob(f"{step:06}-*.part")))
    return step


# ── the rounds ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Result:
    """What happened on one storage.

    Attributes:
        storage: its name.
        kills: rounds that ended by SIGKILL.
        killed: processes of those rounds.
        phases: of each phase, the killed processes that were in it; with threads, one may be in several.
        ranks: of each world size, the rounds that were killed on it.
        runs: that were killed until they came to their end.
        rows: of a run.
        records: of all runs, repeats too.
        wipes: of the index cache.
        gave_up: rounds in which a rank had waited too long for a set to grow.
        writer: what happened to the writer of such a set.
        digest: of all rows.
    """

    storage: str
    kills: int = 0
    killed: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    ranks: Counter[int] = field(default_factory=Counter)
    runs: int = 0
    rows: int = 0
    records: int = 0
    wipes: int = 0
    gave_up: int = 0
    writer: Counter[str] = field(default_factory=Counter)
    digest: str = ""

    def count_kill(self, ranks: Ranks) -> None:
        """Kill the ranks of a round, and count those that were not at their end."""
        ranks.kill()
        hit = [rank for rank, code in enumerate(ranks.codes) if code == -signal.SIGKILL]
        phases = ranks.phases()
        self.kills += bool(hit)
        self.killed += len(hit)
        self.ranks[len(phases)] += bool(hit)
        for rank in hit:
            self.phases.update(phases[rank])


def write_set(folder: Path, tokens: int) -> None:
    """Documents of all lengths; every token but the EOS is another."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    schema = pa.schema([pa.field("tokens", pa.list_(pa.int32()))])
    files, groups = 6, 4
    borders = np.linspace(1, tokens + 1, files * groups + 1).astype(int)
    for number in range(files):
        with pq.ParquetWriter(folder / f"part-{number:03}.parquet", schema, write_page_checksum=True) as writer:
            for group in range(number * groups, (number + 1) * groups):
                first, last = int(borders[group]), int(borders[group + 1])
                cuts = np.sort(rng.integers(0, last - first, (last - first) // 50))
                offsets = pa.array([0, *cuts.tolist(), last - first], pa.int32())
                values = pa.array(np.arange(first, last, dtype=np.int32))
                writer.write_table(pa.table([pa.ListArray.from_arrays(offsets, values)], schema=schema))


def quiet_digests(job: Job, cache: Path) -> Digests:
    """What one rank gets that nobody disturbs."""
    with job.loader(cache_dir=cache) as loader:
        return {(step, lane): digest for batch in job.batches(loader) for step, lane, digest in job.records(batch, 0)}


def digest_of(digests: Digests) -> str:
    """Of all rows in order."""
    return hashlib.sha256(b"".join(digests[place] for place in sorted(digests))).hexdigest()


def read_records(logs: Path, expected: Digests) -> tuple[Digests, int]:
    """(What a killed run got, how many records tell it); each is compared with the quiet run's.

    Raises:
        SoakError: one is another.
    """
    found: Digests = {}
    count = 0
    for log in sorted(logs.iterdir()):
        data = log.read_bytes()
        whole = len(data) - len(data) % _RECORD.size  # the last write may have been cut off
        for step, lane, digest in _RECORD.iter_unpack(data[:whole]):
            if expected.get((step, lane)) != digest:
                raise SoakError(f"{log}: step {step}, lane {lane} is another row than in the quiet run")
            found[step, lane] = digest
            count += 1
    return found, count


def start(
    work: Callable[..., None], arguments: Sequence[object], environment: dict[str, str], errors: Path
) -> ForkServerProcess:
    """Start a process that does so, and tells of errors in a file."""
    process = _PROCESSES.Process(target=_begin, args=(work, arguments, environment, errors))
    process.start()
    return process


def _begin(work: Callable[..., None], arguments: Sequence[object], environment: dict[str, str], errors: Path) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    os.environ.update(environment)
    work(*arguments)


class Ranks:
    """The processes of a round, killed at the end of the ``with`` block if not before. Each has a job of its own."""

    def __init__(self, jobs: Sequence[Job], place: Path) -> None:
        self._place = place
        self._marks = [place / f"marks-{rank}" for rank in range(len(jobs))]
        for path in self._marks:
            make_marks(path)
        self._processes = [
            start(work, (job, place, rank, len(jobs)), job.environment, self._errors(rank))
            for rank, job in enumerate(jobs)
        ]

    def _errors(self, rank: int) -> Path:
        return self._place / f"errors-{rank}"

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End them all at once, without a word."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    @property
    def are_done(self) -> bool:
        """Whether all have ended.

        Raises:
            SoakError: one has failed.
        """
        codes = self.codes
        for rank, code in enumerate(codes):
            if code not in (None, 0, GAVE_UP, -signal.SIGKILL):
                raise SoakError(f"rank {rank} of {len(codes)} ended with {code}:\n{self._errors(rank).read_text()}")
        return None not in codes

    @property
    def have_given_up(self) -> bool:
        """Whether one has: the others wait for it in vain, as those of a job do."""
        return GAVE_UP in self.codes

    def wait(self) -> None:
        """Let them come to their end, or until one has given up.

        Raises:
            SoakError: one has failed, or hangs.
        """
        end = time.monotonic() + HANG_SECONDS
        while not self.are_done and not self.have_given_up:
            if time.monotonic() > end:
                raise self.hang(f"the ranks have not ended after {HANG_SECONDS:.0f} s")
            time.sleep(0.02)

    def hang(self, what: str) -> SoakError:
        """An error that has every thread's stack."""
        for process in self._processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)
        stacks = "\n\n".join(self._errors(rank).read_text() for rank in range(len(self._processes)))
        return SoakError(f"{what}; they are at {self.phases()}\n{stacks}")

    @property
    def codes(self) -> list[int | None]:
        """How each has ended; None where it has not."""
        return [process.exitcode for process in self._processes]

    def phases(self) -> list[list[str]]:
        """Of each rank, the phases that it is in."""
        return [read_marks(path) for path in self._marks]


def watch(ranks: Ranks, rng: random.Random, phases: Sequence[str] = PHASES) -> bool:
    """Wait for the moment to kill; False where all ranks came to their end before it."""
    wanted = rng.choice([None, *phases])
    early = wanted is None or phases.index(wanted) < phases.index("reading data")
    after = time.monotonic() + (0 if wanted is not None and early else rng.uniform(0, 0.6))
    latest = after if wanted is None else after + (3 if early else AIM_SECONDS)
    while not ranks.are_done:
        now = time.monotonic()
        if now >= latest or ranks.have_given_up:
            return True
        if now >= after and any(wanted in each for each in ranks.phases()):
            return True
        time.sleep(0.0005)
    return False


def one_run(
    draw: Callable[[], list[Job]],
    folder: Path,
    expected: Digests,
    result: Result,
    rng: random.Random,
    *,
    kills: int,
    phases: Sequence[str] = PHASES,
) -> None:
    """Run until the end, and kill until there have been enough kills in all.

    Args:
        draw: the jobs of a round's ranks.
        folder: for what is written.
        expected: of the quiet run.
        result: what happens is added to it.
        rng: draws the moments of the kills.
        kills: after so many the run is left alone.
        phases: that may be aimed at.

    Raises:
        SoakError: a row is missing or another, or a process failed by itself.
    """
    (folder / "merged").unlink(missing_ok=True)
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "run").mkdir(parents=True)
    ended = False
    for number in itertools.count(1):
        if rng.random() < WIPE_SHARE:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            result.wipes += 1
        place = folder / f"round-{number:04}"
        place.mkdir()
        with Ranks(draw(), place) as ranks:
            if result.kills >= kills:
                ranks.wait()
            elif watch(ranks, rng, phases):
                result.count_kill(ranks)
            result.gave_up += ranks.have_given_up
            ended = ranks.are_done and not any(ranks.codes)
        shutil.rmtree(place)
        if ended:
            break
    found, count = read_records(folder / "run", expected)
    if missing := sorted(set(expected) - set(found)):
        raise SoakError(f"{len(missing):,} of {len(expected):,} rows are missing, the first {missing[0]}")
    if digest_of(found) != digest_of(expected):
        raise SoakError("the digest is another than the quiet run's")
    result.records += count
    result.rows = len(expected)
    result.runs += 1


def soak(storage: str, job: Job, folder: Path, *, kills: int, seed: int, expected: Digests) -> Result:
    """Run and kill until there have been enough kills, and the run that they fell in has come to its end.

    Raises:
        SoakError: a row is missing or another, or a process failed by itself.
    """
    rng = random.Random(seed)
    result = Result(storage, digest=digest_of(expected))
    while result.kills < kills or not result.runs:
        one_run(lambda: [job] * rng.randint(1, MOST_RANKS), folder, expected, result, rng, kills=kills)
    return result


def soak_local(folder: Path, *, kills: int, seed: int, tokens: int) -> Result:
    """`soak` over files on disk."""
    write_set(folder / "set", tokens)
    job = Job(str(folder / "set"))
    return soak("local", job, folder, kills=kills, seed=seed, expected=quiet_digests(job, folder / "quiet-cache"))


def soak_s3(folder: Path, server: Any, *, kills: int, seed: int, tokens: int) -> Result:
    """`soak` over a running S3 server of tests/s3_server.py; the rows must be those of the same files on disk."""
    tests = importlib.import_module("s3_server")
    write_set(folder / "set", tokens)
    expected = quiet_digests(Job(str(folder / "set")), folder / "quiet-cache")
    job = Job(server.upload(folder / "set", f"soak-{seed}"), environment=tests.environment_for(server.endpoint))
    return soak("S3", job, folder, kills=kills, seed=seed, expected=expected)


def summary(results: Sequence[Result]) -> str:
    """Tables of what happened."""
    head = ["", *(result.storage for result in results)]
    sizes: list[list[str | int]] = [
        [f"kills on {size} rank{'s' * (size > 1)}", *(result.ranks[size] for result in results)]
        for size in range(1, MOST_RANKS + 1)
    ]
    counts: list[list[str | int]] = [
        ["kills: rounds ended by SIGKILL", *(result.kills for result in results)],
        ["processes killed", *(result.killed for result in results)],
        *sizes,
        ["runs that reached their end", *(result.runs for result in results)],
        ["index cache wiped", *(result.wipes for result in results)],
        ["rows of one run", *(result.rows for result in results)],
        ["rows delivered, repeats included", *(result.records for result in results)],
        ["rows lost", *(0 for _ in results)],
        ["rows that differ from the uninterrupted run's", *(0 for _ in results)],
    ]
    phases: list[list[str | int]] = [[phase, *(result.phases[phase] for result in results)] for phase in PHASES]
    digests = "\n".join(
        f"{result.storage}: SHA-256 of all rows `{result.digest[:16]}…`, as in the uninterrupted run."
        for result in results
    )
    return (
        f"{table(head, counts)}\nWhat the killed processes were doing; one whose threads read and decode ahead may be "
        f"in several phases.\n\n{table(['phase', *head[1:]], phases)}\n{digests}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--storage", nargs="+", choices=["local", "s3"], default=["local", "s3"])
    parser.add_argument("--kills", type=int, default=60, help="on each storage")
    parser.add_argument("--tokens", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write-docs", action="store_true", help="put the summary into docs/reliability.md")
    arguments = parser.parse_args(argv)
    options = {name: getattr(arguments, name) for name in ("kills", "seed", "tokens")}
    work_folder = Path(tempfile.mkdtemp(prefix="soak-"))
    results = []
    try:
        for storage in arguments.storage:
            if storage == "local":
                results.append(soak_local(work_folder / storage, **options))
            else:
                sys.path.insert(0, str(ROOT / "tests"))
                with importlib.import_module("s3_server").s3_server(work_folder / "server") as server:
                    results.append(soak_s3(work_folder / storage, server, **options))
            print(f"soak: {storage}: {results[-1].kills} kills, all rows as in a quiet run", flush=True)
    except SoakError as error:
        print(f"soak: {error}\nsoak: see {work_folder}", file=sys.stderr)
        return 1
    text = summary(results)
    print(json.dumps(options), text, sep="\n")
    if arguments.write_docs:
        write_docs("soak", text)
    shutil.rmtree(work_folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
