"""What is told of runs that follow a set while it grows."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from growing_sets import Writer, copy_finished, make_files, quick_looks

from parquet_loader import Component, ConfigError, GrowthTimeoutError, ParquetLoader
from parquet_loader.batch import Batch
from parquet_loader.insight import check_chain, check_order, describe, find, open_run, plan, show, which
from parquet_loader.options import LoaderOptions
from parquet_loader.runs import SetRun

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


def taken(loader: ParquetLoader) -> list[Batch]:
    """What a loader delivers before it waits for the set to grow."""
    batches: list[Batch] = []
    iterator = iter(loader)
    with contextlib.suppress(GrowthTimeoutError):
        while True:
            batches.append(next(iterator))
    return batches


@pytest.mark.parametrize(("window", "overlap"), [(3, 0), (5, 1)])
def test_steps_are_told_as_far_as_a_loader_comes_while_the_set_grows(writer: Writer, window: int, overlap: int) -> None:
    writer.show(4)
    options = {**OPTIONS, "window": window, "overlap": overlap, "follow": True, "wait_seconds": 0.1}
    with ParquetLoader(writer.folder, **options) as loader:
        count = len(taken(loader))
    run = open_run(writer.folder, LoaderOptions(**options))
    assert which(run, count - 1).pieces
    told = f"the set still grows, of which 4 files are there, and {count:,} steps are known"
    for beyond in (count, count + 1, 20_000):
        with pytest.raises(ConfigError, match=f"step {beyond:,} is not known yet: {told}"):
            which(run, beyond)
        with pytest.raises(ConfigError, match=told):
            show(run, beyond)
        with pytest.raises(ConfigError, match=told):
            plan(run, steps=beyond + 1)
    assert plan(run, steps=count).steps == count


def test_a_document_is_found_only_in_steps_that_are_known(writer: Writer) -> None:
    writer.show(4)
    run = open_run(writer.folder, LoaderOptions(**{**OPTIONS, "window": 5}, follow=True))
    assert isinstance(run, SetRun)
    index = run.set.config.index
    assert len(index) % 5, "the last window is to be short"
    first, last = index.chunk(0), index.chunk(len(index) - 1)
    document = int(np.argmax([each > 0 for each in _lengths(writer.folder / first.path, first.row_group)]))
    found = find(run, first.path, first.row_group, document)
    assert sum(place.tokens for place in found.places) == found.tokens
    assert found.steps[1] is not None
    with pytest.raises(ConfigError, match="a window that is not whole yet"):
        find(run, last.path, last.row_group, 0)
    assert not find(run, last.path, last.row_group, 0, steps=range(3)).places
    with pytest.raises(ConfigError, match="epoch 1 is not known yet: the set still grows"):
        find(run, first.path, first.row_group, document, epochs=range(2))
    with pytest.raises(ConfigError, match="step 9,999 is not known yet: the set still grows"):
        find(run, first.path, first.row_group, document, steps=range(10_000))


def _lengths(path: Path, row_group: int) -> list[int]:
    return [len(each) for each in pq.ParquetFile(path).read_row_group(row_group)["tokens"].to_pylist()]


@pytest.mark.parametrize("max_epochs", [None, 1, 2])
def test_steps_of_a_mixture_are_told_as_far_as_a_source_that_grows_is_there(
    writer: Writer, tmp_path: Path, max_epochs: int | None
) -> None:
    writer.show(5)
    other = tmp_path / "other"
    make_files(other, 1)
    sources: dict[str, Any] = {"new": Component(writer.folder, follow=True, max_epochs=max_epochs), "old": str(other)}
    options = {**OPTIONS, "weights": {"new": 0.8, "old": 0.2}, "wait_seconds": 0.1}
    with ParquetLoader(sources, **options) as loader:
        count = len(taken(loader))
    run = open_run(sources, LoaderOptions(**options))
    assert count
    assert which(run, count - 1).pieces
    with pytest.raises(ConfigError, match="not known yet: source 'new' still grows") as caught:
        which(run, count)
    assert f"{count:,} steps are known" in str(caught.value)
    with pytest.raises(ConfigError, match=f"{count:,} steps are known"):
        plan(run, steps=20_000)
    with pytest.raises(ConfigError, match="give tokens or steps"):
        plan(run)
    assert plan(run, steps=count).steps == count
