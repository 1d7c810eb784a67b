"""Rows as a model gets them: which documents they consist of, and what these say.

Where a row's documents come from is arithmetic (`which`), and only the row groups that they are of are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..blocks import TokenArray
from ..runs import MixtureRun, SetRun
from ..storage.opening import Source
from .records import describe_pieces
from .trace import which

if TYPE_CHECKING:
    from ..pretokenize.tokenizers.base import Tokenizer

__all__ = ["Shown", "ShownPiece", "ShownRow", "show"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownPiece:
    """A stretch of a document in a row.

    Attributes:
        column: its first column.
        source: the name of a mixture's source, None for one set.
        file: relative to the set's root.
        row_group: its number in the file.
        document: its number in the row group.
        start: the first token's number in the document.
        ends: whether the document ends with it.
        tokens: its ids, shape ``(tokens,)``.
        text: what it says; None without a tokenizer.
        columns: other columns of its document.
    """

    column: int
    source: str | None
    file: str
    row_group: int
    document: int
    start: int
    ends: bool
    tokens: TokenArray
    text: str | None
    columns: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        names = ("column", "source", "file", "row_group", "document", "start", "ends", "text")
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "ids": self.tokens.tolist(), "columns": dict(self.columns)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownRow:
    """A row of a global batch.

    Attributes:
        row: its number, which is its lane's.
        pieces: what it consists of, by column.
        padding: columns at its end that are no tokens, where the run ends, or a row is short.
        is_short: whether it is a row that was packed already, and is shorter than others.
    """

    row: int
    pieces: tuple[ShownPiece, ...]
    padding: int
    is_short: bool

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "row": self.row,
            "padding": self.padding,
            "is_short": self.is_short,
            "pieces": [piece.to_json() for piece in self.pieces],
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """Rows of a step.

    Attributes:
        step: the batch's number in the run.
        position: tokens consumed per lane before it.
        seq_len, overlap: columns of a row, and those of the next row that it also has.
        lanes: rows of the global batch.
        skipped: whether nobody got it.
        rows: those that were asked for.
    """

    step: int
    position: int
    seq_len: int
    overlap: int
    lanes: int
    skipped: bool
    rows: tuple[ShownRow, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        names = ("step", "position", "seq_len", "overlap", "lanes", "skipped")
        return {**{name: getattr(self, name) for name in names}, "rows": [row.to_json() for row in self.rows]}


def show(
    run: SetRun | MixtureRun,
    step: int,
    *,
    rows: Sequence[int] | None = None,
    tokenizer: Tokenizer | None = None,
    columns: Sequence[str] = (),
    columns_from: Source | Mapping[str, Source] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Shown:
    """Rows of a step, as a model gets them.

    Args:
        run: see `which`.
        step: the number of the batch in the run, from 0.
        rows: of the global batch; None for all of them.
        tokenizer: see `open_tokenizer`; None for ids alone.
        columns, columns_from, storage_options: see `describe_pieces`.

    Raises:
        ConfigError: no such step, row or column.
        SourceExhaustedError: a source of the mixture ends before the step.
        StorageError, DataError: a row group cannot be read, or is not what the index says.
    """
    found = which(run, step, rows=rows)
    pieces = found.pieces
    told = describe_pieces(
        run,
        pieces,
        tokenizer=tokenizer,
        columns=columns,
        columns_from=columns_from,
        storage_options=storage_options,
    )
    of_rows: dict[int, list[ShownPiece]] = {
        row: [] for row in (range(found.lanes) if rows is None else sorted(set(rows)))
    }
    for piece, about in zip(pieces, told, strict=True):
        of_rows[piece.row].append(
            ShownPiece(
                column=piece.column,
                source=piece.source,
                file=piece.file,
                row_group=piece.row_group,
                document=piece.document,
                start=piece.start,
                ends=about.ends,
                tokens=about.tokens,
                text=about.text,
                columns=about.columns,
            )
        )
    width = found.seq_len + found.overlap
    packed = {name or None for name, config in run.configs.items() if config.rows is not None}

    def shown(row: int, some: list[ShownPiece]) -> ShownRow:
        padding = width - sum(len(piece.tokens) for piece in some)
        is_short = bool(padding and some) and some[0].source in packed
        return ShownRow(row=row, pieces=tuple(some), padding=padding, is_short=is_short)

    return Shown(
        step=found.step,
        position=found.position,
        seq_len=found.seq_len,
        overlap=found.overlap,
        lanes=found.lanes,
        skipped=found.skipped,
        rows=tuple(shown(row, some) for row, some in of_rows.items()),
    )
