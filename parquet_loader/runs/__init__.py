"""The two kinds of runs a loader may have: of one set, in epochs, and of a mixture of sets, without end.

Each knows where it is (`progress`), makes an engine there when rows are asked for, and reads and writes its states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..engine.config import Counters
from ..errors import ConfigError
from ..options import LoaderOptions, aligned_columns
from ..sets import Component
from ..storage.opening import Source
from .base import Rows, Step
from .mixture import MixtureRun
from .single import SetRun, windows_of

__all__ = ["MixtureRun", "Rows", "SetRun", "Step", "run_of", "windows_of"]


def run_of(
    source: Source | Mapping[str, Source | Component], options: LoaderOptions, counters: Counters
) -> SetRun | MixtureRun:
    """The run of one set or of a mixture, at its begin: after the batches that it was asked to skip.

    Raises:
        ConfigError, StorageError, DataError: as `ParquetLoader`.
    """
    run: SetRun | MixtureRun
    if isinstance(source, Mapping):
        named = [each.aligned for each in source.values() if isinstance(each, Component) and each.aligned]
        aligned = dict.fromkeys(name for names in named for name in names) | aligned_columns(options.aligned)
        run = MixtureRun(source, replace(options, aligned=aligned), counters)
    else:
        for name, default in (("weights", None), ("exhausted", "raise")):
            if getattr(options, name) != default:
                raise ConfigError(
                    f"{name} is for several sources: give a dict of them, {{'name': path, ...}}, a table [source] in "
                    "TOML, or NAME=PATH of each on the command line"
                )
        run = SetRun(source, options, counters)
    run.progress = run.advanced(options.skip_batches)
    return run
