"""Exact duplicates: texts that are the same except for white space, detected by a hash of 128 bits.

    text        "a  b\\n"  "a b"  "c"
    normalised  "a b"     "a b"  "c"      runs of white space are one space, none at the ends
    digest      d1        d1     d2       the first 16 bytes of the hash
    kept        yes       no     yes      the first of its kind, in the order of the input

The chance that any two of a trillion different texts share 128 bits is 10**-15.

`SeenHashes` holds digests in one NumPy array, an open-addressing table that is between half and three quarters full:
21 to 32 MB for a million of them, and both the old and the new array while it grows. A Python set of the same digests
takes 100 MB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, DataError
from ...storage.filesystems import open_filesystem
from ...storage.secrets import Location
from ..extras import import_extra

__all__ = [
    "DIGEST_BYTES",
    "HASH_NAMES",
    "Digests",
    "HashName",
    "SeenFile",
    "SeenHashes",
    "as_digests",
    "check_hash_name",
    "digest_function",
    "normalise",
]


HashName = Literal["sha256", "sha1", "md5", "blake2b", "xxh3"]
HASH_NAMES: tuple[str, ...] = get_args(HashName)
DIGEST_BYTES = 16

Digests: TypeAlias = npt.NDArray[np.uint64]  # shape (digests, 2)

_MAGIC = b"parquet_loader seen hashes 1 "
_HEADER_BYTES = 64
_FIRST_SLOTS = 1 << 12
_GROWTH = 1.5
_FULLEST = 0.75


def normalise(text: str) -> str:
    """Runs of white space become one space, and those at the ends nothing.

    >>> normalise("  a\\t\\n b ")
    'a b'
    """
    return " ".join(text.split())


def digest_function(name: HashName) -> Callable[[str], bytes]:
    """What makes 16 bytes of a text, normalised.

    Raises:
        ConfigError: the hash is xxh3 and its package is not installed.
    """
    if name == "xxh3":
        xxh3: Callable[[bytes], bytes] = import_extra("xxhash", "dedup").xxh3_128_digest
        return lambda text: xxh3(normalise(text).encode())
    if name == "blake2b":
        return lambda text: hashlib.blake2b(normalise(text).encode(), digest_size=DIGEST_BYTES).digest()
    # Not for secrets: a Python built for FIPS refuses md5 and sha1 otherwise.
    return lambda text: hashlib.new(name, normalise(text).encode(), usedforsecurity=False).digest()[:DIGEST_BYTES]


def as_digests(raw: bytes) -> Digests:
    """Bytes of digests, one after the other, as an array of shape ``(digests, 2)``."""
    return np.frombuffer(raw, dtype="<u8").reshape(-1, 2)


class SeenHashes:
    """A set of digests that takes many at once."""

    def __init__(self) -> None:
        self._table: Digests = np.zeros((_FIRST_SLOTS, 2), dtype=np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """What the table takes."""
        return self._table.nbytes

    def add(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Put digests in, and say of each whether it is new: not there before, and not earlier in this call.

        Args:
            digests: shape ``(n, 2)``.

        Returns:
            Shape ``(n,)``.
        """
        # A slot of zeros is an empty one, so the digest of zeros has to be another one.
        digests = np.where((digests == 0).all(axis=1, keepdims=True), np.uint64(1), digests)
        new = np.zeros(len(digests), dtype=np.bool_)
        _, first = np.unique(digests.view("V16").ravel(), return_index=True)
        wanted = self._count + len(first)
        if wanted > _FULLEST * len(self._table):
            self._grow(wanted)
        new[first] = _insert(self._table, digests[first])
        self._count += int(new.sum())
        return new

    def _grow(self, wanted: int) -> None:
        slots = max(int(_GROWTH * len(self._table)), int(wanted / _FULLEST) + 1)
        old = self._table[self._table.any(axis=1)]
        self._table = np.zeros((slots, 2), dtype=np.uint64)
        for start in range(0, len(old), 1 << 16):  # in pieces, so that temporary arrays stay small
            _insert(self._table, old[start : start + (1 << 16)])


def _insert(table: Digests, digests: Digests) -> npt.NDArray[np.bool_]:
    """Whether each of these digests, all different, was not in the table; it is in there now."""
    new = np.zeros(len(digests), dtype=np.bool_)
    left = np.arange(len(digests))
    # The upper half of a product: spreads 32 bits evenly over any number of slots, not only a power of two.
    slot = ((digests[:, 0] >> np.uint64(32)) * np.uint64(len(table))) >> np.uint64(32)
    while len(left):
        there = table[slot]
        empty = ~there.any(axis=1)
        # Several may want the same empty slot: all write, one stays, and the others see that it is not they.
        table[slot[empty]] = digests[left[empty]]
        same = (table[slot] == digests[left]).all(axis=1)
        new[left[same & empty]] = True
        left, slot = left[~same], (slot[~same] + np.uint64(1)) % np.uint64(len(table))
    return new


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenFile:
    """A file of digests that survives runs: 64 bytes of header, then 16 bytes for each, in the order they were seen.

    Attributes:
        url: a local path or any fsspec URL.
        hash_name: the hash that made the digests.
        storage_options: for fsspec.
    """

    url: str
    hash_name: HashName
    storage_options: Mapping[str, object]

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", Location(self.url))  # to be shown without secrets

    def exists(self) -> bool:
        """Whether there is such a file."""
        filesystem, path = open_filesystem(self.url, self.storage_options)
        return filesystem.exists(path)

    def read(self) -> Digests:
        """The digests in it.

        Raises:
            DataError: something else, an incomplete file, or digests of another hash.
            PathNotFoundError: no such file.
        """
        filesystem, path = open_filesystem(self.url, self.storage_options)
        raw = filesystem.read(path)
        fields = raw[:_HEADER_BYTES].removeprefix(_MAGIC).split()
        is_ours = raw.startswith(_MAGIC) and len(raw) >= _HEADER_BYTES
        if not is_ours or len(fields) != 2 or not fields[1].isdigit():
            raise DataError("not a file of seen hashes. Give one that write_seen_hashes=True wrote.", path=self.url)
        if fields[0].decode() != self.hash_name:
            problem = f"hashes of {fields[0].decode()!r}, not {self.hash_name!r}. Give hash={fields[0].decode()!r}."
            raise DataError(problem, path=self.url)
        if len(raw) != _HEADER_BYTES + DIGEST_BYTES * int(fields[1]):
            raise DataError(
                f"{len(raw):,} bytes do not hold its {int(fields[1]):,} hashes: it is cut short.", path=self.url
            )
        return as_digests(raw[_HEADER_BYTES:])

    def extend(self, digests: Iterable[Digests]) -> None:
        """Replace the file by one that also holds these; doing it twice is the same as doing it once."""
        seen = SeenHashes()
        before = [self.read()] if self.exists() else []
        pieces = [piece[seen.add(piece)].astype("<u8").tobytes() for piece in chain(before, digests)]
        header = _MAGIC + f"{self.hash_name} {len(seen)}".encode()
        filesystem, path = open_filesystem(self.url, self.storage_options)
        filesystem.replace(path, header.ljust(_HEADER_BYTES) + b"".join(pieces))


def check_hash_name(name: str) -> None:
    """Refuse a hash that is not one of `HASH_NAMES`."""
    if name not in HASH_NAMES:
        raise ConfigError(f"hash must be one of {', '.join(HASH_NAMES)}, got {name!r}.")
