"""What one huge row group takes: bytes counted and resident, and seconds to the first batch, by who wrote it.

    python tools/stages/huge_groups.py [--tokens 100000000] [--ranks 8]

Each writer's default, ``list<int64>`` of documents of a thousand tokens; one row group, whatever its size. A process of
its own reads it as one rank, and as one of so many, waits until the window in use and the next one are there, and then
takes as many batches as there are tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RUN = """
import json, sys, time
from parquet_loader import ParquetLoader

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name + ":"))

warm_up, path, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with ParquetLoader(warm_up, seq_len=10, lanes=8) as loader:
    next(iter(loader))
before = status("VmRSS")
begin = time.perf_counter()
with ParquetLoader(path, seq_len=2048, lanes=512, rank=rank, world_size=ranks) as loader:
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - begin
    shared = loader._engine._prefetcher._shared
    while shared.running or not shared.condition._waiters:
        time.sleep(0.01)
    for _ in batches:
        pass
    print(json.dumps([loader.stats()["peak_bytes"], status("VmHWM") - before, first]))
"""


def write(writer: str, tokens: int, path: Path) -> None:
    """One row group by a writer's defaults."""
    rng = np.random.default_rng(0)
    ids = np.empty(tokens, np.int64)
    for first in range(0, tokens, 1 << 23):  # a few ids are frequent, most are rare
        ids[first : first + (1 << 23)] = 50_257 * rng.random(len(ids[first : first + (1 << 23)])) ** 3
    borders = np.cumsum(rng.geometric(1 / 1000, 10 + 2 * tokens // 1000))
    offsets = np.array([0, *borders[borders < tokens], tokens], np.int32)
    table = pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))})
    if writer == "DuckDB":
        import duckdb

        with duckdb.connect() as connection:
            connection.register("documents", table)
            connection.execute(f"COPY (SELECT * FROM documents) TO '{path}' (FORMAT parquet)")
    elif writer == "Polars":
        import polars as pl

        pl.from_arrow(table).write_parquet(path)  # type: ignore[union-attr]
    else:
        pq.write_table(table, path)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--writers", nargs="+", default=["pandas, pyarrow", "DuckDB", "Polars"])
    options = parser.parse_args()
    print("| written by | file MB | ranks | counted MB | resident MB | first batch s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        warm_up = Path(folder) / "warm up.parquet"
        pq.write_table(pa.table({"tokens": [[1, 2, 3]] * 1000}), warm_up)
        for writer in options.writers:
            path = Path(folder) / "a.parquet"
            write(writer, options.tokens, path)
            assert pq.read_metadata(path).num_row_groups == 1
            for ranks in (1, options.ranks):
                command = [sys.executable, "-c", RUN, warm_up, path, ranks // 2, ranks]
                found = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
                counted, resident, first = json.loads(found.stdout)
                sizes = " | ".join(f"{number / 1e6:,.0f}" for number in (counted, resident))
                print(f"| {writer} | {path.stat().st_size / 1e6:,.0f} | {ranks} | {sizes} | {first:.1f} |", flush=True)


if __name__ == "__main__":
    main()
