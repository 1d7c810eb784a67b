"""When a prefetcher has run all that it may, without a clock."""

from __future__ import annotations

import time

from parquet_loader import ParquetLoader
from parquet_loader.engine.prefetch import Prefetcher


def wait_until_idle(source: Prefetcher | ParquetLoader) -> None:
    """Wait until no task runs and the thread whose turn it is waits for room."""
    prefetcher = source if isinstance(source, Prefetcher) else source._engine._prefetcher
    shared = prefetcher._shared
    while True:
        with shared.lock:
            if not shared.running and shared.condition._waiters:
                return
        time.sleep(0.001)
