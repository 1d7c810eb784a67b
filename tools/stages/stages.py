"""Where the loader's time goes: ns per token of each stage of a row group's way, on one thread.

    python tools/stages/stages.py [--tokens 32000000] [--rounds 5] [--layout dictionary] [--mean-length 1000]

The engine's tasks are run one after another on this thread, with a clock around the functions that do the stages, and
then batches are taken whose windows are there already. Each stage's best round is told: others on the machine can only
add to it. The set is the one of `tools/scaling/scaling.py`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from parquet_loader import ParquetLoader
from parquet_loader.engine import engine, pack, slices, task, work
from parquet_loader.engine.config import Counters, EngineConfig
from parquet_loader.engine.prefetch import Budget, Task
from parquet_loader.engine.reserve import Reserve
from parquet_loader.formats.parquet import PARQUET, decode, pages, values
from parquet_loader.order import order
from parquet_loader.order.order import Window
from parquet_loader.storage import local
from parquet_loader.turns import Decoders

sys.path.insert(0, str(Path(__file__).parents[1] / "scaling"))
from scaling_data import ENCODINGS, PRETOKENIZE, SetSpec, generate

# Where a stage is done: (the stage, who has the function, its name). A stage within another is taken off it.
CLOCKS: list[tuple[str, Any, str]] = [
    ("read", local.LocalStorage, "read"),
    ("page headers", decode, "plan_pages"),
    ("checksums", pages, "stored_body"),
    ("decompress", pages, "unpack_body"),
    ("levels", decode, "unusual_levels"),
    ("levels", decode, "document_offsets"),
    ("values", decode, "read_dictionary"),
    ("values", values.EncodedValues, "__init__"),
    ("values", values.EncodedValues, "append"),
    ("values", values.EncodedValues, "tokens"),
    ("values", values.PlainValues, "append"),
    ("page headers", PARQUET, "open"),
    ("the rest of decoding", decode.OpenChunk, "_decode"),
    ("cut: borders", slices, "_borders"),
    ("cut: random words", order, "random_words"),
    ("cut: argsort", order, "stable_argsort"),
    ("cut: move documents", slices, "permuted"),
    ("the rest of cutting", work, "cut_band"),
    ("parts to bands", task._PlaneRun, "_cut_from"),
    ("plan", engine, "plan_window"),
    ("rows: copy", pack, "_copy"),
]


class Clocks:
    """Seconds of each stage, without those of the stages within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._within = [0.0]  # of stages within the one that runs, a number for each that does

    def around(self, stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted."""

        def timed(*arguments: Any, **options: Any) -> Any:
            self._within.append(0.0)
            begin = time.perf_counter()
            try:
                return work(*arguments, **options)
            finally:
                took = time.perf_counter() - begin
                self.seconds[stage] += took - self._within.pop()
                self._within[-1] += took

        return timed


def _windows(config: EngineConfig) -> Iterator[tuple[int, Window]]:
    return ((0, window) for window in config.order.windows(0, config.last - 1))


def tasks_ns(loader: ParquetLoader, row_groups: int, clocks: Clocks) -> dict[str, float]:
    """Reading, decoding and cutting so many row groups: ns per token of each stage."""
    config = loader._config
    budget = Budget(1 << 60)
    budget.held_bytes = 1 << 59  # whatever is given back
    shared = engine._Shared(budget, Counters(), Decoders(1), threading.Event(), Reserve(0, budget))
    clocks.seconds.clear()
    kept: list[object] = []
    begin = time.perf_counter()
    for each in itertools.islice(engine._tasks([config], _windows(config), shared), row_groups):
        assert isinstance(each, Task)
        kept = [*kept[1 - config.order.window :], each.run()]
    whole = time.perf_counter() - begin
    tokens = shared.counters.tokens_decoded
    found = {stage: seconds / tokens * 1e9 for stage, seconds in clocks.seconds.items()}
    found["the rest of tasks"] = (whole - sum(clocks.seconds.values())) / tokens * 1e9
    return found


def rows_ns(loader: ParquetLoader, clocks: Clocks) -> dict[str, float]:
    """Taking batches that are there, ns per token: the copy, and all that is around it."""
    batches = iter(loader)
    for _ in range(8):
        next(batches)
    decoded = -1
    while decoded != (decoded := loader.stats()["tokens_decoded"]):  # until no thread has anything to do
        time.sleep(0.05)
    for _ in range(8):
        next(batches)
    clocks.seconds.clear()
    begin, tokens = time.perf_counter(), 0
    for _ in range(32):
        tokens += next(batches).tokens.size
    whole = time.perf_counter() - begin
    copy = clocks.seconds["rows: copy"]
    return {"rows: copy": copy / tokens * 1e9, "the rest of batches": (whole - copy) / tokens * 1e9}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32_000_000, help="8,000,000 or more")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layout", choices=[*ENCODINGS, PRETOKENIZE], default="dictionary")
    parser.add_argument("--codec", default="snappy")
    parser.add_argument("--mean-length", type=float, default=1000, help="tokens of a document, on average")
    parser.add_argument("--group-tokens", type=int, default=1_000_000, help="tokens of a row group, about")
    parser.add_argument("--window", type=int, default=16, help="row groups of a window")
    options = parser.parse_args()
    clocks = Clocks()
    for stage, owner, name in CLOCKS:
        setattr(owner, name, clocks.around(stage, getattr(owner, name)))
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        spec = SetSpec(
            tokens=options.tokens,
            group_tokens=options.group_tokens,
            mean_length=options.mean_length,
            encoding=options.layout,
            codec=options.codec,
        )
        generate(Path(folder) / "set", spec)
        for _ in range(options.rounds):
            with ParquetLoader(
                Path(folder) / "set", seq_len=2048, lanes=64, window=options.window, cache_dir=folder
            ) as loader:
                found = tasks_ns(loader, len(loader.index) * 2, clocks) | rows_ns(loader, clocks)
            best = {stage: min(ns, best.get(stage, ns)) for stage, ns in found.items()}
    print(f"{options.layout}, {options.codec}, documents of {options.mean_length:,g} tokens")
    print(f"ns per token, best of {options.rounds} rounds")
    for stage, ns in best.items():
        print(f"{stage:24}  {ns:5.2f}")
    print(f"{'all':24}  {sum(best.values()):5.2f}")


if __name__ == "__main__":
    main()
