"""Input files: what is found under paths, globs and URLs, and of which kind it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from ...errors import ConfigError, PathNotFoundError, StorageError
from ...storage.base import WILDCARD, Found, is_hidden
from ...storage.filesystems import Filesystem, open_filesystem, open_together
from ...storage.local import LocalStorage
from ...storage.opening import local_path
from ...storage.remote import FsspecStorage
from ...storage.secrets import Location
from .compression import COMPRESSIONS

__all__ = ["KNOWN_EXTENSIONS", "FileList", "InputFile", "Kind", "classify", "find_files", "is_of"]

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
        filesystem: the filesystem it lies on.
        path: its path there.
        name: the path with its protocol and without secrets: what identifies the file, and for messages.
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
    for filesystem, files in _listed([Location(each) for each in inputs], storage_options or {}):
        for each in files:
            name = filesystem.display(each.path)
            try:
                name.encode()
            except UnicodeEncodeError:
                raise StorageError(f"the name of {os.fsencode(name)!r} is not UTF-8: rename it.") from None
            classified = classify(each.path)
            if kind is not None and (classified is None or classified[0] != kind):
                classified = (kind, _compression_of(each.path)) if each.is_named else None
            if classified is not None:
                file = InputFile(
                    filesystem=filesystem,
                    path=each.path,
                    name=name,
                    kind=classified[0],
                    compression=classified[1],
                    size_bytes=each.size or 0,
                    version=each.version,
                )
                found.setdefault((name, each.path), file)
            elif not each.is_named:
                skipped[name] = None
            else:
                raise ConfigError(
                    f"{name}: unknown extension. Known are {KNOWN_EXTENSIONS}: "
                    f"rename or convert the file, say what it is with source, or omit it."
                )
    if not found:
        also = f" ({len(skipped)} files there have other extensions)" if skipped else ""
        shown = ", ".join(Location(each) for each in inputs)
        raise ConfigError(f"no file to read in {shown}{also}: looked for {KNOWN_EXTENSIONS}.")
    return FileList(files=tuple(found.values()), skipped=tuple(skipped))


def is_of(name: str, given: str) -> bool:
    """Whether an input stands for a file of that name, by the names alone: neither has to be there.

    >>> is_of("/a/b/c.txt", "/a/b"), is_of("/a/b/c.txt", "/a/*/c.txt"), is_of("/a/b/c.txt", "/a/*.txt")
    (True, True, False)
    """
    return _starts(_parts(name), _parts(given))


def _parts(name: str) -> list[str]:
    """The parts of a path, without the protocol, of which a filesystem may have several."""
    path = local_path(name)
    whole = str(Location(name)).split("://", 1)[-1] if path is None else path
    return [part for part in whole.split("/") if part]


def _starts(name: Sequence[str], given: Sequence[str]) -> bool:
    if not given:
        return True
    if given[0] == "**" and any(_starts(name[at:], given[1:]) for at in range(len(name))):
        return True
    matches = bool(name) and (name[0] == given[0] or fnmatchcase(name[0], given[0]))
    return matches and _starts(name[1:], given[1:])


def _listed(
    inputs: Sequence[Location], storage_options: Mapping[str, object]
) -> Iterator[tuple[Filesystem, list[Found]]]:
    """For each input, in order, the filesystem and the files that it stands for, as the loader finds them."""
    # Those of one host or bucket share a client, and are looked at at once.
    groups: dict[str, list[Location]] = {}
    for url in inputs:
        groups.setdefault(_place_of(url), []).append(url)
    listed: dict[str, tuple[Filesystem, Iterator[list[Found]]]] = {}
    for place, urls in groups.items():
        paths = [path for url in urls if (path := local_path(url)) is not None]
        storage = LocalStorage(paths) if paths else FsspecStorage(urls, storage_options)
        filesystem = open_filesystem(paths[0])[0] if paths else open_together(urls, storage_options, patient=True)[0]
        listed[place] = filesystem, iter(storage.find(lambda inside: not is_hidden(inside)).found)
    for url in inputs:
        filesystem, each = listed[_place_of(url)]
        files = next(each)
        if not files and WILDCARD.search(url):
            raise PathNotFoundError(f"no file matches {url!r}. Quote a glob, so that the shell does not expand it.")
        yield filesystem, files


def _place_of(url: Location) -> str:
    if local_path(url) is not None:
        return ""
    return url if len(url.links) > 1 else "/".join(url.given.split("/", 3)[:3])
