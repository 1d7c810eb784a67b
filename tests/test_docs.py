"""Every Python snippet of the README and the docs runs; a file's snippets share one namespace and one folder."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_snippet_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = path.read_text()
    namespace: dict[str, object] = {"__name__": "__main__"}
    for match in BLOCK.finditer(text):
        line = text[: match.start(1)].count("\n")
        exec(compile("\n" * line + match.group(1), str(path), "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_within_the_project_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_and_module_that_is_named_exists(path: Path) -> None:
    for target in re.findall(r"`((?:tests|tools|docs|parquet_loader)/[\w./-]+)`", path.read_text()):
        assert (ROOT / target).exists(), target


def test_the_picture_of_the_order_is_the_one_that_the_order_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import draw_order

    assert "\n".join(draw_order.draw()) in (ROOT / "docs" / "images" / "order.svg").read_text()


def modules_with_examples() -> list[str]:
    paths = sorted((ROOT / "parquet_loader").rglob("*.py"))
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in paths
        if ">>> " in path.read_text() and path.name not in ("__init__.py", "torch.py")  # whose examples need data
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_docstrings_are_right(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert not failed
