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


def run_state(state: Mapping[str, Any], seq_len: int) -> Mapping[str, Any]:
    """The loader's state in that of a ``StatefulDataLoader``; any other comes back as it is.

    Args:
        state: what ``StatefulDataLoader.state_dict()`` gave.
        seq_len: by which the batches advanced.
    """
    if not isinstance(state, Mapping):
        return state
    if "dataset_state" in state:
        found: Mapping[str, Any] = state["dataset_state"]
        return found
    if "_snapshot" not in state:
        return state
    snapshot, since = state["_snapshot"], plain(state["_steps_since_snapshot"])
    states = [snapshot["_worker_snapshots"][f"worker_{worker}"] for worker in range(len(snapshot["_worker_snapshots"]))]
    workers, following = len(states), plain(snapshot["_last_yielded_worker_id"]) + 1
    positions = [
        plain(each["dataset_state"]["position"])
        + seq_len * ((since + workers - 1 - (worker - following) % workers) // workers)
        for worker, each in enumerate(states)
    ]
    return {**states[0]["dataset_state"], "position": min(positions)}
