from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unique_sets import random_files, token_count, unique_groups, write_set

from parquet_loader import ParquetLoader
from parquet_loader.formats.parquet import decode

ROOT = Path(__file__).parents[2]
SIZES = {"seq_len": 24, "lanes": 5, "window": 4, "seed": 3}


@pytest.fixture(scope="module", autouse=True)
def tools_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools" / "quality"))
        yield


class Known:
    """A set of unique tokens, and its rows by brute force."""

    def __init__(self, folder: Path) -> None:
        lengths = random_files(np.random.default_rng(1), documents=40)
        self.files = files = unique_groups(lengths)
        self.path = write_set(folder, files)
        groups = [group for file in files for group in file if group]  # one without rows has no number
        documents = [(tokens, number) for number, group in enumerate(groups) for tokens in group]
        self.lengths = [len(tokens) for tokens, _ in documents]
        self.group = [number for _, number in documents]
        self.document = {token: d for d, (tokens, _) in enumerate(documents) for token in tokens}
        self.place = {d: tokens[0] / token_count(files) for d, (tokens, _) in enumerate(documents) if tokens}
        with ParquetLoader(self.path, **SIZES) as loader:
            batches = list(loader)
        self.tokens = [[row.tolist() for row in batch.tokens] for batch in batches]
        self.rows = [[[self.document[token] for token in row] for row in batch] for batch in self.tokens]
        self.begins: Counter[tuple[int, int, int]] = Counter()
        for step, batch in enumerate(batches):
            splits, columns = batch.document_starts()
            for lane, (low, high) in enumerate(itertools.pairwise(splits.tolist())):
                for column in columns[low:high].tolist():
                    self.begins[step, lane, self.rows[step][lane][column]] += 1

    def every(self) -> Iterator[tuple[int, int, list[int]]]:
        for step, batch in enumerate(self.rows):
            for lane, row in enumerate(batch):
                yield step, lane, row


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    return Known(tmp_path_factory.mktemp("known") / "set")


@pytest.fixture(scope="module")
def found(known: Known) -> tuple[Any, Any]:
    from quality_rows import loader_rows

    with ParquetLoader(known.path, **SIZES) as loader:
        rows, documents = loader_rows(loader)
    return rows, documents


def pieces(rows: Any, values: Any) -> dict[tuple[int, int, int], int]:
    keys = zip(rows.step.tolist(), rows.lane.tolist(), rows.document.tolist(), strict=True)
    return dict(zip(keys, values.tolist(), strict=True))


def test_pieces_are_what_the_loader_delivers(known: Known, found: tuple[Any, Any]) -> None:
    rows, documents = found
    expected = Counter((step, lane, document) for step, lane, row in known.every() for document in row)
    assert rows.steps == len(known.rows) > 10
    assert pieces(rows, rows.tokens) == expected
    assert pieces(rows, rows.begins) == {piece: known.begins[piece] for piece in expected}
    assert documents.lengths.tolist() == known.lengths
    assert documents.group_of(np.arange(len(known.group))).tolist() == known.group


@pytest.mark.parametrize("eos_id", [None, 60_000])
def test_row_groups_that_are_decoded_in_parts_give_the_same(
    known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eos_id: int | None
) -> None:
    from quality_rows import loader_rows

    with ParquetLoader(known.path, **SIZES, eos_id=eos_id) as loader:
        rows, documents = loader_rows(loader)
    path = write_set(tmp_path / "set", known.files, data_page_size=1, write_batch_size=5)
    monkeypatch.setattr(decode, "PART_SLOTS", 50)
    with ParquetLoader(path, **SIZES, eos_id=eos_id) as loader:
        in_parts, documents_in_parts = loader_rows(loader)
        assert loader.index.slots.max() > 4 * 50
    assert pieces(in_parts, in_parts.tokens) == pieces(rows, rows.tokens)
    assert pieces(in_parts, in_parts.begins) == pieces(rows, rows.begins)
    assert documents_in_parts.lengths.tolist() == documents.lengths.tolist()


def test_an_eos_is_a_token_of_its_document(known: Known) -> None:
    from quality_rows import loader_rows

    with ParquetLoader(known.path, **SIZES, eos_id=60_000) as loader:
        expected = [batch.tokens for batch in loader]
    with ParquetLoader(known.path, **SIZES, eos_id=60_000) as loader:
        rows, documents = loader_rows(loader)
    assert documents.lengths.tolist() == [length + 1 for length in known.lengths]
    assert rows.steps == len(expected)
    tokens = pieces(rows, rows.tokens)
    for (step, lane), row in np.ndenumerate(np.array(expected)[..., 0]):
        if row != 60_000:
            assert tokens[step, lane, known.document[int(row)]] > 0
    whole = Counter(np.repeat(rows.document, rows.tokens).tolist())
    assert sum(whole[d] == length for d, length in enumerate(documents.lengths)) > 0.9 * len(documents.lengths)


def test_in_the_order_of_the_text_a_document_goes_on_in_the_next_row(known: Known) -> None:
    from quality_rows import order_as_text

    with ParquetLoader(known.path, **SIZES) as loader:
        order_as_text(loader)
        batches = list(loader)
    rows = [[row.tolist() for row in batch.tokens] for batch in batches]
    assert rows != known.tokens
    assert sorted(rows) == sorted(known.tokens)
    goes_on = 0
    for step, batch in enumerate(batches[1:], 1):
        splits, columns = batch.document_starts()
        for lane, first in enumerate(splits[:-1].tolist()):
            if first == splits[lane + 1] or columns[first]:
                assert rows[step][lane][0] == rows[step - 1][lane][-1] + 1
                goes_on += 1
    assert goes_on > 10


@pytest.mark.parametrize("steps", [1, 2, 8])
@pytest.mark.parametrize("of_the_lane", [True, False])
def test_what_steps_before_have_shown(known: Known, found: tuple[Any, Any], steps: int, of_the_lane: bool) -> None:
    from quality import shown_before

    shown = total = 0
    for step, lane, row in known.every():
        if not step:
            continue
        before = known.rows[max(0, step - steps) : step]
        seen = {d for batch in before for of, other in enumerate(batch) if of == lane or not of_the_lane for d in other}
        shown += sum(document in seen for document in row)
        total += len(row)
    assert 0 < shown < total
    assert shown_before(found[0], steps, lane=of_the_lane) == pytest.approx(shown / total)


def test_the_steps_from_a_row_with_a_document_to_the_next(known: Known, found: tuple[Any, Any]) -> None:
    from quality import measures

    steps_with: dict[int, list[int]] = {}
    for step, batch in enumerate(known.rows):
        for document in {document for row in batch for document in row}:
            steps_with.setdefault(document, []).append(step)
    gaps = [after - before for steps in steps_with.values() for before, after in itertools.pairwise(steps)]
    measured = measures(*found)
    assert measured["steps from a row with a document to the next with it, median"] == np.median(gaps)


def test_what_rows_and_batches_are_made_of(known: Known, found: tuple[Any, Any]) -> None:
    from quality import measures

    measured = measures(*found)
    rows = [row for _, _, row in known.every()]
    groups = [{known.group[d] for row in batch for d in row} for batch in known.rows]
    assert measured["documents in a row"] == pytest.approx(np.mean([len(set(row)) for row in rows]))
    assert measured["row groups in a row"] == pytest.approx(np.mean([len({known.group[d] for d in r}) for r in rows]))
    assert measured["row groups in a batch"] == pytest.approx(np.mean([len(batch) for batch in groups]))

    shares = np.zeros((len(known.rows), 16))
    for step, _, row in known.every():
        for document in row:
            shares[step, int(known.place[document] * 16)] += 1 / (SIZES["lanes"] * SIZES["seq_len"])
    variance = ((shares - 1 / 16) ** 2).sum(axis=1).mean()
    assert measured["a batch is as mixed as so many independent rows"] == pytest.approx((1 - 1 / 16) / variance)


def test_distances_of_rows(known: Known, found: tuple[Any, Any]) -> None:
    from quality import measures

    def place(row: list[int]) -> float:
        counts = Counter(row)
        return known.place[max(counts, key=lambda document: (counts[document], document))]

    pairs, nearest = [], []
    for batch in known.rows:
        places = [place(row) for row in batch]
        for lane, here in enumerate(places):
            others = [abs(here - there) for of, there in enumerate(places) if of != lane]
            pairs += others
            nearest.append(min(others))
    lanes = SIZES["lanes"]
    uniform = np.random.default_rng(0).random((20_000, lanes))
    apart = np.abs(uniform[:, :, None] - uniform[:, None]) + 9 * np.eye(lanes)
    measured = measures(*found)
    assert measured["two rows of a batch: how far apart in the set (full shuffle: 1)"] == pytest.approx(
        np.mean(pairs) / np.mean(apart[apart < 9]), rel=0.02
    )
    assert measured["a row and the nearest one of its batch: how far apart (full shuffle: 1)"] == pytest.approx(
        np.mean(nearest) / np.mean(apart.min(axis=2)), rel=0.02
    )


def test_cuts_are_those_of_documents_that_came_whole(known: Known, found: tuple[Any, Any]) -> None:
    from quality import measures

    measured = measures(*found)
    rows_with: dict[int, list[int]] = {}
    begins: Counter[int] = Counter()
    for step, lane, row in known.every():
        for document, tokens in Counter(row).items():
            rows_with.setdefault(document, []).append(tokens)
            begins[document] += known.begins[step, lane, document]
    whole = [document for document, tokens in rows_with.items() if sum(tokens) == known.lengths[document]]
    spread = np.array([len(rows_with[document]) for document in whole])
    cut = np.array([begins[document] > 1 for document in whole])
    assert measured["rows that a document is spread over"] == pytest.approx(spread.mean())
    assert measured["% of documents in more than one row"] == pytest.approx(100 * (spread > 1).mean())
    assert measured["% of documents that a lane's border cut"] == pytest.approx(100 * cut.mean())
    assert cut.any()


@pytest.mark.parametrize("shuffle_documents", [False, True])
def test_a_full_shuffle_deals_out_every_row_of_the_set_once(found: tuple[Any, Any], shuffle_documents: bool) -> None:
    from quality_rows import fixed_rows

    documents = found[1]
    seq_len, lanes = 24, 1
    count = int(documents.lengths.sum()) // seq_len
    rows = fixed_rows(documents, seq_len=seq_len, lanes=lanes, steps=10**6, shuffle_documents=shuffle_documents)
    assert rows.steps == count
    assert np.bincount(rows.step, rows.tokens).tolist() == [seq_len] * count
    delivered = np.bincount(rows.document, rows.tokens, len(documents.lengths))
    assert (delivered <= documents.lengths).all()
    assert documents.lengths.sum() - delivered.sum() < seq_len
    if not shuffle_documents:  # rows are stretches of the set: of its documents' numbers, once sorted
        stored = np.arange(len(documents.lengths)).repeat(documents.lengths)
        expected = sorted(stored[: count * seq_len].reshape(count, seq_len).tolist())
        step_rows = [[] for _ in range(count)]
        for step, document, tokens in zip(rows.step, rows.document, rows.tokens, strict=True):
            step_rows[step] += [int(document)] * int(tokens)
        assert sorted(step_rows) == expected
        assert step_rows != expected


def test_a_full_shuffle_is_what_distances_are_measured_by() -> None:
    from quality import measures
    from quality_rows import Documents, fixed_rows

    documents = Documents(lengths=np.full(4_000, 16), groups=np.arange(0, 4_001, 100))
    measured = measures(fixed_rows(documents, seq_len=16, lanes=20, steps=200), documents)
    assert measured["two rows of a batch: how far apart in the set (full shuffle: 1)"] == pytest.approx(1, abs=0.03)
    assert measured["a row and the nearest one of its batch: how far apart (full shuffle: 1)"] == pytest.approx(
        1, abs=0.03
    )
    assert measured["a batch is as mixed as so many independent rows"] == pytest.approx(20, rel=0.1)


def test_of_row_groups_that_were_not_read_documents_are_of_equal_length(known: Known) -> None:
    from quality_rows import loader_rows

    with ParquetLoader(known.path, **{**SIZES, "window": 1}) as loader:
        rows, documents = loader_rows(loader, 2)
        tokens = loader.index.tokens
    assert rows.steps == 2
    assert np.add.reduceat(documents.lengths, documents.groups[:-1]).tolist() == tokens.tolist()
    guessed = [lengths for lengths in np.split(documents.lengths, documents.groups[1:-1]) if np.ptp(lengths) <= 1]
    assert len(guessed) > 1


def test_the_command_prints_a_table(known: Known, capsys: pytest.CaptureFixture[str]) -> None:
    import quality

    assert quality.main([str(known.path), "--seq-len", "24", "--lanes", "5", "--window", "4", "--steps", "6"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("6 of the first epoch's ")
    assert "| documents in a row " in printed
    assert "border cut" not in printed  # of a few steps that would be the short documents


def test_the_command_says_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import quality

    assert quality.main([str(tmp_path / "nothing"), "--seq-len", "24", "--lanes", "5"]) == 1
    assert "nothing" in capsys.readouterr().err


def test_a_picture_has_a_bar_for_every_document_of_a_row(known: Known, found: tuple[Any, Any]) -> None:
    from quality_docs import picture

    drawn = picture({"in the loader's order": found[0]}, first=2, shown=4)
    expected = sum(len(set(batch[0])) for batch in known.rows[2:6])
    assert drawn.count("stroke=") == expected
    assert "in the loader's order" in drawn


def test_the_document_has_a_place_for_every_table(tmp_path: Path) -> None:
    from quality import write_docs

    text = (ROOT / "docs" / "order.md").read_text()
    for name in ("measures", "steps", "windows", "training"):
        assert text.count(f"<!-- quality: {name} -->\n") == 1
    document = tmp_path / "order.md"
    document.write_text("before\n<!-- quality: steps -->\nold\n<!-- end -->\nafter\n<!-- end -->\n")
    write_docs("steps", "new", document)
    assert document.read_text() == "before\n<!-- quality: steps -->\nnew\n<!-- end -->\nafter\n<!-- end -->\n"


def test_every_order_that_is_trained_on_has_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    import quality_training as training

    text = training.tokenized([f"document {n}: {'a word ' * (n % 7)}" for n in range(200)], tmp_path, row_groups=8)
    options = argparse.Namespace(seq_len=16, lanes=4, window=3, row_groups=8)
    (_, shuffled), (_, rows), *_ = training.orders(text.path, options, seed=1).items()
    assert rows.shape == shuffled.shape
    assert not np.array_equal(rows, shuffled)
    assert sorted(rows.reshape(-1, 17).tolist()) == sorted(shuffled.reshape(-1, 17).tolist())


def test_training_depends_on_the_rows_and_the_seed_alone() -> None:
    # Takes a second or two: an optimizer's first step imports much of PyTorch.
    torch = pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    import quality_training as training

    rows = np.arange(3 * 2 * 9).reshape(3, 2, 9)
    validation = training.in_rows(list(range(50)), 9)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other where cores are busy
    first, again, others, reversed_rows = (
        training.trained(*given)
        for given in (
            (rows, validation, 1),
            (rows, validation, 1),
            (rows, validation, 2),
            (rows[::-1].copy(), validation, 1),
        )
    )
    torch.set_num_threads(threads)
    assert validation.shape == (5, 9)
    assert first == again
    assert len({first, others, reversed_rows}) == 3


def test_differences_of_losses_are_those_of_one_seed() -> None:
    pytest.importorskip("torch")
    import quality_training as training

    printed = training.report({"shuffled": [3.0, 4.0], "in order": [3.1, 4.3]}).splitlines()
    assert printed[2] == "| shuffled | 3.5000 | 0.7071 |  |"
    assert printed[3] == "| in order | 3.7000 | 0.8485 | +0.2000 ± 0.1000 |"
