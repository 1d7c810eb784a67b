"""What stands in the files of some documents: their tokens, and other columns, such as a ``url`` or an ``id``, that lie
beside them or in a neighbouring file.

    place                                row of its file    read of other columns
    ("a.parquet", row group 1, doc 3)    1,003              the chunks of `url` of the row group that holds row 1,003

A row is counted from the file's beginning, so that a neighbouring file may be cut into row groups in another way.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..batch import Piece
from ..blocks import TokenArray
from ..checkpoint import ONLY
from ..engine.config import EngineConfig
from ..errors import ConfigError, DataError
from ..index.index import DatasetIndex
from ..runs import MixtureRun, SetRun
from ..storage.base import FileInfo, Storage
from ..storage.opening import Source, open_storage
from .rows import Rows, open_rows
from .trace import group_of

if TYPE_CHECKING:
    from ..pretokenize.tokenizers.base import Tokenizer

__all__ = ["Description", "Place", "columns_of", "describe_pieces", "tokens_of"]

Place = tuple[str, int, int]  # file, row group in it, document in that


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Description:
    """What a stretch of a document holds.

    Attributes:
        tokens: its ids, an EOS that the loader appends included, shape ``(tokens,)``.
        ends: whether the document ends with it.
        text: what it says; None where no tokenizer was given.
        columns: other columns of its document, as JSON has values.
    """

    tokens: TokenArray
    ends: bool
    text: str | None
    columns: dict[str, Any]


def describe_pieces(
    run: SetRun | MixtureRun,
    pieces: Sequence[Piece],
    *,
    tokenizer: Tokenizer | None = None,
    columns: Sequence[str] = (),
    columns_from: Source | Mapping[str, Source] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Description]:
    """What pieces of a run's rows hold.

    Args:
        run: that they are of.
        pieces: as `which` gives them.
        tokenizer: see `open_tokenizer`; None for no text.
        columns, columns_from, storage_options: see `columns_of`. Of a mixture ``columns_from`` is by source, and those
            that it does not name have theirs in their own files.

    Returns:
        One for each piece, in order.

    Raises:
        ConfigError, DataError, StorageError: see `tokens_of` and `columns_of`.
    """
    if columns_from is not None and isinstance(run, MixtureRun) != isinstance(columns_from, Mapping):
        wanted = "a dict of folders by source, for a mixture" if isinstance(run, MixtureRun) else "one folder"
        raise ConfigError(f"columns_from must be {wanted}")
    found: list[Description | None] = [None] * len(pieces)
    there: set[str] = set()
    lacking: dict[str, ConfigError] = {}
    for source in {piece.source for piece in pieces}:
        config = run.config_of(source or ONLY)
        here = [at for at, piece in enumerate(pieces) if piece.source == source]
        some = [pieces[at] for at in here]
        values: list[dict[str, Any]] = [{} for _ in some]
        if columns:
            beside = columns_from.get(source or "") if isinstance(columns_from, Mapping) else columns_from
            places = [(piece.file, piece.row_group, piece.document) for piece in some]
            values, of_source, not_of_source = _columns_there(
                config.storage,
                config.index,
                places,
                columns,
                columns_from=beside,
                storage_options=storage_options if beside is not None else None,
            )
            lacking |= not_of_source
            there |= of_source
        for at, (tokens, ends), value in zip(here, tokens_of(config, some), values, strict=True):
            text = None if tokenizer is None else tokenizer.decode(tokens.tolist())
            found[at] = Description(tokens=tokens, ends=ends, text=text, columns=value)
    _check_there(columns if pieces else (), there, lacking)
    return [each for each in found if each is not None]


def tokens_of(config: EngineConfig, pieces: Sequence[Piece]) -> list[tuple[TokenArray, bool]]:
    """The ids of stretches of documents, as a loader gives them, and whether the document ends with each.

    Each row group concerned is read and decoded once.

    Raises:
        ConfigError: no such document, or not so many tokens.
        StorageError, DataError: a row group cannot be read, or is not what the index says.
    """
    index = config.index
    wanted: dict[int, list[int]] = defaultdict(list)
    for at, piece in enumerate(pieces):
        wanted[_group_of(index, (piece.file, piece.row_group, piece.document))].append(at)
    found: list[tuple[TokenArray, bool] | None] = [None] * len(pieces)

    def read(group: int) -> None:
        _, opened = index.open(config.storage, index.chunk(group))
        parts = list(opened.parts(dtype=config.held_dtype, bound=config.bound, eos_id=config.eos_id))
        tokens = np.concatenate([part.tokens for part in parts])
        borders = np.concatenate([*(part.begin + part.starts for part in parts), [len(tokens)]])
        for at in wanted[group]:
            piece = pieces[at]
            if piece.document >= len(borders) - 1:
                raise ConfigError(
                    f"there is no document {piece.document} in row group {piece.row_group} of {piece.file}: "
                    f"{len(borders) - 1:,} documents in that row group"
                )
            begin, end = borders[piece.document : piece.document + 2].tolist()
            first = begin + piece.start
            if not begin <= first <= first + piece.tokens <= end:
                raise ConfigError(
                    f"document {piece.document} in row group {piece.row_group} of {piece.file} has {end - begin:,} "
                    f"tokens: there are no {piece.tokens:,} from token {piece.start:,} on"
                )
            found[at] = tokens[first : first + piece.tokens].copy(), first + piece.tokens == end

    with ThreadPoolExecutor(_REQUESTS if config.storage.is_remote else 1) as pool:
        list(pool.map(read, sorted(wanted)))
    return [each for each in found if each is not None]


_REQUESTS = 16  # at once, where reads wait for a network
_SHOWN_NAMES = 20


def columns_of(
    storage: Storage,
    index: DatasetIndex,
    places: Sequence[Place],
    columns: Sequence[str],
    *,
    columns_from: Source | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Columns of documents, as JSON has values: times, decimals and bytes are text.

    Reads the footers of the files concerned, and of the row groups concerned the chunks of these columns.

    Args:
        storage, index: of the set that the documents are of.
        places: of each document its file, as the index names it, the row group in that, and the document in that.
        columns: their names; ``parent.child`` within a struct. Where a file lacks one, values are None.
        columns_from: where the columns are if not in the set's own files: for each of these there, a file of the same
            path below its root and with as many rows.
        storage_options: for the fsspec filesystem of ``columns_from``.

    Returns:
        For each place, in order, the values by column.

    Raises:
        ConfigError: no such document; a column that none of the files concerned has.
        DataError: a file that is no Parquet, or one beside the set's with another number of rows.
        StorageError: a file cannot be read.
    """
    found, there, lacking = _columns_there(
        storage, index, places, columns, columns_from=columns_from, storage_options=storage_options
    )
    _check_there(columns if places else (), there, lacking)
    return found


def _check_there(columns: Sequence[str], there: Set[str], lacking: Mapping[str, ConfigError]) -> None:
    """Refuse columns that no file has."""
    for column in columns:
        if column not in there:
            raise lacking[column]


def _columns_there(
    storage: Storage,
    index: DatasetIndex,
    places: Sequence[Place],
    columns: Sequence[str],
    *,
    columns_from: Source | None,
    storage_options: Mapping[str, Any] | None,
) -> tuple[list[dict[str, Any]], set[str], dict[str, ConfigError]]:
    """See `columns_of`; beside it the columns that some file has, and of those that some file lacks the reason."""
    if index.format == "raw":
        raise ConfigError(
            f"raw files hold ids alone, and no column {', '.join(map(repr, columns))}; nor do rows of other files "
            "belong to their documents"
        )
    wanted: dict[int, list[tuple[int, int]]] = defaultdict(list)  # of a file (the place, its row)
    for at, place in enumerate(places):
        number, row = _row_of(index, place)
        wanted[number].append((at, row))
    files = {number: index.files[number] for number in wanted}
    if columns_from is not None:
        storage = open_storage(columns_from, storage_options, kind="parquet")
        files = _files_beside(storage, files)
    found: list[dict[str, Any]] = [dict.fromkeys(columns) for _ in places]
    there: set[str] = set()
    lacking: dict[str, ConfigError] = {}

    def read(number: int) -> None:
        rows = int(index.rows[index.groups_of(number)].sum())
        here = wanted[number]
        with open_rows(storage, files[number], index if columns_from is None else None) as table:
            if sum(table.counts) != rows:
                raise DataError(
                    f"it has {sum(table.counts):,} rows, and the file of tokens {rows:,}: its rows are not "
                    "the same documents. Give the files that the tokens were made of, row by row",
                    path=files[number].path,
                )
            paths = {}
            for column in columns:
                try:
                    paths[column] = _path_of(table.schema, column, files[number].path)
                except ConfigError as error:
                    lacking.setdefault(column, error)
            there.update(paths)
            values = _read_rows(table, [row for _, row in here], paths) if paths else [{} for _ in here]
        for (at, _), value in zip(here, values, strict=True):
            found[at].update(value)

    with ThreadPoolExecutor(_REQUESTS if storage.is_remote else 1) as pool:
        list(pool.map(read, wanted))
    return found, there, lacking


def _row_of(index: DatasetIndex, place: Place) -> tuple[int, int]:
    """The number of a document's file, and its row there."""
    group = _group_of(index, place)
    number = int(index.file[group])
    return number, int(index.rows[index.groups_of(number).start : group].sum()) + place[2]


def _group_of(index: DatasetIndex, place: Place) -> int:
    """The number in the index of the row group that holds a document."""
    path, row_group, document = place
    group = group_of(index, path, row_group)
    # How many documents a stream has is known when it is read.
    if document < 0 or not (index.is_stream or document < index.rows[group]):
        raise ConfigError(
            f"there is no document {document} in row group {row_group} of {path}: "
            f"{int(index.rows[group]):,} documents in that row group"
        )
    return group


def _files_beside(storage: Storage, files: Mapping[int, FileInfo]) -> dict[int, FileInfo]:
    there = {file.path: file for file in storage.list_files()}
    for file in files.values():
        if file.path not in there:
            raise ConfigError(
                f"{storage.root} has no file {file.path!r}, the path that the file of tokens has below its root; it "
                f"has {_some(list(there))}"
            )
    return {number: there[file.path] for number, file in files.items()}


def _read_rows(table: Rows, rows: Sequence[int], paths: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    ends = np.cumsum(table.counts)
    groups = np.searchsorted(ends, rows, side="right")
    found: list[dict[str, Any]] = [{} for _ in rows]
    for group in sorted(set(groups.tolist())):
        here = np.flatnonzero(groups == group).tolist()
        begin = int(ends[group - 1]) if group else 0
        read = table.read(group, list(paths.values()))
        for column, path in paths.items():
            values = read.column(read.schema.get_field_index(path[0]))
            for at in here:
                found[at][column] = _plain_of(_inside(values[rows[at] - begin], path[1:]))
    return found


def _inside(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not value.is_valid:
            return value
        value = value[name]
    return value


def _path_of(schema: pa.Schema, column: str, file: str) -> list[str]:
    """The names that lead to a column: one, or more where it is in structs."""
    for path in ([column], column.split(".")):
        fields: list[pa.Field] = list(schema)
        for depth, name in enumerate(path, 1):
            fields = [field for field in fields if field.name == name]
            if len(fields) != 1:
                break
            if depth == len(path):
                return path
            fields = list(fields[0].type) if pa.types.is_struct(fields[0].type) else []
    raise ConfigError(f"{file} has no column {column!r} (or more than one); it has {_some(_names(schema))}")


def _names(fields: Any, parent: str = "") -> list[str]:
    names = []
    for field in fields:
        names.append(parent + field.name)
        if pa.types.is_struct(field.type):
            names += _names(field.type, f"{parent}{field.name}.")
    return names


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    return (", ".join(map(repr, names[:_SHOWN_NAMES])) or "none") + more


def _plain_of(value: Any) -> Any:
    try:
        return _plain(value.as_py())
    except UnicodeDecodeError:
        return value.as_buffer().to_pybytes().decode(errors="replace")
    except (ValueError, OverflowError):  # a time that Python's types do not hold
        with suppress(pa.ArrowException):
            return value.cast(pa.string()).as_py()
        return str(value.type)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value)
