"""`TokenDataset` of a mixture: what a `ParquetLoader` of it gives, whoever reads it, saves it and changes it."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from unique_sets import unique_groups, write_set

from parquet_loader import (
    CheckpointError,
    Component,
    ConfigError,
    ParquetLoader,
    SourceExhaustedError,
    merge_checkpoints,
)
from parquet_loader.torch import TokenDataset, prefetch_to_device
from parquet_loader.torch.workers import Lease

LANES, SEQ_LEN = 4, 4
BLOCK = 64  # steps
STEPS = 150  # of two blocks and a bit; all that the sources hold comes once in BEGIN steps, and again
BEGIN = 70
SOURCES = {"code": 500, "math": 300, "web": 1_000}  # tokens, all of them unique
STAGES = [(0, {"web": 0.7, "code": 0.3}), (900, {"web": 0.4, "code": 0.3, "math": 0.3})]
RUN: dict[str, Any] = {"lanes": LANES, "seq_len": SEQ_LEN, "window": 2, "seed": 5, "threads": 1, "weights": STAGES}

pytestmark = [
    # Python 3.12 and later warn of every fork of a process that has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
]

Rows = list[list[list[int]]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    rng = np.random.default_rng(0)
    parent, first = tmp_path_factory.mktemp("sources"), 0
    for name, tokens in SOURCES.items():
        borders = np.sort(rng.choice(np.arange(1, tokens), 39, replace=False))
        lengths = np.diff([0, *borders, tokens]).tolist()
        files = unique_groups([[lengths[:10], lengths[10:20]], [lengths[20:30], lengths[30:]]])
        write_set(parent / name, [[[[first + t for t in d] for d in g] for g in file] for file in files])
        first += tokens
    return {name: str(parent / name) for name in SOURCES}


Make = Callable[..., TokenDataset]


@pytest.fixture
def make(folders: dict[str, str]) -> Iterator[Make]:
    """Makes datasets and closes them."""
    with ExitStack() as stack:

        def dataset_of(source: Any = None, **options: Any) -> TokenDataset:
            return stack.enter_context(TokenDataset(source or folders, **{**RUN, **options}))

        yield dataset_of


def rows_of(items: Iterable[dict[str, Any]]) -> Rows:
    return [item["input_ids"].tolist() for item in items]


def steps_of(items: Iterable[dict[str, Any]], workers: int) -> Rows:
    """The rows of each step, put together from the batches of the workers, which come in turn."""
    rows = rows_of(items)
    return [list(chain(*rows[step : step + workers])) for step in range(0, len(rows), workers)]


def plain(folders: Any, steps: int = STEPS, **options: Any) -> Rows:
    """What the loader itself gives."""
    with ParquetLoader(folders, **{**RUN, **options}) as loader:
        return [batch.tokens.tolist() for batch in islice(loader, steps)]


def loader_of(source: TokenDataset, workers: int, method: str = "fork", **options: Any) -> DataLoader[dict[str, Any]]:
    return DataLoader(source, batch_size=None, num_workers=workers, multiprocessing_context=method, **options)


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_iteration_gives_the_loaders_rows_without_end(folders: dict[str, str], make: Make) -> None:
    source = make()
    found = rows_of(islice(source, STEPS))
    assert found == plain(folders)
    begin = list(chain.from_iterable(chain.from_iterable(found[:BEGIN])))
    assert len(set(begin)) == len(begin)
    assert source.epoch == STEPS * LANES * SEQ_LEN // sum(SOURCES.values()) == 1  # it went on past that


def test_it_has_no_length(make: Make) -> None:
    with pytest.raises(TypeError, match="a mixture has no epochs and no length"):
        len(make())
    with pytest.raises(TypeError, match="a mixture has no epochs and no length"):
        len(DataLoader(make(), batch_size=None))


@pytest.mark.parametrize("workers", [0, 2])
def test_each_batch_can_bring_the_sources_of_its_rows(folders: dict[str, str], make: Make, workers: int) -> None:
    source = make(with_sources=True, dtype="int32")
    assert source.sources == ("code", "math", "web")
    loader = DataLoader(source, batch_size=None, num_workers=workers)
    borders = np.cumsum(list(SOURCES.values()))  # ids tell whose they are
    counts = torch.zeros(3, dtype=torch.int64)
    for item in islice(loader, STEPS):
        assert item["sources"].dtype == torch.int64
        assert (
            item["sources"].tolist() == np.searchsorted(borders, item["input_ids"][:, 0].numpy(), side="right").tolist()
        )
        counts.scatter_add_(0, item["sources"], torch.ones_like(item["sources"]))
    assert counts.min() > 0


def test_sources_of_one_set_are_refused(folders: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="with_sources=True is for a mixture"):
        TokenDataset(folders["web"], seq_len=4, lanes=4, with_sources=True)
    with TokenDataset(folders["web"], seq_len=4, lanes=4) as source:
        assert source.sources == ()
        with pytest.raises(ConfigError, match="one set"):
            source.reweight({"web": 1})


def test_its_tensors_can_be_sent_ahead_to_a_device(folders: dict[str, str], make: Make) -> None:
    items = list(islice(prefetch_to_device(make(with_sources=True), "cpu"), BEGIN))
    assert rows_of(items) == plain(folders, BEGIN)
    assert all(torch.is_tensor(item["sources"]) for item in items)


def test_relative_paths_are_those_of_the_folder_it_was_made_in(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(folders, BEGIN)
    with ParquetLoader(folders["code"], seq_len=4, lanes=4) as loader:
        loader.index.save(Path(folders["code"]) / "set.index")
    monkeypatch.chdir(Path(folders["web"]).parent)
    sources = {"web": Component("web"), "code": Component("code/*.parquet", index="code/set.index"), "math": "math"}
    with TokenDataset(sources, **RUN) as source:
        monkeypatch.chdir(tmp_path)
        assert rows_of(islice(source, BEGIN)) == expected


def test_its_repr_tells_what_it_reads_and_no_secret(folders: dict[str, str], make: Make) -> None:
    assert f"'math': {folders['math']!r}" in repr(make())
    secret = {
        "a": Component("s3://key:hidden@bucket/a", storage_options={"secret": "hidden"}),
        "b": ["s3://k:hidden@b"],
    }
    shown = repr(TokenDataset(secret, **RUN | {"weights": "tokens"}))
    assert "bucket/a" in shown
    assert "hidden" not in shown


# ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("taken", [0, 1, 63, 64, 100, 128, 140])
def test_a_state_resumes_exactly(folders: dict[str, str], make: Make, taken: int) -> None:
    source = make()
    list(islice(source, taken))
    other = make(copy.deepcopy(folders))
    other.load_state_dict(pickle.loads(pickle.dumps(source.state_dict())))
    assert rows_of(islice(other, STEPS - taken)) == plain(folders)[taken:]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda source: pickle.loads(pickle.dumps(source))])
def test_a_copy_goes_on_by_itself_on_the_same_indexes(
    folders: dict[str, str], make: Make, tmp_path: Path, duplicate: Any
) -> None:
    folder = shutil.copytree(folders["math"], tmp_path / "growing")
    source = make({**folders, "math": str(folder)})
    expected = plain(folders)
    next(iter(source))
    shutil.copy(folder / "part-000.parquet", folder / "part-002.parquet")  # it is of no run that has begun
    with duplicate(source) as other:
        assert rows_of(islice(other, STEPS - 1)) == expected[1:]
    assert rows_of(islice(source, STEPS - 1)) == expected[1:]


def test_checkpoints_of_ranks_merge_and_resume_on_another_number_of_ranks(folders: dict[str, str], make: Make) -> None:
    ranks = [make(rank=rank, world_size=4) for rank in range(4)]
    for source in ranks:
        list(islice(source, 66))
    whole = merge_checkpoints([source.checkpoint() for source in ranks])
    resumed = make(rank=1, world_size=2)
    resumed.resume(whole)
    assert rows_of(islice(resumed, STEPS - 66)) == [rows[2:] for rows in plain(folders)[66:]]


def test_the_state_of_one_set_goes_on_in_a_mixture_that_has_it(folders: dict[str, str], make: Make) -> None:
    stages = [(0, {"web": 1}), (900, {"web": 0.5, "code": 0.5})]
    expected = plain(folders, weights=stages)
    with TokenDataset(folders["web"], **{**RUN, "weights": None}) as alone:
        assert rows_of(islice(alone, 20)) == expected[:20]
        state = alone.state_dict()
    source = make(weights=stages)
    source.load_state_dict(state)
    assert rows_of(islice(source, STEPS - 20)) == expected[20:]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")  # it is
def test_distributed_checkpoints_load_into_a_dataset_that_has_other_sources(
    folders: dict[str, str], make: Make, tmp_path: Path
) -> None:
    """The template that is loaded into is a fresh state, which knows nothing of what the run has drawn."""
    web, both = {"web": folders["web"]}, {name: folders[name] for name in ("web", "code")}
    first = [(0, {"web": 1})]
    second = [*first, (100 * LANES * SEQ_LEN, {"web": 0.5, "code": 0.5})]
    third = [*second, (200 * LANES * SEQ_LEN, {"math": 1})]
    expected = plain(folders, 300, weights=third)
    begin = 0
    for sources, stages, end in ((web, first, 90), (both, second, 200), ({**folders}, third, 300)):
        source = make(sources, weights=stages)
        if begin:
            dcp.load({"data": source}, checkpoint_id=tmp_path / str(begin), no_dist=True)
        assert rows_of(islice(source, end - begin)) == expected[begin:end]
        dcp.save({"data": source}, checkpoint_id=tmp_path / str(end), no_dist=True)
        begin = end
    left = make({"math": folders["math"]}, weights=third)  # the others are over, and their files may be gone
    dcp.load({"data": left}, checkpoint_id=tmp_path / "300", no_dist=True)
    assert rows_of(islice(left, 20)) == plain(folders, 320, weights=third)[300:]


# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def changed(folders: dict[str, str], taken: int, change: Callable[[Any], None], steps: int = STEPS) -> Rows:
    """What the loader itself gives where it is changed after some batches."""
    with ParquetLoader(folders, **RUN) as loader:
        batches = iter(loader)
        begin = list(islice(batches, taken))
        change(loader)
        return [batch.tokens.tolist() for batch in (*begin, *islice(batches, steps - taken))]


CHANGES = {
    "skip": lambda run: run.skip(37),
    "reweight": lambda run: run.reweight({"math": 0.9, "web": 0.1}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_counts_from_the_next_batch_also_of_an_iteration(
    folders: dict[str, str], make: Make, change: Callable[[Any], None]
) -> None:
    source = make()
    items = iter(source)
    begin = list(islice(items, 70))
    change(source)
    expected = changed(folders, 70, change)
    assert rows_of([*begin, *islice(items, STEPS - 70)]) == expected != plain(folders)
    assert len(source.history["skips"]) + len(source.history["stages"]) > 1


@pytest.mark.parametrize(
    ("change", "method", "persistent"),
    [("skip", "fork", False), ("skip", "fork", True), ("reweight", "fork", True), ("reweight", "forkserver", True)],
)
def test_workers_go_on_with_a_change_that_was_made_where_they_were_broken_off(
    folders: dict[str, str], make: Make, change: str, method: str, persistent: bool
) -> None:
    source = make(with_state=True)
    loader = loader_of(source, 2, method, persistent_workers=persistent)
    begin = list(islice(loader, 2 * 70))
    with pytest.raises(CheckpointError, match="have taken over the position"):
        CHANGES[change](source)
    source.load_state_dict(begin[-1]["state"])
    CHANGES[change](source)
    assert steps_of([*begin, *islice(loader, 2 * (STEPS - 70))], 2) == changed(folders, 70, CHANGES[change])


def test_a_state_that_is_too_large_for_workers_is_refused() -> None:
    lease = Lease()
    lease.keep({"position": 3, "history": "{}"})
    assert lease.kept() == {"position": 3, "history": "{}"}
    noise = np.random.default_rng(0).bytes(2 << 20).hex()
    lease.keep({"position": 4, "history": noise})
    with pytest.raises(CheckpointError, match="use num_workers=0"):
        lease.kept()


# ── DataLoader workers ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("workers", "method"), [(1, "fork"), (2, "fork"), (2, "forkserver")])
def test_workers_give_the_order_of_the_run(folders: dict[str, str], make: Make, workers: int, method: str) -> None:
    source = make()
    begin = rows_of(islice(source, 10))
    assert begin + steps_of(islice(loader_of(source, workers, method), workers * (STEPS - 10)), workers) == plain(
        folders
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iteration_of_workers_that_is_broken_off_goes_on_from_the_state_of_its_last_batch(
    folders: dict[str, str], make: Make, persistent: bool
) -> None:
    source = make(with_state=True)
    loader = loader_of(source, 2, persistent_workers=persistent, prefetch_factor=3)
    found: list[dict[str, Any]] = []
    for stop in (2 * 60, 2 * 10, 2, 2 * (STEPS - 71)):  # PyTorch drops what the workers have read ahead of these
        found += islice(loader, stop)
        source.load_state_dict(found[-1]["state"])
        assert source.state_dict() == found[-1]["state"]
    assert steps_of(found, 2) == plain(folders)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_source_that_ends_is_named_before_the_block_that_would_need_more(
    folders: dict[str, str], make: Make, workers: int
) -> None:
    sources = {"web": folders["web"], "code": Component(folders["code"], max_epochs=1)}
    weights = {"web": 3, "code": 1}
    found: Rows = []
    with pytest.raises(SourceExhaustedError, match="'code' would be repeated more than max_epochs allows"):
        for item in DataLoader(make(sources, weights=weights), batch_size=None, num_workers=workers):
            found.append(item["input_ids"].tolist())  # what came before the error counts
    assert found == plain(sources, BLOCK, weights=weights)


# ── torchdata ────────────────────────────────────────────────────────────────────────────────────────────────────


def stateful(source: TokenDataset, workers: int, every: int) -> Any:
    method = "fork" if workers else None
    return StatefulDataLoader(
        source, batch_size=None, num_workers=workers, snapshot_every_n_steps=every, multiprocessing_context=method
    )


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("every", [1, 3])
def test_a_stateful_data_loader_goes_on_with_the_next_batch(
    folders: dict[str, str], make: Make, workers: int, every: int
) -> None:
    expected, share = plain(folders), LANES // max(1, workers)
    batches = [rows[at : at + share] for rows in expected for at in range(0, LANES, share)]
    for taken in (0, 5, 130):  # 130 steps are past the end of the first epoch of all that the sources hold
        saver = stateful(make(), workers, every)
        assert rows_of(islice(saver, taken)) == batches[:taken]
        state = pickle.loads(pickle.dumps(saver.state_dict()))
        saver.dataset.close()
        del saver
        resumed = stateful(make(), workers, every)
        resumed.load_state_dict(state)
        assert rows_of(islice(resumed, len(batches) - taken)) == batches[taken:]
        resumed.dataset.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_a_stateful_data_loader_makes_a_part_that_any_number_of_ranks_resume(
    folders: dict[str, str], make: Make, workers: int
) -> None:
    parts = []
    for rank in range(2):
        loader = stateful(make(rank=rank, world_size=2), workers, 100)  # the stage begins between two snapshots
        list(islice(loader, 61 * max(1, workers)))
        parts.append(loader.dataset.checkpoint(loader.state_dict()))
    source = make()
    source.resume(merge_checkpoints(parts))
    assert rows_of(islice(source, STEPS - 61)) == plain(folders)[61:]
