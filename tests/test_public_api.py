"""What users may rely on, pinned."""

from __future__ import annotations

import inspect

import parquet_loader
from parquet_loader import ParquetLoader, ParquetLoaderError

NAMES = [
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

LOADER_ARGUMENTS = {
    "seq_len": inspect.Parameter.empty,
    "lanes": inspect.Parameter.empty,
    "weights": None,
    "exhausted": "raise",
    "window": None,
    "seed": 0,
    "shuffle": True,
    "column": None,
    "eos_id": None,
    "packing": "tokens",
    "pad_id": None,
    "vocab_size": None,
    "rank": 0,
    "world_size": 1,
    "uneven": False,
    "overlap": 0,
    "epochs": None,
    "tail": "pad",
    "skip_batches": 0,
    "budget_bytes": 2 << 30,
    "threads": None,
    "processes": 0,
    "requests": None,
    "retry_seconds": 300.0,
    "dtype": "int32",
    "storage_options": None,
    "cache_dir": None,
    "index": None,
    "format": None,
    "raw_dtype": None,
    "aligned": (),
    "follow": False,
    "wait_seconds": 600.0,
    "complete_after": None,
    "strict": False,
}

DATASET_ARGUMENTS = LOADER_ARGUMENTS | {
    "rank": None,
    "world_size": None,
    "labels": True,
    "loss_mask": None,
    "tokens": False,
    "dtype": "int64",
    "boundaries": (),
    "mask_first_labels": False,
    "with_state": False,
    "with_sources": False,
}


def test_the_public_names_are_these() -> None:
    assert sorted(parquet_loader.__all__) == NAMES
    assert all(hasattr(parquet_loader, name) for name in NAMES)


def test_the_loaders_arguments_and_defaults_are_these() -> None:
    parameters = inspect.signature(ParquetLoader).parameters
    keywords = {name: p.default for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert keywords == LOADER_ARGUMENTS
    assert [name for name, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY] == ["source"]


def test_what_is_there_for_torch_is_this() -> None:
    import parquet_loader.torch

    names = ["TokenDataset", "data_parallel_place", "prefetch_to_device", "shared_index"]
    assert sorted(parquet_loader.torch.__all__) == names
    assert all(inspect.getdoc(getattr(parquet_loader.torch, name)) for name in names)
    parameters = inspect.signature(parquet_loader.torch.TokenDataset).parameters
    keywords = {name: p.default for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert keywords == DATASET_ARGUMENTS


def test_every_public_name_and_method_is_documented() -> None:
    for name in NAMES:
        value = getattr(parquet_loader, name)
        assert inspect.getdoc(value), name
        if inspect.isclass(value):
            for member_name, member in vars(value).items():
                if not member_name.startswith("_") and (callable(member) or isinstance(member, property)):
                    assert inspect.getdoc(member), f"{name}.{member_name}"


def test_every_error_is_caught_by_the_root() -> None:
    errors = [value for name, value in vars(parquet_loader).items() if name.endswith("Error")]
    assert len(errors) == 15
    assert all(issubclass(error, ParquetLoaderError) for error in errors)
