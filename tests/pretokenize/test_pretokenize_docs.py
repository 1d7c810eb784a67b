"""What docs/pretokenize.md shows works as written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parquet_loader.pretokenize.cli import build_parser

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pretokenize.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_the_shell_snippets_work_one_after_the_other(tmp_path: Path, tool_env: dict[str, str]) -> None:
    environment = tool_env | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{tool_env['PATH']}"}
    assert len(blocks("bash")) == 6
    for block in blocks("bash"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
    counts = json.loads((tmp_path / "tokens" / "_manifest.json").read_text())
    assert counts["documents"] == 10  # of the set that replaced the first
    ranks = json.loads((tmp_path / "ranks" / "_manifest.json").read_text())
    assert (ranks["documents"], ranks["skipped"]["duplicates"]) == (20, 40)


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_snippet_works_by_itself(tmp_path: Path, tool_env: dict[str, str], block: str) -> None:
    subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        env=tool_env,
        check=True,
        capture_output=True,
        timeout=240,
    )


def test_every_option_is_explained() -> None:
    options = [name for action in build_parser()._actions for name in action.option_strings if name.startswith("--")]
    assert [name for name in options if name != "--help" and f"`{name}" not in PAGE] == []
