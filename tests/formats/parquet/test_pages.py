"""The page path against pyarrow's own reader, a brute-force level decoder, and damage."""

from __future__ import annotations

import functools
import io
import random
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunks import (
    FOUR,
    FOUR_LEVELS,
    INTEGERS,
    Chunk,
    assert_block,
    chunks_of,
    crafted,
    decode_chunk,
    expected_blocks,
    random_documents,
    table_of,
    v1_page,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.errors import DataError
from parquet_loader.formats.base import ChunkSize, ColumnChunk, ColumnLayout
from parquet_loader.formats.parquet import levels as levels_module
from parquet_loader.formats.parquet import pages, rehost, thrift
from parquet_loader.formats.parquet.decode import OpenChunk, decode_with_pyarrow, most_decode_cost
from parquet_loader.formats.parquet.levels import unusual_levels
from parquet_loader.formats.parquet.values import MAX_INDEX_RUNS, unpack_indices

LEAF = "tokens.list.element"
CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


def no_fallback(reason: str) -> None:
    raise AssertionError(f"pyarrow's reader was asked: {reason}")


def assert_decodes_like_pyarrow(file: bytes) -> None:
    chunks = chunks_of(file)
    for (raw, chunk), documents in zip(chunks, expected_blocks(file), strict=True):
        assert_block(decode_chunk(raw, chunk, on_fallback=no_fallback), documents)


encodings = st.sampled_from(
    [{"use_dictionary": True}, {"use_dictionary": True, "dictionary_pagesize_limit": 64}, {"use_dictionary": False}]
    + [
        {"use_dictionary": False, "column_encoding": encoding}
        for encoding in ("PLAIN", "BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED")
    ]
)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(1, 1), (3, 40), (40, 3), (200, 1), (300, 30), (20, 3000), (2000, 2), (2, 30_000)]),
    dtype=st.sampled_from(INTEGERS),
    vocabulary=st.sampled_from([1, 2, 9, 300, 70_000]),
    codec=st.sampled_from(CODECS),
    encoding=encodings,
    version=st.sampled_from(["1.0", "2.0"]),
    page_bytes=st.sampled_from([64, 300, 3000, 1 << 20]),
    checksums=st.booleans(),
    nullable=st.booleans(),
    nullable_element=st.booleans(),
    parents=st.integers(0, 3),
    group_rows=st.sampled_from([7, 1000, 1 << 20]),
)
def test_every_layout_of_pyarrow_decodes_as_pyarrow_reads_it(
    seed: int,
    shape: tuple[int, int],
    dtype: pa.DataType,
    vocabulary: int,
    codec: str,
    encoding: dict[str, Any],
    version: str,
    page_bytes: int,
    checksums: bool,
    nullable: bool,
    nullable_element: bool,
    parents: int,
    group_rows: int,
) -> None:
    documents = random_documents(seed, *shape, dtype, vocabulary)
    table = table_of(documents, pa.field("element", dtype, nullable_element), nullable=nullable, parents=parents)
    options = dict(encoding)
    if "column_encoding" in options:
        path = ".".join(["tokens", *["inner"] * parents, "list", "element"])
        options["column_encoding"] = {path: options["column_encoding"]}
    file = write(
        table,
        compression=codec,
        data_page_version=version,
        data_page_size=page_bytes,
        write_batch_size=min(1024, page_bytes),
        write_page_checksum=checksums,
        row_group_size=group_rows,
        **options,
    )
    assert_decodes_like_pyarrow(file)


def polars_file(documents: list[list[int] | None], folder: Path, codec: str) -> bytes:
    import polars

    sink = io.BytesIO()
    frame = polars.DataFrame({"tokens": documents}, schema={"tokens": polars.List(polars.Int32)})
    frame.write_parquet(sink, compression=codec, data_page_size=2000, row_group_size=200)
    return sink.getvalue()


def duckdb_file(documents: list[list[int] | None], folder: Path, codec: str) -> bytes:
    import duckdb

    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))})
    path = folder / "duckdb.parquet"
    with duckdb.connect() as connection:
        connection.register("documents", table)
        connection.execute(f"COPY documents TO '{path}' (FORMAT parquet, COMPRESSION {codec})")
    return path.read_bytes()


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("write_file", [polars_file, duckdb_file])
@pytest.mark.parametrize("rows, longest", [(2000, 3), (500, 100), (3, 50_000)])
def test_files_of_other_writers_decode_as_pyarrow_reads_them(
    write_file: Any, codec: str, rows: int, longest: int, tmp_path: Path
) -> None:
    documents = random_documents(rows, rows, longest, pa.int32(), 1000)
    assert_decodes_like_pyarrow(write_file(documents, tmp_path, codec))


def test_files_of_datasets_decode_as_pyarrow_reads_them(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("int32"))})
    documents = random_documents(5, 500, 100, pa.int32(), 1000)
    path = tmp_path / "datasets.parquet"
    datasets.Dataset.from_dict({"tokens": documents}, features=features).to_parquet(path, batch_size=100)
    assert_decodes_like_pyarrow(path.read_bytes())


def test_a_chunk_without_documents_is_an_empty_block() -> None:
    layout = ColumnLayout(
        column="tokens", physical_type="INT32", signed=True, max_definition_level=3, nullable_element=True
    )
    chunk = ColumnChunk(
        path="a.parquet", row_group=0, layout=layout, start=4, length=0, rows=0, slots=0, tokens=0, codec="SNAPPY",
        dictionary_offset=-1, data_offset=0,
    )  # fmt: skip
    assert_block(decode_chunk(b"", chunk, on_fallback=no_fallback), [])


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("page_bytes", [64, 1 << 20])
@settings(max_examples=60)
@given(
    documents=st.lists(
        st.none() | st.lists(st.none() | st.integers(0, 9), max_size=5) | st.just(list(range(300))), max_size=60
    ).filter(lambda documents: any(None in (document or []) for document in documents))
)
def test_a_null_inside_a_document_is_the_same_error_on_both_paths(
    version: str, page_bytes: int, documents: list[Any]
) -> None:
    table = table_of(documents, pa.field("element", pa.int32()))
    options = {"data_page_version": version, "data_page_size": page_bytes, "write_batch_size": min(page_bytes, 64)}
    [(raw, chunk)] = chunks_of(write(table, **options))
    with pytest.raises(DataError, match="null inside its document, at position") as ours:
        decode_chunk(raw, chunk, on_fallback=no_fallback)
    with pytest.raises(DataError) as theirs:
        decode_with_pyarrow([raw], [chunk])
    assert str(ours.value) == str(theirs.value)


def test_the_block_keeps_nothing_of_the_bytes_it_was_decoded_from() -> None:
    for options in ({}, {"use_dictionary": False, "compression": "none"}):
        [(raw, chunk)] = chunks_of(write(table_of([[1, 2, 3]], pa.field("element", pa.int32())), **options))
        memory = bytearray(raw)
        block = decode_chunk(memoryview(memory), chunk)
        memory.clear()  # raises BufferError where it is still in use
        assert block.tokens.tolist() == [1, 2, 3]
        assert block.tokens.flags.aligned
        assert not block.tokens.flags.writeable


# ------------------------------------------------------------------------------------------------------ checksums


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "compression": "none"}])
def test_a_flipped_bit_anywhere_in_a_page_with_a_checksum_is_caught(version: str, options: dict[str, Any]) -> None:
    documents = random_documents(1, 20, 6, pa.int32(), 50)
    [(raw, chunk)] = chunks_of(
        write(
            table_of(documents, pa.field("element", pa.int32())),
            data_page_version=version,
            write_page_checksum=True,
            **options,
        )
    )
    dictionary, data = pages.plan_pages(memoryview(raw), chunk)
    for page in [*([dictionary] if dictionary else []), *data]:
        assert page.end > page.start
        for place in range(page.start, page.end):
            for bit in range(8):
                damaged = bytearray(raw)
                damaged[place] ^= 1 << bit
                with pytest.raises(DataError, match="does not match its checksum"):
                    decode_chunk(bytes(damaged), chunk)


# --------------------------------------------------------------------------------------------------------- levels


def pack(levels: np.ndarray, width: int) -> bytes:
    """Levels from the low bit up, padded with ones to whole groups of 8."""
    bits = (levels[:, None] >> np.arange(width)) & 1
    padded = np.pad(bits, ((0, -len(levels) % 8), (0, 0)), constant_values=1)
    return np.packbits(padded.astype(bool), bitorder="little").tobytes()


def encode(levels: np.ndarray, width: int, rng: random.Random, longest: int) -> bytes:
    """Levels as runs, cut at random."""
    out = bytearray()
    changes = [*(np.flatnonzero(np.diff(levels)) + 1).tolist(), len(levels)]
    first = place = 0
    while first < len(levels):
        while changes[place] <= first:
            place += 1
        if rng.random() < 0.5:
            count = rng.randint(1, min(changes[place] - first, longest))
            out += thrift.varint(count << 1) + bytes([levels[first]])
        else:
            count = min(len(levels) - first, 8 * rng.randint(1, max(1, longest // 8)))
            out += thrift.varint((count + 7) // 8 << 1 | 1) + pack(levels[first : first + count], width)
        first += count
    return bytes(out)


CHUNK = chunks_of(write(table_of([[1]], pa.field("element", pa.int32()))))[0][1]


@pytest.mark.parametrize("window", [1, 7, 64, 1 << 14])
@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    usual=st.integers(1, 9),
    sizes=st.lists(st.sampled_from([1, 2, 7, 8, 9, 63, 64, 65, 1000, 20_000]), min_size=1, max_size=4),
    rarity=st.sampled_from([0.0, 0.001, 0.1, 0.9, 1.0]),
    longest=st.sampled_from([1, 8, 100, 504, 512, 1000, 20_000]),
)
def test_unusual_levels_are_those_of_a_brute_force_decoder(
    window: int, seed: int, usual: int, sizes: list[int], rarity: float, longest: int
) -> None:
    rng = random.Random(seed)
    if window < 64 or longest < 8:
        sizes = [min(size, 500) for size in sizes]
    numbers = np.random.default_rng(seed)
    levels = [np.where(numbers.random(size) < rarity, numbers.integers(0, usual, size), usual) for size in sizes]
    sections = [encode(page, usual.bit_length(), rng, longest) for page in levels]
    slots = [0, *np.cumsum(sizes).tolist()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels_module, "WINDOW", window)
        found, values = unusual_levels(sections, slots, usual, CHUNK)
    flat = np.concatenate(levels)
    np.testing.assert_array_equal(found, np.flatnonzero(flat != usual))
    np.testing.assert_array_equal(values, flat[flat != usual])


def brute_force(section: bytes, count: int, width: int) -> list[int] | None:
    """A page's levels, one run after another; None where the runs do not fill the section, or hold too few, or where
    a whole run is too many."""
    levels: list[int] = []
    position = 0
    while position < len(section):
        header = 0
        for shift in range(0, 35, 7):
            if position >= len(section):
                return None
            byte = section[position]
            position += 1
            header |= (byte & 127) << shift
            if byte < 128:
                break
        size = (header >> 1) * width if header & 1 else 1
        payload = section[position : position + size]
        position += size
        if len(payload) < size:
            return None
        room = max(0, count - len(levels))
        if not room and header > 1:
            return None
        if header & 1:
            number = int.from_bytes(payload, "little")
            new = [number >> place * width & (1 << width) - 1 for place in range(min(room, (header >> 1) * 8))]
        else:
            new = [payload[0]] * min(room, header >> 1)
        levels += new
    return levels if len(levels) == count else None


@settings(max_examples=500)
@given(
    section=st.binary(min_size=1, max_size=24),
    count=st.integers(1, 100),
    usual=st.integers(1, 7),
    window=st.sampled_from([3, 1 << 14]),
)
def test_any_bytes_for_levels_decode_as_by_brute_force_or_are_refused(
    section: bytes, count: int, usual: int, window: int
) -> None:
    levels = brute_force(section, count, usual.bit_length())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels_module, "WINDOW", window)
        if levels is None or max(levels) > usual:
            with pytest.raises(DataError, match="damaged levels"):
                unusual_levels([section], [0, count], usual, CHUNK)
        else:
            found, values = unusual_levels([section], [0, count], usual, CHUNK)
            expected = [(slot, level) for slot, level in enumerate(levels) if level != usual]
            assert list(zip(found.tolist(), values.tolist(), strict=True)) == expected


def test_a_run_that_goes_on_beyond_its_page_is_cut_before_its_levels_are_listed() -> None:
    endless = thrift.varint(1 << 34) + b"\x00"
    found, levels = unusual_levels([endless, endless], [3, 5, 8], 1, CHUNK)
    assert found.tolist() == [3, 4, 5, 6, 7]
    assert levels.tolist() == [0] * 5


def test_levels_may_not_reach_from_one_page_into_the_next() -> None:
    whole = thrift.varint(3) + b"\x00"
    unusual_levels([whole, whole], [0, 8, 16], 1, CHUNK)
    with pytest.raises(DataError, match="beyond its page"):
        unusual_levels([whole[:1], whole[1:] + whole], [0, 8, 16], 1, CHUNK)


# -------------------------------------------------------------------------------------------------------- indices


@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("tokens", [40_000, 100_000])
def test_indices_of_rising_width_decode_as_pyarrow_reads_them(codec: str, tokens: int) -> None:
    """Pages of fewer than 8 bits an index, up to 16 and of more: some are gathered here and some are not."""
    rng = np.random.default_rng(tokens)
    values = rng.permutation(tokens).astype(np.int32)
    values[1000:1100] = 7  # a run of equal indices
    lengths = rng.integers(0, 500, 2 * tokens // 250)
    offsets = np.minimum(np.concatenate([[0], np.cumsum(lengths)]), tokens).astype(np.int32)
    offsets[-1] = tokens
    table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, values)})
    options = {"data_page_size": 10_000, "dictionary_pagesize_limit": 1 << 20, "compression": codec}
    [(raw, chunk)] = chunks_of(write(table, **options))
    dictionary, data = pages.plan_pages(memoryview(raw), chunk)
    widths = {pages.open_page(memoryview(raw), page, chunk).values[0] for page in data}
    assert dictionary is not None
    assert {13, 14, 15, 16} <= widths
    assert (17 in widths) == (tokens > 65_536)
    block = decode_chunk(raw, chunk, on_fallback=no_fallback)
    np.testing.assert_array_equal(block.tokens, values)
    np.testing.assert_array_equal(block.offsets, offsets)


@settings(max_examples=300)
@given(
    width=st.integers(8, 16),
    runs=st.lists(
        st.tuples(st.booleans(), st.sampled_from([1, 2, 8, 63, 63, 63, 64, 200]), st.integers(0, 65_535)), max_size=12
    ),
    cut=st.integers(0, 7),
    seed=st.integers(0, 2**32),
)
def test_indices_are_those_of_their_runs(width: int, runs: list[tuple[bool, int, int]], cut: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    encoded = bytes([width])
    expected: list[int] = []
    for literal, count, value in runs:
        if literal:
            new = rng.integers(0, 1 << width, 8 * count)
            bits = (new[:, None] >> np.arange(width)) & 1
            encoded += thrift.varint(count << 1 | 1) + np.packbits(bits.astype(bool), bitorder="little").tobytes()
            expected += new.tolist()
        else:
            repeated = value % (1 << width)
            encoded += thrift.varint(count << 1) + repeated.to_bytes((width + 7) // 8, "little")
            expected += [repeated] * count
    cut = cut if runs and runs[-1][0] else 0  # padding of the last group
    expected = expected[: len(expected) - cut]
    indices = np.empty(len(expected), "<u2")
    assert unpack_indices(memoryview(encoded), indices) == bool(expected)
    assert indices.tolist() == expected
    # One that is not there is not made up, and bytes cut off are not read.
    more = np.empty(len(expected) + cut + 1, "<u2")
    assert not unpack_indices(memoryview(encoded), more)
    if expected:
        short = encoded[: -width if runs[-1][0] else -1]
        assert not unpack_indices(memoryview(short), indices)


@pytest.mark.parametrize("width", [0, 7, 17, 32, 255])
def test_indices_of_other_widths_are_left_to_pyarrow(width: int) -> None:
    assert not unpack_indices(memoryview(bytes([width, 3]) + bytes(4 * width)), np.empty(8, "<u2"))


def test_pages_of_many_short_runs_are_left_to_pyarrow() -> None:
    encoded = b"\x10" + b"\x02\x05\x00" * (MAX_INDEX_RUNS + 1)
    assert unpack_indices(memoryview(encoded), np.empty(MAX_INDEX_RUNS, "<u2"))
    assert not unpack_indices(memoryview(encoded), np.empty(MAX_INDEX_RUNS + 1, "<u2"))


def test_a_gathered_index_beyond_the_dictionary_is_damage() -> None:
    dictionary = rehost.page_header(2, 4, 0, 16) + FOUR
    for largest in (3, 4):
        indices = np.array([0, 1, 2, largest, 0, 0, 0, 0], "<u2").tobytes()
        raw, chunk = crafted(dictionary, v1_page(*FOUR_LEVELS, b"\x10\x03" + indices, 4, encoding=8), rows=2, slots=4)
        if largest < 4:
            assert_block(decode_chunk(raw, chunk, on_fallback=no_fallback), [[0, 1], [2, 3]])
        else:
            with pytest.raises(DataError, match="has index 4 into a dictionary of 4"):
                decode_chunk(raw, chunk, on_fallback=no_fallback)


# ----------------------------------------------------------------------------------------------- crafted and damaged


def test_a_crafted_page_decodes() -> None:
    raw, chunk = crafted(v1_page(*FOUR_LEVELS, FOUR, 4), rows=2, slots=4)
    assert_block(decode_chunk(raw, chunk, on_fallback=no_fallback), [[0, 1], [2, 3]])


def test_a_page_without_slots_is_passed_over_where_pyarrow_would_end() -> None:
    raw, chunk = crafted(v1_page(b"", b"", b"", 0), v1_page(*FOUR_LEVELS, FOUR, 4), rows=2, slots=4)
    assert_block(decode_chunk(raw, chunk, on_fallback=no_fallback), [[0, 1], [2, 3]])


def test_a_page_of_unknown_type_is_left_to_pyarrow_which_skips_it() -> None:
    raw, chunk = crafted(v1_page(b"", b"", b"", 0, kind=7), v1_page(*FOUR_LEVELS, FOUR, 4), rows=2, slots=4)
    reasons: list[str] = []
    assert_block(decode_chunk(raw, chunk, on_fallback=reasons.append), [[0, 1], [2, 3]])
    assert reasons == ["page 0 has the type 7"]
    assert_block(decode_chunk(raw, chunk), [[0, 1], [2, 3]])


@pytest.mark.parametrize("changes, reason", [({"encoding": 77}, "encoding 77"), ({"levels": 4}, "an old encoding")])
def test_what_is_unknown_is_told_before_pyarrow_is_asked(changes: dict[str, int], reason: str) -> None:
    raw, chunk = crafted(v1_page(*FOUR_LEVELS, FOUR, 4, **changes), rows=2, slots=4)
    assert reason in OpenChunk(raw, chunk).fallback


def test_damage_after_something_unknown_is_damage() -> None:
    unknown = v1_page(*FOUR_LEVELS, FOUR, 4, encoding=77)
    raw, chunk = crafted(unknown, v1_page(*FOUR_LEVELS, FOUR, 4, stored=1 << 30), rows=4, slots=8)
    with pytest.raises(DataError, match=r"page 1, .* should end at byte"):
        decode_chunk(raw, chunk, on_fallback=no_fallback)


@pytest.mark.parametrize(
    "page, problem",
    [
        (v1_page(*FOUR_LEVELS, FOUR[:-1], 4), "15 bytes of values where 4 values take 16"),
        (v1_page(b"\x03\x0a", b"\x08\x02", FOUR, 4), "level 2 where 1 is the highest"),
        (v1_page(b"\x03\x0b", b"\x08\x01", FOUR, 4), "the first slot is inside a document"),
        (v1_page(b"\x03\x0a", b"\x04\x01\x04\x00", FOUR, 4), "row 1 is an empty list that has elements"),
        (v1_page(b"\x03\x0a", b"\x06\x01", FOUR, 4), "a page has fewer than slots"),
        (v1_page(b"", b"\x08\x01", FOUR, 4), "a page has none"),
        (v1_page(*FOUR_LEVELS, FOUR, 5), "brings the slots to 5 where the footer says 4"),
        (v1_page(*FOUR_LEVELS, FOUR, -1), "field 1 is -1"),
        (v1_page(*FOUR_LEVELS, FOUR, 4, stored=-5), "field 3 is -5"),
        (v1_page(*FOUR_LEVELS, FOUR, 4, kind=3), "field 8 is missing"),
        (v1_page(*FOUR_LEVELS, b"\x00", 4, encoding=8), "has indices, but the column chunk has no dictionary"),
        (v1_page(*FOUR_LEVELS, b"\xff\xff\xff\xff\x0f" * 2, 4, encoding=5), "miniblocks in 10 bytes"),
        (v1_page(*FOUR_LEVELS, b"\xff", 4, encoding=5), "has damaged values"),
        (v1_page(*FOUR_LEVELS, FOUR[:-1], 4, encoding=9), "has values that cannot be decoded"),
        (b"\x15\x00", "damaged header at byte 0"),
        (b"", "damaged header at byte 0"),
    ],
)
def test_damage_is_an_error_that_says_what_is_wrong(page: bytes, problem: str) -> None:
    raw, chunk = crafted(page, rows=2, slots=4)
    with pytest.raises(DataError, match=problem):
        decode_chunk(raw, chunk, on_fallback=no_fallback)


def test_a_second_dictionary_is_damage() -> None:
    dictionary = rehost.page_header(2, 4, 0, 16) + FOUR
    indices = v1_page(*FOUR_LEVELS, b"\x02\x03\xe4\x00", 4, encoding=8)
    raw, chunk = crafted(dictionary, indices, rows=2, slots=4)
    assert_block(decode_chunk(raw, chunk, on_fallback=no_fallback), [[0, 1], [2, 3]])
    raw, chunk = crafted(dictionary, dictionary, indices, rows=2, slots=4)
    with pytest.raises(DataError, match=r"page 1, .* is a dictionary, but not the first page"):
        decode_chunk(raw, chunk, on_fallback=no_fallback)


def test_an_index_beyond_the_dictionary_is_damage() -> None:
    dictionary = rehost.page_header(2, 3, 0, 12) + FOUR[:12]
    raw, chunk = crafted(dictionary, v1_page(*FOUR_LEVELS, b"\x02\x03\xe4\x00", 4, encoding=8), rows=2, slots=4)
    with pytest.raises(DataError, match="has values that cannot be decoded"):
        decode_chunk(raw, chunk, on_fallback=no_fallback)


def test_a_page_that_says_it_unpacks_to_gigabytes_is_refused_before_memory_is_taken() -> None:
    raw, chunk = crafted(v1_page(*FOUR_LEVELS, FOUR, 4, unpacked=(1 << 31) - 1), rows=2, slots=4, codec="ZSTD")
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match="unpacks to 2,147,483,647 bytes, more than 4 tokens need"):
        decode_chunk(raw, chunk, on_fallback=no_fallback)
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("difference", [-1, 1, 40])
def test_a_page_that_unpacks_to_another_size_than_it_says_is_damage(codec: str, difference: int) -> None:
    body = b"".join(len(part).to_bytes(4, "little") + part for part in FOUR_LEVELS) + FOUR
    packed = pa.compress(body, codec="lz4_raw" if codec == "lz4" else codec, asbytes=True)
    for wrong in (0, difference):
        header = thrift.struct(
            (1, thrift.I32, 0),
            (2, thrift.I32, len(body) + wrong),
            (3, thrift.I32, len(packed)),
            (5, thrift.STRUCT, thrift.struct((1, 5, 4), (2, 5, 0), (3, 5, 3), (4, 5, 3))),
        )
        raw, chunk = crafted(header + packed, rows=2, slots=4, codec=codec.upper())
        if wrong:
            with pytest.raises(DataError, match=r"damaged"):
                decode_chunk(raw, chunk, on_fallback=no_fallback)
        else:
            assert_block(decode_chunk(raw, chunk, on_fallback=no_fallback), [[0, 1], [2, 3]])


def test_a_codec_without_a_decompressor_here_is_left_to_pyarrow() -> None:
    raw, chunk = crafted(v1_page(*FOUR_LEVELS, FOUR, 4), rows=2, slots=4, codec="LZO")
    reasons: list[str] = []
    with pytest.raises(DataError, match="cannot be decoded"):
        decode_chunk(raw, chunk, on_fallback=reasons.append)
    assert reasons == ["compression LZO"]


@functools.cache
def fuzz_files() -> list[Chunk]:
    """Small chunks of every kind, two or three pages each."""
    found = []
    layouts: list[dict[str, Any]] = [{}, {"use_dictionary": False}, {"dictionary_pagesize_limit": 64}] + [
        {"use_dictionary": False, "column_encoding": {LEAF: encoding}}
        for encoding in ("BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED")
    ]
    for number, codec in enumerate(CODECS):
        for options in layouts:
            documents = random_documents(number, 60, 12, INTEGERS[number % 2 + 2], 40)
            found += chunks_of(
                write(
                    table_of(documents, pa.field("element", INTEGERS[number % 2 + 2])),
                    compression=codec,
                    data_page_version=["1.0", "2.0"][len(found) % 2],
                    data_page_size=400,
                    write_batch_size=64,
                    write_page_checksum=number % 3 == 2,
                    **options,
                )
            )
    wide = np.random.default_rng(0).permutation(36_000).astype(np.int32)
    table = pa.table({"tokens": pa.ListArray.from_arrays(np.arange(0, 36_001, 60, np.int32), wide)})
    return found + chunks_of(write(table, data_page_size=8000, compression="none"))


def damage(raw: bytes, other: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them changed, cut out, doubled, or taken from another chunk."""
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place, length = rng.randrange(len(data)), rng.choice([1, 2, 4, 30])
        kind = rng.randrange(6)
        if kind <= 1:
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[place] = rng.choice([0, 1, 127, 128, 255])
        elif kind == 3:
            del data[place : place + length]
        elif kind == 4:
            data[place:place] = data[place : place + length]
        else:
            start = rng.randrange(len(other))
            data[place : place + length] = other[start : start + length]
        data = data or bytearray(1)
    return bytes(data)


def check_damaged(raw: bytes, chunk: ColumnChunk) -> bool:
    """Decode damaged bytes; whether they were refused. Anything but a `DataError` or a block in order is a failure."""
    chunk = ColumnChunk(**{name: getattr(chunk, name) for name in ColumnChunk.__slots__} | {"length": len(raw)})
    try:
        block = decode_chunk(raw, chunk)
    except DataError as error:
        assert str(error).startswith("a.parquet, row group 0, column 'tokens': ")
        return True
    assert len(block.offsets) == chunk.rows + 1
    assert block.offsets[0] == 0
    assert block.offsets[-1] == len(block.tokens) <= chunk.slots
    assert (np.diff(block.offsets) >= 0).all()
    return False


def fuzz(seed: int, cases: int) -> int:
    """How many of so many damaged chunks were refused."""
    rng = random.Random(seed)
    files = fuzz_files()
    refused = 0
    for _ in range(cases):
        raw, chunk = rng.choice(files)
        refused += check_damaged(damage(raw, rng.choice(files)[0], rng), chunk)
    return refused


@pytest.mark.parametrize("seed", range(4))
def test_damaged_chunks_are_refused_or_decode_to_the_right_counts(seed: int) -> None:
    refused = fuzz(seed, 250)
    assert 125 < refused < 250  # some damage, of an unchecked value say, cannot be seen


@pytest.mark.parametrize("number", range(30))
def test_a_chunk_cut_short_anywhere_is_refused(number: int) -> None:
    raw, chunk = fuzz_files()[number]
    for length in range(0, len(raw), 7):
        assert check_damaged(raw[:length], chunk)


# --------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("mean", [1, 20, 1000])
@pytest.mark.parametrize("tokens", [2000, 200_000])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False, "compression": "none"},
        {"use_dictionary": False, "compression": "zstd", "data_page_size": 1 << 30},
        {"compression": "gzip", "data_page_size": 1 << 30},
    ],
)
def test_decoding_stays_within_its_cost(mean: int, tokens: int, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    offsets = np.unique(np.concatenate([[0, tokens], rng.integers(0, tokens, tokens // mean)])).astype(np.int32)
    values = rng.zipf(1.2, tokens).clip(0, 50_000).astype(np.int32)
    table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, values)})
    [(raw, chunk)] = chunks_of(write(table, row_group_size=1 << 30, **options))
    peak = len(raw) + most_decode_cost(ChunkSize.of_chunk(chunk), dtype=chunk.layout.dtype, eos=False)
    for decode in (decode_chunk, lambda raw, chunk: decode_with_pyarrow([raw], [chunk])):
        pool = pa.proxy_memory_pool(pa.default_memory_pool())
        default = pa.default_memory_pool()
        pa.set_memory_pool(pool)
        tracemalloc.start()
        try:
            block = decode(raw, chunk)
            python = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(default)
        # Two peaks that need not be at one time: what is held together is at most their sum.
        assert len(raw) + python + pool.max_memory() <= peak
        del block


# --------------------------------------------------------------------------------------------------------- thrift


def test_a_struct_is_read_back_as_it_was_written() -> None:
    inner = thrift.struct((1, thrift.I32, -1), (2, thrift.BINARY, thrift.binary(b"abc")))
    data = thrift.struct(
        (1, thrift.I32, 2),
        (3, thrift.I64, -300),
        (4, thrift.STRUCT, inner),
        (9, thrift.LIST, thrift.sequence(thrift.I32, [thrift.integer(n) for n in range(20)])),
    )
    fields, position = thrift.read_struct(memoryview(b"xx" + data + b"yy"), 2)
    assert position == 2 + len(data)
    assert fields == {1: 2, 3: -300, 4: {1: -1, 2: b"abc"}, 9: list(range(20))}
    for length in range(len(data)):
        with pytest.raises(thrift.ThriftError):
            thrift.read_struct(memoryview(data[:length]), 0)


def test_every_type_of_the_protocol_is_passed_over() -> None:
    data = bytes.fromhex("11 12 13ff 1703 17 0102030405060708 1b 01 58 02 0161 1d") + bytes(16) + b"\x00"
    data = data.replace(bytes.fromhex("1703"), b"")
    assert thrift.read_struct(memoryview(data), 0) == (
        {1: True, 2: False, 3: 255, 4: bytes(range(1, 9)), 5: [1, b"a"], 6: bytes(16)},
        len(data),
    )


@pytest.mark.parametrize(
    "data, problem",
    [
        (b"\x1c" * 100, "nested more than"),
        (b"\x19" + b"\x19" * 100, "nested more than"),
        (b"\x18\xff\xff\xff\xff\x0f", "is cut short"),
        (b"\x19\xf5\xff\xff\xff\xff\x0f", "more than the bytes left"),
        (b"\x16" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x1e\x00", "unknown type 14"),
    ],
)
def test_malformed_structs_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(thrift.ThriftError, match=problem):
        thrift.read_struct(memoryview(data), 0)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_struct_or_a_thrift_error(data: bytes) -> None:
    try:
        _, position = thrift.read_struct(memoryview(data), 0)
    except thrift.ThriftError:
        return
    assert 0 < position <= len(data)


def test_the_checksum_is_the_one_of_the_specification() -> None:
    [(raw, chunk)] = chunks_of(write(table_of([[1, 2]], pa.field("element", pa.int32())), write_page_checksum=True))
    _, [page] = pages.plan_pages(memoryview(raw), chunk)
    assert page.checksum == zlib.crc32(raw[page.start : page.end])
