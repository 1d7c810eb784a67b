"""Sets of Arrow files: the same batches as from Parquet, files of other writers, other places, files that change.

ARROW_SETS=200 in the environment makes more random sets than usual.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aligned_sets import TYPES, check_values, lists, value_of, write_aligned
from arrow_files import FORMS, Documents, documents_in, ipc, write_arrow
from s3_server import S3Server, options_for, s3_server

from parquet_loader import DataError, FileChangedError, ParquetLoader, StorageError, build_index, merge_checkpoints
from parquet_loader.formats.arrow import decode

SETS = int(os.environ.get("ARROW_SETS", "12"))
LISTS = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]
INTEGERS = [pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]


def random_groups(rng: np.random.Generator) -> list[list[pa.Array]]:
    """Files of row groups of documents, empty and null ones among them."""
    files = []
    for _ in range(int(rng.integers(1, 4))):
        groups = []
        for _ in range(int(rng.integers(1, 5))):
            lengths = rng.integers(0, 40, rng.integers(1, 30)) * (rng.random() < 0.9)
            groups.append([None if rng.random() < 0.1 else rng.integers(0, 120, length).tolist() for length in lengths])
        files.append(groups)
    files[0][0].append([1, 2, 3])
    return files


def write_sets(folder: Path, rng: np.random.Generator) -> dict[str, Path]:
    """The same documents in the same groups as Parquet, and as files and streams of Arrow."""
    files = random_groups(rng)
    codecs = [None, "lz4", "zstd"]
    for number, groups in enumerate(files):
        arrays = [pa.array(group, pa.list_(pa.int32())) for group in groups]
        (folder / "parquet").mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(folder / "parquet" / f"{number}.parquet", pa.schema([("tokens", arrays[0].type)])) as out:
            for array in arrays:
                out.write_table(pa.table({"tokens": array}), row_group_size=len(array))
        for form in ("file", "stream"):
            kind = LISTS[int(rng.integers(4))](INTEGERS[int(rng.integers(7))])
            batches = [pa.record_batch({"tokens": pa.array(group, kind)}) for group in groups]
            data = ipc(batches, form=form, codec=codecs[int(rng.integers(3))])
            (folder / form).mkdir(parents=True, exist_ok=True)
            (folder / form / f"{number}.arrow").write_bytes(data)
    return {name: folder / name for name in ("parquet", "file", "stream")}


def batches_of(source: Any, count: int, **options: Any) -> list[np.ndarray]:
    with ParquetLoader(source, **options) as loader:
        return [batch.tokens.copy() for batch in islice(loader, count)]


@pytest.mark.parametrize("seed", range(SETS))
def test_the_same_documents_in_the_same_groups_give_the_same_batches(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sets = write_sets(tmp_path, rng)
    lanes = int(rng.choice([1, 2, 4, 6]))
    options: dict[str, Any] = {
        "lanes": lanes,
        "seq_len": int(rng.choice([1, 7, 16])),
        "overlap": int(rng.integers(0, 2)),
        "window": int(rng.integers(1, 5)),
        "seed": seed,
        "shuffle": bool(rng.random() < 0.8),
        "eos_id": [None, 121][int(rng.integers(2))],
        "vocab_size": 122,
        "threads": 2,
    }
    worlds = [world for world in (1, 2, 3) if lanes % world == 0]
    world = int(rng.choice(worlds))
    expected = batches_of(sets["parquet"], 12, **options)
    for form in ("file", "stream"):
        ranks = [batches_of(sets[form], 12, **options, rank=rank, world_size=world) for rank in range(world)]
        for number, rows in enumerate(expected):
            assert np.array_equal(np.concatenate([batches[number] for batches in ranks]), rows)


def test_a_mixture_takes_arrow_files_beside_parquet(tmp_path: Path) -> None:
    one, other = (write_sets(tmp_path / name, np.random.default_rng(seed)) for name, seed in (("one", 5), ("two", 6)))
    options: dict[str, Any] = {"lanes": 4, "seq_len": 8, "window": 2, "eos_id": 121, "vocab_size": 122}
    options |= {"weights": {"one": 0.7, "two": 0.3}}
    expected = batches_of({"one": one["parquet"], "two": other["parquet"]}, 20, **options)
    found = batches_of({"one": one["parquet"], "two": other["stream"]}, 20, **options)
    assert all(np.array_equal(rows, batch) for rows, batch in zip(expected, found, strict=True))


def test_packed_rows_come_whole_from_arrow_files_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = [rng.integers(0, 100, rng.integers(1, 17)).tolist() for _ in range(120)]
    table = pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))})
    (tmp_path / "parquet").mkdir()
    pq.write_table(table, tmp_path / "parquet" / "a.parquet", row_group_size=13)
    write_arrow(tmp_path / "arrow" / "a.arrow", rows, pa.large_list(pa.uint16()), rows=13)
    options: dict[str, Any] = {"lanes": 4, "seq_len": 16, "packing": "rows", "pad_id": 0, "window": 3, "epochs": 1}
    expected, found = (batches_of(tmp_path / name, 99, **options) for name in ("parquet", "arrow"))
    assert len(expected) == 30
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))


def test_other_processes_decode_the_same(tmp_path: Path) -> None:
    sets = write_sets(tmp_path, np.random.default_rng(78))
    options: dict[str, Any] = {"lanes": 4, "seq_len": 8, "window": 2, "eos_id": 121, "vocab_size": 122}
    expected = batches_of(sets["parquet"], 10, **options)
    found = batches_of(sets["file"], 10, **options, processes=1)
    assert all(np.array_equal(rows, batch) for rows, batch in zip(expected, found, strict=True))


def test_a_run_goes_on_on_other_ranks(tmp_path: Path) -> None:
    sets = write_sets(tmp_path, np.random.default_rng(77))
    options: dict[str, Any] = {"lanes": 4, "seq_len": 8, "window": 2, "eos_id": 121, "vocab_size": 122}
    expected = batches_of(sets["parquet"], 10, **options)
    parts = []
    for rank in range(2):
        with ParquetLoader(sets["stream"], **options, rank=rank, world_size=2) as loader:
            assert len(list(islice(loader, 4))) == 4
            parts.append(loader.checkpoint())
    with ParquetLoader(sets["stream"], **options) as loader:
        loader.resume(merge_checkpoints(parts))
        rest = [batch.tokens.copy() for batch in islice(loader, 6)]
    assert all(np.array_equal(rows, batch) for rows, batch in zip(expected[4:], rest, strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list_view])
def test_aligned_columns_of_every_type_go_with_the_tokens(
    tmp_path: Path, form: str, codec: str | None, kind: Callable[[pa.DataType], pa.DataType]
) -> None:
    columns = {name: name for name in TYPES}
    lengths = np.random.default_rng(2).integers(0, 30, 200).tolist()
    write_aligned(tmp_path / "parquet", [[lengths[:90], lengths[90:]], [[5, 0, 8]]], columns)
    for file in (tmp_path / "parquet").iterdir():
        source = pq.ParquetFile(file)
        batches = []
        for group in range(source.num_row_groups):
            table = source.read_row_group(group).combine_chunks()
            arrays = [pa.array(column.to_pylist(), kind(column.type.value_type)) for column in table.columns]
            batches.append(pa.record_batch(arrays, table.column_names))
        (tmp_path / "arrow").mkdir(exist_ok=True)
        (tmp_path / "arrow" / f"{file.stem}.arrow").write_bytes(ipc(batches, form=form, codec=codec))
    eos = {name: name == "bool" or 7 for name in columns}
    options: dict[str, Any] = {"seq_len": 16, "lanes": 4, "column": "input_ids", "window": 2, "epochs": 1}
    options |= {"eos_id": 1_000_000, "aligned": eos, "overlap": 1}
    with (
        ParquetLoader(tmp_path / "arrow", **options) as loader,
        ParquetLoader(tmp_path / "parquet", **options) as other,
    ):
        for batch, expected in zip(loader, other, strict=True):
            assert np.array_equal(batch.tokens, expected.tokens)
            check_values(batch, columns, {1_000_000: eos})


def test_aligned_columns_of_several_parts_are_cut_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "PART_TOKENS", 64)
    rng = np.random.default_rng(0)
    ends = np.append(0, np.cumsum(rng.integers(0, 30, 100)))
    tokens = np.arange(ends[-1])
    columns = {name: name for name in ("bool", "float32", "int8")}
    values = {name: lists(ends, pa.array(value_of(tokens, name), TYPES[name])) for name in columns}
    table = pa.table({"input_ids": lists(ends, pa.array(tokens, pa.int32())), **values})
    for codec in (None, "lz4", "zstd"):
        (tmp_path / "a.arrow").write_bytes(ipc(table, codec=codec))
        options: dict[str, Any] = {"seq_len": 16, "lanes": 2, "column": "input_ids", "epochs": 1, "tail": "pad"}
        with ParquetLoader(tmp_path, aligned=list(columns), **options) as loader:
            for batch in loader:
                check_values(batch, columns)


def test_an_aligned_column_of_other_lengths_is_named_by_its_row(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2], [3], [4, 5]], "mask": pa.array([[1, 1], [0, 0], [1]], pa.list_(pa.int8()))})
    (tmp_path / "a.arrow").write_bytes(ipc(table))
    options: dict[str, Any] = {"seq_len": 2, "lanes": 1, "column": "input_ids", "aligned": ["mask"], "epochs": 1}
    with (
        pytest.raises(DataError, match=r"a\.arrow, row group 0, column 'mask': row 1"),
        ParquetLoader(tmp_path, **options) as loader,
    ):
        list(loader)


# ── other writers ────────────────────────────────────────────────────────────────────────────────────────────────

DOCUMENTS: list[list[int]] = [[number, number + 1, number + 2][: number % 4] for number in range(2_500)]


def by_datasets(folder: Path, documents: Documents) -> Path:
    import datasets

    datasets.Dataset.from_dict({"tokens": documents, "text": ["x"] * len(documents)}).save_to_disk(
        folder / "saved", num_shards=2
    )
    return folder / "saved"


def by_datasets_map(folder: Path, documents: Documents) -> Path:
    """As `datasets` caches what it has computed: a stream."""
    import datasets

    rows = datasets.Dataset.from_dict({"row": list(range(len(documents)))})
    rows.map(lambda row: {"tokens": documents[row["row"]]}, cache_file_name=str(folder / "cache-1.arrow"))
    return folder / "cache-1.arrow"


def by_polars(folder: Path, documents: Documents) -> Path:
    import polars as pl

    frame = pl.DataFrame({"text": ["y"] * len(documents), "tokens": pl.Series(documents, dtype=pl.List(pl.UInt32))})
    half = len(documents) // 2
    frame[:half].write_ipc(folder / "a.arrow", compression="zstd")
    frame[half:].write_ipc_stream(folder / "b.arrow", compression="uncompressed")
    return folder


def by_polars_array(folder: Path, documents: Documents) -> Path:
    import polars as pl

    rows = [[number] * 4 for number in range(1_000)]
    pl.DataFrame({"tokens": pl.Series(rows, dtype=pl.Array(pl.Int64, 4))}).write_ipc(
        folder / "a.arrow", compression="lz4"
    )
    return folder


def by_pandas(folder: Path, documents: Documents) -> Path:
    import pandas as pd

    pd.DataFrame({"tokens": [np.array(document, np.int64) for document in documents]}).to_feather(folder / "a.feather")
    return folder


def by_duckdb(folder: Path, documents: Documents) -> Path:
    import duckdb

    with duckdb.connect() as connection:
        connection.register("documents", pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}))
        reader = connection.sql("SELECT * FROM documents").to_arrow_reader(1_000)
        (folder / "a.arrow").write_bytes(ipc(list(reader), form="file"))
    return folder


@pytest.mark.parametrize("write", [by_datasets, by_datasets_map, by_polars, by_polars_array, by_pandas, by_duckdb])
def test_files_of_other_writers(tmp_path: Path, write: Callable[[Path, Documents], Path]) -> None:
    source = write(tmp_path, DOCUMENTS)
    expected = [[number] * 4 for number in range(1_000)] if write is by_polars_array else DOCUMENTS
    assert documents_in(source, "tokens") == expected


def test_a_dict_of_splits_that_datasets_saved_is_read_split_by_split(tmp_path: Path) -> None:
    import datasets

    one = datasets.Dataset.from_dict({"tokens": [[1, 2], [3]]})
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "all")
    with pytest.raises(ValueError, match="holds the splits of a set"):
        build_index(tmp_path / "all")
    assert documents_in(tmp_path / "all" / "train") == [[1, 2], [3]]


# ── other places ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "data") as running:
        yield running


@pytest.mark.parametrize("form", ["file", "stream"])
def test_objects_give_the_same_batches_as_files(tmp_path: Path, server: S3Server, form: str) -> None:
    rng = np.random.default_rng(3)
    documents = [rng.integers(0, 100, rng.integers(0, 60)).tolist() for _ in range(400)]
    write_arrow(tmp_path / "set" / "a.arrow", documents, form=form, rows=40)
    write_arrow(tmp_path / "set" / "b.arrow", documents[::-1], form=form, codec="lz4", rows=130)
    url = server.upload(tmp_path / "set", f"arrow-{form}")
    options: dict[str, Any] = {"seq_len": 16, "lanes": 4, "eos_id": 100, "vocab_size": 101}
    here = batches_of(tmp_path / "set", 20, **options)
    there = batches_of(url, 20, **options, storage_options=options_for(server.endpoint))
    assert all(np.array_equal(one, other) for one, other in zip(here, there, strict=True))


def test_a_file_that_is_replaced_after_the_index_is_named_and_never_read(tmp_path: Path) -> None:
    file = write_arrow(tmp_path / "a.arrow", [[1, 2, 3]] * 100, rows=10)
    with ParquetLoader(tmp_path, seq_len=8, lanes=2) as loader:
        write_arrow(file, [[4, 5, 6]] * 100, rows=10)
        os.utime(file, ns=(1, 1))
        with pytest.raises(FileChangedError, match=r"a\.arrow is not the file that was indexed"):
            next(iter(loader))


def test_a_file_that_is_cut_off_after_the_index_is_an_error(tmp_path: Path) -> None:
    file = write_arrow(tmp_path / "a.arrow", [[1, 2, 3]] * 100, rows=10)
    index = build_index(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with (
        pytest.raises(StorageError, match=r"a\.arrow"),
        ParquetLoader(tmp_path, index=index, seq_len=8, lanes=2) as loader,
    ):
        next(iter(loader))
