"""Sources by name, and presets: the well-known pretraining sets of the Hugging Face Hub.

A source of your own is a factory with a name::

    register_source("mine", lambda options: MySource(options.inputs))
    pretokenize(PretokenizeOptions(source="mine", inputs=("somewhere",), ...))
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from ...errors import ConfigError
from .base import DEFAULT_MAX_RECORD_BYTES, Source
from .files import FileSource, TextUnit, types_in_files
from .find import Kind, find_files
from .hub import HubSource, open_hub_dataset, types_in_dataset

__all__ = [
    "FILE_SOURCES",
    "KIND_OF_SOURCE",
    "PRESETS",
    "SOURCE_OPTIONS",
    "Preset",
    "SourceFactory",
    "SourceOptions",
    "open_source",
    "refuse_unknown_elsewhere",
    "register_source",
    "source_names",
    "sources_using",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a factory may look at to make its source.

    Attributes:
        inputs: what the user gave, paths for the built-in sources of files.
        text_column: the field or column that holds the text.
        text_unit: what one record of a text file is.
        keep_columns: the fields or columns that records should carry beside the text; see `Source.kept_types`.
        storage_options: for fsspec.
        dataset: the name of a data set on the Hugging Face Hub, or of a local folder of one.
        config: its configuration.
        split: its split.
        revision: a branch, tag or commit of it.
        max_record_bytes: the most bytes that should be held for one record.
    """

    inputs: tuple[str, ...] = ()
    text_column: str = "text"
    text_unit: TextUnit = "line"
    keep_columns: tuple[str, ...] = ()
    storage_options: Mapping[str, object] = field(default_factory=dict)
    dataset: str | None = None
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES


SourceFactory: TypeAlias = Callable[[SourceOptions], Source]

# Those that say what to read, which not every source looks at.
SOURCE_OPTIONS = ("inputs", "dataset", "config", "split", "revision", "text_column", "text_unit", "keep_columns")

_FACTORIES: dict[str, SourceFactory] = {}
_USES: dict[str, Collection[str]] = {}


def register_source(name: str, factory: SourceFactory, *, uses: Collection[str] | None = None) -> None:
    """Let ``source=name`` mean what the factory makes; a later one of the same name replaces it.

    Args:
        name: the source's name.
        factory: makes the source.
        uses: which of `SOURCE_OPTIONS` the factory looks at; the others are then refused where they are given. With
            None, all may be given.
    """
    if not name or ":" in name:
        raise ConfigError(f"a source's name must not be empty or hold a colon, got {name!r}.")
    _FACTORIES[name] = factory
    _USES[name] = (*SOURCE_OPTIONS, "storage_options") if uses is None else uses


def sources_using(option: str, also: str) -> tuple[str, ...]:
    """The registered sources that look at an option; ``also``, if it is not registered, is taken for one of them."""
    using = tuple(name for name, uses in _USES.items() if option in uses)
    return using if also in _USES else (*using, also)


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
        raise _no_such_source(name)
    return factory(options)


def _no_such_source(name: str) -> ConfigError:
    return ConfigError(
        f"there is no source {name!r}. There are {', '.join(_FACTORIES)}; 'package.module:factory' imports another."
    )


def _imported(name: str) -> SourceFactory | None:
    module, colon, attribute = name.partition(":")
    if not colon:
        return None
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"the source {name!r} cannot be imported: {error}.") from error
    if not callable(factory):
        raise ConfigError(f"the source {name!r} is no function that makes a source, but {type(factory).__name__}.")
    return cast("SourceFactory", factory)


def _files(kind: Kind | None) -> SourceFactory:
    def factory(options: SourceOptions) -> Source:
        if not options.inputs:
            raise ConfigError("inputs must be at least one path. Only source='hf' does without.")
        found = find_files(options.inputs, options.storage_options, kind=kind)
        kinds = {file.kind for file in found.files}
        for name, value, default, unused in (
            ("text_column", options.text_column, SourceOptions().text_column, kinds == {"text"}),
            ("text_unit", options.text_unit, SourceOptions().text_unit, "text" not in kinds),
            ("keep_columns", options.keep_columns, (), kinds == {"text"}),
        ):
            if value != default and unused:
                raise ConfigError(
                    f"{name}={value!r} is not used: the {len(found.files):,} files to read, such as "
                    f"{found.files[0].name}, are all {' or '.join(sorted(kinds))}. Omit it, or read other files."
                )
        return FileSource(
            files=found.files,
            text_column=options.text_column,
            text_unit=options.text_unit,
            skipped=found.skipped,
            max_record_bytes=options.max_record_bytes,
            keep=types_in_files(found.files, options.keep_columns),
        )

    return factory


def _hub(options: SourceOptions) -> Source:
    if options.dataset is None or options.inputs:
        raise ConfigError("source='hf' needs dataset=NAME (or give a preset), and takes no inputs.")
    dataset, revision = open_hub_dataset(options.dataset, options.config, options.split, options.revision)
    return HubSource(
        dataset=dataset,
        name=options.dataset,
        config=options.config,
        split=options.split,
        revision=revision,
        text_column=options.text_column,
        keep=types_in_dataset(dataset, options.keep_columns, options.dataset),
    )


register_source("files", _files(None), uses=("inputs", "text_column", "text_unit", "keep_columns"))
register_source("text", _files("text"), uses=("inputs", "text_unit"))
register_source("jsonl", _files("json"), uses=("inputs", "text_column", "keep_columns"))
register_source("parquet", _files("parquet"), uses=("inputs", "text_column", "keep_columns"))
register_source("csv", _files("csv"), uses=("inputs", "text_column", "keep_columns"))
register_source("hf", _hub, uses=("dataset", "config", "split", "revision", "text_column", "keep_columns"))

_BUILT_IN = frozenset(_FACTORIES)
FILE_SOURCES = _BUILT_IN - {"hf"}
# Those that read files of one kind, whatever these are called.
KIND_OF_SOURCE: Mapping[str, Kind] = {"text": "text", "jsonl": "json", "parquet": "parquet", "csv": "csv"}


def refuse_unknown_elsewhere(name: str) -> None:
    """Make sure that a process in which nobody registers anything knows the source.

    Raises:
        ConfigError: it does not.
    """
    if name in _BUILT_IN or ":" in name:
        return
    if name not in _FACTORIES:
        raise _no_such_source(name)
    raise ConfigError(
        f"source={name!r} is registered in this process alone, and the writer is another one. Give "
        f"source='package.module:factory'."
    )


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
