"""Footers: what is read of them is what pyarrow reads, whichever way it is read, and damage never ends the process."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from writers import write_pyarrow

from parquet_loader import build_index
from parquet_loader.errors import DataError
from parquet_loader.formats.parquet import entries, footer, thrift
from parquet_loader.formats.parquet.footer import read_footer
from parquet_loader.formats.parquet.thrift import ThriftError
from parquet_loader.index.build import index_storage
from parquet_loader.storage.base import FileInfo
from parquet_loader.storage.local import LocalStorage


def footer_of(file: bytes) -> bytes:
    return file[-8 - int.from_bytes(file[-8:-4], "little") : -8]


def with_footer(file: bytes, changed: bytes) -> bytes:
    return file[: -8 - len(footer_of(file))] + changed + len(changed).to_bytes(4, "little") + b"PAR1"


def write(groups: int, **options: Any) -> bytes:
    """A file of several columns and row groups of one row, whose chunks differ in every way that writers make them."""
    rng = np.random.default_rng(1)
    tokens = [None if row % 5 == 1 else rng.integers(0, 1 << row % 31, row % 4).tolist() for row in range(groups)]
    table = pa.table(
        {
            "number": rng.integers(0, 2**60, groups),
            "text": ["x" * (row * 37 % 300) if row % 7 else None for row in range(groups)],
            "flag": [bool(row % 3) for row in range(groups)],
            "nested": [{"deep": [row / 3] * (row % 3)} for row in range(groups)],
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=1, **options)
    return sink.getvalue()


@pytest.fixture(scope="module")
def large() -> bytes:
    return write(300, write_page_index=True)


def everything(data: bytes) -> list[Any]:
    """All that a footer says of all columns."""
    found = read_footer(memoryview(data))
    numbers = [found.numbers(leaf, np.arange(len(found.rows))) for leaf in range(len(found.types))]
    said: list[Any] = [found.created_by, list(found.types), found.rows.tolist(), found.schema_file()]
    for column in numbers:
        said.append({name: column.values[name][known].tolist() for name, known in column.known.items()})
        said.append({name: known.tolist() for name, known in column.known.items()})
    return said


def test_numbers_are_those_that_pyarrow_reads(large: bytes) -> None:
    metadata = pq.ParquetFile(pa.BufferReader(large)).metadata
    found = read_footer(memoryview(footer_of(large)))
    assert found.created_by == metadata.created_by
    assert found.rows.tolist() == [1] * 300
    for leaf in range(metadata.num_columns):
        numbers = found.numbers(leaf, np.arange(300))
        for group in range(300):
            chunk = metadata.row_group(group).column(leaf)
            said = {name: int(numbers.values[name][group]) for name, known in numbers.known.items() if known[group]}
            assert said["slots"] == chunk.num_values
            assert said["length"] == chunk.total_compressed_size
            assert said["data_offset"] == chunk.data_page_offset
            assert said.get("dictionary_offset") == chunk.dictionary_page_offset
            statistics = chunk.statistics
            assert said.get("nulls") == (statistics.null_count if statistics is not None else None)
            if statistics is not None and statistics.has_min_max and chunk.physical_type in ("INT32", "INT64"):
                assert (said["min_id"], said["max_id"]) == (statistics.min, statistics.max)


def test_chunks_followed_together_say_what_they_say_one_by_one(large: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    data = footer_of(large)
    together = everything(data)
    monkeypatch.setattr(footer, "_LONG", len(data))
    assert everything(data) == together


def test_only_one_chunk_of_a_shape_is_read_step_by_step(large: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    init = footer._Tracer.__init__
    monkeypatch.setattr(footer._Tracer, "__init__", lambda self, *given: (steps.append(1), init(self, *given))[1])
    found = read_footer(memoryview(footer_of(large)))
    assert len(steps) == len(found._shapes) < 20


def test_the_next_file_of_a_set_is_not_read_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footer, "_patterns", footer._Patterns())
    data = footer_of(write(3))
    assert len(data) < footer._LONG
    first = everything(data)
    steps = []
    init = footer._Tracer.__init__
    monkeypatch.setattr(footer._Tracer, "__init__", lambda self, *given: (steps.append(1), init(self, *given))[1])
    assert everything(data) == first
    assert not steps
    # Files alike are told apart.
    later = [everything(footer_of(write(groups))) for groups in range(1, 9)]
    monkeypatch.setattr(footer, "_MOST_GROUPS", -1)  # no struct is
    monkeypatch.setattr(footer, "_patterns", footer._Patterns())
    assert [everything(footer_of(write(groups))) for groups in range(1, 9)] == later
    assert steps


def test_damage_is_the_same_to_chunks_followed_together_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(data: bytes, long: int, patterns: footer._Patterns) -> object:
        monkeypatch.setattr(footer, "_LONG", long)
        monkeypatch.setattr(footer, "_patterns", patterns)
        try:
            return everything(data)
        except (ThriftError, footer.EncryptedColumnError) as error:
            return type(error)

    whole = footer_of(write(6))
    known = footer._patterns
    everything(whole)
    rng = np.random.default_rng(2)
    outcomes = []
    for _ in range(150):
        data = bytearray(whole)
        place = int(rng.integers(len(data)))
        data[place] = [data[place] ^ 1 << rng.integers(8), rng.integers(256), 0, 0x80][rng.integers(4)]
        outcomes.append(outcome(bytes(data), 0, footer._Patterns()))
        assert outcomes[-1] == outcome(bytes(data), len(data), footer._Patterns())
        assert outcomes[-1] == outcome(bytes(data), len(data), known)
    assert sum(found is ThriftError for found in outcomes) > 15
    assert sum(isinstance(found, list) for found in outcomes) > 15


# ── what pyarrow would end the process on ────────────────────────────────────────────────────────────────────────


def rewritten(path: Path, old: bytes, new: bytes) -> None:
    """Change the bytes of a file's footer."""
    data = path.read_bytes()
    assert footer_of(data).count(old) == 1
    path.write_bytes(with_footer(data, footer_of(data).replace(old, new)))


LEAF_PATH = thrift.sequence(thrift.BINARY, [thrift.binary(name) for name in (b"tokens", b"list", b"element")])


@pytest.mark.parametrize("codec", [-1, 8, 1000])
def test_a_codec_that_does_not_exist_is_refused(tmp_path: Path, codec: int) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2, 3]], compression="snappy")
    rewritten(tmp_path / "x.parquet", LEAF_PATH + b"\x15\x02", LEAF_PATH + b"\x15" + thrift.integer(codec))
    with pytest.raises(DataError, match=rf"x\.parquet, row group 0.*no compression {codec}\b"):
        build_index(tmp_path)


def test_a_histogram_of_another_length_is_not_looked_at(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2, 3], []])
    histogram = thrift.sequence(thrift.I64, [thrift.integer(count) for count in (0, 1, 0, 3)])  # definition levels
    rewritten(tmp_path / "x.parquet", histogram, thrift.sequence(thrift.I64, [thrift.integer(7)] * 9))
    assert build_index(tmp_path).tokens.tolist() == [3]


def test_a_chunk_of_another_type_than_its_column_is_refused(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2, 3]])
    encodings = b"\x19\x35"
    rewritten(tmp_path / "x.parquet", b"\x1c\x15\x02" + encodings, b"\x1c\x15\x04" + encodings)
    with pytest.raises(DataError, match=r"x\.parquet, row group 0.*gives the chunk type 2, and its schema 1"):
        build_index(tmp_path)


def test_row_groups_that_lack_rows_of_the_file_are_refused(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1], [2]], rows=1)
    data = (tmp_path / "x.parquet").read_bytes()
    assert footer_of(data).count(b"\x16\x04\x19\x2c") == 1  # two rows, and a list of two row groups
    changed = footer_of(data).replace(b"\x16\x04\x19\x2c", b"\x16\x06\x19\x2c")
    (tmp_path / "x.parquet").write_bytes(with_footer(data, changed))
    with pytest.raises(DataError, match=r"x\.parquet.*row groups have 2 rows where the file has 3"):
        build_index(tmp_path)


def test_a_column_may_be_read_beside_one_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(write(3, compression="snappy"))
    path = thrift.sequence(thrift.BINARY, [thrift.binary(b"text")])
    data = (tmp_path / "x.parquet").read_bytes()
    changed = footer_of(data).replace(path + b"\x15\x02", path + b"\x15\x7e")
    assert changed != footer_of(data)
    (tmp_path / "x.parquet").write_bytes(with_footer(data, changed))
    assert len(build_index(tmp_path)) == 3


# ── columns beside the tokens that are odd ───────────────────────────────────────────────────────────────────────


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A file of tokens and a column of numbers that may not be null."""
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("tokens", pa.list_(pa.int32()))])
    table = pa.Table.from_pydict({"n": [1, 2], "tokens": [[1, 2], [3]]}, schema=schema)
    pq.write_table(table, tmp_path / "x.parquet", store_schema=False)
    return tmp_path / "x.parquet"


def test_a_group_without_children_beside_the_tokens_is_passed_by(beside: Path) -> None:
    group = thrift.struct((3, thrift.I32, 1), (4, thrift.BINARY, thrift.binary(b"g")), (5, thrift.I32, 0))
    rewritten(
        beside, b"\x19\x5c\x35\x00\x18\x06schema\x15\x04\x00", b"\x19\x6c\x35\x00\x18\x06schema\x15\x06\x00" + group
    )
    assert pq.read_schema(beside).field("g").type == pa.struct([])
    assert build_index(beside).tokens.tolist() == [3]


def test_an_element_without_repetition_beside_the_tokens_is_taken_for_a_required_one(beside: Path) -> None:
    rewritten(beside, b"\x15\x04\x25\x00\x18\x01n", b"\x15\x04\x38\x01n")
    assert pq.read_table(beside, columns=["tokens"]).num_rows == 2
    assert build_index(beside).tokens.tolist() == [3]


@pytest.mark.parametrize(
    ("element", "says"),
    [
        (b"\x15\x04\x25\x00\x18\x01n\x25\x00", "UTF8 can only annotate BYTE_ARRAY"),  # an integer that is text
        (b"\x15\x7e\x25\x00\x18\x01n", "there is no type 63"),
    ],
)
def test_what_pyarrow_refuses_is_refused_with_the_reason(beside: Path, element: bytes, says: str) -> None:
    rewritten(beside, b"\x15\x04\x25\x00\x18\x01n", element)
    with pytest.raises(OSError, match=r"UTF8|Invalid physical column type"):
        pq.read_schema(beside)
    with pytest.raises(DataError, match=says) as caught:
        build_index(beside)
    assert "damaged" not in str(caught.value)


# ── many files ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_few_long_footers_are_held_at_once(tmp_path: Path, large: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(footer_of(large)) > 64 << 10
    for number in range(8):
        (tmp_path / f"{number}.parquet").write_bytes(large)
    held, most, lock = 0, 0, threading.Lock()
    entry_of_footer = entries._entry_of_footer

    class Watched(LocalStorage):
        def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
            nonlocal held, most
            data = super().read(file, start, length, stop)
            with lock:
                held += length > 64 << 10
                most = max(most, held)
            return data

    def watched(*given: Any) -> Any:
        nonlocal held
        entry = entry_of_footer(*given)
        with lock:
            held -= 1
        return entry

    monkeypatch.setattr(entries, "_entry_of_footer", watched)
    index_storage(Watched([str(tmp_path)]), column="tokens", cache_dir=tmp_path / "cache", threads=8)
    assert held == 0
    assert most <= 2
