"""Tokenizers that are none of the ``tokenizers`` package, worker processes, and the fast engine."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize import PretokenizeOptions, PretokenizeWarning, TokenBatch, load_tokenizer, pretokenize
from parquet_loader.pretokenize.sources.registry import SourceOptions, open_source
from parquet_loader.pretokenize.tokenizers import gigatoken as fast_module
from parquet_loader.pretokenize.tokenizers.base import Lost
from parquet_loader.pretokenize.tokenizers.gigatoken import GigatokenTokenizer, with_engine
from parquet_loader.pretokenize.tokenizers.huggingface import HuggingFaceTokenizer
from parquet_loader.pretokenize.tokenizers.workers import WorkerError, encoders, in_order

EOS = "<|endoftext|>"
TEXTS = ["def f():\n    return 1\n", "", f"a {EOS} b</s>", "ü 漢字 🎉", "   many    spaces\t\t\n\n"]


def rows(batch: TokenBatch) -> list[list[int]]:
    ends = np.cumsum(batch.lengths)
    return [batch.tokens[end - size : end].tolist() for end, size in zip(ends, batch.lengths, strict=True)]


def test_the_ids_of_bytes_are_the_bytes() -> None:
    tokenizer = load_tokenizer("bytes")
    batch = tokenizer.encode(TEXTS, TEXTS)
    assert rows(batch) == [list(text.encode()) for text in TEXTS]
    assert batch.tokens.dtype == np.uint16
    assert (tokenizer.info.vocab_size, tokenizer.info.eos_id) == (257, 256)
    assert tokenizer.decode([*"ü".encode(), 256]) == "ü<eos>"
    with pytest.raises(ConfigError, match="is no token of 'bytes'"):
        load_tokenizer("bytes", eos_token="x")


TIKTOKEN_PLUGIN = """
def mine():
    return {
        "name": "mine", "pat_str": r"\\w+|\\W", "special_tokens": {"<|endoftext|>": 300},
        "mergeable_ranks": {bytes([at]): at for at in range(256)} | {b"de": 256, b"def": 257},
    }

ENCODING_CONSTRUCTORS = {"mine": mine}
"""

TIKTOKEN_PROGRAM = """
import pickle
from parquet_loader.pretokenize import load_tokenizer
tokenizer = load_tokenizer("tiktoken:mine")
texts = ["def x", "", "a <|endoftext|>", "ü"]
batch = tokenizer.encode(texts, texts)
assert batch.lengths.tolist() == [3, 0, 15, 2], batch
assert batch.tokens[:3].tolist() == [257, 32, 120]
assert 300 not in batch.tokens and batch.tokens.dtype == "uint16"
assert (tokenizer.info.vocab_size, tokenizer.info.eos_id, tokenizer.info.eos_token) == (301, 300, "<|endoftext|>")
assert tokenizer.decode([257, 300]) == "def<|endoftext|>"
again = pickle.loads(pickle.dumps(tokenizer))
assert (again.encode(texts, texts).tokens == batch.tokens).all()
"""


def test_a_tiktoken_encoding_keeps_the_text_of_special_tokens(tmp_path: Path, tool_env: dict[str, str]) -> None:
    (tmp_path / "tiktoken_ext").mkdir()  # a namespace package: where tiktoken looks for encodings
    (tmp_path / "tiktoken_ext" / "mine.py").write_text(TIKTOKEN_PLUGIN)
    path = f"{tmp_path}:{tool_env['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-c", TIKTOKEN_PROGRAM],
        env=tool_env | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"special_tokens": {"<|endoftext|>": 65}}, "has the id 65, which also stands for text"),
        (
            {"mergeable_ranks": {bytes([at]): at for at in range(128)}},
            "no token for 128 of the 256 bytes",
        ),
    ],
)
def test_a_tiktoken_encoding_that_cannot_take_every_text_as_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([at]): at for at in range(256)}
    values = {"pat_str": r"\w+|\W", "mergeable_ranks": ranks, "special_tokens": {"<|endoftext|>": 300}} | settings
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, "narrow", tiktoken.Encoding("narrow", **values))
    with pytest.raises(ConfigError, match=message):
        load_tokenizer("tiktoken:narrow")


def test_an_unknown_tiktoken_encoding_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'tiktoken:nosuch' cannot be loaded .*tiktoken fetches each encoding once"):
        load_tokenizer("tiktoken:nosuch")


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory, stdlib_texts: list[str]) -> str:
    import sentencepiece

    path = tmp_path_factory.mktemp("sentencepiece") / "small.model"
    lines = [line for text in stdlib_texts[:20] for line in text.splitlines() if line.strip()]
    with path.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines[:4000]),
            model_writer=stream,
            vocab_size=400,
            model_type="bpe",
            byte_fallback=True,
            minloglevel=2,
        )
    return str(path)


def test_a_sentencepiece_model_is_read(sentencepiece_model: str) -> None:
    import sentencepiece

    reference = sentencepiece.SentencePieceProcessor(model_file=sentencepiece_model)
    tokenizer = load_tokenizer(sentencepiece_model, need_eos=True)
    batch = tokenizer.encode(TEXTS, TEXTS)
    assert rows(batch) == [reference.encode(text) for text in TEXTS]
    assert (tokenizer.info.eos_token, tokenizer.info.eos_id) == ("</s>", reference.eos_id())
    assert tokenizer.info.eos_id not in batch.tokens
    assert tokenizer.decode(rows(batch)[0]) == reference.decode(reference.encode(TEXTS[0]))
    assert rows(pickle.loads(pickle.dumps(tokenizer)).encode(TEXTS, TEXTS)) == rows(batch)
    with pytest.raises(ConfigError, match="has no token '<x>'"):
        load_tokenizer(sentencepiece_model, eos_token="<x>")


@pytest.fixture(scope="module")
def small_sentencepiece_models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """BPE and Unigram without bytes, with a symbol of the user's."""
    module = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("small-sentencepiece")
    for kind in ("bpe", "unigram"):
        with (folder / f"{kind}.model").open("wb") as stream:
            module.SentencePieceTrainer.train(
                sentence_iterator=iter(["some words and </s> and <mine>"] * 9),
                model_writer=stream,
                vocab_size=30,
                hard_vocab_limit=False,
                model_type=kind,
                user_defined_symbols=["<mine>"],
                control_symbols=["<end>"],
                minloglevel=2,
            )
    return [str(path) for path in sorted(folder.iterdir())]


def test_the_text_of_a_sentencepiece_control_symbol_stays_text(small_sentencepiece_models: list[str]) -> None:
    for model in small_sentencepiece_models:
        for token in (None, "</s>", "<end>"):
            tokenizer = load_tokenizer(model, eos_token=token)
            texts = ["some </s> and <end> words", "</s>", "<end>"]
            assert tokenizer.info.eos_token == (token or "</s>")
            assert tokenizer.info.eos_id not in tokenizer.encode(texts, texts).tokens


@pytest.mark.parametrize("token", ["<mine>", "<unk>", "▁", "s"])
def test_a_sentencepiece_symbol_that_comes_out_of_text_cannot_end_documents(
    small_sentencepiece_models: list[str], token: str
) -> None:
    for model in small_sentencepiece_models:
        with pytest.raises(ConfigError, match=r"is no control symbol.*it has: <s>, </s>, <end>\."):
            load_tokenizer(model, eos_token=token)


def test_unknown_tokens_of_a_sentencepiece_model_are_counted(
    small_sentencepiece_models: list[str], sentencepiece_model: str
) -> None:
    for model in small_sentencepiece_models:
        batch = load_tokenizer(model).encode(["some", "soXme 漢 words"], ["", ""])
        assert batch.lost == {1: Lost(unknown_tokens=2)}
    assert load_tokenizer(sentencepiece_model).encode(["漢"], [""]).lost == {}  # it writes bytes


@pytest.mark.parametrize("content", [None, b"", b"something else"])
def test_what_is_no_sentencepiece_model_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "a.model").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.model"):
        load_tokenizer(str(tmp_path / "a.model"))


# --- worker processes


def test_a_worker_takes_text_as_literally_as_this_process(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    with encoders(tokenizer, 2) as workers:
        for encode in workers:
            assert rows(encode(TEXTS, TEXTS)) == rows(tokenizer.encode(TEXTS, TEXTS))


class Failing:
    """Fails, or ends its process."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.info = load_tokenizer("bytes").info

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        if self.how == "data":
            raise DataError("bad", path=origins[0])
        if self.how == "exit":
            import os

            os._exit(3)
        raise RuntimeError("out of luck")

    def decode(self, ids: Sequence[int]) -> str:
        return ""


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("data", DataError, "place: bad"),
        ("exit", WorkerError, "worker process 0 ended with status 3"),
        ("other", WorkerError, "the tokenizer failed: RuntimeError: out of luck"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told(how: str, error: type[Exception], message: str) -> None:
    with encoders(Failing(how), 1) as [encode], pytest.raises(error, match=message):
        encode(["text"], ["place"])


def test_a_tokenizer_that_cannot_be_sent_is_refused() -> None:
    tokenizer: Any = Failing("other")
    tokenizer.lock = (each for each in ())
    with pytest.raises(ConfigError, match="cannot be sent to worker processes"), encoders(tokenizer, 1):
        pass


def test_results_come_in_order_and_batches_are_not_taken_far_ahead() -> None:
    taken: list[int] = []

    def batches() -> Any:
        for at in range(50):
            taken.append(at)
            yield at

    def encode(texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        return load_tokenizer("bytes").encode(texts, origins)

    seen = []
    for batch, _ in in_order(batches(), lambda batch, encode: encode([str(batch)], [""]), [encode, encode, encode]):
        seen.append(batch)
        assert len(taken) - len(seen) <= 6
    assert seen == list(range(50))


# --- the fast engine


@pytest.fixture
def source(jsonl: Callable[..., Path], stdlib_texts: list[str]) -> Any:
    path = jsonl([*TEXTS, *stdlib_texts[:30]])
    return open_source("files", SourceOptions(inputs=(str(path),)))


def test_the_fast_engine_gives_the_references_ids(source: Any, tokenizer_folder: Path, stdlib_texts: list[str]) -> None:
    reference = load_tokenizer(str(tokenizer_folder))
    fast = with_engine(reference, "gigatoken", source)
    assert isinstance(fast, GigatokenTokenizer)
    texts = [*TEXTS, *stdlib_texts]
    assert rows(fast.encode(texts, texts)) == rows(reference.encode(texts, texts))
    assert rows(pickle.loads(pickle.dumps(fast)).encode(TEXTS, TEXTS)) == rows(reference.encode(TEXTS, TEXTS))
    assert fast.decode([0, 5]) == reference.decode([0, 5])


def test_an_engine_that_gives_other_ids_is_not_used(
    source: Any, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: GigatokenTokenizer, texts: Sequence[str]) -> TokenBatch:
        batch = self._reference.encode(texts, texts)
        return TokenBatch(tokens=batch.tokens + np.uint16(1), lengths=batch.lengths)

    monkeypatch.setattr(GigatokenTokenizer, "encode_unchecked", wrong)
    reference = load_tokenizer(str(tokenizer_folder))
    with pytest.warns(PretokenizeWarning, match="gigatoken gives other ids for 'def f"):
        assert with_engine(reference, "gigatoken", source) is reference
    assert isinstance(reference, HuggingFaceTokenizer)
    fast = GigatokenTokenizer(reference)
    texts = [f"number {at}" for at in range(5000)]
    with pytest.raises(DataError, match="engine='tokenizers' and overwrite=True"):
        fast.encode(texts, texts)


def test_an_engine_is_for_a_tokenizer_json(source: Any) -> None:
    with pytest.raises(ConfigError, match=r"engine='gigatoken' is for a tokenizer\.json"):
        with_engine(load_tokenizer("bytes"), "gigatoken", source)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_set_is_the_same_by_either_engine(
    tmp_path: Path, jsonl: Callable[..., Path], tokenizer_folder: Path, stdlib_texts: list[str], workers: int
) -> None:
    path = str(jsonl([*TEXTS, *stdlib_texts[:40]]))
    for engine in ("tokenizers", "gigatoken"):
        values: dict[str, Any] = {"output": str(tmp_path / engine), "tokenizer": str(tokenizer_folder)}
        pretokenize(PretokenizeOptions(inputs=(path,), engine=engine, workers=workers, append_eos=True, **values))
    one, other = (sorted((tmp_path / name).iterdir()) for name in ("tokenizers", "gigatoken"))
    assert [each.read_bytes() for each in one] == [each.read_bytes() for each in other]
    assert json.loads((tmp_path / "gigatoken" / "_manifest.json").read_text())["eos_id"] == 0


def test_a_fast_engine_that_was_made_anew_gives_the_same_ids(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = load_tokenizer(str(tokenizer_folder))
    assert isinstance(reference, HuggingFaceTokenizer)
    fast = GigatokenTokenizer(reference)
    first, engine = rows(fast.encode(TEXTS, TEXTS)), fast._engine
    assert rows(fast.encode(TEXTS, TEXTS)) == first
    assert fast._engine is engine
    monkeypatch.setattr(fast_module, "_RENEW_CHARACTERS", sum(map(len, TEXTS)))  # what it remembers is bounded by this
    assert rows(fast.encode(TEXTS, TEXTS)) == first
    assert fast._engine is not engine
    assert fast._encoded == sum(map(len, TEXTS))
