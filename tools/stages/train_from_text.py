#!/usr/bin/env python3
"""How soon training begins on text that is not tokenized yet, and what the tokenizer loses by it.

A round runs two processes, each from nothing to the end of tokenizing. Both begin to train: until the end of the first
optimizer step Python, PyTorch and the tokenizer are loaded, the first files written and the first window read.

    alone     then the trainer sleeps, and the writer has a core of its own
    beside    then it goes on to train, on another core

What is told of the writer is from its start to its end. On a machine that others work on too wall time says little; CPU
time then tells what the two share all the same: caches, memory and the disk.

    python tools/stages/train_from_text.py --megabytes 30
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
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


def train(folder: Path, output: str, trains: bool) -> None:
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
    )
    found: dict[str, float] = {}
    steps = 0
    with (
        background(options, threads=1) as writer,
        TokenDataset(writer.folder, seq_len=256, lanes=8, overlap=1, window=4, follow=True) as dataset,
    ):
        began = time.monotonic()
        growing = writer.progress()
        if growing is None:
            raise SystemExit("the text is too short: all of it is tokenized already")
        for task in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(task), {cores[0]})
        model = torch.nn.Sequential(
            torch.nn.Embedding(VOCAB_SIZE, 128), torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 4096)
        )
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in itertools.chain.from_iterable(itertools.repeat(dataset)):
            loss = torch.nn.functional.cross_entropy(
                model(batch["input_ids"].long()).flatten(0, 1), batch["labels"].long().flatten() % 4096
            )
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == 1:
                found["seconds to the first step"] = time.time() - float(os.environ["STARTED"])
                found["CPU seconds until then"] = time.process_time() + cpu_seconds(growing.writer.pid)
            if not trains:
                writer.wait()
            if writer.poll():
                break
        found["seconds of writing"] = time.monotonic() - began
    writing = resource.getrusage(resource.RUSAGE_CHILDREN)  # the writer has ended
    found["CPU seconds of the writer"] = writing.ru_utime + writing.ru_stime
    print(json.dumps(found | {"steps meanwhile": steps}))


def cpu_seconds(pid: int) -> float:
    """That a process has been on a core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=30, help="of text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--life", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.life:
        folder, output, trains = args.life
        train(Path(folder), output, trains == "beside")
        return
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), args.megabytes)
        ratios: dict[str, list[float]] = {"seconds of writing": [], "CPU seconds of the writer": []}
        for number in range(args.rounds):
            found = {}
            for kind in ("alone", "beside"):
                command = [sys.executable, __file__, "--life", folder]
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
            for name, each in ratios.items():
                each.append(found["alone"][name] / found["beside"][name])
        for name, each in ratios.items():
            print(f"alone / beside, {name}: {statistics.median(each):.2f}, the median of {args.rounds} rounds")
        print(f"others' load and ours: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
