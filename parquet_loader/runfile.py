"""A run as a TOML file: the arguments of `ParquetLoader` by their names.

    source = "tokens"                            [source]
    seq_len = 4096                               web = "s3://bucket/web"
    lanes = 512                                  code = { source = "s3://bucket/code", max_epochs = 4 }

Values are those of Python, as TOML writes them. TOML has no None: what is left out has its default.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError, PathNotFoundError, StorageError
from .options import LoaderOptions
from .sets import Component
from .storage.opening import Source

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_run"]

_OPTIONS = tuple(field.name for field in dataclasses.fields(LoaderOptions))
_OF_COMPONENTS = tuple(field.name for field in dataclasses.fields(Component))
_LOCAL_FILES = ("cache_dir", "index")


def read_run(path: str | os.PathLike[str]) -> tuple[Source | dict[str, Source | Component], dict[str, Any]]:
    """The source and the options that a TOML file has.

    Raises:
        ConfigError: no TOML, no source, or a name that is no option; says which.
        StorageError: it cannot be read.
    """
    shown = os.fspath(path)
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PathNotFoundError(f"there is no {shown}") from error
    except OSError as error:
        raise StorageError(f"cannot read {shown}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown} is no TOML: {error}") from error
    folder = Path(path).absolute().parent
    if "source" not in given:
        raise ConfigError(f'{shown} has no source: give source = "a folder, file, glob or URL", or a table [source]')
    source = given.pop("source")
    options = _named(given, _OPTIONS, folder, shown)
    if isinstance(source, Mapping):
        return {name: _component(each, folder, f"{shown}, source {name!r}") for name, each in source.items()}, options
    return _located(source, folder, shown), options


def _component(given: Any, folder: Path, where: str) -> Source | Component:
    if not isinstance(given, Mapping):
        return _located(given, folder, where)
    if "source" not in given:
        raise ConfigError(f"{where} has no source")
    options = _named(given, _OF_COMPONENTS, folder, where)
    if options.get("eos_id") == "none":  # which is not what leaving it out means
        options["eos_id"] = None
    return Component(_located(options.pop("source"), folder, where), **options)


def _named(given: Mapping[str, Any], names: tuple[str, ...], folder: Path, where: str) -> dict[str, Any]:
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
            raise ConfigError(f"{where}: {name!r} is no option{hint}")
    local = {name: os.fspath(folder / given[name]) for name in _LOCAL_FILES if isinstance(given.get(name), str)}
    return {**given, **local}


def _located(source: Any, folder: Path, where: str) -> Source:
    """Where a source lies, from wherever the program was started."""
    several = source if isinstance(source, list) else [source]
    if not all(isinstance(each, str) for each in several):
        raise ConfigError(f"{where}: a source is a path or a URL, or a list of them, not {source!r}")
    found = [each if "://" in each or not each else os.fspath(folder / os.path.expanduser(each)) for each in several]
    return found if isinstance(source, list) else found[0]
