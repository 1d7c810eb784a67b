"""Wrong arguments, wrong data and failing reads: each says what, where and what to do, and damages nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import (
    ConfigError,
    DataError,
    FileChangedError,
    ParquetLoader,
    PathNotFoundError,
    StorageError,
    build_index,
    sets,
)

OPTIONS = dict(seq_len=16, lanes=6, window=3, threads=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = unique_groups(random_files(np.random.default_rng(4), files=4, groups=5))
    return write_set(tmp_path / "set", files)


def refused(folder: object, error: type[Exception] = ConfigError, **options: object) -> str:
    """The one line that a loader is refused with."""
    with pytest.raises(error) as caught:
        ParquetLoader(folder, **{**OPTIONS, **options})
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────

BOUNDS = {
    "seq_len": (0, "in [1, 2147483646]"),
    "lanes": (0, "in [1, 2147483646]"),
    "window": (0, "at least 1"),
    "threads": (0, "in [1, 1024]"),
    "budget_bytes": (0, "at least 1"),
    "world_size": (0, "at least 1"),
    "vocab_size": (0, "at least 1"),
    "seed": (2**64, "in [0, 18446744073709551615]"),
    "rank": (1, "in [0, 0]"),
    "overlap": (2, "in [0, 1]"),
    "eos_id": (2**31, "in [0, 2147483647]"),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_number_out_of_range_is_refused_with_its_bounds(folder: Path, name: str) -> None:
    value, bounds = BOUNDS[name]
    assert refused(folder, **{name: value}) == f"{name} must be an integer {bounds}, not {value}"
    assert refused(folder, **{name: -1}) == f"{name} must be an integer {bounds}, not -1"


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", [True, 1.0, "1", [1]], ids=repr)
def test_a_number_of_another_type_is_refused(folder: Path, name: str, value: object) -> None:
    assert refused(folder, **{name: value}) == f"{name} must be an integer {BOUNDS[name][1]}, not {value!r}"


def test_numbers_may_be_of_numpy(folder: Path) -> None:
    names = dict(seq_len=16, lanes=6, window=3, threads=2, seed=0, rank=0, world_size=2, overlap=1, eos_id=7)
    plain = ParquetLoader(folder, vocab_size=100_000, budget_bytes=1 << 30, **names)
    with (
        ParquetLoader(
            folder,
            vocab_size=np.int32(100_000),
            budget_bytes=np.int64(1 << 30),
            **{name: np.uint8(value) for name, value in names.items()},
        ) as loader,
        plain,
    ):
        for mine, theirs in zip(loader, plain, strict=True):
            assert np.array_equal(mine.tokens, theirs.tokens)
        assert loader.checkpoint() == plain.checkpoint()


@pytest.mark.parametrize("dtype", ["float32", "bool", "no such", ">i4" if np.little_endian else "<i4", object, None])
def test_a_dtype_that_is_no_native_integer_is_refused(folder: Path, dtype: object) -> None:
    said = refused(folder, dtype=dtype)
    assert said == f"dtype must be a NumPy integer type such as 'int32' or 'int64', not {dtype!r}"


def test_eos_must_lie_in_the_vocabulary(folder: Path) -> None:
    assert refused(folder, eos_id=5000, vocab_size=5000) == "eos_id must be an integer in [0, 4999], not 5000"


def test_a_world_size_that_does_not_divide_lanes_is_refused_with_the_nearest_that_do(folder: Path) -> None:
    said = refused(folder, lanes=12, world_size=5)
    assert "world_size 5 does not divide lanes 12" in said
    assert "use 4 or 6 ranks, or allow it with uneven=True" in said
    with ParquetLoader(folder, **{**OPTIONS, "lanes": 12}, world_size=5, uneven=True) as loader:
        assert len(next(iter(loader)).tokens) == 2


def test_more_ranks_than_lanes_are_refused_even_uneven(folder: Path) -> None:
    said = refused(folder, world_size=7, uneven=True)
    assert "world_size 7 is more than lanes 6" in said
    assert "use at most 6 ranks" in said


# ── what there is to read ────────────────────────────────────────────────────────────────────────────────────────


def write_columns(folder: Path, **columns: pa.Array) -> Path:
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "a.parquet")
    return folder


INTEGERS = pa.array([[1, 2], [3]], pa.list_(pa.int32()))


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"there is no {tmp_path}/nothing" in refused(tmp_path / "nothing", PathNotFoundError)


def test_a_folder_without_parquet_says_what_was_looked_for_and_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no tokens")
    said = refused(tmp_path, PathNotFoundError)
    assert f"{tmp_path} holds no Parquet, Arrow or raw file" in said
    assert "notes.txt" in said


def test_without_a_list_of_integers_the_columns_there_are_are_named(tmp_path: Path) -> None:
    folder = write_columns(tmp_path / "set", text=pa.array(["a", "b"]), score=pa.array([1.0, 2.0]))
    said = refused(folder)
    assert "a.parquet has no column that is a list of integers; its columns are text (string), score (double)" in said


def test_where_several_columns_may_be_meant_they_are_named(tmp_path: Path) -> None:
    for names in (["ids", "tokens", "mask"], ["ids", "others", "mask"], ["words", "mask"]):
        folder = write_columns(tmp_path / "-".join(names), **dict.fromkeys(names, INTEGERS))
        said = refused(folder)
        assert "several columns are lists of integers: [" in said
        assert all(repr(name) in said for name in names)
        with ParquetLoader(folder, column="mask", seq_len=2, lanes=1) as loader:
            assert loader.index.column == "mask"


@pytest.mark.parametrize(
    "beside",
    [["attention_mask", "labels"], ["document_ids"], ["position_ids", "token_type_ids", "loss_mask", "doc_ids"]],
)
@pytest.mark.parametrize("name", ["input_ids", "tokens", "ids"])
def test_the_one_column_that_is_named_as_tokens_are_is_taken(tmp_path: Path, name: str, beside: list[str]) -> None:
    folder = write_columns(tmp_path / "set", **dict.fromkeys([*beside, name], INTEGERS))
    with ParquetLoader(folder, seq_len=2, lanes=1) as loader:
        assert loader.index.column == name


@pytest.mark.parametrize("column", ["missing", "text"])
def test_a_column_that_cannot_be_meant_is_refused_with_those_that_can(tmp_path: Path, column: str) -> None:
    folder = write_columns(tmp_path / "set", ids=INTEGERS, text=pa.array(["a", "b"]))
    said = refused(folder, column=column)
    assert repr(column) in said
    assert "lists of integers: ['ids']" in said


def test_an_index_of_another_column_is_refused(tmp_path: Path) -> None:
    folder = write_columns(tmp_path / "set", ids=INTEGERS, mask=INTEGERS)
    index = build_index(folder, column="mask")
    assert refused(folder, column="ids", index=index) == (
        "the index is of column 'mask' and not 'ids'; build it for that column"
    )


def test_a_set_of_empty_documents_alone_is_refused(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[], []], [[]]]])
    assert "holds no token: all of its 3 documents are empty" in refused(folder)
    with ParquetLoader(folder, seq_len=2, lanes=3, eos_id=9) as loader:  # with EOS there is one token a document
        assert next(iter(loader)).tokens.tolist() == [[9, 9]] * 3


def test_a_set_of_fewer_tokens_than_a_batch_goes_on_over_epochs(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[1, 2, 3]]]])
    with ParquetLoader(folder, seq_len=16, lanes=6, shuffle=False) as loader:
        rows = [batch.tokens for _ in range(5) for batch in loader]
    assert len(rows) == 5
    assert np.bincount(np.concatenate(rows).ravel()).tolist()[0] == 0
    assert set(np.unique(rows)) == {1, 2, 3}


def test_an_id_past_the_vocabulary_is_refused_before_data_is_read(folder: Path) -> None:
    with pytest.raises(DataError, match=r"has token id \d+ by its statistics, outside \[0, 50\)") as caught:
        ParquetLoader(folder, vocab_size=50, **OPTIONS)
    assert (caught.value.path, caught.value.column) == ("part-000.parquet", "tokens")
    assert caught.value.row_group is not None


def test_an_id_past_the_vocabulary_is_found_in_decoding_where_statistics_do_not_tell(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[1, 2]]], [[[3], [4, 70]]]])
    index = dataclasses.replace(build_index(folder), max_id=np.array([-1, -1]))
    with ParquetLoader(folder, index=index, seq_len=1, lanes=1, window=1, shuffle=False, vocab_size=50) as loader:
        batches = iter(loader)
        assert [next(batches).tokens.item() for _ in range(2)] == [1, 2]
        with pytest.raises(DataError, match=r"row 1 has token id 70, outside \[0, 50\)") as caught:
            next(batches)
    assert (caught.value.path, caught.value.row_group, caught.value.column) == ("part-001.parquet", 0, "tokens")


def test_a_null_inside_a_document_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    folder = write_columns(tmp_path / "set", ids=pa.array([[1], [2, None]], pa.list_(pa.int32())))
    with ParquetLoader(folder, seq_len=1, lanes=1) as loader, pytest.raises(DataError) as caught:
        next(iter(loader))
    assert (caught.value.path, caught.value.row_group, caught.value.column) == ("a.parquet", 0, "ids")


def test_a_file_that_changed_since_it_was_indexed_is_an_error_that_names_it(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        (folder / "part-001.parquet").write_bytes((folder / "part-002.parquet").read_bytes())
        with pytest.raises(FileChangedError, match=r"part-001.parquet is not the file that was indexed"):
            for _ in loader:
                pass


# ── faults while it runs ─────────────────────────────────────────────────────────────────────────────────────────


def damage(path: Path) -> Callable[[], None]:
    """Overwrite a file's data, not its footer, with its time as it was; returns what repairs it."""
    status, data = path.stat(), path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8

    def write(content: bytes) -> None:
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    write(data[:4] + b"\xff" * (len(data) - 4 - footer) + data[-footer:])
    return lambda: write(data)


def take_until_error(loader: ParquetLoader) -> tuple[list[np.ndarray], Exception]:
    taken = []
    while True:
        try:
            taken.extend(batch.tokens for batch in loader)
        except Exception as error:
            return taken, error


@pytest.mark.parametrize("threads", [1, 4])
def test_damaged_data_is_an_error_at_its_batch_and_a_repair_goes_on_from_there(folder: Path, threads: int) -> None:
    options = {**OPTIONS, "threads": threads, "shuffle": False}
    with ParquetLoader(folder, **options) as loader:
        expected = [batch.tokens for _ in range(2) for batch in loader]
    repair = damage(folder / "part-002.parquet")
    with ParquetLoader(folder, **options) as loader:
        # The windows before the first that holds a damaged row group are whole, and so all their rows are delivered.
        index, order = loader.index, loader._order
        bad = next(g for g in range(len(index)) if index.file[g] == 2 and index.tokens[g])
        window_begin = int(order.group_tokens[: bad // 3 * 3].sum())
        whole_rows = window_begin // 6 // 16
        taken, first = take_until_error(loader)
        again, second = take_until_error(loader)
        for error in (first, second):
            assert isinstance(error, DataError)
            assert error.path == "part-002.parquet"
            assert (error.row_group, error.column) == (index.row_group[bad], "tokens")
        assert len(taken) == whole_rows > 3
        assert again == []
        assert loader.stats()["position"] == whole_rows * 16
        repair()
        while len(taken) < len(expected):
            for batch in loader:
                taken.append(batch.tokens)
                if len(taken) == len(expected):
                    break
    assert all(map(np.array_equal, taken, expected))


def test_a_read_that_fails_is_an_error_at_its_batch_and_is_tried_again(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        expected = [batch.tokens for _ in range(2) for batch in loader]
    with ParquetLoader(folder, **OPTIONS) as loader:
        real_read, failures = loader._config.storage.read, iter(range(5))

        def read(file, start, length, stop=None):
            if file.path == "part-001.parquet" and next(failures, None) is not None:
                raise StorageError("the disk is on fire")
            return real_read(file, start, length)

        loader._config.storage.read = read
        taken, errors = [], 0
        while len(taken) < len(expected):
            try:
                for batch in loader:
                    taken.append(batch.tokens)
                    if len(taken) == len(expected):
                        break
            except StorageError as error:
                assert str(error) == "the disk is on fire"
                errors += 1
    assert 1 <= errors <= 5
    assert all(map(np.array_equal, taken, expected))


def least_budget(folder: Path, **options: object) -> int:
    """What a refusal says would do."""
    return int(refused(folder, budget_bytes=1, **options).split("give at least ")[1].split(", or")[0].replace(",", ""))


def test_a_budget_too_small_for_the_window_of_a_state_is_refused_and_nothing_moves(tmp_path: Path, monkeypatch) -> None:
    tokens = np.arange(4_000_000, dtype=np.int32) % 50_000
    documents = pa.ListArray.from_arrays(np.arange(0, 4_000_001, 1000, dtype=np.int32), pa.array(tokens))
    pq.write_table(pa.table({"tokens": documents}), tmp_path / "a.parquet", row_group_size=100)
    with ParquetLoader(tmp_path, **{**OPTIONS, "window": 40}) as loader:
        state = next(iter(loader)).state
    monkeypatch.setattr(sets, "_ALONE_TOKENS", 100_000)  # the window that is chosen is smaller than the run's
    budget = least_budget(tmp_path, window=1)
    with ParquetLoader(tmp_path, **{**OPTIONS, "window": None, "budget_bytes": budget}) as loader:
        with pytest.raises(ConfigError, match="too small for a window of 40 row groups"):
            loader.load_state_dict(state)
        assert loader.state_dict()["position"] == 0
        next(iter(loader))
    budget = least_budget(tmp_path, window=40)
    with ParquetLoader(tmp_path, **{**OPTIONS, "window": None, "budget_bytes": budget}) as loader:
        loader.load_state_dict(state)
        next(iter(loader))


def test_a_refusal_of_a_window_that_was_chosen_tells_who_resumes(tmp_path: Path) -> None:
    tokens = np.arange(4_000_000, dtype=np.int32) % 50_000
    documents = pa.ListArray.from_arrays(np.arange(0, 4_000_001, 1000, dtype=np.int32), pa.array(tokens))
    pq.write_table(pa.table({"tokens": documents}), tmp_path / "a.parquet", row_group_size=100)
    budget = least_budget(tmp_path, window=5)
    assert "to resume a run with a smaller one, its window" in refused(tmp_path, window=None, budget_bytes=budget)
    with ParquetLoader(tmp_path, **{**OPTIONS, "window": 5, "budget_bytes": budget}) as loader:
        next(iter(loader))


def test_a_position_between_batches_has_no_state(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        assert loader.state_at(48)["position"] == 48
        for position in (-16, 47, 2**62):
            with pytest.raises(ConfigError, match="position"):
                loader.state_at(position)
