"""Tokens to Parquet: documents wait until a row group is settled, row groups fill files, files are published.

    add(batch) -> waiting documents --plan_row_groups--> row groups --starts_new_file--> staged files --finish--> output

Where a shard ends depends on nothing but its own documents and those that follow, so a writer that resumes after a
finished shard cuts the rest as the first one would have. Only the waiting documents are in memory: one and a half row
groups and a batch, whatever the set's size.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import ConfigError, DataError
from ..tokenizers.base import TokenArray, TokenBatch
from .folder import OutputFolder, shard_name
from .manifest import Encoding, FileEntry, Manifest
from .row_groups import growing_file_tokens, is_full, plan_row_groups, starts_new_file

__all__ = [
    "LAYOUT",
    "MAX_GROWING_FILES",
    "MAX_ROW_GROUP_TOKENS",
    "METADATA_KEY",
    "TOKEN_COLUMN",
    "Layout",
    "SetWriter",
    "final_entries",
    "renames",
    "token_schema",
]


TOKEN_COLUMN = "tokens"
METADATA_KEY = "parquet_loader.pretokenize"
MAX_ROW_GROUP_TOKENS = (1 << 31) - 1  # the column's offsets are 32-bit
MAX_GROWING_FILES = 10_000_000  # whose names sort as numbers, though nobody knows yet how many there will be


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How token columns lie in a file.

    BYTE_STREAM_SPLIT puts the first bytes of all ids together, then the second bytes, and so on. Parquet stores a
    uint16 as four bytes, so two of the four streams are all zeros and vanish, and the high bytes compress well. Ids of
    four bytes take longer to put together again than what that saves, and are stored as they are.

    lz4 decodes in two thirds of zstd's time, at a third more bytes; a set is written once and read for every epoch.
    No dictionary: where tokens repeat, as spaces and digits do, its indices lie in thousands of runs. docs/decisions.md
    has the figures.

    Attributes:
        compression: of the pages.
        compression_level: None for the codec's own default.
        page_bytes: of a page before compression.
    """

    compression: str = "lz4"
    compression_level: int | None = None
    page_bytes: int = 1 << 20

    def writer_options(
        self, dtype: npt.DTypeLike, kept: Any = (), aligned: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The arguments for ``pyarrow.parquet.ParquetWriter``, for ids of this dtype and the columns kept beside them.

        Those are read a few at a time, by people: they take zstd and a dictionary. Aligned columns are read with the
        tokens, and lie as they do. Values of eight bytes are split too: they hardly ever need all of them.
        """
        per_token = {TOKEN_COLUMN: dtype, **(aligned or {})}
        encodings = {
            _leaf_of(name): "BYTE_STREAM_SPLIT" if np.dtype(kind).itemsize in (2, 8) else "PLAIN"
            for name, kind in per_token.items()
        }
        leaves = [leaf for field in kept for leaf in _leaves(field.name, field.type)]
        level = self.compression_level
        return {
            "use_dictionary": leaves or False,
            "column_encoding": encodings,
            "compression": {**dict.fromkeys(encodings, self.compression), **dict.fromkeys(leaves, "zstd")},
            "compression_level": None if level is None else dict.fromkeys(encodings, level),
            "data_page_size": self.page_bytes,
            "write_page_checksum": True,
            "write_statistics": True,
        }


LAYOUT = Layout()


def _leaf_of(column: str) -> str:
    """The path of the values of a column of lists."""
    return f"{column}.list.element"


def _leaves(name: str, kind: Any) -> list[str]:
    """The paths of a column's leaves in a Parquet file's schema, as pyarrow writes it."""
    if pa.types.is_struct(kind):
        inner = [(f"{name}.{field.name}", field.type) for field in kind]
    elif pa.types.is_map(kind):
        inner = [(f"{name}.key_value.key", kind.key_type), (f"{name}.key_value.value", kind.item_type)]
    elif kind.num_fields:
        inner = [(f"{name}.list.element", kind.value_type)]
    else:
        return [name]
    return [leaf for each in inner for leaf in _leaves(*each)]


def token_schema(dtype: npt.DTypeLike, kept: Any = (), aligned: Mapping[str, str] | None = None) -> Any:
    """The Arrow schema of a file: ``tokens: list<element: dtype not null> not null``, aligned columns likewise, and
    the columns kept beside.
    """
    return pa.schema([*(_list_field(*each) for each in [(TOKEN_COLUMN, dtype), *(aligned or {}).items()]), *kept])


def _list_field(name: str, dtype: npt.DTypeLike) -> Any:
    element = pa.field("element", pa.from_numpy_dtype(np.dtype(dtype)), nullable=False)
    return pa.field(name, pa.list_(element), nullable=False)


class SetWriter:
    """Writes one set of files. Use it in a ``with`` block, and end the block's work with `complete` or `finish`.

    Args:
        output: where the files are staged.
        encoding: what their metadata says.
        row_group_tokens: tokens of a row group, about.
        file_tokens: tokens of a file, about.
        growing: whether the set is published as it grows: its first files are small.
        layout: of the columns.
        finished: shards of an earlier run; the next document comes right after theirs.
        kept: the fields of the columns that are kept beside the tokens.
        on_group: called with the documents of each row group when it is written.
        on_shard: called with each shard when it is complete in the staging folder.

    Attributes:
        without_value: the columns kept of which no document written here has had a value.
    """

    def __init__(
        self,
        output: OutputFolder,
        encoding: Encoding,
        *,
        row_group_tokens: int,
        file_tokens: int,
        growing: bool = False,
        layout: Layout = LAYOUT,
        finished: Sequence[FileEntry] = (),
        kept: Any = (),
        on_group: Callable[[int], None] = lambda documents: None,
        on_shard: Callable[[FileEntry], None] = lambda shard: None,
    ) -> None:
        self._output = output
        self._encoding = encoding
        self._row_group_tokens = row_group_tokens
        self._file_tokens = file_tokens
        self._growing = growing
        self._layout = layout
        self._waiting: list[TokenBatch] = []
        self._waiting_tokens = 0
        self._kept = kept
        self._columns: list[Any] = []  # of the waiting documents, as Arrow tables
        self.without_value = {field.name for field in kept}
        self._shard: _Shard | None = None
        self._entries = list(finished)
        self._on_group = on_group
        self._on_shard = on_shard

    def __enter__(self) -> SetWriter:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shard is not None:
            self._shard.abort()

    def add(self, batch: TokenBatch, columns: Any = None) -> None:
        """Take more documents, and write the row groups that are settled by them.

        Args:
            batch: their tokens.
            columns: an Arrow table of what is kept of them, where anything is.
        """
        self._waiting.append(batch)
        if columns is not None:
            self._columns.append(columns)
        self._waiting_tokens += len(batch.tokens)
        if 2 * self._waiting_tokens >= 3 * self._row_group_tokens:  # below that no row group can be settled
            self._write_settled()

    def complete(self, *, may_be_empty: bool = False) -> tuple[FileEntry, ...]:
        """Write the waiting documents; returns the staged shards.

        Args:
            may_be_empty: whether it is all right that there is not one token.

        Raises:
            StorageError: a file cannot be written.
            ConfigError: there is not one token.
        """
        self._write_settled()
        if self._waiting_tokens:
            self._write_group(TokenBatch.joined(self._waiting), self._joined_columns())
        self._close_shard()
        if not self._entries and not may_be_empty:
            raise ConfigError("the input holds no text: it gave not one token. Check the input and text_column.")
        return tuple(self._entries)

    def finish(self) -> Manifest:
        """Write what waits, publish every file and then the manifest: for a set that is never resumed.

        Raises:
            StorageError: a file cannot be written or moved.
            ConfigError: there is not one token.
        """
        staged = self.complete()
        manifest = Manifest(encoding=self._encoding, files=final_entries(staged))
        self._output.publish(renames(staged, self._output.staging_name), manifest.to_json())
        self._output.clear_staging(others=True)
        return manifest

    def _write_settled(self) -> None:
        if not self._waiting:
            return
        waiting, columns = TokenBatch.joined(self._waiting), self._joined_columns()
        document, token = 0, 0
        for documents in plan_row_groups(waiting.lengths, self._row_group_tokens):
            group = waiting.between(document, document + documents, token)
            self._write_group(group, columns.slice(document, documents) if columns is not None else None)
            document, token = document + documents, token + len(group.tokens)
        # Copies, so that the joined arrays do not live on behind a small rest of them.
        rest = waiting.between(document, len(waiting.lengths), token).copied()
        self._waiting = [rest]
        self._waiting_tokens = len(rest.tokens)
        self._columns = [] if columns is None else [columns.slice(document).combine_chunks()]

    def _joined_columns(self) -> Any:
        return pa.concat_tables(self._columns) if self._columns else None

    def _write_group(self, group: TokenBatch, columns: Any) -> None:
        if len(group.tokens) > MAX_ROW_GROUP_TOKENS:
            raise DataError(
                f"a row group would hold {len(group.tokens):,} tokens, and at most {MAX_ROW_GROUP_TOKENS:,} can be "
                f"written: one document is too long. Split it.",
                path=self._output.name,
            )
        if self._shard is not None and starts_new_file(self._shard.tokens, len(group.tokens), self._target_tokens()):
            self._close_shard()
        if self._shard is None:
            if self._growing and len(self._entries) >= MAX_GROWING_FILES:
                raise ConfigError(f"a growing set holds at most {MAX_GROWING_FILES:,} files. Raise file_tokens.")
            name = f"{len(self._entries)}.parquet"
            self._shard = _Shard(self._output, name, self._encoding, self._layout, self._kept)
        self._shard.write(group, columns)
        if columns is not None:
            some = {name for name in self.without_value if columns.column(name).null_count < len(columns)}
            self.without_value -= some
        self._on_group(len(group.lengths))
        if is_full(self._shard.tokens, self._target_tokens(), self._row_group_tokens):
            self._close_shard()  # now, and not when the next row group comes: somebody may wait for it

    def _target_tokens(self) -> int:
        """Of the file at hand."""
        if not self._growing:
            return self._file_tokens
        return growing_file_tokens(len(self._entries), self._row_group_tokens, self._file_tokens)

    def _close_shard(self) -> None:
        if self._shard is not None:
            shard = self._shard.close()
            self._shard = None
            self._entries.append(shard)
            self._on_shard(shard)


def final_entries(staged: Sequence[FileEntry], *, growing: bool = False) -> tuple[FileEntry, ...]:
    """The shards under their final names; those of a growing set are the same however many there come to be."""
    shards = MAX_GROWING_FILES if growing else len(staged)
    return tuple(replace(entry, name=shard_name(at, shards)) for at, entry in enumerate(staged))


def renames(staged: Sequence[FileEntry], folder: str, *, growing: bool = False) -> list[tuple[str, str]]:
    """Where in the output folder each shard is staged, and its final name there."""
    final = final_entries(staged, growing=growing)
    return [(posixpath.join(folder, old.name), new.name) for old, new in zip(staged, final, strict=True)]


class _Shard:
    """One staged Parquet file that is being written."""

    def __init__(self, output: OutputFolder, name: str, encoding: Encoding, layout: Layout, kept: Any) -> None:
        self.tokens = 0
        self._documents = 0
        self._row_groups = 0
        self._name = name
        self._encoding = encoding
        self._schema = token_schema(encoding.dtype, kept, encoding.aligned)
        self._stream = output.filesystem.open(output.staged_path(name), "wb")
        options = layout.writer_options(encoding.dtype, kept, encoding.aligned)
        self._writer = pq.ParquetWriter(self._stream, self._schema, **options)

    def write(self, group: TokenBatch, columns: Any) -> None:
        offsets: TokenArray = np.zeros(len(group.lengths) + 1, dtype=np.int32)
        np.cumsum(group.lengths, out=offsets[1:])
        per_token = [group.tokens, *(group.aligned[name] for name in self._encoding.aligned)]
        lists = [
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=field.type)
            for field, values in zip(self._schema, per_token, strict=False)  # the first of its fields
        ]
        arrays = [*lists, *(columns.columns if columns is not None else ())]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=len(group.lengths))
        self.tokens += len(group.tokens)
        self._documents += len(group.lengths)
        self._row_groups += 1

    def close(self) -> FileEntry:
        metadata = self._encoding.to_dict() | {"documents": self._documents, "tokens": self.tokens}
        self._writer.add_key_value_metadata({METADATA_KEY: json.dumps(metadata, ensure_ascii=False)})
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stream.sync()  # a power cut soon after the rename could leave the name without the bytes
        self._stream.close()
        return FileEntry(
            name=self._name,
            documents=self._documents,
            tokens=self.tokens,
            row_groups=self._row_groups,
            size_bytes=size_bytes,
        )

    def abort(self) -> None:
        """Close without caring for the content; the output folder removes the file."""
        for closable in (self._writer, self._stream):
            with suppress(Exception):
                closable.close()
