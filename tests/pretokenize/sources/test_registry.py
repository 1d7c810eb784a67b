"""Sources by name: cursors, fingerprints, bad records, the Hub, presets, and one's own."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hub_server import SHA, serving

from parquet_loader.errors import ConfigError, DataError, PathNotFoundError
from parquet_loader.pretokenize import (
    PRESETS,
    BadRecord,
    Cursor,
    PretokenizeOptions,
    Record,
    Source,
    SourceOptions,
    load_tokenizer,
    open_source,
    pretokenize,
    register_source,
    source_names,
    verify_set,
)
from parquet_loader.pretokenize.write.manifest import Skipped

TEXTS = ["one", "ü 漢字", "", "two\nlines", 'a "quoted", one', "last"]


def write(folder: Path, name: str, texts: list[str]) -> Path:
    path = folder / name
    kind = name.split(".")[1]
    if kind == "jsonl":
        raw = "".join(json.dumps({"meta": {"text": text}, "text": text}) + "\n" for text in texts).encode()
    elif kind == "csv":
        stream = io.StringIO()
        csv.writer(stream).writerows([["id", "text"], *([at, text] for at, text in enumerate(texts))])
        raw = stream.getvalue().encode()
    elif kind == "parquet":
        table = pa.table({"text": texts, "meta": [{"text": text} for text in texts]})
        pq.write_table(table, path, row_group_size=2)
        return path
    else:
        raw = "\n".join(texts).encode()
    packed = {"gz": gzip.compress, "zst": zstandard.compress}.get(name.rsplit(".", 1)[1], lambda raw: raw)(raw)
    path.write_bytes(packed)
    return path


def texts_of(records: Iterator[Record | BadRecord]) -> list[str]:
    return [record.text if isinstance(record, Record) else "bad" for record in records]


NAMES = ["a.txt", "a.txt.gz", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.csv.gz", "a.parquet"]


@pytest.mark.parametrize(
    ("name", "unit"),
    [(name, "line") for name in NAMES]
    + [(name, unit) for name in NAMES if ".txt" in name for unit in ("paragraph", "file")],
)
def test_records_go_on_from_every_cursor(tmp_path: Path, name: str, unit: Any) -> None:
    write(tmp_path, name, TEXTS)
    write(tmp_path, "b." + name.split(".", 1)[1], ["second", "file"])
    source = open_source("files", SourceOptions(inputs=(str(tmp_path),), text_unit=unit))
    records = list(source.records())
    assert len(records) >= 2
    fractions = [source.fraction(record.cursor) for record in records]
    assert fractions == sorted(fractions)  # type: ignore[type-var]
    assert all(0 <= each <= 1 for each in fractions if each is not None)
    for at, record in enumerate(records):
        assert list(source.records(record.cursor)) == records[at + 1 :]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl", "a.parquet"])
def test_texts_come_out_as_they_went_in(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, TEXTS)
    source = open_source("files", SourceOptions(inputs=(str(path),)))
    assert texts_of(source.records()) == TEXTS


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_column_may_lie_within_another(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, TEXTS)
    source = open_source("files", SourceOptions(inputs=(str(path),), text_column="meta.text"))
    assert texts_of(source.records()) == TEXTS
    source = open_source("files", SourceOptions(inputs=(str(path),), text_column="meta.body"))
    with pytest.raises(DataError, match="no such"):
        for record in source.records():
            if isinstance(record, BadRecord):
                raise record.error


def test_a_null_within_a_null_struct_is_a_bad_record(tmp_path: Path) -> None:
    table = pa.table({"meta": pa.array([{"text": "a"}, None, {"text": None}])})
    pq.write_table(table, tmp_path / "a.parquet")
    source = open_source("parquet", SourceOptions(inputs=(str(tmp_path),), text_column="meta.text"))
    assert texts_of(source.records()) == ["a", "bad", "bad"]


def test_paragraphs_end_at_empty_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n\none\ntwo\n \t\nthree\n\n\n\nfour")
    source = open_source("text", SourceOptions(inputs=(str(tmp_path),), text_unit="paragraph"))
    assert texts_of(source.records()) == ["one\ntwo", "three", "four"]


def test_a_named_kind_reads_files_of_any_extension(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", ["one"]).rename(tmp_path / "dump.data")
    write(tmp_path, "b.txt", ["other"])
    source = open_source("jsonl", SourceOptions(inputs=(str(tmp_path / "dump.data"),)))
    assert texts_of(source.records()) == ["one"]
    with pytest.raises(ConfigError, match="no file to read"):
        open_source("jsonl", SourceOptions(inputs=(str(tmp_path),)))  # in a folder, extensions say what is meant


def test_a_fingerprint_tells_files_columns_and_units_apart(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", ["one"])

    def fingerprint(**changes: Any) -> dict[str, object]:
        return open_source("files", SourceOptions(**{"inputs": (str(path),)} | changes)).fingerprint()

    first = fingerprint()
    assert first == fingerprint()
    assert json.loads(json.dumps(first)) == first
    assert first != fingerprint(text_column="x")
    touched = write(tmp_path, "b.txt", ["one"])
    units = [fingerprint(inputs=(str(touched),), text_unit=unit) for unit in ("line", "file")]
    assert units[0] != units[1]
    write(tmp_path, "a.jsonl", ["one", "two"])
    assert first != fingerprint()


# --- bad records

BAD = {
    "a.jsonl": (
        b'{"text": "a"}\n{"text": \n\xff\n{"body": 1}\n{"text": 7}\n[]\n{"text": "\\ud83d"}\n{"text": "b"}\n',
        ["a.jsonl:2", "a.jsonl:3", "a.jsonl:4, column 'text'", "a.jsonl:5, column 'text'", "a.jsonl:6", "a.jsonl:7"],
    ),
    "a.txt": (b"a\n\xff\xfe\nb\n", ["a.txt:2"]),
    "a.csv": (b'id,text\n1,a\n2\n3,"x\xff\ny"\n4,b\n', ["a.csv:3", "a.csv:4, column 'text'"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_records_are_raised_or_skipped_and_listed(tmp_path: Path, name: str) -> None:
    content, bad = BAD[name]
    (tmp_path / name).write_bytes(content)
    values: dict[str, Any] = {"inputs": (str(tmp_path / name),), "output": str(tmp_path / "out"), "tokenizer": "bytes"}
    with pytest.raises(DataError, match=bad[0]):
        pretokenize(PretokenizeOptions(**values))
    summary = pretokenize(PretokenizeOptions(**values, on_bad_record="skip"))
    assert summary.manifest.skipped == Skipped(bad=len(bad))
    assert [entry.where.removeprefix(f"{tmp_path}/") for entry in summary.manifest.bad_records] == bad
    assert all(entry.problem for entry in summary.manifest.bad_records)
    assert f"Skipped {len(bad)} bad records" in summary.describe()
    listed = json.loads((tmp_path / "out" / "_manifest.json").read_text())["bad_records"]
    assert len(listed) == len(bad)
    rows = pq.read_table(tmp_path / "out" / "part-00000.parquet")["tokens"].to_pylist()
    assert [bytes(row) for row in rows] == [b"a", b"b"]
    with pytest.raises(ConfigError, match="on_bad_record: was 'skip'"):
        pretokenize(PretokenizeOptions(**values))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_longer_text_than_allowed_is_bad_whatever_it_is_read_from_and_a_run_may_be_resumed_with_more(
    tmp_path: Path, name: str
) -> None:
    path = write(tmp_path, name, ["short", "l" * 1000, "last"])
    values: dict[str, Any] = {"inputs": (str(path),), "output": str(tmp_path / "out"), "tokenizer": "bytes"}
    small: dict[str, Any] = {"row_group_tokens": 2, "file_tokens": 2}
    with pytest.raises(DataError, match="raise max_record_bytes"):
        pretokenize(PretokenizeOptions(**values, **small, max_record_bytes=500))
    assert pretokenize(PretokenizeOptions(**values, **small)).manifest.documents == 3
    values["output"] = str(tmp_path / "skipped")
    if name != "a.csv":
        manifest = pretokenize(PretokenizeOptions(**values, max_record_bytes=500, on_bad_record="skip")).manifest
        assert (manifest.documents, manifest.skipped) == (2, Skipped(bad=1))


def test_empty_texts_are_kept_or_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", ["", "a", "", "b"])
    for empty, documents in (("keep", 4), ("skip", 2)):
        values: dict[str, Any] = {"output": str(tmp_path / empty), "tokenizer": "bytes", "empty": empty}
        manifest = pretokenize(PretokenizeOptions(inputs=(str(path),), **values)).manifest
        assert (manifest.documents, manifest.skipped) == (documents, Skipped(empty=4 - documents))


# --- one's own


class Countdown(Source):
    def __init__(self, start: int) -> None:
        self.start = start

    def records(self, cursor: Cursor | None = None) -> Iterator[Record]:
        for number in range(cursor[0] if cursor else self.start, 0, -1):
            yield Record(text=f"{number}!", origin=f"number {number}", cursor=(number - 1,))

    def fingerprint(self) -> dict[str, object]:
        return {"start": self.start}


def countdown(options: SourceOptions) -> Source:
    return Countdown(int(options.inputs[0]))


def test_a_source_of_ones_own_is_used_by_its_name(tmp_path: Path) -> None:
    register_source("countdown", countdown)
    assert "countdown" in source_names()
    for source in ("countdown", f"{__name__}:countdown"):
        values: dict[str, Any] = {"output": str(tmp_path / source.replace(":", "-")), "tokenizer": "bytes"}
        pretokenize(PretokenizeOptions(source=source, inputs=("3",), **values))
        rows = pq.read_table(Path(values["output"]) / "part-00000.parquet")["tokens"].to_pylist()
        assert [bytes(row) for row in rows] == [b"3!", b"2!", b"1!"]


@pytest.mark.parametrize("name", ["nosuch", "no.such.module:factory", f"{__name__}:nosuch"])
def test_an_unknown_source_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=name.split(":", maxsplit=1)[0]):
        open_source(name, SourceOptions(inputs=("x",)))


# --- the Hub


@pytest.fixture
def hub_files() -> dict[str, bytes]:
    def lines(first: int) -> bytes:
        return b"".join(json.dumps({"text": f"document {first + at}", "body": at}).encode() + b"\n" for at in range(50))

    configs = "".join(f"- config_name: {name}\n  data_files: {name}/*.jsonl\n" for name in ("en", "de"))
    card = f"---\nconfigs:\n{configs}---\n".encode()
    return {"README.md": card, "en/0.jsonl": lines(0), "en/1.jsonl": lines(50), "de/0.jsonl": lines(900)}


PROGRAM = """
import sys
from parquet_loader.pretokenize import PretokenizeOptions, SourceOptions, open_source, pretokenize
source = open_source("hf", SourceOptions(dataset="some/set", config="en"))
records = list(source.records())
assert [record.text for record in records] == [f"document {at}" for at in range(100)], records[:3]
assert list(source.records(records[59].cursor)) == records[60:]
assert source.fingerprint()["revision"] == sys.argv[2], source.fingerprint()
options = PretokenizeOptions(
    source="hf", dataset="some/set", config="en", output=sys.argv[1], tokenizer="bytes", keep_columns=("body",)
)
print(pretokenize(options).manifest.documents)

import datasets
from parquet_loader.pretokenize.sources.hub import HubSource, types_in_dataset
rows = [{"text": "a", "id": 7, "meta": {"n": 1.5}}]
typed = datasets.Dataset.from_list(rows).to_iterable_dataset()
for dataset in (typed, datasets.IterableDataset.from_generator(rows.copy)):
    keep = types_in_dataset(dataset, ["id", "meta.n", "meta"], "x")
    source = HubSource(dataset=dataset, name="x", config=None, split="train", revision=None, keep=keep)
    print([str(kind) for kind in keep.values()], *(record.columns for record in source.records()))
"""


def run_against_hub(command: list[str], endpoint: str, tmp_path: Path, tool_env: dict[str, str]) -> Any:
    environment = tool_env | {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
        "USE_TORCH": "0",  # for which datasets otherwise imports torch and JAX, seconds each
        "USE_JAX": "0",
    }
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_data_set_of_the_hub_is_streamed(
    tmp_path: Path, tool_env: dict[str, str], hub_files: dict[str, bytes]
) -> None:
    with serving("some/set", hub_files) as endpoint:
        done = run_against_hub([sys.executable, "-c", PROGRAM, "out", SHA], endpoint, tmp_path, tool_env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "100",
        "['int64', 'double', 'struct<n: double>'] (7, 1.5, {'n': 1.5})",
        # A data set that declares no types.
        """['string', 'string', 'string'] ('7', '1.5', '{"n":1.5}')""",
    ]
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet")["body"].to_pylist() == [*range(50)] * 2


def test_a_data_set_that_is_made_by_a_script_is_told_from_one_that_is_not_there(
    tmp_path: Path, tool_env: dict[str, str], command: list[str]
) -> None:
    for name, cure in (
        ("togethercomputer/RedPajama-Data-1T", "https://data.together.xyz/redpajama-data-1T/v1.0.0/urls.txt"),
        ("some/set", "--revision refs/convert/parquet reads it"),
    ):
        files = {"README.md": b"", f"{name.split('/')[1]}.py": b"raise SystemExit\n", "urls.txt": b""}
        arguments = ["--source", "hf", "--dataset", name] if name == "some/set" else ["--preset", "redpajama-arxiv"]
        with serving(name, files) as endpoint:
            done = run_against_hub(
                [*command, *arguments, "--output", "out", "--tokenizer", "bytes"], endpoint, tmp_path, tool_env
            )
        assert (done.returncode, done.stdout) == (2, "")
        assert f"--dataset {name} (config " in done.stderr
        assert "is made by a script, which datasets" in done.stderr
        assert cure in done.stderr
        assert "install 'datasets<4'" in done.stderr
        assert "network" not in done.stderr
        assert done.stderr.count("pretokenize: ") == 1


def test_the_command_reads_the_hub_and_names_what_is_not_there(
    tmp_path: Path, tool_env: dict[str, str], hub_files: dict[str, bytes], command: list[str]
) -> None:
    command = [*command, "--source", "hf", "--dataset", "some/set", "--output", "out", "--tokenizer", "bytes"]
    with serving("some/set", hub_files) as endpoint:
        done = run_against_hub([*command, "--config", "de"], endpoint, tmp_path, tool_env)
        assert done.stdout.startswith("Wrote 50 documents"), done.stderr
        done = run_against_hub([*command, "--config", "fr"], endpoint, tmp_path, tool_env)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--dataset some/set (config 'fr', split 'train') cannot be opened" in done.stderr


def test_presets_name_the_common_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[tuple[object, ...]] = []

    def refuse(*names: object) -> tuple[object, None]:
        opened.append(names)
        return iter(()), None

    monkeypatch.setattr("parquet_loader.pretokenize.sources.registry.open_hub_dataset", refuse)
    for preset in PRESETS:
        PretokenizeOptions(preset=preset, output=str(tmp_path), tokenizer="bytes").open_source()
    assert ("allenai/c4", "en", "train", None) in opened
    assert ("monology/pile-uncopyrighted", None, "train", None) in opened
    assert ("HuggingFaceFW/fineweb-edu", "sample-10BT", "train", None) in opened
    configs = {names[1] for names in opened if names[0] == "togethercomputer/RedPajama-Data-1T"}
    assert configs == {"arxiv", "book", "common_crawl", "c4", "github", "stackexchange", "wikipedia"}
    assert {preset.text_column for preset in PRESETS.values()} == {"text"}


def test_what_is_given_beside_a_preset_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[tuple[object, ...]] = []

    def refuse(*names: object) -> tuple[object, None]:
        opened.append(names)
        return iter(()), None

    monkeypatch.setattr("parquet_loader.pretokenize.sources.registry.open_hub_dataset", refuse)
    values: dict[str, Any] = {"preset": "c4", "output": str(tmp_path), "tokenizer": "bytes"}
    given = {"config": "de", "split": "validation", "revision": "v1", "text_column": "url"}
    source = PretokenizeOptions(**values, **given).open_source()
    assert opened == [("allenai/c4", "de", "validation", "v1")]
    assert source.fingerprint()["text_column"] == "url"


def test_a_source_of_ones_own_may_look_at_every_option_or_say_which(tmp_path: Path) -> None:
    values: dict[str, Any] = {"inputs": ("3",), "output": str(tmp_path), "tokenizer": "bytes", "split": "x"}
    register_source("countdown", countdown)
    assert PretokenizeOptions(source="countdown", **values).open_source().fingerprint() == {"start": 3}
    register_source("countdown-alone", countdown, uses=("inputs",))
    with pytest.raises(ConfigError, match="split='x' is not used by source='countdown-alone'"):
        PretokenizeOptions(source="countdown-alone", **values)


@pytest.mark.parametrize(
    "changes",
    [{"preset": "nosuch"}, {"preset": "c4", "inputs": ("a",)}, {"preset": "c4", "source": "csv"}, {"source": "hf"}],
)
def test_a_preset_or_data_set_that_cannot_be_meant_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PretokenizeOptions(output="o", tokenizer="bytes", **changes).open_source()


# --- verify


def test_verify_reads_the_set_again_and_shows_documents(
    tmp_path: Path, run_tool: Callable[..., subprocess.CompletedProcess[str]], tokenizer_folder: Path
) -> None:
    write(tmp_path, "a.jsonl", [f"this is number {at}" for at in range(50)])
    arguments = ["--input", "a.jsonl", "--output", "out", "--tokenizer", tokenizer_folder, "--verify"]
    done = run_tool(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Verified 50 documents" in done.stdout
    assert "part-00000.parquet, row 0: 'this is number 0'" in done.stdout
    assert "part-00000.parquet, row 49: 'this is number 49'" in done.stdout
    part = tmp_path / "out" / "part-00000.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 4] ^= 1
    part.write_bytes(content)
    done = run_tool(*arguments)  # the set is there, so nothing is written, and what is there is looked at
    assert done.returncode == 2
    assert "part-00000.parquet" in done.stderr
    part.write_bytes(content[:-1])
    assert f"part-00000.parquet has {len(content) - 1:,} bytes" in run_tool(*arguments[:-1]).stderr
    part.rename(part.with_name("part-00001.parquet"))
    done = run_tool(*arguments[:-1])  # not even what is there is said to be there
    assert done.returncode == 2
    assert "part-00000.parquet is not there; the manifest says" in done.stderr
    with pytest.raises(PathNotFoundError, match="do not agree about 2 files"):
        verify_set(str(tmp_path / "out"), load_tokenizer(str(tokenizer_folder)))


def test_a_source_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="'os:path' is no function that makes a source, but module"):
        open_source("os:path", SourceOptions())


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (Record(text=5, origin="row 7", cursor=(1,)), "row 7: the source gave a Record whose text is 5, of type int"),  # type: ignore[arg-type]
        (Record(text="a", origin="row 7", cursor=5), r"row 7: .* whose cursor is 5\. Give a tuple of integers"),  # type: ignore[arg-type]
    ],
)
def test_a_record_that_is_none_is_an_error_that_names_it(tmp_path: Path, record: Record, problem: str) -> None:
    class Wrong(Source):
        def records(self, cursor: Cursor | None = None) -> Iterator[Record | BadRecord]:
            yield record

        def fingerprint(self) -> dict[str, object]:
            return {}

    register_source("wrong", lambda _: Wrong())
    with pytest.raises(DataError, match=problem):
        pretokenize(
            PretokenizeOptions(source="wrong", tokenizer="bytes", output=str(tmp_path / "out"), on_bad_record="skip")
        )
