"""How a run tells of itself: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from ..extras import import_extra

__all__ = ["SECONDS_BETWEEN_LINES", "Progress", "describe", "reporting"]


SECONDS_BETWEEN_LINES = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run has come.

    Attributes:
        documents: encoded so far, those of an earlier run included.
        tokens: of those documents.
        text_bytes: of those documents, in UTF-8.
        earlier_bytes: what an earlier run of the same command had finished of them.
        fraction: about how much of the input is read, from 0 to 1, where that is known.
    """

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    earlier_bytes: int = 0
    fraction: float | None = None

    @property
    def total_bytes(self) -> int | None:
        """About how many bytes of text there are in all."""
        return max(self.text_bytes, int(self.text_bytes / self.fraction)) if self.fraction else None


def describe(done: Progress, seconds: float) -> str:
    """One line of a log, of a run that has taken so long.

    >>> describe(Progress(documents=5, tokens=2_000, text_bytes=8_000_000, fraction=0.25), 4.0)
    'pretokenize: 25 %, 5 documents, 2,000 tokens, 8.0 MB of text, 2.0 MB/s, 0:00:12 left'
    """
    rate = (done.text_bytes - done.earlier_bytes) / max(seconds, 1e-3)
    share, left = "", ""
    if done.fraction and done.total_bytes is not None and rate:
        share = f"{100 * done.fraction:.0f} %, "
        left = f", {_clock((done.total_bytes - done.text_bytes) / rate)} left"
    return (
        f"pretokenize: {share}{done.documents:,} documents, {done.tokens:,} tokens, "
        f"{done.text_bytes / 1e6:,.1f} MB of text, {rate / 1e6:,.1f} MB/s{left}"
    )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


@contextmanager
def reporting(stream: IO[str] | None = None) -> Iterator[Callable[[Progress], None]]:
    """What shows progress on a stream, stderr by default."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _lines(stream)
        return
    # A pseudo-terminal of no known size would get a bar without a single sign.
    size = {} if os.get_terminal_size(stream.fileno()).columns else {"ncols": 120, "nrows": 24}
    with import_extra("tqdm").tqdm(desc="pretokenize", unit="B", unit_scale=True, file=stream, **size) as bar:

        def show(done: Progress) -> None:
            if not bar.n:
                bar.initial = bar.n = done.earlier_bytes
            bar.total = done.total_bytes
            bar.set_postfix_str(f"{done.documents:,} docs, {done.tokens:,} tokens", refresh=False)
            bar.update(done.text_bytes - bar.n)

        yield show


def _lines(stream: IO[str]) -> Callable[[Progress], None]:
    started = shown = time.monotonic()

    def show(done: Progress) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= SECONDS_BETWEEN_LINES:
            shown = now
            print(describe(done, now - started), file=stream, flush=True)

    return show
