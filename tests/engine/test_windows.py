"""A window that was used up is gone."""

from __future__ import annotations

import weakref
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader
from parquet_loader.engine.pack import WindowCursor, WindowSlices


@pytest.mark.parametrize("options", [{}, {"overlap": 1}, {"lanes": 5, "seq_len": 3}, {"mixed": True}])
def test_a_window_that_was_used_up_is_gone_before_the_next_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    write_set(tmp_path / "a", unique_groups([[[20, 30, 14]] * 12]))
    write_set(tmp_path / "b", unique_groups([[[20, 30, 14]] * 12]))
    mixed = options.pop("mixed", False)
    source: Any = {"a": tmp_path / "a", "b": tmp_path / "b"} if mixed else tmp_path / "a"
    made: list[weakref.ref[Any]] = []
    waited = 0
    of, window = WindowSlices.of, WindowCursor.window

    def watched_of(*arguments: Any) -> WindowSlices:
        slices = of(*arguments)
        made.append(weakref.ref(slices.rectangles[0][0][3]))
        return slices

    def watched_window(cursor: WindowCursor, place: int) -> WindowSlices:
        nonlocal waited
        if place == len(cursor._windows) and made:
            kept = {id(each.rectangles[0][0][3]) for each in cursor._windows}
            others = [ref() for ref in made if ref() is not None and id(ref()) not in kept]
            # Of a mixture each source has one, and a sheet of rows is being filled from it.
            assert len(others) <= (1 if mixed else 0)
            waited += 1
        return window(cursor, place)

    monkeypatch.setattr(WindowSlices, "of", watched_of)
    monkeypatch.setattr(WindowCursor, "window", watched_window)
    with ParquetLoader(
        source,
        window=2,
        cache_dir=tmp_path / "cache",
        **({"weights": {"a": 1, "b": 1}} if mixed else {}),
        **{"lanes": 2, "seq_len": 8, **options},
    ) as loader:
        for _ in islice(loader, 60):
            pass
    assert waited >= 4
