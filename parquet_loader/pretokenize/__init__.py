"""Text to tokenized Parquet: the files that `ParquetLoader` reads.

`pretokenize` runs `PretokenizeOptions`; ``python -m parquet_loader.pretokenize`` and ``tools/pretokenize.py`` are its
command line. Needs the extra ``pretokenize``, of which nothing is imported before it is used.

The folders, in the order of the data:

    sources      text in
    select       which documents are kept
    tokenizers   token ids
    write        row groups, shards and the output folder
    run          one process, several ranks, Ray
    convert      corpora that are tokenized already
"""

from ..errors import PretokenizeWarning
from .cli import main
from .options import PretokenizeOptions
from .process import Background, background
from .run.pipeline import Summary, pretokenize
from .run.progress import Progress
from .run.ranks import StepDone, pretokenize_rank
from .sources.base import BadRecord, Cursor, Record, Source
from .sources.files import FileSource
from .sources.find import find_files
from .sources.registry import PRESETS, Preset, SourceOptions, open_source, register_source, source_names
from .tokenizers.huggingface import TokenBatch, Tokenizer, TokenizerInfo, load_tokenizer
from .write.manifest import Encoding, FileEntry, Manifest, Packed, Packing
from .write.verify import Verification, verify_set

__all__ = [
    "PRESETS",
    "Background",
    "BadRecord",
    "Cursor",
    "Encoding",
    "FileEntry",
    "FileSource",
    "Manifest",
    "Packed",
    "Packing",
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
    "background",
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
