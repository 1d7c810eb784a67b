"""Where the files lie: list them, and read a byte range of one, nothing else.

A source is a folder, a file, a glob, or a list of them, local or on any fsspec filesystem. Its *root* is the deepest
folder that all of it lies under; a file is known by its path relative to that root, so that a dataset may move.

    source                             root            files
    /data/set                          /data/set       a.parquet, en/b.parquet
    /data/set/a.parquet                /data/set       a.parquet
    s3://bucket/set/lang=*/            bucket/set      lang=en/b.parquet, ...
    [/data/x, /data/y/b.parquet]       /data           x/a.parquet, y/b.parquet

Folders and globs give the files of one kind at any depth, ``*.parquet`` for instance (`kinds`), passing over every file
and folder whose name starts with ``_`` or ``.`` (temporaries, ``_SUCCESS``, checksums). A file named outright is taken
as it is, and with a file of raw ids comes what lies beside it and tells of it. A path that is none, and is one with
``.idx`` behind it, means that: Megatron's sets go by such names. Links are followed as though what they point to lay in
their place, except a link back to a folder that it lies in. In a glob ``*``, ``?`` and ``[...]`` match within a name,
and ``**`` stands for any number of folders; a path that exists is never taken for a glob, so that a folder may be
called ``a[1]``. Where a glob finds files, what tells that a set is still being written is looked for beside them; files
that are named one by one may be of one: nobody said that they were all.

Every read names the size and version (modification time, ETag) that the file had when it was listed, and fails where
they are others afterwards: tokens of a replaced file are never read in silence. Looking after the read and not before
it leaves no moment in which a replacement could slip through.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from ..advice import conversion_of
from ..errors import ConfigError, FileChangedError, ParquetLoaderError, PathNotFoundError, StorageError
from .growing import GROWING_NAME, GROWTH_NAMES, MANIFEST_NAME, Growing
from .kinds import beside, is_data, is_hidden, kind_of, of_one_kind, patterns

__all__ = [
    "WILDCARD",
    "Entry",
    "FileInfo",
    "Found",
    "Listing",
    "Storage",
    "changed_error",
    "common_base",
    "entry_of",
    "folders_of",
    "is_data",
    "is_hidden",
    "refuse_table",
    "tells_of_growth",
    "ways_after_change",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file as it was listed.

    Attributes:
        path: POSIX path relative to the storage's root.
        size: bytes.
        version: changes whenever the content does, as far as the filesystem tells: an ETag or a modification time.
        is_beside: whether the source does not name it, nor a folder above it, but a file of which it may tell. It may
            then tell of others, too, that are not meant.
    """

    path: str
    size: int
    version: str
    is_beside: bool = field(default=False, compare=False)


@runtime_checkable
class Storage(Protocol):
    """The files of one source. Safe to use from many threads, and after a fork."""

    @property
    def root(self) -> str:
        """The root, for people to read: it holds no secrets."""

    @property
    def identity(self) -> str:
        """What tells this source from others, the same for ever: its paths, without secrets."""

    def list_files(self) -> list[FileInfo]:
        """Every file of the source, sorted by path; never an empty list.

        Raises:
            PathNotFoundError: there is no such path, or no data file in it.
            StorageError: it cannot be listed.
        """

    @property
    def retries(self) -> int:
        """How many times a request has been tried again after a passing fault."""

    @property
    def is_remote(self) -> bool:
        """Whether a read waits for a network: many are then worth making concurrently."""

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        """``length`` bytes from byte ``start`` of ``file``, all of them.

        Args:
            file: as it was listed.
            start, length: the range.
            stop: when it is set, waiting for a network ends as soon as it can.

        Raises:
            FileChangedError: the file is gone, or its size or version is not ``file``'s.
            StorageError: it cannot be read.
            LoaderClosedError: ``stop`` was set.
        """


WILDCARD = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a source.

    Attributes:
        path: without a final slash.
        base: the deepest folder without a wildcard, with its final slash: ``/data/`` of ``/data/part-*/x``.
    """

    path: str
    base: str
    kind: Literal["file", "folder", "glob"]


def entry_of(path: str, kind: Literal["file", "folder", "glob"]) -> Entry:
    """The entry of a path without a final slash."""
    if kind == "folder":
        return Entry(path, path.rstrip("/") + "/" if path else "", kind)
    wildcard = WILDCARD.search(path) if kind == "glob" else None
    return Entry(path, path[: path.rfind("/", 0, wildcard.start() if wildcard else None) + 1], kind)


def folders_of(entry: Entry, paths: Iterable[str]) -> list[str]:
    """The folders in which files lie that a glob has found, each with its final slash: from its base on down.

    A set that is still being written may be found in any of them, by names that the glob does not match.
    """
    found = {entry.base}
    for path in paths:
        folder = path[: path.rfind("/") + 1]
        while len(folder) > len(entry.base) and folder not in found:
            found.add(folder)
            folder = folder[: folder.rfind("/", 0, -1) + 1]
    return sorted(found)


def tells_of_growth(path: str) -> bool:
    """Whether a file is no data, by its name, and tells of a set that may still grow."""
    return path.rsplit("/", 1)[-1] in GROWTH_NAMES


def common_base(bases: Iterable[str]) -> str:
    """The deepest folder that contains all of these: ``/data/`` of ``/data/x/`` and ``/data/y/z/``."""
    split = [base.split("/")[:-1] for base in bases]
    common = 0
    while all(len(parts) > common and parts[common] == split[0][common] for parts in split):
        common += 1
    return "".join(part + "/" for part in split[0][:common])


_TABLE_LOGS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi", "_hudi": "Hudi"}
_ICEBERG_LOG = re.compile(r"(?:^|/)metadata/[^/]*\.metadata\.json$")


def refuse_table(path: str) -> None:
    """Refuse a folder in which a path lies that only tables with a log of their own have: Delta Lake, Hudi, Iceberg.

    Their folders keep files that are no longer part of the table, or not yet.
    """
    parts = path.split("/")
    kind = next((_TABLE_LOGS[part] for part in parts if part in _TABLE_LOGS), None)
    if kind is None and _ICEBERG_LOG.search(path):
        kind = "Iceberg"
    if kind is not None:
        raise ConfigError(
            f"{path} is the log of a table of {kind}: its folder may hold files that are no longer part of it, "
            "and only the log tells which are; give the paths of its live files as a list, which the table's own "
            "library names, or rewrite the table as plain Parquet"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A file that an entry of a source leads to.

    Attributes:
        path: as the filesystem has it.
        size: bytes; None where the filesystem does not tell.
        version: as in `FileInfo`.
        is_named: whether the entry names it, outright or by a glob that matches the file, and not a folder above it.
        modified: when it was written, in seconds since 1970; None where the filesystem does not tell.
        is_beside: as in `FileInfo`.
    """

    path: str
    size: int | None
    version: str
    is_named: bool
    modified: float | None = None
    is_beside: bool = False


_TELL_OF_GROWTH = ("/" + GROWING_NAME, "/" + MANIFEST_NAME)


class Listing:
    """What a source's entries lead to.

    Args:
        wants: of a path below a folder or a glob, whether it is wanted; a file that is named outright always is.

    Attributes:
        found: each entry's files, sorted by path.
        passed_over: names that are not wanted.
    """

    def __init__(self, wants: Callable[[str], bool]) -> None:
        self._wants = wants
        self.found: list[list[Found]] = []
        self.passed_over: list[str] = []
        self._tell_of_growth: set[str] = set()  # markers of sets that grow, and manifests

    def wants(self, path: str, entry: Entry) -> bool:
        """Whether a path that an entry leads to is wanted."""
        if entry.kind != "file":
            refuse_table(path)
            if path.endswith(_TELL_OF_GROWTH):
                self._tell_of_growth.add(path)
        wanted = entry.kind == "file" or (path.startswith(entry.base) and self._wants(path[len(entry.base) :]))
        if not wanted:
            self.passed_over.append(path.rsplit("/", 1)[-1])
        return wanted

    def beside(self) -> list[str]:
        """Where that may lie, beside the files that are named, which tells of them; less what was found."""
        every = [found for each in self.found for found in each]
        places = {place for found in every if found.is_named for place in beside(found.path)}
        return sorted(places - {found.path for found in every})

    def data_files(
        self,
        root: str,
        shown: str,
        kind: str | None,
        *,
        follow: bool = False,
        read: Callable[[str], bytes] | None = None,
    ) -> list[FileInfo]:
        """The files of one kind by path, of a source that is shown as ``shown``; says clearly when there are none.

        Args:
            root: what their paths begin with.
            shown, kind: see above.
            follow: whether a set that is still being written is taken as it is now.
            read: what a path holds, for what a writer says of its failure.

        Raises:
            ConfigError: a file is named twice, there are files of several kinds, or the set is still being written,
                and is not to be followed.
            PathNotFoundError: there is none.
            StorageError: a file has no size, or a name that is not UTF-8.
        """
        if not follow:
            self._refuse_growing(root, shown, read)
        files: dict[str, FileInfo] = {}
        named: set[str] = set()
        every = [found for each in self.found for found in each]
        settled = of_one_kind(every, kind, shown, path=lambda found: found.path, named=lambda found: found.is_named)
        for found in settled:
            relative = found.path[len(root) :]
            path = f"{shown.rstrip('/')}/{relative}"
            if relative in files:
                raise ConfigError(f"{path} is named twice by the list of paths; each file may come once")
            if found.size is None:
                raise StorageError(f"{path} has no size; a data file is read from its end")
            try:
                relative.encode()
            except UnicodeEncodeError:
                raise StorageError(f"the name of {os.fsencode(path)!r} is not UTF-8; rename it") from None
            if found.is_named:
                named.add(relative)
            files[relative] = FileInfo(path=relative, size=found.size, version=found.version, is_beside=found.is_beside)
        if not any(kind_of(path) or path in named for path in files):
            others = sorted([*self.passed_over, *(found.path.rsplit("/", 1)[-1] for found in every)])
            seen = ", ".join(others[:5])
            advice = conversion_of(others, shown)
            wanted = "Parquet, Arrow or raw" if kind is None else {"parquet": "Parquet"}.get(kind, kind)
            raise PathNotFoundError(
                f"{shown} holds no {wanted} file: looked for {', '.join(patterns(kind))} at any depth, passing over "
                "names that start with _ or .; "
                + (f"found only {len(others)} others ({seen})" if seen else "found nothing")
                + (f": {advice}" if advice else "")
            )
        return [files[path] for path in sorted(files)]

    def growing(self) -> list[str]:
        """The markers of sets that are still being written."""
        return [
            path
            for path in sorted(self._tell_of_growth)
            if path.endswith("/" + GROWING_NAME)
            and path.removesuffix(GROWING_NAME) + MANIFEST_NAME not in self._tell_of_growth
        ]

    def failure(self, read: Callable[[str], bytes]) -> str | None:
        """Why the first of their writers failed that says so; None where none does."""
        return next(filter(None, (self._failure(path, read) for path in self.growing())), None)

    @staticmethod
    def _failure(path: str, read: Callable[[str], bytes]) -> str | None:
        with contextlib.suppress(ParquetLoaderError, OSError):  # it may be gone, or no marker of this version
            return Growing.from_json(read(path), path).reason
        return None

    def _refuse_growing(self, root: str, shown: str, read: Callable[[str], bytes] | None) -> None:
        for path in self.growing():
            where = f"{shown.rstrip('/')}/{path.removesuffix(GROWING_NAME)[len(root) :]}".rstrip("/")
            reason = None if read is None else self._failure(path, read)
            state = (
                "is still being written" if reason is None else f"is not complete, as its writer has failed: {reason}"
            )
            again = "if its writer has failed or died, run it again" if reason is None else "run the writer again"
            raise ConfigError(
                f"{where} {state}; it has a {GROWING_NAME} and no {MANIFEST_NAME}. Name it itself to read it while "
                "it grows, with follow=True (--follow of commands that look at a run), first in the order of its "
                f"files; or wait until it is complete ({again}), for an order that is shuffled over all of it. A run "
                "that has followed it goes on either way, in its order"
            )


def ways_after_change(*, same_size: bool) -> str:
    """What to do about a file that is not as it was: a clause."""
    ways = "put the old file back, or start a new run on the new data"
    if same_size:  # as by touch, or where it was copied once more: a state knows of no times
        return f"if it holds what it held, a new loader goes on from the state; otherwise {ways}"
    return ways


def changed_error(
    path: str, how: str, now: tuple[int | None, str] | None = None, *, same_size: bool = False
) -> FileChangedError:
    """The error for a file that is not as it was listed, how it differs, and its size and version now."""
    error = FileChangedError(
        f"{path} is not the file that was indexed: {how}; {ways_after_change(same_size=same_size)}"
    )
    error.now = now
    return error
