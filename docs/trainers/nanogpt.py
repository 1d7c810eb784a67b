"""The loop of nanoGPT's train.py, with a `get_batch` that resumes."""

import os
from pathlib import Path

import torch

from parquet_loader.trainers import TokenBatches


def train(model: torch.nn.Module, data: str | dict[str, str], folder: Path, steps: int, **options: object) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = TokenBatches(data, steps=steps + 1, overlap=1, **options)  # the loop reads one that it does not train on
    step = 0
    if (folder / "ckpt.pt").exists():
        checkpoint = torch.load(folder / "ckpt.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        batches.load_state_dict(checkpoint["data"])
        step = checkpoint["iter_num"]
    stream = iter(batches)

    def get_batch() -> tuple[dict, torch.Tensor, torch.Tensor]:
        before = batches.state_dict()
        batch = next(stream)
        return before, batch["input_ids"], batch["labels"]  # int64 (rows, seq_len), labels shifted by one

    before, x, y = get_batch()
    while step < steps:
        if step % 2 == 0:  # x and y are read and not trained on: the position is the one before them
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": step, "data": before}
            torch.save(state, folder / "new.pt")
            os.replace(folder / "new.pt", folder / "ckpt.pt")
        _, loss = model(x, y)
        before, x, y = get_batch()  # while the model is busy on the GPU
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
    batches.close()
