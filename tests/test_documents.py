"""Where documents lie in rows: against a reference that goes token by token, and against a real transformer."""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import lane_texts, places_in_text
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import ConfigError, ParquetLoader
from parquet_loader.documents import Documents, mask_first_labels
from parquet_loader.torch import TokenDataset

ROWS = st.integers(1, 12).flatmap(
    lambda columns: st.tuples(
        st.just(columns), st.lists(st.sets(st.integers(0, columns)).map(sorted), min_size=1, max_size=5)
    )
)


def packed(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """What `Batch.document_starts` gives for rows in which documents start at these columns."""
    splits = np.cumsum([0, *map(len, rows)])
    return splits, np.array([column for row in rows for column in row], np.int64)


def places(starts: list[int], columns: int) -> list[int]:
    """Each token's place in its document or row, one token after another."""
    found: list[int] = []
    for column in range(columns):
        found.append(0 if column in starts or not column else found[-1] + 1)
    return found


@given(ROWS)
def test_positions_ids_and_lengths_agree_with_a_walk_over_the_tokens(case: tuple[int, list[list[int]]]) -> None:
    columns, rows = case
    documents = Documents.of(*packed(rows), columns)
    expected = [places(row, columns) for row in rows]
    flat = [place for row in expected for place in row]
    assert documents.position_ids().tolist() == expected
    assert documents.cu_seqlens.tolist() == [place for place, id in enumerate(flat) if not id] + [len(flat)]
    assert documents.document_ids().flatten().tolist() == (np.cumsum(np.array(flat) == 0) - 1).tolist()
    assert documents.max_seqlen == max(flat) + 1
    assert len(documents) == flat.count(0)


@given(ROWS, st.sampled_from([0, 1]))
def test_first_labels_are_masked_and_no_others(case: tuple[int, list[list[int]]], shift: int) -> None:
    columns, rows = case
    labels = np.ones((len(rows), columns), np.int64)
    mask_first_labels(labels, *packed(rows), shift=shift)
    expected = [[-100 if column + shift in row else 1 for column in range(columns)] for row in rows]
    assert labels.tolist() == expected


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_types_and_shapes(dtype: str) -> None:
    documents = Documents.of(*packed([[3], [2]]), 5)
    assert documents.cu_seqlens.dtype == np.int32
    for ids in (documents.position_ids(dtype), documents.document_ids(dtype)):
        assert (ids.dtype, ids.shape, ids.flags.c_contiguous) == (np.dtype(dtype), (2, 5), True)


@pytest.mark.parametrize("seed", range(6))
@settings(max_examples=1)
@given(st.data())
def test_batches_have_the_documents_of_the_files(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    lanes, seq_len, overlap = int(rng.integers(1, 5)), int(rng.integers(1, 30)), seed % 2
    files = unique_groups(random_files(rng))
    folder = write_set(tmp_path_factory.mktemp("set"), files)
    begins: list[set[int]] = [set() for _ in range(lanes)]
    groups = [group for file in files for group in file]
    windows: list[tuple[int, int, int, int]] = []
    lane_texts(groups, lanes=lanes, window=2, seed=seed, shuffle=True, epochs=3, begins=begins, windows=windows)
    text = places_in_text(windows, lanes=lanes, seed=seed, shuffle=True, lengths=[(0, seq_len)])
    options = {"seq_len": seq_len, "lanes": lanes, "window": 2, "seed": seed, "overlap": overlap, "threads": 1}
    with (
        ParquetLoader(folder, **options) as loader,
        TokenDataset(
            str(folder),
            **options,
            dtype="int32",
            boundaries=["position_ids", "document_ids", "cu_seqlens"],
            mask_first_labels=True,
        ) as dataset,
    ):
        for step, (batch, item) in enumerate(zip(loader, dataset, strict=True)):
            here = text[step * seq_len : (step + 1) * seq_len]
            here += [here[-1] + 1] * overlap
            starts = [[column for column, place in enumerate(here) if place in lane] for lane in begins]
            positions = [places(row, seq_len) for row in starts]
            documents = batch.documents(seq_len)
            assert documents.position_ids().tolist() == item["position_ids"].tolist() == positions
            assert torch.equal(item["document_ids"], torch.from_numpy(documents.document_ids()))
            lengths = [len(list(run)) for _, run in groupby(documents.document_ids().flatten().tolist())]
            assert np.diff(item["cu_seqlens"].numpy()).tolist() == lengths
            assert item["max_seqlen"] == max(lengths)
            masked = (item["labels"] == -100).nonzero().tolist()
            assert masked == [
                [row, column - overlap]
                for row, columns in enumerate(starts)
                for column in columns
                if 0 <= column - overlap < seq_len
            ]
            assert {item[name].dtype for name in ("input_ids", "labels", "position_ids", "cu_seqlens")} == {torch.int32}


def test_rows_as_they_are_can_be_had(tmp_path: Path) -> None:
    folder = str(write_set(tmp_path / "set", unique_groups([[[7, 9, 30]]])))
    with (
        ParquetLoader(folder, seq_len=4, lanes=2, overlap=1) as loader,
        TokenDataset(folder, seq_len=4, lanes=2, overlap=1, tokens=True) as dataset,
    ):
        for batch, item in zip(loader, dataset, strict=True):
            assert set(item) == {"tokens"}
            assert item["tokens"].dtype == torch.int64
            assert item["tokens"].tolist() == batch.tokens.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"boundaries": ["positions"]}, "position_ids, document_ids, cu_seqlens"),
        ({"boundaries": "position_ids"}, "must be a list"),
        ({"dtype": "uint16"}, "'int32' or 'int64'"),
        ({"mask_first_labels": True, "tokens": True}, "needs labels"),
        ({"mask_first_labels": True, "labels": False}, "needs labels"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TokenDataset("data", seq_len=4, lanes=2, **options)


def test_columns_that_rows_do_not_have_are_refused(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[7, 9, 30]]]))
    with ParquetLoader(folder, seq_len=4, lanes=2, overlap=1) as loader:
        batch = next(iter(loader))
    assert len(batch.documents(5).position_ids()[0]) == 5
    for columns in (0, 6):
        with pytest.raises(ConfigError, match=r"columns must be an integer in \[1, 5\]"):
            batch.documents(columns)
    with pytest.raises(ConfigError, match="int32"):
        Documents.of(np.zeros(3, np.int64), np.empty(0, np.int64), 2**30)


def test_numpy_batches_are_handed_on_by_dlpack(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[7, 9, 30]]]))
    with ParquetLoader(folder, seq_len=4, lanes=2) as loader:
        batch = next(iter(loader))
        shared = torch.from_dlpack(batch.tokens)
    assert shared.tolist() == batch.tokens.tolist()
    assert shared.data_ptr() == batch.tokens.ctypes.data


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_transformer_gives_the_same_logits_for_packed_rows_and_for_their_documents_apart(
    tmp_path: Path, attention: str
) -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=600,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    folder = write_set(tmp_path / "set", unique_groups([[[5, 11, 2, 19, 40, 1, 8, 30, 13, 26, 9, 17]]]))
    with (
        TokenDataset(str(folder), seq_len=24, lanes=2, overlap=1, boundaries=["position_ids", "cu_seqlens"]) as dataset,
        torch.no_grad(),
    ):
        for item in dataset:
            packed_logits = model(
                input_ids=item["input_ids"], position_ids=item["position_ids"], use_cache=False
            ).logits.flatten(0, 1)
            borders = item["cu_seqlens"].tolist()
            assert len(borders) > 3
            for begin, end in pairwise(borders):
                alone = model(input_ids=item["input_ids"].flatten()[None, begin:end], use_cache=False).logits[0]
                torch.testing.assert_close(packed_logits[begin:end], alone, rtol=1e-4, atol=1e-5)
