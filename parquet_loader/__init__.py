"""A pure-Python, Parquet-native data loader for LLM pretraining.

>>> from parquet_loader import ParquetLoader, merge_checkpoints  # doctest: +SKIP
>>> loader = ParquetLoader("s3://bucket/fineweb-edu", seq_len=2048, lanes=512)  # doctest: +SKIP
"""

from .starting import end_if_interrupted, is_command

if is_command():
    end_if_interrupted()

from .batch import Batch
from .checkpoint import merge_checkpoints
from .documents import Documents
from .errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    ConfigError,
    DataError,
    FileChangedError,
    GrowthTimeoutError,
    HelperError,
    LoaderClosedError,
    LoaderInUseError,
    ParquetLoaderError,
    PathNotFoundError,
    SourceExhaustedError,
    StorageError,
    WriterFailedError,
)
from .index.build import build_index
from .index.index import DatasetIndex
from .loader import ParquetLoader
from .order.mixture import temperature_weights
from .sets import Component

__all__ = [
    "Batch",
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "Component",
    "ConfigError",
    "DataError",
    "DatasetIndex",
    "Documents",
    "FileChangedError",
    "GrowthTimeoutError",
    "HelperError",
    "LoaderClosedError",
    "LoaderInUseError",
    "ParquetLoader",
    "ParquetLoaderError",
    "PathNotFoundError",
    "SourceExhaustedError",
    "StorageError",
    "WriterFailedError",
    "build_index",
    "merge_checkpoints",
    "temperature_weights",
]

__version__ = "0.2.0"
