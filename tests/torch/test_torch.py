"""`TokenDataset`: values, positions, DataLoader workers, process groups."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed
from ranks import on_ranks
from subprocesses import run
from torch.utils.data import DataLoader

from parquet_loader import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    ConfigError,
    LoaderClosedError,
    ParquetLoader,
    build_index,
    merge_checkpoints,
)
from parquet_loader.torch import TokenDataset

LANES, SEQ_LEN, STEPS = 4, 8, 15
TOKENS = LANES * SEQ_LEN * STEPS  # an epoch is STEPS batches and not a token more
RUN = {"lanes": LANES, "seq_len": SEQ_LEN, "window": 3, "seed": 5, "threads": 2}


pytestmark = [
    # Python 3.12 and later warn of every fork of a process that has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two files in which every token id is there once, so that what comes out tells where it was."""
    folder = tmp_path_factory.mktemp("data")
    borders = np.sort(np.random.default_rng(0).choice(np.arange(1, TOKENS), 59, replace=False))
    documents = [document.tolist() for document in np.split(np.arange(TOKENS, dtype=np.int32), borders)]
    for number, part in enumerate((documents[:30], documents[30:])):
        table = pa.table({"tokens": pa.array(part, pa.list_(pa.int32()))})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=6)
    return str(folder)


Dataset = Callable[..., TokenDataset]


@pytest.fixture
def dataset(data: str) -> Iterator[Dataset]:
    """Makes datasets and closes them."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(TokenDataset(data, **{**RUN, **options}))


def rows_of(items: Iterable[dict[str, Any]]) -> list[list[list[int]]]:
    return [item["input_ids"].tolist() for item in items]


def plain(data: str, epochs: int = 1, **options: Any) -> list[list[list[int]]]:
    """What the loader itself gives."""
    with ParquetLoader(data, **{**RUN, **options}) as loader:
        return [batch.tokens.tolist() for _ in range(epochs) for batch in loader]


def loader_of(source: TokenDataset, workers: int, method: str = "fork", **options: Any) -> DataLoader[dict[str, Any]]:
    return DataLoader(source, batch_size=None, num_workers=workers, multiprocessing_context=method, **options)


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_overlap_inputs_and_labels_are_the_loaders_rows(data: str, dataset: Dataset) -> None:
    items = list(DataLoader(dataset(), batch_size=None))
    assert rows_of(items) == plain(data)
    assert all(torch.equal(item["input_ids"], item["labels"]) for item in items)


def test_with_overlap_labels_are_the_next_tokens(data: str, dataset: Dataset) -> None:
    items = list(DataLoader(dataset(overlap=1), batch_size=None))
    rows = np.array(plain(data, overlap=1))
    assert rows_of(items) == rows[:, :, :-1].tolist() == plain(data)
    assert [item["labels"].tolist() for item in items] == rows[:, :, 1:].tolist()


@pytest.mark.parametrize("overlap", [0, 1])
def test_tensors_are_contiguous_int64_of_their_own(dataset: Dataset, overlap: int) -> None:
    item = next(iter(dataset(overlap=overlap)))
    before = item["input_ids"].clone()
    for tensor in (item["input_ids"], item["labels"]):
        assert tensor.dtype == torch.int64
        assert tensor.shape == (LANES, SEQ_LEN)
        assert tensor.is_contiguous()
    item["labels"].fill_(-100)
    assert torch.equal(item["input_ids"], before)


def test_labels_can_be_left_out(dataset: Dataset) -> None:
    assert set(next(iter(dataset(labels=False)))) == {"input_ids"}


def test_uneven_ranks_get_their_weight(dataset: Dataset) -> None:
    items = [next(iter(dataset(rank=rank, world_size=3, uneven=True))) for rank in range(3)]
    assert [len(item["input_ids"]) for item in items] == [1, 1, 2]
    assert [item["weight"] for item in items] == pytest.approx([3 / 4, 3 / 4, 6 / 4])


def test_an_argument_that_the_loader_does_not_have_is_refused_at_once(dataset: Dataset) -> None:
    with pytest.raises(TypeError, match="sead"):
        dataset(sead=1)


def test_strict_refuses_what_the_loader_remarks_on(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"an epoch holds .* fewer than the .* of a global batch.*strict=True"):
        next(iter(dataset(seq_len=2 * TOKENS // LANES, strict=True)))


def test_rank_without_world_size_is_refused(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="both rank and world_size"):
        dataset(rank=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_len": 0}, r"seq_len must be an integer in \[1, 2147483646\], not 0"),
        ({"lanes": "x"}, r"lanes must be an integer in \[1, 2147483646\], not 'x'"),
        ({"overlap": 2}, r"overlap must be an integer in \[0, 1\], not 2"),
        ({"window": 0}, "window must be an integer at least 1, not 0"),
        ({"vocab_size": "x"}, "vocab_size must be an integer at least 1, not 'x'"),
        ({"rank": 2, "world_size": 2}, r"rank must be an integer in \[0, 1\], not 2"),
    ],
)
def test_values_that_cannot_work_are_refused_when_it_is_made(
    dataset: Dataset, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset(**changes)


def test_relative_paths_are_those_of_the_folder_it_was_made_in(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(data)
    build_index(data).save(folder / "set.index")
    monkeypatch.chdir(folder)
    sources: list[Any] = [".", "*.parquet", Path("0.parquet"), ["1.parquet", "0.parquet"], "file://."]
    made = [TokenDataset(source, **RUN) for source in sources]
    made.append(TokenDataset(".", index="set.index", **RUN))
    monkeypatch.chdir(tmp_path)
    expected = plain(data)
    for source in made:
        with source:
            rows = rows_of(loader_of(source, 1))
        assert rows == (plain(str(folder / "0.parquet")) if source is made[2] else expected)
    with TokenDataset("s3://bucket/set", **RUN) as remote:
        assert "'s3://bucket/set'" in repr(remote)


def test_its_repr_tells_what_it_reads_and_no_secret(data: str, dataset: Dataset) -> None:
    assert repr(dataset()) == f"TokenDataset({data!r}, seq_len=8, lanes=4, rank of the process group)"
    assert repr(dataset(rank=1, world_size=2)) == f"TokenDataset({data!r}, seq_len=8, lanes=4, rank 1 of 2)"
    secret = TokenDataset(["s3://key:hidden@bucket/a", "s3://key:hidden@bucket/b"], **RUN)
    assert "hidden" not in repr(secret)


# ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_iterations_go_on_from_epoch_to_epoch(data: str, dataset: Dataset) -> None:
    source = dataset()
    assert source.epoch == 0
    assert len(source) == STEPS
    first, second = rows_of(source), rows_of(source)
    assert first + second == plain(data, epochs=2)
    assert source.epoch == 2


def test_an_iteration_that_is_broken_off_goes_on_with_the_next_batch(data: str, dataset: Dataset) -> None:
    source = dataset()
    begin = [item for _, item in zip(range(4), source, strict=False)]
    assert rows_of(begin) + rows_of(source) == plain(data)


@pytest.mark.parametrize("taken", [0, 1, STEPS - 1, STEPS])
@pytest.mark.parametrize("iterated", [False, True], ids=["fresh", "iterated"])
def test_a_state_resumes_exactly(data: str, dataset: Dataset, taken: int, iterated: bool) -> None:
    source, expected = dataset(), plain(data, epochs=2)
    for _ in zip(range(taken), source, strict=False):
        pass
    state = source.state_dict()
    other = dataset()
    if iterated:
        next(iter(other))
    other.load_state_dict(state)
    # A state of an epoch's end resumes into the whole next epoch, never into an empty one.
    assert rows_of(other) == expected[taken : STEPS if taken < STEPS else 2 * STEPS]


def test_a_state_loaded_while_iterating_moves_the_iteration(data: str, dataset: Dataset) -> None:
    source, expected = dataset(), plain(data)
    start = source.state_dict()
    iterator = iter(source)
    assert iterator is not source
    assert rows_of([next(iterator), next(iterator)]) == expected[:2]
    source.load_state_dict(start)
    assert rows_of(iterator) == expected


def test_a_state_is_a_copy_that_nothing_changes_later(dataset: Dataset) -> None:
    source = dataset()
    state = source.state_dict()
    kept = dict(state)
    next(iter(source))
    assert state == kept != source.state_dict()
    state["position"] = 10**6
    assert source.state_dict()["position"] == SEQ_LEN


def test_each_batch_can_bring_the_state_after_it(data: str, dataset: Dataset) -> None:
    expected = plain(data)
    for number, item in enumerate(DataLoader(dataset(with_state=True), batch_size=None)):
        if number < STEPS - 1:
            with dataset() as other:  # closed at once, or all would read ahead together
                other.load_state_dict(item["state"])
                assert rows_of(other) == expected[number + 1 :]


@pytest.mark.parametrize(
    "scalar", [lambda value: np.asarray(value)[()], np.asarray, torch.tensor], ids=["numpy", "array", "torch"]
)
def test_a_state_may_come_back_as_scalars_of_other_libraries(data: str, dataset: Dataset, scalar: Any) -> None:
    source = dataset()
    for _ in zip(range(4), source, strict=False):
        pass
    state = source.state_dict()
    foreign = {name: scalar(value) if isinstance(value, int) else value for name, value in state.items()}
    other = dataset()
    assert other.checkpoint(foreign) == source.checkpoint()
    other.load_state_dict(foreign)
    assert pickle.dumps(other.state_dict()) == pickle.dumps(state)  # plain again
    assert rows_of(other) == plain(data)[4:]


@pytest.mark.parametrize(
    "value", [True, np.True_, torch.tensor(True), 32.0, np.float64(32), np.array([32]), "32", None]
)
def test_a_position_that_is_no_integer_is_refused(dataset: Dataset, value: Any) -> None:
    source = dataset()
    with pytest.raises(CheckpointDamagedError, match="the state's position is"):
        source.load_state_dict(source.state_dict() | {"position": value})


def test_set_epoch_moves_nothing(dataset: Dataset) -> None:
    source = dataset()
    next(iter(source))
    state = source.state_dict()
    for epoch in (0, 1, 7):
        source.set_epoch(epoch)
        assert source.state_dict() == state


def test_checkpoints_of_ranks_merge_and_resume_on_another_number_of_ranks(data: str, dataset: Dataset) -> None:
    ranks = [dataset(rank=rank, world_size=4) for rank in range(4)]
    for source in ranks:
        for _ in zip(range(6), source, strict=False):
            pass
    whole = merge_checkpoints([source.checkpoint() for source in ranks])
    resumed = dataset(rank=1, world_size=2)
    resumed.resume(whole)
    assert rows_of(resumed) == [rows[2:] for rows in plain(data)[6:]]


def test_a_state_of_another_run_is_refused(dataset: Dataset) -> None:
    with pytest.raises(CheckpointMismatchError, match="seed"):
        dataset().load_state_dict(dataset(seed=6).state_dict())


def test_a_closed_dataset_says_so(dataset: Dataset) -> None:
    with dataset() as source:
        next(iter(source))
    source.close()
    with pytest.raises(LoaderClosedError):
        next(iter(source))
    unused = dataset()
    unused.close()
    with pytest.raises(LoaderClosedError):
        unused.state_dict()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda source: pickle.loads(pickle.dumps(source))])
def test_a_copy_goes_on_by_itself_from_the_same_position(data: str, dataset: Dataset, duplicate: Any) -> None:
    source, expected = dataset(), plain(data)
    next(iter(source))
    with duplicate(source) as other:
        assert rows_of(other) == rows_of(source) == expected[1:]


# ── what a DataLoader may do with it ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"batch_size": 8}])
def test_a_data_loader_that_would_stack_batches_is_refused(
    dataset: Dataset, workers: int, options: dict[str, Any]
) -> None:
    context = "fork" if workers else None
    with pytest.raises(ConfigError, match=r"write DataLoader\(dataset, batch_size=None\)"):
        next(iter(DataLoader(dataset(), num_workers=workers, multiprocessing_context=context, **options)))


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_come_out_of_a_data_loader_as_plain_dicts(dataset: Dataset, workers: int) -> None:
    context = "fork" if workers else None
    loader = DataLoader(dataset(), batch_size=None, num_workers=workers, multiprocessing_context=context)
    assert type(next(iter(loader))) is dict
    assert type(copy.copy(next(iter(dataset())))) is dict


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_whose_batches_come_as_they_are_ready_are_refused(
    dataset: Dataset, method: str, persistent: bool
) -> None:
    loader = loader_of(dataset(with_state=True), 2, method, in_order=False, persistent_workers=persistent)
    with pytest.raises(ConfigError, match="leave in_order=False out"):
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_single_reader_is_in_order_whatever_it_was_told(data: str, dataset: Dataset, workers: int) -> None:
    context = "fork" if workers else None
    source = dataset(with_state=True)
    loader = DataLoader(source, batch_size=None, num_workers=workers, multiprocessing_context=context, in_order=False)
    items = [item for _, item in zip(range(4), loader, strict=False)]
    source.load_state_dict(items[-1]["state"])
    assert rows_of([*items, *loader]) == plain(data)


# Where no file can grow, there is no shared memory: what a full or read-only /dev/shm comes to.
NO_SHARED_MEMORY = """
    import pickle, resource, sys
    from torch.utils.data import DataLoader
    from parquet_loader import ConfigError, build_index
    from parquet_loader.torch import TokenDataset

    def no_room(worker=0):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    run = {"seq_len": 8, "lanes": 4, "threads": 2, "index": build_index(sys.argv[1])}  # no cache can be written later
    """


def test_without_workers_no_shared_memory_is_needed(data: str) -> None:
    program = """
    no_room()
    with TokenDataset(sys.argv[1], **run) as dataset:
        assert len(list(DataLoader(dataset, batch_size=None))) == 15
        pickle.loads(pickle.dumps(dataset)).close()
    """
    run(NO_SHARED_MEMORY + program, data)


def test_workers_that_find_no_shared_memory_say_so(data: str) -> None:
    program = """
    dataset = TokenDataset(sys.argv[1], **run)
    options = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "fork"}
    try:
        next(iter(DataLoader(dataset, worker_init_fn=no_room, **options)))
    except ConfigError as error:
        print(str(error).splitlines()[-1])
    """
    said = run(NO_SHARED_MEMORY + program, data)
    assert "no shared memory for 256 bytes" in said
    assert "use num_workers=0" in said


# ── DataLoader workers ───────────────────────────────────────────────────────────────────────────────────────────


def steps_of(items: Iterable[dict[str, Any]], workers: int) -> list[list[list[int]]]:
    """The rows of each step, put together from the batches of the workers, which come in turn."""
    rows = rows_of(items)
    return [list(chain(*rows[step : step + workers])) for step in range(0, len(rows), workers)]


@pytest.mark.parametrize(
    ("workers", "method"), [(1, "fork"), (2, "fork"), (4, "fork"), (2, "forkserver"), (1, "spawn")]
)
def test_workers_read_every_token_once_in_the_order_of_the_run(
    data: str, dataset: Dataset, workers: int, method: str
) -> None:
    items = list(loader_of(dataset(), workers, method))
    assert sorted(token for item in items for token in item["input_ids"].flatten().tolist()) == list(range(TOKENS))
    assert steps_of(items, workers) == plain(data)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_start_where_the_dataset_is_and_on_its_rank(data: str, dataset: Dataset, method: str) -> None:
    source = dataset(rank=1, world_size=2)
    for _ in zip(range(4), source, strict=False):
        pass
    assert steps_of(loader_of(source, 2, method), 2) == [rows[2:] for rows in plain(data)[4:]]


def test_a_worker_may_have_helpers(data: str, dataset: Dataset) -> None:
    assert rows_of(loader_of(dataset(processes=1), 1)) == plain(data)


def test_persistent_workers_go_on_to_the_next_epoch(data: str, dataset: Dataset) -> None:
    loader = loader_of(dataset(), 2, persistent_workers=True)
    assert [steps_of(loader, 2) for _ in range(2)] == [plain(data), plain(data, epochs=2)[STEPS:]]


def test_what_the_loader_counts_is_told(dataset: Dataset) -> None:
    source = dataset()
    for _ in zip(range(2), source, strict=False):
        pass
    assert source.stats()["batches"] == 2


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_what_workers_have_taken_over_is_not_told_wrongly_nor_given_out_twice(
    data: str, dataset: Dataset, method: str
) -> None:
    source = dataset()
    assert next(iter(loader_of(source, 1, method)))["input_ids"].tolist() == plain(data)[0]
    for wrong in (
        source.state_dict,
        source.checkpoint,
        lambda: source.epoch,
        source.stats,
        lambda: next(iter(source)),
        lambda: next(iter(loader_of(source, 1, method))),
    ):
        with pytest.raises(CheckpointError, match="persistent_workers=True"):
            wrong()
    with copy.deepcopy(source) as other:
        assert rows_of(other) == plain(data)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_of_workers_follow_each_other(data: str, dataset: Dataset, method: str, persistent: bool) -> None:
    source = dataset()
    loader = loader_of(source, 2, method, persistent_workers=persistent)
    for epoch in range(2):
        assert steps_of(loader, 2) == plain(data, epochs=2)[epoch * STEPS : (epoch + 1) * STEPS]
        assert source.epoch == epoch + 1
    assert rows_of(source) == plain(data, epochs=3)[2 * STEPS :]  # and this process goes on after them
    assert steps_of(loader, 2) == plain(data, epochs=4)[3 * STEPS :]  # as they do after it


def test_new_workers_go_on_where_as_many_have_ended_their_epoch(data: str, dataset: Dataset) -> None:
    loader = loader_of(dataset(), 2)
    assert [steps_of(loader, 2), steps_of(loader, 2)] == [plain(data), plain(data, epochs=2)[STEPS:]]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("pin", [False, True])
def test_an_iteration_of_workers_that_is_broken_off_goes_on_from_the_state_of_its_last_batch(
    data: str, dataset: Dataset, persistent: bool, pin: bool
) -> None:
    if pin and not torch.cuda.is_available():
        pytest.skip("pinning memory needs a GPU")
    source = dataset(with_state=True)
    loader = loader_of(source, 2, persistent_workers=persistent, prefetch_factor=3, pin_memory=pin)
    found: list[dict[str, Any]] = []
    for stop in (4, 10, 2):  # PyTorch drops what the workers have read ahead of these
        found += [item for _, item in zip(range(stop), loader, strict=False)]
        source.load_state_dict(found[-1]["state"])
        assert source.state_dict() == found[-1]["state"]
    found += loader
    assert steps_of(found, 2) == plain(data)


def test_persistent_workers_do_not_go_on_by_themselves_after_an_iteration_that_was_broken_off(dataset: Dataset) -> None:
    loader = loader_of(dataset(), 2, persistent_workers=True)
    next(iter(loader))
    with pytest.raises(CheckpointError, match="broken off"):
        next(iter(loader))


def test_another_number_of_workers_does_not_go_on_by_itself(data: str, dataset: Dataset) -> None:
    source = dataset()
    list(loader_of(source, 2))
    with pytest.raises(CheckpointError, match="2 DataLoader workers"):
        next(iter(loader_of(source, 1)))
    source.load_state_dict(source.state_dict())
    assert steps_of(loader_of(source, 1), 1) == plain(data, epochs=2)[STEPS:]


def test_the_state_of_a_batch_from_workers_makes_a_part_that_merges(data: str, dataset: Dataset) -> None:
    parts = []
    for rank in range(2):
        source = dataset(rank=rank, world_size=2, with_state=True)
        items = [item for _, item in zip(range(2 * 6), loader_of(source, 2), strict=False)]
        parts.append(source.checkpoint(items[-1]["state"]))
    resumed = [dataset(rank=rank, world_size=3, uneven=True) for rank in range(3)]
    for source in resumed:
        source.resume(merge_checkpoints(parts))
    assert [list(chain(*rows)) for rows in zip(*map(rows_of, resumed), strict=True)] == plain(data)[6:]


def test_states_from_workers_lose_nothing_and_repeat_less_than_a_step(data: str, dataset: Dataset) -> None:
    expected = plain(data)
    for number, item in enumerate(loader_of(dataset(with_state=True), 2)):
        if number < 2 * STEPS - 1:
            with dataset() as other:  # closed at once, or all would read ahead together
                other.load_state_dict(item["state"])
                assert rows_of(other) == expected[(number + 1) // 2 :]


def test_workers_that_cannot_share_the_lanes_are_told_what_would_work(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="use a num_workers that divides 2"):
        next(iter(loader_of(dataset(rank=0, world_size=2), 4)))


# ── process groups ───────────────────────────────────────────────────────────────────────────────────────────────


def train_rank(rank: int, _: Path, data: str, unpickled: bytes) -> Any:
    """What one rank of two does, in a process of its own."""
    pickled = pickle.dumps(TokenDataset(data, **RUN))
    source = pickle.loads(unpickled)  # was asked for its length before there was a process group: of rank 0 of 1 then
    found = {
        "alone": rows_of(source),
        "workers": steps_of(loader_of(TokenDataset(data, **RUN), 2), 2),
    }
    if rank:  # a server of its own, which takes seconds
        found["started"] = steps_of(loader_of(TokenDataset(data, **RUN), 1, "forkserver"), 1)
    part = source.checkpoint()
    torch.distributed.destroy_process_group()
    return found | {"pickled": rows_of(pickle.loads(pickled)), "part": part}


def test_rank_and_world_size_come_from_the_process_group(data: str, tmp_path: Path) -> None:
    with TokenDataset(data, **RUN) as source:
        assert len(source) == STEPS
        found = on_ranks(tmp_path, 2, train_rank, data, pickle.dumps(source))
    for rank in range(2):
        expected = [rows[2 * rank : 2 * rank + 2] for rows in plain(data)]
        for way in ("alone", "workers", "pickled", *(["started"] if rank else [])):
            assert found[rank][way] == expected, way
    merge_checkpoints([found[1]["part"], found[0]["part"]])


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import parquet_loader, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
