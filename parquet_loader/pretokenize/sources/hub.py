"""Records out of a data set of the Hugging Face Hub, streamed by the ``datasets`` package.

``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, tokens and caches are that package's own affair. The cursor is the number of rows
read; resuming skips them, and whole files of them where ``datasets`` can. The revision is made a commit when the
data set is opened, so that a set that changes on the Hub is noticed and never mixed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError, DataError, StorageError
from ..extras import import_extra
from .base import BadRecord, Cursor, Record, Source
from .columns import as_text, column_path, lookup, stored_type, text_types

__all__ = ["HubSource", "open_hub_dataset", "types_in_dataset"]


# What datasets says of them from version 4 on, and before that if nobody has allowed the script to be run.
_SIGNS_OF_A_SCRIPT = ("Dataset scripts are no longer supported", "trust_remote_code")
_PARQUET_COPY = "Where the Hub has a copy in Parquet, revision='refs/convert/parquet' reads it."
_FILES = {
    "togethercomputer/RedPajama-Data-1T": (
        "The same data lies as JSON lines at the addresses in "
        "https://data.together.xyz/redpajama-data-1T/v1.0.0/urls.txt: download those you want and give them as inputs; "
        "its books are no longer published."
    )
}


def open_hub_dataset(name: str, config: str | None, split: str, revision: str | None) -> tuple[Any, str | None]:
    """A streaming data set, and the commit that it is of (None for a local folder, and offline).

    Raises:
        ConfigError: no such data set, configuration or split.
    """
    datasets = import_extra("datasets", "hub")
    if revision is not None and os.path.isdir(name):
        raise ConfigError(f"revision={revision!r} is not used by the local folder {name!r}: omit it.")
    commit = _commit(name, revision)
    where = f"dataset={name!r} (config {config!r}, split {split!r})"
    try:
        dataset = datasets.load_dataset(name, config, split=split, revision=commit or revision, streaming=True)
    except Exception as error:  # offline, no such name and no permission are all different types
        reason = " ".join(str(error).split()).rstrip(".")
        if any(each in reason for each in _SIGNS_OF_A_SCRIPT):
            raise ConfigError(
                f"{where} is made by a script, which datasets {datasets.__version__} does not run: {reason}. "
                f"{_FILES.get(name, _PARQUET_COPY)} Or install 'datasets<4' and set HF_DATASETS_TRUST_REMOTE_CODE=1, "
                f"which runs the script."
            ) from error
        raise ConfigError(
            f"{where} cannot be opened: {reason}. Check the names, the network and HF_ENDPOINT."
        ) from error
    return dataset, commit


def _commit(name: str, revision: str | None) -> str | None:
    hub = import_extra("huggingface_hub", "hub")
    try:
        sha = hub.HfApi().dataset_info(name, revision=revision).sha
    except Exception:  # a local folder, or offline: what is wrong with the name, load_dataset says
        return None
    return None if sha is None else str(sha)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource(Source):
    """The rows of one split, in its own order.

    Attributes:
        dataset: a ``datasets.IterableDataset``.
        name: the data set's name.
        config: its configuration.
        split: its split.
        revision: the commit, or None where it is not known.
        text_column: the column of strings.
        keep: the columns that records carry, and their Arrow types; see `types_in_dataset`.
    """

    dataset: Any
    name: str
    config: str | None
    split: str
    revision: str | None
    text_column: str = "text"
    keep: Mapping[str, Any] = field(default_factory=dict)

    def kept_types(self) -> Mapping[str, Any]:
        """See `Source`."""
        return self.keep

    def records(self, cursor: Cursor | None = None) -> Iterator[Record | BadRecord]:
        """Every row's text."""
        row = cursor[0] if cursor else 0
        rows = iter(self.dataset.skip(row) if row else self.dataset)
        while True:
            try:
                values = next(rows, None)
            except Exception as error:  # datasets and the Hub's client share no base but this
                raise StorageError(
                    f"cannot read {self.name} after {row:,} rows: {error or type(error).__name__}"
                ) from error
            if values is None:
                return
            origin, text = f"{self.name}: row {row}", _value(values, self.text_column)
            row += 1
            if isinstance(text, str):
                try:
                    columns = tuple(
                        as_text(lookup(values, name), origin, name) if kind == "string" else lookup(values, name)
                        for name, kind in self.keep.items()
                    )
                except DataError as error:
                    yield BadRecord(error=error, cursor=(row,))
                else:
                    yield Record(text=text, origin=origin, cursor=(row,), columns=columns)
            else:
                found = f"it is {type(text).__name__}" if text is not _MISSING else f"the row has {', '.join(values)}"
                problem = f"a string was expected, {found}. Name another column with text_column."
                yield BadRecord(error=DataError(problem, path=origin, column=self.text_column), cursor=(row,))

    def fingerprint(self) -> dict[str, object]:
        """Names and commit; what a local folder holds is not looked at."""
        return {
            "kinds": ["hf"],
            "dataset": self.name,
            "config": self.config,
            "split": self.split,
            "revision": self.revision,
            "text_column": self.text_column,
        }


def types_in_dataset(dataset: Any, names: Sequence[str], where: str) -> dict[str, Any]:
    """The types of columns to keep: those that the data set declares; text, where it declares none.

    Raises:
        ConfigError: it has no such column.
    """
    types = text_types(names)
    if not names or dataset.features is None:
        return types
    schema = dataset.features.arrow_schema
    for name in names:
        _, fields = column_path(schema, name)
        if len(fields) != 1:
            raise ConfigError(
                f"keep_columns: dataset={where!r} has no column {name!r}, but {', '.join(map(repr, schema.names))}."
            )
        types[name] = stored_type(fields[0].type)
    return types


_MISSING = object()


def _value(row: dict[str, Any], column: str) -> object:
    value: object = row
    for name in [column] if column in row else column.split("."):
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value
