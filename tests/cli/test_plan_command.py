"""``parquet-loader plan``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unique_sets import unique_groups, write_set

from parquet_loader import CheckpointMismatchError, ParquetLoader, merge_checkpoints
from parquet_loader.cli.main import main
from parquet_loader.cli.plan import words_of
from parquet_loader.insight.mixing import Cuts, ShufflePlan
from parquet_loader.insight.plan import Moment, Plan, SourcePlan, StagePlan
from parquet_loader.insight.ranks import WorldSizePlan
from parquet_loader.insight.reads import RankReads


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", unique_groups([[[30, 40, 7] * 5] * 6] * 2))


@pytest.fixture
def checkpoint(folder: Path, tmp_path: Path) -> Path:
    with ParquetLoader(folder, seq_len=8, lanes=4, window=3) as loader:
        for _ in zip(range(9), loader, strict=False):
            pass
        (tmp_path / "checkpoint").write_bytes(merge_checkpoints([loader.checkpoint()]))
    return tmp_path / "checkpoint"


def plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = main(["plan", *map(str, arguments)])
    return status, capsys.readouterr().out


def test_a_plan_is_shown_as_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = plan(capsys, folder, "--seq-len", 8, "--lanes", 4, "--tokens", "2e3")
    assert status == 0
    assert out.startswith("one set: seq_len 8, lanes 4, seed 0\n")
    assert "\nstep 0 up to 63, token 0 up to 2,016: 63 steps of 32 tokens\n" in out
    assert "world sizes that divide 4 lanes: 1, 2, 4" in out
    assert (
        "ranks  rows  memory MB  budget MB  read MB  requests  times  by a rank MB  at first MB  its tokens  runs"
        in out
    )


def test_a_plan_is_json_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = plan(capsys, folder, "--seq-len", 8, "--lanes", 4, "--steps", 50, "--world-sizes", "1,2", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["resume"] is None
    assert found["plan"]["steps"] == 50
    assert [each["world_size"] for each in found["plan"]["world_sizes"]] == [1, 2]


def test_a_mixture_is_planned_from_a_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(
        'seq_len = 8\nlanes = 4\nweights = {a = 3, b = 1}\n[source]\na = "set"\nb = {source = "set", max_epochs = 1}\n'
    )
    status, out = plan(capsys, "--run", tmp_path / "run.toml", "--tokens", "1e6")
    assert status == 0
    assert "it goes no further: 'b' would be repeated more than max_epochs allows" in out
    assert "a 75.00% (75.00%), b 25.00% (25.00%)" in out


def test_a_world_size_that_was_asked_for_and_is_refused_is_something_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = plan(capsys, folder, "--seq-len", 8, "--lanes", 4, "--world-sizes", "2,3")
    assert status == 1
    assert "3 ranks are refused: world_size 3 does not divide lanes 4" in out


def test_a_run_that_goes_on_says_where(folder: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = plan(capsys, folder, "--checkpoint", checkpoint, "--seq-len", 16, "--world-sizes", 2)
    assert status == 0
    assert out.startswith("goes on at step 9, token 288: 0 tokens repeated, 0 skipped\n  rows have 16 tokens and had 8")
    assert "step 9 up to " in out


def test_what_the_checkpoint_tells_need_not_be_given(
    folder: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = plan(capsys, folder, "--checkpoint", checkpoint, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["resume"] == {
        "refused": None,
        "begin": {"step": 9, "token": 288},
        "repeated": 0,
        "skipped": 0,
        "changes": [],
        "not_kept": {"overlap": 0, "epochs": None},
    }
    assert (found["plan"]["lanes"], found["plan"]["sources"][0]["shuffle"]["window"]) == (4, 3)


def test_a_refused_resume_is_something_wrong(
    folder: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = plan(capsys, folder, "--checkpoint", checkpoint, "--lanes", 8)
    assert status == 1
    assert out.startswith(
        "refused: the checkpoint is of another run: lanes is 4 in the checkpoint and 8 in this loader"
    )
    status, out = plan(capsys, folder, "--checkpoint", checkpoint, "--lanes", 8, "--json")
    assert status == 1
    assert json.loads(out)["plan"] is None


def test_a_part_of_one_rank_is_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ParquetLoader(folder, seq_len=8, lanes=4, rank=1, world_size=2) as loader:
        (tmp_path / "part").write_bytes(loader.checkpoint())
    status, out = plan(capsys, folder, "--checkpoint", tmp_path / "part", "--world-sizes", 2)
    assert status == 0
    assert "this is the part of rank 1 of 2: only that rank of as many takes it" in out
    status, out = plan(capsys, folder, "--checkpoint", tmp_path / "part", "--json")
    assert status == 0
    assert [each["world_size"] for each in json.loads(out)["plan"]["world_sizes"]] == [2]


def test_a_part_of_one_rank_is_refused_for_other_ranks_in_the_words_of_the_loader(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ParquetLoader(folder, seq_len=8, lanes=4, rank=0, world_size=2) as loader:
        (tmp_path / "part").write_bytes(loader.checkpoint())
    other = ParquetLoader(folder, seq_len=8, lanes=4, rank=0, world_size=4)
    with other as loader, pytest.raises(CheckpointMismatchError) as caught:
        loader.resume((tmp_path / "part").read_bytes())
    status, out = plan(capsys, folder, "--checkpoint", tmp_path / "part", "--world-sizes", 4, "--json")
    assert (status, json.loads(out)["resume"]["refused"]) == (1, str(caught.value))
    status, out = plan(capsys, folder, "--checkpoint", tmp_path / "part", "--world-sizes", "2,4", "--json")
    found = json.loads(out)
    assert (status, found["resume"]["refused"]) == (1, None)
    assert [each["refused"] for each in found["plan"]["world_sizes"]] == [None, str(caught.value)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--epochs", 3), "overlap 0, epochs 3, tail pad"),
        (("--epochs", 3, "--tail", "drop"), "overlap 0, epochs 3, tail drop"),
        (("--overlap", 1), "overlap 1, epochs without end"),
    ],
)
def test_what_a_checkpoint_does_not_keep_is_told(
    folder: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], says: str
) -> None:
    _, out = plan(capsys, folder, "--checkpoint", checkpoint, *arguments)
    assert "nothing that a checkpoint keeps is otherwise from there on" in out
    assert f"does not keep these, which hold as they are given now, whatever they were: {says}\n" in out


def rows_of(out: str, header: str) -> list[list[str]]:
    """The cells of the lines below a table's header."""
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if header in line and "─" in lines[number + 1])
    below = lines[first + 2 :]
    return [line.split() for line in below[: below.index("")]]


def test_a_plan_begins_with_what_the_run_is(folder: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = (folder, "--seq-len", 8, "--lanes", 4, "--seed", 5, "--window", 30)
    _, out = plan(capsys, *run)
    assert out.startswith("one set: seq_len 8, lanes 4, seed 5\n")
    ((groups, window, path),) = rows_of(out, "row groups  window  path")
    assert (groups, window) == ("12", "30")
    assert str(folder).endswith(path.removeprefix("…"))
    _, out = plan(capsys, "--checkpoint", checkpoint, folder)
    assert rows_of(out, "row groups  window  path")[0][:2] == ["12", "3"]
    _, out = plan(capsys, f"a={folder}", f"b={folder}", *run[1:], "--weights", "tokens", "--no-shuffle")
    assert out.startswith("a mixture of 2 sources: seq_len 8, lanes 4, seed 5, not shuffled\n")
    assert [row[:3] for row in rows_of(out, "row groups  window  path")] == [[name, "12", "30"] for name in "ab"]
    files = sorted(folder.glob("*.parquet"))
    _, out = plan(capsys, *files, *run[1:])
    assert out.startswith("one set of several paths: seq_len 8")


def test_tables_fit_a_terminal(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"source_{number}" for number in range(6)]
    deep = tmp_path / ("a" * 60) / ("b" * 60)
    deep.parent.mkdir()
    folder.rename(deep)
    sources = [f"{name}={deep}" for name in names]
    shares = json.dumps(dict.fromkeys(names, 1))
    _, out = plan(capsys, *sources, "--seq-len", 8, "--lanes", 4, "--weights", shares, "--steps", 200)
    lines = out.split("memory ")[0].splitlines()
    assert max(map(len, lines)) <= 120
    assert [row[-3:-1] for row in rows_of(out, "from step")] == [[name, "16.67%"] for name in names]


def test_tables_of_a_large_run_fit_a_terminal_too() -> None:
    def source(name: str) -> SourcePlan:
        cuts = Cuts(
            documents=2_000_000_000,
            mean_tokens=1500.0,
            lane_borders=10**6,
            cut_by_lanes=1e6,
            rows=1e9,
            in_several_rows=1.0,
            documents_in_a_row=1.5,
        )
        shuffle = ShufflePlan(
            window=10_000,
            row_groups=3_000_000,
            window_tokens=64_000_000,
            share=0.001,
            rows_of_window=1000.0,
            draws=4096,
            shown_before=0.001,
        )
        at = Moment(step=1_234_567, token=999_999_999_999)
        return SourcePlan(
            name=name,
            paths=("s3://bucket/" + "deep/" * 40,),
            tokens=300_000_000_000,
            drawn=900_000_000_000,
            epochs=3.97,
            target=1 / 3,
            achieved=1 / 3,
            repeats=at,
            max_epochs=4,
            exhausted=at,
            then="redistribute",
            cuts=cuts,
            shuffle=shuffle,
        )

    names = ["fineweb_edu_hq", "the_stack_v3", "arxiv"]
    shares = dict.fromkeys(names, 1 / 3)
    begin, end = Moment(step=0, token=0), Moment(step=1_234_567, token=2_700_000_000_000)
    stage = StagePlan(begin=begin, end=end, by="schedule", scheduled=0, target=shares, achieved=shares)
    ranks = WorldSizePlan(
        world_size=2048,
        divides=True,
        rows_least=4,
        rows_most=4,
        refused=None,
        least_bytes=10**9,
        peak_bytes=2 * 10**9,
        bytes_read=9 * 10**12,
        reads=123_456_789,
        rank_bytes=10**10,
        rank_reads=10**5,
        amplification=12.5,
        exact=False,
        first_batch=RankReads(bytes=10**9, reads=10, row_groups=10, tokens=64_000_000),
    )
    found = Plan(
        seq_len=4096,
        lanes=8192,
        seed=0,
        shuffle=True,
        step_tokens=2**25,
        begin=begin,
        end=end,
        steps=end.step,
        tokens=end.token,
        over=None,
        sources=tuple(map(source, names)),
        stages=(stage, stage),
        world_sizes=(ranks,),
        dividing=(1, 2),
        notes=(),
    )
    lines = list(words_of(found))
    assert any("fineweb_edu_hq" in line for line in lines)
    assert max(len(line) for each in lines for line in each.splitlines()) <= 120


def test_stages_are_said_to_begin_with_blocks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = (f"a={folder}", f"b={folder}", "--seq-len", 8, "--lanes", 4, "--steps", 200)
    says = "a stage begins with the next block of 64 steps"
    _, out = plan(capsys, *run, "--weights", '[[0, {"a": 1}], [1000, {"b": 1}]]')
    assert out.count(says) == 1
    _, out = plan(capsys, *run, "--weights", '{"a": 1, "b": 1}')
    assert says not in out


def test_a_source_that_is_used_up_before_its_epochs_are_says_why(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = (f"a={folder}", f"b={folder}", "--seq-len", 8, "--lanes", 4, "--weights", '{"a": 3, "b": 1}')
    (folder.parent / "run.toml").write_text(
        'seq_len = 8\nlanes = 4\nweights = {a = 3, b = 1}\nexhausted = "redistribute"\n[source]\na = "set"\n'
        'b = {source = "set", max_epochs = 1}\n'
    )
    _, out = plan(capsys, "--run", folder.parent / "run.toml", "--tokens", "2e4", "--json")
    b = json.loads(out)["plan"]["sources"][1]
    left = b["tokens"] - b["drawn"]
    assert 0 < left < 64 * 8 * 4 / 4
    _, out = plan(capsys, "--run", folder.parent / "run.toml", "--tokens", "2e4")
    assert (
        f"source 'b' counts as used up at step {b['exhausted']['step']:,}, after {b['epochs']:.2f} of 1 epochs: the "
        f"{left:,} tokens that are left are fewer than the next block of 64 steps needs"
    ) in out
    _, out = plan(capsys, *run, "--tokens", "2e4")
    assert "counts as used up" not in out


def test_the_schedule_of_a_refusal_can_be_pasted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = (f"a={folder}", f"b={folder}", "--seq-len", 8, "--lanes", 4)
    sources = {"a": folder, "b": folder}
    with ParquetLoader(sources, seq_len=8, lanes=4, weights={"a": 3, "b": 1}) as loader:
        for _ in zip(range(70), loader, strict=False):
            pass
        (tmp_path / "state").write_bytes(merge_checkpoints([loader.checkpoint()]))
    at = ("--checkpoint", tmp_path / "state")
    status, out = plan(capsys, *run, *at, "--weights", '{"a": 1, "b": 1}')
    assert status == 1
    in_toml, _, line = out.strip().partition("in TOML ")[2].partition(", else weights=")
    assert plan(capsys, *run, *at, "--weights", line)[0] == 0
    (tmp_path / "run.toml").write_text(f"seq_len = 8\nlanes = 4\n{in_toml}\n[source]\na = 'set'\nb = 'set'\n")
    assert plan(capsys, "--run", tmp_path / "run.toml", *at)[0] == 0


def test_ranks_that_do_not_divide_the_lanes_may_be_allowed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = (folder, "--seq-len", 8, "--lanes", 4, "--world-sizes", 3)
    status, out = plan(capsys, *run)
    assert status == 1
    assert "allow it with uneven=True (--uneven on the command line)" in out
    assert plan(capsys, *run, "--uneven")[0] == 0


def test_the_help_of_a_run_tells_what_is_done_where_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for each in ("of the shuffle (0)", "pad or drop (pad)", "redistribute (raise)", "64 million tokens"):
        assert each in said
    assert "several are one set together" in said


def test_memory_is_not_said_to_be_a_bound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = plan(capsys, folder, "--seq-len", 8, "--lanes", 4)
    assert "memory     about the most" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("{folder}", "--seq-len", 8, "--lanes", 4, "--weights", '{"a": 1}'), "NAME=PATH"),
        (("nothing", "--seq-len", 8, "--lanes", 4), "there is no"),
        (("{folder}", "--seq-len", 8, "--lanes", 4, "--tokens", 5, "--steps", 5), "tokens=5 or steps=5, not both"),
        (("{folder}", "--checkpoint", "nothing"), "cannot read nothing"),
    ],
)
def test_what_cannot_be_done_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], says: str
) -> None:
    assert main(["plan", *(str(folder) if each == "{folder}" else str(each) for each in arguments)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("option", [{"seed": 7}, {"eos_id": 0}, {"shuffle": False}])
def test_what_is_not_said_is_what_a_loader_would_have_and_not_what_the_checkpoint_has(
    folder: Path, tmp_path: Path, option: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    with ParquetLoader(folder, seq_len=8, lanes=4, **option) as loader:  # type: ignore[arg-type]
        next(iter(loader))
        (tmp_path / "other").write_bytes(merge_checkpoints([loader.checkpoint()]))
    status, out = plan(capsys, folder, "--seq-len", 8, "--lanes", 4, "--checkpoint", tmp_path / "other")
    assert status == 1
    (name,) = option
    assert out.startswith("refused: the checkpoint is of another run: ")
    assert f"{name} is " in out


def test_a_budget_that_is_too_small_on_any_ranks_is_something_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("--seq-len", 8, "--lanes", 4)
    assert plan(capsys, folder, *run)[0] == 0
    status, out = plan(capsys, folder, *run, "--budget-bytes", 1000)
    assert status == 1
    assert "budget_bytes 1,000 is too small" in out
