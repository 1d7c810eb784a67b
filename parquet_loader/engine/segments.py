"""Memory that processes share: a segment for each window, in which helpers put its tokens, a place for each band.

    row groups   │      0       │      1       │  2  │      3       │
    bands        │   A   │   B   │   C   │   D   │   E             │
    segment      │ A │ B │ C │ D │ E │      written by whoever decodes, read by whoever makes batches

A segment is a file without a name: in memory where the system has that, and otherwise on disk. Neither depends on the
size of /dev/shm. When its window has been used up it serves the next one, since fresh pages take longer to get than to
fill. What segments hold beyond what the budget counts for their windows stays within `SegmentPool.spare_bytes`.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
import weakref

import numpy as np
import numpy.typing as npt

from ..errors import HelperError
from ..interrupts import under

__all__ = ["Segment", "SegmentPool", "new_file"]

_Bytes = npt.NDArray[np.uint8]

_ROOM = 1 << 20  # sizes are multiples of this, and an eighth larger than needed: windows are hardly ever of one size


def new_file() -> int:
    """The descriptor of an empty file that nobody else can open, and that is gone when it is closed."""
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("parquet-loader")
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise HelperError(
                    f"no shared memory: {error}. Each window takes two descriptors here and some in each decoding "
                    "process: raise the limit (ulimit -n), or use threads in place of processes"
                ) from error
            # some sandboxes forbid it
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Segment:
    """A piece of memory that helpers write to and this process reads.

    Args:
        number: no other one ever has it.
        size: bytes.

    Attributes:
        touched: the bytes ``[0, touched)`` may have pages.
        uncounted: bytes that have pages, and are not counted for a window yet.
    """

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.touched = 0
        self.uncounted = 0
        self.file = new_file()
        weakref.finalize(self, os.close, self.file).atexit = False  # when threads may still send it
        os.ftruncate(self.file, size)
        self.memory = mmap.mmap(self.file, size, access=mmap.ACCESS_READ)

    def cut_down(self, size: int) -> None:
        """Give the pages beyond a size back to the system. Nobody may look at what they held any more."""
        if self.touched > size:
            os.ftruncate(self.file, size)
            os.ftruncate(self.file, self.size)
            self.touched = size


class SegmentPool:
    """The segments of an engine.

    Args:
        spare_bytes: the most that they hold beyond what is counted for windows; counted by whoever makes the pool.

    Attributes:
        spare_bytes: as given.
        numbers: those of all segments that there are.
    """

    def __init__(self, spare_bytes: int) -> None:
        self.numbers: frozenset[int] = frozenset()
        self.spare_bytes = spare_bytes
        self._uncounted = 0  # never more than `spare_bytes`
        self._made = 0
        self._free: list[Segment] = []
        self._lent: list[tuple[weakref.ref[_Bytes], Segment]] = []
        self._lock = threading.RLock()

    def take(self, size: int, counted_bytes: int) -> tuple[Segment, _Bytes]:
        """A segment for a window, and its first bytes, shape ``(size,)``. It comes back by itself, see `collect`, once
        nobody refers to that array or to a view of it.

        Args:
            size: bytes of the window.
            counted_bytes: how many of them are counted by now; see `count`.
        """

        def take() -> tuple[Segment, _Bytes]:
            self.collect()
            fitting = [segment for segment in self._free if segment.size >= size]
            segment = min(fitting, key=lambda each: each.size) if fitting else self._new(size)
            if fitting:
                self._free.remove(segment)
                self._uncounted -= segment.uncounted
                segment.cut_down(size)
                segment.uncounted = max(0, segment.touched - counted_bytes)
                self._uncounted += segment.uncounted
            segment.touched = size
            memory = np.frombuffer(segment.memory, np.uint8, size)
            self._lent.append((weakref.ref(memory), segment))
            return segment, memory

        return under(self._lock, take)

    def _new(self, size: int) -> Segment:
        if self._free:  # none of which will do
            dropped = max(self._free, key=lambda each: each.uncounted)
            self._free.remove(dropped)
            self._uncounted -= dropped.uncounted
            dropped.cut_down(0)  # helpers may have it in their memory until they are next asked for something
        segment = Segment(self._made, -(-(size + size // 8) // _ROOM) * _ROOM)
        self._made += 1
        self.numbers = frozenset(each.number for each in (*self._free, *(each for _, each in self._lent), segment))
        return segment

    def count(self, segment: Segment, more_bytes: int) -> None:
        """From here on so many more of a segment's bytes are counted for its window."""

        def count() -> None:
            counted = min(more_bytes, segment.uncounted)
            self._uncounted -= counted
            segment.uncounted -= counted

        under(self._lock, count)

    def collect(self) -> None:
        """Take back segments whose windows have been used up. To be called before bytes of windows count as free."""

        def collect() -> None:
            for lent in [lent for lent in self._lent if lent[0]() is None]:
                self._lent.remove(lent)
                segment = lent[1]
                self._uncounted -= segment.uncounted
                segment.cut_down(self.spare_bytes - self._uncounted)
                segment.uncounted = segment.touched
                self._uncounted += segment.uncounted
                self._free.append(segment)

        under(self._lock, collect)
