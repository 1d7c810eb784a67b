"""What a loader and the processes that decode for it say to each other, over Unix sockets.

A message is a pickled value. Arrays in it travel beside the pickle, and arrive in memory of their own:

    │ how many pieces, and bytes │ bytes of each piece │ pickle │ array │ array │ ...

Descriptors come with the first byte.
"""

from __future__ import annotations

import array
import contextlib
import pickle
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..blocks import IntArray
from ..formats.base import ColumnChunk
from .work import TaskWork, WindowWork

__all__ = [
    "Answer",
    "BandWork",
    "ClosedError",
    "Failed",
    "Hold",
    "Keep",
    "Logged",
    "Piece",
    "Release",
    "Request",
    "Wire",
]

_HEAD = struct.Struct("<QQ")
_MOST_DESCRIPTORS = 1


class BandWork(NamedTuple):
    """A band to be cut whose text of one plane is complete: its number, and where documents begin in it."""

    plane: int
    number: int
    documents: IntArray


class Request(NamedTuple):
    """Something to be done.

    Attributes:
        segment: where slices go; where its number is new, its descriptor comes along.
        size: bytes of the segment.
        window: which is in the segment; None where it is the one that was in the request before.
        forgotten: segments that are no more.
        rest: whether what is freed goes back to the system before it is answered.
        work: what is to be done.
    """

    segment: int
    size: int
    window: WindowWork | None
    forgotten: tuple[int, ...]
    rest: bool
    work: TaskWork | BandWork


class Piece(NamedTuple):
    """A piece of a band whose other pieces lie in other tasks: its plane and the band's number, tokens, and where
    documents begin.
    """

    plane: int
    number: int
    tokens: int
    documents: IntArray


class Answer(NamedTuple):
    """What was done.

    Attributes:
        tokens: that were decoded.
        fallbacks: row groups that fell back.
        retries: of each source, requests that this process has made again so far.
        read_seconds: that storage took.
        cut: the planes and numbers of bands that were cut, and of each how many documents there are.
        documents: where the documents of these bands begin, see `Slices`, one band after another.
        pieces: of bands that are not complete.
    """

    tokens: int
    fallbacks: int
    retries: tuple[int, ...]
    read_seconds: float
    cut: tuple[tuple[int, int, int], ...]
    documents: IntArray
    pieces: tuple[Piece, ...]


class Hold(NamedTuple):
    """Asks for more memory for a row group; answered by True, or by False where there never is as much."""

    more_bytes: int
    chunk: ColumnChunk


class Keep(NamedTuple):
    """Asks for memory for documents, until the window is used up; see `work.Keep`. Answered as `Hold`."""

    documents: int
    tokens: int
    chunk: ColumnChunk


class Release(NamedTuple):
    """Gives that memory back; no answer."""


class Logged(NamedTuple):
    """Something to be logged; no answer."""

    name: str
    level: int
    text: str


class Failed(NamedTuple):
    """What was to be done failed.

    Attributes:
        errors: the pickled error, and those that it came from.
        text: the last one's traceback, or "" where it is an error of this library.
    """

    errors: tuple[bytes, ...]
    text: str


class ClosedError(Exception):
    """The other side is gone."""


class _End(socket.socket):
    """One that is closed when nobody has it any more, without a word: where those who had it refer to each other, it
    may be collected before the `Wire` that would close it.
    """

    def __del__(self) -> None:
        self.close()


class Wire:
    """One end of a connection.

    Args:
        end: a Unix socket, which is taken over.
        look_seconds: how long to wait before `idle` is called; None for ever.
    """

    def __init__(self, end: socket.socket, look_seconds: int | None = None) -> None:
        self._end = _End(fileno=end.detach())
        if look_seconds is not None:
            self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", look_seconds, 0))

    def __del__(self) -> None:
        self.close()

    def shut(self) -> None:
        """End the conversation: whoever waits for a message, on either side, is told."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of this process's end, and only of that: a fork's parent keeps its own."""
        self._end.close()

    def idle(self) -> None:
        """Called while an answer is waited for, now and then.

        Raises:
            ClosedError: none will come.
        """

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a value.

        Raises:
            ClosedError: nobody would get it.
        """
        beside: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(message, protocol=5, buffer_callback=beside.append)
        arrays = [each.raw() for each in beside]
        sizes = struct.pack(f"<{len(arrays) + 1}Q", len(pickled), *(each.nbytes for each in arrays))
        rest = len(sizes) + len(pickled) + sum(each.nbytes for each in arrays)
        pieces = [memoryview(_HEAD.pack(len(arrays) + 1, rest) + sizes + pickled), *arrays]
        try:
            sent = self._end.sendmsg(pieces, _with(descriptors))
            for piece in pieces:  # nearly always all of it has been sent
                if sent < piece.nbytes:
                    self._end.sendall(piece[sent:])
                sent = max(0, sent - piece.nbytes)
        except ConnectionError as error:
            raise ClosedError from error

    def wait(self, seconds: float) -> bool:
        """Whether a message, or the end, comes within so many seconds."""
        poll = select.poll()  # unlike `select.select` it knows descriptors beyond 1,023
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for a value; and for descriptors, where some come with it.

        Raises:
            ClosedError: none will come.
        """
        descriptors: list[int] = []
        count, size = _HEAD.unpack(self._read(_HEAD.size, descriptors))
        rest = memoryview(self._read(size))
        pieces, begin = [], 8 * count
        for each in struct.unpack_from(f"<{count}Q", rest):
            pieces.append(rest[begin : begin + each])
            begin += each
        return pickle.loads(pieces[0], buffers=pieces[1:]), descriptors

    def _read(self, size: int, descriptors: list[int] | None = None) -> bytearray:
        data = bytearray(size)
        left = memoryview(data)
        while left:
            try:
                if descriptors is None:
                    count = self._end.recv_into(left)
                else:
                    count, extra, *_ = self._end.recvmsg_into([left], socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS))
                    for _, _, numbers in extra:
                        descriptors += array.array("i", numbers)
            except BlockingIOError:
                self.idle()
                continue
            except ConnectionError as error:
                raise ClosedError from error
            if not count:
                raise ClosedError
            left = left[count:]
        return data


def _with(descriptors: Sequence[int]) -> list[tuple[int, int, bytes]]:
    """What makes a message bring descriptors."""
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
