"""Whole runs: what goes in comes out, whatever the format, the sizes and the place."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenizers import Tokenizer

from parquet_loader.errors import ConfigError, DataError, ParquetLoaderError, StorageError
from parquet_loader.pretokenize import (
    BadRecord,
    Cursor,
    Manifest,
    PretokenizeOptions,
    Progress,
    Record,
    Source,
    TokenBatch,
    pretokenize,
)
from parquet_loader.pretokenize.run.pipeline import tokenize_source
from parquet_loader.pretokenize.run.shards import batch_documents
from parquet_loader.pretokenize.select.ledger import Document
from parquet_loader.pretokenize.tokenizers.huggingface import load_tokenizer
from parquet_loader.pretokenize.write.folder import OutputFolder, shard_name
from parquet_loader.pretokenize.write.manifest import Skipped

EOS = "<|endoftext|>"


def open_parts(output: str) -> list[pq.ParquetFile]:
    filesystem, path = fsspec.url_to_fs(output)
    names = sorted(filesystem.glob(f"{path}/part-*.parquet"))
    return [
        pq.ParquetFile(pa.BufferReader(filesystem.cat_file(name)), page_checksum_verification=True) for name in names
    ]


def manifest_of(output: str) -> Manifest:
    filesystem, path = fsspec.url_to_fs(output)
    return Manifest.from_json(filesystem.cat_file(f"{path}/_manifest.json"))


def documents_of(output: str) -> list[list[int]]:
    return [row for part in open_parts(output) for row in part.read().column("tokens").to_pylist()]


def decoded(output: str, bpe: Tokenizer) -> list[str]:
    return [bpe.decode(ids, skip_special_tokens=False) for ids in documents_of(output)]


def visible_in(folder: Path) -> list[str]:
    return [name for name in names_in(folder) if not name.startswith("_staging-run")]


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


@pytest.fixture
def options(tokenizer_folder: Path, tmp_path: Path) -> Callable[..., PretokenizeOptions]:
    def make(*inputs: object, **changes: Any) -> PretokenizeOptions:
        values: dict[str, Any] = {"output": str(tmp_path / "out"), "tokenizer": str(tokenizer_folder)} | changes
        return PretokenizeOptions(inputs=tuple(map(str, inputs)), **values)

    return make


@pytest.fixture
def documents(stdlib_texts: list[str]) -> list[str]:
    """Texts of very different lengths, one empty, one that spells the special token."""
    pieces = [
        text[start : start + 300 * (1 + start % 7)] for text in stdlib_texts[:25] for start in range(0, 9000, 900)
    ]
    return [*filter(None, pieces), "", f"a {EOS} in the text{EOS}", "ü 漢字 🎉 \u2028 \r\n end", stdlib_texts[3]]


# --- round trips


def write_input(path: Path, documents: list[str]) -> None:
    lines = "".join(
        json.dumps({"id": 1, "text": text}, ensure_ascii=at % 2 == 0) + "\n" for at, text in enumerate(documents)
    )
    name = path.name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif name.endswith(".zst"):
        path.write_bytes(zstandard.compress(lines.encode()))
    elif name.endswith(".parquet"):
        pq.write_table(pa.table({"text": documents}), path, row_group_size=37)
    else:
        path.write_bytes(lines.encode())


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "a.ndjson", "a.jsonl.gz", "a.json.gz", "a.jsonl.zst", "a.parquet"]
)
def test_decoded_tokens_are_the_text_of_every_document(
    tmp_path: Path,
    options: Callable[..., PretokenizeOptions],
    documents: list[str],
    bpe: Tokenizer,
    name: str,
    eos: bool,
) -> None:
    write_input(tmp_path / name, documents)
    pretokenize(options(tmp_path / name, append_eos=eos, row_group_tokens=5000, file_tokens=20_000, batch_bytes=10_000))
    output = str(tmp_path / "out")
    assert decoded(output, bpe) == [text + EOS * eos for text in documents]
    ids = list(itertools.chain.from_iterable(documents_of(output)))
    assert ids.count(bpe.token_to_id(EOS)) == len(documents) * eos  # a special token's text is never its id


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst"])
def test_decoded_tokens_are_the_lines_of_a_text_file(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], stdlib_texts: list[str], bpe: Tokenizer, name: str
) -> None:
    lines = [line for line in stdlib_texts[5].split("\n") if line]
    raw = "\n".join(lines).encode()
    packed = {"txt": raw, "gz": gzip.compress(raw), "zst": zstandard.compress(raw)}[name.rsplit(".", 1)[1]]
    (tmp_path / name).write_bytes(packed)
    pretokenize(options(tmp_path / name))
    assert decoded(str(tmp_path / "out"), bpe) == lines


def test_decoded_tokens_are_whole_text_files(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], stdlib_texts: list[str], bpe: Tokenizer
) -> None:
    for at, text in enumerate(stdlib_texts[:5]):
        (tmp_path / f"{at}.txt").write_bytes(text.encode())
    pretokenize(options(tmp_path, text_unit="file"))
    assert decoded(str(tmp_path / "out"), bpe) == stdlib_texts[:5]


def test_inputs_and_output_may_be_anywhere_and_of_several_kinds(
    tmp_path: Path, memory_url: str, options: Callable[..., PretokenizeOptions], bpe: Tokenizer
) -> None:
    with fsspec.open(f"{memory_url}/in/a.txt", "w") as stream:
        stream.write("first\nsecond\n")
    write_input(tmp_path / "b.parquet", ["third"])
    write_input(tmp_path / "c.jsonl.zst", ["fourth"])
    output = f"{memory_url}/sets/one"
    pretokenize(options(f"{memory_url}/in", tmp_path / "b.parquet", tmp_path / "*.zst", output=output))
    assert decoded(output, bpe) == ["first", "second", "third", "fourth"]
    filesystem, path = fsspec.url_to_fs(output)
    assert sorted(filesystem.find(path)) == [f"{path}/_manifest.json", f"{path}/part-00000.parquet"]


def test_other_readers_read_the_files(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], documents: list[str], jsonl: Callable[..., Path]
) -> None:
    import duckdb

    pretokenize(options(jsonl(documents), row_group_tokens=5000, file_tokens=20_000))
    output = str(tmp_path / "out")
    expected = documents_of(output)
    assert pl.read_parquet(f"{output}/part-*.parquet")["tokens"].to_list() == expected
    rows = duckdb.sql(f"select tokens from read_parquet('{output}/part-*.parquet')").fetchall()
    assert [row[0] for row in rows] == expected


def test_the_same_input_gives_the_same_bytes_whatever_the_batches(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], documents: list[str], jsonl: Callable[..., Path]
) -> None:
    path = jsonl(documents)
    for batch_bytes in (1, 3000, 10_000_000):
        pretokenize(
            options(
                path,
                output=str(tmp_path / f"out{batch_bytes}"),
                row_group_tokens=3000,
                file_tokens=9000,
                batch_bytes=batch_bytes,
                append_eos=True,
            )
        )
    sets = [
        {part.name: part.read_bytes() for part in (tmp_path / f"out{size}").iterdir()} for size in (1, 3000, 10_000_000)
    ]
    assert len(sets[0]) > 4
    assert sets[0] == sets[1] == sets[2]


# --- layout


def test_columns_are_required_checksummed_and_have_statistics(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], documents: list[str], jsonl: Callable[..., Path]
) -> None:
    pretokenize(options(jsonl(documents), row_group_tokens=5000, file_tokens=20_000))
    for path in sorted((tmp_path / "out").glob("*.parquet")):
        part = pq.ParquetFile(path)
        assert (
            str(part.schema_arrow.field("tokens")) == "pyarrow.Field<tokens: list<element: uint16 not null> not null>"
        )
        leaf = part.schema.column(0)
        assert (leaf.path, leaf.max_definition_level, leaf.max_repetition_level) == ("tokens.list.element", 1, 1)
        for group in range(part.num_row_groups):
            chunk = part.metadata.row_group(group).column(0)
            values = part.read_row_group(group).column("tokens").combine_chunks().values.to_numpy()
            assert (chunk.statistics.min, chunk.statistics.max) == (values.min(), values.max())
            assert "BYTE_STREAM_SPLIT" in chunk.encodings
            assert not chunk.has_dictionary_page
        # A flipped bit in the middle of the file is noticed.
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        with pytest.raises(OSError, match="CRC"):
            pq.ParquetFile(pa.BufferReader(bytes(content)), page_checksum_verification=True).read()


def test_row_groups_and_files_hold_about_as_many_tokens_as_asked(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], documents: list[str], jsonl: Callable[..., Path]
) -> None:
    pretokenize(options(jsonl(documents), row_group_tokens=5000, file_tokens=20_000))
    parts = open_parts(str(tmp_path / "out"))
    longest = max(map(len, documents_of(str(tmp_path / "out"))))
    groups = [
        [part.metadata.row_group(group).column(0).num_values for group in range(part.num_row_groups)] for part in parts
    ]
    assert len(parts) > 3
    for part in groups[:-1]:
        assert abs(sum(part) - 20_000) <= longest + 5000
    for tokens in itertools.chain.from_iterable(groups):
        assert 2500 <= tokens <= 7500 + longest


def test_a_document_longer_than_a_row_group_is_not_cut(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], stdlib_texts: list[str], jsonl: Callable[..., Path]
) -> None:
    long = max(stdlib_texts, key=len)
    pretokenize(options(jsonl(["x y z " * 100, long, "a b c " * 100]), row_group_tokens=100, file_tokens=100))
    parts = open_parts(str(tmp_path / "out"))
    assert [part.metadata.num_rows for part in parts] == [1, 1, 1]
    assert [part.num_row_groups for part in parts] == [1, 1, 1]


def test_int32_is_written_for_a_large_vocabulary(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], jsonl: Callable[..., Path]
) -> None:
    from tokenizers import models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 70_000}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    summary = pretokenize(options(jsonl(["b a b"]), tokenizer=str(tmp_path / "tokenizer.json")))
    assert summary.manifest.encoding.dtype == "int32"
    assert open_parts(str(tmp_path / "out"))[0].schema_arrow.field("tokens").type.value_type == pa.int32()
    assert documents_of(str(tmp_path / "out")) == [[70_000, 0, 70_000]]


# --- metadata


@pytest.mark.parametrize("eos", [False, True])
def test_the_manifest_and_the_files_own_metadata_say_what_is_there(
    tmp_path: Path,
    options: Callable[..., PretokenizeOptions],
    documents: list[str],
    jsonl: Callable[..., Path],
    tokenizer_folder: Path,
    eos: bool,
) -> None:
    summary = pretokenize(options(jsonl(documents), row_group_tokens=5000, file_tokens=20_000, append_eos=eos))
    output = str(tmp_path / "out")
    input_stat = (tmp_path / "in.jsonl").stat()
    info = load_tokenizer(str(tokenizer_folder)).info
    common = {
        "format": "parquet_loader.pretokenize",
        "version": 1,
        "column": "tokens",
        "dtype": "uint16",
        "tokenizer": {"name": str(tokenizer_folder), "sha256": info.sha256},
        "vocab_size": 2000,
        "eos_token": EOS,
        "eos_id": 0,
        "eos_appended": eos,
    }
    files = []
    for at, part in enumerate(open_parts(output)):
        name = f"part-{at:05d}.parquet"
        tokens = sum(part.metadata.row_group(group).column(0).num_values for group in range(part.num_row_groups))
        empty = sum(not row for row in part.read().column("tokens").to_pylist())
        counts = {"documents": part.metadata.num_rows, "tokens": tokens - empty}  # an empty list takes a value's place
        assert json.loads(part.metadata.metadata[b"parquet_loader.pretokenize"]) == common | counts
        size_bytes = (tmp_path / "out" / name).stat().st_size
        files.append({"name": name, **counts, "row_groups": part.num_row_groups, "size_bytes": size_bytes})
    rows = documents_of(output)
    assert json.loads((tmp_path / "out" / "_manifest.json").read_text()) == common | {
        "documents": len(rows),
        "tokens": sum(map(len, rows)),
        "text_bytes": sum(len(text.encode()) for text in documents),
        "skipped": {"duplicates": 0, "empty": 0, "bad": 0},
        "bad_records": [],
        "lost": {"dropped_symbols": 0, "unknown_tokens": 0},
        "files": files,
        "fingerprint": {
            "version": 2,
            "source": {
                "kinds": ["json"],
                "text_column": "text",
                "text_unit": "line",
                "files": [
                    {
                        "name": str(tmp_path / "in.jsonl"),
                        "size_bytes": input_stat.st_size,
                        "version": str(input_stat.st_mtime_ns),
                    }
                ],
            },
            "tokenizer": {"sha256": info.sha256, "vocab_size": 2000, "eos_id": 0},
            "append_eos": eos,
            "row_group_tokens": 5000,
            "file_tokens": 20_000,
            "max_docs": None,
            "empty": "keep",
            "dedup": None,
            "seen_hashes": None,
        },
    }
    assert manifest_of(output) == summary.manifest


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 2}', '{"version": 1, "files": [{"name": 1}]}'])
def test_something_else_is_not_taken_for_a_manifest(text: str) -> None:
    with pytest.raises(DataError, match=r"_manifest\.json"):
        Manifest.from_json(text)


def test_shard_names_sort_as_numbers() -> None:
    for parts in (1, 100_000, 100_001):
        names = [shard_name(number, parts) for number in (0, parts // 2, parts - 1)]
        assert names == sorted(names)
        assert len({len(name) for name in names}) == 1


# --- options


def test_no_more_documents_than_asked_are_read(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], bpe: Tokenizer
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\nnot JSON\n')
    summary = pretokenize(options(tmp_path / "a.jsonl", max_docs=2))
    assert decoded(str(tmp_path / "out"), bpe) == ["one", "two"]
    assert summary.manifest.documents == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_group_tokens": 0}, "row_group_tokens must be at least 1, got 0"),
        ({"file_tokens": -1}, "file_tokens must be at least 1, got -1"),
        ({"max_docs": 0}, "max_docs must be at least 1, got 0"),
        ({"batch_bytes": 0}, "batch_bytes must be at least 1, got 0"),
        ({"file_tokens": 10, "row_group_tokens": 11}, r"file_tokens \(10\) is less than row_group_tokens \(11\)"),
        ({"row_group_tokens": 1 << 31, "file_tokens": 1 << 40}, "row_group_tokens must be at most"),
        ({"text_unit": "page"}, "text_unit must be one of 'line', 'file', 'paragraph', got 'page'"),
        ({"inputs": ()}, "inputs must be"),
        ({"inputs": "a.txt"}, "inputs must be"),
    ],
)
def test_options_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"inputs": ("a.txt",), "output": "out", "tokenizer": "tokenizer.json"} | changes
    with pytest.raises(ConfigError, match=message):
        PretokenizeOptions(**values)


def test_progress_counts_up_to_the_summary(
    options: Callable[..., PretokenizeOptions], documents: list[str], jsonl: Callable[..., Path]
) -> None:
    seen: list[Progress] = []
    summary = pretokenize(options(jsonl(documents), batch_bytes=10_000), progress=seen.append)
    assert len(seen) > 10
    assert [each.documents for each in seen] == sorted(each.documents for each in seen)
    assert seen[-1].documents == summary.manifest.documents == len(documents)
    assert seen[-1].tokens == summary.manifest.tokens
    assert seen[-1].text_bytes == summary.text_bytes == sum(len(text.encode()) for text in documents)


def test_the_summary_names_files_that_were_passed_over(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x\n")
    (tmp_path / "in" / "readme.md").write_text("y\n")
    summary = pretokenize(options(tmp_path / "in"))
    assert "Wrote 1 documents" in summary.describe()
    assert summary.describe().endswith("readme.md.")


def test_batches_are_bounded_by_bytes_and_by_documents() -> None:
    def sizes(texts: list[str], batch_bytes: int) -> list[int]:
        documents = (Document(Record(text=text, origin=""), len(text.encode()), b"", Skipped()) for text in texts)
        return [len(batch.documents) for batch in batch_documents(documents, batch_bytes)]

    assert sizes(["x" * 1000] * 10, 3000) == [3, 3, 3, 1]
    assert sizes(["ü" * 1000] * 4, 3000) == [2, 2]  # bytes, not characters
    assert sizes(["x" * 9000, "x"], 3000) == [1, 1]
    assert max(sizes([""] * 1000, 3000)) < 100
    assert sizes([], 3000) == []


# --- the output folder


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], jsonl: Callable[..., Path]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty: it holds 'notes'\. .*overwrite=True"):
        pretokenize(options(jsonl(["x"])))
    assert names_in(tmp_path / "out") == ["notes"]


def test_an_empty_folder_is_taken(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], jsonl: Callable[..., Path]
) -> None:
    (tmp_path / "out").mkdir()
    pretokenize(options(jsonl(["x"])))
    assert names_in(tmp_path / "out") == ["_manifest.json", "part-00000.parquet"]


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_overwriting_leaves_the_new_set_alone_in_the_folder(
    tmp_path: Path,
    memory_url: str,
    options: Callable[..., PretokenizeOptions],
    documents: list[str],
    jsonl: Callable[..., Path],
    bpe: Tokenizer,
    place: str,
) -> None:
    output = str(tmp_path / "out") if place == "disk" else f"{memory_url}/out"
    pretokenize(options(jsonl(documents), output=output, row_group_tokens=3000, file_tokens=3000))
    assert len(open_parts(output)) > 5
    filesystem, path = fsspec.url_to_fs(output)
    filesystem.pipe_file(f"{path}/readme.md", b"mine")
    filesystem.makedirs(f"{path}/_staging-dead")
    filesystem.pipe_file(f"{path}/_staging-dead/0.parquet", b"left by a killed run")
    pretokenize(options(jsonl(["new"], "new.jsonl"), output=output, overwrite=True))
    assert decoded(output, bpe) == ["new"]
    assert sorted(name.removeprefix(f"{path}/") for name in filesystem.find(path)) == [
        "_manifest.json",
        "part-00000.parquet",
        "readme.md",
    ]


def test_overwriting_does_not_mix_with_parquet_files_of_others(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], jsonl: Callable[..., Path]
) -> None:
    (tmp_path / "out" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "deep" / "theirs.parquet").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"holds 'deep/theirs\.parquet', which no former run wrote"):
        pretokenize(options(jsonl(["x"]), overwrite=True))
    assert names_in(tmp_path / "out") == ["deep", "deep/theirs.parquet"]


@pytest.mark.parametrize("through", ["path", "link"])
def test_an_output_that_holds_an_input_is_refused(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], through: str
) -> None:
    (tmp_path / "out").mkdir()
    write_input(tmp_path / "out" / "part-00000.parquet", ["x"])
    (tmp_path / "link").symlink_to(tmp_path / "out")
    folder = "out" if through == "path" else "link"
    with pytest.raises(ConfigError, match="holds the input"):
        pretokenize(options(tmp_path / folder / "part-00000.parquet", overwrite=True))
    assert names_in(tmp_path / "out") == ["part-00000.parquet"]


def test_an_output_that_is_a_file_is_refused(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], jsonl: Callable[..., Path]
) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        pretokenize(options(jsonl(["x"]), overwrite=True))


def test_an_output_below_a_file_is_a_storage_error(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], jsonl: Callable[..., Path]
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="file/out"):
        pretokenize(options(jsonl(["x"]), output=str(tmp_path / "file" / "out")))


@pytest.mark.parametrize("content", ["", "\n\n", '{"text": ""}\n'])
def test_an_input_without_a_token_is_an_error_and_leaves_nothing(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], content: str
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ConfigError, match="the input holds no text"):
        pretokenize(options(tmp_path / "a.jsonl"))
    assert names_in(tmp_path / "out") == []


# --- failures on the way


class Failure(Exception):
    """Not one of the library's own."""


class FailingTokenizer:
    """The real tokenizer, until it has seen a number of batches."""

    def __init__(self, where: Path, batches: int) -> None:
        self._real = load_tokenizer(str(where))
        self._left = batches
        self.info = self._real.info

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        self._left -= 1
        if self._left < 0:
            raise Failure
        return self._real.encode(texts, origins)


class ListSource(Source):
    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def records(self, cursor: Cursor | None = None) -> Iterator[Record | BadRecord]:
        for at in range(cursor[0] if cursor else 0, len(self._texts)):
            yield Record(text=self._texts[at], origin=f"text {at}", cursor=(at + 1,))

    def fingerprint(self) -> dict[str, object]:
        return {"texts": len(self._texts)}


SMALL = {"row_group_tokens": 3000, "file_tokens": 9000, "batch_bytes": 5000}


@pytest.mark.parametrize("batches", [0, 1, 5, 30])
@pytest.mark.parametrize("before", ["nothing", "a set"])
def test_a_tokenizer_that_fails_leaves_the_folder_as_it_was(
    tmp_path: Path,
    options: Callable[..., PretokenizeOptions],
    documents: list[str],
    jsonl: Callable[..., Path],
    tokenizer_folder: Path,
    before: str,
    batches: int,
) -> None:
    path = jsonl(documents)
    if before == "a set":
        pretokenize(options(path, **SMALL))
    there = {each.name: each.read_bytes() for each in (tmp_path / "out").glob("*")}
    output = OutputFolder(str(tmp_path / "out"))
    tokenizer = FailingTokenizer(tokenizer_folder, batches)
    with pytest.raises(Failure):
        tokenize_source(ListSource(documents), tokenizer, output, options(path, overwrite=True, **SMALL))
    visible = [each for each in (tmp_path / "out").glob("*") if each.name != "_staging-run"]
    assert {each.name: each.read_bytes() for each in visible} == there


@pytest.mark.parametrize("last_line", ["not JSON", '{"text": "\\ud83d"}'])
def test_a_bad_line_at_the_end_shows_nothing_of_the_set(
    tmp_path: Path,
    options: Callable[..., PretokenizeOptions],
    documents: list[str],
    jsonl: Callable[..., Path],
    last_line: str,
) -> None:
    path = jsonl(documents)
    with path.open("a") as stream:
        stream.write(last_line + "\n")
    with pytest.raises(DataError, match=rf"in\.jsonl:{len(documents) + 1}: "):
        pretokenize(options(path, **SMALL))
    assert visible_in(tmp_path / "out") == []


@pytest.mark.parametrize("operation", ["open", "mv", "rm_file", "pipe_file"])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_storage_that_fails_leaves_no_mixture_and_the_same_command_goes_on(
    memory_url: str,
    options: Callable[..., PretokenizeOptions],
    documents: list[str],
    jsonl: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    after: int,
) -> None:
    output = f"{memory_url}/out"
    pretokenize(options(jsonl(documents[:100]), output=output, **SMALL))
    old = documents_of(output)
    new_path = jsonl(documents[100:], "new.jsonl")
    pretokenize(options(new_path, output=f"{memory_url}/new", **SMALL))
    new = documents_of(f"{memory_url}/new")
    filesystem, path = fsspec.url_to_fs(output)
    real = getattr(filesystem, operation)
    calls = itertools.count()

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == after:
            raise OSError("the disk is on fire")
        return real(*args, **kwargs)

    monkeypatch.setattr(filesystem, operation, failing)
    try:
        pretokenize(options(new_path, output=output, overwrite=True, **SMALL))
        failed = False
    except ParquetLoaderError as exc:
        assert isinstance(exc, StorageError)
        assert "the disk is on fire" in str(exc)
        failed = True
    monkeypatch.undo()
    names = [name.removeprefix(f"{path}/") for name in filesystem.find(path)]
    found = documents_of(output)
    whole = "_manifest.json" in names
    if not failed:
        assert (whole, found) == (True, new)
    elif whole:  # the new set may be whole, and only what was staged not yet removed
        assert found in (old, new)
    else:  # without a manifest, some of the old parts may be left, or some of the new, each of them whole
        assert all(row in old for row in found) or all(row in new for row in found)
    pretokenize(options(new_path, output=output, overwrite=True, **SMALL))
    assert documents_of(output) == new
    assert not [name for name in filesystem.find(path) if "_staging" in name]


def test_a_failure_that_is_not_the_librarys_passes_through_and_shows_nothing(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], documents: list[str], jsonl: Callable[..., Path]
) -> None:
    def interrupted(done: Progress) -> None:
        if done.documents > 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretokenize(options(jsonl(documents), **SMALL), progress=interrupted)
    assert visible_in(tmp_path / "out") == []


def test_documents_are_in_order_over_files(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], bpe: Tokenizer, jsonl: Callable[..., Path]
) -> None:
    rng = np.random.default_rng(0)
    texts = [f"{number} " * int(rng.integers(1, 40)) for number in range(3000)]
    pretokenize(options(jsonl(texts), row_group_tokens=2000, file_tokens=10_000, batch_bytes=4000))
    assert len(open_parts(str(tmp_path / "out"))) > 5
    assert decoded(str(tmp_path / "out"), bpe) == texts
