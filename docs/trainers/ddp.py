"""A plain DistributedDataParallel loop, to be started by torchrun."""

import os
from pathlib import Path

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from parquet_loader.trainers import TokenBatches


def train(model: torch.nn.Module, data: str | dict[str, str], folder: Path, steps: int, **options: object) -> None:
    torch.distributed.init_process_group("cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo")
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    last = folder / "last.pt"
    with TokenBatches(data, steps=steps, **options) as batches:
        if last.exists():
            saved = torch.load(last)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            batches.load_state_dict(saved["data"])
        for batch in batches:
            model(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            position = batches.state_dict()  # the same on all ranks
            if position["steps"] % 2 == 0 and torch.distributed.get_rank() == 0:
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": position}
                torch.save(saved, folder / "new.pt")
                os.replace(folder / "new.pt", last)  # a kill leaves the whole old one or the whole new one
    torch.distributed.destroy_process_group()
