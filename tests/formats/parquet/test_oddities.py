"""Parquet as it is met: files of odd kinds, damaged ones, and sets that do not agree, through index and loader."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from chunks import decode_chunk
from pyarrow import feather
from writers import (
    OPTIONAL,
    REPEATED,
    REQUIRED,
    RLE_DICTIONARY,
    WRITERS,
    data_page,
    file_by_hand,
    list_by_hand,
    read_pyarrow,
    repetition_levels,
    rle,
    schema_group,
    schema_leaf,
    write_pyarrow,
)

from parquet_loader import ParquetLoader
from parquet_loader.errors import ConfigError, DataError, FileChangedError, ParquetLoaderError
from parquet_loader.formats.parquet import thrift
from parquet_loader.index import build_index
from parquet_loader.storage import open_storage

sys.path.insert(0, str(Path(__file__).parents[3] / "tools" / "soak"))
from bit_rot import outcomes


def documents_in(source: Path, column: str | None = None) -> list[list[int]]:
    """Every document of a source by way of the index, in storage order."""
    storage = open_storage(source)
    index = build_index(source, column=column)
    found = []
    for group in range(len(index)):
        chunk = index.chunk(group)
        block = decode_chunk(storage.read(index.files[int(index.file[group])], chunk.start, chunk.length), chunk)
        found += [block.tokens[a:b].tolist() for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)]
    return found


def tokens_through_loader(source: Any, **options: Any) -> list[int]:
    """The tokens of the first epoch but for a last row that is not full, in storage order, through the whole loader."""
    with ParquetLoader(source, seq_len=1, lanes=1, shuffle=False, **options) as loader:
        return [int(batch.tokens[0, 0]) for batch in loader]


# ── empty and null lists ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("writer", WRITERS)
def test_slots_of_empty_and_null_lists_are_no_tokens(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "x.parquet", [[1, 2, 3], [], None, [4], [7]])
    index = build_index(tmp_path)
    assert (index.slots.tolist(), index.tokens.tolist(), index.rows.tolist()) == ([7], [5], [5])
    assert documents_in(tmp_path) == [[1, 2, 3], [], [], [4], [7]]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_group_of_only_empty_and_null_lists_is_passed_by(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "x.parquet", [[5]] * 2048 + [[], None] * 1024 + [[6]], rows=2048)
    assert build_index(tmp_path).tokens.tolist() == [2048, 0, 1]
    assert tokens_through_loader(tmp_path) == [5] * 2048 + [6]


@pytest.mark.parametrize("writer", WRITERS)
def test_null_lists_get_an_eos_as_empty_documents_do(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "x.parquet", [[1], [], None, [2, 3]])
    assert tokens_through_loader(tmp_path, eos_id=9) == [1, 9, 9, 9, 2, 3, 9]


def test_a_set_of_only_empty_documents_is_refused(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[], None])
    with pytest.raises(ConfigError, match="no token"):
        tokens_through_loader(tmp_path)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_null_element_surfaces_in_the_loader_with_file_and_row(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "x.parquet", [[1, 2], [3, None, 4]])
    with pytest.raises(DataError, match=r"x\.parquet, row group 0.*row 1 has a null inside its document") as caught:
        tokens_through_loader(tmp_path)
    assert (caught.value.path, caught.value.row_group, caught.value.column) == ("x.parquet", 0, "tokens")


def write_pandas(path: Path, values: list[Any], dtype: Any = object) -> None:
    pd.DataFrame({"tokens": pd.Series(values, dtype=dtype)}).to_parquet(path)


NOTHING: dict[str, tuple[Callable[[Path], object], int]] = {
    # name: (a writer of a file in which the column holds no value, its rows)
    "null": (lambda path: write_pyarrow(path, [None] * 3, kind=pa.null()), 3),
    "a list of null": (lambda path: write_pyarrow(path, [[], None, []], kind=pa.list_(pa.null())), 3),
    "a list of integers": (lambda path: write_pyarrow(path, [None, []]), 2),
    "a list of text": (lambda path: write_pyarrow(path, [[], []], kind=pa.list_(pa.string())), 2),
    "text": (lambda path: write_pyarrow(path, [None, None], kind=pa.string()), 2),
    "objects of pandas": (lambda path: write_pandas(path, [None, None]), 2),
    "empty lists of pandas": (lambda path: write_pandas(path, [[], None]), 2),
    "not numbers of pandas": (lambda path: write_pandas(path, [float("nan")] * 2, float), 2),
    "no rows of pandas": (lambda path: write_pandas(path, [], float), 0),
    "no rows of objects": (lambda path: write_pandas(path, []), 0),
    "null by Polars": (lambda path: pl.DataFrame({"tokens": [None, None]}).write_parquet(path), 2),
    "a list of null by Polars": (lambda path: pl.DataFrame({"tokens": [[], None]}).write_parquet(path), 2),
}


@pytest.mark.parametrize("column", [None, "tokens"])
@pytest.mark.parametrize("name", NOTHING)
def test_a_shard_whose_column_holds_no_value_is_one_of_empty_documents(
    tmp_path: Path, name: str, column: str | None
) -> None:
    write, rows = NOTHING[name]
    (tmp_path / "set").mkdir()
    write_pyarrow(tmp_path / "set" / "0.parquet", [[1], [2, 3]])
    write(tmp_path / "set" / "1.parquet")
    write_pyarrow(tmp_path / "set" / "2.parquet", [[4]])
    for _ in range(2):  # the second time from the cache
        found = tokens_through_loader(tmp_path / "set", column=column, eos_id=9, cache_dir=tmp_path / "cache")
        assert found == [1, 9, 2, 3, 9, *[9] * rows, 4, 9]
    assert tokens_through_loader(tmp_path / "set", column=column) == [1, 2, 3, 4]


def test_a_column_without_a_value_is_not_taken_for_the_tokens(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1]], "meta": [None], "extra": [[]]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"tokens": [[2]], "meta": [None], "extra": [[]]}), tmp_path / "1.parquet")
    for _ in range(2):
        assert tokens_through_loader(tmp_path) == [1, 2]


@pytest.mark.parametrize("column", [None, "meta"])
def test_a_set_of_text_is_not_taken_for_one_of_empty_documents(tmp_path: Path, column: str | None) -> None:
    pq.write_table(pa.table({"text": ["a"], "meta": pa.array([None], pa.null())}), tmp_path / "0.parquet")
    with pytest.raises(ConfigError, match=r"0\.parquet has (no|a) column .* list of integers"):
        tokens_through_loader(tmp_path, column=column)


def test_a_shard_of_other_values_is_refused(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "0.parquet", [[1]])
    write_pyarrow(tmp_path / "1.parquet", ["a", None], kind=pa.string())
    with pytest.raises(ConfigError, match=r"1\.parquet has no column that is a list of integers.*other 1 files"):
        tokens_through_loader(tmp_path)


# ── list layouts ─────────────────────────────────────────────────────────────────────────────────────────────────

DOCUMENTS = [[1, 2, 3], [], [4], [5, 6]]

BAG = [schema_group("tokens", OPTIONAL, is_list=True), schema_group("bag", REPEATED)]
LIST = [schema_group("tokens", OPTIONAL, is_list=True), schema_group("list", REPEATED)]
REQUIRED_LIST = [schema_group("tokens", REQUIRED, is_list=True), schema_group("list", REPEATED)]
LAYOUTS = {
    # name: (schema elements, path, level of an empty list, level of an element)
    "bare repeated": ([schema_leaf("tokens", REPEATED)], ["tokens"], 0, 1),
    "two levels, required list": (
        [schema_group("tokens", REQUIRED, is_list=True), schema_leaf("array", REPEATED)], ["tokens", "array"], 0, 1,
    ),
    "two levels, optional list": (
        [schema_group("tokens", OPTIONAL, is_list=True), schema_leaf("array", REPEATED)], ["tokens", "array"], 1, 2,
    ),
    "bag.array_element": (
        [*BAG, schema_leaf("array_element", OPTIONAL)], ["tokens", "bag", "array_element"], 1, 3,
    ),
    "list.item, all required": ([*REQUIRED_LIST, schema_leaf("item", REQUIRED)], ["tokens", "list", "item"], 0, 1),
    "optional list, required element": (
        [*LIST, schema_leaf("element", REQUIRED)], ["tokens", "list", "element"], 1, 2,
    ),
    "required list, optional element": (
        [*REQUIRED_LIST, schema_leaf("element", OPTIONAL)], ["tokens", "list", "element"], 0, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_levels_decide_and_not_names(tmp_path: Path, name: str) -> None:
    elements, path, empty, present = LAYOUTS[name]
    data = list_by_hand(DOCUMENTS, elements, path, empty=empty, present=present)
    (tmp_path / "x.parquet").write_bytes(data)
    assert read_pyarrow(tmp_path / "x.parquet", 0) == DOCUMENTS  # the file by hand is a right one
    assert documents_in(tmp_path) == DOCUMENTS
    assert tokens_through_loader(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_struct_that_holds_a_two_level_list_is_read(tmp_path: Path) -> None:
    elements = [
        schema_group("out", OPTIONAL),
        schema_group("ids", OPTIONAL, is_list=True),
        schema_leaf("array", REPEATED),
    ]
    data = list_by_hand(DOCUMENTS, elements, ["out", "ids", "array"], empty=2, present=3)
    (tmp_path / "x.parquet").write_bytes(data)
    assert documents_in(tmp_path, "out.ids") == DOCUMENTS


# ── integers ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("version", ["1.0", "2.6"])
def test_every_integer_type_comes_out_in_the_asked_dtype(tmp_path: Path, name: str, version: str) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[0, 100], [127]], kind=pa.list_(getattr(pa, name)()), version=version)
    with ParquetLoader(tmp_path, seq_len=3, lanes=1, shuffle=False, dtype="uint16") as loader:
        batch = next(iter(loader))
    assert batch.tokens.dtype == np.uint16
    assert batch.tokens.tolist() == [[0, 100, 127]]


BAD_IDS = [
    *[("int8", -1), ("int16", -5), ("int32", -1), ("int32", -(2**31)), ("int64", -1), ("int64", -(2**63))],
    *[("uint16", 60_000), ("int32", 60_000), ("uint32", 2**32 - 1), ("uint32", 2**31), ("int64", 2**32 + 1)],
    *[("int64", 2**63 - 1), ("uint64", 2**63), ("uint64", 2**64 - 1)],
]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize(("name", "token"), BAD_IDS)
def test_an_id_out_of_range_is_an_error_before_any_batch(
    tmp_path: Path, name: str, token: int, version: str, statistics: bool
) -> None:
    write_pyarrow(
        tmp_path / "x.parquet",
        [[1, 2], [3, token]],
        rows=1,
        kind=pa.list_(getattr(pa, name)()),
        version=version,
        write_statistics=statistics,
    )
    with pytest.raises(DataError, match=r"x\.parquet, row group 1.*token id .*outside \[0, 50257\)"):
        ParquetLoader(tmp_path, seq_len=1, lanes=1, vocab_size=50_257)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_an_id_that_the_dtype_cannot_hold_is_an_error(tmp_path: Path, dtype: str) -> None:
    token = int(np.iinfo(dtype).max) + 1
    write_pyarrow(tmp_path / "x.parquet", [[1], [token]], kind=pa.list_(pa.int64()))
    with pytest.raises(DataError, match=f"token id {token}"):
        ParquetLoader(tmp_path, seq_len=1, lanes=1, dtype=dtype)


def test_an_id_out_of_range_that_the_footer_does_not_tell_is_an_error_at_its_batch(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1], [70_000]], rows=1)
    index = build_index(tmp_path)
    blind = type(index)(**{**index.__dict__, "max_id": np.full(2, -1), "min_id": np.zeros(2, np.int64)})
    with (
        pytest.raises(DataError, match=r"x\.parquet, row group 1.*row 0 has token id 70000"),
        ParquetLoader(tmp_path, seq_len=1, lanes=1, shuffle=False, vocab_size=50_257, index=blind) as loader,
    ):
        list(loader)


# ── statistics ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_statistics_tokens_are_counted_by_decoding(tmp_path: Path) -> None:
    documents = [[1, 2], [], None, [3]] * 30
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    write_pyarrow(tmp_path / "a" / "x.parquet", documents, rows=16, write_statistics=False)
    write_pyarrow(tmp_path / "b" / "x.parquet", documents, rows=16)
    without, with_statistics = build_index(tmp_path / "a"), build_index(tmp_path / "b")
    assert pq.ParquetFile(tmp_path / "a" / "x.parquet").metadata.row_group(0).column(0).statistics is None
    assert without.fingerprint == with_statistics.fingerprint
    assert without.max_id.tolist() == with_statistics.max_id.tolist()
    assert without.min_id.tolist() == with_statistics.min_id.tolist()


def test_statistics_that_count_wrongly_are_an_error_and_no_loss(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2, 3], [], [4]])
    index = build_index(tmp_path)
    wrong = type(index)(**{**index.__dict__, "tokens": index.tokens - 1})
    with (
        pytest.raises(DataError, match=r"x\.parquet.*holds 4 tokens where its footer says 3"),
        ParquetLoader(tmp_path, seq_len=1, lanes=1, index=wrong) as loader,
    ):
        list(loader)


# ── codecs ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lz4_in_hadoop_framing_is_read(tmp_path: Path) -> None:
    def hadoop(body: bytes) -> bytes:
        block = pa.compress(body, "lz4_raw", asbytes=True)
        return len(body).to_bytes(4, "big") + len(block).to_bytes(4, "big") + block

    elements, path, empty, present = LAYOUTS["bag.array_element"]
    documents = [list(range(100)), [], [7] * 50]
    data = list_by_hand(documents, elements, path, empty=empty, present=present, codec=5, compress=hadoop)
    (tmp_path / "x.parquet").write_bytes(data)
    assert documents_in(tmp_path) == documents


def test_lzo_is_refused_with_the_cure(tmp_path: Path) -> None:
    elements, path, empty, present = LAYOUTS["bag.array_element"]
    (tmp_path / "x.parquet").write_bytes(list_by_hand(DOCUMENTS, elements, path, empty=empty, present=present, codec=3))
    with pytest.raises(DataError, match=r"x\.parquet.*LZO"):
        documents_in(tmp_path)


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", ["1.0", "2.0"])
def test_a_flipped_bit_in_a_checksummed_page_surfaces_in_the_loader(tmp_path: Path, page: str) -> None:
    write_pyarrow(
        tmp_path / "x.parquet", [list(range(2_000))], compression="none", use_dictionary=False,
        write_page_checksum=True, data_page_version=page,
    )  # fmt: skip
    index = build_index(tmp_path)
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    data[int(index.start[0] + index.length[0]) - 100] ^= 4
    (tmp_path / "x.parquet").write_bytes(data)
    with pytest.raises(DataError, match=r"x\.parquet, row group 0"):
        tokens_through_loader(tmp_path)


def write_encrypted(path: Path, *, plain_footer: bool) -> None:
    class Keys(pe.KmsClient):
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return key_bytes

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            return wrapped_key

    factory = pe.CryptoFactory(lambda _: Keys())
    config = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["tokens.list.element"]}, plaintext_footer=plain_footer,
        double_wrapping=False,
    )  # fmt: skip
    table = pa.table({"tokens": [[1, 2, 3]]})
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


BROKEN: dict[str, tuple[Callable[[Path, bytes], object], str]] = {
    "of no bytes": (lambda path, whole: path.write_bytes(b""), "is 0 bytes long.*cut off"),
    "of eleven bytes": (lambda path, whole: path.write_bytes(whole[:11]), "is 11 bytes long.*cut off"),
    "cut": (lambda path, whole: path.write_bytes(whole[:-9]), "bytes\\): it starts as a Parquet file but has no end"),
    "half": (lambda path, whole: path.write_bytes(whole[: len(whole) // 2]), "starts as a Parquet file but has no end"),
    "without a beginning": (lambda path, whole: path.write_bytes(whole[-9:]), "too short|claims a footer"),
    "of an IPC stream": (
        lambda path, whole: feather.write_feather(pa.table({"tokens": [[1]]}), path), "Arrow IPC",
    ),
    "of HTML": (lambda path, whole: path.write_bytes(b"\n <!DOCTYPE html><html>404</html>"), "web page.*download"),
    "of XML": (lambda path, whole: path.write_bytes(b"<?xml version='1.0'?><Error>AccessDenied</Error>"), "web page"),
    "of an LFS pointer": (
        lambda path, whole: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "git lfs pull",
    ),
    "of text": (lambda path, whole: path.write_bytes(b"just some text, no more"), "starts with b'just som'"),
    "of zeros": (lambda path, whole: path.write_bytes(b"\0" * 5000), "is no Parquet file"),
    "with an encrypted footer": (lambda path, whole: write_encrypted(path, plain_footer=False), "encrypted"),
    "with an encrypted column": (lambda path, whole: write_encrypted(path, plain_footer=True), "encrypted"),
    "with a footer of another length": (
        lambda path, whole: path.write_bytes(whole[:-8] + (2**31).to_bytes(4, "little") + b"PAR1"), "claims a footer",
    ),
    "with a footer of no sense": (
        lambda path, whole: path.write_bytes(b"PAR1" + b"\xff" * 40 + (40).to_bytes(4, "little") + b"PAR1"),
        "footer cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_with_its_likely_cause(tmp_path: Path, name: str) -> None:
    write_pyarrow(tmp_path / "good.parquet", [[1, 2, 3]] * 10)
    make, says = BROKEN[name]
    make(tmp_path / "bad.parquet", (tmp_path / "good.parquet").read_bytes())
    with pytest.raises(DataError, match=rf"^bad\.parquet\b.*{says}"):
        documents_in(tmp_path)


@pytest.mark.parametrize(
    "change", [{"start": 2**40}, {"length": 2**40}, {"length": 0}, {"slots": -5}, {"slots": 1}, {"start": 0}], ids=str
)
def test_impossible_numbers_in_a_footer_are_refused_before_they_are_used(
    tmp_path: Path, change: dict[str, int]
) -> None:
    page = data_page(rle([0, 1, 0]) + rle([1, 1, 1]) + b"\1\0\0\0" * 3, 3)
    numbers = {"slots": 3, "rows": 2, "start": 4, "length": len(page)}
    for name, given in {"good": numbers, "bad": {**numbers, **change}}.items():
        data = file_by_hand([schema_leaf("tokens", REPEATED)], ["tokens"], page, **given)
        (tmp_path / f"{name}.parquet").write_bytes(data)
    assert documents_in(tmp_path / "good.parquet") == [[1, 1], [1]]
    with pytest.raises(DataError, match=r"^bad\.parquet, row group 0.*impossible numbers"):
        documents_in(tmp_path / "bad.parquet")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_any_flipped_bit_of_a_footer_gives_a_file_or_one_of_our_errors(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2, 3], [], [4]] * 5, rows=5)
    whole = (tmp_path / "x.parquet").read_bytes()
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    rng = np.random.default_rng(0)
    flips = [(int(rng.integers(begin, len(whole))), int(rng.integers(8))) for _ in range(400)]

    def read(number: int) -> str:
        place, bit = flips[number]
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        (tmp_path / "x.parquet").write_bytes(damaged)
        try:
            documents_in(tmp_path)
        except ParquetLoaderError:
            return "refused"
        return "a file"

    found = Counter(outcomes(len(flips), read))  # in processes of their own: some damage might end them
    assert set(found) == {"refused", "a file"}, found
    assert found["refused"] > 10


# ── no rows ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_of_no_rows_is_passed_by(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "a.parquet", [])
    WRITERS[writer](tmp_path / "b.parquet", [[1], [2, 3]])
    index = build_index(tmp_path)
    assert [file.path for file in index.files] == ["a.parquet", "b.parquet"]
    assert index.file.tolist() == [1]
    assert tokens_through_loader(tmp_path) == [1, 2, 3]


def test_groups_of_no_rows_between_others_are_passed_by(tmp_path: Path) -> None:
    table = pa.table({"tokens": pa.array([[1], [2]], pa.list_(pa.int32()))})
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema) as writer:
        for piece in (table[:0], table[:1], table[:0], table[1:], table[:0]):
            writer.write_table(piece)
    assert pq.ParquetFile(tmp_path / "x.parquet").num_row_groups == 5
    assert build_index(tmp_path).row_group.tolist() == [1, 3]
    assert tokens_through_loader(tmp_path) == [1, 2]


def test_a_set_of_no_rows_is_refused(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [])
    with pytest.raises(ConfigError, match="no token"):
        tokens_through_loader(tmp_path)


# ── files that change ────────────────────────────────────────────────────────────────────────────────────────────


def replace(path: Path) -> None:
    write_pyarrow(path.with_suffix(".new"), [[9]] * 100, rows=1)
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize(
    "change",
    [
        replace,
        lambda path: path.unlink(),
        lambda path: os.utime(path, ns=(1, 1)),
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: os.truncate(path, 0),
    ],
    ids=["replaced", "removed", "touched", "cut", "emptied"],
)
def test_a_file_that_changed_after_indexing_is_an_error_that_names_it(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    write_pyarrow(tmp_path / "a.parquet", [[1]] * 100, rows=1)
    write_pyarrow(tmp_path / "b.parquet", [[2]] * 100, rows=1)
    with ParquetLoader(tmp_path, seq_len=1, lanes=1, shuffle=False) as loader:
        change(tmp_path / "b.parquet")
        with pytest.raises(FileChangedError, match=r"b\.parquet is not the file that was indexed"):
            list(loader)


def test_a_file_replaced_by_one_of_the_same_shape_is_noticed(tmp_path: Path) -> None:
    # With a remembered footer and the same layout, the new tokens would be read for the old ones.
    for name, token in (("a", 1), ("b", 2)):
        write_pyarrow(tmp_path / name, [[token] * 10] * 10, compression="none", use_dictionary=False)
    assert (tmp_path / "a").stat().st_size == (tmp_path / "b").stat().st_size
    (tmp_path / "set").mkdir()
    shutil.copy(tmp_path / "a", tmp_path / "set" / "x.parquet")
    with ParquetLoader(tmp_path / "set", seq_len=1, lanes=1) as loader:
        shutil.copy(tmp_path / "b", tmp_path / "set" / "x.parquet")
        with pytest.raises(FileChangedError, match=r"x\.parquet"):
            next(iter(loader))


# ── sets that do not agree ───────────────────────────────────────────────────────────────────────────────────────


def test_files_of_different_integers_layouts_and_column_orders_are_one_set(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "a.parquet", [[1], [2]], kind=pa.list_(pa.int32()))
    write_pyarrow(tmp_path / "b.parquet", [[3]], kind=pa.large_list(pa.int64()), compression="zstd")
    write_pyarrow(tmp_path / "c.parquet", [[4]], kind=pa.list_(pa.field("e", pa.uint16(), nullable=False)))
    pq.write_table(pa.table({"text": ["x"], "tokens": [[5]], "n": [1]}), tmp_path / "d.parquet")
    pq.write_table(pa.table({"n": [1], "text": ["x"], "tokens": [[6]]}), tmp_path / "e.parquet")
    elements, path, empty, present = LAYOUTS["bag.array_element"]
    (tmp_path / "f.parquet").write_bytes(list_by_hand([[7]], elements, path, empty=empty, present=present))
    assert tokens_through_loader(tmp_path, column="tokens") == [1, 2, 3, 4, 5, 6, 7]


def test_every_writers_files_together_are_one_set(tmp_path: Path) -> None:
    for number, writer in enumerate(WRITERS):
        WRITERS[writer](tmp_path / f"{number}.parquet", [[number] * 3, None, [number]])
    assert tokens_through_loader(tmp_path) == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_hive_folders_add_no_column_and_keep_their_order(tmp_path: Path) -> None:
    for token, name in enumerate(["lang=de/year=2023", "lang=en/year=2022", "lang=en/year=2023"]):
        (tmp_path / name).mkdir(parents=True)
        write_pyarrow(tmp_path / name / "0.parquet", [[token]])
    (tmp_path / "lang=en" / "_SUCCESS").touch()
    (tmp_path / "lang=en" / ".0.parquet.crc").write_bytes(b"crc")
    assert tokens_through_loader(tmp_path) == [0, 1, 2]


def test_a_folder_that_datasets_wrote_in_shards_is_one_set(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_dict({"input_ids": [[row] for row in range(30)], "text": ["x"] * 30})
    for shard in range(3):
        data.shard(3, shard, contiguous=True).to_parquet(tmp_path / f"train-{shard:05}-of-00003.parquet")
    assert tokens_through_loader(tmp_path) == list(range(30))


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_groups_of_ten_rows_lie_in_joined_reads(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[row] for row in range(3_000)], rows=10)
    with ParquetLoader(tmp_path, seq_len=100, lanes=1, window=300, shuffle=False) as loader:
        tokens = [token for batch in loader for token in batch.tokens[0].tolist()]
        stats = loader.stats()
    assert tokens == list(range(3_000))
    assert stats["row_groups"] >= 300
    assert stats["reads"] * 5 < stats["row_groups"]


def test_one_huge_group_is_loaded_and_a_budget_too_small_for_it_is_refused_with_what_would_do(tmp_path: Path) -> None:
    documents = np.arange(400_000, dtype=np.int32).reshape(400, 1_000)
    write_pyarrow(tmp_path / "x.parquet", documents.tolist())
    with ParquetLoader(tmp_path, seq_len=1_000, lanes=4, shuffle=False) as loader:
        rows = np.concatenate([batch.tokens for batch in loader])
    assert np.array_equal(np.sort(rows.ravel()), np.arange(400_000))
    with pytest.raises(ConfigError, match=r"give at least ([\d,]+)") as refused:
        ParquetLoader(tmp_path, seq_len=1_000, lanes=4, budget_bytes=1 << 20)
    enough = int(re.search(r"at least ([\d,]+)", str(refused.value))[1].replace(",", ""))
    with ParquetLoader(tmp_path, seq_len=1_000, lanes=4, budget_bytes=enough) as loader:
        assert sum(batch.tokens.size for batch in loader) == 400_000


def test_a_column_of_thousands_is_found_in_a_footer_longer_than_the_first_read(tmp_path: Path) -> None:
    wide = {f"column_{number}": [number] * 2 for number in range(4_000)}
    pq.write_table(pa.table({**wide, "tokens": [[1, 2], [3]], "z": [0, 0]}), tmp_path / "x.parquet", row_group_size=1)
    assert int.from_bytes((tmp_path / "x.parquet").read_bytes()[-8:-4], "little") > 64 << 10
    assert tokens_through_loader(tmp_path) == [1, 2, 3]


def test_a_thrift_string_beyond_the_usual_limit_is_read(tmp_path: Path) -> None:
    note = b"x" * (76 << 20)  # kept in base64, of which pyarrow stops at 100 MB unless it is told otherwise
    table = pa.table({"tokens": [[1, 2]]}).replace_schema_metadata({"note": note})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(OSError, match="Exceeded size limit"):
        pq.ParquetFile(tmp_path / "x.parquet")
    assert documents_in(tmp_path) == [[1, 2]]


def test_millions_of_tokens_in_runs_are_decoded_from_a_few_bytes(tmp_path: Path) -> None:
    """The layout of a group of more than 2^31 tokens, with fewer: pages of one run each, by hand."""
    slots = 3_000_000
    dictionary_page = thrift.struct((1, thrift.I32, 1), (2, thrift.I32, 0))
    value = (7).to_bytes(4, "little")
    dictionary = (
        thrift.struct((1, thrift.I32, 2), (2, thrift.I32, 4), (3, thrift.I32, 4), (7, thrift.STRUCT, dictionary_page))
        + value
    )

    def run(count: int, level: int) -> bytes:
        return thrift.varint(count << 1) + bytes([level])

    def with_length(runs: bytes) -> bytes:
        return len(runs).to_bytes(4, "little") + runs

    indices = bytes([1]) + run(slots, 0)
    first = data_page(
        with_length(run(1, 0) + run(slots - 1, 1)) + with_length(run(slots, 1)) + indices,
        slots,
        encoding=RLE_DICTIONARY,
    )
    more = data_page(with_length(run(slots, 1)) + with_length(run(slots, 1)) + indices, slots, encoding=RLE_DICTIONARY)
    data = file_by_hand(
        [schema_leaf("tokens", REPEATED)], ["tokens"], dictionary + first + more, slots=2 * slots, rows=1
    )
    (tmp_path / "x.parquet").write_bytes(data)
    assert len(data) < 1_000
    index = build_index(tmp_path)
    assert (index.tokens.tolist(), index.rows.tolist(), index.max_id.tolist()) == ([2 * slots], [1], [7])
    assert repetition_levels([[1, 2], [], [3]]) == [0, 1, 0, 0]
