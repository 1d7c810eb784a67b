"""The run's position in a state of torchdata's ``StatefulDataLoader``, which is valid for its number of workers only.

With workers it holds each one's position at a snapshot, and how many batches came after that, from one worker after the
other. Of three workers, rows of 10, the last batch before the snapshot from worker 0, four batches since:

    at the snapshot    worker 0: 20    worker 1: 10    worker 2: 10
    batches since                3               1, 4            2
    now                          30              30              20        20: the step is incomplete, and is repeated
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checkpoint import plain

__all__ = ["run_state"]


def run_state(state: Mapping[str, Any], seq_len: int) -> tuple[Mapping[str, Any], int | None]:
    """The loader's state in that of a ``StatefulDataLoader``; any other comes back as it is.

    Args:
        state: what ``StatefulDataLoader.state_dict()`` gave.
        seq_len: by which the batches advanced.

    Returns:
        A state, and the position to which the run has moved on from it; None for that of the state.
    """
    if not isinstance(state, Mapping):
        return state, None
    if "dataset_state" in state:
        return state["dataset_state"], None
    if "_snapshot" not in state:
        return state, None
    snapshot, since = state["_snapshot"], plain(state["_steps_since_snapshot"])
    workers, following = len(snapshot["_worker_snapshots"]), plain(snapshot["_last_yielded_worker_id"]) + 1
    states = [snapshot["_worker_snapshots"][f"worker_{worker}"]["dataset_state"] for worker in range(workers)]
    begins = [plain(each["position"]) for each in states]
    positions = [
        begin + seq_len * ((since + workers - 1 - (worker - following) % workers) // workers)
        for worker, begin in enumerate(begins)
    ]
    return states[begins.index(min(begins))], min(positions)
