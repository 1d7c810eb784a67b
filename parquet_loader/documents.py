"""Where documents are in rows, in the forms that models take.

Two rows of five tokens. Document b begins in row 0, ends in row 1, and c follows it:

    row 0            a  a  a  b  b          row 1            b  b  c  c  c
    document starts  0        3                                    2
    position_ids     0  1  2  0  1                           0  1  0  1  2
    document_ids     0  0  0  1  1                           2  2  3  3  3
    cu_seqlens       0        3                5                   7        10
    first labels     *        *                                    *

Attention does not reach from one row into another, so what continues from the row before is a stretch of its own: its
positions begin at 0 again. Only its label is no first one, since its document began earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .blocks import IntArray
from .errors import ConfigError

__all__ = ["IGNORE_INDEX", "Documents", "mask_first_labels", "mask_padding"]

IGNORE_INDEX = -100  # what PyTorch's and Hugging Face's losses leave out

IntLike = str | np.dtype[np.integer] | type[np.integer]
Array = np.ndarray[tuple[int, ...], np.dtype[np.integer]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Documents:
    """The documents, and pieces of documents, that rows consist of; rows are taken one after another, flattened.

    Attributes:
        rows, columns: the shape of the rows.
        cu_seqlens: int32, shape ``(documents + 1,)``, rising from 0 to ``rows * columns``: document d is the flattened
            rows' ``[cu_seqlens[d], cu_seqlens[d + 1])``. This is the form of FlashAttention's variable lengths. A
            document that lies in several rows is one piece in each.
    """

    rows: int
    columns: int
    cu_seqlens: np.ndarray[tuple[int, ...], np.dtype[np.int32]]

    @classmethod
    def of(cls, row_splits: IntArray, starts: IntArray, columns: int) -> Documents:
        """From the columns that documents start at, as `Batch.document_starts` gives them; those beyond are left out.

        Args:
            row_splits: shape ``(rows + 1,)``.
            starts: shape ``(row_splits[-1],)``, rising in each row.
            columns: of the rows.

        Raises:
            ConfigError: more than 2^31 - 1 tokens, which int32 cannot count.
        """
        rows = len(row_splits) - 1
        if rows * columns > np.iinfo(np.int32).max:
            raise ConfigError(f"cu_seqlens are int32, which cannot count {rows:,} rows of {columns:,}; use fewer lanes")
        ends = np.arange(rows + 1) * columns
        flat = starts + ends[:-1].repeat(row_splits[1:] - row_splits[:-1])
        flat = flat[(starts > 0) & (starts < columns)]
        borders = np.concatenate((ends, flat))
        borders.sort(kind="stable")  # two rising stretches, which it merges
        return cls(rows=rows, columns=columns, cu_seqlens=borders.astype(np.int32))

    def __len__(self) -> int:
        """Documents and pieces of documents."""
        return len(self.cu_seqlens) - 1

    @property
    def _lengths(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]  # as np.diff, in a third of its time

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest."""
        return int(self._lengths.max(initial=0))

    def position_ids(self, dtype: IntLike = "int32") -> Array:
        """Each token's place in its document, or from the row's beginning where the document began before the row.

        Returns:
            Shape ``(rows, columns)``, C-contiguous.
        """
        # A repeat of few numbers, and a subtraction in place: a cumulative sum is five times slower.
        starts = (self.cu_seqlens[:-1] % self.columns).astype(dtype, copy=False)
        ids = starts.repeat(self._lengths).reshape(self.rows, self.columns)
        np.subtract(np.arange(self.columns, dtype=dtype), ids, out=ids)
        return ids

    def document_ids(self, dtype: IntLike = "int32") -> Array:
        """Each token's document, counted over all rows from 0: tokens may see each other where these are equal.

        Returns:
            Shape ``(rows, columns)``, C-contiguous.
        """
        return np.arange(len(self), dtype=dtype).repeat(self._lengths).reshape(self.rows, self.columns)


def mask_first_labels(
    labels: np.ndarray[tuple[int, ...], np.dtype[Any]], row_splits: IntArray, starts: IntArray, *, shift: int
) -> None:
    """Write -100 over the labels that are first tokens of documents, which nothing before them can predict.

    Args:
        labels: shape ``(rows, columns)``, a signed type; changed in place.
        row_splits, starts: as `Batch.document_starts` gives them.
        shift: 1 where ``labels[:, c]`` is the token at column ``c + 1``, 0 where the model shifts.
    """
    places = starts - shift
    inside = (places >= 0) & (places < labels.shape[1])
    rows = np.arange(len(labels)).repeat(np.diff(row_splits))
    labels[rows[inside], places[inside]] = IGNORE_INDEX


def mask_padding(labels: np.ndarray[tuple[int, ...], np.dtype[Any]], lengths: IntArray, *, shift: int) -> None:
    """Write -100 over the labels that are padding; see `Batch.lengths`, and for the rest `mask_first_labels`."""
    labels[np.arange(shift, labels.shape[1] + shift) >= lengths[:, None]] = IGNORE_INDEX
