"""How far a run is, and how it came there: its position, and a history from which any earlier step can be traced. Pure.

The position is tokens consumed per lane. The history is short: from which position on rows had which length, what was
skipped, and in a mixture the stages as they were run. All else about a mixture follows from these:

    stages      block 0: {"web": 0.7, "code": 0.3}         block 900: {"web": 0.5, "code": 0.5}
    blocks      0     1     2     ...   899   │ 900   901   ...   each 64 rows a lane
    of web      45 +  45 +  44 +  ...    45   │  32 +  32 + ...   rows a lane, times the tokens of a row

Where the length of rows changes within a block, lanes have had different numbers of a source's rows by then, and stay
apart by what these rows differ in length: such a stretch of a block is kept as a `Piece`.
"""

from __future__ import annotations

import bisect
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from ..blocks import IntArray
from ..errors import SourceExhaustedError
from .mixture import APART, BLOCK, Lattice, Weights, block_quotas, rows_given, shown_weights

__all__ = ["Changes", "MixturePlan", "MixtureProgress", "Piece", "Progress", "Stage", "changed", "traced"]

# (from where on, tokens of a row), rising.
Changes = tuple[tuple[int, int], ...]


def changed(changes: Changes, begin: int, seq_len: int) -> Changes:
    """Changes of the length of rows with one more; what was to begin there or later has not happened."""
    kept = tuple(change for change in changes if change[0] < begin)
    return kept if kept and kept[-1][1] == seq_len else (*kept, (begin, seq_len))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run of one set is.

    Attributes:
        position: tokens consumed per lane.
        lengths: from which position on rows had how many tokens; the first begins at 0.
        skips: what was skipped, from which position to which.
    """

    position: int
    lengths: Changes
    skips: tuple[tuple[int, int], ...] = ()

    @property
    def seq_len(self) -> int:
        """Tokens of a row, from here on."""
        return self.lengths[-1][1]

    def length_at(self, position: int) -> int:
        """The tokens of the row that begins at a position, an earlier or a later one."""
        return next(seq_len for begin, seq_len in reversed(self.lengths) if begin <= position)

    def rows_before(self, position: int) -> int:
        """How many rows a lane had had at a position, which is this one or an earlier one."""
        borders = [*(begin for begin, _ in self.lengths if begin < position), position]
        return sum((high - low) // self.lengths[k][1] for k, (low, high) in enumerate(pairwise(borders)))

    def position_of(self, row: int) -> int:
        """The position at which a row began, or will."""
        for (low, seq_len), (high, _) in pairwise(self.lengths):
            here = (high - low) // seq_len
            if row < here:
                return low + row * seq_len
            row -= here
        begin, seq_len = self.lengths[-1]
        return begin + row * seq_len

    def reached(self, lanes: int) -> Changes:
        """The changes of length by C, the tokens before a window, of all lanes."""
        return tuple((begin * lanes, seq_len) for begin, seq_len in self.lengths)

    def resized(self, seq_len: int) -> Progress:
        """With rows of another length from here on."""
        return replace(self, lengths=changed(self.lengths, self.position, seq_len))

    def moved_to(self, position: int) -> Progress:
        """At another position, as if it had been come to in rows of these lengths; earlier ones are forgotten about."""
        lengths = tuple(change for change in self.lengths if change[0] < position) or self.lengths[:1]
        skips = tuple(skip for skip in self.skips if skip[1] <= position)
        return replace(self, position=position, lengths=lengths, skips=skips)

    def advanced(self, rows: int) -> Progress:
        """After some rows more."""
        # Once a batch, and `replace` takes several times as long.
        return Progress(position=self.position + rows * self.seq_len, lengths=self.lengths, skips=self.skips)

    def skipped(self, rows: int) -> Progress:
        """After some rows more, which nobody gets."""
        after = self.advanced(rows)
        return replace(after, skips=(*self.skips, (self.position, after.position))) if rows else self


@dataclass(frozen=True, slots=True)
class Stage:
    """Weights that were in force from a block on.

    Attributes:
        block: the first block.
        weights: of the sources.
        by: ``"schedule"``, ``"reweight"``, or ``"exhausted"`` where a source had no more to give.
    """

    block: int
    weights: Weights
    by: str = "schedule"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a block in which rows had another length than in the rest.

    Attributes:
        block: the block.
        quotas: its rows of each source, by name.
        first, last: the rows ``[first, last)`` of it.
        seq_len: their tokens.
    """

    block: int
    quotas: Weights
    first: int
    last: int
    seq_len: int

    def tokens(self, name: str, lattice: Lattice, first: int, last: int) -> IntArray | int:
        """What the lanes ``[first, last)`` got of a source in it, shape ``(lanes,)``, or 0."""
        return self.rows(name, lattice, first, last) * self.seq_len

    def rows(self, name: str, lattice: Lattice, first: int, last: int) -> IntArray | int:
        """The same in rows."""
        return _rows_of(self, name, lattice, first, last)


@functools.lru_cache(maxsize=4096)  # every look at a run adds up all of its pieces
def _rows_of(piece: Piece, name: str, lattice: Lattice, first: int, last: int) -> IntArray | int:
    names = [known for known, _ in piece.quotas]
    if name not in names:
        return 0
    table = lattice.table(piece.block, [quota for _, quota in piece.quotas], first, last)
    return table.counts(names.index(name), piece.first, piece.last)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixturePlan:
    """What is to be done in a mixture from now on.

    Attributes:
        lattice: which rows are of which source.
        schedule: from which token of the run on the sources have which weights; the first begins at 0.
        limits: of sources that may end, the tokens per lane that they have.
        redistribute: whether the rows of a source that has ended go to the others; else it is an error.
        overlap: tokens that rows hold beyond those that they advance by.
    """

    lattice: Lattice
    schedule: tuple[tuple[int, Weights], ...]
    limits: Mapping[str, int] = field(default_factory=dict)
    redistribute: bool = False
    overlap: int = 0

    def scheduled(self, progress: Progress) -> list[tuple[int, int, Weights]]:
        """The schedule by blocks, for the lengths of rows that a run has had and has now: (first block, the token it is
        scheduled for, weights) of each stage.

        A stage begins with the first block at or after its token.
        """
        found: list[tuple[int, int, Weights]] = []
        for token, weights in self.schedule:
            block = _first_block(progress, token, self.lattice.lanes)
            while found and found[-1][0] >= block:  # it never comes to a block of its own
                found.pop()
            found.append((block, token, weights))
        return found


def _first_block(progress: Progress, token: int, lanes: int) -> int:
    """The first block that begins at or after a token of the run."""
    wanted = -(-token // lanes)  # tokens per lane
    borders = [begin for begin, _ in progress.lengths]
    rows = 0
    for (begin, seq_len), end in zip(progress.lengths, [*borders[1:], None], strict=True):
        if end is None or wanted <= end:
            rows += -(-max(0, wanted - begin) // seq_len)
            break
        rows += (end - begin) // seq_len
    return -(-rows // BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureProgress(Progress):
    """How far a mixture is.

    Attributes:
        stages: as they were run, rising by block; the last may begin with the next block.
        row: rows that each lane has had.
        given: tokens per lane that whole blocks have given of each source, `pieces` not counted.
        pieces: stretches of blocks that are not in `given`.
        lengths_of: of each source the changes of length by C, the tokens of it before a window, of all lanes.
    """

    stages: tuple[Stage, ...] = ()
    row: int = 0
    given: Mapping[str, int] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = ()
    lengths_of: Mapping[str, Changes] = field(default_factory=dict)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def block(self) -> int:
        """The block of the next row."""
        return self.row // BLOCK

    def stage_of(self, block: int) -> Stage | None:
        """The stage that a block is of, as far as that is known."""
        after = self._stages_to(block)
        return self.stages[after - 1] if after else None

    def _stages_to(self, block: int) -> int:
        """How many stages begin with a block or before it."""
        return bisect.bisect_right(self.stages, block, key=lambda stage: stage.block)

    @property
    def quotas(self) -> Weights:
        """The rows of each source in the block of the next row, which must have been `entered`."""
        stage = self.stage_of(self.block)
        assert stage is not None
        quotas = block_quotas([weight for _, weight in stage.weights], self.block - stage.block)
        return tuple((name, quota) for (name, _), quota in zip(stage.weights, quotas, strict=True) if quota)

    @property
    def cut(self) -> int:
        """The row of this block from which on rows have the length that they have now."""
        return max((piece.last for piece in self.pieces if piece.block == self.block), default=0)

    def drawn(self) -> tuple[str, ...]:
        """The sources of all stages so far, by name."""
        begun = -(-self.row // BLOCK)
        return tuple(sorted({name for stage in self.stages if stage.block < begun for name, _ in stage.weights}))

    def begins(self, name: str, lattice: Lattice, first: int, last: int) -> IntArray | int:
        """What the lanes ``[first, last)`` have had of a source, without this block's rows from `cut` on."""
        pieces = (piece.tokens(name, lattice, first, last) for piece in self.pieces)
        return sum(pieces, self.given.get(name, 0))

    def had(self, name: str, lattice: Lattice, first: int, last: int) -> IntArray | int:
        """What the lanes ``[first, last)`` have had of a source, shape ``(lanes,)``, or one number for all."""
        within = self.row % BLOCK
        had = self.begins(name, lattice, first, last)
        if within == self.cut:
            return had
        return had + Piece(self.block, self.quotas, self.cut, within, self.seq_len).tokens(name, lattice, first, last)

    def consumed(self, name: str, lattice: Lattice) -> int:
        """What all lanes together have had of a source."""
        had = self.had(name, lattice, 0, lattice.lanes)
        return had * lattice.lanes if isinstance(had, int) else int(had.sum())

    def at_row(self, row: int, lattice: Lattice) -> MixtureProgress:
        """Where the run was before an earlier row, without what was skipped."""
        return traced(lattice, self.lengths, self.stages, self.position_of(row))

    def apart(self, name: str, lattice: Lattice) -> int:
        """How many tokens of a source one lane is ahead of another from here on, at most; 0 where none ever is."""
        begins = self.begins(name, lattice, 0, lattice.lanes)
        spread = 0 if isinstance(begins, int) else int(begins.max() - begins.min())
        if self.cut and any(name == drawn for drawn, _ in self.quotas):
            spread += APART * self.seq_len  # until the end of the block
        return spread

    def length_of(self, name: str) -> Changes:
        """The changes of length of one source."""
        return self.lengths_of.get(name, ((0, self.seq_len),))

    # ── going on ─────────────────────────────────────────────────────────────────────────────────────────────────

    def entered(self, plan: MixturePlan) -> MixtureProgress:
        """With the stage of the next row's block known.

        Raises:
            SourceExhaustedError: a source that may end has not enough for the block.
        """
        if self.row % BLOCK:
            return self
        progress = self
        block, token = self.block, self.position * plan.lattice.lanes
        before = self.position_of(self.row - BLOCK) * plan.lattice.lanes if self.row else -1
        begun = [weights for begin, weights in plan.schedule if before < begin <= token]
        stages = self.stages
        if begun and stages and stages[-1] == Stage(block, stages[-1].weights, "reweight"):
            stages = stages[:-1]  # the schedule's stage takes its place
        known = next((stage for stage in reversed(stages) if stage.by != "exhausted"), None)
        for weights in begun[-1:]:
            differs = known is None or known.by == "reweight" or known.weights != weights
            if differs and (known is None or known.block < block):  # else it was entered before
                progress = replace(self, stages=(*stages, Stage(block, weights)))
        while short := [name for name, _ in progress.quotas if not progress.lasts(name, 1, plan)]:
            stage = progress.stage_of(block)
            assert stage is not None
            left = tuple((name, weight) for name, weight in stage.weights if name not in short)
            if not plan.redistribute or not left:
                raise _exhausted(short, left, stage, token, plan.redistribute)
            progress = replace(progress, stages=(*progress.stages, Stage(block, left, "exhausted")))
        return progress

    def advanced(self, rows: int, plan: MixturePlan | None = None) -> MixtureProgress:
        """After some rows more.

        Args:
            rows: of each lane.
            plan: what is to be done; None where all stages are in `stages`, and nothing ends.

        Raises:
            SourceExhaustedError: as `entered`.
        """
        progress = self
        while rows:
            if plan is not None:
                progress = progress.entered(plan)
            within = progress.row % BLOCK
            if not within and rows >= BLOCK:
                blocks = progress._blocks_ahead(rows // BLOCK, plan)
                progress, rows = progress._after_blocks(blocks), rows - blocks * BLOCK
            else:
                step = min(rows, BLOCK - within)
                progress, rows = progress._after_rows(step), rows - step
        return progress

    def skipped(self, rows: int, plan: MixturePlan | None = None) -> MixtureProgress:
        """After some rows more, which nobody gets."""
        after = self.advanced(rows, plan)
        return replace(after, skips=(*self.skips, (self.position, after.position))) if rows else self

    def resized(self, seq_len: int, lattice: Lattice | None = None) -> MixtureProgress:
        """With rows of another length from here on."""
        assert lattice is not None
        if seq_len == self.seq_len:
            return self
        within = self.row % BLOCK
        lengths_of = {}
        for name in self.drawn():
            # A window has been entered where any lane has come into it: where (C + i) // B < what lane i has had.
            had = self.had(name, lattice, 0, lattice.lanes)
            most = had * lattice.lanes if isinstance(had, int) else had * lattice.lanes - np.arange(lattice.lanes)
            reached = most if isinstance(most, int) else int(most.max())
            lengths_of[name] = changed(self.length_of(name), reached, seq_len) if reached > 0 else ((0, seq_len),)
        pieces = self.pieces
        if within > self.cut:
            pieces = (*pieces, Piece(self.block, self.quotas, self.cut, within, self.seq_len))
        lengths = changed(self.lengths, self.position, seq_len)
        return replace(self, lengths=lengths, pieces=pieces, lengths_of=lengths_of)

    def check_rest(self, plan: MixturePlan) -> None:
        """Refuse where rows of this length use up more than a source has before the block's end.

        Raises:
            SourceExhaustedError: they do.
        """
        within = self.row % BLOCK
        for name, quota in self.quotas if within else ():
            if name in plan.limits:
                every = (0, plan.lattice.lanes)
                past = Piece(self.block, self.quotas, 0, within, 1).rows(name, plan.lattice, *every)
                had = self.had(name, plan.lattice, *every)
                if int(np.max(had + (quota - past) * self.seq_len)) + plan.overlap > plan.limits[name]:
                    raise SourceExhaustedError(
                        f"{name!r} has too little left within max_epochs to end this block in rows of {self.seq_len:,} "
                        f"tokens; use the seq_len of before until the next block begins, or raise max_epochs"
                    )

    def reweighted(self, weights: Weights, plan: MixturePlan) -> MixtureProgress:
        """With other weights from the next block on, unless a stage of the schedule begins with it."""
        block = -(-self.row // BLOCK)
        if any(begin == block for begin, *_ in plan.scheduled(self)):
            return self
        kept = tuple(stage for stage in self.stages if stage.block < block)
        return replace(self, stages=(*kept, Stage(block, weights, "reweight")))

    def _after_rows(self, rows: int) -> MixtureProgress:
        """After rows of one block, to its end at most."""
        within = self.row % BLOCK + rows
        after = replace(self, row=self.row + rows, position=self.position + rows * self.seq_len)
        if within < BLOCK:
            return after
        if self.cut:
            rest = Piece(self.block, self.quotas, self.cut, BLOCK, self.seq_len)
            return replace(after, pieces=(*self.pieces, rest))
        given = dict(self.given)
        for name, quota in self.quotas:
            given[name] = given.get(name, 0) + quota * self.seq_len
        return replace(after, given=given)

    def _after_blocks(self, blocks: int) -> MixtureProgress:
        """After whole blocks of one stage."""
        given = dict(self.given)
        for name, rows in self._rows_of_blocks(blocks).items():
            given[name] = given.get(name, 0) + rows * self.seq_len
        rows = blocks * BLOCK
        return replace(self, row=self.row + rows, position=self.position + rows * self.seq_len, given=given)

    def _rows_of_blocks(self, blocks: int) -> dict[str, int]:
        """A lane's rows of each source in so many blocks from here, all of one stage."""
        stage = self.stage_of(self.block)
        assert stage is not None
        weights = [weight for _, weight in stage.weights]
        begin = BLOCK * (self.block - stage.block)
        before, after = rows_given(begin, weights), rows_given(begin + blocks * BLOCK, weights)
        names = (name for name, _ in stage.weights)
        return {name: high - low for name, low, high in zip(names, before, after, strict=True) if high > low}

    def _blocks_ahead(self, most: int, plan: MixturePlan | None) -> int:
        """How many blocks from here are of the same stage, ``most`` at most, and at least 1."""
        later = [stage.block - self.block for stage in self.stages[self._stages_to(self.block) :][:1]]
        if plan is not None:
            later += [block - self.block for block, *_ in plan.scheduled(self) if block > self.block]
            low, high = 1, min([most, *later]) + 1  # that many last, that many may not
            while high - low > 1:
                middle = (low + high) // 2
                if all(self.lasts(name, middle, plan) for name in plan.limits):
                    low = middle
                else:
                    high = middle
            most = low
        return min([most, *later])

    def lasts(self, name: str, blocks: int, plan: MixturePlan) -> bool:
        """Whether a source has enough for so many blocks of this stage."""
        limit = plan.limits.get(name)
        if limit is None:
            return True
        rows = self._rows_of_blocks(blocks).get(name, 0)
        if not rows:
            return True
        had = self.had(name, plan.lattice, 0, plan.lattice.lanes)
        farthest = had if isinstance(had, int) else int(had.max())
        return farthest + rows * self.seq_len + plan.overlap <= limit


def traced(lattice: Lattice, lengths: Changes, stages: Iterable[Stage], position: int) -> MixtureProgress:
    """The progress of a run that had these lengths and stages, at a position that it has come to.

    Raises:
        ValueError: no run has come there like that.
    """
    stages = tuple(stages)
    if not lengths or lengths[0][0] != 0 or (position and (not stages or stages[0].block)):
        raise ValueError("a history begins at 0")
    progress = MixtureProgress(position=0, lengths=lengths[:1], stages=stages)
    for begin, seq_len in [*lengths[1:], (position, 0)]:
        end = min(begin, position)
        rows, over = divmod(end - progress.position, progress.seq_len)
        if over or rows < 0:
            raise ValueError(f"rows of {progress.seq_len} tokens do not lead from {progress.position} to {end}")
        progress = progress.advanced(rows)
        if not seq_len or end < begin:
            break
        progress = progress.resized(seq_len, lattice)
    return progress


def _exhausted(short: list[str], left: Weights, stage: Stage, token: int, redistribute: bool) -> SourceExhaustedError:
    names = " and ".join(repr(name) for name in short)
    if redistribute:
        error = SourceExhaustedError(
            f"all sources of the mixture have given their max_epochs at token {token:,} of the run; "
            "allow more epochs, or add a source"
        )
    else:
        ways = ["raise max_epochs"]
        if left:
            stage_left = [token, shown_weights(left)]  # as Python and --weights have it, and as TOML
            in_toml = json.dumps(stage_left, separators=(", ", " = "))
            ways.append(f"have the stage {json.dumps(stage_left)} in weights (in TOML {in_toml})")
            ways.append("give exhausted='redistribute'")
        error = SourceExhaustedError(
            f"{names} would be repeated more than max_epochs allows from token {token:,} of the run on; "
            + ", ".join(ways[:-1])
            + (" or " if len(ways) > 1 else "")
            + ways[-1]
        )
    error.sources = tuple(short)
    return error
