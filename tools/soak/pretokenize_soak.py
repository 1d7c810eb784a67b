#!/usr/bin/env python3
"""Kill `tools/pretokenize.py` again and again, and see that what comes out is what a quiet run writes.

    quiet run      |----------------------------------------|  -> set A
    killed run     |------X   |-----X    |---X   ...   |----|  -> set B, by the same command every time

Every part and the manifest of B must be those of A, byte for byte, and no finished part may have been written again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TOOL = Path(__file__).parents[1] / "pretokenize.py"


class SoakError(Exception):
    """The sets differ, or a run failed that nobody killed."""


def write_corpus(path: Path, documents: int, seed: int) -> None:
    """JSON lines of made-up words, a third of them copies of earlier lines."""
    rng = random.Random(seed)
    texts: list[str] = []
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(documents):
            if texts and rng.random() < 1 / 3:
                text = "  " + rng.choice(texts).replace(" ", "\n", 3)  # a copy but for white space
            else:
                text = " ".join(f"{rng.randrange(1 << 30):x}" for _ in range(rng.randrange(1, 200)))
                texts.append(text)
            stream.write(json.dumps({"text": text}) + "\n")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a set."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def staged(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of each part that the journal names."""
    journal = folder / "_staging-run" / "journal.json"
    try:
        names = [part["name"] for part in json.loads(journal.read_text())["parts"]]
        stats = {name: (folder / "_staging-run" / name).stat() for name in names}
    except FileNotFoundError:  # nothing finished yet, or the set is being published
        return {}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def soak(command: Sequence[str], quiet: Path, killed: Path, kills: int, rng: random.Random) -> int:
    """Run once in peace and once with kills; returns how many kills hit a run.

    Raises:
        SoakError: what came out differs.
    """
    started = time.monotonic()
    done = subprocess.run([*command, "--output", str(quiet)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SoakError(done.stderr)
    seconds = time.monotonic() - started
    expected = contents(quiet)
    hits = 0
    while hits < kills:
        shutil.rmtree(killed, ignore_errors=True)
        finished: dict[str, tuple[int, int]] = {}
        while True:
            with subprocess.Popen(
                [*command, "--output", str(killed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                # Most kills fall after the imports; the very short ones hit those, which is a moment like any other.
                if hits < kills:
                    try:
                        process.wait(rng.uniform(0.1, 1.0) * seconds)
                    except subprocess.TimeoutExpired:
                        process.send_signal(signal.SIGKILL)
                _, errors = process.communicate()
            if process.returncode == 0:
                break
            if process.returncode != -signal.SIGKILL:
                raise SoakError(errors)
            hits += 1
            now = staged(killed)
            for name, what in finished.items():
                if now and now.get(name) != what and (killed / "_staging-run" / name).exists():
                    raise SoakError(f"{name} was finished, and was written again")
            finished = now or finished
        found = contents(killed)
        if found != expected:
            different = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
            raise SoakError(f"not as the quiet run wrote them: {', '.join(different)}; see {quiet} and {killed}")
    return hits


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--tokenizer", default="bytes")
    parser.add_argument("--seq-len", type=int, help="pack rows of so many tokens")
    parser.add_argument("--publish", choices=("at-end", "as-finished"), default="at-end")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    work = Path(tempfile.mkdtemp(prefix="pretokenize-soak-"))
    write_corpus(work / "corpus.jsonl", arguments.documents, arguments.seed)
    rng = random.Random(arguments.seed)
    first: dict[str, bytes] | None = None
    for workers in arguments.workers:
        command = [sys.executable, str(TOOL), "--input", str(work / "corpus.jsonl"), "--dedup"]
        command += ["--tokenizer", arguments.tokenizer, "--append-eos", "--workers", str(workers)]
        command += ["--row-group-tokens", "100_000", "--file-tokens", "500_000", "--batch-bytes", "200_000"]
        command += ["--publish", arguments.publish]
        if arguments.seq_len is not None:
            command += ["--pack", "best-fit", "--seq-len", str(arguments.seq_len), "--pack-buffer-tokens", "150_000"]
        kills = arguments.kills // len(arguments.workers)
        quiet, killed = work / f"quiet-{workers}", work / f"killed-{workers}"
        try:
            hits = soak(command, quiet, killed, kills, rng)
        except SoakError as exc:
            print(f"soak: workers={workers}: {exc}", file=sys.stderr)
            return 1
        if first is not None and contents(quiet) != first:
            print(f"soak: {workers} workers write another set than {arguments.workers[0]}", file=sys.stderr)
            return 1
        first = contents(quiet)
        print(f"soak: workers={workers}: {hits} kills, {len(first)} files, the same as a quiet run's", flush=True)
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(TOOL.parents[1]))
    sys.exit(main())
