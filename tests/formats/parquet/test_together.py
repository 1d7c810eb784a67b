"""Small row groups that are decoded together: the same tokens as one by one, or left to be decoded one by one."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chunks import INTEGERS, Chunk, chunks_of, held_by, random_documents, table_of, write
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.blocks import TokenPart
from parquet_loader.errors import DataError
from parquet_loader.formats.base import ChunkSize
from parquet_loader.formats.parquet import decode
from parquet_loader.formats.parquet.decode import OpenChunk, decode_cost, decode_together, document_lengths

INT32: dict[str, Any] = dict(dtype=np.dtype("int32"), bound=2**31)


def counted(file: bytes) -> list[Chunk]:
    """Every row group's chunk, with its tokens counted as an index has them."""
    parquet = pq.ParquetFile(pa.BufferReader(file))
    found = []
    for raw, chunk in chunks_of(file):
        # Threads of pyarrow's that are still at it when tracemalloc begins or ends would crash the interpreter.
        column = parquet.read_row_group(chunk.row_group, use_threads=False).column(0).combine_chunks()
        while pa.types.is_struct(column.type):
            column = column.field(0)
        found.append((raw, dataclasses.replace(chunk, tokens=len(column.flatten()))))
    return found


def together(chunks: list[Chunk], **options: Any) -> TokenPart | None:
    return decode_together([raw for raw, _ in chunks], [chunk for _, chunk in chunks], **options)


def one_by_one(chunks: list[Chunk], **options: Any) -> tuple[list[int], list[int]]:
    """(All tokens, where documents begin)."""
    tokens: list[int] = []
    starts: list[int] = []
    for raw, chunk in chunks:
        for part in OpenChunk(raw, chunk).parts(**options):
            starts += (part.starts + len(tokens)).tolist()
            tokens += part.tokens.tolist()
    return tokens, starts


def plain_groups(*groups: list[list[int]], **options: Any) -> list[Chunk]:
    """Row groups of these documents, in one file."""
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, **options) as writer:
        for documents in groups:
            writer.write_table(pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}, schema=schema))
    return counted(sink.getvalue())


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(1, 1), (3, 40), (40, 3), (200, 1), (300, 30), (20, 3000)]),
    group_rows=st.sampled_from([1, 3, 50, 1000]),
    kind=st.sampled_from(INTEGERS),
    vocabulary=st.sampled_from([2, 300, 70_000]),
    encoding=st.sampled_from([{}, {"dictionary_pagesize_limit": 64}, {"use_dictionary": False}]),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "snappy", "gzip", "brotli", "zstd", "lz4"]),
    page_size=st.sampled_from([100, 1 << 20]),
    checksums=st.booleans(),
    target=st.sampled_from(["uint16", "int32", "int64"]),
    bound=st.sampled_from([100, 1 << 16, 1 << 31]),
    eos_id=st.sampled_from([None, 7]),
    nullable_element=st.booleans(),
    parents=st.integers(0, 1),
)
def test_together_they_are_what_they_are_one_by_one(
    seed: int,
    shape: tuple[int, int],
    group_rows: int,
    kind: pa.DataType,
    vocabulary: int,
    encoding: dict[str, Any],
    version: str,
    codec: str,
    page_size: int,
    checksums: bool,
    target: str,
    bound: int,
    eos_id: int | None,
    nullable_element: bool,
    parents: int,
) -> None:
    documents = random_documents(seed, *shape, kind, vocabulary)
    file = write(
        table_of(documents, pa.field("element", kind, nullable_element), parents=parents),
        row_group_size=group_rows,
        data_page_version=version,
        compression=codec,
        data_page_size=page_size,
        write_page_checksum=checksums,
        **encoding,
    )
    chunks = counted(file)
    options: dict[str, Any] = dict(
        dtype=np.dtype(target), bound=min(bound, int(np.iinfo(target).max) + 1), eos_id=eos_id
    )
    lengths = np.concatenate(document_lengths([raw for raw, _ in chunks], [chunk for _, chunk in chunks]))
    assert lengths.tolist() == [len(document or []) for document in documents]
    part = together(chunks, **options)
    if part is None:  # ids out of range, and nothing else
        with pytest.raises(DataError, match="has token id"):
            one_by_one(chunks, **options)
    else:
        assert part.begin == 0
        assert part.tokens.dtype == target
        assert (part.tokens.tolist(), part.starts.tolist()) == one_by_one(chunks, **options)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "snappy", "zstd", "lz4"]),
    place=st.floats(0, 1, exclude_max=True),
    in_header=st.booleans(),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_is_never_taken_where_it_is_refused_one_by_one(
    seed: int, version: str, codec: str, place: float, in_header: bool, bit: int
) -> None:
    groups = [random_documents(seed + number, 20, 30, pa.uint16(), 300) for number in range(3)]
    chunks = plain_groups(*groups, data_page_version=version, compression=codec, write_page_checksum=True)
    raw, chunk = chunks[1]
    damaged = bytearray(raw)
    damaged[int(place * (min(60, len(raw)) if in_header else len(raw)))] ^= 1 << bit
    chunks[1] = (bytes(damaged), chunk)
    part = together(chunks, **INT32, eos_id=None)
    if part is not None:
        assert (part.tokens.tolist(), part.starts.tolist()) == one_by_one(chunks, **INT32)


GROUPS = [[[1, 2], [3]], [[], [4, 5]], [[6]]]


@pytest.mark.parametrize(("rows", "tokens"), [((2, 1), (3, 2)), ((2, 3), (3, 2)), ((2, 2), (4, 1)), ((1, 3), (2, 3))])
def test_counts_that_differ_are_left_to_be_found_one_by_one(rows: tuple[int, ...], tokens: tuple[int, ...]) -> None:
    chunks = plain_groups(*GROUPS)
    assert together(chunks, **INT32, eos_id=None) is not None
    wrong = [
        (raw, dataclasses.replace(chunk, rows=rows[place], tokens=tokens[place]))
        for place, (raw, chunk) in enumerate(chunks[:2])
    ]
    assert together(wrong + chunks[2:], **INT32, eos_id=None) is None
    with pytest.raises(DataError, match="where its footer says"):
        document_lengths([raw for raw, _ in chunks], [chunk for _, chunk in wrong + chunks[2:]])


@pytest.mark.parametrize("nulls", [[[1, None]], [[None]]])
def test_a_null_inside_a_document_is_left_to_be_named_one_by_one(nulls: list[Any]) -> None:
    chunks = plain_groups(*GROUPS, nulls)
    assert together(chunks, **INT32, eos_id=None) is None


def test_row_groups_of_files_of_different_kinds_are_put_in_order() -> None:
    snappy, zstd = plain_groups(*GROUPS), plain_groups(*GROUPS, compression="zstd")
    required = counted(write(table_of([[1, 2], [3]], pa.field("element", pa.int32(), False))))
    for chunks in ([snappy[0], zstd[1]], [snappy[0], *required, snappy[1]], [snappy[0], snappy[2], snappy[1]]):
        part = together(chunks, **INT32, eos_id=None)
        assert part is not None
        assert (part.tokens.tolist(), part.starts.tolist()) == one_by_one(chunks, **INT32)


def test_large_row_groups_are_not_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = plain_groups([[1] * 20] * 5, [[2] * 10])
    monkeypatch.setattr(decode, "TOGETHER_SLOTS", 100)
    assert together(chunks, **INT32, eos_id=None) is not None
    monkeypatch.setattr(decode, "TOGETHER_SLOTS", 99)
    assert together(chunks, **INT32, eos_id=None) is None


@pytest.mark.parametrize("mean", [1, 20, 1000])
@pytest.mark.parametrize(("groups", "tokens"), [(3, 1 << 14), (33, 1000), (5, 30_000)])
@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False, "compression": "none"}, {"compression": "gzip"}, {"write_batch_size": 64}]
)
@pytest.mark.parametrize(("target", "eos_id"), [("int32", None), ("uint16", None), ("int64", 0)])
def test_decoding_together_stays_within_the_sum_of_the_costs(
    mean: int, groups: int, tokens: int, options: dict[str, Any], target: str, eos_id: int | None
) -> None:
    rng = np.random.default_rng(0)
    documents = max(1, tokens // mean)
    drawn = [rng.zipf(1.2, (documents, tokens // documents)).clip(0, 50_000).tolist() for _ in range(groups)]
    chunks = plain_groups(*drawn, **options)
    raws, entries = [raw for raw, _ in chunks], [chunk for _, chunk in chunks]
    dtype = np.dtype(target)
    cost = sum(
        decode_cost(ChunkSize.of_chunk(chunk), codec=chunk.codec, dtype=dtype, eos=eos_id is not None)
        for chunk in entries
    )
    assert held_by(lambda: decode_together(raws, entries, dtype=dtype, bound=50_001, eos_id=eos_id)) <= cost
