"""The end-of-document token of a ``tokenizer.json``, by the files beside it: what ``transformers`` makes of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from parquet_loader.errors import ConfigError
from parquet_loader.pretokenize import load_tokenizer

END = "<|eod|>"
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer whose only token of a usual name is ``</s>``, with the ids 0 to 6."""
    tokenizer = Tokenizer(models.WordLevel({f"w{at}": at for at in range(5)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.add_tokens(["<tool>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder: Path, files: Mapping[str, object]) -> str:
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return str(folder)


def token(content: str, *, special: bool = True) -> dict[str, object]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": content, "special": special} | flags


@pytest.mark.parametrize(
    ("files", "eos", "eos_id"),
    [
        ({CONFIG: {"eos_token": END, "added_tokens_decoder": {"7": token(END)}}}, END, 7),
        ({CONFIG: {"eos_token": token(END) | {"__type": "AddedToken"}}}, END, 7),
        ({CONFIG: {"eos_token": END, "added_tokens_decoder": {"8": token(END), "7": token("<new>")}}}, END, 8),
        ({CONFIG: {"eos_token": END, "added_tokens_decoder": {"7": token(END, special=False)}}}, END, 7),
        ({CONFIG: {"eos_token": END, "added_tokens_decoder": {"5": token("</s>"), "7": token(END)}}}, END, 7),
        ({CONFIG: {"eos_token": END}, ADDED: {"<new>": 7, END: 8}}, END, 8),
        ({CONFIG: {"eos_token": END, "bos_token": "<bos>", "pad_token": "</s>"}}, END, 8),
        ({CONFIG: {}, MAP: {"eos_token": END}}, END, 7),
        ({MAP: {"eos_token": token(END), "bos_token": "<bos>"}}, END, 8),
        ({CONFIG: {"eos_token": "w3"}, MAP: {"eos_token": "w4"}}, "w4", 4),
        ({CONFIG: {"eos_token": "w3", "added_tokens_decoder": {}}, MAP: {"eos_token": "w4"}}, "w3", 3),
        ({CONFIG: {"eos_token": "<tool>"}}, "<tool>", 6),
    ],
)  # fmt: skip
def test_the_end_token_is_the_one_that_transformers_has(
    folder: Path, files: dict[str, dict[str, object]], eos: str, eos_id: int
) -> None:
    where = write(folder, {CONFIG: {}, **files} | {CONFIG: files.get(CONFIG, {}) | GENERIC})
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(where)
    assert (reference.eos_token, reference.eos_token_id) == (eos, eos_id)
    for path in (where, str(folder / "tokenizer.json")):
        tokenizer = load_tokenizer(path, need_eos=True)
        assert (tokenizer.info.eos_token, tokenizer.info.eos_id) == (eos, eos_id)
        assert tokenizer.info.vocab_size == max(7, eos_id + 1)
        assert tokenizer.decode([1, eos_id]) == f"w1 {eos}"
        assert tokenizer.encode(["w1 w2", f"w1{END}"], ["", ""]).tokens.tolist() == [1, 2, 0]


def test_an_end_token_that_was_asked_for_is_found_in_the_files_beside_the_tokenizer(folder: Path) -> None:
    where = write(folder, {CONFIG: {"eos_token": "</s>", "added_tokens_decoder": {"7": token(END)}}})
    assert load_tokenizer(where, eos_token=END).info.eos_id == 7
    assert load_tokenizer(where, need_eos=True).info.eos_id == 5


def test_files_that_add_nothing_to_the_end_token_leave_the_tokenizer_as_it_is(folder: Path) -> None:
    before = load_tokenizer(str(folder), need_eos=True).info
    write(folder, {CONFIG: {"eos_token": "</s>", "pad_token": "<pad>", "added_tokens_decoder": {"7": token("<pad>")}}})
    assert load_tokenizer(str(folder), need_eos=True).info == before


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"eos_token": END, "added_tokens_decoder": {"9": token(END)}}, "next free id is 7.* the id 9"),
        ({"eos_token": ["</s>", END]}, "neither a string nor an object"),
        ({"eos_token": 5}, "neither a string nor an object"),
        ({"eos_token": {"content": 5}}, "neither a string nor an object"),
        ({"eos_token": END, "added_tokens_decoder": {"x": token(END)}}, "neither a string nor an object"),
        ({"eos_token": END, "added_tokens_decoder": [END]}, "neither a string nor an object"),
        ([], "is not a JSON object"),
    ],
)
def test_no_other_token_is_taken_where_the_files_do_not_fit(folder: Path, config: Any, message: str) -> None:
    where = write(folder, {CONFIG: config})
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(where, need_eos=True)
    assert load_tokenizer(where).info.eos_id is None
    assert load_tokenizer(where, eos_token="</s>", need_eos=True).info.eos_id == 5


# --- on the Hub


@pytest.fixture
def hub(folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """An endpoint with the folder's files as ``some/name``, and a status to answer for a file instead."""
    statuses: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file = self.path.rsplit("/", 1)[1]
            there = self.path.startswith("/some/name/resolve/") and (folder / file).is_file()
            status = statuses.get(file, 200 if there else 404)
            content = (folder / file).read_bytes() if status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'"{file}"')
            if status == 404:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", statuses
    server.shutdown()
    server.server_close()


def test_the_files_beside_a_tokenizer_on_the_hub_say_which_token_it_is(
    folder: Path,
    hub: tuple[str, dict[str, int]],
    run_tool: Callable[..., CompletedProcess[str]],
    jsonl: Callable[..., Path],
) -> None:
    endpoint, statuses = hub
    write(folder, {CONFIG: {"model_max_length": 5}, MAP: {"eos_token": END}})
    arguments = ("--input", jsonl(["w1"]), "--tokenizer", "some/name", "--append-eos", "--overwrite", "--output", "out")

    def run(home: str, *more: str, offline: str = "0") -> CompletedProcess[str]:
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / home), "HF_HUB_OFFLINE": offline}
        return run_tool(*arguments, *more, **environment)

    def eos_id() -> int:
        return int(json.loads((folder / "out" / "_manifest.json").read_text())["eos_id"])

    assert (run("a").returncode, eos_id()) == (0, 7)
    assert (run("a", offline="1").returncode, eos_id()) == (0, 7)  # that there is no added_tokens.json is remembered
    statuses[MAP] = 403
    done = run("b")
    assert done.returncode == 2
    assert (
        f"--tokenizer some/name: {MAP}, which may name the end-of-document token, could not be fetched" in done.stderr
    )
    assert (run("b", "--eos-token", "</s>").returncode, eos_id()) == (0, 5)
