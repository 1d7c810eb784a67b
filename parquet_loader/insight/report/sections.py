"""A run as the sections of a page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...checkpoint import read_state
from ...engine.config import EngineConfig
from ...engine.cost import required_bytes
from ...engine.mixer import mixture_bytes
from ...errors import SourceExhaustedError
from ...order.mixture import BLOCK
from ...order.order import lane_range
from ...order.progress import MixtureProgress
from ...remarks import read_amplification, remarks
from ...runs import MixtureRun, SetRun
from ...sets import OpenSet
from . import charts
from .ink import amount
from .parts import Bar, Bars, Facts, Figure, Notes, Section, Table
from .windows import windows_and_lanes

__all__ = ["Subject", "head", "sections"]

_STRETCHES = 160  # of a run, in each of which shares are told
_PICTURES = 3  # of sources whose windows are drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A checkpoint: what it is called, its step and token, and how many tokens there had been of each source."""

    name: str
    step: int
    token: int
    given: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a page is about.

    Attributes:
        run: at its begin, or at the last checkpoint.
        tokens: of the whole run.
        world_sizes: to be compared.
        points: where the run has been, in order.
    """

    run: SetRun | MixtureRun
    tokens: int
    world_sizes: Sequence[int]
    points: Sequence[Point] = ()

    @property
    def sets(self) -> dict[str, OpenSet]:
        """The sources, by name; the one set is called ""."""
        return self.run.sets if isinstance(self.run, MixtureRun) else {"": self.run.set}

    @property
    def names(self) -> list[str]:
        """Of the sources, in the order of their colours."""
        return sorted(self.sets)

    @property
    def steps(self) -> int:
        """Of the run."""
        return self.tokens // (self.run.options.lanes * self.run.options.seq_len)


def points_of(run: SetRun | MixtureRun, states: Mapping[str, Mapping[str, Any]]) -> list[Point]:
    """Where states say that a run was, in order; the run is at the last of them then."""
    points = []
    for name, state in sorted(states.items(), key=lambda each: read_state(each[1]).position):
        run.progress = progress = run.read(read_state(state))
        token = progress.position * run.options.lanes
        given = (
            {each: int(of["tokens"]) for each, of in run.stats().items()}
            if isinstance(run, MixtureRun)
            else {"": token}
        )
        points.append(Point(name=name, step=progress.rows_before(progress.position), token=token, given=given))
    return points


def head(it: Subject) -> Facts:
    """The figures at the top."""
    options, sets = it.run.options, it.sets
    total = sum(each.config.order.total for each in sets.values())
    groups = sum(len(each.config.index) for each in sets.values())
    documents = sum(int(each.config.index.rows.sum()) for each in sets.values())
    size = it.world_sizes[0]
    facts = [
        (
            "Tokens of an epoch" if len(sets) == 1 else "Tokens of all sources",
            amount(total),
            f"{documents:,} documents in {groups:,} row groups",
        ),
        (
            "Tokens of the run",
            amount(it.tokens),
            f"{it.steps:,} steps of {options.lanes:,} × {options.seq_len:,} tokens",
        ),
        ("Epochs", f"{it.tokens / total:.2f}", "of all sources together" if len(sets) > 1 else "of the set"),
        (
            "Memory of a rank",
            amount(_memory(it, size), "B"),
            f"with {size:,} rank{'s' if size > 1 else ''}, of a budget of {amount(options.budget_bytes, 'B')}",
        ),
    ]
    if len(sets) > 1:
        facts.insert(0, ("Sources", str(len(sets)), ""))
    return Facts(facts=facts)


def sections(it: Subject) -> Iterator[Section]:
    """The sections of the page, in order."""
    yield _of_sets(it)
    if isinstance(it.run, MixtureRun):
        yield _of_mixture(it, it.run)
    yield _of_windows(it)
    yield _of_ranks(it)
    if it.points:
        yield _of_past(it)


def _of_sets(it: Subject) -> Section:
    rows, notes = [], []
    for name, opened in it.sets.items():
        index = opened.config.index
        tokens = int(index.tokens.sum())
        rows.append(
            [
                name or index.column,
                f"{len(index.files):,}",
                f"{len(index):,}",
                f"{int(index.rows.sum()):,}",
                f"{tokens:,}",
                f"{index.length.sum() / max(1, tokens):.2f}",
                f"{tokens / max(1, int(index.rows.sum())):,.0f}",
                f"{min(opened.config.order.window, len(index)):,}",
            ]
        )
        notes += [(name, remark) for remark in _remarks(it, name, opened.config)]
    indexes = [each.config.index for each in it.sets.values()]
    if len(rows) > 1:
        tokens, documents = (sum(int(getattr(i, what).sum()) for i in indexes) for what in ("tokens", "rows"))
        rows.append(
            [
                "all",
                f"{sum(len(i.files) for i in indexes):,}",
                f"{sum(map(len, indexes)):,}",
                f"{documents:,}",
                f"{tokens:,}",
                f"{sum(int(i.length.sum()) for i in indexes) / max(1, tokens):.2f}",
                f"{tokens / max(1, documents):,.0f}",
                "",
            ]
        )
    values = [(name, number, np.asarray(it.sets[name].config.index.tokens)) for number, name in enumerate(it.names)]
    sizes = charts.histograms("row-groups", "Tokens of row groups", values, "tokens of a row group")
    return Section(
        name="sets",
        title="The sets" if len(it.sets) > 1 else "The set",
        lead="What lies in the files, by their footers. Tokens are without any EOS that is appended; bytes are those "
        "of the token column, compressed.",
        parts=[
            Table(
                caption="What the files hold",
                headers=[
                    "source" if it.names != [""] else "column",
                    "files",
                    "row groups",
                    "documents",
                    "tokens",
                    "bytes a token",
                    "tokens a document",
                    "window",
                ],
                rows=rows,
                total=len(rows) > 1,
            ),
            Figure(charts=[sizes], tables=[_quantiles("Tokens of row groups", values)]),
            Notes(notes=notes, none="No remarks: nothing costs this run time, memory or randomness that need not be."),
        ],
    )


def _remarks(it: Subject, name: str, config: EngineConfig) -> tuple[str, ...]:
    options = it.run.options
    return remarks(
        config,
        seq_len=options.seq_len,
        overlap=options.overlap,
        world_size=it.world_sizes[0],
        tail=options.tail,
        mixed=bool(name),
    )


def _quantiles(caption: str, values: Sequence[tuple[str, int, Any]]) -> Table:
    rows = []
    for name, _, numbers in values:
        found = np.quantile(numbers, [0, 0.1, 0.5, 0.9, 1]) if len(numbers) else np.zeros(5)
        rows.append([name or "all", *(f"{each:,.0f}" for each in found)])
    return Table(caption=caption, headers=["source", "least", "10 %", "median", "90 %", "most"], rows=rows)


# ── the mixture ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """A mixture's run, in stretches: tokens at their borders, and what each source has given by then."""

    borders: list[float]
    given: dict[str, list[int]]
    targets: dict[str, list[float]]
    stages: list[charts.Range]
    events: list[charts.Event]


def _course(it: Subject, run: MixtureRun) -> _Course:
    options = run.options
    lanes = options.lanes
    # Stretches are of whole blocks: within a block, shares are what its lanes happen to have had.
    every = BLOCK * max(1, -(-it.steps // (BLOCK * _STRETCHES)))
    rows = [*range(0, it.steps, every), it.steps]
    progress = MixtureProgress(position=0, lengths=((0, options.seq_len),))
    borders: list[float] = [0]
    events: list[charts.Event] = []
    given: dict[str, list[int]] = {name: [0] for name in it.names}
    for before, after in pairwise(rows):
        try:
            progress = progress.advanced(after - before, run.plan)
        except SourceExhaustedError:
            low, high = 0, after - before
            while high - low > 1:
                middle = (low + high) // 2
                with contextlib.suppress(SourceExhaustedError):
                    progress.advanced(middle, run.plan)
                    low = middle
                    continue
                high = middle
            progress = progress.advanced(low, run.plan) if low else progress
            events.append(charts.Event(token=progress.position * lanes, label="the run ends: a source is exhausted"))
        if progress.position * lanes > borders[-1]:
            borders.append(progress.position * lanes)
            for name, values in given.items():
                had = progress.had(name, run.plan.lattice, 0, lanes)
                values.append(had * lanes if isinstance(had, int) else int(had.sum()))
        if events:
            break
    end = borders[-1]
    block = BLOCK * options.seq_len * lanes
    begins = [float(stage.block * block) for stage in progress.stages]
    stages = [
        charts.Range(first=low, last=high, label=_label(number, stage.by))
        for number, (stage, (low, high)) in enumerate(zip(progress.stages, pairwise([*begins, end]), strict=True))
    ]
    for one, other in pairwise(progress.stages):
        if other.by == "exhausted":
            gone = sorted({name for name, _ in one.weights} - {name for name, _ in other.weights})
            events.append(
                charts.Event(token=other.block * block, label=f"{' and '.join(gone)} has given its max_epochs")
            )
    targets: dict[str, list[float]] = {name: [] for name in it.names}
    for begun, ended in pairwise(borders):
        stage = progress.stages[max(0, int(np.searchsorted(begins, (begun + ended) / 2, side="right")) - 1)]
        total = sum(weight for _, weight in stage.weights)
        for name, shares in targets.items():
            shares.append(dict(stage.weights).get(name, 0) / total)
    return _Course(borders=borders, given=given, targets=targets, stages=stages, events=events)


def _of_mixture(it: Subject, run: MixtureRun) -> Section:
    course = _course(it, run)
    steps = np.diff(course.borders)
    curves = [
        charts.Curve(
            name=name,
            number=number,
            target=course.targets[name],
            achieved=(np.diff(course.given[name]) / steps).tolist(),
        )
        for number, name in enumerate(it.names)
    ]
    values = []
    rows = []
    end = course.borders[-1]
    for number, name in enumerate(it.names):
        opened, had = it.sets[name], course.given[name][-1]
        epochs = had / opened.config.order.total
        values.append((name, number, epochs, opened.max_epochs))
        rows.append(
            [
                name,
                f"{had:,}",
                f"{had / end:.2%}",
                f"{epochs:.2f}",
                f"{opened.max_epochs:,}" if opened.max_epochs else "no end",
            ]
        )
    shares = Table(
        caption="Shares by stage, achieved over the whole of it",
        headers=["source", *(stage.label for stage in course.stages)],
        rows=[[name, *(_share_in(course, name, stage) for stage in course.stages)] for name in it.names],
    )
    return Section(
        name="mixture",
        title="The mixture",
        lead=f"What the run draws of each source over {amount(end)} tokens. Rows are dealt out in blocks of {BLOCK} "
        "steps.",
        parts=[
            Figure(
                charts=[charts.shares(course.borders, curves, course.stages, course.events)],
                tables=[shares],
                note="Lines: achieved; dots: the target.",
            ),
            Figure(
                charts=[charts.epochs(values)],
                tables=[
                    Table(
                        caption="By the end of the run",
                        headers=["source", "tokens", "share", "epochs", "max_epochs"],
                        rows=rows,
                    )
                ],
            ),
        ],
    )


def _share_in(course: _Course, name: str, stage: charts.Range) -> str:
    low, high = (int(np.argmin(np.abs(np.array(course.borders) - token))) for token in (stage.first, stage.last))
    if high <= low:
        return "–"
    return f"{(course.given[name][high] - course.given[name][low]) / (course.borders[high] - course.borders[low]):.2%}"


# ── windows and ranks ────────────────────────────────────────────────────────────────────────────────────────────────


def _of_windows(it: Subject) -> Section:
    largest = sorted(it.names, key=lambda name: -it.sets[name].config.order.total)[:_PICTURES]
    figures = []
    for name in [name for name in it.names if name in largest]:
        config = it.sets[name].config
        chart = windows_and_lanes(
            f"lanes-{it.names.index(name)}",
            f"How row groups form windows, and windows lanes{f': {name}' if name else ''}",
            config.order,
            np.asarray(config.index.file),
            ranks=min([size for size in it.world_sizes if size > 1], default=1),
            seq_len=it.run.options.seq_len,
        )
        figures.append(Figure(charts=[chart]))
    more = f" The {_PICTURES} largest of {len(it.names)} sources are drawn." if len(it.names) > _PICTURES else ""
    return Section(
        name="windows",
        title="Windows and lanes",
        lead="Row groups that are shuffled together form a window, each lane gets one slice of it, and its steps come "
        f"in permuted order. Drawn from this index; the stronger a row group's colour, the later its file.{more}",
        parts=figures,
    )


def _memory(it: Subject, size: int) -> int:
    first, last = lane_range(size - 1, size, it.run.options.lanes)
    configs = {name: replace(each.config, first=first, last=last) for name, each in it.sets.items()}
    if isinstance(it.run, MixtureRun):
        return mixture_bytes(configs, it.run.progress, it.run.plan)
    return required_bytes(configs[""], configs[""].order.window)


def _of_ranks(it: Subject) -> Section:
    options = it.run.options
    memory = {size: float(_memory(it, size)) for size in it.world_sizes}
    reads = {size: _reads(it, size) for size in it.world_sizes}
    rows = [
        [
            f"{size:,}",
            f"{options.lanes / size:g}",
            "yes" if not options.lanes % size else "no",
            amount(memory[size], "B"),
            f"{reads[size]:.2f}×",
        ]
        for size in it.world_sizes
    ]
    return Section(
        name="ranks",
        title="Memory and reads",
        lead="What the number of ranks changes; the order stays the same. Reads are of all ranks together, as "
        "multiples of the bytes of an epoch.",
        parts=[
            Figure(
                charts=[
                    charts.ranks(
                        "memory",
                        "Least memory of a rank",
                        memory,
                        unit="B",
                        limit=(options.budget_bytes, "budget_bytes"),
                    ),
                    charts.ranks("reads", "Times that bytes are read", reads, unit="×"),
                ],
            ),
            Table(
                caption="By world size",
                headers=["world size", "rows of a rank", "divides lanes", "least memory", "reads"],
                rows=rows,
            ),
        ],
    )


def _reads(it: Subject, size: int) -> float:
    each = [
        (read_amplification(s.config.order, s.config.index.length, size), s.config.order.total)
        for s in it.sets.values()
    ]
    return sum(times * total for times, total in each) / sum(total for _, total in each)


# ── what was run ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_past(it: Subject) -> Section:
    run, last = it.run, it.points[-1]
    history = run.history()
    bars = []
    most = 1
    for name in it.names:
        epochs = last.given.get(name, 0) / it.sets[name].config.order.total
        most = max(most, int(np.ceil(epochs)))
    for number, name in enumerate(it.names):
        had = last.given.get(name, 0)
        epochs = had / it.sets[name].config.order.total
        text = f"{epochs:.2f} epochs, {amount(had)} tokens"
        bars.append(Bar(name=name or "the set", number=number, share=epochs / most, text=text))
    begun = [stage for stage in history["stages"] if stage["token"] < last.token] or [{"token": 0, "by": "schedule"}]
    ends = [*(stage["token"] for stage in begun[1:]), last.token]
    stages = [
        charts.Range(first=stage["token"], last=end, label=_label(number, stage["by"]))
        for number, (stage, end) in enumerate(zip(begun, ends, strict=True))
    ]
    tokens_of = {each["token"]: each["seq_len"] for each in history["seq_len"]}
    skips = [
        charts.Range(first=low * run.options.lanes, last=high * run.options.lanes, label="skipped")
        for low, high in run.progress.skips
    ]
    marks = [
        charts.Event(token=token, label=f"rows of {length:,} tokens from here")
        for token, length in tokens_of.items()
        if token
    ]
    marks += [charts.Event(token=point.token, label=point.name) for point in it.points]
    rows = [
        [
            f"checkpoint {point.name}",
            f"{point.step:,}",
            f"{point.token:,}",
            f"{sum(point.given.values()) / it.tokens:.1%} of the run",
        ]
        for point in it.points
    ]
    for kind in ("stages", "skips", "seq_len"):
        rows += [[_told(kind, each), f"{each['step']:,}", f"{each['token']:,}", ""] for each in history[kind]]
    rows.sort(key=lambda row: int(row[2].replace(",", "")))
    skipped = sum(high - low for low, high in run.progress.skips) * run.options.lanes
    return Section(
        name="past",
        title="What was run",
        lead="Where the run is by its checkpoints, and how it came there.",
        parts=[
            Facts(
                facts=[
                    ("Step", f"{last.step:,}", f"of {it.steps:,}"),
                    ("Tokens", amount(last.token), f"{last.token / it.tokens:.1%} of the run"),
                    ("Skipped", amount(skipped), f"tokens in {len(skips)} stretches" if skips else "nothing"),
                ]
            ),
            Figure(charts=[charts.timeline(max(it.tokens, last.token), stages, skips, marks)]),
            Bars(caption=f"Consumed of each source; a full bar is {most} epoch{'s' if most > 1 else ''}", bars=bars),
            Table(caption="How it came there", headers=["what", "from step", "from token", "reached"], rows=rows),
        ],
    )


def _label(number: int, by: str) -> str:
    return f"stage {number + 1}" if by == "schedule" else f"{number + 1} · {by}"


def _told(kind: str, each: Mapping[str, Any]) -> str:
    if kind == "skips":
        return f"{each['batches']:,} steps skipped"
    if kind == "seq_len":
        return f"rows of {each['seq_len']:,} tokens"
    total = sum(each["weights"].values()) or 1
    shares = ", ".join(f"{name} {weight / total:.1%}" for name, weight in each["weights"].items())
    return f"stage by {each['by']}: {shares}"
