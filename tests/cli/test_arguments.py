"""The arguments that commands share."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import CheckpointDamagedError, Component, ConfigError, GrowthTimeoutError, ParquetLoader
from parquet_loader.cli.arguments import add_run, count, run_of, state_of
from parquet_loader.cli.main import main
from parquet_loader.container import seal_container
from parquet_loader.insight import open_run


def given(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_run(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[30, 40], [50]], [[60] * 20]]))


@pytest.mark.parametrize(("text", "value"), [("12", 12), ("300e9", 300_000_000_000), ("1_000", 1000), ("1.5e3", 1500)])
def test_counts_may_be_written_as_people_do(text: str, value: int) -> None:
    assert count(text) == value


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "inf", "nan", ""])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be 0 or more"):
        count(text)


def test_options_count_more_than_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('source = "web"\nseq_len = 8\nlanes = 2\n')
    source, options = run_of(given("--run", str(tmp_path / "run.toml"), "--seq-len", "16", "--no-shuffle"))
    assert source == str(tmp_path / "web")
    assert (options.seq_len, options.lanes, options.shuffle) == (16, 2, False)


def test_several_sources_are_one_set_and_named_ones_a_mixture() -> None:
    run = ("--seq-len", "8", "--lanes", "2")
    assert run_of(given("a", "b", *run))[0] == ["a", "b"]
    assert run_of(given("web=a", "code=b", *run, "--weights", "tokens"))[0] == {"web": "a", "code": "b"}


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lang=en").mkdir()
    assert run_of(given("lang=en", "--seq-len", "8", "--lanes", "2"))[0] == "lang=en"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no run is given: name a SOURCE, or a TOML file with --run"),
        (["a"], "seq_len is missing: give --seq-len"),
        (["a", "--seq-len", "8"], "lanes is missing: give --lanes"),
        (["a", "--seq-len", "8", "--lanes", "2", "--tail", "x"], "tail must be 'pad' or 'drop'"),
    ],
)
def test_what_is_missing_is_named(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run_of(given(*arguments))


def test_a_state_gives_what_is_not_said(folder: Path, tmp_path: Path) -> None:
    with ParquetLoader(folder, seq_len=8, lanes=2, seed=5, eos_id=3, window=2) as loader:
        next(iter(loader))
        (tmp_path / "checkpoint").write_bytes(loader.checkpoint())
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    for name in ("checkpoint", "state.json"):
        state = state_of(str(tmp_path / name))
        source, options = run_of(given(str(folder)), state)
        run = open_run(source, options, state)
        assert (options.seed, options.eos_id, options.window) == (5, 3, 2)
        assert run.progress.position == 8


@pytest.mark.parametrize("data", [b"", b'{"a": 1}', b"\x95abc", bytes(9)])
def test_a_file_that_holds_no_state_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CheckpointDamagedError, match=r"x: (this is no whole checkpoint|holds no loader state)"):
        state_of(str(tmp_path / "x"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"PAR1....", "is a Parquet file"),
        (b"{", "is JSON that is cut off or not valid"),
        (b"[1]", "is a list, and no dict"),
        (b'[source]\nweb = "web"\n', "looks like TOML (a run's file is given with --run)"),
        (b"Some words\n", "is text"),
        (seal_container("check", 1, {}), "is a file of this library, of kind 'check'"),
    ],
)
def test_what_never_was_a_checkpoint_is_said_to_be_what_it_is(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CheckpointDamagedError, match=re.escape(f"x: is no checkpoint: it {says}; give what ")):
        state_of(str(tmp_path / "x"))


def test_no_more_is_read_than_a_checkpoint_may_have(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 40)  # of zeros, none of which is stored
    with pytest.raises(CheckpointDamagedError, match="has 1,099,511,627,776 bytes, and a checkpoint no more than"):
        state_of(str(tmp_path / "x"))


def test_a_run_is_opened_whole_whatever_rank_and_budget(folder: Path) -> None:
    _, options = run_of(given(str(folder), "--seq-len", "8", "--lanes", "2", "--budget-bytes", "1"))
    with pytest.raises(ConfigError, match="budget_bytes 1 is too small"):
        ParquetLoader(folder, **options.keywords())
    run = open_run({"web": Component(folder)}, options.__class__(**options.keywords(weights="tokens", skip_batches=3)))
    assert run.progress.position == 24


def test_a_set_without_a_manifest_is_said_to_be_complete_by_its_age(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    run = [str(folder), "--follow", "--seq-len", "8", "--lanes", "2", "--window", "2"]
    (tmp_path / "run.toml").write_text(
        f'source = "{folder}"\nseq_len = 8\nlanes = 2\nwindow = 2\nfollow = true\ncomplete_after = "6h"\n'
        "wait_seconds = 3600\n"
    )
    report = ["report", "--output", str(tmp_path / "report.html")]
    for command in (["plan"], ["which", "--step", "60"], ["show", "--step", "60"], ["check", "--order"], report):
        for given_as in ([*run, "--complete-after", "6h"], ["--run", str(tmp_path / "run.toml")]):
            assert main([*command, *given_as]) == 0
            assert "still grows" not in capsys.readouterr().out
    assert main(["which", "--step", "60", *run]) == 2
    assert "step 60 is not known yet" in capsys.readouterr().err


def test_a_command_waits_for_a_set_only_as_long_as_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'source = "nothing"\nseq_len = 8\nlanes = 2\nfollow = true\nwait_seconds = "1h"\n'
    )
    assert run_of(given("--run", str(tmp_path / "run.toml")))[1].wait_seconds == 0
    assert run_of(given("--run", str(tmp_path / "run.toml"), "--wait-seconds", "2m"))[1].wait_seconds == "2m"
    with pytest.raises(GrowthTimeoutError, match=r"no file of .*nothing has come so far .*there is no"):
        open_run(*run_of(given("--run", str(tmp_path / "run.toml"))))
    for flag in ("--wait-seconds", "--complete-after"):
        with pytest.raises(ConfigError, match=rf"{flag[2:].replace('-', '_')} must be .* not 'soon'"):
            run_of(given("--run", str(tmp_path / "run.toml"), flag, "soon"))
