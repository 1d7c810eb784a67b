"""Draws docs/images/order.svg: windows, lanes, slices and steps of the worked example in docs/order.md, from the real
order.

python tools/draw_order.py
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from parquet_loader.order.order import Order, StepBlocks

GROUPS = [["A A A A", "B B"], ["C", "D D D"], ["E E", "F F F F"], ["G G G"], ["H H", "I"], ["J J J J", "K"]]
LANES, WINDOW, SEED, SEQ_LEN = 2, 3, 9, 2
CELL, TOP, LEFT, GAP = 34, 70, 110, 18
LANE_COLOURS = ["#cfe3f7", "#fbe0c3"]
WIDTH, HEIGHT = 1070, 392


def text(x: float, y: float, content: str, *, size: int = 13, anchor: str = "middle", weight: str = "normal") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x}" y="{y}" {style} fill="#1c2733">{content}</text>'


def cell(x: float, y: float, label: str, colour: str) -> str:
    box = f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{colour}" stroke="#8798a8"/>'
    return box + text(x + CELL / 2, y + CELL / 2 + 5, label)


def documents(group: int) -> list[list[str]]:
    return [[f"{token}{place}" for place, token in enumerate(document.split())] for document in GROUPS[group]]


def line(x: float, top: float, bottom: float, *, colour: str = "#1c2733", width: float = 3) -> str:
    return f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="{colour}" stroke-width="{width}"/>'


def row_of(lane: int, y: float, tokens: list[str]) -> Iterator[str]:
    yield text(LEFT - 10, y + CELL / 2 + 5, f"lane {lane}", anchor="end", weight="bold")
    for place, token in enumerate(tokens):
        yield cell(LEFT + place * CELL, y, token, LANE_COLOURS[lane])


def draw() -> Iterator[str]:
    sizes = np.array([sum(len(document.split()) for document in group) for group in GROUPS])
    order = Order(group_tokens=sizes, lanes=LANES, window=WINDOW, seed=SEED, shuffle=True)
    lanes: list[list[str]] = [[] for _ in range(LANES)]
    permuted: list[StepBlocks] = []
    x = float(LEFT)
    yield text(LEFT - 10, TOP + CELL / 2 + 5, "epoch 0", anchor="end", weight="bold")
    for window in order.windows(0, LANES - 1):
        if window.epoch:
            break
        permuted.append(order.step_blocks(window, SEQ_LEN))
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
            yield line(border, TOP, TOP + CELL)
        frame = f'x="{begin}" y="{TOP}" width="{x - begin}" height="{CELL}"'
        yield f'<rect {frame} fill="none" stroke="#1c2733" stroke-width="2"/>'
        x += GAP
        flat = [token for document in stretch for token in document]
        for lane in range(LANES):
            low, high = int(starts[lane]), int(starts[lane + 1])
            borders = np.cumsum([0] + [len(document) for document in stretch])
            cuts = sorted({low, high, *(int(border) for border in borders if low < border < high)})
            pieces = [flat[a:b] for a, b in pairwise(cuts)] if high > low else []
            for piece in order.document_order([0, len(pieces)], epoch=0, window=window.number, lane=lane):
                lanes[lane] += pieces[piece]
    texts = TOP + 2.4 * CELL
    steps = texts + LANES * (CELL + 8) + 1.6 * CELL
    for lane, tokens in enumerate(lanes):
        yield from row_of(lane, texts + lane * (CELL + 8), tokens)
    whole = min(len(tokens) for tokens in lanes) // SEQ_LEN
    sources = [next((b.text_of(k * SEQ_LEN) for b in permuted if _holds(b, k)), k * SEQ_LEN) for k in range(whole)]
    for lane, tokens in enumerate(lanes):
        shown = [token for source in sources for token in tokens[source : source + SEQ_LEN]]
        yield from row_of(lane, steps + lane * (CELL + 8), shown)
    for number in range(whole):
        middle = LEFT + (number + 0.5) * SEQ_LEN * CELL
        inside = any(_holds(blocks, number) for blocks in permuted)
        yield text(middle, texts - 10, f"block {number}" if inside else f"({number})", size=11)
        yield text(middle, steps - 10, f"from {sources[number] // SEQ_LEN}" if inside else "in place", size=11)
        yield text(middle, steps + LANES * (CELL + 8) + 12, f"batch {number}", size=12)
    for number in range(1, whole + 1):
        for top in (texts, steps):
            bottom = top + LANES * (CELL + 8) - 8
            yield line(LEFT + number * SEQ_LEN * CELL, top - 4, bottom + 4, colour="#c0392b", width=2.5)
    beside = LEFT + 15 * CELL
    for y, words in (
        (texts + CELL + 8, "seq_len = 2: a step is two tokens of every lane;"),
        (steps + CELL / 2, "steps of a window are permuted, but for those that join it to the next;"),
        (steps + CELL / 2 + 18, "what is left goes on with epoch 1"),
    ):
        yield text(beside, y, words, anchor="start", size=12)
    yield text(LEFT - 10, texts - 10, "the text", anchor="end", size=12)
    yield text(LEFT - 10, steps - 10, "the steps", anchor="end", size=12)


def _holds(blocks: StepBlocks, number: int) -> bool:
    return blocks.first <= number < blocks.first + len(blocks.texts)


def main() -> None:
    body = "\n".join(draw())
    target = Path(__file__).parent.parent / "docs" / "images" / "order.svg"
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
