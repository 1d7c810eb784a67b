"""What a loader yields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from .blocks import IntArray, TokenArray
from .documents import Documents
from .engine.mixer import Picked
from .engine.pack import Origins
from .options import integer

__all__ = ["Batch"]


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
        lengths: int64, shape ``(lanes of this rank,)``, at the end of a run of a given number of epochs: how many
            columns of each row are tokens, the others are padding and 0. None where all are tokens.
        sources: int32, shape ``(lanes of this rank,)``: of a mixture the source of each row, its place in
            `ParquetLoader.sources`. None for one set.
    """

    tokens: TokenArray
    state: dict[str, Any]
    epoch: int
    weight: float
    lengths: IntArray | None = None
    sources: np.ndarray[tuple[int], np.dtype[np.int32]] | None = None
    origins: Origins | Picked = field(repr=False)

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
        """
        return self.origins.starts

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
