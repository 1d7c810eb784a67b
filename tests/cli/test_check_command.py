"""``parquet-loader check``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import ParquetLoader, build_index
from parquet_loader.cli import main
from parquet_loader.storage.growing import Growing, Writer
from parquet_loader.testing import FaultyFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[30] * 5, [20] * 9], [[8] * 7]]), write_page_checksum=True)


def test_a_set_in_order_is_said_to_be(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["check", str(folder), "--eos-id", "900", "--vocab-size", "900"]) == 2  # no such id
    assert main(["check", str(folder), "--eos-id", "899", "--vocab-size", "900"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{folder}: nothing is wrong")
    assert "none ends with it: give the loader eos_id=899" in shown


def test_faults_are_listed_and_are_status_one(folder: Path, capsys: pytest.CaptureFixture) -> None:
    index = build_index(folder)
    FaultyFiles(folder).flip("part-000.parquet", int(index.start[1] + 40))
    assert main(["check", str(folder)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("damaged")]
    assert line.split()[1:3] == ["part-000.parquet", "1"]
    assert main(["check", "--json", str(folder)]) == 1
    (only,) = json.loads(capsys.readouterr().out)["sets"]
    assert not only["ok"]
    assert only["report"]["faults"][0]["row_group"] == 1


def test_one_set_that_cannot_be_read_does_not_hide_the_others(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["check", str(folder), str(folder / "absent")]) == 2
    shown = capsys.readouterr()
    assert "nothing is wrong" in shown.out
    assert "there is no" in shown.err


def test_ctrl_c_leaves_what_is_done_for_the_same_command_to_go_on_with(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[50] * 200] * 2] * 40))
    # Sends itself the signal once a part is done, as a terminal would.
    program = (
        "import os, signal, sys\n"
        "from parquet_loader.cli import check, main, output\n"
        "def show(self, done, total):\n"
        "    if done > total // 2: os.kill(os.getpid(), signal.SIGINT)\n"
        "if sys.argv[1] == 'stop': output.Progress.show = show\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    command = ["check", "--json", str(folder), "--state", str(tmp_path / "state"), "--threads", "1"]

    def run(how: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, how, *command], capture_output=True, text=True, check=False, timeout=120
        )

    stopped = run("stop")
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert "the same command goes on where it was" in stopped.stderr
    done = run("go on")
    report = json.loads(done.stdout)["sets"][0]["report"]
    assert 0 < report["continued"] < 80
    assert report["documents"] == 16_000


def test_the_order_is_proved_without_data(folder: Path, capsys: pytest.CaptureFixture) -> None:
    run = [str(folder), "--seq-len", "8", "--lanes", "4"]
    index = folder.parent / "index"
    build_index(folder).save(index)
    for path in folder.iterdir():
        path.write_bytes(b"x")
    assert main(["check", "--order", *run, "--index", str(index), "--world-sizes", "1,2,4", "--tokens", "2e3"]) == 0
    shown = capsys.readouterr().out
    assert "proved: ranks: on 1, 2, 4 ranks" in shown
    assert "proved: 6 of 6 epochs were looked at" in shown
    assert main(["check", "--order", *run, "--index", str(index), "--world-sizes", "5"]) == 1
    assert "wrong: world_size 5 is more than lanes 4" in capsys.readouterr().out


def test_the_run_of_an_order_may_come_from_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(f'source = "{folder}"\nseq_len = 8\nlanes = 4\n')
    assert main(["check", "--order", "--run", str(tmp_path / "run.toml")]) == 0
    assert main(["check", "--run", str(tmp_path / "run.toml")]) == 0


def test_checkpoints_are_a_chain_or_not(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    paths = []
    with ParquetLoader(folder, seq_len=8, lanes=4) as loader:
        for number in range(2):
            next(iter(loader))
            loader.skip(number)
            paths.append(tmp_path / f"{number}.bin")
            paths[-1].write_bytes(loader.checkpoint())
    assert main(["check", "--run", *map(str, paths)]) == 0
    shown = capsys.readouterr().out
    assert "2 checkpoints of one run" in shown
    assert "1 batches skipped, 32 tokens" in shown
    paths[0].write_bytes(paths[0].read_bytes()[:-1])
    assert main(["check", "--json", "--run", *map(str, paths)]) == 1
    assert f"{paths[0]}: this is no whole checkpoint" in json.loads(capsys.readouterr().out)["problems"][0]


def test_checkpoints_and_a_set_are_not_looked_at_together(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["check", str(folder), "--run", "x.bin"]) == 2
    assert "checkpoints are looked at alone" in capsys.readouterr().err


def test_a_set_after_the_file_of_a_run_is_checked_with_its_options(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run.toml"
    run.write_text('source = "absent"\nseq_len = 8\nlanes = 2\neos_id = 899\n')
    assert main(["check", "--run", str(run), str(folder)]) == 0
    assert "give the loader eos_id=899" in capsys.readouterr().out


def test_a_run_and_checkpoints_together_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run, saved = tmp_path / "run.toml", tmp_path / "a.ckpt"
    run.write_text(f'source = "{folder}"\nseq_len = 8\nlanes = 2\n')
    with ParquetLoader.from_toml(run) as loader:
        saved.write_bytes(loader.checkpoint())
    assert main(["check", "--run", str(run), str(saved)]) == 2
    assert f"--run takes a TOML file, {run}, or checkpoints, and not both" in capsys.readouterr().err


def test_what_was_left_out_is_not_said_to_be_verified(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, says in ((), "of others the page checksums"), (("--column-only",), "others were not read"):
        assert main(["check", str(folder), "--cache-dir", str(tmp_path / "cache"), *arguments]) == 0
        assert says in capsys.readouterr().out


def test_checking_a_set_that_grows_takes_what_is_there_and_says_so(folder: Path, capsys: pytest.CaptureFixture) -> None:
    (folder / "_growing.json").write_text("{}")
    assert main(["check", str(folder)]) == 0
    assert f"{folder} is still being written: this is of the files that are there" in capsys.readouterr().out


def test_checking_says_of_a_set_whose_writer_has_failed_that_it_has_and_why(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    writer = Writer(program="p", host="h", pid=1)
    failed = Growing(state="failed", writer=writer, since="a", updated="b", reason="the disk is full")
    (folder / "_growing.json").write_text(failed.to_json())
    assert main(["check", str(folder)]) == 0
    assert f"{folder} is not complete, as its writer has failed: the disk is full; " in capsys.readouterr().out
