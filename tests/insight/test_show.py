"""Rows as a model gets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import ParquetLoader
from parquet_loader.insight.opening import open_run
from parquet_loader.insight.show import Shown, show
from parquet_loader.insight.text import open_tokenizer
from parquet_loader.options import LoaderOptions


def ids_of(shown: Shown) -> list[list[int]]:
    return [[int(each) for piece in row.pieces for each in piece.tokens] for row in shown.rows]


@pytest.mark.parametrize(
    "options",
    [
        {"eos_id": 60_000, "overlap": 1},
        {"epochs": 2, "tail": "pad"},
        {"shuffle": False, "window": 2},
    ],
)
def test_ids_are_those_that_a_loader_gives(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = write_set(tmp_path / "set", unique_groups(random_files(np.random.default_rng(7))))
    values = {"seq_len": 37, "lanes": 4, **options}
    run = open_run(str(folder), LoaderOptions(**values))
    with ParquetLoader(folder, **values) as loader:
        for step, batch in zip(range(30), loader, strict=False):
            shown = show(run, step, rows=[0, 3])
            for row, ids in zip(shown.rows, ids_of(shown), strict=True):
                length = len(batch.tokens[0]) if batch.lengths is None else int(batch.lengths[row.row])
                assert batch.tokens[row.row][:length].tolist() == ids, step
                assert row.padding == len(batch.tokens[0]) - length


def test_rows_of_a_mixture_say_which_source_they_are_of(tmp_path: Path) -> None:
    sources = {
        name: write_set(tmp_path / name, unique_groups(random_files(np.random.default_rng(seed))))
        for seed, name in enumerate(("code", "web"))
    }
    values: dict[str, Any] = {"seq_len": 16, "lanes": 8, "weights": {"web": 2, "code": 1}}
    run = open_run({name: str(path) for name, path in sources.items()}, LoaderOptions(**values))
    with ParquetLoader(sources, **values) as loader:
        for step, batch in zip(range(5), loader, strict=False):
            shown = show(run, step)
            assert ids_of(shown) == batch.tokens.tolist()
            assert batch.sources is not None
            found = [{piece.source for piece in row.pieces} for row in shown.rows]
            assert found == [{loader.sources[source]} for source in batch.sources]


def test_documents_say_where_they_begin_and_end(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[104, 105], [], [97, 98, 99]]]])
    run = open_run(str(folder), LoaderOptions(seq_len=4, lanes=1, shuffle=False, eos_id=256))
    tokenizer = open_tokenizer("bytes")
    shown = show(run, 0, tokenizer=tokenizer), show(run, 1, tokenizer=tokenizer)
    pieces = [
        (piece.column, piece.document, piece.start, piece.ends, piece.text)
        for each in shown
        for row in each.rows
        for piece in row.pieces
    ]
    assert pieces == [
        (0, 0, 0, True, "hi<eos>"),
        (3, 1, 0, True, "<eos>"),
        (0, 2, 0, True, "abc<eos>"),
    ]
    assert json.loads(json.dumps(shown[0].to_json()))["rows"][0]["pieces"][0] == {
        "column": 0,
        "source": None,
        "file": "part-000.parquet",
        "row_group": 0,
        "document": 0,
        "start": 0,
        "ends": True,
        "text": "hi<eos>",
        "ids": [104, 105, 256],
        "columns": {},
    }
