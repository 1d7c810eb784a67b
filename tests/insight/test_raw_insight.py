"""What is told of raw files: documents of a stream are counted where they are read, and never guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_sets import flat, random_files, write_megatron, write_shards

from parquet_loader import ConfigError, ParquetLoader
from parquet_loader.cli.main import main
from parquet_loader.formats.raw import entries
from parquet_loader.insight import check, find, inspect, open_run, plan, show, which
from parquet_loader.options import LoaderOptions

EOS = 0
OPTIONS: dict[str, Any] = {"seq_len": 16, "lanes": 4, "seed": 2, "window": 2, "vocab_size": 500}


@pytest.fixture
def files() -> list[list[list[int]]]:
    return random_files(np.random.default_rng(21))


@pytest.fixture(params=["stream", "documents"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, files: list[list[list[int]]]) -> Path:
    if request.param == "stream":
        return write_shards(tmp_path / "set", files, eos_id=EOS)
    (tmp_path / "set").mkdir()
    for number, documents in enumerate(files):
        write_megatron(tmp_path / "set" / f"chunk_{number:06d}", [[each[:2], each[2:]] for each in documents])
    return tmp_path / "set"


def test_which_find_and_origins_tell_the_tokens_of_a_batch(folder: Path, files: list[list[list[int]]]) -> None:
    ended = {f"chunk_{number:06d}.bin": [[*each, EOS] for each in documents] for number, documents in enumerate(files)}
    with ParquetLoader(folder, **OPTIONS, eos_id=EOS) as loader:
        for step, batch in zip(range(4), loader, strict=False):
            rows: list[list[int]] = [[] for _ in range(OPTIONS["lanes"])]
            pieces = which(open_run(folder, LoaderOptions(**OPTIONS, eos_id=EOS)), step).pieces
            assert pieces == batch.origins()
            for piece in pieces:
                rows[piece.row] += ended[piece.file][piece.document][piece.start : piece.start + piece.tokens]
            assert rows == batch.tokens.tolist()
            some = pieces[step]
            places = find(open_run(folder, LoaderOptions(**OPTIONS, eos_id=EOS)), some.file, 0, some.document)
            assert places.tokens == len(ended[some.file][some.document])
            assert any(each.step == step and each.row == some.row for each in places.places)


def test_show_gives_the_ids_of_the_pieces(folder: Path) -> None:
    run = open_run(folder, LoaderOptions(**OPTIONS, eos_id=EOS))
    with ParquetLoader(folder, **OPTIONS, eos_id=EOS) as loader:
        batch = next(iter(loader))
    shown = show(run, 0)
    for row in shown.rows:
        assert [token for piece in row.pieces for token in piece.tokens.tolist()] == batch.tokens[row.row].tolist()
        assert all(piece.ends == (piece.tokens[-1] == EOS) for piece in row.pieces)


def test_a_document_that_is_not_there_is_refused(folder: Path, files: list[list[list[int]]]) -> None:
    run = open_run(folder, LoaderOptions(**OPTIONS, eos_id=EOS))
    with pytest.raises(ConfigError, match=f"has the documents 0 to {len(files[0]) - 1:,}, not 10000"):
        find(run, "chunk_000000.bin", 0, 10_000)


def test_check_counts_documents_and_finds_what_is_wrong(folder: Path, files: list[list[list[int]]]) -> None:
    report = check(folder, eos_id=EOS, vocab_size=500)
    assert report.documents == sum(map(len, files))
    assert not report.faults
    assert report.duplicates is not None
    most = max(flat(flat(files)))
    (fault,) = check(folder, eos_id=EOS, vocab_size=most).faults
    assert f"{flat(flat(files)).count(most)} ids are outside [0, {most})" in fault.problem
    is_stream = (folder / "meta.json").exists()
    if is_stream:
        told = check(folder, vocab_size=500)
        assert told.documents == len(files)
        assert any("give eos_id=0, as meta.json says" in note for note in told.notes)
        told = check(folder, vocab_size=500, eos_id=499)
        assert any("the id 499 ends no document" in note for note in told.notes)


def test_damage_is_found_where_it_is(folder: Path) -> None:
    name = "chunk_000000.bin" if (folder / "meta.json").exists() else "chunk_000000.idx"
    raw = (folder / name).read_bytes()
    (folder / name).write_bytes(raw[:-2])
    faults = check(folder).faults
    assert [(fault.kind, fault.path.split(".")[0]) for fault in faults] == [("unreadable", "chunk_000000")] * len(
        faults
    )
    assert faults


def test_where_row_groups_cut_documents_is_told_apart_from_documents_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entries, "GROUP_TOKENS", 25)
    write_shards(tmp_path / "set", [[[1] * 9] * 10], eos_id=EOS)
    report = check(tmp_path / "set", eos_id=EOS)
    assert report.ends is not None
    # Of the borders after 25, 50 and 75 tokens two lie within a document.
    assert (report.ends.ending, report.ends.missing, report.ends.example) == (10, 2, None)
    assert report.ok
    assert main(["check", str(tmp_path / "set"), "--eos-id", "0"]) == 0
    assert "10, which it ends; 2 end where a row group does" in capsys.readouterr().out


def test_an_eos_id_that_ends_nothing_is_a_problem(folder: Path) -> None:
    is_stream = (folder / "meta.json").exists()
    problems = inspect(folder, eos_id=499).problems
    assert any("the id 499 ends no document in" in each for each in problems) == is_stream
    assert not inspect(folder, eos_id=EOS).problems


def test_inspect_and_plan_do_not_guess_how_many_documents_there_are(folder: Path, files: list[list[list[int]]]) -> None:
    is_stream = (folder / "meta.json").exists()
    found = inspect(folder, eos_id=EOS)
    assert found.documents == sum(map(len, files))  # all row groups were read
    assert found.is_stream == is_stream
    assert found.lengths is not None
    assert found.lengths.longest == max(map(len, flat(files))) + is_stream
    run = open_run(folder, LoaderOptions(**OPTIONS, eos_id=EOS))
    (source,) = plan(run, steps=3).sources
    assert (source.cuts is None) == is_stream
    assert ("documents" in repr(run.set.config.index)) != is_stream


def test_the_commands_do_not_guess_it_either(
    folder: Path, files: list[list[list[int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    is_stream = (folder / "meta.json").exists()
    shared = ["--seq-len", "16", "--lanes", "4", "--eos-id", "0"]
    assert main(["inspect", str(folder), "--eos-id", "0"]) == 0
    assert (f"about {sum(map(len, files)):,}, where an id ends each" in capsys.readouterr().out) == is_stream
    assert main(["plan", str(folder), *shared, "--steps", "3"]) == 0
    shown = capsys.readouterr().out
    assert ("in several rows" in shown) != is_stream  # nor its explanation
    assert ("of raw ids are not known before they are read" in shown) == is_stream
    assert main(["check", str(folder), "--eos-id", "0"]) == 0
    shown = capsys.readouterr().out
    assert "leave eos_id" not in shown
    assert "do not" not in shown
    if is_stream:  # every file ends with EOS
        assert f"documents with EOS 0  {sum(map(len, files)):,}, which it ends\n" in shown
    assert main(["show", str(folder), *shared, "--step", "0"]) == 0
    assert "the files do not say which tokenizer wrote them" in capsys.readouterr().err
    assert main(["index", str(folder), "--output", str(folder.parent / "saved")]) == 0
    assert ("documents," in capsys.readouterr().out.splitlines()[-1]) != is_stream
