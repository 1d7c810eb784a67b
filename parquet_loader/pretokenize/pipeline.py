"""The whole way: records to batches of text, batches to tokens, tokens to files.

    source.records() --batches--> [texts] --encode, one batch ahead on a thread--> TokenBatch --SetWriter--> files

While the tokenizer's threads work on one batch (without the GIL), the main thread writes the one before and reads the
one after.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import cast, get_args

from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize.manifest import Encoding, Manifest
from parquet_loader.pretokenize.output import OutputFolder
from parquet_loader.pretokenize.sources import FileSource, Record, Source, TextUnit, find_files
from parquet_loader.pretokenize.tokenizer import TokenBatch, Tokenizer, load_tokenizer
from parquet_loader.pretokenize.writer import MAX_ROW_GROUP_TOKENS, TOKEN_COLUMN, SetWriter

DEFAULT_ROW_GROUP_TOKENS = 1_000_000
DEFAULT_FILE_TOKENS = 100_000_000
DEFAULT_BATCH_BYTES = 2 << 20

_RECORD_BYTES = 64  # what a record costs beside its text; keeps a batch of empty documents from growing for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class PretokenizeOptions:
    """What to tokenize, and how.

    Attributes:
        inputs: files, folders, globs; local paths or any fsspec URLs.
        output: the folder to write, a local path or any fsspec URL.
        tokenizer: a ``tokenizer.json``, a folder that holds one, or a name on the Hugging Face Hub.
        text_column: the JSON field or Parquet column with the text.
        text_unit: whether a line of a ``.txt`` is a document (``"line"``), or the whole file (``"file"``).
        append_eos: end every document with the tokenizer's end-of-document token.
        eos_token: that token; None to find it.
        row_group_tokens: tokens of a row group, about.
        file_tokens: tokens of a file, about.
        max_docs: stop after so many documents; None for all.
        overwrite: replace the files of a former run.
        batch_bytes: UTF-8 bytes of text that are encoded at a time.
        storage_options: handed to fsspec for inputs and outputs that are URLs.
    """

    inputs: tuple[str, ...]
    output: str
    tokenizer: str
    text_column: str = "text"
    text_unit: TextUnit = "line"
    append_eos: bool = False
    eos_token: str | None = None
    row_group_tokens: int = DEFAULT_ROW_GROUP_TOKENS
    file_tokens: int = DEFAULT_FILE_TOKENS
    max_docs: int | None = None
    overwrite: bool = False
    batch_bytes: int = DEFAULT_BATCH_BYTES
    storage_options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(cast("object", self.inputs), str) or not self.inputs:
            raise ConfigError(f"inputs must be a sequence of at least one path, got {self.inputs!r}.")
        if not self.output or not all(self.inputs):
            raise ConfigError(f"inputs {self.inputs!r} and output {self.output!r} must not be empty strings.")
        if self.text_unit not in get_args(TextUnit):
            raise ConfigError(f"text_unit must be 'line' or 'file', got {self.text_unit!r}.")
        for name, value in (
            ("row_group_tokens", self.row_group_tokens),
            ("file_tokens", self.file_tokens),
            ("batch_bytes", self.batch_bytes),
            ("max_docs", 1 if self.max_docs is None else self.max_docs),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")
        if self.row_group_tokens > MAX_ROW_GROUP_TOKENS // 2:
            raise ConfigError(
                f"row_group_tokens must be at most {MAX_ROW_GROUP_TOKENS // 2:,}, got {self.row_group_tokens:,}."
            )
        if self.file_tokens < self.row_group_tokens:
            raise ConfigError(
                f"file_tokens ({self.file_tokens:,}) is less than row_group_tokens ({self.row_group_tokens:,}), but a "
                f"file holds whole row groups. Raise the first or lower the second."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run has come.

    Attributes:
        documents: encoded so far.
        tokens: of those documents.
        text_bytes: of those documents, in UTF-8.
    """

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run that is done.

    Attributes:
        manifest: what was written.
        output: where.
        text_bytes: UTF-8 bytes of all documents.
        seconds: from the first look at the input to the manifest.
        skipped: names of files in input folders that were passed over because of their extension.
    """

    manifest: Manifest
    output: str
    text_bytes: int
    seconds: float
    skipped: tuple[str, ...] = ()

    def describe(self) -> str:
        """One paragraph for people."""
        documents, tokens, files = self.manifest.documents, self.manifest.tokens, len(self.manifest.files)
        text = (
            f"Wrote {documents:,} documents, {tokens:,} tokens ({self.manifest.encoding.dtype}), "
            f"in {files:,} {'file' if files == 1 else 'files'} to {self.output}: "
            f"{tokens / max(self.text_bytes, 1):.3f} tokens per byte of text, {self.text_bytes / 1e6:,.1f} MB "
            f"in {self.seconds:,.1f} s."
        )
        if self.skipped:
            text += f" Passed over {len(self.skipped):,} files of other kinds, such as {self.skipped[0]}."
        return text


def pretokenize(options: PretokenizeOptions, *, progress: Callable[[Progress], None] | None = None) -> Summary:
    """Tokenize text files into a set of Parquet files, whole or not at all.

    Args:
        options: what to do.
        progress: called after every batch, in the calling thread.

    Raises:
        ConfigError: an option that cannot work, an output that is not empty, a tokenizer that is not to be had.
        DataError: an input that does not hold what it should; names the file and the line or row.
        StorageError: a path that cannot be read or written.
    """
    started = time.monotonic()
    files = find_files(options.inputs, options.storage_options)
    output = OutputFolder(options.output, options.storage_options)
    output.prepare(overwrite=options.overwrite, inputs=files.files)
    # Last, because a Hub name can take long.
    tokenizer = load_tokenizer(options.tokenizer, eos_token=options.eos_token, need_eos=options.append_eos)
    source = FileSource(files=files.files, text_column=options.text_column, text_unit=options.text_unit)
    manifest, done = tokenize_source(source, tokenizer, output, options, progress=progress)
    return Summary(
        manifest=manifest,
        output=options.output,
        text_bytes=done.text_bytes,
        seconds=time.monotonic() - started,
        skipped=files.skipped,
    )


def tokenize_source(
    source: Source,
    tokenizer: Tokenizer,
    output: OutputFolder,
    options: PretokenizeOptions,
    *,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Manifest, Progress]:
    """Tokenize any source with any tokenizer into an output folder that was prepared.

    Of the options, those that name a source, a tokenizer or an output are not looked at.
    """
    eos_id = tokenizer.info.eos_id if options.append_eos else None
    encoding = Encoding(
        column=TOKEN_COLUMN,
        dtype=tokenizer.info.dtype.name,
        tokenizer=tokenizer.info,
        eos_appended=eos_id is not None,
    )
    done = Progress()
    batches = batch_records(islice(source.records(), options.max_docs), options.batch_bytes)
    with SetWriter(
        output, encoding, row_group_tokens=options.row_group_tokens, file_tokens=options.file_tokens
    ) as writer:
        for text_bytes, tokens in _encoded(batches, tokenizer, eos_id):
            writer.add(tokens)
            done = Progress(
                documents=done.documents + len(tokens.lengths),
                tokens=done.tokens + len(tokens.tokens),
                text_bytes=done.text_bytes + text_bytes,
            )
            if progress is not None:
                progress(done)
        manifest = writer.finish()
    return manifest, done


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch:
    """Records to encode together.

    Attributes:
        records: in order.
        text_bytes: their UTF-8 bytes.
    """

    records: tuple[Record, ...]
    text_bytes: int


def batch_records(records: Iterable[Record], batch_bytes: int) -> Iterator[TextBatch]:
    """Records in batches of about so many bytes; a longer document is a batch with what came before it.

    Raises:
        DataError: a text that is not valid Unicode, such as half a surrogate pair out of a JSON escape.
    """
    batch: list[Record] = []
    text_bytes = 0
    for record in records:
        batch.append(record)
        text_bytes += _utf8_bytes(record)
        if text_bytes + _RECORD_BYTES * len(batch) >= batch_bytes:
            yield TextBatch(records=tuple(batch), text_bytes=text_bytes)
            batch, text_bytes = [], 0
    if batch:
        yield TextBatch(records=tuple(batch), text_bytes=text_bytes)


def _utf8_bytes(record: Record) -> int:
    if record.text.isascii():
        return len(record.text)
    try:
        return len(record.text.encode())
    except UnicodeEncodeError as exc:
        raise DataError(
            f"character {exc.start} of the text is {record.text[exc.start]!r}, half of a surrogate pair, which is no "
            f"character. Correct or remove the document.",
            path=record.origin,
        ) from exc


def _encoded(
    batches: Iterable[TextBatch], tokenizer: Tokenizer, eos_id: int | None
) -> Iterator[tuple[int, TokenBatch]]:
    """Each batch's text bytes and tokens, in order; one batch is encoded while the caller has the one before."""

    def encode(batch: TextBatch) -> tuple[int, TokenBatch]:
        tokens = tokenizer.encode(
            [record.text for record in batch.records], [record.origin for record in batch.records]
        )
        return batch.text_bytes, tokens if eos_id is None else tokens.with_appended(eos_id)

    ahead: deque[Future[tuple[int, TokenBatch]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="pretokenize-encode") as pool:
        try:
            for batch in batches:
                ahead.append(pool.submit(encode, batch))
                if len(ahead) > 1:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
