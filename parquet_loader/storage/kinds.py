"""Which of a source's files are its data, by their names: those of one kind, and what lies beside them to tell of them.

    parquet   *.parquet                          nothing beside them
    arrow     *.arrow *.feather *.ipc *.arrows   state.json and dataset_dict.json, as Hugging Face's `datasets` writes
    raw       *.bin *.npy                        meta.json, and *.idx for Megatron's

What lies beside is listed with a folder; where files are named, outright or by a glob, it is looked for (`beside`).
A name alone does not say that a ``.bin`` holds token ids: beside Parquet or Arrow files it is somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from ..errors import ConfigError

__all__ = ["KINDS", "beside", "is_data", "is_hidden", "kind_of", "kinds_of", "of_one_kind", "patterns"]

_SUFFIXES = {
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather", ".ipc", ".arrows"),
    "raw": (".bin", ".npy"),
}
_BESIDE: dict[str, tuple[str, ...]] = {
    "parquet": (),
    "arrow": ("state.json", "dataset_dict.json"),
    "raw": ("meta.json",),
}
_BESIDE_SUFFIXES: dict[str, tuple[str, ...]] = {"parquet": (), "arrow": (), "raw": (".idx",)}
KINDS = tuple(_SUFFIXES)

# What `datasets` keeps for itself in the folder of a set: results of `map`, and files that it has not finished.
_CACHED = ("cache-", "tmp")

FoundT = TypeVar("FoundT")


def is_hidden(inside: str) -> bool:
    """Whether whoever reads a folder passes over a path below it: any name in it starts with ``_`` or ``.``.

    >>> is_hidden("a/_staging/part.parquet"), is_hidden("a/b.txt")
    (True, False)
    """
    return any(name.startswith(("_", ".")) for name in inside.split("/"))


def kind_of(path: str) -> str | None:
    """The kind of data that a file holds, by its name; None where that is none of data.

    >>> kind_of("a/part-0.arrow"), kind_of("a/meta.json")
    ('arrow', None)
    """
    return next((kind for kind, suffixes in _SUFFIXES.items() if path.endswith(suffixes)), None)


def kinds_of(path: str) -> set[str]:
    """The kinds of sets that a file belongs to: as data, or beside them."""
    name = path.rsplit("/", 1)[-1]
    return {
        kind
        for kind in KINDS
        if name.endswith(_SUFFIXES[kind]) or name in _BESIDE[kind] or name.endswith(_BESIDE_SUFFIXES[kind])
    }


def beside(path: str) -> tuple[str, ...]:
    """What tells of a file of raw ids, if it is there, or of what it tells itself.

    >>> beside("a/b.bin"), beside("a/b.idx"), beside("a/b.parquet")
    (('a/meta.json', 'a/b.idx'), ('a/b.bin',), ())
    """
    if path.endswith(".idx"):
        return (path.removesuffix(".idx") + ".bin",)
    if kind_of(path) != "raw":
        return ()
    meta = path[: path.rfind("/") + 1] + "meta.json"
    return (meta, path.removesuffix(".bin") + ".idx") if path.endswith(".bin") else (meta,)


def is_data(inside: str) -> bool:
    """Whether a path below a folder may be one of a set's files."""
    return bool(kinds_of(inside)) and not is_hidden(inside)


def patterns(kind: str | None) -> list[str]:
    """The names of data files, of one kind or of any."""
    return [f"*{suffix}" for each in KINDS if kind in (None, each) for suffix in _SUFFIXES[each]]


def of_one_kind(
    files: Iterable[FoundT],
    kind: str | None,
    shown: str,
    *,
    path: Callable[[FoundT], str],
    named: Callable[[FoundT], bool],
) -> list[FoundT]:
    """Those files of a source that are one set.

    Args:
        files: what a listing has found.
        kind: of `KINDS`; None for that which is there.
        shown: the source, for people to read.
        path: of a file.
        named: whether the source names the file outright, or by a glob that matches it: such are always kept.

    Raises:
        ConfigError: of two kinds one is as likely meant as the other; says how to choose.
    """
    files = list(files)
    if kind is None:
        counts = {each: sum(kind_of(path(file)) == each for file in files) for each in KINDS}
        if counts["parquet"] and counts["arrow"]:
            raise ConfigError(
                f"{shown} holds {counts['parquet']:,} Parquet and {counts['arrow']:,} Arrow files, and a set is of one "
                "format: say which is meant by format='parquet' or format='arrow' (--format on the command line), or "
                "name the files by a glob"
            )
        kind = next((each for each in KINDS if counts[each]), None)
    kept = [file for file in files if named(file) or kind in kinds_of(path(file))]
    settled = [file for file in kept if named(file) or not _is_cached(path(file))]
    # Where there is nothing else, what is cached is what is meant.
    return settled if any(kind_of(path(file)) for file in settled) else kept


def _is_cached(path: str) -> bool:
    return kind_of(path) == "arrow" and path.rsplit("/", 1)[-1].startswith(_CACHED)
