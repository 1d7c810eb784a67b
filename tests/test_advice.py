"""What is not a tokenized set is refused with the command that makes it one, and the command does."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from parquet_loader import ParquetLoaderError, build_index
from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize import main as pretokenize
from parquet_loader.pretokenize.convert.command import main as convert

TEXTS = ["some text", "more"]
TOKENS = [[1, 2, 3], [4]]


CASES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    # name of the file: (its writer, what else the command needs)
    "text.parquet": (lambda path: pq.write_table(pa.table({"text": TEXTS}), path), []),
    "body.parquet": (lambda path: pq.write_table(pa.table({"n": [1, 2], "body": TEXTS}), path), []),
    "it's text.jsonl": (lambda path: path.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS)), []),
    "short.txt": (lambda path: path.write_text("a\nb\n"), []),
}  # fmt: skip


def follow(message: str, output: Path, more: list[str]) -> None:
    command = re.search(r"`(.*)`", message)
    assert command is not None, message
    words = shlex.split(command[1])
    run = {"parquet_loader.pretokenize": pretokenize, "parquet_loader.pretokenize.convert": convert}[words[2]]
    words = [{"FOLDER": str(output), "NAME": "bytes", "N": "10"}.get(word, word) for word in words[3:]]
    assert run([*words, *more]) == 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("named", [True, False], ids=["file", "folder"])
def test_the_command_that_a_refusal_names_makes_a_set(tmp_path: Path, name: str, named: bool) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    write, more = CASES[name]
    write(folder / name)
    with pytest.raises(ParquetLoaderError) as caught:
        build_index(folder / name if named else folder)
    follow(str(caught.value), tmp_path / "out", more)
    assert build_index(tmp_path / "out").total_tokens > 0


@pytest.mark.parametrize(("is_", "named"), [("arrow", "parquet"), ("parquet", "arrow")])
def test_a_file_under_the_name_of_another_format_is_read_as_its_refusal_says(
    tmp_path: Path, is_: str, named: str
) -> None:
    path = tmp_path / f"a.{named}"
    write = feather.write_feather if is_ == "arrow" else pq.write_table
    write(pa.table({"input_ids": TOKENS}), path)
    with pytest.raises(DataError, match=rf"rename it to \.{is_}, or name the file and give format='{is_}'"):
        build_index(tmp_path)
    assert build_index(path, format=is_).total_tokens == 4
    path.rename(tmp_path / f"a.{is_}")
    assert build_index(tmp_path).total_tokens == 4


def test_raw_ids_of_no_known_type_are_read_as_their_refusal_says(tmp_path: Path) -> None:
    np.array([1, 2, 3, 0, 4, 0], np.uint16).tofile(tmp_path / "chunk_0.bin")
    with pytest.raises(ConfigError, match="give raw_dtype='uint16'"):
        build_index(tmp_path)
    assert build_index(tmp_path, raw_dtype="uint16").total_tokens == 6


def test_a_file_of_another_kind_is_only_described(tmp_path: Path) -> None:
    (tmp_path / "notes.parquet").write_bytes(b"some words that nobody knows")
    with pytest.raises(DataError, match=r"it starts with b'some wor'$"):
        build_index(tmp_path)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────


LOGS = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": "metadata/00000-1f.metadata.json",
}


@pytest.fixture(params=LOGS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A table's kind, and its folder, in which one of two files is alive."""
    folder = tmp_path / "lake" / "table"
    (folder / "data").mkdir(parents=True)
    for name in ("old", "new"):
        pq.write_table(pa.table({"tokens": [[1, 2]]}), folder / "data" / f"{name}.parquet")
    log = folder / LOGS[request.param]
    log.parent.mkdir()
    log.write_text("{}")
    return request.param, folder


@pytest.mark.parametrize("source", ["", "/..", "/*/*", "/**/*.parquet"])
def test_the_folder_of_a_table_is_refused_with_what_to_give(table: tuple[str, Path], source: str) -> None:
    kind, folder = table
    with pytest.raises(ConfigError, match=rf"is the log of a table of {kind}.*its live files as a list"):
        build_index(f"{folder}{source}")


@pytest.mark.parametrize("log", LOGS)
def test_the_folder_of_a_table_on_an_object_store_is_refused(log: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for name in ("data/old.parquet", LOGS[log]):
        memory.pipe(f"/lake/table/{name}", b"")
    with pytest.raises(ConfigError, match=rf"is the log of a table of {log}.*its live files as a list"):
        build_index("memory://lake")


def test_the_live_files_of_a_table_are_read(table: tuple[str, Path]) -> None:
    assert build_index([table[1] / "data" / "new.parquet"]).total_tokens == 2


@pytest.mark.parametrize("name", ["_metadata", "metadata.parquet"])
def test_a_summary_of_footers_is_refused_with_what_it_is(tmp_path: Path, name: str) -> None:
    footers: list[pq.FileMetaData] = []
    table = pa.table({"tokens": [[1, 2], [3]]})
    pq.write_to_dataset(table, tmp_path / "set", metadata_collector=footers)
    pq.write_metadata(table.schema, tmp_path / "set" / name, metadata_collector=footers)
    with pytest.raises(DataError, match=rf"^{name}: is a summary of other files' footers.*give the folder"):
        build_index(tmp_path / "set" / name)
    if name == "_metadata":
        assert build_index(tmp_path / "set").total_tokens == 3
