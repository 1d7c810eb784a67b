"""Real text that every Python installation carries, prose and code, and a tokenizer trained on it."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import random
import sysconfig
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from parquet_loader.pretokenize import PretokenizeOptions, Record, Source

END_OF_TEXT = "<|endoftext|>"

# Not there in every installation, or tables rather than text.
_LEAVE_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "encodings", "pydoc_data"}
# Short docstrings say little. Long modules and the rest of the prose are left out, so that a short training run sees
# more than one epoch of both.
_DOCSTRING_CHARACTERS = 500
_PROSE_DOCUMENTS = 600
_MODULE_CHARACTERS = 6_000
_FILES = 4
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def topics() -> Iterator[str]:
    """The chapters of the language reference that ``help()`` shows."""
    yield from importlib.import_module("pydoc_data.topics").topics.values()


def modules() -> Iterator[str]:
    """The sources of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not _LEAVE_OUT & set(path.relative_to(root).parts):
            yield path.read_text(encoding="utf-8", errors="replace")


def docstrings(source: str) -> Iterator[str]:
    """What a module, its classes and its functions say of themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old sources have escapes that are no longer valid
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING):
            yield ast.get_docstring(node) or ""


def write_text(folder: Path) -> dict[str, int]:
    """Write two sets of documents as .jsonl files: ``folder/prose``, the chapters and the docstrings, and
    ``folder/code``, modules.

    Returns:
        How many documents of each there are.
    """
    sources = list(modules())
    found = tqdm(sources, desc="text", unit=" modules", disable=None, leave=False)
    strings = {text: None for source in found for text in docstrings(source) if len(text) >= _DOCSTRING_CHARACTERS}
    documents = {
        "prose": [*topics(), *strings],
        "code": [source for source in sources if 0 < len(source) <= _MODULE_CHARACTERS],
    }
    for texts in documents.values():
        random.Random(0).shuffle(texts)
    del documents["prose"][_PROSE_DOCUMENTS:]
    for kind, texts in documents.items():
        (folder / kind).mkdir(parents=True)
        for number in range(_FILES):
            with (folder / kind / f"{number}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in texts[number::_FILES])
    return {kind: len(texts) for kind, texts in documents.items()}


def read_text(folder: Path) -> Iterator[str]:
    """The documents that `write_text` wrote."""
    for path in sorted(folder.rglob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)["text"]


class Trickle(Source):
    """The documents of a folder at no more than so many per second, as from a slow crawl: all of this text is tokenized
    in seconds, and the demo is to train meanwhile. Its inputs are the folder and the documents per second.
    """

    def __init__(self, options: PretokenizeOptions) -> None:
        self.folder, self.pause = Path(options.inputs[0]), 1 / float(options.inputs[1])

    def records(self, cursor: Sequence[int] | None = None) -> Iterator[Record]:
        """From a document on, by its number."""
        begin = cursor[0] if cursor else 0
        for number, text in enumerate(itertools.islice(read_text(self.folder), begin, None), begin):
            time.sleep(self.pause)
            yield Record(text=text, origin=f"document {number}", cursor=(number + 1,))

    def fingerprint(self) -> dict[str, object]:
        """What the documents depend on."""
        return {"folder": str(self.folder)}


def train_tokenizer(texts: Iterator[str], vocab_size: int, path: Path) -> int:
    """Train a byte-level BPE, as GPT-2's, and save it as a ``tokenizer.json``.

    Returns:
        The entries of its vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return int(tokenizer.get_vocab_size())
