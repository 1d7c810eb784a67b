"""Runs a recipe of docs/trainers with a tiny model, in one process or, under torchrun, in several."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from runs import Data
from tiny import PairRecorder, Recorder, Records

RECIPES = Path(__file__).parents[2] / "docs" / "trainers"


def recipe(name: str) -> ModuleType:
    """A recipe, under a name that no package has."""
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def train_with_jax(
    records: Records, data: Data, folder: Path, steps: int, devices: int, coordinator: str | None = None, **options: Any
) -> None:
    """With so many devices in each process; they meet at the coordinator's address if there are several."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    import jax
    import numpy as np

    if coordinator is not None:
        jax.distributed.initialize(coordinator, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    assert len(jax.local_devices()) == devices
    add = jax.jit(lambda params, x, y: params + (x * y).sum())

    def step_of(params: Any, x: Any, y: Any) -> Any:
        assert x.dtype == np.int32
        assert x.shape == (options["lanes"], options["seq_len"])  # of all processes
        own = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        records.take(np.concatenate([np.asarray(shard.data) for shard in own]).tolist())
        return add(params, x, y)

    recipe("jax_loop").train(step_of, jax.numpy.zeros(()), data, folder, steps, **options)


def train_with_torchtitan(model: Recorder, data: Data, folder: Path, steps: int, **options: Any) -> None:
    """What torchtitan's trainer does with its data loader; the trainer itself needs a GPU."""
    import torch.distributed.checkpoint

    torch.distributed.init_process_group("gloo")
    world_size = torch.distributed.get_world_size()
    lanes, seq_len = options["lanes"], options["seq_len"]
    config = recipe("torchtitan_loader").ParquetDataLoader.Config(
        lanes=lanes,
        steps=steps,
        seed=options["seed"],
        **({"dataset_path": data} if isinstance(data, str) else {"sources": data, "weights": options["weights"]}),
    )
    loader = config.build(
        dp_rank=torch.distributed.get_rank(),
        dp_world_size=world_size,
        tokenizer=None,
        seq_len=seq_len,
        local_batch_size=lanes // world_size,
        snapshot_every_n_steps=2,
    )
    done = 0
    # A checkpoint has metadata when all ranks have written it; another rank may have begun one before this one looks.
    if saved := sorted(folder.glob("step-*/.metadata")):
        torch.distributed.checkpoint.load({"dataloader": loader}, checkpoint_id=saved[-1].parent)
        done = int(saved[-1].parent.name.removeprefix("step-"))
    for inputs, labels in loader:
        assert labels.shape == inputs["positions"].shape == (lanes // world_size, seq_len)
        model(inputs["input"], labels)["loss"].backward()
        done += 1
        if done % 2 == 0:
            torch.distributed.checkpoint.save({"dataloader": loader}, checkpoint_id=folder / f"step-{done}")
    assert done == steps
    loader.close()
    torch.distributed.destroy_process_group()


def main(what: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ.get("RANK", "0"))
    records = Records(Path(what["records"]) / f"{what['tag']}-{rank}", what["kill_at"])
    arguments = (what["data"], Path(what["folder"]), what["steps"])
    name = what["recipe"]
    if name == "jax_loop":
        train_with_jax(records, *arguments, **what["options"])
    elif name == "torchtitan_loader":
        train_with_torchtitan(Recorder(records, what["vocabulary"]), *arguments, **what["options"])
    else:
        model = (PairRecorder if name == "nanogpt" else Recorder)(records, what["vocabulary"])
        recipe(name).train(model, *arguments, **what["options"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
