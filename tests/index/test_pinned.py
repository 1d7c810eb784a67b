"""A saved index serves copies of its dataset; what is no copy is an error that says how to refresh the index."""

from __future__ import annotations

import os
import pickle
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unique_sets import unique_groups, write_set
from writers import write_pyarrow

from parquet_loader import DatasetIndex, FileChangedError, ParquetLoader, build_index
from parquet_loader.cli import main

OPTIONS: dict[str, Any] = {"seq_len": 4, "lanes": 2, "window": 2, "epochs": 1, "threads": 2}
EARLIER = Path(__file__).parents[1] / "promises" / "earlier"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[3, 4], [0, 5]], [[6] * 20], [[1], [2]]]))


@pytest.fixture
def saved(folder: Path, tmp_path: Path) -> Path:
    build_index(folder).save(tmp_path / "saved index")
    return tmp_path / "saved index"


def copy_of(folder: Path, to: Path) -> Path:
    """A copy, written at another time."""
    shutil.copytree(folder, to)
    for path in to.iterdir():
        os.utime(path, ns=(7, 7))
    return to


def rows_of(source: Any, **options: Any) -> list[Any]:
    with ParquetLoader(source, **{**OPTIONS, **options}) as loader:
        return [batch.tokens.tolist() for batch in loader]


def test_a_copy_with_other_times_is_read_with_the_saved_index(folder: Path, saved: Path, tmp_path: Path) -> None:
    copied = copy_of(folder, tmp_path / "copy")
    assert rows_of(copied, index=saved) == rows_of(folder)
    assert rows_of(copied, index=DatasetIndex.load(saved)) == rows_of(folder)
    with ParquetLoader(copied, index=saved, **OPTIONS) as loader, pickle.loads(pickle.dumps(loader)) as other:
        assert [batch.tokens.tolist() for batch in other] == rows_of(folder)


def test_a_copy_in_another_kind_of_place_is_read_with_the_saved_index(folder: Path, saved: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/copied", recursive=True)
    try:
        assert rows_of("memory://copied", index=saved) == rows_of(folder)
    finally:
        memory.rm("/copied", recursive=True)


def test_an_index_of_the_first_release_serves_copies_too(tmp_path: Path) -> None:
    copied = copy_of(EARLIER / "set", tmp_path / "copy")
    assert rows_of(copied, index=EARLIER / "set.index") == rows_of(EARLIER / "set")


@pytest.mark.parametrize("recount", [False, True])
def test_an_index_whose_tokens_were_counted_from_the_data_serves_copies(tmp_path: Path, recount: bool) -> None:
    (tmp_path / "set").mkdir()
    write_pyarrow(tmp_path / "set" / "x.parquet", [[1, 2], [], [3]], write_statistics=False)
    pq.write_table(pa.table({"tokens": pa.array([None, None])}), tmp_path / "set" / "y.parquet")  # holds no token
    build_index(tmp_path / "set", recount=recount).save(tmp_path / "index")
    copied = copy_of(tmp_path / "set", tmp_path / "copy")
    assert rows_of(copied, index=tmp_path / "index") == rows_of(tmp_path / "set")


def write_plain(path: Path, token: int) -> None:
    """A file of one token again and again, as long for any other."""
    write_pyarrow(path, [[token] * 10] * 10, compression="none", use_dictionary=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: write_plain(path, 2), "its footer is another one than the index has"),
        (lambda path: path.write_bytes(b"no Parquet".ljust(path.stat().st_size)), "its footer is another one"),
        (lambda path: write_pyarrow(path, [[1]] * 1000), r"size [\d,]+ and modification time"),
        (lambda path: path.unlink(), "it is gone"),
    ],
    ids=["other tokens", "no Parquet", "another size", "gone"],
)
def test_what_is_no_copy_is_an_error_and_the_index_refreshed_as_it_says_serves_what_is_there(
    folder: Path, tmp_path: Path, change: Callable[[Path], None], says: str
) -> None:
    write_plain(folder / "plain.parquet", 1)
    saved = tmp_path / "an index"
    build_index(folder).save(saved)
    copied = copy_of(folder, tmp_path / "a copy")
    change(copied / "plain.parquet")
    with pytest.raises(FileChangedError, match=rf"plain\.parquet is not the file that was indexed: .*{says}") as caught:
        rows_of(copied, index=saved)
    assert "\n" not in str(caught.value)
    command = shlex.split(str(caught.value).split("refresh the saved index: ")[1])
    assert command[:2] == ["parquet-loader", "index"] and command[-1] == str(saved)
    if (copied / "plain.parquet").exists() and b"no Parquet" in (copied / "plain.parquet").read_bytes():
        (copied / "plain.parquet").unlink()
    assert main(command[1:]) == 0
    assert rows_of(copied, index=saved) == rows_of(copied)


def test_a_file_that_changes_after_its_first_read_is_an_error_also_in_a_copy(
    folder: Path, saved: Path, tmp_path: Path
) -> None:
    copied = copy_of(folder, tmp_path / "copy")
    with ParquetLoader(copied, index=saved, **{**OPTIONS, "epochs": None, "budget_bytes": 9 << 20}) as loader:
        list(loader)
        for path in copied.iterdir():
            os.utime(path, ns=(8, 8))
        with pytest.raises(FileChangedError, match=r"modification time 8 ns where there were [\d,]+ and 7"):
            while loader.epoch < 500:
                next(iter(loader))


def test_a_file_that_changes_under_an_index_that_was_just_made_is_an_error(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        for path in folder.iterdir():
            os.utime(path, ns=(8, 8))
        with pytest.raises(FileChangedError, match=r"start a new run on the new data$"):
            next(iter(loader))
