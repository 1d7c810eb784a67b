"""``parquet-loader show``: rows of a step as a model gets them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from ..errors import ConfigError
from ..insight.opening import open_run
from ..insight.show import Shown, ShownPiece, show
from ..printable import printable
from .arguments import HelpFormatter, add_checkpoint, add_run, count, positive, run_of, state_of
from .text import add_columns, columns_asked, tokenizer_of

__all__ = ["add", "lines_of", "run"]

_ROWS = 2
_CHARACTERS = 1000
_DIM, _BOLD, _RED = "2", "1", "31"
_LEGEND = "┏ a document begins  ┗ it ends  ┇ it is cut: the rest is in other rows"
_OF_SOURCES = ("36", "33", "35", "32", "34", "96", "93", "95", "92", "94")


def add(commands: Any) -> None:
    """Have the command's parser take this one."""
    parser = commands.add_parser(
        "show",
        help="show rows of a step as text, with their documents",
        description="Shows rows of a step as a model gets them: the text of each document in them, where it begins "
        "and ends, and where it lies. A control character is shown by its code, such as \\x1b.",
        epilog="example:\n"
        "  parquet-loader show --run run.toml --step 1234 --rows 0:4 --tokenizer openai-community/gpt2",
        formatter_class=HelpFormatter,
    )
    add_run(parser)
    add_checkpoint(parser, "where the run is: the step is then one of its history, or comes after it")
    parser.add_argument("--step", type=count, help="the number of the batch in the run (the next one)")
    parser.add_argument(
        "--rows", "--row", metavar="FIRST:END", help=f"of the global batch, such as 0:4 or 7 (0:{_ROWS})"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="a tokenizer.json, a folder with one, a name on the Hugging Face Hub, tiktoken:NAME, a SentencePiece "
        ".model, bytes; or ids, for no text (the one that the files name)",
    )
    add_columns(parser)
    parser.add_argument(
        "--characters", type=positive, default=_CHARACTERS, metavar="N", help="of each document at most (%(default)s)"
    )
    parser.add_argument("--full", action="store_true", help="all of each document's text")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="auto: on a terminal, without NO_COLOR"
    )
    parser.add_argument("--json", action="store_true", help="everything, with ids and text, as one JSON object")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    state = None if given.checkpoint is None else state_of(given.checkpoint)
    source, options = run_of(given, state)
    opened = open_run(source, options, state)
    step = opened.progress.rows_before(opened.progress.position) if given.step is None else given.step
    tokenizer, note = tokenizer_of(given.tokenizer, opened)
    if note:
        print(f"note: {note}", file=sys.stderr)
    found = show(
        opened,
        step,
        rows=_rows(given.rows, options.lanes),
        tokenizer=tokenizer,
        **columns_asked(given, opened),
    )
    if given.json:
        print(json.dumps(found.to_json()))  # in ASCII: whatever a document holds, a terminal does not obey it
        return 0
    coloured = given.color == "always" or (given.color == "auto" and _is_colourful())
    for line in lines_of(found, most=None if given.full else given.characters, coloured=coloured):
        print(line)
    return 0


def _rows(text: str | None, lanes: int) -> range:
    """The rows that were asked for, the first few where none were."""
    first, mark, end = (text or f"0:{min(_ROWS, lanes)}").partition(":")
    try:
        rows = range(int(first or 0), int(end or lanes) if mark else int(first) + 1)
    except ValueError:
        rows = range(0)
    if not rows or rows.start < 0 or rows.stop > lanes:
        raise ConfigError(f"--rows {text}: there are rows 0 to {lanes - 1:,}; give one, or FIRST:END such as 0:4")
    return rows


def _is_colourful() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


# ── rows as lines ────────────────────────────────────────────────────────────────────────────────────────────────


def lines_of(found: Shown, *, most: int | None, coloured: bool) -> Iterator[str]:
    """What to print. What documents say stands behind a bar, so that none of it is taken for anything else.

    Args:
        found: the rows.
        most: characters of a document; None for all.
        coloured: whether to write colours.
    """

    def paint(text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if coloured else text

    names = sorted({piece.source for row in found.rows for piece in row.pieces if piece.source is not None})
    colours: dict[str | None, str] = {name: _OF_SOURCES[at % len(_OF_SOURCES)] for at, name in enumerate(names)}
    width = f"{found.seq_len:,}" + (f" + {found.overlap}" if found.overlap else "")
    skipped = ", which was skipped" if found.skipped else ""
    yield paint(f"step {found.step:,}{skipped}: {len(found.rows):,} of {found.lanes:,} rows of {width} tokens", _BOLD)
    yield paint(_LEGEND, _DIM)
    for row in found.rows:
        yield ""
        yield paint(f"row {row.row:,}", _BOLD)
        for piece in row.pieces:
            colour = colours.get(piece.source, _OF_SOURCES[0])
            yield paint(_head(piece), colour)
            for name, value in piece.columns.items():
                yield paint("┠ ", colour) + paint(f"{_one_line(name)}: {_one_line(value)}", _DIM)
            for line in _body(piece, most):
                yield (paint("┃", colour) + " " + line).rstrip()
            yield paint("┗" if piece.ends else "┇", colour)
        if row.padding:
            why, colour = ("the stored row is shorter", _DIM) if row.is_short else ("the run ends", _RED)
            yield paint(f"  {row.padding:,} columns of padding: {why}", colour)


def _head(piece: ShownPiece) -> str:
    last = piece.column + len(piece.tokens) - 1
    of = f"[{piece.source}] " if piece.source is not None else ""
    begin = f" from token {piece.start:,} on" if piece.start else ""
    where = f"{piece.file}, row group {piece.row_group:,}, document {piece.document:,}{begin}"
    return _one_line(f"{'┇' if piece.start else '┏'} columns {piece.column:,} to {last:,}: {of}{where}")


def _body(piece: ShownPiece, most: int | None) -> list[str]:
    if piece.text is None:
        text = " ".join(map(str, piece.tokens[:most].tolist()))
        left = 0 if most is None else max(0, len(piece.tokens) - most)
        more, what = left, "ids"
    else:
        text, more, what = piece.text[:most], len(piece.text) - len(piece.text[:most]), "characters"
    lines = printable(text).split("\n")
    return [*lines, f"… {more:,} {what} more (--full)"] if more else lines


def _one_line(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return printable(text).replace("\n", "\\n")
