"""Tokens as text, whatever the ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from parquet_loader import build_index
from parquet_loader.errors import ConfigError
from parquet_loader.insight.text import open_tokenizer, open_tokenizer_of
from parquet_loader.pretokenize import PretokenizeOptions, pretokenize
from parquet_loader.printable import printable
from parquet_loader.storage.opening import open_storage


@pytest.fixture
def byte_bpe(tmp_path: Path) -> Path:
    """A ``tokenizer.json`` of the 256 bytes and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: at for at, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def sentencepiece_model(tmp_path: Path) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece")
    text = tmp_path / "text.txt"
    text.write_text("hello world, how are you\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "sp"), vocab_size=40, hard_vocab_limit=False, minloglevel=2
    )
    return tmp_path / "sp.model"


def ids_of(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer.encode([text], ["a test"]).tokens.tolist()
    return found


ODD_IDS = [123_456, -1, 1 << 40]
ODD_TEXT = "<id 123456><id -1><id 1099511627776>"


def test_an_id_that_stands_for_nothing_is_shown_as_a_number(byte_bpe: Path, sentencepiece_model: Path) -> None:
    for name in (str(byte_bpe), str(sentencepiece_model), "bytes"):
        tokenizer = open_tokenizer(name)
        ids = ids_of(tokenizer, "hello")
        assert tokenizer.decode([*ids, *ODD_IDS, *ids]) == f"hello{ODD_TEXT}hello", name


def test_special_tokens_are_shown(byte_bpe: Path, sentencepiece_model: Path) -> None:
    for name, eos in ((str(byte_bpe), "<|endoftext|>"), (str(sentencepiece_model), "</s>"), ("bytes", "<eos>")):
        tokenizer = open_tokenizer(name)
        assert tokenizer.info.eos_id is not None
        assert tokenizer.decode([*ids_of(tokenizer, "you"), tokenizer.info.eos_id]) == f"you{eos}"


def test_half_a_character_is_a_replacement_character(byte_bpe: Path) -> None:
    for name in (str(byte_bpe), "bytes"):
        tokenizer = open_tokenizer(name)
        assert tokenizer.decode(ids_of(tokenizer, "aé")[:-1]) == "a\ufffd"


def test_tiktoken_shows_the_ids_that_its_encoding_lacks() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    from parquet_loader.pretokenize.tokenizers.base import TokenizerInfo
    from parquet_loader.pretokenize.tokenizers.plain import TiktokenTokenizer

    encoding = tiktoken.Encoding(
        "hole", pat_str=r".", mergeable_ranks={bytes([byte]): byte for byte in range(256)}, special_tokens={"<e>": 300}
    )
    info = TokenizerInfo(name="hole", sha256="", vocab_size=301, eos_token="<e>", eos_id=300)
    assert TiktokenTokenizer(encoding, info).decode([104, 105, 280, *ODD_IDS, 300]) == f"hi<id 280>{ODD_TEXT}<e>"


def written(folder: Path, tokenizer: str) -> dict[str, Any]:
    """A set that pretokenize wrote, as `open_tokenizer_of` is given sets."""
    (folder.parent / "in.txt").write_text("hello\nworld\n")
    pretokenize(PretokenizeOptions(inputs=(str(folder.parent / "in.txt"),), output=str(folder), tokenizer=tokenizer))
    return {"": (open_storage(str(folder)), build_index(str(folder)))}


def test_the_tokenizer_that_the_files_name_is_found(tmp_path: Path, byte_bpe: Path) -> None:
    tokenizer = open_tokenizer_of(written(tmp_path / "set", str(byte_bpe)))
    assert tokenizer.decode(ids_of(tokenizer, "hello")) == "hello"


def test_a_tokenizer_that_is_gone_or_another_one_is_an_error_that_names_it(tmp_path: Path, byte_bpe: Path) -> None:
    sets = written(tmp_path / "set", str(byte_bpe))
    other = Tokenizer.from_file(str(byte_bpe))
    other.add_tokens(["other"])
    other.save(str(byte_bpe))
    with pytest.raises(ConfigError, match=r"tokenizer\.json'.* is another one"):
        open_tokenizer_of(sets)
    byte_bpe.unlink()
    with pytest.raises(ConfigError, match=r"were written with the tokenizer '.*tokenizer\.json', which cannot be open"):
        open_tokenizer_of(sets)


def test_files_that_name_no_tokenizer_or_two_are_refused(tmp_path: Path, byte_bpe: Path) -> None:
    (tmp_path / "bare").mkdir()
    pq.write_table(pa.table({"ids": [[1, 2]]}), tmp_path / "bare" / "a.parquet")
    bare = {"x": (open_storage(str(tmp_path / "bare")), build_index(str(tmp_path / "bare")))}
    with pytest.raises(ConfigError, match="of source 'x' do not say which tokenizer"):
        open_tokenizer_of(bare)
    two = {"a": written(tmp_path / "one", "bytes")[""], "b": written(tmp_path / "two", str(byte_bpe))[""]}
    with pytest.raises(ConfigError, match="source 'a' was written with the tokenizer 'bytes' and 'b' with"):
        open_tokenizer_of(two)


def test_what_a_terminal_would_obey_is_shown_by_its_code() -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\x9b31m\r\x08\u202e\u2028\x00\x7f\ud800"
    shown = printable(f"a\tb\n{hostile}é 漢字 👩\u200d👧\u3000")
    assert shown.startswith("a\tb\n\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\r\\x08\\u202e\\u2028\\x00\\x7f\\ud800")
    assert shown.endswith("é 漢字 👩\u200d👧\u3000")
