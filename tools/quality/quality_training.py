"""Whether a run's order is as good as a full shuffle to train on: a tiny GPT's final validation loss.

    python tools/quality/quality_training.py [--seeds 5] [--write-docs]

Two texts of the standard library: how modules begin, each of which fills many rows, stored in random order; and
docstrings, of which a row holds several, stored in the order of their modules' paths, so that neighbours are alike.
Every fifteenth document is kept for validation. A model is trained on the rows of an epoch, in the loader's order or
fully shuffled: models of one seed begin with the same weights and see as many rows in as many steps.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from quality import write_docs
from quality_rows import order_as_text
from tokenizers import Tokenizer

from parquet_loader import ParquetLoader
from parquet_loader.blocks import TokenArray

sys.path.insert(0, str(Path(__file__).parents[1] / "demo"))
from demo_text import docstrings, modules, topics, train_tokenizer
from demo_train import GPT

VOCABULARY, VALIDATION = 1024, 15
SHORTEST, LONGEST = 40, 4_000  # characters of a docstring, of a module
LEARNING_RATE, WARMUP_STEPS = 3e-3, 20


def all_docstrings() -> list[str]:
    """Docstrings that are long enough to say something, each once, and the chapters of the language reference."""
    found = dict.fromkeys(text for source in modules() for text in docstrings(source) if len(text) >= SHORTEST)
    return [*found, *topics()]


def module_heads() -> list[str]:
    """How modules begin: all of them whole would take long, and a window of such long documents would hold but few."""
    heads = [source[:LONGEST] for source in modules() if source]
    random.Random(0).shuffle(heads)
    return heads


TEXTS = {
    "Modules, stored in random order": module_heads,
    "Docstrings, stored in the order of paths": all_docstrings,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A tokenized text: the file of its training set, its mean document's tokens, and the validation set's tokens."""

    path: Path
    mean: float
    validation: list[int]


def tokenized(texts: Sequence[str], folder: Path, row_groups: int) -> Text:
    """Tokenize documents and write the training set, in row groups of about equal size, as those of large sets are."""
    kept = [text for place, text in enumerate(texts) if place % VALIDATION]
    train_tokenizer(iter(kept), VOCABULARY, folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    documents = [[*each.ids, 0] for each in tokenizer.encode_batch(list(texts))]
    training = [ids for place, ids in enumerate(documents) if place % VALIDATION]
    ends = np.cumsum([len(ids) for ids in training])
    group = ends * row_groups // (ends[-1] + 1)
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    with pq.ParquetWriter(folder / "training.parquet", schema) as writer:
        for number in np.unique(group):
            chosen = [training[place] for place in np.flatnonzero(group == number)]
            writer.write_table(pa.table({"tokens": chosen}, schema=schema))
    held_out = [token for ids in documents[::VALIDATION] for token in ids]
    return Text(path=folder / "training.parquet", mean=float(ends[-1]) / len(training), validation=held_out)


def rows_of(path: Path, options: argparse.Namespace, seed: int, *, window: int, permuted: bool = True) -> TokenArray:
    """The rows of an epoch, shape ``(steps, lanes, seq_len + 1)``."""
    with ParquetLoader(
        path, seq_len=options.seq_len, lanes=options.lanes, window=window, seed=seed, overlap=1, threads=1
    ) as loader:
        if not permuted:
            order_as_text(loader)
        return np.stack([batch.tokens for batch in loader])


def in_rows(tokens: Sequence[int], length: int) -> torch.Tensor:
    """Tokens as rows, without the last few, int64, shape ``(rows, length)``."""
    return torch.tensor(tokens[: len(tokens) // length * length]).view(-1, length)


def trained(rows: TokenArray, validation: torch.Tensor, seed: int) -> float:
    """The validation loss of a model trained on each step's rows once, with a rate that falls to zero."""
    torch.manual_seed(seed)
    model = GPT(VOCABULARY, rows.shape[2] - 1, width=128, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    for step, batch in enumerate(torch.from_numpy(rows).long()):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((step + 1) / WARMUP_STEPS, 1 - step / len(rows))
        model(batch[:, :-1], batch[:, 1:]).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        losses = [model(part[:, :-1], part[:, 1:]).mean().item() for part in torch.split(validation, 64)]
    return statistics.fmean(losses)


def orders(path: Path, options: argparse.Namespace, seed: int) -> dict[str, TokenArray]:
    """Rows in several orders, by the orders' names; the first is what others are compared with."""
    rows = rows_of(path, options, seed, window=options.window)
    order = np.random.default_rng(seed).permutation(rows.shape[0] * rows.shape[1])
    return {
        "the same rows, fully shuffled": rows.reshape(-1, rows.shape[2])[order].reshape(rows.shape),
        "the loader's": rows,
        "the loader's, steps in the order of the text": rows_of(
            path, options, seed, window=options.window, permuted=False
        ),
        "the loader's, one window for all": rows_of(path, options, seed, window=options.row_groups),
    }


def compare(text: Text, options: argparse.Namespace) -> dict[str, list[float]]:
    """The final validation losses of each order, by its name: one for each seed."""
    validation = in_rows(text.validation, options.seq_len + 1)
    losses: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        for name, rows in orders(text.path, options, seed).items():
            begun = time.monotonic()
            losses.setdefault(name, []).append(trained(rows, validation, seed))
            seconds = time.monotonic() - begun
            print(f"seed {seed}  {losses[name][-1]:.4f}  {seconds:5.1f} s  {name}", file=sys.stderr, flush=True)
    return losses


def report(losses: dict[str, list[float]]) -> str:
    """The table. Differences are between runs of one seed, and are told with the standard error of their mean."""
    lines = [
        "| order | validation loss, mean | spread of seeds | difference from fully shuffled |",
        "|---|--:|--:|--:|",
    ]
    reference = next(iter(losses.values()))
    for name, found in losses.items():
        differences = [loss - base for loss, base in zip(found, reference, strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
        difference = f"{statistics.fmean(differences):+.4f} ± {error:.4f}" if found is not reference else ""
        spread = statistics.stdev(found) if len(found) > 1 else float("nan")
        lines.append(f"| {name} | {statistics.fmean(found):.4f} | {spread:.4f} | {difference} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--row-groups", type=int, default=64, help="of the set")
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/order.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    blocks = [
        f"`python tools/quality/quality_training.py --seeds {options.seeds}`: {options.lanes} "
        f"rows of {options.seq_len} tokens a step, windows of {options.window} of {options.row_groups} row groups."
    ]
    for name, documents in TEXTS.items():
        with tempfile.TemporaryDirectory() as folder:
            text = tokenized(documents(), Path(folder), options.row_groups)
            blocks += [
                f"{name}, of {text.mean:,.0f} tokens in the mean, {options.seeds} seeds:",
                report(compare(text, options)),
            ]
    print("\n\n".join(blocks))
    if options.write_docs:
        write_docs("training", "\n" + "\n\n".join(blocks) + "\n")


if __name__ == "__main__":
    main()
