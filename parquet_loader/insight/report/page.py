"""A run as one page of HTML that needs nothing else: `report`, and `write_report` to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ...checkpoint import read_state
from ...engine.config import EngineConfig
from ...errors import StorageError
from ...printable import printable
from ...runs import MixtureRun, SetRun
from ...storage.atomic import write_atomically
from ..describe import describe
from ..inspect import Inspection, inspect
from ..plan import plan
from ..sample import Decodes
from .ink import missing
from .sections import head, sections
from .subject import Subject

__all__ = ["report", "write_report"]


def report(
    run: SetRun | MixtureRun,
    *,
    tokens: int | None = None,
    world_sizes: Sequence[int] = (),
    checkpoints: Mapping[str, Mapping[str, Any]] | None = None,
    tokenizer: Decodes | None = None,
    title: str | None = None,
) -> str:
    """A run as one page of HTML, which loads nothing. The same arguments give the same page.

    Args:
        run: see `open_run`.
        tokens: how long the run is to be, from its beginning; None for the rest of the epoch, as for `plan`.
        world_sizes: to be compared; none for some that divide the lanes. What is said of one is said of the first.
        checkpoints: states of this run, by what they are called.
        tokenizer: decodes samples of documents; None shows their ids.
        title: of the page; None for the name of the set.

    Raises:
        ConfigError: an argument that cannot work; or jinja2 or matplotlib is missing.
        CheckpointError: a state that is none, or is of another run.
    """
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise missing("jinja2") from error
    descriptions = sorted(
        ((name, describe(state)) for name, state in (checkpoints or {}).items()), key=lambda each: each[1].position
    )
    before = run.saved()
    try:
        for state in (checkpoints or {}).values():
            run.read(read_state(state))  # refuses those of another run
        if checkpoints:
            last = max((read_state(state) for state in checkpoints.values()), key=lambda state: state.position)
            run.progress = run.read(last)
        subject = Subject(
            run=run,
            plan=plan(run, tokens=tokens, world_sizes=list(world_sizes) or None),
            inspections={name: _inspected(opened.config, tokenizer) for name, opened in run.sets.items()},
            checkpoints=descriptions,
        )
        top, shown = head(subject), [*sections(subject)]
    finally:
        run.restore(before)
    folder = resources.files(__package__)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8"))
    page = template.render(
        title=title or _title(run),
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        head=top,
        sections=shown,
    )
    return printable(page)  # names and samples may hold what turns text around, or is no character of a page


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


def _inspected(config: EngineConfig, tokenizer: Decodes | None) -> Inspection:
    index = config.index
    return inspect(config.storage, column=index.column, index=index, tokenizer=tokenizer, eos_id=config.eos_id)


def _title(run: SetRun | MixtureRun) -> str:
    if isinstance(run, SetRun):
        return run.set.config.storage.root.rstrip("/").rsplit("/")[-1] or "The set"
    return f"A mixture of {len(run.sets)} sources" if len(run.sets) > 1 else next(iter(run.sets))
