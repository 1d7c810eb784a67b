"""Columns that go with the tokens: what is refused, and how; which type they come in; and what indexes keep of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aligned_sets import lists, value_of, write_aligned

from parquet_loader import Component, ConfigError, DataError, DatasetIndex, FileChangedError, ParquetLoader, build_index
from parquet_loader.cli.main import main
from parquet_loader.insight import open_run, plan
from parquet_loader.options import LoaderOptions
from parquet_loader.testing import FaultyFiles

OPTIONS: dict[str, Any] = {"seq_len": 8, "lanes": 2, "column": "input_ids"}
LENGTHS = [[[5, 9, 0, 40], [7, 30, 12]], [[60]]]


def first_batch(source: Any, **options: Any) -> Any:
    with ParquetLoader(source, **{**OPTIONS, **options}) as loader:
        return next(iter(loader))


def refused(source: Any, error: type[Exception] = ConfigError, **options: Any) -> str:
    with pytest.raises(error) as caught, ParquetLoader(source, **{**OPTIONS, **options}) as loader:
        list(itertools.islice(loader, 100))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_aligned(tmp_path / "set", LENGTHS, {"labels": "int64", "mask": "bool"})
    return tmp_path / "set"


# ── rows that differ ─────────────────────────────────────────────────────────────────────────────────────────────


def write_lengths(folder: Path, tokens: list[list[int]], labels: list[list[int]], **options: Any) -> None:
    """A row group for each pair of lists of lengths."""
    folder.mkdir()
    schema = pa.schema({"input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int8())})
    with pq.ParquetWriter(folder / "a.parquet", schema, **options) as writer:
        for one, other in zip(tokens, labels, strict=True):
            columns = [lists(np.cumsum([0, *each]), pa.array(np.zeros(sum(each), np.int8))) for each in (one, other)]
            table = pa.table({"input_ids": columns[0], "labels": columns[1]})
            writer.write_table(table.cast(schema))


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("processes", [0, 1])
def test_a_row_of_another_length_names_its_file_row_group_and_row(tmp_path: Path, small: bool, processes: int) -> None:
    many = [10] * (20 if small else 70_000)
    wrong = [*many]
    wrong[7], wrong[8] = 12, 8
    write_lengths(tmp_path / "set", [many, many, many], [many, wrong, many])
    told = refused(tmp_path / "set", DataError, aligned=["labels"], processes=processes, cache_dir=tmp_path)
    where = f"{tmp_path}/set/a.parquet, row group 1, column 'labels'"
    assert told.startswith(f"{where}: row 7 has 12 values, and 10 tokens in 'input_ids'")
    first_batch(tmp_path / "set", cache_dir=tmp_path)


def test_a_value_that_an_empty_row_has_is_found(tmp_path: Path) -> None:
    """The borders between documents are the same: only which of them are empty differs."""
    write_lengths(tmp_path / "set", [[4, 0, 6, 30]], [[0, 4, 6, 30]])
    assert "row 0 has 0 values, and 4 tokens" in refused(tmp_path / "set", DataError, aligned=["labels"])


@pytest.mark.parametrize("seed", range(20))
def test_wherever_a_row_differs_it_is_found(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 12, (3, 30))
    labels = tokens.copy()
    group, row, other = int(rng.integers(3)), *rng.choice(30, 2, replace=False)
    labels[group, row] += 1
    labels[group, other] -= 1
    write_lengths(tmp_path / "set", tokens.tolist(), labels.tolist())
    options = {"lanes": int(rng.integers(1, 9)), "window": int(rng.integers(1, 4)), "cache_dir": tmp_path}
    told = refused(tmp_path / "set", DataError, aligned=["labels"], **options)
    assert f"row group {group}, column 'labels': row {min(row, other)} has" in told


def test_other_totals_are_found_before_any_data_is_read(tmp_path: Path) -> None:
    write_lengths(tmp_path / "set", [[4, 6], [5]], [[4, 6], [6]])
    with pytest.raises(DataError) as caught:
        ParquetLoader(tmp_path / "set", **OPTIONS, aligned=["labels"])
    assert "a.parquet, row group 1, column 'labels': holds 6 values, and 5 tokens in 'input_ids'" in str(caught.value)


def test_a_null_value_names_its_row(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2, 3], [4, 5]], "labels": [[1, 2, 3], [4, None]]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert "row group 0, column 'labels': holds 4 values, and 5 tokens" in refused(
        tmp_path, DataError, aligned=["labels"]
    )
    table = pa.table({"input_ids": [[1, 2, 3], [4, 5]], "labels": [[1, 2, 3, None], [4, 5]]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert "'labels': row 0 has a null inside" in refused(tmp_path, DataError, aligned=["labels"])


def test_null_rows_are_as_long_as_empty_ones(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2, 3], [], None, [4, 5]], "labels": [[1, 2, 3], None, [], [4, 5]]})
    pq.write_table(table, tmp_path / "a.parquet")
    batch = first_batch(tmp_path, aligned=["labels"], lanes=1, seq_len=5)
    np.testing.assert_array_equal(batch.tokens, batch.aligned["labels"])


# ── what is asked for ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_column_that_is_not_there_names_those_that_are(folder: Path) -> None:
    told = refused(folder, aligned=["label"])
    assert "part-000.parquet has no column 'label', as 1 more files" in told
    assert "its lists of numbers: input_ids, labels, mask" in told
    first_batch(folder, aligned=["labels"])


def test_a_column_that_is_no_list_of_numbers_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]], "text": ["x"], "names": [["a", "b"]]}), tmp_path / "a.parquet")
    for name in ("text", "names"):
        assert f"has a column {name!r}, which is no list of numbers" in refused(tmp_path, aligned=[name])


def test_the_token_column_is_not_aligned_with_itself(folder: Path) -> None:
    assert "holds the tokens, and is not aligned with them" in refused(folder, aligned=["input_ids"])


def test_the_token_column_is_the_one_that_is_left(tmp_path: Path) -> None:
    write_aligned(tmp_path, LENGTHS, {"labels": "int64"})
    assert not first_batch(tmp_path, column=None).aligned
    batch = first_batch(tmp_path, column=None, aligned=["labels"])
    np.testing.assert_array_equal(batch.aligned["labels"], value_of(batch.tokens, "int64"))


@pytest.mark.parametrize("aligned", ["labels", 5, ["labels", "labels"], [1], {"labels": "0"}])
def test_what_is_no_list_of_names_is_refused(folder: Path, aligned: Any) -> None:
    assert "aligned" in refused(folder, aligned=aligned)


def test_where_eos_are_appended_columns_need_a_value_there(folder: Path) -> None:
    told = refused(folder, aligned=["labels"], eos_id=9)
    assert "give it one, such as aligned={'labels': -100} for labels" in told
    first_batch(folder, aligned={"labels": -100}, eos_id=9)
    assert "is no value of the column, which is bool" in refused(folder, aligned={"mask": 2}, eos_id=9)


@pytest.mark.parametrize("fill", [{"labels": "token"}, {"labels": None}, ["labels"], {1: 2}])
def test_what_is_no_fill_is_refused(fill: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fill must be a mapping"):
        Component(tmp_path, fill=fill)


def test_a_source_without_the_column_is_told_both_ways_out(folder: Path, tmp_path: Path) -> None:
    write_aligned(tmp_path / "web", LENGTHS, {}, first=1000)
    options = {"weights": {"web": 0.5, "chat": 0.5}, "aligned": ["labels"], "cache_dir": tmp_path}
    told = refused({"web": tmp_path / "web", "chat": folder}, **options)
    assert "source 'web': part-000.parquet has no column 'labels'" in told
    assert "name another column" in told
    assert "Component(..., fill={'labels': 0})" in told
    first_batch({"web": Component(tmp_path / "web", fill={"labels": 0}), "chat": folder}, **options)
    told = refused({"web": Component(tmp_path / "web", aligned=[]), "chat": folder}, **options)
    assert "aligned=[] leaves out 'labels', which batches have" in told


def test_a_fill_that_the_columns_type_does_not_hold_is_refused(folder: Path, tmp_path: Path) -> None:
    write_aligned(tmp_path / "web", LENGTHS, {}, first=1000)
    sources = {"web": Component(tmp_path / "web", fill={"mask": 7}), "chat": folder}
    options = {"weights": {"web": 0.5, "chat": 0.5}, "aligned": ["mask"], "cache_dir": tmp_path}
    told = refused(sources, **options)
    assert "source 'web': fill={'mask': 7} is no value of the aligned column 'mask', which is bool" in told


def test_a_fill_for_a_column_that_files_have_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its real values would be lost; also where one file alone has it."""
    write_aligned(tmp_path / "web", LENGTHS, {}, first=1000)
    options = {"weights": {"web": 0.5, "chat": 0.5}, "aligned": ["labels"], "cache_dir": tmp_path}
    for filled in (
        folder,
        [*(str(each) for each in sorted((tmp_path / "web").iterdir())), f"{folder}/part-001.parquet"],
    ):
        sources = {"web": Component(filled, fill={"labels": "tokens"}), "chat": folder}
        told = refused(sources, **options)
        assert "source 'web': fill has 'labels', and " in told
        assert "part-001.parquet has that column" in told or "part-000.parquet has that column" in told
        assert first_batch({"web": Component(filled), "chat": folder}, **{**options, "aligned": ()})
    assert first_batch({"web": Component(folder), "chat": folder}, **options)


def test_a_fill_of_other_names_is_told_where_a_column_is_missing(folder: Path, tmp_path: Path) -> None:
    write_aligned(tmp_path / "web", LENGTHS, {}, first=1000)
    options = {"weights": {"web": 0.5, "chat": 0.5}, "cache_dir": tmp_path}
    sources = {"web": Component(tmp_path / "web", fill={"label": 0}), "chat": folder}
    assert "its fill has ['label'], which nothing asks for" in refused(sources, aligned=["labels"], **options)
    first_batch(sources, **options)  # one dict of sources serves runs with and without labels


def test_fills_that_no_type_holds_together_are_named(folder: Path, tmp_path: Path) -> None:
    fills = {"a": 2**63, "b": 0.5}
    sources = {name: Component(folder, fill={"new": fill}) for name, fill in fills.items()}
    told = refused(sources, weights={"a": 0.5, "b": 0.5}, aligned=["new"])
    assert "no type holds all that fill has for 'new'" in told
    assert "0.5 for source 'b'" in told
    assert f"{2**63} for" in told


def test_a_fill_of_the_whole_loader_is_sent_to_its_source(folder: Path) -> None:
    assert "Component(..., fill=...)" in refused(folder, fill={"labels": 0})


def test_raw_shards_hold_ids_alone(tmp_path: Path) -> None:
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "a.bin")
    told = refused(tmp_path, column=None, raw_dtype="uint16", eos_id=9, aligned={"labels": 0})
    assert "aligned columns are for Parquet and Arrow files" in told


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("types", "common"),
    [
        (("int8", "int32"), "int32"),
        (("uint8", "int8"), "int16"),
        (("bool", "int8"), "int8"),
        (("float32", "float16"), "float32"),
        (("int16", "float32"), "float32"),
        (("int32", "float32"), "float64"),
        (("uint32", "int64"), "int64"),
        (("int64", "float64"), None),
        (("uint64", "int8"), None),
    ],
)
def test_files_of_several_types_come_in_one_that_holds_all_of_them(
    types: tuple[str, str], common: str | None, tmp_path: Path
) -> None:
    first = 0
    for number, dtype in enumerate(types):
        first = write_aligned(tmp_path / f"{number}", [[[50, 3]]], {"labels": dtype}, first=first)
    options: dict[str, Any] = {"aligned": ["labels"], "cache_dir": tmp_path / "cache", "lanes": 1, "seq_len": 106}
    if common is None:
        assert "no type holds the values of all of them exactly" in refused(tmp_path, **options)
        return
    batch = first_batch(tmp_path, **options, shuffle=False)
    assert batch.aligned["labels"].dtype == common
    expected = [
        value_of(batch.tokens[0, part], dtype) for part, dtype in zip((slice(53), slice(53, 106)), types, strict=True)
    ]
    np.testing.assert_array_equal(batch.aligned["labels"][0], np.concatenate(expected))


def test_integers_are_held_as_narrow_as_statistics_promise(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS, aligned=["labels"]) as loader:
        assert (loader._config.aligned[0].held_dtype, loader._config.aligned[0].dtype) == (np.int16, np.int64)
    with ParquetLoader(folder, **OPTIONS, aligned={"labels": 2**40}, eos_id=5) as loader:
        assert loader._config.aligned[0].held_dtype == np.int64


def test_a_value_beyond_what_statistics_promise_is_never_wrapped(tmp_path: Path) -> None:
    labels = pa.array([[1, 2, -100], [777_777]], pa.list_(pa.int64()))
    table = pa.table({"input_ids": [[1, 2, 3], [4]], "labels": labels})
    path = tmp_path / "a.parquet"
    options = {"compression": "none", "use_dictionary": False}
    pq.write_table(table, path, **options)
    data = path.read_bytes()
    at = data.index(np.array([1, 2, -100, 777_777], "<i8").tobytes()) + 16
    assert "has the value" not in str(first_batch(tmp_path, aligned=["labels"], lanes=1, seq_len=4).aligned)
    FaultyFiles(tmp_path).replace("a.parquet", data[:at] + np.array([2**40], "<i8").tobytes() + data[at + 8 :])
    told = refused(tmp_path, DataError, aligned=["labels"], lanes=1)
    assert f"row 0 has the value {2**40}, outside [{-(2**31)}, {2**31})" in told


# ── indexes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_saved_index_keeps_the_columns(folder: Path, tmp_path: Path) -> None:
    build_index(folder, column="input_ids", aligned=["labels", "mask"]).save(tmp_path / "index")
    index = DatasetIndex.load(tmp_path / "index")
    assert [each.column for each in index.aligned] == ["labels", "mask"]
    batch = first_batch(folder, index=index, aligned=["mask"])
    np.testing.assert_array_equal(batch.aligned["mask"], value_of(batch.tokens, "bool"))
    assert first_batch(folder, index=index).aligned == {}


def test_an_index_without_the_column_says_how_to_build_one(folder: Path) -> None:
    index = build_index(folder, column="input_ids", aligned=["mask"])
    told = refused(folder, index=index, aligned=["labels"])
    assert "build it with build_index(source, column='input_ids', aligned=['labels'])" in told


def test_the_fingerprint_and_the_state_know_nothing_of_columns(folder: Path) -> None:
    plain, aligned = (
        build_index(folder, column="input_ids"),
        build_index(folder, column="input_ids", aligned=["labels"]),
    )
    assert plain.fingerprint == aligned.fingerprint
    assert first_batch(folder).state == first_batch(folder, aligned=["labels"]).state


def test_a_cached_footer_is_read_again_where_other_columns_are_asked_for(folder: Path, tmp_path: Path) -> None:
    for aligned in ([], ["labels"], ["mask", "labels"], ["labels"], []):
        batch = first_batch(folder, aligned=aligned, cache_dir=tmp_path / "cache")
        assert list(batch.aligned) == aligned
        for name in aligned:
            np.testing.assert_array_equal(batch.aligned[name], value_of(batch.tokens, batch.aligned[name].dtype.name))


def test_a_copy_is_taken_where_its_columns_are_what_the_index_says(tmp_path: Path) -> None:
    sizes = []
    for name, sign in (("set", 1), ("copy", 1), ("other", -1)):
        labels = {"labels": lambda tokens, sign=sign: sign * tokens}
        write_aligned(tmp_path / name, LENGTHS, labels, options=[{"use_dictionary": False, "compression": "none"}])
        sizes.append([path.stat().st_size for path in sorted((tmp_path / name).iterdir())])
    assert sizes[0] == sizes[1] == sizes[2]
    index = build_index(tmp_path / "set", column="input_ids", aligned=["labels"])
    options: dict[str, Any] = {"index": index, "aligned": ["labels"]}
    first_batch(tmp_path / "copy", **options)
    first_batch(tmp_path / "other", index=build_index(tmp_path / "set", column="input_ids"))
    assert "its footer is another one than the index has" in refused(tmp_path / "other", FileChangedError, **options)


def test_columns_that_lie_together_are_read_together(tmp_path: Path) -> None:
    """As many requests as without the column, where row groups are small; each byte once."""
    write_aligned(tmp_path, [[[100] * 20] * 8], {"labels": "int8", "mask": "bool"})
    reads, size = [], 0
    for aligned in ([], ["labels", "mask"]):
        with ParquetLoader(tmp_path, **OPTIONS, epochs=1, aligned=aligned) as loader:
            list(loader)
            reads.append(loader.stats()["reads"])
            size = loader.stats()["bytes_read"]
    assert reads[1] <= reads[0]
    assert size <= (tmp_path / "part-000.parquet").stat().st_size


# ── what looks at runs ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_tells_its_documents_with_columns_as_without(folder: Path) -> None:
    assert first_batch(folder, aligned=["labels", "mask"]).origins() == first_batch(folder).origins()


def test_a_plan_counts_the_bytes_of_columns(folder: Path) -> None:
    options = {**OPTIONS, "epochs": 1, "aligned": ["labels"]}
    planned = plan(open_run(folder, LoaderOptions(**options)), world_sizes=[1])
    with ParquetLoader(folder, **options) as loader:
        list(loader)
        assert planned.world_sizes[0].bytes_read == loader.stats()["bytes_read"]


def test_the_command_takes_names_or_values_at_eos(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert (
        main(["index", str(folder), "--column", "input_ids", "--aligned", "labels,mask", "--output", str(index)]) == 0
    )
    assert [each.column for each in DatasetIndex.load(index).aligned] == ["labels", "mask"]
    run = ["plan", str(folder), "--seq-len", "8", "--lanes", "2", "--column", "input_ids", "--steps", "2"]
    assert main([*run, "--index", str(index), "--aligned", "labels"]) == 0
    assert main([*run, "--eos-id", "1", "--aligned", '{"labels": -100}']) == 0
