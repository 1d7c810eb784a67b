"""What an aligned column costs beside the tokens, in CPU time per token, and as a share of what the tokens cost alone.

    python tools/stages/aligned_benchmark.py

Conversations of about 1,000 tokens whose first part is a prompt, in row groups of a million tokens: a mask as int8 and
as booleans, a mask that is random, labels as int64, weights as float32. Rounds of all columns one after another, and
the best of each, since others on the machine can only add to it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import ParquetLoader

COLUMNS = ["mask_int8", "mask_bool", "random_int8", "labels_int64", "weights_float32"]


def write_conversations(folder: Path, *, files: int, groups: int, document_tokens: int) -> None:
    """Tokens as common as words are, and what goes with them."""
    rng = np.random.default_rng(0)
    share = np.cumsum(1 / (np.arange(50_000) + 2.7) ** 1.07)
    for number in range(files):
        tables = []
        for _ in range(groups):
            lengths = rng.geometric(1 / document_tokens, 1_000_000 // document_tokens)
            ends = np.concatenate([[0], np.cumsum(lengths)])
            tokens = share.searchsorted(rng.random(ends[-1]) * share[-1]).astype(np.int32)
            prompts = (lengths * rng.random(len(lengths))).astype(np.int64)
            within = np.arange(ends[-1]) - ends[:-1].repeat(lengths)
            mask = within >= prompts.repeat(lengths)
            columns = {
                "input_ids": tokens,
                "mask_int8": mask.astype(np.int8),
                "mask_bool": mask,
                "random_int8": rng.integers(0, 2, len(mask), np.int8),
                "labels_int64": np.where(mask, tokens, -100).astype(np.int64),
                "weights_float32": rng.random(len(mask), np.float32),
            }
            offsets = pa.array(ends, pa.int32())
            lists = {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in columns.items()}
            tables.append(pa.table(lists))
        with pq.ParquetWriter(folder / f"{number}.parquet", tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=1 << 30)


def cost_ns(folder: Path, aligned: list[str]) -> float:
    """CPU time of this process per token, from a window on, so that what is done once does not count."""
    cache = folder / "cache"
    with ParquetLoader(
        folder, seq_len=2_048, lanes=64, column="input_ids", aligned=aligned, epochs=3, cache_dir=cache
    ) as loader:
        batches = iter(loader)
        next(batches)
        begin, tokens = time.process_time(), 0
        for batch in batches:
            tokens += batch.tokens.size
        return (time.process_time() - begin) / tokens * 1e9


def main() -> None:
    """Measure each column."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--document-tokens", type=int, default=1_000, help="mean length of a document")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_conversations(Path(name), files=4, groups=3, document_tokens=arguments.document_tokens)
        asked: list[list[str]] = [[], *([column] for column in COLUMNS)]
        best = [float("inf")] * len(asked)
        for _ in range(arguments.rounds):
            best = [min(known, cost_ns(Path(name), each)) for known, each in zip(best, asked, strict=True)]
    print(f"tokens alone      {best[0]:6.2f} ns")
    for column, found in zip(COLUMNS, best[1:], strict=True):
        print(f"{column:16}  {found - best[0]:+6.2f} ns, {(found - best[0]) / best[0]:.2f} of that")


if __name__ == "__main__":
    main()
