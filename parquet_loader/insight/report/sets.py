"""The section of a page that tells what lies in the sets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...remarks import remarks
from ..sample import LengthSample, Quantile
from . import charts
from .parts import Figure, Notes, Section, Table
from .subject import Subject

__all__ = ["of_sets"]

_A_DECADE = 24  # bars of a histogram from one power of ten to the next


def of_sets(it: Subject) -> Section:
    """What lies in the files."""
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


def _places(it: Subject) -> Table:
    """Where the sets lie, and what tells them from others."""
    rows = []
    for name in it.names:
        config = it.sets[name].config
        eos = "none" if config.eos_id is None else f"{config.eos_id:,}"
        rows.append([name or "the set", config.storage.root, config.index.column, config.index.fingerprint[:16], eos])
    headers = ["source", "where", "column", "fingerprint", "EOS appended"]
    return Table(caption="Where they lie", headers=headers, rows=rows, words=4, folded=True)
