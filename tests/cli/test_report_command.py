"""``parquet-loader report``."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader
from parquet_loader.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_set(tmp_path / "web", unique_groups([[[30, 40], [50]], [[60] * 20]]))
    write_set(tmp_path / "code", unique_groups([[[90] * 20], [[80] * 20]]))
    (tmp_path / "run.toml").write_text(
        "seq_len = 16\nlanes = 4\nweights = { web = 0.7, code = 0.3 }\n[source]\nweb = 'web'\ncode = 'code'\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_page_is_written_of_a_run_and_its_checkpoints(folder: Path, capsys: pytest.CaptureFixture) -> None:
    with ParquetLoader.from_toml("run.toml") as loader:
        for step in (5, 10):
            for _ in islice(loader, 5):
                pass
            (folder / f"step-{step}").write_bytes(loader.checkpoint())
    told = ["--tokens", "4e3", "--world-sizes", "1,4", "--checkpoint", "step-10", "step-5", "--title", "Run 7"]
    assert main(["report", "-o", "report.html", "--run", "run.toml", *told]) == 0
    page = (folder / "report.html").read_text()
    assert "<h1>Run 7</h1>" in page
    assert page.index("checkpoint step-5") < page.index("checkpoint step-10")
    assert capsys.readouterr().out == f"report.html: {len(page.encode()):,} bytes\n"


def test_samples_are_text_where_a_tokenizer_is_named(folder: Path, capsys: pytest.CaptureFixture) -> None:
    run = ["report", "-o", "report.html", "web", "--seq-len", "8", "--lanes", "2"]
    assert main(run) == 0
    page = (folder / "report.html").read_text()
    assert "as token ids: which tokenizer decodes them is not known" in page
    assert "0 1 2 3 4 5" in page
    assert main([*run, "--tokenizer", "bytes"]) == 0
    assert capsys.readouterr().err == ""
    assert "\\x00\\x01\\x02" in (folder / "report.html").read_text()


def test_programs_are_told_what_was_written(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["report", "-o", "report.html", "web", "--seq-len", "8", "--lanes", "2", "--json"]) == 0
    size = (folder / "report.html").stat().st_size
    assert json.loads(capsys.readouterr().out) == {"output": "report.html", "bytes": size}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--run", "run.toml", "--world-sizes", "1,x"], "must be 1 or more"),
        (["--run", "run.toml", "--tokenizer", "absent.json"], "absent.json"),
        (["--run", "run.toml", "--checkpoint", "absent"], "absent"),
        (["--run", "absent.toml"], "there is no absent.toml"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture, arguments: list[str], says: str
) -> None:
    try:
        status = main(["report", "-o", "report.html", *arguments])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert says in capsys.readouterr().err
    assert not (folder / "report.html").exists()
