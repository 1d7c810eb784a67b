"""Every damage to a container is noticed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquet_loader.container import DamagedContainerError, OtherVersionError, open_container, seal_container
from parquet_loader.storage.atomic import write_atomically

PAYLOAD = {"files": ["a", "b"], "numbers": [1, -2, 3.5, None, True], "raw": b"\x00\xff" * 20}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN, st.integers(0, 1000))
def test_what_was_sealed_is_opened(payload: Any, version: int) -> None:
    assert open_container(seal_container("kind", version, payload), "kind", version) == payload


@given(PLAIN)
def test_sealing_twice_gives_the_same_bytes(payload: Any) -> None:
    assert seal_container("kind", 1, payload) == seal_container("kind", 1, payload)


def test_every_flipped_bit_is_noticed() -> None:
    whole = seal_container("kind", 3, PAYLOAD)
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedContainerError):
            open_container(bytes(damaged), "kind", 3)


def test_every_cut_is_noticed() -> None:
    whole = seal_container("kind", 3, PAYLOAD)
    for length in range(len(whole)):
        with pytest.raises(DamagedContainerError):
            open_container(whole[:length], "kind", 3)


@given(st.binary(min_size=1, max_size=100))
def test_bytes_too_many_are_noticed(more: bytes) -> None:
    with pytest.raises(DamagedContainerError):
        open_container(seal_container("kind", 3, PAYLOAD) + more, "kind", 3)


@given(st.data())
def test_any_changed_stretch_is_noticed(data: st.DataObject) -> None:
    whole = seal_container("kind", 3, PAYLOAD)
    start = data.draw(st.integers(0, len(whole) - 1))
    stretch = data.draw(st.binary(min_size=1, max_size=len(whole) - start))
    damaged = whole[:start] + stretch + whole[start + len(stretch) :]
    if damaged == whole:
        return
    with pytest.raises(DamagedContainerError):
        open_container(damaged, "kind", 3)


@given(st.binary(max_size=300))
def test_bytes_of_another_make_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedContainerError):
        open_container(data, "kind", 3)


@pytest.mark.parametrize(
    "other",
    [
        [],
        {},
        None,
        ["parquet_loader"],
        ["parquet_loader", "kind", 3, b"", b""],
        ["parquet_loader", [], {}, 1, 2],
        ["parquet_loader", "kind", 3, b"", "text"],
        ["parquet_loader", "kind", "3", b"", b"x"],
    ],
    ids=repr,
)
def test_msgpack_of_another_make_is_refused(other: Any) -> None:
    with pytest.raises(DamagedContainerError):
        open_container(msgpack.packb(other), "kind", 3)


def test_deeply_nested_msgpack_is_refused() -> None:
    with pytest.raises(DamagedContainerError):
        open_container(b"\x91" * 100_000, "kind", 3)


def test_another_kind_is_told_by_name() -> None:
    with pytest.raises(DamagedContainerError, match="holds 'index' where 'checkpoint' is wanted"):
        open_container(seal_container("index", 3, PAYLOAD), "checkpoint", 3)


@pytest.mark.parametrize("version", [2, 4])
def test_another_version_is_told_apart_from_damage(version: int) -> None:
    with pytest.raises(OtherVersionError, match=f"format version {version}, and this release reads version 3"):
        open_container(seal_container("kind", version, PAYLOAD), "kind", 3)


def test_a_container_opens_with_any_msgpack_reader() -> None:
    magic, kind, version, digest, body = msgpack.unpackb(seal_container("kind", 3, PAYLOAD))
    assert (magic, kind, version, len(digest)) == ("parquet_loader", "kind", 3, 32)
    assert msgpack.unpackb(body) == PAYLOAD


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for data in (b"old", b"new"):
        write_atomically(tmp_path / "x", data)
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", data)]


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "x", b"old")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "x", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"old")]


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "any").touch()
    write_atomically(tmp_path / "x", b"")
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == stat.S_IMODE((tmp_path / "any").stat().st_mode)
