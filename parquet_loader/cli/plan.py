"""``parquet-loader plan``: what a run will do, on any number of ranks, and what a change of it does."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..insight.changes import Resumption, resumption
from ..insight.mixing import Cuts
from ..insight.opening import open_run
from ..insight.plan import Moment, Plan, SourcePlan, StagePlan, plan
from .arguments import HelpFormatter, add_checkpoint, add_run, count, run_of, saved_in, world_sizes
from .output import print_json, say, table

__all__ = ["add", "run", "words_of"]

_EXAMPLES = """\
examples:
  parquet-loader plan --run run.toml --tokens 300e9 --world-sizes 8,16,64
  parquet-loader plan tokens/ --seq-len 2048 --lanes 512

  what becomes of a run with what run.toml says now, before a GPU is taken:
  parquet-loader plan --run run.toml --checkpoint step-1000/loader.bin --world-sizes 6"""

_WIDTH = 120  # of tables
_MOST_IN_A_LINE = 4  # sources of a stage
_MOST_OF_A_PATH = 72  # characters, its last

_NOTES = """\
memory     about the most that a rank's loader holds where training is slower than loading; it may be more where it is
           not, and is never more than budget_bytes
budget     the least budget_bytes with which it runs
read       from storage until the end of the plan, by all ranks and by the one that reads most
times      bytes read to those of the tokens: ranks need parts of the same row groups, and short gaps between them are
           read along
at first   what rank 0 reads before its first batch, also after a resume from here; its tokens: of these row groups"""

_OF_CUTS = """\
in a row           documents and pieces of them, about
in several rows    documents that are cut by the end of a row, if all were of mean length
cut by lanes       documents that lie in two lanes, of each epoch"""

_NOT_COUNTED = """\
documents          of raw ids are not known before they are read, nor how rows cut them: `parquet-loader inspect` with
                   --eos-id tells about how many there are, and how long they are"""

_OF_WINDOWS = """\
tokens of a window that are shuffled together, and which share of the set they are
rows of it         of a lane: all rows of a document come within these
draws              places of the set that a batch has documents from
seen a row before  tokens whose document was in their lane's row just before"""


def add(commands: Any) -> None:
    """Have the command's parser take this one."""
    parser = commands.add_parser(
        "plan",
        help="what a run will do: steps, stages, memory, reads; and what a change does",
        description="Tells from the index alone how a run goes on from its beginning, or from a checkpoint: steps, "
        "epochs and shares of each source, when one runs out, where stages begin, how documents are cut and shuffled; "
        "and for numbers of ranks memory and reads. With a checkpoint also whether the run, as it is described now, "
        "goes on from it, and what is otherwise then; where it would be refused the exit status is 1.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    far = parser.add_argument_group("how far", "counted from the run's beginning; without either, to an epoch's end")
    far.add_argument("--tokens", type=count, help="such as 300e9")
    far.add_argument("--steps", type=count, help="batches")
    parser.add_argument(
        "--world-sizes",
        type=world_sizes,
        metavar="RANKS",
        help="such as 8,16,64 (some powers of two that divide the lanes)",
    )
    parser.add_argument(
        "--exact", action="store_true", help="count reads for every window of a long run, in place of scaling from some"
    )
    add_checkpoint(parser, "where the run is")
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    saved = None if given.checkpoint is None else saved_in(given.checkpoint)
    source, options = run_of(given, None if saved is None else saved.state, as_a_loader=True)
    opened = open_run(source, options)
    resumed = None if saved is None else resumption(opened, saved, world_sizes=given.world_sizes or ())
    planned, part = None, None
    if saved is not None and saved.rank is not None and saved.world_size is not None:
        part = saved.rank, saved.world_size
    if resumed is None or resumed.refused is None:
        planned = plan(
            opened,
            tokens=given.tokens,
            steps=given.steps,
            world_sizes=given.world_sizes,
            exact=given.exact,
            part=part,
        )
    sizes = () if planned is None else planned.world_sizes
    # One that was not asked for may be refused without anything being wrong.
    refused = [each.refused is not None for each in sizes]
    wrong = planned is None or (any(refused) if given.world_sizes is not None else bool(refused) and all(refused))
    if given.json:
        print_json({"resume": resumed, "plan": planned})
    else:
        say("\n".join([*_resumption(resumed, part), *([] if planned is None else words_of(planned))]))
    return 1 if wrong else 0


def _resumption(found: Resumption | None, part: tuple[int, int] | None) -> Iterator[str]:
    if found is None:
        return
    if found.refused is not None or found.begin is None:
        yield f"refused: {found.refused}"
        return
    yield (
        f"goes on at step {found.begin.step:,}, token {found.begin.token:,}: {found.repeated:,} tokens repeated, "
        f"{found.skipped:,} skipped"
    )
    for change in found.changes or ("nothing that a checkpoint keeps is otherwise from there on",):
        yield f"  {change}"
    shown = ", ".join(f"{name} {_given(value)}" for name, value in found.not_kept.items())
    yield f"  a checkpoint does not keep these, which hold as they are given now, whatever they were: {shown}"
    if part is not None:
        yield (
            f"  this is the part of rank {part[0]} of {part[1]}: only that rank of as many takes it; "
            "merge_checkpoints makes one of all parts that any number of ranks takes"
        )
    yield ""


def _given(value: Any) -> str:
    """A value that a checkpoint does not keep."""
    if isinstance(value, Mapping):
        some = [f"{name} {each}" for name, each in value.items() if each is not None]
        others = [f"{'others ' if some else ''}without end"] if len(some) < len(value) else []
        return f"({', '.join(some + others)})"
    return "without end" if value is None else str(value)


def words_of(found: Plan) -> Iterator[str]:
    """A plan as people read it, in paragraphs and tables no wider than 120 columns."""
    mixed, several = found.sources[0].name is not None, len(found.sources[0].paths) > 1
    yield (
        (f"a mixture of {len(found.sources)} sources" if mixed else "one set" + (" of several paths" * several))
        + f": seq_len {found.seq_len:,}, lanes {found.lanes:,}, seed {found.seed}"
        + ("" if found.shuffle else ", not shuffled")
    )
    yield ""
    yield _of_sources(
        found,
        ("row groups", lambda source: source.shuffle.row_groups),
        ("window", lambda source: source.shuffle.window),
        ("path", lambda source: _where(source.paths)),
    )
    yield ""
    yield (
        f"step {found.begin.step:,} up to {found.end.step:,}, token {found.begin.token:,} up to {found.end.token:,}: "
        f"{found.steps:,} step{'s' * (found.steps != 1)} of {found.step_tokens:,} tokens"
    )
    if found.over is not None:
        yield f"it goes no further: {found.over}"
    yield ""
    yield _of_sources(
        found,
        ("tokens", lambda source: source.tokens),
        ("drawn", lambda source: source.drawn),
        ("epochs", _epochs),
        *((("asked for", lambda source: f"{source.target:.2%}"),) if mixed else ()),
        *((("share", lambda source: f"{source.achieved:.2%}"),) if mixed else ()),
        ("repeats at", lambda source: _when(source.repeats)),
        ("used up at", lambda source: _when(source.exhausted)),
        ("then", lambda source: source.then if source.max_epochs is not None else None),
    )
    if any(source.repeats or source.exhausted for source in found.sources):
        yield "repeats at, used up at: the step that begins its second epoch, the first step without it"
    if found.stages:
        yield ""
        yield _stages(found.stages)
    if any(source.cuts for source in found.sources):
        yield ""
        yield _of_sources(
            found,
            ("documents", _of_cuts(lambda cuts: cuts.documents)),
            ("tokens each", _of_cuts(lambda cuts: cuts.mean_tokens)),
            ("in a row", _of_cuts(lambda cuts: cuts.documents_in_a_row)),
            ("in several rows", _of_cuts(lambda cuts: f"{cuts.in_several_rows:.1%}")),
            ("cut by lanes", _of_cuts(lambda cuts: f"{cuts.cut_by_lanes / max(1, cuts.documents):.2%}")),
        )
    yield ""
    yield _of_sources(
        found,
        ("tokens of a window", lambda source: source.shuffle.window_tokens),
        ("of the set", lambda source: f"{source.shuffle.share:.1%}"),
        ("rows of it", lambda source: source.shuffle.rows_of_window),
        ("draws", lambda source: source.shuffle.draws),
        ("seen a row before", lambda source: _seen_before(source.shuffle.shown_before)),
    )
    yield ""
    if any(source.cuts for source in found.sources):
        yield _OF_CUTS
    if not all(source.cuts for source in found.sources):
        yield _NOT_COUNTED
    yield _OF_WINDOWS
    if found.world_sizes:
        yield ""
        yield table(
            [
                [
                    each.world_size,
                    str(each.rows_most) if each.divides else f"{each.rows_least} to {each.rows_most}",
                    None if each.peak_bytes is None else each.peak_bytes / 1e6,
                    each.least_bytes / 1e6,
                    each.bytes_read / 1e6,
                    each.reads,
                    each.amplification,
                    each.rank_bytes / 1e6,
                    each.first_batch.bytes / 1e6,
                    each.first_batch.tokens,
                    "no" if each.refused else "yes",
                ]
                for each in found.world_sizes
            ],
            [
                "ranks",
                "rows",
                "memory MB",
                "budget MB",
                "read MB",
                "requests",
                "times",
                "by a rank MB",
                "at first MB",
                "its tokens",
                "runs",
            ],
        )
        yield ""
        yield _NOTES
        if not all(each.exact for each in found.world_sizes):
            yield "           what is read is scaled from some windows; --exact counts all"
        for each in found.world_sizes:
            if each.refused:
                yield f"{each.world_size} ranks are refused: {each.refused}"
    few = found.dividing if len(found.dividing) <= 24 else (*found.dividing[:23], "...")
    yield ""
    yield f"world sizes that divide {found.lanes:,} lanes: {', '.join(map(str, few))}"
    for note in found.notes:
        yield f"note: {note}"


def _of_sources(found: Plan, *columns: tuple[str, Callable[[SourcePlan], object]]) -> str:
    """A line of each source, with its name where it has one."""
    named: list[tuple[str, Callable[[SourcePlan], object]]] = []
    if found.sources[0].name is not None:
        named = [("source", lambda source: source.name)]
    of = [*named, *columns]
    return table([[value(source) for _, value in of] for source in found.sources], [name for name, _ in of])


def _seen_before(share: float | None) -> str | None:
    return None if share is None else f"{share:.2%}"


def _of_cuts(value: Callable[[Cuts], object]) -> Callable[[SourcePlan], object]:
    """A cell of what is known of a source's documents; an empty one where that is nothing."""
    return lambda source: None if source.cuts is None else value(source.cuts)


def _stages(stages: Sequence[StagePlan]) -> str:
    """A line of each stage; where these would be too wide, one of each of its sources."""
    headers = ["from step", "token", "scheduled for", "by"]
    begins = [[stage.begin.step, stage.begin.token, stage.scheduled, stage.by] for stage in stages]
    shares = [
        [(name, f"{share:.2%}", f"{stage.achieved.get(name, 0):.2%}") for name, share in stage.target.items()]
        for stage in stages
    ]
    short = table(
        [
            [*begin, ", ".join(f"{name} {asked} ({given})" for name, asked, given in each)]
            for begin, each in zip(begins, shares, strict=True)
        ],
        [*headers, "shares asked for (and given)"],
    )
    if max(map(len, short.splitlines())) <= _WIDTH and max(map(len, shares)) <= _MOST_IN_A_LINE:
        return short
    return table(
        [
            [*(begin if number == 0 else [None] * len(begin)), *share]
            for begin, each in zip(begins, shares, strict=True)
            for number, share in enumerate(each)
        ],
        [*headers, "source", "asked for", "given"],
    )


def _epochs(source: SourcePlan) -> str:
    return f"{source.epochs:,.2f}" + ("" if source.max_epochs is None else f" of {source.max_epochs:,}")


def _where(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
    return (paths[0] if len(paths[0]) <= _MOST_OF_A_PATH else f"…{paths[0][1 - _MOST_OF_A_PATH :]}") + more


def _when(moment: Moment | None) -> int | None:
    return None if moment is None else moment.step
