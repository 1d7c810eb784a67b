"""Tokenized corpora to the files that `ParquetLoader` reads, without tokenizing again.

``python -m parquet_loader.pretokenize.convert`` is its command line. The set appears complete or not at all, and a
conversion that was killed resumes after the last finished file, as with `pretokenize`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from ...errors import ConfigError, DataError, ParquetLoaderError, PretokenizeWarning
from ...storage.local import local_error
from ...storage.secrets import Location
from ..cli import signals_as_interrupts, warnings_as_lines
from ..names import as_arguments
from ..options import DEFAULT_FILE_TOKENS, DEFAULT_ROW_GROUP_TOKENS, check_sizes
from ..run.resume import Run, begin
from ..run.shards import publish
from ..tokenizers.base import TokenBatch, TokenizerInfo
from ..write.folder import OutputFolder
from ..write.journal import Journal, Position
from ..write.manifest import Encoding, FileEntry, Manifest
from ..write.writer import TOKEN_COLUMN, SetWriter
from .corpora import FORMATS, Corpus, Format, TokenizedOptions, open_corpus

__all__ = ["ConvertOptions", "convert", "main"]


_FINGERPRINT_VERSION = 1
_MAX_VOCABULARY = 1 << 31  # the ids are int32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """What to convert, and into what.

    Attributes:
        input: a local folder or file.
        output: the folder to write, a local path or any fsspec URL.
        format: one of `FORMATS`, or None to detect it.
        reading: what the files do not say.
        vocab_size: largest id + 1; None for 65,536 where ids are of 16 bits.
        tokenizer: the tokenizer's name, for the manifest; None for the one that the corpus names, or "unknown".
        eos_appended: whether every document ends with the end-of-document id; None where only chunks are sure to.
        row_group_tokens: tokens of a row group, about.
        file_tokens: tokens of a file, about.
        overwrite: replace an old set.
    """

    input: str
    output: str
    format: Format | None = None
    reading: TokenizedOptions = field(default_factory=TokenizedOptions)
    vocab_size: int | None = None
    tokenizer: str | None = None
    eos_appended: bool | None = None
    row_group_tokens: int = DEFAULT_ROW_GROUP_TOKENS
    file_tokens: int = DEFAULT_FILE_TOKENS
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not self.input or not self.output:
            empty = [name for name, path in (("input", self.input), ("output", self.output)) if not path]
            raise ConfigError(f"{' and '.join(empty)} must not be an empty string.")
        if self.vocab_size is not None and not 1 <= self.vocab_size <= _MAX_VOCABULARY:
            raise ConfigError(f"vocab_size must be from 1 to {_MAX_VOCABULARY:,}, got {self.vocab_size:,}.")
        check_sizes(self.row_group_tokens, self.file_tokens)
        object.__setattr__(self, "input", Location(self.input))  # to be shown without secrets
        object.__setattr__(self, "output", Location(self.output))


def convert(options: ConvertOptions) -> Manifest:
    """Convert a corpus, completely or not at all; resume where the same conversion stopped.

    Raises:
        ConfigError: an option that is missing or cannot work, or an output that is not empty or of other options.
        DataError: a corpus that does not hold what it should, or an id that is not of the vocabulary.
        StorageError: a path that cannot be read or written.
    """
    corpus = open_corpus(Path(options.input), options.format, options.reading)
    encoding = _encoding_of(corpus, options)
    output = OutputFolder(options.output)
    if output.filesystem.is_local:
        for file in corpus.files:
            output.refuse_input(output.filesystem, str(file), str(file))
    run = Run(fingerprint=_fingerprint_of(corpus, encoding, options), overwrite=options.overwrite)
    with output.claimed():
        journal = begin(output, run)
        if isinstance(journal, Manifest):
            return journal
        if journal.phase == "writing":
            journal = _write_shards(corpus, encoding, output, journal, options)
        manifest = publish(output, journal, encoding, staged_in=output.staging_name)
        output.clear_staging(others=True)
        return manifest


def _encoding_of(corpus: Corpus, options: ConvertOptions) -> Encoding:
    vocab_size = options.vocab_size
    if vocab_size is None:
        if corpus.bits > 16:
            raise ConfigError(f"{options.input!r} holds ids of 32 bits: give vocab_size=N, the largest id + 1.")
        vocab_size = 1 << 16
    if corpus.eos_id is not None and not 0 <= corpus.eos_id < vocab_size:
        raise ConfigError(
            f"the end-of-document id {corpus.eos_id:,} is not of a vocabulary of {vocab_size:,}. Give the right "
            f"eos_id or vocab_size."
        )
    if options.eos_appended and corpus.eos_id is None:
        raise ConfigError("eos_appended=True says that an id ends every document: say which with eos_id=N.")
    info = TokenizerInfo(
        name=options.tokenizer or corpus.tokenizer or "unknown",
        sha256="",
        vocab_size=vocab_size,
        eos_token=None,
        eos_id=corpus.eos_id,
    )
    appended = corpus.eos_appended if options.eos_appended is None else options.eos_appended
    return Encoding(column=TOKEN_COLUMN, dtype=info.dtype.name, tokenizer=info, eos_appended=appended)


def _fingerprint_of(corpus: Corpus, encoding: Encoding, options: ConvertOptions) -> dict[str, object]:
    """All that the result depends on."""
    files = []
    for file in corpus.files:
        try:
            status = file.stat()
        except OSError as error:
            raise local_error("look at", str(file), error) from error
        name = os.fsencode(os.path.relpath(file, options.input)).decode(errors="backslashreplace")
        files.append({"name": name, "size_bytes": status.st_size, "version": str(status.st_mtime_ns)})
    return {
        "version": _FINGERPRINT_VERSION,
        "source": {"format": corpus.format} | asdict(options.reading) | {"files": files},
        "encoding": encoding.to_dict(),
        "row_group_tokens": options.row_group_tokens,
        "file_tokens": options.file_tokens,
    }


def _write_shards(
    corpus: Corpus, encoding: Encoding, output: OutputFolder, journal: Journal, options: ConvertOptions
) -> Journal:
    """Write the missing shards; returns the journal, which then names them all."""

    def commit(shard: FileEntry) -> None:
        nonlocal journal
        shards = (*journal.parts, shard)
        documents, tokens = sum(each.documents for each in shards), sum(each.tokens for each in shards)
        journal = replace(journal, parts=shards, position=Position(cursor=(documents, tokens), documents=documents))
        output.write_journal(journal)

    with SetWriter(
        output,
        encoding,
        row_group_tokens=options.row_group_tokens,
        file_tokens=options.file_tokens,
        finished=journal.parts,
        on_shard=commit,
    ) as writer:
        for file, batch in corpus.documents(journal.position.cursor or (0, 0)):
            writer.add(_of_vocabulary(batch, encoding.tokenizer, file))
        if not writer.complete(may_be_empty=True):
            raise ConfigError(f"{options.input!r} holds no ids: there is nothing to convert.")
    documents, tokens = journal.position.cursor or (0, 0)
    if corpus.format == "chunks":
        told = None
        if documents == 1 and not corpus.eos_appended:
            told = f"does not occur in {options.input!r}: its {tokens:,} tokens are one document"
        elif tokens > documents * options.row_group_tokens:
            told = f"cuts the {tokens:,} tokens of {options.input!r} into no more than {documents:,} documents"
        if told is not None:
            warnings.warn(
                f"the end-of-document id {corpus.eos_id} {told}. A document is in one row group, which is read and "
                f"shuffled as a whole. If another id ends documents, give eos_id=N and overwrite=True.",
                PretokenizeWarning,
                stacklevel=3,
            )
    journal = replace(journal, phase="removing")
    output.write_journal(journal)
    return journal


def _of_vocabulary(batch: TokenBatch, info: TokenizerInfo, file: Path) -> TokenBatch:
    if len(batch.tokens):
        least, largest = int(batch.tokens.min()), int(batch.tokens.max())
        if least < 0 or largest >= info.vocab_size:
            wrong = least if least < 0 else largest
            raise DataError(
                f"the id {wrong:,} is not of a vocabulary of {info.vocab_size:,}. Give the right vocab_size, or the "
                f"dtype that the ids were written in.",
                path=str(file),
            )
    return TokenBatch(tokens=np.ascontiguousarray(batch.tokens, info.dtype), lengths=batch.lengths)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 0; 2 for an error, told in one line; 130 after Ctrl-C, 143 after SIGTERM.
    """
    parser = argparse.ArgumentParser(
        prog="convert",
        description="Turn a tokenized corpus into Parquet files that parquet_loader reads.",
        epilog="Rerun the same command to resume a conversion that was killed.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--input", required=True, metavar="PATH", help="a local folder or file")
    add("--output", required=True, metavar="FOLDER", help="folder to write, local or a URL")
    add("--format", choices=FORMATS, help="the format of the input; detected if omitted")
    add("--column", metavar="NAME", help="the column of ids in Arrow and Parquet files")
    add("--dtype", choices=("uint16", "uint32", "int32", "int64"), help="of raw ids, where no file beside them says it")
    add("--eos-id", type=int, metavar="N", help="the id that ends a document")
    add("--eos-appended", action="store_const", const=True, help="the id ends every document")
    add("--vocab-size", type=int, metavar="N", help="the largest id + 1")
    add("--tokenizer", metavar="NAME", help="the tokenizer's name, for the manifest, unless the corpus names it")
    add("--row-group-tokens", type=int, default=DEFAULT_ROW_GROUP_TOKENS, metavar="N")
    add("--file-tokens", type=int, default=DEFAULT_FILE_TOKENS, metavar="N")
    add("--overwrite", action="store_true", help="replace an old set")
    values = vars(parser.parse_args(argv))
    reading = TokenizedOptions(column=values.pop("column"), dtype=values.pop("dtype"), eos_id=values.pop("eos_id"))
    try:
        with signals_as_interrupts(), warnings_as_lines("convert"):
            manifest = convert(ConvertOptions(reading=reading, **cast("dict[str, object]", values)))  # type: ignore[arg-type]
    except ParquetLoaderError as error:
        print(f"convert: error: {as_arguments(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print("convert: interrupted. Rerun the same command to resume.", file=sys.stderr)
        return 128 + int(error.args[0] if error.args else signal.SIGINT)
    print(
        f"Wrote {manifest.documents:,} documents, {manifest.tokens:,} tokens ({manifest.encoding.dtype}), "
        f"in {len(manifest.files):,} {'file' if len(manifest.files) == 1 else 'files'} to {Location(values['output'])}."
    )
    return 0
