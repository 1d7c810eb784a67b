"""`LoaderOptions` is the one list of a loader's arguments."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from parquet_loader import ConfigError
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
