"""What goes with the tokens is with the same tokens in every batch, however these are cut, shuffled, packed, mixed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aligned_sets import TYPES, check_values, write_aligned
from unique_sets import random_files

from parquet_loader import Batch, Component, ParquetLoader, ParquetLoaderError, merge_checkpoints
from parquet_loader.engine.cost import required_bytes
from parquet_loader.engine.mixer import mixture_bytes

EOS = 2_000_000
# As writers differ: dictionaries or none, both page versions, small pages, other compressions.
WRITERS: list[dict[str, Any]] = [
    {},
    {"use_dictionary": False, "compression": "zstd"},
    {"use_dictionary": False, "data_page_version": "2.0", "compression": "none"},
    {"data_page_size": 64, "write_batch_size": 16, "compression": "gzip"},
    {"use_dictionary": False, "use_byte_stream_split": ["float32.list.element", "float64.list.element"]},
]


def random_set(folder: Path, seed: int, *, first: int = 0, **how: int) -> tuple[dict[str, str], int]:
    rng = np.random.default_rng(seed)
    columns = dict.fromkeys(rng.choice(list(TYPES), rng.integers(1, 4), replace=False).tolist())
    files = [*random_files(rng, **how), [[1, 70]]]
    columns = {str(name): str(name) for name in columns}
    options = [WRITERS[number] for number in rng.permutation(4)]
    return columns, write_aligned(folder, files, columns, first=first, options=options)


def at_eos(columns: dict[str, str]) -> dict[str, Any]:
    return {name: dtype == "bool" or 7 for name, dtype in columns.items()}


def batches_of(source: Any, count: int | None = None, **options: Any) -> list[Batch]:
    with ParquetLoader(source, **options) as loader:
        return list(itertools.islice(loader, count))


@pytest.mark.parametrize("seed", range(24))
def test_values_follow_their_tokens_through_random_sets_and_runs(seed: int, tmp_path: Path) -> None:
    columns, _ = random_set(tmp_path / "set", seed)
    rng = np.random.default_rng(seed)
    ranks = int(rng.choice([1, 2, 3, 4, 8]))
    eos = EOS if rng.random() < 0.5 else None
    options: dict[str, Any] = {
        **{"seq_len": int(rng.integers(1, 40)), "lanes": 24, "column": "input_ids", "cache_dir": tmp_path / "cache"},
        **{"window": int(rng.integers(1, 9)), "shuffle": bool(rng.random() < 0.8), "overlap": int(rng.integers(0, 2))},
        **{"eos_id": eos, "epochs": 2, "seed": seed, "world_size": ranks, "threads": int(rng.integers(1, 3))},
    }
    aligned = at_eos(columns) if eos is not None else list(columns)
    for rank in range(ranks):
        plain = batches_of(tmp_path / "set", rank=rank, **options)
        found = batches_of(tmp_path / "set", rank=rank, aligned=aligned, **options)
        assert len(found) == len(plain) > 0
        for batch, without in zip(found, plain, strict=True):
            np.testing.assert_array_equal(batch.tokens, without.tokens)
            assert batch.state == without.state
            assert without.aligned == {}
            check_values(batch, columns, {EOS: at_eos(columns)})


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", ["file", "stream"])
def test_arrow_files_bring_the_same_as_parquet(form: str, seed: int, tmp_path: Path) -> None:
    columns, _ = random_set(tmp_path / "parquet", 200 + seed)
    (tmp_path / "arrow").mkdir()
    for path in sorted((tmp_path / "parquet").iterdir()):
        with pq.ParquetFile(path) as file:
            new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
            compression = (None, "lz4", "zstd")[seed % 3]
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with new(tmp_path / "arrow" / f"{path.stem}.arrow", file.schema_arrow, options=options) as writer:
                for number in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(number).combine_chunks())
    options: dict[str, Any] = {"seq_len": 24, "lanes": 6, "column": "input_ids", "cache_dir": tmp_path, "epochs": 2}
    options |= {"eos_id": EOS, "window": 4, "aligned": at_eos(columns), "processes": int(seed == 5)}
    for batch, other in zip(*(batches_of(tmp_path / kind, **options) for kind in ("arrow", "parquet")), strict=True):
        np.testing.assert_array_equal(batch.tokens, other.tokens)
        check_values(batch, columns, {EOS: at_eos(columns)})
        check_values(other, columns, {EOS: at_eos(columns)})


@pytest.mark.parametrize("writer", range(len(WRITERS)))
@pytest.mark.parametrize("documents", [40, 900])
def test_every_type_is_read_as_it_was_written(documents: int, writer: int, tmp_path: Path) -> None:
    columns = {name: name for name in TYPES}
    lengths = np.random.default_rng(0).integers(0, 60, documents).tolist()
    write_aligned(tmp_path / "set", [[lengths, [5]]], columns, options=[WRITERS[writer]])
    options = {"seq_len": 64, "lanes": 4, "column": "input_ids", "cache_dir": tmp_path, "epochs": 1}
    for batch in batches_of(tmp_path / "set", aligned=list(TYPES), **options):
        check_values(batch, columns)


def test_pages_of_several_parts_are_cut_alike(tmp_path: Path) -> None:
    """A row group of more slots than a part has, whose columns have pages of other sizes than the tokens."""
    columns = {"int8": "int8", "float32": "float32", "bool": "bool", "int64": "int64"}
    write_aligned(tmp_path / "set", [[[900] * 2200]], columns, options=[{"compression": "lz4"}])
    options = {"seq_len": 4096, "lanes": 8, "column": "input_ids", "cache_dir": tmp_path, "epochs": 1}
    for batch in batches_of(tmp_path / "set", aligned=list(columns), **options):
        check_values(batch, columns)


def test_a_run_resumes_at_every_step_on_other_ranks_with_and_without_columns(tmp_path: Path) -> None:
    columns, _ = random_set(tmp_path / "set", 5)
    options: dict[str, Any] = {"seq_len": 16, "lanes": 8, "column": "input_ids", "cache_dir": tmp_path, "epochs": 1}
    options |= {"window": 3, "overlap": 1}
    whole = batches_of(tmp_path / "set", aligned=list(columns), **options)
    names = list(columns)
    for at, batch in enumerate(whole):
        ranks = (1, 2, 4, 8)[at % 4]
        asked = (names, names[:1], [])[at % 3]
        rank = at % ranks
        with ParquetLoader(tmp_path / "set", rank=rank, world_size=ranks, aligned=asked, **options) as loader:
            loader.load_state_dict(batch.state)
            tail = list(loader)
        assert len(tail) == len(whole) - at - 1
        own = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
        for here, there in zip(tail, whole[at + 1 :], strict=True):
            np.testing.assert_array_equal(here.tokens, there.tokens[own])
            check_values(here, {name: columns[name] for name in asked})


@pytest.mark.parametrize("seed", range(3))
def test_other_processes_decode_the_same(seed: int, tmp_path: Path) -> None:
    columns, _ = random_set(tmp_path / "set", 100 + seed, groups=6)
    options: dict[str, Any] = {"seq_len": 24, "lanes": 6, "column": "input_ids", "cache_dir": tmp_path, "epochs": 2}
    options |= {"eos_id": EOS, "window": 4}
    found = batches_of(tmp_path / "set", aligned=at_eos(columns), processes=1, **options)
    plain = batches_of(tmp_path / "set", **options)
    for batch, without in zip(found, plain, strict=True):
        np.testing.assert_array_equal(batch.tokens, without.tokens)
        check_values(batch, columns, {EOS: at_eos(columns)})


@pytest.mark.parametrize("processes", [0, 1])
def test_the_least_budget_suffices(processes: int, tmp_path: Path) -> None:
    columns = {"int8": "int8", "float64": "float64", "bool": "bool"}
    rng = np.random.default_rng(3)
    files = [[rng.integers(0, 300, 400).tolist() for _ in range(6)] for _ in range(2)]
    write_aligned(tmp_path / "set", files, columns)
    options: dict[str, Any] = {"seq_len": 100, "lanes": 12, "column": "input_ids", "cache_dir": tmp_path, "epochs": 2}
    options |= {"aligned": list(columns), "window": 5, "threads": 2, "processes": processes}
    with ParquetLoader(tmp_path / "set", **options) as loader:
        least = required_bytes(loader._config, 5)
    with ParquetLoader(tmp_path / "set", **options, budget_bytes=least) as loader:
        for batch in loader:
            check_values(batch, columns)
        assert loader.stats()["peak_bytes"] <= least
    with ParquetLoader(tmp_path / "set", **{**options, "aligned": ()}) as loader:
        assert required_bytes(loader._config, 5) < least


def mixture(folder: Path) -> tuple[dict[str, Component], dict[str, Any]]:
    """Two sets with labels, of other types, and one without any; each with its own tokens."""
    rng = np.random.default_rng(8)
    labels = {"labels": lambda tokens: np.where(tokens % 3 == 0, -100, tokens)}
    first = write_aligned(folder / "chat", random_files(rng), {**labels, "mask": lambda tokens: tokens % 2 == 0})
    second = write_aligned(folder / "web", random_files(rng), {}, first=first)
    narrow = {"labels": lambda tokens: np.where(tokens % 3 == 0, -100, tokens).astype(np.int32)}
    third = write_aligned(folder / "code", random_files(rng), narrow, first=second)
    sources = {
        "chat": Component(folder / "chat", column="input_ids"),
        "web": Component(folder / "web", fill={"labels": "tokens", "mask": True}),
        "code": Component(folder / "code", column="input_ids", fill={"mask": 0}, eos_id=third, aligned={"labels": -1}),
    }
    options = {"weights": {"chat": 0.1, "web": 0.6, "code": 0.3}, "aligned": ["labels", "mask"], "cache_dir": folder}
    return sources, {**options, "borders": (first, second, third)}


def check_mixed(batch: Batch, names: tuple[str, ...], borders: tuple[int, int, int]) -> None:
    first, second, third = borders
    tokens, source = batch.tokens, np.array(names)[batch.sources][:, None]
    labels = np.where(tokens % 3 == 0, -100, tokens)
    labels = np.where(source == "web", tokens, np.where(tokens == third, -1, labels))
    mask = np.where(source == "chat", tokens % 2 == 0, source == "web")
    assert ((tokens < first) == (source == "chat")).all()
    assert (((tokens >= first) & (tokens < second)) == (source == "web")).all()
    np.testing.assert_array_equal(batch.aligned["labels"], labels)
    np.testing.assert_array_equal(batch.aligned["mask"], mask)
    assert (batch.aligned["labels"].dtype, batch.aligned["mask"].dtype) == (np.int64, np.bool_)


def test_sources_without_columns_are_filled_and_mixtures_resume_on_any_ranks(tmp_path: Path) -> None:
    sources, options = mixture(tmp_path)
    borders = options.pop("borders")
    options |= {"seq_len": 8, "lanes": 8, "overlap": 1}
    with ParquetLoader(sources, **options) as loader:
        names = loader.sources
        whole = list(itertools.islice(loader, 200))
    for batch in whole:
        check_mixed(batch, names, borders)
    for at in range(0, 180, 17):
        ranks = (1, 2, 4, 8)[at % 4]
        for rank in {0, ranks - 1}:
            with ParquetLoader(sources, rank=rank, world_size=ranks, **options) as loader:
                loader.load_state_dict(whole[at].state)
                tail = list(itertools.islice(loader, 20))
            for here, there in zip(tail, whole[at + 1 :], strict=False):
                np.testing.assert_array_equal(here.tokens, there.tokens[rank * 8 // ranks : (rank + 1) * 8 // ranks])
                check_mixed(here, names, borders)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_mixture_fits_its_least_budget(processes: int, tmp_path: Path) -> None:
    sources, options = mixture(tmp_path)
    borders = options.pop("borders")
    options |= {"seq_len": 8, "lanes": 8, "window": 3, "processes": processes}
    with ParquetLoader(sources, **options) as loader:
        run = loader._run
        least = mixture_bytes(run.configs, run.progress, run.plan)
    with ParquetLoader(sources, **options, budget_bytes=least) as loader:
        for batch in itertools.islice(loader, 300):
            check_mixed(batch, loader.sources, borders)
        assert loader.stats()["peak_bytes"] <= least


@pytest.mark.parametrize("form", ["parquet", "save_to_disk"])
def test_a_prepared_fine_tuning_set_is_mixed_into_pretraining_and_resumed_on_other_ranks(
    form: str, tmp_path: Path
) -> None:
    """As TRL and Axolotl prepare one: prompts have the label -100, each row an attention mask of ones."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 200, 300)
    tokens = [rng.integers(0, 50_000, length) for length in lengths]
    prompts = [rng.integers(5, length) for length in lengths]
    labels = [np.where(np.arange(len(row)) < prompt, -100, row) for row, prompt in zip(tokens, prompts, strict=True)]
    sft = pa.table(
        {
            "input_ids": pa.array(tokens, pa.list_(pa.int64())),
            "attention_mask": pa.array([np.ones(length, np.int64) for length in lengths], pa.list_(pa.int64())),
            "labels": pa.array(labels, pa.list_(pa.int64())),
        }
    )
    if form == "parquet":
        (tmp_path / "sft").mkdir()
        pq.write_table(sft, tmp_path / "sft" / "train.parquet", row_group_size=100)
    else:
        datasets.Dataset(sft).save_to_disk(tmp_path / "sft")
    write_aligned(tmp_path / "web", [[[500] * 100] * 3], {}, first=100_000)
    sources = {
        "sft": Component(tmp_path / "sft", column="input_ids", eos_id=50_000, aligned={"labels": 50_000}),
        "web": Component(tmp_path / "web", fill={"labels": "tokens"}),
    }
    options: dict[str, Any] = {"seq_len": 128, "lanes": 16, "weights": {"sft": 0.1, "web": 0.9}, "cache_dir": tmp_path}
    options |= {"aligned": ["labels"], "world_size": 2}

    parts, first_half = [], []
    for rank in range(2):
        with ParquetLoader(sources, rank=rank, **options) as loader:
            first_half.append([next(iter(loader)) for _ in range(10)])
            parts.append(loader.checkpoint())
    checkpoint = merge_checkpoints(parts)
    rows = list(zip(*first_half, strict=True))
    for rank in range(4):
        with ParquetLoader(sources, rank=rank, **{**options, "world_size": 4}) as loader:
            loader.resume(checkpoint)
            following = [next(iter(loader)) for _ in range(10)]
        rows = [*rows, *((batch,) for batch in following)]
    seen = 0
    for batch in itertools.chain.from_iterable(rows):
        is_sft = batch.sources == 0
        trained = batch.aligned["labels"] != -100
        assert trained[~is_sft].all()
        assert (batch.aligned["labels"][trained] == batch.tokens[trained]).all()
        seen += int(is_sft.sum())
    # 10 % of all rows, within one a block; about half of what is in them is prompts.
    assert abs(seen - 0.1 * 20 * 16) < 16


def test_raw_shards_are_mixed_in_where_something_is_said_of_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    first = write_aligned(tmp_path / "chat", random_files(rng), {"labels": lambda tokens: tokens - 100})
    (tmp_path / "raw").mkdir()
    np.arange(first, first + 3000, dtype=np.uint16).tofile(tmp_path / "raw" / "a.bin")
    sources = {
        "chat": Component(tmp_path / "chat", column="input_ids"),
        "raw": Component(tmp_path / "raw", format="raw", raw_dtype="uint16", eos_id=9, fill={"labels": "tokens"}),
    }
    options: dict[str, Any] = {"weights": {"chat": 1, "raw": 1}, "seq_len": 8, "lanes": 4, "cache_dir": tmp_path}
    for batch in batches_of(sources, 100, aligned=["labels"], **options):
        expected = np.where(batch.sources[:, None] == 0, batch.tokens - 100, batch.tokens)
        np.testing.assert_array_equal(batch.aligned["labels"], expected)


def test_nothing_is_filled_in_beside_padding(tmp_path: Path) -> None:
    first = write_aligned(tmp_path / "chat", [[[30] * 20]], {"labels": lambda tokens: tokens, "mask": np.ones_like})
    write_aligned(tmp_path / "rows", [[[8, 5, 0, 7, 3] * 20]], {}, first=first)
    sources = {
        "chat": Component(tmp_path / "chat", column="input_ids"),
        "rows": Component(tmp_path / "rows", packing="rows", pad_id=9, fill={"labels": "tokens", "mask": 1}),
    }
    options: dict[str, Any] = {"weights": {"chat": 1, "rows": 1}, "seq_len": 8, "lanes": 4, "cache_dir": tmp_path}
    padded = 0
    for batch in batches_of(sources, 100, aligned=["labels", "mask"], **options):
        if batch.lengths is None:
            continue
        beyond = np.arange(8) >= batch.lengths[:, None]
        padded += beyond.sum()
        np.testing.assert_array_equal(batch.aligned["labels"], np.where(beyond, 0, batch.tokens))
        np.testing.assert_array_equal(batch.aligned["mask"], ~beyond)
    assert padded


@pytest.mark.parametrize("writer", range(4))
def test_damage_of_columns_is_an_error_or_changes_nothing_else(writer: int, tmp_path: Path) -> None:
    """Bits flipped anywhere in a file: no crash, no wrong shape, no id beyond the vocabulary."""
    rng = np.random.default_rng(writer)
    columns = {"labels": "int64", "mask": "bool", "weights": "float32", "half": "float16", "narrow": "int8"}
    write_aligned(tmp_path / "set", [[[20, 0, 31, 7] * 8] * 2], columns, options=[WRITERS[writer]])
    path = tmp_path / "set" / "part-000.parquet"
    whole = path.read_bytes()
    options: dict[str, Any] = {"seq_len": 16, "lanes": 3, "column": "input_ids", "cache_dir": tmp_path, "epochs": 1}
    refused = 0
    for _ in range(25):
        data = bytearray(whole)
        for at in rng.integers(4, len(data) - 8, 3).tolist():
            data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            for batch in batches_of(tmp_path / "set", aligned=list(columns), vocab_size=2000, **options):
                assert batch.tokens.max() < 2000
                assert all(batch.aligned[name].shape == batch.tokens.shape for name in columns)
        except ParquetLoaderError:
            refused += 1
    assert refused
