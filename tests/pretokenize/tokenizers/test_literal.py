"""Text is taken literally by every kind of model: no control ids, nothing random, and what is lost is counted."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize import (
    PretokenizeOptions,
    PretokenizeWarning,
    TokenBatch,
    load_tokenizer,
    pretokenize,
    pretokenize_rank,
    verify_set,
)
from parquet_loader.pretokenize.run.pipeline import tokenize_source
from parquet_loader.pretokenize.tokenizers.base import Lost
from parquet_loader.pretokenize.tokenizers.gigatoken import GigatokenTokenizer
from parquet_loader.pretokenize.tokenizers.huggingface import HuggingFaceTokenizer
from parquet_loader.pretokenize.tokenizers.literal import literal_form, randomness
from parquet_loader.pretokenize.write.folder import OutputFolder
from parquet_loader.pretokenize.write.journal import Journal

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
    with pytest.raises(ConfigError, match=f"eos_token=.*{problem}.*Name another token with eos_token"):
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


class Careless:
    """Bytes, of which one is said to end documents."""

    def __init__(self) -> None:
        self._bytes = load_tokenizer("bytes")
        self.info = replace(self._bytes.info, eos_token="~", eos_id=ord("~"))

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        return self._bytes.encode(texts, origins)

    def decode(self, ids: Sequence[int]) -> str:
        return self._bytes.decode(ids)


@pytest.mark.parametrize("append_eos", [False, True])
def test_no_tokenizer_of_ones_own_may_make_the_end_id_of_a_text(
    tmp_path: Path, jsonl: Callable[..., Path], append_eos: bool
) -> None:
    options = PretokenizeOptions(
        inputs=(str(jsonl(["a", "", "a ~"])),), output=str(tmp_path / "out"), tokenizer="own", append_eos=append_eos
    )
    with pytest.raises(DataError, match=r"in\.jsonl:3: the text spells the special token '~'"):
        tokenize_source(options.open_source(), Careless(), OutputFolder(options.output), options)


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


def test_sampling_that_a_file_may_carry_is_switched_off() -> None:
    values = json.loads(unigram().to_str())
    values["model"] |= {"alpha": 0.1, "nbest_size": 5}  # as another version of the package may store it
    assert randomness(values) == "alpha 0.1, nbest_size 5"
    form = literal_form(json.dumps(values), None, 20)
    assert randomness(form.settings) is None


# --- what a vocabulary lacks


def bpe(pieces: str, *merges: tuple[str, str], **options: Any) -> Tokenizer:
    vocabulary = {piece: at for at, piece in enumerate([*pieces, *(a + b for a, b in merges)])}
    return Tokenizer(models.BPE(vocabulary, list(merges), **options))


def bytes_without(*missing: str) -> Tokenizer:
    vocabulary = {piece: at for at, piece in enumerate(each for each in BYTES if each not in missing)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def normalised() -> Tokenizer:
    tokenizer = bpe("éab")
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def with_added_tokens() -> Tokenizer:
    tokenizer = bpe("ab", ("a", "b"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens(["<one>", "<two>"])
    return tokenizer


def of_size(size: int) -> Tokenizer:
    return Tokenizer(models.BPE({"a": 0, "b": 1} | {f"more{at}": at for at in range(2, size)}, []))


def bpe_with_byte_pieces(*values: int) -> Tokenizer:
    pieces = ["a", *(f"<0x{each:02X}>" for each in values)]
    return Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, [], byte_fallback=True))


DROPPING: dict[str, tuple[Callable[[], Tokenizer], str, int]] = {
    "between two symbols that then merge": (lambda: bpe("ab", ("a", "b")), "aXb X", 3),
    "one after the other": (lambda: bpe("ab", fuse_unk=True), "aXXXb", 3),
    "nothing": (lambda: bpe("ab", ("a", "b")), "abab", 0),
    "everything": (lambda: bpe("ab"), "XYZ", 3),
    "bytes": (lambda: bytes_without("Ã", "x"), "é x ab", 2),
    "the pieces of bytes that are not all there": (lambda: bpe_with_byte_pieces(0xC3), "aéa", 1),
    "what a piece has at the end of a word alone": (
        lambda: Tokenizer(models.BPE({"a": 0, "a</w>": 1, "b</w>": 2}, [], end_of_word_suffix="</w>")), "abb", 1
    ),
    "a word that is a piece as a whole": (
        lambda: Tokenizer(models.BPE({"a": 0, "aXa": 1}, [], ignore_merges=True)), "aXa", 0
    ),
    "what is only there once it is composed": (normalised, "e\u0301a e", 2),
    "between added tokens": (with_added_tokens, "<two>aXb<one>X<s>", 5),
    "where ids of 16 bits just do": (lambda: of_size(1 << 16), "aXb", 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", DROPPING)
def test_symbols_that_a_model_drops_are_counted_and_its_ids_stay(tmp_path: Path, kind: str) -> None:
    make, text, dropped = DROPPING[kind]
    original = make()
    tokenizer = load_tokenizer(save(original, tmp_path))
    original.encode_special_tokens = True
    texts = ["a", text, "", "a", text]
    batch = tokenizer.encode(texts, texts)
    assert batch.tokens.tolist() == [each for text in texts for each in original.encode(text).ids]
    assert batch.lengths.tolist() == [len(original.encode(text)) for text in texts]
    assert batch.tokens.dtype == tokenizer.info.dtype
    assert batch.lost == ({at: Lost(dropped_symbols=dropped) for at in (1, 4)} if dropped else {})


@pytest.mark.parametrize(
    ("make", "text", "unknown"),
    [
        (lambda: Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>")), "aXXa", 2),
        (lambda: Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True)), "aXXa", 1),
        (lambda: Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")), "X", 1),
        (word_piece, "aX", 1),
        (unigram, "aXXbX", 2),
    ],
)
def test_unknown_tokens_are_counted(tmp_path: Path, make: Callable[[], Tokenizer], text: str, unknown: int) -> None:
    tokenizer = load_tokenizer(save(make(), tmp_path))
    batch = tokenizer.encode(["a", text, ""], ["", "", ""])
    assert batch.lost == {1: Lost(unknown_tokens=unknown)}
    assert batch.with_appended(0).lost == batch.lost


def test_a_text_that_a_model_has_no_ids_for_is_an_error_that_names_it(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(Tokenizer(models.WordLevel({"a": 0}, unk_token="<unk>")), tmp_path))
    with pytest.raises(DataError, match="third: the tokenizer has no ids for this text"):
        tokenizer.encode(["a", "a", "b"], ["first", "second", "third"])


# Each document drops one character; the last one is shorter than a row group.
LOSSY_TEXTS = [f"{'ab' * 40}X{'ba' * 40}" for _ in range(30)]
SMALL = {"row_group_tokens": 400, "file_tokens": 800, "batch_bytes": 500}
SENTENCE = "The tokenizer dropped 30 characters (or bytes) of text that its vocabulary lacks."


@pytest.fixture
def lossy(tmp_path: Path, jsonl: Callable[..., Path]) -> Callable[..., PretokenizeOptions]:
    folder, path = save(bpe("ab"), tmp_path), str(jsonl(LOSSY_TEXTS))

    def make(name: str, **options: Any) -> PretokenizeOptions:
        return PretokenizeOptions(
            **{"inputs": (path,), "output": str(tmp_path / name), "tokenizer": folder} | SMALL | options
        )

    return make


@pytest.mark.parametrize("how", [{}, {"workers": 2}, {"engine": "gigatoken"}], ids=str)
def test_what_a_run_dropped_is_in_its_closing_lines_its_manifest_and_its_verification(
    lossy: Callable[..., PretokenizeOptions], how: dict[str, Any]
) -> None:
    options = lossy("out", **how)
    if "engine" in how:
        pytest.importorskip("gigatoken")
        with pytest.warns(PretokenizeWarning, match="gigatoken does not take this tokenizer"):
            summary = pretokenize(options)
    else:
        summary = pretokenize(options)
    assert SENTENCE in summary.describe()
    manifest = json.loads((Path(options.output) / "_manifest.json").read_text())
    assert manifest["lost"] == {"dropped_symbols": 30, "unknown_tokens": 0}
    assert SENTENCE in verify_set(options.output, load_tokenizer(options.tokenizer)).describe()


class Failing:
    """The real tokenizer, for a number of batches."""

    def __init__(self, where: str, batches: int) -> None:
        self._real = load_tokenizer(where)
        self._left = batches
        self.info = self._real.info

    def encode(self, texts: Sequence[str], origins: Sequence[str]) -> TokenBatch:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("out of luck")
        return self._real.encode(texts, origins)

    def decode(self, ids: Sequence[int]) -> str:
        return self._real.decode(ids)


def test_a_resumed_run_counts_what_the_runs_before_it_dropped(lossy: Callable[..., PretokenizeOptions]) -> None:
    options = lossy("out")
    output = OutputFolder(options.output)
    with pytest.raises(RuntimeError, match="out of luck"):
        tokenize_source(options.open_source(), Failing(options.tokenizer, 6), output, options)
    journal = output.read_journal()
    assert journal is not None
    assert 0 < journal.position.lost.dropped_symbols == journal.position.documents < 30
    assert pretokenize(options).manifest.lost == Lost(dropped_symbols=30)


def test_ranks_count_what_each_of_them_dropped(
    lossy: Callable[..., PretokenizeOptions], jsonl: Callable[..., Path]
) -> None:
    inputs = tuple(str(jsonl(LOSSY_TEXTS[at::2], f"{at}.jsonl")) for at in range(2))
    options = lossy("out", inputs=inputs, world_size=2)
    for rank in range(2):
        assert "The tokenizer dropped 15 characters" in pretokenize_rank(replace(options, rank=rank)).describe()
    assert SENTENCE in pretokenize_rank(replace(options, step="finish")).describe()


def test_journals_and_manifests_from_before_it_was_counted_are_read(lossy: Callable[..., PretokenizeOptions]) -> None:
    options = lossy("out")
    pretokenize(options)
    path = Path(options.output) / "_manifest.json"
    old = json.loads(path.read_text())
    del old["lost"]
    path.write_text(json.dumps(old))
    summary = pretokenize(options)
    assert (summary.manifest.documents, summary.manifest.lost) == (30, Lost())
    values = json.loads(Journal(fingerprint={"a": 1}).to_json())
    del values["position"]["lost"]
    assert Journal.from_json(json.dumps(values), "journal.json") == Journal(fingerprint={"a": 1})
