"""The marker of a set that is still being written: ``_growing.json``, beside the files that are finished.

    part-0000000.parquet   part-0000001.parquet   _growing.json             more files will come
    part-0000000.parquet   ...                    _manifest.json            the set is complete

Files appear whole, in the order of their paths, and never change. The writer rewrites the marker with every file, and
every few seconds while it lives: a heartbeat. When it fails it says why; when it is killed, the heartbeat stands still.
A folder with a manifest is complete, whatever else lies there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ..errors import DataError

__all__ = [
    "COMPLETE_NAMES",
    "GROWING_NAME",
    "GROWTH_NAMES",
    "HEARTBEAT_SECONDS",
    "MANIFEST_NAME",
    "Growing",
    "Writer",
]


GROWING_NAME = "_growing.json"
MANIFEST_NAME = "_manifest.json"
# By which other writers say that a set is complete.
COMPLETE_NAMES = ("_COMPLETE", "_SUCCESS")
# All that tell whether a set still grows.
GROWTH_NAMES = (GROWING_NAME, MANIFEST_NAME, *COMPLETE_NAMES)
HEARTBEAT_SECONDS = 5.0
_FORMAT = "parquet_loader.growing"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes a set.

    Attributes:
        program: its name.
        host: the machine's name.
        pid: the process's number there.
    """

    program: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """What a set that is being written says about itself.

    Attributes:
        state: ``"growing"``, or ``"failed"`` once the writer has ended before the set was complete.
        writer: who writes it.
        since: when this writer began, in UTC as ISO 8601.
        updated: when the marker was written: it changes while the writer lives.
        files: published so far.
        documents: in those files.
        tokens: in those files.
        row_group_tokens: of a row group, about.
        tokens_per_second: what the writer has made of late, published or not; None where it has made nothing yet.
        expected: what there will be in the end, about, as far as that is known: ``files``, ``documents``, ``tokens``,
            ``bytes_total``; and ``bytes_done``. None where nothing is.
        reason: why the writer failed, in one line; None while it has not.

    Raises:
        ValueError: another state, or counts that are none.
    """

    state: Literal["growing", "failed"] = "growing"
    writer: Writer
    since: str
    updated: str
    files: int = 0
    documents: int = 0
    tokens: int = 0
    row_group_tokens: int = 0
    tokens_per_second: float | None = None
    expected: Mapping[str, int] | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        counts = (self.files, self.documents, self.tokens, self.row_group_tokens, self.writer.pid)
        if self.state not in ("growing", "failed") or not all(type(each) is int and each >= 0 for each in counts):
            raise ValueError(f"state is {self.state!r}, and the counts are {counts}")

    def describe(self) -> str:
        """How far the writer is, in a few words."""
        by = f"by process {self.writer.pid} on {self.writer.host}"
        so_far = f"{self.files:,} files, {self.tokens:,} tokens so far, {by}, last heard of at {self.updated}"
        return f"{so_far}; it failed: {self.reason}" if self.state == "failed" else so_far

    def to_json(self) -> str:
        """The text of the marker."""
        return json.dumps({"format": _FORMAT, "version": _VERSION} | asdict(self), ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes, name: str) -> Growing:
        """The inverse of `to_json`; what a later writer says besides is passed over.

        Raises:
            DataError: something else, or a marker of another version.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            if (values["format"], values["version"]) != (_FORMAT, _VERSION):
                raise DataError(
                    f"the marker of a growing set, of {values['format']!r}, version {values['version']!r}; this "
                    f"version of the library reads {_FORMAT!r}, version {_VERSION}.",
                    path=name,
                )
            known = {each.name: values[each.name] for each in fields(Growing) if each.name in values}
            writer = Writer(**{each.name: values["writer"][each.name] for each in fields(Writer)})
            return Growing(**known | {"writer": writer})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"not the marker of a growing set ({error!r}).", path=name) from error
