"""A whole run: records to batches of text, batches to tokens, tokens to files; resumed where an earlier run stopped.

    begin -> write_shards -> all shards there, journal "removing" -> the old set goes, journal "moving"
          -> shards and manifest come -> staging goes

While the tokenizer's threads or processes work on the next batches, the main thread writes one, and another reads those
after. Reading, choosing and writing are one stream, so what comes out does not depend on how many workers encode.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...errors import ConfigError, PretokenizeWarning
from ..options import PretokenizeOptions
from ..select.dedup import as_digests
from ..sources.base import Source
from ..sources.files import FileSource
from ..tokenizers.gigatoken import with_engine
from ..tokenizers.huggingface import Tokenizer, load_tokenizer
from ..write.folder import OutputFolder
from ..write.growing import marked_as_growing
from ..write.journal import Journal
from ..write.manifest import Manifest
from .progress import Progress
from .resume import begin, fingerprint_of, run_of
from .shards import Job, encoding_of, open_seen_file, publish, seen_name, write_shards

__all__ = ["Summary", "pretokenize", "pretokenize_locked", "tokenize_source"]


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
        text += self.manifest.describe_packing()
        if self.earlier_bytes:
            text += f" {self.earlier_bytes / 1e6:,.1f} MB of it was finished by an earlier run."
        for number, what in (
            (left_out.duplicates, "duplicates"),
            (left_out.empty, "empty texts"),
            (left_out.bad, "bad records, listed in the manifest"),
        ):
            if number:
                text += f" Skipped {number:,} {what}."
        text += self.manifest.lost.describe()
        if self.skipped:
            text += f" Passed over {len(self.skipped):,} files of other kinds, such as {self.skipped[0]}."
        return text


def pretokenize(options: PretokenizeOptions, *, progress: Callable[[Progress], None] | None = None) -> Summary:
    """Tokenize text into a set of Parquet files, completely or not at all; resume where the same run stopped.

    Args:
        options: what to do.
        progress: called after every batch, in the calling thread.

    Raises:
        ConfigError: an option that cannot work, an output that is not empty or of other options, a tokenizer that
            cannot be loaded.
        DataError: an input with wrong content; names the file and the line or row.
        StorageError: a path that cannot be read or written.
    """
    return pretokenize_locked(options, None, progress=progress)


def pretokenize_locked(
    options: PretokenizeOptions,
    lock: int | None,
    *,
    progress: Callable[[Progress], None] | None = None,
    may_beat: Callable[[], bool] = lambda: True,
) -> Summary:
    """`pretokenize`, for a process that has started this one.

    Args:
        options: what to do.
        lock: that of the output folder, which the other has taken, if it has.
        progress: see `pretokenize`.
        may_beat: see `write.growing.Marker`.
    """
    if options.world_size > 1:
        raise ConfigError(f"pretokenize is for one rank, got world_size {options.world_size}: use pretokenize_rank.")
    started = time.monotonic()
    source = options.open_source()
    output = OutputFolder(options.output, options.storage_options)
    if isinstance(source, FileSource):
        output.refuse_inputs(source.files)
    output.look()
    # Last, because a Hub name can take long.
    tokenizer = load_tokenizer(options.tokenizer, eos_token=options.eos_token, need_eos=options.append_eos)
    tokenizer = with_engine(tokenizer, options.engine, source)
    manifest, earlier_bytes = tokenize_source(
        source, tokenizer, output, options, progress=progress, lock=lock, may_beat=may_beat
    )
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
    lock: int | None = None,
    may_beat: Callable[[], bool] = lambda: True,
) -> tuple[Manifest, int]:
    """Tokenize any source with any tokenizer into an output folder.

    Of the options, those that name a source, a tokenizer or an output are not looked at.

    Returns:
        What was written, and the UTF-8 bytes of those documents in it that an earlier run had finished.
    """
    if options.dedup and options.seen_hashes is None:
        warnings.warn(
            "dedup=True keeps the hashes of texts in memory for this set alone: another run will not know them. "
            "seen_hashes=PATH and write_seen_hashes=True keep them in a file.",
            PretokenizeWarning,
            stacklevel=2,
        )
    seen_file = open_seen_file(options)
    seen_before = seen_file.read() if seen_file is not None and seen_file.exists() else as_digests(b"")
    fingerprint = fingerprint_of(source, tokenizer, options, seen_before)
    with output.claimed(lock):
        journal = begin(output, run_of(fingerprint, options))
        if isinstance(journal, Manifest):
            return journal, journal.text_bytes
        earlier_bytes = journal.position.text_bytes
        job = Job(
            source=source,
            tokenizer=tokenizer,
            output=output,
            options=options,
            seen_before=seen_before,
            progress=progress,
            may_beat=may_beat,
        )
        with marked(job, journal) as job:
            if journal.phase == "writing":
                journal = write_shards(job, journal)
            if seen_file is not None and options.write_seen_hashes:
                # Before the set is complete: then nobody need come back. Should this be done twice, nothing changes.
                seen_file.extend(as_digests(output.read_staged(seen_name(shard))) for shard in journal.parts)
            manifest = publish(output, journal, encoding_of(tokenizer, options), staged_in=output.staging_name)
        output.clear_staging(others=True)
    return manifest, earlier_bytes


@contextmanager
def marked(job: Job, journal: Journal) -> Iterator[Job]:
    """The job, of which the marker of a growing set is told; as it is, where the set does not grow."""
    if not journal.grows:
        yield job
        return
    so_far = (journal.parts, journal.position.documents)
    with marked_as_growing(job.output, job.options.row_group_tokens, *so_far, job.may_beat) as marker:

        def show(done: Progress) -> None:
            marker.encoded(done.tokens, expected_of(done, job.options.max_docs))
            if job.progress is not None:
                job.progress(done)

        yield replace(job, progress=show, on_shards=marker.published)


def expected_of(done: Progress, max_docs: int | None) -> dict[str, int] | None:
    """What there will be in the end, about, as far as that is known.

    >>> expected_of(Progress(documents=5, tokens=2_000, text_bytes=8_000, fraction=0.25), None)
    {'documents': 20, 'tokens': 8000, 'bytes_done': 8000, 'bytes_total': 32000}
    """
    fraction = max(done.fraction or 0, done.documents / max_docs if max_docs is not None else 0)
    if not fraction:
        return None

    def whole(count: int) -> int:
        return max(count, round(count / fraction))

    return {
        "documents": whole(done.documents),
        "tokens": whole(done.tokens),
        "bytes_done": done.text_bytes,
        "bytes_total": whole(done.text_bytes),
    }
