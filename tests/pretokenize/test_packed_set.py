"""What `pretokenize --pack` writes is what a loader takes as it is."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from parquet_loader import ParquetLoader
from parquet_loader.pretokenize import PretokenizeOptions, pretokenize

SEQ_LEN = 32


def test_documents_that_fit_in_a_row_come_whole_and_once_an_epoch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [f"{number}:" + "x" * int(length) for number, length in enumerate(rng.integers(0, 28, 400))]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = PretokenizeOptions(
        inputs=(str(tmp_path / "in.jsonl"),),
        output=str(tmp_path / "rows"),
        tokenizer="bytes",
        pack="best-fit",
        seq_len=SEQ_LEN + 1,
        pack_buffer_tokens=2_000,
        row_group_tokens=1_000,
    )
    pretokenize(options)
    run = dict(seq_len=SEQ_LEN, overlap=1, packing="rows", pad_id=0, aligned=["document_ids"], column="tokens")
    came = []
    for rank in range(2):
        with ParquetLoader(tmp_path / "rows", lanes=4, rank=rank, world_size=2, epochs=1, **run) as loader:
            for batch in loader:
                lengths = np.full(len(batch.tokens), SEQ_LEN + 1) if batch.lengths is None else batch.lengths
                splits, starts = batch.document_starts()
                for row, length, (low, high) in zip(batch.tokens, lengths, pairwise(splits), strict=True):
                    borders = [*starts[low:high].tolist(), length]
                    came += [bytes(row[a:b].astype(np.uint8)).decode() for a, b in pairwise(borders)]
    assert sorted(came) == sorted(texts)
