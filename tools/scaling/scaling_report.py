"""What `tools/scaling/scaling.py` found, as Markdown tables, as pictures, and in docs/performance.md."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]
Cell = str | float | int | None

COLOURS = ["#2f6db3", "#d99058", "#5a9e6f", "#a05a9e", "#8798a8", "#b8474f", "#c9a93d", "#4fa8b5"]


def middle(runs: Iterable[dict[str, Any]], key: str) -> float:
    """The median of one figure of several runs."""
    return statistics.median(float(run[key]) for run in runs)


def number(value: Cell) -> str:
    """A cell of a table: three digits or so."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def panel(
    title: str,
    x: str,
    y: str,
    series: Mapping[str, Sequence[tuple[Any, float]]],
    *,
    log: str = "",
) -> dict[str, Any]:
    """A picture's panel: lines where x is a number, bars where it is a name. ``log``: the axes to be logarithmic."""
    return {
        "title": title,
        "x": x,
        "y": y,
        "series": {key: [list(p) for p in points] for key, points in series.items()},
        "log": log,
    }


def table(result: Result) -> str:
    """The tables with what they were measured on, in Markdown."""
    blocks = []
    for part in result["tables"]:
        lines = [part["columns"], *([number(cell) for cell in row] for row in part["rows"])]
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        rows = [
            "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |"
            for line in lines
        ]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        rows.insert(1, "| " + " | ".join(rule) + " |")
        blocks.append("\n".join(rows))
    notes = " ".join(result["notes"])
    return "\n\n".join([f"`{result['command']}` — {result['machine']}.", *blocks, *([notes] if notes else [])])


def draw(result: Result, path: Path) -> None:
    """Draw the result's panels; needs matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "parquet_loader"
    from matplotlib import pyplot

    panels = result["panels"]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.2 * len(panels), 3.6), squeeze=False)
    for axis, each in zip(axes[0], panels, strict=True):
        named = any(isinstance(point[0], str) for points in each["series"].values() for point in points)
        (_bars if named else _lines)(axis, each["series"])
        if "x" in each["log"]:
            axis.set_xscale("log")
        if "y" in each["log"]:
            axis.set_yscale("log")
        else:
            axis.set_ylim(0, max(axis.get_ylim()[1], 1e-9))
        axis.set_title(each["title"], fontsize=10)
        axis.set_xlabel(each["x"], fontsize=9)
        axis.set_ylabel(each["y"], fontsize=9)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        if len(each["series"]) > 1:
            axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _lines(axis: Any, series: dict[str, list[list[float]]]) -> None:
    for place, (name, points) in enumerate(series.items()):
        axis.plot(*zip(*points, strict=True), marker="o", markersize=4, color=COLOURS[place % len(COLOURS)], label=name)


def _bars(axis: Any, series: dict[str, list[list[Any]]]) -> None:
    names = list(dict.fromkeys(point[0] for points in series.values() for point in points))
    width = 0.8 / len(series)
    for place, (name, points) in enumerate(series.items()):
        at = [names.index(point[0]) + (place - (len(series) - 1) / 2) * width for point in points]
        axis.bar(at, [point[1] for point in points], width, color=COLOURS[place % len(COLOURS)], label=name)
    axis.set_xticks(
        range(len(names)), names, rotation=35 if len(names) > 4 else 0, ha="right" if len(names) > 4 else "center"
    )


def write_docs(output: Path, document: Path, pictures: Path) -> list[str]:
    """Put the tables and pictures of every result in ``output`` between their markers; returns the names put in."""
    text = document.read_text()
    written = []
    for path in sorted(output.glob("*.json")):
        result = json.loads(path.read_text())
        name = result["name"]
        marked = re.compile(rf"(<!-- scaling: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not marked.search(text):
            continue
        picture = pictures / f"performance-{name}.svg"
        draw(result, picture)
        block = f"{table(result)}\n\n![{result['title']}](images/{picture.name})\n"
        text = marked.sub(_constant(block), text)
        written.append(name)
    document.write_text(text)
    return written


def _constant(block: str) -> Callable[[re.Match[str]], str]:
    return lambda match: match[1] + block + match[2]
