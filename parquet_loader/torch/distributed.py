"""One index for all ranks of a process group: the first reads the footers, and the others get them from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch.distributed

from ..errors import ParquetLoaderError, StorageError
from ..index.index import DatasetIndex, build_index
from ..storage.opening import Source
from ..storage.retry import RETRY_SECONDS

__all__ = ["shared_index"]


def shared_index(
    source: Source,
    *,
    column: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    retry_seconds: float = RETRY_SECONDS,
    group: torch.distributed.ProcessGroup | None = None,
) -> DatasetIndex:
    """The index of a dataset, built by the first rank of a process group and sent to the others.

    Every rank of the group must call it, since all take part; without a process group it is `build_index`. It is no
    part of `TokenDataset`, which may be made by some ranks only, for a validation on rank 0 for instance, and would
    then wait for the others for ever.

    Args:
        source, column, storage_options, cache_dir, retry_seconds: as for `build_index`.
        group: the process group; None for the default one.

    Raises:
        ParquetLoaderError: on every rank, what the first rank met.
    """

    def build() -> DatasetIndex:
        return build_index(
            source, column=column, storage_options=storage_options, cache_dir=cache_dir, retry_seconds=retry_seconds
        )

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return build()
    first = torch.distributed.get_rank(group) == 0
    index: DatasetIndex | None = None
    message: list[Any] = [None]
    if first:
        try:
            index = build()
            message = [index.to_bytes()]
        except ParquetLoaderError as error:
            message = [error]
        except Exception as error:  # the others would wait for ever
            message = [StorageError(f"the index could not be built: {type(error).__name__}: {error}")]
    source_rank = 0 if group is None else torch.distributed.get_global_rank(group, 0)
    torch.distributed.broadcast_object_list(message, src=source_rank, group=group)
    if isinstance(message[0], ParquetLoaderError):
        raise message[0]
    return index if index is not None else DatasetIndex.from_bytes(message[0])
