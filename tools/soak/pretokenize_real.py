#!/usr/bin/env python3
"""Real text all the way: files to JSON lines, to tokens, through `ParquetLoader`, and back to text.

Every document must come out of the loader once, equal to what went in; of texts that are the same but for white space,
the first alone. Debian's linux-doc is a good corpus: its ``_sources`` are copies of its ``Documentation``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from parquet_loader import ParquetLoader
from parquet_loader.pretokenize import PretokenizeOptions, PretokenizeWarning, load_tokenizer, pretokenize

SEQ_LEN = 2048


def read_texts(folders: Sequence[Path]) -> list[str]:
    """Every file that is UTF-8 text, gzipped ones unpacked, in order."""
    texts = []
    for folder in folders:
        for path in sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()):
            raw = path.read_bytes()
            try:
                texts.append((gzip.decompress(raw) if path.suffix == ".gz" else raw).decode())
            except UnicodeDecodeError:
                continue  # a picture
    return texts


def first_of_each(texts: Sequence[str]) -> list[str]:
    """The texts without those that were there before, white space aside."""
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(" ".join(text.split()), text)
    return list(first.values())


def documents_of(folder: str, tokens: int, eos_id: int) -> Iterator[list[int]]:
    """What the loader gives in one epoch, cut after each end-of-document token."""
    with ParquetLoader(folder, seq_len=SEQ_LEN, lanes=1, shuffle=False) as loader:
        rest: list[int] = []
        while tokens:
            for batch in loader:
                row = batch.tokens[0][: min(tokens, SEQ_LEN)]
                tokens -= len(row)
                start = 0
                for end in np.flatnonzero(row == eos_id).tolist():
                    yield rest + row[start:end].tolist()
                    rest, start = [], end + 1
                rest += row[start:].tolist()
                if not tokens:
                    break
        assert not rest, "the last document has no end"


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--text", type=Path, nargs="+", required=True, metavar="FOLDER")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--engine", choices=("tokenizers", "gigatoken"), default="tokenizers")
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args(argv)
    texts = read_texts(arguments.text)
    expected = first_of_each(texts)
    warnings.simplefilter("ignore", PretokenizeWarning)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl.gz"
        with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as stream:
            stream.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        options = PretokenizeOptions(
            inputs=(str(path),),
            output=f"{folder}/tokens",
            tokenizer=arguments.tokenizer,
            engine=arguments.engine,
            workers=arguments.workers,
            append_eos=True,
            dedup=True,
            file_tokens=10_000_000,
        )
        summary = pretokenize(options)
        print(summary.describe())
        tokenizer = load_tokenizer(arguments.tokenizer)
        eos_id = summary.manifest.encoding.tokenizer.eos_id
        assert eos_id is not None
        different = documents = 0
        found = documents_of(options.output, summary.manifest.tokens, eos_id)
        for text, ids in zip(expected, found, strict=True):
            documents += 1
            different += tokenizer.decode(ids) != text
    print(
        f"{len(texts):,} texts, {len(texts) - len(expected):,} of them duplicates; {documents:,} documents came out of "
        f"the loader, {different:,} of them other than the text."
    )
    dropped = summary.manifest.skipped.duplicates == len(texts) - len(expected)
    return 0 if not different and dropped else 1


if __name__ == "__main__":
    sys.exit(main())
