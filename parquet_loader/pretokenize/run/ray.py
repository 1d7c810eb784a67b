"""The ranks of `ranks` as tasks of a Ray cluster: the same shares, the same steps, with Ray's own retries.

A task that is retried, because its process or its machine is gone, resumes from the rank's journal in the output
folder. All machines must see the inputs and the output under the same names.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ...errors import ConfigError, ParquetLoaderError
from ..extras import import_extra
from ..options import PretokenizeOptions, Step
from .pipeline import Summary
from .ranks import StepDone, pretokenize_rank

__all__ = ["pretokenize_on_ray"]


_RETRIES = 10


def pretokenize_on_ray(
    options: PretokenizeOptions, *, address: str = "local", world_size: int | None = None
) -> Summary | StepDone:
    """Make a set by one task for each rank.

    Args:
        options: as for one rank; ``rank``, ``world_size`` and ``step`` are set here.
        address: of a cluster, or ``"local"`` to start one on this machine.
        world_size: how many tasks; None for one for each CPU of the cluster, and at least two.

    Raises:
        ConfigError: Ray is not installed or not reached, or what `pretokenize_rank` raises.
    """
    if world_size is not None and world_size < 2:
        raise ConfigError(f"with ray, world_size must be at least 2, got {world_size}. Omit ray for one rank alone.")
    ray: Any = import_extra("ray", "ray")
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    except Exception as error:  # a cluster that is not there has many names
        raise ConfigError(f"the Ray cluster {address!r} cannot be reached ({error}). Check the address.") from error
    try:
        count = world_size or max(2, int(ray.cluster_resources().get("CPU", 2)))
        everywhere = replace(
            options,
            inputs=tuple(map(_absolute, options.inputs)),
            output=_absolute(options.output),
            tokenizer=_absolute(options.tokenizer) if os.path.exists(options.tokenizer) else options.tokenizer,
            seen_hashes=None if options.seen_hashes is None else _absolute(options.seen_hashes),
            world_size=count,
        )
        # The encoder's threads are all the task's work, so a task is one CPU's.
        task = ray.remote(max_retries=_RETRIES, num_cpus=1)(pretokenize_rank)

        def run(step: Step, ranks: range) -> list[Any]:
            tasks = [task.remote(replace(everywhere, rank=rank, step=step)) for rank in ranks]
            try:
                return list(ray.get(tasks))
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ParquetLoaderError):
                    raise error.cause from error
                raise

        ranks = range(everywhere.world_size)
        if options.dedup:
            run("hash", ranks)
            run("drops", range(1))
        run("encode", ranks)
        [summary] = run("finish", range(1))
        return summary if isinstance(summary, Summary) else StepDone(message=summary.describe())
    finally:
        ray.shutdown()


def _absolute(path: str) -> str:
    """A task's working folder is not this one."""
    return path if "://" in path else os.path.abspath(path)
