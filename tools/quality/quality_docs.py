"""Measures what docs/order.md tells of how well the order shuffles, on made-up sets, and draws its picture.

    python tools/quality/quality_docs.py [--write-docs]

Each set is 64 row groups of about a million tokens, documents of log-normal lengths; 64 lanes, windows of 16.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from quality import DOCUMENT, Measures, compare, table, write_docs
from quality_rows import Rows, fixed_rows, loader_rows, order_as_text

from parquet_loader import ParquetLoader

PICTURE = DOCUMENT.parent / "images" / "order-steps.svg"
GROUPS, GROUP_TOKENS, LANES, WINDOW = 64, 1_000_000, 64, 16
CASES = [(512, 1_000), (2_048, 1_000), (4_096, 1_000), (2_048, 8_000)]  # tokens of a row, and of a document
WINDOWS = [1, 4, 16, 64]
LANE_STEP = "% of tokens whose document was in its lane's row a step before"
OF_WINDOWS = [
    LANE_STEP,
    "% of tokens whose document was in any row of the 8 steps before",
    "steps from a row with a document to the next with it, median",
    "row groups in a batch",
    "a batch is as mixed as so many independent rows",
    "% of documents that a lane's border cut",
]


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
        yield seq_len, mean, compare(functools.partial(loader_of, path, seq_len))


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────────

_LEFT, _TOP, _BAR, _HEIGHT, _STRIP = 20, 34, 18, 96, 150  # pixels
_COLOURS = ["#2f6db3", "#d99058", "#5a9e6f", "#a05a9e", "#8798a8", "#c9b458", "#5fb0b7", "#c0605a"]


def text(x: float, y: float, content: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="#1c2733">{content}</text>'


def picture(strips: dict[str, Rows], *, first: int = 20, shown: int = 44) -> str:
    """Lane 0's rows of some steps in several orders: a bar a step, its documents in colours of their own.

    Args:
        strips: the orders, by the titles of their strips.
        first, shown: the first of the steps, and how many.
    """
    lines = []
    for strip, (title, rows) in enumerate(strips.items()):
        top = _TOP + strip * _STRIP
        lines.append(text(_LEFT, top - 10, title, 13))
        for bar in range(shown):
            y = float(top)
            chosen = np.flatnonzero((rows.step == first + bar) & (rows.lane == 0))
            for document, tokens in zip(rows.document[chosen].tolist(), rows.tokens[chosen].tolist(), strict=True):
                height = _HEIGHT * tokens / rows.seq_len
                colour = _COLOURS[document % len(_COLOURS)]
                where = f'x="{_LEFT + bar * _BAR}" y="{y:.1f}" width="{_BAR - 2}" height="{height:.1f}"'
                lines.append(f'<rect {where} fill="{colour}" stroke="white" stroke-width="0.7"/>')
                y += height
    width, height = 2 * _LEFT + shown * _BAR, _TOP + len(strips) * _STRIP
    lines.append(text(_LEFT, height - _STRIP + _HEIGHT + 24, f"steps {first} to {first + shown - 1} →", 12))
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height - 20}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height - 20}" fill="white"/>\n{body}\n</svg>\n'
    )


def strips(path: Path) -> dict[str, Rows]:
    """What the picture shows."""
    with loader_of(path, 2_048) as loader:
        order_as_text(loader)
        in_text_order, _ = loader_rows(loader)
    with loader_of(path, 2_048) as loader:
        delivered, documents = loader_rows(loader)
    shuffled = fixed_rows(documents, seq_len=2_048, lanes=LANES, steps=delivered.steps)
    return {
        "In the order of the text": in_text_order,
        "As the loader gives them": delivered,
        "All rows of the set shuffled": shuffled,
    }


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
            new_loader = functools.partial(loader_of, folder / "1000.parquet", 2_048, window)
            measured = compare(new_loader)["the loader"]
            steps_of_one = {"steps of a window": window * GROUP_TOKENS // (LANES * 2_048)}
            windows[f"window={window}"] = steps_of_one | {name: measured[name] for name in OF_WINDOWS}
        found["windows"] = table("", windows)
        drawn = picture(strips(folder / "8000.parquet"))
    for name, block in found.items():
        print(f"{name}\n\n{block}\n")
        if options.write_docs:
            write_docs(name, f"\n{block}\n")
    if options.write_docs:
        PICTURE.write_text(drawn)


if __name__ == "__main__":
    main()
