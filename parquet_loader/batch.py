"""What a loader yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .boundaries import Documents
from .chunk import IntArray, TokenArray
from .pack import Taken, document_starts

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
    """

    tokens: TokenArray
    state: dict[str, Any]
    epoch: int
    weight: float
    taken: Sequence[Taken] = field(repr=False)

    def document_starts(self) -> tuple[IntArray, IntArray]:
        """Where documents begin, from the documents themselves and not from EOS ids. Computed when called.

        Returns:
            ``(row_splits, columns)``, int64: row i has documents (or fragments, where a slice border cut one) that
            begin at ``columns[row_splits[i]:row_splits[i + 1]]``, rising. Column 0 is listed only where a document
            really begins there; else the row goes on with the document that its lane's row before ended in.
        """
        return document_starts(self.taken, len(self.tokens))

    def documents(self, columns: int | None = None) -> Documents:
        """The documents of the rows, for `Documents.position_ids`, ``document_ids``, ``cu_seqlens`` and ``max_seqlen``.

        Computed when called: keep it to ask for several of them.

        Args:
            columns: of the rows' first so many columns: with ``overlap=1`` give ``seq_len``, to have those of the
                inputs ``tokens[:, :-1]``. None for all of them.
        """
        return Documents.of(*self.document_starts(), self.tokens.shape[1] if columns is None else columns)
