"""How far batches, lanes, ranks and whole runs of a mixture are from its weights: ours, and other ways to draw.

    lattice    `parquet_loader.order.mixture`
    random     each row's source is drawn by the weights, as most loaders do
    greedy     each row, one after another through all global batches, is of the source that lacks most of its share
               (as Megatron's blended index)
    by rank    the greedy rule on each of 8 ranks by itself

Sources have weights 1, 1/2, 1/3, ... The tables tell the most rows, of any source, that any batch, lane, rank's part of
a batch, or the run so far was off at any step. They are Markdown, for docs/mixtures.md:

    python tools/mixtures/mixture_tables.py [--steps 640] [--seed 0]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence

import numpy as np

from parquet_loader.order.mixture import BLOCK, Lattice, block_quotas, integer_weights, rows_given

SOURCES = (4, 10, 30, 100)
LANES = (8, 64, 512, 1024)
RANKS = (8, 64)
WAYS = ("lattice", "random", "greedy", "by rank")
LONG = 1_000_000

Drawn = np.ndarray[tuple[int, ...], np.dtype[np.int64]]  # mostly the source of each row, shape (steps, lanes)


def zipf(count: int) -> list[int]:
    """Weights 1, 1/2, 1/3, ... as integers."""
    return [weight for _, weight in integer_weights({f"{k:03}": 1 / (k + 1) for k in range(count)})]


def by_lattice(weights: Sequence[int], lanes: int, steps: int, seed: int) -> Drawn:
    """What `ParquetLoader` draws."""
    lattice = Lattice(seed=seed, lanes=lanes)
    blocks = range(-(-steps // BLOCK))
    tables = [lattice.table(block, block_quotas(weights, block), 0, lanes).sources for block in blocks]
    return np.concatenate(tables)[:steps]


def at_random(weights: Sequence[int], lanes: int, steps: int, seed: int) -> Drawn:
    """Each row by itself."""
    shares = np.array(weights) / sum(weights)
    return np.random.default_rng(seed).choice(len(weights), (steps, lanes), p=shares)


def greedy(weights: Sequence[int], rows: int) -> Drawn:
    """Each row of the source that lacks most of its share then, of equals the first: shape ``(rows,)``."""
    shares = np.array(weights) / sum(weights)
    lacks = np.zeros(len(weights))
    drawn = np.empty(rows, np.int64)
    for row in range(rows):
        lacks += shares
        drawn[row] = source = lacks.argmax()
        lacks[source] -= 1
    return drawn


def most_off(rows: Drawn, shares: Sequence[float], of: float | Drawn) -> float:
    """The most that rows of sources, shape ``(sources, ...)``, differ from their shares of so many rows."""
    return max(float(np.abs(own - share * of).max()) for own, share in zip(rows, shares, strict=True))


def measures(drawn: Drawn, shares: Sequence[float]) -> dict[str, float]:
    """Of rows that were drawn: what is measured, and the most rows that it is off."""
    steps, lanes = drawn.shape
    so_far = np.arange(1, steps + 1)
    own = drawn[None] == np.arange(len(shares))[:, None, None]  # (sources, steps, lanes)
    found = {"a batch": most_off(own.sum(axis=2), shares, lanes)}
    for ranks in RANKS:
        if lanes % ranks == 0:
            parts = own.reshape(*own.shape[:2], ranks, -1).sum(axis=3)
            found[f"a batch on one of {ranks} ranks"] = most_off(parts, shares, lanes // ranks)
    found["a lane so far"] = most_off(own.cumsum(axis=1, dtype=np.int32), shares, so_far[:, None])
    found["the run so far"] = most_off(own.sum(axis=2).cumsum(axis=1), shares, so_far * lanes)
    return found


def at_the_end(weights: Sequence[int], lanes: int, steps: int, seed: int) -> dict[str, float]:
    """How far a long run is off at its end; a greedy one is as far off as a short one."""
    shares = [weight / sum(weights) for weight in weights]
    random = np.random.default_rng(seed).multinomial(steps * lanes, shares)
    return {
        "lattice": most_off(np.array(rows_given(steps, weights)) * lanes, shares, steps * lanes),
        "random": most_off(random, shares, steps * lanes),
    }


def table(head: str, columns: Sequence[str], rows: Sequence[tuple[int, int, Mapping[str, float]]]) -> str:
    """A Markdown table with a sentence before it."""
    lines = [
        f"| {lanes:,} | {sources} | {' | '.join(f'{cells[column]:,.1f}' for column in columns)} |"
        for lanes, sources, cells in rows
    ]
    top = f"| lanes | sources | {' | '.join(columns)} |\n|{'---:|' * (2 + len(columns))}"
    return "\n".join([f"{head}\n\n{top}", *lines]) + "\n"


def tables(sources: Sequence[int], lanes: Sequence[int], steps: int, seed: int) -> str:
    """The tables, one for each measure."""
    found: dict[str, list[tuple[int, int, dict[str, float]]]] = {}
    ends = []
    for count in sources:
        weights = zipf(count)
        shares = [weight / sum(weights) for weight in weights]
        one_by_one = greedy(weights, steps * max(lanes))
        for width in lanes:
            alone = one_by_one[: steps * width // RANKS[0]].reshape(steps, -1)
            drawn = {
                "lattice": by_lattice(weights, width, steps, seed),
                "random": at_random(weights, width, steps, seed),
                "greedy": one_by_one[: steps * width].reshape(steps, width),
                "by rank": np.tile(alone, RANKS[0]),
            }
            results = {way: measures(rows, shares) for way, rows in drawn.items()}
            for measure in results[WAYS[0]]:
                cells = {way: results[way][measure] for way in WAYS}
                found.setdefault(measure, []).append((width, count, cells))
            ends.append((width, count, at_the_end(weights, width, LONG, seed)))
    order = sorted(found, key=list(measures(np.zeros((1, math.lcm(*RANKS)), np.int64), [1.0])).index)
    parts = [table(f"Rows of a source that {measure} is off at most:", WAYS, found[measure]) for measure in order]
    long = table(f"Rows of a source that a run of {LONG:,} steps is off at its end:", WAYS[:2], ends)
    return "\n".join([*parts, long])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10 * BLOCK, help="of each run (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what is random (default %(default)s)")
    arguments = parser.parse_args()
    print(tables(SOURCES, LANES, arguments.steps, arguments.seed), end="")


if __name__ == "__main__":
    main()
