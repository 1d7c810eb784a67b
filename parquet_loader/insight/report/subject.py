"""What a page is about, and words that its sections share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...runs import MixtureRun, SetRun
from ...sets import OpenSet
from ..describe import CheckpointDescription
from ..inspect import Inspection
from ..plan import Plan
from ..ranks import WorldSizePlan

__all__ = ["Subject", "counted", "label"]


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


def counted(count: int, what: str) -> str:
    """A number of things."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def label(number: int, by: str) -> str:
    """What a stage is called."""
    return f"stage {number + 1}" + (", reweighted" if by == "reweight" else "")
