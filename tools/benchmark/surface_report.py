"""What `tools/benchmark/surface.py` found, as tables, as a picture of ratios, and in docs/performance.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Found = Mapping[str, Any]
Column = tuple[str, "int | None"]  # a loader, and the size of row groups where it depends on that

FIGURES: list[tuple[str, str, Callable[[float], str]]] = [
    ("CPU ns per token", "cpu_ns_per_token", lambda value: f"{value:.2f}" if value < 100 else f"{value:.0f}"),
    ("Million tokens per second", "tokens_per_s", lambda value: f"{value / 1e6:,.{0 if value >= 1e7 else 1}f}"),
]
OURS = "parquet_loader"


def tables(found: Found) -> str:
    """For each number of cores a Markdown table of CPU and one of speed: a line for each length of documents."""
    blocks = [_setting(found)]
    for cores in found["options"]["cores"]:
        cells = _cells(found, cores)
        names = list(dict.fromkeys(name for _, (name, _) in cells))
        columns = sorted({column for _, column in cells}, key=lambda column: (names.index(column[0]), column[1] or 0))
        for heading, key, written in FIGURES:
            lines = [["documents of", *(_heading(found, column) for column in columns)]]
            for length in found["options"]["lengths"]:
                values = [cells.get((length, column), {}).get(key) for column in columns]
                lines.append([f"{length:,}", *("" if value is None else written(value) for value in values)])
            blocks.append(f"{heading}, {cores} core{'s' * (cores > 1)}:\n\n{_markdown(lines)}")
    errors = {f"{cell['title']} failed: {cell['error']}" for cell in found["cells"] if cell["error"]}
    missing = [f"{name} was left out: {reason}" for name, reason in found["missing"].items()]
    return "\n\n".join([*blocks, *sorted(errors), *missing])


def _cells(found: Found, cores: int) -> dict[tuple[int, Column], Mapping[str, Any]]:
    """The figures of each length and column."""
    return {
        (cell["mean_length"], (cell["loader"], cell["group_tokens"])): cell["figures"]
        for cell in found["cells"]
        if cell["cores"] == cores
    }


def _title(found: Found, loader: str) -> str:
    return next(str(cell["title"]) for cell in found["cells"] if cell["loader"] == loader)


def _heading(found: Found, column: Column) -> str:
    loader, group_tokens = column
    return _title(found, loader) + ("" if group_tokens is None else f", {group_tokens:,}")


def _setting(found: Found) -> str:
    options, machine = found["options"], found["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        f"About {options['tokens']:,} tokens a set, batches of {options['lanes']} x {options['seq_len']}, windows of "
        f"{options['window_tokens']:,} tokens, runs of about {options['seconds']:g} s, medians of {options['rounds']} "
        f"rounds. {machine['cpu']}, {machine['cpus']} cores, load {machine['load']:.1f} at the start; Python "
        f"{machine['python']}, {versions}. A number after a name is the tokens of a row group."
    )


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows = [
        "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |" for line in lines
    ]
    rows.insert(1, "| " + " | ".join(["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]) + " |")
    return "\n".join(rows)


def ratios(found: Found, cores: int, key: str) -> dict[str, list[list[float | None]]]:
    """parquet_loader over each peer: a row for each length, a column for each size of row groups.

    The peer is that of the same size where it reads the Parquet itself.
    """
    cells = _cells(found, cores)
    peers = dict.fromkeys(name for _, (name, _) in cells if not name.startswith(OURS))

    def ratio(peer: str, length: int, size: int) -> float | None:
        ours = cells.get((length, (OURS, size)), {}).get(key)
        theirs = (cells.get((length, (peer, size))) or cells.get((length, (peer, None)), {})).get(key)
        return ours / theirs if ours and theirs else None

    options = found["options"]
    return {
        peer: [[ratio(peer, length, size) for size in options["group_tokens"]] for length in options["lengths"]]
        for peer in peers
    }


def draw(found: Found, paths: Sequence[Path]) -> None:
    """Maps of parquet_loader over each peer: CPU on one core, speed on the most; needs matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "parquet_loader"
    from matplotlib import colors, pyplot

    options = found["options"]
    few, many = min(options["cores"]), max(options["cores"])
    maps = [
        (f"CPU per token, {few} core:\nparquet_loader over", ratios(found, few, "cpu_ns_per_token"), "RdBu_r"),
        (f"tokens per second, {many} cores:\nparquet_loader over", ratios(found, many, "tokens_per_s"), "RdBu"),
    ]
    peers = len(maps[0][1])
    figure, axes = pyplot.subplots(2, peers, figsize=(2.1 * peers + 1.2, 5.2), squeeze=False)
    for row, (heading, peer_maps, colour_map) in zip(axes, maps, strict=True):
        for axis, (peer, values) in zip(row, peer_maps.items(), strict=True):
            shown = [[float("nan") if value is None else value for value in line] for line in values]
            axis.imshow(shown, cmap=colour_map, norm=colors.LogNorm(0.1, 10), aspect="auto")
            for y, line in enumerate(values):
                for x, value in enumerate(line):
                    dark = value is not None and not 0.2 < value < 5
                    text = "" if value is None else f"{value:.2g}"
                    axis.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
            axis.set_xticks(range(len(line)), [f"{size:,}" for size in options["group_tokens"]], fontsize=7)
            lengths = [f"{length:,}" for length in options["lengths"]] if axis is row[0] else []
            axis.set_yticks(range(len(values)) if lengths else [], lengths, fontsize=8)
            axis.set_title(_title(found, peer), fontsize=9)
            axis.spines[:].set_visible(False)
            axis.tick_params(length=0)
        row[0].set_ylabel(f"{heading}\n\ntokens of a document", fontsize=8)
    figure.supxlabel("tokens of a row group", fontsize=8)
    figure.tight_layout()
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def draw_if_possible(found: Found, stem: Path) -> None:
    """Draw ``stem.svg`` and ``stem.png`` where matplotlib is installed."""
    paths = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    try:
        draw(found, paths)
    except ImportError:
        print("no picture: matplotlib is not installed", file=sys.stderr)
    else:
        print("drawn: " + ", ".join(map(str, paths)), file=sys.stderr)


def write_docs(found: Found, docs: Path) -> None:
    """Put tables and picture between their marks in ``performance.md``."""
    picture = docs / "images" / "benchmark-surface.svg"
    draw(found, [picture])
    block = f"{tables(found)}\n\n![parquet_loader over others](images/{picture.name})\n"
    marked = re.compile(r"(<!-- benchmark: surface -->\n).*?(<!-- end -->)", re.DOTALL)
    document = docs / "performance.md"
    text, count = marked.subn(lambda match: match[1] + block + match[2], document.read_text())
    if not count:
        raise ValueError(f"{document} has no place for the surface: <!-- benchmark: surface --> ... <!-- end -->")
    document.write_text(text)
