"""Tokenized corpora to the files that `ParquetLoader` reads, without tokenizing again.

``python -m parquet_loader.pretokenize.convert`` is its command line. A conversion runs at the speed of the disk, so one
that was killed begins anew; the set appears as a whole or not at all, as with `pretokenize`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from ...errors import ConfigError, DataError, ParquetLoaderError
from ..options import DEFAULT_FILE_TOKENS, DEFAULT_ROW_GROUP_TOKENS
from ..tokenizers.base import TokenBatch, TokenizerInfo
from ..write.folder import OutputFolder
from ..write.manifest import Encoding, Manifest
from ..write.writer import TOKEN_COLUMN, SetWriter
from .corpora import FORMATS, Format, TokenizedOptions, open_corpus


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """What to convert, and into what.

    Attributes:
        input: a local folder or file.
        output: the folder to write, a local path or any fsspec URL.
        format: one of `FORMATS`, or None to find out.
        reading: what the files do not say themselves.
        vocab_size: largest id + 1; None for 65,536 where ids lie in 16 bits.
        tokenizer: the tokenizer's name, for the manifest.
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
    tokenizer: str = "unknown"
    eos_appended: bool | None = None
    row_group_tokens: int = DEFAULT_ROW_GROUP_TOKENS
    file_tokens: int = DEFAULT_FILE_TOKENS
    overwrite: bool = False


def convert(options: ConvertOptions) -> Manifest:
    """Convert a corpus, whole or not at all.

    Raises:
        ConfigError: an option that is missing or cannot work, or an output that is not empty.
        DataError: a corpus that does not hold what it should, or an id that is not of the vocabulary.
    """
    corpus = open_corpus(Path(options.input), options.format, options.reading)
    vocab_size = options.vocab_size
    if vocab_size is None:
        if corpus.bits > 16:
            raise ConfigError(f"{options.input!r} holds ids of 32 bits: say --vocab-size N, the largest id + 1.")
        vocab_size = 1 << 16
    info = TokenizerInfo(name=options.tokenizer, sha256="", vocab_size=vocab_size, eos_token=None, eos_id=corpus.eos_id)
    ends = corpus.format == "chunks" if options.eos_appended is None else options.eos_appended
    encoding = Encoding(column=TOKEN_COLUMN, dtype=info.dtype.name, tokenizer=info, eos_appended=ends)
    output = OutputFolder(options.output)
    with output.claimed():
        there = output.look()
        if not options.overwrite:
            if there:
                raise ConfigError(
                    f"--output {options.output!r} is not empty: it holds {there[0]!r}. Choose another folder, or give "
                    f"--overwrite to replace it."
                )
            output.refuse_other_runs(1)
            if output.read_journal() is not None:
                raise ConfigError(
                    f"--output {options.output!r} holds an unfinished run of pretokenize. Go on with that one, choose "
                    f"another folder, or give --overwrite to drop it."
                )
        output.clear_staging()
        with SetWriter(
            output, encoding, row_group_tokens=options.row_group_tokens, file_tokens=options.file_tokens
        ) as writer:
            for batch in corpus.documents():
                writer.add(_of_vocabulary(batch, info, options.input))
            return writer.finish()


def _of_vocabulary(batch: TokenBatch, info: TokenizerInfo, name: str) -> TokenBatch:
    if len(batch.tokens):
        least, largest = int(batch.tokens.min()), int(batch.tokens.max())
        if least < 0 or largest >= info.vocab_size:
            wrong = least if least < 0 else largest
            raise DataError(
                f"the id {wrong:,} is not of a vocabulary of {info.vocab_size:,}. Give the right --vocab-size, or the "
                f"dtype that the ids were written in.",
                path=name,
            )
    return TokenBatch(tokens=np.ascontiguousarray(batch.tokens, info.dtype), lengths=batch.lengths)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit status: 0, or 2 for an error, told in one line.
    """
    parser = argparse.ArgumentParser(
        prog="convert",
        description="Turn a tokenized corpus into Parquet files that parquet_loader reads.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--input", required=True, metavar="PATH", help="a local folder or file")
    add("--output", required=True, metavar="FOLDER", help="folder to write, local or a URL")
    add("--format", choices=FORMATS, help="what lies there; found out if you do not say")
    add("--column", metavar="NAME", help="the column of ids in Arrow and Parquet files")
    add("--dtype", choices=("uint16", "uint32", "int32", "int64"), help="of raw ids, where nothing beside them says")
    add("--eos-id", type=int, metavar="N", help="the id that ends a document")
    add("--eos-appended", action="store_const", const=True, help="say that it ends every document")
    add("--vocab-size", type=int, metavar="N", help="the largest id + 1")
    add("--tokenizer", default="unknown", metavar="NAME", help="the tokenizer's name, for the manifest")
    add("--row-group-tokens", type=int, default=DEFAULT_ROW_GROUP_TOKENS, metavar="N")
    add("--file-tokens", type=int, default=DEFAULT_FILE_TOKENS, metavar="N")
    add("--overwrite", action="store_true", help="replace an old set")
    values = vars(parser.parse_args(argv))
    reading = TokenizedOptions(column=values.pop("column"), dtype=values.pop("dtype"), eos_id=values.pop("eos_id"))
    try:
        manifest = convert(ConvertOptions(reading=reading, **cast("dict[str, object]", values)))  # type: ignore[arg-type]
    except ParquetLoaderError as exc:
        print(f"convert: error: {exc}", file=sys.stderr)
        return 2
    print(
        f"Wrote {manifest.documents:,} documents, {manifest.tokens:,} tokens ({manifest.encoding.dtype}), "
        f"in {len(manifest.files):,} files to {values['output']}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
