"""The parts of tools/demo/demo.py that decide whether it says yes. That it runs is what `make demo` is for."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "demo"))

import demo
import demo_text
import demo_train

from parquet_loader.order.mixture import BLOCK
from parquet_loader.pretokenize import PretokenizeOptions
from parquet_loader.storage.growing import Growing, Writer


@pytest.fixture
def rows() -> demo.Rows:
    return {(step, lane): [f"{step}.{lane}"] for step in range(demo.STEPS) for lane in range(demo.LANES)}


def copy_of(rows: demo.Rows) -> demo.Rows:
    return {place: list(digests) for place, digests in rows.items()}


def test_equal_runs_are_found_equal_also_where_rows_were_read_twice(rows: demo.Rows) -> None:
    other = copy_of(rows)
    other[5, 3].append(other[5, 3][0])
    assert demo.compare(rows, other) == []
    assert demo.digest_of(rows) == demo.digest_of(other)


def test_a_row_that_differs_is_found(rows: demo.Rows) -> None:
    other = copy_of(rows)
    other[5, 3] = ["another"]
    (problem,) = demo.compare(rows, other)
    assert "differ: (step, lane) (5, 3)" in problem
    assert demo.digest_of(rows) != demo.digest_of(other)


def test_a_row_that_changed_when_it_was_read_again_is_found(rows: demo.Rows) -> None:
    other = copy_of(rows)
    other[5, 3].append("another")
    (problem,) = demo.compare(rows, other)
    assert "others when read again: (step, lane) (5, 3)" in problem


@pytest.mark.parametrize("which", ["uninterrupted", "interrupted"])
def test_a_row_that_is_missing_is_found(rows: demo.Rows, which: str) -> None:
    other = copy_of(rows)
    del other[5, 3]
    (problem,) = demo.compare(*((other, rows) if which == "uninterrupted" else (rows, other)))
    assert f"the {which} run has 1 rows too few or too many: (step, lane) (5, 3)" in problem


def test_logs_of_all_ranks_are_put_together_but_for_half_a_line(tmp_path: Path) -> None:
    first = {"step": 0, "lane": 0, "rows": ["a", "b"]}
    second = {"step": 0, "lane": 2, "rows": ["c", "d"]}
    (tmp_path / "rows-of-rank-0-of-2.jsonl").write_text(json.dumps(first) + "\n" + json.dumps(first)[:20])
    (tmp_path / "rows-of-rank-1-of-2.jsonl").write_text(json.dumps(second) + "\n")
    (tmp_path / "rows-of-rank-0-of-1.jsonl").write_text(json.dumps(first) + "\n")
    assert demo.read_rows(tmp_path) == {(0, 0): ["a", "a"], (0, 1): ["b", "b"], (0, 2): ["c"], (0, 3): ["d"]}
    assert demo.read_rows(tmp_path, 1) == {(0, 0): ["a"], (0, 1): ["b"]}


def test_kills_fall_between_checkpoints() -> None:
    steps = {demo.random_step(random.Random(seed), 0.3, 0.5) for seed in range(200)}
    assert len(steps) > 20
    assert all(2 <= step % demo.CHECKPOINT_EVERY < demo.CHECKPOINT_EVERY - 2 for step in steps)


def test_the_last_whole_checkpoint_is_found(tmp_path: Path) -> None:
    assert demo_train.last_checkpoint(tmp_path) is None
    for name in ("step-000080", "step-000100", "step-000120.unfinished"):
        (tmp_path / name).mkdir()
    assert demo_train.last_checkpoint(tmp_path) == tmp_path / "step-000100"
    assert demo_train.step_of(tmp_path / "step-000100") == 100


def test_cleaning_removes_only_what_the_demo_writes(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "thesis.txt").touch()
    demo.clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_docstrings_of_modules_classes_and_functions_are_found() -> None:
    source = '"""One."""\nclass C:\n    "Two."\n    async def f(self):\n        "Three."\ndef g(): pass\n'
    assert [text for text in demo_text.docstrings(source) if text] == ["One.", "Two.", "Three."]
    assert list(demo_text.docstrings("print 'Python 2'")) == []


def test_documents_are_written_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_text, "topics", lambda: iter(["a topic\nin two lines"]))
    docstring = "A module that says what it is for. " * 20
    monkeypatch.setattr(demo_text, "modules", lambda: iter([f'"""{docstring}"""']))
    assert demo_text.write_text(tmp_path / "text") == {"prose": 2, "code": 1}
    texts = list(demo_text.read_text(tmp_path / "text"))
    assert len(texts) == 3
    assert "a topic\nin two lines" in texts
    assert len(list(demo_text.read_text(tmp_path / "text" / "code"))) == 1


def test_the_stage_changes_between_the_kills_at_the_border_of_a_block() -> None:
    (_, (_, first), _), (_, (second, _), _), _ = demo.LEGS
    step, over = divmod(demo.SECOND[0], demo.LANES * demo.SEQ_LEN)
    assert not over
    assert not step % BLOCK
    assert first * demo.STEPS < step < second * demo.STEPS


def test_tokens_are_counted_by_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SEQ_LEN", 10)
    assert demo.tokens_of({(0, 0): ["code:1", "code:1"], (0, 1): ["prose:2"], (1, 0): ["code:3"]}) == {
        "code": 20,
        "prose": 10,
    }


def test_losses_are_shown_of_all_rows_and_of_each_source() -> None:
    training = demo.Training()
    for step in range(30):
        by = {"prose": 4.0} if step == 25 else {"code": 2.0, "prose": 4.0}
        training.add({"step": step, "loss": 3.0, "by": by, "seconds": 1.0, "waited": 0.0})
    assert "loss 3.00 → 3.00 → 3.00, of prose 4.00 → 4.00 → 4.00, of code 2.00 → 2.00 → 2.00" in str(training)


def test_text_that_trickles_goes_on_after_any_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in "abc"))
    source = demo_text.Trickle(PretokenizeOptions(inputs=(str(tmp_path), "1e6"), output="out", tokenizer="bytes"))
    records = list(source.records())
    assert [record.text for record in records] == ["a", "b", "c"]
    assert list(source.records(records[0].cursor)) == records[1:]


def test_how_far_a_writer_is_is_told_from_its_folder(tmp_path: Path) -> None:
    growing = Growing(writer=Writer(program="a", host="b", pid=1), since="", updated="", files=2, tokens=3000)
    (tmp_path / "_growing.json").write_text(growing.to_json())
    assert demo.written(tmp_path) == "3,000 tokens of prose in 2 files so far"
    (tmp_path / "_growing.json").unlink()
    assert demo.written(tmp_path) == "all prose is tokenized"
