"""Loaders compared over lengths of documents and sizes of row groups, on one core and on two, in one run.

    make bench                                            runs it after the two sets of benchmark.py, in .venv-bench
    python tools/benchmark/surface.py --rounds 3          the same alone: some ten minutes on two cores
    python tools/benchmark/surface.py --tokens 1_000_000 --seconds 0.2 --rounds 1   a small run, two minutes
    python tools/benchmark/surface.py --write-docs        put what was found last into docs/performance.md

For each mean length there is a set for each size of row groups, with the same documents in all but number; a size that
is smaller than a document makes row groups of one document. What reads the Parquet itself is measured on every set;
what converts it does not know row groups any more, and is measured on the set with the largest.

How a loader is used, and what a run is, is as in `benchmark.py`: a fresh process that is pinned to its cores, rounds in
which everything takes its turn, medians. But the sets are small, so a run is not charged for its beginning and its end:
it is measured for about ``--seconds`` after a quarter of that, at work.

On two cores parquet_loader and pyarrow have two threads, and what works through PyTorch's DataLoader two workers.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmark import Bench, StepError, cpu_name, figures_of, installed, say, versions_of
from benchmark_data import SetSpec, generate
from benchmark_loaders import LOADERS
from surface_report import draw_if_possible, tables, write_docs

ROOT = Path(__file__).parents[2]
LENGTHS = (50, 200, 1000, 8000)
GROUP_TOKENS = (10_000, 100_000, 1_000_000)
NAMES = ("parquet_loader", "parquet_loader-processes", "pyarrow-decode")
PEERS = ("litdata", "datasets-map", "memmap-torch", "lancedb", "lancedb-rows")


def measure(names: list[str], work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A cell for each loader on each set and number of cores: its runs, and what they come to."""
    cells = [cell for length in options.lengths for cell in _cells_of(names, work, length, options)]
    for number in range(options.rounds):
        for cell in cells:
            if cell["error"]:
                continue
            bench: Bench = cell["bench"]
            bench.warm(cell["loader"])
            try:
                cell["runs"].append(bench.step(cell["loader"], "main", "timed", seconds=options.seconds))
            except StepError as error:
                cell["error"] = str(error)
                say(f"{cell['loader']}: {error}")
        say(f"round {number + 1} of {options.rounds}")
    for cell in cells:
        del cell["bench"]
        cell["figures"] = figures_of(cell | {"resumes": []})
    return cells


def _cells_of(names: list[str], work: Path, length: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Make the sets of a mean length and the peers' copies."""
    for group_tokens in options.group_tokens:
        folder = work / f"{length}-{group_tokens}"
        groups = max(1, round(options.tokens / max(group_tokens, length)))
        generate(folder / "main", SetSpec(tokens=options.tokens, groups=groups, mean_length=length))
        largest = group_tokens == max(options.group_tokens)
        benches = {cores: _bench(folder, group_tokens, cores, options) for cores in options.cores}
        for name in names:
            if LOADERS[name].converts and not largest:
                continue
            error = _converted(next(iter(benches.values())), name)
            for cores, bench in benches.items():
                if name == "parquet_loader-processes" and cores == 1:
                    continue
                yield {
                    "loader": name,
                    "title": LOADERS[name].title,
                    "mean_length": length,
                    "group_tokens": None if LOADERS[name].converts else group_tokens,
                    "cores": cores,
                    "tokens": bench.options["main"].tokens,
                    "error": error,
                    "runs": [],
                    "bench": bench,
                }
    say(f"documents of {length:,} tokens: prepared")


def _bench(folder: Path, group_tokens: int, cores: int, options: argparse.Namespace) -> Bench:
    of_this = copy.copy(options)
    of_this.cores = of_this.threads = cores
    of_this.workers = 0 if cores == 1 else cores
    of_this.window = max(1, round(options.window_tokens / group_tokens))
    return Bench(folder, folder / "main", of_this)


def _converted(bench: Bench, name: str) -> str | None:
    """Make a loader's copy; returns what went wrong."""
    try:
        bench.convert(name, "main")
    except StepError as error:
        say(f"{name}: {error}")
        return str(error)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"type": int, "nargs": "+"}
    parser.add_argument("--lengths", **numbers, default=LENGTHS, help="mean lengths of documents")  # type: ignore[arg-type]
    parser.add_argument("--group-tokens", **numbers, default=GROUP_TOKENS, help="of a row group")  # type: ignore[arg-type]
    parser.add_argument("--cores", **numbers, default=(1, 2))  # type: ignore[arg-type]
    parser.add_argument("--tokens", type=int, default=16_000_000, help="of a set")
    parser.add_argument("--window-tokens", type=int, default=4_000_000, help="that parquet_loader shuffles together")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a run, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--lanes", type=int, default=64, help="rows of a batch")
    parser.add_argument("--loaders", default=",".join((*NAMES, *PEERS)), help="separated by commas (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "build/surface", help="stem of .json, .svg and .png")
    parser.add_argument("--write-docs", action="store_true", help="only put --output into docs/performance.md")
    options = parser.parse_args()
    path = options.output.with_suffix(".json")
    if options.write_docs:
        write_docs(json.loads(path.read_text()), ROOT / "docs")
        return
    options.column, options.epochs = None, None
    names = options.loaders.split(",")
    if unknown := set(names) - set(LOADERS):
        parser.error(f"no loader {', '.join(sorted(unknown))}; there are {', '.join(LOADERS)}")
    names, missing = installed(names)
    for name, reason in missing.items():
        say(f"{name} is left out: {reason}")
    work = Path(tempfile.mkdtemp(prefix="surface-"))
    load = os.getloadavg()[0]
    try:
        found = {
            "machine": {"cpu": cpu_name(), "cpus": os.cpu_count(), "load": load, "python": platform.python_version()},
            "versions": versions_of(names),
            "options": {key: value for key, value in vars(options).items() if key != "output"},
            "missing": missing,
            "cells": measure(names, work, options),
        }
    finally:
        shutil.rmtree(work)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(tables(found))
    draw_if_possible(found, options.output)


if __name__ == "__main__":
    main()
