"""PyTorch: the only folder that imports torch, beside `parquet_loader.trainers`."""

from .dataset import TokenDataset
from .devices import prefetch_to_device
from .distributed import data_parallel_place, shared_index

__all__ = ["TokenDataset", "data_parallel_place", "prefetch_to_device", "shared_index"]
