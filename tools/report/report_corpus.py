"""Makes a mixture of ten small sets, with stages, a source that ends, and a checkpoint, to look at a report of it.

python tools/report/report_corpus.py FOLDER
"""

from __future__ import annotations

import importlib
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import ParquetLoader

# Of each source (files, row groups of a file, documents of a row group, median length, spread of lengths). Tokens are
# the bytes of text, for ``--tokenizer bytes``.
SOURCES = {
    "arxiv": (2, 3, 40, 3000, 0.6),
    "books": (2, 3, 6, 18000, 0.9),
    "code": (4, 4, 160, 700, 1.3),
    "conversations": (2, 4, 260, 260, 0.7),
    "encyclopedia": (3, 3, 180, 520, 1.0),
    "law": (2, 2, 50, 2100, 0.9),
    "math": (1, 4, 150, 420, 0.8),
    "news": (3, 4, 140, 620, 0.6),
    "web-english": (6, 5, 170, 640, 1.1),
    "web-multilingual": (5, 4, 150, 560, 1.1),
}
WEIGHTS = {
    "arxiv": 6, "books": 9, "code": 16, "conversations": 3, "encyclopedia": 6, "law": 3, "math": 5, "news": 7,
    "web-english": 30, "web-multilingual": 15,
}  # fmt: skip
LATER = WEIGHTS | {"web-english": 18, "code": 22, "math": 9, "encyclopedia": 9}
LAST = {"math": 18, "code": 30, "arxiv": 14, "encyclopedia": 16, "web-english": 14, "books": 8}
RUN = """\
seq_len = 128
lanes = 16
seed = 7
exhausted = "redistribute"
weights = [
  [0, {%s}],
  [6_000_000, {%s}],
  [11_000_000, {%s}],
]

[source]
"""


def write(folder: Path) -> Path:
    """Write the sets and ``run.toml``; returns the path of that."""
    rng = np.random.default_rng(20)
    topics = importlib.import_module("pydoc_data.topics").topics  # the chapters of Python's reference
    text = np.frombuffer("\n\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore"), np.uint8)
    lines = []
    for name, (files, groups, documents, length, spread) in SOURCES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in range(files):
            lengths = np.maximum(1, rng.lognormal(np.log(length), spread, groups * documents)).astype(int)
            begins = rng.integers(0, len(text) - np.minimum(lengths, len(text) - 1))
            tokens = [text[begin : begin + length] for begin, length in zip(begins, lengths, strict=True)]
            table = pa.table({"tokens": pa.array(tokens, pa.list_(pa.uint8()))})
            pq.write_table(table, folder / name / f"{file:05d}.parquet", row_group_size=documents, compression="zstd")
        limit = ", max_epochs = 3" if name == "math" else ""
        lines.append(f'{name} = {{ source = "{name}", window = {max(2, files * groups * 2 // 3)}{limit} }}\n')
    shares = [", ".join(f"{name} = {weight}" for name, weight in stage.items()) for stage in (WEIGHTS, LATER, LAST)]
    path = folder / "run.toml"
    path.write_text(RUN % tuple(shares) + "".join(lines))
    return path


def checkpoint(run: Path) -> Path:
    """Train a little: some steps, a few skipped, some more; returns the path of the checkpoint."""
    with ParquetLoader.from_toml(run) as loader:
        for _ in islice(loader, 1300):
            pass
        loader.skip(60)
        for _ in islice(loader, 740):
            pass
        (path := run.with_name("step-2100.checkpoint")).write_bytes(loader.checkpoint())
    return path


if __name__ == "__main__":
    print(checkpoint(write(Path(sys.argv[1]))))
