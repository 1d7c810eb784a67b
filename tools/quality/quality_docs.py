"""Measures what docs/order.md tells of how well the order shuffles, on made-up sets, and draws its picture.

    python tools/quality/quality_docs.py [--write-docs]

Each set is 64 row groups of about a million tokens, documents of log-normal lengths; 64 lanes, windows of 16.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from quality import DOCUMENT, Measures, compare, table, write_docs
from quality_rows import Rows

from parquet_loader import ParquetLoader

PICTURE = DOCUMENT.parent / "images" / "order-steps.svg"
GROUPS, GROUP_TOKENS, LANES, WINDOW = 64, 1_000_000, 64, 16
CASES = [(512, 1_000), (2_048, 1_000), (4_096, 1_000), (2_048, 8_000)]  # tokens of a row, and of a document
WINDOWS = [1, 4, 16, 64]
LANE_STEP = "% of tokens whose document was in its lane's row a step before"


def write_set(path: Path, mean: int) -> None:
    """Write a set; what its tokens are does not matter."""
    rng = np.random.default_rng(0)
    count = GROUPS * GROUP_TOKENS // mean
    lengths = np.maximum(1, rng.lognormal(np.log(mean) - 0.5, 1.0, count)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(np.zeros(offsets[-1], np.int32)))
    pq.write_table(pa.table({"tokens": tokens}), path, row_group_size=-(-count // GROUPS))


def loader_of(path: Path, seq_len: int, window: int = WINDOW) -> ParquetLoader:
    return ParquetLoader(path, seq_len=seq_len, lanes=LANES, window=window, seed=1)


def cases(folder: Path) -> Iterator[tuple[int, int, dict[str, Measures]]]:
    """Of each case the tokens of a row and of a document, and the measures of its orders."""
    for seq_len, mean in CASES:
        path = folder / f"{mean}.parquet"
        if not path.exists():
            write_set(path, mean)
        with loader_of(path, seq_len) as loader:
            yield seq_len, mean, compare(loader)


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────────

_SHOWN, _BAR, _HEIGHT = 48, 15, 90  # steps, and pixels
_COLOURS = ["#2f6db3", "#d99058", "#5a9e6f", "#a05a9e", "#8798a8", "#c9b458", "#5fb0b7", "#c0605a"]


def bars(rows: Rows, first: int, top: int) -> Iterator[str]:
    """Lane 0's rows of some steps, a bar each: its pieces, those of one document in one colour."""
    for step in range(_SHOWN):
        y = float(top)
        chosen = np.flatnonzero((rows.step == first + step) & (rows.lane == 0))
        for document, tokens in zip(rows.document[chosen].tolist(), rows.tokens[chosen].tolist(), strict=True):
            height = _HEIGHT * tokens / rows.seq_len
            colour = _COLOURS[document * 2_654_435_761 % 2**32 * len(_COLOURS) >> 32]
            place = f'x="{90 + step * _BAR}" y="{y:.1f}" width="{_BAR - 2}" height="{height:.1f}"'
            yield f'<rect {place} fill="{colour}" stroke="white" stroke-width="0.7"/>'
            y += height


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-docs", action="store_true", help="put tables and picture into docs/order.md")
    options = parser.parse_args(arguments)
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps: dict[str, Measures] = {}
        for seq_len, mean, orders in cases(folder):
            for order, measured in orders.items():
                steps.setdefault(order, {})[f"{seq_len:,} tokens, documents of {mean:,}"] = measured[LANE_STEP]
            if (seq_len, mean) == CASES[1]:
                found["measures"] = table("", orders)
        found["steps"] = table("a row of", steps)
        windows = {}
        for window in WINDOWS:
            with loader_of(folder / "1000.parquet", 2_048, window) as loader:
                windows[f"window={window}"] = compare(loader)["the loader"]
        found["windows"] = table("", windows)
    for name, block in found.items():
        print(f"{name}\n\n{block}\n")
        if options.write_docs:
            write_docs(name, f"\n{block}\n")


if __name__ == "__main__":
    main()
