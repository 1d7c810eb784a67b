"""``parquet-loader which``: the documents that a step is made of, or the steps at which a document comes."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import ConfigError
from ..insight.opening import open_run
from ..insight.records import describe_pieces
from ..insight.trace import Piece, Places, Trace, Tracer
from ..runs import MixtureRun, SetRun
from .arguments import HelpFormatter, add_checkpoint, add_run, count, positive, run_of, state_of
from .output import Progress, one_line, print_json, table
from .text import add_columns, columns_asked

__all__ = ["add", "run"]

_SHOWN = 60  # characters of a text in a table

_DESCRIPTION = """\
Which documents the rows of a step consist of: for each stretch of a row its file, row group, document, and first \
token in it. Or, with --document, at which steps, in which rows and columns a document comes. Steps before the \
checkpoint are those that were run; later ones are those that would come. Only the row groups concerned are read."""
_EPILOG = """\
examples:
  parquet-loader which --run run.toml --checkpoint step-2000.ckpt --step 1234 --row 0:8 --text --columns url
  parquet-loader which --run run.toml --checkpoint step-2000.ckpt --document part-00017.parquet:3:4711
"""


def add(commands: Any) -> None:
    """Have the command's parser take this one."""
    parser = commands.add_parser(
        "which",
        help="the documents of a step, or the steps of a document",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
    )
    add_checkpoint(parser, "of the run: its history says what was skipped, and which rows were of which length")
    step = parser.add_argument_group("a step")
    step.add_argument(
        "--step", type=count, metavar="STEP", help="its number in the run, from 0 (the checkpoint's last)"
    )
    step.add_argument(
        "--rows",
        "--row",
        dest="row",
        type=_range,
        metavar="FIRST:END",
        help="of the global batch, such as 0:8 or 7 (all)",
    )
    step.add_argument("--rank", dest="of_rank", type=count, metavar="RANK", help="the rows of this rank")
    step.add_argument("--world-size", dest="of_world_size", type=positive, metavar="RANKS", help="of so many")
    step.add_argument("--columns-range", type=_range, metavar="COLUMNS", help="of the rows, such as 0:512")
    document = parser.add_argument_group("a document")
    document.add_argument(
        "--document", type=_document, metavar="FILE:ROW_GROUP:DOCUMENT", help="as the pieces of a step name it"
    )
    document.add_argument("--source-name", metavar="NAME", help="the source of a mixture that it is of")
    document.add_argument("--within-steps", type=_range, metavar="STEPS", help="such as 0:5000 (all that were run)")
    document.add_argument(
        "--within-epochs", type=_range, metavar="EPOCHS", help="of the set, such as 0:3 (where nothing was run, 0)"
    )
    shown = parser.add_argument_group("what the documents say")
    shown.add_argument("--text", action="store_true", help="as text, by the tokenizer that the files name")
    shown.add_argument("--tokenizer", metavar="NAME", help="as text, by this one: a tokenizer.json, or a name")
    add_columns(shown)
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object for programs")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    state = None if given.checkpoint is None else state_of(given.checkpoint)
    source, options = run_of(given, state)
    opened = open_run(source, options, state)
    if given.document is not None:
        return _show_places(given, opened)
    rows, lanes = given.row, options.lanes
    if rows is not None and rows.stop > lanes:
        asked = f"{rows.start}:{rows.stop}" if len(rows) > 1 else str(rows.start)
        raise ConfigError(f"--rows {asked}: there are rows 0 to {lanes - 1:,}")
    if (given.of_rank is None) != (given.of_world_size is None):
        raise ConfigError("--rank and --world-size belong together: give both, or --rows")
    if rows is not None and given.of_rank is not None:
        raise ConfigError("give --rank with --world-size, or --rows, not both")
    if given.of_rank is not None and given.of_rank >= given.of_world_size:
        raise ConfigError(
            f"--rank {given.of_rank}: of {given.of_world_size} there are ranks 0 to {given.of_world_size - 1}"
        )
    step = given.step
    if step is None:
        step = opened.progress.rows_before(opened.progress.position) - 1
        if step < 0:
            raise ConfigError("nothing was run so far: say which step with --step, or which document with --document")
    with Progress("lengths of documents", "row group") as progress:
        found = Tracer(opened, progress.show).which(
            step,
            rows=rows,
            columns=None if given.columns_range is None else (given.columns_range.start, given.columns_range.stop),
            rank=given.of_rank,
            world_size=given.of_world_size,
        )
    pieces = found.pieces
    described = _described(given, opened, pieces)
    if given.json:
        shown = found.to_json()
        for piece, more in zip(shown["pieces"], described, strict=True):
            piece.update(more)
        print_json(shown)
    else:
        print(_of_step(found, pieces, described))
    return 0


def _described(given: argparse.Namespace, opened: SetRun | MixtureRun, pieces: list[Piece]) -> list[dict[str, Any]]:
    """What is to be said of pieces beside where they are."""
    wants_text = given.text or given.tokenizer is not None
    if not pieces or not (wants_text or given.columns):
        return [{} for _ in pieces]
    asked = columns_asked(given, opened)
    from ..insight.text import open_tokenizer, open_tokenizer_of  # which bring pretokenize

    tokenizer = None
    if given.tokenizer is not None:
        tokenizer = open_tokenizer(given.tokenizer)
    elif wants_text:
        configs = {piece.source or "": opened.config_of(piece.source or "") for piece in pieces}
        tokenizer = open_tokenizer_of({name: (each.storage, each.index) for name, each in configs.items()})
    found = describe_pieces(opened, pieces, tokenizer=tokenizer, **asked)
    return [
        {**({"text": each.text} if wants_text else {}), **({"columns": each.columns} if asked["columns"] else {})}
        for each in found
    ]


def _of_step(found: Trace, pieces: list[Piece], described: list[dict[str, Any]]) -> str:
    first = found.position * found.lanes
    head = (
        f"step {found.step:,}: {found.lanes:,} rows of {found.seq_len:,} tokens, from token {first:,} of the run on"
        f"{'; skipped: nobody got it' if found.skipped else ''}"
    )
    names = ["row", "column", "tokens", "source", "file", "row_group", "document", "start"]
    if not found.names:
        names.remove("source")
    beside = list(described[0].get("columns", ())) if described else []
    text = ["text"] if described and "text" in described[0] else []
    rows = [
        [
            *(_cell(getattr(piece, name)) for name in names),
            *(_cell(more["columns"][name]) for name in beside),
            *(_shortened(more[name]) for name in text),
        ]
        for piece, more in zip(pieces, described, strict=True)
    ]
    return f"{head}\n\n{table(rows, [*(name.replace('_', ' ') for name in names), *beside, *text])}"


def _cell(value: Any) -> Any:
    """What is not a number as one line of text."""
    return value if value is None or isinstance(value, (int, float)) else one_line(str(value))


def _shortened(text: str) -> str:
    """The begin of a text on a line of its own."""
    line = one_line(text[: 2 * _SHOWN])
    return line if len(text) <= _SHOWN and len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _show_places(given: argparse.Namespace, opened: SetRun | MixtureRun) -> int:
    for name in ("step", "row", "of_rank", "of_world_size", "columns_range"):
        if getattr(given, name) is not None:
            flag = name.removeprefix("of_").replace("_", "-")
            raise ConfigError(f"--document asks for steps, and --{flag} is of one; use --within-steps")
    if isinstance(opened, MixtureRun) and given.source_name is None:
        raise ConfigError(f"the run is a mixture: give --source-name, one of {', '.join(opened.names)}")
    file, row_group, document = given.document
    with Progress("lengths of documents", "row group") as progress:
        found = Tracer(opened, progress.show).find(
            file, row_group, document, source=given.source_name, steps=given.within_steps, epochs=given.within_epochs
        )
    whole = Piece(
        row=0,
        column=0,
        tokens=found.tokens,
        source=found.source,
        file=file,
        row_group=row_group,
        document=document,
        start=0,
    )
    (described,) = _described(given, opened, [whole])
    if given.json:
        print_json({**found.to_json(), **described})
    else:
        for name, value in described.get("columns", {}).items():
            print(f"{_cell(name)}: {_cell(value)}")
        if "text" in described:
            print(f"text: {_shortened(described['text'])}")
        print(_of_document(found))
    return 0 if found.places else 1


def _of_document(found: Places) -> str:
    where = f"document {found.document:,} of row group {found.row_group:,} of {found.file}, {found.tokens:,} tokens"
    (first, last), word = found.epochs, "epoch"
    if found.steps[1] is not None:
        (first, last), word = (found.steps[0], found.steps[1]), "step"
    steps = f"{word}s {first:,} to {last - 1:,}" if last - first > 1 else f"{word} {first:,}"
    if not found.places:
        why = "it is empty" if not found.tokens else f"it does not come in {steps}"
        return f"{where}: {why}"
    names = ["step", "row", "column", "tokens", "start", "epoch", ""]
    rows = [
        (place.step, place.row, place.column, place.tokens, place.start, place.epoch, "skipped" * place.skipped)
        for place in found.places
    ]
    return f"{where}, in {steps}:\n\n{table(rows, names)}"


def _range(text: str) -> range:
    low, colon, high = text.partition(":")
    try:
        begin = int(low or 0)
        end = int(high) if colon else begin + 1
    except ValueError:
        begin = end = -1
    if not 0 <= begin < end:
        raise argparse.ArgumentTypeError(f"must be a number or a range without its end, such as 7 or 0:8, not {text!r}")
    return range(begin, end)


def _document(text: str) -> tuple[str, int, int]:
    file, _, rest = text.rpartition(":")
    file, _, row_group = file.rpartition(":")
    if not file or not row_group.isdecimal() or not rest.isdecimal():
        raise argparse.ArgumentTypeError(
            f"must be FILE:ROW_GROUP:DOCUMENT, such as part-00000.parquet:0:12, not {text!r}"
        )
    return file, int(row_group), int(rest)
