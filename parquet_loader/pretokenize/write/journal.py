"""What a run has finished, in one small file beside its shards, so that the same command can resume.

    shard 0 closed   shard 1 closed           killed
    journal: 1       journal: 2 shards        (shard 2 is written again, from the position after shard 1)

The journal is replaced as a whole each time, after the shard that it names is complete on the disk: it never names what
is not there. What is there and not named, a half-written shard, is written again. The hashes of a shard's documents are
in a file beside the shard, named by the journal in the same moment, so what has been seen is always what has been
written.

Its phases::

    writing      shards are being added
    removing     all shards are there; an old set's files are being removed
    moving       shards, then the manifest, are being moved to where they belong

The shards of a set that is published as it grows are moved one by one, each right after the journal has named it: while
it is being written nothing of an old set is left, and from "writing" its phase becomes "moving".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, get_args

from ...errors import DataError
from ..sources.base import Cursor
from ..tokenizers.base import NOTHING_LOST, Lost
from .manifest import BadEntry, FileEntry, Skipped, from_plain

__all__ = ["JOURNAL_NAME", "JOURNAL_VERSION", "Journal", "Phase", "Position", "differences"]


JOURNAL_NAME = "journal.json"
JOURNAL_VERSION = 1
_OF_A_FILE = {"name", "size_bytes", "version"}

Phase = Literal["writing", "removing", "moving"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a run has come: right after a document that was written.

    Attributes:
        cursor: the source's, or None at the start.
        documents: written so far.
        text_bytes: of those documents, in UTF-8.
        skipped: what was not written before this position.
        lost: text that the vocabulary could not hold, of the documents that were written.
        rows: where documents are packed: the rows that are written of those that come next, which are packed together.
        cut_documents: documents that were longer than a row.
    """

    cursor: Cursor | None = None
    documents: int = 0
    text_bytes: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    lost: Lost = NOTHING_LOST
    rows: int = 0
    cut_documents: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """All that a run needs to resume.

    Attributes:
        fingerprint: what the result depends on.
        phase: see above.
        parts: the finished shards, under their staged names, in order.
        position: where the next shard begins.
        bad_records: those before the position that are listed.
    """

    fingerprint: Mapping[str, Any]
    phase: Phase = "writing"
    parts: tuple[FileEntry, ...] = ()
    position: Position = field(default_factory=Position)
    bad_records: tuple[BadEntry, ...] = ()

    def __post_init__(self) -> None:
        if self.phase not in get_args(Phase):
            raise ValueError(f"phase is {self.phase!r}")

    @property
    def grows(self) -> bool:
        """Whether shards are published as they are finished."""
        return self.fingerprint.get("publish") == "as-finished"

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps({"version": JOURNAL_VERSION} | asdict(self), ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes, name: str) -> Journal:
        """The inverse of `to_json`.

        Raises:
            DataError: something else, or a journal of another version.
        """
        try:
            values = json.loads(text)
            if values.pop("version") != JOURNAL_VERSION:
                raise DataError(
                    "written by another version of the library. Start again with overwrite=True.", path=name
                )
            at = values.pop("position")
            at["skipped"] = from_plain(Skipped, at["skipped"])
            at["lost"] = from_plain(Lost, at.get("lost", {}))  # journals from before it was counted have none
            if at["cursor"] is not None:
                at["cursor"] = tuple(at["cursor"])
            return from_plain(
                Journal,
                values
                | {
                    "parts": tuple(from_plain(FileEntry, entry) for entry in values["parts"]),
                    "bad_records": tuple(from_plain(BadEntry, entry) for entry in values["bad_records"]),
                    "position": from_plain(Position, at),
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"not a run's journal ({error!r}). Start again with overwrite=True.", path=name) from error


def differences(was: object, now: object, where: str = "") -> list[str]:
    """In which places two fingerprints differ, each as ``place: was 1, is 2``; of files, which are others, and how.

    >>> differences({"a": {"b": 1}, "c": [1, 2]}, {"a": {"b": 2}, "c": [1]})
    ['a.b: was 1, is 2', 'c: was of 2, is of 1 entries']
    """
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        keys = [*was, *(key for key in now if key not in was)]
        return [
            each
            for key in keys
            for each in differences(was.get(key), now.get(key), f"{where}.{key}" if where else str(key))
        ]
    if isinstance(was, (list, tuple)) and isinstance(now, (list, tuple)):
        old, new = _files(was), _files(now)
        if old is not None and new is not None and was and now:
            return _file_differences(old, new)
        if len(was) != len(now):
            return [f"{where}: was of {len(was)}, is of {len(now)} entries"]
        return [
            each for at, pair in enumerate(zip(was, now, strict=True)) for each in differences(*pair, f"{where}[{at}]")
        ]
    return [] if was == now else [f"{where}: was {was!r}, is {now!r}"]


def _files(entries: Sequence[object]) -> dict[str, tuple[int, str]] | None:
    """Sizes and versions of files, by their names; None where the entries are something else."""
    found = {}
    for each in entries:
        if not isinstance(each, Mapping) or each.keys() != _OF_A_FILE:
            return None
        found[each["name"]] = (each["size_bytes"], each["version"])
    return found if len(found) == len(entries) else None


def _file_differences(was: Mapping[str, tuple[int, str]], now: Mapping[str, tuple[int, str]]) -> list[str]:
    """Which files are others, and how."""
    others = [name for name in was if name in now and was[name] != now[name]]
    others.sort(key=lambda name: was[name][0] == now[name][0])  # first those that are others for sure
    changed = [f"{name} is gone" for name in was if name not in now]
    changed += [f"{name} is new" for name in now if name not in was]
    changed += [_file_difference(name, was[name], now[name]) for name in others]
    if changed or list(was) == list(now):
        return changed
    return [f"the files are the same in another order: the first was {next(iter(was))}, is {next(iter(now))}"]


def _file_difference(name: str, was: tuple[int, str], now: tuple[int, str]) -> str:
    if was[0] != now[0]:
        return f"{name} has changed: it had {was[0]:,} bytes, and has {now[0]:,}"
    if not was[1].isdecimal():
        return f"{name} has changed: its version was {was[1] or 'not told'}, and is {now[1] or 'not told'}"
    # On a disk the version is a time, in nanoseconds.
    seconds, nanoseconds = divmod(int(was[1]), 1_000_000_000)
    time = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"
    return (
        f"{name} was written again since, with as many bytes as it had (if they are the same, `touch -d {time}` gives "
        f"it its old time)"
    )
