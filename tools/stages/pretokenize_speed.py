#!/usr/bin/env python3
"""How much of the bare tokenizer's speed `pretokenize` keeps: both encode the same text in one run, on the same cores.

    bare      encode_batch_fast on the texts, already in memory, in batches; ids are not even taken out
    whole     pretokenize of the same texts from a JSON-lines file to Parquet, in a process of its own

Neither counts how long it takes to begin: to load the tokenizer and, with a fast engine, to compare it. A round runs
each once; the ratio of a round is robust against a machine whose speed drifts, and the median is told.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from parquet_loader.pretokenize import PretokenizeOptions, load_tokenizer
from parquet_loader.pretokenize.tokenizers.gigatoken import GigatokenTokenizer
from parquet_loader.pretokenize.tokenizers.huggingface import HuggingFaceTokenizer

BATCH_BYTES = 2 << 20


def read_texts(roots: Sequence[Path], limit_bytes: int) -> list[str]:
    """Text files below folders, in order, up to a size."""
    texts, size = [], 0
    for root in roots:
        for path in sorted(each for each in root.rglob("*") if each.suffix in {".py", ".txt", ".rst", ".html"}):
            text = path.read_bytes().decode(errors="replace")
            if text:
                texts.append(text)
                size += len(text.encode())
            if size >= limit_bytes:
                return texts
    return texts


def batches_of(texts: Sequence[str]) -> list[list[str]]:
    """As `pretokenize` makes them."""
    batches: list[list[str]] = [[]]
    size = 0
    for text in texts:
        batches[-1].append(text)
        size += len(text)
        if size >= BATCH_BYTES:
            batches.append([])
            size = 0
    return [batch for batch in batches if batch]


def bare_seconds(tokenizer: HuggingFaceTokenizer, engine: str, texts: Sequence[str]) -> float:
    """The tokenizer alone."""
    batches = batches_of(texts)
    if engine == "gigatoken":
        fast = GigatokenTokenizer(tokenizer)
        encode = fast.encode_unchecked
    else:
        import tokenizers

        bare = tokenizers.Tokenizer.from_str(tokenizer.serialised)
        bare.encode_special_tokens = True

        def encode(texts: Sequence[str]) -> object:  # type: ignore[misc]
            return bare.encode_batch_fast(list(texts), add_special_tokens=False)

    encode(texts[:2])
    started = time.perf_counter()
    for batch in batches:
        encode(batch)
    return time.perf_counter() - started


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--text", type=Path, nargs="+", default=[Path(json.__file__).parents[1]], help="folders")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--engine", choices=("tokenizers", "gigatoken"), default="tokenizers")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--dedup", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    texts = read_texts(arguments.text, int(arguments.megabytes * 1e6))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    tokenizer = load_tokenizer(arguments.tokenizer)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        for at in range(arguments.rounds):
            bare = bare_seconds(tokenizer, arguments.engine, texts)
            options = PretokenizeOptions(
                inputs=(str(path),),
                output=str(Path(folder) / f"out-{at}"),
                tokenizer=arguments.tokenizer,
                engine=arguments.engine,
                workers=arguments.workers,
                dedup=arguments.dedup,
            )
            # In a process of its own: what it holds is then its own too.
            first = replace(options, output=str(Path(folder) / f"first-{at}"), max_docs=1)
            code = (
                "from parquet_loader.pretokenize import *\n"
                f"print(pretokenize({first!r}).seconds, pretokenize({options!r}).seconds)"
            )
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
            )
            begun, ended = map(float, done.stdout.split())
            whole = ended - begun
            ratios.append(bare / whole)
            print(
                f"round {at}: bare {megabytes / bare:.1f} MB/s, whole {megabytes / whole:.1f} MB/s, {ratios[-1]:.2f}",
                flush=True,
            )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{len(texts):,} documents, {megabytes:.1f} MB: {statistics.median(ratios):.2f} x the bare {arguments.engine}; "
        f"peak memory {peak:.0f} MB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
