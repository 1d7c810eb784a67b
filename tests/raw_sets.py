"""Sets of raw token ids as people have them, written from the formats' descriptions."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Documents = Sequence[Sequence[int]]

MEGATRON_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def flat(documents: Documents, eos_id: int | None = None) -> list[int]:
    """The ids of documents, one after another."""
    end = [] if eos_id is None else [eos_id]
    return [token for document in documents for token in [*document, *end]]


def write_shards(
    folder: Path, files: Sequence[Documents], *, eos_id: int, dtype: str = "uint16", meta: bool = True
) -> Path:
    """``chunk_*.bin``, each of whole documents that end with EOS, and a ``meta.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, documents in enumerate(files):
        ids = np.array(flat(documents, eos_id), dtype)
        name = f"chunk_{number:06d}.bin"
        ids.tofile(folder / name)
        entries.append({"file": name, "tokens": len(ids), "dtype": dtype, "eos_token_id": eos_id})
    if meta:
        (folder / "meta.json").write_text(json.dumps(entries))
    return folder


def write_llm_c(path: Path, ids: Sequence[int], *, wide: bool = False) -> None:
    """The ``.bin`` of llm.c: 256 int32 of header, and the ids."""
    head = np.zeros(256, "<i4")
    head[:3] = (20240801, 7, len(ids)) if wide else (20240520, 1, len(ids))
    path.write_bytes(head.tobytes() + np.array(ids, "<u4" if wide else "<u2").tobytes())


def write_megatron(
    path: Path,
    documents: Sequence[Documents],
    *,
    dtype: str = "uint16",
    entries: bool = True,
    modes: bool = False,
) -> None:
    """Megatron's pair: ``NAME.bin`` and ``NAME.idx``, of documents that are sequences.

    What `IndexedDatasetBuilder` does, by the order of its index: header, lengths, pointers, entries.
    """
    sequences = [sequence for document in documents for sequence in document]
    np.array(flat(sequences), dtype).tofile(path.with_suffix(".bin"))
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * np.dtype(dtype).itemsize
    borders: npt.NDArray[Any] = np.cumsum([0, *(len(document) for document in documents)])
    if not entries:
        borders = borders[:0]
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, MEGATRON_CODES[dtype], len(lengths), len(borders))
    body = head + lengths.tobytes() + pointers.astype("<i8").tobytes() + borders.astype("<i8").tobytes()
    path.with_suffix(".idx").write_bytes(body + (bytes(len(lengths)) if modes else b""))


def random_files(rng: np.random.Generator, *, vocab_size: int = 400, most_files: int = 5) -> list[list[list[int]]]:
    """Documents of a few files, some of them empty; none holds 0, which is free to be the EOS."""
    return [
        [
            rng.integers(1, vocab_size, int(rng.integers(0, rng.choice([3, 20, 120])))).tolist()
            for _ in range(int(rng.integers(1, 60)))
        ]
        for _ in range(int(rng.integers(1, most_files + 1)))
    ]
