"""What `tools/benchmark/benchmark.py` found, as a table and as a picture.

python tools/benchmark/benchmark_report.py build/benchmark.json    prints the table again and draws again
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# heading, figure, how it is written
COLUMNS: list[tuple[str, str, Callable[[Any], str]]] = [
    ("convert s", "convert_s", lambda value: f"{value:.1f}" if value else "none"),
    ("disk MB", "disk_bytes", lambda value: f"{value / 1e6:,.0f}"),
    ("M tokens/s", "tokens_per_s", lambda value: f"{value / 1e6:,.0f}" if value >= 1e7 else f"{value / 1e6:,.1f}"),
    ("cores", "cores", lambda value: f"{value:.2f}"),
    ("CPU ns/token", "cpu_ns_per_token", lambda value: f"{value:.2f}"),
    ("resume s", "resume_s", lambda value: f"{value:.3f}"),
    ("exact", "exact", lambda value: "yes" if value else "no"),
    ("lost", "lost_tokens", lambda value: f"{value:,}"),
    ("repeated", "repeated_tokens", lambda value: f"{value:,}"),
    ("distinct", "distinct", lambda value: f"{value:.1%}"),
    ("peak MB", "peak_bytes", lambda value: f"{value / 1e6:,.0f}"),
    ("own MB", "peak_own_bytes", lambda value: f"{value / 1e6:,.0f}"),
]


def table(result: Mapping[str, Any]) -> str:
    """A Markdown table, one line a loader, with what it was measured on above it."""
    lines = [["", *(heading for heading, _, _ in COLUMNS)]]
    for entry in result["loaders"].values():
        figures = entry["figures"]
        cells = ["" if figures[key] is None else written(figures[key]) for _, key, written in COLUMNS]
        lines.append([entry["title"], *cells])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows = [
        "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |" for line in lines
    ]
    rows.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    notes = [f"{entry['title']} failed: {entry['error']}" for entry in result["loaders"].values() if entry["error"]]
    notes += [f"{name} was left out: {reason}" for name, reason in result["missing"].items()]
    return "\n".join([_setting(result), "", *rows, *([""] if notes else []), *notes])


def _setting(result: Mapping[str, Any]) -> str:
    data, options = result["set"], result["options"]
    return (
        f"{data['tokens']:,} tokens in {data['documents']:,} documents and {data['row_groups']} row groups, batches of "
        f"{options['lanes']} x {options['seq_len']}, {options['epochs']:g} epochs a run, {options['cores']} core(s) "
        f"of {result['machine']['cpu']}, {options['workers']} DataLoader workers, medians of {options['rounds']} rounds"
    )


def plot(result: Mapping[str, Any], stem: Path) -> list[Path]:
    """Draw ``stem.svg`` and ``stem.png``; needs matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    entries = [entry for entry in result["loaders"].values() if entry["figures"]["cpu_ns_per_token"] is not None]
    entries.sort(key=lambda entry: float(entry["figures"]["cpu_ns_per_token"]), reverse=True)
    titles = [entry["title"] for entry in entries]
    panels: list[tuple[str, str, float, Callable[[float], str]]] = [
        ("CPU, ns per token", "cpu_ns_per_token", 1, lambda value: f"{value:.2g}" if value < 10 else f"{value:.0f}"),
        ("from a checkpoint to the next batch, s", "resume_s", 1, lambda value: f"{value:.2g}"),
        ("tokens lost + repeated by a resume", "lost_tokens", 1, lambda value: f"{value:,.0f}"),
        ("own memory at most, MB", "peak_own_bytes", 1e-6, lambda value: f"{value:,.0f}"),
    ]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(16, 0.42 * len(entries) + 1.6), sharey=True)
    for axis, (heading, key, scale, written) in zip(axes, panels, strict=True):
        values = [entry["figures"][key] for entry in entries]
        if key == "lost_tokens":
            values = [
                None if value is None else value + entry["figures"]["repeated_tokens"]
                for value, entry in zip(values, entries, strict=True)
            ]
        numbers = [0.0 if value is None else value * scale for value in values]
        colours = [_colour(entry["title"]) for entry in entries]
        bars = axis.barh(titles, numbers, color=colours)
        labels = ["–" if value is None else written(number) for value, number in zip(values, numbers, strict=True)]
        axis.bar_label(bars, labels, padding=3, fontsize=9)
        axis.set_xlim(0, 1.25 * max(*numbers, 1e-9))
        axis.set_title(heading, fontsize=10)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.set_xticks([])  # every bar has its number
    figure.text(0.01, 0.01, _setting(result), fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    paths = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    for path in paths:
        figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return paths


def _colour(title: str) -> str:
    if "limit" in title:
        return "#b8c2cc"
    return "#2f6db3" if title.startswith("parquet_loader") else "#d99058"


def plot_if_possible(result: Mapping[str, Any], stem: Path) -> None:
    """Draw where matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("no picture: matplotlib is not installed", file=sys.stderr)
    else:
        print("drawn: " + ", ".join(map(str, plot(result, stem))), file=sys.stderr)


if __name__ == "__main__":
    found = json.loads(Path(sys.argv[1]).read_text())
    print(table(found))
    plot_if_possible(found, Path(sys.argv[1]))
