"""Accelerators: batches on their way to one, and whose batches a process of a mesh of them gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

__all__ = ["prefetch_to_device"]


def prefetch_to_device(items: Iterable[dict[str, Any]], device: torch.device | str | int) -> Iterator[dict[str, Any]]:
    """Batches with their tensors on a device, each on its way while the one before it is trained on.

    To a GPU they are copied from pinned memory on a stream of their own, which the consumer's waits for. So one batch
    more has been taken than was given out: make the dataset ``with_state=True`` and keep the ``state`` of the batch
    that was trained on last. Whatever is no tensor comes through as it is.

    Args:
        items: a `TokenDataset`, or a ``DataLoader`` of one.
        device: where to.
    """
    device = torch.device(device)
    stream = _stream(device) if device.type == "cuda" else None
    waiting: tuple[dict[str, Any], torch.cuda.Event | None] | None = None
    for item in items:
        coming = _sent(item, device, stream)
        if waiting is not None:
            yield _arrived(*waiting, device)
        waiting = coming
    if waiting is not None:
        yield _arrived(*waiting, device)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]  # untyped in torch


def _sent(
    item: dict[str, Any], device: torch.device, stream: torch.cuda.Stream | None
) -> tuple[dict[str, Any], torch.cuda.Event | None]:
    """The item on its way, and what tells that it is there."""
    if stream is None:
        return {name: value.to(device) if torch.is_tensor(value) else value for name, value in item.items()}, None
    with torch.cuda.stream(stream):
        sent = {
            name: value.pin_memory().to(device, non_blocking=True) if torch.is_tensor(value) else value
            for name, value in item.items()
        }
        return sent, stream.record_event()


def _arrived(item: dict[str, Any], event: torch.cuda.Event | None, device: torch.device) -> dict[str, Any]:
    if event is not None:
        consumer = torch.cuda.current_stream(device)
        consumer.wait_event(event)
        for value in item.values():
            if torch.is_tensor(value):
                value.record_stream(consumer)  # its memory is given to nobody else before the consumer is done
    return item
