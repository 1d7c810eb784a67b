"""Checks of what people give: a `ConfigError` that names the argument and the value."""

from __future__ import annotations

import operator

import numpy as np

from .errors import ConfigError

__all__ = ["boolean", "check_type", "integer"]


def integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """The value, if it is an integer within bounds, both included; True and False are none."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # what has no __index__ raises
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"in [{low}, {high}]"
        raise ConfigError(f"{name} must be an integer {bounds}, not {value!r}")
    return number


def boolean(name: str, value: object) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def check_type(name: str, value: object, *kinds: type) -> None:
    """Refuse a value of other types."""
    if not isinstance(value, kinds):
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{name} must be {wanted}, not {value!r}")
