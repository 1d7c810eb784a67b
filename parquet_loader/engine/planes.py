"""What goes through an engine beside the tokens: the values of aligned columns, each a plane.

    tokens     │ 5 6 7 │ 8 9 │ ...          the same documents, so the same cuts, permutation, and packing
    labels     │-1-1 7 │-1 9 │ ...

Where a mixture's sources store a column in different types, its values have one that holds all of them exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError
from .rows import RowLayout

__all__ = ["Plane", "common_dtype", "holds"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plane:
    """What goes through an engine: the tokens, or the values of a column that are as many in each document and go
    wherever its tokens go.

    Attributes:
        column: its name.
        dtype: of the rows.
        held_dtype: of blocks and slices: narrower where all values fit, which saves memory and its traffic.
        low, bound: values outside ``[low, bound)`` are refused, all of which fit `held_dtype`; none are where `bound`
            is None.
        eos: appended to every document where it is not None; or what ends the documents of a stream.
        appends_eos: whether it is put in.
        rows: of a set packed by rows, what its rows are; else None.
    """

    column: str
    dtype: np.dtype[Any]
    held_dtype: np.dtype[Any]
    low: int = 0
    bound: int | None
    eos: int | float | None
    appends_eos: bool
    rows: RowLayout | None = None

    @property
    def element_dtype(self) -> np.dtype[Any]:
        """Of what slices hold: values, or rows of them."""
        return self.held_dtype if self.rows is None else self.rows.dtype


def common_dtype(column: str, dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any]:
    """The type that holds the values of all of some types exactly.

    Raises:
        ConfigError: there is none, as for 64-bit integers beside floats.
    """
    different = sorted(set(dtypes), key=str)
    found = np.result_type(*different)
    if found.kind == "f":
        digits = np.finfo(found).nmant + 1
        if any(each.kind in "iu" and 8 * each.itemsize - (each.kind == "i") > digits for each in different):
            raise ConfigError(
                f"the aligned column {column!r} is stored as {' and '.join(map(str, different))}, and no type holds "
                "the values of all of them exactly; write it as one type, or load these files apart"
            )
    return found


def holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether a type has a value, of floats as near as they come."""
    try:
        found = np.array(value).astype(dtype) if dtype.kind == "f" else np.array(value, dtype)
    except (OverflowError, ValueError):
        return False
    if isinstance(value, float) and dtype.kind == "f":
        return bool(np.isfinite(found)) or not np.isfinite(value)
    return bool(found == value)
