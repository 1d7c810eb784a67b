"""Sources by name, and presets: the well-known pretraining sets of the Hugging Face Hub.

A source of your own is a factory with a name::

    register_source("mine", lambda options: MySource(options.inputs))
    pretokenize(PretokenizeOptions(source="mine", inputs=("somewhere",), ...))
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from ...errors import ConfigError
from .base import Source
from .files import FileSource, TextUnit
from .find import Kind, find_files
from .hub import HubSource, open_hub_dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a factory may look at to make its source.

    Attributes:
        inputs: what the user gave, paths for the built-in sources of files.
        text_column: the field or column that holds the text.
        text_unit: what one record of a text file is.
        storage_options: for fsspec.
        dataset: the name of a data set on the Hugging Face Hub, or of a local folder of one.
        config: its configuration.
        split: its split.
        revision: a branch, tag or commit of it.
    """

    inputs: tuple[str, ...] = ()
    text_column: str = "text"
    text_unit: TextUnit = "line"
    storage_options: Mapping[str, object] = field(default_factory=dict)
    dataset: str | None = None
    config: str | None = None
    split: str = "train"
    revision: str | None = None


SourceFactory: TypeAlias = Callable[[SourceOptions], Source]

_FACTORIES: dict[str, SourceFactory] = {}


def register_source(name: str, factory: SourceFactory) -> None:
    """Let ``source=name`` (``--source name``) mean what the factory makes; a later one of the same name replaces it."""
    if not name or ":" in name:
        raise ConfigError(f"a source's name must not be empty or hold a colon, got {name!r}.")
    _FACTORIES[name] = factory


def source_names() -> tuple[str, ...]:
    """Every name that is registered."""
    return tuple(_FACTORIES)


def open_source(name: str, options: SourceOptions) -> Source:
    """The source of that name; ``"package.module:factory"`` imports one that nobody has registered.

    Raises:
        ConfigError: no such source, or options that it cannot work with.
    """
    factory = _FACTORIES.get(name) or _imported(name)
    if factory is None:
        raise ConfigError(
            f"there is no source {name!r}. There are {', '.join(_FACTORIES)}; 'package.module:factory' imports another."
        )
    return factory(options)


def _imported(name: str) -> SourceFactory | None:
    module, colon, attribute = name.partition(":")
    if not colon:
        return None
    try:
        return cast("SourceFactory", getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigError(f"the source {name!r} cannot be imported: {exc}.") from exc


def _files(kind: Kind | None) -> SourceFactory:
    def factory(options: SourceOptions) -> Source:
        if not options.inputs:
            raise ConfigError("inputs must be at least one path (--input). Only the source 'hf' does without.")
        found = find_files(options.inputs, options.storage_options, kind=kind)
        return FileSource(
            files=found.files, text_column=options.text_column, text_unit=options.text_unit, skipped=found.skipped
        )

    return factory


def _hub(options: SourceOptions) -> Source:
    if options.dataset is None or options.inputs:
        raise ConfigError("the source 'hf' reads --dataset NAME (or a --preset), and takes no --input.")
    dataset, revision = open_hub_dataset(options.dataset, options.config, options.split, options.revision)
    return HubSource(
        dataset=dataset,
        name=options.dataset,
        config=options.config,
        split=options.split,
        revision=revision,
        text_column=options.text_column,
    )


register_source("files", _files(None))
register_source("text", _files("text"))
register_source("jsonl", _files("json"))
register_source("parquet", _files("parquet"))
register_source("csv", _files("csv"))
register_source("hf", _hub)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A well-known data set of the Hub.

    Attributes:
        dataset: its name.
        config: its configuration, or None for the only one.
        split: its split.
        text_column: the column of its text.
    """

    dataset: str
    config: str | None = None
    split: str = "train"
    text_column: str = "text"


PRESETS: Mapping[str, Preset] = {
    "c4": Preset(dataset="allenai/c4", config="en"),
    "pile": Preset(dataset="monology/pile-uncopyrighted"),
    **{
        f"redpajama-{config.replace('_', '-')}": Preset(dataset="togethercomputer/RedPajama-Data-1T", config=config)
        for config in ("arxiv", "book", "common_crawl", "c4", "github", "stackexchange", "wikipedia")
    },
    "fineweb": Preset(dataset="HuggingFaceFW/fineweb", config="default"),
    "fineweb-edu": Preset(dataset="HuggingFaceFW/fineweb-edu", config="default"),
    **{
        f"{name}-{size.lower()}": Preset(dataset=f"HuggingFaceFW/{name}", config=f"sample-{size}")
        for name in ("fineweb", "fineweb-edu")
        for size in ("10BT", "100BT", "350BT")
    },
}
