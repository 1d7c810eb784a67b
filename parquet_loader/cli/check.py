"""``parquet-loader check SOURCE...``: every byte of sets, the order of a run, a chain of checkpoints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigError, ParquetLoaderError
from ..insight.chain import ChainReport, check_chain
from ..insight.check import CheckReport, Place, check
from ..insight.opening import open_run
from ..insight.order_check import OrderReport, check_order
from .arguments import HelpFormatter, add_run, count, positive, run_of, saved_in, world_sizes
from .output import Progress, complain, print_json, say, table
from .sets import RUN_OPTIONS, sets_of

__all__ = ["add", "run"]

_DESCRIPTION = """\
Reads every byte of sets, on all cores, and lists what is wrong: damage,
counts and statistics that are not true, ids out of range, documents without EOS;
and documents that are the same as another. Each folder or URL is a set, and files
are one set together. A check may be interrupted, and goes on where it was; what it
found is kept, so that the next one sees whatever has changed since, byte by byte, in
files whose size and time are the same; of others it says that they are others. Of the
columns beside the tokens it verifies the page checksums, where the writer gave them;
of those that --aligned names also every value, and that there is one for each token.
With --packing rows every document must be a row of --seq-len and --overlap.

With --order it proves instead, from the index alone, which tokens a run gets, and
that each comes once an epoch; with --run and checkpoints it sees whether these are
of one run.
"""

_EXAMPLES = """\
examples:
  parquet-loader check data/web --eos-id 50256 --vocab-size 50257
  parquet-loader check --order data/web --seq-len 4096 --lanes 512 --world-sizes 64,128
  parquet-loader check --order --run run.toml --tokens 300e9
  parquet-loader check --run checkpoints/*/loader.bin
"""


def add(commands: Any) -> None:
    """Have the command's parser take this one."""
    parser = commands.add_parser(
        "check",
        help="read every byte of a set; prove the order of a run; see whether checkpoints are of one run",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
        conflict_handler="resolve",
    )
    add_run(parser)
    parser.add_argument(
        "--run",
        dest="run_files",
        nargs="+",
        metavar="FILE",
        help="a TOML file with the arguments of the run; or checkpoints, to see whether they are of one run",
    )
    parser.add_argument("--order", action="store_true", help="prove the order, and read no data")
    parser.add_argument(
        "--world-sizes",
        dest="world_sizes",
        type=world_sizes,
        default=(),
        metavar="R,...",
        help="with --order: numbers of ranks (all that divide)",
    )
    parser.add_argument("--tokens", type=count, help="with --order: of training that are planned")
    parser.add_argument("--no-duplicates", action="store_true", help="do not look for the same documents")
    parser.add_argument(
        "--column-only", action="store_true", help="read the token column alone, and no bytes of other columns"
    )
    parser.add_argument("--state", metavar="FILE", help="keeps what is done (a file in the cache folder)")
    parser.add_argument("--threads", type=positive, help="row groups looked at at once (one a core)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    files = given.run_files or []
    tomls = [each for each in files if each.endswith(".toml")]
    others = [each for each in files if each not in tomls]
    given.run_file = tomls[0] if tomls else None
    if len(tomls) > 1:
        raise ConfigError(f"--run takes one TOML file, and not {' and '.join(tomls)}")
    if tomls and any(Path(each).is_file() and not each.endswith(".parquet") for each in others):
        raise ConfigError(
            f"--run takes a TOML file, {tomls[0]}, or checkpoints, and not both; a SOURCE is named before --run"
        )
    if tomls:
        given.source = [*given.source, *others]
    elif files:
        if given.order or given.source:
            raise ConfigError("--run takes one TOML file with --order or a SOURCE; checkpoints are looked at alone")
        return _chain(files, given.json)
    return _order(given) if given.order else _sets(given)


# ── sets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _sets(given: argparse.Namespace) -> int:
    sets = sets_of(given, RUN_OPTIONS)
    if given.state is not None and len(sets) > 1:
        raise ConfigError("--state is of one set, and several are given: check them one by one, or leave it out")
    found: list[tuple[str, CheckReport]] = []
    errors: list[str] = []
    for each in sets:
        with Progress(each.name, "B", scale=True) as progress:
            try:
                report = check(
                    each.source,
                    **{name: value for name, value in each.options.items() if value is not None},
                    duplicates=not given.no_duplicates,
                    all_columns=not given.column_only,
                    state=given.state,
                    threads=given.threads,
                    processes=None,
                    progress=progress.show,
                )
            except ParquetLoaderError as error:
                errors.append(str(error) if len(sets) == 1 else f"{each.name}: {error}")
                continue
            except KeyboardInterrupt:
                progress.end()
                print("interrupted; the same command goes on where it was", file=sys.stderr)
                return 130
        found.append((each.name, report))
    if given.json:
        print_json(
            {"sets": [{"name": name, "ok": report.ok, "report": report} for name, report in found], "errors": errors}
        )
    elif found:
        say("\n\n".join("\n".join(_section(name, report, not given.column_only)) for name, report in found))
    for told in errors:
        complain(told)
    if errors:
        return 2
    return int(not all(report.ok for _, report in found))


def _section(name: str, report: CheckReport, all_columns: bool) -> Iterator[str]:
    faults = len(report.faults)
    yield f"{name}: " + ("nothing is wrong" if report.ok else f"{faults:,} fault{'s' if faults > 1 else ''}")
    yield ""
    yield table(_facts(report, all_columns))
    if report.faults:
        yield ""
        yield table(
            ([fault.kind, fault.path, fault.row_group, fault.problem] for fault in report.faults),
            ("fault", "file", "row group", ""),
        )
    if report.longest:
        yield ""
        yield "the longest documents"
        yield table([f"  {_shown(each)}", each.tokens] for each in report.longest[:5])
    if report.duplicates is not None and report.duplicates.examples:
        yield ""
        yield "the same documents, those that take most tokens first"
        yield table(([f"  {_shown(one)}", _shown(other), one.tokens] for one, other in report.duplicates.examples[:5]))
    for note in report.notes:
        yield ""
        yield f"note: {note}"


def _facts(report: CheckReport, all_columns: bool) -> Iterator[tuple[str, str]]:
    yield "files", f"{report.files:,}"
    yield (
        "row groups",
        f"{report.row_groups:,}"
        + (f", {report.continued:,} of them by an earlier check that was interrupted" if report.continued else ""),
    )
    yield "documents", f"{report.documents:,}" + (f", {report.empty:,} of them empty" if report.empty else "")
    yield "tokens", f"{report.tokens:,} in column {report.column!r}"
    if report.max_id is not None:
        yield "token ids", f"{report.min_id:,} to {report.max_id:,}"
    if report.ends is not None:
        yield f"documents with EOS {report.ends.eos_id}", _ends(report)
    if report.duplicates is not None:
        told = report.duplicates
        of = "" if told.every == 1 else f", of every {told.every}th document by content"
        yield "the same as another", f"{told.documents:,} documents, {told.tokens:,} tokens ({told.share:.2%}){of}"
    yield "read", f"{report.read_bytes:,} bytes"
    others = "of others the page checksums, where there are any" if all_columns else "others were not read"
    if report.format != "parquet":
        others = (
            "its counts and ids alone: such files have no checksums, and other damage shows only where an earlier "
            "check saw other bytes"
        )
    needs = [f"that {', '.join(report.needs.aligned)} have a value for each token"] if report.needs.aligned else []
    if report.needs.rows is not None:
        needs.append(f"that every document is a row of {report.needs.rows.described}")
    yield "verified", "; ".join([f"column {report.column!r}", *needs, others])


def _ends(report: CheckReport) -> str:
    ends = report.ends
    assert ends is not None
    if report.is_stream:
        return f"{ends.ending:,}, which it ends" + (
            f"; {ends.missing:,} end where a row group does" if ends.missing else ""
        )
    if not ends.missing:
        text = f"all end with it: leave eos_id={ends.eos_id} out, or they get two"
    elif not ends.ending:
        text = f"none ends with it: give the loader eos_id={ends.eos_id}"
    else:
        text = f"{ends.ending:,} end with it, {ends.missing:,} do not"
    text += f"; it comes {ends.inside:,} times elsewhere" if ends.inside else ""
    return text + (f"; {ends.doubled:,} end with two" if ends.doubled else "")


def _shown(place: Place) -> str:
    return f"{place.path}, row group {place.row_group}, document {place.document}"


# ── the order, and checkpoints ───────────────────────────────────────────────────────────────────────────────────


def _order(given: argparse.Namespace) -> int:
    source, options = run_of(given)
    report: OrderReport = check_order(open_run(source, options), tokens=given.tokens, world_sizes=given.world_sizes)
    if given.json:
        print_json({"ok": report.ok, **{name: getattr(report, name) for name in ("proved", "problems")}})
    else:
        for line in report.proved:
            say(f"proved: {line}")
        for line in report.problems:
            say(f"wrong: {line}")
    return int(not report.ok)


def _chain(files: list[str], as_json: bool) -> int:
    opened: dict[str, Any] = {}
    broken: list[str] = []
    for path in files:
        try:
            opened[path] = saved_in(path)
        except CheckpointError as error:
            broken.append(str(error))
    report = check_chain(opened)
    problems = [*broken, *report.problems]
    if as_json:
        print_json(
            {
                "ok": not problems,
                "links": report.links,
                "events": report.events,
                "problems": problems,
                "notes": report.notes,
            }
        )
    else:
        say("\n".join(_chain_words(report, problems)))
    return int(bool(problems))


def _chain_words(report: ChainReport, problems: list[str]) -> Iterator[str]:
    if report.links:
        rows = []
        for link in report.links:
            shown = link.names[0] + (f" and {len(link.names) - 1} more" if len(link.names) > 1 else "")
            whose = "" if link.world_size is None else f"{link.world_size:,} ranks"
            rows.append([link.step, link.token, whose, shown])
        yield table(rows, ("step", "token", "of", "checkpoint"))
    if report.events:
        yield ""
        yield table(([each.step, each.token, each.text] for each in report.events), ("step", "token", "what was done"))
    yield ""
    if not problems:
        all_go_on = "" if report.notes else ", each of which goes on where the one before it was"
        yield f"{len(report.links):,} checkpoints of one run{all_go_on}"
    for note in report.notes:
        yield f"note: {note}"
    for problem in problems:
        yield f"wrong: {problem}"
