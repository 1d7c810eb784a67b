"""Tokenizing beside a trainer: real trainers, real writers, and whatever ends either of them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import subprocesses

from parquet_loader import ParquetLoader
from parquet_loader.errors import ConfigError, PretokenizeWarning, StorageError, WriterFailedError
from parquet_loader.pretokenize import PretokenizeOptions, Source, background, pretokenize, register_source
from parquet_loader.storage.growing import Growing

SECONDS = 150  # in which whatever is waited for must have come


@pytest.fixture
def options(tmp_path: Path, slow_source: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PretokenizeOptions]:
    monkeypatch.syspath_prepend(slow_source)

    def make(seconds: float = 0.1, fails_at: int = -1, **changes: Any) -> PretokenizeOptions:
        values = {"output": str(tmp_path / "out"), "tokenizer": "bytes", "source": "slow:Slow"}
        sizes = {"row_group_tokens": 2000, "file_tokens": 10_000, "batch_bytes": 1000}
        return PretokenizeOptions(**{**values, **sizes, "inputs": (str(seconds), str(fails_at)), **changes})

    return make


@pytest.fixture
def quiet(options: Callable[..., PretokenizeOptions], tmp_path: Path) -> dict[str, bytes]:
    """What a run that nobody disturbs writes."""
    pretokenize(options(0, output=str(tmp_path / "quiet"), publish="as-finished"))
    return contents(tmp_path / "quiet")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def marker(folder: Path) -> Growing:
    return Growing.from_json((folder / "_growing.json").read_bytes(), "_growing.json")


def soon(look: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not look():
        assert time.monotonic() < end
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- the end


def test_a_set_is_there_in_the_end_and_is_not_made_again(
    options: Callable[..., PretokenizeOptions], tmp_path: Path, quiet: dict[str, bytes]
) -> None:
    with background(options(0.01)) as writer:
        assert writer.started
        progress = writer.progress()
        assert progress is None or progress.writer.pid != os.getpid()
        assert writer.wait(SECONDS)
        assert writer.done
    assert contents(tmp_path / "out") == quiet
    assert "Wrote 1,200 documents" in (tmp_path / "out.log").read_text()
    with background(options(0.01, overwrite=True)) as again:
        assert (again.started, again.done, again.poll()) == (False, True, True)
    assert contents(tmp_path / "out") == quiet


def test_files_are_there_while_the_writer_runs(options: Callable[..., PretokenizeOptions], tmp_path: Path) -> None:
    with background(options()) as writer:
        soon(lambda: (tmp_path / "out" / "part-0000001.parquet").exists())
        assert not writer.poll()
        growing = writer.progress()
        assert growing is not None
        assert growing.tokens > 0
        assert growing.row_group_tokens == 2000


def test_one_line_tells_of_both_sides(options: Callable[..., PretokenizeOptions], tmp_path: Path) -> None:
    def line(tokens: int, ranks: int = 1) -> str:
        return writer.describe({"tokens": tokens, "wait_growth_seconds": 1.25}, ranks=ranks)

    with background(options()) as writer:
        soon(lambda: marker(tmp_path / "out").files)
        assert re.fullmatch(
            r"read 5,000 tokens \([\d,]+/s\), 1\.2 s waited for files; written [\d,]+ \([\d,]+/s\)", line(1250, ranks=4)
        )
        assert line(5000).startswith("read 5,000 tokens (0/s)")  # since the line before
    assert line(5000).endswith("; the writer failed: ended by SIGTERM; rerun the same command to resume")
    with background(options(0.001)) as writer:
        writer.wait(SECONDS)
        assert line(0).endswith("waited for files; all is written")


def test_a_writer_is_ended_with_its_context_and_resumed_by_the_next(
    options: Callable[..., PretokenizeOptions], tmp_path: Path, quiet: dict[str, bytes]
) -> None:
    with pytest.raises(ZeroDivisionError), background(options()) as writer:
        soon(lambda: (tmp_path / "out" / "part-0000001.parquet").exists())
        pid = marker(tmp_path / "out").writer.pid
        _ = 1 / 0  # the trainer fails
    assert not lives(pid)
    assert (marker(tmp_path / "out").state, "SIGTERM" in str(marker(tmp_path / "out").reason)) == ("failed", True)
    with pytest.raises(WriterFailedError, match=r"ended with status 143: ended by SIGTERM; rerun .* start it again"):
        writer.poll()
    inode = (tmp_path / "out" / "part-0000001.parquet").stat().st_ino
    with background(options(0.001)) as resumed:  # the inputs of this source are no part of its fingerprint
        assert resumed.wait(SECONDS)
    assert (tmp_path / "out" / "part-0000001.parquet").stat().st_ino == inode
    assert contents(tmp_path / "out") == quiet


# --- failures


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer": "nowhere/tokenizer.json"}, "there is no such file or folder"),
        ({"source": "files", "inputs": ("nowhere.txt",)}, r"nowhere\.txt"),
        ({"fails_at": 0}, "the crawl is broken"),
    ],
)
def test_what_is_wrong_from_the_start_is_told_at_once(
    options: Callable[..., PretokenizeOptions], changes: dict[str, Any], reason: str
) -> None:
    cure = r"See .*out\.log, and start it again once that is mended; it had finished no file\.$"
    with pytest.raises(WriterFailedError, match=reason + ".*" + cure), background(options(**changes)) as writer:
        writer.wait(SECONDS)
    with background(options(0)) as mended:
        assert mended.wait(SECONDS)


def test_a_writer_that_fails_at_once_is_not_said_to_have_made_none_of_the_files_that_are_there(
    options: Callable[..., PretokenizeOptions], tmp_path: Path
) -> None:
    with background(options(0.05)):
        soon(lambda: marker(tmp_path / "out").files)
    files = marker(tmp_path / "out").files
    cure = rf"start it again once that is mended; the {files} files there are of a writer before it\.$"
    with pytest.raises(WriterFailedError, match=r"append_eos: was False, is True.*" + cure):
        background(options(0, append_eos=True))


def test_a_failure_in_the_middle_is_told_with_its_reason(options: Callable[..., PretokenizeOptions]) -> None:
    with background(options(0.001, fails_at=700)) as writer:
        why = r"ended with status 2: ValueError: the crawl is broken\. See .*out\.log, and start it again to resume\.$"
        with pytest.raises(WriterFailedError, match=why):
            writer.wait(SECONDS)
        assert not writer.done
        assert writer.log is not None
        assert "Traceback" in writer.log.read_text()


def test_a_writer_that_is_killed_is_told_of(options: Callable[..., PretokenizeOptions], tmp_path: Path) -> None:
    with background(options()) as writer:
        os.kill(marker(tmp_path / "out").writer.pid, signal.SIGKILL)
        with pytest.raises(WriterFailedError, match=r"the writer of .*out was ended by SIGKILL"):
            writer.wait(SECONDS)


def test_a_loader_learns_at_once_of_a_writer_that_is_killed(
    options: Callable[..., PretokenizeOptions], tmp_path: Path, quiet: dict[str, bytes]
) -> None:
    with background(options(0.05)) as writer:
        soon(lambda: marker(tmp_path / "out").files)
        pid = marker(tmp_path / "out").writer.pid
        with ParquetLoader(writer.folder, seq_len=16, lanes=4, window=2, follow=True) as loader:
            next(iter(loader))
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WriterFailedError, match=r"the writer of .*out has failed: it was killed"):
                list(loader)
        assert marker(tmp_path / "out").writer.pid == pid
        with pytest.raises(WriterFailedError, match=r"the writer of .*out was ended by SIGKILL"):
            writer.poll()
    with background(options(0.001)) as resumed:
        assert resumed.wait(SECONDS)
    assert contents(tmp_path / "out") == quiet


TRAINER = """
    import json, os, signal, sys, time
    from parquet_loader.pretokenize import PretokenizeOptions, background

    sys.path.insert(0, sys.argv[1])
    how = sys.argv[2]
    if how == "deaf":  # what a trainer makes of signals is its own affair
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    writer = background(PretokenizeOptions(**json.loads(sys.argv[3])))
    if how == "fork" and os.fork() == 0:  # a worker of a data loader, which has all that the trainer has open
        time.sleep(60)
        os._exit(0)
    print(writer.started, writer.progress().writer.pid, signal.getsignal(signal.SIGINT), flush=True)
    if how == "deaf":
        writer.close()
    elif how == "watch":
        print(writer.wait(60), writer.started, flush=True)
    else:
        time.sleep(60)
"""


@pytest.fixture
def trainer(slow_source: Path, options: Callable[..., PretokenizeOptions]) -> Callable[..., Any]:
    def start(how: str, seconds: float = 0.1, **environment: str) -> Any:
        made = options(seconds)
        names = ("inputs", "output", "tokenizer", "source", "row_group_tokens", "file_tokens", "batch_bytes")
        values = json.dumps({name: getattr(made, name) for name in names})
        return subprocesses.start(TRAINER, slow_source, how, values, environment=environment)

    return start


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_writer_does_not_outlive_a_trainer_that_is_killed(
    trainer: Callable[..., Any],
    options: Callable[..., PretokenizeOptions],
    tmp_path: Path,
    quiet: dict[str, bytes],
    how: str,
) -> None:
    with trainer(how, 0.5) as process:  # so slowly that no file comes of the old one any more
        pid = int(process.stdout.readline().split()[1])
        children = [int(each) for each in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert lives(pid)
        process.kill()
        with background(options(0.001)) as writer:  # by a job that is restarted at once: the old one is still there
            assert writer.started
            assert not lives(pid)
            assert writer.wait(SECONDS)
        for child in set(children) - {pid}:
            os.kill(child, signal.SIGKILL)
    assert "the process that started this one has ended" in (tmp_path / "out.log").read_text()
    assert contents(tmp_path / "out") == quiet


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is full")
def test_nor_does_one_whose_log_cannot_be_written(trainer: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "out.log").symlink_to("/dev/full")
    with trainer("alone", 0.5) as process:
        pid = int(process.stdout.readline().split()[1])
        process.kill()
    soon(lambda: not lives(pid))
    assert marker(tmp_path / "out").reason == "ended by SIGTERM; rerun the same command to resume"


def test_a_log_that_cannot_be_made_is_an_error(options: Callable[..., PretokenizeOptions], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write .*file/log: "):
        background(options(), log=tmp_path / "file" / "log")


def test_a_writer_has_its_own_signals_and_environment(trainer: Callable[..., Any], tmp_path: Path) -> None:
    out = subprocesses.finish(trainer("deaf", RANK="1", WORLD_SIZE="2", TOKENIZERS_PARALLELISM="false"))
    assert out.startswith("True ")
    assert "default_int_handler" in out
    # It was not deaf, so nobody had to kill it.
    assert marker(tmp_path / "out").reason == "ended by SIGTERM; rerun the same command to resume"


# --- several callers


def test_a_second_caller_finds_the_writer_running(
    trainer: Callable[..., Any], options: Callable[..., PretokenizeOptions], tmp_path: Path, quiet: dict[str, bytes]
) -> None:
    with background(options(0.05)) as writer, trainer("watch") as other:
        started, pid, _ = other.stdout.readline().split(maxsplit=2)
        assert (started, int(pid)) == ("False", marker(tmp_path / "out").writer.pid)
        assert writer.wait(SECONDS)
        assert subprocesses.finish(other).split() == ["True", "False"]
    assert contents(tmp_path / "out") == quiet


def test_a_watcher_learns_of_the_failure_too(options: Callable[..., PretokenizeOptions]) -> None:
    with background(options(0.05, fails_at=700)) as writer, background(options(0.05, fails_at=700)) as watcher:
        assert (writer.started, watcher.started) == (True, False)
        with pytest.raises(
            WriterFailedError, match=r"failed: ValueError: the crawl is broken\. Start it again to resume\.$"
        ):
            watcher.wait(SECONDS)


def test_a_process_that_may_not_start_a_writer_waits_for_one(
    options: Callable[..., PretokenizeOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parquet_loader.pretokenize.process._BEGIN_SECONDS", 0.2)
    monkeypatch.setattr("parquet_loader.pretokenize.process._PATIENCE_SECONDS", 0.1)
    with pytest.raises(WriterFailedError, match=r"nothing was heard of the writer of .*out for .* s: .* does not say"):
        background(options(), starts=False)


# --- what is refused


def test_a_complete_set_of_other_options_is_refused(options: Callable[..., PretokenizeOptions]) -> None:
    pretokenize(options(0))
    assert background(options(0)).done  # however it was published
    with pytest.raises(ConfigError, match=r"or options \(append_eos: was False, is True\).*overwrite=True"):
        background(options(0, append_eos=True))


@pytest.fixture
def text_options(tmp_path: Path) -> Callable[..., PretokenizeOptions]:
    def make(*inputs: str, **changes: Any) -> PretokenizeOptions:
        values = {"output": str(tmp_path / "texts"), "tokenizer": "bytes", "row_group_tokens": 1000}
        return PretokenizeOptions(**{**values, "inputs": tuple(str(tmp_path / each) for each in inputs), **changes})

    for name in ("in1.txt", "in2.txt", "more/in3.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"words of {name}\n" * 50)
    (tmp_path / "empty").mkdir()
    return make


@pytest.mark.parametrize(
    ("inputs", "difference"),
    [
        (["in2.txt"], r"the set has .*in1\.txt', which is not among .*in2\.txt'"),
        (["in1.txt"], r"the set has .*more/in3\.txt', which is not among .*in1\.txt'"),
        (["in1.txt", "more", "in2.txt"], r"the set has nothing of .*in2\.txt'"),
        (["in1.txt", "more", "gone.txt"], r"the set has nothing of .*gone\.txt'"),
        (["more", "in1.txt"], r"the set has them in another order, first .*in1\.txt'"),
    ],
)
def test_a_complete_set_of_other_inputs_is_refused(
    inputs: list[str], difference: str, text_options: Callable[..., PretokenizeOptions]
) -> None:
    pretokenize(text_options("in1.txt", "more"))
    with pytest.raises(ConfigError, match=rf"\(inputs: {difference}\).*overwrite=True"):
        background(text_options(*inputs))


def test_a_complete_set_of_the_same_files_read_as_another_kind_is_refused(
    text_options: Callable[..., PretokenizeOptions],
) -> None:
    pretokenize(text_options("in1.txt"))
    assert background(text_options("in1.txt", source="text")).done
    with pytest.raises(ConfigError, match=r"source\.kinds\[0\]: was 'text', is 'json'"):
        background(text_options("in1.txt", source="jsonl"))


def test_a_complete_set_is_known_by_the_names_of_inputs_that_are_gone(
    text_options: Callable[..., PretokenizeOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretokenize(text_options("in1.txt", "more"))
    (tmp_path / "in1.txt").unlink()
    (tmp_path / "more/in3.txt").unlink()
    monkeypatch.chdir(tmp_path)
    for inputs in (("in1.txt", "more", "empty"), ("in?.txt", "**/in3.txt"), (f"file://{tmp_path}",)):
        given = text_options(inputs=inputs)
        assert not background(given).started


def test_a_complete_set_of_other_inputs_is_replaced_once_if_it_may_be(
    text_options: Callable[..., PretokenizeOptions], tmp_path: Path
) -> None:
    pretokenize(text_options("in1.txt"))
    new = text_options("in2.txt", append_eos=True, overwrite=True)
    with background(new) as writer:
        assert writer.started
        assert writer.wait(SECONDS)
    made = contents(tmp_path / "texts")
    with background(new) as again:
        assert (again.started, again.done) == (False, True)
    pretokenize(text_options("in2.txt", append_eos=True, output=str(tmp_path / "alone"), publish="as-finished"))
    assert made == contents(tmp_path / "texts") == contents(tmp_path / "alone")


@pytest.fixture
def counted(slow_source: Path, options: Callable[..., PretokenizeOptions]) -> Callable[..., PretokenizeOptions]:
    """Options of a source of as many records as a file says, which are what its fingerprint tells."""
    (slow_source / "counted.py").write_text("""
from pathlib import Path
from slow import Slow
from parquet_loader.pretokenize import Record

class Counted(Slow):
    def __init__(self, options):
        self.count = int(Path(options.inputs[0]).read_text())

    def records(self, cursor=None):
        for n in range(cursor[0] if cursor else 0, self.count):
            yield Record(text=str(n), origin=str(n), cursor=(n + 1,))

    def fingerprint(self):
        return {"count": self.count}
""")
    for count in (30, 100):
        (slow_source / str(count)).write_text(str(count))

    def make(count: int, **changes: Any) -> PretokenizeOptions:
        return options(source="counted:Counted", inputs=(str(slow_source / str(count)),), **changes)

    return make


def test_a_complete_set_of_another_source_of_ones_own_is_replaced_once_if_it_may_be(
    counted: Callable[..., PretokenizeOptions], text_options: Callable[..., PretokenizeOptions], tmp_path: Path
) -> None:
    pretokenize(counted(100))
    with pytest.raises(ConfigError, match=r"or options \(source\.count: was 100, is 30\).*overwrite=True"):
        background(counted(30))
    with background(counted(30, overwrite=True)) as writer:
        assert writer.wait(SECONDS)
    assert json.loads((tmp_path / "out/_manifest.json").read_text())["documents"] == 30
    assert not background(counted(30, overwrite=True)).started
    pretokenize(text_options("in1.txt", output=str(tmp_path / "of-files")))
    with pytest.raises(ConfigError, match=r"source\.kinds: was \['text'\], is None"):
        background(counted(30, output=str(tmp_path / "of-files")))


@pytest.mark.parametrize("name", ["nowhere:Counted", "counted:Nothing"])
def test_a_complete_set_is_not_taken_for_that_of_a_source_that_is_not_there(
    counted: Callable[..., PretokenizeOptions], name: str
) -> None:
    pretokenize(counted(30))
    with pytest.raises(ConfigError, match=f"the source '{name}' cannot be imported"):
        background(replace(counted(30), source=name))


def test_a_complete_set_is_taken_as_it_is_where_a_source_of_ones_own_has_lost_its_input_and_that_is_said(
    counted: Callable[..., PretokenizeOptions], slow_source: Path
) -> None:
    pretokenize(counted(30))
    (slow_source / "30").unlink()
    with pytest.warns(PretokenizeWarning, match=r"taken as it is: .* cannot look at them: .*No such file") as caught:
        assert not background(counted(30, overwrite=True)).started
    assert caught[0].filename == __file__


def test_a_source_that_only_the_trainer_knows_is_refused(options: Callable[..., PretokenizeOptions]) -> None:
    class Mine(Source):
        pass

    register_source("mine-alone", Mine)
    with pytest.raises(ConfigError, match=r"'mine-alone' is registered in this process alone.*package\.module:factory"):
        background(replace(options(0), source="mine-alone"))
    with pytest.raises(ConfigError, match=r"there is no source 'jsnol'\. There are files, "):
        background(replace(options(0), source="jsnol"))


def test_one_rank_writes(options: Callable[..., PretokenizeOptions]) -> None:
    with pytest.raises(ConfigError, match="is for one rank alone"):
        background(options(world_size=2))
