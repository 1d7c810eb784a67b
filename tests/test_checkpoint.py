"""Checkpoints are merged and resumed only where they belong; nothing is ever misread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    ParquetLoader,
    merge_checkpoints,
)
from parquet_loader.checkpoint import seal_checkpoint
from parquet_loader.container import seal_container

OPTIONS = dict(seq_len=16, lanes=4, window=2, seed=5)


@pytest.fixture(scope="module")
def files():
    return unique_groups(random_files(np.random.default_rng(6), files=2, groups=4))


@pytest.fixture(scope="module")
def folder(files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("set"), files)


def parts_of(folder: Path, world_size: int, steps: int = 3, **options) -> list[bytes]:
    parts = []
    for rank in range(world_size):
        with ParquetLoader(folder, rank=rank, world_size=world_size, **{**OPTIONS, **options}) as loader:
            for _ in range(steps):
                next(iter(loader))
            parts.append(loader.checkpoint())
    return parts


def test_parts_merge_in_any_order_to_the_same_bytes(folder: Path) -> None:
    parts = parts_of(folder, 4)
    assert merge_checkpoints(parts) == merge_checkpoints(parts[::-1]) == merge_checkpoints(iter(parts))


def test_a_merged_checkpoint_is_taken_by_any_world_size(folder: Path) -> None:
    whole = merge_checkpoints(parts_of(folder, 2))
    for world_size in (1, 2, 4):
        for rank in range(world_size):
            with ParquetLoader(folder, rank=rank, world_size=world_size, **OPTIONS) as loader:
                loader.resume(whole)
                assert loader.state_dict()["position"] == 3 * 16


def test_a_part_is_taken_by_its_own_rank_and_by_no_other(folder: Path) -> None:
    part = parts_of(folder, 2)[1]
    with ParquetLoader(folder, rank=1, world_size=2, **OPTIONS) as loader:
        loader.resume(part)
        assert loader.state_dict()["position"] == 3 * 16
    for rank, world_size in [(0, 2), (1, 4), (0, 1)]:
        with ParquetLoader(folder, rank=rank, world_size=world_size, **OPTIONS) as loader:
            with pytest.raises(CheckpointMismatchError, match=r"part of rank 1 of 2.*merge_checkpoints"):
                loader.resume(part)
            assert loader.state_dict()["position"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: parts[:3], "3 of 4 parts are there; missing: rank 3"),
        (lambda parts: [parts[0], parts[2], parts[2], parts[3]], "rank 2 is there twice: parts number 1 and 2"),
        (lambda parts: [*parts, parts[1]], "rank 1 is there twice"),
        (lambda parts: [], "no parts"),
        (lambda parts: [parts[0][:-1], *parts[1:]], "part number 0"),
    ],
    ids=["missing", "doubled", "one too many", "none", "cut"],
)
def test_a_merge_refuses_what_is_not_every_rank_once(folder: Path, change, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        merge_checkpoints(change(parts_of(folder, 4)))


def test_a_merge_refuses_parts_of_different_steps(folder: Path) -> None:
    parts = [parts_of(folder, 2, steps=3)[0], parts_of(folder, 2, steps=4)[1]]
    with pytest.raises(CheckpointMismatchError, match=r"different steps: position 48 and 64"):
        merge_checkpoints(parts)


def test_a_merge_refuses_parts_of_different_runs(folder: Path) -> None:
    parts = [parts_of(folder, 2)[0], parts_of(folder, 2, seed=6)[1]]
    with pytest.raises(CheckpointMismatchError, match=r"different runs: seed 5 and 6"):
        merge_checkpoints(parts)


def test_a_merge_refuses_parts_of_different_world_sizes(folder: Path) -> None:
    parts = [parts_of(folder, 2)[0], parts_of(folder, 4)[1]]
    with pytest.raises(CheckpointMismatchError, match=r"on 4 ranks .* on 2"):
        merge_checkpoints(parts)


def test_a_merge_refuses_what_is_merged_already(folder: Path) -> None:
    whole = merge_checkpoints(parts_of(folder, 1))
    with pytest.raises(CheckpointMismatchError, match="merged already"):
        merge_checkpoints([whole])


def test_another_version_of_the_format_is_refused_by_name(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        state = loader.state_dict()
        later = seal_container("checkpoint", 3, {"state": state, "rank": None, "world_size": 1})
        with pytest.raises(CheckpointMismatchError, match="format version 3, and this release reads version 2"):
            loader.resume(later)
        with pytest.raises(CheckpointMismatchError, match="format version 3"):
            merge_checkpoints([later])
        with pytest.raises(CheckpointMismatchError, match="version 7"):
            loader.resume(seal_checkpoint({**state, "version": 7}, None, 1))


def test_every_changed_byte_and_every_cut_is_refused(folder: Path) -> None:
    part = parts_of(folder, 1)[0]
    with ParquetLoader(folder, **OPTIONS) as loader:
        for place in range(len(part)):
            for bit in (0, 3, 7):
                damaged = bytearray(part)
                damaged[place] ^= 1 << bit
                with pytest.raises(CheckpointError):
                    loader.resume(bytes(damaged))
            with pytest.raises(CheckpointDamagedError):
                loader.resume(part[:place])
        with pytest.raises(CheckpointDamagedError):
            loader.resume(part + b"\0")
        assert loader.state_dict()["position"] == 0


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"hello", msgpack.packb({"a": 1}), msgpack.packb([1, 2, 3, 4, 5]), "text", None, 5, {}]
)
def test_what_is_no_checkpoint_is_refused_as_such(folder: Path, data) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader, pytest.raises(CheckpointDamagedError):
        loader.resume(data)


@pytest.mark.parametrize("state", [{}, None, [], {"version": 2}, {"position": 3}, "x"])
def test_what_is_no_state_is_refused_as_such(folder: Path, state) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader, pytest.raises(CheckpointDamagedError):
        loader.load_state_dict(state)


@pytest.mark.parametrize("position", [-1, 1.5, None, True, "3"])
def test_a_position_that_is_no_count_is_refused(folder: Path, position) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader, pytest.raises(CheckpointDamagedError, match="position"):
        loader.load_state_dict({**loader.state_dict(), "position": position})


@pytest.mark.parametrize(
    ("change", "name", "theirs", "ours"),
    [
        ({"seed": 6}, "seed", "5", "6"),
        ({"lanes": 8}, "lanes", "4", "8"),
        ({"window": 3}, "window", "2", "3"),
        ({"shuffle": False}, "shuffle", "True", "False"),
        ({"eos_id": 0}, "eos_id", "None", "0"),
    ],
)
def test_a_checkpoint_of_another_order_is_refused_with_both_values(folder, change, name, theirs, ours) -> None:
    whole = merge_checkpoints(parts_of(folder, 1))
    with ParquetLoader(folder, **{**OPTIONS, **change}) as loader:
        with pytest.raises(CheckpointMismatchError, match=f"{name} is {theirs} in the checkpoint and {ours} in this"):
            loader.resume(whole)
        assert loader.state_dict()["position"] == 0


def test_a_checkpoint_of_other_files_is_refused_and_says_what_differs(folder, files, tmp_path: Path) -> None:
    whole = merge_checkpoints(parts_of(folder, 1))
    other = write_set(tmp_path / "other", files[:1])
    with (
        ParquetLoader(other, **OPTIONS) as loader,
        pytest.raises(CheckpointMismatchError, match=r"fingerprint.*files is 2 in the checkpoint and 1 in this loader"),
    ):
        loader.resume(whole)


def test_a_checkpoint_of_another_column_is_refused(folder: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    whole = merge_checkpoints(parts_of(folder, 1))
    renamed = tmp_path / "renamed"
    renamed.mkdir()
    for file in folder.iterdir():
        table = pq.read_table(file).rename_columns(["ids"])
        sizes = [
            pq.ParquetFile(file).metadata.row_group(g).num_rows for g in range(pq.read_metadata(file).num_row_groups)
        ]
        with pq.ParquetWriter(renamed / file.name, table.schema) as writer:
            begin = 0
            for size in sizes:
                writer.write_table(table.slice(begin, size))
                begin += size
    with (
        ParquetLoader(renamed, **OPTIONS) as loader,
        pytest.raises(CheckpointMismatchError, match=r"column is 'tokens' in the checkpoint and 'ids' in this loader"),
    ):
        loader.resume(whole)


def test_every_difference_is_named_at_once(folder: Path) -> None:
    whole = merge_checkpoints(parts_of(folder, 1))
    other = {**OPTIONS, "seed": 9, "window": 1, "lanes": 2}
    with ParquetLoader(folder, **other) as loader, pytest.raises(CheckpointMismatchError) as caught:
        loader.resume(whole)
    for name in ("seed", "window", "lanes"):
        assert f"{name} is" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("seed", True), ("seed", -1), ("lanes", 0), ("lanes", 4.0)])
def test_a_seed_or_lanes_that_no_run_has_are_refused(folder: Path, name: str, value: object) -> None:
    with (
        ParquetLoader(folder, **{**OPTIONS, "seed": 1}) as loader,
        pytest.raises(CheckpointDamagedError, match=f"{name} .* {value!r}"),
    ):
        loader.load_state_dict({**loader.state_dict(), name: value})


def test_a_checkpoint_is_small_and_readable_by_any_msgpack(folder: Path) -> None:
    part = parts_of(folder, 1)[0]
    assert len(part) < 1000
    magic, kind, version, digest, body = msgpack.unpackb(part)
    assert (magic, kind, version, len(digest)) == ("parquet_loader", "checkpoint", 2, 32)
    payload = msgpack.unpackb(body)
    assert payload["rank"] == 0 and payload["world_size"] == 1
    assert payload["state"]["position"] == 3 * 16


@pytest.mark.parametrize("parts", [None, 5, b"checkpoint"])
def test_what_is_no_list_of_parts_is_refused(parts: Any) -> None:
    with pytest.raises(CheckpointDamagedError, match="parts must be a list of checkpoints"):
        merge_checkpoints(parts)


def test_a_state_and_a_checkpoint_taken_for_each_other_are_told_where_they_belong(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        with pytest.raises(CheckpointDamagedError, match="give a checkpoint's bytes to resume"):
            loader.load_state_dict(loader.checkpoint())
        with pytest.raises(CheckpointDamagedError, match="give a state to load_state_dict"):
            loader.resume(loader.state_dict())
