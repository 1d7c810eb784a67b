"""What a page consists of: sections of tables, charts and notes, as plain values. The template knows no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .ink import Chart

__all__ = ["Bar", "Bars", "Facts", "Figure", "Notes", "Part", "Section", "Table", "Text", "Texts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A few figures, large: (what it is, the figure, what is beside it) of each."""

    kind: str = field(default="facts", init=False)
    facts: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        caption: what it shows.
        headers: of the columns.
        rows: of cells, as they are shown; the first of each row names it.
        words: how many columns from the left are words, and not numbers.
        total: whether the last row sums up the others.
        folded: whether it is shown only to who opens it.
    """

    kind: str = field(default="table", init=False)
    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    total: bool = False
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Charts beside each other, and their numbers as tables for who does not see them."""

    kind: str = field(default="figure", init=False)
    charts: Sequence[Chart]
    tables: Sequence[Table] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Remarks: (of what, the remark) of each; good news where there are none."""

    kind: str = field(default="notes", init=False)
    notes: Sequence[tuple[str, str]]
    none: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """How much of something there has been.

    Attributes:
        name: of what.
        number: of its colour.
        share: of all that there is; more than 1 where it came again.
        text: the same in words.
    """

    name: str
    number: int
    share: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars of progress."""

    kind: str = field(default="bars", init=False)
    caption: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of data: where it is from, and what it says."""

    source: str
    where: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Pieces of data."""

    kind: str = field(default="texts", init=False)
    texts: Sequence[Text]


Part = Facts | Table | Figure | Notes | Bars | Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of a page.

    Attributes:
        name: its anchor.
        title: its heading.
        lead: what it is about, in a sentence or two; also why it is empty, where it is.
        parts: what it shows.
    """

    name: str
    title: str
    lead: str
    parts: Sequence[Part] = ()
