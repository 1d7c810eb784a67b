"""How well a run's order shuffles a set, beside a full shuffle.

    python tools/quality/quality.py SOURCE --seq-len 2048 --lanes 512 [--window 64] [--steps 1000]

Reads the set as a training run of one rank would, with each token replaced by the number of its document, and tells how
much of a row the steps before have shown already, what a batch is made of, and how documents are cut. Beside it stand
the same rows with the steps of windows not permuted, and full shuffles of the same documents: all rows of the set
permuted, or all documents and then all rows. With few steps, the documents of row groups that were not read are taken
to be of equal length there.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from quality_rows import Documents, Rows, fixed_rows, loader_rows, order_as_text

from parquet_loader import ParquetLoader, ParquetLoaderError
from parquet_loader.blocks import IntArray

DOCUMENT = Path(__file__).parents[2] / "docs" / "order.md"
_PARTS = 16  # of the set, one after another: a source each, if it were sorted by source
_STEPS = 8
_MOST = 0.9  # of the set's tokens, with which cuts are told

Measures = dict[str, float]


def measures(rows: Rows, documents: Documents) -> Measures:
    """Everything that is told of an order, by what it is called."""
    return {**_shown_before(rows), **_mixture(rows, documents), **_cuts(rows, documents)}


def shown_before(rows: Rows, steps: int, *, lane: bool) -> float:
    """The share of the tokens, from the second step on, whose document was in one of so many steps before.

    Args:
        rows: of two steps or more.
        steps: how many steps before are looked at.
        lane: only in rows of the same lane; False for all rows of a batch.
    """
    since, tokens = _since_last_shown(rows, lane)
    return float(tokens[since <= steps].sum() / rows.tokens[rows.step > 0].sum())


def _since_last_shown(rows: Rows, lane: bool) -> tuple[IntArray, IntArray]:
    """(steps since its document was in a row last, tokens) of what each step holds of each document it is not new to.

    Args:
        rows: of some steps.
        lane: each lane for itself; False for all rows of a batch together.
    """
    stream = rows.document * rows.lanes + rows.lane if lane else rows.document
    order = np.lexsort((rows.step, stream))
    stream, step = stream[order], rows.step[order]
    first = np.flatnonzero(np.append(True, (stream[1:] != stream[:-1]) | (step[1:] != step[:-1])))
    stream, step, tokens = stream[first], step[first], np.add.reduceat(rows.tokens[order], first)
    again = stream[1:] == stream[:-1]
    return np.diff(step)[again], tokens[1:][again]


def _shown_before(rows: Rows) -> Measures:
    if rows.steps < 2:
        return {}
    found = {
        f"% of tokens whose document was in {name} {when}": 100 * shown_before(rows, steps, lane=lane)
        for name, lane in (("its lane's row", True), ("any row", False))
        for when, steps in (("a step before", 1), (f"of the {_STEPS} steps before", _STEPS))
    }
    since, _ = _since_last_shown(rows, lane=False)
    if len(since):
        found["steps from a row with a document to the next with it, median"] = float(np.median(since))
    return found


def _mixture(rows: Rows, documents: Documents) -> Measures:
    row = rows.step * rows.lanes + rows.lane
    groups = len(documents.groups)
    group = documents.group_of(rows.document)
    batch_groups = len(np.unique(rows.step * groups + group)) / rows.steps
    found = {
        "documents in a row": len(row) / (rows.steps * rows.lanes),
        "row groups in a row": len(np.unique(row * groups + group)) / (rows.steps * rows.lanes),
        "row groups in a batch": batch_groups,
        "a batch is as mixed as so many independent rows": independent_rows(rows, documents),
    }
    if rows.lanes > 1:
        found["two rows of a batch: how far apart in the set (full shuffle: 1)"] = _pair_distance(rows, documents)
        found["a row and the nearest one of its batch: how far apart (full shuffle: 1)"] = _nearest_distance(
            rows, documents
        )
    return found


def independent_rows(rows: Rows, documents: Documents) -> float:
    """As many rows, drawn independently, would vary as much in the parts of the set they come from as a batch does.

    The set is `_PARTS` parts of equal size. A batch of n rows that are of a part each, drawn with probability p, has a
    share of it with variance ``p (1 - p) / n``; what batches do have tells n.
    """
    part = np.minimum((documents.places()[rows.document] * _PARTS).astype(np.int64), _PARTS - 1)
    tokens = np.bincount(rows.step * _PARTS + part, rows.tokens, rows.steps * _PARTS).reshape(rows.steps, _PARTS)
    variance = float(((tokens / (rows.lanes * rows.seq_len) - 1 / _PARTS) ** 2).sum(axis=1).mean())
    return (1 - 1 / _PARTS) / variance if variance else float("inf")


def _row_places(rows: Rows, documents: Documents) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Where in the set each row's largest piece begins, shape ``(steps, lanes)``, rising within each step."""
    row = rows.step * rows.lanes + rows.lane
    order = np.lexsort((rows.tokens, row))
    last = np.append(np.diff(row[order]) > 0, True)
    places: np.ndarray[tuple[int, int], np.dtype[np.float64]] = documents.places()[rows.document[order][last]]
    return np.sort(places.reshape(rows.steps, rows.lanes), axis=1)


def _pair_distance(rows: Rows, documents: Documents) -> float:
    """The mean over all pairs of a batch, over that of points drawn uniformly, a third of the set."""
    places, lanes = _row_places(rows, documents), rows.lanes
    weights = 2 * np.arange(lanes) - lanes + 1  # in how many pairs a place is the larger one, less those it is not
    return float((places * weights).sum(axis=1).mean() / (lanes * (lanes - 1) / 2) * 3)


def _nearest_distance(rows: Rows, documents: Documents) -> float:
    """The mean over rows, over that of as many points drawn uniformly.

    Their gaps are 1 / (B + 1) in the mean and the smaller of two is half of that; the outermost have but one gap.
    """
    gaps, lanes = np.diff(_row_places(rows, documents), axis=1), rows.lanes
    endless = np.full((rows.steps, 1), np.inf)
    nearest = np.minimum(np.hstack([endless, gaps]), np.hstack([gaps, endless]))
    return float(nearest.mean() / ((lanes + 2) / (2 * lanes * (lanes + 1))))


def _cuts(rows: Rows, documents: Documents) -> Measures:
    """Of documents that came whole, into how many pieces; of a part of the set these would be the short ones."""
    if rows.tokens.sum() < _MOST * documents.lengths.sum():
        return {}
    count = len(documents.lengths)
    tokens, pieces, begins = (
        np.bincount(rows.document, weights, count) for weights in (rows.tokens, None, rows.begins)
    )
    whole = (tokens == documents.lengths) & (tokens > 0)
    return {
        "rows that a document is spread over": float(pieces[whole].mean()),
        "% of documents in more than one row": 100 * float((pieces[whole] > 1).mean()),
        "% of documents that a lane's border cut": 100 * float((begins[whole] > 1).mean()),
    }


def compare(new_loader: Callable[[], ParquetLoader], steps: int | None = None) -> dict[str, Measures]:
    """The measures of an order beside others of the same documents, by the orders' names.

    Args:
        new_loader: makes the same loader each time.
        steps: how many are measured; None for the first epoch.
    """
    with new_loader() as loader:
        rows, documents = loader_rows(loader, steps)
    with new_loader() as loader:
        order_as_text(loader)
        in_text_order, _ = loader_rows(loader, steps)
    shuffled = functools.partial(fixed_rows, documents, seq_len=rows.seq_len, lanes=rows.lanes, steps=rows.steps)
    orders = {
        "steps not permuted": in_text_order,
        "the loader": rows,
        "rows shuffled": shuffled(),
        "documents and rows shuffled": shuffled(shuffle_documents=True),
    }
    return {name: measures(each, documents) for name, each in orders.items() if each.steps}


def number(value: float | None) -> str:
    """A cell of a table: three digits or so."""
    if value is None:
        return ""
    if float(value).is_integer() or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(head: str, columns: dict[str, Measures]) -> str:
    """Columns of measures, in Markdown."""
    names = list(dict.fromkeys(name for each in columns.values() for name in each))
    lines = [[head, *columns], *([name, *(number(each.get(name)) for each in columns.values())] for name in names)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    rows = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write_docs(name: str, block: str, document: Path = DOCUMENT) -> None:
    """Put a block between the markers of its name in a document."""
    text = document.read_text()
    begin = text.index(f"<!-- quality: {name} -->\n") + len(f"<!-- quality: {name} -->\n")
    end = text.index("<!-- end -->", begin)
    document.write_text(f"{text[:begin]}{block}\n{text[end:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="+", help="a folder, a file, a glob or a URL, or several")
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--lanes", type=int, required=True, help="rows of the global batch")
    parser.add_argument("--window", type=int, default=64, help="row groups shuffled together (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="how many are measured; without it, the first epoch")
    parser.add_argument("--column", help="the token column, where it is not the only list of integers")
    parser.add_argument("--storage-options", type=json.loads, metavar="JSON", help="for the filesystem of a URL")
    parser.add_argument("--eos-id", type=int, help="that the run appends to every document")
    parser.add_argument("--no-shuffle", action="store_true", help="the order of shuffle=False")
    options = parser.parse_args(arguments)
    if options.steps is not None and options.steps < 2:
        parser.error(f"--steps must be 2 or more, not {options.steps}")
    new_loader = functools.partial(
        ParquetLoader,
        options.source[0] if len(options.source) == 1 else options.source,
        seq_len=options.seq_len,
        lanes=options.lanes,
        window=options.window,
        seed=options.seed,
        column=options.column,
        storage_options=options.storage_options,
        eos_id=options.eos_id,
        shuffle=not options.no_shuffle,
    )
    try:
        with new_loader() as loader:
            steps, group_count = len(loader), len(loader.index)
        measured = min(steps, options.steps or steps)
        found = compare(new_loader, measured)
    except ParquetLoaderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{measured:,} of the first epoch's {steps:,} steps, each of {options.lanes:,} rows of {options.seq_len:,} "
        f"tokens, windows of {options.window:,} of {group_count:,} row groups\n"
    )
    print(table("", found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
