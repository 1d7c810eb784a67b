"""The section of a page that tells how a run goes: of one set, or of a mixture, stage after stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from ...order.mixture import BLOCK
from ...order.progress import MixtureProgress
from ...runs import MixtureRun
from ..describe import why_words
from ..plan import Moment, SourcePlan, StagePlan
from . import charts
from .ink import amount
from .parts import Facts, Figure, Part, Section, Table
from .subject import Subject, counted, label

__all__ = ["of_mixture", "of_run"]

_STRETCHES = 60  # of a run, about, in each of which shares are told


def of_run(it: Subject) -> Section:
    """How a run of one set goes."""
    plan, (source,) = it.plan, it.plan.sources
    facts = [
        ("Steps", f"{plan.end.step:,}", f"of {plan.step_tokens:,} tokens each"),
        ("Tokens", f"{plan.end.token:,}", f"{source.drawn:,} of them the set's"),
        (
            "Epochs",
            f"{source.epochs:.2f}",
            f"the second begins at step {source.repeats.step:,}" if source.repeats else "no token comes twice",
        ),
    ]
    if plan.begin.step:
        facts.append(("Still to come", f"{plan.steps:,} steps", f"{amount(plan.tokens)} tokens"))
    return Section(
        name="run",
        title="The run",
        lead=_lead_of_run(it),
        parts=[Facts(facts=facts), _settings(it)],
    )


def _settings(it: Subject) -> Table:
    options = it.run.options
    given: dict[str, object] = {
        "seq_len": options.seq_len,
        "lanes": options.lanes,
        "seed": options.seed,
        "shuffle": options.shuffle,
        "eos_id": options.eos_id,
        "overlap": options.overlap,
        "budget_bytes": options.budget_bytes,
    }
    if isinstance(it.run, MixtureRun):
        given["exhausted"] = options.exhausted
    else:
        given |= {"epochs": options.epochs, "tail": options.tail}
    rows = [
        [name, "" if value is None else f"{value:,}" if type(value) is int else str(value)]
        for name, value in given.items()
    ]
    return Table(caption="Settings of the run", headers=["option", "value"], rows=rows, words=2, folded=True)


def _lead_of_run(it: Subject) -> str:
    plan = it.plan
    rows = f"{counted(plan.lanes, 'row')} of {counted(plan.seq_len, 'token')}"
    lead = f"What the run does in {counted(plan.end.step, 'step')} of {rows}."
    return f"{lead} It ends there: {plan.over}." if plan.over else lead


def of_mixture(it: Subject, run: MixtureRun) -> Section:
    """How a mixture goes: shares by stage, epochs of each source."""
    plan = it.plan
    events = [
        charts.Event(token=source.exhausted.token, label=f"{source.name} has given its max_epochs", bad=True)
        for source in plan.sources
        if source.exhausted is not None
    ]
    if plan.begin.step:
        events.append(charts.Event(token=plan.begin.token, label=f"the run is here, at step {plan.begin.step:,}"))
    stages = [
        charts.Range(first=stage.begin.token, last=stage.end.token, label=label(number, stage.by))
        for number, stage in enumerate(plan.stages)
    ]
    borders, curves = _course(it, run)
    by_name = {source.name or "": source for source in plan.sources}
    bars = [
        (name, number, by_name[name].epochs, by_name[name].max_epochs)
        for number, name in enumerate(it.names)
        if name in by_name
    ]
    parts: list[Part] = []
    if len(borders) > 1:
        parts.append(
            Figure(
                charts=[charts.shares(borders, curves, stages, events)],
                tables=[_table_of_stages(it)],
                note="Lines: achieved; dots: the target.",
            )
        )
    parts += [
        Figure(charts=[charts.epochs(bars)], tables=[_table_of_sources(plan.sources)]),
        Table(
            caption="Stages",
            headers=["stage", "why", "from step", "from token", "scheduled for", "steps"],
            words=2,
            rows=[_row_of_stage(number, stage) for number, stage in enumerate(plan.stages)],
        ),
        _settings(it),
    ]
    return Section(
        name="mixture",
        title="The mixture",
        lead=f"{_lead_of_run(it)} Rows are dealt out in blocks of {BLOCK} steps, and stages begin with one.",
        parts=parts,
    )


def _course(it: Subject, run: MixtureRun) -> tuple[list[float], list[charts.Curve]]:
    """The borders of stretches of a run, in tokens, and what the sources give in each."""
    end = run.advanced(it.plan.steps)
    assert isinstance(end, MixtureProgress)
    lattice = run.plan.lattice
    places = [end.at_row(row, lattice) for row in _stretches(it.plan.stages, end.row)]
    borders = [float(place.position * lattice.lanes) for place in places]
    targets = [_target(it.plan.stages, (low + high) / 2) for low, high in pairwise(borders)]
    curves = []
    for number, name in enumerate(it.names):
        achieved = (np.diff([place.consumed(name, lattice) for place in places]) / np.diff(borders)).tolist()
        target = [shares.get(name, 0.0) for shares in targets]
        curves.append(charts.Curve(name=name, number=number, target=target, achieved=achieved))
    return borders, curves


def _stretches(stages: Sequence[StagePlan], last: int) -> list[int]:
    """The steps at which stretches begin, and the last one ends: each lies in one stage, and is of whole blocks, since
    within a block shares are what its lanes happen to have had.
    """
    begins = []
    for stage in stages:
        first, blocks = stage.begin.step // BLOCK, -(-(stage.end.step - stage.begin.step) // BLOCK)
        pieces = min(blocks, max(1, round(_STRETCHES * blocks * BLOCK / last)))
        begins += [BLOCK * (first + number * blocks // pieces) for number in range(pieces)]
    return [*begins, last]


def _target(stages: Sequence[StagePlan], token: float) -> Mapping[str, float]:
    return next(stage.target for stage in reversed(stages) if stage.begin.token <= token)


def _table_of_stages(it: Subject) -> Table:
    stages = it.plan.stages
    return Table(
        caption="Shares by stage: what is asked for, and what comes",
        headers=["source", *(label(number, stage.by) for number, stage in enumerate(stages))],
        rows=[
            [
                name,
                *(
                    f"{stage.target[name]:.2%} → {stage.achieved[name]:.2%}" if name in stage.target else "–"
                    for stage in stages
                ),
            ]
            for name in it.names
        ],
    )


def _table_of_sources(sources: Sequence[SourcePlan]) -> Table:
    return Table(
        caption="By the end of the run",
        headers=[
            "source",
            "tokens",
            "asked for",
            "share",
            "epochs",
            "repeats from step",
            "max_epochs",
            "exhausted at step",
        ],
        rows=[
            [
                source.name or "",
                f"{source.drawn:,}",
                f"{source.target:.2%}",
                f"{source.achieved:.2%}",
                f"{source.epochs:.3f}",
                _step(source.repeats),
                f"{source.max_epochs:,}" if source.max_epochs else "–",
                _step(source.exhausted),
            ]
            for source in sources
        ],
    )


def _row_of_stage(number: int, stage: StagePlan) -> list[str]:
    scheduled = "–" if stage.scheduled is None else f"{stage.scheduled:,}"
    steps = stage.end.step - stage.begin.step
    return [
        f"stage {number + 1}",
        why_words(stage.by),
        f"{stage.begin.step:,}",
        f"{stage.begin.token:,}",
        scheduled,
        f"{steps:,}",
    ]


def _step(moment: Moment | None) -> str:
    return "–" if moment is None else f"{moment.step:,}"
