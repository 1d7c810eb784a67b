"""What two ranks are given by `Accelerator.prepare`, for each way of giving it the data; one line of JSON a rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from runs import RUN
from torch.utils.data import DataLoader

from parquet_loader.torch import TokenDataset
from parquet_loader.trainers import TokenBatches

STEPS = 4


def main(data: str, folder: str) -> None:
    found = {}
    accelerator = Accelerator(cpu=True)
    with TokenDataset(data, **RUN) as dataset:
        loader = accelerator.prepare(DataLoader(dataset, batch_size=None))
        found["default"] = [item["input_ids"].tolist() for item in loader]
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    with TokenDataset(data, **RUN) as dataset:  # with batch_size=None this is a TypeError of accelerate's
        loader = accelerator.prepare(DataLoader(dataset, batch_size=1))
        found["no dispatch"] = [item["input_ids"][0].tolist() for item in loader]
    with TokenBatches(data, steps=STEPS, **RUN) as batches:
        prepared = accelerator.prepare(batches)
        assert prepared is batches
        found["batches"] = [item["input_ids"].tolist() for item in prepared]
    (Path(folder) / str(accelerator.process_index)).write_text(json.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
