"""The weights of a mixture, as users give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..order.mixture import Weights, integer_weights

__all__ = ["Schedule", "schedule_of", "weights_of"]

Schedule = tuple[tuple[int, Weights], ...]  # (token of the run, weights from there on), rising


def schedule_of(weights: Any) -> Schedule:
    """Shares, or a list of (token, shares), as a schedule.

    Raises:
        ConfigError: neither.
    """
    if weights is None:
        raise ConfigError(
            "a mixture needs weights: shares such as {'web': 0.7, 'code': 0.3}, a schedule [(0, {...}), (token, "
            "{...})], or 'tokens' for as much as each source holds"
        )
    if isinstance(weights, str) or not isinstance(weights, (Mapping, Sequence)):
        raise ConfigError(f"weights must be shares, a schedule or 'tokens', not {weights!r}")
    if isinstance(weights, Mapping) and weights and all(isinstance(key, int) for key in weights):
        raise ConfigError("a schedule is a list of (token, shares), not a dict of tokens")
    stages = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
    if not stages or not all(isinstance(stage, Sequence) and len(stage) == 2 for stage in stages):
        raise ConfigError(f"a schedule is a list of (token, shares), not {weights!r}")
    tokens = [token for token, _ in stages]
    if not all(isinstance(token, (int, np.integer)) and not isinstance(token, bool) for token in tokens):
        raise ConfigError(f"the tokens from which on stages of weights hold must be integers, not {tokens}")
    if tokens[0] != 0 or any(low >= high for low, high in pairwise(tokens)):
        raise ConfigError(f"the stages of weights must begin at token 0 and rise, not at {tokens}")
    return tuple((int(token), weights_of(shares)) for token, shares in stages)


def weights_of(shares: object) -> Weights:
    """Shares by source as integer weights.

    Raises:
        ConfigError: no shares.
    """
    if not isinstance(shares, Mapping):
        raise ConfigError(f"weights must be a dict of shares by source, not {shares!r}")
    try:
        return integer_weights(shares)
    except ValueError as error:
        raise ConfigError(str(error)) from error
