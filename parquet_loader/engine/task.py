"""Does a task: reads its row groups, decodes them part after part, and cuts every band that a part completes.

    read ──► decode a part ──► cut every band that it completes ──► the next part ...

Aligned columns follow the tokens, a plane after another. Where slices go, and where the text of bands that lie in
several parts is put together, is for `Results` to say.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..blocks import IntArray, TokenArray, TokenPart
from ..errors import DataError
from ..formats.base import STREAM_DOCUMENT_TOKENS, ColumnChunk
from .rows import RowLengthError, RowPart, RowParts, parts_together
from .slices import Slices
from .work import Hold, Keep, Results, SourceWork, TaskWork, WindowWork, read_chunks

__all__ = ["run_task"]


def run_task(
    source: SourceWork,
    window: WindowWork,
    task: TaskWork,
    results: Results,
    *,
    decoders: contextlib.AbstractContextManager[object],
    hold: Hold,
    keep: Keep,
    stop: threading.Event | None = None,
    fetched: Callable[[], object],
) -> tuple[int, int]:
    """Read and decode row groups, and cut every band that they complete.

    Args:
        source, window, task: what is to be done.
        results: what becomes of it.
        decoders: held while decoding and cutting.
        hold: memory for row groups that hold more while they are decoded than was thought.
        keep: memory for documents of a stream that are more than was thought.
        stop: set when nothing is wanted any more.
        fetched: called when storage has given all of its bytes.

    Returns:
        (tokens that were decoded, row groups that fell back).
    """
    raws, besides = read_chunks(source.storage, task, stop)
    fetched()
    with decoders:
        return _Run(source, window, task, results, hold, keep).decode(raws, besides)


@dataclass(frozen=True, slots=True)
class _Run:
    """A task that runs."""

    source: SourceWork
    window: WindowWork
    task: TaskWork
    results: Results
    hold: Hold
    keep: Keep

    def decode(self, raws: Sequence[memoryview], besides: Sequence[Sequence[bytes]]) -> tuple[int, int]:
        """Decode row groups and cut from them, one plane after another; see `run_task`."""
        groups = len(self.task.origins)
        tokens = _PlaneRun(self, 0, self.task.chunks[:groups])
        try:
            decoded = tokens.decode(raws[:groups], besides[:groups])
        except RowLengthError as error:
            raise error.chunk.error(error.problem) from None
        for plane in range(1, len(self.source.planes)):
            own = slice(plane * groups, (plane + 1) * groups)
            values = _PlaneRun(self, plane, self.task.chunks[own])
            try:
                values.decode(raws[own], besides[own])
            except RowLengthError:
                raise self._unlike(raws[:groups], raws[own], values.chunks) from None
            if not self._alike(tokens.borders, values.borders):
                raise self._unlike(raws[:groups], raws[own], values.chunks)
        return decoded

    def _alike(self, tokens: Sequence[IntArray], values: Sequence[IntArray]) -> bool:
        """Whether documents begin at the same places, of those that the lanes have, by two planes. Those at either end
        may be empty, and in a part that was left out.
        """
        low, high = self.window.starts[0], self.window.starts[-1]
        rows = self.source.planes[0].rows
        if rows is not None:
            low, high = low * (rows.width + 1) - 1, high * (rows.width + 1)
        one, other = (np.concatenate([np.empty(0, np.int64), *each]) for each in (tokens, values))
        return np.array_equal(one[(one > low) & (one < high)], other[(other > low) & (other < high)])

    def _unlike(
        self, tokens: Sequence[memoryview], values: Sequence[memoryview], chunks: Sequence[ColumnChunk]
    ) -> DataError:
        """What is wrong where they do not: the first row that differs."""
        lengths_of = self.source.format.document_lengths
        both = lengths_of(tokens, self.task.chunks[: len(tokens)]), lengths_of(values, chunks)
        chunk, wanted, found = next(
            each for each in zip(chunks, *both, strict=True) if not np.array_equal(each[1], each[2])
        )
        row = int((wanted != found).argmax())
        return chunk.error(
            f"row {row} has {found[row]:,} values, and {wanted[row]:,} tokens in "
            f"{self.source.planes[0].column!r}: what is aligned has a value for each token"
        )


class _PlaneRun:
    """One plane of a task that runs.

    Attributes:
        chunks: of its row groups.
        borders: where documents begin in the window, of each part; of rows that are packed already, how long they are.
            Of several planes alone, which must be alike.
    """

    def __init__(self, run: _Run, number: int, chunks: Sequence[ColumnChunk]) -> None:
        self._run = run
        self._number = number
        self._plane = run.source.planes[number]
        self.chunks = chunks
        self.borders: list[IntArray] = []

    def decode(self, raws: Sequence[memoryview], besides: Sequence[Sequence[bytes]]) -> tuple[int, int]:
        """Decode it and cut from it; see `run_task`."""
        run, plane, chunks = self._run, self._plane, self.chunks
        source, task, starts = run.source, run.task, run.window.starts
        as_wanted: dict[str, Any] = {"dtype": plane.held_dtype, "bound": plane.bound, "eos_id": plane.eos}
        if self._number:
            as_wanted["low"] = plane.low
        if len(raws) > 1:
            part = source.format.decode_together(raws, chunks, **as_wanted, besides=besides)
            if part is not None:
                self._count(part, chunks[0])
                # What lies between a task's row groups in the window has no tokens.
                self._cut_from(
                    part if plane.rows is None else parts_together(plane.rows, part, chunks), task.origins[0]
                )
                return self._tokens(part), 0
        tokens = fallbacks = 0
        each = zip(raws, besides or [()] * len(raws), chunks, task.origins, task.decode_bytes, strict=True)
        for raw, beside, chunk, origin, decode_bytes in each:
            opened = source.format.open(raw, chunk, beside)
            cost = opened.cost_bytes(dtype=plane.held_dtype, eos=plane.appends_eos)
            first, last = int(starts[0]) - origin, int(starts[-1]) - origin
            rows: RowParts | None = None
            if plane.rows is not None:
                rows = RowParts(plane.rows, chunk)
                first, last = plane.rows.tokens_of(chunk, first, last)
            parts = opened.parts(**as_wanted, first=first, last=last)
            with run.hold(cost - decode_bytes, chunk):
                for part in parts:
                    tokens += self._tokens(part)
                    self._count(part, chunk)
                    self._cut_all((part,) if rows is None else rows.of(part), origin)
                    del part  # not to be held while the next one is decoded
                if rows is not None:
                    self._cut_all(rows.rest(), origin)
            fallbacks += bool(opened.fallback)
            del opened, parts
        return tokens, fallbacks

    def _tokens(self, part: TokenPart) -> int:
        """How many there are, without EOS."""
        return len(part.tokens) - (len(part.starts) if self._plane.appends_eos else 0)

    def _count(self, part: TokenPart, chunk: ColumnChunk) -> None:
        """Hold memory for a part's documents, where they are more than was thought."""
        more = len(part.starts) - 1 - len(part.tokens) // STREAM_DOCUMENT_TOKENS
        if more > 0 and self._run.source.is_stream:
            self._run.keep(more, len(part.tokens), chunk)

    def _cut_all(self, parts: Iterable[TokenPart | RowPart], origin: int) -> None:
        for part in parts:
            self._cut_from(part, origin + part.begin)

    def _cut_from(self, part: TokenPart | RowPart, begin: int) -> None:
        """Cut the bands that a part, which begins there in the window, completes."""
        end, starts = begin + len(part), part.starts
        if len(self._run.source.planes) > 1:
            self.borders.append(part.borders(begin))
        if (starts[1:] == starts[:-1]).any():  # empty documents, of which there may be more than tokens
            starts = starts[np.append(starts[1:] != starts[:-1], True)]
        bands = self._run.window.bands
        # Bands follow each other: those that end behind the part's beginning and begin before its end.
        first_band = bisect.bisect_right(bands, begin, key=lambda band: band.end)
        for number in range(first_band, bisect.bisect_left(bands, end, key=lambda band: band.begin)):
            band = bands[number]
            low, high = max(band.begin, begin), min(band.end, end)
            elements = part.elements(low - begin, high - begin)
            # A document that begins at the very end of the part is empty so far, and of whatever comes next.
            first, last = starts.searchsorted((band.begin - begin, band.end - begin)).tolist()
            documents = starts[first:last] + (begin - band.begin)
            if high - low == band.end - band.begin:
                self._run.results.keep(number, self._cut(number, elements, documents))
            else:
                self._join(number, low - band.begin, elements, documents)

    def _join(self, number: int, at: int, elements: TokenArray, documents: IntArray) -> None:
        """Put a piece of a band to the others, and cut the band where it was the last one."""
        joined = self._run.results.join(self._number, number, at, elements, documents)
        if joined is not None:
            elements, documents = joined
            slices = self._cut(number, elements, documents)
            del joined, elements  # its memory may count as free from here on
            self._run.results.keep(number, slices)

    def _cut(self, number: int, elements: TokenArray, documents: IntArray) -> Slices:
        run = self._run
        return run.window.cut(self._number, number, elements, documents, order=run.source.order, cuts=run.results.cuts)
