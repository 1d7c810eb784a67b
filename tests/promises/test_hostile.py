"""A checksum does not tell who wrote it: indexes, caches and checkpoints whose checksum fits are not trusted.

Whatever is in one, it is refused in one line, rebuilt with a warning, or works: never a crash, a hang, an error of
Python's own, or a file that is read beside the dataset.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hostile import OPTIONS, Reader
from hypothesis import given, settings
from hypothesis import strategies as st
from unique_sets import unique_groups, write_set

from parquet_loader import (
    CheckpointDamagedError,
    CheckpointError,
    ConfigError,
    DatasetIndex,
    ParquetLoader,
    build_index,
    merge_checkpoints,
)
from parquet_loader.container import DamagedContainerError, _digest, open_container, seal_container

INT64 = range(-(2**63), 2**63)
NESTED: list[Any] = []
for _ in range(300):
    NESTED = [NESTED]


def deeper(value: Any) -> Any:
    """Too deep for Python to show."""
    for _ in range(10_000):
        value = [value]
    return value


HOSTILE = st.sampled_from(
    [
        *(None, True, False, -1, 0, 1, 2, 7, 256, 10**6, 2**31, 2**53, 10**18, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
        *(1.0, -0.5, math.nan, math.inf),
        *("", "x", "../outside.parquet", "../../x", "a/../../outside.parquet", "/etc/passwd", ".", "a\0b", "x" * 5000),
        *(b"", b"\xff" * 7, b"\0" * 8, b"\xff" * 64),
        *([], {}, [1], [[]], NESTED, {"x": 1}, ["../outside.parquet", 10, ""]),
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set with what is made of it: an index, a cache, checkpoints; and beside it a file that nobody may read."""
    folder = tmp_path_factory.mktemp("hostile")
    write_set(folder / "set", unique_groups([[[3, 4, 0], [5]], [[6] * 4, [2, 9]]]))
    shutil.copy(folder / "set" / "part-000.parquet", folder / "outside.parquet")
    build_index(folder / "set", cache_dir=folder / "cache").save(folder / "index")
    (path,) = (folder / "cache").iterdir()
    shutil.copy(path, folder / "kept-cache")
    for rank in range(2):
        with ParquetLoader(folder / "set", rank=rank, world_size=2, cache_dir=folder / "own", **OPTIONS) as loader:
            next(iter(loader))
            (folder / f"part-{rank}").write_bytes(loader.checkpoint())
    return folder


@pytest.fixture(scope="module")
def reader(folder: Path) -> Iterator[Reader]:
    reader = Reader(folder)
    yield reader
    reader.close()


# ── payloads as trees: arrays are lists of integers in them ──────────────────────────────────────────────────────


def tree_of(value: Any) -> Any:
    if isinstance(value, bytes):
        return np.frombuffer(value, "<i8").tolist()
    if isinstance(value, dict):
        return {name: tree_of(child) for name, child in value.items()}
    return [tree_of(child) for child in value] if isinstance(value, list) else value


def payload_of(tree: Any, arrays: bool = False) -> Any:
    """A tree's payload. What was an array is one as long as its numbers are of 64 bits."""
    if isinstance(tree, dict):
        return {name: payload_of(child, arrays or name in ("arrays", "file_layout")) for name, child in tree.items()}
    if arrays and isinstance(tree, list) and all(type(number) is int and number in INT64 for number in tree):
        return np.array(tree, "<i8").tobytes()
    return [payload_of(child) for child in tree] if isinstance(tree, list) else tree


def places_in(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a tree, branches and leaves."""
    for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from places_in(child, (*path, key))


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one to three places that hold something else, are gone, or are there twice."""
    for _ in range(draw(st.integers(1, 3))):
        tree = copy.deepcopy(tree)
        *path, key = draw(st.sampled_from(list(places_in(tree)) or [()])) or (None,)
        if key is None:
            return tree
        at = tree
        for step in path:
            at = at[step]
        what = draw(st.sampled_from(["replace"] * 6 + ["remove", "double"]))
        if what == "replace":
            at[key] = draw(HOSTILE)
        elif what == "remove":
            del at[key]
        elif isinstance(at, list):
            at.insert(key, copy.deepcopy(at[key]))
        else:
            at[f"{key}2"] = copy.deepcopy(at[key])
    return tree


VERSIONS = {"index": 1, "index-cache": 1, "checkpoint": 2}


def resealed(kind: str, tree: Any) -> bytes:
    return seal_container(kind, VERSIONS[kind], payload_of(tree))


def tree_in(path: Path, kind: str) -> Any:
    return tree_of(open_container(path.read_bytes(), kind, VERSIONS[kind]))


# ── what comes of them ───────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_not_changed_works(folder: Path, reader: Reader) -> None:
    for use, file, kind in [
        ("index", "index", "index"),
        ("cache", "kept-cache", "index-cache"),
        ("checkpoint", "part-0", "checkpoint"),
        ("parts", "part-0", "checkpoint"),
    ]:
        data = (folder / file).read_bytes()
        assert resealed(kind, tree_in(folder / file, kind)) == data
        assert reader.use(use, data) == ([], "", [])


@settings(max_examples=150)
@given(data=st.data())
def test_a_made_up_index_is_refused_in_a_line_or_works(folder: Path, reader: Reader, data: st.DataObject) -> None:
    kinds, text, _ = reader.use("index", resealed("index", data.draw(changed(tree_in(folder / "index", "index")))))
    assert not kinds or "ParquetLoaderError" in kinds, (kinds, text)


@settings(max_examples=60)
@given(data=st.data())
def test_a_made_up_cache_is_rebuilt_with_a_warning_or_works(folder: Path, reader: Reader, data: st.DataObject) -> None:
    tree = data.draw(changed(tree_in(folder / "kept-cache", "index-cache")))
    kinds, text, warned = reader.use("cache", resealed("index-cache", tree))
    assert not kinds or "ParquetLoaderError" in kinds, (kinds, text)
    assert all("is damaged" in warning and "building it again" in warning for warning in warned)
    assert not (kinds and warned)


@settings(max_examples=100)
@given(data=st.data())
def test_a_made_up_checkpoint_is_refused_in_a_line_or_works(folder: Path, reader: Reader, data: st.DataObject) -> None:
    sealed = resealed("checkpoint", data.draw(changed(tree_in(folder / "part-0", "checkpoint"))))
    for use in ("checkpoint", "parts"):
        kinds, text, _ = reader.use(use, sealed)
        assert not kinds or "CheckpointError" in kinds, (kinds, text)


# ── one by one ───────────────────────────────────────────────────────────────────────────────────────────────────


def put(*path_and_value: Any) -> Any:
    """A change of a tree: what lies at this path becomes the last argument."""
    *path, key, value = path_and_value

    def change(tree: Any) -> None:
        for step in path:
            tree = tree[step]
        tree[key] = value

    return change


CHANGES = {
    "a definition level of a million": (put("layouts", 0, 3, 10**6), "definition levels up to 1000000"),
    "a definition level that is True": (put("layouts", 0, 3, True), "definition levels up to True"),
    "a definition level below the list's": (put("layouts", 0, 3, 1), "definition levels up to 1"),
    "tokens where there are none": (
        put("layouts", 0, ["tokens", "INT32", True, 0, False]),
        "tokens in a file that holds",
    ),
    "an unknown physical type": (put("layouts", 0, 1, "FLOAT"), "stored as 'FLOAT'"),
    "another column's layout": (put("layouts", 0, 0, "x"), "layouts are not of its column 'tokens'"),
    "a column that is no text": (put("column", 5), "column 5 or its root .* is no text"),
    "a root that is no text": (put("root", 5), "or its root 5 is no text"),
    "nothing but text": (lambda tree: tree.clear(), "not those of an index"),
    "a path out of the root": (put("files", 1, 0, "../outside.parquet"), "'../outside.parquet' is no path below"),
    "a path out and in": (put("files", 1, 0, "x/../../outside.parquet"), "is no path below"),
    "a path with a zero byte": (put("files", 1, 0, "z\0"), r"'z\\x00' is no path below"),
    "an empty path": (put("files", 0, 0, ""), "'' is no path below"),
    "a path that is a number": (put("files", 0, 0, 7), "are not text, an integer and text"),
    "a file that is there twice": (put("files", 0, 0, "part-001.parquet"), "not sorted by path, or are there twice"),
    "a negative size": (put("files", 0, 1, -1), "has -1 bytes"),
    "a size that is a float": (put("files", 0, 1, 1e3), "are not text, an integer and text"),
    "a size that is not a number": (put("files", 0, 1, math.nan), "are not text, an integer and text"),
    "a file without a version": (lambda tree: tree["files"][0].pop(), "not those of an index"),
    "an array that is missing": (lambda tree: tree["arrays"].pop("codec"), "not those of an index"),
    "no arrays": (put("arrays", None), "not those of an index"),
    "an array of text": (put("arrays", "rows", ["1"]), "not those of an index"),
    "a shorter array": (lambda tree: tree["arrays"]["rows"].pop(), "not of one length"),
    "a file without a layout": (lambda tree: tree["file_layout"].pop(), "not of one length"),
    "an unknown layout": (put("file_layout", 0, 1), r"one of its layouts by a number outside \[0, 1\)"),
    "an unknown file": (put("arrays", "file", 3, 2), r"one of its files by a number outside \[0, 2\)"),
    "a negative file": (put("arrays", "file", 0, -1), r"one of its files by a number outside"),
    "a row group that is there twice": (put("arrays", "row_group", 1, 0), "not in storage order"),
    "negative tokens": (put("arrays", "tokens", 0, -5), r"row group 0 of part-000\.parquet has .*tokens -5"),
    "tokens not known": (put("arrays", "tokens", 0, -1), "does not count its tokens"),
    "more tokens than slots": (put("arrays", "tokens", 0, 10**6), "tokens 1,000,000"),
    "no rows": (put("arrays", "rows", 0, 0), "rows 0"),
    "a quintillion of slots": (put("arrays", "slots", 0, 10**18), "slots 1,000,000,000,000,000,000"),
    "a chunk beyond the end": (put("arrays", "start", 0, 10**6), "start 1,000,000"),
    "a chunk before the beginning": (put("arrays", "start", 0, -(2**63)), "start -9,223"),
    "a length that overflows": (put("arrays", "length", 0, 2**63 - 1), "length 9,223"),
    "a negative length": (put("arrays", "length", 0, -1), "length -1"),
    "pages beyond the chunk": (put("arrays", "data_offset", 0, 10**6), "data_offset 1,000,000"),
    "a dictionary beyond the chunk": (put("arrays", "dictionary_offset", 0, 10**6), "dictionary_offset 1,000,000"),
    "an unknown codec": (put("arrays", "codec", 0, 99), "codec 99"),
}


@pytest.mark.parametrize(("change", "says"), CHANGES.values(), ids=CHANGES)
def test_what_no_dataset_has_is_refused_when_an_index_is_opened_and_rebuilt_where_it_is_a_cache(
    folder: Path, tmp_path: Path, change: Any, says: str
) -> None:
    tree = tree_in(folder / "index", "index")
    change(tree)
    with pytest.raises(ConfigError, match=rf"^this is no index that can be used: .*{says}.*; build it again$"):
        DatasetIndex.from_bytes(resealed("index", tree))
    build_index(folder / "set", cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    path.write_bytes(resealed("index-cache", [tree]))
    with pytest.warns(UserWarning, match=rf"is damaged \(.*{says}.*\); building it again"):
        build_index(folder / "set", cache_dir=tmp_path)
    assert path.read_bytes() == good


def test_a_cache_of_another_column_than_was_asked_for_is_rebuilt(folder: Path, tmp_path: Path) -> None:
    build_index(folder / "set", column="tokens", cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    tree = tree_of(open_container(good, "index-cache", 1))
    tree[0]["column"] = tree[0]["layouts"][0][0] = "other"
    path.write_bytes(resealed("index-cache", tree))
    with pytest.warns(UserWarning, match="is of column 'other', and not of 'tokens'"):
        build_index(folder / "set", column="tokens", cache_dir=tmp_path)
    assert path.read_bytes() == good


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff\x01",
        b"\x81\x91\x01\x01",
        b"\xa4\xff\xfe\xfd\xfc",
        b"",
        b"\x01\x01",
    ],
    ids=["deep", "a list of billions", "a map of billions", "a list as a key", "no UTF-8", "nothing", "too much"],
)
def test_a_body_that_is_no_msgpack_of_ours_is_refused_as_damage(body: bytes) -> None:
    sealed = msgpack.packb(["parquet_loader", "index", 1, _digest("index", 1, body), body])
    with pytest.raises(DamagedContainerError, match="the checksum fits, but not to what this library writes"):
        open_container(sealed, "index", 1)
    with pytest.raises(ConfigError, match="build it again"):
        DatasetIndex.from_bytes(sealed)


CHECKPOINTS = {
    "a world of quintillions": (put("world_size", 10**18), "of 1000000000000000000 ranks, of a run of 4 lanes"),
    "no world": (put("world_size", 0), "of 0 ranks"),
    "half a world": (put("world_size", 1.5), "of 1.5 ranks"),
    "a rank beyond the world": (put("rank", 2), "of rank 2 of 2"),
    "a negative rank": (put("rank", -1), "of rank -1 of 2"),
    "a rank that is True": (put("rank", True), "of rank True of 2"),
    "a rank that is missing": (lambda tree: tree.pop("rank"), "lacks a state, a rank or a world size"),
    "no state": (put("state", None), "its state is None"),
    "a state that holds more than plain values": (put("state", "seed", [[]]), "its state is"),
    "a state of floats": (put("state", "seed", math.nan), "its state is"),
    "names on two lines": (put("state", "a\nb", 1), "its state is"),
}


@pytest.mark.parametrize(("change", "says"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_what_no_run_has_is_refused_when_a_checkpoint_is_opened(folder: Path, change: Any, says: str) -> None:
    tree = tree_in(folder / "part-0", "checkpoint")
    change(tree)
    sealed = resealed("checkpoint", tree)
    with ParquetLoader(folder / "set", world_size=2, **OPTIONS) as loader:
        with pytest.raises(CheckpointDamagedError, match=f"^this is no checkpoint: .*{says}"):
            loader.resume(sealed)
        assert loader.state_dict()["position"] == 0
    with pytest.raises(CheckpointDamagedError, match=f"part number 1: .*{says}"):
        merge_checkpoints([(folder / "part-1").read_bytes(), sealed])


@pytest.mark.parametrize(
    "value", [deeper(NESTED), np.zeros(3), 10**5000, "x" * 10**6, math.nan, {1: 2}, b"x"], ids=type
)
@pytest.mark.parametrize("name", ["version", "position", "seed", "lanes", "history", "sources"])
def test_a_state_with_any_value_is_refused_in_a_short_line(folder: Path, name: str, value: Any) -> None:
    with ParquetLoader(folder / "set", **OPTIONS) as loader:
        with pytest.raises(CheckpointError, match=name) as caught:
            loader.load_state_dict({**loader.state_dict(), name: value})
        assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_a_few_parts_of_a_huge_world_are_missed_at_once() -> None:
    state = {"version": 2, "position": 0, "lanes": 2**31 - 2}
    part = seal_container("checkpoint", 2, {"state": state, "rank": 3, "world_size": 2**31 - 2})
    with pytest.raises(
        CheckpointError, match="1 of 2147483646 parts are there; missing: rank 0, rank 1, rank 2, rank 4"
    ):
        merge_checkpoints([part])
