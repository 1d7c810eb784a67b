"""The Arrow files that are a set: those of a folder, or those that Hugging Face's `datasets` says a saved one is.

saved/state.json             "_data_files": the files of the set, as `save_to_disk` writes them
saved/data-00000-of-00002.arrow, ...
splits/dataset_dict.json     several such folders, one for each split: which is meant has to be said
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ConfigError, DataError
from ...storage.base import FileInfo, Storage
from ..base import Counting, FileEntry
from .entries import read_entry

__all__ = ["Reader"]

_STATE, _SPLITS = "state.json", "dataset_dict.json"
_BESIDE_BYTES = 64 << 20  # more is no file that tells of a set


class Reader:
    """See `formats.base.EntryReader`.

    Args:
        storage, files, raw_dtype: see `Format.reader`.
    """

    def __init__(self, storage: Storage, files: Sequence[FileInfo], raw_dtype: np.dtype[np.integer] | None) -> None:
        self._storage = storage
        beside = {file.path: file for file in files if _name(file.path) in (_STATE, _SPLITS)}
        for path, file in beside.items():
            if _name(path) == _SPLITS:
                raise _several_splits(storage, file)
        found = [file for file in files if file.path not in beside]
        for path, file in beside.items():
            folder = path[: -len(_STATE)]
            named = _data_files(storage, file)
            if named is None:
                continue
            missing = sorted(named - {each.path[len(folder) :] for each in found if each.path.startswith(folder)})
            if missing and any(_folder(each.path) == folder for each in found):
                raise DataError(
                    f"names {', '.join(missing[:3])} among the files of the set, and there is no such file beside it: "
                    "copy it, or save the set anew",
                    path=path,
                )
            found = [each for each in found if _folder(each.path) != folder or each.path[len(folder) :] in named]
        self.files: Sequence[FileInfo] = found

    def together(self, file: FileInfo) -> Sequence[FileInfo]:
        """See `formats.base.EntryReader.together`."""
        return ()

    def read(
        self, file: FileInfo, column: str | None, counting: Counting | None, aligned: Sequence[str] = ()
    ) -> FileEntry:
        """See `formats.base.EntryReader.read`."""
        return read_entry(self._storage, file, column, counting, aligned)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _folder(path: str) -> str:
    return path[: len(path) - len(_name(path))]


def _read_json(storage: Storage, file: FileInfo) -> dict[str, Any]:
    if file.size > _BESIDE_BYTES:
        raise DataError(f"has {file.size:,} bytes, too many to tell of a set", path=file.path)
    try:
        value = json.loads(storage.read(file, 0, file.size)) if file.size else None
    except (ValueError, RecursionError) as error:
        raise DataError(f"is no JSON ({error}): was its writing or copying cut off?", path=file.path) from error
    if not isinstance(value, dict):
        raise DataError("is not what `datasets` writes: it holds no object", path=file.path)
    return value


def _data_files(storage: Storage, file: FileInfo) -> set[str] | None:
    """The names of a saved set's files, relative to its folder; None where it is somebody else's file."""
    state = _read_json(storage, file)
    if "_data_files" not in state:
        return None
    if state.get("_indices_data_files"):
        raise DataError(
            "says that the set is a selection of its files' rows, which an old version of `datasets` kept apart: load "
            "it with `datasets`, call flatten_indices(), and save it anew",
            path=file.path,
        )
    listed = state.get("_data_files")
    names = [each.get("filename") if isinstance(each, dict) else None for each in _list(listed)]
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in names):
        raise DataError("does not name the files of a set: it has no list of `_data_files`", path=file.path)
    return {str(name) for name in names}


def _several_splits(storage: Storage, file: FileInfo) -> ConfigError:
    folder = f"{storage.root}/{_folder(file.path)}".rstrip("/")
    told = [f"{folder}/{split}" for split in _list(_read_json(storage, file).get("splits"))]
    return ConfigError(
        f"{folder} holds the splits of a set, as a DatasetDict is saved, and they are read one by one: give the folder "
        f"of one{': ' if told else ''}{', '.join(told[:8])}"
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
