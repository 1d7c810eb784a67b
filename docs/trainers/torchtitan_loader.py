"""A data loader for torchtitan: name its `Config` as the `dataloader` of a training configuration."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torchtitan.components.dataloader import BaseDataLoader

from parquet_loader.trainers import TokenBatches


class ParquetDataLoader(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        steps: int
        """Training steps, times those that gradients are accumulated over."""
        lanes: int
        """The sequences of such a step on all ranks: local_batch_size times the data-parallel degree."""
        seed: int = 0
        sources: dict[str, str] | None = None
        """Of a mixture, by name, in place of `dataset_path`."""
        weights: dict[str, float] | None = None

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, seq_len: int, local_batch_size: int, **_):
        if config.lanes != local_batch_size * dp_world_size:
            raise ValueError(
                f"set training.local_batch_size to {config.lanes / dp_world_size:g}, not {local_batch_size}"
            )
        run = {"steps": config.steps, "lanes": config.lanes, "seed": config.seed, "weights": config.weights}
        place = {"rank": dp_rank, "world_size": dp_world_size}
        options = {"seq_len": seq_len, "overlap": 1, "boundaries": ["position_ids"]}
        self.batches = TokenBatches(config.sources or config.dataset_path, **run, **place, **options)
        self.state_dict, self.load_state_dict = self.batches.state_dict, self.batches.load_state_dict
        self.close = self.batches.close

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.batches:
            yield {"input": batch["input_ids"], "positions": batch["position_ids"]}, batch["labels"]
