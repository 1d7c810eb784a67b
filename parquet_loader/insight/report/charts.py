"""The charts of a report, each from plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .ink import Canvas, Chart, amount, dashes, drawn, ink, series, shortened, tick

__all__ = ["Curve", "Event", "Histogram", "Range", "epochs", "histograms", "percentages", "ranks", "shares", "timeline"]

_DASHED: Any = (0, (3, 2))
_DOTTED: Any = (0, (1, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A source's share over a run.

    Attributes:
        name: of the source.
        number: of its colour.
        target, achieved: shares in each stretch of the run, shape ``(stretches,)``.
    """

    name: str
    number: int
    target: Sequence[float]
    achieved: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A stretch of a run, from one token to another."""

    first: float
    last: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happens at a token of a run; ``bad`` where somebody may have to do something about it."""

    token: float
    label: str
    bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How some numbers are distributed.

    Attributes:
        name: of the source.
        number: of its colour.
        edges: of the bars, shape ``(bars + 1,)``, above 0.
        heights: of the bars, in whatever unit.
        median: of the numbers.
        interval: where it lies, by what is known.
    """

    name: str
    number: int
    edges: Sequence[float]
    heights: Sequence[float]
    median: float
    interval: tuple[float, float]


def shares(
    borders: Sequence[float], curves: Sequence[Curve], stages: Sequence[Range], events: Sequence[Event]
) -> Chart:
    """Each source's share of the tokens, stretch after stretch.

    Args:
        borders: tokens at which the stretches begin, and the last one ends, shape ``(stretches + 1,)``.
        curves: of the sources.
        stages: drawn as bands.
        events: drawn as lines across.
    """
    end = borders[-1] or 1
    top = 30 + 17 * len(events)
    bottom = top + max(230, 15 * len(curves) + 40)  # the names of the lines are 15 pixels apart
    most = 1.06 * max((max(*curve.achieved, *curve.target) for curve in curves), default=1.0)

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes(44, top, canvas.width - (104 if canvas.narrow else 150), bottom)
        axes.set(xlim=(0, end), ylim=(0, most))
        axes.grid(axis="y", color=ink("line"), linewidth=0.6, alpha=0.55)
        for number, stage in enumerate(stages):
            if not number % 2:
                axes.axvspan(stage.first, stage.last, color=ink("band"), linewidth=0)
            if number:
                axes.axvline(stage.first, color=ink("line"), linewidth=1)
            _label_of_stretch(canvas, axes, stage, str(number + 1), end)
        for row, event in enumerate(events):
            _mark(canvas, axes, event, end, height=29 + 17 * row)
        for curve in curves:
            axes.stairs(curve.target, borders, color=ink("soft"), linewidth=1, linestyle=_DOTTED, baseline=None)
            line = axes.stairs(curve.achieved, borders, color=series(curve.number), linewidth=2, baseline=None)
            line.set_linestyle(dashes(curve.number))
        places = _apart([curve.achieved[-1] for curve in curves], 15 / (bottom - top) * most, most)
        for curve, place in zip(curves, places, strict=True):
            axes.annotate(
                "",
                (end, curve.achieved[-1]),
                xytext=(17, (place - curve.achieved[-1]) / most * (bottom - top)),
                textcoords="offset points",
                annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": series(curve.number), "shrinkA": 0, "shrinkB": 3},
            )
            name = shortened(curve.name, 12 if canvas.narrow else 19)
            canvas.text(axes, end, place, name, dx=21, va="center_baseline")
        shown = _round_places(most, 6)
        canvas.ticks(axes.yaxis, shown, [f"{100 * share:g} %" for share in shown])
        _token_axis(canvas, axes, end)

    what = "; ".join(
        f"{curve.name} {curve.achieved[0]:.1%} at first, {curve.achieved[-1]:.1%} at the end" for curve in curves
    )
    told = "".join(f" {event.label} at {amount(event.token)} tokens." for event in events)
    return drawn(
        "shares",
        draw,
        title="Share of the tokens of each source over the run",
        description=f"Lines over tokens, in {len(stages)} stages. {what}.{told}",
        height=bottom + 40,
    )


def epochs(values: Sequence[tuple[str, int, float, int | None]]) -> Chart:
    """How often each source is read by the run's end, as bars.

    Args:
        values: (name, number of its colour, epochs, most epochs allowed) of each source.
    """
    step = 24
    bottom = 12 + step * len(values)
    most = 1.04 * max([1.0, *(max(value, limit or 0) for _, _, value, limit in values)])

    def draw(canvas: Canvas) -> None:
        left, right = (100, canvas.width - 52) if canvas.narrow else (150, canvas.width - 70)
        axes = canvas.axes(left, 8, right, bottom)
        axes.set(xlim=(0, most), ylim=(len(values) - 0.5, -0.5))
        axes.grid(axis="x", color=ink("line"), linewidth=0.6, alpha=0.55)
        for row, (name, number, value, limit) in enumerate(values):
            axes.barh(row, value, height=0.62, color=series(number), linewidth=0)
            shown = shortened(name, 13 if canvas.narrow else 19)
            canvas.text(axes, 0, row, shown, dx=-8, ha="right", va="center_baseline")
            beside = max(value, limit or 0)
            canvas.text(axes, beside, row, f"{value:.2f}", dx=7, role="soft", size=11, va="center_baseline")
            if limit is not None:
                axes.plot([limit, limit], [row - 0.42, row + 0.42], color=ink("ink"), linewidth=2)
        places = _round_places(most, 4 if canvas.narrow else 10, whole=True)
        canvas.ticks(axes.yaxis, [], [])
        canvas.ticks(axes.xaxis, places, [f"{place:g}" for place in places])
        canvas.below(axes, "epochs; a mark is max_epochs")

    what = "; ".join(
        f"{name} {value:.2f}" + (f" of {limit} allowed" if limit else "") for name, _, value, limit in values
    )
    title = "Epochs of each source by the end of the run"
    return drawn("epochs", draw, title=title, description=f"Bars: {what}.", height=bottom + 44)


def histograms(name: str, title: str, values: Sequence[Histogram], unit: str) -> Chart | None:
    """Histograms, one below the other, over one logarithmic axis; drawn once, for half a page. None of none.

    Args:
        name, title: of the chart.
        values: of the sources.
        unit: what the numbers are.
    """
    if not values:
        return None
    step = 38 if len(values) > 1 else 140
    bottom = 10 + step * len(values)
    low = min(np.log10(each.edges[0]) for each in values) - 0.03
    high = max(np.log10(each.edges[-1]) for each in values) + 0.03
    if high - low < 0.7:  # what differs little is not spread over the whole width
        low, high = (low + high) / 2 - 0.35, (low + high) / 2 + 0.35

    def draw(canvas: Canvas) -> None:
        named = len(values) > 1
        axes = canvas.axes(100 if named else 8, 6, canvas.width - 14, bottom)
        axes.set(xlim=(low, high), ylim=(len(values), 0))
        for row, each in enumerate(values):
            base = row + 1
            tops = base - 0.86 * np.array(each.heights) / (max(each.heights, default=0) or 1)
            edges = np.log10(each.edges)
            axes.stairs(tops, edges, baseline=base, fill=True, color=series(each.number), linewidth=0)
            axes.axhline(base, color=ink("line"), linewidth=0.8)
            if each.interval[0] < each.interval[1]:
                first, last = np.log10(np.maximum(each.interval, 1))
                axes.fill([first, last, last, first], [row + 0.1, row + 0.1, base, base], color=ink("soft"), alpha=0.4)
            axes.plot([np.log10(max(each.median, 1))] * 2, [row + 0.1, base], color=ink("ink"), linewidth=1.4)
            if named:
                canvas.text(axes, low, row + 0.82, shortened(each.name, 13), dx=-8, ha="right")
        places = _logarithmic(low, high, 5)
        canvas.ticks(axes.yaxis, [], [])
        canvas.ticks(axes.xaxis, np.log10(places).tolist(), [tick(place) for place in places])
        canvas.below(axes, f"{unit}; line: median")

    what = "; ".join(
        f"{each.name or 'all'}: {amount(each.edges[0])} to {amount(each.edges[-1])}, median {amount(each.median)}"
        for each in values
    )
    description = f"Histograms over {unit}. {what}."
    return drawn(name, draw, title=title, description=description, height=bottom + 44, both=False)


def percentages(name: str, title: str, values: Sequence[tuple[str, int, float]]) -> Chart:
    """Shares as bars from 0 to 100 %, drawn once, for half a page.

    Args:
        name, title: of the chart.
        values: (name, number of its colour, share) of each source.
    """
    step = 22
    bottom = 10 + step * len(values)

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes(100, 6, canvas.width - 50, bottom)
        axes.set(xlim=(0, 1), ylim=(len(values) - 0.5, -0.5))
        axes.grid(axis="x", color=ink("line"), linewidth=0.6, alpha=0.55)
        for row, (label, number, share) in enumerate(values):
            axes.barh(row, min(share, 1), height=0.62, color=series(number), linewidth=0)
            canvas.text(axes, 0, row, shortened(label, 13), dx=-8, ha="right", va="center_baseline")
            canvas.text(axes, min(share, 1), row, f"{share:.1%}", dx=6, role="soft", size=11, va="center_baseline")
        canvas.ticks(axes.yaxis, [], [])
        canvas.ticks(axes.xaxis, [0, 0.5, 1], ["0", "50 %", "100 %"])

    what = "; ".join(f"{label} {share:.1%}" for label, _, share in values)
    return drawn(name, draw, title=title, description=f"Bars: {what}.", height=bottom + 24, both=False)


def ranks(
    name: str, title: str, values: Mapping[int, float], *, unit: str, limit: tuple[float, str] | None = None
) -> Chart:
    """Bars over world sizes, drawn once, for half a page.

    Args:
        name, title: of the chart.
        values: by world size.
        unit: "B" for bytes; else what stands behind the values.
        limit: a value that is drawn across where it is within sight, and what it is.
    """
    bottom = 200
    most = 1.2 * max([*values.values(), 1e-9])
    if limit is not None and limit[0] < 3 * most:
        most = max(most, 1.15 * limit[0])
    shown = {size: amount(value, unit) if unit == "B" else f"{value:.2f}{unit}" for size, value in values.items()}
    shown |= {size: "–" for size, value in values.items() if not value}

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes(12, 14, canvas.width - 12, bottom)
        axes.set(xlim=(-0.6, len(values) - 0.4), ylim=(0, most))
        for place, (size, value) in enumerate(values.items()):
            axes.bar(place, value, width=0.62, color=series(0), linewidth=0)
            canvas.text(axes, place, value, shown[size], dy=4, size=11 if len(values) < 7 else 9, ha="center")
        if limit is not None and limit[0] <= most:
            axes.axhline(limit[0], color=ink("accent"), linewidth=1.2, linestyle=_DASHED)
            canvas.text(axes, -0.6, limit[0], limit[1], dy=4, role="warn", size=11)
        canvas.ticks(axes.yaxis, [], [])
        canvas.ticks(axes.xaxis, range(len(values)), [f"{size:,}" for size in values])
        canvas.below(axes, "world size")

    what = "; ".join(f"{text} with {size:,}" for size, text in shown.items())
    return drawn(name, draw, title=title, description=f"Bars: {what}.", height=bottom + 44, both=False)


def timeline(end: float, stages: Sequence[Range], skips: Sequence[Range], marks: Sequence[Event]) -> Chart:
    """What a run has done so far.

    Args:
        end: the last token that is shown.
        stages: with their labels.
        skips: that nobody got.
        marks: other events.
    """
    top = 14 + 17 * len(marks)

    def draw(canvas: Canvas) -> None:
        axes = canvas.axes(2, top, canvas.width - 20, top + 40)
        axes.set(xlim=(0, end), ylim=(0, 1))
        for number, stage in enumerate(stages):
            axes.axvspan(stage.first, stage.last, ymin=0.1, color=series(number), alpha=0.3, linewidth=0)
            _label_of_stretch(canvas, axes, stage, str(number + 1), end, inside=True)
        for skip in skips:
            last = max(skip.last, skip.first + 0.003 * end)  # a short one is to be seen too
            axes.axvspan(skip.first, last, ymin=0.1, ymax=0.32, color=ink("accent"), linewidth=0)
        for row, mark in enumerate(marks):
            _mark(canvas, axes, mark, end, height=10 + 17 * row)
        canvas.ticks(axes.yaxis, [], [])
        _token_axis(canvas, axes, end)

    told = "; ".join(
        [f"{each.label} from token {each.first:,.0f} to {each.last:,.0f}" for each in (*stages, *skips)]
        + [f"{mark.label} at token {mark.token:,.0f}" for mark in marks]
    )
    return drawn(
        "timeline", draw, title="What was run so far", description=f"A timeline: {told}.", height=top + 40 + 44
    )


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _label_of_stretch(canvas: Canvas, axes: Any, stage: Range, short: str, end: float, *, inside: bool = False) -> None:
    """A stage's label in the middle of it or above it, or its number where there is no room, or nothing."""
    room = (stage.last - stage.first) / end * canvas.across(axes)
    label = stage.label if room > 7 * len(stage.label) else short
    if room > 7 * len(label):
        middle, height = (stage.first + stage.last) / 2, 0.66 if inside else 1.0
        how: dict[str, Any] = {"va": "center_baseline"} if inside else {"dy": 5}
        role = "ink" if inside else "soft"
        canvas.text(axes, middle, height, label, role=role, size=11, ha="center", above=True, **how)


def _mark(canvas: Canvas, axes: Any, event: Event, end: float, *, height: float) -> None:
    """A line at an event, up to so many pixels above the axes, where its label stands."""
    to_right = event.token < end / 2
    axes.annotate(
        "",
        (event.token, 0),
        xycoords=axes.get_xaxis_transform(),
        xytext=(0, height + canvas.down(axes)),
        textcoords="offset points",
        annotation_clip=False,
        arrowprops={
            "arrowstyle": "-",
            "color": ink("accent" if event.bad else "ink"),
            "linestyle": _DASHED if event.bad else "solid",
            "linewidth": 1.2,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
    canvas.text(
        axes,
        event.token,
        1,
        event.label,
        above=True,
        dx=5 if to_right else -5,
        dy=height - 8,
        role="warn" if event.bad else "ink",
        size=11,
        ha="left" if to_right else "right",
    )


def _token_axis(canvas: Canvas, axes: Any, end: float) -> None:
    places = _round_places(end, 4 if canvas.narrow else 8)
    canvas.ticks(axes.xaxis, places, [tick(place) for place in places])
    canvas.below(axes, "tokens of the run")


def _round_places(most: float, about: int, *, whole: bool = False) -> list[float]:
    """Round numbers from 0 to the most, so many or fewer."""
    size = 10.0 ** np.floor(np.log10(most / about))
    step = next(size * k for k in (1, 2, 2.5, 5, 10, 20) if most / (size * k) <= about)
    if whole:
        step = max(1.0, float(np.ceil(step)))
    return [float(place) for place in np.arange(0, most * 1.0001, step)]


def _logarithmic(low: float, high: float, most: int) -> list[float]:
    """Round numbers between these powers of ten, so many or fewer."""
    found: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [k * 10.0**e for e in range(int(np.floor(low)), int(np.ceil(high)) + 1) for k in steps]
        found = [place for place in found if low <= np.log10(place) <= high]
        if len(found) <= most:
            break
    return found[:: -(-len(found) // most) or 1]


def _apart(places: Sequence[float], gap: float, most: float) -> list[float]:
    """The places moved so that no two are nearer than the gap, in their order, and up to the most if they fit."""
    moved = np.sort(np.array(places, np.float64))
    for k in range(1, len(moved)):
        moved[k] = max(moved[k], moved[k - 1] + gap)
    bound = max(most, gap * (len(moved) - 1))
    for k in reversed(range(len(moved))):
        moved[k] = min(moved[k], bound - gap * (len(moved) - 1 - k))
    result = np.empty(len(moved))
    result[np.argsort(places, kind="stable")] = moved
    return [float(place) for place in result]
