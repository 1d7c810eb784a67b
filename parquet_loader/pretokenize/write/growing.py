"""Says of a set, while it is written, that it grows: the marker, its heartbeat, and why the writer failed.

A thread of its own writes the marker, so the heart beats as long as the process lives, however long a document takes or
an input is silent. Only that thread writes until the run has ended. If the process is killed, its watcher says so.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone

from ...errors import ParquetLoaderError, StorageError
from ...storage.growing import HEARTBEAT_SECONDS, Growing, Writer
from .folder import OutputFolder
from .manifest import FileEntry
from .watch import watched

__all__ = ["Marker", "marked_as_growing"]


_PROGRAM = "parquet_loader.pretokenize"
_SECONDS_OF_A_RATE = 60.0
_SECONDS_TO_END = 30.0
# What is given up so that the marker can be written when the disk is full; it cannot be compressed.
_RESERVE_NAME = "reserve"
_RESERVE_BYTES = 16_384


class Marker:
    """What the run tells its marker; `marked_as_growing` makes one.

    Args:
        output: the folder.
        row_group_tokens: what the writer aims at.
        published: the files that lie in the folder already.
        documents: that are in these; where they are packed, the files know of rows alone.
        may_beat: asked before each heartbeat; without these it is not believed that the writer will go on.

    Attributes:
        writer: this process.
        since: when it began.
    """

    def __init__(
        self,
        output: OutputFolder,
        row_group_tokens: int,
        published: Sequence[FileEntry],
        documents: int,
        may_beat: Callable[[], bool],
    ) -> None:
        self._output = output
        self._may_beat = may_beat
        self._row_group_tokens = row_group_tokens
        self.writer = Writer(program=_PROGRAM, host=socket.gethostname(), pid=os.getpid())
        self.since = _now()
        self._published = (published, documents)
        self._expected: Mapping[str, int] | None = None
        self._encoded: int | None = None
        self._encoded_at = deque([(time.monotonic(), sum(each.tokens for each in published))])
        self._beats: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._beat, name="pretokenize-heartbeat", daemon=True)

    def published(self, files: Sequence[FileEntry], documents: int) -> None:
        """These are all that lie in the folder now, and so many documents are in them."""
        self._published = (files, documents)
        self._beats.put(True)

    def encoded(self, tokens: int, expected: Mapping[str, int] | None) -> None:
        """So many tokens there are, in files or not yet, and so much will there be; told with the next beat."""
        self._encoded, self._expected = tokens, expected

    def begin(self) -> None:
        """Write the marker, and let the heart beat.

        Raises:
            StorageError: it cannot be written.
        """
        self._output.write_growing(self._growing().to_json())
        if self._output.filesystem.is_local:
            self._output.write_staged(_RESERVE_NAME, os.urandom(_RESERVE_BYTES))
        self._thread.start()

    def end(self, reason: str | None) -> None:
        """Stop the heart; write why the run failed, or remove the marker of a set that is complete."""
        self._beats.put(False)
        self._thread.join(_SECONDS_TO_END)
        if reason is None:
            self._output.remove_growing()
        else:
            failed = replace(self._growing(), state="failed", reason=reason, tokens_per_second=None).to_json()
            try:
                self._output.write_growing(failed)
            except StorageError:
                self._output.remove_staged(_RESERVE_NAME)
                self._output.write_growing(failed)

    def _beat(self) -> None:
        while True:
            try:
                if not self._beats.get(timeout=HEARTBEAT_SECONDS):
                    return
            except queue.Empty:
                pass
            if not self._may_beat():
                continue
            with suppress(StorageError):  # a beat is left out; the run itself finds out what is wrong
                self._output.write_growing(self._growing().to_json())

    def _growing(self) -> Growing:
        files, documents = self._published
        tokens = sum(each.tokens for each in files)
        expected = self._expected
        if expected is not None:  # of the batch before that which a file has just been finished with
            least = {"documents": documents, "tokens": tokens}
            expected = {name: max(count, least.get(name, 0)) for name, count in expected.items()}
        return Growing(
            writer=self.writer,
            since=self.since,
            updated=_now(),
            files=len(files),
            documents=documents,
            tokens=tokens,
            row_group_tokens=self._row_group_tokens,
            tokens_per_second=self._rate(),
            expected=expected,
        )

    def _rate(self) -> float | None:
        if self._encoded is None:
            return None
        now, tokens = time.monotonic(), self._encoded
        self._encoded_at.append((now, tokens))
        while len(self._encoded_at) > 2 and now - self._encoded_at[0][0] > _SECONDS_OF_A_RATE:
            self._encoded_at.popleft()
        began, before = self._encoded_at[0]
        return round((tokens - before) / (now - began), 1) if now > began else None


@contextmanager
def marked_as_growing(
    output: OutputFolder,
    row_group_tokens: int,
    published: Sequence[FileEntry],
    documents: int,
    may_beat: Callable[[], bool] = lambda: True,
) -> Iterator[Marker]:
    """Say of a set that it grows, for the length of a block that completes it; say why, if it does not.

    Where this process cannot say so any more, another one does. The arguments are those of `Marker`.
    """
    marker = Marker(output, row_group_tokens, published, documents, may_beat)
    with watched(output, marker.writer, marker.since):
        try:
            marker.begin()
            yield marker
        except BaseException as error:
            with suppress(Exception):  # the first error is the one to tell
                marker.end(_reason(error))
            raise
        marker.end(None)


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        number = next((each for each in error.args if isinstance(each, int)), signal.SIGINT)
        return f"ended by {signal.Signals(number).name}; rerun the same command to resume"
    said = " ".join(str(error).split())
    if isinstance(error, ParquetLoaderError) and said:
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
