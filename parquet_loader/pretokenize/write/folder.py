"""The output folder: no file of a set appears in it before the set is complete, unless the set is to grow.

Everything is written into a folder ``_staging-run`` inside the output, which readers of Parquet folders pass over
because of its first letter, beside the journal that lets the same command resume. `OutputFolder.publish` then moves the
files out, and at no moment shows a mixture:

    1. the old manifest goes     the folder no longer says that it is a complete set
    2. the old shards go         a reader sees fewer and fewer old files
    3. the new shards come       a reader sees more and more new files
    4. the new manifest comes    the folder says that it is a complete set again

Each step can be done twice, so a run that was killed while publishing resumes publishing.

Why not write each shard in its final place at once: a run that fails after hours would have destroyed the old set and
left an incomplete new one, which only the missing manifest shows. This way a failure at any time before publishing
leaves the old set as it was; the price is room for both sets. A rename is atomic on a disk. An
object store has no rename, but its copy shows an object whole or not at all.

A set that is published as it grows has the old set removed at the start (1, 2), and each file moved out once the
journal names it (`OutputFolder.publish_next`): what is there is never written again. Its manifest, too, comes last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from ...errors import ConfigError, PathNotFoundError, StorageError
from ...storage.base import is_hidden
from ...storage.filesystems import Filesystem, open_filesystem, relative_to
from ...storage.growing import GROWING_NAME, Growing
from ...storage.secrets import Location
from ..sources.find import InputFile
from .journal import JOURNAL_NAME, Journal
from .lock import LOCK_NAME, Claim, claimed, has_locks, lock_folder
from .manifest import MANIFEST_NAME, FileEntry, Manifest

__all__ = ["OutputFolder", "is_shard", "shard_name"]


_STAGING_PREFIX = "_staging-"
_STAGING_NAME = f"{_STAGING_PREFIX}run"
_SHARD = re.compile(r"part-\d{5,}\.parquet")
_PARALLEL_REQUESTS = 16  # publishing is one request or two a file, and object stores answer many at once


def shard_name(number: int, shards: int) -> str:
    """The final name of a shard; the digits are enough for names to sort as numbers.

    >>> shard_name(7, 20), shard_name(7, 200_000)
    ('part-00007.parquet', 'part-000007.parquet')
    """
    return f"part-{number:0{max(5, len(str(shards - 1)))}d}.parquet"


class OutputFolder:
    """A folder, on any fsspec filesystem, in which one set of files is staged and then published.

    Attributes:
        filesystem: the fsspec filesystem.
        name: the folder as it was given, without secrets, for messages.
        staging_name: of the folder in it that holds what is staged.
        found_staging: whether an earlier run had left its staging folder when this one came.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, object] | None = None,
        *,
        staging: str = _STAGING_NAME,
    ) -> None:
        self.name = str(Location(url))
        self.found_staging = False
        self.filesystem: Filesystem
        self.filesystem, path = open_filesystem(url, storage_options)
        self._given = (Location(url), storage_options)
        self._path = path.rstrip("/")
        self.staging_name = staging
        self._staging = f"{self._path}/{staging}"
        self._staging_made = False
        self._claim: Claim | None = None

    def refuse_inputs(self, inputs: Sequence[InputFile]) -> None:
        """Make sure that no input is in the output folder.

        Raises:
            ConfigError: one does.
        """
        for file in inputs:
            if file.filesystem.is_like(self.filesystem):
                self.refuse_input(file.filesystem, file.path, file.name)

    def refuse_input(self, filesystem: Filesystem, path: str, name: str) -> None:
        """`refuse_inputs` of one file, on a filesystem of the same kind."""
        if relative_to(_real(filesystem, path), _real(self.filesystem, self._path)) is not None:
            raise ConfigError(f"output={self.name!r} holds the input {name}. Choose another output folder.")

    def look(self) -> tuple[str, ...]:
        """What is in the folder, relative to it, except the files of runs; changes nothing.

        Raises:
            ConfigError: it is a file, or holds Parquet files that are not a former run's and would be read along with
                the new ones.
        """
        there = self._list()
        for each in there:
            if each.lower().endswith(".parquet") and not _is_ours(each) and not is_hidden(each):
                raise ConfigError(
                    f"output={self.name!r} holds {each!r}, which no former run wrote and which would be read along "
                    f"with the new files. Remove it, or choose another folder."
                )
        return tuple(each for each in there if not each.startswith(_STAGING_PREFIX))

    def refuse_other_runs(self, world_size: int, is_own: Callable[[Journal], bool] = lambda _: False) -> None:
        """Make sure that nothing is staged here by a run of another number of ranks, which this one would remove.

        Args:
            world_size: of this run.
            is_own: whether the journal of a run of one rank, or of a last step of several, is one of this run.

        Raises:
            ConfigError: something is.
        """
        own = re.compile(rf"_staging-(rank-\d+|dedup)-of-{world_size}")
        staged = {each.split("/", 1)[0] for each in self._list() if each.startswith(_STAGING_PREFIX)}
        others = sorted(each for each in staged - {self.staging_name} if not own.fullmatch(each))
        if _STAGING_NAME in others:
            journal = self._journal_of(_STAGING_NAME)
            if journal is not None and is_own(journal):
                others.remove(_STAGING_NAME)
        if others:
            raise ConfigError(
                f"output={self.name!r} holds {others[0]!r}, of a run of another world_size that is unfinished or under "
                f"way. Finish that run, choose another folder, or give overwrite=True to drop it."
            )

    def _list(self) -> list[str]:
        if not self.filesystem.exists(self._path):
            return []
        if self.filesystem.is_file(self._path):
            raise ConfigError(f"output={self.name!r} is a file. Choose a folder.")
        relative = (relative_to(each, self._path) for each in self.filesystem.files_below(self._path))
        return sorted(each for each in relative if each)

    def lock(self) -> int | None:
        """Keep other runs out of the folder for one that is to be started: the descriptor that it is to inherit.

        Returns:
            None where folders have no locks.

        Raises:
            ConfigError: another run is in the folder.
        """
        if not has_locks(self.filesystem):
            return None
        self._make_staging()
        return lock_folder(self._staging, self.name)

    @contextmanager
    def claimed(self, lock: int | None = None) -> Iterator[None]:
        """Keep other runs out of the folder. At the end, staged files are removed unless a journal says how to resume.

        Args:
            lock: what `lock` gave to the process that started this one.

        Raises:
            ConfigError: another run is in the folder.
        """
        self.found_staging = self.filesystem.exists(self._staging)
        if not self.filesystem.is_local:  # it has answered: what fails from here on may pass
            self.filesystem, _ = open_filesystem(*self._given, patient=True)
        self._make_staging()
        with claimed(self.filesystem, self._staging, self.name, lock) as claim:
            self._claim = claim
            try:
                yield
            except BaseException:
                # The first error is the one to tell; a storage that failed may well fail again.
                with suppress(Exception):
                    self._leave(claim)
                raise
            self._leave(claim)

    def _leave(self, claim: Claim) -> None:
        claim.check()
        if self.read_journal() is None:
            self.clear_staging()
            self.filesystem.remove_folder(self._staging)

    def _make_staging(self) -> None:
        self.filesystem.make_folder(self._staging)
        self._staging_made = True

    def staged_path(self, name: str) -> str:
        """Where, on the filesystem, a file of that name is to be written."""
        if not self._staging_made:
            self._make_staging()
        return f"{self._staging}/{name}"

    def display(self, path: str) -> str:
        """A path for messages."""
        return self.filesystem.display(path)

    def read_manifest(self) -> Manifest | None:
        """The set that is there, or None.

        Raises:
            DataError: a manifest that cannot be understood.
        """
        raw = self._read(f"{self._path}/{MANIFEST_NAME}")
        return None if raw is None else Manifest.from_json(raw)

    def read_journal(self) -> Journal | None:
        """What an unfinished run has left, or None.

        Raises:
            DataError: a journal that cannot be understood.
        """
        return self._journal_of(self.staging_name)

    def _journal_of(self, staging: str) -> Journal | None:
        path = f"{self._path}/{staging}/{JOURNAL_NAME}"
        raw = self._read(path)
        return None if raw is None else Journal.from_json(raw, self.display(path))

    def write_journal(self, journal: Journal) -> None:
        """Commit to what the journal says; the files that it names must be there already."""
        if self._claim is not None:
            self._claim.check()
        self.filesystem.sync_folder(self._staging)
        self.write_staged(JOURNAL_NAME, journal.to_json().encode())

    def write_staged(self, name: str, content: bytes) -> None:
        """Write a small file beside the shards."""
        self.filesystem.replace(self.staged_path(name), content)

    def remove_staged(self, name: str) -> None:
        """Remove a file beside the shards, if it is there."""
        path = self.staged_path(name)
        if self.filesystem.exists(path):
            self.filesystem.remove(path)

    def read_staged(self, name: str) -> bytes:
        """A file beside the shards.

        Raises:
            StorageError: it is not there, though the journal says so.
        """
        raw = self._read(f"{self._staging}/{name}")
        if raw is None:
            raise StorageError(
                f"{self.display(self._staging)}/{name} is missing, though the run's journal names it. Remove the "
                f"folder that it was in, to start again."
            )
        return raw

    def check_published(self, files: Sequence[FileEntry]) -> None:
        """Make sure that what the manifest names is there, in its size.

        Raises:
            StorageError: it is not.
        """
        self._check_sizes(self._path, files, "the manifest", "Restore the file, or start again with overwrite=True.")

    def check_staged(self, shards: Sequence[FileEntry]) -> None:
        """Make sure that what the journal names is there, in its size.

        Raises:
            StorageError: it is not.
        """
        self._check_sizes(self._staging, shards, "the run's journal", "Start again with overwrite=True.")

    def check_growing(self, files: Sequence[FileEntry]) -> None:
        """Make sure that what the journal of a growing set names is published, in its size.

        Raises:
            StorageError: it is not.
        """
        self._check_sizes(
            self._path, files, "the run's journal", "Restore the file, or start again with overwrite=True."
        )

    def _check_sizes(self, folder: str, files: Sequence[FileEntry], by: str, remedy: str) -> None:
        for file in files:
            path = f"{folder}/{file.name}"
            size = self.filesystem.size(path)
            if size != file.size_bytes:
                there = "is not there" if size is None else f"has {size:,} bytes"
                raise StorageError(f"{self.display(path)} {there}; {by} says {file.size_bytes:,} bytes. {remedy}")

    def _read(self, path: str) -> bytes | None:
        try:
            return self.filesystem.read(path)
        except PathNotFoundError:
            return None

    def publish(
        self,
        shards: Iterable[tuple[str, str]],
        manifest_json: str,
        *,
        moving: bool = False,
        on_moving: Callable[[], None] = lambda: None,
    ) -> None:
        """Replace what is in the folder by the staged shards, and say that it is complete.

        Args:
            shards: of each file where in the folder it is staged, and its final name.
            manifest_json: the manifest's text.
            moving: whether an earlier attempt came to moving, so that what lies there is new.
            on_moving: called when the old set is gone, before anything new comes.
        """
        self.write_staged(MANIFEST_NAME, manifest_json.encode())
        if not moving:
            self.remove_set()
            on_moving()
        self._each(self._move, list(shards))
        self.filesystem.sync_folder(self._path)
        self._move((f"{self.staging_name}/{MANIFEST_NAME}", MANIFEST_NAME))
        self.filesystem.sync_folder(self._path)

    def remove_set(self, keep: Collection[str] = ()) -> None:
        """Remove the files of a set, the manifest first, but for those whose names are to be kept."""
        old = [each for each in self._list() if _is_of_a_set(each) and each not in keep]
        self._each(self._remove, [each for each in old if each == MANIFEST_NAME])
        self._each(self._remove, [each for each in old if each != MANIFEST_NAME])

    def publish_next(self, names: tuple[str, str]) -> None:
        """Move the next shard of a growing set out of staging; one that is there already is left as it is.

        Args:
            names: where in the folder it is staged, and its final name.
        """
        staged, final = (f"{self._path}/{each}" for each in names)
        if not self.filesystem.exists(final):
            self.filesystem.move(staged, final)
            self.filesystem.sync_folder(self._path)
        elif self.filesystem.exists(staged):  # a copy that was not followed by its removal
            self.filesystem.remove(staged)

    def write_growing(self, text: str) -> None:
        """Replace the marker of a growing set.

        Raises:
            StorageError: it cannot be written, or another run has taken over.
        """
        if self._claim is not None:
            self._claim.check()
        if self.filesystem.is_local:
            # By way of the staging folder, where nobody minds what a kill leaves of it.
            self.write_staged(GROWING_NAME, text.encode())
            self.filesystem.move(f"{self._staging}/{GROWING_NAME}", f"{self._path}/{GROWING_NAME}")
        else:
            self.filesystem.replace(f"{self._path}/{GROWING_NAME}", text.encode())

    def read_growing(self) -> Growing | None:
        """The marker of a growing set, or None.

        Raises:
            DataError: a marker that cannot be understood.
        """
        path = f"{self._path}/{GROWING_NAME}"
        raw = self._read(path)
        return None if raw is None else Growing.from_json(raw, self.display(path))

    def remove_growing(self) -> None:
        """Remove the marker of a growing set, if it is there."""
        if self.filesystem.exists(f"{self._path}/{GROWING_NAME}"):
            self._remove(GROWING_NAME)

    def _each(self, action: Callable[[Any], None], arguments: Sequence[Any]) -> None:
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            for _ in pool.map(action, arguments):
                pass

    def _remove(self, name: str) -> None:
        self.filesystem.remove(f"{self._path}/{name}")

    def _move(self, names: tuple[str, str]) -> None:
        staged, final = f"{self._path}/{names[0]}", f"{self._path}/{names[1]}"
        if not self.filesystem.exists(staged) and self.filesystem.exists(final):
            return  # an earlier attempt has moved it
        self.filesystem.move(staged, final)

    def clear_staging(self, *, others: bool = False) -> None:
        """Remove all that is staged, the journal first.

        Args:
            others: also what other runs have left in the folder.
        """
        prefix = f"{self._path}/{_STAGING_PREFIX}" if others else f"{self._staging}/"
        journal = f"{self._staging}/{JOURNAL_NAME}"
        if self.filesystem.exists(journal):
            self.filesystem.remove(journal)
        kept = f"{self._staging}/{LOCK_NAME}"
        for path in self.filesystem.files_below(self._path):
            if path.startswith(prefix) and path != kept:
                self.filesystem.remove(path)
        for folder in self.filesystem.folders_in(self._path) if others else ():
            # Object stores have no empty folders, disks and memory do.
            if folder.startswith(prefix) and folder != self._staging:
                self.filesystem.remove_folder(folder)


def _real(filesystem: Filesystem, path: str) -> str:
    return os.path.realpath(path) if filesystem.is_local else path


def is_shard(relative: str) -> bool:
    """Whether a path in an output folder is that of a shard."""
    return _SHARD.fullmatch(relative) is not None


def _is_of_a_set(relative: str) -> bool:
    return relative in (MANIFEST_NAME, GROWING_NAME) or is_shard(relative)


def _is_ours(relative: str) -> bool:
    return _is_of_a_set(relative) or relative.startswith(_STAGING_PREFIX)
