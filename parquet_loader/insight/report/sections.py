"""A run as the sections of a page: what `plan`, `inspect` and `describe` found, put into tables, charts and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...order.mixture import BLOCK
from ...order.progress import MixtureProgress
from ...printable import printable
from ...remarks import remarks
from ...runs import MixtureRun, SetRun
from ...sets import OpenSet
from ..describe import CheckpointDescription
from ..inspect import Inspection
from ..plan import Moment, Plan, SourcePlan, StagePlan
from ..ranks import WorldSizePlan
from ..sample import LengthSample, Quantile, Sampled
from . import charts
from .ink import amount
from .parts import Bar, Bars, Facts, Figure, Notes, Part, Section, Table, Text, Texts
from .windows import windows_and_lanes

__all__ = ["Subject", "head", "sections"]

_STRETCHES = 60  # of a run, about, in each of which shares are told
_PICTURES = 3  # of sources whose windows are drawn
_TEXTS = 12  # samples that are shown
_WHY = {"schedule": "by the schedule", "reweight": "reweighted", "exhausted": "a source was exhausted"}
_A_DECADE = 24  # bars of a histogram from one power of ten to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a page is about.

    Attributes:
        run: at its begin, or at the last checkpoint.
        plan: what it will do from there.
        inspections: of the sources, by name; the one set is called "".
        checkpoints: what they are called and what they hold, in the order of the run.
    """

    run: SetRun | MixtureRun
    plan: Plan
    inspections: Mapping[str, Inspection]
    checkpoints: Sequence[tuple[str, CheckpointDescription]]

    @property
    def sets(self) -> dict[str, OpenSet]:
        """The sources that are open, by name."""
        return self.run.sets

    @property
    def names(self) -> list[str]:
        """Of the sources, in the order of their colours."""
        return sorted(self.sets)

    @property
    def ranks(self) -> WorldSizePlan:
        """The first of the world sizes, of which more is said."""
        return self.plan.world_sizes[0]


def head(it: Subject) -> Facts:
    """The figures at the top."""
    plan, total = it.plan, sum(source.tokens for source in it.plan.sources)
    documents = sum(each.documents for each in it.inspections.values())
    groups = sum(each.row_groups for each in it.inspections.values())
    held = it.ranks.peak_bytes or it.ranks.least_bytes
    several = len(it.sets) > 1
    facts = [
        (
            "Tokens of all sources" if several else "Tokens of the set",
            amount(total),
            f"{_counted(documents, 'document')} in {_counted(groups, 'row group')}",
        ),
        (
            "Tokens of the run",
            amount(plan.end.token),
            f"{_counted(plan.end.step, 'step')} of {plan.lanes:,} × {plan.seq_len:,}",
        ),
        ("Epochs", f"{plan.end.token / total:.2f}", "of all sources together" if several else "of the set"),
        (
            "Memory of a rank",
            amount(held, "B"),
            f"{_counted(it.ranks.world_size, 'rank')}, budget {amount(it.run.options.budget_bytes, 'B')}",
        ),
    ]
    return Facts(facts=[("Sources", str(len(it.sets)), ""), *facts] if several else facts)


def sections(it: Subject) -> Iterator[Section]:
    """The sections of the page, in order."""
    yield _of_sets(it)
    yield _of_mixture(it, it.run) if isinstance(it.run, MixtureRun) else _of_run(it)
    yield _of_windows(it)
    yield _of_shuffle(it)
    yield _of_ranks(it)
    yield _of_samples(it)
    if it.checkpoints:
        yield _of_past(it)


# ── the sets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_sets(it: Subject) -> Section:
    found, configs = it.inspections, {name: opened.config for name, opened in it.sets.items()}
    rows = [
        [
            name or each.column,
            f"{each.files:,}",
            f"{each.row_groups:,}",
            f"{'about ' if each.is_stream else ''}{each.documents:,}",
            f"{each.tokens:,}",
            f"{each.column_bytes / max(1, each.tokens):.2f}",
            f"{each.tokens / max(1, each.documents):,.0f}",
            ", ".join(each.codecs),
            f"{each.ids.least:,} to {each.ids.most:,}" if each.ids else "none",
        ]
        for name, each in found.items()
    ]
    if len(rows) > 1:
        tokens, documents = (sum(getattr(each, what) for each in found.values()) for what in ("tokens", "documents"))
        rows.append(
            [
                "all",
                f"{sum(each.files for each in found.values()):,}",
                f"{sum(each.row_groups for each in found.values()):,}",
                f"{documents:,}",
                f"{tokens:,}",
                f"{sum(each.column_bytes for each in found.values()) / max(1, tokens):.2f}",
                f"{tokens / max(1, documents):,.0f}",
                "",
                "",
            ]
        )
    drawn = [
        charts.histograms("row-groups", "Tokens of row groups", _sizes(it), "tokens of a row group"),
        charts.histograms("documents", "Tokens of documents", _lengths(it), "tokens of a document"),
    ]
    read = sum(each.sampled_documents for each in found.values())
    exact = all(each.lengths is None or each.lengths.exact for each in found.values())
    note = (
        f"Lengths of documents: all of them, {read:,}."
        if exact
        else f"Lengths of documents: of a sample of {read:,}; a band beside a median is where it lies with 95 % "
        "confidence."
    )
    return Section(
        name="sets",
        title="The sets" if len(it.sets) > 1 else "The set",
        lead="What lies in the files. Tokens are without any EOS that is appended; bytes are those of the token "
        "column, compressed.",
        parts=[
            Table(
                caption="What the files hold",
                headers=[
                    "column" if it.names == [""] else "source",
                    "files",
                    "row groups",
                    "documents",
                    "tokens",
                    "bytes a token",
                    "tokens a document",
                    "compressed by",
                    "ids",
                ],
                rows=rows,
                total=len(rows) > 1,
            ),
            _places(it),
            Figure(
                charts=[each for each in drawn if each is not None],
                tables=[_table_of_sizes(it), *_table_of_lengths(it)],
                note=note,
            ),
            Notes(
                notes=list(remarks(configs, it.run.options, it.ranks.world_size)),
                none="No remarks: nothing costs this run time, memory or randomness that need not be.",
            ),
        ],
    )


def _sizes(it: Subject) -> list[charts.Histogram]:
    values = []
    for number, name in enumerate(it.names):
        logs = np.log10(np.maximum(it.sets[name].config.index.tokens, 1))
        low, high = int(np.floor(logs.min() * _A_DECADE)), int(np.floor(logs.max() * _A_DECADE)) + 1
        edges = np.arange(low, high + 1) / _A_DECADE
        counts, _ = np.histogram(logs, edges)
        middle = float(10 ** np.median(logs))
        values.append(
            charts.Histogram(
                name=name,
                number=number,
                edges=(10**edges).tolist(),
                heights=counts.tolist(),
                median=middle,
                interval=(middle, middle),
            )
        )
    return values


def _lengths(it: Subject) -> list[charts.Histogram]:
    values = []
    for number, name in enumerate(it.names):
        sample = it.inspections[name].lengths
        if sample is None:
            continue
        middle = next(each for each in sample.quantiles if each.share == 0.5)
        some = [each for each in sample.shares if each.most]  # what is empty has no place on a logarithmic axis
        if not some:
            continue
        edges = [some[0].least]
        while edges[-1] <= some[-1].least:
            edges.append(2 * edges[-1])
        of = {each.least: each.documents for each in some}
        values.append(
            charts.Histogram(
                name=name,
                number=number,
                edges=edges,
                heights=[of.get(edge, 0.0) for edge in edges[:-1]],
                median=float(middle.tokens),
                interval=(float(middle.low), float(middle.high)),
            )
        )
    return values


def _table_of_sizes(it: Subject) -> Table:
    rows = []
    for name in it.names:
        found = np.quantile(it.sets[name].config.index.tokens, [0, 0.1, 0.5, 0.9, 1])
        rows.append([name or "all", *(f"{each:,.0f}" for each in found)])
    return Table(
        caption="Tokens of row groups", headers=["source", "least", "10 %", "median", "90 %", "most"], rows=rows
    )


def _table_of_lengths(it: Subject) -> Iterator[Table]:
    samples = {name: found for name in it.names if (found := it.inspections[name].lengths) is not None}
    if samples:
        shares = [each.share for each in next(iter(samples.values())).quantiles]
        yield Table(
            caption="Tokens of documents: no longer than",
            headers=["source", *(f"{share:.0%}" for share in shares), "longest seen"],
            rows=[
                [name or "all", *(_quantile(each, sample) for each in sample.quantiles), f"{sample.longest:,}"]
                for name, sample in samples.items()
            ],
        )


def _quantile(it: Quantile, sample: LengthSample) -> str:
    return f"{it.tokens:,}" if sample.exact else f"{it.tokens:,} ({it.low:,} to {it.high:,})"


# ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_run(it: Subject) -> Section:
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


def _places(it: Subject) -> Table:
    """Where the sets lie, and what tells them from others."""
    rows = []
    for name in it.names:
        config = it.sets[name].config
        eos = "none" if config.eos_id is None else f"{config.eos_id:,}"
        rows.append([name or "the set", config.storage.root, config.index.column, config.index.fingerprint[:16], eos])
    headers = ["source", "where", "column", "fingerprint", "EOS appended"]
    return Table(caption="Where they lie", headers=headers, rows=rows, words=4, folded=True)


def _lead_of_run(it: Subject) -> str:
    plan = it.plan
    rows = f"{_counted(plan.lanes, 'row')} of {_counted(plan.seq_len, 'token')}"
    lead = f"What the run does in {_counted(plan.end.step, 'step')} of {rows}."
    return f"{lead} It ends there: {plan.over}." if plan.over else lead


def _of_mixture(it: Subject, run: MixtureRun) -> Section:
    plan = it.plan
    events = [
        charts.Event(token=source.exhausted.token, label=f"{source.name} has given its max_epochs", bad=True)
        for source in plan.sources
        if source.exhausted is not None
    ]
    if plan.begin.step:
        events.append(charts.Event(token=plan.begin.token, label=f"the run is here, at step {plan.begin.step:,}"))
    stages = [
        charts.Range(first=stage.begin.token, last=stage.end.token, label=_label(number, stage.by))
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
        headers=["source", *(_label(number, stage.by) for number, stage in enumerate(stages))],
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
        _WHY.get(stage.by, stage.by),
        f"{stage.begin.step:,}",
        f"{stage.begin.token:,}",
        scheduled,
        f"{steps:,}",
    ]


def _step(moment: Moment | None) -> str:
    return "–" if moment is None else f"{moment.step:,}"


def _label(number: int, by: str) -> str:
    return f"stage {number + 1}" + (", reweighted" if by == "reweight" else "")


# ── the order ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_windows(it: Subject) -> Section:
    largest = sorted(it.names, key=lambda name: -it.sets[name].config.order.total_tokens)[:_PICTURES]
    figures = []
    for number, name in enumerate(it.names):
        if name in largest:
            config = it.sets[name].config
            chart = windows_and_lanes(
                f"lanes-{number}",
                f"How row groups form windows, and windows lanes{f': {name}' if name else ''}",
                config.order,
                config.index.file,
                ranks=next((each.world_size for each in it.plan.world_sizes if each.world_size > 1), 1),
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


def _of_shuffle(it: Subject) -> Section:
    by_name = {source.name or "": source for source in it.plan.sources}
    known = [(number, name, by_name[name]) for number, name in enumerate(it.names) if name in by_name]
    shares = [(name or "the set", number, source.shuffle.share) for number, name, source in known]
    before = [
        (name or "the set", number, source.shuffle.shown_before)
        for number, name, source in known
        if source.shuffle.shown_before is not None
    ]
    windows = Table(
        caption="Windows",
        headers=[
            "source",
            "row groups",
            "tokens",
            "of the set",
            "rows of a lane",
            "draws of a batch",
            "in the row before",
        ],
        rows=[
            [
                name or "the set",
                f"{min(source.shuffle.window, source.shuffle.row_groups):,}",
                f"{source.shuffle.window_tokens:,}",
                f"{source.shuffle.share:.1%}",
                f"{source.shuffle.rows_of_window:,.1f}",
                f"{source.shuffle.draws:,}",
                "not known" if source.shuffle.shown_before is None else f"{source.shuffle.shown_before:.1%}",
            ]
            for _, name, source in known
        ],
    )
    cuts = Table(
        caption="How documents are cut in an epoch",
        headers=["source", "documents", "in a row", "in several rows", "cut by lanes"],
        rows=[
            [
                name or "the set",
                f"{source.cuts.documents:,}",
                f"{source.cuts.documents_in_a_row:,.1f}",
                f"{source.cuts.in_several_rows:.1%}",
                f"{source.cuts.cut_by_lanes:,.0f}",
            ]
            for _, name, source in known
            if source.cuts is not None
        ],
    )
    return Section(
        name="shuffle",
        title="Shuffle quality",
        lead="A window that is more of its set mixes better. A long document fills a lane's rows for a while: the less "
        "of a row's documents was in the row just before, the better. Figures are for documents of mean length.",
        parts=[
            Figure(
                charts=[
                    charts.percentages("window-shares", "Share of the set that a window is", shares),
                    *(
                        [charts.percentages("shown-before", "Tokens whose document was in the row just before", before)]
                        if before
                        else []
                    ),
                ],
                tables=[windows],
            ),
            *([cuts] if cuts.rows else []),
        ],
    )


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_ranks(it: Subject) -> Section:
    plans = it.plan.world_sizes
    budget = it.run.options.budget_bytes
    rows = [
        [
            f"{each.world_size:,}",
            f"{each.rows_least:,}"
            if each.rows_least == each.rows_most
            else f"{each.rows_least:,} or {each.rows_most:,}",
            amount(each.least_bytes, "B"),
            "–" if each.peak_bytes is None else amount(each.peak_bytes, "B"),
            amount(each.bytes_read, "B"),
            f"{each.reads:,}",
            f"{each.amplification:.2f}×",
            amount(each.rank_bytes, "B"),
            amount(each.first_batch.bytes, "B"),
        ]
        for each in plans
    ]
    dividing = ", ".join(f"{size:,}" for size in it.plan.dividing)
    scaled = [f"{each.world_size:,}" for each in plans if not each.exact]
    note = f"Reads are counted on some windows and scaled for {_listed(scaled)} ranks." if scaled else ""
    return Section(
        name="ranks",
        title="Memory and reads",
        lead="What the number of ranks changes; the order stays the same. Memory is what a rank comes to hold where "
        f"training is slower than loading. These numbers divide the lanes: {dividing}.",
        parts=[
            Figure(
                charts=[
                    charts.ranks(
                        "memory",
                        "Memory of a rank at most",
                        {each.world_size: float(each.peak_bytes or 0) for each in plans},
                        unit="B",
                        limit=(budget, "budget_bytes"),
                    ),
                    charts.ranks(
                        "reads",
                        "How often bytes are read, all ranks together",
                        {each.world_size: each.amplification for each in plans},
                        unit="×",
                    ),
                ],
                note=note,
            ),
            Table(
                caption=f"By world size, for {_counted(it.plan.steps, 'step')}",
                headers=[
                    "world size",
                    "rows of a rank",
                    "least budget",
                    "memory at most",
                    "read in all",
                    "requests",
                    "times",
                    "read by a rank",
                    "before its first batch",
                ],
                rows=rows,
            ),
            *_refusals(plans),
        ],
    )


def _refusals(plans: Sequence[WorldSizePlan]) -> Iterator[Notes]:
    found = [(_counted(each.world_size, "rank"), each.refused) for each in plans if each.refused is not None]
    if found:
        yield Notes(notes=found, none="")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _listed(texts: Sequence[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last


# ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_samples(it: Subject) -> Section:
    each_source = max(1, _TEXTS // max(1, len(it.inspections)))
    texts = [
        Text(
            source=name,
            where=f"document {sample.document:,} of row group {sample.row_group:,} of {sample.path}, "
            f"{sample.tokens:,} tokens",
            text=_sample(sample),
        )
        for name, each in it.inspections.items()
        for sample in each.samples[:each_source]
    ]
    decoded = any(sample.text is not None for each in it.inspections.values() for sample in each.samples)
    lead = "The beginnings of some documents" + (
        "." if decoded else ", as token ids: which tokenizer decodes them is not known."
    )
    return Section(
        name="samples",
        title="Samples",
        lead=lead if texts else "No document was read.",
        parts=[Texts(texts=texts)] if texts else [],
    )


def _sample(it: Sampled) -> str:
    text = " ".join(map(str, it.ids))
    if it.text is not None:
        text = printable(it.text)
    return f"{text} …" if it.tokens > len(it.ids) else text


# ── what was run ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_past(it: Subject) -> Section:
    _, last = it.checkpoints[-1]
    begun = [stage for stage in last.stages if stage.begun]
    stages = [
        charts.Range(first=low, last=high, label=label)
        for label, (low, high) in zip(
            [_label(number, stage.by) for number, stage in enumerate(begun)] or ["the run"],
            pairwise([*(stage.token for stage in begun), last.token] if begun else [0, last.token]),
            strict=True,
        )
    ]
    skips = [charts.Range(first=skip.token, last=skip.token + skip.tokens, label="skipped") for skip in last.skips]
    marks = [
        charts.Event(token=each.token, label=f"rows of {each.seq_len:,} tokens")
        for each in last.lengths
        if each.token  # those that a run begins with are no event
    ]
    marks += [charts.Event(token=each.token, label=name) for name, each in it.checkpoints]
    # Sources that have left the run come after those that are in it, which have the colours of other charts.
    left = sorted({source.name or "" for source in last.sources} - set(it.names))
    numbers = {name: number for number, name in enumerate([*it.names, *left])}
    most = int(np.ceil(max([1.0, *(source.epochs or 0 for source in last.sources)])))
    bars = [
        Bar(
            name=source.name or "the set",
            number=numbers[source.name or ""],
            share=(source.epochs or 0) / most,
            text=f"{source.epochs or 0:.2f} epochs, {amount(source.consumed)} tokens",
        )
        for source in last.sources
    ]
    skipped = sum(skip.tokens for skip in last.skips)
    return Section(
        name="past",
        title="What was run",
        lead="Where the run is by its checkpoints, and how it came there.",
        parts=[
            Facts(
                facts=[
                    ("Step", f"{last.step:,}", f"of {it.plan.end.step:,}"),
                    ("Tokens", amount(last.token), f"{last.token / max(1, it.plan.end.token):.1%} of the run"),
                    ("Skipped", amount(skipped), f"tokens, in {_counted(len(skips), 'place')}" if skips else "tokens"),
                ]
            ),
            *([Figure(charts=[charts.timeline(last.token, stages, skips, marks)])] if last.token else []),
            Bars(caption=f"Consumed of each source; a full bar is {_counted(most, 'epoch')}", bars=bars),
            _table_of_past(it, last),
        ],
    )


def _table_of_past(it: Subject, last: CheckpointDescription) -> Table:
    rows = [
        (stage.token, stage.step, f"stage {number}, {_WHY.get(stage.by, stage.by)}")
        for number, stage in enumerate(last.stages, 1)
        if stage.begun
    ]
    rows += [(each.token, each.step, f"rows of {_counted(each.seq_len, 'token')}") for each in last.lengths]
    rows += [(skip.token, skip.step, f"{_counted(skip.batches, 'step')} skipped") for skip in last.skips]
    rows += [(each.token, each.step, f"checkpoint {name}") for name, each in it.checkpoints]
    rows.sort(key=lambda row: row[0])
    return Table(
        caption="How it came there",
        headers=["what", "step", "token"],
        rows=[[what, f"{step:,}", f"{token:,}"] for token, step, what in rows],
    )
