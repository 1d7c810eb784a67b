"""Footers to an index: what is counted, what is cached, what makes it the same dataset."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unique_sets import unique_groups, write_set
from writers import write_pyarrow

from parquet_loader import container
from parquet_loader.errors import ConfigError, DataError, PathNotFoundError, StorageError
from parquet_loader.formats.base import ColumnLayout
from parquet_loader.index import DatasetIndex, build_index, default_cache_dir
from parquet_loader.index import index as index_module
from parquet_loader.index.build import index_storage
from parquet_loader.storage import FileInfo, Storage, open_storage


class CountingStorage:
    """A storage, and the reads that were made of it."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.root = inner.root
        self.identity = inner.identity
        self.is_remote = inner.is_remote
        self.reads: Counter[str] = Counter()
        self._lock = threading.Lock()

    def list_files(self) -> list[FileInfo]:
        return self.inner.list_files()

    def read(self, file: FileInfo, start: int, length: int) -> bytes:
        with self._lock:
            self.reads[file.path] += 1
        return self.inner.read(file, start, length)


def write_files(folder: Path, count: int, *, first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        write_pyarrow(folder / f"{number:05}.parquet", [[number] * (number + 1), [], [7]], rows=2)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "set", 4)


def reads_of(source: Any, cache_dir: Path, **options: Any) -> dict[str, int]:
    storage = CountingStorage(open_storage(source))
    index_storage(storage, cache_dir=cache_dir, **options)
    return dict(storage.reads)


def same(one: DatasetIndex, other: DatasetIndex) -> bool:
    return one.to_bytes() == other.to_bytes()


# ── what an index tells ──────────────────────────────────────────────────────────────────────────────────────────


def test_row_groups_come_in_storage_order_with_their_counts(folder: Path) -> None:
    index = build_index(folder)
    assert len(index) == 8
    assert index.file.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert index.row_group.tolist() == [0, 1] * 4
    assert index.rows.tolist() == [2, 1] * 4
    assert index.tokens.tolist() == [1, 1, 2, 1, 3, 1, 4, 1]
    assert index.slots.tolist() == [2, 1, 3, 1, 4, 1, 5, 1]
    assert index.max_id.tolist() == [0, 7, 1, 7, 2, 7, 3, 7]
    assert index.total_tokens == 14


def test_its_representation_counts_what_it_holds(folder: Path) -> None:
    assert repr(build_index(folder)) == "DatasetIndex(4 files, 8 row groups, 12 documents, 14 tokens in 'tokens')"


def test_every_array_refuses_to_be_written_to(folder: Path, tmp_path: Path) -> None:
    built = build_index(folder, cache_dir=tmp_path / "cache")
    warm = build_index(folder, cache_dir=tmp_path / "cache")
    for index in (built, warm, DatasetIndex.from_bytes(built.to_bytes()), pickle.loads(pickle.dumps(built))):
        for name in ("file_layout", "file", "row_group", "rows", "tokens", "start", "length", "codec", "max_id"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(index, name)[0] = 5


def test_progress_counts_every_file_up_to_all(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    build_index(folder, cache_dir=tmp_path / "cache", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_progress_of_a_cached_set_is_complete_at_once(folder: Path, tmp_path: Path) -> None:
    build_index(folder, cache_dir=tmp_path / "cache")
    seen: list[tuple[int, int]] = []
    build_index(folder, cache_dir=tmp_path / "cache", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 4)]


def test_the_number_of_threads_does_not_matter(folder: Path, tmp_path: Path) -> None:
    one = build_index(folder, cache_dir=tmp_path / "1", threads=1)
    assert same(one, build_index(folder, cache_dir=tmp_path / "2", threads=50))


def test_a_footer_costs_one_read(folder: Path, tmp_path: Path) -> None:
    assert set(reads_of(folder, tmp_path / "cache").values()) == {1}


def test_only_a_long_footer_costs_a_second_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    wide = {f"column_{number}": [number] for number in range(2_000)}
    pq.write_table(pa.table({**wide, "tokens": [[1, 2]]}), tmp_path / "set" / "wide.parquet")
    write_pyarrow(tmp_path / "set" / "narrow.parquet", [[1]])
    assert reads_of(tmp_path / "set", tmp_path / "cache") == {"wide.parquet": 2, "narrow.parquet": 1}


def test_thousands_of_files_are_indexed(tmp_path: Path) -> None:
    first = write_files(tmp_path / "set", 1) / "00000.parquet"
    for number in range(1, 2_000):
        os.link(first, tmp_path / "set" / f"{number:05}.parquet")
    index = build_index(tmp_path / "set", cache_dir=tmp_path / "cache")
    assert (len(index.files), len(index), index.total_tokens) == (2_000, 4_000, 4_000)
    assert reads_of(tmp_path / "set", tmp_path / "cache") == {}


def test_an_error_stops_the_reading_of_the_other_files(tmp_path: Path) -> None:
    write_files(tmp_path / "set", 500, first=1)
    (tmp_path / "set" / "00000.parquet").write_bytes(b"no Parquet, that is sure")
    storage = CountingStorage(open_storage(tmp_path / "set"))
    with pytest.raises(DataError, match=r"00000\.parquet"):
        index_storage(storage, cache_dir=tmp_path / "cache", threads=2)
    assert len(storage.reads) < 400


def synthetic(groups: int, files: int) -> DatasetIndex:
    rng = np.random.default_rng(0)
    slots = rng.integers(1, 2**34, groups)
    file = np.sort(rng.integers(0, files, groups))
    numbers = {name: np.zeros(groups, np.int64) for name in index_module.ARRAYS} | {
        "file": file,
        "row_group": np.arange(groups) - np.searchsorted(file, file),
        "slots": slots,
        "rows": rng.integers(1, slots, endpoint=True),
        "tokens": rng.integers(0, slots, endpoint=True),
        "max_id": rng.integers(0, 2**40, groups),
        "start": rng.integers(4, 2**40, groups),
        "length": rng.integers(1, 2**40, groups),
        "dictionary_offset": np.full(groups, -1),
    }
    layout = ColumnLayout(
        column="tokens", physical_type="INT32", signed=True, max_definition_level=3, nullable_element=True
    )
    return DatasetIndex(
        files=tuple(
            FileInfo(path=f"part-{number:06}.parquet", size=2**41, version=str(10**18 + number))
            for number in range(files)
        ),
        layouts=(layout,),
        column="tokens",
        file_layout=np.zeros(files, np.int64),
        **numbers,
    )


def test_a_hundred_thousand_row_groups_take_a_hundred_bytes_each() -> None:
    index = synthetic(100_000, 2_000)
    assert len(index.to_bytes()) < 11 << 20
    assert sum(getattr(index, name).nbytes for name in index_module.ARRAYS) < 10 << 20
    assert same(DatasetIndex.from_bytes(index.to_bytes()), index)


def test_nothing_of_a_footer_is_kept_but_the_numbers(tmp_path: Path) -> None:
    wide = {f"column_{number}": [number] for number in range(3_000)}
    pq.write_table(pa.table({**wide, "tokens": [[1, 2]]}), tmp_path / "wide.parquet")
    before = pa.total_allocated_bytes()
    index = build_index(tmp_path / "wide.parquet")
    assert pa.total_allocated_bytes() == before
    assert len(index.to_bytes()) < 1_000


# ── remarks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tiny_row_groups_are_remarked_on(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1, 2, 3]] * 100, rows=10)
    (remark,) = build_index(tmp_path).remarks()
    assert remark.startswith("half of the 10 row groups hold 30 tokens or fewer")


def test_a_huge_row_group_is_remarked_on_with_its_place() -> None:
    index = synthetic(100, 3)
    (remark,) = index.remarks()
    group = int(index.tokens.argmax())
    assert remark.startswith(f"row group {index.row_group[group]} of {index.files[index.file[group]].path} holds")


def test_row_groups_of_a_good_size_are_not_remarked_on(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [[1] * 1000] * 200, rows=100)
    assert build_index(tmp_path).remarks() == ()


def test_files_of_several_splits_are_remarked_on(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        write_pyarrow(tmp_path / "data" / f"{name}.parquet", [[1] * 40_000])
    (remark,) = build_index(tmp_path).remarks()
    assert remark.startswith("the files are of several splits (1 of test, 2 of train)")
    assert build_index(tmp_path / "data" / "train-*.parquet").remarks() == ()


def test_folders_of_several_splits_are_remarked_on(tmp_path: Path) -> None:
    for name in ("train/a", "validation/a", "contest-training/b"):
        (tmp_path / name).parent.mkdir()
        write_pyarrow(tmp_path / f"{name}.parquet", [[1] * 40_000])
    (remark,) = build_index(tmp_path).remarks()
    assert "(1 of train, 1 of validation)" in remark


def test_a_set_without_rows_has_no_remarks(tmp_path: Path) -> None:
    write_pyarrow(tmp_path / "x.parquet", [])
    assert build_index(tmp_path).remarks() == ()


# ── the fingerprint ──────────────────────────────────────────────────────────────────────────────────────────────


def fingerprint(source: Any) -> str:
    return build_index(source).fingerprint


def test_moving_copying_and_touching_keep_the_fingerprint(folder: Path, tmp_path: Path) -> None:
    before = fingerprint(folder)
    shutil.copytree(folder, tmp_path / "copy" / "deep")
    assert fingerprint(tmp_path / "copy" / "deep") == before
    folder.rename(tmp_path / "moved")
    assert fingerprint(tmp_path / "moved") == before
    for file in (tmp_path / "moved").iterdir():
        os.utime(file, (0, 0))
    assert fingerprint(tmp_path / "moved") == before


def test_another_encoding_keeps_the_fingerprint(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    documents = [[1, 2], [3]]
    write_pyarrow(tmp_path / "a" / "x.parquet", documents, rows=1)
    write_pyarrow(
        tmp_path / "b" / "x.parquet",
        documents,
        rows=1,
        kind=pa.large_list(pa.int64()),
        compression="zstd",
        use_dictionary=False,
    )
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "00001.parquet").rename(folder / "00001x.parquet"),
        lambda folder: (folder / "00001.parquet").unlink(),
        lambda folder: write_files(folder, 1, first=9),
        lambda folder: write_pyarrow(folder / "00001.parquet", [[1] * 3, [7]], rows=2),
        lambda folder: write_pyarrow(folder / "00001.parquet", [[1], [], [], [7]], rows=3),
        lambda folder: write_pyarrow(folder / "00001.parquet", [[1, 1], [], [7]], rows=3),
    ],
    ids=["renamed", "removed", "added", "other tokens", "other documents", "other row groups"],
)
def test_other_paths_and_counts_are_another_fingerprint(folder: Path, change: Any) -> None:
    before = fingerprint(folder)
    change(folder)
    assert fingerprint(folder) != before


def test_row_groups_that_move_between_files_are_another_fingerprint(tmp_path: Path) -> None:
    for name, (a, b) in {"x": ([[1]], [[2], [3]]), "y": ([[1], [2]], [[3]])}.items():
        (tmp_path / name).mkdir()
        write_pyarrow(tmp_path / name / "a.parquet", a, rows=1)
        write_pyarrow(tmp_path / name / "b.parquet", b, rows=1)
    assert fingerprint(tmp_path / "x") != fingerprint(tmp_path / "y")


def test_the_fingerprint_of_a_set_is_what_it_was_in_every_release(folder: Path) -> None:
    # May change only together with the version of checkpoints, since no older one could be resumed.
    assert fingerprint(folder) == "85b5cf43b991d516b48e73bc94f33cf5710f37e2813143f121272b70de3cf22f"


# ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_saved_index_is_loaded_whole(folder: Path, tmp_path: Path) -> None:
    index = build_index(folder)
    index.save(tmp_path / "x.index")
    loaded = DatasetIndex.load(tmp_path / "x.index")
    assert same(index, loaded)
    assert loaded.fingerprint == index.fingerprint
    assert [loaded.chunk(group) for group in range(len(loaded))] == [index.chunk(group) for group in range(len(index))]


def test_a_missing_saved_index_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError, match=r"there is no index .*x\.index"):
        DatasetIndex.load(tmp_path / "x.index")


def test_an_index_that_cannot_be_read_or_written_names_the_path(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read the index .*: Is a directory"):
        DatasetIndex.load(tmp_path)
    with pytest.raises(StorageError, match=r"cannot write the index .*nope/x\.index: No such file"):
        build_index(folder).save(tmp_path / "nope" / "x.index")


def test_a_damaged_saved_index_is_refused(folder: Path, tmp_path: Path) -> None:
    data = bytearray(build_index(folder).to_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "x.index").write_bytes(data)
    with pytest.raises(ConfigError, match=r"no index that can be used.*build it again"):
        DatasetIndex.load(tmp_path / "x.index")


def test_a_saved_index_of_another_version_is_refused(folder: Path) -> None:
    payload = container.open_container(build_index(folder).to_bytes(), "index", 1)
    with pytest.raises(ConfigError, match="format version 2"):
        DatasetIndex.from_bytes(container.seal_container("index", 2, payload))


# ── the cache ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_warm_cache_reads_no_footer_and_gives_the_same_index(folder: Path, tmp_path: Path) -> None:
    cold = build_index(folder, cache_dir=tmp_path / "cache")
    assert reads_of(folder, tmp_path / "cache") == {}
    assert same(cold, build_index(folder, cache_dir=tmp_path / "cache"))


def test_only_new_and_changed_files_are_read_again(folder: Path, tmp_path: Path) -> None:
    build_index(folder, cache_dir=tmp_path / "cache")
    write_files(folder, 1, first=9)
    write_pyarrow(folder / "00002.parquet", [[5]])
    os.utime(folder / "00003.parquet", ns=(0, 1))
    assert reads_of(folder, tmp_path / "cache") == {"00002.parquet": 1, "00003.parquet": 1, "00009.parquet": 1}
    assert same(build_index(folder, cache_dir=tmp_path / "cache"), build_index(folder, cache_dir=tmp_path / "other"))


def test_a_removed_file_is_gone_from_the_index_without_a_read(folder: Path, tmp_path: Path) -> None:
    build_index(folder, cache_dir=tmp_path / "cache")
    (folder / "00001.parquet").unlink()
    assert reads_of(folder, tmp_path / "cache") == {}
    assert same(build_index(folder, cache_dir=tmp_path / "cache"), build_index(folder, cache_dir=tmp_path / "other"))


def test_files_of_several_layouts_come_back_from_the_cache(folder: Path, tmp_path: Path) -> None:
    write_pyarrow(folder / "x.parquet", [[5]], kind=pa.list_(pa.uint64()))
    write_pyarrow(folder / "0.parquet", [], kind=pa.list_(pa.field("e", pa.int16(), nullable=False)))
    cold = build_index(folder, cache_dir=tmp_path / "cache")
    assert len(cold.layouts) == 3
    assert same(cold, build_index(folder, cache_dir=tmp_path / "cache"))


def test_the_cache_lies_in_the_users_cache_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    build_index(folder)
    assert default_cache_dir() == tmp_path / "home" / "parquet_loader"
    assert [path.suffix for path in default_cache_dir().iterdir()] == [".index"]


def test_sources_and_columns_do_not_share_a_cache(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"a": [[1]], "b": [[1, 2]]}), tmp_path / "set" / "x.parquet")
    indexes = [build_index(tmp_path / "set", column=column, cache_dir=tmp_path / "cache") for column in ("a", "b")]
    assert [index.total_tokens for index in indexes] == [1, 2]
    build_index(tmp_path / "set" / "x.parquet", column="a", cache_dir=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_a_file_without_a_version_is_not_taken_from_the_cache(folder: Path, tmp_path: Path) -> None:
    class Versionless(CountingStorage):
        def list_files(self) -> list[FileInfo]:
            return [FileInfo(path=file.path, size=file.size, version="") for file in super().list_files()]

        def read(self, file: FileInfo, start: int, length: int) -> bytes:
            real = next(real for real in self.inner.list_files() if real.path == file.path)
            return super().read(real, start, length)

    for _ in range(2):
        storage = Versionless(open_storage(folder))
        index_storage(storage, cache_dir=tmp_path / "cache")
        assert sum(storage.reads.values()) == 4


def test_any_damage_to_the_cache_is_warned_of_and_mended(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cold = build_index(folder, cache_dir=cache)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"cache .* is damaged .*; building it again"):
            assert same(build_index(folder, cache_dir=cache, threads=1), cold)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("data", [b"", b"\x00", b"garbage" * 50])
def test_a_cut_or_foreign_cache_is_warned_of_and_mended(folder: Path, tmp_path: Path, data: bytes) -> None:
    cold = build_index(folder, cache_dir=tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="damaged"):
        assert same(build_index(folder, cache_dir=tmp_path / "cache"), cold)
    assert reads_of(folder, tmp_path / "cache") == {}


def test_a_cache_of_another_version_is_replaced_in_silence(folder: Path, tmp_path: Path) -> None:
    cold = build_index(folder, cache_dir=tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(container.seal_container("index-cache", 99, ["of the future"]))
    assert same(build_index(folder, cache_dir=tmp_path / "cache"), cold)
    assert reads_of(folder, tmp_path / "cache") == {}


def test_a_cache_folder_that_cannot_be_made_is_warned_of(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning) as caught:
        index = build_index(folder, cache_dir=tmp_path / "file")
    assert len(index) == 8
    assert "cannot be written" in str(caught[-1].message)
    assert caught[-1].filename == __file__


def test_a_cache_folder_on_a_read_only_place_is_warned_of(folder: Path) -> None:
    with pytest.warns(UserWarning, match="cannot be written to /proc/nope"):
        assert len(build_index(folder, cache_dir="/proc/nope")) == 8


def test_a_user_without_a_home_folder_is_warned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(UserWarning, match="this user has none.*give a cache_dir"):
        assert len(build_index(folder)) == 8


def test_a_read_only_dataset_is_indexed(folder: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    build_index(folder, cache_dir=tmp_path / "cache")
    assert sorted(path.name for path in folder.iterdir()) == before


def _build_in_a_process(arguments: tuple[str, str]) -> bytes:
    warnings.simplefilter("error")
    return build_index(arguments[0], cache_dir=arguments[1]).to_bytes()


def test_processes_that_share_a_cache_get_the_same_index(folder: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        built = pool.map(_build_in_a_process, [(str(folder), str(tmp_path / "cache"))] * 6, chunksize=1)
    assert len(set(built)) == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".index"]


# ── which column ─────────────────────────────────────────────────────────────────────────────────────────────────


def write_columns(path: Path, columns: dict[str, Any] | Sequence[tuple[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pairs = list(columns.items()) if isinstance(columns, dict) else list(columns)
    table = pa.Table.from_arrays([pa.array(values) for _, values in pairs], names=[name for name, _ in pairs])
    pq.write_table(table, path)


def test_the_only_list_of_integers_is_found_among_other_columns(tmp_path: Path) -> None:
    write_columns(
        tmp_path / "x.parquet",
        {
            "text": ["a"],
            "length": [3],
            "logprobs": [[0.5]],
            "words": [["a"]],
            "nested": [[[1]]],
            "spans": [[{"start": 1}]],
            "meta": [{"id": 1}],
            "ids": [[1, 2, 3]],
        },
    )
    index = build_index(tmp_path)
    assert (index.column, index.total_tokens) == ("ids", 3)


def test_several_lists_of_integers_are_listed(tmp_path: Path) -> None:
    write_columns(tmp_path / "x.parquet", {"ids": [[1]], "more": [[1]]})
    with pytest.raises(ConfigError, match=r"several .*\['ids', 'more'\].*column='ids'"):
        build_index(tmp_path)
    assert build_index(tmp_path, column="more").column == "more"


@pytest.mark.parametrize(
    ("names", "suggested"),
    [
        (["input_ids", "labels", "tokens"], "input_ids"),
        (["attention_mask", "position_ids", "text_tokens"], "text_tokens"),
        (["loss_mask", "out.input_ids", "zeros"], "out.input_ids"),
    ],
)
def test_what_is_suggested_of_several_lists_is_the_likely_one(tmp_path: Path, names: list[str], suggested: str) -> None:
    plain = {name: [[1]] for name in names if "." not in name}
    nested = {name.split(".")[0]: [{name.split(".")[1]: [1]}] for name in names if "." in name}
    write_columns(tmp_path / "x.parquet", {**plain, **nested})
    with pytest.raises(ConfigError, match=rf"several .*\['{suggested}', .*for instance column='{suggested}'"):
        build_index(tmp_path)


def test_no_list_of_integers_says_which_columns_there_are(tmp_path: Path) -> None:
    write_columns(tmp_path / "x.parquet", {"text": ["a"], "n": [1]})
    with pytest.raises(ConfigError, match=r"x\.parquet has no .*text \(string\), n \(int64\).*pretokenize"):
        build_index(tmp_path)


def test_a_missing_column_lists_the_candidates(tmp_path: Path) -> None:
    write_columns(tmp_path / "x.parquet", {"ids": [[1]], "mask": [[1]]})
    with pytest.raises(ConfigError, match=r"x\.parquet has no column 'nope'; lists of integers: \['ids', 'mask'\]"):
        build_index(tmp_path, column="nope")


@pytest.mark.parametrize("values", [[1], ["a"], [[0.5]], [["a"]], [[[1]]], [{"b": 1}], [[True]]], ids=repr)
def test_a_column_of_another_type_is_told_from_a_missing_one(tmp_path: Path, values: Any) -> None:
    write_columns(tmp_path / "x.parquet", {"ids": [[1]], "a": values})
    with pytest.raises(ConfigError, match=r"'a'.*lists of integers: \['ids'\]"):
        build_index(tmp_path, column="a")


def test_a_field_of_a_struct_is_named_with_dots(tmp_path: Path) -> None:
    write_columns(
        tmp_path / "x.parquet", {"out": [{"deep": {"ids": [1, 2]}}, None, {"deep": None}, {"deep": {"ids": [3]}}]}
    )
    index = build_index(tmp_path)
    assert (index.column, index.total_tokens) == ("out.deep.ids", 3)


def test_a_column_with_a_dot_in_its_name_is_found(tmp_path: Path) -> None:
    write_columns(tmp_path / "x.parquet", {"text.ids": [[1, 2]], "text": [{"other": [3]}]})
    assert build_index(tmp_path, column="text.ids").total_tokens == 2
    assert build_index(tmp_path, column="text.other").total_tokens == 1


def test_a_dotted_name_that_may_be_two_columns_is_refused(tmp_path: Path) -> None:
    write_columns(tmp_path / "x.parquet", {"text.ids": [[1, 2]], "text": [{"ids": [3]}]})
    with pytest.raises(DataError, match=r"x\.parquet, column 'text\.ids': two columns have this name"):
        build_index(tmp_path, column="text.ids")


def test_a_doubled_name_is_refused_only_where_it_is_meant(tmp_path: Path) -> None:
    write_columns(tmp_path / "x.parquet", [("ids", [[1, 2]]), ("ids", [[3]]), ("good", [[4]])])
    with pytest.raises(DataError, match="two columns have this name"):
        build_index(tmp_path, column="ids")
    assert build_index(tmp_path, column="good").total_tokens == 1


# ── files that differ ────────────────────────────────────────────────────────────────────────────────────────────


def test_files_without_the_column_are_listed_beside_those_that_have_it(folder: Path) -> None:
    write_columns(folder / "x.parquet", {"text": ["a"]})
    write_columns(folder / "y.parquet", {"other": [[1]]})
    with pytest.raises(
        ConfigError,
        match=r"x\.parquet has no column 'tokens'.*the same with 1 more: y\.parquet.*other 4 files .* have it",
    ):
        build_index(folder, column="tokens")


def test_files_whose_column_has_another_type_are_listed(folder: Path) -> None:
    write_columns(folder / "x.parquet", {"tokens": [["a"]]})
    with pytest.raises(ConfigError, match=r"x\.parquet has a column 'tokens', but that is no list of integers"):
        build_index(folder, column="tokens")


def test_files_with_no_column_in_common_are_listed(tmp_path: Path) -> None:
    write_columns(tmp_path / "x.parquet", {"a": [[1]]})
    write_columns(tmp_path / "y.parquet", {"b": [[1]]})
    with pytest.raises(
        ConfigError, match=r"no list of integers is in every file: 'a' is not in 1 files \(y\.parquet\); 'b' is not"
    ):
        build_index(tmp_path)


def test_the_column_that_all_files_have_is_meant(tmp_path: Path) -> None:
    write_columns(tmp_path / "x.parquet", {"a": [[1]], "ids": [[1, 2]]})
    write_columns(tmp_path / "y.parquet", {"ids": [[3]], "b": [[1]]})
    index = build_index(tmp_path)
    assert (index.column, index.tokens.tolist()) == ("ids", [2, 1])


def test_a_column_that_no_file_has_is_told_after_a_few_footers(tmp_path: Path) -> None:
    storage = CountingStorage(open_storage(write_files(tmp_path / "set", 300)))
    with pytest.raises(ConfigError, match=r"00000\.parquet has no column 'nope'.*the same with 9 more"):
        index_storage(storage, column="nope", cache_dir=tmp_path / "cache", threads=2)
    assert len(storage.reads) < 250


def test_no_reference_to_a_footer_stays_after_building(folder: Path) -> None:
    import gc

    build_index(folder)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is pq.FileMetaData]


def test_python_is_not_asked_to_hold_an_object_for_each_row_group() -> None:
    index = synthetic(100_000, 10)
    assert sys.getsizeof(index.__dict__) < 10_000
    assert all(isinstance(getattr(index, name), np.ndarray) for name in index_module.ARRAYS)


def test_row_groups_are_found_by_file_and_number(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "found", unique_groups([[[3], [], [4]], [[5]]]))  # one row group holds no row
    index = build_index(folder, cache_dir=tmp_path)
    numbers = [index.file_number(path) for path in ("part-000.parquet", "part-001.parquet", "part-00", "z")]
    assert numbers == [0, 1, None, None]
    assert [index.groups_of(file) for file in (0, 1)] == [slice(0, 2), slice(2, 3)]
    assert [index.group_number(0, row_group) for row_group in range(4)] == [0, None, 1, None]
    assert [index.group_number(1, row_group) for row_group in range(2)] == [2, None]


# ── sets that begin with nothing ─────────────────────────────────────────────────────────────────────────────────────


def _arrow(path: Path, documents: list[list[int]], *, new: Callable[..., Any]) -> None:
    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))})
    with new(path, table.schema) as writer:
        writer.write_table(table)


def _npy(path: Path, documents: list[list[int]]) -> None:
    np.save(path, np.array([token for document in documents for token in document], np.uint16))


@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        ("parquet", write_pyarrow),
        ("arrow", partial(_arrow, new=pa.ipc.new_file)),
        ("arrow", partial(_arrow, new=pa.ipc.new_stream)),
        ("npy", _npy),
    ],
)
def test_files_without_a_token_that_were_indexed_first_are_kept_beside_those_that_come(
    tmp_path: Path, suffix: str, write: Callable[[Path, list[list[int]]], None]
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / f"0.{suffix}", [])
    options: dict[str, Any] = {"cache_dir": tmp_path / "cache"}
    assert build_index(folder, **options).total_tokens == 0
    write(folder / f"1.{suffix}", [[1, 2, 3]] * 20)
    for _ in range(2):
        assert build_index(folder, **options).total_tokens == 60
