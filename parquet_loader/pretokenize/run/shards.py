"""Writes the shards of a set one by one, and resumes after those that are finished.

source.records(cursor) -> selection -> ahead(batches) -> in_order(encode) -> SetWriter -> shards in the staging folder
                                                               |                |
                                                             Ledger --position--+--> journal, once a shard
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np

from ...errors import ConfigError, DataError
from ..options import PretokenizeOptions
from ..select.dedup import Digests, SeenFile, SeenHashes, as_digests, digest_function
from ..select.ledger import Document, Ledger
from ..select.selection import Dedup, Drops, Selection
from ..sources.base import Source
from ..tokenizers.base import TokenBatch, Tokenizer, refuse_control_ids
from ..tokenizers.workers import Encode, ahead, encoders, in_order
from ..write.folder import OutputFolder
from ..write.journal import Journal, differences
from ..write.manifest import MANIFEST_NAME, Encoding, FileEntry, Manifest, Skipped
from ..write.writer import TOKEN_COLUMN, SetWriter, final_entries, renames
from .progress import Progress

__all__ = [
    "Found",
    "Job",
    "Run",
    "TextBatch",
    "batch_documents",
    "begin",
    "decide",
    "encoding_of",
    "few",
    "fingerprint_of",
    "look",
    "manifest_of",
    "open_seen_file",
    "publish",
    "run_of",
    "seen_fingerprint",
    "seen_name",
    "write_shards",
]


_FINGERPRINT_VERSION = 2
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
    )


def manifest_of(journal: Journal, encoding: Encoding) -> Manifest:
    """The manifest of the set of a journal's shards."""
    return Manifest(
        encoding=encoding,
        files=final_entries(journal.parts),
        text_bytes=journal.position.text_bytes,
        skipped=journal.position.skipped,
        bad_records=journal.bad_records,
        lost=journal.position.lost,
        fingerprint=journal.fingerprint,
    )


def seen_name(shard: FileEntry) -> str:
    """The file beside a shard that holds the hashes of its documents."""
    return f"{shard.name}.seen"


def fingerprint_of(
    source: Source, tokenizer: Tokenizer, options: PretokenizeOptions, seen_before: Digests
) -> dict[str, object]:
    """All that the result depends on. What only changes the speed, workers or batches, is no part of it."""
    return {
        "version": _FINGERPRINT_VERSION,
        "source": source.fingerprint(),
        "tokenizer": {
            "sha256": tokenizer.info.sha256,
            "vocab_size": tokenizer.info.vocab_size,
            "eos_id": tokenizer.info.eos_id,
        },
        "append_eos": options.append_eos,
        "row_group_tokens": options.row_group_tokens,
        "file_tokens": options.file_tokens,
        "max_docs": options.max_docs,
        "empty": options.empty,
        "dedup": {"hash": options.hash} if options.dedup else None,
        "seen_hashes": seen_fingerprint(seen_before) if options.seen_hashes is not None else None,
    }


def seen_fingerprint(seen_before: Digests) -> dict[str, object]:
    """What the hashes that other runs have seen are."""
    return {"hashes": len(seen_before), "sha256": hashlib.sha256(seen_before.tobytes()).hexdigest()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What decides whether a run found in the output folder is this one.

    Attributes:
        fingerprint: all that this run's result depends on.
        whole: of one rank's run, the fingerprint of all ranks together; None where this run makes the whole set.
        overwrite: whether an old set may be replaced.
        world_size: how many ranks make the set.
        allows_bad: whether bad records may be skipped.
        adds_hashes: whether a run that is complete has added its own hashes to the file of seen ones.
    """

    fingerprint: Mapping[str, object]
    whole: Mapping[str, object] | None = None
    overwrite: bool
    world_size: int = 1
    allows_bad: bool = False
    adds_hashes: bool = False

    @property
    def expected(self) -> Mapping[str, object]:
        """The fingerprint of the set."""
        return self.fingerprint if self.whole is None else self.whole

    def changes(
        self, was: Mapping[str, object], now: Mapping[str, object], skipped: Skipped, *, complete: bool
    ) -> list[str]:
        """What differs from a run found in the folder, complete or not, which skipped ``skipped``."""
        # A run that was complete has added its own hashes to the file.
        ignored = ("seen_hashes",) if complete else ()
        changed = differences(
            {key: value for key, value in was.items() if key not in ignored},
            {key: value for key, value in now.items() if key not in ignored},
        )
        if skipped.bad and not self.allows_bad:
            changed.append(f"on_bad_record: was 'skip', for {skipped.bad:,} records, is 'raise'")
        return changed


def run_of(
    fingerprint: Mapping[str, object], options: PretokenizeOptions, whole: Mapping[str, object] | None = None
) -> Run:
    """The run that options stand for."""
    return Run(
        fingerprint=fingerprint,
        whole=whole,
        overwrite=options.overwrite,
        world_size=options.world_size,
        allows_bad=options.on_bad_record == "skip",
        adds_hashes=options.write_seen_hashes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is in an output folder.

    Attributes:
        output: the folder's name, for messages.
        files: what is in it, except the files of runs.
        staging: whether an earlier run has left a staging folder.
        journal: of that run, where it has finished anything.
        manifest: of a complete set.
    """

    output: str
    files: tuple[str, ...]
    staging: bool
    journal: Journal | None
    manifest: Manifest | None


def look(output: OutputFolder, run: Run) -> Found:
    """What is in an output folder; a damaged journal or manifest counts as none where it may be overwritten.

    Raises:
        ConfigError: what is there belongs to another number of ranks, or to no run.
        DataError: one is damaged.
    """
    files = output.look()
    if not run.overwrite:
        output.refuse_other_runs(run.world_size, lambda other: not differences(other.fingerprint, run.expected))
    journal, manifest = None, None
    try:
        journal = output.read_journal()
        manifest = output.read_manifest() if MANIFEST_NAME in files else None
    except DataError:
        if not run.overwrite:
            raise
    return Found(output=output.name, files=files, staging=output.found_staging, journal=journal, manifest=manifest)


def decide(found: Found, run: Run) -> Literal["fresh", "resume", "done"]:
    """Start again, resume after what an earlier run has finished, or do nothing since the set is complete.

    Raises:
        ConfigError: what is there is of another run, and must not be overwritten.
    """
    journal, manifest = found.journal, found.manifest
    not_empty = f"output={found.output!r} is not empty: "
    if journal is not None:
        unfinished = journal.phase == "writing"
        changed = run.changes(journal.fingerprint, run.fingerprint, journal.position.skipped, complete=not unfinished)
        if changed and not run.overwrite:
            raise ConfigError(
                f"{not_empty}it holds an unfinished run of other inputs or options ({few(changed)}). Give those again "
                f"to resume it, choose another folder, or give overwrite=True to start again."
            )
        if not changed and unfinished and found.files and not run.overwrite:
            raise ConfigError(
                f"{not_empty}beside an unfinished run it holds {found.files[0]!r}. Give overwrite=True, as that run "
                f"had it, to resume and replace the old set."
            )
        return "fresh" if changed else "resume"
    if not found.files:
        return "fresh"
    if manifest is None or not manifest.fingerprint:
        if run.overwrite:
            return "fresh"
        also = f" and {len(found.files) - 1} more" if len(found.files) > 1 else ""
        raise ConfigError(
            f"{not_empty}it holds {found.files[0]!r}{also}. Choose another folder, or give overwrite=True to "
            f"replace a former run's files."
        )
    changed = run.changes(manifest.fingerprint, run.expected, manifest.skipped, complete=True)
    if run.overwrite:
        # A run that was killed at its very end has nothing left to do; and one that has added its hashes to the file
        # would find nothing but duplicates.
        ended = (found.staging and run.whole is None) or run.adds_hashes
        return "done" if ended and not changed else "fresh"
    if changed:
        raise ConfigError(
            f"{not_empty}it holds a complete set of other inputs or options ({few(changed)}). Choose another folder, "
            f"or give overwrite=True to replace it."
        )
    return "done"


def begin(output: OutputFolder, run: Run) -> Journal | Manifest:
    """Look, then decide: the journal to resume from, an empty one to start again, or the manifest of a complete set.

    Raises:
        ConfigError: what is there is of another run, and must not be overwritten.
        DataError: a journal or a manifest that is damaged.
        StorageError: a file that they name is not there.
    """
    found = look(output, run)
    decision = decide(found, run)
    if decision == "resume" and found.journal is not None:
        output.check_staged(found.journal.parts if found.journal.phase == "writing" else ())
        return found.journal
    if decision == "done" and found.manifest is not None:
        output.check_published(found.manifest.files)
        return found.manifest
    output.clear_staging()
    return Journal(fingerprint=run.fingerprint)


def publish(output: OutputFolder, journal: Journal, encoding: Encoding, *, staged_in: str) -> Manifest:
    """Publish the shards of a journal that names them all, and then the manifest.

    Args:
        output: the folder.
        journal: it names all shards.
        encoding: how text became tokens.
        staged_in: the folder in it that the shards' names are relative to.
    """
    manifest = manifest_of(journal, encoding)
    output.publish(
        renames(journal.parts, staged_in),
        manifest.to_json(),
        moving=journal.phase == "moving",
        on_moving=lambda: output.write_journal(replace(journal, phase="moving")),
    )
    output.clear_staging(others=True)
    return manifest


def few(changed: list[str]) -> str:
    """The first differences, for a message."""
    return "; ".join(changed[:3]) + (f"; and {len(changed) - 3:,} more" if len(changed) > 3 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a run goes by, whatever it has done so far."""

    source: Source
    tokenizer: Tokenizer
    output: OutputFolder
    options: PretokenizeOptions
    seen_before: Digests
    progress: Callable[[Progress], None] | None
    drops: Drops | None = None


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

    def commit(shard: FileEntry) -> None:
        nonlocal journal
        if isinstance(dedup, Dedup):
            output.write_staged(seen_name(shard), ledger.take_digests())
        journal = replace(
            journal,
            parts=(*journal.parts, shard),
            position=ledger.position,
            bad_records=tuple(selection.bad_records[: ledger.position.skipped.bad]),
        )
        output.write_journal(journal)

    left = None if options.max_docs is None else options.max_docs - journal.position.documents
    documents = islice(selection.documents(source.records(journal.position.cursor)), left)
    done = Progress(
        documents=journal.position.documents,
        tokens=sum(shard.tokens for shard in journal.parts),
        text_bytes=journal.position.text_bytes,
        earlier_bytes=journal.position.text_bytes,
    )
    if job.progress is not None and done.documents:
        job.progress(done)

    info = job.tokenizer.info

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
            finished=journal.parts,
            on_group=ledger.take,
            on_shard=commit,
        ) as writer,
        encoders(job.tokenizer, options.workers) as encoding_with,
        closing(ahead(batch_documents(documents, options.batch_bytes))) as batches,
        closing(in_order(batches, encode_with, encoding_with)) as encoded,
    ):
        for batch, tokens in encoded:
            ledger.add(batch.documents, tokens.lost)
            writer.add(tokens)
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
        writer.complete(may_be_empty=options.world_size > 1)  # there may be more ranks than files
    position = ledger.position
    if options.max_docs is None or position.documents < options.max_docs:
        position = replace(position, skipped=selection.skipped)  # also what came after the last document
    journal = replace(
        journal,
        phase="removing",
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
