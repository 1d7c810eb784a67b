"""The command, as a process of its own: what it says, and what it leaves when it is ended."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from parquet_loader.errors import ConfigError
from parquet_loader.pretokenize.cli import main, parse_options
from parquet_loader.pretokenize.options import PretokenizeOptions

RunTool = Callable[..., "CompletedProcess[str]"]


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


@pytest.fixture
def long_run(command: list[str], tmp_path: Path, tokenizer_folder: Path, stdlib_texts: list[str]) -> list[object]:
    """A command line whose run takes far longer than it takes to end it."""
    with (tmp_path / "long.jsonl").open("w") as stream:
        for _ in range(40):
            for text in stdlib_texts:
                stream.write(json.dumps({"text": text}) + "\n")
    sizes = ["--row-group-tokens", 20_000, "--file-tokens", 100_000, "--batch-bytes", 100_000]
    return [*command, "--input", "long.jsonl", "--output", "out", "--tokenizer", tokenizer_folder, *sizes]


def start_and_wait_for_staged_files(
    arguments: list[object], folder: Path, environment: dict[str, str]
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [str(each) for each in arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list((folder / "out").glob("_staging-*/*.parquet"))) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


# --- what it says


def test_a_run_ends_with_one_paragraph_and_a_quiet_stderr(
    run_tool: RunTool, tmp_path: Path, tokenizer_folder: Path, bpe: Tokenizer
) -> None:
    (tmp_path / "a.txt").write_text("one two\nthree\n")
    done = run_tool("--input", "a.txt", "--output", "out", "--tokenizer", tokenizer_folder, "--append-eos")
    assert (done.returncode, done.stderr) == (0, "")
    tokens = len(bpe.encode("one two")) + len(bpe.encode("three")) + 2
    assert done.stdout.startswith(f"Wrote 2 documents, {tokens} tokens (uint16), in 1 file to out: ")
    assert done.stdout.count("\n") == 1


def test_the_package_is_a_command_too(tmp_path: Path, tokenizer_folder: Path, tool_env: dict[str, str]) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    arguments = ["--input", "a.txt", "--output", "out", "--tokenizer", str(tokenizer_folder)]
    subprocess.run(
        [sys.executable, "-m", "parquet_loader.pretokenize", *arguments],
        cwd=tmp_path,
        env=tool_env,
        check=True,
        capture_output=True,
        timeout=240,
    )
    assert names_in(tmp_path / "out") == ["_manifest.json", "part-00000.parquet"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_progress_bar_is_shown_on_a_terminal_only(
    command: list[str], tmp_path: Path, tokenizer_folder: Path, tool_env: dict[str, str], terminal: bool
) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 1000)
    arguments = ["--input", "a.txt", "--output", "out", "--tokenizer", str(tokenizer_folder)]
    reader, writer = pty.openpty() if terminal else os.pipe()
    with subprocess.Popen(
        [*command, *arguments], cwd=tmp_path, env=tool_env, stdout=subprocess.PIPE, stderr=writer, text=True
    ) as process:
        os.close(writer)
        shown = b""
        with contextlib.suppress(OSError):  # a pty says so when its other end is closed
            while data := os.read(reader, 4096):
                shown += data
        os.close(reader)
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert output.startswith("Wrote 1,000 documents")
    if terminal:
        for piece in (b"pretokenize: ", b"1,000 docs", b"tokens", b"B/s"):
            assert piece in shown
    else:
        assert shown == b""


# --- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "no.txt"], "/no.txt; check the path"),
        (["--input", "empty"], "no file to read in empty"),
        (["--input", "a.xml"], "a.xml: unknown extension"),
        (["--input", "bad.jsonl"], "bad.jsonl:2: invalid JSON"),
        (["--input", "good.jsonl", "--text-column", "body"], "good.jsonl:1, column 'body': no such field"),
        (["--input", "good.jsonl", "--text-column", "id"], "good.jsonl:1, column 'id': a string was expected"),
        (["--input", "latin.txt"], "latin.txt:1: invalid UTF-8"),
        (["--input", "good.jsonl", "--tokenizer", "./none"], "--tokenizer ./none: there is no such file or folder"),
        (["--input", "good.jsonl", "--output", "full"], "is not empty"),
        (["--input", "good.jsonl", "--append-eos", "--eos-token", "<x>"], "--eos-token '<x>' is no token"),
        (["--input", "good.jsonl", "--row-group-tokens", "0"], "--row-group-tokens must be at least 1"),
        (["--input", "good.jsonl", "--storage-options", "{"], "--storage-options is not valid JSON"),
        (["--input", "good.jsonl", "--storage-options", "1"], "--storage-options must be a JSON object"),
    ],
)
def test_an_error_is_one_line_and_status_2_and_leaves_nothing(
    tmp_path: Path,
    tokenizer_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    (tmp_path / "a.xml").write_text("x\n")
    (tmp_path / "good.jsonl").write_text('{"text": "x", "id": 1}\n')
    (tmp_path / "bad.jsonl").write_text('{"text": "x"}\n{"text": \n')
    (tmp_path / "latin.txt").write_bytes("ü\n".encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    assert main(["--output", "out", "--tokenizer", str(tokenizer_folder), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pretokenize: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert names_in(tmp_path / "out") == []


def test_an_error_of_the_real_process_is_one_line_and_no_traceback(
    run_tool: RunTool, tmp_path: Path, tokenizer_folder: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "x"}\n{"text": \n')
    done = run_tool("--input", "bad.jsonl", "--output", "out", "--tokenizer", tokenizer_folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"pretokenize: error: {tmp_path}/bad.jsonl:2: invalid JSON")
    assert done.stderr.count("\n") == 1


def test_arguments_that_are_missing_are_told(run_tool: RunTool) -> None:
    done = run_tool("--input", "a.txt")
    assert done.returncode == 2
    assert "--output" in done.stderr


def test_every_option_reaches_its_place() -> None:
    arguments = (
        "--input a b --input c --output memory://o --tokenizer t --text-column body --text-unit file --append-eos "
        "--eos-token <e> --row-group-tokens 1_000 --file-tokens 2000 --max-docs 3 --overwrite --batch-bytes 4 "
        "--max-record-bytes 5 --storage-options"
    )
    assert parse_options([*arguments.split(), '{"anon": true}']) == PretokenizeOptions(
        inputs=("a", "b", "c"),
        output="memory://o",
        tokenizer="t",
        text_column="body",
        text_unit="file",
        append_eos=True,
        eos_token="<e>",
        row_group_tokens=1000,
        file_tokens=2000,
        max_docs=3,
        overwrite=True,
        batch_bytes=4,
        max_record_bytes=5,
        storage_options={"anon": True},
    )
    required = ["--input", "a", "--output", "o", "--tokenizer", "t"]
    assert parse_options(required) == PretokenizeOptions(inputs=("a",), output="o", tokenizer="t")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--input a --dataset x", "--dataset x is not used by --source files, only by 'hf'"),
        ("--input a --config de", "--config de is not used by --source files"),
        ("--input a --split train", "--split train is not used by --source files"),
        ("--input a --revision main", "--revision main is not used by --source files"),
        ("--input a --source text --text-column x", "--text-column x is not used by --source text"),
        ("--input a --source csv --text-unit line", "--text-unit line is not used by --source csv"),
        ("--source hf --dataset x --input a", "--input a is not used by --source hf"),
        ("--source hf --dataset x --text-unit file", "--text-unit file is not used by --source hf"),
        ("--preset c4 --text-unit file", "--text-unit file is not used by --source hf"),
        ("--preset c4 --dataset x", "--preset c4 names the source and the data set: omit --dataset x."),
        ("--preset c4 --source files", "--preset c4 names the source and the data set: omit --source files."),
        ("--input a --hash sha256", "--hash sha256 needs --dedup"),
        ("--input a --seen-hashes s", "--seen-hashes s needs --dedup"),
        ("--input a --dedup --write-seen-hashes", "--write-seen-hashes needs --seen-hashes"),
        ("""--input a --storage-options {"anon":true}""", "--storage-options are for URLs, and every path is local"),
        ("--input a --rank 0 --world-size 2 --verify", "--verify reads the complete set: give it with --step finish"),
        ("--input a --ray --rank 0", "--ray does every rank and every step"),
        ("--input a --ray --world-size 1", "--world-size must be at least 2"),
        ("--input a --max-record-bytes 0", "--max-record-bytes must be at least 1"),
        ("--input a.txt --text-column x", "--text-column x is not used: the 1 files to read"),
        ("--input a.jsonl --text-unit file", "--text-unit file is not used: the 1 files to read"),
    ],
)
def test_an_option_that_nothing_would_look_at_is_refused_by_its_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    message: str,
) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    (tmp_path / "a.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--output", "o", "--tokenizer", "bytes", *arguments.split()]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError):
        parse_options(["--input", "a", "--output", "o", "--tokenizer", "t", "--max-docs", "0"])


# --- ends


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_run_ends_cleanly_and_shows_nothing_of_the_set(
    long_run: list[object], tmp_path: Path, tool_env: dict[str, str], number: int, status: int
) -> None:
    process = start_and_wait_for_staged_files(long_run, tmp_path, tool_env)
    process.send_signal(number)
    output, errors = process.communicate(timeout=240)
    message = "pretokenize: interrupted; rerun the same command to resume from the last finished file\n"
    assert (process.returncode, output, errors) == (status, "", message)
    assert {name.split("/")[0] for name in names_in(tmp_path / "out")} == {"_staging-run"}


@pytest.mark.parametrize("signals", ["SIGINT", "SIGTERM"])
def test_a_run_that_finds_nothing_but_blank_lines_can_be_ended(
    command: list[str], tmp_path: Path, tool_env: dict[str, str], signals: str
) -> None:
    # Reading all of them takes minutes, more than the process is given to end.
    (tmp_path / "blank.txt.gz").write_bytes(b"".join([gzip.compress(b"\n" * 10_000_000)] * 30))
    with subprocess.Popen(
        [*command, "--input", "blank.txt.gz", "--output", "out", "--tokenizer", "bytes"],
        cwd=tmp_path,
        env=tool_env,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not list((tmp_path / "out").glob("_staging-*")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.Signals[signals])
        try:
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.Signals[signals]
    assert errors.startswith("pretokenize: interrupted;")
    assert errors.count("\n") == 1


# Stops where a module is imported, and tells; Python imports a sitecustomize by itself.
STOP_AT_IMPORT = """
import importlib.abc, os, sys, time

class Stop(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pyarrow" and (sys.argv[0] == "-c") == (os.environ["STOP_IN"] == "worker"):
            with open("told", "wb") as told:
                told.write(b"importing")
            time.sleep(60)

sys.meta_path.insert(0, Stop())
"""


@pytest.mark.parametrize("where", ["script", "module", "index", "worker"])
def test_ctrl_c_while_modules_are_imported_is_one_line(
    command: list[str], tmp_path: Path, tokenizer_folder: Path, tool_env: dict[str, str], where: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STOP_AT_IMPORT)
    (tmp_path / "a.txt").write_text("x\n" * 1000)
    os.mkfifo(tmp_path / "told")
    arguments = ["--input", "a.txt", "--output", "out", "--tokenizer", str(tokenizer_folder), "--workers", "1"]
    module = [sys.executable, "-m", "parquet_loader.pretokenize", *arguments]
    index = [sys.executable, "-m", "parquet_loader", "index", "a", "--output", "b"]
    process = subprocess.Popen(
        {"module": module, "index": index}.get(where, [*command, *arguments]),
        cwd=tmp_path,
        env=tool_env | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{tool_env['PYTHONPATH']}", "STOP_IN": where},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert (tmp_path / "told").read_bytes() == b"importing"
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("before", ["nothing", "a set"])
def test_a_killed_run_shows_none_of_its_files_and_can_be_run_again(
    long_run: list[object],
    run_tool: RunTool,
    tmp_path: Path,
    tokenizer_folder: Path,
    tool_env: dict[str, str],
    before: str,
) -> None:
    (tmp_path / "old.txt").write_text("old\n" * 1000)
    (tmp_path / "new.txt").write_text("new\n" * 1000)
    common = ["--output", "out", "--tokenizer", tokenizer_folder]
    if before == "a set":
        assert run_tool("--input", "old.txt", *common).returncode == 0
    there = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*")}

    process = start_and_wait_for_staged_files([*long_run, "--overwrite"], tmp_path, tool_env)
    process.kill()
    process.communicate(timeout=240)
    visible = [path for path in (tmp_path / "out").iterdir() if not path.name.startswith("_staging-")]
    assert {path.name: path.read_bytes() for path in visible} == there
    for path in (tmp_path / "out").glob("*.parquet"):
        pq.read_table(path)

    refused = run_tool("--input", "new.txt", *common)
    assert refused.returncode == 2
    assert "is not empty" in refused.stderr
    assert run_tool("--input", "new.txt", *common, "--overwrite").returncode == 0
    assert names_in(tmp_path / "out") == ["_manifest.json", "part-00000.parquet"]
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet").num_rows == 1000


def test_a_disk_that_refuses_to_write_is_one_line_and_leaves_nothing(
    command: list[str], long_run: list[object], tmp_path: Path, tool_env: dict[str, str]
) -> None:
    # The system's own limit on a file's size stands in for a full disk: a write fails in the middle of a part.
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 60 && exec "$@"', "sh", *map(str, long_run)],
        cwd=tmp_path,
        env=tool_env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("pretokenize: error: cannot write ")
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert names_in(tmp_path / "out") == []


# --- imports


def test_importing_the_package_imports_nothing_heavy_or_optional(tmp_path: Path, tool_env: dict[str, str]) -> None:
    code = (
        "import sys, parquet_loader.pretokenize;"
        "print([m for m in ('tokenizers', 'torch', 'transformers', 's3fs', 'tqdm') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=tool_env,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_missing_package_is_an_error_that_says_how_to_install_it(
    run_tool: RunTool, tmp_path: Path, tokenizer_folder: Path
) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    # Python takes a None in sys.modules for a module that is not there.
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['tokenizers'] = None\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])])
    done = run_tool("--input", "a.txt", "--output", "out", "--tokenizer", tokenizer_folder, PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr == (
        "pretokenize: error: this needs the package tokenizers: pip install 'parquet-token-loader[pretokenize]'\n"
    )
