"""A column chunk, framed as a file of its own, decodes to what pyarrow reads from the whole file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chunks import decode_chunk
from hypothesis import given
from hypothesis import strategies as st
from writers import WRITERS, read_pyarrow, write_pyarrow

from parquet_loader.blocks import TokenBlock, append_eos, as_binary
from parquet_loader.errors import DataError
from parquet_loader.formats.base import ColumnChunk, ColumnLayout
from parquet_loader.formats.parquet import decode
from parquet_loader.formats.parquet.decode import cast_tokens
from parquet_loader.formats.parts import Wanted
from parquet_loader.index import build_index
from parquet_loader.storage import open_storage

DOCUMENTS = [[1, 2, 3], [], None, [4], [50256] * 40, [], list(range(100)), None]


def blocks_of(path: Path, column: str | None = None) -> list[TokenBlock]:
    """Every row group of a file, decoded."""
    storage = open_storage(path)
    index = build_index(path, column=column)
    chunks = [index.chunk(group) for group in range(len(index))]
    return [decode_chunk(storage.read(index.files[0], chunk.start, chunk.length), chunk) for chunk in chunks]


def documents_of(block: TokenBlock) -> list[list[int]]:
    return [block.tokens[a:b].tolist() for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)]


def assert_as_pyarrow_reads(path: Path, column: str = "tokens") -> None:
    """Documents, offsets and token counts of every row group, against pyarrow's reading of the file."""
    index = build_index(path, column=column)
    for group, block in enumerate(blocks_of(path, column)):
        expected = read_pyarrow(path, int(index.row_group[group]), column)
        assert documents_of(block) == expected
        assert block.offsets.dtype == np.int64
        assert block.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
        assert index.tokens[group] == sum(map(len, expected)) == len(block.tokens)
        assert index.rows[group] == len(expected)


# ── what is decoded ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writers_file_is_read_as_pyarrow_reads_it(tmp_path: Path, writer: str) -> None:
    rng = np.random.default_rng(0)
    documents = DOCUMENTS * 20 + [rng.integers(0, 50257, n).tolist() for n in rng.integers(0, 60, 5000)]
    WRITERS[writer](tmp_path / "x.parquet", documents, rows=2048)
    assert pq.ParquetFile(tmp_path / "x.parquet").num_row_groups > 1
    assert_as_pyarrow_reads(tmp_path / "x.parquet")
    assert [d for block in blocks_of(tmp_path / "x.parquet") for d in documents_of(block)] == [
        document or [] for document in documents
    ]


ENCODINGS = {
    "dictionary": {"use_dictionary": True},
    "plain": {"use_dictionary": False},
    "delta": {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
    "byte stream split": {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    "dictionary given up": {"use_dictionary": True, "dictionary_pagesize_limit": 400},
}


@pytest.mark.parametrize("page", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_codec_and_page_version_is_read(tmp_path: Path, encoding: str, codec: str, page: str) -> None:
    documents = [*DOCUMENTS, *[[(row * 37) % 1000] * (row % 9) for row in range(500)]]
    write_pyarrow(
        tmp_path / "x.parquet", documents, rows=300, compression=codec, data_page_version=page, data_page_size=500,
        write_page_checksum=True, **ENCODINGS[encoding],
    )  # fmt: skip
    assert_as_pyarrow_reads(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    "options",
    [
        {"write_page_index": True},
        {"use_content_defined_chunking": True},
        {"use_content_defined_chunking": {"min_chunk_size": 64, "max_chunk_size": 256, "norm_level": 0}},
        {"version": "1.0"},
        {"store_schema": False},
        {"write_statistics": False},
        {"use_compliant_nested_type": False},
    ],
    ids=str,
)
def test_every_option_of_the_writer_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    write_pyarrow(tmp_path / "x.parquet", DOCUMENTS * 50, rows=150, **options)
    assert_as_pyarrow_reads(tmp_path / "x.parquet")


def element(kind: pa.DataType, nullable: bool) -> pa.Field:
    return pa.field("element", kind, nullable=nullable)


@pytest.mark.parametrize("nullable_element", [True, False])
@pytest.mark.parametrize("nullable_list", [True, False])
@pytest.mark.parametrize("parents", [0, 1, 3])
@pytest.mark.parametrize("make", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
def test_every_nesting_and_nullability_is_read(
    tmp_path: Path, make: Callable[..., pa.DataType], parents: int, nullable_list: bool, nullable_element: bool
) -> None:
    documents: list[Any] = [[1, 2], [], [3], *([None] if nullable_list else [])]
    kind, name, nullable = make(element(pa.int32(), nullable_element)), "ids", nullable_list
    for level in range(parents):
        documents = [{name: document} for document in documents] + [None] * (level % 2)
        kind, name, nullable = pa.struct([pa.field(name, kind, nullable)]), f"p{level}", bool(level % 2)
    schema = pa.schema([pa.field(name, kind, nullable)])
    pq.write_table(pa.table({name: pa.array(documents, kind)}, schema=schema), tmp_path / "x.parquet")
    (block,) = blocks_of(tmp_path / "x.parquet")
    assert documents_of(block) == [[1, 2], [], [3], *[[]] * (len(documents) - 3)]


def test_lists_of_fixed_size_are_read_and_null_ones_are_empty(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2], None, [3, 4], [5, 6]], rows=3, kind=pa.list_(pa.int32(), 2))
    assert [documents_of(block) for block in blocks_of(tmp_path / "x.parquet")] == [[[1, 2], [], [3, 4]], [[5, 6]]]


def test_list_views_out_of_order_are_read_in_order(tmp_path: Path) -> None:
    views = pa.ListViewArray.from_arrays(
        pa.array([3, 0, 1], pa.int32()), pa.array([2, 2, 0], pa.int32()), pa.array([1, 2, 9, 3, 4], pa.int32())
    )
    pq.write_table(pa.table({"tokens": views}), tmp_path / "x.parquet")
    assert [documents_of(block) for block in blocks_of(tmp_path / "x.parquet")] == [[[3, 4], [1, 2], []]]


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("version", ["1.0", "2.4", "2.6"])
def test_every_integer_type_keeps_its_largest_and_smallest_ids(tmp_path: Path, name: str, version: str) -> None:
    bounds = np.iinfo(name)
    write_pyarrow(
        tmp_path / "x.parquet",
        [[0, int(bounds.max)], [int(bounds.min)]],
        kind=pa.list_(getattr(pa, name)()),
        version=version,
    )
    (block,) = blocks_of(tmp_path / "x.parquet")
    assert documents_of(block) == [[0, int(bounds.max)], [int(bounds.min)]]


documents_strategy = st.lists(
    st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), max_size=12) | st.lists(st.just(7), max_size=60), max_size=40
)


@given(
    documents_strategy,
    st.integers(1, 20),
    st.sampled_from(list(ENCODINGS)),
    st.sampled_from(["1.0", "2.0"]),
    st.sampled_from([60, 200, 1 << 20]),
    st.booleans(),
)
def test_any_documents_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int] | None],
    rows: int,
    encoding: str,
    page: str,
    page_bytes: int,
    statistics: bool,
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.parquet"
    write_pyarrow(
        path, documents, rows=rows, data_page_version=page, data_page_size=page_bytes, write_batch_size=3,
        write_statistics=statistics, **ENCODINGS[encoding],
    )  # fmt: skip
    read = [document for block in blocks_of(path) for document in documents_of(block)]
    assert read == [document or [] for document in documents]


def test_only_the_chunk_of_the_token_column_is_needed(tmp_path: Path) -> None:
    table = pa.table({"text": ["a" * 1000] * 4, "tokens": [[1, 2], [3], [], [4]], "url": ["b" * 1000] * 4})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    assert_as_pyarrow_reads(tmp_path / "x.parquet")


def test_tokens_cannot_be_written_to(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2]])
    (block,) = blocks_of(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="read-only"):
        block.tokens[0] = 5


def test_offsets_are_asked_for_in_64_bits(tmp_path: Path) -> None:
    """More than 2^31 tokens fit into a row group: pyarrow is told to make a large_list, whatever the file says."""
    write_pyarrow(tmp_path / "x.parquet", [[1, 2]])
    index = build_index(tmp_path / "x.parquet")
    chunk = index.chunk(0)
    raw = (tmp_path / "x.parquet").read_bytes()[chunk.start : chunk.start + chunk.length]
    schema = pq.read_schema(pa.BufferReader(b"PAR1" + raw + decode._footer([chunk])))
    assert pa.types.is_large_list(schema.field(0).type)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────


def chunk_of(path: Path) -> tuple[bytes, ColumnChunk]:
    index = build_index(path)
    chunk = index.chunk(0)
    return path.read_bytes()[chunk.start : chunk.start + chunk.length], chunk


@pytest.mark.parametrize("writer", WRITERS)
def test_a_null_inside_a_document_names_file_row_group_and_row(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "x.parquet", [[1]] * 2048 + [[], None, [4, None, 6], [7, None]], rows=2048)
    with pytest.raises(DataError, match=r"x\.parquet, row group 1, column 'tokens': row 2 has a null .* position 1"):
        blocks_of(tmp_path / "x.parquet")


@pytest.mark.parametrize("change", [{"tokens": 5}, {"rows": 9}, {"rows": 3}], ids=str)
def test_other_numbers_than_the_footers_are_refused(tmp_path: Path, change: dict[str, int]) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2], [], None, [4]])
    raw, chunk = chunk_of(tmp_path / "x.parquet")
    decode_chunk(raw, chunk)
    with pytest.raises(DataError, match=r"x\.parquet, row group 0, column 'tokens'"):
        decode_chunk(raw, dataclasses.replace(chunk, **change))


def test_too_few_bytes_are_refused(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2], []])
    raw, chunk = chunk_of(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"read .* bytes of a column chunk of"):
        decode_chunk(raw[:-1], chunk)


@pytest.mark.parametrize("codec", ["LZO", "UNKNOWN"])
def test_a_codec_that_cannot_be_read_is_refused(tmp_path: Path, codec: str) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2], []])
    raw, chunk = chunk_of(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=codec):
        decode_chunk(raw, dataclasses.replace(chunk, codec=codec))


@pytest.mark.parametrize("page", ["1.0", "2.0"])
@pytest.mark.parametrize("options", [{"use_dictionary": True}, {"use_dictionary": False}], ids=str)
def test_every_flipped_bit_of_a_checksummed_page_is_refused(tmp_path: Path, options: Any, page: str) -> None:
    write_pyarrow(
        tmp_path / "x.parquet", [[1, 2, 3], [], [4] * 20], compression="none", write_page_checksum=True,
        data_page_version=page, **options,
    )  # fmt: skip
    raw, chunk = chunk_of(tmp_path / "x.parquet")
    right = documents_of(decode_chunk(raw, chunk))
    refused = 0
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            read = documents_of(decode_chunk(bytes(damaged), chunk))
        except DataError:
            refused += 1
        else:
            assert read == right  # a bit of a page header that nothing depends on, statistics for instance
    assert refused > len(raw) * 4


def test_a_file_of_which_pyarrow_itself_reads_too_little_never_loses_a_document(tmp_path: Path) -> None:
    # pyarrow writes a page of no values here, and takes it for the end of the column when it reads.
    write_pyarrow(tmp_path / "x.parquet", [None], data_page_size=1)
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 0
    raw, chunk = chunk_of(tmp_path / "x.parquet")
    try:
        assert documents_of(decode_chunk(raw, chunk)) == [[]]
    except DataError as error:
        assert "holds 0 documents where its footer says 1" in str(error)


@given(st.binary(max_size=300))
def test_any_bytes_give_tokens_or_a_data_error(data: bytes) -> None:
    layout = ColumnLayout(
        column="tokens", physical_type="INT32", signed=True, max_definition_level=3, nullable_element=True
    )
    chunk = ColumnChunk(
        path="x.parquet", row_group=0, layout=layout, start=4, length=len(data), rows=3, slots=3, tokens=3,
        codec="UNCOMPRESSED", dictionary_offset=-1, data_offset=0,
    )  # fmt: skip
    with pytest.raises(DataError):
        decode_chunk(data, chunk)


# ── casting, EOS, documents as bytes ─────────────────────────────────────────────────────────────────────────────


def block_of(documents: list[list[int]], dtype: str = "int32") -> TokenBlock:
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    return TokenBlock(np.array([token for document in documents for token in document], dtype), offsets)


CHUNK = ColumnChunk(
    path="x.parquet",
    row_group=2,
    layout=ColumnLayout(
        column="tokens", physical_type="INT32", signed=True, max_definition_level=3, nullable_element=True
    ),
    start=4,
    length=1,
    rows=1,
    slots=1,
    tokens=1,
    codec="ZSTD",
    dictionary_offset=-1,
    data_offset=0,
)


@pytest.mark.parametrize("source", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("target", ["uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_ids_in_range_are_cast_unchanged(source: str, target: str) -> None:
    block = cast_tokens(block_of([[0, 1], [], [127]], source), Wanted(dtype=np.dtype(target), bound=128), CHUNK)
    assert block.tokens.dtype == target
    assert block.tokens.tolist() == [0, 1, 127]


@pytest.mark.parametrize(
    ("dtype", "token"),
    [
        *(("int32", -1), ("int32", 100), ("int32", -(2**31)), ("int64", 2**32), ("int64", -1), ("int64", 2**32 + 5)),
        *(("uint32", 2**32 - 1), ("uint64", 2**64 - 1), ("uint64", 2**63)),
    ],
)
def test_an_id_out_of_range_is_never_wrapped_and_names_its_row(dtype: str, token: int) -> None:
    block = block_of([[1, 2], [], [3, token], [token]], dtype)
    with pytest.raises(
        DataError, match=rf"^x\.parquet, row group 2, .* row 2 has token id {token}, outside \[0, 100\)"
    ):
        cast_tokens(block, Wanted(dtype=np.dtype("int32"), bound=100), CHUNK)


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=12), st.sampled_from(["uint8", "int32", "int64"]))
def test_eos_ends_every_document(documents: list[list[int]], dtype: str) -> None:
    block = append_eos(block_of(documents, dtype), 99)
    assert documents_of(block) == [[*document, 99] for document in documents]
    assert block.tokens.dtype == dtype
    assert len(block.tokens) == block.offsets[-1]


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=12))
def test_documents_are_byte_strings(documents: list[list[int]]) -> None:
    block = block_of(documents)
    array = as_binary(block.tokens, block.offsets)
    assert [np.frombuffer(value, "int32").tolist() for value in array.to_pylist()] == documents
