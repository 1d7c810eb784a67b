"""Finding files, and reading records out of each kind."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from parquet_loader.errors import ConfigError, DataError, PathNotFoundError, StorageError
from parquet_loader.pretokenize.sources import files
from parquet_loader.pretokenize.sources.base import BadRecord, Record
from parquet_loader.pretokenize.sources.files import FileSource, TextUnit
from parquet_loader.pretokenize.sources.find import classify, find_files


def read(*inputs: object, column: str = "text", unit: TextUnit = "line") -> list[Record]:
    files = find_files([str(each) for each in inputs]).files
    records = []
    for record in FileSource(files=files, text_column=column, text_unit=unit).records():
        if isinstance(record, BadRecord):
            raise record.error
        records.append(record)
    return records


def texts(*inputs: object, column: str = "text", unit: TextUnit = "line") -> list[str]:
    return [record.text for record in read(*inputs, column=column, unit=unit)]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")


# --- finding files


def test_inputs_keep_their_order_and_a_folder_is_sorted_at_every_depth(tmp_path: Path) -> None:
    touch(tmp_path, "z.txt", "d/b.txt", "d/a/c.txt", "d/a.txt")
    assert texts(tmp_path / "z.txt", tmp_path / "d") == ["z.txt", "d/a.txt", "d/a/c.txt", "d/b.txt"]


def test_a_folder_passes_over_hidden_names_at_any_depth_and_reports_other_extensions(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", "_b.txt", ".c.txt", "_d/e.txt", ".f/g.txt", "h/_i/j.txt", "readme.md", "noextension")
    found = find_files([str(tmp_path)])
    assert [Path(file.path).name for file in found.files] == ["a.txt"]
    assert sorted(Path(name).name for name in found.skipped) == ["noextension", "readme.md"]


def test_a_glob_is_sorted_and_passes_over_hidden_names(tmp_path: Path) -> None:
    touch(tmp_path, "a/2.txt", "a/1.txt", "b/3.txt", "_c/4.txt", "b/_5.txt")
    assert texts(tmp_path / "*" / "*.txt") == ["a/1.txt", "a/2.txt", "b/3.txt"]
    assert texts(tmp_path / "**" / "*.txt") == ["a/1.txt", "a/2.txt", "b/3.txt"]


def test_a_file_that_several_inputs_name_is_read_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", "b.txt")
    assert texts(tmp_path / "b.txt", tmp_path / "*.txt", tmp_path) == ["b.txt", "a.txt"]


def test_a_file_with_the_signs_of_a_glob_in_its_name_is_that_file(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].txt", "a1.txt")
    assert texts(tmp_path / "a[1].txt") == ["a[1].txt"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        *((pattern, ["linked.txt", "linked/deep/b.txt"]) for pattern in ("", "*", "*/", "**", "**/*.txt")),
        *((pattern, ["linked/deep/b.txt"]) for pattern in ("linked", "l*/d*", "l*/*/*.txt", "linked/**")),
    ],
)
def test_links_to_folders_are_followed_and_loops_are_not(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    touch(tmp_path, "elsewhere/deep/b.txt", "elsewhere/readme.md")
    (tmp_path / "elsewhere" / "deep" / "loop").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "linked.txt").symlink_to(tmp_path / "elsewhere" / "deep" / "b.txt")
    found = find_files([f"{tmp_path}/corpus/{pattern}"]).files
    assert [str(Path(each.path).relative_to(tmp_path / "corpus")) for each in found] == expected


def test_a_link_whose_target_changed_is_a_changed_source(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/a.txt", "other/a.txt")
    (tmp_path / "corpus").mkdir()
    for name in ("a.txt", "folder"):
        (tmp_path / "corpus" / name).symlink_to(tmp_path / "elsewhere" / ("a.txt" if name == "a.txt" else ""))
    seen = [FileSource(files=find_files([str(tmp_path / "corpus")]).files).fingerprint()]
    (tmp_path / "elsewhere" / "a.txt").write_text("ELSEWHERE/A.TXT\n")
    seen.append(FileSource(files=find_files([str(tmp_path / "corpus")]).files).fingerprint())
    (tmp_path / "corpus" / "folder").unlink()
    (tmp_path / "corpus" / "folder").symlink_to(tmp_path / "other")
    seen.append(FileSource(files=find_files([str(tmp_path / "corpus")]).files).fingerprint())
    assert len({json.dumps(each) for each in seen}) == 3


def test_a_local_name_with_two_colons_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "x::y.txt", "a::b/c.txt")
    monkeypatch.chdir(tmp_path)
    assert texts("x::y.txt", "a::b") == ["x::y.txt", "a::b/c.txt"]


def test_a_hidden_file_that_is_named_is_read(tmp_path: Path) -> None:
    touch(tmp_path, "_a.txt")
    assert texts(tmp_path / "_a.txt") == ["_a.txt"]


def test_files_of_any_fsspec_filesystem_are_read(memory_url: str) -> None:
    with fsspec.open(f"{memory_url}/in/a.jsonl.gz", "wb", compression="gzip") as stream:
        stream.write(b'{"text": "far"}\n')
    with fsspec.open(f"{memory_url}/in/b.txt", "wb") as stream:
        stream.write(b"away\n")
    assert texts(f"{memory_url}/in") == ["far", "away"]
    assert texts(f"{memory_url}/in/*.txt") == ["away"]
    origin = read(f"{memory_url}/in/b.txt")[0].origin
    assert origin.startswith("memory://")
    assert origin.endswith("in/b.txt:1")


@pytest.mark.parametrize("name", ["no.txt", "no", "no/*.txt"])
def test_an_input_at_which_there_is_nothing_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(PathNotFoundError) as caught:
        find_files([str(tmp_path / name)])
    assert str(tmp_path / name.removesuffix("/*.txt")) in str(caught.value)


def test_an_unknown_extension_of_a_named_file_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    touch(tmp_path, "a.md")
    for each in ("a.md", "*"):
        with pytest.raises(ConfigError, match=r"a\.md: unknown extension\. Known are \.txt"):
            find_files([str(tmp_path / each)])


def test_a_folder_without_anything_to_read_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "a.md")
    with pytest.raises(ConfigError, match=r"no file to read in .*1 files there have other extensions"):
        find_files([str(tmp_path)])


def test_an_unknown_protocol_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nosuch://bucket/a"):
        find_files(["nosuch://bucket/a.txt"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", ("text", "")),
        ("a.TXT.GZ", ("text", ".gz")),
        ("a.json", ("json", "")),
        ("a.json.gz", ("json", ".gz")),
        ("a.ndjson.zst", ("json", ".zst")),
        ("a.b.jsonl", ("json", "")),
        ("a.parquet", ("parquet", "")),
        ("a.parquet.gz", None),
        ("a.gz", None),
        ("a.csv.gz", ("csv", ".gz")),
        ("a.xml", None),
        ("txt", None),
        ("a.txt/b", None),
    ],
)
def test_names_are_classified(name: str, expected: tuple[str, str] | None) -> None:
    assert classify(name) == expected


# --- text files


def test_a_line_of_a_text_file_is_a_record_and_empty_lines_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("one\r\n\n two \u2028 still\x0btwo\x85\r\n\r\nlast".encode())
    assert [(record.text, record.origin) for record in read(path)] == [
        ("one", f"{path}:1"),
        (" two \u2028 still\x0btwo\x85", f"{path}:3"),
        ("last", f"{path}:5"),
    ]


def test_a_whole_text_file_can_be_a_record(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\n\ntwo\n")
    assert read(path, unit="file") == [Record(text="one\r\n\ntwo\n", origin=str(path))]


@pytest.mark.parametrize("unit", ["line", "file"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, unit: TextUnit) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone")
    assert texts(path, unit=unit) == ["one"]


@pytest.mark.parametrize("unit", ["line", "file"])
def test_invalid_utf8_names_file_line_and_byte(tmp_path: Path, unit: TextUnit) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\nbad \xff\xfe\n")
    with pytest.raises(DataError) as caught:
        read(path, unit=unit)
    assert f"{path}:2: invalid UTF-8: b'\\xff' at byte" in str(caught.value)


# --- compression


@given(lines=st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), min_size=1)))
@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_every_compression_gives_the_same_text(
    tmp_path_factory: pytest.TempPathFactory, ending: str, lines: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("compressed")
    raw = "\n".join(lines).encode()
    packed = {"": lambda x: x, ".gz": gzip.compress, ".zst": zstandard.compress}[ending](raw)
    (folder / f"a.txt{ending}").write_bytes(packed)
    expected = [line.removeprefix("\ufeff") if at == 0 else line for at, line in enumerate(lines)]
    assert texts(folder / f"a.txt{ending}") == [line for line in expected if line]
    shutil.rmtree(folder)


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_files_of_several_compressed_pieces_are_read_to_the_end(tmp_path: Path, ending: str, compress: object) -> None:
    assert callable(compress)
    pieces = [b"".join(b"line %d of piece %d\n" % (line, piece) for line in range(20_000)) for piece in range(3)]
    (tmp_path / f"a.txt{ending}").write_bytes(b"".join(compress(piece) for piece in pieces))
    assert texts(tmp_path / f"a.txt{ending}") == b"".join(pieces).decode().splitlines()


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
@pytest.mark.parametrize("damage", ["cut short", "something else"])
def test_a_damaged_compressed_file_is_an_error_and_never_a_shorter_text(
    tmp_path: Path, ending: str, compress: object, damage: str
) -> None:
    assert callable(compress)
    packed = compress(b"".join(b"line %d\n" % line for line in range(100_000)))
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(packed[: len(packed) // 2] if damage == "cut short" else b"<html>no such file</html>" * 10)
    with pytest.raises(DataError, match=rf"a\.txt{ending}: not a complete \{ending} file"):
        read(path)


@pytest.mark.parametrize("unit", ["line", "file"])
@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst"])
def test_a_compressed_file_without_a_byte_is_an_error_and_one_of_no_text_is_not(
    tmp_path: Path, name: str, unit: TextUnit
) -> None:
    compress = gzip.compress if name.endswith("gz") else zstandard.compress
    (tmp_path / name).write_bytes(compress(b""))
    assert "".join(texts(tmp_path, unit=unit)) == ""
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"not a complete \.\w+ file \(it is empty\)"):
        read(tmp_path, unit=unit)


def test_a_zstd_file_that_grows_ten_thousandfold_is_read_in_little_memory(tmp_path: Path) -> None:
    line = b"x" * 99 + b"\n"
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(line * 3_000_000))  # 300 MB in 30 KB
    records = FileSource(files=find_files([str(tmp_path)]).files).records()
    tracemalloc.start()
    assert next(records)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000_000


# --- records that are too long

LONG = 5000


def listed(folder: Path, most: int, unit: TextUnit = "line") -> list[str]:
    """Texts, and where bad records are and what is wrong with them."""
    source = FileSource(files=find_files([str(folder)]).files, max_record_bytes=most, text_unit=unit)
    return [str(each.error) if isinstance(each, BadRecord) else each.text for each in source.records()]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.txt", lambda text: text),
        ("a.txt.gz", lambda text: text),
        ("a.jsonl", lambda text: json.dumps({"text": text})),
        ("a.jsonl.zst", lambda text: json.dumps({"text": text})),
    ],
)
def test_a_line_of_more_bytes_than_allowed_is_bad_and_those_around_it_are_not(
    tmp_path: Path, name: str, line: Callable[[str], str]
) -> None:
    longest = line("y" * LONG)
    raw = "\n".join([line("a"), longest, line("z" * LONG * 1000), line("b")]).encode()
    packed = {"gz": gzip.compress, "zst": zstandard.compress}.get(name.rsplit(".", 1)[1], lambda raw: raw)(raw)
    (tmp_path / name).write_bytes(packed)
    size = len(line("z" * LONG * 1000)) + 1
    allowed = len(longest) + 1
    assert listed(tmp_path, allowed) == [
        "a",
        "y" * LONG,
        f"{tmp_path / name}:3: the line has {size:,} bytes, and max_record_bytes is {allowed:,}. "
        "Correct or remove it, or raise max_record_bytes.",
        "b",
    ]
    assert "max_record_bytes" in listed(tmp_path, allowed - 1)[1]


def test_paragraphs_and_files_of_more_bytes_than_allowed_are_bad(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\n" + "three\n" * LONG + "\nfour\n")
    one, bad, four = listed(tmp_path, 20, "paragraph")
    assert (one, four) == ("one\ntwo", "four")
    assert bad.startswith(f"{tmp_path}/a.txt:4: the paragraph has 24 bytes or more, and max_record_bytes is 20.")
    [whole] = listed(tmp_path, 20, "file")
    assert whole.startswith(f"{tmp_path}/a.txt: the file has {len((tmp_path / 'a.txt').read_bytes()):,} bytes, and ")


def test_a_csv_row_of_more_bytes_than_allowed_ends_the_reading_since_nobody_knows_where_it_does(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,a\n2,"open\n' + "3,lost\n" * LONG)
    with pytest.raises(DataError, match=r"a\.csv:3: the row \(perhaps a quote is left open\) has 1,00\d bytes or more"):
        listed(tmp_path, 1000)


def test_memory_stays_within_what_a_record_may_take_while_a_longer_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "' + b"x" * 50_000_000 + b'"}\n{"text": "b"}\n', 1))
    tracemalloc.start()
    bad, text = listed(tmp_path, 1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "a.jsonl.gz:1: the line has 50,000,013 bytes" in bad
    assert text == "b"
    assert peak < 20_000_000


# --- CSV


def test_every_row_that_an_open_quote_swallows_is_a_bad_record(tmp_path: Path) -> None:
    rows = [f"{at},text {at}\n" for at in range(1000)]
    rows[500] = '500,"text 500\n'
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(rows))
    found = listed(tmp_path, 1 << 20)
    assert found[:500] == [f"text {at}" for at in range(500)]
    assert len(found) == 1000
    assert found[500].startswith(
        f"{tmp_path}/a.csv:502: not valid CSV (unexpected end of data). Correct or remove the row"
    )
    assert found[999] == f"{tmp_path}/a.csv:1001: lost with the row that begins on line 502, which is not valid CSV."


def test_reading_goes_on_after_the_line_on_which_an_open_quote_is_noticed(tmp_path: Path) -> None:
    rows = [f"{at},text {at}\n" for at in range(10)]
    rows[3], rows[6] = '3,"open\n', '6,"quoted"\n'
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(rows))
    found = listed(tmp_path, 1 << 20)
    assert [each.startswith("text") for each in found] == [True] * 3 + [False] * 4 + [True] * 3


def test_a_row_with_a_field_more_is_bad_and_its_text_is_not_cut_at_the_comma(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,one, two\n2,three\n")
    bad, text = listed(tmp_path, 1000)
    assert bad == f"{tmp_path}/a.csv:2: the row has 3 fields, and the header 2. Correct or remove the row."
    assert text == "three"


def test_a_csv_header_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\r1,a\r2,b\r")
    with pytest.raises(DataError, match=r"a\.csv:1: not valid CSV \(new-line character"):
        listed(tmp_path, 1000)


# --- JSON lines


def at_depth(frames: int, call: Callable[[], list[str]]) -> list[str]:
    return at_depth(frames - 1, call) if frames else call()


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("frames", [0, 500])
def test_deep_json_is_bad_however_deep_the_stack_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool, frames: int
) -> None:
    if not fast:
        monkeypatch.setattr(files, "orjson", None)

    def line(depth: int) -> str:  # with brackets in the text, which count for nothing
        return '{"text": "]]]\\"[[[", "x": ' + "[" * depth + "]" * depth + "}\n"

    (tmp_path / "a.jsonl").write_text("".join(map(line, (255, 256, 1000, 100_000))))
    found = at_depth(frames, lambda: listed(tmp_path, 1 << 20))
    assert found[0] == ']]]"[[['
    for number, each in enumerate(found[1:], 2):
        assert each.startswith(f"{tmp_path}/a.jsonl:{number}: invalid JSON (nested more than 256 deep) in ")


def test_many_brackets_beside_each_other_are_not_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"text": "[" * 1000, "x": [[{"y": []}]] * 1000}
    (tmp_path / "a.jsonl").write_text(json.dumps(value) + "\n")
    assert texts(tmp_path) == ["[" * 1000]
    monkeypatch.setattr(files, "orjson", None)
    assert texts(tmp_path) == ["[" * 1000]


def test_json_lines_give_the_field_and_empty_lines_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\nb", "x": 1}\n\n  \n{"text": ""}\n')
    assert [(record.text, record.origin) for record in read(path)] == [("a\nb", f"{path}:1"), ("", f"{path}:4")]


@pytest.mark.parametrize("name", ["a.json", "a.ndjson", "a.jsonl"])
def test_the_text_may_be_in_another_field(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"content": "x"}\n')
    assert texts(tmp_path / name, column="content") == ["x"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', "invalid JSON"),
        ("[" * 200_000, "invalid JSON"),
        ('["x"]', "a JSON array"),
        ('"x"', "a JSON string"),
        ('{"body": "x", "id": 1}', "no such field; the line has 'body', 'id'. Name the field with text_column"),
        ("{}", "no such field; the line has none"),
        ('{"text": 12}', "a string was expected, got number '12'"),
        ('{"text": null}', "a string was expected, got null 'null'"),
        ('{"text": ["x"]}', "a string was expected, got array"),
    ],
)
def test_a_line_that_is_not_what_it_should_be_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "fine"}) + "\n" + line + "\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:2")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))


# --- Parquet


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_every_kind_of_string_column_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(["a", "", "ü\n", "a"])
    table = pa.table({"id": [1, 2, 3, 4], "text": column.cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    path = tmp_path / "a.parquet"
    assert [(record.text, record.origin) for record in read(path)] == [
        ("a", f"{path}: row 0"),
        ("", f"{path}: row 1"),
        ("ü\n", f"{path}: row 2"),
        ("a", f"{path}: row 3"),
    ]


def parquet_error(path: Path, table: pa.Table) -> str:
    pq.write_table(table, path)
    with pytest.raises(DataError) as caught:
        read(path)
    return str(caught.value)


def test_a_missing_parquet_column_lists_the_columns_there_are(tmp_path: Path) -> None:
    message = parquet_error(tmp_path / "a.parquet", pa.table({"body": ["x"], "id": [1]}))
    assert "column 'text': no such column; the file has 'body', 'id'" in message


def test_a_parquet_column_of_another_type_is_an_error(tmp_path: Path) -> None:
    message = parquet_error(tmp_path / "a.parquet", pa.table({"text": [[1, 2]]}))
    assert "a column of strings was expected, got list<" in message


def test_two_parquet_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"])
    assert "more than one column of that name" in parquet_error(tmp_path / "a.parquet", table)


def test_a_null_in_a_parquet_column_names_the_row(tmp_path: Path) -> None:
    assert "row 70 is null" in parquet_error(tmp_path / "a.parquet", pa.table({"text": ["x"] * 70 + [None]}))


def test_invalid_utf8_in_a_parquet_column_names_the_row(tmp_path: Path) -> None:
    broken = pa.array([b"fine"] * 66 + [b"\xff"]).view(pa.string())
    message = parquet_error(tmp_path / "a.parquet", pa.table({"text": broken}))
    assert "a.parquet: row 66, column 'text': invalid UTF-8" in message


@pytest.mark.parametrize("content", [b"", b"<html>no such file</html>", b"PAR1 cut short"])
def test_something_else_under_the_name_of_a_parquet_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet: not readable as Parquet"):
        read(tmp_path / "a.parquet")


def test_rot_within_a_parquet_page_is_an_error_where_the_writer_wrote_checksums(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": ["word" * 100] * 500}),
        path,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="not readable as Parquet"):
        read(path)


# --- storage


def test_a_file_that_vanishes_after_it_was_found_is_a_storage_error(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt")
    files = find_files([str(tmp_path)]).files
    (tmp_path / "a.txt").unlink()
    with pytest.raises(StorageError, match=r"cannot read .*a\.txt"):
        list(FileSource(files=files).records())


# As codec="utf-8" has it, for which Hypothesis builds a table for seconds.
encodable = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)


@given(
    json_values.map(json.dumps)
    | st.text(st.characters()).map(lambda text: json.dumps({"a": text}))
    | encodable.map(lambda text: json.dumps({"a": text, "b": 1}, ensure_ascii=False))
    | st.text(alphabet='{}[]":,\\u0d8ea-1.N ntrf\t', max_size=12)
)
@example('{"a": "\\ud800"}')
@example('{"a": "1", "a": "2"}')
@example('{"a": "x", "b": [NaN, -Infinity]}')
@example('\ufeff{"a": "x"}')
@example('{"a": "x"}\r\n')
@example('{"a": "x"} y')
@example('{"a": "x", "b": 123456789012345678901}')
@example('{"a": "x", "b": -1e400}')
@example("[" * 100_000)
def test_a_line_read_at_once_is_what_the_standard_library_reads(line: str) -> None:
    raw = line.encode(errors="surrogatepass")
    at_once = files._json_at_once(raw, "a", ["b"])
    if at_once is not None:
        value = json.loads(raw)
        assert at_once == (value["a"], [value.get("b")])


def test_nearly_every_line_is_read_at_once() -> None:
    for text in ("", "plain", 'quotes " and \\', "snow \u2603 and \U0001f600", "\x00\x1f\x7f"):
        for ascii_only in (True, False):
            raw = json.dumps({"id": 1.5, "b": 2, "a": text, "meta": {"x": [None]}}, ensure_ascii=ascii_only).encode()
            assert files._json_at_once(raw + b"\n", "a", ["meta"]) is None
            assert files._json_at_once(raw + b"\n", "a", ["no", "b", "id"]) == (text, [None, 2, 1.5])


def test_without_the_fast_reader_the_same_records_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "\\u00e9"}\n\n{"text": "b", "c": NaN}\n')
    first = read(tmp_path)
    monkeypatch.setattr(files, "orjson", None)
    assert read(tmp_path) == first
    assert [record.text for record in first] == ["é", "b"]


@pytest.mark.parametrize("struct_first", [False, True])
def test_a_column_with_a_dot_in_its_name_comes_before_a_structs_field(tmp_path: Path, struct_first: bool) -> None:
    columns = {"m": pa.array([{"t": "field"}]), "m.t": pa.array(["column"])}
    names = sorted(columns, reverse=not struct_first)
    pq.write_table(pa.table({name: columns[name] for name in names}), tmp_path / "a.parquet")
    assert texts(tmp_path, column="m.t") == ["column"]


def test_numbers_without_bounds_beside_the_text_are_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "x", "n": {"9" * 5000}}}\n')
    assert texts(tmp_path) == ["x"]
    monkeypatch.setattr(files, "orjson", None)
    assert texts(tmp_path) == ["x"]
    with pytest.raises(DataError, match="a string was expected, got number"):
        texts(tmp_path, column="n")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_a_name_that_is_not_utf_8_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb") as file:
        file.write(b"x\n")
    with pytest.raises(StorageError, match=r"the name of b'.*\\xff\.txt' is not UTF-8: rename it"):
        find_files([str(tmp_path)])
