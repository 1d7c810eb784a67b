"""Which of a source's files are its data, by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from parquet_loader import ConfigError, build_index
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
