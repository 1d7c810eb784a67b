"""Says of a writer that was killed that it has failed: whoever follows its set learns of it at once.

    writer  ── folder, who writes ──►  watcher, which waits for the end of the pipe
    killed ✗                           reads the marker: still that writer's, and "growing"  ─►  "failed", and why

The watcher is a process of its own, of about 11 MB: whatever else kills a process for its memory, that one is not it.
It imports nothing of the library before it is needed. Nothing but the writer's end can end the pipe, and nothing but
the writer and its watcher holds it: what the writer starts does not inherit it, and a fork of the writer lets go of it.
A writer that ends in its own words, well or not, ends its watcher too.

A machine that is lost, or a container of which every process is killed, takes the watcher along. Then the heartbeat has
to tell.
"""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from ...errors import ConfigError
from ...storage.growing import Growing, Writer
from ..tokenizers.workers import signals_blocked
from .folder import OutputFolder
from .lock import keep_from_forks, release

__all__ = ["last_line", "tell", "watched"]


_WATCH = """
import sys
message = sys.stdin.buffer.read()
from parquet_loader.pretokenize.write.watch import tell
tell(message)
"""
_KILLED = "it was killed, as a system does where memory runs out, or ended without a word"
_SECONDS_TO_TELL = 60.0  # after which silence has told
_PAUSE_SECONDS = 0.1
_LOG_BYTES = 4096


@contextmanager
def watched(output: OutputFolder, writer: Writer, since: str) -> Iterator[None]:
    """Have a folder's marker say so if this process ends within the block without a word.

    Args:
        output: the folder, which this process has claimed.
        writer: this process, as the marker has it.
        since: likewise.
    """
    try:
        message = pickle.dumps((output, writer, since, _log()))
        process, pipe = _start()
    except Exception:  # whatever storage options raise, or no process more: the heartbeat tells, and the run goes on
        yield
        return
    try:
        with suppress(OSError):  # it has ended already, of whatever
            os.write(pipe, message)
        yield
    finally:
        process.kill()  # all that is to say has been said
        process.wait()
        release(pipe)


def _start() -> tuple[subprocess.Popen[bytes], int]:
    """A watcher, and the descriptor of its pipe."""
    theirs, ours = os.pipe()
    try:
        keep_from_forks(ours)
        with signals_blocked():  # a Ctrl-C, or a scheduler's SIGTERM for all, is the writer's to tell of
            process = subprocess.Popen(
                [sys.executable, "-c", _WATCH],
                stdin=theirs,
                # It holds nothing open that somebody may wait for the end of.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,
            )
    except BaseException:
        release(ours)
        raise
    finally:
        os.close(theirs)
    return process, ours


def _log() -> tuple[str, int] | None:
    """The file to which this process's stderr goes, on systems that tell, and its size; None where it is none."""
    with suppress(OSError):
        status = os.fstat(2)
        if stat.S_ISREG(status.st_mode):
            return os.readlink("/proc/self/fd/2"), status.st_size
    return None


def last_line(log: str | os.PathLike[str] | None, begin: int) -> str:
    """What a log says last, from a place on: what is before it is of an earlier run; "" where there is nothing."""
    if log is None:
        return ""
    try:
        with open(log, "rb") as stream:
            stream.seek(max(begin, os.fstat(stream.fileno()).st_size - _LOG_BYTES))
            lines = stream.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


# --- the watcher's side


def tell(message: bytes) -> None:
    """Write into the marker that its writer has failed, unless it says so, or is another's already.

    Args:
        message: what `watched` has written into the pipe.
    """
    limit = threading.Timer(_SECONDS_TO_TELL, os._exit, (1,))
    limit.daemon = True
    limit.start()
    output: OutputFolder
    output, writer, since, log = pickle.loads(message)

    def left() -> Growing | None:
        growing = output.read_growing()
        is_its = growing is not None and (growing.state, growing.writer, growing.since) == ("growing", writer, since)
        return growing if is_its else None

    # Where there are no locks, one that is just taking over may be said to have failed. Its next heartbeat mends that.
    lock: int | None = None
    while left() is not None:
        try:
            lock = output.lock()
            break
        except ConfigError:  # another run holds it: that goes on with the set, and then the marker is its own, or ends
            time.sleep(_PAUSE_SECONDS)
    else:
        return
    try:
        growing = left()
        if growing is not None:
            said = last_line(*log) if log is not None else ""
            reason = f"{_KILLED}; the last line of its log is: {said}" if said else _KILLED
            output.write_growing(replace(growing, state="failed", reason=reason, tokens_per_second=None).to_json())
    finally:
        if lock is not None:
            release(lock)
