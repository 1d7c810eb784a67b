"""Files as streams of bytes, decompressed on the way."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from ...errors import DataError
from ...storage.filesystems import Filesystem
from ..extras import import_extra

__all__ = ["BUFFER_BYTES", "COMPRESSIONS", "opened"]


BUFFER_BYTES = 1 << 20
COMPRESSIONS = (".gz", ".zst")

_ZSTD_BYTES = 1 << 12  # decompressed at once, to up to 32,000 times as many


@contextmanager
def opened(filesystem: Filesystem, path: str, name: str, compression: str, offset: int = 0) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed, from an offset in the decompressed bytes on.

    Args:
        filesystem: the fsspec filesystem that it lies on.
        path: its path there.
        name: for messages.
        compression: ``".gz"``, ``".zst"`` or ``""``.
        offset: bytes to leave out. A plain file is opened there; a compressed one is read up to there.
    """
    with filesystem.open(path, "rb") as raw:
        if not compression and offset:
            raw.seek(offset)
        buffered = io.BufferedReader(raw, BUFFER_BYTES)
        try:
            stream: IO[bytes] = buffered
            if compression:
                _refuse_empty(buffered)
            if compression == ".gz":
                stream = cast("IO[bytes]", io.BufferedReader(gzip.GzipFile(fileobj=buffered), BUFFER_BYTES))
            elif compression == ".zst":
                stream = io.BufferedReader(_ZstdStream(buffered), BUFFER_BYTES)
            if compression:
                _skip(stream, offset)
            yield stream
        except (gzip.BadGzipFile, zlib.error, EOFError, _ZstdDamaged) as error:
            raise DataError(
                f"not a complete {compression} file ({error}). It is damaged, cut short, or something else under "
                f"that name: fetch it again, or omit it.",
                path=name,
            ) from error


def _refuse_empty(compressed: io.BufferedReader[Any]) -> None:
    """Even of no text at all, gzip and zstd make some bytes; a file without any is what a failed copy leaves."""
    if not compressed.peek(1):
        raise EOFError("it is empty")


def _skip(stream: IO[bytes], size: int) -> None:
    while size:
        read = len(stream.read(min(size, BUFFER_BYTES)))
        if not read:
            return  # the file is shorter than it was, and whoever reads on sees its end
        size -= read


class _ZstdDamaged(Exception):
    """Bytes that are not whole zstd frames."""


class _ZstdStream(io.RawIOBase):
    """Reads zstd frames one after the other.

    zstandard's own ``stream_reader`` takes a file that was cut short for one that ends there, which would lose text
    silently; a decompression object knows whether its frame ended.
    """

    def __init__(self, compressed: IO[bytes]) -> None:
        self._compressed = compressed
        self._zstandard = import_extra("zstandard")
        self._frame = self._new_frame()
        self._inside_frame = False
        self._ready = memoryview(b"")

    def _new_frame(self) -> Any:
        # Big corpora are often written with --long windows, which the default limit refuses.
        return self._zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = self._new_frame()
                self._inside_frame = False
            data = data or self._compressed.read(_ZSTD_BYTES)
            if not data:
                if self._inside_frame:
                    raise _ZstdDamaged("it ends within a frame")
                return 0
            self._inside_frame = True
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._zstandard.ZstdError as error:
                raise _ZstdDamaged(str(error)) from error
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size
