"""A set that grows, as it is looked at: listings that are made meanwhile, and what its beginning is known by."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from growing_sets import Writer, copy_finished, make_files, quick_looks
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader import ConfigError, GrowthTimeoutError, ParquetLoader, build_index
from parquet_loader.index.build import index_storage
from parquet_loader.index.follow import Follower, Patience
from parquet_loader.index.prefix import PrefixChain
from parquet_loader.order.order import Order
from parquet_loader.storage import local
from parquet_loader.storage.base import Listing
from parquet_loader.storage.growing import MANIFEST_NAME
from parquet_loader.storage.local import LocalStorage

__all__ = ["quick_looks"]

pytestmark = pytest.mark.usefixtures("quick_looks")


class _Overtaken(LocalStorage):
    """One whose next listing lacks a file that is there, as one may that is made while files appear."""

    lacks = ""

    def find_beside(self, names: Collection[str], stop: threading.Event | None = None) -> tuple[Listing, str]:
        listing, base = super().find_beside(names, stop)
        if self.lacks:
            listing.found = [[each for each in found if not each.path.endswith(self.lacks)] for found in listing.found]
            self.lacks = ""
        return listing, base


class _Rewritten(LocalStorage):
    """One whose writer rewrites its marker, or removes it, after the next listing that has it."""

    then: Callable[[], None] | None = None

    def find_beside(self, names: Collection[str], stop: threading.Event | None = None) -> tuple[Listing, str]:
        found = super().find_beside(names, stop)
        if self.then is not None:
            then, self.then = self.then, None
            then()
        return found


def follower_of(storage: LocalStorage) -> Follower:
    def read(storage: Any, files: Any, _: Any) -> Any:
        return index_storage(storage, listed=files)

    return Follower(storage, None, read, Patience(wait_seconds=1))


def look(follower: Follower) -> bool:
    follower._looked = -1e9
    return follower.look()


def test_a_listing_that_lacks_a_file_before_one_that_it_shows_is_not_believed(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "growing", make_files(tmp_path / "files", 0))
    writer.show(2)
    storage = _Overtaken([str(writer.folder)])
    follower = follower_of(storage)
    writer.show(2)
    storage.lacks = "part-00002.parquet"
    assert look(follower)
    assert [file.path for file in follower.known[0].files] == [f"part-0000{number}.parquet" for number in range(4)]


def test_a_set_is_complete_as_it_is_after_its_manifest_was_seen(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "growing", make_files(tmp_path / "files", 0))
    writer.show(2)
    storage = _Overtaken([str(writer.folder)])
    follower = follower_of(storage)
    writer.finish()
    storage.lacks = "part-00007.parquet"
    assert look(follower)
    index, complete = follower.known
    assert complete
    assert len(index.files) == 8
    assert (writer.folder / MANIFEST_NAME).exists()


def test_a_failure_that_was_known_does_not_hold_once_the_marker_is_rewritten(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "growing", make_files(tmp_path / "files", 0))
    writer.show(2)
    writer.beat("failed", "for now")
    storage = _Rewritten([str(writer.folder)])
    follower = follower_of(storage)
    storage.then = writer.beat  # it is run again
    finish = threading.Timer(0.2, writer.finish)
    finish.start()
    follower.until(lambda: follower.known[1])
    finish.join()


def test_a_glob_of_a_set_that_becomes_complete_while_it_is_listed_has_all_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path / "growing", make_files(tmp_path / "files", 0))
    writer.show(3)
    look_beside = local.folders_of

    def finish_before(*arguments: Any) -> list[str]:
        writer.finish()
        return look_beside(*arguments)

    monkeypatch.setattr(local, "folders_of", finish_before)
    assert len(build_index(writer.folder / "*.parquet").files) == 8


def test_a_store_that_was_away_makes_no_writer_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "SILENT_SECONDS", 1.0)
    writer = Writer(tmp_path / "growing", make_files(tmp_path / "files", 0))
    writer.show(2)
    storage = _Rewritten([str(writer.folder)])
    follower = follower_of(storage)
    storage.then = lambda: time.sleep(1.5)
    finish = threading.Timer(1.8, writer.finish)
    finish.start()
    follower.until(lambda: follower.known[1])
    finish.join()


def test_a_chain_is_the_same_for_what_two_sets_begin_with(tmp_path: Path) -> None:
    files = make_files(tmp_path / "files", 0)
    whole = build_index(copy_finished(files, tmp_path / "whole"))
    begun = build_index(copy_finished(files[:4], tmp_path / "begun"))
    chains = PrefixChain(), PrefixChain()
    for groups in (len(begun), 0, 3):
        assert chains[0].at(whole, groups) == chains[1].at(begun, groups)
    assert len({chains[0].at(whole, groups) for groups in range(len(whole) + 1)}) == len(whole) + 1
    other = build_index(copy_finished(make_files(tmp_path / "others", 1), tmp_path / "other"))
    assert PrefixChain().at(other, 3) != chains[0].at(whole, 3)


@given(
    tokens=st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any),
    lanes=st.integers(1, 6),
    window=st.integers(1, 5),
    more=st.lists(st.integers(0, 40), max_size=6),
    data=st.data(),
)
def test_what_a_position_has_begun_with_is_told_by_what_was_read(
    tokens: list[int], lanes: int, window: int, more: list[int], data: st.DataObject
) -> None:
    def order_of(counts: list[int]) -> Order:
        groups = np.array(counts, np.int64)
        return Order(group_tokens=groups, lanes=lanes, window=window, seed=1, shuffle=True, stored_first=True)

    begun, grown = order_of(tokens), order_of(tokens + more)
    lane = data.draw(st.integers(0, lanes - 1))
    # A lane that has had so many tokens has had them of windows that are whole.
    had = data.draw(st.integers(0, (begun.sealed_total + lane) // lanes))
    groups = begun.begun_groups(had)
    assert groups == grown.begun_groups(had) <= begun.sealed_windows * window
    before = int(grown.ends[groups - 1]) if groups else 0
    # All that it had is among them, but for one token of lanes that come to a window later than the last lane.
    assert had - (lane < lanes - 1) <= (before + lane) // lanes


# ── files without a token, that come first ───────────────────────────────────────────────────────────────────────────

WITHOUT_A_TOKEN = {
    "lists of nothing": pa.table({"tokens": pa.array([[], []], pa.list_(pa.null()))}),
    "nulls": pa.table({"tokens": pa.nulls(3)}),
    "no rows of another type": pa.table({"tokens": pa.array([], pa.float64())}),
    "no rows": pa.table({"tokens": pa.array([], pa.list_(pa.int32()))}),
    "lists that may all be meant": pa.table({name: pa.array([[]], pa.list_(pa.int32())) for name in ("a", "tokens")}),
}


def write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def move_in(table: pa.Table, path: Path) -> None:
    write(table, path.with_name(f"_{path.name}"))
    path.with_name(f"_{path.name}").rename(path)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("first", WITHOUT_A_TOKEN)
def test_files_are_waited_for_beside_one_without_a_token_whatever_its_columns(
    first: str, suffix: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"seq_len": 8, "lanes": 1, "window": 1, "follow": True}
    table = WITHOUT_A_TOKEN[first]
    write(table, tmp_path / f"0.{suffix}")
    with pytest.raises(GrowthTimeoutError, match=r"1 files are there, and no token|1 files, 0 tokens are there"):
        ParquetLoader(tmp_path, **options, wait_seconds=0)
    later = pa.table({name: [list(range(9)) if name == "tokens" else []] * 30 for name in table.column_names})
    thread = threading.Timer(0.1, move_in, (later, tmp_path / f"1.{suffix}"))
    thread.start()
    with ParquetLoader(tmp_path, **options, wait_seconds=20) as waited:
        thread.join()
        with ParquetLoader(tmp_path, **options) as came_later:
            assert np.array_equal(next(iter(waited)).tokens, next(iter(came_later)).tokens)


def test_a_set_that_is_complete_without_a_token_says_what_its_files_lack(tmp_path: Path) -> None:
    write(WITHOUT_A_TOKEN["lists of nothing"], tmp_path / "0.parquet")
    told = r"0\.parquet has no column that is a list of integers; its columns are tokens \(list<null>\)"
    with pytest.raises(ConfigError, match=told):
        ParquetLoader(tmp_path, seq_len=8, lanes=1, follow=True, complete_after=0)
    (tmp_path / "_COMPLETE").touch()
    for follow in (True, False):
        with pytest.raises(ConfigError, match=told):
            ParquetLoader(tmp_path, seq_len=8, lanes=1, follow=follow)
