"""What notebooks show of an index and of a loader."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader, build_index
from parquet_loader.notebooks import html_table


def test_nothing_in_a_table_is_markup() -> None:
    shown = html_table("<i>", [("<b>", "<u>")], headers=("<s>", "<p>"), notes=("<hr>",))
    for hostile in ("<i>", "<u>", "<s>", "<hr>"):
        assert hostile not in shown
    assert "&lt;i&gt;" in shown


def test_a_long_table_is_cut() -> None:
    shown = html_table("rows", [(f"row {number}", number) for number in range(2000)])
    assert "row 49<" in shown
    assert "row 50<" not in shown
    assert "and 1,950 more" in shown


def test_an_index_shows_what_it_holds_without_reading(tmp_path: Path) -> None:
    index = build_index(write_set(tmp_path / "train", unique_groups([[[3, 4], [5]], [[600] * 200]])))
    shutil.rmtree(tmp_path / "train")
    shown = index._repr_html_()
    for text in ("DatasetIndex", ">tokens<", ">120,012<", ">203<", "120,000 at most"):
        assert text in shown
    assert all(remark[:20] in shown for remark in index.remarks())


def test_an_index_of_nothing_is_shown(tmp_path: Path) -> None:
    assert ">0<" in build_index(write_set(tmp_path / "set", unique_groups([[[0, 0]]])))._repr_html_()


def test_a_loader_shows_its_set_and_where_it_is(tmp_path: Path) -> None:
    write_set(tmp_path / "<set>", unique_groups([[[30, 40], [50]], [[60] * 20]]))
    with ParquetLoader(tmp_path / "<set>", seq_len=16, lanes=4, rank=1, world_size=2) as loader:
        next(iter(loader))
        shown = loader._repr_html_()
        assert loader._engine is not None  # it was not disturbed
    assert "&lt;set&gt;" in shown
    assert "<set>" not in shown
    for text in (">1,320<", "rank 1 of 2, 2 of 4 rows of a batch", "epoch 0, position 16"):
        assert text in shown
    assert "closed" in loader._repr_html_()


def test_a_loader_of_a_mixture_shows_what_each_source_has_given(tmp_path: Path) -> None:
    for name in ("web", "code"):
        write_set(tmp_path / name, unique_groups([[[30, 40], [50]], [[60] * 20]]))
    sources = {name: tmp_path / name for name in ("web", "code")}
    with ParquetLoader(sources, weights={"web": 1, "code": 3}, seq_len=16, lanes=2) as loader:
        for _ in islice(loader, 64):
            pass
        shown = loader._repr_html_()
    for text in ("ParquetLoader of 2 sources", ">web<", ">code<", ">512<", ">1,536<", ">0.388<"):
        assert text in shown
