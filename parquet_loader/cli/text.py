"""Which tokenizer and which further columns commands were asked for."""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import ConfigError, ParquetLoaderError
from ..runs import MixtureRun, SetRun
from ..storage.opening import is_local

__all__ = ["add_columns", "columns_asked", "tokenizer_of"]


def tokenizer_of(name: str | None, opened: SetRun | MixtureRun) -> tuple[Any, str]:
    """The tokenizer of that name, or the one that the files name; and what is to be said where there is none."""
    from ..insight.text import open_tokenizer, open_tokenizer_of  # which bring pretokenize

    if name == "ids":
        return None, ""
    if name is not None:
        return open_tokenizer(name), ""
    sets = {each: (one.config.storage, one.config.index) for each, one in opened.sets.items()}
    try:
        return open_tokenizer_of(sets), ""
    except ParquetLoaderError as error:
        return None, f"ids are shown, and no text: {error}"


def add_columns(parser: Any) -> None:
    """Have a parser, or a group of its arguments, take further columns."""
    parser.add_argument("--columns", metavar="NAME,...", help="other columns of the documents, such as url,meta.lang")
    parser.add_argument(
        "--columns-from",
        action="append",
        metavar="FOLDER",
        help="where these are, if not in the files of tokens: for each a file of the same path and as many rows; "
        "NAME=FOLDER for a mixture's source",
    )


def columns_asked(given: argparse.Namespace, opened: SetRun | MixtureRun) -> dict[str, Any]:
    """What ``--columns`` and ``--columns-from`` say, as arguments of `describe_pieces` and `show`."""
    elsewhere = any(map(_is_url, given.columns_from or ()))
    return {
        "columns": tuple(filter(None, (given.columns or "").split(","))),
        "columns_from": _columns_from(given.columns_from, opened),
        "storage_options": opened.options.storage_options if elsewhere else None,
    }


def _columns_from(given: list[str] | None, opened: SetRun | MixtureRun) -> str | list[str] | dict[str, str] | None:
    """What ``--columns-from`` says, as `describe_pieces` takes it."""
    if given is None:
        return None
    if isinstance(opened, SetRun):
        return given[0] if len(given) == 1 else given
    parts = [each.partition("=") for each in given]
    for name, mark, _ in parts:
        if not mark or name not in opened.names:
            raise ConfigError(f"--columns-from NAME=FOLDER must name a source: {', '.join(opened.names)}")
    return {name: folder for name, _, folder in parts}


def _is_url(text: str) -> bool:
    """Whether a FOLDER or NAME=FOLDER is a URL."""
    return not is_local(text.rpartition("=")[2])
