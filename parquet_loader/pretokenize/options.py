"""The options of a run, checked as far as possible without reading anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Literal, cast, get_args

from ..errors import ConfigError
from ..storage.secrets import Location
from .select.dedup import HashName, check_hash_name
from .select.selection import OnBadRecord, OnEmpty
from .sources.base import DEFAULT_MAX_RECORD_BYTES, Source
from .sources.files import TextUnit
from .sources.registry import PRESETS, SOURCE_OPTIONS, SourceOptions, open_source, sources_using
from .tokenizers.base import EngineName
from .write.manifest import Packing
from .write.packer import check_packing
from .write.writer import MAX_ROW_GROUP_TOKENS, TOKEN_COLUMN

__all__ = [
    "DEFAULT_BATCH_BYTES",
    "DEFAULT_FILE_TOKENS",
    "DEFAULT_PACK_BUFFER_TOKENS",
    "DEFAULT_ROW_GROUP_TOKENS",
    "Pack",
    "PackTail",
    "PretokenizeOptions",
    "Publish",
    "Step",
    "check_sizes",
    "packing_of",
]


DEFAULT_ROW_GROUP_TOKENS = 1_000_000
DEFAULT_FILE_TOKENS = 100_000_000
DEFAULT_BATCH_BYTES = 2 << 20
DEFAULT_PACK_BUFFER_TOKENS = 4_000_000

Step = Literal["encode", "hash", "drops", "finish"]
Publish = Literal["at-end", "as-finished"]
Pack = Literal["best-fit"]
PackTail = Literal["carry", "pad"]


def check_sizes(row_group_tokens: int, file_tokens: int) -> None:
    """Refuse sizes that cannot be written.

    Raises:
        ConfigError: one is too small or too large.
    """
    for name, number in (("row_group_tokens", row_group_tokens), ("file_tokens", file_tokens)):
        if number < 1:
            raise ConfigError(f"{name} must be at least 1, got {number}.")
    if row_group_tokens > MAX_ROW_GROUP_TOKENS // 2:
        raise ConfigError(f"row_group_tokens must be at most {MAX_ROW_GROUP_TOKENS // 2:,}, got {row_group_tokens:,}.")
    if file_tokens < row_group_tokens:
        raise ConfigError(
            f"file_tokens ({file_tokens:,}) is less than row_group_tokens ({row_group_tokens:,}), but a file holds "
            f"whole row groups. Raise the first or lower the second."
        )


def packing_of(pack: str | None, seq_len: int | None, tail: str, buffer_tokens: int) -> Packing | None:
    """How documents are packed, if they are.

    Raises:
        ConfigError: values that cannot work, or that nothing would use.
    """
    for name, value, allowed in (("pack", pack, (None, *get_args(Pack))), ("pack_tail", tail, get_args(PackTail))):
        if value not in allowed:
            choice = ", ".join(repr(each) for each in allowed if each is not None)
            raise ConfigError(f"{name} must be one of {choice}, got {value!r}.")
    if pack is None:
        if seq_len is not None:
            raise ConfigError(f"seq_len={seq_len!r} needs pack='best-fit': give both, or omit it.")
        return None
    if seq_len is None:
        raise ConfigError(
            f"pack={pack!r} needs seq_len, the ids of a row: the seq_len of training and its overlap, such as 2049."
        )
    packing = Packing(pack=pack, seq_len=seq_len, tail=tail, buffer_tokens=buffer_tokens)
    check_packing(packing)
    return packing


@dataclass(frozen=True, slots=True, kw_only=True)
class PretokenizeOptions:
    """What to tokenize, and how.

    Attributes:
        inputs: files, folders, globs; local paths or any fsspec URLs.
        output: the folder to write, a local path or any fsspec URL.
        tokenizer: a ``tokenizer.json``, a folder that holds one, or a name on the Hugging Face Hub; see
            `load_tokenizer` for others.
        source: a name of `source_names`, or ``"package.module:factory"``.
        preset: one of `PRESETS`, which stands for source, data set, configuration, split and column; of these, a
            configuration, split or column that is given beside it wins.
        dataset: for the source ``"hf"``: the data set's name.
        config: its configuration.
        split: its split.
        revision: a branch, tag or commit of it.
        text_column: the JSON field or the Parquet or CSV column with the text.
        text_unit: whether a line of a ``.txt`` is a document (``"line"``), a ``"paragraph"``, or the whole ``"file"``.
        keep_columns: other fields or columns of the documents, which are written beside their tokens;
            ``"parent.child"`` within an object or a struct.
        append_eos: end every document with the tokenizer's end-of-document token.
        eos_token: that token; None to find it.
        pack: ``"best-fit"`` writes training rows in place of documents, of which none is cut that fits in a row.
        seq_len: with ``pack``, the most ids of a row: the ``seq_len`` of training and its ``overlap``.
        pack_tail: with ``pack``, what becomes of rows that are far from full when a buffer of documents is packed:
            ``"carry"`` lets their documents wait for the next buffer, once; ``"pad"`` writes them as they are.
        pack_buffer_tokens: with ``pack``, tokens of the documents that are packed at a time, about.
        row_group_tokens: tokens of a row group, about.
        file_tokens: tokens of a file, about.
        publish: ``"at-end"`` shows the set once it is complete; ``"as-finished"`` shows each file once it is finished,
            so that training can begin with the first. Those begin small: one row group, then twice as much each time,
            up to ``file_tokens``.
        max_docs: stop after this many documents; None for all.
        on_bad_record: whether a record that is not what it should be ends the run, or is counted and skipped.
        max_record_bytes: the most bytes of one record, a line or a document; a longer one is bad. It is not part
            of the run's identity: it may be raised before a run is resumed.
        empty: whether an empty text is an empty document, or skipped.
        dedup: skip texts that are the same as an earlier one, apart from white space.
        hash: the hash that detects duplicates.
        seen_hashes: a file of the hashes of texts that other runs have written; the same texts are duplicates here.
        write_seen_hashes: add this run's hashes to that file.
        engine: what encodes with a ``tokenizer.json``; any but ``"tokenizers"`` is checked against that one.
        workers: processes that encode; 0 for the threads of this one.
        rank: which of several machines this one is, from 0.
        world_size: how many there are; each takes whole files, and the step ``"finish"`` makes one set of them.
        step: what `pretokenize_rank` does.
        overwrite: replace the files of an earlier run.
        batch_bytes: UTF-8 bytes of text that are encoded at a time.
        storage_options: handed to fsspec for inputs and outputs that are URLs.
    """

    inputs: tuple[str, ...] = ()
    output: str
    tokenizer: str
    source: str = "files"
    preset: str | None = None
    dataset: str | None = None
    config: str | None = None
    split: str = "train"
    revision: str | None = None
    text_column: str = "text"
    text_unit: TextUnit = "line"
    keep_columns: tuple[str, ...] = ()
    append_eos: bool = False
    eos_token: str | None = None
    pack: Pack | None = None
    seq_len: int | None = None
    pack_tail: PackTail = "carry"
    pack_buffer_tokens: int = DEFAULT_PACK_BUFFER_TOKENS
    row_group_tokens: int = DEFAULT_ROW_GROUP_TOKENS
    file_tokens: int = DEFAULT_FILE_TOKENS
    publish: Publish = "at-end"
    max_docs: int | None = None
    on_bad_record: OnBadRecord = "raise"
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES
    empty: OnEmpty = "keep"
    dedup: bool = False
    hash: HashName = "sha256"
    seen_hashes: str | None = None
    write_seen_hashes: bool = False
    engine: EngineName = "tokenizers"
    workers: int = 0
    rank: int = 0
    world_size: int = 1
    step: Step = "encode"
    overwrite: bool = False
    batch_bytes: int = DEFAULT_BATCH_BYTES
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if isinstance(cast("object", self.inputs), str):
            raise ConfigError(f"inputs must be a sequence of paths, got {Location(cast('str', self.inputs))!r}.")
        if isinstance(cast("object", self.keep_columns), str):
            raise ConfigError(f"keep_columns must be a sequence of names, got {self.keep_columns!r}.")
        object.__setattr__(self, "keep_columns", tuple(self.keep_columns))
        for name in self.keep_columns:
            if name in ("", TOKEN_COLUMN) or self.keep_columns.count(name) > 1:
                problem = {"": "is no name", TOKEN_COLUMN: "is what the column of tokens is called"}
                raise ConfigError(f"keep_columns: {name!r} {problem.get(name, 'is there twice')}. Omit it.")
        # From here on, showing or storing one of these shows no secret.
        object.__setattr__(self, "inputs", tuple(map(Location, self.inputs)))
        object.__setattr__(self, "output", Location(self.output))
        object.__setattr__(self, "source", Location(self.source))
        object.__setattr__(self, "seen_hashes", None if self.seen_hashes is None else Location(self.seen_hashes))
        self.refuse_unused([name for name, default in _DEFAULTS.items() if getattr(self, name) != default])
        if self.source == "files" and self.preset is None and not self.inputs:
            raise ConfigError("inputs must be at least one path, unless source or preset says otherwise.")
        if not self.output or not all(self.inputs):
            raise ConfigError(f"inputs {self.inputs!r} and output {self.output!r} must not be empty strings.")
        for name, value, allowed in (
            ("text_unit", self.text_unit, get_args(TextUnit)),
            ("on_bad_record", self.on_bad_record, get_args(OnBadRecord)),
            ("empty", self.empty, get_args(OnEmpty)),
            ("step", self.step, get_args(Step)),
            ("publish", self.publish, get_args(Publish)),
            ("engine", self.engine, get_args(EngineName)),
            ("preset", self.preset, (None, *PRESETS)),
        ):
            if value not in allowed:
                choice = ", ".join(repr(each) for each in allowed if each is not None)
                raise ConfigError(f"{name} must be one of {choice}, got {value!r}.")
        check_hash_name(self.hash)
        if self.write_seen_hashes and self.seen_hashes is None:
            raise ConfigError("write_seen_hashes=True needs seen_hashes, the file to write them to.")
        for name, number, least in (
            ("batch_bytes", self.batch_bytes, 1),
            ("max_record_bytes", self.max_record_bytes, 1),
            ("max_docs", 1 if self.max_docs is None else self.max_docs, 1),
            ("workers", self.workers, 0),
            ("rank", self.rank, 0),
            ("world_size", self.world_size, 1),
        ):
            if number < least:
                raise ConfigError(f"{name} must be at least {least}, got {number}.")
        if self.rank >= self.world_size:
            raise ConfigError(f"rank must be below world_size, got {self.rank} of {self.world_size}.")
        if self.world_size > 1 and (self.max_docs is not None or self.write_seen_hashes):
            raise ConfigError("max_docs and write_seen_hashes are for one rank alone.")
        if self.world_size > 1 and self.publish != "at-end":
            raise ConfigError(
                f"publish={self.publish!r} is for one rank alone: files must appear in the order of the input, and "
                f"those of rank 1 could only after all of rank 0's. Use one rank with workers=N, or publish='at-end'; "
                f"or give each rank inputs and an output of its own, with rank=0 and world_size=1, and train on a "
                f"mixture of these sets with follow=True."
            )
        if self.world_size == 1 and self.step != "encode":
            raise ConfigError(f"step={self.step!r} is for several ranks: give world_size.")
        check_sizes(self.row_group_tokens, self.file_tokens)
        if self.packing is not None and self.keep_columns:
            raise ConfigError(
                f"keep_columns={','.join(self.keep_columns)!r} are values of one document, and with pack a row holds "
                f"several: omit one of the two."
            )

    @property
    def packing(self) -> Packing | None:
        """How documents are packed, if they are."""
        return packing_of(self.pack, self.seq_len, self.pack_tail, self.pack_buffer_tokens)

    def refuse_unused(self, given: Collection[str]) -> None:
        """Refuse options that nothing would use.

        Args:
            given: names of the options that were given. If unknown, those that differ from their defaults.

        Raises:
            ConfigError: an option is not for this source, or not without another that is not given.
        """
        others = {"inputs", "dataset", *(("source",) if self.source != "hf" else ())} & set(given)
        if self.preset is not None and others:
            raise ConfigError(
                f"preset={self.preset!r} names the source and the data set: omit "
                f"{' and '.join(f'{name}={_shown(getattr(self, name))}' for name in sorted(others))}."
            )
        source = self.source if self.preset is None else "hf"
        for name in SOURCE_OPTIONS:
            if name in given and source not in (known := sources_using(name, source)):
                raise ConfigError(
                    f"{name}={_shown(getattr(self, name))} is not used by source={source!r}, only by "
                    f"{', '.join(map(repr, known))}: omit it, or give another source."
                )
        for name in ("hash", "seen_hashes"):
            if name in given and not self.dedup:
                raise ConfigError(f"{name}={getattr(self, name)!r} needs dedup=True: give both, or omit it.")
        for name in ("pack_tail", "pack_buffer_tokens"):
            if name in given and self.pack is None:
                raise ConfigError(f"{name}={getattr(self, name)!r} needs pack='best-fit': give both, or omit it.")
        urls = [each for each in (*self.inputs, self.output, self.seen_hashes or "") if "://" in each]
        if self.storage_options and not urls and source not in sources_using("storage_options", source):
            raise ConfigError("storage_options are for URLs, and every path is local: omit them.")

    def open_source(self) -> Source:
        """The source that these options name."""
        return open_source(*self.named_source())

    def named_source(self) -> tuple[str, SourceOptions]:
        """The name of the source, and what its factory is given."""
        preset = None if self.preset is None else PRESETS[self.preset]
        values = {name: getattr(self, name) for name in SOURCE_OPTIONS}
        if preset is not None:
            values |= {"dataset": preset.dataset}
            values |= {name: getattr(preset, name) for name in _PRESET_OPTIONS if values[name] == _DEFAULTS[name]}
        given = SourceOptions(**values, storage_options=self.storage_options, max_record_bytes=self.max_record_bytes)
        return (self.source if preset is None else "hf"), given


_PRESET_OPTIONS = ("config", "split", "text_column")
_DEFAULTS = {each.name: each.default for each in fields(PretokenizeOptions) if each.default is not MISSING}


def _shown(value: object) -> str:
    return repr(value[0] if isinstance(value, tuple) and value else value)
