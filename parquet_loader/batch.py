"""What a loader yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from .blocks import AnyArray, IntArray, TokenArray
from .documents import Documents
from .engine.mixer import Picked
from .engine.pack import Origins
from .engine.rows import WholeRows
from .options import integer

__all__ = ["Batch", "Piece"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Where a stretch of a row's columns comes from.

    Attributes:
        row: of the global batch, which is the lane: rank 1 of 2 has the second half of them.
        column: its first column.
        tokens: how many.
        source: the name of a mixture's source, None for one set.
        file: relative to the set's root.
        row_group: its number in the file.
        document: its number in the row group, of all that it holds.
        start: the first token's number in the document. With ``eos_id``, the EOS after a document is its last token.
    """

    row: int
    column: int
    tokens: int
    source: str | None
    file: str
    row_group: int
    document: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One row of every lane of this rank.

    Attributes:
        tokens: shape ``(lanes of this rank, seq_len + overlap)``, the loader's dtype, C-contiguous, the caller's own.
        state: the position right after this batch, plain values: give it to `ParquetLoader.load_state_dict`. It is
            the whole run's position, the same on every rank, and a fresh dict.
        epoch: the epoch the batch belongs to, by lane 0's first token.
        weight: this rank's rows × ranks / lanes: 1.0 unless lanes are dealt out unevenly. The mean over ranks of
            (weight × mean loss of the rank's rows) is the mean loss of the global batch.
        lengths: int64, shape ``(lanes of this rank,)``: how many columns of each row are tokens, the others are
            padding. Of rows that were stored shorter, see ``packing="rows"``, they hold ``pad_id``; at the end of a
            run of a given number of epochs 0, or ``pad_id`` where there is one. None where all are tokens.
        sources: int32, shape ``(lanes of this rank,)``: of a mixture the source of each row, its place in
            `ParquetLoader.sources`. None for one set.
        aligned: by name the values of the ``aligned`` columns, each of the shape of `tokens`, of the type that they are
            stored in, C-contiguous and the caller's own; 0 in padding.
    """

    tokens: TokenArray
    state: dict[str, Any]
    epoch: int
    weight: float
    lengths: IntArray | None = None
    sources: np.ndarray[tuple[int], np.dtype[np.int32]] | None = None
    aligned: dict[str, AnyArray] = field(default_factory=dict)
    _starts: Origins | WholeRows | Picked = field(repr=False)
    _origins: Callable[[], list[Piece]] = field(repr=False)

    def to_arrow(self) -> pa.FixedSizeListArray:
        """`tokens` as an Arrow array that shares their memory: a list of ``seq_len + overlap`` for each row.

        Arrow takes arrays for immutable: do not write to `tokens` while it is in use.
        """
        return pa.FixedSizeListArray.from_arrays(pa.array(self.tokens.reshape(-1)), self.tokens.shape[1])

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """`to_arrow` by the Arrow PyCapsule interface, so that ``pa.array(batch)`` and others take a batch."""
        return self.to_arrow().__arrow_c_array__(requested_schema)  # type: ignore[no-any-return]

    def document_starts(self) -> tuple[IntArray, IntArray]:
        """Where documents begin, from the documents themselves and not from EOS ids. Computed when called.

        Returns:
            ``(row_splits, columns)``, int64: row i has documents (or fragments, where a slice border cut one) that
            begin at ``columns[row_splits[i]:row_splits[i + 1]]``, rising. Column 0 is listed only where a document
            really begins there; else the row begins inside a document. A column within a row is also listed where steps
            of another length than the window's are joined there.

            A row of a set with ``packing="rows"`` is one document; or those that ``document_ids`` or ``position_ids``
            tell of, where `aligned` has such a column of the set's own.
        """
        return self._starts.starts(self.aligned)

    def origins(self) -> list[Piece]:
        """Which documents the rows consist of: pieces by row and column, each of one document. Rows are numbered as
        those of the global batch. Padding is in none.

        Computed when called, from the index and from how many tokens the documents of the row groups concerned have:
        these are read again, which also works when the loader has gone on or was closed.

        Raises:
            ConfigError: the batch was pickled, as those of other processes are; says what to do.
            StorageError, DataError: a row group cannot be read, or is not what it was.
        """
        return self._origins()

    def documents(self, columns: int | None = None) -> Documents:
        """The documents of the rows, for `Documents.position_ids`, ``document_ids``, ``cu_seqlens`` and ``max_seqlen``.

        Computed when called: keep it to ask for several of them. Padding is a document of its own.

        Args:
            columns: only of this many first columns of the rows: with ``overlap=1`` give ``seq_len``, to have those of
                the inputs ``tokens[:, :-1]``. None for all of them.

        Raises:
            ConfigError: more columns than rows have, or none.
        """
        if columns is None:
            columns = self.tokens.shape[1]
        columns = integer("columns", columns, 1, self.tokens.shape[1])
        row_splits, starts = self.document_starts()
        if self.lengths is not None:
            # No document begins at a row's end or in its padding: what comes last in a row comes last when sorted in.
            starts = np.insert(starts, row_splits[1:], self.lengths)
            row_splits = row_splits + np.arange(len(row_splits))
        return Documents.of(row_splits, starts, columns)
