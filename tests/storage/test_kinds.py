"""Which of a source's files are its data, by their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from parquet_loader import ConfigError, ParquetLoader, build_index
from parquet_loader.storage import open_storage


def listed(folder: Path, *names: str, kind: str | None = None, given: str | None = None) -> list[str]:
    """The names that a listing gives of a folder with files of these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    source = str(folder if given is None else folder / given)
    return [file.path for file in open_storage(source, kind=kind).list_files()]


def test_parquet_files_are_the_set_whatever_raw_files_lie_beside_them(tmp_path: Path) -> None:
    assert listed(tmp_path, "a.parquet", "model.bin", "x.npy", "meta.json", "state.json") == ["a.parquet"]


def test_what_tells_of_a_set_is_listed_with_its_data(tmp_path: Path) -> None:
    arrow = listed(tmp_path / "saved", "data-0.arrow", "state.json", "dataset_info.json", "notes.txt")
    assert arrow == ["data-0.arrow", "state.json"]
    assert listed(tmp_path / "megatron", "a.bin", "a.idx", "b.bin", "b.idx") == ["a.bin", "a.idx", "b.bin", "b.idx"]
    assert listed(tmp_path / "shards", "chunk_0.bin", "meta.json") == ["chunk_0.bin", "meta.json"]


def test_parquet_and_arrow_in_one_folder_are_told_apart_by_format_or_a_glob(tmp_path: Path) -> None:
    names = "a.parquet", "b.arrow", "c.feather"
    with pytest.raises(ConfigError, match=r"1 Parquet and 2 Arrow files.*format='parquet' or format='arrow'"):
        listed(tmp_path, *names)
    assert listed(tmp_path, *names, kind="parquet") == ["a.parquet"]
    assert listed(tmp_path, *names, kind="arrow") == ["b.arrow", "c.feather"]
    assert listed(tmp_path, *names, given="*.arrow") == ["b.arrow"]


def test_what_datasets_has_cached_beside_a_set_is_no_part_of_it(tmp_path: Path) -> None:
    assert listed(tmp_path / "a", "wiki-train.arrow", "cache-1f.arrow", "tmpabc.arrow") == ["wiki-train.arrow"]
    assert listed(tmp_path / "b", "cache-1f.arrow") == ["cache-1f.arrow"]  # and where it is all there is, it is meant
    assert listed(tmp_path / "a", given="cache-1f.arrow") == ["cache-1f.arrow"]


def test_files_of_several_formats_that_are_named_are_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.arrow"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ConfigError, match="format"):
        build_index([tmp_path / "a.parquet", tmp_path / "b.arrow"], cache_dir=tmp_path)


def test_a_format_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'csv'.*'parquet', 'arrow', 'raw'"):
        build_index(tmp_path, format="csv")


def test_a_raw_dtype_that_is_no_integer_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="raw_dtype must be a NumPy integer type"):
        build_index(tmp_path, raw_dtype="float32")


def test_splits_in_one_folder_are_remarked_on_wherever_their_name_stands(tmp_path: Path) -> None:
    for one, other in (
        ("json-train.arrow", "json-validation.arrow"),
        ("wikitext-train-00000-of-00002.arrow", "wikitext-test.arrow"),
        ("fineweb_train_000001.bin", "fineweb_val_000000.bin"),
        ("en/train.bin", "en/val.bin"),
    ):
        folder = tmp_path / one.replace("/", "-")
        for name in (one, other):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".bin"):
                np.arange(4, dtype=np.uint16).tofile(folder / name)
            else:
                feather.write_feather(pa.table({"ids": [[1, 2]]}), folder / name)
        raw_dtype = "uint16" if one.endswith(".bin") else None
        assert "several splits" in build_index(folder, raw_dtype=raw_dtype, cache_dir=tmp_path / "cache").remarks()[0]


def test_a_format_or_type_that_the_set_has_not_is_refused(tmp_path: Path) -> None:
    np.arange(64, dtype=np.uint16).tofile(tmp_path / "a.bin")
    feather.write_feather(pa.table({"ids": [[1, 2]]}), tmp_path / "b.arrow")
    index = build_index(tmp_path / "a.bin", raw_dtype="uint16", cache_dir=tmp_path / "cache")
    shape = {"seq_len": 4, "lanes": 1, "cache_dir": tmp_path / "cache"}
    with pytest.raises(ConfigError, match="format='arrow', and the index is of raw files"):
        ParquetLoader(tmp_path / "a.bin", index=index, format="arrow", **shape)
    with pytest.raises(ConfigError, match="raw_dtype='uint32', and the index is of ids stored as uint16"):
        ParquetLoader(tmp_path / "a.bin", index=index, raw_dtype="uint32", **shape)
    with pytest.raises(ConfigError, match="raw_dtype='uint16' is for raw files, and these are arrow"):
        ParquetLoader(tmp_path / "b.arrow", raw_dtype="uint16", **shape)
    sources = {"a": tmp_path / "a.bin", "b": tmp_path / "b.arrow"}
    ParquetLoader(sources, weights={"a": 1, "b": 1}, raw_dtype="uint16", **shape).close()


def test_a_saved_set_without_files_is_empty(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"_data_files": []}')
    feather.write_feather(pa.table({"ids": [[1, 2]]}), tmp_path / "cache-1.arrow")
    with pytest.raises(ConfigError, match="is an empty set"):
        build_index(tmp_path, cache_dir=tmp_path / "cache")
