"""Sets of training rows, packed from documents."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_loader import ParquetLoader
from parquet_loader.cli.main import main as inspect_main
from parquet_loader.errors import ConfigError, DataError, StorageError
from parquet_loader.pretokenize import (
    Manifest,
    PretokenizeOptions,
    Progress,
    load_tokenizer,
    pretokenize,
    pretokenize_rank,
    verify_set,
)
from parquet_loader.pretokenize.cli import main
from parquet_loader.pretokenize.write.manifest import Packed

SEQ_LEN = 64
SMALL: dict[str, Any] = {
    "pack": "best-fit",
    "seq_len": SEQ_LEN,
    "pack_buffer_tokens": 3_000,
    "row_group_tokens": 2_000,
    "file_tokens": 5_000,
    "batch_bytes": 1_500,
}
Make = Callable[..., PretokenizeOptions]


class Stopped(Exception):
    """Stands for whatever ends a run."""


@pytest.fixture
def texts() -> list[str]:
    """Of all lengths up to three rows; some empty, some twice, one of exactly a row with its EOS."""
    rng = random.Random(0)
    made = ["".join(rng.choices("abcdefgh ", k=int(rng.expovariate(1 / 30)))) for _ in range(900)]
    return [*made, "x" * (SEQ_LEN - 1), "y" * SEQ_LEN, *made[:50]]


@pytest.fixture
def options(tmp_path: Path, jsonl: Callable[..., Path], texts: list[str]) -> Make:
    path = jsonl(texts)

    def make(output: str = "out", **changes: Any) -> PretokenizeOptions:
        values: dict[str, Any] = {"inputs": (str(path),), "tokenizer": "bytes", "append_eos": True, **SMALL} | changes
        return PretokenizeOptions(output=output if "://" in output else str(tmp_path / output), **values)

    return make


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def table_of(folder: Path) -> pa.Table:
    return pq.read_table(sorted(folder.glob("part-*.parquet")))


def pieces_of(folder: Path) -> list[bytes]:
    """The text of every piece, with a newline where its EOS is."""
    table, pieces = table_of(folder), []
    for ids, numbers in zip(table["tokens"].to_pylist(), table["document_ids"].to_pylist(), strict=True):
        for _, piece in groupby(zip(ids, numbers, strict=True), key=lambda each: each[1]):
            pieces.append(bytes(10 if token == 256 else token for token, _ in piece))
    return pieces


def expected_pieces(texts: list[str]) -> list[bytes]:
    documents = [text.encode() + b"\n" for text in texts]
    return [each[at : at + SEQ_LEN] for each in documents for at in range(0, len(each), SEQ_LEN)]


@pytest.mark.parametrize("tail", ["carry", "pad"])
def test_every_document_is_in_one_row_unless_it_is_longer(
    tmp_path: Path, options: Make, texts: list[str], tail: str
) -> None:
    manifest = pretokenize(options(pack_tail=tail)).manifest
    assert sorted(pieces_of(tmp_path / "out")) == sorted(expected_pieces(texts))
    lengths = [len(ids) for ids in table_of(tmp_path / "out")["tokens"]]
    assert max(lengths) == SEQ_LEN
    assert manifest.packed == Packed(
        documents=len(texts),
        cut_documents=sum(len(text) >= SEQ_LEN for text in texts),
        padding=SEQ_LEN * len(lengths) - sum(lengths),
    )
    assert (manifest.documents, manifest.rows) == (len(texts), len(lengths))
    assert len(manifest.files) > 5


def test_rows_of_real_text_are_full(
    tmp_path: Path, stdlib_texts: list[str], tokenizer_folder: Path, jsonl: Callable[..., Path]
) -> None:
    # Classes and functions of some modules, and whole modules: documents of mixed lengths.
    texts = [*stdlib_texts[:8], *(each for text in stdlib_texts[8:20] for each in text.split("\n\n\n") if each)]
    values: dict[str, Any] = {"inputs": (str(jsonl(texts)),), "tokenizer": str(tokenizer_folder)}
    apart = pretokenize(PretokenizeOptions(output=str(tmp_path / "apart"), append_eos=True, **values)).manifest
    packed = {"pack": "best-fit", "seq_len": 2048, "append_eos": True}
    manifest = pretokenize(PretokenizeOptions(output=str(tmp_path / "rows"), **packed, **values)).manifest
    assert manifest.packed is not None
    assert 100 * manifest.packed.padding <= manifest.rows * 2048
    lengths = [len(ids) for ids in table_of(tmp_path / "apart")["tokens"]]
    assert manifest.packed.cut_documents == sum(length > 2048 for length in lengths)
    assert manifest.tokens == apart.tokens
    pieces = [
        len(list(piece)) for row in table_of(tmp_path / "rows")["document_ids"].to_pylist() for _, piece in groupby(row)
    ]
    whole = [[2048] * (length // 2048) + [length % 2048] for length in lengths]
    assert sorted(pieces) == sorted(piece for each in whole for piece in each if piece)


def test_the_manifest_and_every_file_say_how_rows_were_packed(tmp_path: Path, options: Make) -> None:
    manifest = pretokenize(options()).manifest
    assert Manifest.from_json((tmp_path / "out/_manifest.json").read_text()) == manifest
    metadata = pq.read_metadata(tmp_path / "out/part-00000.parquet").metadata
    said = json.loads(metadata[b"parquet_loader.pretokenize"])
    assert said["packing"] == {
        "pack": "best-fit",
        "seq_len": SEQ_LEN,
        "tail": "carry",
        "buffer_tokens": 3_000,
        "boundaries": "document_ids",
    }
    assert said["aligned"] == {"document_ids": "int32"}


def test_a_run_that_is_stopped_again_and_again_writes_what_a_quiet_one_does(tmp_path: Path, options: Make) -> None:
    pretokenize(options("quiet", dedup=True, seen_hashes=str(tmp_path / "a"), write_seen_hashes=True))
    killed = {"dedup": True, "seen_hashes": str(tmp_path / "b"), "write_seen_hashes": True}
    for documents in (150, 200, 210, 320, 700):

        def stop(done: Progress, documents: int = documents) -> None:
            if done.documents > documents:
                raise Stopped

        with pytest.raises(Stopped):
            pretokenize(options("killed", **killed), progress=stop)
    summary = pretokenize(options("killed", workers=2, **killed | {"batch_bytes": 700}))
    assert summary.earlier_bytes > 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "quiet")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_pieces_that_were_carried_are_kept_for_the_last_two_files(tmp_path: Path, options: Make) -> None:
    def stop(done: Progress) -> None:
        if done.documents > 700:
            raise Stopped

    with pytest.raises(Stopped):
        pretokenize(options(), progress=stop)
    staging = tmp_path / "out/_staging-run"
    names = [part["name"] for part in json.loads((staging / "journal.json").read_text())["parts"]]
    assert len(names) > 2
    assert {each.name for each in staging.glob("*.carried")} == {f"{name}.carried" for name in names[-2:]}
    kept = staging / f"{names[-1]}.carried"
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"_staging-run/\d+\.parquet\.carried: .* Remove the folder that it is in"):
        pretokenize(options())
    kept.unlink()
    with pytest.raises(StorageError, match="Remove the folder that it was in"):
        pretokenize(options())
    shutil.rmtree(staging)
    pretokenize(options())
    assert not list((tmp_path / "out").glob("_staging*"))


def test_an_object_store_gets_the_same_rows(tmp_path: Path, memory_url: str, options: Make) -> None:
    here = pretokenize(options()).manifest

    def stop(done: Progress) -> None:
        if done.documents > 500:
            raise Stopped

    with pytest.raises(Stopped):
        pretokenize(options(f"{memory_url}/there"), progress=stop)
    assert pretokenize(options(f"{memory_url}/there")).manifest == here


def test_every_rank_packs_its_own_files(tmp_path: Path, texts: list[str], jsonl: Callable[..., Path]) -> None:
    files = [str(jsonl(texts[at::4], f"{at}.jsonl")) for at in range(4)]
    values: dict[str, Any] = {"inputs": files, "tokenizer": "bytes", "output": str(tmp_path / "ranks"), **SMALL}
    values |= {"append_eos": True, "world_size": 2}
    for rank in (0, 1):
        pretokenize_rank(PretokenizeOptions(rank=rank, **values))
    summary = pretokenize_rank(PretokenizeOptions(step="finish", **values))
    assert sorted(pieces_of(tmp_path / "ranks")) == sorted(expected_pieces(texts))
    verified = verify_set(str(tmp_path / "ranks"), load_tokenizer("bytes"))
    assert verified.manifest.packed is not None
    assert verified.manifest.packed.documents == len(texts)
    assert verified.manifest.packed.cut_documents == sum(len(text) >= SEQ_LEN for text in texts)
    assert summary.describe().count("are cut.") == 1


def test_the_loader_reads_the_rows(tmp_path: Path, options: Make, texts: list[str]) -> None:
    manifest = pretokenize(options()).manifest
    with ParquetLoader(
        tmp_path / "out", column="tokens", seq_len=manifest.tokens, lanes=1, shuffle=False, epochs=1, cache_dir=tmp_path
    ) as loader:
        (batch,) = list(loader)
    rows = table_of(tmp_path / "out")["tokens"].to_pylist()
    assert batch.tokens[0].tolist() == [token for row in rows for token in row]


def test_the_command_tells_how_full_rows_are_and_verifies_them(
    tmp_path: Path, jsonl: Callable[..., Path], texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--input", str(jsonl(texts)), "--tokenizer", "bytes", "--output", str(tmp_path / "out"), "--verify"]
    assert main([*arguments, "--append-eos", "--pack", "best-fit", "--seq-len", str(SEQ_LEN)]) == 0
    told = capsys.readouterr().out
    cut = sum(len(text) >= SEQ_LEN for text in texts)
    assert told.count(f"rows of up to {SEQ_LEN} tokens: ") == 2  # at the end of the run, and when verified
    assert told.count(f" % of the rows is left for padding, and {cut} documents (") == 2
    assert "Some rows:" in told


def test_inspect_tells_of_rows_and_wants_no_eos(
    tmp_path: Path, options: Make, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = pretokenize(options()).manifest
    assert inspect_main(["inspect", str(tmp_path / "out"), "--column", "tokens"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"documents {len(texts)}" in lines  # what the manifest says
    assert f"rows {manifest.rows}" in lines
    assert "EOS documents within rows end with 256 already: leave eos_id out" in lines


def rewritten(folder: Path, change: Callable[[list[list[int]]], None]) -> None:
    """The first file, with the numbers of its documents changed."""
    path = folder / "part-00000.parquet"
    table = pq.read_table(path)
    numbers = table["document_ids"].to_pylist()
    change(numbers)
    column = pa.array(numbers, table.schema.field("document_ids").type)
    table = table.set_column(1, table.schema.field("document_ids"), column)
    with pq.ParquetWriter(path, table.schema) as writer:
        entry = Manifest.from_json((folder / "_manifest.json").read_text()).files[0]
        step = -(-len(table) // entry.row_groups)
        for at in range(0, len(table), step):
            writer.write_table(table.slice(at, step))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda numbers: numbers[3].__setitem__(0, 1), "not numbered from 0"),
        (lambda numbers: numbers[3].__setitem__(-1, 9_999), "not numbered from 0"),
        (lambda numbers: numbers[3].__setitem__(slice(0, 2), [0, 0, 0]), "not as long as those of the tokens"),
    ],
)
def test_boundaries_that_are_wrong_are_found(
    tmp_path: Path, options: Make, change: Callable[[list[list[int]]], None], problem: str
) -> None:
    pretokenize(options())
    rewritten(tmp_path / "out", change)
    with pytest.raises(DataError, match=problem):
        verify_set(str(tmp_path / "out"), load_tokenizer("bytes"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pack": "worst-fit"}, "pack must be one of 'best-fit', got 'worst-fit'"),
        ({"pack_tail": "cut"}, "pack_tail must be one of 'carry', 'pad', got 'cut'"),
        ({"seq_len": None}, "pack='best-fit' needs seq_len"),
        ({"seq_len": 0}, "seq_len must be at least 1, got 0"),
        ({"pack_buffer_tokens": 63}, r"pack_buffer_tokens \(63\) must not be less than seq_len \(64\)"),
        ({"pack": None, "pack_buffer_tokens": 4_000_000}, "seq_len=64 needs pack='best-fit'"),
        ({"pack": None, "seq_len": None}, "pack_buffer_tokens=3000 needs pack='best-fit'"),
        ({"keep_columns": ("url",)}, "a row holds several: omit one of the two"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Make, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        options(**changes)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"seq_len": 65}, "packing.seq_len: was 64, is 65"),
        ({"pack_tail": "pad"}, "packing.tail: was 'carry', is 'pad'"),
        ({"pack_buffer_tokens": 3_001}, "packing.buffer_tokens: was 3000, is 3001"),
    ],
)
def test_a_set_that_was_packed_otherwise_is_refused_and_named(
    options: Make, changes: dict[str, Any], difference: str
) -> None:
    pretokenize(options())
    with pytest.raises(ConfigError, match=difference):
        pretokenize(options(**changes))
