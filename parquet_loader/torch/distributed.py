"""One index for all ranks of a process group: the first reads the footers, and the others get them from it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import torch.distributed
from torch.distributed.device_mesh import DeviceMesh

from ..errors import ConfigError, ParquetLoaderError, StorageError
from ..index.build import build_index
from ..index.index import DatasetIndex
from ..storage.opening import Source
from ..storage.retry import RETRY_SECONDS

__all__ = ["data_parallel_place", "shared_index"]


def shared_index(
    source: Source,
    *,
    column: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    retry_seconds: float = RETRY_SECONDS,
    group: torch.distributed.ProcessGroup | None = None,
    format: str | None = None,
    raw_dtype: object = None,
    aligned: Collection[str] = (),
) -> DatasetIndex:
    """The index of a dataset, built by the first rank of a process group and sent to the others.

    Every rank of the group must call it, since all take part; without a process group it is `build_index`. It is no
    part of `TokenDataset`, which may be made by some ranks only, for a validation on rank 0 for instance, and would
    then wait for the others for ever. Of a mixture call it for each source, for the ``index`` of its `Component`.

    Args:
        source, column, storage_options, cache_dir, retry_seconds, format, raw_dtype, aligned: as for `build_index`.
        group: the process group; None for the default one.

    Raises:
        ParquetLoaderError: on every rank, what the first rank met.
    """

    def build() -> DatasetIndex:
        return build_index(
            source,
            column=column,
            storage_options=storage_options,
            cache_dir=cache_dir,
            retry_seconds=retry_seconds,
            format=format,
            raw_dtype=raw_dtype,
            aligned=aligned,
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


def data_parallel_place(mesh: DeviceMesh, *dimensions: str) -> tuple[int, int]:
    """(rank, world size) of this process for a loader, in a mesh of which only some dimensions divide the data.

    Processes that differ in other dimensions only, such as tensor, pipeline or context parallel ones, get the same:

        mesh ("dp", "tp") of 2 x 2      processes   0 1      data_parallel_place(mesh, "dp")   (0, 2) (0, 2)
                                                    2 3                                        (1, 2) (1, 2)

    Args:
        mesh: as ``torch.distributed.device_mesh.init_device_mesh`` makes it, with names.
        dimensions: those that divide the data, from the outer one to the inner one: ``"dp_replicate", "dp_shard"``.

    Raises:
        ConfigError: the mesh has no such dimension.
    """
    names = mesh.mesh_dim_names or ()
    rank, world_size = 0, 1
    for name in dimensions:
        if name not in names:
            raise ConfigError(f"the mesh has no dimension {name!r}; it has {', '.join(names) or 'none with a name'}")
        rank = rank * mesh.size(names.index(name)) + mesh.get_local_rank(name)
        world_size *= mesh.size(names.index(name))
    return rank, world_size
