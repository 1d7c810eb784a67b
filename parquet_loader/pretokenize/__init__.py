"""Text to tokenized Parquet: the files that `ParquetLoader` reads.

`pretokenize` runs `PretokenizeOptions`; ``python -m parquet_loader.pretokenize`` and ``tools/pretokenize.py`` are its
command line. Needs the extra ``pretokenize``, of which nothing is imported before it is used.

The stages, one way down, each module with one task:

    records, sources, hub, registry      text in
    selection, dedup, ledger             which of it is written
    tokens, plain_tokenizers, eos, literal, tokenizer, fast, workers
                                         token ids
    plan, writer                         row groups and files
    output, lock, journal, manifest      the folder
    options, parts, pipeline, progress, verify, ranks, ray_tasks
                                         a run
    names, cli                           the command
    tokenized, convert                   corpora that are tokenized already
"""

from ..errors import PretokenizeWarning
from .cli import main
from .options import PretokenizeOptions
from .run.pipeline import Summary, pretokenize
from .run.progress import Progress
from .run.ranks import StepDone, pretokenize_rank
from .sources.base import BadRecord, Cursor, Record, Source
from .sources.files import FileSource
from .sources.find import find_files
from .sources.registry import PRESETS, Preset, SourceOptions, open_source, register_source, source_names
from .tokenizers.huggingface import TokenBatch, Tokenizer, TokenizerInfo, load_tokenizer
from .write.manifest import Encoding, FileEntry, Manifest
from .write.verify import Verification, verify_set

__all__ = [
    "PRESETS",
    "BadRecord",
    "Cursor",
    "Encoding",
    "FileEntry",
    "FileSource",
    "Manifest",
    "Preset",
    "PretokenizeOptions",
    "PretokenizeWarning",
    "Progress",
    "Record",
    "Source",
    "SourceOptions",
    "StepDone",
    "Summary",
    "TokenBatch",
    "Tokenizer",
    "TokenizerInfo",
    "Verification",
    "find_files",
    "load_tokenizer",
    "main",
    "open_source",
    "pretokenize",
    "pretokenize_rank",
    "register_source",
    "source_names",
    "verify_set",
]
