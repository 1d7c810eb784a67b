"""What a batch costs the thread that takes it, in microseconds, where its window is there already.

    python tools/stages/batches.py [--rounds 9]

Rows of 8 tokens show what is the same for every batch: bookkeeping, arrays, the state. Longer rows add the copy. The
loader's threads have nothing to do meanwhile. CPU time of the consumer's thread, the least of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

from parquet_loader import ParquetLoader

sys.path.insert(0, str(Path(__file__).parents[1] / "scaling"))
from scaling_data import SetSpec, generate

SHAPES = ((8, 8), (64, 8), (512, 8), (8, 2048), (64, 2048))


def batch_us(folder: Path, cache: Path, lanes: int, seq_len: int, rounds: int) -> float:
    """Microseconds of a batch of ``lanes`` rows."""
    with ParquetLoader(folder, seq_len=seq_len, lanes=lanes, window=16, cache_dir=cache) as loader:
        batches = iter(loader)
        next(batches)
        decoded = -1
        while decoded != (decoded := loader.stats()["tokens_decoded"]):  # until no thread has anything to do
            time.sleep(0.1)
        count = min(1000, loader.index.total_tokens // 4 // (rounds * lanes * seq_len))  # the first window has them
        best = float("inf")
        for _ in range(rounds):
            begin = time.thread_time_ns()
            for _ in itertools.islice(batches, count):
                pass
            best = min(best, (time.thread_time_ns() - begin) / count / 1e3)
    return best


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        generate(Path(root) / "set", SetSpec(tokens=32_000_000))
        print("| lanes | seq_len | us |\n| ---: | ---: | ---: |")
        for lanes, seq_len in SHAPES:
            took = batch_us(Path(root) / "set", Path(root), lanes, seq_len, options.rounds)
            print(f"| {lanes} | {seq_len:,} | {took:.1f} |")


if __name__ == "__main__":
    main()
