"""Which documents are written, and what belongs to each: where the source stood, the hash, what was skipped before it.

Documents go in as they are encoded and come out as row groups are written, so there are never more of them than wait
for their row group; of those that are written only the last one's place is kept, and the hashes.

    add      d1 d2 d3 d4 d5 d6
    take(4)  d1 d2 d3 d4         a row group of four: the position is now right after d4
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..sources.base import Record
from ..tokenizers.base import NOTHING_LOST, Lost
from ..write.journal import Position
from ..write.manifest import Skipped

__all__ = ["Document", "Ledger"]


@dataclass(frozen=True, slots=True)
class Document:
    """A record that will be written.

    Attributes:
        record: its text and place.
        text_bytes: of its text, in UTF-8.
        digest: its hash, or no bytes without ``dedup``.
        skipped: what was not written before it, all in all.
    """

    record: Record
    text_bytes: int
    digest: bytes
    skipped: Skipped


class Ledger:
    """Follows the writer through the documents.

    Attributes:
        position: right after the last document that is written.
    """

    def __init__(self, position: Position) -> None:
        self.position = position
        self._waiting: deque[tuple[tuple[int, ...], int, bytes, Skipped, Lost]] = deque()
        self._digests: list[bytes] = []

    def add(self, documents: Iterable[Document], lost: Mapping[int, Lost]) -> None:
        """Documents that the writer is given, without their texts; ``lost`` is what each lost, by its index."""
        self._waiting.extend(
            (each.record.cursor, each.text_bytes, each.digest, each.skipped, lost.get(at, NOTHING_LOST))
            for at, each in enumerate(documents)
        )

    def take(self, documents: int) -> None:
        """So many of them were written."""
        text_bytes = self.position.text_bytes
        cursor, skipped, lost = self.position.cursor, self.position.skipped, self.position.lost
        digests = []
        for _ in range(documents):
            cursor, size, digest, skipped, lost_here = self._waiting.popleft()
            text_bytes += size
            if lost_here is not NOTHING_LOST:
                lost += lost_here
            digests.append(digest)
        self._digests.append(b"".join(digests))
        self.position = Position(
            cursor=cursor,
            documents=self.position.documents + documents,
            text_bytes=text_bytes,
            skipped=skipped,
            lost=lost,
        )

    def take_digests(self) -> bytes:
        """The hashes of the documents written since the last call."""
        digests = b"".join(self._digests)
        self._digests = []
        return digests
