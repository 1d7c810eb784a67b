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
import functools
import hashlib
import importlib
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from reliability_docs import table, write_docs

import parquet_loader.engine.task
import parquet_loader.index.cache
import parquet_loader.storage.local
import parquet_loader.storage.remote
from parquet_loader import Batch, ParquetLoader, merge_checkpoints
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
Digests = dict[tuple[int, int], bytes]
_RECORD = struct.Struct("<IH8s")  # step, lane, digest of the row


class SoakError(Exception):
    """A row is missing or another than in the quiet run, or a process failed that nobody killed."""


# ── one rank ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Marks:
    """Which phases a process is in, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), len(PHASES))

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
            self._bytes[PHASES.index(phase)] += change

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
    path.write_bytes(bytes(phase == "starting" for phase in PHASES))


def read_marks(path: Path) -> list[str]:
    """The phases that a process is in, or was in when it ended."""
    return [phase for phase, count in zip(PHASES, path.read_bytes(), strict=True) if count]


def step_of(batch: Batch) -> int:
    return int(batch.state["position"]) // int(RUN["seq_len"]) - 1


def records(batch: Batch, first_lane: int) -> Iterator[tuple[int, int, bytes]]:
    """(step, lane, digest) of every row of a batch."""
    lengths = batch.lengths if batch.lengths is not None else np.full(len(batch.tokens), batch.tokens.shape[1])
    for place, (row, length) in enumerate(zip(batch.tokens, lengths.tolist(), strict=True)):
        digest = hashlib.blake2b(row.tobytes() + str(length).encode(), digest_size=8).digest()
        yield step_of(batch), first_lane + place, digest


def work(source: str, folder: Path, place: Path, rank: int, world_size: int) -> None:
    """Train, as one rank of a round."""
    marks = Marks(place / f"marks-{rank}")
    warnings.filterwarnings("error", message="the index cache")  # no kill may damage it
    marks.wrap(parquet_loader.index.cache, "write_atomically", "writing the index cache")
    marks.wrap(parquet_loader.engine.task._Run, "decode", "decoding")
    for storage in (parquet_loader.storage.local.LocalStorage, parquet_loader.storage.remote.FsspecStorage):
        marks.wrap(storage, "read", "reading data")
    with (folder / "run" / f"{place.name}-{rank}.log").open("ab", buffering=0) as log, contextlib.ExitStack() as stack:
        with marks("listing and reading footers"):
            marks.count("starting", -1)
            loader = ParquetLoader(source, rank=rank, world_size=world_size, cache_dir=folder / "cache", **RUN)
            stack.enter_context(loader)
        if (folder / "merged").exists():
            loader.resume((folder / "merged").read_bytes())
        first_lane, merged = rank * LANES // world_size, -1
        while loader.epoch < RUN["epochs"]:
            batches = iter(loader)
            while True:
                with marks("waiting for a batch"):
                    batch = next(batches, None)
                if batch is None:
                    break
                with marks("between batches"):
                    log.write(b"".join(_RECORD.pack(*record) for record in records(batch, first_lane)))
                    time.sleep(TRAIN_SECONDS)
                step = step_of(batch)
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
    digest: str = ""


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


def quiet_digests(source: str, cache: Path) -> Digests:
    """What one rank gets that nobody disturbs."""
    found: Digests = {}
    with ParquetLoader(source, cache_dir=cache, **RUN) as loader:
        while loader.epoch < RUN["epochs"]:
            for batch in loader:
                found.update({(step, lane): digest for step, lane, digest in records(batch, 0)})
    return found


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


class Ranks:
    """The processes of a round, killed at the end of the ``with`` block if not before."""

    def __init__(self, source: str, folder: Path, place: Path, world_size: int, environment: dict[str, str]) -> None:
        self._marks = [place / f"marks-{rank}" for rank in range(world_size)]
        for path in self._marks:
            make_marks(path)
        command = [sys.executable, str(Path(__file__)), "--rank", source, str(folder), str(place)]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._processes = []
        for rank in range(world_size):
            with (place / f"errors-{rank}").open("wb") as errors:
                process = subprocess.Popen(
                    [*command, str(rank), str(world_size)],
                    env={**os.environ, **environment, "PYTHONPATH": paths},
                    stderr=errors,
                )
            self._processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End them all at once, without a word."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    @property
    def are_done(self) -> bool:
        """Whether all have ended.

        Raises:
            SoakError: one has failed.
        """
        codes = [process.poll() for process in self._processes]
        for rank, code in enumerate(codes):
            if code not in (None, 0, -signal.SIGKILL):
                errors = self._marks[rank].with_name(f"errors-{rank}").read_text()
                raise SoakError(f"rank {rank} of {len(codes)} ended with {code}:\n{errors}")
        return None not in codes

    def wait(self) -> None:
        """Let them come to their end.

        Raises:
            SoakError: one has failed, or hangs.
        """
        end = time.monotonic() + HANG_SECONDS
        while not self.are_done:
            if time.monotonic() > end:
                raise SoakError(f"the ranks have not ended after {HANG_SECONDS:.0f} s; they are at {self.phases()}")
            time.sleep(0.02)

    @property
    def codes(self) -> list[int | None]:
        """How each has ended; None where it has not."""
        return [process.poll() for process in self._processes]

    def phases(self) -> list[list[str]]:
        """Of each rank, the phases that it is in."""
        return [read_marks(path) for path in self._marks]


def watch(ranks: Ranks, rng: random.Random) -> bool:
    """Wait for the moment to kill; False where all ranks came to their end before it."""
    wanted = rng.choice([None, *PHASES])
    early = wanted is None or PHASES.index(wanted) < PHASES.index("reading data")
    after = time.monotonic() + (rng.uniform(0, 3) if wanted is None else 0 if early else rng.uniform(0.5, 2))
    latest = after if wanted is None else after + (3 if early else AIM_SECONDS)
    while not ranks.are_done:
        now = time.monotonic()
        if now >= latest:
            return True
        if now >= after and any(wanted in phases for phases in ranks.phases()):
            return True
        time.sleep(0.0005)
    return False


def soak(
    storage: str, source: str, folder: Path, *, kills: int, seed: int, environment: dict[str, str], expected: Digests
) -> Result:
    """Run and kill until there have been enough kills, and the run that they fell in has come to its end.

    Raises:
        SoakError: a row is missing or another, or a process failed by itself.
    """
    rng = random.Random(seed)
    result = Result(storage, rows=len(expected), digest=digest_of(expected))
    (folder / "run").mkdir(parents=True)
    number = 0
    while result.kills < kills or not result.runs:
        (folder / "merged").unlink(missing_ok=True)
        shutil.rmtree(folder / "run")
        (folder / "run").mkdir()
        ended = False
        while not ended:
            if rng.random() < WIPE_SHARE:
                shutil.rmtree(folder / "cache", ignore_errors=True)
                result.wipes += 1
            number += 1
            place = folder / f"round-{number:04}"
            place.mkdir()
            world_size = rng.randint(1, MOST_RANKS)
            with Ranks(source, folder, place, world_size, environment) as ranks:
                if result.kills >= kills:
                    ranks.wait()
                elif watch(ranks, rng):
                    ranks.kill()
                    hit = [rank for rank, code in enumerate(ranks.codes) if code == -signal.SIGKILL]
                    phases = ranks.phases()
                    result.kills += bool(hit)
                    result.killed += len(hit)
                    result.ranks[world_size] += bool(hit)
                    for rank in hit:
                        result.phases.update(phases[rank])
                ended = ranks.are_done and all(code == 0 for code in ranks.codes)
            shutil.rmtree(place)
        found, count = read_records(folder / "run", expected)
        if missing := sorted(set(expected) - set(found)):
            raise SoakError(f"{len(missing):,} of {len(expected):,} rows are missing, the first {missing[0]}")
        if digest_of(found) != result.digest:
            raise SoakError("the digest is another than the quiet run's")
        result.records += count
        result.runs += 1
    return result


def soak_local(folder: Path, *, kills: int, seed: int, tokens: int) -> Result:
    """`soak` over files on disk."""
    write_set(folder / "set", tokens)
    expected = quiet_digests(str(folder / "set"), folder / "quiet-cache")
    return soak("local", str(folder / "set"), folder, kills=kills, seed=seed, environment={}, expected=expected)


def soak_s3(folder: Path, server: Any, *, kills: int, seed: int, tokens: int) -> Result:
    """`soak` over a running S3 server of tests/s3_server.py; the rows must be those of the same files on disk."""
    tests = importlib.import_module("s3_server")
    write_set(folder / "set", tokens)
    expected = quiet_digests(str(folder / "set"), folder / "quiet-cache")
    url = server.upload(folder / "set", f"soak-{seed}")
    environment = tests.environment_for(server.endpoint)
    return soak("S3", url, folder, kills=kills, seed=seed, environment=environment, expected=expected)


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
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--rank"]:
        source, folder, place, rank, world_size = argv[1:]
        work(source, Path(folder), Path(place), int(rank), int(world_size))
        return 0
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
