"""What a helper runs; see `processes`. It has the loader's end of one socket to live by, and of others to work for."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..blocks import IntArray, TokenArray
from ..errors import HelperError, ParquetLoaderError
from ..formats.base import ColumnChunk
from . import wire
from .slices import Slices
from .task import run_task
from .wire import Answer, BandWork, ClosedError, Piece, Request, Wire
from .work import Cuts, SourceWork, WindowWork, planes_of

__all__ = ["main"]

_LOOK_SECONDS = 1.0  # between looks at whether the loader's process is still the parent
_REST_SECONDS = 0.05  # without a request, after which memory is given back to the system


def main() -> None:
    """Work until the loader is gone. The arguments: its process, and the descriptors of setup, life and work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader decides what is interrupted
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent, setup, life, *ends = map(int, sys.argv[1:])
    sources, problem = _sources(setup)
    decoders = threading.Lock() if len(ends) > 1 else contextlib.nullcontext()
    log = _Log()
    logging.getLogger("parquet_loader").addHandler(log)
    for end in ends:
        connection = _Connection(Wire(socket.socket(fileno=end)), sources, problem, decoders, log)
        threading.Thread(target=connection.run, daemon=True).start()
    control = Wire(socket.socket(fileno=life))
    while os.getppid() == parent and not control.wait(_LOOK_SECONDS):
        pass
    os._exit(0)


def _sources(setup: int) -> tuple[list[SourceWork], Exception | None]:
    """What there is to work on, or why that is not known."""
    # Not read from the descriptor: helpers that start at the same time would move each other's place in it.
    pickled = mmap.mmap(setup, 0, access=mmap.ACCESS_READ)
    os.close(setup)
    try:
        return pickle.loads(pickled), None
    except Exception as error:
        text = f"a storage cannot be opened in a decoding process ({type(error).__name__}: {error})"
        if "__main__" in str(error):
            text += "; put its class into a module, which other processes can import"
        return [], HelperError(f"{text}; or use threads in place of processes")


class _RefusedError(Exception):
    """The loader has not as much memory; it knows why."""


@dataclass(slots=True)
class _Place:
    """A segment, and what is in it.

    Attributes:
        memory: of the segment.
        window: which is in it.
        cuts: of the window.
    """

    memory: mmap.mmap
    window: WindowWork
    cuts: Cuts


class _Connection:
    """One thread's work."""

    def __init__(
        self,
        wire_: Wire,
        sources: Sequence[SourceWork],
        problem: Exception | None,
        decoders: contextlib.AbstractContextManager[object],
        log: _Log,
    ) -> None:
        self._wire = wire_
        self._sources = sources
        self._problem = problem
        self._decoders = decoders
        self._log = log
        self._places: dict[int, _Place] = {}

    def run(self) -> None:
        """Do what is asked for, until nobody does any more."""
        try:
            self._log.connect(self._wire)
            while True:
                self._work()
        except ClosedError:
            os._exit(0)
        except BaseException:  # without this thread the loader would wait for ever
            traceback.print_exc()
            os._exit(1)

    def _work(self) -> None:
        if not self._wire.wait(_REST_SECONDS):
            pa.default_memory_pool().release_unused()
        request, descriptors = self._wire.receive()
        try:
            answer: Any = self._do(request, descriptors)
        except ClosedError:
            raise
        except BaseException as error:
            answer = _failed(error)
        if request.rest:
            pa.default_memory_pool().release_unused()
        self._wire.send(answer)

    def _do(self, request: Request, descriptors: list[int]) -> Answer:
        if self._problem is not None:
            raise self._problem
        for number in request.forgotten:
            del self._places[number]
        for descriptor in descriptors:
            assert request.window is not None
            memory = mmap.mmap(descriptor, request.size)
            os.close(descriptor)
            self._places[request.segment] = _Place(memory, request.window, Cuts(1))
        place = self._places[request.segment]
        if request.window is not None:
            place.window, place.cuts = request.window, Cuts(len(self._sources[request.window.source].planes))
        window = place.window
        source = self._sources[window.source]
        memory_ = np.frombuffer(place.memory, np.uint8)
        planes = planes_of(memory_, window.tokens, [plane.element_dtype for plane in source.planes])
        results = _Results(window, planes, place.cuts)
        tokens = fallbacks = 0
        begun = time.monotonic()
        read_seconds: list[float] = []
        work = request.work
        if isinstance(work, BandWork):
            with self._decoders:
                results.cut(work, source)
        else:
            tokens, fallbacks = run_task(
                source,
                window,
                work,
                results,
                decoders=self._decoders,
                hold=self._hold,
                keep=self._keep,
                fetched=lambda: read_seconds.append(time.monotonic() - begun),
            )
        retries = tuple(each.storage.retries for each in self._sources)
        return results.answer(tokens, fallbacks, retries, sum(read_seconds))

    def _ask(self, message: wire.Hold | wire.Keep) -> None:
        self._wire.send(message)
        if not self._wire.receive()[0]:
            raise _RefusedError

    def _keep(self, documents: int, tokens: int, chunk: ColumnChunk) -> None:
        """See `work.Keep`: the loader has it."""
        self._ask(wire.Keep(documents, tokens, chunk))

    @contextlib.contextmanager
    def _hold(self, more_bytes: int, chunk: ColumnChunk) -> Iterator[None]:
        """See `Reserve.hold`: the loader has it."""
        if more_bytes <= 0:
            yield
            return
        self._ask(wire.Hold(more_bytes, chunk))
        try:
            yield
        finally:
            self._wire.send(wire.Release())


class _Results:
    """Puts what a task decodes into its window's segment; see `work.Results`."""

    def __init__(self, window: WindowWork, planes: Sequence[TokenArray], cuts: Cuts) -> None:
        self.cuts = cuts
        self._window = window
        self._planes = planes
        self._cut: list[tuple[int, int, int]] = []
        self._documents: list[IntArray] = []
        self._pieces: dict[tuple[int, int], Piece] = {}

    def join(
        self, plane: int, number: int, at: int, tokens: TokenArray, documents: IntArray
    ) -> tuple[TokenArray, IntArray] | None:
        """See `work.Results`. What is missing at the task's end is other tasks'."""
        place = self._place(plane, number)
        place[at : at + len(tokens)] = tokens
        before = self._pieces.pop((plane, number), None)
        piece = Piece(plane, number, len(tokens), documents)
        if before is not None:
            piece = Piece(plane, number, before.tokens + len(tokens), np.concatenate((before.documents, documents)))
        if piece.tokens == len(place):
            return place, piece.documents
        self._pieces[plane, number] = piece
        return None

    def keep(self, number: int, slices: Slices) -> None:
        """See `work.Results`."""
        place, at = self._place(slices.plane, number), 0
        for *_, tokens in slices.rectangles:
            place[at : at + tokens.size] = tokens.reshape(-1)
            at += tokens.size
        assert at == len(place)
        self._cut.append((slices.plane, number, len(slices.documents)))
        self._documents.append(slices.documents)

    def cut(self, work: BandWork, source: SourceWork) -> None:
        """Cut a band whose text of one plane is complete."""
        plane, number, documents = work
        text = self._place(plane, number)
        self.keep(number, self._window.cut(plane, number, text, documents, order=source.order, cuts=self.cuts))

    def answer(self, tokens: int, fallbacks: int, retries: tuple[int, ...], read_seconds: float) -> Answer:
        """What was done."""
        documents = np.concatenate([np.empty(0, np.int64), *self._documents])
        return Answer(
            tokens, fallbacks, retries, read_seconds, tuple(self._cut), documents, tuple(self._pieces.values())
        )

    def _place(self, plane: int, number: int) -> TokenArray:
        return self._planes[plane][self._window.place(self._window.bands[number])]


def _failed(error: BaseException) -> wire.Failed:
    """An error, as a message."""
    errors: list[bytes] = []
    link: BaseException | None = error
    while link is not None and len(errors) < 16:
        try:
            pickled = pickle.dumps(link)
            pickle.loads(pickled)  # some are of classes that cannot be made of what they hold
        except Exception:
            pickled = pickle.dumps(HelperError(f"{type(link).__name__}: {link}"))
        errors.append(pickled)
        link = link.__cause__
    expected = isinstance(error, (ParquetLoaderError, _RefusedError))
    text = "" if expected else "".join(traceback.format_exception(error))
    traceback.clear_frames(error.__traceback__)
    return wire.Failed(tuple(errors), text)


class _Log(logging.Handler):
    """Has the loader's process log what is logged here, each thread by its connection."""

    def __init__(self) -> None:
        super().__init__()
        self._mine = threading.local()

    def connect(self, wire_: Wire) -> None:
        """From here on, this thread's records go there."""
        self._mine.wire = wire_

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        connected = getattr(self._mine, "wire", None)
        if connected is not None:
            connected.send(wire.Logged(record.name, record.levelno, record.getMessage()))
