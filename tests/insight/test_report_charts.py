"""The charts of a report, as SVG."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from parquet_loader.insight.report.charts import Curve, Event, Range, shares
from parquet_loader.insight.report.ink import WIDE, amount, drawn, tick
from parquet_loader.insight.report.windows import _Strip, windows_and_lanes
from parquet_loader.order.order import Order


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(tag))


def order_of(groups: int, *, lanes: int = 8, window: int = 64, shuffle: bool = True) -> Order:
    tokens = np.random.default_rng(0).integers(0, 2_000, groups)
    return Order(group_tokens=tokens, lanes=lanes, window=window, seed=1, shuffle=shuffle)


@pytest.mark.parametrize(
    "text", ["<b>", "$x_1$", "~0000~", "a & b", "名前 🦙 \u202e", "#010200", "url(#x)", 'id="x"', "-->", "\\1"]
)
def test_any_text_is_shown_as_it_is(text: str) -> None:
    chart = drawn(
        "x",
        lambda canvas: canvas.text(canvas.pixels(), 10, 10, text),
        title=f"title {text}",
        description=f"description {text}",
        height=40,
    )
    for svg in (chart.wide, chart.narrow):
        assert [element.text for element in elements(svg, "text")] == [text]
        assert elements(svg, "title")[0].text == f"title {text}"
        assert elements(svg, "desc")[0].text == f"description {text}"


def test_names_of_lines_do_not_lie_on_each_other() -> None:
    curves = [Curve(name=f"n{k}", number=k, target=[0.05] * 2, achieved=[0.05] * 2) for k in range(20)]
    chart = shares([0, 1, 2], curves, [Range(first=0, last=2, label="stage 1")], [Event(token=1, label="x", bad=True)])
    for svg in (chart.wide, chart.narrow):
        named = [each for each in elements(svg, "text") if re.fullmatch(r"n\d+", each.text or "")]
        heights = sorted(float(each.attrib["y"]) for each in named)
        assert len(heights) == 20
        assert all(low + 14.9 < high for low, high in pairwise(heights))


def test_a_line_is_as_high_as_its_share() -> None:
    chart = shares([0, 10], [Curve(name="a", number=0, target=[0.5], achieved=[0.25])], [], [])
    name = next(each for each in elements(chart.wide, "text") if each.text == "a")
    ticks = {each.text: float(each.attrib["y"]) for each in elements(chart.wide, "text") if "%" in (each.text or "")}
    assert float(name.attrib["y"]) == pytest.approx((ticks["20 %"] + ticks["30 %"]) / 2, abs=1)


@pytest.mark.parametrize("groups", [1, 7, 160, 161, 5_000, 200_000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_picture_of_windows_is_small_whatever_the_set(groups: int, shuffle: bool) -> None:
    order = order_of(groups, lanes=512, shuffle=shuffle)
    files = np.arange(groups) // 10
    chart = windows_and_lanes("x", "title", order, files, ranks=8, seq_len=16)
    assert len(chart.wide) + len(chart.narrow) < 150_000


def test_the_first_windows_frame_is_as_wide_as_its_share_of_the_epoch() -> None:
    order = Order(group_tokens=np.array([10, 10, 10, 10]), lanes=2, window=1, seed=1, shuffle=True)
    chart = windows_and_lanes("x", "title", order, np.array([0, 0, 1, 1]), ranks=1, seq_len=2)
    numbers = {each.text: float(each.attrib["x"]) for each in elements(chart.wide, "text") if each.text in "0123"}
    assert [round(4 * numbers[text] / WIDE, 1) for text in "0123"] == [0.5, 1.5, 2.5, 3.5]


def test_a_lane_shows_the_row_groups_that_its_slice_lies_in() -> None:
    rng = np.random.default_rng(3)
    sizes = rng.integers(0, 5, 12)
    offsets, owner = np.append(0, np.cumsum(sizes)), np.repeat(np.arange(12), sizes)
    strip = _Strip(offsets=offsets, strength=np.arange(12.0))
    for begin in range(int(offsets[-1])):
        for end in range(begin + 1, int(offsets[-1]) + 1):
            part = strip.between(begin, end)
            assert np.repeat(part.strength, np.diff(part.offsets)).tolist() == owner[begin:end].tolist()


def test_a_coarser_strip_is_as_strong_in_the_mean() -> None:
    rng = np.random.default_rng(4)
    strip = _Strip(offsets=np.append(0, np.cumsum(rng.integers(0, 500, 3000))), strength=rng.random(3000))
    coarser = strip.coarser(100)
    assert len(coarser.strength) == 100
    means = [np.average(each.strength, weights=np.diff(each.offsets)) for each in (strip, coarser)]
    assert means[0] == pytest.approx(means[1])
    assert strip.coarser(3000) is strip


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (999, "999"), (999.6, "1.00 k"), (12_345, "12.3 k"), (99_950_000, "100 M"), (0.5, "0.50")],
)
def test_amounts_have_three_digits(number: float, shown: str) -> None:
    assert amount(number) == shown


def test_ticks_have_no_zeros_behind() -> None:
    assert [tick(number) for number in (0, 1_500, 20_000_000)] == ["0", "1.5 k", "20 M"]
