"""Interrupts at any moment of a critical section leave its lock free."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import pytest

from parquet_loader import LoaderInUseError, interrupts
from parquet_loader.interrupts import Bell, Turn, under


class Interrupted(Exception):
    """What a signal raises."""


class InterruptedRLock:
    """An RLock that is taken by ``with``, whose block an interrupt does not let begin: as Python 3.14 has it."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1
        raise Interrupted

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    def _recursion_count(self) -> int:
        return self.depth

    def release(self) -> None:
        self.depth -= 1


@pytest.mark.parametrize("outer", [0, 1])
def test_a_lock_whose_block_never_began_is_given_back(outer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_LEAVES_LOCKED", True)
    lock = InterruptedRLock()
    lock.depth = outer  # an owner further out keeps it
    with pytest.raises(Interrupted):
        under(lock, lambda: None)
    assert lock.depth == outer


@pytest.mark.skipif(not hasattr(threading.RLock(), "_recursion_count"), reason="this Python's locks do not count")
@pytest.mark.parametrize("leaves_locked", [False, True])
def test_the_result_and_errors_come_out_and_the_lock_is_free(
    leaves_locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "_LEAVES_LOCKED", leaves_locked)
    lock = threading.RLock()

    def fail() -> None:
        raise KeyError

    assert under(lock, lambda: under(lock, lambda: 7)) == 7
    with pytest.raises(KeyError):
        under(lock, fail)
    assert not lock._is_owned()  # type: ignore[attr-defined]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_signals_at_any_moment_leave_the_lock_free() -> None:
    lock: Any = threading.RLock()
    interrupts = 0
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(3_000):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 100e-6 + number % 97 * 1e-6)
                while armed:
                    under(lock, lambda: None)
            except Interrupted:
                interrupts += 1
            assert not lock._is_owned(), f"Python {sys.version}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 1_000


def on_another_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_bell_has_whoever_waits_look_again() -> None:
    lock = threading.RLock()
    bell, found = Bell(lock), []

    def ring() -> None:
        while not bell.awaited:
            pass
        with lock:
            found.append(7)
            bell.ring()

    thread = threading.Thread(target=ring)
    thread.start()
    assert bell.wait_for(lambda: found[0] if found else None) == 7
    thread.join()
    assert not bell.awaited


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_nobody_waits_for_a_bell_any_more_once_interrupted() -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    lock = threading.RLock()
    bell = Bell(lock)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(Interrupted):
            bell.wait_for(lambda: None)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not bell.awaited
    bell.ring()
    assert bell.wait_for(lambda: 3) == 3


def test_a_turn_lets_in_nobody_while_another_thread_is_there_and_anybody_afterwards() -> None:
    turn, results = Turn(), []

    def enter() -> None:
        try:
            results.append(turn.run(lambda: "in"))
        except LoaderInUseError:
            results.append("told")

    turn.run(lambda: on_another_thread(enter))
    on_another_thread(enter)
    assert results == ["told", "in"]


def test_an_interrupt_before_the_turns_work_begins_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, results = Turn(), []

    def interrupted(lock: Any, work: Any) -> None:
        work()
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(interrupts, "under", interrupted)
        turn.run(lambda: None)
    on_another_thread(lambda: results.append(turn.run(lambda: "in")))
    assert results == ["in"]
