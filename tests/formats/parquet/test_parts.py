"""Parts of a row group: whatever pages they consist of, they are what was written, and damage is found as in one."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunks import (
    INTEGERS,
    assert_block,
    chunks_of,
    crafted,
    decode_chunk,
    random_documents,
    table_of,
    v1_page,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.blocks import TokenPart
from parquet_loader.errors import DataError
from parquet_loader.formats.base import ColumnChunk
from parquet_loader.formats.parquet import decode
from parquet_loader.formats.parquet.decode import OpenChunk

ENCODINGS: list[dict[str, Any]] = [
    {},
    {"dictionary_pagesize_limit": 64},
    {"use_dictionary": False},
    {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
]


def in_parts_of(slots: int, raw: bytes, chunk: ColumnChunk, **options: Any) -> list[TokenPart]:
    """A chunk's parts, of about so many slots each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PART_SLOTS", slots)
        return list(OpenChunk(raw, chunk).parts(**options))


def lengths_in_parts_of(slots: int, raw: bytes, chunk: ColumnChunk) -> list[int]:
    """Its documents' lengths, from parts like these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PART_SLOTS", slots)
        found: list[int] = OpenChunk(raw, chunk).lengths().tolist()
        return found


def flat(documents: list[list[int]], eos_id: int | None) -> tuple[list[int], list[int]]:
    """(All tokens, where documents begin)."""
    tokens: list[int] = []
    starts = []
    for document in documents:
        starts.append(len(tokens))
        tokens += document if eos_id is None else [*document, eos_id]
    return tokens, starts


@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(1, 1), (3, 40), (40, 3), (200, 1), (300, 30), (20, 3000)]),
    dtype=st.sampled_from(INTEGERS),
    vocabulary=st.sampled_from([2, 9, 300, 70_000]),
    encoding=st.sampled_from(ENCODINGS),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "snappy", "zstd", "lz4"]),
    page_slots=st.sampled_from([1, 2, 7, 100]),
    part_slots=st.sampled_from([1, 3, 20, 500]),
    eos_id=st.sampled_from([None, 0]),
    nullable_element=st.booleans(),
    parents=st.integers(0, 1),
    data=st.data(),
)
def test_parts_are_the_documents_that_were_written(
    seed: int,
    shape: tuple[int, int],
    dtype: pa.DataType,
    vocabulary: int,
    encoding: dict[str, Any],
    version: str,
    codec: str,
    page_slots: int,
    part_slots: int,
    eos_id: int | None,
    nullable_element: bool,
    parents: int,
    data: st.DataObject,
) -> None:
    documents = random_documents(seed, *shape, dtype, vocabulary)
    options = dict(encoding)
    if "column_encoding" in options:
        path = ".".join(["tokens", *["inner"] * parents, "list", "element"])
        options["column_encoding"] = {path: options["column_encoding"]}
    file = write(
        table_of(documents, pa.field("element", dtype, nullable_element), parents=parents),
        data_page_version=version,
        compression=codec,
        data_page_size=1,  # pyarrow then begins with an empty page, at which its own reader ends
        write_batch_size=page_slots,
        **options,
    )
    [(raw, chunk)] = chunks_of(file)
    expected = [document or [] for document in documents]
    tokens, starts = flat(expected, eos_id)
    chunk = dataclasses.replace(chunk, tokens=sum(map(len, expected)))

    parts = in_parts_of(part_slots, raw, chunk, eos_id=eos_id)
    assert [part.begin for part in parts] == [0, *np.cumsum([len(part.tokens) for part in parts])][:-1]
    assert np.concatenate([part.tokens for part in parts]).tolist() == tokens
    assert np.concatenate([part.starts + part.begin for part in parts]).tolist() == starts
    assert lengths_in_parts_of(part_slots, raw, chunk) == list(map(len, expected))

    first = data.draw(st.integers(-5, len(tokens)))
    last = data.draw(st.integers(first, len(tokens) + 5))
    some = in_parts_of(part_slots, raw, chunk, eos_id=eos_id, first=first, last=last)
    assert {part.begin for part in some} <= {part.begin for part in parts}
    found = {}
    for part in some:
        end = part.begin + len(part.tokens)
        assert part.tokens.tolist() == tokens[part.begin : end]
        found |= dict(zip(range(part.begin, end), part.tokens.tolist(), strict=True))
        inside = {start for start in starts if part.begin < start < end}
        assert {start for start in (part.starts + part.begin).tolist() if part.begin < start < end} == inside
    first, last = max(first, 0), max(last, 0)
    assert [found[place] for place in range(first, min(last, len(tokens)))] == tokens[first:last]


def test_what_is_not_wanted_is_counted_and_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [list(range(100))] * 100
    table = table_of(documents, pa.field("element", pa.int32()))
    [(raw, chunk)] = chunks_of(write(table, use_dictionary=False, data_page_size=1, write_batch_size=100))
    decoded = []
    append = decode.PlainValues.append

    def counted(self: decode.PlainValues, page: Any, count: int, encoded: memoryview) -> None:
        decoded.append(count)
        append(self, page, count, encoded)

    monkeypatch.setattr(decode.PlainValues, "append", counted)
    parts = in_parts_of(1000, raw, chunk, first=4_100, last=4_900)
    assert [part.begin for part in parts] == [4000]
    assert sum(decoded) == 1000
    wrong = dataclasses.replace(chunk, tokens=9_999)
    with pytest.raises(DataError, match="holds 10,000 tokens where its footer says 9,999"):
        in_parts_of(1000, raw, wrong, first=4_100, last=4_900)


def test_ids_out_of_range_are_named_by_their_row_in_whatever_part() -> None:
    documents = [[row] * 10 for row in range(300)]
    table = table_of(documents, pa.field("element", pa.int32()))
    for options in ({}, {"use_dictionary": False}):
        [(raw, chunk)] = chunks_of(write(table, data_page_size=1, write_batch_size=7, **options))
        with pytest.raises(DataError, match=r"row 256 has token id 256, outside \[0, 256\)"):
            in_parts_of(20, raw, chunk, dtype=np.dtype(np.uint8), bound=256)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 40),
    part_slots=st.sampled_from([1, 3, 20]),
    version=st.sampled_from(["1.0", "2.0"]),
)
def test_a_null_inside_a_document_is_the_same_error_in_parts(
    seed: int, rows: int, part_slots: int, version: str
) -> None:
    documents = random_documents(seed, rows, 30, pa.int32(), 50)
    rng = random.Random(seed)
    documents.insert(rng.randrange(rows + 1), [1] * rng.randrange(9) + [None] + [2] * rng.randrange(9))  # type: ignore[list-item]
    table = table_of(documents, pa.field("element", pa.int32()))
    [(raw, chunk)] = chunks_of(write(table, data_page_version=version, data_page_size=1, write_batch_size=3))
    with pytest.raises(DataError, match="has a null inside its document") as whole:
        decode_chunk(raw, chunk)
    with pytest.raises(DataError) as parts:
        in_parts_of(part_slots, raw, chunk)
    assert str(parts.value) == str(whole.value)


def page_of(repetition: list[int], definition: list[int], first_token: int = 0) -> bytes:
    """A v1 page of these levels, each a run of its own, and tokens that rise by one where the definition is 1."""

    def levels(of: list[int]) -> bytes:
        return b"".join(bytes([2, level]) for level in of)

    values = np.arange(first_token, first_token + sum(definition), dtype=np.int32)
    return v1_page(levels(repetition), levels(definition), values.tobytes(), len(repetition))


def split_anywhere(documents: list[list[int]], rng: random.Random, longest: int) -> tuple[bytes, ColumnChunk]:
    """A chunk of documents of tokens 0, 1, 2, ... whose pages end anywhere, also within documents."""
    slots = [
        (place > 0, bool(document)) for document in documents for place in range(max(1, len(document)))
    ]  # (repetition, definition)
    pages = []
    at = tokens = 0
    while at < len(slots):
        page = slots[at : at + rng.randint(1, longest)]
        pages.append(page_of([int(repetition) for repetition, _ in page], [int(level) for _, level in page], tokens))
        at += len(page)
        tokens += sum(level for _, level in page)
    return crafted(*pages, rows=len(documents), slots=len(slots))


@settings(max_examples=300)
@given(
    lengths=st.lists(st.sampled_from([0, 0, 1, 2, 3, 30]), min_size=1, max_size=30),
    seed=st.integers(0, 2**32),
    longest=st.sampled_from([1, 2, 5, 40]),
    part_slots=st.sampled_from([1, 2, 3, 20, 500]),
    eos_id=st.sampled_from([None, 7]),
)
def test_documents_may_be_split_by_pages_anywhere(
    lengths: list[int], seed: int, longest: int, part_slots: int, eos_id: int | None
) -> None:
    edges = np.cumsum([0, *lengths]).tolist()
    documents = [list(range(low, high)) for low, high in itertools.pairwise(edges)]
    raw, chunk = split_anywhere(documents, random.Random(seed), longest)
    tokens, starts = flat(documents, eos_id)
    parts = in_parts_of(part_slots, raw, chunk, eos_id=eos_id)
    assert np.concatenate([part.tokens for part in parts]).tolist() == tokens
    assert np.concatenate([part.starts + part.begin for part in parts]).tolist() == starts


@pytest.mark.parametrize(
    ("pages", "rows", "problem"),
    [
        ([([0, 1], [1, 1]), ([1, 0], [1, 1])], 2, ""),
        ([([0, 0], [1, 0]), ([0, 1], [1, 1])], 3, ""),
        ([([0, 0], [1, 0]), ([1, 0], [1, 1])], 3, "row 1 is an empty list that has elements"),
        ([([0, 0], [1, 0]), ([1, 1], [1, 1])], 2, "row 1 is an empty list that has elements"),
        ([([0, 1], [1, 1]), ([1, 0], [0, 1])], 2, "row 0 is an empty list that has elements"),
        ([([1, 0], [1, 1]), ([0, 1], [1, 1])], 2, "the first slot is inside a document"),
    ],
)
def test_levels_are_checked_across_the_border_of_parts(
    pages: list[tuple[list[int], list[int]]], rows: int, problem: str
) -> None:
    raw, chunk = crafted(*(page_of(*levels) for levels in pages), rows=rows, slots=4)
    for slots in (1, 100):
        if problem:
            with pytest.raises(DataError, match=f"has damaged levels: {problem}"):
                in_parts_of(slots, raw, chunk)
        else:
            assert len(in_parts_of(slots, raw, chunk)) == (2 if slots == 1 else 1)


def test_a_document_may_span_many_parts() -> None:
    documents = [[0, 1], list(range(2, 500)), [500]]
    raw, chunk = split_anywhere(documents, random.Random(0), 10)
    parts = in_parts_of(10, raw, chunk, eos_id=9)
    assert len(parts) > 20
    assert [int(start) + part.begin for part in parts for start in part.starts] == [0, 3, 502]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PART_SLOTS", 10)
        assert_block(decode_chunk(raw, chunk), documents)


def test_counts_are_compared_with_the_index_at_the_end() -> None:
    table = table_of([[1, 2]] * 50, pa.field("element", pa.int32()))
    [(raw, chunk)] = chunks_of(write(table, data_page_size=1, write_batch_size=10))
    with pytest.raises(DataError, match="holds 50 documents where its footer says 51"):
        in_parts_of(10, raw, dataclasses.replace(chunk, rows=51))
