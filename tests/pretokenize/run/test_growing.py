"""Sets that are published as they grow: what a watcher sees of them, at every moment and through every kill."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import subprocesses

from parquet_loader import ParquetLoader
from parquet_loader.errors import ConfigError, DataError, PathNotFoundError, StorageError, WriterFailedError
from parquet_loader.pretokenize import (
    Manifest,
    PretokenizeOptions,
    Progress,
    load_tokenizer,
    pretokenize,
    verify_set,
)
from parquet_loader.pretokenize.write.folder import OutputFolder
from parquet_loader.pretokenize.write.lock import lock_folder, release
from parquet_loader.storage.growing import Growing, Writer

SMALL: dict[str, Any] = {"row_group_tokens": 2000, "file_tokens": 9000, "batch_bytes": 1500}


class Stopped(Exception):
    """Stands for whatever ends a run."""


@pytest.fixture
def texts() -> list[str]:
    rng = random.Random(0)
    return [" ".join(f"w{rng.randrange(10**6)}" for _ in range(rng.randrange(1, 20))) for _ in range(600)]


@pytest.fixture
def options(tmp_path: Path, jsonl: Callable[..., Path], texts: list[str]) -> Callable[..., PretokenizeOptions]:
    path = jsonl(texts)

    def make(output: str = "out", **changes: Any) -> PretokenizeOptions:
        values = {"inputs": (str(path),), "tokenizer": "bytes", "publish": "as-finished", **SMALL} | changes
        return PretokenizeOptions(output=output if "://" in output else str(tmp_path / output), **values)

    return make


def stop_after(options: PretokenizeOptions, documents: int) -> None:
    def stop(done: Progress) -> None:
        if done.documents > documents:
            raise Stopped("for a test")

    with pytest.raises(Stopped):
        pretokenize(options, progress=stop)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def marker(folder: Path) -> Growing:
    return Growing.from_json((folder / "_growing.json").read_bytes(), "_growing.json")


class Watcher:
    """Looks at a folder as a reader would, and remembers what it has seen.

    Attributes:
        seen: of each file its digest when it was first seen.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: dict[str, str] = {}

    def look(self) -> None:
        """See what is new: it must be whole, and come after all that was there."""
        complete = (self.folder / "_manifest.json").exists()
        growing = (self.folder / "_growing.json").exists()
        there = sorted(path.name for path in self.folder.glob("part-*.parquet"))
        if there and not growing:
            assert complete or (self.folder / "_manifest.json").exists()
        assert there[: len(self.seen)] == list(self.seen)
        for name in there[len(self.seen) :]:
            content = (self.folder / name).read_bytes()
            pq.read_table(io.BytesIO(content), page_checksum_verification=True)
            self.seen[name] = hashlib.sha256(content).hexdigest()

    def check(self) -> None:
        """What was seen is what is there now."""
        self.look()
        now = {name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in self.seen}
        assert now == self.seen


# --- what is there while the set grows


def test_files_appear_in_order_whole_and_never_change(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    watcher, counts = Watcher(tmp_path / "out"), []

    def look(done: Progress) -> None:
        watcher.look()
        if not counts or len(watcher.seen) > counts[-1]:
            counts.append(len(watcher.seen))

    manifest = pretokenize(options(), progress=look).manifest
    watcher.check()
    assert counts[:-1] == list(range(len(counts) - 1))  # one by one
    assert len(counts) > 5
    assert list(watcher.seen) == [file.name for file in manifest.files]
    assert not (tmp_path / "out" / "_growing.json").exists()
    assert [file.row_groups for file in manifest.files][:4] == [1, 2, 4, 4]  # up to file_tokens
    assert pretokenize(options()).manifest == manifest  # has nothing left to do


def test_the_documents_are_those_of_a_set_that_is_published_at_the_end(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    pretokenize(options("growing"))
    pretokenize(options("at-end", publish="at-end"))
    growing, at_end = (
        [pq.ParquetFile(path) for path in sorted((tmp_path / name).glob("*.parquet"))] for name in ("growing", "at-end")
    )
    assert [f.read()["tokens"].to_pylist() for f in growing] != [f.read()["tokens"].to_pylist() for f in at_end]
    groups = [
        [file.read_row_group(at)["tokens"].to_pylist() for file in files for at in range(file.num_row_groups)]
        for files in (growing, at_end)
    ]
    assert groups[0] == groups[1]


@pytest.mark.parametrize("packing", [{}, {"pack": "best-fit", "seq_len": 8, "pack_buffer_tokens": 500}])
def test_the_marker_never_expects_less_than_there_is(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], packing: dict[str, Any]
) -> None:
    found: list[Growing] = []
    changes = {"batch_bytes": 10_000, **packing}  # several files of a batch
    manifest = pretokenize(options(**changes), progress=lambda _: found.append(marker(tmp_path / "out"))).manifest
    assert found[-1].files > 3
    for each in found:
        expected = each.expected or {"documents": manifest.documents, "tokens": manifest.tokens}
        assert each.documents <= min(expected["documents"], manifest.documents)
        assert each.tokens <= expected["tokens"]


def test_the_marker_says_how_far_the_writer_is(tmp_path: Path, options: Callable[..., PretokenizeOptions]) -> None:
    found: list[Growing] = []

    def look(done: Progress) -> None:
        deadline = time.monotonic() + 10
        files = len(list((tmp_path / "out").glob("part-*.parquet")))
        while marker(tmp_path / "out").files < files:  # the beat that comes with a file is another thread's
            assert time.monotonic() < deadline
            time.sleep(0.001)
        found.append(marker(tmp_path / "out"))

    manifest = pretokenize(options(), progress=look).manifest
    last = found[-1]
    some = manifest.files[: last.files]
    assert last.files > 3
    assert (last.tokens, last.documents) == (sum(f.tokens for f in some), sum(f.documents for f in some))
    assert (last.state, last.reason, last.row_group_tokens) == ("growing", None, 2000)
    assert last.expected is not None
    assert last.expected["tokens"] == pytest.approx(manifest.tokens, rel=0.2)
    assert last.tokens_per_second is not None
    assert found[0].since == last.since <= last.updated


def test_an_unfinished_set_is_not_verified(tmp_path: Path, options: Callable[..., PretokenizeOptions]) -> None:
    stop_after(options(), 300)
    with pytest.raises(PathNotFoundError, match=r"still growing, with \d files, .* it failed: Stopped: for a test"):
        verify_set(str(tmp_path / "out"), load_tokenizer("bytes"))
    pretokenize(options())
    assert verify_set(str(tmp_path / "out"), load_tokenizer("bytes")).manifest.documents == 600


# --- kills and resumes


@pytest.mark.filterwarnings("ignore::parquet_loader.pretokenize.PretokenizeWarning")
@pytest.mark.parametrize(
    "changes", [{}, {"dedup": True}, {"max_docs": 500}, {"pack": "best-fit", "seq_len": 60, "pack_buffer_tokens": 2000}]
)
def test_a_run_that_is_stopped_again_and_again_publishes_what_a_quiet_one_does(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], changes: dict[str, Any]
) -> None:
    pretokenize(options("quiet", **changes))
    watcher = Watcher(tmp_path / "killed")
    for documents in (0, 150, 200, 210, 320):
        stop_after(options("killed", **changes), documents)
        watcher.look()
        assert marker(tmp_path / "killed").state == "failed"
    pretokenize(options("killed", **changes))
    watcher.check()
    assert contents(tmp_path / "killed") == contents(tmp_path / "quiet")


def test_kills_at_random_moments_show_no_other_bytes(
    tmp_path: Path, command: list[str], tool_env: dict[str, str], slow_source: Path
) -> None:
    environment = tool_env | {"PYTHONPATH": f"{tool_env['PYTHONPATH']}{os.pathsep}{slow_source}"}
    sizes = ["--row-group-tokens", "2000", "--file-tokens", "6000", "--batch-bytes", "1000"]
    arguments = [*command, "--source", "slow:Slow", "--tokenizer", "bytes", "--publish", "as-finished", *sizes]

    def start(output: str, seconds: float) -> subprocess.Popen[bytes]:
        line = [*arguments, "--output", output, "--input", str(seconds), "-1"]
        return subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)

    watcher, rng, kills = Watcher(tmp_path / "killed"), random.Random(0), 0
    while not (tmp_path / "killed" / "_manifest.json").exists():
        with start("killed", 0.03) as process:
            new, end = len(watcher.seen) + rng.randrange(2, 6), time.monotonic() + 150
            while process.poll() is None and len(watcher.seen) < new:
                watcher.look()
                assert time.monotonic() < end
            time.sleep(rng.random() * 0.2)
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
        watcher.look()
    watcher.check()
    for output in ("killed", "quiet"):  # the first has at most its staging folder to remove
        with start(output, 0) as process:
            pass
        assert process.returncode == 0
    assert kills > 2
    assert contents(tmp_path / "killed") == contents(tmp_path / "quiet")


def test_a_published_file_that_is_gone_or_cut_is_noticed(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    stop_after(options(), 300)
    part = tmp_path / "out" / "part-0000001.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    with pytest.raises(StorageError, match=r"part-0000001\.parquet has .* bytes; the run's journal says"):
        pretokenize(options())
    part.unlink()
    with pytest.raises(StorageError, match=r"part-0000001\.parquet is not there.* Restore the file"):
        pretokenize(options())
    part.write_bytes(content)
    assert pretokenize(options()).manifest.documents == 600


def test_a_growing_set_resumes_on_an_object_store_too(
    memory_url: str, options: Callable[..., PretokenizeOptions]
) -> None:
    quiet = pretokenize(options(f"{memory_url}/quiet"))
    output = OutputFolder(f"{memory_url}/killed")
    stop_after(options(f"{memory_url}/killed"), 300)
    growing = output.read_growing()
    assert growing is not None
    assert (growing.state, growing.reason) == ("failed", "Stopped: for a test")
    assert len([each for each in output.look() if each.endswith(".parquet")]) == growing.files > 2
    assert pretokenize(options(f"{memory_url}/killed")).manifest == quiet.manifest
    assert output.read_growing() is None


def test_on_an_object_store_a_run_that_was_taken_over_says_nothing_more(
    memory_url: str, options: Callable[..., PretokenizeOptions]
) -> None:
    url = f"{memory_url}/out"

    def second(done: Progress) -> None:
        if done.documents > 300 and OutputFolder(url).read_manifest() is None:
            pretokenize(options(url))

    with pytest.raises(StorageError, match="another run has taken over"):
        pretokenize(options(url), progress=second)
    assert OutputFolder(url).read_growing() is None
    assert pretokenize(options(url)).manifest == pretokenize(options(f"{memory_url}/quiet")).manifest


# --- failures


def test_a_bad_record_is_the_reason_and_its_cure_works(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    lines = (tmp_path / "in.jsonl").read_text().splitlines()
    (tmp_path / "in.jsonl").write_text("\n".join([*lines[:400], "no JSON", *lines[401:]]) + "\n")
    with pytest.raises(DataError):
        pretokenize(options())
    failed = marker(tmp_path / "out")
    assert failed.state == "failed"
    assert failed.files > 2
    assert "in.jsonl:401: invalid JSON" in str(failed.reason)
    manifest = pretokenize(options(on_bad_record="skip")).manifest
    assert (manifest.documents, manifest.skipped.bad) == (599, 1)
    assert not (tmp_path / "out" / "_growing.json").exists()


SMALL_DISK = ["unshare", "--user", "--map-root-user", "--mount"]
FULL = """
    import subprocess, sys
    from parquet_loader.errors import StorageError
    from parquet_loader.pretokenize import PretokenizeOptions, pretokenize
    from parquet_loader.pretokenize.write.folder import OutputFolder

    disk, text = sys.argv[1:]
    sizes = {"row_group_tokens": 2000, "file_tokens": 9000, "batch_bytes": 1500}
    options = PretokenizeOptions(
        inputs=(text,), output=f"{disk}/out", tokenizer="bytes", publish="as-finished", **sizes
    )
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80k", "tmpfs", disk], check=True)
    try:
        pretokenize(options)
    except StorageError as error:
        growing = OutputFolder(f"{disk}/out").read_growing()
        print(growing.state, growing.files > 0, growing.reason == str(error), growing.reason)
    subprocess.run(["mount", "-o", "remount,size=10m", disk], check=True)
    print(pretokenize(options).manifest.to_json() == pretokenize(
        PretokenizeOptions(inputs=(text,), output=f"{disk}/quiet", tokenizer="bytes", publish="as-finished", **sizes)
    ).manifest.to_json())
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*SMALL_DISK, "true"], check=False).returncode != 0,
    reason="nobody may mount a small disk here",
)
def test_a_full_disk_has_room_for_the_reason(tmp_path: Path, options: Callable[..., PretokenizeOptions]) -> None:
    (tmp_path / "disk").mkdir()
    out = subprocesses.run(FULL, tmp_path / "disk", *options().inputs, before=SMALL_DISK)
    failed, completed = out.splitlines()
    assert re.fullmatch(r"failed True True cannot write .*: No space left on device", failed)
    assert completed == "True"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_told(tmp_path: Path, command: list[str], tool_env: dict[str, str], number: int) -> None:
    (tmp_path / "in.txt").write_text("some words\n" * 1_000_000)
    sizes = ["--row-group-tokens", "20_000", "--file-tokens", "60_000"]
    arguments = ["--input", "in.txt", "--output", "out", "--tokenizer", "bytes", "--publish", "as-finished", *sizes]
    with subprocess.Popen([*command, *arguments], cwd=tmp_path, env=tool_env, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "out" / "part-0000002.parquet").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
    found = marker(tmp_path / "out")
    assert found.writer.pid == process.pid
    assert found.state == "failed"
    assert found.reason == f"ended by {signal.Signals(number).name}; rerun the same command to resume"


@pytest.fixture
def slow(
    options: Callable[..., PretokenizeOptions], slow_source: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., PretokenizeOptions]:
    """Options of a source that takes its time, if any; it is no part of what is written."""
    monkeypatch.syspath_prepend(slow_source)

    def make(output: str, seconds: float = 0) -> PretokenizeOptions:
        return options(output, source="slow:Slow", inputs=(str(seconds), "9999"))

    return make


@pytest.fixture
def start_slow(
    slow_source: Path, command: list[str], tool_env: dict[str, str], tmp_path: Path
) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts the command of those options, so slowly that no test sees its end; what it says goes to a file `log`."""

    def start(*more: str, source: str = "slow:Slow") -> subprocess.Popen[bytes]:
        sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
        arguments = ["--source", source, "--input", "0.1", "9999", "--output", "out", "--tokenizer", "bytes", *sizes]
        env = tool_env | {"PYTHONPATH": os.pathsep.join([tool_env["PYTHONPATH"], str(slow_source)])}
        with (tmp_path / "log").open("a") as log:
            whole = [*command, *arguments, "--publish", "as-finished", *more]
            return subprocess.Popen(whole, cwd=tmp_path, env=env, stderr=log)

    return start


def wait_for_a_file(folder: Path, process: subprocess.Popen[bytes]) -> None:
    while not (folder / "part-0000001.parquet").exists():
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("workers", "said", "told"),
    [
        ("0", "allocation failed\n", r"without a word; the last line of its log is: allocation failed\. Run it again"),
        ("2", "", r"without a word\. Run it again"),  # the log has more, but of an earlier run
    ],
)
def test_a_reader_learns_of_a_command_that_is_killed_and_can_go_on_once_it_is_rerun(
    tmp_path: Path,
    slow: Callable[..., PretokenizeOptions],
    start_slow: Callable[..., Any],
    workers: str,
    said: str,
    told: str,
) -> None:
    out = tmp_path / "out"
    (tmp_path / "log").write_text("the disk was full yesterday\n")
    with start_slow("--workers", workers) as process:
        wait_for_a_file(out, process)
        with ParquetLoader(out, seq_len=16, lanes=4, window=2, follow=True) as loader:
            next(iter(loader))
            with (tmp_path / "log").open("a") as log:
                log.write(said)
            process.kill()
            with pytest.raises(WriterFailedError, match=rf"the writer of .*out has failed: it was killed, .*{told}"):
                list(loader)
            assert (marker(out).state, marker(out).writer.pid) == ("failed", process.pid)
            files = contents(out)
            pretokenize(slow("out"))
            assert next(iter(loader)).tokens.shape == (4, 16)
    pretokenize(slow("quiet"))
    assert contents(out) == contents(tmp_path / "quiet")
    assert all(contents(out)[name] == files[name] for name in files if name.startswith("part"))


def test_a_writer_that_is_killed_is_told_of_though_another_that_is_refused_has_the_folder_by_then(
    tmp_path: Path, start_slow: Callable[..., Any]
) -> None:
    with start_slow() as process:
        wait_for_a_file(tmp_path / "out", process)
        process.kill()
    lock = lock_folder(str(tmp_path / "out" / "_staging-run"), "out")  # it was the dead one's until now
    time.sleep(1)  # the watcher has looked by then
    assert marker(tmp_path / "out").state == "growing"
    release(lock)
    end = time.monotonic() + 60
    while marker(tmp_path / "out").state == "growing" and time.monotonic() < end:
        time.sleep(0.01)
    assert str(marker(tmp_path / "out").reason).startswith("it was killed")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_of_a_writer_that_is_killed_is_no_hindrance(
    tmp_path: Path, slow: Callable[..., PretokenizeOptions], slow_source: Path, start_slow: Callable[..., Any]
) -> None:
    """Such as the workers of a source's own, which have all that the writer has open, and may live on without it."""
    (slow_source / "forks.py").write_text("""
import os, pathlib, time
from slow import Slow

class Forks(Slow):
    def records(self, cursor=None):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        pathlib.Path("child").write_text(str(child))
        yield from super().records(cursor)
""")
    with start_slow(source="forks:Forks") as process:
        wait_for_a_file(tmp_path / "out", process)
        process.kill()
    while marker(tmp_path / "out").state == "growing":
        time.sleep(0.01)
    assert str(marker(tmp_path / "out").reason).startswith("it was killed")
    pretokenize(slow("out"))
    pretokenize(slow("quiet"))
    assert contents(tmp_path / "out") == contents(tmp_path / "quiet")
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)  # it lived


def test_a_run_waits_for_a_moment_for_who_is_in_the_folder(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    """As the watcher of a run that was killed is, when that is rerun at once."""
    lock = OutputFolder(str(tmp_path / "out")).lock()
    assert lock is not None
    thread = threading.Timer(0.3, release, (lock,))
    thread.start()
    assert pretokenize(options()).manifest.documents == 600
    thread.join()


# --- what is refused, and what is replaced


def test_several_ranks_are_refused_and_a_mixture_of_a_set_of_each_can_be_followed(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], jsonl: Callable[..., Path], texts: list[str]
) -> None:
    refused = (
        r"publish='as-finished' is for one rank alone: .* inputs and an output of its own, .* mixture of these sets"
    )
    with pytest.raises(ConfigError, match=refused):
        options(world_size=2)
    shares = {f"out{rank}": str(jsonl(texts[rank::2], f"{rank}.jsonl")) for rank in range(2)}

    def write(output: str, share: str) -> None:
        pretokenize(options(output, inputs=(share,), rank=0, world_size=1), progress=lambda _: time.sleep(0.02))

    def batches() -> list[list[list[int]]]:
        sources = {name: tmp_path / name for name in shares}
        weights, run = dict.fromkeys(shares, 1), {"seq_len": 16, "lanes": 4, "window": 1, "follow": True}
        with ParquetLoader(sources, weights=weights, **run) as loader:
            return [batch.tokens.tolist() for batch in islice(loader, 150)]

    threads = [threading.Thread(target=write, args=each) for each in shares.items()]
    for thread in threads:
        thread.start()
    while not all((tmp_path / name / "_growing.json").exists() for name in shares):
        time.sleep(0.01)
    while_they_grow = batches()
    for thread in threads:
        thread.join()
    assert len(while_they_grow) == 150
    assert while_they_grow == batches()


def test_the_way_of_publishing_cannot_change_within_a_run(options: Callable[..., PretokenizeOptions]) -> None:
    stop_after(options(), 300)
    with pytest.raises(ConfigError, match="publish: was 'as-finished', is None"):
        pretokenize(options(publish="at-end"))
    stop_after(options("other", publish="at-end"), 300)
    with pytest.raises(ConfigError, match="publish: was None, is 'as-finished'"):
        pretokenize(options("other"))


@pytest.mark.parametrize("old", ["at-end", "as-finished", "unfinished"])
@pytest.mark.parametrize("new", ["at-end", "as-finished"])
def test_overwriting_leaves_nothing_of_the_old_set(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], old: str, new: Any
) -> None:
    if old == "unfinished":
        stop_after(options(append_eos=True), 500)
    else:
        pretokenize(options(append_eos=True, publish=old))
    stop_after(options(overwrite=True, publish=new), 100)
    there = sorted(path.name for path in (tmp_path / "out").glob("[!_]*"))
    if new == "as-finished":
        assert there == [f"part-{at:07d}.parquet" for at in range(marker(tmp_path / "out").files)]
        assert not (tmp_path / "out" / "_manifest.json").exists()
    else:
        assert bool(there) == (tmp_path / "out" / "_manifest.json").exists() == (old != "unfinished")
    pretokenize(options(overwrite=True, publish=new))
    pretokenize(options("quiet", publish=new))
    assert contents(tmp_path / "out") == contents(tmp_path / "quiet")


def test_a_run_that_came_to_nothing_is_no_hindrance(tmp_path: Path, options: Callable[..., PretokenizeOptions]) -> None:
    stop_after(options(), 0)
    assert marker(tmp_path / "out").files == 0
    pretokenize(options(append_eos=True, publish="at-end"))
    assert min(contents(tmp_path / "out")) == "_manifest.json"


def test_a_file_that_is_not_the_run_s_is_refused_beside_it_and_can_be_overwritten(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    stop_after(options(), 300)
    (tmp_path / "out" / "part-0000077.parquet").write_bytes(b"?")
    with pytest.raises(ConfigError, match=r"beside an unfinished run it holds 'part-0000077\.parquet'"):
        pretokenize(options())
    pretokenize(options(overwrite=True))
    pretokenize(options("quiet"))
    assert contents(tmp_path / "out") == contents(tmp_path / "quiet")


# --- the marker


def test_a_marker_is_read_as_it_was_written() -> None:
    made = Growing(
        writer=Writer(program="p", host="h", pid=1), since="a", updated="b", files=1, tokens=2, expected={"tokens": 3}
    )
    assert Growing.from_json(made.to_json(), "x") == made
    later = json.loads(made.to_json()) | {"more": 1}
    assert Growing.from_json(json.dumps(later), "x") == made


@pytest.mark.parametrize(
    "changes", [{"version": 2}, {"files": -1}, {"state": "done"}, {"writer": None}, {"tokens": "1"}]
)
def test_what_is_no_marker_is_refused(changes: dict[str, Any]) -> None:
    made = Growing(writer=Writer(program="p", host="h", pid=1), since="a", updated="b")
    with pytest.raises(DataError, match=r"x: .*marker of a growing set"):
        Growing.from_json(json.dumps(json.loads(made.to_json()) | changes), "x")


def test_the_manifest_says_how_it_was_published(options: Callable[..., PretokenizeOptions]) -> None:
    manifest = pretokenize(options()).manifest
    assert manifest.fingerprint["publish"] == "as-finished"
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_run_that_a_bad_record_has_ended_goes_on_with_it_skipped_as_the_error_says(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    lines = [json.dumps({"text": "some words " * 20})] * 400
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, '{"text": broken', *lines]))
    growing = options("out", inputs=(str(tmp_path / "in.jsonl"),))
    with pytest.raises(DataError, match="a run that has finished files goes on with it") as refused:
        pretokenize(growing)
    assert marker(tmp_path / "out").reason == str(refused.value)
    files = contents(tmp_path / "out")
    summary = pretokenize(replace(growing, on_bad_record="skip"))
    assert summary.manifest.skipped.bad == 1
    there = [name for name in files if name.startswith("part")]
    assert there
    assert all(contents(tmp_path / "out")[name] == files[name] for name in there)
