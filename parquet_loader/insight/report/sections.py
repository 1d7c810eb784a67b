"""A run as the sections of a page: what `plan`, `inspect` and `describe` found, put into tables, charts and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ...printable import printable
from ...runs import MixtureRun
from ..describe import CheckpointDescription, why_words
from ..ranks import WorldSizePlan
from ..sample import Sampled
from . import charts
from .course import of_mixture, of_run
from .ink import amount
from .parts import Bar, Bars, Facts, Figure, Notes, Section, Table, Text, Texts
from .sets import of_sets
from .subject import Subject, counted, label
from .windows import windows_and_lanes

__all__ = ["head", "sections"]

_PICTURES = 3  # of sources whose windows are drawn
_TEXTS = 12  # samples that are shown


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
            f"{counted(documents, 'document')} in {counted(groups, 'row group')}",
        ),
        (
            "Tokens of the run",
            amount(plan.end.token),
            f"{counted(plan.end.step, 'step')} of {plan.lanes:,} × {plan.seq_len:,}",
        ),
        ("Epochs", f"{plan.end.token / total:.2f}", "of all sources together" if several else "of the set"),
        (
            "Memory of a rank",
            amount(held, "B"),
            f"{counted(it.ranks.world_size, 'rank')}, budget {amount(it.run.options.budget_bytes, 'B')}",
        ),
    ]
    return Facts(facts=[("Sources", str(len(it.sets)), ""), *facts] if several else facts)


def sections(it: Subject) -> Iterator[Section]:
    """The sections of the page, in order."""
    yield of_sets(it)
    yield of_mixture(it, it.run) if isinstance(it.run, MixtureRun) else of_run(it)
    yield _of_windows(it)
    yield _of_shuffle(it)
    yield _of_ranks(it)
    yield _of_samples(it)
    if it.checkpoints:
        yield _of_past(it)


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
                caption=f"By world size, for {counted(it.plan.steps, 'step')}",
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
    found = [(counted(each.world_size, "rank"), each.refused) for each in plans if each.refused is not None]
    if found:
        yield Notes(notes=found, none="")


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
            [label(number, stage.by) for number, stage in enumerate(begun)] or ["the run"],
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
                    ("Skipped", amount(skipped), f"tokens, in {counted(len(skips), 'place')}" if skips else "tokens"),
                ]
            ),
            *([Figure(charts=[charts.timeline(last.token, stages, skips, marks)])] if last.token else []),
            Bars(caption=f"Consumed of each source; a full bar is {counted(most, 'epoch')}", bars=bars),
            _table_of_past(it, last),
        ],
    )


def _table_of_past(it: Subject, last: CheckpointDescription) -> Table:
    rows = [
        (stage.token, stage.step, f"stage {number}, {why_words(stage.by)}")
        for number, stage in enumerate(last.stages, 1)
        if stage.begun
    ]
    rows += [(each.token, each.step, f"rows of {counted(each.seq_len, 'token')}") for each in last.lengths]
    rows += [(skip.token, skip.step, f"{counted(skip.batches, 'step')} skipped") for skip in last.skips]
    rows += [(each.token, each.step, f"checkpoint {name}") for name, each in it.checkpoints]
    rows.sort(key=lambda row: row[0])
    return Table(
        caption="How it came there",
        headers=["what", "step", "token"],
        rows=[[what, f"{step:,}", f"{token:,}"] for token, step, what in rows],
    )
