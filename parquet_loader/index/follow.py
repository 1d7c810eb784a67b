"""Sets that are still being written, by whoever only ever adds whole files after those that are there.

    part-0   part-1                _growing.json             a prefix: more will come
    part-0   part-1   part-2       _manifest.json            complete

A `Follower` looks at such a set now and then. What it knows is the index of a prefix, and whether that is all. A
listing that is made while files appear may show a file and lack the one before it, so new files are taken from a second
listing, as far as the first one went: whatever comes before these had been there when it began.

Whether a set is complete is told by a manifest, a file ``_COMPLETE`` or ``_SUCCESS``, or ``complete_after``; that no
more will come although it is not, by the writer's marker and its heartbeat, or by the reader's patience.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..errors import (
    ConfigError,
    FileChangedError,
    GrowthTimeoutError,
    LoaderClosedError,
    LoaderInUseError,
    ParquetLoaderError,
    PathNotFoundError,
    WriterFailedError,
    of_file_below,
)
from ..interrupts import Turn
from ..storage.base import FileInfo, Storage, ways_after_change
from ..storage.growing import COMPLETE_NAMES, GROWING_NAME, GROWTH_NAMES, MANIFEST_NAME, Growing
from ..storage.kinds import beside, kind_of
from ..storage.local import LocalStorage
from ..storage.remote import FsspecStorage
from .build import NoTokenYetError
from .index import DatasetIndex
from .pinned import StoppableStorage

__all__ = ["Follower", "Patience"]

_NOTICE_SECONDS = 0.1  # between looks at what another thread has found
_SKEW_SECONDS = 60.0  # that the clock of a storage may be ahead of this one's

_logger = logging.getLogger("parquet_loader")

# The index of files, which begin with those of an index that was made of them before.
ReadIndex = Callable[[Storage, list[FileInfo], "DatasetIndex | None"], DatasetIndex]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a set is waited for.

    Attributes:
        wait_seconds: without growth, until whoever waits for more is told; at least until the set counts as complete.
        complete_after: seconds without growth after which a set counts as complete; None for never.
    """

    wait_seconds: float
    complete_after: float | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look has found.

    Attributes:
        files: of the set, by path.
        newest: when the last of them was written, in seconds since 1970; None where the storage does not tell.
        marker: of a writer; None where there is none.
        is_written: whether a marker says that the set is still being written, or one below it is.
        told_complete: whether a file says that the set is complete.
        absent: why there are no files; empty where there are.
    """

    files: list[FileInfo]
    newest: float | None = None
    marker: Growing | None = None
    is_written: bool = False
    told_complete: bool = False
    absent: str = ""


class Follower:
    """Looks at a set that may still grow, and waits for more of it. Any thread may.

    Args:
        storage: of a folder, or of a glob, whose root is the folder in which files tell whether it still grows.
        kind: of its files, see `storage.kinds`; None for that which is there.
        read: makes the index of files.
        patience: how long is waited.

    Attributes:
        known: the index of what is known of the set, and whether that is all of it.
        seconds: between looks.

    Raises:
        ConfigError: what cannot be followed.
        PathNotFoundError: there is nothing, and somebody says that this is all.
        WriterFailedError, GrowthTimeoutError: no token came.
        StorageError, DataError: as `build_index`.
    """

    LOCAL_SECONDS = 0.5
    REMOTE_SECONDS = 2.0
    SILENT_SECONDS = 60.0  # without a heartbeat, after which a writer is taken for dead

    known: tuple[DatasetIndex, bool]

    def __init__(self, storage: object, kind: str | None, read: ReadIndex, patience: Patience) -> None:
        if not isinstance(storage, (LocalStorage, FsspecStorage)) or not storage.can_grow:
            raise ConfigError(
                "follow=True is for one folder or glob, to which files are added: give its path or URL, and no file, "
                "list or storage of your own"
            )
        self._storage = storage
        self._kind = kind
        self._read = read
        self._patience = patience
        self.seconds = self.REMOTE_SECONDS if storage.is_remote else self.LOCAL_SECONDS
        self._renew()
        self._index: DatasetIndex | None = None
        self._files: list[FileInfo] = []  # of which it is
        self._untold: ParquetLoaderError | None = None  # why there is none, although there are files
        self._seen = _Seen([])
        self._told = False  # whether it is said that it is waited for
        self.until(lambda: self._index is not None and (self._index.total_tokens > 0 or self.known[1]))

    def _renew(self) -> None:
        self._turn = Turn()
        self._pid = os.getpid()
        self._looked = -math.inf
        self._seen_since = -math.inf  # when the look began that found what is known
        self._watched = -math.inf  # since when it has been looked at again and again
        self._grown = time.monotonic()
        self._has_come = False  # whether more has come since then
        self._beat: tuple[str, float] = ("", self._grown)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._renew()  # another machine's clock tells another time

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def look(self, stop: threading.Event | None = None) -> bool:
        """Look at the set, unless that was done a moment ago, or another thread is at it; whether more of it is known
        now.

        Args:
            stop: see `Storage.read`.

        Raises:
            FileChangedError: a file has changed, is gone, or has come before others that were there already.
            StorageError, DataError, ConfigError: as `build_index`.
            LoaderClosedError: ``stop`` was set.
        """
        if self._pid != os.getpid():  # another thread of the parent may have been in there when it was forked
            self._renew()
        try:
            return self._turn.run(functools.partial(self._look, stop))
        except LoaderInUseError:
            return False

    def _look(self, stop: threading.Event | None) -> bool:
        if (self._index is not None and self.known[1]) or time.monotonic() - self._looked < self.seconds:
            return False
        before, began = self._looked, time.monotonic()
        try:
            self._seen = seen = self._what_is_there(stop)
            self._seen_since = began
        finally:
            self._looked = time.monotonic()
            if self._looked - before > self.SILENT_SECONDS / 2:  # a store that was away told nothing, of nobody
                self._watched = self._looked
        if seen.marker is not None and seen.marker.updated != self._beat[0]:
            self._beat = (seen.marker.updated, self._looked)
        is_first = not hasattr(self, "known")
        if self._grow(seen, stop):
            self._grown = self._looked
            self._has_come = not is_first
            self._told &= not is_first  # that was about the first file
        complete = seen.told_complete or self._is_over()
        if complete and self._untold is not None:
            raise self._untold
        if self._index is None:
            return False
        # Not only where it has grown: an interrupt may have come in between.
        has_news = complete or is_first or self._index is not self.known[0]
        if has_news:
            self.known = self._index, complete
        return has_news

    def _what_is_there(self, stop: threading.Event | None) -> _Seen:
        """What is there; of files, those before which no other can come any more."""
        first = self._list(stop)
        if not first.told_complete and (not first.files or first.files == self._files):
            return first
        second = self._list(stop)
        if first.told_complete:
            return second
        return replace(second, files=_up_to(second.files, _last_data(first.files)), told_complete=False)

    def _list(self, stop: threading.Event | None) -> _Seen:
        storage = self._storage
        try:
            listing, base = storage.find_beside(GROWTH_NAMES, stop)
        except PathNotFoundError as error:
            if self._index is not None:
                raise
            return _Seen([], absent=str(error))
        there = {found.path[len(base) :]: found for each in listing.found for found in each}
        marker, is_written, absent = None, bool(listing.growing()), ""
        if GROWING_NAME in there:
            found = there[GROWING_NAME]
            marker = self._read_marker(FileInfo(path=GROWING_NAME, size=found.size or 0, version=found.version), stop)
            if marker is None:
                return self._list(stop)
        told = MANIFEST_NAME in there or (not is_written and any(name in there for name in COMPLETE_NAMES))
        try:
            files = listing.data_files(base, storage.root, self._kind, follow=True)
        except PathNotFoundError as error:
            if told and self._index is None:
                raise
            files, absent = [], str(error)
        times = [there[file.path].modified for file in files]
        known_times = [each for each in times if each is not None]
        newest = max(known_times) if known_times and len(known_times) == len(times) else None
        return _Seen(files, newest, marker, is_written, told, absent)

    def _read_marker(self, file: FileInfo, stop: threading.Event | None) -> Growing | None:
        """A marker; what was known before of one that has changed since it was listed, where that still holds."""
        try:
            text = self._storage.read(file, 0, file.size, stop)
            return Growing.from_json(text, f"{self._storage.root}/{file.path}")
        except FileChangedError:  # by its writer, just now: so it lives
            before = self._seen.marker
            return before if before is not None and before.state == "growing" else None

    def _grow(self, seen: _Seen, stop: threading.Event | None) -> bool:
        """Take in what has come; whether something has.

        As long as there is no token nothing is held against what comes: who looks first at more knows nothing of it.
        """
        before = self._index if self._index is not None and self._index.total_tokens else None
        if before is not None:
            self._check_files(seen.files)
        if seen.files == self._files:
            return False
        index, untold = None, None
        try:
            if seen.files:
                index = self._read(StoppableStorage(self._storage, stop), seen.files, before)
        except ParquetLoaderError as error:  # maybe hours after the source was named
            mend = "" if before is None else "It has come to a set that is followed: mend it or take it out"
            paths = [file.path for file in seen.files]
            told = of_file_below(error, self._storage.root, paths, mend)
            if not isinstance(error, NoTokenYetError):
                raise told from error
            untold = told
        if before is not None and index is not None and not _begins_with(index, before):
            raise ConfigError(
                f"{self._storage.root} cannot be followed: a file that has come to it tells of others that were there "
                f"already, and they are read in another way now. Files since then: {self._names_since(seen.files)}"
            )
        self._index, self._untold, self._files = index, untold, seen.files
        return True

    def _names_since(self, files: list[FileInfo]) -> str:
        there = {file.path for file in self._files}
        return ", ".join([file.path for file in files if file.path not in there][:5])

    def _check_files(self, files: list[FileInfo]) -> None:
        """Refuse files that have changed or gone, and new ones that are not after all others."""
        root, there = self._storage.root, {file.path: file for file in files}
        for file in self._files:
            now = there.pop(file.path, None)
            if now != file:
                how = "is gone" if now is None else "has changed"
                ways = ways_after_change(same_size=now is not None and now.size == file.size)
                raise FileChangedError(
                    f"{root}/{file.path} {how} since it was read from the set that is followed: {ways}"
                )
        last = _last_data(self._files)
        early = min((path for path in there if kind_of(path)), default=last)
        if early < last:
            raise FileChangedError(
                f"{root}/{early} has come before {last}, which was there already: files are added to a set that is "
                "followed in the order of their paths. Name it so that it comes last, or make it another source of a "
                "mixture"
            )

    def _is_over(self) -> bool:
        """Whether nothing has come for so long that the set counts as complete."""
        left = self._seconds_left()
        return left is not None and left <= 0

    def _seconds_left(self) -> float | None:
        """Until the set counts as complete, if nothing comes; None where it never will."""
        after = self._patience.complete_after
        if after is None or self._seen.is_written or not self._files:
            return None
        since_it_came = after - (time.monotonic() - self._grown)
        if self._seen.newest is None:
            return since_it_came
        # Files may come with the times of what they are copies of.
        left = self._seen.newest + after - time.time()
        return max(left, since_it_came) if self._has_come else left

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    def until(
        self,
        is_known: Callable[[], bool],
        *,
        closed: Callable[[], bool] = lambda: False,
        waited: Callable[[float], object] = lambda seconds: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Wait until something is known, and look meanwhile.

        Args:
            is_known: whether it is.
            closed: whether nobody waits any more.
            waited: told the seconds that this took.
            stop: see `look`.

        Raises:
            WriterFailedError: it never will be: the writer has failed, or is not heard of any more.
            GrowthTimeoutError: nothing has come for too long.
            LoaderClosedError: `closed`.
            StorageError, DataError, ConfigError: as `look`.
        """
        if is_known():
            return
        begun = time.monotonic()
        try:
            while True:
                self.look(stop)
                if is_known():
                    return
                if self._seen_since >= begun:  # what was seen before may have been mended since
                    self._check(begun)
                self._tell()
                until = time.monotonic() + self.seconds
                while time.monotonic() < until and not is_known():
                    if closed():
                        raise LoaderClosedError("closed while a batch was waited for")
                    time.sleep(min(_NOTICE_SECONDS, self.seconds))
        finally:
            waited(time.monotonic() - begun)

    def _check(self, begun: float) -> None:
        """Give up on what has been waited for since then, if there is reason to."""
        now, marker, root = time.monotonic(), self._seen.marker, self._storage.root
        rerun = "Run it again to resume, and then this"
        if marker is not None and marker.state == "failed":
            raise WriterFailedError(f"the writer of {root} has failed: {str(marker.reason).rstrip('.')}. {rerun}.")
        begun = max(begun, self._watched)
        if marker is not None and now - max(begun, self._beat[1]) > self.SILENT_SECONDS:
            silent = f"nothing was heard of the writer of {root} for {self.SILENT_SECONDS:.0f} s"
            raise WriterFailedError(f"{silent}: {marker.describe()}. {rerun}.")
        # Where it is known when the set counts as complete, that is waited for.
        is_patient = self._seconds_left() is not None and not self._is_ahead()
        if now - max(begun, self._grown) > self._patience.wait_seconds and not is_patient:
            seconds = self._patience.wait_seconds
            so_long = f"for {seconds:,g} s (wait_seconds)" if seconds else "so far (wait_seconds is 0)"
            if not self._files:
                raise GrowthTimeoutError(f"no file of {self._storage.identity} has come {so_long}: {self.describe()}")
            raise GrowthTimeoutError(
                f"{root} has not grown {so_long}, and is not complete: {self.describe()}{self._ways()}"
            )

    def _is_ahead(self) -> bool:
        """Whether a file is of a time that is yet to come."""
        return self._seen.newest is not None and self._seen.newest - time.time() > _SKEW_SECONDS

    def _ways(self) -> str:
        """What to do about a set that does not grow, a clause."""
        if self._seen.marker is not None:
            return "; its writer lives: give a longer wait_seconds, where a file takes longer than that"
        if self._seen.is_written:
            return "; a set in a folder below is still being written, or its writer has died: run that again"
        after = ", or give complete_after" if self._patience.complete_after is None else ""
        return (
            f"{self._end()}; if it is complete, say so by a file _COMPLETE{after}, or leave out follow: a state keeps "
            "its run's order, and a new run has another one"
        )

    def _end(self) -> str:
        """When the set counts as complete, a clause; nothing where it never does."""
        left = self._seconds_left()
        if left is None:
            return ""
        newest = self._seen.newest
        if newest is not None and self._is_ahead():
            return (
                f"; its last file was changed {newest - time.time():,.0f} s in the future, by this machine's clock, "
                "and complete_after is counted from then: give the file the time of now, as touch does, or set the "
                "clock right"
            )
        return f"; it counts as complete in {max(0.0, left):,.0f} s (complete_after) if it does not grow"

    def describe(self) -> str:
        """How far the set is, in a few words."""
        if not self._files:
            return self._seen.absent if self._seen.marker is None else "no file is there yet"
        if self._index is None:
            return f"{len(self._files):,} files are there, and no token: {self._untold}"
        return f"{len(self._index.files):,} files, {self._index.total_tokens:,} tokens are there"

    def _tell(self) -> None:
        if self._told:
            return
        self._told = True
        if not self._files:
            _logger.warning(
                "waiting for the first file of %s, up to %s s (wait_seconds): %s",
                self._storage.identity,
                f"{self._patience.wait_seconds:,g}",
                self.describe(),
            )
        else:
            _logger.warning(
                "waiting for %s to grow: %s%s; the wait is counted by stats(), and not logged again",
                self._storage.root,
                self.describe(),
                self._end(),
            )


def _last_data(files: list[FileInfo]) -> str:
    """The last path of data: what lies beside it, such as ``meta.json``, is there from the start."""
    return max((file.path for file in files if kind_of(file.path)), default="")


def _up_to(files: list[FileInfo], last: str) -> list[FileInfo]:
    """The data up to a path, and what lies beside it: of a pair, an index may come before what it tells of."""
    data = {file.path for file in files if kind_of(file.path) and file.path <= last}
    return [
        file for file in files if file.path in data or (not kind_of(file.path) and data.issuperset(beside(file.path)))
    ]


def _begins_with(index: DatasetIndex, before: DatasetIndex) -> bool:
    """Whether the files and the row groups of an index are the first ones of another."""
    files, groups = len(before.files), len(before)
    return index.files[:files] == before.files and all(
        np.array_equal(now.numbers[:, :groups], then.numbers)
        for now, then in zip(index.planes, before.planes, strict=True)
    )
