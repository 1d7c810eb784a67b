"""What a check has done, in a file: to go on from, and to compare the next one with.

    record      of the last check that came to its end: of every file its size and version, and checksums of its bytes
    progress    of one that has not: what was found in each row group so far

A record's checksums are compared where a file has the size and time that it had then: what differs has changed without
a trace. They stay as they are until the file is written anew, so that the damage is found again by each check.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..container import DamagedContainerError, OtherVersionError, container_kind, open_container, seal_container
from ..errors import ConfigError, ParquetLoaderError, StorageError
from ..index.cache import default_cache_dir
from ..index.index import DatasetIndex
from ..storage.atomic import write_atomically
from .scan import DOCUMENT, FIELDS, NAMED, ScannedGroup

if TYPE_CHECKING:
    import os

__all__ = ["CheckState", "Earlier", "Fault", "refuse_state", "state_path"]

_KIND = "check"
_VERSION = 1  # another one where other bytes than before are without a checksum of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that is wrong.

    Attributes:
        kind: ``"unreadable"``, ``"damaged"``, ``"changed"``, ``"ids"``, ``"statistics"`` or ``"eos"``.
        path: the file, relative to the set's root.
        row_group: its number in the file; None for the whole file.
        problem: what is wrong, and what to do.
    """

    kind: str
    path: str
    row_group: int | None
    problem: str


class Earlier(NamedTuple):
    """What an earlier check found: a checksum, and when."""

    checksum: int
    date: str


def _integer(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError("it holds something else where a number should be")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("it holds something else where text should be")
    return value


def _record(found: Any) -> dict[str, list[Any]]:
    """A record, by file: [size, version, checksum of the rest, {start of a row group: checksum}, date]."""
    record: dict[str, list[Any]] = {}
    for path, (size, version, rest, groups, date) in found.items():
        checked = {_integer(start): _integer(checksum) for start, checksum in groups.items()}
        record[_text(path)] = [_integer(size), _text(version), _integer(rest), checked, _text(date)]
    return record


def state_path(cache_dir: str | os.PathLike[str] | None, identity: str, column: str) -> Path | None:
    """Where a check of a source is kept; None for a user without a home folder."""
    key = hashlib.sha256(f"{identity}\0{column}".encode(errors="surrogateescape")).hexdigest()[:32]
    with contextlib.suppress(RuntimeError):
        return (default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()) / f"{key}.check"
    return None


def refuse_state(path: Path) -> None:
    """Refuse a file for a check's state that is anything else, or that cannot be written; nothing is changed.

    Raises:
        ConfigError: it is there, and no state of a check.
        StorageError: it cannot be written.
    """
    try:
        if path.exists() or path.is_symlink():
            if not path.is_file():
                raise ConfigError(f"{path} is no file that a check could be kept in: name another one with state")
            with path.open("rb") as file:
                head = file.read(1 << 10)
            if head and container_kind(head) != _KIND:
                raise ConfigError(
                    f"{path} is not from a check, and stays as it is: name another file, or none, with state"
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        if isinstance(error, ParquetLoaderError):
            raise
        raise StorageError(
            f"what a check finds cannot be kept in {path} ({error.strerror}): name another file with state"
        ) from error


class CheckState:
    """What a check has found so far. One thread writes to it.

    Attributes:
        path: of its file.
        done: which row groups have been looked at, shape ``(row groups,)``.
        numbers: what was found in each, shape ``(row groups, FIELDS)``, int64.
        checksums: of each row group's bytes that have none of their own; -1 where they could not be read.
        rest: of the bytes of each file that are in none, shape ``(files,)``; -1 where they have not been read, -2
            where they could not be.
        documents: of each row group, of the dtype `DOCUMENT`.
        longest: (tokens, row group, document) of the longest documents.
        faults: what is wrong so far.
        problem: why it could not be written.
    """

    def __init__(self, path: Path | None, index: DatasetIndex, asked: Mapping[str, Any]) -> None:
        groups = len(index)
        self.path = path
        self._index = index
        self._asked = {**asked, "index": hashlib.sha256(index.to_bytes()).hexdigest()}
        self._record: dict[str, list[Any]] = {}
        self._files: dict[int, list[Any] | None] = {}
        self.done = np.zeros(groups, bool)
        self.numbers = np.zeros((groups, len(FIELDS)), np.int64)
        self.numbers[:, [FIELDS.index(name) for name in FIELDS if name.startswith("first_")]] = -1
        self.checksums = np.full(groups, -1, np.int64)
        self.rest = np.full(len(index.files), -1, np.int64)
        self.documents: list[npt.NDArray[Any]] = [np.empty(0, DOCUMENT)] * groups
        self.longest: list[tuple[int, int, int]] = []
        self.faults: list[Fault] = []
        self.problem: OSError | None = None

    @classmethod
    def opened(cls, path: Path | None, index: DatasetIndex, asked: Mapping[str, Any]) -> CheckState:
        """That of a file, as far as it is of the same files and questions; else a fresh one."""
        state = cls(path, index, asked)
        try:
            payload = open_container(path.read_bytes(), _KIND, _VERSION) if path is not None else {}
            state._take(payload)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OtherVersionError:
            pass  # another release's: replaced
        except (OSError, DamagedContainerError, AttributeError, KeyError, TypeError, ValueError) as error:
            warnings.warn(f"{path} cannot be used ({error}); checking from the start", stacklevel=3)
            return cls(path, index, asked)
        return state

    def _take(self, payload: Mapping[str, Any]) -> None:
        record = _record(payload.get("record", {}))
        found = payload.get("progress")
        if found and found["asked"] == self._asked:
            self._take_progress(found)
        self._record = record

    def _take_progress(self, found: Mapping[str, Any]) -> None:
        self.done = np.frombuffer(found["done"], np.uint8).astype(bool)
        self.numbers = np.frombuffer(found["numbers"], "<i8").reshape(-1, len(FIELDS)).astype(np.int64)
        self.checksums = np.frombuffer(found["checksums"], "<i8").astype(np.int64)
        self.rest = np.frombuffer(found["rest"], "<i8").astype(np.int64)
        counts = np.frombuffer(found["counts"], "<i8")
        documents = np.frombuffer(found["documents"], DOCUMENT)
        groups = len(self._index)
        if (
            {len(self.done), len(self.numbers), len(self.checksums), len(counts)} != {groups}
            or len(self.rest) != len(self._index.files)
            or (counts < 0).any()
            or counts.sum() != len(documents)
        ):
            raise ValueError("its arrays are not of one length")
        self.documents = np.split(documents, np.cumsum(counts)[:-1]) if groups else []
        self.longest = [
            (_integer(tokens), _integer(group), _integer(place)) for tokens, group, place in found["longest"]
        ]
        if any(not 0 <= group < groups for _, group, _ in self.longest):
            raise ValueError("a document is of no row group")
        self.faults = [
            Fault(
                kind=_text(kind),
                path=_text(path),
                row_group=None if group is None else _integer(group),
                problem=_text(problem),
            )
            for kind, path, group, problem in found["faults"]
        ]

    # ── the earlier check ────────────────────────────────────────────────────────────────────────────────────────

    def _earlier(self, number: int) -> list[Any] | None:
        """What the record has of a file as it is now."""
        if number not in self._files:
            file = self._index.files[number]
            kept = self._record.get(file.path)
            self._files[number] = kept if kept and kept[:2] == [file.size, file.version] and file.version else None
        return self._files[number]

    def changes(self, unreadable: set[str]) -> str | None:
        """Which files are other ones than in the earlier check, in words: what it knew of them is not compared.

        Args:
            unreadable: files that are not in the index since they cannot be read.
        """
        if not self._record:
            return None
        now = {file.path: (file.size, file.version) for file in self._index.files}
        found = {
            "new": sorted(now.keys() - self._record.keys()),
            "gone": sorted(self._record.keys() - now.keys() - unreadable),
            "written or copied anew": sorted(
                path for path, kept in self._record.items() if path in now and now[path] != (kept[0], kept[1])
            ),
        }
        told = [
            f"{len(paths):,} {what} ({', '.join(paths[:3])}{', ...' if len(paths) > 3 else ''})"
            for what, paths in found.items()
            if paths
        ]
        return f"of the files since the last check: {'; '.join(told)}" if told else None

    def earlier_rest(self, number: int) -> Earlier | None:
        """What an earlier check found outside of a file's row groups, if the file is as it was."""
        kept = self._earlier(number)
        return None if kept is None or kept[2] < 0 else Earlier(kept[2], kept[4])

    def earlier_group(self, group: int) -> Earlier | None:
        """The same of a row group."""
        kept = self._earlier(int(self._index.file[group]))
        checksum = None if kept is None else kept[3].get(int(self._index.start[group]))
        return None if kept is None or checksum is None else Earlier(checksum, kept[4])

    # ── this one ─────────────────────────────────────────────────────────────────────────────────────────────────

    def keep(self, group: int, scanned: ScannedGroup | None, checksum: int, faults: list[Fault]) -> None:
        """A row group has been looked at; None where it could not be decoded."""
        if scanned is not None:
            self.numbers[group] = scanned.numbers
            self.documents[group] = scanned.documents
            new = [(tokens, group, document) for tokens, document in scanned.longest]
            self.longest = sorted([*self.longest, *new], key=lambda each: (-each[0], *each[1:]))[:NAMED]
        self.checksums[group] = checksum
        self.faults += faults
        self.done[group] = True

    def keep_rest(self, number: int, checksum: int, faults: list[Fault]) -> None:
        """The rest of a file has been looked at."""
        self.rest[number] = checksum if checksum >= 0 else -2
        self.faults += faults

    def save(self) -> None:
        """Write what is done to the file."""
        faults = [[each.kind, each.path, each.row_group, each.problem] for each in self.faults]
        self._write(
            {
                "asked": self._asked,
                "done": self.done.tobytes(),
                "numbers": self.numbers.astype("<i8").tobytes(),
                "checksums": self.checksums.astype("<i8").tobytes(),
                "rest": self.rest.astype("<i8").tobytes(),
                "documents": np.concatenate([np.empty(0, DOCUMENT), *self.documents]).view(np.uint8).data,
                "counts": np.array([len(each) for each in self.documents], "<i8").tobytes(),
                "longest": self.longest,
                "faults": faults,
            }
        )

    def finish(self, faults_of_files: set[str]) -> OSError | None:
        """Make a record of it; returns why it could not be written.

        Args:
            faults_of_files: files that are not in the index since they cannot be read: what is known of them stays.
        """
        date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        record = {path: kept for path, kept in self._record.items() if path in faults_of_files}
        for number, file in enumerate(self._index.files):
            earlier = self._earlier(number)
            own = self._index.groups_of(number)
            pairs = zip(self._index.start[own].tolist(), self.checksums[own].tolist(), strict=True)
            groups = {start: checksum for start, checksum in pairs if checksum >= 0}
            if earlier is not None:
                groups |= earlier[3]
            rest = int(self.rest[number])
            if earlier is not None and earlier[2] >= 0:
                rest = earlier[2]
            record[file.path] = [file.size, file.version, rest, groups, date if earlier is None else earlier[4]]
        self._record = record
        self._write(None)
        return self.problem

    def _write(self, progress: dict[str, Any] | None) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, seal_container(_KIND, _VERSION, {"record": self._record, "progress": progress}))
            self.problem = None
        except OSError as error:
            self.problem = error
