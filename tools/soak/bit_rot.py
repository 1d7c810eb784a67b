#!/usr/bin/env python3
"""Damage files, checkpoints and indexes by the thousand, and see that none of it passes for data.

    file with page checksums       one of the library's errors, or the same tokens; nothing else is ever delivered
    file without                   never a crash, a hang, a foreign error or an id beyond vocab_size
    checkpoint, saved index        refused
    index cache                    built again, with a warning

A damage is some flipped bits, a byte that is another, a cut, or a stretch that is overwritten with one from elsewhere.
Size and modification time stay what they were wherever they can, so that nothing but the bytes tells of it. Trials
run in forked children, since a crash is one of the things that are looked for; a child that dies or hangs names its
trial by the ones that it has finished.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import itertools
import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from reliability_docs import table, write_docs

from parquet_loader import (
    CheckpointError,
    ConfigError,
    DatasetIndex,
    ParquetLoader,
    ParquetLoaderError,
    build_index,
    merge_checkpoints,
)
from parquet_loader.formats.parquet.pages import plan_pages

VOCAB_SIZE = 1000
RUN: dict[str, Any] = {
    "seq_len": 32,
    "lanes": 4,
    "window": 2,
    "epochs": 1,
    "threads": 1,
    "budget_bytes": 256 << 20,
    "vocab_size": VOCAB_SIZE,
}
TRIALS_OF_A_CHILD = 100
HANG_SECONDS = 60
MEMORY_BYTES = 8 << 30  # a damaged number must not be taken for the size of a buffer

ENCODINGS: dict[str, dict[str, Any]] = {
    "dictionary": {"use_dictionary": True},
    "plain": {"use_dictionary": False},
    "byte stream split": {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    "delta": {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
}
CODECS = ("none", "snappy", "lz4", "zstd", "gzip")
PAGES = ("1.0", "2.0")

SAME, REFUSED, REBUILT, OTHER_TOKENS = "unchanged", "refused", "rebuilt with a warning", "other tokens, all in range"
GOOD = {SAME, REFUSED, REBUILT}

Span = tuple[int, int]

# ── damages ──────────────────────────────────────────────────────────────────────────────────────────────────────


def damaged(data: bytes, rng: np.random.Generator, *, span: Span | None = None, keep_size: bool = False) -> bytes:
    """Other bytes: the damage begins within ``span``, which is all of them if None. A cut may be filled with zeros."""
    first, end = span or (0, len(data))
    while True:
        changed = bytearray(data)
        at = int(rng.integers(first, end))
        match rng.choice(["bits", "byte", "cut", "splice"]):
            case "bits":
                for _ in range(int(rng.integers(1, 5))):
                    changed[int(rng.integers(first, end))] ^= 1 << int(rng.integers(8))
            case "byte":
                changed[at] = int(rng.integers(256))
            case "cut":
                changed[at:] = bytes(len(data) - at) if keep_size else b""
            case _:
                length = min(int(2 ** rng.uniform(0, 10)), len(data) - at)
                source = int(rng.integers(0, len(data) - length + 1))
                changed[at : at + length] = data[source : source + length]
        if changed != data:
            return bytes(changed)


# ── children ─────────────────────────────────────────────────────────────────────────────────────────────────────


def outcomes(count: int, trial: Callable[[int], str]) -> list[str]:
    """What comes of each of ``trial(0)``, ``trial(1)``, ...: what it returns, a foreign error, a crash or a hang."""
    found: list[str] = []
    while len(found) < count:
        numbers = range(len(found), min(count, len(found) + TRIALS_OF_A_CHILD))
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _child(numbers, trial, writing)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as pipe:
            found += [line.rstrip("\n") for line in pipe]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            found.append("hang" if code == -signal.SIGALRM else f"crash: the process ended with {code}")
    return found


def _child(numbers: Sequence[int], trial: Callable[[int], str], writing: int) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what pyarrow says when it ends the process
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in numbers:
            signal.alarm(HANG_SECONDS)  # ends the process
            try:
                outcome = trial(number)
            except Exception as error:
                outcome = f"foreign error: {type(error).__name__}: {error}".replace("\n", " ")[:300]
            os.write(writing, f"{outcome}\n".encode())
        code = 0
    finally:
        os._exit(code)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Layout:
    """A way of writing a file."""

    encoding: str
    codec: str
    page: str
    checksums: bool

    def __str__(self) -> str:
        return f"{self.encoding}, {self.codec}, pages {self.page}, {'with' if self.checksums else 'no'} checksums"


LAYOUTS = [Layout(*fields) for fields in itertools.product(ENCODINGS, CODECS, PAGES, (True, False))]


def write_file(path: Path, layout: Layout) -> None:
    """Three row groups of several pages each; documents of all lengths, some empty, some null."""
    rng = np.random.default_rng(1)
    schema = pa.schema([pa.field("tokens", pa.list_(pa.int32()))])
    with pq.ParquetWriter(
        path,
        schema,
        compression=layout.codec,
        data_page_version=layout.page,
        write_page_checksum=layout.checksums,
        data_page_size=1000,
        write_batch_size=16,
        **ENCODINGS[layout.encoding],
    ) as writer:
        for _ in range(3):
            documents: list[list[int] | None] = [
                (rng.geometric(0.02, int(length)) % VOCAB_SIZE).tolist() for length in rng.integers(0, 60, 40)
            ]
            documents[7] = None
            writer.write_table(pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}, schema=schema))


@dataclass(frozen=True, slots=True)
class Whole:
    """A file before anything happens to it."""

    path: Path
    data: bytes
    times: tuple[int, int]
    index: DatasetIndex
    batches: list[bytes]
    headers: list[Span]
    footer: Span

    @classmethod
    def of(cls, path: Path) -> Whole:
        """Read it."""
        data, status = path.read_bytes(), path.stat()
        index = build_index(path, cache_dir=path.parent / "cache")
        with ParquetLoader(path, index=index, **RUN) as loader:
            batches = [digest(batch.tokens, batch.lengths) for batch in loader]
        headers = []
        for chunk in map(index.chunk, range(len(index))):
            dictionary, pages = plan_pages(memoryview(data)[chunk.start :][: chunk.length], chunk)
            begin = 0
            for page in [*([dictionary] if dictionary else []), *pages]:
                headers.append((chunk.start + begin, chunk.start + page.start))
                begin = page.end
        footer = (len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data))
        return cls(path, data, (status.st_atime_ns, status.st_mtime_ns), index, batches, headers, footer)


def digest(tokens: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any] | None) -> bytes:
    """Of a batch."""
    return hashlib.blake2b(tokens.tobytes() + (b"" if lengths is None else lengths.tobytes())).digest()


def damage_file(whole: Whole, rng: np.random.Generator) -> str:
    """Damage a file, and read it: with an index from before, as a run does that goes on, or from its footer on."""
    is_indexed = bool(rng.random() < 0.5)
    where = rng.choice(["anywhere", "page header", "footer"], p=[0.5, 0.25, 0.25])
    span = (4, whole.footer[0]) if is_indexed else None
    if where == "page header":
        span = whole.headers[int(rng.integers(len(whole.headers)))]
    elif where == "footer" and not is_indexed:
        span = whole.footer
    whole.path.write_bytes(damaged(whole.data, rng, span=span, keep_size=is_indexed))
    os.utime(whole.path, ns=whole.times)
    no_cache = whole.path / "cache"  # it knows the footer as it was
    delivered = 0
    outcome = SAME
    try:
        with ParquetLoader(whole.path, index=whole.index if is_indexed else None, cache_dir=no_cache, **RUN) as loader:
            for batch in loader:
                if not 0 <= int(batch.tokens.min()) <= int(batch.tokens.max()) < VOCAB_SIZE:
                    return "an id out of range"
                if whole.batches[delivered : delivered + 1] != [digest(batch.tokens, batch.lengths)]:
                    outcome = OTHER_TOKENS
                delivered += 1
    except ParquetLoaderError:
        return REFUSED if outcome == SAME else outcome
    return outcome if delivered == len(whole.batches) else OTHER_TOKENS


@dataclass(frozen=True, slots=True)
class Found:
    """What came of damaging one kind of thing.

    Attributes:
        what: the kind.
        counts: of each outcome.
        bad: the trials that must not end as they did: what they were, and how they ended.
    """

    what: str
    counts: Counter[str]
    bad: list[str]


def _found(what: str, results: Sequence[str], allowed: set[str], describe: Callable[[int], str]) -> Found:
    bad = [f"{what}, {describe(number)}: {result}" for number, result in enumerate(results) if result not in allowed]
    return Found(what, Counter(result if result in allowed else "BAD" for result in results), bad)


def rot_files(folder: Path, trials: int, seed: int) -> list[Found]:
    """Damage files of every layout, with checksums and without."""
    found = []
    for checksums in (True, False):
        what = f"files {'with' if checksums else 'without'} page checksums"
        layouts = [layout for layout in LAYOUTS if layout.checksums == checksums]
        wholes = []
        for number, layout in enumerate(layouts):
            path = folder / f"{int(checksums)}-{number:02}.parquet"
            write_file(path, layout)
            wholes.append(Whole.of(path))

        def trial(number: int, wholes: list[Whole] = wholes, checksums: bool = checksums) -> str:
            rng = np.random.default_rng([seed, checksums, number])
            return damage_file(wholes[number % len(wholes)], rng)

        def describe(number: int, layouts: list[Layout] = layouts) -> str:
            return f"trial {number} ({layouts[number % len(layouts)]})"

        results = outcomes(trials, trial)
        found.append(_found(what, results, GOOD if checksums else {*GOOD, OTHER_TOKENS}, describe))
    return found


# ── what the library writes itself ───────────────────────────────────────────────────────────────────────────────


def rot_own_files(folder: Path, trials: int, seed: int) -> list[Found]:
    """Damage checkpoints, saved indexes and index caches."""
    folder.mkdir()
    for number, layout in enumerate(LAYOUTS[::7]):
        (folder / "set").mkdir(exist_ok=True)
        write_file(folder / "set" / f"{number}.parquet", layout)
    cache = folder / "cache"
    index = build_index(folder / "set", cache_dir=cache)
    (cache_file,) = cache.iterdir()
    cached = cache_file.read_bytes()
    parts = []
    for rank in range(2):
        with ParquetLoader(folder / "set", index=index, rank=rank, world_size=2, **RUN) as loader:
            next(iter(loader))
            parts.append(loader.checkpoint())
    merged = merge_checkpoints(parts)

    def checkpoint(number: int) -> str:
        rng = np.random.default_rng([seed, 2, number])
        loader = ParquetLoader(folder / "set", index=index, **RUN)
        before = loader.state_dict()
        for read in (
            lambda: loader.resume(damaged(merged, rng)),
            lambda: merge_checkpoints([damaged(parts[0], rng), parts[1]]),
        ):
            try:
                read()
            except CheckpointError:
                continue
            return "taken for whole"
        return REFUSED if loader.state_dict() == before else "the position is another"

    def saved_index(number: int) -> str:
        path = folder / f"saved-{os.getpid()}"
        path.write_bytes(damaged(index.to_bytes(), np.random.default_rng([seed, 3, number])))
        try:
            ParquetLoader(folder / "set", index=path, **RUN)
        except ConfigError:
            return REFUSED
        finally:
            path.unlink()
        return "taken for whole"

    def index_cache(number: int) -> str:
        cache_file.write_bytes(damaged(cached, np.random.default_rng([seed, 4, number])))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            rebuilt = build_index(folder / "set", cache_dir=cache)
        if rebuilt.to_bytes() != index.to_bytes():
            return "another index"
        if not any("damaged" in str(warning.message) for warning in said):
            return "no warning"
        return REBUILT if cache_file.read_bytes() == cached else "the cache is not mended"

    found = []
    kinds = {"checkpoints": checkpoint, "saved indexes": saved_index, "index caches": index_cache}
    for what, trial in kinds.items():
        results = outcomes(trials, trial)
        found.append(_found(what, results, {REBUILT if what == "index caches" else REFUSED}, "trial {}".format))
    return found


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────────


def summary(results: Sequence[Found]) -> str:
    """A table of what happened."""
    columns = [REFUSED, REBUILT, SAME, OTHER_TOKENS, "BAD"]
    head = ["damaged", "trials", *columns[:-1], "crash, hang, foreign error, id out of range, wrong token"]
    rows: list[list[str | int]] = [
        [result.what, result.counts.total(), *(result.counts[column] for column in columns)] for result in results
    ]
    return table(head, rows)


def rot(folder: Path, *, file_trials: int, own_trials: int, seed: int) -> list[Found]:
    """Damage everything: ``file_trials`` with and as many without page checksums, ``own_trials`` of each other kind."""
    (folder / "files").mkdir(parents=True)
    return [*rot_files(folder / "files", file_trials, seed), *rot_own_files(folder / "own", own_trials, seed)]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--file-trials", type=int, default=3000, help="with page checksums, and as many without")
    parser.add_argument("--own-trials", type=int, default=1000, help="of checkpoints, saved indexes and caches, each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write-docs", action="store_true", help="put the summary into docs/reliability.md")
    arguments = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="bit-rot-"))
    warnings.filterwarnings("ignore", message="the index cache")
    results = rot(folder, file_trials=arguments.file_trials, own_trials=arguments.own_trials, seed=arguments.seed)
    shutil.rmtree(folder)
    text = summary(results)
    print(text)
    bad = [line for result in results for line in result.bad]
    print(*bad, sep="\n")
    if arguments.write_docs and not bad:
        write_docs("bit rot", text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
