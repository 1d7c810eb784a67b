"""That the order of a run delivers each token exactly once: from the order's own arithmetic, and no data.

What is asked of the functions that the loader itself runs on, for every window of the epochs looked at:

    row groups     each comes once an epoch, and windows follow each other without a gap
    slices         of all lanes lie one after another in the window, from its first token to its last
    lanes          a slice begins, in its lane, where the one before it ended
    steps          permuted blocks are those that every lane has whole, each once; what they deliver is all of a slice
    ranks          the lanes of all ranks are all lanes, each once

and of the blocks of a mixture: that each lane has as many rows of a source as its quota says, and that they are the
source's rows one after another. Together they say that no token is lost, and none comes twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..blocks import IntArray
from ..errors import ConfigError, SourceExhaustedError
from ..options import check_world_size
from ..order.ending import Finish
from ..order.mixture import BLOCK, Lattice
from ..order.order import Order, Window, lane_range
from ..order.progress import MixturePlan, MixtureProgress
from ..runs import MixtureRun, SetRun

__all__ = ["OrderReport", "check_order", "mixture_problems", "order_problems", "rank_problems"]

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


def check_order(run: SetRun | MixtureRun, *, tokens: int | None = None, world_sizes: Sequence[int] = ()) -> OrderReport:
    """Look at the order of a run, from its begin on.

    Args:
        run: of `open_run`.
        tokens: of the run that are planned; None for two epochs of each set, or the run's own.
        world_sizes: numbers of ranks; none for all that divide the lanes. One that the loader would refuse, since it
            does not divide them and the run is not ``uneven``, is a problem.
    """
    options = run.options
    lanes, seq_len = options.lanes, options.seq_len
    proved: list[str] = []
    problems: list[str] = []
    sizes = tuple(world_sizes) or tuple(size for size in range(1, lanes + 1) if not lanes % size)
    allowed = []
    for size in sizes:
        try:
            check_world_size(size, lanes, options.uneven)
            allowed.append(size)
        except ConfigError as error:
            problems.append(str(error))
    problems += rank_problems(lanes, allowed)
    proved.append(
        f"ranks: on {_listed(sizes)} ranks, the rows of all ranks are the {lanes:,} rows of the global batch, each once"
    )
    given: dict[str, int] = {}
    if isinstance(run, MixtureRun):
        wanted = tokens if tokens is not None else _EPOCHS * sum(each.config.order.total for each in run.sets.values())
        rows = -(-wanted // (lanes * seq_len))
        begin = MixtureProgress(position=0, lengths=((0, seq_len),))
        blocks, found, end, ended = mixture_problems(run.plan, begin, rows)
        given = {name: tokens_a_lane * lanes for name, tokens_a_lane in end.given.items()}
        problems += found
        proved.append(
            f"mixture: of {-(-rows // BLOCK):,} blocks of {BLOCK} rows a lane, {blocks:,} were looked at: every lane "
            "has the rows of a source that the weights give it, one after another, each once"
            + (f". The run ends before those planned: {ended}" if ended else "")
        )
    for name, opened in sorted(run.sets.items()) if isinstance(run, MixtureRun) else [("", run.set)]:
        order = opened.config.order
        planned = given.get(name, 0) if isinstance(run, MixtureRun) else tokens
        epochs = options.epochs or (_EPOCHS if planned is None else max(1, -(-planned // order.total)))
        windows, found = order_problems(order, seq_len, epochs)
        of = f"{name}: " if name else ""
        problems += [f"{of}{problem}" for problem in found]
        per_epoch = -(-len(order.group_tokens) // order.window)
        many = f"{windows // per_epoch:,} epochs" if windows // per_epoch != 1 else "1 epoch"
        proved.append(
            f"{of}{many} of {order.total:,} tokens, {windows:,} windows: every row group comes once an epoch, the "
            f"{lanes:,} lanes' slices are all of a window, and permuted steps of {seq_len:,} tokens deliver all of "
            "each lane's slice, each token once"
        )
    if isinstance(run, SetRun) and run.finish is not None:
        batches, missing = _of_the_end(run.finish, seq_len, options.overlap)
        whole = run.finish.epochs * run.order.total
        if options.tail == "pad" and missing:
            problems.append(f"{missing:,} of {whole:,} tokens are in none of the run's {batches:,} batches")
        elif missing:
            proved.append(f"the end: tail='drop' leaves {missing:,} of {whole:,} tokens out, less than a batch's")
        else:
            proved.append(f"the end: the run's {batches:,} batches hold all {whole:,} tokens")
    return OrderReport(proved=() if problems else tuple(proved), problems=tuple(problems[:_MOST_PROBLEMS]))


def _of_the_end(finish: Finish, seq_len: int, overlap: int) -> tuple[int, int]:
    """A run's batches, and how many of its tokens are in none of them."""
    batches = -(-finish.stop // seq_len)
    held = np.minimum(finish.ends, batches * seq_len + overlap * (batches > 0))
    return batches, int(finish.ends.sum() - held.sum())


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


def order_problems(order: Order, seq_len: int, epochs: int) -> tuple[int, list[str]]:
    """How many windows of an order were looked at, whole epochs of them, and why they do not deliver each token once.

    Args:
        order: of a set.
        seq_len: tokens of a row.
        epochs: from the run's begin on; fewer where that would be more than some 20,000 windows, but one at least.
    """
    per_epoch = -(-len(order.group_tokens) // order.window)
    epochs = max(1, min(epochs, _MOST_WINDOWS // per_epoch))
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
        problems += [f"{where}: {problem}" for problem in _window_problems(order, window, seq_len, reached, begins)]
        reached = window.before + window.tokens
        count += 1
    return count, problems


def _window_problems(order: Order, window: Window, seq_len: int, reached: int, begins: IntArray) -> Iterator[str]:
    """Why a window does not deliver each token once. Moves ``begins`` to its end."""
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
    for lane in {0, lanes - 1}:
        high = int(begins[lane])
        low = high - int(lengths[lane])
        pieces = steps.pieces(low, high) if high > low else []
        texts = sorted((text, count) for _, text, count in pieces)
        ends = [low, *np.cumsum([low, *(count for _, count in texts)])[1:].tolist()]
        if [text for text, _ in texts] != ends[: len(texts)] or ends[-1] != max(low, high) or (high > low) > len(texts):
            yield f"the steps of lane {lane} do not deliver each of its {high - low:,} tokens once"
    documents = order.document_order([0, _SOME_DOCUMENTS], epoch=window.epoch, window=window.number, lane=lanes - 1)
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
    try:
        for block in looked.tolist():
            progress = progress.advanced(block * BLOCK - progress.row, plan).entered(plan)
            before = dict(progress.given)
            quotas = progress.quotas
            after = progress.advanced(BLOCK, plan)
            problems += [f"block {block}: {problem}" for problem in _block_problems(plan.lattice, block, quotas)]
            for name, quota in quotas:
                more = after.given.get(name, 0) - before.get(name, 0)
                if more != quota * progress.seq_len:
                    problems.append(f"block {block}: {more:,} tokens a lane of {name!r} are counted for {quota} rows")
            progress = after
            count += 1
    except SourceExhaustedError as error:
        return count, problems[:_MOST_PROBLEMS], progress, str(error)
    return count, problems[:_MOST_PROBLEMS], progress, ""


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
