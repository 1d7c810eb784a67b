"""A set read again: every page's checksum, every count, every id, and a few documents as text to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import DataError, PathNotFoundError, StorageError
from ...storage.filesystems import open_filesystem, relative_to
from ...storage.secrets import Location
from ..tokenizers.base import Tokenizer
from .folder import OutputFolder, is_shard
from .manifest import MANIFEST_NAME, Encoding, FileEntry, Manifest, Packing

__all__ = ["SAMPLES", "Verification", "verify_set"]


SAMPLES = 3
_SHOWN_TOKENS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A set that was read again and is what its manifest says.

    Attributes:
        manifest: of the set.
        samples: of some documents the place, and the text of the first tokens, or their ids.
    """

    manifest: Manifest
    samples: tuple[tuple[str, str], ...]

    def describe(self) -> str:
        """A paragraph for people."""
        manifest = self.manifest
        lines = [
            f"Verified {manifest.documents:,} documents, {manifest.tokens:,} tokens in {len(manifest.files):,} files: "
            f"checksums, counts and ids are correct.{manifest.lost.describe()}{manifest.describe_packing()} "
            f"Some {'documents' if manifest.packed is None else 'rows'}:"
        ]
        return "\n".join(lines + [f"  {where}: {text!r}" for where, text in self.samples])


def verify_set(
    folder: str, tokenizer: Tokenizer | None, *, storage_options: Mapping[str, object] | None = None
) -> Verification:
    """Read a whole set and compare it with its manifest.

    Args:
        folder: that holds the set.
        tokenizer: turns a few documents back into text; None to have their ids.
        storage_options: handed to fsspec for a URL.

    Raises:
        PathNotFoundError: there is no complete set.
        DataError: something is wrong; names file and row group.
    """
    filesystem, path = open_filesystem(folder, storage_options)
    path, folder = path.rstrip("/"), Location(folder).rstrip("/")
    try:
        manifest = Manifest.from_json(filesystem.read(f"{path}/{MANIFEST_NAME}"))
    except PathNotFoundError:
        growing = OutputFolder(folder, storage_options).read_growing()
        if growing is None:
            raise
        raise PathNotFoundError(
            f"{folder} is not complete: it is still growing, with {growing.describe()}. Wait until it has a manifest; "
            f"if its writer has ended, rerun the command that writes it."
        ) from None
    inside = {relative_to(file, path) or "" for file in filesystem.files_below(path)}
    there = {each for each in inside if is_shard(each)}
    missing = sorted({entry.name for entry in manifest.files} ^ there)
    if missing:
        raise PathNotFoundError(
            f"{folder} and its manifest do not agree about {len(missing)} files, such as {missing[0]!r}. "
            f"The set is not complete."
        )
    if tokenizer is not None and manifest.encoding.tokenizer.sha256 != tokenizer.info.sha256:
        raise DataError(
            f"the set was written with the tokenizer {manifest.encoding.tokenizer.name!r}, which differs from "
            f"{tokenizer.info.name!r}.",
            path=f"{folder}/{MANIFEST_NAME}",
        )
    _verify_packed(manifest, f"{folder}/{MANIFEST_NAME}")
    wanted = np.linspace(0, manifest.rows - 1, min(SAMPLES, manifest.rows)).astype(int).tolist()
    samples: list[tuple[str, str]] = []
    before = 0
    for entry in manifest.files:
        file = f"{path}/{entry.name}"
        name = filesystem.display(file)
        here = [at - before for at in wanted if before <= at < before + entry.documents]
        with filesystem.open(file, "rb") as stream:
            for row, ids in _verify_file(_opened(stream, name), entry, manifest, name, here):
                text = " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids)
                samples.append((f"{entry.name}, row {row}", text))
        before += entry.documents
    return Verification(manifest=manifest, samples=tuple(samples))


def _verify_packed(manifest: Manifest, name: str) -> None:
    packing, packed = manifest.encoding.packing, manifest.packed
    if packing is None or packed is None:
        return
    padding = manifest.rows * packing.seq_len - manifest.tokens
    if packed.padding != padding:
        raise DataError(
            f"its rows lack {padding:,} ids of being full, and it says {packed.padding:,}.",
            path=name,
        )


def _verify_group(table: pa.Table, encoding: Encoding, name: str, group: int) -> None:
    """Every aligned column has a value for every token; rows that are packed are what they should be."""
    lengths = pc.list_value_length(table.column(encoding.column))
    for column in encoding.aligned:
        if pc.list_value_length(table.column(column)) != lengths:
            raise DataError(
                "its lists are not as long as those of the tokens.", path=name, row_group=group, column=column
            )
    if encoding.packing is not None:
        ids = pc.list_flatten(table.column(encoding.packing.boundaries)).to_numpy()
        _verify_rows(lengths.to_numpy(), ids, encoding.packing, name, group)


def _verify_rows(
    lengths: npt.NDArray[np.int32], ids: npt.NDArray[np.int32], packing: Packing, name: str, group: int
) -> None:
    """Rows have a token and are not too long, and their documents are numbered from 0, one after the other."""
    wrong = np.flatnonzero((lengths < 1) | (lengths > packing.seq_len))
    if len(wrong):
        raise DataError(
            f"a row has {lengths[wrong[0]]:,} ids, and rows have from 1 to {packing.seq_len:,}.",
            path=name,
            row_group=group,
        )
    first = np.cumsum(lengths) - lengths
    steps = np.diff(ids)
    steps[first[1:] - 1] = 0  # from one row to the next
    if ids[first].any() or steps.min(initial=0) < 0 or steps.max(initial=0) > 1:
        raise DataError(
            "the documents of a row are not numbered from 0, one after the other.",
            path=name,
            row_group=group,
            column=packing.boundaries,
        )


def _opened(stream: Any, name: str) -> pq.ParquetFile:
    try:
        # No thread of pyarrow's may be left in a Python file when the interpreter ends.
        return pq.ParquetFile(stream, page_checksum_verification=True, pre_buffer=False)
    except StorageError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"cannot be opened: {error}", path=name) from error


def _verify_file(
    parquet: pq.ParquetFile, entry: FileEntry, manifest: Manifest, name: str, rows: list[int]
) -> list[tuple[int, list[int]]]:
    """Check one file; returns the first ids of the rows that were asked for."""
    documents, tokens, found = 0, 0, []
    for group in range(parquet.num_row_groups):
        try:
            table = parquet.read_row_group(group, use_threads=False).combine_chunks()
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"cannot be read: {error}", path=name, row_group=group) from error
        column = table.column(manifest.encoding.column).combine_chunks()
        _verify_group(table, manifest.encoding, name, group)
        largest = pc.max(column.values).as_py() if len(column.values) else 0
        if largest >= manifest.encoding.tokenizer.vocab_size:
            raise DataError(
                f"the id {largest:,} is not below the vocabulary size of {manifest.encoding.tokenizer.vocab_size:,}.",
                path=name,
                row_group=group,
            )
        found += [
            (row, column[row - documents].values[:_SHOWN_TOKENS].to_pylist())
            for row in rows
            if documents <= row < documents + len(column)
        ]
        documents += len(column)
        tokens += len(column.values)
    if (documents, tokens, parquet.num_row_groups) != (entry.documents, entry.tokens, entry.row_groups):
        raise DataError(
            f"{documents:,} documents, {tokens:,} tokens and {parquet.num_row_groups:,} row groups, but the manifest "
            f"says {entry.documents:,}, {entry.tokens:,} and {entry.row_groups:,}.",
            path=name,
        )
    return found
