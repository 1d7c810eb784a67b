"""Other columns of documents."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import build_index
from parquet_loader.batch import Piece
from parquet_loader.errors import ConfigError, DataError
from parquet_loader.insight.opening import open_run
from parquet_loader.insight.records import Place, columns_of, describe_pieces, tokens_of
from parquet_loader.insight.text import open_tokenizer
from parquet_loader.options import LoaderOptions
from parquet_loader.storage.base import FileInfo
from parquet_loader.storage.local import LocalStorage
from parquet_loader.storage.opening import open_storage

DOCUMENTS = 100


def table_of(name: str) -> pa.Table:
    """Documents with everything that may stand beside them."""
    rows = range(DOCUMENTS)
    return pa.table(
        {
            "tokens": pa.array([np.arange(row % 7 + 1) for row in rows], pa.list_(pa.int32())),
            "url": [f"https://{name}/{row}" for row in rows],
            "meta": [None if row == 3 else {"lang": f"l{row}", "deep": {"n": row}} for row in rows],
            "tags": pa.array([[f"t{row}", None] for row in rows], pa.list_(pa.string())),
            "a.b": [row / 2 for row in rows],
            "when": pa.array([1_700_000_000_000_000_001 + row for row in rows], pa.timestamp("ns", "UTC")),
            "price": pa.array([Decimal(row) / 4 for row in rows], pa.decimal128(9, 2)),
            "raw": pa.array([b"\xff\x00" for _ in rows]),
            "nan": [float("nan") for _ in rows],
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b/c"):
        path = tmp_path / "set" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table_of(name), path, row_group_size=30)
    return tmp_path / "set"


PLACES: list[Place] = [("b/c.parquet", 3, 9), ("a.parquet", 0, 3), ("b/c.parquet", 3, 0), ("b/c.parquet", 3, 9)]


def test_values_are_those_of_the_documents_asked_for_in_order(folder: Path) -> None:
    index = build_index(str(folder), column="tokens")
    found = columns_of(LocalStorage([str(folder)]), index, PLACES, ["url", "meta.deep.n", "a.b"])
    assert found == [
        {"url": "https://b/c/99", "meta.deep.n": 99, "a.b": 49.5},
        {"url": "https://a/3", "meta.deep.n": None, "a.b": 1.5},
        {"url": "https://b/c/90", "meta.deep.n": 90, "a.b": 45.0},
        {"url": "https://b/c/99", "meta.deep.n": 99, "a.b": 49.5},
    ]


def test_values_of_every_type_are_what_json_has(folder: Path) -> None:
    index = build_index(str(folder), column="tokens")
    columns = [name for name in table_of("a").column_names if name != "tokens"]
    (found,) = columns_of(LocalStorage([str(folder)]), index, [("a.parquet", 0, 5)], columns)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    when = datetime.fromtimestamp(1_700_000_000, tz=timezone.utc).isoformat()[:19]
    assert found.pop("when").replace(" ", "T").startswith(when)
    assert found == {
        "url": "https://a/5",
        "meta": {"lang": "l5", "deep": {"n": 5}},
        "tags": ["t5", None],
        "a.b": 2.5,
        "price": "1.25",
        "raw": "\\xff\x00",
        "nan": "nan",
    }


def test_a_missing_column_is_an_error_that_lists_those_that_are_there(folder: Path) -> None:
    index = build_index(str(folder), column="tokens")
    with pytest.raises(ConfigError, match=r"no column 'meta\.x'.*'url', 'meta', 'meta\.lang', 'meta\.deep'"):
        columns_of(LocalStorage([str(folder)]), index, PLACES[:1], ["meta.x"])


def test_a_column_that_some_files_lack_is_none_there(folder: Path) -> None:
    other = table_of("a").drop_columns("url").append_column("only", pa.array(range(DOCUMENTS)))
    pq.write_table(other, folder / "d.parquet", row_group_size=10)
    index = build_index(str(folder), column="tokens")
    places: list[Place] = [("a.parquet", 0, 3), ("d.parquet", 0, 3)]
    found = columns_of(LocalStorage([str(folder)]), index, places, ["url", "only", "a.b"])
    assert found == [{"url": "https://a/3", "only": None, "a.b": 1.5}, {"url": None, "only": 3, "a.b": 1.5}]
    with pytest.raises(ConfigError, match=r"d\.parquet has no column 'url'"):
        columns_of(LocalStorage([str(folder)]), index, places[1:], ["url"])


def test_a_column_that_some_sources_lack_is_none_there(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    pq.write_table(table_of("a").select(["tokens"]), tmp_path / "plain" / "a.parquet", row_group_size=10)
    options = LoaderOptions(seq_len=8, lanes=2, column="tokens", weights={"x": 1, "y": 1})
    run = open_run({"x": str(folder), "y": str(tmp_path / "plain")}, options)
    pieces = [piece("a.parquet", 1, 1, 0, 1, source) for source in ("y", "x")]
    found = describe_pieces(run, pieces, columns=["url"])
    assert [each.columns for each in found] == [{"url": None}, {"url": "https://a/31"}]
    with pytest.raises(ConfigError, match="no column 'url'"):
        describe_pieces(run, pieces[:1], columns=["url"])


@pytest.mark.parametrize(
    "place", [("c.parquet", 0, 0), ("a.parquet", 4, 0), ("a.parquet", 3, 10), ("a.parquet", 0, -1)]
)
def test_a_document_that_is_not_there_is_an_error(folder: Path, place: Place) -> None:
    index = build_index(str(folder), column="tokens")
    with pytest.raises(ConfigError, match=r"no file 'c\.parquet'|no row group 4 that|no document .* of a\.parquet"):
        columns_of(LocalStorage([str(folder)]), index, [place], ["url"])


def piece(file: str, row_group: int, document: int, start: int, tokens: int, source: str | None = None) -> Piece:
    where = {"file": file, "row_group": row_group, "document": document, "start": start}
    return Piece(row=0, column=0, tokens=tokens, source=source, **where)  # type: ignore[arg-type]


def test_pieces_are_described_by_their_ids_text_and_columns(folder: Path) -> None:
    options = LoaderOptions(seq_len=8, lanes=2, column="tokens", eos_id=256)
    run = open_run(str(folder), options)
    pieces = [piece("b/c.parquet", 3, 0, 2, 3), piece("a.parquet", 0, 3, 1, 4), piece("a.parquet", 0, 3, 0, 0)]
    found = describe_pieces(run, pieces, tokenizer=open_tokenizer("bytes"), columns=["url"])
    # Document 90 has the ids 0 to 6, document 3 those from 0 to 3, and an EOS each.
    assert [each.tokens.tolist() for each in found] == [[2, 3, 4], [1, 2, 3, 256], []]
    assert [each.ends for each in found] == [False, True, False]
    assert [each.text for each in found] == ["\x02\x03\x04", "\x01\x02\x03<eos>", ""]
    assert [each.columns["url"] for each in found] == ["https://b/c/90", "https://a/3", "https://a/3"]
    with pytest.raises(ConfigError, match=r"document 3 in row group 0 of a\.parquet has 5 tokens"):
        describe_pieces(run, [piece("a.parquet", 0, 3, 2, 4)])


def test_pieces_of_a_mixture_have_columns_beside_each_source(folder: Path) -> None:
    options = LoaderOptions(seq_len=8, lanes=2, column="tokens", weights={"x": 1, "y": 1})
    run = open_run({"x": str(folder), "y": str(folder)}, options)
    pieces = [piece("a.parquet", 1, 1, 0, 1, source) for source in ("y", "x", "y")]
    other = beside(folder)
    pq.write_table(pa.table({"url": [f"other/{row}" for row in range(DOCUMENTS)]}), other / "a.parquet")
    found = describe_pieces(run, pieces, columns=["url"], columns_from={"y": str(other)})
    assert [each.columns["url"] for each in found] == ["other/31", "https://a/31", "other/31"]
    with pytest.raises(ConfigError, match="columns_from must be a dict of folders by source"):
        describe_pieces(run, pieces, columns=["url"], columns_from=str(other))


@dataclass
class Counted:
    """A storage that notes what is read."""

    storage: LocalStorage
    reads: list[tuple[str, int, int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)

    def read(self, file: FileInfo, start: int, length: int, stop: threading.Event | None = None) -> bytes:
        self.reads.append((file.path, start, length))
        return self.storage.read(file, start, length, stop)


def test_each_row_group_of_tokens_is_read_once(folder: Path) -> None:
    options = LoaderOptions(seq_len=8, lanes=2, column="tokens")
    config = open_run(str(folder), options).config_of("")
    counted = Counted(LocalStorage([str(folder)]))
    pieces = [piece("a.parquet", 1, 3, 0, 1), piece("b/c.parquet", 0, 3, 0, 1), piece("a.parquet", 1, 9, 0, 2)]
    tokens_of(replace(config, storage=counted), pieces)  # type: ignore[arg-type]
    index = config.index
    groups = [index.chunk(group) for group in (1, 4)]
    assert counted.reads == [(chunk.path, chunk.start, chunk.length) for chunk in groups]


def test_only_the_chunks_concerned_are_read(folder: Path) -> None:
    index = build_index(str(folder), column="tokens")
    counted = Counted(LocalStorage([str(folder)]))
    columns_of(counted, index, PLACES[2:], ["url", "meta.lang"])  # type: ignore[arg-type]
    metadata = pq.read_metadata(folder / "b/c.parquet")
    size = (folder / "b/c.parquet").stat().st_size
    group = metadata.row_group(3)
    chunks = {
        (column.dictionary_page_offset, column.total_compressed_size)
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema in ("url", "meta.lang")
    }
    footer = [read for read in counted.reads if read[1] + read[2] == size]
    assert {read[1:] for read in counted.reads if read not in footer} == chunks
    assert {path for path, _, _ in counted.reads} == {"b/c.parquet"}
    assert len(counted.reads) == 3
    assert len(footer) == 1


def beside(folder: Path) -> Path:
    """The columns in files of their own, with other row groups."""
    other = folder.parent / "texts"
    for path in folder.rglob("*.parquet"):
        there = other / path.relative_to(folder)
        there.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pq.read_table(path).select(["url"]), there, row_group_size=7)
    return other


def test_columns_may_be_in_files_beside_those_of_tokens(folder: Path) -> None:
    index = build_index(str(folder), column="tokens")
    found = columns_of(LocalStorage([str(folder)]), index, PLACES, ["url"], columns_from=str(beside(folder)))
    assert [each["url"] for each in found] == ["https://b/c/99", "https://a/3", "https://b/c/90", "https://b/c/99"]


def test_files_beside_that_are_of_other_documents_are_refused(folder: Path) -> None:
    index, storage, other = build_index(str(folder), column="tokens"), LocalStorage([str(folder)]), beside(folder)
    pq.write_table(pq.read_table(other / "a.parquet").slice(1), other / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: it has 99 rows, and the file of tokens 100"):
        columns_of(storage, index, PLACES, ["url"], columns_from=str(other))
    (other / "a.parquet").unlink()
    (other / "x.parquet").write_bytes((other / "b/c.parquet").read_bytes())
    with pytest.raises(ConfigError, match=r"texts/? has no file 'a\.parquet'.*it has 'b/c\.parquet', 'x\.parquet'"):
        columns_of(storage, index, PLACES, ["url"], columns_from=str(other))


def test_a_damaged_chunk_is_an_error_that_names_the_file(folder: Path) -> None:
    path = folder / "a.parquet"
    pq.write_table(pq.read_table(path), path, row_group_size=30, write_page_checksum=True)
    chunk = pq.read_metadata(path).row_group(0).column(1)
    data = bytearray(path.read_bytes())
    data[chunk.dictionary_page_offset + chunk.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    index = build_index(str(folder), column="tokens")
    assert chunk.path_in_schema == "url"
    with pytest.raises(DataError, match=r"^a\.parquet: cannot be read"):
        columns_of(LocalStorage([str(folder)]), index, [("a.parquet", 0, 3)], ["url"])


def test_columns_of_a_set_behind_a_url(folder: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    filesystem = fsspec.filesystem("memory")
    for path in folder.rglob("*.parquet"):
        filesystem.pipe_file(f"{url}/{path.relative_to(folder)}", path.read_bytes())
    index = build_index(url, column="tokens")
    found = columns_of(open_storage(url), index, PLACES, ["meta.lang"])
    filesystem.rm(url, recursive=True)
    assert [each["meta.lang"] for each in found] == ["l99", None, "l90", "l99"]
