#!/usr/bin/env python3
"""Train on sets while they are being tokenized, kill readers and writer again and again, and see that no token moved.

    finished set    written before by the same command, and read by one rank in peace: digest of every (step, lane)
    writer          |----X  |--  --  --|      |-----X   |----|     fast, slow, stopped, killed and run again
    killed run        3 ranks |---X  1 rank |-----X  4 ranks |--X ...    |   the same digests, all of them, repeats too

Every run is of another text, sizes and options: documents, packed rows, or a mixture with a set that is finished. The
rounds are those of soak.py, and go on after the set is complete, with follow=True and without, into later epochs. Some
ranks wait less long than others; the first to give up ends its round.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reliability_docs import table, write_docs
from soak import (
    HANG_SECONDS,
    LANES,
    PHASES,
    PRELOADED,
    ROOT,
    WAITING_FOR_FILES,
    Job,
    Result,
    SoakError,
    one_run,
    quiet_digests,
    start,
    write_set,
)

from parquet_loader.pretokenize import cli

MOST_RANKS = 4
TOKENS = 100_000
IMPATIENT_SHARE = 0.25  # of ranks
PHASES_SEEN = (*PHASES, WAITING_FOR_FILES)
MANNERS = {"fast": 1, "slow": 4, "stopped": 2, "killed": 2, "interrupted": 1}
MOST_ENDS = 4  # of a writer, before it is left alone
_ENDED = {"killed": signal.SIGKILL, "interrupted": signal.SIGTERM}

# ── the writer ───────────────────────────────────────────────────────────────────────────────────────────────────


def write(command: Sequence[str], seed: int, manners: Path) -> None:
    """Run the pretokenize command again and again until the set is complete.

    Args:
        command: its arguments.
        seed: of what happens to it.
        manners: a file that is told of that, a line each.

    Raises:
        SoakError: it failed by itself.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rng = random.Random(seed)
    ends = 0
    with manners.open("a", buffering=1) as told:
        while True:
            child = os.fork()
            if not child:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.dup2(2, 1)
                os._exit(cli.main(command))
            try:
                status = None
                while status is None:
                    manner = rng.choices(list(MANNERS), list(MANNERS.values()))[0]
                    if manner in _ENDED and ends == MOST_ENDS:
                        continue
                    told.write(f"{manner}\n")
                    _treat(child, manner, rng)
                    ends += manner in _ENDED
                    pid, code = os.waitpid(child, 0 if manner in _ENDED else os.WNOHANG)
                    status = os.waitstatus_to_exitcode(code) if pid else None
            except SystemExit:
                os.kill(child, signal.SIGKILL)
                raise
            if status == 0:
                return
            if status not in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM):
                raise SoakError(f"the writer ended with {status}")
            time.sleep(rng.uniform(0, 0.3))


def _treat(child: int, manner: str, rng: random.Random) -> None:
    """What a writer has to bear for a while."""
    if manner == "fast":
        time.sleep(rng.uniform(0, 0.1))
        return
    if manner in _ENDED:
        time.sleep(rng.uniform(0, 0.1))
        os.kill(child, _ENDED[manner])
        return
    times, seconds = (6, 0.02) if manner == "slow" else (1, rng.uniform(0.1, 0.6))
    for _ in range(times):
        os.kill(child, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(child, signal.SIGCONT)
        time.sleep(0.03)


# ── a run ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Growing:
    """A run to be.

    Attributes:
        command: of pretokenize, but for its output.
        job: on the set that it writes, wherever that is.
    """

    command: list[str]
    job: Job

    def at(self, output: str, *, follow: bool = True, **options: Any) -> Job:
        """The job on the set there."""
        job = self.job.with_options(**options)
        if isinstance(job.source, str):
            return replace(job, source=output).with_options(follow=follow)
        return replace(job, source={**job.source, "growing": {"source": output, "follow": follow}})


def draw_run(folder: Path, rng: random.Random, tokens: int) -> Growing:
    """Write a text of at most so many tokens, and draw what is made of it."""
    text = folder / "text.jsonl"
    tokens = rng.randint(tokens * 2 // 5, tokens)
    with text.open("w", encoding="utf-8") as stream:
        while stream.tell() < tokens:
            words = " ".join(f"{rng.randrange(1 << 30):x}" for _ in range(rng.randrange(40)))
            stream.write(json.dumps({"text": words}) + "\n")
    group = rng.randint(300, 2000)
    sizes = {"row-group-tokens": group, "file-tokens": group * rng.choice((1, 1, 3, 20)), "batch-bytes": group}
    kind = rng.choice(("documents", "documents", "rows", "mixture"))
    seq_len, overlap = rng.choice((32, 64)), rng.randint(0, 1)
    options: dict[str, Any] = {
        "seq_len": seq_len,
        "overlap": overlap,
        "lanes": LANES,
        "uneven": True,
        "window": rng.randint(1, 6),
        "seed": rng.randrange(100),
        "shuffle": rng.random() < 0.9,
        "threads": rng.randint(1, 2),
        "processes": int(rng.random() < 0.1),
        "budget_bytes": 64 << 20,
    }
    command = ["--input", str(text), "--tokenizer", "bytes", "--append-eos", "--publish", "as-finished"]
    if kind == "rows":
        sizes |= {"seq-len": seq_len + overlap, "pack-buffer-tokens": 2 * group}
        command += ["--pack", "best-fit"]
        options |= {"packing": "rows", "pad_id": 0}
    command += [word for name, number in sizes.items() for word in (f"--{name}", str(number))]
    if kind == "mixture":
        write_set(folder / "steady", 20_000)
        share = rng.uniform(0.3, 0.9)
        options |= {"weights": {"growing": share, "steady": 1 - share}}
        steps = int(rng.uniform(0.8, 1.8) * tokens / share / (LANES * seq_len))
        return Growing(command, Job({"growing": {}, "steady": {"source": str(folder / "steady")}}, options, steps))
    options |= {"epochs": rng.randint(1, 2), "tail": rng.choice(("pad", "drop"))}
    return Growing(command, Job("", options))


def follow_one(folder: Path, seed: int, result: Result, tokens: int = TOKENS, endpoint: str | None = None) -> None:
    """A run; what happens is added to the result.

    Args:
        folder: for everything.
        seed: of everything.
        result: what happens is added.
        tokens: of the text, at most.
        endpoint: of the S3 server that has the set; None for a folder.

    Raises:
        SoakError: a row is missing or another, or a process failed by itself.
    """
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    growing = draw_run(folder, rng, tokens)
    with contextlib.redirect_stdout(io.StringIO()):
        if cli.main([*growing.command, "--output", str(folder / "finished")]):
            raise SoakError("the quiet writer failed")
    expected = quiet_digests(growing.at(str(folder / "finished")), folder / "quiet-cache")
    output = str(folder / "growing")
    if endpoint is not None:
        output = f"s3://bucket1/growing-{seed}"
        variables = importlib.import_module("s3_server").environment_for(endpoint)
        growing = replace(growing, job=replace(growing.job, environment=variables))
    errors, manners = folder / "writer.log", folder / "manners"
    writer = start(write, ([*growing.command, "--output", output], seed, manners), growing.job.environment, errors)

    def draw() -> list[Job]:
        ranks = rng.randint(1, MOST_RANKS)
        is_over = (folder / "merged").exists() and writer.exitcode == 0  # without follow, nothing may begin before
        if is_over and rng.random() < 0.5:
            return [growing.at(output, follow=False)] * ranks
        patience = [rng.uniform(0.05, 1) if rng.random() < IMPATIENT_SHARE else 600.0 for _ in range(ranks)]
        return [growing.at(output, wait_seconds=seconds) for seconds in patience]

    try:
        kills = result.kills + rng.randint(1, 6)
        one_run(draw, folder, expected, result, rng, kills=kills, phases=PHASES_SEEN)
        writer.join(HANG_SECONDS)
        if writer.exitcode:
            raise SoakError(f"the writer ended with {writer.exitcode}:\n{errors.read_text()}")
    finally:
        writer.terminate()
        writer.join()
    result.writer.update(manners.read_text().split())


def follow(folder: Path, *, runs: int, seed: int, tokens: int = TOKENS, server: Any = None) -> Result:
    """So many runs over files on disk, or over a running S3 server of tests/s3_server.py."""
    result = Result("local" if server is None else "S3")
    for number in range(seed, seed + runs):
        try:
            follow_one(folder / str(number), number, result, tokens, server and server.endpoint)
        except SoakError as error:
            raise SoakError(f"seed {number}: {error}") from error
        shutil.rmtree(folder / str(number))
    return result


def summary(results: Sequence[Result]) -> str:
    """A table of what happened."""
    rows: list[list[str | int]] = [
        ["runs", *(result.runs for result in results)],
        ["kills of readers: rounds ended by SIGKILL", *(result.kills for result in results)],
        ["processes killed", *(result.killed for result in results)],
        [f"of these {WAITING_FOR_FILES}", *(result.phases[WAITING_FOR_FILES] for result in results)],
        ["rounds that ended since a rank had waited too long", *(result.gave_up for result in results)],
        ["kills of the writer", *(result.writer["killed"] for result in results)],
        ["the writer ended by SIGTERM", *(result.writer["interrupted"] for result in results)],
        ["the writer stopped for a while", *(result.writer["stopped"] for result in results)],
        ["rows delivered, repeats included", *(result.records for result in results)],
        ["rows lost", *(0 for _ in results)],
        ["rows that differ from those of the finished set", *(0 for _ in results)],
    ]
    return table(["", *(result.storage for result in results)], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--storage", nargs="+", choices=["local", "s3"], default=["local", "s3"])
    parser.add_argument("--runs", type=int, default=50, help="on each storage")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a text, at most")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--write-docs", action="store_true", help="put the summary into docs/reliability.md")
    arguments = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="growing-soak-"))
    options = {name: getattr(arguments, name) for name in ("runs", "tokens", "seed")}
    results = []
    try:
        for storage in arguments.storage:
            if storage == "local":
                results.append(follow(folder / storage, **options))
            else:
                sys.path.insert(0, str(ROOT / "tests"))
                with importlib.import_module("s3_server").s3_server(folder / "server") as server:
                    results.append(follow(folder / storage, **options, server=server))
            print(f"growing soak: {storage}: {results[-1].runs} runs, all rows as of the finished sets", flush=True)
    except SoakError as error:
        print(f"growing soak: {error}\ngrowing soak: see {folder}", file=sys.stderr)
        return 1
    text = summary(results)
    print(text)
    if arguments.write_docs:
        write_docs("growing soak", text)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
