"""Sources that take their time, so that a run of `pretokenize` can be looked at, or ended, in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

# A source that takes its time: so long for every ten of its records.
SLOW = """
import time
from parquet_loader.pretokenize import Record, Source

class Slow(Source):
    def __init__(self, options):
        self.seconds, self.fails_at = float(options.inputs[0]), int(options.inputs[1])

    def records(self, cursor=None):
        for n in range(cursor[0] if cursor else 0, 1200):
            if n == self.fails_at:
                raise ValueError("the crawl is broken")
            if n % 10 == 0:
                time.sleep(self.seconds)
            yield Record(text=f"{n} " * 20, origin=f"record {n}", cursor=(n + 1,))

    def fingerprint(self):
        return {}
"""


@pytest.fixture
def slow_source(tmp_path: Path) -> Path:
    """A folder of modules with the source ``slow:Slow``; its inputs are the seconds, and which record fails, if any."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "slow.py").write_text(SLOW)
    return folder
