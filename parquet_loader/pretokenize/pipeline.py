"""The whole way: records to batches of text, batches to tokens, tokens to files, and on from where a run was ended.

    source.records(cursor) -> selection -> batches -> in_order(encode) -> SetWriter -> parts in the staging folder
                                                            |                |
                                                          Ledger --position--+--> journal, once a part
    all parts there: journal "removing" -> old set goes -> journal "moving" -> parts, manifest come -> staging goes

While the tokenizer's threads or processes work on the next batches, the main thread writes one and reads those after.
Reading, choosing and writing are one stream, so what comes out does not depend on how many workers encode.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize.dedup import (
    Digests,
    SeenFile,
    SeenHashes,
    as_digests,
    digest_function,
)
from parquet_loader.pretokenize.fast import with_engine
from parquet_loader.pretokenize.journal import Journal, differences
from parquet_loader.pretokenize.ledger import Document, Ledger
from parquet_loader.pretokenize.manifest import MANIFEST_NAME, Encoding, FileEntry, Manifest, Skipped
from parquet_loader.pretokenize.options import PretokenizeOptions, PretokenizeWarning
from parquet_loader.pretokenize.output import OutputFolder
from parquet_loader.pretokenize.progress import Progress
from parquet_loader.pretokenize.records import Source
from parquet_loader.pretokenize.selection import Dedup, Selection
from parquet_loader.pretokenize.sources import FileSource
from parquet_loader.pretokenize.tokenizer import TokenBatch, Tokenizer, load_tokenizer
from parquet_loader.pretokenize.workers import Encode, encoders, in_order
from parquet_loader.pretokenize.writer import TOKEN_COLUMN, SetWriter, final_entries, renames

_FINGERPRINT_VERSION = 1
_RECORD_BYTES = 64  # what a record costs beside its text; keeps a batch of empty documents from growing for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run that is done.

    Attributes:
        manifest: what was written.
        output: where.
        seconds: from the first look at the input to the manifest.
        skipped: names of files in input folders that were passed over because of their extension.
        earlier_bytes: UTF-8 bytes of the documents that an earlier run of the same command had finished.
    """

    manifest: Manifest
    output: str
    seconds: float
    skipped: tuple[str, ...] = ()
    earlier_bytes: int = 0

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return self.manifest.text_bytes

    def describe(self) -> str:
        """One paragraph for people."""
        documents, tokens, files = self.manifest.documents, self.manifest.tokens, len(self.manifest.files)
        left_out = self.manifest.skipped
        done_now = self.text_bytes - self.earlier_bytes
        text = (
            f"Wrote {documents:,} documents, {tokens:,} tokens ({self.manifest.encoding.dtype}), "
            f"in {files:,} {'file' if files == 1 else 'files'} to {self.output}: "
            f"{self.text_bytes / tokens:.3f} bytes of text per token, {self.text_bytes / 1e6:,.1f} MB "
            f"in {self.seconds:,.1f} s ({done_now / 1e6 / max(self.seconds, 1e-3):,.1f} MB/s)."
        )
        if self.earlier_bytes:
            text += f" {self.earlier_bytes / 1e6:,.1f} MB of it an earlier run had finished."
        for number, what in (
            (left_out.duplicates, "duplicates"),
            (left_out.empty, "empty texts"),
            (left_out.bad, "bad records, listed in the manifest"),
        ):
            if number:
                text += f" Left out {number:,} {what}."
        if self.skipped:
            text += f" Passed over {len(self.skipped):,} files of other kinds, such as {self.skipped[0]}."
        return text


def pretokenize(options: PretokenizeOptions, *, progress: Callable[[Progress], None] | None = None) -> Summary:
    """Tokenize text into a set of Parquet files, whole or not at all, and on from where the same run was ended.

    Args:
        options: what to do.
        progress: called after every batch, in the calling thread.

    Raises:
        ConfigError: an option that cannot work, an output that is not empty or of other options, a tokenizer that is
            not to be had.
        DataError: an input that does not hold what it should; names the file and the line or row.
        StorageError: a path that cannot be read or written.
    """
    started = time.monotonic()
    source = options.open_source()
    output = OutputFolder(options.output, options.storage_options)
    if isinstance(source, FileSource):
        output.refuse_inputs(source.files)
    output.look()
    # Last, because a Hub name can take long.
    tokenizer = load_tokenizer(options.tokenizer, eos_token=options.eos_token, need_eos=options.append_eos)
    tokenizer = with_engine(tokenizer, options.engine, source)
    manifest, earlier_bytes = tokenize_source(source, tokenizer, output, options, progress=progress)
    return Summary(
        manifest=manifest,
        output=options.output,
        seconds=time.monotonic() - started,
        skipped=source.skipped if isinstance(source, FileSource) else (),
        earlier_bytes=earlier_bytes,
    )


def tokenize_source(
    source: Source,
    tokenizer: Tokenizer,
    output: OutputFolder,
    options: PretokenizeOptions,
    *,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Manifest, int]:
    """Tokenize any source with any tokenizer into an output folder.

    Of the options, those that name a source, a tokenizer or an output are not looked at.

    Returns:
        What was written, and the UTF-8 bytes of those documents in it that an earlier run had finished.
    """
    eos_id = tokenizer.info.eos_id if options.append_eos else None
    encoding = Encoding(
        column=TOKEN_COLUMN,
        dtype=tokenizer.info.dtype.name,
        tokenizer=tokenizer.info,
        eos_appended=eos_id is not None,
    )
    if options.dedup and options.seen_hashes is None:
        warnings.warn(
            "--dedup keeps the hashes of texts in memory for this set alone: another run will not know them. "
            "--seen-hashes PATH --write-seen-hashes keeps them in a file.",
            PretokenizeWarning,
            stacklevel=2,
        )
    seen_file = _seen_file(options)
    seen_before = seen_file.read() if seen_file is not None and seen_file.exists() else as_digests(b"")
    fingerprint = _fingerprint(source, tokenizer, options, seen_before)
    with output.claimed():
        journal = _begin(output, fingerprint, options)
        if isinstance(journal, Manifest):
            return journal, journal.text_bytes
        earlier_bytes = journal.position.text_bytes
        if journal.phase == "writing":
            job = _Job(
                source=source,
                tokenizer=tokenizer,
                output=output,
                options=options,
                seen_before=seen_before,
                encoding=encoding,
                eos_id=eos_id,
                progress=progress,
            )
            journal = _write(job, journal)
        manifest = Manifest(
            encoding=encoding,
            files=final_entries(journal.parts),
            text_bytes=journal.position.text_bytes,
            skipped=journal.position.skipped,
            bad_records=journal.bad_records,
            fingerprint=journal.fingerprint,
        )
        if seen_file is not None and options.write_seen_hashes:
            # Before the set is shown: once it is, nobody need come back. Should this be done twice, nothing changes.
            seen_file.extend(as_digests(output.read_staged(_seen_name(part))) for part in journal.parts)
        output.publish(
            renames(journal.parts),
            manifest.to_json(),
            moving=journal.phase == "moving",
            on_moving=lambda: output.write_journal(replace(journal, phase="moving")),
        )
        output.clear_staging(others=True)
    return manifest, earlier_bytes


def _seen_file(options: PretokenizeOptions) -> SeenFile | None:
    if options.seen_hashes is None:
        return None
    file = SeenFile(url=options.seen_hashes, hash_name=options.hash, storage_options=options.storage_options)
    if not options.write_seen_hashes and not file.exists():
        raise ConfigError(
            f"--seen-hashes: there is no file {file.url!r}. Check the path, or give --write-seen-hashes to begin one."
        )
    return file


def _seen_name(part: FileEntry) -> str:
    return f"{part.name}.seen"


def _fingerprint(
    source: Source, tokenizer: Tokenizer, options: PretokenizeOptions, seen_before: Digests
) -> dict[str, object]:
    """All that the result depends on. What only changes how fast it comes, workers or batches, is no part of it."""
    seen = {"hashes": len(seen_before), "sha256": hashlib.sha256(seen_before.tobytes()).hexdigest()}
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
        "seen_hashes": seen if options.seen_hashes is not None else None,
    }


def _begin(output: OutputFolder, fingerprint: dict[str, object], options: PretokenizeOptions) -> Journal | Manifest:
    """Where to begin: anew, after what an earlier run has finished, or not at all because all is there.

    Raises:
        ConfigError: what is there is of another run, and must not be overwritten.
    """
    there = output.look()
    journal, whole = None, None
    try:
        journal = output.read_journal()
        whole = output.read_manifest() if MANIFEST_NAME in there else None
    except DataError:
        if not options.overwrite:
            raise
    if journal is not None:
        changed = _changed(
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
                f"({_few(changed)}). Give those again to go on with it, choose another folder, or give --overwrite to "
                f"start anew."
            )
    elif there and options.overwrite:
        # A run that was killed at its very end has nothing left to do; and one that has added its hashes to the file
        # would find nothing but duplicates.
        ended = output.found_staging or options.write_seen_hashes
        if whole is not None and ended and not _changed(whole.fingerprint, whole.skipped, fingerprint, options, True):
            return whole
    elif there:
        if whole is None or not whole.fingerprint:
            also = f" and {len(there) - 1} more" if len(there) > 1 else ""
            raise ConfigError(
                f"--output {output.name!r} is not empty: it holds {there[0]!r}{also}. "
                f"Choose another folder, or give --overwrite to replace a former run's files."
            )
        changed = _changed(whole.fingerprint, whole.skipped, fingerprint, options, True)
        if changed:
            raise ConfigError(
                f"--output {output.name!r} is not empty: it holds a whole set of other inputs or options "
                f"({_few(changed)}). Choose another folder, or give --overwrite to replace it."
            )
        return whole
    output.clear_staging()
    return Journal(fingerprint=fingerprint)


def _changed(
    was: Mapping[str, object], skipped: Skipped, now: dict[str, object], options: PretokenizeOptions, complete: bool, /
) -> list[str]:
    # A run that was complete has added its own hashes to the file.
    ignored = ("seen_hashes",) if complete else ()
    changed = differences(
        {key: value for key, value in was.items() if key not in ignored},
        {key: value for key, value in now.items() if key not in ignored},
    )
    if skipped.bad and options.on_bad_record == "raise":
        changed.append(f"on_bad_record: was 'skip', for {skipped.bad:,} records, is 'raise'")
    return changed


def _few(changed: list[str]) -> str:
    return "; ".join(changed[:3]) + (f"; and {len(changed) - 3:,} more" if len(changed) > 3 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What a run goes by, whatever it has done so far."""

    source: Source
    tokenizer: Tokenizer
    output: OutputFolder
    options: PretokenizeOptions
    seen_before: Digests
    encoding: Encoding
    eos_id: int | None
    progress: Callable[[Progress], None] | None


def _write(job: _Job, journal: Journal) -> Journal:
    """Write the parts that are not there yet; returns the journal, which then says that all are."""
    options, output, source = job.options, job.output, job.source
    dedup = None
    if options.dedup:
        dedup = Dedup(digest=digest_function(options.hash), seen=SeenHashes())
        dedup.seen.add(job.seen_before)
        for part in journal.parts:
            dedup.seen.add(as_digests(output.read_staged(_seen_name(part))))
    ledger = Ledger(journal.position)
    selection = Selection(
        on_bad_record=options.on_bad_record,
        empty=options.empty,
        dedup=dedup,
        skipped=journal.position.skipped,
        bad_records=journal.bad_records,
    )

    def commit(part: FileEntry) -> None:
        nonlocal journal
        if options.dedup:
            output.write_staged(_seen_name(part), ledger.take_digests())
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

    def encode_with(batch: TextBatch, encode: Encode) -> TokenBatch:
        texts = [each.record.text for each in batch.documents]
        tokens = encode(texts, [each.record.origin for each in batch.documents])
        return tokens if job.eos_id is None else tokens.with_appended(job.eos_id)

    with (
        SetWriter(
            output,
            job.encoding,
            row_group_tokens=options.row_group_tokens,
            file_tokens=options.file_tokens,
            finished=journal.parts,
            on_group=ledger.take,
            on_part=commit,
        ) as writer,
        encoders(job.tokenizer, options.workers) as encoding_with,
        closing(in_order(batch_documents(documents, options.batch_bytes), encode_with, encoding_with)) as encoded,
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
        if not done.documents and selection.skipped != Skipped():
            left_out = selection.skipped
            raise ConfigError(
                f"nothing is left of the input: {left_out.duplicates:,} duplicates, {left_out.empty:,} empty texts and "
                f"{left_out.bad:,} bad records were left out."
            )
        writer.complete()
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
