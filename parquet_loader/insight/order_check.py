"""That the order of a run delivers each token exactly once: from the order's own arithmetic, and no data.

What is asked of the functions that the loader itself runs on, for every window of the epochs looked at:

    row groups     each comes once an epoch, and windows follow each other without a gap
    slices         of all lanes lie one after another in the window, from its first token to its last
    lanes          a slice begins, in its lane, where the one before it ended
    steps          permuted blocks are those that every lane has whole, each once; what they deliver is all of a slice
    ranks          the lanes of all ranks are all lanes, each once

    documents      of one lane in each window, another one each time, so many come once each

of the run itself: which of the order's tokens its steps deliver, and which ones its begin and its end leave out; and of
the blocks of a mixture: that each lane has as many rows of a source as its quota says, that they are the source's rows
one after another, and that the quotas add up to what the weights ask for. Together they say that no token is lost, and
none comes twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from ..blocks import IntArray
from ..checkpoint import ONLY
from ..errors import ConfigError, SourceExhaustedError
from ..options import LoaderOptions, check_world_size
from ..order.mixture import BLOCK, Lattice
from ..order.order import Order, Window, lane_range
from ..order.progress import MixturePlan, MixtureProgress, Stage
from ..runs import MixtureRun, SetRun
from .sealed import growing_sets, grows

__all__ = ["OrderReport", "check_order", "mixture_problems", "order_problems", "rank_problems", "run_problems"]

_MOST_WINDOWS = 20_000  # of a set: some seconds
_MOST_BLOCKS = 500  # of a mixture
_MOST_PROBLEMS = 20
_SOME_DOCUMENTS = 100
_EPOCHS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderReport:
    """What was proved of an order.

    Attributes:
        proved: a sentence each.
        problems: what does not hold, a sentence each.
    """

    proved: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether all of it holds."""
        return not self.problems


@dataclass(slots=True)
class _Told:
    """What an `OrderReport` comes to say."""

    proved: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_order(run: SetRun | MixtureRun, *, tokens: int | None = None, world_sizes: Sequence[int] = ()) -> OrderReport:
    """Look at the order of a run, from its begin on.

    Args:
        run: of `open_run`. A mixture is looked at with the weights that it was made with, from its begin on.
        tokens: of the run that are planned; None for two epochs of each set, or the run's own.
        world_sizes: numbers of ranks; none for all that divide the lanes. One that the loader would refuse, since it
            does not divide them and the run is not ``uneven``, is a problem.
    """
    told = _Told()
    _look_at_ranks(run.options, world_sizes, told)
    if isinstance(run, MixtureRun):
        given = _look_at_mixture(run, tokens, told)
        for name, opened in run.sets.items():
            _look_at_order(name, opened.config.order, run.options, given.get(name, 0), told)
        if run.progress.position:
            told.proved.append(f"the run: {_begin_words(run)}")
    else:
        epochs, looked, had = _look_at_order(ONLY, run.order, run.options, tokens, told)
        if run.finish is not None and looked == epochs and not np.array_equal(run.finish.ends, had * run.order.unit):
            told.problems.append("the run's end is not where its lanes have had all of its epochs")
        text, found = run_problems(run, each_once=looked == epochs)
        told.problems += found
        if run.options.epochs is not None and tokens is not None and tokens > epochs * run.order.total_tokens:
            text += f"; it ends after epochs={epochs:,}, before the {tokens:,} tokens that are planned"
        told.proved.append(text)
    if growing_sets(run):
        told.proved.append(f"what is there so far was looked at, as if it were all: {grows(run)}")
    return OrderReport(
        proved=() if told.problems else tuple(told.proved), problems=tuple(told.problems[:_MOST_PROBLEMS])
    )


def _look_at_ranks(options: LoaderOptions, world_sizes: Sequence[int], told: _Told) -> None:
    lanes = options.lanes
    sizes = tuple(world_sizes) or tuple(size for size in range(1, lanes + 1) if not lanes % size)
    allowed = []
    for size in sizes:
        try:
            check_world_size(size, lanes, options.uneven)
            allowed.append(size)
        except ConfigError as error:
            told.problems.append(str(error))
    told.problems += rank_problems(lanes, allowed)
    told.proved.append(
        f"ranks: on {_listed(sizes)} ranks, the rows of all ranks are the {lanes:,} rows of the global batch, each once"
    )


def _look_at_mixture(run: MixtureRun, tokens: int | None, told: _Told) -> dict[str, int]:
    """The tokens that each source has given by the end of what was looked at."""
    lanes, seq_len = run.options.lanes, run.options.seq_len
    if tokens is None:
        tokens = _EPOCHS * sum(each.config.order.total_tokens for each in run.sets.values())
    rows = -(-tokens // (lanes * seq_len))
    begin = MixtureProgress(position=0, lengths=((0, seq_len),))
    blocks, found, end, ended = mixture_problems(run.plan, begin, rows)
    told.problems += found
    again = any(stage.by == "reweight" for stage in run.progress.stages)
    told.proved.append(
        _mixture_words(blocks, -(-rows // BLOCK), end, ended)
        + (". The weights are those that the run was made with, and none of reweight()" if again else "")
    )
    return {name: tokens_a_lane * lanes for name, tokens_a_lane in end.given.items()}


def _look_at_order(
    name: str, order: Order, options: LoaderOptions, planned: int | None, told: _Told
) -> tuple[int, int, IntArray]:
    """The order of one set, of which so many tokens are planned: (epochs of it, how many of these were looked at, what
    each lane had had by then).
    """
    epochs = options.epochs or (_EPOCHS if planned is None else max(1, -(-planned // order.total_tokens)))
    windows, found, had = order_problems(order, options.seq_len, epochs)
    looked = windows // _per_epoch(order)
    of = f"{name}: " if name else ""
    told.problems += [f"{of}{problem}" for problem in found]
    endless = options.epochs is None and planned is None
    many = f"the first {looked:,} epochs of a run without end" if endless else f"{looked:,} of {epochs:,} epochs"
    steps = f"permuted steps of {options.seq_len:,} tokens are all of every lane's slice, each token once"
    if order.row_tokens:
        steps = "steps are all of every lane's slice, each stored row whole and once"
    told.proved.append(
        f"{of}{many} were looked at, {_count(windows, 'window')}, {order.total:,} {order.element}s an epoch: in "
        f"the order every row group comes once an epoch, the {order.lanes:,} lanes' slices are all of a window, and "
        f"{steps}; and of one lane a window, the order of {_SOME_DOCUMENTS} "
        f"{'rows' if order.row_tokens else 'documents'} has each once"
    )
    return epochs, looked, had


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}" + ("s" if number != 1 else "")


def _per_epoch(order: Order) -> int:
    """Windows of an epoch."""
    return -(-len(order.group_tokens) // order.window)


def _begin_words(run: SetRun | MixtureRun) -> str:
    """What a run leaves out at its begin, and on its way there."""
    progress, lanes = run.progress, run.options.lanes
    skipped = sum(high - low for low, high in progress.skips) * lanes
    before = progress.position * lanes
    if isinstance(run, SetRun) and run.finish is not None:
        before = int(np.minimum(run.finish.ends, progress.position).sum())
    return (
        f"it begins at step {progress.rows_before(progress.position):,}, and the {before:,} tokens before that "
        "are not delivered"
        + (", unless in overlap's columns" if run.options.overlap else "")
        + (f"; {skipped:,} of them had been skipped" if skipped else "")
    )


def _mixture_words(looked: int, blocks: int, end: MixtureProgress, ended: str) -> str:
    never = sorted({name for stage in end.stages for name, _ in stage.weights if not end.given.get(name)})
    return (
        f"mixture: {looked:,} of {blocks:,} blocks of {BLOCK} rows a lane were looked at"
        + (", spread evenly" if blocks > _MOST_BLOCKS else "")
        + ": every lane has as many rows of a source as its quota, one after another, each once; and up to each of "
        "these blocks a source has had the rows that its weight asks for, less than one too many and less than "
        "1 + 1/2 + ... + 1/(sources - 1) too few"
        + (f". Not a row in all {end.row:,}: {', '.join(map(repr, never))}" if never else "")
        + (f". The run ends before those planned: {ended}" if ended else "")
    )


def run_problems(run: SetRun, *, each_once: bool) -> tuple[str, list[str]]:
    """What a run of one set delivers of its order, from where it is to its end, in words; and what is wrong with that.

    Args:
        run: of one set, as its only rank has it.
        each_once: whether all of the order that it takes was seen to come once.
    """
    options, finish, begin = run.options, run.finish, run.progress.position
    at_begin = f"; {_begin_words(run)}" if begin else ""
    if finish is None:
        return f"the run: it has no end, and its rows of {options.seq_len:,} tokens follow each other{at_begin}", []
    whole, ends = finish.epochs * run.order.total_tokens, finish.ends
    overlap = 0 if run.order.row_tokens else options.overlap  # which is a row's own where it was packed before
    steps = max(0, -(-(finish.stop - begin) // options.seq_len))
    reach = begin + steps * options.seq_len  # what overlaps comes with the text before it, wherever that is delivered
    before = int(np.minimum(ends, begin).sum())
    left = int(np.maximum(ends - reach, 0).sum())
    problems = []
    if int(ends.sum()) != whole:
        problems.append(f"the run's lanes end after {int(ends.sum()):,} tokens, and its epochs have {whole:,}")
    last = reach - options.seq_len  # where the last batch begins
    if options.tail == "pad":
        if left:
            problems.append(f"{left:,} of {whole:,} tokens are in none of the run's {steps:,} batches")
        if steps and last >= int(ends.max()):
            problems.append(f"the last of the run's {steps:,} batches is padding alone")
    else:
        following = reach + options.seq_len + overlap
        if steps and reach + overlap > int(ends.min()):
            problems.append(f"tail='drop', and the last of the run's {steps:,} batches is not full")
        if following <= int(ends.min()):
            problems.append(f"the run ends after {steps:,} batches, and one more would be full")
    delivered = whole - before - left
    of = f"of the {whole:,} tokens of epochs={finish.epochs:,}"
    text = f"the run: {_count(steps, 'step')} {'delivers' if steps == 1 else 'deliver'} {delivered:,} {of}"
    if not steps:
        text = f"the run: 0 steps: none {of} is delivered"
    elif each_once:
        text += ", each once" + (", overlap's columns aside" if overlap else "")
    text += at_begin
    if left:
        text += f"; tail='drop' leaves the last {left:,} out" + (
            ", unless in overlap's columns" if overlap and steps else ""
        )
        text += "" if problems else ", which do not fill a batch"
    elif steps:
        lasts = np.array([last, last - options.seq_len][:steps])[:, None]  # with an overlap, the one before it too
        columns = options.seq_len + overlap
        padding = int(np.clip(lasts + columns - ends, 0, columns).sum())
        text += f"; then {padding:,} places of padding" if padding else ""
    return text, problems


def _listed(sizes: Sequence[int]) -> str:
    shown = ", ".join(f"{size:,}" for size in sizes[:12])
    return shown + (f" and {len(sizes) - 12:,} more numbers of" if len(sizes) > 12 else "")


def rank_problems(lanes: int, world_sizes: Iterable[int]) -> list[str]:
    """Why ranks do not have each lane once."""
    problems = []
    for size in world_sizes:
        borders = [lane_range(rank, size, lanes) for rank in range(size)]
        flat = [border for pair in borders for border in pair]
        tiled = flat[0] == 0 and flat[-1] == lanes and flat[1:-1:2] == flat[2::2] and flat == sorted(flat)
        if not tiled:
            problems.append(f"the lanes of {size:,} ranks are not all {lanes:,} lanes, each once: {borders[:5]}")
        elif any(low == high for low, high in borders):
            problems.append(f"of {size:,} ranks some have no lane: use at most {lanes:,}")
    return problems


def order_problems(order: Order, seq_len: int, epochs: int) -> tuple[int, list[str], IntArray]:
    """How many windows of an order were looked at, whole epochs of them; why they do not deliver each token once; and
    what each lane has had by their end, shape ``(lanes,)``.

    Args:
        order: of a set.
        seq_len: tokens of a row.
        epochs: from the run's begin on; fewer where that would be more than some 20,000 windows, but one at least.
    """
    epochs = max(1, min(epochs, _MOST_WINDOWS // _per_epoch(order)))
    problems: list[str] = []
    seen = np.zeros(len(order.group_tokens), np.int64)
    reached, count, epoch = 0, 0, 0
    begins = np.zeros(order.lanes, np.int64)  # what each lane has had

    def end_epoch() -> None:
        wrong = np.flatnonzero((seen != 1) & (order.group_tokens > 0))
        if len(wrong):
            times = int(seen[wrong[0]])
            problems.append(f"epoch {epoch}: row group {int(wrong[0])} of the index comes {times} times, not once")
        seen[:] = 0

    for window in order.windows(0, order.lanes - 1):
        if window.epoch != epoch:
            end_epoch()
            epoch = window.epoch
        if epoch >= epochs or len(problems) >= _MOST_PROBLEMS:
            break
        where = f"epoch {window.epoch}, window {window.number}"
        np.add.at(seen, window.groups, 1)
        found = _window_problems(order, window, seq_len, reached, begins, some_lane=count % order.lanes)
        problems += [f"{where}: {problem}" for problem in found]
        reached = window.before + window.tokens
        count += 1
    return count, problems, begins


def _window_problems(
    order: Order, window: Window, seq_len: int, reached: int, begins: IntArray, *, some_lane: int
) -> Iterator[str]:
    """Why a window does not deliver each token once. Moves ``begins`` to its end.

    Args:
        order, window, seq_len: of the run.
        reached: C, where the windows before it end.
        begins: what each lane has had before it.
        some_lane: of which the order of documents is looked at.
    """
    lanes = order.lanes
    if window.before != reached:
        yield f"begins at token {window.before:,} of the run, and the windows before it end at {reached:,}"
    sums = np.concatenate(([0], np.cumsum(order.group_tokens[window.groups])))
    if not np.array_equal(window.offsets, sums):
        yield "its row groups do not lie one after another"
    starts = window.slice_starts(lanes, 0, lanes)
    lengths = np.diff(starts)
    if starts[0] or int(starts[-1]) != int(sums[-1]) or (lengths < 0).any():
        yield f"the slices of {lanes:,} lanes are from {int(starts[0]):,} to {int(starts[-1]):,} of {int(sums[-1]):,}"
    if not np.array_equal(window.lane_begins(lanes, 0, lanes), begins):
        wrong = int((window.lane_begins(lanes, 0, lanes) != begins).argmax())
        yield f"lane {wrong}'s slice does not begin where the one before it ended"
    begins += lengths
    steps = order.step_blocks(window, seq_len)
    own = np.arange(steps.first, steps.first + len(steps.texts))
    if not np.array_equal(np.sort(steps.texts), own):
        yield "its permuted steps do not deliver each block of text once"
    if len(own):
        first, last = int((begins - lengths).max()), int(begins.min())
        if steps.first * seq_len < first or (steps.first + len(own)) * seq_len > last:
            yield "it permutes steps that not every lane has whole"
    # No two lanes' slices begin or end more than one token apart, so that all of them are a few different stretches.
    lows, short = begins - lengths, int(lengths.min())
    _, some = np.unique((lows - lows.min()) * (int(lengths.max()) - short + 1) + lengths - short, return_index=True)
    for lane in some.tolist():
        high = int(begins[lane])
        low = high - int(lengths[lane])
        pieces = steps.pieces(low, high) if high > low else []
        texts = sorted((text, count) for _, text, count in pieces)
        ends = [low, *np.cumsum([low, *(count for _, count in texts)])[1:].tolist()]
        if [text for text, _ in texts] != ends[: len(texts)] or ends[-1] != max(low, high) or (high > low) > len(texts):
            yield f"the steps of lane {lane} do not deliver each of its {high - low:,} tokens once"
    documents = order.document_order([0, _SOME_DOCUMENTS], epoch=window.epoch, window=window.number, lane=some_lane)
    if not np.array_equal(np.sort(documents), np.arange(_SOME_DOCUMENTS)):
        yield "the documents of a slice do not come once each"


def mixture_problems(
    plan: MixturePlan, progress: MixtureProgress, rows: int
) -> tuple[int, list[str], MixtureProgress, str]:
    """How many blocks of a mixture were looked at, why they do not give each source's rows once, where they end, and
    why before the rows that are planned; "" where they do not.

    Args:
        plan: of the mixture.
        progress: where it begins.
        rows: of a lane, that are planned. Of more than some hundred blocks, as many are looked at, spread evenly.
    """
    blocks = -(-rows // BLOCK)
    looked = np.unique(np.linspace(0, blocks - 1, min(blocks, _MOST_BLOCKS)).astype(np.int64))
    problems: list[str] = []
    count = 0
    known: Stage | None = None
    at_stage: Mapping[str, int] = {}  # what sources had given when it began
    try:
        for block in looked.tolist():
            earlier, progress = progress, progress.advanced(block * BLOCK - progress.row, plan).entered(plan)
            stage = progress.stage_of(block)
            assert stage is not None
            if stage != known:
                known = stage
                at_stage = earlier.advanced(max(0, stage.block * BLOCK - earlier.row), plan).given
            before = dict(progress.given)
            quotas = progress.quotas
            after = progress.advanced(BLOCK, plan)
            problems += [f"block {block}: {problem}" for problem in _block_problems(plan.lattice, block, quotas)]
            for name, quota in quotas:
                more = after.given.get(name, 0) - before.get(name, 0)
                if more != quota * progress.seq_len:
                    problems.append(f"block {block}: {more:,} tokens a lane of {name!r} are counted for {quota} rows")
            rows_of = {name: (had - at_stage.get(name, 0)) // after.seq_len for name, had in after.given.items()}
            found = _share_problems(plan, stage, rows_of, after.row - stage.block * BLOCK, progress.position)
            problems += [f"block {block}: {problem}" for problem in found]
            progress = after
            count += 1
    except SourceExhaustedError as error:
        return count, problems[:_MOST_PROBLEMS], progress, str(error)
    return count, problems[:_MOST_PROBLEMS], progress, ""


def _share_problems(
    plan: MixturePlan, stage: Stage, rows_of: Mapping[str, int], rows: int, position: int
) -> Iterator[str]:
    """Why a stage's rows are not those that the weights ask for.

    Args:
        plan: of the mixture.
        stage: of a block.
        rows_of: each source has had so many of a lane's rows since the stage began.
        rows: of a lane since then.
        position: where the block begins.
    """
    weights = dict(stage.weights)
    if stage.by != "reweight":
        scheduled = dict([shares for token, shares in plan.schedule if token <= position * plan.lattice.lanes][-1])
        for name in scheduled.keys() - weights.keys():
            if stage.by != "exhausted" or name not in plan.limits:
                yield f"{name!r} has the weight {scheduled[name]} and is not drawn"
        weights = {name: weight for name, weight in scheduled.items() if stage.by != "exhausted" or name in weights}
    whole = sum(weights.values())
    too_few = sum((Fraction(1, place) for place in range(1, len(weights))), Fraction(0))
    for name in sorted(weights.keys() | rows_of.keys()):
        more = Fraction(rows_of.get(name, 0)) - Fraction(rows * weights.get(name, 0), whole)
        if more >= 1 or (more < 0 and -more >= too_few):
            yield (
                f"{name!r} has had {rows_of.get(name, 0):,} of a lane's {rows:,} rows since block {stage.block:,}, and "
                f"its weight asks for {rows * weights.get(name, 0) / whole:,.1f}"
            )


def _block_problems(lattice: Lattice, block: int, quotas: Sequence[tuple[str, int]]) -> Iterator[str]:
    counts = [quota for _, quota in quotas]
    if sum(counts) != BLOCK:
        yield f"its quotas are {sum(counts)} rows and not {BLOCK}"
        return
    table = lattice.table(block, counts, 0, lattice.lanes)
    for source, (name, quota) in enumerate(quotas):
        mine = table.sources == source
        if (mine.sum(axis=0) != quota).any():
            yield f"not every lane has {quota} rows of {name!r}"
        elif not np.array_equal(
            table.ordinals.T[mine.T].reshape(-1, quota), np.tile(np.arange(quota), (len(mine.T), 1))
        ):
            yield f"the rows of {name!r} do not come one after another, each once"
