"""A fingerprint of what a set begins with: a chain over its row groups, of which each link covers all before it.

    link 0         link 1                    link 2
    ""     ──────► sha256(link 0, group 0) ─► sha256(link 1, group 1) ─► ...

So the fingerprint of the first n row groups is the same however many come after them.
"""

from __future__ import annotations

import hashlib

from .index import DatasetIndex

__all__ = ["PrefixChain"]


class PrefixChain:
    """The chain of a set, made as far as it is asked for. Of a set that grows, one serves all of its indexes."""

    def __init__(self) -> None:
        self._links = [b""]

    def at(self, index: DatasetIndex, groups: int) -> str:
        """The fingerprint of the first row groups of an index: paths, and documents and tokens of each. 64 hex digits;
        empty of none.

        Args:
            index: of the set.
            groups: how many.
        """
        made = len(self._links) - 1
        if groups > made:
            arrays = (index.file, index.row_group, index.rows, index.tokens)
            for file, *numbers in zip(*(array[made:groups].tolist() for array in arrays), strict=True):
                told = f"{index.files[file].path}\0{numbers}".encode()
                self._links.append(hashlib.sha256(self._links[-1] + told).digest())
        return self._links[groups].hex()
