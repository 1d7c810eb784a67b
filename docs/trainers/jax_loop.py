"""A loop in JAX, in one process or, after `jax.distributed.initialize`, in one for each host."""

import pickle
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from parquet_loader import ParquetLoader


def train(step_of, params, data: str | dict[str, str], folder: Path, steps: int, **options: object):
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    last, done = folder / "last.pickle", 0
    place = {"rank": jax.process_index(), "world_size": jax.process_count()}
    with ParquetLoader(data, overlap=1, **place, **options) as loader:
        if last.exists():
            params, position, done = pickle.loads(last.read_bytes())
            loader.load_state_dict(position)
        while done < steps:
            for batch in loader:  # int32 rows of this process, one token longer than seq_len; the rest of an epoch
                tokens = jax.make_array_from_process_local_data(sharding, batch.tokens)
                params = step_of(params, tokens[:, :-1], tokens[:, 1:])
                done += 1
                if done % 2 == 0 and jax.process_index() == 0:
                    (folder / "new.pickle").write_bytes(pickle.dumps((jax.device_get(params), batch.state, done)))
                    (folder / "new.pickle").rename(last)
                if done == steps:
                    break
