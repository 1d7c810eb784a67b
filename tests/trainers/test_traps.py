"""Where trainers would lose or double data in silence: each trap with the real trainer, and `TokenBatches` in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from program import recipe
from runs import LANES, RUN, Batches, fork_ranks, plain, together
from tiny import Recorder, Records
from torch.utils.data import DataLoader

from parquet_loader import CheckpointError
from parquet_loader.torch import TokenDataset
from parquet_loader.trainers import TokenBatches

pytestmark = pytest.mark.filterwarnings("ignore")  # what trainers and their packages warn of is theirs

VOCABULARY = 200
needs_torchtitan = pytest.mark.skipif(sys.version_info < (3, 11), reason="torchtitan needs Python 3.11")


def tokens_of(batches: Batches) -> set[int]:
    return set(chain.from_iterable(chain.from_iterable(batches)))


def model_of(tmp_path: Path, name: str) -> Recorder:
    return Recorder(Records(tmp_path / name), VOCABULARY)


# ── accelerate ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_accelerate_cannot_lose_lanes_of_a_prepared_data_loader(data: str, tmp_path: Path) -> None:
    fork_ranks("program_accelerate.py", data, str(tmp_path), ranks=2)
    ranks = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    for rank in ranks:
        for workers in (0, 1):
            assert rank[f"dispatch {workers}"].startswith("accelerate's DataLoaderDispatcher would lose")
            assert rank[f"shard {workers}"].startswith("accelerate's IterableDatasetShard would lose")
    assert together([rank["batches"] for rank in ranks]) == plain(data, 4)


def test_one_process_may_prepare_a_data_loader(data: str) -> None:
    from accelerate import Accelerator

    with TokenDataset(data, **RUN) as dataset:
        loader = Accelerator(cpu=True).prepare(DataLoader(dataset, batch_size=None))
        assert [item["input_ids"].tolist() for item in islice(loader, 4)] == plain(data, 4)


def test_skipping_batches_of_batches_is_refused(data: str) -> None:
    from accelerate import skip_first_batches

    with TokenBatches(data, steps=3, **RUN) as batches, pytest.raises(AttributeError, match="load_state_dict"):
        skip_first_batches(batches, 1)


# ── Hugging Face's Trainer ───────────────────────────────────────────────────────────────────────────────────────


class Watched(TokenBatches):
    """Notes what the Trainer calls."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.epochs_set: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs_set.append(epoch)
        super().set_epoch(epoch)


def arguments_of(folder: Path, steps: int, **options: Any) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        str(folder), max_steps=steps, save_steps=2, report_to="none", disable_tqdm=True, use_cpu=True, **options
    )


def test_the_trainer_sets_epoch_0_on_resume_and_nothing_is_rewound(data: str, tmp_path: Path) -> None:
    trainer_class = recipe("hf_trainer").PretrainingTrainer
    for steps, checkpoint in ((7, None), (9, str(tmp_path / "checkpoint-6"))):
        model = model_of(tmp_path, f"records-{steps}")
        with Watched(data, steps=steps, **RUN) as batches:
            trainer = trainer_class(model, arguments_of(tmp_path, steps), batches=batches)
            assert trainer.args.ignore_data_skip  # the callback's doing: skipping would read what was trained on
            trainer.train(resume_from_checkpoint=checkpoint)
            assert batches.epochs_set == [0]
        done = 6 if checkpoint else 0
        assert model.records.batches() == plain(data, steps)[done:]


def test_the_trainer_cannot_skip_batches_in_silence(data: str, tmp_path: Path) -> None:
    trainer_class = recipe("hf_trainer").PretrainingTrainer
    with TokenBatches(data, steps=4, **RUN) as batches:
        trainer_class(model_of(tmp_path, "a"), arguments_of(tmp_path, 2), batches=batches).train()
    with TokenBatches(data, steps=4, **RUN) as batches:
        trainer = trainer_class(model_of(tmp_path, "b"), arguments_of(tmp_path, 4), batches=batches)
        trainer.args.ignore_data_skip = False
        with pytest.raises(AttributeError, match="ignore_data_skip=True"):
            trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_checkpoint_without_a_position_is_refused(data: str, tmp_path: Path) -> None:
    trainer_class = recipe("hf_trainer").PretrainingTrainer
    with TokenBatches(data, steps=4, **RUN) as batches:
        trainer = trainer_class(model_of(tmp_path, "a"), arguments_of(tmp_path, 2), batches=batches)
        trainer.remove_callback(
            next(each for each in trainer.callback_handler.callbacks if "Position" in type(each).__name__)
        )
        trainer.train()
    with TokenBatches(data, steps=4, **RUN) as batches:
        trainer = trainer_class(model_of(tmp_path, "b"), arguments_of(tmp_path, 4), batches=batches)
        with pytest.raises(CheckpointError, match="saved without position_callback"):
            trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


# ── Lightning ────────────────────────────────────────────────────────────────────────────────────────────────────


class WithoutLength:
    """A dataset as Lightning would be given it, with its own position for a state."""

    def __init__(self, dataset: TokenDataset) -> None:
        self._dataset = dataset
        self.state_dict, self.load_state_dict = dataset.state_dict, dataset.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset)


def fit(loader: Any, tmp_path: Path, name: str, steps: int, checkpoint: str | None = None) -> Batches:
    """What Lightning trains on; its checkpoints are step-2.ckpt, step-4.ckpt, ..."""
    from pytorch_lightning import Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint

    model = model_of(tmp_path, name)
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=[saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(recipe("lightning").Pretraining(model), loader, ckpt_path=checkpoint)
    return model.records.batches()


def test_lightning_skips_a_batch_without_a_length_and_none_of_batches(data: str, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "step=2.ckpt")
    with TokenDataset(data, **RUN) as dataset:
        assert fit(WithoutLength(dataset), tmp_path, "a", 2) == plain(data, 2)
    with TokenDataset(data, **RUN) as dataset:
        assert fit(WithoutLength(dataset), tmp_path, "b", 3, checkpoint) == plain(data, 4)[3:]  # batch 2 is lost
    Path(checkpoint).unlink()
    with TokenBatches(data, steps=9, **RUN) as batches:
        assert fit(batches, tmp_path, "c", 2) == plain(data, 2)
    with TokenBatches(data, steps=9, **RUN) as batches:
        assert fit(batches, tmp_path, "d", 9, checkpoint) == plain(data, 9)[2:]  # across the end of an epoch


def test_lightning_goes_on_with_a_run_that_had_ended(data: str, tmp_path: Path) -> None:
    with TokenBatches(data, steps=4, **RUN) as batches:
        assert fit(batches, tmp_path, "a", 4) == plain(data, 4)
    with TokenBatches(data, steps=8, **RUN) as batches:
        assert fit(batches, tmp_path, "b", 8, str(tmp_path / "step=4.ckpt")) == plain(data, 8)[4:]


# ── torchtitan ───────────────────────────────────────────────────────────────────────────────────────────────────


@needs_torchtitan
def test_torchtitans_own_loader_is_exact_and_refuses_another_degree(data: str) -> None:
    from torchtitan.components.dataloader import ParallelAwareDataloader

    with ExitStack() as stack:

        def loader_of(degree: int) -> Any:
            dataset = stack.enter_context(TokenDataset(data, **RUN, rank=0, world_size=degree))
            options = {"batch_size": None, "collate_fn": lambda item: ({"input": item["input_ids"]}, item["labels"])}
            return ParallelAwareDataloader(dataset, dp_rank=0, dp_world_size=degree, **options)

        def rows_of(items: Any) -> Batches:
            return [labels.tolist() for _, labels in items]

        expected = [rows[: LANES // 2] for rows in plain(data, 6)]  # an epoch
        loader = loader_of(2)
        assert rows_of(islice(loader, 3)) == expected[:3]
        resumed = loader_of(2)
        resumed.load_state_dict(loader.state_dict())
        assert rows_of(resumed) == expected[3:]
        with pytest.raises(AssertionError, match="dp_degree is inconsistent"):
            loader_of(1).load_state_dict(loader.state_dict())


@needs_torchtitan
def test_torchtitan_is_told_the_batch_size_of_another_degree(data: str) -> None:
    config = recipe("torchtitan_loader").ParquetDataLoader.Config(dataset_path=data, lanes=4, steps=3)
    with pytest.raises(ValueError, match="local_batch_size to 2, not 4"):
        config.build(dp_rank=0, dp_world_size=2, tokenizer=None, seq_len=4, local_batch_size=4)
