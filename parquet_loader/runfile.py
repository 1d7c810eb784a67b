"""A run as a TOML file: the arguments of `ParquetLoader` by their names.

    source = "tokens"                            [source]
    seq_len = 4096                               web = "s3://bucket/web"
    lanes = 512                                  code = { source = "s3://bucket/code", max_epochs = 4 }

Values are those of Python, as TOML writes them. TOML has no None: what is left out has its default.
"""

from __future__ import annotations

import codecs
import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError, PathNotFoundError, StorageError
from .options import LoaderOptions
from .sets import Component
from .storage.opening import Source, local_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["of_file", "read_run"]

_OPTIONS = tuple(field.name for field in dataclasses.fields(LoaderOptions))
_OF_COMPONENTS = tuple(field.name for field in dataclasses.fields(Component))
_INTEGERS = {
    field.name for of in (LoaderOptions, Component) for field in dataclasses.fields(of) if str(field.type)[:3] == "int"
}
_LOCAL_FILES = ("cache_dir", "index")


def read_run(path: str | os.PathLike[str]) -> tuple[Source | dict[str, Source | Component], dict[str, Any]]:
    """The source and the options that a TOML file has.

    Raises:
        ConfigError: no TOML, no source, or a name that is no option; says which.
        StorageError: it cannot be read.
    """
    shown = os.fspath(path)
    path = Path(path).expanduser()
    try:
        given = tomllib.loads(_text(path.read_bytes(), shown))
    except FileNotFoundError as error:
        raise PathNotFoundError(f"there is no {shown}") from error
    except OSError as error:
        raise StorageError(f"cannot read {shown}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{shown} is no TOML: {error}") from error
    folder = path.absolute().parent
    if "source" not in given:
        raise ConfigError(f'{shown} has no source: give source = "a folder, file, glob or URL", or a table [source]')
    source = given.pop("source")
    options = _named(given, _OPTIONS, folder, shown)
    if isinstance(source, Mapping):
        return {name: _component(each, folder, f"{shown}, source {name!r}") for name, each in source.items()}, options
    return _located(source, folder, shown), options


def of_file(error: ConfigError, path: str | os.PathLike[str], beside: Collection[str] = ()) -> ConfigError:
    """The error, which names a run's file where it is about a value that comes from there.

    Args:
        error: of a run that was opened.
        path: of its file.
        beside: names of options that were given beside the file, and count more.
    """
    told = re.match(r"(?:source '[^']*': )?(\w+)", str(error))
    _, options = read_run(path)
    if told is None or told[1] not in (options.keys() | set(_OF_COMPONENTS)) - set(beside):
        return error
    return ConfigError(f"{os.fspath(path)}: {error}")


def _text(data: bytes, shown: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        what = "it looks like UTF-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else str(error)
        raise ConfigError(f"{shown} is no TOML, which is UTF-8 ({what}): save it as UTF-8") from error


def _component(given: Any, folder: Path, where: str) -> Source | Component:
    if not isinstance(given, Mapping):
        return _located(given, folder, where)
    if "source" not in given:
        raise ConfigError(f"{where} has no source")
    options = _named(given, _OF_COMPONENTS, folder, where)
    if options.get("eos_id") == "none":  # which is not what leaving it out means
        options["eos_id"] = None
    source = _located(options.pop("source"), folder, where)
    try:
        return Component(source, **options)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _named(given: Mapping[str, Any], names: tuple[str, ...], folder: Path, where: str) -> dict[str, Any]:
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
            raise ConfigError(f"{where}: {name!r} is no option{hint}")
    local = {name: _local(folder, given[name]) for name in _LOCAL_FILES if isinstance(given.get(name), str)}
    whole = {name: _whole(value) for name, value in given.items() if name in _INTEGERS or name == "weights"}
    return {**given, **whole, **local}


def _whole(value: Any) -> Any:
    """5e5, which TOML knows as a float alone, as the integer that is meant; also as the token of a stage."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):  # of weights' stages: [token, {shares}]
        return [[_whole(each[0]), *each[1:]] if isinstance(each, list) and each else each for each in value]
    return value


def _local(folder: Path, path: str) -> str:
    found = local_path(os.fspath(folder / os.path.expanduser(path)))
    assert found is not None
    return found


def _located(source: Any, folder: Path, where: str) -> Source:
    """Where a source lies, from wherever the program was started."""
    several = source if isinstance(source, list) else [source]
    if not all(isinstance(each, str) for each in several):
        raise ConfigError(f"{where}: a source is a path or a URL, or a list of them, not {source!r}")
    found = [each if "://" in each or not each else _local(folder, each) for each in several]
    return found if isinstance(source, list) else found[0]
