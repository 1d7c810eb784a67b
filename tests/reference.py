"""The order, written down a second time in the plainest way: token by token, straight from the documentation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from unique_sets import RowGroup


def philox_permutation(count: int, seed: int, epoch: int, lane: int, window: int, domain: int) -> list[int]:
    words = np.random.Philox(
        key=np.array([seed, epoch], np.uint64), counter=np.array([0, lane, window, domain], np.uint64)
    ).random_raw(count)
    return sorted(range(count), key=lambda place: int(words[place]))  # Python's sort is stable


def lane_streams(
    groups: Sequence[RowGroup],
    *,
    lanes: int,
    window: int,
    seed: int,
    shuffle: bool,
    epochs: int,
    eos_id: int | None = None,
    begins: list[set[int]] | None = None,
) -> list[list[int]]:
    """The tokens that each lane receives in the first epochs.

    Where `begins` has an empty set for each lane, the positions at which documents and fragments begin are put there.
    """
    groups = [group for group in groups if group]
    if eos_id is not None:
        groups = [[[*document, eos_id] for document in group] for group in groups]
    streams: list[list[int]] = [[] for _ in range(lanes)]
    received = 0
    for epoch in range(epochs):
        order = philox_permutation(len(groups), seed, epoch, 0, 0, 0) if shuffle else list(range(len(groups)))
        for number, first in enumerate(range(0, len(order), window)):
            documents = [document for place in order[first : first + window] for document in groups[place]]
            after = received + sum(map(len, documents))
            for lane in range(lanes):
                length = (after + lane) // lanes - (received + lane) // lanes
                fragments: list[list[int]] = []
                while length:
                    taken, left = documents[0][:length], documents[0][length:]
                    documents[:1] = [left] if left else []
                    length -= len(taken)
                    if taken:
                        fragments.append(taken)
                permuted = range(len(fragments))
                if shuffle:
                    permuted = philox_permutation(len(fragments), seed, epoch, lane, number, 1)
                for place in permuted:
                    if begins is not None:
                        begins[lane].add(len(streams[lane]))
                    streams[lane] += fragments[place]
            assert not any(documents)
            received = after
    return streams
