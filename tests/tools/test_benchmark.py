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
SETS = [(20, 100), (20, 2000), (300, 100), (300, 2000)]

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


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("surface") / "found"
    sizes = "--lengths 20 300 --group-tokens 100 2_000 --cores 1 --tokens 4_000 --window-tokens 2_000"
    sizes += " --seconds 0.01 --rounds 1 --seq-len 64 --lanes 4"
    names = "parquet_loader,pyarrow-decode,parquet_loader-layout"
    command = [sys.executable, str(ROOT / "tools/benchmark/surface.py"), *sizes.split(), "--loaders", names]
    done = subprocess.run([*command, "--output", str(output)], capture_output=True, text=True, timeout=240, check=False)
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(output.with_suffix(".json").read_text())
    found["printed"] = done.stdout
    return found


def test_the_surface_has_what_reads_parquet_for_every_set_and_what_converts_for_every_length(
    surface: dict[str, Any],
) -> None:
    measured = {(cell["loader"], cell["mean_length"], cell["group_tokens"]) for cell in surface["cells"]}
    reads = {(name, *at) for name in ("parquet_loader", "pyarrow-decode") for at in SETS}
    assert measured == reads | {("parquet_loader-layout", length, None) for length in (20, 300)}
    assert all(cell["error"] is None and cell["figures"]["cpu_ns_per_token"] > 0 for cell in surface["cells"])


def test_a_run_of_the_surface_is_whole_epochs_of_what_works_ahead(surface: dict[str, Any]) -> None:
    for cell in surface["cells"]:
        if cell["loader"] == "parquet_loader":
            assert all(run["tokens"] >= cell["tokens"] for run in cell["runs"])


def test_the_surfaces_tables_have_a_line_for_every_length(surface: dict[str, Any]) -> None:
    for heading in ("CPU ns per token, 1 core:", "Million tokens per second, 1 core:"):
        lines = surface["printed"].split(heading)[1].strip().splitlines()
        assert [line.split("|")[1].strip() for line in lines[:4]] == ["documents of", "------------", "20", "300"]


def test_the_document_has_a_place_for_the_surface() -> None:
    assert (ROOT / "docs" / "performance.md").read_text().count("<!-- benchmark: surface -->\n") == 1
