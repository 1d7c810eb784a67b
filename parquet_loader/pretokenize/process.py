"""Tokenizing beside a trainer: `background` starts the writer of a growing set as a process of its own.

    trainer  ── lock of the folder, options ──►  writer: pretokenize, published as finished
             ◄── _growing.json, manifest ────
             ── end of a pipe, SIGTERM ─────►  ends, and can be resumed

The writer is a fresh interpreter in a session of its own: it has nothing of the trainer's threads, CUDA, signals,
standard streams or environment of ranks. It is deaf to Ctrl-C in the trainer's terminal. It ends when the trainer says
so, and by itself when it is alone: when its stdin ends or, since a fork of the trainer may keep that open, when its
parent is another one.

Every process of a job may make the same call. On a disk the first to come takes the folder's lock, and hands it on to
the writer, so there is no moment at which a second writer could begin; the others watch. On an object store, which has
no locks, the first rank starts the writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, cast

from ..errors import ConfigError, ParquetLoaderError, StorageError, WriterFailedError
from ..storage.growing import Growing
from ..storage.local import local_error
from ..storage.opening import local_path
from .cli import signals_as_interrupts, warnings_as_lines
from .options import PretokenizeOptions
from .run.pipeline import pretokenize_locked
from .run.progress import reporting
from .run.ranks import place_from_environment
from .run.resume import few, settings_of, source_changes
from .sources.registry import refuse_unknown_elsewhere
from .tokenizers.huggingface import load_tokenizer
from .tokenizers.workers import ENDING
from .write.folder import OutputFolder
from .write.journal import differences
from .write.lock import has_locks, release
from .write.manifest import Manifest
from .write.watch import last_line

__all__ = ["Background", "background", "serve"]


_PATIENCE_SECONDS = 60.0  # without a heartbeat, before a writer is taken for dead
_BEGIN_SECONDS = 300.0  # before the first of a writer that another process has started: it may download a tokenizer
_END_SECONDS = 30.0  # that a writer may take to say why it ends
_LOOK_SECONDS = 0.1
_LOOK_SECONDS_AWAY = 1.0  # on an object store
_ALONE_SECONDS = 1.0
_EXIT_ERROR = 2
# What the trainer's environment says of itself, and not of the writer.
_NOT_FOR_WRITER = ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS", "OMP_NUM_THREADS")


class Background:
    """The writer of a growing set, which this process, another one or nobody has started; `background` makes one.

    Attributes:
        folder: where the set is: what a loader reads with ``follow=True``.
        log: the file that has what the writer says; None if this process has not started it.
    """

    def __init__(self, options: PretokenizeOptions, output: OutputFolder, replaced: Manifest | None) -> None:
        self.folder: str = options.output
        self.log: Path | None = None
        self._log_begin = 0  # what is in it from there on is the writer's
        self._output = output
        self._replaced = replaced  # of a complete set, which is there until the writer removes it
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._look_seconds = _LOOK_SECONDS if self._output.filesystem.is_local else _LOOK_SECONDS_AWAY
        self._next_look = 0.0
        self._heard = ("", time.monotonic())  # the last heartbeat, and when it was seen here
        self._complete = False
        self._read = (0, time.monotonic())  # tokens that were read when `describe` was called last, and when

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def started(self) -> bool:
        """Whether this process has started the writer."""
        return self._process is not None

    @property
    def done(self) -> bool:
        """Whether the set is complete; nothing is raised if it will not be.

        Raises:
            StorageError: the folder cannot be read.
        """
        if not self._complete:
            manifest = self._output.read_manifest()
            self._complete = manifest is not None and manifest != self._replaced
        return self._complete

    def poll(self) -> bool:
        """Whether the set is complete. Ten times a second, and once on an object store, the folder is looked at for it.

        Raises:
            WriterFailedError: it is not, and its writer has ended; says why.
        """
        status = None if self._process is None else self._process.poll()
        if status is None and time.monotonic() < self._next_look:
            return self._complete
        self._next_look = time.monotonic() + self._look_seconds
        try:
            if self.done:
                return True
            growing, is_seen = self.progress(), True
        except StorageError:  # an object store has bad moments; of one that stays so, the heartbeat is not heard
            growing, is_seen = None, False
        if self._process is not None:
            if status or (status == 0 and is_seen):
                raise WriterFailedError(self._told_by(growing))
            return False
        beat = "" if growing is None else growing.updated
        now = time.monotonic()
        if is_seen and beat != self._heard[0]:
            self._heard = (beat, now)
        if growing is not None and growing.state == "failed":
            again = _again(growing.files, by_others=0).capitalize()
            raise WriterFailedError(f"the writer of {self.folder} failed: {str(growing.reason).rstrip('.')}. {again}.")
        if now - self._heard[1] > _PATIENCE_SECONDS:
            last = f"has only {growing.describe()}" if growing is not None else "does not say that it grows"
            last = f"the folder {last}" if is_seen else "the folder cannot be read"
            raise WriterFailedError(
                f"nothing was heard of the writer of {self.folder} for {_PATIENCE_SECONDS:.0f} s: {last}. "
                f"Start it again to resume."
            )
        return False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the set is complete, or for so many seconds; returns whether it is.

        Raises:
            WriterFailedError: its writer has ended before.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self.poll():
            left = self._look_seconds if end is None else min(self._look_seconds, end - time.monotonic())
            if left <= 0:
                return False
            time.sleep(left)
        return True

    def progress(self) -> Growing | None:
        """How far the writer is, as the folder says; None before it says anything, and once the set is complete.

        Raises:
            StorageError: the folder cannot be read.
        """
        return self._output.read_growing()

    def describe(self, stats: Mapping[str, Any], *, ranks: int = 1) -> str:
        """Both sides in one line, for a log of training::

            read 1,536,000 tokens (51,200/s), 0.0 s waited for files; written 9,000,000 (212,000/s), 30 % of the text

        What is read per second is since the last call. Nothing is raised where the folder cannot be read just now.

        Args:
            stats: of a loader that reads the set: ``loader.stats()``.
            ranks: how many there are; what one of them has read stands for all.
        """
        tokens, now = ranks * int(stats["tokens"]), time.monotonic()
        before, then = self._read
        self._read = (tokens, now)
        rate = (tokens - before) / max(now - then, 1e-3)
        read = f"read {tokens:,} tokens ({rate:,.0f}/s), {stats['wait_growth_seconds']:.1f} s waited for files"
        try:
            growing = None if self._complete else self.progress()
            if growing is None:
                return f"{read}; {'all is written' if self.done else 'nothing is written yet'}"
        except StorageError:
            return f"{read}; what is written cannot be read just now"
        made = "" if growing.tokens_per_second is None else f" ({growing.tokens_per_second:,.0f}/s)"
        expected = growing.expected or {}
        share = ""
        if expected.get("bytes_total"):
            share = f", {min(1.0, expected.get('bytes_done', 0) / expected['bytes_total']):.0%} of the text"
        failed = f"; the writer failed: {growing.reason}" if growing.state == "failed" else ""
        return f"{read}; written {growing.tokens:,}{made}{share}{failed}"

    def close(self) -> None:
        """End the writer, if this process has started it: it says so in the folder, and can be resumed."""
        process = self._process
        if process is None or self._owner != os.getpid():  # in a fork it is the parent's
            return
        try:
            if process.poll() is None:
                is_done = False
                with contextlib.suppress(StorageError):
                    is_done = self.done
                if not is_done:  # else it is about to end by itself
                    process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            with contextlib.suppress(OSError):
                cast("IO[bytes]", process.stdin).close()

    def _told_by(self, growing: Growing | None) -> str:
        """Why the writer that this process has started ended, and what to do."""
        process = cast("subprocess.Popen[bytes]", self._process)
        how, was = _ending(process.returncode), "was " if process.returncode < 0 else ""
        own = growing if growing is not None and growing.writer.pid == process.pid else None
        if own is not None and own.state == "failed" and not was:  # else its watcher has said it, who knows less
            why = f"{how}: {own.reason}"
        else:
            why = f"{how}: {said}" if (said := last_line(self.log, self._log_begin)) else how
        why += "" if why[-1:] == "." else "."
        there = 0 if growing is None else growing.files
        again = _again(there, by_others=there if own is None else 0)
        return f"the writer of {self.folder} {was}{why} See {self.log}, and {again}."

    def _begin(self, start: Callable[[], tuple[subprocess.Popen[bytes], Path, int] | None]) -> None:
        """Wait until the folder says that the set grows or is complete, so that a loader can open it.

        Args:
            start: starts the writer, or returns None if another process has started one. It is tried again: the
                writer of a job that was killed may be about to end.

        Raises:
            WriterFailedError: neither will come.
        """
        end = time.monotonic() + _BEGIN_SECONDS
        found = self.progress()  # by an earlier writer, or by one that writes already: the next heartbeat tells
        while not self.done:
            if self._process is None and (started := start()) is not None:
                self._process, self.log, self._log_begin = started
            growing = self.progress()
            if growing is not None and growing.state == "growing":
                if self._process is not None and growing.writer.pid == self._process.pid:
                    return
                if self._process is None and (found is None or growing.updated != found.updated):
                    return
            if self._process is not None:
                self.poll()
            elif time.monotonic() > end:
                self.poll()
                raise WriterFailedError(
                    f"output={self.folder!r} is locked by a run that does not publish its files as they are finished. "
                    f"Wait for it, or choose another folder."
                )
            time.sleep(self._look_seconds)


def background(
    options: PretokenizeOptions,
    *,
    log: str | os.PathLike[str] | None = None,
    starts: bool | None = None,
    nice: int = 10,
    threads: int | None = None,
) -> Background:
    """Tokenize in a process of its own, as long as this one lives and the context is not left::

        with background(PretokenizeOptions(inputs=("corpus",), output="tokens", tokenizer="gpt2.json")) as writer:
            ...  # train on writer.folder

    Returns once the folder says that the set grows, so that a loader can open it: after the seconds that it takes to
    load the tokenizer, or at once if the set is complete. A complete set is compared by its options and the names of
    its inputs, which are not read again, or by the fingerprint of a source of your own. With ``overwrite`` one of
    others is replaced, and then it is of these: it is not replaced again when the job is restarted. An unfinished one
    is resumed.

    Every rank of a job may make the same call; one starts the writer, the others watch.

    Args:
        options: what to do. ``publish`` is always ``"as-finished"``.
        log: the file to which the writer's output is added; None for one beside a local folder, ``<output>.log``, or in
            the folder for temporary files.
        starts: whether this process may start the writer; None for the first to come, and on an object store for the
            first rank, as torchrun, SLURM or Kubernetes say, or the only one.
        nice: how much the writer gives way to the trainer, where the system knows that; 0 for not at all.
        threads: of the tokenizer; None for one for each core. ``options.workers`` has processes instead.

    Raises:
        ConfigError: options that cannot work, or the complete set in the folder is of others, or of other inputs.
        StorageError: the folder or the log cannot be written.
        WriterFailedError: the writer ended before it had begun; says why.
    """
    options = replace(options, publish="as-finished")
    refuse_unknown_elsewhere("hf" if options.preset is not None else options.source)
    output = OutputFolder(options.output, options.storage_options)
    writer = Background(options, output, _to_replace(output, options))

    def start() -> tuple[subprocess.Popen[bytes], Path, int] | None:
        lock, may_start = _may_start(output, starts)
        try:
            if not may_start or writer.done:  # another process's writer may have completed it just now
                return None
            path = _log_path(options.output) if log is None else Path(log)
            begin = path.stat().st_size if path.exists() else 0
            return _start(options, lock, path, nice, threads), path, begin
        finally:
            if lock is not None:
                release(lock)  # the writer has inherited it

    try:
        writer._begin(start)
    except BaseException:
        writer.close()
        raise
    return writer


def _to_replace(output: OutputFolder, options: PretokenizeOptions) -> Manifest | None:
    """A complete set of other options or inputs, as far as these tell without a look at the input; None for no such.

    Raises:
        ConfigError: there is one, and it may not be replaced.
    """
    manifest = output.read_manifest()
    if manifest is None:
        return None
    tokenizer = load_tokenizer(options.tokenizer, eos_token=options.eos_token, need_eos=options.append_eos)
    settings = {"packing": None} | settings_of(tokenizer, options)
    changed = source_changes(options, manifest.fingerprint)
    changed += differences({name: manifest.fingerprint.get(name) for name in settings}, settings)
    if not changed:
        return None
    if not options.overwrite:
        raise ConfigError(
            f"output={output.name!r} is not empty: it holds a complete set of other inputs or options "
            f"({few(changed)}). Choose another folder, or give overwrite=True to replace it."
        )
    return manifest


def _may_start(output: OutputFolder, starts: bool | None) -> tuple[int | None, bool]:
    """The lock of the folder, where it has one and it is free, and whether this process is to start the writer."""
    if starts is False:
        return None, False
    if has_locks(output.filesystem):
        try:
            return output.lock(), True
        except ConfigError:  # somebody writes
            return None, False
    place = place_from_environment(os.environ) if starts is None else None
    return None, place is None or place.rank == 0


def _log_path(output: str) -> Path:
    path = local_path(output)
    if path is not None:
        return Path(f"{path}.log")
    digest = hashlib.sha256(output.encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"pretokenize-{digest}.log"


def _start(
    options: PretokenizeOptions, lock: int | None, log: Path, nice: int, threads: int | None
) -> subprocess.Popen[bytes]:
    try:
        message = pickle.dumps((options, lock, os.getpid(), nice))
    except Exception as error:  # whatever somebody's storage options raise
        raise ConfigError(f"options cannot be sent to the writer's process: {error}.") from error
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_WRITER}
    environment |= {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "TOKENIZERS_PARALLELISM": "true",
        "OPENBLAS_NUM_THREADS": "1",
        **({} if threads is None else {"RAYON_NUM_THREADS": str(threads)}),
    }
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        stream = log.open("ab")
    except OSError as error:
        raise local_error("write", str(log), error) from error
    with stream:
        process = subprocess.Popen(
            [sys.executable, "-c", "from parquet_loader.pretokenize.process import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            env=environment,
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,
        )
    with contextlib.suppress(BrokenPipeError):  # it has ended: whoever asks for its end learns why
        cast("IO[bytes]", process.stdin).write(message)
        cast("IO[bytes]", process.stdin).flush()
    return process


def _again(files: int, *, by_others: int) -> str:
    """What to do about a writer that has failed, with so many files of its set finished, or left by those before it."""
    if by_others:
        return f"start it again once that is mended; the {by_others:,} files there are of a writer before it"
    return "start it again to resume" if files else "start it again once that is mended; it had finished no file"


def _ending(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


# --- the writer's side


def serve() -> NoReturn:
    """A writer's life: options, then what `pretokenize` does, and its end."""
    sys.stdout, sys.stderr = _patient(1), _patient(2)
    for number in (signal.SIGINT, signal.SIGTERM):  # whatever the trainer makes of them
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    with os.fdopen(os.dup(0), "rb") as stream:
        options, lock, trainer, nice = pickle.load(stream)
    if hasattr(os, "nice"):
        os.nice(nice)
    status: int = _EXIT_ERROR
    try:
        with signals_as_interrupts(), warnings_as_lines("pretokenize"):
            threading.Thread(target=_end_when_alone, args=(trainer,), name="pretokenize-trainer", daemon=True).start()
            with reporting() as progress:
                # No job that comes after the trainer's end shall take this for a writer that goes on.
                summary = pretokenize_locked(options, lock, progress=progress, may_beat=lambda: _has(trainer))
                print(summary.describe())
            status = 0
    except ParquetLoaderError as error:
        print(f"pretokenize: error: {error}", file=sys.stderr)
    except KeyboardInterrupt as error:
        status = 128 + (error.args[0] if error.args else signal.SIGINT)
        print("pretokenize: interrupted; it can be resumed from the last finished file", file=sys.stderr)
    except BaseException:
        sys.excepthook(*cast("tuple[type[BaseException], BaseException, TracebackType]", sys.exc_info()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a thread may be within an encode that takes minutes


class _Patient(io.RawIOBase):
    """What goes to a descriptor, or nowhere where it cannot be written: a log on a full disk ends no writer."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            return os.write(self._descriptor, data)
        return len(data)


def _patient(descriptor: int) -> io.TextIOWrapper:
    stream = io.BufferedWriter(_Patient(descriptor))
    return io.TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _has(trainer: int) -> bool:
    """Whether the trainer lives, as far as the system tells: on Windows a process keeps its parent's number."""
    return os.name != "posix" or os.getppid() == trainer


def _end_when_alone(trainer: int) -> None:
    """End this process as SIGTERM does, once the trainer has ended, however that was."""
    while _has(trainer):
        # On Windows there is no `select` on pipes.
        if (os.name != "posix" or select.select([0], [], [], _ALONE_SECONDS)[0]) and not os.read(0, 1):
            break
    print("pretokenize: the process that started this one has ended", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_END_SECONDS)
    os._exit(128 + signal.SIGTERM)
