"""CPU time to decode one row group from memory: our decoder beside pyarrow's `ParquetFile.read_row_group`.

    python tools/stages/decode_benchmark.py [--tokens 1000000] [--rounds 15] [--vocabulary 50257]

The tokens follow Zipf's law over the vocabulary, the documents' lengths a log-normal distribution. The two ways take
turns on one thread, ours to two bytes an id, as the loader asks for with such a vocabulary. What is printed
is each one's median, in ns per token, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import functools
import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.blocks import TokenPart
from parquet_loader.formats.base import ColumnChunk, ColumnLayout
from parquet_loader.formats.parquet.decode import OpenChunk

CODECS = ("none", "snappy", "lz4", "zstd")
ENCODINGS: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "plain": {"use_dictionary": False},
    "BYTE_STREAM_SPLIT": {
        "use_dictionary": False,
        "column_encoding": {"tokens.list.element": "BYTE_STREAM_SPLIT"},
    },
    "DELTA_BINARY_PACKED": {
        "use_dictionary": False,
        "column_encoding": {"tokens.list.element": "DELTA_BINARY_PACKED"},
    },
}


def documents(tokens: int, mean: int, vocabulary: int, seed: int = 0) -> pa.Table:
    """A table of one ``list<int32>`` column with ``tokens`` tokens in documents of ``mean`` tokens."""
    rng = np.random.default_rng(seed)
    weights = np.cumsum(1 / np.arange(1, vocabulary + 1))
    ids = rng.permutation(vocabulary).astype(np.int32)
    values = ids[np.searchsorted(weights, rng.random(tokens) * weights[-1])]
    lengths = np.maximum(1, rng.lognormal(np.log(mean) - 0.5, 1, 4 * tokens // mean + 16)).astype(np.int64)
    offsets = np.minimum(np.concatenate([[0], np.cumsum(lengths)]), tokens)
    offsets = offsets[: np.searchsorted(offsets, tokens) + 1].astype(np.int32)
    return pa.table({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))})


def only_chunk(file: bytes) -> tuple[memoryview, ColumnChunk]:
    """The one column chunk of a file: its bytes, and its entry."""
    metadata = pq.ParquetFile(pa.BufferReader(file)).metadata
    column = metadata.row_group(0).column(0)
    start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    chunk = ColumnChunk(
        path="benchmark.parquet",
        row_group=0,
        layout=ColumnLayout(
            column="tokens", physical_type="INT32", signed=True, max_definition_level=3, nullable_element=True
        ),
        start=start,
        length=column.total_compressed_size,
        rows=metadata.num_rows,
        slots=column.num_values,
        tokens=column.num_values - column.statistics.null_count,
        codec=column.compression,
        dictionary_offset=0 if column.has_dictionary_page else -1,
        data_offset=column.data_page_offset - start,
    )
    return memoryview(file)[start : start + chunk.length], chunk


def decoded(raw: memoryview, chunk: ColumnChunk, vocabulary: int) -> list[TokenPart]:
    """A row group's parts, their ids of two bytes, as the loader has them."""
    return list(OpenChunk(raw, chunk).parts(dtype=np.dtype(np.uint16), bound=vocabulary))


def cpu_seconds(work: Callable[[], object]) -> float:
    """This thread's CPU time in ``work``."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vocabulary", type=int, default=50_257, help="at most 65,536")
    parser.add_argument("--means", type=int, nargs="+", default=[50, 1000, 10000])
    options = parser.parse_args()
    print("| documents of | encoding | codec | bytes/token | decoded here | read_row_group | ratio |")
    print("|---|---|---|---|---|---|---|")
    for mean in options.means:
        table = documents(options.tokens, mean, options.vocabulary)
        for encoding, arguments in ENCODINGS.items():
            for codec in CODECS:
                sink = io.BytesIO()
                pq.write_table(table, sink, compression=codec, row_group_size=1 << 40, **arguments)
                file = sink.getvalue()
                raw, chunk = only_chunk(file)
                reader = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False)
                ways: tuple[Callable[[], object], Callable[[], object]] = (
                    functools.partial(decoded, raw, chunk, options.vocabulary),
                    functools.partial(reader.read_row_group, 0, use_threads=False),
                )
                rounds = [[cpu_seconds(way) for way in ways] for _ in range(options.rounds + 1)][1:]
                ours, theirs = (statistics.median(times) * 1e9 / options.tokens for times in zip(*rounds, strict=True))
                ratio = statistics.median(ours / theirs for ours, theirs in rounds)
                size = len(raw) / options.tokens
                print(f"| {mean:,} | {encoding} | {codec} | {size:.2f} | {ours:.2f} | {theirs:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
