"""Columns of documents that are written beside their tokens."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ParquetLoader
from parquet_loader.errors import ConfigError, DataError, PretokenizeWarning
from parquet_loader.pretokenize import (
    Manifest,
    PretokenizeOptions,
    Record,
    Source,
    load_tokenizer,
    pretokenize,
    pretokenize_rank,
    register_source,
    verify_set,
)

Make = Callable[..., PretokenizeOptions]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Options of a run over the folder ``in``, with tiny row groups and files."""
    (tmp_path / "in").mkdir()

    def make(**changes: Any) -> PretokenizeOptions:
        values: dict[str, Any] = {
            "inputs": (str(tmp_path / "in"),),
            "output": str(tmp_path / "out"),
            "tokenizer": "bytes",
            "row_group_tokens": 64,
            "file_tokens": 256,
        }
        return PretokenizeOptions(**values | changes)

    return make


def write_jsonl(path: Path, records: list[Any]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def read(folder: Path) -> pa.Table:
    return pq.read_table(sorted(folder.glob("part-*.parquet")))


def texts_of(table: pa.Table) -> list[str]:
    return [bytes(ids).decode() for ids in table["tokens"].to_pylist()]


DOCUMENTS = 60


def record(number: int) -> dict[str, Any]:
    return {"text": f"document {number} " + "x" * (number % 9), "id": number, "meta": {"lang": f"l{number % 3}"}}


def test_each_document_has_its_own_values(tmp_path: Path, made: Make) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [record(number) for number in range(40)])
    write_jsonl(tmp_path / "in/b.jsonl.gz", [record(number) for number in range(40, DOCUMENTS)])
    pretokenize(made(keep_columns=("id", "meta.lang", "text")))
    table = read(tmp_path / "out")
    assert table.column_names == ["tokens", "id", "meta.lang", "text"]
    assert texts_of(table) == table["text"].to_pylist() == [record(number)["text"] for number in range(DOCUMENTS)]
    assert table["id"].to_pylist() == [str(number) for number in range(DOCUMENTS)]
    assert table["meta.lang"].to_pylist() == [f"l{number % 3}" for number in range(DOCUMENTS)]
    assert len(list((tmp_path / "out").glob("part-*"))) > 2


def test_json_values_are_text_whichever_way_a_line_is_read(tmp_path: Path, made: Make) -> None:
    values = ["é", "", None, 7, 1 << 70, 0.5, True, {"a": [1, "é"]}, [], -(1 << 63)]
    write_jsonl(tmp_path / "in/a.jsonl", [{"text": "a", "v": value} for value in values] + [{"text": "lacks it"}])
    # NaN is what the quick way of reading JSON does not take.
    with open(tmp_path / "in/b.jsonl", "w") as file:
        file.writelines(json.dumps({"text": "b", "v": value, "other": float("nan")}) + "\n" for value in values)
    pretokenize(made(keep_columns=("v",)))
    expected = ["é", "", None, "7", str(1 << 70), "0.5", "true", '{"a":[1,"é"]}', "[]", str(-(1 << 63))]
    assert read(tmp_path / "out")["v"].to_pylist() == [*expected, None, *expected]


def typed(rows: range) -> pa.Table:
    return pa.table(
        {
            "text": [f"document {row}" for row in rows],
            "id": pa.array(rows, pa.int64()),
            "url": pa.array([f"u{row}" for row in rows]).dictionary_encode(),
            "at": pa.array(rows, pa.timestamp("ns")),
            "meta": [None if row % 5 == 0 else {"tags": [f"t{row}"], "score": row / 2} for row in rows],
            "ids": [[row] for row in rows],
        }
    )


def test_columns_of_parquet_keep_their_types(tmp_path: Path, made: Make) -> None:
    table = typed(range(DOCUMENTS))
    pq.write_table(table.slice(0, 30), tmp_path / "in/a.parquet", row_group_size=7)
    pq.write_table(table.slice(30), tmp_path / "in/b.parquet")
    pretokenize(made(keep_columns=("id", "url", "at", "meta", "meta.score")))
    found = read(tmp_path / "out")
    assert [str(each.type) for each in found.schema][1:4] == ["int64", "string", "timestamp[ns]"]
    for name in ("id", "url", "at", "meta"):
        assert found[name].cast(table[name].type).to_pylist() == table[name].to_pylist(), name
    assert found["meta.score"].to_pylist() == [None if row % 5 == 0 else row / 2 for row in range(DOCUMENTS)]


def test_the_first_file_that_has_a_column_says_its_type(tmp_path: Path, made: Make) -> None:
    pq.write_table(pa.table({"text": ["lacks it"]}), tmp_path / "in/a.parquet")
    pq.write_table(pa.table({"text": ["null"], "v": pa.nulls(1)}), tmp_path / "in/b.parquet")
    pq.write_table(pa.table({"text": ["long"], "v": pa.array([1 << 40])}), tmp_path / "in/c.parquet")
    pq.write_table(pa.table({"text": ["short"], "v": pa.array([7], pa.int8())}), tmp_path / "in/d.parquet")
    pretokenize(made(keep_columns=("v",)))
    assert read(tmp_path / "out")["v"].to_pylist() == [None, None, 1 << 40, 7]


def test_a_column_that_changes_its_type_is_an_error_that_names_both(tmp_path: Path, made: Make) -> None:
    pq.write_table(pa.table({"text": ["a"], "v": [1]}), tmp_path / "in/a.parquet")
    pq.write_table(pa.table({"text": ["b"], "v": ["x"]}), tmp_path / "in/b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet, column 'v': it is string here, and int64 in the set"):
        pretokenize(made(keep_columns=("v",)))


def test_beside_files_without_types_columns_of_parquet_are_text(tmp_path: Path, made: Make) -> None:
    pq.write_table(pa.table({"text": ["a"], "v": [1]}), tmp_path / "in/a.parquet")
    write_jsonl(tmp_path / "in/b.jsonl", [{"text": "b", "v": 2}])
    (tmp_path / "in/c.csv").write_text("text,v\nc,3\n")
    (tmp_path / "in/d.csv").write_text("text,w\nd,4\n")
    (tmp_path / "in/e.txt").write_text("e\n")
    pretokenize(made(keep_columns=("v",)))
    assert read(tmp_path / "out")["v"].to_pylist() == ["1", "2", "3", None, None]


def test_columns_follow_their_documents_through_duplicates_empty_and_bad_records(tmp_path: Path, made: Make) -> None:
    texts = ["a", "", "a", "b", None, "c " * 50, "b", "d"]
    write_jsonl(tmp_path / "in/a.jsonl", [{"text": text, "id": at} for at, text in enumerate(texts)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PretokenizeWarning)
        pretokenize(made(keep_columns=("id",), dedup=True, empty="skip", on_bad_record="skip"))
    table = read(tmp_path / "out")
    assert [texts[int(at)] for at in table["id"].to_pylist()] == texts_of(table) == ["a", "b", "c " * 50, "d"]


def test_half_a_surrogate_pair_in_a_column_is_a_bad_record(tmp_path: Path, made: Make) -> None:
    (tmp_path / "in/a.jsonl").write_text('{"text": "a", "v": "\\ud800"}\n{"text": "b", "v": "fine"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1, column 'v': character 0 .* half of a surrogate pair"):
        pretokenize(made(keep_columns=("v",)))
    pretokenize(made(keep_columns=("v",), on_bad_record="skip"))
    assert read(tmp_path / "out")["v"].to_pylist() == ["fine"]


class StopError(Exception):
    pass


@pytest.mark.parametrize("kind", ["parquet", "jsonl.gz", "csv"])
def test_a_run_that_stopped_resumes_to_the_same_bytes(tmp_path: Path, made: Make, kind: str) -> None:
    keep = ("id", "meta")
    if kind == "parquet":
        pq.write_table(typed(range(DOCUMENTS)), tmp_path / "in/a.parquet", row_group_size=11)
    elif kind == "csv":
        rows = "".join(f'"document\n{number}",{number},m{number}\n' for number in range(DOCUMENTS))
        (tmp_path / "in/a.csv").write_text("text,id,meta\n" + rows)
    else:
        write_jsonl(tmp_path / f"in/a.{kind}", [record(number) for number in range(DOCUMENTS)])
    pretokenize(made(keep_columns=keep, output=str(tmp_path / "whole")))
    stopped = 0

    def stop_after_a_while(done: Any) -> None:
        if done.documents > 20 + stopped * 13:
            raise StopError

    while True:
        try:
            pretokenize(made(keep_columns=keep, batch_bytes=100), progress=stop_after_a_while)
            break
        except StopError:
            stopped += 1
    assert stopped > 2
    assert [int(each) for each in read(tmp_path / "out")["id"].to_pylist()] == [*range(DOCUMENTS)]
    for path in sorted((tmp_path / "whole").iterdir()):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_resume_with_other_columns_is_refused(tmp_path: Path, made: Make) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [record(number) for number in range(DOCUMENTS)])

    def stop(done: Any) -> None:
        if done.documents > 30:
            raise StopError

    with pytest.raises(StopError):
        pretokenize(made(keep_columns=("id",), batch_bytes=100), progress=stop)
    with pytest.raises(ConfigError, match=r"keep_columns: was \{'id': 'string'\}, is None"):
        pretokenize(made())
    with pytest.raises(ConfigError, match=r"keep_columns.id: was 'string', is None; keep_columns.meta: was None"):
        pretokenize(made(keep_columns=("meta",)))
    pretokenize(made(keep_columns=("id",)))
    with pytest.raises(ConfigError, match=r"a complete set of other inputs or options \(keep_columns"):
        pretokenize(made(keep_columns=("meta",)))


def test_ranks_write_the_types_of_the_whole_input(tmp_path: Path, made: Make) -> None:
    pq.write_table(pa.table({"text": ["a" * 50], "v": pa.array([1], pa.int64())}), tmp_path / "in/a.parquet")
    pq.write_table(pa.table({"text": ["b" * 50], "v": pa.array([2], pa.int8())}), tmp_path / "in/b.parquet")
    for rank in (1, 0):
        pretokenize_rank(made(keep_columns=("v",), world_size=2, rank=rank))
    pretokenize_rank(made(keep_columns=("v",), world_size=2, step="finish"))
    files = sorted((tmp_path / "out").glob("part-*"))
    assert [str(pq.read_schema(file).field("v").type) for file in files] == ["int64", "int64"]
    assert read(tmp_path / "out")["v"].to_pylist() == [1, 2]


def test_the_loader_finds_its_tokens_and_the_manifest_names_the_columns(tmp_path: Path, made: Make) -> None:
    pq.write_table(typed(range(DOCUMENTS)), tmp_path / "in/a.parquet")
    summary = pretokenize(made(keep_columns=("id", "at", "meta", "meta.tags")))
    with ParquetLoader(str(tmp_path / "out"), seq_len=32, lanes=2) as loader:
        assert loader.index.column == "tokens"
        next(iter(loader))
    text = (tmp_path / "out/_manifest.json").read_text()
    assert json.loads(text)["kept_columns"] == ["id", "at", "meta", "meta.tags"]
    assert Manifest.from_json(text) == summary.manifest
    assert verify_set(str(tmp_path / "out"), load_tokenizer("bytes")).manifest.documents == DOCUMENTS


def test_kept_columns_are_compressed_in_their_own_way(tmp_path: Path, made: Make) -> None:
    tags = pa.array(
        [[("k", [{"v": str(row)}])] for row in range(9)], pa.map_("string", pa.list_(pa.struct({"v": "string"})))
    )
    pq.write_table(pa.table({"text": ["x"] * 9, "tags": tags}), tmp_path / "in/a.parquet")
    pretokenize(made(keep_columns=("tags",)))
    group = pq.read_metadata(tmp_path / "out/part-00000.parquet").row_group(0)
    chunks = {chunk.path_in_schema: chunk for chunk in map(group.column, range(group.num_columns))}
    found = {name: (chunk.compression, chunk.has_dictionary_page) for name, chunk in chunks.items()}
    assert found == {
        "tokens.list.element": ("LZ4", False),
        "tags.key_value.key": ("ZSTD", True),
        "tags.key_value.value.list.element.v": ("ZSTD", True),
    }
    assert read(tmp_path / "out")["tags"].to_pylist() == tags.to_pylist()


def test_a_column_that_could_be_taken_for_tokens_is_refused(tmp_path: Path, made: Make) -> None:
    pq.write_table(typed(range(3)), tmp_path / "in/a.parquet")
    with pytest.raises(ConfigError, match=r"keep_columns: 'ids' is list<element: int64>.*which list of integers"):
        pretokenize(made(keep_columns=("ids",)))
    for names, problem in ((("tokens",), "column of tokens"), (("a", "a"), "twice"), (("a", ""), "no name")):
        with pytest.raises(ConfigError, match=problem):
            made(keep_columns=names)


def test_a_name_that_nothing_has_is_an_error_or_a_warning(tmp_path: Path, made: Make) -> None:
    pq.write_table(typed(range(3)), tmp_path / "in/a.parquet")
    with pytest.raises(ConfigError, match=r"none of the 1 files has a column 'urll'; .*'text', 'id', 'url'"):
        pretokenize(made(keep_columns=("urll",)))
    write_jsonl(tmp_path / "in/a.jsonl", [record(0)])
    with pytest.warns(PretokenizeWarning, match="keep_columns: 'nothing', 'urll' is null in every document"):
        pretokenize(made(inputs=(str(tmp_path / "in/a.jsonl"),), keep_columns=("urll", "id", "nothing")))
    (tmp_path / "in/b.txt").write_text("b\n")
    with pytest.raises(ConfigError, match=r"keep_columns=.* is not used"):
        pretokenize(made(inputs=(str(tmp_path / "in/b.txt"),), keep_columns=("id",)))


def test_a_source_of_ones_own_gives_columns_with_their_types(tmp_path: Path, made: Make) -> None:
    class Numbers(Source):
        def __init__(self, wrong: Any = 3) -> None:
            self.third = wrong

        def records(self, cursor: Any = None) -> Any:
            for number in range(cursor[0] if cursor else 0, 5):
                value = self.third if number == 3 else number
                yield Record(text="n", origin=f"{number}", cursor=(number + 1,), columns=(value, datetime(2026, 1, 1)))

        def fingerprint(self) -> dict[str, object]:
            return {}

        def kept_types(self) -> dict[str, Any]:
            return {"n": pa.int16(), "at": pa.date32()}

    register_source("numbers", lambda options: Numbers())
    options = made(source="numbers", inputs=(), keep_columns=("n", "at"))
    pretokenize(options)
    assert read(tmp_path / "out")["n"].to_pylist() == list(range(5))
    register_source("numbers", lambda options: Numbers(wrong="many"))
    with pytest.raises(DataError, match=r"3, column 'n': the value is not int16"):
        pretokenize(made(source="numbers", inputs=(), keep_columns=("n", "at"), output=str(tmp_path / "wrong")))
    with pytest.raises(ConfigError, match="this source gives no column 'x', but n, at"):
        pretokenize(made(source="numbers", inputs=(), keep_columns=("x",), output=str(tmp_path / "other")))


def test_the_command_takes_names_with_commas(tmp_path: Path, run_tool: Callable[..., Any]) -> None:
    write_jsonl(tmp_path / "in.jsonl", [record(number) for number in range(3)])
    done = run_tool(
        "--input", tmp_path / "in.jsonl", "--tokenizer", "bytes", "--output", tmp_path / "out",
        "--keep-columns", "id,meta.lang", "--verify",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out").select(["id", "meta.lang"]).to_pylist()[1] == {"id": "1", "meta.lang": "l1"}
