"""A run that followed a set while it grew has the batches of a run over the finished set."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import subprocesses
from growing_sets import Writer, copy_finished, digest, make_files, quick_looks, run_of_ranks, take, total_of
from idle import wait_until_idle

from parquet_loader import (
    CheckpointMismatchError,
    Component,
    ConfigError,
    FileChangedError,
    GrowthTimeoutError,
    LoaderClosedError,
    ParquetLoader,
    SourceExhaustedError,
    WriterFailedError,
    build_index,
    merge_checkpoints,
)
from parquet_loader.index.follow import Follower
from parquet_loader.storage.growing import GROWING_NAME, Growing

__all__ = ["quick_looks"]

pytestmark = pytest.mark.usefixtures("quick_looks")

OPTIONS: dict[str, Any] = {"seq_len": 16, "lanes": 8, "window": 3, "seed": 7, "vocab_size": 60_000, "follow": True}
RUNS = int(os.environ.get("FOLLOW_RUNS", "4"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_files(tmp_path_factory.mktemp("files"), 0)


@pytest.fixture
def finished(files: list[Path], tmp_path: Path) -> Path:
    return copy_finished(files, tmp_path / "finished")


@pytest.fixture
def writer(files: list[Path], tmp_path: Path) -> Writer:
    return Writer(tmp_path / "growing", files)


def opened(source: object, **changes: Any) -> ParquetLoader:
    return ParquetLoader(source, **{**OPTIONS, **changes})  # type: ignore[arg-type]


def batches_of(files: list[Path], epochs: float, **changes: Any) -> int:
    options = {**OPTIONS, **changes}
    return int(epochs * total_of(files) / (options["seq_len"] * options["lanes"]))


# ── what is delivered ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(RUNS))
def test_whatever_the_timing_of_writer_and_readers_the_batches_are_those_of_the_finished_set(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    made = make_files(tmp_path / "files", seed, chance.randint(2, 9))
    shape = {
        "window": chance.randint(1, 5),
        "seq_len": chance.choice((8, 16, 33)),
        "overlap": chance.randint(0, 1),
        "shuffle": chance.random() < 0.9,
        "eos_id": chance.choice((None, 9)),
    }
    count = batches_of(made, chance.uniform(0.9, 2.4), **shape) + 1
    with opened(copy_finished(made, tmp_path / "finished"), **shape) as loader:
        expected = digest(take([loader], count))
    growing = Writer(tmp_path / "growing", made)
    stop = threading.Event()
    thread = threading.Thread(target=growing.run, args=(seed, stop, 0.05))

    def lives():  # type: ignore[no-untyped-def]
        left = count
        while left:
            some = min(left, chance.randint(1, max(1, count // 3)))
            complete = not thread.is_alive()
            # What begins the run follows, also where the writer was done before: another order would begin else.
            follows = left == count or not complete or chance.random() < 0.5
            yield chance.choice((1, 2, 4, 8)), some, follows
            left -= some

    thread.start()
    try:
        assert digest(run_of_ranks(lambda **more: opened(growing.folder, **shape, **more), lives())) == expected
    finally:
        stop.set()
        thread.join()


def test_batches_come_as_soon_as_a_window_is_whole(writer: Writer, files: list[Path], finished: Path) -> None:
    with opened(finished) as loader:
        expected = take([loader], 4)
    while len(build_partial(writer)) < 3:
        writer.show()
    with opened(writer.folder, wait_seconds=0) as loader:
        assert np.array_equal(take([loader], 4), expected)


def build_partial(writer: Writer) -> list[int]:
    """The row groups that are shown."""
    import pyarrow.parquet as pq

    counts = [pq.ParquetFile(path).num_row_groups for path in sorted(writer.folder.glob("*.parquet"))]
    return [group for count in counts for group in range(count)]


def test_epoch_0_is_as_stored_and_later_ones_are_permuted(files: list[Path], finished: Path) -> None:
    with opened(finished, shuffle=False) as stored, opened(finished, window=1) as loader:
        assert np.array_equal(loader._order.group_order(0), stored._order.group_order(0))
        assert not np.array_equal(loader._order.group_order(1), stored._order.group_order(1))


def test_the_window_that_is_chosen_depends_on_the_first_file_alone(writer: Writer, finished: Path) -> None:
    with opened(finished, window=None) as whole:
        writer.show()
        with opened(writer.folder, window=None) as begun:
            assert begun._order.window == whole._order.window > 1


def test_ranks_that_see_the_set_grow_at_different_moments_have_equal_states(writer: Writer, finished: Path) -> None:
    with opened(finished) as loader:
        expected = take([loader], 20)
    writer.show(2)
    early = opened(writer.folder, rank=0, world_size=2)
    writer.show(3)
    late = opened(writer.folder, rank=1, world_size=2)
    writer.finish()
    with early, late:
        for step in range(20):
            assert np.array_equal(take([early, late], 1)[0], expected[step])
            assert early.state_dict() == late.state_dict()
        merge_checkpoints([early.checkpoint(), late.checkpoint()])


def test_a_run_of_one_epoch_ends_with_its_tail_once_the_end_is_known(
    writer: Writer, files: list[Path], finished: Path
) -> None:
    for tail in ("pad", "drop"):
        with opened(finished, epochs=1, tail=tail, follow=True) as loader:
            expected = [
                (batch.tokens.tobytes(), None if batch.lengths is None else batch.lengths.tolist()) for batch in loader
            ]
        growing = Writer(writer.folder.with_name(tail), files)
        growing.show(3)
        thread = threading.Timer(0.2, growing.finish)
        thread.start()
        with opened(growing.folder, epochs=1, tail=tail) as loader:
            found = [
                (batch.tokens.tobytes(), None if batch.lengths is None else batch.lengths.tolist()) for batch in loader
            ]
            assert found == expected
            assert list(loader) == []
        thread.join()


def all_of(loader: ParquetLoader) -> list[tuple[bytes, list[int] | None]]:
    """The rest of an epoch, with what of each row are tokens."""
    return [(batch.tokens.tobytes(), None if batch.lengths is None else batch.lengths.tolist()) for batch in loader]


def test_epoch_is_0_and_there_is_no_length_until_the_set_is_complete(writer: Writer, files: list[Path]) -> None:
    writer.show(3)
    with opened(writer.folder) as loader:
        batches = list(itertools.islice(loader, 5))
        assert {batch.epoch for batch in batches} == {0}
        with pytest.raises(TypeError, match="still being written"):
            len(loader)
        writer.finish()
        wait_for(lambda: length_of(loader) is not None)
        assert abs(len(loader) - batches_of(files, 1)) <= 1
        assert sum(1 for _ in loader) + 5 == len(loader) or loader.epoch == 1


def length_of(loader: ParquetLoader) -> int | None:
    growth = loader._config.growth
    if growth is not None:
        growth.look()
    try:
        return len(loader)
    except TypeError:
        return None


def until_error(loader: ParquetLoader, *errors: type[Exception], most: int = 10_000) -> tuple[list[np.ndarray], str]:
    """The batches up to an error, and what it says; nothing where none comes."""
    found: list[np.ndarray] = []
    batches = iter(loader)
    while len(found) < most:
        try:
            found.append(next(batches).tokens)
        except errors as error:
            return found, str(error)
    return found, ""


def wait_for(happens: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_other_processes_decode_what_comes(writer: Writer, finished: Path) -> None:
    with opened(finished) as loader:
        expected = take([loader], 30)
    writer.show(2)
    thread = threading.Timer(0.5, writer.finish)
    thread.start()
    with opened(writer.folder, processes=1) as loader:
        assert np.array_equal(take([loader], 30), expected)
    thread.join()


def test_packed_rows_are_followed(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = []
    for number in range(5):
        rows = [[number * 1000 + row * 10 + k for k in range(8)] for row in range(40)]
        made.append(tmp_path / f"part-{number}.parquet")
        pq.write_table(pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))}), made[-1], row_group_size=10)
    shape = {"packing": "rows", "seq_len": 8}
    with opened(copy_finished(made, tmp_path / "finished"), **shape) as loader:
        expected = take([loader], 40)
    growing = Writer(tmp_path / "growing", made)
    growing.show(2)
    thread = threading.Timer(0.2, growing.finish)
    thread.start()
    with opened(growing.folder, **shape) as loader:
        found = take([loader], 12)
        state = loader.state_dict()
    thread.join()
    with opened(growing.folder, **shape, follow=False) as loader:
        loader.load_state_dict(state)
        assert np.array_equal([*found, *take([loader], 28)], expected)


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_patience_ends_with_one_error_and_the_loader_goes_on_when_asked_again(
    writer: Writer, finished: Path, files: list[Path]
) -> None:
    with opened(finished) as loader:
        expected = take([loader], 40)
    writer.show(2)
    with opened(writer.folder, wait_seconds=0.05) as loader:
        found, told = until_error(loader, GrowthTimeoutError)
        assert "has not grown for 0.05 s" in told
        assert "its writer lives: give a longer wait_seconds" in told
        state = loader.state_dict()
        writer.finish()
        found += take([loader], 40 - len(found))
        assert np.array_equal(found, expected)
        assert loader.stats()["wait_growth_seconds"] > 0
    with opened(writer.folder, follow=False) as loader:
        loader.load_state_dict(state)
        taken = state["position"] // OPTIONS["seq_len"]
        assert np.array_equal(take([loader], 40 - taken), expected[taken:])


def test_a_failure_of_the_writer_is_told_with_its_reason(writer: Writer) -> None:
    writer.show(2)
    writer.beat("failed", "the disk is full")
    with opened(writer.folder) as loader, pytest.raises(WriterFailedError, match=r"the disk is full.*again to resume"):
        for _ in loader:
            pass


def test_a_writer_whose_heart_stands_still_is_taken_for_dead(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "SILENT_SECONDS", 0.2)
    writer.show(2)
    with opened(writer.folder) as loader, pytest.raises(WriterFailedError, match="nothing was heard of the writer"):
        for _ in loader:
            pass


def test_a_writer_that_was_run_again_is_followed_again(writer: Writer, finished: Path) -> None:
    with opened(finished) as loader:
        expected = take([loader], 40)
    writer.show(2)
    writer.beat("failed", "for now")
    with opened(writer.folder) as loader:
        found, _ = until_error(loader, WriterFailedError)
        writer.beat()
        threading.Timer(0.1, writer.finish).start()
        assert np.array_equal([*found, *take([loader], 40 - len(found))], expected)


def test_a_loader_that_waits_ends_when_it_is_closed(writer: Writer) -> None:
    writer.show(2)
    loader = opened(writer.folder)
    told: list[BaseException] = []

    def consume() -> None:
        try:
            for _ in loader:
                pass
        except BaseException as error:
            told.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    growth = loader._config.growth
    assert growth is not None
    wait_for(lambda: growth._told)
    loader.close()
    consumer.join(10)
    assert not consumer.is_alive()
    assert isinstance(told[0], LoaderClosedError)


def test_waiting_is_said_once(writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    writer.show(2)
    with opened(writer.folder, wait_seconds=0.05) as loader:
        for _ in range(3):
            with pytest.raises(GrowthTimeoutError):
                for _ in loader:
                    pass
    assert [record.message for record in caplog.records if "waiting for" in record.message] != []
    assert sum("waiting for" in record.message for record in caplog.records) == 1


def test_the_first_file_is_waited_for(writer: Writer, finished: Path) -> None:
    with opened(finished) as loader:
        expected = take([loader], 5)
    thread = threading.Timer(0.1, writer.finish)
    thread.start()
    with opened(writer.folder) as loader:
        assert np.array_equal(take([loader], 5), expected)
    thread.join()


PATIENT_RANK = """
    import json, sys
    from pathlib import Path

    from parquet_loader import ParquetLoader

    place, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    loader = ParquetLoader(place / "growing", **options)
    for step, batch in enumerate(loader):
        got = place / f"{step}-{options['rank']}"
        got.with_suffix(".rows").write_bytes(batch.tokens.tobytes())
        got.with_suffix(".part").write_bytes(loader.checkpoint())
        got.touch()
"""


def test_a_rank_that_gives_up_first_ends_by_itself_with_one_error_and_the_job_resumes_exactly(
    writer: Writer, finished: Path, tmp_path: Path
) -> None:
    with opened(finished) as loader:
        expected = take([loader], 60)
    writer.show(3)
    ranks = [
        subprocesses.start(
            PATIENT_RANK,
            tmp_path,
            json.dumps({**OPTIONS, "rank": rank, "world_size": 2, "wait_seconds": seconds}),
        )
        for rank, seconds in enumerate((600, 0.1))
    ]
    _, told = ranks[1].communicate(timeout=subprocesses.PROGRAM_SECONDS)
    assert ranks[1].returncode == 1
    assert told.count("Traceback") == 1
    assert "GrowthTimeoutError" in told.splitlines()[-1]
    steps = len(list(tmp_path.glob("*-1")))
    wait_for(lambda: len(list(tmp_path.glob("*-0"))) == steps)
    assert ranks[0].poll() is None
    ranks[0].terminate()
    assert "Traceback" not in ranks[0].communicate(timeout=subprocesses.PROGRAM_SECONDS)[1]
    found = [b"".join((tmp_path / f"{step}-{rank}.rows").read_bytes() for rank in range(2)) for step in range(steps)]
    assert found == [batch.tobytes() for batch in expected[:steps]]
    checkpoint = merge_checkpoints((tmp_path / f"{steps - 1}-{rank}.part").read_bytes() for rank in range(2))
    thread = threading.Timer(0.2, writer.finish)
    thread.start()
    with ExitStack() as stack:
        loaders = [stack.enter_context(opened(writer.folder, rank=rank, world_size=4)) for rank in range(4)]
        for loader in loaders:
            loader.resume(checkpoint)
        assert np.array_equal(take(loaders, 60 - steps), expected[steps:])
    thread.join()


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_set_that_grows_is_refused_by_whoever_does_not_follow_it(writer: Writer) -> None:
    writer.show(3)
    for refuse in (lambda: opened(writer.folder, follow=False), lambda: build_index(writer.folder)):
        with pytest.raises(ConfigError, match=r"still being written.*follow=True.*--follow.*wait until it is complete"):
            refuse()
    writer.beat("failed", "the disk is full")
    with pytest.raises(ConfigError, match=r"its writer has failed: the disk is full; .*run the writer again"):
        build_index(writer.folder)
    writer.finish()
    opened(writer.folder, follow=False).close()
    writer.beat()  # a folder with a manifest is complete whatever else lies there
    opened(writer.folder, follow=False).close()


def test_complete_after_without_follow_is_refused(finished: Path, files: list[Path]) -> None:
    followed = Component(files[0].parent, follow=True)
    both: dict[str, Any] = {"weights": {"a": 1, "b": 1}, "follow": False}
    refused: list[tuple[object, dict[str, Any]]] = [
        (finished, {"follow": False, "complete_after": 5}),
        ({"a": finished, "b": finished}, {**both, "complete_after": 5}),
        ({"a": Component(finished, complete_after=5), "b": followed}, both),
    ]
    for source, options in refused:
        with pytest.raises(ConfigError, match=r"complete_after=5 .* give follow=True too, or leave it out"):
            opened(source, **options)
    opened({"a": finished, "b": followed}, **both, complete_after=5).close()


@pytest.mark.parametrize("what", ["changed", "gone", "early"])
def test_a_file_that_is_not_added_at_the_end_is_refused_by_name(what: str, writer: Writer) -> None:
    writer.show(3)
    first = writer.folder / "part-00000.parquet"
    with opened(writer.folder) as loader:
        if what == "changed":
            writer.put(first.name, writer.left[0].read_bytes())
        elif what == "gone":
            first.unlink()
        else:
            writer.put("part-00000a.parquet", writer.left[0].read_bytes())
        name = "part-00000a" if what == "early" else "part-00000"
        with pytest.raises(FileChangedError, match=name):
            for _ in loader:
                pass


def test_a_file_of_other_columns_or_ids_is_refused_when_it_comes(writer: Writer, tmp_path: Path) -> None:
    writer.show(2)
    with opened(writer.folder, vocab_size=100_000) as loader:
        other = make_files(tmp_path / "other", 1, 1, column="text")[0]
        writer.put("part-00007.parquet", other.read_bytes())
        with pytest.raises(ConfigError, match=r"part-00007.parquet has no column 'tokens'"):
            for _ in loader:
                pass


def test_only_one_folder_or_glob_is_followed(finished: Path) -> None:
    for source in ([finished, finished.with_name("other")], finished / "part-00000.parquet"):
        with pytest.raises(ConfigError, match="one folder or glob"):
            opened(source)
    with pytest.raises(ConfigError, match="index="):
        opened(finished, index=build_index(finished))


def test_row_groups_that_outgrow_the_budget_are_an_error_at_their_batch(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = []
    for number, count in enumerate((10, 10, 10, 200_000)):
        made.append(tmp_path / f"part-{number}.parquet")
        pq.write_table(pa.table({"tokens": pa.array([list(range(30))] * count, pa.list_(pa.int32()))}), made[-1])
    growing = Writer(tmp_path / "growing", made)
    growing.show(2)
    with opened(growing.folder, window=1, budget_bytes=20_000_000) as loader:
        assert len(take([loader], 4)) == 4
        growing.finish()
        with pytest.raises(ConfigError, match="budget_bytes 20,000,000 is too small"):
            for _ in loader:
                pass
    with opened(growing.folder, window=1, budget_bytes=500_000_000) as loader:
        assert len(take([loader], 100)) == 100


def test_an_engine_that_has_become_too_small_is_replaced(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = []
    for number, count in enumerate((10, 10, 10, 20_000, 10)):
        made.append(tmp_path / f"part-{number}.parquet")
        documents = [[number * 1000 + place for place in range(30)]] * count
        pq.write_table(pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}), made[-1])
    with opened(copy_finished(made, tmp_path / "finished"), window=1) as loader:
        expected = digest(take([loader], 6000))
    growing = Writer(tmp_path / "growing", made)
    growing.show(2)
    with opened(growing.folder, window=1) as loader:
        found = take([loader], 2)
        growing.finish()
        assert digest([*found, *take([loader], 5998)]) == expected


# ── sets of other writers ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["_COMPLETE", "_SUCCESS"])
def test_a_file_says_that_a_set_of_another_writer_is_complete(name: str, finished: Path) -> None:
    with opened(finished) as loader:
        expected = take([loader], 150)
    (finished / "_manifest.json").unlink()
    with opened(finished, wait_seconds=0.05) as loader:
        with pytest.raises(GrowthTimeoutError, match="_COMPLETE"):
            for _ in loader:
                pass
        (finished / name).touch()
        loader.load_state_dict(opened_state(finished))
        assert np.array_equal(take([loader], 150), expected)


def opened_state(folder: Path) -> dict[str, Any]:
    with opened(folder) as loader:
        return loader.state_dict()


def test_a_set_counts_as_complete_after_so_long_without_growth(finished: Path) -> None:
    (finished / "_manifest.json").unlink()
    for path in finished.iterdir():
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    with opened(finished, complete_after="1h") as loader:
        assert len(loader)
    with opened(finished, complete_after="3h") as loader, pytest.raises(TypeError):
        len(loader)


def test_a_set_that_counts_as_complete_in_a_known_time_is_waited_for_until_then(
    finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (finished / "_manifest.json").unlink()
    for path in finished.iterdir():
        os.utime(path)
    with opened(finished, epochs=1, complete_after=1, wait_seconds=0.05) as loader:
        assert len(take([loader], 1000)) == len(loader)
    assert "it counts as complete in 1 s (complete_after) if it does not grow" in caplog.text


def test_a_file_of_a_time_to_come_is_told_of(finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    (finished / "_manifest.json").unlink()
    *others, last = sorted(finished.iterdir())
    for path in others:
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    os.utime(last, (time.time() + 7200, time.time() + 7200))
    with opened(finished, complete_after=1, wait_seconds=0.05) as loader:
        _, told = until_error(loader, GrowthTimeoutError)
        assert re.search(r"its last file was changed 7,[12]\d\d s in the future, by this machine's clock", told)
        assert "give complete_after" not in told
        assert "in the future" in caplog.text
        os.utime(last, (time.time() - 1, time.time() - 1))
        # A file that has another time has changed, and it is said which.
        with pytest.raises(FileChangedError, match="part-00007"):
            take([loader], 1000)
    with opened(finished, complete_after=1) as loader:
        assert len(loader)


# ── states ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_state_of_another_beginning_is_refused_and_one_that_has_grown_since_is_fine(
    writer: Writer, files: list[Path], tmp_path: Path
) -> None:
    writer.show(3)
    with opened(writer.folder) as loader:
        take([loader], 3)
        state = loader.state_dict()
    writer.finish()
    with opened(writer.folder) as loader:
        loader.load_state_dict(state)
    other = copy_finished(make_files(tmp_path / "others", 5), tmp_path / "other")
    for follow in (True, False):
        with opened(other, follow=follow) as loader, pytest.raises(CheckpointMismatchError, match="fingerprint"):
            loader.load_state_dict(state)


def test_a_state_of_epoch_1_is_of_the_whole_set(files: list[Path], tmp_path: Path, finished: Path) -> None:
    some = copy_finished(files[:5], tmp_path / "some")
    with opened(some) as loader:
        take([loader], batches_of(files[:5], 1.2))
        state = loader.state_dict()
        loader.load_state_dict(state)
    with opened(finished) as loader, pytest.raises(CheckpointMismatchError, match="row_groups"):
        loader.load_state_dict(state)
    (finished / "_manifest.json").unlink()  # however much more comes, it is not the set of the state
    with opened(finished) as loader, pytest.raises(CheckpointMismatchError, match="files is 5 in the checkpoint and 8"):
        loader.load_state_dict(state)


def test_states_of_runs_that_follow_and_of_others_are_told_apart(finished: Path) -> None:
    with opened(finished, follow=False) as loader:
        take([loader], 3)
        state = loader.state_dict()
        assert "first_epoch" not in state["sources"]
    with opened(finished) as loader, pytest.raises(CheckpointMismatchError, match="first_epoch is 'permuted'"):
        loader.load_state_dict(state)


def test_a_state_of_more_than_a_rank_has_seen_is_waited_for(writer: Writer, finished: Path) -> None:
    writer.show(2)
    early = opened(writer.folder)
    writer.finish()
    with opened(writer.folder) as ahead:
        take([ahead], 60)
        state = ahead.state_dict()
        expected = take([ahead], 10)
    with early:
        early.load_state_dict(state)
        assert np.array_equal(take([early], 10), expected)


def test_batches_that_are_skipped_are_waited_for_by_their_state(writer: Writer, finished: Path) -> None:
    writer.show(2)
    with opened(finished) as loader:
        loader.skip(60)
        expected = loader.state_dict()
    with opened(writer.folder) as loader:
        loader.skip(60)
        threading.Timer(0.1, writer.finish).start()
        assert loader.state_dict() == expected


# ── mixtures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def mixture(growing: Path, steady: Path, **changes: Any) -> ParquetLoader:
    more = {name: changes.pop(name) for name in ("max_epochs",) if name in changes}
    sources = {"growing": Component(growing, follow=changes.pop("follow", True), **more), "steady": steady}
    weights = changes.pop("weights", {"growing": 0.6, "steady": 0.4})
    return ParquetLoader(sources, **{**OPTIONS, "follow": False, "weights": weights, **changes})


@pytest.mark.parametrize("seed", range(max(1, RUNS // 4)))
def test_a_source_of_a_mixture_may_still_grow(seed: int, files: list[Path], finished: Path, tmp_path: Path) -> None:
    steady = copy_finished(make_files(tmp_path / "others", 3, 3), tmp_path / "steady")
    count = 330
    with mixture(finished, steady) as loader:
        expected = digest(take([loader], count))
    growing = Writer(tmp_path / "growing", files)
    stop = threading.Event()
    thread = threading.Thread(target=growing.run, args=(seed, stop, 0.05))
    chance = random.Random(seed)

    def lives():  # type: ignore[no-untyped-def]
        left = count
        while left:
            some = min(left, chance.randint(10, 90))
            yield chance.choice((1, 2, 4)), some, thread.is_alive() or chance.random() < 0.5
            left -= some

    thread.start()
    try:
        assert digest(run_of_ranks(lambda **more: mixture(growing.folder, steady, **more), lives())) == expected
    finally:
        stop.set()
        thread.join()


def test_what_is_there_of_a_mixture_is_not_held_up_by_a_source_that_waits(
    files: list[Path], finished: Path, tmp_path: Path
) -> None:
    steady = copy_finished(make_files(tmp_path / "others", 3, 3), tmp_path / "steady")
    growing = Writer(tmp_path / "growing", files)
    growing.show(3)
    with mixture(growing.folder, steady, wait_seconds=0.2) as loader:
        _, told = until_error(loader, GrowthTimeoutError)
        assert "source 'growing'" in told
        had = loader.stats()["sources"]["growing"]["tokens"]
        order = loader._run.config_of("growing").now.order
        # Within the row that reaches beyond what is there, and what lanes are apart.
        assert order.sealed_total - had < 6 * OPTIONS["seq_len"] * OPTIONS["lanes"]
        assert loader.stats()["sources"]["growing"]["wait_seconds"] > 0
        assert loader.epoch == 0


def test_weights_by_tokens_are_refused_while_a_source_grows(writer: Writer, finished: Path) -> None:
    writer.show(2)
    with pytest.raises(ConfigError, match="give shares"):
        mixture(writer.folder, finished, weights="tokens")


@pytest.mark.parametrize("exhausted", ["raise", "redistribute"])
def test_a_source_that_grows_may_end(exhausted: str, files: list[Path], finished: Path, tmp_path: Path) -> None:
    steady = copy_finished(make_files(tmp_path / "others", 3, 3), tmp_path / "steady")
    options = {"max_epochs": 1, "exhausted": exhausted}

    with mixture(finished, steady, **options) as loader:
        expected, told = until_error(loader, SourceExhaustedError, most=400)
        assert bool(told) == (exhausted == "raise")
    growing = Writer(tmp_path / "growing", files)
    growing.show(3)
    thread = threading.Timer(0.3, growing.finish)
    thread.start()
    with mixture(growing.folder, steady, **options) as loader:
        assert np.array_equal(until_error(loader, SourceExhaustedError, most=400)[0], expected)
    thread.join()


def test_a_run_that_followed_one_set_becomes_a_mixture(writer: Writer, finished: Path, tmp_path: Path) -> None:
    steady = copy_finished(make_files(tmp_path / "others", 3, 3), tmp_path / "steady")
    writer.show(3)
    with opened(writer.folder) as loader:
        take([loader], 5)
        state = loader.state_dict()
    weights = [(0, {"growing": 1}), (64 * OPTIONS["seq_len"] * OPTIONS["lanes"], {"growing": 0.6, "steady": 0.4})]
    with mixture(writer.folder, steady, weights=weights) as loader:
        loader.load_state_dict(state)
        assert loader.stats()["sources"]["growing"]["tokens"] == state["position"] * OPTIONS["lanes"]


def test_nothing_runs_on_while_nobody_takes(writer: Writer) -> None:
    writer.show(4)
    with opened(writer.folder) as loader:
        take([loader], 1)
        wait_until_idle(loader)


# ── the real writer ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_writer_that_is_killed_and_run_again_is_followed(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{number} " * 40 + "\n" for number in range(8000)))
    folder = tmp_path / "growing"
    command = [sys.executable, "-m", "parquet_loader.pretokenize", "--input", str(tmp_path / "in.txt")]
    command += ["--tokenizer", "bytes", "--append-eos", "--output", str(folder), "--publish", "as-finished"]
    command += ["--row-group-tokens", "20000", "--file-tokens", "100000", "--batch-bytes", "5000"]
    shape = {"seq_len": 64, "window": 2}
    count = 500  # of the 2,900 or so of an epoch
    writer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_for(lambda: len(list(folder.glob("*.parquet"))) > 2)
    writer.kill()
    writer.wait()
    lives = []

    def is_written() -> bool:
        return Growing.from_json((folder / GROWING_NAME).read_bytes(), GROWING_NAME).state == "growing"

    def opened_again(**more: Any) -> ParquetLoader:
        if not lives:
            wait_for(lambda: not is_written())
            lives.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            wait_for(is_written)  # else the failure of the one before it is told
        return opened(folder, **shape, **more)

    found = run_of_ranks(opened_again, iter([(1, 20, True), (4, count - 20, True)]))
    assert lives[0].wait(60) == 0
    with opened(folder, **shape) as loader:
        assert digest(take([loader], count)) == digest(found)
