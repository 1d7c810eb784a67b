#!/usr/bin/env python3
"""How soon training begins on text that is not tokenized yet, and what the tokenizer loses by it.

    first step    a process of its own, from its start to the end of the first optimizer step: imports, tokenizer, the
                  first files, the first window, the step
    alone         tokens per second of the writer, on a core of its own, while the trainer sleeps
    beside        the same while the trainer trains on another core

A round measures each once. On a machine that others work on too, wall time says little: `per CPU second` divides by the
time that the writer was on its core, which leaves what the two share: caches, memory and the disk.

    python tools/stages/train_from_text.py --megabytes 30
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pretokenize_speed import read_texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 32_000


def prepare(folder: Path, megabytes: float) -> None:
    """A folder of JSON lines, and a byte-level BPE that is trained on a part of them."""
    roots = [Path(json.__file__).parents[1]]
    texts = read_texts(roots, int(megabytes * 1e6))
    (folder / "text").mkdir()
    with (folder / "text" / "all.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(texts[:: max(1, len(texts) // 400)], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def train(folder: Path, output: str, seconds: float, trains: bool) -> None:
    """A trainer's life: prints one line of JSON with what was measured."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})  # the writer's, which inherits it

    import torch

    from parquet_loader.pretokenize import PretokenizeOptions, background
    from parquet_loader.torch import TokenDataset

    torch.set_num_threads(1)
    options = PretokenizeOptions(
        inputs=(str(folder / "text"),),
        output=str(folder / output),
        tokenizer=str(folder / "tokenizer.json"),
        append_eos=True,
        row_group_tokens=100_000,
        batch_bytes=1 << 19,
    )
    with (
        background(options, threads=1) as writer,
        TokenDataset(writer.folder, seq_len=256, lanes=8, overlap=1, window=8, follow=True) as dataset,
    ):
        for task in os.listdir("/proc/self/task"):  # threads of torch have been made before this
            os.sched_setaffinity(int(task), {cores[0]})
        model = torch.nn.Sequential(
            torch.nn.Embedding(VOCAB_SIZE, 128), torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 4096)
        )
        optimizer = torch.optim.AdamW(model.parameters())
        found: dict[str, float] = {}
        begun = None
        for batch in itertools.chain.from_iterable(itertools.repeat(dataset)):
            if trains or not found:
                loss = torch.nn.functional.cross_entropy(
                    model(batch["input_ids"].long()).flatten(0, 1), batch["labels"].long().flatten() % 4096
                )
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                time.sleep(seconds)
            if not found:
                found["first step"] = time.time() - started_at()
            growing = writer.progress()
            if growing is None:
                raise SystemExit("the text is too short: all of it is tokenized already")
            now = (time.monotonic(), growing.tokens, cpu_seconds(growing.writer.pid))
            begun = begun or now
            if now[0] - begun[0] >= seconds:
                wall, tokens, cpu = (after - before for before, after in zip(begun, now, strict=True))
                found |= {"per second": tokens / wall, "per CPU second": tokens / cpu, "core": cpu / wall}
                break
    print(json.dumps(found))


def started_at() -> float:
    """When this process was started, in seconds since 1970."""
    return float(os.environ["STARTED"])


def cpu_seconds(pid: int) -> float:
    """That a process has been on a core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=30, help="of text")
    parser.add_argument("--seconds", type=float, default=10, help="that the writer is watched for")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--life", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.life:
        folder, output, trains = args.life
        train(Path(folder), output, args.seconds, trains == "beside")
        return
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), args.megabytes)
        ratios = []
        for number in range(args.rounds):
            found = {}
            for kind in ("alone", "beside"):
                command = [sys.executable, __file__, "--seconds", str(args.seconds), "--life", folder]
                done = subprocess.run(
                    [*command, f"{kind}-{number}", kind],
                    env={**os.environ, "STARTED": str(time.time())},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                found[kind] = json.loads(done.stdout)
                print(
                    f"{kind:<7}", ", ".join(f"{name} {value:,.2f}" for name, value in found[kind].items()), flush=True
                )
            ratios.append(found["beside"]["per CPU second"] / found["alone"]["per CPU second"])
        load = os.getloadavg()[0]
        print(
            f"beside / alone, per CPU second: {statistics.median(ratios):.2f} of {args.rounds} rounds; load {load:.1f}"
        )


if __name__ == "__main__":
    main()
