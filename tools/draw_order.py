"""Draws docs/images/order.svg: windows, lanes and slices of the worked example in docs/order.md, from the real order.

python tools/draw_order.py
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from parquet_loader.order.order import Order

GROUPS = [["A A A", "B B"], ["C", "D D D"], ["E E", "F F F F"], ["G G G"], ["H H"]]
LANES, WINDOW, SEED = 3, 2, 1
CELL, TOP, LEFT = 34, 70, 90
LANE_COLOURS = ["#cfe3f7", "#fbe0c3", "#d6efd0"]


def text(x: float, y: float, content: str, *, size: int = 13, anchor: str = "middle", weight: str = "normal") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x}" y="{y}" {style} fill="#1c2733">{content}</text>'


def cell(x: float, y: float, label: str, colour: str) -> str:
    box = f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{colour}" stroke="#8798a8"/>'
    return box + text(x + CELL / 2, y + CELL / 2 + 5, label)


def documents(group: int) -> list[list[str]]:
    return [[f"{token}{place}" for place, token in enumerate(document.split())] for document in GROUPS[group]]


def draw() -> Iterator[str]:
    sizes = np.array([sum(len(document.split()) for document in group) for group in GROUPS])
    order = Order(group_tokens=sizes, lanes=LANES, window=WINDOW, seed=SEED, shuffle=True)
    lanes: list[list[str]] = [[] for _ in range(LANES)]
    x = float(LEFT)
    yield text(LEFT - 10, TOP + CELL / 2 + 5, "epoch 0", anchor="end", weight="bold")
    for window in order.windows(0, LANES - 1):
        if window.epoch:
            break
        starts = window.slice_starts(LANES, 0, LANES)
        stretch = [document for group in window.groups for document in documents(int(group))]
        owner = np.repeat(np.arange(LANES), np.diff(starts))
        begin, place = x, 0
        borders_of_documents = [x]
        yield text(x + window.tokens * CELL / 2, TOP - 34, f"window {window.number}", weight="bold")
        for group, size in zip(window.groups, np.diff(window.offsets), strict=True):
            yield text(x + size * CELL / 2, TOP - 12, f"row group {group}", size=11)
            for document in documents(int(group)):
                for token in document:
                    yield cell(x, TOP, token, LANE_COLOURS[owner[place]])
                    x += CELL
                    place += 1
                borders_of_documents.append(x)
        for border in borders_of_documents:  # drawn over the cells
            yield f'<line x1="{border}" y1="{TOP}" x2="{border}" y2="{TOP + CELL}" stroke="#1c2733" stroke-width="3"/>'
        frame = f'x="{begin}" y="{TOP}" width="{x - begin}" height="{CELL}"'
        yield f'<rect {frame} fill="none" stroke="#1c2733" stroke-width="2"/>'
        x += 18
        flat = [token for document in stretch for token in document]
        for lane in range(LANES):
            low, high = int(starts[lane]), int(starts[lane + 1])
            borders = np.cumsum([0] + [len(document) for document in stretch])
            cuts = sorted({low, high, *(int(border) for border in borders if low < border < high)})
            pieces = [flat[a:b] for a, b in pairwise(cuts)] if high > low else []
            for piece in order.document_order(len(pieces), epoch=0, window=window.number, lane=lane):
                lanes[lane] += pieces[piece]
    for lane, tokens in enumerate(lanes):
        y = TOP + 2.2 * CELL + lane * (CELL + 8)
        yield text(LEFT - 10, y + CELL / 2 + 5, f"lane {lane}", anchor="end", weight="bold")
        for place, token in enumerate(tokens):
            yield cell(LEFT + place * CELL, y, token, LANE_COLOURS[lane])
    bottom = TOP + 2.2 * CELL + LANES * (CELL + 8)
    for row in range(1, 4):
        x = LEFT + row * 2 * CELL
        yield (
            f'<line x1="{x}" y1="{TOP + 2.2 * CELL - 6}" x2="{x}" y2="{bottom}" '
            'stroke="#c0392b" stroke-width="2.5" stroke-dasharray="5 4"/>'
        )
        yield text(x - CELL, bottom + 14, f"batch {row - 1}", size=12)
    yield text(
        LEFT + 8 * CELL, bottom - 30, "seq_len = 2: a batch is two tokens of every lane", anchor="start", size=12
    )
    yield text(LEFT + 8 * CELL, bottom - 12, "what is left goes on with epoch 1", anchor="start", size=12)


def main() -> None:
    body = "\n".join(draw())
    target = Path(__file__).parent.parent / "docs" / "images" / "order.svg"
    target.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 310" font-family="sans-serif">\n'
        f'<rect width="830" height="310" fill="white"/>\n{body}\n</svg>\n'
    )
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
