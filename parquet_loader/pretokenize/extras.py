"""Packages that only pretokenization needs, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import ConfigError

__all__ = ["DISTRIBUTION", "import_extra"]


# The name that pip knows; the package index has another project under that of the package.
DISTRIBUTION = "parquet-token-loader"


def import_extra(name: str, extra: str = "pretokenize") -> Any:
    """The module, or an error that says how to install it.

    Args:
        name: the module.
        extra: the extra of this library that brings it.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise  # the package is there but broken: its own message says more
        raise ConfigError(f"this needs the package {name}: pip install '{DISTRIBUTION}[{extra}]'") from error
