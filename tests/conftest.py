from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# Or each of the many processes that tests start would compile the package anew where this is set.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A deadline would be a timed assertion, on machines whose speed varies.
settings.register_profile(
    "project", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("project")


@pytest.fixture(scope="session")
def cache_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of folders that are not there."""
    parent = tmp_path_factory.mktemp("caches")
    return (parent / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def own_cache_folder(cache_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the cache of whoever runs the tests, nor another's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(next(cache_folders)))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every test ends all of the loader's threads that it started."""
    before = set(threading.enumerate())  # another test's failure is its own
    yield
    left = [thread for thread in threading.enumerate() if thread.name.startswith("parquet-loader")]
    assert before.issuperset(left), left
