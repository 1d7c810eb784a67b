"""A picture of an order: row groups form windows, windows are cut into lanes, and their steps are permuted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ...blocks import IntArray
from ...order.order import Order, StepBlocks, Window
from .ink import Canvas, Chart, amount, drawn, ink, lines, rectangles, series

__all__ = ["windows_and_lanes"]

_LANES = 8  # that are drawn
_FINE = 160  # more row groups or lanes than this have no borders of their own
_LANE_HEIGHT = 17
_TALL = 26  # of row groups
_MARGIN = 1.0
_LEVELS = 8  # of the strength of a colour

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strip:
    """Row groups beside each other.

    Attributes:
        offsets: the tokens at which they begin, and the last one ends, shape ``(row groups + 1,)``.
        strength: of their colours, in [0, 1], shape ``(row groups,)``.
    """

    offsets: IntArray
    strength: Floats

    def coarser(self, most: int) -> _Strip:
        """So many stretches of equal length in place of more row groups, each as strong as these are in the mean."""
        if len(self.strength) <= most:
            return self
        offsets = np.linspace(0, self.offsets[-1], most + 1).astype(np.int64)
        summed = np.append(0.0, np.cumsum(self.strength * np.diff(self.offsets)))
        means = np.diff(np.interp(offsets, self.offsets, summed)) / np.maximum(1, np.diff(offsets))
        return _Strip(offsets=offsets, strength=means)

    def between(self, begin: int, end: int) -> _Strip:
        """What of it lies between two tokens."""
        first, last = np.searchsorted(self.offsets, [begin, end], side="right")
        last = max(last, first)
        inside = self.offsets[first:last]
        inside = inside[inside < end]
        borders = np.concatenate([[begin], inside, [end]])
        return _Strip(offsets=borders - begin, strength=self.strength[first - 1 : first + len(inside)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """What is drawn.

    Attributes:
        order: of the set.
        epoch, window: the row groups of the first epoch, and of its first window.
        borders: the tokens at which windows of the epoch begin, and the last one ends.
        starts: where lanes' slices of the first window begin, shape ``(lanes + 1,)``.
        steps: of the first window.
        ranks: whose lanes are told apart.
    """

    order: Order
    epoch: _Strip
    window: _Strip
    borders: IntArray
    starts: IntArray
    steps: StepBlocks
    ranks: int

    @property
    def lanes(self) -> int:
        """How many are drawn."""
        return min(self.order.lanes, _LANES)


def windows_and_lanes(name: str, title: str, order: Order, files: IntArray, *, ranks: int, seq_len: int) -> Chart:
    """How the row groups of the first epoch form windows, and how the first window is cut into lanes and permuted.

    Args:
        name, title: of the chart.
        order: of the set.
        files: the file of each row group, shape ``(row groups,)``.
        ranks: whose lanes are told apart.
        seq_len: tokens of a row.
    """
    first: Window = next(order.windows(0, order.lanes - 1))
    groups = order.group_order(0)
    offsets = np.append(0, np.cumsum(order.group_tokens[groups]))
    strength = (files + 1) / (int(files.max(initial=0)) + 1)
    it = _Picture(
        order=order,
        epoch=_Strip(offsets=offsets, strength=strength[groups]),
        window=_Strip(offsets=first.offsets, strength=strength[first.groups]),
        borders=np.append(offsets[:-1][:: order.window], offsets[-1]),
        starts=first.slice_starts(order.lanes, 0, order.lanes),
        steps=order.step_blocks(first, seq_len),
        ranks=ranks,
    )

    def draw(canvas: Canvas) -> None:
        axes = canvas.pixels()
        _draw_epoch(canvas, axes, it)
        _draw_window(canvas, axes, it, top=96)
        _draw_lanes(canvas, axes, it, top=196)
        _draw_steps(canvas, axes, it, top=226 + _LANE_HEIGHT * it.lanes)

    return drawn(
        name,
        draw,
        title=title,
        description=(
            f"{len(order.group_tokens):,} row groups are permuted and form windows of {order.window:,}. The first "
            f"holds {first.tokens:,} {order.element}s, cut into {order.lanes:,} lanes of "
            f"{first.tokens // order.lanes:,} each; "
            + ("" if order.row_tokens else f"{len(it.steps.texts):,} steps of it come in permuted order.")
        ),
        height=312 + _LANE_HEIGHT * it.lanes,
    )


def _draw_epoch(canvas: Canvas, axes: Any, it: _Picture) -> None:
    wide = "An epoch: row groups in permuted order, windows of them framed"
    _heading(canvas, axes, 16, "An epoch, its windows framed" if canvas.narrow else wide)
    left, right = _MARGIN, canvas.width - _MARGIN
    scale = (right - left) / max(1, it.order.total)
    _draw_strip(canvas, axes, it.epoch, left=left, scale=scale, top=26)
    places = it.borders * scale + left
    visible = np.diff(places) > 3
    _frames(axes, places[:-1][visible], places[1:][visible], 26, strong=False)
    for number in np.flatnonzero(np.diff(places) > 26).tolist():
        middle = (places[number] + places[number + 1]) / 2
        canvas.text(axes, middle, 66, f"{number:,}", role="soft", size=11, ha="center")
    _frames(axes, places[:1], np.maximum(places[1:2], places[:1] + 2), 26, strong=True)
    axes.fill([left, places[1], right, left], [52, 52, 96, 96], color=ink("band"), linewidth=0, zorder=0)


def _draw_window(canvas: Canvas, axes: Any, it: _Picture, *, top: float) -> None:
    tokens, groups, lanes = int(it.window.offsets[-1]), len(it.window.strength), it.order.lanes
    left, right = _MARGIN, canvas.width - _MARGIN
    scale = (right - left) / max(1, tokens)
    _heading(canvas, axes, top - 8, f"Window 0: {groups:,} row groups, {amount(tokens)} {it.order.element}s")
    _draw_strip(canvas, axes, it.window, left=left, scale=scale, top=top)
    _frames(axes, np.array([left]), np.array([right]), top, strong=True)
    for rank in range(it.ranks):
        starts = it.starts[rank * lanes // it.ranks : (rank + 1) * lanes // it.ranks + 1]
        borders = (starts if lanes <= _FINE else starts[[0, -1]]) * scale + left
        rectangles(axes, borders[:-1], borders[1:], top + 32, top + 50, color=series(rank), alpha=0.85)
        lines(axes, [([x, x], [top + 32, top + 50]) for x in borders[1:].tolist()], color=ink("paper"), linewidth=0.8)
    text = f"cut into {lanes:,} lanes"
    text += "" if canvas.narrow else f" of {amount(tokens / lanes)} {it.order.element}s each"
    text += f"; a colour is one of {it.ranks:,} ranks" if it.ranks > 1 else ""
    canvas.text(axes, left, top + 66, text, role="soft", size=11)


def _draw_lanes(canvas: Canvas, axes: Any, it: _Picture, *, top: float) -> None:
    what = "their row groups" if canvas.narrow else "the row groups that each needs"
    _heading(canvas, axes, top - 10, f"The first {it.lanes} lanes and {what}" if it.lanes > 1 else "The lane")
    left, right = _MARGIN + 48, canvas.width - _MARGIN
    scale = (right - left) / max(1, int(np.diff(it.starts[: it.lanes + 1]).max(initial=1)))
    for lane, (begin, end) in enumerate(pairwise(it.starts[: it.lanes + 1].tolist())):
        y = top + lane * _LANE_HEIGHT
        canvas.text(axes, _MARGIN, y + 10, f"lane {lane}", role="soft", size=11)
        if end > begin:
            _draw_strip(canvas, axes, it.window.between(begin, end), left=left, scale=scale, top=y, tall=13)


def _draw_steps(canvas: Canvas, axes: Any, it: _Picture, *, top: float) -> None:
    _heading(canvas, axes, top - 8, "Its steps, and which text each delivers")
    texts, count = it.steps.texts - it.steps.first, len(it.steps.texts)
    if count < 2:
        why = "too few rows in a window to permute them"
        if it.order.row_tokens:
            why = "as they are: the rows of a slice are permuted themselves"
        canvas.text(axes, _MARGIN, top + 14, why, role="soft", size=11)
        return
    scale = (canvas.width - 2 * _MARGIN) / count
    steps = np.arange(0, count, max(1, count // (120 if canvas.narrow else 320)))
    for eighth in range(8):
        some = steps[8 * steps // count == eighth]
        from_to = _MARGIN + (np.stack([some, texts[some]], axis=1) + 0.5) * scale
        joined = [(pair, [top + 4, top + 62]) for pair in from_to.tolist()]
        lines(axes, joined, color=series(eighth), linewidth=0.9, alpha=0.65)
    below = f"above: {count:,} steps as they come; below: the text, in lane order"
    canvas.text(axes, _MARGIN, top + 78, below, role="soft", size=11)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _heading(canvas: Canvas, axes: Any, y: float, text: str) -> None:
    canvas.text(axes, _MARGIN, y, text, size=11 if canvas.narrow else 12, fontweight="bold")


def _draw_strip(
    canvas: Canvas, axes: Any, strip: _Strip, *, left: float, scale: float, top: float, tall: float = _TALL
) -> None:
    fine = len(strip.strength) <= _FINE
    shown = strip if fine else strip.coarser(canvas.width // 2)
    places = left + shown.offsets * scale
    levels = np.ceil(shown.strength * _LEVELS)
    for level in np.unique(levels).tolist():
        some = levels == level
        alpha = 0.18 + 0.72 * level / _LEVELS
        rectangles(axes, places[:-1][some], places[1:][some], top, top + tall, color=series(0), alpha=alpha)
    if fine:
        borders = [([x, x], [top, top + tall]) for x in places[1:].tolist()]
        lines(axes, borders, color=ink("paper"), linewidth=0.8)


def _frames(axes: Any, lefts: Floats, rights: Floats, top: float, *, strong: bool) -> None:
    y = [top, top, top + _TALL, top + _TALL, top]
    frames = [([x, z, z, x, x], y) for x, z in zip(lefts.tolist(), rights.tolist(), strict=True)]
    lines(axes, frames, color=ink("ink" if strong else "soft"), linewidth=1.8 if strong else 0.9)
