"""``parquet-loader inspect SOURCE...``: what is in sets."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ..errors import ConfigError, ParquetLoaderError
from ..insight.candidates import Candidate, candidates, pretokenize_advice
from ..insight.inspect import Inspection, inspect
from ..insight.sample import LengthSample
from .arguments import HelpFormatter, count, eos_id
from .output import complain, one_line, print_json, say, table
from .sets import NamedSet, add_sets, sets_of

__all__ = ["add", "run"]

_SECTIONS = 3  # more sets are rows of a table
_SHOWN_IDS = 24
_SURE = 0.995  # of documents that end with one id: the others are not many


def add(commands: Any) -> None:
    """Have the command's parser take this one."""
    parser = commands.add_parser(
        "inspect",
        help="what is in a set: counts, layout, lengths of documents, ids, what to mend",
        description="Reads the footers of sets, and some row groups for what footers do not tell: how long\n"
        "documents are, how they begin and end. Of more than three sets it shows a table.",
        epilog="example:\n  parquet-loader inspect data/web data/code\n  parquet-loader inspect s3://bucket/unknown "
        "--column input_ids",
        formatter_class=HelpFormatter,
    )
    add_sets(parser)
    parser.add_argument("--run", dest="run_file", metavar="TOML", help="look at the sets of this run")
    parser.add_argument("--sample", type=count, default=32, metavar="N", help="row groups to read (%(default)s)")
    parser.add_argument(
        "--text", action="store_true", help="show documents as text, by the tokenizer that the files name"
    )
    parser.add_argument(
        "--tokenizer", metavar="NAME", help="show documents as text, by this one: a tokenizer.json, or a name"
    )
    parser.add_argument("--eos-id", type=eos_id, metavar="ID", help="ends the documents of raw files")
    parser.add_argument("--seed", type=count, default=0, help="of which are read (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    sets = sets_of(given)
    tokenizer: Any = "files" if given.text else None
    if given.tokenizer is not None:
        from ..insight.text import open_tokenizer

        tokenizer = open_tokenizer(given.tokenizer)
    found: list[tuple[NamedSet, Inspection | ParquetLoaderError]] = []
    for each in sets:
        options = {name: value for name, value in each.options.items() if name != "vocab_size"}
        try:
            told: Inspection | ParquetLoaderError = inspect(
                each.source,
                **options,
                tokenizer=tokenizer,
                sample_row_groups=given.sample,
                seed=given.seed,
                strict=False,
            )
        except ParquetLoaderError as error:
            told = error
        found.append((each, told))
    if given.json:
        print_json({"sets": [_as_json(each, told) for each, told in found]})
    elif len(found) > _SECTIONS:
        say(_table(found))
    else:
        sections = ["\n".join(_section(each, told)) for each, told in found]
        if any(sections):
            say("\n\n".join(section for section in sections if section))
    for each, told in found:
        if isinstance(told, ParquetLoaderError):
            complain(told if len(found) == 1 else f"{each.name}: {told}")
    if any(isinstance(told, ParquetLoaderError) for _, told in found):
        return 2
    return int(any(told.problems for _, told in found if isinstance(told, Inspection)))


def _as_json(each: NamedSet, told: Inspection | ParquetLoaderError) -> dict[str, Any]:
    if isinstance(told, Inspection):
        return {"name": each.name, "inspection": told}
    return {"name": each.name, "error": str(told), "columns": _columns(each, told)}


def _columns(each: NamedSet, error: ParquetLoaderError) -> tuple[Candidate, ...]:
    """The columns that there are, where the trouble is which of them."""
    if not isinstance(error, ConfigError):
        return ()
    try:
        options = {name: each.options[name] for name in ("storage_options", "format", "raw_dtype")}
        found = candidates(each.source, **options)
    except ParquetLoaderError:
        return ()
    return found if sum(column.is_tokens for column in found) != 1 or each.options["column"] is not None else ()


def _table(found: list[tuple[NamedSet, Inspection | ParquetLoaderError]]) -> str:
    headers = (
        "set",
        "files",
        "row groups",
        "documents",
        "tokens",
        "bytes/token",
        "mean",
        "median",
        "p99",
        "wrong",
        "remarks",
    )
    rows: list[list[object]] = []
    for each, told in found:
        if not isinstance(told, Inspection):
            rows.append([each.name, *[None] * (len(headers) - 3), "error", ""])
            continue
        middle = {each.share: each.tokens for each in told.lengths.quantiles} if told.lengths else {}
        rows.append(
            [
                each.name,
                told.files,
                told.row_groups,
                told.documents,
                told.tokens,
                told.column_bytes / max(1, told.tokens),
                round(told.tokens / max(1, told.documents)),
                middle.get(0.5),
                middle.get(0.99),
                str(len(told.problems)),
                str(len(told.remarks)),
            ]
        )
    return table(rows, headers)


def _section(each: NamedSet, told: Inspection | ParquetLoaderError) -> Iterator[str]:
    if not isinstance(told, Inspection):
        columns = _columns(each, told)
        if columns:
            yield f"{each.name}: which column?"
            yield ""
            rows = [
                [
                    column.name,
                    column.type,
                    f"{column.files:,} of {column.of:,}",
                    "may hold tokens" if column.is_tokens else "",
                    column.tokens,
                ]
                for column in columns
            ]
            yield table(rows, ("column", "type", "in files", "", "tokens in them"))
            yield ""
            lists = [column.name for column in columns if column.is_tokens]
            advice = pretokenize_advice(each.source, columns)
            if lists:
                yield f"Choose one with --column, for instance --column {lists[0]}"
            elif advice is not None:
                yield f"It holds text and no tokens: {advice}"
        return
    yield f"{each.name}: column {told.column!r}"
    yield ""
    yield table(_facts(told))
    if told.lengths is not None:
        yield ""
        yield from _lengths(told, told.lengths)
    if told.manifest is not None:
        yield ""
        yield "what it says of itself, by its manifest or its first file"
        yield table(_manifest(told.manifest))
    if told.samples:
        yield ""
        yield "some documents"
        for sample in told.samples:
            yield f"  {sample.path}, row group {sample.row_group}, document {sample.document}: {sample.tokens:,} tokens"
            begin = " ".join(map(str, sample.ids[:_SHOWN_IDS])) if sample.text is None else one_line(sample.text)
            shown = _SHOWN_IDS if sample.text is None else len(sample.ids)
            yield f"    {begin}{' ...' if sample.tokens > shown else ''}"
    for problem in told.problems:
        yield ""
        yield f"wrong: {problem}"
    for remark in told.remarks:
        yield ""
        yield f"note: {remark}"


def _facts(told: Inspection) -> Iterator[tuple[str, str]]:
    tokens = max(1, told.tokens)
    yield "files", f"{told.files:,}, {_bytes(told.file_bytes)}"
    yield "row groups", f"{told.row_groups:,}"
    spread = told.group_tokens
    yield "  tokens in each", f"{spread.least:,} to {spread.most:,}, median {spread.median:,}"
    spread = told.group_bytes
    yield "  bytes in each", f"{_bytes(spread.least)} to {_bytes(spread.most)}, median {_bytes(spread.median)}"
    yield "documents", _documents(told)
    yield "tokens", f"{told.tokens:,}"
    yield "bytes per token", f"{told.column_bytes / tokens:.2f}, of whole files {told.file_bytes / tokens:.2f}"
    yield "type", _shares(told.types, told.files, "files")
    yield "compression", _shares(told.codecs, told.row_groups, "row groups")
    if told.encodings:
        pages = sum(told.encodings.values())
        yield "encoding", _shares(told.encodings, pages, "pages looked at")
        yield "page version", _shares(told.page_versions, pages, "pages looked at")
        yield (
            "page checksums",
            {1.0: "yes", 0.0: "no"}.get(told.checksums or 0.0, f"of {told.checksums or 0:.0%} of pages"),
        )
    if told.ids is not None:
        known = "in all row groups" if told.ids.known == "index" else "in the sample; others may lie outside"
        text = f"{told.ids.least:,} to {told.ids.most:,} {known}"
        if told.ids.contradicted and told.ids.read is not None:
            low, high = told.ids.read
            text += f", by their footers, and {low:,} to {high:,} in what was read"
        yield "token ids", text
    for what, ids in (("begin", told.first_ids), ("end", told.last_ids)):
        if ids:
            yield f"documents {what} with", ", ".join(f"{number} ({share:.1%})" for number, share in ids[:3])
    yield "EOS", _eos(told)


def _documents(told: Inspection) -> str:
    if told.is_stream:
        return f"about {told.documents:,}, where an id ends each: the row groups that were read tell, with eos_id given"
    return f"{told.documents:,}" + (f", {told.empty:,} of them empty" if told.empty else "")


def _eos(told: Inspection) -> str:
    if told.is_stream:
        return "documents end with eos_id where it is given, which is among the ids"
    if not told.last_ids:
        return "not known: no document was read"
    manifest = told.manifest or {}
    packing = manifest.get("packing")
    if isinstance(packing, dict):
        if manifest.get("eos_appended"):
            return f"documents within rows end with {manifest.get('eos_id')} already: leave eos_id out"
        return f"no id is between the documents of a row; {packing.get('boundaries')} tells them apart"
    (last, share), (first, begins) = told.last_ids[0], told.first_ids[0]
    of = f"of {told.sampled_documents:,} documents read"
    if share >= _SURE and told.sampled_documents > 1:
        return f"documents end with {last} already ({share:.1%} {of}): leave eos_id out, or they get two"
    if begins >= _SURE and told.sampled_documents > 1:
        return f"documents begin with {first} ({begins:.1%} {of}), which parts them: eos_id is not needed for that"
    known = manifest.get("eos_id")
    which = "eos_id" if type(known) is not int else f"eos_id={known}, which the set says is its tokenizer's"
    return f"none that documents have in common ({last} ends {share:.1%} {of}): give {which}, so that they are parted"


def _lengths(told: Inspection, lengths: LengthSample) -> Iterator[str]:
    if lengths.exact:
        yield f"lengths of documents, in tokens: mean {lengths.mean:,.1f}, longest {lengths.longest:,}; all were read"
    else:
        groups = told.sampled_row_groups
        how = "95 % intervals" if groups > 1 else "95 % intervals that know nothing of other row groups"
        yield (
            f"lengths of documents, in tokens: mean {lengths.mean:,.1f} (of all), longest seen {lengths.longest:,}; "
            f"{told.sampled_documents:,} documents of {groups:,} of {told.row_groups:,} row groups were read, {how}"
        )
    rows = [
        [f"p{each.share * 100:g}", each.tokens, "" if lengths.exact else f"{each.low:,} to {each.high:,}"]
        for each in lengths.quantiles
    ]
    yield table(rows)
    yield ""
    yield table(
        (
            [
                f"{each.least:,} to {each.most:,}" if each.most > each.least else f"{each.least:,}",
                f"{each.documents:.1%}",
                f"{each.tokens:.1%}",
                "█" * round(40 * each.tokens),
            ]
            for each in lengths.shares
        ),
        ("tokens", "documents", "of all tokens", ""),
    )


def _manifest(found: Any) -> Iterator[tuple[str, str]]:
    tokenizer = found.get("tokenizer")
    if isinstance(tokenizer, dict):
        yield "  tokenizer", str(tokenizer.get("name"))
    for name in ("vocab_size", "eos_token", "eos_id", "eos_appended", "documents", "rows", "tokens", "text_bytes"):
        if name in found:
            value = found[name]
            yield f"  {name}", f"{value:,}" if type(value) is int and name != "eos_id" else str(value)
    for name in ("skipped", "lost", "packed"):
        values = found.get(name)
        if isinstance(values, dict) and any(values.values()):
            yield f"  {name}", ", ".join(f"{value:,} {key.replace('_', ' ')}" for key, value in values.items() if value)
    made = found.get("fingerprint")
    if isinstance(made, dict):
        dedup = made.get("dedup")
        yield "  deduplicated", f"by {dedup.get('hash')}" if isinstance(dedup, dict) else "no"
        source = made.get("source")
        if isinstance(source, dict):
            yield "  made of", _shortened(_source(source))


def _source(source: dict[str, Any]) -> str:
    files = source.get("files")
    if not isinstance(files, list):
        return ", ".join(f"{key} {value}" for key, value in source.items())
    names = [str(file.get("name")) for file in files if isinstance(file, dict)]
    kinds = " and ".join(map(str, source.get("kinds") or ()))
    return f"{len(files):,} files ({kinds}), column {source.get('text_column')!r}: {', '.join(names)}"


def _shortened(text: str) -> str:
    return text if len(text) <= 160 else text[:157] + "..."


def _shares(counts: Any, total: int, of: str) -> str:
    if len(counts) == 1:
        return str(next(iter(counts)))
    return ", ".join(f"{name} ({number:,} of {total:,} {of})" for name, number in counts.items())


def _bytes(number: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1000
    raise AssertionError
