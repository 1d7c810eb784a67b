"""What a mixture costs beside one set that holds the same data: CPU nanoseconds per token, in one run.

    python tools/mixtures/mixture_cost.py

Writes seeded files of documents of log-normal lengths (pyarrow's default layout) to a temporary folder, then takes the
same number of batches from them, round after round and in turns: as one set, as a mixture of as many sources as there
are files, and as that mixture with very unequal weights. CPU time is that of all threads of the process. Also shows
what a step costs at step 10 and at step 10,000,000 of a mixture.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import ParquetLoader


def write_source(folder: Path, seed: int, groups: int, group_tokens: int, mean_length: float) -> int:
    """Write one file of ``groups`` row groups; returns its tokens."""
    rng = np.random.default_rng(seed)
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    folder.mkdir(parents=True)
    total = 0
    with pq.ParquetWriter(folder / "part.parquet", schema) as writer:
        for _ in range(groups):
            lengths = np.maximum(1, rng.lognormal(np.log(mean_length) - 0.5, 1.0, int(group_tokens / mean_length)))
            offsets = np.concatenate(([0], np.cumsum(lengths.astype(np.int64))))
            ids = (50_257 * rng.random(offsets[-1]) ** 3).astype(np.int32)  # a few ids are frequent, most are rare
            array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids))
            writer.write_table(pa.table({"tokens": array}, schema=schema), row_group_size=len(array))
            total += int(offsets[-1])
    return total


def measured(make: Callable[[], ParquetLoader], steps: int) -> tuple[float, float]:
    """CPU nanoseconds per token delivered, and tokens decoded for each token delivered."""
    begin = time.process_time()
    with make() as loader:
        delivered = 0
        while delivered < steps:
            delivered += sum(1 for _ in islice(loader, steps - delivered))
        stats = loader.stats()
    seconds = time.process_time() - begin
    return seconds / stats["tokens"] * 1e9, stats["tokens_decoded"] / stats["tokens"]


def step_seconds(sources: Mapping[str, Any], options: Mapping[str, Any], at: int) -> float:
    """Wall seconds of the fastest of some steps from a step on, once everything is loaded."""
    with ParquetLoader(sources, weights="tokens", skip_batches=at, **options) as loader:
        batches = iter(loader)
        taken = []
        for _ in range(200):
            begin = time.perf_counter()
            next(batches)
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=10)
    parser.add_argument("--groups", type=int, default=8, help="row groups of a source")
    parser.add_argument("--group-tokens", type=int, default=1_000_000, help="tokens of a row group")
    parser.add_argument("--mean-length", type=float, default=1000, help="tokens of a document")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=6, help="of all the data: windows that are begun count less then")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=int, default=4, help="row groups of a window, of the set and of each source")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        names = [f"source-{number}" for number in range(arguments.sources)]
        folders = {name: Path(root) / "set" / name for name in names}
        tokens = sum(
            write_source(folder, number, arguments.groups, arguments.group_tokens, arguments.mean_length)
            for number, folder in enumerate(folders.values())
        )
        options = {
            "seq_len": arguments.seq_len,
            "lanes": arguments.lanes,
            "threads": 1,
            "window": arguments.window,
            "cache_dir": Path(root) / "cache",
        }
        steps = arguments.epochs * tokens // (arguments.seq_len * arguments.lanes)
        unequal = {name: 2.0**-number for number, name in enumerate(names)}
        ways: dict[str, Callable[[], ParquetLoader]] = {
            "one set": lambda: ParquetLoader(Path(root) / "set", **options),
            "mixture": lambda: ParquetLoader(folders, weights="tokens", **options),
            "unequal mixture": lambda: ParquetLoader(folders, weights=unequal, **options),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, make in ways.items():
                found[name].append(measured(make, steps))
        base = statistics.median(ns for ns, _ in found["one set"])
        print(f"{tokens:,} tokens, {steps:,} steps, {arguments.rounds} rounds: CPU ns per token delivered")
        for name, values in found.items():
            ns = [each for each, _ in values]
            print(
                f"  {name:16}{statistics.median(ns):6.2f}   ({min(ns):.2f} to {max(ns):.2f})"
                f"   {statistics.median(ns) / base:.2f} x   {values[0][1]:.2f} tokens decoded for each"
            )
        for at in (10, 10_000_000):
            print(f"  a step at step {at:<12,}{step_seconds(folders, options, at) * 1e6:8.0f} us")


if __name__ == "__main__":
    main()
