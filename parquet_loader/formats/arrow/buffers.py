"""The buffers of a record batch: as they lie, or unpacked, at once or piece by piece.

A buffer that is compressed begins with how many bytes it unpacks to; -1 stands for the bytes as they are, which writers
keep where compressing would not make them fewer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from ...turns import aside

__all__ = ["SLOW_CODECS", "STREAM_BYTES", "Bytes", "DamagedBufferError", "Lying", "Streamed", "opened", "window_bytes"]

SLOW_CODECS = frozenset({"ZSTD"})
# What pyarrow holds to unpack piece by piece: a piece of what is unpacked, one of what is not, and the codec's own.
STREAM_BYTES = (1 << 20) + (512 << 10)
_CODECS = {"LZ4": "lz4", "ZSTD": "zstd"}
_PREFIX = 8
_PADDING = 64  # bytes that writers may put behind a buffer
_PIECE_BYTES = 1 << 20  # of what is passed over
_LZ4_BLOCK = 1 << 16  # its blocks have this size or a multiple, but for the last one
_LZ4_LITERALS = 5  # that a block ends with
_LEAST_WINDOW, _MOST_WINDOW = 10, 27  # powers of two: zstd has no smaller one, and pyarrow takes no larger one


class DamagedBufferError(ValueError):
    """A buffer that is not what it should be; says what is wrong, without where."""


class Bytes(Protocol):
    """Bytes that are taken piece after piece."""

    def take(self, begin: int, end: int) -> memoryview:
        """Those from ``begin`` to ``end``, which do not begin before the last ones ended.

        Raises:
            DamagedBufferError: there are none.
        """
        ...


class Lying:
    """Bytes that lie in memory. They may be taken in any order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, begin: int, end: int) -> memoryview:
        """See `Bytes.take`."""
        if not 0 <= begin <= end <= len(self._data):
            raise DamagedBufferError(f"has a buffer of {len(self._data):,} bytes where {end:,} are needed")
        return self._data[begin:end]


class Streamed:
    """Bytes that are unpacked piece by piece.

    Args:
        packed: what is unpacked.
        codec: its compression.
        size: bytes that it unpacks to.
    """

    def __init__(self, packed: memoryview, codec: str, size: int) -> None:
        self._stream = pa.CompressedInputStream(pa.BufferReader(packed), _CODECS[codec])
        self._codec = codec
        self._size = size
        self._at = 0

    def take(self, begin: int, end: int) -> memoryview:
        """See `Bytes.take`."""
        assert self._at <= begin <= end
        if end > self._size:
            raise DamagedBufferError(f"has a buffer of {self._size:,} bytes where {end:,} are needed")
        while self._at < begin:
            self._read(min(_PIECE_BYTES, begin - self._at))
        data = self._read(end - begin)
        if self._at == self._size and self._unpack(1).size:
            raise DamagedBufferError(f"has a buffer that unpacks to more than the {self._size:,} bytes that it tells")
        return memoryview(data).cast("B")

    def _read(self, length: int) -> pa.Buffer:
        data = self._unpack(length) if length else pa.py_buffer(b"")
        self._at += data.size
        if data.size != length:
            raise DamagedBufferError(f"has a buffer that unpacks to {self._at:,} bytes and not to {self._size:,}")
        return data

    def _unpack(self, length: int) -> pa.Buffer:
        return _unpacking(lambda: self._stream.read_buffer(length), self._codec)


def opened(stored: memoryview, codec: str, size: int, *, at_once: bool) -> Bytes:
    """The bytes of a buffer.

    Args:
        stored: as it lies in the file.
        codec: compression of the record batch.
        size: bytes that are needed of it.
        at_once: whether to hold all that is unpacked, so that it may be taken in any order; ``size`` must be known to
            be true then, since so much is allocated.

    Raises:
        DamagedBufferError: it holds fewer bytes, or many more.
    """
    if codec in _CODECS and len(stored):
        if len(stored) < _PREFIX:
            raise DamagedBufferError(f"has a compressed buffer of {len(stored)} bytes")
        unpacked = int.from_bytes(stored[:_PREFIX], "little", signed=True)
        stored = stored[_PREFIX:]
        if unpacked != -1:
            if not size <= unpacked <= size + _PADDING:
                raise DamagedBufferError(f"has a buffer that unpacks to {unpacked:,} bytes where {size:,} are needed")
            if not at_once:
                return Streamed(stored, codec, unpacked)
            return Lying(_unpacked(stored, codec, unpacked) if unpacked else stored[:0])
    if len(stored) < size:
        raise DamagedBufferError(f"has a buffer of {len(stored):,} bytes where {size:,} are needed")
    return Lying(stored)


def _unpacked(packed: memoryview, codec: str, size: int) -> memoryview:
    data = memoryview(_unpacking(lambda: pa.Codec(_CODECS[codec]).decompress(packed, size), codec)).cast("B")
    # Of LZ4 pyarrow does not tell how many bytes it wrote: where they are too few, the rest is whatever the memory held
    # before. A block ends with literals, so what it ends with is the same on both sides.
    if codec == "LZ4":
        flags = packed[4] if len(packed) > 4 else 0
        end = len(packed) - 4 - 4 * bool(flags & 4) - 4 * bool(flags & 16)  # the end's mark, and checksums
        tail = min(_LZ4_LITERALS, (size - 1) % _LZ4_BLOCK + 1)
        if end < tail or packed[end - tail : end] != data[-tail:]:
            raise DamagedBufferError(f"has a buffer that does not unpack to the {size:,} bytes that it tells")
    return data


def _unpacking(unpack: Callable[[], pa.Buffer], codec: str) -> pa.Buffer:
    try:
        with aside() if codec in SLOW_CODECS else contextlib.nullcontext():
            return unpack()
    except MemoryError:  # pyarrow has an ArrowException for it
        raise
    except (pa.ArrowException, OSError) as error:
        raise DamagedBufferError(f"has a buffer that cannot be unpacked, it is damaged ({error})") from error


def window_bytes(stored: memoryview, codec: str) -> int:
    """What unpacking a compressed buffer piece by piece holds of what it has unpacked, since more may refer to it."""
    frame = stored[_PREFIX:]
    if len(frame) < 6:
        return 0
    if codec == "LZ4":
        return 2 << (8 + 2 * (frame[5] >> 4 & 7))  # a block and what comes before it: 64 KiB to 4 MiB each
    if frame[4] & 0x20:  # a window as large as the content
        window = int.from_bytes(stored[:_PREFIX], "little")
    else:
        window = (1 << _LEAST_WINDOW + (frame[5] >> 3)) * (8 + (frame[5] & 7)) // 8
    return min(window, 1 << _MOST_WINDOW)
