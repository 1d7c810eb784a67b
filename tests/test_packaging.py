"""The wheel, installed into an environment of its own that has nothing else of this checkout."""

from __future__ import annotations

import ast
import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from snippets import ROOT, snippets, write_corpus
from unique_sets import unique_groups, write_set

import parquet_loader
from parquet_loader.pretokenize.extras import DISTRIBUTION

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def run(*command: object, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since setuptools leaves folders behind where it builds."""
    copy = tmp_path_factory.mktemp("checkout")
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("parquet_loader", "tests", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    run(*PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", "dist", ".", folder=copy)
    (path,) = (copy / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment where the wheel is installed, beside the packages that it needs."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder)
    interpreter = folder / "bin" / "python"
    site = Path(run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip())
    # What a .pth file names comes last, and its own .pth files, such as that of an editable install, are not read.
    (site / "others.pth").write_text("".join(f"{sysconfig.get_path(name)}\n" for name in ("purelib", "platlib")))
    run(*PIP, "--python", interpreter, "install", "--no-compile", "--no-deps", "--no-index", wheel, folder=folder)
    return interpreter


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = [path for path in (ROOT / "parquet_loader").rglob("*") if path.suffix in {".py", ".typed", ".css", ".html"}]
    assert names == {str(path.relative_to(ROOT)) for path in ours}


def test_name_and_version_are_those_that_the_package_tells(wheel: Path) -> None:
    told = metadata(wheel)
    assert (told["Name"], told["Version"]) == (DISTRIBUTION, parquet_loader.__version__)


def test_the_readmes_quick_start_runs_from_the_wheel(python: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path)
    text = (ROOT / "README.md").read_text()
    start = snippets(text[: text.index("\n## Training on many GPUs\n")], "python", "bash")
    program = "\n".join([*(block.code for block in start if block.language == "python"), "print(parquet_loader)"])
    told = run(python, "-W", "error", "-c", "import parquet_loader\n" + program, folder=tmp_path)
    assert str(python.parents[1]) in told
    (command,) = (block.code for block in start if block.language == "bash" and not block.note)
    run("bash", "-c", f'PATH={python.parent}:"$PATH"; {command}', folder=tmp_path)
    assert list((tmp_path / "tokens").glob("*.parquet"))


def test_the_command_is_installed(python: Path, tmp_path: Path) -> None:
    write_set(tmp_path / "set", unique_groups([[[3, 4]]]))
    for command in ([python.with_name("parquet-loader")], [python, "-m", "parquet_loader"]):
        assert "1 row groups" in run(*command, "index", "set", "--output", "index.msgpack", folder=tmp_path)


def test_an_install_that_a_message_names_finds_the_wheel_and_not_the_index(python: Path, tmp_path: Path) -> None:
    run(*PIP, "--python", python, "install", "--no-index", f"{DISTRIBUTION}[pretokenize]", folder=tmp_path)


def test_the_extra_that_a_message_names_brings_the_package(wheel: Path) -> None:
    brings: dict[str, set[str]] = {}
    for line in metadata(wheel).get_all("Requires-Dist"):
        if found := re.fullmatch(r'([\w-]+).*extra == "(\w+)"', line):
            brings.setdefault(found[2], set()).add(found[1])
    named = []
    for path in (ROOT / "parquet_loader").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_extra":
                package, extra = ([ast.literal_eval(argument) for argument in node.args] + ["pretokenize"])[:2]
                named.append((package, extra))
    assert named
    assert [(package, extra) for package, extra in named if package not in brings[extra]] == []
