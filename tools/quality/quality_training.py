"""Whether a run's order is as good as a full shuffle to train on: a tiny GPT's final validation loss.

    python tools/quality/quality_training.py [--seeds 5] [--steps 400] [--write-docs]

The text is the standard library's modules, stored in the order of their paths, so that neighbours are alike and a row
holds a piece of one long document, as a rule. Every fiftieth is kept for validation. The same rows are trained on once
each in the loader's order and fully shuffled; a model sees the same number of rows in the same number of steps, and for
one seed all begin with the same weights. A loader that does not shuffle shows how large a difference can be.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from quality import write_docs
from tokenizers import Tokenizer

from parquet_loader import ParquetLoader
from parquet_loader.blocks import TokenArray

sys.path.insert(0, str(Path(__file__).parents[1] / "demo"))
from demo_text import modules, train_tokenizer
from demo_train import GPT

VOCABULARY, VALIDATION = 1024, 50
LEARNING_RATE, WARMUP_STEPS = 3e-3, 20


def write_set(folder: Path, row_groups: int) -> tuple[Path, list[int]]:
    """Tokenize the text; returns the file of the training set and the tokens of the validation set."""
    texts = list(modules())
    kept = [text for place, text in enumerate(texts) if place % VALIDATION]
    train_tokenizer(iter(kept), VOCABULARY, folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    documents = [[*tokenizer.encode(text).ids, 0] for text in texts]
    training = [ids for place, ids in enumerate(documents) if place % VALIDATION]
    # Row groups of about equal size, as those of large sets are.
    group = np.cumsum([len(ids) for ids in training]) * row_groups // (1 + sum(len(ids) for ids in training))
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    with pq.ParquetWriter(folder / "modules.parquet", schema) as writer:
        for number in np.unique(group):
            chosen = [training[place] for place in np.flatnonzero(group == number)]
            writer.write_table(pa.table({"tokens": chosen}, schema=schema))
    return folder / "modules.parquet", [token for ids in documents[::VALIDATION] for token in ids]


def rows_of(path: Path, options: argparse.Namespace, seed: int, *, shuffle: bool = True) -> TokenArray:
    """The rows of a run's first steps, shape ``(steps, lanes, seq_len + 1)``."""
    rows: list[TokenArray] = []
    with ParquetLoader(
        path,
        seq_len=options.seq_len,
        lanes=options.lanes,
        window=options.window,
        seed=seed,
        shuffle=shuffle,
        overlap=1,
        threads=1,
    ) as loader:
        while len(rows) < options.steps:
            rows += [batch.tokens for batch in loader]
    return np.stack(rows[: options.steps])


def trained(rows: TokenArray, validation: torch.Tensor, seed: int) -> float:
    """The validation loss of a model trained on each step's rows once, with a rate that falls to zero."""
    torch.manual_seed(seed)
    model = GPT(VOCABULARY, rows.shape[2] - 1, width=128, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    for step, batch in enumerate(torch.from_numpy(rows).long()):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((step + 1) / WARMUP_STEPS, 1 - step / len(rows))
        model(batch[:, :-1], batch[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        losses = [model(part[:, :-1], part[:, 1:]).item() for part in torch.split(validation, 64)]
    return statistics.fmean(losses)


def orders(path: Path, options: argparse.Namespace, seed: int) -> dict[str, TokenArray]:
    """Rows in several orders, by the orders' names; the first is what others are compared with."""
    rows = rows_of(path, options, seed)
    order = np.random.default_rng(seed).permutation(rows.shape[0] * rows.shape[1])
    return {
        "the same rows, fully shuffled": rows.reshape(-1, rows.shape[2])[order].reshape(rows.shape),
        "the loader's order": rows,
        "`shuffle=False`": rows_of(path, options, seed, shuffle=False),
    }


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
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--row-groups", type=int, default=64, help="of the set")
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/order.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    losses: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path, held_out = write_set(Path(folder), options.row_groups)
        length = options.seq_len + 1
        validation = torch.tensor(held_out[: len(held_out) // length * length]).view(-1, length)
        for seed in range(options.seeds):
            for name, rows in orders(path, options, seed).items():
                begun = time.monotonic()
                losses.setdefault(name, []).append(trained(rows, validation, seed))
                print(
                    f"seed {seed}  {losses[name][-1]:.4f}  {time.monotonic() - begun:5.1f} s  {name}",
                    file=sys.stderr,
                    flush=True,
                )
    command = f"`python tools/quality/quality_training.py --seeds {options.seeds} --steps {options.steps}`"
    block = f"{command} — {options.lanes} rows of {options.seq_len} tokens a step.\n\n{report(losses)}"
    print(block)
    if options.write_docs:
        write_docs("training", block)


if __name__ == "__main__":
    main()
