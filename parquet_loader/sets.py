"""The sets of a loader: `Component`, one source of a mixture, and `OpenSet`, what its files turn out to be.

source ──► storage ──► index ──► order ──► EngineConfig        and the identity that a state keeps of it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from .checkpoint import ONLY, SetIdentity
from .engine.config import EngineConfig, group_elements
from .engine.planes import Plane, common_dtype, holds
from .engine.processes import check_storage
from .engine.rows import MOST_ROW_TOKENS, RowLayout
from .errors import ConfigError, DataError
from .formats.base import CODEC_NAMES, ColumnLayout
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
_FILES_OF_FILLS = 8  # that are looked at, for columns that a fill would hide
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
    column = part.column if part.column is not None else options.column
    eos_id = options.eos_id if part.eos_id == "loader" else part.eos_id
    packing = part.packing if part.packing is not None else options.packing
    pad_id = part.pad_id if part.pad_id is not None else options.pad_id
    if packing == "rows":
        if eos_id is not None and (part.eos_id != "loader" or part.packing is None):
            raise ConfigError(
                f"eos_id={eos_id} would be appended to documents, and packing='rows' leaves rows as they are stored, "
                "with the EOS that they hold; leave eos_id out (in a mixture a Component may have its own packing)"
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
    dtype, processes = np.dtype(options.dtype), options.processes
    threads = processes or options.threads or 0
    assert processes is not None
    storage_options = part.storage_options
    if storage_options is None and not (mixed and is_local(part.source)):  # a disk has none, and buckets beside it may
        storage_options = options.storage_options
    kind = part.format if part.format is not None else options.format
    storage = open_storage(part.source, storage_options, retry_seconds=options.retry_seconds, kind=kind)
    if processes:
        check_storage(storage, processes)
    aligned, fills = _aligned_of(part, options)
    raw_dtype = raw_dtype_of(part.raw_dtype if part.raw_dtype is not None else options.raw_dtype)
    follow = options.follow if part.follow is None else part.follow
    growth, complete = None, True
    read = _IndexReader(
        column=column,
        cache_dir=options.cache_dir,
        budget_bytes=options.budget_bytes,
        format=kind,
        raw_dtype=raw_dtype,
        aligned=tuple(aligned),
    )
    if not follow and (part.complete_after is not None or (not mixed and options.complete_after is not None)):
        raise ConfigError(
            WITHOUT_FOLLOW.format(options.complete_after if part.complete_after is None else part.complete_after)
        )
    if follow:
        if part.index is not None:
            raise ConfigError("follow=True looks at the files as they come, and index= is of those of an earlier time")
        complete_after = options.complete_after if part.complete_after is None else part.complete_after
        patience = Patience(
            wait_seconds=seconds_of("wait_seconds", options.wait_seconds),
            complete_after=None if complete_after is None else seconds_of("complete_after", complete_after),
        )
        growth = Follower(storage, kind, read, patience)
        index, complete = growth.known
    elif part.index is None:
        try:
            index = read(storage, None, None)
        except NoAlignedColumnError as error:
            unasked = sorted(set(part.fill or ()) - set(aligned_columns(options.aligned)))
            if not unasked:
                raise
            raise ConfigError(f"{error}; its fill has {unasked}, which nothing asks for") from error
    else:
        saved = None
        index = part.index  # type: ignore[assignment]  # a path is loaded on the next line
        if not isinstance(index, DatasetIndex):
            saved = os.fspath(index)
            index = DatasetIndex.load(index)
        if kind is not None and kind != index.format:
            raise ConfigError(
                f"format={kind!r}, and the index is of {index.format} files; build it of those that are meant"
            )
        index = _with_aligned(index, tuple(aligned))
        storage = PinnedStorage(storage, index, format_named(index.format), saved)
    # The loader's own is for those sources of a mixture that are raw.
    if raw_dtype is not None and (part.raw_dtype is not None or not mixed or index.format == "raw"):
        _check_raw_dtype(index, raw_dtype)
    if fills and index.format != "raw":
        _check_filled(index, storage, tuple(fills))
    if column is not None and index.column != column:
        raise ConfigError(f"the index is of column {index.column!r} and not {column!r}; build it for that column")
    _check_ids(index, options.bound)
    index.check_eos(eos_id)
    threads = threads or _worthwhile_threads(index)
    rows = None
    held_dtype = _held_dtype(
        index, dtype, options.bound, eos_id if pad_id is None else pad_id, by_statistics=not follow
    )
    appends_eos = eos_id is not None and not index.is_stream
    if packing == "rows":
        if index.is_stream:
            raise ConfigError(
                "packing='rows' needs rows that are told apart, and this set is a stream of ids; pack it by tokens"
            )
        if options.seq_len >= MOST_ROW_TOKENS:
            raise ConfigError(
                f"packing='rows' takes rows of fewer than {MOST_ROW_TOKENS:,} ids, not {options.seq_len:,}"
            )
        rows = RowLayout(seq_len=options.seq_len, overlap=options.overlap, pad_id=pad_id, ids=held_dtype)
        _check_rows(index, rows)
    group_tokens = group_elements(index, appends_eos=appends_eos, rows=rows)
    planes = [
        _plane(each, aligned[each.column], appends_eos=appends_eos, by_statistics=not follow) for each in index.aligned
    ]
    total = int(group_tokens.sum()) * (1 if rows is None else rows.width)
    if not total or (not appends_eos and not index.tokens.any()):
        shown = storage.identity.replace("\n", ", ")
        documents = int(index.rows.sum())
        why = f"all of its {documents:,} documents are" if documents else f"its {len(index.files):,} files are"
        raise ConfigError(f"{shown} holds no token: {why} empty")
    window = part.window if part.window is not None else options.window
    chosen = window
    if chosen is None:
        wanted = _MIXED_TOKENS if mixed else _ALONE_TOKENS
        groups = len(index)
        if follow:  # by what it begins with alone: every loader of the set is to choose the same, and soon
            wanted = _FOLLOWED_TOKENS
            with_tokens = int(index.file[int((group_tokens > 0).argmax())])
            groups = index.groups_of(with_tokens).stop
        held = int(group_tokens[:groups].sum()) * (1 if rows is None else rows.width)
        chosen = max(1, round(wanted * groups / held))
    first, last = lane_range(options.rank, options.world_size, options.lanes)
    opened = OpenSet(
        config=EngineConfig(
            index=index,
            format=format_named(index.format),
            storage=storage,
            order=Order(
                group_tokens=group_tokens,
                lanes=options.lanes,
                window=chosen,
                seed=options.seed,
                shuffle=options.shuffle,
                row_tokens=0 if rows is None else rows.seq_len,
                stored_first=follow,
            ),
            first=first,
            last=last,
            dtype=dtype,
            held_dtype=held_dtype,
            bound=min(options.bound, int(np.iinfo(held_dtype).max) + 1),
            eos_id=eos_id,
            threads=threads,
            requests=options.requests or (_REMOTE_REQUESTS if storage.is_remote else threads),
            budget_bytes=options.budget_bytes,
            processes=processes,
            epochs=options.epochs,
            aligned=tuple(replace(plane, rows=_rows_of(plane, rows)) for plane in planes),
            fills=fills,
            rows=rows,
            growth=None if complete else growth,
        ),
        window_given=window is not None,
        max_epochs=part.max_epochs,
    )
    if not complete:
        read.first = opened.config
    return opened


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
            return index_storage(storage, listed=files, **self._options)
        given = {**self._options, "column": before.column, "format": before.format}
        index = index_storage(storage, listed=files, **given)
        if self.first is not None:
            _check_arrived(index, self.first)
        return index


def _check_arrived(index: DatasetIndex, first: EngineConfig) -> None:
    """Refuse files that have come to a set and are not like those that it began with, as a loader would at its start.

    Raises:
        ConfigError, DataError: names what is not.
    """
    _check_ids(index, first.bound)
    if first.rows is not None:
        _check_rows(index, first.rows)
    for each, plane in zip(index.aligned, first.aligned, strict=True):
        for place, layout in enumerate(each.layouts):
            if _holds_values(layout) and layout.value_dtype != plane.dtype:
                file = index.files[int((each.file_layout == place).argmax())].path
                raise ConfigError(
                    f"{file} has {layout.value_dtype} in the aligned column {plane.column!r}, and the files before it "
                    f"have {plane.dtype}: write it with the same type, or make it another source of a mixture"
                )


def _holds_values(layout: ColumnLayout) -> bool:
    return bool(layout.max_definition_level or layout.kind)


def _packed(count: int, rows: RowLayout) -> dict[str, Any]:
    """What an identity has of a set that is packed by rows."""
    return {"packing": "rows", "rows": count, "seq_len": rows.seq_len, "overlap": rows.overlap}


def _check_rows(index: DatasetIndex, rows: RowLayout) -> None:
    """Refuse row groups of which the footers show that some rows are too long, or too short without a pad_id."""
    room = index.rows * rows.width
    wrong = (index.tokens > room) if rows.pad_id is not None else (index.tokens != room)
    if not wrong.any():
        return
    chunk = index.chunk(int(wrong.argmax()))
    lengths = f"rows of {rows.width:,} (seq_len {rows.seq_len:,}{' and overlap 1' if rows.overlap else ''})"
    if chunk.tokens < chunk.rows * rows.width:
        cure = "give a pad_id to have shorter rows filled up"
    else:
        cure = "give the seq_len and overlap that the rows were packed for"
    others = f"; {int(wrong.sum()) - 1:,} more row groups are like that" if wrong.sum() > 1 else ""
    raise chunk.error(
        f"holds {chunk.tokens:,} ids in {chunk.rows:,} rows, and packing='rows' takes {lengths}: {cure}, or pack by "
        f"tokens{others}"
    )


def _rows_of(plane: Plane, rows: RowLayout | None) -> RowLayout | None:
    """What the rows of an aligned column are, which has 0 in padding."""
    if rows is None:
        return None
    return replace(rows, ids=plane.held_dtype, pad_id=None if rows.pad_id is None else 0)


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


def _check_filled(index: DatasetIndex, storage: Storage, names: tuple[str, ...]) -> None:
    """Refuse what would go in the place of columns that are there, by some of the files: an index tells nothing of
    columns that nobody asked for, and to read all footers again would take too long.
    """
    reader = format_named(index.format).reader(storage, index.files, None)
    places = np.unique(np.linspace(0, len(index.files) - 1, _FILES_OF_FILLS).astype(int))
    files = [index.files[place] for place in places]
    with ThreadPoolExecutor(len(files), thread_name_prefix="parquet-fills") as pool:
        entries = list(pool.map(lambda file: reader.read(file, index.column, None, names), files))
    for file, entry in zip(files, entries, strict=True):
        for name in names:
            if name in entry.columns:
                raise ConfigError(
                    f"fill has {name!r}, and {file.path} has that column, whose values would be lost: leave it out of "
                    "fill, or write the files without it"
                )


def _with_aligned(index: DatasetIndex, names: tuple[str, ...]) -> DatasetIndex:
    """An index that was given, with the aligned columns that are asked for and no others."""
    there = {each.column: each for each in index.aligned}
    missing = [name for name in names if name not in there]
    if missing:
        raise ConfigError(
            f"the index has no aligned column {missing[0]!r}: build it with build_index(source, "
            f"column={index.column!r}, aligned={list(names)!r})"
        )
    return index if tuple(there) == names else replace(index, aligned=tuple(there[name] for name in names))


def _plane(index: DatasetIndex, at_eos: float | None, *, appends_eos: bool, by_statistics: bool = True) -> Plane:
    """What an engine needs to know of an aligned column: integers are held as narrow as the statistics promise, where
    they are of all files.
    """
    name = index.column
    holding = [layout.value_dtype for layout in index.layouts if _holds_values(layout)]
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
    )


def _worthwhile_threads(index: DatasetIndex) -> int:
    """Several only where decompression, which needs no Python, is most of the work: of zstd, gzip, brotli."""
    file_format = format_named(index.format)
    slow = np.array([file_format.slow_to_unpack(codec) for codec in CODEC_NAMES])[index.codec]
    return spare_cores() if 2 * int(index.length[slow].sum()) > int(index.length.sum()) else 1


def _check_raw_dtype(index: DatasetIndex, raw_dtype: np.dtype[np.integer]) -> None:
    """Refuse a type of raw ids that the set has no use for, or another than it has."""
    if index.format != "raw":
        raise ConfigError(f"raw_dtype={raw_dtype.name!r} is for raw files, and these are {index.format}: leave it out")
    stored = {layout.dtype.name for layout in index.layouts}
    if stored - {raw_dtype.name}:
        raise ConfigError(
            f"raw_dtype={raw_dtype.name!r}, and the index is of ids stored as {', '.join(sorted(stored))}"
        )


def _held_dtype(
    index: DatasetIndex,
    dtype: np.dtype[np.integer],
    bound: int,
    added_id: int | None,
    *,
    by_statistics: bool = True,
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


def _check_ids(index: DatasetIndex, bound: int) -> None:
    """Refuse ids that the footers' statistics show to be out of range, before a byte of data is read."""
    wrong = np.flatnonzero((index.max_id >= bound) | (index.min_id < 0))
    if not len(wrong):
        return
    group = int(wrong[0])
    chunk = index.chunk(group)
    number = int(index.min_id[group]) if index.min_id[group] < 0 else int(index.max_id[group])
    others = f", and {len(wrong) - 1:,} more row groups have such" if len(wrong) > 1 else ""
    raise DataError(
        f"has token id {number} by its statistics, outside [0, {bound}){others}; check vocab_size, dtype and the "
        "tokenizer that wrote the files",
        path=chunk.path,
        row_group=chunk.row_group,
        column=index.column,
    )
