"""What goes through an engine beside the tokens: the values of aligned columns, each a plane.

    tokens     │ 5 6 7 │ 8 9 │ ...          the same documents, so the same cuts, permutation, and packing
    labels     │-1-1 7 │-1 9 │ ...

Where a mixture's sources store a column in different types, its values have one that holds all of them exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..formats.base import ColumnLayout
from ..index.index import DatasetIndex
from .rows import RowLayout

__all__ = ["Plane", "common_dtype", "held_dtype", "holds", "holds_values", "plane_of"]


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


def holds_values(layout: ColumnLayout) -> bool:
    """Whether a file has any value of a column at all."""
    return bool(layout.max_definition_level or layout.kind)


def plane_of(
    index: DatasetIndex, at_eos: float | None, *, appends_eos: bool, by_statistics: bool, rows: RowLayout | None
) -> Plane:
    """The plane of an aligned column: integers are held as narrow as the statistics promise, where they are of all
    files. Padding has 0.

    Raises:
        ConfigError: no type holds its values, or EOS are appended and ``at_eos`` is no value of it.
    """
    name = index.column
    holding = [layout.value_dtype for layout in index.layouts if holds_values(layout)]
    dtype = common_dtype(name, holding or [np.dtype(np.int64)])
    if appends_eos and at_eos is None:
        raise ConfigError(
            f"EOS are appended to documents, where the aligned column {name!r} has no value: give it one, such as "
            f"aligned={{{name!r}: -100}} for labels, or 0 for a mask"
        )
    if appends_eos and at_eos is not None and not holds(dtype, at_eos):
        raise ConfigError(f"aligned={{{name!r}: {at_eos!r}}} is no value of the column, which is {dtype}")
    held = dtype
    bound = None
    low = 0
    if dtype.kind in "iu":
        some = index.tokens > 0
        known = index.min_id[some] <= index.max_id[some]
        if by_statistics and known.all() and some.any():
            ends = [int(index.min_id[some].min()), int(index.max_id[some].max())]
            ends += [int(at_eos)] if appends_eos and at_eos is not None else []
            for narrow in (np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32)):
                if narrow.itemsize < held.itemsize and all(holds(narrow, end) for end in ends):
                    held = narrow
        low, bound = int(np.iinfo(held).min), int(np.iinfo(held).max) + 1
    return Plane(
        column=name,
        dtype=dtype,
        held_dtype=held,
        low=low,
        bound=bound,
        eos=at_eos if appends_eos else None,
        appends_eos=appends_eos,
        rows=None if rows is None else replace(rows, ids=held, pad_id=None if rows.pad_id is None else 0),
    )


def held_dtype(
    index: DatasetIndex,
    dtype: np.dtype[np.integer],
    bound: int,
    added_id: int | None,
    *,
    by_statistics: bool,
) -> np.dtype[np.integer]:
    """Two bytes a token where vocab_size, the stored type or the footers' statistics promise that they do; decoding
    checks it. Statistics promise nothing of files that are yet to come.
    """
    narrow = np.dtype(np.uint16)
    room = np.iinfo(narrow).max + 1
    known = (index.max_id >= 0) | (index.tokens == 0)
    fits = bound <= room or (by_statistics and bool((known & (index.max_id < room)).all()))
    fits = fits or all(np.iinfo(layout.dtype).max < room for layout in index.layouts)
    return narrow if fits and dtype.itemsize > narrow.itemsize and (added_id or 0) < room else dtype
