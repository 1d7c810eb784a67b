"""Corpora that others have tokenized come out as they went in."""

from __future__ import annotations

import csv
import gzip
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ParquetLoader
from parquet_loader.errors import ConfigError, DataError, ParquetLoaderError, PathNotFoundError
from parquet_loader.pretokenize import PretokenizeOptions, Progress, pretokenize, pretokenize_rank
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


WRITERS: dict[str, Callable[[Path, list[list[int]], str], None]] = {
    "chunks": write_chunks,
    "megatron": write_megatron,
    "datatrove": write_datatrove,
    "dolma": write_dolma,
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
    convert(ConvertOptions(input=str(tmp_path / "in"), output=str(tmp_path / "out")))
    expected = [[*bpe.encode(text).ids, 0] for text in ("def f(): pass", "a b c", "x" * 50)]
    assert rows_of(tmp_path / "out") == expected


def test_chunks_without_meta_are_sorted_and_of_the_given_dtype(tmp_path: Path, documents: list[list[int]]) -> None:
    (tmp_path / "in").mkdir()
    write_chunks(tmp_path / "in", documents, "uint16", meta=False)
    with pytest.raises(ConfigError, match=r"has no meta\.json: say --dtype"):
        open_corpus(tmp_path / "in")
    with pytest.raises(ConfigError, match="--eos-id"):
        open_corpus(tmp_path / "in", options=TokenizedOptions(dtype="uint16"))
    corpus = open_corpus(tmp_path / "in", options=TokenizedOptions(dtype="uint16", eos_id=EOS))
    assert [each for batch in corpus.documents() for each in batch.tokens.tolist()] == flat(documents)


def test_values_for_all_chunks_may_stand_above_their_list(tmp_path: Path) -> None:
    np.array([1, 2, EOS, 3], "uint16").tofile(tmp_path / "chunk_000000.bin")
    meta = {"dtype": "uint16", "eos_token_id": EOS, "chunks": [{"file": "chunk_000000.bin", "tokens": 4}]}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    [*batches] = open_corpus(tmp_path).documents()
    assert [batch.lengths.tolist() for batch in batches] == [[3], [1]]  # the last one, nothing has ended


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
        ("parquet", lambda folder: cut(folder / "b.parquet", 20), DataError, "cannot be read"),
    ],
)
def test_a_corpus_that_is_damaged_is_named(
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
    with pytest.raises(error, match=message):
        convert(ConvertOptions(input=str(folder), output=str(tmp_path / "out"), vocab_size=60_000))
    assert not list((tmp_path / "out").glob("**/*")) if (tmp_path / "out").exists() else True


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def test_the_command_says_what_it_wrote_or_what_is_wrong(
    tmp_path: Path, documents: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    write_parquet(tmp_path, documents, "int32")
    arguments = ["--input", str(tmp_path / "a.parquet"), "--output", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "ids of 32 bits: say --vocab-size N" in capsys.readouterr().err
    assert main([*arguments, "--vocab-size", "100"]) == 2
    assert "is not of a vocabulary of 100" in capsys.readouterr().err
    assert main([*arguments, "--vocab-size", "60000"]) == 0
    assert capsys.readouterr().out.startswith("Wrote 100 documents")
    assert main([*arguments, "--vocab-size", "60000"]) == 2
    assert "is not empty" in capsys.readouterr().err
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
