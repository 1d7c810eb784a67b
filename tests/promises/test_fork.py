"""Processes that are forked from, or spawned beside, one that has a loader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from subprocesses import run
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import ParquetLoader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = unique_groups(random_files(np.random.default_rng(3), files=4, groups=5))
    return write_set(tmp_path_factory.mktemp("set"), files)


# Forks with `taken` batches taken, goes on in both processes, and writes what each then got. The parent forks many
# times, so that some forks come in the middle of whatever a thread of the loader holds.
FORKS = """
    import os, sys, threading, warnings
    import numpy as np
    from parquet_loader import ParquetLoader

    warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which is what this is about
    folder, result, taken, forks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    loader = ParquetLoader(folder, seq_len=16, lanes=6, window=3, threads=4, cache_dir=sys.argv[5])

    def take(count):
        tokens = []
        while len(tokens) < count:
            for batch in loader:
                tokens.append(batch.tokens)
                if len(tokens) == count:
                    break
        return tokens

    take(taken)
    children = []
    for number in range(forks):
        child = os.fork()
        if not child:
            position = loader.state_dict()["position"]
            np.save(f"{result}/child-{number}.npy", np.stack(take(20)))
            assert loader.stats()["position"] == position + 20 * 16
            if number % 2:
                loader.close()
                assert threading.active_count() == 1
            sys.exit()  # the way with finalizers and atexit
        children.append(child)
        if taken:
            np.save(f"{result}/parent-{number}.npy", np.stack(take(1)))
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    np.save(f"{result}/parent.npy", np.stack(take(20)))
"""


@pytest.mark.parametrize(("taken", "forks"), [(0, 1), (1, 8)])
def test_parent_and_child_go_on_from_the_same_position_with_the_same_batches(
    folder: Path, tmp_path: Path, taken: int, forks: int
) -> None:
    run(FORKS, folder, tmp_path, taken, forks, tmp_path / "cache")
    with ParquetLoader(folder, seq_len=16, lanes=6, window=3) as loader:
        expected = np.stack([batch.tokens for _ in range(3) for batch in loader])
    at = taken
    for number in range(forks):
        assert np.array_equal(np.load(tmp_path / f"child-{number}.npy"), expected[at : at + 20])
        if taken:
            assert np.array_equal(np.load(tmp_path / f"parent-{number}.npy"), expected[at : at + 1])
            at += 1
    assert np.array_equal(np.load(tmp_path / "parent.npy"), expected[at : at + 20])


def test_a_child_that_never_touches_the_loader_exits_cleanly(folder: Path, tmp_path: Path) -> None:
    program = """
        import os, sys, warnings
        from parquet_loader import ParquetLoader

        warnings.simplefilter("ignore", DeprecationWarning)
        loader = ParquetLoader(sys.argv[1], seq_len=16, lanes=6, window=3, threads=4)
        next(iter(loader))
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            next(iter(loader))
    """
    run(program, folder)


def test_spawned_processes_each_make_their_own_loader(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "import numpy as np\n"
        "from parquet_loader import ParquetLoader\n"
        "def rank(number, folder, result):\n"
        "    with ParquetLoader(folder, seq_len=16, lanes=6, window=3, rank=number, world_size=2) as loader:\n"
        "        batches = [next(iter(loader)).tokens for _ in range(20)]\n"
        "    np.save(f'{result}/{number}.npy', np.stack(batches))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    ranks = [context.Process(target=rank, args=(number, *sys.argv[1:])) for number in range(2)]\n"
        "    for process in ranks:\n"
        "        process.start()\n"
        "    for process in ranks:\n"
        "        process.join()\n"
        "        assert process.exitcode == 0\n"
    )
    run(f"import sys, runpy; runpy.run_path({str(script)!r}, run_name='__main__')", folder, tmp_path)
    with ParquetLoader(folder, seq_len=16, lanes=6, window=3) as loader:
        expected = np.stack([next(iter(loader)).tokens for _ in range(20)])
    assert np.array_equal(np.concatenate([np.load(tmp_path / f"{rank}.npy") for rank in range(2)], axis=1), expected)
