"""Text is taken literally by every kind of model: no control ids, nothing random, and what is lost is counted."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize import PretokenizeOptions, PretokenizeWarning, load_tokenizer, pretokenize
from parquet_loader.pretokenize.tokenizers.gigatoken import GigatokenTokenizer
from parquet_loader.pretokenize.tokenizers.huggingface import HuggingFaceTokenizer

END = "<end>"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(*pieces: str, merges: tuple[tuple[str, str], ...] = (), **options: Any) -> Tokenizer:
    vocabulary = {piece: at for at, piece in enumerate([*BYTES, *(a + b for a, b in merges), *pieces])}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges), **options))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def added(*tokens: str | AddedToken) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def unigram(*pieces: tuple[str, float], unknown: int | None = 0) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((each, -5.0) for each in "<end>abc "), *pieces], unknown))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def word_piece() -> Tokenizer:
    pieces = ["[UNK]", END, *"<ab", *(f"##{each}" for each in "<end> ab")]
    tokenizer = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


MERGES = (("<", "e"), ("<e", "n"), ("<en", "d"), ("<end", ">"), (END, "b"))
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "an added token": lambda: added("<one>", END, "<two>"),
    "an added token that takes spaces": lambda: added(AddedToken(END, lstrip=True, rstrip=True)),
    "an added token in the text as normalised": lambda: added(AddedToken(END, normalized=True)),
    "a special token": lambda: added(AddedToken(END, special=True)),
    "a piece of BPE with ignore_merges": lambda: byte_level(END, ignore_merges=True),
    "a piece of BPE by merges": lambda: byte_level(merges=MERGES),
    "a piece of Unigram": lambda: unigram((END, -1.0)),
    "a piece of WordPiece": word_piece,
}


def save(tokenizer: Tokenizer, folder: Path) -> str:
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode([text], ["place"]).tokens.tolist())


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", [END, f"a{END}b", f"{END}{END}"])
def test_the_text_of_the_end_token_stays_text(tmp_path: Path, kind: str, text: str) -> None:
    original = TOKENIZERS[kind]()
    tokenizer = load_tokenizer(save(original, tmp_path), eos_token=END)
    assert tokenizer.info.eos_id == original.token_to_id(END)
    assert original.encode(END).ids == [tokenizer.info.eos_id]  # which is what there is to guard against
    got = ids(tokenizer, text)
    assert tokenizer.info.eos_id not in got
    assert tokenizer.decode(got) == text
    assert ids(pickle.loads(pickle.dumps(tokenizer)), text) == got
    assert tokenizer.decode([tokenizer.info.eos_id or 0]) == END


def test_a_special_token_of_the_model_keeps_the_ids_of_others(tmp_path: Path) -> None:
    original = byte_level(END, merges=(("a", "b"),), ignore_merges=True)
    original.add_special_tokens([END, "<pad>"])
    original.add_tokens(["<one>", "<two>"])
    tokenizer = load_tokenizer(save(original, tmp_path), eos_token=END)
    assert ids(tokenizer, "ab<two><one>") == original.encode("ab<two><one>").ids
    assert tokenizer.decode(ids(tokenizer, f"<pad>{END}")) == f"<pad>{END}"


def test_a_word_that_can_be_written_in_no_other_way_is_refused_where_it_stands(tmp_path: Path) -> None:
    original = Tokenizer(models.WordLevel({"<unk>": 0, END: 1, "a": 2}, unk_token="<unk>"))
    original.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = load_tokenizer(save(original, tmp_path), eos_token=END)
    assert ids(tokenizer, "a b") == [2, 0]
    with pytest.raises(DataError, match=r"place: the text spells the special token '<end>'.*its control id 1 of it"):
        ids(tokenizer, f"a {END}")


@pytest.mark.parametrize(
    ("make", "token", "problem"),
    [
        (lambda: byte_level(), "a", "is one symbol of ordinary text"),
        (lambda: unigram(("<0x0A>", 0.0)), "a", "is one symbol of ordinary text"),
        (word_piece, "##a", "is one symbol of ordinary text"),
        (word_piece, "[UNK]", "is the unknown token"),
        (unigram, "<unk>", "is the unknown token"),
        (lambda: Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>")), "<unk>", "is the unknown token"),
        (lambda: Tokenizer(models.WordLevel({"a": 0, "x": 1}, unk_token="x")), "x", "is the unknown token"),
    ],
)
def test_a_token_that_also_stands_for_other_text_cannot_end_documents(
    tmp_path: Path, make: Callable[[], Tokenizer], token: str, problem: str
) -> None:
    folder = save(make(), tmp_path)
    with pytest.raises(ConfigError, match=f"--eos-token: .*{problem}.*Name another token with --eos-token"):
        load_tokenizer(folder, eos_token=token)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    with pytest.raises(ConfigError, match=problem):
        load_tokenizer(folder, need_eos=True)
    assert load_tokenizer(folder).info.eos_id is None


def test_a_unigram_model_chooses_what_it_chooses_without_special_tokens(tmp_path: Path) -> None:
    # Of an unknown character and two dear pieces the first is the cheaper one.
    original = unigram(("xy", -20.0), ("zw", -20.0), ("yzw", -1.0), ("</s>", 0.0))
    original.add_special_tokens(["</s>"])
    tokenizer = load_tokenizer(save(original, tmp_path))
    assert ids(tokenizer, "xyzw") == original.encode("xyzw").ids
    assert tokenizer.info.eos_id not in ids(tokenizer, "a</s>b")


def test_the_end_token_stays_text_by_the_fast_engine_too(tmp_path: Path) -> None:
    pytest.importorskip("gigatoken")
    for at, kind in enumerate(["an added token", "a special token", "a piece of BPE with ignore_merges"]):
        folder = tmp_path / str(at)
        folder.mkdir()
        reference = load_tokenizer(save(TOKENIZERS[kind](), folder), eos_token=END)
        assert isinstance(reference, HuggingFaceTokenizer)
        assert reference.control_tokens() == [END]
        text = f"a{END}b <one> <two> é"
        assert ids(GigatokenTokenizer(reference), text) == ids(reference, text), kind
        assert reference.info.eos_id not in ids(reference, text)


def test_a_run_ends_where_a_text_would_become_the_end_id(tmp_path: Path, jsonl: Callable[..., Path]) -> None:
    original = Tokenizer(models.WordLevel({"x": 0, END: 1, "a": 2}, unk_token="x"))
    original.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder, path = save(original, tmp_path), str(jsonl(["a", f"a {END}"]))
    options = PretokenizeOptions(inputs=(path,), output=str(tmp_path / "out"), tokenizer=folder, eos_token=END)
    with pytest.raises(DataError, match=r"in\.jsonl:2: the text spells"):
        pretokenize(options)


# --- randomness


def test_dropout_is_switched_off_and_said_once(
    tmp_path: Path, jsonl: Callable[..., Path], run_tool: Callable[..., CompletedProcess[str]]
) -> None:
    original = byte_level(merges=(("a", "b"), ("ab", "ab"), ("abab", "abab")))
    plain = original.encode("abababab" * 50).ids
    original.model.dropout = 0.5
    folder, path = save(original, tmp_path), jsonl(["abababab" * 50])
    with pytest.warns(PretokenizeWarning, match=r"\(dropout 0\.5\)\. That is switched off"):
        tokenizer = load_tokenizer(folder)
    assert ids(tokenizer, "abababab" * 50) == ids(pickle.loads(pickle.dumps(tokenizer)), "abababab" * 50) == plain
    done = run_tool("--input", path, "--output", "out", "--tokenizer", folder, "--verify")
    assert (done.returncode, done.stderr.count("dropout 0.5")) == (0, 1)


def test_the_sampling_of_a_unigram_model_is_switched_off() -> None:
    model = models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0), ("ab", -2.5)], 0)
    model.alpha, model.nbest_size = 0.1, 5
    info = load_tokenizer("bytes").info
    tokenizer = HuggingFaceTokenizer(Tokenizer(model), info)
    assert {tuple(ids(tokenizer, "ab" * 20)) for _ in range(20)} == {(3,) * 20}
