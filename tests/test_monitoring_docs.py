"""docs/monitoring.md runs, with what the trackers would get noted: they are large, and not needed for anything else."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from snippets import ROOT, run_snippets, snippets

Noted = dict[str, list[tuple[str, float]]]


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """What each tracker was given, by the calls that it takes."""
    found: Noted = {"tensorboard": [], "wandb": [], "prometheus": []}

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None: ...

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            found["tensorboard"].append((tag, scalar_value))

    class Run:
        def log(self, data: dict[str, float], *, step: int) -> None:
            found["wandb"] += data.items()

    class Gauge:
        def __init__(self, name: str, documentation: str) -> None:
            self.name = name

        def set(self, value: float) -> None:
            found["prometheus"].append((self.name, value))

    stand_in(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    stand_in(monkeypatch, "wandb", init=lambda *, project, mode: Run())
    stand_in(monkeypatch, "prometheus_client", Gauge=Gauge, start_http_server=lambda port: None)
    return found


def test_each_tracker_gets_every_number_at_every_step(
    noted: Noted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "monitoring.md"
    run_snippets(page, snippets(page.read_text(), "python", "bash"))
    for tracker, prefix in (("tensorboard", "loader/"), ("wandb", "loader/"), ("prometheus", "loader_")):
        names = [name.removeprefix(prefix) for name, _ in noted[tracker]]
        assert {"wait_seconds", "wait_storage_seconds", "ahead_batches", "tokens"} <= set(names), tracker
        assert all(names.count(name) == 20 for name in names)
        assert all(isinstance(value, (int, float)) for _, value in noted[tracker])


def test_the_page_names_each_number_of_waits() -> None:
    from parquet_loader.engine.config import CAUSES

    page = (ROOT / "docs" / "monitoring.md").read_text()
    for name in ("wait_seconds", "ahead_batches", "ahead_tokens", *(f"wait_{cause}_seconds" for cause in CAUSES)):
        assert f"`{name}`" in page
