"""One set by several ranks: all documents, none twice, in the order of the input."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from parquet_loader.errors import ConfigError, DataError
from parquet_loader.pretokenize import (
    PretokenizeOptions,
    Progress,
    Source,
    StepDone,
    Summary,
    pretokenize,
    pretokenize_rank,
    register_source,
)
from parquet_loader.pretokenize.cli import main
from parquet_loader.pretokenize.run.ranks import Place, place_from_environment
from parquet_loader.pretokenize.sources.files import FileSource
from parquet_loader.pretokenize.sources.find import InputFile
from parquet_loader.pretokenize.write.folder import OutputFolder
from parquet_loader.pretokenize.write.manifest import Skipped

SMALL: dict[str, Any] = {"row_group_tokens": 2000, "file_tokens": 5000, "batch_bytes": 1500}


@pytest.fixture
def inputs(tmp_path: Path) -> list[list[str]]:
    """The texts of seven files, a third of them copies, most of them across files."""
    rng = random.Random(0)
    made: list[str] = []
    files: list[list[str]] = []
    (tmp_path / "in").mkdir()
    for at in range(7):
        texts = []
        for _ in range(rng.randrange(20, 120)):
            if made and rng.random() < 1 / 3:
                texts.append("\n" + rng.choice(made))
            else:
                texts.append(" ".join(f"w{rng.randrange(10**6)}" for _ in range(rng.randrange(1, 20))))
            made.append(texts[-1])
        files.append(texts)
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / "in" / f"{at}.jsonl").write_text(lines)
    return files


@pytest.fixture
def options(tmp_path: Path, inputs: list[list[str]]) -> Callable[..., PretokenizeOptions]:
    def make(rank: int = 0, world_size: int = 1, step: Any = "encode", **changes: Any) -> PretokenizeOptions:
        values: dict[str, Any] = {"inputs": (str(tmp_path / "in"),), "output": str(tmp_path / "out")} | SMALL | changes
        return PretokenizeOptions(tokenizer="bytes", rank=rank, world_size=world_size, step=step, **values)

    return make


def texts_in(folder: Path) -> list[str]:
    rows = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path)["tokens"].to_pylist()]
    return [bytes(row).decode() for row in rows]


def first_of_each(texts: list[str]) -> list[str]:
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(" ".join(text.split()), text)
    return list(first.values())


@pytest.mark.parametrize("world_size", [2, 3, 9])
@pytest.mark.parametrize("dedup", [False, True])
def test_all_documents_come_once_and_in_order(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], inputs: list[list[str]], world_size: int, dedup: bool
) -> None:
    ranks = list(range(world_size))[::-1]  # in any order
    if dedup:
        for rank in ranks:
            assert isinstance(pretokenize_rank(options(rank, world_size, "hash", dedup=True)), StepDone)
        pretokenize_rank(options(0, world_size, "drops", dedup=True))
    for rank in ranks:
        done = pretokenize_rank(options(rank, world_size, dedup=dedup))
        assert done.describe().startswith(f"Rank {rank} of {world_size} is complete")
        assert not list((tmp_path / "out").glob("*.parquet"))
    summary = pretokenize_rank(options(0, world_size, "finish", dedup=dedup))
    assert isinstance(summary, Summary)
    texts = [text for file in inputs for text in file]
    expected = first_of_each(texts) if dedup else texts
    assert texts_in(tmp_path / "out") == expected
    assert summary.manifest.documents == len(expected)
    assert summary.manifest.skipped == Skipped(duplicates=len(texts) - len(expected))
    parts = [f"part-{at:05d}.parquet" for at in range(len(summary.manifest.files))]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_manifest.json", *parts]
    # Once more, and nothing is done.
    again = pretokenize_rank(options(0, world_size, "finish", dedup=dedup))
    assert isinstance(again, Summary)
    assert again.manifest == summary.manifest
    assert "already" in pretokenize_rank(options(1, world_size, dedup=dedup)).describe()


def test_seen_hashes_are_dropped_on_every_rank(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], inputs: list[list[str]]
) -> None:
    seen = str(tmp_path / "seen")
    once = {"dedup": True, "seen_hashes": seen}
    pretokenize(options(output=str(tmp_path / "first"), max_docs=90, write_seen_hashes=True, **once))
    for rank in range(2):
        pretokenize_rank(options(rank, 2, "hash", **once))
    pretokenize_rank(options(0, 2, "drops", **once))
    for rank in range(2):
        pretokenize_rank(options(rank, 2, **once))
    pretokenize_rank(options(0, 2, "finish", **once))
    expected = first_of_each([text for file in inputs for text in file])
    assert texts_in(tmp_path / "first") + texts_in(tmp_path / "out") == expected


class Stopped(Exception):
    """Stands for whatever ends a run."""


def test_a_rank_that_was_stopped_goes_on(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], inputs: list[list[str]]
) -> None:
    def stop(done: Progress) -> None:
        if done.documents > 150:
            raise Stopped

    for rank in range(2):
        pretokenize_rank(options(rank, 2, "hash", dedup=True))
    pretokenize_rank(options(0, 2, "drops", dedup=True))
    pretokenize_rank(options(0, 2, dedup=True))
    with pytest.raises(ConfigError, match="rank 1 is not complete, of 2"):
        pretokenize_rank(options(0, 2, "finish", dedup=True))
    with pytest.raises(Stopped):
        pretokenize_rank(options(1, 2, dedup=True), progress=stop)
    with pytest.raises(ConfigError, match="rank 1 is not complete, of 2"):
        pretokenize_rank(options(1, 2, "finish", dedup=True))
    pretokenize_rank(options(1, 2, dedup=True))
    pretokenize_rank(options(1, 2, "finish", dedup=True))
    assert texts_in(tmp_path / "out") == first_of_each([text for file in inputs for text in file])


def test_ranks_of_other_options_or_inputs_do_not_mix(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    pretokenize_rank(options(0, 2))
    pretokenize_rank(options(1, 2, empty="skip"))
    with pytest.raises(ConfigError, match="rank 1 is of other inputs or options: empty: was 'skip', is 'keep'"):
        pretokenize_rank(options(0, 2, "finish"))
    with pytest.raises(ConfigError, match="run step='drops' first"):
        pretokenize_rank(options(1, 2, dedup=True, overwrite=True))


def test_an_old_set_stays_until_the_ranks_are_whole(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], inputs: list[list[str]]
) -> None:
    pretokenize(options(max_docs=5))
    with pytest.raises(ConfigError, match="is not empty"):
        pretokenize_rank(options(0, 2))
    for rank in range(2):
        pretokenize_rank(options(rank, 2, overwrite=True))
        assert len(texts_in(tmp_path / "out")) == 5
    pretokenize_rank(options(0, 2, "finish", overwrite=True))
    assert texts_in(tmp_path / "out") == [text for file in inputs for text in file]


def test_only_files_are_shared_out(tmp_path: Path) -> None:
    class Nothing(Source):
        def records(self, cursor: Any = None) -> Any:
            return iter(())

        def fingerprint(self) -> dict[str, object]:
            return {}

    register_source("nothing", lambda _: Nothing())
    values: dict[str, Any] = {"output": str(tmp_path / "out"), "tokenizer": "bytes", "source": "nothing"}
    with pytest.raises(ConfigError, match="share out files"):
        pretokenize_rank(PretokenizeOptions(world_size=2, **values))
    with pytest.raises(ConfigError, match="use pretokenize_rank"):
        pretokenize(PretokenizeOptions(world_size=2, **values))


@pytest.mark.parametrize("sizes", [[1], [5, 5, 5, 5], [100, 1, 1, 1], [1, 1, 1, 100], [0, 0, 7], [3] * 50])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_every_file_is_of_one_rank_and_in_order(sizes: list[int], world_size: int) -> None:
    files = tuple(
        InputFile(filesystem=None, path=str(at), name=str(at), kind="text", compression="", size_bytes=size)
        for at, size in enumerate(sizes)
    )
    source = FileSource(files=files)
    assert sum((source.shard(rank, world_size).files for rank in range(world_size)), ()) == files


def array_task(task: int, first: int, last: int, step: int, count: int) -> dict[str, str]:
    values = {"ID": task, "MIN": first, "MAX": last, "STEP": step, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def slurm_step(rank: int, tasks: int) -> dict[str, str]:
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(tasks), "SLURM_STEP_NUM_TASKS": str(tasks)}


def torchrun(rank: int, world_size: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size)}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (torchrun(1, 4), (1, 4)),
        ({"RANK": "1"}, None),
        (slurm_step(1, 2), (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script's own, without srun
        (torchrun(5, 8) | slurm_step(1, 2), (5, 8)),  # srun begins torchrun once on each of two nodes
        (torchrun(1, 2) | slurm_step(1, 2), (1, 2)),
        (array_task(3, 0, 4, 1, 5), (3, 5)),
        (array_task(3, 1, 5, 1, 5), (2, 5)),
        (array_task(10, 0, 10, 2, 6), (5, 6)),
        (array_task(7, 3, 7, 4, 2), (1, 2)),
        (array_task(7, 7, 7, 1, 1), None),
        (array_task(3, 1, 5, 1, 5) | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (2, 5)),
        (array_task(3, 1, 5, 1, 5) | slurm_step(0, 1), (2, 5)),
        ({"JOB_COMPLETION_INDEX": "1", "JOB_COMPLETIONS": "3"}, (1, 3)),
    ],
)
def test_ranks_are_told_by_launchers(environment: dict[str, str], expected: tuple[int, int] | None) -> None:
    if expected is None:
        assert place_from_environment(environment) is None
    else:
        assert place_from_environment(environment) == Place(rank=expected[0], world_size=expected[1])


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (torchrun(1, 4) | {"RANK": "one"}, "RANK=one and WORLD_SIZE=4 are no numbers"),
        (torchrun(4, 4), "RANK=4 and WORLD_SIZE=4: a rank must be from 0 to 3"),
        (torchrun(1, 2) | slurm_step(5, 8), "rank 1 of 2, as RANK=1 .* and rank 5 of 8, as SLURM_PROCID=5 "),
        (torchrun(1, 2) | array_task(3, 0, 4, 1, 5), "rank 1 of 2, as RANK=1 .* rank 3 of 5, as SLURM_ARRAY_TASK_ID=3"),
        (slurm_step(1, 2) | array_task(3, 0, 4, 1, 5), "rank 1 of 2, as SLURM_PROCID=1 .* rank 3 of 5"),
        (array_task(5, 1, 11, 1, 5), "SLURM_ARRAY_TASK_ID=5 .* ids from 1 to 11: they are not evenly spaced"),
        ({"JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETION_INDEX=1 .* JOB_COMPLETIONS does not say"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, "SLURM_ARRAY_TASK_ID=1 .* SLURM_ARRAY_TASK_COUNT does not say"),
    ],
)
def test_launchers_that_do_not_tell_a_rank_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        place_from_environment(environment)


def test_the_command_takes_ranks_from_arguments_or_the_environment(
    tmp_path: Path, inputs: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--tokenizer", "bytes"]
    assert main([*arguments, "--rank", "0", "--world-size", "2"]) == 0
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "Rank 0 of 2 is complete" in told
    assert "Rank 1 is not complete yet; once all are, --step finish publishes the set." in told
    assert "Rank 1 of 2 is complete" in told
    assert "So are all others: run --step finish to publish the set. RANK=1 and WORLD_SIZE=2 say so." in told
    assert main([*arguments, "--step", "finish", "--verify"]) == 0
    out = capsys.readouterr().out
    assert f"Wrote {sum(map(len, inputs)):,} documents" in out
    assert "Verified" in out
    monkeypatch.setenv("RANK", "one")
    assert main(arguments) == 2
    assert main([*arguments, "--rank", "1"]) == 2
    assert "go together" in capsys.readouterr().err


def test_what_other_ranks_have_done_is_not_removed_in_silence(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], inputs: list[list[str]]
) -> None:
    pretokenize_rank(options(1, 3))
    staged = tmp_path / "out" / "_staging-rank-1-of-3"
    for other in (
        lambda: pretokenize(options()),
        lambda: pretokenize_rank(options(0, 2)),
        lambda: pretokenize_rank(options(0, 2, "finish")),
    ):
        with pytest.raises(ConfigError, match=r"holds '_staging-rank-1-of-3', of a run of another world_size"):
            other()
        assert list(staged.glob("*.parquet"))
    for rank in (0, 2):
        pretokenize_rank(options(rank, 3))
    pretokenize_rank(options(0, 3, "finish"))
    texts = [text for file in inputs for text in file]
    assert texts_in(tmp_path / "out") == texts


def test_what_other_ranks_have_done_is_dropped_where_asked(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], inputs: list[list[str]]
) -> None:
    pretokenize_rank(options(1, 3))
    pretokenize(options(overwrite=True))
    assert texts_in(tmp_path / "out") == [text for file in inputs for text in file]
    assert not list((tmp_path / "out").glob("_staging-*"))


def stop_after(documents: int) -> Callable[[Progress], None]:
    def stop(done: Progress) -> None:
        if done.documents > documents:
            raise Stopped

    return stop


@pytest.mark.parametrize("step", ["hash", "drops", "encode", "finish"])
def test_ranks_do_not_begin_where_a_run_of_one_rank_is_unfinished(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], inputs: list[list[str]], step: str
) -> None:
    with pytest.raises(Stopped):
        pretokenize(options(), progress=stop_after(300))
    staged = sorted((tmp_path / "out" / "_staging-run").glob("*.parquet"))
    assert staged
    with pytest.raises(ConfigError, match=r"'_staging-run', of a run of another|unfinished run of other inputs"):
        pretokenize_rank(options(0, 2, step, dedup=True))
    assert sorted((tmp_path / "out" / "_staging-run").glob("*.parquet")) == staged
    pretokenize(options())
    assert texts_in(tmp_path / "out") == [text for file in inputs for text in file]


def test_a_last_step_that_was_killed_is_no_other_run(
    tmp_path: Path,
    options: Callable[..., PretokenizeOptions],
    inputs: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise Stopped

    for rank in range(2):
        pretokenize_rank(options(rank, 2))
    with monkeypatch.context() as patched:
        patched.setattr(OutputFolder, "publish", kill)
        with pytest.raises(Stopped):
            pretokenize_rank(options(0, 2, "finish"))
    assert (tmp_path / "out" / "_staging-run").exists()
    for rank in range(2):
        pretokenize_rank(options(rank, 2))
    with monkeypatch.context() as patched:
        patched.setattr(OutputFolder, "clear_staging", kill)  # the set is whole, and what was staged is still there
        with pytest.raises(Stopped):
            pretokenize_rank(options(0, 2, "finish"))
    pretokenize_rank(options(0, 2, "finish"))
    assert not list((tmp_path / "out").glob("_staging-*"))
    assert texts_in(tmp_path / "out") == [text for file in inputs for text in file]


def test_duplicates_are_those_of_the_seen_hashes_that_are_given(
    tmp_path: Path, options: Callable[..., PretokenizeOptions], inputs: list[list[str]]
) -> None:
    seen = str(tmp_path / "seen")
    pretokenize(
        options(output=str(tmp_path / "first"), max_docs=50, dedup=True, seen_hashes=seen, write_seen_hashes=True)
    )
    for rank in range(2):
        pretokenize_rank(options(rank, 2, "hash", dedup=True))
    pretokenize_rank(options(0, 2, "drops", dedup=True))
    with pytest.raises(DataError, match=r"other inputs, options or seen_hashes\. Run step='drops' again"):
        pretokenize_rank(options(0, 2, dedup=True, seen_hashes=seen))
    pretokenize_rank(options(0, 2, "drops", dedup=True, seen_hashes=seen))
    pretokenize(
        options(output=str(tmp_path / "second"), max_docs=90, dedup=True, seen_hashes=seen, write_seen_hashes=True)
    )
    with pytest.raises(DataError, match="Run step='drops' again"):  # the file has grown
        pretokenize_rank(options(0, 2, dedup=True, seen_hashes=seen))
    pretokenize_rank(options(0, 2, "drops", dedup=True, seen_hashes=seen))
    for rank in range(2):
        pretokenize_rank(options(rank, 2, dedup=True, seen_hashes=seen))
    pretokenize_rank(options(0, 2, "finish", dedup=True, seen_hashes=seen))
    expected = first_of_each([text for file in inputs for text in file])
    assert texts_in(tmp_path / "first") + texts_in(tmp_path / "second") + texts_in(tmp_path / "out") == expected


def test_hashing_for_a_set_that_is_whole_or_of_others_leaves_it_alone(
    tmp_path: Path, options: Callable[..., PretokenizeOptions]
) -> None:
    for step in ("hash", "drops", "encode", "finish"):
        for rank in range(2 if step in ("hash", "encode") else 1):
            pretokenize_rank(options(rank, 2, step, dedup=True))
    there = sorted((tmp_path / "out").iterdir())
    for step in ("hash", "drops"):
        assert "already" in pretokenize_rank(options(0, 2, step, dedup=True)).describe()
        with pytest.raises(ConfigError, match="of other inputs or another world_size"):
            pretokenize_rank(options(0, 3, step, dedup=True))
        with pytest.raises(ConfigError, match=f"step={step!r} is for dedup=True alone"):
            pretokenize_rank(options(0, 2, step))
    assert sorted((tmp_path / "out").iterdir()) == there
