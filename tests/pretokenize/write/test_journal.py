"""The journal of an unfinished run, and how two fingerprints differ."""

from __future__ import annotations

import pytest

from parquet_loader.errors import DataError
from parquet_loader.pretokenize.tokenizers.base import Lost
from parquet_loader.pretokenize.write.journal import Journal, Position, differences
from parquet_loader.pretokenize.write.manifest import BadEntry, FileEntry, Skipped


def test_a_journal_is_read_as_it_was_written() -> None:
    entry = FileEntry(name="0.parquet", documents=1, tokens=2, row_groups=3, size_bytes=4)
    journal = Journal(
        fingerprint={"a": [1]},
        phase="removing",
        parts=(entry,),
        position=Position(
            cursor=(1, 2), documents=3, text_bytes=4, skipped=Skipped(bad=1), lost=Lost(dropped_symbols=2)
        ),
        bad_records=(BadEntry(where="a:1", problem="bad"),),
    )
    assert Journal.from_json(journal.to_json(), "x") == journal
    assert Journal.from_json(Journal(fingerprint={}).to_json(), "x") == Journal(fingerprint={})
    for text in ("", "{}", '{"version": 2}', '{"version": 1, "position": 3}'):
        with pytest.raises(DataError, match="x: "):
            Journal.from_json(text, "x")


def test_a_file_of_a_store_is_named_with_its_version() -> None:
    file = {"name": "s3://bucket/a.txt", "size_bytes": 5, "version": "ETag=1"}
    now = {"source": {"files": [file | {"version": "ETag=2"}]}}
    assert differences({"source": {"files": [file]}}, now) == [
        "s3://bucket/a.txt has changed: its version was ETag=1, and is ETag=2"
    ]


def test_differences_are_named_by_their_place() -> None:
    assert differences({"a": {"b": 1}}, {"a": {"b": 1}}) == []
    assert differences({"a": None}, {"a": {"b": 1}}) == ["a: was None, is {'b': 1}"]
    assert differences({"a": 1}, {"b": 2}) == ["a: was 1, is None", "b: was None, is 2"]
