"""The sets of a loader: `Component`, one source of a mixture, and `OpenSet`, what its files turn out to be.

source, options ──► what holds for it ──► storage ──► index ──► EngineConfig      and the identity that a state keeps
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from .blocks import IntArray
from .checkpoint import ONLY, SetIdentity
from .checks import (
    check_arrived,
    check_filled,
    check_ids,
    check_not_empty,
    check_raw_dtype,
    check_rows,
    with_aligned,
)
from .engine.config import EngineConfig, group_elements
from .engine.planes import held_dtype, plane_of
from .engine.processes import check_storage
from .engine.rows import MOST_ROW_TOKENS, RowLayout
from .errors import ConfigError
from .formats.base import CODEC_NAMES
from .formats.known import format_named
from .index.build import NoAlignedColumnError, index_storage, raw_dtype_of
from .index.follow import Follower, Patience
from .index.index import DatasetIndex
from .index.pinned import PinnedStorage
from .index.prefix import PrefixChain
from .options import (
    Aligned,
    DType,
    IndexLike,
    LoaderOptions,
    aligned_columns,
    boolean,
    check_packing,
    check_type,
    file_format,
    fill_values,
    integer,
    padding_id,
    seconds_of,
    spare_cores,
)
from .order.order import Order, lane_range
from .storage.base import FileInfo, Storage
from .storage.opening import Source, is_local, open_storage
from .storage.secrets import redact

__all__ = ["WITHOUT_FOLLOW", "Component", "OpenSet", "open_set"]

_REMOTE_REQUESTS = 16  # a request takes tens of milliseconds, whatever the network could carry meanwhile
# What `window=None` aims at: a window of a set alone, and of each source of a mixture, all of which are held together.
_ALONE_TOKENS = 64_000_000
_MIXED_TOKENS = 16_000_000
WITHOUT_FOLLOW = (
    "complete_after={!r} tells when a set that is followed counts as complete: give follow=True too, or leave it out"
)
_FOLLOWED_TOKENS = 4_000_000  # of a set that is followed: the first batch waits for the first window


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class Component:
    """One source of a mixture, where there is more to say than where it lies.

    What is None is as for the whole loader.

    Attributes:
        source: a folder, a file, a glob, a list of them; local or any fsspec URL. The one argument without a name.
        column: the token column.
        eos_id: of this source, see `ParquetLoader`; None for nothing; ``"loader"`` for what the loader has, or
            for nothing where ``packing="rows"`` is given here.
        packing, pad_id: ``"rows"`` where its rows are packed already, and what shorter ones are filled up with.
        max_epochs: how often it may be read; None for no end. See ``exhausted`` of `ParquetLoader`.
        window: row groups that are shuffled together.
        storage_options: for the fsspec filesystem of a URL.
        index: a `DatasetIndex` of it, or the path of a saved one.
        format, raw_dtype: see `ParquetLoader`.
        aligned: the columns that go with the tokens, and their values at EOS; see `ParquetLoader`. Batches have what
            the loader and all sources name.
        follow, complete_after: see `ParquetLoader`.
        fill: what goes where this source has no such column, by name: a number, or ``"tokens"`` for the tokens
            themselves. Where files have it, that is an error, which some of them are looked at for; names that nothing
            asks for are none.

    Raises:
        ConfigError: a value that cannot work.
    """

    source: Source
    column: str | None = None
    eos_id: int | Literal["loader"] | None = "loader"
    packing: Literal["tokens", "rows"] | None = None
    pad_id: int | None = None
    max_epochs: int | None = None
    window: int | None = None
    storage_options: Mapping[str, Any] | None = None
    index: IndexLike | None = None
    format: Literal["parquet", "arrow", "raw"] | None = None
    raw_dtype: DType | None = None
    aligned: Aligned | None = None
    fill: Mapping[str, float | str] | None = None
    follow: bool | None = None
    complete_after: float | str | None = None

    def __init__(
        self,
        source: Source,
        *,
        column: str | None = None,
        eos_id: int | Literal["loader"] | None = "loader",
        packing: Literal["tokens", "rows"] | None = None,
        pad_id: int | None = None,
        max_epochs: int | None = None,
        window: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        index: IndexLike | None = None,
        format: Literal["parquet", "arrow", "raw"] | None = None,
        raw_dtype: DType | None = None,
        aligned: Aligned | None = None,
        fill: Mapping[str, float | str] | None = None,
        follow: bool | None = None,
        complete_after: float | str | None = None,
    ) -> None:
        if eos_id is not None and eos_id != "loader":
            eos_id = integer("eos_id", eos_id, 0)
        values = {
            "source": source,
            "column": column,
            "eos_id": eos_id,
            "packing": packing,
            "pad_id": None if pad_id is None else integer("pad_id", pad_id, 0),
            "max_epochs": None if max_epochs is None else integer("max_epochs", max_epochs, 1),
            "window": None if window is None else integer("window", window, 1),
            "storage_options": storage_options,
            "index": index,
            "format": file_format(format),
            "raw_dtype": raw_dtype_of(raw_dtype),
            "aligned": None if aligned is None else aligned_columns(aligned),
            "fill": None if fill is None else fill_values(fill),
            "follow": None if follow is None else boolean("follow", follow),
            "complete_after": complete_after,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if packing is not None:
            check_packing(packing)
        if complete_after is not None:
            seconds_of("complete_after", complete_after)
        check_type("column", column, str, type(None))
        check_type("storage_options", storage_options, Mapping, type(None))
        check_type("index", index, DatasetIndex, str, os.PathLike, type(None))

    def __repr__(self) -> str:
        several = isinstance(self.source, (list, tuple))
        shown = [redact(str(each)) for each in self.source] if several else redact(str(self.source))  # type: ignore[union-attr]
        given = [repr(shown)]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "source" and value != each.default:  # options of a filesystem may be secrets
                given.append(f"{each.name}={'...' if each.name == 'storage_options' else repr(value)}")
        return f"Component({', '.join(given)})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenSet:
    """A set that has been looked at.

    Attributes:
        config: what an engine needs of it.
        window_given: whether its window was asked for, and not chosen here.
        max_epochs: how often it may be read; None for no end.
        chain: of its row groups.
    """

    config: EngineConfig
    window_given: bool
    max_epochs: int | None = None
    chain: PrefixChain = field(default_factory=PrefixChain)

    @property
    def identity(self) -> SetIdentity:
        """What a state keeps of it, wherever the run is, if it has begun with any row groups of the set."""
        index, order = self.config.index, self.config.order
        return self._identity(index.fingerprint, len(index.files), len(index), order.total)

    def _identity(
        self, fingerprint: str, files: int, row_groups: int, elements: int, **first_epoch: Any
    ) -> SetIdentity:
        order, rows = self.config.order, self.config.rows
        return SetIdentity(
            fingerprint=fingerprint,
            files=files,
            row_groups=row_groups,
            tokens=elements,
            column=self.config.index.column,
            window=order.window,
            eos_id=self.config.eos_id,
            shuffle=order.shuffle,
            **({} if rows is None else _packed(elements, rows)),
            **first_epoch,
        )

    def _begin(self, groups: int, *, whole: bool) -> SetIdentity:
        """Of a set of which epoch 0 is as it is stored, what a state keeps of the first row groups."""
        index, order = self.config.index, self.config.order
        elements, files = (int(order.ends[groups - 1]), int(index.file[groups - 1]) + 1) if groups else (0, 0)
        return self._identity(self.chain.at(index, groups), files, groups, elements, first_epoch="stored", whole=whole)

    def identity_at(self, position: int) -> SetIdentity:
        """What a state keeps of it at a position, up to which it is known."""
        order = self.config.order
        if not order.stored_first:
            return self.identity
        groups = order.begun_groups(position)
        # A window that is short is the last one, and so is the one before those of epoch 1.
        whole = groups > 0 and (groups % order.window > 0 or order.is_beyond(position, groups))
        return self._begin(groups, whole=whole)

    def identity_for(self, found: Mapping[str, Any]) -> SetIdentity:
        """What a state would have to keep of it for being of it as what is found there."""
        opened, groups = self.as_in(found), found.get("row_groups")
        if not opened.config.order.stored_first:
            return opened.identity
        there, whole = len(opened.config.index), found.get("whole") is True
        if type(groups) is not int or not 0 <= groups <= there or whole:
            groups = there
        return opened._begin(groups, whole=whole)

    def differences(self, found: Mapping[str, Any], name: str = ONLY) -> list[str]:
        """What a state says otherwise of it, a clause each."""
        return self.identity_for(found).differences(found, name)

    def grown(self) -> OpenSet:
        """As much of it as is known by now."""
        now = self.config.now
        return self if now is self.config else replace(self, config=now)

    def come_to(self, found: Mapping[str, Any], closed: Callable[[], bool]) -> OpenSet:
        """As much of it as a state tells of, which is waited for; of the whole set, if there is more, it never is."""
        growth, groups, whole = self.config.growth, found.get("row_groups"), found.get("whole") is True
        if growth is None or type(groups) is not int or found.get("first_epoch") != "stored":
            return self
        growth.until(
            lambda: growth.known[1] or len(growth.known[0]) >= groups + whole,
            closed=closed,
        )
        return self.grown()

    @property
    def limit(self) -> int:
        """The tokens per lane that it may give in a mixture, overlap included; only where there are `max_epochs`."""
        assert self.max_epochs is not None
        order, rows = self.config.order, self.config.rows
        return self.max_epochs * order.total // order.lanes * order.unit + (rows.overlap if rows is not None else 0)

    def as_in(self, found: Mapping[str, Any]) -> OpenSet:
        """The set with the window that a state has of it, if none was asked for here; and with epoch 0 as it has it."""
        order, window = self.config.order, found.get("window")
        if not self.window_given and type(window) is int and window > 0:
            order = replace(order, window=window)
        if found.get("first_epoch") == "stored" and not order.stored_first:
            order = replace(order, stored_first=True)
        return self if order is self.config.order else replace(self, config=replace(self.config, order=order))

    def matches(self, found: Mapping[str, Any]) -> bool:
        """Whether it is the set that a state tells of."""
        return not self.differences(found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """What holds for one source: what it says itself, and for the rest what the loader says.

    Attributes:
        eos_id, pad_id: None where its packing has none.
        packs_rows: whether its rows are packed already.
        is_raw: whether `raw_dtype` says that it is raw; of a mixture, the loader's is for those sources that are.
        aligned: its aligned columns, each with its value at EOS.
        fills: what goes in the place of others.
        unasked: names of fills that nothing asks for.
        patience: of a set that is followed; None for one that is not.
    """

    source: Source
    storage_options: Mapping[str, Any] | None
    format: str | None
    raw_dtype: np.dtype[np.integer] | None
    is_raw: bool
    index: IndexLike | None
    column: str | None
    aligned: dict[str, float | None]
    fills: dict[str, float | str]
    unasked: list[str]
    eos_id: int | None
    packs_rows: bool
    pad_id: int | None
    window: int | None
    max_epochs: int | None
    patience: Patience | None


def open_set(source: Source | Component, options: LoaderOptions, *, mixed: bool) -> OpenSet:
    """Look at a set.

    Args:
        source: where it lies, and what is particular about it.
        options: of the loader.
        mixed: whether it is one source of several.

    Raises:
        ConfigError, StorageError, DataError: as `ParquetLoader`.
    """
    part = source if isinstance(source, Component) else Component(source, index=None if mixed else options.index)
    asked = _asked(part, options, mixed=mixed)
    storage = open_storage(
        asked.source,
        asked.storage_options,
        retry_seconds=options.retry_seconds,
        kind=asked.format,
        may_come=asked.patience is not None,
    )
    if options.processes:
        check_storage(storage, options.processes)
    read = _IndexReader(
        column=asked.column,
        cache_dir=options.cache_dir,
        budget_bytes=options.budget_bytes,
        format=asked.format,
        raw_dtype=asked.raw_dtype,
        aligned=tuple(asked.aligned),
    )
    growth = None
    if asked.patience is not None:
        follower = Follower(storage, asked.format, read, asked.patience)
        index, complete = follower.known
        growth = None if complete else follower
    elif asked.index is not None:
        index, storage = _saved(asked.index, storage, asked)
    else:
        index = _read(read, storage, asked)
    _check(index, storage, asked, options)
    config = _config(index, storage, asked, options, mixed=mixed, growth=growth)
    if growth is not None:
        read.first = config
    return OpenSet(config=config, window_given=asked.window is not None, max_epochs=asked.max_epochs)


def _asked(part: Component, options: LoaderOptions, *, mixed: bool) -> _Asked:
    """What holds for a source.

    Raises:
        ConfigError: values that do not go together.
    """
    eos_id, packs_rows, pad_id = _packing(part, options, mixed=mixed)
    storage_options = part.storage_options
    if storage_options is None and not (mixed and is_local(part.source)):  # a disk has none, and buckets beside it may
        storage_options = options.storage_options
    raw_dtype = raw_dtype_of(part.raw_dtype if part.raw_dtype is not None else options.raw_dtype)
    aligned, fills = _aligned_of(part, options)
    return _Asked(
        source=part.source,
        storage_options=storage_options,
        format=part.format if part.format is not None else options.format,
        raw_dtype=raw_dtype,
        is_raw=raw_dtype is not None and (part.raw_dtype is not None or not mixed),
        index=part.index,
        column=part.column if part.column is not None else options.column,
        aligned=aligned,
        fills=fills,
        unasked=sorted(set(part.fill or ()) - set(aligned_columns(options.aligned))),
        eos_id=eos_id,
        packs_rows=packs_rows,
        pad_id=pad_id,
        window=part.window if part.window is not None else options.window,
        max_epochs=part.max_epochs,
        patience=_patience(part, options, mixed=mixed),
    )


def _packing(part: Component, options: LoaderOptions, *, mixed: bool) -> tuple[int | None, bool, int | None]:
    """What ends its documents, whether its rows are packed already, and what fills up those that are short."""
    eos_id = options.eos_id if part.eos_id == "loader" else part.eos_id
    pad_id = part.pad_id if part.pad_id is not None else options.pad_id
    packs_rows = (part.packing if part.packing is not None else options.packing) == "rows"
    if packs_rows:
        if eos_id is not None and (part.eos_id != "loader" or part.packing is None):
            raise ConfigError(
                f"eos_id={eos_id} would be appended to documents, and packing='rows' leaves rows as they are stored, "
                "with the EOS that they hold; leave eos_id out (in a mixture a Component may have its own packing)"
            )
        if options.seq_len >= MOST_ROW_TOKENS:
            raise ConfigError(
                f"packing='rows' takes rows of fewer than {MOST_ROW_TOKENS:,} ids, not {options.seq_len:,}"
            )
        eos_id = None
    elif pad_id is not None and (part.pad_id is not None or not mixed):
        raise ConfigError(f"pad_id={pad_id} fills up rows that are packed already; give packing='rows' too")
    else:
        pad_id = None
    if pad_id is not None:
        padding_id(pad_id, options.bound)
    if eos_id is not None and eos_id >= options.bound:
        raise ConfigError(f"eos_id must be an integer in [0, {options.bound - 1}], not {eos_id!r}")
    return eos_id, packs_rows, pad_id


def _patience(part: Component, options: LoaderOptions, *, mixed: bool) -> Patience | None:
    """How long the set is waited for, if it is followed."""
    complete_after = options.complete_after if part.complete_after is None else part.complete_after
    if not (options.follow if part.follow is None else part.follow):
        # In a mixture, the loader's is for those sources that are followed.
        if complete_after is not None and (part.complete_after is not None or not mixed):
            raise ConfigError(WITHOUT_FOLLOW.format(complete_after))
        return None
    if part.index is not None:
        raise ConfigError("follow=True looks at the files as they come, and index= is of those of an earlier time")
    return Patience(
        wait_seconds=seconds_of("wait_seconds", options.wait_seconds),
        complete_after=None if complete_after is None else seconds_of("complete_after", complete_after),
    )


def _read(read: _IndexReader, storage: Storage, asked: _Asked) -> DatasetIndex:
    """The index of a set that is complete."""
    try:
        return read(storage, None, None)
    except NoAlignedColumnError as error:
        if not asked.unasked:
            raise
        raise ConfigError(f"{error}; its fill has {asked.unasked}, which nothing asks for") from error


def _saved(index: IndexLike, storage: Storage, asked: _Asked) -> tuple[DatasetIndex, PinnedStorage]:
    """An index that was given, and the storage with its files as they are here."""
    saved = None
    if not isinstance(index, DatasetIndex):
        saved = os.fspath(index)
        index = DatasetIndex.load(index)
    if asked.format is not None and asked.format != index.format:
        raise ConfigError(
            f"format={asked.format!r}, and the index is of {index.format} files; build it of those that are meant"
        )
    index = with_aligned(index, tuple(asked.aligned))
    return index, PinnedStorage(storage, index, format_named(index.format), saved)


def _check(index: DatasetIndex, storage: Storage, asked: _Asked, options: LoaderOptions) -> None:
    """Refuse a set that is not what is asked for."""
    if asked.raw_dtype is not None and (asked.is_raw or index.format == "raw"):
        check_raw_dtype(index, asked.raw_dtype)
    if asked.fills and index.format != "raw":
        check_filled(index, storage, tuple(asked.fills))
    if asked.column is not None and index.column != asked.column:
        raise ConfigError(f"the index is of column {index.column!r} and not {asked.column!r}; build it for that column")
    check_ids(index, options.bound)
    index.check_eos(asked.eos_id)
    if asked.packs_rows and index.is_stream:
        raise ConfigError(
            "packing='rows' needs rows that are told apart, and this set is a stream of ids; pack it by tokens"
        )
    check_not_empty(index, appends_eos=index.takes_eos(asked.eos_id), shown=storage.identity.replace("\n", ", "))


def _config(
    index: DatasetIndex,
    storage: Storage,
    asked: _Asked,
    options: LoaderOptions,
    *,
    mixed: bool,
    growth: Follower | None,
) -> EngineConfig:
    """What an engine needs of a set."""
    follows = asked.patience is not None
    dtype, appends_eos = np.dtype(options.dtype), index.takes_eos(asked.eos_id)
    added_id = asked.eos_id if asked.pad_id is None else asked.pad_id
    held = held_dtype(index, dtype, options.bound, added_id, by_statistics=not follows)
    rows = None
    if asked.packs_rows:
        rows = RowLayout(seq_len=options.seq_len, overlap=options.overlap, pad_id=asked.pad_id, ids=held)
        check_rows(index, rows)
    elements = group_elements(index, appends_eos=appends_eos, rows=rows)
    order = Order(
        group_tokens=elements,
        lanes=options.lanes,
        window=asked.window or _window(index, elements if rows is None else elements * rows.width, follows, mixed),
        seed=options.seed,
        shuffle=options.shuffle,
        row_tokens=0 if rows is None else rows.seq_len,
        stored_first=follows,
    )
    first, last = lane_range(options.rank, options.world_size, options.lanes)
    threads = options.processes or options.threads or _worthwhile_threads(index)
    return EngineConfig(
        index=index,
        format=format_named(index.format),
        storage=storage,
        order=order,
        first=first,
        last=last,
        dtype=dtype,
        held_dtype=held,
        bound=min(options.bound, int(np.iinfo(held).max) + 1),
        eos_id=asked.eos_id,
        threads=threads,
        requests=options.requests or (_REMOTE_REQUESTS if storage.is_remote else threads),
        budget_bytes=options.budget_bytes,
        processes=options.processes or 0,
        epochs=options.epochs,
        aligned=tuple(
            plane_of(each, asked.aligned[each.column], appends_eos=appends_eos, by_statistics=not follows, rows=rows)
            for each in index.aligned
        ),
        fills=asked.fills,
        rows=rows,
        growth=growth,
    )


def _window(index: DatasetIndex, tokens: IntArray, follows: bool, mixed: bool) -> int:
    """As many row groups as hold about as many tokens as a window is to have."""
    wanted, groups = _MIXED_TOKENS if mixed else _ALONE_TOKENS, len(index)
    if follows:  # by what it begins with alone: every loader of the set is to choose the same, and soon
        wanted = _FOLLOWED_TOKENS
        groups = index.groups_of(int(index.file[int((tokens > 0).argmax())])).stop
    return max(1, round(wanted * groups / int(tokens[:groups].sum())))


class _IndexReader:
    """Makes the index of a set, again and again while it grows.

    Args:
        options: of `index_storage`.

    Attributes:
        first: what the set turned out to be, which files that come later must be too.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.first: EngineConfig | None = None

    def __call__(self, storage: Storage, files: list[FileInfo] | None, before: DatasetIndex | None) -> DatasetIndex:
        if before is None:
            return index_storage(storage, listed=files, growing=files is not None, **self._options)
        given = {**self._options, "growing": True, "column": before.column, "format": before.format}
        index = index_storage(storage, listed=files, **given)
        if self.first is not None:
            check_arrived(index, self.first)
        return index


def _packed(count: int, rows: RowLayout) -> dict[str, Any]:
    """What an identity has of a set that is packed by rows."""
    return {"packing": "rows", "rows": count, "seq_len": rows.seq_len, "overlap": rows.overlap}


def _aligned_of(part: Component, options: LoaderOptions) -> tuple[dict[str, float | None], dict[str, float | str]]:
    """Of what goes with the tokens in batches, the columns that a source has, with their values at EOS; and what goes
    in the place of the others.
    """
    asked = aligned_columns(options.aligned)
    fills = {name: fill for name, fill in fill_values(part.fill or {}).items() if name in asked}
    own = asked if part.aligned is None else aligned_columns(part.aligned)
    for name in asked:
        if name not in own and name not in fills:
            raise ConfigError(
                f"aligned={list(own)} leaves out {name!r}, which batches have: name it too, or say what goes there, "
                f"fill={{{name!r}: 0}}, or 'tokens' for the tokens themselves"
            )
    at_eos = {name: asked.get(name) if value is None else value for name, value in own.items()}
    return {name: value for name, value in at_eos.items() if name not in fills}, fills


def _worthwhile_threads(index: DatasetIndex) -> int:
    """Several only where decompression, which needs no Python, is most of the work: of zstd, gzip, brotli."""
    file_format = format_named(index.format)
    slow = np.array([file_format.slow_to_unpack(codec) for codec in CODEC_NAMES])[index.codec]
    return spare_cores() if 2 * int(index.length[slow].sum()) > int(index.length.sum()) else 1
