"""What costs a run time, memory or randomness though it works, from the index alone: `ParquetLoader.remarks`. Of raw
files also what their ``meta.json`` says and the run does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from .engine.config import EngineConfig
from .engine.cost import required_bytes
from .formats.raw import said_eos
from .index.index import DatasetIndex
from .options import LoaderOptions
from .order.order import Order
from .storage.base import Storage
from .storage.opening import FsspecStorage, LocalStorage

__all__ = ["in_words", "of_growth", "of_streams", "read_amplification", "remarks"]

_GOOD_TOKENS = 64_000_000  # of a window: 64 row groups of a million tokens
_FEW_BATCHES = 4  # a window of fewer global batches mixes little
_FEW_TOKENS = 4_000_000
_MUCH = 4.0  # times the set's bytes, read by all ranks together
_MUCH_PADDING = 0.05


def remarks(configs: Mapping[str, EngineConfig], options: LoaderOptions, world_size: int) -> Iterator[tuple[str, str]]:
    """(Source, sentence) pairs, each of which says what would be better; none where all is well.

    Args:
        configs: what engines run on, by source; a set alone is called "".
        options: of the loader.
        world_size: ranks of the run.
    """
    for name, config in configs.items():
        found = (
            *config.index.remarks(),
            *of_streams(config.index, config.storage, config.eos_id),
            *_of_the_rows(config),
            *(() if name else _of_the_batch(config, options)),  # a source's rows are but a part of a batch
            *_of_the_window(config, options.seq_len),
            *_of_the_ranks(config, world_size),
        )
        for remark in found:
            yield name, remark


def in_words(name: str, remark: str) -> str:
    """A remark that says which source of a mixture it is of."""
    return f"source {name!r}: {remark}" if name else remark


def of_growth(storage: Storage) -> Iterator[str]:
    """What to say of a set that is still being written, which has just been listed."""
    if isinstance(storage, (LocalStorage, FsspecStorage)) and storage.still_grows:
        if storage.writer_failed is None:
            yield f"{storage.root} is still being written: this is of the files that are there, and more will come"
        else:
            yield (
                f"{storage.root} is not complete, as its writer has failed: {storage.writer_failed}; this is of the "
                f"files that are there, and more will come once it is run again"
            )


def of_streams(index: DatasetIndex, storage: Storage, eos_id: int | None) -> Iterator[str]:
    """What to say of the id that ends the documents of a stream.

    Args:
        index: of the set; only of a stream there is something to say.
        storage: where it lies.
        eos_id: what is to end them; None where it was not given.
    """
    if not index.is_stream:
        return
    said = said_eos(storage, index.files)
    if eos_id is None:
        which = ", the id that ends each of them" if said is None else f"={said.eos_id}, as {said.path} says"
        yield (
            f"nothing tells the documents of {index.files[0].path} apart, so that a row group of "
            f"{int(index.tokens.max(initial=0)):,} tokens is shuffled as one: give eos_id{which}"
        )
    elif said is not None and said.eos_id != eos_id:
        yield (
            f"{said.path} says that {said.eos_id} ends documents, and eos_id={eos_id} is given: give "
            f"eos_id={said.eos_id}, or mend what it says"
        )


def _of_the_rows(config: EngineConfig) -> Iterator[str]:
    rows = config.rows
    if rows is None:
        return
    held, room = int(config.index.tokens.sum()), int(config.index.rows.sum()) * rows.width
    if room - held > _MUCH_PADDING * room:
        yield (
            f"{1 - held / room:.0%} of its rows is padding, which weights and epochs count as tokens: they hold "
            f"{held / config.index.rows.sum():,.0f} ids in the mean, and have room for {rows.width:,}; pack them with "
            f"`python -m parquet_loader.pretokenize.convert --pack best-fit --seq-len {rows.width}`"
        )


def read_amplification(order: Order, chunk_bytes: np.ndarray[tuple[int], np.dtype[np.int64]], ranks: int) -> float:
    """About how many times the set's bytes all ranks together read in an epoch.

    The R - 1 borders between ranks lie evenly in a window's tokens, so that a row group with a share f of them is read
    by 1 + (R - 1) f ranks in the mean. Each row group is taken with others of mean size.
    """
    tokens, groups = order.group_tokens.astype(np.float64), len(order.group_tokens)
    others = min(order.window, groups) - 1
    beside = (order.total - tokens) * (others / max(1, groups - 1))
    share = tokens / np.maximum(tokens + beside, 1)
    return 1 + (ranks - 1) * float((chunk_bytes * share).sum() / max(1, chunk_bytes.sum()))


def _of_the_batch(config: EngineConfig, options: LoaderOptions) -> Iterator[str]:
    order, seq_len, tail = config.order, options.seq_len, options.tail
    ends = config.epochs is not None  # an endless run continues with the next epoch
    beyond = options.overlap if ends and tail == "drop" and not order.row_tokens else 0
    batch = order.lanes * (seq_len + beyond)
    tokens = order.total_tokens * (config.epochs or 1)
    if tokens >= batch:
        return
    what = "an epoch" if config.epochs is None else f"a run of epochs={config.epochs}"
    if config.epochs is None:
        so = "so documents come several times in a batch"
    elif tail == "drop":
        so = "so with tail='drop' no batch comes at all"
    else:
        so = "so its only batch is filled up with padding"
    largest = {"seq_len": tokens // order.lanes - beyond, "lanes": tokens // (seq_len + beyond)}
    if order.row_tokens:
        del largest["seq_len"]
    cures = [f"{name}={value}" for name, value in largest.items() if value > 0]
    yield (
        f"{what} holds {tokens:,} tokens, fewer than the {batch:,} of a global batch of {order.lanes:,} rows of "
        f"{seq_len + beyond:,}, {so}; use {' or '.join([*cures, 'a larger set'])}"
    )


def _of_the_window(config: EngineConfig, seq_len: int) -> Iterator[str]:
    order, groups = config.order, len(config.index)
    mean = order.total_tokens / groups
    enough = max(_FEW_TOKENS, _FEW_BATCHES * order.lanes * seq_len)
    if order.window >= groups or order.window * mean >= enough:
        return
    better = min(groups, int(np.ceil(max(_GOOD_TOKENS, enough) / mean)))
    needed = required_bytes(config, better)
    budget = f" and budget_bytes={needed}" if needed > config.budget_bytes else ""
    yield (
        f"a window of {order.window:,} row groups holds {int(order.window * mean):,} tokens, "
        f"{int(order.window * mean) // order.lanes:,} a lane: it mixes few "
        f"{'rows' if order.row_tokens else 'documents, and cuts one a lane in two'}; in a new run use "
        f"window={better}{budget}"
    )


def _of_the_ranks(config: EngineConfig, world_size: int) -> Iterator[str]:
    order, chunk_bytes = config.order, config.index.length
    times = read_amplification(order, chunk_bytes, world_size)
    if times <= _MUCH:
        return
    wider = order
    while (read := read_amplification(wider, chunk_bytes, world_size)) > _MUCH and wider.window < len(config.index):
        wider = replace(wider, window=min(len(config.index), 2 * wider.window))
    if read <= _MUCH and required_bytes(config, wider.window) <= config.budget_bytes:
        cure = f"in a new run use window={wider.window}"
    else:
        largest = int(order.group_tokens.argmax())
        cure = (
            f"write smaller row groups of equal size (the largest holds "
            f"{order.group_tokens[largest] / order.total:.0%} of the set's tokens)"
        )
    yield (
        f"{world_size:,} ranks together read {times:.1f} times the bytes of the set, since each reads whole row groups "
        f"that others read too; {cure}"
    )
