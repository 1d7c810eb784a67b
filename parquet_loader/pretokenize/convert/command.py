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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from ...errors import ConfigError, DataError, ParquetLoaderError, PretokenizeWarning
from ...storage.local import local_error
from ...storage.secrets import Location
from ..cli import signals_as_interrupts, warnings_as_lines
from ..names import as_arguments
from ..options import (
    DEFAULT_FILE_TOKENS,
    DEFAULT_PACK_BUFFER_TOKENS,
    DEFAULT_ROW_GROUP_TOKENS,
    Pack,
    PackTail,
    check_sizes,
    packing_of,
)
from ..run.resume import Run, begin
from ..run.shards import publish, read_carried, write_carried
from ..tokenizers.base import TokenBatch, TokenizerInfo
from ..write.folder import OutputFolder
from ..write.journal import Journal
from ..write.manifest import Encoding, FileEntry, Manifest, Packing
from ..write.packer import Buffer, PackedRows
from ..write.verify import verify_set
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
        append_eos: end every document with that id.
        aligned: columns that have a value for every id, such as ``labels``; they are written beside the tokens. A
            mapping gives the value that each has at an EOS that is appended.
        pack: ``"best-fit"`` writes training rows in place of documents; see `PretokenizeOptions` for this and the next.
        seq_len: with ``pack``, the most ids of a row.
        pack_tail: with ``pack``, what becomes of rows that are far from full.
        pack_buffer_tokens: with ``pack``, tokens of the documents that are packed at a time.
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
    append_eos: bool = False
    aligned: Sequence[str] | Mapping[str, float | None] = ()
    pack: Pack | None = None
    seq_len: int | None = None
    pack_tail: PackTail = "carry"
    pack_buffer_tokens: int = DEFAULT_PACK_BUFFER_TOKENS
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
        if isinstance(self.aligned, str):
            raise ConfigError(f"aligned must be a sequence or a mapping of names, got {self.aligned!r}.")
        at_eos = dict(self.aligned) if isinstance(self.aligned, Mapping) else dict.fromkeys(self.aligned)
        if len(at_eos) < len(self.aligned):
            raise ConfigError(f"aligned: {sorted(self.aligned)} has a name twice. Give each once.")
        for name, value in at_eos.items():
            if name in ("", TOKEN_COLUMN) or (self.packing is not None and name == self.packing.boundaries):
                raise ConfigError(f"aligned: {name!r} is no name, or that of a column which is written anyway.")
            if self.append_eos and value is None:
                raise ConfigError(
                    f"append_eos=True puts an id after every document, where {name!r} has no value: give it one, such "
                    f"as aligned={{{name!r}: 0}}."
                )
            if value is not None and not self.append_eos:
                raise ConfigError(f"aligned={{{name!r}: {value!r}}}: the value is for append_eos=True. Omit it.")
        object.__setattr__(self, "aligned", at_eos)
        object.__setattr__(self, "reading", replace(self.reading, aligned=tuple(at_eos)))
        object.__setattr__(self, "input", Location(self.input))  # to be shown without secrets
        object.__setattr__(self, "output", Location(self.output))

    @property
    def packing(self) -> Packing | None:
        """How documents are packed, if they are."""
        return packing_of(self.pack, self.seq_len, self.pack_tail, self.pack_buffer_tokens)


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
    for name, given, does in (
        ("eos_appended", options.eos_appended, "says that an id ends every document"),
        ("append_eos", options.append_eos, "puts an id after every document"),
    ):
        if given and corpus.eos_id is None:
            raise ConfigError(f"{name}=True {does}: say which with eos_id=N.")
    if options.append_eos and (options.eos_appended or corpus.eos_appended):
        raise ConfigError("append_eos=True is for documents without an end-of-document id, and these have it: omit it.")
    for name, value in _at_eos(options).items():
        dtype = corpus.aligned[name]
        if not _holds(dtype, value):
            raise ConfigError(f"aligned={{{name!r}: {value!r}}}: the column is of {dtype}, which has no such value.")
    info = TokenizerInfo(
        name=options.tokenizer or corpus.tokenizer or "unknown",
        sha256="",
        vocab_size=vocab_size,
        eos_token=None,
        eos_id=corpus.eos_id,
    )
    appended = corpus.eos_appended if options.eos_appended is None else options.eos_appended
    aligned = {name: dtype.name for name, dtype in corpus.aligned.items()}
    if options.packing is not None:
        aligned[options.packing.boundaries] = "int32"
    return Encoding(
        column=TOKEN_COLUMN,
        dtype=info.dtype.name,
        tokenizer=info,
        eos_appended=appended or options.append_eos,
        aligned=aligned,
        packing=options.packing,
    )


def _at_eos(options: ConvertOptions) -> dict[str, float]:
    """The values of aligned columns at an EOS that is appended."""
    given = dict(options.aligned) if isinstance(options.aligned, Mapping) else {}
    return {name: value for name, value in given.items() if value is not None}


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether a dtype has a value."""
    if dtype.kind == "f":
        return True
    if dtype.kind == "b":
        return value in (0, 1)
    bounds = np.iinfo(dtype)
    return float(value).is_integer() and bounds.min <= value <= bounds.max


def _fingerprint_of(corpus: Corpus, encoding: Encoding, options: ConvertOptions) -> dict[str, object]:
    """All that the result depends on."""
    reading = asdict(options.reading)
    aligned = list(reading.pop("aligned"))
    if aligned:  # sets that were converted before there was this option have no such key
        reading["aligned"] = aligned
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
        "source": {"format": corpus.format} | reading | {"files": files},
        "encoding": encoding.to_dict(),
        "row_group_tokens": options.row_group_tokens,
        "file_tokens": options.file_tokens,
        **({"append_eos": True, "aligned": _at_eos(options)} if options.append_eos else {}),
    }


def _write_shards(
    corpus: Corpus, encoding: Encoding, output: OutputFolder, journal: Journal, options: ConvertOptions
) -> Journal:
    """Write the missing shards; returns the journal, which then names them all."""
    packing = options.packing
    position = journal.position
    carried = read_carried(output, journal) if packing is not None else None

    def advance(documents: int, tokens: int, cut_documents: int = 0) -> None:
        nonlocal position
        before = position.cursor or (0, 0)
        own = tokens - documents if options.append_eos else tokens  # those that lie in the corpus
        position = replace(
            position,
            cursor=(before[0] + documents, before[1] + own),
            documents=position.documents + documents,
            cut_documents=position.cut_documents + cut_documents,
        )

    def on_buffer(buffer: Buffer) -> None:
        advance(buffer.documents, buffer.tokens, buffer.cut_documents)

    rows = None if packing is None else PackedRows(packing, on_buffer, rows=journal.position.rows, carried=carried)

    def commit(shard: FileEntry) -> None:
        nonlocal journal, position
        if rows is None:
            advance(shard.documents, shard.tokens)
        else:
            write_carried(output, journal, shard, rows.carried)
            position = replace(position, rows=rows.rows)
        journal = replace(journal, parts=(*journal.parts, shard), position=position)
        output.write_journal(journal)

    with SetWriter(
        output,
        encoding,
        row_group_tokens=options.row_group_tokens,
        file_tokens=options.file_tokens,
        finished=journal.parts,
        on_group=rows.take if rows is not None else lambda _: None,
        on_shard=commit,
    ) as writer:
        for file, read in corpus.documents(journal.position.cursor or (0, 0)):
            batch = _of_vocabulary(read, encoding.tokenizer, file)
            if options.append_eos and corpus.eos_id is not None:
                batch = batch.with_appended(corpus.eos_id, _at_eos(options))
            for ready in [batch] if rows is None else rows.add(batch):
                writer.add(ready)
        for ready in () if rows is None else rows.finish():
            writer.add(ready)
        if not writer.complete(may_be_empty=True):
            raise ConfigError(f"{options.input!r} holds no ids: there is nothing to convert.")
    journal = replace(journal, position=replace(position, rows=0))
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
    return replace(batch, tokens=np.ascontiguousarray(batch.tokens, info.dtype))


def _aligned(text: str) -> dict[str, float | None]:
    """
    >>> _aligned("labels=-100,weight=0.5,kind")
    {'labels': -100, 'weight': 0.5, 'kind': None}
    """
    pairs = [each.partition("=") for each in text.split(",")]
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} has a name twice")
    return {name: _number(value) if equals else None for name, equals, value in pairs}


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 0; 2 for an error, told in one line; 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
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
    add("--append-eos", action="store_true", help="end every document with the id")
    add(
        "--aligned",
        type=_aligned,
        default={},
        metavar="NAME[=VALUE],...",
        help="columns with a value for every id, such as labels; with --append-eos, their values there: labels=-100",
    )
    add("--pack", choices=get_args(Pack), help="write training rows in place of documents; none that fits is cut")
    add("--seq-len", type=int, metavar="N", help="with --pack: the most ids of a row: training's seq_len + overlap")
    add("--pack-tail", choices=get_args(PackTail), default="carry", help="with --pack: what of rows far from full")
    add("--pack-buffer-tokens", type=int, default=DEFAULT_PACK_BUFFER_TOKENS, metavar="N")
    add("--vocab-size", type=int, metavar="N", help="the largest id + 1")
    add("--tokenizer", metavar="NAME", help="the tokenizer's name, for the manifest, unless the corpus names it")
    add("--row-group-tokens", type=int, default=DEFAULT_ROW_GROUP_TOKENS, metavar="N")
    add("--file-tokens", type=int, default=DEFAULT_FILE_TOKENS, metavar="N")
    add("--overwrite", action="store_true", help="replace an old set")
    add("--verify", action="store_true", help="read the set again at the end, and show the ids of some documents")
    values = vars(parser.parse_args(argv))
    verify = values.pop("verify")
    reading = TokenizedOptions(column=values.pop("column"), dtype=values.pop("dtype"), eos_id=values.pop("eos_id"))
    try:
        with signals_as_interrupts(), warnings_as_lines("convert"):
            manifest = convert(ConvertOptions(reading=reading, **cast("dict[str, object]", values)))  # type: ignore[arg-type]
            verified = verify_set(values["output"], None).describe() if verify else None
    except ParquetLoaderError as error:
        print(f"convert: error: {as_arguments(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print("convert: interrupted. Rerun the same command to resume.", file=sys.stderr)
        return 128 + int(error.args[0] if error.args else signal.SIGINT)
    print(
        f"Wrote {manifest.documents:,} documents, {manifest.tokens:,} tokens ({manifest.encoding.dtype}), "
        f"in {len(manifest.files):,} {'file' if len(manifest.files) == 1 else 'files'} to {Location(values['output'])}."
        f"{manifest.describe_packing()}"
    )
    if verified is not None:
        print(verified)
    return 0
