"""One set by many machines, which share nothing but the inputs and the output folder.

    step      run by      does
    hash      every rank  the hash of every record of its files        only with --dedup
    drops     one         which of all records are duplicates          only with --dedup
    encode    every rank  its files to parts, in a staging folder of its own; goes on after a kill, like any run
    finish    one         sees that all ranks are whole, moves their parts out in order, writes the manifest

Every rank has a run of whole files, so the parts, rank after rank, hold the documents in the order of the input: the
documents of one run on one rank, if cut into other parts. A step that is run twice does nothing the second time, or
the same again.

Duplicates over all ranks cannot be told while they encode. Hashes are 16 bytes a record; `drops` takes them in
partitions by their first bits, so it holds a partition's table, and a bit for each record.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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
from .parts import (
    Job,
    begin,
    encoding_of,
    few,
    fingerprint_of,
    open_seen_file,
    publish,
    run_of,
    seen_fingerprint,
    write_parts,
)
from .pipeline import Summary
from .progress import Progress

_PARTITIONS = 16
_PIECE_DIGESTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step that shows nothing yet.

    Attributes:
        message: what was done, and what comes next.
    """

    message: str

    def describe(self) -> str:
        """One paragraph for people."""
        return self.message


def ranks_from_environment(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and world size as torchrun, SLURM and Kubernetes tell them, or None.

    >>> ranks_from_environment({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "4"})
    (2, 4)
    """
    for rank, size, first in (
        ("RANK", "WORLD_SIZE", ""),
        ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
        ("SLURM_PROCID", "SLURM_NTASKS", ""),
        ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", ""),
    ):
        if rank in environment and size in environment:
            try:
                return int(environment[rank]) - int(environment.get(first, "0")), int(environment[size])
            except ValueError as exc:
                raise ConfigError(
                    f"{rank}={environment[rank]!r} and {size}={environment[size]!r} are no numbers. Give --rank and "
                    f"--world-size."
                ) from exc
    return None


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
            raise ConfigError(f"--step {options.step} is for --dedup alone: give it, or go on with --step encode.")
        if _is_whole(source, output, options):
            return StepDone(message=f"The whole set is in {options.output} already.")
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


def _is_whole(source: FileSource, output: OutputFolder, options: PretokenizeOptions) -> bool:
    """Whether the set is there, as far as can be told without a tokenizer.

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
            f"--output {output.name!r} is not empty: it holds {there[0]!r}, of other inputs or another --world-size. "
            f"Choose another folder, or give --overwrite to replace it."
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
            return StepDone(message=f"The whole set is in {options.output} already.")
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
            journal = write_parts(job, journal)
    tokens = sum(part.tokens for part in journal.parts)
    return StepDone(
        message=f"Rank {options.rank} of {options.world_size} is whole: {journal.position.documents:,} documents, "
        f"{tokens:,} tokens in {len(journal.parts):,} files.{journal.position.lost.describe()} When all ranks are, "
        f"--step finish shows the set."
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
        return publish(output, journal, encoding_of(tokenizer, options), staged_in="")


def _joined(options: PretokenizeOptions, whole: dict[str, object]) -> Journal:
    """One journal of all ranks' journals.

    Raises:
        ConfigError: a rank is not whole, or of other inputs or options.
    """
    journals: list[Journal] = []
    missing: list[str] = []
    for rank in range(options.world_size):
        folder = _rank_folder(options, rank)
        journal = folder.read_journal()
        if journal is None or journal.phase == "writing":
            missing.append(str(rank))
            continue
        changed = differences(journal.fingerprint, whole | {"rank": rank})
        if changed:
            raise ConfigError(f"rank {rank} is of other inputs or options: {few(changed)}.")
        folder.check_staged(journal.parts)
        named = tuple(replace(part, name=f"{folder.staging_name}/{part.name}") for part in journal.parts)
        journals.append(replace(journal, parts=named))
    if missing:
        raise ConfigError(
            f"rank {', '.join(missing)} of {options.world_size} is not whole. Run --step encode there to its end first."
        )
    parts = tuple(part for journal in journals for part in journal.parts)
    if not parts:
        raise ConfigError("the input holds no text: not one token came of it. Check the input and --text-column.")
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
    )
    bad = tuple(entry for journal in journals for entry in journal.bad_records)[:MAX_LISTED_BAD_RECORDS]
    return Journal(fingerprint=whole, phase="removing", parts=parts, position=position, bad_records=bad)


# --- duplicates over all ranks


def _hash_fingerprint(source: FileSource, options: PretokenizeOptions) -> str:
    values = [source.fingerprint(), options.hash, options.empty, options.world_size]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _drops_fingerprint(source: FileSource, options: PretokenizeOptions, seen_before: Digests) -> str:
    values = [_hash_fingerprint(source, options), seen_fingerprint(seen_before)]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _hash(source: FileSource, options: PretokenizeOptions) -> StepDone:
    digest = digest_function(options.hash)
    selection = Selection(on_bad_record=options.on_bad_record, empty=options.empty, dedup=None, skipped=Skipped())
    records = source.shard(options.rank, options.world_size).records()
    digests = b"".join([digest(each.record.text) for each in selection.documents(records)])
    _write_checked(_dedup_folder(options), f"hashes-{options.rank}", digests, _hash_fingerprint(source, options))
    return StepDone(
        message=f"Rank {options.rank} of {options.world_size}: {len(digests) // 16:,} records hashed. When all ranks "
        f"are, --step drops finds the duplicates."
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
    return StepDone(message=f"{found:,} of {records:,} records are duplicates. Now --step encode, on every rank.")


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
    except StorageError as exc:
        raise ConfigError(f"{name} is not there: run --step {step} first, and --step hash on every rank.") from exc
    if raw[:32] != bytes.fromhex(fingerprint):
        again = "--step drops" if step == "drops" else "--step hash and --step drops"
        raise DataError(f"of other inputs, options or --seen-hashes. Run {again} again.", path=name)
    return raw[32:]
