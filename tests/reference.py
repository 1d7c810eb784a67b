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


def lane_texts(
    groups: Sequence[RowGroup],
    *,
    lanes: int,
    window: int,
    seed: int,
    shuffle: bool,
    epochs: int,
    eos_id: int | None = None,
    begins: list[set[int]] | None = None,
    windows: list[tuple[int, int, int, int]] | None = None,
) -> list[list[int]]:
    """The text of each lane in the first epochs: its slices in a row, before the steps of windows are permuted.

    Where `begins` has an empty set for each lane, the places at which documents and fragments begin are put there; and
    in `windows` each window: (epoch, number in it, tokens before it, tokens before the next one).
    """
    groups = [group for group in groups if group]
    if eos_id is not None:
        groups = [[[*document, eos_id] for document in group] for group in groups]
    texts: list[list[int]] = [[] for _ in range(lanes)]
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
                        begins[lane].add(len(texts[lane]))
                    texts[lane] += fragments[place]
            assert not any(documents)
            if windows is not None:
                windows.append((epoch, number, received, after))
            received = after
    return texts


def places_in_text(
    windows: Sequence[tuple[int, int, int, int]],
    *,
    lanes: int,
    seed: int,
    shuffle: bool,
    lengths: Sequence[tuple[int, int]],
) -> list[int]:
    """Where in the lanes' texts the token lies that comes at each position, as far as all lanes have text.

    `lengths` are the tokens of a row, from which position on; where lanes stand apart, that of C by the lanes.
    """
    places = list(range(windows[-1][3] // lanes))
    for epoch, number, before, after in windows if shuffle else []:
        # The length of the first row that reaches into the window.
        length = next(length for begin, length in reversed(lengths) if begin * lanes <= before)
        blocks = [
            block
            for block in range(before // lanes // length, after // lanes // length + 1)
            # Every lane has all of it, and a token more.
            if all((before + lane) // lanes <= block * length for lane in range(lanes))
            and all((block + 1) * length < (after + lane) // lanes for lane in range(lanes))
        ]
        for block, place in zip(blocks, philox_permutation(len(blocks), seed, epoch, 0, number, 2), strict=True):
            text = blocks[place] * length
            places[block * length : (block + 1) * length] = range(text, text + length)
    return places


def lane_streams(
    groups: Sequence[RowGroup],
    *,
    seq_len: int,
    lanes: int,
    window: int,
    seed: int,
    shuffle: bool,
    epochs: int,
    eos_id: int | None = None,
) -> list[list[int]]:
    """The tokens that each lane delivers in the first epochs, in rows of one length."""
    windows: list[tuple[int, int, int, int]] = []
    order = {"lanes": lanes, "seed": seed, "shuffle": shuffle}
    texts = lane_texts(groups, window=window, epochs=epochs, eos_id=eos_id, windows=windows, **order)
    places = places_in_text(windows, lengths=[(0, seq_len)], **order)
    return [[text[place] for place in places] for text in texts]


def row_lanes(
    groups: Sequence[Sequence[Sequence[int]]], *, lanes: int, window: int, seed: int, shuffle: bool, epochs: int
) -> list[list[Sequence[int]]]:
    """The rows that each lane gets in the first epochs, of a set whose documents are rows that were packed before."""
    groups = [group for group in groups if group]
    streams: list[list[Sequence[int]]] = [[] for _ in range(lanes)]
    received = 0
    for epoch in range(epochs):
        order = philox_permutation(len(groups), seed, epoch, 0, 0, 0) if shuffle else list(range(len(groups)))
        for number, first in enumerate(range(0, len(order), window)):
            rows = [row for place in order[first : first + window] for row in groups[place]]
            after = received + len(rows)
            for lane in range(lanes):
                count = (after + lane) // lanes - (received + lane) // lanes
                mine, rows = rows[:count], rows[count:]
                places = philox_permutation(count, seed, epoch, lane, number, 1) if shuffle else range(count)
                streams[lane] += [mine[place] for place in places]
            assert not rows
            received = after
    return streams
