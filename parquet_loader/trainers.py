"""`TokenBatches`: the batches of a run, for trainers that make the loop and the checkpoints themselves.

    dataset     epoch 0: 0 1 2 3 4 | epoch 1: 5 6 7 8 | epoch 2: 9 ...       an iteration is the rest of an epoch
    batches              0 1 2 3 4            5 6 7 8            9 ...       an iteration is the rest of the run

A mixture has no epochs; its batches are the rest of the run as well.

Trainers differ in how they shard, skip, count epochs and read ahead. What they all can do is to take batches from an
object that they know nothing about, and to keep its state:

- It is no ``DataLoader``, so that nobody wraps it: accelerate would send rank 0's lanes to all ranks, or shard again.
- It has a length, that of the whole run: Lightning reads a batch ahead of one without, and would then skip it.
- It is one long epoch: the epochs of a dataset differ by a batch now and then, and trainers count only the first.
- Its state is that of the last batch it gave, whatever workers have read ahead, and the same on all ranks.

`parquet_loader` needs none of the trainers; what imports one does so when it is called.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from .checkpoint import integer_of
from .errors import CheckpointError, ConfigError
from .options import check_type, integer
from .sets import Component
from .storage.opening import Source
from .torch.dataset import TokenDataset
from .torch.devices import prefetch_to_device

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TokenBatches", "position_callback"]


class TokenBatches:
    """The batches of a whole run, as those of a `TokenDataset`, with the position of the last one given.

    Args:
        source: as for `TokenDataset`.
        steps: global batches of the whole run, from its very beginning: optimizer steps, times those that gradients
            are accumulated over. A resumed run has the same; a larger one makes it longer. What was skipped is not
            among them: `skip` leaves as many steps to come as there were.
        num_workers: DataLoader workers; the loader has threads of its own, so 0 is the usual choice. With n of them a
            step comes as n batches; see `TokenDataset`.
        device: where tensors are sent, the next batch while the one before it is trained on; None leaves that to the
            trainer, which most do themselves.
        worker_options: further arguments of ``DataLoader``, such as ``multiprocessing_context`` and ``pin_memory``.
        options: the other arguments of `TokenDataset`. Rank and world size are those of the process group.

    Raises:
        ConfigError: as for `TokenDataset`; or ``steps`` that are no positive number.
    """

    def __init__(
        self,
        source: Source | Mapping[str, Source | Component],
        *,
        steps: int,
        num_workers: int = 0,
        device: torch.device | str | int | None = None,
        worker_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._steps = integer("steps", steps, 1)
        self._device = device
        self._workers = integer("num_workers", num_workers, 0)
        check_type("worker_options", worker_options, Mapping, type(None))
        self._worker_options = dict(worker_options or {})
        if self._worker_options and not self._workers:
            raise ConfigError(f"worker_options {self._worker_options!r} are for num_workers of 1 or more, not 0")
        if "with_state" in options:
            raise ConfigError("with_state is always on here: TokenBatches keep the state themselves, see state_dict")
        self._tokens = TokenDataset(source, with_state=True, **options)
        self._given = 0  # batches since the run began, n for each step of n workers
        self._state: dict[str, Any] | None = None  # after the last one; None before the first
        self._moved = 0  # how often the position was moved on or the mixture changed: a running loop notices

    # ── iterating ────────────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The batches from the current position to the end of the run."""
        if self._state is not None:
            self._tokens.load_state_dict(self._state)  # what was read ahead of an iteration that was broken off
        loader = self._loader()
        while self._given < len(self):
            epoch, moved = self._tokens.epoch, self._moved
            items = loader if self._device is None else prefetch_to_device(loader, self._device)
            for item in items:
                self._state = item.pop("state")
                self._given += 1
                yield dict(item)
                if self._given >= len(self):
                    return
                if moved != self._moved:
                    break
            else:
                if self._tokens.epoch == epoch:
                    return  # of a run of ``epochs``, which is over

    def _loader(self) -> Any:
        if not self._workers:
            return self._tokens  # a DataLoader would draw from the random numbers of training
        return DataLoader(
            self._tokens,
            batch_size=None,
            num_workers=self._workers,
            generator=torch.Generator(),
            **{"persistent_workers": True, **self._worker_options},
        )

    def __len__(self) -> int:
        """Batches of the whole run on this rank, from its beginning: n for each step of n workers."""
        return self._steps * max(1, self._workers)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: trainers call it, some of them with 0 after a resume, and it never moves the position."""

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # accelerate's skip_first_batches asks for it
            raise AttributeError(
                "TokenBatches has no dataset in which a trainer could skip batches: give its own state to "
                "load_state_dict, and skip none (ignore_data_skip=True of Hugging Face's Trainer)"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, index: int) -> Any:
        raise TypeError("TokenBatches are batches already: give them to the trainer as its loader, not as a dataset")

    # ── position ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was given, and the steps up to there; the same on all ranks."""
        position = self._tokens.state_dict() if self._state is None else self._state
        return {**position, "steps": self._given // max(1, self._workers)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, of any rank of any world size and any number of workers.

        To be called before an iteration, which then begins there.

        Raises:
            CheckpointError: not such a state, or one of another run.
        """
        if not isinstance(state, Mapping) or not {"position", "steps"} <= set(state):
            raise CheckpointError("not a state of TokenBatches, which has a position and steps")
        steps = integer_of(state["steps"])
        if steps is None or steps < 0:
            raise CheckpointError(f"not a state of TokenBatches: its steps are {state['steps']!r}")
        inner = state["position"]  # a whole state in the first of version 1, which is refused by its version
        self._tokens.load_state_dict(inner if isinstance(inner, Mapping) else state)
        self._state = self._tokens.state_dict()
        self._given = steps * max(1, self._workers)

    # ── changing the run ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of a mixture's sources, sorted, which ``sources`` of a batch are places in; empty for one set."""
        return self._tokens.sources

    @property
    def history(self) -> dict[str, list[dict[str, Any]]]:
        """What was done up to the last batch that was given; see `ParquetLoader.history`."""
        loader = copy.copy(self._tokens._open())  # whatever has been read ahead
        if self._state is not None:
            loader.load_state_dict(self._state)
        return loader.history

    def skip(self, batches: int) -> None:
        """Go on after some global batches that nobody gets, from the last batch that was given; also within a loop.

        Every rank must skip as many, after the same step. The state records it. They are no steps: training sees as
        many as it would have.

        Raises:
            ConfigError: no count; or within a step of several workers.
        """
        self._change(lambda: self._tokens.skip(batches))

    def reweight(self, weights: Mapping[str, float]) -> None:
        """Draw a mixture by other weights from the next block on; see `ParquetLoader.reweight`. Also within a loop.

        Raises:
            ConfigError: as there; or within a step of several workers.
        """
        self._change(lambda: self._tokens.reweight(weights))

    def _change(self, change: Callable[[], None]) -> None:
        if self._given % max(1, self._workers):
            raise ConfigError(f"a step of {self._workers} workers is not over: change the run after its last batch")
        if self._state is not None and (self._workers or self._device is not None):
            self._tokens.load_state_dict(self._state)  # what was read ahead is dropped
            self._moved += 1
        change()
        self._state = self._tokens.state_dict()

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """End every thread of this process and let go of all memory. Closing twice is fine."""
        self._tokens.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def position_callback(batches: TokenBatches) -> Any:
    """A callback for Hugging Face's ``Trainer`` that keeps the position in the trainer's own checkpoints.

    It is written with ``trainer_state.json``, by rank 0, and loaded on every rank before the first batch. The Trainer
    is told not to skip batches on its own (``ignore_data_skip``), which it does by reading them.

    Raises:
        CheckpointError: when training resumes from a checkpoint that holds no position, or one of another run.
    """
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class PositionCallback(TrainerCallback, ExportableState):  # type: ignore[misc, unused-ignore]  # untyped there
        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"saved": batches.state_dict()}}

        def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            args.ignore_data_skip = True

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            held = state.stateful_callbacks.get(type(self).__name__)
            if held is not None:
                batches.load_state_dict(held["attributes"]["saved"])
            elif state.global_step:
                raise CheckpointError(
                    f"the Trainer's checkpoint of step {state.global_step} holds no position of the data: it was "
                    "saved without position_callback"
                )

    return PositionCallback()
