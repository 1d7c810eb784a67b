"""``python -m parquet_loader index``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import DatasetIndex, ParquetLoader
from parquet_loader.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[3, 4], [5]], [[6] * 20]]))


def test_an_index_is_written_that_a_loader_takes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "index.msgpack"
    assert main(["index", str(folder), "--output", str(output), "--cache-dir", str(tmp_path / "cache")]) == 0
    assert "2 files, 3 row groups, 23 documents, 132 tokens in column 'tokens'" in capsys.readouterr().out
    assert len(DatasetIndex.load(output)) == 3
    options = {"seq_len": 8, "lanes": 2, "window": 2}
    with ParquetLoader(folder, index=output, **options) as given, ParquetLoader(folder, **options) as found:
        assert np.array_equal([batch.tokens for batch in given], [batch.tokens for batch in found])


def test_several_sources_and_options_are_taken(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "index.msgpack"
    files = sorted(map(str, folder.iterdir()))
    assert main(["index", *files, "--output", str(output), "--column", "tokens", "--threads", "2"]) == 0
    assert len(DatasetIndex.load(output).files) == 2


def test_storage_options_are_json(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = json.dumps({"no_such": "option"})
    arguments = ["index", "s3://bucket/set", "--output", str(tmp_path / "x"), "--storage-options", options]
    assert main(arguments) == 2
    assert "no_such" in capsys.readouterr().err


def test_a_failure_is_one_line_and_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "index.msgpack"
    assert main(["index", str(tmp_path / "absent"), "--output", str(output)]) == 2
    assert capsys.readouterr().err.startswith("error: there is no ")
    assert not output.exists()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--storage-options", "[1]", "must be a JSON object"),
        ("--storage-options", '{"key":"hush', "no valid JSON"),
        ("--threads", "0", "must be 1 or more"),
        ("--threads", "-3", "must be 1 or more"),
        ("--output", ".", "must be a local file"),
        ("--output", "s3://bucket/index", "must be a local file"),
    ],
)
def test_odd_arguments_are_refused_in_a_line(
    folder: Path, option: str, value: str, says: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        main(["index", str(folder), "--output", "x", f"{option}={value}"])
    message = capsys.readouterr().err
    assert says in message
    assert "hush" not in message


def test_an_output_that_cannot_be_written_is_an_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["index", str(folder), "--output", str(tmp_path / "absent" / "index")]) == 2
    assert "cannot write the index" in capsys.readouterr().err


def test_what_was_written_is_told_as_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = str(tmp_path / "index.msgpack")
    assert main(["index", str(folder), "--output", output, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["output"], found["files"], found["row_groups"], found["tokens"]) == (output, 2, 3, 132)
    assert found["fingerprint"] == DatasetIndex.load(output).fingerprint
