"""What an engine runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..blocks import IntArray
from ..formats.base import Format
from ..index.follow import Follower
from ..index.index import DatasetIndex
from ..order.order import Order
from ..storage.base import Storage
from .planes import Plane
from .rows import RowLayout

__all__ = ["CAUSES", "Counters", "EngineConfig", "group_elements"]

# What batches are waited for: requests to storage; decoding and shuffling, and all that Python does for it; room in the
# budget; files of a set that is still written.
CAUSES = ("storage", "decoding", "budget", "growth")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineConfig:
    """What an engine runs on.

    Attributes:
        index, storage, order: the dataset and its order.
        format: what decodes it.
        first, last: the lanes ``[first, last)``.
        dtype: of the rows.
        held_dtype: of blocks and slices: narrower where all ids fit, which halves memory and its traffic.
        bound: one past the largest token id allowed; fits `held_dtype`.
        eos_id: appended to every document where it is not None; or what ends the documents of a stream.
        threads: row groups decoded concurrently, in as many processes where there are such.
        processes: that decode in place of this process's threads; 0 for none.
        requests: row groups read concurrently.
        budget_bytes: the most that is ever held.
        epochs: no more than these are read; None for no end.
        aligned: the columns that go with the tokens, in the order of `DatasetIndex.aligned`.
        fills: what a batch has in place of further ones, by name: a number, or ``"tokens"``.
        rows: of a set packed by rows, what they are; else None.
        growth: of a set that may still grow, what looks at it; None where the index is all of it.
    """

    index: DatasetIndex
    format: Format
    storage: Storage
    order: Order
    first: int
    last: int
    dtype: np.dtype[np.integer]
    held_dtype: np.dtype[np.integer]
    bound: int
    eos_id: int | None
    threads: int
    requests: int
    budget_bytes: int
    processes: int = 0
    epochs: int | None = None
    aligned: tuple[Plane, ...] = ()
    fills: Mapping[str, int | float | str] = field(default_factory=dict)
    rows: RowLayout | None = None
    growth: Follower | None = None

    @property
    def now(self) -> EngineConfig:
        """The same with as much of the set as is known by now."""
        if self.growth is None:
            return self
        index, complete = self.growth.known
        config = self if index is self.index else self.with_index(index)
        return replace(config, growth=None) if complete else config

    def with_index(self, index: DatasetIndex) -> EngineConfig:
        """The same with another index of the same column."""
        elements = group_elements(index, appends_eos=self.appends_eos, rows=self.rows)
        return replace(self, index=index, order=replace(self.order, group_tokens=elements))

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The tokens, and what goes with them."""
        tokens = Plane(
            column=self.index.column,
            dtype=self.dtype,
            held_dtype=self.held_dtype,
            bound=self.bound,
            eos=self.eos_id,
            appends_eos=self.appends_eos,
            rows=self.rows,
        )
        return tokens, *self.aligned

    def of_tokens(self) -> EngineConfig:
        """Without what goes with the tokens."""
        return replace(self, index=replace(self.index, aligned=()), aligned=(), fills={}) if self.aligned else self

    @property
    def held_itemsize(self) -> int:
        """Bytes that a token takes in slices, or a row that is packed already, with all that goes with it."""
        return sum(plane.element_dtype.itemsize for plane in self.planes)

    @property
    def element_tokens(self) -> int:
        """The tokens of what slices hold: 1, or those of a row that is packed already."""
        return 1 if self.rows is None else self.rows.width

    @property
    def appends_eos(self) -> bool:
        """Whether an EOS is put in after each document; in a stream, `eos_id` is what ends them."""
        return self.index.takes_eos(self.eos_id)


def group_elements(index: DatasetIndex, *, appends_eos: bool, rows: RowLayout | None) -> IntArray:
    """What each row group holds of what is dealt out to lanes, shape ``(row groups,)``: tokens, or packed rows."""
    if rows is not None:
        return index.rows
    return index.tokens + index.rows if appends_eos else index.tokens


@dataclass(slots=True)
class Counters:
    """What engines have done. Added to under their budget's lock: a lock of its own might be held by a thread that a
    forked child does not have.
    """

    bytes_read: int = 0
    reads: int = 0
    row_groups: int = 0
    tokens_decoded: int = 0
    fallbacks: int = 0
    retries: int = 0  # in other processes
    waits: dict[tuple[str, str], float] = field(
        default_factory=dict
    )  # seconds, by source and cause; all causes of each

    def waited(self, *, source: str | None = None, cause: str | None = None) -> float:
        """Seconds that whoever takes rows has waited, of one source or all, for one cause or all."""
        return sum(
            seconds for (name, why), seconds in self.waits.items() if source in (None, name) and cause in (None, why)
        )
