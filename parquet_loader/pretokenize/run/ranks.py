"""One set by many machines, which share only the inputs and the output folder.

    step      run by      does
    hash      every rank  the hash of every record of its files        only with dedup
    drops     one         which of all records are duplicates          only with dedup
    encode    every rank  its share of the files to shards, in a staging folder of its own; resumes like any run
    finish    one         checks that all ranks are complete, publishes their shards in order, writes the manifest

A rank's share is consecutive whole files, so the shards, rank after rank, hold the documents in the order of the
input, as one rank's run would, if cut into other shards. A step that is run twice does nothing the second time, or the
same again.

Duplicates across ranks cannot be detected while they encode. Hashes are 16 bytes a record; `drops` takes them in
partitions by their first bits, so it holds a partition's table, and a bit for each record.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, DataError, StorageError
from ..options import PretokenizeOptions
from ..select.dedup import Digests, SeenHashes, as_digests, digest_function
from ..select.selection import Drops, Selection
from ..sources.files import FileSource
from ..tokenizers.base import NOTHING_LOST
from ..tokenizers.gigatoken import with_engine
from ..tokenizers.huggingface import Tokenizer, load_tokenizer
from ..write.folder import OutputFolder
from ..write.journal import Journal, differences
from ..write.manifest import MANIFEST_NAME, MAX_LISTED_BAD_RECORDS, Manifest, Skipped
from .pipeline import Summary
from .progress import Progress
from .resume import begin, few, fingerprint_of, run_of, seen_fingerprint
from .shards import Job, encoding_of, open_seen_file, publish, write_shards

__all__ = ["Place", "StepDone", "place_from_environment", "pretokenize_rank"]


_PARTITIONS = 16
_PIECE_DIGESTS = 1 << 20
_LISTED_RANKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step that publishes nothing yet.

    Attributes:
        message: what was done, and what comes next.
    """

    message: str

    def describe(self) -> str:
        """One paragraph for people."""
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of how many ranks a process is.

    Attributes:
        rank: from 0.
        world_size: how many there are.
        origin: a sentence that says which environment variables said so.
    """

    rank: int
    world_size: int
    origin: str = field(default="", compare=False)


# Processes of one job, the innermost launcher first. A batch script has SLURM_PROCID and SLURM_NTASKS as well, of tasks
# that only srun would make; SLURM_STEP_NUM_TASKS is there in such tasks alone.
_PROCESSES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
# Jobs of one set.
_JOBS = (("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"), ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"))


def place_from_environment(environment: Mapping[str, str]) -> Place | None:
    """Rank and world size as torchrun, SLURM and Kubernetes tell them, or None.

    >>> array = {"SLURM_ARRAY_TASK_ID": "10", "SLURM_ARRAY_TASK_COUNT": "6"}
    >>> array |= {"SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "10", "SLURM_ARRAY_TASK_STEP": "2"}
    >>> place_from_environment(array)
    Place(rank=5, world_size=6, origin='SLURM_ARRAY_TASK_ID=10 and SLURM_ARRAY_TASK_COUNT=6 say so.')

    Raises:
        ConfigError: variables that contradict each other, are no numbers, or lack the number of ranks.
    """
    for index, count in _JOBS:
        if index in environment and count not in environment:
            raise ConfigError(
                f"{index}={environment[index]} makes this one job of several, and {count} does not say of how many: "
                f"set it, or give rank and world_size=N."
            )
    processes, jobs = (
        [_place(environment, *names) for names in group if all(name in environment for name in names)]
        for group in (_PROCESSES, _JOBS)
    )
    places = [place for place in (*processes, *jobs) if place.world_size > 1]
    if not places:
        return None
    first = places[0]
    for other in places[1:]:
        # torchrun counts the processes of all the tasks that SLURM has begun it in.
        encloses = first in processes and other in processes and first.world_size % other.world_size == 0
        if other != first and not encloses:
            raise ConfigError(
                f"this is rank {first.rank} of {first.world_size}, as {first.origin.removesuffix(' say so.')} say, and "
                f"rank {other.rank} of {other.world_size}, as {other.origin.removesuffix(' say so.')} say. Give rank "
                f"and world_size=N."
            )
    return first


def _place(environment: Mapping[str, str], rank_name: str, size_name: str) -> Place:
    said = f"{rank_name}={environment[rank_name]} and {size_name}={environment[size_name]}"
    try:
        rank, world_size = int(environment[rank_name]), int(environment[size_name])
        if rank_name == "SLURM_ARRAY_TASK_ID":
            first = int(environment.get("SLURM_ARRAY_TASK_MIN", "0"))
            last = int(environment.get("SLURM_ARRAY_TASK_MAX", first + world_size - 1))
            # For --array=0-10:2 the ids are 0, 2, ... 10. A list such as 1,5,9-11 has no step at all.
            step = (last - first) // max(1, world_size - 1) or 1
            rank, apart = divmod(rank - first, step)
            if apart or first + (world_size - 1) * step != last:
                raise ConfigError(
                    f"{said}, with ids from {first} to {last}: they are not evenly spaced, so none tells its rank. "
                    f"Give rank and world_size=N."
                )
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{said} are no numbers. Give rank and world_size=N.") from error
    if not 0 <= rank < world_size:
        raise ConfigError(f"{said}: a rank must be from 0 to {world_size - 1}. Give rank and world_size=N.")
    return Place(rank=rank, world_size=world_size, origin=f"{said} say so.")


def pretokenize_rank(
    options: PretokenizeOptions, *, progress: Callable[[Progress], None] | None = None
) -> Summary | StepDone:
    """Do one step of a set that several ranks make.

    Raises:
        ConfigError: a source that cannot be shared out, options of another run, a step whose turn it is not.
        DataError: an input that does not hold what it should.
        StorageError: a path that cannot be read or written.
    """
    started = time.monotonic()
    source = options.open_source()
    if not isinstance(source, FileSource):
        raise ConfigError("several ranks share out files, and this source has none. Use one rank for it.")
    output = OutputFolder(options.output, options.storage_options)
    output.refuse_inputs(source.files)
    if options.step in ("hash", "drops"):
        if not options.dedup:
            raise ConfigError(
                f"step={options.step!r} is for dedup=True alone: give it, or continue with step='encode'."
            )
        if _is_complete(source, output, options):
            return StepDone(message=f"The complete set is in {options.output} already.")
        return _hash(source, options) if options.step == "hash" else _find_drops(source, options)
    tokenizer = load_tokenizer(options.tokenizer, eos_token=options.eos_token, need_eos=options.append_eos)
    seen_before = _seen_before(options)
    whole = fingerprint_of(source, tokenizer, options, seen_before) | {"world_size": options.world_size}
    if options.step == "encode":
        tokenizer = with_engine(tokenizer, options.engine, source)
        return _encode(source, tokenizer, options, whole, seen_before, progress=progress)
    manifest = _finish(tokenizer, options, whole)
    return Summary(
        manifest=manifest,
        output=options.output,
        seconds=time.monotonic() - started,
        skipped=source.skipped,
        earlier_bytes=manifest.text_bytes,
    )


def _seen_before(options: PretokenizeOptions) -> Digests:
    seen_file = open_seen_file(options)
    return as_digests(b"") if seen_file is None else seen_file.read()


def _rank_folder(options: PretokenizeOptions, rank: int) -> OutputFolder:
    name = f"_staging-rank-{rank}-of-{options.world_size}"
    return OutputFolder(options.output, options.storage_options, staging=name)


def _dedup_folder(options: PretokenizeOptions) -> OutputFolder:
    name = f"_staging-dedup-of-{options.world_size}"
    return OutputFolder(options.output, options.storage_options, staging=name)


def _is_complete(source: FileSource, output: OutputFolder, options: PretokenizeOptions) -> bool:
    """Whether the set is complete, as far as can be told without a tokenizer.

    Raises:
        ConfigError: what is there is of another run.
    """
    known = {"source": source.fingerprint(), "world_size": options.world_size}

    def is_own(fingerprint: Mapping[str, object]) -> bool:
        return not differences({key: fingerprint.get(key) for key in known}, known)

    there = output.look()
    if options.overwrite:
        return False
    _dedup_folder(options).refuse_other_runs(options.world_size, lambda journal: is_own(journal.fingerprint))
    whole = output.read_manifest() if MANIFEST_NAME in there else None
    if there and (whole is None or not is_own(whole.fingerprint)):
        raise ConfigError(
            f"output={output.name!r} is not empty: it holds {there[0]!r}, of other inputs or another world_size. "
            f"Choose another folder, or give overwrite=True to replace it."
        )
    return whole is not None


def _encode(
    source: FileSource,
    tokenizer: Tokenizer,
    options: PretokenizeOptions,
    whole: dict[str, object],
    seen_before: Digests,
    *,
    progress: Callable[[Progress], None] | None,
) -> StepDone:
    output = _rank_folder(options, options.rank)
    with output.claimed():
        journal = begin(output, run_of(whole | {"rank": options.rank}, options, whole))
        if isinstance(journal, Manifest):
            return StepDone(message=f"The complete set is in {options.output} already.")
        if journal.phase == "writing":
            job = Job(
                source=source.shard(options.rank, options.world_size),
                tokenizer=tokenizer,
                output=output,
                options=options,
                seen_before=as_digests(b""),
                progress=progress,
                drops=_read_drops(source, options, seen_before) if options.dedup else None,
            )
            journal = write_shards(job, journal)
    tokens = sum(shard.tokens for shard in journal.parts)
    return StepDone(
        message=f"Rank {options.rank} of {options.world_size} is complete: {journal.position.documents:,} documents, "
        f"{tokens:,} tokens in {len(journal.parts):,} files.{journal.position.lost.describe()} {_outstanding(options)}"
    )


def _finish(tokenizer: Tokenizer, options: PretokenizeOptions, whole: dict[str, object]) -> Manifest:
    output = OutputFolder(options.output, options.storage_options)
    with output.claimed():
        journal = begin(output, run_of(whole, options))
        if isinstance(journal, Manifest):
            output.clear_staging(others=True)  # what an earlier attempt had no time to
            return journal
        if journal.phase == "writing":
            journal = _joined(options, whole)
            output.write_journal(journal)
        # The joined journal's names are those of the ranks' folders already.
        manifest = publish(output, journal, encoding_of(tokenizer, options), staged_in="")
        output.clear_staging(others=True)
        return manifest


def _complete_journal(folder: OutputFolder) -> Journal | None:
    journal = folder.read_journal()
    return None if journal is None or journal.phase == "writing" else journal


def _outstanding(options: PretokenizeOptions) -> str:
    """What is still to be done for the whole set, in a sentence."""
    ranks = [rank for rank in range(options.world_size) if rank != options.rank]
    missing = [rank for rank in ranks if _complete_journal(_rank_folder(options, rank)) is None]
    if not missing:
        return "So are all others: run step='finish' to publish the set."
    return f"{_listed(missing).capitalize()} not complete yet; once all are, step='finish' publishes the set."


def _listed(ranks: Sequence[int]) -> str:
    """
    >>> _listed([3]), _listed([0, 2])
    ('rank 3 is', 'ranks 0, 2 are')
    """
    some = ", ".join(map(str, ranks[:_LISTED_RANKS])) + (", ..." if len(ranks) > _LISTED_RANKS else "")
    return f"rank {some} is" if len(ranks) == 1 else f"ranks {some} are"


def _joined(options: PretokenizeOptions, whole: dict[str, object]) -> Journal:
    """One journal of all ranks' journals.

    Raises:
        ConfigError: a rank is not complete, or of other inputs or options.
    """
    journals: list[Journal] = []
    missing: list[int] = []
    for rank in range(options.world_size):
        folder = _rank_folder(options, rank)
        journal = _complete_journal(folder)
        if journal is None:
            missing.append(rank)
            continue
        changed = differences(journal.fingerprint, whole | {"rank": rank})
        if changed:
            raise ConfigError(f"rank {rank} is of other inputs or options: {few(changed)}.")
        folder.check_staged(journal.parts)
        named = tuple(replace(shard, name=f"{folder.staging_name}/{shard.name}") for shard in journal.parts)
        journals.append(replace(journal, parts=named))
    if missing:
        raise ConfigError(
            f"{_listed(missing)} not complete, of {options.world_size}. Run step='encode' there to its end first."
        )
    shards = tuple(shard for journal in journals for shard in journal.parts)
    if not shards:
        raise ConfigError("the input holds no text: it gave not one token. Check the input and text_column.")
    positions = [journal.position for journal in journals]
    position = replace(
        positions[-1],
        documents=sum(each.documents for each in positions),
        text_bytes=sum(each.text_bytes for each in positions),
        skipped=Skipped(
            duplicates=sum(each.skipped.duplicates for each in positions),
            empty=sum(each.skipped.empty for each in positions),
            bad=sum(each.skipped.bad for each in positions),
        ),
        lost=sum((each.lost for each in positions), NOTHING_LOST),
        cut_documents=sum(each.cut_documents for each in positions),
    )
    bad = tuple(entry for journal in journals for entry in journal.bad_records)[:MAX_LISTED_BAD_RECORDS]
    return Journal(fingerprint=whole, phase="removing", parts=shards, position=position, bad_records=bad)


# --- duplicates over all ranks


def _hash_fingerprint(source: FileSource, options: PretokenizeOptions) -> str:
    values = [source.fingerprint(), options.hash, options.empty, options.world_size]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _drops_fingerprint(source: FileSource, options: PretokenizeOptions, seen_before: Digests) -> str:
    values = [_hash_fingerprint(source, options), seen_fingerprint(seen_before)]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _hash(source: FileSource, options: PretokenizeOptions) -> StepDone:
    digest = digest_function(options.hash)
    selection = Selection(
        on_bad_record=options.on_bad_record,
        empty=options.empty,
        max_record_bytes=options.max_record_bytes,
        dedup=None,
        skipped=Skipped(),
    )
    records = source.shard(options.rank, options.world_size).records()
    digests = b"".join([digest(each.record.text) for each in selection.documents(records)])
    _write_checked(_dedup_folder(options), f"hashes-{options.rank}", digests, _hash_fingerprint(source, options))
    return StepDone(
        message=f"Rank {options.rank} of {options.world_size}: {len(digests) // 16:,} records hashed. After all ranks' "
        f"step='hash', step='drops' finds the duplicates."
    )


def _find_drops(source: FileSource, options: PretokenizeOptions) -> StepDone:
    folder, fingerprint = _dedup_folder(options), _hash_fingerprint(source, options)
    ranks = range(options.world_size)
    hashes = [as_digests(_read_checked(folder, f"hashes-{rank}", fingerprint, "hash")) for rank in ranks]
    before = _seen_before(options)
    drops: list[npt.NDArray[np.bool_]] = [np.zeros(len(each), np.bool_) for each in hashes]
    for partition in range(_PARTITIONS):
        seen = SeenHashes()
        seen.add(before[_partition_of(before) == partition])
        for digests, drop in zip(hashes, drops, strict=True):
            for start in range(0, len(digests), _PIECE_DIGESTS):
                piece = digests[start : start + _PIECE_DIGESTS]
                chosen = np.flatnonzero(_partition_of(piece) == partition)
                drop[start + chosen] = ~seen.add(piece[chosen])
    drops_fingerprint = _drops_fingerprint(source, options, before)
    for rank, drop in enumerate(drops):
        content = len(drop).to_bytes(8, "little") + np.packbits(drop).tobytes()
        _write_checked(folder, f"drops-{rank}", content, drops_fingerprint)
    found, records = sum(int(each.sum()) for each in drops), sum(map(len, drops))
    return StepDone(message=f"{found:,} of {records:,} records are duplicates. Now step='encode', on every rank.")


def _partition_of(digests: Digests) -> npt.NDArray[np.uint64]:
    # Not the bits by which `SeenHashes` spreads its slots.
    return np.asarray(digests[:, 1] % np.uint64(_PARTITIONS), np.uint64)


def _read_drops(source: FileSource, options: PretokenizeOptions, seen_before: Digests) -> Drops:
    name = f"drops-{options.rank}"
    raw = _read_checked(_dedup_folder(options), name, _drops_fingerprint(source, options, seen_before), "drops")
    records = int.from_bytes(raw[:8], "little")
    return Drops(drop=np.unpackbits(np.frombuffer(raw[8:], np.uint8), count=records).astype(np.bool_))


def _write_checked(folder: OutputFolder, name: str, content: bytes, fingerprint: str) -> None:
    folder.write_staged(name, bytes.fromhex(fingerprint) + content)


def _read_checked(folder: OutputFolder, name: str, fingerprint: str, step: str) -> bytes:
    try:
        raw = folder.read_staged(name)
    except StorageError as error:
        raise ConfigError(f"{name} is not there: run step={step!r} first, and step='hash' on every rank.") from error
    if raw[:32] != bytes.fromhex(fingerprint):
        again = "step='drops'" if step == "drops" else "step='hash' and step='drops'"
        raise DataError(f"of other inputs, options or seen_hashes. Run {again} again.", path=name)
    return raw[32:]
