"""The parts of a set, written one by one, and gone on with after those that are finished.

source.records(cursor) -> selection -> ahead(batches) -> in_order(encode) -> SetWriter -> parts in the staging folder
                                                               |                |
                                                             Ledger --position--+--> journal, once a part
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

from ...errors import ConfigError, DataError
from ..options import PretokenizeOptions
from ..select.dedup import Digests, SeenFile, SeenHashes, as_digests, digest_function
from ..select.ledger import Document, Ledger
from ..select.selection import Dedup, Drops, Selection
from ..sources.base import Source
from ..tokenizers.huggingface import TokenBatch, Tokenizer
from ..tokenizers.workers import Encode, ahead, encoders, in_order
from ..write.folder import OutputFolder
from ..write.journal import Journal, differences
from ..write.manifest import MANIFEST_NAME, Encoding, FileEntry, Manifest, Skipped
from ..write.writer import TOKEN_COLUMN, SetWriter, final_entries
from .progress import Progress

_FINGERPRINT_VERSION = 2
_RECORD_BYTES = 64  # what a record costs beside its text; keeps a batch of empty documents from growing for ever


def open_seen_file(options: PretokenizeOptions) -> SeenFile | None:
    """The file of hashes that other runs have seen, or None.

    Raises:
        ConfigError: it is not there, and is not to be begun either.
    """
    if options.seen_hashes is None:
        return None
    file = SeenFile(url=options.seen_hashes, hash_name=options.hash, storage_options=options.storage_options)
    if not options.write_seen_hashes and not file.exists():
        raise ConfigError(
            f"--seen-hashes: there is no file {file.url!r}. Check the path, or give --write-seen-hashes to begin one."
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
    """The manifest of the set that a journal's parts are."""
    return Manifest(
        encoding=encoding,
        files=final_entries(journal.parts),
        text_bytes=journal.position.text_bytes,
        skipped=journal.position.skipped,
        bad_records=journal.bad_records,
        fingerprint=journal.fingerprint,
    )


def seen_name(part: FileEntry) -> str:
    """The file beside a part that holds the hashes of its documents."""
    return f"{part.name}.seen"


def fingerprint_of(
    source: Source, tokenizer: Tokenizer, options: PretokenizeOptions, seen_before: Digests
) -> dict[str, object]:
    """All that the result depends on. What only changes how fast it comes, workers or batches, is no part of it."""
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


def begin(
    output: OutputFolder,
    fingerprint: dict[str, object],
    options: PretokenizeOptions,
    whole_fingerprint: dict[str, object] | None = None,
) -> Journal | Manifest:
    """Where to begin: anew, after what an earlier run has finished, or not at all because all is there.

    Raises:
        ConfigError: what is there is of another run, and must not be overwritten.
    """
    there = output.look()
    expected = whole_fingerprint or fingerprint  # of one rank's run, that of all ranks together
    if not options.overwrite:
        output.refuse_other_runs(options.world_size, lambda other: not differences(other.fingerprint, expected))
    journal, whole = None, None
    try:
        journal = output.read_journal()
        whole = output.read_manifest() if MANIFEST_NAME in there else None
    except DataError:
        if not options.overwrite:
            raise
    if journal is not None:
        changed = changes(
            journal.fingerprint, journal.position.skipped, fingerprint, options, journal.phase != "writing"
        )
        if not changed:
            if there and journal.phase == "writing" and not options.overwrite:
                raise ConfigError(
                    f"--output {output.name!r} is not empty: beside an unfinished run it holds {there[0]!r}. Give "
                    f"--overwrite, as that run had it, to go on and replace the old set."
                )
            output.check_staged(journal.parts if journal.phase == "writing" else ())
            return journal
        if not options.overwrite:
            raise ConfigError(
                f"--output {output.name!r} is not empty: it holds an unfinished run of other inputs or options "
                f"({few(changed)}). Give those again to go on with it, choose another folder, or give --overwrite to "
                f"start anew."
            )
    elif there and options.overwrite:
        # A run that was killed at its very end has nothing left to do; and one that has added its hashes to the file
        # would find nothing but duplicates.
        ended = (output.found_staging and expected is fingerprint) or options.write_seen_hashes
        if whole is not None and ended and not changes(whole.fingerprint, whole.skipped, expected, options, True):
            output.check_published(whole.files)
            return whole
    elif there:
        if whole is None or not whole.fingerprint:
            also = f" and {len(there) - 1} more" if len(there) > 1 else ""
            raise ConfigError(
                f"--output {output.name!r} is not empty: it holds {there[0]!r}{also}. "
                f"Choose another folder, or give --overwrite to replace a former run's files."
            )
        changed = changes(whole.fingerprint, whole.skipped, expected, options, True)
        if changed:
            raise ConfigError(
                f"--output {output.name!r} is not empty: it holds a whole set of other inputs or options "
                f"({few(changed)}). Choose another folder, or give --overwrite to replace it."
            )
        output.check_published(whole.files)
        return whole
    output.clear_staging()
    return Journal(fingerprint=fingerprint)


def changes(
    was: Mapping[str, object], skipped: Skipped, now: dict[str, object], options: PretokenizeOptions, complete: bool, /
) -> list[str]:
    """What is other now than it was in a run that is there, complete or not."""
    # A run that was complete has added its own hashes to the file.
    ignored = ("seen_hashes",) if complete else ()
    changed = differences(
        {key: value for key, value in was.items() if key not in ignored},
        {key: value for key, value in now.items() if key not in ignored},
    )
    if skipped.bad and options.on_bad_record == "raise":
        changed.append(f"on_bad_record: was 'skip', for {skipped.bad:,} records, is 'raise'")
    return changed


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


def write_parts(job: Job, journal: Journal) -> Journal:
    """Write the parts that are not there yet; returns the journal, which then says that all are."""
    options, output, source = job.options, job.output, job.source
    dedup: Dedup | Drops | None = job.drops
    if options.dedup and dedup is None:
        dedup = Dedup(digest=digest_function(options.hash), seen=SeenHashes())
        dedup.seen.add(job.seen_before)
        for part in journal.parts:
            dedup.seen.add(as_digests(output.read_staged(seen_name(part))))
    ledger = Ledger(journal.position)
    selection = Selection(
        on_bad_record=options.on_bad_record,
        empty=options.empty,
        dedup=dedup,
        documents=journal.position.documents,
        skipped=journal.position.skipped,
        bad_records=journal.bad_records,
    )

    def commit(part: FileEntry) -> None:
        nonlocal journal
        if isinstance(dedup, Dedup):
            output.write_staged(seen_name(part), ledger.take_digests())
        journal = replace(
            journal,
            parts=(*journal.parts, part),
            position=ledger.position,
            bad_records=tuple(selection.bad_records[: ledger.position.skipped.bad]),
        )
        output.write_journal(journal)

    left = None if options.max_docs is None else options.max_docs - journal.position.documents
    documents = islice(selection.documents(source.records(journal.position.cursor)), left)
    done = Progress(
        documents=journal.position.documents,
        tokens=sum(part.tokens for part in journal.parts),
        text_bytes=journal.position.text_bytes,
        earlier_bytes=journal.position.text_bytes,
    )
    if job.progress is not None and done.documents:
        job.progress(done)

    eos_id = job.tokenizer.info.eos_id if options.append_eos else None

    def encode_with(batch: TextBatch, encode: Encode) -> TokenBatch:
        texts = [each.record.text for each in batch.documents]
        tokens = encode(texts, [each.record.origin for each in batch.documents])
        return tokens if eos_id is None else tokens.with_appended(eos_id)

    with (
        SetWriter(
            output,
            encoding_of(job.tokenizer, options),
            row_group_tokens=options.row_group_tokens,
            file_tokens=options.file_tokens,
            finished=journal.parts,
            on_group=ledger.take,
            on_part=commit,
        ) as writer,
        encoders(job.tokenizer, options.workers) as encoding_with,
        closing(ahead(batch_documents(documents, options.batch_bytes))) as batches,
        closing(in_order(batches, encode_with, encoding_with)) as encoded,
    ):
        for batch, tokens in encoded:
            ledger.add(batch.documents)
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
    """Documents in batches of about so many bytes; a longer document is a batch with what came before it."""
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
