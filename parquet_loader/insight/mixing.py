"""How documents of a source are cut and shuffled in an epoch, from the index alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..engine.config import EngineConfig
from ..options import LoaderOptions

__all__ = ["Cuts", "ShufflePlan", "cuts_of", "shuffle_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How documents of a source are cut, in an epoch.

    Attributes:
        documents: of the set; the index tells.
        mean_tokens: of a document.
        lane_borders: places at which lanes' borders cut windows; exact in the mean of epochs.
        cut_by_lanes: documents that one of them falls in, about.
        rows: of this source.
        in_several_rows: the share of documents that lie in more than one row, if all of a row group are of its mean
            length. Where some are far longer than others, it is less.
        documents_in_a_row: with pieces of documents counted as such, about.
    """

    documents: int
    mean_tokens: float
    lane_borders: int
    cut_by_lanes: float
    rows: float
    in_several_rows: float
    documents_in_a_row: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShufflePlan:
    """How well a source is shuffled; docs/order.md tells what these numbers were measured to mean.

    Attributes:
        window: row groups that are shuffled together, as the run has it: there may be fewer.
        row_groups: that there are.
        window_tokens: that a window holds, in the mean.
        share: of the set that a window is; 1 mixes as well as chance, or better.
        rows_of_window: of a lane. A document's rows all come within them.
        draws: about as many independent draws a batch is, of a set that is sorted: places of the set that its rows
            come from. Where documents are stored in random order it does not matter.
        shown_before: the share of the tokens whose document was in its lane's row just before, if all documents were
            of mean length; long ones make it more. None where that is not known, as of a stream.
    """

    window: int
    row_groups: int
    window_tokens: int
    share: float
    rows_of_window: float
    draws: int
    shown_before: float | None


def cuts_of(config: EngineConfig, options: LoaderOptions) -> Cuts | None:
    """How an epoch of a source cuts its documents; None where nobody knows how many there are, as of a stream."""
    order, index = config.order, config.index
    documents = index.documents
    if documents is None:
        return None
    windows = -(-len(index) // order.window)
    borders = windows * (order.lanes - 1)
    if order.row_tokens:
        return Cuts(
            documents=documents,
            mean_tokens=int(index.tokens.sum()) / documents,
            lane_borders=borders,
            cut_by_lanes=0.0,
            rows=float(documents),
            in_several_rows=0.0,
            documents_in_a_row=1.0,
        )
    # A border lies at the begin of a document as often as documents begin among tokens.
    filled = np.minimum(index.rows, order.group_tokens)
    inside = 1 - float(filled.sum()) / order.total
    rows = order.total / options.seq_len
    lengths = order.group_tokens / np.maximum(1, filled)
    several = np.minimum(1, np.maximum(0, lengths - 1) / options.seq_len)
    return Cuts(
        documents=documents,
        mean_tokens=order.total / max(1, documents),
        lane_borders=borders,
        cut_by_lanes=min(borders * inside, float(documents)),
        rows=rows,
        in_several_rows=float((several * filled).sum() / max(1, filled.sum())),
        documents_in_a_row=(documents + (borders + rows) * inside) / rows,
    )


def shuffle_of(config: EngineConfig, options: LoaderOptions) -> ShufflePlan:
    """How well an epoch of a source is shuffled."""
    order, groups = config.order, len(config.index)
    window = min(order.window, groups)
    window_tokens = order.total_tokens * window // groups
    rows = window_tokens / order.lanes / options.seq_len
    draws = min(order.lanes, window)
    before = None
    if order.row_tokens:
        before = 0.0
    elif config.index.documents is not None:
        rows_of_document = order.total / max(1, config.index.documents) / options.seq_len
        before = min(1.0, rows_of_document / max(1.0, rows))
        if not order.shuffle:  # what a row begins with goes on from the row before
            before = 1 - 1 / rows_of_document / 2 if rows_of_document > 1 else rows_of_document / 2
    return ShufflePlan(
        window=order.window,
        row_groups=groups,
        window_tokens=window_tokens,
        share=window / groups,
        rows_of_window=rows,
        draws=draws,
        shown_before=before,
    )
