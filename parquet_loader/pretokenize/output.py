"""The output folder: nothing of a set is seen in it before all of the set is there.

Everything is written into a folder ``_staging-...`` inside the output, which readers of Parquet folders pass over
because of its first letter. `OutputFolder.publish` then moves the files out, and at no moment shows a mixture:

    1. the old manifest goes     the folder no longer says that it is a whole set
    2. the old parts go          a reader sees fewer and fewer old files
    3. the new parts come        a reader sees more and more new files
    4. the new manifest comes    the folder says that it is a whole set again

Why not write each part where it belongs as it gets done: a run that fails after hours would have destroyed the old set
and left a part of the new one that nothing but the missing manifest tells from a whole one. This way a failure, at any
time before publishing, leaves the folder as it was; the price is room for both sets. A rename is atomic on a disk. An
object store has no rename, but its copy shows an object whole or not at all.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from parquet_loader.errors import ConfigError, PathNotFoundError
from parquet_loader.pretokenize.filesystems import (
    Filesystem,
    display_name,
    is_hidden,
    is_local,
    open_filesystem,
    relative_to,
    storage_errors,
)
from parquet_loader.pretokenize.manifest import MANIFEST_NAME
from parquet_loader.pretokenize.sources import InputFile

_STAGING_PREFIX = "_staging-"
_PART = re.compile(r"part-\d{5,}\.parquet")
_PARALLEL_REQUESTS = 16  # publishing is one request or two a file, and object stores answer many at once


def part_name(number: int, parts: int) -> str:
    """The final name of a part; the digits are enough for names to sort as numbers.

    >>> part_name(7, 20), part_name(7, 200_000)
    ('part-00007.parquet', 'part-000007.parquet')
    """
    return f"part-{number:0{max(5, len(str(parts - 1)))}d}.parquet"


class OutputFolder:
    """A folder, on any fsspec filesystem, in which one set of files is staged and then published.

    Attributes:
        filesystem: the fsspec filesystem.
        name: the folder as it was given, for messages.
    """

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        self.name = url
        self.filesystem: Filesystem
        self.filesystem, path = open_filesystem(url, storage_options)
        self._path = str(path).rstrip("/")
        self._staging = f"{self._path}/{_STAGING_PREFIX}{secrets.token_hex(4)}"
        self._staging_made = False
        self._old_files: list[str] = []  # relative to the folder, the manifest first
        self._published: list[str] = []

    def prepare(self, *, overwrite: bool, inputs: Sequence[InputFile]) -> None:
        """Look at what is there, change nothing.

        Raises:
            ConfigError: the folder is not empty and must not be overwritten; it holds an input; it holds Parquet files
                that are not a former run's and would be read along with the new ones.
        """
        for file in inputs:
            same_kind = type(file.filesystem) is type(self.filesystem)
            if (
                same_kind
                and relative_to(_real(file.filesystem, file.path), _real(self.filesystem, self._path)) is not None
            ):
                raise ConfigError(f"--output {self.name!r} holds the input {file.name}. Choose another output folder.")
        there = self._list()
        if there and not overwrite:
            raise ConfigError(
                f"--output {self.name!r} is not empty: it holds {there[0]!r}"
                f"{f' and {len(there) - 1} more' if len(there) > 1 else ''}. "
                f"Choose another folder, or give --overwrite to replace a former run's files."
            )
        self._old_files = sorted((each for each in there if _is_ours(each)), key=lambda each: each != MANIFEST_NAME)
        for each in there:
            if each.lower().endswith(".parquet") and not _is_ours(each) and not is_hidden(each):
                raise ConfigError(
                    f"--output {self.name!r} holds {each!r}, which no former run wrote and which would be read along "
                    f"with the new files. Remove it, or choose another folder."
                )

    def _list(self) -> list[str]:
        with storage_errors("list", self.name):
            self.filesystem.invalidate_cache()
            if self.filesystem.isfile(self._path):
                raise ConfigError(f"--output {self.name!r} is a file. Choose a folder.")
            if not self.filesystem.exists(self._path):
                return []
            relative = (relative_to(each, self._path) for each in self.filesystem.find(self._path))
            return sorted(each for each in relative if each)

    def staged_path(self, name: str) -> str:
        """Where, on the filesystem, a file of that name is to be written."""
        if not self._staging_made:
            with storage_errors("create", self.display(self._staging)):
                self.filesystem.makedirs(self._staging, exist_ok=True)
            self._staging_made = True
        return f"{self._staging}/{name}"

    def display(self, path: str) -> str:
        """A path for messages."""
        return display_name(self.filesystem, path)

    def publish(self, parts: Iterable[tuple[str, str]], manifest_json: str) -> None:
        """Replace what is in the folder by the staged parts, and say that it is whole.

        Args:
            parts: of each file the name it was staged under and its final name.
            manifest_json: the manifest's text.
        """
        staged_manifest = self.staged_path(MANIFEST_NAME)
        with storage_errors("write", self.display(staged_manifest)):
            self.filesystem.pipe_file(staged_manifest, manifest_json.encode())
        old_manifest = [each for each in self._old_files if each == MANIFEST_NAME]
        self._each(self._remove, old_manifest)
        self._each(self._remove, [each for each in self._old_files if each != MANIFEST_NAME])
        self._each(self._move, list(parts))
        self._move((MANIFEST_NAME, MANIFEST_NAME))
        self._remove_staging()

    def discard(self) -> None:
        """Remove whatever this run has put into the folder. Called after a failure, so what was there stays there."""
        for name in self._published:
            with suppress(PathNotFoundError):
                self._remove(name)
        self._remove_staging()

    def _each(self, action: Callable[[Any], None], arguments: Sequence[Any]) -> None:
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            for _ in pool.map(action, arguments):
                pass

    def _remove(self, name: str) -> None:
        path = f"{self._path}/{name}"
        with storage_errors("remove", self.display(path)):
            self.filesystem.rm_file(path)

    def _move(self, names: tuple[str, str]) -> None:
        staged, final = f"{self._staging}/{names[0]}", f"{self._path}/{names[1]}"
        self._published.append(names[1])  # before the move: an object store's can fail after its copy was made
        with storage_errors("create", self.display(final)):
            self.filesystem.mv(staged, final)

    def _remove_staging(self) -> None:
        """The staging folder goes, and with ``--overwrite`` any that a killed run left."""
        stale = {f"{self._path}/{each.split('/')[0]}" for each in self._old_files if each.startswith(_STAGING_PREFIX)}
        for folder in sorted(stale | {self._staging}):
            with storage_errors("remove", self.display(folder)):
                self.filesystem.invalidate_cache()
                if self.filesystem.exists(folder):  # an object store's folder is gone with its last object
                    self.filesystem.rm(folder, recursive=True)


def _real(filesystem: Filesystem, path: str) -> str:
    return os.path.realpath(path) if is_local(filesystem) else path


def _is_ours(relative: str) -> bool:
    return relative == MANIFEST_NAME or _PART.fullmatch(relative) is not None or relative.startswith(_STAGING_PREFIX)
