"""Puts what the long trials found into docs/reliability.md, each between markers of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["DOCUMENT", "table", "write_docs"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """A Markdown table; numbers stand right, with commas."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]
    number = [all(isinstance(row[place], int) for row in rows) for place in range(len(head))]
    rule = "|".join("---:" if right else "---" for right in number)
    return "\n".join([f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in cells)]) + "\n"


def write_docs(name: str, text: str, document: Path = DOCUMENT) -> None:
    """Put a text between the markers ``<!-- name -->`` and ``<!-- end -->``, which are made where they are missing."""
    old = document.read_text() if document.exists() else "# Reliability\n"
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not marked.search(old):
        old += f"\n<!-- {name} -->\n<!-- end -->\n"
    document.write_text(marked.sub(lambda match: match[1] + text + match[2], old))
