"""Corpora that others have tokenized come out as they went in."""

from __future__ import annotations

import csv
import gzip
import json
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ParquetLoader
from parquet_loader.errors import ConfigError, DataError, ParquetLoaderError, PathNotFoundError
from parquet_loader.pretokenize import PretokenizeOptions, PretokenizeWarning, Progress, pretokenize, pretokenize_rank
from parquet_loader.pretokenize.convert.command import ConvertOptions, convert, main
from parquet_loader.pretokenize.convert.corpora import TokenizedOptions, detect, open_corpus

EOS = 7


@pytest.fixture
def documents() -> list[list[int]]:
    rng = np.random.default_rng(0)
    made = [[*rng.integers(8, 60_000, rng.integers(1, 400)).tolist(), EOS] for _ in range(300)]
    return [*made, [EOS], [9, EOS]]


def flat(documents: list[list[int]]) -> list[int]:
    return [each for document in documents for each in document]


def write_chunks(folder: Path, documents: list[list[int]], dtype: str, meta: bool = True) -> None:
    ids = np.array(flat(documents), dtype)
    entries = []
    for at, chunk in enumerate(np.array_split(ids, 7)):  # cut anywhere, within documents too
        name = f"chunk_{at:06d}.bin"
        chunk.tofile(folder / name)
        entries.append({"file": name, "tokens": len(chunk), "dtype": dtype, "eos_token_id": EOS})
    if meta:
        (folder / "meta.json").write_text(json.dumps(entries))


def write_megatron(folder: Path, documents: list[list[int]], dtype: str) -> None:
    # As Megatron-LM's IndexedDatasetBuilder: magic, version, type code, counts, lengths, byte offsets, documents.
    np.array(flat(documents), dtype).tofile(folder / "set_text_document.bin")
    lengths = np.array([len(each) for each in documents], "<i4")
    offsets = (np.cumsum(lengths) - lengths).astype("<i8") * np.dtype(dtype).itemsize
    code = {"uint16": 8, "int32": 4}[dtype]
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
    index = np.arange(len(lengths) + 1, dtype="<i8")
    raw = head + lengths.tobytes() + offsets.tobytes() + index.tobytes()
    (folder / "set_text_document.idx").write_bytes(raw)


def write_dolma(folder: Path, documents: list[list[int]], dtype: str) -> None:
    half = len(documents) // 2
    for at, part in enumerate((documents[:half], documents[half:])):
        np.array(flat(part), dtype).tofile(folder / f"part-{at}-00000.npy")
        with gzip.open(folder / f"part-{at}-00000.csv.gz", "wt", newline="") as stream:
            start = 0
            for row, document in enumerate(part):
                csv.writer(stream).writerow([start, start + len(document), f"id{row}", "a.jsonl.gz", row])
                start += len(document)


def write_datatrove(folder: Path, documents: list[list[int]], dtype: str) -> None:
    half = len(documents) // 2
    for at, part in enumerate((documents[:half], documents[half:])):
        np.array(flat(part), dtype).tofile(folder / f"{at:05d}_unshuffled.ds")
        np.cumsum([len(each) for each in part]).astype("<u8").tofile(folder / f"{at:05d}_unshuffled.ds.index")


def write_arrow(folder: Path, documents: list[list[int]], dtype: str) -> None:
    kind = pa.list_(pa.from_numpy_dtype(dtype))
    table = pa.table({"id": list(range(len(documents))), "input_ids": pa.array(documents, kind)})
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)


def write_parquet(folder: Path, documents: list[list[int]], dtype: str) -> None:
    kind = pa.large_list(pa.from_numpy_dtype(dtype))
    mask = [[1] * len(document) for document in documents]
    table = pa.table({"input_ids": pa.array(documents, kind), "attention_mask": mask})
    pq.write_table(table.slice(0, 100), folder / "a.parquet")
    pq.write_table(table.slice(100), folder / "b.parquet", row_group_size=33)


def write_hf(folder: Path, documents: list[list[int]], dtype: str) -> None:
    # As datasets' save_to_disk, of which state.json alone says what is read.
    table = pa.table({"input_ids": pa.array(documents, pa.list_(pa.from_numpy_dtype(dtype)))})
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}], "_split": None}))


WRITERS: dict[str, Callable[[Path, list[list[int]], str], None]] = {
    "chunks": write_chunks,
    "megatron": write_megatron,
    "datatrove": write_datatrove,
    "dolma": write_dolma,
    "hf": write_hf,
    "arrow": write_arrow,
    "parquet": write_parquet,
}


def rows_of(folder: Path) -> list[list[int]]:
    return [row for part in sorted(folder.glob("*.parquet")) for row in pq.read_table(part)["tokens"].to_pylist()]


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("format", WRITERS)
def test_every_document_comes_back(tmp_path: Path, documents: list[list[int]], format: str, bits: int) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    dtype = "uint16" if bits == 16 else {"megatron": "int32", "arrow": "int64"}.get(format, "uint32")
    WRITERS[format](folder, documents, dtype)
    assert detect(folder) == format
    sizes: dict[str, Any] = {"row_group_tokens": 5000, "file_tokens": 20_000}
    options = ConvertOptions(
        input=str(folder),
        output=str(tmp_path / "out"),
        reading=TokenizedOptions(dtype="uint32" if bits == 32 and format == "dolma" else None, eos_id=EOS),
        vocab_size=None if bits == 16 else 100_000,
        **sizes,
    )
    manifest = convert(options)
    assert rows_of(tmp_path / "out") == documents
    assert (manifest.documents, manifest.tokens) == (len(documents), len(flat(documents)))
    assert (manifest.encoding.dtype, manifest.encoding.tokenizer.eos_id) == ("uint16" if bits == 16 else "int32", EOS)
    with ParquetLoader(str(tmp_path / "out"), seq_len=64, lanes=2, window=2) as loader:
        assert next(iter(loader)).tokens.shape == (2, 64)


def test_a_set_that_datasets_has_saved_comes_back(tmp_path: Path, documents: list[list[int]]) -> None:
    import datasets

    made = datasets.Dataset.from_dict({"input_ids": documents, "text": ["x"] * len(documents)})
    made.select(range(1, len(documents))).save_to_disk(str(tmp_path / "in"), num_shards=3)
    assert detect(tmp_path / "in") == "hf"
    convert(ConvertOptions(input=str(tmp_path / "in"), output=str(tmp_path / "out"), vocab_size=60_000))
    assert rows_of(tmp_path / "out") == documents[1:]


DATATROVE = """
import sys
from datatrove.data import Document
from datatrove.pipeline.tokens import DocumentTokenizer
step = DocumentTokenizer(
    output_folder=sys.argv[1], tokenizer_name_or_path=sys.argv[2], shuffle_documents=False, eos_token="<|endoftext|>"
)
texts = ["def f(): pass", "a b c", "x" * 50]
step.run([Document(text=text, id=str(at)) for at, text in enumerate(texts)], rank=0, world_size=1)
"""


def test_what_datatrove_has_written_comes_back(tmp_path: Path, tokenizer_folder: Path, bpe: Any) -> None:
    tokenizer = str(tokenizer_folder / "tokenizer.json")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DATATROVE, str(tmp_path / "in"), tokenizer],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert detect(tmp_path / "in") == "datatrove"
    manifest = convert(ConvertOptions(input=str(tmp_path / "in"), output=str(tmp_path / "out")))
    assert manifest.encoding.tokenizer.name == tokenizer
    expected = [[*bpe.encode(text).ids, 0] for text in ("def f(): pass", "a b c", "x" * 50)]
    assert rows_of(tmp_path / "out") == expected


def test_chunks_without_meta_are_sorted_and_of_the_given_dtype(tmp_path: Path, documents: list[list[int]]) -> None:
    (tmp_path / "in").mkdir()
    write_chunks(tmp_path / "in", documents, "uint16", meta=False)
    with pytest.raises(ConfigError, match=r"has no meta\.json: give dtype='uint16'"):
        open_corpus(tmp_path / "in")
    with pytest.raises(ConfigError, match="eos_id=N"):
        open_corpus(tmp_path / "in", options=TokenizedOptions(dtype="uint16"))
    corpus = open_corpus(tmp_path / "in", options=TokenizedOptions(dtype="uint16", eos_id=EOS))
    assert [each for _, batch in corpus.documents() for each in batch.tokens.tolist()] == flat(documents)


def test_chunks_between_which_one_is_missing_are_refused(tmp_path: Path, documents: list[list[int]]) -> None:
    write_chunks(tmp_path, documents, "uint16", meta=False)
    (tmp_path / "chunk_000001.bin").unlink()
    with pytest.raises(ConfigError, match="holds chunks 0 and 2, and none between them"):
        open_corpus(tmp_path, options=TokenizedOptions(dtype="uint16", eos_id=0))


def test_an_arrow_stream_without_its_end_is_warned_of(tmp_path: Path) -> None:
    table = pa.table({"tokens": [[1, 2], [3]]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    whole = (tmp_path / "a.arrow").read_bytes()
    for data, warned in ((whole, 0), (whole[:-8], 1)):
        (tmp_path / "a.arrow").write_bytes(data)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            batches = [batch for _, batch in open_corpus(tmp_path / "a.arrow").documents()]
        assert sum(len(batch.lengths) for batch in batches) == 2
        assert ["cut off" in str(each.message) for each in found][:1] == [True] * warned


def test_values_for_all_chunks_may_stand_above_their_list(tmp_path: Path) -> None:
    np.array([1, 2, EOS, 3], "uint16").tofile(tmp_path / "chunk_000000.bin")
    meta = {"dtype": "uint16", "eos_token_id": EOS, "chunks": [{"file": "chunk_000000.bin", "tokens": 4}]}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    corpus = open_corpus(tmp_path)
    assert [batch.lengths.tolist() for _, batch in corpus.documents()] == [[3], [1]]
    assert not corpus.eos_appended  # nothing has ended the last one


@pytest.mark.parametrize(
    ("format", "break_it", "error", "message"),
    [
        ("chunks", lambda folder: (folder / "chunk_000001.bin").unlink(), PathNotFoundError, "which is not there"),
        ("chunks", lambda folder: cut(folder / "chunk_000001.bin", 2), DataError, "where meta.json says"),
        ("chunks", lambda folder: (folder / "meta.json").write_text("{}"), DataError, "entry with its"),
        ("megatron", lambda folder: (folder / "set_text_document.bin").unlink(), PathNotFoundError, "is not there"),
        ("megatron", lambda folder: cut(folder / "set_text_document.bin", 2), DataError, "do not belong"),
        ("megatron", lambda folder: cut(folder / "set_text_document.idx", 9), DataError, "cut short"),
        ("megatron", lambda folder: (folder / "set_text_document.idx").write_bytes(b"x" * 99), DataError, "Megatron"),
        ("datatrove", lambda folder: (folder / "00000_unshuffled.ds.index").unlink(), PathNotFoundError, "index"),
        ("datatrove", lambda folder: cut(folder / "00000_unshuffled.ds", 2), DataError, "neither 2 nor 4"),
        ("dolma", lambda folder: (folder / "part-0-00000.csv.gz").unlink(), PathNotFoundError, "csv.gz"),
        ("dolma", lambda folder: cut(folder / "part-0-00000.npy", 2), DataError, "do not belong together"),
        ("dolma", lambda folder: np.save(folder / "part-0-00000.npy", np.arange(9)), DataError, "with a header"),
        ("parquet", lambda folder: cut(folder / "b.parquet", 20), DataError, r"b\.parquet: cannot be read"),
        ("parquet", lambda folder: cut(folder / "a.parquet", 20), DataError, r"a\.parquet: cannot be read"),
        ("arrow", lambda folder: cut(folder / "a.arrow", 20), DataError, r"a\.arrow: cannot be read"),
        ("arrow", lambda folder: (folder / "a.arrow").write_bytes(b""), DataError, r"a\.arrow: cannot be read"),
        ("chunks", lambda folder: (folder / "meta.json").write_bytes(b"\xff{}"), DataError, r"meta\.json: cannot be"),
        ("chunks", lambda folder: (folder / "meta.json").write_text("[" * 99_999), DataError, r"meta\.json: cannot be"),
        (
            "chunks",
            lambda folder: set_meta(folder, tokens="9"),
            DataError,
            "'tokens' should be a whole number, got '9'",
        ),
        ("chunks", lambda folder: set_meta(folder, eos_token_id=[7]), DataError, "'eos_token_id' should be a whole n"),
        ("chunks", lambda folder: set_meta(folder, dtype=None), ConfigError, "does not say the dtype of 'chunk_000000"),
        ("chunks", lambda folder: set_meta(folder, file="a\0b"), PathNotFoundError, "which is not there"),
        ("chunks", lambda folder: set_meta(folder, eos_token_id=9), ConfigError, r"meta\.json: .* not one but"),
        (
            "megatron",
            lambda folder: set_word(folder / "set_text_document.idx", -1, 9999),
            DataError,
            r"\.idx: its docu",
        ),
        (
            "megatron",
            lambda folder: set_word(folder / "set_text_document.idx", -2, -2),
            DataError,
            r"\.idx: its docume",
        ),
        ("megatron", lambda folder: set_byte(folder / "set_text_document.idx", 17, 6), DataError, "type code 6"),
        ("megatron", lambda folder: set_byte(folder / "set_text_document.idx", 25, 9), DataError, "too few for the"),
        (
            "datatrove",
            lambda folder: cut(folder / "00001_unshuffled.ds.index", 3),
            DataError,
            r"ds\.index: .* integers",
        ),
        ("datatrove", lambda folder: set_word(folder / "00001_unshuffled.ds.index", 3, 0), DataError, "do not follow"),
        ("datatrove", lambda folder: (folder / "00001_unshuffled.ds.index").write_bytes(b""), DataError, "neither"),
        ("dolma", lambda folder: cut(folder / "part-1-00000.csv.gz", 20), DataError, r"csv\.gz: cannot be read"),
        (
            "dolma",
            lambda folder: (folder / "part-1-00000.csv.gz").write_bytes(b""),
            DataError,
            "do not belong together",
        ),
        ("dolma", lambda folder: set_byte(folder / "part-1-00000.csv.gz", 60, 255), DataError, r"csv\.gz: cannot be"),
        ("hf", lambda folder: (folder / "state.json").write_text('{"_data_fi'), DataError, r"state\.json: cannot be"),
        ("hf", lambda folder: (folder / "state.json").write_text("[]"), DataError, "should list the files of the set"),
        ("hf", lambda folder: (folder / "data-00000-of-00001.arrow").unlink(), PathNotFoundError, "which is not there"),
        ("hf", lambda folder: cut(folder / "data-00000-of-00001.arrow", 99), DataError, r"arrow: cannot be read"),
    ],
)
def test_a_corpus_that_is_damaged_is_named_in_one_line(
    tmp_path: Path,
    documents: list[list[int]],
    format: str,
    break_it: Callable[[Path], object],
    error: type[ParquetLoaderError],
    message: str,
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    WRITERS[format](folder, documents, "uint16")
    break_it(folder)
    with pytest.raises(error, match=message) as caught:
        convert(ConvertOptions(input=str(folder), output=str(tmp_path / "out"), vocab_size=60_000))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert not list((tmp_path / "out").glob("**/*")) if (tmp_path / "out").exists() else True


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def set_byte(path: Path, at: int, value: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] = value
    path.write_bytes(raw)


def set_word(path: Path, at: int, value: int) -> None:
    raw = path.read_bytes()
    head = len(raw) % 8  # the words are at the end
    words = np.frombuffer(raw[head:], "<i8").copy()
    words[at] = value
    path.write_bytes(raw[:head] + words.tobytes())


def set_meta(folder: Path, **values: Any) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    meta[0] |= values
    (folder / "meta.json").write_text(json.dumps(meta))


def test_the_command_says_what_it_wrote_or_what_is_wrong(
    tmp_path: Path, documents: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    write_parquet(tmp_path, documents, "int32")
    arguments = ["--input", str(tmp_path / "a.parquet"), "--output", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "ids of 32 bits: give --vocab-size N" in capsys.readouterr().err
    assert main([*arguments, "--vocab-size", "100"]) == 2
    assert "is not of a vocabulary of 100" in capsys.readouterr().err
    assert main([*arguments, "--vocab-size", "60000"]) == 0
    assert capsys.readouterr().out.startswith("Wrote 100 documents")
    assert main([*arguments, "--vocab-size", "60000"]) == 0  # all is there
    assert main([*arguments, "--vocab-size", "60001"]) == 2
    assert "encoding.vocab_size: was 60000, is 60001" in capsys.readouterr().err
    assert main([*arguments, "--vocab-size", "60000", "--overwrite", "--column", "attention_mask"]) == 0
    assert set(flat(rows_of(tmp_path / "out"))) == {1}


def test_what_is_no_known_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("x")
    with pytest.raises(ConfigError, match="no tokenized files"):
        detect(tmp_path)
    with pytest.raises(PathNotFoundError):
        detect(tmp_path / "none")


@pytest.mark.parametrize("unfinished", ["run", "rank-0-of-2"])
def test_an_unfinished_run_is_not_dropped_in_silence(
    tmp_path: Path, documents: list[list[int]], unfinished: str
) -> None:
    corpus, output = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    write_chunks(corpus, documents, "uint16")
    (tmp_path / "a.txt").write_text("text\n" * 500)

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    def values(**changes: Any) -> PretokenizeOptions:
        return PretokenizeOptions(
            inputs=(str(tmp_path / "a.txt"),),
            output=str(output),
            tokenizer="bytes",
            row_group_tokens=400,
            file_tokens=800,
            batch_bytes=3000,
            **changes,
        )

    if unfinished == "run":
        with pytest.raises(KeyboardInterrupt):
            pretokenize(values(), progress=lambda done: stop(done) if done.documents > 400 else None)
    else:
        pretokenize_rank(values(rank=0, world_size=2))
    staged = list((output / f"_staging-{unfinished}").iterdir())
    assert staged
    with pytest.raises(ConfigError, match="unfinished"):
        convert(ConvertOptions(input=str(corpus), output=str(output)))
    assert list((output / f"_staging-{unfinished}").iterdir()) == staged
    convert(ConvertOptions(input=str(corpus), output=str(output), overwrite=True))
    assert not list(output.glob("_staging-*"))


@pytest.mark.parametrize("format", WRITERS)
def test_hidden_names_are_passed_over(tmp_path: Path, documents: list[list[int]], format: str) -> None:
    folder = tmp_path / "in"
    hidden = [folder / ".ipynb_checkpoints", folder / "_old"]
    for each in (folder, *hidden):
        each.mkdir()
        WRITERS[format](each, documents, "uint16")
    for file in [*folder.iterdir()]:
        if file.is_file():
            (folder / f"._{file.name}").write_bytes(b"\0" * 99)
    (folder / "meta.json").unlink(missing_ok=True)  # which would name the chunks
    assert detect(folder) == format
    options = TokenizedOptions(dtype="uint16" if format == "chunks" else None, eos_id=EOS)
    batches = open_corpus(folder, options=options).documents()
    assert sum(len(batch.lengths) for _, batch in batches) == len(documents)
    with pytest.raises(ConfigError, match="no tokenized files"):
        for file in [*folder.iterdir()]:
            if file.is_file() and not file.name.startswith("."):
                file.unlink()
        detect(folder)


def test_links_are_read_or_refused_where_they_lead_nowhere(tmp_path: Path, documents: list[list[int]]) -> None:
    (tmp_path / "elsewhere").mkdir()
    write_parquet(tmp_path / "elsewhere", documents, "uint16")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "elsewhere")
    assert sum(len(batch.lengths) for _, batch in open_corpus(tmp_path / "in").documents()) == len(documents)
    (tmp_path / "elsewhere" / "a.parquet").rename(tmp_path / "moved")
    (tmp_path / "in" / "a.parquet").symlink_to(tmp_path / "elsewhere" / "a.parquet")
    with pytest.raises(PathNotFoundError, match=r"is a link to .*, which is not there"):
        open_corpus(tmp_path / "in")


LISTS: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
    "fixed_size_list": lambda value: pa.list_(value, 2),
}


@pytest.mark.parametrize("format", ["arrow", "parquet"])
@pytest.mark.parametrize("kind", LISTS)
def test_every_kind_of_list_is_read(tmp_path: Path, format: str, kind: str) -> None:
    rows = [[1, 2], None, [3, 4], [5, 6]] if kind == "fixed_size_list" else [[1, 2], None, [], [3, 4, 5], [6]]
    folder = tmp_path / "in"
    folder.mkdir()
    whole = pa.array([[7, 7], *rows, [8, 8]], LISTS[kind](pa.uint16()))
    column = pa.chunked_array([whole.slice(1, 2), whole.slice(3, len(rows) - 2)])
    table = pa.table({"input_ids": column})
    if format == "parquet":
        pq.write_table(table, folder / "a.parquet")
    else:
        with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    convert(ConvertOptions(input=str(folder), output=str(tmp_path / "out")))
    assert rows_of(tmp_path / "out") == [row or [] for row in rows]


def test_list_views_out_of_order_and_shared_are_read_in_order(tmp_path: Path) -> None:
    values = pa.array([1, 2, 3, 4, 5], pa.uint16())
    column = pa.ListViewArray.from_arrays(pa.array([3, 0, 1], pa.int32()), pa.array([2, 2, 1], pa.int32()), values)
    table = pa.table({"tokens": column})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    [(_, batch)] = open_corpus(tmp_path).documents()
    assert (batch.tokens.tolist(), batch.lengths.tolist()) == ([4, 5, 1, 2, 2], [2, 2, 1])


@pytest.mark.parametrize("empty", [pa.nulls(2), pa.array([None, []], pa.list_(pa.null()))])
@pytest.mark.parametrize("name", ["a.parquet", "c.parquet"])
def test_a_file_whose_rows_are_all_empty_holds_empty_documents(tmp_path: Path, empty: pa.Array, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"input_ids": empty, "x": pa.nulls(2)}), folder / name)
    pq.write_table(pa.table({"input_ids": pa.array([[1, 2]], pa.list_(pa.uint16()))}), folder / "b.parquet")
    convert(ConvertOptions(input=str(folder), output=str(tmp_path / "out")))
    assert sorted(rows_of(tmp_path / "out")) == [[], [], [1, 2]]


def test_an_id_that_is_null_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": pa.array([[1, None]], pa.list_(pa.uint16()))}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, column 'input_ids': it holds nulls among the ids"):
        convert(ConvertOptions(input=str(tmp_path), output=str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (["tokens", "input_ids"], "input_ids"),
        (["x", "tokens"], "tokens"),
        (["x"], "x"),
        (["x", "y"], "Name it with column=NAME"),
        (["x", "x"], "Name it with column=NAME"),
    ],
)
def test_the_column_of_ids_is_a_usual_name_or_the_only_one(tmp_path: Path, columns: list[str], wanted: str) -> None:
    lists = [pa.array([[at]], pa.list_(pa.uint16())) for at in range(len(columns))]
    pq.write_table(pa.Table.from_arrays(lists, columns), tmp_path / "a.parquet")
    if wanted in columns:
        [(_, batch)] = open_corpus(tmp_path).documents()
        assert batch.tokens.tolist() == [columns.index(wanted)]
    else:
        with pytest.raises(DataError, match=wanted):
            open_corpus(tmp_path)


def test_offsets_that_lead_out_of_an_arrow_file_are_refused(tmp_path: Path) -> None:
    table = pa.table({"input_ids": pa.array([[1, 2], [3]], pa.list_(pa.uint16()))})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    raw = (tmp_path / "a.arrow").read_bytes()
    offsets = np.array([0, 2, 3], "<i4").tobytes()
    assert raw.count(offsets) == 1
    (tmp_path / "a.arrow").write_bytes(raw.replace(offsets, np.array([0, 2, 1 << 30], "<i4").tobytes()))
    with pytest.raises(DataError, match=r"a\.arrow: cannot be read"):
        convert(ConvertOptions(input=str(tmp_path), output=str(tmp_path / "out")))


@pytest.mark.parametrize("eos_id", [None, 9])
def test_a_stream_that_the_id_does_not_end_is_warned_of_with_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], eos_id: int | None
) -> None:
    (tmp_path / "in").mkdir()
    write_chunks(tmp_path / "in", [[1, 2, 9]] * 500, "uint16")  # says that 7 ends a document
    arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert main(arguments) == 0
    warning = capsys.readouterr().err
    assert warning.startswith("convert: warning: the end-of-document id 7 does not occur in ")
    assert "--eos-id" in warning
    assert warning.count("\n") == 1
    if eos_id is not None:
        assert main([*arguments, "--eos-id", str(eos_id), "--overwrite"]) == 0  # what the warning says to give
        assert capsys.readouterr().err == ""
        assert rows_of(tmp_path / "out") == [[1, 2, 9]] * 500
        manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
        assert (manifest["eos_id"], manifest["eos_appended"]) == (9, True)


def test_documents_longer_than_a_row_group_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_chunks(tmp_path / "in", [[1] * 900 + [EOS]] * 3, "uint16")
    options = ConvertOptions(
        input=str(tmp_path / "in"), output=str(tmp_path / "out"), row_group_tokens=500, file_tokens=500
    )
    with pytest.warns(
        PretokenizeWarning, match="the end-of-document id 7 cuts the 2,703 tokens of .* into no more than 3 documents"
    ):
        convert(options)


@pytest.mark.parametrize(
    ("meta", "name"),
    [
        ({"tokenizer": "openai-community/gpt2"}, "openai-community/gpt2"),
        ({"tokenizer": {"name": "gpt2", "vocab_size": 50257}}, "gpt2"),
        ({"tokenizer_name_or_path": "gpt2"}, "gpt2"),
        ({"tokenizer": None}, "unknown"),
    ],
)
def test_the_tokenizer_that_meta_json_names_is_kept(tmp_path: Path, meta: dict[str, Any], name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    np.array([1, EOS], "uint16").tofile(folder / "chunk_000000.bin")
    meta = meta | {"dtype": "uint16", "eos_token_id": EOS, "chunks": [{"file": "chunk_000000.bin", "tokens": 2}]}
    (folder / "meta.json").write_text(json.dumps(meta))
    manifest = convert(ConvertOptions(input=str(folder), output=str(tmp_path / "kept")))
    assert manifest.encoding.tokenizer.name == name
    manifest = convert(ConvertOptions(input=str(folder), output=str(tmp_path / "given"), tokenizer="other"))
    assert manifest.encoding.tokenizer.name == "other"


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        (
            "megatron",
            TokenizedOptions(dtype="uint16"),
            "dtype='uint16' is for chunks, datatrove, dolma, and .* is megatron",
        ),
        ("dolma", TokenizedOptions(column="x"), "column='x' is for hf, arrow, parquet, jsonl, and .* is dolma"),
    ],
)
def test_an_option_that_a_format_has_no_use_for_is_refused(
    tmp_path: Path, documents: list[list[int]], format: str, options: TokenizedOptions, message: str
) -> None:
    WRITERS[format](tmp_path, documents, "uint16")
    with pytest.raises(ConfigError, match=message):
        open_corpus(tmp_path, options=options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be from 1"),
        ({"vocab_size": 1 << 32}, "vocab_size must be from 1"),
        ({"vocab_size": 5}, "the end-of-document id 7 is not of a vocabulary of 5"),
        ({"row_group_tokens": 0}, "row_group_tokens must be at least 1"),
        ({"row_group_tokens": 10, "file_tokens": 9}, "a file holds whole row groups"),
        ({"output": "in"}, "holds the input"),
    ],
)
def test_options_that_cannot_work_are_refused(
    tmp_path: Path, documents: list[list[int]], values: dict[str, Any], message: str
) -> None:
    (tmp_path / "in").mkdir()
    write_chunks(tmp_path / "in", documents, "uint16")
    output = str(tmp_path / values.get("output", "out"))
    with pytest.raises(ConfigError, match=message):
        convert(ConvertOptions(input=str(tmp_path / "in"), **(values | {"output": output})))


# --- going on


@pytest.mark.parametrize("format", WRITERS)
def test_a_corpus_is_read_on_from_any_document(tmp_path: Path, documents: list[list[int]], format: str) -> None:
    documents = [*documents[:120], *([[]] * 3 if format not in ("chunks", "megatron") else []), *documents[120:130]]
    WRITERS[format](tmp_path, documents, "uint16")
    corpus = open_corpus(tmp_path)
    for done in (0, 1, 49, 50, 61, 100, 121, 123, len(documents) - 1, len(documents)):
        batches = [batch for _, batch in corpus.documents((done, len(flat(documents[:done]))))]
        lengths = [length for batch in batches for length in batch.lengths.tolist()]
        assert lengths == [len(each) for each in documents[done:]], done
        assert [each for batch in batches for each in batch.tokens.tolist()] == flat(documents[done:]), done


def test_a_conversion_that_is_killed_goes_on_and_writes_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rng = np.random.default_rng(0)
    made = [[*rng.integers(8, 60_000, rng.integers(1, 400)).tolist(), EOS] for _ in range(500)]
    write_chunks(tmp_path / "in", made, "uint16")
    killed, quiet = tmp_path / "killed", tmp_path / "quiet"

    def command(output: Path) -> list[str]:
        sizes = ["--row-group-tokens", "1000", "--file-tokens", "2000"]
        return ["--input", str(tmp_path / "in"), "--output", str(output), *sizes]

    def finished() -> dict[str, int]:
        """The inodes of the parts that the journal names."""
        journal = killed / "_staging-run" / "journal.json"
        parts = json.loads(journal.read_bytes())["parts"] if journal.exists() else []
        return {part["name"]: (journal.parent / part["name"]).stat().st_ino for part in parts}

    program = [sys.executable, "-m", "parquet_loader.pretokenize.convert"]
    with subprocess.Popen([*program, *command(killed)]) as process:
        while len(finished()) < 3:  # of about fifty
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    before = list(finished().values())
    assert main(command(killed)) == 0
    after = [path.stat().st_ino for path in sorted(killed.glob("*.parquet"))]
    assert after[: len(before)] == before  # what was finished is not written again
    assert main(command(quiet)) == 0
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (killed, quiet)]
    assert contents[0] == contents[1]
    assert rows_of(quiet) == made


def test_a_corpus_that_changed_is_not_gone_on_with(tmp_path: Path, documents: list[list[int]]) -> None:
    (tmp_path / "in").mkdir()
    write_chunks(tmp_path / "in", documents, "uint16")
    options = ConvertOptions(input=str(tmp_path / "in"), output=str(tmp_path / "out"))
    convert(options)
    write_chunks(tmp_path / "in", documents[1:], "uint16")
    with pytest.raises(ConfigError, match=r"chunk_000000\.bin has changed: it had 17,878 bytes, and has 17,780; "):
        convert(options)
    convert(replace(options, overwrite=True))
    assert rows_of(tmp_path / "out") == documents[1:]
