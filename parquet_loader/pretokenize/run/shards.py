"""Writes the shards of a set one by one, and resumes after those that are finished.

source.records(cursor) -> selection -> ahead(batches) -> in_order(encode) -> SetWriter -> shards in the staging folder
                                                               |                |
                                                             Ledger --position--+--> journal, once a shard

With ``pack``, PackedRows makes rows of buffers of documents before the SetWriter, and tells the Ledger of the documents
of each buffer when its rows are written. The pieces that were carried into the buffer at hand are in a file beside the
shard.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from ...errors import ConfigError, PretokenizeWarning
from ..options import PretokenizeOptions
from ..select.dedup import Digests, SeenFile, SeenHashes, as_digests, digest_function
from ..select.ledger import Document, Ledger
from ..select.selection import Dedup, Drops, Selection
from ..sources.base import Source
from ..sources.columns import columns_table, kept_schema
from ..tokenizers.base import TokenBatch, Tokenizer, refuse_control_ids
from ..tokenizers.workers import Encode, ahead, encoders, in_order
from ..write.folder import OutputFolder
from ..write.journal import Journal, Position
from ..write.manifest import Encoding, FileEntry, Manifest, Packed, Skipped
from ..write.packer import Buffer, PackedRows, pieces_from_bytes, pieces_to_bytes
from ..write.writer import TOKEN_COLUMN, SetWriter, final_entries, renames
from .progress import Progress

__all__ = [
    "Job",
    "TextBatch",
    "batch_documents",
    "carried_name",
    "encoding_of",
    "manifest_of",
    "open_seen_file",
    "publish",
    "read_carried",
    "seen_name",
    "write_carried",
    "write_shards",
]
_RECORD_BYTES = 64  # what a record costs beside its text; keeps a batch of empty documents from growing for ever


def open_seen_file(options: PretokenizeOptions) -> SeenFile | None:
    """The file of hashes that other runs have seen, or None.

    Raises:
        ConfigError: there is no such file, and none is to be created.
    """
    if options.seen_hashes is None:
        return None
    file = SeenFile(url=options.seen_hashes, hash_name=options.hash, storage_options=options.storage_options)
    if not options.write_seen_hashes and not file.exists():
        raise ConfigError(
            f"seen_hashes={file.url!r}: there is no such file. Check the path, or give "
            f"write_seen_hashes=True to begin one."
        )
    return file


def encoding_of(tokenizer: Tokenizer, options: PretokenizeOptions) -> Encoding:
    """How text becomes tokens."""
    return Encoding(
        column=TOKEN_COLUMN,
        dtype=tokenizer.info.dtype.name,
        tokenizer=tokenizer.info,
        eos_appended=options.append_eos and tokenizer.info.eos_id is not None,
        kept_columns=options.keep_columns,
        aligned={} if options.packing is None else {options.packing.boundaries: "int32"},
        packing=options.packing,
    )


def manifest_of(journal: Journal, encoding: Encoding) -> Manifest:
    """The manifest of the set of a journal's shards."""
    position, packed = journal.position, None
    if encoding.packing is not None:
        rows, tokens = sum(each.documents for each in journal.parts), sum(each.tokens for each in journal.parts)
        packed = Packed(
            documents=position.documents,
            cut_documents=position.cut_documents,
            padding=rows * encoding.packing.seq_len - tokens,
        )
    return Manifest(
        encoding=encoding,
        files=final_entries(journal.parts, growing=journal.grows),
        text_bytes=position.text_bytes,
        skipped=position.skipped,
        bad_records=journal.bad_records,
        lost=position.lost,
        packed=packed,
        fingerprint=journal.fingerprint,
    )


def seen_name(shard: FileEntry) -> str:
    """The file beside a shard that holds the hashes of its documents."""
    return f"{shard.name}.seen"


def carried_name(shard: FileEntry) -> str:
    """The file beside a shard that holds the pieces carried into the buffer in which the shard ends."""
    return f"{shard.name}.carried"


def write_carried(output: OutputFolder, journal: Journal, shard: FileEntry, carried: TokenBatch | None) -> None:
    """Keep the pieces that the next shard begins with, beside the one that is finished.

    Those kept beside the last but one are of no use any more: the journal names the last.
    """
    output.write_staged(carried_name(shard), pieces_to_bytes(carried))
    if len(journal.parts) > 1:
        output.remove_staged(carried_name(journal.parts[-2]))


def read_carried(output: OutputFolder, journal: Journal) -> TokenBatch | None:
    """The pieces that the next shard begins with.

    Raises:
        DataError: the file that holds them is damaged.
        StorageError: it is not there.
    """
    if not journal.parts:
        return None
    name = carried_name(journal.parts[-1])
    return pieces_from_bytes(output.read_staged(name), output.display(output.staged_path(name)))


def publish(output: OutputFolder, journal: Journal, encoding: Encoding, *, staged_in: str) -> Manifest:
    """Publish the shards of a journal that names them all, and then the manifest; staging is left to be cleared.

    Args:
        output: the folder.
        journal: it names all shards.
        encoding: how text became tokens.
        staged_in: the folder in it that the shards' names are relative to.
    """
    manifest = manifest_of(journal, encoding)
    output.publish(
        [] if journal.grows else renames(journal.parts, staged_in),  # those of a growing set are there already
        manifest.to_json(),
        moving=journal.phase == "moving",
        on_moving=lambda: output.write_journal(replace(journal, phase="moving")),
    )
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a run goes by, whatever it has done so far.

    Attributes:
        may_beat: see `write.growing.Marker`.
    """

    source: Source
    tokenizer: Tokenizer
    output: OutputFolder
    options: PretokenizeOptions
    seen_before: Digests
    progress: Callable[[Progress], None] | None
    on_shards: Callable[[Sequence[FileEntry], int], None] | None = None
    drops: Drops | None = None
    may_beat: Callable[[], bool] = lambda: True


def write_shards(job: Job, journal: Journal) -> Journal:
    """Write the missing shards; returns the journal, which then names them all."""
    options, output, source = job.options, job.output, job.source
    dedup: Dedup | Drops | None = job.drops
    if options.dedup and dedup is None:
        dedup = Dedup(digest=digest_function(options.hash), seen=SeenHashes())
        dedup.seen.add(job.seen_before)
        for shard in journal.parts:
            dedup.seen.add(as_digests(output.read_staged(seen_name(shard))))
    ledger = Ledger(journal.position)
    selection = Selection(
        on_bad_record=options.on_bad_record,
        empty=options.empty,
        max_record_bytes=options.max_record_bytes,
        dedup=dedup,
        documents=journal.position.documents,
        skipped=journal.position.skipped,
        bad_records=journal.bad_records,
    )

    cut_documents = journal.position.cut_documents

    def on_buffer(buffer: Buffer) -> None:
        nonlocal cut_documents
        ledger.take(buffer.documents)
        cut_documents += buffer.cut_documents

    packing = options.packing
    carried = read_carried(output, journal) if packing is not None else None
    rows = None if packing is None else PackedRows(packing, on_buffer, rows=journal.position.rows, carried=carried)

    def position_now() -> Position:
        return replace(ledger.position, rows=0 if rows is None else rows.rows, cut_documents=cut_documents)

    def commit(shard: FileEntry) -> None:
        nonlocal journal
        if isinstance(dedup, Dedup):
            output.write_staged(seen_name(shard), ledger.take_digests())
        if rows is not None:
            write_carried(output, journal, shard, rows.carried)
        position = position_now()
        journal = replace(
            journal,
            parts=(*journal.parts, shard),
            position=position,
            bad_records=tuple(selection.bad_records[: position.skipped.bad]),
        )
        output.write_journal(journal)
        if journal.grows:
            output.publish_next(renames(journal.parts, output.staging_name, growing=True)[-1])
        if job.on_shards is not None:
            job.on_shards(journal.parts, position.documents)

    left = None if options.max_docs is None else options.max_docs - journal.position.documents
    documents = islice(selection.documents(source.records(journal.position.cursor)), left)
    done = Progress(
        documents=journal.position.documents,
        tokens=sum(shard.tokens for shard in journal.parts),
        text_bytes=journal.position.text_bytes,
        earlier_bytes=journal.position.text_bytes,
    )
    finished_before = done.documents
    if job.progress is not None and done.documents:
        job.progress(done)

    info = job.tokenizer.info
    kept = kept_schema(source.kept_types(), options.keep_columns)

    def encode_with(batch: TextBatch, encode: Encode) -> TokenBatch:
        texts = [each.record.text for each in batch.documents]
        origins = [each.record.origin for each in batch.documents]
        tokens = encode(texts, origins)
        if info.eos_id is None:
            return tokens
        # Whatever tokenizer it is, and also where it is the loader that will append the id.
        refuse_control_ids(tokens, np.flatnonzero(tokens.tokens == info.eos_id), origins, lambda _: info.eos_token)
        return tokens.with_appended(info.eos_id) if options.append_eos else tokens

    with (
        SetWriter(
            output,
            encoding_of(job.tokenizer, options),
            row_group_tokens=options.row_group_tokens,
            file_tokens=options.file_tokens,
            growing=journal.grows,
            finished=journal.parts,
            kept=kept,
            on_group=ledger.take if rows is None else rows.take,
            on_shard=commit,
        ) as writer,
        encoders(job.tokenizer, options.workers) as encoding_with,
        closing(ahead(batch_documents(documents, options.batch_bytes))) as batches,
        closing(in_order(batches, encode_with, encoding_with)) as encoded,
    ):
        for batch, tokens in encoded:
            ledger.add(batch.documents, tokens.lost)
            columns = [(each.record.columns, each.record.origin) for each in batch.documents] if len(kept) else []
            if rows is None:
                writer.add(tokens, columns_table(columns, kept) if columns else None)
            else:
                for packed in rows.add(tokens):
                    writer.add(packed)
            done = replace(
                done,
                documents=done.documents + len(tokens.lengths),
                tokens=done.tokens + len(tokens.tokens),
                text_bytes=done.text_bytes + batch.text_bytes,
                fraction=source.fraction(batch.documents[-1].record.cursor),
            )
            if job.progress is not None:
                job.progress(done)
        if not done.documents and selection.skipped != Skipped() and options.world_size == 1:
            left_out = selection.skipped
            raise ConfigError(
                f"nothing is left of the input: {left_out.duplicates:,} duplicates, {left_out.empty:,} empty texts and "
                f"{left_out.bad:,} bad records were left out."
            )
        for packed in () if rows is None else rows.finish():
            writer.add(packed)
        writer.complete(may_be_empty=options.world_size > 1)  # there may be more ranks than files
    if writer.without_value and done.documents > finished_before:
        warnings.warn(
            f"keep_columns: {', '.join(map(repr, sorted(writer.without_value)))} is null in every document that was "
            f"written now. If the input holds it under another name, give that and overwrite=True.",
            PretokenizeWarning,
            stacklevel=2,
        )
    position = position_now()
    if options.max_docs is None or position.documents < options.max_docs:
        position = replace(position, skipped=selection.skipped)  # also what came after the last document
    journal = replace(
        journal,
        phase="moving" if journal.grows else "removing",
        position=position,
        bad_records=tuple(selection.bad_records[: position.skipped.bad]),
    )
    output.write_journal(journal)
    return journal


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch:
    """Documents to encode together.

    Attributes:
        documents: in order.
        text_bytes: their UTF-8 bytes.
    """

    documents: tuple[Document, ...]
    text_bytes: int


def batch_documents(documents: Iterable[Document], batch_bytes: int) -> Iterator[TextBatch]:
    """Documents in batches of about ``batch_bytes``; a longer document is a batch with what came before it."""
    batch: list[Document] = []
    text_bytes = 0
    for document in documents:
        batch.append(document)
        text_bytes += document.text_bytes
        if text_bytes + _RECORD_BYTES * len(batch) >= batch_bytes:
            yield TextBatch(documents=tuple(batch), text_bytes=text_bytes)
            batch, text_bytes = [], 0
    if batch:
        yield TextBatch(documents=tuple(batch), text_bytes=text_bytes)
