"""Which documents the rows of a run hold: in the loader's order, and in orders to compare it with.

The loader's own engine is given a format that decodes every token to the number of its document in the set. So what is
measured is what a training run gets, from any set, and no second set has to be written:

    stored          5 6 7 | 8 9 | 4 ...            the documents' tokens
    decoded         0 0 0 | 1 1 | 2 ...            their documents' numbers, in storage order
    rows            0 0 1 1 | 7 7 7 2 | ...        delivered: pieces (step, lane, document, tokens)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from parquet_loader import Batch, ParquetLoader
from parquet_loader.blocks import IntArray, TokenPart
from parquet_loader.engine.cost import required_bytes
from parquet_loader.formats.base import ColumnChunk, OpenChunk
from parquet_loader.formats.parquet import PARQUET
from parquet_loader.index.index import DatasetIndex
from parquet_loader.order.order import Order, StepBlocks, Window
from parquet_loader.runs import SetRun


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Documents:
    """The documents of a set, in storage order.

    Attributes:
        lengths: tokens of each, with its EOS, shape ``(documents,)``.
        groups: the number of each row group's first document, and their number, shape ``(row groups + 1,)``.
    """

    lengths: IntArray
    groups: IntArray

    @classmethod
    def of_index(cls, index: DatasetIndex, eos: bool) -> Documents:
        """What an index tells: within a row group all documents are taken to be of one length, until it is decoded."""
        counts = zip(index.rows.tolist(), (index.tokens + index.rows * eos).tolist(), strict=True)
        lengths = [np.diff(np.arange(rows + 1) * tokens // rows) for rows, tokens in counts]
        groups = np.concatenate([[0], np.cumsum(index.rows)])
        return cls(lengths=np.concatenate(lengths).astype(np.int64), groups=groups)

    def places(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Where in the set each begins, from 0 to 1, in tokens, shape ``(documents,)``."""
        ends = np.cumsum(self.lengths)
        return (ends - self.lengths) / max(1, int(ends[-1]))

    def group_of(self, documents: IntArray) -> IntArray:
        """The row groups that documents lie in."""
        return np.searchsorted(self.groups, documents, side="right") - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The rows of some steps, as pieces: one for each row and each document in it, in rising (step, lane, document).

    Attributes:
        steps, lanes, seq_len: how many rows there are, and their tokens.
        step, lane: the row of each piece, shape ``(pieces,)``.
        document: its document's number in the set.
        tokens: tokens of that document in that row.
        begins: how often the document, or a fragment of it, begins in that row.
    """

    steps: int
    lanes: int
    seq_len: int
    step: IntArray
    lane: IntArray
    document: IntArray
    tokens: IntArray
    begins: IntArray


class _DocumentNumbers:
    """Parquet, with every token the number of its document; notes the documents' lengths."""

    def __init__(self, index: DatasetIndex, eos: bool) -> None:
        self.documents = Documents.of_index(index, eos)
        paths = [index.files[file].path for file in index.file]
        keys = zip(paths, index.row_group.tolist(), strict=True)
        self._first = dict(zip(keys, self.documents.groups[:-1].tolist(), strict=True))

    def __getattr__(self, name: str) -> Any:
        """Costs and footers are Parquet's."""
        return getattr(PARQUET, name)

    def decode_together(self, raws: object, chunks: object, **options: object) -> None:
        """See `Format.decode_together`: one by one."""

    def open(self, raw: bytes | memoryview, chunk: ColumnChunk, beside: object = ()) -> _NumberedChunk:
        """See `Format.open`."""
        first = self._first[chunk.path, chunk.row_group]
        return _NumberedChunk(PARQUET.open(raw, chunk), first, self.documents.lengths[first : first + chunk.rows])


class _NumberedChunk:
    """A chunk that decodes to its documents' numbers, from ``first`` on; their lengths are put into ``lengths``."""

    def __init__(self, opened: OpenChunk, first: int, lengths: IntArray) -> None:
        self.fallback, self.cost_bytes = opened.fallback, opened.cost_bytes
        self._opened, self._first, self._lengths = opened, first, lengths

    def parts(self, *, dtype: np.dtype[np.integer], eos_id: int | None, **_: Any) -> Iterator[TokenPart]:
        """See `OpenChunk.parts`; a loader of all ranks needs all of them."""
        known = 0  # documents that have begun
        lengths = np.zeros_like(self._lengths)
        for part in self._opened.parts(eos_id=eos_id):
            counts = np.diff(part.starts, prepend=0, append=len(part.tokens))  # the first: of the one that goes on
            numbers = np.arange(known - 1, known + len(part.starts))
            lengths[numbers[counts > 0]] += counts[counts > 0]
            known += len(part.starts)
            yield TokenPart(part.begin, (self._first + numbers).astype(dtype).repeat(counts), part.starts)
        self._lengths[:] = lengths


class _TextOrder(Order):
    """An order whose steps are not permuted: a lane's rows come as they follow each other in its text."""

    def step_blocks(self, window: Window, length: int) -> StepBlocks:
        """Of every block its own text."""
        blocks = super().step_blocks(window, length)
        return replace(blocks, texts=np.sort(blocks.texts))


def order_as_text(loader: ParquetLoader) -> None:
    """Let a new loader give rows in the order of the text: what would come, were the steps of windows not permuted."""
    given = {field.name: getattr(loader._order, field.name) for field in fields(Order) if field.init}
    _reconfigure(loader, order=_TextOrder(**given))


def _reconfigure(loader: ParquetLoader, **changes: Any) -> None:
    """Change what the engine of a new loader of one set will run on."""
    run = loader._run
    assert isinstance(run, SetRun)
    run.use(replace(run.set, config=replace(run.set.config, **changes)))


def loader_rows(loader: ParquetLoader, steps: int | None = None) -> tuple[Rows, Documents]:
    """The rows that a new loader of all ranks gives, until its epoch ends or for so many steps. It is of no use then.

    The lengths of documents are those of the set in the row groups that were read, and guessed in others.
    """
    config = loader._config
    numbers = _DocumentNumbers(config.index, config.eos_id is not None)
    count = len(numbers.documents.lengths)
    dtype = np.dtype(np.int32 if count <= np.iinfo(np.int32).max else np.int64)
    _reconfigure(loader, format=numbers, dtype=dtype, held_dtype=dtype, bound=count)
    budget_bytes = max(config.budget_bytes, required_bytes(loader._config, config.order.window))
    _reconfigure(loader, budget_bytes=budget_bytes)
    parts = [_pieces(batch, step) for step, batch in enumerate(itertools.islice(loader, steps))]
    step, lane, document, tokens, begins = (np.concatenate(part) for part in zip(*parts, strict=True))
    rows = Rows(
        steps=len(parts),
        lanes=config.order.lanes,
        seq_len=int(tokens.sum()) // (len(parts) * config.order.lanes),
        step=step,
        lane=lane,
        document=document,
        tokens=tokens,
        begins=begins,
    )
    return rows, numbers.documents


def _pieces(batch: Batch, step: int) -> Iterator[IntArray]:
    """The pieces of a batch of document numbers: their steps, lanes, documents, tokens, begins."""
    lanes, seq_len = batch.tokens.shape
    numbers = batch.tokens.reshape(-1).astype(np.int64)
    changes = np.flatnonzero(np.diff(numbers)) + 1
    runs = np.union1d(np.arange(0, lanes * seq_len, seq_len), changes)
    many = int(numbers.max()) + 1
    keys, which = np.unique(runs // seq_len * many + numbers[runs], return_inverse=True)
    tokens = np.bincount(which, np.diff(np.append(runs, lanes * seq_len)), len(keys)).astype(np.int64)
    row_splits, columns = batch.document_starts()
    lane = np.arange(lanes).repeat(np.diff(row_splits))
    begins = np.searchsorted(keys, lane * many + numbers[lane * seq_len + columns])
    yield from (np.full(len(keys), step), keys // many, keys % many, tokens)
    yield np.bincount(begins, minlength=len(keys))


def fixed_rows(
    documents: Documents,
    *,
    seq_len: int,
    lanes: int,
    steps: int,
    seed: int = 0,
    shuffle_documents: bool = False,
) -> Rows:
    """A full shuffle: the set cut into rows from its first token to its last, and all of the rows permuted.

    Args:
        documents: of the set.
        seq_len, lanes: of the rows and batches.
        steps: how many; fewer where the set's rows are used up.
        seed: of the shuffle.
        shuffle_documents: permute all documents before they are cut into rows, which then hold no neighbours either.
    """
    rng = np.random.default_rng(seed)
    count = len(documents.lengths)
    order = rng.permutation(count) if shuffle_documents else np.arange(count)
    ends = np.cumsum(documents.lengths[order])
    steps = min(steps, int(ends[-1]) // (seq_len * lanes))
    row_begins = rng.permutation(int(ends[-1]) // seq_len)[: steps * lanes] * seq_len
    first = np.searchsorted(ends, row_begins, side="right")
    counts = np.searchsorted(ends, row_begins + seq_len, side="left") + 1 - first
    row = np.arange(steps * lanes).repeat(counts)
    place = np.arange(len(row)) - (np.cumsum(counts) - counts - first).repeat(counts)
    low, high = ends[place] - documents.lengths[order][place], ends[place]
    row_begin = row_begins[row]
    tokens = np.minimum(high, row_begin + seq_len) - np.maximum(low, row_begin)
    keep = np.lexsort((order[place], row))
    keep = keep[tokens[keep] > 0]
    return Rows(
        steps=steps,
        lanes=lanes,
        seq_len=seq_len,
        step=row[keep] // lanes,
        lane=row[keep] % lanes,
        document=order[place][keep],
        tokens=tokens[keep],
        begins=(low >= row_begin)[keep].astype(np.int64),
    )
