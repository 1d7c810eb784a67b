"""What the README and the docs show runs and leads somewhere; some pages run in tests of their own."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest
from snippets import DOCUMENTS, ROOT, run_snippets, snippets, write_corpus

ELSEWHERE = ("monitoring.md", "pretokenize.md")  # run in tests of their own
SHOWN = {path: snippets(path.read_text(), "python", "bash") for path in DOCUMENTS}


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if SHOWN[path] and path.name not in ELSEWHERE], ids=lambda path: path.name
)
def test_every_snippet_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    run_snippets(path, SHOWN[path])


def test_a_snippet_that_is_not_run_says_why() -> None:
    notes = {f"{path.name}:{block.line}": block.note for path in DOCUMENTS for block in SHOWN[path] if block.note}
    assert [place for place, note in notes.items() if not re.fullmatch(r"not run: .+", note)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_within_the_project_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_and_module_that_is_named_exists(path: Path) -> None:
    for target in re.findall(r"`((?:tests|tools|docs|parquet_loader)/[\w./-]+)`", path.read_text()):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("name", ["order", "mixture"])
def test_the_pictures_of_the_order_are_those_that_the_order_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    drawing = importlib.import_module(f"draw_{name}")
    assert "\n".join(drawing.draw()) in (ROOT / "docs" / "images" / f"{name}.svg").read_text()


def modules_with_examples() -> list[str]:
    paths = sorted((ROOT / "parquet_loader").rglob("*.py"))
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in paths
        if ">>> " in path.read_text() and path.name not in ("__init__.py", "dataset.py")  # whose examples need data
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_docstrings_are_right(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert not failed
