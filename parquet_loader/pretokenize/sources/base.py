"""What a source is: records from a cursor on, and a fingerprint.

A cursor is a tuple of integers that only its source understands. Every record carries the one that stands right after
it, and ``records(cursor)`` continues there, so a run that was killed needs no more than the cursor of the last document
that it has kept:

    records()          a (1,)  b (2,)  c (3,)  d (4,)
    records((2,))                      c (3,)  d (4,)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...errors import DataError

__all__ = ["DEFAULT_MAX_RECORD_BYTES", "BadRecord", "Cursor", "Record", "Source", "too_long"]


Cursor: TypeAlias = tuple[int, ...]

DEFAULT_MAX_RECORD_BYTES = 64 << 20  # a hundred books in one; encoding takes some twenty times as much memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One document's text.

    Attributes:
        text: the document.
        origin: where it was read, for messages: ``file:line``, ``file: row n``, or the file alone.
        cursor: the position right after it.
        columns: the values of ``keep_columns``, in that order; empty where it has none of them.
    """

    text: str
    origin: str
    cursor: Cursor = field(default=(), compare=False)
    columns: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that is not what it should be; whoever reads decides whether that ends the run.

    Attributes:
        error: what is wrong with it, and where it stands.
        cursor: the position right after it, or after all those that are bad together with it.
    """

    error: DataError
    cursor: Cursor


def too_long(what: str, size_bytes: int, most: int, origin: str, *, at_least: bool = False) -> DataError:
    """The error of a record that has more bytes than are allowed."""
    return DataError(
        f"{what} has {size_bytes:,} bytes{' or more' if at_least else ''}, and max_record_bytes is {most:,}. "
        f"Correct or remove it, or raise max_record_bytes.",
        path=origin,
    )


class Source(ABC):
    """Yields records, the same ones in the same order every time, without holding more than a few of them."""

    @abstractmethod
    def records(self, cursor: Cursor | None = None) -> Iterator[Record | BadRecord]:
        """Every record after the cursor, or all of them.

        Raises:
            DataError: a file that cannot be read on from here at all, as opposed to one bad record in it.
            StorageError: a path that cannot be read.
        """

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What the records depend on, as plain JSON values: other values mean other records."""

    def kept_types(self) -> Mapping[str, Any]:
        """The Arrow types of the columns that records carry, by their names."""
        return {}

    def fraction(self, cursor: Cursor) -> float | None:
        """About how much of the whole lies before the cursor, from 0 to 1, or None where that is not known."""
        return None
