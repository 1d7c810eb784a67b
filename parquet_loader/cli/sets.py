"""The arguments of commands that look at sets, one after another: `inspect` and `check`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..runfile import read_run
from ..sets import Component
from ..storage.opening import Source
from .arguments import add_format, json_object

__all__ = ["RUN_OPTIONS", "NamedSet", "add_sets", "sets_of"]


class NamedSet(NamedTuple):
    """A set to look at.

    Attributes:
        name: what it is called.
        source: where it lies.
        options: those that the run or the command gives of column, EOS, vocabulary, index, storage, cache and format.
    """

    name: str
    source: Source
    options: dict[str, Any]


_OPTIONS = ("column", "eos_id", "vocab_size", "index", "storage_options", "cache_dir", "format", "raw_dtype")
# Of runs, to which a set has to be suited.
RUN_OPTIONS = (*_OPTIONS, "aligned", "packing", "seq_len", "overlap", "pad_id")


def add_sets(parser: argparse.ArgumentParser) -> None:
    """Have a parser take sets."""
    parser.usage = "%(prog)s [SOURCE ...] [--run TOML] [OPTION ...]"
    parser.add_argument(
        "source",
        nargs="*",
        help="a folder, a glob or a URL, each of them a set, and NAME=PATH gives it a name; files are one set together",
    )
    parser.add_argument("--column", help="the token column, where it is not the only list of integers")
    add_format(parser)
    parser.add_argument("--index", help="a saved index of the set")
    parser.add_argument("--cache-dir", help="where footers are cached (the user's cache folder)")
    parser.add_argument(
        "--storage-options",
        type=json_object,
        metavar="JSON",
        help="for the filesystem of a URL; secrets are better in the environment",
    )


def sets_of(given: argparse.Namespace, names: tuple[str, ...] = _OPTIONS) -> list[NamedSet]:
    """The sets that are named, or those of a run.

    Args:
        given: what a parser with `add_sets` has read, and with ``run_file``.
        names: of the options that they come with.

    Raises:
        ConfigError: there is none.
    """
    options: dict[str, Any] = {}
    found: list[tuple[str, Source | Component]] = _named(given.source)
    if given.run_file is not None:
        source, options = read_run(given.run_file)
        found = found or (list(source.items()) if isinstance(source, Mapping) else [(_shown(source), source)])
    if not found:
        raise ConfigError("no set is given: name a SOURCE, or a TOML file of a run with --run")
    asked = {name: getattr(given, name, None) for name in names}
    common = {name: options.get(name) for name in names} | {k: v for k, v in asked.items() if v is not None}
    if common["index"] is not None and len(found) > 1:
        raise ConfigError("--index is of one set, and several are given: look at them one by one")
    sets = []
    for name, each in found:
        own = dict(common)
        if isinstance(each, Component):
            given_here = {key: getattr(each, key, None) for key in names}
            own |= {key: value for key, value in given_here.items() if value is not None and value != "loader"}
            if each.fill and "aligned" in names:
                own["aligned"] = [name for name in own.get("aligned") or () if name not in each.fill]
            own["eos_id"] = common["eos_id"] if each.eos_id == "loader" else each.eos_id
        sets.append(NamedSet(name, each.source if isinstance(each, Component) else each, own))
    return sets


def _named(given: list[str]) -> list[tuple[str, Source | Component]]:
    if len(given) > 1 and all(Path(each).is_file() for each in given):
        return [(f"{len(given)} files", list(given))]
    found: list[tuple[str, Source | Component]] = []
    for each in given:
        name, mark, path = each.partition("=")
        is_named = mark and name.isidentifier() and not Path(each).exists()
        found.append((name, path) if is_named else (each, each))
    return found


def _shown(source: Source) -> str:
    return source if isinstance(source, str) else "the set"
