"""What a token costs in each format: bytes as stored, and CPU time from storage to batches, in one run.

    python tools/stages/formats_benchmark.py

The same documents of about 1,000 tokens, by Zipf's law, in the same groups of a million tokens. Rounds of all formats
one after another, in this process, with one thread that decodes; the best of each, since others on the machine can only
add to it. All know the vocabulary, as Parquet does from its statistics.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader import ParquetLoader

VOCABULARY, EOS = 50_257, 65_535
Groups = list[tuple[np.ndarray[tuple[int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.int32]]]]


def groups_of(count: int, document_tokens: int) -> Groups:
    """(Offsets, tokens) of each group."""
    rng = np.random.default_rng(0)
    share = np.cumsum(1 / (np.arange(VOCABULARY) + 2.7) ** 1.07)
    groups = []
    for _ in range(count):
        lengths = rng.geometric(1 / document_tokens, max(1, 1_000_000 // document_tokens))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tokens = share.searchsorted(rng.random(offsets[-1]) * share[-1]).astype(np.int32)
        groups.append((offsets, tokens))
    return groups


def tables(groups: Groups, kind: str = "int32") -> list[pa.Table]:
    """A table for each group."""
    return [
        pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens.astype(kind)))})
        for offsets, tokens in groups
    ]


def as_parquet(path: Path, groups: Groups, kind: str = "int32", **options: Any) -> None:
    """One Parquet file."""
    made = tables(groups, kind)
    with pq.ParquetWriter(path / "set.parquet", made[0].schema, **options) as writer:
        for table in made:
            writer.write_table(table, row_group_size=1 << 30)


def as_arrow(path: Path, groups: Groups, kind: str = "int32", codec: str | None = None) -> None:
    """One Arrow IPC file."""
    made = tables(groups, kind)
    with pa.ipc.new_file(path / "set.arrow", made[0].schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as out:
        for table in made:
            out.write_table(table)


def as_raw(path: Path, groups: Groups) -> None:
    """A shard for each group, so that groups are the same, with an EOS behind every document."""
    for number, (offsets, tokens) in enumerate(groups):
        np.insert(tokens.astype(np.uint16), offsets[1:], EOS).tofile(path / f"{number:04}.bin")


Write = Callable[[Path, Groups], None]
FORMATS: dict[str, tuple[Write, Mapping[str, Any]]] = {
    "Parquet, pyarrow's default": (as_parquet, {}),
    "Parquet, as pretokenize writes it": (
        lambda path, groups: as_parquet(
            path,
            groups,
            "uint16",
            compression="lz4",
            use_dictionary=False,
            column_encoding={"tokens.list.element": "BYTE_STREAM_SPLIT"},
        ),
        {},
    ),
    "Parquet, zstd": (lambda path, groups: as_parquet(path, groups, compression="zstd"), {}),
    "Arrow, uint16": (lambda path, groups: as_arrow(path, groups, "uint16"), {}),
    "Arrow, int32": (as_arrow, {}),
    "Arrow, int64": (lambda path, groups: as_arrow(path, groups, "int64"), {}),
    "Arrow, int32, lz4": (lambda path, groups: as_arrow(path, groups, codec="lz4"), {}),
    "Arrow, int32, zstd": (lambda path, groups: as_arrow(path, groups, codec="zstd"), {}),
    "raw, uint16": (as_raw, {"raw_dtype": "uint16", "eos_id": EOS, "vocab_size": EOS + 1}),
}


def cost_ns(folder: Path, options: Mapping[str, Any]) -> float:
    """CPU time of this process per token, from the first batch on, so that what is done once does not count."""
    shape = {"seq_len": 2_048, "lanes": 64, "window": 8, "epochs": 4, "threads": 1, "vocab_size": VOCABULARY}
    with ParquetLoader(folder, cache_dir=folder.parent / "cache", **(shape | dict(options))) as loader:
        batches = iter(loader)
        next(batches)
        begin, tokens = time.process_time(), 0
        while loader.epoch < 4:
            for batch in batches:
                tokens += batch.tokens.size
            batches = iter(loader)
        return (time.process_time() - begin) / tokens * 1e9


def main() -> None:
    """Measure each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=16, help="of a million tokens")
    parser.add_argument("--document-tokens", type=int, default=1_000, help="mean length of a document")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        groups = groups_of(arguments.groups, arguments.document_tokens)
        count = sum(len(tokens) for _, tokens in groups)
        folders = {}
        for number, (label, (write, _)) in enumerate(FORMATS.items()):
            folders[label] = Path(name) / str(number)
            folders[label].mkdir()
            write(folders[label], groups)
        best = dict.fromkeys(FORMATS, float("inf"))
        for _ in range(arguments.rounds):
            for label, (_, options) in FORMATS.items():
                best[label] = min(best[label], cost_ns(folders[label], options))
        print("| format | bytes a token | CPU ns a token | ratio |")
        print("|---|---:|---:|---:|")
        first = next(iter(best.values()))
        for label, found in best.items():
            size = sum(file.stat().st_size for file in folders[label].iterdir()) / count
            print(f"| {label} | {size:.2f} | {found:.2f} | {found / first:.2f} |")


if __name__ == "__main__":
    main()
