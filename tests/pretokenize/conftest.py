"""Tokenizers small enough to train in the tests, on text that every Python installation carries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from slow_sources import slow_source
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

__all__ = ["slow_source"]

ROOT = Path(__file__).resolve().parents[2]
EOS = "<|endoftext|>"


@pytest.fixture(scope="session")
def stdlib_texts() -> list[str]:
    """Source files of the standard library, about 2 MB, none empty."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    for path in sorted(folder.glob("*.py")):
        # Through bytes, so that line ends stay what they are.
        text = path.read_bytes().decode("utf-8", errors="replace")
        if text:
            texts.append(text)
        if sum(map(len, texts)) > 2_000_000:
            break
    return texts


def train_bpe(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[:40], trainer)
    return tokenizer


@pytest.fixture(scope="session")
def bpe(stdlib_texts: list[str]) -> Tokenizer:
    return train_bpe(stdlib_texts)


@pytest.fixture(scope="session")
def tokenizer_folder(bpe: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    bpe.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def memory_url() -> Iterator[str]:
    """A folder of its own in fsspec's memory filesystem."""
    url = f"memory://{uuid.uuid4().hex}"
    yield url
    filesystem, path = fsspec.url_to_fs(url)
    if filesystem.exists(path):
        filesystem.rm(path, recursive=True)


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes texts as a JSON-lines file."""

    def write(texts: list[str], name: str = "in.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        return path

    return write


@pytest.fixture
def command() -> list[str]:
    """The start of a command line that runs the tool."""
    return [sys.executable, str(ROOT / "tools" / "pretokenize.py")]


@pytest.fixture
def run_tool(command: list[str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the real tool in a process of its own, in an empty folder."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=tool_environment(**environment),
            timeout=240,
            check=False,
        )

    return run


@pytest.fixture
def tool_env() -> dict[str, str]:
    return tool_environment()


def tool_environment(**extra: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"} | extra
