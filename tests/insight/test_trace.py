"""Which documents a step is made of, and where a document comes."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import lane_texts, places_in_text
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import Batch, Component, ConfigError, ParquetLoader, SourceExhaustedError
from parquet_loader.cli.output import plain
from parquet_loader.insight import Piece, Tracer, find, open_run, which
from parquet_loader.insight.lengths import KnownLengths, document_lengths
from parquet_loader.options import LoaderOptions
from parquet_loader.runs import SetRun
from parquet_loader.storage.base import FileInfo
from parquet_loader.storage.local import LocalStorage

LENGTHS = random_files(np.random.default_rng(5), files=3, groups=5)
FILES = unique_groups(LENGTHS)
OPTIONS: dict[str, Any] = {"seq_len": 20, "lanes": 6, "window": 3, "seed": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("set"), FILES)


def opened(source: Any, state: dict[str, Any] | None = None, **changes: Any) -> Any:
    return open_run(source, LoaderOptions(**{**OPTIONS, **changes}), state)


def tokens_of(piece: Piece) -> list[int]:
    document = FILES[int(piece.file[5:8])][piece.row_group][piece.document]
    return document[piece.start : piece.start + piece.tokens]


def rows_of(pieces: list[Piece]) -> dict[int, list[int]]:
    """The tokens of each row, where pieces fill rows from the first column on."""
    rows: dict[int, list[int]] = {}
    for piece in pieces:
        row = rows.setdefault(piece.row, [])
        assert piece.column == len(row)
        row += tokens_of(piece)
    return rows


# ── a step ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_with_eos_each_is_the_last_token_of_its_document(folder: Path) -> None:
    """As the reference has it, whose tokens are labels here, since EOS are all alike."""
    labels = [
        [
            [(file, group, number, place) for place in range(len(document) + 1)]
            for number, document in enumerate(documents)
        ]
        for file, groups in enumerate(FILES)
        for group, documents in enumerate(groups)
    ]
    windows: list[tuple[int, int, int, int]] = []
    order = {"lanes": 6, "seed": 1, "shuffle": True}
    texts: Any = lane_texts(labels, window=3, epochs=2, windows=windows, **order)  # type: ignore[arg-type]
    places = places_in_text(windows, lengths=[(0, 20)], **order)
    run = Tracer(opened(folder, eos_id=7))
    for step in range(len(places) // 20):
        wanted = [texts[lane][place] for lane in range(6) for place in places[20 * step : 20 * step + 20]]
        found = [
            (int(piece.file[5:8]), piece.row_group, piece.document, piece.start + place)
            for piece in run.which(step).pieces
            for place in range(piece.tokens)
        ]
        assert found == wanted


def test_some_rows_and_columns_are_those_of_all(folder: Path) -> None:
    run = opened(folder)
    everything = which(run, 9).pieces
    assert which(run, 9, rows=[4, 1]).pieces == [piece for piece in everything if piece.row in (1, 4)]
    assert which(run, 9, rank=1, world_size=3).pieces == [piece for piece in everything if piece.row in (2, 3)]
    some = which(run, 9, rows=range(2, 3), columns=(3, 11)).pieces
    assert [token for piece in some for token in tokens_of(piece)] == rows_of(everything)[2][3:11]
    assert some[0].column == 3


def test_it_is_the_same_whatever_the_world_size_of_the_run(folder: Path) -> None:
    assert which(opened(folder, rank=1, world_size=2), 4).pieces == which(opened(folder), 4).pieces


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What is read of local files: (path, first byte, bytes) of each."""
    found: list[tuple[str, int, int]] = []
    read = LocalStorage.read

    def recorded(
        self: LocalStorage, file: FileInfo, start: int, length: int, stop: threading.Event | None = None
    ) -> bytes:
        found.append((file.path, start, length))
        return read(self, file, start, length, stop)

    monkeypatch.setattr(LocalStorage, "read", recorded)
    return found


def test_only_the_row_groups_concerned_are_read(folder: Path, reads: list[tuple[str, int, int]]) -> None:
    run = opened(folder)
    del reads[:]
    found = which(run, 5, rows=[2])
    index = run.set.config.index
    window = next(run.order.windows(found.position, 2))
    starts = window.slice_starts(6, 2, 3)
    touched = [
        int(group)
        for place, group in enumerate(window.groups)
        if window.offsets[place] < starts[1] and window.offsets[place + 1] > starts[0]
    ]
    chunks = [index.chunk(group) for group in touched]
    inside = [
        any(path == chunk.path and start <= chunk.start < start + length for chunk in chunks)
        for path, start, length in reads
    ]
    assert 0 < len(touched) < len(window.groups)
    assert reads
    assert all(inside)
    assert sum(length for *_, length in reads) < sum(int(length) for length in index.length[window.groups])


def test_a_step_beyond_the_end_is_refused_with_the_last_one(folder: Path) -> None:
    run = opened(folder, epochs=1)
    with ParquetLoader(folder, **OPTIONS, epochs=1) as loader:
        steps = len(list(loader))
    assert which(run, steps - 1).pieces
    with pytest.raises(
        ConfigError, match=rf"the run ends with step {steps - 1} \(epochs=1\): there is no step {steps}"
    ):
        which(run, steps)


def test_a_run_without_a_step_has_none(folder: Path) -> None:
    run = opened(folder, epochs=1, tail="drop", seq_len=10_000)
    with pytest.raises(ConfigError, match="ends before its first step"):
        which(run, 0)
    assert find(run, "part-001.parquet", 0, 3).places == ()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rows": [6]}, r"a row must be an integer in \[0, 5\], not 6"),
        ({"columns": (3, 21)}, r"columns must be a part of this step's 0:20, not 3:21"),
        ({"rank": 1}, "rank and world_size together"),
        ({"rank": 2, "world_size": 2}, r"rank must be an integer in \[0, 1\], not 2"),
    ],
)
def test_what_a_step_does_not_have_is_refused(folder: Path, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        which(opened(folder), 0, **wrong)


def test_a_step_that_a_mixture_never_comes_to_is_refused(folder: Path) -> None:
    run = opened({"a": Component(folder, max_epochs=1), "b": folder}, weights={"a": 1, "b": 1}, window=None)
    with pytest.raises(SourceExhaustedError, match="max_epochs"):
        which(run, 10**6)


# ── a document ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_state_a_document_is_looked_for_in_the_first_epoch(folder: Path) -> None:
    found = find(opened(folder), "part-001.parquet", 0, 3)
    assert sum(place.tokens for place in found.places) == found.tokens == LENGTHS[1][0][3]
    assert {place.epoch for place in found.places} == {0}


def test_with_a_state_a_document_is_looked_for_in_what_was_run(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        batches = [next(iter(loader)) for _ in range(40)]
    run = opened(folder, batches[-1].state)
    wanted = FILES[1][0][3]
    found = find(run, "part-001.parquet", 0, 3)
    assert found.steps == (0, 40)
    given = sum(int(np.isin(batch.tokens, wanted).sum()) for batch in batches)
    assert sum(place.tokens for place in found.places) == given > 0


def test_epochs_and_steps_together_say_where_to_look(folder: Path) -> None:
    run = opened(folder)
    both = find(run, "part-001.parquet", 0, 3, epochs=range(1, 4)).places
    assert {place.epoch for place in both} == {1, 2, 3}
    first = both[0].step
    assert find(run, "part-001.parquet", 0, 3, epochs=range(1, 4), steps=range(first + 1)).places == tuple(
        place for place in both if place.step == first
    )


def test_an_empty_document_comes_nowhere(folder: Path) -> None:
    file, group, document = next(
        (file, group, document)
        for file, groups in enumerate(LENGTHS)
        for group, lengths in enumerate(groups)
        for document, length in enumerate(lengths)
        if not length
    )
    found = find(opened(folder), f"part-{file:03d}.parquet", group, document)
    assert (found.tokens, found.places) == (0, ())


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (("part-01.parquet", 0, 0), "did you mean 'part-001.parquet'"),
        (("PART-001.parquet", 0, 0), "did you mean 'part-001.parquet'"),
        (("part-001.parquet", 99, 0), "has no row group 99 that holds documents; it has 0"),
        (("part-001.parquet", 0, 99), "has the documents 0 to"),
    ],
)
def test_a_document_that_is_not_there_is_refused_with_what_is(folder: Path, where: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        find(opened(folder), *where)


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_an_epoch_that_the_run_does_not_have_puts_no_document_into_padding(tmp_path: Path, tail: str) -> None:
    folder = write_set(tmp_path / "ends", unique_groups([[[10] * 5]]))
    run = opened(folder, seq_len=16, lanes=2, epochs=1, tail=tail)
    for document in range(5):
        found, first = (find(run, "part-000.parquet", 0, document, epochs=range(n)).places for n in (3, 1))
        assert found == first


def test_steps_that_were_skipped_beyond_a_runs_end_are_none(folder: Path) -> None:
    with ParquetLoader(folder, **{**OPTIONS, "epochs": 1}) as loader:
        last = len(loader) - 1
        loader.skip(last + 50)
        state = loader.state_dict()
    run = opened(folder, state, epochs=1)
    assert which(run, last).skipped
    with pytest.raises(ConfigError, match=f"the run ends with step {last} "):
        which(run, last + 1)


@pytest.mark.parametrize("name", ["steps", "epochs"])
@pytest.mark.parametrize("asked", [range(0, 9, 2), range(-1, 3), range(3, 1)])
def test_steps_and_epochs_are_ranges_without_gaps(folder: Path, name: str, asked: range) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a range without gaps"):
        find(opened(folder), "part-001.parquet", 0, 3, **{name: asked})


def test_a_source_must_be_said_of_a_mixture_and_of_it_alone(folder: Path) -> None:
    mixture = opened({"a": folder, "b": folder}, weights={"a": 1, "b": 1})
    with pytest.raises(ConfigError, match="say which of its sources, 'a', 'b'"):
        find(mixture, "part-001.parquet", 0, 0)
    with pytest.raises(ConfigError, match="the mixture has no source 'c'; it has 'a', 'b'"):
        find(mixture, "part-001.parquet", 0, 0, source="c")
    with pytest.raises(ConfigError, match="there is no source 'a'"):
        find(opened(folder), "part-001.parquet", 0, 0, source="a")


def test_a_source_that_is_never_drawn_again_ends_the_search(folder: Path) -> None:
    schedule = [(0, {"a": 1, "b": 1}), (6 * 20 * 64, {"b": 1})]
    run = opened({"a": folder, "b": folder}, weights=schedule)
    found = find(run, "part-001.parquet", 0, 3, source="a", epochs=range(50))
    assert found.places
    assert max(place.step for place in found.places) < 64


def test_a_source_that_the_run_never_comes_to_is_nowhere(folder: Path) -> None:
    """Its first row would be in a block for which the other one has nothing left."""
    sources = {"a": Component(folder, max_epochs=1), "b": folder}
    run = opened(sources, weights={"a": 10**6, "b": 1}, seq_len=2)
    assert find(run, "part-001.parquet", 0, 3, source="b", epochs=range(1)).places == ()
    assert find(run, "part-001.parquet", 0, 3, source="a", epochs=range(1)).places


def test_what_was_run_does_not_depend_on_what_would_be_allowed_now(folder: Path) -> None:
    weights = {"a": 1, "b": 1}
    with ParquetLoader({"a": folder, "b": folder}, **OPTIONS, weights=weights) as loader:
        batches = [next(iter(loader)) for _ in range(128)]
        state = loader.state_dict()
    sources = {"a": Component(folder, max_epochs=1), "b": Component(folder, max_epochs=1)}
    run = opened(sources, state, weights=weights)
    for step in (63, 64, 127):
        assert list(rows_of(which(run, step).pieces).values()) == batches[step].tokens.tolist()
    with pytest.raises(SourceExhaustedError):
        which(run, 128)


# ── a batch in hand ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_tells_its_origins_after_the_loader_went_on_and_was_closed(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        batches = [next(iter(loader)) for _ in range(12)]
    for batch in batches:
        assert list(rows_of(batch.origins()).values()) == batch.tokens.tolist()


def test_ranks_tell_the_rows_of_the_global_batch(folder: Path) -> None:
    step = which(opened(folder), 3).pieces
    for rank in range(2):
        with ParquetLoader(folder, **OPTIONS, rank=rank, world_size=2) as loader:
            batch = [next(iter(loader)) for _ in range(4)][-1]
        assert batch.origins() == [piece for piece in step if 3 * rank <= piece.row < 3 * rank + 3]


def test_a_batch_of_a_mixture_tells_its_origins_after_it_was_reweighted(folder: Path) -> None:
    with ParquetLoader({"a": folder, "b": folder}, **OPTIONS, weights={"a": 1, "b": 1}) as loader:
        batch = next(iter(loader))
        loader.reweight({"b": 1})
        after = [next(iter(loader)) for _ in range(64)][-1]
        state = loader.state_dict()
    assert batch.sources is not None
    pieces = batch.origins()
    assert list(rows_of(pieces).values()) == batch.tokens.tolist()
    assert {piece.row: piece.source for piece in pieces} == {
        row: "ab"[place] for row, place in enumerate(batch.sources)
    }
    assert {piece.source for piece in after.origins()} == {"b"}
    run = opened({"a": folder, "b": folder}, state, weights={"a": 1, "b": 1})
    assert which(run, 0).pieces == pieces
    assert which(run, 64).pieces == after.origins()


def test_a_pickled_batch_says_how_to_ask(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        batch = [next(iter(loader)) for _ in range(3)][-1]
    sent: Batch = pickle.loads(pickle.dumps(batch))
    assert sent.document_starts()[0].tolist() == batch.document_starts()[0].tolist()
    with pytest.raises(ConfigError, match=r"which\(open_run\(source, options, batch.state\), 2, rank=0, world_size=1"):
        sent.origins()
    assert which(opened(folder, sent.state), 2, rank=0, world_size=1).pieces == batch.origins()


def test_a_copied_batch_tells_its_origins(folder: Path) -> None:
    with ParquetLoader(folder, **OPTIONS) as loader:
        batch = next(iter(loader))
    assert copy.deepcopy(batch).origins() == copy.copy(batch).origins() == batch.origins()


# ── lengths ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_steps_that_follow_each_other_read_a_row_group_once(folder: Path, reads: list[tuple[str, int, int]]) -> None:
    run = Tracer(opened(folder))
    del reads[:]
    run.which(0)
    first = list(reads)
    for _ in range(3):
        run.which(0)
    assert reads == first
    assert first


@pytest.mark.parametrize("eos_id", [None, 3])
@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"data_page_size": 64, "write_batch_size": 8}])
def test_lengths_are_those_of_the_documents(tmp_path: Path, eos_id: int | None, options: dict[str, Any]) -> None:
    run = open_run(write_set(tmp_path / "set", FILES, **options), LoaderOptions(**OPTIONS, eos_id=eos_id))
    assert isinstance(run, SetRun)
    groups = [lengths for file in LENGTHS for lengths in file if lengths]
    eos = eos_id is not None
    wanted = [[length + eos for length in lengths] for lengths in groups]
    config = run.set.config
    assert [each.tolist() for each in document_lengths(config, np.arange(len(groups)))] == wanted
    known, some = KnownLengths(config), np.array([4, 1, 2])
    for _ in range(2):
        assert [each.tolist() for each in known.of(some)] == [wanted[4], wanted[1], wanted[2]]


def test_what_comes_out_is_plain(folder: Path) -> None:
    found = which(opened(folder), 1)
    assert plain(found.to_json()) == found.to_json()
    assert list(found.to_json()["pieces"][0]) == [
        *("row", "column", "tokens", "source", "file", "row_group", "document", "start")
    ]
    places = find(opened(folder), "part-001.parquet", 0, 3)
    assert list(plain(places.to_json())["places"][0])[:3] == ["step", "row", "column"]
