from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = {
    "convert_s",
    "disk_bytes",
    "tokens_per_s",
    "cores",
    "cpu_ns_per_token",
    "resume_s",
    "exact",
    "lost_tokens",
    "repeated_tokens",
    "distinct",
    "peak_bytes",
    "peak_own_bytes",
}
NO_RESUME = {"resume_s", "exact", "lost_tokens", "repeated_tokens", "distinct"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark pins processes to cores")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("benchmark") / "found"
    sizes = "--tokens 60_000 --unique-tokens 40_000 --groups 8 --mean-length 50 --seq-len 64 --lanes 4 --window 3"
    names = "parquet_loader-layout,pyarrow-decode,memcpy"
    command = [
        sys.executable,
        str(ROOT / "tools/benchmark/benchmark.py"),
        *sizes.split(),
        "--rounds",
        "1",
        "--epochs",
        "2",
    ]
    done = subprocess.run(
        [*command, "--loaders", names, "--output", str(output)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(output.with_suffix(".json").read_text())
    found["printed"] = done.stdout
    return found


def test_every_loader_has_every_figure(result: dict[str, Any]) -> None:
    for name, entry in result["loaders"].items():
        assert entry["error"] is None, name
        unknown = {key for key, value in entry["figures"].items() if value is None}
        assert set(entry["figures"]) == FIGURES
        assert unknown == (set() if name.startswith("parquet_loader") else NO_RESUME), name


def test_a_run_delivers_the_epochs_that_were_asked_for(result: dict[str, Any]) -> None:
    for entry in result["loaders"].values():
        assert all(run["tokens"] >= 2 * result["set"]["tokens"] for run in entry["runs"])


def test_the_loader_is_measured_to_resume_exactly(result: dict[str, Any]) -> None:
    figures = result["loaders"]["parquet_loader-layout"]["figures"]
    assert (figures["exact"], figures["lost_tokens"], figures["repeated_tokens"]) == (True, 0, 0)
    assert figures["distinct"] == 1


def test_the_table_has_a_line_for_every_loader(result: dict[str, Any]) -> None:
    for entry in result["loaders"].values():
        assert f"| {entry['title']} " in result["printed"]
