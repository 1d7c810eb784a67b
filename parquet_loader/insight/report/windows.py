"""A picture of an order: row groups form windows, windows are cut into lanes, and their steps are permuted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, takewhile
from typing import Any

import numpy as np

from ...blocks import IntArray
from ...order.order import Order, StepBlocks, Window
from .ink import Canvas, Chart, amount, drawn, ink, series

__all__ = ["windows_and_lanes"]

_LANES = 8  # that are drawn
_WINDOWS = 400
_FINE = 160  # more row groups or lanes than this have no borders of their own
_LANE_HEIGHT = 17
_MARGIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """What is drawn.

    Attributes:
        order: of the set.
        windows: the first ones of the first epoch.
        starts: where lanes' slices of the first window begin, shape ``(lanes + 1,)``.
        steps: of the first window.
        strength: of each row group's colour, by its file, shape ``(row groups,)``.
        ranks: whose lanes are told apart.
    """

    order: Order
    windows: list[Window]
    starts: IntArray
    steps: StepBlocks
    strength: np.ndarray[tuple[int], np.dtype[np.float64]]
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
    of_epoch = takewhile(lambda window: not window.epoch, order.windows(0, order.lanes - 1))
    windows = list(islice(of_epoch, _WINDOWS))
    first = windows[0]
    it = _Picture(
        order=order,
        windows=windows,
        starts=first.slice_starts(order.lanes, 0, order.lanes),
        steps=order.step_blocks(first, seq_len),
        strength=0.18 + 0.72 * (files + 1) / (int(files.max(initial=0)) + 1),
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
            f"holds {first.tokens:,} tokens, cut into {order.lanes:,} lanes of {first.tokens // order.lanes:,} each; "
            f"{len(it.steps.texts):,} steps of it come in permuted order."
        ),
        height=312 + _LANE_HEIGHT * it.lanes,
    )


def _draw_epoch(canvas: Canvas, axes: Any, it: _Picture) -> None:
    wide = "An epoch: row groups in permuted order, windows of them framed"
    _heading(canvas, axes, 16, "An epoch, its windows framed" if canvas.narrow else wide)
    left, right = _MARGIN, canvas.width - _MARGIN
    scale = (right - left) / max(1, sum(window.tokens for window in it.windows))
    ends = np.cumsum([0, *(window.tokens for window in it.windows)]) * scale + left
    shown = sum(len(window.groups) for window in it.windows)
    for window, begin in zip(it.windows, ends.tolist(), strict=False):
        _draw_groups(axes, it, window, left=begin, scale=scale, top=26, border=shown <= _FINE)
    for number, (begin, end) in reversed([*enumerate(pairwise(ends.tolist()))]):  # the first one's frame on top
        if end - begin > 3:
            _frame(axes, begin, end, 26, strong=not number)
        if end - begin > 26:
            canvas.text(axes, (begin + end) / 2, 66, f"{number:,}", role="soft", size=11, ha="center")
    axes.fill([left, ends[1], right, left], [52, 52, 96, 96], color=ink("band"), linewidth=0, zorder=0)


def _draw_window(canvas: Canvas, axes: Any, it: _Picture, *, top: float) -> None:
    first, lanes = it.windows[0], it.order.lanes
    left, right = _MARGIN, canvas.width - _MARGIN
    scale = (right - left) / max(1, first.tokens)
    _heading(canvas, axes, top - 8, f"Window 0: {len(first.groups):,} row groups, {amount(first.tokens)} tokens")
    _draw_groups(axes, it, first, left=left, scale=scale, top=top, border=len(first.groups) <= _FINE)
    _frame(axes, left, right, top, strong=True)
    for rank in range(it.ranks):
        borders = it.starts[rank * lanes // it.ranks : (rank + 1) * lanes // it.ranks + 1]
        for low, high in pairwise(borders.tolist() if lanes <= _FINE else borders[[0, -1]].tolist()):
            places = left + low * scale, left + high * scale, top + 32, top + 50
            _box(axes, *places, border=True, color=series(rank), alpha=0.85)
    text = f"cut into {lanes:,} lanes"
    text += "" if canvas.narrow else f" of {amount(first.tokens / lanes)} tokens each"
    text += f"; a colour is one of {it.ranks:,} ranks" if it.ranks > 1 else ""
    canvas.text(axes, left, top + 66, text, role="soft", size=11)


def _draw_lanes(canvas: Canvas, axes: Any, it: _Picture, *, top: float) -> None:
    what = "their row groups" if canvas.narrow else "the row groups that each needs"
    _heading(canvas, axes, top - 10, f"The first {it.lanes} lanes and {what}")
    left, right = _MARGIN + 48, canvas.width - _MARGIN
    scale = (right - left) / max(1, int(np.diff(it.starts[: it.lanes + 1]).max(initial=1)))
    for lane, (begin, end) in enumerate(pairwise(it.starts[: it.lanes + 1].tolist())):
        y = top + lane * _LANE_HEIGHT
        canvas.text(axes, _MARGIN, y + 10, f"lane {lane}", role="soft", size=11)
        for group, low, high in _groups_within(it.windows[0], begin, end):
            places = left + (low - begin) * scale, left + (high - begin) * scale, y, y + 13
            _box(axes, *places, border=True, color=series(0), alpha=it.strength[group])


def _groups_within(window: Window, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(row group, first token, end) of what a stretch of a window's tokens lies in."""
    inside = window.offsets[(window.offsets > begin) & (window.offsets < end)]
    for low, high in pairwise([begin, *inside.tolist(), end]):
        place = int(np.searchsorted(window.offsets, low, side="right")) - 1
        yield int(window.groups[min(place, len(window.groups) - 1)]), low, high


def _draw_steps(canvas: Canvas, axes: Any, it: _Picture, *, top: float) -> None:
    _heading(canvas, axes, top - 8, "Its steps, and which text each delivers")
    texts, count = it.steps.texts - it.steps.first, len(it.steps.texts)
    if count < 2:
        canvas.text(axes, _MARGIN, top + 14, "too few rows in a window to permute them", role="soft", size=11)
        return
    scale = (canvas.width - 2 * _MARGIN) / count
    for step in range(0, count, max(1, count // (120 if canvas.narrow else 320))):
        places = [_MARGIN + (place + 0.5) * scale for place in (step, int(texts[step]))]
        axes.plot(places, [top + 4, top + 62], color=series(8 * step // count), linewidth=0.9, alpha=0.65)
    below = f"above: {count:,} steps as they come; below: the text, in lane order"
    canvas.text(axes, _MARGIN, top + 78, below, role="soft", size=11)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _heading(canvas: Canvas, axes: Any, y: float, text: str) -> None:
    canvas.text(axes, _MARGIN, y, text, size=11 if canvas.narrow else 12, fontweight="bold")


def _draw_groups(
    axes: Any, it: _Picture, window: Window, *, left: float, scale: float, top: float, border: bool
) -> None:
    for group, (low, high) in zip(window.groups.tolist(), pairwise(window.offsets.tolist()), strict=True):
        places = left + low * scale, left + high * scale, top, top + 26
        _box(axes, *places, border=border, color=series(0), alpha=it.strength[group])


def _box(axes: Any, left: float, right: float, top: float, bottom: float, *, border: bool, **how: Any) -> None:
    axes.fill([left, right, right, left], [top, top, bottom, bottom], linewidth=0, **how)
    if border:
        axes.plot([right] * 2, [top, bottom], color=ink("paper"), linewidth=0.8)


def _frame(axes: Any, left: float, right: float, top: float, *, strong: bool) -> None:
    colour, width = (ink("ink"), 1.8) if strong else (ink("soft"), 0.9)
    axes.plot([left, right, right, left, left], [top, top, top + 26, top + 26, top], color=colour, linewidth=width)
