"""`LoaderOptions`: a loader's arguments, checked when made; and the checks, for other arguments.

Every check ends in a `ConfigError` that names the argument and its value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from .errors import ConfigError
from .index import DatasetIndex
from .index.build import integer_dtype, raw_dtype_of
from .order.ending import TAILS
from .order.order import lane_range
from .storage.kinds import KINDS
from .storage.retry import RETRY_SECONDS

if TYPE_CHECKING:
    from typing_extensions import Required

__all__ = [
    "Aligned",
    "IndexLike",
    "LoaderKeywords",
    "LoaderOptions",
    "Weights",
    "aligned_columns",
    "all_cores",
    "boolean",
    "check_packing",
    "check_type",
    "check_world_size",
    "file_format",
    "fill_values",
    "integer",
    "options_of",
    "padding_id",
    "seconds_of",
    "signature_with",
    "spare_cores",
]

_MAX_DEFAULT_THREADS = 4
_MOST_THREADS = 1024  # more would only take memory
_MOST_PROCESSES = 64  # each takes tens of megabytes
_MOST = 2**31 - 2  # tokens of a row, rows of a batch

DType = str | np.dtype[np.integer] | type[np.integer]
IndexLike = DatasetIndex | str | os.PathLike[str]
Weights = Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]] | Literal["tokens"] | None
# Names of columns, or each with the value at EOS that are appended; None where none are.
Aligned = Sequence[str] | Mapping[str, float | None]
EXHAUSTED = ("raise", "redistribute")
PACKINGS = ("tokens", "rows")


class LoaderKeywords(TypedDict, total=False):
    """The fields of `LoaderOptions`, for type checkers: what ``**options`` may hold."""

    seq_len: Required[int]
    lanes: Required[int]
    weights: Weights
    exhausted: Literal["raise", "redistribute"]
    window: int | None
    seed: int
    shuffle: bool
    column: str | None
    eos_id: int | None
    packing: Literal["tokens", "rows"]
    pad_id: int | None
    vocab_size: int | None
    rank: int
    world_size: int
    uneven: bool
    overlap: int
    epochs: int | None
    tail: Literal["pad", "drop"]
    skip_batches: int
    budget_bytes: int
    threads: int | None
    processes: int | None
    requests: int | None
    retry_seconds: float
    dtype: DType
    storage_options: Mapping[str, Any] | None
    cache_dir: str | os.PathLike[str] | None
    index: IndexLike | None
    format: Literal["parquet", "arrow", "raw"] | None
    raw_dtype: DType | None
    aligned: Aligned
    follow: bool
    wait_seconds: float | str
    complete_after: float | str | None
    strict: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoaderOptions:
    """The arguments of a `ParquetLoader` but its source; `ParquetLoader` says what each is.

    Raises:
        ConfigError: a value that cannot work, whatever the dataset.
    """

    seq_len: int
    lanes: int
    weights: Weights = None
    exhausted: Literal["raise", "redistribute"] = "raise"
    window: int | None = None
    seed: int = 0
    shuffle: bool = True
    column: str | None = None
    eos_id: int | None = None
    packing: Literal["tokens", "rows"] = "tokens"
    pad_id: int | None = None
    vocab_size: int | None = None
    rank: int = 0
    world_size: int = 1
    uneven: bool = False
    overlap: int = 0
    epochs: int | None = None
    tail: Literal["pad", "drop"] = "pad"
    skip_batches: int = 0
    budget_bytes: int = 2 << 30
    threads: int | None = None
    processes: int | None = 0
    requests: int | None = None
    retry_seconds: float = RETRY_SECONDS
    dtype: DType = "int32"
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # may hold secrets
    cache_dir: str | os.PathLike[str] | None = None
    index: IndexLike | None = None
    format: Literal["parquet", "arrow", "raw"] | None = None
    raw_dtype: DType | None = None
    aligned: Aligned = ()
    follow: bool = False
    wait_seconds: float | str = 600.0
    complete_after: float | str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "seq_len": integer("seq_len", self.seq_len, 1, _MOST),
            "lanes": integer("lanes", self.lanes, 1, _MOST),
            "seed": integer("seed", self.seed, 0, 2**64 - 1),
            "shuffle": boolean("shuffle", self.shuffle),
            "world_size": integer("world_size", self.world_size, 1),
            "uneven": boolean("uneven", self.uneven),
            "strict": boolean("strict", self.strict),
            "follow": boolean("follow", self.follow),
            "overlap": integer("overlap", self.overlap, 0, 1),
            "budget_bytes": integer("budget_bytes", self.budget_bytes, 1),
            "processes": integer("processes", self.processes or 0, 0, _MOST_PROCESSES),
            "dtype": integer_dtype("dtype", self.dtype, "'int32' or 'int64'"),
            "format": file_format(self.format),
            "raw_dtype": raw_dtype_of(self.raw_dtype),
            "aligned": aligned_columns(self.aligned),
        }
        bounds = {
            "window": None,
            "vocab_size": None,
            "epochs": _MOST,
            "threads": _MOST_THREADS,
            "requests": _MOST_THREADS,
        }
        for name, bound in bounds.items():
            value = getattr(self, name)
            checked[name] = None if value is None else integer(name, value, 1, bound)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        rank = integer("rank", self.rank, 0, self.world_size - 1)
        skip_batches = integer("skip_batches", self.skip_batches, 0, 2**62 // (self.lanes * self.seq_len) - 1)
        eos_id = None if self.eos_id is None else integer("eos_id", self.eos_id, 0, self.bound - 1)
        pad_id = None if self.pad_id is None else padding_id(self.pad_id, self.bound)
        given = {"rank": rank, "skip_batches": skip_batches, "eos_id": eos_id, "pad_id": pad_id}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        if self.processes and os.name != "posix":
            raise ConfigError(f"processes={self.processes} needs the sockets of a Unix; use threads")
        check_packing(self.packing)
        if self.tail not in TAILS:
            raise ConfigError(f"tail must be 'pad' or 'drop', not {self.tail!r}")
        if self.exhausted not in EXHAUSTED:
            raise ConfigError(f"exhausted must be 'raise' or 'redistribute', not {self.exhausted!r}")
        seconds = self.retry_seconds
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds >= 0:
            raise ConfigError(f"retry_seconds must be a number of seconds, 0 or more, not {seconds!r}")
        seconds_of("wait_seconds", self.wait_seconds)
        if self.complete_after is not None:
            seconds_of("complete_after", self.complete_after)
        check_type("column", self.column, str, type(None))
        check_type("storage_options", self.storage_options, Mapping, type(None))
        check_type("cache_dir", self.cache_dir, str, os.PathLike, type(None))
        check_type("index", self.index, DatasetIndex, str, os.PathLike, type(None))
        check_world_size(self.world_size, self.lanes, self.uneven)

    def keywords(self, **changes: Any) -> dict[str, Any]:
        """The options as keyword arguments, some of them changed."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)} | changes

    @property
    def lanes_of_rank(self) -> int:
        """The rows of a batch of this rank."""
        first, last = lane_range(self.rank, self.world_size, self.lanes)
        return last - first

    @property
    def bound(self) -> int:
        """One past the largest token id allowed, by `dtype` and `vocab_size`."""
        most = int(np.iinfo(np.dtype(self.dtype)).max) + 1
        return most if self.vocab_size is None else min(most, self.vocab_size)


def options_of(given: Mapping[str, Any]) -> LoaderOptions:
    """The options that a loader is given by name.

    Raises:
        ConfigError: a value that cannot work, or an argument of sources of a mixture.
        TypeError: an argument that there is not.
    """
    if "fill" in given:
        raise ConfigError(
            f"fill={given['fill']!r} is for a source of a mixture that lacks a column: give it to that source, "
            "Component(..., fill=...)"
        )
    return LoaderOptions(**given)


def signature_with(own: inspect.Signature) -> inspect.Signature:
    """An ``__init__``'s signature for its class: ``**options`` are spelled out as the fields of `LoaderOptions`."""
    _, *parameters = (p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD)
    names = {parameter.name for parameter in parameters}
    for field_ in dataclasses.fields(LoaderOptions):
        if field_.name not in names:
            default = inspect.Parameter.empty if field_.default is dataclasses.MISSING else field_.default
            parameters.append(
                inspect.Parameter(field_.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field_.type)
            )
    return own.replace(parameters=parameters)


def file_format(value: object) -> str | None:
    """The value, if it names a format of files or is None."""
    if value is not None and value not in KINDS:
        raise ConfigError(f"format must be None or one of {', '.join(map(repr, KINDS))}, not {value!r}")
    return value


def all_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spare_cores() -> int:
    """Threads that may decode where it is worth it: as many as leave a core to the consumer, from 1 to 4."""
    # With none left over, a batch may have to wait for a core.
    return max(1, min(_MAX_DEFAULT_THREADS, all_cores() - 1))


def check_world_size(world_size: int, lanes: int, uneven: bool) -> None:
    """Refuse a number of ranks on which some would have no lane, or if it is not allowed, some more than others.

    Raises:
        ConfigError: says which numbers there might be.
    """
    if world_size > lanes:
        raise ConfigError(
            f"world_size {world_size} is more than lanes {lanes}: some ranks would get no row; "
            f"use at most {lanes} ranks, or more lanes (in a new run)"
        )
    if lanes % world_size and not uneven:
        fewer = next(size for size in range(world_size, 0, -1) if not lanes % size)
        more = next(size for size in range(world_size, lanes + 1) if not lanes % size)
        raise ConfigError(
            f"world_size {world_size} does not divide lanes {lanes}, so ranks would get unequal numbers of rows; "
            f"use {fewer} or {more} ranks, or allow it with uneven=True (--uneven on the command line) and weigh "
            "losses by batch.weight"
        )


def check_packing(packing: object) -> None:
    """Refuse what is no way of packing."""
    if packing not in PACKINGS:
        raise ConfigError(f"packing must be 'tokens' or 'rows', not {packing!r}")


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


def padding_id(value: object, bound: int) -> int:
    """The value, if it is an id below the bound."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < bound:
        return integer("pad_id", value, 0, bound - 1)
    raise ConfigError(
        f"pad_id must be an integer in [0, {bound - 1}], not {value!r}: it comes in rows as an id does, and models "
        "look it up; give an id that the vocabulary has, or a vocab_size that counts this one too"
    )


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(name: str, given: object) -> float:
    """The seconds of an option: a number of them, or text such as ``"6h"``.

    Raises:
        ConfigError: neither.
    """
    value = given
    if isinstance(value, str) and value[-1:] in _UNITS:
        with contextlib.suppress(ValueError):
            value = float(value[:-1]) * _UNITS[value[-1:]]
    endless = value == math.inf and name != "wait_seconds"
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0 or endless:
        raise ConfigError(
            f"{name} must be a number of seconds, 0 or more, or text such as '90s', '30m', '6h' or '2d', not {given!r}"
        )
    return float(value)


def boolean(name: str, value: object) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def aligned_columns(value: object) -> dict[str, float | None]:
    """The names of aligned columns, each with its value at EOS, or None.

    Raises:
        ConfigError: no names, or no numbers.
    """
    if isinstance(value, str) or not isinstance(value, (Sequence, Mapping)):
        raise ConfigError(f"aligned must be the names of columns, such as aligned=['labels'], not {value!r}")
    found = dict(value) if isinstance(value, Mapping) else dict.fromkeys(value)
    if len(found) < len(value):
        raise ConfigError(f"aligned={value!r} has a name twice")
    for name, at_eos in found.items():
        if not isinstance(name, str) or not isinstance(at_eos, (int, float, np.number, np.bool_, type(None))):
            raise ConfigError(
                f"aligned must be names of columns, or a mapping of each to its value at EOS, such as "
                f"aligned={{'labels': -100}}, not {value!r}"
            )
    return {name: at_eos.item() if isinstance(at_eos, np.generic) else at_eos for name, at_eos in found.items()}


def fill_values(value: object) -> dict[str, float | str]:
    """What goes where aligned columns are missing, by name: numbers, or ``"tokens"``.

    Raises:
        ConfigError: anything else.
    """
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and (each == "tokens" or isinstance(each, (int, float, np.number, np.bool_)))
        for name, each in value.items()
    ):
        raise ConfigError(
            "fill must be a mapping of aligned columns to a number, or 'tokens' for the tokens themselves, such as "
            f"fill={{'labels': 'tokens', 'loss_mask': 1}}, not {value!r}"
        )
    return {name: each.item() if isinstance(each, np.generic) else each for name, each in value.items()}


def check_type(name: str, value: object, *kinds: type) -> None:
    """Refuse a value of other types."""
    if not isinstance(value, kinds):
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{name} must be {wanted}, not {value!r}")
