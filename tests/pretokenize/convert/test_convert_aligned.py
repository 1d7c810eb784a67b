"""Columns that have a value for every id are carried along, whole or packed."""

from __future__ import annotations

import gzip
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize import load_tokenizer, verify_set
from parquet_loader.pretokenize.convert import corpora
from parquet_loader.pretokenize.convert.command import ConvertOptions, convert, main
from parquet_loader.pretokenize.convert.corpora import TokenizedOptions, open_corpus

EOS = 7
SEQ_LEN = 100
# A row's ids with the values of two aligned columns.
Example = tuple[list[int], list[int], list[float]]


@pytest.fixture
def examples() -> list[Example]:
    """As fine-tuning sets have them: a prompt without labels, an answer that has its ids as labels; and weights."""
    rng = np.random.default_rng(0)
    made: list[Example] = [([], [], [])]
    for _ in range(200):
        ids = rng.integers(8, 60_000, rng.integers(1, 250)).tolist()
        prompt = int(rng.integers(0, len(ids) + 1))
        made.append((ids, [-100] * prompt + ids[prompt:], [at / 4 for at in ids]))
    return made


def table_of(examples: Sequence[Example], labels: Any = None) -> pa.Table:
    ids, labelled, weights = zip(*examples, strict=True)
    return pa.table(
        {
            "input_ids": pa.array(ids, pa.list_(pa.int32())),
            "attention_mask": pa.array([[1] * len(each) for each in ids], pa.list_(pa.int8())),
            "labels": pa.array(labelled, pa.list_(labels or pa.int64())),
            "weights": pa.array(weights, pa.large_list(pa.float32())),
        }
    )


def write(folder: Path, format: str, examples: Sequence[Example], labels: Any = None) -> Path:
    """In three files."""
    folder.mkdir()
    third = len(examples) // 3
    for at in range(3):
        part = table_of(examples[at * third :] if at == 2 else examples[at * third : (at + 1) * third], labels)
        name = f"data-0000{at}-of-00003.arrow" if format == "hf" else f"{at}.{format}"
        if format == "jsonl":
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in part.to_pylist()))
        elif format == "parquet":
            pq.write_table(part, folder / name, row_group_size=17)
        else:
            with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_table(part, max_chunksize=11)
    if format == "hf":
        names = sorted(path.name for path in folder.iterdir())
        state = {"_data_files": [{"filename": name} for name in names], "_split": None}
        (folder / "state.json").write_text(json.dumps(state))
    return folder


def written(folder: Path) -> pa.Table:
    return pq.read_table(sorted(folder.glob("part-*.parquet")))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SMALL: dict[str, Any] = {"vocab_size": 60_000, "row_group_tokens": 2_000, "file_tokens": 6_000}


@pytest.mark.parametrize("format", ["hf", "arrow", "parquet", "jsonl"])
def test_every_value_stays_with_its_id(tmp_path: Path, examples: list[Example], format: str) -> None:
    source = write(tmp_path / "in", format, examples)
    manifest = convert(
        ConvertOptions(input=str(source), output=str(tmp_path / "out"), aligned=("labels", "weights"), **SMALL)
    )
    table = written(tmp_path / "out")
    assert table.column_names == ["tokens", "labels", "weights"]
    assert manifest.encoding.aligned == {"labels": "int64", "weights": "float64" if format == "jsonl" else "float32"}
    columns = (table[name].to_pylist() for name in table.column_names)
    assert list(zip(*columns, strict=True)) == examples
    assert len(manifest.files) > 3
    assert manifest == type(manifest).from_json((tmp_path / "out/_manifest.json").read_text())


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64"]
)
def test_types_are_kept(tmp_path: Path, dtype: str) -> None:
    values = np.array([1, 0, 1, 1, 0], dtype)
    lists = pa.ListArray.from_arrays([0, 2, 2, 5], pa.array(values))
    ids = pa.ListArray.from_arrays([0, 2, 2, 5], pa.array(np.arange(5, dtype=np.uint16)))
    pq.write_table(pa.table({"tokens": ids, "loss_mask": lists}), tmp_path / "in.parquet")
    for pack in ({}, {"pack": "best-fit", "seq_len": 2}):
        out = tmp_path / f"out-{len(pack)}"
        convert(ConvertOptions(input=str(tmp_path / "in.parquet"), output=str(out), aligned=["loss_mask"], **pack))
        column = written(out)["loss_mask"]
        assert column.type.value_type == pa.from_numpy_dtype(np.dtype(dtype))
        assert column.combine_chunks().flatten().to_pylist() == values.tolist()


def pieces_of(table: pa.Table, columns: Sequence[str]) -> list[tuple[tuple[float, ...], ...]]:
    """The pieces of packed rows, each with its values of some columns."""
    pieces = []
    for row in zip(*(table[name].to_pylist() for name in ("document_ids", *columns)), strict=True):
        for _, piece in itertools.groupby(zip(*row, strict=True), key=lambda each: each[0]):
            pieces.append(tuple(each[1:] for each in piece))
    return pieces


def test_labels_are_packed_with_their_ids(tmp_path: Path, examples: list[Example]) -> None:
    source, out = write(tmp_path / "in", "hf", examples), tmp_path / "out"
    manifest = convert(
        ConvertOptions(
            input=str(source),
            output=str(out),
            reading=TokenizedOptions(eos_id=EOS),
            append_eos=True,
            aligned={"labels": EOS, "weights": 0.5},
            pack="best-fit",
            seq_len=SEQ_LEN,
            pack_buffer_tokens=3_000,
            **SMALL,
        )
    )
    ended = [list(zip([*ids, EOS], [*labels, EOS], [*weights, 0.5], strict=True)) for ids, labels, weights in examples]
    pieces = [tuple(each[at : at + SEQ_LEN]) for each in ended for at in range(0, len(each), SEQ_LEN)]
    assert sorted(pieces_of(written(out), ["tokens", "labels", "weights"])) == sorted(pieces)
    assert manifest.packed is not None
    assert manifest.encoding.eos_appended
    assert (manifest.packed.documents, manifest.packed.cut_documents) == (
        len(examples),
        sum(len(each) > SEQ_LEN for each in ended),
    )


def test_a_conversion_that_is_killed_packs_the_same_rows(tmp_path: Path, examples: list[Example]) -> None:
    many = examples * 8
    source = write(tmp_path / "in", "parquet", many)
    common = [sys.executable, "-m", "parquet_loader.pretokenize.convert", "--input", str(source)]
    common += ["--vocab-size", "60_000", "--row-group-tokens", "2_000", "--file-tokens", "6_000", "--eos-id", str(EOS)]
    common += ["--append-eos", "--aligned", "labels=-100,weights=0"]
    common += ["--pack", "best-fit", "--seq-len", str(SEQ_LEN), "--pack-buffer-tokens", "9_000"]
    subprocess.run([*common, "--output", str(tmp_path / "quiet")], check=True, capture_output=True)
    killed = 0
    for files in (3, 8, 16):
        with subprocess.Popen([*common, "--output", str(tmp_path / "killed")], stdout=subprocess.DEVNULL) as process:
            staging = tmp_path / "killed/_staging-run"
            while process.poll() is None and len(list(staging.glob("*.parquet"))) < files:
                time.sleep(0.001)
            process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
    assert killed  # where it was slow enough, three times
    subprocess.run([*common, "--output", str(tmp_path / "killed")], check=True, capture_output=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "quiet")


def test_a_later_file_may_have_a_type_that_converts_without_loss(tmp_path: Path, examples: list[Example]) -> None:
    source = write(tmp_path / "in", "parquet", examples)
    narrow = table_of(examples[:5], pa.int32())
    pq.write_table(narrow, source / "3.parquet")
    pq.write_table(pa.table({"input_ids": [[]], "labels": pa.nulls(1)}), source / "-.parquet")  # which tells no type
    convert(ConvertOptions(input=str(source), output=str(tmp_path / "out"), aligned=["labels"], **SMALL))
    found = written(tmp_path / "out")["labels"]
    assert found.type.value_type == pa.int64()
    assert found.to_pylist() == [[], *(each[1] for each in [*examples, *examples[:5]])]
    strings = narrow.set_column(2, "labels", pa.array([["a"] * len(each[0]) for each in examples[:5]]))
    pq.write_table(strings, source / "4.parquet")
    with pytest.raises(
        DataError, match=r"4\.parquet, column 'labels': it is list.* and an aligned column is of lists of integers"
    ):
        convert(ConvertOptions(input=str(source), output=str(tmp_path / "other"), aligned=["labels"], **SMALL))


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_a_list_of_another_length_is_refused_with_file_and_row(
    tmp_path: Path, examples: list[Example], format: str
) -> None:
    ids, labels, weights = examples[150]
    examples[150] = (ids, [*labels, 5], weights)
    source = write(tmp_path / "in", format, examples)
    row = 150 - 2 * (len(examples) // 3)
    problem = (
        rf"2\.{format}: row {row}, column 'labels': the list has {len(ids) + 1} values, and the row {len(ids)} ids"
    )
    with pytest.raises(DataError, match=problem):
        convert(ConvertOptions(input=str(source), output=str(tmp_path / "out"), aligned=["labels"], **SMALL))
    # And where reading begins behind it.
    corpus = open_corpus(source, None, TokenizedOptions(aligned=("labels",)))
    with pytest.raises(DataError, match=rf"row {row}, "):
        list(corpus.documents((149, 0)))
    assert sum(len(batch.lengths) for _, batch in corpus.documents((151, 0))) == len(examples) - 151


def test_json_lines_are_read_in_parts_which_may_lack_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "_JSON_BYTES", 1)  # each line is a part
    rows = [{"input_ids": [1, 2], "labels": [0, 2]}, {"id": 3}, {"input_ids": [3], "labels": [0.0], "more": "x"}]
    with gzip.open(tmp_path / "in.jsonl.gz", "wt") as stream:
        stream.write("\n".join(map(json.dumps, rows)))
    corpus = open_corpus(tmp_path, None, TokenizedOptions(aligned=("labels",)))
    for skipped in range(4):
        found = [
            (batch.tokens.tolist(), batch.aligned["labels"].tolist()) for _, batch in corpus.documents((skipped, 0))
        ]
        assert found == [([1, 2], [0, 2]), ([], []), ([3], [0])][skipped:]
    with gzip.open(tmp_path / "in.jsonl.gz", "at") as stream:
        stream.write('\n{"input_ids": [4], "labels": [0.5]}\n')
    with pytest.raises(DataError, match=r"in\.jsonl\.gz, column 'labels': it is double here, and int64 before"):
        list(corpus.documents())
    with gzip.open(tmp_path / "in.jsonl.gz", "at") as stream:
        stream.write('{"input_ids": [4\n')
    with pytest.raises(DataError, match=r"cannot be read .*damaged or cut short"):
        list(corpus.documents((4, 0)))


def test_a_null_among_the_values_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]], "labels": [[1, None]]}), tmp_path / "in.parquet")
    with pytest.raises(DataError, match="row 0, column 'labels': the list holds nulls among"):
        convert(
            ConvertOptions(
                input=str(tmp_path / "in.parquet"), output=str(tmp_path / "out"), aligned=["labels"], vocab_size=9
            )
        )


@pytest.mark.parametrize("nulls", [[[5], None, [6, 7]], [[5], [8, None], [6, 7]]])
@pytest.mark.parametrize("format", ["parquet", "arrow", "jsonl"])
def test_nulls_are_told_with_their_row(tmp_path: Path, format: str, nulls: list[Any]) -> None:
    table = pa.table({"input_ids": [[1], [2, 3], [4, 5]], "labels": nulls})
    path = tmp_path / f"in.{format}"
    if format == "jsonl":
        lines = ({name: value for name, value in row.items() if value is not None} for row in table.to_pylist())
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    elif format == "arrow":
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, path)
    problem = "the list is missing, or null" if nulls[1] is None else "the list holds nulls among the values"
    with pytest.raises(DataError, match=f"row 1, column 'labels': {problem}"):
        convert(ConvertOptions(input=str(path), output=str(tmp_path / "out"), aligned=["labels"], vocab_size=9))


def test_a_later_file_without_the_column_is_one_line_and_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"input_ids": [[1, 2]], "labels": [[1, 2]]}), folder / "a.parquet")
    pq.write_table(pa.table({"input_ids": [[1, 2]]}), folder / "b.parquet")
    run = ["--input", str(folder), "--output", str(tmp_path / "out"), "--vocab-size", "9"]
    assert main([*run, "--aligned", "labels"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "b.parquet" in line
    assert "no such column" in line


def test_the_command_names_aligned_columns_as_it_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]], "mask": [[True, False]]}), tmp_path / "in.parquet")
    run = ["--input", str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out"), "--vocab-size", "9"]
    for more, told in (
        (["--append-eos", "--eos-id", "8", "--aligned", "mask"], "--aligned mask=0"),
        (["--aligned", "mask=-1.5"], "--aligned mask=-1.5"),
        (["--append-eos", "--eos-id", "8", "--aligned", "mask=7"], "--aligned mask=7"),
    ):
        assert main([*run, *more]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert "aligned=" not in error
    with pytest.raises(SystemExit):
        main([*run, "--aligned", "mask,mask"])
    assert "has a name twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"aligned": ["nope"]}, r"no such column, or more than one; columns of lists are \['input_ids', 'atten"),
        ({"aligned": "labels"}, "aligned must be a sequence or a mapping of names"),
        ({"aligned": ["tokens"]}, "aligned: 'tokens' is no name, or that of a column which is written anyway"),
        ({"aligned": {"labels": -100}}, "the value is for append_eos=True. Omit it"),
        ({"append_eos": True}, "append_eos=True puts an id after every document: say which with eos_id=N"),
        (
            {"append_eos": True, "eos_id": EOS, "aligned": ["labels"]},
            r"where 'labels' has no value: give it one, such as aligned=\{'labels': 0\}",
        ),
        ({"append_eos": True, "eos_id": EOS, "aligned": {"attention_mask": 300}}, "of int8, which has no such value"),
        ({"append_eos": True, "eos_id": EOS, "aligned": {"labels": float("nan")}}, "of int64, which has no such"),
        ({"append_eos": True, "eos_id": EOS, "eos_appended": True}, "and these have it: omit it"),
        ({"seq_len": 10}, "seq_len=10 needs pack='best-fit'"),
        ({"aligned": ["labels", "labels"]}, "has a name twice"),
        ({"pack": "best-fit", "seq_len": 10, "aligned": ["document_ids"]}, "of a column which is written anyway"),
    ],
)
def test_options_that_cannot_work_are_refused(
    tmp_path: Path, examples: list[Example], changes: dict[str, Any], problem: str
) -> None:
    source = write(tmp_path / "in", "parquet", examples)
    reading = TokenizedOptions(eos_id=changes.pop("eos_id", None))
    with pytest.raises((ConfigError, DataError), match=problem):
        convert(
            ConvertOptions(input=str(source), output=str(tmp_path / "out"), reading=reading, **{**SMALL, **changes})
        )


def test_aligned_columns_are_for_formats_that_have_columns(tmp_path: Path) -> None:
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "chunk_000000.bin")
    with pytest.raises(ConfigError, match=r"aligned=\('labels',\) is for hf, arrow, parquet, jsonl, and .* is chunks"):
        open_corpus(tmp_path, None, TokenizedOptions(dtype="uint16", eos_id=1, aligned=("labels",)))


def test_the_command_packs_and_tells_how_full_rows_are(
    tmp_path: Path, examples: list[Example], capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in", "hf", examples)
    arguments = ["--input", str(source), "--output", str(tmp_path / "out"), "--vocab-size", "60_000"]
    assert main([*arguments, "--aligned", "labels", "--pack", "best-fit", "--seq-len", str(SEQ_LEN)]) == 0
    told = capsys.readouterr().out
    assert f"rows of up to {SEQ_LEN} tokens: " in told
    assert f"{sum(len(ids) > SEQ_LEN for ids, _, _ in examples)} documents (" in told


def test_a_set_that_was_converted_before_there_were_these_options_is_still_complete(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]]}), tmp_path / "in.parquet")
    options = ConvertOptions(input=str(tmp_path / "in.parquet"), output=str(tmp_path / "out"), vocab_size=9)
    manifest = convert(options)
    assert set(manifest.fingerprint["source"]) == {"format", "column", "dtype", "eos_id", "files"}
    assert set(manifest.fingerprint) == {"version", "source", "encoding", "row_group_tokens", "file_tokens"}
    assert not {"aligned", "packing"} & set(manifest.encoding.to_dict())


def test_the_command_verifies_what_it_has_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2], [3]], "labels": [[5, 6], [7]]}), tmp_path / "in.parquet")
    run = ["--input", str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out"), "--vocab-size", "9", "--verify"]
    assert main([*run, "--aligned", "labels"]) == 0
    assert "Verified 2 documents, 3 tokens in 1 files" in (told := capsys.readouterr().out)
    assert "row 1: '3'" in told
    damaged = bytearray((tmp_path / "out/part-00000.parquet").read_bytes())
    damaged[damaged.index(b"PAR1", 4) - 4] ^= 255  # the footer's length
    (tmp_path / "out/part-00000.parquet").write_bytes(damaged)
    assert main([*run, "--aligned", "labels"]) == 2


def test_verifying_counts_the_values_of_aligned_columns(tmp_path: Path) -> None:
    tokenizer = load_tokenizer("bytes")
    pq.write_table(pa.table({"input_ids": [[1, 2], [3]], "labels": [[5, 6], [7]]}), tmp_path / "in.parquet")
    out = tmp_path / "out"
    convert(ConvertOptions(input=str(tmp_path / "in.parquet"), output=str(out), aligned=["labels"], vocab_size=257))
    manifest = json.loads((out / "_manifest.json").read_text())
    manifest["tokenizer"]["sha256"] = tokenizer.info.sha256  # which a conversion does not know
    (out / "_manifest.json").write_text(json.dumps(manifest))
    assert verify_set(str(out), tokenizer).manifest.documents == 2
    table = pq.read_table(out / "part-00000.parquet")
    longer = pa.array([[5, 6], [7, 8]], table.schema.field("labels").type)
    pq.write_table(table.set_column(1, table.schema.field("labels"), longer), out / "part-00000.parquet")
    with pytest.raises(DataError, match="column 'labels': its lists are not as long as those of the tokens"):
        verify_set(str(out), tokenizer)
