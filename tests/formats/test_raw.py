"""Raw files of token ids, as shards, with a header, as `.npy`, and as Megatron's pairs: against NumPy and Parquet."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raw_sets import flat, random_files, write_llm_c, write_megatron, write_shards

from parquet_loader import (
    Component,
    ConfigError,
    DataError,
    DatasetIndex,
    FileChangedError,
    ParquetLoader,
    build_index,
    merge_checkpoints,
)
from parquet_loader.formats.raw import entries
from parquet_loader.insight import check, inspect
from parquet_loader.storage import open_storage

EOS = 0
OPTIONS: dict[str, Any] = {"seq_len": 8, "lanes": 4, "seed": 5, "vocab_size": 500}
RANDOM_SETS = int(os.environ.get("RAW_RANDOM_SETS", "6"))


def tokens_of(source: Any, *, epochs: int = 1, **options: Any) -> list[list[int]]:
    """The rows of all lanes, batch after batch."""
    with ParquetLoader(source, **OPTIONS | {"epochs": epochs} | options) as loader:
        return [row for _ in range(epochs) for batch in loader for row in batch.tokens.tolist()]


def documents_in(index: DatasetIndex, source: Any, eos_id: int | None = None) -> list[list[int]]:
    """All documents by the index, row group after row group, as they are stored."""
    storage = open_storage(source)
    found: list[list[int]] = []
    for group in range(len(index)):
        _, opened = index.open(storage, index.chunk(group))
        parts = list(opened.parts(eos_id=eos_id if index.is_stream else None))
        tokens = np.concatenate([part.tokens for part in parts])
        starts = np.concatenate([part.begin + part.starts for part in parts])
        found += [each.tolist() for each in np.split(tokens, starts[1:])]
    return found


def write_parquet(folder: Path, files: list[list[list[int]]]) -> Path:
    """The same documents, each file one row group, by names in the same order."""
    folder.mkdir(parents=True)
    for number, documents in enumerate(files):
        table = pa.table({"tokens": pa.array(documents, pa.list_(pa.uint16()))})
        pq.write_table(table, folder / f"chunk_{number:06d}.parquet")
    return folder


@pytest.fixture
def files() -> list[list[list[int]]]:
    return random_files(np.random.default_rng(11))


# ── what is read ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_shards_are_read_in_the_order_of_their_meta_json(tmp_path: Path, files: list[list[list[int]]]) -> None:
    folder = write_shards(tmp_path / "set", files, eos_id=EOS)
    meta = json.loads((folder / "meta.json").read_text())[::-1]
    (folder / "meta.json").write_text(json.dumps({"chunks": meta, "dtype": "uint16"}))
    (folder / "left_over.bin").write_bytes(b"\1")  # which it does not name
    index = build_index(folder)
    assert [file.path for file in index.files] == [*(each["file"] for each in meta), "meta.json"]
    ended = [[*document, EOS] for documents in files[::-1] for document in documents]
    assert documents_in(index, folder, EOS) == ended
    assert DatasetIndex.from_bytes(index.to_bytes()).files == index.files


def test_a_meta_json_tells_of_files_in_folders_below_it_and_several_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shards(tmp_path / "set" / name, [[[1, 2]], [[3] * 9]], eos_id=EOS)
    assert len(build_index(tmp_path / "set")) == 4
    for name in ("a", "b"):
        (tmp_path / "set" / name / "meta.json").unlink()
    meta = [{"file": f"{name}/chunk_000001.bin", "dtype": "uint16"} for name in ("b", "a")]
    (tmp_path / "set" / "meta.json").write_text(json.dumps(meta))
    paths = [file.path for file in build_index(tmp_path / "set").files]
    assert paths == ["b/chunk_000001.bin", "a/chunk_000001.bin", "meta.json"]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
def test_ids_of_any_integer_type_are_read(tmp_path: Path, dtype: str) -> None:
    files = [[[1, 2, 3], [4]], [[5, 6, 7, 8], []], [[9] * 40]]
    folder = write_shards(tmp_path / "set", files, eos_id=EOS, dtype=dtype, meta=False)
    with pytest.raises(ConfigError, match=r"chunk_000000\.bin does not say .*give raw_dtype='uint16' or"):
        build_index(folder)
    assert documents_in(build_index(folder, raw_dtype=dtype), folder, EOS) == [
        [*document, EOS] for documents in files for document in documents
    ]
    expected = tokens_of(write_parquet(tmp_path / "parquet", files), eos_id=EOS)
    assert tokens_of(folder, raw_dtype=dtype, eos_id=EOS) == expected
    assert tokens_of(folder, raw_dtype=dtype, eos_id=EOS, dtype="int64") == expected


def write_npy(path: Path, ids: list[int]) -> None:
    np.save(path.with_suffix(".npy"), np.array(ids, "<u4"))


@pytest.mark.parametrize(
    "write",
    [
        lambda path, ids: write_llm_c(path, ids),
        lambda path, ids: write_llm_c(path, ids, wide=True),
        write_npy,
    ],
)
def test_files_with_a_header_need_no_dtype(
    tmp_path: Path, files: list[list[list[int]]], write: Callable[[Path, list[int]], None]
) -> None:
    (tmp_path / "set").mkdir()
    for number, documents in enumerate(files):
        write(tmp_path / "set" / f"chunk_{number:06d}.bin", flat(documents, EOS))
    expected = tokens_of(write_parquet(tmp_path / "parquet", files), eos_id=EOS)
    assert tokens_of(tmp_path / "set", eos_id=EOS) == expected


def test_a_file_without_a_header_is_cut_into_row_groups_of_equal_size(tmp_path: Path) -> None:
    tokens = 3 * entries.GROUP_TOKENS + 7
    ids = np.random.default_rng(1).integers(1, 60_000, tokens).astype("<u2")
    ids[::1000] = EOS
    ids.tofile(tmp_path / "train.bin")
    index = build_index(tmp_path / "train.bin", raw_dtype="uint16")
    assert index.tokens.tolist() == [entries.GROUP_TOKENS, entries.GROUP_TOKENS, entries.GROUP_TOKENS + 7]
    found = documents_in(index, tmp_path / "train.bin", EOS)
    assert np.array_equal(np.concatenate(found), ids)
    # A document that a row group's end cuts is two.
    ends = {*(np.flatnonzero(ids == EOS) + 1).tolist(), *np.cumsum(index.tokens).tolist()}
    assert np.cumsum([len(each) for each in found]).tolist() == sorted(ends)


def test_a_stream_without_an_eos_is_one_document_a_row_group_and_that_is_said(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "set", [[[1, 2], [3]], [[4] * 50]], eos_id=EOS)
    with ParquetLoader(folder, **OPTIONS) as loader:
        (said,) = [each for each in loader.remarks() if "give eos_id=0, as meta.json says" in each]
        assert "a row group of 51 tokens is shuffled as one" in said
        assert all(len(each) <= 51 for each in documents_in(loader.index, folder))
    with ParquetLoader(folder, **OPTIONS, eos_id=EOS) as loader:
        assert not [each for each in loader.remarks() if "give eos_id" in each]


@pytest.mark.parametrize("key", ["eos_token_id", "eos_id", "eot_token", "eod_id"])
def test_the_eos_id_that_a_meta_json_says_is_named_and_another_one_is_remarked_on(tmp_path: Path, key: str) -> None:
    folder = write_shards(tmp_path / "set", [[[1, 2], [3]], [[4] * 50]], eos_id=EOS)
    chunks = [{"file": each["file"], "dtype": "uint16"} for each in json.loads((folder / "meta.json").read_text())]
    (folder / "meta.json").write_text(json.dumps({key: EOS, "chunks": chunks}))
    for eos_id, remark in ((None, "give eos_id=0, as meta.json says"), (7, "meta.json says that 0 ends documents")):
        with ParquetLoader(folder, **OPTIONS, eos_id=eos_id) as loader:
            assert [each for each in loader.remarks() if remark in each]
        assert [each for each in inspect(folder, eos_id=eos_id).remarks if remark in each]
        assert [each for each in check(folder, eos_id=eos_id).notes if remark in each]
    with ParquetLoader(folder, **OPTIONS, eos_id=EOS) as loader:
        assert not [each for each in loader.remarks() if "eos_id" in each]
    (folder / "meta.json").unlink()
    with ParquetLoader(folder, **OPTIONS, raw_dtype="uint16") as loader:
        assert [each for each in loader.remarks() if "give eos_id, the id that ends each of them" in each]


def test_the_example_of_a_meta_json_in_the_docs_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/formats.md").read_text()
    meta = json.loads(re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0])
    for chunk in meta["chunks"]:
        chunk["tokens"] = 9
        np.arange(1, 10, dtype=meta["dtype"]).tofile(tmp_path / chunk["file"])
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert build_index(tmp_path).tokens.tolist() == [9, 9]


@pytest.mark.parametrize("key", ["tokens", "num_tokens", "n_tokens"])
def test_a_count_of_ids_that_does_not_match_is_refused_and_that_of_all_files_is_none_of_one(
    tmp_path: Path, key: str
) -> None:
    folder = write_shards(tmp_path / "set", [[[1, 2], [3]], [[4] * 50]], eos_id=EOS)
    counts = [5, 51]
    chunks = [{"file": f"chunk_{number:06d}.bin", "dtype": "uint16"} for number in range(2)]
    (folder / "meta.json").write_text(json.dumps({key: 56, "chunks": chunks}))
    assert build_index(folder).tokens.tolist() == counts
    chunks = [each | {key: count} for each, count in zip(chunks, counts, strict=True)]
    (folder / "meta.json").write_text(json.dumps({key: 56, "chunks": chunks}))
    assert build_index(folder).tokens.tolist() == counts
    (folder / "meta.json").write_text(json.dumps([chunks[0], chunks[1] | {key: 50}]))
    with pytest.raises(DataError, match=r"chunk_000001\.bin: it holds 51 ids of uint16, where meta\.json says 50"):
        build_index(folder)


@pytest.mark.parametrize("several", [False, True])
def test_megatrons_documents_are_those_of_its_index(tmp_path: Path, several: bool) -> None:
    rng = np.random.default_rng(3)
    files = []
    (tmp_path / "set").mkdir()
    for number, documents in enumerate(random_files(rng)):
        cut = [
            [document[: len(document) // 2], document[len(document) // 2 :], []] if several else [document]
            for document in documents
        ]
        write_megatron(tmp_path / "set" / f"chunk_{number:06d}", [*cut, []] if several else cut)
        files.append([*documents, []] if several else documents)
    index = build_index(tmp_path / "set")
    assert documents_in(index, tmp_path / "set") == [document for documents in files for document in documents]
    assert index.documents == sum(map(len, files))
    expected = tokens_of(write_parquet(tmp_path / "parquet", files), eos_id=EOS)
    assert tokens_of(tmp_path / "set", eos_id=EOS) == expected
    assert tokens_of(tmp_path / "set") == tokens_of(tmp_path / "parquet")


def test_megatrons_sequences_are_documents_where_no_entries_say_otherwise(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", [[[1, 2], [3]], [[4]]], entries=False)
    assert documents_in(build_index(tmp_path), tmp_path) == [[1, 2], [3], [4]]


def test_megatrons_row_groups_end_with_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[7] * length for length in (3, 3, 0, 5, 25, 1, 1, 0, 0, 9, 2)]
    write_megatron(tmp_path / "a", [[document] for document in documents])
    monkeypatch.setattr(entries, "GROUP_TOKENS", 10)
    index = build_index(tmp_path)
    assert index.rows.tolist() == [3, 1, 1, 4, 1, 1]
    assert index.tokens.tolist() == [6, 5, 25, 2, 9, 2]
    assert documents_in(index, tmp_path) == documents
    monkeypatch.setattr(entries, "MOST_SEQUENCES", 2)
    index = build_index(tmp_path, cache_dir=tmp_path / "other")
    assert max(index.rows.tolist()) == 2
    assert documents_in(index, tmp_path) == documents


def test_a_document_longer_than_a_row_group_is_given_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parquet_loader.formats.raw import decode

    documents = [[1] * 5, list(range(1, 48)), [], [2, 3], []]
    write_megatron(tmp_path / "a", [[documents[0]], [documents[1]], *([each] for each in documents[2:])])
    index = build_index(tmp_path)
    chunk = index.chunk(0)
    whole = next(index.open(open_storage(tmp_path), chunk)[1].parts(eos_id=EOS))
    monkeypatch.setattr(decode, "GROUP_TOKENS", 10)
    monkeypatch.setattr(decode, "_MOST_PART", 15)
    parts = list(index.open(open_storage(tmp_path), chunk)[1].parts(eos_id=EOS))
    assert len(parts) == 5
    assert np.array_equal(np.concatenate([part.tokens for part in parts]), whole.tokens)
    assert np.array_equal(np.concatenate([part.begin + part.starts for part in parts]), whole.starts)
    some = list(index.open(open_storage(tmp_path), chunk)[1].parts(eos_id=EOS, first=20, last=30))
    assert [part.begin for part in some] == [11, 21]


# ── as Parquet ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(RANDOM_SETS))
def test_a_stream_gives_what_parquet_gives_with_its_eos_also_resumed_on_other_ranks(tmp_path: Path, seed: int) -> None:
    """More sets with RAW_RANDOM_SETS=200."""
    rng = np.random.default_rng(seed)
    files = random_files(rng)
    parquet = write_parquet(tmp_path / "parquet", files)
    raw = write_shards(tmp_path / "raw", files, eos_id=EOS, dtype=str(rng.choice(["uint16", "int32", "uint64"])))
    options: dict[str, Any] = {
        "seq_len": int(rng.integers(1, 20)),
        "lanes": int(rng.choice([4, 8, 12])),
        "overlap": int(rng.integers(0, 2)),
        "window": int(rng.integers(1, 4)),
        "seed": seed,
        "shuffle": bool(rng.integers(0, 5)),
        "vocab_size": 400,
        "eos_id": EOS,
    }
    with ParquetLoader(parquet, **options) as one, ParquetLoader(raw, **options) as other:
        expected = list(itertools.islice(iter(_endless(one)), 12))
        for before, after in zip(expected[:5], itertools.islice(_endless(other), 5), strict=True):
            assert np.array_equal(before.tokens, after.tokens)
            starts = [batch.documents(options["seq_len"]).document_ids() for batch in (before, after)]
            assert np.array_equal(*starts)
            assert [_place(each) for each in before.origins()] == [_place(each) for each in after.origins()]
        checkpoint = merge_checkpoints([other.checkpoint()])
    for world_size in (1, 2, 4):
        ranks = []
        for rank in range(world_size):
            with ParquetLoader(raw, **options, rank=rank, world_size=world_size) as loader:
                loader.resume(checkpoint)
                ranks.append([batch.tokens for batch in itertools.islice(_endless(loader), 7)])
        for step, batch in enumerate(expected[5:]):
            assert np.array_equal(batch.tokens, np.concatenate([rows[step] for rows in ranks]))


def _endless(loader: ParquetLoader) -> Any:
    while True:
        yield from loader


def _place(piece: Any) -> tuple[Any, ...]:
    stem = Path(piece.file).stem
    return (piece.row, piece.column, piece.tokens, stem, piece.row_group, piece.document, piece.start)


@pytest.mark.parametrize("processes", [0, 1])
def test_sources_of_a_mixture_may_be_of_any_format(tmp_path: Path, processes: int) -> None:
    sources = {name: random_files(np.random.default_rng(seed)) for seed, name in enumerate(("a", "b", "c"))}
    parquet = {name: write_parquet(tmp_path / "parquet" / name, files) for name, files in sources.items()}
    mixed = {
        "a": parquet["a"],
        "b": write_shards(tmp_path / "b", sources["b"], eos_id=EOS),
        "c": Component(tmp_path / "c", eos_id=EOS),
    }
    (tmp_path / "c").mkdir()
    for number, documents in enumerate(sources["c"]):
        write_megatron(tmp_path / "c" / f"chunk_{number:06d}", [[each[:3], each[3:]] for each in documents])
    options = {**OPTIONS, "weights": {"a": 1, "b": 2, "c": 1}, "eos_id": EOS, "processes": processes}
    with ParquetLoader(parquet, **options) as one, ParquetLoader(mixed, **options) as other:
        for before, after in itertools.islice(zip(one, other, strict=False), 80):
            assert np.array_equal(before.tokens, after.tokens)
            assert np.array_equal(before.sources, after.sources)


@pytest.mark.parametrize("processes", [0, 1])
def test_documents_of_a_few_tokens_stay_within_the_budget_or_are_refused_with_one_that_is_enough(
    tmp_path: Path, processes: int
) -> None:
    """How many a stream has is not known before it is read; a budget for usual ones is not exceeded by others."""
    ids = np.random.default_rng(4).integers(0, 3, 1_500_000).astype("<u2")
    ids.tofile(tmp_path / "train.bin")
    options: dict[str, Any] = {
        "lanes": 4,
        "seq_len": 1000,
        "eos_id": EOS,
        "raw_dtype": "uint16",
        "vocab_size": 3,
        "processes": processes,
    }
    with pytest.raises(ConfigError, match="is too small for a window") as caught:
        ParquetLoader(tmp_path / "train.bin", **options, budget_bytes=1)
    budget_bytes = int(re.findall(r"give at least ([\d,]+)", str(caught.value))[0].replace(",", ""))
    with ParquetLoader(tmp_path / "train.bin", **options, budget_bytes=budget_bytes) as loader:
        with pytest.raises(ConfigError, match=r"row group 0 of train\.bin are of fewer than 64 tokens") as caught:
            next(iter(loader))
        assert loader.stats()["peak_bytes"] <= budget_bytes
    budget_bytes = int(re.findall(r"give at least ([\d,]+)", str(caught.value))[0].replace(",", ""))
    with ParquetLoader(tmp_path / "train.bin", **options, budget_bytes=budget_bytes) as loader:
        found = np.concatenate([batch.tokens.ravel() for batch in loader])
        assert loader.stats()["peak_bytes"] <= budget_bytes
    assert np.bincount(found, minlength=3).tolist() == np.bincount(ids, minlength=3).tolist()


def test_a_stream_of_many_documents_is_given_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parquet_loader.formats.raw import decode

    ids = np.random.default_rng(4).integers(0, 3, 1000).astype("<u2")
    ids.tofile(tmp_path / "train.bin")
    index = build_index(tmp_path / "train.bin", raw_dtype="uint16")
    whole = documents_in(index, tmp_path, EOS)
    monkeypatch.setattr(decode, "_MOST_DOCUMENTS", 64)
    parts = list(index.open(open_storage(tmp_path), index.chunk(0))[1].parts(eos_id=EOS))
    assert [len(part.tokens) for part in parts] == [64] * 15 + [40]
    assert documents_in(index, tmp_path, EOS) == whole


# ── storage ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_files_that_are_replaced_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write_megatron(folder / "a", [[[1, 2, 3]], [[4] * 20]])
    options = {**OPTIONS, "cache_dir": tmp_path / "cache"}
    with ParquetLoader(folder, **options) as loader:
        before = loader.index
        write_megatron(folder / "a", [[[1]], [[2, 3]], [[4] * 20]])  # the same ids, and other documents
        os.utime(folder / "a.bin", ns=(1, int(before.file_of("a.bin").version)))
        with pytest.raises(FileChangedError, match=r"a\.idx"):
            next(iter(loader))
    assert build_index(folder, cache_dir=tmp_path / "cache").documents == 3
    shards = write_shards(tmp_path / "shards", [[[1, 2, 3], [300] * 9]], eos_id=EOS)
    assert build_index(shards, cache_dir=tmp_path / "cache").total_tokens == 14
    os.utime(shards / "meta.json", ns=(1, 1))  # it may say another type now
    (shards / "meta.json").write_text((shards / "meta.json").read_text().replace("uint16", "uint8").replace("14", "28"))
    assert build_index(shards, cache_dir=tmp_path / "cache").total_tokens == 28
    with ParquetLoader(shards, **OPTIONS, eos_id=EOS) as loader:
        (shards / "chunk_000000.bin").write_bytes(bytes(28))
        with pytest.raises(FileChangedError, match=r"chunk_000000\.bin"):
            next(iter(loader))


# ── Megatron's own writer ────────────────────────────────────────────────────────────────────────────────────────


def test_what_megatrons_own_writer_wrote_is_read(tmp_path: Path) -> None:
    """With megatron-core installed; `raw_sets.write_megatron` writes the same bytes without it."""
    pytest.importorskip("megatron")
    megatron = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    torch = pytest.importorskip("torch")
    documents = [[[1, 2, 3], [4]], [[5, 6]], [[7], [], [8, 9]], [[]]]
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "own.bin"), dtype=np.uint16)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(str(tmp_path / "own.idx"))
    write_megatron(tmp_path / "ours", documents)
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"own{suffix}").read_bytes() == (tmp_path / f"ours{suffix}").read_bytes()
    assert documents_in(build_index(tmp_path), tmp_path)[:4] == [
        [1, 2, 3, 4],
        [5, 6],
        [7, 8, 9],
        [],
    ]
