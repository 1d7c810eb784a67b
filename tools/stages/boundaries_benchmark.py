"""What document boundaries cost: `Batch.documents`, its position ids and its lengths, in CPU time per token.

    python tools/stages/boundaries_benchmark.py

Documents of about 1,000 tokens in rows of 2,048, as they come out of a loader; the best of several rounds, since others
on the machine can only add to it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import Batch, ParquetLoader

ROUNDS = 7


def write_documents(path: Path, tokens: int, mean: int) -> None:
    """Documents of a geometric length, as those of the web nearly are."""
    rng = np.random.default_rng(0)
    lengths = rng.geometric(1 / mean, tokens // mean)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = pa.array(rng.integers(0, 50_000, offsets[-1], dtype=np.int32))
    table = pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)})
    pq.write_table(table, path, row_group_size=1_000)


def cost_ns(batches: list[Batch], work: Callable[[Batch], object]) -> float:
    """CPU time per token."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time_ns()
        for batch in batches:
            work(batch)
        best = min(best, time.process_time_ns() - begin)
    return best / sum(batch.tokens.size for batch in batches)


def positions_and_lengths(batch: Batch) -> object:
    """What a model with variable lengths is given."""
    documents = batch.documents()
    return documents.position_ids(), documents.cu_seqlens, documents.max_seqlen


def main() -> None:
    """Measure batches of several sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--document-tokens", type=int, default=1_000, help="mean length of a document")
    parser.add_argument("--seq-len", type=int, default=2_048)
    arguments = parser.parse_args()
    print("rows  tokens a batch  starts  position_ids + cu_seqlens  document_ids   (ns of CPU per token)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.parquet"
        write_documents(path, 24_000_000, arguments.document_tokens)
        for rows in (8, 32, 128, 512):
            with ParquetLoader(path, seq_len=arguments.seq_len, lanes=rows) as loader:
                batches = [batch for _, batch in zip(range(max(2, 256 // rows)), loader, strict=False)]
            print(
                f"{rows:4}  {batches[0].tokens.size:14,}  {cost_ns(batches, Batch.document_starts):6.2f}  "
                f"{cost_ns(batches, positions_and_lengths):25.2f}  "
                f"{cost_ns(batches, lambda batch: batch.documents().document_ids()):12.2f}"
            )


if __name__ == "__main__":
    main()
