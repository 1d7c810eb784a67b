"""Small tables for notebooks, which show what ``_repr_html_`` gives. Colours are the notebook's own, light or dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from .printable import printable

__all__ = ["html_table"]

_LEFT, _RIGHT = ("text-align: left", "text-align: right")
_MOST_ROWS = 50


def html_table(
    title: str, rows: Iterable[Sequence[object]], *, headers: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """A table as HTML; nothing in it is taken for markup.

    Args:
        title: above it.
        rows: of cells, the first of which names the row; numbers stand to the right, with thousands separated.
        headers: of the columns.
        notes: below it.
    """
    cells = [list(row) for row in rows]
    parts = [f'<table><caption style="{_LEFT}"><b>{html.escape(title)}</b></caption>']
    if headers:
        sides = [_LEFT if not place else _RIGHT for place in range(len(headers))]
        names = "".join(
            f'<th scope="col" style="{side}">{html.escape(name)}</th>'
            for side, name in zip(sides, headers, strict=True)
        )
        parts.append(f"<thead><tr>{names}</tr></thead>")
    parts.append("<tbody>")
    for name, *values in cells[:_MOST_ROWS]:
        shown = "".join(f'<td style="{_side(value)}">{html.escape(_text(value))}</td>' for value in values)
        parts.append(f'<tr><th scope="row" style="{_LEFT}">{html.escape(_text(name))}</th>{shown}</tr>')
    parts.append("</tbody></table>")
    further = [f"and {len(cells) - _MOST_ROWS:,} more"] if len(cells) > _MOST_ROWS else []
    parts += [f"<p>{html.escape(note)}</p>" for note in [*further, *notes]]
    return printable("".join(parts))


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _side(value: object) -> str:
    return _LEFT if isinstance(value, str) and not value[:1].isdigit() else _RIGHT
