"""What a run tells of itself on the way."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from parquet_loader.pretokenize.run import progress
from parquet_loader.pretokenize.run.progress import Progress, describe, reporting


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def done(megabytes: int, *, fraction: float | None = None, earlier: int = 0) -> Progress:
    return Progress(
        documents=megabytes,
        tokens=10 * megabytes,
        text_bytes=megabytes * 10**6,
        earlier_bytes=earlier * 10**6,
        fraction=fraction,
    )


def test_where_there_is_no_terminal_a_line_is_printed_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    with reporting(stream) as show:
        for _ in range(190):
            clock.now += 1
            show(done(int(clock.now - 1000), fraction=(clock.now - 1000) / 380))
    assert stream.getvalue().splitlines() == [
        "pretokenize: 16 %, 60 documents, 600 tokens, 60.0 MB of text, 1.0 MB/s, 0:05:20 left",
        "pretokenize: 32 %, 120 documents, 1,200 tokens, 120.0 MB of text, 1.0 MB/s, 0:04:20 left",
        "pretokenize: 47 %, 180 documents, 1,800 tokens, 180.0 MB of text, 1.0 MB/s, 0:03:20 left",
    ]


def test_a_run_that_is_over_within_a_minute_prints_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    with reporting(stream) as show:
        clock.now += 59
        show(done(5))
    assert not stream.getvalue()


def test_what_an_earlier_run_did_is_no_part_of_the_speed() -> None:
    assert "2.0 MB/s, 0:00:10 left" in describe(done(80, earlier=60, fraction=0.8), 10.0)


@pytest.mark.parametrize("fraction", [None, 0.0])
def test_without_an_end_in_sight_no_time_is_told(fraction: float | None) -> None:
    assert describe(done(8, fraction=fraction), 4.0).endswith("8.0 MB of text, 2.0 MB/s")


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_the_first_moment_divides_by_nothing(seconds: float) -> None:
    describe(done(0), seconds)
    describe(done(1, fraction=1.0), seconds)


def terminal_of(columns: int) -> Callable[[int], object]:
    return lambda _: type("Size", (), {"columns": columns})()


@pytest.mark.parametrize("columns", [0, 80])
def test_on_a_terminal_a_bar_shows_share_and_time_left(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def fileno(self) -> int:
            return 1

    monkeypatch.setattr(progress.os, "get_terminal_size", terminal_of(columns))
    stream = Terminal()
    with reporting(stream) as show:
        show(done(25, fraction=0.25, earlier=20))
        show(done(50, fraction=0.5, earlier=20))
    shown = stream.getvalue().split("\r")[-1]
    assert shown.startswith("pretokenize:  50%")
    assert "50.0M/100M" in shown
    assert "50 docs, 500 tokens" in shown
