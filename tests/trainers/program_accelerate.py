"""What two ranks are given by `Accelerator.prepare`, for each way of giving it the data; one line of JSON a rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from runs import RUN
from torch.utils.data import DataLoader

from parquet_loader import ConfigError
from parquet_loader.torch import TokenDataset
from parquet_loader.trainers import TokenBatches

STEPS = 4


def main(data: str, folder: str) -> None:
    found: dict[str, object] = {}
    # Without dispatch, batch_size=None is a TypeError of accelerate's.
    for name, dispatch, size in (("dispatch", None, None), ("shard", False, 1)):
        for workers in (0, 1):
            configuration = DataLoaderConfiguration(dispatch_batches=dispatch)
            accelerator = Accelerator(cpu=True, dataloader_config=configuration)
            with TokenDataset(data, **RUN) as dataset:
                loader = accelerator.prepare(DataLoader(dataset, batch_size=size, num_workers=workers))
                try:
                    found[f"{name} {workers}"] = len(list(loader))
                except ConfigError as error:
                    found[f"{name} {workers}"] = str(error)
    with TokenBatches(data, steps=STEPS, **RUN) as batches:
        prepared = accelerator.prepare(batches)
        assert prepared is batches
        found["batches"] = [item["input_ids"].tolist() for item in prepared]
    (Path(folder) / str(accelerator.process_index)).write_text(json.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
