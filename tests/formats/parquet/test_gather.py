"""Pages of many row groups at once: headers that are alike, indices of one width, dictionaries put together."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chunks import Chunk, chunks_of, expected_blocks, held_by, random_documents, table_of, write
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader.errors import DataError
from parquet_loader.formats.base import ChunkSize
from parquet_loader.formats.parquet import decode, gather, thrift
from parquet_loader.formats.parquet.decode import OpenChunk, decode_cost, decode_together
from parquet_loader.formats.parquet.pages import NotSupported, Page, plan_pages, usual_pages

INT32: dict[str, Any] = dict(dtype=np.dtype("int32"), bound=2**31, eos_id=None)


def counted(file: bytes) -> list[Chunk]:
    """Every row group's chunk, with its tokens counted as an index has them."""
    tokens = [sum(map(len, documents)) for documents in expected_blocks(file)]
    return [
        (raw, dataclasses.replace(chunk, tokens=count))
        for (raw, chunk), count in zip(chunks_of(file), tokens, strict=True)
    ]


def together(chunks: list[Chunk], **options: Any) -> tuple[list[int], list[int]] | None:
    """(All tokens, where documents begin), or None."""
    part = decode_together([raw for raw, _ in chunks], [chunk for _, chunk in chunks], **options)
    return None if part is None else (part.tokens.tolist(), part.starts.tolist())


def one_by_one(chunks: list[Chunk], **options: Any) -> tuple[list[int], list[int]]:
    tokens: list[int] = []
    starts: list[int] = []
    for raw, chunk in chunks:
        for part in OpenChunk(raw, chunk).parts(**options):
            starts += (part.starts + len(tokens)).tolist()
            tokens += part.tokens.tolist()
    return tokens, starts


def as_pyarrow_reads(file: bytes, eos_id: int | None) -> tuple[list[int], list[int]]:
    tokens: list[int] = []
    starts: list[int] = []
    for documents in expected_blocks(file):
        for document in documents:
            starts.append(len(tokens))
            tokens += document + ([] if eos_id is None else [eos_id])
    return tokens, starts


def test_text_that_repeats_tokens_is_left_to_pyarrow_but_for_its_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    hosted = gather.hosted_tokens
    monkeypatch.setattr(decode, "hosted_tokens", lambda *given: files.append(1) or hosted(*given))
    monkeypatch.setattr(decode, "decode_with_pyarrow", no_framing)
    for repeats in (True, False):
        file = token_groups(12, 20_000, repeats=repeats)
        assert together(counted(file), **INT32) == as_pyarrow_reads(file, None)
        assert len(files) == 1


def no_framing(*_: Any) -> Any:
    raise AssertionError("left to pyarrow's own reader")


def token_groups(
    groups: int,
    tokens: int,
    *,
    vocabulary: int = 50_000,
    empty: bool = False,
    repeats: bool = False,
    kind: pa.DataType | None = None,
    **options: Any,
) -> bytes:
    """A file of row groups of about so many tokens each, in documents of about 50; ids as those of text. With
    ``repeats`` as of code, in which a token follows itself a dozen times.
    """
    rng = np.random.default_rng(tokens)
    kind = kind or pa.int32()
    schema = pa.schema([("tokens", pa.list_(kind))])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, **options) as writer:
        for _ in range(groups):
            lengths = rng.geometric(1 / 50, max(1, tokens // 50))
            documents = [(vocabulary * rng.random(length) ** 3).astype(np.int64).tolist() for length in lengths]
            if repeats:
                documents = [np.repeat(ids, rng.choice([1, 1, 1, 17], len(ids))).tolist() for ids in documents]
            if empty:
                documents[1:1] = [[], None, []]
            writer.write_table(pa.table([pa.array(documents, pa.list_(kind))], schema=schema))
    return sink.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"data_page_version": "2.0"},
        {"data_page_size": 4_000, "write_batch_size": 100},  # several pages
        {"use_dictionary": False},
        {
            "dictionary_pagesize_limit": 6_000,
            "data_page_size": 1_000,
            "write_batch_size": 100,
        },  # plain from the middle on
        {"write_page_checksum": True},
        *({"compression": codec} for codec in ("none", "gzip", "brotli", "zstd", "lz4")),
        {"repeats": True},
        {"repeats": True, "data_page_version": "2.0", "data_page_size": 4_000, "write_batch_size": 100},
        {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
        {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("kind", "target"),
    [("int32", "uint16"), ("int32", "int32"), ("int64", "int32"), ("uint16", "uint16"), ("uint32", "int64")],
)
@pytest.mark.parametrize("eos_id", [None, 7])
@pytest.mark.parametrize("empty", [False, True])
def test_pages_of_many_row_groups_give_what_pyarrow_reads(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], kind: str, target: str, eos_id: int | None, empty: bool
) -> None:
    monkeypatch.setattr(decode, "decode_with_pyarrow", no_framing)
    file = token_groups(18, 3_000, kind=pa.type_for_alias(kind), empty=empty, **options)
    found = together(counted(file), dtype=np.dtype(target), bound=50_000, eos_id=eos_id)
    assert found == as_pyarrow_reads(file, eos_id)


@pytest.mark.parametrize(
    "groups", [[100, 100], [60_000, 100, 60_000], [3] * 40, [2_000] * 40, [504, 505, 1008, 511] * 4]
)
def test_row_groups_of_different_sizes_are_decoded_together(monkeypatch: pytest.MonkeyPatch, groups: list[int]) -> None:
    monkeypatch.setattr(decode, "decode_with_pyarrow", no_framing)
    rng = np.random.default_rng(0)
    chunks, expected = [], []
    for number, tokens in enumerate(groups):
        ids = rng.permutation(70_000)[:tokens] if tokens > 1000 else 200 + rng.permutation(2_000)[:tokens].repeat(1)
        documents = [ids.tolist(), (200 + rng.permutation(400)).tolist()]  # at least 8 bits an index
        file = write(table_of(documents, pa.field("element", pa.int32())))
        chunks += [(raw, dataclasses.replace(chunk, row_group=number)) for raw, chunk in counted(file)]
        expected += [token for document in documents for token in document]
    found = together(chunks, **INT32)
    assert found is not None
    assert found[0] == expected


@pytest.mark.parametrize("repeats", [False, True])
def test_row_groups_of_different_types_and_codecs_are_decoded_together(
    monkeypatch: pytest.MonkeyPatch, repeats: bool
) -> None:
    monkeypatch.setattr(decode, "decode_with_pyarrow", no_framing)
    chunks: list[Chunk] = []
    tokens: list[int] = []
    starts: list[int] = []
    for number in range(24):
        file = token_groups(
            1,
            1_000 + 37 * number,
            repeats=repeats,
            empty=number % 4 == 1,
            kind=[pa.int32(), pa.int64(), pa.uint16()][number % 3],
            compression=["snappy", "none", "zstd"][number // 2 % 3],
        )
        chunks += counted(file)
        found, begins = as_pyarrow_reads(file, 3)
        starts += [begin + len(tokens) for begin in begins]
        tokens += found
    assert together(chunks, dtype=np.dtype("uint16"), bound=50_000, eos_id=3) == (tokens, starts)
    raw, chunk = chunks[7]
    chunks[7] = raw, dataclasses.replace(chunk, tokens=chunk.tokens - 1, slots=chunk.slots)
    assert together(chunks, dtype=np.dtype("uint16"), bound=50_000, eos_id=3) is None


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    vocabularies=st.lists(st.sampled_from([1, 2, 200, 300, 5_000, 70_000]), min_size=9, max_size=20),
    repeats=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    write_batch_size=st.sampled_from([64, 1024]),
)
def test_row_groups_of_any_vocabulary_are_what_they_are_one_by_one(
    seed: int, vocabularies: list[int], repeats: bool, version: str, write_batch_size: int
) -> None:
    rng = np.random.default_rng(seed)
    chunks = []
    for number, vocabulary in enumerate(vocabularies):
        if repeats:
            documents = random_documents(seed + number, 30, 200, pa.int32(), vocabulary)
        else:
            documents = [rng.integers(0, vocabulary, length).tolist() for length in rng.integers(0, 300, 20)]
        file = write(
            table_of(documents, pa.field("element", pa.int32())),
            data_page_version=version,
            data_page_size=2_000,
            write_batch_size=write_batch_size,
        )
        chunks += [(raw, dataclasses.replace(chunk, row_group=number)) for raw, chunk in counted(file)]
    options: dict[str, Any] = dict(dtype=np.dtype("int32"), bound=2**31, eos_id=None)
    found = together(chunks, **options)
    if found is None:  # an id is negative
        with pytest.raises(DataError, match="has token id"):
            one_by_one(chunks, **options)
    else:
        assert found == one_by_one(chunks, **options)


FAULTY = {
    f"{version} {codec}{' with checksums' if checksums else ''}{' of code' if repeats else ''}": token_groups(
        20, 600, repeats=repeats, data_page_version=version, compression=codec, write_page_checksum=checksums
    )
    for version in ("1.0", "2.0")
    for codec in ("none", "snappy", "zstd")
    for checksums in (False, True)
    for repeats in (False, True)
}


@settings(max_examples=400)
@given(
    file=st.sampled_from(sorted(FAULTY)),
    group=st.integers(0, 19),
    place=st.floats(0, 1, exclude_max=True),
    part=st.sampled_from(["first header", "all"]),
    byte=st.integers(1, 255),
)
def test_a_changed_byte_in_one_of_many_is_refused_or_read_as_it_is_one_by_one(
    file: str, group: int, place: float, part: str, byte: int
) -> None:
    chunks = counted(FAULTY[file])
    raw, chunk = chunks[group]
    damaged = bytearray(raw)
    damaged[int(place * (len(raw) if part == "all" else 40))] ^= byte
    chunks[group] = (bytes(damaged), chunk)
    found = together(chunks, **INT32)
    if found is not None:
        assert found == one_by_one(chunks, **INT32)


def outcome(raw: bytes, chunk: Any, known: dict[int, Page] | None) -> object:
    try:
        return plan_pages(memoryview(raw), chunk, known)
    except (DataError, NotSupported) as error:
        return type(error), str(error)


@settings(max_examples=400)
@given(file=st.sampled_from(sorted(FAULTY)), data=st.data())
def test_pages_that_are_read_at_once_are_those_that_are_read_one_by_one(file: str, data: st.DataObject) -> None:
    chunks = counted(FAULTY[file])
    headers = [
        [0, *(page.end for page in (plan_pages(memoryview(raw), chunk)[0],) if page is not None)]
        for raw, chunk in chunks
    ]
    for group in data.draw(st.sets(st.integers(0, 19))):
        raw, chunk = chunks[group]
        damaged = bytearray(raw)
        place = data.draw(st.sampled_from(headers[group])) + data.draw(st.integers(0, 60))
        damaged[min(place, len(raw) - 1)] = data.draw(st.integers(0, 255))
        chunks[group] = (bytes(damaged), chunk)
    known = usual_pages([memoryview(raw) for raw, _ in chunks], [chunk for _, chunk in chunks])
    for (raw, chunk), pages in zip(chunks, known, strict=True):
        assert outcome(raw, chunk, pages) == outcome(raw, chunk, None)


def test_nearly_all_headers_are_read_at_once() -> None:
    for name, file in FAULTY.items():
        if "of code" in name:  # of such few rows, in which some are longer than others
            continue
        chunks = counted(file)
        known = usual_pages([memoryview(raw) for raw, _ in chunks], [chunk for _, chunk in chunks])
        assert [len(pages) for pages in known] == [2] * len(chunks)


def test_headers_of_two_writers_are_read_at_once_each() -> None:
    plain, checked = counted(FAULTY["1.0 snappy"]), counted(FAULTY["1.0 snappy with checksums"])
    mixed = [chunk for pair in zip(plain, checked, strict=True) for chunk in pair]
    known = usual_pages([memoryview(raw) for raw, _ in mixed], [chunk for _, chunk in mixed])
    assert [len(pages) for pages in known] == [2] * 40
    assert together(mixed, **INT32) == one_by_one(mixed, **INT32)


numbers = st.integers(-(2**31), 2**31 - 1)


@given(
    first=st.lists(numbers, min_size=3, max_size=3),
    others=st.lists(st.lists(numbers, min_size=3, max_size=3), max_size=9),
    text=st.lists(st.binary(max_size=9), min_size=10, max_size=10),
    odd=st.binary(max_size=30),
)
def test_structs_that_are_alike_are_read_as_one_by_one(
    first: list[int], others: list[list[int]], text: list[bytes], odd: bytes
) -> None:
    structs = [
        thrift.struct(
            (1, thrift.I32, a),
            (4, thrift.I64, b),
            (5, thrift.STRUCT, thrift.struct((2, thrift.BINARY, thrift.binary(word)), (3, thrift.I32, c))),
        )
        for (a, b, c), word in zip([first, *others], text, strict=False)
    ]
    structs.append(odd)
    data = b"".join(structs)
    ends = np.cumsum([len(each) for each in structs])
    begins = np.append(0, ends[:-1])
    read = thrift.read_alike(np.frombuffer(data, np.uint8), begins, ends)
    assert read.alike[:-1].all()
    for place, (a, b, c) in enumerate([first, *others]):
        inner = read.fields[5]
        assert isinstance(inner, dict)
        assert [int(column[place]) for column in (read.fields[1], read.fields[4], inner[3])] == [a, b, c]  # type: ignore[index]
        assert read.ends[place] == ends[place]
    if read.alike[-1]:
        found, end = thrift.read_struct(memoryview(data), int(begins[-1]))
        assert set(found) == {1, 4, 5}
        assert (end, found[1]) == (int(read.ends[-1]), int(read.fields[1][-1]))  # type: ignore[index]


@pytest.mark.parametrize("byte", [0x15, 0x18, 0x11, 0x1C, 0xFF])
def test_a_struct_without_end_is_refused(byte: int) -> None:
    data = np.full(1000, byte, np.uint8)
    with pytest.raises(thrift.ThriftError):
        thrift.read_alike(data, np.arange(0, 1000, 100), np.arange(100, 1001, 100))


def test_an_index_beyond_its_own_dictionary_is_refused_though_the_next_one_has_it() -> None:
    small, large = token_groups(1, 2_000, vocabulary=300), token_groups(1, 2_000, vocabulary=3_000)
    chunks = [*counted(small), *counted(large)] * 2
    assert together(chunks, **INT32) == one_by_one(chunks, **INT32)
    raw, chunk = counted(token_groups(1, 2_000, vocabulary=300, compression="none"))[0]
    dictionary, pages = plan_pages(memoryview(raw), chunk)
    assert dictionary is not None
    damaged = bytearray(raw)
    damaged[pages[0].end - 200 : pages[0].end - 100] = b"\xff" * 100
    broken = [(bytes(damaged), chunk), *counted(token_groups(1, 2_000, vocabulary=3_000, compression="none"))] * 2
    assert together(broken, **INT32) is None
    with pytest.raises(DataError, match="row group 0"):
        one_by_one(broken, **INT32)


@pytest.mark.parametrize(("groups", "tokens", "mean"), [(8, 100_000, 700), (3, 400_000, 20), (40, 10_000, 300)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False, "compression": "none"},
        {"data_page_version": "2.0"},
        {"repeats": True},
        {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("kind", "target", "eos_id"), [("int32", "uint16", None), ("int32", "int64", 0), ("int64", "int32", 0)]
)
def test_what_many_pages_hold_stays_within_the_sum_of_the_costs(
    monkeypatch: pytest.MonkeyPatch,
    groups: int,
    tokens: int,
    mean: int,
    options: dict[str, Any],
    kind: str,
    target: str,
    eos_id: int | None,
) -> None:
    monkeypatch.setattr(decode, "decode_with_pyarrow", no_framing)
    rng = np.random.default_rng(0)
    offsets = pa.array(np.append(np.arange(0, tokens, mean), tokens), pa.int32())
    ids = [rng.integers(0, 50_000, tokens) for _ in range(groups)]
    options = dict(options)
    if options.pop("repeats", False):
        ids = [numbers[np.arange(tokens) // 30 * 30] for numbers in ids]
    array = [pa.array(numbers, pa.type_for_alias(kind)) for numbers in ids]
    schema = pa.schema([("tokens", pa.list_(pa.type_for_alias(kind)))])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, **options) as writer:
        for values in array:
            writer.write_table(pa.table([pa.ListArray.from_arrays(offsets, values)], schema=schema))
    chunks = [(raw, dataclasses.replace(chunk, tokens=tokens)) for raw, chunk in chunks_of(sink.getvalue())]
    raws, entries = [raw for raw, _ in chunks], [chunk for _, chunk in chunks]
    dtype, eos = np.dtype(target), eos_id is not None
    cost = sum(decode_cost(ChunkSize.of_chunk(chunk), codec=chunk.codec, dtype=dtype, eos=eos) for chunk in entries)
    assert held_by(lambda: decode_together(raws, entries, dtype=dtype, bound=50_000, eos_id=eos_id)) <= cost
