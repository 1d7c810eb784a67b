"""Modules import one way, and a plain import brings nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import parquet_loader

PACKAGE = Path(parquet_loader.__file__).parent

# Each module may import those before it. `pretokenize` stands beside the loader and shares errors and storage.
ORDER = [
    "errors",
    "arguments",
    "locks",
    "thrift",
    "container",
    "chunk",
    "framing",
    "pages",
    "decode",
    "files",
    "local",
    "redact",
    "retry",
    "remote",
    "storage",
    "footer",
    "index",
    "order",
    "finish",
    "prefetch",
    "slices",
    "pack",
    "boundaries",
    "batch",
    "checkpoint",
    "stateful",
    "engine",
    "loader",
    "__init__",
    "testing",
    "devices",
    "handover",
    "sharing",
    "torch",
    "trainers",
]

# Those that may import torch.
TORCH = {"devices", "handover", "sharing", "torch", "trainers"}


def imports_of(path: Path) -> set[str]:
    """Modules of this package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "parquet_loader":
            found.add(([*node.module.split("."), "__init__"])[1])
        elif isinstance(node, ast.Import):
            found |= {
                ([*alias.name.split("."), "__init__"])[1]
                for alias in node.names
                if alias.name.startswith("parquet_loader")
            }
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_imports_only_those_before_it(path: Path) -> None:
    if path.stem == "__main__":
        return
    allowed = set(ORDER[: ORDER.index(path.stem)])
    assert imports_of(path) <= allowed


def test_importing_the_package_brings_nothing_heavy() -> None:
    heavy = {"torch", "s3fs", "tokenizers", "transformers", "datasets", "tqdm", "pandas", "fsspec.asyn", "botocore"}
    code = f"import sys, parquet_loader; print(sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert found.stdout.strip() == "[]"


def test_only_the_modules_behind_torch_py_import_torch() -> None:
    for path in PACKAGE.rglob("*.py"):
        names = {
            alias.name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {
            (node.module or "").split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and not node.level
        }
        assert "torch" not in names or path.stem in TORCH, path
