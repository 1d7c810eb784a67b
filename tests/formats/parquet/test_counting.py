"""Tokens counted from the data, where footers do not count them or count them wrongly."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from subprocesses import run
from writers import REPEATED, RLE_DICTIONARY, data_page, file_by_hand, list_by_hand, schema_leaf, write_pyarrow

from parquet_loader import DataError, ParquetLoader, build_index
from parquet_loader.cli import main
from parquet_loader.formats.parquet import entries, thrift
from parquet_loader.index import build
from parquet_loader.storage.base import FileInfo
from parquet_loader.storage.local import LocalStorage

DOCUMENTS: list[list[int] | None] = [[1, 2], [], None, [3], [], [4, 5, 6]] * 5
TOKENS = [1, 2, 3, 4, 5, 6] * 5
ARROW = b"parquet-cpp-arrow version "


def rewrite_footer(path: Path, *, writer: str | None = None, nulls: int | None = None) -> None:
    """Change who wrote a file, and how many nulls its statistics of four-byte integers count."""
    data = path.read_bytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    changed = footer
    if writer is not None:
        changed, count = re.subn(
            rb"[\x10-\x7f]" + ARROW + rb"\d+\.\d+\.\d+", lambda _: thrift.binary(writer.encode()), changed
        )
        assert count == 1
    if nulls is not None:
        bounds = rb"(\x18\x04.{4}\x18\x04.{4}\x16)[\x00-\x7f]"
        changed, count = re.subn(bounds, lambda found: found[1] + thrift.integer(nulls), changed, flags=re.DOTALL)
        assert count
    path.write_bytes(data[: -8 - len(footer)] + changed + len(changed).to_bytes(4, "little") + b"PAR1")


def tokens_of(source: Path, **options: Any) -> list[int]:
    with ParquetLoader(source, seq_len=1, lanes=1, shuffle=False, **options) as loader:
        return [int(batch.tokens[0, 0]) for batch in loader]


# ── footers that count wrongly ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "writer",
    [
        "parquet-cpp-arrow version 6.0.1",
        "parquet-cpp-arrow version 0.17.1",
        "parquet-cpp version 1.5.1-SNAPSHOT",
        "Arrow2 - Native Rust implementation of Arrow",
        "Polars",
        "parquet-rs version 4.4.0 (build 0)",
        "parquet-mr version 1.7.0",
    ],
)
def test_null_counts_of_a_writer_known_to_count_wrongly_are_not_believed(tmp_path: Path, writer: str) -> None:
    write_pyarrow(tmp_path / "0.parquet", DOCUMENTS, rows=7)
    write_pyarrow(tmp_path / "1.parquet", DOCUMENTS, rows=7)
    right = build_index(tmp_path)
    rewrite_footer(tmp_path / "1.parquet", writer=writer, nulls=0)
    found = build_index(tmp_path)
    assert found.tokens.tolist() == right.tokens.tolist()
    assert found.max_id.tolist() == right.max_id.tolist()
    assert tokens_of(tmp_path) == TOKENS * 2


@pytest.mark.parametrize(
    "writer",
    [
        "parquet-cpp-arrow version 7.0.0",
        "parquet-cpp-arrow version 26.0.1",
        "Polars (python) version 2.1.0",
        "parquet-rs version 53.0.0",
        "parquet-mr version 1.12.3",
    ],
)
def test_null_counts_of_other_writers_are_believed(tmp_path: Path, writer: str) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1], [2, 3]])
    rewrite_footer(tmp_path / "x.parquet", writer=writer, nulls=1)
    assert build_index(tmp_path).tokens.tolist() == [2]


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A set whose second file counts no nulls though it has some."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("0", "1"):
        write_pyarrow(folder / f"{name}.parquet", DOCUMENTS, rows=15)
    rewrite_footer(folder / "1.parquet", nulls=0)
    return folder


def test_a_wrong_count_is_an_error_that_names_the_cure(wrong: Path) -> None:
    with pytest.raises(
        DataError, match=r"1\.parquet, row group 0.*holds \d+ tokens .* says \d+; .*recount=True.*--recount"
    ):
        tokens_of(wrong)


def test_an_index_that_recounts_is_right_and_so_is_the_cache_after_it(wrong: Path) -> None:
    build_index(wrong)
    assert tokens_of(wrong, index=build_index(wrong, recount=True)) == TOKENS * 2
    assert tokens_of(wrong) == TOKENS * 2


def test_the_command_recounts(wrong: Path, tmp_path: Path) -> None:
    output = tmp_path / "index.msgpack"
    assert main(["index", str(wrong), "--output", str(output), "--recount"]) == 0
    assert tokens_of(wrong, index=output) == TOKENS * 2


def test_nulls_counted_that_are_tokens_are_an_error_that_names_the_cure(wrong: Path) -> None:
    rewrite_footer(wrong / "1.parquet", nulls=12)
    with pytest.raises(DataError, match=r"1\.parquet, row group 0.*holds 14 tokens .* says 10; .*recount=True"):
        tokens_of(wrong)
    assert tokens_of(wrong, index=build_index(wrong, recount=True)) == TOKENS * 2


# ── footers that do not count ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint32(), pa.int64(), pa.uint64()])
@pytest.mark.parametrize("page", ["1.0", "2.0"])
@pytest.mark.parametrize("encoding", ["dictionary", "PLAIN", "DELTA_BINARY_PACKED"])
def test_counting_by_levels_finds_what_statistics_say(tmp_path: Path, encoding: str, page: str, kind: Any) -> None:
    rng = np.random.default_rng(3)
    lengths = [*rng.integers(0, 4, 300), 900, *rng.integers(0, 40, 100), *[0] * 100, 500]
    documents = [None if row % 11 == 3 else rng.integers(5, 2**31, n).tolist() for row, n in enumerate(lengths)]
    values = (
        {"use_dictionary": True} if encoding == "dictionary" else {"use_dictionary": False, "column_encoding": encoding}
    )
    options = {"rows": 300, "data_page_version": page, "data_page_size": 500, "write_batch_size": 32, **values}
    for name, statistics in (("with", True), ("without", False)):
        (tmp_path / name).mkdir()
        write_pyarrow(
            tmp_path / name / "x.parquet", documents, kind=pa.list_(kind), write_statistics=statistics, **options
        )
    right, counted = build_index(tmp_path / "with"), build_index(tmp_path / "without")
    assert right.tokens.tolist() == counted.tokens.tolist()
    if encoding != "DELTA_BINARY_PACKED":  # whose values would have to be decoded
        assert right.max_id.tolist() == counted.max_id.tolist()
        assert right.min_id.tolist() == counted.min_id.tolist()


def test_pages_that_have_to_be_decoded_whole_are_counted(tmp_path: Path) -> None:
    def hadoop(body: bytes) -> bytes:
        block = pa.compress(body, "lz4_raw", asbytes=True)
        return len(body).to_bytes(4, "big") + len(block).to_bytes(4, "big") + block

    file = list_by_hand(
        [[1, 2, 9], [], [4]],
        [schema_leaf("tokens", REPEATED)],
        ["tokens"],
        empty=0,
        present=1,
        codec=5,
        compress=hadoop,
    )
    (tmp_path / "x.parquet").write_bytes(file)
    index = build_index(tmp_path)
    assert (index.tokens.tolist(), index.max_id.tolist(), index.min_id.tolist()) == ([4], [9], [1])


def test_levels_that_end_too_early_are_an_error(tmp_path: Path) -> None:
    def with_length(runs: bytes) -> bytes:
        return len(runs).to_bytes(4, "little") + runs

    body = with_length(bytes([6, 0])) + with_length(bytes([4, 1])) + bytes(12)
    file = file_by_hand([schema_leaf("tokens", REPEATED)], ["tokens"], data_page(body, 3), slots=3, rows=3)
    (tmp_path / "x.parquet").write_bytes(file)
    with pytest.raises(DataError, match=r"x\.parquet, row group 0.*fewer than its 3 slots"):
        build_index(tmp_path)


def write_zeros(path: Path, slots: int) -> None:
    """A document of zeros, and as many empty ones, in a file of a few hundred bytes."""

    def levels(*runs: tuple[int, int]) -> bytes:
        section = b"".join(thrift.varint(count << 1) + bytes([level]) for count, level in runs)
        return len(section).to_bytes(4, "little") + section

    head = thrift.struct((1, thrift.I32, 1), (2, thrift.I32, 0))
    dictionary = thrift.struct((1, thrift.I32, 2), (2, thrift.I32, 4), (3, thrift.I32, 4), (7, thrift.STRUCT, head))
    body = levels((1, 0), (slots - 1, 1), (slots, 0)) + levels((slots, 1), (slots, 0))
    body += bytes([1]) + thrift.varint(slots << 1) + b"\x00"
    pages = dictionary + bytes(4) + data_page(body, 2 * slots, encoding=RLE_DICTIONARY)
    file = file_by_hand([schema_leaf("tokens", REPEATED)], ["tokens"], pages, slots=2 * slots, rows=slots + 1)
    path.write_bytes(file)


def test_counting_takes_no_memory_for_tokens(tmp_path: Path) -> None:
    for number in range(16):
        write_zeros(tmp_path / f"{number:02}.parquet", 60_000_000)
    program = """
        import resource, sys
        from parquet_loader import build_index
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        before = peak()
        index = build_index(sys.argv[1], cache_dir=sys.argv[2])
        print(index.total_tokens, int(index.max_id.max()), peak() - before)
    """
    tokens, largest, grown = map(int, run(program, tmp_path, tmp_path / "cache").split())
    assert (tokens, largest) == (16 * 60_000_000, 0)
    assert grown < 100 << 20


class Counting:
    """How many chunks are being counted, from their reading on; the first may wait for a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, barrier: threading.Barrier | None = None) -> None:
        self.now = self.most = 0
        lock, count_tokens = threading.Lock(), entries.count_tokens

        def enter() -> None:
            with lock:
                self.now += 1
                self.most = max(self.most, self.now)

        def counted(*given: Any, **options: Any) -> Any:
            if barrier is not None:
                barrier.wait()
            found = count_tokens(*given, **options)
            with lock:
                self.now -= 1
            return found

        class Watched(LocalStorage):
            def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
                if start == 4:  # a chunk and not a footer
                    enter()
                return super().read(file, start, length, stop)

        monkeypatch.setattr(entries, "count_tokens", counted)
        self.storage = Watched


@pytest.fixture
def uncounted(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    for number in range(8):
        write_pyarrow(tmp_path / "set" / f"{number}.parquet", [[number] * 1000], write_statistics=False)
    return tmp_path / "set"


def test_chunks_too_large_for_the_budget_are_counted_one_at_a_time(
    uncounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(monkeypatch)
    index = build.index_storage(counting.storage([str(uncounted)]), threads=8, budget_bytes=1)
    assert (index.total_tokens, counting.most, counting.now) == (8_000, 1, 0)


def test_chunks_that_fit_the_budget_are_counted_at_once(uncounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch, threading.Barrier(2, timeout=60))
    index = build.index_storage(counting.storage([str(uncounted)]), threads=8)
    assert (index.total_tokens, counting.now) == (8_000, 0)


def test_a_loader_counts_within_its_own_budget(uncounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    budget = build.CountingBudget
    monkeypatch.setattr(build, "CountingBudget", lambda limit: given.append(limit) or budget(limit))
    tokens_of(uncounted, budget_bytes=200 << 20)
    assert given == [200 << 20]
