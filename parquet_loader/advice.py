"""What makes tokenized Parquet of other files: the command to run, by the names that files have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

__all__ = ["conversion_of", "tokenization"]

_TEXT = re.compile(r"\.(jsonl|ndjson|json|csv|txt)(\.gz|\.zst)?$", re.IGNORECASE)
_TOKENS = re.compile(r"\.(bin|idx|npy|arrow|feather|ipc)$", re.IGNORECASE)


def tokenization(path: str, text_column: str = "text") -> str:
    """How to tokenize the text at a path."""
    column = "" if text_column == "text" else f" --text-column {shlex.quote(text_column)}"
    return (
        "tokenize it with `python -m parquet_loader.pretokenize "
        f"--input {shlex.quote(path)}{column} --output FOLDER --tokenizer NAME`"
    )


def conversion_of(names: Iterable[str], path: str) -> str | None:
    """How to make tokenized Parquet of what lies at a path, by the names of its files; None where they tell nothing."""
    names = list(names)
    if any(_TOKENS.search(name) for name in names):
        return (
            "if it holds tokens, convert it with `python -m parquet_loader.pretokenize.convert "
            f"--input {shlex.quote(path)} --output FOLDER --vocab-size N`"
        )
    return tokenization(path) if any(_TEXT.search(name) for name in names) else None
