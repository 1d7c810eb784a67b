"""What docs/pretokenize.md shows works as written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from snippets import ROOT, run_snippets, snippets

from parquet_loader.pretokenize.cli import build_parser

PATH = ROOT / "docs" / "pretokenize.md"
PAGE = PATH.read_text(encoding="utf-8")


def test_the_snippets_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_snippets(PATH, snippets(PAGE, "python", "bash"))
    counts = json.loads((tmp_path / "tokens" / "_manifest.json").read_text())
    assert counts["documents"] == 10  # of the set that replaced the first
    ranks = json.loads((tmp_path / "ranks" / "_manifest.json").read_text())
    lines = (tmp_path / "corpus" / "code.jsonl").read_text().splitlines()[:20]
    unique = len({" ".join(json.loads(line)["text"].split()) for line in lines})  # of this Python's own sources
    assert (ranks["documents"], ranks["skipped"]["duplicates"]) == (unique, 60 - unique)


def test_every_option_is_explained() -> None:
    options = [name for action in build_parser()._actions for name in action.option_strings if name.startswith("--")]
    assert [name for name in options if name != "--help" and f"`{name}" not in PAGE] == []
