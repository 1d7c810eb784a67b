"""Runs that are ended anywhere, and what the same command makes of what they have left."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import subprocesses

from parquet_loader.errors import ConfigError, DataError, StorageError
from parquet_loader.pretokenize import (
    Encoding,
    Manifest,
    PretokenizeOptions,
    PretokenizeWarning,
    Progress,
    TokenizerInfo,
    pretokenize,
)
from parquet_loader.pretokenize.run.resume import Found, Run, decide
from parquet_loader.pretokenize.select.dedup import SeenFile
from parquet_loader.pretokenize.tokenizers.base import Lost
from parquet_loader.pretokenize.write.folder import OutputFolder
from parquet_loader.pretokenize.write.journal import Journal, Position
from parquet_loader.pretokenize.write.manifest import BadEntry, FileEntry, Packed, Packing, Skipped

ROOT = Path(__file__).resolve().parents[3]
SMALL: dict[str, Any] = {"row_group_tokens": 2000, "file_tokens": 5000, "batch_bytes": 1500}


class Stopped(Exception):
    """Stands for whatever ends a run."""


@pytest.fixture
def texts() -> list[str]:
    """Words, a third of them copies of earlier ones but for white space."""
    rng = random.Random(0)
    made: list[str] = []
    for _ in range(600):
        if made and rng.random() < 1 / 3:
            made.append("\t" + rng.choice(made).replace(" ", "  "))
        else:
            made.append(" ".join(f"w{rng.randrange(10**6)}" for _ in range(rng.randrange(1, 20))))
    return made


@pytest.fixture
def options(tmp_path: Path, jsonl: Callable[..., Path], texts: list[str]) -> Callable[..., PretokenizeOptions]:
    path = jsonl(texts)

    def make(output: str = "out", **changes: Any) -> PretokenizeOptions:
        values: dict[str, Any] = {"inputs": (str(path),), "tokenizer": "bytes", "append_eos": True, **SMALL} | changes
        return PretokenizeOptions(output=output if "://" in output else str(tmp_path / output), **values)

    return make


def stop_after(options: PretokenizeOptions, documents: int) -> None:
    def stop(done: Progress) -> None:
        if done.documents > documents:
            raise Stopped

    with pytest.raises(Stopped):
        pretokenize(options, progress=stop)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- resuming


@pytest.mark.filterwarnings("ignore::parquet_loader.pretokenize.PretokenizeWarning")
@pytest.mark.parametrize("dedup", [False, True])
def test_a_run_that_is_stopped_again_and_again_writes_what_a_quiet_one_does(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], dedup: bool
) -> None:
    pretokenize(options("quiet", dedup=dedup))
    for documents in (150, 200, 210, 320):
        stop_after(options("killed", dedup=dedup), documents)
    summary = pretokenize(options("killed", dedup=dedup))
    assert summary.earlier_bytes > 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "quiet")
    assert len(contents(tmp_path / "quiet")) > 5


def test_finished_parts_are_not_written_again(tmp_path: Path, options: Callable[..., PretokenizeOptions]) -> None:
    stop_after(options(), 450)
    staged = sorted((tmp_path / "out" / "_staging-run").glob("*.parquet"))
    journal = json.loads((tmp_path / "out" / "_staging-run" / "journal.json").read_text())
    finished = [tmp_path / "out" / "_staging-run" / part["name"] for part in journal["parts"]]
    assert len(finished) >= 2
    assert set(finished) <= set(staged)
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in finished]
    pretokenize(options())
    parts = sorted((tmp_path / "out").glob("*.parquet"))
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in parts[: len(before)]] == before


def test_a_finished_part_that_is_gone_is_told_and_overwriting_starts_anew(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    pretokenize(options("quiet"))
    stop_after(options(), 450)
    (tmp_path / "out/_staging-run/1.parquet").unlink()
    with pytest.raises(StorageError, match=r"1\.parquet is not there; .* Start again with overwrite=True"):
        pretokenize(options())
    pretokenize(options(overwrite=True))
    assert contents(tmp_path / "out") == contents(tmp_path / "quiet")


@pytest.mark.filterwarnings("ignore::parquet_loader.pretokenize.PretokenizeWarning")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_set_is_the_same_for_any_number_of_workers(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], workers: int
) -> None:
    pretokenize(options("threads", dedup=True))
    pretokenize(options("processes", dedup=True, workers=workers, batch_bytes=3000))
    assert contents(tmp_path / "processes") == contents(tmp_path / "threads")


def test_another_number_of_workers_may_go_on(tmp_path: Path, options: Callable[..., PretokenizeOptions]) -> None:
    pretokenize(options("quiet"))
    stop_after(options("killed"), 300)
    pretokenize(options("killed", workers=2, batch_bytes=900))
    assert contents(tmp_path / "killed") == contents(tmp_path / "quiet")


def test_the_same_command_on_a_whole_set_does_nothing(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    first = pretokenize(options())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert pretokenize(options()).manifest == first.manifest
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_going_on_works_on_an_object_store_too(memory_url: str, options: Callable[..., PretokenizeOptions]) -> None:
    quiet = pretokenize(options(f"{memory_url}/quiet"))
    stop_after(options(f"{memory_url}/killed"), 300)
    killed = pretokenize(options(f"{memory_url}/killed"))
    assert killed.manifest == quiet.manifest
    assert killed.earlier_bytes > 0


DRIVER = """
    import json, os, shutil, sys
    from pathlib import Path
    import numpy as np
    import pyarrow as pa
    from fsspec.implementations.local import LocalFileSystem
    from parquet_loader.pretokenize import PretokenizeOptions, pretokenize

    pa.array(np.zeros(1))  # for which PyArrow imports pandas: once here, and not in every fork
    work = Path(sys.argv[1])

    def run(output, old=False, stop_at=None):
        steps = 0

        def counted(function):
            def step(*arguments, **keywords):
                nonlocal steps
                steps += 1
                if steps == stop_at:
                    os._exit(9)  # nothing is cleaned up, as after SIGKILL
                result = function(*arguments, **keywords)
                steps += 1
                if steps == stop_at:
                    os._exit(9)
                return result
            return step

        os.replace, os.fsync = counted(os.replace), counted(os.fsync)
        for name in ("mv", "rm_file", "open", "rm"):
            setattr(LocalFileSystem, name, counted(getattr(LocalFileSystem, name)))
        pretokenize(PretokenizeOptions(
            inputs=(str(work / "old.txt" if old else work / "in.jsonl"),), output=str(output), tokenizer="bytes",
            row_group_tokens=12_000, file_tokens=12_000, batch_bytes=4000, dedup=not old, overwrite=not old,
            seen_hashes=None if old else str(output) + ".seen", write_seen_hashes=not old,
            **({} if old else json.loads(sys.argv[3])),
        ))

    def in_a_fork(*arguments, **keywords):
        child = os.fork()
        if not child:
            run(*arguments, **keywords)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def contents(folder):
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        seen = Path(str(folder) + ".seen")
        return found | {"seen": seen.read_bytes() if seen.exists() else b""}

    (work / "old.txt").write_text("old\\n")
    before = work / "before"
    assert in_a_fork(before, old=True) == 0
    old_set = contents(before)

    def start(folder):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        Path(str(folder) + ".seen").unlink(missing_ok=True)

    quiet, killed = work / "quiet", work / "killed"
    start(quiet)
    assert in_a_fork(quiet) == 0
    expected = contents(quiet)
    stop_at = 1
    while True:
        start(killed)
        status = in_a_fork(killed, stop_at=stop_at)
        there = contents(killed)
        if "_manifest.json" in there and there["_manifest.json"] == old_set["_manifest.json"]:
            assert there["part-00000.parquet"] == old_set["part-00000.parquet"], stop_at
        if status == 0:
            break
        assert status == 9, status
        # And killed a second time, a few steps on.
        in_a_fork(killed, stop_at=7)
        if "_staging-run/journal.json" in contents(killed) or contents(killed) != expected:
            assert in_a_fork(killed) == 0, stop_at
        assert contents(killed) == expected, stop_at
        stop_at += int(sys.argv[2])
    print(stop_at)
"""


@pytest.mark.parametrize(
    ("changes", "every"),  # with 1 it takes minutes
    [({}, 5), ({"pack": "best-fit", "seq_len": 60, "pack_buffer_tokens": 2_000}, 5), ({"publish": "as-finished"}, 11)],
    ids=["documents", "packed", "growing"],
)
def test_a_kill_at_any_step_in_the_folder_loses_nothing(
    tmp_path: Path, texts: list[str], jsonl: Callable[..., Path], changes: dict[str, Any], every: int
) -> None:
    jsonl(texts)
    steps = int(subprocesses.run(DRIVER, tmp_path, every, json.dumps(changes)))
    assert steps > 60


def test_kills_at_random_moments_change_nothing() -> None:
    """The short form of ``make soak``."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "soak" / "pretokenize_soak.py"), "--kills", "4", "--documents", "4000"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("the same as a quiet run's") == 2


# --- refusing


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"append_eos": False}, "append_eos: was True, is False"),
        ({"row_group_tokens": 1999}, "row_group_tokens: was 2000, is 1999"),
        ({"max_docs": 500}, "max_docs: was None, is 500"),
        ({"empty": "skip"}, "empty: was 'keep', is 'skip'"),
        ({"text_column": "body"}, "source.text_column: was 'text', is 'body'"),
    ],
)
@pytest.mark.parametrize("state", ["unfinished", "whole"])
def test_other_options_are_refused_and_named(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], changes: dict[str, Any], difference: str, state: str
) -> None:
    if state == "unfinished":
        stop_after(options(), 300)
    else:
        pretokenize(options())
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError) as caught:
        pretokenize(options(**changes))
    assert difference in str(caught.value)
    assert "overwrite=True" in str(caught.value)
    assert contents(tmp_path / "out") == before


def test_another_tokenizer_is_refused(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], tokenizer_folder: Path
) -> None:
    stop_after(options(), 300)
    with pytest.raises(ConfigError, match=r"tokenizer\.sha256: was '.*', is '.*'; tokenizer\.vocab_size: was 257"):
        pretokenize(options(tokenizer=str(tokenizer_folder)))


def test_files_that_are_new_or_gone_are_named(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], jsonl: Callable[..., Path]
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a", "b", "c"):
        jsonl(["some words of it"] * 300, f"texts/{name}.jsonl")
    stop_after(options(inputs=(str(folder),)), 800)
    (folder / "b.jsonl").rename(folder / "d.jsonl")
    with pytest.raises(ConfigError, match=r"\(\S*/b\.jsonl is gone; \S*/d\.jsonl is new\)\. Give those again"):
        pretokenize(options(inputs=(str(folder),)))
    (folder / "d.jsonl").rename(folder / "b.jsonl")
    inputs = tuple(str(folder / f"{name}.jsonl") for name in "cba")
    with pytest.raises(ConfigError, match=r"another order: the first was \S*/a\.jsonl, is \S*/c\.jsonl\)"):
        pretokenize(options(inputs=inputs))


def test_text_that_is_put_back_unchanged_is_taken_for_itself_with_its_old_time(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    stop_after(options(), 300)
    (tmp_path / "in.jsonl").write_bytes((tmp_path / "in.jsonl").read_bytes())
    with pytest.raises(ConfigError) as caught:
        pretokenize(options())
    found = re.search(r"in\.jsonl was written again since, .* `(touch .*)` gives it its old time\)", str(caught.value))
    assert found is not None
    subprocess.run([*found[1].split(), tmp_path / "in.jsonl"], check=True)
    assert pretokenize(options()).manifest.documents == 600


def test_a_source_that_changed_is_refused_and_named(tmp_path: Path, options: Callable[..., PretokenizeOptions]) -> None:
    stop_after(options(), 300)
    with (tmp_path / "in.jsonl").open("a") as stream:
        stream.write('{"text": "one more"}\n')
    with pytest.raises(ConfigError, match=r"in\.jsonl has changed: it had [\d,]+ bytes, and has [\d,]+"):
        pretokenize(options())


def test_overwriting_starts_anew_and_keeps_the_old_set_until_the_new_is_whole(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    pretokenize(options())
    old = contents(tmp_path / "out")
    stop_after(options(append_eos=False, overwrite=True), 300)
    assert {name: content for name, content in contents(tmp_path / "out").items() if "_staging" not in name} == old
    with pytest.raises(ConfigError, match="overwrite=True, as that run had it"):
        pretokenize(options(append_eos=False))
    pretokenize(options("quiet", append_eos=False))
    pretokenize(options(append_eos=False, overwrite=True))
    assert contents(tmp_path / "out") == contents(tmp_path / "quiet")


def test_overwriting_forgets_an_unfinished_run_of_other_options(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    stop_after(options(append_eos=False), 300)
    summary = pretokenize(options(overwrite=True))
    assert summary.earlier_bytes == 0
    pretokenize(options("quiet"))
    assert contents(tmp_path / "out") == contents(tmp_path / "quiet")


@pytest.mark.parametrize("name", ["_staging-run/journal.json", "_manifest.json"])
def test_what_cannot_be_understood_is_refused_and_can_be_overwritten(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], name: str
) -> None:
    if name == "_manifest.json":
        pretokenize(options())
    else:
        stop_after(options(), 300)
    (tmp_path / "out" / name).write_text("{")
    with pytest.raises(DataError, match=r"not a"):
        pretokenize(options())
    pretokenize(options(overwrite=True))
    pretokenize(options("quiet"))
    assert contents(tmp_path / "out") == contents(tmp_path / "quiet")


def test_a_finished_part_that_is_gone_or_cut_is_noticed(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    stop_after(options(), 300)
    part = tmp_path / "out" / "_staging-run" / "0.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(StorageError, match=r"0\.parquet has .* bytes; the run's journal says"):
        pretokenize(options())
    part.unlink()
    with pytest.raises(StorageError, match=r"0\.parquet"):
        pretokenize(options())


# --- one at a time


def test_a_second_run_into_the_same_folder_is_refused(options: Callable[..., PretokenizeOptions]) -> None:
    def second(done: Progress) -> None:
        with pytest.raises(ConfigError, match="is being written by another run"):
            pretokenize(options())
        raise Stopped

    with pytest.raises(Stopped):
        pretokenize(options(), progress=second)
    pretokenize(options())


def test_on_an_object_store_the_last_to_come_goes_on_and_the_one_before_ends(
    memory_url: str, options: Callable[..., PretokenizeOptions]
) -> None:
    output = f"{memory_url}/out"
    quiet = pretokenize(options(f"{memory_url}/quiet"))
    summaries = []

    def second(done: Progress) -> None:
        if done.documents > 300 and not summaries:
            summaries.append(pretokenize(options(output)))

    with pytest.raises(StorageError, match="another run has taken over"):
        pretokenize(options(output), progress=second)
    assert summaries[0].manifest == quiet.manifest
    assert OutputFolder(output).read_manifest() == quiet.manifest


def test_no_worker_outlives_a_run_that_is_killed(tmp_path: Path, command: list[str], tool_env: dict[str, str]) -> None:
    (tmp_path / "in.txt").write_text("some words\n" * 2_000_000)
    arguments = ["--input", "in.txt", "--output", "out", "--tokenizer", "bytes", "--workers", "2"]
    with subprocess.Popen([*command, *arguments], cwd=tmp_path, env=tool_env) as process:
        children: list[int] = []
        while len(children) < 2:
            assert process.poll() is None
            time.sleep(0.05)
            children = _children(process.pid)
        process.send_signal(signal.SIGKILL)
    for _ in range(600):
        if not any(Path(f"/proc/{child}").exists() and "Z" not in _state(child) for child in children):
            return
        time.sleep(0.05)
    raise AssertionError(f"{children} live on")


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in listed.read_text().split()] if listed.exists() else []


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


# --- duplicates


def test_without_a_file_the_state_in_memory_is_told(options: Callable[..., PretokenizeOptions]) -> None:
    with pytest.warns(PretokenizeWarning, match="in memory for this set alone"):
        pretokenize(options(dedup=True))


@pytest.mark.filterwarnings("ignore::parquet_loader.pretokenize.PretokenizeWarning")
@pytest.mark.parametrize("hash_name", ["sha256", "sha1", "md5", "blake2b", "xxh3"])
def test_exactly_the_first_of_each_text_is_written(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], texts: list[str], hash_name: str
) -> None:
    import pyarrow.parquet as pq

    summary = pretokenize(options(dedup=True, hash=hash_name))
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(" ".join(text.split()), text)
    rows = [row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(path)["tokens"]]
    assert [bytes(row.as_py()[:-1]).decode() for row in rows] == list(first.values())
    assert summary.manifest.skipped == Skipped(duplicates=len(texts) - len(first))


def test_seen_hashes_survive_runs(tmp_path: Path, options: Callable[..., PretokenizeOptions], texts: list[str]) -> None:
    seen = str(tmp_path / "seen")
    first = pretokenize(options("a", dedup=True, seen_hashes=seen, write_seen_hashes=True, max_docs=100))
    before = Path(seen).read_bytes()
    second = pretokenize(options("b", dedup=True, seen_hashes=seen))
    assert Path(seen).read_bytes() == before  # only read
    assert first.manifest.documents + second.manifest.documents == len({" ".join(text.split()) for text in texts})
    third = pretokenize(options("c", dedup=True, seen_hashes=seen, write_seen_hashes=True))
    assert third.manifest.documents == second.manifest.documents
    file = SeenFile(url=seen, hash_name="sha256", storage_options={})
    assert len(file.read()) == first.manifest.documents + second.manifest.documents
    with pytest.raises(ConfigError, match=r"nothing is left of the input: 600 duplicates"):
        pretokenize(options("d", dedup=True, seen_hashes=seen))


def test_seen_hashes_that_cannot_be_used_are_refused(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    seen = tmp_path / "seen"
    with pytest.raises(ConfigError, match=r"there is no such file.*write_seen_hashes=True to begin one"):
        pretokenize(options(dedup=True, seen_hashes=str(seen)))
    pretokenize(options("a", dedup=True, seen_hashes=str(seen), write_seen_hashes=True))
    with pytest.raises(DataError, match=r"hashes of 'sha256', not 'md5'. Give hash='sha256'"):
        pretokenize(options("b", dedup=True, hash="md5", seen_hashes=str(seen)))
    seen.write_bytes(seen.read_bytes()[:-3])
    with pytest.raises(DataError, match="cut short"):
        pretokenize(options("b", dedup=True, seen_hashes=str(seen)))
    seen.write_bytes(b"something else")
    with pytest.raises(DataError, match="not a file of seen hashes"):
        pretokenize(options("b", dedup=True, seen_hashes=str(seen)))


def test_seen_hashes_that_changed_meanwhile_are_refused(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    seen = str(tmp_path / "seen")
    changes = {"dedup": True, "seen_hashes": seen, "write_seen_hashes": True}
    stop_after(options("a", **changes), 250)
    pretokenize(options("b", max_docs=3, **changes))
    with pytest.raises(ConfigError, match=r"seen_hashes\.hashes: was 0, is 3"):
        pretokenize(options("a", **changes))


HOSTILE = [
    None,
    True,
    -1,
    1.5,
    float("nan"),
    2**63,
    10**30,
    "",
    "x",
    "../../x.parquet",
    "/x.parquet",
    [],
    {},
    [[]],
    [-1],
]


def places_in(tree: Any) -> Iterator[tuple[Any, Any]]:
    """(Branch, key) of everything in a tree."""
    for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield tree, key
        yield from places_in(child)


def made_up(text: str) -> Iterator[str]:
    """A JSON file with each of its places in turn replaced by what should not be there, removed, or there twice."""
    for number in range(len(list(places_in(json.loads(text))))):
        for value in [*HOSTILE, "remove", "more"]:
            tree = json.loads(text)
            branch, key = list(places_in(tree))[number]
            if value == "remove":
                del branch[key]
            elif value == "more" and isinstance(branch, dict):
                branch["more"] = 1
            else:
                branch[key] = value
            yield json.dumps(tree)
    yield "[" * 100_000


def numbers_in(entries: Iterable[Any]) -> list[Any]:
    return [value for entry in entries for name, value in asdict(entry).items() if name != "name"]


def test_a_made_up_journal_or_manifest_is_refused_in_a_line_or_holds_counts_and_names_in_its_folder() -> None:
    entry = FileEntry(name="0.parquet", documents=1, tokens=2, row_groups=3, size_bytes=4)
    position = Position(cursor=(1, 2, 3), documents=3, text_bytes=4, skipped=Skipped(bad=1))
    bad = (BadEntry(where="a:1", problem="bad"),)
    info = TokenizerInfo(name="t", sha256="0", vocab_size=9, eos_token="e", eos_id=8)
    encoding = Encoding(
        column="tokens",
        dtype="uint16",
        tokenizer=info,
        eos_appended=True,
        aligned={"document_ids": "int32"},
        packing=Packing(seq_len=5, buffer_tokens=6),
    )
    packed = Packed(documents=1, cut_documents=2, padding=3)
    journal = Journal(fingerprint={"a": 1}, parts=(entry,), position=position, bad_records=bad).to_json()
    manifest = Manifest(
        encoding=encoding, files=(entry,), bad_records=bad, packed=packed, fingerprint={"a": 1}
    ).to_json()
    refused = 0
    for text, read in [
        *((text, lambda text: Journal.from_json(text, "the journal")) for text in made_up(journal)),
        *((text, Manifest.from_json) for text in made_up(manifest)),
    ]:
        try:
            made = read(text)
        except DataError as error:
            refused += 1
            assert "\n" not in str(error)
            continue
        files = made.parts if isinstance(made, Journal) else made.files
        assert all(type(number) is int and number >= 0 for number in numbers_in(files))
        assert all(re.fullmatch(r"[0-9]+\.parquet", file.name) for file in files)
        if isinstance(made, Journal):
            at = made.position
            counts = [at.documents, at.text_bytes, at.rows, at.cut_documents, *(at.cursor or ())]
            assert all(type(number) is int and number >= 0 for number in counts)
        else:
            assert type(made.describe_packing()) is str
            assert made.documents >= 0 and made.tokens >= 0 and made.encoding.tokenizer.vocab_size >= 0
    assert refused > 500


@pytest.mark.parametrize("cursor", [[7, 0, 0], [0, 0], [0, 1, 2, 3]])
def test_a_journal_whose_position_is_in_no_input_is_refused(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], cursor: list[int]
) -> None:
    stop_after(options(), 300)
    path = tmp_path / "out" / "_staging-run" / "journal.json"
    values = json.loads(path.read_text())
    values["position"]["cursor"] = cursor
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"no position in the input is .*; start again with overwrite=True"):
        pretokenize(options())


def test_a_journal_that_names_a_file_elsewhere_moves_nothing(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    stop_after(options(), 300)
    path = tmp_path / "out" / "_staging-run" / "journal.json"
    values = json.loads(path.read_text())
    (tmp_path / "mine.parquet").write_bytes(b"x" * values["parts"][0]["size_bytes"])
    values["parts"][0]["name"] = "../../mine.parquet"
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"a file is called '\.\./\.\./mine\.parquet'.*Start again with overwrite=True"):
        pretokenize(options())
    assert (tmp_path / "mine.parquet").exists()
    assert pretokenize(options(overwrite=True)).manifest.documents == 600


# --- the manifest


def test_a_manifest_is_read_as_it_was_written(options: Callable[..., PretokenizeOptions]) -> None:
    manifest = pretokenize(options()).manifest
    changed = replace(
        manifest,
        bad_records=(BadEntry(where="a:1", problem="bad"),),
        skipped=Skipped(bad=1),
        lost=Lost(unknown_tokens=1),
    )
    assert Manifest.from_json(changed.to_json()) == changed


# --- deciding

MANIFEST = Manifest(
    encoding=Encoding(
        column="tokens",
        dtype="uint16",
        tokenizer=TokenizerInfo(name="bytes", sha256="", vocab_size=257, eos_token=None, eos_id=256),
        eos_appended=True,
    ),
    files=(),
    fingerprint={"n": 1},
)
WRITING, REMOVING = Journal(fingerprint={"n": 1}), Journal(fingerprint={"n": 1}, phase="removing")


@pytest.mark.parametrize(
    ("found", "run", "decision"),
    [
        ({}, {}, "fresh"),
        ({"journal": WRITING}, {}, "resume"),
        ({"journal": WRITING}, {"fingerprint": {"n": 2}}, "n: was 1, is 2"),
        ({"journal": WRITING}, {"fingerprint": {"n": 2}, "overwrite": True}, "fresh"),
        ({"journal": WRITING, "files": ("x",)}, {}, "beside an unfinished run"),
        ({"journal": WRITING, "files": ("x",)}, {"overwrite": True}, "resume"),
        ({"journal": REMOVING, "files": ("x",)}, {}, "resume"),
        ({"files": ("x", "y")}, {}, "it holds 'x' and 1 more"),
        ({"files": ("x", "y")}, {"overwrite": True}, "fresh"),
        ({"files": ("x",), "manifest": replace(MANIFEST, fingerprint={})}, {}, "it holds 'x'"),
        ({"files": ("x",), "manifest": MANIFEST}, {}, "done"),
        ({"files": ("x",), "manifest": MANIFEST}, {"fingerprint": {"n": 2}}, "n: was 1, is 2"),
        ({"files": ("x",), "manifest": MANIFEST}, {"overwrite": True}, "fresh"),
        ({"files": ("x",), "manifest": MANIFEST, "staging": True}, {"overwrite": True}, "done"),
        ({"files": ("x",), "manifest": MANIFEST}, {"overwrite": True, "adds_hashes": True}, "done"),
        (
            {"files": ("x",), "manifest": replace(MANIFEST, fingerprint={"n": 2, "seen_hashes": {"hashes": 1}})},
            {"overwrite": True, "adds_hashes": True},
            "would be dropped as duplicates",
        ),
        ({"files": ("x",), "manifest": MANIFEST}, {"fingerprint": {"n": 1, "rank": 0}, "whole": {"n": 1}}, "done"),
    ],
)
def test_what_lies_there_decides_whether_a_run_is_fresh_resumed_or_done(
    found: dict[str, Any], run: dict[str, Any], decision: str
) -> None:
    nothing: dict[str, Any] = {"output": "out", "files": (), "staging": False, "journal": None, "manifest": None}
    there = Found(**(nothing | found))
    wanted = Run(**({"fingerprint": {"n": 1}, "overwrite": False} | run))
    if decision in ("fresh", "resume", "done"):
        assert decide(there, wanted) == decision
    else:
        with pytest.raises(ConfigError, match=decision):
            decide(there, wanted)
