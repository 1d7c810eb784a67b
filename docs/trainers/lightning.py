"""Lightning, on one process or started by torchrun on several."""

import os
from pathlib import Path

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from parquet_loader.trainers import TokenBatches


class Pretraining(LightningModule):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(model: torch.nn.Module, data: str | dict[str, str], folder: Path, steps: int, **options: object) -> None:
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    saver = ModelCheckpoint(folder, save_last=True, every_n_train_steps=2)
    last = folder / "last.ckpt"
    with TokenBatches(data, steps=steps, **options) as batches:
        trainer = Trainer(
            max_steps=steps, devices=devices, strategy="ddp" if devices > 1 else "auto", callbacks=[saver], logger=False
        )
        trainer.fit(Pretraining(model), batches, ckpt_path=last if last.exists() else None)
