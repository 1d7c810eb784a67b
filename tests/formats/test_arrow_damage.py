"""Arrow files with flipped bits, wrong numbers and lost ends: an error, or ids that the vocabulary has. Nothing else.

ARROW_DAMAGES=3000 in the environment makes more of them than usual.
"""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from arrow_files import FORMS, ipc

from parquet_loader import ConfigError, DataError, StorageError
from parquet_loader.formats.arrow import ARROW, decode
from parquet_loader.formats.base import Counting, CountingBudget
from parquet_loader.index.index import DatasetIndex, assemble
from parquet_loader.storage import open_storage

DAMAGES = int(os.environ.get("ARROW_DAMAGES", "1500"))
VOCABULARY = 1_000
MOST_BYTES = 32 << 20  # the files have some thousand


def whole_files() -> list[bytes]:
    """Small files of every form, codec and kind of list, with a column before the tokens."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, VOCABULARY, rng.integers(0, 30)).tolist() for _ in range(60)]
    documents[7] = None
    files = []
    for number, kind in enumerate((pa.list_, pa.large_list, pa.list_view, pa.large_list_view, None)):
        if kind is None:
            tokens = pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 900, 240), pa.int32()), 4)
        else:
            tokens = pa.array(documents, kind([pa.int32(), pa.uint16(), pa.int64(), pa.int16()][number]))
        table = pa.table({"text": ["word"] * 60, "tokens": tokens})
        rows = 60 if kind in (pa.list_view, pa.large_list_view) else 20
        for form in FORMS:
            files += [ipc(table, form=form, codec=codec, rows=rows) for codec in (None, "lz4", "zstd")]
    return files


def flip(data: bytearray, rng: np.random.Generator) -> None:
    """One to three bits, as likely in metadata as anywhere."""
    for _ in range(int(rng.integers(1, 4))):
        data[place_in(data, rng)] ^= 1 << int(rng.integers(8))


def place_in(data: bytearray, rng: np.random.Generator) -> int:
    end = min(len(data), int(rng.choice([600, len(data)])))
    return int(rng.integers(end)) if rng.random() < 0.7 else len(data) - 1 - int(rng.integers(end))


def put_number(data: bytearray, rng: np.random.Generator) -> None:
    """A number as damage would not make it, but somebody might."""
    width = int(rng.choice([1, 2, 4, 8]))
    place = place_in(data, rng) // width * width
    number = int(rng.choice([0, 1, -1, 2**31 - 1, -(2**31), 2**40, 2**62, 7, 255, 60_000]))
    data[place : place + width] = (number % (1 << 8 * width)).to_bytes(width, "little")


def cut(data: bytearray, rng: np.random.Generator) -> None:
    del data[int(rng.integers(len(data))) :]


def swap(data: bytearray, rng: np.random.Generator) -> None:
    """A stretch is overwritten by another one."""
    length = int(rng.integers(1, 64))
    to, of = place_in(data, rng), int(rng.integers(len(data)))
    stretch = data[of : of + length]
    data[to : to + len(stretch)] = stretch


def index_of(folder: Path) -> DatasetIndex:
    """As `build_index` makes it, without a cache, whose writing would take longest."""
    storage = open_storage(folder)
    [file] = storage.list_files()
    counting = Counting(CountingBudget(MOST_BYTES), False)
    entry = ARROW.reader(storage, [file], None).read(file, "tokens", counting)
    if "tokens" not in entry.columns:
        raise ConfigError("there is no such column")
    index = assemble([file], [entry], "tokens", format="arrow")
    assert np.array_equal(DatasetIndex.from_bytes(index.to_bytes()).numbers, index.numbers)
    return index


def outcome(folder: Path, index: DatasetIndex | None) -> str:
    """What came of reading all of a file, by the index that was made before it was damaged or by its own."""
    try:
        index = index_of(folder) if index is None else index
        storage = open_storage(folder)
        [file] = storage.list_files()
        chunks = index.chunks(np.arange(len(index)))
        raws = [storage.read(file, chunk.start, chunk.length) for chunk in chunks]
        together = ARROW.decode_together(raws, chunks, dtype=np.dtype(np.uint16), bound=VOCABULARY, eos_id=None)
        found = []
        for raw, chunk in zip(raws, chunks, strict=True):
            for part in ARROW.open(raw, chunk).parts(dtype=np.dtype(np.uint16), bound=VOCABULARY):
                assert (part.tokens < VOCABULARY).all()
                found.append(part.tokens)
    except (ConfigError, DataError, StorageError) as error:
        return type(error).__name__
    tokens = np.concatenate(found) if found else np.empty(0, np.uint16)
    assert together is None or np.array_equal(together.tokens, tokens)
    assert len(tokens) == index.total_tokens
    return "tokens"


def test_damage_is_an_error_or_ids_of_the_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(int(os.environ.get("ARROW_SEED", "1")))
    files = whole_files()
    file = tmp_path / "a.arrow"
    indexes = []
    for data in files:
        file.write_bytes(data)
        assert outcome(tmp_path, None) == "tokens"
        indexes.append(index_of(tmp_path))
    harms: list[Callable[[bytearray, np.random.Generator], None]] = [flip, put_number, cut, swap]
    outcomes: Counter[str] = Counter()
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)
    try:
        for trial in range(DAMAGES):
            number = int(rng.integers(len(files)))
            data = bytearray(files[number])
            harms[int(rng.integers(len(harms)))](data, rng)
            file.write_bytes(data)
            # Record batches of several parts are unpacked as these come.
            monkeypatch.setattr(decode, "PART_TOKENS", int(rng.choice([64, 1 << 20])))
            if not trial % 5:  # being traced takes longer than what is done
                tracemalloc.start()
            outcomes[outcome(tmp_path, indexes[number] if rng.random() < 0.3 else None)] += 1
            assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
            tracemalloc.stop()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(default)
    assert set(outcomes) <= {"tokens", "ConfigError", "DataError", "StorageError"}
    assert outcomes["DataError"] > DAMAGES // 4
    assert pool.max_memory() < MOST_BYTES


@pytest.mark.parametrize("form", FORMS)
def test_no_byte_that_became_zero_loses_a_record_batch_in_silence(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, VOCABULARY, rng.integers(1, 4)).tolist() for _ in range(12)]
    whole = ipc(pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}), form=form, codec=None, rows=4)
    lost = []
    for place in np.flatnonzero(np.frombuffer(whole, np.uint8)).tolist():
        (tmp_path / "a.arrow").write_bytes(whole[:place] + b"\0" + whole[place + 1 :])
        try:
            rows = index_of(tmp_path).rows
        except (ConfigError, DataError, StorageError):
            continue
        if len(rows) != 3:
            lost.append(place)
    assert lost == []


def test_files_that_were_joined_are_refused(tmp_path: Path) -> None:
    table = pa.table({"tokens": pa.array([[1, 2, 3]] * 100, pa.list_(pa.int32()))})
    (tmp_path / "a.arrow").write_bytes(2 * ipc(table, form="file", codec=None, rows=50))
    with pytest.raises(DataError, match="several files were joined"):
        index_of(tmp_path)
