"""Hugging Face's Trainer, on one process or started by torchrun on several."""

from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from parquet_loader.trainers import TokenBatches, position_callback


class PretrainingTrainer(Trainer):
    def __init__(self, *arguments: object, batches: TokenBatches, **options: object) -> None:
        super().__init__(*arguments, callbacks=[position_callback(batches)], **options)
        self.batches = batches

    def get_train_dataloader(self) -> TokenBatches:
        return self.batches


def train(model: torch.nn.Module, data: str | dict[str, str], folder: Path, steps: int, **options: object) -> None:
    arguments = TrainingArguments(
        str(folder), max_steps=steps, save_steps=2, gradient_accumulation_steps=2, report_to="none", disable_tqdm=True
    )
    with TokenBatches(data, steps=steps * arguments.gradient_accumulation_steps, **options) as batches:
        trainer = PretrainingTrainer(model, arguments, batches=batches)
        trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
