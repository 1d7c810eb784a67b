"""Input files: what is found under paths, globs and URLs, and of which kind it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fsspec.utils import get_protocol

from ...errors import ConfigError, PathNotFoundError
from ...storage.base import is_hidden
from ...storage.filesystems import Filesystem, display_name, open_filesystem, relative_to, storage_errors
from .compression import COMPRESSIONS

__all__ = ["KNOWN_EXTENSIONS", "FileList", "InputFile", "Kind", "classify", "find_files"]

Kind = Literal["text", "json", "parquet", "csv"]


_KINDS: Mapping[str, Kind] = {
    ".txt": "text",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".csv": "csv",
}


KNOWN_EXTENSIONS = ".txt, .jsonl, .ndjson, .json or .csv (each also .gz or .zst) and .parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file to read.

    Attributes:
        filesystem: the fsspec filesystem it lies on.
        path: its path there.
        name: the path with its protocol, for messages.
        kind: what is in it.
        compression: ``".gz"``, ``".zst"`` or ``""``.
        size_bytes: its size, as it lies there.
        version: its ETag or time of change, whatever the filesystem tells.
    """

    filesystem: Filesystem
    path: str
    name: str
    kind: Kind
    compression: str
    size_bytes: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileList:
    """The files that inputs stand for.

    Attributes:
        files: those to read, in order, each once.
        skipped: names of files in the given folders whose extension is not a known one.
    """

    files: tuple[InputFile, ...]
    skipped: tuple[str, ...]


def classify(path: str) -> tuple[Kind, str] | None:
    """The kind and compression that a file's name stands for, or None for an unknown extension.

    >>> classify("a/b.jsonl.zst"), classify("B.TXT"), classify("c.parquet"), classify("c.parquet.gz"), classify("d.md")
    (('json', '.zst'), ('text', ''), ('parquet', ''), None, None)
    """
    name = path.rsplit("/", 1)[-1].lower()
    compression = _compression_of(name)
    name = name.removesuffix(compression)
    dot = name.rfind(".")
    kind = _KINDS.get(name[dot:]) if dot >= 0 else None
    if kind is None or (kind == "parquet" and compression):
        return None
    return kind, compression


def _compression_of(name: str) -> str:
    return next((ending for ending in COMPRESSIONS if name.lower().endswith(ending)), "")


def find_files(
    inputs: Sequence[str], storage_options: Mapping[str, object] | None = None, *, kind: Kind | None = None
) -> FileList:
    """Every file that the inputs stand for: the inputs' order, sorted by path within a folder or glob, each file once.

    Args:
        inputs: files, folders (read at any depth, without names that start with ``_`` or ``.``), globs; local or URLs.
        storage_options: handed to fsspec for inputs that are URLs.
        kind: what the files are. With None their extensions say; given, files of a folder that are known to be
            something else are passed over, and named ones are taken at your word.

    Raises:
        PathNotFoundError: an input at which there is nothing.
        ConfigError: an extension that is not known, or inputs that hold no file to read.
    """
    found: dict[tuple[str, str], InputFile] = {}
    skipped: dict[str, None] = {}
    for url in inputs:
        filesystem, path = open_filesystem(url, storage_options)
        with storage_errors("list", url):
            paths, in_folder = _expand(filesystem, path, url)
        for each, details in paths.items():
            name = display_name(filesystem, each)
            classified = classify(each)
            if kind is not None and (classified is None or classified[0] != kind):
                classified = None if in_folder else (kind, _compression_of(each))
            if classified is not None:
                file = InputFile(
                    filesystem=filesystem,
                    path=each,
                    name=name,
                    kind=classified[0],
                    compression=classified[1],
                    size_bytes=int(details.get("size") or 0),
                    version=_version(details),
                )
                found.setdefault((get_protocol(url), each), file)
            elif in_folder:
                skipped[name] = None
            else:
                raise ConfigError(
                    f"{name}: unknown extension. Known are {KNOWN_EXTENSIONS}: "
                    f"rename or convert the file, say what it is with source, or omit it."
                )
    if not found:
        also = f" ({len(skipped)} files there have other extensions)" if skipped else ""
        raise ConfigError(f"no file to read in {', '.join(inputs)}{also}: looked for {KNOWN_EXTENSIONS}.")
    return FileList(files=tuple(found.values()), skipped=tuple(skipped))


def _expand(filesystem: Filesystem, path: str, url: str) -> tuple[dict[str, dict[str, Any]], bool]:
    """The paths that one input stands for, with their details, and whether they came out of a folder, not by name."""
    if filesystem.isfile(path):  # first, since a file's name may hold a glob's signs
        return {path: filesystem.info(path)}, False
    if filesystem.isdir(path):
        return _visible(filesystem.find(path, detail=True), path), True
    magic = next((at for at, character in enumerate(path) if character in "*?["), None)
    if magic is not None:
        root = path[:magic].rpartition("/")[0]
        there = filesystem.glob(path, detail=True)
        matches = _visible(
            {each: details for each, details in there.items() if details.get("type") != "directory"}, root
        )
        if matches:
            return matches, False
        raise PathNotFoundError(f"no file matches {url!r}. Quote a glob so that it reaches the program whole.")
    raise PathNotFoundError(f"there is no file or folder {url!r}. Check the path; a folder needs no trailing sign.")


def _visible(paths: Mapping[str, dict[str, Any]], root: str) -> dict[str, dict[str, Any]]:
    return {path: paths[path] for path in sorted(paths) if not is_hidden(relative_to(path, root) or path)}


def _version(details: Mapping[str, Any]) -> str:
    """What tells this content of a file from a later one of the same size; filesystems name it differently."""
    named = (
        details.get(key) for key in ("ETag", "etag", "mtime", "LastModified", "updated", "last_modified", "created")
    )
    return str(next((value for value in named if value is not None), ""))
