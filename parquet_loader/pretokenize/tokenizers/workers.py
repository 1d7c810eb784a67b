"""Batches of texts to batches of tokens, in order, on threads of this process or on processes of their own.

    batches    1 2 3 4 5 ...
    worker 0   1   3   5          whichever is free takes the next
    worker 1     2   4
    results    1 2 3 4 5 ...      given back in order, at most two a worker ahead

A worker is a fresh interpreter that talks through its stdin and stdout. It is not forked, since threads and locks do
not survive that; and not of `multiprocessing`, whose workers import the user's main module again. It ends when its
stdin does, so no worker outlives a run, however the run ends. Signals are the parent's affair alone.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO, Any, TypeVar, cast

from ...errors import ConfigError, ParquetLoaderError
from .base import TokenBatch, Tokenizer

__all__ = ["ENDING", "Encode", "WorkerError", "ahead", "encoders", "in_order", "serve", "signals_blocked"]

# What ends a whole group of processes: Ctrl-C, a scheduler, a terminal that is closed.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


Batch = TypeVar("Batch")
Result = TypeVar("Result")
Encode = Callable[[Sequence[str], Sequence[str]], TokenBatch]

_LENGTH = struct.Struct("<Q")
_SECONDS_TO_END = 10.0
_SECONDS_OF_A_WAIT = 0.5


class WorkerError(ParquetLoaderError, RuntimeError):
    """A worker process that ended, or failed in a way that is not the input's."""


def encoders(tokenizer: Tokenizer, workers: int) -> AbstractContextManager[list[Encode]]:
    """What encodes: the tokenizer itself for no workers, or processes with a copy of it each.

    Args:
        tokenizer: must be picklable where there are workers.
        workers: processes; 0 for this process, whose tokenizer has threads of its own.
    """
    return _processes(tokenizer, workers) if workers else _this_process(tokenizer)


@contextmanager
def _this_process(tokenizer: Tokenizer) -> Iterator[list[Encode]]:
    yield [tokenizer.encode]


@contextmanager
def _processes(tokenizer: Tokenizer, workers: int) -> Iterator[list[Encode]]:
    try:
        pickled = pickle.dumps(tokenizer)
    except Exception as error:  # whatever a tokenizer's own code raises
        raise ConfigError(f"the tokenizer cannot be sent to worker processes ({error}). Use workers=0.") from error
    running: list[_Worker] = []
    try:
        running.extend(_Worker(number) for number in range(workers))
        for worker in running:
            worker.send(pickled)
        yield [worker.encode for worker in running]
    finally:
        for worker in running:
            worker.stop()


class _Threads:
    """Threads that run what they are given, in order. Nobody waits for them: an interrupt is answered at once, whatever
    they are in the middle of, and what they then still come to has no reader.
    """

    def __init__(self, count: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._tasks = queue.SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._run, name=f"{name}_{number}", daemon=True).start()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """The result of a call that one of the threads will make."""
        future: Future[Result] = Future()
        self._tasks.put((future, function, arguments))
        return future

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function, arguments = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*arguments))
                except BaseException as error:  # whatever it is, it is for whoever asks for the result
                    future.set_exception(error)
            del task, future, arguments  # may be large, and the next may be long in coming

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, *_: object) -> None:
        for _number in range(self._count):
            self._tasks.put(None)


def _result(future: Future[Result]) -> Result:
    """What the call gave or raised. A signal that comes just before a wait does not end it, so no wait is long."""
    while not wait([future], _SECONDS_OF_A_WAIT).done:
        pass
    return future.result()


def ahead(batches: Iterable[Batch]) -> Generator[Batch, None, None]:
    """The batches; the next one is made on a thread of its own while the caller has one."""
    source = iter(batches)
    with _Threads(1, "pretokenize-read") as thread:
        coming: Future[Batch | None] = thread.submit(next, source, None)
        while (batch := _result(coming)) is not None:
            coming = thread.submit(next, source, None)
            yield batch


def in_order(
    batches: Iterable[Batch], encode_with: Callable[[Batch, Encode], TokenBatch], encoders: Sequence[Encode]
) -> Generator[tuple[Batch, TokenBatch], None, None]:
    """Each batch with its tokens, in order; the next ones are encoded while the caller has one.

    Args:
        batches: taken as they are needed, in the calling thread.
        encode_with: encodes a batch by one of the encoders.
        encoders: each is used by one thread at a time.
    """
    free: queue.SimpleQueue[Encode] = queue.SimpleQueue()
    for encoder in encoders:
        free.put(encoder)

    def encode(batch: Batch) -> tuple[Batch, TokenBatch]:
        encoder = free.get()
        try:
            return batch, encode_with(batch, encoder)
        finally:
            free.put(encoder)

    most = len(encoders) if len(encoders) == 1 else 2 * len(encoders)
    ahead: deque[Future[tuple[Batch, TokenBatch]]] = deque()
    with _Threads(len(encoders), "pretokenize-encode") as threads:
        try:
            for batch in batches:
                ahead.append(threads.submit(encode, batch))
                if len(ahead) > most:
                    yield _result(ahead.popleft())
            while ahead:
                yield _result(ahead.popleft())
        finally:
            for future in ahead:
                future.cancel()


@contextmanager
def signals_blocked() -> Iterator[None]:
    """A process begun within is deaf to `ENDING`, which reach a whole group, from its very first moment."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


class _Worker:
    """One process, used by one thread at a time."""

    def __init__(self, number: int) -> None:
        self._number = number
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        # As many processes as asked for, and not that times the cores.
        environment = os.environ | {
            "PYTHONPATH": paths,
            "RAYON_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
        }
        with signals_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from parquet_loader.pretokenize.tokenizers.workers import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )

    def send(self, pickled: bytes) -> None:
        """Write one message."""
        try:
            _write(cast("IO[bytes]", self._process.stdin), pickled)
        except OSError as error:
            raise self._ended() from error

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        """The texts' tokens, by the process."""
        self.send(pickle.dumps((list(texts), list(origins)), protocol=pickle.HIGHEST_PROTOCOL))
        try:
            answer = _read(cast("IO[bytes]", self._process.stdout))
        except (OSError, ValueError) as error:
            raise self._ended() from error
        if answer is None:
            raise self._ended()
        result = pickle.loads(answer)
        if isinstance(result, BaseException):
            raise result
        return cast("TokenBatch", result)

    def _ended(self) -> WorkerError:
        status = self._process.wait()
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return WorkerError(
            f"worker process {self._number} ended {how}. If the system ran out of memory, use fewer workers or a "
            f"smaller batch_bytes. Rerun the same command to resume after the last finished file."
        )

    def stop(self) -> None:
        """End the process; it has nothing to lose."""
        self._process.kill()
        self._process.wait(_SECONDS_TO_END)
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                cast("IO[bytes]", stream).close()


def _write(stream: IO[bytes], message: bytes) -> None:
    stream.write(_LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """The next message, or None at the end."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    message = stream.read(length)
    return message if len(message) == length else None


def _answer(tokenizer: Tokenizer, request: bytes) -> bytes:
    try:
        texts, origins = pickle.loads(request)
        return pickle.dumps(tokenizer.encode(texts, origins), protocol=pickle.HIGHEST_PROTOCOL)
    except ParquetLoaderError as error:
        return pickle.dumps(error)
    except Exception as error:  # its class may not be known on the other side
        return pickle.dumps(WorkerError(f"the tokenizer failed: {type(error).__name__}: {error}"))


def serve() -> None:
    """A worker's life: a tokenizer, then texts, until there are no more."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    first = _read(requests)
    if first is None:
        return
    tokenizer: Tokenizer = pickle.loads(first)
    while (request := _read(requests)) is not None:
        try:
            _write(answers, _answer(tokenizer, request))
        except BrokenPipeError:
            break  # the run has ended
