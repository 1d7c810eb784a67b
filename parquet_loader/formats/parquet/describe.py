"""What the pages of a column chunk are like, for people."""

from __future__ import annotations

from typing import NamedTuple

from ..base import ColumnChunk
from .pages import DATA_PAGE_V2, ENCODING_NAMES, NotSupported, plan_pages

__all__ = ["PageKind", "described_pages"]


class PageKind(NamedTuple):
    """What a data page is like: how its values are encoded, of which version it is, whether it has a checksum."""

    encoding: str
    version: str
    has_checksum: bool


def described_pages(raw: bytes | memoryview, chunk: ColumnChunk) -> tuple[PageKind, ...]:
    """The data pages of a column chunk; none where they are of an unknown kind.

    Raises:
        DataError: headers are damaged.
    """
    if not chunk.layout.max_definition_level:
        return ()
    try:
        _, pages = plan_pages(memoryview(raw).cast("B"), chunk)
    except NotSupported:
        return ()
    return tuple(
        PageKind(ENCODING_NAMES[page.encoding], "2" if page.kind == DATA_PAGE_V2 else "1", page.checksum is not None)
        for page in pages
    )
