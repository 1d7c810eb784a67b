"""Whether a run starts fresh, resumes, or has nothing left to do: look at the output folder, then decide.

look(folder) -> Found -> decide(found, run) -> fresh | resume | done
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...errors import ConfigError, DataError, PathNotFoundError, PretokenizeWarning, StorageError
from ...storage.growing import GROWING_NAME
from ..options import PretokenizeOptions
from ..select.dedup import Digests
from ..sources.base import Source
from ..sources.columns import kept_schema
from ..sources.find import find_files, is_of
from ..sources.registry import FILE_SOURCES, KIND_OF_SOURCE
from ..tokenizers.base import Tokenizer
from ..write.folder import OutputFolder
from ..write.journal import Journal, differences
from ..write.manifest import MANIFEST_NAME, Manifest, Skipped
from ..write.writer import final_entries, renames

__all__ = [
    "Found",
    "Run",
    "begin",
    "decide",
    "few",
    "fingerprint_of",
    "look",
    "published_by",
    "run_of",
    "seen_fingerprint",
    "settings_of",
    "source_changes",
]

_FINGERPRINT_VERSION = 2


def fingerprint_of(
    source: Source, tokenizer: Tokenizer, options: PretokenizeOptions, seen_before: Digests
) -> dict[str, object]:
    """All that the result depends on. What only changes the speed, workers or batches, is no part of it."""
    return {
        "version": _FINGERPRINT_VERSION,
        "source": source.fingerprint(),
        **settings_of(tokenizer, options),
        "seen_hashes": seen_fingerprint(seen_before) if options.seen_hashes is not None else None,
        # Sets that were written before there were these options have no such keys.
        **({"publish": options.publish} if options.publish != "at-end" else {}),
        **({"keep_columns": _types_kept(source, options)} if options.keep_columns else {}),
    }


def _types_kept(source: Source, options: PretokenizeOptions) -> dict[str, str]:
    return {field.name: str(field.type) for field in kept_schema(source.kept_types(), options.keep_columns)}


def settings_of(tokenizer: Tokenizer, options: PretokenizeOptions) -> dict[str, object]:
    """Of what the result depends on, what is known without a look at the input."""
    return {
        "tokenizer": {
            "sha256": tokenizer.info.sha256,
            "vocab_size": tokenizer.info.vocab_size,
            "eos_id": tokenizer.info.eos_id,
        },
        "append_eos": options.append_eos,
        "row_group_tokens": options.row_group_tokens,
        "file_tokens": options.file_tokens,
        "max_docs": options.max_docs,
        "empty": options.empty,
        "dedup": {"hash": options.hash} if options.dedup else None,
        # Sets that were written before there was this option have no such key.
        **({"packing": asdict(options.packing)} if options.packing is not None else {}),
    }


def source_changes(options: PretokenizeOptions, fingerprint: Mapping[str, object]) -> list[str]:
    """In what the source of a complete set differs from that of options, by names alone: its inputs may be gone.

    A source of somebody's own is made and asked for its fingerprint: nobody else knows what its records depend on.
    """
    found = fingerprint.get("source")
    was: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {}
    name, given = options.named_source()
    if name == "hf":
        is_commit = given.revision is not None and len(given.revision) == 40 and was.get("revision") is not None
        names = ("dataset", "config", "split", *(("revision",) if is_commit else ()), "text_column")
    elif name in FILE_SOURCES:
        names = ("text_column", "text_unit")
    else:
        return _own_changes(options, fingerprint)
    changed = differences({each: was.get(each) for each in names}, {each: getattr(given, each) for each in names})
    if name in KIND_OF_SOURCE:
        changed += differences({"source.kinds": was.get("kinds")}, {"source.kinds": [KIND_OF_SOURCE[name]]})
    if name in FILE_SOURCES:
        changed = _input_changes(given.inputs, [each["name"] for each in was.get("files", ())], options) + changed
    kept = fingerprint.get("keep_columns")
    return changed + differences(
        {"keep_columns": list(kept) if isinstance(kept, Mapping) else []}, {"keep_columns": list(given.keep_columns)}
    )


def _own_changes(options: PretokenizeOptions, fingerprint: Mapping[str, object]) -> list[str]:
    """In what the source of a complete set differs from one of somebody's own; nothing, where that one's input is gone.

    Raises:
        ConfigError: there is no such source.
    """
    try:
        source = options.open_source()
        kept = _types_kept(source, options) if options.keep_columns else None
        now = {"source": source.fingerprint(), "keep_columns": kept}
    except OSError as error:
        warnings.warn(
            f"output={options.output!r} holds a complete set, which is taken as it is: whether it is of "
            f"source={options.source!r} and these inputs cannot be told, as the source cannot look at them: {error}",
            PretokenizeWarning,
            stacklevel=5,  # whoever calls `background`
        )
        return []
    return differences({each: fingerprint.get(each) for each in now}, now)


def _input_changes(inputs: Sequence[str], files: Sequence[str], options: PretokenizeOptions) -> list[str]:
    """In what inputs differ from those that stood for these files."""
    places = [next((at for at, each in enumerate(inputs) if is_of(file, each)), None) for file in files]
    if None in places:
        return [f"inputs: the set has {files[places.index(None)]!r}, which is not among {', '.join(map(repr, inputs))}"]
    unused = [each for each in inputs if not any(is_of(file, each) for file in files)]
    changed = [f"inputs: the set has nothing of {each!r}" for each in unused if not _is_empty(each, options)]
    if not changed and places != sorted(places, key=lambda at: at or 0):
        return [f"inputs: the set has them in another order, first {files[0]!r}"]
    return changed


def _is_empty(given: str, options: PretokenizeOptions) -> bool:
    """Whether an input is a folder that holds nothing to read, beside others that do."""
    try:
        find_files([given], options.storage_options)
    except (PathNotFoundError, StorageError):
        return False
    except ConfigError:
        return True
    return False


def seen_fingerprint(seen_before: Digests) -> dict[str, object]:
    """What the hashes that other runs have seen are."""
    return {"hashes": len(seen_before), "sha256": hashlib.sha256(seen_before.tobytes()).hexdigest()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What decides whether a run found in the output folder is this one.

    Attributes:
        fingerprint: all that this run's result depends on.
        whole: of one rank's run, the fingerprint of all ranks together; None where this run makes the whole set.
        overwrite: whether an old set may be replaced.
        world_size: how many ranks make the set.
        allows_bad: whether bad records may be skipped.
        adds_hashes: whether a run that is complete has added its own hashes to the file of seen ones.
    """

    fingerprint: Mapping[str, object]
    whole: Mapping[str, object] | None = None
    overwrite: bool
    world_size: int = 1
    allows_bad: bool = False
    adds_hashes: bool = False

    @property
    def expected(self) -> Mapping[str, object]:
        """The fingerprint of the set."""
        return self.fingerprint if self.whole is None else self.whole

    def changes(
        self, was: Mapping[str, object], now: Mapping[str, object], skipped: Skipped, *, complete: bool
    ) -> list[str]:
        """What differs from a run found in the folder, complete or not, which skipped ``skipped``."""
        # A run that was complete has added its own hashes to the file.
        ignored = ("seen_hashes",) if complete else ()
        changed = differences(
            {key: value for key, value in was.items() if key not in ignored},
            {key: value for key, value in now.items() if key not in ignored},
        )
        if skipped.bad and not self.allows_bad:
            changed.append(f"on_bad_record: was 'skip', for {skipped.bad:,} records, is 'raise'")
        return changed


def run_of(
    fingerprint: Mapping[str, object], options: PretokenizeOptions, whole: Mapping[str, object] | None = None
) -> Run:
    """The run that options stand for."""
    return Run(
        fingerprint=fingerprint,
        whole=whole,
        overwrite=options.overwrite,
        world_size=options.world_size,
        allows_bad=options.on_bad_record == "skip",
        adds_hashes=options.write_seen_hashes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is in an output folder.

    Attributes:
        output: the folder's name, for messages.
        files: what is in it, except the files of runs, and what an unfinished one has published.
        staging: whether an earlier run has left a staging folder.
        journal: of that run, where it has finished anything.
        manifest: of a complete set.
    """

    output: str
    files: tuple[str, ...]
    staging: bool
    journal: Journal | None
    manifest: Manifest | None


def look(output: OutputFolder, run: Run) -> Found:
    """What is in an output folder; a damaged journal or manifest counts as none where it may be overwritten.

    Raises:
        ConfigError: what is there belongs to another number of ranks, or to no run.
        DataError: one is damaged.
    """
    files = output.look()
    if not run.overwrite:
        output.refuse_other_runs(run.world_size, lambda other: not differences(other.fingerprint, run.expected))
    journal, manifest = None, None
    try:
        journal = output.read_journal()
        manifest = output.read_manifest() if MANIFEST_NAME in files else None
    except DataError:
        if not run.overwrite:
            raise
    if journal is not None:
        files = tuple(each for each in files if each not in published_by(journal))
    return Found(output=output.name, files=files, staging=output.found_staging, journal=journal, manifest=manifest)


def published_by(journal: Journal) -> frozenset[str]:
    """What an unfinished run has put into the output folder already: of a set that grows, its shards and marker."""
    if not journal.grows:
        return frozenset()
    return frozenset([GROWING_NAME, *(each.name for each in final_entries(journal.parts, growing=True))])


def decide(found: Found, run: Run) -> Literal["fresh", "resume", "done"]:
    """Start again, resume after what an earlier run has finished, or do nothing since the set is complete.

    Raises:
        ConfigError: what is there is of another run, and must not be overwritten.
    """
    journal, manifest = found.journal, found.manifest
    not_empty = f"output={found.output!r} is not empty: "
    if journal is not None:
        unfinished = journal.phase == "writing"
        changed = run.changes(journal.fingerprint, run.fingerprint, journal.position.skipped, complete=not unfinished)
        if changed and journal.grows and unfinished and not journal.parts and not found.files:
            return "fresh"  # it has come to nothing yet
        if changed and not run.overwrite:
            raise ConfigError(
                f"{not_empty}it holds an unfinished run of other inputs or options ({few(changed)}). Give those again "
                f"to resume it, choose another folder, or give overwrite=True to start again."
            )
        if not changed and unfinished and found.files and not run.overwrite:
            raise ConfigError(
                f"{not_empty}beside an unfinished run it holds {found.files[0]!r}. Give overwrite=True, as that run "
                f"had it, to resume and replace the old set."
            )
        return "fresh" if changed else "resume"
    if not found.files:
        return "fresh"
    if manifest is None or not manifest.fingerprint:
        if run.overwrite:
            return "fresh"
        also = f" and {len(found.files) - 1} more" if len(found.files) > 1 else ""
        raise ConfigError(
            f"{not_empty}it holds {found.files[0]!r}{also}. Choose another folder, or give overwrite=True to "
            f"replace a former run's files."
        )
    changed = run.changes(manifest.fingerprint, run.expected, manifest.skipped, complete=True)
    if run.overwrite:
        # A run that was killed at its very end has nothing left to do; and one that has added its hashes to the file
        # would find nothing but duplicates.
        ended = (found.staging and run.whole is None) or run.adds_hashes
        if changed and run.adds_hashes and manifest.fingerprint.get("seen_hashes") is not None:
            raise ConfigError(
                f"{not_empty}the set that overwrite=True would replace ({few(changed)}) was made with seen_hashes, and "
                "may have added its own: its documents would be dropped as duplicates. Give seen_hashes as it was "
                "before that set, and choose another output."
            )
        return "done" if ended and not changed else "fresh"
    if changed:
        raise ConfigError(
            f"{not_empty}it holds a complete set of other inputs or options ({few(changed)}). Choose another folder, "
            f"or give overwrite=True to replace it."
        )
    return "done"


def begin(output: OutputFolder, run: Run) -> Journal | Manifest:
    """Look, then decide: the journal to resume from, an empty one to start again, or the manifest of a complete set.

    Raises:
        ConfigError: what is there is of another run, and must not be overwritten.
        DataError: a journal or a manifest that is damaged.
        StorageError: a file that they name is not there.
    """
    found = look(output, run)
    decision = decide(found, run)
    if decision == "resume" and found.journal is not None:
        try:
            _take_up(output, found, found.journal)
        except StorageError:
            if not run.overwrite:
                raise
        else:
            return found.journal
    if decision == "done" and found.manifest is not None:
        output.check_published(found.manifest.files)
        output.remove_growing()
        return found.manifest
    output.clear_staging()
    journal = Journal(fingerprint=run.fingerprint)
    never_complete = found.journal is not None and found.journal.grows and found.manifest is None
    if journal.grows or never_complete:
        output.remove_set()  # nothing of it may be taken for the beginning of this one
    if journal.grows:
        output.write_journal(journal)
    return journal


def _take_up(output: OutputFolder, found: Found, journal: Journal) -> None:
    """Make sure that all is there that a run to be resumed has finished; of a growing set, publish what is not yet.

    Raises:
        StorageError: something is missing.
    """
    if not journal.grows:
        output.check_staged(journal.parts if journal.phase == "writing" else ())
        return
    for names in renames(journal.parts, output.staging_name, growing=True)[-1:]:
        output.publish_next(names)
    output.check_growing(final_entries(journal.parts, growing=True))
    if journal.phase == "writing" and found.files:
        output.remove_set(keep=published_by(journal))


def few(changed: list[str]) -> str:
    """The first differences, for a message."""
    return "; ".join(changed[:3]) + (f"; and {len(changed) - 3:,} more" if len(changed) > 3 else "")
