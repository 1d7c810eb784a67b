"""Which records become documents: bad ones, empty ones and duplicates fall out here, and are counted.

records     a  b!  ""  a  c          b! is bad
documents   a               c        with on_bad_record="skip", empty="skip" and dedup=True
skipped     -               1 bad, 1 empty, 1 duplicate     what each document says was skipped before it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from ...errors import DataError
from ..sources.base import BadRecord, Record, too_long
from ..write.manifest import MAX_LISTED_BAD_RECORDS, BadEntry, Skipped
from .dedup import SeenHashes, as_digests
from .ledger import Document

__all__ = ["Dedup", "Drops", "OnBadRecord", "OnEmpty", "Selection"]


OnBadRecord = Literal["raise", "skip"]
OnEmpty = Literal["keep", "skip"]

_CHUNK_BYTES = 1 << 20  # text that is looked up among the seen hashes at a time
_OR_SKIP = (
    "Or give on_bad_record='skip', which counts such records and leaves them out: a run that has finished files goes "
    "on with it, and with an input that was mended it begins again, with overwrite=True."
)
_RECORD_BYTES = 64  # what a record costs beside its text


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedup:
    """How duplicates are told.

    Attributes:
        digest: the 16 bytes that stand for a text.
        seen: those of the texts so far.
    """

    digest: Callable[[str], bytes]
    seen: SeenHashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Drops:
    """Which records are duplicates, found beforehand over all ranks.

    Attributes:
        drop: of each record that is neither bad nor left out as empty, whether it goes; shape ``(records,)``.
    """

    drop: npt.NDArray[np.bool_]


class Selection:
    """Chooses documents out of records.

    Attributes:
        skipped: what fell out so far.
        bad_records: the bad ones among them, the first so many.
    """

    def __init__(
        self,
        *,
        on_bad_record: OnBadRecord,
        empty: OnEmpty,
        max_record_bytes: int,
        dedup: Dedup | Drops | None,
        skipped: Skipped,
        documents: int = 0,
        bad_records: Sequence[BadEntry] = (),
    ) -> None:
        self.skipped = skipped
        self.bad_records = list(bad_records)
        self._on_bad_record = on_bad_record
        self._empty = empty
        self._max_record_bytes = max_record_bytes
        self._dedup = dedup
        self._chosen = documents  # before the first record that it will be given

    def documents(self, records: Iterable[Record | BadRecord]) -> Iterator[Document]:
        """Those that are to be written, in order.

        Raises:
            DataError: a bad record, where they are not skipped.
        """
        valid = self._valid(records)
        if isinstance(self._dedup, Drops):
            yield from self._undropped(valid, self._dedup)
            return
        if self._dedup is None:
            for record, text_bytes in valid:
                yield Document(record, text_bytes, b"", self.skipped)
            return
        for chunk, skipped in self._chunks(valid):
            digests = [self._dedup.digest(record.text) for record, _ in chunk]
            new = self._dedup.seen.add(as_digests(b"".join(digests)))
            duplicates = self.skipped.duplicates
            for (record, text_bytes), digest, is_new, before in zip(chunk, digests, new.tolist(), skipped, strict=True):
                if is_new:
                    yield Document(record, text_bytes, digest, replace(before, duplicates=duplicates))
                else:
                    duplicates += 1
            self.skipped = replace(self.skipped, duplicates=duplicates)

    def _undropped(self, records: Iterable[tuple[Record, int]], drops: Drops) -> Iterator[Document]:
        at = self._chosen + self.skipped.duplicates
        for record, text_bytes in records:
            if at >= len(drops.drop):
                raise DataError(
                    "there are more records than when they were hashed. Hash them again.", path=record.origin
                )
            if drops.drop[at]:
                self.skipped = replace(self.skipped, duplicates=self.skipped.duplicates + 1)
            else:
                yield Document(record, text_bytes, b"", self.skipped)
            at += 1
        if at != len(drops.drop):
            raise DataError(f"there are {at:,} records, and {len(drops.drop):,} were hashed.", path="the input")

    def _valid(self, records: Iterable[Record | BadRecord]) -> Iterator[tuple[Record, int]]:
        """Records and their UTF-8 bytes."""
        for record in records:
            if isinstance(record, BadRecord):
                self._bad(record.error)
                continue
            if type(record.text) is not str or type(record.cursor) is not tuple:
                _check(record)
            try:
                text_bytes = len(record.text) if record.text.isascii() else len(record.text.encode())
            except UnicodeEncodeError as error:
                self._bad(_half_pair(error, record.origin))
                continue
            if text_bytes > self._max_record_bytes:
                self._bad(too_long("the text", text_bytes, self._max_record_bytes, record.origin))
            elif not record.text and self._empty == "skip":
                self.skipped = replace(self.skipped, empty=self.skipped.empty + 1)
            else:
                yield record, text_bytes

    def _bad(self, error: DataError) -> None:
        if self._on_bad_record == "raise":
            problem = f"{error.problem.rstrip('.')}. {_OR_SKIP}"
            raise DataError(problem, path=error.path, row_group=error.row_group, column=error.column) from error
        self.skipped = replace(self.skipped, bad=self.skipped.bad + 1)
        if len(self.bad_records) < MAX_LISTED_BAD_RECORDS:
            where = error.path if error.column is None else f"{error.path}, column {error.column!r}"
            self.bad_records.append(BadEntry(where=where, problem=error.problem))

    def _chunks(
        self, records: Iterable[tuple[Record, int]]
    ) -> Iterator[tuple[list[tuple[Record, int]], list[Skipped]]]:
        """Records, a few at a time, with what was skipped before each."""
        chunk: list[tuple[Record, int]] = []
        skipped: list[Skipped] = []
        size = 0
        for record, text_bytes in records:
            chunk.append((record, text_bytes))
            skipped.append(self.skipped)
            size += text_bytes + _RECORD_BYTES
            if size >= _CHUNK_BYTES:
                yield chunk, skipped
                chunk, skipped, size = [], [], 0
        if chunk:
            yield chunk, skipped


def _check(record: Record) -> None:
    """Refuse what a source of somebody's own may give by mistake: no record of the input, but the source is wrong.

    Raises:
        DataError: the text is none, or the cursor.
    """
    text, cursor = cast("object", record.text), cast("object", record.cursor)
    if not isinstance(text, str):
        raise DataError(
            f"the source gave a Record whose text is {text!r:.60}, of type {type(text).__name__}. Give a str, or a "
            f"BadRecord for what has no text.",
            path=str(record.origin),
        )
    if not isinstance(cursor, tuple):
        raise DataError(
            f"the source gave a Record whose cursor is {cursor!r:.60}. Give a tuple of integers, such as (5,): the "
            f"position right after the record.",
            path=str(record.origin),
        )


def _half_pair(error: UnicodeEncodeError, origin: str) -> DataError:
    return DataError(
        f"character {error.start} of the text is {error.object[error.start]!r}, half of a surrogate pair, which is no "
        f"character. Correct or remove the document.",
        path=origin,
    )
