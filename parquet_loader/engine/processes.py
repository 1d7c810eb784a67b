"""Helpers: processes that read, decode and cut for a loader, each a fresh interpreter.

    loader's thread ──► Request ──► helper: read, decode, cut ──► the window's segment
                    ◄── Answer: where documents begin

They are started as plain programs: nothing of the trainer is forked or imported, and no main module needs a guard. Each
thread of the prefetcher has a connection of its own, to one of the helpers, and waits for the answer without the
interpreter's lock. A helper reads for all of its connections at once, and decodes for one at a time.

Nothing of a helper is worth keeping, so it is ended by SIGKILL. It ends by itself when it is alone: when its socket
says so, or, since a fork of the loader's process may keep that open, when its parent is another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from ..errors import ConfigError, HelperError, LoaderClosedError
from ..interrupts import under
from ..storage.base import Storage
from ..storage.remote import FsspecStorage
from . import wire
from .segments import Segment, SegmentPool, new_file
from .wire import Answer, BandWork, ClosedError, Request, Wire
from .work import Hold, Keep, SourceWork, TaskWork, WindowWork

__all__ = ["Connection", "Helpers", "check_storage"]

# What a helper runs. `python -m` would take it for a command. This very package, wherever it was found, and a user's
# storage from where the loader's process would import it: relative places are those of when this module was imported.
_PROGRAM = """
import importlib.util, os, sys
at = sys.argv.index("--")
file, sys.path[:] = sys.argv[at + 1], sys.argv[at + 2 :]
del sys.argv[at:]
folder = [os.path.dirname(file)]
spec = importlib.util.spec_from_file_location("parquet_loader", file, submodule_search_locations=folder)
sys.modules["parquet_loader"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from parquet_loader.engine.helper import main
main()
"""
_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, "__init__.py"))
try:
    _HERE = os.getcwd()
except OSError:  # it was deleted
    _HERE = os.sep
_LOOK_SECONDS = 5  # between looks at whether a helper lives, while nothing comes: a fork may have its end of the socket
_END_SECONDS = 10.0  # that one may take to end when it is killed: in the middle of a read that hangs, it cannot


class _Helper:
    """A process."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, sources: int) -> None:
        self.process = process
        self.retries = [0] * sources  # by source, that have been told of
        self._control = control  # the helper ends when it is closed

    def kill(self) -> None:
        """End it."""
        self.process.kill()
        self._control.close()

    def forget(self) -> None:
        """In a fork: it is the parent's."""
        self.process.returncode = 0
        self._control.close()


class Connection(Wire):
    """A thread's connection to a helper."""

    def __init__(self, end: socket.socket, helper: _Helper, segments: SegmentPool, over: threading.Event) -> None:
        super().__init__(end, _LOOK_SECONDS)
        self.helper = helper
        self._segments = segments
        self._over = over  # set when helpers are not wanted any more
        self._windows: dict[int, WindowWork] = {}  # which the helper knows, by segments

    def do(
        self, work: TaskWork | BandWork, window: WindowWork, segment: Segment, *, hold: Hold, keep: Keep, rest: bool
    ) -> Answer:
        """Have something done, and wait for it.

        Args:
            work, window: what.
            segment: of the window.
            hold, keep: see `run_task`.
            rest: whether the helper gives back to the system what it has freed, before it answers.

        Raises:
            HelperError: the helper has ended.
            LoaderClosedError: the helpers were ended.
            Exception: what doing it raised.
        """
        known = self._windows.get(segment.number)
        forgotten = tuple(self._windows.keys() - self._segments.numbers)
        for number in forgotten:
            del self._windows[number]
        news = None if known is window else window
        self._windows[segment.number] = window
        try:
            request = Request(segment.number, segment.size, news, forgotten, rest, work)
            self.send(request, [segment.file] if known is None else [])
            return self._answer(hold, keep)
        except ClosedError:
            raise self._end_error() from None

    def _answer(self, hold: Hold, keep: Keep) -> Answer:
        refusal: ConfigError | None = None
        with contextlib.ExitStack() as held:
            while True:
                message, _ = self.receive()
                if isinstance(message, Answer):
                    return message
                if isinstance(message, wire.Failed):
                    raise refusal or _error_of(message)
                if isinstance(message, wire.Logged):
                    logging.getLogger(message.name).log(message.level, "%s", message.text)
                elif isinstance(message, (wire.Hold, wire.Keep)):
                    try:
                        if isinstance(message, wire.Keep):
                            keep(*message)
                        else:
                            held.enter_context(hold(*message))
                    except ConfigError as error:
                        refusal = error
                    self.send(refusal is None)
                else:
                    assert isinstance(message, wire.Release)
                    held.close()

    def idle(self) -> None:
        """See `Wire`."""
        if self.helper.process.poll() is not None:
            raise ClosedError

    def _end_error(self) -> Exception:
        if self._over.is_set():
            return LoaderClosedError("closed while a decoding process was waited for")
        process = self.helper.process
        try:
            status: int | None = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        return HelperError(
            f"decoding process {process.pid} {_ending(status)}; no token is lost, and asking for the next batch goes "
            "on with new processes"
        )


_ADVICE = {
    signal.SIGKILL: ", as the system does when memory is short: leave it more than budget_bytes and the processes "
    "themselves, or give a smaller budget_bytes, or fewer processes",
    signal.SIGBUS: ", as when a disk has no room for the temporary files that share memory where there is no memfd",
}


def _ending(status: int | None) -> str:
    """What became of a process."""
    if status is None:
        return "does not answer any more"
    if not status:
        return "ended; how is not known here, where something else waits for this program's children"
    if status > 0:
        return f"ended with exit status {status}; what it wrote to stderr says why"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"was ended by signal {-status}"
    return f"was ended by {number.name}{_ADVICE.get(number, '')}"


def _error_of(failed: wire.Failed) -> BaseException:
    """The error that a helper has raised, and what it came from."""
    error: BaseException | None = None
    for pickled in reversed(failed.errors):
        cause = error
        found: BaseException = pickle.loads(pickled)
        found.__cause__ = cause
        error = found
    assert error is not None
    if failed.text:
        last = error
        while last.__cause__ is not None:
            last = last.__cause__
        last.__cause__ = HelperError(f"in a decoding process:\n{failed.text}")
    return error


def check_storage(storage: Storage, processes: int) -> None:
    """Refuse a storage that no other process can open."""
    instead = f"processes={processes} cannot read {storage.root}"
    if isinstance(storage, FsspecStorage) and storage.is_in_memory:
        raise ConfigError(f"{instead}: it is in this process's memory; use threads, or copy the files to a disk")
    kind = type(storage)
    if kind.__module__ == "__main__":
        raise ConfigError(
            f"{instead}: they import no main module, in which its class {kind.__qualname__} is; put that into a module "
            "of its own, or use threads"
        )
    try:
        pickle.dumps(storage)
    except Exception as error:
        raise ConfigError(f"{instead}: a {kind.__qualname__} cannot be pickled ({error}); use threads") from error


class Helpers:
    """The helpers of an engine. They start with the first request, and end with `end`.

    Args:
        count: processes.
        connections: threads that will ask for one each.
        sources: what they work on.
        segments: where they put slices.
    """

    def __init__(self, count: int, connections: int, sources: Sequence[SourceWork], segments: SegmentPool) -> None:
        self._count = count
        self._sources = sources
        self._connections = connections
        self.segments = segments
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._helpers: list[_Helper] = []
        self._waiting: list[Connection] = []  # for threads
        self._given: list[Connection] = []
        self._mine = threading.local()
        self._problem = ""  # why they could not be started

    def connection(self) -> Connection:
        """This thread's. Not for the main thread.

        Raises:
            HelperError: no helper could be started.
            LoaderClosedError: ended.
        """
        found: Connection | None = getattr(self._mine, "connection", None)
        if found is None:
            with self._lock:
                if self._over.is_set():
                    raise LoaderClosedError("closed while decoding processes were started")
                if self._problem:  # another thread met it, when some of them had been started
                    raise HelperError(self._problem)
                if not self._helpers:
                    self._start()
                found = self._mine.connection = self._waiting.pop()
                self._given.append(found)
        return found

    def _start(self) -> None:
        if not sys.executable:
            raise HelperError("cannot start a decoding process: sys.executable names no Python; use threads")
        setup = pickle.dumps(list(self._sources), protocol=5)
        file = new_file()
        try:
            left = memoryview(setup)
            while left:
                left = left[os.write(file, left) :]
            for number in range(self._count):
                self._start_one(file, len(range(number, self._connections, self._count)))
        except OSError as error:
            for helper in self._helpers:
                helper.kill()
            self._problem = f"cannot start a decoding process: {error}; use threads in place of processes"
            raise HelperError(self._problem) from error
        finally:
            os.close(file)

    def _start_one(self, setup: int, connections: int) -> None:
        import fcntl  # there is none on Windows, where `check_storage` refuses

        ours: list[socket.socket] = []
        theirs: list[socket.socket] = []
        paths = [os.path.join(_HERE, path) for path in sys.path if isinstance(path, str)]
        numbers: list[int] = []
        try:
            for _ in range(connections + 1):
                here, there = socket.socketpair()
                ours.append(here)
                theirs.append(there)
            # Beyond the standard streams: where these are closed, new descriptors take their numbers.
            for number in (setup, *(end.fileno() for end in theirs)):
                numbers += [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)]
            with _interrupts_blocked():
                process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(os.getpid()), *map(str, numbers), "--", _PACKAGE, *paths],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=numbers,
                    # NumPy would have it start a thread for each core, and there is nothing here for them to do.
                    env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
                )
        except BaseException:
            for end in ours:
                end.close()
            raise
        finally:
            for end in theirs:
                end.close()
            for number in numbers:
                os.close(number)
        helper = _Helper(process, ours[0], len(self._sources))
        self._helpers.append(helper)
        self._waiting += [Connection(end, helper, self.segments, self._over) for end in ours[1:]]

    def end(self, *, wait: bool = True) -> None:
        """End them.

        Args:
            wait: until they have ended.
        """
        if os.getpid() != self._pid:  # in a fork, whose copy of the lock may be held for ever
            for helper in self._helpers:
                helper.forget()
            for connection in (*self._waiting, *self._given):
                connection.close()
            return

        def end() -> None:
            self._over.set()
            for connection in (*self._waiting, *self._given):
                connection.shut()
            for helper in self._helpers:
                helper.kill()

        under(self._lock, end)
        if wait:
            for helper in self._helpers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    helper.process.wait(_END_SECONDS)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """What is started in it does not get SIGINT, which Ctrl-C sends to a whole group of processes, until it asks to."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
