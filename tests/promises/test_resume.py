"""A resume repeats nothing and loses nothing, from any moment."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from unique_sets import random_files, unique_groups, write_set

from parquet_loader import ParquetLoader, merge_checkpoints

OPTIONS = dict(seq_len=20, lanes=5, window=3, seed=11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = random_files(np.random.default_rng(2), files=3, groups=4)
    return write_set(tmp_path_factory.mktemp("set"), unique_groups(files))


def epochs(loader: ParquetLoader, count: int):
    """(epoch as the loop saw it, batch) for the rest of the run, up to the end of epoch ``count - 1``."""
    while loader.epoch < count:
        number = loader.epoch
        for batch in loader:
            yield number, batch


def same(found, wanted) -> bool:
    return found[0] == wanted[0] == found[1].epoch and np.array_equal(found[1].tokens, wanted[1].tokens)


@pytest.fixture(scope="module", params=[0, 1], ids=["plain", "overlap"])
def run(folder: Path, request) -> tuple[dict, list, list[bytes]]:
    """A run of three epochs and some more: its options, its batches, and a checkpoint before each."""
    options = {**OPTIONS, "overlap": request.param}
    with ParquetLoader(folder, **options) as loader:
        checkpoints = [merge_checkpoints([loader.checkpoint()])]
        batches = []
        for item in epochs(loader, 4):
            batches.append(item)
            checkpoints.append(merge_checkpoints([loader.checkpoint()]))
    assert len({number for number, _ in batches}) == 4
    return options, batches, checkpoints


def test_from_a_checkpoint_at_every_step_the_rest_is_identical(folder: Path, run) -> None:
    options, batches, checkpoints = run
    of_three = sum(number < 3 for number, _ in batches)
    for step, checkpoint in enumerate(checkpoints[: of_three + 1]):
        with ParquetLoader(folder, **options) as loader:
            loader.resume(checkpoint)
            rest = list(epochs(loader, 3))
        assert len(rest) == of_three - step
        assert all(map(same, rest, batches[step:]))


def test_a_checkpoint_right_after_an_epochs_end_goes_on_with_the_next(folder: Path, run) -> None:
    options, batches, _ = run
    with ParquetLoader(folder, **options) as loader:
        for _ in loader:
            pass
        ended = loader.checkpoint()
    with ParquetLoader(folder, **options) as loader:
        loader.resume(ended)
        assert loader.epoch == 1
        second = [(1, batch) for batch in loader]
    expected = [item for item in batches if item[0] == 1]
    assert len(second) == len(expected)
    assert all(map(same, second, expected))


def test_the_last_states_of_one_epoch_and_the_first_of_the_next_differ_by_a_batch(folder: Path, run) -> None:
    options, batches, _ = run
    first_epoch = [batch for number, batch in batches if number == 0]
    with ParquetLoader(folder, **options) as loader:
        loader.load_state_dict(first_epoch[-2].state)
        assert [batch.tokens.tolist() for batch in loader] == [first_epoch[-1].tokens.tolist()]
        assert next(iter(loader)).tokens.tolist() == batches[len(first_epoch)][1].tokens.tolist()


def test_three_resumes_deep_the_rest_is_identical(folder: Path, run) -> None:
    options, batches, _ = run
    checkpoint = None
    for begin, end in itertools.pairwise([0, 4, 11, len(batches) - 2, len(batches)]):
        with ParquetLoader(folder, **options) as loader:
            if checkpoint is not None:
                loader.resume(checkpoint)
            found = list(itertools.islice(epochs(loader, 4), end - begin))
            checkpoint = loader.checkpoint()
        assert len(found) == end - begin
        assert all(map(same, found, batches[begin:end]))


def test_batch_state_is_exact_while_a_consumer_reads_ahead(folder: Path, run) -> None:
    options, batches, _ = run
    with ParquetLoader(folder, **options) as loader:
        ahead = list(itertools.islice(epochs(loader, 4), 12))
    trained = ahead[6][1]  # five more have been read and not been trained on
    with ParquetLoader(folder, **options) as loader:
        loader.load_state_dict(trained.state)
        found = list(itertools.islice(epochs(loader, 4), 8))
    assert all(map(same, found, batches[7:15]))


def test_a_state_can_be_loaded_before_iteration_has_begun(folder: Path, run) -> None:
    options, batches, _ = run
    with ParquetLoader(folder, **options) as loader:
        iterator = iter(loader)
        loader.load_state_dict(batches[3][1].state)
        assert same((loader.epoch, next(iterator)), batches[4])


def test_a_state_can_be_loaded_after_iteration_has_begun(folder: Path, run) -> None:
    options, batches, _ = run
    with ParquetLoader(folder, **options) as loader:
        for number, _ in enumerate(epochs(loader, 4)):
            if number == 8:
                break
        loader.load_state_dict(batches[2][1].state)
        assert all(map(same, itertools.islice(epochs(loader, 4), 5), batches[3:8]))


def test_a_running_loop_moves_along_when_a_state_is_loaded(folder: Path, run) -> None:
    options, batches, _ = run
    second_epoch = [batch for number, batch in batches if number == 1]
    with ParquetLoader(folder, **options) as loader:
        seen = []
        for batch in loader:
            seen.append(batch)
            if len(seen) == 3:
                loader.load_state_dict(second_epoch[0].state)
        assert loader.epoch == 2
    assert [b.tokens.tolist() for b in seen[3:]] == [b.tokens.tolist() for b in second_epoch[1:]]


def test_breaking_off_and_iterating_again_goes_on_with_the_next_batch(folder: Path, run) -> None:
    options, batches, _ = run
    found = []
    with ParquetLoader(folder, **options) as loader:
        while loader.epoch < 4:
            number = loader.epoch
            for batch in loader:
                found.append((number, batch))
                if len(found) % 3 == 0:
                    break
    assert len(found) == len(batches)
    assert all(map(same, found, batches))


def test_states_are_plain_fresh_and_the_same_on_every_rank(folder: Path) -> None:
    loaders = [ParquetLoader(folder, rank=rank, world_size=5, **OPTIONS) for rank in range(5)]
    batches = [next(iter(loader)) for loader in loaders]
    states = [batch.state for batch in batches] + [loader.state_dict() for loader in loaders]
    assert all(json.loads(json.dumps(state)) == states[0] for state in states)
    states[0]["position"] = -5
    assert loaders[0].state_dict() == states[1]
    assert batches[0].state is not loaders[0].state_dict()
    for loader in loaders:
        loader.close()


def test_a_loader_that_never_delivered_gives_the_state_of_the_beginning(folder: Path, run) -> None:
    options, batches, _ = run
    with ParquetLoader(folder, **options) as fresh:
        state = fresh.state_dict()
    with ParquetLoader(folder, **options) as loader:
        next(iter(loader))
        loader.load_state_dict(state)
        assert same((loader.epoch, next(iter(loader))), batches[0])


def test_len_is_the_batches_of_the_epoch_wherever_the_loader_is_in_it(folder: Path, run) -> None:
    options, batches, _ = run
    with ParquetLoader(folder, **options) as loader:
        for epoch in range(3):
            expected = sum(number == epoch for number, _ in batches)
            assert len(loader) == expected
            for _ in loader:
                assert len(loader) == expected or loader.epoch != epoch


def test_a_set_smaller_than_a_batch_is_still_endless(tmp_path: Path) -> None:
    write_set(tmp_path, unique_groups([[[3, 2]]]))
    with ParquetLoader(tmp_path, seq_len=8, lanes=4, seed=3) as loader:
        batches = list(itertools.islice(_forever(loader), 10))
    delivered = np.concatenate([batch.tokens for batch in batches], axis=1)
    assert delivered.shape == (4, 80)
    assert all(delivered[lane, :].min() >= 0 and delivered[lane].max() < 5 for lane in range(4))
    # 320 tokens are 64 epochs of 5; lane i has received (64 * 5 + i) // 4 = 80 by then, so every token came 64 times.
    assert np.bincount(delivered.ravel(), minlength=5).tolist() == [64] * 5
    assert [batch.epoch for batch in batches] == sorted({batch.epoch for batch in batches})
    with ParquetLoader(tmp_path, seq_len=8, lanes=4, seed=3) as loader:
        loader.load_state_dict(batches[4].state)
        rest = list(itertools.islice(_forever(loader), 5))
    assert [b.tokens.tolist() for b in rest] == [b.tokens.tolist() for b in batches[5:]]


def _forever(loader: ParquetLoader):
    while True:
        yield from loader
