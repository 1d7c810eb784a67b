"""A run as one page of HTML that needs nothing else: `report`, and `write_report` to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ...errors import StorageError
from ...options import integer
from ...runs import MixtureRun, SetRun
from ...storage.atomic import write_atomically
from .ink import missing
from .sections import Subject, head, points_of, sections

__all__ = ["report", "write_report"]


def report(
    run: SetRun | MixtureRun,
    *,
    tokens: int | None = None,
    world_sizes: Sequence[int] = (),
    checkpoints: Mapping[str, Mapping[str, Any]] | None = None,
    title: str | None = None,
) -> str:
    """A run as one page of HTML, which loads nothing. The same arguments give the same page.

    Args:
        run: see `open_run`.
        tokens: how long the run is to be; None for an epoch, or for a mixture's schedule and as many tokens as all
            sources hold.
        world_sizes: to be compared; none for some that divide the lanes. What is said of one is said of the first.
        checkpoints: states of this run, by what they are called.
        title: of the page; None for the name of the set.

    Raises:
        ConfigError: an argument that cannot work; or jinja2 or matplotlib is missing.
        CheckpointError: a state that is none, or is of another run.
    """
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise missing("jinja2") from error
    lanes = run.options.lanes
    sizes = [integer("world_sizes", size, 1, lanes) for size in world_sizes] or _world_sizes(lanes)
    before = run.saved()
    try:
        points = points_of(run, checkpoints or {})
        whole = _whole(run) if tokens is None else integer("tokens", tokens, 1)
        subject = Subject(run=run, tokens=whole, world_sizes=sizes, points=points)
        shown = [*sections(subject)]
        top = head(subject)
    finally:
        run.restore(before)
    folder = resources.files(__package__)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        title=title or _title(run),
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        head=top,
        sections=shown,
    )


def write_report(path: str | os.PathLike[str], run: SetRun | MixtureRun, **how: Any) -> None:
    """Write a `report` to a local file, which appears once it is complete.

    Raises:
        StorageError: it cannot be written.
        ConfigError, CheckpointError: as `report`.
    """
    text = report(run, **how)
    try:
        write_atomically(Path(path), text.encode())
    except OSError as error:
        raise StorageError(f"cannot write the report {os.fspath(path)}: {error.strerror}") from error


def _title(run: SetRun | MixtureRun) -> str:
    if isinstance(run, SetRun):
        return run.set.config.storage.root.rstrip("/").rsplit("/")[-1] or "The set"
    return f"A mixture of {len(run.sets)} sources" if len(run.sets) > 1 else next(iter(run.sets))


def _world_sizes(lanes: int) -> list[int]:
    """Those that divide the lanes, from 1 on, six at most."""
    all_of_them = [size for size in range(1, lanes + 1) if not lanes % size]
    powers = [size for size in all_of_them if size & (size - 1) == 0]
    return (powers if len(powers) > 3 else all_of_them)[:6]


def _whole(run: SetRun | MixtureRun) -> int:
    """What a run's page is about where nobody says: an epoch, or the schedule and a quarter more."""
    if isinstance(run, MixtureRun):
        total = sum(each.config.order.total for each in run.sets.values())
        return max(total, run.plan.schedule[-1][0] * 5 // 4)
    return int(run.order.total) * (run.options.epochs or 1)
