"""What is in a set: exact where footers tell, and sampled with its error where they do not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unique_sets import damaged_ids, unique_groups, write_set

from parquet_loader import ConfigError, DataError, build_index
from parquet_loader.insight import candidates, inspect
from parquet_loader.insight.candidates import pretokenize_advice
from parquet_loader.testing import FaultyFiles


def test_what_footers_tell_is_exact(tmp_path: Path) -> None:
    folder = write_set(
        tmp_path / "set", unique_groups([[[3, 0, 4], [5]], [[6] * 20]]), compression="zstd", write_page_checksum=True
    )
    told = inspect(folder)
    assert (told.files, told.row_groups, told.documents, told.tokens, told.empty) == (2, 3, 24, 132, 1)
    assert told.file_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert (told.group_tokens.least, told.group_tokens.median, told.group_tokens.most) == (5, 7, 120)
    assert told.ids is not None
    assert (told.ids.least, told.ids.most, told.ids.known) == (0, 131, "index")
    assert (told.types, told.codecs, told.checksums) == ({"list of int32": 2}, {"ZSTD": 3}, 1.0)
    assert (told.encodings, told.page_versions) == ({"dictionary": 3}, {"1": 3})


def test_a_set_that_is_read_whole_has_no_error(tmp_path: Path) -> None:
    told = inspect(write_set(tmp_path / "set", [[[[1] * length for length in range(100)]]])).lengths
    assert told is not None
    assert told.exact
    assert (told.mean, told.longest) == (49.5, 99)
    assert [(each.share, each.tokens, each.low, each.high) for each in told.quantiles][3] == (0.5, 50, 50, 50)
    assert [(each.least, each.most) for each in told.shares][:4] == [(0, 0), (1, 1), (2, 3), (4, 7)]
    assert sum(each.documents for each in told.shares) == pytest.approx(1)
    assert sum(each.tokens for each in told.shares) == pytest.approx(1)


def test_intervals_of_a_sample_hold_the_truth_about_as_often_as_they_say(tmp_path: Path) -> None:
    """Of sets whose row groups differ, so that documents of one of them are alike."""
    rng = np.random.default_rng(5)
    groups = [
        [[1] * int(length) for length in rng.lognormal(rng.normal(3, 0.3), 0.5, 60).astype(int)] for _ in range(200)
    ]
    folder = write_set(tmp_path / "set", [groups[:100], groups[100:]])
    index = build_index(folder)
    truth = np.median([len(document) for group in groups for document in group])
    held = 0
    for seed in range(40):
        told = inspect(folder, index=index, sample_row_groups=24, seed=seed).lengths
        assert told is not None
        assert not told.exact
        held += told.quantiles[3].low <= truth <= told.quantiles[3].high
    assert 33 <= held <= 40


def test_the_sample_is_bounded_spread_over_the_set_and_always_the_same(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[9] * 5] * 4] * 10))
    one, other = inspect(folder, sample_row_groups=10), inspect(folder, sample_row_groups=10)
    assert one == other
    assert (one.sampled_row_groups, one.sampled_documents) == (10, 50)
    assert [sample.path for sample in one.samples] == ["part-000.parquet", "part-004.parquet", "part-009.parquet"]
    assert inspect(folder, sample_bytes=1).sampled_row_groups == 1
    none = inspect(folder, sample_row_groups=0)
    assert (none.sampled_row_groups, none.lengths, none.samples) == (0, None, ())


def test_the_commonest_ends_of_documents_are_told(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[7, 1, 9], [7, 2, 9], [7, 9], [], [8, 9]]]])
    told = inspect(folder)
    assert told.first_ids == ((7, 0.75), (8, 0.25))
    assert told.last_ids == ((9, 1.0),)


def test_ids_that_the_index_does_not_know_are_those_of_the_sample(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[5, 2]], [[9, 3]]]])
    index = dataclasses.replace(build_index(folder), max_id=np.array([5, -1]))
    told = inspect(folder, index=index).ids
    assert told is not None
    assert (told.least, told.most, told.known) == (2, 9, "sample")


def test_a_tokenizer_decodes_the_documents_that_are_shown(tmp_path: Path) -> None:
    class Letters:
        def decode(self, ids: list[int]) -> str:
            return "".join(chr(97 + number) for number in ids)

    told = inspect(write_set(tmp_path / "set", [[[[], [7, 8], [1]]]]), tokenizer=Letters())
    assert [(sample.document, sample.ids, sample.text) for sample in told.samples] == [(1, (7, 8), "hi")]


def test_splits_that_are_mixed_together_are_remarked(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_set(tmp_path / "set" / split, unique_groups([[[5] * 4]]))
    assert "the files are of several splits (1 of test, 1 of train)" in inspect(tmp_path / "set").remarks[0]


def test_a_manifest_is_told_without_its_files(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[5] * 4]]))
    manifest = {"format": "parquet_loader.pretokenize", "vocab_size": 9, "eos_id": 3, "files": [1, 2]}
    (folder / "_manifest.json").write_text(json.dumps(manifest))
    assert inspect(str(folder)).manifest == {"format": "parquet_loader.pretokenize", "vocab_size": 9, "eos_id": 3}
    assert inspect(folder).manifest is not None
    (folder / "_manifest.json").write_text('{"format": "another"}')
    assert inspect(folder).manifest is None


def test_columns_that_may_be_meant_are_listed(tmp_path: Path) -> None:
    lists = pa.array([[1, 2], [3]], pa.list_(pa.int32()))
    narrow = lists.cast(pa.list_(pa.uint16()))
    pq.write_table(pa.table({"input_ids": lists, "others": narrow}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="several columns"):
        inspect(tmp_path)
    found = candidates(tmp_path)
    assert [(each.name, each.type, each.is_tokens, each.tokens) for each in found] == [
        ("input_ids", "list of int32", True, 3),
        ("others", "list of uint16", True, 3),
    ]
    assert inspect(tmp_path, column=found[0].name).tokens == 3


def test_text_that_is_not_tokenized_is_told_with_the_command_that_does_it(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["some text"], "id": [1]}), tmp_path / "a.parquet")
    found = candidates(tmp_path)
    assert [(each.name, each.type, each.is_tokens) for each in found] == [
        ("body", "string", False),
        ("id", "int64", False),
    ]
    advice = pretokenize_advice(str(tmp_path), found)
    assert advice is not None
    assert f"--input {tmp_path} --text-column body" in advice


def test_a_set_without_rows_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path / "set", [[]])
    with pytest.raises(ConfigError, match="there is nothing in its 1 files"):
        inspect(tmp_path / "set")


def test_ids_that_contradict_the_footer_are_a_problem(tmp_path: Path) -> None:
    folder = damaged_ids(tmp_path / "set")
    told = inspect(folder)
    assert told.ids is not None
    assert (told.ids.least, told.ids.most, told.ids.contradicted) == (1, 9, 1)
    assert told.ids.read == (1, 1000)
    (problem,) = told.problems
    assert "part-000.parquet, row group 1, with ids from 4 to 1,000, and from 4 to 9 by its footer" in problem
    assert "`parquet-loader check`" in problem


def test_files_that_cannot_be_read_are_left_out_where_that_is_wanted(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[1, 2], [3]]], [[[4]]], [[[5]]]])
    pq.write_table(pa.table({"text": ["a"]}), folder / "a.parquet")
    (folder / "part-001.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(DataError, match="cut off"):
        inspect(folder)
    told = inspect(folder, strict=False)
    assert (told.files, told.tokens) == (2, 4)
    assert [problem.split(",")[0] for problem in told.problems] == ["a.parquet", "part-001.parquet"]


def test_row_groups_that_cannot_be_decoded_do_not_hide_the_others(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[1, 2], [3]], [[4]]]], write_page_checksum=True)
    FaultyFiles(folder).flip("part-000.parquet", int(build_index(folder).start[1] + 40))
    told = inspect(folder)
    assert told.sampled_documents == 2
    assert [problem.split(":")[0] for problem in told.problems] == ["part-000.parquet, row group 1, column 'tokens'"]


def test_columns_are_told_with_how_many_files_have_them(tmp_path: Path) -> None:
    write_set(tmp_path, [[[[1, 2]]], [[[3]]]])
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    (tmp_path / "z.parquet").write_bytes(b"no Parquet")
    found = candidates(tmp_path)
    assert [(each.name, each.files, each.of, each.tokens) for each in found] == [
        ("tokens", 2, 3, 3),
        ("text", 1, 3, None),
    ]
    assert pretokenize_advice(str(tmp_path), found) is None
