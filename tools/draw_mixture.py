"""Draws docs/images/mixture.svg: one block of a mixture, from the real lattice, and the same drawn at random.

python tools/draw_mixture.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parquet_loader.order.mixture import BLOCK, Lattice, block_quotas, integer_weights
from parquet_loader.order.order import random_words

WEIGHTS = {"code": 0.3, "math": 0.1, "web": 0.6}
COLOURS = {"code": "#f2a65a", "math": "#4f9d69", "web": "#cfe3f7"}
LANES, BATCH_TICKS = 8, 8
CELL, LEFT, TOP, PANEL = 13, 70, 62, 196


def text(x: float, y: float, content: str, *, size: int = 12, anchor: str = "start", weight: str = "normal") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x}" y="{y}" {style} fill="#1c2733">{content}</text>'


def panel(top: float, title: str, sources: np.ndarray, names: tuple[str, ...]) -> Iterator[str]:
    """A block, shape ``(BLOCK, LANES)``: a line for each lane, a column for each batch, and each lane's counts."""
    right = LEFT + BLOCK * CELL
    yield text(LEFT, top - 26, title, size=13, weight="bold")
    for row in range(0, BLOCK, BATCH_TICKS):
        yield text(LEFT + row * CELL, top - 8, f"batch {row}", size=10)
    for column, name in enumerate(names):
        yield text(right + 28 + column * 38, top - 8, name, size=11, anchor="middle", weight="bold")
    for lane in range(LANES):
        y = top + lane * CELL
        yield text(LEFT - 8, y + CELL - 3, f"lane {lane}", size=10, anchor="end")
        for column in range(len(names)):
            count = int((sources[:, lane] == column).sum())
            yield text(right + 28 + column * 38, y + CELL - 2, str(count), size=11, anchor="middle")
    for column, name in enumerate(names):
        side = CELL - 1
        boxes = (
            f"M{LEFT + row * CELL} {top + lane * CELL}h{side}v{side}h-{side}z"
            for row, lane in np.argwhere(sources == column).tolist()
        )
        yield f'<path fill="{COLOURS[name]}" d="{"".join(boxes)}"/>'
    in_batches = np.stack([(sources == column).sum(axis=1) for column in range(len(names))])
    spread = ", ".join(f"{in_batches[k].min()} to {in_batches[k].max()} of {name}" for k, name in enumerate(names))
    yield text(LEFT, top + LANES * CELL + 18, f"in a batch of {LANES} rows: {spread}", size=11)


def draw() -> Iterator[str]:
    weights = integer_weights(WEIGHTS)
    names = tuple(name for name, _ in weights)
    quotas = block_quotas([weight for _, weight in weights], 0)
    lattice = Lattice(seed=0, lanes=LANES).table(0, quotas, 0, LANES).sources
    words = random_words(BLOCK * LANES, key=[0, 0], counter=[0, 0, 0, 0]).astype(np.float64) / 2.0**64
    shares = np.cumsum([WEIGHTS[name] for name in names])
    at_random = np.minimum(np.searchsorted(shares, words, side="right"), len(names) - 1).reshape(BLOCK, LANES)
    for place, name in enumerate(names):
        x = LEFT + place * 130
        yield f'<rect x="{x}" y="8" width="14" height="14" fill="{COLOURS[name]}"/>'
        yield text(x + 20, 20, f"{name}, {WEIGHTS[name]:.0%}")
    yield from panel(TOP + 20, f"The block of {BLOCK} rows a lane", lattice, names)
    yield from panel(TOP + 20 + PANEL, "The same shares, each row drawn at random", at_random, names)


def main() -> None:
    width, height = LEFT + BLOCK * CELL + 28 + 3 * 38, TOP + 2 * PANEL - 30
    body = "\n".join(draw())
    target = Path(__file__).parent.parent / "docs" / "images" / "mixture.svg"
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
