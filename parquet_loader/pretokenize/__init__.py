"""Text to tokenized Parquet: the files that `ParquetLoader` reads.

`pretokenize` runs `PretokenizeOptions`; ``python -m parquet_loader.pretokenize`` and ``tools/pretokenize.py`` are its
command line. Needs ``pip install parquet_loader[pretokenize]``, of which nothing is imported before it is used.

The stages, one way down: `sources` (records) -> `tokenizer` (token ids) -> `plan`, `writer` (row groups, files) ->
`output` (the folder), `manifest`; `pipeline` wires them, `cli` is above it.
"""

from parquet_loader.pretokenize.cli import main
from parquet_loader.pretokenize.manifest import Encoding, FileEntry, Manifest
from parquet_loader.pretokenize.pipeline import PretokenizeOptions, Progress, Summary, pretokenize
from parquet_loader.pretokenize.sources import FileSource, Record, Source, find_files
from parquet_loader.pretokenize.tokenizer import TokenBatch, Tokenizer, TokenizerInfo, load_tokenizer

__all__ = [
    "Encoding",
    "FileEntry",
    "FileSource",
    "Manifest",
    "PretokenizeOptions",
    "Progress",
    "Record",
    "Source",
    "Summary",
    "TokenBatch",
    "Tokenizer",
    "TokenizerInfo",
    "find_files",
    "load_tokenizer",
    "main",
    "pretokenize",
]
