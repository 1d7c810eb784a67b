"""No secret of a URL reaches anything that people may see or that is kept, whatever is done with the URL."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import logging
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from parquet_loader import ParquetLoader, build_index
from parquet_loader.cli import main as index_command
from parquet_loader.errors import ParquetLoaderError
from parquet_loader.pretokenize import PretokenizeOptions, load_tokenizer, pretokenize, verify_set
from parquet_loader.pretokenize.cli import main as pretokenize_command
from parquet_loader.pretokenize.convert.command import ConvertOptions, convert
from parquet_loader.pretokenize.convert.command import main as convert_command
from parquet_loader.pretokenize.select.dedup import SeenFile
from parquet_loader.pretokenize.sources.files import FileSource
from parquet_loader.pretokenize.sources.find import find_files
from parquet_loader.storage.remote import FsspecStorage
from parquet_loader.storage.secrets import Location

HUSH = "hush"  # what every piece of a secret holds


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves a folder, with ranges; paths below a number answer with that status, below ``plain`` without ranges."""

    folder: Path
    seen: list[tuple[str, str]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.seen.append((query, self.headers.get("Authorization", "")))
        kind, _, name = path.strip("/").partition("/")
        file = self.folder / name
        if kind.isdecimal() or not file.is_file():
            status = int(kind) if kind.isdecimal() else 404
            self.send_response(status, f"no {self.path}")  # as some do, it tells all that it was told
            self.end_headers()
            return
        data, start = file.read_bytes(), 0
        size = len(data)
        given = self.headers.get("Range", "") if kind != "plain" else ""
        if given:
            first, _, last = given.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, size)
            data = data[start:end]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(ConnectionError):  # whoever wanted a range does not take the whole
                self.wfile.write(data)

    do_HEAD = do_GET


class Server:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[tuple[str, str]] = []
        handler = type("Here", (Handler,), {"folder": folder, "seen": self.seen})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("www")
    pq.write_table(pa.table({"tokens": [[1, 2, 3], [4, 5]]}), folder / "a.parquet")
    (folder / "a.jsonl").write_text('{"text": "one two"}\n{"text": "three"}\n')
    (folder / "bad.jsonl").write_text('{"text": "one two"}\n{"text": 3}\n')
    (folder / "bad.parquet").write_bytes(b"PAR1 no")
    running = Server(folder)
    yield running
    running.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator(["one two"], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    model.save(str(path))
    return str(path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {**FsspecStorage.__init__.__kwdefaults__, "retry_seconds": 0.0}
    monkeypatch.setattr(FsspecStorage.__init__, "__kwdefaults__", defaults)
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_EC2_METADATA_DISABLED": "true"}
    for variable, value in {**nowhere, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "xxxx"}.items():
        monkeypatch.setenv(variable, value)


# ── all ways in ──────────────────────────────────────────────────────────────────────────────────────────────────

Entry = Callable[[str, str, Path], object]


def run_pretokenize(tokenizer: str, out: Path, *arguments: str) -> object:
    command = ["--tokenizer", tokenizer, *arguments]
    return pretokenize_command(command if "--output" in command else [*command, "--output", str(out / "set")])


def text_here(out: Path) -> str:
    (out / "in.jsonl").write_text('{"text": "one two"}\n')
    return str(out / "in.jsonl")


ENTRIES: dict[str, Entry] = {
    "loader": lambda url, _, out: next(iter(ParquetLoader(url, seq_len=2, lanes=1, cache_dir=out, retry_seconds=0))),
    "list of a loader": lambda url, _, out: ParquetLoader([url, str(out)], seq_len=2, lanes=1, retry_seconds=0),
    "build_index": lambda url, _, out: build_index(url, cache_dir=out, retry_seconds=0).save(out / "index"),
    "options of a loader": lambda url, _, out: build_index(
        "s3://bucket1/x", storage_options={"endpoint": url, "endpoint_url": url}, retry_seconds=0
    ),
    "index": lambda url, _, out: index_command(["index", url, "--output", str(out / "index"), "--cache-dir", str(out)]),
    "output of index": lambda url, _, out: index_command(["index", str(out), "--output", url]),
    "input": lambda url, tokenizer, out: run_pretokenize(tokenizer, out, "--input", url),
    "input that skips": lambda url, tokenizer, out: run_pretokenize(
        tokenizer, out, "--input", url, "--on-bad-record", "skip", "--verify"
    ),
    "input of a kind": lambda url, tokenizer, out: run_pretokenize(tokenizer, out, "--source", "csv", "--input", url),
    "input of a rank": lambda url, tokenizer, out: [
        run_pretokenize(tokenizer, out, "--input", url, "--rank", "0", "--world-size", "1", "--overwrite"),
        run_pretokenize(tokenizer, out, "--input", url, "--rank", "1", "--world-size", "2", "--overwrite"),
    ],
    "source": lambda url, tokenizer, out: run_pretokenize(tokenizer, out, "--source", url, "--input", text_here(out)),
    "output": lambda url, tokenizer, out: run_pretokenize(tokenizer, out, "--input", text_here(out), "--output", url),
    "seen hashes": lambda url, tokenizer, out: run_pretokenize(
        tokenizer, out, "--input", text_here(out), "--dedup", "--seen-hashes", url
    ),
    "seen hashes that are written": lambda url, tokenizer, out: run_pretokenize(
        tokenizer, out, "--input", text_here(out), "--dedup", "--seen-hashes", url, "--write-seen-hashes"
    ),
    "SeenFile": lambda url, _, out: SeenFile(url=url, hash_name="sha256", storage_options={}).read(),
    "pretokenize": lambda url, tokenizer, out: pretokenize(
        PretokenizeOptions(inputs=(url,), output=str(out / "set"), tokenizer=tokenizer)
    ),
    "options": lambda url, tokenizer, out: print(
        PretokenizeOptions(inputs=(url,), output=url, tokenizer=tokenizer, dedup=True, seen_hashes=url),
        ConvertOptions(input=url, output=url),
    ),
    "wrong options": lambda url, tokenizer, out: PretokenizeOptions(inputs=url, output=url, tokenizer=tokenizer),
    "find_files": lambda url, _, out: print(FileSource(files=find_files([url]).files).fingerprint()),
    "convert": lambda url, _, out: convert_command(["--input", url, "--output", str(out / "set")]),
    "output of convert": lambda url, _, out: [
        pq.write_table(pa.table({"tokens": pa.array([[1, 2]], pa.list_(pa.uint16()))}), out / "x.parquet"),
        convert_command(["--input", str(out / "x.parquet"), "--output", url]),
        convert(ConvertOptions(input=str(out / "x.parquet"), output=url)),
    ],
    "verify": lambda url, tokenizer, out: verify_set(url, load_tokenizer(tokenizer)),
}

WEB = [
    "{scheme}://{host}/{answer}/{name}?X-Amz-Credential={a}&X-Amz-Signature={b}",
    "{scheme}://{host}/{answer}/{name}?{a}#{b}",
    "{scheme}://{host}/{answer}/{name}#{a}",
    "{scheme}://{host}/{answer}?sig={a}",
    "{scheme}://{user}:{b}@{host}/{answer}/{name}",
    "{scheme}://{user}@{host}/{answer}/{name}?sig={b}",
    "simplecache::{scheme}://{host}/{answer}/{name}?sig={a}",
    "zip://x.parquet::{scheme}://{user}:{b}@{host}/{answer}/{name}?sig={a}",
    "https://{host}/{answer}/{name}?sig={a}",
]
OTHERS = [
    *(f"{scheme}://bucket1/x/{{name}}?sv=2026&sig={{a}}" for scheme in ("s3", "gs", "az", "abfs", "oss", "memory")),
    "abfs://container@account.dfs.core.windows.net/{name}?sig={a}",
    "memory://x/{name}#token={a}",
    *(f"{scheme}://{{user}}:{{a}}@127.0.0.1/{{name}}" for scheme in ("s3", "S3", "gs", "ftp", "sftp", "smb", "memory")),
    "sftp://{user}@host/{name}",
]

hushed = st.lists(
    st.sampled_from(["", "%2F", "%2f", "%7E", "%3D", "%25", *"~+:!é$'\\;", "::", "%C3%A9"]),
    min_size=1,
    max_size=3,
).map(lambda parts: HUSH + "".join(part + HUSH for part in parts))
in_query = st.one_of(hushed, hushed.map(lambda secret: secret.replace("hush~", "hush/").replace("hush!", "hush@")))
in_password = st.one_of(hushed, hushed.map(lambda secret: secret.replace("hush~", "hush@").replace("hush!", "hush?")))


def told(work: Callable[[], object], out: Path) -> str:
    """All that a call shows, logs or leaves behind."""
    stream, log, threads = io.StringIO(), io.StringIO(), set(threading.enumerate())
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    seen: list[str] = []
    try:
        with (
            contextlib.redirect_stdout(stream),
            contextlib.redirect_stderr(stream),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            try:
                seen.append(repr(work()))
            except (ParquetLoaderError, SystemExit) as error:
                seen += everything_in(error)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        for thread in set(threading.enumerate()) - threads:
            if thread.name.startswith("parquet-loader"):
                thread.join()
    seen += [stream.getvalue(), log.getvalue(), *(str(each.message) for each in warned)]
    for path in sorted(out.rglob("*")):
        seen += [str(path), path.read_bytes().decode(errors="replace") if path.is_file() else ""]
    return "\n".join(seen)


def everything_in(error: BaseException | None) -> list[str]:
    """An error and its whole chain, as text and as repr."""
    found: list[str] = []
    waiting, done = [error], set()
    while waiting:
        link = waiting.pop()
        if link is not None and id(link) not in done:
            done.add(id(link))
            found += [str(link), repr(link), repr(link.args), "".join(traceback.format_exception_only(link))]
            found.append(json.dumps({key: str(value) for key, value in vars(link).items()}))
            waiting += [link.__cause__, link.__context__]
    return found


@pytest.mark.usefixtures("impatient")
@settings(max_examples=60, phases=[Phase.explicit, Phase.generate])
@given(
    entry=st.sampled_from(sorted(ENTRIES)),
    template=st.sampled_from(WEB + OTHERS),
    scheme=st.sampled_from(["http", "HTTP"]),
    answer=st.sampled_from(["ok", "ok", "plain", "404", "403", "503", "301"]),
    name=st.sampled_from(["a.jsonl", "a.parquet", "bad.jsonl", "bad.parquet", "none.txt", "x.md"]),
    a=in_query,
    b=in_query,
    password=in_password,
)
@example("loader", WEB[0], "http", "503", "a.parquet", "AK%2F" + HUSH + "%2Fs3", HUSH * 2 + "%7E", HUSH * 2)
@example("input that skips", WEB[0], "http", "ok", "bad.jsonl", HUSH * 2, HUSH * 2, HUSH * 2)
@example(
    "SeenFile",
    "gs://{user}:{a}@127.0.0.1/{name}",
    "http",
    "404",
    "a.parquet",
    HUSH + "@" + HUSH + "/" + HUSH,
    HUSH,
    HUSH,
)
@example("input", WEB[4], "HTTP", "503", "a.jsonl", HUSH * 2, HUSH * 2 + "@" + HUSH, HUSH + "@" + HUSH)
def test_no_secret_of_a_url_is_told_or_kept(
    server: Server,
    tokenizer: str,
    tmp_path_factory: pytest.TempPathFactory,
    entry: str,
    template: str,
    scheme: str,
    answer: str,
    name: str,
    a: str,
    b: str,
    password: str,
) -> None:
    if template.startswith(("sftp", "ftp", "{scheme}://{user}")):
        a = b = password
    user = password.replace(":", "").replace("?", "")
    url = template.format(
        scheme=scheme,
        host=server.host,
        answer=answer,
        name=name,
        a=a,
        b=b,
        user=user,
    )
    out = tmp_path_factory.mktemp("out")
    shown = told(lambda: ENTRIES[entry](url, tokenizer, out), out)
    lines = [line for text in (shown, unquote(unquote(shown))) for line in text.splitlines() if HUSH in line.lower()]
    if lines:  # not an assertion: pytest would take minutes to compare the whole
        pytest.fail("\n".join(lines[:3]))


# ── and yet it is opened with them ───────────────────────────────────────────────────────────────────────────────


def test_a_signed_address_is_asked_for_with_its_signature_and_is_the_same_source_under_a_new_one(
    server: Server, tokenizer: str, tmp_path: Path
) -> None:
    prints = []
    for signature in (HUSH + "%2Fone", HUSH + "two"):
        server.seen.clear()
        url = f"http://{server.host}/ok/a.jsonl?X-Amz-Signature={signature}"
        assert run_pretokenize(tokenizer, tmp_path, "--input", url) == 0  # the second finds the set whole
        assert server.seen
        assert {unquote(query) for query, _ in server.seen} == {unquote(f"X-Amz-Signature={signature}")}
        prints.append((tmp_path / "set" / "_manifest.json").read_text())
    assert prints[0] == prints[1]
    assert json.loads(prints[0])["fingerprint"]["source"]["files"][0]["name"] == f"http://{server.host}/ok/a.jsonl"


def test_a_helper_asks_for_a_signed_address_with_its_signature(server: Server, tmp_path: Path) -> None:
    url = f"http://{server.host}/ok/a.parquet?sig={HUSH}"
    # One epoch: what is asked for ahead would come to the server when the next test looks at it.
    with ParquetLoader(url, seq_len=5, lanes=1, processes=1, epochs=1, cache_dir=tmp_path) as loader:
        server.seen.clear()
        next(iter(loader))
    assert {query for query, _ in server.seen} == {f"sig={HUSH}"}


def test_user_and_password_of_a_web_address_are_sent(server: Server, tmp_path: Path) -> None:
    server.seen.clear()
    index = build_index(f"http://user:p%40s@s@{server.host}/ok/a.parquet", cache_dir=tmp_path)
    assert index.total_tokens == 5
    assert {sent for _, sent in server.seen} == {"Basic dXNlcjpwQHNAcw=="}  # user:p@s@s


def test_a_chained_web_address_is_asked_for_with_its_signature(server: Server, tmp_path: Path) -> None:
    server.seen.clear()
    url = f"simplecache::http://{server.host}/ok/a.parquet?sig={HUSH}"
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    assert build_index(url, storage_options=options, cache_dir=tmp_path).total_tokens == 5
    assert {query for query, _ in server.seen} == {f"sig={HUSH}"}


@pytest.mark.parametrize("scheme", ["s3", "memory", "gs", "az"])
def test_a_query_that_no_filesystem_can_use_is_refused_with_what_to_do(scheme: str) -> None:
    with pytest.raises(ParquetLoaderError, match=rf"{scheme}://bucket1/a\.parquet has a query.*storage_options"):
        build_index(f"{scheme}://bucket1/a.parquet?sig={HUSH}")


def test_a_location_is_its_public_form_and_opens_with_the_whole() -> None:
    whole = f"https://user:{HUSH}@host/a.parquet?sig={HUSH}"
    location = Location(whole)
    assert location == f"{location}" == str(location) == "https://host/a.parquet"
    assert json.dumps([location]) == '["https://host/a.parquet"]'
    assert Location(location).given == whole
    assert os.fspath(Path(location)) == "https:/host/a.parquet"
