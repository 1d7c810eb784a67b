"""Checks of sets: all that is wrong is listed, with file and row group."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unique_sets import SCHEMA, damaged_ids, unique_groups, write_set

from parquet_loader import StorageError, build_index
from parquet_loader.insight import check, units
from parquet_loader.insight.scan import hash_documents
from parquet_loader.testing import FaultyFiles

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "soak"))

import bit_rot

SET = [[[[1, 2, 3], [4, 5], []], [[1, 2, 3], [9]]], [[[4, 5], [1, 2]]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", SET, write_page_checksum=True)


def test_all_documents_are_counted_and_nothing_is_wrong(folder: Path) -> None:
    report = check(folder)
    assert report.ok
    assert (report.files, report.row_groups, report.documents, report.tokens, report.empty) == (2, 3, 7, 13, 1)
    assert (report.min_id, report.max_id) == (1, 9)
    assert report.read_bytes == sum(path.stat().st_size for path in folder.iterdir())


def test_documents_that_are_the_same_are_found_with_their_places(folder: Path) -> None:
    found = check(folder).duplicates
    assert found is not None
    assert (found.documents, found.tokens, found.share) == (2, 5, 5 / 13)
    places = [(one.path, one.row_group, one.document, other.path, other.row_group, other.document)
              for one, other in found.examples]  # fmt: skip
    assert places == [
        ("part-000.parquet", 0, 0, "part-000.parquet", 1, 0),
        ("part-000.parquet", 0, 1, "part-001.parquet", 0, 0),
    ]


def test_duplicates_are_those_of_a_dict_of_documents(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    pool = [rng.integers(0, 5, int(length)).tolist() for length in rng.integers(0, 60, 300)]
    twins = [[*document[:20], document[20] + 1, *document[21:]] for document in pool if len(document) > 40]
    groups = [[[*pool, *twins][int(place)] for place in rng.integers(0, 300 + len(twins), 60)] for _ in range(12)]
    found = check(write_set(tmp_path / "set", [groups[:5], groups[5:]])).duplicates
    seen: set[tuple[int, ...]] = set()
    documents = tokens = 0
    for document in (tuple(document) for group in groups for document in group if document):
        documents += document in seen
        tokens += len(document) * (document in seen)
        seen.add(document)
    assert found is not None
    assert (found.documents, found.tokens) == (documents, tokens)


def test_a_document_is_the_same_also_where_its_row_group_has_ids_that_statistics_deny(tmp_path: Path) -> None:
    """So that it is decoded another way."""
    document = list(range(100))
    folder = write_set(tmp_path / "set", [[[document]], [[document, [70_000] * 20]]])
    index = build_index(folder)
    assert index.max_id.tolist() == [99, 70_000]
    path = folder / "part-001.parquet"
    data = bytearray(path.read_bytes())
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[footer:] = data[footer:].replace((70_000).to_bytes(4, "little"), (60_000).to_bytes(4, "little"))
    path.write_bytes(data)
    report = check(folder)
    assert report.duplicates is not None
    assert (report.duplicates.documents, report.duplicates.tokens) == (1, 100)
    assert [fault.kind for fault in report.faults] == ["statistics"]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 300])
def test_every_token_of_a_document_counts(length: int) -> None:
    one = np.arange(5, 5 + length)
    others = [one + (np.arange(length) == place) for place in range(length)] + [np.append(one, 0)]
    tokens, offsets = (
        np.concatenate([one, one, *others]),
        np.cumsum([0, length, *[len(each) for each in [one, *others]]]),
    )
    found = {tuple(each) for each in hash_documents(tokens.astype(np.uint16), offsets, "uint16").tolist()}
    assert len(found) == length + 2
    assert found == {tuple(each) for each in hash_documents(tokens.astype(np.int64), offsets, "uint16").tolist()}


def test_where_memory_is_short_duplicates_are_those_of_a_part_of_all_contents(tmp_path: Path) -> None:
    documents = [[number, number] for number in range(400)]
    folder = write_set(tmp_path / "set", [[documents, documents]])
    found = check(folder, memory_bytes=96 * 200).duplicates
    assert found is not None
    assert found.every == 4
    assert 50 < found.documents < 150
    assert 0.2 < found.share < 0.8


def test_a_document_across_many_parts_is_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    long = rng.integers(0, 1000, 1_700_000, dtype=np.int32)
    values = np.concatenate([[5, 6], long, [5, 6], long]).astype(np.int32)
    offsets = np.cumsum([0, 2, len(long), 2, 0, len(long), 0]).astype(np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"tokens": column}, schema=SCHEMA), tmp_path / "set" / "a.parquet", row_group_size=1 << 30)
    report = check(tmp_path / "set")
    assert (report.documents, report.tokens, report.empty) == (6, len(values), 2)
    assert report.duplicates is not None
    assert (report.duplicates.documents, report.duplicates.tokens) == (2, len(long) + 2)
    assert [(place.document, place.tokens) for place in report.longest[:3]] == [(1, len(long)), (4, len(long)), (0, 2)]


def test_ends_of_documents_are_told(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[1, 0], [2, 0, 0], [0, 3, 0]], [[4], []]]])
    report = check(folder, eos_id=0)
    ends = report.ends
    assert ends is not None
    assert (ends.ending, ends.missing, ends.inside, ends.doubled) == (3, 2, 2, 1)
    assert ends.example is not None
    assert (ends.example.row_group, ends.example.document) == (1, 0)
    assert [fault.kind for fault in report.faults] == ["eos"]


@pytest.mark.parametrize("last", [[0], []])
def test_documents_that_all_end_alike_are_right(tmp_path: Path, last: list[int]) -> None:
    folder = write_set(tmp_path / "set", [[[[1, *last], [2, 5, *last]]]])
    assert check(folder, eos_id=0).ok


def test_ids_out_of_range_are_counted_with_the_first_one(folder: Path) -> None:
    (fault,) = check(folder, vocab_size=6).faults
    assert (fault.kind, fault.path, fault.row_group) == ("ids", "part-000.parquet", 1)
    assert "1 ids are outside [0, 6)" in fault.problem
    assert "document 1" in fault.problem


def test_every_fault_is_listed_and_the_rest_is_checked(tmp_path: Path) -> None:
    files = unique_groups([[[40] * 10] * 3] * 4)
    folder = write_set(tmp_path / "set", files, write_page_checksum=True, use_dictionary=False)
    index = build_index(folder)
    faulty = FaultyFiles(folder)
    faulty.flip("part-000.parquet", int(index.start[1] + index.length[1] - 5))
    faulty.truncate("part-001.parquet", 100)
    faulty.flip("part-003.parquet", int(index.start[9] + index.length[9] - 5))
    report = check(folder)
    assert [(fault.kind, fault.path, fault.row_group) for fault in report.faults] == [
        ("damaged", "part-000.parquet", 1),
        ("unreadable", "part-001.parquet", None),
        ("damaged", "part-003.parquet", 0),
    ]
    assert "does not match its checksum" in report.faults[0].problem
    assert report.documents == 70


def test_files_that_are_others_than_an_index_says_are_faults(folder: Path) -> None:
    index = build_index(folder)
    shutil.copy(folder / "part-000.parquet", folder / "part-002.parquet")
    (folder / "part-001.parquet").unlink()
    write_set(folder, [[[[1, 2, 3]], [[1, 2, 3, 4, 4, 4, 4]]]])
    found = {fault.path: fault.problem for fault in check(folder, index=index).faults}
    assert list(found) == ["part-000.parquet", "part-001.parquet", "part-002.parquet"]
    assert "written anew" in found["part-000.parquet"]
    assert "cannot be read any more" in found["part-001.parquet"]
    assert "is new" in found["part-002.parquet"]


def test_statistics_that_are_not_true_are_faults(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", [[[[1, 2, 3], [70_000]]]])
    path = folder / "part-000.parquet"
    data = bytearray(path.read_bytes())
    largest = (70_000).to_bytes(4, "little")
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert largest in data[footer:]
    data[footer:] = data[footer:].replace(largest, (70_001).to_bytes(4, "little"))
    path.write_bytes(data)
    (fault,) = check(folder).faults
    assert fault.kind == "statistics"
    assert "70000" in fault.problem
    assert "70001" in fault.problem


def test_nothing_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(StorageError, match=r"no file of .* can be read: a\.parquet"):
        check(tmp_path)


def test_what_changes_without_a_trace_is_found_by_the_next_check_until_it_is_mended(folder: Path) -> None:
    """Also where no checksum of the file would tell: in its footer, here who wrote it."""
    assert check(folder).ok
    path = folder / "part-001.parquet"
    faulty = FaultyFiles(folder)
    faulty.flip(path.name, path.read_bytes().index(b"parquet-cpp"))
    for _ in range(2):
        (fault,) = check(folder).faults
        assert (fault.kind, fault.path, fault.row_group) == ("damaged", path.name, None)
        assert "other ones than in the check of" in fault.problem
    faulty.undo()
    assert check(folder).ok


def test_a_file_that_was_written_anew_is_as_good_as_a_new_one(folder: Path) -> None:
    assert check(folder).ok
    write_set(folder, [[[[5, 6]]]])
    assert check(folder).ok
    assert check(folder).ok


def test_processes_find_the_same_as_threads(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    files = [[[rng.integers(0, 3, 9).tolist() for _ in range(20)] for _ in range(3)] for _ in range(3)]
    folder = write_set(tmp_path / "set", files, write_page_checksum=True)
    FaultyFiles(folder).flip("part-001.parquet", int(build_index(folder).start[4] + 40))
    one = check(folder, eos_id=1, processes=True, threads=2, state=tmp_path / "a")
    other = check(folder, eos_id=1, state=tmp_path / "b")
    assert one == other
    assert {fault.kind for fault in one.faults} == {"damaged", "eos"}


PROGRAM = """
import multiprocessing, os, signal, sys
from parquet_loader.insight import check

def show(done, total):
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    check(sys.argv[1], processes=True, threads=2, progress=show)
"""


def test_processes_end_with_the_one_that_they_are_of_also_where_that_is_killed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(folder)], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        # Its end comes when the last process that has the pipe has ended.
        pids = program.stdout.read().split()
    assert program.returncode == -signal.SIGKILL
    assert len(pids) == 2


def test_a_set_of_no_row_groups_is_in_order(tmp_path: Path) -> None:
    report = check(write_set(tmp_path / "set", [[]]))
    assert report.ok
    assert (report.documents, report.max_id) == (0, None)


def test_small_row_groups_decoded_together_tell_the_same_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    files = [[[rng.integers(0, 4, int(length)).tolist() for length in rng.integers(0, 9, rng.integers(1, 8))]
              for _ in range(40)] for _ in range(2)]  # fmt: skip
    files[0][7] = [[], []]
    folder = write_set(tmp_path / "set", files)
    one = check(folder, eos_id=1, vocab_size=3, state=tmp_path / "a")
    assert one.empty > 0
    assert {fault.kind for fault in one.faults} == {"ids", "eos"}
    monkeypatch.setattr(units, "_SMALL_SLOTS", 0)
    assert check(folder, eos_id=1, vocab_size=3, state=tmp_path / "b") == one
    documents = [document for groups in files for group in groups for document in group]
    assert (one.documents, one.tokens) == (len(documents), sum(map(len, documents)))
    assert one.empty == documents.count([])
    assert one.ends is not None
    ending = [document for document in documents if document[-1:] == [1]]
    assert one.ends.ending == len(ending)
    assert one.ends.doubled == sum(document[-2:] == [1, 1] for document in ending)
    assert one.ends.inside == sum(document.count(1) for document in documents) - len(ending)


class Interrupted(Exception):
    pass


def test_an_interrupted_check_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    files = [[[rng.integers(0, 3, 4).tolist() for _ in range(20)] for _ in range(3)] for _ in range(6)]
    folder = write_set(tmp_path / "set", files, write_page_checksum=True)
    index = build_index(folder)
    FaultyFiles(folder).flip("part-001.parquet", int(index.start[4] + 30))
    whole = check(folder, eos_id=1, state=tmp_path / "a")

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        check(folder, eos_id=1, state=tmp_path / "b", progress=stop, threads=1)
    left: list[int] = []
    after = check(folder, eos_id=1, state=tmp_path / "b", progress=lambda done, _: left.append(done))
    assert after == whole
    assert 0 < after.continued < len(index)
    assert min(left) > whole.read_bytes // 2


def test_a_check_that_asks_otherwise_begins_anew(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set", unique_groups([[[3] * 5]] * 6))

    def stop(done: int, total: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        check(folder, progress=stop)
    assert check(folder, eos_id=3).continued == 0


def test_a_damaged_state_is_told_and_the_check_begins_anew(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="checking from the start"):
        assert check(folder, state=tmp_path / "state").ok
    assert check(folder, state=tmp_path / "state").ok


def test_a_state_that_cannot_be_written_is_a_note(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    report = check(folder, state=tmp_path / "file" / "state")
    assert report.ok
    assert "what was found could not be kept" in report.notes[-1]


def test_other_columns_are_read_for_later_and_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    table = pa.table({"tokens": pa.array([[1, 2], [3]], pa.list_(pa.int32())), "url": ["http://a", "http://b"]})
    path = tmp_path / "set" / "a.parquet"
    pq.write_table(table, path)
    for all_columns in (True, False):
        state = tmp_path / str(all_columns)
        assert check(path.parent, all_columns=all_columns, state=state).ok
        faulty = FaultyFiles(path.parent)
        faulty.flip(path.name, path.read_bytes().index(b"http://a"))
        assert check(path.parent, all_columns=all_columns, state=state).ok != all_columns
        faulty.undo()


@pytest.mark.filterwarnings("ignore:the index cache")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_every_damage_of_files_with_checksums_is_found(tmp_path: Path) -> None:
    layouts = [layout for layout in bit_rot.LAYOUTS if layout.checksums][::5]
    wholes = []
    for number, layout in enumerate(layouts):
        path = tmp_path / f"{number}.parquet"
        bit_rot.write_file(path, layout)
        wholes.append(bit_rot.Whole.of(path))
        assert check(path, cache_dir=tmp_path / "checks").ok

    def trial(number: int) -> str:
        whole = wholes[number % len(wholes)]
        states = tmp_path / f"checks-{number}"
        shutil.copytree(tmp_path / "checks", states)
        bit_rot.damage_file(whole, np.random.default_rng([1, number]))
        try:
            return "passed for whole" if check(whole.path, cache_dir=states).ok else "found"
        except StorageError:  # the only file cannot be read
            return "found"
        finally:
            whole.path.write_bytes(whole.data)
            os.utime(whole.path, ns=whole.times)

    assert set(bit_rot.outcomes(80, trial)) == {"found"}


def test_ids_that_contradict_the_footer_are_told_with_their_documents(tmp_path: Path) -> None:
    folder = damaged_ids(tmp_path / "set")
    (fault,) = check(folder).faults
    assert (fault.kind, fault.row_group) == ("statistics", 1)
    assert "from 4 to 1000, and its footer says from 4 to 9 (others are in document 1)" in fault.problem
    assert "the data is damaged, the footer is, or its writer was wrong" in fault.problem
    assert [fault.kind for fault in check(folder, vocab_size=1000).faults] == ["ids", "statistics"]
