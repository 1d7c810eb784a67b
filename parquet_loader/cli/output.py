"""How commands show what they found: tables for people, JSON for programs, progress where there is a terminal."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..printable import printable

__all__ = ["OutputError", "Progress", "complain", "flush", "one_line", "plain", "print_json", "say", "table"]


def table(rows: Iterable[Sequence[object]], headers: Sequence[str] = ()) -> str:
    """Rows in aligned columns, two spaces apart: numbers to the right, with thousands separated, all else to the left.

    Args:
        rows: of equally many cells; None is an empty one.
        headers: of the columns.
    """
    cells = [list(row) for row in rows]
    texts = [[_cell(cell) for cell in row] for row in cells]
    if headers:
        texts.insert(0, list(headers))
    if not texts:
        return ""
    widths = [max(len(row[place]) for row in texts) for place in range(len(texts[0]))]
    right = [
        bool(cells) and all(cell is None or _is_number(cell) for cell in column) for column in zip(*cells, strict=True)
    ] or [False] * len(widths)
    lines = [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in texts
    ]
    if headers:
        lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def _is_number(cell: object) -> bool:
    return isinstance(cell, (int, float, np.integer, np.floating)) and not isinstance(cell, bool)


def _cell(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, (int, np.integer)) and not isinstance(cell, bool):
        return f"{cell:,}"
    if isinstance(cell, (float, np.floating)):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return printable(str(cell)).replace("\n", "\\n").replace("\t", "\\t")


class OutputError(Exception):
    """Standard output that cannot be written: its disk is full, say."""


def one_line(text: str) -> str:
    """Text on one line, which no terminal obeys."""
    return printable(" ".join(text.split()))


def say(text: str) -> None:
    """Lines for people on standard output."""
    _write(printable(text))


def _write(text: str) -> None:
    try:
        print(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error
    flush()


def flush() -> None:
    """Have what was said reach whoever reads it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # a reader that has gone away is nothing bad
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


def complain(problem: object) -> None:
    """One line of what could not be done on standard error."""
    print(f"error: {printable(str(problem))}", file=sys.stderr)


def plain(value: Any) -> Any:
    """A value as JSON has them: dataclasses as objects, arrays and tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def print_json(value: Any) -> None:
    """A value as one JSON object on standard output."""
    _write(json.dumps(plain(value), indent=2))  # in ASCII: whatever a file holds, a terminal does not obey it


class Progress:
    """A bar on a terminal; nothing elsewhere, or without tqdm.

    Args:
        what: that is being done.
        unit: of what is counted.
        scale: whether counts are large: shown with k, M, G.
    """

    def __init__(self, what: str, unit: str, *, scale: bool = False) -> None:
        self._update: Callable[[int, int], None] = lambda done, total: None
        self.end: Callable[[], None] = lambda: None
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            try:
                from tqdm import tqdm
            except ImportError:
                return
            bar = tqdm(unit=unit, desc=what, smoothing=0.1, unit_scale=scale)

            def update(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            self._update, self.end = update, bar.close

    def show(self, done: int, total: int) -> None:
        """So many of all are done."""
        self._update(done, total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
