"""Sources that may still grow: what of them is refused, what is followed, and that the first file is waited for."""

from __future__ import annotations

import _thread
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from growing_sets import Writer, copy_finished, make_files, quick_looks, take
from raw_sets import random_files, write_megatron, write_shards

from parquet_loader import (
    Component,
    ConfigError,
    DataError,
    FileChangedError,
    GrowthTimeoutError,
    ParquetLoader,
    PathNotFoundError,
    WriterFailedError,
    build_index,
)
from parquet_loader.torch import TokenDataset

__all__ = ["quick_looks"]

pytestmark = pytest.mark.usefixtures("quick_looks")

OPTIONS: dict[str, Any] = {"seq_len": 16, "lanes": 8, "window": 3, "seed": 7, "follow": True, "wait_seconds": 20}
PATTERNS = ("growing/*.parquet", "growing/part-*", "*/*.parquet", "gr*", "growing/**", "**/part-*.parquet", "growing/*")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_files(tmp_path_factory.mktemp("files"), 0)


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    (tmp_path / "sets").mkdir()
    return tmp_path / "sets"


@pytest.fixture
def writer(files: list[Path], sets: Path) -> Writer:
    return Writer(sets / "growing", files)


def opened(source: object, **changes: Any) -> ParquetLoader:
    return ParquetLoader(source, **{**OPTIONS, **changes})  # type: ignore[arg-type]


def after(seconds: float, work: Callable[[], object]) -> threading.Timer:
    thread = threading.Timer(seconds, work)
    thread.start()
    return thread


# ── globs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_growing_set_is_refused_by_whatever_glob_it_is_named(pattern: str, writer: Writer, sets: Path) -> None:
    writer.show(2)
    with pytest.raises(ConfigError, match=r"sets/growing is still being written"):
        opened(sets / pattern, follow=False)
    writer.finish()
    assert len(build_index(sets / pattern).files) == 8


def test_a_glob_that_finds_nothing_yet_tells_of_the_set_that_is_being_written(writer: Writer) -> None:
    with pytest.raises(ConfigError, match="growing is still being written"):
        build_index(writer.folder / "*.parquet")


def test_a_glob_of_one_kind_of_folder_tells_of_a_marker_above_them(files: list[Path], sets: Path) -> None:
    growing = Writer(sets / "growing", [])
    (growing.folder / "lang=en").mkdir()
    shutil.copy(files[0], growing.folder / "lang=en")
    with pytest.raises(ConfigError, match="growing is still being written"):
        build_index(growing.folder / "lang=*" / "*.parquet")


def test_files_that_are_named_one_by_one_are_what_they_are(writer: Writer) -> None:
    writer.show(3)
    named = sorted(writer.folder.glob("*.parquet"))
    assert [file.path for file in build_index(named).files] == [path.name for path in named]


def test_a_glob_is_followed_as_its_folder_is(writer: Writer, files: list[Path], tmp_path: Path) -> None:
    with opened(copy_finished(files, tmp_path / "finished")) as loader:
        expected = take([loader], 200)
    writer.show(2)
    writer.put("other-0.parquet", b"which the glob does not name")
    thread = after(0.2, writer.finish)
    with opened(writer.folder / "part-*.parquet") as loader:
        found = take([loader], 60)
        state = loader.state_dict()
    thread.join()
    with opened(writer.folder / "part-*.parquet", follow=False) as loader:
        loader.load_state_dict(state)
        assert np.array_equal([*found, *take([loader], 140)], expected)


def test_a_set_below_a_followed_folder_that_is_still_written_keeps_it_from_being_complete(
    writer: Writer, sets: Path
) -> None:
    writer.show(3)
    (sets / "_COMPLETE").touch()
    for source in (sets, sets / "*" / "*.parquet"):
        with opened(source, complete_after=0, wait_seconds=0) as loader:
            with pytest.raises(TypeError, match="still being written"):
                len(loader)
            with pytest.raises(GrowthTimeoutError, match="a set in a folder below is still being written"):
                take([loader], 1000)
    writer.finish()
    with opened(sets / "*" / "*.parquet") as loader:
        assert len(loader)


# ── the ways out of a refusal ────────────────────────────────────────────────────────────────────────────────────────


def test_each_way_out_of_a_refusal_works_and_gives_the_order_that_it_says(
    writer: Writer, files: list[Path], tmp_path: Path
) -> None:
    finished = copy_finished(files, tmp_path / "finished")
    with opened(finished) as loader:
        as_stored = take([loader], 60)
    with opened(finished, follow=False) as loader:
        over_all_of_it = take([loader], 60)
    assert not np.array_equal(as_stored, over_all_of_it)
    writer.show(4)
    with pytest.raises(ConfigError) as refused:
        opened(writer.folder, follow=False)
    told = str(refused.value)
    assert "to read it while it grows, with follow=True (--follow of commands that look at a run), first in the" in told
    with opened(writer.folder) as loader:
        found = take([loader], 10)
        state = loader.state_dict()
    assert "or wait until it is complete" in told
    assert "for an order that is shuffled over all of it" in told
    writer.finish()
    with opened(writer.folder, follow=False) as loader:
        assert np.array_equal(take([loader], 60), over_all_of_it)
    assert "A run that has followed it goes on either way, in its order" in told
    for follow in (True, False):
        with opened(writer.folder, follow=follow) as loader:
            loader.load_state_dict(state)
            assert np.array_equal([*found, *take([loader], 50)], as_stored)


def test_each_way_out_of_a_wait_works_and_gives_the_order_that_it_says(files: list[Path], tmp_path: Path) -> None:
    finished = copy_finished(files, tmp_path / "finished")
    with opened(finished) as loader:
        expected = take([loader], 200)
    with opened(finished, follow=False) as loader:
        other = take([loader], 60)
    (finished / "_manifest.json").unlink()
    with opened(finished, wait_seconds=0) as loader:
        with pytest.raises(GrowthTimeoutError) as refused:
            for _ in loader:
                pass
        state = loader.state_dict()
    told = str(refused.value)
    assert "has not grown so far (wait_seconds is 0), and is not complete" in told
    found = expected[: state["position"] // OPTIONS["seq_len"]]
    assert "or give complete_after" in told
    assert "or leave out follow: a state keeps its run's order, and a new run has another one" in told
    for ways in ({"complete_after": 0}, {"follow": False}, {}):
        if not ways:
            assert "say so by a file _COMPLETE" in told
            (finished / "_COMPLETE").touch()
        with opened(finished, **ways) as loader:
            loader.load_state_dict(state)
            assert np.array_equal([*found, *take([loader], 200 - len(found))], expected)
    with opened(finished, follow=False) as loader:
        assert np.array_equal(take([loader], 60), other)


# ── other formats ────────────────────────────────────────────────────────────────────────────────────────────────────


def write_megatron_pairs(folder: Path, files: list[Any]) -> None:
    folder.mkdir()
    for number, documents in enumerate(files):
        write_megatron(folder / f"part-{number}", [[document] for document in documents])


def write_bare_shards(folder: Path, files: list[Any]) -> None:
    write_shards(folder, files, eos_id=0, meta=False)


def write_arrow_files(folder: Path, files: list[Any]) -> None:
    folder.mkdir()
    for number, documents in enumerate(files):
        table = pa.table({"tokens": pa.array([list(map(int, each)) for each in documents], pa.list_(pa.int32()))})
        with pa.ipc.new_file(str(folder / f"data-{number:05}.arrow"), table.schema) as writer:
            writer.write_table(table)
    (folder / "state.json").write_text('{"_fingerprint": "0"}')


@pytest.mark.parametrize(
    ("write", "more"),
    [
        (write_megatron_pairs, {}),
        (write_bare_shards, {"eos_id": 0, "raw_dtype": "uint16"}),
        (write_arrow_files, {}),
    ],
)
def test_sets_of_other_formats_are_followed_and_what_lies_beside_their_files_may_come_first(
    write: Callable[[Path, list[Any]], None], more: dict[str, Any], tmp_path: Path
) -> None:
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    write(whole, random_files(np.random.default_rng(8)))
    growing.mkdir()
    data = sorted(path.name for path in whole.iterdir() if path.suffix in (".bin", ".arrow"))
    indexes = [path.name for path in whole.iterdir() if path.suffix == ".idx"]
    for name in {path.name for path in whole.iterdir()} - set(data) - set(indexes):
        shutil.copy(whole / name, growing)

    def show(name: str) -> None:
        shutil.copy(whole / name, growing / f".{name}")
        (growing / f".{name}").rename(growing / name)

    shape: dict[str, Any] = {"seq_len": 8, "lanes": 2, "window": 1, **more}
    (whole / "_COMPLETE").touch()
    with opened(whole, **shape) as loader:
        expected = take([loader], 200)
    for name in [*indexes, data[0]]:  # of a pair, the index comes first
        show(name)
    with opened(growing, **shape) as loader, opened(f"{growing}/*{Path(data[0]).suffix}", **shape) as globbed:
        found = take([loader], 1)
        assert np.array_equal(take([globbed], 1), found)
        for name in data[1:]:
            show(name)
        (growing / "_COMPLETE").touch()
        assert np.array_equal([*found, *take([loader], 199)], expected)
        assert np.array_equal([*found, *take([globbed], 199)], expected)


def test_what_makes_another_thing_of_files_that_were_there_is_refused(tmp_path: Path) -> None:
    write_megatron_pairs(tmp_path / "set", random_files(np.random.default_rng(8))[:1])
    index = (tmp_path / "set" / "part-0.idx").rename(tmp_path / "part-0.idx")
    with opened(tmp_path / "set", seq_len=8, lanes=2, window=1, raw_dtype="uint16", eos_id=0) as loader:
        take([loader], 1)
        index.rename(tmp_path / "set" / "part-0.idx")
        with pytest.raises(ConfigError, match=r"set cannot be followed: .*part-0\.idx"):
            for _ in loader:
                pass


def test_a_stream_that_is_not_closed_is_no_whole_file_of_a_set_that_grows(tmp_path: Path) -> None:
    table = pa.table({"tokens": [list(range(20))] * 60})
    sized: dict[str, Any] = {"seq_len": 8, "lanes": 1, "window": 1}
    told = f"{tmp_path}/{{}}.arrow: is a stream without the mark of its end"

    def begin(path: Path) -> tuple[Any, Any]:
        file = path.open("wb")
        writer = pa.ipc.new_stream(file, table.schema)
        writer.write_table(table, max_chunksize=20)
        file.flush()
        return file, writer

    file, writer = begin(tmp_path / "0.arrow")
    assert build_index(tmp_path).total_tokens == 1200  # without follow it is what it is, and no cache keeps that
    with pytest.raises(DataError) as refused:
        opened(tmp_path, **sized)
    assert str(refused.value).startswith(told.format(0))
    with file:
        writer.close()
    with opened(tmp_path, **sized, epochs=1) as loader:
        batches = take([loader], 100)
        file, writer = begin(tmp_path / "1.arrow")
        with pytest.raises(DataError) as refused:
            take([loader], 1000)
        assert str(refused.value).startswith(told.format(1))
        state = loader.state_dict()
        with file:
            writer.close()
        (tmp_path / "_COMPLETE").touch()
    with opened(tmp_path, **sized, epochs=1, follow=False) as loader:
        loader.load_state_dict(state)
        given = state["position"] // 8
        assert len(batches) <= given
        assert given + len(take([loader], 1000)) == 2 * 1200 // 8


# ── files that come later ────────────────────────────────────────────────────────────────────────────────────────────


def damaged(path: Path) -> None:
    path.write_bytes(b"PAR1 and no more")


def of_no_bytes(path: Path) -> None:
    path.touch()


def of_another_column(path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1]], "loss_mask": [[1]]}), path)


def of_floats(path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1.5]], "labels": [[1]]}), path)


def of_other_labels(path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1]], "labels": [[1.5]]}), path)


def of_large_ids(path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[60_000]], "labels": [[1]]}), path)


@pytest.mark.parametrize("make", [damaged, of_no_bytes, of_another_column, of_floats, of_other_labels, of_large_ids])
def test_a_bad_file_that_comes_later_is_named_with_its_folder_and_may_be_mended(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    def good(path: Path) -> None:
        pq.write_table(pa.table({"tokens": [[1] * 60] * 40, "labels": [[2] * 60] * 40}), path, row_group_size=20)

    good(tmp_path / "0.parquet")
    with opened(tmp_path, window=1, aligned=["labels"], vocab_size=60_000, epochs=1) as loader:
        take([loader], 5)
        make(tmp_path / "1.parquet")
        with pytest.raises((ConfigError, DataError)) as refused:
            for _ in loader:
                pass
        assert str(refused.value).startswith(f"{tmp_path}/1.parquet")
        assert re.search(
            r"[^.?](\.|\?) It has come to a set that is followed: mend it or take it out$", str(refused.value)
        )
        assert "as the source" not in str(refused.value)  # a list of files cannot be followed
        good(tmp_path / "1.parquet")
        (tmp_path / "_COMPLETE").touch()
        count = loader.state_dict()["position"] // 16
        assert count + sum(1 for _ in loader) == -(-2 * 40 * 60 // (16 * 8))


def test_what_is_found_in_a_later_file_when_it_is_decoded_is_named_with_its_folder_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1] * 60] * 40}), tmp_path / "0.parquet")
    with opened(tmp_path, window=1) as loader:
        take([loader], 5)
        pq.write_table(pa.table({"tokens": [[1] * 30, [1, None, 1] * 20] * 40}), tmp_path / "1.parquet")
        with pytest.raises(DataError) as refused:
            take([loader], 1000)
    where = f"{tmp_path}/1.parquet, row group 0, column 'tokens': row 1 has a null inside its document"
    assert str(refused.value).startswith(where)


def test_after_a_change_of_time_alone_a_new_loader_goes_on_from_the_state_as_the_error_says(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tokens": [list(range(60))] * 40}), tmp_path / "0.parquet")
    (tmp_path / "_COMPLETE").touch()
    with opened(tmp_path, window=1) as loader:
        expected = take([loader], 30)
    (tmp_path / "_COMPLETE").unlink()
    with opened(tmp_path, window=1) as loader:
        found = take([loader], 5)
        state = loader.state_dict()
        os.utime(tmp_path / "0.parquet")
        with pytest.raises(FileChangedError, match="if it holds what it held, a new loader goes on from the state"):
            take([loader], 1000)
    (tmp_path / "_COMPLETE").touch()
    with opened(tmp_path, window=1) as loader:
        loader.load_state_dict(state)
        assert np.array_equal([*found, *take([loader], 25)], expected)


def test_a_run_that_its_memory_has_ended_resumes_exactly_with_more(tmp_path: Path) -> None:
    made = []
    for number, count in enumerate((10, 10, 10, 80_000)):
        made.append(tmp_path / f"part-{number}.parquet")
        documents = [[number * 1000 + place for place in range(30)]] * count
        pq.write_table(pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}), made[-1])
    with opened(copy_finished(made, tmp_path / "finished"), window=1) as loader:
        expected = take([loader], 200)
    growing = Writer(tmp_path / "growing", made)
    growing.show(2)
    with opened(growing.folder, window=1, budget_bytes=20_000_000) as loader:
        found = take([loader], 2)
        growing.finish()
        batches = iter(loader)
        with pytest.raises(ConfigError, match="budget_bytes 20,000,000 is too small"):
            while True:
                found.append(next(batches).tokens)
        with pytest.raises(ConfigError, match="budget_bytes 20,000,000 is too small"):  # and so it stays
            next(iter(loader))
        state = loader.state_dict()
        assert state["position"] == len(found) * 16
    for follow in (True, False):
        with opened(growing.folder, window=1, budget_bytes=500_000_000, follow=follow) as loader:
            loader.load_state_dict(state)
            assert np.array_equal([*found, *take([loader], 200 - len(found))], expected)


def test_a_source_of_a_mixture_that_needs_more_memory_than_there_is_says_so_each_time(tmp_path: Path) -> None:
    made = []
    for number, count in enumerate((10, 80_000)):
        made.append(tmp_path / f"part-{number}.parquet")
        pq.write_table(pa.table({"tokens": pa.array([list(range(30))] * count, pa.list_(pa.int32()))}), made[-1])
    growing = Writer(tmp_path / "growing", made)
    growing.show(1)
    other = copy_finished(made[:1], tmp_path / "other")
    sources = {"growing": growing.folder, "other": Component(other, follow=False)}
    with opened(sources, weights={"growing": 0.9, "other": 0.1}, window=1, budget_bytes=20_000_000) as loader:
        growing.finish()
        for _ in range(2):
            with pytest.raises(ConfigError, match="budget_bytes 20,000,000 is too small"):
                take([loader], 200)


# ── mixtures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_two_sources_that_grow_one_ends_while_the_other_is_waited_for(files: list[Path], tmp_path: Path) -> None:
    others = make_files(tmp_path / "others", 5, 4)

    def mixture(ending: Path, lasting: Path) -> ParquetLoader:
        sources = {"ending": Component(ending, max_epochs=1), "lasting": lasting}
        shares = {"ending": 0.5, "lasting": 0.5}
        return opened(sources, weights=shares, exhausted="redistribute", wait_seconds=0)

    with mixture(copy_finished(files[:3], tmp_path / "a"), copy_finished(others, tmp_path / "b")) as loader:
        expected = take([loader], 250)
    ending, lasting = Writer(tmp_path / "ending", files[:3]), Writer(tmp_path / "lasting", others)
    ending.show()
    lasting.show()
    steps = [ending.finish, lasting.show, lasting.finish]
    found: list[np.ndarray] = []
    with mixture(ending.folder, lasting.folder) as loader:
        while len(found) < 250:
            try:
                found.append(next(iter(loader)).tokens)
            except GrowthTimeoutError:
                steps.pop(0)()
    assert not steps
    assert np.array_equal(found, expected)


# ── the first file ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a folder of other files", "a glob"])
def test_the_first_file_is_waited_for_and_that_is_said_at_once(
    there: str, files: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(copy_finished(files, tmp_path / "finished")) as loader:
        expected = take([loader], 5)
    folder = tmp_path / "set" / "growing"
    if there != "nothing":
        folder.mkdir(parents=True)
    if there == "a folder of other files":
        (folder / "notes.txt").touch()

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        Writer(folder, files).finish()

    thread = after(0.3, write)
    source = folder / "*.parquet" if there == "a glob" else folder
    with opened(source) as loader:
        assert np.array_equal(take([loader], 5), expected)
    thread.join()
    (told,) = [record.message for record in caplog.records if "waiting for" in record.message]
    assert told.startswith(f"waiting for the first file of {source}, up to 20 s (wait_seconds): ")
    assert {"nothing": "there is no", "a folder of other files": "notes.txt"}.get(there, "found nothing") in told


def test_patience_with_a_first_file_ends_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(GrowthTimeoutError, match=r"no file of .*typo has come for 0.05 s .*: there is no .*typo"):
        opened(tmp_path / "typo", wait_seconds=0.05)
    # Nothing is never complete, whatever time goes by.
    with pytest.raises(GrowthTimeoutError, match=r"no file of .*typo has come"):
        opened(tmp_path / "typo", wait_seconds=0.05, complete_after=0)


def test_a_failure_before_the_first_file_is_told_at_once(writer: Writer) -> None:
    writer.beat("failed", "no such tokenizer")
    with pytest.raises(WriterFailedError, match="no such tokenizer"):
        opened(writer.folder)


def test_a_set_that_is_said_to_be_complete_without_a_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(PathNotFoundError, match="holds no Parquet"):
        opened(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="an interrupt of the main thread")
def test_an_interrupt_ends_the_wait_for_a_first_file(tmp_path: Path) -> None:
    thread = after(0.2, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path / "nothing")
    thread.join()


def test_every_way_to_a_set_waits_for_its_first_file(files: list[Path], tmp_path: Path) -> None:
    finished = copy_finished(files, tmp_path / "finished")
    more = {"weights": {"new": 1, "old": 1}, "follow": False}

    def mixture(new: Path) -> list[np.ndarray]:
        with opened({"new": Component(new, follow=True), "old": finished}, **more) as loader:
            return take([loader], 3)

    def tensors(new: Path) -> list[np.ndarray]:
        with TokenDataset(str(new), **OPTIONS) as dataset:
            batches = iter(dataset)
            return [next(batches)["input_ids"].numpy() for _ in range(3)]

    for number, ways in enumerate((mixture, tensors)):
        growing = tmp_path / str(number)
        thread = after(0.2, lambda growing=growing: Writer(growing, files).finish())
        assert np.array_equal(ways(growing), ways(finished))
        thread.join()


def test_ranks_may_come_before_the_first_file(files: list[Path], tmp_path: Path) -> None:
    with opened(copy_finished(files, tmp_path / "finished")) as loader:
        expected = take([loader], 5)
    found: dict[int, ParquetLoader] = {}

    def begin(rank: int) -> None:
        found[rank] = opened(tmp_path / "growing", rank=rank, world_size=2)

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    Writer(tmp_path / "staged", files).finish()
    assert not found
    (tmp_path / "staged").rename(tmp_path / "growing")
    for thread in threads:
        thread.join()
    with found[0], found[1]:
        assert np.array_equal(take([found[0], found[1]], 5), expected)
