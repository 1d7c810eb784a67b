"""The ranks as Ray tasks, one of which loses its process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="there is no Ray for this Python")


def killed_one_task(process: subprocess.Popen[str], output: Path) -> bool:
    """Kill the process of a task that has finished a part; False when the run ends before."""
    while process.poll() is None:
        time.sleep(0.05)
        if not list(output.glob("_staging-rank-*/journal.json")):
            continue
        for child in psutil.Process(process.pid).children(recursive=True):
            try:
                title = " ".join(child.cmdline())
            except psutil.Error:
                continue
            if title.startswith("ray::pretokenize_rank"):
                os.kill(child.pid, signal.SIGKILL)
                return True
    return False


def test_a_task_that_is_killed_is_gone_on_with(tmp_path: Path, command: list[str], tool_env: dict[str, str]) -> None:
    texts = [f"{at} " * 40 for at in range(40_000)]
    (tmp_path / "in").mkdir()
    for at in range(4):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[at::4]]
        (tmp_path / "in" / f"{at}.jsonl").write_text("".join(lines))
    arguments = ["--input", "in", "--output", "out", "--tokenizer", "bytes", "--ray", "local", "--world-size", "4"]
    arguments += ["--row-group-tokens", "20_000", "--file-tokens", "100_000", "--batch-bytes", "20_000"]
    with subprocess.Popen(
        [*command, *arguments],
        cwd=tmp_path,
        env=tool_env | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert killed_one_task(process, tmp_path / "out")
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert f"Wrote {len(texts):,} documents" in out
    rows = [row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(path)["tokens"]]
    assert [bytes(row.as_py()).decode() for row in rows] == [text for at in range(4) for text in texts[at::4]]
