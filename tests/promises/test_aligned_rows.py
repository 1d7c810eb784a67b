"""Aligned columns of sets that are packed by rows: cut, permuted and padded as their tokens; boundaries from them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aligned_sets import check_values, value_of, write_aligned
from packed_rows import PAD, row_files

from parquet_loader import Batch, Component, DataError, ParquetLoader, merge_checkpoints
from parquet_loader.engine.cost import required_bytes
from parquet_loader.formats.parquet import decode

COLUMNS = {"labels": "int32", "loss_mask": "bool", "weights": "float32", "narrow": "int8"}
ORDER = dict(lanes=6, window=3, seed=7, column="input_ids")


def files_of(seed: int, width: int, *, shorter: bool, rows: int = 25) -> list[list[list[int]]]:
    return row_files(np.random.default_rng(seed), width, shorter=shorter, rows=rows)


@pytest.mark.parametrize(("ranks", "part_slots", "processes"), [(1, 100, 0), (4, 100, 0), (1, 1 << 20, 0), (2, 1, 1)])
@pytest.mark.parametrize("shorter", [False, True])
def test_values_follow_their_tokens_into_rows_and_their_padding(
    tmp_path: Path, monkeypatch, ranks: int, processes: int, shorter: bool, part_slots: int
) -> None:
    monkeypatch.setattr(decode, "PART_SLOTS", part_slots)  # which other processes know nothing of
    writers = ({"data_page_size": 70, "write_batch_size": 5}, {"compression": "zstd"})
    total = write_aligned(tmp_path / "set", files_of(1, 9, shorter=shorter), COLUMNS, options=writers)
    options: dict[str, Any] = dict(seq_len=8, overlap=1, packing="rows", epochs=1, aligned=list(COLUMNS), **ORDER)
    seen = []
    for rank in range(ranks):
        place = dict(rank=rank, world_size=ranks, uneven=True, processes=processes, cache_dir=tmp_path)
        with ParquetLoader(tmp_path / "set", pad_id=PAD if shorter else None, **options, **place) as loader:
            for batch in loader:
                check_values(batch, COLUMNS)
                lengths = [9] * len(batch.tokens) if batch.lengths is None else batch.lengths.tolist()
                seen += [token for row, n in zip(batch.tokens, lengths, strict=True) for token in row[:n].tolist()]
    assert sorted(seen) == list(range(total))


@pytest.mark.parametrize("processes", [0, 1])
def test_the_least_budget_is_enough_for_what_goes_with_rows(tmp_path: Path, processes: int) -> None:
    files = [[np.random.default_rng(2).integers(0, 3, 300).tolist() for _ in range(4)] for _ in range(2)]
    write_aligned(tmp_path / "set", files, COLUMNS)
    options: dict[str, Any] = dict(seq_len=64, packing="rows", pad_id=PAD, epochs=2, processes=processes, **ORDER)
    options |= {"aligned": list(COLUMNS), "cache_dir": tmp_path}
    with ParquetLoader(tmp_path / "set", **options) as loader:
        least = required_bytes(loader._config, 3)
    assert least > 3 * 300 * 64 * (4 + 4 + 1 + 4 + 1)  # a window's slices, padded
    with ParquetLoader(tmp_path / "set", budget_bytes=least, **options) as loader:
        for batch in loader:
            check_values(batch, COLUMNS)
        assert loader.stats()["peak_bytes"] <= least


@pytest.mark.parametrize("pad_id", [None, PAD])
@pytest.mark.parametrize("part_slots", [100, 1 << 20])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("wrong", [[9, 11], [11, 9], [0, 20]])
def test_a_row_that_differs_from_its_tokens_is_named(
    tmp_path: Path, monkeypatch, pad_id: int | None, part_slots: int, groups: int, wrong: list[int]
) -> None:
    monkeypatch.setattr(decode, "PART_SLOTS", part_slots)
    schema = pa.schema({"input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int32())})
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, data_page_size=40, write_batch_size=3) as writer:
        for group in range(groups):
            other = [[1] * 10] * 40
            if group == groups - 1:
                other[20:22] = [[1] * length for length in wrong]
            writer.write_table(pa.table({"input_ids": [[1] * 10] * 40, "labels": other}, schema=schema))
    options: dict[str, Any] = dict(seq_len=10, packing="rows", pad_id=pad_id, aligned=["labels"], shuffle=False)
    where = rf"row group {groups - 1}, column 'labels': row 20 has {wrong[0]} values, and 10 tokens in 'input_ids'"
    with (
        ParquetLoader(tmp_path, lanes=1, column="input_ids", **options) as loader,
        pytest.raises(DataError, match=where),
    ):
        list(loader)


def write_bounded(folder: Path, **columns: list[list[int]]) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [[1, 2, 3, 4, 5], [6, 7, 8], [], [9, 10, 11, 12, 13]]
    pq.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32())), **columns}), folder / "a.parquet")
    return folder


DOCUMENT_IDS = [[0, 0, 1, 1, 2], [0, 1, 1], [], [0, 0, 0, 0, 0]]
POSITION_IDS = [[7, 8, 0, 1, 0], [0, 0, 1], [], [0, 1, 2, 0, 1]]
STARTS = {
    "document_ids": [[0, 2, 4], [0, 1], [], [0]],
    "position_ids": [[2, 4], [0, 1], [], [0, 3]],  # the first row begins within a document
    "other": [[0], [0], [], [0]],
}


def starts_of(batch: Batch) -> list[list[int]]:
    splits, columns = batch.document_starts()
    return [columns[low:high].tolist() for low, high in pairwise(splits)]


@pytest.mark.parametrize("name", STARTS)
def test_boundaries_are_those_that_an_aligned_column_tells_of(tmp_path: Path, name: str) -> None:
    write_bounded(tmp_path, **{name: POSITION_IDS if name == "position_ids" else DOCUMENT_IDS})
    options: dict[str, Any] = dict(seq_len=5, lanes=4, packing="rows", pad_id=0, shuffle=False, column="input_ids")
    with ParquetLoader(tmp_path, aligned=[name], **options) as loader:
        batch = next(iter(loader))
    assert starts_of(batch) == STARTS[name]
    if name == "document_ids":
        assert batch.documents().position_ids().tolist() == [
            [0, 1, 0, 1, 0],
            [0, 0, 1, 0, 1],
            [0, 1, 2, 3, 4],
            [0, 1, 2, 3, 4],
        ]
    with ParquetLoader(tmp_path, **options) as loader:
        assert starts_of(next(iter(loader))) == STARTS["other"]


def test_boundaries_of_a_mixture_are_each_sources_own(tmp_path: Path) -> None:
    write_bounded(tmp_path / "a", document_ids=DOCUMENT_IDS)
    write_bounded(tmp_path / "b", other=DOCUMENT_IDS)
    rows = {"packing": "rows", "pad_id": 0, "column": "input_ids"}
    sources = {
        "told": Component(tmp_path / "a", **rows),
        "whole": Component(tmp_path / "b", fill={"document_ids": 0}, **rows),
        "tokens": Component(tmp_path / "a", column="input_ids"),
    }
    weights = {"told": 1, "whole": 1, "tokens": 1}
    by_tokens = {(1, 2, 3, 4, 5): [0, 2, 4], (9, 10, 11, 12, 13): [0]}
    seen = set()
    with ParquetLoader(sources, seq_len=5, lanes=4, weights=weights, aligned=["document_ids"]) as loader:
        for batch, _ in zip(loader, range(64), strict=False):
            for row, source, starts in zip(batch.tokens.tolist(), batch.sources, starts_of(batch), strict=True):
                name = loader.sources[source]
                if name == "told" and tuple(row) in by_tokens:
                    assert starts == by_tokens[tuple(row)]
                    seen.add(tuple(row))
                if name == "whole":
                    assert starts == ([0] if any(row) else [])
                if name == "tokens":  # packed by the loader: where 1, 6 or 9 begins a document
                    assert set(starts) >= {column for column, token in enumerate(row) if token in (1, 6, 9)}
    assert len(seen) == 2


def test_prepared_rows_are_mixed_into_pretraining_and_resumed_on_other_ranks(tmp_path: Path) -> None:
    first = write_aligned(tmp_path / "chat", files_of(3, 9, shorter=True), {"labels": "int32"})
    write_aligned(tmp_path / "web", [[[50] * 20] * 3], {}, first=first)
    sources = {
        "chat": Component(tmp_path / "chat", packing="rows", pad_id=0),
        "web": Component(tmp_path / "web", fill={"labels": "tokens"}),
    }
    options: dict[str, Any] = dict(seq_len=8, overlap=1, weights={"chat": 0.1, "web": 0.9}, aligned=["labels"], **ORDER)

    def go(ranks: int, steps: int, state: bytes | None) -> tuple[list[list[Batch]], bytes]:
        loaders = [ParquetLoader(sources, rank=rank, world_size=ranks, **options) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.resume(state)
        found = [[next(iter(loader)) for loader in loaders] for _ in range(steps)]
        merged = merge_checkpoints([loader.checkpoint() for loader in loaders])
        for loader in loaders:
            loader.close()
        return found, merged

    whole, _ = go(1, 90, None)
    before, state = go(2, 37, None)
    after, _ = go(3, 53, state)
    for (expected,), found in zip(whole, [*before, *after], strict=True):
        for name in ("tokens", "labels"):
            of = [batch.tokens if name == "tokens" else batch.aligned[name] for batch in (expected, *found)]
            assert np.concatenate(of[1:]).tolist() == of[0].tolist()
        lengths = np.full(6, 9) if expected.lengths is None else expected.lengths
        for row, labels, length, source in zip(
            expected.tokens, expected.aligned["labels"], lengths, expected.sources, strict=True
        ):
            wanted = value_of(row, "int32") if source == 0 else row
            assert labels[:length].tolist() == wanted[:length].tolist()
            assert not labels[length:].any()
