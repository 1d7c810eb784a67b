"""Arrow IPC files against what pyarrow reads from them: every kind of list, codec, form and place of the column."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrow_files import FORMS, chunks_of, documents_in, documents_of, ipc, table_of, write_arrow
from chunks import held_by
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import ConfigError, DataError, ParquetLoader, build_index
from parquet_loader.formats.arrow import ARROW, decode, entries
from parquet_loader.formats.base import ChunkSize
from parquet_loader.storage.local import LocalStorage

INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
DOCUMENTS = [[1, 2, 3], None, [], [4, 5], [], [6], None, [7, 8, 9, 10]]


def list_types(values: pa.DataType) -> list[pa.DataType]:
    return [
        pa.list_(values),
        pa.large_list(values),
        pa.list_view(values),
        pa.large_list_view(values),
        pa.list_(pa.field("item", values, nullable=False)),
    ]


def others(rows: int) -> list[pa.Array]:
    """Columns of every other type, which have nodes and buffers of their own before the tokens'."""
    words = [f"word {row}, which is longer than a view holds" if row % 3 else None for row in range(rows)]
    return [
        pa.nulls(rows),
        pa.array([row % 2 == 0 for row in range(rows)]),
        pa.array(words),
        pa.array(words, pa.string_view()),
        pa.array([row.encode() if row else None for row in words], pa.binary_view()),
        pa.array([{"a": [row, row], "b": "x"} if row % 4 else None for row in range(rows)]),
        pa.array([[(row, "x")] * (row % 3) for row in range(rows)], pa.map_(pa.int32(), pa.string())),
        pa.array([[["x"] * (row % 3)] for row in range(rows)]),
        pa.array(words).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array(["x"])),
        pa.UnionArray.from_sparse(pa.array([0] * rows, pa.int8()), [pa.array(range(rows)), pa.array(words)]),
        pa.UnionArray.from_dense(
            pa.array([0] * rows, pa.int8()), pa.array(range(rows), pa.int32()), [pa.array(range(rows)), pa.array(words)]
        ),
        pa.array([[1.5, 2.5]] * rows, pa.list_(pa.float32(), 2)),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"] * rows)) if hasattr(pa, "json_") else pa.nulls(rows),
        pa.array([b"1234"] * rows, pa.binary(4)),
    ]


@settings(max_examples=60)
@given(data=st.data())
def test_what_is_read_is_what_pyarrow_reads(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    values = data.draw(st.sampled_from(INTEGERS))
    kind = data.draw(st.sampled_from(list_types(values)))
    ids = st.integers(0, 127)
    documents = data.draw(st.lists(st.none() | st.lists(ids, max_size=9), min_size=1, max_size=40))
    column = pa.array(documents, kind)
    name = "tokens"
    picked = [each for each in others(len(documents)) if data.draw(st.booleans())]
    if data.draw(st.booleans()):
        inside = [*others(len(documents))[: data.draw(st.integers(0, 3))], column]
        names = [*(f"other {number}" for number in range(len(inside) - 1)), "tokens"]
        absent = data.draw(st.lists(st.booleans(), min_size=len(documents), max_size=len(documents)))
        column = pa.StructArray.from_arrays(inside, names, mask=pa.array(absent))
        documents = [None if nothing else document for nothing, document in zip(absent, documents, strict=True)]
        name = "meta.tokens"
    table = pa.table([*picked, column], [*(f"column {number}" for number in range(len(picked))), name.split(".")[0]])
    codec = data.draw(st.sampled_from([None, "lz4", "zstd"]))
    form, rows = data.draw(st.sampled_from(FORMS)), data.draw(st.integers(1, 50))
    begin = data.draw(st.integers(0, len(documents) - 1))
    file = tmp_path_factory.mktemp("set") / "a.arrow"
    file.write_bytes(ipc(table.slice(begin), form=form, codec=codec, rows=rows))
    assert documents_in(file, name) == [document or [] for document in documents[begin:]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("absent", [False, True])
def test_lists_of_a_fixed_size(tmp_path: Path, form: str, codec: str | None, absent: bool) -> None:
    documents = [[3 * row, 3 * row + 1, 3 * row + 2] for row in range(20)]
    nothing = [absent and row % 3 == 1 for row in range(20)]
    values = pa.array([token for document in documents for token in document], pa.int16())
    column = pa.FixedSizeListArray.from_arrays(values, 3, mask=pa.array(nothing))
    table = pa.table({"tokens": column}).slice(2)
    (tmp_path / "a.arrow").write_bytes(ipc(table, form=form, codec=codec, rows=7))
    expected = [[] if none else document for none, document in zip(nothing, documents, strict=True)]
    assert documents_in(tmp_path) == expected[2:]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_null_lists_are_empty_even_where_values_lie_beneath_them(
    tmp_path: Path, large: bool, codec: str | None
) -> None:
    kind = pa.LargeListArray if large else pa.ListArray
    offsets = pa.array([0, 2, 5, 5, 6], pa.int64() if large else pa.int32())
    column = kind.from_arrays(offsets, pa.array(range(6), pa.int32()), mask=pa.array([False, True, False, False]))
    (tmp_path / "a.arrow").write_bytes(ipc(pa.table({"tokens": column}), codec=codec))
    assert documents_in(tmp_path) == [[0, 1], [], [], [5]]
    index = build_index(tmp_path)
    assert (index.total_tokens, int(index.slots.sum())) == (3, 5)


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_views_of_lists_lie_in_any_order_and_overlap(tmp_path: Path, codec: str | None) -> None:
    views = pa.ListViewArray.from_arrays(
        pa.array([4, 0, 1, 6, 0], pa.int32()), pa.array([3, 2, 4, 0, 7], pa.int32()), pa.array(range(7), pa.uint16())
    )
    (tmp_path / "a.arrow").write_bytes(ipc(pa.table({"tokens": views}), codec=codec))
    assert documents_in(tmp_path) == [[4, 5, 6], [0, 1], [1, 2, 3, 4], [], [0, 1, 2, 3, 4, 5, 6]]


def test_offsets_need_not_begin_at_nothing(tmp_path: Path) -> None:
    """As slices do that a writer has not cut."""
    column = pa.ListArray.from_arrays(pa.array([3, 5, 5, 8], pa.int32()), pa.array(range(10), pa.int64()))
    data = bytearray(ipc(pa.table({"tokens": column})))
    assert documents_of_bytes(tmp_path, bytes(data)) == [[3, 4], [], [5, 6, 7]]
    place = data.index(np.array([0, 2, 2, 5], np.int32).tobytes())  # pyarrow has cut it
    data[place : place + 16] = np.array([1, 3, 3, 5], np.int32).tobytes()
    assert documents_of_bytes(tmp_path, bytes(data)) == [[4, 5], [], [6, 7]]
    data[place : place + 16] = np.array([3, 3, 3, 3], np.int32).tobytes()
    assert documents_of_bytes(tmp_path, bytes(data)) == [[], [], []]


def documents_of_bytes(folder: Path, data: bytes) -> list[list[int]]:
    file = folder / "made.arrow"
    file.write_bytes(data)
    return documents_in(file)


def test_record_batches_without_rows_count_and_are_left_out(tmp_path: Path) -> None:
    batches = [table_of(documents).combine_chunks().to_batches() for documents in ([[1]], [[2], [3]])]
    empty = batches[0][0].slice(0, 0)
    (tmp_path / "a.arrow").write_bytes(ipc([empty, *batches[0], empty, empty, *batches[1]]))
    index = build_index(tmp_path)
    assert (index.row_group.tolist(), index.rows.tolist()) == ([1, 4], [1, 2])
    assert documents_in(tmp_path) == [[1], [2], [3]]


def test_dictionaries_of_other_columns_are_passed_over(tmp_path: Path) -> None:
    words = pa.chunked_array([pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()])
    table = pa.table({"word": words, "tokens": pa.chunked_array([[[1], [2]], [[3], [4]]], pa.list_(pa.int32()))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:  # with a dictionary between the record batches
        writer.write_table(table)
    assert documents_of_bytes(tmp_path, sink.getvalue().to_pybytes()) == [[1], [2], [3], [4]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("legacy", [False, True])
def test_messages_of_old_files_begin_with_their_length(tmp_path: Path, form: str, legacy: bool) -> None:
    sink = pa.BufferOutputStream()
    new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(use_legacy_format=legacy, metadata_version=pa.ipc.MetadataVersion.V4)
    with new(sink, table_of(DOCUMENTS).schema, options=options) as writer:
        writer.write_table(table_of(DOCUMENTS), max_chunksize=3)
    assert documents_of_bytes(tmp_path, sink.getvalue().to_pybytes()) == [document or [] for document in DOCUMENTS]


def test_a_stream_may_just_end(tmp_path: Path) -> None:
    data = ipc(table_of([[1], [2]]), rows=1)
    assert data.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    assert documents_of_bytes(tmp_path, data[:-8]) == [[1], [2]]


@pytest.mark.parametrize("kind", [pa.null(), pa.list_(pa.null()), pa.list_(pa.string()), pa.string()])
def test_a_column_that_holds_no_value_has_empty_documents_of_whatever_type(tmp_path: Path, kind: pa.DataType) -> None:
    write_arrow(tmp_path / "a.arrow", [[1, 2], [3]])
    nothing = pa.table({"tokens": pa.array([None, None, None], kind)})
    (tmp_path / "b.arrow").write_bytes(ipc(nothing, rows=2))
    assert documents_in(tmp_path) == [[1, 2], [3], [], [], []]
    with ParquetLoader(tmp_path, seq_len=1, lanes=1, epochs=1, shuffle=False) as loader:
        assert [int(batch.tokens[0, 0]) for batch in loader] == [1, 2, 3]


def test_files_without_rows_are_part_of_a_set(tmp_path: Path) -> None:
    write_arrow(tmp_path / "a.arrow", [[1, 2], [3]])
    for name, kind in (("b", pa.list_(pa.int64())), ("c", pa.string())):
        schema = pa.schema([("tokens", kind)])
        with pa.ipc.new_stream(str(tmp_path / f"{name}.arrow"), schema):
            pass
    assert documents_in(tmp_path) == [[1, 2], [3]]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("views", [False, True])
def test_a_null_among_tokens_is_named_by_its_row(tmp_path: Path, codec: str | None, views: bool) -> None:
    kind = pa.list_view(pa.int32()) if views else pa.list_(pa.int32())
    table = table_of([[1], None, [2, None], [3]], kind)
    (tmp_path / "a.arrow").write_bytes(ipc(table, codec=codec))
    _, [raw], [chunk] = chunks_of(tmp_path)
    with pytest.raises(DataError, match=r"a\.arrow, row group 0, column 'tokens': row 2 has a null .* position 1"):
        documents_of(raw, chunk)
    assert ARROW.decode_together([raw] * 2, [chunk] * 2, dtype=np.dtype(np.int32), bound=9, eos_id=None) is None


def test_a_null_beneath_a_null_list_is_nothing(tmp_path: Path) -> None:
    values = pa.array([1, None, 2], pa.int32())
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), values, mask=pa.array([False, True, False]))
    for codec in (None, "zstd"):
        (tmp_path / "a.arrow").write_bytes(ipc(pa.table({"tokens": column}), codec=codec))
        assert documents_in(tmp_path) == [[1], [], [2]]


@pytest.mark.parametrize(
    ("values", "token"), [(pa.int32(), -1), (pa.uint16(), 300), (pa.int64(), 2**40), (pa.int8(), -128)]
)
def test_an_id_out_of_range_is_named_and_never_wrapped(tmp_path: Path, values: pa.DataType, token: int) -> None:
    write_arrow(tmp_path / "a.arrow", [[1], [2, 3], [4, token]], pa.list_(values), rows=2)
    _, raws, chunks = chunks_of(tmp_path)
    options: dict[str, Any] = {"dtype": np.dtype(np.uint8), "bound": 256}
    assert documents_of(raws[0], chunks[0], **options) == [[1], [2, 3]]
    with pytest.raises(DataError, match=rf"row group 1.*row 0 has token id {token}, outside \[0, 256\)"):
        documents_of(raws[1], chunks[1], **options)
    assert ARROW.decode_together(raws, chunks, **options, eos_id=None) is None


def refusal(folder: Path, data: bytes, column: str | None = None) -> str:
    """Why a file is refused."""
    (folder / "a.arrow").write_bytes(data)
    with pytest.raises((ConfigError, DataError)) as caught:
        build_index(folder, column=column)
    return str(caught.value)


def big_endian(data: bytes) -> bytes:
    """The same with a schema that says so, as far as a reader for little-endian numbers sees it: the first field of its
    table, which writers leave out, is said to lie where there is a number that is not 0.
    """
    begin = 8  # of the flatbuffer

    def number(place: int, dtype: str) -> int:
        return int(np.frombuffer(data, dtype, 1, begin + place)[0])

    root = number(0, "<u4")
    header = root + number(root - number(root, "<i4") + 4 + 2 * 2, "<u2")
    schema = header + number(header, "<u4")
    entry = begin + schema - number(schema, "<i4") + 4
    fields = data[entry + 2 : entry + 4]  # the second field's place, a vector, is a number that is not 0
    return data[:entry] + fields + data[entry + 2 :]


def test_what_is_no_arrow_file_says_what_it_is(tmp_path: Path) -> None:
    assert "is no Arrow IPC file (0 bytes): it is empty" in refusal(tmp_path, b"")
    assert "it starts with b'hello wo'" in refusal(tmp_path, b"hello world, this is no file at all")
    assert "Feather file of version 1" in refusal(tmp_path, b"FEA1" + bytes(60))
    said = refusal(tmp_path, b"PAR1" + bytes(60))
    assert "it is a Parquet file: rename it to .parquet, or name the file and give format='parquet'" in said
    assert "it is a web page" in refusal(tmp_path, b"<!DOCTYPE html><html>" + bytes(60))
    assert "Git LFS pointer" in refusal(tmp_path, b"version https://git-lfs.github.com/spec/v1\n" + bytes(60))


def test_what_is_not_read_says_so(tmp_path: Path) -> None:
    encoded = pa.table({"tokens": pa.array([[1, 2]], pa.list_(pa.int32()))})
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([5, 6], pa.int32()))
    lists = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), values)
    assert "'tokens': is encoded by a dictionary" in refusal(tmp_path, ipc(pa.table({"tokens": lists})))
    assert "big-endian" in refusal(tmp_path, big_endian(ipc(encoded)))
    words = ipc(pa.table({"text": ["a"]}))
    assert "no column that is a list of integers; its columns are text (string)" in refusal(tmp_path, words)
    both = ipc(pa.table({"a": [[1]], "b": [[2]]}))
    assert "several columns are lists of integers" in refusal(tmp_path, both)
    assert "no column 'c'" in refusal(tmp_path, both, "c")
    doubled = ipc(pa.table([pa.array([[1]]), pa.array([[2]])], ["a", "a"]))
    assert "two columns have this name" in refusal(tmp_path, doubled)


@pytest.mark.parametrize(("size", "said"), [(2**31 - 1, "no column that is"), (10**9 - 1, "5 values for lists of")])
def test_lists_of_a_size_that_cannot_be_are_refused(tmp_path: Path, size: int, said: str) -> None:
    data = bytearray(ipc(table_of([[1, 2, 3, 4, 5]], pa.list_(pa.int32(), 5))))
    place = data.index((5).to_bytes(4, "little"), 100)
    data[place : place + 4] = size.to_bytes(4, "little")
    assert said in refusal(tmp_path, bytes(data))


def test_a_compression_that_is_unknown_is_named(tmp_path: Path) -> None:
    data = ipc(table_of([[1, 2]] * 1000), codec="zstd")
    begin = len(pa.ipc.read_message(data).serialize())
    batch = bytearray(data)
    found = [
        place
        for place in range(begin, begin + 400)
        if batch[place] == 1 and "compression (codec 7" in told(tmp_path, batch, place)
    ]
    assert found


def told(folder: Path, data: bytearray, place: int) -> str:
    """What is said of a file with a 7 in some place."""
    changed = bytearray(data)
    changed[place] = 7
    (folder / "a.arrow").write_bytes(changed)
    try:
        return repr(build_index(folder))
    except (ConfigError, DataError) as error:
        return str(error)


def test_what_was_cut_off_says_so(tmp_path: Path) -> None:
    stream = ipc(table_of([[1] * 100] * 50), rows=10)
    assert "its writing or copying was cut off" in refusal(tmp_path, stream[:-20])
    assert "its writing or copying was cut off" in refusal(tmp_path, stream[: len(stream) // 2])
    file = ipc(table_of([[1] * 100] * 50), rows=10, form="file")
    assert "has no end" in refusal(tmp_path, file[:-1])
    assert "has no end" in refusal(tmp_path, file[: len(file) // 2])


def test_joined_streams_are_refused_as_such(tmp_path: Path) -> None:
    one = ipc(table_of([[1]]))
    assert "several streams were joined" in refusal(tmp_path, one + one)
    assert "several streams were joined" in refusal(tmp_path, one[:-8] + one)


# ── parts, cost and reads ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("eos_id", [None, 99])
@pytest.mark.parametrize("kind", ["list", "gaps", "views"])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_parts_are_the_documents_whatever_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eos_id: int | None, kind: str, codec: str | None
) -> None:
    monkeypatch.setattr(decode, "PART_TOKENS", 16)
    monkeypatch.setattr(decode, "_GATHER_TOKENS", 5)
    monkeypatch.setattr(decode, "_BLOCK_TOKENS", 7)
    rng = np.random.default_rng(5)
    documents = [rng.integers(0, 90, rng.integers(0, 12) * (rng.random() < 0.8)).tolist() for _ in range(40)]
    documents += [rng.integers(0, 90, 70).tolist(), [], []]
    column = pa.array(documents, pa.list_view(pa.int32()) if kind == "views" else pa.list_(pa.int32()))
    if kind == "gaps":
        absent = rng.random(len(documents)) < 0.2
        column = pa.ListArray.from_arrays(column.offsets, column.values, mask=pa.array(absent))
        documents = [[] if nothing else document for nothing, document in zip(absent, documents, strict=True)]
    if kind == "views":
        order = rng.permutation(len(documents))
        column = pa.ListViewArray.from_arrays(
            column.offsets.take(pa.array(order)), column.sizes.take(pa.array(order)), column.values
        )
        documents = [documents[number] for number in order]
    (tmp_path / "a.arrow").write_bytes(ipc(pa.table({"tokens": column}), codec=codec))
    _, [raw], [chunk] = chunks_of(tmp_path)
    options: dict[str, Any] = {"dtype": np.dtype(np.uint8), "bound": 100, "eos_id": eos_id}
    expected = [[*document, *([] if eos_id is None else [eos_id])] for document in documents]
    assert documents_of(raw, chunk, **options) == expected
    assert [len(document) for document in documents] == ARROW.document_lengths([raw], [chunk])[0].tolist()
    whole = [token for document in expected for token in document]
    for first, last in ((0, 1), (17, 18), (40, 90), (len(whole) - 1, len(whole)), (90, None), (33, 34)):
        parts = list(ARROW.open(raw, chunk).parts(**options, first=first, last=last))
        covered = [number for part in parts for number in range(part.begin, part.begin + len(part.tokens))]
        assert set(range(first, len(whole) if last is None else last)) <= set(covered)
        assert len(covered) <= (last or len(whole)) - first + 3 * 25
        for part in parts:
            assert part.tokens.tolist() == whole[part.begin : part.begin + len(part.tokens)]


@pytest.mark.parametrize("kind", [*list_types(pa.int32()), pa.list_(pa.int32(), 2)])
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_rows_are_counted_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, codec: str | None
) -> None:
    monkeypatch.setattr(entries, "_ROWS", 8)
    documents = [None if row % 7 == 3 else [row, row] for row in range(100)]
    (tmp_path / "a.arrow").write_bytes(ipc(table_of(documents, kind), codec=codec))
    index = build_index(tmp_path)
    assert (index.tokens.tolist(), index.slots.tolist(), index.rows.tolist()) == ([172], [186], [100])


def test_record_batches_together_are_the_same_as_one_by_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 200, rng.integers(0, 9)).tolist() for _ in range(300)]
    write_arrow(tmp_path / "a.arrow", documents[:100], pa.list_(pa.int64()), rows=7)
    write_arrow(tmp_path / "b.arrow", documents[100:200], pa.large_list(pa.uint8()), rows=11, codec="lz4")
    write_arrow(tmp_path / "c.arrow", documents[200:], pa.list_view(pa.int16()), form="file")
    _, raws, chunks = chunks_of(tmp_path)
    options: dict[str, Any] = {"dtype": np.dtype(np.uint16), "bound": 201, "eos_id": 200}
    part = ARROW.decode_together(raws, chunks, **options)
    assert part is not None
    assert part.tokens.tolist() == [token for document in documents for token in (*document, 200)]
    assert part.starts.tolist() == [0, *itertools.accumulate(len(document) + 1 for document in documents)][:-1]


def test_values_that_are_wanted_as_they_are_stored_are_not_copied(tmp_path: Path) -> None:
    write_arrow(tmp_path / "a.arrow", [[1, 2], [3]], pa.list_(pa.uint16()))
    _, [raw], [chunk] = chunks_of(tmp_path)
    [part] = ARROW.open(raw, chunk).parts(dtype=np.dtype(np.uint16), bound=9)
    assert np.shares_memory(part.tokens, np.frombuffer(raw, np.uint8))


@pytest.mark.parametrize("tokens", [30_000, 1_700_000])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", ["list", "gaps"])
@pytest.mark.parametrize("eos_id", [None, 1])
def test_decoding_stays_within_its_cost(
    tmp_path: Path, tokens: int, codec: str | None, kind: str, eos_id: int | None
) -> None:
    rng = np.random.default_rng(0)
    offsets = np.append(np.arange(0, tokens, 40), tokens).astype(np.int32)
    values = pa.array(rng.zipf(1.2, tokens).clip(0, 50_000), pa.int64())
    absent = np.zeros(len(offsets) - 1, bool)
    absent[::50] = kind == "gaps"
    column = pa.ListArray.from_arrays(offsets, values, mask=pa.array(absent))
    (tmp_path / "a.arrow").write_bytes(ipc(pa.table({"tokens": column}), codec=codec))
    _, [raw], [chunk] = chunks_of(tmp_path)
    dtype, eos = np.dtype(np.uint16), eos_id is not None
    cost = ARROW.open(raw, chunk).cost_bytes(dtype=dtype, eos=eos)
    usual = ARROW.decode_cost(ChunkSize.of_chunk(chunk), codec=chunk.codec, dtype=dtype, eos=eos)
    assert cost <= ARROW.most_decode_cost(ChunkSize.of_chunk(chunk), dtype=dtype, eos=eos)
    assert cost <= usual or (codec and kind == "gaps" and tokens > decode.one_part_slots())

    def work() -> int:
        return sum(len(part.tokens) for part in ARROW.open(raw, chunk).parts(dtype=dtype, bound=50_001, eos_id=eos_id))

    assert held_by(work) <= cost


@pytest.mark.parametrize("tokens", [300, 20_000])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("eos_id", [None, 1])
def test_record_batches_together_hold_no_more_than_one_by_one(
    tmp_path: Path, tokens: int, codec: str | None, eos_id: int | None
) -> None:
    documents = np.arange(20 * tokens).reshape(-1, 50).tolist()
    write_arrow(tmp_path / "a.arrow", documents, pa.list_(pa.int64()), codec=codec, rows=tokens // 50)
    _, raws, chunks = chunks_of(tmp_path)
    assert len(chunks) == 20
    dtype, eos = np.dtype(np.int32), eos_id is not None
    cost = sum(ARROW.decode_cost(ChunkSize.of_chunk(each), codec=each.codec, dtype=dtype, eos=eos) for each in chunks)
    options: dict[str, Any] = {"dtype": dtype, "bound": 20 * tokens, "eos_id": eos_id}
    assert held_by(lambda: ARROW.decode_together(raws, chunks, **options)) <= cost


def test_an_unpacked_length_that_is_not_its_tokens_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    write_arrow(tmp_path / "a.arrow", [[1] * 500] * 4, codec="zstd")
    _, [raw], [chunk] = chunks_of(tmp_path)
    changed = bytearray(raw)
    place = dict(zip(decode.PLACES, chunk.places, strict=True))["values_offset"]
    for claimed in (2**60, 2**40, 0, -5, 2_000 * 4 - 1, 2_000 * 4 + 65):
        changed[place : place + 8] = claimed.to_bytes(8, "little", signed=True)
        with pytest.raises(DataError, match=r"unpacks to .* bytes where 8,000 are needed"):
            documents_of(bytes(changed), chunk)


def test_compressed_values_that_are_in_no_document_are_not_unpacked(tmp_path: Path) -> None:
    """As pyarrow writes the views of a slice: all values there are, in every record batch."""
    views = pa.array([[number] * 100 for number in range(100)], pa.list_view(pa.int32()))
    (tmp_path / "a.arrow").write_bytes(ipc(pa.table({"tokens": views}), codec="zstd", rows=10))
    _, raws, chunks = chunks_of(tmp_path)
    with pytest.raises(DataError, match=r"10,000 values, compressed, and 1,000 tokens.*without compression"):
        documents_of(raws[0], chunks[0])
    (tmp_path / "a.arrow").write_bytes(ipc(pa.table({"tokens": views}), rows=10))
    assert documents_in(tmp_path) == views.to_pylist()


class Reads(LocalStorage):
    """Notes what is read."""

    def __init__(self, folder: Path) -> None:
        super().__init__([str(folder)])
        self.made: list[tuple[int, int]] = []

    def read(self, file: Any, start: int, length: int, stop: Any = None) -> bytes:
        self.made.append((start, length))
        return super().read(file, start, length, stop)


@pytest.mark.parametrize("form", FORMS)
def test_small_record_batches_are_indexed_with_few_reads(tmp_path: Path, form: str) -> None:
    write_arrow(tmp_path / "a.arrow", [[7] * 10] * 4_000, form=form, rows=10)
    storage = Reads(tmp_path)
    assert len(build_index(storage)) == 400
    assert len(storage.made) <= 3


@pytest.mark.parametrize("form", FORMS)
def test_of_large_record_batches_the_values_are_not_read_for_an_index(tmp_path: Path, form: str) -> None:
    column = pa.ListArray.from_arrays(np.arange(0, 4_000_001, 1_000, np.int32), np.zeros(4_000_000, np.int32))
    table = pa.table({"text": ["x" * 500] * 4_000, "tokens": column})
    (tmp_path / "a.arrow").write_bytes(ipc(table, form=form, rows=1_000))
    storage = Reads(tmp_path)
    assert len(build_index(storage, column="tokens")) == 4
    assert len(storage.made) <= 2 + 2 * 4
    assert sum(length for _, length in storage.made) < 500_000


def test_only_the_buffers_of_the_tokens_are_read(tmp_path: Path) -> None:
    table = pa.table({"a": ["x" * 100] * 50, "tokens": [[1, 2, 3]] * 50, "b": ["y" * 100] * 50})
    (tmp_path / "a.arrow").write_bytes(ipc(table))
    index, [raw], _ = chunks_of(tmp_path, "tokens")
    assert index.length.tolist() == [len(raw)]
    assert 51 * 4 + 150 * 8 <= len(raw) <= 51 * 4 + 150 * 8 + 64


# ── Hugging Face's folders ───────────────────────────────────────────────────────────────────────────────────────


def saved(folder: Path, names: list[str], **more: Any) -> Path:
    """A folder as `datasets` saves a set, with files of its own beside it."""
    for number, name in enumerate([*names, "cache-0123.arrow", "left.arrow"]):
        write_arrow(folder / name, [[number]])
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names], **more}))
    return folder


def test_a_saved_set_is_the_files_that_it_names(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"])
    assert documents_in(folder) == [[0], [1]]


def test_saved_sets_below_one_folder_are_one_set(tmp_path: Path) -> None:
    saved(tmp_path / "one", ["data-0.arrow"])
    saved(tmp_path / "two", ["data-0.arrow", "data-1.arrow"])
    assert documents_in(tmp_path) == [[0], [0], [1]]


def test_a_saved_set_that_lacks_a_file_names_it(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", ["data-0.arrow", "data-1.arrow"])
    (folder / "data-1.arrow").unlink()
    with pytest.raises(DataError, match=r"state\.json: names data-1\.arrow among the files"):
        build_index(folder)


def test_a_selection_of_rows_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", ["data-0.arrow"], _indices_data_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match="flatten_indices"):
        build_index(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"_data_files": 5}', '{"_data_files": [7]}', "[" * 100_000])
def test_a_damaged_state_of_a_saved_set_is_one_error(tmp_path: Path, text: str) -> None:
    folder = saved(tmp_path / "set", ["data-0.arrow"])
    (folder / "state.json").write_text(text)
    with pytest.raises(DataError, match=r"state\.json"):
        build_index(folder)


def test_a_state_of_something_else_tells_nothing(tmp_path: Path) -> None:
    write_arrow(tmp_path / "a.arrow", [[1], [2]])
    (tmp_path / "state.json").write_text('{"step": 5}')
    assert documents_in(tmp_path) == [[1], [2]]


def test_a_dict_of_splits_names_their_folders(tmp_path: Path) -> None:
    saved(tmp_path / "all" / "train", ["data-0.arrow"])
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match=r"the folder of one: .*all/train, .*all/test"):
        build_index(tmp_path / "all")
    assert documents_in(tmp_path / "all" / "train") == [[0]]


def test_an_index_of_arrow_files_is_saved_and_numbers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path / "a.arrow", DOCUMENTS, codec="lz4", rows=3)
    index = build_index(tmp_path)
    again = type(index).from_bytes(index.to_bytes())
    assert np.array_equal(again.numbers, index.numbers)
    assert (again.layouts, again.format) == (index.layouts, "arrow")
    for row, value in ((1, -1), (2, 2**40), (3, 2**62), (0, -1)):
        places = index.places.copy()
        places[row, 0] = value
        with pytest.raises(ConfigError, match="impossible numbers"):
            type(index).from_bytes(dataclasses.replace(index, places=places).to_bytes())
    with pytest.raises(ConfigError, match="of another format"):
        type(index).from_bytes(dataclasses.replace(index, places=index.places[:5]).to_bytes())
