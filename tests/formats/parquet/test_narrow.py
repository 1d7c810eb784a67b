"""Tokens are decoded straight to the dtype that is wanted, and held in two bytes wherever all ids fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chunks import chunks_of, decode_chunk, write
from hypothesis import given, settings
from hypothesis import strategies as st

from parquet_loader import DataError, ParquetLoader

ENCODINGS: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "dictionary, then plain": {"dictionary_pagesize_limit": 1000, "data_page_size": 4000},
    "plain": {"use_dictionary": False},
    "split": {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    "delta": {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
}


def table(documents: list[list[int]], kind: pa.DataType) -> pa.Table:
    return pa.table({"tokens": pa.array(documents, pa.list_(kind))})


@settings(max_examples=150)
@given(
    encoding=st.sampled_from(list(ENCODINGS)),
    kind=st.sampled_from([pa.int32(), pa.uint32(), pa.int64(), pa.uint64(), pa.uint16()]),
    target=st.sampled_from(["uint16", "int32", "int64"]),
    vocabulary=st.sampled_from([2, 300, 40_000, 65_536]),
    codec=st.sampled_from(["none", "snappy", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
    seed=st.integers(0, 2**32),
)
def test_every_encoding_decodes_to_the_wanted_dtype(encoding, kind, target, vocabulary, codec, version, seed) -> None:
    rng = np.random.default_rng(seed)
    longest = int(rng.choice([3, 60, 5000]))
    documents = [rng.integers(0, vocabulary, rng.integers(0, longest)).tolist() for _ in range(rng.integers(1, 30))]
    file = write(table(documents, kind), compression=codec, data_page_version=version, **ENCODINGS[encoding])
    ((raw, chunk),) = chunks_of(file)
    block = decode_chunk(raw, chunk, dtype=np.dtype(target), bound=vocabulary)
    assert block.tokens.dtype == target
    assert block.tokens.tolist() == [token for document in documents for token in document]
    assert block.offsets.tolist() == np.cumsum([0, *map(len, documents)]).tolist()


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("token", "kind", "bound"),
    [
        *((65_536, pa.int32(), 65_536), (-1, pa.int32(), 65_536), (1 << 20, pa.int32(), 65_536)),
        *((50_000, pa.int32(), 50_000), (1 << 40, pa.int64(), 65_536), (-(1 << 40), pa.int64(), 50_000)),
    ],
)
def test_an_id_that_does_not_fit_is_an_error_that_names_its_row(encoding, token, kind, bound) -> None:
    documents = [[1, 2, 3] * 1000, [], [5, token], [7]]
    ((raw, chunk),) = chunks_of(write(table(documents, kind), **ENCODINGS[encoding]))
    with pytest.raises(DataError, match=rf"row 2 has token id {token}, outside \[0, {bound}\)"):
        decode_chunk(raw, chunk, dtype=np.dtype("uint16"), bound=bound)


def test_a_dictionary_may_hold_ids_out_of_range_that_no_document_uses() -> None:
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array([4, 5, 70_000], pa.int32()))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), dictionary)
    ((raw, chunk),) = chunks_of(_as_integers(write(pa.table({"tokens": lists}))))
    block = decode_chunk(raw, chunk, dtype=np.dtype("uint16"), bound=65_536)
    assert block.tokens.tolist() == [4, 5, 4]


def _as_integers(file: bytes) -> bytes:
    """The file without its Arrow schema, by which the values would be dictionary-encoded in memory too."""
    assert b"ARROW:schema" in file
    return file.replace(b"ARROW:schema", b"arrow:schema")


@pytest.mark.parametrize(("vocabulary", "held"), [(65_536, 2), (65_537, 4)])
@pytest.mark.parametrize("statistics", [True, False])
def test_two_bytes_are_held_where_all_ids_fit(tmp_path: Path, vocabulary: int, held: int, statistics: bool) -> None:
    documents = [list(range(vocabulary - 50, vocabulary)) for _ in range(20)]
    pq.write_table(table(documents, pa.int32()), tmp_path / "a.parquet", write_statistics=statistics)
    with ParquetLoader(tmp_path, seq_len=50, lanes=4, shuffle=False) as loader:
        assert loader._config.held_dtype.itemsize == held
        batch = next(iter(loader))
        assert batch.tokens.dtype == np.int32
        assert batch.tokens[0].tolist() == documents[0]
        assert loader.stats()["fallbacks"] == 0


@pytest.mark.parametrize(
    ("options", "held"),
    [
        *(({"dtype": "int64"}, "uint16"), ({"dtype": "uint16"}, "uint16"), ({"dtype": "int16"}, "int16")),
        *(({"eos_id": 65_535}, "uint16"), ({"eos_id": 65_536}, "int32"), ({"vocab_size": 100_000}, "uint16")),
    ],
)
def test_what_is_held_follows_dtype_and_eos(tmp_path: Path, options: dict[str, Any], held: str) -> None:
    pq.write_table(table([[1, 2, 3]] * 40, pa.int32()), tmp_path / "a.parquet")
    with ParquetLoader(tmp_path, seq_len=8, lanes=2, shuffle=False, **options) as loader:
        assert loader._config.held_dtype == held
        row = next(iter(loader)).tokens[0].tolist()
    eos = [options["eos_id"]] if "eos_id" in options else []
    assert row == ([1, 2, 3, *eos] * 8)[:8]


def test_a_footer_whose_statistics_lie_is_found_out(tmp_path: Path) -> None:
    documents = [[1, 2, 70_000]] * 40
    pq.write_table(table(documents, pa.int32()), tmp_path / "a.parquet", use_dictionary=False, compression="none")
    true, lie = (number.to_bytes(4, "little") for number in (70_000, 60_000))
    data = (tmp_path / "a.parquet").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert true in data[footer:]
    (tmp_path / "a.parquet").write_bytes(data[:footer] + data[footer:].replace(true, lie))
    with ParquetLoader(tmp_path, seq_len=8, lanes=2) as loader:
        assert loader._config.held_dtype == np.uint16
        with pytest.raises(DataError, match=r"row 0 has token id 70000, outside \[0, 65536\).*statistics"):
            next(iter(loader))
