"""What a set of tokenized files says about itself: in ``_manifest.json``, and in every file's own metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from ...errors import DataError
from ...storage.growing import MANIFEST_NAME
from ..tokenizers.base import NOTHING_LOST, Lost, TokenizerInfo

__all__ = [
    "BOUNDARIES",
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "MAX_LISTED_BAD_RECORDS",
    "BadEntry",
    "Encoding",
    "FileEntry",
    "Manifest",
    "Packed",
    "Packing",
    "Skipped",
]


FORMAT_VERSION = 1
BOUNDARIES = "document_ids"

T = TypeVar("T")
# Staged, staged by a rank, or published: a path that leads out of the folder is none of these.
_FILE_NAME = re.compile(r"(_staging-[a-z0-9-]+/)?(part-)?[0-9]+\.parquet")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


# What a field of each type may hold.
_MAY_HOLD: dict[str, Callable[[Any], bool]] = {
    "int": _is_count,
    "int | None": lambda value: value is None or _is_count(value),
    "str": lambda value: isinstance(value, str),
    "str | None": lambda value: value is None or isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
    "Mapping[str, str]": lambda value: (
        isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    ),
    "Cursor | None": lambda value: value is None or (value and isinstance(value, tuple) and all(map(_is_count, value))),
}


def from_plain(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass from what JSON holds, whoever wrote it: every count is one, and every text.

    Raises:
        TypeError: a field is missing, or there is one more.
        ValueError: a field holds something else.
    """
    made = kind(**values)
    for each in fields(made):  # type: ignore[arg-type]
        value = getattr(made, each.name)
        if not _MAY_HOLD.get(str(each.type), lambda _: True)(value):
            raise ValueError(f"{each.name} is {value!r}")
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One Parquet file.

    Attributes:
        name: its name in the output folder.
        documents: its rows.
        tokens: its tokens, end-of-document tokens included where they were appended.
        row_groups: its row groups.
        size_bytes: its size.

    Raises:
        ValueError: it has another name than such files have.
    """

    name: str
    documents: int
    tokens: int
    row_groups: int
    size_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _FILE_NAME.fullmatch(self.name):
            raise ValueError(f"a file is called {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How documents are packed into training rows.

    Attributes:
        pack: by what rule: ``"best-fit"``.
        seq_len: the most ids of a row.
        tail: what becomes of rows that are far from full when a buffer is packed: ``"carry"`` or ``"pad"``.
        buffer_tokens: tokens that are packed at a time, about.
        boundaries: the aligned column that numbers the documents of a row, from 0.
    """

    pack: str = "best-fit"
    seq_len: int
    tail: str = "carry"
    buffer_tokens: int
    boundaries: str = BOUNDARIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How text became tokens: the same for every file of a set.

    Attributes:
        column: the column of tokens.
        dtype: ``"uint16"`` or ``"int32"``.
        tokenizer: what is known of the tokenizer, with the vocabulary's size and the end-of-document token.
        eos_appended: whether every document ends with that token.
        kept_columns: other columns of the documents, in the files beside that of tokens.
        aligned: the columns that have a value for every token, and their dtypes.
        packing: how documents were packed into rows; None where each is a row.
    """

    column: str
    dtype: str
    tokenizer: TokenizerInfo
    eos_appended: bool
    kept_columns: tuple[str, ...] = ()
    aligned: Mapping[str, str] = field(default_factory=dict)
    packing: Packing | None = None

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
            **({"kept_columns": list(self.kept_columns)} if self.kept_columns else {}),
            **({"aligned": dict(self.aligned)} if self.aligned else {}),
            **({"packing": asdict(self.packing)} if self.packing is not None else {}),
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Encoding:
        """The inverse of `to_dict`."""
        named = {name: values["tokenizer"][name] for name in ("name", "sha256")}
        info = from_plain(TokenizerInfo, named | {name: values[name] for name in ("vocab_size", "eos_token", "eos_id")})
        known = {name: values[name] for name in ("column", "dtype", "eos_appended")}
        packing = values.get("packing")
        more = {
            "tokenizer": info,
            "kept_columns": tuple(values.get("kept_columns", ())),
            "aligned": values.get("aligned", {}),
            "packing": None if packing is None else from_plain(Packing, packing),
        }
        return from_plain(Encoding, known | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What packing has done.

    Attributes:
        documents: that were packed.
        cut_documents: those of them that were longer than a row.
        padding: ids that the rows lack of being full, which a loader adds.
    """

    documents: int
    cut_documents: int
    padding: int


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
        packed: what packing has done, where the set is packed.
        fingerprint: what the set depends on: the source, the options.
    """

    encoding: Encoding
    files: tuple[FileEntry, ...]
    text_bytes: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    bad_records: tuple[BadEntry, ...] = ()
    lost: Lost = NOTHING_LOST
    packed: Packed | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """Documents of the set."""
        return self.rows if self.packed is None else self.packed.documents

    @property
    def rows(self) -> int:
        """Rows of all files: the documents, unless these are packed."""
        return sum(file.documents for file in self.files)

    @property
    def tokens(self) -> int:
        """Tokens of all files."""
        return sum(file.tokens for file in self.files)

    def describe_packing(self) -> str:
        """A sentence for people, after a space; nothing where documents are not packed."""
        if self.packed is None or self.encoding.packing is None:
            return ""
        cut, documents, seq_len = self.packed.cut_documents, self.packed.documents, self.encoding.packing.seq_len
        return (
            f" They are packed in {self.rows:,} rows of up to {seq_len:,} tokens: "
            f"{100 * self.packed.padding / max(1, self.rows * seq_len):.2f} % of the rows is left for padding, and "
            f"{cut:,} documents ({100 * cut / max(1, documents):.1f} %), all longer than a row, are cut."
        )

    def to_json(self) -> str:
        """The text of ``_manifest.json``."""
        values = self.encoding.to_dict() | {
            "documents": self.documents,
            "tokens": self.tokens,
            "text_bytes": self.text_bytes,
            "skipped": asdict(self.skipped),
            "bad_records": [asdict(entry) for entry in self.bad_records],
            "lost": asdict(self.lost),
            **({} if self.packed is None else {"rows": self.rows, "packed": asdict(self.packed)}),
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
            return from_plain(
                Manifest,
                {
                    "encoding": Encoding.from_dict(values),
                    "files": tuple(from_plain(FileEntry, entry) for entry in values["files"]),
                    # Sets that were written before these were counted have none of them.
                    "text_bytes": values.get("text_bytes", 0),
                    "skipped": from_plain(Skipped, values.get("skipped", {})),
                    "bad_records": tuple(from_plain(BadEntry, entry) for entry in values.get("bad_records", [])),
                    "lost": from_plain(Lost, values.get("lost", {})),
                    "packed": from_plain(Packed, values["packed"]) if "packed" in values else None,
                    "fingerprint": values.get("fingerprint", {}),
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"not a manifest of tokenized files ({error!r}).", path=MANIFEST_NAME) from error
