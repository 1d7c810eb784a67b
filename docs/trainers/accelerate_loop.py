"""A loop with Hugging Face's accelerate, to be started by accelerate launch or torchrun."""

from pathlib import Path

import torch
from accelerate import Accelerator

from parquet_loader.trainers import TokenBatches


def train(model: torch.nn.Module, data: str | dict[str, str], folder: Path, steps: int, **options: object) -> None:
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with TokenBatches(data, steps=steps, device=accelerator.device, **options) as batches:
        model, optimizer = accelerator.prepare(model, optimizer)  # the batches need no preparing
        accelerator.register_for_checkpointing(batches)
        if saved := sorted(folder.glob("step-*")):
            accelerator.load_state(saved[-1])
        for batch in batches:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            done = batches.state_dict()["steps"]
            if done % 2 == 0:
                accelerator.save_state(folder / "new")
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:  # a kill leaves no half-written step-...
                    (folder / "new").rename(folder / f"step-{done:06}")
                accelerator.wait_for_everyone()
    accelerator.end_training()
