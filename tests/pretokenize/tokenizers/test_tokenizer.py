"""Tokenizers: found, taken literally, described."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize.tokenizers.huggingface import COMMON_EOS_TOKENS, TokenBatch, load_tokenizer

EOS = "<|endoftext|>"


def save(tokenizer: Tokenizer, folder: Path) -> str:
    folder.mkdir(exist_ok=True, parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def word_level(words: int, *specials: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def encode(where: str, *texts: str) -> TokenBatch:
    return load_tokenizer(where).encode(texts, [f"text {at}" for at in range(len(texts))])


def test_a_file_and_the_folder_that_holds_it_are_the_same_tokenizer(tokenizer_folder: Path, bpe: Tokenizer) -> None:
    from_folder = load_tokenizer(str(tokenizer_folder)).info
    from_file = load_tokenizer(str(tokenizer_folder / "tokenizer.json")).info
    assert from_folder.sha256 == from_file.sha256 == hashlib.sha256(bpe.to_str().encode()).hexdigest()
    assert (from_folder.name, from_folder.vocab_size) == (str(tokenizer_folder), 2000)


def test_a_batch_is_flat_ids_and_lengths(tokenizer_folder: Path, bpe: Tokenizer) -> None:
    texts = ["def f():", "", "ü 漢字 🎉\n"]
    batch = encode(str(tokenizer_folder), *texts)
    expected = [bpe.encode(text).ids for text in texts]
    assert batch.tokens.tolist() == list(chain.from_iterable(expected))
    assert batch.lengths.tolist() == [len(ids) for ids in expected]
    assert (batch.tokens.dtype, batch.lengths.dtype) == (np.uint16, np.int64)


def test_the_text_of_a_special_token_stays_text(tokenizer_folder: Path, bpe: Tokenizer) -> None:
    text = f"before {EOS} after{EOS}"
    batch = encode(str(tokenizer_folder), text)
    assert bpe.token_to_id(EOS) not in batch.tokens
    assert bpe.decode(batch.tokens.tolist()) == text


def test_the_text_of_a_unigram_models_special_token_stays_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(["hello world of s > / < text"] * 50, trainer)
    batch = encode(save(tokenizer, tmp_path), "hello </s> world")
    assert tokenizer.token_to_id("</s>") not in batch.tokens
    assert tokenizer.decode(batch.tokens.tolist(), skip_special_tokens=False) == "hello </s> world"


def test_a_control_id_that_a_model_makes_of_text_all_the_same_is_an_error(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    folder = save(tokenizer, tmp_path)
    with pytest.raises(DataError, match="text 2: the text spells the special token '</s>'"):
        encode(folder, "a", "", "a </s>")
    assert encode(folder, "a unknown").tokens.tolist() == [2, 0]  # an unknown word is no control token


def test_special_tokens_of_a_template_are_not_added(tmp_path: Path, bpe: Tokenizer) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer.from_str(bpe.to_str())
    tokenizer.post_processor = TemplateProcessing(single=f"{EOS} $A {EOS}", special_tokens=[(EOS, 0)])
    assert encode(save(tokenizer, tmp_path), "x y").tokens.tolist() == bpe.encode("x y").ids


def test_stored_truncation_and_padding_are_switched_off(tmp_path: Path, bpe: Tokenizer) -> None:
    tokenizer = Tokenizer.from_str(bpe.to_str())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    text = "a text of rather more than three tokens"
    batch = encode(save(tokenizer, tmp_path), text, "x")
    assert bpe.decode(batch.tokens.tolist()) == text + "x"
    assert batch.lengths.tolist() == [len(bpe.encode(text)), 1]


@pytest.mark.parametrize(
    ("words", "specials", "dtype"),
    [(65_536, (), np.uint16), (65_535, (EOS,), np.uint16), (65_536, (EOS,), np.int32), (65_537, (), np.int32)],
)
def test_ids_are_uint16_as_long_as_every_id_fits(
    tmp_path: Path, words: int, specials: tuple[str, ...], dtype: type
) -> None:
    tokenizer = load_tokenizer(save(word_level(words, *specials), tmp_path))
    assert tokenizer.info.vocab_size == words + len(specials)
    batch = tokenizer.encode([f"w0 w{words - 1}"], ["text"])
    assert batch.tokens.dtype == dtype
    assert batch.tokens.tolist() == [0, words - 1]


def test_the_vocabulary_counts_to_the_largest_id_where_ids_have_gaps(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 70_000}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    info = load_tokenizer(save(tokenizer, tmp_path)).info
    assert (info.vocab_size, info.dtype) == (70_001, np.int32)


def test_an_end_token_is_put_after_every_document() -> None:
    batch = TokenBatch(tokens=np.array([5, 6, 7], dtype=np.uint16), lengths=np.array([2, 0, 1, 0]))
    appended = batch.with_appended(9)
    assert appended.tokens.tolist() == [5, 6, 9, 9, 7, 9, 9]
    assert appended.lengths.tolist() == [3, 1, 2, 1]
    assert appended.tokens.dtype == np.uint16


# --- the end-of-document token


@pytest.mark.parametrize("name", COMMON_EOS_TOKENS)
def test_a_common_end_token_is_found(tmp_path: Path, name: str) -> None:
    info = load_tokenizer(save(word_level(5, name), tmp_path), need_eos=True).info
    assert (info.eos_token, info.eos_id) == (name, 5)


@pytest.mark.parametrize("value", ["<end>", {"__type": "AddedToken", "content": "<end>"}])
def test_the_tokenizer_config_says_which_token_ends_a_document(tmp_path: Path, value: object) -> None:
    folder = save(word_level(5, EOS, "</s>", "<end>"), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": value}))
    for where in (folder, str(tmp_path / "tokenizer.json")):
        assert load_tokenizer(where, need_eos=True).info.eos_token == "<end>"


def test_the_end_token_that_was_asked_for_is_taken_before_any_other(tmp_path: Path) -> None:
    folder = save(word_level(5, EOS, "<end>"), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    assert load_tokenizer(folder, eos_token="<end>").info.eos_id == 6


@pytest.mark.parametrize(
    ("specials", "message"),
    [
        (("<pad>",), "none of the usual names.*eos_token.*special tokens: <pad>"),
        ((EOS, "</s>"), r"several that could \(<\|endoftext\|>, </s>\).*eos_token"),
    ],
)
def test_an_end_token_that_cannot_be_told_is_an_error_only_where_it_is_needed(
    tmp_path: Path, specials: tuple[str, ...], message: str
) -> None:
    folder = save(word_level(5, *specials), tmp_path)
    assert load_tokenizer(folder).info.eos_id is None
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(folder, need_eos=True)


def test_an_end_token_that_is_no_token_is_an_error(tokenizer_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"eos_token='<nope>' is no token.*special tokens: <\|endoftext\|>"):
        load_tokenizer(str(tokenizer_folder), eos_token="<nope>")


# --- tokenizers that are not to be had


@pytest.mark.parametrize("where", ["./no", "/no/tokenizer.json", "no.json", "~/no/where", "a/b/c", ""])
def test_a_path_at_which_there_is_no_tokenizer_is_an_error(where: str) -> None:
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        load_tokenizer(where)


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"hello": 1}')
    with pytest.raises(ConfigError, match="is no tokenizer that the tokenizers package reads"):
        load_tokenizer(str(tmp_path))


def test_a_hub_name_without_a_network_is_an_error_that_says_what_to_do(
    run_tool: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    done = run_tool("--input", "a.txt", "--output", "out", "--tokenizer", "some/name", HF_HOME=str(tmp_path / "hf"))
    assert done.returncode == 2
    assert "could not be fetched from the Hugging Face Hub" in done.stderr
    assert "give a tokenizer.json or a folder that holds one" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_url_is_no_tokenizer_and_its_secrets_are_not_shown() -> None:
    with pytest.raises(ConfigError, match="a URL is not read") as caught:
        load_tokenizer("https://user:hush@host/t.json?X-Amz-Signature=hush")
    assert "hush" not in str(caught.value)
