"""What a set of tokenized files says about itself: in ``_manifest.json``, and in every file's own metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...errors import DataError
from ..tokenizers.base import NOTHING_LOST, Lost, TokenizerInfo

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "MAX_LISTED_BAD_RECORDS",
    "BadEntry",
    "Encoding",
    "FileEntry",
    "Manifest",
    "Skipped",
]


MANIFEST_NAME = "_manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One Parquet file.

    Attributes:
        name: its name in the output folder.
        documents: its rows.
        tokens: its tokens, end-of-document tokens included where they were appended.
        row_groups: its row groups.
        size_bytes: its size.
    """

    name: str
    documents: int
    tokens: int
    row_groups: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How text became tokens: the same for every file of a set.

    Attributes:
        column: the column of tokens.
        dtype: ``"uint16"`` or ``"int32"``.
        tokenizer: what is known of the tokenizer, with the vocabulary's size and the end-of-document token.
        eos_appended: whether every document ends with that token.
    """

    column: str
    dtype: str
    tokenizer: TokenizerInfo
    eos_appended: bool

    def to_dict(self) -> dict[str, Any]:
        """The plain values that JSON holds."""
        info = self.tokenizer
        return {
            "format": "parquet_loader.pretokenize",
            "version": FORMAT_VERSION,
            "column": self.column,
            "dtype": self.dtype,
            "tokenizer": {"name": info.name, "sha256": info.sha256},
            "vocab_size": info.vocab_size,
            "eos_token": info.eos_token,
            "eos_id": info.eos_id,
            "eos_appended": self.eos_appended,
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Encoding:
        """The inverse of `to_dict`."""
        info = TokenizerInfo(
            name=values["tokenizer"]["name"],
            sha256=values["tokenizer"]["sha256"],
            vocab_size=values["vocab_size"],
            eos_token=values["eos_token"],
            eos_id=values["eos_id"],
        )
        return Encoding(
            column=values["column"], dtype=values["dtype"], tokenizer=info, eos_appended=values["eos_appended"]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Records that were read and not written.

    Attributes:
        duplicates: by ``dedup``.
        empty: texts without a character, by ``empty="skip"``.
        bad: by ``on_bad_record="skip"``.
    """

    duplicates: int = 0
    empty: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BadEntry:
    """A record that was skipped because it is not what it should be.

    Attributes:
        where: file and line, or file and row.
        problem: what is wrong.
    """

    where: str
    problem: str


MAX_LISTED_BAD_RECORDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What describes a set: written last, so that a folder that has one is complete.

    Attributes:
        encoding: how text became tokens.
        files: every Parquet file, in order.
        text_bytes: UTF-8 bytes of the documents.
        skipped: how many records were not written.
        bad_records: which of them were bad, the first `MAX_LISTED_BAD_RECORDS`.
        lost: text that the vocabulary could not hold.
        fingerprint: what the set depends on: the source, the options.
    """

    encoding: Encoding
    files: tuple[FileEntry, ...]
    text_bytes: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    bad_records: tuple[BadEntry, ...] = ()
    lost: Lost = NOTHING_LOST
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """Documents of all files."""
        return sum(file.documents for file in self.files)

    @property
    def tokens(self) -> int:
        """Tokens of all files."""
        return sum(file.tokens for file in self.files)

    def to_json(self) -> str:
        """The text of ``_manifest.json``."""
        values = self.encoding.to_dict() | {
            "documents": self.documents,
            "tokens": self.tokens,
            "text_bytes": self.text_bytes,
            "skipped": asdict(self.skipped),
            "bad_records": [asdict(entry) for entry in self.bad_records],
            "lost": asdict(self.lost),
            "files": [asdict(file) for file in self.files],
            "fingerprint": dict(self.fingerprint),
        }
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> Manifest:
        """The inverse of `to_json`.

        Raises:
            DataError: the text is not a manifest, or one of a version that is not known.
        """
        try:
            values = json.loads(text)
            if values["version"] != FORMAT_VERSION:
                raise DataError(
                    f"a manifest of version {values['version']!r}; this version of the library reads {FORMAT_VERSION}.",
                    path=MANIFEST_NAME,
                )
            files = tuple(FileEntry(**entry) for entry in values["files"])
            return Manifest(
                encoding=Encoding.from_dict(values),
                files=files,
                # Sets that were written before these were counted have none of them.
                text_bytes=values.get("text_bytes", 0),
                skipped=Skipped(**values.get("skipped", {})),
                bad_records=tuple(BadEntry(**entry) for entry in values.get("bad_records", [])),
                lost=Lost(**values.get("lost", {})),
                fingerprint=values.get("fingerprint", {}),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not a manifest of tokenized files ({error!r}).", path=MANIFEST_NAME) from error
