"""Trying again what failed in passing: how long, with which pauses, and what is told of it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import LoaderClosedError, StorageError
from ..interrupts import under

__all__ = ["RETRY_SECONDS", "Retries"]

T = TypeVar("T")

RETRY_SECONDS = 300.0  # a store's outages last minutes, and a training run's restart costs more than waiting for them
_STALL_SECONDS = 15.0  # the longest that a fault goes unnoticed: how long clients wait for a byte
_BURST_SECONDS = 60.0  # failures closer to each other are told of once

_logger = logging.getLogger("parquet_loader")


class Retries:
    """Makes requests, again after passing faults, for a limited time, and counts.

    The time runs from the moment when a request may have begun to fail, which is some seconds before a stalled one is
    noticed. Pauses double, are cut short by chance so that many ranks do not come back at once, and end early when the
    loader is closed.

    Args:
        limit_seconds: how long a request is tried again; 0 for never.

    Attributes:
        count: requests made again.
    """

    FIRST_PAUSE_SECONDS = 0.2
    LONGEST_PAUSE_SECONDS = 10.0

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self.count = 0
        self._lock = threading.RLock()
        self._told = -_BURST_SECONDS

    def __reduce__(self) -> tuple[type[Retries], tuple[float]]:
        return Retries, (self.limit_seconds,)  # a copy has made no request

    def call(
        self,
        request: Callable[[float | None], T],
        judge: Callable[[Exception, int, float], tuple[StorageError, bool]],
        stop: threading.Event | None = None,
    ) -> T:
        """The answer to a request.

        Args:
            request: called with the time, by `time.monotonic`, after which no answer is waited for; None for no limit.
            judge: called with what a request raised, the number of requests made and the seconds they took; gives the
                error to raise if this was the last one, and whether another may go well.
            stop: set when the answer is not wanted any more.

        Raises:
            StorageError: what ``judge`` made of the last failure.
            LoaderClosedError: ``stop`` was set.
        """
        begun = time.monotonic()
        give_up: float | None = None
        attempt = 1
        while True:
            try:
                return request(give_up)
            except (StorageError, LoaderClosedError):
                raise
            except Exception as error:  # each filesystem has its own kinds of faults
                now = time.monotonic()
                failure, may_pass = judge(error, attempt, now - begun)
            if give_up is None:
                give_up = max(begun, now - _STALL_SECONDS) + self.limit_seconds
            longest = min(self.LONGEST_PAUSE_SECONDS, self.FIRST_PAUSE_SECONDS * 2 ** min(attempt - 1, 16))
            pause = longest * random.uniform(0.5, 1)
            if not may_pass or now + pause >= give_up:
                raise failure  # out of the except block, so that an error that shows a secret is not its context
            self._tell(failure, give_up - now)
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                raise LoaderClosedError("closed while a read was tried again")
            attempt += 1

    def _tell(self, failure: StorageError, seconds_left: float) -> None:
        now = time.monotonic()

        def note() -> bool:
            self.count += 1
            quiet, self._told = now - self._told > _BURST_SECONDS, now
            return quiet

        if under(self._lock, note):
            _logger.warning(
                "%s; trying again for up to %.0f s (retries are counted by stats(), and not logged again until a "
                "minute has passed without one)",
                failure,
                seconds_left,
            )
