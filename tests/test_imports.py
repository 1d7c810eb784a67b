"""Imports point one way between folders, and a plain import brings nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import parquet_loader

PACKAGE = Path(parquet_loader.__file__).parent

# The way of the data, from the bottom up: each folder, or module beside the folders, may import those before it.
ORDER = [
    "starting",
    "errors",
    "advice",
    "printable",
    "notebooks",
    "interrupts",
    "turns",
    "blocks",
    "storage",
    "container",
    "order",
    "checkpoint",
    "formats",
    "index",
    "options",
    "engine",
    "documents",
    "batch",
    "remarks",
    "checks",
    "sets",
    "runs",
    "runfile",
    "insight",
    "loader",
    "__init__",
    "testing",
    "torch",
    "trainers",
    "cli",
    "__main__",
]

# Pretokenization stands beside the loader, and shares its errors, its storage, and what
# raw files say of themselves.
PRETOKENIZE_BELOW = {"starting", "errors", "interrupts", "storage", "container", "formats", "__init__"}
PRETOKENIZE_ORDER = [
    "extras",
    "sources",
    "tokenizers",
    "write",
    "select",
    "options",
    "names",
    "run",
    "cli",
    "process",
    "convert",
    "__init__",
    "__main__",
]

# What tells of sets shows them as text, by the tokenizers and manifests of those who write them.
USES_PRETOKENIZE = {"insight": {"tokenizers", "write"}}

# Those that may import torch.
TORCH = {"torch", "trainers"}


def module_of(path: Path) -> str:
    """A file's dotted name below the package; that of a folder is its ``__init__``."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(name: str) -> set[str]:
    """Modules of this package that a module imports, wherever in it."""
    here = ["parquet_loader", *name.split(".")]
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            wanted = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (here[: -node.level] if node.level else []) + (node.module.split(".") if node.module else [])
            wanted = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for path in wanted:
            if path[0] == "parquet_loader":
                inside = path[1:]
                tries = [inside, [*inside, "__init__"], inside[:-1], [*inside[:-1], "__init__"]]
                found.add(next(".".join(parts) for parts in tries if ".".join(parts) in MODULES))
    return found


def layer_of(name: str) -> str:
    """The folder, or the module beside the folders, that a module belongs to."""
    return name.split(".", maxsplit=1)[0]


PROGRAM = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from parquet_loader import ParquetLoader

ids = np.random.default_rng(0).integers(0, 60_000, 20_000).astype(np.int32)
ids[5_000:9_000] = ids[5_000:9_000:40].repeat(40)  # runs
offsets = pa.py_buffer(np.arange(0, 20_001, 50, dtype=np.int32))
lists = pa.Array.from_buffers(pa.list_(pa.int32()), 400, [None, offsets], children=[
    pa.Array.from_buffers(pa.int32(), len(ids), [None, pa.py_buffer(ids)])
])
table = pa.Table.from_arrays([lists], names=["tokens"])
for number, (rows, options) in enumerate([
    (40, {}), (400, {}), (40, {"use_dictionary": False}), (400, {"use_dictionary": False}),
    (400, {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}),
    (40, {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"}),
]):
    path = f"{sys.argv[1]}/{number}.parquet"
    pq.write_table(table, path, row_group_size=rows, **options)
    for eos_id in (None, 1):
        with ParquetLoader(path, seq_len=64, lanes=2, eos_id=eos_id, epochs=1, cache_dir=sys.argv[1]) as loader:
            for batch in loader:
                batch.documents()
print("pandas" in sys.modules)
"""


def test_loading_does_not_bring_pandas(tmp_path: Path) -> None:
    """Which takes 40 MB, and a second."""
    pytest.importorskip("pandas")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize("name", [name for name in MODULES if layer_of(name) != "pretokenize"])
def test_a_folder_imports_only_those_before_it(name: str) -> None:
    own = layer_of(name)
    allowed = {f"pretokenize.{each}" for each in USES_PRETOKENIZE.get(own, ())}
    targets = {target for target in imports_of(name) if ".".join(target.split(".")[:2]) not in allowed}
    assert {layer_of(target) for target in targets} <= set(ORDER[: ORDER.index(own) + 1])


@pytest.mark.parametrize("name", [name for name in MODULES if layer_of(name) == "pretokenize"])
def test_a_folder_of_pretokenize_imports_only_those_before_it(name: str) -> None:
    allowed = set(PRETOKENIZE_ORDER[: PRETOKENIZE_ORDER.index(name.split(".")[1]) + 1])
    for target in imports_of(name):
        if layer_of(target) == "pretokenize":
            assert target.split(".")[1] in allowed, target
        else:
            assert layer_of(target) in PRETOKENIZE_BELOW, target


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter({name: imports_of(name) for name in MODULES}).prepare()  # raises CycleError


def test_importing_the_package_brings_nothing_heavy() -> None:
    heavy = {"torch", "s3fs", "tokenizers", "transformers", "datasets", "tqdm", "pandas", "fsspec.asyn", "botocore"}
    code = f"import sys, parquet_loader; print(sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [name for name in MODULES if layer_of(name) not in TORCH])
def test_only_what_is_for_torch_imports_torch(name: str) -> None:
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] != "torch" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").split(".")[0] != "torch"


def test_the_command_brings_pretokenization_only_where_text_is_asked_for() -> None:
    code = "import sys, parquet_loader.cli; print('parquet_loader.pretokenize' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert found.stdout.strip() == "False"
