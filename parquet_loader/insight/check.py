"""Every byte of a set, read once: what is damaged, miscounted, out of range, doubled, or another than it was.

    files ──► footers, anew ──► index ──► units: row groups of a file, one after another, ──► faults
                                          and the bytes of the file between them
                                                                       hashes of documents ──► duplicates

Nothing ends the check but an interrupt: what cannot be read is a fault, and the rest is looked at. What is done is kept
in a file, so that the next check goes on from there; and once all is done, a checksum of every row group and of the
bytes between them, so that whatever changes later without a trace is found by the next check, also in footers, and in
files whose writer gave no checksums.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.processes import check_storage
from ..engine.rows import MOST_ROW_TOKENS, RowLayout
from ..errors import ConfigError, ParquetLoaderError
from ..formats.base import ENTRY_ARRAYS, ColumnChunk
from ..index.build import raw_dtype_of
from ..index.index import DatasetIndex
from ..options import Aligned, aligned_columns, all_cores, check_packing, file_format, integer
from ..remarks import of_growth, of_streams
from ..storage.base import Storage
from ..storage.opening import Source, open_storage
from ..storage.retry import RETRY_SECONDS
from .check_state import CheckState, Earlier, Fault, refuse_state, state_path
from .needs import Needs
from .readable import fault_of, readable_index
from .scan import DOCUMENT, FIELDS, Questions, copies, documents_outside
from .units import Looked, Unit, units_of
from .workers import looked_at

__all__ = ["CheckReport", "Duplicates", "Ends", "Fault", "Place", "check"]

_WORTH_PROCESSES_BYTES = 256 << 20  # each takes half a second to start
_REMOTE_REQUESTS = 16  # at once, each of which waits for a network
_SAVE_SECONDS = 60.0
_EXAMPLES = 10
_SEARCHED_GROUPS = 100  # for the documents whose ids the footer does not allow: each is read once more
_HELD_BYTES = 96  # of a document, while hashes are sorted, or written
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A document: the file, relative to the root, the row group in it, the document in that; and its tokens."""

    path: str
    row_group: int
    document: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Documents that are the same as an earlier one, token by token. Empty ones do not count.

    Attributes:
        documents: how many there are beyond the first of each.
        tokens: in them.
        share: of all tokens looked at.
        every: of the documents one in so many was looked at, by content, so that all copies of one are among them; 1
            for all.
        examples: (an earlier one, a later one) of a few.
    """

    documents: int
    tokens: int
    share: float
    every: int
    examples: tuple[tuple[Place, Place], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """How documents stand to an id that ends them.

    Attributes:
        eos_id: the id.
        ending: documents that end with it: a loader with this ``eos_id`` would append a second one.
        missing: documents that do not, empty ones among them; of a stream the ends of row groups that cut a document
            in two, or of files that do not end with it.
        inside: how often the id comes elsewhere.
        doubled: documents that end with two.
        example: the first document that ends otherwise; None of a stream.
    """

    eos_id: int
    ending: int
    missing: int
    inside: int
    doubled: int
    example: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check found.

    Attributes:
        root: where the files lie.
        column: the token column.
        format: of the files; those of Parquet alone may have checksums.
        files, row_groups, documents, tokens: that were read, of those that could be.
        empty: documents without a token.
        min_id, max_id: of all tokens; None where there is none.
        faults: everything that is wrong, by file and row group.
        notes: what is worth knowing, and not wrong.
        is_stream: whether ``eos_id`` is what tells documents apart, and no loader appends one.
        ends: how documents end; None without ``eos_id``.
        duplicates: None where they were not looked for.
        longest: the longest documents, the longest one first.
        needs: what was asked of it beyond that, see `Needs`.
        read_bytes: that were read, in all of the check's parts.
        continued: row groups that an earlier, interrupted check had done.
        state: the file that keeps what was found; None where there is none.
    """

    root: str
    column: str
    format: str
    files: int
    row_groups: int
    documents: int
    tokens: int
    empty: int
    min_id: int | None
    max_id: int | None
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    is_stream: bool
    ends: Ends | None
    duplicates: Duplicates | None
    longest: tuple[Place, ...]
    needs: Needs
    read_bytes: int
    continued: int = field(compare=False)
    state: str | None = field(compare=False)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def check(
    source: Source,
    *,
    column: str | None = None,
    eos_id: int | None = None,
    vocab_size: int | None = None,
    index: DatasetIndex | str | os.PathLike[str] | None = None,
    duplicates: bool = True,
    all_columns: bool = True,
    state: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    processes: bool | None = False,
    memory_bytes: int = 4 << 30,
    retry_seconds: float = RETRY_SECONDS,
    progress: Progress | None = None,
    format: str | None = None,
    raw_dtype: object = None,
    aligned: Aligned = (),
    packing: str = "tokens",
    seq_len: int | None = None,
    overlap: int = 0,
    pad_id: int | None = None,
) -> CheckReport:
    """Read every byte of a set, and say everything that is wrong with it.

    Page checksums are verified where the writer gave them, as only those of Parquet do, of all columns; documents,
    tokens and statistics compared with the footers; and every byte with an earlier check of the same files. It may be
    interrupted: the next one goes on.

    Args:
        source: a folder, a file, a glob or a URL, or a list of them.
        column: the token column; None where only one column can be meant.
        eos_id: the id that ends documents, to see which have it.
        vocab_size: ids are to be below it.
        index: of the files as they were, or the path of a saved one: every difference is a fault.
        duplicates: whether to look for documents that are the same.
        all_columns: whether to read the bytes of other columns, too, for the comparison with a later check.
        state: the file that keeps what is done; None for one in the cache folder.
        storage_options: for the fsspec filesystem of a URL.
        cache_dir: None for the user's cache folder.
        threads: stretches of files looked at at once; None for one a core, and 16 at least over a network.
        processes: whether in as many processes, which do not wait for each other's turn in Python; None where the set
            is large enough. They import the main module, which must have a guard, ``if __name__ == "__main__":``.
        memory_bytes: for the hashes of documents, of which each takes 24 bytes, and 96 while they are sorted, or
            written. Where there are more documents than that, those of every second, third, ... content are looked at.
        retry_seconds: how long a request over the network is tried again once it has failed.
        progress: called with (bytes done, bytes in all), from this thread.
        format, raw_dtype: see `build_index`.
        aligned: columns that a run has beside the tokens: each is read too, and must have as many values as tokens in
            every document.
        packing, seq_len, overlap, pad_id: of a run, see `ParquetLoader`: with ``packing="rows"`` every document must be
            a row as it takes them.

    Raises:
        ConfigError: arguments that cannot work, no list of integers, or a ``state`` that is another file.
        StorageError: a path that cannot be listed, no file that can be read, or a ``state`` that cannot be written.
    """
    eos_id = None if eos_id is None else integer("eos_id", eos_id, 0)
    vocab_size = None if vocab_size is None else integer("vocab_size", vocab_size, 1)
    if eos_id is not None and vocab_size is not None and eos_id >= vocab_size:
        raise ConfigError(f"eos_id must be an integer in [0, {vocab_size - 1}], not {eos_id!r}")
    if state is not None:
        refuse_state(Path(state).expanduser())
    needs = Needs(aligned=tuple(aligned_columns(aligned)), rows=_rows(packing, seq_len, overlap, pad_id))
    dtype = raw_dtype_of(raw_dtype)
    storage = open_storage(source, storage_options, retry_seconds=retry_seconds, kind=file_format(format), growing=True)
    workers = threads or (max(_REMOTE_REQUESTS, all_cores()) if storage.is_remote else all_cores())
    expected = index if isinstance(index, DatasetIndex) or index is None else DatasetIndex.load(index)
    column = column or (expected.column if expected is not None else None)
    found, faults = readable_index(storage, column, workers, format, dtype)
    found.check_eos(eos_id)
    needs.check(found)
    if expected is not None:
        faults += _differences(expected, found)
    documents = int(found.rows.sum())
    every = max(1, -(-documents * _HELD_BYTES // memory_bytes)) if duplicates else 0
    largest = int(found.max_id.max(initial=-1))
    narrowest = next((each for each in ("uint16", "int32") if largest <= np.iinfo(each).max), "int64")
    questions = Questions(vocab_size=vocab_size, eos_id=eos_id, every=every, dtype=narrowest)
    path = Path(state).expanduser() if state is not None else state_path(cache_dir, storage.identity, found.column)
    kept = CheckState.opened(path, found, dataclasses.asdict(questions) | {"all_columns": all_columns})
    run = _Check(storage, found, questions, kept, all_columns=all_columns, progress=progress)
    in_processes = _in_processes(storage, run.total_bytes, workers) if processes is None else processes
    if in_processes:
        check_storage(storage, workers)
    continued = int(kept.done.sum())
    try:
        run.scan(workers, in_processes)
        told = run.duplicates() if every else None
    except BaseException:
        kept.save()
        raise
    faults = [*faults, *run.faults(), *needs.faults(storage, found, workers)]
    notes = [*found.remarks(), *of_growth(storage), *of_streams(found, storage, eos_id), *_of_ends(found, run.ends())]
    unreadable = {fault.path for fault in faults if fault.kind == "unreadable"}
    changes = kept.changes(unreadable)
    if changes is not None:
        notes.append(changes)
    if kept.finish(faults_of_files=unreadable) is not None:
        notes.append(f"what was found could not be kept for the next check ({kept.problem}): give a state to write")
    numbers = dict(zip(FIELDS, kept.numbers.T, strict=True))
    held = numbers["tokens"] > 0
    return CheckReport(
        root=storage.root,
        column=found.column,
        format=found.format,
        files=len(found.files),
        row_groups=len(found),
        documents=int(numbers["documents"].sum()),
        tokens=int(numbers["tokens"].sum()),
        empty=int(numbers["empty"].sum()),
        min_id=int(numbers["min_id"][held].min()) if held.any() else None,
        max_id=int(numbers["max_id"][held].max()) if held.any() else None,
        faults=tuple(sorted(set(faults), key=_place_of)),
        notes=tuple(notes),
        is_stream=found.is_stream,
        ends=run.ends(),
        duplicates=told,
        longest=tuple(run.place(group, document, tokens) for tokens, group, document in kept.longest),
        needs=needs,
        read_bytes=run.total_bytes,
        continued=continued,
        state=str(kept.path) if kept.path is not None else None,
    )


def _rows(packing: str, seq_len: int | None, overlap: int, pad_id: int | None) -> RowLayout | None:
    """What the rows of a run are, if they are packed already."""
    check_packing(packing)
    if packing != "rows":
        return None
    if seq_len is None:
        raise ConfigError("packing='rows' needs the seq_len that the rows were packed for (--seq-len)")
    return RowLayout(
        seq_len=integer("seq_len", seq_len, 1, MOST_ROW_TOKENS - 1),
        overlap=integer("overlap", overlap, 0, 1),
        pad_id=None if pad_id is None else integer("pad_id", pad_id, 0),
        ids=np.dtype(np.int32),
    )


def _in_processes(storage: Storage, total_bytes: int, workers: int) -> bool:
    """Whether processes are worth their start, and can read the files; a network is best kept busy by threads."""
    if workers == 1 or storage.is_remote or total_bytes < _WORTH_PROCESSES_BYTES:
        return False
    try:
        check_storage(storage, workers)
    except ConfigError:
        return False
    return True


def _of_ends(index: DatasetIndex, ends: Ends | None) -> Iterator[str]:
    """What to say of a stream in which nothing ends with what is to end its documents."""
    if index.is_stream and ends is not None and not ends.ending:
        yield f"the id {ends.eos_id} ends no document, and each row group counts as one: give another eos_id"


# ── the files as they are ────────────────────────────────────────────────────────────────────────────────────────


def _differences(expected: DatasetIndex, found: DatasetIndex) -> list[Fault]:
    """How files are other ones than an index says."""
    faults = []
    before = {file.path: number for number, file in enumerate(expected.files)}
    now = {file.path: number for number, file in enumerate(found.files)}

    def fault(path: str, problem: str) -> None:
        faults.append(Fault(kind="changed", path=path, row_group=None, problem=problem))

    for path in sorted(before.keys() | now.keys()):
        if path not in now:
            fault(path, "is in the index, and cannot be read any more")
        elif path not in before:
            fault(path, "is not in the index: it is new")
        elif expected.files[before[path]].size != found.files[now[path]].size:
            sizes = expected.files[before[path]].size, found.files[now[path]].size
            fault(path, f"has {sizes[1]:,} bytes, and {sizes[0]:,} in the index: it was written anew")
        else:
            old, new = (_numbers(one, number) for one, number in ((expected, before[path]), (found, now[path])))
            if not np.array_equal(old, new):
                fault(path, "its footer is another one than the index has: it was written anew, or is damaged")
    return faults


def _numbers(index: DatasetIndex, file: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.stack([getattr(index, name)[index.groups_of(file)] for name in ENTRY_ARRAYS])


def _place_of(fault: Fault) -> tuple[str, int, str, str]:
    return fault.path, -1 if fault.row_group is None else fault.row_group, fault.kind, fault.problem


# ── reading all of it ────────────────────────────────────────────────────────────────────────────────────────────


class _Check:
    """A check that runs."""

    def __init__(
        self,
        storage: Storage,
        index: DatasetIndex,
        questions: Questions,
        state: CheckState,
        *,
        all_columns: bool,
        progress: Progress | None,
    ) -> None:
        self._storage = storage
        self._index = index
        self._questions = questions
        self._state = state
        self._progress = progress
        self._all_columns = all_columns
        self._searched = 0
        self.total_bytes = sum(file.size for file in index.files) if all_columns else int(index.length.sum())

    def place(self, group: int, document: int, tokens: int) -> Place:
        """A document of a row group of the index."""
        path = self._index.files[int(self._index.file[group])].path
        return Place(path=path, row_group=int(self._index.row_group[group]), document=document, tokens=tokens)

    def scan(self, workers: int, processes: bool) -> None:
        """Look at everything that is not done, on so many threads, or in processes."""
        done = self._done_bytes()
        saved, cost = time.monotonic(), 0.0
        rest = self._state.rest if self._all_columns else None
        units = units_of(self._index, self._questions, self._state.done, rest)
        for unit, found in looked_at(self._storage, units, workers, processes=processes):
            self._keep(unit, found)
            done += unit.size
            if self._progress is not None:
                self._progress(done, self.total_bytes)
            if (begun := time.monotonic()) - saved > max(_SAVE_SECONDS, 20 * cost):
                self._state.save()
                saved = time.monotonic()
                cost = saved - begun

    def _done_bytes(self) -> int:
        lengths, done = self._index.length, self._state.done
        if not self._all_columns:
            return int(lengths[done].sum())
        sizes = np.array([file.size for file in self._index.files], np.int64)
        rests = sizes - np.bincount(self._index.file, weights=lengths, minlength=len(sizes)).astype(np.int64)
        return int(lengths[done].sum() + rests[self._state.rest != -1].sum())

    def _keep(self, unit: Unit, found: list[Looked]) -> None:
        state, path = self._state, unit.file.path
        if not unit.groups:
            (rest,) = found
            state.keep_rest(
                unit.number, rest.checksum, self._faults_of(rest, path, None, state.earlier_rest(unit.number))
            )
            return
        for group, chunk, each in zip(unit.groups, unit.chunks, found, strict=True):
            faults = self._faults_of(each, path, chunk.row_group, state.earlier_group(group))
            if each.scanned is not None:
                faults += self._judged(group, chunk, dict(zip(FIELDS, each.scanned.numbers.tolist(), strict=True)))
            state.keep(group, each.scanned, each.checksum, faults)

    def _faults_of(self, found: Looked, path: str, row_group: int | None, earlier: Earlier | None) -> list[Fault]:
        faults = []
        if found.error is not None:
            faults.append(fault_of(found.error, "damaged", path, row_group))
        if earlier is not None and found.checksum not in (earlier.checksum, -1):
            what = "the bytes outside of the token column, such as its footer," if row_group is None else "its bytes"
            problem = (
                f"{what} are other ones than in the check of {earlier.date}, though size and time of the file are the "
                "same: take the file from a copy, or write it anew"
            )
            faults.append(Fault(kind="damaged", path=path, row_group=row_group, problem=problem))
        return faults

    def _judged(self, group: int, chunk: ColumnChunk, of: Mapping[str, int]) -> list[Fault]:
        """What is wrong with a row group that could be decoded."""
        faults = []

        def fault(kind: str, problem: str) -> None:
            faults.append(Fault(kind=kind, path=chunk.path, row_group=chunk.row_group, problem=problem))

        if of["out_of_range"]:
            size = self._questions.vocab_size
            bounds = f"outside [0, {size})" if size is not None else "below 0"
            fault(
                "ids",
                f"{of['out_of_range']:,} ids are {bounds}, from {of['min_id']} to {of['max_id']}, the first in "
                f"document {of['first_out_of_range']}; check vocab_size and the tokenizer that wrote the file",
            )
        low, high = int(self._index.min_id[group]), int(self._index.max_id[group])
        if of["tokens"] and high >= 0 and (low, high) != (of["min_id"], of["max_id"]):
            fault(
                "statistics",
                f"its ids are from {of['min_id']} to {of['max_id']}, and its footer says from {low} to {high}"
                f"{self._outside(chunk, low, high)}; the data is damaged, the footer is, or its writer was wrong: take "
                "the file from a copy, or write it anew",
            )
        return faults

    def _outside(self, chunk: ColumnChunk, low: int, high: int) -> str:
        """Which documents have ids that the footer does not allow, in words; of the first such row groups alone."""
        if self._searched == _SEARCHED_GROUPS:
            return ""
        self._searched += 1
        try:
            _, opened = self._index.open(self._storage, chunk)
            found = documents_outside(opened.parts(), low, high)
        except ParquetLoaderError:  # it could be read before, and is told as it was then
            return ""
        if not found:
            return ""
        shown = ", ".join(map(str, found[:_EXAMPLES]))
        more = f" and {len(found) - _EXAMPLES:,} more" if len(found) > _EXAMPLES else ""
        return f" (others are in document{'s' if len(found) > 1 else ''} {shown}{more})"

    def faults(self) -> list[Fault]:
        """All faults of what was read, and how documents end where some do otherwise."""
        found = list(self._state.faults)
        ends = self.ends()
        # In a stream a row group may end within a document.
        if ends is not None and ends.ending and ends.missing and not self._index.is_stream:
            assert ends.example is not None
            found.append(
                Fault(
                    kind="eos",
                    path=ends.example.path,
                    row_group=ends.example.row_group,
                    problem=f"{ends.missing:,} documents do not end with {ends.eos_id}, and {ends.ending:,} do: with "
                    "eos_id the latter get two, and without the former none; the first without is document "
                    f"{ends.example.document} here",
                )
            )
        return found

    def ends(self) -> Ends | None:
        """See `Ends`."""
        eos_id = self._questions.eos_id
        if eos_id is None:
            return None
        of = dict(zip(FIELDS, self._state.numbers.T, strict=True))
        lacking = np.flatnonzero(of["first_eos_missing"] >= 0)
        example = None
        if len(lacking) and not self._index.is_stream:
            example = self.place(int(lacking[0]), int(of["first_eos_missing"][lacking[0]]), 0)
        missing = int(of["eos_missing"].sum())
        return Ends(
            eos_id=eos_id,
            ending=int(of["documents"].sum()) - missing,
            missing=missing,
            inside=int(of["eos_inside"].sum()),
            doubled=int(of["eos_doubled"].sum()),
            example=example,
        )

    def duplicates(self) -> Duplicates:
        """Documents whose hashes are equal."""
        state, every = self._state, self._questions.every
        counts = np.array([len(each) for each in state.documents], np.int64)
        kept = np.concatenate([np.empty(0, DOCUMENT), *state.documents])
        found = copies(kept, _EXAMPLES)
        ends = np.cumsum(counts)

        def place(number: int) -> Place:
            group = int(np.searchsorted(ends, number, side="right"))
            return self.place(group, int(kept["document"][number]), int(kept["tokens"][number]))

        all_tokens = int(state.numbers[:, FIELDS.index("tokens")].sum())
        return Duplicates(
            documents=found.documents,
            tokens=found.tokens,
            share=found.tokens * every / all_tokens if all_tokens else 0.0,
            every=every,
            examples=tuple((place(one), place(other)) for one, other in found.examples),
        )
