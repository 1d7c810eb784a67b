"""Footers cached on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..container import DamagedContainerError, OtherVersionError, open_container, seal_container
from ..formats.base import FileEntry
from ..storage.atomic import write_atomically
from ..storage.base import FileInfo
from .index import INDEX_VERSION, assemble, pack_index, unpack_index

__all__ = ["IndexCache", "default_cache_dir"]


def default_cache_dir() -> Path:
    """The user's cache folder for this library, by the conventions of the operating system."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "parquet_loader"


class IndexCache:
    """The footers of one source on disk: a container of one index for each column that may be meant.

    Nothing depends on it: what cannot be read is built again and what cannot be written is not, both with a warning.
    """

    KIND = "index-cache"

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        identity: str,
        column: str | None,
        *,
        format: str = "parquet",
        raw_dtype: np.dtype[np.integer] | None = None,
        aligned: Sequence[str] = (),
    ) -> None:
        self._columns = None if column is None else {column, *aligned}
        self._format = format
        text = f"{identity}\0{'' if column is None else '=' + column}"
        if format != "parquet":
            text += f"\0{format}\0{raw_dtype}"
        if aligned:
            text += "\0\0".join(["", *sorted(aligned)])
        key = hashlib.sha256(os.fsencode(text)).hexdigest()[:32]
        self._path: Path | None = None
        with contextlib.suppress(RuntimeError):  # a user without a home folder
            self._path = (default_cache_dir() if folder is None else Path(folder).expanduser()) / f"{key}.index"

    def read(self) -> Iterator[tuple[FileInfo, FileEntry]]:
        """The files that are known, with their entries."""
        if self._path is None:
            return iter(())
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return iter(())
        except OSError as error:
            warnings.warn(f"the index cache {self._path} cannot be read ({error}); going on without it", stacklevel=4)
            return iter(())
        try:
            return iter(self._entries(open_container(data, self.KIND, INDEX_VERSION)))
        except OtherVersionError:
            return iter(())  # another release's: replaced in silence
        except DamagedContainerError as error:
            warnings.warn(f"the index cache {self._path} is damaged ({error}); building it again", stacklevel=4)
            return iter(())

    def _entries(self, payload: Any) -> list[tuple[FileInfo, FileEntry]]:
        if not isinstance(payload, list):
            raise DamagedContainerError("it is no list of indexes")
        found: dict[FileInfo, FileEntry] = {}
        for packed in payload:
            index = unpack_index(packed)
            if self._columns is not None and index.column not in self._columns:
                asked = " or ".join(map(repr, sorted(self._columns)))
                raise DamagedContainerError(f"it is of column {index.column!r}, and not of {asked}")
            if index.format != self._format:
                raise DamagedContainerError(f"it is of {index.format!r} files, and not of {self._format!r}")
            numbers = index.numbers
            borders = np.searchsorted(index.file, np.arange(len(index.files) + 1))
            for place, file in enumerate(index.files):
                entry = found.setdefault(file, FileEntry({}))
                layout = index.layouts[int(index.file_layout[place])]
                entry.columns[index.column] = (layout, numbers[:, borders[place] : borders[place + 1]])
        return list(found.items())

    def write(self, files: Sequence[FileInfo], entries: Sequence[FileEntry]) -> None:
        """Keep what was read, of files that have ended: an index does not tell of others that they have not."""
        pairs = [(file, entry) for file, entry in zip(files, entries, strict=True) if entry.is_ended]
        names = sorted({name for _, entry in pairs for name in entry.columns})
        payload: list[dict[str, Any]] = []
        for name in names:
            having = [(file, entry) for file, entry in pairs if name in entry.columns]
            kept = [file for file, _ in having], [entry for _, entry in having]
            payload.append(pack_index(assemble(*kept, name, format=self._format)))
        place = "the home folder, since this user has none" if self._path is None else self._path.parent
        try:
            if self._path is None:
                raise FileNotFoundError("no home folder")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, seal_container(self.KIND, INDEX_VERSION, payload))
        except OSError as error:
            warnings.warn(
                f"the index cache cannot be written to {place} ({error}); every start will read all footers again: "
                "give a cache_dir that can be written",
                stacklevel=4,
            )
