r"""A small GPT trained on a mixture of tokenized sets: what a training script with parquet_loader looks like.

    torchrun --standalone --nproc-per-node 2 tools/demo/demo_train.py --data '{"prose": "A", "code": "B"}' \
        --weights '[[0, {"prose": 0.7, "code": 0.3}]]' --out RUN --steps 400 --vocab-size 4096 \
        --tokenize '{"prose": {"inputs": ["TEXT"], "tokenizer": "tokenizer.json", "append_eos": true}}'

The set `prose` is tokenized while the others train: the first process that comes starts the writer, which ends with
them. Start it again after it was killed, with as many processes as you like and a longer schedule of weights, and it
goes on: training from its last checkpoint, tokenizing after its last finished file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from parquet_loader import Batch, Component, ParquetLoader, merge_checkpoints
from parquet_loader.pretokenize import PretokenizeOptions, background

LEARNING_RATE, WARMUP_STEPS = 2e-3, 20


# ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────


class Block(nn.Module):
    """Attention, then a perceptron, each added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(rows, seq_len, width)`` in and out."""
        rows, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        hidden: Tensor = self.mlp(self.norm2(x))
        return x + hidden


class GPT(nn.Module):
    """A small language model."""

    def __init__(self, vocab_size: int, seq_len: int, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Parameter(torch.zeros(seq_len, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        nn.init.normal_(self.tokens.weight, std=0.05)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of each row's next tokens: int64, shape ``(rows, seq_len)`` both, to shape ``(rows,)``."""
        x = self.norm(self.blocks(self.tokens(inputs) + self.positions))
        logits = x @ self.tokens.weight.T  # inputs and outputs share their embedding
        losses: Tensor = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(dim=1)


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────────


def save(folder: Path, step: int, loader: ParquetLoader, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every rank writes its part. The folder gets its name once all have: so a checkpoint is whole, or not there."""
    unfinished = folder / f"step-{step:06d}.unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    (unfinished / f"loader-{dist.get_rank()}").write_bytes(loader.checkpoint())
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished / "model.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        unfinished.rename(folder / f"step-{step:06d}")


def restore(folder: Path, loader: ParquetLoader, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Go on from the last checkpoint, if there is one, of any number of ranks.

    Returns:
        The step to go on with.
    """
    last = last_checkpoint(folder)
    if last is None:
        return 0
    loader.resume(merge_checkpoints(part.read_bytes() for part in last.glob("loader-*")))
    saved = torch.load(last / "model.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return step_of(last)


def last_checkpoint(folder: Path) -> Path | None:
    """The latest checkpoint that is whole."""
    whole = [path for path in folder.glob("step-*") if not path.suffix]
    return max(whole, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """The step that training goes on with after a checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


# ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────


def digests(batch: Batch, sources: Sequence[str]) -> list[str]:
    """The source of every row and a short digest of it: what the demo compares runs by."""
    assert batch.sources is not None
    return [
        f"{sources[place]}:{hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest()}"
        for place, row in zip(batch.sources.tolist(), batch.tokens, strict=True)
    ]


def by_source(losses: Tensor, places: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Over all ranks, the losses of the rows of each source added up, and how many rows there are: shape ``(count,)``
    both.
    """
    sums = torch.zeros(2, count)
    sums[0].scatter_add_(0, places, losses)
    sums[1].scatter_add_(0, places, torch.ones_like(losses))
    dist.all_reduce(sums)
    return sums[0], sums[1]


def report(**facts: float | dict[str, float]) -> None:
    """One line for whoever started this, written at once: ranks share the pipe."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=json.loads, metavar="JSON", help="folders of sets, by name")
    parser.add_argument(
        "--tokenize",
        default={},
        type=json.loads,
        metavar="JSON",
        help="sets to be followed while they are written: options, by name; null where somebody else writes",
    )
    parser.add_argument("--weights", required=True, type=json.loads, metavar="JSON", help="stages: [[token, shares]]")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="for checkpoints and logs")
    parser.add_argument("--steps", type=int, required=True, help="to train in all, with those before a restart")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--lanes", type=int, default=16, help="rows of the global batch")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)  # every rank begins with the same weights
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    report(pid=os.getpid())

    args.out.mkdir(parents=True, exist_ok=True)
    rows = args.out / f"rows-of-rank-{rank}-of-{world_size}.jsonl"
    checkpoints = args.out / "checkpoints"
    if rank == 0:
        for leftover in checkpoints.glob("*.unfinished"):
            shutil.rmtree(leftover)

    model = GPT(args.vocab_size, args.seq_len)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(background(PretokenizeOptions(output=args.data[name], **options)))
            for name, options in args.tokenize.items()
            if options is not None
        ]
        loader = ParquetLoader(
            {name: Component(folder, follow=name in args.tokenize) for name, folder in args.data.items()},
            weights=args.weights,
            seq_len=args.seq_len,
            lanes=args.lanes,
            window=8,
            overlap=1,  # inputs and targets of one row, shifted, and no token lost
            vocab_size=args.vocab_size,
            rank=rank,
            world_size=world_size,
            threads=1,
        )
        log = stack.enter_context(rows.open("a", buffering=1))
        stack.enter_context(loader)
        first_step = restore(checkpoints, loader, model, optimizer)
        parallel = DistributedDataParallel(model)
        batches = iter(loader)  # a mixture has no end
        for step in range(first_step, args.steps):
            began = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - began
            lane = rank * args.lanes // world_size  # of the first row
            log.write(json.dumps({"step": step, "lane": lane, "rows": digests(batch, loader.sources)}) + "\n")

            tokens = torch.from_numpy(batch.tokens).long()
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS)
            losses = parallel(tokens[:, :-1], tokens[:, 1:])
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()

            places = torch.from_numpy(batch.sources).long()
            sums, counts = by_source(losses.detach(), places, len(loader.sources))
            if rank == 0:
                seconds = time.perf_counter() - began
                each = zip(loader.sources, sums.tolist(), counts.tolist(), strict=True)
                found = {name: total / rows for name, total, rows in each if rows}
                report(step=step, loss=(sums.sum() / counts.sum()).item(), by=found, seconds=seconds, waited=waited)
                if (step + 1) % args.checkpoint_every == 0:
                    for writer in writers:
                        print(writer.describe(loader.stats(), ranks=world_size), file=sys.stderr, flush=True)
            if (step + 1) % args.checkpoint_every == 0:
                save(checkpoints, step + 1, loader, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
