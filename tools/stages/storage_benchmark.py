"""Clients of an S3 server compared, in one run: what the loader reads through beside what it might.

    python tools/stages/storage_benchmark.py                             starts a SeaweedFS server on loopback
    python tools/stages/storage_benchmark.py --url s3://bucket/folder    another store; the folder is written to

Every way reads the same ranges with as many requests at once, in turns; figures are medians of the rounds. Server and
client share the machine's cores, so that they are relative.

    s3fs          `cat_file` from threads: s3fs with its own retries, no pinning
    pyarrow       `S3FileSystem`: `open_input_file` with the size known, `read_at`
    parquet_loader  `Storage.read`: s3fs, pinned by If-Match, tried again by the loader
    loader        `ParquetLoader`: reads, decodes, shuffles and packs; MB/s are of the bytes read
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import S3FileSystem

from parquet_loader import ParquetLoader, build_index
from parquet_loader.storage import open_storage

Read = Callable[[str, int, int], Any]
_MARKERS = "<!-- storage -->", "<!-- end -->"


def write_set(fs: Any, folder: str, *, files: int, groups: int, tokens: int) -> None:
    """Files of row groups of so many tokens, plain and uncompressed."""
    rng = np.random.default_rng(0)
    schema = pa.schema([pa.field("tokens", pa.list_(pa.int32()))])
    for number in range(files):
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, schema, use_dictionary=False, compression="none") as writer:
            for _ in range(groups):
                values = rng.integers(0, 50_000, tokens, np.int32)
                offsets = np.arange(0, tokens + 1, 1000, dtype=np.int32)
                writer.write_table(pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))}))
        fs.pipe_file(f"{folder}/part-{number:03}.parquet", sink.getvalue().to_pybytes())


def clients(url: str, options: dict[str, Any]) -> dict[str, Read]:
    """Ways to read a range of a file below a URL."""
    fs, folder = fsspec.url_to_fs(url, **options)
    storage = open_storage(url, options)
    known = {file.path: file for file in storage.list_files()}
    endpoint = urlsplit(options.get("endpoint_url") or os.environ.get("AWS_ENDPOINT_URL", ""))
    arrow = S3FileSystem(
        access_key=options.get("key"),
        secret_key=options.get("secret"),
        region="us-east-1",
        **({"scheme": endpoint.scheme, "endpoint_override": endpoint.netloc} if endpoint.netloc else {}),
    )

    def through_arrow(path: str, start: int, length: int) -> Any:
        with arrow.open_input_file(f"{folder}/{path}") as file:
            return file.read_at(length, start)

    return {
        "s3fs": lambda path, start, length: fs.cat_file(f"{folder}/{path}", start=start, end=start + length),
        "pyarrow S3FileSystem": through_arrow,
        "parquet_loader's storage": lambda path, start, length: storage.read(known[path], start, length),
    }


def measure(work: Callable[[], int]) -> tuple[float, float]:
    """(bytes a second, CPU seconds for a GB)."""
    wall, cpu = time.perf_counter(), time.process_time()
    read = work()
    return read / (time.perf_counter() - wall), (time.process_time() - cpu) / read * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a folder of a store; without it a server is started here")
    parser.add_argument("--requests", type=int, default=8, help="at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of a row group, 4 bytes each")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/storage.md")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        url = arguments.url
        if url is None:
            sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
            from s3_server import s3_server  # type: ignore[import-not-found]

            folder = stack.enter_context(tempfile.TemporaryDirectory())
            options = stack.enter_context(s3_server(Path(folder) / "data")).storage_options
            url = "s3://bucket1/benchmark"
        fs, path = fsspec.url_to_fs(url, **options)
        write_set(fs, path, files=8, groups=6, tokens=arguments.tokens)
        index = build_index(url, storage_options=options, cache_dir=stack.enter_context(tempfile.TemporaryDirectory()))
        groups = range(len(index))
        ranges = [(index.files[int(index.file[g])].path, int(index.start[g]), int(index.length[g])) for g in groups]

        def all_ranges(read: Read) -> int:
            with ThreadPoolExecutor(arguments.requests) as pool:
                return sum(len(data) for data in pool.map(lambda span: read(*span), ranges))

        def through_loader() -> int:
            loader = ParquetLoader(
                url, seq_len=2048, lanes=64, window=16, index=index, storage_options=options,
                requests=arguments.requests, threads=1,
            )  # fmt: skip
            with loader:
                while loader.stats()["row_groups"] < 2 * len(groups):
                    for _ in loader:
                        pass
                return int(loader.stats()["bytes_read"])

        ways: dict[str, Callable[[], int]] = {
            name: functools.partial(all_ranges, read) for name, read in clients(url, options).items()
        }
        ways["ParquetLoader, decoding included"] = through_loader
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for number in range(arguments.rounds + 1):
            for name, way in ways.items():
                figures = measure(way)
                if number:  # the first round warms up
                    found[name].append(figures)
    bare = statistics.median(speed for speed, _ in found["s3fs"])
    lines = [
        f"`python tools/stages/storage_benchmark.py` — {os.cpu_count()} cores shared with the server, ranges of "
        f"{ranges[0][2] / 1e6:.0f} MB, {arguments.requests} requests at once, medians of {arguments.rounds} rounds.",
        "",
        "| client | MB/s | of s3fs | CPU s/GB |",
        "| ------ | ---: | ------: | -------: |",
    ]
    for name, rounds in found.items():
        speed, cpu = (statistics.median(figures) for figures in zip(*rounds, strict=True))
        lines.append(f"| {name} | {speed / 1e6:,.0f} | {speed / bare:.2f} | {cpu:.2f} |")
    print("\n".join(lines))
    if arguments.write_docs:
        document = Path(__file__).parents[2] / "docs" / "storage.md"
        text = document.read_text()
        begin = text.index(_MARKERS[0]) + len(_MARKERS[0])
        document.write_text(text[:begin] + "\n" + "\n".join(lines) + "\n" + text[text.index(_MARKERS[1], begin) :])


if __name__ == "__main__":
    main()
