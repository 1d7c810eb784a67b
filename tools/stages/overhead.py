"""What the loader costs beyond pyarrow's own decoding: CPU nanoseconds per token, in one run.

    python tools/stages/overhead.py

Writes a seeded set of documents of log-normal lengths in row groups of a million tokens (pyarrow's default layout) to a
temporary folder, then reads all of it, round after round and interleaved, in two ways: row group by row group with
``ParquetFile.read_row_group``, and as shuffled batches of the loader. CPU time is that of all threads of the process.
``--files`` spreads the row groups over files, and what opening them takes is told too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import ParquetLoader


def write_set(folder: Path, files: int, groups: int, group_tokens: int, mean_length: float) -> int:
    """Write files of ``groups`` row groups, all together; returns their tokens."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    total = 0
    for file in range(files):
        with pq.ParquetWriter(folder / f"part-{file:05}.parquet", schema) as writer:
            for _ in range(file, groups, files):
                lengths = np.maximum(1, rng.lognormal(np.log(mean_length) - 0.5, 1.0, int(group_tokens / mean_length)))
                offsets = np.concatenate(([0], np.cumsum(lengths.astype(np.int64))))
                ids = (50_257 * rng.random(offsets[-1]) ** 3).astype(np.int32)  # a few are frequent, most are rare
                array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids))
                writer.write_table(pa.table({"tokens": array}, schema=schema), row_group_size=len(array))
                total += int(offsets[-1])
    return total


def decode_seconds(folder: Path) -> float:
    """CPU seconds of decoding every row group with pyarrow."""
    begin = time.process_time()
    for path in sorted(folder.iterdir()):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, use_threads=False)
    return time.process_time() - begin


def loader_seconds(folder: Path, cache: Path, options: argparse.Namespace) -> tuple[float, int]:
    """(CPU seconds of one epoch of batches, threads included; tokens delivered)."""
    begin = time.process_time()
    with ParquetLoader(
        folder,
        seq_len=options.seq_len,
        lanes=options.lanes,
        window=options.window,
        threads=options.threads,
        cache_dir=cache,
    ) as loader:
        for _ in loader:
            pass
        decoded = loader.stats()["tokens_decoded"]
    # The loader reads ahead into the next epoch: count what it decoded, not only what it handed out.
    return time.process_time() - begin, decoded


def open_seconds(folder: Path, cache: Path, options: argparse.Namespace) -> float:
    """Seconds until the loader is there."""
    begin = time.perf_counter()
    ParquetLoader(folder, seq_len=options.seq_len, lanes=options.lanes, window=options.window, cache_dir=cache).close()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--groups", type=int, default=32, help="row groups of all files")
    parser.add_argument("--group-tokens", type=int, default=1_000_000, help="tokens of a row group")
    parser.add_argument("--mean-length", type=float, default=1000, help="tokens of a document")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder, cache = Path(root) / "set", Path(root) / "cache"
        folder.mkdir()
        tokens = write_set(folder, options.files, options.groups, options.group_tokens, options.mean_length)
        opening = [open_seconds(folder, cache, options) for _ in range(2)]
        decode_seconds(folder), loader_seconds(folder, cache, options)  # warm the page cache
        decode, whole = [], []
        for _ in range(options.rounds):
            decode.append(decode_seconds(folder) / tokens * 1e9)
            seconds, decoded = loader_seconds(folder, cache, options)
            whole.append(seconds / decoded * 1e9)
    pairs = [w - d for w, d in zip(whole, decode, strict=True)]
    print(f"{tokens:,} tokens, {options.rounds} rounds, CPU ns per token (median; least and most)")
    for name, values in [("pyarrow read_row_group", decode), ("loader", whole), ("loader beyond pyarrow", pairs)]:
        print(f"  {name:24}{statistics.median(values):6.2f}   ({min(values):.2f} to {max(values):.2f})")
    print(f"{options.files:,} files opened in {opening[0]:.2f} s, and from the cache in {opening[1]:.2f} s")


if __name__ == "__main__":
    main()
