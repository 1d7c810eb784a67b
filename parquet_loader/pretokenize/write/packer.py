"""Documents to training rows: a buffer of documents is packed at a time, as `best_fit` says.

    documents   a b c d e f g | h i j k l ...            a buffer ends with the document that fills it
    rows        a+d  b+g  c+f   e                        e is far from filling its row:
    next        e h i j k l                              with tail="carry" it waits for the next buffer, once

What is packed together depends on the documents alone, whatever batches they come in. So a run resumes at the first
document of a buffer, with the pieces that were carried into it, and leaves out the rows of it that are written already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...container import DamagedContainerError, OtherVersionError, open_container, seal_container
from ...errors import ConfigError, DataError
from ..tokenizers.base import TokenBatch
from .best_fit import Lengths, cut, pack
from .manifest import Packing

__all__ = ["Buffer", "PackedRows", "Packer", "check_packing", "pieces_from_bytes", "pieces_to_bytes"]


_FULL_PERCENT = 99  # a row is far from full below that
_CARRIED_KIND, _CARRIED_VERSION = "pretokenize carried pieces", 1


def check_packing(packing: Packing) -> None:
    """Refuse sizes that cannot be packed.

    Raises:
        ConfigError: one is too small or too large.
    """
    if not 1 <= packing.seq_len < 1 << 31:
        raise ConfigError(f"seq_len must be at least 1, got {packing.seq_len:,}.")
    if packing.buffer_tokens < packing.seq_len:
        raise ConfigError(
            f"pack_buffer_tokens ({packing.buffer_tokens:,}) must not be less than seq_len ({packing.seq_len:,}): rows "
            f"are packed from what the buffer holds."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A buffer of documents that is packed.

    Attributes:
        rows: in place of documents, with the aligned column that numbers the documents of each.
        documents: that were new in it.
        tokens: of those documents.
        cut_documents: those of them that were longer than a row.
        carried: the pieces that wait for the next buffer.
    """

    rows: TokenBatch
    documents: int
    tokens: int
    cut_documents: int
    carried: TokenBatch


class Packer:
    """Collects documents, and packs each buffer of them.

    Args:
        packing: how.
        carried: the pieces that were carried into the first buffer; None for none.
    """

    def __init__(self, packing: Packing, carried: TokenBatch | None = None) -> None:
        self._packing = packing
        self._carried = carried
        self._waiting: list[TokenBatch] = []
        self._room = packing.buffer_tokens

    def add(self, batch: TokenBatch) -> Iterator[Buffer]:
        """Take more documents; gives the buffers that they complete."""
        first, before = 0, 0
        ends = np.cumsum(batch.lengths)
        while (last := int(np.searchsorted(ends, before + self._room))) < len(ends):
            self._waiting.append(batch.between(first, last + 1, before))
            yield self._packed(last=False)
            first, before = last + 1, int(ends[last])
        rest = batch.between(first, len(ends), before)
        self._waiting.append(rest.copied() if first else rest)
        self._room -= len(rest.tokens)

    def finish(self) -> Iterator[Buffer]:
        """The rest, of which nothing is carried any further."""
        if self._waiting or self._carried is not None:
            yield self._packed(last=True)

    def _packed(self, *, last: bool) -> Buffer:
        seq_len = self._packing.seq_len
        documents = TokenBatch.joined(self._waiting or [_none_like(self._carried)])
        pieces = replace(documents, lengths=cut(documents.lengths, seq_len), lost={})
        carried_before = 0
        if self._carried is not None and len(self._carried.lengths):
            carried_before = len(self._carried.lengths)
            pieces = TokenBatch.joined([self._carried, pieces])
        rows, carried = _rows_of(pieces, carried_before, self._packing, carries=not last)
        self._carried, self._waiting, self._room = carried, [], self._packing.buffer_tokens
        return Buffer(
            rows=rows,
            documents=len(documents.lengths),
            tokens=len(documents.tokens),
            cut_documents=int(np.count_nonzero(documents.lengths > seq_len)),
            carried=carried,
        )


def _none_like(batch: TokenBatch | None) -> TokenBatch:
    assert batch is not None
    return batch.between(0, 0, 0)


def _rows_of(
    pieces: TokenBatch, carried_before: int, packing: Packing, *, carries: bool
) -> tuple[TokenBatch, TokenBatch]:
    """Pieces as rows, and those that are carried; of the pieces the first so many were carried before."""
    row_of = pack(pieces.lengths, packing.seq_len)
    fill = np.bincount(row_of, weights=pieces.lengths).astype(np.int64)
    waits = np.zeros(len(fill), np.bool_)
    if carries and packing.tail == "carry":
        waits = 100 * fill < _FULL_PERCENT * packing.seq_len
        waits[row_of[:carried_before]] = False
    by_row = np.argsort(row_of, kind="stable")
    written = ~waits[row_of[by_row]]
    chosen = by_row[written]
    rows = _gathered(pieces, chosen)
    # The number of each piece in its row: its place among all, less that of the row's first.
    _, counts = np.unique(row_of[chosen], return_counts=True)
    numbers = np.arange(len(chosen)) - np.repeat(np.cumsum(counts) - counts, counts)
    document_ids = np.repeat(numbers.astype(np.int32), pieces.lengths[chosen])
    rows = replace(rows, lengths=fill[~waits], aligned={**rows.aligned, packing.boundaries: document_ids})
    return rows, _gathered(pieces, np.sort(by_row[~written]))


def _gathered(pieces: TokenBatch, chosen: Lengths) -> TokenBatch:
    """Some of the pieces, in the order given, in arrays of their own."""
    lengths = pieces.lengths[chosen]
    ends = np.cumsum(pieces.lengths)[chosen]
    slices = [slice(*each) for each in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]

    def taken(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.concatenate([values[:0], *map(values.__getitem__, slices)])

    return TokenBatch(
        tokens=taken(pieces.tokens),
        lengths=lengths,
        aligned={name: taken(values) for name, values in pieces.aligned.items()},
    )


class PackedRows:
    """Makes rows of documents, and follows the writer through them.

    Args:
        packing: how.
        on_buffer: called with each buffer when all its rows are written; those it is given are without their tokens.
        rows: of the first buffer that are written already, and are left out.
        carried: the pieces that were carried into it; None for none.

    Attributes:
        rows: written of the buffer at hand.
        carried: the pieces that were carried into that buffer; None for none.
    """

    def __init__(
        self,
        packing: Packing,
        on_buffer: Callable[[Buffer], None],
        *,
        rows: int = 0,
        carried: TokenBatch | None = None,
    ) -> None:
        self.rows = rows
        self.carried = carried
        self._to_leave_out = rows
        self._on_buffer = on_buffer
        self._packer = Packer(packing, carried)
        self._waiting: deque[tuple[int, Buffer]] = deque()  # how many rows each has

    def add(self, documents: TokenBatch) -> Iterator[TokenBatch]:
        """Take more documents; gives the rows to write."""
        yield from map(self._to_write, self._packer.add(documents))

    def finish(self) -> Iterator[TokenBatch]:
        """The rest of the rows."""
        yield from map(self._to_write, self._packer.finish())

    def take(self, rows: int) -> None:
        """So many rows were written."""
        self.rows += rows
        while self._waiting and self.rows >= self._waiting[0][0]:
            in_it, buffer = self._waiting.popleft()
            self.rows -= in_it
            self.carried = buffer.carried
            self._on_buffer(buffer)

    def _to_write(self, buffer: Buffer) -> TokenBatch:
        rows, left_out = buffer.rows, self._to_leave_out
        if left_out > len(rows.lengths):
            raise DataError(f"it has {left_out:,} rows of a buffer of {len(rows.lengths):,}", path="the journal")
        self._to_leave_out = 0
        self._waiting.append((len(rows.lengths), replace(buffer, rows=rows.between(0, 0, 0))))
        self.take(0)  # a buffer may have no rows at all
        return rows.between(left_out, len(rows.lengths), int(rows.lengths[:left_out].sum()))


def pieces_to_bytes(pieces: TokenBatch | None) -> bytes:
    """Pieces, or none, as the content of a file."""
    arrays = [] if pieces is None else [pieces.lengths, pieces.tokens, *pieces.aligned.values()]
    names = [] if pieces is None else ["", "", *pieces.aligned]
    fields = [[name, each.dtype.str, each.tobytes()] for name, each in zip(names, arrays, strict=True)]
    return seal_container(_CARRIED_KIND, _CARRIED_VERSION, fields)


def pieces_from_bytes(raw: bytes, name: str) -> TokenBatch | None:
    """The inverse of `pieces_to_bytes`.

    Args:
        raw: the file's content.
        name: of the file, for messages.

    Raises:
        DataError: something else, or damaged.
    """
    try:
        fields = open_container(raw, _CARRIED_KIND, _CARRIED_VERSION)
    except (DamagedContainerError, OtherVersionError) as error:
        raise DataError(f"{error}. Remove the folder that it is in, to start again.", path=name) from error
    if not fields:
        return None
    arrays = [(field, np.frombuffer(content, dtype)) for field, dtype, content in fields]
    (_, lengths), (_, tokens), *aligned = arrays
    return TokenBatch(tokens=tokens, lengths=lengths, aligned=dict(aligned))
