"""Local files and fsspec filesystems behind one contract: what is listed, what is read, and how it fails."""

from __future__ import annotations

import asyncio
import functools
import http.server
import io
import os
import pickle
import pwd
import threading
import traceback
import uuid
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from parquet_loader import ParquetLoader, build_index
from parquet_loader.errors import ConfigError, FileChangedError, LoaderClosedError, PathNotFoundError, StorageError
from parquet_loader.pretokenize.sources.base import Record
from parquet_loader.pretokenize.sources.files import FileSource
from parquet_loader.pretokenize.sources.find import find_files
from parquet_loader.storage import FileInfo, Storage, open_storage
from parquet_loader.storage.opening import FsspecStorage
from parquet_loader.storage.remote import _get_if_match
from parquet_loader.storage.secrets import redact

HUSH = "hush-" * 2  # a secret, and not as it would stand in a traceback's source lines


class Place:
    """A folder on one kind of storage, to put files in."""

    def __init__(self, url: str, put: Callable[[str, bytes], None], remove: Callable[[str], None]) -> None:
        self.url = url
        self.put = put
        self.remove = remove

    def open(self, *below: str) -> Storage:
        return open_storage([f"{self.url}/{path}" for path in below] if below else self.url)


def local_place(folder: Path) -> Place:
    def put(path: str, data: bytes) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)

    folder.mkdir(parents=True)
    return Place(str(folder), put, lambda path: (folder / path).unlink())


def fsspec_place(url: str) -> Place:
    fs, folder = fsspec.url_to_fs(url)
    return Place(url, lambda path, data: fs.pipe_file(f"{folder}/{path}", data), lambda path: fs.rm(f"{folder}/{path}"))


@pytest.fixture(params=["local", "file URL", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        url = f"memory://{uuid.uuid4().hex}/set"
        yield fsspec_place(url)
        MemoryFileSystem().rm(url.rsplit("/", 1)[0], recursive=True)
    else:
        found = local_place(tmp_path / "data" / "set")
        if request.param == "file URL":
            found.url = "file://" + found.url
        yield found


@pytest.fixture
def memory_url() -> Iterator[str]:
    url = f"memory://{uuid.uuid4().hex}"
    fsspec.url_to_fs(url)[0].makedirs(url)
    yield url
    MemoryFileSystem().rm(url, recursive=True)


def paths(storage: Storage) -> list[str]:
    return [file.path for file in storage.list_files()]


def fill(place: Place, *names: str) -> None:
    for name in names:
        place.put(name, name.encode())


# ── the contract: listing ────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_gives_its_parquet_files_at_any_depth_sorted_by_path(place: Place) -> None:
    fill(place, "b.parquet", "a/z.parquet", "a/b/c/d.parquet", "a.parquet")
    assert paths(place.open()) == ["a.parquet", "a/b/c/d.parquet", "a/z.parquet", "b.parquet"]


def test_a_listing_tells_sizes(place: Place) -> None:
    place.put("a.parquet", b"12345")
    place.put("b.parquet", b"")
    assert [file.size for file in place.open().list_files()] == [5, 0]


@pytest.mark.parametrize(
    "name",
    [
        *("_SUCCESS", "_metadata", "_common_metadata", "x.parquet.crc", ".x.parquet.crc", "x.parquet.part", "x.txt"),
        *(".x.parquet", "_x.parquet", "_temporary/0/x.parquet", "a/.git/x.parquet", "a/_b/c/x.parquet", "x.PARQUET2"),
    ],
)
def test_what_is_no_data_is_passed_over(place: Place, name: str) -> None:
    fill(place, "a/data.parquet", name)
    assert paths(place.open()) == ["a/data.parquet"]


def test_hidden_names_above_the_source_do_not_matter(place: Place) -> None:
    fill(place, "_work/.cache/set/x.parquet")
    assert paths(place.open("_work/.cache/set")) == ["x.parquet"]


def test_hive_folders_are_part_of_the_path(place: Place) -> None:
    fill(place, "lang=en/year=2024/0.parquet", "lang=de/year=2023/0.parquet")
    assert paths(place.open()) == ["lang=de/year=2023/0.parquet", "lang=en/year=2024/0.parquet"]


def test_a_file_named_outright_is_taken_whatever_its_name(place: Place) -> None:
    fill(place, "_hidden.pq", "other.parquet")
    storage = place.open("_hidden.pq")
    assert paths(storage) == ["_hidden.pq"]
    assert storage.read(storage.list_files()[0], 0, 3) == b"_hi"


def test_a_folder_named_like_a_file_is_a_folder(place: Place) -> None:
    fill(place, "table.parquet/part-0.parquet", "table.parquet/_SUCCESS")
    assert paths(place.open()) == ["table.parquet/part-0.parquet"]
    assert paths(place.open("table.parquet")) == ["part-0.parquet"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["a.parquet", "b.parquet"]),
        ("[b-z].parquet", ["b.parquet"]),
        ("?.parquet", ["a.parquet", "b.parquet"]),
        ("lang=*", ["lang=de/0.parquet", "lang=en/0.parquet", "lang=en/deep/1.parquet"]),
        ("lang=*/", ["lang=de/0.parquet", "lang=en/0.parquet", "lang=en/deep/1.parquet"]),
        ("lang=*/0.parquet", ["lang=de/0.parquet", "lang=en/0.parquet"]),
        ("lang=*/*/1.parquet", ["lang=en/deep/1.parquet"]),
        ("**/0.parquet", ["lang=de/0.parquet", "lang=en/0.parquet"]),
        (
            "**/*.parquet",
            ["a.parquet", "b.parquet", "lang=de/0.parquet", "lang=en/0.parquet", "lang=en/deep/1.parquet"],
        ),
        ("**", ["a.parquet", "b.parquet", "lang=de/0.parquet", "lang=en/0.parquet", "lang=en/deep/1.parquet"]),
        ("*", ["a.parquet", "b.parquet", "lang=de/0.parquet", "lang=en/0.parquet", "lang=en/deep/1.parquet"]),
    ],
)
def test_globs_give_files_and_what_is_below_folders(place: Place, pattern: str, expected: list[str]) -> None:
    fill(place, "a.parquet", "b.parquet", "lang=de/0.parquet", "lang=en/0.parquet", "lang=en/deep/1.parquet")
    fill(place, "lang=en/_tmp/2.parquet", "_a.parquet", "c.txt")
    assert paths(place.open(pattern)) == expected


def test_the_root_of_a_glob_is_its_deepest_folder_without_a_wildcard(place: Place) -> None:
    fill(place, "x/lang=en/0.parquet")
    storage = place.open("x/lang=*/*.parquet")
    assert storage.root.endswith("/set/x")
    assert paths(storage) == ["lang=en/0.parquet"]


def test_a_list_has_one_root_above_its_entries(place: Place) -> None:
    fill(place, "x/a.parquet", "y/b.parquet", "y/c.parquet", "z/1.parquet", "z/2.parquet")
    storage = place.open("x", "y/b.parquet", "z/[12].parquet")
    assert storage.root.endswith("/set")
    assert paths(storage) == ["x/a.parquet", "y/b.parquet", "z/1.parquet", "z/2.parquet"]
    assert [storage.read(file, 0, file.size).decode() for file in storage.list_files()] == paths(storage)


def test_names_that_begin_alike_do_not_share_a_root(place: Place) -> None:
    fill(place, "train/a.parquet", "train2/b.parquet")
    assert paths(place.open("train", "train2")) == ["train/a.parquet", "train2/b.parquet"]


def test_the_order_of_a_list_does_not_matter(place: Place) -> None:
    fill(place, "x/a.parquet", "y/b.parquet")
    assert place.open("x", "y").list_files() == place.open("y", "x").list_files()
    assert place.open("x", "y").identity == place.open("y", "x").identity


@pytest.mark.parametrize("second", ["x", "x/", "x/a.parquet", "*/a.parquet", "x/../x"])
def test_a_file_that_a_list_names_twice_is_refused(place: Place, second: str) -> None:
    fill(place, "x/a.parquet")
    if ".." in second and place.url.startswith("memory"):
        second = "x"  # object stores have no ..
    with pytest.raises(ConfigError, match=r"a\.parquet is named twice"):
        place.open("x", second).list_files()


def test_a_missing_path_is_not_found(place: Place) -> None:
    fill(place, "a.parquet")
    with pytest.raises(PathNotFoundError, match=r"there is no .*nope"):
        place.open("nope")


def test_a_missing_entry_of_a_list_is_not_found(place: Place) -> None:
    fill(place, "a.parquet")
    with pytest.raises(PathNotFoundError, match=r"nope\.parquet"):
        place.open("a.parquet", "nope.parquet")


def test_a_folder_without_data_says_what_it_holds(place: Place) -> None:
    fill(place, "x/part.csv", "x/_SUCCESS")
    told = r"holds no Parquet, Arrow or raw file.*2 others \(_SUCCESS, part\.csv\)"
    with pytest.raises(PathNotFoundError, match=told):
        place.open("x").list_files()


def test_a_glob_that_matches_nothing_is_not_found(place: Place) -> None:
    fill(place, "a.parquet")
    with pytest.raises(PathNotFoundError, match="found nothing"):
        place.open("b*.parquet").list_files()


def test_a_trailing_slash_does_not_matter(place: Place) -> None:
    fill(place, "x/a.parquet")
    assert place.open("x/").list_files() == place.open("x").list_files()
    assert place.open("x/").identity == place.open("x").identity
    assert place.open("x/").root == place.open("x").root


@pytest.mark.parametrize(
    "name", ["a b", "ä中🙂", "a#b", "a%20b", "a[1]", "a+b&c", "a'b\"c", "{x}", "a,b;c", "-x", "a\\b"]
)
def test_any_sign_may_be_in_a_name(place: Place, name: str) -> None:
    fill(place, f"{name}/{name}.parquet", "a1/a1.parquet")
    for storage, path in [
        (place.open(name), f"{name}.parquet"),
        (place.open(f"{name}/{name}.parquet"), f"{name}.parquet"),
        (place.open(name, "a1"), f"{name}/{name}.parquet"),
    ]:
        file = next(file for file in storage.list_files() if file.path == path)
        assert storage.read(file, 0, file.size).decode() == f"{name}/{name}.parquet"


def test_a_new_listing_shows_what_was_added_and_removed(place: Place) -> None:
    fill(place, "a.parquet", "b.parquet")
    storage = place.open()
    assert paths(storage) == ["a.parquet", "b.parquet"]
    fill(place, "c.parquet")
    place.remove("a.parquet")
    assert paths(storage) == ["b.parquet", "c.parquet"]


def test_an_unchanged_file_keeps_its_version_and_a_replaced_one_does_not(place: Place) -> None:
    fill(place, "a.parquet", "b.parquet")
    storage = place.open()
    before = storage.list_files()
    place.put("b.parquet", b"B.PARQUET")
    after = storage.list_files()
    assert before[0] == after[0]
    assert (before[1].path, before[1].size) == (after[1].path, after[1].size)
    assert before[1].version != after[1].version


# ── the contract: reading ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("start", "length"), [(0, 10), (0, 1), (3, 4), (9, 1), (5, 5), (4, 0)])
def test_a_read_gives_just_that_range(place: Place, start: int, length: int) -> None:
    place.put("a.parquet", b"0123456789")
    storage = place.open()
    data = storage.read(storage.list_files()[0], start, length)
    assert data == b"0123456789"[start : start + length]
    assert type(data) is bytes


def test_a_range_past_the_end_is_an_error(place: Place) -> None:
    place.put("a.parquet", b"0123456789")
    storage = place.open()
    with pytest.raises(StorageError, match=r"a\.parquet"):
        storage.read(storage.list_files()[0], 8, 4)


@pytest.mark.parametrize("data", [b"X123456789", b"0123", b"0123456789abc"], ids=["same size", "cut", "grown"])
def test_a_file_that_was_replaced_is_an_error_that_names_it(place: Place, data: bytes) -> None:
    place.put("a.parquet", b"0123456789")
    storage = place.open()
    file = storage.list_files()[0]
    place.put("a.parquet", data)
    with pytest.raises(FileChangedError, match=r"set/a\.parquet is not the file that was indexed"):
        storage.read(file, 2, 6)


def test_a_file_that_was_removed_is_an_error_that_names_it(place: Place) -> None:
    fill(place, "a.parquet", "b.parquet")
    storage = place.open()
    file = storage.list_files()[0]
    place.remove("a.parquet")
    with pytest.raises(FileChangedError, match=r"set/a\.parquet .* it is gone"):
        storage.read(file, 0, 1)


def test_many_threads_may_read_at_once(place: Place) -> None:
    data = os.urandom(10_000)
    place.put("a.parquet", data)
    storage = place.open()
    file = storage.list_files()[0]
    with ThreadPoolExecutor(16) as pool:
        pieces = list(pool.map(lambda at: storage.read(file, at, 100), range(0, 10_000, 100)))
    assert b"".join(pieces) == data


def in_a_fork(work: Callable[[], object]) -> object:
    """What `work` gives in a forked child."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = pickle.dumps(work())
        except BaseException:
            answer = pickle.dumps(traceback.format_exc())
        os.write(sending, answer)
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_can_list_and_read(place: Place) -> None:
    fill(place, "a.parquet")
    storage = place.open()
    file = storage.list_files()[0]
    assert in_a_fork(lambda: (storage.list_files(), storage.read(file, 0, 9))) == ([file], b"a.parquet")


# ── which storage a source is ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("source", [[], (), ""])
def test_an_empty_source_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError):
        open_storage(source)


@pytest.mark.parametrize("source", [None, 5, b"x", {"a": "b"}, ["", "x"], [None], [["x"]]])
def test_what_is_no_path_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match="is no path"):
        open_storage(source)


def test_a_path_object_and_an_iterator_of_them_are_sources(tmp_path: Path) -> None:
    fill(local_place(tmp_path / "x"), "a.parquet", "b.parquet")
    assert paths(open_storage(tmp_path / "x")) == ["a.parquet", "b.parquet"]
    assert paths(open_storage((tmp_path / "x").iterdir())) == ["a.parquet", "b.parquet"]


def test_relative_paths_hold_after_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(local_place(tmp_path / "x"), "a.parquet")
    monkeypatch.chdir(tmp_path)
    opened = [open_storage(source) for source in ("x", "./x/", "x/../x", "x/*.parquet")]
    monkeypatch.chdir("/")
    assert [storage.root for storage in opened] == [str(tmp_path / "x")] * 4
    assert all(storage.read(storage.list_files()[0], 0, 1) == b"a" for storage in opened)


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(local_place(tmp_path / "x"), "a.parquet")
    assert open_storage("~/x").root == str(tmp_path / "x")


def test_two_dots_after_a_link_mean_what_they_mean_to_the_system(tmp_path: Path) -> None:
    fill(local_place(tmp_path / "real"), "deep/x.parquet", "set/a.parquet")
    fill(local_place(tmp_path / "set"), "b.parquet")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    assert paths(open_storage(f"{tmp_path}/link/../set")) == ["a.parquet"]


def test_options_for_a_local_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage_options \['key'\]") as caught:
        open_storage(tmp_path, {"key": HUSH})
    assert "hush" not in str(caught.value)


def test_a_path_may_hold_two_colons_where_it_exists(tmp_path: Path) -> None:
    fill(local_place(tmp_path / "a::b"), "x.parquet")
    assert paths(open_storage(tmp_path / "a::b")) == ["x.parquet"]


def test_local_paths_and_urls_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a local path and others are URLs"):
        open_storage([tmp_path, "memory://x"])


def test_different_filesystems_do_not_mix(memory_url: str) -> None:
    with pytest.raises(ConfigError, match="different filesystems"):
        open_storage([memory_url, "https://example.invalid/x.parquet"])


def test_two_archives_do_not_mix(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr("x.parquet", "data")
    with pytest.raises(ConfigError, match="different filesystems"):
        open_storage([f"zip://x.parquet::file://{tmp_path}/{name}.zip" for name in ("a", "b")])


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="nope://bucket/x cannot be opened through fsspec"):
        open_storage("nope://bucket/x")


def test_a_chained_url_reads_through_both_filesystems(tmp_path: Path, memory_url: str) -> None:
    fill(fsspec_place(memory_url), "set/a.parquet")
    storage = open_storage(f"simplecache::{memory_url}/set", {"simplecache": {"cache_storage": str(tmp_path)}})
    assert paths(storage) == ["a.parquet"]
    assert storage.read(storage.list_files()[0], 4, 4) == b"a.pa"


def test_two_archives_are_two_sources(tmp_path: Path) -> None:
    identities = set()
    for name in ("a", "b"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr("x.parquet", "data")
        storage = open_storage(f"zip://*.parquet::file://{tmp_path}/{name}.zip")
        assert storage.read(storage.list_files()[0], 0, 4) == b"data"
        identities.add(storage.identity)
    assert len(identities) == 2


# ── links and other local matters ────────────────────────────────────────────────────────────────────────────────


def test_links_to_files_are_read_as_in_a_hub_cache(tmp_path: Path) -> None:
    fill(local_place(tmp_path / "blobs"), "0a1b")
    snapshot = tmp_path / "snapshots" / "rev" / "data"
    snapshot.mkdir(parents=True)
    (snapshot / "train-0.parquet").symlink_to("../../../blobs/0a1b")
    storage = open_storage(tmp_path / "snapshots" / "rev")
    assert paths(storage) == ["data/train-0.parquet"]
    assert storage.read(storage.list_files()[0], 0, 4) == b"0a1b"


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    fill(local_place(tmp_path / "elsewhere"), "deep/x.parquet")
    place = local_place(tmp_path / "set")
    fill(place, "a.parquet")
    (tmp_path / "set" / "more").symlink_to(tmp_path / "elsewhere")
    assert paths(place.open()) == ["a.parquet", "more/deep/x.parquet"]


@pytest.mark.parametrize("target", [".", "..", "../..", "b"])
@pytest.mark.parametrize("pattern", ["", "/**", "/**/*.parquet"])
def test_a_link_back_to_a_folder_above_repeats_nothing(tmp_path: Path, target: str, pattern: str) -> None:
    fill(local_place(tmp_path / "set"), "x.parquet", "a/y.parquet", "a/b/z.parquet")
    (tmp_path / "set" / "a" / "b" / "loop").symlink_to(os.path.normpath(tmp_path / "set" / "a" / "b" / target))
    if target == "b":
        (tmp_path / "set" / "a" / "b" / "b").symlink_to("loop")
        (tmp_path / "set" / "a" / "b" / "loop").unlink()
        (tmp_path / "set" / "a" / "b" / "loop").symlink_to("b")
    assert paths(open_storage(f"{tmp_path}/set{pattern}")) == ["a/b/z.parquet", "a/y.parquet", "x.parquet"]


def test_two_links_to_one_folder_are_both_followed(tmp_path: Path) -> None:
    fill(local_place(tmp_path / "elsewhere"), "x.parquet")
    (tmp_path / "set").mkdir()
    for name in ("1", "2"):
        (tmp_path / "set" / name).symlink_to(tmp_path / "elsewhere")
    assert paths(open_storage(tmp_path / "set")) == ["1/x.parquet", "2/x.parquet"]


def test_a_link_to_nothing_is_an_error_that_names_its_target(tmp_path: Path) -> None:
    place = local_place(tmp_path / "set")
    fill(place, "a.parquet")
    (tmp_path / "set" / "b.parquet").symlink_to("../blobs/gone")
    with pytest.raises(PathNotFoundError, match=r"b\.parquet is a link to \.\./blobs/gone, which is not there"):
        place.open().list_files()


def test_a_pipe_under_a_data_name_is_passed_over(tmp_path: Path) -> None:
    place = local_place(tmp_path / "set")
    fill(place, "a.parquet")
    os.mkfifo(tmp_path / "set" / "b.parquet")
    assert paths(place.open()) == ["a.parquet"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "set") + b"/\xff.parquet")).touch()
    with pytest.raises(StorageError, match="not UTF-8"):
        open_storage(tmp_path / "set").list_files()


def test_a_touched_file_has_changed(tmp_path: Path) -> None:
    place = local_place(tmp_path / "set")
    fill(place, "a.parquet")
    storage = place.open()
    file = storage.list_files()[0]
    os.utime(tmp_path / "set" / "a.parquet", ns=(0, int(file.version) + 1))
    with pytest.raises(FileChangedError, match=r"a\.parquet"):
        storage.read(file, 0, 1)


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = local_place(tmp_path / "set")
    fill(place, "a.parquet")
    storage = place.open()
    file = storage.list_files()[0]
    real = os.read

    def read(descriptor: int, length: int) -> bytes:
        data = real(descriptor, length)
        place.put("a.parquet", b"A.PARQUET")
        return data

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(FileChangedError):
        storage.read(file, 0, 9)


def test_a_file_replaced_by_a_folder_cannot_be_read(tmp_path: Path) -> None:
    place = local_place(tmp_path / "set")
    fill(place, "a.parquet")
    storage = place.open()
    file = storage.list_files()[0]
    (tmp_path / "set" / "a.parquet").unlink()
    (tmp_path / "set" / "a.parquet").mkdir()
    with pytest.raises(StorageError, match=r"cannot read .*set/a\.parquet"):
        storage.read(file, 0, 1)


def as_nobody(work: Callable[[], object]) -> object:
    """What `work` gives to a user who may read nothing that is not open to all."""

    def child() -> object:
        os.setuid(65534)
        try:
            return work()
        except Exception as error:
            return type(error).__name__, str(error)

    return in_a_fork(child)


def denial(action: str, path: str, what: str) -> str:
    user = f"{pwd.getpwuid(65534).pw_name} (65534)"
    return f"cannot {action} {path}: not permitted: user {user} may not {what}; have its owner allow it"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_denied_permission_names_the_path_the_user_and_the_folder_that_is_closed(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        if os.stat(folder).st_uid == os.getuid() and folder.is_relative_to(tmp_path.parents[2]):
            folder.chmod(0o755)
    place = local_place(tmp_path / "set")
    fill(place, "a/x.parquet", "b.parquet")
    storage = place.open()
    closed = storage.list_files()[1]
    (tmp_path / "linked").mkdir()
    link = f"{tmp_path}/linked/y.parquet"
    Path(link).symlink_to(tmp_path / "set" / "a" / "x.parquet")
    (tmp_path / "set" / "b.parquet").chmod(0)
    (tmp_path / "set" / "a").chmod(0)
    try:
        read = as_nobody(lambda: storage.read(closed, 0, 1))
        listed = as_nobody(storage.list_files)
        globbed = as_nobody(lambda: open_storage(f"{tmp_path}/set/*/*.parquet").list_files())
        inside = as_nobody(lambda: open_storage(f"{tmp_path}/set/a/x.parquet"))
        nested = as_nobody(lambda: open_storage(f"{tmp_path}/s*/a/x.parquet").list_files())
        linked = as_nobody(lambda: open_storage(tmp_path / "linked").list_files())
        texts = as_nobody(lambda: find_files([f"{tmp_path}/set/a/x.parquet"]))
    finally:
        (tmp_path / "set" / "a").chmod(0o755)
    folder = f"{tmp_path}/set/a"
    assert read == ("StorageError", denial("open", f"{tmp_path}/set/b.parquet", f"open {tmp_path}/set/b.parquet"))
    assert listed == globbed == ("StorageError", denial("list", folder, f"list {folder}"))
    for found, path in ((inside, f"{folder}/x.parquet"), (nested, f"{folder}/x.parquet"), (linked, link)):
        assert found == ("StorageError", denial("look at", path, f"enter the folder {folder}"))
    assert texts == ("StorageError", denial("look at", f"{folder}/x.parquet", f"enter the folder {folder}"))


# ── faults of filesystems ────────────────────────────────────────────────────────────────────────────────────────


class FaultyFileSystem(MemoryFileSystem):
    """Memory that fails its first reads, each with the next of `faults`, an error or a number of bytes to cut off."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[list[BaseException | int]] = []
    reads = 0
    looks = 0
    after_read: Callable[[], object] | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("faulty://", "memory://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        type(self).reads += 1
        data: bytes = super().cat_file(path, start, end, **kwargs)
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, BaseException):
                raise fault
            data = data[:-fault]
        if FaultyFileSystem.after_read is not None:
            FaultyFileSystem.after_read()
        return data

    def info(self, path: str, **kwargs: Any) -> Any:
        type(self).looks += 1
        return super().info(path, **kwargs)


@pytest.fixture
def faulty() -> Iterator[FsspecStorage]:
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    FaultyFileSystem.store = {}
    FaultyFileSystem.pseudo_dirs = [""]
    FaultyFileSystem.faults = []
    FaultyFileSystem.reads = 0
    FaultyFileSystem.after_read = None
    FaultyFileSystem().pipe_file("/set/a.parquet", b"0123456789")
    storage = open_storage("faulty://set")
    assert isinstance(storage, FsspecStorage)
    storage._retries.FIRST_PAUSE_SECONDS = 0.001
    yield storage
    FaultyFileSystem.after_read = None


class OddError(Exception):
    """An error of a kind that no one has heard of."""


@pytest.mark.parametrize(
    "fault", [OSError("reset"), TimeoutError("slow"), ConnectionError("refused"), OddError("odd"), 3, 10], ids=str
)
def test_a_passing_fault_is_got_over_and_counted(faulty: FsspecStorage, fault: BaseException | int) -> None:
    FaultyFileSystem.faults = [fault] * 7
    assert faulty.read(faulty.list_files()[0], 0, 10) == b"0123456789"
    assert FaultyFileSystem.reads == 8
    assert faulty.retries == 7


def test_a_lasting_fault_is_one_error_that_names_file_count_and_cause(faulty: FsspecStorage) -> None:
    faulty._retries.limit_seconds = 0.3
    FaultyFileSystem.faults = [OSError("the line is dead")] * 9999
    with pytest.raises(
        StorageError, match=r"^faulty://set/a\.parquet failed \d+ times in 0 s, the last time.*the line is dead"
    ) as caught:
        faulty.read(faulty.list_files()[0], 0, 10)
    assert f"failed {FaultyFileSystem.reads} times" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


def test_retrying_is_told_of_once(faulty: FsspecStorage, caplog: pytest.LogCaptureFixture) -> None:
    file = faulty.list_files()[0]
    for _ in range(3):
        FaultyFileSystem.faults = [OSError("reset")] * 3
        faulty.read(file, 0, 10)
    (record,) = caplog.records
    assert record.name == "parquet_loader"
    assert record.levelname == "WARNING"
    assert "faulty://set/a.parquet failed once with OSError: reset; trying again for up to" in record.getMessage()


def test_a_read_that_is_not_wanted_any_more_is_not_tried_again(faulty: FsspecStorage) -> None:
    faulty._retries.FIRST_PAUSE_SECONDS = 1000
    faulty._retries.LONGEST_PAUSE_SECONDS = 1000
    faulty._retries.limit_seconds = 10_000
    file, stop = faulty.list_files()[0], threading.Event()
    FaultyFileSystem.faults = [OSError("reset")] * 99
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    with pytest.raises(LoaderClosedError):
        faulty.read(file, 0, 10, stop)
    timer.join()


def test_a_body_that_stays_short_is_an_error(faulty: FsspecStorage) -> None:
    faulty._retries.limit_seconds = 0.1
    FaultyFileSystem.faults = [1] * 999
    with pytest.raises(StorageError, match="9 bytes came where 10 were asked for"):
        faulty.read(faulty.list_files()[0], 0, 10)


@pytest.mark.parametrize(
    ("fault", "says"), [(PermissionError("no"), "is denied"), (ValueError("bad"), "ValueError: bad")], ids=str
)
def test_a_fault_that_cannot_pass_is_not_tried_again(faulty: FsspecStorage, fault: Exception, says: str) -> None:
    FaultyFileSystem.faults = [fault]
    with pytest.raises(StorageError, match=says):
        faulty.read(faulty.list_files()[0], 0, 10)
    assert FaultyFileSystem.reads == 1


def test_a_replacement_between_a_read_and_the_look_after_it_is_noticed(faulty: FsspecStorage) -> None:
    file = faulty.list_files()[0]
    FaultyFileSystem.after_read = lambda: FaultyFileSystem().pipe_file("/set/a.parquet", b"9876543210")
    with pytest.raises(FileChangedError):
        faulty.read(file, 0, 10)


def test_a_listing_that_tells_other_versions_than_a_look_is_mended(
    faulty: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = {"name": "/set/a.parquet", "type": "file", "size": 10}
    monkeypatch.setattr(FaultyFileSystem, "find", lambda *_, **__: {bare["name"]: bare})
    file = faulty.list_files()[0]
    assert file.version.startswith("created=")
    assert faulty.read(file, 0, 10) == b"0123456789"


def test_a_read_costs_one_request_and_one_look(faulty: FsspecStorage) -> None:
    file = faulty.list_files()[0]
    FaultyFileSystem.looks = 0
    faulty.read(file, 0, 10)
    assert (FaultyFileSystem.reads, FaultyFileSystem.looks) == (1, 1)


def test_without_patience_nothing_is_tried_again(faulty: FsspecStorage) -> None:
    faulty._retries.limit_seconds = 0
    FaultyFileSystem.faults = [OSError("reset")] * 99
    with pytest.raises(StorageError, match="failed once with OSError: reset"):
        faulty.read(faulty.list_files()[0], 0, 10)


def test_an_interrupt_is_not_swallowed(faulty: FsspecStorage) -> None:
    FaultyFileSystem.faults = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        faulty.read(faulty.list_files()[0], 0, 10)


def test_a_file_of_unknown_size_is_refused(faulty: FsspecStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = {"name": "/set/a.parquet", "type": "file", "size": None}
    monkeypatch.setattr(FaultyFileSystem, "find", lambda *_, **__: {unknown["name"]: unknown})
    monkeypatch.setattr(FaultyFileSystem, "info", lambda *_, **__: unknown)
    with pytest.raises(StorageError, match=r"faulty://set/a\.parquet has no size"):
        faulty.list_files()


def test_a_filesystem_that_tells_no_version_is_compared_by_size(
    faulty: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FaultyFileSystem, "info", lambda *_, **__: {"type": "file", "size": 10})
    faulty.read(FileInfo(path="a.parquet", size=10, version=""), 0, 10)
    with pytest.raises(FileChangedError):
        faulty.read(FileInfo(path="a.parquet", size=11, version=""), 0, 10)


def test_a_listing_that_someone_else_made_fsspec_remember_is_not_believed(tmp_path: Path) -> None:
    class RememberingFileSystem(FaultyFileSystem):
        """Answers from its listings cache, as object stores do, until it is invalidated."""

        protocol = "remembering"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return super()._strip_protocol(path.replace("remembering://", "memory://"))

        def info(self, path: str, **kwargs: Any) -> Any:
            path = self._strip_protocol(path)
            if path not in self.dircache:
                self.dircache[path] = super().info(path, **kwargs)
            return self.dircache[path]

        def invalidate_cache(self, path: str | None = None) -> None:
            self.dircache.clear()

    fsspec.register_implementation("remembering", RememberingFileSystem, clobber=True)
    shared = fsspec.filesystem("remembering")
    shared.pipe_file("/r/a.parquet", b"0123456789")
    storage = open_storage("remembering://r")
    file = storage.list_files()[0]
    shared.info("/r/a.parquet")
    shared.pipe_file("/r/a.parquet", b"9876543210")
    with pytest.raises(FileChangedError):
        storage.read(file, 0, 10)


# ── a web server ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def web_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a server of a folder's files, and the folder."""
    folder = tmp_path / "www"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, directory=str(folder), **kwargs)

        def log_message(self, *_: Any) -> None:
            pass

        def send_head(self) -> Any:
            """As the standard library's, which knows no ranges, with them."""
            path = Path(self.translate_path(self.path))
            given = self.headers.get("Range", "")
            if path.is_dir() or not path.exists():
                return super().send_head()
            data = path.read_bytes()
            start, end = 0, len(data)
            if given.startswith("bytes="):
                first, _, last = given[6:].partition("-")
                start, end = int(first), min(int(last) + 1, len(data))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(end - start))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
            self.end_headers()
            return io.BytesIO(data[start:end])

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", folder
        server.shutdown()
        thread.join()


def test_files_of_a_web_server_are_listed_and_read(web_server: tuple[str, Path]) -> None:
    address, folder = web_server
    fill(local_place(folder / "set"), "a.parquet", "b/c.parquet")
    storage = open_storage([f"{address}/set/a.parquet", f"{address}/set/b/c.parquet"])
    assert storage.root == f"{address}/set"
    assert paths(storage) == ["a.parquet", "b/c.parquet"]
    assert [storage.read(file, 2, 3) for file in storage.list_files()] == [b"par", b"c.p"]


def test_a_folder_of_a_web_server_is_listed_by_its_links(web_server: tuple[str, Path]) -> None:
    address, folder = web_server
    fill(local_place(folder / "set"), "a.parquet", "b/c.parquet", "_x/d.parquet")
    storage = open_storage(f"{address}/set/")
    assert paths(storage) == ["a.parquet", "b/c.parquet"]
    assert [storage.read(file, 0, file.size) for file in storage.list_files()] == [b"a.parquet", b"b/c.parquet"]


def test_a_signed_web_address_is_read_and_its_signature_is_no_part_of_the_name(
    web_server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = web_server
    fill(local_place(folder / "set"), "a.parquet")
    storage = open_storage(f"{address}/set/a.parquet?sig={HUSH}")
    file = storage.list_files()[0]
    assert file.path == "a.parquet"
    assert storage.read(file, 0, 9) == b"a.parquet"
    (folder / "set" / "a.parquet").unlink()
    with pytest.raises(FileChangedError, match="it is gone") as caught:
        storage.read(file, 0, 9)
    assert HUSH not in f"{storage.root} {storage.identity} {whole_report(caught.value)}"


# ── S3, without a server ─────────────────────────────────────────────────────────────────────────────────────────

UNREACHABLE = {"endpoint_url": "http://127.0.0.1:9"}


def test_an_unreachable_endpoint_is_one_clear_error() -> None:
    options = {**UNREACHABLE, "key": "AKIAEXAMPLE", "secret": HUSH}
    with pytest.raises(StorageError, match=r"^s3://bucket/set failed.*http://127\.0\.0\.1:9"):
        open_storage("s3://bucket/set", options, retry_seconds=0.5)


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────


def whole_report(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(error.__context__)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        ("s3://key:sec/ret@bucket/x", "s3://bucket/x"),
        ("s3://bucket/x?.parquet", "s3://bucket/x?.parquet"),
        ("s3://bucket/a@b/c:d@e", "s3://bucket/a@b/c:d@e"),
        ("https://host:8080/a@b/x.parquet?sig=abc&y", "https://host:8080/a@b/x.parquet"),
        ("https://token@host/x", "https://host/x"),
        ("https://user:pw@host/x", "https://host/x"),
        ("sftp://user:pw@host/x", "sftp://host/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("github://org:repo@main/x", "github://org:repo@main/x"),
        ("hf://datasets/org/name@main/x", "hf://datasets/org/name@main/x"),
        ("zip://*.parquet::https://host/x.zip?sig=abc", "zip://*.parquet::https://host/x.zip"),
        ("/local/a:b@c", "/local/a:b@c"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize("url", [f"s3://AKIAEXAMPLE:{HUSH}@bucket/x", f"s3://AKIAEXAMPLE:{HUSH}/{HUSH}@bucket/x"])
def test_a_key_in_an_s3_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="storage_options") as caught:
        open_storage(url)
    assert "hush" not in whole_report(caught.value)


def test_a_secret_in_the_options_is_not_shown_by_a_failure() -> None:
    class TellingFileSystem(FaultyFileSystem):
        """Puts all it was told into its errors."""

        protocol = "telling"

        def info(self, path: str, **kwargs: Any) -> Any:
            raise ValueError(f"cannot sign with {self.storage_options}")

    fsspec.register_implementation("telling", TellingFileSystem, clobber=True)
    options = {"key": "AKIAEXAMPLE", "client_kwargs": {"aws_secret_access_key": HUSH, "region_name": "eu-1"}}
    with pytest.raises(StorageError, match=r"telling://x failed.*\*\*\*.*eu-1") as caught:
        open_storage("telling://x", options)
    report = whole_report(caught.value)
    assert "hush" not in report
    assert "AKIA" not in report


def test_a_secret_is_not_shown_where_a_filesystem_cannot_be_made() -> None:
    class UnmakeableFileSystem(FaultyFileSystem):
        protocol = "unmakeable"

        def __init__(self, **options: Any) -> None:
            raise RuntimeError(f"no login with {options}")

    fsspec.register_implementation("unmakeable", UnmakeableFileSystem, clobber=True)
    with pytest.raises(StorageError, match="unmakeable://x cannot be opened") as caught:
        open_storage("unmakeable://x", {"password": HUSH})
    assert "hush" not in whole_report(caught.value)


def test_a_storage_shows_no_secret(memory_url: str) -> None:
    fill(fsspec_place(memory_url), "a.parquet")
    storage = open_storage(memory_url, {"token": HUSH})
    storage.list_files()
    assert "hush" not in f"{storage!r} {storage.root} {storage.identity} {storage.list_files()}"


# ── places that do not answer, or answer otherwise ───────────────────────────────────────────────────────────────


class Plain(http.server.SimpleHTTPRequestHandler):
    """What ``python -m http.server`` is: it knows no ranges."""

    sent: ClassVar[list[str]] = []

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.sent.append(self.path)
        super().do_GET()


@pytest.fixture
def plain_server(tmp_path: Path) -> Iterator[str]:
    """The address of a server of ``tmp_path`` without ranges."""
    Plain.sent = []
    handler = functools.partial(Plain, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_web_server_without_ranges_is_one_look_and_one_sentence(tmp_path: Path, plain_server: str) -> None:
    (tmp_path / "a.parquet").write_bytes(bytes(525_269))
    storage = open_storage(f"http://{plain_server}/a.parquet")
    file = storage.list_files()[0]
    with pytest.raises(StorageError, match=r"a\.parquet cannot be read in parts: its server knows no Range requests"):
        storage.read(file, 500_000, 25_269)
    assert Plain.sent == ["/a.parquet"]
    assert storage.retries == 0
    assert storage.read(file, 0, 525_269) == bytes(525_269)  # the whole is a range that it knows


def test_text_on_a_web_server_without_ranges_is_read(tmp_path: Path, plain_server: str) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    found = find_files([f"http://{plain_server}/a.txt"])
    records = list(FileSource(files=found.files).records())
    assert [record.text for record in records if isinstance(record, Record)] == ["one", "two"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a.parquet", "http://nowhere.invalid/a.parquet", "s3", "https"])
def test_a_place_that_has_never_answered_is_not_waited_for(
    url: str, plain_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parquet_loader.storage.remote._UNANSWERED_SECONDS", 0.3)
    options = {"key": "x", "secret": "xxxx", "endpoint_url": f"https://{plain_server}"} if url == "s3" else {}
    source = {"s3": "s3://bucket1/a.parquet", "https": f"https://{plain_server}/a.parquet"}.get(url, url)
    with pytest.raises(StorageError, match=r"nothing has answered there yet: check the address"):
        open_storage(source, options, retry_seconds=3600)


# ── options of s3fs ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("option", "nearest"),
    [
        ("endpoint", "endpoint_url"),
        ("endpoint_override", "endpoint_url"),
        ("aws_secret_access_key", "secret"),
        ("region", 'client_kwargs={"region_name": ...}'),
        ("anonn", "anon"),
        ("use_SSL", "use_ssl"),
    ],
)
def test_an_option_that_s3fs_does_not_know_is_refused_with_the_nearest_one(option: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_storage("s3://bucket1/x", {option: HUSH})
    assert str(caught.value) == f"storage_options: s3fs has no option {option!r}; did you mean {nearest}?"


def test_all_that_s3fs_knows_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"anon": True, "use_ssl": False, "default_block_size": 5 << 20, "max_concurrency": 2, "profile": None}
    with pytest.raises(StorageError, match="failed once"):
        open_storage("s3://bucket1/x", {**known, **UNREACHABLE}, retry_seconds=0)


def test_requests_of_s3_are_those_of_the_filesystem() -> None:
    """The lowest s3fs that is allowed does not add who pays by itself."""
    asked: dict[str, Any] = {}

    class Body:
        async def __aenter__(self) -> Body:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def read(self) -> bytes:
            return b"data"

    class OldS3:
        req_kw: ClassVar[dict[str, str]] = {"RequestPayer": "requester"}

        def split_path(self, path: str) -> tuple[str, str, None]:
            return "bucket1", path, None

        async def _call_s3(self, method: str, **options: Any) -> dict[str, Any]:
            asked.update(options)
            return {"Body": Body()}

    assert asyncio.run(_get_if_match(OldS3(), "x", 2, 4, '"e"')) == b"data"
    assert asked["RequestPayer"] == "requester"
    assert (asked["Range"], asked["IfMatch"]) == ("bytes=2-5", '"e"')


# ── a storage of one's own, and systems of another kind ──────────────────────────────────────────────────────────


class DictStorage:
    """Files in memory."""

    root = "dict"
    identity = "dict of this test"
    retries = 0
    is_remote = False

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def list_files(self) -> list[FileInfo]:
        return [FileInfo(path=path, size=len(data), version="1") for path, data in sorted(self._files.items())]

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        return self._files[file.path][start : start + length]


def test_a_storage_of_ones_own_is_a_source(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"tokens": [[1, 2, 3], [4]]}), buffer)
    storage = DictStorage({"a.parquet": buffer.getvalue()})
    assert build_index(storage, cache_dir=tmp_path).total_tokens == 4
    with ParquetLoader(storage, seq_len=2, lanes=1, shuffle=False, cache_dir=tmp_path, epochs=1) as loader:
        assert [batch.tokens.tolist() for batch in loader] == [[[1, 2]], [[3, 4]]]
    with pytest.raises(ConfigError, match=r"storage_options \['key'\] do not apply"):
        open_storage(storage, {"key": HUSH})


def test_files_are_read_where_the_system_has_no_pread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pread", "O_NONBLOCK"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr("parquet_loader.storage.local._READ_ONLY", os.O_RDONLY)
    place = local_place(tmp_path / "set")
    fill(place, "a.parquet")
    storage = place.open()
    assert storage.read(storage.list_files()[0], 2, 4) == b"parq"
