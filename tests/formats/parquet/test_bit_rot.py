"""Some of the damages that tools/soak/bit_rot.py makes by the thousand; every flipped bit of page headers."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from chunks import decode_chunk

from parquet_loader import DataError

sys.path.insert(0, str(Path(__file__).parents[3] / "tools" / "soak"))
import bit_rot
from bit_rot import OTHER_TOKENS, REBUILT, REFUSED, SAME, Layout, Whole

TRIALS = 120

pytestmark = [
    # Python 3.12 and later warn of every fork of a process that has threads.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:the index cache"),
]


def test_damaged_files_give_an_error_or_the_same_tokens(tmp_path: Path) -> None:
    with_checksums, without = bit_rot.rot_files(tmp_path, TRIALS, seed=1)
    assert not with_checksums.bad
    assert set(with_checksums.counts) == {REFUSED, SAME}
    assert not without.bad
    assert set(without.counts) == {REFUSED, SAME, OTHER_TOKENS}


def test_damaged_checkpoints_and_indexes_are_refused_and_caches_built_again(tmp_path: Path) -> None:
    found = bit_rot.rot_own_files(tmp_path / "own", TRIALS, seed=1)
    assert not [line for kind in found for line in kind.bad]
    assert [dict(kind.counts) for kind in found] == [{REFUSED: TRIALS}, {REFUSED: TRIALS}, {REBUILT: TRIALS}]


def test_a_child_that_crashes_or_hangs_names_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bit_rot, "HANG_SECONDS", 1)
    trials = [lambda: "fine", os.abort, lambda: time.sleep(60), lambda: 1 / 0, lambda: "fine"]
    found = bit_rot.outcomes(len(trials), lambda number: trials[number]())
    kinds = [outcome.split(":")[0] for outcome in found]
    assert kinds == ["fine", "crash", "hang", "foreign error", "fine"]


@pytest.mark.parametrize("page", bit_rot.PAGES)
@pytest.mark.parametrize("encoding", bit_rot.ENCODINGS)
def test_no_flipped_bit_of_a_page_header_gives_other_tokens(tmp_path: Path, encoding: str, page: str) -> None:
    bit_rot.write_file(tmp_path / "x.parquet", Layout(encoding, "none", page, checksums=True))
    whole = Whole.of(tmp_path / "x.parquet")
    chunk = whole.index.chunk(0)
    raw = whole.data[chunk.start : chunk.start + chunk.length]
    wanted = {"dtype": np.dtype("int32"), "bound": 2**31 - 1}
    right = decode_chunk(raw, chunk, **wanted)
    headers = [(first - chunk.start, end - chunk.start) for first, end in whole.headers if end < chunk.start + len(raw)]

    def every_bit(place: int) -> str:
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[place] ^= 1 << bit
            try:
                read = decode_chunk(bytes(damaged), chunk, **wanted)
            except DataError:
                continue
            if not (np.array_equal(read.tokens, right.tokens) and np.array_equal(read.offsets, right.offsets)):
                return f"bit {bit} of byte {place} gives other tokens"
        return "fine"

    headers = [*headers[:3], headers[-1]]  # a dictionary's perhaps, and of data pages; those between are alike
    places = [place for first, end in headers for place in range(first, end)]
    assert set(bit_rot.outcomes(len(places), lambda number: every_bit(places[number]))) == {"fine"}
