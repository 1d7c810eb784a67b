"""Several decoding threads: how many there are by default, and that they wait for each other only where that ends."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ParquetLoader
from parquet_loader.engine import engine
from parquet_loader.formats.parquet import decode


def write(folder: Path, *, groups: int = 12, documents: int = 60, **options: object) -> Path:
    """Row groups of documents of 50 different ids."""
    folder.mkdir(exist_ok=True)
    size = documents * 50
    for number in range(groups):
        ids = np.arange(number * size, (number + 1) * size, dtype=np.int32)
        lists = pa.ListArray.from_arrays(pa.array(np.arange(0, size + 1, 50, dtype=np.int32)), pa.array(ids))
        pq.write_table(pa.table({"tokens": lists}), folder / f"{number:02}.parquet", use_dictionary=False, **options)
    return folder


def taken(folder: Path, **options: object) -> list[np.ndarray]:
    with ParquetLoader(folder, seq_len=64, lanes=4, window=3, epochs=2, **options) as loader:
        return [batch.tokens for _ in range(2) for batch in loader]


@pytest.mark.parametrize("codec", ["zstd", "gzip", "brotli"])
def test_threads_that_step_aside_for_decompression_give_the_same_batches(tmp_path: Path, codec: str) -> None:
    folder = write(tmp_path / "set", compression=codec)
    expected = taken(folder, threads=1)
    for threads in (2, 4):
        np.testing.assert_array_equal(taken(folder, threads=threads), expected)


def test_a_thread_that_waits_for_the_reserve_keeps_no_other_from_giving_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "TOGETHER_SLOTS", 1)
    folder = write(tmp_path / "set", compression="zstd")
    expected = taken(folder, threads=1)
    asked = []
    cost_bytes = decode.OpenChunk.cost_bytes

    def much(self: decode.OpenChunk, **given: object) -> int:
        asked.append(1)
        return cost_bytes(self, **given) + (40 << 20)

    monkeypatch.setattr(decode.OpenChunk, "cost_bytes", much)
    monkeypatch.setattr(engine, "reserve_bytes", lambda *_: 64 << 20)  # enough for one row group at a time
    np.testing.assert_array_equal(taken(folder, threads=4, budget_bytes=160 << 20), expected)
    assert len(asked) >= 24


def test_by_default_more_than_one_thread_decodes_only_what_is_slow_to_decompress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    found = {}
    for codec in ("none", "snappy", "lz4", "zstd", "gzip"):
        folder = write(tmp_path / codec, groups=1, compression=codec)
        with ParquetLoader(folder, seq_len=64, lanes=4) as loader:
            found[codec] = loader._config.threads
    assert found == {"none": 1, "snappy": 1, "lz4": 1, "zstd": 4, "gzip": 4}
    sources = {"one": tmp_path / "snappy", "other": tmp_path / "zstd"}
    with ParquetLoader(sources, weights="tokens", seq_len=64, lanes=4) as loader:
        next(iter(loader))
        assert len(loader._engine._prefetcher._shared.threads) == 4
