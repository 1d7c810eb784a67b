"""Decoding threads take turns in Python."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from parquet_loader.turns import Decoders, aside

with_lock = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without an interpreter's lock nobody takes turns"
)


def run_on(threads: int, decoders: Decoders) -> tuple[list[int], list[int]]:
    """How many threads were in Python at a time, and how many aside, each time that one had been there for a while."""
    inside: list[int] = []
    beside: list[int] = []
    counts = {"in": 0, "aside": 0}

    def stay(where: str, found: list[int]) -> None:
        counts[where] += 1
        time.sleep(0.02)
        found.append(counts[where])
        counts[where] -= 1

    def run() -> None:
        with decoders:
            stay("in", inside)
            with aside():
                stay("aside", beside)
            stay("in", inside)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    return inside, beside


@with_lock
def test_threads_are_in_python_one_by_one_and_aside_together() -> None:
    inside, beside = run_on(4, Decoders(4))
    assert inside == [1] * 8
    assert len(beside) == 4


@with_lock
def test_no_more_threads_decode_than_there_are_places() -> None:
    _, beside = run_on(6, Decoders(2))
    assert len(beside) == 6
    assert max(beside) <= 2


def test_a_thread_that_does_not_decode_may_step_aside() -> None:
    with aside():
        pass


def test_a_turn_is_given_back_after_an_error() -> None:
    decoders = Decoders(2)
    with pytest.raises(KeyError), decoders, aside():
        raise KeyError
    assert run_on(1, decoders) == ([1, 1], [1])
