"""A run to be looked at: its index, order and position, without an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..checkpoint import read_state
from ..engine.config import Counters
from ..options import LoaderOptions
from ..runs import MixtureRun, SetRun, run_of
from ..sets import Component
from ..storage.opening import Source

__all__ = ["open_run"]


def open_run(
    source: Source | Mapping[str, Source | Component],
    options: LoaderOptions,
    state: Mapping[str, Any] | None = None,
) -> SetRun | MixtureRun:
    """The whole run, as its only rank would have it. No budget is too small for it: nothing is read but footers.

    Args:
        source, options: as for `ParquetLoader`; rank and world size do not count.
        state: where the run is; None for its begin.

    Raises:
        ConfigError, StorageError, DataError: as `ParquetLoader`.
        CheckpointError: not a state, or that of another run.
    """
    run = run_of(source, dataclasses.replace(options, rank=0, world_size=1), Counters())
    if state is not None:
        run.progress = run.read(read_state(state))
    return run
