"""`LoaderOptions` is the one list of a loader's arguments."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ConfigError, GrowthTimeoutError, ParquetLoader
from parquet_loader.options import LoaderKeywords, LoaderOptions


def test_type_checkers_are_told_of_every_option_and_of_no_other() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(LoaderOptions)}
    told = LoaderKeywords.__annotations__
    assert list(told) == list(fields)
    for name, hint in told.items():
        text = hint.__forward_arg__ if isinstance(hint, typing.ForwardRef) else str(hint)
        assert text.removeprefix("Required[").removesuffix("]" if text.startswith("Required") else "") == fields[name]


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LoaderOptions(seq_len=8, lanes=2).seq_len = 9


def test_options_are_checked_when_made() -> None:
    with pytest.raises(ConfigError, match="window must be an integer at least 1, not 0"):
        LoaderOptions(seq_len=8, lanes=2, window=0)


def test_options_show_no_secret() -> None:
    options = LoaderOptions(seq_len=8, lanes=2, storage_options={"secret": "hunter2"})
    assert "hunter2" not in repr(options)


@pytest.mark.parametrize("name", ["wait_seconds", "complete_after"])
def test_times_are_numbers_or_text_with_a_unit(name: str) -> None:
    for value in (0, 1.5, "90s", "2m", "6h"):
        LoaderOptions(seq_len=8, lanes=2, **{name: value})  # type: ignore[arg-type]
    for wrong in (-1, "-2m", "2 weeks", "m", True, float("nan"), [1]):
        with pytest.raises(ConfigError, match=rf"{name} must be a number of seconds, 0 or more, or text such as"):
            LoaderOptions(seq_len=8, lanes=2, **{name: wrong})  # type: ignore[arg-type]


def test_a_wait_is_told_as_it_was_given(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tokens": [[1, 2]]}), tmp_path / "0.parquet")
    options = LoaderOptions(seq_len=8, lanes=2, follow=True, wait_seconds="0.0025m")
    with (
        ParquetLoader(tmp_path, **options.keywords()) as loader,
        pytest.raises(GrowthTimeoutError, match=r"has not grown for 0\.15 s"),
    ):
        next(iter(loader))
