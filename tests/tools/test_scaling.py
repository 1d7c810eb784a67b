from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TINY = ["--tokens", "32_768", "--rounds", "1", "--seconds", "0.05", "--row-groups", "100", "1_000", "--steps", "4"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads memory and scheduling from /proc")


@pytest.fixture(scope="module")
def scaling() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools" / "scaling"))
        import scaling
        import scaling_workers

        yield scaling
        assert scaling_workers.WORKERS


def in_process(worker: str, **arguments: Any) -> dict[str, Any]:
    import scaling_workers

    arguments = json.loads(json.dumps(arguments))
    found: dict[str, Any] = json.loads(json.dumps(scaling_workers.WORKERS[worker](**arguments)))
    return found


NAMES = ["threads", "documents", "row-groups", "lanes", "index", "world-size", "layouts", "politeness", "resume"]


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_size_of_each_gives_a_whole_table(
    name: str, scaling: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In this process, which a test can afford: starting a hundred others takes minutes.
    monkeypatch.setattr(scaling, "child", in_process)
    assert name in scaling.MEASUREMENTS
    scaling.main([name, *TINY, "--output", str(tmp_path)])
    found = json.loads((tmp_path / f"{name}.json").read_text())
    printed = capsys.readouterr().out
    assert found["tables"]
    for part in found["tables"]:
        assert part["rows"]
        assert all(len(row) == len(part["columns"]) for row in part["rows"])
        assert f"| {part['columns'][0]}" in printed
    for panel in found["panels"]:
        assert all(panel["series"].values())


def test_every_measurement_is_tested(scaling: Any) -> None:
    assert list(scaling.MEASUREMENTS) == NAMES


def test_a_worker_runs_in_a_process_of_its_own(scaling: Any, tmp_path: Path) -> None:
    from scaling_data import SetSpec, generate

    generate(tmp_path / "set", SetSpec(tokens=4096, group_tokens=1024, mean_length=50))
    found = scaling.child("decode", folder=str(tmp_path / "set"))
    assert found["cpu_ns"] > 0
    assert found["bytes"] > 0


def test_bytes_read_are_what_the_ranks_and_the_window_promise(
    scaling: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = scaling.Sizes(tokens=4096 * 64, rounds=1, seconds=0.1, row_groups=(10,), steps=1)
    found = scaling.world_size(sizes, tmp_path)
    for row in found["tables"][0]["rows"]:
        for place in (1, 3, 5):
            assert 1 <= float(row[place]) <= 1.05 * float(row[place + 1])


def test_the_document_has_a_place_for_every_result(scaling: Any, tmp_path: Path) -> None:
    import scaling_report

    text = (ROOT / "docs" / "performance.md").read_text()
    for name in NAMES:
        assert text.count(f"<!-- scaling: {name} -->") == 1
    result = {
        "name": "lanes",
        "title": "Lanes",
        "command": "the command",
        "machine": "the machine",
        "tables": [{"columns": ["lanes", "ns"], "rows": [["8", 1.234]]}],
        "panels": [],
        "notes": [r"A note with a \1 in it."],
    }
    document = tmp_path / "performance.md"
    document.write_text("before\n<!-- scaling: lanes -->\nold\n<!-- end -->\nafter\n<!-- end -->\n")
    (tmp_path / "lanes.json").write_text(json.dumps(result))
    (tmp_path / "unknown.json").write_text(json.dumps(result | {"name": "unknown"}))
    drawn: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling_report, "draw", lambda _, path: drawn.append(path))
        assert scaling_report.write_docs(tmp_path, document, tmp_path) == ["lanes"]
    assert [path.name for path in drawn] == ["performance-lanes.svg"]
    written = document.read_text()
    assert written.startswith("before\n<!-- scaling: lanes -->\n`the command` — the machine.\n")
    assert "| 8     | 1.23 |" in written
    assert r"A note with a \1 in it." in written
    assert written.endswith("![Lanes](images/performance-lanes.svg)\n<!-- end -->\nafter\n<!-- end -->\n")
    assert "old" not in written


def test_the_stages_of_a_row_groups_way_are_told_apart() -> None:
    command = [sys.executable, str(ROOT / "tools" / "stages" / "stages.py"), "--tokens", "8_000_000", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    lines = [line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[2:]]
    found = {stage.strip(): float(ns) for stage, ns in lines}
    assert {"read", "decompress", "levels", "values", "cut: move documents", "rows: copy"} <= set(found)
    assert found.pop("all") == pytest.approx(sum(found.values()), abs=0.01 * len(found))
    assert all(ns >= 0 for ns in found.values())
