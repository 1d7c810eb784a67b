"""Charts as SVG for inside of a page: drawn by matplotlib, with the colours and fonts of the page's style sheet.

matplotlib draws in signal colours that stand for roles, and with signal texts that stand for names; both are replaced
afterwards:

    style="fill: #010203"  ──►  style="fill: var(--ink)"         so that dark mode and print change it
    >~0007~<               ──►  >a&lt;b<                         so that no name is taken for a formula, or for markup

Where things stand is set in pixels and does not depend on the width of a text: the same input gives the same bytes.
"""

from __future__ import annotations

import html
import importlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError

__all__ = [
    "MARK_ROLES",
    "SERIES",
    "TEXT_ROLES",
    "Canvas",
    "Chart",
    "amount",
    "drawn",
    "ink",
    "lines",
    "missing",
    "rectangles",
    "series",
    "shortened",
    "tick",
]

WIDE, NARROW = 980, 358  # pixels: the page's column on a desktop, and on a phone
SERIES = 12  # colours there are for sources; more of them begin again, with other dashes
TEXT_ROLES = ("ink", "soft", "warn")  # of texts
MARK_ROLES = ("line", "band", "paper", "accent")  # of lines and areas

_CODES = {name: f"#0102{number:02x}" for number, name in enumerate((*TEXT_ROLES, *MARK_ROLES))}
_CODES |= {f"s{number}": f"#0103{number:02x}" for number in range(SERIES)}
_NAMES = {code: name for name, code in _CODES.items()}
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.6)), (0, (1.4, 1.4)))


def ink(role: str) -> str:
    """The signal colour of a role."""
    return _CODES[role]


def series(number: int) -> str:
    """The signal colour of a source, by its number."""
    return _CODES[f"s{number % SERIES}"]


def dashes(number: int) -> Any:
    """How a source's line is dashed: colours that are near each other for some eyes differ in it."""
    return _DASHES[(number % 3 + number // SERIES) % 3]


def amount(number: float, unit: str = "") -> str:
    """A number in three digits: 1234567 is "1.23 M".

    >>> [amount(number) for number in (0, 7, 999, 1_000, 1_234_567, 999_999, 2_500_000_000)]
    ['0', '7', '999', '1.00 k', '1.23 M', '1.00 M', '2.50 B']
    >>> amount(64 << 30, "B")
    '68.7 GB'

    Args:
        number: of tokens, which go by millions and billions, or of a unit.
        unit: which has a prefix: "B" for bytes.
    """
    value, prefix = float(number), ""
    for each in "kMGTP" if unit else "kMBT":
        if abs(value) < 999.5:
            break
        value, prefix = value / 1000, each
    digits = sum(abs(value) < bound for bound in (9.995, 99.95)) if prefix or value != int(value) else 0
    shown = f"{value:.{digits}f}"
    return f"{shown} {prefix}{unit}".strip() if prefix or unit else shown


def tick(number: float) -> str:
    """A round number: 2000000 is "2 M".

    >>> [tick(number) for number in (0, 2_000_000, 2_500, 150_000)]
    ['0', '2 M', '2.5 k', '150 k']
    """
    digits, space, prefix = amount(number).partition(" ")
    return f"{float(digits):g}{space}{prefix}"


def shortened(name: str, most: int) -> str:
    """A name in so many characters at most."""
    return name if len(name) <= most else name[: most - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart, drawn for a wide page and for a narrow one.

    Attributes:
        name: unique in the page.
        title: what it shows.
        description: what there is to be seen in it, in words.
        wide, narrow: SVG elements; ``narrow`` is "" where one drawing does for both.
    """

    name: str
    title: str
    description: str
    wide: str
    narrow: str = ""


@dataclass(slots=True)
class Canvas:
    """A figure whose places are pixels, from the top left.

    Attributes:
        figure: matplotlib's.
        width, height: pixels.
    """

    figure: Any
    width: int
    height: int
    _texts: list[str] = field(default_factory=list)

    @property
    def narrow(self) -> bool:
        """Whether it is a drawing for a narrow page."""
        return self.width <= NARROW

    def axes(self, left: float, top: float, right: float, bottom: float) -> Any:
        """Axes between these places; of them only a line at the bottom is drawn."""
        box = (
            left / self.width,
            1 - bottom / self.height,
            (right - left) / self.width,
            (bottom - top) / self.height,
        )
        axes = self.figure.add_axes(box, facecolor="none")
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(ink("line"))
        axes.tick_params(colors=ink("line"), labelcolor=ink("soft"), length=3, labelsize=11)
        axes.set_axisbelow(True)
        return axes

    def pixels(self) -> Any:
        """Axes over the whole of it in which a place is a pixel, from the top left."""
        axes = self.figure.add_axes((0, 0, 1, 1), facecolor="none", xlim=(0, self.width), ylim=(self.height, 0))
        axes.axis("off")
        return axes

    def signal(self, text: str) -> str:
        """What stands for a text until the figure is an SVG."""
        self._texts.append(text)
        return f"~{len(self._texts) - 1:04d}~"

    def text(
        self,
        axes: Any,
        x: float,
        y: float,
        text: str,
        *,
        dx: float = 0,
        dy: float = 0,
        above: bool = False,
        role: str = "ink",
        size: float = 12,
        **how: Any,
    ) -> None:
        """Write a text, whatever is in it, so many pixels to the right of a place and above it.

        Args:
            axes: in whose units the place is.
            x, y: the place.
            text: what to write.
            dx, dy: pixels.
            above: whether y is a share of the axes' height.
            role: of its colour.
            size: pixels.
            how: see matplotlib's `Text`.
        """
        axes.annotate(
            self.signal(text),
            (x, y),
            xycoords=axes.get_xaxis_transform() if above else "data",
            xytext=(dx, dy),
            textcoords="offset points",
            annotation_clip=False,
            color=ink(role),
            fontsize=size,
            **how,
        )

    def below(self, axes: Any, text: str) -> None:
        """Say below axes what they show."""
        self.text(axes, axes.get_xlim()[0], 0, text, dy=-20, above=True, role="soft", size=11, va="top")

    def across(self, axes: Any) -> float:
        """The width of axes in pixels."""
        return float(axes.get_position().width) * self.width

    def down(self, axes: Any) -> float:
        """The height of axes in pixels."""
        return float(axes.get_position().height) * self.height

    def ticks(self, axis: Any, places: Iterable[float], texts: Sequence[str]) -> None:
        """Label an axis."""
        axis.set_ticks(list(places), [self.signal(text) for text in texts])
        axis.set_minor_locator(_matplotlib(".ticker").NullLocator())

    def replaced(self, svg: str) -> str:
        """The SVG with the texts in the places of their signals."""
        return re.sub(r"~(\d{4})~", lambda found: html.escape(self._texts[int(found[1])]), svg)


def drawn(
    name: str,
    draw: Callable[[Canvas], None],
    *,
    title: str,
    description: str,
    height: int,
    both: bool = True,
) -> Chart:
    """Draw a chart.

    Args:
        name: unique in the page.
        draw: draws it on a canvas, whatever its width.
        title, description: see `Chart`.
        height: pixels.
        both: whether it is drawn for wide pages too, or only once, for narrow ones.
    """

    narrow = _svg(f"{name}-n", draw, NARROW, height, title=title, description=description)
    wide = _svg(f"{name}-w", draw, WIDE, height, title=title, description=description) if both else narrow
    return Chart(name=name, title=title, description=description, wide=wide, narrow=narrow if both else "")


def rectangles(axes: Any, lefts: Any, rights: Any, top: float, bottom: float, **how: Any) -> None:
    """Draw rectangles between two heights, as one element: hundreds of them are common."""
    corners = [[(x, top), (z, top), (z, bottom), (x, bottom), (x, top)] for x, z in zip(lefts, rights, strict=True)]
    if corners:
        path = _matplotlib(".path").Path.make_compound_path(*(_closed(each) for each in corners))
        axes.add_patch(_matplotlib(".patches").PathPatch(path, linewidth=0, **how))


def _closed(corners: list[tuple[float, float]]) -> Any:
    return _matplotlib(".path").Path(corners, closed=True)


def lines(axes: Any, each: Sequence[tuple[Sequence[float], Sequence[float]]], **how: Any) -> None:
    """Draw lines, each by its x and y, as one element."""
    gap = [float("nan")]  # matplotlib begins anew after it
    xs = [x for line, _ in each for x in (*line, *gap)]
    ys = [y for _, line in each for y in (*line, *gap)]
    if xs:
        axes.plot(xs, ys, **how)


def missing(package: str) -> ConfigError:
    """What to say where a package is not installed."""
    return ConfigError(f"a report needs the package {package}: pip install 'parquet-token-loader[report]'")


def _matplotlib(module: str = "") -> Any:
    try:
        return importlib.import_module(f"matplotlib{module}")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise missing("matplotlib") from error


def _svg(name: str, draw: Callable[[Canvas], None], width: int, height: int, *, title: str, description: str) -> str:
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name}
    unsaid = dict.fromkeys(("Date", "Creator", "Type", "Format"))
    with _matplotlib().rc_context(settings):
        # A point is a pixel.
        figure = _matplotlib(".figure").Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")
        canvas = Canvas(figure, width, height)
        draw(canvas)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata=unsaid)
    body = canvas.replaced(_inline(_recoloured(written.getvalue()), name))
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-labelledby="{name}-title" aria-describedby="{name}-desc">\n'
        f'<title id="{name}-title">{html.escape(title)}</title>\n'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>\n{body}\n</svg>'
    )


def _recoloured(svg: str) -> str:
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda found: f"var(--{_NAMES[found[0]]})" if found[0] in _NAMES else found[0], svg)
    return re.sub(r"font-family: [^;\"]*;? ?|font: ([\d.]+px) [^;\"]*", _font, svg)


def _font(found: re.Match[str]) -> str:
    return f"font-size: {found[1]}" if found[1] else ""


def _inline(svg: str, name: str) -> str:
    """What is in the element `svg` that matplotlib wrote, such that it can stand in a page beside others."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"\n\s*", "\n", body).strip()
    return re.sub(r"<defs>\s*</defs>\n?", "", body)
