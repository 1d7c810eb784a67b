#!/usr/bin/env python3
"""What packing does to real text, and what it costs: packed by best fit, packed by tokens, and a document a row.

    best fit        pretokenize --pack best-fit, as it lies in the files
    by tokens       the documents one after the other, in a random order, cut every seq_len tokens
    document a row  each document in a row of its own, cut off and padded

Rounds run `pretokenize` of the same text with and without packing in turns, each in a process of its own, and tell the
ratio of their speeds, by the clock and by CPU. How long it takes to begin does not count.

Without --tokenizer, one of 16,000 entries is trained on a part of the text.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from parquet_loader.pretokenize import PretokenizeOptions

KINDS = {".py", ".rst", ".md", ".txt"}
TRAINED_ON = 8_000_000
RUN = """
import time
from parquet_loader.pretokenize import *

def spent(options):
    started = time.process_time()
    return pretokenize(options).seconds, time.process_time() - started

begun, ended = spent({first!r}), spent({options!r})
print(ended[0] - begun[0], ended[1] - begun[1])
"""


def read_texts(roots: Sequence[Path], limit_bytes: int, unit: str) -> list[str]:
    """Documents from the text files below folders, up to a size, in a random order of files that is always the same."""
    paths = sorted(each for root in roots for each in root.rglob("*") if each.suffix in KINDS and each.is_file())
    random.Random(0).shuffle(paths)
    texts: list[str] = []
    size = 0
    for path in paths:
        text = path.read_bytes().decode(errors="replace")
        documents = [text] if unit == "file" else text.split("\n\n")
        texts += [each for each in documents if each.strip()]
        size += len(text)
        if size >= limit_bytes:
            break
    return texts


def train(texts: Sequence[str], path: Path) -> None:
    """A byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=16_000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    size, some = 0, []
    for text in texts:
        some.append(text)
        size += len(text)
        if size > TRAINED_ON:
            break
    tokenizer.train_from_iterator(some, trainer)
    tokenizer.save(str(path))


def run(options: PretokenizeOptions, first: PretokenizeOptions) -> tuple[float, float]:
    """Seconds by the clock and of CPU, without those that it takes to begin."""
    code = RUN.format(options=options, first=first)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    clock, cpu = map(float, done.stdout.split())
    return clock, cpu


def lengths_of(folder: Path) -> npt.NDArray[np.int64]:
    """Tokens of each row of a set."""
    columns = [pq.read_table(path, columns=["tokens"])["tokens"] for path in sorted(folder.glob("part-*.parquet"))]
    return np.concatenate([pc.list_value_length(column).to_numpy() for column in columns]).astype(np.int64)


def report(lengths: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], seq_len: int) -> None:
    """A table of what becomes of documents of these lengths; ``rows`` are those of best fit."""
    tokens, fits = int(lengths.sum()), lengths <= seq_len
    shuffled = np.random.default_rng(0).permutation(lengths)
    ends = np.cumsum(shuffled)
    crosses = (ends - 1) // seq_len > (ends - shuffled) // seq_len
    until_border = np.minimum(shuffled, seq_len - (ends - shuffled) % seq_len)
    table = [
        ("", "best fit", "by tokens", "document a row"),
        ("padding, of all positions", 1 - tokens / (len(rows) * seq_len), 0.0, 1 - _kept(lengths, seq_len)),
        ("documents that fit in a row, and are cut", 0.0, np.mean(crosses[shuffled <= seq_len]), 0.0),
        ("documents cut, of all", np.mean(~fits), np.mean(crosses), np.mean(~fits)),
        (
            "tokens whose document began in an earlier row",
            np.maximum(0, lengths - seq_len).sum() / tokens,
            (shuffled - until_border).sum() / tokens,
            0.0,
        ),
        ("tokens lost", 0.0, 0.0, 1 - np.minimum(lengths, seq_len).sum() / tokens),
    ]
    for name, *values in table:
        print(f"{name:48}" + "".join(f"{v if isinstance(v, str) else f'{100 * v:.2f} %':>16}" for v in values))


def _kept(lengths: npt.NDArray[np.int64], seq_len: int) -> float:
    return float(np.minimum(lengths, seq_len).sum() / (len(lengths) * seq_len))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokenizer")
    parser.add_argument("--text", type=Path, nargs="+", default=[Path(sysconfig.get_paths()["purelib"])])
    parser.add_argument("--unit", choices=("file", "paragraph"), default="file", help="what is a document")
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--engine", choices=("tokenizers", "gigatoken"), default="tokenizers")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    texts = read_texts(arguments.text, int(arguments.megabytes * 1e6), arguments.unit)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.tokenizer is None:
            train(texts, folder / "tokenizer.json")
        (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        apart = PretokenizeOptions(
            inputs=(str(folder / "in.jsonl"),),
            output=str(folder / "documents"),
            tokenizer=arguments.tokenizer or str(folder / "tokenizer.json"),
            engine=arguments.engine,
            append_eos=True,
            overwrite=True,
        )
        packed = replace(apart, output=str(folder / "packed"), pack="best-fit", seq_len=arguments.seq_len)
        first = replace(apart, output=str(folder / "first"), max_docs=1)
        ratios = []
        for at in range(arguments.rounds):
            turn = [apart, packed] if at % 2 == 0 else [packed, apart]
            took = {options.output: run(options, first) for options in turn}
            without, with_packing = took[apart.output], took[packed.output]
            ratios.append(tuple(a / b for a, b in zip(without, with_packing, strict=True)))
            print(
                f"round {at}: {without[0]:.1f} s ({without[1]:.1f} s of CPU) without packing, {with_packing[0]:.1f} s "
                f"({with_packing[1]:.1f} s) with it",
                flush=True,
            )
        lengths, rows = lengths_of(folder / "documents"), lengths_of(folder / "packed")
        bytes_per_token = [
            sum(path.stat().st_size for path in (folder / each).glob("part-*")) / lengths.sum()
            for each in ("documents", "packed")
        ]
    print(
        f"{len(lengths):,} documents of {np.mean(lengths):,.0f} tokens (median {np.median(lengths):,.0f}), "
        f"{len(rows):,} rows of up to {arguments.seq_len:,} tokens; {bytes_per_token[0]:.3f} bytes a token without "
        f"packing, {bytes_per_token[1]:.3f} with it"
    )
    report(lengths, rows, arguments.seq_len)
    clock, cpu = (statistics.median(each) for each in zip(*ratios, strict=True))
    print(f"speed with packing, of that without it: {clock:.2f} by the clock, {cpu:.2f} by CPU (medians)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
