"""What is told of runs that follow a set while it grows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from growing_sets import Writer, copy_finished, make_files, quick_looks

from parquet_loader import ConfigError, ParquetLoader
from parquet_loader.batch import Batch
from parquet_loader.insight import check_chain, check_order, describe, open_run, plan, which
from parquet_loader.options import LoaderOptions

__all__ = ["quick_looks"]

pytestmark = pytest.mark.usefixtures("quick_looks")
OPTIONS: dict[str, Any] = {"seq_len": 16, "lanes": 8, "window": 3, "seed": 7}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return make_files(tmp_path / "files", 0)


@pytest.fixture
def writer(files: list[Path], tmp_path: Path) -> Writer:
    return Writer(tmp_path / "growing", files)


def stored_tokens(files: list[Path], batch: Batch) -> list[list[int]]:
    """The rows of a batch, put together from the documents that they are said to consist of."""
    rows: list[list[int]] = [[] for _ in batch.tokens]
    for piece in batch.origins():
        path = next(each for each in files if each.name == piece.file)
        documents = pq.ParquetFile(path).read_row_group(piece.row_group)["tokens"].to_pylist()
        rows[piece.row] += documents[piece.document][piece.start : piece.start + piece.tokens]
    return rows


def test_batches_tell_their_documents_while_the_set_grows_and_afterwards(writer: Writer, files: list[Path]) -> None:
    writer.show(4)
    with ParquetLoader(writer.folder, **OPTIONS, follow=True) as loader:
        batches = list(itertools.islice(loader, 8))
        assert stored_tokens(files, batches[7]) == batches[7].tokens.tolist()
        state = loader.state_dict()
    writer.finish()
    for follow in (True, False):
        run = open_run(writer.folder, LoaderOptions(**OPTIONS, follow=follow), state)
        assert [piece.file for piece in which(run, 7).pieces] == [piece.file for piece in batches[7].origins()]


def test_its_order_delivers_each_token_once(files: list[Path], tmp_path: Path) -> None:
    finished = copy_finished(files, tmp_path / "finished")
    report = check_order(open_run(finished, LoaderOptions(**OPTIONS, follow=True)))
    assert report.ok, report


def test_a_plan_needs_an_end_while_the_set_grows(writer: Writer) -> None:
    writer.show(4)
    run = open_run(writer.folder, LoaderOptions(**OPTIONS, follow=True))
    assert plan(run, steps=10).steps == 10
    with pytest.raises(ConfigError, match="give tokens or steps"):
        plan(run)


def test_checkpoints_of_a_growing_set_are_a_chain_and_are_described(writer: Writer, tmp_path: Path) -> None:
    writer.show(4)
    parts = {}
    with ParquetLoader(writer.folder, **OPTIONS, follow=True) as loader:
        for name in ("a", "b", "c"):
            list(itertools.islice(loader, 8))
            parts[name] = loader.checkpoint()
            writer.show(2)
        writer.finish()
        list(itertools.islice(loader, 200))
        list(itertools.islice(loader, 20))
        parts["d"] = loader.checkpoint()
        assert check_chain(parts).ok, check_chain(parts)
        (early,) = describe(parts["a"]).sources
        (late,) = describe(parts["d"]).sources
        assert early.epochs is None
        assert late.epochs is not None
        assert late.epochs > 1
        list(itertools.islice(loader, 20))
    others = Writer(tmp_path / "other", make_files(tmp_path / "others", 1))
    others.finish()
    with ParquetLoader(others.folder, **OPTIONS, follow=True) as loader:
        list(itertools.islice(loader, 300))
        list(itertools.islice(loader, 300))
        assert not check_chain({**parts, "e": loader.checkpoint()}).ok
